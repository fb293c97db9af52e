"""Checkpoints as written: what is in them, who can read them, and what a reader may see meanwhile."""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable, TxnId
from delta_orch.errors import StorageError, UnsupportedFeatureError
from delta_orch.log.files.file_columns import ADD_SCHEMA
from delta_orch.protocol.action_json import serialize_action
from delta_orch.protocol.actions import Protocol
from delta_orch.protocol.last_checkpoint import LastCheckpoint, parse_last_checkpoint
from delta_orch.protocol.paths import LAST_CHECKPOINT_PATH, checkpoint_path
from delta_orch.protocol.types import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    ArrayType,
    DecimalType,
    StructField,
    StructType,
)
from delta_orch.storage.open import open_store
from delta_orch.table.protocol_upgrade import protocol_for_new_table
from delta_orch.testing import open_table
from tests.harness.fault_store import FaultStore, Moment
from tests.harness.results import Snapshot
from tests.harness.table_builder import (
    WITH_DOMAINS,
    append_days,
    begin,
    begin_creation,
    create_table,
    day_files,
    new_metadata,
    read_anew,
    write_checkpoint,
)


@pytest.fixture
def table() -> DeltaTable:
    return open_table(open_store(f"memory://{uuid.uuid4()}"))


def rows_of(table: DeltaTable, version: int, action: str) -> list[dict[str, Any]]:
    rows = pq.read_table(table.store.open_input(checkpoint_path(version)), columns=[action])[action].to_pylist()
    return [row for row in rows if row is not None]


def busy_table(table: DeltaTable, **properties: str) -> Snapshot:
    """A table with everything a checkpoint holds: files, tombstones, identifiers, a domain."""
    snapshot = create_table(
        table, "1", "2", "3", properties={"delta.checkpointInterval": "1000", **WITH_DOMAINS, **properties}
    )
    transaction = begin(table, snapshot, operation="TEST", txn=[TxnId("a", 1), TxnId("b", 2)])
    files = snapshot.files()
    transaction.remove_files(files.slice(0, 1))
    transaction.add_files(day_files("4"))
    transaction.set_domain_metadata("app", '{"x":1}')
    transaction.set_domain_metadata("gone", "old")
    transaction.commit()
    transaction = begin(table, read_anew(table), operation="TEST", txn=[TxnId("b", 3)])
    transaction.set_domain_metadata("gone", "old", removed=True)
    transaction.commit()
    return read_anew(table)


def ensure_same_table(left: Snapshot, right: Snapshot) -> None:
    assert (left.version, left.protocol, left.metadata) == (right.version, right.protocol, right.metadata)
    assert left.txn_actions == right.txn_actions
    assert left.domain_metadata == right.domain_metadata
    columns = [name for name in ADD_SCHEMA.names if name != "data_change"]
    assert left.files(columns).sort_by("path").to_pylist() == right.files(columns).sort_by("path").to_pylist()


def test_a_checkpoint_holds_the_whole_table(table: DeltaTable) -> None:
    before = busy_table(table)
    write_checkpoint(table, before)
    after = read_anew(table)
    assert after.checkpoint is not None
    assert not after.segment.commits
    ensure_same_table(before, after)
    assert [row["version"] for row in sorted(rows_of(table, 2, "txn"), key=lambda r: r["appId"])] == [1, 3]
    assert rows_of(table, 2, "domainMetadata") == [{"domain": "app", "configuration": '{"x":1}', "removed": False}]
    assert len(rows_of(table, 2, "protocol")) == len(rows_of(table, 2, "metaData")) == 1
    assert rows_of(table, 2, "protocol")[0]["writerFeatures"] == ["appendOnly", "domainMetadata", "invariants"]
    assert all(row["dataChange"] is False for row in rows_of(table, 2, "add"))
    (tombstone,) = rows_of(table, 2, "remove")
    assert dict(tombstone["partitionValues"]) == {"day": "1"}
    assert {"stats", "tags"}.isdisjoint(tombstone)
    assert after.tombstones(["path"]).to_pylist() == before.tombstones(["path"]).to_pylist()


def test_each_row_group_holds_one_kind(table: DeltaTable) -> None:
    write_checkpoint(table, busy_table(table))
    file = pq.ParquetFile(table.store.open_input(checkpoint_path(2)))
    kinds = []
    for number in range(file.num_row_groups):
        columns = file.read_row_group(number)
        kinds.append({name for name in columns.column_names if columns[name].null_count < columns.num_rows})
    assert kinds == [{"protocol", "metaData", "domainMetadata"}, {"txn"}, {"add"}, {"remove"}]


def test_the_pointer_says_what_the_checkpoint_is(table: DeltaTable) -> None:
    write_checkpoint(table, busy_table(table))
    last = parse_last_checkpoint(table.store.read_bytes(LAST_CHECKPOINT_PATH))
    file = table.store.head(checkpoint_path(2))
    assert file is not None
    rows = sum(len(rows_of(table, 2, a)) for a in ("add", "remove", "txn", "protocol", "metaData", "domainMetadata"))
    assert last == LastCheckpoint(version=2, size=rows, size_in_bytes=file.size, num_of_add_files=3)
    assert "checksum" in orjson.loads(table.store.read_bytes(LAST_CHECKPOINT_PATH))


def test_writing_it_twice_changes_nothing(table: DeltaTable) -> None:
    snapshot = busy_table(table)
    write_checkpoint(table, snapshot)
    first = {f.path: table.store.read_bytes(f.path) for f in table.store.list_recursive()}
    write_checkpoint(table, snapshot)
    assert {f.path: table.store.read_bytes(f.path) for f in table.store.list_recursive()} == first


def test_the_pointer_is_mended_but_not_moved_back(table: DeltaTable) -> None:
    old = create_table(table, "1")
    append_days(table, old, "2")
    new = read_anew(table)
    write_checkpoint(table, new)
    write_checkpoint(table, old)
    assert parse_last_checkpoint(table.store.read_bytes(LAST_CHECKPOINT_PATH)).version == 1
    table.store.put(LAST_CHECKPOINT_PATH, b"{garbage")
    write_checkpoint(table, new)
    assert parse_last_checkpoint(table.store.read_bytes(LAST_CHECKPOINT_PATH)).version == 1


def test_expired_tombstones_are_left_out(table: DeltaTable) -> None:
    snapshot = busy_table(table, **{"delta.deletedFileRetentionDuration": "interval 1 hour"})
    old = int(time.time() * 1000) - 3_600_000
    lines = [
        {"remove": {"path": "long-gone", "dataChange": True, "deletionTimestamp": old - 60_000}},
        {"remove": {"path": "undated", "dataChange": True}},
        {"remove": {"path": "just-now", "dataChange": True, "deletionTimestamp": old + 60_000}},
    ]
    table.store.put_if_absent("_delta_log/00000000000000000003.json", b"\n".join(map(orjson.dumps, lines)))
    snapshot = read_anew(table)
    assert snapshot.tombstones().num_rows == 4
    write_checkpoint(table, snapshot)
    paths = {row["path"] for row in rows_of(table, 3, "remove")}
    assert "just-now" in paths
    assert {"long-gone", "undated"}.isdisjoint(paths)
    assert len(paths) == 2


def test_expired_identifiers_are_left_out(table: DeltaTable) -> None:
    create_table(table, "1", properties={"delta.setTransactionRetentionDuration": "interval 1 day"})
    old = int(time.time() * 1000) - 2 * 86_400_000
    lines = [{"txn": {"appId": "old", "version": 1, "lastUpdated": old}}, {"txn": {"appId": "undated", "version": 1}}]
    table.store.put_if_absent("_delta_log/00000000000000000001.json", b"\n".join(map(orjson.dumps, lines)))
    append_days(table, table.snapshot(), "1", txns=[TxnId("new", 1)])
    write_checkpoint(table, read_anew(table))
    assert sorted(row["appId"] for row in rows_of(table, 2, "txn")) == ["new", "undated"]


def test_table_features_are_written_as_lists(table: DeltaTable) -> None:
    schema = StructType((StructField("day", STRING), StructField("at", TIMESTAMP_NTZ)))
    transaction = begin_creation(table, new_metadata(schema))
    transaction.update_protocol(protocol_for_new_table(schema, {}))
    transaction.commit()
    write_checkpoint(table, read_anew(table))
    (protocol,) = rows_of(table, 0, "protocol")
    assert protocol["readerFeatures"] == ["timestampNtz"]
    assert "timestampNtz" in protocol["writerFeatures"]
    assert read_anew(table).protocol.reader_features == ("timestampNtz",)


def test_unwritable_tables_get_no_checkpoint(table: DeltaTable) -> None:
    create_table(table, "1")
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["catalogManaged", "domainMetadata"]}
    table.store.put_if_absent("_delta_log/00000000000000000001.json", orjson.dumps({"protocol": protocol}))
    with pytest.raises(UnsupportedFeatureError):
        write_checkpoint(table, read_anew(table))
    assert table.store.head(checkpoint_path(1)) is None


@pytest.mark.parametrize(("interval", "expected"), [("1", [1, 2, 3, 4, 5, 6]), ("3", [3, 6]), ("10", [])])
def test_checkpoints_come_by_interval(table: DeltaTable, interval: str, expected: list[int]) -> None:
    snapshot = create_table(table, properties={"delta.checkpointInterval": interval})
    for _ in range(6):
        append_days(table, snapshot, "1")
    assert [v for v in range(8) if table.store.head(checkpoint_path(v))] == expected
    assert read_anew(table).num_files == 6


def test_many_files_make_several_row_groups(table: DeltaTable, monkeypatch: pytest.MonkeyPatch) -> None:
    from delta_orch.log.upkeep import checkpoint_writer

    monkeypatch.setattr(checkpoint_writer, "_ROW_GROUP_ROWS", 7)
    snapshot = create_table(table, *(f"{n}" for n in range(20)))
    write_checkpoint(table, snapshot)
    file = pq.ParquetFile(table.store.open_input(checkpoint_path(0)))
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [2, 7, 7, 6]
    ensure_same_table(snapshot, read_anew(table))


def test_deletion_vectors_survive(table: DeltaTable) -> None:
    from delta_orch.log.upkeep.checkpoint_columns import CheckpointColumns

    snapshot = create_table(table, "1")
    files = day_files("1", "2")
    vectors = [None, {"storage_type": "u", "path_or_inline_dv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4,
                      "size_in_bytes": 40, "cardinality": 6}]  # fmt: skip
    index = files.schema.get_field_index("deletion_vector")
    files = files.set_column(index, files.schema.field(index), pa.array(vectors, files.schema.field(index).type))
    columns = CheckpointColumns.of_snapshot(snapshot)
    written = [row["deletionVector"] for row in columns.adds(files).to_pylist()]
    assert written == [
        None,
        {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4, "sizeInBytes": 40,
         "cardinality": 6},
    ]  # fmt: skip


# Statistics as columns


STATS_SCHEMA = StructType(
    (
        StructField("day", DATE),
        StructField("n", INTEGER),
        StructField("tiny", BYTE),
        StructField("big", LONG),
        StructField("price", DecimalType(10, 2)),
        StructField("ratio", DOUBLE),
        StructField("coarse", FLOAT),
        StructField("name", STRING),
        StructField("ok", BOOLEAN),
        StructField("raw", BINARY),
        StructField("born", DATE),
        StructField("at", TIMESTAMP),
        StructField("tags", ArrayType(STRING)),
        StructField("inner", StructType((StructField("x", LONG), StructField("y", STRING)))),
    )
)
STATS = {
    "numRecords": 3,
    "tightBounds": True,
    "minValues": {
        "n": -5, "tiny": 1, "big": -(2**60), "price": 1.25, "ratio": 0.1, "coarse": 0.5, "name": "a\"\u00e9",
        "born": "2013-01-01", "at": "2013-01-01T05:00:00.123456Z", "inner": {"x": 1, "y": "q"},
    },
    "maxValues": {"n": 7, "ratio": 2.5, "name": "z", "born": "2013-12-31", "at": "2013-12-31T05:00:00.000Z"},
    "nullCount": {"n": 0, "ok": 1, "raw": 2, "tags": 3, "inner": {"x": 0, "y": 1}},
}  # fmt: skip


def stats_table(table: DeltaTable, stats: list[Any], **properties: str) -> Snapshot:
    properties = {"delta.checkpoint.writeStatsAsStruct": "true", **properties}
    transaction = begin_creation(table, new_metadata(STATS_SCHEMA, properties=properties))
    texts = [s if s is None or isinstance(s, str) else orjson.dumps(s).decode() for s in stats]
    files = day_files(*(f"2013-01-0{n + 1}" for n in range(len(stats))))
    index = files.schema.get_field_index("stats")
    transaction.add_files(files.set_column(index, "stats", pa.array(texts, pa.string())))
    transaction.commit()
    snapshot = read_anew(table)
    write_checkpoint(table, snapshot)
    return snapshot


def parsed(table: DeltaTable) -> list[Any]:
    return [row["stats_parsed"] for row in sorted(rows_of(table, 0, "add"), key=lambda row: row["path"])]


def test_statistics_as_columns(table: DeltaTable) -> None:
    stats_table(table, [STATS, None])
    full, none = parsed(table)
    assert none is None
    assert full["numRecords"] == 3
    assert full["tightBounds"] is True
    assert full["minValues"] == {
        "n": -5, "tiny": 1, "big": -(2**60), "price": Decimal("1.25"), "ratio": 0.1, "coarse": 0.5, "name": 'a"\u00e9',
        "born": date(2013, 1, 1), "at": datetime(2013, 1, 1, 5, 0, 0, 123456, UTC), "inner": {"x": 1, "y": "q"},
    }  # fmt: skip
    assert full["maxValues"]["born"] == date(2013, 12, 31)
    assert full["maxValues"]["big"] is None
    assert full["nullCount"]["tags"] == 3
    assert full["nullCount"]["inner"] == {"x": 0, "y": 1}
    assert "day" not in full["nullCount"]
    rows = rows_of(table, 0, "add")
    assert sorted(row["partitionValues_parsed"]["day"] for row in rows) == [date(2013, 1, 1), date(2013, 1, 2)]
    assert sum(row["stats"] is not None for row in rows) == 1


@pytest.mark.parametrize(
    ("bounds", "kept"),
    [
        ({"n": 1, "ratio": "NaN"}, {"n": 1, "ratio": None}),
        ({"n": 1, "price": 1.23456789}, {"n": 1, "price": None}),
        ({"n": 2**40, "name": "x"}, {"n": None, "name": "x"}),
        ({"n": 1, "born": "yesterday"}, {"n": 1, "born": None}),
        ({"n": 1, "name": 5}, {"n": 1, "name": None}),
    ],
)
def test_bounds_that_cannot_be_read_are_dropped_one_by_one(table: DeltaTable, bounds: Any, kept: Any) -> None:
    stats_table(table, [{"numRecords": 9, "minValues": bounds}, STATS])
    odd, full = parsed(table)
    assert odd["numRecords"] == 9
    assert {name: odd["minValues"][name] for name in kept} == kept
    assert full["minValues"]["n"] == -5


@pytest.mark.parametrize("text", ["{", "[1]", "", "5", '{"numRecords": 1}\n{"numRecords": 2}'])
def test_statistics_that_are_no_statistics_are_null(table: DeltaTable, text: str) -> None:
    stats_table(table, [text, STATS])
    odd, full = parsed(table)
    assert odd is None or all(v is None for v in odd.values())
    assert full["numRecords"] == 3


def test_statistics_spread_over_lines_are_read(table: DeltaTable) -> None:
    stats_table(table, [orjson.dumps(STATS, option=orjson.OPT_INDENT_2).decode()])
    assert parsed(table)[0]["numRecords"] == 3


def test_only_indexed_columns_have_parsed_statistics(table: DeltaTable) -> None:
    stats_table(table, [STATS], **{"delta.dataSkippingNumIndexedCols": "2"})
    assert set(parsed(table)[0]["minValues"]) == {"n", "tiny"}


def test_named_statistics_columns(table: DeltaTable) -> None:
    stats_table(table, [STATS], **{"delta.dataSkippingStatsColumns": "name,inner.x"})
    assert set(parsed(table)[0]["minValues"]) == {"name", "inner"}
    assert set(parsed(table)[0]["minValues"]["inner"]) == {"x"}


def test_statistics_columns_are_named_without_regard_to_case(table: DeltaTable) -> None:
    stats_table(table, [STATS], **{"delta.dataSkippingStatsColumns": "NAME,Inner.X"})
    assert parsed(table)[0]["minValues"] == {"name": 'a"\u00e9', "inner": {"x": 1}}


def test_clustering_columns_have_parsed_statistics_wherever_they_stand(table: DeltaTable) -> None:
    """This package puts none behind the indexed columns; other clients may have, and PROTOCOL, "Clustered Table" wants
    their statistics."""
    properties = {"delta.checkpoint.writeStatsAsStruct": "true", "delta.dataSkippingNumIndexedCols": "1"}
    transaction = begin_creation(table, new_metadata(STATS_SCHEMA, properties=properties))
    transaction.update_protocol(Protocol(1, 7, None, ("clustering", "domainMetadata")))
    transaction.set_domain_metadata("delta.clustering", '{"clusteringColumns":[["inner","x"],["name"]]}')
    files = day_files("2013-01-01")
    texts = pa.array([orjson.dumps(STATS).decode()], pa.string())
    transaction.add_files(files.set_column(files.schema.get_field_index("stats"), "stats", texts))
    transaction.commit()
    write_checkpoint(table, read_anew(table))
    assert parsed(table)[0]["minValues"] == {"n": -5, "name": 'a"\u00e9', "inner": {"x": 1}}


def test_parsed_statistics_go_by_physical_names(table: DeltaTable) -> None:
    """PROTOCOL, "Checkpoint Schema": "For a table that uses column mapping"."""

    def mapped(name: str, number: int, data_type: Any) -> StructField:
        physical = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{number}"}
        return StructField(name, data_type, metadata=physical)

    inner = StructType((mapped("x", 4, LONG),))
    schema = StructType((mapped("day", 1, DATE), mapped("n", 2, INTEGER), mapped("s", 3, inner)))
    properties = {
        "delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "4",
        "delta.checkpoint.writeStatsAsStruct": "true", "delta.dataSkippingStatsColumns": "s.x",
    }  # fmt: skip
    metadata = new_metadata(schema, properties=properties)
    stats = orjson.dumps({"numRecords": 1, "minValues": {"col-2": 1, "col-3": {"col-4": 5}}, "nullCount": {"col-2": 0}})
    add = {"path": "a", "partitionValues": {"col-1": "2013-01-01"}, "size": 1, "modificationTime": 1}
    add |= {"dataChange": True, "stats": stats.decode()}
    lines = [{"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, {"add": add}]
    table.store.put(
        "_delta_log/00000000000000000000.json", b"\n".join([*map(orjson.dumps, lines), serialize_action(metadata)])
    )
    write_checkpoint(table, read_anew(table))
    (row,) = rows_of(table, 0, "add")
    assert row["partitionValues_parsed"] == {"col-1": date(2013, 1, 1)}
    assert row["stats_parsed"]["minValues"] == {"col-3": {"col-4": 5}}
    assert row["stats_parsed"]["nullCount"] == {"col-3": None}
    assert read_anew(table).files(["path"]).num_rows == 1


def test_bounds_from_before_a_type_was_widened(table: DeltaTable) -> None:
    """What was written as an integer or a date is a bound of the wider type."""
    schema = StructType(
        (StructField("day", DATE), StructField("n", LONG), StructField("d", DecimalType(20, 2)),
         StructField("at", TIMESTAMP_NTZ), StructField("f", DOUBLE))
    )  # fmt: skip
    transaction = begin_creation(
        table, new_metadata(schema, properties={"delta.checkpoint.writeStatsAsStruct": "true"})
    )
    transaction.update_protocol(protocol_for_new_table(schema, {}))
    files = day_files("2013-01-01")
    bounds = {"n": 7, "d": 7, "at": "2013-01-02", "f": 7}
    stats = orjson.dumps({"numRecords": 1, "minValues": bounds, "maxValues": bounds}).decode()
    transaction.add_files(files.set_column(files.schema.get_field_index("stats"), "stats", pa.array([stats])))
    transaction.commit()
    write_checkpoint(table, read_anew(table))
    assert parsed(table)[0]["minValues"] == {"n": 7, "d": Decimal("7.00"), "at": datetime(2013, 1, 2), "f": 7.0}


def test_without_json_the_statistics_come_back_from_the_columns(table: DeltaTable) -> None:
    before = stats_table(table, [STATS], **{"delta.checkpoint.writeStatsAsJson": "false"})
    assert "stats" not in rows_of(table, 0, "add")[0]
    after = read_anew(table)
    assert after.checkpoint is not None
    assert not after.segment.commits
    stats = orjson.loads(after.files(["stats"])["stats"][0].as_py())
    assert before.num_files == after.num_files == 1
    assert stats["minValues"]["n"] == -5
    assert stats["maxValues"]["born"] == "2013-12-31"


# Concurrency and failure


def test_a_reader_never_sees_a_part(tmp_path: Path) -> None:
    """Snapshots are loaded all the while checkpoints are written by several writers."""
    table = open_table(open_store(tmp_path / "table"))
    snapshot = create_table(table, properties={"delta.checkpointInterval": "1"})
    stop, failures = threading.Event(), list[BaseException]()

    def read() -> None:
        while not stop.is_set():
            try:
                seen = read_anew(table)
                assert seen.num_files == seen.version
            except BaseException as e:
                failures.append(e)
                raise

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(30):
        append_days(table, snapshot, "1")
        snapshot = read_anew(table)
        write_checkpoint(table, snapshot)
    stop.set()
    for reader in readers:
        reader.join()
    assert not failures


def test_two_writers_of_one_checkpoint(tmp_path: Path) -> None:
    store = FaultStore(open_store(tmp_path / "table"))
    table = open_table(store)
    snapshot = create_table(table, "1")
    store.at(Moment.CHECKPOINT_PUT, "before", do=lambda call: write_checkpoint(open_table(store.inner), snapshot))
    write_checkpoint(table, snapshot)
    assert read_anew(table).num_files == 1
    assert parse_last_checkpoint(store.read_bytes(LAST_CHECKPOINT_PATH)).version == 0


def test_a_failed_checkpoint_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    store = FaultStore(open_store(tmp_path / "table"))
    table = open_table(store)
    snapshot = create_table(table, "1")
    store.at(Moment.CHECKPOINT_PUT, "before", do=store.fail)
    with pytest.raises(StorageError):
        write_checkpoint(table, snapshot)
    listed = [f.path for f in store.list_from("_delta_log") if not f.path.endswith(".crc")]
    assert listed == ["_delta_log/00000000000000000000.json"]


def test_metadata_with_all_fields(table: DeltaTable) -> None:
    snapshot = create_table(table, "1")
    transaction = begin(table, snapshot, operation="TEST")
    full = replace(snapshot.metadata, name="n\u00e4me", description="d", configuration={"k": "v", "delta.x": ""})
    transaction.update_metadata(full)
    transaction.commit()
    write_checkpoint(table, read_anew(table))
    assert read_anew(table).metadata == full
