"""Commits as bytes. Files go from Arrow columns to JSON lines column by column, never one Python object a file.

Single actions are spelled by `protocol.action_json`; here is the same spelling of `add` and `remove` for whole tables
(PROTOCOL, "Add File and Remove File").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from math import isfinite
from types import MappingProxyType

import orjson
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.errors import InvalidRequestError
from delta_orch.log.files.stats_json import json_texts, quoted_texts
from delta_orch.protocol.action_json import ADD_FIELDS, DELETION_VECTOR_FIELDS, REMOVE_FIELDS, serialize_action
from delta_orch.protocol.actions import Action, Add, DeletionVectorDescriptor, JsonObject, JsonValue
from delta_orch.protocol.arrow_building import string_array

_BATCH_ROWS = 50_000
_FEW_ROWS = 8


def serialize_actions(actions: Iterable[Action]) -> bytes:
    """One line an action, each with its line break."""
    return b"\n".join([*map(serialize_action, actions), b""])


def json_parameters(parameters: Mapping[str, object]) -> dict[str, str]:
    """`operationParameters` and `operationMetrics` as readers expect them: a map of strings to strings, in which text
    stays as it is and everything else is its JSON text."""
    return {key: v if isinstance(v, str) else _json_text(v) for key, v in parameters.items()}


def _json_text(value: object) -> str:
    try:
        return orjson.dumps(value, default=str).decode()
    except TypeError:
        # Beyond 64 bits, say.
        return str(value)


def ensure_json(values: object, what: str) -> dict[str, JsonValue]:
    """A copy of values that JSON can hold, as JSON holds them: a tuple is a list, a dataclass a dict, a time a text. So
    nothing in them escapes who looks for secrets (`redaction.kept`).

    Args:
        what: What an error calls them.

    Raises:
        InvalidRequestError: They are no mapping, or JSON cannot hold one of them.
    """
    json_values = dict(ensure_mapping(values, what))
    try:
        json_text = orjson.dumps(json_values)
        # `dumps` makes null of them.
        if not all(map(isfinite, _floats(json_values))):
            raise TypeError("NaN and infinity are not JSON numbers")
    except TypeError as e:
        raise InvalidRequestError(
            f"{what} holds something that JSON cannot",
            cause=str(e),
            remedy="Pass names with text, numbers, or lists and dicts of such",
        ) from None
    parsed: dict[str, JsonValue] = orjson.loads(json_text)
    return parsed


def _floats(value: object) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _floats(inner)


def ensure_mapping(values: object, what: str) -> JsonObject:
    """Raises InvalidRequestError if the values are not JSON objects."""
    if not isinstance(values, Mapping):
        raise InvalidRequestError(f"{what} must be a dict, not {values!r:.100}", remedy="Pass names with their values")
    return values


def serialize_adds(adds: pa.Table) -> bytes:
    """One `add` line a row, each with its line break.

    Args:
        adds: Columns of `file_columns.ADD_SCHEMA`; those that may be null may also be missing.
    """
    if adds.num_rows <= _FEW_ROWS:
        return b"".join(map(_add_line, adds.to_pylist()))
    return _serialize(adds, _add_fields)


def serialize_removes(files: pa.Table, *, deletion_timestamp_ms: int, data_change: bool) -> bytes:
    """One `remove` line a row, each with its line break.

    Args:
        files: As for `serialize_adds`; statistics are not repeated in a `remove`.
    """
    constant = (
        f',"deletionTimestamp":{deletion_timestamp_ms},"dataChange":{"true" if data_change else "false"}'
        ',"extendedFileMetadata":true'
    )
    return _serialize(files, lambda batch: _remove_fields(batch, constant))


def serialize_changes(files: pa.Table) -> bytes:
    """One `cdc` line a row, each with its line break (PROTOCOL, "Add CDC File").

    Args:
        files: As for `serialize_adds`; `path`, `partition_values` and `size` count.
    """
    return _serialize(files, _change_fields)


def _add_line(row: JsonObject) -> bytes:
    """One row as `_add_fields` spells it: each of its kernels costs more than this whole line."""
    data_change, vector, tags = row.get("data_change"), row.get("deletion_vector"), row.get("tags")
    add = Add(
        path=row["path"],
        partition_values=dict(row["partition_values"] or ()),
        size=row["size"],
        modification_time=row["modification_time"],
        data_change=True if data_change is None else data_change,
        stats=row.get("stats"),
        tags=None if tags is None else dict(tags),
        deletion_vector=None if vector is None else DeletionVectorDescriptor(**vector),
        base_row_id=row.get("base_row_id"),
        default_row_commit_version=row.get("default_row_commit_version"),
        clustering_provider=row.get("clustering_provider"),
    )
    return serialize_action(add) + b"\n"


def _serialize(files: pa.Table, fields: Callable[[pa.RecordBatch], pa.StringArray]) -> bytes:
    return b"".join(
        _joined_text(fields(batch)) for batch in files.to_batches(max_chunksize=_BATCH_ROWS) if batch.num_rows
    )


def serialize_tombstones(files: pa.Table) -> bytes:
    """One `remove` line a row, each with its line break; columns of `file_columns.REMOVE_SCHEMA`, as they are."""
    return _serialize(files, lambda batch: _fields(batch, "remove", REMOVE_FIELDS))


def _add_fields(batch: pa.RecordBatch) -> pa.StringArray:
    return _fields(batch, "add", ADD_FIELDS, {"partition_values": "{}", "data_change": "true"})


def _remove_fields(batch: pa.RecordBatch, constant: str) -> pa.StringArray:
    return _fields(batch, "remove", [name for name in REMOVE_FIELDS if name not in _SAID_OF_REMOVES], constant=constant)


def _change_fields(batch: pa.RecordBatch) -> pa.StringArray:
    names = ("path", "partition_values", "size")
    return _fields(batch, "cdc", names, {"partition_values": "{}"}, end=',"dataChange":false')


def _fields(
    batch: pa.RecordBatch,
    action: str,
    names: Iterable[str],
    defaults: Mapping[str, str] = MappingProxyType({}),
    *,
    constant: str = "",
    end: str = "",
) -> pa.StringArray:
    """The lines of a batch.

    Args:
        names: The fields, in their order, `path` first.
        defaults: What stands for a value that is null. Other fields are left out where they are null.
        constant, end: Fields that are the same in all lines: behind `path`, and at the end.
    """
    path, *others = names
    optional = [_optional(batch, name, defaults.get(name)) for name in others]
    return _concatenate(
        _constant(f'{{"{action}":{{"path":'),
        quoted_texts(batch.column(path)),
        constant,
        *optional,
        _constant(f"{end}}}}}\n"),
    )


def _optional(batch: pa.RecordBatch, name: str, default: str | None) -> pa.Array | pa.Scalar | None:
    """`,"name":value`. Where there is no value, the default stands for it, or null for all of it."""
    column = _column(batch, name)
    label = f',"{_SPELLING[name]}":'
    if column is None:
        return None if default is None else _constant(label + default)
    text = _printed(column)
    if column.null_count:
        text = pc.if_else(pc.is_valid(column), text, _null_text() if default is None else _constant(default))
    return pc.binary_join_element_wise(_constant(label), text, _constant(""))


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    index = batch.schema.get_field_index(name)
    if index < 0:
        return None
    column = batch.column(index)
    return None if column.null_count == len(column) else column


def _printed(column: pa.Array) -> pa.Array:
    if pa.types.is_map(column.type):
        return _json_map(column)
    if pa.types.is_struct(column.type):
        names = [DELETION_VECTOR_FIELDS[field.name] for field in column.type]
        column = pa.StructArray.from_arrays(column.flatten(), names)
    return json_texts(column)


def _json_map(maps: pa.MapArray) -> pa.Array:
    """Maps of strings as JSON objects; a null map gives `{}`."""
    offsets = maps.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    # Keys and items are those of the whole parent of a slice; only the offsets know which are ours.
    entries = pc.binary_join_element_wise(
        quoted_texts(maps.keys.slice(first, last - first)),
        pc.coalesce(quoted_texts(maps.items.slice(first, last - first)), _constant("null")),
        _constant(":"),
    )
    lists = pa.ListArray.from_arrays(pc.subtract(offsets, offsets[0]), entries)
    return pc.binary_join_element_wise(
        _constant("{"), pc.binary_join(lists, _constant(",")), _constant("}"), _constant("")
    )


_SPELLING = {**ADD_FIELDS, **REMOVE_FIELDS}
_SAID_OF_REMOVES = ("deletion_timestamp", "data_change", "extended_file_metadata", "stats")


def _concatenate(*parts: pa.Array | pa.Scalar | None) -> pa.StringArray:
    present = [part for part in parts if part is not None]
    return pc.binary_join_element_wise(*present, _constant(""), null_handling="replace", null_replacement="")


@cache
def _constant(text: str) -> pa.StringScalar:
    return string_array([text])[0]


@cache
def _null_text() -> pa.StringScalar:
    return string_array([None])[0]


def _joined_text(lines: pa.StringArray) -> bytes:
    """All strings one after the other, none of them null: exactly the array's data buffer."""
    offsets = pa.Array.from_buffers(pa.int32(), len(lines) + 1, [None, lines.buffers()[1]], offset=lines.offset)
    start, end = offsets[0].as_py(), offsets[len(lines)].as_py()
    data: bytes = lines.buffers()[2].slice(start, end - start).to_pybytes()
    return data
