"""What Dagster has heard of the commits of an incremental asset."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import dagster as dg

from delta_orch.pipeline.recorded import find_commit_after
from delta_orch.pipeline.run_identity import cdc_prefix
from delta_orch.pipeline.step import StepReport

if TYPE_CHECKING:
    from delta_orch.log.files.commit_reader import Commit


def with_untold_commit(
    instance: dg.DagsterInstance, key: dg.AssetKey, report: StepReport, consumers: Iterable[str]
) -> StepReport:
    """The report of a step that found nothing new, or of the last commit of its cursors that changed rows, where
    Dagster has no materialization of it: the attempt that made it has died, and what runs by materializations has not
    run.

    Args:
        instance: Dagster's.
        key: The asset.
        report: Of the step.
        consumers: The names of its cursors.

    Raises:
        DeltaError: The log cannot be read.
    """
    if not report.skipped or report.version is None:
        return report
    prefixes = tuple(map(cdc_prefix, consumers))

    def changed_rows(commit: Commit) -> bool:
        is_own = any(txn.app_id.startswith(prefixes) for txn in commit.txns)
        return is_own and bool(commit.adds.num_rows or commit.removes.num_rows)

    told = _told_version(instance, key, report.table.snapshot().metadata.id)
    found = find_commit_after(report.table, told, lambda _: True, also=changed_rows)
    if found is None:
        return report
    return replace(report, version=found.version, skipped=False, reason=None, recovered=found)


def _told_version(instance: dg.DagsterInstance, key: dg.AssetKey, table_id: str) -> int:
    """The version of the table that the last materialization is of; -1 without one."""
    event = instance.get_latest_materialization_event(key)
    last = None if event is None else event.asset_materialization
    of_table, _, version = ((last.tags if last else None) or {}).get("dagster/data_version", "").rpartition(":")
    return int(version) if of_table == table_id and version.isdecimal() else -1
