"""Every table feature, one row each, and the one gate that decides whether this release may read or write a table.

Three words, three meanings: a feature is *supported* when the protocol action names or implies it, *enabled* when a
property or the schema asks for it, *active* when both hold. (PROTOCOL, "Table Features", "Valid Feature Names in Table
Features"; legacy versions: "Requirements for Readers", "Requirements for Writers".)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from delta_orch.errors import ProtocolViolationError, UnsupportedFeatureError, UnsupportedVersionError
from delta_orch.protocol.actions import Metadata, Protocol
from delta_orch.protocol.schema import (
    CURRENT_DEFAULT,
    GENERATION_EXPRESSION,
    IDENTITY_START,
    INVARIANTS,
    TYPE_CHANGES,
    parse_schema,
)
from delta_orch.protocol.types import COLLATIONS, fields_of

MAX_READER_VERSION = 3
MAX_WRITER_VERSION = 7


def always(metadata: Metadata) -> bool:
    return True


def asks_for(property_name: str) -> Callable[[Metadata], bool]:
    """Whether a property is set to anything but the values that switch its feature off; its name in any case."""
    name = property_name.lower()

    def is_asked_for(metadata: Metadata) -> bool:
        values = (value for key, value in metadata.configuration.items() if key.lower() == name)
        return next(values, "false").strip().lower() not in ("false", "none", "classic")

    return is_asked_for


def has_check_constraints(metadata: Metadata) -> bool:
    return any(key.lower().startswith("delta.constraints.") for key in metadata.configuration)


def has_field_key(key: str) -> Callable[[Metadata], bool]:
    """Whether the metadata of any field, at any depth, has this key."""

    def has_key(metadata: Metadata) -> bool:
        # The text first: most tables do not need their schema parsed for this.
        return key in metadata.schema_string and any(
            key in field.metadata for field in fields_of(parse_schema(metadata.schema_string))
        )

    return has_key


has_column_mapping = asks_for("delta.columnMapping.mode")
has_invariants = has_field_key(INVARIANTS)
has_generated_columns = has_field_key(GENERATION_EXPRESSION)
has_identity_columns = has_field_key(IDENTITY_START)
has_column_defaults = has_field_key(CURRENT_DEFAULT)


def has_collations(metadata: Metadata) -> bool:
    """Whether a string column compares other than byte by byte. Its field says so, in older tables its type."""
    text = metadata.schema_string
    return COLLATIONS in text or " collate " in text.lower()


class TableFeature(NamedTuple):
    """One table feature.

    Attributes:
        name: As in `readerFeatures` and `writerFeatures`.
        reader: Whether readers must know it too; otherwise only writers.
        legacy_reader_version, legacy_writer_version: The versions without feature lists that imply it.
        reads: Whether this release reads tables that support it. Only reader features matter to readers.
        writes: Whether this release honors it when writing.
        is_active: False only where the metadata proves that no part of the table uses it. Then a feature that is not
            implemented is no obstacle. (A property that is off proves nothing about files written while it was on.)
        enabled_by: The table property that switches it on, where one does.
        requires: Features that must be supported along with it.
        aliases: Older names of the same feature.
        by_catalog: Whether tables with it are read and written if a catalog opens them (`ensure_asks_catalog`).
        what: What it is, where it is not implemented: errors say so.
    """

    name: str
    reader: bool = False
    legacy_reader_version: int | None = None
    legacy_writer_version: int | None = None
    reads: bool = True
    writes: bool = True
    is_active: Callable[[Metadata], bool] = always
    enabled_by: str | None = None
    requires: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    by_catalog: bool = False
    what: str = ""


FEATURES: tuple[TableFeature, ...] = (
    TableFeature("appendOnly", legacy_writer_version=2, enabled_by="delta.appendOnly"),
    TableFeature("invariants", legacy_writer_version=2, is_active=has_invariants),
    TableFeature("checkConstraints", legacy_writer_version=3, is_active=has_check_constraints),
    TableFeature("changeDataFeed", legacy_writer_version=4, enabled_by="delta.enableChangeDataFeed"),
    TableFeature("generatedColumns", legacy_writer_version=4, is_active=has_generated_columns),
    TableFeature("columnMapping", reader=True, legacy_reader_version=2, legacy_writer_version=5,
                 is_active=has_column_mapping, enabled_by="delta.columnMapping.mode"),
    TableFeature("identityColumns", legacy_writer_version=6, is_active=has_identity_columns),
    TableFeature("allowColumnDefaults", is_active=has_column_defaults),
    TableFeature("domainMetadata"),
    TableFeature("rowTracking", enabled_by="delta.enableRowTracking", requires=("domainMetadata",)),
    TableFeature("icebergCompatV1", is_active=asks_for("delta.enableIcebergCompatV1"),
                 enabled_by="delta.enableIcebergCompatV1", requires=("columnMapping",)),
    TableFeature("icebergCompatV2", is_active=asks_for("delta.enableIcebergCompatV2"),
                 enabled_by="delta.enableIcebergCompatV2", requires=("columnMapping",)),
    TableFeature("icebergCompatV3", is_active=asks_for("delta.enableIcebergCompatV3"),
                 enabled_by="delta.enableIcebergCompatV3", requires=("columnMapping", "rowTracking")),
    TableFeature("clustering", requires=("domainMetadata",)),
    TableFeature("inCommitTimestamp", is_active=asks_for("delta.enableInCommitTimestamps"),
                 enabled_by="delta.enableInCommitTimestamps",
                 aliases=("inCommitTimestamps", "inCommitTimestamp-preview")),
    TableFeature("checkpointProtection"),
    TableFeature("materializePartitionColumns"),
    TableFeature("collations", writes=False, is_active=has_collations, aliases=("collations-preview",)),
    TableFeature("timestampNtz", reader=True),
    TableFeature("deletionVectors", reader=True, enabled_by="delta.enableDeletionVectors"),
    TableFeature("v2Checkpoint", reader=True, enabled_by="delta.checkpointPolicy"),
    TableFeature("vacuumProtocolCheck", reader=True),
    TableFeature("typeWidening", reader=True, enabled_by="delta.enableTypeWidening",
                 aliases=("typeWidening-preview",)),
    TableFeature("variantType", reader=True, aliases=("variantType-preview",)),
    TableFeature("variantShredding", reader=True, enabled_by="delta.enableVariantShredding",
                 requires=("variantType",), aliases=("variantShredding-preview",)),
    TableFeature("geospatial", reader=True, aliases=("geospatial-dev",)),
    TableFeature("catalogManaged", reader=True, reads=False, writes=False, by_catalog=True,
                 aliases=("catalogOwned-preview", "catalogOwned")),
    TableFeature("coordinatedCommits", reads=False, writes=False, aliases=("coordinatedCommits-preview",),
                 is_active=asks_for("delta.coordinatedCommits.commitCoordinator-preview"),
                 what="a commit coordinator, not the log, knows the newest commits"),
    TableFeature("redirectReaderWriter", reader=True, reads=False, writes=False,
                 aliases=("redirectReaderWriter-preview",), what="the table lives where a property says"),
    TableFeature("redirectWriterOnly", writes=False, aliases=("redirectWriterOnly-preview",),
                 what="writes belong to another table, a property says to which"),
    TableFeature("adaptiveMetadata", reader=True, reads=False, writes=False, aliases=("adaptiveMetadata-preview",),
                 what="the list of files is a tree of manifests, as in Iceberg V4"),
    TableFeature("timestampNanos", reader=True, reads=False, writes=False,
                 what="columns of timestamps in nanoseconds"),
)  # fmt: skip

CATALOG_MANAGED = "catalogManaged"
_SPELLED = (CATALOG_MANAGED, "catalogOwned-preview", "catalogOwned")

FEATURES_BY_NAME: Mapping[str, TableFeature] = {name: f for f in FEATURES for name in (f.name, *f.aliases)}
"""The features by their names, older ones included."""


def find_feature(name: str) -> TableFeature | None:
    """The feature of that name, older names included; None for a name no release of this package knows."""
    return FEATURES_BY_NAME.get(name)


@lru_cache(256)
def supported_features(protocol: Protocol) -> frozenset[str]:
    """Names of all features that the protocol lists or its versions imply, as the protocol spells them."""
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


@lru_cache(256)
def canonical_features(protocol: Protocol) -> frozenset[str]:
    """`supported_features` under today's names: a table with `typeWidening-preview` supports `typeWidening`."""
    names = supported_features(protocol)
    return frozenset(name if (feature := find_feature(name)) is None else feature.name for name in names)


def ensure_readable(protocol: Protocol, metadata: Metadata) -> None:
    """Refuse a table that this release might misread. Called by `TableConfiguration.for_reading`.

    Raises:
        UnsupportedVersionError: The reader version is above 3.
        UnsupportedFeatureError: Reader features are unknown or not implemented; all are named.
        ProtocolViolationError: Reader version 3 without `readerFeatures`.
    """
    _ensure_version("read", protocol.min_reader_version, MAX_READER_VERSION, protocol.reader_features)
    needed = set(protocol.reader_features or ())
    # Reader version 2 implies it. Some tables at (3, 7) list it for writers only.
    if "columnMapping" in supported_features(protocol):
        needed.add("columnMapping")
    # Who reads past a coordinator would miss commits, although only writers must know it.
    needed |= {n for n in supported_features(protocol) if (f := find_feature(n)) is not None and not f.reads}
    _refuse("read", needed, lambda f: f.reads or f.by_catalog or not f.is_active(metadata))
    if TYPE_CHANGES in metadata.schema_string:
        from delta_orch.table.type_widening import ensure_known_type_changes

        ensure_known_type_changes(parse_schema(metadata.schema_string))


def ensure_writable(protocol: Protocol, metadata: Metadata) -> None:
    """Refuse a table that this release might damage by writing. Called by `TableConfiguration.for_writing`.

    A feature that is supported but provably not in use (no constraint, no generated column, …) is no obstacle.

    Raises:
        UnsupportedVersionError: The reader version is above 3 or the writer version above 7.
        UnsupportedFeatureError: Features are unknown or not implemented; all are named. Nothing was written.
        ProtocolViolationError: Writer version 7 without `writerFeatures`.
    """
    ensure_readable(protocol, metadata)
    _ensure_version("write", protocol.min_writer_version, MAX_WRITER_VERSION, protocol.writer_features)
    _refuse("write", supported_features(protocol), lambda f: f.writes or f.by_catalog or not f.is_active(metadata))


def ensure_features_writable(names: Iterable[str]) -> None:
    """Refuse to add features to a table that this release could not write afterwards.

    Raises:
        UnsupportedFeatureError: Features that are unknown or not implemented, all named. Nothing was changed.
    """
    _refuse("write", set(names), lambda f: f.writes)


def ensure_asks_catalog(protocol: Protocol, is_catalog_managed: bool, place: str) -> None:
    """Refuse the files of a table whose commits a catalog decides, if the catalog is not asked.

    Args:
        is_catalog_managed: Whether the table was opened by its name in the catalog.
        place: The table in messages.

    Raises:
        UnsupportedFeatureError: It was opened by its path. Nothing was read or written.
    """
    if not is_catalog_managed and CATALOG_MANAGED in canonical_features(protocol):
        raise UnsupportedFeatureError(
            f"The table at {place} can only be opened through its catalog",
            cause=f"It has the feature {CATALOG_MANAGED}: the catalog, not the files, says what its versions are",
            remedy='Open it by its name: DeltaTable("uc://catalog.schema.table"), see docs/catalogs.md',
            features=sorted(n for n in supported_features(protocol) if n in _SPELLED),
        )


def _refuse(verb: str, names: frozenset[str] | set[str], passes: Callable[[TableFeature], bool]) -> None:
    unknown = sorted(n for n in names if n not in FEATURES_BY_NAME)
    refused = sorted(n for n in names if n in FEATURES_BY_NAME and not passes(FEATURES_BY_NAME[n]))
    if not unknown and not refused:
        return
    both = sorted(unknown + refused)
    causes = []
    if refused:
        told = (f"{n} ({what})" if (what := FEATURES_BY_NAME[n].what) else n for n in refused)
        causes.append(f"not implemented for {verb[:4]}ing: {', '.join(told)}")
    if unknown:
        causes.append(f"unknown: {', '.join(unknown)}")
    remedy = "Use a newer release of delta_orch, or drop the feature with the client that added it"
    if any(n.startswith("catalog") for n in both):
        remedy = "Only a catalog can make a table whose commits it decides: create it by its name in the catalog"
    raise UnsupportedFeatureError(
        f"Cannot {verb} the table: it uses table features this release does not support",
        cause="; ".join(causes),
        remedy=remedy,
        features=both,
    )


def _ensure_version(verb: str, version: int, newest: int, features: tuple[str, ...] | None) -> None:
    if version > newest:
        raise UnsupportedVersionError(
            f"Cannot {verb} the table: it needs protocol version {version}, this release knows versions up to {newest}",
            remedy="Use a newer release of delta_orch",
            version=version,
        )
    if version == newest and features is None:
        role = {"read": "reader", "write": "writer"}[verb]
        raise ProtocolViolationError(
            f"The table's protocol has {role} version {version} but no {role}Features",
            cause='From this version on a protocol lists its features (PROTOCOL, "Table Features")',
            remedy="Restore the commit that wrote the protocol from a backup",
        )
