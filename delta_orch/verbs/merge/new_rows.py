"""Computes the rows that the clauses of a merge produce: in the types of the table, with the address and the kind of
change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from delta_orch.engines.base import ComputedColumn, Engine, JoinSide, Measure, Relation, as_they_are, join_schema
from delta_orch.engines.row_sets import RowKey, RowSet
from delta_orch.errors import ConstraintViolationError
from delta_orch.expressions.column_names import free_name
from delta_orch.expressions.nodes import Column, Comparison, Expression, Literal, Not
from delta_orch.expressions.renaming import renamed
from delta_orch.expressions.resolve import find_column, resolve_expression
from delta_orch.expressions.tree import any_of
from delta_orch.protocol.arrow_building import python_rows
from delta_orch.protocol.types import BINARY, BOOLEAN, INTEGER, LONG, STRING, DataType, StructField, StructType
from delta_orch.verbs.merge.assignments import Path, ResolvedClause
from delta_orch.verbs.merge.classification import CLAUSE, Classified
from delta_orch.verbs.merge.clauses import Action
from delta_orch.verbs.merge.sides import SOURCE, TARGET, Sides
from delta_orch.writing.assignments import assigned_column, ensure_value_fits
from delta_orch.writing.row_changes import ADDRESS, DELETE, INSERT, UPDATE, RowChanges

Types = Mapping[tuple[int, Path], DataType]
"""The types of assigned values before the cast, by the number of the clause and the path of the column."""

_KINDS = {Action.DELETE: DELETE, Action.UPDATE: UPDATE, Action.INSERT: INSERT}


def value_types(
    engine: Engine,
    changes: RowChanges,
    source: Relation,
    clauses: Sequence[ResolvedClause],
    sides: Sides,
    *,
    evolves: bool,
) -> Types:
    """Return the types of all values, and check that each fits its column. Only the engine knows the types.

    Raises:
        SchemaMismatchError: A value does not fit its column.
        UnsupportedExpressionError: The engine cannot evaluate a condition or a value.
    """
    places = [(clause, path, value) for clause in clauses for path, value in clause.values.items() if value is not None]
    conditions = [clause.condition for clause in clauses if clause.condition is not None]
    types = _types_of([*(value for _, _, value in places), *conditions], engine, changes, source, sides)
    for data_type, (_, path, value) in zip(types, places, strict=False):
        ensure_value_fits(value, data_type, path, sides.target, fill_nulls=evolves)
    return {(clause.number, path): data_type for data_type, (clause, path, _) in zip(types, places, strict=False)}


def _types_of(
    values: Sequence[Expression], engine: Engine, changes: RowChanges, source: Relation, sides: Sides
) -> list[DataType]:
    """Return the type of each value over both sides."""
    joined_schema = join_schema({TARGET: sides.target, SOURCE: sides.source})
    types = [find_column(value.path, joined_schema)[1] if isinstance(value, Column) else None for value in values]
    if all(types):
        return [data_type for data_type in types if data_type is not None]
    columns = [ComputedColumn(f"value {i}", value) for i, value in enumerate(values)]
    both = JoinSide(TARGET, changes.scan()), JoinSide(SOURCE, source)
    joined = engine.join(*both, Literal(True, BOOLEAN), "inner", columns)
    return [field.data_type for field in engine.schema(joined)]


def clause_rows(
    engine: Engine,
    classified: Classified,
    clauses: Sequence[ResolvedClause],
    types: Types,
    schema: StructType,
    changes: RowChanges,
    keys: Mapping[str, Column],
) -> Relation:
    """Return the result of the clauses, in the form that `RowChanges.apply` expects.

    Args:
        clauses: At least one.
        keys: Further columns by name, which identify the row in an error.
    """
    with_values = any(clause.action is not Action.DELETE for clause in clauses)
    columns = StructType(tuple(StructField(f.name, f.data_type) for f in schema)) if with_values else StructType(())
    address = tuple(StructField(name, LONG) for name in changes.address_columns)
    shown = {label: renamed(key, classified.name_of) for label, key in keys.items()}
    computed = [ComputedColumn(label, value) for label, value in shown.items()]
    parts = [
        _rows_of(engine, classified, clause, types, columns, changes.address_columns, computed) for clause in clauses
    ]
    rows_schema = engine.schema(parts[0])
    labels = tuple(
        StructField(label, field.data_type) for label in shown if (field := rows_schema.find(label)) is not None
    )
    shape = StructType((*columns, *address, StructField(ADDRESS.kind, STRING), *labels))
    return engine.union([engine.conform(part, shape) for part in parts])


def rows_by_kind(clauses: Sequence[ResolvedClause], rows_of_clauses: Mapping[RowKey, RowSet]) -> dict[RowKey, RowSet]:
    """Group the rows of the clauses by the kind of change."""
    kinds: dict[str | int, str] = {clause.number: _KINDS[clause.action] for clause in clauses}
    rows_of_kinds: dict[RowKey, RowSet] = {}
    for (number, file), rows in rows_of_clauses.items():
        if number in kinds:
            rows_of_kinds.setdefault((kinds[number], file), RowSet()).unite(rows)
    return rows_of_kinds


def _rows_of(
    engine: Engine,
    classified: Classified,
    clause: ResolvedClause,
    types: Types,
    schema: StructType,
    address_columns: Sequence[str],
    keys: Sequence[ComputedColumn],
) -> Relation:
    rows = engine.filter(classified.rows, Comparison("=", Column((CLAUSE,)), Literal(clause.number, INTEGER)))
    computed = [] if clause.action is Action.DELETE else _values(classified, clause, types, schema)
    if clause.action is not Action.INSERT:
        computed += as_they_are(address_columns)
    computed.append(ComputedColumn(ADDRESS.kind, Literal(_KINDS[clause.action], STRING)))
    return engine.project(rows, [*computed, *keys])


def _values(classified: Classified, clause: ResolvedClause, types: Types, schema: StructType) -> list[ComputedColumn]:
    by_place = {
        path: (renamed(value, classified.name_of), types[clause.number, path])
        for path, value in clause.values.items()
        if value is not None
    }
    assigned = clause.columns
    computed = []
    have = set(classified.columns)
    for field in schema:
        was = Column((TARGET, field.name))
        is_kept = clause.action is Action.UPDATE and was in have
        if field.name not in assigned and not is_kept:
            continue
        path = classified.name_of(was).prefix if was in have else (field.name,)
        computed.append(ComputedColumn(field.name, assigned_column(field, by_place, path)))
    return computed


_MOST_SHOWN = 5


# Keys of an upsert must be unique among inserted rows, and the next upsert must find them unchanged.


def key_fields(names: Sequence[str], sides: Sides) -> list[tuple[StructField, StructField]]:
    """Return each key once, as a column of the table and a column of the source."""
    pairs = ((sides.target.find(name), sides.source.find(name)) for name in dict.fromkeys(map(str.lower, names)))
    return [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]


def ensure_unique(
    engine: Engine,
    new_rows: Relation,
    classified: Classified,
    keys: Sequence[tuple[StructField, StructField]],
    partition_columns: Sequence[str],
) -> None:
    """Check that stored keys of new rows are unique, and equal to the keys in the source.

    Raises ConstraintViolationError.
    """
    names = [ours.name for ours, _ in keys]
    stored: list[ComputedColumn] = []
    came: list[ComputedColumn] = []
    kept: list[Expression] = []
    for ours, theirs in keys:
        value = renamed(Column((SOURCE, theirs.name)), classified.name_of)
        if ours.name in partition_columns and ours.data_type in (STRING, BINARY):
            # In partition values of the log, an empty text means null.
            empty = Literal("" if ours.data_type == STRING else b"", ours.data_type)
            kept.append(Not(Comparison("<=>", Column((ours.name,)), empty)))
        if theirs.data_type == ours.data_type:
            stored.append(ComputedColumn(ours.name, value))
            continue
        place = (ours.name,)
        stored.append(ComputedColumn(ours.name, assigned_column(ours, {place: (value, theirs.data_type)}, place)))
        came.append(ComputedColumn(free_name(f"_delta_orch_given_{len(came)}", names), value))
        kept.append(Comparison("<=>", Column((came[-1].name,)), Column((ours.name,))))
    rows = engine.project(new_rows, [*stored, *came])
    shown = as_they_are(names)
    if kept:
        schema = engine.schema(rows)
        changed: Expression = any_of([Not(resolve_expression(same, schema)) for same in kept])
        if duplicates := python_rows(
            engine.to_arrow(engine.project(engine.filter(rows, changed), shown), limit=_MOST_SHOWN)
        ):
            raise ConstraintViolationError(
                "Keys of new rows change when they are stored",
                cause=f"The next upsert would not find these rows again: {'; '.join(map(str, duplicates))}",
                remedy="Cast the keys to the types of the table. Replace empty texts in partition columns, because "
                "they are stored as null",
                constraint="cardinality",
                rows=duplicates,
            )
    count = free_name("_delta_orch_rows", names)
    groups = engine.aggregate(rows, shown, [Measure(count, "count")])
    repeated = engine.filter(groups, Comparison(">", Column((count,)), Literal(1, LONG)))
    if duplicates := python_rows(engine.to_arrow(engine.project(repeated, shown), limit=_MOST_SHOWN)):
        raise same_keys(duplicates)


def same_keys(shown: Sequence[Mapping[str, object]]) -> ConstraintViolationError:
    """Return the error for new rows with the same keys, with some of the rows."""
    return ConstraintViolationError(
        "New rows have the same keys",
        cause=f"More than one new row has {'; '.join(map(str, shown))}, but a key must identify one row",
        remedy="Keep one row of each key in the source, for example the newest",
        constraint="cardinality",
        rows=shown,
    )
