"""Which protocol a table needs: the lowest one that carries what its schema, its properties and its users ask for.

(PROTOCOL, "Table Features for New and Existing Tables".) Versions below 3 and 7 imply their features; from then on
every feature is listed. A protocol only ever grows here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from delta_orch.errors import InvalidPropertyError, InvalidRequestError
from delta_orch.protocol.actions import Metadata, Protocol
from delta_orch.protocol.schema import serialize_schema
from delta_orch.protocol.types import TIMESTAMP_NTZ, VARIANT, StructType, types_of
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

FEATURE_PREFIX = "delta.feature."
_REQUEST_VALUES = ("supported", "enabled")
_FEATURE_OF_TYPE = {TIMESTAMP_NTZ: "timestampNtz", VARIANT: "variantType"}
_VERSION_PROPERTIES = ("delta.minreaderversion", "delta.minwriterversion")
NEW_TABLE = Protocol(1, 2)
"""Where a new table starts: append-only and invariants are understood by every writer there is."""


def required_features(configuration: TableConfiguration) -> frozenset[str]:
    """The features that the schema and the properties ask for, and those they depend on. Unknown names are left out."""
    needed = {f.name for f in FEATURES if f.enabled_by is not None and asks_for(f.enabled_by)(configuration)}
    needed |= {_FEATURE_OF_TYPE[t] for t in types_of(configuration.schema) if t in _FEATURE_OF_TYPE}
    # Constraints, generated columns, …: what the schema or a property asks for must not be ignored.
    needed |= {f.name for f in FEATURES if f.is_active is not always and f.is_active(configuration)}
    return frozenset(with_dependencies(needed))


def with_dependencies(names: Iterable[str]) -> set[str]:
    """The features, canonical names, and everything they require, at any distance."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        feature = find_feature(name)
        name = name if feature is None else feature.name
        if name not in found:
            found.add(name)
            waiting += () if feature is None else feature.requires
    return found


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


def protocol_for_existing_table(wanted: TableConfiguration, extra: Iterable[str] = ()) -> Protocol:
    """The table's protocol, grown by what its metadata ask for and by the features named in `extra`.

    Returns: The protocol itself where nothing is missing. A legacy protocol grows within the legacy versions where
    those imply what is missing. Otherwise it moves to feature lists, which then hold everything its versions implied:
    nobody can tell what older versions of the table have used.

    Raises:
        UnsupportedFeatureError: A feature this release does not write; all are named. Nothing was changed.
    """
    needed = required_features(wanted) | with_dependencies(extra)
    ensure_features_writable(needed - wanted.features)
    return with_features(wanted.protocol, needed)


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
    asked = tuple(1 if version is None else version for version in (min_reader_version, min_writer_version))
    wrong = [version for version in asked if type(version) is not int or version < 1]
    if wrong:
        raise InvalidRequestError(f"A protocol version is a positive integer, not {wrong[0]!r}")
    reader, writer = max(protocol.min_reader_version, asked[0]), max(protocol.min_writer_version, asked[1])
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
    ensure_features_writable({name})
    raise AssertionError(name)


def requested_versions(configuration: Mapping[str, str]) -> tuple[int | None, int | None]:
    """`delta.minReaderVersion` and `delta.minWriterVersion`, where they are asked for."""
    found = {key.lower(): int(value) for key, value in configuration.items() if key.lower() in _VERSION_PROPERTIES}
    return found.get(_VERSION_PROPERTIES[0]), found.get(_VERSION_PROPERTIES[1])


def is_protocol_request(key: str) -> bool:
    """Whether a property asks for a protocol: such ones are obeyed and not kept."""
    return key.lower().startswith(FEATURE_PREFIX) or key.lower() in _VERSION_PROPERTIES
