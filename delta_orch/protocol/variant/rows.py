"""Variants of a column one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from delta_orch.protocol.variant.byte_columns import ByteColumn, offsets_of
from delta_orch.protocol.variant.decode import decode_value
from delta_orch.protocol.variant.dictionaries import Names
from delta_orch.protocol.variant.json_text import to_json
from delta_orch.protocol.variant.navigate import Located

_BLOCK_ROWS = 4096


def decoded(located: Located, names: Names) -> Iterator[Any]:
    """The values, decoded one after the other.

    Raises:
        InvalidVariantError: One is damaged.
    """
    codes = names.codes[located.rows]
    for first in range(0, len(codes), _BLOCK_ROWS):
        block = slice(first, first + _BLOCK_ROWS)
        starts, ends = located.starts[block].tolist(), located.ends[block].tolist()
        for start, end, code in zip(starts, ends, codes[block].tolist(), strict=True):
            yield decode_value(located.data[start:end].tobytes(), names.reader(code))


def text_array(located: Located, names: Names) -> pa.LargeStringArray:
    """The canonical JSON text of each value, without the quotes of dates, binaries and the like."""
    texts = (to_json(value) for value in decoded(located, names))
    column = byte_strings((text[1:-1] if text.startswith('"') else text).encode() for text in texts)
    return pa.LargeStringArray.from_buffers(len(column), pa.py_buffer(column.offsets), pa.py_buffer(column.data))


def byte_strings(strings: Iterable[bytes]) -> ByteColumn:
    """A column of Python's byte strings."""
    listed = list(strings)
    offsets = offsets_of(np.fromiter(map(len, listed), np.int64, len(listed)))
    return ByteColumn(offsets, np.frombuffer(b"".join(listed), np.uint8))
