"""Rules for rows on their way into a table: what each action does, and that table and quarantine stay together."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_orch import DeltaTable, Expect, requeue
from delta_orch.errors import (
    AuditFailedError,
    ColumnNotFoundError,
    ConcurrentTransactionError,
    ConflictError,
    ConstraintViolationError,
    DeltaError,
    ExpectationFailedError,
    InvalidExpressionError,
    InvalidRequestError,
)
from delta_orch.expressions.nodes import Column, Comparison, Literal
from delta_orch.pipeline.audit import Audit
from delta_orch.pipeline.incremental import IncrementalReader
from delta_orch.pipeline.incremental_step import IncrementalStep as Step
from delta_orch.pipeline.unit import Attempt, StepReport, Unit
from delta_orch.storage.open import open_store
from delta_orch.testing import Moment, StoreCall, open_table
from delta_orch.testing.failing_store import Rule
from delta_orch.verbs.change_events import Changes
from delta_orch.verbs.expect import Expectations
from tests.families import family
from tests.harness.fault_store import FaultStore

POSITIVE = {"amount is positive": Expect("amount > 0")}


def attempt(order: int = 1, part: str = "monday", scope: Any = None) -> Attempt:
    return Attempt((Unit("airflow:dag.task", part, scope),), order, f"run {order}")


def rows(*amounts: float | None) -> pa.Table:
    return pa.table({"id": pa.array(range(len(amounts)), pa.int64()), "amount": pa.array(amounts, pa.float64())})


def written(table: DeltaTable, data: object, expect: dict[str, Expect] | None = None, **how: Any) -> StepReport:
    most = how.pop("max_quarantined", None)
    how = {"mode": "append", "attempt": attempt(), **how}
    return Step("step", table, expect=Expectations.of(POSITIVE if expect is None else expect, most), **how).run(
        lambda: data
    )


def ids(table: DeltaTable) -> list[int]:
    found: list[int] = table.snapshot().scan(["id"]).to_arrow().column("id").to_pylist()
    return sorted(found)


def quarantined(table: DeltaTable) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.quarantine().snapshot().scan().to_arrow().to_pylist()
    return sorted(found, key=lambda row: json.loads(row["row"])["id"])


def bad_ids(table: DeltaTable) -> list[int] | None:
    """None where there is no quarantine."""
    return [json.loads(row["row"])["id"] for row in quarantined(table)] if table.quarantine().exists() else None


def pending(table: DeltaTable) -> list[str]:
    """The transfers that wait."""
    return list(table.store.list_names("_delta_orch/quarantine"))


# What the actions do


def test_each_row_goes_one_way(tmp_path: Path) -> None:
    expect = {
        **POSITIVE,
        "is small": Expect("amount < 100", "drop"),
        "is even": Expect("amount % 2 = 0", "warn"),
        "has an id": Expect("id IS NOT NULL", "fail"),
    }
    table = DeltaTable(tmp_path / "t")
    report = written(table, rows(1, 2, -4, None, 100, 0), expect)
    assert ids(table) == [0, 1]
    assert bad_ids(table) == [2, 3, 5]
    assert [row["rules"] for row in quarantined(table)] == [
        ["amount is positive"], ["amount is positive", "is small", "is even"], ["amount is positive"]
    ]  # fmt: skip
    assert report.expected is not None
    assert report.expected.counts == {"amount is positive": 3, "is small": 2, "is even": 2, "has an id": 0}
    assert (report.expected.num_rows, report.expected.num_quarantined, report.expected.num_dropped) == (6, 3, 1)
    assert [row["id"] for row in report.expected.results[0].rows] == [2, 3, 5]
    metrics = table.history()[0].operation_metrics or {}
    assert metrics["numQuarantinedRows"] == "3"
    assert metrics["numDroppedRows"] == "1"
    assert metrics["numBrokenRows.is even"] == "2"


def test_a_row_of_the_quarantine_tells_where_it_comes_from(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    data = rows(-1).append_column("source_file", pa.array([{"path": "s3://landing/a.json", "size": 3}]))
    before = datetime.now(UTC)
    written(table, data)
    (row,) = quarantined(table)
    assert json.loads(row["row"]) == {
        "id": 0, "amount": -1.0, "source_file": {"path": "s3://landing/a.json", "size": 3}
    }  # fmt: skip
    assert (row["source_file"], row["unit"], row["run"]) == ("s3://landing/a.json", "airflow:dag.task:monday", "run 1")
    assert before <= row["quarantined_at"] <= datetime.now(UTC)


def test_a_result_shows_20_rows_at_most_and_the_log_none(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    data = pa.table({"id": pa.array(range(100), pa.int64()), "amount": [-1.0] * 100, "name": ["private"] * 100})
    report = written(table, data)
    assert report.expected is not None
    assert len(report.expected.results[0].rows) == 20
    assert not any("private" in file.read_text() for file in (tmp_path / "t").rglob("*.json"))


def test_a_quarantine_takes_rows_of_any_schema(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    written(table, rows(-1), attempt=attempt(part="monday"))
    other = pa.table({"id": pa.array([1], pa.int64()), "amount": [-1.0], "more": [{"list": [1, None]}]})
    written(table, other, attempt=attempt(part="tuesday"), schema_mode="merge")
    assert [json.loads(row["row"]) for row in quarantined(table)] == [
        {"id": 0, "amount": -1.0}, {"id": 1, "amount": -1.0, "more": {"list": [1, None]}}
    ]  # fmt: skip


@pytest.mark.parametrize("mode", ["append", "overwrite", "overwrite_partitions", "merge", "cdc", "error", "ignore"])
@pytest.mark.parametrize("is_stream", [False, True])
def test_every_mode(tmp_path: Path, mode: Any, is_stream: bool) -> None:
    table = DeltaTable(tmp_path / "t")
    data = rows(1, -1, 2).append_column("day", pa.array(["a", "a", "b"]))
    keys: dict[str, Any] = {"merge_keys": ("id",)} if mode in ("merge", "cdc") else {}
    keys |= {"changes": Changes("day", scd=2)} if mode == "cdc" else {}
    partitions: dict[str, Any] = {"options": {"partition_by": ["day"]}} if mode == "overwrite_partitions" else {}
    written(table, data.to_reader() if is_stream else data, mode=mode, **keys, **partitions)
    assert ids(table) == [0, 2]
    assert bad_ids(table) == [1]
    if mode not in ("error", "ignore"):
        written(table, data.to_reader() if is_stream else data, mode=mode, attempt=attempt(2), **keys, **partitions)
        assert (ids(table), bad_ids(table)) == ([0, 2], [1])


# Refusals: neither table changes


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize(
    ("expect", "most", "says"),
    [
        ({"id": Expect("id > 0", "fail")}, None, "1 rows"),
        ({**POSITIVE, "id": Expect("id > 0", "fail")}, None, "id > 0 is false or null for 1 rows, such as {'id': 0"),
        (POSITIVE, 1, "2 of 3 rows are for the quarantine, but max_quarantined allows 1 rows"),
        (POSITIVE, 0.5, "2 of 3 rows are for the quarantine, but max_quarantined allows 50.0%"),
    ],
)
def test_a_step_that_fails_changes_neither_table(
    tmp_path: Path, is_there: bool, expect: dict[str, Expect], most: Any, says: str
) -> None:
    table = DeltaTable(tmp_path / "t")
    if is_there:
        written(table, rows(1, -1), attempt=attempt(part="sunday"))
    with pytest.raises(ExpectationFailedError, match=says.replace("{", r"\{")) as raised:
        written(table, rows(1, -1, None), expect, max_quarantined=most)
    assert raised.value.context["report"].num_rows == 3
    assert table.exists() == table.quarantine().exists() == is_there
    if is_there:
        assert (table.version(), table.quarantine().version()) == (0, 0)


def test_as_many_rows_as_are_allowed(tmp_path: Path) -> None:
    written(DeltaTable(tmp_path / "rows"), rows(1, -1, None), max_quarantined=2)
    written(DeltaTable(tmp_path / "share"), rows(1, -1, None, 2), max_quarantined=0.5)


def test_an_audit_that_fails_leaves_the_quarantine_as_it_was(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    with pytest.raises(AuditFailedError):
        written(table, rows(1, -1), audits=(Audit("few", rows="amount > 5"),))
    assert not table.exists()
    assert not table.quarantine().exists()


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"expect": {"a": Expect("nobody > 0")}}, ColumnNotFoundError),
        ({"mode": "cdc", "merge_keys": ("id",), "changes": Changes("amount", full_snapshot=True)}, InvalidRequestError),
        ({"options": {"stage": True}}, InvalidRequestError),
    ],
)
def test_what_cannot_be_held_is_refused_before_the_rows_are_computed(
    tmp_path: Path, how: dict[str, Any], error: type[DeltaError]
) -> None:
    table = DeltaTable(tmp_path / "t")

    def batches() -> Iterator[pa.RecordBatch]:
        raise AssertionError("the source was read")
        yield

    data = pa.RecordBatchReader.from_batches(rows().schema, batches())
    with pytest.raises(error):
        written(table, data, **how)
    assert not table.exists()
    assert not table.quarantine().exists()


@pytest.mark.parametrize(
    "given",
    [
        (["amount > 0"], None), ({"a": "amount > 0"}, None), ({"": Expect("a > 0")}, None), ({"a": {"sql": "x"}}, None),
        (POSITIVE, -1), (POSITIVE, True), (POSITIVE, 1.5), (POSITIVE, "1"), (None, 5),
        ({"a": Expect("a > 0", "warn")}, 5),
    ],
)  # fmt: skip
def test_wrong_rules(given: tuple[Any, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        Expectations.of(*given)


def test_wrong_actions_and_predicates() -> None:
    with pytest.raises(InvalidRequestError):
        Expect("a > 0", "delete")  # type: ignore[arg-type]
    with pytest.raises(InvalidExpressionError):
        Expect("a >")


# Both tables hold the same unit


def test_a_redo_replaces_in_both(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    written(table, rows(1, -1, -2), attempt=attempt(part="sunday"))
    written(table, rows(1, 2, -1, -2))
    report = written(table, rows(1, -2, 3, 4), attempt=attempt(2))
    assert report.outcome == "replaced"
    assert [(row["run"], json.loads(row["row"])["id"]) for row in quarantined(table)] == [
        ("run 1", 1), ("run 2", 1), ("run 1", 2)
    ]  # fmt: skip
    written(table, rows(1, 2), attempt=attempt(3))
    assert {row["unit"] for row in quarantined(table)} == {"airflow:dag.task:sunday"}
    assert ids(table) == [0, 0, 1]


def test_a_redo_may_put_every_row_into_the_quarantine(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    written(table, rows(1, 2))
    written(table, rows(-1, -2), attempt=attempt(2))
    assert (ids(table), bad_ids(table)) == ([], [0, 1])


def test_a_retry_and_a_late_attempt_change_neither(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    written(table, rows(1, -1), attempt=attempt(2))
    assert written(table, rows(-5, 1), attempt=attempt(2)).outcome == "recovered"
    assert written(table, rows(-5, 1), attempt=attempt(1)).outcome == "fenced"
    assert (ids(table), bad_ids(table)) == ([0], [1])


@pytest.mark.parametrize("new_amounts", [(1, 2, -1), (1, 2)])
def test_an_attempt_that_is_overtaken_while_it_reads_changes_neither(
    tmp_path: Path, new_amounts: tuple[float, ...]
) -> None:
    table = DeltaTable(tmp_path / "t")

    def batches() -> Iterator[pa.RecordBatch]:
        written(DeltaTable(tmp_path / "t"), rows(*new_amounts), attempt=attempt(2))
        yield from rows(-5, 1).to_batches()

    assert written(table, pa.RecordBatchReader.from_batches(rows().schema, batches())).outcome == "fenced"
    assert (ids(table), bad_ids(table)) == ([0, 1], [2] if len(new_amounts) > 2 else None)
    assert written(table, rows(-5, 1)).outcome == "fenced"


@pytest.mark.parametrize("expect", [None, {"a": Expect("amount > -2", "warn")}, {"a": Expect("amount > -2")}])
def test_a_redo_by_other_rules_leaves_nothing_of_the_old_ones(tmp_path: Path, expect: Any) -> None:
    table, other = DeltaTable(tmp_path / "t"), DeltaTable(tmp_path / "other")
    written(table, rows(1, -1))
    step = Step("step", table, attempt=attempt(2), expect=Expectations.of(expect), quarantine=other)
    step.run(lambda: rows(1, -1, -3))
    assert bad_ids(table) == []
    is_quarantined = expect is not None and expect["a"].action == "quarantine"
    assert ids(table) == ([0, 1] if is_quarantined else [0, 1, 2])
    assert other.exists() == is_quarantined
    assert not any(pending(table))


@pytest.mark.parametrize("has_bad_rows", [False, True])
@pytest.mark.parametrize("is_restored", [False, True])
def test_a_unit_that_was_undone_begins_anew(tmp_path: Path, is_restored: bool, has_bad_rows: bool) -> None:
    table = DeltaTable(tmp_path / "t")
    written(table, rows(1), attempt=attempt(part="sunday"))
    written(table, rows(1, -1))
    # Of the same run, with a higher order.
    written(table, rows(1, -1, -2), attempt=attempt(9))
    if is_restored:
        table.restore(0)
    else:
        table.undo(unit="airflow:dag.task:monday")
        assert (ids(table), bad_ids(table)) == ([0], [])
    if has_bad_rows:
        written(table, rows(2, 1, -3), attempt=attempt(1))
        assert (ids(table), bad_ids(table)) == ([0, 0, 1], [2])
    else:
        written(table, rows(2, 1), attempt=attempt(1))
        assert (ids(table), bad_ids(table)) == ([0, 0, 1], [])
        return
    assert requeue(table, {}).num_moved == 1


def test_steps_that_begin_together_share_the_tables_that_the_first_of_them_makes(tmp_path: Path) -> None:
    def step(number: int) -> None:
        table = DeltaTable(tmp_path / "t")
        for _ in range(20):
            try:
                written(table, rows(1, -number), attempt=attempt(part=f"hour {number}"))
                return
            except ConflictError:
                continue  # As the orchestrators do.
        raise AssertionError("20 conflicts")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(step, range(1, 9)))
    table = DeltaTable(tmp_path / "t")
    assert ids(table) == [0] * 8
    assert sorted(json.loads(row["row"])["amount"] for row in quarantined(table)) == [
        -float(n) for n in range(8, 0, -1)
    ]


def test_units_that_rows_do_not_tell_apart_are_refused(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    several = Attempt((Unit("dagster:a", "mon"), Unit("dagster:a", "tue")), 1, "run")
    with pytest.raises(InvalidRequestError, match="do not tell apart"):
        written(table, rows(1, -1), attempt=several)
    assert not table.exists()


@pytest.mark.parametrize("is_overtaken", [False, True])
def test_of_two_processes_that_make_one_attempt_both_tables_hold_the_same(tmp_path: Path, is_overtaken: bool) -> None:
    """The second begins before the first commits, or between its commit and that of the quarantine."""
    written(DeltaTable(tmp_path / "t"), rows(1), attempt=attempt(part="sunday"))
    written(DeltaTable(tmp_path / "t"), rows(1, 2, -5), attempt=attempt(0))
    store = FaultStore(open_store(str(tmp_path / "t")))

    def other(_: StoreCall) -> None:
        written(DeltaTable(tmp_path / "t"), rows(-1, -2, 3), attempt=attempt(1))

    if is_overtaken:
        quarantine_store = FaultStore(open_store(str(tmp_path / "t_quarantine")))
        quarantine_store.at(Moment.COMMIT_PUT, "before", do=other)
        quarantine = open_table(quarantine_store)
        report = written(open_table(store), rows(1, -1, 2), quarantine=quarantine)
    else:
        store.at(Moment.COMMIT_PUT, "before", do=other)
        report = written(open_table(store), rows(1, -1, 2))
    assert report.outcome == ("replaced" if is_overtaken else "recovered")
    table = DeltaTable(tmp_path / "t")
    assert (ids(table), bad_ids(table)) == ([0, 0, 2], [1]) if is_overtaken else ([0, 2], [0, 1])


def test_rows_of_several_partitions_belong_to_their_units(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")

    def unit(day: str) -> Unit:
        return Unit("dagster:a", day, Comparison("=", Column(("day",)), Literal(day)))

    def run(order: int, *days: str, extra: str | None = None) -> None:
        parts = [*days, extra] if extra is not None else [*days]
        data = pa.table({"id": range(len(parts)), "amount": [float(-order)] * len(parts), "day": parts})
        data = pa.concat_tables([data, data.set_column(1, "amount", pa.array([1.0] * len(parts)))])
        made = Attempt(tuple(map(unit, days)), order, f"run {order}")
        written(table, data, mode="overwrite_partitions", attempt=made, options={"partition_by": ["day"]})

    run(1, "mon", "tue")
    run(2, "tue")
    found = {(row["unit"], row["run"]) for row in quarantined(table)}
    assert found == {("dagster:a:mon", "run 1"), ("dagster:a:tue", "run 2")}
    with pytest.raises(ConstraintViolationError):
        run(3, "mon", "tue", extra="wed")
    assert {(row["unit"], row["run"]) for row in quarantined(table)} == found


def test_without_units_rows_are_added(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    for _ in range(2):
        written(table, rows(1, -1), attempt=None)
    assert (ids(table), bad_ids(table)) == ([0, 0], [1, 1])
    written(table, rows(-1), attempt=None)
    assert bad_ids(table) == [0, 1, 1]
    written(table, rows(1), attempt=None)
    assert (table.quarantine().version(), pending(table)) == (2, [])


def test_on_redo_add(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    written(table, rows(1, -1))
    written(table, rows(1, -1), attempt=attempt(2), on_redo="add")
    assert (ids(table), bad_ids(table)) == ([0, 0], [1, 1])


# Batches of changes


def processed(table: DeltaTable, source: DeltaTable, order: int = 1, part: str = "monday", **how: Any) -> StepReport:
    made = attempt(order, part) if how.pop("exactly_once", True) else None
    step = Step("step", table, attempt=made, expect=Expectations.of(POSITIVE))
    reader = IncrementalReader(source, table, max_versions=1)
    return step.process(reader, lambda batch: batch.inserted().to_arrow(), until_current=True, **how)


def test_each_batch_adds_its_rows_and_a_redo_replaces_all(tmp_path: Path) -> None:
    source, table = DeltaTable(tmp_path / "s"), DeltaTable(tmp_path / "t")
    for _ in range(3):
        source.append(rows(1, -1))
    report = processed(table, source)
    assert report.expected is not None
    assert (report.expected.num_rows, report.expected.num_quarantined) == (6, 3)
    assert (ids(table), bad_ids(table)) == ([0, 0, 0], [1, 1, 1])
    processed(table, source, order=2)
    assert (ids(table), bad_ids(table)) == ([0, 0, 0], [1, 1, 1])
    source.append(rows(1, -1))
    processed(table, source, order=3, part="tuesday")
    assert (ids(table), bad_ids(table)) == ([0] * 4, [1] * 4)
    processed(table, source, order=4, part="wednesday", full_refresh=True)
    assert (ids(table), bad_ids(table)) == ([0] * 4, [1] * 4)
    assert {row["unit"] for row in quarantined(table)} == {"airflow:dag.task:wednesday"}


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("exactly_once", [False, True])
def test_of_two_runs_that_read_the_same_changes_the_one_that_commits_brings_its_bad_rows(
    tmp_path: Path, is_killed: bool, exactly_once: bool
) -> None:
    source, table = DeltaTable(tmp_path / "s"), DeltaTable(tmp_path / "t")
    source.append(rows(1, -1))
    processed(table, source, exactly_once=exactly_once)
    source.append(rows(2, -2, -3))

    def another(_: object) -> None:
        processed(DeltaTable(tmp_path / "t"), source, order=3, part="wednesday", exactly_once=exactly_once)
        if is_killed:
            raise Killed

    store = FaultStore(open_store(str(tmp_path / "t")))
    store.at(Moment.COMMIT_PUT, "before", do=another)
    with pytest.raises(Killed) if is_killed else nullcontext():
        processed(open_table(store), source, order=2, part="tuesday", exactly_once=exactly_once)
    assert (ids(table), bad_ids(table)) == ([0, 0], [1, 1, 2])
    # What the loser has written waits for a commit that never comes, and does no harm.
    assert pending(table)
    processed(table, source, order=6, part="tuesday", exactly_once=exactly_once)
    assert (ids(table), bad_ids(table)) == ([0, 0], [1, 1, 2])


# Kills at every call of both stores


class Killed(BaseException):
    """The end of a process: nobody catches it, and no call of a store follows."""


class Counter:
    """Counts the calls of both stores, and dies before or after one of them."""

    def __init__(self, number: int | None, when: str) -> None:
        self.number, self.when, self.calls = number, when, 0

    def table(self, path: Path) -> DeltaTable:
        store = FaultStore(open_store(str(path)))
        for when in ("before", "after"):
            store._rules.append(Rule(lambda _: True, when, partial(self.come, when), 10**9))
        return open_table(store)

    def come(self, when: str, _: StoreCall) -> None:
        if when == "before":
            self.calls += 1
        is_due = self.calls == self.number and when == self.when
        if is_due or (self.number is not None and self.calls > self.number):
            raise Killed(self.calls)


def _append(table: DeltaTable, quarantine: DeltaTable | None, order: int) -> None:
    data = rows(1, -1, 2) if order == 1 else rows(-1, 1, 2, -3)
    written(table, data, attempt=attempt(order), quarantine=quarantine)


def _first_append(table: DeltaTable, quarantine: DeltaTable | None, order: int) -> None:
    if order == 2:
        _append(table, quarantine, order)


def _batches(table: DeltaTable, quarantine: DeltaTable | None, order: int) -> None:
    source = DeltaTable(table.uri.removeprefix("file://") + ".source")
    data = rows(1, -1, 2) if order == 1 else rows(-1, 1, 2, -3)
    if not source.exists() or source.version() < min(order, 2) - 1:
        source.append(data)
    # Each run is a unit of its own.
    step = Step("step", table, attempt=attempt(order, f"run {order}"), expect=Expectations.of(POSITIVE))
    step = replace(step, quarantine=quarantine)
    step.process(IncrementalReader(source, table), lambda batch: batch.inserted().to_arrow())


WAYS: dict[str, tuple[Callable[..., None], list[int], list[int]]] = {
    "redo": (_append, [1, 2], [0, 3]),
    "first": (_first_append, [1, 2], [0, 3]),
    "batches": (_batches, [0, 1, 2, 2], [0, 1, 3]),
}


EVERY_FIFTH_CALL = pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.long)])
"""A process dies at each fifth call of its stores; in the long tests at each."""


@EVERY_FIFTH_CALL
@pytest.mark.parametrize(
    ("way", "when"),
    [
        pytest.param(
            way, when, marks=() if (way, when) in (("redo", "after"), ("batches", "after")) else pytest.mark.long
        )
        for way in WAYS
        for when in ("before", "after")
    ],
)
def test_a_step_that_dies_at_any_call_of_either_table_is_done_by_the_next_attempt(
    tmp_path: Path, way: str, when: str, step: int
) -> None:
    write, good, bad = WAYS[way]
    number, seen = 0, set()
    while True:
        path = tmp_path / f"{number}"
        write(DeltaTable(path), None, 1)
        counter = Counter(number, when)
        try:
            write(counter.table(path), counter.table(Path(f"{path}_quarantine")), 2)
        except Killed:
            pass
        else:
            assert counter.calls < number
            break
        table = DeltaTable(path)
        state = (ids(table) if table.exists() else [], bad_ids(table))
        seen.add(("new" if state[0] == good else "old", "new" if state[1] == bad else "old"))
        # Of the incremental step, another run than the one that died.
        write(DeltaTable(path), None, 3 if way == "batches" else 2)
        assert (ids(table), bad_ids(table)) == (good, bad), number
        number += step
    # The table decides, and the quarantine follows.
    assert seen == {("old", "old"), ("new", "old"), ("new", "new")} or (step > 1 and ("old", "new") not in seen)


@family("seed", range(40), every=13)
def test_random_steps_that_die_anywhere_leave_the_bad_rows_of_what_the_table_has(tmp_path: Path, seed: int) -> None:
    """Also where another step, an undo or a requeue comes next, and not the retry of the one that died."""
    chance, path, numbers = random.Random(seed), tmp_path / "t", iter(range(1000))
    # Unit → its good and its bad rows.
    model: dict[str, tuple[list[int], list[int]]] = {}
    for order in range(1, 10):
        part = chance.choice("ab")
        unit, before = f"airflow:dag.task:{part}", DeltaTable(path).version() if DeltaTable(path).exists() else -1
        counter = Counter(chance.randint(1, 60) if chance.random() < 0.6 else None, chance.choice(["before", "after"]))
        table, quarantine = counter.table(path), counter.table(Path(f"{path}_quarantine"))
        good, bad = ([next(numbers) for _ in range(chance.randint(least, 3))] for least in (1, 0))
        way = chance.choice(["write", "write", "undo", "requeue"])
        try:
            if way == "write" or unit not in model:
                data = pa.table({"id": good + bad, "amount": [1.0] * len(good) + [-1.0] * len(bad)})
                written(table, data, attempt=attempt(order, part), quarantine=quarantine)
            elif way == "undo":
                good, bad = [], []
                table.undo(unit=unit)
            elif quarantine.exists():
                requeue(table, {}, quarantine=quarantine)
        except Killed:
            pass
        now = DeltaTable(path)
        if not now.exists():
            continue
        if way == "requeue" and unit in model:
            there = set(ids(now))
            for name, (own, aside) in model.items():
                if aside and set(aside) <= there:
                    model[name] = ([*own, *aside], [])
        elif now.version() > before and good:
            model[unit] = (good, bad)
        elif now.version() > before:
            del model[unit]
        assert ids(now) == sorted(n for own, _ in model.values() for n in own)
    table = DeltaTable(path)
    if table.exists() and table.quarantine().exists():
        assert requeue(table, {"never": Expect("false")}).num_moved == 0
    assert (bad_ids(table) or []) == sorted(n for _, aside in model.values() for n in aside)


# Requeue


def test_rows_that_are_fine_now_move_once(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    written(table, rows(1, -1, -20, None))
    assert requeue(table, POSITIVE) == requeue(table, {"a": Expect("amount > 100")})
    result = requeue(table, {"a": Expect("amount > -10"), "w": Expect("amount > 100", "warn")})
    assert (result.num_moved, result.num_left) == (1, 2)
    assert (ids(table), bad_ids(table)) == ([0, 1], [2, 3])
    assert requeue(table, {"a": Expect("amount > -10")}).num_moved == 0
    table.quarantine().update({"row": "replace(row, 'null', '7.5')"})
    assert requeue(table, POSITIVE).num_moved == 1
    assert (ids(table), bad_ids(table)) == ([0, 1, 3], [2])


@pytest.mark.parametrize("unit_column", [None, "load_id"])
def test_a_redo_takes_requeued_rows_back(tmp_path: Path, unit_column: str | None) -> None:
    table = DeltaTable(tmp_path / "t")
    written(table, rows(1, 2), attempt=attempt(part="sunday"), unit_column=unit_column)
    written(table, rows(1, -1, 2), unit_column=unit_column)
    requeue(table, {})
    assert ids(table) == [0, 0, 1, 1, 2]
    assert written(table, rows(1, -1, 2), unit_column=unit_column).outcome == "recovered"
    written(table, rows(5, -1), attempt=attempt(2), unit_column=unit_column)
    assert (ids(table), bad_ids(table)) == ([0, 0, 1], [1])
    requeue(table, {})
    table.undo(unit="airflow:dag.task:monday")
    assert ids(table) == [0, 1]


def test_requeue_by_keys_and_by_a_predicate(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    written(table, rows(1, -1, -2), mode="merge", merge_keys=("id",))
    table.append(rows(5, 6).slice(1), txn=("by hand", 1))
    result = requeue(table, {}, where="row LIKE '%\"id\":1%'", merge_keys=["id"])
    assert (result.num_moved, result.num_left) == (1, 0)
    assert (ids(table), bad_ids(table)) == ([0, 1], [2])


def test_requeue_first_completes_what_a_step_has_left(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    written(table, rows(1, -1))
    quarantine_store = FaultStore(open_store(str(tmp_path / "t_quarantine")))
    quarantine_store.at(Moment.COMMIT_PUT, "before", do=quarantine_store.fail)
    with pytest.raises(DeltaError):
        written(table, rows(-1, 1), attempt=attempt(2), quarantine=open_table(quarantine_store))
    assert (ids(table), bad_ids(table)) == ([1], [1])
    assert requeue(table, {}).num_moved == 1
    assert (ids(table), bad_ids(table)) == ([0, 1], [])


@pytest.mark.parametrize("what", ["requeue", "redo", "undo"])
def test_requeue_that_is_overtaken_moves_nothing_twice(tmp_path: Path, what: str) -> None:
    written(DeltaTable(tmp_path / "t"), rows(1, -1, -2))

    def other(_: StoreCall) -> None:
        table = DeltaTable(tmp_path / "t")
        if what == "requeue":
            requeue(table, {})
        elif what == "redo":
            written(table, rows(-1, 1, -2), attempt=attempt(2))
        else:
            table.undo(unit="airflow:dag.task:monday")

    store = FaultStore(open_store(str(tmp_path / "t")))
    store.at(Moment.COMMIT_PUT, "before", do=other)
    with pytest.raises(ConcurrentTransactionError):
        requeue(open_table(store), {})
    table = DeltaTable(tmp_path / "t")
    after = {"requeue": ([0, 1, 2], []), "redo": ([1], [0, 2]), "undo": ([], [])}[what]
    assert (ids(table), bad_ids(table)) == after
    requeue(table, {})
    assert (ids(table), bad_ids(table)) == (sorted(after[0] + after[1]), [])


@EVERY_FIFTH_CALL
def test_requeue_that_dies_at_any_call_moves_rows_once(tmp_path: Path, step: int) -> None:
    number = 0
    while True:
        path = tmp_path / f"{number}"
        table = DeltaTable(path)
        written(table, rows(1, -1, -2))
        written(table, rows(1, -1, None), attempt=attempt(part="tuesday"))
        counter = Counter(number, "after")
        rule = {"a": Expect("amount < 0")}
        try:
            requeue(counter.table(path), rule, quarantine=counter.table(Path(f"{path}_quarantine")))
        except Killed:
            pass
        else:
            assert counter.calls < number
            break
        requeue(table, rule)
        assert (ids(table), bad_ids(table)) == ([0, 0, 1, 1, 2], [2]), number
        number += step
    assert number > 10


TYPED = pa.table(
    {
        "id": pa.array([0], pa.int64()),
        "amount": [-1.0],
        "nan": [float("nan")],
        "inf": [float("-inf")],
        "money": pa.array([Decimal("12345678901234567890.123456789")], pa.decimal128(38, 9)),
        "blob": [b"\x00\xff"],
        "day": [date(2024, 2, 29)],
        "at": pa.array([datetime(2024, 2, 29, 1, 2, 3, 456789, UTC)], pa.timestamp("us", "UTC")),
        "local": pa.array([datetime(2024, 2, 29, 1, 2, 3, 4)], pa.timestamp("us")),
        "big": pa.array([2**63 - 1], pa.int64()),
        "flag": [True],
        "list": [[{"a": None, "b": Decimal("1.50")}]],
        "map": pa.array([[(1, b"x"), (2, None)]], pa.map_(pa.int64(), pa.binary())),
        "text": ['"quoted" \u00e9 \n'],
        "none": pa.array([None], pa.string()),
    }
)


def test_every_value_survives_the_quarantine(tmp_path: Path) -> None:
    table, plain = DeltaTable(tmp_path / "t"), DeltaTable(tmp_path / "plain")
    table.create(TYPED.schema)
    written(table, TYPED)
    assert table.snapshot().num_files == 0
    assert requeue(table, {}).num_moved == 1
    plain.append(TYPED)
    assert repr(table.snapshot().scan().to_arrow().to_pylist()) == repr(plain.snapshot().scan().to_arrow().to_pylist())


def test_days_that_python_does_not_have_are_texts_and_stay(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    far = pa.table({"id": [0], "amount": [-1.0], "day": pa.array([2932897], pa.int32()).cast(pa.date32())})
    table.create(far.schema)
    written(table, far)
    assert json.loads(quarantined(table)[0]["row"]) == {"id": 0, "amount": -1.0, "day": "+10000-01-01"}
    assert requeue(table, {}).num_left == 1


def test_rows_that_do_not_fit_the_table_stay(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.create(rows().schema)
    written(table, pa.table({"id": pa.array([1, 2], pa.int64()), "amount": [-1.0, -2.0]}))
    table.quarantine().update({"row": 'replace(row, \'"id":1\', \'"id":"one"\')'})
    result = requeue(table, {})
    assert (result.num_moved, result.num_left) == (1, 1)


# Against a plain model

VALUES = st.one_of(st.none(), st.integers(-3, 3))
ROWS = st.lists(st.tuples(VALUES, VALUES), max_size=12)
RULES: dict[str, Callable[[Any, Any], bool | None]] = {
    "a > 0": lambda a, _: None if a is None else a > 0,
    "b <= 1": lambda _, b: None if b is None else b <= 1,
    "a = b": lambda a, b: None if a is None or b is None else a == b,
    "a IS NULL OR b IS NOT NULL": lambda a, b: a is None or b is not None,
    "abs(a) < 3": lambda a, _: None if a is None else abs(a) < 3,
}
ACTIONS = st.sampled_from(["quarantine", "warn", "drop", "fail"])


@settings(max_examples=40)
@given(st.lists(st.tuples(ROWS, st.dictionaries(st.sampled_from(sorted(RULES)), ACTIONS, min_size=1)), max_size=4))
def test_random_rows_and_rules_against_a_model(attempts: list[tuple[list[tuple[Any, Any]], dict[str, Any]]]) -> None:
    directory = Path(tempfile.mkdtemp())
    try:
        table = DeltaTable(directory / "t")
        kind = pa.int64()
        table.create(pa.schema([("id", kind), ("a", kind), ("b", kind)]))
        good: list[int] = []
        bad: list[int] = []
        for order, (values, actions) in enumerate(attempts, 1):
            data = pa.table(
                {
                    "id": pa.array(range(len(values)), kind),
                    "a": pa.array([a for a, _ in values], kind),
                    "b": pa.array([b for _, b in values], kind),
                }
            )
            broken = [{actions[r] for r in actions if RULES[r](a, b) is not True} for a, b in values]
            expect = {f"rule {r}": Expect(r, action) for r, action in actions.items()}
            is_failed = any("fail" in found for found in broken)
            new_good = [i for i, found in enumerate(broken) if not found & {"quarantine", "drop"}]
            new_bad = [i for i, found in enumerate(broken) if "quarantine" in found]
            try:
                # One batch a row, so that the pass is judged batch by batch.
                report = written(table, data.to_reader(max_chunksize=2), expect, attempt=attempt(order))
            except ExpectationFailedError:
                assert is_failed
            except DeltaError:
                # A redo without any row.
                assert good
                assert not new_good
                assert not new_bad
            else:
                assert not is_failed
                good = new_good
                bad = new_bad
                assert report.expected is not None
                assert report.expected.num_dropped == len(values) - len(new_good) - len(new_bad)
            assert ids(table) == good
            assert (bad_ids(table) or []) == bad
    finally:
        shutil.rmtree(directory)


@pytest.mark.parametrize("part", ["it's", 'a"b', "100%", "ü/ñ:x", "`x`", "\\n", "${env:HOME}"])
def test_odd_names_of_units_and_rows_of_another_client(tmp_path: Path, part: str) -> None:
    table = DeltaTable(tmp_path / "t q")
    written(table, rows(1, -1, -2), attempt=attempt(part=part))
    deltalake.write_deltalake(str(tmp_path / "t q"), pa.table({"id": [77], "amount": [5.0]}), mode="append")
    written(table, rows(1, -1, -2, -3), attempt=attempt(order=2, part=part))
    written(table, rows(4, -4), attempt=attempt(order=3, part="other"))
    assert (ids(table), sorted(bad_ids(table) or [])) == ([0, 0, 77], [1, 1, 2, 3])
    table.undo(unit=f"airflow:dag.task:{part}")
    assert (ids(table), bad_ids(table)) == ([0, 77], [1])
