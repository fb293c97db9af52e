"""File actions (`add`, `remove`, `cdc`) from parsed JSON to Arrow columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import orjson
import pyarrow as pa

from delta_orch.log.files.arrow_building import (
    bool_array,
    int32_array,
    int64_array,
    string_array,
    string_map_array,
    struct_array,
    validity_bitmap,
)
from delta_orch.log.files.file_columns import ADD_SCHEMA, CDC_SCHEMA, DELETION_VECTOR_TYPE, REMOVE_SCHEMA, STRING_MAP
from delta_orch.protocol.action_json import ADD_FIELDS, CDC_FIELDS, REMOVE_FIELDS, parse_deletion_vector
from delta_orch.protocol.actions import JsonValue

SCHEMAS: Mapping[str, pa.Schema] = {"add": ADD_SCHEMA, "remove": REMOVE_SCHEMA, "cdc": CDC_SCHEMA}
_FIELDS: Mapping[str, Mapping[str, str]] = {"add": ADD_FIELDS, "remove": REMOVE_FIELDS, "cdc": CDC_FIELDS}
_REQUIRED = {"add": ("path", "size"), "remove": ("path",), "cdc": ("path",)}
_DEFAULTS: Mapping[tuple[str, str], JsonValue] = {
    ("add", "partition_values"): {},
    ("add", "data_change"): True,
    ("add", "modification_time"): 0,
    ("remove", "data_change"): True,
    ("cdc", "data_change"): False,
    ("cdc", "partition_values"): {},
}


def build_batch(action: str, bodies: Sequence[JsonValue]) -> pa.RecordBatch:
    """The bodies of one kind of file action (`add`, `remove`, `cdc`) as columns of `SCHEMAS[action]`.

    Raises:
        TypeError, ValueError, AttributeError, KeyError, OverflowError: A body is malformed.
    """
    schema, fields = SCHEMAS[action], _FIELDS[action]
    columns = {name: [body.get(key) for body in bodies] for name, key in fields.items()}
    for name in _REQUIRED[action]:
        if None in columns[name]:
            raise ValueError(f"{fields[name]} is missing")
    vectors = columns.pop("deletion_vector", None)
    arrays: dict[str, pa.Array] = {} if vectors is None else _vector_columns(vectors)
    for name, values in columns.items():
        if (default := _DEFAULTS.get((action, name))) is not None and None in values:
            values = [default if v is None else v for v in values]
        arrays[name] = _column(schema.field(name).type, values)
    return pa.RecordBatch.from_arrays([arrays[n] for n in schema.names], schema=schema)


def _column(data_type: pa.DataType, values: Sequence[JsonValue]) -> pa.Array:
    if values.count(None) == len(values):
        return pa.nulls(len(values), data_type)
    return _BUILDERS[data_type](values)


def _vector_columns(values: Sequence[JsonValue]) -> dict[str, pa.Array]:
    n = len(values)
    if values.count(None) == n:
        return {"deletion_vector": pa.nulls(n, DELETION_VECTOR_TYPE), "dv_id": pa.nulls(n, pa.string())}
    vectors = [parse_deletion_vector(v) for v in values]
    children = [
        string_array([v.storage_type if v else None for v in vectors]),
        string_array([v.path_or_inline_dv if v else None for v in vectors]),
        int32_array([v.offset if v else None for v in vectors]),
        int32_array([v.size_in_bytes if v else None for v in vectors]),
        int64_array([v.cardinality if v else None for v in vectors]),
    ]
    return {
        "deletion_vector": struct_array(DELETION_VECTOR_TYPE, children, validity_bitmap(vectors)),
        "dv_id": string_array([v.unique_id if v else None for v in vectors]),
    }


def _strings(values: Sequence[JsonValue]) -> pa.Array:
    try:
        return string_array(values)
    except AttributeError:
        # Statistics written as an object instead of a string are understood all the same.
        return string_array([orjson.dumps(v).decode() if isinstance(v, (dict, list)) else v for v in values])


def _integers(values: Sequence[JsonValue]) -> pa.Array:
    try:
        return int64_array(values)
    except TypeError:
        return int64_array([None if v is None else _integer(v) for v in values])


def _integer(value: JsonValue) -> int:
    if isinstance(value, (int, str)) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    raise TypeError(f"expected an integer, found {value!r}")


def _maps(values: Sequence[JsonValue]) -> pa.Array:
    try:
        return string_map_array(values)
    except AttributeError:
        return string_map_array([v and {k: _text(item) for k, item in v.items()} for v in values])


def _text(value: JsonValue) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (bool, int, float)):
        return orjson.dumps(value).decode()
    raise TypeError(f"expected a string, found {value!r}")


_BUILDERS: Mapping[pa.DataType, Callable[[Sequence[JsonValue]], pa.Array]] = {
    pa.string(): _strings,
    pa.int64(): _integers,
    pa.bool_(): bool_array,
    STRING_MAP: _maps,
}
