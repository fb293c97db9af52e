"""Operators of Spark SQL in DuckDB's SQL: comparisons with constants, division, decimals, and what CAST names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from delta_orch.engines.local.sql_casts import (
    null_of,
    widen,
)
from delta_orch.engines.local.sql_types import (
    Typed,
    decimal_operand,
    unsupported,
)
from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.fit_comparison import fit_comparison
from delta_orch.expressions.nodes import (
    Coerced,
    Column,
)
from delta_orch.expressions.parse_literals import Tree
from delta_orch.expressions.spark_literals import MAX_DECIMAL_DIGITS
from delta_orch.expressions.to_sql import (
    chain,
    duckdb_type,
    print_duckdb,
)
from delta_orch.protocol.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    DecimalType,
    PrimitiveType,
)

_SELF = "\0self"
_CAST_TYPES: dict[str, DataType] = {
    "BOOLEAN": BOOLEAN, "TINYINT": PrimitiveType("byte"), "SMALLINT": PrimitiveType("short"), "INT": INTEGER,
    "BIGINT": PrimitiveType("long"), "FLOAT": FLOAT, "DOUBLE": DOUBLE, "TEXT": STRING, "BINARY": BINARY, "DATE": DATE,
    "TIMESTAMP": TIMESTAMP, "TIMESTAMPTZ": TIMESTAMP, "TIMESTAMPLTZ": TIMESTAMP, "TIMESTAMPNTZ": TIMESTAMP_NTZ,
}  # fmt: skip


def compare_with_literal(op: str, left: Typed, right: Typed) -> Typed:
    assert right.literal is not None
    if right.literal.value is None:
        return Typed(f"({left.sql} IS NULL)" if op == "<=>" else null_of(BOOLEAN), BOOLEAN)
    fitted = fit_comparison(op, Column((_SELF,)), left.data_type, right.literal)
    if isinstance(fitted, Coerced):
        raise unsupported(f"a comparison of {left.data_type} with {right.data_type}")
    return Typed(f"({print_duckdb(fitted, lambda _: left.sql)})", BOOLEAN)


def guarded(operator: str, left: Typed, right: Typed, kind: DataType) -> Typed:
    """Division as in ANSI: by zero raises, unless an operand is null."""
    zero = "error('[DIVIDE_BY_ZERO] Division by zero')"
    return Typed(
        f"CASE WHEN {left.sql} IS NULL OR {right.sql} IS NULL THEN NULL WHEN {right.sql} = 0 THEN {zero} "
        f"ELSE CAST({left.sql} {operator} {right.sql} AS {duckdb_type(kind)}) END",
        kind,
    )


def decimal_arithmetic(function: str, left: Typed, right: Typed, what: str) -> Typed:
    """Exact, or refused where Spark would give up digits."""
    a, b = decimal_operand(left), decimal_operand(right)
    if function == "multiply":
        kind = (a.precision + b.precision + 1, a.scale + b.scale)
    else:
        scale = max(a.scale, b.scale)
        kind = (max(a.precision - a.scale, b.precision - b.scale) + scale + 1, scale)
    if kind[0] > MAX_DECIMAL_DIGITS:
        raise unsupported(f"{what}: more than {MAX_DECIMAL_DIGITS} digits")
    target = DecimalType(*kind)
    return Typed(f"CAST({function}({widen(left, a).sql}, {widen(right, b).sql}) AS {duckdb_type(target)})", target)


def cast_target(tree: Tree) -> DataType:
    name = tree.this.name
    if name == "DECIMAL":
        parameters = [int(parameter.this.this) for parameter in tree.expressions]
        precision, scale = [*parameters, *(10, 0)[len(parameters) :]]
        return DecimalType(precision, scale)
    if name not in _CAST_TYPES or tree.expressions:
        raise unsupported(f"CAST to {tree.sql(dialect='spark')}")
    return _CAST_TYPES[name]


def ensure_valid_pattern(pattern: str, escape: str) -> None:
    characters = iter(pattern)
    for character in characters:
        if character == escape and next(characters, None) not in {"%", "_", escape}:
            raise InvalidExpressionError(
                f"The LIKE pattern {pattern!r} is invalid",
                cause=f"The escape character {escape!r} must stand before %, _ or itself",
            )


_CONSTANT_CAST = re.compile(r"CAST\('(?:[^']|'')*' AS \w+(?:\(\d+,\d+\))?\)|CAST\(NULL AS \w+\)")
_MAX_GROUPS = 50
_MAY_RAISE = re.compile(r"\b(?:error|CAST|add|subtract|multiply|abs|make_date|make_timestamp)\(")


def in_order(operator: str, parts: Sequence[str]) -> str:
    """AND or OR. An operand that may raise is not evaluated where those before it decide, as in Spark: DuckDB orders
    operands by what they cost."""
    groups: list[list[str]] = []
    for part in parts:
        if not groups or _MAY_RAISE.search(_CONSTANT_CAST.sub("", part)):
            groups.append([])
        groups[-1].append(part)
    if len(groups) > _MAX_GROUPS:
        groups = [list(parts)]
    chained = [chain(f" {operator} ", group) for group in groups]
    found = chained.pop()
    while chained:
        before = f"({chained.pop()})"
        decides, answer = (f"{before} IS FALSE", "FALSE") if operator == "AND" else (before, "TRUE")
        found = f"CASE WHEN {decides} THEN {answer} ELSE {before} {operator} ({found}) END"
    return f"({found})"
