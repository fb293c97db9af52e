"""The protocol: features that are added, and versions that rise. What leaves it is in `dropping`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import orjson

from delta_orch.errors import InvalidRequestError
from delta_orch.protocol.actions import Protocol
from delta_orch.table.protocol_upgrade import resolve_feature, upgraded_versions, with_dependencies
from delta_orch.verbs.alter.draft import Draft


@dataclass(frozen=True, slots=True)
class AddFeatures:
    """Support for table features, and for those they need."""

    names: tuple[str, ...]
    operation = "UPGRADE PROTOCOL"

    def apply(self, draft: Draft) -> Draft:
        """Raises UnsupportedFeatureError for names nobody here knows, InvalidRequestError for none."""
        if not self.names:
            raise InvalidRequestError("No table feature is named", remedy="Name at least one feature")
        names = {resolve_feature(name).name for name in self.names}
        return replace(draft, features=draft.features | with_dependencies(names))

    def parameters(self, before: Draft, after: Draft) -> dict[str, Any]:
        return {"newProtocol": orjson.dumps(protocol_json(after.table.protocol)).decode()}


@dataclass(frozen=True, slots=True)
class UpgradeProtocol:
    """Versions of at least these; never lower ones than the table has."""

    min_reader_version: int | None = None
    min_writer_version: int | None = None
    operation = "UPGRADE PROTOCOL"

    def apply(self, draft: Draft) -> Draft:
        """Raises InvalidRequestError."""
        protocol = upgraded_versions(draft.table.protocol, self.min_reader_version, self.min_writer_version)
        return replace(draft, table=draft.table.after(protocol, None))

    def parameters(self, before: Draft, after: Draft) -> dict[str, Any]:
        return {"newProtocol": orjson.dumps(protocol_json(after.table.protocol)).decode()}


def protocol_json(protocol: Protocol) -> dict[str, Any]:
    """A protocol as `commitInfo` shows it."""
    shown: dict[str, Any] = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
    }
    for key, features in (("readerFeatures", protocol.reader_features), ("writerFeatures", protocol.writer_features)):
        if features is not None:
            shown[key] = list(features)
    return shown
