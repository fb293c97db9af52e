"""`_metadata.row_id` and `_metadata.row_commit_version` in a query, as Delta Lake calls the columns of row tracking
(PROTOCOL, "Row Tracking")."""

from __future__ import annotations

from collections.abc import Iterator

from delta_orch.engines.base import ComputedColumn, Engine, Relation, as_they_are
from delta_orch.expressions.parse import parse_value
from delta_orch.statements.cursor import Token, tokens_of
from delta_orch.statements.session import unsupported
from delta_orch.table_snapshot import TableSnapshot

METADATA = "_metadata"
ROW_ID_COLUMNS = ("row_id", "row_commit_version")
"""As `scan(row_tracking=True)` calls them."""

_BEFORE_STAR = ("SELECT", "DISTINCT", "ALL", ",", ".")


def hiding_metadata(text: str) -> str | None:
    """A query of one table, over rows that have `_metadata`, which `*` leaves out. None where it names no field of it.

    Raises:
        UnsupportedExpressionError: It names another field.
    """
    if METADATA not in text.lower():
        return None
    tokens = tokens_of(text)
    fields = list(_fields(tokens))
    for field in fields:
        if _name(field) not in ROW_ID_COLUMNS:
            remedy = f"Fields are {' and '.join(ROW_ID_COLUMNS)}. snapshot().list_files() lists the files of a table"
            raise unsupported(f"{METADATA}.{field.text[:60]}", remedy)
    pieces, position = [], 0
    for place, added in _behind_stars(tokens):
        pieces += [text[position:place], added]
        position = place
    return "".join([*pieces, text[position:]]) if fields else None


def scan_with_metadata(engine: Engine, snapshot: TableSnapshot, where: str | None = None) -> Relation:
    """The rows of a table with a column `_metadata`. Raises as `scan` does."""
    rows = snapshot.scan(where=where, row_tracking=True).to_relation(engine)
    own = as_they_are(name for name in engine.schema(rows).names if name not in ROW_ID_COLUMNS)
    fields = ", ".join(f"'{name}', {name}" for name in ROW_ID_COLUMNS)
    return engine.project(rows, [*own, ComputedColumn(METADATA, parse_value(f"named_struct({fields})"))])


def _fields(tokens: list[Token]) -> Iterator[Token]:
    for name, dot, field in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if _name(name) == METADATA and dot.text == "." and field.kind in ("word", "quoted"):
            yield field


def _behind_stars(tokens: list[Token]) -> Iterator[tuple[int, str]]:
    """Where something is to be added so that `*` leaves the column out, and what."""
    for before, star, after, then in zip(tokens, tokens[1:], tokens[2:], [*tokens[3:], tokens[-1]], strict=False):
        if star.text != "*" or before.word not in _BEFORE_STAR:
            continue
        if after.word == "EXCEPT" and then.text == "(":
            yield then.end, f"{METADATA}, "
        elif after.word in (",", "FROM"):
            yield star.end, f" EXCEPT ({METADATA})"


def _name(token: Token) -> str:
    return (token.text[1:-1].replace("``", "`") if token.kind == "quoted" else token.text).lower()
