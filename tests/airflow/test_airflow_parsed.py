"""What no run could make right is refused when the DAG is parsed: values, and values that do not go together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG

import delta_orch.airflow
from delta_orch.airflow.check_operator import HEALTH
from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.maintenance import TableHealth


def rows() -> pa.Table:
    return pa.table({"id": [1]})


def rows_of(batch: Any) -> Any:
    return batch.scan().to_arrow()


WRITE: dict[str, Any] = {"table_uri": "/t", "python_callable": rows}
BY_SQL: dict[str, Any] = {"table_uri": "/t", "sql": "SELECT 1"}
MERGE: dict[str, Any] = {**WRITE, "on": "source.id = target.id", "clauses": [{"when_matched_update_all": {}}]}
STEP: dict[str, Any] = {"source": "/s", "target": "/t", "python_callable": rows_of}
CLONE: dict[str, Any] = {"source": "/s", "target": "/t"}
CHECK: dict[str, Any] = {"table_uri": "/t", "min_rows": 1}
TABLE: dict[str, Any] = {"table_uri": "/t"}
GROUP: dict[str, Any] = {**WRITE, "group_id": "g"}
REFUSED: list[Any] = [
    ("DeltaWriteOperator", {**WRITE, "mode": "append"}, "(?s)another name now.*Write write"),
    ("DeltaWriteOperator", {**WRITE, "keys": ["id"]}, "Write merge_keys"),
    ("DeltaWriteOperator", {**WRITE, "idempotency": "off"}, "on_redo='keep' for what 'partition' was"),
    (
        "DeltaWriteOperator",
        {**WRITE, "write": "cdc", "merge_keys": ["id"], "sequence_by": "t", "schema_mode": "merge"},
        "change events have the columns of the table",
    ),
    # Spark SQL that cannot be read.
    ("DeltaWriteOperator", {**WRITE, "write": "overwrite", "replace_where": "id >"}, "id >"),
    ("DeltaDeleteOperator", {**TABLE, "where": "id = = 1"}, "id = = 1"),
    ("DeltaOptimizeOperator", {**TABLE, "where": "day ="}, "day ="),
    ("DeltaRowSensor", {**TABLE, "where": "id >"}, "id >"),
    ("DeltaCheckOperator", {**CHECK, "where": "id >"}, "id >"),
    ("DeltaCheckOperator", {**TABLE, "rows": {"a": "id >"}}, "id >"),
    ("DeltaMergeOperator", {**MERGE, "on": "source.id = ="}, "source.id = ="),
    # Checks that every table passes.
    ("DeltaCheckOperator", {**TABLE, "rows": {}}, "checks nothing"),
    ("DeltaCheckOperator", {**TABLE, "columns": {}}, "checks nothing"),
    ("DeltaCheckOperator", {**TABLE, "max_health": {}}, "checks nothing"),
    ("DeltaCheckOperator", {**TABLE, "min_rows": 0}, "at least 1"),
    ("DeltaCheckOperator", {**CHECK, "rows": {}}, "checks nothing"),
    ("delta_write_audit_publish", {**GROUP, "audit": {"a": {"rows": {}}}}, "checks nothing"),
    # Checks that no table passes, and what they look at.
    ("DeltaCheckOperator", {**TABLE, "max_health": {"files": 3}}, "Possible are num_files"),
    *(
        ("delta_write_audit_publish", {**GROUP, "audit": {"a": {"min_rows": 1, **own}}}, "Check a of task group g has")
        for own in ({"version": 1}, {"reference": "/t"}, {"max_age": 5}, {"table_uri": "/t"}, {"delta_conn_id": "x"})
    ),
    # Names, and tables.
    ("DeltaWriteOperator", {**WRITE, "partition_by": ["a", "A"]}, "must be a list"),
    ("DeltaWriteOperator", {**WRITE, "partition_by": "day"}, "(?s)must be a list.*Write partition_by=\\['day'\\]"),
    ("DeltaMergeOperator", {**WRITE, "merge_keys": "id"}, "must be a list"),
    ("DeltaVacuumOperator", {**TABLE, "respect_consumers": "/a"}, "must be a list"),
    ("DeltaMergeOperator", {**WRITE, "merge_keys": ["id", "id"]}, "must be a list"),
    ("DeltaIncrementalOperator", {**STEP, "write": "merge", "merge_keys": ["id", ""]}, "must be a list"),
    ("DeltaOptimizeOperator", {**TABLE, "zorder_by": ["a", "a"]}, "must be a list"),
    ("DeltaWriteOperator", {**BY_SQL, "tables": {"a": "raw:t"}}, "neither a URI"),
    ("DeltaCheckOperator", {**CHECK, "reference": "raw:t"}, "neither a URI"),
    ("DeltaIncrementalOperator", {**STEP, "source": "/t/"}, "one table as source and target"),
    ("DeltaIncrementalOperator", {**STEP, "source": {"a": "file:///t"}}, "one table as source and target"),
    ("DeltaCloneOperator", {**CLONE, "source": "file:/t"}, "one table as source and target"),
    ("DeltaPublishOperator", {**TABLE, "staged": {"version": 1}}, "not the XCom of a task with stage=True"),
    # Arguments of the function.
    ("DeltaWriteOperator", {**WRITE, "op_kwargs": {"regoin": "a"}}, "does not take: got an unexpected .* 'regoin'"),
    ("DeltaMergeOperator", {**WRITE, "merge_keys": ["id"], "op_args": [1]}, "does not take: too many"),
    ("DeltaIncrementalOperator", {**STEP, "op_kwargs": {"day": 1}}, "does not take: got an unexpected .* 'day'"),
    # Properties and times.
    ("DeltaWriteOperator", {**WRITE, "properties": {"delta.apendOnly": "true"}}, "delta.apendOnly"),
    ("DeltaMergeOperator", {**WRITE, "merge_keys": ["id"], "properties": {"delta.appendOnly": "maybe"}}, "maybe"),
    ("DeltaCloneOperator", {**CLONE, "properties": {"fs.s3a.secret.key": "x"}}, "would hold a credential"),
    ("DeltaRestoreOperator", {**TABLE, "timestamp": "yesterday"}, "not a point in time"),
    ("DeltaCloneOperator", {**CLONE, "timestamp": " "}, "not a point in time"),
    ("DeltaRowSensor", {**TABLE, "poke_interval": 0, "deferrable": True}, "between two looks"),
    # What does not go together.
    ("DeltaOptimizeOperator", {**TABLE, "zorder_by": ["a"], "full": True}, "full, which is for clustered tables"),
    ("DeltaOptimizeOperator", {**TABLE, "where": "a = 1", "full": True}, "full, which is for clustered tables"),
    ("DeltaPartitionSensor", {**TABLE, "partitions": {"a": [["x"]]}}, "not a value of a partition column"),
    ("DeltaPartitionSensor", {**TABLE, "partitions": {"a": 1.5}}, "not a value of a partition column"),
    ("DeltaWriteOperator", {**WRITE, "exactly_once": False, "identity": "x"}, "has exactly_once=False"),
    (
        "DeltaDeleteOperator",
        {**TABLE, "all_rows": True, "exactly_once": False, "identity": "x"},
        "has exactly_once=False",
    ),
    ("DeltaMergeOperator", {**MERGE, "clauses": [{"when_matched": {}}]}, "possible are when_matched_update"),
    ("DeltaMergeOperator", {**WRITE, "merge_keys": ["id"], "clauses": MERGE["clauses"]}, "on and clauses together"),
    # Texts that Python takes for true, and words that nobody knows.
    *(
        (name, {**arguments, switch: "no"}, f"{switch} must be True or False")
        for name, arguments, switch in (
            ("DeltaWriteOperator", WRITE, "exactly_once"),
            ("DeltaWriteOperator", WRITE, "stage"),
            ("DeltaWriteOperator", WRITE, "emit_when_unchanged"),
            ("DeltaDeleteOperator", TABLE, "all_rows"),
            ("DeltaVacuumOperator", TABLE, "dry_run"),
            ("DeltaVacuumOperator", TABLE, "enforce_retention"),
            ("DeltaUndoOperator", {**TABLE, "unit": "u"}, "dry_run"),
            ("DeltaRestoreOperator", {**TABLE, "version": 1}, "ignore_missing_files"),
            ("DeltaCloneOperator", CLONE, "replace"),
            ("DeltaCheckOperator", CHECK, "constraints"),
            ("DeltaPublishOperator", {**TABLE, "staged": "r"}, "if_unchanged"),
            ("DeltaRowSensor", TABLE, "deferrable"),
            ("delta_table_asset", {**TABLE, "name": "a"}, "watch"),
        )
    ),
    *(
        (name, {**arguments, word: "x"}, f"{word}='x' is not possible")
        for name, arguments, word in (
            ("DeltaWriteOperator", WRITE, "write"),
            ("DeltaWriteOperator", WRITE, "engine"),
            ("DeltaWriteOperator", WRITE, "schema_mode"),
            ("DeltaWriteOperator", WRITE, "on_redo"),
            ("DeltaIncrementalOperator", STEP, "write"),
            ("DeltaIncrementalOperator", STEP, "bootstrap"),
            ("DeltaIncrementalOperator", STEP, "on_recreated"),
            ("DeltaSparkSubmitOperator", {**TABLE, "application": "a.py"}, "write"),
        )
    ),
    ("DeltaPartitionSensor", {**TABLE, "partitions": {"a": ["x"]}, "partition_operator": "!="}, "only by ="),
    ("DeltaPartitionSensor", {**TABLE, "partitions": {"a": None}, "partition_operator": "<"}, "only by ="),
    ("DeltaTxnSensor", {**TABLE, "app_id": " "}, "No application id"),
]


@pytest.mark.parametrize(("name", "arguments", "problem"), REFUSED, ids=lambda value: str(value)[:60])
def test_it_is_refused(name: str, arguments: dict[str, Any], problem: str) -> None:
    public: Any = getattr(delta_orch.airflow, name)
    given = {**arguments} if name.startswith("delta_") else {"task_id": "x", **arguments}
    with DAG("d", schedule=None), pytest.raises(InvalidRequestError, match=problem):
        public(**given)


def test_what_other_tasks_decide_is_looked_at_when_the_mapped_task_runs() -> None:
    with DAG("d", schedule=None) as dag:
        told = delta_orch.airflow.DeltaOptimizeOperator(task_id="told", table_uri="/o").output
        kind: Any = delta_orch.airflow.DeltaWriteOperator
        kind.partial(task_id="all", python_callable=rows).expand_kwargs(told)
        kind.partial(task_id="one", python_callable=rows).expand(table_uri=["/t"], replace_where=told)
        kind.partial(task_id="each", python_callable=rows).expand_kwargs([{"table_uri": told}, {"table_uri": "/t"}])
    assert dag.task_ids == ["told", "all", "one", "each"]
    assert all(dag.get_task(name).upstream_task_ids == {"told"} for name in dag.task_ids[1:])


@pytest.mark.parametrize("over", [{"table_uri": ["/t", "../t"]}, [{"table_uri": "/t"}, {"table_uri": "../t"}]])
def test_locations_of_mapped_tasks_are_refused(over: Any) -> None:
    """What else is wrong with a mapped task, it says when it runs: Airflow makes its instances then."""
    partial: Any = delta_orch.airflow.DeltaWriteOperator.partial(task_id="x", python_callable=rows)
    with DAG("d", schedule=None), pytest.raises(InvalidRequestError, match="leads out"):
        partial.expand(**over) if isinstance(over, dict) else partial.expand_kwargs(over)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("DeltaWriteOperator", {**WRITE, "write": "overwrite", "replace_where": "day = '{{ ds }}' AND ("}),
        ("DeltaMergeOperator", {**WRITE, "on": "{{ params.on }}", "clauses": [
            {"when_matched_delete": {"condition": "{{ params.one }}"}}, {"when_matched_update_all": {}},
        ]}),
        ("DeltaRestoreOperator", {**TABLE, "timestamp": "{{ ts }}"}),
        ("DeltaCheckOperator", {**TABLE, "rows": {"a": "{{ params.rule }}"}, "min_rows": "{{ params.least }}"}),
        ("DeltaWriteOperator", {**WRITE, "properties": {"delta.appendOnly": "{{ params.only }}"}}),
        ("DeltaIncrementalOperator", {**STEP, "source": "{{ params.at }}", "target": "{{ params.at }}"}),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_templates_are_not_read_before_they_are_rendered(name: str, arguments: dict[str, Any]) -> None:
    getattr(delta_orch.airflow, name)(task_id="x", **arguments)


def test_outputs_of_tasks_stand_for_any_part_of_a_clause() -> None:
    with DAG("d", schedule=None):
        told = delta_orch.airflow.DeltaOptimizeOperator(task_id="told", table_uri="/o").output
        for clause in (
            {"when_matched_update": {"set": told, "condition": told}},
            {"when_not_matched_insert": {"values": {"a": told}}},
            {"when_matched_update_all": {"except_columns": told}},
        ):
            delta_orch.airflow.DeltaMergeOperator(
                task_id=f"m_{min(clause)}", **{**MERGE, "clauses": [clause]}, trigger_rule="all_done"
            )


@pytest.mark.parametrize("name", ["table_uri", "source"])
def test_the_xcom_of_a_task_is_not_a_location(name: str) -> None:
    with DAG("d", schedule=None):
        told = delta_orch.airflow.DeltaOptimizeOperator(task_id="told", table_uri="/o").output
        operator: Any = (
            delta_orch.airflow.DeltaIncrementalOperator(task_id="x", **{**STEP, "source": told})
            if name == "source"
            else delta_orch.airflow.DeltaOptimizeOperator(task_id="x", table_uri=told)
        )
    ti = SimpleNamespace(xcom_pull=lambda **_: {"table_uri": "/o", "version": 3, "outcome": "written"})
    with pytest.raises(InvalidRequestError, match=f"{name} is the XCom of a task"):
        operator.render_template_fields({"ti": ti})


def test_health_that_may_be_too_large() -> None:
    assert set(TableHealth.__dataclass_fields__) - set(HEALTH) == {
        "version", "target_file_size_bytes", "checkpoint_version", "num_expired_log_files"
    }  # fmt: skip
