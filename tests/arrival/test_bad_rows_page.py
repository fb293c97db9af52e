"""docs/bad-rows.md: the recipes run, in the order of the page, and do what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable, Expect
from delta_orch.pipeline.step import Step
from delta_orch.pipeline.unit import Attempt, Unit
from delta_orch.verbs.expect import ACTIONS, QUARANTINE_SCHEMA, Expectations

PAGE = (Path(__file__).parents[2] / "docs" / "bad-rows.md").read_text()
RECIPES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ORDERS = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "amount": [1.0, -5.0, None, 2.0],
        "note": ["a", "b", "c", "d" * 100],
        "customer": ["Ann", "Bob", "Cy", "test"],
    }
)


def test_the_recipes_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("airflow", reason="Airflow is not installed")
    orders = DeltaTable(tmp_path / "orders")
    names: dict[str, Any] = {"orders_uri": orders.uri, "read_orders": lambda: ORDERS}
    write, requeue = RECIPES
    exec(compile(write, "write", "exec"), names)
    # The operator in a DAG run is in tests/airflow/test_airflow_expect.py.
    expect: dict[str, Expect] = names["load"].expect
    step = Step(
        "load",
        orders,
        attempt=Attempt((Unit("airflow:dag.load", "run:manual__1"),), 1, "manual__1"),
        expect=Expectations.of(expect, 0.5),
    )
    step.run(names["read_orders"])
    assert orders.snapshot().scan(["id"]).to_arrow().column("id").to_pylist() == [1]
    exec(compile(requeue, "requeue", "exec"), names)
    assert capsys.readouterr().out.endswith("1 1\n")
    assert sorted(orders.snapshot().scan(["id"]).to_arrow().column("id").to_pylist()) == [1, 2]


def test_the_page_names_every_action_and_column() -> None:
    for name in (*ACTIONS, *QUARANTINE_SCHEMA.names):
        assert f"`{name}`" in PAGE
    assert len(PAGE.split()) <= 900
