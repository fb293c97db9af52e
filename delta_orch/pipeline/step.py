"""One step of a pipeline: what a task of an orchestrator does to its table, exactly once.

A plugin says which units it writes and where its attempt stands among others (`unit.Attempt`), how its rows are written
(`Mode`) and how to get them. The rules are here: an attempt that comes late, or repeats what it has committed, computes
nothing; one that does a unit again replaces exactly the rows that the unit wrote; the report says which it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, cast
from typing import Literal as OneOf

from delta_orch.errors import (
    AuditFailedError,
    ConflictError,
    InvalidRequestError,
    RedoNotPossibleError,
    SchemaMismatchError,
    TableExistsError,
)
from delta_orch.log.files.txn import UNIT_PREFIXES, TxnId, is_unit_name
from delta_orch.log.write.commit_options import CommitOptions
from delta_orch.pipeline.audit import ensure_unique_keys
from delta_orch.pipeline.incremental import cdc_prefix
from delta_orch.pipeline.shared_target import ensure_others_keep_theirs, ensure_touched, has_other_steps
from delta_orch.pipeline.step_report import StepReport
from delta_orch.pipeline.table_owner import INCREMENTAL, OPS, claim, ensure_may_write
from delta_orch.pipeline.target_table import first_upsert, fit_frame, may_follow, publish_now, snapshot_or_none
from delta_orch.pipeline.unit import Attempt, OnRedo, Outcome, RecordedUnit, Unit, recorded_order
from delta_orch.protocol.table_properties import OWNER
from delta_orch.verbs.units import ADDING, REPLACING, StepRecord, commits_of_unit, files_of_unit, run_of, unit_predicate

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.engines.select import EngineChoice
    from delta_orch.expressions.nodes import Expression
    from delta_orch.log.files.commit_reader import Commit
    from delta_orch.log.write.commit_options import CommitResult
    from delta_orch.pipeline.audit import Audit, AuditFinding
    from delta_orch.pipeline.incremental import ChangeBatch, IncrementalReader
    from delta_orch.staged_write import StagedWrite
    from delta_orch.writing.target import WriteOptions

Look = Callable[["StagedWrite"], "Callable[[Commit], None] | None"]
Mode = OneOf[
    "append", "merge", "scd2", "overwrite", "overwrite_partitions", "overwrite_changed", "error", "ignore",
    "merge_clauses", "update", "delete",
]  # fmt: skip
"""What becomes of the rows that are there.

- `append`: they stay.
- `merge`: those with the same `Step.merge_keys` as a new row are updated; new rows without such a row are inserted.
- `scd2`: they stay, and new versions of `Step.merge_keys` close them, in the order of `Step.sequence_by` (`scd2`).
- `overwrite`: those that `Step.where` selects are replaced, or all. New rows must satisfy `where`.
- `overwrite_partitions`: those in the partitions of the new rows are replaced.
- `overwrite_changed`: those in the partitions that a batch of changes touched are replaced (`Step.process` only).
- `error`, `ignore`: rows are added to an empty place; otherwise the step fails, or does nothing.
- `merge_clauses`, `update`, `delete`: a verb that `Step.commit` is handed changes them.
"""


@dataclass(frozen=True, slots=True)
class Step:
    """A write of one attempt to one table. It is one commit; `process` makes one a batch.

    Attributes:
        name: Who writes, for error messages.
        table: The table, which need not exist yet.
        mode: See `Mode`.
        attempt: Which units it writes, and when it began. None: every attempt writes (`exactly_once=False`).
        on_redo: What a unit does that is done again; see `OnRedo`.
        unit_column: A text column that the step fills with the unit's name, in `append` and the overwriting modes. Rows
            then tell their unit, whatever compactions, updates and other clients have done to the files.
        guards: Further transactions that keep the whole write out, such as the order of overwrites by data interval.
        where: Selects rows: `overwrite` replaces them, `error` and `ignore` look for them. None selects all.
        creates_only: `error` and `ignore` look for a table instead of rows.
        within: Where every new row must lie: predicates of which no two are true for a row. `merge` moves no row from
            one to another. None at all allows every place. `overwrite` has `where`.
        merge_keys: The columns that identify a row, for `merge` and `scd2`.
        sequence_by: The column that orders the versions of `scd2`.
        delete_marker: A boolean column of the rows that ends keys of `scd2`; see `scd2.Deletes`.
        full_snapshot: What is missing from the rows ends in `scd2`.
        schema_mode: As for `DeltaTable.append` and `DeltaTable.overwrite`.
        engine: As for `DeltaTable.append`.
        options: What a table is to be that the step creates, and what its commits say. No `txn`. With `stage` the step
            ends with a staged write (`StepReport.commit.staged`), for others to publish.
        audits: What must hold before the commit. The rows are staged, looked at, and published or not.
        look: Is shown what was staged, before it is published; what it raises refuses it. What others commit after it
            has looked, and which the write would replace, is a conflict. What it returns is shown the others.
        consumers: Of an incremental step, what the names of its cursors and units begin with.
        owner: Who writes, for `table_owner`: a step with one replaces no rows of a table that belongs to another,
            and none that `shared_target` spares. `process` sets it.
        look_at_partitions: Of `verbs.overwrite`.
        taken_back: Units whose rows a full refresh replaces, which no longer hold then; None for other writes.
        cursors, inputs: What a batch of changes moves, and what was read for it. `process` sets them.
        unique_keys: Columns that identify a row in the whole table.
    """

    name: str
    table: DeltaTable
    mode: Mode = "append"
    attempt: Attempt | None = None
    on_redo: OnRedo = "replace"
    unit_column: str | None = None
    guards: tuple[TxnId, ...] = ()
    where: str | Expression | None = None
    creates_only: bool = False
    within: tuple[Expression, ...] = ()
    merge_keys: tuple[str, ...] = ()
    sequence_by: str | None = None
    delete_marker: str | None = None
    full_snapshot: bool = False
    schema_mode: str | None = None
    engine: EngineChoice = "auto"
    options: WriteOptions = field(default_factory=dict)  # type: ignore[assignment]  # an empty one
    audits: tuple[Audit, ...] = ()
    look: Look | None = None
    consumers: tuple[str, ...] = ()
    owner: str | None = None
    look_at_partitions: Callable[..., None] | None = None
    cursors: tuple[TxnId, ...] = ()
    inputs: tuple[Mapping[str, object], ...] = ()
    taken_back: tuple[str, ...] | None = None
    unique_keys: tuple[str, ...] = ()

    def run(self, rows: Callable[[], object]) -> StepReport:
        """Get the rows and commit them. Do neither where the attempt comes late or repeats what it has committed, or
        where `error` or `ignore` found data.

        Args:
            rows: Gives what `DeltaTable.append` takes. None is an error, because it is likely a missing `return`.

        Raises:
            TableExistsError: Mode `error` found data.
            AuditFailedError: An audit did not pass. The table is as before; the staged write waits to be looked at.
            RedoNotPossibleError: The unit was written before, and its rows cannot be told from others; or the new rows
                are none at all.
            InvalidRequestError: `rows` gave None, the request does not fit the table, or the table belongs to another
                step (`table_owner`).
            ConcurrentTransactionError: Another attempt at the unit has committed meanwhile. Running again is safe.
            DeltaError: As `DeltaTable.append` and `DeltaTable.overwrite`. The table is unchanged after every error;
                where there was none, there is none.
        """
        before = snapshot_or_none(self.table)
        work = self._judge(before)
        if work.over is not None:
            return work.over
        if before is not None and (done := self._in_the_way(before)) is not None:
            return done
        self._ensure_owner(before)
        if self.mode == "overwrite_partitions":
            self._replaced_partitions(before)
        self._ensure_redoable(before, work)
        return self._commit(rows(), work)

    def already_done(self) -> StepReport | None:
        """The report of a step that has nothing to compute. None where there is something to do.

        Raises:
            TableExistsError: Mode `error` found data.
        """
        before = snapshot_or_none(self.table)
        return self._judge(before).over or (None if before is None else self._in_the_way(before))

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
        self._ensure_redoable(before, work)
        options = self._options(before, work)
        about = {name: value for name, value in options.items() if name in CommitOptions.__annotations__}
        return self._reported(verb(cast(CommitOptions, about)), work)

    def process(
        self,
        reader: IncrementalReader,
        rows: Callable[[ChangeBatch], object],
        *,
        until_current: bool = False,
        full_refresh: bool = False,
    ) -> StepReport:
        """Commit what `rows` makes of the next batch of changes, together with the cursor.

        An attempt that repeats one which crashed goes on from the cursor. One that does the unit again reads the
        versions of the source that the unit's commits recorded, once more, and applies them by the step's mode: an
        append replaces what it added; other modes go on to the cursor, so that no newer change is undone.

        Args:
            reader: Reads for this step's table.
            rows: Gives the rows of a batch; an empty result moves the cursor alone.
            until_current: Go on until everything that was in the source at the start is processed.
            full_refresh: Start anew from the source as it stands, and replace everything in the table. The table keeps
                its id, so those who read it go on.

        Raises:
            InvalidRequestError: `rows` gave None, or `overwrite_changed` has a source without partitions.
            RedoNotPossibleError: The versions that the unit has read are gone, or its rows cannot be told from others.
            DeltaError: As `IncrementalReader.next_batch` and `run`. Batches committed before the error stay.
        """
        return self.process_all(
            {"": reader}, lambda batches: rows(batches[""]), until_current=until_current, full_refresh=full_refresh
        )

    def process_all(
        self,
        readers: Mapping[str, IncrementalReader],
        rows: Callable[[Mapping[str, ChangeBatch]], object],
        *,
        until_current: bool = False,
        full_refresh: bool = False,
    ) -> StepReport:
        """Commit what `rows` makes of the next batch of each source that has news, together with all their cursors.

        Args:
            readers: Name → reader for this step's table, each with a consumer name of its own.
            rows: Gives the rows of the batches, at least one, by the names of their readers. It gets one of each
                source, also of those without news, where rows of all of them are replaced (`_read_together`).
            until_current, full_refresh: As `process`, for each source.

        Raises:
            InvalidRequestError: As `process`; `overwrite_changed` has several sources.
            DeltaError: As `process`. The cursors have moved together, by the batches committed before.
        """
        if self.mode == "overwrite_changed" and len(readers) > 1:
            raise InvalidRequestError(
                f"{self.name} replaces the partitions that changed, which are those of one source",
                remedy="Write by merge, or by overwrite_partitions",
            )
        before = snapshot_or_none(self.table)
        if before is not None and before.properties.set_transaction_retention_ms is not None:
            replace(self, unit_column=None)._ensure_told_by_rows()  # A cursor that expires starts anew.
        work = self._judge(before)
        if work.fenced is not None:
            return work.fenced
        if full_refresh:
            return self._refresh(before, readers, rows, work)
        reports: list[StepReport] = []
        done: list[ChangeBatch] = []
        committed: int | None = None
        if work.redone:
            self._ensure_redoable(before, work)
            again = self._batches_again(before, readers, work.redone[0])
            given = {name: self.guarded(batch) for name, batch in again.items()}
            step = self._for_batches(again, readers, moves_cursors=False)
            reports.append(step._commit(rows(given), work, is_incremental=True))
            done += again.values()
            committed = work.txns[0].version
        goals: Mapping[str, int] = {}
        asked = {"appends": self.mode == "append", "is_whole": self._is_whole}
        while batches := {
            name: batch for name, reader in readers.items() if (batch := reader.next_batch(**asked)) is not None
        }:
            goals = goals or {name: reader.source.version() for name, reader in readers.items() if until_current}
            step = self._for_batches(batches, readers, moves_cursors=True)
            if self.mode == "overwrite_partitions" and any(batch.is_recreated for batch in batches.values()):
                # Partitions that the new source does not have came from the old one.
                step = replace(step, mode="overwrite")
            step._ensure_owner(snapshot_or_none(self.table))
            given = {name: self.guarded(batch) for name, batch in self._read_together(readers, batches).items()}
            look = partial(ensure_touched, self.name, given.values(), batches.values())
            step = replace(step, look_at_partitions=look)
            work_of_batch = self._continued(before, committed)
            reports.append(step._commit(rows(given), work_of_batch, is_incremental=True))
            done += batches.values()
            committed = work_of_batch.txns[0].version if work_of_batch.txns else None
            if not any(batch.ending_version < goals.get(name, -1) for name, batch in batches.items()):
                break
        if not reports:
            version = self.table.version() if self.table.exists() else None
            if work.over is not None and work.over.outcome == "recovered":
                return work.over
            return StepReport(self.table, version, "nothing new", reason="the sources have not changed")
        first = reports[0] if work.redone else reports[-1]
        return replace(reports[-1], outcome=first.outcome, rows_replaced=first.rows_replaced, batches=tuple(done))

    def _continued(self, before: TableSnapshot | None, committed: int | None) -> _Work:
        """The unit as the batches before have left it: the next one adds to them.

        Args:
            committed: The order of the batch that this attempt has committed last; None before the first.
        """
        if self.attempt is None:
            return _Work(())
        unit, order = self.attempt.units[0], committed
        if order is None and before is not None and (order := recorded_order(before, unit.name)) is not None:
            version = max(self.attempt.order, order)
        elif order is None:
            return _Work((self._unit_txn(unit, None),))
        else:
            version = order
        # The same order may be recorded again: it is the same attempt.
        return _Work((TxnId(unit.name, version, follows=order, ordered=True, is_unit=True),), adds_to=order)

    def _for_batches(
        self, batches: Mapping[str, ChangeBatch], readers: Mapping[str, IncrementalReader], *, moves_cursors: bool
    ) -> Step:
        """The step of one round of batches. `moves_cursors`: its commit records how far the sources are read."""
        where = None
        for batch in batches.values():
            # All that is there came from the table that was there before the source was recreated.
            if self.mode == "overwrite_changed" and not batch.is_recreated:
                where = batch.partition_predicate()
                if where is None and self.table.exists():
                    raise InvalidRequestError(
                        f"{self.name} replaces the partitions that changed, which needs a partitioned source",
                        remedy="Write by append or merge, or by overwrite, which replaces all rows",
                        source=batch.source.uri,
                    )
        consumers = tuple(cdc_prefix(reader.consumer) for reader in readers.values())
        if self.attempt is not None:
            consumers += tuple(f"{unit.writer}:" for unit in self.attempt.units)
        inputs = tuple(batch.as_input() for batch in batches.values())
        # Without a unit, files are tagged with the cursor.
        is_unit = self.attempt is None
        cursors = tuple(replace(batch.txn, is_unit=is_unit) for batch in batches.values()) if moves_cursors else ()
        return replace(self, where=where, consumers=consumers, owner=INCREMENTAL, cursors=cursors, inputs=inputs)

    def _batches_again(
        self, before: TableSnapshot | None, readers: Mapping[str, IncrementalReader], recorded: RecordedUnit
    ) -> Mapping[str, ChangeBatch]:
        """What a unit that is done again reads: the versions that its commits recorded, or where the mode does not
        add rows, those up to the cursors."""
        assert before is not None
        inputs = [
            one
            for commit in commits_of_unit(self.table.log, before, recorded.name)
            for one in (StepRecord.of(commit.commit_info) or StepRecord(self.mode)).inputs
        ]
        again: dict[str, ChangeBatch] = {}
        for name, reader in readers.items():
            own = [one for one in inputs if one.get("consumer") == reader.consumer]
            if own:
                again[name] = reader.batch_again(own, up_to_cursor=self.mode != "append")
        if not again:
            raise RedoNotPossibleError(
                f"{self.name} cannot be done again: {recorded.name} does not say what it has read",
                cause="It was not written by this incremental step, or its log is gone",
                remedy="Run the step with full_refresh",
                unit=recorded.name,
            )
        return again

    def _refresh(
        self,
        before: TableSnapshot | None,
        readers: Mapping[str, IncrementalReader],
        rows: Callable[[Mapping[str, ChangeBatch]], object],
        work: _Work,
    ) -> StepReport:
        """Replace everything by what `rows` makes of the sources as they stand."""
        if self.mode == "scd2":
            raise InvalidRequestError(
                f"{self.name} keeps versions of rows (scd2), which the source as it stands cannot give back",
                remedy="Write the versions into a new table",
            )
        batches = {name: reader.whole_batch() for name, reader in readers.items()}
        step = self._for_batches(batches, readers, moves_cursors=True)
        step = replace(step, mode="overwrite", where=None, within=())
        gone: tuple[str, ...] = ()
        if before is not None:
            writer = None if self.attempt is None else self.attempt.units[0].writer
            listed = before.txns.named(("cdc:", *UNIT_PREFIXES))
            own_names = step.consumers if writer is None else (*step.consumers, f"{writer}:")
            live = sorted(name for name, order in listed.items() if order >= 0)
            others = [name for name in live if not name.startswith(own_names) and (writer or name.startswith("cdc:"))]
            if others:
                raise InvalidRequestError(
                    f"{self.name} cannot refresh {self.table.uri}: {others[0]} writes to it, too",
                    cause="A refresh replaces every row, and the other would not write its rows again",
                    remedy="Give each step a table of its own, or refresh by hand: delete this step's rows, and undo "
                    "its units",
                    uri=self.table.uri,
                )
            gone = tuple(name for name in live if is_unit_name(name))
        own = {txn.app_id for txn in work.txns}
        keys = self.merge_keys if self.mode == "merge" else ()
        step = replace(step, taken_back=tuple(set(gone) - own), unique_keys=keys)
        given = {name: replace(batch, is_whole=True) for name, batch in batches.items()}
        txns = tuple(replace(txn, replaces=False) for txn in work.txns)
        if work.over is not None and work.over.recovered is not None and self.attempt is not None:
            recorded = work.over.recovered
            record = StepRecord.of(recorded.commit_info)
            if record is not None and record.write == "overwrite":
                return work.over
            # The attempt that crashed had not refreshed.
            order = max(self.attempt.order, recorded.order)
            txns = (TxnId(recorded.name, order, follows=recorded.order, ordered=True, is_unit=True),)
        report = step._commit(rows(given), replace(work, txns=txns, over=None), is_incremental=True)
        if not report.has_written:
            return report
        return replace(report, outcome="replaced" if gone else "written", batches=tuple(batches.values()))

    def _read_together(
        self, readers: Mapping[str, IncrementalReader], batches: Mapping[str, ChangeBatch]
    ) -> Mapping[str, ChangeBatch]:
        """What the function of a step is handed. Where it replaces rows of all sources, it reads all of them."""
        if len(readers) == 1 or not (self._is_whole or self.mode == "overwrite_partitions"):
            return batches
        every = {name: batches.get(name) or reader.quiet_batch() for name, reader in readers.items()}
        if self.mode != "overwrite_partitions":
            return every
        touched = tuple(batch.partition_predicate() for batch in batches.values())
        return {name: replace(batch, touched=touched) for name, batch in every.items()}

    def guarded(self, batch: ChangeBatch) -> ChangeBatch:
        """The batch, which offers only what is exact for this step's mode."""
        if self.mode == "append":
            return replace(batch, is_appended=True)
        if self._is_whole:
            return replace(batch, is_whole=True)
        if self.mode != "overwrite_partitions":
            return replace(batch, recomputes=self.mode == "overwrite_changed")
        return replace(batch, replaces=(*batch.replaces, self._replaced_partitions(snapshot_or_none(self.table))))

    def _replaced_partitions(self, before: TableSnapshot | None) -> tuple[str, ...]:
        """The columns of the partitions that `overwrite_partitions` replaces. Raises InvalidRequestError: None."""
        columns = (self.options.get("partition_by") or ()) if before is None else before.partition_columns
        if not columns:
            raise InvalidRequestError(
                f"{self.name} replaces the partitions that its rows lie in, and the table has no partitions",
                remedy="Give a new table partition_by; or append, merge, or overwrite all rows",
            )
        return tuple(columns)

    def _judge(self, before: TableSnapshot | None) -> _Work:
        """What is left to do of the units, given what the table has recorded.

        Raises InvalidRequestError: The table forgets its units, and the mode would double rows then.
        """
        if self.attempt is None:
            return _Work(())
        if before is not None and before.properties.set_transaction_retention_ms is not None:
            self._ensure_told_by_rows()
        if before is not None:
            guarded = ((txn, recorded_order(before, txn.app_id)) for txn in self.guards)
            stale = [txn for txn, order in guarded if order is not None and txn.is_recorded_by(order)]
            if stale:
                order = recorded_order(before, stale[0].app_id)
                assert order is not None
                fenced = self._fenced(before, RecordedUnit.of(self.table, stale[0].app_id, order))
                return _Work((), over=fenced, fenced=fenced)
        txns: list[TxnId] = []
        redone: list[RecordedUnit] = []
        over: list[tuple[Unit, RecordedUnit, bool]] = []
        names = [unit.name for unit in self.attempt.units]
        orders = {} if before is None else before.txn_versions(names)
        for unit in self.attempt.units:
            order = orders.get(unit.name)
            if order is None or order < 0:
                txns.append(self._unit_txn(unit, None))
                continue
            recorded = RecordedUnit.of(self.table, unit.name, order)
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
        is_fenced = ended is not None and ended.outcome == "fenced"
        return _Work(
            tuple(txns),
            redone=tuple(redone) if self.on_redo == "replace" else (),
            adds_to=adds_to,
            over=ended,
            fenced=ended if is_fenced else None,
        )

    def _ensure_told_by_rows(self) -> None:
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

    def _ensure_redoable(self, before: TableSnapshot | None, work: _Work) -> None:
        """Check before any work that the rows of a unit which is done again can be told from others."""
        if self.unit_column is not None and self.mode not in (*ADDING, *REPLACING):
            raise InvalidRequestError(
                f"{self.name} has unit_column, which {self.mode} does not use",
                remedy="Leave it out: rows are found by their keys",
            )
        if self.unit_column is not None and self.attempt is not None and len(self.attempt.units) > 1:
            raise InvalidRequestError(
                f"{self.name} has unit_column and writes {len(self.attempt.units)} units at once",
                remedy="Run one partition at a time (BackfillPolicy.multi_run), or leave unit_column out",
            )
        if before is None or not work.redone:
            return
        if self.mode in ("merge_clauses", "update"):
            raise RedoNotPossibleError(
                f"{self.name} has been done, and doing it again may count twice",
                cause=f"{work.redone[0].name} is recorded with order {work.redone[0].order}; {self.mode} changes rows "
                "in place",
                remedy="Restore the version before it and run the step again, or pass on_redo='keep' to leave it; "
                "exactly_once=False applies it again",
                unit=work.redone[0].name,
                version=work.redone[0].version,
            )
        if self._replaces_units:
            for recorded in work.redone:
                located = files_of_unit(self.table.log, before, recorded.name)
                if self.mode != "overwrite_partitions":
                    located.ensure_exact(self.table.uri)

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
        return self.mode == "overwrite" or self.full_snapshot

    @property
    def _replaces(self) -> bool:
        return self.mode.startswith("overwrite")

    def _ensure_owner(self, before: TableSnapshot | None) -> None:
        if self.owner is not None and before is not None:
            ensure_may_write(self.table, before, self.owner, replaces=self._replaces)

    def _options(self, before: TableSnapshot | None, work: _Work) -> WriteOptions:
        """What the commit says, and what a table is to be that it creates."""
        options: WriteOptions = {**self.options, "txn": (*self.guards, *self.cursors, *work.txns)}
        if self.attempt is not None or self.inputs:
            record = StepRecord(self.mode, self.unit_column, work.adds_to, self.inputs)
            options["commit_info"] = {**(self.options.get("commit_info") or {}), "step": record.as_json()}
        if before is None and self.owner is not None and (self._replaces or self.owner == OPS):
            options["properties"] = {**(options.get("properties") or {}), OWNER: self.owner}
        return options

    def _commit(self, data: object, work: _Work, *, is_incremental: bool = False) -> StepReport:
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
            # Another writer was faster than whoever computed the rows.
            return done
        known = None if before is None or self.schema_mode == "overwrite" else before.schema
        data = fit_frame(data, known, merges=self.schema_mode == "merge", hands_on=self.owner == OPS)
        findings: tuple[AuditFinding, ...] = ()
        try:
            result = self._write(data, before, work)
            if result.staged is not None:
                result, findings = self._publish(result, self.table.staged(result.staged), work, is_incremental)
        except ConflictError:
            if before is not None or not may_follow(table, data):
                raise
            # Another writer has created the table meanwhile.
            again = self._judge(snapshot_or_none(table))
            return again.over or self._commit(data, again, is_incremental=is_incremental)
        report = self._reported(result, work)
        if self.owner is not None and self._replaces and before is not None and report.version is not None:
            claim(table, before, self.owner, self.options.get("properties") or {})
        return replace(report, findings=findings)

    def _reported(self, result: CommitResult, work: _Work) -> StepReport:
        """What a write came to."""
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

    def _write(self, data: object, before: TableSnapshot | None, work: _Work) -> CommitResult:
        options, log = self._options(before, work), self.table.log
        may_empty = bool(work.redone) and self.mode in (*ADDING, "overwrite_partitions")
        if self.audits or self.full_snapshot or self.unique_keys or self.look is not None or may_empty:
            options["stage"] = True
        constants = (
            {} if self.unit_column is None or self.attempt is None else {self.unit_column: self.attempt.units[0].name}
        )
        creates = before is None and self.mode in ("error", "ignore")
        if self.mode in ADDING and not creates:
            if constants and before is not None:
                return self._replace_by_column(data, before, work, options, constants)
            from delta_orch.verbs.append import append

            return append(log, before, data, self.schema_mode, self.engine, options, self._bounds, constants)
        if self.mode == "scd2":
            from delta_orch.pipeline.scd2 import Deletes, apply_scd2

            assert self.sequence_by is not None
            deletes = Deletes(self.delete_marker, self.full_snapshot, self.within)
            return apply_scd2(log, before, data, self.merge_keys, self.sequence_by, self.engine, options, deletes)
        from delta_orch.verbs.overwrite import overwrite

        if self.mode == "merge":
            return self._upsert(data, before, options)
        self._ensure_owner(before)
        if self.owner is not None and before is not None and has_other_steps(before, self.consumers):
            options["stage"] = True
        dynamic = "dynamic" if self.mode == "overwrite_partitions" else "static"
        where = self._bounds if creates else self.where
        # From this very version, or where there is no table: what others commit from here on is a conflict.
        return overwrite(
            log,
            before,
            data,
            where,
            dynamic,
            self.schema_mode,
            self.engine,
            options,
            self.look_at_partitions,
            constants=constants,
            taken_back=self.taken_back or (),
        )

    def _replace_by_column(
        self, data: object, before: TableSnapshot, work: _Work, options: WriteOptions, constants: Mapping[str, str]
    ) -> CommitResult:
        """An append whose rows name their unit: it replaces the rows of its unit, of which there mostly are none."""
        from delta_orch.verbs.append import append
        from delta_orch.verbs.overwrite import overwrite

        (column, unit), log = next(iter(constants.items())), self.table.log
        if before.schema.find(column) is None:
            if self.schema_mode != "merge":
                raise SchemaMismatchError(
                    f"{self.table.uri} has no column {column!r}, which {self.name} fills with the unit",
                    remedy=f"Pass schema_mode='merge', or add it: DeltaTable({self.table.uri!r})"
                    f".alter().add_columns('{column} string').commit()",
                    columns=[column],
                )
            return append(log, before, data, self.schema_mode, self.engine, options, self._bounds, constants)
        if self.on_redo == "add" or work.adds_to is not None:
            return append(log, before, data, self.schema_mode, self.engine, options, self._bounds, constants)
        for recorded in work.redone:
            record = StepRecord.of(recorded.commit_info)
            if record is None or record.unit_column != column:
                raise RedoNotPossibleError(
                    f"The rows that {recorded.name} wrote to {self.table.uri} do not name it in {column!r}",
                    cause="They were written before the step had this unit_column, or the log of their commit is gone",
                    remedy=f"Undo them: DeltaTable({self.table.uri!r}).undo(unit={recorded.name!r}); then run the step "
                    "again",
                    unit=recorded.name,
                )
        where = unit_predicate(column, unit)
        return overwrite(
            log,
            before,
            data,
            where,
            "static",
            self.schema_mode,
            self.engine,
            options,
            within=self._bounds,
            constants=constants,
            units=(unit,),
        )

    def _publish(
        self, result: CommitResult, staged: StagedWrite, work: _Work, is_incremental: bool
    ) -> tuple[CommitResult, tuple[AuditFinding, ...]]:
        """Look at what was staged, and publish it."""
        if work.redone and not is_incremental and self.mode in (*ADDING, "overwrite_partitions"):
            self._ensure_rows(result, work)
        look_behind = None if self.look is None else self.look(staged)
        if self.owner is not None and self._replaces and self.taken_back is None:
            writers = () if self.attempt is None else tuple({f"{unit.writer}:" for unit in self.attempt.units})
            ensure_others_keep_theirs(self.table, staged, self.consumers, writers)
        findings = self._audit(staged) if self.audits else ()
        if self.options.get("stage"):
            return result, findings
        # What holds for the whole table must hold beside the commits of others, too. A snapshot ends the keys that it
        # does not have, whoever has added them.
        if self.unique_keys:
            ensure_unique_keys(staged.snapshot(), self.unique_keys)
        is_of_table = self.full_snapshot or any(
            a.unique or a.look or (a.min_rows is not None and self._only is None) for a in self.audits
        )
        published = publish_now(staged, if_unchanged=is_of_table, look=look_behind)
        return replace(published, measured=result.measured), findings

    def _ensure_rows(self, result: CommitResult, work: _Work) -> None:
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

    def _audit(self, staged: StagedWrite) -> tuple[AuditFinding, ...]:
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
        from delta_orch.expressions.tree import any_of

        return any_of(self.within) if self.within else None

    def _upsert(self, data: object, before: TableSnapshot | None, options: WriteOptions) -> CommitResult:
        if before is None:
            return first_upsert(self.table, data, self.merge_keys, self._bounds, self.engine, options)
        from delta_orch.verbs.merge.upsert import upsert
        from delta_orch.writing.target import existing_target

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


@dataclass(frozen=True, slots=True)
class _Work:
    """What is left to do of the units of an attempt.

    Attributes:
        txns: What the commit carries for them. Those that are recorded leave their partitions out.
        redone: What the table says of those that are done again, and whose rows are replaced.
        adds_to: The order of the commit of the unit whose rows stay.
        over: The report, where nothing is left.
        fenced: The same, where a newer attempt has written a unit.
    """

    txns: tuple[TxnId, ...]
    redone: tuple[RecordedUnit, ...] = ()
    adds_to: int | None = None
    over: StepReport | None = None
    fenced: StepReport | None = None
