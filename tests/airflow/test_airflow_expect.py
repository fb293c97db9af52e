"""Rules for rows in real DAG runs: rows in quarantine, the XCom, the log, and that a clear replaces in both tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG

from delta_orch import DeltaTable, Expect
from delta_orch.airflow import DeltaCheckOperator, DeltaIncrementalOperator, DeltaMergeOperator, DeltaWriteOperator
from delta_orch.airflow.versions import RELEASE
from delta_orch.errors import InvalidRequestError

RULES = {"amount is positive": Expect("amount > 0"), "id is small": {"rule": "id < 2", "action": "warn"}}


def amounts(*amounts: int | None) -> pa.Table:
    return pa.table({"id": pa.array(range(len(amounts)), pa.int64()), "amount": pa.array(amounts, pa.int64())})


def bad_ids(table: DeltaTable) -> list[int]:
    found = table.snapshot().scan(["row"]).to_arrow().column("row").to_pylist()
    return sorted(json.loads(row)["id"] for row in found)


def test_bad_rows_go_out(runs: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    values = [amounts(1, None, -3)]
    with DAG("bad_rows_go_out", schedule=None) as dag:
        DeltaWriteOperator(
            task_id="load", python_callable=lambda: values[-1], table_uri=str(tmp_path / "t"), expect=RULES
        )
    table = DeltaTable(tmp_path / "t")
    run = runs.run(dag)
    said = capfd.readouterr().out
    assert runs.xcom(run, "load")["broken_rules"] == {"amount is positive": 2, "id is small": 1}
    assert runs.xcom(run, "load")["operation_metrics"]["numQuarantinedRows"] in (2, "2")
    assert table.snapshot().scan().to_arrow().num_rows == 1
    assert bad_ids(table.quarantine()) == [1, 2]
    (row, _) = table.quarantine().snapshot().scan().to_arrow().to_pylist()
    assert row["run"] == run.run_id
    assert "2 of 3 rows do not satisfy amount > 0" in said
    assert "'amount': -3" in said
    values.append(amounts(1, 2, -3))
    runs.clear(dag, run, "load")
    assert runs.xcom(run, "load")["outcome"] == "replaced"
    assert table.snapshot().scan().to_arrow().num_rows == 2
    assert bad_ids(table.quarantine()) == [2]


def test_too_many_fail_the_task(runs: Any, tmp_path: Path) -> None:
    with DAG("too_many_bad_rows", schedule=None) as dag:
        DeltaWriteOperator(
            task_id="load",
            python_callable=lambda: amounts(1, None, -3),
            table_uri=str(tmp_path / "t"),
            expect=RULES,
            max_quarantined=0.5,
        )
    run = runs.run(dag)
    assert runs.state(run, "load") == "failed"
    assert not DeltaTable(tmp_path / "t").exists()
    assert not DeltaTable(tmp_path / "t").quarantine().exists()


def test_batches_of_changes(runs: Any, tmp_path: Path) -> None:
    source, target, bad = (DeltaTable(tmp_path / name) for name in ("s", "t", "bad"))
    source.append(amounts(1, None, -3))
    with DAG("bad_changes", schedule=None) as dag:
        DeltaIncrementalOperator(
            task_id="load",
            python_callable=lambda batch: batch.inserted().to_arrow(),
            source=source.uri,
            target=target.uri,
            write="append",
            expect=RULES,
            quarantine=bad.uri,
        )
    run = runs.run(dag)
    assert runs.xcom(run, "load")["broken_rules"] == {"amount is positive": 2, "id is small": 1}
    assert target.snapshot().scan().to_arrow().num_rows == 1
    assert bad_ids(bad) == [1, 2]
    runs.clear(dag, run, "load")
    assert target.snapshot().scan().to_arrow().num_rows == 1
    assert bad_ids(bad) == [1, 2]


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        (DeltaWriteOperator, {"expect": {"a": "amount > 0"}}),
        (DeltaWriteOperator, {"expect": {"a": Expect("amount > 0", "warn")}, "quarantine": "bad"}),
        (DeltaWriteOperator, {"max_quarantined": 3}),
        (DeltaMergeOperator, {"expect": RULES, "on": "a.id = b.id", "clauses": [{"when_matched_delete": {}}]}),
    ],
)
def test_wrong_rules_are_refused_when_the_dag_is_parsed(operator: Any, arguments: Any) -> None:
    with pytest.raises(InvalidRequestError):
        operator(task_id="load", python_callable=amounts, table_uri="/t", **arguments)


@pytest.mark.xfail(RELEASE < (3, 1), strict=True, reason="`dag.test()` of Airflow 3.0 prints errors in boxes")
def test_a_failed_check_says_how_many_rows_and_shows_some(
    runs: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(amounts(1, None, -3))
    with DAG("failed_check", schedule=None) as dag:
        DeltaCheckOperator(task_id="check", table_uri=table.uri, rows={"positive": "amount > 0"}, min_rows=5)
    run = runs.run(dag)
    said = capfd.readouterr().out
    assert runs.state(run, "check") == "failed"
    assert "there are 3 rows, and not 5" in said
    assert "2 rows for which amount > 0 is not true, such as {'id': 1, 'amount': None}, {'id': 2, 'amount': -3}" in said
