from __future__ import annotations

from typing import Any

import pytest

from delta_orch.errors import ProtocolViolationError, UnsupportedFeatureError, UnsupportedVersionError
from delta_orch.protocol import types as t
from delta_orch.protocol.actions import Metadata, Protocol
from delta_orch.protocol.schema import serialize_schema
from delta_orch.table.configuration import TableConfiguration
from delta_orch.table.protocol_upgrade import protocol_for_new_table
from delta_orch.table.registry import (
    FEATURES,
    TableFeature,
    ensure_asks_catalog,
    find_feature,
    supported_features,
)
from tests.certain import some

PLAIN = t.StructType((t.StructField("a", t.LONG),))


def metadata(configuration: dict[str, str] | None = None, field_metadata: Any = None) -> Metadata:
    schema = t.StructType((t.StructField("a", t.LONG, True, field_metadata or {}),))
    return Metadata("id", serialize_schema(schema), configuration=configuration or {})


def test_legacy_versions_imply_their_features() -> None:
    assert supported_features(Protocol(1, 1)) == set()
    assert supported_features(Protocol(1, 2)) == {"appendOnly", "invariants"}
    assert supported_features(Protocol(2, 6)) == {f.name for f in FEATURES if f.legacy_writer_version}


@pytest.mark.parametrize("protocol", [Protocol(1, 1), Protocol(1, 2), Protocol(2, 5), Protocol(1, 6)])
def test_legacy_tables_that_use_nothing_special_are_read_and_written(protocol: Protocol) -> None:
    TableConfiguration(protocol, metadata()).for_writing()


@pytest.mark.parametrize("feature", [f for f in FEATURES if f.reader and not f.reads], ids=lambda f: f.name)
def test_reader_features_not_implemented_are_refused_by_name(feature: TableFeature) -> None:
    used = metadata({"delta.columnMapping.mode": "name"})
    for name in (feature.name, *feature.aliases):
        with pytest.raises(UnsupportedFeatureError, match=feature.name) as e:
            found = TableConfiguration.for_reading(Protocol(3, 7, (name,), (name,)), used)
            ensure_asks_catalog(found.protocol, is_catalog_managed=False, place="/t")
        assert e.value.context["features"] == [name]


def test_an_error_says_what_a_feature_is() -> None:
    for name, what in (
        ("adaptiveMetadata-preview", "a tree of manifests"),
        ("redirectReaderWriter-preview", "lives where a property says"),
        ("timestampNanos", "timestamps in nanoseconds"),
    ):
        with pytest.raises(UnsupportedFeatureError, match=rf"{name} \(.*{what}"):
            TableConfiguration.for_reading(Protocol(3, 7, (name,), (name,)), metadata())


def test_a_table_is_not_read_past_its_coordinator() -> None:
    protocol = Protocol(1, 7, None, ("coordinatedCommits-preview",))
    TableConfiguration.for_reading(protocol, metadata())
    coordinated = metadata({"delta.coordinatedCommits.commitCoordinator-preview": "dynamodb"})
    with pytest.raises(UnsupportedFeatureError, match="knows the newest commits"):
        TableConfiguration.for_reading(protocol, coordinated)


def test_only_writers_are_redirected() -> None:
    protocol = Protocol(1, 7, None, ("redirectWriterOnly-preview",))
    TableConfiguration.for_reading(protocol, metadata())
    with pytest.raises(UnsupportedFeatureError, match="writes belong to another table"):
        TableConfiguration(protocol, metadata()).for_writing()


def test_unknown_writer_features_hinder_only_writers() -> None:
    protocol = Protocol(1, 7, None, ("fancyNewThing", "appendOnly"))
    TableConfiguration.for_reading(protocol, metadata())
    with pytest.raises(UnsupportedFeatureError, match="fancyNewThing"):
        TableConfiguration(protocol, metadata()).for_writing()


def test_unknown_reader_features_and_versions_are_refused() -> None:
    with pytest.raises(UnsupportedFeatureError, match="fancyNewThing"):
        TableConfiguration.for_reading(Protocol(3, 7, ("fancyNewThing",), ("fancyNewThing",)), metadata())
    with pytest.raises(UnsupportedVersionError):
        TableConfiguration.for_reading(Protocol(4, 7), metadata())
    with pytest.raises(UnsupportedVersionError):
        TableConfiguration(Protocol(1, 8), metadata()).for_writing()
    with pytest.raises(ProtocolViolationError):
        TableConfiguration.for_reading(Protocol(3, 7), metadata())


@pytest.mark.parametrize(
    ("feature", "configuration", "field"),
    [
        ("invariants", {}, {"delta.invariants": "{}"}),
        ("checkConstraints", {"delta.constraints.c": "a > 0"}, {}),
        ("generatedColumns", {}, {"delta.generationExpression": "1"}),
        ("identityColumns", {}, {"delta.identity.start": 1}),
        ("columnMapping", {"delta.columnMapping.mode": "id"}, {}),
    ],
)
def test_a_legacy_feature_in_use_is_refused_by_name_for_writing(
    feature: str, configuration: dict[str, str], field: Any
) -> None:
    if some(find_feature(feature)).writes:
        TableConfiguration(Protocol(2, 6), metadata(configuration, field)).for_writing()
    else:
        with pytest.raises(UnsupportedFeatureError, match=feature):
            TableConfiguration(Protocol(2, 6), metadata(configuration, field)).for_writing()


def test_column_mapping_listed_for_writers_only_still_gates_readers() -> None:
    protocol = Protocol(3, 7, (), ("columnMapping",))
    TableConfiguration.for_reading(protocol, metadata())
    if not some(find_feature("columnMapping")).reads:
        with pytest.raises(UnsupportedFeatureError, match="columnMapping"):
            TableConfiguration.for_reading(protocol, metadata({"delta.columnMapping.mode": "name"}))


def test_new_tables_get_the_lowest_protocol() -> None:
    assert protocol_for_new_table(PLAIN, {}) == Protocol(1, 2)
    assert protocol_for_new_table(PLAIN, {"delta.appendOnly": "true"}) == Protocol(1, 2)
    assert protocol_for_new_table(PLAIN, {"delta.enableChangeDataFeed": "true"}) == Protocol(1, 4)
    ntz = t.StructType((t.StructField("a", t.ArrayType(t.TIMESTAMP_NTZ)),))
    assert protocol_for_new_table(ntz, {}) == Protocol(
        3, 7, ("timestampNtz",), ("appendOnly", "invariants", "timestampNtz")
    )


def test_a_property_whose_feature_cannot_be_written_is_refused_by_name() -> None:
    for f in FEATURES:
        if f.enabled_by and not f.writes:
            with pytest.raises(UnsupportedFeatureError, match=f.name):
                protocol_for_new_table(PLAIN, {f.enabled_by: "name" if "Mapping" in f.name else "true"})
