"""Printing predicates as Spark SQL and as DuckDB's SQL."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC
from decimal import Decimal
from functools import partial

from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.nodes import (
    And,
    Call,
    Cast,
    Choice,
    Coerced,
    Column,
    Comparison,
    Constant,
    Constants,
    Expression,
    In,
    IsNull,
    Literal,
    MakeStruct,
    Not,
    Opaque,
    Operation,
    Or,
    StartsWith,
)
from delta_orch.expressions.spark_literals import (
    INTEGRAL_RANGES,
    natural_type,
    quote_identifier,
    quote_string,
    spark_literal,
    type_sql,
)
from delta_orch.expressions.tree import LEVELS, children_of, plain_values
from delta_orch.protocol.epoch import FarDate, FarMoment
from delta_orch.protocol.types import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    DecimalType,
    as_stored,
)

_CHAIN = 256
_WHOLE = frozenset({"CAST", "TRY_CAST", "CASE", "CASE OF", "()", "[]", ".", ":", "*", "DATE", "TIMESTAMP",
                    "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIME"})  # fmt: skip
"""Nodes that need no parentheses as an operand."""
_DUCKDB_TYPES: dict[DataType, str] = {
    BOOLEAN: "BOOLEAN", BYTE: "TINYINT", SHORT: "SMALLINT", INTEGER: "INTEGER", LONG: "BIGINT", FLOAT: "FLOAT",
    DOUBLE: "DOUBLE", STRING: "VARCHAR", BINARY: "BLOB", DATE: "DATE", TIMESTAMP: "TIMESTAMPTZ",
    TIMESTAMP_NTZ: "TIMESTAMP",
}  # fmt: skip


def to_spark_sql(expression: Expression) -> str:
    """The predicate in Spark SQL, with names quoted and constants of exactly their type; independent of the session's
    time zone except where the user's own text (`Opaque`) depends on it."""
    return _Printer(_spark_column, spark_literal, _spark_starts_with, None).print(expression)


def to_checked_sql(expression: Expression) -> str:
    """An expression as it was read, in Spark SQL: constants without a cast where Spark gives them the same type."""

    def literal(value: Constant, data_type: DataType | None) -> str:
        return str(value) if type(value) is int and data_type is None else spark_literal(value, data_type)

    return _Printer(_spark_column, literal, _spark_starts_with, None).print(expression)


def to_shown_sql(expression: Expression) -> str:
    """The predicate for a reader: as `to_spark_sql`, but numbers stand without the casts that tell their types."""

    def literal(value: Constant, data_type: DataType | None) -> str:
        is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
        return str(value) if is_number else spark_literal(value, data_type)

    return _Printer(_spark_column, literal, _spark_starts_with, None).print(expression)


def print_duckdb(
    expression: Expression,
    column: Callable[[Column], str],
    evaluate: Callable[[Cast | Choice | MakeStruct | Opaque | Coerced], str] | None = None,
) -> str:
    """The predicate in DuckDB's SQL. Resolve it first: DuckDB's own coercions differ from Spark's.

    Args:
        column: How a column is written.
        evaluate: Prints a part that needs the types of columns, or None.
    """
    return _Printer(column, duckdb_literal, _duckdb_starts_with, evaluate, _duckdb_in).print(expression)


def _spark_column(column: Column) -> str:
    return ".".join(map(quote_identifier, column.path))


class _Printer:
    def __init__(
        self,
        column: Callable[[Column], str],
        literal: Callable[[Constant, DataType | None], str],
        starts_with: Callable[[str, str], str],
        evaluate: Callable[[Cast | Choice | MakeStruct | Opaque | Coerced], str] | None,
        long_list: Callable[[str, Sequence[Literal]], str] | None = None,
    ) -> None:
        self._column = column
        self._literal = literal
        self._starts_with = starts_with
        self._evaluate = evaluate
        self._long_list = long_list
        self._null_safe = "IS NOT DISTINCT FROM" if literal is duckdb_literal else "<=>"

    def print(self, node: Expression) -> str:
        match node:
            case Column():
                return self._column(node)
            case Literal(value, data_type):
                return self._literal(value, data_type)
            case Comparison(op, left, right):
                operator = self._null_safe if op == "<=>" else op
                return f"{self._operand(left)} {operator} {self._operand(right)}"
            case In(child, values) if self._long_list is not None and len(values) > LONG_LIST:
                return self._long_list(self._operand(child), values)
            case In(child, values):
                return f"{self._operand(child)} IN ({', '.join(self.print(value) for value in values)})"
            case IsNull(child):
                return f"{self._operand(child)} IS NULL"
            case StartsWith(child, prefix):
                return self._starts_with(self._operand(child), prefix)
            case Not(child):
                return f"NOT ({self.print(child)})"
            case And(children):
                return chain(" AND ", list(map(self._operand, children))) or "TRUE"
            case Or(children):
                return chain(" OR ", list(map(self._operand, children))) or "FALSE"
            case Cast() | Choice() | MakeStruct() | Opaque() | Coerced() if self._evaluate is not None:
                return self._evaluate(node)
            case Opaque(sql, _):
                return sql
            case Cast(value, data_type):
                return f"CAST({self._operand(value)} AS {type_sql(data_type)})"
            case Choice(branches):
                cases = (f"WHEN {self._operand(when)} THEN {self._operand(then)}" for when, then in branches)
                return f"CASE {' '.join(cases)} END"
            case MakeStruct(fields):
                parts = (f"{quote_string(name)}, {self._operand(value)}" for name, value in fields)
                return f"named_struct({', '.join(parts)})"
            case Coerced(predicate):
                return self.print(predicate)
            case Operation(name, arguments, detail):
                return self._operation(name, arguments, detail)
            case Call(name, arguments, detail):
                return self._call(name, arguments, detail)
        raise InvalidExpressionError(f"{type(node).__name__} is not an expression", type=type(node).__name__)

    def _operand(self, node: Expression) -> str:
        text = self.print(node)
        is_whole = isinstance(node, Column | Literal) or (
            isinstance(node, Call) and (not isinstance(node, Operation) or node.name in _WHOLE)
        )
        return text if is_whole else f"({text})"

    def _primary(self, node: Expression) -> str:
        text = self._operand(node)
        return f"({text})" if text[0] == "-" else text

    def _call(self, name: str, arguments: tuple[Expression, ...], detail: str) -> str:
        listed = [self.print(argument) for argument in arguments]
        match name:
            case "extract":
                return f"extract({detail} FROM {listed[0]})"
            case "trim" if detail:
                return f"trim({detail} {listed[1] + ' ' if len(listed) > 1 else ''}FROM {listed[0]})"
        named = ".".join(map(_function_name, name.split(".")))
        if detail in ("DISTINCT", "ALL"):
            return f"{named}({detail} {', '.join(listed)})"
        return f"{named}({', '.join([detail, *listed] if detail else listed)})"

    def _operation(self, name: str, arguments: tuple[Expression, ...], detail: str) -> str:
        if len(arguments) == 2 and name in LEVELS:
            left, right = arguments
            level = LEVELS[name]
            # A chain stays one: each parenthesis is a level for whoever reads the text.
            alike = level > 1 and isinstance(left, Operation) and LEVELS.get(left.name) == level
            is_chain = alike and len(children_of(left)) == 2
            return f"{self.print(left) if is_chain else self._operand(left)} {name} {self._operand(right)}"
        if name == "||":
            return " || ".join(map(self._operand, arguments))
        if name in ("CASE", "CASE OF"):
            return self._case([*map(self.print, arguments)], name == "CASE OF")
        if name in ("()", "INTERVAL", "*"):
            listed = ", ".join(map(self.print, arguments))
            return f"({listed})" if name == "()" else f"INTERVAL {detail}" if name == "INTERVAL" else f"{detail}*"
        if not arguments:
            return name
        first, others = arguments[0], arguments[1:]
        match name:
            case "-" | "+" | "~":
                return f"{name}{self._primary(first)}"
            case "NOT":
                return f"NOT ({self.print(first)})"
            case "IS" | "COLLATE":
                return f"{self._operand(first)} {name} {detail}"
            case "BETWEEN":
                return f"{self._operand(first)} BETWEEN {' AND '.join(map(self._operand, others))}"
            case "CAST" | "TRY_CAST":
                return f"{name}({self.print(first)} AS {detail})"
            case "[]":
                return f"{self._primary(first)}[{self.print(others[0])}]"
            case ".":
                return f"{self._primary(first)}.{quote_identifier(detail)}"
            case ":":
                return f"{self._primary(first)}:{detail}"
            case "AS":
                return f"{self.print(first)} AS {quote_identifier(detail)}"
            case "=>":
                return f"{quote_identifier(detail)} => {self.print(first)}"
            case "->":
                parameters = ", ".join(map(self.print, arguments[:-1]))
                return f"{f'({parameters})' if len(arguments) > 2 else parameters} -> {self.print(arguments[-1])}"
            case "LIKE" | "ILIKE" | "RLIKE":
                escape = f" ESCAPE {quote_string(detail)}" if detail else ""
                return f"{self._operand(first)} {name} {self._operand(others[0])}{escape}"
            case "DATE" | "TIMESTAMP" | "TIMESTAMP_NTZ" | "TIMESTAMP_LTZ" | "TIME":
                return f"{name} {self.print(first)}"
        return f"{self._operand(first)} {name} ({', '.join(map(self.print, others))})"

    def _case(self, parts: list[str], has_subject: bool) -> str:
        text = f"CASE {parts.pop(0)}" if has_subject else "CASE"
        while len(parts) > 1:
            text += f" WHEN {parts.pop(0)} THEN {parts.pop(0)}"
        return f"{text} ELSE {parts[0]} END" if parts else f"{text} END"


def _function_name(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else quote_identifier(name)


def chain(operator: str, parts: list[str]) -> str:
    """The operands in groups of groups: a parser makes one deep tree of a long chain."""
    while len(parts) > _CHAIN:
        parts = [f"({operator.join(parts[start : start + _CHAIN])})" for start in range(0, len(parts), _CHAIN)]
    return operator.join(parts)


def _spark_starts_with(child: str, prefix: str) -> str:
    escaped = prefix.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"{child} LIKE {quote_string(escaped + '%')}"


def _duckdb_starts_with(child: str, prefix: str) -> str:
    return f"starts_with({child}, {quote_duckdb_string(prefix)})"


def quote_duckdb_identifier(name: str) -> str:
    """A column's name for DuckDB, in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def quote_duckdb_string(text: str) -> str:
    """A string constant for DuckDB."""
    if "\0" in text:
        # DuckDB refuses NUL in a string constant.
        return "(" + " || chr(0) || ".join(quote_duckdb_string(part) for part in text.split("\0")) + ")"
    return "'" + text.replace("'", "''") + "'"


# Long lists: DuckDB reads them as one constant, and looks a value up in a hash table.

LONG_LIST = 64
_CONSTANT_CAST = re.compile(r"CAST\('(?:[^']|'')*' AS \w+(?:\(\d+,\d+\))?\)|CAST\(NULL AS \w+\)")
_MAY_RAISE = re.compile(r"\b(?:error|CAST|add|subtract|multiply|abs|make_date|make_timestamp)\(")


def may_raise(sql: str) -> bool:
    """Whether a value in DuckDB's SQL may fail for a row."""
    return _MAY_RAISE.search(_CONSTANT_CAST.sub("", sql)) is not None


def _duckdb_in(child: str, values: Sequence[Literal]) -> str:
    kinds = {value.data_type or natural_type(value.value) for value in _ends_of(values) if value.value is not None}
    kind = DOUBLE if kinds == {FLOAT, DOUBLE} else next(iter(kinds), BOOLEAN)
    present = [value for value in plain_values(values) if value is not None]
    has_null = len(present) < len(values)
    if kind == STRING:
        # As bytes, no character of a value can be the one between two values.
        child, kind, present = f"encode({child})", BINARY, [value.encode() for value in present]
    spelled = str if kind in INTEGRAL_RANGES else _blob_text if kind == BINARY else partial(_duckdb_text, kind=kind)
    listed = f"CAST(string_split('{','.join(map(spelled, present))}', ',') AS {duckdb_type(kind)}[])"
    # A query is a join, which computes the value for every row, even where a CASE leaves it out.
    if not may_raise(child):
        sql = f"{child} IN (SELECT unnest({listed}))"
        return f"({sql} OR CAST(NULL AS BOOLEAN))" if has_null else sql
    otherwise = "NULL" if has_null else "FALSE"
    return f"CASE WHEN {child} IS NULL THEN NULL WHEN list_contains({listed}, {child}) THEN TRUE ELSE {otherwise} END"


def _blob_text(value: bytes) -> str:
    return value.decode() if value.isalnum() else "".join(f"\\x{byte:02x}" for byte in value)


def _ends_of(values: Sequence[Literal]) -> Iterable[Literal]:
    """Values that have all types of the list."""
    return values[:1] if isinstance(values, Constants) else values


def duckdb_type(data_type: DataType) -> str:
    """DuckDB's name of the type that its values of an atomic type have. Raises InvalidExpressionError for any other."""
    if isinstance(data_type, DecimalType):
        return f"DECIMAL({data_type.precision},{data_type.scale})"
    data_type = as_stored(data_type)
    if data_type in _DUCKDB_TYPES:
        return _DUCKDB_TYPES[data_type]
    raise InvalidExpressionError(f"There are no constants of type {data_type}", type=str(data_type))


def duckdb_literal(value: Constant, data_type: DataType | None) -> str:
    """A constant in DuckDB's SQL, of exactly that type."""
    kind = data_type if data_type is not None else (BOOLEAN if value is None else natural_type(value))
    name = duckdb_type(kind)
    if value is None:
        return f"CAST(NULL AS {name})"
    if kind == BOOLEAN:
        return "TRUE" if value else "FALSE"
    if kind == STRING:
        return quote_duckdb_string(value)
    if kind == BINARY:
        return f"from_hex('{bytes(value).hex()}')"
    return f"CAST('{_duckdb_text(value, kind)}' AS {name})"


def _duckdb_text(value: Constant, kind: DataType) -> str:
    if kind in (FLOAT, DOUBLE):
        number = float(value)
        if math.isfinite(number):
            return repr(number)
        return "nan" if math.isnan(number) else ("inf" if number > 0 else "-inf")
    if isinstance(kind, DecimalType):
        return f"{Decimal(value):f}"
    if isinstance(value, FarDate | FarMoment):
        return str(value).removeprefix("+")
    if kind == TIMESTAMP:
        moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return str(moment.isoformat(sep=" ", timespec="microseconds"))
    if kind == TIMESTAMP_NTZ:
        return str(value.isoformat(sep=" ", timespec="microseconds"))
    return str(value)
