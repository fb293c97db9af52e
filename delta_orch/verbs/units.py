"""Units of work that a table has recorded: which there are, the files that hold their rows, and taking them back.

A unit is the transaction of a pipeline step (`pipeline.unit`). Its commit says under `commitInfo.step` how its rows
were written. Its data files carry its name as the tag `delta_orch.unit`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import orjson
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.errors import InvalidRequestError, RedoNotPossibleError
from delta_orch.expressions.nodes import Column, Comparison, Expression, Literal
from delta_orch.expressions.tree import any_of
from delta_orch.log.files.commit_reader import Commit, user_metadata_of
from delta_orch.log.files.effect import effect_of
from delta_orch.log.files.file_columns import (
    ADD_SCHEMA,
    NO_FILES,
    FileTable,
    record_counts,
)
from delta_orch.log.files.txn import UNIT_PREFIXES, is_unit_name
from delta_orch.log.files.unit_tag import units_of
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import CommitOptions, CommitResult, parse_txns
from delta_orch.log.write.staging import write_metrics
from delta_orch.protocol.arrow_building import one_chunk
from delta_orch.protocol.paths import canonical_paths
from delta_orch.protocol.types import STRING
from delta_orch.writing.plan import REMOVED_FILE_COLUMNS, Write, WritePlan, run_plan

ADDING, REPLACING = ("append", "error", "ignore"), ("overwrite", "overwrite_partitions", "overwrite_changed")

_REMEDY = (
    "Delete the unit's rows by a predicate and run the step once with on_redo='add', or leave them with "
    "on_redo='keep'. In a table with unit_column='load_id' each row names its unit, and this cannot happen"
)
_INPUT = pa.struct([("table", pa.string()), ("starting_version", pa.int64()), ("ending_version", pa.int64())])
UNITS_SCHEMA = pa.schema(
    [
        ("unit", pa.string()),
        ("order", pa.int64()),
        ("run", pa.string()),
        ("version", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("rows", pa.int64()),
        ("inputs", pa.list_(_INPUT)),
    ]
)
"""Columns of `table.units()`."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What the commit of a unit says of the step: `commitInfo.step`.

    Attributes:
        write: The mode of the step.
        unit_column: The column that holds the unit's name.
        adds_to: The order of an earlier commit of the unit whose rows this one left; None where it replaced them, or
            there was none.
        inputs: The tables that were read: `table` (its URI), `table_id`, `consumer`, `starting_version` (None for a
            snapshot) and `ending_version`.
    """

    write: str
    unit_column: str | None = None
    adds_to: int | None = None
    inputs: tuple[Mapping[str, object], ...] = ()

    def as_json(self) -> dict[str, object]:
        """For `commitInfo.step`."""
        said: dict[str, object] = {"write": self.write}
        if self.unit_column is not None:
            said["unitColumn"] = self.unit_column
        if self.adds_to is not None:
            said["addsTo"] = self.adds_to
        if self.inputs:
            said["inputs"] = [dict(one) for one in self.inputs]
        return said

    @classmethod
    def of(cls, commit_info: Mapping[str, object] | None) -> StepRecord | None:
        """What a commit says; None for one that no step made."""
        said = (commit_info or {}).get("step")
        if not isinstance(said, Mapping) or not isinstance(write := said.get("write"), str):
            return None
        column, adds_to, inputs = said.get("unitColumn"), said.get("addsTo"), said.get("inputs")
        return cls(
            write,
            column if isinstance(column, str) else None,
            adds_to if isinstance(adds_to, int) else None,
            tuple(one for one in inputs if isinstance(one, Mapping)) if isinstance(inputs, list) else (),
        )


class Moved(NamedTuple):
    """A file of a unit whose rows live on in other files, by the commit that moved them."""

    version: int
    operation: str


@dataclass(frozen=True, slots=True)
class UnitFiles:
    """Where the rows of a unit are.

    Attributes:
        unit: Its name.
        files: Those that are in the table, columns `ADD_SCHEMA`. They hold no other rows.
        moved: The files whose rows cannot be told from others any more, columns of `ADD_SCHEMA` as they were added.
        moved_by: The newest commit that moved some.
        commits: The commits of the unit that were looked at, newest first.
    """

    unit: str
    files: pa.Table
    moved: pa.Table
    moved_by: Moved | None
    commits: tuple[Commit, ...]

    def ensure_exact(self, uri: str) -> None:
        """Raise RedoNotPossibleError, if rows were moved."""
        if self.moved_by is None:
            return
        version, operation = self.moved_by
        raise RedoNotPossibleError(
            f"The rows that {self.unit} wrote to {uri} cannot be told from other rows any more",
            cause=f"{operation} in version {version} moved them into other files, or changed them",
            remedy=_REMEDY,
            unit=self.unit,
            version=version,
            operation=operation,
            uri=uri,
        )


def files_of_unit(log: TableLog, snapshot: Snapshot, unit: str) -> UnitFiles:
    """The files of a version with the rows of a unit, found by the log: what the unit's commits added since its rows
    were last replaced. No data is read.

    Exact while each file is in the table, with or without a deletion vector, or has left it without any of its rows
    living on in another file.

    Raises:
        RedoNotPossibleError: The log does not hold the commits any more.
        CorruptLogError: A commit is malformed.
    """
    commits: list[Commit] = []
    added: list[pa.Table] = []
    touching: list[tuple[Commit, pa.Array]] = []
    for commit, later in _commits_of(log, snapshot, unit):
        commits.append(commit)
        files = _own_files(commit, unit)
        added.append(files)
        if files.num_rows:
            paths = _paths(files)
            touching += [(one, paths) for one in later if one.removes.num_rows]
    own = pa.concat_tables(added) if added else NO_FILES
    live = snapshot.files(ADD_SCHEMA.names)
    in_table = pc.is_in(_paths(live), value_set=_paths(own))
    moved_paths, moved_by = pa.array([], pa.string()), None
    for commit, paths in touching:
        removed = _paths(commit.removes)
        hit = pc.filter(paths, pc.is_in(paths, value_set=removed))
        effect = effect_of(commit) if len(hit) else None
        if not len(hit) or (effect is not None and effect.rows_moved == 0):
            continue
        moved_paths = pa.concat_arrays([moved_paths, hit])
        if moved_by is None or commit.version > moved_by.version:
            moved_by = Moved(commit.version, str((commit.commit_info or {}).get("operation") or "A commit"))
    is_moved = pc.is_in(_paths(own), value_set=moved_paths)
    return UnitFiles(unit, pc.filter(live, in_table), pc.filter(own, is_moved), moved_by, tuple(commits))


def commits_of_unit(log: TableLog, snapshot: Snapshot, unit: str) -> list[Commit]:
    """The commits of a unit since its rows were last replaced, newest first. Raises as `files_of_unit`."""
    return [commit for commit, _ in _commits_of(log, snapshot, unit)]


def _commits_of(log: TableLog, snapshot: Snapshot, unit: str) -> Iterator[tuple[Commit, list[Commit]]]:
    """The same, each with the commits after it, which grow with every step."""
    later: list[Commit] = []
    for commit in log.newest_first(snapshot.version):
        recorded = [txn.version for txn in commit.txns if txn.app_id == unit]
        if recorded:
            if max(recorded) < 0:
                return  # Taken back, with its rows.
            yield commit, later
            record = StepRecord.of(commit.commit_info)
            if record is None or record.adds_to is None:
                return
        later.append(commit)
    raise _history_gone(log.store.uri, unit)


def replaced_units(log: TableLog, snapshot: Snapshot | None, options: CommitOptions) -> tuple[UnitFiles, ...]:
    """The units whose rows a write replaces: those of its `txn` that say so. Raises as `files_of_unit`."""
    if snapshot is None:
        return ()
    units = [txn.app_id for txn in parse_txns(options.get("txn")) if txn.replaces]
    return tuple(files_of_unit(log, snapshot, name) for name in units)


def _own_files(commit: Commit, unit: str) -> pa.Table:
    """Of the files that a unit's commit added those with its rows."""
    adds = commit.adds.select(ADD_SCHEMA.names)
    if not adds.num_rows:
        return adds
    tags = units_of(adds)
    if tags.null_count < len(tags):
        return pc.filter(adds, pc.equal(tags, unit))
    units = [txn for txn in commit.txns if is_unit_name(txn.app_id)]
    effect = effect_of(commit)
    if len(units) == 1 and effect is not None and effect.rows_moved == 0:
        return adds
    raise RedoNotPossibleError(
        f"The log does not tell which files of version {commit.version} hold the rows of {unit}",
        cause=f"The commit wrote {len(units)} units, or rewrote rows of others, and its files name no unit",
        remedy="Delete the rows by a predicate, and run the step once with on_redo='add'",
        unit=unit,
        version=commit.version,
    )


def _history_gone(uri: str, unit: str) -> RedoNotPossibleError:
    return RedoNotPossibleError(
        f"The log of {uri} does not hold the commit of {unit} any more, so its rows cannot be found",
        cause="The log was cleaned up (delta.logRetentionDuration) since the unit was written",
        remedy=_REMEDY,
        unit=unit,
        uri=uri,
    )


# Listing


def list_units(log: TableLog, snapshot: Snapshot) -> pa.Table:
    """See `DeltaTable.units`."""
    orders = {name: order for name, order in snapshot.txns.named(UNIT_PREFIXES).items() if order >= 0}
    rows: dict[str, dict[str, object]] = {}
    for commit in log.newest_first(snapshot.version) if orders else ():
        names = [txn.app_id for txn in commit.txns if orders.get(txn.app_id) == txn.version and txn.app_id not in rows]
        if names:
            told = _described(commit, names)
            rows |= {name: {**told, "rows": count} for name, count in _rows_of(commit, names).items()}
        if len(rows) == len(orders):
            break
    listed = [{"unit": name, "order": order, **rows.get(name, {})} for name, order in sorted(orders.items())]
    return pa.Table.from_pylist(listed, UNITS_SCHEMA)


def run_of(commit_info: Mapping[str, object] | None) -> str | None:
    """The id of the orchestrator's run that made a commit."""
    run_id = user_metadata_of(commit_info).get("run_id")
    return str(run_id) if run_id else None


def _described(commit: Commit, names: Sequence[str]) -> dict[str, object]:
    record = StepRecord.of(commit.commit_info)
    return {
        "run": run_of(commit.commit_info),
        "version": commit.version,
        "timestamp": commit.timestamp_ms,
        "inputs": [
            {
                "table": one.get("table"),
                "starting_version": one.get("startingVersion"),
                "ending_version": one.get("endingVersion"),
            }
            for one in (() if record is None else record.inputs)
        ],
    }


def _rows_of(commit: Commit, names: Sequence[str]) -> dict[str, int | None]:
    """How many rows a commit has of each of its units; None where it does not tell them apart."""
    effect = effect_of(commit)
    if len([txn for txn in commit.txns if is_unit_name(txn.app_id)]) == 1:
        return dict.fromkeys(names, None if effect is None else effect.rows_added)
    counts = pa.table({"unit": units_of(commit.adds), "rows": record_counts(commit.adds)})
    counts = counts.group_by("unit").aggregate([("rows", "sum")])
    told = dict(zip(counts["unit"].to_pylist(), counts["rows_sum"].to_pylist(), strict=True))
    return {name: told.get(name, 0) for name in names}


# Undo


@dataclass(frozen=True, slots=True)
class UndoResult(CommitResult):
    """What `undo` did, or would do (`preview`).

    Attributes:
        units: The units that were taken back.
    """

    units: tuple[str, ...] = ()

    @property
    def rows_removed(self) -> int:
        """Rows that left the table."""
        return 0 if self.effect is None else self.effect.rows_removed or 0


def undo(log: TableLog, snapshot: Snapshot, *, unit: str | None, run: str | None, options: CommitOptions) -> UndoResult:
    """See `DeltaTable.undo`."""
    if (unit is None) == (run is None):
        raise InvalidRequestError("undo takes unit or run", remedy="Give one of them")
    names = (unit,) if unit is not None else _units_of_run(log, snapshot, str(run))
    order = None if unit is None else snapshot.txn_version(unit)
    if unit is not None and (order is None or order < 0):
        raise InvalidRequestError(
            f"{log.store.uri} has no unit {unit!r}", remedy="table.units() lists those that there are", unit=unit
        )
    if not names:
        raise InvalidRequestError(
            f"{log.store.uri} has no unit that run {run!r} wrote last",
            remedy="table.units() lists the units and their runs",
            run=run,
        )
    found = [_Undone.of(log, snapshot, name) for name in names]
    taken_back = dict.fromkeys(names, -1)
    for one in found:
        taken_back |= _cursors_before(snapshot, one)

    def change(write: Write) -> dict[str, int]:
        write.transaction.take_back(taken_back)
        removed, kept = [NO_FILES.select(REMOVED_FILE_COLUMNS)], [NO_FILES]
        by_column = {one.located.unit: one.where for one in found if one.where is not None}
        for one in found:
            if one.where is None:
                write.target.table.ensure_rows_may_leave()
                removed.append(one.located.files.select(REMOVED_FILE_COLUMNS))
        if by_column:
            # At once: a file may have rows of several of them.
            selected = write.select(any_of(list(by_column.values())), tuple(by_column))
            removed.append(selected.files)
            kept.append(write.keep(selected))
        gone = pa.concat_tables(removed)
        write.transaction.remove_files(gone)
        return write_metrics(pa.concat_tables(kept), gone)

    result = run_plan(log, snapshot, WritePlan("UNDO", {"units": orjson.dumps(list(names)).decode()}, change, options))
    return UndoResult(**{one.name: getattr(result, one.name) for one in fields(result)}, units=tuple(names))


@dataclass(frozen=True, slots=True)
class _Undone:
    """A unit that is to be taken back.

    Attributes:
        located: Its files.
        record: What its newest commit says.
        where: The rows of a unit whose column names it; None where its files tell them.
    """

    located: UnitFiles
    record: StepRecord
    where: Expression | None

    @classmethod
    def of(cls, log: TableLog, snapshot: Snapshot, unit: str) -> _Undone:
        """Raises RedoNotPossibleError: The unit's rows cannot be told from others."""
        located = files_of_unit(log, snapshot, unit)
        record = StepRecord.of(located.commits[0].commit_info) if located.commits else None
        if record is None or record.write not in (*ADDING, *REPLACING):
            raise RedoNotPossibleError(
                f"What {unit} did to {log.store.uri} cannot be undone",
                cause=f"It was made by {'another client' if record is None else record.write}, which changes rows that "
                "others wrote",
                remedy="Restore an older version: delta-orch restore --version …",
                unit=unit,
            )
        if record.unit_column is None:
            located.ensure_exact(log.store.uri)
            return cls(located, record, None)
        return cls(located, record, unit_predicate(record.unit_column, unit))


def unit_predicate(column: str, unit: str) -> Expression:
    """The rows of a unit, where a column names it."""
    return Comparison("=", Column((column,)), Literal(unit, STRING))


def _cursors_before(snapshot: Snapshot, one: _Undone) -> dict[str, int]:
    """Where the cursors of an incremental unit stood before it.

    Raises RedoNotPossibleError: Later units have read on.
    """
    before: dict[str, int] = {}
    for commit in one.located.commits:  # Newest first: the oldest commit of a cursor wins.
        for source in (StepRecord.of(commit.commit_info) or one.record).inputs:
            cursor, start, end = source.get("cursor"), source.get("startingVersion"), source.get("endingVersion")
            if not isinstance(cursor, str):
                continue
            if cursor not in before and snapshot.txn_version(cursor) != end:
                raise RedoNotPossibleError(
                    f"{one.located.unit} is not the last to have read {source.get('table')}",
                    cause="Its rows would be missing: the runs after it go on behind what it has read",
                    remedy="Undo the runs after it first, newest first; table.units() lists them. Or run the step with "
                    "full_refresh",
                    unit=one.located.unit,
                )
            before[cursor] = start - 1 if isinstance(start, int) else -1
    return before


def _units_of_run(log: TableLog, snapshot: Snapshot, run: str) -> tuple[str, ...]:
    orders = {name: order for name, order in snapshot.txns.named(UNIT_PREFIXES).items() if order >= 0}
    # A unit of several batches is recorded by several commits.
    names = tuple(
        dict.fromkeys(
            txn.app_id
            for commit in log.newest_first(snapshot.version)
            if run_of(commit.commit_info) == run
            for txn in commit.txns
            if orders.get(txn.app_id) == txn.version
        )
    )
    dags = sorted({name.partition(".")[0] for name in names if name.startswith("airflow:")})
    if len(dags) > 1:
        raise InvalidRequestError(
            f"Several DAGs have written to {log.store.uri} in a run {run!r}: {', '.join(dags)}",
            cause="Scheduled runs of different DAGs share their ids",
            remedy=f"Name the units: {', '.join(f'undo(unit={name!r})' for name in names[:2])}",
            run=run,
        )
    return names


def _paths(files: pa.Table) -> pa.Array:
    return one_chunk(canonical_paths(FileTable(files).path))
