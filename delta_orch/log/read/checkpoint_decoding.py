"""Columns of a checkpoint's file actions, from Parquet leaves to the types of `file_columns`; and the live ones from
one end to the other, in bounded memory: for whoever passes over all of them once (the next checkpoint, a full
checksum, checks)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.errors import ProtocolViolationError
from delta_orch.log.files.file_columns import ADD_SCHEMA, DELETION_VECTOR_TYPE, REMOVE_SCHEMA
from delta_orch.log.read.checkpoint_reader import Checkpoint, RowGroup, child_of, readable
from delta_orch.log.read.reconcile import TouchedFiles, file_keys
from delta_orch.log.read.skipping.file_statistics import ColumnBounds, Path, bounds_of
from delta_orch.protocol.action_json import (
    ADD_FIELDS,
    DELETION_VECTOR_FIELDS,
    DELETION_VECTOR_ID_FIELDS,
    REMOVE_FIELDS,
    STATS_PARSED,
)
from delta_orch.protocol.arrow_building import STRING_MAP, one_chunk, plain, string_map_array
from delta_orch.protocol.paths import canonical_paths
from delta_orch.protocol.types import DataType

SCHEMAS: Mapping[str, pa.Schema] = {"add": ADD_SCHEMA, "remove": REMOVE_SCHEMA}
_FIELDS: Mapping[str, Mapping[str, str]] = {"add": ADD_FIELDS, "remove": REMOVE_FIELDS}
_DELETION_VECTOR = "deletionVector"

Column: TypeAlias = pa.ChunkedArray
Mask: TypeAlias = pa.ChunkedArray | pa.BooleanArray


def decode_columns(
    action: str, group: RowGroup, names: Sequence[str], keep: Mask | None, use_threads: bool = False
) -> dict[str, Column]:
    """Columns of `ADD_SCHEMA` or `REMOVE_SCHEMA` (all but `path`), for the rows of a group that `keep` marks.

    Args:
        action: `add` or `remove`.
        keep: One value a row of the group; None for all rows.
        use_threads: Decode the leaves in parallel; for callers that are not parallel themselves.

    Raises:
        CorruptLogError: The file is damaged.
        IncompleteCheckpointError: It is gone.
        ProtocolViolationError: A field has the wrong type.
    """
    raw = group.read(action, needed_leaves(action, names), use_threads)
    live = {leaf: None if column is None else select(column, keep) for leaf, column in raw.items()}
    if "stats" in names and needs_parsed_statistics(action, group):
        parsed = group.read(action, [STATS_PARSED])[STATS_PARSED]
        live["stats"] = with_parsed_statistics(live["stats"], None if parsed is None else select(parsed, keep))
    return columns_of(action, live, names, group.num_rows if keep is None else _count(keep))


def needed_leaves(action: str, names: Sequence[str]) -> list[str]:
    """The fields of an action, as checkpoints spell them, that columns of `ADD_SCHEMA` or `REMOVE_SCHEMA` come from."""
    fields = _FIELDS[action]
    leaves = {fields[name] for name in names if name in fields}
    if "dv_id" in names:
        leaves.add(_DELETION_VECTOR)
    return sorted(leaves)


def columns_of(action: str, live: Mapping[str, Column | None], names: Sequence[str], count: int) -> dict[str, Column]:
    """Columns of `ADD_SCHEMA` or `REMOVE_SCHEMA` from `needed_leaves`, each of `count` rows or None.

    Raises:
        ProtocolViolationError: A field has the wrong type.
    """
    fields, schema = _FIELDS[action], SCHEMAS[action]
    columns: dict[str, Column] = {}
    for name in names:
        if name == "dv_id":
            column = dv_ids(live[_DELETION_VECTOR])
        elif name == "deletion_vector":
            column = _vectors(live[_DELETION_VECTOR])
        else:
            column = live[fields[name]]
        columns[name] = _as_type(column, schema.field(name), action, count)
    return columns


def needs_parsed_statistics(action: str, group: RowGroup) -> bool:
    """Whether some row may have its statistics only in `stats_parsed`."""
    return group.has(f"{action}.{STATS_PARSED}") and group.null_count(f"{action}.stats") != group.null_count(
        f"{action}.path"
    )


def with_parsed_statistics(json: Column | None, parsed: Column | None) -> Column | None:
    """Statistics as JSON, made from `stats_parsed` if the checkpoint has no JSON statistics."""
    if parsed is None or (json is not None and json.null_count == 0):
        return json
    from delta_orch.log.files.stats_json import stats_to_json

    made = stats_to_json(parsed)
    return made if json is None else pc.coalesce(_as_text(json), made)


def select(column: Column, keep: Mask | None) -> Column:
    """The rows that a mask marks; all without one."""
    return column if keep is None else pc.filter(column, keep)


def iter_paths(action: str, group: RowGroup) -> Iterator[pa.StringArray]:
    """The paths of all rows in batches, null in the rows of other actions."""
    for paths in group.iter_field(action, "path"):
        yield paths if paths.type == pa.string() else pc.cast(paths, pa.string())


def decode_dv_ids(action: str, group: RowGroup, keep: Mask | None) -> Column | None:
    """Deletion vector ids of the rows a mask marks; None where the group has no deletion vectors."""
    column = group.read(action, [_DELETION_VECTOR])[_DELETION_VECTOR]
    return None if column is None else dv_ids(select(column, keep))


def has_deletion_vectors(action: str, group: RowGroup) -> bool:
    """Whether some row may have a deletion vector, going by the footer."""
    return group.has(f"{action}.{_DELETION_VECTOR}")


def dv_ids(column: Column | None) -> Column | None:
    """The unique ids of deletion vectors (PROTOCOL, "Derived Fields"), null for files without a vector."""
    vectors = _vectors(column)
    if vectors is None:
        return None
    kind, path, offset = (pc.struct_field(vectors, [name]) for name in DELETION_VECTOR_ID_FIELDS)
    base = pc.binary_join_element_wise(kind, path, "")
    with_offset = pc.binary_join_element_wise(base, pc.cast(offset, pa.string()), "@")
    return pc.coalesce(with_offset, base)


def _vectors(column: Column | None) -> Column | None:
    if column is None:
        return None
    try:
        return pa.chunked_array([_vector_chunk(chunk) for chunk in column.chunks], DELETION_VECTOR_TYPE)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        raise ProtocolViolationError(
            f"A checkpoint holds {_DELETION_VECTOR} in the wrong type, {column.type}", cause=str(e)
        ) from None


def _vector_chunk(structs: pa.StructArray) -> pa.StructArray:
    if not pa.types.is_struct(structs.type):
        raise pa.ArrowInvalid("it is not a struct")
    children = []
    for target in DELETION_VECTOR_TYPE:
        index = structs.type.get_field_index(DELETION_VECTOR_FIELDS[target.name])
        if index < 0:
            children.append(pa.nulls(len(structs), target.type))
        else:
            children.append(pc.cast(pc.struct_field(structs, [index]), target.type))
    # A struct whose fields are all null is how some writers spell "none".
    if not children[0].is_null().equals(children[1].is_null()):
        raise pa.ArrowInvalid("some lack their kind or their place")
    return pa.StructArray.from_arrays(children, fields=list(DELETION_VECTOR_TYPE), mask=pc.is_null(children[0]))


def _as_type(column: Column | None, field: pa.Field, action: str, count: int) -> Column:
    if column is None:
        if field.type == STRING_MAP and action == "add":
            return pa.chunked_array([string_map_array([{}] * count)])
        return pa.chunked_array([pa.nulls(count, field.type)])
    if column.type == field.type:
        return column
    try:
        return pc.cast(column, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        raise ProtocolViolationError(
            f"A checkpoint holds {field.name} of {action} actions in the wrong type", cause=str(e)
        ) from None


def _as_text(column: Column) -> Column:
    return column if column.type == pa.string() else pc.cast(column, pa.string())


def _count(keep: Mask) -> int:
    return int(pc.sum(keep).as_py() or 0)


def iter_live(checkpoint: Checkpoint, action: str, names: Sequence[str], touched: TouchedFiles) -> Iterator[pa.Table]:
    """The `add` or `remove` actions of a checkpoint whose files later commits do not touch, in its order, some ten
    thousand rows at a time. Nothing is kept.

    Args:
        names: Columns of `ADD_SCHEMA` or `REMOVE_SCHEMA`.

    Raises:
        CorruptLogError: A file of the checkpoint is damaged.
        IncompleteCheckpointError: One is gone.
        ProtocolViolationError: A field has the wrong type.
    """
    for group in checkpoint.row_groups(action):
        yield from iter_live_rows(group, action, names, touched)


def iter_live_rows(group: RowGroup, action: str, names: Sequence[str], touched: TouchedFiles) -> Iterator[pa.Table]:
    """As `iter_live`, of one row group."""
    schema = pa.schema([SCHEMAS[action].field(name) for name in names])
    has_vectors = touched.any_vector or has_deletion_vectors(action, group)
    leaves = {"path", *needed_leaves(action, names)}
    if has_vectors and len(touched):
        leaves.add(_DELETION_VECTOR)
    if "stats" in names and needs_parsed_statistics(action, group):
        leaves.add(STATS_PARSED)
    present = sorted(leaf for leaf in leaves if group.has(f"{action}.{leaf}"))
    for struct in group.iter_structs(action, present, use_threads=True):
        with readable(group.part.path):
            raw = {leaf: plain(child_of(struct, leaf)) for leaf in present}
        keep = live_mask(raw["path"], raw.get(_DELETION_VECTOR) if has_vectors else None, touched)
        if not keep.true_count:
            continue
        kept = raw if keep.true_count == len(keep) else {leaf: pc.filter(column, keep) for leaf, column in raw.items()}
        live = {leaf: pa.chunked_array([kept[leaf]]) if leaf in kept else None for leaf in leaves}
        if STATS_PARSED in leaves:
            live["stats"] = with_parsed_statistics(live["stats"], live[STATS_PARSED])
        columns = columns_of(action, live, names, keep.true_count)
        yield pa.Table.from_arrays([columns[name] for name in names], schema=schema)


def live_mask(paths: pa.Array, vectors: pa.Array | None, touched: TouchedFiles) -> pa.BooleanArray:
    """Which rows hold an action, and one whose file is not touched.

    Args:
        paths: Null in the rows of other actions.
        vectors: Their deletion vectors; None where no file, touched or not, has one.
    """
    keep = pc.is_valid(paths)
    if not len(touched) or not keep.true_count:
        return keep
    canonical = canonical_paths(paths)
    candidates = pc.fill_null(pc.is_in(canonical, value_set=touched.paths), False)
    if not candidates.true_count:
        return keep
    if touched.any_vector or vectors is not None:
        ids = None if vectors is None else dv_ids(pa.chunked_array([vectors]))
        ids = pa.nulls(len(paths), pa.string()) if ids is None else one_chunk(ids)
        candidates = pc.and_(candidates, pc.is_in(file_keys(canonical, ids), value_set=touched.keys))
    return pc.and_not(keep, candidates)


def read_parsed_bounds(
    group: RowGroup, keep: Mask | None, columns: Mapping[Path, DataType]
) -> dict[Path, ColumnBounds] | None:
    """Bounds of columns, given by physical path, for the `add` actions a mask marks; None where the row group has no
    statistics as columns.

    Raises:
        CorruptLogError: The file is damaged.
        IncompleteCheckpointError: It is gone.
    """
    fields = [
        ("numRecords",),
        *((kind, *path) for path in columns for kind in ("minValues", "maxValues", "nullCount")),
    ]
    present = [leaf for leaf in fields if _leaf_name(leaf) in group.part.leaves]
    if len(present) < 2:
        return None
    names = [_leaf_name(leaf).removeprefix("add.") for leaf in present]
    structs = pa.chunked_array(list(group.iter_structs("add", names)))
    adds = one_chunk(select(structs, keep))
    values = {leaf: _descend_struct(adds, (STATS_PARSED, *leaf)) for leaf in present}

    def column(*leaf: str) -> pa.Array:
        return values[leaf] if leaf in values else pa.nulls(len(adds), pa.int64())

    return {
        path: bounds_of(
            data_type,
            column("minValues", *path),
            column("maxValues", *path),
            column("nullCount", *path),
            column("numRecords"),
        )
        for path, data_type in columns.items()
    }


def _leaf_name(leaf: Sequence[str]) -> str:
    return ".".join(("add", STATS_PARSED, *leaf))


def _descend_struct(struct: pa.StructArray, path: Sequence[str]) -> pa.Array:
    for name in path:
        struct = pc.struct_field(struct, [struct.type.get_field_index(name)])
    return struct
