"""Expressions whose columns go by other names, those that are text included.

Text stays what the user wrote: only the words that name a column are replaced, where they stand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from delta_orch.expressions.nodes import Column, Expression, Opaque
from delta_orch.expressions.parse import mentions_of
from delta_orch.expressions.spark_literals import quote_identifier
from delta_orch.expressions.tree import with_columns


@dataclass(frozen=True, slots=True)
class NewName:
    """The new first parts of a column's path.

    Attributes:
        dropped: How many of them go.
        prefix: What comes in their place, at least one part.
    """

    dropped: int
    prefix: tuple[str, ...]

    def of(self, column: Column) -> Column:
        return Column((*self.prefix, *column.path[self.dropped :]))


Rename = Callable[[Column], NewName]


def renamed(expression: Expression, rename: Rename) -> Expression:
    """The expression with every column renamed; it need not be resolved, and stays resolved where it was.

    Raises:
        InvalidExpressionError: The position of a column in the text is unknown. Otherwise what `rename` raises.
    """
    return with_columns(expression, lambda column: rename(column).of(column), lambda text: _renamed_text(text, rename))


def _renamed_text(node: Opaque, rename: Rename) -> Opaque:
    text = node.sql
    names: dict[Column, None] = {}
    pieces: list[str] = []
    position = 0
    for begin, column, spans in mentions_of(text):
        new = rename(column)
        names[new.of(column)] = None
        quoted = ".".join(map(quote_identifier, new.prefix))
        pieces += [text[position:begin], quoted if new.dropped else f"{quoted}."]
        position = spans[new.dropped - 1][1] if new.dropped else begin
    return Opaque("".join([*pieces, text[position:]]), tuple(names))
