"""When a table really uses a feature: pure questions about its schema and properties."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from delta_orch.protocol.actions import Metadata
from delta_orch.protocol.schema import parse_schema, serialize_schema
from delta_orch.protocol.types import TIMESTAMP_NTZ, VARIANT, ArrayType, DataType, MapType, StructField, StructType


@dataclass(frozen=True)
class TableView:
    """A table's metadata with its schema parsed on first need."""

    metadata: Metadata

    @classmethod
    def of(cls, schema: StructType, configuration: Mapping[str, str]) -> TableView:
        return cls(Metadata("", serialize_schema(schema), configuration=configuration))

    @cached_property
    def schema(self) -> StructType:
        return parse_schema(self.metadata.schema_string)

    @property
    def configuration(self) -> Mapping[str, str]:
        return self.metadata.configuration


def fields_of(data_type: DataType) -> Iterator[StructField]:
    """All struct fields inside a type, at any depth."""
    match data_type:
        case StructType(fields):
            for f in fields:
                yield f
                yield from fields_of(f.data_type)
        case ArrayType(element_type):
            yield from fields_of(element_type)
        case MapType(key_type, value_type):
            yield from fields_of(key_type)
            yield from fields_of(value_type)


def types_of(data_type: DataType) -> Iterator[DataType]:
    """The type itself and all types inside it."""
    yield data_type
    match data_type:
        case StructType(fields):
            for f in fields:
                yield from types_of(f.data_type)
        case ArrayType(element_type):
            yield from types_of(element_type)
        case MapType(key_type, value_type):
            yield from types_of(key_type)
            yield from types_of(value_type)


def features_of_types(schema: StructType) -> frozenset[str]:
    """The features a schema needs for its types alone."""
    by_type = {TIMESTAMP_NTZ: "timestampNtz", VARIANT: "variantType"}
    return frozenset(by_type[t] for t in types_of(schema) if t in by_type)


def always(view: TableView) -> bool:
    return True


def is_enabled(view: TableView, property_name: str) -> bool:
    """A feature's property is set to something other than the values that mean off."""
    value = _property(view, property_name)
    return value is not None and value not in ("false", "none", "classic")


def property_is_true(property_name: str) -> Callable[[TableView], bool]:
    return lambda view: _property(view, property_name) == "true"


def _property(view: TableView, name: str) -> str | None:
    for key, value in view.configuration.items():
        if key.lower() == name.lower():
            return value.strip().lower()
    return None


def has_invariants(view: TableView) -> bool:
    return _has_field_key(view, "delta.invariants")


def has_check_constraints(view: TableView) -> bool:
    return any(key.lower().startswith("delta.constraints.") for key in view.configuration)


def has_generated_columns(view: TableView) -> bool:
    return _has_field_key(view, "delta.generationExpression")


def has_column_mapping(view: TableView) -> bool:
    return is_enabled(view, "delta.columnMapping.mode")


def has_identity_columns(view: TableView) -> bool:
    return _has_field_key(view, "delta.identity.start")


def has_column_defaults(view: TableView) -> bool:
    return _has_field_key(view, "CURRENT_DEFAULT")


def _has_field_key(view: TableView, key: str) -> bool:
    # The text is looked at first: most tables do not need their schema parsed for this.
    return key in view.metadata.schema_string and any(key in f.metadata for f in fields_of(view.schema))


def has_collations(view: TableView) -> bool:
    """A string column compares otherwise than byte by byte: its field says so, or in older tables its type."""
    text = view.metadata.schema_string
    return "__COLLATIONS" in text or " collate " in text.lower()
