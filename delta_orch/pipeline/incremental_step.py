"""A step that reads what is new in other tables: each batch of changes is one commit, together with the cursors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from delta_orch.errors import InvalidRequestError, ProtocolViolationError, RedoNotPossibleError
from delta_orch.log.files.txn import UNIT_PREFIXES, TxnId, is_unit_name
from delta_orch.pipeline.incremental import ChangeBatch, FileBatch, FileReader, IncrementalReader, ensure_max_versions
from delta_orch.pipeline.step import Mode, Step, Work
from delta_orch.pipeline.target_table import INCREMENTAL, snapshot_or_none
from delta_orch.pipeline.unit import StepReport, recorded_order
from delta_orch.protocol.partition_values import (
    parse_partition_value,
    partition_column_from_arrow,
    serialize_partition_value,
)
from delta_orch.verbs.unit_files import commits_of_unit
from delta_orch.verbs.unit_records import RecordedUnit, StepRecord

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.protocol.types import StructType

    Reader = IncrementalReader | FileReader


Batch = ChangeBatch | FileBatch
"""What a step makes rows of: changes of a table, or files."""


def ensure_incremental(
    write: str | None, num_sources: int, *, on_recreated: str = "error", max_versions: int | None = None
) -> None:
    """Check the settings of an incremental step that both orchestrators have.

    Args:
        write: How it writes; None for `default_write`.

    Raises:
        InvalidRequestError: They do not go together.
    """
    ensure_max_versions(max_versions)
    if write == "append" and on_recreated == "bootstrap":
        raise InvalidRequestError(
            "write='append' cannot start again when a source is recreated",
            cause="All rows of the new source would be added to those that came from the old one",
            remedy="Leave on_recreated='error'. When a source was recreated, run the step once with full_refresh, "
            "which replaces the rows of the old one",
        )
    if write in (None, "overwrite_changed") and num_sources > 1:
        raise InvalidRequestError(
            "write='overwrite_changed' is about the partitions of one source",
            cause="It is the default" if write is None else None,
            remedy="Pass write='merge', or 'overwrite_partitions' with the partitions recomputed from all sources",
        )


def default_write(name: str, source: DeltaTable, target: DeltaTable, partition_by: Sequence[str] | None) -> Mode:
    """How an incremental step writes that does not say it: `overwrite_changed`, if the target has the partition columns
    of the source among its own.

    Args:
        name: Of the step, for the error.
        partition_by: The partition columns of the target, if it does not exist yet.

    Raises:
        InvalidRequestError: The target does not have them, or the source has none.
    """
    before, read = snapshot_or_none(target), snapshot_or_none(source)
    own = tuple(partition_by or ()) if before is None else before.partition_columns
    theirs = () if read is None else read.partition_columns
    # A source that does not exist is an error of the reader.
    if read is None or (theirs and {column.lower() for column in theirs} <= {column.lower() for column in own}):
        return "overwrite_changed"
    raise InvalidRequestError(
        f"{name} does not say how it writes to {target.uri}",
        cause=f"The default replaces the partitions that changed. The source is partitioned by "
        f"{', '.join(theirs) or 'nothing'}, the table by {', '.join(own) or 'nothing'}",
        remedy=f"Pass write='append', 'merge' or 'overwrite_partitions'. Or give both tables the same partition "
        f"columns: partition_by={list(theirs) or ['…']}",
    )


@dataclass(frozen=True, slots=True)
class IncrementalStep(Step):
    """A step whose rows are made of the changes of other tables. It owns its table together with the other incremental
    steps that write to it."""

    @classmethod
    def of(cls, step: Step) -> IncrementalStep:
        """The same write, of changes."""
        return cls(**{one.name: getattr(step, one.name) for one in fields(Step)})

    def process(
        self,
        reader: Reader,
        rows: Callable[[Any], object],
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
            rows: Gives the rows of a `ChangeBatch`, or a `FileBatch`; an empty result moves the cursor alone.
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
        readers: Mapping[str, Reader],
        rows: Callable[[Mapping[str, Any]], object],
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
        self._ensure_expectations()
        if any(isinstance(reader, FileReader) for reader in readers.values()):
            self._ensure_loads_files(len(readers))
        before = snapshot_or_none(self.table)
        if before is not None and before.properties.set_transaction_retention_ms is not None:
            replace(self, unit_column=None)._ensure_rows_name_units()  # A cursor that expires starts anew.
        work = self._judge(before)
        if work.over is not None and work.over.outcome == "fenced":
            return work.over
        if full_refresh:
            return self._refresh(before, readers, rows, work)
        reports: list[StepReport] = []
        done: list[Batch] = []
        committed: int | None = None
        if work.redone:
            work = self._ensure_redoable(before, work)
            again = self._batches_again(readers, work.redone[0])
            offered = {name: self.guarded(batch) for name, batch in again.items()}
            step, work = self._for_batches(again, readers, work, moves_cursors=False)
            reports.append(step._commit(rows(offered), work))
            done += again.values()
            committed = work.txns[0].version
        goals: Mapping[str, int] = {}
        options = {"appends": self.mode == "append", "is_whole": self._is_whole}
        while batches := {
            name: batch for name, reader in readers.items() if (batch := reader.next_batch(**options)) is not None
        }:
            goals = goals or {name: reader.newest_version() for name, reader in readers.items() if until_current}
            step, next_work = self._for_batches(
                batches, readers, self._continued(before, committed), moves_cursors=True
            )
            if self.mode == "overwrite_partitions" and any(batch.is_recreated for batch in batches.values()):
                # Partitions that the new source does not have came from the old one.
                step = replace(step, mode="overwrite")
            step._ensure_owner(snapshot_or_none(self.table))
            offered = {name: self.guarded(batch) for name, batch in self._read_together(readers, batches).items()}
            look = partial(ensure_touched, self.name, offered.values(), batches.values())
            reports.append(step._commit(rows(offered), replace(next_work, look_at_partitions=look)))
            done += batches.values()
            committed = next_work.txns[0].version if next_work.txns else None
            if not any(batch.ending_version < goals.get(name, -1) for name, batch in batches.items()):
                break
        if not reports:
            self._complete(work)
            version = self.table.version() if self.table.exists() else None
            if work.over is not None and work.over.outcome == "recovered":
                return work.over
            return StepReport(self.table, version, "nothing new", reason="the sources have not changed")
        first = reports[0] if work.redone else reports[-1]
        expected = [report.expected for report in reports if report.expected is not None]
        return replace(
            reports[-1],
            outcome=first.outcome,
            rows_replaced=first.rows_replaced,
            batches=tuple(done),
            expected=reduce(add, expected) if expected else None,
        )

    def _ensure_loads_files(self, num_sources: int) -> None:
        """Raises InvalidRequestError: The mode replaces rows by those of new files, and would lose others."""
        if self.mode in ("append", "merge") or (num_sources == 1 and self.mode in ("overwrite", "cdc")):
            return
        raise InvalidRequestError(
            f"{self.name} loads files, and write={self.mode!r} would replace rows that other files brought",
            remedy="Write by append or merge; by overwrite, where it reads all files each time",
        )

    def _continued(self, before: TableSnapshot | None, committed: int | None) -> Work:
        """The unit as the batches before have left it: the next one adds to them.

        Args:
            committed: The order of the batch that this attempt has committed last; None before the first.
        """
        if self.attempt is None:
            return Work(())
        unit, order = self.attempt.units[0], committed
        if order is None and before is not None and (order := recorded_order(before, unit.name)) is not None:
            version = max(self.attempt.order, order)
        elif order is None:
            return Work((self._unit_txn(unit, None),))
        else:
            version = order
        # The same order may be recorded again: it is the same attempt.
        return Work((TxnId(unit.name, version, follows=order, ordered=True, is_unit=True),), adds_to=order)

    def _for_batches(
        self,
        batches: Mapping[str, Batch],
        readers: Mapping[str, Reader],
        work: Work,
        *,
        moves_cursors: bool,
    ) -> tuple[IncrementalStep, Work]:
        """The step and the work of one round of batches. `moves_cursors`: its commit records how far the sources are
        read."""
        where = None
        for batch in batches.values():
            # All that is there came from the table that was there before the source was recreated.
            if self.mode == "overwrite_changed" and isinstance(batch, ChangeBatch) and not batch.is_recreated:
                where = batch.partition_predicate()
                if where is None:
                    raise InvalidRequestError(
                        f"{self.name} replaces the partitions that changed, which needs a partitioned source",
                        remedy="Write by append or merge, or by overwrite, which replaces all rows",
                        source=batch.source.uri,
                    )
        # Without a unit, files are tagged with the cursor.
        is_unit = self.attempt is None
        work = replace(
            work,
            consumers=tuple(reader.cursor_prefix for reader in readers.values()),
            inputs=tuple(batch.as_input() for batch in batches.values()),
            cursors=tuple(
                replace(batch.txn, is_unit=is_unit)
                for batch in batches.values()
                if moves_cursors or isinstance(batch, FileBatch)
            ),
            file_batches=tuple(batch for batch in batches.values() if isinstance(batch, FileBatch)),
        )
        step = replace(self, where=where, owner=INCREMENTAL)
        for batch in work.file_batches:
            if batch.source.schema_mode != "fail" and self.schema_mode is None:
                step = replace(step, schema_mode="merge")
            if batch.new_files.replaces and self.mode == "append":
                step = replace(step, mode="overwrite", where=batch.replaced_rows())
        return step, work

    def _batches_again(self, readers: Mapping[str, Reader], recorded: RecordedUnit) -> Mapping[str, Batch]:
        """What a unit that is done again reads: the versions that its commits recorded, or where the mode does not
        add rows, those up to the cursors."""
        records = (StepRecord.of(commit.commit_info) for commit in commits_of_unit(recorded.walk, recorded.name))
        inputs = [one for record in records if record is not None for one in record.inputs]
        again: dict[str, Batch] = {}
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
        readers: Mapping[str, Reader],
        rows: Callable[[Mapping[str, Any]], object],
        work: Work,
    ) -> StepReport:
        """Replace everything by what `rows` makes of the sources as they stand."""
        if self.mode == "cdc":
            raise InvalidRequestError(
                f"{self.name} applies change events (cdc), which the source as it stands cannot give back",
                cause="Versions and deleted keys would be forgotten",
                remedy="Apply the events to a new table",
            )
        batches = {name: reader.whole_batch() for name, reader in readers.items()}
        txns = tuple(replace(txn, replaces=False) for txn in work.txns)
        if work.over is not None and work.over.recovered is not None and self.attempt is not None:
            recorded = work.over.recovered
            if recorded.step is not None and recorded.step.write == "overwrite":
                self._complete(work)
                return work.over
            # The attempt that crashed had not refreshed.
            order = max(self.attempt.order, recorded.order)
            txns = (TxnId(recorded.name, order, follows=recorded.order, ordered=True, is_unit=True),)
        step, work = self._for_batches(batches, readers, replace(work, txns=txns, over=None), moves_cursors=True)
        step = replace(step, mode="overwrite", where=None, within=())
        gone: tuple[str, ...] = ()
        if before is not None:
            writer = None if self.attempt is None else f"{self.attempt.units[0].writer}:"
            listed = before.txns.named(("cdc:", *UNIT_PREFIXES))
            own_names = work.consumers if writer is None else (*work.consumers, writer)
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
        work = replace(
            work,
            taken_back=tuple(set(gone) - {txn.app_id for txn in txns}),
            unique_keys=self.merge_keys if self.mode == "merge" else (),
        )
        offered = {name: replace(batch, is_whole=True) for name, batch in batches.items()}
        report = step._commit(rows(offered), work)
        if not report.has_written:
            return report
        return replace(report, outcome="replaced" if gone else "written", batches=tuple(batches.values()))

    def _read_together(self, readers: Mapping[str, Reader], batches: Mapping[str, Batch]) -> Mapping[str, Batch]:
        """What the function of a step is handed. Where it replaces rows of all sources, it reads all of them."""
        if len(readers) == 1 or not (self._is_whole or self.mode == "overwrite_partitions"):
            return batches
        # Such a step has no files among several sources.
        changes = {name: batch for name, batch in batches.items() if isinstance(batch, ChangeBatch)}
        tables = {name: reader for name, reader in readers.items() if isinstance(reader, IncrementalReader)}
        every = {name: changes.get(name) or reader.quiet_batch() for name, reader in tables.items()}
        if self.mode != "overwrite_partitions":
            return every
        touched = tuple(batch.partition_predicate() for batch in changes.values())
        return {name: replace(batch, touched=touched) for name, batch in every.items()}

    def guarded(self, batch: Batch) -> Batch:
        """The batch, which offers only what is exact for this step's mode."""
        if isinstance(batch, FileBatch):
            # Change events have other columns than the table.
            return replace(batch, schema=None) if self.mode == "cdc" else batch
        if self.mode == "append":
            return replace(batch, is_appended=True)
        if self._is_whole:
            return replace(batch, is_whole=True)
        if self.mode != "overwrite_partitions":
            return replace(batch, recomputes=self.mode == "overwrite_changed")
        return replace(batch, replaces=(*batch.replaces, self._replaced_partitions(snapshot_or_none(self.table))))


def ensure_touched(
    name: str, offered: Iterable[Batch], news: Iterable[Batch], strings: pa.Table, schema: StructType
) -> None:
    """Check that a step replaces no partition whose rows it has read in part: another batch has brought the others, or
    will replace what this one leaves there.

    Args:
        given: What the function of the step was handed.
        news: Those of them that have changes.
        strings: The partitions that are replaced, one string column a partition column, spelled as in the log.
        schema: Of the table that is written.

    Raises:
        InvalidRequestError: It would. A step that has not read `ChangeBatch.scan`, or all of the source by it, chose
            its rows itself.
    """
    if not any(batch.read for batch in offered):
        return
    own = {column.lower(): column for column in strings.column_names}
    rows = dict.fromkeys(_spelled(strings, strings.column_names, schema))
    for batch in news:
        if not isinstance(batch, ChangeBatch):
            continue
        columns = batch.snapshot.partition_columns
        if not {column.lower() for column in columns} <= own.keys():
            # Only a first batch may be: it is all there is.
            return
        partitions, source = batch.partitions(), batch.snapshot.schema
        types = [field.data_type for column in columns if (field := source.find(column)) is not None]
        read = map(partition_column_from_arrow, partitions.select(columns).columns, types)
        names = [own[column.lower()] for column in columns]
        touched = set(_spelled(pa.table(list(read), names=names), names, schema))
        places = [strings.column_names.index(column) for column in names]
        rows = {row: None for row in rows if tuple(row[place] for place in places) not in touched}
    if rows:
        where = ", ".join(
            f"{column} = {value}" for column, value in zip(strings.column_names, next(iter(rows)), strict=True)
        )
        raise InvalidRequestError(
            f"{name} would replace a partition that the batch does not touch: {where}",
            cause="batch.scan() has the rows of the touched partitions; rows of others that lie there would be lost",
            remedy="Return rows of batch.partitions() alone; or write by merge or overwrite; or read all that belongs "
            "to the partitions that are replaced from batch.snapshot.scan(where=…)",
        )


def _spelled(strings: pa.Table, columns: Sequence[str], schema: StructType) -> Iterable[tuple[str | None, ...]]:
    """The rows of a table of the log's strings, each value in one spelling of its type; as it is, if it is none."""
    spelled = []
    for column in columns:
        field = schema.find(column)
        assert field is not None
        values = {}
        for text in set(strings.column(column).to_pylist()):
            try:
                values[text] = serialize_partition_value(parse_partition_value(text, field.data_type), field.data_type)
            except ProtocolViolationError:
                values[text] = text
        spelled.append([values[text] for text in strings.column(column).to_pylist()])
    return zip(*spelled, strict=True)
