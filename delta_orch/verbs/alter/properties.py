"""Properties, the table's name and its description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from delta_orch.errors import InvalidPropertyError
from delta_orch.table.property_rules import ensure_removable, ensure_settable, find_property
from delta_orch.table.protocol_upgrade import (
    is_protocol_request,
    requested_features,
    requested_versions,
    upgraded_versions,
)
from delta_orch.verbs.alter.draft import Draft


@dataclass(frozen=True, slots=True)
class SetProperties:
    """Set properties. `delta.feature.<name>`, `delta.minReaderVersion` and `delta.minWriterVersion` ask for a protocol
    and are not kept."""

    properties: Mapping[str, str]
    operation = "SET TBLPROPERTIES"

    def apply(self, draft: Draft) -> Draft:
        """Raises InvalidPropertyError, UnsupportedFeatureError, InvalidRequestError."""
        asked = ensure_settable(self.properties, on_new_table=False)
        configuration = dict(draft.configuration)
        for key, value in asked.items():
            if not is_protocol_request(key):
                # A table may spell a key in its own way: there must not be two of one name.
                configuration.pop(find_property(configuration, key) or key, None)
                configuration[key] = value
        protocol = upgraded_versions(draft.table.protocol, *requested_versions(asked))
        table = draft.table.after(protocol, None).with_properties(configuration)
        return replace(draft, table=table, features=draft.features | requested_features(asked))

    def parameters(self, before: Draft, after: Draft) -> dict[str, Any]:
        return {"properties": orjson.dumps(ensure_settable(self.properties, on_new_table=False)).decode()}


@dataclass(frozen=True, slots=True)
class UnsetProperties:
    """Remove properties, so that their defaults hold again."""

    keys: tuple[str, ...]
    if_exists: bool = False
    operation = "UNSET TBLPROPERTIES"

    def apply(self, draft: Draft) -> Draft:
        """Raises InvalidPropertyError."""
        ensure_removable(self.keys)
        configuration = dict(draft.configuration)
        for key in self.keys:
            if is_protocol_request(key):
                raise InvalidPropertyError(
                    f"{key} is no property that could be removed", remedy="Use drop_feature(name)", property=key
                )
            found = find_property(configuration, key)
            if found is not None:
                del configuration[found]
            elif not self.if_exists:
                raise InvalidPropertyError(
                    f"The table has no property {key!r}",
                    remedy="Pass if_exists=True where that does not matter",
                    property=key,
                )
        return draft.with_configuration(configuration)

    def parameters(self, before: Draft, after: Draft) -> dict[str, Any]:
        return {"properties": orjson.dumps(self.keys).decode(), "ifExists": self.if_exists}


@dataclass(frozen=True, slots=True)
class SetTableTexts:
    """The table's name or description; the empty text removes it, None leaves it."""

    name: str | None = None
    description: str | None = None
    operation = "UPDATE TABLE METADATA"

    def apply(self, draft: Draft) -> Draft:
        metadata = draft.table.metadata
        if self.name is not None:
            metadata = replace(metadata, name=self.name or None)
        if self.description is not None:
            metadata = replace(metadata, description=self.description or None)
        return replace(draft, table=draft.table.after(None, metadata))

    def parameters(self, before: Draft, after: Draft) -> dict[str, Any]:
        given = {"name": self.name, "description": self.description}
        return {"metadata_update": orjson.dumps({k: v for k, v in given.items() if v is not None}).decode()}
