"""Changes of columns: which there are, where they stand, what they are called, and how each is defined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import orjson

from delta_orch.errors import ColumnNotFoundError, InvalidRequestError, UnsupportedFeatureError
from delta_orch.protocol.schema import CURRENT_DEFAULT, data_type_to_json
from delta_orch.protocol.schema_edit import (
    ColumnPath,
    Path,
    field_at,
    nearest_field,
    parse_path,
    quote_path,
    resolve_path,
    type_at,
    with_field,
    with_struct,
    with_type,
)
from delta_orch.protocol.table_properties import ensure_no_credential, parse_column_list
from delta_orch.protocol.type_text import DeclaredLength, lengths_at, with_lengths_at, with_renamed_place
from delta_orch.protocol.types import DataType, StructField, StructType
from delta_orch.table.clustering import logical_path
from delta_orch.table.column_definitions import ensure_default, ensure_not_depended_on, is_generated, is_identity
from delta_orch.table.column_mapping import ColumnMappingMode
from delta_orch.table.table_rules import ensure_may_widen
from delta_orch.table.type_widening import is_widening, with_type_change
from delta_orch.verbs.alter.draft import Draft, not_null_proof
from delta_orch.writing.defined_values import ensure_default_fits

_STATS_COLUMNS = "delta.dataSkippingStatsColumns"


@dataclass(frozen=True, slots=True)
class Position:
    """Where a column goes among its siblings: to the front, after one of them, or with neither to the end."""

    first: bool = False
    after: str | None = None

    def text(self) -> str | None:
        return "FIRST" if self.first else None if self.after is None else f"AFTER {self.after}"

    def place(self, struct: StructType, field: StructField) -> StructType:
        """The struct, which lacks the field, with it. Raises InvalidRequestError where there is no such sibling."""
        fields = list(struct)
        index = 0 if self.first else len(fields)
        if self.after is not None:
            if self.first:
                raise InvalidRequestError("A column goes first or after another, not both", remedy="Give one of them")
            sibling = struct.find(self.after)
            if sibling is None:
                raise InvalidRequestError(
                    f"There is no column {self.after!r} to put {field.name!r} after",
                    remedy=f"Name one of {', '.join(struct.names)}",
                    column=self.after,
                )
            index = fields.index(sibling) + 1
        return StructType((*fields[:index], field, *fields[index:]))


class NewColumn(NamedTuple):
    """A column to be added; its path ends with its own name."""

    path: ColumnPath
    field: StructField
    position: Position = Position()


def _find(draft: Draft, path: ColumnPath) -> tuple[Path, StructField]:
    """A column that is there. Raises ColumnNotFoundError."""
    found = resolve_path(draft.schema, path)
    return found, field_at(draft.schema, found)


@dataclass(frozen=True, slots=True)
class AddColumns:
    """Rows that are there get null in them."""

    columns: tuple[NewColumn, ...]
    operation = "ADD COLUMNS"

    def apply(self, draft: Draft) -> Draft:
        """Raises InvalidRequestError, ColumnNotFoundError."""
        for column in self.columns:
            draft = _add(draft, column)
        return draft

    def parameters(self, before: Draft, after: Draft) -> dict[str, object]:
        listed = []
        for column in self.columns:
            path = _added_path(after.schema, column.path)
            entry: dict[str, object] = {"column": column_json(path, field_at(after.schema, path))}
            if (position := column.position.text()) is not None:
                entry["position"] = position
            listed.append(entry)
        return {"columns": orjson.dumps(listed).decode()}


def _add(draft: Draft, column: NewColumn) -> Draft:
    path = _added_path(draft.schema, column.path)
    if _is_taken(draft.schema, path):
        raise InvalidRequestError(
            f"There is a column {quote_path(path)} already",
            cause="Names of columns do not differ in case alone",
            remedy="Take another name",
            column=".".join(path),
        )
    field = replace(column.field, name=path[-1])
    if is_identity(field) or is_generated(field) or CURRENT_DEFAULT in field.metadata:
        raise InvalidRequestError(
            f"Column {quote_path(path)} cannot be added as an identity, generated or default column",
            cause="The rows that are there would not have its values",
            remedy="Define it when the table is created; a default can be set on a column that is there",
            column=".".join(path),
        )
    schema = with_struct(draft.schema, path[:-1], lambda struct: column.position.place(struct, field))
    draft = draft.with_schema(schema)
    # There is no row yet that could have a value in it.
    return draft if field.nullable else draft.with_proof(not_null_proof(draft.schema, path))


def _added_path(schema: StructType, path: ColumnPath) -> Path:
    names = parse_path(path, schema)
    return (*(resolve_path(schema, names[:-1]) if len(names) > 1 else ()), names[-1])


def _is_taken(schema: StructType, path: Path) -> bool:
    parent = type_at(schema, path[:-1])
    return isinstance(parent, StructType) and parent.find(path[-1]) is not None


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """Data files keep the physical name, so none is touched. Needs column mapping."""

    path: ColumnPath
    new_name: str
    operation = "RENAME COLUMN"

    def apply(self, draft: Draft) -> Draft:
        """Raises InvalidRequestError, ColumnNotFoundError."""
        path, field = _find(draft, self.path)
        if self.new_name == field.name:
            return draft
        _ensure_mapped(draft, path, "renamed")
        target = (*path[:-1], self.new_name)
        if self.new_name.lower() != field.name.lower() and _is_taken(draft.schema, target):
            raise InvalidRequestError(
                f"There is a column {quote_path(target)} already", remedy="Take another name", column=".".join(target)
            )
        ensure_not_depended_on(draft.table, path, "renamed")
        schema = with_struct(
            draft.schema,
            path[:-1],
            lambda struct: StructType(tuple(replace(f, name=self.new_name) if f is field else f for f in struct)),
        )
        schema = with_renamed_place(schema, path, self.new_name)
        metadata = draft.table.metadata
        partition_columns = tuple(self.new_name if (c,) == path else c for c in metadata.partition_columns)
        table = draft.table.after(None, replace(metadata, partition_columns=partition_columns)).with_schema(schema)
        return _with_statistics_columns(replace(draft, table=table), path, target)

    def parameters(self, before: Draft, after: Draft) -> dict[str, object]:
        path = resolve_path(before.schema, self.path)
        return {"oldColumnPath": quote_path(path), "newColumnPath": quote_path((*path[:-1], self.new_name))}


@dataclass(frozen=True, slots=True)
class DropColumns:
    """Data files keep the values, which nobody sees any more. Needs column mapping."""

    paths: tuple[ColumnPath, ...]
    if_exists: bool = False
    operation = "DROP COLUMNS"

    def apply(self, draft: Draft) -> Draft:
        """Raises InvalidRequestError, ColumnNotFoundError."""
        for path in self._found(draft):
            draft = _drop(draft, *_find(draft, path))
        return draft

    def parameters(self, before: Draft, after: Draft) -> dict[str, object]:
        return {"columns": orjson.dumps([quote_path(path) for path in self._found(before)]).decode()}

    def _found(self, draft: Draft) -> list[Path]:
        found = []
        for path in self.paths:
            try:
                found.append(resolve_path(draft.schema, path))
            except ColumnNotFoundError:
                if not self.if_exists:
                    raise
        return found


def _drop(draft: Draft, path: Path, field: StructField) -> Draft:
    _ensure_mapped(draft, path, "dropped")
    clustering = {logical_path(draft.schema, physical) for physical in draft.clustering or ()}
    for names, what in (
        (((c,) for c in draft.table.metadata.partition_columns), "partitioned"),
        (clustering, "clustered"),
    ):
        if any(name is not None and name[: len(path)] == path for name in names):
            raise _not_droppable(path, f"The table is {what} by it")
    schema = with_struct(draft.schema, path[:-1], lambda struct: StructType(tuple(f for f in struct if f is not field)))
    ensure_not_depended_on(draft.table.with_schema(schema), path, "dropped")
    if type_at(schema, path[:-1]) == StructType(()):
        inside = f"the struct {quote_path(path[:-1])}" if path[:-1] else "the table"
        raise _not_droppable(path, f"It is the last one of {inside}")
    return _with_statistics_columns(draft.with_schema(schema), path, None)


def _not_droppable(path: Path, cause: str) -> InvalidRequestError:
    return InvalidRequestError(f"Column {quote_path(path)} cannot be dropped", cause=cause, column=".".join(path))


@dataclass(frozen=True, slots=True)
class MoveColumn:
    """The order of columns is the schema's alone: no file is touched."""

    path: ColumnPath
    position: Position
    operation = "CHANGE COLUMN"

    def apply(self, draft: Draft) -> Draft:
        """Raises InvalidRequestError, ColumnNotFoundError."""
        path, field = _find(draft, self.path)
        if self.position.after is not None and self.position.after.lower() == field.name.lower():
            return draft

        def moved(struct: StructType) -> StructType:
            return self.position.place(StructType(tuple(f for f in struct if f is not field)), field)

        return draft.with_schema(with_struct(draft.schema, path[:-1], moved))

    def parameters(self, before: Draft, after: Draft) -> dict[str, object]:
        path = resolve_path(after.schema, self.path)
        return {
            "column": orjson.dumps(column_json(path, field_at(after.schema, path))).decode(),
            "position": self.position.text(),
        }


def column_json(path: Path, field: StructField) -> dict[str, object]:
    """A column as `commitInfo` shows it: its whole path as its name."""
    return {
        "name": ".".join(path),
        "type": data_type_to_json(field.data_type),
        "nullable": field.nullable,
        "metadata": dict(field.metadata),
    }


def _ensure_mapped(draft: Draft, path: Path, change: str) -> None:
    if draft.table.column_mapping is ColumnMappingMode.NONE:
        raise InvalidRequestError(
            f"Column {quote_path(path)} cannot be {change} without column mapping",
            cause="Data files know the column by this name",
            remedy='Set the property delta.columnMapping.mode to "name" first, or in the same alteration',
            features=["columnMapping"],
        )


def _with_statistics_columns(draft: Draft, old: Path, new: Path | None) -> Draft:
    """Keep the property that lists the columns with statistics in step with their names."""
    key = next((k for k in draft.configuration if k.lower() == _STATS_COLUMNS.lower()), None)
    if key is None:
        return draft
    kept = []
    for path in parse_column_list(draft.configuration[key]):
        if [n.lower() for n in path[: len(old)]] == [n.lower() for n in old]:
            if new is None:
                continue
            path = (*new, *path[len(old) :])
        kept.append(path)
    text = ",".join(".".join(f"`{n.replace('`', '``')}`" for n in path) for path in kept)
    return draft.with_configuration({**draft.configuration, key: text})


@dataclass(frozen=True, slots=True)
class ChangeColumn:
    """The base of what changes one column's definition."""

    path: ColumnPath
    operation = "CHANGE COLUMN"

    def parameters(self, before: Draft, after: Draft) -> dict[str, object]:
        path = resolve_path(after.schema, self.path)
        around, _ = nearest_field(after.schema, path)
        return {"column": orjson.dumps(column_json(around, field_at(after.schema, around))).decode()}

    def _changed(self, draft: Draft, change: Callable[[StructField], StructField]) -> Draft:
        path, _ = _find(draft, self.path)
        return draft.with_schema(with_field(draft.schema, path, change))


@dataclass(frozen=True, slots=True)
class SetComment(ChangeColumn):
    """The empty text removes it."""

    comment: str

    def apply(self, draft: Draft) -> Draft:
        ensure_no_credential(self.comment, "comment of the column")

        def commented(field: StructField) -> StructField:
            kept = {key: value for key, value in field.metadata.items() if key != "comment"}
            return replace(field, metadata={**kept, "comment": self.comment} if self.comment else kept)

        return self._changed(draft, commented)


@dataclass(frozen=True, slots=True)
class SyncIdentity(ChangeColumn):
    """Values that rows brought themselves do not come again."""

    def apply(self, draft: Draft) -> Draft:
        """Raises InvalidRequestError, ColumnNotFoundError."""
        path, field = _find(draft, self.path)
        if len(path) > 1 or not is_identity(field):
            raise InvalidRequestError(
                f"The column {quote_path(path)} is not an identity column",
                remedy="Name a column whose values the table makes",
                column=".".join(path),
            )
        return replace(draft, synced=(*draft.synced, *path))


@dataclass(frozen=True, slots=True)
class SetNotNull(ChangeColumn):
    """Only where no row has a null in it."""

    def apply(self, draft: Draft) -> Draft:
        """Raises InvalidRequestError, ColumnNotFoundError."""
        path, field = _find(draft, self.path)
        if not field.nullable:
            return draft
        draft = self._changed(draft, lambda field: replace(field, nullable=False))
        draft = draft.with_proof(not_null_proof(draft.schema, path))
        # Writers that know no NOT NULL know no invariants either.
        return replace(draft, features=draft.features | {"invariants"})


@dataclass(frozen=True, slots=True)
class DropNotNull(ChangeColumn):
    def apply(self, draft: Draft) -> Draft:
        return self._changed(draft, lambda field: replace(field, nullable=True))


@dataclass(frozen=True, slots=True)
class ChangeType(ChangeColumn):
    """Widen a type, at any depth; files keep theirs, and the schema remembers what was (PROTOCOL, "Type Widening")."""

    data_type: DataType
    lengths: tuple[DeclaredLength, ...] = ()

    def apply(self, draft: Draft) -> Draft:
        """Raises InvalidRequestError, ColumnNotFoundError, UnsupportedFeatureError."""
        path = resolve_path(draft.schema, self.path)
        before = type_at(draft.schema, path)
        if before == self.data_type:
            return self._with_lengths(draft, path)
        self._ensure_allowed(draft, path, before)
        around, place = nearest_field(draft.schema, path)
        schema = with_type(draft.schema, path, lambda _: self.data_type)
        return draft.with_schema(
            with_field(schema, around, lambda f: with_type_change(f, before, self.data_type, place))  # type: ignore[arg-type]
        )

    def _with_lengths(self, draft: Draft, path: Path) -> Draft:
        """What texts may have in characters: files stay as they are, so only what they cannot violate."""
        before, after = lengths_at(draft.schema, path), {length.place: length for length in self.lengths}
        for place, length in after.items():
            old = before.get(place)
            if old != length and (old is None or length.kind == "char" or length.max_characters < old.max_characters):
                raise InvalidRequestError(
                    f"Column {quote_path((*path, *place))} cannot go from {old or 'string'} to {length}",
                    cause="Rows of the table may hold longer texts, or texts that are not filled up. A char(n) or "
                    "varchar(n) may become a varchar of as many characters or more, or a string",
                    remedy="Add a column of the new type",
                    column=".".join((*path, *place)),
                )
        return draft if before == after else draft.with_schema(with_lengths_at(draft.schema, path, self.lengths))

    def _ensure_allowed(self, draft: Draft, path: Path, before: DataType) -> None:
        name = quote_path(path)
        if not is_widening(before, self.data_type):
            raise InvalidRequestError(
                f"Column {name} cannot go from {before} to {self.data_type}",
                cause="Types may only become wider: byte, short, int, long; float, double; int or less to double; "
                "date to timestamp_ntz; decimals in digits before the point and after it; integers to decimals",
                remedy="Add a column of the new type, or overwrite the table with schema_mode='overwrite'",
                column=".".join(path),
            )
        if not draft.table.properties.enable_type_widening:
            raise UnsupportedFeatureError(
                f"Column {name} cannot become {self.data_type}: type widening is off",
                cause="Readers must know that files hold the column in an older type",
                remedy="Set delta.enableTypeWidening to true first, or in the same alteration",
                features=["typeWidening"],
            )
        ensure_may_widen(draft.table, path, before, self.data_type)


@dataclass(frozen=True, slots=True)
class SetDefault(ChangeColumn):
    """What a row gets in the column where the data does not bring it; None removes the default."""

    expression: str | None

    def apply(self, draft: Draft) -> Draft:
        """Raises InvalidRequestError, InvalidExpressionError, ColumnNotFoundError."""
        path, field = _find(draft, self.path)
        if self.expression is None:
            return self._changed(draft, _without_default)
        if len(path) > 1:
            raise InvalidRequestError(
                f"{quote_path(path)} is not a top-level column and cannot have a default of its own",
                remedy=f"Set the default of {quote_path(path[:1])}",
            )
        if is_generated(field) or is_identity(field):
            raise InvalidRequestError(
                f"Column {quote_path(path)} cannot have a default", cause="Its values are made another way"
            )
        ensure_no_credential(self.expression, f"default of column {field.name}")
        text = ensure_default(field.name, self.expression)
        ensure_default_fits(field, text)
        return self._changed(draft, lambda f: replace(f, metadata={**f.metadata, CURRENT_DEFAULT: text}))


def _without_default(field: StructField) -> StructField:
    return replace(field, metadata={key: value for key, value in field.metadata.items() if key != CURRENT_DEFAULT})
