"""The alteration itself: changes are collected, checked against the newest version, and committed as one."""

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
    """Apply the changes in their order to the newest version, and commit what they leave as one version.

    Rows are read, through the engine, only for what must be proven of them, and files are written only where a feature
    is dropped that they need (`rewriting`). Some changes take further commits before (`preparation`): enabling row
    tracking on a table with files, dropping it, dropping V2 checkpoints.

    Returns: `skipped` where the table is that way already: then nothing was committed.

    Raises:
        InvalidRequestError and its kinds: A change cannot be; all or none are made.
        ConstraintViolationError: Rows stand against it.
        UnsupportedFeatureError: This release could not write the table afterwards.
        ConflictError: Another commit changed the table while its rows were read, or did so repeatedly. A change that
            depends on the table's definition alone starts again by itself, from the version that won.
    """
    if not changes:
        raise InvalidRequestError("There is nothing to alter", remedy="Call one of its methods before commit()")
    ensure_options(options, CommitOptions)
    ensure_unscoped(options, "An alteration is of the whole table")
    is_dry_run = options.get("dry_run", False)
    rewriter = FileRewriter(lambda: select_engine(None, engine), dry_run=is_dry_run)
    for attempt in range(_MAX_RESTARTS):
        snapshot = read_snapshot()
        # Check this before the changes, which may be impossible a second time (a column that exists).
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
            # The rows would have to be read again, and the caller decides about that.
            if (
                attempt == _MAX_RESTARTS - 1
                or options.get("read_version") is not None
                or not _depends_on_definition_alone(draft)
            ):
                raise
            _LOGGER.info("The alteration starts again: %s", e)
            time.sleep(random.random() * _LONGEST_PAUSE_S)
    raise CommitRetriesExhaustedError(
        f"The table was not ready for the alteration after {_MAX_RESTARTS} attempts",
        cause="What it needs to be prepared was undone each time by other writers",
        remedy="Try again when fewer writers are at work",
        attempts=_MAX_RESTARTS,
    )


def _depends_on_definition_alone(draft: Draft) -> bool:
    return draft.relies_on_version or not (draft.proofs or draft.synced or draft.relies_on_files)


def _write_checkpoint(log: TableLog, read_snapshot: Callable[[], Snapshot], version: int) -> None:
    """So that the log from here on can be read alone. The change stands without it, whatever goes wrong with reading
    the table again or with writing; the next checkpoint will do."""
    try:
        checkpoint(log, read_snapshot())
    except DeltaError as e:
        _LOGGER.warning("No checkpoint after version %d, which dropped a feature: %s", version, e)


def plan_alteration(snapshot: Snapshot, changes: Sequence[Change]) -> tuple[Draft, Operation]:
    """The table after the changes, settled, and the `commitInfo` of the changes. Pure log work."""
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
    """The operation of the commit. One change is recorded as by Delta on Spark, several as a list of changes."""
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
            # Files that get other names get statistics under them.
            ensure_files_have_statistics(snapshot, draft.clustering or ())
    has_rewritten = rewriter.stage(transaction, draft) if draft.unwanted else False
    return transaction.commit() if is_changed or has_rewritten else transaction.skip()


def _stage(transaction: Transaction, draft: Draft) -> bool:
    """Stage what is different. Returns whether anything is."""
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
    """The draft with the high-water marks of `synced` moved to the values of the rows. Only these columns are read."""
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
    """Read the rows that could break a condition, as the table will name and type them.

    Files whose statistics rule a violation out are not opened.

    Raises:
        ConstraintViolationError: A row breaks it, and is shown. Nothing was changed.
        UnsupportedExpressionError: The engine cannot evaluate it; the other one can.
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
            remedy="Correct or delete such rows first; the table is unchanged",
            constraint=proof.name,
            row=row,
        )


def _ensure_condition(engine: Engine, table: TableConfiguration, proof: RowProof) -> None:
    """Look at a condition without rows; not at one that only the other engine can evaluate.

    Raises InvalidExpressionError: It is no condition.
    """
    try:
        engine.to_arrow(engine.filter(engine.relation(schema_to_arrow(table.schema).empty_table()), proof.violation))
    except UnsupportedExpressionError:
        _LOGGER.info("The engine %s cannot evaluate the %s", engine.name, proof.name)


def _resolves_alike(violation: Expression, snapshot: Snapshot) -> bool:
    """Whether the statistics of the snapshot's files speak of the same columns and types."""
    try:
        return resolve_expression(violation, snapshot.schema) == violation
    except (ColumnNotFoundError, InvalidExpressionError):
        return False


def ensure_files_have_statistics(snapshot: Snapshot, columns: Sequence[Path]) -> None:
    """Check that every file has statistics of every column (PROTOCOL, "Writer Requirements for Clustered Table").

    Args:
        columns: Physical paths.

    Raises:
        InvalidRequestError: A file lacks them. Nothing was changed.
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
                cause="A table can only be clustered by columns that every file has statistics of",
                remedy="Rewrite those files first, for example by overwriting the table with its own rows",
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
