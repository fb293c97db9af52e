"""How a table's schema follows the data written into it: `schema_mode="merge"` and `"overwrite"`. Pure.

Merging adds columns and, where type widening is enabled, widens types; it never drops, renames, moves or narrows one.
Overwriting takes the data's columns; one that keeps its name and type is the same column as before.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from delta_orch.errors import InvalidRequestError, SchemaMismatchError
from delta_orch.protocol.schema_check import is_lossless_cast
from delta_orch.protocol.schema_edit import without_metadata
from delta_orch.protocol.types import (
    STATED_DEFINITIONS,
    VARIANT,
    VOID,
    DataType,
    StructField,
    StructType,
    definitions_in,
    is_variant_storage,
    may_be_null,
    parts_beside,
    with_parts,
)
from delta_orch.table.type_widening import widened_by_data, with_type_change

_DEFAULTS = ("CURRENT_DEFAULT", "EXISTS_DEFAULT")
_PROTOCOL_KEYS = ("delta.", "parquet.field.", *_DEFAULTS)
_PAST_KEYS = ("delta.columnMapping.", "delta.typeChanges", "delta.identity.highWaterMark", "parquet.field.")


class SchemaMode(StrEnum):
    """The changes of the schema that a write may make."""

    MERGE = "merge"
    OVERWRITE = "overwrite"


def parse_schema_mode(mode: str | SchemaMode | None) -> SchemaMode | None:
    """Raises InvalidRequestError where there is no such mode."""
    if mode is None:
        return None
    try:
        return SchemaMode(mode)
    except ValueError:
        raise InvalidRequestError(
            f"There is no schema_mode {mode!r}", remedy='Use "merge" or "overwrite", or leave it out'
        ) from None


def merge_schemas(table: StructType, source: StructType, *, may_widen: bool, may_cast: bool = False) -> StructType:
    """The table's schema with what the source has beyond it.

    Columns match by name without regard to case. New ones, at any depth, come last, may be null and carry nothing of
    the source's own protocol metadata. Columns that the source lacks stay. A column without a type (void) takes the
    source's type.

    Args:
        may_widen: Whether a column may become wider, its history recorded (PROTOCOL, "Type Widening").
        may_cast: Whether a column whose type is another keeps its own: the caller casts the values, or refuses them.

    Returns: `table` itself where the source has nothing new.

    Raises:
        SchemaMismatchError: A column has a type that its values cannot be kept in; all are named. Nothing was written.
    """
    merging = _Merging(may_widen, may_cast)
    merged = merging.struct(table, source, "")
    if merging.problems:
        raise SchemaMismatchError(
            "The data's schema cannot be merged into the table's",
            cause="; ".join(merging.problems),
            remedy="Name each column once, whatever the case"
            if merging.has_repeats
            else "Cast the columns before writing"
            + ("" if may_widen else ", or set delta.enableTypeWidening where the new type is wider"),
            problems=merging.problems,
        )
    return table if merged == table else merged


def overwritten_schema(table: StructType, source: StructType) -> StructType:
    """The schema of a table whose rows and columns are all replaced by the source's.

    A column that keeps name and type stays what it was: its comment, default, generation and identity, physical name
    and id. It is NOT NULL where it was, or where the source's is. All others are new.

    Args:
        source: As `as_created_from_data` gives it.

    Raises:
        SchemaMismatchError: A column has no type (void), so nothing could ever be written to it.
    """
    columns = []
    for column in source:
        table_field = table.find(column.name)
        if table_field is not None and _is_same(_loosen(table_field.data_type), _loosen(column.data_type)):
            column = _beside(replace(table_field, nullable=table_field.nullable and column.nullable), column)
        columns.append(column)
    return StructType(tuple(columns))


def _is_same(ours: DataType, theirs: DataType) -> bool:
    """Whether data of a type is data of a column's; a variant in Arrow need not say that it is one."""
    if isinstance(ours, StructType) and isinstance(theirs, StructType):
        return ours.names == theirs.names and all(
            a.metadata == b.metadata and _is_same(a.data_type, b.data_type) for a, b in zip(ours, theirs, strict=True)
        )
    if parts := parts_beside(ours, theirs):
        return all(_is_same(a, b) for _, a, b in parts)
    return ours == theirs or (ours == VARIANT and is_variant_storage(theirs))


def as_created_from_data(schema: StructType, *, keeps_not_null: bool) -> StructType:
    """The schema of a table whose first rows have this one: nothing is inherited that only means something in the table
    the rows came from (column mapping, generation, defaults).

    Args:
        keeps_not_null: Whether NOT NULL in the source is intended, as in an Arrow schema. Spark derives it from a
            query, and so Delta on Spark creates every column, at any depth, as one that may be null.
    """
    if not keeps_not_null:
        return StructType(tuple(_loosen_field(f) for f in schema))
    kept = StructType(tuple(_without_rules_below_null(f) for f in schema))
    return without_metadata(kept, lambda key: key.startswith(_PROTOCOL_KEYS))


def _without_rules_below_null(field: StructField) -> StructField:
    """Arrow's required field of a struct that may be null means less than NOT NULL, which a null struct breaks."""
    if not isinstance(field.data_type, StructType):
        return field
    fields = (replace(f, nullable=f.nullable or field.nullable) for f in field.data_type)
    return replace(field, data_type=StructType(tuple(map(_without_rules_below_null, fields))))


def as_first_defined(schema: StructType) -> StructType:
    """The schema of a table to be created, without what only another table's past can mean: physical names and ids,
    type changes, values an identity column has given."""
    return without_metadata(schema, lambda key: key.startswith(_PAST_KEYS))


def _loosen_field(column: StructField) -> StructField:
    return _without_protocol_keys(replace(column, data_type=_loosen(column.data_type), nullable=True))


def _loosen(data_type: DataType) -> DataType:
    return may_be_null(data_type, _without_protocol_keys)


def _without_protocol_keys(field: StructField) -> StructField:
    kept = {key: value for key, value in field.metadata.items() if not key.startswith(_PROTOCOL_KEYS)}
    return replace(field, metadata=kept)


def _beside(ours: StructField, theirs: StructField) -> StructField:
    """A column of the table, with the definitions that rows state and it does not have: no table takes them."""
    stated = theirs.metadata.get(STATED_DEFINITIONS, {})
    own = definitions_in(ours.metadata, stated)
    others = {key: text for key, text in stated.items() if own.get(key) != text}
    return replace(ours, metadata={**ours.metadata, STATED_DEFINITIONS: others}) if others else ours


@dataclass(slots=True)
class _Merging:
    may_widen: bool
    may_cast: bool
    problems: list[str] = field(default_factory=list)
    has_repeats: bool = False

    def struct(self, table: StructType, source: StructType, prefix: str) -> StructType:
        new: dict[str, StructField] = {}
        seen: set[str] = set()
        merged = {f.name: f for f in table}
        for theirs in source:
            path = f"{prefix}{theirs.name}"
            if theirs.name.lower() in seen:
                self.problems.append(f"column {path} occurs twice")
                self.has_repeats = True
                continue
            seen.add(theirs.name.lower())
            ours = table.find(theirs.name)
            if ours is not None:
                merged[ours.name] = _beside(self.column(ours, theirs.data_type, path), theirs)
            else:
                new[theirs.name] = _loosen_field(theirs)
        return StructType((*merged.values(), *new.values()))

    def column(self, ours: StructField, theirs: DataType, path: str) -> StructField:
        changes: list[tuple[DataType, DataType, str]] = []
        merged = self.type(ours.data_type, theirs, path, "", changes)
        column = replace(ours, data_type=merged)
        for before, after, place in changes:
            column = with_type_change(column, before, after, place)
        return column

    def type(
        self, ours: DataType, theirs: DataType, path: str, place: str, changes: list[tuple[DataType, DataType, str]]
    ) -> DataType:
        if isinstance(ours, StructType) and isinstance(theirs, StructType):
            return self.struct(ours, theirs, f"{path}.")
        if parts := {name: other for name, _, other in parts_beside(ours, theirs)}:
            return with_parts(
                ours,
                lambda name, inner: self.type(
                    inner, parts[name], f"{path}.{name}", f"{place}.{name}" if place else name, changes
                ),
            )
        if ours == VOID:
            # So far it is null in every row, and in no file.
            return _loosen(theirs)
        if is_lossless_cast(theirs, ours):
            return ours
        wider = widened_by_data(ours, theirs) if self.may_widen else None
        if wider is not None:
            changes.append((ours, wider, place))
            return wider
        if self.may_cast:
            return ours
        self.problems.append(f"column {path} is {theirs}, the table has {ours}")
        return ours
