"""Tables we write, read by `deltalake` (delta-rs) and by DuckDB's delta extension (delta-kernel-rs)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable, TxnId
from delta_orch.errors import ConstraintViolationError
from delta_orch.expressions.parse import parse_expression
from tests.harness.row_multiset import ensure_same_rows

deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")

TYPED = pa.table(
    {
        "day": pa.array([date(2013, 1, 1), date(2013, 1, 1), date(2013, 1, 2), None], pa.date32()),
        "at": pa.array(
            [
                datetime(2013, 1, 1, 5, 30, 0, 123456, UTC),
                None,
                datetime(1900, 1, 1, tzinfo=UTC),
                datetime(9999, 1, 1, tzinfo=UTC),
            ],
            pa.timestamp("us", "UTC"),
        ),
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "small": pa.array([1, None, -1, 127], pa.int8()),
        "ratio": pa.array([0.5, float("nan"), None, float("-inf")], pa.float64()),
        "price": pa.array([Decimal("1.25"), None, Decimal("-3.00"), Decimal("99999999.99")], pa.decimal128(10, 2)),
        "name": pa.array(["ü" * 50, "", None, "a'b\"c\\d"], pa.string()),
        "raw": pa.array([b"\x00", b"", None, b"\xff"], pa.binary()),
        "ok": pa.array([True, False, None, True], pa.bool_()),
        "nested": pa.array(
            [{"x": 1, "y": ["a"]}, None, {"x": None, "y": []}, {"x": 2, "y": [None]}],
            pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))]),
        ),
        "tags": pa.array([[("k", 1)], None, [], [("a", None), ("b", 2)]], pa.map_(pa.string(), pa.int64())),
    }
)


def rows(*days_and_ids: tuple[str | None, int]) -> pa.Table:
    return pa.table(
        {
            "day": pa.array([d for d, _ in days_and_ids], pa.string()),
            "id": pa.array([i for _, i in days_and_ids], pa.int64()),
        }
    )


def appended(table: DeltaTable) -> None:
    table.append(rows(("a", 1), ("b", 2), (None, 3)), partition_by=["day"], txn=("job", 3))
    table.append(rows(("a b/c%d=e", 4), ("ü", 5)))


def unpartitioned(table: DeltaTable) -> None:
    table.append(rows(("a", 1), ("b", 2)))
    table.append(rows(*(("c", i) for i in range(1000))))


def typed(table: DeltaTable) -> None:
    table.append(TYPED, partition_by=["day"])
    table.append(TYPED)


def partitioned_by_everything(table: DeltaTable) -> None:
    table.append(
        TYPED.select(["day", "at", "id", "small", "price", "ok", "name"]), partition_by=["at", "small", "price", "ok"]
    )


def timestamp_ntz(table: DeltaTable) -> None:
    at = pa.array([datetime(2013, 1, 1, 12), None, datetime(1, 1, 1)], pa.timestamp("us"))
    table.append(pa.table({"at": at, "part": at, "id": [1, 2, 3]}), partition_by=["part"])


def created_empty(table: DeltaTable) -> None:
    table.create(TYPED.schema, partition_by=["day"], properties={"delta.appendOnly": "true", "owner": "me"}, name="n")


def overwritten(table: DeltaTable) -> None:
    appended(table)
    table.overwrite(rows(("z", 9)))


def replaced_partitions(table: DeltaTable) -> None:
    appended(table)
    table.overwrite(
        rows(("b", 20), ("b", 21)), replace_where="day = 'b'", txn=TxnId("b", 1, parse_expression("day = 'b'"))
    )


def replaced_rows(table: DeltaTable) -> None:
    unpartitioned(table)
    table.overwrite(rows(("n", 10), ("n", 500)), replace_where="id >= 10 AND id <= 500")


def replaced_dynamically(table: DeltaTable) -> None:
    appended(table)
    table.overwrite(rows((None, 30), ("a b/c%d=e", 40), ("new", 50)), partition_overwrite_mode="dynamic")


def optimized(table: DeltaTable) -> None:
    appended(table)
    for i in range(10, 15):
        table.append(rows(("a", i), (None, -i)))
    assert not table.optimize().skipped


def checkpointed(table: DeltaTable) -> None:
    optimized(table)
    table.overwrite(rows(("b", 99)), replace_where="day = 'b'")
    version = table.checkpoint()
    for old in range(version + 1):
        Path(table.store.resolve(f"_delta_log/{old:020d}.json")).unlink()
    table.append(rows(("after", 1)))


def checkpointed_automatically(table: DeltaTable) -> None:
    table.append(TYPED, partition_by=["day"], properties={"delta.checkpointInterval": "3"}, txn=("job", 1))
    for _ in range(7):
        table.append(TYPED)
    assert table.store.head("_delta_log/00000000000000000006.checkpoint.parquet") is not None


def vacuumed(table: DeltaTable) -> None:
    optimized(table)
    assert table.vacuum(retention_hours=0, enforce_retention=False).num_files > 0


STORIES = [
    appended, unpartitioned, typed, partitioned_by_everything, timestamp_ntz, created_empty, overwritten,
    replaced_partitions, replaced_rows, replaced_dynamically, optimized, checkpointed, checkpointed_automatically,
    vacuumed,
]  # fmt: skip


@pytest.fixture(params=STORIES, ids=lambda story: story.__name__)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> DeltaTable:
    table = DeltaTable(tmp_path / "table")
    request.param(table)
    return table


def location(table: DeltaTable) -> Path:
    return Path(table.store.resolve("x")).parent


def test_deltalake_reads_it(written: DeltaTable) -> None:
    snapshot = written.snapshot()
    theirs = deltalake.DeltaTable(location(written))
    assert theirs.version() == snapshot.version
    ensure_same_rows(read_by_deltalake(theirs), snapshot.scan().to_arrow())
    assert theirs.metadata().partition_columns == list(snapshot.partition_columns)
    assert theirs.metadata().configuration == dict(snapshot.metadata.configuration)
    assert len(theirs.file_uris()) == snapshot.num_files
    for app_id, version in snapshot.txns.items():
        assert theirs.transaction_version(app_id) == version


def read_by_deltalake(table: Any) -> pa.Table:
    return pa.table(table.to_pyarrow_table()) if hasattr(table, "to_pyarrow_table") else pa.table(table)


def test_duckdb_reads_it(written: DeltaTable, duckdb_delta: Callable[[Path], pa.Table]) -> None:
    ensure_same_rows(duckdb_delta(location(written)), written.snapshot().scan().to_arrow())


@pytest.mark.parametrize(
    ("filters", "where"),
    [
        ([("id", ">", 2)], "id > 2"),
        ([("name", "=", "ü" * 50)], f"name = '{'ü' * 50}'"),
        ([("price", "<", Decimal("0.00"))], "price < 0"),
        ([("day", "=", date(2013, 1, 1))], "day = DATE '2013-01-01'"),
        ([("at", ">=", datetime(2013, 1, 1, 5, 30, 0, 123456, UTC))], "at >= TIMESTAMP '2013-01-01 05:30:00.123456Z'"),
    ],
)
def test_deltalake_skips_no_file_it_needs(tmp_path: Path, filters: Any, where: str) -> None:
    table = DeltaTable(tmp_path / "table")
    typed(table)
    theirs = deltalake.DeltaTable(tmp_path / "table").to_pyarrow_table(filters=filters)
    ours = table.snapshot().scan(where=where).to_arrow()
    assert ours.num_rows > 0
    ensure_same_rows(pa.table(theirs), ours)


def test_every_version_and_the_history(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "table")
    optimized(table)
    table.overwrite(rows(("x", 1)), user_metadata="last")
    for version in range(table.version() + 1):
        theirs = deltalake.DeltaTable(tmp_path / "table", version=version)
        ensure_same_rows(pa.table(theirs.to_pyarrow_table()), table.snapshot(version=version).scan().to_arrow())
    history = deltalake.DeltaTable(tmp_path / "table").history()
    assert [h["operation"] for h in history] == [e.operation for e in table.history()]


def test_change_feed_read_by_deltalake(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "table")
    table.append(rows(("a", 1), ("b", 2)), partition_by=["day"], properties={"delta.enableChangeDataFeed": "true"})
    table.append(rows(("a", 3)))
    table.optimize()
    table.overwrite(rows(("b", 4)), replace_where="day = 'b'")
    theirs = pa.table(deltalake.DeltaTable(tmp_path / "table").load_cdf(starting_version=0))
    compared = ["day", "id", "_change_type", "_commit_version"]
    ours = table.changes(starting_version=0, require_change_data_feed=True).to_arrow()
    ensure_same_rows(ours.select(compared), theirs.select(compared))


def test_deltalake_goes_on_writing(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "table")
    appended(table)
    theirs = deltalake.DeltaTable(tmp_path / "table")
    deltalake.write_deltalake(theirs, rows(("a", 100)), mode="append")
    theirs.delete("id = 2")
    theirs.optimize.compact()
    theirs.create_checkpoint()
    table.append(rows(("a", 101)))
    snapshot = table.snapshot()
    assert snapshot.version == theirs.version() + 1
    ids = sorted(snapshot.scan(["id"]).to_arrow().column("id").to_pylist())
    assert ids == [1, 3, 4, 5, 100, 101]
    again = deltalake.DeltaTable(tmp_path / "table")
    assert sorted(pa.table(again.to_pyarrow_table()).column("id").to_pylist()) == ids


def test_constraints_deltalake_adds_hold_here_and_ours_hold_there(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "table")
    appended(table)
    deltalake.DeltaTable(tmp_path / "table").alter.add_constraint({"positive": "id > 0"})
    table.append(rows(("a", 6)))
    with pytest.raises(ConstraintViolationError, match="positive"):
        table.append(rows(("a", 0)))
    with pytest.raises(deltalake.exceptions.DeltaError, match="failed validation"):
        deltalake.write_deltalake(deltalake.DeltaTable(tmp_path / "table"), rows(("a", -1)), mode="append")
    assert table.snapshot().scan().to_arrow().num_rows == 6
