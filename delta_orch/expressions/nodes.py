"""Expressions as immutable trees: what `where`, a constraint or a default becomes before anything looks at it.

The nodes are few on purpose. They cover what the planner can reason about: prune partitions, skip files, decide
conflicts. Everything else stays an `Opaque` or a `Coerced` node, which prunes nothing and which only an engine
evaluates. Semantics are those of Spark SQL: three-valued logic; NaN equals itself and is greater than every number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from delta_orch.protocol.types import DataType

Constant = Any
"""A Python value: None, bool, int, float, Decimal, str, bytes, date or datetime. Which one is told by a `DataType`."""


class Expression:
    """Base of all nodes. They compare by value and can be pickled."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Column(Expression):
    """A column by its logical path: `("a",)`, or `("a", "b")` for field `b` of struct `a`."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Literal(Expression):
    """A constant. `value` is the Python value (`None`, bool, int, float, Decimal, str, bytes, date, datetime);
    `data_type` is None until `resolve` has fitted it to the column it is compared with. A `timestamp` is an aware
    datetime in UTC, a `timestamp_ntz` a naive one."""

    value: Constant
    data_type: DataType | None = None


@dataclass(frozen=True, slots=True)
class Comparison(Expression):
    """`op` is one of `=`, `!=`, `<`, `<=`, `>`, `>=`, `<=>` (null-safe equality)."""

    op: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class In(Expression):
    child: Expression
    values: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class IsNull(Expression):
    child: Expression


@dataclass(frozen=True, slots=True)
class StartsWith(Expression):
    """`child LIKE 'prefix%'`."""

    child: Expression
    prefix: str


@dataclass(frozen=True, slots=True)
class Not(Expression):
    child: Expression


@dataclass(frozen=True, slots=True)
class And(Expression):
    children: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Or(Expression):
    children: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Opaque(Expression):
    """A predicate or a value that has no node of its own: the user's text in Spark SQL, and the columns it mentions.

    The text was parsed once, so it is known to be one expression, unless `columns` is empty: then only Spark can say.
    """

    sql: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Coerced(Expression):
    """A resolved predicate that Spark evaluates with a cast of a column, or that looks into an array or a map."""

    predicate: Expression


@dataclass(frozen=True, slots=True)
class Cast(Expression):
    """A value in another type, under ANSI: one that does not fit raises. No text becomes one: a verb builds it."""

    value: Expression
    data_type: DataType


@dataclass(frozen=True, slots=True)
class MakeStruct(Expression):
    """A struct of values, by name and never null. No text becomes one: a verb builds it."""

    fields: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True, slots=True)
class Choice(Expression):
    """`CASE WHEN condition THEN value … END`: the value of the first condition that is true, null where none is. No
    text becomes one: a verb builds it of resolved parts."""

    branches: tuple[tuple[Expression, Expression], ...]
