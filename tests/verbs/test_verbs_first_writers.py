"""Two writers that create the same table: the second joins, also where column mapping makes up names in files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import MetadataChangedError, TableExistsError
from delta_orch.protocol.types import fields_of
from delta_orch.table.column_mapping import physical_name
from tests.harness.results import Transaction

PAIR = pa.struct([("x", pa.int32()), ("y", pa.string())])
ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "s": pa.array([{"x": 1, "y": "a"}, None], PAIR), "d": ["a", "b"]})
MODES = [None, "name", "id"]


@pytest.fixture
def beaten(table: DeltaTable, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[DeltaTable], Any]], None]:
    """Let another writer go first, just before our first commit."""

    def arrange(rival: Callable[[DeltaTable], Any]) -> None:
        original, waiting = Transaction.commit, [rival]

        def commit(self: Transaction) -> Any:
            if waiting:
                waiting.pop()(DeltaTable(table.uri))
            return original(self)

        monkeypatch.setattr(Transaction, "commit", commit)

    return arrange


def properties(mode: str | None) -> dict[str, str]:
    return {} if mode is None else {"delta.columnMapping.mode": mode}


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_the_second_first_append_joins(rows: Any, table: DeltaTable, beaten: Any, mode: str | None) -> None:
    given: dict[str, Any] = {"properties": properties(mode), "partition_by": ["d"]}
    beaten(lambda other: other.append(ROWS, **given))
    result = table.append(rows.data(ROWS), **given, txn=("app", 1))
    assert result.version == 1
    snapshot = table.snapshot()
    assert rows.read(table, ["id"])["id"].to_pylist() == [1, 1, 2, 2]
    assert table.log.snapshot(0).schema == snapshot.schema
    assert len({physical_name(f) for f in fields_of(snapshot.schema)}) == 5
    assert table.append(rows.data(ROWS), **given, txn=("app", 1)).skipped


@pytest.mark.parametrize("mode", MODES)
def test_the_second_creation_joins(table: DeltaTable, beaten: Any, mode: str | None) -> None:
    beaten(lambda other: other.append(ROWS, properties=properties(mode)))
    result = table.create(ROWS.schema, properties=properties(mode))
    assert (result.version, result.skipped) == (0, True)


@pytest.mark.parametrize("mode", MODES)
def test_an_overwrite_joins_a_table_without_rows(table: DeltaTable, beaten: Any, mode: str | None) -> None:
    beaten(lambda other: other.create(ROWS.schema, properties=properties(mode)))
    assert table.overwrite(ROWS, properties=properties(mode)).version == 1
    assert table.snapshot().scan().to_arrow().num_rows == 2


@pytest.mark.parametrize("mode", MODES[1:])
def test_an_overwrite_does_not_replace_rows_it_never_saw(table: DeltaTable, beaten: Any, mode: str | None) -> None:
    beaten(lambda other: other.append(ROWS, properties=properties(mode)))
    with pytest.raises(MetadataChangedError):
        table.overwrite(ROWS, properties=properties(mode))
    assert table.snapshot().version == 0


def test_rows_that_come_only_once_are_a_conflict(table: DeltaTable, beaten: Any) -> None:
    beaten(lambda other: other.append(ROWS, properties=properties("name")))
    with pytest.raises(MetadataChangedError, match="physical names"):
        table.append(ROWS.to_reader(), properties=properties("name"))
    assert table.snapshot().version == 0


def test_another_table_is_not_joined(table: DeltaTable, beaten: Any) -> None:
    beaten(lambda other: other.append(ROWS.select(["id"]), properties=properties("name")))
    with pytest.raises(MetadataChangedError, match="schema"):
        table.append(ROWS, properties=properties("name"))


def test_another_definition_is_not_joined(table: DeltaTable, beaten: Any) -> None:
    beaten(lambda other: other.create(ROWS.schema, properties=properties("name"), partition_by=["d"]))
    with pytest.raises((MetadataChangedError, TableExistsError)):
        table.create(ROWS.schema, properties=properties("name"))
