"""Row tracking on request: ids and commit versions survive deletion vectors, row groups, filters and renames."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_orch.engines.local import parquet_read
from delta_orch.errors import InvalidRequestError, ProtocolViolationError
from delta_orch.protocol.types import LONG, STRING, DataType, StructField, StructType
from tests.handmade import HandmadeTable, inline_vector

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
TRACKED = {
    "delta.enableRowTracking": "true",
    "delta.rowTracking.materializedRowIdColumnName": "_row-id-1",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_row-version-1",
}


def rows(start: int, stop: int, **more: Any) -> pa.Table:
    ids = list(range(start, stop))
    return pa.table({"id": ids, "text": [f"t{i}" for i in ids], **more})


def made_table(root: Path, configuration: dict[str, str] | None = None) -> HandmadeTable:
    made = HandmadeTable(root)
    made.create(
        SCHEMA,
        features=("rowTracking", "domainMetadata"),
        reader_features=("deletionVectors",),
        configuration=TRACKED if configuration is None else configuration,
    )
    return made


@pytest.fixture
def made(tmp_path: Path) -> HandmadeTable:
    """Three files: plain with a vector, partly materialised, and one whose bytes are in many row groups."""
    made = made_table(tmp_path / "table")
    made.commit(
        made.add(
            "plain.parquet",
            rows(0, 6),
            base_row_id=100,
            default_row_commit_version=1,
            deletion_vector=inline_vector(0, 4),
        )
    )
    stored = {"_row-id-1": pa.array([7, None, 9], pa.int64()), "_row-version-1": pa.array([None, None, 0], pa.int64())}
    made.commit(
        made.add("copied.parquet", rows(6, 9, **stored), base_row_id=200, default_row_commit_version=2),
    )
    made.commit(
        made.add(
            "groups.parquet",
            rows(1000, 1100),
            write={"row_group_size": 10},
            base_row_id=5000,
            default_row_commit_version=3,
            deletion_vector=inline_vector(25, 70),
        )
    )
    return made


EXPECTED = {
    **{i: (100 + i, 1) for i in (1, 2, 3, 5)},
    6: (7, 2), 7: (201, 2), 8: (9, 0),
    **{1000 + i: (5000 + i, 3) for i in range(100) if i not in (25, 70)},
}  # fmt: skip


def found(table: pa.Table) -> dict[int, tuple[int, int]]:
    return {row["id"]: (row["row_id"], row["row_commit_version"]) for row in table.to_pylist()}


def test_ids_and_versions_of_every_row(made: HandmadeTable) -> None:
    scan = made.open().snapshot().scan(row_tracking=True)
    table = scan.to_arrow()
    assert table.column_names == ["id", "text", "row_id", "row_commit_version"] == list(scan.schema.names)
    assert table.schema.field("row_id").type == table.schema.field("row_commit_version").type == pa.int64()
    assert found(table) == EXPECTED
    assert "row_id" not in made.open().snapshot().scan().to_arrow().column_names


def test_positions_under_row_group_skipping_and_streaming(made: HandmadeTable, monkeypatch: Any) -> None:
    snapshot = made.open().snapshot()
    wanted = {i: v for i, v in EXPECTED.items() if i >= 1022}
    assert found(snapshot.scan(where="id >= 1022", row_tracking=True).to_arrow()) == wanted
    monkeypatch.setattr(parquet_read, "SMALL_BYTES", 600)  # row groups on threads
    assert found(snapshot.scan(row_tracking=True).to_arrow()) == EXPECTED
    monkeypatch.setattr(parquet_read, "SMALL_BYTES", 1)  # bit by bit
    monkeypatch.setattr(parquet_read, "BATCH_ROWS", 7)
    assert found(snapshot.scan(row_tracking=True).to_arrow()) == EXPECTED
    assert found(snapshot.scan(where="id >= 1022", row_tracking=True).to_arrow()) == wanted


def test_columns_and_predicates_of_row_tracking(made: HandmadeTable) -> None:
    snapshot = made.open().snapshot()
    assert snapshot.scan(["row_id", "id"], "row_id = 5003", row_tracking=True).to_arrow().to_pylist() == [
        {"row_id": 5003, "id": 1003, "row_commit_version": 3}
    ]
    only = snapshot.scan([], "ROW_COMMIT_VERSION < 2 AND id > 2", row_tracking=True).to_arrow()
    assert sorted(map(tuple, (row.values() for row in only.to_pylist()))) == [(9, 0), (103, 1), (105, 1)]
    by_engine = snapshot.scan(["id"], "length(text) = row_id - 5094", row_tracking=True)
    assert found(by_engine.to_arrow()) == {1099: (5099, 3)}
    by_arrow = snapshot.scan(["id"], pc.add(pc.field("row_id"), 1) == 202, row_tracking=True)
    assert found(by_arrow.to_arrow()) == {7: (201, 2)}
    assert snapshot.scan(["id"], "row_id < 0", row_tracking=True).to_arrow().num_rows == 0


def test_tasks_carry_what_ids_are_made_of(made: HandmadeTable) -> None:
    tasks = made.open().snapshot().scan(row_tracking=True).tasks(1)
    assert len(tasks) == 3
    again = [pickle.loads(pickle.dumps(task)).to_arrow() for task in tasks]
    assert found(pa.concat_tables(again)) == EXPECTED


def mapped_field(name: str, data_type: DataType, number: int, physical: str) -> StructField:
    return StructField(
        name, data_type, True, {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical}
    )


@pytest.mark.parametrize("mode", ["name", "id"])
def test_under_column_mapping(tmp_path: Path, mode: str) -> None:
    """A column's physical name may be `row_id`, and its logical one another."""
    mapped = StructType(
        tuple(
            StructField(
                name, kind, True, {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical}
            )
            for number, (name, kind, physical) in enumerate([("id", LONG, "row_id"), ("text", STRING, "col-2")], 1)
        )
    )
    made = HandmadeTable(tmp_path / "mapped")
    made.create(
        mapped,
        features=("rowTracking", "domainMetadata"),
        reader_features=("columnMapping",),
        configuration={**TRACKED, "delta.columnMapping.mode": mode},
    )
    fields = [
        pa.field("row_id", pa.int64(), metadata={"PARQUET:field_id": "1"}),
        pa.field("col-2", pa.string(), metadata={"PARQUET:field_id": "2"}),
        pa.field("_row-id-1", pa.int64()),
    ]
    data = pa.table([pa.array([1, 2]), pa.array(["a", "b"]), pa.array([None, 4], pa.int64())], schema=pa.schema(fields))
    made.commit(made.add("f.parquet", data, base_row_id=10, default_row_commit_version=1))
    read = made.open().snapshot().scan(row_tracking=True).to_arrow()
    assert read.to_pylist() == [
        {"id": 1, "text": "a", "row_id": 10, "row_commit_version": 1},
        {"id": 2, "text": "b", "row_id": 4, "row_commit_version": 1},
    ]


def test_tables_without_it(tmp_path: Path) -> None:
    plain = HandmadeTable(tmp_path / "plain")
    plain.create(SCHEMA)
    with pytest.raises(InvalidRequestError, match="rowTracking"):
        plain.open().snapshot().scan(row_tracking=True)
    supported = made_table(tmp_path / "supported", {})
    with pytest.raises(InvalidRequestError, match="enableRowTracking"):
        supported.open().snapshot().scan(row_tracking=True)


def test_a_column_of_that_name(tmp_path: Path) -> None:
    made = HandmadeTable(tmp_path / "taken")
    made.create(pa.schema([("Row_ID", pa.int64())]), features=("rowTracking", "domainMetadata"), configuration=TRACKED)
    with pytest.raises(InvalidRequestError, match="Row_ID"):
        made.open().snapshot().scan(row_tracking=True)


def test_a_file_without_ids(tmp_path: Path) -> None:
    made = made_table(tmp_path / "table")
    made.commit(made.add("f.parquet", rows(0, 2), default_row_commit_version=1))
    scan = made.open().snapshot().scan(row_tracking=True)
    with pytest.raises(ProtocolViolationError, match="row_id"):
        scan.to_arrow()
