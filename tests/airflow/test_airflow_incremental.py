"""`DeltaIncrementalOperator`: cursor and rows in one commit, whatever happens to the task."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG

from delta_orch import DeltaTable
from delta_orch.airflow import DeltaIncrementalOperator, delta_table_asset
from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.incremental import ChangeBatch, IncrementalReader
from tests.certain import some

NO_DELAY = {"retries": 1, "retry_delay": timedelta(0)}


def day_of(number: int) -> datetime:
    """The logical date of a later run: one of the same date would do the first one again."""
    return datetime(2024, 1, number, tzinfo=UTC)


def readings(day: str, *values: int) -> pa.Table:
    return pa.table({"day": pa.array([day] * len(values), pa.string()), "value": pa.array(values, pa.int64())})


def rows(uri: Path) -> list[tuple[str, int]]:
    table = DeltaTable(str(uri)).snapshot().scan(columns=["day", "value"]).to_arrow()
    return sorted(zip(table["day"].to_pylist(), table["value"].to_pylist(), strict=True))


@pytest.fixture
def source(tmp_path: Path) -> DeltaTable:
    table = DeltaTable(str(tmp_path / "source"))
    table.append(readings("a", 1, 2), partition_by=["day"])
    return table


class Doubled:
    """Recomputes the touched days; remembers what it was given."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int | None, int]] = []

    def __call__(self, batch: ChangeBatch) -> pa.Table:
        self.ranges.append((batch.starting_version, batch.ending_version))
        table = batch.scan().to_arrow()
        return table.set_column(1, "value", pa.array([2 * value for value in table["value"].to_pylist()], pa.int64()))


def double_of(tmp_path: Path, name: str, function: Any, **arguments: Any) -> DAG:
    with DAG(name, schedule=None) as dag:
        DeltaIncrementalOperator(
            task_id="silver",
            source=str(tmp_path / "source"),
            target=str(tmp_path / "target"),
            python_callable=function,
            partition_by=["day"],
            **{**NO_DELAY, **arguments},
        )
    return dag


@pytest.mark.long
def test_first_run_takes_the_snapshot_then_only_what_changed(runs, source: DeltaTable, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    function = Doubled()
    dag = double_of(tmp_path, "increments", function)
    reports = [runs.xcom(runs.run(dag), "silver")]
    assert rows(tmp_path / "target") == [("a", 2), ("a", 4)]
    source.append(readings("b", 3))
    source.overwrite(readings("a", 5), replace_where="day = 'a'")
    reports += [runs.xcom(runs.run(dag, day_of(number)), "silver") for number in (2, 3)]
    assert rows(tmp_path / "target") == [("a", 10), ("b", 6)]
    assert function.ranges == [(None, 0), (1, 2)]
    assert [report["outcome"] for report in reports] == ["written", "written", "nothing new"]
    assert (reports[1]["source_starting_version"], reports[1]["source_ending_version"]) == (1, 2)
    assert [report["version"] for report in reports] == [0, 1, 1]
    target = DeltaTable(str(tmp_path / "target"))
    assert [at for name, at in target.txns().items() if name.startswith("cdc:")] == [2]
    assert json.loads(some(target.history()[0].user_metadata))["task_id"] == "silver"


def test_retry_after_the_commit_goes_on_behind_it(runs, source: DeltaTable, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    function = Doubled()

    def die(context: Any, result: Any) -> None:
        if context["ti"].try_number == 1:
            raise RuntimeError("killed after the commit")

    run = runs.run(double_of(tmp_path, "dies_after_commit", function, write="append", post_execute=die))
    assert (runs.state(run, "silver"), runs.tries(run, "silver")) == ("success", 2)
    assert function.ranges == [(None, 0)]
    assert rows(tmp_path / "target") == [("a", 2), ("a", 4)]


def test_retry_between_batches_repeats_none(runs, source: DeltaTable, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Killed in the second of three batches: the first is not done again, the others are."""
    for day in ("b", "c"):
        source.append(readings(day, 1))
    done: list[int] = []

    def copy(batch: ChangeBatch, ti: Any) -> pa.Table:
        if ti.try_number == 1 and done:
            raise RuntimeError("killed in the second batch")
        done.append(batch.ending_version)
        return batch.changes.to_arrow().select(["day", "value"])

    dag = double_of(tmp_path, "dies_between", copy, write="append", bootstrap="changes", max_versions=1)
    run = runs.run(dag)
    assert (runs.state(run, "silver"), runs.tries(run, "silver")) == ("success", 2)
    assert done == [0, 1, 2]
    assert rows(tmp_path / "target") == [("a", 1), ("a", 2), ("b", 1), ("c", 1)]
    assert runs.xcom(run, "silver")["batches"] == 2


def test_a_cleared_task_does_its_versions_again(runs, source: DeltaTable, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    function = Doubled()
    dag = double_of(tmp_path, "cleared_increment", function, write="append")
    run = runs.run(dag)
    runs.clear(dag, run, "silver")
    assert function.ranges == [(None, 0), (None, 0)]
    assert rows(tmp_path / "target") == [("a", 2), ("a", 4)]
    assert runs.xcom(run, "silver")["outcome"] == "replaced"


def test_overlapping_run_does_not_process_a_batch_twice(runs, source: DeltaTable, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """While one run computes versions 1 and 2, another commits version 1: the first must not add version 1 again."""
    target = DeltaTable(str(tmp_path / "target"))

    def added(batch: ChangeBatch) -> pa.Table:
        return batch.changes.to_arrow().select(["day", "value"])

    def overtaken(batch: ChangeBatch, ti: Any) -> pa.Table:
        if ti.try_number == 1:
            rival = IncrementalReader(source, target, max_versions=1)
            step = rival.next_batch()
            assert step is not None
            assert (step.starting_version, step.ending_version) == (1, 1)
            target.append(added(step), txn=step.txn)
        return added(batch)

    runs.run(double_of(tmp_path, "overlap_first", added, write="append", bootstrap="changes"))
    source.append(readings("b", 1))
    source.append(readings("c", 1))
    run = runs.run(double_of(tmp_path, "overlap", overtaken, write="append"))
    assert (runs.state(run, "silver"), runs.tries(run, "silver")) == ("success", 2)
    assert rows(tmp_path / "target") == [("a", 1), ("a", 2), ("b", 1), ("c", 1)]
    assert [at for name, at in target.txns().items() if name.startswith("cdc:")] == [2]


def test_partitions_that_became_empty_are_cleared(runs, source: DeltaTable, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    source.append(readings("b", 3))
    dag = double_of(tmp_path, "emptied", Doubled(), write="overwrite_changed")
    runs.run(dag)
    assert rows(tmp_path / "target") == [("a", 2), ("a", 4), ("b", 6)]
    source.overwrite(readings("b").slice(0, 0), replace_where="day = 'b'")
    runs.run(dag, day_of(2))
    assert rows(tmp_path / "target") == [("a", 2), ("a", 4)]


def test_empty_result_moves_the_cursor(runs, source: DeltaTable, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    calls: list[int] = []

    def nothing(batch: ChangeBatch) -> pa.Table:
        calls.append(batch.ending_version)
        return readings("a").slice(0, 0)

    dag = double_of(tmp_path, "empty_result", nothing)
    runs.run(dag)
    runs.run(dag, day_of(2))
    assert calls == [0]
    assert rows(tmp_path / "target") == []


def test_recreated_source_fails_at_once(runs, source: DeltaTable, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    import shutil

    dag = double_of(tmp_path, "source_recreated", Doubled())
    runs.run(dag)
    shutil.rmtree(tmp_path / "source")
    DeltaTable(str(tmp_path / "source")).append(readings("z", 9), partition_by=["day"])
    run = runs.run(dag)
    assert (runs.state(run, "silver"), runs.tries(run, "silver")) == ("failed", 1)
    assert rows(tmp_path / "target") == [("a", 2), ("a", 4)]


def test_missing_source_fails_at_once(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    run = runs.run(double_of(tmp_path, "missing_source", Doubled()))
    assert (runs.state(run, "silver"), runs.tries(run, "silver")) == ("failed", 1)
    assert not (tmp_path / "target").exists()


def test_unknown_mode_is_refused_when_the_dag_is_parsed(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="write='mrege'"):
        double_of(tmp_path, "unknown_mode", Doubled(), write="mrege")
    with pytest.raises(InvalidRequestError, match="merge_keys"):
        double_of(tmp_path, "no_keys", Doubled(), write="merge")


def test_the_target_follows_the_columns_of_its_source(runs, source: DeltaTable, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    def new_rows(batch: ChangeBatch) -> pa.Table:
        found = (batch.scan() if batch.is_bootstrap else batch.changes).to_arrow()
        return found.select([name for name in found.column_names if not name.startswith("_")])

    dag = double_of(tmp_path, "growing", new_rows, write="append", schema_mode="merge")
    runs.run(dag)
    more = readings("b", 3).append_column("note", pa.array(["x"]))
    source.append(more, schema_mode="merge")
    runs.run(dag)
    found = DeltaTable(str(tmp_path / "target")).snapshot().scan().to_arrow().sort_by("value")
    assert found.column("note").to_pylist() == [None, None, "x"]
    with pytest.raises(InvalidRequestError, match="schema_mode"):
        double_of(tmp_path, "replacing", print, schema_mode="overwrite")


@pytest.mark.long
def test_changes_are_merged_by_keys(runs, source: DeltaTable, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    def newest(batch: ChangeBatch) -> pa.Table:
        return batch.scan().to_arrow()

    dag = double_of(tmp_path, "merging", newest, write="merge", merge_keys=["day", "value"])
    runs.run(dag)
    source.append(readings("b", 3))
    run = runs.run(dag)
    assert runs.state(run, "silver") == "success"
    assert rows(tmp_path / "target") == [("a", 1), ("a", 2), ("b", 3)]


@pytest.mark.long
def test_several_sources_move_their_cursors_together(runs, source: DeltaTable, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    other = DeltaTable(tmp_path / "other")
    other.append(readings("x", 9))
    seen: list[list[str]] = []

    def both(batches: dict[str, ChangeBatch]) -> pa.Table:
        seen.append(sorted(batches))
        return pa.concat_tables(batch.changes.to_arrow().select(["day", "value"]) for batch in batches.values())

    with DAG("several", schedule=None) as dag:
        DeltaIncrementalOperator(
            task_id="silver",
            source={"one": tmp_path / "source", "two": tmp_path / "other"},
            target=tmp_path / "target",
            python_callable=both,
            write="append",
            bootstrap="changes",
        )
    runs.run(dag)
    other.append(readings("y", 8))
    report = runs.xcom(runs.run(dag, day_of(2)), "silver")
    assert report["source_ending_versions"] == {"two": 1}
    assert runs.xcom(runs.run(dag, day_of(3)), "silver")["outcome"] == "nothing new"
    assert seen == [["one", "two"], ["two"]]
    assert rows(tmp_path / "target") == [("a", 1), ("a", 2), ("x", 9), ("y", 8)]


@pytest.mark.long
def test_several_sources_are_read_to_their_ends_in_one_run(runs: Any, source: DeltaTable, tmp_path: Path) -> None:
    """`max_versions` bounds a batch, not what a run does: it ended after the first batch, green, without the rest."""
    other = DeltaTable(tmp_path / "other")
    other.append(readings("x", 9), partition_by=["day"])

    def union(batches: dict[str, ChangeBatch], ti: Any) -> pa.Table:
        if ti.try_number == 1 and batches["two"].ending_version == 2:
            raise RuntimeError("killed in the third batch")
        return pa.concat_tables(batch.scan().to_arrow().select(["day", "value"]) for batch in batches.values())

    with DAG("several_batches", schedule=None) as dag:
        DeltaIncrementalOperator(
            task_id="silver",
            source={"one": tmp_path / "source", "two": tmp_path / "other"},
            target=tmp_path / "target",
            python_callable=union,
            write="overwrite_partitions",
            partition_by=["day"],
            bootstrap="changes",
            max_versions=1,
            retries=1,
            retry_delay=timedelta(0),
        )
    for day in ("a", "x", "y"):
        other.append(readings(day, 5))
    source.append(readings("y", 6))
    run = runs.run(dag)
    assert (runs.state(run, "silver"), runs.tries(run, "silver")) == ("success", 2)
    expected = [("a", 1), ("a", 2), ("a", 5), ("x", 5), ("x", 9), ("y", 5), ("y", 6)]
    assert rows(tmp_path / "target") == expected
    assert runs.xcom(run, "silver")["source_ending_versions"] == {"two": 3}
    assert runs.xcom(runs.run(dag, day_of(2)), "silver")["outcome"] == "nothing new"


@pytest.mark.long
@pytest.mark.parametrize("named", [False, True])
def test_tasks_that_share_a_cursor_are_refused(runs: Any, source: DeltaTable, tmp_path: Path, *, named: bool) -> None:
    """Each would get what the other has not read: a green run without half of the rows."""

    def only(value: int) -> Any:
        return lambda batch: batch.scan().to_arrow().filter(pa.compute.field("value") == value)

    with DAG(f"shared_{named}", schedule=None) as dag:
        for value in (1, 2):
            DeltaIncrementalOperator(
                task_id=f"only_{value}",
                source=tmp_path / "source",
                target=tmp_path / "target",
                write="append",
                python_callable=only(value),
                consumer=f"only {value}" if named else None,
            )
    first = runs.run(dag)
    if named:
        assert rows(tmp_path / "target") == [("a", 1), ("a", 2)]
        return
    assert sorted(runs.state(first, f"only_{value}") for value in (1, 2)) == ["failed", "success"]
    (failed,) = (f"only_{value}" for value in (1, 2) if runs.state(first, f"only_{value}") == "failed")
    assert runs.state(runs.clear(dag, first, failed), failed) == "failed"


def test_mapped_tasks_that_share_a_cursor_are_refused(runs: Any, source: DeltaTable, tmp_path: Path) -> None:
    with DAG("shared_mapped", schedule=None) as dag:
        DeltaIncrementalOperator.partial(
            task_id="silver", source=tmp_path / "source", write="append", python_callable=lambda b: b.scan().to_arrow()
        ).expand_kwargs(  # Also a list without duplicates may share a target.
            [{"target": str(tmp_path / name), "max_versions": n} for n, name in enumerate("xyx", 5)]
        )  # fmt: skip
    run = runs.run(dag)
    assert sorted(runs.state(run, "silver", index) for index in range(3)) == ["failed", "success", "success"]
    assert rows(tmp_path / "x") == rows(tmp_path / "y") == [("a", 1), ("a", 2)]


def test_rows_that_would_be_doubled_are_refused(runs, source: DeltaTable, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    dag = double_of(tmp_path, "doubling", lambda batch: batch.scan().to_arrow(), write="append")
    runs.run(dag)
    source.append(readings("a", 3))
    run = runs.run(dag)
    assert runs.state(run, "silver") == "failed"
    assert rows(tmp_path / "target") == [("a", 1), ("a", 2)]


def test_mapped_consumers_of_one_partition_do_not_replace_each_other(  # type: ignore[no-untyped-def]
    runs, source: DeltaTable, tmp_path: Path
) -> None:
    DeltaTable(tmp_path / "other").append(readings("a", 7), partition_by=["day"])
    named = [{"source": str(tmp_path / name), "consumer": name} for name in ("source", "other")]
    with DAG("consumers", schedule=None) as dag:
        DeltaIncrementalOperator.partial(
            task_id="fill", target=tmp_path / "target", partition_by=["day"],
            python_callable=lambda batch: batch.scan().to_arrow(),
        ).expand_kwargs(named)  # fmt: skip
    run = runs.run(dag)
    states = [runs.state(run, "fill", index) for index in (0, 1)]
    assert sorted(states) == ["failed", "success"]
    assert rows(tmp_path / "target") == ([("a", 1), ("a", 2)] if states[0] == "success" else [("a", 7)])


@pytest.mark.long
def test_an_event_tells_of_all_commits_of_a_task(runs, source: DeltaTable, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Also of those of an attempt that died."""
    from tests.airflow.conftest import asset_events

    for day in "bcd":
        source.append(readings(day, 1))
    told = delta_table_asset(f"told_{tmp_path.name}", tmp_path / "target")
    calls = itertools.count(1)

    def copy(batch: ChangeBatch) -> pa.Table:
        if next(calls) == 3:
            raise RuntimeError("in the third batch")
        return batch.inserted().to_arrow()

    bounds: dict[str, Any] = {"write": "append", "max_versions": 1, "bootstrap": "changes", "outlets": [told]}
    run = runs.run(double_of(tmp_path, "all_commits", copy, **bounds))
    assert runs.state(run, "silver") == "success"
    assert (runs.xcom(run, "silver")["starting_version"], runs.xcom(run, "silver")["version"]) == (0, 3)
    (event,) = asset_events("all_commits")
    assert event.extra["starting_version"] == 0
    assert sorted(partition["day"] for partition in event.extra["partitions"]) == ["a", "b", "c", "d"]
