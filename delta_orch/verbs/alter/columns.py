"""Changes of columns: adding, dropping, renaming, moving and redefining them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
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
from delta_orch.verbs.alter.draft import Change, Draft, not_null_proof
from delta_orch.writing.row_rules import ensure_default_fits

_STATS_COLUMNS = "delta.dataSkippingStatsColumns"


class Position(NamedTuple):
    """The position of a column among the columns of the same level: first, after another column, or by default last."""

    first: bool = False
    after: str | None = None

    def text(self) -> str | None:
        return "FIRST" if self.first else None if self.after is None else f"AFTER {self.after}"

    def place(self, struct: StructType, field: StructField) -> StructType:
        """Return the struct with the field inserted. Raises InvalidRequestError if the struct has no column `after`."""
        fields = list(struct)
        index = 0 if self.first else len(fields)
        if self.after is not None:
            if self.first:
                raise InvalidRequestError("first and after exclude each other", remedy="Pass one of them")
            sibling = struct.find(self.after)
            if sibling is None:
                raise InvalidRequestError(
                    f"There is no column {self.after!r} to put {field.name!r} after",
                    remedy=f"Pass one of {', '.join(struct.names)}",
                    column=self.after,
                )
            index = fields.index(sibling) + 1
        return StructType((*fields[:index], field, *fields[index:]))


class NewColumn(NamedTuple):
    """A column to add. Its path ends with its own name."""

    path: ColumnPath
    field: StructField
    position: Position = Position()


def _find(draft: Draft, path: ColumnPath) -> tuple[Path, StructField]:
    """Return the path and the field of an existing column. Raises ColumnNotFoundError."""
    resolved = resolve_path(draft.schema, path)
    return resolved, field_at(draft.schema, resolved)


def add_columns(columns: Sequence[NewColumn]) -> Change:
    """Add columns, which are null in existing rows. Raises InvalidRequestError, ColumnNotFoundError."""

    def parameters(before: Draft, after: Draft) -> dict[str, object]:
        listed = []
        for column in columns:
            path = _added_path(after.schema, column.path)
            entry: dict[str, object] = {"column": column_json(path, field_at(after.schema, path))}
            if (position := column.position.text()) is not None:
                entry["position"] = position
            listed.append(entry)
        return {"columns": orjson.dumps(listed).decode()}

    return Change("ADD COLUMNS", lambda draft: reduce(_add, columns, draft), parameters)


def _add(draft: Draft, column: NewColumn) -> Draft:
    path = _added_path(draft.schema, column.path)
    if _is_taken(draft.schema, path):
        raise InvalidRequestError(
            f"There is a column {quote_path(path)} already",
            cause="Names of columns must differ in more than case",
            remedy="Choose another name",
            column=".".join(path),
        )
    field = replace(column.field, name=path[-1])
    if is_identity(field) or is_generated(field) or CURRENT_DEFAULT in field.metadata:
        raise InvalidRequestError(
            f"Column {quote_path(path)} cannot be added as an identity, generated or default column",
            cause="Existing rows would have no value for it",
            remedy="Define the column when the table is created. A default can be set after the column is added: "
            "set_default()",
            column=".".join(path),
        )
    schema = with_struct(draft.schema, path[:-1], lambda struct: column.position.place(struct, field))
    draft = draft.with_schema(schema)
    # Existing rows have null in the new column, so NOT NULL is possible only without rows.
    return draft if field.nullable else draft.with_proof(not_null_proof(draft.schema, path))


def _added_path(schema: StructType, path: ColumnPath) -> Path:
    names = parse_path(path, schema)
    return (*(resolve_path(schema, names[:-1]) if len(names) > 1 else ()), names[-1])


def _is_taken(schema: StructType, path: Path) -> bool:
    parent = type_at(schema, path[:-1])
    return isinstance(parent, StructType) and parent.find(path[-1]) is not None


def rename_column(named: ColumnPath, new_name: str) -> Change:
    """Rename a column. Data files know it by its physical name, so no file is rewritten. Needs column mapping. Raises
    InvalidRequestError, ColumnNotFoundError."""

    def apply(draft: Draft) -> Draft:
        path, field = _find(draft, named)
        if new_name == field.name:
            return draft
        _ensure_mapped(draft, path, "renamed")
        target = (*path[:-1], new_name)
        if new_name.lower() != field.name.lower() and _is_taken(draft.schema, target):
            raise InvalidRequestError(
                f"There is a column {quote_path(target)} already", remedy="Choose another name", column=".".join(target)
            )
        ensure_not_depended_on(draft.table, path, "renamed")
        schema = with_struct(
            draft.schema,
            path[:-1],
            lambda struct: StructType(tuple(replace(f, name=new_name) if f is field else f for f in struct)),
        )
        schema = with_renamed_place(schema, path, new_name)
        metadata = draft.table.metadata
        partition_columns = tuple(new_name if (c,) == path else c for c in metadata.partition_columns)
        table = draft.table.after(None, replace(metadata, partition_columns=partition_columns)).with_schema(schema)
        return _with_statistics_columns(replace(draft, table=table), path, target)

    def parameters(before: Draft, after: Draft) -> dict[str, object]:
        path = resolve_path(before.schema, named)
        return {"oldColumnPath": quote_path(path), "newColumnPath": quote_path((*path[:-1], new_name))}

    return Change("RENAME COLUMN", apply, parameters)


def drop_columns(paths: Sequence[ColumnPath], if_exists: bool) -> Change:
    """Drop columns. Data files keep the values, but no reader sees them. Needs column mapping. Raises
    InvalidRequestError, ColumnNotFoundError."""

    def found(draft: Draft) -> list[Path]:
        resolved = []
        for path in paths:
            try:
                resolved.append(resolve_path(draft.schema, path))
            except ColumnNotFoundError:
                if not if_exists:
                    raise
        return resolved

    def apply(draft: Draft) -> Draft:
        for path in found(draft):
            draft = _drop(draft, *_find(draft, path))
        return draft

    def parameters(before: Draft, after: Draft) -> dict[str, object]:
        return {"columns": orjson.dumps([quote_path(path) for path in found(before)]).decode()}

    return Change("DROP COLUMNS", apply, parameters)


def _drop(draft: Draft, path: Path, field: StructField) -> Draft:
    _ensure_mapped(draft, path, "dropped")
    clustering = {logical_path(draft.schema, physical) for physical in draft.clustering or ()}
    for names, what in (
        (((c,) for c in draft.table.metadata.partition_columns), "partitioned"),
        (clustering, "clustered"),
    ):
        if any(name is not None and name[: len(path)] == path for name in names):
            raise _not_droppable(path, f"The table is {what} by this column")
    schema = with_struct(draft.schema, path[:-1], lambda struct: StructType(tuple(f for f in struct if f is not field)))
    ensure_not_depended_on(draft.table.with_schema(schema), path, "dropped")
    if type_at(schema, path[:-1]) == StructType(()):
        inside = f"the struct {quote_path(path[:-1])}" if path[:-1] else "the table"
        raise _not_droppable(path, f"It is the only column of {inside}")
    return _with_statistics_columns(draft.with_schema(schema), path, None)


def _not_droppable(path: Path, cause: str) -> InvalidRequestError:
    return InvalidRequestError(f"Column {quote_path(path)} cannot be dropped", cause=cause, column=".".join(path))


def move_column(named: ColumnPath, position: Position) -> Change:
    """Move a column. Only the schema holds the order of columns, so no file is rewritten. Raises InvalidRequestError,
    ColumnNotFoundError."""

    def apply(draft: Draft) -> Draft:
        path, field = _find(draft, named)
        if position.after is not None and position.after.lower() == field.name.lower():
            return draft

        def moved(struct: StructType) -> StructType:
            return position.place(StructType(tuple(f for f in struct if f is not field)), field)

        return draft.with_schema(with_struct(draft.schema, path[:-1], moved))

    def parameters(before: Draft, after: Draft) -> dict[str, object]:
        path = resolve_path(after.schema, named)
        return {
            "column": orjson.dumps(column_json(path, field_at(after.schema, path))).decode(),
            "position": position.text(),
        }

    return Change("CHANGE COLUMN", apply, parameters)


def column_json(path: Path, field: StructField) -> dict[str, object]:
    """Return a column as `commitInfo` shows it, with its full path as the name."""
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
            cause="Data files hold the column under this name",
            remedy='Set it first, or in the same alteration: set_properties({"delta.columnMapping.mode": "name"})',
            features=["columnMapping"],
        )


def _with_statistics_columns(draft: Draft, old: Path, new: Path | None) -> Draft:
    """Update the property that lists the columns with statistics after a column was renamed or dropped."""
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


def _change_column(named: ColumnPath, apply: Callable[[Draft], Draft]) -> Change:
    """Make a change of the definition of one column."""

    def parameters(before: Draft, after: Draft) -> dict[str, object]:
        around, _ = nearest_field(after.schema, resolve_path(after.schema, named))
        return {"column": orjson.dumps(column_json(around, field_at(after.schema, around))).decode()}

    return Change("CHANGE COLUMN", apply, parameters)


def _changed(draft: Draft, named: ColumnPath, change: Callable[[StructField], StructField]) -> Draft:
    return draft.with_schema(with_field(draft.schema, resolve_path(draft.schema, named), change))


def _with_note(field: StructField, key: str, text: str | None) -> StructField:
    """Return the column with a text in its metadata. An empty text or None removes the entry."""
    kept = {name: value for name, value in field.metadata.items() if name != key}
    return replace(field, metadata={**kept, key: text} if text else kept)


def set_comment(named: ColumnPath, comment: str) -> Change:
    """Set a column's comment. An empty text removes it."""

    def apply(draft: Draft) -> Draft:
        ensure_no_credential(comment, "comment of the column")
        return _changed(draft, named, lambda field: _with_note(field, "comment", comment))

    return _change_column(named, apply)


def sync_identity(named: ColumnPath) -> Change:
    """Continue an identity column after the values that rows brought themselves. Raises InvalidRequestError,
    ColumnNotFoundError."""

    def apply(draft: Draft) -> Draft:
        path, field = _find(draft, named)
        if len(path) > 1 or not is_identity(field):
            raise InvalidRequestError(
                f"The column {quote_path(path)} is not an identity column",
                remedy="Pass an identity column: a column that the table fills with numbers of its own",
                column=".".join(path),
            )
        return replace(draft, synced=(*draft.synced, *path))

    return _change_column(named, apply)


def set_not_null(named: ColumnPath) -> Change:
    """Make a column NOT NULL. The existing rows must have no null in it. Raises InvalidRequestError,
    ColumnNotFoundError."""

    def apply(draft: Draft) -> Draft:
        path, field = _find(draft, named)
        if not field.nullable:
            return draft
        draft = _changed(draft, path, lambda field: replace(field, nullable=False))
        draft = draft.with_proof(not_null_proof(draft.schema, path))
        # A writer that does not support the feature `invariants` would ignore NOT NULL.
        return replace(draft, features=draft.features | {"invariants"})

    return _change_column(named, apply)


def drop_not_null(named: ColumnPath) -> Change:
    return _change_column(named, lambda draft: _changed(draft, named, lambda field: replace(field, nullable=True)))


def change_type(named: ColumnPath, data_type: DataType, lengths: Sequence[DeclaredLength]) -> Change:
    """Widen a type, at any depth. Files keep the old type, and the schema records it (PROTOCOL, "Type Widening").
    Raises InvalidRequestError, ColumnNotFoundError, UnsupportedFeatureError."""

    def apply(draft: Draft) -> Draft:
        path = resolve_path(draft.schema, named)
        before = type_at(draft.schema, path)
        if before == data_type:
            return _with_lengths(draft, path, lengths)
        _ensure_may_become(draft, path, before, data_type)
        around, place = nearest_field(draft.schema, path)
        schema = with_type(draft.schema, path, lambda _: data_type)
        return draft.with_schema(
            with_field(schema, around, lambda f: with_type_change(f, before, data_type, place))  # type: ignore[arg-type]
        )

    return _change_column(named, apply)


def _with_lengths(draft: Draft, path: Path, lengths: Sequence[DeclaredLength]) -> Draft:
    """Set the maximal length of texts, in characters. Files are not rewritten, so the existing rows must fit."""
    before, after = lengths_at(draft.schema, path), {length.place: length for length in lengths}
    for place, length in after.items():
        old = before.get(place)
        if old != length and (old is None or length.kind == "char" or length.max_characters < old.max_characters):
            raise InvalidRequestError(
                f"Column {quote_path((*path, *place))} cannot go from {old or 'string'} to {length}",
                cause="Existing rows may hold longer texts, or texts without padding. A char(n) or "
                "varchar(n) may become a varchar of as many characters or more, or a string",
                remedy="Add a column of the new type",
                column=".".join((*path, *place)),
            )
    return draft if before == after else draft.with_schema(with_lengths_at(draft.schema, path, lengths))


def _ensure_may_become(draft: Draft, path: Path, before: DataType, data_type: DataType) -> None:
    name = quote_path(path)
    if not is_widening(before, data_type):
        raise InvalidRequestError(
            f"Column {name} cannot go from {before} to {data_type}",
            cause="A type can only become wider: byte, short, int, long; float, double; int and smaller to double; "
            "date to timestamp_ntz; decimals with more digits before and after the point; integers to decimals",
            remedy="Add a column of the new type, or replace the table: overwrite(…, schema_mode='overwrite'), in SQL "
            "CREATE OR REPLACE",
            column=".".join(path),
        )
    if not draft.table.properties.enable_type_widening:
        raise UnsupportedFeatureError(
            f"Column {name} cannot become {data_type}: type widening is off",
            cause="Files keep the older type, and readers need the feature typeWidening to read them",
            remedy="Enable it first, or in the same alteration: set_properties({'delta.enableTypeWidening': 'true'})",
            features=["typeWidening"],
        )
    ensure_may_widen(draft.table, path, before, data_type)


def set_default(named: ColumnPath, expression: str | None) -> Change:
    """Set the value for rows that are written without the column. None removes the default. Raises InvalidRequestError,
    InvalidExpressionError, ColumnNotFoundError."""

    def apply(draft: Draft) -> Draft:
        path, field = _find(draft, named)
        text = None
        if expression is not None:
            if len(path) > 1:
                raise InvalidRequestError(
                    f"{quote_path(path)} is a nested field, and only top-level columns can have a default",
                    remedy=f"Set the default of {quote_path(path[:1])}",
                )
            if is_generated(field) or is_identity(field):
                raise InvalidRequestError(
                    f"Column {quote_path(path)} cannot have a default", cause="It is a generated or an identity column"
                )
            ensure_no_credential(expression, f"default of column {field.name}")
            text = ensure_default(field.name, expression)
            ensure_default_fits(field, text)
        return _changed(draft, path, lambda f: _with_note(f, CURRENT_DEFAULT, text))

    return _change_column(named, apply)
