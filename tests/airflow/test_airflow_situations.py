"""What went wrong in users' hands in Airflow, one situation a test, and what must be true."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.airflow import (
    DeltaIncrementalOperator,
    DeltaOptimizeOperator,
    DeltaWriteOperator,
    delta_table_asset,
)
from delta_orch.errors import StorageError
from tests.airflow.instance import DAYS, Instance


@pytest.fixture
def clock() -> list[int]:
    return [0]


def rows(*values: str) -> pa.Table:
    return pa.table({"v": pa.array(values, pa.string())})


def content(uri: Path) -> list[Any]:
    return sorted(DeltaTable(uri).snapshot().scan().to_arrow()["v"].to_pylist())


def load(uri: Path, value: str, **more: Any) -> Callable[[], Any]:
    return lambda: DeltaWriteOperator(task_id="load", table_uri=uri, python_callable=lambda: rows(value), **more)


def test_an_outage_is_left_to_the_retries_of_the_task(
    tmp_path: Path, clock: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A1: Airflow retries every error but AirflowFailException."""

    def fails(*_: object, **__: object) -> None:
        raise StorageError("The store cannot be reached", retryable=True)

    one = Instance(clock)
    with monkeypatch.context() as patched:
        patched.setattr("delta_orch.pipeline.step.Step.run", fails)
        with pytest.raises(StorageError):
            one.run(load(tmp_path / "t", "a"))
    assert one.retry(load(tmp_path / "t", "a"))["outcome"] == "written"


def test_a_late_overwrite_of_the_whole_table_changes_nothing(tmp_path: Path, clock: list[int]) -> None:
    """A3"""
    late, newer = Instance(clock, DAYS[4]), Instance(clock, DAYS[5])
    newer.run(load(tmp_path / "t", "day 6", write="overwrite"))
    assert late.run(load(tmp_path / "t", "day 5", write="overwrite"))["outcome"] == "fenced"
    assert content(tmp_path / "t") == ["day 6"]


def test_a_process_that_dies_after_its_commit_and_is_cleared_doubles_nothing(tmp_path: Path, clock: list[int]) -> None:
    """A5: with `retries=0`, the task has failed, and a clear is the only way on."""
    one = Instance(clock)
    one.run(load(tmp_path / "t", "a"))  # Nobody hears of it.
    assert one.clear(load(tmp_path / "t", "b"))["outcome"] == "replaced"
    assert content(tmp_path / "t") == ["b"]


def test_a_retry_reports_its_own_commit(tmp_path: Path, clock: list[int]) -> None:
    """A6: others have written meanwhile."""
    one = Instance(clock)
    first = one.run(load(tmp_path / "t", "a"))
    DeltaTable(tmp_path / "t").append(rows("b", "c"))
    again = one.retry(load(tmp_path / "t", "a"))
    assert (first["version"], again["version"], again["outcome"]) == (0, 0, "recovered")
    assert [int(report["operation_metrics"]["numOutputRows"]) for report in (first, again)] == [1, 1]


@pytest.mark.parametrize("emits", [False, True])
def test_work_that_found_nothing_emits_no_event(tmp_path: Path, clock: list[int], emits: bool) -> None:
    """A7"""
    DeltaTable(tmp_path / "s").append(rows("a"))
    asset = delta_table_asset("copied", tmp_path / "t")

    def make() -> Any:
        return DeltaIncrementalOperator(
            task_id="copy", source=tmp_path / "s", target=asset, write="append", emit_when_unchanged=emits,
            python_callable=lambda batch: batch.inserted().to_arrow(),
        )  # fmt: skip

    first, second = Instance(clock), Instance(clock, DAYS[1])
    assert first.run(make)["outcome"] == "written" and first.outlets == [asset]
    assert second.run(make)["outcome"] == "nothing new"
    assert second.outlets == ([asset] if emits else [])
    quiet = Instance(clock, DAYS[2])
    report = quiet.run(lambda: DeltaOptimizeOperator(task_id="optimize", table_uri=tmp_path / "t"))
    assert (report["outcome"], quiet.outlets) == ("nothing new", [])


def test_two_tasks_of_one_run_are_not_one_unit(tmp_path: Path, clock: list[int]) -> None:
    """Two tasks with the same `writer`: the second would replace the rows of the first. A clear hands them over."""
    one = Instance(clock)

    def make(name: str) -> Callable[[], Any]:
        return lambda: DeltaWriteOperator(
            task_id=name, table_uri=tmp_path / "t", writer="d.load", python_callable=lambda: rows(name)
        )

    one.run(make("a"))
    one.counts.begin()
    assert "Tasks a and b write the same unit airflow:d.load:" in one.refused(make("b"), is_clear=False)
    assert content(tmp_path / "t") == ["a"]
    assert one.clear(make("b"))["outcome"] == "replaced"
    assert content(tmp_path / "t") == ["b"]


def test_a_dag_that_was_deleted_and_created_again_writes(tmp_path: Path, clock: list[int]) -> None:
    """A9: its runs have the same ids and dates, and count from the start."""
    one = Instance(clock)
    one.run(load(tmp_path / "t", "old"))
    one.counts.create()
    assert one.run(load(tmp_path / "t", "new"))["outcome"] == "replaced"
    assert content(tmp_path / "t") == ["new"]


def test_a_table_that_was_dropped_is_written_anew(tmp_path: Path, clock: list[int]) -> None:
    """A9: the units of a table go with it."""
    one = Instance(clock)
    one.run(load(tmp_path / "t", "a"))
    shutil.rmtree(tmp_path / "t")
    assert one.retry(load(tmp_path / "t", "a"))["outcome"] == "written"
    assert content(tmp_path / "t") == ["a"]


def test_frames_of_pandas_with_nulls(tmp_path: Path, clock: list[int]) -> None:
    """A9: integers with a null are floats in pandas, and a column of nulls has no type."""
    DeltaTable(tmp_path / "t").append(pa.table({"v": ["a"], "n": pa.array([1], pa.int64())}))

    def make(frame: pd.DataFrame) -> Callable[[], Any]:
        return lambda: DeltaWriteOperator(task_id="load", table_uri=tmp_path / "t", python_callable=lambda: frame)

    Instance(clock).run(make(pd.DataFrame({"v": ["b", "c"], "n": [2, None]})))
    Instance(clock, DAYS[1]).run(make(pd.DataFrame({"v": ["d"], "n": [None]})))
    found = DeltaTable(tmp_path / "t").snapshot().scan().to_arrow().sort_by("v")
    assert found["n"].to_pylist() == [1, 2, None, None]
    message = Instance(clock).refused(
        lambda: DeltaWriteOperator(
            task_id="load", table_uri=tmp_path / "new", python_callable=lambda: pd.DataFrame({"v": ["a"], "n": [None]})
        ),
        is_clear=False,
    )
    assert "n" in message and not DeltaTable(tmp_path / "new").exists()


def test_a_window_of_an_older_run_replaces_newer_rows_only_together_with_them(tmp_path: Path, clock: list[int]) -> None:
    def make(day: int, value: str) -> Callable[[], Any]:
        return lambda: DeltaWriteOperator(
            task_id="load", table_uri=tmp_path / "t", write="overwrite", replace_where=f"v >= '{day - 1}'",
            python_callable=lambda: rows(f"{day - 1} {value}", f"{day} {value}"),
        )  # fmt: skip

    older, newer = Instance(clock, DAYS[2]), Instance(clock, DAYS[3])
    newer.run(make(4, "old"))
    run_id = newer.counts.run_id
    older.states = {run_id: {"load": "success"}}
    for is_clear in (False, True):
        message = older.refused(make(3, "old"), is_clear=is_clear)
        assert f"rows of its newer run {run_id}" in message and "('future')" in message
    for state in ("running", "up_for_retry", "failed", "queued"):
        older.states = {run_id: {"load": state}}
        older.refused(make(3, "old"))
    older.states = {run_id: {"load": None}}
    assert older.clear(make(3, "new"))["outcome"] == "written"
    newer.clear(make(4, "new"))
    assert content(tmp_path / "t") == ["2 new", "3 new", "4 new"]
