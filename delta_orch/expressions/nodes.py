"""Expressions as immutable trees. Predicates, constraints and defaults are read into them.

The nodes are few on purpose. The planner uses them to prune partitions, skip files and decide conflicts. All other
expressions are `Opaque` or `Coerced` nodes, which prune nothing and which only an engine evaluates. Semantics are those
of Spark SQL: three-valued logic; NaN equals itself and is greater than every number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, overload

from delta_orch.protocol.types import DataType

Constant = Any
"""A Python value: None, bool, int, float, Decimal, str, bytes, date or datetime. A `DataType` gives its type."""


class Expression:
    """Base of all nodes. They compare by value and can be pickled."""

    __slots__ = ()


class _Composite(Expression):
    """A node with operands, compared by them. Where a `Call` stands in the text makes no difference."""

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]] = ()

    def _operands(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__match_args__}

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._operands() == other._operands()

    def __hash__(self) -> int:
        return hash((type(self), *self._operands().values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._operands().items())})"


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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Comparison(_Composite):
    """`op` is one of `=`, `!=`, `<`, `<=`, `>`, `>=`, `<=>` (null-safe equality). `fills`: a `char` and a constant are
    compared as if both had one length, as everywhere but in BETWEEN."""

    op: str
    left: Expression
    right: Expression
    fills: bool = True


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Constants(Sequence[Literal]):
    """Literals of one type, equal to a tuple of them. Plain values stand for them, because a million nodes take seconds
    to make."""

    values: Sequence[Constant]
    data_type: DataType | None = None

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Literal]:
        return (Literal(value, self.data_type) for value in self.values)

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, tuple | Constants) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    @overload
    def __getitem__(self, index: int) -> Literal: ...
    @overload
    def __getitem__(self, index: slice) -> Constants: ...
    def __getitem__(self, index: int | slice) -> Literal | Constants:
        if isinstance(index, slice):
            return Constants(self.values[index], self.data_type)
        return Literal(self.values[index], self.data_type)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class In(_Composite):
    """`child IN (values)`."""

    child: Expression
    values: tuple[Literal, ...] | Constants


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class IsNull(_Composite):
    """`child IS NULL`."""

    child: Expression


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StartsWith(_Composite):
    """`child LIKE 'prefix%'`."""

    child: Expression
    prefix: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Not(_Composite):
    """`NOT child`."""

    child: Expression


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class And(_Composite):
    """All of `children` with AND between."""

    children: tuple[Expression, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Or(_Composite):
    """All of `children` with OR between."""

    children: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Opaque(Expression):
    """A predicate or a value that has no node of its own: the user's text in Spark SQL, and the columns it mentions.

    The text was parsed once, so that it is one expression. If `columns` is empty, only Spark can read it.
    """

    sql: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Coerced(_Composite):
    """A resolved predicate that Spark evaluates with a cast of a column, or that looks into an array or a map."""

    predicate: Expression


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cast(_Composite):
    """A value in another type, under ANSI: one that does not fit raises. No text becomes one: a verb builds it."""

    value: Expression
    data_type: DataType


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MakeStruct(_Composite):
    """A struct of values, by name and never null. No text becomes one: a verb builds it."""

    fields: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Choice(_Composite):
    """`CASE WHEN condition THEN value … END`: the value of the first condition that is true, or null. Verbs build it
    from resolved parts."""

    branches: tuple[tuple[Expression, Expression], ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Call(_Composite):
    """A function by its name in lower case, as text calls it. It stands inside `Opaque` only, where an engine reads it.

    Attributes:
        detail: A word among the arguments: `YEAR` of `extract(YEAR FROM day)`, `DISTINCT` of `count(DISTINCT a)`.
        start: Where it begins in the text, as `end` is where it ends.
        depth: How many operations there are within each other.
    """

    name: str
    arguments: tuple[Expression, ...]
    detail: str = ""
    start: int = field(default=0, kw_only=True)
    end: int = field(default=0, kw_only=True)
    depth: int = field(default=1, kw_only=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Operation(Call):
    """An operation with its own syntax, named as in text: an operator by its sign, `CAST` with its type, `CASE`,
    `LIKE`."""
