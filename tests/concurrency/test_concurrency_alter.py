"""Alterations that meet other writers: what they rely on is still so when they commit, or they do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.delta_table import TableSnapshot
from delta_orch.errors import ColumnNotFoundError, ConflictError, MetadataChangedError
from delta_orch.log.write.commit_options import CommitOptions
from delta_orch.verbs.alter.alteration import alter
from delta_orch.verbs.alter.builder import Alteration
from tests.harness.table_builder import begin


def rows(*ids: int | None) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    table = DeltaTable(tmp_path / "t")
    table.append(rows(1, 2), properties={"delta.columnMapping.mode": "name", "delta.enableTypeWidening": "true"})
    return table


def altered_late(table: DeltaTable, change: Callable[[Alteration], object], between: Callable[[], object]) -> None:
    """Plan a change on the newest version, let another writer commit, and only then commit it."""
    stale = table.snapshot()
    alteration = DeltaTable(table.uri).alter()
    change(alteration)
    between()
    alter(table.log, lambda: stale, alteration._changes, "local", options=CommitOptions())


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.add_constraint("c", "id > 0"),
        lambda a: a.set_not_null("id"),
        lambda a: a.cluster_by("id"),
    ],
    ids=["constraint", "not null", "clustering"],
)
def test_what_was_proven_of_the_rows_is_proven_of_new_ones_or_not_committed(
    table: DeltaTable, change: Callable[..., Any]
) -> None:
    with pytest.raises(ConflictError):
        altered_late(table, change, lambda: table.append(rows(None)))
    assert table.version() == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.set_properties({"delta.enableChangeDataFeed": "true"}),
        lambda a: a.add_column("n", "int"),
        lambda a: a.rename_column("id", "key"),
        lambda a: a.add_column("n", "int").drop_columns("id"),
        lambda a: a.change_type("id", "decimal(20,0)"),
        lambda a: a.set_default("id", "0"),
        lambda a: a.set_description("d"),
    ],
    ids=["property", "add", "rename", "drop", "widen", "default", "description"],
)
def test_changes_that_rows_cannot_contradict_are_ordered_after_them(
    table: DeltaTable, change: Callable[..., Any]
) -> None:
    altered_late(table, change, lambda: table.append(rows(3)))
    assert table.version() == 2
    assert table.snapshot().scan().to_arrow().num_rows == 3


def test_a_change_of_the_definition_starts_anew_behind_another(table: DeltaTable) -> None:
    snapshots = [table.snapshot()]
    table.alter().add_column("b", "int").commit()
    changes = DeltaTable(table.uri).alter().add_column("a", "int", after="id")._changes

    def read_snapshot() -> TableSnapshot:
        return snapshots.pop() if snapshots else table.snapshot()

    result = alter(table.log, read_snapshot, changes, "local", options=CommitOptions())
    assert result.version == 2
    assert table.snapshot().schema.names == ("id", "a", "b")
    # What has become impossible meanwhile is told as such.
    snapshots.append(table.snapshot())
    table.alter().drop_columns("a").commit()
    again = DeltaTable(table.uri).alter().rename_column("a", "c")._changes
    with pytest.raises(ColumnNotFoundError):
        alter(table.log, read_snapshot, again, "local", options=CommitOptions())


def test_a_change_that_has_read_rows_does_not_read_them_again_by_itself(table: DeltaTable) -> None:
    with pytest.raises(MetadataChangedError):
        altered_late(table, lambda a: a.set_not_null("id"), lambda: table.alter().add_column("b", "int").commit())


def test_rows_written_for_the_old_columns_do_not_follow_the_new_ones(table: DeltaTable) -> None:
    """An append that has written its files finds that the table has changed meanwhile."""
    late = begin(table, table.snapshot(), operation="WRITE")
    late.add_files(table.snapshot().files().slice(0, 0))
    table.alter().rename_column("id", "key").commit()
    with pytest.raises(MetadataChangedError):
        late.commit()
