"""Units of work: a crash never doubles, doing it again replaces, late never wins."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from delta_orch import DeltaTable
from delta_orch.errors import (
    AppendOnlyError,
    ConflictError,
    ConstraintViolationError,
    InvalidRequestError,
    RedoNotPossibleError,
)
from delta_orch.expressions.nodes import Column, Comparison, Literal
from delta_orch.expressions.tree import any_of
from delta_orch.log.files.commit_reader import Commit
from delta_orch.log.read.table_log import TableLog
from delta_orch.pipeline.incremental import ChangeBatch, IncrementalReader
from delta_orch.pipeline.incremental_step import IncrementalStep as Step
from delta_orch.pipeline.step import Mode
from delta_orch.pipeline.unit import Attempt, OnRedo, StepReport, Unit
from delta_orch.verbs.units import undo

UNIT = "airflow:dag.task:{}"


def attempt(order: int, part: str = "monday") -> Attempt:
    return Attempt((Unit("airflow:dag.task", part),), order, f"run of {part}")


def step(table: DeltaTable, order: int, part: str = "monday", mode: Mode = "append", **changes: Any) -> Step:
    about: Any = {"user_metadata": f'{{"run_id": "run of {part}"}}', **changes.pop("options", {})}
    return Step("the step", table, mode, attempt=attempt(order, part), options=about, **changes)


def write(table: DeltaTable, order: int, ids: list[int], part: str = "monday", **changes: Any) -> StepReport:
    return step(table, order, part, **changes).run(lambda: pa.table({"id": pa.array(ids, pa.int64())}))


def ids_of(table: DeltaTable) -> list[int]:
    found: list[int] = table.snapshot().scan(["id"]).to_arrow().column("id").to_pylist()
    return sorted(found)


def not_asked() -> object:
    raise AssertionError("The rows were asked for")


WAYS: list[dict[str, Any]] = [{}, {"unit_column": "load_id"}]


@pytest.mark.parametrize("ways", WAYS)
def test_a_crash_never_doubles_and_reports_its_commit(tmp_path: Path, ways: dict[str, Any]) -> None:
    table = DeltaTable(tmp_path / "t")
    write(table, 7, [1, 2], **ways)
    write(table, 7, [9], "tuesday", **ways)
    report = step(table, 7, **ways).run(not_asked)
    assert (report.outcome, report.version, report.metrics["numOutputRows"]) == ("recovered", 0, "2")
    assert ids_of(table) == [1, 2, 9]


@pytest.mark.parametrize("ways", WAYS)
def test_doing_it_again_replaces_exactly_the_rows_of_the_unit(tmp_path: Path, ways: dict[str, Any]) -> None:
    table = DeltaTable(tmp_path / "t")
    write(table, 7, [1, 2], **ways)
    write(table, 7, [2, 9], "tuesday", **ways)
    table.append(write_like(table, [5]))
    report = write(table, 8, [3], **ways)
    assert (report.outcome, report.rows_replaced) == ("replaced", 2)
    assert ids_of(table) == [2, 3, 5, 9]


def write_like(table: DeltaTable, ids: list[int]) -> pa.Table:
    rows = pa.table({"id": pa.array(ids, pa.int64())})
    names = [field.name for field in table.snapshot().schema]
    return rows.append_column("load_id", pa.nulls(len(ids), pa.string())) if "load_id" in names else rows


@pytest.mark.parametrize("ways", WAYS)
def test_late_never_wins(tmp_path: Path, ways: dict[str, Any]) -> None:
    table = DeltaTable(tmp_path / "t")
    write(table, 8, [1], **ways)
    report = step(table, 7, **ways).run(not_asked)
    assert (report.outcome, report.fenced_by) == ("fenced", "run of monday")
    assert ids_of(table) == [1]


@pytest.mark.parametrize(("on_redo", "expected"), [("replace", [3]), ("keep", [1, 2]), ("add", [1, 2, 3])])
def test_what_a_redo_does_is_chosen(tmp_path: Path, on_redo: OnRedo, expected: list[int]) -> None:
    table = DeltaTable(tmp_path / "t")
    write(table, 7, [1, 2])
    write(table, 8, [3], on_redo=on_redo)
    assert ids_of(table) == expected
    if on_redo == "add":
        # The next replacement takes the rows of both away.
        write(table, 9, [4])
        assert ids_of(table) == [4]


CHANGING: dict[str, Callable[[DeltaTable], object]] = {
    "OPTIMIZE": lambda table: table.optimize(),
    "DELETE": lambda table: table.delete("id = 1"),
    "UPDATE": lambda table: table.update({"id": "id + 100"}, where="id = 2"),
}


@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.parametrize("vectors", ["true", "false"])
@pytest.mark.parametrize("ways", WAYS)
def test_rows_are_found_while_their_files_hold_no_others(
    tmp_path: Path, name: str, vectors: str, ways: dict[str, Any]
) -> None:
    """A file that is written of files of one unit keeps its tag. A column tells the unit of each row."""
    table = DeltaTable(tmp_path / "t")
    write(table, 7, [1, 2], **ways, options={"properties": {"delta.enableDeletionVectors": vectors}})
    write(table, 7, [9], "tuesday", **ways)
    CHANGING[name](table)
    if ways or name != "OPTIMIZE":
        write(table, 8, [3], **ways)
        assert ids_of(table) == [3, 9]
        return
    before = ids_of(table)
    with pytest.raises(RedoNotPossibleError, match="OPTIMIZE in version") as caught:
        step(table, 8).run(not_asked)
    assert (caught.value.context["operation"], ids_of(table)) == ("OPTIMIZE", before)


def test_a_compaction_of_the_files_of_one_unit_is_followed(tmp_path: Path) -> None:
    """Beside files of several units that it merges in another partition: the counts of rows tell."""
    table = DeltaTable(tmp_path / "t")

    def put(order: int, part: str, ids: list[int], day: int, **how: Any) -> StepReport:
        rows = pa.table({"id": pa.array(ids, pa.int64()), "day": pa.array([day] * len(ids))})
        return step(table, order, part, options={"partition_by": ["day"]}, **how).run(lambda: rows)

    put(1, "monday", [1, 2], 1)
    put(2, "monday", [3], 1, on_redo="add")
    put(1, "tuesday", [4], 2)
    put(1, "wednesday", [5], 2)
    table.optimize()
    assert table.snapshot().num_files == 2
    table.delete("id = 2")
    assert put(3, "monday", [6], 1).outcome == "replaced"
    assert ids_of(table) == [4, 5, 6]
    with pytest.raises(RedoNotPossibleError, match="OPTIMIZE in version"):
        put(2, "tuesday", [7], 2)
    assert ids_of(table) == [4, 5, 6]


def test_a_compaction_by_another_client_names_no_unit(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    write(table, 1, [1])
    write(table, 2, [2], on_redo="add")
    version = table.optimize().version
    path = tmp_path / "t" / "_delta_log" / f"{version:020d}.json"
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        action.get("add", {}).pop("tags", None)
        action.get("commitInfo", {}).pop("effect", None)
    path.write_text("".join(json.dumps(action) + "\n" for action in actions))
    with pytest.raises(RedoNotPossibleError, match="OPTIMIZE in version"):
        step(DeltaTable(tmp_path / "t"), 3).run(not_asked)


def test_a_redo_reads_each_commit_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, rival = DeltaTable(tmp_path / "t"), DeltaTable(tmp_path / "t")
    for part in ("monday", "tuesday", "wednesday"):
        write(table, 1, [len(part)], part)
    versions: list[int] = []
    read_commit = TableLog.read_commit

    def counted(log: TableLog, version: int) -> Commit:
        if log is table.log:
            versions.append(version)
        return read_commit(log, version)

    def rows() -> pa.Table:
        # The append reads only what has come since.
        rival.append(pa.table({"id": pa.array([5], pa.int64())}))
        return pa.table({"id": pa.array([4], pa.int64())})

    monkeypatch.setattr(TableLog, "read_commit", counted)
    assert step(table, 2).run(rows).outcome == "replaced"
    assert sorted(versions) == [0, 1, 2, 3]


DAYS = ("1", "2", "3")


def days(table: DeltaTable, order: int, rows: dict[int, str], *parts: str, **how: Any) -> StepReport:
    """A run over several partitions: each is a unit."""
    scopes = {day: Comparison("=", Column(("day",)), Literal(day)) for day in parts}
    units = tuple(Unit("dagster:asset", day, scope) for day, scope in scopes.items())
    about: Any = {"partition_by": ["day"], "user_metadata": f'{{"run_id": "{order}"}}'}
    mode = how.pop("mode", "append")
    data = how.pop("data", pa.table({"id": pa.array(rows.keys(), pa.int64()), "day": list(rows.values())}))
    made = Step(
        "the step", table, mode, attempt=Attempt(units, order, "r"), unit_column="load_id", options=about,
        within=(any_of(list(scopes.values())),), **how,
    )  # fmt: skip
    return made.run(lambda: data)


def units_in(table: DeltaTable) -> dict[int, str]:
    rows = table.snapshot().scan(["id", "load_id"]).to_arrow().to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["load_id"].removeprefix("dagster:asset:") for row in rows}


@pytest.mark.parametrize("compacts", [False, True])
def test_the_rows_of_several_units_name_the_unit_of_their_partition(tmp_path: Path, compacts: bool) -> None:
    table = DeltaTable(tmp_path / "t")
    assert days(table, 1, {1: "1", 2: "2", 3: "3"}, *DAYS).outcome == "written"
    assert units_in(table) == {1: "1", 2: "2", 3: "3"}

    def compact() -> None:
        if compacts:
            table.append(pa.table({"id": [90], "day": ["2"], "load_id": ["another"]}))
            table.optimize()
            table.delete("id = 90")

    compact()
    # One of them again, then two of which one is new, then all.
    assert days(table, 2, {12: "2", 22: "2"}, "2").rows_replaced == 1
    assert units_in(table) == {1: "1", 12: "2", 22: "2", 3: "3"}
    compact()
    assert days(table, 3, {32: "2", 4: "4"}, "2", "4").rows_replaced == 2
    compact()
    assert days(table, 4, {41: "1", 42: "2", 43: "3", 44: "4"}, *DAYS, "4").rows_replaced == 4
    assert units_in(table) == {41: "1", 42: "2", 43: "3", 44: "4"}
    assert days(table, 4, {}, *DAYS, "4").outcome == "recovered"
    # A unit that a newer run wrote is left out.
    report = days(table, 3, {51: "1", 55: "5"}, "1", "5", on_redo="keep")
    assert (report.left_out, units_in(table)[41], units_in(table)[55]) == (("dagster:asset:1",), "1", "5")
    assert table.undo(unit="dagster:asset:2").rows_removed == 1
    assert units_in(table) == {41: "1", 43: "3", 44: "4", 55: "5"}


@pytest.mark.spark
def test_spark_names_the_unit_of_each_row(spark: Any, tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    for order, parts in ((1, ("1", "2")), (2, ("2",)), (3, ("1", "2", "3"))):
        frame = spark.createDataFrame([(10 * order + int(day), day) for day in parts], "id bigint, day string")
        days(table, order, {}, *parts, data=frame)
        if order == 2:
            assert units_in(table) == {11: "1", 22: "2"}
        table.optimize()
    assert units_in(table) == {31: "1", 32: "2", 33: "3"}


def test_overwritten_rows_of_several_units_name_their_unit(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    both = Comparison("<=", Column(("day",)), Literal("2"))
    for order in (1, 2):
        days(table, order, {order: "1", 10 + order: "2"}, "1", "2", mode="overwrite", where=both)
        assert units_in(table) == {order: "1", 10 + order: "2"}


def test_rows_of_no_unit_and_rows_that_do_not_tell_it_are_refused(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    for order in (1, 2):
        with pytest.raises(ConstraintViolationError):
            days(table, order, {1: "1", 3: "3"}, "1", "2")
        with pytest.raises(InvalidRequestError, match="no column 'day'"):
            days(table, order, {}, "1", "2", data=pa.table({"id": [1]}))
        days(table, order, {1: "1"}, "1")
    twin = Attempt((Unit("dagster:asset", "1"), Unit("dagster:asset", "2")), 9, "r")
    with pytest.raises(InvalidRequestError, match="do not tell apart"):
        Step("the step", table, attempt=twin, unit_column="load_id").run(lambda: pa.table({"id": [1], "day": ["1"]}))


def test_rows_that_name_their_unit_outlive_the_log(tmp_path: Path) -> None:
    for number, ways in enumerate(WAYS):
        root = tmp_path / f"{number}"
        table = DeltaTable(root)
        write(table, 1, [1], **ways)
        write(table, 1, [2], "tuesday", **ways)
        table.checkpoint()
        for version in (0, 1):
            (root / "_delta_log" / f"{version:020d}.json").unlink()
        table = DeltaTable(root)
        if ways:
            assert write(table, 2, [3], **ways).outcome == "replaced"
            assert ids_of(table) == [2, 3]
            table.delete(f"load_id = '{UNIT.format('tuesday')}'")
        with pytest.raises(RedoNotPossibleError, match=r"log .*no longer has|may not name"):
            step(table, 2, "tuesday", **ways).run(not_asked)


def test_a_column_that_comes_later_does_not_name_older_rows(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    write(table, 1, [1])
    with pytest.raises(RedoNotPossibleError, match="may not name it"):
        step(table, 2, unit_column="load_id", schema_mode="merge").run(not_asked)
    # The remedy.
    table.undo(unit=UNIT.format("monday"))
    write(table, 2, [2], unit_column="load_id", schema_mode="merge")
    assert ids_of(table) == [2]


def test_a_column_that_was_renamed_still_names_the_rows(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    mapped: dict[str, Any] = {"options": {"properties": {"delta.columnMapping.mode": "name"}}}
    write(table, 1, [1], unit_column="load_id", **mapped)
    write(table, 1, [9], "tuesday", unit_column="load_id")
    table.alter().rename_column("load_id", "batch_id").commit()
    assert write(table, 2, [2], unit_column="batch_id").outcome == "replaced"
    assert ids_of(table) == [2, 9]
    table.alter().drop_columns("batch_id").commit()
    with pytest.raises(RedoNotPossibleError, match=r"(?s)has no column 'load_id' any more.*Delete the unit's rows"):
        step(table, 2, "tuesday", unit_column="batch_id", schema_mode="merge").run(not_asked)


def test_rows_that_have_left_the_table_are_no_reason_to_refuse(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    write(table, 7, [1, 2])
    write(table, 7, [9], "tuesday")
    table.delete("id < 5")
    write(table, 8, [3])
    assert ids_of(table) == [3, 9]


def test_a_redo_without_rows_is_refused(tmp_path: Path) -> None:
    for number, ways in enumerate(WAYS):
        table = DeltaTable(tmp_path / f"{number}")
        write(table, 7, [1, 2], **ways)
        with pytest.raises(RedoNotPossibleError, match="has no rows now"):
            write(table, 8, [], **ways)
        assert ids_of(table) == [1, 2]
        # The remedy.
        table.undo(unit=UNIT.format("monday"))
        assert write(table, 8, [], **ways).rows_replaced in (None, 0)
        assert ids_of(table) == []


def test_a_dynamic_overwrite_takes_the_rows_of_its_unit_along(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")

    def put(order: int, part: str, rows: dict[int, str]) -> StepReport:
        data = pa.table({"id": pa.array(rows.keys(), pa.int64()), "day": list(rows.values())})
        made = step(table, order, part, "overwrite_partitions", options={"partition_by": ["day"]})
        return made.run(lambda: data)

    put(1, "x", {1: "a", 2: "b"})
    put(1, "y", {3: "c"})
    report = put(2, "x", {4: "a"})
    assert (report.outcome, ids_of(table)) == ("replaced", [3, 4])


@pytest.mark.parametrize("mode", ["merge_clauses", "update"])
def test_verbs_that_may_count_twice_are_refused_and_delete_is_not(tmp_path: Path, mode: Mode) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": [1, 2]}))
    add: Callable[..., Any] = lambda options: table.update({"id": "id + 10"}, **options)  # noqa: E731
    assert step(table, 1, mode=mode).commit(add).outcome == "written"
    assert step(table, 1, mode=mode).commit(add).outcome == "recovered"
    with pytest.raises(RedoNotPossibleError, match="may count twice"):
        step(table, 2, mode=mode).commit(add)
    assert step(table, 2, mode=mode, on_redo="keep").commit(add).outcome == "recovered"
    assert ids_of(table) == [11, 12]
    deleting = step(table, 1, "wednesday", "delete")
    assert deleting.commit(lambda options: table.delete("id = 11", **options)).outcome == "written"
    again = step(table, 2, "wednesday", "delete")
    assert again.commit(lambda options: table.delete("id = 12", **options)).outcome == "replaced"
    assert ids_of(table) == []


def test_units_are_listed_and_undone(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    write(table, 7, [1, 2])
    write(table, 8, [3], "tuesday")
    listed = table.units().select(["unit", "order", "run", "version", "rows"]).to_pylist()
    assert listed == [
        {"unit": UNIT.format("monday"), "order": 7, "run": "run of monday", "version": 0, "rows": 2},
        {"unit": UNIT.format("tuesday"), "order": 8, "run": "run of tuesday", "version": 1, "rows": 1},
    ]
    rehearsed = table.undo(run="run of monday", dry_run=True)
    assert (rehearsed.rows_removed, rehearsed.preview is None, ids_of(table)) == (2, False, [1, 2, 3])
    assert table.undo(run="run of monday").rows_removed == 2
    assert (ids_of(table), table.units().num_rows) == ([3], 1)
    # As if it had never been done: the same attempt writes.
    assert write(table, 7, [5]).outcome == "written"
    for wrong in ({}, {"unit": "a", "run": "b"}, {"unit": "nobody"}, {"run": "nobody"}):
        with pytest.raises(InvalidRequestError):
            table.undo(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("compacts", [False, True])
@pytest.mark.parametrize("ways", WAYS)
def test_units_with_long_names_are_written_and_undone_apart(
    tmp_path: Path, ways: dict[str, Any], compacts: bool
) -> None:
    """Statistics hold the beginning of a text, which is the same in all these names."""
    table = DeltaTable(tmp_path / "t")
    parts = [f"a name that is longer than what statistics hold, {number}" for number in range(4)]
    for number, part in enumerate(parts):
        report = write(table, 7, [number], part, options={"user_metadata": '{"run_id": "r"}'}, **ways)
        assert (report.outcome, table.snapshot().num_files) == ("written", number + 1)
    if compacts and ways:
        table.optimize()
    other = write(table, 7, [9], **ways)
    assert other.commit is not None
    assert not int(other.commit.operation_metrics.get("numRemovedFiles", 0))
    if compacts and ways:
        assert (
            write(table, 8, [10], parts[1], options={"user_metadata": '{"run_id": "r"}'}, **ways).outcome == "replaced"
        )
        assert ids_of(table) == [0, 2, 3, 9, 10]
    assert table.undo(run="r").rows_removed == 4
    assert ids_of(table) == [9]


def test_a_run_is_undone_of_one_dag_alone(tmp_path: Path) -> None:
    """Scheduled runs of different DAGs share their ids."""
    table = DeltaTable(tmp_path / "t")
    about: Any = {"user_metadata": '{"run_id": "scheduled__monday"}'}
    for number, dag in enumerate(("sales", "stock")):
        own = Attempt((Unit(f"airflow:{dag}.load", "monday"),), 0, "scheduled__monday")
        Step("a step", table, attempt=own, options=about).run(pa.table({"id": [number]}).combine_chunks)
    with pytest.raises(InvalidRequestError, match="airflow:sales, airflow:stock"):
        table.undo(run="scheduled__monday")
    assert ids_of(table) == [0, 1]
    # The remedy.
    table.undo(unit="airflow:sales.load:monday")
    assert ids_of(table) == [1]
    assert table.undo(run="scheduled__monday").rows_removed == 1


def test_a_unit_whose_rows_are_gone_is_taken_back(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    write(table, 7, [1])
    write(table, 7, [2], "tuesday")
    table.delete("id = 1")
    undone = table.undo(unit=UNIT.format("monday"))
    assert (undone.skipped, undone.rows_removed, ids_of(table)) == (False, 0, [2])
    assert write(table, 7, [3]).outcome == "written"
    assert ids_of(table) == [2, 3]


@pytest.mark.parametrize("ways", WAYS)
def test_of_an_undo_and_a_redo_at_once_one_is_a_conflict(tmp_path: Path, ways: dict[str, Any]) -> None:
    """Also where there is no file that both remove."""
    table, rival = DeltaTable(tmp_path / "t"), DeltaTable(tmp_path / "t")
    write(table, 7, [1], **ways)
    table.delete("id = 1")
    snapshot = table.snapshot()
    assert write(rival, 8, [2], **ways).outcome in ("written", "replaced")
    with pytest.raises(ConflictError):
        undo(table.log, snapshot, table._quarantine_log, unit=UNIT.format("monday"), run=None, options={})
    assert (ids_of(table), table.units()["order"].to_pylist()) == ([2], [8])


def test_a_unit_of_several_batches_is_undone_as_one(tmp_path: Path) -> None:
    source, target = DeltaTable(tmp_path / "s"), DeltaTable(tmp_path / "t")
    for number in range(3):
        source.append(pa.table({"id": [number]}))
    step_of_batches = step(target, 1, "a")
    reader = IncrementalReader(source, target, bootstrap="changes", max_versions=1)
    report = step_of_batches.process(reader, lambda batch: batch.inserted().to_arrow(), until_current=True)
    assert (len(report.batches), ids_of(target)) == (3, [0, 1, 2])
    assert target.undo(run="run of a").rows_removed == 3
    assert ids_of(target) == []
    # The cursor went back with the rows.
    again = step(target, 2, "b").process(IncrementalReader(source, target), lambda batch: batch.inserted().to_arrow())
    assert (again.outcome, ids_of(target)) == ("written", [0, 1, 2])


def test_an_append_only_table_keeps_its_rows(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    write(table, 7, [1], options={"properties": {"delta.appendOnly": "true"}})
    for change in (lambda: write(table, 8, [2]), lambda: table.undo(unit=UNIT.format("monday"))):
        with pytest.raises(AppendOnlyError):
            change()
    assert ids_of(table) == [1]


def test_a_table_that_forgets_units_is_refused_where_rows_would_double(tmp_path: Path) -> None:
    forgets: dict[str, Any] = {"options": {"properties": {"delta.setTransactionRetentionDuration": "interval 30 days"}}}
    table = DeltaTable(tmp_path / "t")
    write(table, 7, [1], **forgets)
    with pytest.raises(InvalidRequestError, match="forgets what was written"):
        write(table, 7, [2], "tuesday")
    table.alter().unset_properties("delta.setTransactionRetentionDuration").commit()
    assert write(table, 7, [2], "tuesday").outcome == "written"
    named = DeltaTable(tmp_path / "named")
    for part in ("monday", "tuesday"):
        assert write(named, 7, [1], part, unit_column="load_id", **forgets).outcome == "written"


def test_a_restore_takes_units_back_with_their_rows(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    write(table, 7, [1])
    write(table, 7, [2], "tuesday")
    table.restore(0)
    assert ids_of(table) == [1]
    assert write(table, 7, [2], "tuesday").outcome == "written"
    assert ids_of(table) == [1, 2]


def incremental(mode: Mode, source: DeltaTable, target: DeltaTable, order: int, part: str, **how: Any) -> StepReport:
    def rows(batch: ChangeBatch) -> object:
        return batch.inserted().to_arrow() if mode == "append" else batch.snapshot.scan().to_arrow()

    keys = ("id",) if mode == "merge" else ()
    factor = how.pop("factor", 1)

    def computed(batch: ChangeBatch) -> object:
        data: Any = rows(batch)
        return data.append_column("value", pa.array([factor * n for n in data.column("id").to_pylist()], pa.int64()))

    made = step(target, order, part, mode, merge_keys=keys)
    return made.process(IncrementalReader(source, target), computed, **how)


@pytest.mark.parametrize("mode", ["append", "merge"])
def test_an_incremental_unit_is_done_again_from_what_it_read(tmp_path: Path, mode: Mode) -> None:
    source, target = DeltaTable(tmp_path / "s"), DeltaTable(tmp_path / "t")
    source.append(pa.table({"id": [1]}))
    incremental(mode, source, target, 1, "a")
    source.append(pa.table({"id": [2]}))
    source.append(pa.table({"id": [3]}))
    assert incremental(mode, source, target, 1, "b", until_current=True).outcome == "written"
    assert incremental(mode, source, target, 1, "b").outcome == "recovered"
    assert incremental(mode, source, target, 1, "c").outcome == "nothing new"
    source.append(pa.table({"id": [4]}))
    assert incremental(mode, source, target, 2, "b", factor=10).outcome == "replaced"

    def values() -> dict[int, int]:
        rows = target.snapshot().scan().to_arrow().to_pylist()
        assert len({row["id"] for row in rows}) == len(rows)
        return {row["id"]: row["value"] for row in rows}

    # A merge reads the source as it stands; an append what the unit had read.
    assert values() == ({1: 1, 2: 20, 3: 30, 4: 40} if mode == "append" else {n: 10 * n for n in (1, 2, 3, 4)})
    assert incremental(mode, source, target, 3, "b", factor=7, full_refresh=True).outcome == "replaced"
    assert values() == {n: 7 * n for n in (1, 2, 3, 4)}
    table_id = target.snapshot().metadata.id
    assert incremental(mode, source, target, 2, "a").outcome == "nothing new"
    assert (target.snapshot().metadata.id, len(values())) == (table_id, 4)


def test_bounds_hold_for_rows_that_name_their_unit(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    within = (Comparison("<", Column(("id",)), Literal(10)),)
    write(table, 1, [1], unit_column="load_id", within=within)
    for order in (1, 2):
        with pytest.raises(ConstraintViolationError):
            write(table, order, [11], f"{order}", unit_column="load_id", within=within)
    with pytest.raises(ConstraintViolationError):
        write(table, 2, [11], unit_column="load_id", within=within)
    assert ids_of(table) == [1]


def test_a_refresh_is_done_by_the_attempt_that_asks_for_it(tmp_path: Path) -> None:
    source, target = DeltaTable(tmp_path / "s"), DeltaTable(tmp_path / "t")
    source.append(pa.table({"id": [1]}))
    incremental("append", source, target, 1, "a")
    # The attempt before crashed, and had not refreshed.
    assert incremental("append", source, target, 1, "a", factor=5, full_refresh=True).outcome == "replaced"
    assert incremental("append", source, target, 1, "a", factor=7, full_refresh=True).outcome == "recovered"
    assert target.snapshot().scan().to_arrow().to_pylist() == [{"id": 1, "value": 5}]


class UnitModel(RuleBasedStateMachine):
    """Random attempts beside compactions, deletions and restores: each unit's rows are there once, those of its newest
    attempt, or the attempt is refused and changes nothing."""

    unit_column: str | None = None

    def __init__(self) -> None:
        super().__init__()
        from tempfile import mkdtemp

        self.table = DeltaTable(f"{mkdtemp()}/t")
        self.rows: dict[str, list[int]] = {}
        self.orders: dict[str, int] = {}
        self.others: list[int] = []
        self.deleted: set[int] = set()
        self.next_id = 0

    def new_ids(self, count: int) -> list[int]:
        self.next_id += count
        return list(range(self.next_id - count, self.next_id))

    @rule(part=st.sampled_from("abc"), shift=st.integers(-1, 2), count=st.integers(1, 3))
    def attempt(self, part: str, shift: int, count: int) -> None:
        order = max(0, self.orders.get(part, 5) + shift)
        ids = self.new_ids(count)
        known = self.orders.get(part)
        try:
            report = write(self.table, order, ids, part, unit_column=self.unit_column)
        except RedoNotPossibleError:
            assert self.unit_column is None and known is not None and order > known
            return
        expected = (
            "written" if known is None else "fenced" if order < known else "recovered" if order == known else "replaced"
        )
        assert report.outcome == expected
        if report.has_written:
            self.rows[part], self.orders[part] = ids, order

    @precondition(lambda self: self.orders)
    @rule()
    def compact(self) -> None:
        self.table.optimize()

    @precondition(lambda self: self.orders)
    @rule(number=st.integers(0, 40))
    def delete(self, number: int) -> None:
        self.table.delete(f"id = {number}")
        self.deleted.add(number) if number < self.next_id else None

    @precondition(lambda self: self.orders)
    @rule()
    def append_beside(self) -> None:
        ids = self.new_ids(1)
        self.table.append(write_like(self.table, ids))
        self.others += ids

    @precondition(lambda self: self.orders)
    @rule(part=st.sampled_from("abc"))
    def undo(self, part: str) -> None:
        if part not in self.orders:
            return
        try:
            self.table.undo(unit=UNIT.format(part))
        except RedoNotPossibleError:
            assert self.unit_column is None
            return
        del self.rows[part], self.orders[part]

    @precondition(lambda self: self.orders)
    @rule()
    def checkpoint(self) -> None:
        self.table.checkpoint()

    @invariant()
    def agrees(self) -> None:
        if self.orders:
            held = [n for ids in self.rows.values() for n in ids] + self.others
            assert ids_of(self.table) == sorted(n for n in held if n not in self.deleted)


class ColumnModel(UnitModel):
    unit_column = "load_id"


TestUnits = UnitModel.TestCase
TestUnits.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)
TestUnitColumn = ColumnModel.TestCase
TestUnitColumn.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)
