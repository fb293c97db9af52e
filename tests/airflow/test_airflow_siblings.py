"""Mapped tasks of one run to which one identity is given: the second is refused, whatever is cleared, for as long as
the first has the identity. A list that has changed may give it to another index."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, task

from delta_orch import DeltaTable
from delta_orch.airflow import DeltaPublishOperator, DeltaWriteOperator
from delta_orch.airflow.run_context import TaskRun
from delta_orch.errors import InvalidRequestError
from tests.airflow.internals import needs_state
from tests.airflow.stories import CERTAIN, HIDDEN, RETRIES, Died, Instance, content, new_table

if TYPE_CHECKING:
    from tests.airflow.conftest import Runs

REFUSED = "has written under the identity 'same'"
STEPS = [*RETRIES, *CERTAIN, *HIDDEN]
WRITES: dict[str, dict[str, Any]] = {
    "replaces": {"replaces": True},
    "replaces the table": {"replaces": True, "whole": True},
    "appends": {"replaces": False},
    "replaces without state": {"replaces": True, "keeps_state": False},
    "replaces the table without state": {"replaces": True, "whole": True, "keeps_state": False},
}
"""An append needs the state."""
KINDS = [pytest.param(one, marks=() if "keeps_state" in WRITES[one] else needs_state) for one in WRITES]


@pytest.fixture(params=KINDS)
def both(request: pytest.FixtureRequest) -> tuple[Instance, Instance]:
    """Two mapped tasks of one identity, in a run that has just begun."""
    started = datetime.now(UTC) - timedelta(minutes=1)
    table, states = new_table(), dict[int, str | None]()
    first, second = (
        Instance(table, name="same", map_index=index, start_date=started, states=states, **WRITES[request.param])
        for index in (0, 1)
    )
    return first, second


@pytest.mark.parametrize("state", ["success", "failed", "up_for_retry"])
@pytest.mark.parametrize("step", STEPS)
def test_it_is_refused_in_each_try(both: tuple[Instance, Instance], step: str, state: str) -> None:
    """Cleared alone, in a run that had ended and is started again, too."""
    first, second = both
    first.attempt()
    second.states[0] = state
    for _ in range(3):
        with pytest.raises(InvalidRequestError, match=REFUSED):
            second.attempt()
        getattr(second, step)()
    assert content(first.table) == ["0:1"]
    # The first is free to write again.
    first.states[1] = "failed"
    first.start_date = second.start_date
    first.clear()
    first.attempt()
    assert content(first.table) == (["0:2"] if first.replaces else ["0:1", "0:2"])


@pytest.mark.parametrize("state", ["queued", "running"])
def test_it_is_refused_while_the_first_has_not_ended(both: tuple[Instance, Instance], state: str) -> None:
    first, second = both
    first.attempt()
    second.states[0] = state
    for step in ("retry", "clear_and_leave_the_run", "clear_in_a_run_that_goes_on"):
        with pytest.raises(InvalidRequestError, match=REFUSED):
            second.attempt()
        getattr(second, step)()
    assert content(first.table) == ["0:1"]


def test_it_is_refused_where_both_have_begun_with_nothing_there(both: tuple[Instance, Instance]) -> None:
    """It would take the other's commit for its own, and end well without its rows."""
    first, second = both
    second.states[0] = "running"
    with pytest.raises(InvalidRequestError, match=REFUSED):
        second.attempt(during=first.attempt)
    second.states[0] = "success"
    for step in STEPS:
        getattr(second, step)()
        with pytest.raises(InvalidRequestError, match=REFUSED):
            second.attempt()
    assert content(first.table) == ["0:1"]


def test_it_is_refused_after_a_death_before_the_other_had_committed(both: tuple[Instance, Instance]) -> None:
    first, second = both
    with pytest.raises(Died):
        second.attempt("before")
    first.attempt()
    second.states[0] = "success"
    for step in STEPS:
        getattr(second, step)()
        with pytest.raises(InvalidRequestError, match=REFUSED):
            second.attempt()
    assert content(first.table) == ["0:1"]


@pytest.mark.parametrize("state", [None, "removed", "running", "scheduled"])
def test_a_list_that_has_changed_gives_the_identity_to_another_index(
    both: tuple[Instance, Instance], state: str | None
) -> None:
    """All were cleared, and the run was started again: the first is still to come, or there is none any more."""
    first, second = both
    if not first.replaces:
        return  # Its rows would be doubled.
    first.attempt()
    second.clear()
    second.start_date = datetime.now(UTC) + timedelta(minutes=1)
    second.states[0] = state
    second.attempt()
    assert content(first.table) == ["1:2"]


@pytest.mark.parametrize("restarted", [True, False])
def test_the_first_has_written_under_another_name_since(both: tuple[Instance, Instance], restarted: bool) -> None:
    first, second = both
    if not first.replaces or first.whole:
        return  # Under two identities, two would replace the table.
    first.attempt()
    another = replace(first, name="another")
    moment = datetime.now(UTC) + timedelta(minutes=1)
    for one in (another, second):
        one.clear_in_a_run_that_goes_on()
        one.start_date = moment if restarted else one.start_date
    new = pa.table({"v": ["x"]})
    DeltaTable(first.table.uri).append(
        new, txn=TaskRun.from_context(another.context()).write_txns("run", "another", replaces_table=False),
        user_metadata=TaskRun.from_context(another.context()).user_metadata(),
    )  # fmt: skip
    second.states[0] = "success"
    second.where = "v < 'a'"
    second.attempt()
    assert content(first.table) == ["1:2", "x"]


@pytest.mark.parametrize("keeps_state", [pytest.param(True, marks=needs_state), False])
def test_once_a_partition_the_first_has_the_rows(keeps_state: bool) -> None:
    table, given = new_table(), {"name": "same", "idempotency": "partition", "states": {0: "success"}}
    first, second = (
        Instance(table, True, map_index=index, keeps_state=keeps_state, **given)  # type: ignore[arg-type]
        for index in (0, 1)
    )
    first.attempt()
    assert second.attempt().skipped
    assert content(table) == ["0:1"]


def rows(*values: str) -> pa.Table:
    return pa.table({"v": pa.array(values, pa.string())})


def content_of(uri: Path) -> list[str]:
    return sorted(DeltaTable(uri).snapshot().scan().to_arrow()["v"].to_pylist())


def die_once(context: Any, result: Any) -> None:
    """After the commit, before Airflow hears of it."""
    if context["ti"].try_number == 1:
        raise RuntimeError("killed after the commit")


def mapped(name: str, uri: Path, listed: Callable[[], list[dict[str, str]]], **arguments: Any) -> DAG:
    with DAG(name, schedule="@daily", start_date=datetime(2024, 1, 1, tzinfo=UTC)) as dag:

        @task
        def names() -> list[dict[str, str]]:
            return listed()

        DeltaWriteOperator.partial(
            task_id="load", table_uri=uri, mode="overwrite", replace_where="v LIKE '{{ task.op_kwargs['v'] }}%'",
            python_callable=lambda v: rows(f"{v}1", f"{v}2"), **arguments,
        ).expand(op_kwargs=names())  # fmt: skip
    return dag


@pytest.mark.slow
def test_under_airflow_it_is_refused_also_when_it_is_cleared_alone(runs: Runs, tmp_path: Path) -> None:
    dag = mapped("siblings_shared", tmp_path / "t", lambda: [{"v": "a"}, {"v": "a"}], identity="same")
    run = runs.run(dag)
    # Airflow begins either of them first.
    first, second = (0, 1) if runs.state(run, "load", 0) == "success" else (1, 0)
    for _ in range(2):
        assert [runs.state(run, "load", index) for index in (first, second)] == ["success", "failed"]
        assert DeltaTable(tmp_path / "t").version() == 0
        run = runs.clear(dag, run, "load", map_index=second)
    # The one that has the rows may be cleared, alone or with the other.
    run = runs.clear(dag, run, "load", map_index=first)
    assert [runs.state(run, "load", index) for index in (first, second)] == ["success", "failed"]
    assert DeltaTable(tmp_path / "t").version() == 1
    run = runs.clear(dag, run, "load")
    assert sorted(runs.state(run, "load", index) for index in (0, 1)) == ["failed", "success"]
    assert content_of(tmp_path / "t") == ["a1", "a2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("idempotency", "last"), [pytest.param("run", "failed", marks=needs_state), ("partition", "success")]
)
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_of_two_staged_writes_of_one_identity_the_second_is_not_published(
    runs: Runs, tmp_path: Path, mode: str, idempotency: str, last: str
) -> None:
    """Both are staged before either is published: only then one can be seen to be there already."""
    with DAG(
        f"siblings_staged_{mode}_{idempotency}", schedule="@daily", start_date=datetime(2024, 1, 1, tzinfo=UTC)
    ) as dag:
        staged = DeltaWriteOperator.partial(
            task_id="load", table_uri=tmp_path / "t", mode=mode, identity="same", idempotency=idempotency, stage=True,
            python_callable=lambda v: rows(v), **({"replace_where": "v < 'z'"} if mode == "overwrite" else {}),
        ).expand(op_kwargs=[{"v": "a"}, {"v": "b"}])  # fmt: skip
        DeltaPublishOperator.partial(task_id="publish", table_uri=tmp_path / "t").expand(staged=staged.output)
    DeltaTable(tmp_path / "t").append(rows("z"))
    run = runs.run(dag)
    assert [runs.state(run, "load", index) for index in (0, 1)] == ["success", "success"]
    ended = [runs.state(run, "publish", index) for index in (0, 1)]
    assert sorted(ended) == sorted(["success", last])  # Airflow begins either of them first.
    published = ["a", "b"][ended.index("success")] if last == "failed" else content_of(tmp_path / "t")[0]
    assert content_of(tmp_path / "t") == [published, "z"]


@pytest.mark.slow
def test_under_airflow_a_list_that_has_changed_moves_identities(runs: Runs, tmp_path: Path) -> None:
    listed = ["a", "b"]
    dag = mapped(
        "siblings_moved", tmp_path / "t", lambda: [{"v": name} for name in listed],
        identity="{{ task.op_kwargs['v'] }}",
    )  # fmt: skip
    run = runs.run(dag)
    for changed in (["b", "a"], ["c", "b", "a"], ["a"], ["b", "a"]):
        listed[:] = changed
        before = DeltaTable(tmp_path / "t").version()
        run = runs.clear(dag, run, "names", "load")
        assert [runs.state(run, "load", index) for index in range(len(changed))] == ["success"] * len(changed)
        assert DeltaTable(tmp_path / "t").version() == before + len(changed)
    assert content_of(tmp_path / "t") == ["a1", "a2", "b1", "b2", "c1", "c2"]


@needs_state
def test_a_mapped_task_replaces_its_rows_in_a_file_of_all() -> None:
    """A compaction has put the rows of all in one file, before the run, and in it."""
    table, states = new_table(), dict[int, str | None]()
    table.append(pa.table({"v": ["0:old", "1:old"]}))
    first, second = (
        Instance(table, replaces=True, map_index=index, where=f"v LIKE '{index}:%'", states=states) for index in (0, 1)
    )
    for one in (first, second):
        one.attempt()
    assert content(table) == ["0:1", "1:1"]
    table.optimize()
    second.clear()
    second.attempt()
    assert content(table) == ["0:1", "1:2"]


@needs_state
def test_what_a_write_leaves_of_a_file_is_not_its_own(runs: Runs, tmp_path: Path) -> None:
    """One task dies after its commit, and finds it again when another has rewritten what it had left."""
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"v": ["a", "b"], "try": [0, 0]}))

    def die_once(context: Any, result: Any) -> None:
        if (context["ti"].task_id, context["ti"].try_number) == ("a", 1):
            raise RuntimeError("killed after the commit")

    def load(ti: Any) -> pa.Table:
        return pa.table({"v": [ti.task_id], "try": [ti.try_number]})

    with DAG("left_of_a_file", schedule="@daily", start_date=datetime(2024, 1, 1, tzinfo=UTC)) as dag:
        for name in ("a", "b"):
            DeltaWriteOperator(
                task_id=name, table_uri=table.uri, mode="overwrite", replace_where=f"v = '{name}'",
                python_callable=load, post_execute=die_once, retries=1, retry_delay=timedelta(0),
            )  # fmt: skip
    assert str(runs.run(dag, datetime(2024, 1, 5, tzinfo=UTC)).state) == "success"
    assert table.snapshot().scan().to_arrow().sort_by("v").to_pydict() == {"v": ["a", "b"], "try": [1, 1]}


@pytest.mark.slow
@needs_state
@pytest.mark.parametrize("is_heard_of", [True, False])
def test_under_airflow_a_list_that_has_changed_adds_no_rows_of_another_index_again(
    runs: Runs, tmp_path: Path, is_heard_of: bool
) -> None:
    listed, uri = ["a", "b"], tmp_path / "t"
    kept = {} if is_heard_of else {"post_execute": die_once, "retries": 0}
    with DAG(f"siblings_added_{is_heard_of}", schedule="@daily", start_date=datetime(2024, 1, 1, tzinfo=UTC)) as dag:

        @task
        def names() -> list[str]:
            return listed

        @task.delta(table_uri=uri, identity="{{ task.op_kwargs['name'] }}", **kept)
        def load(name: str) -> pa.Table:
            return rows(name)

        load.expand(name=names())
    run = runs.run(dag)
    listed[:] = ["c", "a"]
    runs.clear(dag, run, "names", "load")
    assert [runs.state(run, "load", index) for index in (0, 1)] == ["success", "failed"]
    assert content_of(uri) == ["a", "b", "c"]
    # As the error says.
    runs.clear(dag, run, "load", map_index=1)
    assert content_of(uri) == ["a", "a", "b", "c"]
