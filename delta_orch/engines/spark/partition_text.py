"""Partition values on their way through directory names, and exactly back.

Spark's writer tells values apart by directory only. Written naively, null, the empty string and the string
`__HIVE_DEFAULT_PARTITION__` are one directory, and a JVM in a POSIX locale turns every `é` into `?`. So the writer is
handed texts that are ASCII and can be undone without loss; what they mean is put into the log, never parsed by readers.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from delta_orch.expressions.spark_literals import quote_string
from delta_orch.protocol.partition_values import HIVE_NULL, parse_partition_value, serialize_partition_value
from delta_orch.protocol.types import BINARY, STRING, TIMESTAMP, DataType

_HEX_MARK = "utf8-hex-"
_HIVE_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def partition_text_sql(value: str, data_type: DataType, *, is_time_zone_pinned: bool) -> str:
    """SQL for the text that stands for a value; null stays null."""
    if data_type == BINARY:
        return f"hex({value})"
    if data_type == TIMESTAMP and not is_time_zone_pinned:
        return f"CAST(unix_micros({value}) AS STRING)"
    if data_type != STRING:
        return f"CAST({value} AS STRING)"
    is_plain = (
        f"octet_length({value}) = length({value}) AND NOT startswith({value}, {quote_string(HIVE_NULL)}) "
        f"AND NOT startswith({value}, {quote_string(_HEX_MARK)})"
    )
    return f"CASE WHEN {is_plain} THEN {value} ELSE concat({quote_string(_HEX_MARK)}, hex({value})) END"


def parse_partition_directory(
    directory: str, data_types: list[DataType], *, is_time_zone_pinned: bool
) -> list[str | None]:
    """The log's partition values of `a=1/b=x`, one a partition column, in order."""
    segments = directory.split("/")[-len(data_types) :] if data_types else []
    values = []
    for segment, data_type in zip(segments, data_types, strict=True):
        _, _, escaped = segment.partition("=")
        text = None if escaped == HIVE_NULL else _HIVE_ESCAPE.sub(lambda m: chr(int(m[1], 16)), escaped)
        values.append(serialize_partition_value(_value(text, data_type, is_time_zone_pinned), data_type))
    return values


def _value(text: str | None, data_type: DataType, is_time_zone_pinned: bool) -> Any:
    if text is None:
        return None
    if data_type == BINARY:
        return bytes.fromhex(text)
    if data_type == TIMESTAMP and not is_time_zone_pinned:
        return _EPOCH + timedelta(microseconds=int(text))
    if data_type == STRING and text.startswith(_HEX_MARK):
        return bytes.fromhex(text.removeprefix(_HEX_MARK)).decode()
    return parse_partition_value(text, data_type)
