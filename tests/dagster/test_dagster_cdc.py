"""write="cdc" of assets: change events, in whatever order runs bring them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from delta_orch.dagster import ChangeBatch, DeltaTableResource, delta_asset
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import ConstraintViolationError, InvalidRequestError, LateChangeError, SchemaMismatchError
from tests.dagster.lake import Lake

Row = tuple[int, int, str | None]


def rows(*rows: Row) -> pa.Table:
    """Key, sequence and value."""
    return pa.table(
        {
            "a key": pa.array([row[0] for row in rows], pa.int64()),
            "at": pa.array([row[1] for row in rows], pa.int64()),
            "vä.l": pa.array([row[2] for row in rows], pa.string()),
        }
    )


def versions(table: DeltaTable) -> list[tuple[Any, ...]]:
    columns = ["`a key`", "`vä.l`", "valid_from", "valid_to", "is_current"]
    found = table.snapshot().scan(columns, "NOT is_deleted").to_arrow()
    return sorted(zip(*found.to_pydict().values(), strict=True), key=repr)


MAPPED = {"delta.columnMapping.mode": "name"}
VERSIONS: dict[str, Any] = {"write": "cdc", "scd": 2, "sequence_by": "at"}


def test_assets_apply_events_once(tmp_path: Path) -> None:
    lake, batches = Lake(tmp_path, properties=MAPPED), [rows((1, 1, "x"))]

    @dg.asset(metadata={**VERSIONS, "merge_keys": ["a key"], "audit": ["at > 0"]})
    def people() -> pa.Table:
        return batches[-1]

    assert lake.run(people).success
    batches.append(rows((1, 3, "y"), (2, 2, "z")))
    for _ in range(2):
        assert lake.run(people).success
    assert versions(lake.table("people")) == [(1, "x", 1, 3, False), (1, "y", 3, None, True), (2, "z", 2, None, True)]
    batches.append(rows((1, 2, "late")))
    assert lake.run(people).success
    assert versions(lake.table("people"))[:2] == [(1, "late", 2, 3, False), (1, "x", 1, 2, False)]
    batches.append(rows((1, 2, "other")))
    assert isinstance(lake.fails(people), ConstraintViolationError)
    batches.append(pa.table({"a key": [1], "at": [9], "valid_to": [1]}))
    assert isinstance(lake.fails(people), SchemaMismatchError)


@pytest.mark.parametrize("scd", [1, 2])
def test_a_run_that_is_done_again_corrects_its_events(tmp_path: Path, scd: int) -> None:
    """As with `merge`: rows are applied again, and those that the new ones lack stay."""
    lake, batch = Lake(tmp_path, properties=MAPPED), [rows((1, 1, "x"), (2, 1, "x"))]

    @dg.asset(
        partitions_def=dg.StaticPartitionsDefinition(["1", "2"]),
        metadata={
            **{**VERSIONS, "scd": scd}, "merge_keys": ["part", "a key"], "partition_expr": "part",
            "delete_when": "`vä.l` = 'gone'",
        },
    )  # fmt: skip
    def people(context) -> pa.Table:  # type: ignore[no-untyped-def]
        return batch[0].append_column("part", pa.array([context.partition_key] * batch[0].num_rows))

    for part in ("1", "2"):
        assert lake.run(people, partition=part).success
    batch[0] = rows((1, 1, "gone"), (3, 1, "new"))
    assert lake.run(people, partition="1").success
    found = lake.table("people").snapshot().scan(["part", "`a key`", "`vä.l`"], "part = '1'").to_arrow()
    assert sorted(zip(*found.to_pydict().values(), strict=True), key=repr) == [
        ("1", 1, None), ("1", 2, "x"), ("1", 3, "new")
    ]  # fmt: skip
    other = lake.table("people").snapshot().scan(["`vä.l`"], "part = '2'").to_arrow()
    assert other["vä.l"].to_pylist() == ["x", "x"]


@pytest.mark.long
@pytest.mark.parametrize("is_of_manager", [True, False])
@pytest.mark.parametrize("deletes", [{}, {"full_snapshot": True}, {"delete_when": "gone", "except_columns": ["gone"]}])
def test_the_next_asset_loads_all_versions(tmp_path: Path, is_of_manager: bool, deletes: dict[str, Any]) -> None:
    config: dict[str, Any] = {"write": "cdc", "merge_keys": ["id"]}
    lake = Lake(tmp_path, **(config if is_of_manager else {}))
    metadata = {**({} if is_of_manager else config), "sequence_by": "at", "scd": 2, **deletes}
    loaded: list[pa.Table] = []

    @dg.asset(metadata=metadata)
    def people() -> pa.Table:
        gone = {"gone": [False]} if "delete_when" in deletes else {}
        return pa.table({"id": [1], "at": [len(loaded)], "name": [str(len(loaded))], **gone})

    @dg.asset
    def names(people: pa.Table) -> None:
        loaded.append(people)

    for _ in range(2):
        assert lake.run(people, names).success
    assert [sorted(rows["name"].to_pylist()) for rows in loaded] == [["0"], ["0", "1"]]
    assert sorted(loaded[1]["is_current"].to_pylist()) == [False, True]


@pytest.mark.long
def test_an_incremental_asset_moves_its_cursor_though_nothing_changes(tmp_path: Path) -> None:
    source, target = DeltaTable(tmp_path / "bronze"), DeltaTable(tmp_path / "silver")

    @delta_asset(
        incremental_from=DeltaTableResource(table_uri=source.uri),
        table=DeltaTableResource(table_uri=target.uri),
        write="cdc",
        scd=2,
        merge_keys=["a key"],
        sequence_by="at",
        properties=MAPPED,
        max_versions=1,
    )
    def silver(batch: ChangeBatch) -> Any:
        read = (batch.scan() if batch.is_bootstrap else batch.changes).to_arrow()
        return read.select(["a key", "at", "vä.l"])

    instance = dg.DagsterInstance.ephemeral()
    source.append(rows((1, 1, "x")), properties=MAPPED)
    assert dg.materialize([silver], instance=instance).success
    # The same again, then news: one batch a run.
    source.append(rows((1, 1, "x")))
    source.append(rows((1, 2, "y")))
    for _ in range(2):
        assert dg.materialize([silver], instance=instance).success
    assert versions(target) == [(1, "x", 1, 2, False), (1, "y", 2, None, True)]


def test_an_incremental_asset_ends_keys_that_its_source_deletes(tmp_path: Path) -> None:
    source, target = DeltaTable(tmp_path / "bronze"), DeltaTable(tmp_path / "silver")

    @delta_asset(
        incremental_from=DeltaTableResource(table_uri=source.uri),
        table=DeltaTableResource(table_uri=target.uri),
        write="cdc",
        scd=2,
        merge_keys=["a key"],
        sequence_by="at",
        full_snapshot=True,
        properties=MAPPED,
    )
    def silver(batch: ChangeBatch) -> Any:
        read = batch.scan().to_arrow()
        return read.set_column(1, "at", pa.array([batch.ending_version] * read.num_rows, pa.int64()))

    instance = dg.DagsterInstance.ephemeral()
    source.append(rows((1, 0, "x"), (2, 0, "x")), properties=MAPPED, partition_by=["vä.l"])
    assert dg.materialize([silver], instance=instance).success
    source.delete("`a key` = 1")
    source.append(rows((3, 0, "y")))
    for _ in range(2):
        assert dg.materialize([silver], instance=instance).success
    ended = source.version()
    assert versions(target) == [(1, "x", 0, ended, False), (2, "x", 0, None, True), (3, "y", ended, None, True)]


def test_an_incremental_asset_hands_on_the_change_feed(tmp_path: Path) -> None:
    source, target = DeltaTable(tmp_path / "bronze"), DeltaTable(tmp_path / "silver")

    @delta_asset(
        incremental_from=DeltaTableResource(table_uri=source.uri),
        table=DeltaTableResource(table_uri=target.uri),
        write="cdc",
        merge_keys=["id"],
        sequence_by="_commit_version",
        envelope="change_feed",
        bootstrap="changes",
    )
    def silver(batch: ChangeBatch) -> Any:
        return batch.changes

    instance = dg.DagsterInstance.ephemeral()
    source.append(pa.table({"id": [1, 2], "v": ["a", "b"]}), properties={"delta.enableChangeDataFeed": "true"})
    assert dg.materialize([silver], instance=instance).success
    source.delete("id = 1")
    source.update({"v": "'x'"}, "id = 2")
    for _ in range(2):
        assert dg.materialize([silver], instance=instance).success
    found = target.snapshot().scan(["id", "v", "source_version"], "_deleted_at IS NULL").to_arrow().to_pylist()
    assert found == [{"id": 2, "v": "x", "source_version": 2}]


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"write": "cdc", "merge_keys": ["a"]}, "needs sequence_by"),
        ({"write": "cdc", "sequence_by": "a"}, "merge_keys"),
        ({"sequence_by": "a"}, "for write='cdc'"),
        ({"write": "scd2", "merge_keys": ["a"], "sequence_by": "a"}, "Write write='cdc' with scd=2"),
        ({"write": "cdc", "merge_keys": ["a"], "sequence_by": "a", "delete_marker": "b"}, "Write delete_when='gone'"),
        ({"write": "cdc", "merge_keys": ["a"], "sequence_by": "a", "scd": 3}, "scd is 3"),
        ({"write": "cdc", "merge_keys": ["a"], "sequence_by": "a", "envelope": "avro"}, "no envelope"),
        ({"write": "cdc", "merge_keys": ["a"], "sequence_by": "a", "tombstone_retention": "soon"}, "'soon'"),
        ({"write": "cdc", "merge_keys": ["a"], "sequence_by": "a", "delete_whn": "b"}, "'delete_when'"),
    ]
    for metadata, problem in refused:

        @dg.asset(metadata=metadata)
        def people() -> pa.Table:
            return rows((1, 1, "x"))

        with pytest.raises((InvalidRequestError, dg.DagsterInvalidDefinitionError), match=problem):
            raise lake.fails(people)

    @dg.asset(
        partitions_def=dg.StaticPartitionsDefinition(["1"]),
        metadata={**VERSIONS, "merge_keys": ["a key"], "partition_expr": "vä.l"},
    )
    def split() -> pa.Table:
        return rows((1, 1, "x"))

    assert isinstance(lake.fails(split, partition="1"), InvalidRequestError)
    source = DeltaTableResource(table_uri=str(tmp_path / "a"))
    with pytest.raises(InvalidRequestError, match="sequence_by"):
        delta_asset(incremental_from=source, table=DeltaTableResource(table_uri="b"), write="cdc", merge_keys=["a"])
    old: Any = {"write": "scd2", "merge_keys": ["a"], "sequence_by": "b"}
    with pytest.raises(InvalidRequestError, match="'cdc'"):
        delta_asset(incremental_from=source, table=DeltaTableResource(table_uri="b"), **old)
    with pytest.raises(InvalidRequestError, match="Write delete_when"):
        delta_asset(
            incremental_from=source, table=DeltaTableResource(table_uri="b"),
            **{**old, "write": "cdc", "delete_marker": "c"},
        )  # fmt: skip


DAYS = dg.DailyPartitionsDefinition("2013-01-01", end_date="2013-01-06")
KEYS = DAYS.get_partition_keys()


@pytest.mark.long
@pytest.mark.parametrize("is_full", [True, False])
def test_each_day_is_a_batch(tmp_path: Path, is_full: bool) -> None:
    """Days in order, one that comes late, and one again. What a day leaves out has ended."""
    lake = Lake(tmp_path)
    extracts = {
        day: {key: f"v{(number + key) // 2}" for key in range(4) if (number + key) % 3}
        for number, day in enumerate(KEYS)
    }

    @dg.asset(
        partitions_def=DAYS,
        metadata={
            "write": "cdc",
            "scd": 2,
            "merge_keys": ["id"],
            "sequence_by": "day",
            "partition_expr": "day",
            "full_snapshot": is_full,
        },
    )
    def people(context) -> pa.Table:  # type: ignore[no-untyped-def]
        found = [(key, day, value) for day in context.partition_keys for key, value in extracts[day].items()]
        return pa.Table.from_pylist([dict(zip(("id", "day", "v"), row, strict=True)) for row in found], SCHEMA)

    def expected(days: list[str]) -> list[tuple[Any, ...]]:
        made: list[tuple[Any, ...]] = []
        for key in range(4):
            steps: list[tuple[str, str | None]] = []
            for day in days:
                value = extracts[day].get(key)
                if (value is not None and not is_full) or (is_full and (steps[-1][1] if steps else None) != value):
                    steps.append((day, value))
            ends = [*(day for day, _ in steps[1:]), None]
            made += [(key, v, start, end) for (start, v), end in zip(steps, ends, strict=False) if v is not None]
        return sorted(made, key=repr)

    def found() -> list[tuple[Any, ...]]:
        kept = (r for r in lake.rows("people") if not r["is_deleted"])
        return sorted(((r["id"], r["v"], r["valid_from"], r["valid_to"]) for r in kept), key=repr)

    done = []
    for day in (KEYS[0], KEYS[2]):
        assert lake.run(people, partition=day).success
        done.append(day)
        assert found() == expected(done)
    assert lake.run(people, partition=KEYS[2]).success
    assert found() == expected(done)
    if is_full:
        assert isinstance(lake.fails(people, partition=KEYS[1]), LateChangeError)
    else:
        assert lake.run(people, partition=KEYS[1]).success
        done.insert(1, KEYS[1])
    assert found() == expected(done)
    for day in KEYS[3:5]:
        assert lake.run(people, partition=day).success
    assert found() == expected([*done, *KEYS[3:5]])
    extracts[KEYS[4]] = {}
    if is_full:
        assert "A snapshot is empty" in str(lake.fails(people, partition=KEYS[4]))


SCHEMA = pa.schema({"id": pa.int64(), "day": pa.string(), "v": pa.string()})


@pytest.mark.long
def test_regions_have_their_own_histories(tmp_path: Path) -> None:
    """Partitions by a key: a snapshot of one ends keys of this one alone, in whatever order they come."""
    lake, now = Lake(tmp_path), [("x", 1, {1: "a", 2: "a"}), ("y", 5, {1: "a"}), ("x", 3, {2: "b"}), ("y", 6, {3: "c"})]

    @dg.asset(
        partitions_def=dg.StaticPartitionsDefinition(["x", "y"]),
        metadata={
            **VERSIONS,
            "merge_keys": ["region", "id"],
            "partition_expr": "region",
            "full_snapshot": True,
        },
    )
    def people() -> pa.Table:
        region, at, said = now[0]
        rows = [{"region": region, "id": key, "at": at, "v": value} for key, value in said.items()]
        return pa.Table.from_pylist(rows)

    for _ in range(len(now)):
        assert lake.run(people, partition=now[0][0]).success
        now.append(now.pop(0))
    kept = [r for r in lake.rows("people") if not r["is_deleted"]]
    rows = sorted((r["region"], r["id"], r["v"], r["valid_from"], r["valid_to"] or 0) for r in kept)
    ended = [("x", 1, "a", 1, 3), ("x", 2, "a", 1, 3), ("y", 1, "a", 5, 6)]
    assert rows == sorted([*ended, ("x", 2, "b", 3, 0), ("y", 3, "c", 6, 0)])
    now[0] = ("y", 9, {1: "a"})
    assert "outside of the run's partitions" in str(lake.fails(people, partition="x"))
