"""The log's facts about each column beyond its type, typed, for users. Reading rows needs none of it.

Only the form of the metadata is checked here. Writers have their own rules for each part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import orjson

from delta_orch.errors import ProtocolViolationError
from delta_orch.protocol.schema import (
    CURRENT_DEFAULT,
    GENERATION_EXPRESSION,
    IDENTITY_ALLOW_EXPLICIT_INSERT,
    IDENTITY_HIGH_WATER_MARK,
    IDENTITY_START,
    IDENTITY_STEP,
    INVARIANTS,
    TYPE_CHANGES,
)
from delta_orch.protocol.types import CHAR_VARCHAR_TYPE, COLLATIONS, DataType, StructField, StructType, parts_of
from delta_orch.table.column_mapping import FIELD_ID, PHYSICAL_NAME

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class IdentityDetails:
    """How a table makes the values of a column (PROTOCOL, "Identity Columns").

    Attributes:
        high_water_mark: The last value given out, the highest or for a negative step the lowest; None before the first.
    """

    start: int
    step: int
    high_water_mark: int | None
    allow_explicit_insert: bool


@dataclass(frozen=True, slots=True)
class TypeChange:
    """A type a column once had (PROTOCOL, "Type Change Metadata").

    Attributes:
        from_type, to_type: As in the log's JSON.
        field_path: Which part of an array or map changed, such as `key` or `value.element`; None for the column itself.
        table_version: Since which version; None where the log does not say.
    """

    from_type: str
    to_type: str
    field_path: str | None
    table_version: int | None


@dataclass(frozen=True, slots=True)
class ColumnDetails:
    """A column, or a field of a struct at any depth.

    Attributes:
        path: Names from the top; inside arrays and maps with `element`, `key` and `value` between.
        data_type, nullable, comment: As the schema has them.
        declared_type: `char(n)` or `varchar(n)` where the column was declared so, also inside a nested type; None
            otherwise.
        collations: Collation by what it holds for: the column, or `….element`, `….key`, `….value` of it.
        generation_expression: Spark SQL that computes the column; None for another column.
        identity: None for another column.
        default: Spark SQL for rows that do not bring the column; None without a default.
        invariant: Spark SQL that is true for every row; None without one.
        physical_name, field_id: Of column mapping; None without it.
        type_changes: Oldest first.
        metadata: All of the field's metadata as it stands in the log.
    """

    path: tuple[str, ...]
    data_type: DataType
    nullable: bool
    comment: str | None = None
    declared_type: str | None = None
    collations: Mapping[str, str] = field(default_factory=dict)
    generation_expression: str | None = None
    identity: IdentityDetails | None = None
    default: str | None = None
    invariant: str | None = None
    physical_name: str | None = None
    field_id: int | None = None
    type_changes: tuple[TypeChange, ...] = ()
    metadata: Mapping[str, object] = field(default_factory=dict, repr=False)


def column_details(schema: StructType) -> tuple[ColumnDetails, ...]:
    """Every column, each followed by the fields inside it.

    Raises:
        ProtocolViolationError: The metadata of a column is malformed; the error names it.
    """
    return tuple(_inside(schema, ()))


def _inside(data_type: DataType, path: tuple[str, ...]) -> Iterator[ColumnDetails]:
    for index, (name, inner) in enumerate(parts_of(data_type)):
        below = (*path, name)
        if isinstance(data_type, StructType):
            yield _details(data_type.fields[index], below)
        yield from _inside(inner, below)


def _details(column: StructField, path: tuple[str, ...]) -> ColumnDetails:
    metadata = _Said(column.metadata, path)
    return ColumnDetails(
        path=path,
        data_type=column.data_type,
        nullable=column.nullable,
        comment=metadata.optional("comment", str),
        declared_type=metadata.optional(CHAR_VARCHAR_TYPE, str),
        collations=metadata.optional(COLLATIONS, dict) or {},
        generation_expression=metadata.optional(GENERATION_EXPRESSION, str),
        identity=_identity(metadata),
        default=metadata.optional(CURRENT_DEFAULT, str),
        invariant=_invariant(metadata),
        physical_name=metadata.optional(PHYSICAL_NAME, str),
        field_id=metadata.optional(FIELD_ID, int),
        type_changes=tuple(_type_change(metadata, change) for change in metadata.optional(TYPE_CHANGES, list) or ()),
        metadata=column.metadata,
    )


class _Said(NamedTuple):
    """The metadata of one column."""

    metadata: Mapping[str, object]
    path: tuple[str, ...]

    def optional(self, key: str, kind: type[Kind]) -> Kind | None:
        value = self.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.violation(key, f"It is {value!r}")
        return value

    def violation(self, key: str, cause: str) -> ProtocolViolationError:
        name = ".".join(self.path)
        return ProtocolViolationError(f"The metadata {key} of column {name!r} is malformed", cause=cause, column=name)


def _identity(said: _Said) -> IdentityDetails | None:
    start, step = said.optional(IDENTITY_START, int), said.optional(IDENTITY_STEP, int)
    if start is None and step is None:
        return None
    if start is None or step is None:
        raise said.violation("delta.identity", "It has only one of start and step")
    return IdentityDetails(
        start,
        step,
        said.optional(IDENTITY_HIGH_WATER_MARK, int),
        bool(said.optional(IDENTITY_ALLOW_EXPLICIT_INSERT, bool)),
    )


def _invariant(said: _Said) -> str | None:
    text = said.optional(INVARIANTS, str)
    if text is None:
        return None
    try:
        return str(orjson.loads(text)["expression"]["expression"])
    except (orjson.JSONDecodeError, KeyError, TypeError) as e:
        raise said.violation(INVARIANTS, f"{text!r} holds no expression: {e}") from None


def _type_change(said: _Said, change: object) -> TypeChange:
    if not isinstance(change, dict) or "fromType" not in change or "toType" not in change:
        raise said.violation(TYPE_CHANGES, f"{change!r} does not say from which type to which")
    version = change.get("tableVersion")
    return TypeChange(
        str(change["fromType"]),
        str(change["toType"]),
        change.get("fieldPath"),
        version if isinstance(version, int) else None,
    )
