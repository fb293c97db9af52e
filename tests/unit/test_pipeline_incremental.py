from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch.delta_table import DeltaTable
from delta_orch.errors import (
    ConcurrentTransactionError,
    InvalidRequestError,
    TableNotFoundError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from delta_orch.pipeline.incremental import ChangeBatch, IncrementalReader
from delta_orch.pipeline.incremental_step import IncrementalStep as Step
from delta_orch.pipeline.step import Mode
from delta_orch.pipeline.unit import StepReport
from delta_orch.table.schema_evolution import SchemaMode
from tests.families import family


def rows(*days: int | None, value: int = 1) -> pa.Table:
    return pa.table(
        {
            "day": pa.array([None if day is None else date(2013, 1, day) for day in days], pa.date32()),
            "value": pa.array([value] * len(days), pa.int64()),
        }
    )


@pytest.fixture
def source(tmp_path: Path) -> DeltaTable:
    table = DeltaTable(tmp_path / "bronze")
    table.append(rows(1, 2), partition_by=["day"])
    return table


@pytest.fixture
def target(tmp_path: Path) -> DeltaTable:
    return DeltaTable(tmp_path / "silver")


def touched(batch: ChangeBatch) -> list[int | None]:
    days = batch.partitions().column("day").to_pylist()
    return sorted((day.day if day else None for day in days), key=lambda day: (day is None, day))


def values(table: DeltaTable) -> list[tuple[int, int]]:
    found = table.snapshot().scan().to_arrow().to_pylist()
    return sorted((row["day"].day, row["value"]) for row in found)


def test_first_batch_is_the_source_as_it_stands(source: DeltaTable, target: DeltaTable) -> None:
    reader = IncrementalReader(source, target)
    batch = reader.next_batch()
    assert batch is not None
    assert batch.is_bootstrap
    assert batch.starting_version is None
    assert batch.ending_version == 0
    assert touched(batch) == [1, 2]
    assert batch.txn.app_id == f"cdc:silver<-{source.snapshot().metadata.id}"
    assert batch.txn.version == 0
    with pytest.raises(InvalidRequestError, match="no change feed"):
        _ = batch.changes
    # The batch stays what it is, whatever is committed meanwhile.
    source.append(rows(3))
    assert batch.scan().to_arrow().num_rows == 2


def test_cursor_and_rows_are_one_commit(source: DeltaTable, target: DeltaTable) -> None:
    reader = IncrementalReader(source, target)
    batch = reader.next_batch()
    assert batch is not None
    result = target.append(batch.scan().to_arrow(), txn=batch.txn, partition_by=["day"])
    assert result.version == 0
    assert target.txns() == {batch.txn.app_id: 0}
    assert reader.next_batch() is None
    # A retry of the very same batch adds nothing.
    assert target.append(batch.scan().to_arrow(), txn=batch.txn).skipped
    assert target.version() == 0


def test_later_batches_hold_only_what_changed(source: DeltaTable, target: DeltaTable) -> None:
    reader = IncrementalReader(source, target)
    first = reader.next_batch()
    assert first is not None
    target.overwrite(first.scan().to_arrow(), txn=first.txn, partition_by=["day"])
    source.append(rows(3, value=3))
    source.overwrite(rows(2, value=20), replace_where="day = '2013-01-02'")
    batch = reader.next_batch()
    assert batch is not None
    assert not batch.is_bootstrap
    assert (batch.starting_version, batch.ending_version) == (1, 2)
    assert touched(batch) == [2, 3]
    changes = batch.changes.to_arrow().to_pylist()
    assert sorted((row["day"].day, row["_change_type"], row["value"]) for row in changes) == [
        (2, "delete", 1),
        (2, "insert", 20),
        (3, "insert", 3),
    ]
    target.overwrite(batch.scan().to_arrow(), partition_overwrite_mode="dynamic", txn=batch.txn)
    assert values(target) == [(1, 1), (2, 20), (3, 3)]
    assert reader.next_batch() is None


def test_commits_that_change_no_data_make_no_batch(source: DeltaTable, target: DeltaTable) -> None:
    reader = IncrementalReader(source, target)
    first = reader.next_batch()
    assert first is not None
    target.append(first.scan().to_arrow(), txn=first.txn)
    source.append(rows(1, value=5))
    second = reader.next_batch()
    assert second is not None
    target.append(second.changes.to_arrow().select(["day", "value"]), txn=second.txn)
    assert not source.optimize().skipped
    assert reader.next_batch() is None


def test_null_partitions_are_partitions(source: DeltaTable, target: DeltaTable) -> None:
    reader = IncrementalReader(source, target, bootstrap="changes")
    source.append(rows(None, value=9))
    batch = reader.next_batch()
    assert batch is not None
    assert touched(batch) == [1, 2, None]
    assert batch.scan().to_arrow().num_rows == 3


def test_a_source_without_partitions_is_read_whole(tmp_path: Path, target: DeltaTable) -> None:
    source = DeltaTable(tmp_path / "plain")
    source.append(rows(1, 2))
    batch = IncrementalReader(source, target).next_batch()
    assert batch is not None
    assert batch.partitions().num_columns == 0
    assert batch.partition_predicate() is None
    assert batch.scan(["value"]).to_arrow().column_names == ["value"]
    assert batch.scan().to_arrow().num_rows == 2


def test_several_partition_columns(tmp_path: Path, target: DeltaTable) -> None:
    source = DeltaTable(tmp_path / "multi")
    data = pa.table({"day": ["a", "a", "b"], "hour": pa.array([1, 2, 1], pa.int32()), "value": [1, 2, 3]})
    source.append(data, partition_by=["day", "hour"])
    reader = IncrementalReader(source, target)
    first = reader.next_batch()
    assert first is not None
    target.append(first.scan().to_arrow(), txn=first.txn)
    source.append(data.slice(1, 1))
    batch = reader.next_batch()
    assert batch is not None
    assert batch.partitions().to_pylist() == [{"day": "a", "hour": 2}]
    assert batch.scan().to_arrow().column("value").to_pylist() == [2, 2]


def test_max_versions_limits_a_batch(source: DeltaTable, target: DeltaTable) -> None:
    reader = IncrementalReader(source, target, bootstrap="changes", max_versions=1)
    for day in (3, 4):
        source.append(rows(day))
    seen = []
    while (batch := reader.next_batch()) is not None:
        seen.append((batch.starting_version, batch.ending_version, batch.is_bootstrap, touched(batch)))
        target.append(batch.changes.to_arrow().select(["day", "value"]), txn=batch.txn)
    assert seen == [(0, 0, True, [1, 2]), (1, 1, False, [3]), (2, 2, False, [4])]
    assert values(target) == values(source)


def test_max_versions_counts_only_versions_that_change_data(source: DeltaTable, target: DeltaTable) -> None:
    source.append(rows(1))
    source.optimize()
    source.append(rows(5))
    reader = IncrementalReader(source, target, bootstrap="changes", max_versions=2)
    batch = reader.next_batch()
    assert batch is not None
    assert batch.ending_version == 1
    target.append(batch.changes.to_arrow().select(["day", "value"]), txn=batch.txn)
    batch = reader.next_batch()
    assert batch is not None
    assert (batch.starting_version, batch.ending_version) == (2, 3)
    assert touched(batch) == [5]


def test_no_cursor_and_no_bootstrap_is_an_error(source: DeltaTable, target: DeltaTable) -> None:
    with pytest.raises(InvalidRequestError, match="no cursor"):
        IncrementalReader(source, target, bootstrap="error").next_batch()


def test_a_source_that_does_not_exist(tmp_path: Path, target: DeltaTable) -> None:
    with pytest.raises(TableNotFoundError):
        IncrementalReader(DeltaTable(tmp_path / "nowhere"), target).next_batch()


def recreate(source: DeltaTable) -> None:
    shutil.rmtree(source.uri.removeprefix("file://"))
    DeltaTable(source.uri).append(rows(7), partition_by=["day"])


def test_a_recreated_source_is_an_error_unless_allowed(source: DeltaTable, target: DeltaTable) -> None:
    first = IncrementalReader(source, target).next_batch()
    assert first is not None
    target.append(first.scan().to_arrow(), txn=first.txn)
    recreate(source)
    with pytest.raises(InvalidRequestError, match="is not the table that silver has read") as caught:
        IncrementalReader(source, target).next_batch()
    assert "full_refresh" in str(caught.value)
    batch = IncrementalReader(source, target, on_recreated="bootstrap").next_batch()
    assert batch is not None
    assert batch.is_recreated
    assert batch.is_bootstrap
    assert touched(batch) == [7]
    target.overwrite(batch.scan().to_arrow(), txn=batch.txn)
    assert values(target) == [(7, 1)]
    assert IncrementalReader(source, target).next_batch() is None


def test_readers_of_two_sources_have_their_own_names(source: DeltaTable, target: DeltaTable, tmp_path: Path) -> None:
    other = DeltaTable(tmp_path / "weather")
    other.append(rows(4), partition_by=["day"])
    for table, consumer in ((source, "silver/flights"), (other, "silver/weather")):
        reader = IncrementalReader(table, target, consumer=consumer)
        batch = reader.next_batch()
        assert batch is not None
        assert not batch.is_recreated
        target.append(batch.scan().to_arrow(), txn=batch.txn)
        assert reader.next_batch() is None


def test_history_that_is_gone_is_an_error_with_a_remedy(source: DeltaTable, target: DeltaTable) -> None:
    reader = IncrementalReader(source, target)
    first = reader.next_batch()
    assert first is not None
    target.append(first.scan().to_arrow(), txn=first.txn)
    source.append(rows(3))
    source.append(rows(4))
    source.checkpoint()
    log = Path(source.uri.removeprefix("file://")) / "_delta_log"
    for version in (0, 1):
        (log / f"{version:020d}.json").unlink()
    with pytest.raises(VersionNotFoundError, match="Version 1 of the source") as caught:
        reader.next_batch()
    assert "delta.logRetentionDuration" in str(caught.value)


def test_a_source_that_took_another_shape_is_an_error_with_a_remedy(source: DeltaTable, target: DeltaTable) -> None:
    def run(**extras: Any) -> None:
        step = Step("A step", target, "overwrite_partitions", options={"partition_by": ["day"]})
        reader = IncrementalReader(source, target, **extras)
        step.process(reader, lambda batch: batch.scan(["day", "value"]).to_arrow(), until_current=True)

    source.alter().set_properties({"delta.columnMapping.mode": "name"}).commit()
    source.append(rows(3).append_column("more", pa.array([1])), schema_mode="merge")
    run()
    source.append(rows(4).append_column("more", pa.array([1])))
    source.alter().drop_columns("more").commit()
    with pytest.raises(UnsupportedFeatureError, match="with max_versions=1"):
        run()
    run(max_versions=1)
    assert values(target) == [(1, 1), (2, 1), (3, 1), (4, 1)]
    source.overwrite(rows(1, value=5), schema_mode="overwrite", partition_by=["value"])
    with pytest.raises(UnsupportedFeatureError, match="run it once with full_refresh=True"):
        run(max_versions=1)
    refreshing = Step("A step", target, "overwrite_partitions", options={"partition_by": ["day"]})
    refreshing.process(IncrementalReader(source, target), lambda batch: batch.scan().to_arrow(), full_refresh=True)
    assert values(target) == [(1, 5)]
    run()
    assert values(target) == [(1, 5)]


def test_a_source_older_than_the_cursor_is_an_error(source: DeltaTable, target: DeltaTable) -> None:
    source.append(rows(3))
    reader = IncrementalReader(source, target)
    first = reader.next_batch()
    assert first is not None
    target.append(first.scan().to_arrow(), txn=first.txn)
    (Path(source.uri.removeprefix("file://")) / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(InvalidRequestError, match="has read it up to 1"):
        IncrementalReader(DeltaTable(source.uri), target).next_batch()


def test_two_workers_with_overlapping_batches_add_no_row_twice(source: DeltaTable, target: DeltaTable) -> None:
    reader = IncrementalReader(source, target, bootstrap="changes")
    slow = reader.next_batch()
    assert slow is not None
    source.append(rows(3))
    fast = IncrementalReader(source, DeltaTable(target.uri), bootstrap="changes").next_batch()
    assert fast is not None
    assert (slow.ending_version, fast.ending_version) == (0, 1)

    # The longer batch first: the shorter one has nothing left to say.
    target.append(fast.changes.to_arrow().select(["day", "value"]), txn=fast.txn)
    assert target.append(slow.changes.to_arrow().select(["day", "value"]), txn=slow.txn).skipped
    assert values(target) == values(source)


def test_a_longer_batch_after_a_shorter_one_is_refused(source: DeltaTable, target: DeltaTable) -> None:
    reader = IncrementalReader(source, target, bootstrap="changes")
    first = reader.next_batch()
    assert first is not None
    source.append(rows(3))
    longer = reader.next_batch()
    assert longer is not None
    target.append(first.changes.to_arrow().select(["day", "value"]), txn=first.txn)
    with pytest.raises(ConcurrentTransactionError):
        target.append(longer.changes.to_arrow().select(["day", "value"]), txn=longer.txn)
    again = reader.next_batch()
    assert again is not None
    target.append(again.changes.to_arrow().select(["day", "value"]), txn=again.txn)
    assert values(target) == values(source)


@pytest.mark.parametrize("arguments", [{"bootstrap": "x"}, {"on_recreated": "x"}, {"max_versions": 0}])
def test_arguments_are_checked(source: DeltaTable, target: DeltaTable, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        IncrementalReader(source, target, **arguments)


@pytest.mark.parametrize(
    ("mode", "partition_by", "refused"),
    [
        ("append", ["day"], "appending would double them"),
        ("overwrite", ["day"], ""),
        ("overwrite_partitions", ["value"], "hold rows of others"),
        ("overwrite_partitions", ["day"], ""),
        ("overwrite_changed", ["value"], ""),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_a_step_is_not_handed_rows_that_it_would_make_wrong_ones_of(
    source: DeltaTable, target: DeltaTable, mode: Mode, partition_by: list[str], refused: str
) -> None:
    step = Step("A step", target, mode, options={"partition_by": partition_by})
    step.process(IncrementalReader(source, target), lambda batch: batch.scan().to_arrow())
    source.append(rows(3))
    if refused:
        with pytest.raises(InvalidRequestError, match=refused):
            step.process(IncrementalReader(source, target), lambda batch: batch.scan().to_arrow())
        assert values(target) == [(1, 1), (2, 1)]
        return
    step.process(IncrementalReader(source, target), lambda batch: batch.scan().to_arrow())
    assert values(target) == [(1, 1), (2, 1), (3, 1)]


@pytest.mark.parametrize("other_day", [2, 9], ids=["there", "new"])
@pytest.mark.parametrize("begins", [True, False], ids=["first", "later"])
def test_rows_of_touched_partitions_replace_no_other(
    source: DeltaTable, target: DeltaTable, other_day: int, begins: bool
) -> None:
    def spills(batch: ChangeBatch) -> pa.Table:
        return pa.concat_tables([batch.scan().to_arrow(), rows(other_day, value=7)])

    step = Step("A step", target, "overwrite_partitions", options={"partition_by": ["day"]})
    if not begins:
        step.process(IncrementalReader(source, target), lambda batch: batch.scan().to_arrow())
        source.append(rows(1, value=3))
    if begins and other_day == 2:
        # Of its first batch it has read all rows.
        step.process(IncrementalReader(source, target), spills)
        assert values(target) == [(1, 1), (2, 1), (2, 7)]
        return
    with pytest.raises(InvalidRequestError, match=f"does not touch: day = 2013-01-0{other_day}"):
        step.process(IncrementalReader(source, target), spills)
    assert begins or values(target) == [(1, 1), (2, 1)]
    assert target.exists() is not begins
    # A step that asks for the rows itself knows what it replaces.
    step.process(
        IncrementalReader(source, target),
        lambda batch: pa.concat_tables([batch.snapshot.scan().to_arrow(), rows(other_day, value=7)]),
    )
    assert (other_day, 7) in values(target)


@pytest.mark.parametrize(
    ("column", "is_one_to_one"),
    [
        (pa.array(["2013-01-01", "2013-01-02"]), True),
        (pa.array([datetime(2013, 1, 1), datetime(2013, 1, 2)], pa.timestamp("us")), True),
        (pa.array(["2013-01", "2013-01"]), False),
    ],
)
def test_a_touched_partition_may_have_another_type(
    source: DeltaTable, target: DeltaTable, column: pa.Array, is_one_to_one: bool
) -> None:
    def step(batch: ChangeBatch) -> pa.Table:
        return batch.scan().to_arrow().sort_by("day").set_column(0, "day", column)

    write = Step("A step", target, "overwrite_partitions", options={"partition_by": ["day"]})
    if is_one_to_one:
        assert write.process(IncrementalReader(source, target), step).has_written
        return
    # Months that are called days: the next day would replace all of its month.
    with pytest.raises(InvalidRequestError, match=r"day = 2013-01\.\n"):
        write.process(IncrementalReader(source, target), step)


def test_a_table_that_was_replaced_is_filled_again(source: DeltaTable, target: DeltaTable) -> None:
    def run() -> None:
        step = Step("A step", target, "append", options={"partition_by": ["day"]})
        step.process(IncrementalReader(source, target), lambda batch: batch.inserted().to_arrow())

    run()
    target.create_or_replace(target.snapshot().schema, partition_by=["day"])
    run()
    assert values(target) == [(1, 1), (2, 1)]
    # Who says how far the new rows go is heard; with rows of one's own the cursor stays.
    cursor = f"cdc:silver<-{source.snapshot().metadata.id}"
    source.append(rows(3))
    target.create_or_replace(target.snapshot().schema, partition_by=["day"], txn=(cursor, 1))
    run()
    assert values(target) == []
    target.create_or_replace(data=rows(1), partition_by=["day"])
    run()
    assert values(target) == [(1, 1)]


@pytest.mark.parametrize("kind", [None, "upsert", "update_postimage"])
def test_a_change_of_no_kind_is_no_insert(tmp_path: Path, kind: str | None) -> None:
    """A stranger has written the file with the changes."""
    feed, target = DeltaTable(tmp_path / "feed"), DeltaTable(tmp_path / "target")
    feed.append(rows(1), properties={"delta.enableChangeDataFeed": "true"})

    def run() -> None:
        reader = IncrementalReader(feed, target)
        Step("A step", target, "append").process(reader, lambda batch: batch.inserted().to_arrow())

    run()
    changes = rows(2).append_column("_change_type", pa.array([kind], pa.string()))
    pq.write_table(changes, tmp_path / "feed/c.parquet")
    cdc = {"path": "c.parquet", "partitionValues": {}, "size": (tmp_path / "feed/c.parquet").stat().st_size}
    (tmp_path / "feed/_delta_log" / f"{1:020d}.json").write_text(json.dumps({"cdc": {**cdc, "dataChange": False}}))
    with pytest.raises(InvalidRequestError, match="do more than insert"):
        run()


class TwoConsumers:
    """Steps of two sources that fill one table, by partitions."""

    def __init__(self, path: Path) -> None:
        self.target = DeltaTable(path / "shared")
        self.sources = {name: DeltaTable(path / name) for name in "ab"}

    def write(self, name: str, *days: int, value: int) -> None:
        self.sources[name].append(rows(*days, value=value), partition_by=["day"])
        self.run(name)

    def run(self, name: str) -> None:
        reader = IncrementalReader(self.sources[name], self.target, consumer=name)
        step = Step(name, self.target, "overwrite_partitions", options={"partition_by": ["day"]})
        step.process(reader, lambda batch: batch.scan().to_arrow())


def test_a_step_replaces_no_rows_of_a_step_with_another_cursor(tmp_path: Path) -> None:
    both = TwoConsumers(tmp_path)
    both.write("a", 1, value=1)
    both.write("b", 2, value=2)
    both.write("a", 1, value=3)
    with pytest.raises(InvalidRequestError, match=r"cdc:a<-.* wrote them"):
        both.write("b", 1, value=4)
    # Compacted or partly deleted, they are the same rows.
    both.target.optimize()
    both.target.delete("value = 3")
    with pytest.raises(InvalidRequestError, match="cdc:a"):
        both.run("b")
    assert values(both.target) == [(1, 1), (2, 2)]
    # A partition is taken over by deleting its rows; rows of a writer without cursor are replaced.
    both.target.overwrite(rows(1, value=9), replace_where="day = '2013-01-01'")
    both.run("b")
    assert values(both.target) == [(1, 4), (2, 2)]


def test_rows_that_another_writer_has_left_in_a_file_are_still_those_of_the_step(tmp_path: Path) -> None:
    both = TwoConsumers(tmp_path)
    both.sources["a"].append(rows(1, value=2), partition_by=["day"])
    both.write("a", 1, value=1)
    both.target.overwrite(rows(1, value=9), replace_where="day = '2013-01-01' AND value <> 2")
    with pytest.raises(InvalidRequestError, match=r"cdc:a<-.* wrote them"):
        both.write("b", 1, value=4)
    assert values(both.target) == [(1, 2), (1, 9)]
    both.target.optimize()
    both.target.vacuum(0, enforce_retention=False)  # Now nobody can tell whose rows were in the files before.
    with pytest.raises(InvalidRequestError, match=r"cdc:a<-.* wrote them"):
        both.run("b")
    both.target.delete("day = '2013-01-01'")
    both.run("b")
    assert values(both.target) == [(1, 4)]


def test_files_tell_whose_rows_they_are_when_the_log_is_gone(tmp_path: Path) -> None:
    both = TwoConsumers(tmp_path)
    both.write("a", 1, value=1)
    both.write("b", 2, value=2)
    both.target.checkpoint()
    for version in range(both.target.version()):
        (tmp_path / "shared" / "_delta_log" / f"{version:020}.json").unlink()
    both.write("a", 1, value=4)
    with pytest.raises(InvalidRequestError, match=r"cdc:a<-.* wrote them"):
        both.write("b", 1, value=5)
    assert values(both.target) == [(1, 1), (1, 4), (2, 2)]


def test_what_a_restore_undoes_is_read_again(source: DeltaTable, target: DeltaTable) -> None:
    def run() -> None:
        step = Step("A step", target, "append", options={"partition_by": ["day"]})
        reader = IncrementalReader(source, target)
        step.process(reader, lambda b: (b.scan() if b.is_bootstrap else b.changes).to_arrow().select(["day", "value"]))

    target.append(rows(9), partition_by=["day"])
    run()
    source.append(rows(3))
    run()
    everything = [(1, 1), (2, 1), (3, 1), (9, 1)]
    assert (values(target), target.version()) == (everything, 2)
    target.restore(version=1)
    assert values(target) == [(1, 1), (2, 1), (9, 1)]
    run()
    assert values(target) == everything
    # From before the cursor was there, and forward again.
    target.restore(version=0)
    assert set(target.txns().values()) == {-1}
    run()
    assert values(target) == everything
    target.restore(version=2)
    run()
    assert (values(target), target.version()) == (everything, 7)


@family("seed", range(12), every=5)
def test_a_union_of_several_sources_by_partitions(tmp_path: Path, seed: int) -> None:
    """Whichever sources have news, the target holds the rows of all of them."""
    choose = random.Random(seed)
    sources = {name: DeltaTable(tmp_path / name) for name in "abc"[: choose.choice((2, 3))]}
    by_day = {name: ["day"] if choose.random() < 0.8 else None for name in sources}
    target = DeltaTable(tmp_path / "target")
    for name, source in sources.items():
        source.append(rows(1, 2, value=0), partition_by=by_day[name])
    step = Step("union", target, "overwrite_partitions", options={"partition_by": ["day"]})

    def union(batches: Mapping[str, ChangeBatch]) -> pa.Table:
        assert set(batches) == set(sources)
        return pa.concat_tables([batch.scan().to_arrow() for batch in batches.values()])

    for turn in range(1, 8):
        for name in choose.sample(sorted(sources), choose.randint(1, len(sources))):
            if choose.random() < 0.7:
                sources[name].append(rows(choose.randint(1, 4), value=turn))
            else:
                sources[name].update(
                    {"value": str(turn)}, f"value < {turn} AND day = '2013-01-0{choose.randint(1, 2)}'"
                )
        readers = {
            name: IncrementalReader(source, target, consumer=f"union/{name}", max_versions=choose.choice((None, 1)))
            for name, source in sources.items()
        }
        while step.process_all(readers, union).has_written:
            pass
        expected = sorted(one for source in sources.values() for one in values(source))
        assert values(target) == expected


@pytest.mark.parametrize("extras", [{}, {"bootstrap": "changes", "max_versions": 1}])
def test_who_replaces_all_rows_need_not_know_what_changed(
    source: DeltaTable, target: DeltaTable, extras: dict[str, Any]
) -> None:
    def run() -> StepReport:
        step = Step("A step", target, "overwrite", schema_mode=SchemaMode.OVERWRITE)
        reader = IncrementalReader(source, target, **extras)
        return step.process(reader, lambda batch: batch.scan().to_arrow(), until_current=True)

    run()
    source.overwrite(rows(1, value=5), schema_mode="overwrite", partition_by=["value"])
    assert run().batches[-1].starting_version is None and values(target) == [(1, 5)]
    source.append(rows(2, value=5))
    source.append(rows(3, value=6))
    source.checkpoint()
    for file in Path(source.uri.removeprefix("file://"), "_delta_log").glob("0*.json"):
        file.unlink()
    assert run().batches[-1].starting_version is None and values(target) == [(1, 5), (2, 5), (3, 6)]
    assert run().outcome == "nothing new"
