"""What a column is: its type, whether it may be null, its default and its comment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import orjson

from delta_orch.errors import InvalidRequestError, UnsupportedFeatureError
from delta_orch.protocol.schema import CURRENT_DEFAULT
from delta_orch.protocol.schema_edit import (
    ColumnPath,
    Path,
    field_at,
    nearest_field,
    quote_path,
    resolve_path,
    type_at,
    with_field,
    with_type,
)
from delta_orch.protocol.types import DATE, TIMESTAMP_NTZ, DataType, StructField
from delta_orch.table.column_definitions import ensure_default, is_generated, is_identity
from delta_orch.table.column_dependencies import ensure_not_depended_on
from delta_orch.table.iceberg_compat import ensure_iceberg_can_widen
from delta_orch.table.type_widening import is_widening, with_type_change
from delta_orch.verbs.alter.columns import column_json
from delta_orch.verbs.alter.draft import Draft, not_null_proof


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
        path = resolve_path(draft.schema, self.path)
        field_at(draft.schema, path)
        return draft.with_schema(with_field(draft.schema, path, change))


@dataclass(frozen=True, slots=True)
class SetComment(ChangeColumn):
    """The empty text removes it."""

    comment: str

    def apply(self, draft: Draft) -> Draft:
        def commented(field: StructField) -> StructField:
            kept = {key: value for key, value in field.metadata.items() if key != "comment"}
            return replace(field, metadata={**kept, "comment": self.comment} if self.comment else kept)

        return self._changed(draft, commented)


@dataclass(frozen=True, slots=True)
class SetNotNull(ChangeColumn):
    """Only where no row has a null in it."""

    def apply(self, draft: Draft) -> Draft:
        """Raises InvalidRequestError, ColumnNotFoundError."""
        path = resolve_path(draft.schema, self.path)
        if not field_at(draft.schema, path).nullable:
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

    def apply(self, draft: Draft) -> Draft:
        """Raises InvalidRequestError, ColumnNotFoundError, UnsupportedFeatureError."""
        path = resolve_path(draft.schema, self.path)
        before = type_at(draft.schema, path)
        if before == self.data_type:
            return draft
        self._ensure_allowed(draft, path, before)
        around, place = nearest_field(draft.schema, path)
        schema = with_type(draft.schema, path, lambda _: self.data_type)
        return draft.with_schema(
            with_field(schema, around, lambda f: with_type_change(f, before, self.data_type, place))  # type: ignore[arg-type]
        )

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
        if (before, self.data_type) == (DATE, TIMESTAMP_NTZ) and path[0] in draft.table.metadata.partition_columns:
            raise InvalidRequestError(
                f"The partition column {name} cannot become {self.data_type}",
                cause="The log spells its values as dates, not as timestamps",
                column=".".join(path),
            )
        ensure_iceberg_can_widen(draft.table.properties, name, before, self.data_type)
        around, _ = nearest_field(draft.schema, path)
        if is_generated(field_at(draft.schema, around)):
            raise InvalidRequestError(
                f"The generated column {name} cannot change its type",
                cause="Its values must stay those of its expression",
                column=".".join(path),
            )
        ensure_not_depended_on(draft.table, path, f"changed to {self.data_type}")


@dataclass(frozen=True, slots=True)
class SetDefault(ChangeColumn):
    """What a row gets in the column where the data does not bring it; None removes the default."""

    expression: str | None

    def apply(self, draft: Draft) -> Draft:
        """Raises InvalidRequestError, InvalidExpressionError, ColumnNotFoundError."""
        path = resolve_path(draft.schema, self.path)
        field = field_at(draft.schema, path)
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
        text = ensure_default(field.name, self.expression)
        return self._changed(draft, lambda f: replace(f, metadata={**f.metadata, CURRENT_DEFAULT: text}))


def _without_default(field: StructField) -> StructField:
    return replace(field, metadata={key: value for key, value in field.metadata.items() if key != CURRENT_DEFAULT})
