"""Values nobody should write into a log, by kind."""

from __future__ import annotations

import re
from random import Random
from typing import Any

from tests.harness.fuzz.categories import Category, note

_OUTSIDE = re.compile(r"\.\.|%2e|%252f|^/|^~|^[a-z0-9]+:", re.IGNORECASE)

NUMBERS: tuple[int | float, ...] = (
    0, -1, 1, 2, 7, 127, 255, 1 << 15, 1 << 16, (1 << 31) - 1, 1 << 31, -(1 << 31), (1 << 32) - 1, 1 << 32,
    (1 << 53) + 1, (1 << 62), (1 << 63) - 1, 1 << 63, -(1 << 63), -(1 << 63) - 1, (1 << 64) - 1, 1 << 64, 10**30,
    0.5, -0.0, 1e300, 1e-300, 253402300800000, 8640000000000001,
)  # fmt: skip

NUMBER_TEXTS = (
    "-1", "1e400", "-1e400", "NaN", "-Infinity", "Infinity", "9" * 400, "0." + "0" * 400 + "1", "1e999999999",
    "1e-999999999", "0x10", "１２", "1_000", " 1", "1 ", "--1", "+1", "1.", ".1", "9223372036854775808",
    "-9223372036854775809", "99999999999999999999999999999999999999", "true", "True", "null",
)  # fmt: skip

DATE_TEXTS = (
    "0000-00-00", "0001-01-01", "9999-12-31 23:59:59.999999", "9999-12-31T23:59:59.999999-18:00", "99999-01-01",
    "294247-01-10 04:00:54.775807", "-0001-01-01", "2020-02-30", "2020-13-01", "1582-10-10", "2020-01-01 24:00:00",
    "2020-01-01T00:00:00.123456789Z", "2020-01-01 00:00:00+99:99", "0001-01-01 00:00:00+18:00", "２０２０-01-01",
    "2020-01-01 00:00:60",
)  # fmt: skip

TEXTS = (
    "", " ", "\0", "a\0b", "\ufeff", "\ud7ff", "é", "e\u0301", "日本", "💥",
    "a" * 100_000, "%", "%%", "%00", "%2", "%zz",
    "`", "``", "a.b", "`a.b`", '"', "'", "\\", "\\u0000", "{}", "[]", "null", "col-1", "A", "_change_type",
    "__HIVE_DEFAULT_PARTITION__", "\n", "\r\n", "\u2028",
)  # fmt: skip

PATHS = (
    "../outside.parquet", "a/../../outside.parquet", "%2e%2e/outside.parquet", "..%2Foutside.parquet",
    "..%252Foutside.parquet", "a/%2E%2E/%2e%2e/outside.parquet", "./../outside.parquet", "..", ".", "/", "//", "",
    "../../../../../../../../etc/passwd", "/etc/passwd", "/dev/zero", "/proc/self/mem", "file:///etc/passwd",
    "file:/etc/passwd", "file:etc/passwd", "file:../outside.parquet", "file:..%2foutside.parquet",
    "file:///../etc/passwd", "FILE:///etc/passwd", "file://otherhost/etc/passwd", "s3://bucket/key", "s3a://b/k",
    "hdfs://h/x", "http://127.0.0.1:1/x", "memory://x/y", "x:", "x:y", "C:\\x", "a\0b", "%00", "a%00b", "a%",
    "%F0%28%8C%28", "%ff%fe", "..\\outside.parquet", "...", "....//outside.parquet", "_delta_log/../../outside.parquet",
    "_delta_log", "_delta_log/00000000000000000000.json", "a" * 5000, "a/" * 3000, "~/.ssh/x", "$HOME/x", "?", "#",
    "part?x=1", "part#x",
)  # fmt: skip

TYPES: tuple[Any, ...] = (
    "decimal(38,38)", "decimal(39,0)", "decimal(0,0)", "decimal(99999999999999999999,1)", "decimal(10,-2)",
    "decimal(5,7)", "decimal", "decimal(１,0)", "void", "null", "variant", "timestamp_ntz", "interval day to second",
    "geometry", "string collate UTF8_LCASE", "varchar(0)", "char(99999999999999)", "binary", "object", "", " string",
    "STRING", "struct", "array", "map", 7, None, True, [], {}, ["string"], {"type": "udt"},
    {"type": "udt", "sqlType": "long"}, {"type": "array"}, {"type": "struct", "fields": 3},
    {"type": "struct", "fields": [None]}, {"type": "struct", "fields": []}, {"type": {"type": {"type": "long"}}},
    {"type": "map", "keyType": "string"}, {"type": "map", "keyType": {"type": "struct", "fields": []},
    "valueType": "long"}, {"type": "array", "elementType": "void", "containsNull": "x"},
)  # fmt: skip

PROPERTIES: tuple[tuple[str, Any], ...] = (
    ("delta.columnMapping.mode", "name"), ("delta.columnMapping.mode", "id"), ("delta.columnMapping.mode", "x"),
    ("delta.checkpointInterval", "0"), ("delta.checkpointInterval", "-5"), ("delta.checkpointInterval", "9" * 50),
    ("delta.logRetentionDuration", "interval 9999999999999 weeks"), ("delta.logRetentionDuration", "x"),
    ("delta.setTransactionRetentionDuration", "interval 1 month"), ("delta.enableInCommitTimestamps", "true"),
    ("delta.setTransactionRetentionDuration", "interval 0 seconds"), ("delta.enableChangeDataFeed", "true"),
    ("delta.inCommitTimestampEnablementVersion", "99"), ("delta.inCommitTimestampEnablementTimestamp", "-1"),
    ("delta.inCommitTimestampEnablementVersion", "x"), ("delta.dataSkippingNumIndexedCols", "99999999999999999999"),
    ("delta.dataSkippingStatsColumns", "a,`b"), ("delta.appendOnly", "perhaps"), ("delta.enableRowTracking", "true"),
    ("delta.enableDeletionVectors", 7), ("delta.columnMapping.maxColumnId", "-3"), ("delta.targetFileSize", "1 zb"),
    ("delta.isolationLevel", "None"), ("delta.feature.nonsense", "supported"), ("delta.randomPrefix", None),
    ("delta.rowTracking.materializedRowIdColumnName", "id"), ("delta.universalFormat.enabledFormats", "iceberg"),
)  # fmt: skip


def hostile_path(rng: Random) -> str:
    """A path that no file of a table has; most lead out of it."""
    path = rng.choice(PATHS)
    if _OUTSIDE.search(path):
        note(rng, Category.OUTSIDE_PATHS)
    return path


def hostile_number(rng: Random) -> int | float:
    """A number at the edge of some width, or beyond all of them."""
    number = rng.choice(NUMBERS)
    note(rng, Category.HUGE_COUNTS if number >= 1 << 31 else Category.SIZES_AND_OFFSETS)
    return number


def choose(rng: Random, *options: Any) -> Any:
    """One of the options; one that is a function makes a value of the randomness once it is chosen."""
    chosen = rng.choice(options)
    return chosen(rng) if callable(chosen) else chosen


def nested_json(rng: Random, depth: int, kind: str) -> str:
    """JSON text of that many brackets inside each other."""
    note(rng, Category.DEEP_NESTING)
    opening, closing = {"list": ("[", "]"), "object": ('{"a":', "}")}[kind]
    return opening * depth + "1" + closing * depth


def nested_value(rng: Random) -> Any:
    """A value some levels deep; as deep as serialisers of JSON go."""
    note(rng, Category.DEEP_NESTING)
    value: Any = rng.choice([1, "x", None])
    for _ in range(rng.choice([3, 60, 200])):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def nested_type(rng: Random) -> Any:
    """A column type some levels deep."""
    note(rng, Category.DEEP_NESTING)
    value: Any = "long"
    for _ in range(rng.choice([3, 30, 120, 230])):
        match rng.randrange(3):
            case 0:
                value = {"type": "array", "elementType": value, "containsNull": True}
            case 1:
                value = {"type": "map", "keyType": "string", "valueType": value, "valueContainsNull": True}
            case _:
                field = {"name": "f", "type": value, "nullable": True, "metadata": {}}
                value = {"type": "struct", "fields": [field]}
    return value


def hostile_value(rng: Random) -> Any:
    """Any value that JSON has, of no particular type."""
    match rng.randrange(9):
        case 0 | 1:
            return rng.choice(NUMBERS)
        case 2:
            return rng.choice(TEXTS)
        case 3:
            return rng.choice(NUMBER_TEXTS)
        case 4:
            return hostile_path(rng)
        case 5:
            return rng.choice([None, True, False])
        case 6:
            return rng.choice([[], {}, [[]], [None], {"": None}, {"a": {}}, [1, "x"]])
        case 7:
            return rng.choice(DATE_TEXTS)
        case _:
            return nested_value(rng)
