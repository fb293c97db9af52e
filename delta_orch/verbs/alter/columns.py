"""Columns: which there are, where they stand and what they are called. Their definitions are in `definitions`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import orjson

from delta_orch.errors import InvalidRequestError
from delta_orch.protocol.schema import CURRENT_DEFAULT, data_type_to_json
from delta_orch.protocol.schema_edit import (
    ColumnPath,
    Path,
    field_at,
    parse_path,
    quote_path,
    resolve_path,
    type_at,
    with_struct,
)
from delta_orch.protocol.table_properties import parse_column_list
from delta_orch.protocol.types import StructField, StructType
from delta_orch.table.clustering import logical_path
from delta_orch.table.column_definitions import is_generated, is_identity
from delta_orch.table.column_dependencies import ensure_not_depended_on
from delta_orch.table.column_mapping import ColumnMappingMode
from delta_orch.table.declared_types import with_renamed_place
from delta_orch.verbs.alter.draft import Draft, not_null_proof

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


@dataclass(frozen=True, slots=True)
class NewColumn:
    """A column to be added; its path ends with its own name."""

    path: ColumnPath
    field: StructField
    position: Position = Position()


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
        path = resolve_path(draft.schema, self.path)
        field = field_at(draft.schema, path)
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
    operation = "DROP COLUMNS"

    def apply(self, draft: Draft) -> Draft:
        """Raises InvalidRequestError, ColumnNotFoundError."""
        for path in self.paths:
            draft = _drop(draft, resolve_path(draft.schema, path))
        return draft

    def parameters(self, before: Draft, after: Draft) -> dict[str, object]:
        return {
            "columns": orjson.dumps([quote_path(resolve_path(before.schema, path)) for path in self.paths]).decode()
        }


def _drop(draft: Draft, path: Path) -> Draft:
    field = field_at(draft.schema, path)
    _ensure_mapped(draft, path, "dropped")
    clustering = {logical_path(draft.schema, physical) for physical in draft.clustering or ()}
    for names, what in (
        (((c,) for c in draft.table.metadata.partition_columns), "partitioned"),
        (clustering, "clustered"),
    ):
        if any(name is not None and name[: len(path)] == path for name in names):
            raise InvalidRequestError(
                f"Column {quote_path(path)} cannot be dropped",
                cause=f"The table is {what} by it",
                column=".".join(path),
            )
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
        path = resolve_path(draft.schema, self.path)
        field = field_at(draft.schema, path)
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
