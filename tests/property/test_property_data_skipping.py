"""No file with a matching row is ever skipped, whatever the predicate and however its statistics were written."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_orch.expressions.nodes import (
    And,
    Column,
    Comparison,
    Expression,
    In,
    IsNull,
    Literal,
    Not,
    Opaque,
    Or,
    StartsWith,
)
from delta_orch.log.read.skipping import file_statistics
from delta_orch.log.read.skipping.data_skipping import match_files
from delta_orch.protocol.arrow_building import string_array, string_map_array
from delta_orch.protocol.partition_values import serialize_partition_value
from delta_orch.protocol.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    INTEGER,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    DecimalType,
    StructField,
    StructType,
)

EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
LONG_TEXT = "x" * 31
VALUES: dict[DataType, st.SearchStrategy[Any]] = {
    LONG: st.integers(-3, 3) | st.sampled_from([-(1 << 63), (1 << 63) - 1]),
    INTEGER: st.integers(-3, 3),
    DOUBLE: st.sampled_from([-1.5, -0.0, 0.0, 1.0, 2.5, math.inf, -math.inf, math.nan, 1e300]),
    STRING: st.sampled_from(
        ["", "a", "ab", "b", 'q"\\\n', "ü", "\U0001f600"] + [LONG_TEXT + end for end in ("ab", "aa", "b", "")]
    ),
    BOOLEAN: st.booleans(),
    DATE: st.integers(-2, 2).map(lambda d: date(1970, 1, 1) + timedelta(days=d)),
    TIMESTAMP: st.sampled_from([0, 1, 999, 1000, 1001, 5_000_000]).map(lambda us: EPOCH + timedelta(microseconds=us)),
    TIMESTAMP_NTZ: st.sampled_from([0, 1, 999, 1000]).map(
        lambda us: (EPOCH + timedelta(microseconds=us)).replace(tzinfo=None)
    ),
    DecimalType(5, 2): st.sampled_from(["0", "1.25", "-3.5", "999.99"]).map(Decimal),
    DecimalType(38, 10): st.sampled_from(
        ["0.1", "1234567890123456789012.1234567891", "1234567890123456789012.1234567890", "-7"]
    ).map(Decimal),
}  # fmt: skip
PARTITION_TYPES = (INTEGER, STRING, DOUBLE, DATE, TIMESTAMP, BOOLEAN, DecimalType(5, 2))
DATA_TYPES = (LONG, DOUBLE, STRING, BOOLEAN, DATE, TIMESTAMP, TIMESTAMP_NTZ, DecimalType(5, 2), DecimalType(38, 10))
SCHEMA = StructType(
    (
        *(StructField(f"p{n}", t) for n, t in enumerate(PARTITION_TYPES)),
        *(StructField(f"c{n}", t) for n, t in enumerate(DATA_TYPES)),
        StructField("nested", StructType((StructField("y", LONG), StructField("z.z", STRING)))),
    )
)
PARTITION_COLUMNS = tuple(f"p{n}" for n in range(len(PARTITION_TYPES)))
PATHS: dict[tuple[str, ...], DataType] = {
    **{(f"p{n}",): t for n, t in enumerate(PARTITION_TYPES)},
    **{(f"c{n}",): t for n, t in enumerate(DATA_TYPES)},
    ("nested", "y"): LONG,
    ("nested", "z.z"): STRING,
}
DATA_PATHS = [path for path in PATHS if path[0] not in PARTITION_COLUMNS]
Row = dict[tuple[str, ...], Any]


def _partition_value(data_type: DataType) -> st.SearchStrategy[Any]:
    # The empty string is null as a partition value.
    return st.none() | VALUES[data_type].filter(lambda v: v != "")


ROWS = st.lists(st.fixed_dictionaries({path: st.none() | VALUES[PATHS[path]] for path in DATA_PATHS}), max_size=4)
FILES = st.tuples(
    st.fixed_dictionaries({path: _partition_value(t) for path, t in PATHS.items() if path[0] in PARTITION_COLUMNS}),
    ROWS,
    st.sampled_from(["full", "full", "full", "cut", "NaN as text", "doubles", "some missing", "none", "broken", "odd"]),
)


def _leaf(path: tuple[str, ...]) -> st.SearchStrategy[Expression]:
    data_type, column = PATHS[path], Column(path)
    literal = VALUES[data_type].map(lambda v: Literal(v, data_type))
    listed = st.lists(literal | st.just(Literal(None, data_type)), min_size=1, max_size=4)
    choices = [
        st.builds(Comparison, st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "<=>"]), st.just(column), literal),
        listed.map(lambda values: In(column, tuple(values))),
        st.just(IsNull(column)),
    ]
    if data_type == STRING:
        choices.append(st.sampled_from(["", "a", "x", LONG_TEXT + "a", "ü"]).map(lambda p: StartsWith(column, p)))
    return st.one_of(choices)


CONSTANTS = st.sampled_from([Literal(True, BOOLEAN), Literal(False, BOOLEAN), Literal(None, BOOLEAN)])


def _predicates(leaves: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    def combined(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
        some = st.lists(inner, min_size=1, max_size=3).map(tuple)
        return st.one_of(
            some.map(And),
            some.map(Or),
            inner.map(Not),
            inner.filter(lambda e: not isinstance(e, Literal)).map(IsNull),
            st.builds(
                Comparison,
                st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "<=>"]),
                inner.filter(lambda e: not isinstance(e, Literal)),
                CONSTANTS,
            ),
        )

    return st.recursive(leaves | CONSTANTS, combined, max_leaves=6)


ALL_PREDICATES = _predicates(st.sampled_from(list(PATHS)).flatmap(_leaf))
PARTITION_PREDICATES = _predicates(st.sampled_from([p for p in PATHS if p[0] in PARTITION_COLUMNS]).flatmap(_leaf))


# Evaluation, the obvious way


def _order(value: Any) -> Any:
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value + 0.0)
    return value.encode() if isinstance(value, str) else value


def _compare(op: str, a: Any, b: Any) -> bool | None:
    if op == "<=>":
        return (a is None and b is None) or (a is not None and b is not None and _order(a) == _order(b))
    if a is None or b is None:
        return None
    x, y = _order(a), _order(b)
    answer: bool | None = {"=": x == y, "!=": x != y, "<": x < y, "<=": x <= y, ">": x > y, ">=": x >= y}[op]
    return answer


def _evaluate(node: Expression, row: Row) -> Any:
    match node:
        case Literal(value):
            return value
        case Column(path):
            return row[path]
        case Comparison(op, left, right):
            return _compare(op, _evaluate(left, row), _evaluate(right, row))
        case In(child, values):
            return _any([_compare("=", _evaluate(child, row), v.value) for v in values])
        case IsNull(child):
            return _evaluate(child, row) is None
        case StartsWith(child, prefix):
            value = _evaluate(child, row)
            return None if value is None else value.startswith(prefix)
        case Not(child):
            value = _evaluate(child, row)
            return None if value is None else not value
        case Or(children):
            return _any([_evaluate(c, row) for c in children])
        case And(children):
            value = _any([None if (v := _evaluate(c, row)) is None else not v for c in children])
            return None if value is None else not value
    raise AssertionError(node)


def _any(values: list[bool | None]) -> bool | None:
    return True if True in values else None if None in values else False


# Statistics, as different writers have them


def _statistics(rows: list[Row], style: str) -> str | None:
    if style == "none":
        return None
    if style == "broken":
        return '{"numRecords":'
    result: dict[str, Any] = {"numRecords": len(rows), "minValues": {}, "maxValues": {}, "nullCount": {}}
    for number, path in enumerate(DATA_PATHS):
        if style == "some missing" and number % 2:
            continue
        values = [row[path] for row in rows if row[path] is not None]
        _put(result["nullCount"], path, len(rows) - len(values))
        numbers = [v for v in values if not (isinstance(v, float) and math.isnan(v))]
        if numbers and PATHS[path] != BOOLEAN:
            _put(result["minValues"], path, _spelled(min(numbers, key=_order), style, False))
            greatest = max(values if style == "NaN as text" else numbers, key=_order)
            _put(result["maxValues"], path, _spelled(greatest, style, True))
    if style == "odd":
        result["minValues"]["c0"] = {"no": "number"}
        result["maxValues"]["c4"] = "the day after"
        result["nullCount"]["c2"] = "none"
        return json.dumps(result, indent=1)
    return json.dumps(result)


def _put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def _spelled(value: Any, style: str, is_maximum: bool) -> Any:
    match value:
        case datetime():
            # To milliseconds, downwards, as the protocol has it.
            text = value.replace(microsecond=value.microsecond // 1000 * 1000, tzinfo=None).isoformat(
                "T", "milliseconds"
            )
            return text + ("" if value.tzinfo is None else "Z" if style != "cut" else "+00:00")
        case date():
            return value.isoformat()
        case Decimal():
            return float(value) if style == "doubles" else _number(value)
        case str():
            if style != "cut" or len(value) <= 32:
                return value
            return value[:32] + ("\U0010ffff" if is_maximum and value.endswith("b") else "")
        case float() if math.isnan(value) or math.isinf(value):
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    return value


def _number(value: Decimal) -> Any:
    return float(value) if value == Decimal(repr(float(value))) else f"{value:f}"


def _table(files: list[Any]) -> pa.Table:
    maps = [
        {path[0]: serialize_partition_value(value, PATHS[path]) for path, value in partition.items()}
        for partition, _, _ in files
    ]
    return pa.table(
        {
            "path": string_array([str(n) for n in range(len(files))]),
            "partition_values": string_map_array(maps),
            "stats": string_array([_statistics(rows, style) for _, rows, style in files]),
        }
    )


@settings(max_examples=50, deadline=None)
@given(st.lists(FILES, max_size=5), ALL_PREDICATES, st.sampled_from([0, 64]))
def test_no_file_with_a_matching_row_is_skipped(files: list[Any], where: Expression, few: int) -> None:
    with patch.object(file_statistics, "_FEW_FILES", few):
        match = match_files(_table(files), where, SCHEMA, PARTITION_COLUMNS)
    assert len(match.may_match) == len(match.all_match) == len(files)
    assert match.may_match.null_count == match.all_match.null_count == 0
    for (partition, rows, _), may, every in zip(
        files, match.may_match.to_pylist(), match.all_match.to_pylist(), strict=True
    ):
        results = [_evaluate(where, {**partition, **row}) for row in rows]
        assert may or True not in results
        assert not every or all(result is True for result in results)
        assert may or not every


@settings(max_examples=37, deadline=None)
@given(st.lists(FILES, max_size=5), PARTITION_PREDICATES)
def test_partition_values_decide_exactly(files: list[Any], where: Expression) -> None:
    match = match_files(_table(files), where, SCHEMA, PARTITION_COLUMNS)
    expected = [_evaluate(where, partition) is True for partition, _, _ in files]
    assert match.may_match.to_pylist() == expected
    assert match.all_match.to_pylist() == expected


@settings(max_examples=6, deadline=None)
@given(st.lists(FILES, min_size=1, max_size=5), PARTITION_PREDICATES)
def test_files_without_partition_values_may_hold_anything(files: list[Any], where: Expression) -> None:
    table = _table(files)
    table = table.set_column(1, "partition_values", string_map_array([None] * len(files)))
    match = match_files(table, where, SCHEMA, PARTITION_COLUMNS)
    for partition, _, _ in files:
        if _evaluate(where, partition) is True:
            assert match.may_match.to_pylist() == [True] * len(files)
        else:
            assert not any(match.all_match.to_pylist())


def test_text_only_an_engine_understands_skips_nothing_by_itself() -> None:
    column = Column(("p0",))
    table = _table([({path: None for path in PATHS if path[0] in PARTITION_COLUMNS}, [], "none")])
    opaque = Opaque("p0 % 2 = 1", (column,))
    match = match_files(table, opaque, SCHEMA, PARTITION_COLUMNS)
    assert (match.may_match.to_pylist(), match.all_match.to_pylist()) == ([True], [False])
    both = And((opaque, Not(IsNull(column))))
    assert match_files(table, both, SCHEMA, PARTITION_COLUMNS).may_match.to_pylist() == [False]
