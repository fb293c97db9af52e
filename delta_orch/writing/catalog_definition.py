"""Applies the rules of a catalog for the definition of its tables."""

from __future__ import annotations

from collections.abc import Mapping

from delta_orch.errors import InvalidPropertyError, UnsupportedFeatureError
from delta_orch.storage.base import DefinitionRules
from delta_orch.table.column_mapping import MAX_COLUMN_ID
from delta_orch.table.protocol_upgrade import FEATURE_PREFIX
from delta_orch.table.registry import find_feature
from delta_orch.table.row_tracking import ROW_COMMIT_VERSION_COLUMN, ROW_ID_COLUMN

_CHOSEN_BY_WRITER = frozenset({MAX_COLUMN_ID, ROW_ID_COLUMN, ROW_COMMIT_VERSION_COLUMN})


def as_catalog_asks(properties: Mapping[str, str], rules: DefinitionRules) -> tuple[dict[str, str], frozenset[str]]:
    """Return the properties of a new table, including those that its catalog suggests or requires, and the required
    features.

    Raises:
        InvalidPropertyError: A property contradicts the catalog. Or this release cannot choose a value for a required
            property.
        UnsupportedFeatureError: The catalog requires a feature that this release does not write.
    """
    required = {key: value for key, value in rules.required.items() if not key.startswith(FEATURE_PREFIX)}
    for key, value in required.items():
        if value is None and key not in _CHOSEN_BY_WRITER:
            raise InvalidPropertyError(
                f"The catalog requires the table property {key}, but this release knows no value for it",
                remedy="Create the table with another client",
                key=key,
            )
        if value is not None and properties.get(key, value) != value:
            raise InvalidPropertyError(
                f"{key}={properties[key]} contradicts the catalog, which requires {value}",
                remedy="Leave the property out",
                key=key,
            )
    features = frozenset(key.removeprefix(FEATURE_PREFIX) for key in rules.required if key.startswith(FEATURE_PREFIX))
    unknown = sorted(
        name for name in features if (row := find_feature(name)) is None or not (row.writes or row.by_catalog)
    )
    if unknown:
        raise UnsupportedFeatureError(
            f"Cannot create the table: the catalog requires {', '.join(unknown)}",
            cause="This release does not write these table features",
            remedy="Create the table with another client",
            features=unknown,
        )
    chosen = {**rules.suggested, **properties, **required}
    return {key: value for key, value in chosen.items() if value is not None}, features
