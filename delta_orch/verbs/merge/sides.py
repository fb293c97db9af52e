"""The two sides of a merge: which of them a name in an expression means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa

from delta_orch.change_feed.change_feed import ChangeFeed, LatestChanges
from delta_orch.engines.base import ComputedColumn, Engine, Relation, join_schema
from delta_orch.errors import ColumnNotFoundError, InvalidExpressionError, InvalidRequestError
from delta_orch.expressions.nodes import Cast, Column, Expression, Literal, Opaque
from delta_orch.expressions.parse import (
    ensure_no_column_in_double_quotes,
    ensure_no_column_named_as_clock,
    parse_expression,
    parse_row_value,
)
from delta_orch.expressions.renaming import NewName, renamed
from delta_orch.expressions.resolve import find_column, resolve_expression
from delta_orch.expressions.spark_literals import quote_identifier
from delta_orch.expressions.tree import with_columns
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.protocol.schema import char_width
from delta_orch.protocol.types import CHAR_VARCHAR_TYPE, STRING, StructType
from delta_orch.scan.scan import Scan

TARGET, SOURCE = "target", "source"
"""How resolved expressions call the two sides, whatever their aliases are."""

BOTH = (TARGET, SOURCE)


@dataclass(frozen=True, slots=True)
class Sides:
    """The columns of both sides, and what the caller calls them.

    Attributes:
        target, source: Their columns; names of a side differ in more than case.
        named: The columns of the table that expressions may name, where the merge gives it more; None: all.
    """

    target: StructType
    source: StructType
    target_alias: str
    source_alias: str
    named: StructType | None = None

    @property
    def schema(self) -> StructType:
        """The scope of resolved expressions: one struct for each side."""
        return join_schema({TARGET: self.target, SOURCE: self.source})

    def predicate(self, condition: object, what: str, visible: Sequence[str] = BOTH) -> Expression:
        """A condition as the caller gave it, resolved against `schema`.

        Args:
            what: What an error calls it.
            visible: The sides whose rows exist where the condition is evaluated.

        Raises:
            InvalidExpressionError: It cannot be read, is ambiguous, is about a side that it does not see, or holds what
                has no fixed answer for a row.
            ColumnNotFoundError: It names a column that no side has.
        """
        if not isinstance(condition, str | Expression):
            raise InvalidExpressionError(
                f"The {what} must be SQL text or an Expression, not {type(condition).__name__}",
                remedy=f'Write it as text in Spark SQL, for example "{self.source_alias}.amount > 0"',
            )
        self._ensure_no_misread_column(condition)
        parsed = parse_expression(condition) if isinstance(condition, str) else condition
        return resolve_expression(self._placed(parsed, what, visible), self.schema)

    def value(self, expression: object, what: str, visible: Sequence[str] = BOTH) -> Expression:
        """A value as the caller gave it: a column of `schema`, a constant, a resolved predicate, or text. Raises as
        `predicate`."""
        if not isinstance(expression, str | Expression):
            raise InvalidExpressionError(
                f"The {what} must be SQL text or an Expression, not {type(expression).__name__}",
                cause=f"It is {expression!r:.100}",
                remedy="Write it as SQL text, or as literal(value)",
            )
        self._ensure_no_misread_column(expression)
        parsed = parse_row_value(expression) if isinstance(expression, str) else expression
        placed = self._placed(parsed, what, visible)
        match placed:
            case Literal():
                return placed
            case Column() | Cast():
                return with_columns(placed, lambda column: Column(find_column(column.path, self.schema)[0]))
            case Opaque(sql, columns):
                return Opaque(sql, tuple(Column(find_column(column.path, self.schema)[0]) for column in columns))
        return resolve_expression(placed, self.schema)

    @property
    def _named(self) -> StructType:
        return self.target if self.named is None else self.named

    def _ensure_no_misread_column(self, expression: object) -> None:
        if isinstance(expression, str):
            for schema in (self._named, self.source):
                ensure_no_column_in_double_quotes(expression, schema)
                ensure_no_column_named_as_clock(expression, schema)

    def _placed(self, expression: Expression, what: str, visible: Sequence[str]) -> Expression:
        return renamed(expression, lambda column: self._place(column, what, visible))

    def _place(self, column: Column, what: str, visible: Sequence[str]) -> NewName:
        sides = {TARGET: (self.target_alias, self._named), SOURCE: (self.source_alias, self.source)}
        first, *rest = column.path
        qualified = [side for side, (alias, _) in sides.items() if rest and alias.lower() == first.lower()]
        matching_sides = [side for side in qualified if sides[side][1].find(rest[0]) is not None]
        if matching_sides:
            return self._visible(NewName(1, (matching_sides[0],)), column, what, visible)
        having = [side for side, (_, schema) in sides.items() if schema.find(first) is not None]
        seen = [side for side in having if side in visible]
        if len(seen) > 1:
            raise InvalidExpressionError(
                f"The column {_text(column)!r} of the {what} is ambiguous",
                cause="Both the table and the source have a column of that name",
                remedy=f"Write {self.target_alias}.{first} or {self.source_alias}.{first}",
                column=_text(column),
            )
        if seen or having:
            return self._visible(NewName(0, ((seen or having)[0],)), column, what, visible)
        if qualified:
            _, schema = sides[qualified[0]]
            # Names the columns that come close.
            find_column(tuple(rest), schema, "the table" if qualified[0] == TARGET else "the source")
        raise ColumnNotFoundError(
            f"There is no column {_text(column)!r} for the {what}",
            cause=f"The table has {_listed(self._named)}; the source has {_listed(self.source)}",
            remedy=f"Name a column, with {self.target_alias} or {self.source_alias} before it where both have it",
            column=_text(column),
        )

    def _visible(self, name: NewName, column: Column, what: str, visible: Sequence[str]) -> NewName:
        side = name.prefix[0]
        if side not in visible:
            other = "source row" if side == SOURCE else "row of the table"
            raise InvalidExpressionError(
                f"The {what} names {_text(column)!r}, but there is no {other} to take it from",
                cause="Rows of this clause have no partner on the other side",
                remedy="Name columns of the other side, or constants",
                column=_text(column),
            )
        return name


def aliases(target_alias: object, source_alias: object) -> tuple[str, str]:
    """Both aliases. Raises InvalidRequestError where one is not a name, or both are the same."""
    for name, alias in (("target_alias", target_alias), ("source_alias", source_alias)):
        if not isinstance(alias, str) or not alias.strip():
            raise InvalidRequestError(f"{name} must be a name, not {alias!r:.100}", remedy='Use for example "t"')
    target, source = str(target_alias), str(source_alias)
    if target.lower() == source.lower():
        raise InvalidRequestError(
            f"target_alias and source_alias are both {target!r}",
            cause="Aliases are compared without regard to case",
            remedy="Give each side a name of its own",
        )
    return target, source


def filled_up(engine: Engine, rows: Relation, target: StructType) -> tuple[Relation, StructType]:
    """The rows and columns of a source. A column with the name of a `char(n)` column of the table gets that type. Its
    values are padded with spaces, as in the table."""
    source = engine.schema(rows)
    chars = {column.name.lower(): column for column in target if char_width(column)}
    filled_columns = {
        column.name: chars[column.name.lower()]
        for column in source
        if chars and column.name.lower() in chars and column.data_type == STRING and not char_width(column)
    }
    if not filled_columns:
        return rows, source
    values = {}
    for name, column in filled_columns.items():
        text, width = quote_identifier(name), char_width(column)
        filled = f"CASE WHEN length({text}) < {width} THEN rpad({text}, {width}, ' ') ELSE {text} END"
        values[name] = parse_row_value(filled)
    made = engine.project(rows, [ComputedColumn(name, values.get(name, Column((name,)))) for name in source.names])
    declared = (
        replace(column, metadata={CHAR_VARCHAR_TYPE: f"char({char_width(filled_columns[column.name])})"})
        if column.name in filled_columns
        else column
        for column in source
    )
    return made, StructType(tuple(declared))


def ensure_distinct_names(source: StructType) -> None:
    """Raises InvalidRequestError where two columns of the source have the same name, without regard to case."""
    seen: dict[str, str] = {}
    for name in source.names:
        other = seen.setdefault(name.lower(), name)
        if other is not name:
            raise InvalidRequestError(
                f"The source has two columns {other!r} and {name!r}",
                cause="Names of columns are matched without regard to case",
                remedy="Rename one of them, or leave it out of the source",
                column=name,
            )


def _text(column: Column) -> str:
    return ".".join(column.path)


def _listed(schema: StructType) -> str:
    names = ", ".join(schema.names[:20])
    return f"{names}, …" if len(schema) > 20 else names or "no columns"


# The source of a merge as a relation that returns the same rows at every read.


_SETTLED = {"pandas.DataFrame", "polars.DataFrame"}


@contextmanager
def settled(engine: Engine, source: object, rows: Relation) -> Iterator[Relation]:
    """The source's rows, evaluated once where they might not be the same a second time: a stream, a query of DuckDB, a
    lazy frame, a DataFrame of Spark, which may read files that change or hold `rand()`."""
    if _is_settled(source):
        yield rows
        return
    with engine.evaluated(rows) as evaluated:
        yield evaluated


def _is_settled(source: object) -> bool:
    if isinstance(getattr(source, "log", None), TableLog):
        return True
    if isinstance(source, pa.Table | pa.RecordBatch | Snapshot | Scan | ChangeFeed | LatestChanges):
        return True
    names = {f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(source).__mro__}
    return not names.isdisjoint(_SETTLED)
