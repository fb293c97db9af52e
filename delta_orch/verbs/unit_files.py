"""Finds the files that hold the rows of a unit, and the units that lose rows by a change of files.

Data files have the name of their unit as the tag `delta_orch.unit`. A file that is rewritten from other files keeps the
tag if all of them share it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.errors import MissingFileError, RedoNotPossibleError, VersionNotFoundError
from delta_orch.expressions.nodes import Expression
from delta_orch.log.files.commit_reader import Commit
from delta_orch.log.files.effect import effect_of
from delta_orch.log.files.file_columns import ADD_SCHEMA, NO_FILES, FileTable, live_rows, record_counts
from delta_orch.log.files.txn import is_unit_name
from delta_orch.log.files.unit_tag import units_of
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import CommitOptions, parse_txns
from delta_orch.protocol.arrow_building import one_chunk, string_array
from delta_orch.protocol.paths import canonical_paths
from delta_orch.verbs.unit_records import LogWalk, StepRecord

REMEDY = (
    "Delete the unit's rows by a predicate and run the step once with on_redo='add', or leave them with "
    "on_redo='keep'. In a table with unit_column='load_id' each row names its unit, and this cannot happen"
)


class Moved(NamedTuple):
    """A commit that moved rows of a unit into files with other rows."""

    version: int
    operation: str


@dataclass
class _Trail:
    """The files that ever held only rows of a unit, followed from commit to commit.

    Attributes:
        added: The files as they were added, as `ADD_SCHEMA`.
        records: The number of rows of each file by path, with deleted rows. None if the statistics do not have it.
        moved: The paths of files whose rows are now in files with other rows, or may be.
        moved_by: The newest commit that moved rows.
    """

    unit: str
    added: pa.Table = field(default_factory=lambda: NO_FILES)
    records: dict[str, int | None] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)
    moved_by: Moved | None = None

    def add(self, files: pa.Table) -> None:
        if files.num_rows:
            self.added = pa.concat_tables([self.added, files.select(ADD_SCHEMA.names)])
            self.records |= zip(_paths(files).to_pylist(), record_counts(files).to_pylist(), strict=True)

    def follow(self, commit: Commit) -> None:
        """Track the rows of the files that a commit removes. The rows stay separable if all of them are in files with
        the unit's tag. This is proven if every added file has a tag, or if the row counts are equal."""
        removes = commit.removes
        if not self.records or not removes.num_rows:
            return
        marked = pc.fill_null(pc.struct_field(FileTable(removes).deletion_vector, "cardinality"), 0).to_pylist()
        leaving = {p: n for p, n in zip(_paths(removes).to_pylist(), marked, strict=True) if p in self.records}
        effect = effect_of(commit) if leaving else None
        if not leaving or (effect is not None and effect.rows_moved == 0):
            return
        # A file that is removed and added again only gets a new deletion vector.
        is_again = pc.is_in(_paths(commit.adds), value_set=string_array(list(leaving)))
        tags = pc.if_else(is_again, self.unit, units_of(commit.adds))
        own = pc.filter(commit.adds, pc.fill_null(pc.equal(tags, self.unit), False))
        if tags.null_count and not self._has_all(leaving, own):
            self.moved |= leaving.keys()
            self.moved_by = Moved(commit.version, str((commit.commit_info or {}).get("operation") or "A commit"))
        self.add(own)

    def _has_all(self, leaving: dict[str, int], own: pa.Table) -> bool:
        total, rows_now = 0, live_rows(own)
        for path, marked in leaving.items():
            if (records := self.records[path]) is None:
                return False
            total += records - marked
        return rows_now == total


@dataclass(frozen=True, slots=True)
class UnitFiles:
    """The files with the rows of a unit in a version of a table.

    Attributes:
        unit: The name of the unit.
        version: The version.
        files: The live files of the unit, as `ADD_SCHEMA`. They hold no other rows.
        moved: The files whose rows can no longer be separated from other rows, as `ADD_SCHEMA` at the time of adding.
        moved_by: The newest commit that moved rows.
        commits: The commits of the unit since its rows were last replaced, newest first.
    """

    unit: str
    version: int
    files: pa.Table
    moved: pa.Table
    moved_by: Moved | None
    commits: tuple[Commit, ...]
    _trail: _Trail = field(repr=False, compare=False)

    def ensure_exact(self, uri: str) -> None:
        """Raise RedoNotPossibleError if rows of the unit were moved into files with other rows."""
        if self.moved_by is None:
            return
        version, operation = self.moved_by
        raise RedoNotPossibleError(
            f"The rows that {self.unit} wrote to {uri} can no longer be separated from other rows",
            cause=f"{operation} in version {version} changed the rows, or moved them into files with other rows",
            remedy=REMEDY,
            unit=self.unit,
            version=version,
            operation=operation,
            uri=uri,
        )

    def at(self, log: TableLog, snapshot: Snapshot) -> UnitFiles:
        """Return the files of the unit in a later version. Only the newer commits are read. Raises as
        `files_of_unit`."""
        if snapshot.version == self.version:
            return self
        newer = list(log.commits(self.version + 1, snapshot.version))
        if any(txn.app_id == self.unit for commit in newer for txn in commit.txns):
            return files_of_unit(LogWalk(log, snapshot.version), snapshot, self.unit)
        trail = replace(self._trail, records=dict(self._trail.records), moved=set(self._trail.moved))
        for commit in newer:
            trail.follow(commit)
        return _located(trail, snapshot, self.commits)


def files_of_unit(walk: LogWalk, snapshot: Snapshot, unit: str) -> UnitFiles:
    """Return the files of a version that hold the rows of a unit. The log is enough to find them: files that the unit's
    commits added since its rows were last replaced, and files written only from these. No data is read.

    Args:
        walk: The commits from this version backwards.

    Raises:
        RedoNotPossibleError: The log no longer has the commits.
        CorruptLogError: A commit is malformed.
    """
    own = commits_of_unit(walk, unit)
    trail, versions = _Trail(unit), {commit.version for commit in own}
    for commit in reversed(_until(walk, min(versions)) if own else []):
        trail.follow(commit)
        if commit.version in versions:
            trail.add(_own_files(commit, unit))
    return _located(trail, snapshot, tuple(own))


def _until(walk: LogWalk, version: int) -> list[Commit]:
    commits = []
    for commit in walk:
        commits.append(commit)
        if commit.version == version:
            break
    return commits


def _located(trail: _Trail, snapshot: Snapshot, commits: tuple[Commit, ...]) -> UnitFiles:
    live = snapshot.files(ADD_SCHEMA.names)
    own = string_array(list(trail.records.keys() - trail.moved))
    is_moved = pc.is_in(_paths(trail.added), value_set=string_array(list(trail.moved)))
    files = pc.filter(live, pc.is_in(_paths(live), value_set=own))
    moved = pc.filter(trail.added, is_moved)
    return UnitFiles(trail.unit, snapshot.version, files, moved, trail.moved_by, commits, trail)


def commits_of_unit(walk: LogWalk, unit: str) -> list[Commit]:
    """Return the commits of a unit since its rows were last replaced, newest first. Raises as `files_of_unit`."""
    own: list[Commit] = []
    for commit in walk:
        if not (orders := [txn.version for txn in commit.txns if txn.app_id == unit]):
            continue
        if max(orders) < 0:
            return own  # The unit was undone, and its rows were removed.
        own.append(commit)
        record = StepRecord.of(commit.commit_info)
        if record is None or record.adds_to is None:
            return own
    raise RedoNotPossibleError(
        f"The log of {walk.log.store.uri} no longer has the commit of {unit}, so its rows cannot be found",
        cause="The log was cleaned up after the unit was written (delta.logRetentionDuration)",
        remedy=REMEDY,
        unit=unit,
        uri=walk.log.store.uri,
    )


def replaced_units(
    log: TableLog, snapshot: Snapshot | None, options: CommitOptions, located: Sequence[UnitFiles]
) -> tuple[UnitFiles, ...]:
    """Return the units whose rows a write replaces: the ids of its `txn` with `replaces`.

    Args:
        located: Units that the caller located in an earlier version already.

    Raises as `files_of_unit`.
    """
    units = [txn.app_id for txn in parse_txns(options.get("txn")) if txn.replaces]
    if snapshot is None or not units:
        return ()
    walk, before = LogWalk(log, snapshot.version), {one.unit: one for one in located}
    return tuple(
        before[name].at(log, snapshot) if name in before else files_of_unit(walk, snapshot, name) for name in units
    )


def _own_files(commit: Commit, unit: str) -> pa.Table:
    """Return the files with the unit's rows among the files that its commit added."""
    adds = commit.adds
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
        f"The log does not show which files of version {commit.version} hold the rows of {unit}",
        cause=f"The commit wrote {len(units)} units, or rewrote other rows, and its files have no unit tag",
        remedy="Delete the rows with table.delete(where), then run the step once with on_redo='add'",
        unit=unit,
        version=commit.version,
    )


# Units that lose rows


def units_losing_rows(
    log: TableLog,
    before: Snapshot,
    after: Snapshot,
    where: str | Expression | None,
    candidates: Callable[[], Iterable[str]],
) -> frozenset[str]:
    """Return the units whose rows a change of a table replaces or deletes.

    The tag of a file names its unit. A file without a tag has rows of several units, or of no unit. In that case the
    log names the units, and the files of each unit show whether the predicate selects its rows.

    Args:
        before, after: The version before the change, and the table after the change.
        where: A predicate for the removed rows. None means all rows of the removed files.
        candidates: Returns the units that are searched in files without a tag.
    """
    files = _files_that_lose_rows(before, after)
    tags = units_of(files)
    units = {name for name in pc.unique(tags).to_pylist() if name is not None}
    untagged = _path_set(pc.filter(files, pc.is_null(tags)))
    others = set(candidates()) - units if untagged else set[str]()
    return frozenset(units | _units_inside(log, before.version, untagged, others, where))


def _files_that_lose_rows(before: Snapshot, after: Snapshot) -> pa.Table:
    """Return the files of a version that a later version does not have, or of which it has fewer rows."""
    files = before.files(ADD_SCHEMA.names)
    is_kept = pc.is_in(_identities(files), _identities(after.files(["path", "dv_id"])))
    return pc.filter(files, pc.invert(is_kept))


def _identities(files: pa.Table) -> pa.ChunkedArray:
    table = FileTable(files)
    return pc.binary_join_element_wise(table.path, pc.fill_null(table.dv_id, ""), " ")


def _units_inside(
    log: TableLog, version: int, paths: Collection[str], candidates: Collection[str], where: str | Expression | None
) -> set[str]:
    """Return the candidates that have rows in files without a tag. The log is read back to the source files of these
    files."""
    paths_left, units = set(paths), set[str]()
    for commit in log.newest_first(version) if paths_left and candidates else ():
        added_paths = paths_left & _path_set(commit.adds)
        if not added_paths:
            continue
        paths_left -= added_paths
        these = pc.filter(commit.adds, pc.is_in(FileTable(commit.adds).path, string_array(sorted(added_paths))))
        tags = units_of(these)
        for name in set(candidates) & set(pc.unique(tags).to_pylist()):
            own = _path_set(pc.filter(these, pc.equal(tags, name)))
            if where is None or _may_have(log, commit.version, own, where):
                units.add(name)
        effect = effect_of(commit)
        if pc.any(pc.is_null(tags)).as_py() and (effect is None or effect.rows_moved != 0):
            paths_left |= _path_set(commit.removes)
        if not paths_left or units == set(candidates):
            return units
    # The log ends before all files are found, so every candidate may lose rows.
    return set(candidates) if paths_left and candidates else units


def _may_have(log: TableLog, version: int, paths: Collection[str], where: str | Expression) -> bool:
    """Whether files of a version may have rows for which a predicate is true."""
    from delta_orch.engines.local.engine import LocalEngine
    from delta_orch.expressions.resolve import resolve_predicate
    from delta_orch.writing.selection import first_file_with

    try:
        snapshot = log.snapshot(version=version)
        files = snapshot.files(ADD_SCHEMA.names)
        these = pc.filter(files, pc.is_in(FileTable(files).path, string_array(sorted(paths))))
        return first_file_with(LocalEngine(), snapshot, these, resolve_predicate(where, snapshot.schema)) is not None
    except (MissingFileError, VersionNotFoundError):
        return True  # Vacuum or a log cleanup deleted the files that would prove the opposite.


def _path_set(files: pa.Table) -> frozenset[str]:
    return frozenset(FileTable(files).path.to_pylist())


def _paths(files: pa.Table) -> pa.Array:
    return one_chunk(canonical_paths(FileTable(files).path))
