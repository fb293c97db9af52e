"""File actions (`add`, `remove`, `cdc`) from parsed JSON to Arrow columns."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa

from delta_orch.errors import DeltaError, ProtocolViolationError
from delta_orch.log.files.arrow_building import (
    bool_array,
    int32_array,
    int64_array,
    string_array,
    string_map_array,
    struct_array,
    validity_bitmap,
)
from delta_orch.log.files.file_columns import DELETION_VECTOR_TYPE, STRING_MAP
from delta_orch.protocol.action_json import parse_deletion_vector

_FLUSH_ROWS = 1_000
_REQUIRED = {"add": ("path", "size"), "remove": ("path",), "cdc": ("path",)}
_DEFAULTS: Mapping[tuple[str, str], Any] = {
    ("add", "partition_values"): {},
    ("add", "data_change"): True,
    ("add", "modification_time"): 0,
    ("remove", "data_change"): True,
    ("cdc", "data_change"): False,
    ("cdc", "partition_values"): {},
}
_MALFORMED = (TypeError, ValueError, AttributeError, KeyError, OverflowError)


class FileActionBuilder:
    """Gathers the bodies of one kind of file action and turns them into a table, some thousand rows at a time.

    Args:
        action: `add`, `remove` or `cdc`.
        schema: The columns of the table, of `file_columns`.
        fields: For each column but `dv_id`, its name in JSON.
    """

    def __init__(self, action: str, schema: pa.Schema, fields: Mapping[str, str]) -> None:
        self._action = action
        self._schema = schema
        self._fields = fields
        self._bodies: list[Mapping[str, Any]] = []
        self._paths: list[str] = []
        self._orders = array("q")
        self._batches: list[pa.RecordBatch] = []

    def append(self, body: Any, order: int, path: str) -> None:
        """Add one action.

        Raises:
            ProtocolViolationError: This or an earlier action is malformed; the error names the log file.
        """
        self._bodies.append(body)
        self._paths.append(path)
        self._orders.append(order)
        if len(self._bodies) >= _FLUSH_ROWS:
            self._flush()

    def finish(self) -> tuple[pa.Table, pa.ChunkedArray]:
        """The table, and the order of each row. Raises as `append`."""
        if self._bodies:
            self._flush()
        orders = pa.Array.from_buffers(pa.int64(), len(self._orders), [None, pa.py_buffer(self._orders)])
        return pa.Table.from_batches(self._batches, self._schema), pa.chunked_array([orders])

    def _flush(self) -> None:
        try:
            self._batches.append(self._build(self._bodies))
        except _MALFORMED:
            self._raise_first_malformed()
            raise
        self._bodies, self._paths = [], []

    def _raise_first_malformed(self) -> None:
        for body, path in zip(self._bodies, self._paths, strict=True):
            try:
                self._build([body])
            except _MALFORMED as e:
                raise self._malformed(path, e) from None

    def _malformed(self, path: str, e: Exception) -> DeltaError:
        name = path.rpartition("/")[2]
        return ProtocolViolationError(
            f"Log file {name} holds a malformed {self._action} action",
            cause=f"{type(e).__name__}: {e}",
            remedy="Restore the file from a backup, or read a version before it",
            path=path,
            action=self._action,
        )

    def _build(self, bodies: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        columns = {name: [body.get(key) for body in bodies] for name, key in self._fields.items()}
        for name in _REQUIRED[self._action]:
            if None in columns[name]:
                raise ValueError(f"{self._fields[name]} is missing")
        vectors = columns.pop("deletion_vector", None)
        arrays: dict[str, pa.Array] = {} if vectors is None else _vector_columns(vectors)
        for name, values in columns.items():
            if (default := _DEFAULTS.get((self._action, name))) is not None and None in values:
                values = [default if v is None else v for v in values]
            arrays[name] = _column(self._schema.field(name).type, values)
        return pa.RecordBatch.from_arrays([arrays[n] for n in self._schema.names], schema=self._schema)


def _column(data_type: pa.DataType, values: Sequence[Any]) -> pa.Array:
    if values.count(None) == len(values):
        return pa.nulls(len(values), data_type)
    return _BUILDERS[data_type](values)


def _vector_columns(values: Sequence[Any]) -> dict[str, pa.Array]:
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


def _strings(values: Sequence[Any]) -> pa.Array:
    try:
        return string_array(values)
    except AttributeError:
        # Statistics written as an object instead of a string are understood all the same.
        return string_array([orjson.dumps(v).decode() if isinstance(v, (dict, list)) else v for v in values])


def _integers(values: Sequence[Any]) -> pa.Array:
    try:
        return int64_array(values)
    except TypeError:
        return int64_array([None if v is None else _integer(v) for v in values])


def _integer(value: Any) -> int:
    if isinstance(value, (int, str)) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    raise TypeError(f"expected an integer, found {value!r}")


def _maps(values: Sequence[Any]) -> pa.Array:
    try:
        return string_map_array(values)
    except AttributeError:
        return string_map_array([v and {k: _text(item) for k, item in v.items()} for v in values])


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (bool, int, float)):
        return orjson.dumps(value).decode()
    raise TypeError(f"expected a string, found {value!r}")


_BUILDERS: Mapping[pa.DataType, Callable[[Sequence[Any]], pa.Array]] = {
    pa.string(): _strings,
    pa.int64(): _integers,
    pa.bool_(): bool_array,
    STRING_MAP: _maps,
}
