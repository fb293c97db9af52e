"""Which table features can leave a table, and what must be true before they do.

A feature that nothing in the table uses can leave the protocol. Whatever only controls how files are written is removed
with it: its properties go, and files that only its readers understand are rewritten (`FileTrait`). Whatever concerns
the rows, such as a constraint, the user removes first. Where older versions may still hold traces of the feature, the
table protects that history: `checkpointProtection` with `delta.requireCheckpointProtectionBeforeVersion`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from delta_orch.protocol.actions import Protocol
from delta_orch.protocol.types import TIMESTAMP_NTZ, VARIANT, DataType, fields_of, types_of
from delta_orch.table import registry
from delta_orch.table.configuration import TableConfiguration
from delta_orch.table.registry import (
    FEATURES,
    MAX_WRITER_VERSION,
    asks_for,
    canonical_features,
    find_feature,
    supported_features,
)
from delta_orch.table.row_tracking import ROW_COMMIT_VERSION_COLUMN, ROW_ID_COLUMN
from delta_orch.table.type_widening import has_type_changes

PROTECTED_BEFORE = "delta.requireCheckpointProtectionBeforeVersion"

Blocker = Callable[[TableConfiguration], str | None]
"""What to do first, because the metadata still uses the feature; None where it does not."""


class FileTrait(Enum):
    """What a data file may hold that only readers of a feature understand."""

    MAPPED_NAMES = "columns under physical names"
    OLDER_TYPES = "columns in a type the table had before"
    DELETION_VECTOR = "a deletion vector"
    SHREDDED_VARIANTS = "shredded variants"


@dataclass(frozen=True, slots=True)
class Removal:
    """How a feature leaves a table.

    Attributes:
        blocker: What must be removed first.
        forgets: Properties that go with it.
        history_needs_it: Older versions may hold what only readers of the feature understand.
        trait: What no file may hold afterward. Files that do are rewritten.
        uses: Whether a version with this metadata uses the feature, where `history_needs_it`.
    """

    blocker: Blocker
    forgets: tuple[str, ...] = ()
    history_needs_it: bool = False
    trait: FileTrait | None = None
    uses: Callable[[TableConfiguration], bool] = registry.always


def _nothing(view: TableConfiguration) -> None:
    return None


def _while(is_used: Callable[[TableConfiguration], bool], remedy: str) -> Blocker:
    return lambda view: remedy if is_used(view) else None


def _while_set(name: str) -> Blocker:
    return _while(asks_for(name), f"set {name} to another value first")


def _has_type(data_type: DataType) -> Callable[[TableConfiguration], bool]:
    return lambda view: any(t == data_type for t in types_of(view.schema))


def _has_not_null(view: TableConfiguration) -> bool:
    return any(not field.nullable for field in fields_of(view.schema))


_ICT = "delta.inCommitTimestampEnablement"

REMOVALS: Mapping[str, Removal] = {
    "appendOnly": Removal(_while_set("delta.appendOnly")),
    "invariants": Removal(
        _while(lambda v: registry.has_invariants(v) or _has_not_null(v), "drop NOT NULL and the invariants first")
    ),
    "checkConstraints": Removal(_while(registry.has_check_constraints, "drop the constraints first")),
    "changeDataFeed": Removal(_while_set("delta.enableChangeDataFeed")),
    "generatedColumns": Removal(_while(registry.has_generated_columns, "drop the generated columns first")),
    "identityColumns": Removal(_while(registry.has_identity_columns, "drop the identity columns first")),
    "allowColumnDefaults": Removal(_while(registry.has_column_defaults, "drop the defaults first")),
    "domainMetadata": Removal(_nothing),
    "clustering": Removal(_nothing),
    "icebergCompatV1": Removal(_while_set("delta.enableIcebergCompatV1")),
    "icebergCompatV2": Removal(_while_set("delta.enableIcebergCompatV2")),
    "inCommitTimestamp": Removal(
        _nothing, forgets=("delta.enableInCommitTimestamps", f"{_ICT}Version", f"{_ICT}Timestamp")
    ),
    "materializePartitionColumns": Removal(_while_set("delta.writePartitionColumnsToParquet")),
    "checkpointProtection": Removal(_nothing, forgets=(PROTECTED_BEFORE,)),
    "rowTracking": Removal(
        _nothing,
        forgets=("delta.enableRowTracking", "delta.rowTrackingSuspended", ROW_ID_COLUMN, ROW_COMMIT_VERSION_COLUMN),
    ),
    # Nothing in the log depends on it.
    "vacuumProtocolCheck": Removal(_nothing, history_needs_it=True, uses=lambda view: False),
    "timestampNtz": Removal(
        _while(_has_type(TIMESTAMP_NTZ), "drop the columns of type timestamp_ntz first"),
        history_needs_it=True,
        uses=_has_type(TIMESTAMP_NTZ),
    ),
    "variantType": Removal(
        _while(_has_type(VARIANT), "drop the variant columns first"), history_needs_it=True, uses=_has_type(VARIANT)
    ),
    "variantShredding": Removal(
        _nothing,
        forgets=("delta.enableVariantShredding",),
        history_needs_it=True,
        trait=FileTrait.SHREDDED_VARIANTS,
        uses=asks_for("delta.enableVariantShredding"),
    ),
    "typeWidening": Removal(
        _nothing,
        forgets=("delta.enableTypeWidening",),
        history_needs_it=True,
        trait=FileTrait.OLDER_TYPES,
        uses=lambda view: asks_for("delta.enableTypeWidening")(view) or has_type_changes(view.schema),
    ),
    "deletionVectors": Removal(
        _nothing,
        forgets=("delta.enableDeletionVectors",),
        history_needs_it=True,
        trait=FileTrait.DELETION_VECTOR,
        uses=asks_for("delta.enableDeletionVectors"),
    ),
    "v2Checkpoint": Removal(
        _nothing,
        forgets=("delta.checkpointPolicy",),
        history_needs_it=True,
        uses=asks_for("delta.checkpointPolicy"),
    ),
    "columnMapping": Removal(
        _nothing,
        forgets=("delta.columnMapping.mode", "delta.columnMapping.maxColumnId"),
        history_needs_it=True,
        trait=FileTrait.MAPPED_NAMES,
        uses=registry.has_column_mapping,
    ),
}

KEPT: Mapping[str, str] = {
    "collations": "this release does not know what depends on it",
    "icebergCompatV3": "this release does not know what depends on it",
    "catalogManaged": "a catalog decides it",
}
"""Features that cannot be dropped, and why."""


def dependents_of(protocol: Protocol, name: str) -> tuple[str, ...]:
    """The supported features that need another one."""
    supported = canonical_features(protocol)
    return tuple(sorted(f.name for f in FEATURES if f.name in supported and name in f.requires))


def without_features(protocol: Protocol, names: Iterable[str]) -> Protocol:
    """The protocol without features, under any of their names; the lowest that implies or lists exactly the rest."""
    gone = set(names)
    rest = {name for name in supported_features(protocol) if (f := find_feature(name)) is None or f.name not in gone}
    reader = {name for name in rest if (f := find_feature(name)) is not None and f.reader}
    reader |= {name for name in protocol.reader_features or () if name in rest}
    for version in range(1, MAX_WRITER_VERSION):
        implied = {f.name for f in FEATURES if (f.legacy_writer_version or MAX_WRITER_VERSION) <= version}
        if implied == rest:
            return Protocol(2 if "columnMapping" in rest else 1, version, extra=protocol.extra)
    if reader:
        return Protocol(3, MAX_WRITER_VERSION, tuple(sorted(reader)), tuple(sorted(rest)), protocol.extra)
    return Protocol(1, MAX_WRITER_VERSION, None, tuple(sorted(rest)), protocol.extra)
