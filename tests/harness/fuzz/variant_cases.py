"""Damaged variants: one value, and shredded columns.

The plain reader of the tests, which reads value by value, must agree.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from delta_orch.errors import InvalidVariantError
from delta_orch.protocol.variant.encode import encode_variant, parse_json
from delta_orch.protocol.variant.extract import variant_get
from delta_orch.protocol.variant.reconstruct import reconstruct_variant
from delta_orch.protocol.variant.variant import Variant
from delta_orch.variant import variant_to_json, variant_to_python
from tests.harness.fuzz.byte_mutations import damage_bytes
from tests.harness.fuzz.categories import Category, note
from tests.harness.fuzz.hostile_values import NUMBERS, TEXTS, nested_json
from tests.harness.fuzz.input_cases import InputCase
from tests.harness.fuzz.table_case import FuzzFinding
from tests.harness.variant_reference import BadVariantError, decode, text_of

_PAIR = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
_OWN = (
    '{"a": 1, "b": [1, "x", null, {"c": 1.5}], "long name of a field": {"d": true}}', "7", "null", '"text"',
    '[[], {}, [{}], 12345678901234567890, 1e300, "' + "x" * 100 + '"]', '{"a": {"a": {"a": {"a": [0]}}}}',
)  # fmt: skip


def pair_case(pairs: list[tuple[bytes, bytes]], rng: Random) -> InputCase:
    """One metadata/value pair with damaged bytes."""
    metadata, value = rng.choice(pairs) if pairs and rng.random() < 0.5 else _own_pair(rng)
    if rng.random() < 0.25:
        metadata, value = _with_huge_count(metadata, value, rng)
    for _ in range(rng.choice([1, 1, 2, 4])):
        if rng.random() < 0.35:
            metadata = damage_bytes(metadata, rng)[0]
        else:
            value = damage_bytes(value, rng)[0]
    return InputCase((metadata, value), _read_pair)


def _with_huge_count(metadata: bytes, value: bytes, rng: Random) -> tuple[bytes, bytes]:
    """Another number of names in the dictionary, or of elements of an object or array with a count of four bytes."""
    note(rng, Category.HUGE_COUNTS)
    number = rng.choice([256, 1 << 16, (1 << 31) - 1, (1 << 32) - 1])
    match rng.randrange(3):
        case 0:
            return b"\xc1" + struct.pack("<I", number) + metadata[1:], value
        case 1:
            return metadata, bytes([0x1F | rng.choice([0, 1]) << 2]) + struct.pack("<I", number) + value[1:]
        case _:
            return metadata, bytes([0x7E]) + struct.pack("<I", number) + value[1:]


def _own_pair(rng: Random) -> tuple[bytes, bytes]:
    match rng.randrange(4):
        case 0:
            variant = parse_json(rng.choice(_OWN))
        case 1:
            # Deeper than Python's own recursion goes.
            note(rng, Category.DEEP_NESTING)
            return b"\x01\x00\x00", _deep_array(rng.choice([10, 499, 2000, 50_000]))
        case 2:
            variant = parse_json(nested_json(rng, rng.choice([50, 400]), rng.choice(["list", "object"])))
        case _:
            text, number = rng.choice(TEXTS), rng.choice(NUMBERS)
            inside = -(2**63) <= number < 2**63 if isinstance(number, int) else True
            variant = encode_variant({"t": "".join(c for c in text if c.isprintable()), "n": number if inside else 0})
    return variant.metadata, variant.value


def _deep_array(depth: int) -> bytes:
    """Arrays of one element inside each other, offsets of four bytes."""
    sizes = [1 + 10 * level for level in range(depth)]
    return b"".join(b"\x0f\x01" + struct.pack("<II", 0, size) for size in reversed(sizes)) + b"\x00"


def _read_pair(pair: tuple[bytes, bytes]) -> None:
    metadata, value = pair
    variant = Variant(metadata, value)
    column = pa.array([{"metadata": metadata, "value": value}], _PAIR)
    judged = _judged(metadata, value)
    ours = _outcome(lambda: variant_to_json(column)[0].as_py())
    if judged != ours:
        raise FuzzFinding(f"value by value: {judged!r:.300}\nas a column: {ours!r:.300}")
    for read in (
        lambda: variant.to_python(),
        lambda: variant.type_name,
        lambda: variant.get("$.a.b[0]"),
        lambda: variant_to_python(column),
        lambda: reconstruct_variant(column),
        lambda: variant_get(column, "$.a", pa.int64(), on_mismatch="null"),
        lambda: variant_get(column, "$.b[1]", pa.string(), on_mismatch="null"),
    ):
        _outcome(read)
    if ours is None:
        variant.to_json()


def _judged(metadata: bytes, value: bytes) -> str | None:
    try:
        return text_of(decode(metadata, value))
    except BadVariantError:
        return None


def shredded_case(files: list[bytes], rng: Random) -> InputCase:
    """A shredded column in which bytes, numbers and nulls changed."""
    column = pq.ParquetFile(io.BytesIO(rng.choice(files))).read(use_threads=False)["var"].combine_chunks()
    array = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    note(rng, Category.OTHER_CONTENT)
    for _ in range(rng.choice([1, 2, 4])):
        array = _damaged(array, rng)
    return InputCase(array, _read_shredded)


def _damaged(array: pa.Array, rng: Random) -> pa.Array:
    if pa.types.is_struct(array.type) and array.type.num_fields:
        index = rng.randrange(array.type.num_fields)
        names = [field.name for field in array.type]
        children = [array.field(i) for i in range(array.type.num_fields)]
        if rng.random() < 0.1 and len(children) > 1:
            del children[index], names[index]
        elif rng.random() < 0.1:
            names[index] = rng.choice(["value", "typed_value", "metadata", "x", ""])
        else:
            children[index] = _damaged(children[index], rng)
        return pa.StructArray.from_arrays(children, names, mask=array.is_null())
    values = array.to_pylist()
    if values:
        at = rng.randrange(len(values))
        if rng.random() < 0.3:
            values[at] = None
        elif isinstance(values[at], bytes) and not pa.types.is_fixed_size_binary(array.type):
            values[at] = damage_bytes(values[at], rng)[0]
        else:
            values[at] = rng.choice(values)
    return pa.array(values, array.type)


def _read_shredded(array: pa.Array) -> None:
    whole = reconstruct_variant(array)
    whole.validate(full=True)
    found = variant_to_json(array).to_pylist()
    wanted = [None if row is None else _judged(row["metadata"], row["value"]) for row in whole.to_pylist()]
    if found != wanted:
        raise FuzzFinding(f"as a column: {found!r:.300}\nvalue by value: {wanted!r:.300}")
    variant_get(array, "$.a", pa.string(), on_mismatch="null")


def _outcome(read: Callable[[], Any]) -> Any:
    """What reading gives; None where the variant is refused."""
    try:
        return read()
    except InvalidVariantError:
        return None
