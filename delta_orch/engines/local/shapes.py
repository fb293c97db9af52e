"""Columns of shapes as Parquet files have them: WKB under the logical types GEOMETRY and GEOGRAPHY.

Everywhere else they are plain bytes (`GeoType`). Arrow's writer knows them by the extension type `geoarrow.wkb`, and
keeps the box around the shapes of a geometry in the footer. It writes the system EPSG:4326 as OGC:CRS84, its default;
readers of a table take the system from the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import product

import orjson
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.errors import SchemaMismatchError, UnsupportedError
from delta_orch.protocol.arrow_building import children_of, literal_array, with_children
from delta_orch.protocol.types import (
    BINARY,
    ArrayType,
    DataType,
    GeoType,
    MapType,
    StructType,
    holds_geo,
)

_HEADER_BYTES = 5


class _WkbType(pa.ExtensionType):  # type: ignore[misc]
    """Known by its name; it is not registered, so that whoever reads meets plain bytes."""

    def __init__(self, metadata: bytes) -> None:
        self._metadata = metadata
        super().__init__(pa.binary(), "geoarrow.wkb")

    def __arrow_ext_serialize__(self) -> bytes:
        return self._metadata


@cache
def _wkb_type(crs: str, algorithm: str) -> _WkbType:
    """One and the same object always: Arrow forgets one that only a nested type refers to."""
    return _WkbType(orjson.dumps({"crs": crs} | ({"edges": algorithm} if algorithm else {})))


def shape_types(schema: pa.Schema, logical: StructType) -> dict[int, pa.DataType]:
    """The types that make Arrow write columns with shapes as the log has them, by their places.

    Args:
        schema: Of the file, in which shapes are bytes.
        logical: The same columns as the table has them.

    Raises UnsupportedError for edges that Arrow writes no geography with.
    """
    return {
        place: _written_type(field.data_type, schema.field(place).type, field.name)
        for place, field in enumerate(logical)
        if holds_geo(field.data_type)
    }


def _written_type(data_type: DataType, plain: pa.DataType, path: str) -> pa.DataType:
    match data_type:
        case GeoType(_, crs, algorithm):
            if algorithm not in ("", "spherical"):
                raise UnsupportedError(
                    f"Column {path} of type {data_type} cannot be written",
                    cause=f"Arrow writes geographies with spherical edges, not with {algorithm} ones",
                    remedy="Write it with another client",
                    column=path,
                )
            return _wkb_type(crs, algorithm)
        case ArrayType(element):
            return pa.list_(_written_field(element, plain.value_field, path))
        case MapType(key, value):
            return pa.map_(_written_field(key, plain.key_field, path), _written_field(value, plain.item_field, path))
        case StructType(fields):
            return pa.struct([_written_field(f.data_type, own, path) for f, own in zip(fields, plain, strict=True)])
    return plain


def _written_field(data_type: DataType, plain: pa.Field, path: str) -> pa.Field:
    return plain.with_type(_written_type(data_type, plain.type, path))


def as_shapes(rows: pa.Table, types: Mapping[int, pa.DataType]) -> pa.Table:
    """Rows of a file with columns in the types of `shape_types`.

    Raises SchemaMismatchError: A value is no WKB.
    """
    for place, kind in types.items():
        field = rows.schema.field(place)
        chunks = [_typed(chunk, kind, field.name) for chunk in rows.column(place).chunks]
        rows = rows.set_column(place, field.with_type(kind), pa.chunked_array(chunks, kind))
    return rows


def schema_with_shapes(schema: pa.Schema, types: Mapping[int, pa.DataType]) -> pa.Schema:
    """The schema of the rows that `as_shapes` returns."""
    for place, kind in types.items():
        schema = schema.set(place, schema.field(place).with_type(kind))
    return schema


def _holds_shapes(kind: pa.DataType) -> bool:
    inner = (kind.field(index).type for index in range(kind.num_fields)) if pa.types.is_nested(kind) else ()
    return isinstance(kind, _WkbType) or any(map(_holds_shapes, inner))


def _typed(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    if isinstance(kind, _WkbType):
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        _ensure_wkb(array, path)
        return kind.wrap_array(array)
    if not _holds_shapes(kind):
        return array
    fields = [kind.key_field, kind.item_field] if pa.types.is_map(kind) else [*map(kind.field, range(kind.num_fields))]
    # `flatten` makes the fields of null structs null, whatever bytes there are.
    inside = array.flatten() if pa.types.is_struct(kind) else children_of(array)
    children = [_typed(child, own.type, path) for child, own in zip(inside, fields, strict=True)]
    return with_children(array, children, kind)


_HEADERS = [
    (b"\x01" + number.to_bytes(4, "little"), b"\x00" + number.to_bytes(4, "big"))
    for number in (shape + 1000 * axes for shape, axes in product(range(1, 8), range(4)))
]
"""How WKB begins: the order of bytes, and the number of the shape, more by thousands where points have Z, M or both
(ISO). PostGIS marks them otherwise, which no reader of tables takes."""


def _ensure_wkb(array: pa.BinaryArray, path: str) -> None:
    headers = literal_array([header for both in _HEADERS for header in both], BINARY)
    begins = pc.binary_slice(pc.drop_null(array), 0, _HEADER_BYTES)
    if pc.all(pc.is_in(begins, value_set=headers), min_count=0).as_py():
        return
    raise SchemaMismatchError(
        f"Column {path} has a value that is not WKB",
        cause="It does not begin as a point, line, polygon or collection of these in ISO WKB",
        remedy="Convert it, for example with shapely.to_wkb(…, flavor='iso') or ST_AsBinary(…)",
        column=path,
    )
