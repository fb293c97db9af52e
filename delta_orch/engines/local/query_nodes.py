"""What a SELECT statement of Spark SQL consists of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from delta_orch.expressions.nodes import And, Expression, Not, Operation, Or


@dataclass(frozen=True, slots=True)
class Item:
    """An item of a SELECT list. `aliases` where it stands for several columns, each with its name."""

    node: Expression
    alias: str | None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class From:
    """A relation by its name, or a query. `columns`: new names for those of a query."""

    relation: str | Query
    alias: str | None
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Join:
    """`keyword` is DuckDB's. Columns that are `using` are one of both sides each; None: those of one name (NATURAL)."""

    keyword: str
    source: From
    condition: Expression | None
    using: tuple[str, ...] | None = ()


@dataclass(frozen=True, slots=True)
class LateralView:
    """`generator` makes rows of one that stands before it. No `columns`: they have the generator's own names."""

    generator: Expression
    is_outer: bool
    alias: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OrderKey:
    node: Expression
    descending: bool
    nulls_first: bool


IGNORES_NULLS = "IGNORE NULLS"
"""Stands in `Call.detail` of a window function."""


@dataclass(frozen=True, slots=True)
class Window:
    """What OVER says. `frame` is empty, or as DuckDB writes it, too."""

    partition: tuple[Expression, ...]
    order: tuple[OrderKey, ...]
    frame: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Over(Operation):
    """A window function. Its arguments are the call of the function, and what the window is partitioned and ordered by.

    Attributes:
        window: It, or its name, whose case matters.
    """

    window: Window | str = field(kw_only=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Subquery(Operation):
    """A query as a value. `detail` is empty, EXISTS, or IN, whose left side is the argument."""

    query: Query = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Grouping:
    """An item of GROUP BY that makes groups of several sizes. `keyword` is ROLLUP, CUBE or GROUPING SETS; none for a
    plain key."""

    keyword: str
    sets: tuple[tuple[Expression, ...], ...]


@dataclass(frozen=True, slots=True)
class Select:
    items: tuple[Item, ...]
    distinct: bool = False
    source: From | None = None
    joins: tuple[Join, ...] = ()
    views: tuple[LateralView, ...] = ()
    where: Expression | None = None
    group: tuple[Expression, ...] = ()
    grouping: tuple[Grouping, ...] = ()
    having: Expression | None = None
    windows: tuple[tuple[str, Window], ...] = ()
    qualify: Expression | None = None
    order: tuple[OrderKey, ...] = ()
    limit: str | None = None
    offset: str | None = None


@dataclass(frozen=True, slots=True)
class SetOperation:
    """`keyword` is UNION, EXCEPT or INTERSECT, with ALL where it keeps duplicates."""

    left: Query
    right: Query
    keyword: str


@dataclass(frozen=True, slots=True)
class With:
    """A query and those that it names, in lower case."""

    queries: tuple[tuple[str, Query], ...]
    query: Query


@dataclass(frozen=True, slots=True)
class Values:
    rows: tuple[tuple[Expression, ...], ...]


@dataclass(frozen=True, slots=True)
class Numbers:
    """`range(…)`: from the first number to before the second, as far apart as the third says."""

    limits: tuple[int, int, int]


Query = Select | SetOperation | With | Values | Numbers


def is_star(node: Expression) -> bool:
    """Whether it is `*` or `relation.*`, with or without EXCEPT."""
    return isinstance(node, Operation) and (node.name == "* EXCEPT" or (node.name == "*" and not node.arguments))


def tests_of(node: Expression) -> Iterator[Expression]:
    """The tests of which a condition consists, without NOT, and those of a CASE: false and null are the same there."""
    match node:
        case Operation("CASE", parts):
            for condition in parts[: len(parts) // 2 * 2 : 2]:
                yield from tests_of(condition)
        case And(children) | Or(children):
            for child in children:
                yield from tests_of(child)
        case Operation("NOT", (child,)) | Not(child):
            yield child
        case Expression():
            yield node
