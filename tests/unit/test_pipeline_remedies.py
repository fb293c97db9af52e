"""The remedy of each refusal of a pipeline step, carried out as its message says it. Those that an orchestrator gives
are in `test_airflow_remedies` and `test_dagster_units`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import AuditFailedError, DeltaError, StagedWriteGoneError
from delta_orch.pipeline.audit import as_audits
from delta_orch.pipeline.incremental import ChangeBatch, IncrementalReader
from delta_orch.pipeline.incremental_step import IncrementalStep
from delta_orch.pipeline.maintenance import retention_hours_for
from delta_orch.pipeline.step import Mode, Step
from delta_orch.pipeline.unit import Attempt, Unit
from delta_orch.verbs.change_events import Changes


def ids(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64()), "w": ["x"] * len(values)})


def ids_of(table: DeltaTable) -> list[int]:
    return sorted(table.snapshot().scan(["id"]).to_arrow().column("id").to_pylist())


def step(table: DeltaTable, mode: Mode = "append", order: int = 1, *parts: str, **more: Any) -> Step:
    units = tuple(Unit("job", part) for part in parts or ("monday",))
    return Step("the step", table, mode, attempt=Attempt(units, order, "r"), **more)


def remedy_of(run: Callable[[], object]) -> str:
    """The last line of the message of a refusal."""
    with pytest.raises(DeltaError) as caught:
        run()
    error = caught.value
    assert error.remedy is not None and str(error).splitlines()[-1].rstrip(".") == error.remedy.rstrip(".")
    return error.remedy


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    return DeltaTable(tmp_path / "t")


@pytest.fixture
def source(tmp_path: Path) -> DeltaTable:
    return DeltaTable(tmp_path / "s")


@pytest.mark.parametrize("order", [1, 2], ids=["retry", "done again"])
def test_rows_that_did_not_pass_an_audit(table: DeltaTable, order: int) -> None:
    audits = as_audits({"positive": "id > 0"})
    step(table, order=0, audits=audits).run(lambda: ids(7))
    with pytest.raises(AuditFailedError) as caught:
        step(table, "append", 1, "tuesday", audits=audits).run(lambda: ids(1, -2))
    assert caught.value.remedy is not None
    # "Nothing was committed. DeltaTable(…).staged(…).snapshot() has the rows"
    assert (table.version(), ids_of(table)) == (0, [7])
    command = caught.value.remedy.removeprefix("Nothing was committed. ").partition(" has the rows")[0]
    seen = eval(command, {"DeltaTable": DeltaTable}).scan().to_arrow().column("id").to_pylist()
    assert sorted(seen) == [-2, 1, 7]
    # "correct them and run the step again"
    report = step(table, "append", order, "tuesday", audits=audits).run(lambda: ids(1, 2))
    assert (report.outcome, ids_of(table)) == ("written", [1, 2, 7])
    # "until vacuum deletes them"
    table.vacuum(retention_hours=0, enforce_retention=False)
    with pytest.raises(StagedWriteGoneError):
        eval(command, {"DeltaTable": DeltaTable}).scan().to_arrow()
    assert ids_of(table) == [1, 2, 7]


@pytest.mark.parametrize("way", ["schema_mode", "add_columns"])
def test_a_unit_column_that_the_table_does_not_have(table: DeltaTable, way: str) -> None:
    table.append(ids(1))
    named: dict[str, Any] = {"unit_column": "load_id"}
    remedy = remedy_of(lambda: step(table, **named).run(lambda: ids(2)))
    schema_mode, _, command = remedy.partition(", or add it: ")
    if way == "schema_mode":
        assert schema_mode == "Pass schema_mode='merge'"
        named["schema_mode"] = "merge"
    else:
        eval(command, {"DeltaTable": DeltaTable})
    assert step(table, **named).run(lambda: ids(2)).outcome == "written"
    assert step(table, "append", 2, **named).run(lambda: ids(3)).outcome == "replaced"
    assert ids_of(table) == [1, 3]


def test_rows_that_do_not_name_their_unit(table: DeltaTable) -> None:
    table.append(ids(1).append_column("load_id", [["other"]]))
    step(table).run(lambda: ids(2))
    named = step(table, "append", 2, unit_column="load_id")
    undo = remedy_of(lambda: named.run(lambda: ids(3)))
    assert undo.startswith("Undo them: ") and undo.endswith("; then run the step again")
    eval(undo.removeprefix("Undo them: ").removesuffix("; then run the step again"), {"DeltaTable": DeltaTable})
    assert ids_of(table) == [1]
    assert named.run(lambda: ids(3)).outcome == "written"
    assert step(table, "append", 3, unit_column="load_id").run(lambda: ids(4)).outcome == "replaced"
    assert ids_of(table) == [1, 4]


@pytest.mark.parametrize(("mode", "parts"), [("merge", ["monday"]), ("append", ["monday", "tuesday"])])
def test_a_unit_column_that_does_not_fit_is_left_out(table: DeltaTable, mode: Mode, parts: list[str]) -> None:
    table.append(ids(1))
    keys: dict[str, Any] = {"merge_keys": ("id",)} if mode == "merge" else {}
    remedy = remedy_of(lambda: step(table, mode, 1, *parts, unit_column="load_id", **keys).run(lambda: ids(2)))
    assert "eave" in remedy and "out" in remedy
    assert step(table, mode, 1, *parts, **keys).run(lambda: ids(2)).outcome == "written"
    assert ids_of(table) == [1, 2]
    if mode == "append":
        # "Run one partition at a time"
        one = step(table, "append", 2, "friday", unit_column="load_id", schema_mode="merge")
        assert one.run(lambda: ids(3)).outcome == "written"


@pytest.mark.parametrize(("mode", "expected"), [("overwrite", [2]), ("ignore", [1]), ("append", [1, 2])])
def test_data_where_there_must_be_none(table: DeltaTable, mode: Mode, expected: list[int]) -> None:
    table.append(ids(1))
    assert f"'{mode}'" in remedy_of(lambda: step(table, "error").run(lambda: ids(2)))
    step(table, mode).run(lambda: ids(2))
    assert ids_of(table) == expected


def incremental(target: DeltaTable, mode: Mode, order: int = 1, part: str = "monday", **more: Any) -> IncrementalStep:
    units = (Unit("job", part),)
    return IncrementalStep("the step", target, mode, attempt=Attempt(units, order, "r"), **more)


def inserted(batch: ChangeBatch) -> object:
    return batch.inserted().to_arrow()


def scanned(batch: ChangeBatch) -> object:
    return batch.scan().to_arrow()


@pytest.mark.parametrize(("mode", "rows"), [("append", inserted), ("merge", scanned), ("overwrite", scanned)])
def test_partitions_that_changed_of_a_source_without_any(
    source: DeltaTable, table: DeltaTable, mode: Mode, rows: Callable[[ChangeBatch], object]
) -> None:
    source.append(ids(1))
    reader = IncrementalReader(source, table)
    step = incremental(table, "overwrite_changed")
    assert mode in remedy_of(lambda: step.process(reader, scanned))
    assert not table.exists()
    keys: dict[str, Any] = {"merge_keys": ("id",)} if mode == "merge" else {}
    for part, id in (("monday", 1), ("tuesday", 2)):
        if id > 1:
            source.append(ids(id))
        incremental(table, mode, part=part, **keys).process(reader, rows)
    assert ids_of(table) == [1, 2]


@pytest.mark.parametrize("way", ["partition_by", "append", "merge", "overwrite"])
def test_partitions_of_a_table_without_any(source: DeltaTable, table: DeltaTable, way: Any) -> None:
    source.append(ids(1))
    reader = IncrementalReader(source, table)
    remedy = remedy_of(lambda: incremental(table, "overwrite_partitions").process(reader, scanned))
    assert way in remedy
    ways: dict[str, dict[str, Any]] = {
        "partition_by": {"mode": "overwrite_partitions", "options": {"partition_by": ["id"]}},
        "merge": {"mode": "merge", "merge_keys": ("id",)},
    }
    rows = inserted if way == "append" else scanned
    incremental(table, **ways.get(way, {"mode": way})).process(reader, rows)
    assert ids_of(table) == [1]


@pytest.mark.parametrize(("mode", "keys"), [("merge", ["id"]), ("overwrite_partitions", [])])
def test_partitions_that_changed_of_several_sources(
    source: DeltaTable, table: DeltaTable, tmp_path: Path, mode: Mode, keys: list[str]
) -> None:
    other = DeltaTable(tmp_path / "other")
    readers = {}
    for number, (name, one) in enumerate({"s": source, "other": other}.items()):
        one.append(ids(number), partition_by=["id"])
        readers[name] = IncrementalReader(one, table, consumer=f"job/{name}")

    def both(batches: Any) -> object:
        return pa.concat_tables([batch.scan().to_arrow() for batch in batches.values()])

    options: Any = {"partition_by": ["id"]}
    changed = incremental(table, "overwrite_changed", options=options)
    assert mode in remedy_of(lambda: changed.process_all(readers, both))
    incremental(table, mode, options=options, merge_keys=tuple(keys)).process_all(readers, both)
    assert ids_of(table) == [0, 1]


def test_a_unit_that_does_not_say_what_it_has_read(source: DeltaTable, table: DeltaTable) -> None:
    source.append(ids(1))
    # The unit was no incremental one.
    step(table, order=1).run(lambda: ids(9))
    again = incremental(table, "append", 2)
    reader = IncrementalReader(source, table)
    assert remedy_of(lambda: again.process(reader, inserted)) == "Run the step with full_refresh"
    assert again.process(reader, lambda batch: batch.inserted().to_arrow(), full_refresh=True).outcome == "written"
    assert ids_of(table) == [1]
    source.append(ids(2))
    incremental(table, "append", 3, "tuesday").process(reader, inserted)
    assert ids_of(table) == [1, 2]


def test_versions_of_rows_are_refreshed_in_a_new_table(source: DeltaTable, table: DeltaTable, tmp_path: Path) -> None:
    source.append(pa.table({"id": [1], "at": [1]}))
    more: dict[str, Any] = {"merge_keys": ("id",), "changes": Changes("at", scd=2)}
    incremental(table, "cdc", **more).process(IncrementalReader(source, table), scanned)
    refresh = incremental(table, "cdc", 2, **more)
    remedy = remedy_of(lambda: refresh.process(IncrementalReader(source, table), scanned, full_refresh=True))
    assert remedy == "Apply the events to a new table"
    new = DeltaTable(tmp_path / "new")
    incremental(new, "cdc", 2, **more).process(IncrementalReader(source, new), scanned)
    assert (ids_of(new), ids_of(table)) == ([1], [1])


def test_a_table_that_two_steps_fill_is_refreshed_by_hand(
    source: DeltaTable, table: DeltaTable, tmp_path: Path
) -> None:
    other = DeltaTable(tmp_path / "other")
    source.append(ids(1))
    other.append(ids(100))

    def fill(name: str, one: DeltaTable, order: int, **how: Any) -> Any:
        attempt = Attempt((Unit(name, "monday"),), order, "r")
        reader = IncrementalReader(one, table, consumer=name)
        return IncrementalStep(name, table, attempt=attempt).process(reader, inserted, **how)

    fill("a", source, 1)
    fill("b", other, 1)
    source.delete("id = 1")
    source.append(ids(2))
    remedy = remedy_of(lambda: fill("a", source, 2, full_refresh=True))
    assert remedy.endswith("delete this step's rows, and undo its units")
    table.delete("id < 100")
    table.undo(unit="a:monday")
    assert ids_of(table) == [100]
    # "refresh by hand"
    fill("a", source, 3)
    assert ids_of(table) == [2, 100]


@pytest.mark.parametrize("way", ["Restore the source", "fill a new table from it"])
def test_a_source_that_is_older_than_what_was_read(
    source: DeltaTable, table: DeltaTable, tmp_path: Path, way: str
) -> None:
    source.append(ids(1))
    shutil.copytree(tmp_path / "s", tmp_path / "old")
    source.append(ids(2))
    incremental(table, "append").process(IncrementalReader(source, table), inserted)
    shutil.copytree(tmp_path / "s", tmp_path / "new")
    shutil.rmtree(tmp_path / "s")
    shutil.copytree(tmp_path / "old", tmp_path / "s")
    older = DeltaTable(tmp_path / "s")
    later = incremental(table, "append", 1, "tuesday")
    assert way in remedy_of(lambda: later.process(IncrementalReader(older, table), inserted))
    if way == "Restore the source":
        shutil.rmtree(tmp_path / "s")
        shutil.copytree(tmp_path / "new", tmp_path / "s")
        newer = DeltaTable(tmp_path / "s")
        assert later.process(IncrementalReader(newer, table), inserted).outcome == "nothing new"
        assert ids_of(table) == [1, 2]
    else:
        # A refresh could not move the cursor back.
        refresh = remedy_of(lambda: later.process(IncrementalReader(older, table), inserted, full_refresh=True))
        assert way in refresh
        new = DeltaTable(tmp_path / "filled")
        incremental(new, "append", 1, "tuesday").process(IncrementalReader(older, new), inserted)
        older.append(ids(3))
        incremental(new, "append", 1, "friday").process(IncrementalReader(older, new), inserted)
        assert (ids_of(new), ids_of(table)) == ([1, 3], [1, 2])


@pytest.mark.parametrize("bootstrap", ["snapshot", "changes"])
def test_a_first_run_that_was_not_allowed(source: DeltaTable, table: DeltaTable, bootstrap: Any) -> None:
    source.append(ids(1))
    refused = IncrementalReader(source, table, bootstrap="error")
    assert f"'{bootstrap}'" in remedy_of(lambda: incremental(table, "append").process(refused, inserted))
    incremental(table, "append").process(IncrementalReader(source, table, bootstrap=bootstrap), inserted)
    source.append(ids(2))
    incremental(table, "append", part="tuesday").process(refused, inserted)
    assert ids_of(table) == [1, 2]


def test_a_log_that_was_cleaned_up_before_it_was_read(source: DeltaTable, table: DeltaTable, tmp_path: Path) -> None:
    source.append(ids(1))
    reader = IncrementalReader(source, table)
    incremental(table, "append").process(reader, inserted)
    source.append(ids(2))
    source.append(ids(3))
    source.checkpoint()
    for version in (0, 1):
        (tmp_path / "s" / "_delta_log" / f"{version:020d}.json").unlink()
    later = incremental(table, "append", 1, "tuesday")
    assert "full_refresh=True" in remedy_of(lambda: later.process(reader, inserted))
    later.process(reader, inserted, full_refresh=True)
    # "Then raise delta.logRetentionDuration"
    source.alter().set_properties({"delta.logRetentionDuration": "interval 90 days"}).commit()
    source.append(ids(4))
    incremental(table, "append", 1, "friday").process(reader, inserted)
    assert ids_of(table) == [1, 2, 3, 4]


def changed(batch: ChangeBatch) -> object:
    return batch.changes.to_arrow().filter(pc.field("_change_type") == "insert").select(["id", "w"])


@pytest.mark.parametrize("way", ["full_refresh=True", "merge", "overwrite", "batch.changes"])
def test_a_source_that_was_corrected(source: DeltaTable, table: DeltaTable, way: str) -> None:
    source.append(ids(1, 2))
    reader = IncrementalReader(source, table)
    incremental(table, "append").process(reader, inserted)
    source.update({"id": "3"}, "id = 1")
    later = incremental(table, "append", 1, "tuesday")
    assert way in remedy_of(lambda: later.process(reader, inserted))
    if way == "full_refresh=True":
        later.process(reader, inserted, full_refresh=True)
    elif way == "merge":
        incremental(table, "merge", 1, "tuesday", merge_keys=("id",)).process(reader, scanned)
    elif way == "overwrite":
        incremental(table, "overwrite", 1, "tuesday").process(reader, scanned)
    else:
        later.process(reader, changed)
    expected = {"full_refresh=True": [2, 3], "overwrite": [2, 3], "merge": [1, 2, 3]}
    # Without a change data feed, the rows of a file that was rewritten were all inserted.
    assert ids_of(table) == expected.get(way, [1, 2, 2, 3])


@pytest.mark.parametrize("way", ["batch.partitions()", "merge", "overwrite", "batch.snapshot.scan(where=…)"])
def test_rows_of_a_partition_that_the_batch_does_not_touch(source: DeltaTable, table: DeltaTable, way: str) -> None:
    def rows(id: int, day: str) -> pa.Table:
        return pa.table({"id": pa.array([id], pa.int64()), "day": [day]})

    source.append(rows(1, "a"), partition_by=["day"])
    source.append(rows(2, "b"))
    options: Any = {"partition_by": ["day"]}
    reader = IncrementalReader(source, table)
    incremental(table, "overwrite_partitions", options=options).process(reader, scanned)
    source.append(rows(3, "b"))

    def moved(batch: ChangeBatch) -> object:
        _ = batch.scan().to_arrow()
        return rows(3, "a")

    later: dict[str, Any] = {"order": 1, "part": "tuesday", "options": options}
    replaced = incremental(table, "overwrite_partitions", **later)
    assert way in remedy_of(lambda: replaced.process(reader, moved))
    if way == "batch.partitions()":
        replaced.process(reader, scanned)
        assert ids_of(table) == [1, 2, 3]
    elif way == "merge":
        incremental(table, "merge", merge_keys=("id",), **later).process(reader, moved)
        assert ids_of(table) == [1, 2, 3]
    elif way == "overwrite":
        incremental(table, "overwrite", **later).process(reader, scanned)
        assert ids_of(table) == [1, 2, 3]
    else:
        replaced.process(reader, lambda batch: batch.snapshot.scan(where="day IN ('a', 'b')").to_arrow())
        assert ids_of(table) == [1, 2, 3]


@pytest.mark.parametrize("way", ["Run it once", "leave it out"])
def test_a_consumer_that_has_read_nothing(source: DeltaTable, table: DeltaTable, way: str) -> None:
    source.append(ids(1))
    consumers = [table]
    assert way in remedy_of(lambda: retention_hours_for(source, consumers, None))
    if way == "Run it once":
        incremental(table, "append").process(IncrementalReader(source, table), inserted)
    else:
        consumers.remove(table)
    assert retention_hours_for(source, consumers, None) >= 168


BASE = pa.table({"id": [1], "at": [1], "v": ["a"]})
OF_SNAPSHOT = {"full_snapshot": True}
OF_MARKER = {"delete_when": "gone"}
VERSIONS: dict[str, tuple[str, pa.Table, dict[str, Any], pa.Table]] = {
    # What is refused, the remedy, and what the remedy makes of it.
    "own column": (
        "Rename the column",
        BASE.append_column("valid_to", [["x"]]),
        {},
        BASE.append_column("until", [["x"]]),
    ),
    "no marker": ("Columns of the table", BASE, OF_MARKER, BASE.append_column("gone", [[True]])),
    "map": (
        "arrays of structs", BASE.append_column("m", pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))), {},
        BASE.append_column("m", pa.array([[{"key": "k", "value": 1}]])),
    ),
    "sequences": (
        "the same sequence", pa.concat_tables([BASE, pa.table({"id": [2], "at": [2], "v": ["b"]})]), OF_SNAPSHOT,
        pa.concat_tables([BASE, pa.table({"id": [2], "at": [1], "v": ["b"]})]),
    ),
    "a row twice": (
        "Correct the batch", pa.concat_tables([BASE, pa.table({"id": [1], "at": [1], "v": ["b"]})]), {}, BASE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", VERSIONS)
def test_versions_of_rows_that_are_corrected(table: DeltaTable, case: str) -> None:
    words, refused, more, corrected = VERSIONS[case]

    def run(rows: pa.Table) -> Any:
        changes = Changes("at", scd=2, **more)
        return step(table, "cdc", merge_keys=("id",), changes=changes).run(lambda: rows)

    assert words in remedy_of(lambda: run(refused))
    assert not table.exists()
    assert run(corrected).outcome == "written"
    assert set(ids_of(table)) <= set(corrected["id"].to_pylist())


def test_versions_of_rows_in_a_table_of_another_kind(table: DeltaTable, tmp_path: Path) -> None:
    table.append(BASE)

    def run(target: DeltaTable, rows: pa.Table, order: int) -> Any:
        changes = Changes("at", scd=2)
        return step(target, "cdc", order, f"part {order}", merge_keys=("id",), changes=changes).run(lambda: rows)

    assert remedy_of(lambda: run(table, BASE, 1)) == "Write to a new location, where write='cdc' creates the table"
    new = DeltaTable(tmp_path / "new")
    assert run(new, BASE, 1).outcome == "written"
    wider = pa.table({"id": [1], "at": [2], "v": ["b"], "w": ["x"]})
    assert (
        remedy_of(lambda: run(new, wider, 2)) == "Add the column with alter().add_column(), or add it to except_columns"
    )
    assert "Select, rename or cast" in remedy_of(lambda: run(new, wider.select(["id", "at"]), 2))
    assert run(new, wider.drop_columns("w"), 2).outcome == "written"
    new.alter().add_columns("w string").commit()
    assert run(new, wider.set_column(1, "at", [[3]]), 3).outcome == "written"
    assert ids_of(new) == [1, 1, 1]
