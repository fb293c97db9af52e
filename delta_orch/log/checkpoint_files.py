"""The file actions of a checkpoint that still count: row groups, the rows of each that are live, and their columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.errors import ProtocolViolationError
from delta_orch.log.arrow_building import int64_range, string_map_array, string_scalar
from delta_orch.log.checkpoint_reader import Checkpoint, RowGroup, run_parallel
from delta_orch.log.file_columns import ADD_SCHEMA, DELETION_VECTOR_TYPE, REMOVE_SCHEMA, STRING_MAP
from delta_orch.log.replay import TouchedFiles, file_keys
from delta_orch.log.stats_json import stats_to_json
from delta_orch.protocol.checkpoint_schema import (
    ADD_FIELDS,
    DELETION_VECTOR_FIELDS,
    DELETION_VECTOR_ID_FIELDS,
    REMOVE_FIELDS,
    STATS_PARSED,
)
from delta_orch.protocol.data_path import canonical_paths

_SCHEMAS: Mapping[str, pa.Schema] = {"add": ADD_SCHEMA, "remove": REMOVE_SCHEMA}
_FIELDS: Mapping[str, Mapping[str, str]] = {"add": ADD_FIELDS, "remove": REMOVE_FIELDS}


@dataclass(frozen=True, slots=True)
class LiveRows:
    """The rows of one row group that count.

    Attributes:
        keep: Boolean, one a row of the group; None where all rows count.
        paths: The paths of those that count, spelled as in the log.
    """

    group: RowGroup
    keep: pa.ChunkedArray | None
    paths: pa.ChunkedArray


class CheckpointFileActions:
    """All `add` or all `remove` actions of a checkpoint but those whose files later commits touch.

    Immutable: `without` gives another one that shares what is decoded. Paths are decoded on first use and kept, every
    other column is decoded when it is asked for.
    """

    def __init__(self, checkpoint: Checkpoint, action: str, touched: TouchedFiles) -> None:
        self._checkpoint = checkpoint
        self._action = action
        self._touched = touched

    def without(self, touched: TouchedFiles) -> CheckpointFileActions:
        """The same less the files touched by further commits."""
        later = CheckpointFileActions(self._checkpoint, self._action, self._touched.plus(touched))
        if "_live" in self.__dict__:
            live = [_still_live(self._action, rows, touched) for rows in self._live]
            later.__dict__["_live"] = live
        return later

    @property
    def num_rows(self) -> int:
        return sum(len(rows.paths) for rows in self._live)

    def columns(self, names: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        """The columns asked for, of `ADD_SCHEMA` or `REMOVE_SCHEMA`, one value a live row.

        Raises:
            CorruptLogError: A file of the checkpoint is damaged.
            IncompleteCheckpointError: One is gone.
        """
        others = [name for name in names if name != "path"]
        tasks = [rows for rows in self._live if len(rows.paths)]
        decoded = run_parallel(lambda rows: self._decode(rows, others, len(tasks) == 1), tasks) if others else []
        schema = _SCHEMAS[self._action]
        result = {}
        for name in names:
            column_type = schema.field(name).type
            parts = [rows.paths for rows in tasks] if name == "path" else [columns[name] for columns in decoded]
            chunks = [chunk for part in parts for chunk in part.chunks]
            result[name] = pa.chunked_array(chunks, column_type)
        return result

    @cached_property
    def _live(self) -> list[LiveRows]:
        groups = self._checkpoint.row_groups(self._action)
        return run_parallel(lambda group: _live_rows(self._action, group, self._touched), groups)

    def _decode(self, rows: LiveRows, names: Sequence[str], use_threads: bool) -> dict[str, pa.ChunkedArray]:
        fields, schema = _FIELDS[self._action], _SCHEMAS[self._action]
        wanted = [fields[name] for name in names if name in fields and name != "deletion_vector"]
        if "stats" in names and not rows.group.has(f"{self._action}.stats"):
            wanted.append(STATS_PARSED)
        if "dv_id" in names or "deletion_vector" in names:
            wanted.append("deletionVector")
        raw = rows.group.read(self._action, wanted, use_threads)
        live = {name: None if column is None else _select(column, rows.keep) for name, column in raw.items()}
        count = len(rows.paths)
        result: dict[str, pa.ChunkedArray] = {}
        for name in names:
            if name == "dv_id":
                column = _dv_ids(live["deletionVector"])
            elif name == "deletion_vector":
                column = _vectors(live["deletionVector"])
            elif name == "stats" and live.get(STATS_PARSED) is not None:
                column = stats_to_json(live[STATS_PARSED])
            else:
                column = live[fields[name]]
            result[name] = _as_type(column, schema.field(name), self._action, count)
        return result


def _live_rows(action: str, group: RowGroup, touched: TouchedFiles) -> LiveRows:
    column = group.read(action, ["path"])["path"]
    paths = _text(column) if column is not None else pa.chunked_array([], pa.string())
    keep = pc.is_valid(paths) if paths.null_count else None
    everything = LiveRows(group, keep, paths if keep is None else paths.filter(keep))
    return _still_live(action, everything, touched)


def _still_live(action: str, rows: LiveRows, touched: TouchedFiles) -> LiveRows:
    """The rows less those whose files are touched."""
    if not len(touched) or not len(rows.paths):
        return rows
    candidates = pc.is_in(canonical_paths(rows.paths), value_set=touched.paths)
    if not pc.any(candidates).as_py():
        return rows
    if touched.any_vector or rows.group.has(f"{action}.deletionVector"):
        dead = _with_touched_keys(action, rows, candidates, touched)
    else:
        dead = candidates
    alive = pc.invert(dead)
    return LiveRows(rows.group, _narrow(rows.keep, alive), rows.paths.filter(alive))


def _with_touched_keys(
    action: str, rows: LiveRows, candidates: pa.ChunkedArray, touched: TouchedFiles
) -> pa.ChunkedArray:
    """Which rows are touched going by path and deletion vector; `candidates` are by path alone."""
    vectors = rows.group.read(action, ["deletionVector"])["deletionVector"]
    paths = canonical_paths(rows.paths.filter(candidates))
    if vectors is None:
        dv_ids = pa.nulls(len(paths), pa.string())
    else:
        dv_ids = _dv_ids(_select(vectors, rows.keep).filter(candidates))
    dead = pc.is_in(file_keys(paths, dv_ids), value_set=touched.keys)
    positions = pc.indices_nonzero(candidates).filter(dead)
    return pc.is_in(int64_range(0, len(rows.paths)), value_set=pc.cast(positions, pa.int64()))


def _narrow(keep: pa.ChunkedArray | None, alive: pa.ChunkedArray) -> pa.ChunkedArray:
    """The mask over all rows of a group, from one over its live rows."""
    if keep is None:
        return alive
    positions = pc.indices_nonzero(keep).filter(alive)
    every = int64_range(0, len(keep))
    return pa.chunked_array([pc.is_in(every, value_set=pc.cast(positions, pa.int64()))])


def _select(column: pa.ChunkedArray, keep: pa.ChunkedArray | None) -> pa.ChunkedArray:
    return column if keep is None else column.filter(keep)


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column if column.type == pa.string() else column.cast(pa.string())


def _as_type(column: pa.ChunkedArray | None, field: pa.Field, action: str, count: int) -> pa.ChunkedArray:
    if column is None:
        if field.type == STRING_MAP and action == "add":
            return _empty_maps(count)
        return pa.chunked_array([pa.nulls(count, field.type)])
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as e:
        raise ProtocolViolationError(
            f"A checkpoint holds {field.name} of {action} actions in the wrong type", cause=str(e)
        ) from None


def _empty_maps(count: int) -> pa.ChunkedArray:
    return pa.chunked_array([string_map_array([{}] * count)])


def _vectors(column: pa.ChunkedArray | None) -> pa.ChunkedArray | None:
    if column is None:
        return None
    return pa.chunked_array([_vector_chunk(chunk) for chunk in column.chunks], DELETION_VECTOR_TYPE)


def _vector_chunk(structs: pa.StructArray) -> pa.StructArray:
    children = []
    for target in DELETION_VECTOR_TYPE:
        name = DELETION_VECTOR_FIELDS[target.name]
        if structs.type.get_field_index(name) < 0:
            children.append(pa.nulls(len(structs), target.type))
        else:
            children.append(pc.cast(pc.struct_field(structs, name), target.type))
    # A struct whose fields are all null is how some writers spell "none".
    return pa.StructArray.from_arrays(children, fields=list(DELETION_VECTOR_TYPE), mask=children[0].is_null())


def _dv_ids(column: pa.ChunkedArray | None) -> pa.ChunkedArray | None:
    """The unique ids of deletion vectors (PROTOCOL, "Derived Fields"), null where there is none."""
    vectors = _vectors(column)
    if vectors is None:
        return None
    kind, path, offset = (pc.struct_field(vectors, [name]) for name in DELETION_VECTOR_ID_FIELDS)
    base = pc.binary_join_element_wise(kind, path, string_scalar(""))
    with_offset = pc.binary_join_element_wise(base, pc.cast(offset, pa.string()), string_scalar("@"))
    return pc.coalesce(with_offset, base)
