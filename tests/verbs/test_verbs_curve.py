"""optimize(zorder_by=…) and clustered tables, on both engines: the same rows, and filters read fewer files."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.engines.local import curve_order
from delta_orch.engines.space_curve import curve_places, grid_of
from delta_orch.errors import ConstraintViolationError, InvalidExpressionError, InvalidRequestError
from delta_orch.expressions.resolve import resolve_predicate
from tests.harness.row_deletion import delete_rows

COUNT = 4000
FIRST = dt.date(2020, 1, 1)


def points(count: int = COUNT, seed: int = 1) -> pa.Table:
    """Values in no order; every column has nulls, and `x` NaN, too."""
    rng = random.Random(seed)

    def some(value: Any) -> Any:
        return None if rng.random() < 0.02 else value

    x = [some(float("nan") if rng.random() < 0.02 else rng.uniform(0, 1000)) for _ in range(count)]
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "x": pa.array(x, pa.float64()),
            "y": pa.array([some(rng.randrange(1000)) for _ in range(count)], pa.int32()),
            "text": pa.array([some(f"user-{rng.randrange(10_000):05}") for _ in range(count)], pa.string()),
            "day": pa.array([some(FIRST + dt.timedelta(rng.randrange(900))) for _ in range(count)], pa.date32()),
            "money": pa.array([some(Decimal(rng.randrange(10**6)) / 100) for _ in range(count)], pa.decimal128(10, 2)),
            "s": pa.array([{"a": some(rng.randrange(1000))} for _ in range(count)], pa.struct([("a", pa.int64())])),
        }
    )


def files_read(table: DeltaTable, *predicates: str) -> int:
    snapshot = table.snapshot()
    return sum(snapshot.files(["path"], resolve_predicate(p, snapshot.schema)).num_rows for p in predicates)


def content(table: DeltaTable) -> list[str]:
    return sorted(map(repr, table.snapshot().scan().to_arrow().to_pylist()))


RANGES = [f"{column} BETWEEN {low} AND {low + 50}" for column in ("x", "y") for low in (0, 230, 410, 600, 900)]


@pytest.mark.long
@pytest.mark.parametrize("columns", [["x", "y"], ["text", "day", "money"], ["s.a"]])
def test_zorder_keeps_rows_and_ids_and_leaves_out_files(rows: Any, table: DeltaTable, columns: list[str]) -> None:
    properties = {"delta.enableRowTracking": "true", "delta.enableDeletionVectors": "true"}
    table.append(rows.data(points()), properties=properties)
    delete_rows(table, 0, 5)
    before = content(table)
    deleted = table.snapshot().num_files
    tracked = table.snapshot().scan(["id"], row_tracking=True).to_arrow().sort_by("id")
    size = table.snapshot().size_bytes // 16
    result = table.optimize(target_file_size_bytes=size, zorder_by=columns, engine=rows.engine)
    snapshot = table.snapshot()
    assert snapshot.num_files >= 8
    assert content(table) == before
    assert snapshot.scan(["id"], row_tracking=True).to_arrow().sort_by("id").equals(tracked)
    assert snapshot.files(["dv_id"])["dv_id"].null_count == snapshot.num_files
    assert result.operation_metrics["numDeletionVectorsRemoved"] == deleted
    entry = table.history(1)[0]
    assert (entry.operation, entry.operation_parameters["zOrderBy"]) == ("OPTIMIZE", orjson.dumps(columns).decode())
    commit = table.log.read_commit(table.version())
    assert not any(commit.adds["data_change"].to_pylist() + commit.removes["data_change"].to_pylist())
    if columns == ["x", "y"]:
        # Some files for each range, of which there would be all without an order.
        assert files_read(table, *RANGES) <= 0.7 * snapshot.num_files * len(RANGES)
    elif columns == ["s.a"]:
        assert files_read(table, "s.a = 500") <= 2


@pytest.mark.long
def test_zorder_in_partitions(rows: Any, table: DeltaTable) -> None:
    data = points(300).append_column("p", pa.array(["a", "b c", None] * 100))
    table.append(rows.data(data), partition_by=["p"])
    table.append(rows.data(data), partition_by=["p"])
    before = content(table)
    table.optimize("p = 'a'", zorder_by=["x", "y"], engine=rows.engine)
    assert content(table) == before
    assert table.history(1)[0].operation_metrics["numRemovedFiles"] == "2"
    table.optimize(zorder_by=["x", "y"], engine=rows.engine)
    assert content(table) == before and table.snapshot().num_files == 3


@pytest.mark.long
@pytest.mark.parametrize("columns", [["x"], ["x", "y"], ["text", "day", "money", "y"]])
def test_a_clustered_table_is_clustered_once(rows: Any, table: DeltaTable, columns: list[str]) -> None:
    table.append(rows.data(points()), cluster_by=columns)
    before = content(table)
    size = table.snapshot().size_bytes // 16
    table.optimize(target_file_size_bytes=size, engine=rows.engine)
    snapshot = table.snapshot()
    files = snapshot.files(["path", "clustering_provider", "tags"])
    assert content(table) == before and snapshot.num_files >= 8
    assert set(files["clustering_provider"].to_pylist()) == {"liquid"}
    tags = [dict(tag) for tag in files["tags"].to_pylist()]
    assert len({tag["ZCUBE_ID"] for tag in tags}) == 1
    assert {tag["ZCUBE_ZORDER_BY"] for tag in tags} == {orjson.dumps(columns).decode()}
    assert {tag["ZCUBE_ZORDER_CURVE"] for tag in tags} == {"hilbert"}
    assert table.optimize(target_file_size_bytes=size, engine=rows.engine).skipped
    if columns == ["x", "y"]:
        assert files_read(table, *RANGES) <= 0.7 * snapshot.num_files * len(RANGES)
    # Only what is new is clustered, and with `full` all once more.
    clustered = set(files["path"].to_pylist())
    table.append(rows.data(points(50, seed=2)))
    table.optimize(target_file_size_bytes=size, engine=rows.engine)
    assert clustered < set(table.snapshot().files(["path"])["path"].to_pylist())
    entry = table.history(1)[0]
    assert entry.operation_metrics["numFilesSkipped"] == str(len(clustered))
    assert entry.operation_parameters["clusterBy"] == orjson.dumps(columns).decode()
    after = content(table)
    table.optimize(full=True, engine=rows.engine)
    assert content(table) == after and not clustered & set(table.snapshot().files(["path"])["path"].to_pylist())
    assert table.optimize(full=True, engine=rows.engine).skipped


CLUSTERS = {"delta_orch.clusterOnWrite": "true", "delta.targetFileSize": "20kb"}


@pytest.mark.long
@pytest.mark.parametrize("columns", [["x"], ["x", "y"]])
def test_writes_may_cluster(rows: Any, table: DeltaTable, columns: list[str]) -> None:
    data = points()
    table.append(rows.data(data), cluster_by=columns, properties=CLUSTERS)
    snapshot = table.snapshot()
    assert content(table) == sorted(map(repr, data.to_pylist()))
    assert snapshot.num_files >= 4
    ranges = [text for text in RANGES if text[0] in columns]
    assert files_read(table, *ranges) <= 0.7 * snapshot.num_files * len(ranges)
    table.overwrite(rows.data(data.slice(0, 7)), dry_run=True)
    table.append(rows.data(data.slice(0, 0)))
    assert content(table) == sorted(map(repr, data.to_pylist()))
    table.overwrite(rows.data(data.slice(0, 7)))
    assert content(table) == sorted(map(repr, data.slice(0, 7).to_pylist()))


@pytest.mark.long
@pytest.mark.spark
def test_writes_cluster_over_connect(table: DeltaTable, spark_connect: Any) -> None:
    data = points()
    table.append(spark_connect.createDataFrame(data), cluster_by=["x", "y"], properties=CLUSTERS)
    snapshot = table.snapshot()
    assert content(table) == sorted(map(repr, data.to_pylist()))
    assert snapshot.num_files >= 4
    assert files_read(table, *RANGES) <= 0.7 * snapshot.num_files * len(RANGES)
    table.overwrite(spark_connect.createDataFrame(data.slice(0, 7)))
    assert content(table) == sorted(map(repr, data.slice(0, 7).to_pylist()))


@pytest.mark.long
def test_writes_cluster_by_what_their_rows_have(rows: Any, table: DeltaTable) -> None:
    # `bucket` is filled in by the table, after the order.
    table.append(rows.data(pa.table({"id": [1], "v": [2], "bucket": [0]})), properties=CLUSTERS)
    table.alter().cluster_by("bucket", "ID").add_constraint("positive", "v > 0").set_default("bucket", "7").commit()
    table.append(rows.data(pa.table({"V": [3, 4], "ID": [9, 8]})))
    assert sorted(row["bucket"] for row in table.snapshot().scan().to_arrow().to_pylist()) == [0, 7, 7]
    before, version = content(table), table.version()
    with pytest.raises(ConstraintViolationError, match="positive"):
        table.append(rows.data(pa.table({"id": [1, 2], "v": [1, -1]})))
    assert (content(table), table.version()) == (before, version)


def test_refused(table: DeltaTable) -> None:
    data = points(10).append_column("p", pa.array(["a"] * 10)).append_column("flag", pa.array([True] * 10))
    table.append(data, partition_by=["p"], properties={"delta.dataSkippingNumIndexedCols": "7"})
    for wrong in (["p"], ["flag"], ["x", "x"], "x", ["s"], []):
        with pytest.raises(InvalidRequestError):
            table.optimize(zorder_by=wrong)
    with pytest.raises(InvalidRequestError):
        table.optimize(zorder_by=["nothing"])
    with pytest.raises(InvalidRequestError, match="clustered tables"):
        table.optimize(full=True)
    assert table.version() == 0
    clustered = DeltaTable(f"{table.uri}-clustered")
    clustered.append(points(10), cluster_by=["x"])
    with pytest.raises(InvalidRequestError, match="cannot be used for a clustered table"):
        clustered.optimize(zorder_by=["y"])
    with pytest.raises(InvalidExpressionError):
        clustered.optimize("y = 1")
    assert clustered.version() == 0


@pytest.mark.long
def test_empty_tables_and_dry_runs(rows: Any, table: DeltaTable) -> None:
    table.create(points(0).schema)
    assert table.optimize(zorder_by=["x", "y"], engine=rows.engine).skipped
    table.append(rows.data(points(100)))
    assert table.optimize(zorder_by=["x", "y"], engine=rows.engine, dry_run=True).preview is not None
    assert table.version() == 1
    table.append(pa.table({"id": [1]}), schema_mode="merge")
    table.optimize(zorder_by=["x", "text"], engine=rows.engine)
    assert len(content(table)) == 101


@pytest.mark.long
def test_more_rows_than_memory(table: DeltaTable, monkeypatch: pytest.MonkeyPatch) -> None:
    table.append(points())
    before = content(table)
    monkeypatch.setattr(curve_order, "MEMORY_BYTES", 20_000)
    size = table.snapshot().size_bytes // 16
    for columns in (["x", "y"], ["text"]):
        table.optimize(target_file_size_bytes=size, zorder_by=columns)
        assert content(table) == before
    assert files_read(table, "text = 'user-05000'") <= 2


@pytest.mark.parametrize(("count", "bits"), [(2, 5), (3, 4), (4, 3), (5, 2), (9, 1)])
def test_the_curves_pass_each_cell_once(count: int, bits: int) -> None:
    for curve in ("zorder", "hilbert"):
        places = curve_places(count, bits, curve)
        assert sorted(places.tolist()) == list(range(1 << (count * bits)))
    # On Hilbert's curve, the next cell is a neighbour.
    cells = np.argsort(places)
    mask = (1 << bits) - 1
    axes = np.stack([(cells >> (bits * i)) & mask for i in range(count)])
    assert (np.abs(np.diff(axes, axis=1)).sum(axis=0) == 1).all()


def test_ranges_ascend_with_values() -> None:
    data = points()
    for name in ("x", "y", "text", "day", "money"):
        column = data.column(name).combine_chunks()
        grid = grid_of(pa.table({"0": column.slice(0, 500)}), "zorder")
        ordered = data.sort_by(name).column(name).combine_chunks()
        places = grid.places_of([ordered])
        values = places[: len(ordered) - ordered.null_count].astype(np.int64)
        assert (np.diff(values) >= 0).all()
        assert set(places[len(ordered) - ordered.null_count :].tolist()) == {0}
