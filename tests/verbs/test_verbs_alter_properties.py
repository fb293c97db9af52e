"""`alter()`: properties, texts and the protocol."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import InvalidPropertyError, InvalidRequestError, UnsupportedFeatureError
from delta_orch.protocol.actions import Protocol
from delta_orch.verbs.alter.builder import Alteration
from tests.certain import some
from tests.handmade import HandmadeTable
from tests.harness.table_builder import begin

ROWS = pa.table({"id": pa.array([1], pa.int64()), "day": ["a"]})


@pytest.fixture
def filled(table: DeltaTable) -> DeltaTable:
    table.append(ROWS)
    return table


def test_properties_are_set_and_removed(filled: DeltaTable) -> None:
    result = filled.alter().set_properties({"DELTA.appendonly": "true", "owner": "me"}).commit()
    assert result.version == 1
    assert filled.snapshot().metadata.configuration == {"delta.appendOnly": "true", "owner": "me"}
    assert filled.history()[0].operation == "SET TBLPROPERTIES"
    assert filled.history()[0].operation_parameters == {"properties": '{"delta.appendOnly":"true","owner":"me"}'}
    filled.alter().unset_properties("owner", "delta.APPENDONLY").commit()
    assert filled.snapshot().metadata.configuration == {}
    assert filled.history()[0].operation == "UNSET TBLPROPERTIES"
    assert filled.history()[0].operation_parameters["properties"] == '["owner","delta.APPENDONLY"]'


def test_what_is_so_already_commits_nothing(filled: DeltaTable) -> None:
    filled.alter().set_properties({"a": "1"}).commit()
    result = filled.alter().set_properties({"a": "1"}).commit()
    assert (result.skipped, result.version) == (True, 1)
    assert filled.alter().unset_properties("b", if_exists=True).commit().skipped
    assert filled.alter().add_feature("appendOnly").commit().skipped


@pytest.mark.parametrize(
    "properties",
    [
        {"delta.appendOnyl": "true"},
        {"delta.appendOnly": "yes"},
        {"delta.columnMapping.maxColumnId": "7"},
        {"delta.requireCheckpointProtectionBeforeVersion": "7"},
        {"delta.constraints.c": "id > 0"},
        {"delta.feature.timestampNtz": "off"},
        {"delta.minWriterVersion": "zero"},
    ],
    ids=lambda p: next(iter(p)),
)
def test_properties_that_cannot_be_set_change_nothing(filled: DeltaTable, properties: dict[str, str]) -> None:
    with pytest.raises(InvalidPropertyError):
        filled.alter().set_properties({"fine": "1"} | properties).commit()
    assert filled.version() == 0


def test_unsetting_what_is_not_set_or_not_a_property(filled: DeltaTable) -> None:
    for keys in (
        ["nothing"],
        ["delta.constraints.c"],
        ["delta.feature.appendOnly"],
        ["delta.columnMapping.maxColumnId"],
    ):
        with pytest.raises(InvalidPropertyError):
            filled.alter().unset_properties(*keys).commit()
    assert filled.version() == 0


def test_properties_bring_the_features_they_need(filled: DeltaTable) -> None:
    filled.alter().set_properties({"delta.enableChangeDataFeed": "true"}).commit()
    assert filled.snapshot().protocol == Protocol(1, 4)
    filled.alter().set_properties({"delta.feature.vacuumProtocolCheck": "supported"}).commit()
    snapshot = filled.snapshot()
    assert snapshot.metadata.configuration == {"delta.enableChangeDataFeed": "true"}
    assert snapshot.protocol.reader_features == ("vacuumProtocolCheck",)
    assert "generatedColumns" in some(snapshot.protocol.writer_features)
    assert "changeDataFeed" in some(snapshot.protocol.writer_features)


def test_features_and_versions(filled: DeltaTable) -> None:
    filled.alter().upgrade_protocol(min_writer_version=3).commit()
    assert filled.snapshot().protocol == Protocol(1, 3)
    assert filled.history()[0].operation == "UPGRADE PROTOCOL"
    filled.alter().add_feature("domainMetadata").commit()
    assert filled.snapshot().protocol == Protocol(
        1, 7, None, ("appendOnly", "checkConstraints", "domainMetadata", "invariants")
    )
    assert '"minWriterVersion":7' in filled.history()[0].operation_parameters["newProtocol"]
    with pytest.raises(UnsupportedFeatureError, match="There is no table feature 'fancyNewThing'"):
        filled.alter().add_feature("fancyNewThing").commit()
    with pytest.raises(UnsupportedFeatureError, match="catalogManaged"):
        filled.alter().add_feature("catalogManaged").commit()
    with pytest.raises(InvalidRequestError, match="cannot write a protocol"):
        filled.alter().upgrade_protocol(min_reader_version=4).commit()


def test_name_and_description(filled: DeltaTable) -> None:
    filled.alter().set_name("orders").set_description("What was ordered").commit()
    metadata = filled.snapshot().metadata
    assert (metadata.name, metadata.description) == ("orders", "What was ordered")
    filled.alter().set_description("").commit()
    assert filled.snapshot().metadata.description is None


def test_several_changes_are_one_commit_or_none(filled: DeltaTable) -> None:
    result = filled.alter().set_properties({"a": "1"}).add_column("note", "string").set_description("d").commit()
    assert result.version == 1
    entry = filled.history()[0]
    assert entry.operation == "ALTER TABLE"
    assert '"ADD COLUMNS"' in entry.operation_parameters["changes"]
    with pytest.raises(InvalidPropertyError):
        filled.alter().set_properties({"b": "1"}).set_properties({"delta.nope": "1"}).commit()
    assert filled.version() == 1
    with pytest.raises(InvalidRequestError, match="has no changes"):
        filled.alter().commit()


def test_what_rides_along(filled: DeltaTable) -> None:
    first = filled.alter().set_properties({"a": "1"}).commit(txn=("app", 1), user_metadata="why", commit_info={"x": 1})
    again = filled.alter().set_properties({"a": "2"}).commit(txn=("app", 1))
    assert (first.version, again.skipped) == (1, True)
    assert filled.snapshot().metadata.configuration == {"a": "1"}
    assert filled.history()[0].user_metadata == "why"
    assert filled.txns() == {"app": 1}


def test_a_recorded_alteration_is_skipped_though_it_could_not_be_made_twice(filled: DeltaTable) -> None:
    def alteration() -> Alteration:
        return filled.alter().add_column("note", "string").add_constraint("positive", "id >= 0")

    assert alteration().commit(txn=("app", 1)).version == 1
    again = alteration().commit(txn=("app", 1))
    assert (again.version, again.skipped) == (1, True)
    with pytest.raises(InvalidRequestError, match="already"):
        alteration().commit(txn=("app", 2))
    assert filled.version() == 1


def test_a_preview_commits_nothing(filled: DeltaTable) -> None:
    table = filled.alter().set_properties({"a": "1"}).preview()
    assert table.configuration == {"a": "1"}
    assert filled.alter().set_properties({"a": "1"}).commit(dry_run=True).preview is not None
    assert filled.version() == 0


def test_a_schema_that_stays_keeps_its_spelling(filled: DeltaTable) -> None:
    snapshot = filled.snapshot()
    spelled = orjson.dumps(orjson.loads(snapshot.metadata.schema_string) | {"unknown": 1}).decode()
    transaction = begin(filled, snapshot, operation="TEST")
    transaction.update_metadata(replace(snapshot.metadata, schema_string=spelled))
    transaction.commit()
    assert filled.alter().set_column_comment("id", "").commit().skipped
    filled.alter().set_properties({"delta.columnMapping.mode": "none", "a": "1"}).commit()
    assert filled.snapshot().metadata.schema_string == spelled


@pytest.mark.parametrize("key", ["delta.appendOnly", "delta.checkpointInterval", "delta.dataSkippingNumIndexedCols"])
def test_a_value_that_another_writer_left_hinders_no_reader(tmp_path: Path, key: str) -> None:
    made = HandmadeTable(tmp_path / "t")
    made.create(ROWS.schema, configuration={key: "rubbish", "delta.enableChangeDataFeed": "true"})
    made.commit(made.add("f.parquet", ROWS))
    table = made.open()
    snapshot = table.snapshot()
    assert snapshot.scan(where="id = 1").to_arrow().to_pylist() == ROWS.to_pylist()
    assert table.changes(starting_version=1).to_arrow().num_rows == 1
    assert (dict(snapshot.txns), snapshot.timestamp_ms) == ({}, table.history()[0].timestamp_ms)
    for write in (lambda: table.append(ROWS), table.optimize, lambda: snapshot.properties.ensure_valid()):
        with pytest.raises(InvalidPropertyError, match=key):
            write()
    assert table.version() == 1
    table.alter().unset_properties(key).commit()
    table.append(ROWS)
    assert table.version() == 3


def test_a_value_that_is_none_is_an_error_where_it_decides(tmp_path: Path) -> None:
    made = HandmadeTable(tmp_path / "t")
    made.create(ROWS.schema, configuration={"delta.enableInCommitTimestamps": "rubbish"})
    snapshot = made.open().snapshot()
    assert snapshot.properties.checkpoint_interval == 10
    with pytest.raises(InvalidPropertyError, match="neither true nor false"):
        snapshot.timestamp_ms  # noqa: B018
    assert not hasattr(snapshot.properties, "no_such_property")
