"""`Step`: what is recorded is not computed, the modes, changes, and the write that creates the table."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch.delta_table import DeltaTable
from delta_orch.errors import (
    ColumnNotFoundError,
    ConflictError,
    ConstraintViolationError,
    DeltaError,
    InvalidRequestError,
    SchemaMismatchError,
    StorageError,
    TableExistsError,
    TableNotFoundError,
)
from delta_orch.expressions.nodes import Column, Comparison, Literal
from delta_orch.pipeline.audit import Audit, as_audits
from delta_orch.pipeline.incremental import IncrementalReader
from delta_orch.pipeline.incremental_step import IncrementalStep as Step
from delta_orch.pipeline.step import Mode
from delta_orch.pipeline.target_table import AIRFLOW, INCREMENTAL, OPS, asset_owner
from delta_orch.pipeline.unit import Attempt, StepReport, Unit
from delta_orch.testing import open_table
from tests.harness.fault_store import FaultStore

ROWS = pa.table({"day": ["a", "a"], "n": pa.array([1, 2], pa.int64())})


# The first write


@pytest.mark.parametrize("mode", ["append", "overwrite", "overwrite_partitions", "merge", "error", "ignore"])
def test_the_table_is_created_in_the_commit_of_its_rows(tmp_path: Path, mode: Mode) -> None:
    strict = ROWS.cast(pa.schema([pa.field("day", pa.string(), nullable=False), pa.field("n", pa.int64())]))
    options: Any = {
        "partition_by": ["day"], "properties": {"delta.checkpointInterval": "7"}, "user_metadata": "by me"
    }  # fmt: skip
    table = DeltaTable(tmp_path / "t")
    report = a_step(table, mode, merge_keys=("n",), options=options, creates_only=True).run(lambda: strict)
    snapshot = table.snapshot()
    assert (report.version, snapshot.version, snapshot.num_files) == (0, 0, 1)
    assert (snapshot.partition_columns, dict(snapshot.txns)) == (("day",), {"w:day": 1})
    assert [field.nullable for field in snapshot.schema] == [False, True]
    assert snapshot.properties.checkpoint_interval == 7
    assert table.history()[0].user_metadata == "by me"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"mode": "overwrite", "where": "n > 1"}, ConstraintViolationError),
        ({"mode": "merge", "merge_keys": ("day",)}, ConstraintViolationError),
        ({"mode": "overwrite", "options": {"partition_by": ["nope"]}}, ColumnNotFoundError),
        ({"mode": "overwrite_partitions"}, InvalidRequestError),
    ],
    ids=str,
)
def test_a_first_write_that_fails_leaves_no_table(tmp_path: Path, changes: Any, error: type[DeltaError]) -> None:
    table = DeltaTable(tmp_path / "t")
    with pytest.raises(error):
        a_step(table, **changes).run(lambda: ROWS)
    assert not table.exists()
    a_step(table, options={"partition_by": ["n"]}).run(lambda: ROWS)
    assert table.snapshot().partition_columns == ("n",)


def test_an_upsert_is_told_of_another_partitioning(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(ROWS, partition_by=["day"])
    with pytest.raises(InvalidRequestError, match="asks for n, but"):
        a_step(table, "merge", merge_keys=("n",), options={"partition_by": ["n"]}).run(lambda: ROWS)
    assert table.version() == 0


class Overtaken(DeltaTable):
    """Another writer creates the table when a step has looked for it for the last time."""

    looks = 0

    def snapshot(self, version: Any = None, timestamp: Any = None) -> Any:
        try:
            return super().snapshot(version, timestamp)
        except TableNotFoundError:
            self.looks += 1
            if self.looks == 2:
                DeltaTable(self.uri).overwrite(pa.table({"day": ["b"], "n": pa.array([2], pa.int64())}))
            raise


@pytest.mark.parametrize(
    ("mode", "left"), [("overwrite", [("a", 1), ("a", 2)]), ("merge", [("a", 1), ("a", 2)]), ("ignore", [("b", 2)])]
)
@pytest.mark.parametrize("audits", [(), (Audit("some", min_rows=1),)], ids=["", "audited"])
def test_of_two_that_create_a_table_the_second_comes_after_the_first(
    tmp_path: Path, mode: Mode, left: Any, audits: Any
) -> None:
    table = Overtaken(tmp_path / "t")
    report = a_step(table, mode, merge_keys=("n",), creates_only=True, audits=audits).run(lambda: ROWS)
    rows = table.snapshot().scan().to_arrow().to_pylist()
    assert sorted((row["day"], row["n"]) for row in rows) == left
    assert report.has_written is (mode != "ignore")


def test_rows_that_cannot_be_read_again_meet_a_table_that_another_has_created(tmp_path: Path) -> None:
    with pytest.raises(ConflictError):
        a_step(Overtaken(tmp_path / "r"), "overwrite").run(ROWS.to_reader)
    with pytest.raises(TableExistsError):
        a_step(Overtaken(tmp_path / "e"), "error", creates_only=True).run(lambda: ROWS)


@pytest.mark.parametrize("mode", ["error", "ignore"])
def test_a_table_that_was_created_while_the_rows_were_computed(tmp_path: Path, mode: Mode) -> None:
    def rows() -> pa.Table:
        DeltaTable(tmp_path / "t").append(ROWS.slice(1))
        return ROWS

    step = a_step(DeltaTable(tmp_path / "t"), mode, creates_only=True)
    if mode == "ignore":
        assert step.run(rows).outcome == "nothing new"
    else:
        with pytest.raises(TableExistsError):
            step.run(rows)
    assert DeltaTable(tmp_path / "t").snapshot().scan().to_arrow().num_rows == 1


# `Step`


def a_step(table: DeltaTable, mode: Mode = "append", version: int = 1, **changes: Any) -> Step:
    return Step("Task x", table, mode, **{"attempt": Attempt((Unit("w", "day"),), version, "r"), **changes})


def rows(*days: str) -> pa.Table:
    return pa.table({"day": pa.array(days, pa.string()), "n": pa.array(range(len(days)), pa.int64())})


def days(table: DeltaTable) -> list[str]:
    return sorted(table.snapshot().scan(columns=["day"]).to_arrow().column("day").to_pylist())


def not_called(*_: object) -> pa.Table:
    raise AssertionError("The rows were computed")


@pytest.mark.parametrize("mode", ["append", "overwrite", "overwrite_partitions", "error", "ignore"])
def test_what_is_recorded_is_not_computed_again(tmp_path: Path, mode: Mode) -> None:
    table = DeltaTable(tmp_path / "t")
    first = a_step(table, mode, options={"user_metadata": "run 1", "partition_by": ["day"]}).run(lambda: rows("a", "b"))
    assert (first.outcome, first.reason, first.metrics["numOutputRows"]) == ("written", None, 2)
    assert table.history()[0].user_metadata == "run 1"
    again = a_step(DeltaTable(tmp_path / "t"), mode).run(not_called)
    assert (again.version, again.outcome) == (first.version, "recovered")
    assert a_step(DeltaTable(tmp_path / "t"), mode, version=0).run(not_called).outcome == "fenced"
    assert days(table) == ["a", "b"]


def test_a_later_run_does_what_its_mode_says(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    a_step(table, options={"partition_by": ["day"]}).run(lambda: rows("a", "b"))
    a_step(table, version=2).run(lambda: rows("a", "a", "b"))
    assert days(table) == ["a", "a", "b"]
    a_step(table, "overwrite_partitions", version=3).run(lambda: rows("a", "c"))
    assert days(table) == ["a", "c"]
    a_step(table, "overwrite", version=4, where="day = 'c'").run(lambda: rows("c", "c"))
    assert days(table) == ["a", "c", "c"]
    with pytest.raises(ConstraintViolationError):
        a_step(table, "overwrite", version=5, where="day = 'c'").run(lambda: rows("d"))
    a_step(table, "overwrite", version=5).run(lambda: rows("z"))
    assert days(table) == ["z"]


def test_error_and_ignore_look_before_anything_is_computed(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.create(pa.schema([("day", pa.string()), ("n", pa.int64())]), partition_by=["day"])
    with pytest.raises(TableExistsError, match="Task x found a table"):
        a_step(table, "error", creates_only=True).run(not_called)
    here, there = (Comparison("=", Column(("day",)), Literal(day)) for day in "ab")
    assert a_step(table, "error", where=here).run(lambda: rows("a")).outcome == "written"
    ignored = a_step(table, "ignore", version=2, where=here).run(not_called)
    assert (ignored.outcome, ignored.commit) == ("nothing new", None)
    with pytest.raises(TableExistsError, match="Task x found data"):
        a_step(table, "error", version=2, where=here).run(not_called)
    assert a_step(table, "ignore", version=2, where=there, on_redo="add").run(lambda: rows("b")).outcome == "written"


def test_none_is_not_an_empty_result(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="Task x returned None"):
        a_step(DeltaTable(tmp_path / "t")).run(lambda: None)
    assert not DeltaTable(tmp_path / "t").exists()


def test_partitions_that_are_recorded_are_left_out(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    scopes = {day: Comparison("=", Column(("day",)), Literal(day)) for day in "ab"}

    def run(created: int, *keys: str) -> StepReport:
        attempt = Attempt(tuple(Unit("w", key, scopes[key]) for key in keys), created, "r")
        written = rows(*keys).set_column(1, "n", pa.array([created] * len(keys), pa.int64()))
        step = a_step(table, "overwrite_partitions", attempt=attempt, options={"partition_by": ["day"]})
        return step.run(lambda: written)

    run(2, "b")
    late = run(1, "a", "b")
    assert (late.outcome, late.left_out) == ("written", ("w:b",))
    assert table.snapshot().scan().to_arrow().sort_by("day").column("n").to_pylist() == [1, 2]


def test_the_report_is_of_its_own_version(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    report = a_step(table).run(lambda: rows("a"))
    table.append(rows("b"))
    assert (report.version, report.snapshot().version) == (0, 0)


def test_the_sentence_says_how_many_rows_were_written(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    written = a_step(table).run(lambda: rows("a", "b"))
    other = Attempt((Unit("w", "other"),), 1, "r")
    merged = a_step(table, "merge", attempt=other, merge_keys=("day",)).run(lambda: rows("b", "c", "d"))
    assert written.sentence() == f"Written: 2 rows, version 0 of {table.uri}"
    assert merged.sentence() == f"Written: 2 inserted, 1 updated, version 1 of {table.uri}"


@pytest.mark.parametrize("until_current", [False, True])
def test_changes_are_processed_batch_by_batch(tmp_path: Path, until_current: bool) -> None:
    source, target = DeltaTable(tmp_path / "source"), DeltaTable(tmp_path / "target")
    for day in "abc":
        source.append(rows(day), partition_by=["day"])
    reader = IncrementalReader(source, target, bootstrap="changes", max_versions=1)
    step = Step("Task x", target, "overwrite_changed", options={"partition_by": ["day"]})
    report = step.process(reader, lambda batch: batch.scan().to_arrow(), until_current=until_current)
    assert [batch.ending_version for batch in report.batches] == ([0, 1, 2] if until_current else [0])
    assert days(target) == (["a", "b", "c"] if until_current else ["a"])
    step.process(reader, lambda batch: batch.scan().to_arrow(), until_current=True)
    nothing = step.process(reader, not_called)
    assert (nothing.outcome, nothing.batches) == ("nothing new", ())
    source.overwrite(rows(), replace_where="day = 'b'")
    step.process(reader, lambda batch: batch.scan().to_arrow())
    assert days(target) == ["a", "c"]


def test_touched_partitions_of_a_source_without_any(tmp_path: Path) -> None:
    source, target = DeltaTable(tmp_path / "source"), DeltaTable(tmp_path / "target")
    source.append(rows("a"))
    target.append(rows("kept"))
    with pytest.raises(InvalidRequestError, match="needs a partitioned source"):
        Step("Task x", target, "overwrite_changed").process(IncrementalReader(source, target), not_called)
    assert days(target) == ["kept"]


def test_integers_with_a_null_of_pandas_fit_a_column_of_integers(tmp_path: Path) -> None:
    import pandas as pd

    table = DeltaTable(tmp_path / "t")
    table.create(pa.schema([("n", pa.int64()), ("s", pa.string())]))
    step = Step("A step", table)
    step.run(lambda: pd.DataFrame({"n": [1, None], "s": [None, None]}))
    assert sorted(table.snapshot().scan().to_arrow()["n"].to_pylist(), key=str) == [1, None]
    for values in ([1.5, None], [2.0**60, None], [1.0, 2.0]):
        frame = pd.DataFrame({"n": values, "s": ["x", "y"]})
        with pytest.raises(SchemaMismatchError):
            step.run(frame.copy)
    assert table.version() == 1


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_column_of_a_frame_without_a_value_makes_no_column(tmp_path: Path, mode: Mode, library: str) -> None:
    frames = pytest.importorskip(library, reason=f"{library} is not installed")
    table = DeltaTable(tmp_path / "t")
    no_type = "columns s of the frame have no type"
    with pytest.raises(SchemaMismatchError, match=no_type):
        Step("A step", table, mode).run(lambda: frames.DataFrame({"n": [1], "s": [None]}))
    assert not table.exists()
    table.append(pa.table({"n": [1], "t": ["a"]}))
    with pytest.raises(SchemaMismatchError, match=no_type):
        Step("A step", table, mode, schema_mode="merge").run(
            lambda: frames.DataFrame({"n": [2], "t": [None], "s": [None]})
        )
    Step("A step", table, mode, schema_mode="merge").run(lambda: frames.DataFrame({"n": [2], "t": [None]}))
    assert [field.name for field in table.snapshot().schema] == ["n", "t"]
    # What an op hands over is for this run alone.
    handed = DeltaTable(tmp_path / "handed")
    Step("A step", handed, mode, owner=OPS).run(lambda: frames.DataFrame({"n": [1], "s": [None]}))
    assert handed.snapshot().scan().to_arrow().to_pylist() == [{"n": 1, "s": None}]


def test_a_pandas_frame_without_rows_fits_every_table(tmp_path: Path) -> None:
    """pandas calls a column without values whatever it likes."""
    pd = pytest.importorskip("pandas")
    table = DeltaTable(tmp_path / "t")
    table.append(ROWS)
    for frame in (pd.DataFrame({"n": [], "day": []}), pd.DataFrame(columns=["day", "n"]), pd.DataFrame({"n": []})):
        Step("A step", table, "append").run(frame.copy)
        a_step(table, "overwrite", version=table.version() + 5, where="n > 7").run(frame.copy)
    assert table.snapshot().scan().to_arrow().num_rows == 2
    with pytest.raises(SchemaMismatchError, match="other"):
        Step("A step", table, "append").run(lambda: pd.DataFrame({"other": []}))
    with pytest.raises(SchemaMismatchError, match="several columns named n"):
        Step("A step", table, "append").run(lambda: pd.DataFrame([[1, "a", 2]], columns=["n", "day", "n"]))


def test_keys_that_another_writer_adds_during_an_audit_are_a_conflict(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": [1]}))

    def overtaken(snapshot: object) -> bool:
        DeltaTable(table.uri).append(pa.table({"id": [2]}))
        return True

    step = Step("keys", table, mode="append", audits=as_audits([Audit("ids", unique=["id"]), overtaken]))
    with pytest.raises(ConflictError) as caught:
        step.run(lambda: pa.table({"id": [2]}))
    assert caught.value.retryable
    assert sorted(table.snapshot().scan().to_arrow()["id"].to_pylist()) == [1, 2]


def test_an_audit_of_keys_ends_with_the_error_of_the_store(tmp_path: Path) -> None:
    store = FaultStore(DeltaTable(tmp_path / "t").store, watch_data=True)
    table = open_table(store)
    store.instead(("data_open", 0), lambda call, act: store.fail(call))
    with pytest.raises(StorageError, match="data_open"):
        Step("keys", table, audits=as_audits([Audit("ids", unique=["id"])])).run(lambda: pa.table({"id": [1]}))
    assert not table.exists()


def test_audits_of_keys_in_threads_do_not_stand_in_each_others_way(tmp_path: Path) -> None:
    def write(number: int) -> None:
        table = DeltaTable(tmp_path / str(number))
        Step("keys", table, audits=as_audits([Audit("ids", unique=["id"])])).run(lambda: pa.table({"id": [1, 2]}))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(24)))


# Owners

OWNERS = [asset_owner(["a", "t"]), asset_owner(["b"]), INCREMENTAL, AIRFLOW, OPS]


@pytest.mark.parametrize("audits", [(), (Audit("some", min_rows=1),)])
@pytest.mark.parametrize("other", OWNERS)
@pytest.mark.parametrize("owner", OWNERS)
def test_the_owner_of_a_table_replaces_its_rows(
    tmp_path: Path, owner: str, other: str, audits: tuple[Audit, ...]
) -> None:
    """A table that is there already is claimed by the first that replaces rows of it; a new one by who creates it."""
    for place, exists in (("new", False), ("old", owner != OPS)):
        table = DeltaTable(tmp_path / place)
        if exists:
            table.append(rows("x"))
        a_step(table, "overwrite", owner=owner, audits=audits).run(lambda: rows("a"))
        assert (days(table), table.snapshot().properties.owner) == (["a"], owner)
        version = table.version()
        step = a_step(table, "overwrite", 2, owner=other)
        if other == owner:
            step.run(lambda: rows("b"))
            assert (days(table), table.version()) == (["b"], version + 1)
            continue
        with pytest.raises(InvalidRequestError, match=f"(?s)not for {other} to write.*belongs to {owner}"):
            step.run(not_called)
        added = a_step(table, "append", owner=other, attempt=Attempt((Unit("w", "other"),), 2, "r"))
        if OPS in (owner, other):
            with pytest.raises(InvalidRequestError, match=f"belongs to {owner}"):
                added.run(not_called)
            assert (days(table), table.version()) == (["a"], version)
        else:
            added.run(lambda: rows("b"))
            assert days(table) == ["a", "b"]


def test_a_table_is_claimed_while_others_change_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write stands. The table is claimed by the next one."""
    table = DeltaTable(tmp_path / "t")
    table.append(rows("x"))
    alter = DeltaTable.alter

    def overtaken(self: DeltaTable) -> Any:
        prepared = alter(self)
        alter(self).set_properties({"delta.appendOnly": "false"}).commit()
        return prepared

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "alter", overtaken)
        assert a_step(table, "overwrite", owner=AIRFLOW).run(lambda: rows("a")).has_written
    assert days(table) == ["a"]
    a_step(table, "overwrite", 2, owner=AIRFLOW).run(lambda: rows("b"))
    assert (days(table), table.snapshot().properties.owner) == (["b"], AIRFLOW)
