"""Operators that change rows, whole tables and nothing: what they leave, once, whatever happens to the task."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from airflow.sdk import DAG

from delta_orch import DeltaTable
from delta_orch.airflow import (
    DeltaCheckOperator,
    DeltaCloneOperator,
    DeltaDeleteOperator,
    DeltaMergeOperator,
    DeltaPublishOperator,
    DeltaRestoreOperator,
    DeltaVacuumOperator,
    DeltaWriteOperator,
)
from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.incremental import IncrementalReader
from delta_orch.pipeline.maintenance import retention_hours_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.airflow.conftest import Runs


def die_once(context: Any, result: Any) -> None:
    if context["ti"].try_number == 1:
        raise RuntimeError("killed after the commit")


DIES_ONCE: dict[str, Any] = {"retries": 1, "retry_delay": timedelta(0), "post_execute": die_once}


def rows(*pairs: tuple[int, str]) -> pa.Table:
    ids, notes = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return pa.table({"id": pa.array(ids, pa.int64()), "note": pa.array(notes, pa.string())})


def content(uri: Path) -> list[tuple[int, str]]:
    found = DeltaTable(uri).snapshot().scan(columns=["id", "note"]).to_arrow()
    return sorted(zip(found["id"].to_pylist(), found["note"].to_pylist(), strict=True))


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    made = DeltaTable(tmp_path / "t")
    made.append(rows((1, "a"), (2, "b"), (3, "c")))
    return made


def run_one(runs: Runs, name: str, make: Callable[[], object]) -> Any:
    with DAG(name, schedule=None) as dag:
        make()
    return runs.run(dag)


def test_delete_is_done_once(runs: Runs, table: DeltaTable, tmp_path: Path) -> None:
    run = run_one(
        runs,
        "delete",
        lambda: DeltaDeleteOperator(task_id="rows", table_uri=tmp_path / "t", where="id < {{ 3 }}", **DIES_ONCE),
    )
    report = runs.xcom(run, "rows")
    assert content(tmp_path / "t") == [(3, "c")]
    assert (report["version"], report["outcome"], table.version()) == (1, "recovered", 1)


@pytest.mark.parametrize(("arguments", "left"), [({"all_rows": True}, 0), ({"where": "id > 99"}, 3)], ids=str)
def test_delete_of_everything_and_nothing(
    runs: Runs, table: DeltaTable, tmp_path: Path, arguments: dict[str, Any], left: int
) -> None:
    run = run_one(
        runs,
        f"delete_{left}",
        lambda: DeltaDeleteOperator(task_id="rows", table_uri=tmp_path / "t", **arguments),
    )
    assert runs.state(run, "rows") == "success"
    assert len(content(tmp_path / "t")) == left
    # That there was nothing is recorded, too.
    assert runs.xcom(run, "rows")["outcome"] == "written" and table.version() == 1


def test_a_predicate_that_renders_to_nothing_deletes_nothing(runs: Runs, table: DeltaTable, tmp_path: Path) -> None:
    run = run_one(
        runs,
        "delete_blank",
        lambda: DeltaDeleteOperator(
            task_id="rows", table_uri=tmp_path / "t", where="{{ params.where }}", params={"where": ""}
        ),
    )
    assert runs.state(run, "rows") == "failed"
    assert len(content(tmp_path / "t")) == 3


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        {"merge_keys": ["id"]},
        {
            "on": "t.id = s.id",
            "source_alias": "s",
            "target_alias": "t",
            "clauses": [
                {"when_matched_update": {"set": {"note": "s.note"}}},
                {"when_not_matched_insert_all": {}},
            ],
        },
    ],
    ids=["upsert", "clauses"],
)
def test_merge_is_done_once(runs: Runs, table: DeltaTable, tmp_path: Path, arguments: dict[str, Any]) -> None:
    calls: list[int] = []

    def source() -> pa.Table:
        calls.append(1)
        return rows((2, "B"), (4, "D"))

    run = run_one(
        runs,
        f"merge_{len(arguments)}",
        lambda: DeltaMergeOperator(
            task_id="rows", table_uri=tmp_path / "t", python_callable=source, **arguments, **DIES_ONCE
        ),
    )
    assert content(tmp_path / "t") == [(1, "a"), (2, "B"), (3, "c"), (4, "D")]
    report = runs.xcom(run, "rows")
    assert (report["version"], report["outcome"], calls) == (1, "recovered", [1])


@pytest.mark.long
@pytest.mark.parametrize("stage", [False, True])
def test_an_upsert_creates_its_table_once(runs: Runs, tmp_path: Path, stage: bool) -> None:
    calls: list[int] = []

    def source() -> pa.Table:
        calls.append(1)
        return rows((1, "a"), (2, "b"))

    arguments: dict[str, Any] = {
        "table_uri": tmp_path / "t",
        "merge_keys": ["id"],
        "partition_by": ["note"],
        "properties": {"delta.appendOnly": "false"},
        "python_callable": source,
    }

    def make() -> None:
        merge = DeltaMergeOperator(task_id="rows", stage=stage, **arguments, **({} if stage else DIES_ONCE))
        if stage:
            DeltaPublishOperator(task_id="publish", table_uri=tmp_path / "t", staged=merge.output)

    run = run_one(runs, f"merge_creates_{stage}", make)
    made = DeltaTable(tmp_path / "t").snapshot()
    assert (str(run.state), calls) == ("success", [1])
    assert content(tmp_path / "t") == [(1, "a"), (2, "b")]
    assert (made.partition_columns, made.metadata.configuration["delta.appendOnly"]) == (("note",), "false")
    # The next one finds it.
    later = {**arguments, "python_callable": lambda: rows((2, "B"), (3, "c"))}
    run_one(runs, f"merge_again_{stage}", lambda: DeltaMergeOperator(task_id="rows", **later))
    assert content(tmp_path / "t") == [(1, "a"), (2, "B"), (3, "c")]


@pytest.mark.parametrize("stage", [False, True])
def test_an_upsert_makes_no_rows_of_one_key_twice(runs: Runs, tmp_path: Path, stage: bool) -> None:
    run = run_one(
        runs,
        f"merge_twice_{stage}",
        lambda: DeltaMergeOperator(
            task_id="rows",
            table_uri=tmp_path / "t",
            merge_keys=["id"],
            stage=stage,
            python_callable=lambda: rows((1, "a"), (1, "b")),
        ),
    )
    assert runs.state(run, "rows") == "failed"
    assert not DeltaTable(tmp_path / "t").exists() or content(tmp_path / "t") == []


@pytest.mark.long
def test_mapped_upserts_share_a_file_and_create_their_table(runs: Runs, tmp_path: Path) -> None:
    def source(number: int) -> pa.Table:
        return rows((number, f"n{number}"))

    def make() -> None:
        DeltaMergeOperator.partial(
            task_id="rows", table_uri=tmp_path / "t", merge_keys=["id"], python_callable=source
        ).expand(op_kwargs=[{"number": number} for number in (1, 2, 3)])

    run = run_one(runs, "merge_mapped", make)
    assert str(run.state) == "success"
    assert content(tmp_path / "t") == [(1, "n1"), (2, "n2"), (3, "n3")]


@pytest.mark.long
def test_restore_and_clone_are_done_once(runs: Runs, table: DeltaTable, tmp_path: Path) -> None:
    table.append(rows((9, "wrong")))
    with DAG("restore_clone", schedule=None) as dag:
        restore = DeltaRestoreOperator(task_id="restore", table_uri=tmp_path / "t", version="{{ 0 }}", **DIES_ONCE)
        clone = DeltaCloneOperator(
            task_id="clone", source=tmp_path / "t", target=tmp_path / "c", shallow=False, **DIES_ONCE
        )
        restore >> clone
    run = runs.run(dag)
    assert content(tmp_path / "t") == content(tmp_path / "c") == [(1, "a"), (2, "b"), (3, "c")]
    assert (table.version(), DeltaTable(tmp_path / "c").version()) == (2, 0)
    assert [runs.xcom(run, name)["version"] for name in ("restore", "clone")] == [2, 0]


def test_check_names_everything_that_does_not_hold(runs: Runs, table: DeltaTable, tmp_path: Path) -> None:
    passes: dict[str, Any] = {
        "columns": {"id": "bigint", "NOTE": None},
        "exact_columns": True,
        "rows": {"positive": "id > 0", "noted": "note IS NOT NULL"},
        "min_rows": 3,
        "max_age": timedelta(hours=1),
        "max_health": {"num_files": 10},
    }
    fails: dict[str, Any] = {
        "columns": {"id": "string", "gone": None},
        "rows": {"small": "id < 3", "unknown": "nullif(id, 1) > 0"},
        "min_rows": 4,
        "max_health": {"num_files": 0},
    }
    with DAG("checks", schedule=None) as dag:
        for name, checks in {"passes": passes, "fails": fails, "older": {"min_rows": 3, "version": 0}}.items():
            DeltaCheckOperator(task_id=name, table_uri=tmp_path / "t", retries=2, **checks)
    table.delete("id = 1")
    table.append(rows((1, "a")))
    run = runs.run(dag)
    assert [runs.state(run, name) for name in ("passes", "fails", "older")] == ["success", "failed", "success"]
    assert runs.tries(run, "fails") == 1
    operator: Any = DeltaCheckOperator(task_id="again", table_uri=tmp_path / "t", **fails)
    with pytest.raises(InvalidRequestError) as caught:
        operator.execute_on_table({}, None, table)
    problems = caught.value.context["problems"]
    assert problems[0] == "column id is long, not string"
    assert problems[1] == "column gone is missing"
    assert [problem.split()[0] for problem in problems[2:]] == [
        "num_files",
        "there",
        "small:",
        "unknown:",
    ]


def test_vacuum_keeps_what_a_consumer_has_not_read(runs: Runs, tmp_path: Path) -> None:
    import os
    import time

    source, target = DeltaTable(tmp_path / "s"), DeltaTable(tmp_path / "t")
    source.append(rows((1, "a")))
    reader = IncrementalReader(source, target)
    batch = reader.next_batch()
    assert batch is not None
    target.append(batch.scan().to_arrow(), txn=batch.txn)
    source.overwrite(rows((2, "b")))
    # All of that was long ago.
    for version in (0, 1):
        log_file = tmp_path / f"s/_delta_log/{version:020}.json"
        os.utime(log_file, (time.time() - 3600 * 24 * (30 - version),) * 2)
    assert retention_hours_for(DeltaTable(tmp_path / "s"), [target], 0) == pytest.approx(30 * 24, abs=1)
    with pytest.raises(InvalidRequestError, match="has not read"):
        retention_hours_for(source, [DeltaTable(tmp_path / "nobody")], 0)
    run = run_one(
        runs,
        "vacuum_consumers",
        lambda: DeltaVacuumOperator(
            task_id="rows",
            table_uri=tmp_path / "s",
            retention_hours=0,
            enforce_retention=False,
            respect_consumers=[tmp_path / "t"],
        ),
    )
    assert runs.xcom(run, "rows")["num_files"] == 0
    late = IncrementalReader(DeltaTable(tmp_path / "s"), target).next_batch()
    assert late is not None
    assert late.changes.to_arrow().num_rows == 2


def test_a_query_reads_the_version_a_task_has_written(runs: Runs, table: DeltaTable, tmp_path: Path) -> None:
    with DAG("references", schedule=None) as dag:
        load = DeltaWriteOperator(
            task_id="load",
            table_uri=tmp_path / "t",
            python_callable=lambda: rows((4, "d")),
            post_execute=lambda context, result: table.append(rows((5, "late"))),
        )
        DeltaWriteOperator(
            task_id="copy", table_uri=tmp_path / "c", sql="SELECT * FROM t", tables={"t": load.output}, engine="local"
        )
    runs.run(dag)
    assert [key for key, _ in content(tmp_path / "c")] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("checks", "problem"),
    [
        ({"rows": {"positive": "id > 0 -- all of them"}}, None),
        ({"rows": {"small": "id < 3 -- not all"}, "where": "id > 0 -- all"}, "small"),
        ({"rows": {"tricky": "id > 3) OR (true"}}, "is not a predicate|cannot be read|id > 3"),
        ({"python_callable": lambda snapshot: pc.all(pc.greater(snapshot.scan().to_arrow()["id"], 0))}, None),
        ({"python_callable": lambda snapshot: snapshot.scan().to_arrow()["id"].to_numpy().max() == 3}, None),
        ({"python_callable": lambda snapshot: 1}, "returned 1"),
        ({"reference": {"table_uri": "OTHER", "version": 0}, "min_rows": 1}, "by a reference to"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_checks_hold_for_what_they_say(table: DeltaTable, tmp_path: Path, checks: Any, problem: str | None) -> None:
    (other := DeltaTable(tmp_path / "o")).append(rows((1, "a")))
    rule = checks.get("rows", {}).get("tricky")
    given = {**checks, "rows": {"tricky": "{{ rule }}"}} if rule else {**checks}
    if "reference" in given:
        given["reference"] = {"table_uri": other.uri, "version": 0}
    operator: Any = DeltaCheckOperator(task_id="check", table_uri=tmp_path / "t", **given)
    if rule:
        operator.rows = {"tricky": rule}  # as rendered
    if problem is None:
        assert operator.execute_on_table({}, None, table)["passed"]
    else:
        with pytest.raises(InvalidRequestError, match=problem):
            operator.execute_on_table({}, None, table)


@pytest.mark.parametrize(
    ("kind", "arguments", "problem"),
    [
        (DeltaDeleteOperator, {}, "all_rows"),
        (DeltaDeleteOperator, {"where": " "}, "expression"),
        (DeltaDeleteOperator, {"where": "id = 1", "all_rows": True}, "all_rows"),
        (DeltaDeleteOperator, {"where": "id = 1", "engine": "flink"}, "engine"),
        (DeltaMergeOperator, {"python_callable": lambda: {}}, "merge_keys or on"),
        (DeltaMergeOperator, {"python_callable": lambda: {}, "merge_keys": "id"}, "merge_keys must be a list"),
        (DeltaMergeOperator, {"python_callable": lambda: {}, "on": "a = b"}, "on and clauses together"),
        (
            DeltaMergeOperator,
            {"python_callable": lambda: {}, "on": "a = b", "clauses": [{"when_lost": {}}]},
            "when_lost",
        ),
        (
            DeltaMergeOperator,
            {
                "python_callable": lambda: {},
                "on": "a = b",
                "clauses": [{"when_matched_delete": {}}],
                "partition_by": ["id"],
            },
            "merge by clauses does not use",
        ),
        (DeltaRestoreOperator, {}, "neither a version"),
        (DeltaRestoreOperator, {"version": -1}, "not a whole number"),
        (DeltaRestoreOperator, {"version": 1, "timestamp": "2024-01-01"}, "one of them"),
        (DeltaCheckOperator, {}, "checks nothing"),
        (DeltaCheckOperator, {"min_rows": "many"}, "not a whole number"),
        (DeltaCheckOperator, {"columns": {"a": "strnig"}}, "'strnig' is not a type"),
    ],
)
def test_wrong_arguments_are_refused_when_the_dag_is_parsed(kind: Any, arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        kind(task_id="t", table_uri="/t", **arguments)
