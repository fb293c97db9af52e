"""A statement of SQL as the step of an asset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import dagster as dg

from delta_orch.dagster.metadata import report_metadata
from delta_orch.dagster.run import asset_units, read_run
from delta_orch.dagster.scopes import owner_of_write
from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.row_guards import RowGuard
from delta_orch.pipeline.step import Step
from delta_orch.pipeline.target_table import snapshot_or_none
from delta_orch.statements.run import parse_replacement

if TYPE_CHECKING:
    from delta_orch.writing.target import WriteOptions


def run_statement(text: str, tables: Mapping[str, object], storage_options: Mapping[str, object]) -> None:
    """Run a statement as the unit of the asset whose step this is, and report its commit.

    Raises:
        InvalidRequestError: This is not the step of one asset without partitions, or as `parse_replacement`. Nothing
            was read or changed.
        ConcurrentTransactionError: Another attempt has committed meanwhile. Running again is safe.
        DeltaError: As `delta_orch.sql`. The table is unchanged.
    """
    statement = parse_replacement(text, tables, storage_options)
    context = _context()
    run, key, table = read_run(context), context.asset_key, statement.table
    attempt = run.attempt(asset_units(key.path, run, None, write=statement.mode))
    name, owner, guards = key.to_user_string(), None, tuple[RowGuard, ...]()
    if statement.mode == "overwrite":
        before, is_scoped = snapshot_or_none(table), not statement.is_whole
        owner, guards = owner_of_write(table, before, key.path, attempt, statement.mode, is_scoped=is_scoped)
    about: WriteOptions = {"user_metadata": run.user_metadata(name)}
    step = Step(name, table, statement.mode, attempt=attempt, guards=guards, owner=owner, options=about)
    report = step.commit(statement.run)
    context.log.info(report.sentence())
    metadata = report_metadata(report, report.snapshot(), table_name=name, run_id=run.run_id)
    context.add_asset_metadata(metadata, key)


def _context() -> dg.AssetExecutionContext:
    remedy = "Run it by a dagster.TemplatedSqlComponent with one asset, without partitions"
    try:
        context = dg.AssetExecutionContext.get()
    except dg.DagsterError as error:
        raise InvalidRequestError(
            "The statement does not run in the step of an asset",
            cause="The run is the identity that makes a write happen once",
            remedy=remedy + "; elsewhere call delta_orch.sql",
        ) from error
    if len(context.selected_asset_keys) != 1 or context.has_partition_key or context.has_partition_key_range:
        raise InvalidRequestError(
            "The statement runs for several assets, or for partitions",
            cause="A unit is one asset, and the template of a statement knows no partition",
            remedy=remedy,
        )
    return context
