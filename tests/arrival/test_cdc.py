"""`apply_changes` against a plain model: what a table holds depends on the set of events alone."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import (
    ColumnNotFoundError,
    ConflictError,
    ConstraintViolationError,
    InvalidRequestError,
    LateChangeError,
    SchemaMismatchError,
)
from delta_orch.testing import open_table
from tests.families import family
from tests.harness.fault_store import FaultStore, Moment

SETS_OF_A_TABLE = 50
MAPPED = {"delta.columnMapping.mode": "name"}


class Event(NamedTuple):
    """What becomes of a key at a sequence. `value` None with `gone`: it is deleted."""

    key: int
    at: int
    number: int
    value: str | None
    gone: bool = False


def rows(events: Iterable[Event]) -> pa.Table:
    every = list(events)
    return pa.table(
        {
            "a key": pa.array([e.key for e in every], pa.int64()),
            "at": pa.array([e.at for e in every], pa.int64()),
            "number": pa.array([e.number for e in every], pa.int32()),
            "vä.l": pa.array([e.value for e in every], pa.string()),
            "op": pa.array(["D" if e.gone else None if e.value is None else "U" for e in every], pa.string()),
        }
    )


HOW: dict[str, Any] = {
    "keys": ["A Key"],
    "sequence_by": ["at", "number"],
    "delete_when": "op = 'D'",
    "except_columns": ["op"],
}


def apply(table: DeltaTable, events: Iterable[Event], data: Any = None, **how: Any) -> Any:
    given = rows(events)
    return table.apply_changes(given if data is None else data(given), **{**HOW, "properties": MAPPED, **how})


def expected(events: Iterable[Event], scd: Any) -> list[tuple[Any, ...]]:
    """The model: the newest event of each key, or all of them."""
    of_key: dict[int, list[Event]] = {}
    for event in sorted(set(events), key=lambda e: (e.key, e.at, e.number)):
        of_key.setdefault(event.key, []).append(event)
    if scd == 1:
        return sorted((*last[:3], None if last.gone else last.value, last.gone) for *_, last in of_key.values())
    made = []
    for history in of_key.values():
        for event, after in zip(history, [*history[1:], None], strict=True):
            ends = event.at if event.gone else None if after is None else after.at
            value = None if event.gone else event.value
            made.append((*event[:3], value, event.at, ends, not event.gone and after is None, event.gone))
    return sorted(made, key=repr)


COLUMNS = ["`a key`", "at", "number", "`vä.l`"]


def content(table: DeltaTable, scd: Any) -> list[tuple[Any, ...]]:
    own = ["_deleted_at"] if scd == 1 else ["valid_from", "valid_to", "is_current", "is_deleted"]
    found = list(zip(*table.snapshot().scan([*COLUMNS, *own]).to_arrow().to_pydict().values(), strict=True))
    if scd == 1:
        return sorted((*row[:-1], row[-1] is not None) for row in found)
    return sorted(found, key=repr)


def random_sets(chance: random.Random, sets: int) -> list[Event]:
    """Sets of events of up to three keys each, which no other set has."""
    events = []
    for number in range(sets):
        for key in range(chance.randint(1, 3)):
            places = chance.sample([(at, n) for at in range(5) for n in range(2)], chance.randint(1, 6))
            for at, order in places:
                gone = chance.random() < 0.3
                events.append(Event(number * 10 + key, at, order, chance.choice(["x", "y", None]), gone))
    return events


def random_batches(chance: random.Random, events: Sequence[Event]) -> list[list[Event]]:
    """Any permutation, some of them several times, in any batches."""
    every = [*events, *chance.choices(events, k=len(events) // 3)]
    chance.shuffle(every)
    cuts = sorted(chance.sample(range(1, len(every)), min(chance.randint(0, 3), len(every) - 1)))
    return [every[start:end] for start, end in zip([0, *cuts], [*cuts, len(every)], strict=True)]


@pytest.mark.parametrize("scd", [1, 2])
@family("seed", range(2_000 // SETS_OF_A_TABLE), every=4)
def test_any_order_gives_the_same_table(tmp_path: Path, seed: int, scd: Any) -> None:
    chance = random.Random(seed)
    events = random_sets(chance, SETS_OF_A_TABLE)
    properties = {**MAPPED, "delta.enableDeletionVectors": str(seed % 2 == 0).lower()}
    table = DeltaTable(tmp_path / "t")
    seen: list[Event] = []
    for batch in random_batches(chance, events):
        seen += batch
        apply(table, batch, scd=scd, properties=properties)
        assert content(table, scd) == expected(seen, scd)
    assert apply(table, events, scd=scd).skipped


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("scd", [1, 2])
def test_spark_gives_the_same_table(tmp_path: Path, spark: Any, scd: Any) -> None:
    """Many sets in one table, because a job of Spark takes seconds."""
    chance = random.Random(scd)
    events = random_sets(chance, 2_000)
    table, seen = DeltaTable(tmp_path / "t"), list[Event]()
    for batch in random_batches(chance, events):
        seen += batch
        apply(table, batch, spark.createDataFrame, scd=scd)
        assert content(table, scd) == expected(seen, scd)
    assert apply(table, events, spark.createDataFrame, scd=scd).skipped


def test_other_readers_see_the_rows(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    events = [Event(1, 1, 0, "x"), Event(1, 5, 0, None, gone=True), Event(2, 3, 0, "y"), Event(1, 3, 0, "z")]
    how: dict[str, Any] = {"keys": ["key"], "sequence_by": "at", "delete_when": "op = 'D'"}
    for scd in (1, 2):
        uri = str(tmp_path / str(scd))
        for event in events:
            given = rows([event]).rename_columns(["key", "at", "number", "value", "op"])
            DeltaTable(uri).apply_changes(given, scd=scd, except_columns=["op"], **how)
    found = deltalake.DeltaTable(str(tmp_path / "1")).to_pyarrow_table().to_pylist()
    assert [(r["key"], r["value"]) for r in found if r["_deleted_at"] is None] == [(2, "y")]
    versions = deltalake.DeltaTable(str(tmp_path / "2")).to_pyarrow_dataset()  # noqa: F841  # DuckDB finds it
    at_four = duckdb.sql("SELECT key, value FROM versions WHERE valid_from <= 4 AND coalesce(valid_to > 4, true)")
    assert sorted(at_four.fetchall()) == [(1, "z"), (2, "y")]
    assert duckdb.sql("SELECT key, value FROM versions WHERE is_current").fetchall() == [(2, "y")]


@pytest.mark.parametrize("scd", [1, 2])
def test_two_events_that_differ_are_refused_with_their_key(tmp_path: Path, scd: Any) -> None:
    table = DeltaTable(tmp_path / "t")
    apply(table, [Event(1, 1, 0, "x")], scd=scd)
    for batch in ([Event(7, 1, 0, "x"), Event(7, 1, 0, "y")], [Event(1, 1, 0, "y")], [Event(1, 1, 0, None, True)]):
        with pytest.raises(ConstraintViolationError, match="differ") as caught:
            apply(table, batch, scd=scd)
        assert caught.value.context["row"]["a key"] == batch[0].key
    assert table.version() == 0
    # What was there before decides nothing any more.
    older = [Event(9, 1, 0, "x"), Event(9, 1, 0, "y"), Event(9, 2, 0, "z")]
    if scd == 1:
        apply(table, older)
        assert content(table, 1) == [(1, 1, 0, "x", False), (9, 2, 0, "z", False)]


def test_tombstones_are_dropped_and_what_comes_later_is_refused(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    gone = [Event(key, key, 0, None, gone=True) for key in (1, 2, 3)]
    apply(table, [*gone, Event(8, 1, 0, "x")])
    # All are too old now. The newest one stays, and says what comes too late.
    none = {"tombstone_retention": timedelta(0)}
    apply(table, [Event(8, 2, 0, "y")], **none)
    assert content(table, 1) == [(3, 3, 0, None, True), (8, 2, 0, "y", False)]
    for late in (Event(1, 0, 5, "late"), Event(5, 2, 0, "late"), Event(5, 3, 0, None, gone=True)):
        with pytest.raises(LateChangeError, match="tombstone_retention") as caught:
            apply(table, [late, Event(6, 9, 0, "z")], **none)
        assert caught.value.context["row"]["a key"] == late.key
    assert table.version() == 1
    # The place of a key that the table has is known, and newer rows come as ever.
    apply(table, [Event(8, 1, 0, "x"), Event(3, 2, 0, "old"), Event(5, 3, 1, "z")], **none)
    assert content(table, 1) == [(3, 3, 0, None, True), (5, 3, 1, "z", False), (8, 2, 0, "y", False)]
    apply(table, [Event(3, 4, 0, "again")], **none)
    assert content(table, 1)[0] == (3, 4, 0, "again", False)


def test_two_appliers_drop_the_same_tombstones(tmp_path: Path) -> None:
    none: dict[str, Any] = {"tombstone_retention": timedelta(0)}
    properties = {**MAPPED, "delta.enableDeletionVectors": "true"}
    apply(DeltaTable(tmp_path / "t"), [Event(key, key, 0, None, gone=True) for key in range(4)], properties=properties)
    store = FaultStore(DeltaTable(tmp_path / "t").store)
    other = DeltaTable(tmp_path / "t")
    store.at(Moment.COMMIT_PUT, "before", do=lambda call: apply(other, [Event(8, 9, 0, "x")], **none))
    apply(open_table(store), [Event(7, 9, 0, "y")], **none)
    assert content(other, 1) == [(3, 3, 0, None, True), (7, 9, 0, "y", False), (8, 9, 0, "x", False)]


def test_a_table_of_others_is_taken_over(tmp_path: Path) -> None:
    """It gets the column of tombstones with the first event that may delete."""
    table = DeltaTable(tmp_path / "t")
    table.append(rows([Event(1, 1, 0, "x"), Event(2, 1, 0, "x")]).drop_columns(["op"]), properties=MAPPED)
    how = {**HOW, "delete_when": None}
    table.apply_changes(rows([Event(1, 0, 0, "old"), Event(1, 2, 0, "new")]), **how)
    assert "_deleted_at" not in table.snapshot().schema.names
    apply(table, [Event(2, 5, 0, None, gone=True), Event(2, 3, 0, "late")])
    assert content(table, 1) == [(1, 2, 0, "new", False), (2, 5, 0, None, True)]
    table.apply_changes(rows([Event(2, 4, 0, "late"), Event(1, 3, 0, "z")]), **how)
    assert content(table, 1) == [(1, 3, 0, "z", False), (2, 5, 0, None, True)]


def nested(given: pa.Table) -> pa.Table:
    """The values as lists of structs. Each row is there twice."""
    kind = pa.list_(pa.struct([("a", pa.string())]))
    inside = pa.array([[{"a": value}, None] for value in given.column("vä.l").to_pylist()], kind)
    other = given.set_column(3, "vä.l", inside)
    return pa.concat_tables([other, other])


@pytest.mark.parametrize("scd", [1, 2])
def test_values_may_be_lists_and_structs(tmp_path: Path, scd: Any) -> None:
    chance, table = random.Random(7), DeltaTable(tmp_path / "t")
    events = random_sets(chance, 20)
    for batch in random_batches(chance, events):
        apply(table, batch, nested, scd=scd)
    found = [(*row[:3], row[3] and row[3][0]["a"], *row[4:]) for row in content(table, scd)]
    assert sorted(found, key=repr) == sorted(expected(events, scd), key=repr)


@pytest.mark.parametrize("inside", ["map", "list of maps"])
def test_maps_do_not_compare(tmp_path: Path, inside: str) -> None:
    kind: pa.DataType = pa.map_(pa.string(), pa.int64())
    kind = kind if inside == "map" else pa.list_(kind)
    table, given = DeltaTable(tmp_path / "t"), rows([Event(1, 1, 0, "x")])
    with pytest.raises(SchemaMismatchError, match="attributes"):
        table.apply_changes(given.append_column("attributes", pa.nulls(1, kind)), **HOW)
    assert not table.exists()


NAMES = ["n", "known", "prior_from", "b", "c", "p", "h", "l", "q", "batch", "history", "steps", "t", "s", "ends"]


@pytest.mark.long
@pytest.mark.parametrize("scd", [1, 2])
@pytest.mark.parametrize("first", range(0, len(NAMES), 3))
def test_columns_may_have_any_name(tmp_path: Path, first: int, scd: Any) -> None:
    names = NAMES[first : first + 3]
    table, chance = DeltaTable(tmp_path / "t"), random.Random(first)
    events = [e for e in random_sets(chance, 5) if not e.number]
    for batch in random_batches(chance, events):
        given = rows(batch).select(["a key", "at", "vä.l", "op"]).rename_columns([*names, "op"])
        how: dict[str, Any] = {"keys": names[:1], "sequence_by": names[1], "scd": scd}
        table.apply_changes(given, delete_when="op = 'D'", except_columns=["op"], **how)
    found = table.snapshot().scan([f"`{name}`" for name in names]).to_arrow()
    wanted = [(row[0], row[1], row[3]) for row in expected(events, scd)]
    assert sorted(zip(*found.to_pydict().values(), strict=True), key=repr) == sorted(wanted, key=repr)


@pytest.mark.parametrize("scd", [1, 2])
def test_a_reader_is_read_once(tmp_path: Path, scd: Any) -> None:
    table = DeltaTable(tmp_path / "t")
    events = [Event(1, 2, 0, "x"), Event(1, 1, 0, "y")]
    for event in events:
        apply(table, [event], lambda given: given.to_reader(), scd=scd)
    assert content(table, scd) == expected(events, scd)


@pytest.mark.parametrize("scd", [1, 2])
@pytest.mark.parametrize("is_new", [True, False])
def test_appliers_of_one_key_conflict_and_others_do_not(tmp_path: Path, is_new: bool, scd: Any) -> None:
    table = DeltaTable(tmp_path / "t")
    properties = {**MAPPED, "delta.enableDeletionVectors": "true"}
    apply(table, [Event(5 if is_new else 1, 1, 0, "x"), Event(7, 1, 0, "x")], scd=scd, properties=properties)
    stale = DeltaTable(tmp_path / "t")
    stale.snapshot()
    before = stale.snapshot()
    apply(table, [Event(1, 2, 0, None, gone=True)], scd=scd)
    with pytest.raises(ConflictError):
        before.apply_changes(rows([Event(1, 3, 0, "b")]), scd=scd, **HOW)
    before.apply_changes(rows([Event(8, 3, 0, "b"), Event(7, 3, 0, "b")]), scd=scd, **HOW)
    assert (8, 3, 0, "b") in [row[:4] for row in content(table, scd)]


@pytest.mark.parametrize("scd", [1, 2])
def test_snapshots_delete_what_they_lack(tmp_path: Path, scd: Any) -> None:
    """With versions, a row that is as it was adds none. A snapshot that comes late cannot be placed."""
    table, how = DeltaTable(tmp_path / "t"), {"delete_when": None, "full_snapshot": True, "scd": scd}
    contents: list[dict[int, str]] = [{1: "a", 2: "a"}, {1: "a", 2: "b"}, {1: "a"}, {1: "a"}, {1: "c", 2: "a"}]
    for at, values in enumerate(contents, start=1):
        for _ in range(2):
            apply(table, [Event(key, at, 0, value) for key, value in values.items()], **how)
    if scd == 1:
        assert content(table, 1) == [(1, 5, 0, "c", False), (2, 5, 0, "a", False)]
    else:
        kept = [(row[0], *row[3:6]) for row in content(table, 2) if not row[-1]]
        ended = [(2, "a", 1, 2), (2, "b", 2, 3), (2, "a", 5, None)]
        assert sorted((row for row in kept if row[0] == 2), key=repr) == sorted(ended, key=repr)
        assert [row for row in kept if row[0] == 1 and row[1] == "c"] == [(1, "c", 5, None)]
        # The fourth snapshot is as the third, and leaves a row all the same.
        assert len(kept) == 6
    late = [Event(1, 4, 0, "z")]
    with pytest.raises(LateChangeError, match="snapshot comes late"):
        apply(table, late, **how)
    for batch, problem in (([], "empty"), ([Event(1, 6, 0, "a"), Event(2, 7, 0, "a")], "several sequences")):
        with pytest.raises(ConstraintViolationError, match=problem):
            apply(table, batch, **how)


def test_a_snapshot_without_changes_is_not_forgotten(tmp_path: Path) -> None:
    """A later look at an older one would undo what it says."""
    table, how = DeltaTable(tmp_path / "t"), {"delete_when": None, "full_snapshot": True, "scd": 2}
    for at in (1, 3, 3):
        apply(table, [Event(key, at, 0, "a") for key in (1, 2)], **how)
    with pytest.raises(LateChangeError, match="snapshot comes late"):
        apply(table, [Event(1, 2, 0, "b"), Event(2, 2, 0, "a")], **how)
    assert len(content(table, 2)) == 3


@pytest.mark.parametrize("scd", [1, 2])
def test_change_feeds_of_tables(tmp_path: Path, scd: Any) -> None:
    """A copy by its changes has the rows of the source, whatever the order of the parts."""
    source, copy = DeltaTable(tmp_path / "s"), DeltaTable(tmp_path / "t")
    source.append(pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]}), properties={"delta.enableChangeDataFeed": "true"})
    source.update({"v": "'x'"}, "id = 1")
    source.delete("id = 2")
    source.update({"id": "9"}, "id = 3")
    source.overwrite(pa.table({"id": [1, 5], "v": ["y", "z"]}))
    parts = [(0, 1), (2, 2), (3, 4)]
    random.Random(scd).shuffle(parts)
    for first, last in [*parts, parts[0]]:
        feed = source.changes(starting_version=first, ending_version=last)
        copy.apply_changes(feed, keys=["id"], sequence_by="_commit_version", envelope="change_feed", scd=scd)
    found = copy.snapshot().scan(where="_deleted_at IS NULL" if scd == 1 else "is_current").to_arrow()
    assert found.schema.names[:3] == ["id", "v", "source_version"]
    assert sorted(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True)) == [(1, "y"), (5, "z")]


IMAGE = pa.struct([("id", pa.int64()), ("v", pa.string())])
DEBEZIUM = pa.schema(
    [
        ("before", IMAGE),
        ("after", IMAGE),
        ("op", pa.string()),
        ("source", pa.struct([("lsn", pa.int64())])),
        ("ts_ms", pa.int64()),
    ]
)


def envelope(op: str | None, key: int, value: str | None, lsn: int) -> dict[str, Any]:
    row = {"id": key, "v": value}
    after, before = (None, {"id": key, "v": None}) if op == "d" else (row, None)
    return {"before": before, "after": after if op else None, "op": op, "source": {"lsn": lsn}, "ts_ms": 1}


@pytest.mark.parametrize("scd", [1, 2])
def test_envelopes_of_debezium(tmp_path: Path, scd: Any) -> None:
    table = DeltaTable(tmp_path / "t")
    events = [envelope("r", 1, "a", 1), envelope("d", 1, None, 5), envelope("c", 2, "b", 2), envelope("u", 1, "c", 3)]
    events += [envelope(None, 1, None, 6)]
    random.Random(scd).shuffle(events)
    how: dict[str, Any] = {"keys": ["id"], "envelope": "debezium", "scd": scd}
    for event in events:
        table.apply_changes(pa.Table.from_pylist([event], DEBEZIUM), sequence_by=["ts_ms", "source.lsn"], **how)
    found = table.snapshot().scan(where="_deleted_at IS NULL" if scd == 1 else "is_current").to_arrow()
    assert found.select(["id", "v", "ts_ms", "lsn"]).to_pylist() == [{"id": 2, "v": "b", "ts_ms": 1, "lsn": 2}]
    truncated = pa.Table.from_pylist([envelope("t", 1, None, 9)], DEBEZIUM)
    with pytest.raises(InvalidRequestError, match="changes no row"):
        table.apply_changes(truncated, sequence_by=["ts_ms", "source.lsn"], **how)
    with pytest.raises(ColumnNotFoundError, match=r"source\.pos"):
        table.apply_changes(pa.Table.from_pylist(events, DEBEZIUM), sequence_by="source.pos", **how)


@pytest.mark.parametrize(
    ("how", "kind", "problem"),
    [
        ({"except_columns": ["op", "at"]}, InvalidRequestError, "needs"),
        ({"except_columns": ["op", "a key"]}, InvalidRequestError, "needs"),
        ({"sequence_by": ["a key"]}, InvalidRequestError, "both a key"),
        ({"sequence_by": []}, InvalidRequestError, "has no column"),
        ({"keys": []}, InvalidRequestError, "has no column"),
        ({"envelope": "debezium"}, InvalidRequestError, "with delete_when"),
        ({"envelope": "debezium", "delete_when": None}, SchemaMismatchError, "no column op|no column before"),
        ({"tombstone_retention": "soon"}, InvalidRequestError, "soon"),
        ({"delete_when": "nothing = 1"}, ColumnNotFoundError, "nothing"),
        ({"tx": ("a", 1)}, InvalidRequestError, "no option 'tx'"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, how: dict[str, Any], kind: type[Exception], problem: str) -> None:
    table = DeltaTable(tmp_path / "t")
    with pytest.raises(kind, match=problem):
        apply(table, [Event(1, 1, 0, "x")], **how)
    assert not table.exists()


def test_rows_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    table, given = DeltaTable(tmp_path / "t"), rows([Event(1, 1, 0, "x")])
    floats = given.set_column(1, "at", pa.array([1.0]))
    with pytest.raises(SchemaMismatchError, match="double"):
        table.apply_changes(floats, **HOW)
    with pytest.raises(ConstraintViolationError, match="null"):
        table.apply_changes(given.set_column(1, "at", pa.nulls(1, pa.int64())), **HOW)
    table.apply_changes(given, properties=MAPPED, **HOW)
    with pytest.raises(SchemaMismatchError):
        table.apply_changes(given.append_column("more", pa.array([1])), **HOW)
    with pytest.raises(SchemaMismatchError):
        table.apply_changes(given.drop_columns(["number"]), **{**HOW, "sequence_by": "at"})
    with pytest.raises(SchemaMismatchError):
        table.apply_changes(given.set_column(3, "vä.l", pa.array([1])), **HOW)
    assert table.version() == 0


def test_a_recorded_transaction_applies_nothing(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    apply(table, [Event(1, 1, 0, "x")], txn=("job", 1))
    assert apply(table, [Event(1, 1, 0, "other")], txn=("job", 1)).skipped
    preview = apply(table, [Event(1, 2, 0, "other")], dry_run=True).preview
    assert (preview.version, table.version()) == (1, 0)


@pytest.mark.long
@pytest.mark.spark
def test_spark_drops_tombstones_and_takes_snapshots_and_envelopes(tmp_path: Path, spark: Any) -> None:
    frame = spark.createDataFrame
    table, none = DeltaTable(tmp_path / "t"), {"tombstone_retention": timedelta(0)}
    apply(table, [Event(key, key, 0, None, gone=True) for key in (1, 2, 3)], frame)
    apply(table, [Event(8, 4, 0, "y")], frame, **none)
    assert content(table, 1) == [(3, 3, 0, None, True), (8, 4, 0, "y", False)]
    with pytest.raises(LateChangeError, match="tombstone_retention"):
        apply(table, [Event(1, 0, 5, "late")], frame, **none)
    versions, whole = DeltaTable(tmp_path / "v"), {"delete_when": None, "full_snapshot": True, "scd": 2}
    for at, values in ((1, {1: "a", 2: "a"}), (2, {1: "a"}), (3, {1: "a"})):
        apply(versions, [Event(key, at, 0, value) for key, value in values.items()], frame, **whole)
    assert [row[:2] for row in content(versions, 2)] == [(1, 1), (1, 3), (2, 1), (2, 2)]
    with pytest.raises(LateChangeError, match="snapshot comes late"):
        apply(versions, [Event(1, 2, 0, "b")], frame, **whole)
    copy, events = DeltaTable(tmp_path / "c"), [envelope("c", 1, "a", 2), envelope("d", 1, None, 5)]
    for event in (*reversed(events), envelope("u", 1, "b", 3)):
        arrow = pa.Table.from_pylist([event], DEBEZIUM)
        copy.apply_changes(frame(arrow), keys=["id"], sequence_by=["ts_ms", "source.lsn"], envelope="debezium")
    assert [(row["id"], row["lsn"], row["v"]) for row in copy.snapshot().scan().to_arrow().to_pylist()] == [
        (1, 5, None)
    ]
