"""What a caller passes to an alteration, checked for its kind before anything else looks at it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from delta_orch.errors import InvalidPropertyError, InvalidRequestError, SchemaMismatchError
from delta_orch.protocol.type_text import parse_declared_type
from delta_orch.protocol.types import DataType, StructField


def ensure_text(value: Any, what: str) -> str:
    """Raise InvalidRequestError unless the value is a text."""
    if not isinstance(value, str):
        raise InvalidRequestError(f"{what} must be a text, not {value!r}")
    return value


def ensure_texts(values: Iterable[Any], what: str) -> tuple[str, ...]:
    """The values as a tuple; raises InvalidRequestError unless each is a text."""
    return tuple(ensure_text(value, what) for value in values)


def ensure_properties(properties: Any) -> dict[str, str]:
    """Properties as a dictionary of texts; numbers and booleans become such.

    Raises:
        InvalidPropertyError: No mapping, a name that is no text or empty, or a value of another kind.
    """
    if not isinstance(properties, Mapping):
        raise InvalidPropertyError(f"Properties must be a mapping of names to values, not {properties!r}")
    checked = {}
    for key, value in properties.items():
        if not isinstance(key, str) or not key:
            raise InvalidPropertyError(f"The name of a property must be a text, not {key!r}")
        if not isinstance(value, str | bool | int | float):
            raise InvalidPropertyError(f"The property {key} must have a text as its value, not {value!r}", property=key)
        checked[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return checked


def field_of(data_type: Any, nullable: bool = True, comment: str | None = None) -> StructField:
    """A column without a name, of a type or its text.

    Raises:
        SchemaMismatchError: It is no type.
    """
    if isinstance(data_type, str):
        declared, metadata = parse_declared_type(data_type)
    elif isinstance(data_type, DataType):
        declared, metadata = data_type, {}
    else:
        raise SchemaMismatchError(f"{data_type!r} is no type", remedy="Write it as in Spark SQL: bigint, array<string>")
    given = {**metadata} if comment is None else {**metadata, "comment": ensure_text(comment, "A comment")}
    return StructField("", declared, bool(nullable), given)
