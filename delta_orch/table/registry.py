"""Every table feature, one row each, and the one gate that decides whether this release may read or write a table.

Three words, three meanings: a feature is *supported* when the protocol action names or implies it, *enabled* when a
property or the schema asks for it, *active* when both hold. (PROTOCOL, "Table Features", "Valid Feature Names in Table
Features"; legacy versions: "Requirements for Readers", "Requirements for Writers".)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from delta_orch.errors import ProtocolViolationError, UnsupportedFeatureError, UnsupportedVersionError
from delta_orch.protocol.actions import Metadata, Protocol
from delta_orch.table import activity
from delta_orch.table.activity import TableView
from delta_orch.table.type_widening import TYPE_CHANGES, ensure_known_type_changes

MAX_READER_VERSION = 3
MAX_WRITER_VERSION = 7


@dataclass(frozen=True, slots=True)
class TableFeature:
    """One table feature.

    Attributes:
        name: As in `readerFeatures` and `writerFeatures`.
        reader: Whether readers must know it too; otherwise only writers.
        legacy_reader_version, legacy_writer_version: The versions without feature lists that imply it.
        reads: Whether this release reads tables that support it. Writer features never hinder a reader.
        writes: Whether this release honours it when writing.
        is_active: False only where the metadata proves that no part of the table uses it; then a feature that is not
            implemented hinders nobody. (A property that is off proves nothing about files written while it was on.)
        enabled_by: The table property that switches it on, where one does.
        requires: Features that must be supported beside it.
        aliases: Older names of the same feature.
    """

    name: str
    reader: bool = False
    legacy_reader_version: int | None = None
    legacy_writer_version: int | None = None
    reads: bool = False
    writes: bool = False
    is_active: Callable[[TableView], bool] = activity.always
    enabled_by: str | None = None
    requires: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


FEATURES: tuple[TableFeature, ...] = (
    TableFeature("appendOnly", legacy_writer_version=2, writes=True, enabled_by="delta.appendOnly"),
    TableFeature("invariants", legacy_writer_version=2, writes=True, is_active=activity.has_invariants),
    TableFeature("checkConstraints", legacy_writer_version=3, writes=True, is_active=activity.has_check_constraints),
    # Commits that add and remove whole files need no change files of their own, those that copy rows do.
    TableFeature("changeDataFeed", legacy_writer_version=4, writes=True, enabled_by="delta.enableChangeDataFeed"),
    TableFeature("generatedColumns", legacy_writer_version=4, writes=True, is_active=activity.has_generated_columns),
    TableFeature(
        "columnMapping",
        reader=True,
        reads=True,
        writes=True,
        legacy_reader_version=2,
        legacy_writer_version=5,
        is_active=activity.has_column_mapping,
        enabled_by="delta.columnMapping.mode",
    ),
    TableFeature("identityColumns", legacy_writer_version=6, writes=True, is_active=activity.has_identity_columns),
    TableFeature("allowColumnDefaults", writes=True, is_active=activity.has_column_defaults),
    TableFeature("domainMetadata", writes=True),
    TableFeature(
        "rowTracking",
        writes=True,
        enabled_by="delta.enableRowTracking",
        requires=("domainMetadata",),
    ),
    TableFeature("icebergCompatV1", writes=True, is_active=activity.property_is_true("delta.enableIcebergCompatV1"),
                 enabled_by="delta.enableIcebergCompatV1", requires=("columnMapping",)),
    TableFeature("icebergCompatV2", writes=True, is_active=activity.property_is_true("delta.enableIcebergCompatV2"),
                 enabled_by="delta.enableIcebergCompatV2", requires=("columnMapping",)),
    TableFeature("icebergCompatV3", is_active=activity.property_is_true("delta.enableIcebergCompatV3"),
                 enabled_by="delta.enableIcebergCompatV3", requires=("columnMapping",)),
    TableFeature("clustering", writes=True, requires=("domainMetadata",)),
    TableFeature(
        "inCommitTimestamp",
        writes=True,
        is_active=activity.property_is_true("delta.enableInCommitTimestamps"),
        enabled_by="delta.enableInCommitTimestamps",
        aliases=("inCommitTimestamps", "inCommitTimestamp-preview"),
    ),
    TableFeature("checkpointProtection", writes=True),
    TableFeature("materializePartitionColumns", writes=True),
    TableFeature("collations", is_active=activity.has_collations, aliases=("collations-preview",)),
    TableFeature("timestampNtz", reader=True, reads=True, writes=True),
    TableFeature(
        "deletionVectors",
        reader=True,
        reads=True,
        writes=True,
        enabled_by="delta.enableDeletionVectors",
    ),
    TableFeature("v2Checkpoint", reader=True, reads=True, writes=True, enabled_by="delta.checkpointPolicy"),
    TableFeature("vacuumProtocolCheck", reader=True, reads=True, writes=True),
    TableFeature("typeWidening", reader=True, reads=True, writes=True, enabled_by="delta.enableTypeWidening",
                 aliases=("typeWidening-preview",)),
    TableFeature("variantType", reader=True, reads=True, writes=True, aliases=("variantType-preview",)),
    TableFeature("variantShredding", reader=True, reads=True, writes=True, enabled_by="delta.enableVariantShredding",
                 requires=("variantType",), aliases=("variantShredding-preview",)),
    TableFeature("catalogManaged", reader=True, aliases=("catalogOwned-preview", "catalogOwned")),
)  # fmt: skip

_BY_NAME: Mapping[str, TableFeature] = {name: f for f in FEATURES for name in (f.name, *f.aliases)}


def find_feature(name: str) -> TableFeature | None:
    """The feature of that name, older names included; None for a name no release of this package knows."""
    return _BY_NAME.get(name)


@lru_cache(256)
def supported_features(protocol: Protocol) -> frozenset[str]:
    """Names of all features the protocol names or, below versions 3 and 7, implies; older names as they stand."""
    listed = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    if protocol.min_writer_version < MAX_WRITER_VERSION:
        listed |= {
            f.name
            for f in FEATURES
            if f.legacy_writer_version is not None and f.legacy_writer_version <= protocol.min_writer_version
        }
    if protocol.min_reader_version == 2:
        listed.add("columnMapping")
    return frozenset(listed)


@lru_cache(1024)
def supports(protocol: Protocol, name: str) -> bool:
    """Whether the protocol names or implies a feature, under its name or an older one."""
    return any((feature := find_feature(n)) is not None and feature.name == name for n in supported_features(protocol))


def ensure_readable(protocol: Protocol, metadata: Metadata) -> None:
    """Refuse a table this release might misread.

    Raises:
        UnsupportedVersionError: A reader version above 3.
        UnsupportedFeatureError: Reader features that are unknown or not implemented, all named.
        ProtocolViolationError: Reader version 3 without `readerFeatures`.
    """
    version = protocol.min_reader_version
    if version > MAX_READER_VERSION:
        raise _unsupported_version("read", version, MAX_READER_VERSION)
    if version == MAX_READER_VERSION and protocol.reader_features is None:
        raise ProtocolViolationError(
            "The table's protocol has reader version 3 but no readerFeatures",
            cause='From this version on a protocol lists its features (PROTOCOL, "Table Features")',
            remedy="Restore the commit that wrote the protocol from a backup",
        )
    needed = set(protocol.reader_features or ())
    # Reader version 2 implies it, and tables at (3, 7) exist that list it for writers only.
    if "columnMapping" in supported_features(protocol):
        needed.add("columnMapping")
    view = TableView(metadata)
    _refuse("read", needed, lambda f: f.reads or not f.is_active(view))
    if TYPE_CHANGES in metadata.schema_string:
        ensure_known_type_changes(view.schema)


def ensure_writable(protocol: Protocol, metadata: Metadata) -> None:
    """Refuse a table this release might damage by writing.

    A feature that is supported but provably not in use (no constraint, no generated column, …) does not hinder.

    Raises:
        UnsupportedVersionError: A reader version above 3 or a writer version above 7.
        UnsupportedFeatureError: Features that are unknown or not implemented, all named. Nothing was written.
        ProtocolViolationError: Writer version 7 without `writerFeatures`.
    """
    ensure_readable(protocol, metadata)
    if protocol.min_writer_version > MAX_WRITER_VERSION:
        raise _unsupported_version("write", protocol.min_writer_version, MAX_WRITER_VERSION)
    if protocol.min_writer_version == MAX_WRITER_VERSION and protocol.writer_features is None:
        raise ProtocolViolationError(
            "The table's protocol has writer version 7 but no writerFeatures",
            cause='From this version on a protocol lists its features (PROTOCOL, "Table Features")',
            remedy="Restore the commit that wrote the protocol from a backup",
        )
    view = TableView(metadata)
    _refuse("write", supported_features(protocol), lambda f: f.writes or not f.is_active(view))


def ensure_features_writable(names: Iterable[str]) -> None:
    """Refuse to add features to a table that this release could not write afterwards.

    Raises:
        UnsupportedFeatureError: Features that are unknown or not implemented, all named. Nothing was changed.
    """
    _refuse("write", set(names), lambda f: f.writes)


def _refuse(verb: str, names: frozenset[str] | set[str], passes: Callable[[TableFeature], bool]) -> None:
    unknown = sorted(n for n in names if n not in _BY_NAME)
    refused = sorted(n for n in names if n in _BY_NAME and not passes(_BY_NAME[n]))
    if not unknown and not refused:
        return
    both = sorted(unknown + refused)
    causes = []
    if refused:
        causes.append(f"not implemented for {verb[:4]}ing: {', '.join(refused)}")
    if unknown:
        causes.append(f"unknown: {', '.join(unknown)}")
    remedy = "Use a newer release of delta_orch, or drop the feature with the client that added it"
    if any(n.startswith("catalog") for n in both):
        remedy = "A catalog decides this table's commits: access it through that catalog, not through its files"
    raise UnsupportedFeatureError(
        f"Cannot {verb} the table: it uses table features this release does not support",
        cause="; ".join(causes),
        remedy=remedy,
        features=both,
    )


def _unsupported_version(verb: str, version: int, newest: int) -> UnsupportedVersionError:
    return UnsupportedVersionError(
        f"Cannot {verb} the table: it needs protocol version {version}, this release knows versions up to {newest}",
        remedy="Use a newer release of delta_orch",
        version=version,
    )
