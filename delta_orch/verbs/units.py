"""Lists the units that a table has recorded, and undoes units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import orjson
import pyarrow as pa

from delta_orch.arrival.file_look import forget_files
from delta_orch.arrival.loaded_files import CURSOR_PREFIX
from delta_orch.errors import InvalidRequestError, RedoNotPossibleError
from delta_orch.expressions.tree import any_of
from delta_orch.log.files.commit_reader import Commit
from delta_orch.log.files.effect import effect_of
from delta_orch.log.files.file_columns import NO_FILES, record_counts
from delta_orch.log.files.txn import UNIT_PREFIXES, is_unit_name
from delta_orch.log.files.unit_tag import units_of
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import CommitOptions, CommitResult
from delta_orch.log.write.staging import write_metrics
from delta_orch.verbs.quarantine import complete_transfers
from delta_orch.verbs.unit_files import UnitFiles, files_of_unit
from delta_orch.verbs.unit_records import ADDING, REPLACING, LogWalk, StepRecord, run_of, unit_predicate
from delta_orch.writing.plan import REMOVED_FILE_COLUMNS, Write, WritePlan, run_plan

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
"""The columns of `table.units()`."""


def list_units(log: TableLog, snapshot: Snapshot, since_ms: int | None = None) -> pa.Table:
    """List the units. See `DeltaTable.units`.

    Args:
        since_ms: Lists only units whose newest commit is not older than this time, in milliseconds since the epoch.
            Older commits are not read.
    """
    orders = {name: order for name, order in snapshot.txns.named(UNIT_PREFIXES).items() if order >= 0}
    rows: dict[str, dict[str, object]] = {}
    for commit in log.newest_first(snapshot.version) if orders else ():
        if since_ms is not None and commit.timestamp_ms < since_ms:
            break
        names = [txn.app_id for txn in commit.txns if orders.get(txn.app_id) == txn.version and txn.app_id not in rows]
        if names:
            commit_columns = _described(commit)
            rows |= {name: {**commit_columns, "rows": count} for name, count in _rows_of(commit, names).items()}
        if len(rows) == len(orders):
            break
    listed = [{"unit": name, "order": order, **rows.get(name, {})} for name, order in sorted(orders.items())]
    listed = [row for row in listed if since_ms is None or row["unit"] in rows]
    return pa.Table.from_pylist(listed, UNITS_SCHEMA)


def _described(commit: Commit) -> dict[str, object]:
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
    """Return the number of rows of each unit in a commit. None if the commit does not record it."""
    effect = effect_of(commit)
    if len([txn for txn in commit.txns if is_unit_name(txn.app_id)]) == 1:
        return dict.fromkeys(names, None if effect is None else effect.rows_added)
    counts = pa.table({"unit": units_of(commit.adds), "rows": record_counts(commit.adds)})
    counts = counts.group_by("unit").aggregate([("rows", "sum")])
    rows = dict(zip(counts["unit"].to_pylist(), counts["rows_sum"].to_pylist(), strict=True))
    return {name: rows.get(name, 0) for name in names}


# Undo


@dataclass(frozen=True, slots=True)
class UndoResult(CommitResult):
    """The result of `undo`, or of its preview.

    Attributes:
        units: The units that were undone.
    """

    units: tuple[str, ...] = ()

    @property
    def rows_removed(self) -> int:
        """Return the number of rows that were removed from the table."""
        return 0 if self.effect is None else self.effect.rows_removed or 0


def undo(
    log: TableLog,
    snapshot: Snapshot,
    open_quarantine: Callable[[str], TableLog],
    *,
    unit: str | None,
    run: str | None,
    options: CommitOptions,
) -> UndoResult:
    """Undo units. See `DeltaTable.undo`.

    Args:
        open_quarantine: Opens the log of a quarantine by its location.
    """
    if (unit is None) == (run is None):
        raise InvalidRequestError("undo needs either unit or run", remedy="Pass one of them, such as undo(unit='…')")
    names = (unit,) if unit is not None else _units_of_run(log, snapshot, str(run))
    order = None if unit is None else snapshot.txn_version(unit)
    if unit is not None and (order is None or order < 0):
        raise InvalidRequestError(
            f"{log.store.uri} has no unit {unit!r}", remedy="table.units() lists the units", unit=unit
        )
    if not names:
        raise InvalidRequestError(
            f"{log.store.uri} has no unit whose newest commit is of the run {run!r}",
            remedy="table.units() lists the units and their runs",
            run=run,
        )
    walk = LogWalk(log, snapshot.version)
    undone = [_Undone.of(walk, snapshot, name) for name in names]
    taken_back = dict.fromkeys(names, -1)
    loaded: dict[str, list[int]] = {}
    for one in undone:
        taken_back |= _cursors_before(snapshot, one, loaded)
    taken_back |= forget_files(log, snapshot, loaded, is_rehearsal=options.get("dry_run", False))

    def change(write: Write) -> dict[str, int]:
        write.transaction.take_back(taken_back)
        removed, kept = [NO_FILES.select(REMOVED_FILE_COLUMNS)], [NO_FILES]
        by_column: dict[str, list[str]] = {}
        for one in undone:
            if one.record.unit_column is None:
                write.target.table.ensure_rows_may_leave()
                removed.append(one.located.files.select(REMOVED_FILE_COLUMNS))
            else:
                by_column.setdefault(one.record.unit_column, []).append(one.located.unit)
        if by_column:
            # All predicates are applied together, because a file may have rows of several units.
            where = any_of([unit_predicate(column, units) for column, units in by_column.items()])
            selected = write.select(where, [name for units in by_column.values() for name in units])
            removed.append(selected.files)
            kept.append(write.keep(selected))
        gone = pa.concat_tables(removed)
        write.transaction.remove_files(gone)
        return write_metrics(pa.concat_tables(kept), gone)

    result = run_plan(log, snapshot, WritePlan("UNDO", {"units": orjson.dumps(list(names)).decode()}, change, options))
    quarantines = {one.record.quarantine for one in undone} - {None}
    if quarantines and not options.get("dry_run"):
        opened = [open_quarantine(uri) for uri in quarantines if uri is not None]
        complete_transfers(log, lambda: log.advance(snapshot), opened, open_quarantine)
    return UndoResult(**{one.name: getattr(result, one.name) for one in fields(result)}, units=tuple(names))


@dataclass(frozen=True, slots=True)
class _Undone:
    """A unit to undo.

    Attributes:
        located: The files of the unit.
        record: The step in the newest commit of the unit.
    """

    located: UnitFiles
    record: StepRecord

    @classmethod
    def of(cls, walk: LogWalk, snapshot: Snapshot, unit: str) -> _Undone:
        """Locate a unit. Raises RedoNotPossibleError if the unit's rows cannot be separated from other rows."""
        located, uri = files_of_unit(walk, snapshot, unit), walk.log.store.uri
        record = StepRecord.of(located.commits[0].commit_info) if located.commits else None
        if record is None or record.write not in (*ADDING, *REPLACING):
            raise RedoNotPossibleError(
                f"The changes of {unit} in {uri} cannot be undone",
                cause=f"They were made by {'another client' if record is None else record.write}, which may change "
                "rows of other units",
                remedy="Restore an older version: delta-orch restore --version …",
                unit=unit,
            )
        if record.unit_column is None:
            located.ensure_exact(uri)
        return cls(located, record)


def _cursors_before(snapshot: Snapshot, one: _Undone, loaded: dict[str, list[int]]) -> dict[str, int]:
    """Return the cursors of an incremental unit before its commits.

    Args:
        loaded: Receives the versions of records of loaded files. Their cursors do not go back, but the files are
            forgotten.

    Raises RedoNotPossibleError if later units continued from the cursor.
    """
    before: dict[str, int] = {}
    for (
        commit
    ) in one.located.commits:  # Commits come newest first, so the oldest commit of a cursor sets the final value.
        for source in (StepRecord.of(commit.commit_info) or one.record).inputs:
            cursor, start, end = source.get("cursor"), source.get("startingVersion"), source.get("endingVersion")
            if not isinstance(cursor, str):
                continue
            if cursor.startswith(CURSOR_PREFIX) and isinstance(end, int):
                loaded.setdefault(cursor, []).append(end)
                continue
            if cursor not in before and snapshot.txn_version(cursor) != end:
                raise RedoNotPossibleError(
                    f"{one.located.unit} is not the newest unit that read {source.get('table')}",
                    cause="Later units continued after its cursor, so its input would never be read again",
                    remedy="First undo the later units, newest first (table.units() lists them). Or run the step with "
                    "full_refresh",
                    unit=one.located.unit,
                )
            before[cursor] = start - 1 if isinstance(start, int) else -1
    return before


def _units_of_run(log: TableLog, snapshot: Snapshot, run: str) -> tuple[str, ...]:
    orders = {name: order for name, order in snapshot.txns.named(UNIT_PREFIXES).items() if order >= 0}
    # A unit with several batches has several commits.
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
            f"Several DAGs wrote to {log.store.uri} in a run {run!r}: {', '.join(dags)}",
            cause="Scheduled runs of different DAGs have the same run ids",
            remedy=f"Undo each unit by name: {', '.join(f'undo(unit={name!r})' for name in names[:2])}",
            run=run,
        )
    return names
