from __future__ import annotations

from typing import Any

import pytest

from delta_orch.errors import InvalidPropertyError, InvalidRequestError, UnsupportedFeatureError
from delta_orch.protocol import types as t
from delta_orch.protocol.actions import Metadata, Protocol
from delta_orch.protocol.schema import serialize_schema
from delta_orch.protocol.types import StructType
from delta_orch.table.configuration import TableConfiguration
from delta_orch.table.protocol_upgrade import (
    protocol_for_existing_table,
    protocol_for_new_table,
    upgraded_versions,
    with_dependencies,
    with_features,
)
from delta_orch.table.registry import canonical_features
from tests.certain import some

PLAIN = t.StructType((t.StructField("a", t.LONG),))
NTZ = t.StructType((t.StructField("a", t.TIMESTAMP_NTZ),))


def metadata(configuration: dict[str, str] | None = None, schema: StructType = PLAIN) -> Metadata:
    return Metadata("id", serialize_schema(schema), configuration=configuration or {})


def grown(protocol: Protocol, metadata: Metadata, extra: set[str] | tuple[()] = ()) -> Protocol | None:
    return protocol_for_existing_table(TableConfiguration(protocol, metadata), extra)


def test_a_table_that_needs_nothing_new_keeps_its_protocol() -> None:
    protocol = Protocol(1, 2)
    assert grown(protocol, metadata({"delta.appendOnly": "true"})) is protocol
    listed = Protocol(3, 7, ("typeWidening-preview",), ("typeWidening-preview",))
    assert grown(listed, metadata({"delta.enableTypeWidening": "true"})) is listed


def test_legacy_protocols_grow_within_the_legacy_versions() -> None:
    assert grown(Protocol(1, 2), metadata({"delta.enableChangeDataFeed": "true"})) == (Protocol(1, 4))
    assert with_features(Protocol(1, 2), {"columnMapping"}) == Protocol(2, 5)
    assert with_features(Protocol(1, 6), {"columnMapping"}) == Protocol(2, 6)


def test_what_a_legacy_version_implied_is_listed_once_features_are() -> None:
    assert grown(Protocol(1, 4), metadata(schema=NTZ)) == Protocol(
        3,
        7,
        ("timestampNtz",),
        ("appendOnly", "changeDataFeed", "checkConstraints", "generatedColumns", "invariants", "timestampNtz"),
    )
    upgraded = with_features(Protocol(2, 5), {"domainMetadata"})
    assert upgraded.min_reader_version == 2
    assert upgraded.reader_features is None
    assert "columnMapping" in some(upgraded.writer_features)
    assert with_features(upgraded, {"timestampNtz"}).reader_features == ("columnMapping", "timestampNtz")


def test_writer_features_leave_readers_alone() -> None:
    assert with_features(Protocol(1, 2), {"domainMetadata"}) == Protocol(
        1, 7, None, ("appendOnly", "domainMetadata", "invariants")
    )


def test_dependencies_come_along() -> None:
    assert with_dependencies({"rowTracking"}) == {"rowTracking", "domainMetadata"}
    assert with_dependencies({"clustering"}) == {"clustering", "domainMetadata"}
    assert canonical_features(Protocol(1, 7, None, ("inCommitTimestamp-preview",))) == {"inCommitTimestamp"}


@pytest.mark.parametrize(
    ("before", "asked", "after"),
    [
        (Protocol(1, 2), (1, 2), Protocol(1, 2)),
        (Protocol(1, 2), (None, 4), Protocol(1, 4)),
        (Protocol(1, 4), (None, 2), Protocol(1, 4)),
        (Protocol(1, 2), (2, 5), Protocol(2, 5)),
        (Protocol(1, 2), (None, 7), Protocol(1, 7, None, ("appendOnly", "invariants"))),
        (Protocol(1, 2), (3, 7), Protocol(3, 7, (), ("appendOnly", "invariants"))),
        (Protocol(1, 7, None, ("domainMetadata",)), (None, 2), Protocol(1, 7, None, (
            "appendOnly", "domainMetadata", "invariants"))),
        (Protocol(1, 7, None, ("domainMetadata",)), (2, None), Protocol(3, 7, ("columnMapping",), (
            "columnMapping", "domainMetadata"))),
        (Protocol(1, 7, None, ("domainMetadata",)), (1, 7), Protocol(1, 7, None, ("domainMetadata",))),
    ],
)  # fmt: skip
def test_versions_only_rise(before: Protocol, asked: Any, after: Protocol) -> None:
    assert upgraded_versions(before, *asked) == after


@pytest.mark.parametrize("asked", [(2, 4), (3, None), (4, 7), (None, 8), (0, None), (None, -1)])
def test_versions_that_cannot_be_are_refused(asked: Any) -> None:
    with pytest.raises(InvalidRequestError):
        upgraded_versions(Protocol(1, 2), *asked)


def test_features_are_asked_for_by_properties() -> None:
    configuration = {"delta.feature.vacuumprotocolcheck": "supported", "delta.minWriterVersion": "7"}
    assert protocol_for_new_table(PLAIN, configuration) == Protocol(
        3, 7, ("vacuumProtocolCheck",), ("appendOnly", "invariants", "vacuumProtocolCheck")
    )
    with pytest.raises(InvalidPropertyError, match="supported"):
        protocol_for_new_table(PLAIN, {"delta.feature.vacuumProtocolCheck": "yes"})
    with pytest.raises(UnsupportedFeatureError, match="fancyNewThing"):
        protocol_for_new_table(PLAIN, {"delta.feature.fancyNewThing": "supported"})
    with pytest.raises(UnsupportedFeatureError, match="catalogManaged"):
        grown(Protocol(1, 2), metadata(), {"catalogManaged"})
