"""Damage to what Parquet files hold, leaving the format intact: columns, types and values."""

from __future__ import annotations

import io
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.harness.fuzz.categories import Category, note
from tests.harness.fuzz.hostile_values import hostile_number
from tests.harness.fuzz.json_mutations import damage_json

_TYPES = (
    pa.string(), pa.int8(), pa.int64(), pa.float64(), pa.bool_(), pa.binary(), pa.timestamp("ns"), pa.decimal128(5, 2),
    pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int64()), pa.date32(), pa.uint64(),
    pa.dictionary(pa.int32(), pa.string()), pa.large_string(), pa.null(),
)  # fmt: skip


def damage_parquet(data: bytes, rng: Random) -> tuple[bytes, str]:
    """A Parquet file of other content; the same bytes where they are no Parquet file."""
    try:
        table = pq.ParquetFile(io.BytesIO(data)).read(use_threads=False)
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return data, "no Parquet file, left as it is"
    changed, what = _damage_table(table, rng)
    note(rng, Category.OTHER_CONTENT)
    sink = io.BytesIO()
    try:
        pq.write_table(
            changed,
            sink,
            row_group_size=max(rng.choice([1, 3, 1000]), changed.num_rows // 200),
            compression=rng.choice(["none", "snappy"]),
        )
    except (pa.ArrowException, OSError):
        return data, f"cannot be written: {what}"
    return sink.getvalue(), what


def damage_footer(data: bytes, rng: Random) -> tuple[bytes, str]:
    """A Parquet file whose footer, still well-formed, tells other numbers: of rows, values, bytes, columns, offsets."""
    length = int.from_bytes(data[-8:-4], "little")
    start = len(data) - 8 - length
    if data[-4:] != b"PAR1" or start < 4:
        return data, "no Parquet file, left as it is"
    footer = data[start:-8]
    # A field of Thrift's compact protocol: how far it is from the last one, and its type; numbers are varints.
    numbers = [at + 1 for at in range(len(footer) - 1) if footer[at] & 15 in (5, 6) and 0 < footer[at] >> 4 < 15]
    if not numbers:
        return data, "no numbers in the footer"
    at = rng.choice(numbers)
    end = at
    while end < len(footer) - 1 and footer[end] > 127:
        end += 1
    number = int(hostile_number(rng)) & (1 << 64) - 1
    changed = footer[:at] + _varint(number) + footer[end + 1 :]
    return data[:start] + changed + len(changed).to_bytes(4, "little") + b"PAR1", f"{number} at byte {at} of the footer"


def _varint(number: int) -> bytes:
    """As Thrift has signed numbers, zigzag already applied: odd ones are negative."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes((*found, number))


def _damage_table(table: pa.Table, rng: Random) -> tuple[pa.Table, str]:
    if not table.num_columns:
        return table, "no columns"
    at = rng.randrange(table.num_columns)
    name = table.column_names[at]
    match rng.randrange(9):
        case 0:
            return table.remove_column(at), f"column {name} gone"
        case 1:
            return table.set_column(at, name.upper(), table.column(at)), f"column {name} renamed"
        case 2:
            return table.append_column(name, table.column(at)), f"column {name} twice"
        case 3:
            chosen = rng.choice(_TYPES)
            return table.set_column(at, name, pa.nulls(table.num_rows, chosen)), f"column {name} nulls of {chosen}"
        case 4:
            return table.slice(0, rng.randrange(table.num_rows + 1)), "rows gone"
        case 5:
            return pa.concat_tables([table] * rng.choice([2, 3])), "rows repeated"
        case 6:
            return _retyped(table, at, rng)
        case _:
            return _other_values(table, at, rng)


def _other_values(table: pa.Table, at: int, rng: Random) -> tuple[pa.Table, str]:
    field = table.schema.field(at)
    values = _plain(table.column(at).to_pylist(maps_as_pydicts=None))
    values, what = damage_json(values, rng)
    try:
        return table.set_column(at, field.name, pa.array(values, field.type)), f"in {field.name}: {what}"
    except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError):
        pass
    try:
        return table.set_column(at, field.name, pa.array(values)), f"in {field.name}, type inferred: {what}"
    except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError):
        return table, f"impossible in {field.name}: {what}"


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _retyped(table: pa.Table, at: int, rng: Random) -> tuple[pa.Table, str]:
    """A leaf of a struct column in another type, or gone."""
    column, field = table.column(at).combine_chunks(), table.schema.field(at)
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, field.type)
    changed, what = _retyped_array(column, rng)
    return table.set_column(at, field.name, changed), f"{field.name}{what}"


def _retyped_array(array: pa.Array, rng: Random) -> tuple[pa.Array, str]:
    if pa.types.is_struct(array.type) and array.type.num_fields:
        index = rng.randrange(array.type.num_fields)
        names = [field.name for field in array.type]
        children = [array.field(i) for i in range(array.type.num_fields)]
        child, what = _retyped_array(children[index], rng)
        what = f".{names[index]}{what}"
        if rng.random() < 0.25 and len(children) > 1:
            del children[index], names[index]
            what += ", which is gone"
        else:
            children[index] = child
        return pa.StructArray.from_arrays(children, names, mask=array.is_null()), what
    chosen = rng.choice(_TYPES)
    try:
        return array.cast(chosen), f" as {chosen}"
    except (pa.ArrowException, ValueError):
        return pa.nulls(len(array), chosen), f" nulls of {chosen}"
