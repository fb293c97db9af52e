"""`ensure_table_for`: the table is there before the overwrite that would otherwise create it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch.delta_table import DeltaTable
from delta_orch.errors import SchemaMismatchError, TableExistsError
from delta_orch.pipeline.first_write import ensure_table_for

ROWS = pa.table({"day": ["a", "a"], "n": pa.array([1, 2], pa.int64())})


def test_creates_it_empty_with_columns_that_may_be_null(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    strict = ROWS.cast(pa.schema([pa.field("day", pa.string(), nullable=False), pa.field("n", pa.int64())]))
    properties = {"delta.checkpointInterval": "7"}
    ensure_table_for(table, strict, partition_by=["day"], properties=properties, user_metadata="by me")
    snapshot = table.snapshot()
    assert (snapshot.version, snapshot.num_files, snapshot.partition_columns) == (0, 0, ("day",))
    assert [field.nullable for field in snapshot.schema] == [True, True]
    assert snapshot.properties.checkpoint_interval == 7
    assert table.history()[0].user_metadata == "by me"


def test_leaves_an_existing_table_alone(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(ROWS)
    ensure_table_for(table, pa.table({"other": [1]}), partition_by=["other"])
    assert table.version() == 0


def test_does_not_advance_a_reader(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    reader = ROWS.to_reader()
    ensure_table_for(table, reader)
    table.overwrite(reader)
    assert table.snapshot().scan().to_arrow().num_rows == 2


def test_two_first_writers_of_one_partition_replace_each_other(tmp_path: Path) -> None:
    first, second = DeltaTable(tmp_path / "t"), DeltaTable(tmp_path / "t")
    for writer in (first, second):
        ensure_table_for(writer, ROWS, partition_by=["day"])
    first.overwrite(ROWS, replace_where="day = 'a'")
    second.overwrite(ROWS.slice(1), replace_where="day = 'a'")
    assert first.snapshot().scan().to_arrow().column("n").to_pylist() == [2]


def test_a_rival_with_another_schema_is_named(tmp_path: Path) -> None:
    """The rival's table appears between the look and the creation."""

    class Late(DeltaTable):
        def exists(self) -> bool:
            DeltaTable(tmp_path / "t").append(pa.table({"other": [1]}))
            return False

    with pytest.raises(TableExistsError):
        ensure_table_for(Late(tmp_path / "t"), ROWS)


def test_rows_that_cannot_be_a_table_leave_none(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    with pytest.raises(SchemaMismatchError):
        ensure_table_for(table, pa.table({"day": pa.nulls(1)}), partition_by=["day"])
    assert not table.exists()
