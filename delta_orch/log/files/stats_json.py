"""Statistics between the JSON of `stats` and columns, all rows at once (PROTOCOL, "Per-file Statistics")."""

from __future__ import annotations

from collections.abc import Callable

import orjson
import pyarrow as pa
import pyarrow.types as pt

import delta_orch.arrow_compute as pc
from delta_orch.protocol.arrow_building import int32_array, string_array

_NEEDS_ESCAPE = r'["\\\x00-\x1f]'
_CONTROL = r"[\x00-\x1f]"
_SMALLEST_BLOCK_BYTES = 1 << 20


def read_stats_json(stats: pa.StringArray, schema: pa.Schema) -> pa.Table:
    """The fields of a schema, one row a text, by Arrow's JSON reader. All are null for a null text.

    Raises:
        pa.ArrowInvalid: A text is not one object, or a value is not of its type.
    """
    import pyarrow.json as pj

    # Between the tokens of JSON a line break is a space, and inside a string there is none.
    text = pc.ascii_trim_whitespace(pc.replace_substring(pc.coalesce(stats, "{}"), "\n", " "))
    # The reader goes by objects, not by lines: each line must be one.
    if not pc.all(pc.and_(pc.starts_with(text, "{"), pc.ends_with(text, "}"))).as_py():
        raise pa.ArrowInvalid("a line is not an object")
    longest = pc.max(pc.binary_length(text)).as_py() or 0
    lines = pc.binary_join(pa.ListArray.from_arrays(int32_array([0, len(text)]), text), "\n")
    table = pj.read_json(
        pa.BufferReader(lines[0].as_buffer()),
        read_options=pj.ReadOptions(block_size=max(_SMALLEST_BLOCK_BYTES, 2 * longest + 2)),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    if table.num_rows != len(stats):
        raise pa.ArrowInvalid("a line is more than one object")
    return table.combine_chunks()


def stats_to_json(stats: pa.ChunkedArray) -> pa.ChunkedArray:
    """JSON objects of a struct column: fields that are null are left out, a null struct gives null.

    Timestamps are written in UTC with microseconds, dates as ISO 8601, decimals as numbers.
    """
    return pa.chunked_array([json_texts(chunk) for chunk in stats.chunks], pa.string())


def json_texts(values: pa.Array) -> pa.Array:
    """The JSON text of each value, as of `stats_to_json`; null stays null."""
    if pt.is_struct(values.type):
        return _struct_json(values)
    for applies, convert in _CONVERTERS:
        if applies(values.type):
            return convert(values)
    # Binary, arrays, maps: the protocol knows no minimum or maximum of them.
    return pa.nulls(len(values), pa.string())


def _struct_json(values: pa.StructArray) -> pa.Array:
    members = []
    # Reading field by field would cost the width of the struct for each field.
    for field, child_values in zip(values.type, values.flatten(), strict=True):
        name = orjson.dumps(field.name).decode()
        child = json_texts(child_values)
        # Null where the child is null, so that the join below leaves the member out.
        members.append(pc.binary_join_element_wise(f",{name}:", child, ""))
    # The braces take part in the join: a row without any value would vanish from it.
    objects = pc.binary_join_element_wise("{", *members, "}", "", null_handling="skip")
    if not members:
        objects = string_array(["{}"] * len(values))
    objects = pc.replace_substring(objects, "{,", "{", max_replacements=1)
    return pc.if_else(pc.is_valid(values), objects, pa.nulls(len(values), pa.string()))


def _string_json(values: pa.Array) -> pa.Array:
    return quoted_texts(values if values.type == pa.string() else pc.cast(values, pa.string()))


def quoted_texts(texts: pa.Array) -> pa.Array:
    """Strings as strings of JSON; null stays null."""
    if pc.any(pc.match_substring_regex(texts, pattern=_NEEDS_ESCAPE)).as_py():
        if pc.any(pc.match_substring_regex(texts, pattern=_CONTROL)).as_py():
            # Rare: one by one.
            return string_array([None if t is None else orjson.dumps(t).decode() for t in texts.to_pylist()])
        texts = pc.replace_substring(texts, pattern="\\", replacement="\\\\")
        texts = pc.replace_substring(texts, pattern='"', replacement='\\"')
    return _quoted(texts)


def _float_json(values: pa.Array) -> pa.Array:
    text = pc.cast(values, pa.string())
    # JSON has no words for them; Spark reads and writes the strings "NaN", "Infinity", "-Infinity".
    named = pc.replace_substring(_quoted(text), "inf", "Infinity")
    named = pc.replace_substring(named, "nan", "NaN")
    return pc.if_else(pc.is_finite(values), text, named)


def _timestamp_json(values: pa.Array) -> pa.Array:
    zoned = values.type.tz is not None
    plain = pc.cast(pc.cast(values, pa.timestamp("us", values.type.tz), safe=False), pa.timestamp("us"))
    text = pc.replace_substring(pc.cast(plain, pa.string()), " ", "T")
    return pc.binary_join_element_wise('"', text, 'Z"' if zoned else '"', "")


def _quoted(text: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', text, '"', "")


def _plain(values: pa.Array) -> pa.Array:
    return pc.cast(values, pa.string())


def _is_string(t: pa.DataType) -> bool:
    return bool(pt.is_string(t) or pt.is_large_string(t) or pt.is_string_view(t))


_CONVERTERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]], ...] = (
    (_is_string, _string_json),
    (pt.is_integer, _plain),
    (pt.is_boolean, _plain),
    (pt.is_floating, _float_json),
    (pt.is_decimal, _plain),
    (pt.is_timestamp, _timestamp_json),
    (pt.is_date, lambda values: _quoted(pc.cast(values, pa.string()))),
)
