"""`alter().sync_identity`: values that rows brought themselves do not come again, on both engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable, column, identity_column
from delta_orch.engines.select import spark_engine
from delta_orch.errors import ConflictError, InvalidRequestError, SchemaMismatchError
from delta_orch.protocol.types import StructType
from delta_orch.verbs.alter import alteration
from tests.certain import some
from tests.handmade import HandmadeTable

if TYPE_CHECKING:
    from pathlib import Path

    from tests.verbs.conftest import EngineRows


def made(table: DeltaTable, step: int = 1, **properties: str) -> DeltaTable:
    key = identity_column("key", start=0, step=step, allow_explicit_insert=True)
    table.create([key, column("n", "bigint")], properties=properties)
    return table


def engine_of(rows: EngineRows) -> Any:
    return "local" if rows.spark is None else spark_engine(rows.spark)


def mark(table: DeltaTable) -> Any:
    return some(table.snapshot().schema.find("key")).metadata.get("delta.identity.highWaterMark")


@pytest.mark.long
@pytest.mark.parametrize(
    ("step", "taken", "given", "reached", "following"),
    [
        (1, 0, [100, 7], 100, 101),
        (5, 0, [103], 100, 105),
        (-3, 0, [-10], -9, -12),
        (1, 0, [-5], None, 0),
        (1, 3, [1], 2, 3),
        (1, 3, [], 2, 3),
        (-1, 2, [-4, 9], -4, -5),
    ],
)
def test_a_column_goes_on_behind_what_rows_brought(
    rows: EngineRows, table: DeltaTable, step: int, taken: int, given: list[int], reached: int | None, following: int
) -> None:
    made(table, step, **{"delta.columnMapping.mode": "name"})
    if taken:
        table.append(pa.table({"n": [1] * taken}))
    if given:
        table.append(pa.table({"key": given, "n": [2] * len(given)}))
    before = mark(table)
    sync = table.alter().sync_identity("KEY")
    for dry_run in (True, False):
        assert sync.commit(engine=engine_of(rows), dry_run=dry_run).skipped is (reached == before)
        assert mark(table) == (before if dry_run else reached)
    table.append(pa.table({"n": [3]}))
    assert table.snapshot().scan(where="n = 3").to_arrow()["key"].to_pylist() == [following]
    assert table.alter().sync_identity("key").commit(engine=engine_of(rows)).skipped


def test_a_row_that_comes_meanwhile_is_a_conflict(table: DeltaTable, monkeypatch: pytest.MonkeyPatch) -> None:
    made(table).append(pa.table({"key": [50], "n": [0]}))
    synced = alteration.with_synced_identities

    def late(*given: Any) -> Any:
        found = synced(*given)
        table.append(pa.table({"key": [500], "n": [0]}))
        return found

    monkeypatch.setattr(alteration, "with_synced_identities", late)
    with pytest.raises(ConflictError):
        table.alter().sync_identity("key").commit()
    assert mark(table) is None


def test_only_identity_columns_are_synced(table: DeltaTable) -> None:
    made(table)
    with pytest.raises(InvalidRequestError, match="n is not an identity column"):
        table.alter().sync_identity("n").commit()
    assert table.version() == 0


def test_no_table_is_partitioned_by_an_identity_column(table: DeltaTable, tmp_path: Path) -> None:
    columns = [identity_column("key"), column("n", "bigint")]
    with pytest.raises(SchemaMismatchError, match="'key' is an identity column and cannot be a partition column"):
        table.create(columns, partition_by=["key"])
    assert not table.exists()
    other = HandmadeTable(tmp_path / "other")
    other.create(StructType(tuple(columns)), features=["identityColumns"], partition_by=["key"])
    with pytest.raises(SchemaMismatchError, match="'key' is an identity column"):
        other.open().append(pa.table({"n": [1]}))
