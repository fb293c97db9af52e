"""`DeltaTable.ingest`: the rows of each file are in the table once, whatever happens to the table."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from delta_orch import DeltaTable, Expect, FileSource, requeue
from delta_orch.errors import (
    ColumnNotFoundError,
    ConcurrentTransactionError,
    ExpectationFailedError,
    FilesChangedError,
    InvalidRequestError,
    MissingFileError,
    UnreadableFileError,
)
from delta_orch.testing import Moment, open_table
from delta_orch.verbs.expect import Action
from tests.arrival.landing import Landing, ids_of
from tests.harness.fault_store import FaultStore


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    made = Landing(tmp_path / "landing")
    made.put("a.json", 1, 2)
    made.put("sub/b.json", 3)
    return made


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    return DeltaTable(tmp_path / "table")


def test_files_are_loaded_once(landing: Landing, table: DeltaTable) -> None:
    first = table.ingest(landing.source(), partition_by=["file"])
    assert (first.version, first.commits, first.num_files, first.num_rows) == (0, (0,), 2, 3)
    assert table.snapshot().partition_columns == ("file",)
    assert table.ingest(landing.source()).commits == ()
    landing.put("c.json", 4)
    second = table.ingest(landing.source())
    assert (second.commits, second.num_files, second.num_rows) == ((1,), 1, 1)
    assert ids_of(table) == [1, 2, 3, 4]
    (landing.root / "a.json").unlink()
    assert table.ingest(landing.source()).commits == ()


def test_an_empty_location_makes_no_table(tmp_path: Path, table: DeltaTable) -> None:
    result = table.ingest(FileSource(tmp_path / "nowhere", format="json"))
    assert (result.version, result.commits) == (None, ())
    assert not table.exists()


@pytest.mark.parametrize("how", [{"max_files": 1}, {"max_bytes": 1}, {"max_bytes": 60, "order": "modification_time"}])
def test_several_commits_of_one_run(landing: Landing, table: DeltaTable, how: dict[str, object]) -> None:
    landing.put("z.json", *range(10, 20))
    os.utime(landing.root / "z.json", (1, 1))
    source = landing.source(**how)
    assert table.ingest(source, max_commits=1).num_files == 1
    first = [10] if "order" in how else [1]
    assert ids_of(table)[:1] == first
    assert len(table.ingest(source).commits) >= 1
    assert ids_of(table) == [1, 2, 3, *range(10, 20)]


def test_one_look_costs_one_listing(landing: Landing, table: DeltaTable, monkeypatch: pytest.MonkeyPatch) -> None:
    listings: list[str] = []
    listed = FileSource.list_files

    def list_files(source: FileSource, start_path: str = "") -> pa.Table:
        listings.append(start_path)
        return listed(source, start_path)

    monkeypatch.setattr(FileSource, "list_files", list_files)
    assert len(table.ingest(landing.source(max_files=1)).commits) == 2
    assert listings == [""]


def test_names_that_ascend(landing: Landing, table: DeltaTable) -> None:
    source = landing.source(names_ascend=True)
    table.ingest(source)
    landing.put("b.json", 7)
    landing.put("zz.json", 8)
    assert table.ingest(source).num_files == 1
    assert ids_of(table) == [1, 2, 3, 8]


def test_files_that_are_being_written_wait(landing: Landing, table: DeltaTable) -> None:
    landing.put("_started.json", 8)
    landing.put(".hidden/c.json", 8)
    landing.put("c.json.tmp", 8)
    os.utime(landing.root / "a.json", (time.time() - 100, time.time() - 100))
    assert table.ingest(landing.source(settle_seconds=50)).num_files == 1
    assert ids_of(table) == [1, 2]
    # Behind a file that is not complete nothing is loaded where the next look begins behind what was loaded.
    landing.put("0.json", 0)
    assert table.ingest(landing.source(settle_seconds=50, names_ascend=True)).num_files == 0
    table.ingest(landing.source())
    assert ids_of(table) == [0, 1, 2, 3]


def test_changed_files(landing: Landing, table: DeltaTable) -> None:
    table.ingest(landing.source(source_file=True))
    landing.put("a.json", 5, 6, 7)
    with pytest.raises(FilesChangedError, match=r"a\.json"):
        table.ingest(landing.source(source_file=True))
    landing.put("c.json", 9)
    assert table.ingest(landing.source(source_file=True, on_changed="ignore")).num_files == 1
    assert ids_of(table) == [1, 2, 3, 9]
    replacing = landing.source(source_file=True, on_changed="replace")
    result = table.ingest(replacing)
    assert (result.num_files, result.num_rows) == (1, 3)
    assert ids_of(table) == [3, 5, 6, 7, 9]
    assert table.ingest(replacing).commits == ()
    # The same content as at first is a change, too.
    landing.put("a.json", 1, 2)
    table.ingest(replacing)
    assert ids_of(table) == [1, 2, 3, 9]


def test_a_changed_file_of_the_same_size(landing: Landing, table: DeltaTable) -> None:
    table.ingest(landing.source())
    landing.put("a.json", 8, 9)
    os.utime(landing.root / "a.json", (1, 1))
    with pytest.raises(FilesChangedError):
        table.ingest(landing.source())


def test_a_file_that_cannot_be_read_is_set_aside_until_it_changes(landing: Landing, table: DeltaTable) -> None:
    (landing.root / "c.json").write_text('{"id": 1, "fi')
    with pytest.raises(UnreadableFileError, match=r"c\.json"):
        table.ingest(landing.source())
    assert not table.exists()
    source = landing.source(on_error="quarantine", source_file=True, on_changed="replace")
    result = table.ingest(source)
    assert result.set_aside["path"].to_pylist() == ["c.json"]
    assert (result.num_files, ids_of(table)) == (2, [1, 2, 3])
    assert table.ingest(source).set_aside.num_rows == 0
    landing.put("c.json", 4)
    assert table.ingest(source).num_files == 1
    # A file that was loaded and cannot be read any more keeps its rows.
    (landing.root / "c.json").write_text('{"id":')
    assert table.ingest(source).set_aside.num_rows == 1
    assert ids_of(table) == [1, 2, 3, 4]


def test_rows_that_are_deleted_stay_deleted(landing: Landing, table: DeltaTable) -> None:
    table.ingest(landing.source())
    table.delete("id = 1")
    table.overwrite(table.snapshot().scan(where="id = 3").to_arrow())
    assert table.ingest(landing.source()).commits == ()
    assert ids_of(table) == [3]


def ours(table: DeltaTable, version: int) -> None:
    table.restore(version)


def theirs(table: DeltaTable, version: int) -> None:
    deltalake.DeltaTable(table.uri).restore(version)


def of_time(table: DeltaTable, version: int) -> None:
    moment = next(entry.timestamp_ms for entry in table.history() if entry.version == version)
    table.restore(timestamp=f"{moment / 1000:.3f}")


@pytest.mark.parametrize("restore", [ours, theirs])
def test_a_restore_takes_the_record_back(
    landing: Landing, table: DeltaTable, restore: Callable[[DeltaTable, int], None]
) -> None:
    table.ingest(landing.source())
    table.append(table.snapshot().scan(where="id = 1").to_arrow())
    landing.put("c.json", 4)
    table.ingest(landing.source())
    table.optimize()
    restore(table, 1)
    assert ids_of(table) == [1, 1, 2, 3]
    landing.put("d.json", 5)
    assert table.ingest(landing.source()).num_files == 2
    assert ids_of(table) == [1, 1, 2, 3, 4, 5]
    # Forward again, to before the restore; and to a version that stands behind a restore.
    restore(table, 2)
    assert ids_of(table) == [1, 1, 2, 3, 4]
    restore(table, table.version() - 2)
    assert table.ingest(landing.source()).num_files == 2
    assert ids_of(table) == [1, 1, 2, 3, 4, 5]


def test_a_restore_to_before_the_first_file(landing: Landing, table: DeltaTable) -> None:
    table.create("id bigint, file string")
    table.ingest(landing.source())
    theirs(table, 0)
    table.ingest(landing.source())
    ours(table, 0)
    table.ingest(landing.source())
    assert ids_of(table) == [1, 2, 3]


def test_our_restore_of_a_version_behind_a_foreign_one(landing: Landing, table: DeltaTable) -> None:
    table.ingest(landing.source())
    landing.put("c.json", 4)
    table.ingest(landing.source())
    theirs(table, 0)
    table.append(table.snapshot().scan(where="id = 1").to_arrow())
    landing.put("d.json", 5)
    table.ingest(landing.source())
    ours(table, 3)
    table.ingest(landing.source())
    assert ids_of(table) == [1, 1, 2, 3, 4, 5]


def test_a_restore_whose_version_the_log_has_lost_is_refused(landing: Landing, table: DeltaTable) -> None:
    table.ingest(landing.source())
    landing.put("c.json", 4)
    table.ingest(landing.source())
    theirs(table, 0)
    table.checkpoint()
    (Path(table.uri.removeprefix("file://")) / "_delta_log" / f"{0:020d}.json").unlink()
    with pytest.raises(InvalidRequestError, match="restored in version 2"):
        DeltaTable(table.uri).ingest(landing.source())


def test_compaction_vacuum_and_log_cleanup_keep_the_record(landing: Landing, table: DeltaTable) -> None:
    for n in range(4):
        landing.put(f"n{n}.json", 10 + n)
        table.ingest(landing.source())
    table.optimize()
    deltalake.DeltaTable(table.uri).optimize.compact()
    table.vacuum(0, enforce_retention=False)
    deltalake.DeltaTable(table.uri).vacuum(0, enforce_retention_duration=False, dry_run=False, full=True)
    table.checkpoint()
    for commit in range(table.version()):
        (Path(table.uri.removeprefix("file://")) / "_delta_log" / f"{commit:020d}.json").unlink(missing_ok=True)
    again = DeltaTable(table.uri)
    assert again.ingest(landing.source()).commits == ()
    landing.put("late.json", 99)
    assert again.ingest(landing.source()).num_files == 1
    assert ids_of(table) == [1, 2, 3, 10, 11, 12, 13, 99]


def test_vacuum_deletes_records_that_no_version_needs(landing: Landing, table: DeltaTable, tmp_path: Path) -> None:
    def records() -> int:
        return len(list(tmp_path.glob("table/_delta_orch/loaded/*/*")))

    for n in range(6):
        landing.put(f"n{n}.json", 10 + n)
        table.ingest(landing.source())
    assert records() == 6
    table.vacuum()
    assert records() == 6
    assert table.vacuum(0, enforce_retention=False, dry_run=True).num_files == 5
    kept = table.vacuum(0, enforce_retention=False, keep_versions=[2])
    assert (kept.num_files, records()) == (4, 2)
    assert table.ingest(landing.source()).commits == ()
    # A version whose record is gone, as its data files may be, is not guessed at.
    table.restore(2)
    table.ingest(landing.source())
    table.restore(1)
    with pytest.raises(MissingFileError, match="record of the files"):
        table.ingest(landing.source())


@pytest.mark.parametrize("restore", [ours, theirs])
def test_vacuum_keeps_the_record_of_a_restored_version(
    landing: Landing, table: DeltaTable, restore: Callable[[DeltaTable, int], None]
) -> None:
    for n in range(4):
        landing.put(f"n{n}.json", 10 + n)
        table.ingest(landing.source())
    restore(table, 1)
    table.vacuum(0, enforce_retention=False)
    table.ingest(landing.source())
    assert ids_of(table) == [1, 2, 3, 10, 11, 12, 13]


@pytest.mark.parametrize("shallow", [True, False])
def test_a_clone_knows_what_was_loaded(landing: Landing, table: DeltaTable, tmp_path: Path, shallow: bool) -> None:
    for n in range(3):
        landing.put(f"n{n}.json", 10 + n)
        table.ingest(landing.source())
    table.clone(tmp_path / "clone", shallow=shallow, version=1)
    clone = DeltaTable(tmp_path / "clone")
    assert clone.ingest(landing.source()).num_files == 1
    assert ids_of(clone) == ids_of(table) == [1, 2, 3, 10, 11, 12]
    # Once more over the same clone, which has loaded a file that the source has loaded, too.
    table.clone(tmp_path / "clone", shallow=shallow, replace=True)
    assert clone.ingest(landing.source()).commits == ()
    assert ids_of(clone) == [1, 2, 3, 10, 11, 12]


def test_create_or_replace_begins_anew(landing: Landing, table: DeltaTable) -> None:
    table.ingest(landing.source())
    table.create_or_replace("id bigint, file string")
    table.ingest(landing.source())
    assert ids_of(table) == [1, 2, 3]


def test_two_loaders_of_which_one_is_late(landing: Landing, tmp_path: Path) -> None:
    path = tmp_path / "table"
    for case, first in enumerate((True, False)):
        if not first:
            landing.put("c.json", 4)
            landing.put("d.json", 5)
        store = FaultStore(DeltaTable(path).store)
        late = open_table(store)
        store.at(Moment.COMMIT_PUT, "before", do=lambda call: DeltaTable(path).ingest(landing.source(max_files=1)))
        late.ingest(landing.source())
        assert ids_of(path) == ([1, 2, 3] if not case else [1, 2, 3, 4, 5])


def test_two_sources_of_one_table(landing: Landing, table: DeltaTable, tmp_path: Path) -> None:
    other = Landing(tmp_path / "other")
    other.put("a.json", 1)
    how = {"source_file": True, "on_changed": "replace"}
    table.ingest(landing.source(**how))
    table.ingest(other.source(**how))
    other.put("a.json", 7)
    table.ingest(other.source(**how))
    assert table.ingest(landing.source(**how)).commits == ()
    assert ids_of(table) == [1, 2, 3, 7]


def test_other_writers_do_not_disturb(landing: Landing, table: DeltaTable) -> None:
    table.ingest(landing.source())
    deltalake.write_deltalake(table.uri, table.snapshot().scan().to_arrow(), mode="append")
    assert table.ingest(landing.source()).commits == ()
    landing.put("c.json", 4)
    store = FaultStore(table.store)
    store.at(Moment.COMMIT_PUT, "before", do=lambda call: DeltaTable(table.uri).delete("id = 1"))
    assert open_table(store).ingest(landing.source()).num_files == 1
    assert ids_of(table) == [2, 2, 3, 3, 4]


def test_what_cannot_be_held_is_refused(landing: Landing, table: DeltaTable, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="lies below the source"):
        DeltaTable(landing.root / "table").ingest(landing.source())
    with pytest.raises(InvalidRequestError, match="ingest does not accept txn"):
        table.ingest(landing.source(), txn=("app", 1))
    with pytest.raises(InvalidRequestError, match="max_commits"):
        table.ingest(landing.source(), max_commits=0)
    table.ingest(landing.source())
    table.alter().set_properties({"delta.setTransactionRetentionDuration": "interval 1 day"}).commit()
    with pytest.raises(InvalidRequestError, match="forgets loaded files"):
        table.ingest(landing.source())
    table.alter().unset_properties("delta.setTransactionRetentionDuration").commit()
    for record in tmp_path.glob("table/_delta_orch/loaded/*/*"):
        record.unlink()
    with pytest.raises(MissingFileError, match="record of the files"):
        table.ingest(landing.source())


def test_a_record_of_the_same_version_is_a_conflict(landing: Landing, table: DeltaTable) -> None:
    from delta_orch.arrival.file_look import FileLook

    batch = FileLook(landing.source(), table.log).next_files(None)
    assert batch is not None
    none = batch.files.select(["path"]).slice(0, 0)
    batch.write_record(none)
    with pytest.raises(ConcurrentTransactionError):
        batch.write_record(none)


def test_rules_for_rows(landing: Landing, table: DeltaTable) -> None:
    landing.put("c.json", 4, -5)
    expect = {"id is positive": Expect("id > 0", "drop"), "id is even": Expect("id % 2 = 0", "warn")}
    result = table.ingest(landing.source(max_files=2), expect=expect, operation_metrics={"mine": 1})
    assert (result.commits, result.num_rows, ids_of(table)) == ((0, 1), 4, [1, 2, 3, 4])
    assert (result.expected.num_rows, result.expected.num_dropped) == (5, 1)
    assert result.expected.counts == {"id is positive": 1, "id is even": 3}
    assert result.expected.results[0].rows == ({"id": -5, "file": "c.json"},)
    metrics = [commit.operation_metrics for commit in table.history()]
    assert sorted((one["numDroppedRows"], one["mine"]) for one in metrics) == [("0", "1"), ("1", "1")]
    # No rule brings a file again.
    assert table.ingest(landing.source()).commits == ()


def test_a_rule_that_must_hold_keeps_the_files_of_its_commit_out(landing: Landing, table: DeltaTable) -> None:
    landing.put("z.json", 4, -5)
    must = {"id is positive": Expect("id > 0", "fail")}
    with pytest.raises(ExpectationFailedError, match="1 rows"):
        table.ingest(landing.source(), expect=must)
    assert not table.exists()
    with pytest.raises(ExpectationFailedError):
        table.ingest(landing.source(max_files=2), expect=must)
    assert ids_of(table) == [1, 2, 3]
    landing.put("z.json", 4, 5)
    table.ingest(landing.source(), expect=must)
    assert ids_of(table) == [1, 2, 3, 4, 5]


def test_rules_where_files_are_replaced_set_aside_and_rescued(landing: Landing, table: DeltaTable) -> None:
    how = {"on_changed": "replace", "on_error": "quarantine", "source_file": True, "schema_mode": "rescue"}
    expect = {"nothing is rescued": Expect("_rescued_data IS NULL", "drop")}
    table.ingest(landing.source(**how), expect=expect)
    landing.put("a.json", 10)
    (landing.root / "c.json").write_text('{"id": 7}\n{"id": "x"}\n')
    (landing.root / "d.json").write_text('{"id')
    result = table.ingest(landing.source(**how), expect=expect)
    assert ids_of(table) == [3, 7, 10]
    assert (result.expected.num_dropped, result.set_aside["path"].to_pylist()) == (1, ["d.json"])


def bad_ids_of(table: DeltaTable) -> list[int]:
    found = DeltaTable(f"{table.uri}_quarantine").snapshot().scan(["row"]).to_arrow()["row"].to_pylist()
    return sorted(json.loads(row)["id"] for row in found)


def test_bad_rows_of_a_file_are_in_the_quarantine_as_long_as_the_file_says_so(
    landing: Landing, table: DeltaTable
) -> None:
    source = landing.source(on_changed="replace", source_file=True, max_files=1)
    expect = {"id is even": Expect("id % 2 = 0")}
    result = table.ingest(source, expect=expect)
    assert (ids_of(table), bad_ids_of(table), result.expected.num_quarantined) == ([2], [1, 3], 2)
    assert table.ingest(source, expect=expect).commits == ()
    landing.put("a.json", 4, 5)
    landing.put("c.json", 7)
    table.ingest(source, expect=expect)
    assert (ids_of(table), bad_ids_of(table)) == ([4], [3, 5, 7])
    assert requeue(table, {"id": Expect("id > 5")}).num_moved == 1
    table.ingest(source, expect=expect)
    assert (ids_of(table), bad_ids_of(table)) == ([4, 7], [3, 5])


@pytest.mark.parametrize("action", ["drop", "quarantine"])
def test_two_loaders_with_rules(landing: Landing, table: DeltaTable, action: Action) -> None:
    store = FaultStore(table.store)
    expect = {"id is odd": Expect("id % 2 = 1", action)}

    def load(call: object) -> None:
        DeltaTable(table.uri).ingest(landing.source(max_files=1), max_commits=1, expect=expect)

    store.at(Moment.COMMIT_PUT, "before", do=load)
    result = open_table(store).ingest(landing.source(), expect=expect)
    assert ids_of(table) == [1, 3]
    # Of the file that the other one has loaded, nothing is counted here.
    assert (result.num_files, result.expected.num_rows) == (1, 1)
    if action == "quarantine":
        assert bad_ids_of(table) == [2]


@pytest.mark.parametrize(
    "expect", [{"r": Expect("id > 0", "quarantine"), "s": 1}, {"r": "id > 0"}, {"r": Expect("nope > 0", "warn")}]
)
def test_rules_that_ingest_does_not_take(landing: Landing, table: DeltaTable, expect: dict[str, object]) -> None:
    with pytest.raises((InvalidRequestError, ColumnNotFoundError)):
        table.ingest(landing.source(), expect=expect)
    assert not table.exists()
