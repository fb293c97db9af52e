"""Runs an alteration: checks the collected changes against the newest version and commits them together."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import orjson
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.base import Engine, Measure
from delta_orch.engines.select import EngineChoice, select_engine
from delta_orch.errors import (
    ColumnNotFoundError,
    CommitRetriesExhaustedError,
    ConflictError,
    ConstraintViolationError,
    DeltaError,
    InvalidExpressionError,
    InvalidRequestError,
    UnsupportedExpressionError,
)
from delta_orch.expressions.nodes import Column, Expression
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.expressions.tree import is_opaque
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.files.stats_columns import parse_stats
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_checks import ensure_files_fit_iceberg
from delta_orch.log.write.commit_options import (
    CommitOptions,
    CommitResult,
    ensure_options,
    ensure_unscoped,
    provenance_only,
)
from delta_orch.log.write.transaction import DEFAULT_MAX_ATTEMPTS, Transaction
from delta_orch.protocol.arrow_building import python_rows, schema_to_arrow
from delta_orch.protocol.schema_edit import Path, quote_path
from delta_orch.protocol.type_text import with_declared_types
from delta_orch.scan.scan import SCAN_COLUMNS, scan_of_files
from delta_orch.table.clustering import ensure_can_cluster
from delta_orch.table.configuration import TableConfiguration
from delta_orch.table.table_rules import settle, with_column_mapping
from delta_orch.verbs.alter.draft import Change, Draft, RowProof
from delta_orch.verbs.alter.preparation import prepare, truncate_history, without_traces
from delta_orch.verbs.alter.rewriting import FileRewriter
from delta_orch.verbs.log_files import checkpoint
from delta_orch.writing.identity import identity_of, with_marks_moved_to

_LOGGER = logging.getLogger(__name__)
_MAX_RESTARTS = 50
_LONGEST_PAUSE_S = 0.02


class Operation(NamedTuple):
    """The `commitInfo` of an alteration."""

    name: str
    parameters: Mapping[str, object]


def alter(
    log: TableLog,
    read_snapshot: Callable[[], Snapshot],
    changes: Sequence[Change],
    engine: EngineChoice,
    options: CommitOptions,
) -> CommitResult:
    """Apply the changes in order to the newest version, and commit the result as one version.

    The engine reads rows only if a change must be proven for them. It writes files only if a dropped feature needs it
    (`rewriting`). Some changes need further commits first (`preparation`): enabling row tracking on a table with files,
    dropping row tracking, and dropping V2 checkpoints.

    Returns: `skipped` if the table has all changes already. In that case nothing was committed.

    Raises:
        InvalidRequestError and its subclasses: A change is impossible. No change was made.
        ConstraintViolationError: Existing rows violate a change.
        UnsupportedFeatureError: This release could not write the table afterwards.
        ConflictError: Other commits changed the table while its rows were read, or changed it repeatedly. A change that
            depends only on the table's definition is tried again on the new version.
    """
    if not changes:
        raise InvalidRequestError(
            "The alteration has no changes",
            remedy='Add one before commit(), such as alter().set_comment("id", "key").commit()',
        )
    ensure_options(options, CommitOptions)
    ensure_unscoped(options, "An alteration changes the whole table")
    is_dry_run = options.get("dry_run", False)
    rewriter = FileRewriter(lambda: select_engine(None, engine), dry_run=is_dry_run)
    for attempt in range(_MAX_RESTARTS):
        snapshot = read_snapshot()
        # Check the transaction id before the changes. A change may be impossible a second time: the column exists
        # already.
        recorded = Transaction(log, snapshot, operation="ALTER TABLE", **options)
        if recorded.stale_txns():
            return recorded.commit()
        draft, operation = plan_alteration(snapshot, changes)
        try:
            if not is_dry_run and prepare(log, read_snapshot, draft, options):
                continue
            if draft.truncates and not is_dry_run:
                undone = _commit(log, without_traces(draft), operation, engine, rewriter, provenance_only(options))
                if not undone.skipped or truncate_history(log, read_snapshot, draft, options):
                    continue
            result = _commit(log, draft, operation, engine, rewriter, options)
            if draft.needs_checkpoint and not result.skipped and not is_dry_run:
                _write_checkpoint(log, read_snapshot, result.version)
            return result
        except (ConflictError, CommitRetriesExhaustedError) as e:
            # Only the caller may decide to read the rows again.
            if (
                attempt == _MAX_RESTARTS - 1
                or options.get("read_version") is not None
                or not _depends_on_definition_alone(draft)
            ):
                raise
            _LOGGER.info("The alteration starts again: %s", e)
            time.sleep(random.random() * _LONGEST_PAUSE_S)
    raise CommitRetriesExhaustedError(
        f"The alteration did not succeed in {_MAX_RESTARTS} attempts",
        cause="Other writers changed the table during each attempt",
        remedy="Try again when fewer writers are active",
        attempts=_MAX_RESTARTS,
    )


def _depends_on_definition_alone(draft: Draft) -> bool:
    return draft.relies_on_version or not (draft.proofs or draft.synced or draft.relies_on_files)


def _write_checkpoint(log: TableLog, read_snapshot: Callable[[], Snapshot], version: int) -> None:
    """Write a checkpoint, so that readers need no older part of the log. The change is committed already, so an error
    is only logged. The next checkpoint has the same effect."""
    try:
        checkpoint(log, read_snapshot())
    except DeltaError as e:
        _LOGGER.warning("No checkpoint after version %d, which dropped a feature: %s", version, e)


def plan_alteration(snapshot: Snapshot, changes: Sequence[Change]) -> tuple[Draft, Operation]:
    """Return the table after the changes, with its protocol, and the `commitInfo` of the changes. Only the log is
    read."""
    start = Draft.of(snapshot)
    draft = start
    steps: list[tuple[Change, Draft, Draft]] = []
    for change in changes:
        after = change.apply(draft)
        if after.schema is not draft.schema:
            after = after.with_schema(with_declared_types(after.schema))
        if after.mapped_schema is draft.mapped_schema:
            after = replace(after, table=with_column_mapping(draft.table, after.table))
        steps.append((change, draft, after))
        draft = after
    settled = settle(start.table, draft.table, draft.features, is_mapped=True)
    draft = replace(draft, table=settled)
    ensure_can_cluster(settled, draft.clustering or ())
    return draft, _operation(steps, settled)


def _operation(steps: Sequence[tuple[Change, Draft, Draft]], settled: TableConfiguration) -> Operation:
    """Return the operation of the commit. One change is recorded as Delta on Spark does, several as a list of
    changes."""
    operations = []
    for change, before, after in steps:
        # The protocol depends on all changes, because each may need features.
        shown = replace(after, table=after.table.after(settled.protocol, None))
        operations.append(Operation(change.operation, change.parameters(before, shown)))
    if len(operations) == 1:
        return operations[0]
    listed = [{"operation": one.name, "operationParameters": one.parameters} for one in operations]
    return Operation("ALTER TABLE", {"changes": orjson.dumps(listed).decode()})


def _commit(
    log: TableLog,
    draft: Draft,
    operation: Operation,
    engine: EngineChoice,
    rewriter: FileRewriter,
    options: CommitOptions,
) -> CommitResult:
    snapshot, table = draft.snapshot, draft.table
    transaction = Transaction(
        log,
        snapshot,
        operation=operation.name,
        operation_parameters=operation.parameters,
        max_attempts=1 if draft.relies_on_version else DEFAULT_MAX_ATTEMPTS,
        **options,
    )
    if draft.synced:
        transaction.read_whole_table()
        draft = with_synced_identities(select_engine(None, engine), draft)
        table = draft.table
    is_changed = _stage(transaction, draft)
    if not is_changed and not draft.unwanted:
        return transaction.skip()
    ensure_files_fit_iceberg(snapshot, table)
    proofs = [proof for proof in draft.proofs if snapshot.num_files or is_opaque(proof.violation)]
    if proofs:
        transaction.read_whole_table()
        chosen = select_engine(None, engine)
        for proof in proofs:
            ensure_rows_satisfy(chosen, snapshot, table, proof)
    if draft.relies_on_files:
        transaction.read_whole_table()
        if draft.mapped_schema is None:
            # With column mapping off, the files are rewritten and get statistics under the new names.
            ensure_files_have_statistics(snapshot, draft.clustering or ())
    has_rewritten = rewriter.stage(transaction, draft) if draft.unwanted else False
    return transaction.commit() if is_changed or has_rewritten else transaction.skip()


def _stage(transaction: Transaction, draft: Draft) -> bool:
    """Stage the actions that differ from the snapshot. Return whether there are any."""
    snapshot, table = draft.snapshot, draft.table
    is_changed = False
    if table.protocol != snapshot.protocol:
        transaction.update_protocol(table.protocol)
        is_changed = True
    if table.metadata != snapshot.metadata:
        transaction.update_metadata(table.metadata)
        is_changed = True
    for domain, configuration in draft.domains.items():
        recorded = snapshot.domain_metadata.get(domain)
        if configuration != recorded:
            transaction.set_domain_metadata(domain, configuration or recorded or "", removed=configuration is None)
            is_changed = True
    return is_changed


def with_synced_identities(engine: Engine, draft: Draft) -> Draft:
    """Return the draft with the high-water marks of the `synced` columns moved to the values of the rows. Only these
    columns are read."""
    snapshot, table = draft.snapshot, draft.table
    fields = [field for name in draft.synced if (field := table.schema.find(name)) is not None]
    columns = tuple(field.name for field in fields)
    plan = scan_of_files(snapshot, snapshot.files(SCAN_COLUMNS), columns, table=table)
    identities = {field.name: identity_of(field) for field in fields}
    measures = [
        Measure(name, "min" if identity is not None and identity.step < 0 else "max", Column((name,)))
        for name, identity in identities.items()
    ]
    (furthest,) = engine.to_arrow(engine.aggregate(engine.scan(plan), [], measures)).to_pylist()
    return draft.with_schema(with_marks_moved_to(table.schema, furthest))


_MAX_VALUE_CHARACTERS = 200


def ensure_rows_satisfy(engine: Engine, snapshot: Snapshot, table: TableConfiguration, proof: RowProof) -> None:
    """Check a condition against the existing rows, with the names and types that they will have.

    A file is not opened if its statistics exclude a violation.

    Raises:
        ConstraintViolationError: A row violates the condition. The message shows the row. Nothing was changed.
        UnsupportedExpressionError: This engine cannot evaluate the condition, but the other engine can.
    """
    prunable = _resolves_alike(proof.violation, snapshot)
    files = snapshot.files(SCAN_COLUMNS, proof.violation if prunable else None)
    if not files.num_rows:
        if is_opaque(proof.violation):
            _ensure_condition(engine, table, proof)
        return
    violations = engine.to_arrow(
        engine.scan(scan_of_files(snapshot, files, where=proof.violation, table=table)), limit=1
    )
    if violations.num_rows:
        row = {key: _shorten(value) for key, value in python_rows(violations.slice(0, 1))[0].items()}
        shown = ", ".join(f"{key}={value!r}" for key, value in row.items())
        raise ConstraintViolationError(
            f"A row of the table violates the {proof.name}",
            cause=f"It must satisfy {proof.condition}; the row is {shown}",
            remedy="Correct or delete such rows first. The table is unchanged",
            constraint=proof.name,
            row=row,
        )


def _ensure_condition(engine: Engine, table: TableConfiguration, proof: RowProof) -> None:
    """Check that a condition is valid, on a table without rows. A condition that only the other engine can evaluate is
    not checked.

    Raises InvalidExpressionError: The expression is not a valid condition.
    """
    try:
        engine.to_arrow(engine.filter(engine.relation(schema_to_arrow(table.schema).empty_table()), proof.violation))
    except UnsupportedExpressionError:
        _LOGGER.info("The engine %s cannot evaluate the %s", engine.name, proof.name)


def _resolves_alike(violation: Expression, snapshot: Snapshot) -> bool:
    """Whether the statistics of the snapshot's files have the same columns and types as the condition."""
    try:
        return resolve_expression(violation, snapshot.schema) == violation
    except (ColumnNotFoundError, InvalidExpressionError):
        return False


def ensure_files_have_statistics(snapshot: Snapshot, columns: Sequence[Path]) -> None:
    """Check that every file has statistics of every column (PROTOCOL, "Writer Requirements for Clustered Table").

    Args:
        columns: Physical paths.

    Raises:
        InvalidRequestError: A file lacks statistics. Nothing was changed.
    """
    texts = FileTable(snapshot.files(["stats"])).stats
    if not columns or not len(texts):
        return
    counts = parse_stats(texts, pa.struct([pa.field("nullCount", _counts_type(columns))]))
    for path in columns:
        missing = pc.sum(pc.is_null(pc.struct_field(counts, ["nullCount", *path]))).as_py()
        if missing:
            raise InvalidRequestError(
                f"{missing} files have no statistics of {quote_path(path)}",
                cause="Clustering columns need statistics in every file",
                remedy="Rewrite the table with its own rows first: table.overwrite(table.snapshot())",
                column=".".join(path),
                files=missing,
            )


def _counts_type(columns: Sequence[Path]) -> pa.DataType:
    """The struct type in which each of the paths is a 64-bit integer."""
    by_name: dict[str, list[Path]] = {}
    for name, *rest in columns:
        by_name.setdefault(name, []).append(tuple(rest))
    return pa.struct(
        [pa.field(name, pa.int64() if rests == [()] else _counts_type(rests)) for name, rests in by_name.items()]
    )


def _shorten(value: object) -> object:
    if isinstance(value, str | bytes) and len(value) > _MAX_VALUE_CHARACTERS:
        return value[:_MAX_VALUE_CHARACTERS]
    return value
