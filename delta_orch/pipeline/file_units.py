"""Which units of work wrote the rows of files, and whose rows a staged write replaces."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.errors import MissingFileError, VersionNotFoundError
from delta_orch.log.files.effect import effect_of
from delta_orch.log.files.file_columns import ADD_SCHEMA, FileTable
from delta_orch.log.files.unit_tag import units_of
from delta_orch.protocol.arrow_building import string_array

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.expressions.nodes import Expression
    from delta_orch.staged_write import StagedWrite


def units_replaced(
    table: DeltaTable,
    staged: StagedWrite,
    where: str | Expression | None,
    seek: Callable[[TableSnapshot], Collection[str]],
) -> frozenset[str]:
    """The units whose rows a staged write replaces or deletes.

    A file's tag tells its unit. A file without one is of several units, or of none: the log tells which, and the files
    of each unit, as they were written, tell whether they have rows of the predicate.

    Args:
        where: Which rows leave; None for all of the files that it removes.
        seek: The units that matter among those that a version has recorded; they are looked for in files without a tag.
    """
    if staged.read_version is None:
        return frozenset()
    before = table.snapshot(staged.read_version)
    files = _replaced_files(before, staged.snapshot())
    tags = units_of(files)
    units = {name for name in pc.unique(tags).to_pylist() if name is not None}
    untagged = _paths(pc.filter(files, pc.is_null(tags)))
    candidates = set(seek(before)) - units if untagged else set[str]()
    return frozenset(units | _units_inside(table, before.version, untagged, candidates, where))


def _replaced_files(before: TableSnapshot, after: TableSnapshot) -> pa.Table:
    """The files of a version that a later one does not have, or has fewer rows of."""
    files = before.files(ADD_SCHEMA.names)
    kept = pc.is_in(_identities(files), _identities(after.files(["path", "dv_id"])))
    return pc.filter(files, pc.invert(kept))


def _identities(files: pa.Table) -> pa.ChunkedArray:
    table = FileTable(files)
    return pc.binary_join_element_wise(table.path, pc.fill_null(table.dv_id, ""), " ")


def _units_inside(
    table: DeltaTable, version: int, paths: Collection[str], candidates: Collection[str], where: str | Expression | None
) -> set[str]:
    """The candidates that have rows in files without a tag. The log is read back to the files that those were made
    of."""
    paths_left, units = set(paths), set[str]()
    for commit in table.log.newest_first(version) if paths_left and candidates else ():
        added_paths = paths_left & _paths(commit.adds)
        if not added_paths:
            continue
        paths_left -= added_paths
        these = pc.filter(commit.adds, pc.is_in(FileTable(commit.adds).path, string_array(sorted(added_paths))))
        tags = units_of(these)
        for name in set(candidates) & set(pc.unique(tags).to_pylist()):
            own = _paths(pc.filter(these, pc.equal(tags, name)))
            if where is None or _may_have(table, commit.version, own, where):
                units.add(name)
        effect = effect_of(commit)
        if pc.any(pc.is_null(tags)).as_py() and (effect is None or effect.rows_moved != 0):
            paths_left |= _paths(commit.removes)
        if not paths_left or units == set(candidates):
            return units
    # The log is gone before it tells.
    return set(candidates) if paths_left and candidates else units


def _paths(files: pa.Table) -> frozenset[str]:
    return frozenset(FileTable(files).path.to_pylist())


def _may_have(table: DeltaTable, version: int, paths: Collection[str], where: str | Expression) -> bool:
    """Whether some files of a version have rows for which a predicate is true."""
    from delta_orch.engines.local.engine import LocalEngine
    from delta_orch.expressions.resolve import resolve_predicate
    from delta_orch.writing.selection import first_file_with

    try:
        snapshot = table.snapshot(version=version)
        files = snapshot.files(ADD_SCHEMA.names)
        these = pc.filter(files, pc.is_in(FileTable(files).path, string_array(sorted(paths))))
        return first_file_with(LocalEngine(), snapshot, these, resolve_predicate(where, snapshot.schema)) is not None
    except (MissingFileError, VersionNotFoundError):
        return True  # Vacuum, or a cleanup of the log, has deleted what would tell.
