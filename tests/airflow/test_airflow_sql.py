"""Airflow's own SQL operators and `@task.sql` on Delta tables, by a connection of type `delta`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from airflow.providers.common.sql.hooks.sql import DbApiHook
from airflow.providers.common.sql.operators.sql import (
    SQLColumnCheckOperator,
    SQLExecuteQueryOperator,
    SQLTableCheckOperator,
    SQLValueCheckOperator,
)
from airflow.sdk import DAG, task

from delta_orch import DeltaTable
from delta_orch.airflow.sql_hook import DeltaSqlHook
from delta_orch.airflow.versions import BaseHook
from delta_orch.errors import DeltaError, InvalidRequestError

if TYPE_CHECKING:
    from tests.airflow.conftest import Runs

FLIGHTS = pa.table({"id": [1, 2, 3], "delay": [0, None, 7], "carrier": ["UA", "UA", "AA"]})


@pytest.fixture(autouse=True)
def lake(connection: Callable[[str, str], None], tmp_path: Path) -> Path:
    extra = {"table_root": str(tmp_path), "region": "eu-1", "secret_storage_options": '{"secret": "s3cr3t"}'}
    connection("lake", json.dumps({"conn_type": "delta", "extra": extra}))
    DeltaTable(tmp_path / "flights").append(FLIGHTS)
    return tmp_path


def test_connection_gives_a_hook_of_sql() -> None:
    hook = BaseHook.get_connection("lake").get_hook(hook_params={"region": "eu-1"})
    assert isinstance(hook, DeltaSqlHook) and isinstance(hook, DbApiHook)
    assert hook.test_connection()[0]
    assert hook.table("flights").version() == 0


def test_check_operators(runs: Runs, lake: Path) -> None:
    """Each check that holds is green, and the same check one step further is red."""
    columns: dict[str, Any] = {"id": {"min": {"equal_to": 1}, "unique_check": {"equal_to": 0}}}
    with DAG("sql_checks", schedule=None) as dag:
        for name, nulls in (("good", 1), ("bad", 0)):
            SQLColumnCheckOperator(
                task_id=f"{name}_columns",
                conn_id="lake",
                table="flights",
                column_mapping=columns | {"delay": {"null_check": {"equal_to": nulls}}},
            )
            SQLTableCheckOperator(
                task_id=f"{name}_table",
                conn_id="lake",
                table=f"delta.`{lake}/flights` VERSION AS OF 0",
                checks={"rows": {"check_statement": f"COUNT(*) = {2 + nulls}"}},
            )
            SQLValueCheckOperator(
                task_id=f"{name}_value",
                conn_id="lake",
                sql="SELECT count(*) FROM flights WHERE delay IS NULL",
                pass_value=nulls,
            )
    done = runs.run(dag)
    states = {task_id: runs.state(done, task_id) for task_id in dag.task_ids}
    assert states == {t: "success" if t.startswith("good") else "failed" for t in dag.task_ids}


def test_a_decorated_query(runs: Runs) -> None:
    with DAG("sql_task", schedule=None) as dag:

        @task.sql(conn_id="lake")
        def by_carrier() -> str:
            return "SELECT carrier, count(*) AS n FROM flights GROUP BY ALL ORDER BY carrier;"

        @task
        def ensure(rows: list[Any], several: list[Any]) -> None:
            assert (list(map(tuple, rows)), list(map(tuple, several))) == ([("AA", 1), ("UA", 2)], [(3,)])

        several = SQLExecuteQueryOperator(
            task_id="several", conn_id="lake", sql="SELECT 1; SELECT max(id) FROM flights;", split_statements=True
        )
        ensure(by_carrier(), several.output)
        SQLExecuteQueryOperator(task_id="change", conn_id="lake", sql="INSERT INTO flights SELECT * FROM flights")
        SQLExecuteQueryOperator(task_id="database", conn_id="lake", database="prod", sql="SELECT 1")
    done = runs.run(dag)
    assert (runs.state(done, "ensure"), runs.state(done, "by_carrier")) == ("success", "success")
    assert (runs.state(done, "change"), runs.state(done, "database")) == ("failed", "failed")


def test_cursor(lake: Path) -> None:
    cursor = DeltaSqlHook("lake").get_conn().cursor()
    with pytest.raises(InvalidRequestError, match="no rows"):
        cursor.fetchone()
    cursor.execute("SELECT id, carrier FROM flights ORDER BY id")
    assert cursor.description is not None
    assert cursor.description[0] == ("id", "int64", None, None, None, None, None)
    assert [name for name, *_ in cursor.description] == ["id", "carrier"]
    assert (cursor.rowcount, cursor.fetchone()) == (3, (1, "UA"))
    assert (cursor.fetchmany(1), cursor.fetchall(), cursor.fetchone()) == ([(2, "UA")], [(3, "AA")], None)
    assert cursor.execute("SELECT id FROM flights WHERE id > 5").fetchall() == []
    assert [row[0] for row in cursor.execute("DESCRIBE flights")] == ["id", "delay", "carrier"]
    assert cursor.execute("DESCRIBE HISTORY flights").rowcount == 1


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("SELECT f.id FROM flights f JOIN delta.`flights` g USING (id, carrier) WHERE f.id = 1", [(1,)]),
        ("SELECT flights.id FROM flights, (SELECT 3 AS id) AS sq WHERE flights.id = sq.id", [(3,)]),
        ("WITH flights AS (SELECT 9 AS id) SELECT id FROM flights", [(9,)]),
        ("WITH flights(id, n) AS (SELECT 9, 1) SELECT id FROM flights", [(9,)]),
        ("WITH flights AS MATERIALIZED (SELECT 9 AS id) SELECT id FROM flights", [(9,)]),
        ("SELECT id FROM (WITH Flights AS (SELECT 9 AS id) SELECT id FROM flights) AS q", [(9,)]),
        (
            "WITH RECURSIVE flights(id, n) USING KEY (id) AS "
            "(SELECT 1, 1 UNION SELECT id, n + 1 FROM flights WHERE n < 3) SELECT n FROM flights",
            [(3,)],
        ),
        ("SELECT count(*) OVER w AS n FROM flights WINDOW w AS (PARTITION BY carrier) ORDER BY n", [(1,), (2,), (2,)]),
        ("WITH a AS (SELECT id FROM flights), b AS (SELECT * FROM a) SELECT count(*) FROM b", [(3,)]),
        ("SELECT count(*) FROM flights WHERE extract(year FROM DATE '2024-01-01') = 2024", [(3,)]),
        ("SELECT id FROM flights WHERE delay IS DISTINCT FROM id AND id = 2", [(2,)]),
        ("SELECT sum(range) FROM range(4)", [(6,)]),
        ("FROM flights SELECT id WHERE id = 2", [(2,)]),
    ],
)
def test_names_in_a_query(text: str, rows: list[Any]) -> None:
    assert DeltaSqlHook("lake").get_records(text) == rows


@pytest.mark.parametrize(
    "text",
    [
        *("INSERT INTO flights VALUES (1, 1, 'x')", "DELETE FROM flights", "UPDATE flights SET id = 1"),
        *("VACUUM flights", "OPTIMIZE flights", "DROP TABLE flights", "", ";", "/* a */ DELETE FROM flights"),
        *("WITH a AS (SELECT 1) INSERT INTO flights SELECT * FROM a", "COPY flights TO '/tmp/x'", "ATTACH 'x'"),
        *("SELECT 1; DELETE FROM flights", "GENERATE symlink_format_manifest FOR TABLE flights"),
    ],
)
def test_statements_that_do_not_read_are_refused(text: str, lake: Path) -> None:
    with pytest.raises(DeltaError) as caught:
        DeltaSqlHook("lake").get_conn().cursor().execute(text)
    assert "VACUUM" not in text or "does not read" in caught.value.problem
    assert DeltaTable(lake / "flights").version() == 0
    assert DeltaTable(lake / "flights").snapshot().scan().to_arrow().num_rows == 3


def test_parameters_and_rows_to_insert_are_refused(lake: Path) -> None:
    hook = DeltaSqlHook("lake")
    with pytest.raises(InvalidRequestError, match="no parameters"):
        hook.get_first("SELECT %s", parameters=[1])
    with pytest.raises(InvalidRequestError):
        hook.insert_rows("flights", [(4, 4, "UA")])
    with pytest.raises(InvalidRequestError):
        hook.insert_rows("flights", [(4, 4, "UA")], executemany=True)
    assert DeltaTable(lake / "flights").version() == 0


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DeltaError, match="nothing_here"):
        DeltaSqlHook("lake").get_records("SELECT * FROM nothing_here")
