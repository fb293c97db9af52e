"""Files that the steps of orchestrators load: a unit that is done again replaces exactly what it brought."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from delta_orch import DeltaTable, Expect, FileSource
from delta_orch.delta_table import TableSnapshot
from delta_orch.errors import (
    ConcurrentTransactionError,
    ConflictError,
    ConstraintViolationError,
    ExpectationFailedError,
    InvalidRequestError,
    RedoNotPossibleError,
)
from delta_orch.log.write.commit_options import CommitResult
from delta_orch.pipeline import step as step_of_all
from delta_orch.pipeline.incremental import FileBatch, FileReader
from delta_orch.pipeline.incremental_step import IncrementalStep
from delta_orch.pipeline.target_table import publish_now
from delta_orch.pipeline.unit import Attempt, StepReport, Unit
from delta_orch.staged_write import StagedWrite
from delta_orch.testing import Moment, open_table
from delta_orch.testing.failing_store import When
from delta_orch.verbs.change_events import Changes
from delta_orch.verbs.expect import Expectations
from tests.arrival.landing import Landing, ids_of
from tests.arrival.test_arrival_killed import Killed, dying
from tests.harness.fault_store import FaultStore


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    made = Landing(tmp_path / "landing")
    made.put("a.json", 1, 2)
    made.put("b.json", 3)
    return made


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    return DeltaTable(tmp_path / "table")


def load(table: DeltaTable, source: FileSource, part: str, order: int, mode: Any = "append", **how: Any) -> StepReport:
    refresh = how.pop("full_refresh", False)
    attempt = Attempt((Unit("airflow:dag.load", part),), order, f"run {order}")
    step = IncrementalStep("load", table, mode, attempt=attempt, **how)
    reader = FileReader(source, table, unit_column=how.get("unit_column"))
    return step.process(
        reader,
        lambda batch: batch.rows(as_table=True) if isinstance(batch, FileBatch) else None,
        until_current=True,
        full_refresh=refresh,
    )


WAYS = [{}, {"unit_column": "load_id"}]


@pytest.mark.parametrize("how", WAYS)
def test_a_unit_that_is_done_again_replaces_what_it_brought(
    landing: Landing, table: DeltaTable, how: dict[str, str]
) -> None:
    source = landing.source(max_files=1)
    assert load(table, source, "monday", 1, **how).outcome == "written"
    assert load(table, source, "monday", 1, **how).outcome == "recovered"
    landing.put("c.json", 4)
    assert load(table, source, "tuesday", 2, **how).outcome == "written"
    # Corrected files. Those of another unit are not read.
    landing.put("a.json", 10, 20)
    landing.put("c.json", 40)
    again = load(table, landing.source(on_changed="ignore"), "monday", 3, **how)
    assert (again.outcome, again.rows_replaced, ids_of(table)) == ("replaced", 3, [3, 4, 10, 20])
    assert load(table, landing.source(on_changed="ignore"), "monday", 2, **how).outcome == "fenced"
    assert load(table, landing.source(on_changed="ignore"), "tuesday", 4, **how).outcome == "replaced"
    assert ids_of(table) == [3, 10, 20, 40]
    # The record has the files as they were read.
    assert load(table, landing.source(), "wednesday", 5, **how).outcome == "nothing new"
    # A redo brings what has come since, too, as the unit is not late.
    landing.put("d.json", 5)
    assert load(table, landing.source(), "monday", 6, **how).outcome == "replaced"
    assert ids_of(table) == [3, 5, 10, 20, 40]
    assert load(table, landing.source(), "monday", 7, **how).outcome == "replaced"
    assert ids_of(table) == [3, 5, 10, 20, 40]


def test_a_redo_whose_files_are_gone_is_refused(landing: Landing, table: DeltaTable) -> None:
    load(table, landing.source(), "monday", 1)
    (landing.root / "a.json").unlink()
    with pytest.raises(RedoNotPossibleError, match="1 files"):
        load(table, landing.source(), "monday", 2)
    assert load(table, landing.source(), "monday", 2, on_redo="keep").outcome == "recovered"
    assert load(table, landing.source(), "monday", 2, full_refresh=True).outcome == "replaced"
    assert ids_of(table) == [3]
    landing.put("a.json", 1)
    load(table, landing.source(), "tuesday", 3)
    assert ids_of(table) == [1, 3]


@pytest.mark.parametrize("how", WAYS)
def test_a_unit_that_is_undone_was_never_done(landing: Landing, table: DeltaTable, how: dict[str, str]) -> None:
    load(table, landing.source(), "monday", 1, **how)
    landing.put("c.json", 4)
    load(table, landing.source(), "tuesday", 2, **how)
    unit = "airflow:dag.load:monday"
    assert table.undo(unit=unit, dry_run=True).rows_removed == 3
    assert load(table, landing.source(), "wednesday", 3, **how).outcome == "nothing new"
    assert table.undo(unit=unit).rows_removed == 3
    assert ids_of(table) == [4]
    landing.put("d.json", 5)
    load(table, landing.source(), "wednesday", 4, **how)
    assert ids_of(table) == [1, 2, 3, 4, 5]
    table.undo(unit="airflow:dag.load:wednesday")
    ascending = landing.source(names_ascend=True)
    assert load(table, ascending, "wednesday", 4, **how).outcome == "written"
    assert ids_of(table) == [1, 2, 3, 4, 5]
    # Done again, and undone after others.
    landing.put("e.json", 6)
    load(table, landing.source(), "thursday", 5, **how)
    load(table, landing.source(), "wednesday", 6, **how)
    table.undo(unit="airflow:dag.load:wednesday")
    assert ids_of(table) == [4, 6]
    load(table, landing.source(), "friday", 7, **how)
    assert ids_of(table) == [1, 2, 3, 4, 5, 6]


def test_an_undo_beside_a_loader_is_a_conflict(landing: Landing, table: DeltaTable) -> None:
    load(table, landing.source(), "monday", 1)
    landing.put("c.json", 4)
    store = FaultStore(table.store)
    store.at(Moment.COMMIT_PUT, "before", do=lambda call: DeltaTable(table.uri).ingest(landing.source()))
    with pytest.raises(ConcurrentTransactionError):
        open_table(store).undo(unit="airflow:dag.load:monday")
    assert ids_of(table) == [1, 2, 3, 4]


def test_changed_files_take_the_place_of_their_rows(landing: Landing, table: DeltaTable) -> None:
    source = landing.source(source_file=True, on_changed="replace")
    load(table, source, "monday", 1)
    landing.put("a.json", 7)
    landing.put("c.json", 4)
    load(table, source, "tuesday", 2)
    assert ids_of(table) == [3, 4, 7]
    # Monday's part of it is what it still has.
    landing.put("b.json", 30)
    assert load(table, source, "monday", 3).outcome == "replaced"
    assert ids_of(table) == [4, 7, 30]


def test_files_that_are_set_aside(landing: Landing, table: DeltaTable) -> None:
    (landing.root / "c.json").write_text('{"id')
    source = landing.source(on_error="quarantine", source_file=True, on_changed="replace")
    report = load(table, source, "monday", 1)
    (batch,) = report.batches
    assert isinstance(batch, FileBatch)
    assert batch.set_aside["path"].to_pylist() == ["c.json"]
    assert load(table, source, "tuesday", 2).outcome == "nothing new"
    landing.put("c.json", 4)
    (landing.root / "a.json").write_text('{"id')
    load(table, source, "tuesday", 2)
    assert ids_of(table) == [1, 2, 3, 4]


def test_merge_and_overwrite(landing: Landing, table: DeltaTable, tmp_path: Path) -> None:
    load(table, landing.source(), "monday", 1, "merge", merge_keys=("id",))
    landing.put("c.json", 1, 4)
    load(table, landing.source(), "tuesday", 2, "merge", merge_keys=("id",))
    assert ids_of(table) == [1, 2, 3, 4]
    files = dict(zip(*table.snapshot().scan(["id", "file"]).to_arrow().to_pydict().values(), strict=True))
    assert files[1] == "c.json"
    # A redo reads what came later, too, so that an older row does not win: here two files have the same key.
    with pytest.raises(ConstraintViolationError):
        load(table, landing.source(), "monday", 3, "merge", merge_keys=("id",))
    whole = DeltaTable(tmp_path / "whole")
    load(whole, landing.source(), "monday", 1, "overwrite")
    assert load(whole, landing.source(), "tuesday", 2, "overwrite").outcome == "nothing new"
    landing.put("d.json", 5)
    (landing.root / "b.json").unlink()
    load(whole, landing.source(), "tuesday", 3, "overwrite")
    assert ids_of(whole) == [1, 1, 2, 4, 5]
    with pytest.raises(InvalidRequestError, match="write='overwrite_partitions'"):
        load(whole, landing.source(), "tuesday", 4, "overwrite_partitions")


@pytest.mark.parametrize("scd", [1, 2])
def test_change_events(landing: Landing, table: DeltaTable, scd: int) -> None:
    changes = Changes(sequence_by=("at",), scd=scd, delete_when="op = 'd'", except_columns=("op",))

    def put(name: str, *rows: dict[str, object]) -> None:
        (landing.root / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def apply(part: str, order: int) -> list[int]:
        load(table, landing.source(pattern="c*"), part, order, "cdc", merge_keys=("id",), changes=changes)
        now = "_deleted_at IS NULL" if scd == 1 else "valid_to IS NULL"
        return sorted(table.snapshot().scan(["id"], where=now).to_arrow()["id"].to_pylist())

    put("c2.json", {"id": 1, "at": 5, "op": "d"}, {"id": 2, "at": 5, "op": "u"})
    assert apply("monday", 1) == [2]
    put("c1.json", {"id": 1, "at": 1, "op": "u"}, {"id": 3, "at": 1, "op": "u"})
    assert apply("tuesday", 2) == [2, 3]
    assert apply("monday", 3) == [2, 3]


POSITIVE = Expectations({"id is positive": Expect("id > 0")})


def quarantined(where: Path | DeltaTable) -> list[tuple[int, str]]:
    """The rows of the quarantine: the id, and the name of the file."""
    table = DeltaTable(where.uri if isinstance(where, DeltaTable) else where).quarantine()
    rows = table.snapshot().scan(["row", "source_file"]).to_arrow().to_pylist() if table.exists() else []
    return sorted((json.loads(row["row"])["id"], row["source_file"].rpartition("/")[2]) for row in rows)


@pytest.mark.parametrize("how", WAYS)
def test_rows_that_break_a_rule_go_to_the_quarantine_once(
    landing: Landing, table: DeltaTable, how: dict[str, str]
) -> None:
    source = landing.source(max_files=1, source_file=True)
    landing.put("a.json", 1, -2)
    landing.put("b.json", 3, -4)
    report = load(table, source, "monday", 1, expect=POSITIVE, **how)
    assert report.expected is not None
    assert (report.expected.num_rows, report.expected.num_quarantined) == (4, 2)
    assert (ids_of(table), quarantined(table)) == ([1, 3], [(-4, "b.json"), (-2, "a.json")])
    landing.put("c.json", -5, 6)
    load(table, source, "tuesday", 2, expect=POSITIVE, **how)
    landing.put("a.json", -10, 20)
    load(table, landing.source(source_file=True, on_changed="ignore"), "monday", 3, expect=POSITIVE, **how)
    expected = [(-10, "a.json"), (-5, "c.json"), (-4, "b.json")]
    assert (ids_of(table), quarantined(table)) == ([3, 6, 20], expected)
    landing.put("d.json", -7, 8)
    with pytest.raises(ExpectationFailedError):
        load(table, landing.source(source_file=True), "wednesday", 4, expect=replace(POSITIVE, max_quarantined=0))
    assert (ids_of(table), quarantined(table)) == ([3, 6, 20], expected)


def test_a_step_that_stages_its_rows_may_be_retried_after_a_conflict(
    landing: Landing, table: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = landing.source(pattern="c*", source_file=True)
    changes = Changes(sequence_by=("at",), except_columns=("source_file",))

    def apply(part: str, order: int) -> StepReport:
        return load(table, source, part, order, "cdc", merge_keys=("id",), changes=changes, expect=POSITIVE)

    def publish_late(staged: StagedWrite[TableSnapshot], **options: bool) -> CommitResult:
        monkeypatch.undo()
        table.update({"at": "2"}, where="id = 1")
        return publish_now(staged, **options)

    (landing.root / "c1.json").write_text('{"id": 1, "at": 1}')
    apply("sunday", 0)
    (landing.root / "c2.json").write_text('{"id": 1, "at": 3}\n{"id": -5, "at": 3}')
    monkeypatch.setattr(step_of_all, "publish_now", publish_late)
    with pytest.raises(ConflictError) as lost:
        apply("monday", 1)
    assert lost.value.retryable
    assert apply("monday", 1).outcome == "written"
    assert (table.snapshot().scan(["at"]).to_arrow()["at"].to_pylist(), quarantined(table)) == ([3], [(-5, "c2.json")])


@pytest.mark.parametrize(
    ("is_redo", "when"),
    [
        (False, "after"),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [(False, "before"), (True, "before"), (True, "after")]
        ),
    ],
)
def test_a_load_with_a_quarantine_that_dies_at_any_call(
    tmp_path: Path, landing: Landing, is_redo: bool, when: When
) -> None:
    number, source = 0, landing.source(source_file=True, on_changed="ignore")
    while True:
        path, order = tmp_path / f"table{number}", 2 if is_redo else 1
        landing.put("a.json", 1, -2)
        if is_redo:
            load(DeltaTable(path), source, "monday", 1, expect=POSITIVE)
            landing.put("a.json", 5, -6)
        try:
            load(dying(path, number, when), source, "monday", order, expect=POSITIVE)
        except Killed:
            pass
        else:
            break
        load(DeltaTable(path), source, "monday", order, expect=POSITIVE)
        assert ids_of(path) == ([3, 5] if is_redo else [1, 3])
        assert quarantined(path) == ([(-6, "a.json")] if is_redo else [(-2, "a.json")])
        assert DeltaTable(path).ingest(source).commits == ()
        number += 1
    assert number > 10


def test_a_quarantine_dies_with_its_process(tmp_path: Path, landing: Landing) -> None:
    """The quarantine has a store of its own: its process dies at each of its calls, too."""
    landing.put("a.json", 1, -2)
    source, number = landing.source(source_file=True), 0
    while True:
        path = tmp_path / f"table{number}"
        quarantine = dying(tmp_path / f"table{number}_quarantine", number, "after")
        try:
            load(DeltaTable(path), source, "monday", 1, expect=POSITIVE, quarantine=quarantine)
        except Killed:
            pass
        else:
            break
        # More files are there when the step runs again.
        landing.put("c.json", 4, -5)
        load(DeltaTable(path), source, "monday", 1, expect=POSITIVE)
        assert (ids_of(path), quarantined(path)) == ([1, 3, 4], [(-5, "c.json"), (-2, "a.json")])
        (landing.root / "c.json").unlink()
        number += 1
    assert number > 3


@pytest.mark.long
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("how", WAYS)
def test_a_redo_that_dies_at_any_call(tmp_path: Path, landing: Landing, when: When, how: dict[str, str]) -> None:
    number, outcomes = 0, set()
    while True:
        path = tmp_path / f"table{number}"
        landing.put("a.json", 1, 2)
        load(DeltaTable(path), landing.source(), "monday", 1, **how)
        landing.put("a.json", 100 + number)
        try:
            load(dying(path, number, when), landing.source(), "monday", 2, **how)
        except Killed:
            pass
        else:
            break
        assert ids_of(path) in ([1, 2, 3], [3, 100 + number])
        outcomes.add(load(DeltaTable(path), landing.source(), "monday", 2, **how).outcome)
        assert ids_of(path) == [3, 100 + number]
        assert DeltaTable(path).ingest(landing.source()).commits == ()
        number += 1
    assert outcomes == {"replaced", "recovered"}
