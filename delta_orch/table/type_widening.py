"""Type widening: which changes of a column's type a reader may meet (PROTOCOL, "Type Widening").

Files keep the type they were written with. Readers cast their values to the table's current type. The schema records
the changes; a reader must refuse one that it does not know.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from dataclasses import replace

from delta_orch.errors import ProtocolViolationError, UnsupportedFeatureError
from delta_orch.protocol.schema import TYPE_CHANGES, data_type_from_json
from delta_orch.protocol.schema_edit import Path, without_metadata
from delta_orch.protocol.types import (
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    SHORT,
    TIMESTAMP_NTZ,
    VOID,
    DataType,
    DecimalType,
    StructField,
    StructType,
    fields_of,
    parts_of,
)

_MAX_PRECISION = 38

_WIDER: dict[DataType, frozenset[DataType]] = {
    BYTE: frozenset({SHORT, INTEGER, LONG, DOUBLE}),
    SHORT: frozenset({INTEGER, LONG, DOUBLE}),
    INTEGER: frozenset({LONG, DOUBLE}),
    FLOAT: frozenset({DOUBLE}),
    DATE: frozenset({TIMESTAMP_NTZ}),
}
_DECIMAL_DIGITS: dict[DataType, int] = {BYTE: 10, SHORT: 10, INTEGER: 10, LONG: 20}
_MOST_DIGITS: dict[DataType, int] = {BYTE: 3, SHORT: 5, INTEGER: 10, LONG: 19}


def is_widening(source: DataType, target: DataType) -> bool:
    """Whether the protocol allows a writer to turn a column of the one type into the other."""
    if target in _WIDER.get(source, ()):
        return True
    if not isinstance(target, DecimalType):
        return False
    if isinstance(source, DecimalType):
        more_scale = target.scale - source.scale
        return source != target and more_scale >= 0 and target.precision - source.precision >= more_scale
    digits = _DECIMAL_DIGITS.get(source)
    return digits is not None and target.precision - target.scale >= digits


def is_followable(source: DataType, target: DataType) -> bool:
    """Whether a reader can turn every value of the one type into the other.

    More than writers may do: some tables widened an integer to a decimal with exactly the digits that it needs.
    """
    if is_widening(source, target):
        return True
    digits = _MOST_DIGITS.get(source)
    return isinstance(target, DecimalType) and digits is not None and target.precision - target.scale >= digits


def widened_by_data(ours: DataType, theirs: DataType) -> DataType | None:
    """The type of a column after a merge with data of another type; None if no type holds both.

    Integers become wider integers, floats doubles, dates timestamps, decimals grow on both sides. Integers
    do not become decimals or doubles by themselves: the column would no longer hold only whole numbers.
    """
    if isinstance(ours, DecimalType) and isinstance(theirs, DecimalType):
        scale = max(ours.scale, theirs.scale)
        precision = scale + max(ours.precision - ours.scale, theirs.precision - theirs.scale)
        wider = DecimalType(precision, scale) if precision <= _MAX_PRECISION else None
        return wider if wider is not None and is_widening(ours, wider) else None
    if not is_widening(ours, theirs) or isinstance(theirs, DecimalType):
        return None
    return None if theirs == DOUBLE and ours != FLOAT else theirs


def changed_types(before: DataType, after: DataType, path: Path = ()) -> Iterator[tuple[Path, DataType, DataType]]:
    """The places, at any depth, where a type became another one: each with both. A column without a type does not
    change."""
    parts, later = parts_of(before), dict(parts_of(after))
    for name, inner in parts:
        if name in later:
            yield from changed_types(inner, later[name], (*path, name))
    if not parts and before not in (after, VOID):
        yield path, before, after


def with_type_change(field: StructField, before: DataType, after: DataType, place: str = "") -> StructField:
    """The field with one more entry in its history of type changes, the latest last.

    Args:
        place: Where inside the field: empty for itself, else `element`, `key`, `value`, joined by dots.
    """
    change = {"fromType": str(before), "toType": str(after)} | ({"fieldPath": place} if place else {})
    return replace(field, metadata={**field.metadata, TYPE_CHANGES: [*field.metadata.get(TYPE_CHANGES, ()), change]})


def without_type_changes(schema: StructType) -> StructType:
    """The schema without a history of types, of a table whose files all hold the types it has."""
    return without_metadata(schema, TYPE_CHANGES.__eq__)


def has_type_changes(schema: StructType) -> bool:
    """Whether files may hold a column in another type than the schema has."""
    return any(field.metadata.get(TYPE_CHANGES) for field in fields_of(schema))


def ensure_known_type_changes(schema: StructType) -> None:
    """Check the history of every column.

    Raises:
        UnsupportedFeatureError: It holds a change this release does not know, so older files could be misread.
        ProtocolViolationError: It is malformed.
    """
    for field in fields_of(schema):
        changes = field.metadata.get(TYPE_CHANGES) or ()
        if not isinstance(changes, (list, tuple)):
            raise _malformed(field, changes)
        for change in changes:
            try:
                source, target = data_type_from_json(change["fromType"]), data_type_from_json(change["toType"])
            except (KeyError, TypeError):
                raise _malformed(field, change) from None
            if not is_followable(source, target):
                raise UnsupportedFeatureError(
                    f"Column {field.name!r} was changed from {source} to {target}, which this release cannot follow",
                    remedy="Use a newer release of delta_orch",
                    features=["typeWidening"],
                    column=field.name,
                )


def _malformed(field: StructField, history: object) -> ProtocolViolationError:
    return ProtocolViolationError(
        f"Column {field.name!r} has a malformed history of type changes", cause=reprlib.repr(history)[:200]
    )
