"""Every public name of `delta_orch.airflow` with every wrong value for every argument: refused when the DAG is parsed.

The calls are made up from the signatures, so that a new argument is covered by being there. What is not refused then
must run, or end in an error of this package, never in one from inside.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, Asset, BaseOperator
from airflow.triggers.base import BaseTrigger

import delta_orch.airflow
from delta_orch import DeltaTable
from delta_orch.airflow.versions import AirflowException, AirflowFailException, AirflowNotFoundException
from delta_orch.errors import DeltaError, InvalidRequestError
from tests.airflow.internals import AirflowRescheduleException, TaskDeferred
from tests.harness.fuzz.arguments import Hostile, values

ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "day": ["a", "b"]})
OURS = [name for name in delta_orch.airflow.__all__ if name != "DELTA_RETRY_POLICY"]


def rows() -> pa.Table:
    return ROWS


def of_batch(batch: Any) -> pa.Table:
    return batch.scan().to_arrow()


def ordinary(name: str, place: Path) -> dict[str, Any]:
    """What a name is called with, where another argument is wrong."""
    table = {"table_uri": str(place / "t")}
    known: dict[str, dict[str, Any]] = {
        "DeltaWriteOperator": {**table, "python_callable": rows},
        "DeltaMergeOperator": {**table, "python_callable": rows, "merge_keys": ["id"]},
        "DeltaDeleteOperator": {**table, "where": "id = 1"},
        "DeltaIncrementalOperator": {
            "source": str(place / "s"), "target": str(place / "t"), "python_callable": of_batch,
        },
        "DeltaCheckOperator": {**table, "min_rows": 1},
        "DeltaCloneOperator": {"source": str(place / "s"), "target": str(place / "c")},
        "DeltaRestoreOperator": {**table, "version": 0},
        "DeltaPublishOperator": {**table, "staged": "x"},
        "DeltaPartitionRelayOperator": {**table, "outlets": [Asset("relayed", "delta://file/r")]},
        "DeltaSparkSubmitOperator": {**table, "application": "/nonexistent.py", "spark_conn_id": "nope"},
        "DeltaTableVersionSensor": {**table, "after_version": -1},
        "DeltaPartitionSensor": {**table, "partitions": {"day": "a"}},
        "DeltaTxnSensor": {**table, "app_id": "job"},
        "DeltaUpdateOperator": {**table, "set": {"id": "id + 1"}},
        "DeltaUndoOperator": {**table, "unit": "u"},
        "DeltaFreshnessSensor": {**table, "max_age": 60},
        "DeltaVersionTrigger": {**table, "after_version": -1, "poll_interval_s": 0.01},
        "DeltaConditionTrigger": {**table, "condition": {"kind": "rows", "min_rows": 1}, "poll_interval_s": 0.01},
        "DeltaCommitTrigger": {**table, "asset_name": "a", "poll_interval_s": 0.01},
        "DeltaHook": {},
        "delta_table_asset": {"name": "a", **table},
        "delta_write_audit_publish": {
            "group_id": "g", **table, "python_callable": rows, "audit": {"some": {"min_rows": 1}},
        },
        "delta_task": table,
        "delta_changes_task": {"source": str(place / "s"), "target": str(place / "t")},
    }  # fmt: skip
    return known.get(name, table)


def arguments_of(name: str) -> list[str]:
    """The arguments that this package adds to Airflow's."""
    made_by = {
        "delta_task": "DeltaWriteOperator",
        "delta_changes_task": "DeltaIncrementalOperator",
        "delta_write_audit_publish": "DeltaWriteOperator",
    }
    found: dict[str, None] = {}
    for owner in (name, made_by.get(name, name)):
        public = getattr(delta_orch.airflow, owner)
        functions = [public] if inspect.isfunction(public) else [
            kind.__init__ for kind in public.__mro__
            if kind.__module__.startswith("delta_orch.") and "__init__" in vars(kind)
        ]  # fmt: skip
        for function in functions:
            for parameter in inspect.signature(function).parameters.values():
                if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                    found.setdefault(parameter.name)
    # The target is the table of some.
    hidden = {"table_uri", "group_id"} if "target" in found else {"group_id"}  # Airflow says what ids are.
    if name in ("delta_task", "delta_changes_task"):
        hidden.add("python_callable")  # It is what is decorated.
    return [one for one in found if one not in {"self", *hidden}]


CALLS = [(name, argument) for name in OURS for argument in arguments_of(name)]


class Events(dict[Any, Any]):
    def __missing__(self, key: Any) -> Any:
        return SimpleNamespace(extra={}, add=lambda *_, **__: None, add_partitions=lambda *_: None)

    def _resolve_asset_ref(self, reference: Any) -> tuple[Any, Mapping[str, Any]]:
        return reference, {}


def context_of(task: BaseOperator) -> dict[str, Any]:
    """What a task is handed when it runs."""
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    run = SimpleNamespace(
        clear_number=0, partition_key=None, data_interval_start=moment, data_interval_end=moment, run_after=moment,
        start_date=moment, logical_date=moment, run_type="manual",
    )  # fmt: skip
    ti = SimpleNamespace(
        dag_id="d", task_id=task.task_id, map_index=-1, run_id="r", try_number=1, max_tries=0, task=task, log_url=None,
        id="i", xcom_pull=lambda **_: [], get_task_states=lambda **_: {},
    )  # fmt: skip
    return {
        "ti": ti, "dag_run": run, "outlet_events": Events(), "task_reschedule_count": 0, "triggering_asset_events": {},
        "task_state_store": None, "dag": SimpleNamespace(task_dict={task.task_id: task}),
    }  # fmt: skip


class Calls:
    """Makes calls on small tables, made anew where a call has changed them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for name in "st":
            DeltaTable(place / name).append(ROWS, partition_by=["day"])

    def made(self, name: str, arguments: Mapping[str, Any]) -> list[Any]:
        """What a DAG file makes: tasks, triggers, a hook."""
        public: Any = getattr(delta_orch.airflow, name)
        if inspect.isclass(public):
            named = {"task_id": "x"} if issubclass(public, BaseOperator) else {}
            return [public(**named, **arguments)]
        if name in ("delta_task", "delta_changes_task"):
            function = of_batch if name == "delta_changes_task" else rows
            return [public(function, task_id="x", **arguments)().operator]
        found = public(**arguments)
        if name == "delta_write_audit_publish":
            return []  # Its tasks are those of other calls.
        return [found]

    def failure(self, name: str, wrong: str, value: Any) -> str | None:
        """What is wrong with how a call went; None where nothing is."""
        arguments = {**ordinary(name, self.place), wrong: value}
        with DAG("d", schedule=None):
            try:
                made = self.made(name, arguments)
            except DeltaError as error:
                return _unreadable(str(error))
            except Exception as error:  # noqa: BLE001 - reported
                return f"when parsed, {type(error).__module__}.{type(error).__name__}: {str(error)[:200]}"
        try:
            for one in made:
                run(one)
        except (DeltaError, AirflowException, AirflowFailException, AirflowNotFoundException) as error:
            cause = error.__cause__
            fits = cause is None or isinstance(cause, DeltaError | AirflowException)
            return None if fits else f"at run, {type(cause).__name__}: {str(cause)[:200]}"
        except (TaskDeferred, AirflowRescheduleException):
            return None
        except Exception as error:  # noqa: BLE001 - reported
            return f"at run, {type(error).__module__}.{type(error).__name__}: {str(error)[:200]}"
        return None


def run(made: Any) -> None:
    if isinstance(made, BaseOperator):
        made.render_template_fields({**context_of(made), "ds": "2024-01-01"})
        if hasattr(made, "poke"):
            made.timeout, made.poke_interval = 0.001, 0.001
            made.poke(context_of(made))
        else:
            type(made).execute.__wrapped__(made, context_of(made))  # not in a worker
    elif isinstance(made, BaseTrigger):

        async def first() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    async for event in made.run():
                        if event.payload.get("status") == "failed":
                            assert event.payload["code"], event.payload
                        return

        kind, kept = made.serialize()
        assert kind.endswith(type(made).__name__)
        assert isinstance(kept, dict)
        asyncio.run(first())


def _unreadable(message: str) -> str | None:
    if len(message) > 2_000:
        return f"a message of {len(message)} characters"
    try:
        message.encode()
    except UnicodeEncodeError:
        return "a message that cannot be printed"
    return "a message that cannot be printed" if "\x1b" in message or "\0" in message else None


def wrong_values() -> Iterator[tuple[str, Any]]:
    yield from values().items()
    yield "template", "{{ ds }}"
    yield "list of templates", ["{{ ds }}"]
    yield "dict of lists", {"id": ["x"]}
    yield "hostile list", [Hostile()]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "argument"), CALLS, ids=[".".join(call) for call in CALLS])
def test_wrong_values_end_in_our_errors(
    name: str, argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # Some values are locations.
    calls = Calls(tmp_path)
    failures = {
        kind: failure
        for kind, value in wrong_values()
        # A function of the user raises what it raises.
        if (argument, kind) not in (("python_callable", "function"), ("python_callable", "class"))
        if (failure := calls.failure(name, argument, value)) is not None
    }
    assert not failures


def test_every_public_name_is_called() -> None:
    named = {name for name, _ in CALLS}
    assert named >= set(OURS)
    for expected in (
        ("DeltaWriteOperator", "replace_where"), ("DeltaWriteOperator", "partition_by"), ("DeltaHook", "delta_conn_id"),
        ("DeltaMergeOperator", "clauses"), ("delta_task", "write"), ("delta_write_audit_publish", "audit"),
        ("DeltaVersionTrigger", "seen_version"), ("DeltaTxnSensor", "min_version"), ("delta_table_asset", "extra"),
    ):  # fmt: skip
        assert expected in CALLS


def test_arguments_of_mapped_tasks_are_refused_when_the_dag_is_parsed() -> None:
    with DAG("mapped", schedule=None):
        for kind, wrong in (
            ("DeltaWriteOperator", {"write": 5}),
            ("DeltaMergeOperator", {"merge_keys": "id"}),
            ("DeltaDeleteOperator", {"where": ["id = 1"]}),
            ("DeltaVacuumOperator", {"dry_run": "no"}),
            ("DeltaRowSensor", {"deferrable": 1}),
        ):
            with pytest.raises(InvalidRequestError, match=f"{next(iter(wrong))} must be"):
                getattr(delta_orch.airflow, kind).partial(task_id="x", **wrong)
        for decorator in ("delta_task", "delta_changes_task"):
            with pytest.raises(InvalidRequestError, match="engine must be str"):
                getattr(delta_orch.airflow, decorator)(engine=None)
            with pytest.raises(InvalidRequestError, match="has op_kwargs"):
                getattr(delta_orch.airflow, decorator)(op_kwargs={})


@pytest.mark.parametrize("name", ["spark_conf", "properties", "op_kwargs", "tables"])
def test_a_text_in_place_of_settings_is_not_shown(name: str, tmp_path: Path) -> None:
    secret = f"Q7{tmp_path.name}"
    with (
        DAG("d", schedule=None),
        pytest.raises(InvalidRequestError, match=f"{name} must be Mapping.* not a text") as caught,
    ):
        wrong: Any = {"table_uri": "/t", "sql": "SELECT 1", name: f"password={secret}"}
        delta_orch.airflow.DeltaWriteOperator(task_id="x", **wrong)
    assert secret not in f"{caught.value} {caught.value.context}"
