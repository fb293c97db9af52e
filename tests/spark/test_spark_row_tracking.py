"""Row tracking on Spark: the same ids and versions as the local engine, whichever way the rows come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.errors import ProtocolViolationError
from delta_orch.protocol.types import LONG, STRING, StructField, StructType
from tests.handmade import HandmadeTable, inline_vector
from tests.harness.results import Scan

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("day", pa.date32()), ("id", pa.int64()), ("text", pa.string())])
TRACKED = {
    "delta.enableRowTracking": "true",
    "delta.rowTracking.materializedRowIdColumnName": "_row-id-1",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_row-version-1",
}


def rows(start: int, stop: int, **more: Any) -> pa.Table:
    ids = list(range(start, stop))
    return pa.table({"id": ids, "text": [f"t{i}" for i in ids], **more})


def made_table(root: Path) -> HandmadeTable:
    made = HandmadeTable(root)
    made.create(
        SCHEMA,
        features=("rowTracking", "domainMetadata"),
        reader_features=("deletionVectors",),
        configuration=TRACKED,
        partition_by=("day",),
    )
    return made


@pytest.fixture
def made(tmp_path: Path) -> HandmadeTable:
    """Files with and without a vector, partly materialised, in several row groups and two partitions."""
    made = made_table(tmp_path / "table")
    new_year, none = {"day": "2020-01-01"}, {"day": None}
    stored = {"_row-id-1": pa.array([7, None, 9], pa.int64()), "_row-version-1": pa.array([None, None, 0], pa.int64())}
    made.commit(
        made.add(
            "plain.parquet",
            rows(0, 6),
            base_row_id=100,
            default_row_commit_version=1,
            deletion_vector=inline_vector(0, 4),
            partition_values=new_year,
        ),
        made.add(
            "copied file.parquet",
            rows(6, 9, **stored),
            base_row_id=200,
            default_row_commit_version=2,
            partition_values=new_year,
        ),
        made.add(
            "groups.parquet",
            rows(1000, 1100),
            write={"row_group_size": 10},
            base_row_id=5000,
            default_row_commit_version=3,
            deletion_vector=inline_vector(25, 70),
            partition_values=none,
        ),
    )
    return made


EXPECTED = {
    **{i: (100 + i, 1) for i in (1, 2, 3, 5)},
    6: (7, 2), 7: (201, 2), 8: (9, 0),
    **{1000 + i: (5000 + i, 3) for i in range(100) if i not in (25, 70)},
}  # fmt: skip


def found(engine: SparkEngine, scan: Scan) -> dict[int, tuple[int, int]]:
    table = engine.to_arrow(scan.to_relation(engine))
    assert table.column_names == list(scan.schema.names)
    return {row["id"]: (row["row_id"], row["row_commit_version"]) for row in table.to_pylist()}


def test_ids_and_versions_of_every_row(engine: SparkEngine, made: HandmadeTable) -> None:
    snapshot = made.open().snapshot()
    assert found(engine, snapshot.scan(row_tracking=True)) == EXPECTED
    wanted = {i: v for i, v in EXPECTED.items() if i >= 1022}
    assert found(engine, snapshot.scan(where="id >= 1022", row_tracking=True)) == wanted
    by_day = snapshot.scan(["id"], where="day = '2020-01-01'", row_tracking=True)
    assert found(engine, by_day) == {i: v for i, v in EXPECTED.items() if i < 1000}


@pytest.mark.long
def test_columns_and_predicates_of_row_tracking(engine: SparkEngine, made: HandmadeTable) -> None:
    snapshot = made.open().snapshot()
    one = snapshot.scan(["row_id", "id"], "row_id = 5003", row_tracking=True)
    assert found(engine, one) == {1003: (5003, 3)}
    by_text = snapshot.scan(["id"], "length(text) = row_id - 5094", row_tracking=True)
    assert found(engine, by_text) == {1099: (5099, 3)}
    assert found(engine, snapshot.scan(where="id < 0", row_tracking=True)) == {}
    # A user's own filter and aggregate, over the columns and without them.
    frame = snapshot.scan(row_tracking=True).to_relation(engine)
    assert frame.where("row_id BETWEEN 5020 AND 5029 AND id > 1021").count() == 7
    assert frame.count() == frame.selectExpr("count(DISTINCT row_id) AS n").collect()[0].n == len(EXPECTED)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["name", "id"])
def test_under_column_mapping(engine: SparkEngine, tmp_path: Path, mode: str) -> None:
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
    # In mode `id` the second file has other names.
    for number, names in enumerate([("row_id", "col-2"), ("x", "y") if mode == "id" else ("row_id", "col-2")]):
        fields = [
            pa.field(names[0], pa.int64(), metadata={"PARQUET:field_id": "1"}),
            pa.field(names[1], pa.string(), metadata={"PARQUET:field_id": "2"}),
            pa.field("_row-id-1", pa.int64()),
        ]
        ids = [10 * number + 1, 10 * number + 2]
        data = pa.table([pa.array(ids), pa.array(["a", "b"]), pa.array([None, 4], pa.int64())], pa.schema(fields))
        made.commit(made.add(f"f{number}.parquet", data, base_row_id=100 * number, default_row_commit_version=number))
    scan = made.open().snapshot().scan(row_tracking=True)
    assert found(engine, scan) == {1: (0, 0), 2: (4, 0), 11: (100, 1), 12: (4, 1)}
    assert scan.to_arrow().sort_by("id") == engine.to_arrow(scan.to_relation(engine)).sort_by("id")


@pytest.mark.long
def test_a_row_without_an_id_raises(engine: SparkEngine, tmp_path: Path) -> None:
    made = made_table(tmp_path / "table")
    stored = {"_row-id-1": pa.array([7, 8], pa.int64())}
    day = {"day": "2020-01-01"}
    made.commit(made.add("f.parquet", rows(0, 2, **stored), default_row_commit_version=1, partition_values=day))
    assert found(engine, made.open().snapshot().scan(row_tracking=True)) == {0: (7, 1), 1: (8, 1)}
    made.commit(made.add("g.parquet", rows(2, 4), default_row_commit_version=1, partition_values=day))
    with pytest.raises(ProtocolViolationError, match=r"no row_id for rows of .*g\.parquet"):
        found(engine, made.open().snapshot().scan(row_tracking=True))
