"""Read, compute, write: what another writer changed since in the rows concerned is never overwritten unseen."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.delta_table import TableSnapshot
from delta_orch.errors import ConflictError, InvalidRequestError, TableNotFoundError, VersionNotFoundError
from tests.harness.table_builder import read_anew

VECTORS = {"delta.enableDeletionVectors": "true"}


def rows(*days_and_ids: tuple[str, int]) -> pa.Table:
    days, ids = zip(*days_and_ids, strict=True) if days_and_ids else ((), ())
    return pa.table({"day": pa.array(days, pa.string()), "id": pa.array(ids, pa.int64())})


BASE = rows(*((day, i) for day, start in (("a", 0), ("b", 10)) for i in range(start, start + 4)))


@pytest.fixture
def table() -> DeltaTable:
    table = DeltaTable(f"memory://{uuid.uuid4()}")
    table.append(BASE, partition_by=["day"], properties=VECTORS)
    return table


def rows_in(table: DeltaTable) -> list[tuple[str, int]]:
    found = read_anew(table).scan(["day", "id"]).to_arrow()
    return sorted(zip(found["day"].to_pylist(), found["id"].to_pylist(), strict=True))


WRITES: dict[str, Callable[[TableSnapshot], Any]] = {
    "append": lambda s: s.append(rows(("b", 99))),
    "overwrite": lambda s: s.overwrite(rows(("a", 99))),
    "replace day a": lambda s: s.overwrite(rows(("a", 99)), replace_where="day = 'a'"),
    "dynamic, day a": lambda s: s.overwrite(rows(("a", 99)), partition_overwrite_mode="dynamic"),
    "delete": lambda s: s.delete("day = 'a' AND id >= 2"),
    "delete, nothing there": lambda s: s.delete("day = 'a' AND id = 5"),
    "update": lambda s: s.update({"id": "id + 50"}, "day = 'a' AND id >= 2"),
    "upsert": lambda s: s.upsert(rows(("a", 2), ("a", 5)), ["day", "id"]),
    "merge": lambda s: (
        s.merge(rows(("a", 2), ("a", 5)), "source.day = target.day AND source.id = target.id")
        .when_matched_delete()
        .when_not_matched_insert_all()
        .execute()
    ),
}
RIVALS: dict[str, Callable[[DeltaTable], Any]] = {
    "append": lambda t: t.append(rows(("a", 5))),
    "overwrite": lambda t: t.overwrite(rows(("a", 5))),
    "delete": lambda t: t.delete("id = 2"),
    "update": lambda t: t.update({"id": "5"}, "id = 2"),
    "upsert": lambda t: t.upsert(rows(("a", 2), ("a", 5)), ["day", "id"]),
}


@pytest.mark.parametrize(
    ("write", "rival"),
    # The row that this rival deletes is none of those this deletion looks for.
    [pair for pair in product(WRITES, RIVALS) if pair != ("delete, nothing there", "delete")],
)
def test_what_a_rival_changed_in_the_rows_concerned_is_a_conflict(table: DeltaTable, write: str, rival: str) -> None:
    snapshot = table.snapshot()
    RIVALS[rival](table)
    theirs = rows_in(table)
    with pytest.raises(ConflictError, match="Read the table again") as caught:
        WRITES[write](snapshot)
    assert not caught.value.retryable
    assert caught.value.context["read_version"] == 0
    assert caught.value.context["winning_version"] == 1
    assert rows_in(table) == theirs


@pytest.mark.parametrize("write", [name for name in WRITES if name not in ("append", "overwrite")])
def test_what_a_rival_changed_elsewhere_is_none(table: DeltaTable, write: str) -> None:
    snapshot = table.snapshot()
    table.append(rows(("b", 15)))
    table.delete("id = 11")
    table.update({"id": "id + 100"}, "id = 12")
    result = WRITES[write](snapshot)
    assert result.skipped == (write == "delete, nothing there")
    assert result.rebased_versions == (1, 2, 3)
    assert {row for row in rows_in(table) if row[0] == "b"} == {("b", 10), ("b", 13), ("b", 15), ("b", 112)}


def test_the_methods_of_the_table_take_the_version(table: DeltaTable) -> None:
    table.append(rows(("a", 5)))
    for write in (
        lambda: table.append(rows(("a", 6)), read_version=0),
        lambda: table.overwrite(rows(("a", 6)), read_version=0),
        lambda: table.delete("id < 10", read_version=0),
        lambda: table.update({"id": "1"}, "id < 10", read_version=0),
        lambda: table.restore(version=0, read_version=0),
        lambda: table.overwrite(rows(("a", 6)), read_version=0, dry_run=True),
    ):
        with pytest.raises((ConflictError, InvalidRequestError)):
            write()
    assert table.version() == 1
    assert table.delete("id < 10", read_version=1).version == 2
    assert not table.append(rows(("a", 6)), read_version=2).skipped
    info = table.history(limit=1)[0].commit_info
    assert (info["readVersion"], info["isolationLevel"], info["isBlindAppend"]) == (2, "Serializable", False)


def test_a_weaker_level_may_be_asked_for(table: DeltaTable) -> None:
    snapshot = table.snapshot()
    table.append(rows(("a", 5)))
    snapshot.overwrite(rows(("a", 99)), isolation_level="WriteSerializable")
    assert rows_in(table) == [("a", 5), ("a", 99)]


def test_a_version_that_is_none(table: DeltaTable) -> None:
    with pytest.raises(VersionNotFoundError):
        table.append(rows(("a", 1)), read_version=7)
    for wrong in (-1, True, "0", 1.0):
        with pytest.raises(InvalidRequestError):
            table.append(rows(("a", 1)), read_version=wrong)  # type: ignore[arg-type]
    with pytest.raises(TableNotFoundError):
        DeltaTable(f"memory://{uuid.uuid4()}").append(rows(("a", 1)), read_version=0)
    with pytest.raises(InvalidRequestError, match="This is version 0"):
        table.snapshot().append(rows(("a", 1)), read_version=1)
    table.append(rows(("a", 1)))
    with pytest.raises(InvalidRequestError, match="starts from version 1"):
        table.alter().set_properties({"owner": "me"}).commit(read_version=0)
    assert table.version() == 1


def test_the_same_write_again_finds_itself(table: DeltaTable) -> None:
    snapshot = table.snapshot()
    assert not snapshot.overwrite(rows(("a", 99)), txn=("job", 1)).skipped
    assert snapshot.overwrite(rows(("a", 99)), txn=("job", 1)).skipped
    assert rows_in(table) == [("a", 99)]


def test_a_snapshot_of_a_table_that_is_gone_writes_nothing(table: DeltaTable) -> None:
    snapshot = table.snapshot()
    for meta in list(table.store.list_recursive()):
        table.store.delete(meta.path)
    with pytest.raises(ConflictError, match="can no longer be written to"):
        snapshot.append(rows(("a", 1)))
    assert list(table.store.list_recursive()) == []


def test_identity_values_are_not_taken_behind_the_back_of_the_version() -> None:
    from delta_orch import column, identity_column

    table = DeltaTable(f"memory://{uuid.uuid4()}")
    table.create([identity_column("key"), column("id", "long")])
    snapshot = table.snapshot()
    ids = pa.table({"id": pa.array([1], pa.int64())})
    table.append(ids)
    with pytest.raises(ConflictError):
        snapshot.append(ids)
    assert table.version() == 1
