"""Resolves the assignments of a merge's clauses: finds columns, checks types, and refuses invalid assignments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from delta_orch.errors import ColumnNotFoundError, InvalidRequestError, SchemaMismatchError
from delta_orch.expressions.literal import constant_for
from delta_orch.expressions.nodes import Choice, Column, Expression, IsNull, MakeStruct, Not
from delta_orch.expressions.resolve import find_column
from delta_orch.expressions.tree import disjunction
from delta_orch.protocol.schema import CURRENT_DEFAULT
from delta_orch.protocol.types import DataType, StructField, StructType
from delta_orch.table.column_definitions import is_generated, is_identity
from delta_orch.verbs.merge.clauses import Action, Clause, Kind
from delta_orch.verbs.merge.sides import BOTH, SOURCE, TARGET, Sides
from delta_orch.writing.assignments import column_path, default_of, ensure_apart

if TYPE_CHECKING:
    from delta_orch.table.configuration import TableConfiguration

Path = tuple[str, ...]

_VISIBLE = {Kind.MATCHED: BOTH, Kind.NOT_MATCHED: (SOURCE,), Kind.NOT_MATCHED_BY_SOURCE: (TARGET,)}
_DEFAULT = "DEFAULT"


@dataclass(frozen=True, slots=True)
class ResolvedClause:
    """A clause with columns and values that are resolved against both sides.

    Attributes:
        number: The position among all clauses, from 1.
        condition: The condition, resolved against `Sides.schema`. None applies to every row of the kind.
        values: The value of each assigned column or field, by its path in the table after the merge. Values are over
            `Sides.schema`, and None means the column's default. Other columns do not change, or the table computes
            them.
    """

    number: int
    kind: Kind
    action: Action
    condition: Expression | None
    values: Mapping[Path, Expression | None]

    @property
    def title(self) -> str:
        return Clause(self.kind, self.action).title

    @property
    def columns(self) -> dict[str, None]:
        """The top-level columns that the clause assigns."""
        return dict.fromkeys(path[0] for path in self.values)


def evolution(clauses: Sequence[Clause], sides: Sides) -> StructType:
    """Return the columns and fields of the source that the table must gain if it lacks them. These are the columns of a
    `*` form, and columns with the name of an assigned column or field, whatever the value is."""
    excluded = [{name.lower() for name in clause.except_columns} for clause in clauses if clause.takes_all]
    assigned_names = [(clause, name) for clause in clauses for name in clause.values or ()]
    assigned = [tuple(name.lower() for name in _named(text, sides, clause)) for clause, text in assigned_names]
    source_fields = [f for f in sides.source if any(f.name.lower() not in names for names in excluded)]
    return StructType(tuple(_evolving(sides.source, {f.name.lower() for f in source_fields}, assigned)))


def _evolving(schema: StructType, taken: Collection[str], assigned: Sequence[Path]) -> Iterator[StructField]:
    """Return the fields that are assigned as a whole, and the assigned parts of other fields."""
    for field in schema:
        name = field.name.lower()
        inside = [path[1:] for path in assigned if path[0] == name]
        if name in taken or () in inside:
            yield field
        elif inside and isinstance(field.data_type, StructType):
            parts = tuple(_evolving(field.data_type, (), inside))
            if parts:
                yield replace(field, data_type=StructType(parts))


def resolve_clauses(
    clauses: Sequence[Clause], sides: Sides, table: TableConfiguration, *, evolves: bool
) -> list[ResolvedClause]:
    """Return the clauses, resolved against both sides.

    Args:
        sides: The sides, with the table's columns after the merge.
        evolves: Whether the source of a `*` form may lack columns of the table.

    Raises:
        InvalidExpressionError, ColumnNotFoundError, InvalidRequestError, SchemaMismatchError: A clause does not fit.
    """
    return [_Resolver(clause, sides, table, evolves).resolved(i + 1) for i, clause in enumerate(clauses)]


@dataclass(frozen=True, slots=True)
class _Resolver:
    clause: Clause
    sides: Sides
    table: TableConfiguration
    evolves: bool

    def resolved(self, number: int) -> ResolvedClause:
        clause, condition = self.clause, None
        if clause.condition is not None:
            what = f"condition of the clause {clause.title}"
            condition = self.sides.predicate(clause.condition, what, _VISIBLE[clause.kind])
        values: dict[Path, Expression | None] = {}
        if clause.action is not Action.DELETE:
            values = dict(self._all() if clause.values is None else self._named_ones(clause.values))
            self._ensure_may_be_given(values)
        if clause.action is Action.INSERT:
            values = self._completed(values)
        return ResolvedClause(number, clause.kind, clause.action, condition, values)

    def _all(self) -> Iterator[tuple[Path, Expression]]:
        excluded = {name.lower() for name in self.clause.except_columns}
        for name in self.clause.except_columns:
            if self.sides.target.find(name) is None and self.sides.source.find(name) is None:
                raise ColumnNotFoundError(
                    f"except_columns of the clause {self.clause.title} contains {name!r}, which neither side has",
                    remedy="Pass columns of the source",
                    column=name,
                )
        missing = []
        for field in self.sides.target:
            if field.name.lower() in excluded:
                continue
            theirs = self.sides.source.find(field.name)
            if theirs is not None:
                kept = _kept_beside if self.evolves and self.clause.action is Action.UPDATE else _taken_whole
                yield (field.name,), kept(theirs, field, (SOURCE, theirs.name), (TARGET, field.name))
            elif not (is_generated(field) or is_identity(field) or self.evolves):
                missing.append(field.name)
        if missing:
            raise SchemaMismatchError(
                f"The source lacks columns that the clause {self.clause.title} assigns",
                cause=f"It has no {', '.join(missing)}",
                remedy="List the columns to assign, or exclude these: except_columns=[…], or "
                'schema_mode="merge" (in SQL: WITH SCHEMA EVOLUTION)',
                columns=missing,
            )

    def _named_ones(self, values: Mapping[str, object]) -> Iterator[tuple[Path, Expression | None]]:
        paths = [self._path(name) for name in values]
        ensure_apart(paths)
        for path, (name, value) in zip(paths, values.items(), strict=True):
            if _is_default(value):
                yield path, None
                continue
            what = f"value of {name} in the clause {self.clause.title}"
            if not isinstance(value, str | Expression):
                value = constant_for(value, find_column(path, self.sides.target)[1])
            yield path, self.sides.value(value, what, _VISIBLE[self.clause.kind])

    def _path(self, name: str) -> Path:
        path = _named(name, self.sides, self.clause)
        resolved_path, data_type = find_column(path, self.sides.target)
        if data_type is None:
            raise InvalidRequestError(
                f"The clause {self.clause.title} assigns {name!r}, which is inside an array or a map",
                remedy="Assign the whole column",
                column=name,
            )
        if len(resolved_path) > 1 and self.clause.action is Action.INSERT:
            raise InvalidRequestError(
                f"The clause {self.clause.title} assigns {name!r}, a part of a column",
                cause="An inserted row has no values for the other parts",
                remedy="Assign the whole column, for example by named_struct(…)",
                column=name,
            )
        return resolved_path

    def _ensure_may_be_given(self, values: Mapping[Path, Expression | None]) -> None:
        features = self.table.features
        for path in values:
            field = self.sides.target.find(path[0])
            assert field is not None
            if "identityColumns" not in features or not is_identity(field):
                continue
            from delta_orch.writing.identity import identity_of

            identity = identity_of(field)
            is_insert = self.clause.action is Action.INSERT
            if identity is None or (is_insert and identity.allow_explicit_insert):
                continue
            raise InvalidRequestError(
                f"The clause {self.clause.title} gives a value to the identity column {field.name}",
                cause="The table generates its values" if is_insert else "Values of identity columns never change",
                remedy="Leave the column out. If the clause assigns all columns, add it to except_columns",
                column=field.name,
            )

    def _completed(self, values: Mapping[Path, Expression | None]) -> dict[Path, Expression | None]:
        """Add the values of columns that the clause does not assign: their default, or null."""
        completed = dict(values)
        for field in self.sides.target:
            if (field.name,) in values or is_generated(field) or is_identity(field):
                continue
            if self._default_of(field) is not None:
                completed[(field.name,)] = None
            elif not field.nullable:
                raise SchemaMismatchError(
                    f"The clause {self.clause.title} gives no value to the column {field.name}",
                    cause="The column is NOT NULL and has no default",
                    remedy="Assign a value to the column, or give it a default with alter().set_default()",
                    column=field.name,
                )
        return completed

    def _default_of(self, field: StructField) -> str | None:
        if "allowColumnDefaults" not in self.table.features:
            return None
        text = field.metadata.get(CURRENT_DEFAULT)
        return text if isinstance(text, str) else None


def _taken_whole(theirs: StructField, ours: StructField, source: Path, target: Path) -> Expression:
    return Column(source)


def _kept_beside(theirs: StructField, ours: StructField, source: Path, target: Path) -> Expression:
    """Return the value of one column in an update of all columns. If the source lacks fields of a struct, these fields
    keep their values, as in Delta on Spark. The struct is then null only if it is null on both sides."""
    have, want = theirs.data_type, ours.data_type
    if not _lacks(have, want):
        return Column(source)
    assert isinstance(have, StructType) and isinstance(want, StructType)
    parts: list[tuple[str, Expression]] = []
    for field in want:
        own_field = have.find(field.name)
        place = (*target, field.name)
        value = Column(place) if own_field is None else _kept_beside(own_field, field, (*source, own_field.name), place)
        parts.append((field.name, value))
    exists = disjunction(*(Not(IsNull(Column(place))) for place in (source, target)))
    return Choice(((exists, MakeStruct(tuple(parts))),))


def _lacks(have: DataType, want: DataType) -> bool:
    """Whether a struct lacks fields of another struct, at any depth."""
    if not (isinstance(have, StructType) and isinstance(want, StructType)):
        return False
    pairs = ((have.find(field.name), field) for field in want)
    return any(own_field is None or _lacks(own_field.data_type, field.data_type) for own_field, field in pairs)


def with_defaults(clauses: Sequence[ResolvedClause], table: TableConfiguration) -> list[ResolvedClause]:
    """Return the clauses with DEFAULT replaced by the column's default, or by null if there is none.

    Raises InvalidRequestError: DEFAULT is assigned to a generated or identity column, or to a field.
    """

    def value_of(path: Path, clause: ResolvedClause) -> Expression:
        field = table.schema.find(path[0])
        assert field is not None
        if len(path) > 1 or is_generated(field) or is_identity(field):
            raise InvalidRequestError(
                f"The clause {clause.title} sets {'.'.join(path)} to DEFAULT, but it has no default",
                cause="It is a nested field, or a generated or identity column",
                remedy=f"Leave {'.'.join(path)} out of the clause",
                column=".".join(path),
            )
        return default_of(field, table)

    return [
        replace(clause, values={path: value_of(path, clause) if v is None else v for path, v in clause.values.items()})
        for clause in clauses
    ]


def left_to_table(clauses: Sequence[ResolvedClause], action: Action, table: StructType) -> list[str]:
    """Return the generated and identity columns that the table computes for updated or inserted rows.

    Raises InvalidRequestError: Some clauses of the action assign such a column, and others do not.
    """
    ours = [clause for clause in clauses if clause.action is action]
    left = []
    is_left: Callable[[StructField], bool] = is_generated if action is Action.UPDATE else _is_made
    for field in table:
        if not ours or not is_left(field):
            continue
        giving = [clause for clause in ours if field.name in clause.columns]
        if not giving:
            left.append(field.name)
        elif len(giving) < len(ours):
            silent = next(clause for clause in ours if field.name not in clause.columns)
            raise InvalidRequestError(
                f"The clause {giving[0].title} gives a value to {field.name}, but the clause {silent.title} does not",
                cause="A merge computes the column either for all rows or for no row",
                remedy="Leave the column out of all clauses. If a clause assigns all columns, add it to except_columns",
                column=field.name,
            )
    return left


def _is_made(field: StructField) -> bool:
    return is_generated(field) or is_identity(field)


def _named(name: str, sides: Sides, clause: Clause) -> Path:
    """Return the path of an assigned column, without the table's alias. Raises InvalidRequestError,
    InvalidExpressionError."""
    path = column_path(name)
    first, *rest = path
    if rest and first.lower() == sides.target_alias.lower():
        return tuple(rest)
    if rest and first.lower() == sides.source_alias.lower() and sides.target.find(first) is None:
        raise InvalidRequestError(
            f"The clause {clause.title} assigns {name!r}, a column of the source",
            remedy=f"Assign columns of the table, {sides.target_alias}.{rest[0]}",
            column=name,
        )
    return path


def _is_default(value: object) -> bool:
    return isinstance(value, str) and value.strip().upper() == _DEFAULT
