"""Assigns rows to clauses with one join of the table's candidate rows and the source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from delta_orch.engines.base import ComputedColumn, Engine, JoinKind, JoinSide, Relation, as_they_are
from delta_orch.expressions.column_names import free_name
from delta_orch.expressions.nodes import Choice, Column, Comparison, Expression, IsNull, Literal, Not
from delta_orch.expressions.renaming import NewName
from delta_orch.expressions.tree import columns_of, conjunction
from delta_orch.protocol.types import (
    BOOLEAN,
    INTEGER,
    StructField,
    StructType,
    traits_of,
)
from delta_orch.verbs.merge.assignments import ResolvedClause
from delta_orch.verbs.merge.clauses import Action, Kind
from delta_orch.verbs.merge.sides import SOURCE, TARGET, Sides
from delta_orch.writing.row_changes import ADDRESS

CLAUSE = "_delta_orch_clause"
"""The column with the number of the clause that applies to a row. `NO_CLAUSE` marks a pair that only counts as a
match."""

NO_CLAUSE = 0
_PRESENT = "_delta_orch_present"


@dataclass(frozen=True, slots=True)
class Clauses:
    """The clauses of a merge, in order."""

    all: Sequence[ResolvedClause]

    def of(self, kind: Kind) -> list[ResolvedClause]:
        return [clause for clause in self.all if clause.kind is kind]

    @property
    def inserts_only(self) -> bool:
        """Whether the merge only inserts rows, so that no row of the table changes."""
        return all(clause.kind is Kind.NOT_MATCHED for clause in self.all)

    @property
    def changes_all_that_matters(self) -> bool:
        """Whether unchanged rows of the table have no effect, because none of them prevents the insert of a source
        row."""
        matched = self.of(Kind.MATCHED)
        takes_every_match = bool(matched) and matched[-1].condition is None
        return takes_every_match or not self.of(Kind.NOT_MATCHED)

    @property
    def may_repeat(self) -> bool:
        """Whether a row of the table may match several source rows, because the result is the same for each of them."""
        matched = self.of(Kind.MATCHED)
        return len(matched) == 1 and matched[0].action is Action.DELETE and matched[0].condition is None

    @property
    def counts_every_match(self) -> bool:
        """Whether there are pairs without a clause. They count as matches, as in the reference implementation, which
        ignores conditions when it searches for rows with several matches."""
        return not self.inserts_only and all(clause.condition is not None for clause in self.of(Kind.MATCHED))


@dataclass(frozen=True, slots=True)
class Classified:
    """Rows with the number of the clause that applies to each.

    Attributes:
        rows: `CLAUSE` (integer, not null), the addresses of rows of the table (null for source rows without a match),
            and the columns of both sides that values need, under the names that `name_of` gives.
        columns: The columns of both sides.
    """

    rows: Relation
    sides: Sides
    columns: Sequence[Column]

    def name_of(self, column: Column) -> NewName:
        """Return the name that a column of a side has among the rows."""
        return NewName(2, (_flat(column, self.sides),))


def _flat(column: Column, sides: Sides) -> str:
    side, name = column.path[:2]
    schema = sides.target if side == TARGET else sides.source
    # SQL text that only an engine evaluates keeps names as the user wrote them, so the schema is searched.
    place = schema.place(name)
    assert place is not None
    return f"_delta_orch_{side}_{place}"


def needed_columns(clauses: Clauses, recomputed: Sequence[str], sides: Sides) -> dict[Column, None]:
    """Return the top-level columns of both sides that new rows are computed from."""
    needed: dict[Column, None] = {}
    for clause in clauses.all:
        for value in clause.values.values():
            if value is not None:
                needed.update((Column(column.path[:2]), None) for column in columns_of(value))
        if clause.action is Action.UPDATE:
            whole = {path[0] for path in clause.values if len(path) == 1}
            kept = (name for name in sides.target.names if name not in whole and name not in recomputed)
            needed.update((Column((TARGET, name)), None) for name in kept)
    return needed


def condition_columns(on: Expression, clauses: Clauses) -> dict[Column, None]:
    """Return the top-level columns of both sides that conditions use."""
    conditions = [on, *(clause.condition for clause in clauses.all if clause.condition is not None)]
    return {Column(column.path[:2]): None for condition in conditions for column in columns_of(condition)}


def classify(
    engine: Engine,
    target: JoinSide,
    source: JoinSide,
    on: Expression,
    clauses: Clauses,
    needed: Sequence[Column],
    address_columns: Sequence[str],
    sides: Sides,
) -> Classified:
    """Join both sides and give each row the first clause whose condition is true. Rows without a clause are dropped.

    Args:
        target: The rows of the table that a source row may match, and rows that a `not_matched_by_source` clause may
            change. They have `address_columns`, unless the merge only inserts.
        needed: See `needed_columns`.
    """
    passed = [ComputedColumn(_flat(column, sides), column) for column in needed]
    if clauses.inserts_only:
        number = ComputedColumn(CLAUSE, Choice(tuple(_choices(clauses.all))))
        rows = engine.join(source, target, on, "anti", [*passed, number])
    else:
        by_source = bool(clauses.of(Kind.NOT_MATCHED_BY_SOURCE))
        names = engine.schema(source.relation).names
        present = free_name(_PRESENT, names)
        if by_source:
            columns = as_they_are(names)
            marked = [*columns, ComputedColumn(present, Literal(True, BOOLEAN))]
            source = source._replace(relation=engine.project(source.relation, marked))
        number = ComputedColumn(CLAUSE, _number(clauses, present))
        addresses = [ComputedColumn(name, Column((TARGET, name))) for name in address_columns]
        kind = _join_kind(by_source, bool(clauses.of(Kind.NOT_MATCHED)))
        rows = engine.join(target, source, on, kind, [*addresses, *passed, number])
    return Classified(engine.filter(rows, Not(IsNull(Column((CLAUSE,))))), sides, needed)


def _join_kind(by_source: bool, inserts: bool) -> JoinKind:
    if by_source:
        return "full" if inserts else "left"
    return "right" if inserts else "inner"


def _number(clauses: Clauses, present: str) -> Expression:
    in_table = Not(IsNull(Column((TARGET, ADDRESS.file_number))))
    by_source = clauses.of(Kind.NOT_MATCHED_BY_SOURCE)
    matched = conjunction(in_table, Not(IsNull(Column((SOURCE, present))))) if by_source else in_table
    pairs = _choices(clauses.of(Kind.MATCHED))
    if clauses.counts_every_match:
        pairs.append((Literal(True, BOOLEAN), Literal(NO_CLAUSE, INTEGER)))
    # Conditions are evaluated only for rows of their kind, because they might fail for other rows.
    kinds = ((matched, pairs), (in_table, _choices(by_source)), (None, _choices(clauses.of(Kind.NOT_MATCHED))))
    return Choice(
        tuple(
            (Literal(True, BOOLEAN) if when is None else when, Choice(tuple(of_kind)) if of_kind else _NO_NUMBER)
            for when, of_kind in kinds
        )
    )


_NO_NUMBER = Literal(None, INTEGER)


def _choices(clauses: Sequence[ResolvedClause]) -> list[tuple[Expression, Expression]]:
    return [
        (Literal(True, BOOLEAN) if clause.condition is None else clause.condition, Literal(clause.number, INTEGER))
        for clause in clauses
    ]


# `replace_matched` deletes the rows of the table that a source row matches, and inserts every source row. A source row
# enters the join twice. A row to insert matches nothing. A key row has only the columns that the condition uses; it
# matches rows and is never inserted. Source rows with equal keys share one key row. The column `mark` of the source
# separates the two kinds.


_TRUE, _FALSE = Literal(True, BOOLEAN), Literal(False, BOOLEAN)


def marked(
    engine: Engine, source: Relation, sides: Sides, on: Expression, clauses: Sequence[ResolvedClause]
) -> tuple[Relation, Sides, Expression, list[ResolvedClause], str]:
    """Add the mark to all parts of a merge, as the last column of the source. Inserts then apply only to rows to
    insert, and the condition only to key rows. The last element of the result is the name of the mark."""
    mark = free_name("_delta_orch_comes_in", sides.source.names)
    rows = engine.project(source, [*as_they_are(sides.source.names), ComputedColumn(mark, _TRUE)])
    comes_in, matches = (Comparison("=", Column((SOURCE, mark)), value) for value in (_TRUE, _FALSE))
    inserting = [replace(c, condition=comes_in) if c.action is Action.INSERT else c for c in clauses]
    sides = replace(sides, source=StructType((*sides.source, StructField(mark, BOOLEAN))))
    return rows, sides, conjunction(on, matches), inserting, mark


def with_keys(engine: Engine, source: Relation, on: Expression, mark: str) -> Relation:
    """Return the rows to insert, and one key row for each combination of values that the condition uses."""
    schema = engine.schema(source)
    looked_at = {column.path[1] for column in columns_of(on) if column.path[0] == SOURCE} - {mark}
    fields = [field for field in schema if field.name in looked_at]
    groups = source
    # Grouping only saves time, because repeated key rows are correct. Not every engine can group by all types.
    if all(traits_of(f.data_type).is_atomic for f in fields):
        # The mark is a grouping key, so that a source without rows gives no group.
        groups = engine.aggregate(source, as_they_are([mark, *(field.name for field in fields)]), [])
    keys = [
        ComputedColumn(field.name, Column((field.name,)) if field.name in looked_at else Literal(None, field.data_type))
        for field in schema
        if field.name != mark
    ]
    return engine.union([source, engine.project(groups, [*keys, ComputedColumn(mark, _FALSE)])])
