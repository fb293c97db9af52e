"""A step of a pipeline: the write of an orchestrator's task to its table, exactly once.

A plugin says which units it writes and where its attempt stands among others (`unit.Attempt`), how its rows are written
(`Mode`) and how to get them. The rules are here: an attempt that comes late, or repeats what it has committed, computes
nothing; one that does a unit again replaces exactly the rows that the unit wrote; the report says which it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, cast
from typing import Literal as OneOf

from delta_orch.engines.select import select_engine
from delta_orch.errors import (
    AuditFailedError,
    ConflictError,
    InvalidRequestError,
    RedoNotPossibleError,
    SchemaMismatchError,
    TableExistsError,
)
from delta_orch.expressions.tree import any_of, is_not_true
from delta_orch.log.files.txn import TxnId
from delta_orch.log.write.commit_options import CommitOptions
from delta_orch.pipeline.audit import ensure_unique_keys
from delta_orch.pipeline.target_table import (
    OPS,
    RowGuard,
    claim,
    ensure_may_write,
    ensure_rows_stay,
    first_upsert,
    fit_frame,
    incremental_rows,
    may_follow,
    publish_now,
    snapshot_or_none,
)
from delta_orch.pipeline.unit import Attempt, OnRedo, Outcome, StepReport, Unit
from delta_orch.protocol.table_properties import OWNER
from delta_orch.verbs.unit_files import REMEDY, UnitFiles, files_of_unit
from delta_orch.verbs.unit_records import ADDING, REPLACING, LogWalk, RecordedUnit, StepRecord, run_of, unit_predicate
from delta_orch.writing.plan import Source, UnitColumn
from delta_orch.writing.target import existing_target

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.engines.select import EngineChoice
    from delta_orch.expressions.nodes import Expression
    from delta_orch.log.write.commit_options import CommitResult
    from delta_orch.pipeline.audit import Audit, AuditFinding
    from delta_orch.pipeline.incremental import FileBatch
    from delta_orch.staged_write import StagedWrite
    from delta_orch.verbs.change_events import Changes
    from delta_orch.verbs.expect import CheckedRows, ExpectationReport, Expectations
    from delta_orch.writing.target import WriteOptions

Mode = OneOf[
    "append", "merge", "cdc", "overwrite", "overwrite_partitions", "overwrite_changed", "error", "ignore",
    "merge_clauses", "update", "delete",
]  # fmt: skip
"""What becomes of the rows that are there.

- `append`: they stay.
- `merge`: those with the same `Step.merge_keys` as a new row are updated; new rows without such a row are inserted.
- `cdc`: rows are change events of `Step.merge_keys`, which `Step.changes` describes; see `DeltaTable.apply_changes`.
- `overwrite`: those that `Step.where` selects are replaced, or all. New rows must satisfy `where`.
- `overwrite_partitions`: those in the partitions of the new rows are replaced.
- `overwrite_changed`: those in the partitions that a batch of changes touched are replaced (`IncrementalStep` only).
- `error`, `ignore`: rows are added to an empty place; otherwise the step fails, or does nothing.
- `merge_clauses`, `update`, `delete`: a verb that `Step.commit` is handed changes them.
"""


@dataclass(frozen=True, slots=True)
class Step:
    """A write of one attempt to one table, in one commit. `IncrementalStep` makes one a batch of changes.

    Attributes:
        name: Who writes, for error messages.
        table: The table, which need not exist yet.
        mode: See `Mode`.
        attempt: Which units it writes, and when it began. None: every attempt writes (`exactly_once=False`).
        on_redo: What a unit does that is done again; see `OnRedo`.
        unit_column: A text column that the step fills with the unit of each row, in `append` and the overwriting modes.
            Rows then name their unit, also after compactions, updates and writes of other clients.
        fences: Further transactions that keep the whole write out, such as the order of overwrites by data interval.
        where: Selects rows: `overwrite` replaces them, `error` and `ignore` look for them. None selects all.
        creates_only: `error` and `ignore` look for a table instead of rows.
        within: Where every new row must lie: predicates of which no two are true for a row. `merge` moves no row from
            one to another. None at all allows every place. `overwrite` has `where`.
        merge_keys: The columns that identify a row, for `merge` and `cdc`.
        changes: How the rows are change events, for `cdc`. A unit that is done again applies its events once more, and
            each takes the place of the one with its key and sequence.
        schema_mode: As for `DeltaTable.append` and `DeltaTable.overwrite`.
        engine: As for `DeltaTable.append`.
        options: What a table is to be that the step creates, and what its commits say. No `txn`. With `stage` the step
            ends with a staged write (`StepReport.commit.staged`), for others to publish.
        audits: What must hold before the commit. The rows are staged and checked, and published if the checks pass.
        guards: Whose rows stay in the table. The write is staged and published then.
        expect: Rules for the rows, which are checked while they are written (`verbs.expect`).
        quarantine: Where its rows go; None for `DeltaTable.quarantine`.
        owner: Who writes, for `target_table`: a step with one replaces no rows of a table that belongs to another, and
            none that incremental steps wrote.
    """

    name: str
    table: DeltaTable
    mode: Mode = "append"
    attempt: Attempt | None = None
    on_redo: OnRedo = "replace"
    unit_column: str | None = None
    fences: tuple[TxnId, ...] = ()
    where: str | Expression | None = None
    creates_only: bool = False
    within: tuple[Expression, ...] = ()
    merge_keys: tuple[str, ...] = ()
    changes: Changes | None = None
    schema_mode: str | None = None
    engine: EngineChoice = "auto"
    options: WriteOptions = field(default_factory=dict)  # type: ignore[assignment]  # an empty one
    audits: tuple[Audit, ...] = ()
    guards: tuple[RowGuard, ...] = ()
    expect: Expectations | None = None
    quarantine: DeltaTable | None = None
    owner: str | None = None

    def run(self, rows: Callable[[], object]) -> StepReport:
        """Get the rows and commit them. Do neither where the attempt comes late or repeats what it has committed, or
        where `error` or `ignore` found data.

        Args:
            rows: Gives what `DeltaTable.append` takes. None is an error, because it is likely a missing `return`.

        Raises:
            TableExistsError: Mode `error` found data.
            AuditFailedError: An audit did not pass. The table is as before; the staged write stays for inspection.
            ExpectationFailedError: A rule with the action `fail` is broken, or too many rows are for the quarantine.
                Neither table has changed.
            RedoNotPossibleError: The unit was written before, and its rows cannot be told from others; or the new rows
                are none at all.
            InvalidRequestError: `rows` gave None, the request does not fit the table, or the table belongs to another
                step (`target_table`).
            ConcurrentTransactionError: Another attempt at the unit has committed meanwhile. Running again is safe.
            DeltaError: As `DeltaTable.append` and `DeltaTable.overwrite`. The table is unchanged after every error;
                where there was none, there is none.
        """
        self._ensure_expectations()
        before = snapshot_or_none(self.table)
        work = self._judge(before)
        if work.over is not None:
            self._complete(work)
            return work.over
        if before is not None and (done := self._in_the_way(before)) is not None:
            return done
        self._ensure_owner(before)
        if self.mode == "overwrite_partitions":
            self._replaced_partitions(before)
        work = self._ensure_redoable(before, work)
        return self._commit(rows(), work)

    def already_done(self) -> StepReport | None:
        """The report of a step that has nothing to compute. None where there is something to do.

        Raises:
            TableExistsError: Mode `error` found data.
        """
        before = snapshot_or_none(self.table)
        work = self._judge(before)
        if work.over is not None:
            self._complete(work)
        return work.over or (None if before is None else self._in_the_way(before))

    def commit(self, verb: Callable[[CommitOptions], CommitResult]) -> StepReport:
        """As `run`, for a verb of the table that takes the options of the commit: `table.update(…, **options)`.

        Raises:
            RedoNotPossibleError: The unit was written before, and the verb (`merge_clauses`, `update`) may count twice
                where it is applied twice.
            Otherwise as `run`, and what the verb raises.
        """
        before = snapshot_or_none(self.table)
        work = self._judge(before)
        if work.over is not None:
            return work.over
        self._ensure_owner(before)
        work = self._ensure_redoable(before, work)
        options, guards = self._options(before, work), self._guards_of(before, work)
        if guards:
            options["stage"] = True
        about = {name: value for name, value in options.items() if name in CommitOptions.__annotations__}
        result = verb(cast(CommitOptions, about))
        if result.staged is not None:
            staged = self.table.staged(result.staged)
            if result.effect is None or result.effect.rows_removed != 0:
                ensure_rows_stay(self.table, staged, self.where, guards)
            if not self.options.get("stage"):
                result = replace(publish_now(staged), measured=result.measured)
        return self._reported(result, work)

    def _ensure_expectations(self) -> None:
        """Raises InvalidRequestError: The rules keep rows out that the step must see, or cannot commit in time."""
        if self.expect is None:
            return
        if self._is_snapshot and self.expect.loses_rows:
            raise InvalidRequestError(
                f"{self.name} has full_snapshot, and rules that keep rows out of it",
                cause="The keys of those rows would end, as if the source had no such rows",
                remedy="Use the actions 'fail' and 'warn', or a delete_marker instead of full_snapshot",
            )
        if self.options.get("stage") and self.expect.quarantines:
            raise InvalidRequestError(
                f"{self.name} is staged, and has rules with the action 'quarantine'",
                cause="Somebody else publishes it, and the quarantine follows the table",
                remedy="Leave stage out, or use the actions 'fail', 'warn' and 'drop'",
            )

    @contextmanager
    def _checked(self, data: object, before: TableSnapshot | None, work: Work) -> Iterator[CheckedRows | None]:
        """The rows, evaluated once together with their rules; None without rules."""
        if self.expect is None:
            yield None
            return
        from delta_orch.expressions.resolve import resolve_expression
        from delta_orch.verbs.expect import checked_rows

        engine = select_engine(data, self.engine)
        is_new = before is None or self.schema_mode == "overwrite"
        rows = Source(data).open(engine, None if is_new or before is None else before.schema)
        units, left_out = work.units_written()
        if len(units) > 1 and None in units.values() and self.expect.quarantines:
            raise InvalidRequestError(
                f"{self.name} has a quarantine and writes {len(units)} units, which its rows do not tell apart",
                remedy="Run one partition at a time (BackfillPolicy.multi_run), or partition the table likewise",
            )
        if left_out:
            omitted = resolve_expression(any_of(left_out), engine.schema(rows))
            rows = engine.filter(rows, is_not_true(omitted))
        with checked_rows(engine, rows, self.expect, units) as checked:
            yield checked

    def _quarantines(self, work: Work) -> list[DeltaTable]:
        """The quarantines of rows that break a rule, in this attempt and in earlier attempts at the units."""
        quarantines = []
        if self.expect is not None and self.expect.quarantines:
            quarantines.append(self.quarantine or self.table.quarantine())
        uris = {one.uri for one in quarantines}
        recovered = None if work.over is None else work.over.recovered
        for recorded in work.redone if recovered is None else (recovered,):
            uri = None if recorded.step is None else recorded.step.quarantine
            if uri is not None and uri not in uris:
                quarantines.append(self.table.quarantine(uri))
                uris.add(uri)
        return quarantines

    def _write_transfers(
        self, checked: CheckedRows | None, commit: str, before: TableSnapshot | None, work: Work
    ) -> None:
        """Write what a commit puts into quarantines and takes out of them (`verbs.quarantine`)."""
        from delta_orch.verbs.quarantine import write_transfer

        names = [txn.app_id for txn in work.txns if txn.follows is not None]
        gone = [unit_predicate("unit", names)] if work.redone else []
        if work.taken_back is not None:
            names = names or [cursor.app_id for cursor in work.cursors]
            gone = [unit_predicate("unit", [*names, *work.taken_back])]
        gone += [batch.quarantined_before() for batch in work.file_batches if batch.new_files.replaces]
        where = any_of(gone) if gone else None
        run = None if self.attempt is None else self.attempt.run_id
        version = None if before is None else before.version
        for number, quarantine in enumerate(self._quarantines(work)):
            is_own = checked is not None and self.expect is not None and self.expect.quarantines and number == 0
            rows = checked.quarantined(run) if is_own and checked is not None else ()
            write_transfer(self.table.store, commit, version, quarantine.uri, rows, where=where)

    def _complete(self, work: Work) -> None:
        """Bring the quarantines to what the table has. Whoever comes next does, if this process dies before."""
        quarantines = self._quarantines(work)
        if not quarantines:
            return
        from delta_orch.verbs.quarantine import complete_transfers

        complete_transfers(
            self.table.log,
            partial(snapshot_or_none, self.table),
            [quarantine.log for quarantine in quarantines],
            lambda uri: self.table.quarantine(uri).log,
        )

    def _replaced_partitions(self, before: TableSnapshot | None) -> tuple[str, ...]:
        """The columns of the partitions that `overwrite_partitions` replaces. Raises InvalidRequestError: None."""
        columns = (self.options.get("partition_by") or ()) if before is None else before.partition_columns
        if not columns:
            raise InvalidRequestError(
                f"{self.name} replaces the partitions that its rows lie in, and the table has no partitions",
                remedy="Give a new table partition_by; or append, merge, or overwrite all rows",
            )
        return tuple(columns)

    def _judge(self, before: TableSnapshot | None) -> Work:
        """Compare the units with the records of the table, and return the work that is left.

        Raises InvalidRequestError: The table forgets its units, and the mode would double rows then.
        """
        if self.attempt is None:
            return Work(())
        if before is not None and before.properties.set_transaction_retention_ms is not None:
            self._ensure_rows_name_units()
        walk = None if before is None else LogWalk(self.table.log, before.version)
        names = [unit.name for unit in self.attempt.units]
        orders = {} if before is None else before.txn_versions([*names, *(txn.app_id for txn in self.fences)])
        for txn in self.fences:
            order = _live(orders.get(txn.app_id))
            if before is not None and walk is not None and order is not None and txn.is_recorded_by(order):
                return Work((), over=self._fenced(before, RecordedUnit(txn.app_id, order, walk)))
        txns: list[TxnId] = []
        redone: list[RecordedUnit] = []
        over: list[tuple[Unit, RecordedUnit, bool]] = []
        for unit in self.attempt.units:
            order = _live(orders.get(unit.name))
            if order is None or walk is None:
                txns.append(self._unit_txn(unit, None))
                continue
            recorded = RecordedUnit(unit.name, order, walk)
            relation = self.attempt.relation_to(recorded)
            if relation == "earlier" and self.on_redo != "keep":
                redone.append(recorded)
                txns.append(self._unit_txn(unit, recorded))
            else:
                over.append((unit, recorded, relation == "later"))
                # Its partitions are left out of the commit.
                txns.append(TxnId(unit.name, recorded.order, unit.scope, is_unit=True))
        ended = None
        if len(over) == len(self.attempt.units) or any(unit.scope is None for unit, _, _ in over):
            assert before is not None
            _, recorded, is_late = over[0]
            ended = self._fenced(before, recorded) if is_late else self._recovered(recorded)
        adds_to = redone[0].order if redone and self.on_redo == "add" else None
        return Work(tuple(txns), tuple(redone) if self.on_redo == "replace" else (), adds_to=adds_to, over=ended)

    def _ensure_rows_name_units(self) -> None:
        """Check that rows tell their unit where the table forgets it."""
        if self.mode in (*ADDING, "merge_clauses", "update") and self.unit_column is None:
            raise InvalidRequestError(
                f"{self.table.uri} forgets what was written, and {self.name} could write it a second time",
                cause="delta.setTransactionRetentionDuration is set: old units and cursors expire",
                remedy="Unset it: alter().unset_properties('delta.setTransactionRetentionDuration').commit(). "
                "Or let an append fill a column with its unit: unit_column='load_id'",
                uri=self.table.uri,
            )

    def _unit_txn(self, unit: Unit, recorded: RecordedUnit | None) -> TxnId:
        assert self.attempt is not None
        return TxnId(
            unit.name,
            self.attempt.next_order(recorded),
            unit.scope,
            follows=-1 if recorded is None else recorded.order,
            is_unit=True,
            replaces=recorded is not None and self.on_redo == "replace" and self._replaces_units,
        )

    @property
    def _replaces_units(self) -> bool:
        """Whether a redo takes away the rows of the unit, found by its files."""
        return self.mode == "overwrite_partitions" or (self.mode in ADDING and self.unit_column is None)

    def _fenced(self, before: TableSnapshot, recorded: RecordedUnit) -> StepReport:
        run = run_of(recorded.commit_info)
        by = "another run" if run is None else f"run {run}"
        reason = f"{by}, which is newer, has written this"
        return StepReport(self.table, before.version, "fenced", fenced_by=run, reason=reason)

    def _recovered(self, recorded: RecordedUnit) -> StepReport:
        reason = "an earlier attempt has committed this"
        return StepReport(self.table, recorded.version, "recovered", reason=reason, recovered=recorded)

    def _ensure_redoable(self, before: TableSnapshot | None, work: Work) -> Work:
        """Check before any work that the rows of a unit which is done again can be told from others. Returns the work
        with the files of those units, where their files tell their rows."""
        if self.unit_column is not None and self.mode not in (*ADDING, *REPLACING):
            raise InvalidRequestError(
                f"{self.name} has unit_column, which {self.mode} does not use",
                remedy="Leave it out: rows are found by their keys",
            )
        if before is None or not work.redone:
            return work
        first = work.redone[0]
        if self.mode in ("merge_clauses", "update"):
            raise RedoNotPossibleError(
                f"{self.name} has been done, and doing it again may count twice",
                cause=f"{first.name} is recorded with order {first.order}; {self.mode} changes rows in place",
                remedy="Restore the version before it and run the step again, or pass on_redo='keep' to leave it; "
                "exactly_once=False applies it again",
                unit=first.name,
                version=first.version,
            )
        if self.mode in ADDING and self.unit_column is not None:
            self._ensure_named(before, work.redone)
        if not self._replaces_units:
            return work
        located = tuple(files_of_unit(recorded.walk, before, recorded.name) for recorded in work.redone)
        for unit in located if self.mode != "overwrite_partitions" else ():
            unit.ensure_exact(self.table.uri)
        return replace(work, located=located)

    def _ensure_named(self, before: TableSnapshot, redone: Iterable[RecordedUnit]) -> None:
        """Check that the rows of units name them in `unit_column`."""
        for recorded in redone:
            record = recorded.step
            if record is not None and record.unit_column == self.unit_column:
                continue
            old_column = None if record is None else record.unit_column
            is_renamed = old_column is not None and before.schema.find(old_column) is None
            is_told_by_rows = recorded.version is None or is_renamed
            if is_told_by_rows and self._has_rows_of(before, recorded.name):
                continue
            undo = f"Undo them: DeltaTable({self.table.uri!r}).undo(unit={recorded.name!r}); then run the step again"
            cause = "They were written before the step had this unit_column"
            if is_told_by_rows:
                gone = f"The table has no column {old_column!r}" if is_renamed else "The log does not hold their commit"
                cause = f"{gone} any more, and no row names it"
            raise RedoNotPossibleError(
                f"The rows that {recorded.name} wrote to {self.table.uri} may not name it in {self.unit_column!r}",
                cause=cause,
                remedy=REMEDY if is_told_by_rows else undo,
                unit=recorded.name,
            )

    def _has_rows_of(self, before: TableSnapshot, unit: str) -> bool:
        """Whether a row names a unit in `unit_column`."""
        from delta_orch.expressions.resolve import resolve_expression
        from delta_orch.pipeline.conditions import has_rows

        column = self.unit_column or ""
        if before.schema.find(column) is None:
            return False
        return has_rows(before, resolve_expression(unit_predicate(column, [unit]), before.schema), 1)

    def _in_the_way(self, before: TableSnapshot) -> StepReport | None:
        """The report of mode `ignore` that found data."""
        if self.mode not in ("error", "ignore") or not self._is_in_the_way(before):
            return None
        if self.mode == "ignore":
            return StepReport(self.table, before.version, "nothing new", reason="there is data already (ignore)")
        raise TableExistsError(
            f"{self.name} found {'a table' if self.creates_only else 'data'} at {self.table.uri}",
            cause="Mode 'error' writes only where there is nothing yet",
            remedy="Use mode 'overwrite' to replace it, 'ignore' to keep it, or 'append'",
            uri=self.table.uri,
        )

    def _is_in_the_way(self, before: TableSnapshot) -> bool:
        from delta_orch.expressions.resolve import resolve_expression
        from delta_orch.pipeline.partitions import looks_only_at

        if self.creates_only:
            return True
        if self.where is None or isinstance(self.where, str):
            return before.num_files > 0
        where = resolve_expression(self.where, before.schema)
        if looks_only_at(where, before.partition_columns):
            return bool(before.files(["path"], where).num_rows)
        # Statistics can tell that a file holds no such row, but not that it holds one.
        return any(batch.num_rows for batch in before.scan([before.schema.names[0]], where).to_reader())

    @property
    def _is_whole(self) -> bool:
        return self.mode == "overwrite" or self._is_snapshot

    @property
    def _is_snapshot(self) -> bool:
        """Whether what is missing from the rows is deleted."""
        return self.changes is not None and self.changes.full_snapshot

    @property
    def _replaces(self) -> bool:
        return self.mode.startswith("overwrite")

    def _ensure_owner(self, before: TableSnapshot | None) -> None:
        if self.owner is not None and before is not None:
            ensure_may_write(self.table, before, self.owner, replaces=self._replaces)

    def _guards_of(self, before: TableSnapshot | None, work: Work) -> list[RowGuard]:
        """Whose rows this write must leave in the table."""
        guards = list(self.guards)
        if self.owner is not None and self._replaces and work.taken_back is None:
            units = () if self.attempt is None else self.attempt.units
            own = (*work.consumers, *dict.fromkeys(f"{unit.writer}:" for unit in units))
            guards.append(incremental_rows(self.table, own, is_incremental=bool(work.inputs)))
        return [guard for guard in guards if before is not None and guard.applies(before)]

    def _options(self, before: TableSnapshot | None, work: Work) -> WriteOptions:
        """The options of the commit, and the definition of a table that it creates."""
        txns = (*self.fences, *work.cursors, *work.txns)
        if not txns and self.expect is not None and self.expect.quarantines:
            # There is a commit also where all rows go to the quarantine, which follows it.
            txns = (TxnId("quarantine", 0, ordered=True),)
        options: WriteOptions = {**self.options, "txn": txns}
        if self.attempt is not None or work.inputs:
            quarantines = self._quarantines(work)
            where = quarantines[0].uri if quarantines else None
            record = StepRecord(self.mode, self.unit_column, work.adds_to, work.inputs, where)
            options["commit_info"] = {**(self.options.get("commit_info") or {}), "step": record.as_json()}
        if before is None and self.owner is not None and (self._replaces or self.owner == OPS):
            options["properties"] = {**(options.get("properties") or {}), OWNER: self.owner}
        return options

    def _commit(self, data: object, work: Work) -> StepReport:
        if data is None:
            raise InvalidRequestError(
                f"{self.name} returned None instead of rows",
                cause="A missing return statement must not pass for an empty result",
                remedy="Return a Spark DataFrame, an Arrow table or reader, or a pandas or Polars frame (empty where "
                "there are no rows)",
            )
        table = self.table
        before = snapshot_or_none(table)
        if before is not None and (done := self._in_the_way(before)) is not None:
            # Another writer committed while the rows were computed.
            return done
        schema = None if before is None or self.schema_mode == "overwrite" else before.schema
        data = fit_frame(data, schema, merges=self.schema_mode == "merge", hands_on=self.owner == OPS)
        findings: tuple[AuditFinding, ...] = ()
        expected: ExpectationReport | None = None
        try:
            guards = self._guards_of(before, work)
            with self._checked(data, before, work) as checked:
                result = self._write(data, before, work, checked, is_looked_at=bool(guards))
                expected = None if checked is None else checked.ended()
                if result.staged is not None:
                    staged = self.table.staged(result.staged)
                    transfer = partial(self._write_transfers, checked, result.staged, before, work)
                    result, findings = self._publish(result, staged, work, guards, expected, transfer)
        except ConflictError:
            if before is not None or not may_follow(table, data):
                raise
            # Another writer has created the table meanwhile.
            again = self._judge(snapshot_or_none(table))
            return again.over or self._commit(
                data, replace(work, txns=again.txns, redone=again.redone, adds_to=again.adds_to)
            )
        self._complete(work)
        report = self._reported(result, work)
        if self.owner is not None and self._replaces and before is not None and report.version is not None:
            claim(table, before, self.owner, self.options.get("properties") or {})
        return replace(report, findings=findings, expected=expected)

    def _reported(self, result: CommitResult, work: Work) -> StepReport:
        """The report of a write."""
        if result.staged is not None:
            return StepReport(self.table, None, "replaced" if work.redone else "written", commit=result)
        if result.skipped:
            if result.skipped_txns and (ended := self._judge(snapshot_or_none(self.table)).over) is not None:
                return replace(ended, commit=result)
            return StepReport(
                self.table, result.version, "nothing new", reason="there are no rows to write", commit=result
            )
        left_out = tuple(txn.app_id for txn in result.skipped_txns)
        if not work.redone and self.unit_column is None:
            return StepReport(self.table, result.version, "written", left_out=left_out, commit=result)
        removed = None if result.effect is None else result.effect.rows_removed
        outcome: Outcome = "replaced" if work.redone or removed else "written"
        return StepReport(self.table, result.version, outcome, removed, left_out=left_out, commit=result)

    def _write(
        self,
        data: object,
        before: TableSnapshot | None,
        work: Work,
        checked: CheckedRows | None,
        *,
        is_looked_at: bool,
    ) -> CommitResult:
        options, log = self._options(before, work), self.table.log
        is_looked_at = is_looked_at or bool(self._quarantines(work))
        if checked is not None:
            data, options["operation_metrics"] = checked.kept, checked.metrics
        for batch in work.file_batches:
            if batch.may_set_aside:
                options["stage"] = True
            else:
                batch.write_record()
        may_empty = bool(work.redone) and self.mode in (*ADDING, "overwrite_partitions")
        if self.audits or self._is_snapshot or work.unique_keys or is_looked_at or may_empty:
            options["stage"] = True
        column, creates = self._filled_column(), before is None and self.mode in ("error", "ignore")
        if self.mode == "merge":
            return self._upsert(data, before, options)
        if self.mode == "cdc":
            from delta_orch.verbs.apply_changes import apply_changes

            assert self.changes is not None
            # In a redo, an event corrects the earlier event of the unit with the same key and sequence.
            changes = replace(self.changes, keys=self.merge_keys, within=self.within, corrects=bool(work.redone))
            return apply_changes(log, before, data, changes, self.engine, options)
        from delta_orch.verbs.append import append
        from delta_orch.verbs.overwrite import overwrite

        where, within, units = self.where, None, list[str]()
        if self.mode in ADDING and not creates:
            if before is not None and column is not None and self._ensure_has(before, column.name):
                # Those that are recorded already are left out of the commit, with their partitions.
                units = [txn.app_id for txn in work.txns if txn.follows is not None]
                where, within = unit_predicate(column.name, units), self._bounds
            if not units or self.on_redo == "add" or work.adds_to is not None:
                schema_mode, bounds, files = self.schema_mode, self._bounds, work.located
                return append(log, before, data, schema_mode, self.engine, options, bounds, column, files)
            # An append whose rows name their unit replaces those of its unit, of which there mostly are none.
        elif creates:
            where = self._bounds
        self._ensure_owner(before)
        # From this very version, or where there is no table: what others commit from here on is a conflict.
        return overwrite(
            log,
            before,
            data,
            where,
            "dynamic" if self.mode == "overwrite_partitions" else "static",
            self.schema_mode,
            self.engine,
            options,
            work.look_at_partitions,
            within,
            column,
            work.taken_back or (),
            units,
            work.located,
        )

    def _filled_column(self) -> UnitColumn | None:
        """The column that names the unit of each row. Several units of a write have a scope each."""
        if self.unit_column is None or self.attempt is None:
            return None
        several = len(self.attempt.units) > 1
        units = {unit.name: unit.scope if several else None for unit in self.attempt.units}
        if several and None in units.values():
            raise InvalidRequestError(
                f"{self.name} has unit_column and writes {len(units)} units, which its rows do not tell apart",
                remedy="Run one partition at a time (BackfillPolicy.multi_run), or leave unit_column out",
            )
        return UnitColumn(self.unit_column, units)

    def _ensure_has(self, before: TableSnapshot, column: str) -> bool:
        """Whether the table has the column of the unit. Raises SchemaMismatchError: It does not, and gets none."""
        has_column = before.schema.find(column) is not None
        if not has_column and self.schema_mode != "merge":
            raise SchemaMismatchError(
                f"{self.table.uri} has no column {column!r}, which {self.name} fills with the unit",
                remedy=f"Pass schema_mode='merge', or add it: DeltaTable({self.table.uri!r})"
                f".alter().add_columns('{column} string').commit()",
                columns=[column],
            )
        return has_column

    def _publish(
        self,
        result: CommitResult,
        staged: StagedWrite[TableSnapshot],
        work: Work,
        guards: Collection[RowGuard],
        expected: ExpectationReport | None,
        write_transfers: Callable[[], None],
    ) -> tuple[CommitResult, tuple[AuditFinding, ...]]:
        """Look at what was staged, and publish it."""
        for batch in work.file_batches:
            if batch.may_set_aside:
                batch.write_record()
        is_adding = self.mode in (*ADDING, "overwrite_partitions")
        if work.redone and not work.inputs and is_adding and not (expected and expected.num_quarantined):
            self._ensure_rows(result, work)
        ensure_rows_stay(self.table, staged, self.where, guards)
        findings = self._audit(staged) if self.audits else ()
        write_transfers()
        if self.options.get("stage"):
            return result, findings
        # What holds for the whole table must hold beside the commits of others, too. A snapshot ends the keys that it
        # does not have, of any writer.
        if work.unique_keys:
            ensure_unique_keys(staged.snapshot(), work.unique_keys)
        is_of_table = self._is_snapshot or any(
            a.unique or a.look or (a.min_rows is not None and self._only is None) for a in self.audits
        )
        return replace(publish_now(staged, if_unchanged=is_of_table), measured=result.measured), findings

    def _ensure_rows(self, result: CommitResult, work: Work) -> None:
        """A redo without rows would only take rows away."""
        if int(result.operation_metrics.get("numOutputRows", 1)) or not int(
            result.operation_metrics.get("numRemovedFiles", 0)
        ):
            return
        unit = work.redone[0].name
        raise RedoNotPossibleError(
            f"{self.name} has no rows now, and {unit} wrote some before",
            cause="The source is likely drained or not ready, and the rows would be lost",
            remedy=f"To empty the unit on purpose: DeltaTable({self.table.uri!r}).undo(unit={unit!r}). "
            "To leave the rows as they are, pass on_redo='keep'",
            unit=unit,
        )

    @property
    def _only(self) -> str | Expression | None:
        """Which rows the audits are about; None for all."""
        return self._bounds if self.where is None else self.where

    def _audit(self, staged: StagedWrite[TableSnapshot]) -> tuple[AuditFinding, ...]:
        from delta_orch.expressions.resolve import resolve_predicate

        snapshot = staged.snapshot()
        only = self._only
        resolved = None if only is None else resolve_predicate(only, snapshot.schema)
        findings = tuple(audit.find(snapshot, resolved) for audit in self.audits)
        failed = [finding for finding in findings if not finding.passed]
        if failed:
            raise AuditFailedError(
                f"{self.name} did not pass {', '.join(finding.name for finding in failed)}",
                cause=" ".join(finding.description for finding in failed if finding.description) or None,
                remedy=f"Nothing was committed. DeltaTable({self.table.uri!r}).staged({staged.reference!r}).snapshot() "
                "has the rows until vacuum deletes them; correct them and run the step again",
                staged=staged.reference,
                table_uri=self.table.uri,
                findings=findings,
            )
        return findings

    @property
    def _bounds(self) -> Expression | None:
        """`within` as one predicate."""

        return any_of(self.within) if self.within else None

    def _upsert(self, data: object, before: TableSnapshot | None, options: WriteOptions) -> CommitResult:
        if before is None:
            return first_upsert(self.table, data, self.merge_keys, self._bounds, self.engine, options)
        from delta_orch.verbs.merge.upsert import upsert

        existing_target(before, options.get("partition_by"))
        about = {name: value for name, value in options.items() if name in CommitOptions.__annotations__}
        return upsert(
            self.table.log,
            before,
            data,
            self.merge_keys,
            self.engine,
            self.schema_mode,
            cast(CommitOptions, about),
            self.within,
            lossless=True,
        )


def _live(order: int | None) -> int | None:
    """A recorded order; None for one that was taken back."""
    return None if order is None or order < 0 else order


@dataclass(frozen=True, slots=True)
class Work:
    """The work that is left for the units of an attempt.

    Attributes:
        txns: What the commit carries for them. Those that are recorded leave their partitions out.
        redone: What the table says of those that are done again, and whose rows are replaced.
        located: The files of those, where files tell their rows.
        adds_to: The order of the commit of the unit whose rows stay.
        over: The report, where nothing is left.
        inputs: What an incremental step has read for the commit.
        consumers: What the names of its cursors begin with.
        cursors: The cursors that the commit moves.
        taken_back: Units whose rows a full refresh replaces, which no longer hold then; None for other writes.
        unique_keys: Columns that must identify a row in the whole table.
        look_at_partitions: Of `verbs.overwrite`.
        file_batches: The files whose rows the commit brings. Their records are written before it.
    """

    txns: tuple[TxnId, ...]
    redone: tuple[RecordedUnit, ...] = ()
    located: tuple[UnitFiles, ...] = ()
    adds_to: int | None = None
    over: StepReport | None = None
    inputs: tuple[Mapping[str, object], ...] = ()
    consumers: tuple[str, ...] = ()
    cursors: tuple[TxnId, ...] = ()
    taken_back: tuple[str, ...] | None = None
    unique_keys: tuple[str, ...] = ()
    look_at_partitions: Callable[..., None] | None = None
    file_batches: tuple[FileBatch, ...] = ()

    def units_written(self) -> tuple[dict[str, Expression | None], list[Expression]]:
        """The units that the commit writes, each with its rows (None: all), and the rows of those that it leaves as
        they are."""
        written = [txn for txn in self.txns if txn.follows is not None]
        several = len(self.txns) > 1
        left_out = [txn.scope for txn in self.txns if txn.follows is None and txn.scope is not None]
        if not written and self.cursors:
            return {self.cursors[0].app_id: None}, left_out
        return {txn.app_id: txn.scope if several else None for txn in written}, left_out
