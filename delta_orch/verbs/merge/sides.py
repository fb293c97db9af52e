"""The two sides of a merge. Resolves the names of an expression to columns of the table or of the source."""

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
"""The names of the two sides in resolved expressions. They do not depend on the aliases."""

BOTH = (TARGET, SOURCE)


@dataclass(frozen=True, slots=True)
class Sides:
    """The columns of both sides, and their aliases.

    Attributes:
        target, source: The columns of each side. Names of one side differ in more than case.
        named: The columns of the table that expressions may use, if the merge adds columns. None means all columns.
    """

    target: StructType
    source: StructType
    target_alias: str
    source_alias: str
    named: StructType | None = None

    @property
    def schema(self) -> StructType:
        """Return the schema of resolved expressions, with one struct for each side."""
        return join_schema({TARGET: self.target, SOURCE: self.source})

    def predicate(self, condition: object, what: str, visible: Sequence[str] = BOTH) -> Expression:
        """Return a condition of the caller, resolved against `schema`.

        Args:
            what: The name in errors.
            visible: The sides whose rows exist where the condition is evaluated.

        Raises:
            InvalidExpressionError: The text cannot be parsed, a name is ambiguous, a column belongs to a side that is
                not visible, or the expression is not deterministic.
            ColumnNotFoundError: Neither side has a column of this name.
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
        """Return a value of the caller, resolved against `schema`: a column, a constant, a predicate, or text. Raises
        as `predicate`."""
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
            # The error suggests similar names.
            find_column(tuple(rest), schema, "the table" if qualified[0] == TARGET else "the source")
        raise ColumnNotFoundError(
            f"There is no column {_text(column)!r} for the {what}",
            cause=f"The table has {_listed(self._named)}; the source has {_listed(self.source)}",
            remedy=f"Use a column of either side. If both have it, write {self.target_alias}. or {self.source_alias}. "
            "before it",
            column=_text(column),
        )

    def _visible(self, name: NewName, column: Column, what: str, visible: Sequence[str]) -> NewName:
        side = name.prefix[0]
        if side not in visible:
            other = "source row" if side == SOURCE else "row of the table"
            raise InvalidExpressionError(
                f"The {what} uses {_text(column)!r}, but rows of this clause have no {other}",
                cause="The clause applies to rows without a match on the other side",
                remedy="Use columns of the other side, or constants",
                column=_text(column),
            )
        return name


def aliases(target_alias: object, source_alias: object) -> tuple[str, str]:
    """Return both aliases. Raises InvalidRequestError if one is not a name, or if both are the same."""
    for name, alias in (("target_alias", target_alias), ("source_alias", source_alias)):
        if not isinstance(alias, str) or not alias.strip():
            raise InvalidRequestError(f"{name} must be a name, not {alias!r:.100}", remedy='Use for example "t"')
    target, source = str(target_alias), str(source_alias)
    if target.lower() == source.lower():
        raise InvalidRequestError(
            f"target_alias and source_alias are both {target!r}",
            cause="Aliases are not case-sensitive",
            remedy="Choose a different alias for each side",
        )
    return target, source


def filled_up(engine: Engine, rows: Relation, target: StructType) -> tuple[Relation, StructType]:
    """Return the rows and columns of a source. If the table has a `char(n)` column of the same name, the column gets
    this type, and its values are padded with spaces."""
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
    """Raise InvalidRequestError if two columns of the source have the same name, without regard to case."""
    seen: dict[str, str] = {}
    for name in source.names:
        other = seen.setdefault(name.lower(), name)
        if other is not name:
            raise InvalidRequestError(
                f"The source has two columns {other!r} and {name!r}",
                cause="Column names are not case-sensitive",
                remedy="Rename one of these columns, or leave it out of the source",
                column=name,
            )


def _text(column: Column) -> str:
    return ".".join(column.path)


def _listed(schema: StructType) -> str:
    names = ", ".join(schema.names[:20])
    return f"{names}, …" if len(schema) > 20 else names or "no columns"


# The source of a merge, as a relation that returns the same rows at every read


_SETTLED = {"pandas.DataFrame", "polars.DataFrame"}


@contextmanager
def settled(engine: Engine, source: object, rows: Relation) -> Iterator[Relation]:
    """Return the source's rows. They are evaluated once if a second read could return other rows: a stream, a query of
    DuckDB, a lazy frame, or a DataFrame of Spark, which may read changing files or use `rand()`."""
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
