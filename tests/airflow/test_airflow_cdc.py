"""Versions of keys, by the operators: one version for each change, whatever happens to the tasks and their runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from airflow.sdk import DAG, task

from delta_orch import DeltaTable
from delta_orch.airflow import DeltaIncrementalOperator, DeltaMergeOperator, DeltaPublishOperator
from delta_orch.errors import InvalidRequestError

if TYPE_CHECKING:
    from tests.airflow.conftest import Runs

DAY = datetime(2024, 1, 5, tzinfo=UTC)
VERSIONS: dict[str, Any] = {
    "sequence_by": "since", "delete_when": "gone", "except_columns": ["gone"], "scd": 2,
}  # fmt: skip
BOTH_DAYS = [("a", "Bonn", 5, 6), ("a", "Köln", 6, None), ("b", "Ulm", 5, 6), ("c", "Jena", 6, None)]


def rows(*given: tuple[str, str, int, bool]) -> pa.Table:
    names, places, since, gone = zip(*given, strict=True)
    return pa.table({"name": names, "place": places, "since": pa.array(since, pa.int64()), "gone": pa.array(gone)})


DAYS = {
    5: rows(("a", "Bonn", 5, False), ("b", "Ulm", 5, False)),
    6: rows(("a", "Köln", 6, False), ("b", "Ulm", 6, True), ("c", "Jena", 6, False)),
}


def content(uri: Path) -> list[tuple[object, ...]]:
    found = DeltaTable(uri).snapshot().scan(["name", "place", "valid_from", "valid_to"], "NOT is_deleted").to_arrow()
    return sorted(zip(*(found[name].to_pylist() for name in found.column_names), strict=True))


def die_once(context: Any, result: Any) -> None:
    """After the commit, before Airflow hears of it."""
    if context["ti"].try_number == 1:
        raise RuntimeError("killed after the commit")


DIES_ONCE: dict[str, Any] = {"retries": 1, "retry_delay": timedelta(0), "post_execute": die_once}


@pytest.mark.parametrize("stage", [False, True])
def test_rows_of_a_function(runs: Runs, tmp_path: Path, stage: bool) -> None:
    uri = tmp_path / "t"
    with DAG(f"cdc_rows_{stage}", schedule="@daily", start_date=DAY, catchup=False) as dag:
        last: Any = DeltaMergeOperator(
            task_id="write", table_uri=uri, merge_keys=["name"], stage=stage,
            python_callable=lambda logical_date: DAYS[logical_date.day], **VERSIONS, **DIES_ONCE,
        )  # fmt: skip
        if stage:
            last = DeltaPublishOperator(task_id="publish", table_uri=uri, staged=last.output)
    first, second = (runs.run(dag, DAY + timedelta(days=day)) for day in (0, 1))
    assert content(uri) == BOTH_DAYS
    runs.clear(dag, second, *dag.task_ids)
    assert (runs.state(second, last.task_id), content(uri)) == ("success", BOTH_DAYS)
    # A day that comes late puts its versions where they belong.
    runs.clear(dag, first, *dag.task_ids)
    assert (runs.state(first, last.task_id), content(uri)) == ("success", BOTH_DAYS)


def test_the_newest_rows_of_a_decorated_function(runs: Runs, tmp_path: Path) -> None:
    uri = tmp_path / "t"
    with DAG("cdc_decorated", schedule="@daily", start_date=DAY, catchup=False) as dag:

        @task.delta(
            table_uri=uri, write="cdc", merge_keys=["name"], sequence_by=["since"], delete_when="gone",
            except_columns=["gone"], tombstone_retention="interval 7 days",
        )  # fmt: skip
        def write(logical_date: datetime) -> pa.Table:
            return DAYS[logical_date.day]

        write()
    # The second day first: what the first one brings is late.
    for day in (1, 0):
        assert runs.state(runs.run(dag, DAY + timedelta(days=day)), "write") == "success"
    found = DeltaTable(uri).snapshot().scan(["name", "place"], "_deleted_at IS NULL").to_arrow()
    assert sorted(zip(*found.to_pydict().values(), strict=True)) == [("a", "Köln"), ("c", "Jena")]


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_new_in_a_source(runs: Runs, tmp_path: Path, whole: bool) -> None:
    source, uri = DeltaTable(tmp_path / "s"), tmp_path / "t"
    how: dict[str, Any] = {"sequence_by": "since", "full_snapshot": True, "scd": 2} if whole else VERSIONS

    def read(batch: Any) -> pa.Table:
        return batch.scan().to_arrow().drop_columns(["gone"]) if whole else batch.inserted()

    with DAG(f"cdc_changes_{whole}", schedule="@daily", start_date=DAY, catchup=False) as dag:
        DeltaIncrementalOperator(
            task_id="write", source=source.uri, target=uri, write="cdc", merge_keys=["name"], python_callable=read,
            **how, **DIES_ONCE,
        )  # fmt: skip
    for day, given in DAYS.items():
        source.overwrite(given.filter(pc.invert(given["gone"]))) if whole else source.append(given)
        run = runs.run(dag, DAY + timedelta(days=day))
        runs.clear(dag, run, "write")
        assert runs.state(run, "write") == "success"
    assert content(uri) == BOTH_DAYS


@pytest.mark.parametrize(
    ("kind", "arguments", "problem"),
    [
        (DeltaMergeOperator, {"merge_keys": ["a"], "delete_when": "gone"}, "is for write='cdc'"),
        (DeltaMergeOperator, {"merge_keys": ["a"], "delete_marker": "gone"}, "delete_when='gone'"),
        (DeltaIncrementalOperator, {"write": "scd2", "merge_keys": ["a"], "sequence_by": "b"}, "write='cdc'"),
        (DeltaIncrementalOperator, {"write": "cdc", "merge_keys": ["a"], "sequence_by": "b", "scd": 3}, "scd is 3"),
        (DeltaMergeOperator, {"merge_keys": ["a"], "sequence_by": "b", "full_snapshot": True, "stage": True}, "full"),
        (
            DeltaMergeOperator,
            {"on": "a = b", "clauses": [{"when_matched_delete": {}}], "sequence_by": "b"},
            "is for write='cdc'",
        ),
        (DeltaIncrementalOperator, {"write": "cdc", "merge_keys": ["a"]}, "needs sequence_by"),
        (DeltaIncrementalOperator, {"write": "cdc", "sequence_by": "a"}, "merge_keys"),
        (DeltaIncrementalOperator, {"write": "merge", "merge_keys": ["a"], "sequence_by": "b"}, "is for write='cdc'"),
    ],
)
def test_arguments_that_do_not_go_together(kind: Any, arguments: dict[str, Any], problem: str) -> None:
    place = {"table_uri": "/t"} if kind is DeltaMergeOperator else {"source": "/s", "target": "/t"}
    with pytest.raises(InvalidRequestError, match=problem):
        kind(task_id="t", python_callable=lambda batch: batch, **place, **arguments)
