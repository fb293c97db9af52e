"""Which table properties a user may set or remove, and what to use instead of the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from delta_orch.errors import InvalidPropertyError
from delta_orch.protocol.table_properties import ensure_valid_properties

CONSTRAINT_PREFIX = "delta.constraints."
_INTERNAL = frozenset(
    key.lower()
    for key in (
        "delta.columnMapping.maxColumnId",
        "delta.inCommitTimestampEnablementVersion",
        "delta.inCommitTimestampEnablementTimestamp",
        "delta.requireCheckpointProtectionBeforeVersion",
        "delta.rowTracking.materializedRowIdColumnName",
        "delta.rowTracking.materializedRowCommitVersionColumnName",
    )
)
"""What the table records about itself. Changing it would break what depends on it."""


def ensure_settable(properties: Mapping[str, str], *, on_new_table: bool) -> dict[str, str]:
    """Properties a user sets, checked and in their canonical spelling.

    Raises:
        InvalidPropertyError: An unknown `delta.*` key, an invalid value, a key that only the table itself may
            change, or a constraint on an existing table, whose rows would have to be checked first.
    """
    _ensure_not_internal(properties)
    if not on_new_table:
        _ensure_no_constraint(properties, "add_constraint(name, expression), which checks the rows first")
    for key, value in properties.items():
        try:
            f"{key}{value}".encode()
        except UnicodeEncodeError as e:
            raise InvalidPropertyError(
                f"Table property {key!a} is not valid Unicode", cause=str(e), property=ascii(key)
            ) from None
    return ensure_valid_properties(properties)


def ensure_removable(keys: Iterable[str]) -> None:
    """Raise InvalidPropertyError for keys that only the table itself, or another request, may remove."""
    keys = tuple(keys)
    _ensure_not_internal(keys)
    _ensure_no_constraint(keys, "drop_constraint(name)")


def find_property(configuration: Mapping[str, str], key: str) -> str | None:
    """The key as the table spells it: an exact match, or for the protocol's own names one that differs in case."""
    if key in configuration:
        return key
    if key.lower().startswith("delta."):
        return next((k for k in configuration if k.lower() == key.lower()), None)
    return None


def _ensure_not_internal(keys: Iterable[str]) -> None:
    for key in keys:
        if not isinstance(key, str) or not key:
            raise InvalidPropertyError(
                f"The name of a table property is a string, not {key!r}", remedy="Pass a non-empty string", property=key
            )
        if key.lower() in _INTERNAL:
            raise InvalidPropertyError(
                f"Table property {key} belongs to the table itself",
                cause="It records what the table has done, for example which column ids it has given out",
                remedy="Leave it out: the table sets it where it is needed",
                property=key,
            )


def _ensure_no_constraint(keys: Iterable[str], remedy: str) -> None:
    for key in keys:
        if key.lower().startswith(CONSTRAINT_PREFIX):
            raise InvalidPropertyError(
                f"Table property {key} is a constraint, not a setting", remedy=f"Use {remedy}", property=key
            )
