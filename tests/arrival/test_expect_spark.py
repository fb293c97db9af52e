"""Rules for rows on Spark: the source is evaluated once, and the same rules give the same answers as in process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable, Expect, requeue
from delta_orch.errors import ExpectationFailedError
from delta_orch.pipeline.step import Step
from delta_orch.pipeline.unit import Attempt, StepReport, Unit
from delta_orch.verbs.expect import Expectations, row_texts

pytestmark = pytest.mark.spark

RULES = {
    "amount is positive": Expect("amount > 0"),
    "note is short": Expect("length(note) < 5", "warn"),
    "id is even": Expect("id % 2 = 0", "drop"),
    "has an id": Expect("id IS NOT NULL", "fail"),
}


def written(table: DeltaTable, rows: Any, order: int = 1, most: Any = None, **how: Any) -> StepReport:
    attempt = Attempt((Unit("airflow:dag.task", "monday"),), order, f"run {order}")
    step = Step("step", table, attempt=attempt, expect=Expectations.of(RULES, most), **{"mode": "append", **how})
    return step.run(lambda: rows)


def ids(table: DeltaTable) -> list[int]:
    found: list[int] = table.snapshot().scan(["id"]).to_arrow().column("id").to_pylist()
    return sorted(found)


def bad_ids(table: DeltaTable) -> list[int]:
    found = table.quarantine().snapshot().scan(["row"]).to_arrow().column("row").to_pylist()
    return sorted(json.loads(row)["id"] for row in found)


@pytest.mark.parametrize("mode", ["append", "overwrite", "overwrite_partitions", "merge"])
def test_rows_that_are_others_each_time_go_one_way_each(spark: Any, tmp_path: Path, mode: Any) -> None:
    random = spark.range(60).selectExpr(
        "id", "CASE WHEN rand() < 0.5 THEN 1D ELSE -1D END AS amount", "CAST(id % 3 AS string) AS note"
    )
    table = DeltaTable(tmp_path / "t")
    how: dict[str, Any] = {"merge_keys": ("id",)} if mode == "merge" else {}
    how |= {"options": {"partition_by": ["note"]}} if mode == "overwrite_partitions" else {}
    report = written(table, random, mode=mode, **how)
    good, bad = ids(table), bad_ids(table)
    assert report.expected is not None
    assert len(set(good) | set(bad)) == len(good) + len(bad) == 60 - report.expected.num_dropped
    assert all(number % 2 == 0 for number in good)
    assert report.expected.num_quarantined == len(bad)
    assert set(table.snapshot().scan(["amount"]).to_arrow().column("amount").to_pylist()) == {1.0}
    rows = table.quarantine().snapshot().scan(["row"]).to_arrow().column("row").to_pylist()
    assert {json.loads(row)["amount"] for row in rows} == {-1.0}


def test_the_same_answers_as_in_process_and_a_redo(spark: Any, tmp_path: Path) -> None:
    rows = pa.table(
        {
            "id": pa.array([0, 1, 2, 3, 4, 5], pa.int64()),
            "amount": [1.0, float("nan"), None, -1.0, 2.0, 3.0],
            "note": ["a", "long enough", None, "b", "c", "d"],
        }
    )
    local, remote = DeltaTable(tmp_path / "local"), DeltaTable(tmp_path / "spark")
    one = written(local, rows)
    other = written(remote, spark.createDataFrame(rows))
    assert one.expected is not None
    assert other.expected is not None
    assert one.expected.counts == other.expected.counts
    assert (ids(local), bad_ids(local)) == (ids(remote), bad_ids(remote)) == ([0, 4], [2, 3])
    assert [len(result.rows) for result in other.expected.results] == [2, 2, 3, 0]
    fewer = rows.slice(3)
    assert written(remote, spark.createDataFrame(fewer), order=2).outcome == "replaced"
    assert (ids(remote), bad_ids(remote)) == ([4], [3])
    assert requeue(remote, {}).num_moved == 1
    assert ids(remote) == [3, 4]


@pytest.mark.parametrize("most", [1, 0.1])
def test_too_many_rows_change_neither_table(spark: Any, tmp_path: Path, most: Any) -> None:
    table = DeltaTable(tmp_path / "t")
    with pytest.raises(ExpectationFailedError, match="3 of 3 rows"):
        written(table, spark.sql("SELECT id, -1D AS amount, 'a' AS note FROM range(3)"), most=most)
    assert not table.exists()
    assert not table.quarantine().exists()


def test_rows_have_the_same_text_as_in_process(spark: Any, tmp_path: Path) -> None:
    frame = spark.sql(
        "SELECT 0L AS id, -1D AS amount, 'n' AS note, 1.50BD AS money, X'00FF' AS blob, DATE'2024-02-29' AS day, "
        "TIMESTAMP'2024-02-29 01:02:03.456789Z' AS at, TIMESTAMP_NTZ'2024-02-29 01:02:03' AS local, "
        "array(struct(1 AS a, CAST(NULL AS string) AS b)) AS list, map('k', 1) AS map, double('NaN') AS nan"
    )
    plain, table = DeltaTable(tmp_path / "plain"), DeltaTable(tmp_path / "t")
    plain.append(frame)
    (expected,) = row_texts(plain.snapshot().scan().to_arrow().to_batches()[0])
    written(table, frame)
    (row,) = table.quarantine().snapshot().scan(["row"]).to_arrow().column("row").to_pylist()
    assert row == expected
