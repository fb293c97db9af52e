"""What Spark calls a column of a query without AS."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from delta_orch.engines.local.query_nodes import Over, is_star
from delta_orch.engines.local.sql_types import is_number
from delta_orch.expressions.constants import CASTS
from delta_orch.expressions.nodes import (
    And,
    Call,
    Column,
    Comparison,
    Expression,
    In,
    IsNull,
    Literal,
    Not,
    Operation,
    Or,
)
from delta_orch.expressions.tree import COMPARISONS, LEVELS
from delta_orch.protocol.types import DataType, DecimalType, StructType

_PathOf = Callable[[tuple[str, ...]], tuple[str, ...]]
_TypeOf = Callable[[Expression], DataType]


class _Unknown(Exception):
    """What Spark would print is not known exactly."""


def generated_name(node: Expression, path_of: _PathOf, type_of: _TypeOf) -> str | None:
    """Spark's name of a column that has none, None where it is not known exactly.

    Args:
        path_of: A column's path without the name of its relation.
        type_of: The type of a part.
    """
    if isinstance(node, Operation) and node.name == "CAST" and isinstance(node.arguments[0], Column):
        return node.arguments[0].path[-1]
    try:
        return _Names(path_of, type_of).of(node)
    except _Unknown:
        return None


class _Names:
    def __init__(self, path_of: _PathOf, type_of: _TypeOf) -> None:
        self._path_of = path_of
        self._type_of = type_of

    def of(self, node: Expression) -> str:
        match node:
            case Column(path):
                return ".".join(self._path_of(path))
            case Literal():
                return _constant(node)
            case Comparison("!=", left, right):
                return f"(NOT ({self.of(left)} = {self.of(right)}))"
            case Comparison(op, left, right):
                return f"({self.of(left)} {op} {self.of(right)})"
            case In(child, values):
                return f"({self.of(child)} IN ({self._all(values)}))"
            case IsNull(child):
                return f"({self.of(child)} IS NULL)"
            case Not(In() | Comparison() as child):
                return f"(NOT {self.of(child)})"
            case And((first, second)) if not _may_be_between(first, second):
                return f"({self.of(first)} AND {self.of(second)})"
            case Or((first, second)):
                return f"({self.of(first)} OR {self.of(second)})"
            case Over():
                raise _Unknown
            case Operation(name, arguments, detail):
                return self._operation(name, arguments, detail)
            case Call("curdate" | "unix_timestamp", ()):
                raise _Unknown
            case Call("if", arguments):
                return f"(IF({self._all(arguments)}))"
            case Call(name, arguments, detail) if name not in _OTHERWISE and detail in ("", "DISTINCT"):
                listed = ["1" if is_star(argument) else self.of(argument) for argument in arguments]
                count, default = _LEFT_OUT.get(name, (0, ""))
                listed += [default] if len(listed) == count else []
                printed = name if name in ("ceil", "floor") and len(listed) == 2 else _PRINTED.get(name, name)
                return f"{printed}({detail}{' ' if detail else ''}{', '.join(listed)})"
        raise _Unknown

    def _all(self, nodes: Sequence[Expression]) -> str:
        return ", ".join(map(self.of, nodes))

    def _operation(self, name: str, arguments: tuple[Expression, ...], detail: str) -> str:
        if name in ("CASE", "CASE OF"):
            return self._case(name, list(arguments))
        if name == "CAST" and "<" not in detail:
            kind = {"INTEGER": "INT", "LONG": "BIGINT", "DEC": "DECIMAL", "NUMERIC": "DECIMAL"}.get(detail, detail)
            return f"CAST({self.of(arguments[0])} AS {kind})"
        if name in ("+", "-", "*", "/", "%") and not all(map(self._is_number, arguments)):
            raise _Unknown  # of dates, and of text
        if (name in LEVELS or name in COMPARISONS) and name not in ("||", "!=", "<>", "DIV"):
            sign, sides = COMPARISONS.get(name, name), [self.of(argument) for argument in arguments]
            return f"({sign} {sides[0]})" if len(sides) == 1 else f"({f' {sign} '.join(sides)})"
        if name == "[]":
            value, key = map(self.of, arguments)
            return f"{value}.{key}" if isinstance(self._type_of(arguments[0]), StructType) else f"{value}[{key}]"
        if name == "FILTER":
            return f"{self.of(arguments[0])} FILTER (WHERE {self.of(arguments[1])})"
        if name == "IS" and detail == "NULL":
            return f"({self.of(arguments[0])} IS NULL)"
        raise _Unknown

    def _is_number(self, node: Expression) -> bool:
        is_interval = isinstance(node, Operation) and node.name == "INTERVAL"
        return not is_interval and is_number(self._type_of(node))

    def _case(self, name: str, parts: list[Expression]) -> str:
        subject = f"{self.of(parts.pop(0))} = " if name == "CASE OF" else ""
        otherwise = f" ELSE {self.of(parts.pop())}" if len(parts) % 2 else ""
        whens = (
            f" WHEN {f'({subject}{self.of(when)})' if subject else self.of(when)} THEN {self.of(then)}"
            for when, then in zip(parts[::2], parts[1::2], strict=True)
        )
        return f"CASE{''.join(whens)}{otherwise} END"


_LEFT_OUT = {
    "split": (2, "-1"), "substr": (2, "2147483647"), "substring": (2, "2147483647"), "locate": (2, "1"),
    "percentile": (2, "1"),
    "months_between": (2, "true"), "from_unixtime": (1, "yyyy-MM-dd HH:mm:ss"), "round": (1, "0"), "rpad": (2, " "),
    "unix_timestamp": (1, "yyyy-MM-dd HH:mm:ss"), "lpad": (2, " "), "replace": (2, ""), "regexp_replace": (3, "1"),
    "sort_array": (1, "true"), "overlay": (3, "-1"), "regexp_extract_all": (2, "1"),
}  # fmt: skip
"""Functions whose last argument may be left out: how many are there then, and what Spark prints for it."""
_UPPER = ("floor", "ceil", "signum", "sqrt", "degrees", "radians", "pi", "e", "rlike", "regexp_like")
_PRINTED = {name: name.upper() for name in _UPPER} | {"array_agg": "collect_list"}
_OTHERWISE = frozenset(
    {"array_sort", "isnull", "isnotnull", "like", "position", "positive", "regexp", "to_unix_timestamp", *CASTS}
) - {"to_timestamp"}
"""Functions that Spark prints in another way than by their name and arguments."""


def _constant(node: Literal) -> str:
    value = node.value
    if value is None and node.data_type is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and node.data_type is None:
        return value
    if isinstance(node.data_type, DecimalType) or type(value) is int:
        return str(value)
    raise _Unknown


def _may_be_between(first: Expression, second: Expression) -> bool:
    match first, second:
        case Comparison(">=", left, _), Comparison("<=", right, _):
            return left == right
    return False
