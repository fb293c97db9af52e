"""`DeltaConnectionComponent`: Dagster's own components of templated SQL on Delta tables."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from dagster.components.testing import create_defs_folder_sandbox

from delta_orch import DeltaTable
from delta_orch.dagster import DeltaConnectionComponent
from delta_orch.dagster.components import run_statement
from delta_orch.errors import InvalidRequestError

# Components of SQL are a preview, and pydantic deprecates how Dagster reads YAML.
pytestmark = pytest.mark.filterwarnings("ignore")

ORDERS = pa.table({"carrier": ["UA", "UA", "AA"], "amount": pa.array([1, 2, 4], pa.int64())})
TOTALS = "INSERT OVERWRITE totals SELECT carrier, sum(amount)::BIGINT AS amount FROM orders GROUP BY ALL"


@pytest.fixture
def orders(tmp_path: Path) -> DeltaTable:
    table = DeltaTable(tmp_path / "orders")
    table.append(ORDERS)
    return table


@pytest.fixture
def totals(tmp_path: Path) -> DeltaTable:
    table = DeltaTable(tmp_path / "totals")
    table.create(ORDERS.schema)
    return table


def asset_of(
    folder: Path, sql: str, *keys: str, connection: Any = DeltaConnectionComponent, **spec: Any
) -> dg.AssetsDefinition:
    """The asset that a component of a statement defines."""
    tables = {name: str(folder / name) for name in ("orders", "totals")}
    component = dg.TemplatedSqlComponent(
        connection=connection(tables=tables),
        sql_template=sql,
        assets=[dg.AssetSpec(key, **spec) for key in keys or ("totals",)],
    )
    return component.build_underlying_assets_def(None)  # type: ignore[arg-type]


def rows(table: DeltaTable) -> list[tuple[Any, ...]]:
    read = table.snapshot().scan().to_arrow()
    return sorted(zip(*read.to_pydict().values(), strict=True))


def materialize(asset: dg.AssetsDefinition, instance: dg.DagsterInstance | None = None, **arguments: Any) -> Any:
    return dg.materialize([asset], instance=instance or dg.DagsterInstance.ephemeral(), **arguments)


def outcome(done: dg.ExecuteInProcessResult) -> Any:
    (event,) = done.get_asset_materialization_events()
    return event.materialization.metadata["delta/outcome"].value


def problem(asset: dg.AssetsDefinition, **arguments: Any) -> str:
    """What the failed step says."""
    done = materialize(asset, raise_on_error=False, **arguments)
    assert not done.success
    (failure,) = [event for event in done.all_events if event.is_step_failure]
    error = failure.step_failure_data.error
    return str(error.cause.message if error.cause else error.message)


def test_yaml_of_a_connection_and_a_statement(orders: DeltaTable, totals: DeltaTable) -> None:
    with create_defs_folder_sandbox() as sandbox:
        for component, name, attributes in (
            ("delta_orch.dagster.DeltaConnectionComponent", "lake", {"tables": {"totals": totals.uri}}),
            (
                "dagster.TemplatedSqlComponent",
                "totals",
                {
                    "connection": "{{ context.load_component('lake') }}",
                    "sql_template": TOTALS.replace("orders", "delta.`{{ source }}`"),
                    "sql_template_vars": {"source": orders.uri},
                    "assets": [{"key": "lake/totals"}],
                },
            ),
        ):
            folder = sandbox.defs_folder_path / name
            folder.mkdir()
            (folder / "defs.yaml").write_text(json.dumps({"type": component, "attributes": attributes}))
        with sandbox.build_all_defs() as defs:
            job = defs.resolve_implicit_global_asset_job_def()
            done = job.execute_in_process()
    assert done.success
    assert rows(totals) == [("AA", 4), ("UA", 3)]


def test_running_again_replaces(tmp_path: Path, orders: DeltaTable, totals: DeltaTable) -> None:
    instance, asset = dg.DagsterInstance.ephemeral(), asset_of(tmp_path, TOTALS)
    outcomes = [outcome(materialize(asset, instance))]
    orders.append(pa.table({"carrier": ["AA"], "amount": [5]}))
    outcomes.append(outcome(materialize(asset, instance)))
    assert rows(totals) == [("AA", 9), ("UA", 3)]
    assert outcomes == ["written", "replaced"]
    assert totals.units()["unit"].to_pylist() == ["dagster:totals:"]


def test_a_late_attempt_changes_nothing(tmp_path: Path, orders: DeltaTable, totals: DeltaTable) -> None:
    """While the older run waits, a newer one commits."""
    instance, asset = dg.DagsterInstance.ephemeral(), asset_of(tmp_path, TOTALS)
    reports: list[Any] = []

    class Waiting(DeltaConnectionComponent):
        def connect_and_execute(self, sql: str) -> None:
            newer = threading.Thread(target=lambda: reports.append(materialize(asset, instance)))
            newer.start()
            newer.join()
            super().connect_and_execute(sql.replace("sum(amount)", "-sum(amount)"))

    reports.append(materialize(asset_of(tmp_path, TOTALS, connection=Waiting), instance))
    assert list(map(outcome, reports)) == ["written", "fenced"]
    assert rows(totals) == [("AA", 4), ("UA", 3)]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("INSERT OVERWRITE totals REPLACE WHERE carrier = 'UA' SELECT 'UA', 7", [("AA", 4), ("UA", 7)]),
        ("CREATE OR REPLACE TABLE totals USING delta AS SELECT 'B6' AS carrier, 1 AS n", [("B6", 1)]),
        ("DELETE FROM totals WHERE carrier = 'UA'", [("AA", 4)]),
        ("TRUNCATE TABLE totals", []),
        ("CREATE OR REPLACE TABLE totals DEEP CLONE orders", [("AA", 4), ("UA", 1), ("UA", 2)]),
        ("INSERT OVERWRITE totals VALUES ('B6', 1)", [("B6", 1)]),
        ("INSERT OVERWRITE totals SELECT carrier, 2 * amount FROM totals VERSION AS OF 1", [("AA", 8), ("UA", 6)]),
    ],
)
def test_statements_that_run_twice(
    tmp_path: Path, orders: DeltaTable, totals: DeltaTable, sql: str, expected: list[Any]
) -> None:
    assert materialize(asset_of(tmp_path, TOTALS)).success
    for _ in range(2):
        assert materialize(asset_of(tmp_path, sql)).success
        assert rows(totals) == expected


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("INSERT INTO totals SELECT * FROM orders", "begins with INSERT INTO"),
        ("UPDATE totals SET amount = amount + 1", "begins with UPDATE totals"),
        ("MERGE INTO totals USING orders o ON false WHEN NOT MATCHED THEN INSERT *", "begins with MERGE INTO"),
        ("INSERT OVERWRITE totals SELECT carrier, amount + 1 FROM totals", "reads file:"),
        ("CREATE OR REPLACE TABLE totals USING delta AS SELECT * FROM totals", "reads file:"),
        ("CREATE OR REPLACE TABLE totals (n INT) USING delta LOCATION '/tmp/elsewhere'", "LOCATION is not supported"),
        ("SELECT * FROM totals", "begins with SELECT"),
        ("OPTIMIZE totals", "begins with OPTIMIZE"),
        ("INSERT OVERWRITE totals SELECT * FROM orders; DELETE FROM totals", "more than one statement"),
        ("", "empty"),
    ],
)
def test_other_statements_are_refused(
    tmp_path: Path, orders: DeltaTable, totals: DeltaTable, sql: str, message: str
) -> None:
    totals.append(pa.table({"carrier": ["UA"], "amount": [1]}))
    assert message in problem(asset_of(tmp_path, sql))
    assert (totals.version(), rows(totals)) == (1, [("UA", 1)])


def test_partitions_and_several_assets_are_refused(tmp_path: Path, orders: DeltaTable, totals: DeltaTable) -> None:
    days = dg.StaticPartitionsDefinition(["a", "b"])
    partitioned = asset_of(tmp_path, TOTALS, partitions_def=days)
    assert "for partitions" in problem(partitioned, partition_key="a")
    assert "several assets" in problem(asset_of(tmp_path, TOTALS, "totals", "other"))
    with pytest.raises(InvalidRequestError, match="step of an asset"):
        run_statement(TOTALS, {"totals": totals, "orders": orders}, {})
    assert totals.version() == 0


def test_assets_that_replace_parts_of_one_table(tmp_path: Path, orders: DeltaTable, totals: DeltaTable) -> None:
    """Each has its own rows. One that would replace rows of the other is refused."""
    part = "INSERT OVERWRITE totals REPLACE WHERE {} SELECT '{}', {}"
    for amount in (1, 2):
        for carrier in ("AA", "UA"):
            sql = part.format(f"carrier = '{carrier}'", carrier, amount)
            assert materialize(asset_of(tmp_path, sql, carrier)).success
        assert rows(totals) == [("AA", amount), ("UA", amount)]
    version = totals.version()
    assert "UA" in problem(asset_of(tmp_path, part.format("amount > 0", "AA", 9), "AA"))
    assert (totals.version(), rows(totals)) == (version, [("AA", 2), ("UA", 2)])


def test_a_table_of_another_asset_is_refused(tmp_path: Path, orders: DeltaTable, totals: DeltaTable) -> None:
    from delta_orch.dagster import DeltaLakeIOManager

    @dg.asset(name="totals", key_prefix=["other"])
    def other() -> pa.Table:
        return ORDERS

    owned = {"io_manager": DeltaLakeIOManager(root_uri=str(tmp_path / "io"))}
    dg.materialize([other], resources=owned, instance=dg.DagsterInstance.ephemeral())
    (place,) = (tmp_path / "io").rglob("_delta_log")
    table = DeltaTable(place.parent)
    said = problem(asset_of(tmp_path, f"INSERT OVERWRITE delta.`{place.parent}` SELECT 'x', 1"))
    assert "other" in said and table.version() == 0
