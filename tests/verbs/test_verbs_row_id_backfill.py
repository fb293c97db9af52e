"""Row tracking enabled on tables that have files: their rows get ids first, in batches, while others write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import InvalidRequestError
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import CommitOptions
from delta_orch.table.row_tracking import parse_high_water_mark
from delta_orch.verbs.alter.preparation import give_rows_ids, lacks_row_ids
from tests.certain import some
from tests.harness.fault_store import FaultStore, Moment

ENABLED = {"delta.enableRowTracking": "true"}


def operations(table: DeltaTable, start: int) -> list[str]:
    return [some(entry.operation) for entry in table.history()[::-1][start:]]


def ids_of(table: DeltaTable) -> dict[int, int]:
    read = table.snapshot().scan(["id"], row_tracking=True).to_arrow().to_pylist()
    return {row["id"]: row["row_id"] for row in read}


def test_enabling_gives_every_row_an_id(table: DeltaTable, days: Any) -> None:
    table.append(days(("a", 1), ("a", 2)), partition_by=["day"])
    table.append(days(("b", 3)))
    before = table.snapshot().scan().to_arrow().sort_by("id").to_pylist()
    table.alter().set_properties(ENABLED).commit(user_metadata="by hand")
    assert operations(table, 2) == ["UPGRADE PROTOCOL", "ROW TRACKING BACKFILL", "SET TBLPROPERTIES"]
    assert sorted(ids_of(table).values()) == [0, 1, 2]
    assert parse_high_water_mark(table.snapshot().domain_metadata["delta.rowTracking"]) == 2
    assert table.snapshot().scan().to_arrow().sort_by("id").to_pylist() == before
    commit = table.log.read_commit(3)
    assert commit.adds["data_change"].to_pylist() == [False, False]
    assert commit.removes.num_rows == 0
    assert commit.commit_info is not None
    assert (commit.commit_info["isBlindAppend"], commit.commit_info["userMetadata"]) == (False, "by hand")
    assert table.changes(starting_version=2).is_empty
    kept = ids_of(table)
    table.optimize()
    assert ids_of(table) == kept
    assert table.alter().set_properties(ENABLED).commit().skipped


def test_a_table_without_files_needs_no_backfill(table: DeltaTable, days: Any) -> None:
    table.create(days(("a", 1)).schema)
    table.alter().set_properties(ENABLED).commit()
    assert operations(table, 1) == ["SET TBLPROPERTIES"]
    table.append(days(("a", 1)))
    assert ids_of(table) == {1: 0}


def test_it_goes_on_in_batches_from_where_it_was_left(table: DeltaTable, days: Any) -> None:
    for number in range(5):
        table.append(days(("a", number)))
    store = FaultStore(table.store)
    log = TableLog(store)
    store.at(
        Moment.COMMIT_PUT, "before", do=lambda call: store.fail(call) if call.path.endswith("7.json") else None, times=9
    )
    with pytest.raises(OSError, match="Injected"):
        give_rows_ids(log, log.snapshot, options=CommitOptions(), files_per_commit=2)
    assert operations(table, 5) == ["UPGRADE PROTOCOL", "ROW TRACKING BACKFILL"]
    assert lacks_row_ids(table.snapshot())
    assert give_rows_ids(table.log, table.snapshot, options=CommitOptions(), files_per_commit=2) == 2
    assert not lacks_row_ids(table.snapshot())
    assert give_rows_ids(table.log, table.snapshot, options=CommitOptions()) == 0
    table.alter().set_properties(ENABLED).commit()
    assert sorted(ids_of(table).values()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("number", [2, 3, 4])
@pytest.mark.parametrize("rival", ["append", "overwrite", "optimize"])
def test_others_write_meanwhile(table: DeltaTable, days: Any, rival: str, number: int) -> None:
    """Whatever comes in between, before whichever of the commits: no row is lost, and each has an id of its own."""
    table.append(days(("a", 1)))
    table.append(days(("a", 2)))
    other, store = DeltaTable(table.uri), FaultStore(table.store)
    log = TableLog(store)

    def act(call: Any) -> None:
        if call.path.endswith(f"{number}.json") and not done:
            done.append(number)
            if rival == "append":
                other.append(days(("a", 9)))
            elif rival == "overwrite":
                other.overwrite(days(("a", 9)))
            else:
                other.optimize()

    done: list[int] = []
    store.at(Moment.COMMIT_PUT, "before", do=act, times=50)
    give_rows_ids(log, log.snapshot, options=CommitOptions(), files_per_commit=1)
    assert done == [number]
    table.alter().set_properties(ENABLED).commit()
    found = ids_of(table)
    assert len(set(found.values())) == len(found)
    assert set(found) == {"append": {1, 2, 9}, "overwrite": {9}, "optimize": {1, 2}}[rival]


def test_files_without_statistics_are_counted(table: DeltaTable, days: Any, tmp_path: Path) -> None:
    table.append(days(("a", 1), ("a", 2), ("a", 3)))
    commit = tmp_path / "table" / "_delta_log" / f"{0:020d}.json"
    lines = [orjson.loads(line) for line in commit.read_bytes().splitlines()]
    for line in lines:
        line.get("add", {}).pop("stats", None)
    commit.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    table = DeltaTable(table.uri)
    table.append(days(("a", 4)))
    table.alter().set_properties(ENABLED).commit()
    assert sorted(ids_of(table).values()) == [0, 1, 2, 3]
    stats = table.snapshot().files(["stats"])["stats"].to_pylist()
    assert {orjson.loads(text)["numRecords"] for text in stats} == {1, 3}


def test_a_suspended_table_is_refused(table: DeltaTable, days: Any) -> None:
    table.append(
        days(("a", 1)), properties={"delta.feature.rowTracking": "supported", "delta.rowTrackingSuspended": "true"}
    )
    with pytest.raises(InvalidRequestError, match="does not assign row ids"):
        give_rows_ids(table.log, table.snapshot, options=CommitOptions())
    with pytest.raises(InvalidRequestError):
        table.alter().set_properties(ENABLED).commit()
    assert table.version() == 0


def test_a_dry_run_of_enabling_changes_nothing(table: DeltaTable, days: Any) -> None:
    table.append(days(("a", 1)))
    with pytest.raises(InvalidRequestError, match="have no row ids yet"):
        table.alter().set_properties(ENABLED).commit(dry_run=True)
    assert table.version() == 0
