"""Which protocol a table needs: the lowest one that carries what its schema, its properties and its users ask for.

(PROTOCOL, "Table Features for New and Existing Tables".) Versions below 3 and 7 imply their features; from then on
every feature is listed.

A feature leaves only through `REMOVALS`, and only where nothing in the table uses it. Whatever controls how files are
written is removed with it: its properties go, and files that only its readers understand are rewritten (`FileTrait`).
The user removes whatever concerns the rows, such as a constraint, first. Where older versions may still hold traces of
the feature, the table protects that history: `checkpointProtection` with
`delta.requireCheckpointProtectionBeforeVersion`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from delta_orch.errors import InvalidPropertyError, InvalidRequestError, UnsupportedFeatureError
from delta_orch.protocol.actions import Metadata, Protocol
from delta_orch.protocol.schema import serialize_schema
from delta_orch.protocol.types import (
    StructType,
    features_of,
    fields_of,
)
from delta_orch.table import registry
from delta_orch.table.configuration import TableConfiguration
from delta_orch.table.registry import (
    FEATURES,
    FEATURES_BY_NAME,
    MAX_READER_VERSION,
    MAX_WRITER_VERSION,
    TableFeature,
    always,
    asks_for,
    canonical_features,
    ensure_features_writable,
    find_feature,
    supported_features,
)
from delta_orch.table.row_tracking import ROW_COMMIT_VERSION_COLUMN, ROW_ID_COLUMN
from delta_orch.table.type_widening import has_type_changes

FEATURE_PREFIX = "delta.feature."
_REQUEST_VALUES = ("supported", "enabled")
_VERSION_PROPERTIES = ("delta.minreaderversion", "delta.minwriterversion")
NEW_TABLE = Protocol(1, 2)
"""Where a new table starts: append-only and invariants are understood by every writer there is."""


def required_features(configuration: TableConfiguration) -> frozenset[str]:
    """The features that the schema and the properties ask for, and those they depend on. Unknown names are left out."""
    needed = {f.name for f in FEATURES if f.enabled_by is not None and asks_for(f.enabled_by)(configuration.metadata)}
    needed |= features_of(configuration.schema)
    # Constraints, generated columns, …: what the schema or a property asks for must not be ignored.
    needed |= {f.name for f in FEATURES if f.is_active is not always and f.is_active(configuration.metadata)}
    return frozenset(with_dependencies(needed))


def with_dependencies(names: Iterable[str]) -> set[str]:
    """The features, canonical names, and everything they require, at any distance."""
    feature_names: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        feature = find_feature(name)
        name = name if feature is None else feature.name
        if name not in feature_names:
            feature_names.add(name)
            waiting += () if feature is None else feature.requires
    return feature_names


def protocol_for_new_table(schema: StructType, configuration: Mapping[str, str]) -> Protocol:
    """The lowest protocol that a new table needs for its schema and properties.

    Raises:
        UnsupportedFeatureError: They need features this release does not write; all are named. Nothing was created.
        InvalidPropertyError, InvalidRequestError: A property asks for a protocol that cannot be.
    """
    metadata = Metadata("", serialize_schema(schema), configuration=configuration)
    needed = required_features(TableConfiguration(NEW_TABLE, metadata)) | requested_features(configuration)
    ensure_features_writable(needed)
    return with_features(upgraded_versions(NEW_TABLE, *requested_versions(configuration)), needed)


def protocol_for_existing_table(configuration: TableConfiguration, extra: Iterable[str] = ()) -> Protocol:
    """The table's protocol, grown by what its metadata ask for and by the features named in `extra`.

    Returns: The protocol itself where nothing is missing. A legacy protocol grows within the legacy versions where
    those imply what is missing. Otherwise it moves to feature lists, which then hold everything its versions implied:
    nobody can tell what older versions of the table have used.

    Raises:
        UnsupportedFeatureError: A feature this release does not write; all are named. Nothing was changed.
    """
    needed = required_features(configuration) | with_dependencies(extra)
    ensure_features_writable(needed - configuration.features)
    return with_features(configuration.protocol, needed)


def with_features(protocol: Protocol, names: Iterable[str]) -> Protocol:
    """The protocol that supports these features, too; `protocol` itself where it does already. All names are known."""
    missing = {name for name in names if _lacks(protocol, name)}
    rows = [FEATURES_BY_NAME[name] for name in missing]
    if not rows:
        return protocol
    if protocol.min_writer_version < MAX_WRITER_VERSION and all(f.legacy_writer_version for f in rows):
        reader = max(protocol.min_reader_version, *(f.legacy_reader_version or 1 for f in rows))
        writer = max(protocol.min_writer_version, *(f.legacy_writer_version or 1 for f in rows))
        return Protocol(reader, writer, extra=protocol.extra)
    return _listed(protocol, missing)


def _lacks(protocol: Protocol, name: str) -> bool:
    if name not in canonical_features(protocol):
        return True
    # Writer version 5 implies column mapping, but its readers may be of version 1 and never look for it.
    return name == "columnMapping" and protocol.min_reader_version == 1


def _listed(protocol: Protocol, names: set[str], min_reader_version: int = 1) -> Protocol:
    """The protocol with feature lists: what its versions implied, and `names`."""
    # Existing names keep their spelling: the name of a preview may refer to files that the preview has written.
    writer = {*supported_features(protocol), *names}
    version = max(protocol.min_reader_version, min_reader_version)
    if version < MAX_READER_VERSION and not any(FEATURES_BY_NAME[name].reader for name in names):
        return Protocol(version, MAX_WRITER_VERSION, None, tuple(sorted(writer)), protocol.extra)
    reader = {name for name in writer if (f := find_feature(name)) is not None and f.reader}
    reader |= set(protocol.reader_features or ())
    return Protocol(
        MAX_READER_VERSION, MAX_WRITER_VERSION, tuple(sorted(reader)), tuple(sorted(writer)), protocol.extra
    )


def upgraded_versions(
    protocol: Protocol, min_reader_version: int | None = None, min_writer_version: int | None = None
) -> Protocol:
    """The protocol raised to at least these versions; never lowered.

    On a table with feature lists, legacy versions add what they imply.

    Raises:
        InvalidRequestError: No such version exists, or readers would need more than writers: reader version 2 needs
            writer version 5, reader version 3 writer version 7.
    """
    requested_versions = tuple(
        1 if version is None else version for version in (min_reader_version, min_writer_version)
    )
    wrong = [version for version in requested_versions if type(version) is not int or version < 1]
    if wrong:
        raise InvalidRequestError(f"A protocol version is a positive integer, not {wrong[0]!r}")
    reader, writer = (
        max(protocol.min_reader_version, requested_versions[0]),
        max(protocol.min_writer_version, requested_versions[1]),
    )
    _ensure_versions(reader, writer)
    if (reader, writer) == (protocol.min_reader_version, protocol.min_writer_version) and writer < MAX_WRITER_VERSION:
        return protocol
    if writer < MAX_WRITER_VERSION:
        return Protocol(reader, writer, extra=protocol.extra)
    implied = {
        f.name
        for f in FEATURES
        if (min_writer_version or 0) < MAX_WRITER_VERSION
        and f.legacy_writer_version is not None
        and f.legacy_writer_version <= (min_writer_version or 0)
    }
    if reader == 2 > protocol.min_reader_version:
        implied.add("columnMapping")
    grown = with_features(protocol, implied)
    if (reader, writer) == (grown.min_reader_version, grown.min_writer_version):
        return grown
    return _listed(grown, set(), reader)


def _ensure_versions(reader: int, writer: int) -> None:
    lowest_writer = {1: 1, 2: 5, 3: 7}.get(reader)
    if lowest_writer is None or writer > MAX_WRITER_VERSION:
        raise InvalidRequestError(
            f"This release cannot write a protocol ({reader}, {writer})",
            remedy=f"Reader versions go from 1 to {MAX_READER_VERSION}, writer versions to {MAX_WRITER_VERSION}",
        )
    if writer < lowest_writer:
        raise InvalidRequestError(
            f"Reader version {reader} needs writer version {lowest_writer} or higher, not {writer}",
            cause="Writers must know everything that readers must know",
            remedy=f"Raise the writer version to {lowest_writer} as well",
        )


def requested_features(configuration: Mapping[str, str]) -> frozenset[str]:
    """The features that `delta.feature.<name>` properties ask for, with what they require.

    Raises:
        InvalidPropertyError: The value is neither `supported` nor `enabled`.
        UnsupportedFeatureError: No release of this package knows the name.
    """
    names = set()
    for key, value in configuration.items():
        if key.lower().startswith(FEATURE_PREFIX):
            if value.lower() not in _REQUEST_VALUES:
                raise InvalidPropertyError(
                    f"Table property {key} has the value {value!r}",
                    remedy="A feature is added with the value 'supported', and dropped with drop_feature",
                    property=key,
                    value=value,
                )
            names.add(resolve_feature(key[len(FEATURE_PREFIX) :]).name)
    return frozenset(with_dependencies(names))


def resolve_feature(name: str) -> TableFeature:
    """The feature of a name, without regard to case, as SQL users write it.

    Raises:
        UnsupportedFeatureError: No release of this package knows it.
    """
    for feature in FEATURES:
        if name.lower() in {n.lower() for n in (feature.name, *feature.aliases)}:
            return feature
    raise UnsupportedFeatureError(
        f"There is no table feature {name!r}",
        cause="This release knows none of that name",
        remedy=f"Use one of {', '.join(sorted(feature.name for feature in FEATURES))}",
        features=[name],
    )


def requested_versions(configuration: Mapping[str, str]) -> tuple[int | None, int | None]:
    """`delta.minReaderVersion` and `delta.minWriterVersion` among the properties."""
    versions = {key.lower(): int(value) for key, value in configuration.items() if key.lower() in _VERSION_PROPERTIES}
    return versions.get(_VERSION_PROPERTIES[0]), versions.get(_VERSION_PROPERTIES[1])


def is_protocol_request(key: str) -> bool:
    """Whether a property asks for a protocol: such ones are obeyed and not kept."""
    return key.lower().startswith(FEATURE_PREFIX) or key.lower() in _VERSION_PROPERTIES


PROTECTED_BEFORE = "delta.requireCheckpointProtectionBeforeVersion"

Blocker = Callable[[TableConfiguration], str | None]
"""The step to take first if the metadata still uses the feature, else None."""


class FileTrait(Enum):
    """Content of data files that only readers of a feature understand."""

    MAPPED_NAMES = "columns under physical names"
    OLDER_TYPES = "columns in a type the table had before"
    DELETION_VECTOR = "a deletion vector"
    SHREDDED_VARIANTS = "shredded variants"


def _of_metadata(is_used: Callable[[Metadata], bool]) -> Callable[[TableConfiguration], bool]:
    return lambda view: is_used(view.metadata)


class Removal(NamedTuple):
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
    uses: Callable[[TableConfiguration], bool] = _of_metadata(registry.always)


def _nothing(view: TableConfiguration) -> None:
    return None


def _while(is_used: Callable[[TableConfiguration], bool], remedy: str) -> Blocker:
    return lambda view: remedy if is_used(view) else None


def _while_set(name: str) -> Blocker:
    return _while(_of_metadata(asks_for(name)), f"set {name} to another value first")


def _of_type(feature: str, column_types: str) -> Removal:
    """That of a feature which is needed while a column has such a type."""

    def has_type(view: TableConfiguration) -> bool:
        return feature in features_of(view.schema)

    return Removal(_while(has_type, f"drop the {column_types} first"), history_needs_it=True, uses=has_type)


def _has_not_null(view: TableConfiguration) -> bool:
    return any(not field.nullable for field in fields_of(view.schema))


_ICT = "delta.inCommitTimestampEnablement"

REMOVALS: Mapping[str, Removal] = {
    "appendOnly": Removal(_while_set("delta.appendOnly")),
    "invariants": Removal(
        _while(
            lambda view: registry.has_invariants(view.metadata) or _has_not_null(view),
            "drop NOT NULL and the invariants first",
        )
    ),
    "checkConstraints": Removal(_while(_of_metadata(registry.has_check_constraints), "drop the constraints first")),
    "changeDataFeed": Removal(_while_set("delta.enableChangeDataFeed")),
    "generatedColumns": Removal(
        _while(_of_metadata(registry.has_generated_columns), "drop the generated columns first")
    ),
    "identityColumns": Removal(_while(_of_metadata(registry.has_identity_columns), "drop the identity columns first")),
    "allowColumnDefaults": Removal(_while(_of_metadata(registry.has_column_defaults), "drop the defaults first")),
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
    "timestampNtz": _of_type("timestampNtz", "columns of type timestamp_ntz"),
    "geospatial": _of_type("geospatial", "geometry and geography columns"),
    "variantType": _of_type("variantType", "variant columns"),
    "variantShredding": Removal(
        _nothing,
        forgets=("delta.enableVariantShredding",),
        history_needs_it=True,
        trait=FileTrait.SHREDDED_VARIANTS,
        uses=_of_metadata(asks_for("delta.enableVariantShredding")),
    ),
    "typeWidening": Removal(
        _nothing,
        forgets=("delta.enableTypeWidening",),
        history_needs_it=True,
        trait=FileTrait.OLDER_TYPES,
        uses=lambda view: asks_for("delta.enableTypeWidening")(view.metadata) or has_type_changes(view.schema),
    ),
    "deletionVectors": Removal(
        _nothing,
        forgets=("delta.enableDeletionVectors",),
        history_needs_it=True,
        trait=FileTrait.DELETION_VECTOR,
        uses=_of_metadata(asks_for("delta.enableDeletionVectors")),
    ),
    "v2Checkpoint": Removal(
        _nothing,
        forgets=("delta.checkpointPolicy",),
        history_needs_it=True,
        uses=_of_metadata(asks_for("delta.checkpointPolicy")),
    ),
    "columnMapping": Removal(
        _nothing,
        forgets=("delta.columnMapping.mode", "delta.columnMapping.maxColumnId"),
        history_needs_it=True,
        trait=FileTrait.MAPPED_NAMES,
        uses=_of_metadata(registry.has_column_mapping),
    ),
}

KEPT: Mapping[str, str] = {
    "collations": "This release does not know what depends on it",
    "icebergCompatV3": "Iceberg readers know its rows by their ids; Delta on Spark keeps it, too",
    "catalogManaged": "A catalog decides it",
    **{feature.name: "This release does not write such tables" for feature in FEATURES if feature.what},
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


# Properties that belong to a definition are taken over; facts of the other log are not.

_SINCE = ("delta.inCommitTimestampEnablementVersion", "delta.inCommitTimestampEnablementTimestamp")


def united_protocol(kept: Protocol, other: Protocol) -> Protocol:
    """`kept`, grown by what another protocol supports; never lowered. Both are of tables this release can write."""
    return with_features(kept, canonical_features(other))


def with_own_commit_times(
    properties: Mapping[str, str], source_table: TableConfiguration, own: TableConfiguration | None
) -> dict[str, str]:
    """Properties to take over. The start of in-commit timestamps comes from this log.

    Args:
        source_table: The table that the properties are of.
        own: The newest version of the table that gets them; None where it is new.
    """
    if own is not None and not (source_table.enables("inCommitTimestamp") and own.enables("inCommitTimestamp")):
        return dict(properties)
    kept = {key: value for key, value in properties.items() if key not in _SINCE}
    now = {} if own is None else own.configuration
    return kept | {key: now[key] for key in _SINCE if key in now}
