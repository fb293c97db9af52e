"""The alteration itself: changes are collected, checked against the newest version, and committed as one."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import orjson

from delta_orch.engines.select import EngineChoice, select_engine
from delta_orch.errors import CommitRetriesExhaustedError, ConflictError, DeltaError, InvalidRequestError
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import CommitOptions, ensure_options, parse_txns, provenance_only
from delta_orch.log.write.commit_result import CommitResult
from delta_orch.log.write.transaction import DEFAULT_MAX_ATTEMPTS, Transaction
from delta_orch.table.clustering import ensure_can_cluster
from delta_orch.table.configuration import TableConfiguration
from delta_orch.table.declared_types import with_declared_types
from delta_orch.table.table_rules import settle, with_column_mapping
from delta_orch.verbs.alter.draft import Change, Draft
from delta_orch.verbs.alter.evidence import (
    ensure_files_fit_iceberg,
    ensure_files_have_statistics,
    ensure_rows_satisfy,
)
from delta_orch.verbs.alter.preparation import prepare, truncate_history, without_traces
from delta_orch.verbs.alter.rewriting import FileRewriter
from delta_orch.verbs.log_files import checkpoint

_LOGGER = logging.getLogger(__name__)
_MAX_RESTARTS = 50
_LONGEST_PAUSE_S = 0.02


class Operation(NamedTuple):
    """What `commitInfo` says of an alteration."""

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
    if any(txn.scope is not None for txn in parse_txns(options.get("txn"))):
        raise InvalidRequestError("An alteration is of the whole table", remedy="Pass transaction ids without scope")
    is_dry_run = options.get("dry_run", False)
    rewriter = FileRewriter(lambda: select_engine(None, engine), dry_run=is_dry_run)
    for attempt in range(_MAX_RESTARTS):
        snapshot = read_snapshot()
        # Before the changes are looked at, which may be impossible a second time (a column that is there).
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
            # What was read of rows would have to be read again: that is for the caller to decide.
            if attempt == _MAX_RESTARTS - 1 or not _depends_on_definition_alone(draft):
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
    return draft.relies_on_version or not (draft.proofs or draft.relies_on_files)


def _write_checkpoint(log: TableLog, read_snapshot: Callable[[], Snapshot], version: int) -> None:
    """So that the log from here on can be read alone. The change stands without it, whatever goes wrong with reading
    the table again or with writing; the next checkpoint will do."""
    try:
        checkpoint(log, read_snapshot())
    except DeltaError as e:
        _LOGGER.warning("No checkpoint after version %d, which dropped a feature: %s", version, e)


def plan_alteration(snapshot: Snapshot, changes: Sequence[Change]) -> tuple[Draft, Operation]:
    """The table as the changes leave it, settled, and what `commitInfo` says about them. Pure log work."""
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
    """One change is told as the reference implementation tells it; several as a list of such."""
    told = []
    for change, before, after in steps:
        # The protocol is only known once everything that asks for features has been said.
        shown = replace(after, table=after.table.after(settled.protocol, None))
        told.append(Operation(change.operation, change.parameters(before, shown)))
    if len(told) == 1:
        return told[0]
    listed = [{"operation": one.name, "operationParameters": one.parameters} for one in told]
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
    is_changed = _stage(transaction, draft)
    if not is_changed and not draft.unwanted:
        return transaction.skip()
    ensure_files_fit_iceberg(snapshot, table)
    if draft.proofs and snapshot.num_files:
        transaction.read_whole_table()
        chosen = select_engine(None, engine)
        for proof in draft.proofs:
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
        known = snapshot.domain_metadata.get(domain)
        if configuration != known:
            transaction.set_domain_metadata(domain, configuration or known or "", removed=configuration is None)
            is_changed = True
    return is_changed
