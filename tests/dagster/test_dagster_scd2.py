"""The mode scd2: the versions of each key, against a plain model."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_orch.dagster import ChangeBatch, DeltaTableResource, delta_asset
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import ConflictError, ConstraintViolationError, InvalidRequestError, SchemaMismatchError
from delta_orch.pipeline.scd2 import Deletes, apply_scd2
from delta_orch.pipeline.target_table import snapshot_or_none
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
    found = table.snapshot().scan(["`a key`", "`vä.l`", "valid_from", "valid_to", "is_current"]).to_arrow()
    return sorted(zip(*found.to_pydict().values(), strict=True), key=repr)


class Model:
    """Key → its versions: value, from, to."""

    def __init__(self) -> None:
        self.versions: dict[int, list[list[Any]]] = {}

    def apply(self, batch: list[Row], ends: frozenset[str] = frozenset(), *, full: bool = False) -> bool:
        """Whether the batch is in order; if not, nothing changes. A value of `ends` ends its key."""
        by_place: dict[tuple[int, int], str | None] = {}
        for key, at, value in batch:
            said = "ends" if value in ends else value
            if by_place.setdefault((key, at), said) != said:
                return False
        times = {at for _, at in by_place}
        if full and len(times) != 1:
            return False
        for key, history in self.versions.items() if full else ():
            if history[-1][2] is None:
                by_place.setdefault((key, max(times)), "ends")
        for (key, at), value in by_place.items():
            last = self.versions.get(key, [None])[-1]
            if last is None:
                continue
            is_open, since = last[2] is None, last[1] if last[2] is None else last[2]
            if at < since or (at == since and value != (last[0] if is_open else "ends")):
                return False
        for (key, at), value in sorted(by_place.items(), key=lambda item: item[0]):
            history = self.versions.get(key, [])
            is_open = bool(history) and history[-1][2] is None
            if (value == "ends" and not is_open) or (is_open and history[-1][0] == value):
                continue
            if is_open:
                history[-1][2] = at
            if value != "ends":
                self.versions.setdefault(key, history).append([value, at, None])
        return True

    def rows(self) -> list[tuple[Any, ...]]:
        every = ((key, *version, version[2] is None) for key, history in self.versions.items() for version in history)
        return sorted(every, key=repr)


MAPPED = {"delta.columnMapping.mode": "name"}
BATCHES = st.lists(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 8), st.sampled_from(["x", "y", None])), max_size=5), max_size=4
)


@given(BATCHES, st.booleans())
@settings(max_examples=5, deadline=None)
def test_versions_are_those_of_a_plain_model(batches: list[list[Row]], vectors: bool) -> None:
    model = Model()
    with tempfile.TemporaryDirectory() as folder:
        table = DeltaTable(Path(folder) / "t")
        properties = {**MAPPED, "delta.enableDeletionVectors": str(vectors).lower()}
        for batch in batches:
            before, known = snapshot_or_none(table), model.rows()
            try:
                apply_scd2(table.log, before, rows(*batch), ["A Key"], "at", "auto", {"properties": properties})
                assert model.apply(batch)
            except ConstraintViolationError:
                assert not model.apply(batch)
                assert model.rows() == known
            assert (versions(table) if table.exists() else []) == model.rows()


def marked(batch: list[Row]) -> pa.Table:
    """Rows of which those with the value `y` end their key."""
    return rows(*batch).append_column("is gone", pa.array([value == "y" or None for *_, value in batch], pa.bool_()))


@pytest.mark.long
@given(BATCHES, st.booleans())
@settings(max_examples=5, deadline=None)
def test_keys_end_as_in_a_plain_model(batches: list[list[Row]], is_full: bool) -> None:
    """A row marks the end of its key, or a snapshot leaves it out."""
    model = Model()
    with tempfile.TemporaryDirectory() as folder:
        table = DeltaTable(Path(folder) / "t")
        for number, batch in enumerate(batches):
            rows_of = [(key, number + at % 2, value) if is_full else (key, at, value) for key, at, value in batch]
            deletes, before, known = Deletes("is gone", is_full), snapshot_or_none(table), model.rows()
            try:
                options: Any = {"properties": MAPPED}
                apply_scd2(table.log, before, marked(rows_of), ["a key"], "at", "auto", options, deletes)
                assert model.apply(rows_of, frozenset("y"), full=is_full)
            except ConstraintViolationError:
                assert not model.apply(rows_of, frozenset("y"), full=is_full)
                assert model.rows() == known
            assert (versions(table) if table.exists() else []) == model.rows()


def nested(batch: pa.Table) -> pa.Table:
    """The values as lists of structs. Each row is there twice."""
    kind = pa.list_(pa.struct([("a", pa.string())]))
    inside = pa.array([[{"a": value}, None] for value in batch.column("vä.l").to_pylist()], kind)
    other = batch.set_column(2, "vä.l", inside)
    return pa.concat_tables([other, other])


@pytest.mark.long
@given(BATCHES)
@settings(max_examples=5, deadline=None)
def test_values_may_be_lists_and_structs(batches: list[list[Row]]) -> None:
    model = Model()
    with tempfile.TemporaryDirectory() as folder:
        table = DeltaTable(Path(folder) / "t")
        for batch in batches:
            before, options = snapshot_or_none(table), {"properties": MAPPED}
            try:
                apply_scd2(table.log, before, nested(rows(*batch)), ["a key"], "at", "local", options)  # type: ignore
                assert model.apply(batch)
            except ConstraintViolationError:
                assert not model.apply(batch)
            found = [(key, value[0]["a"], *rest) for key, value, *rest in versions(table)] if table.exists() else []
            assert sorted(found, key=repr) == model.rows()


@pytest.mark.parametrize("inside", ["map", "list of maps"])
def test_maps_do_not_compare(tmp_path: Path, inside: str) -> None:
    kind: pa.DataType = pa.map_(pa.string(), pa.int64())
    kind = kind if inside == "map" else pa.list_(kind)
    given = rows((1, 1, "x")).append_column("attributes", pa.nulls(1, kind))
    table = DeltaTable(tmp_path / "t")
    with pytest.raises(SchemaMismatchError, match="attributes"):
        apply_scd2(table.log, None, given, ["a key"], "at", "auto", {"properties": MAPPED})
    assert not table.exists()


@pytest.mark.long
@pytest.mark.spark
def test_spark_keeps_the_same_versions(tmp_path: Path, spark: Any) -> None:
    for name, data in (("local", lambda table: table), ("spark", spark.createDataFrame)):
        table = DeltaTable(tmp_path / name)
        for batch in (rows((1, 1, "x"), (1, 3, "y"), (2, 2, None)), rows((1, 3, "y"), (1, 5, None), (3, 1, "z"))):
            apply_scd2(table.log, snapshot_or_none(table), data(batch), ["a key"], "at", "auto", {"properties": MAPPED})
        with pytest.raises(ConstraintViolationError, match="late"):
            apply_scd2(table.log, table.snapshot(), data(rows((1, 4, "q"))), ["a key"], "at", "auto", {})
        ends: list[list[Row]] = [[(1, 6, "y")], [(3, 7, "w"), (4, 7, None)]]
        for full, of_ends in enumerate(ends):
            deletes = Deletes("is gone", bool(full))
            apply_scd2(table.log, table.snapshot(), data(marked(of_ends)), ["a key"], "at", "auto", {}, deletes)
        inside = DeltaTable(tmp_path / f"{name} nested")
        for batch in (rows((1, 1, "x"), (1, 3, "y"), (2, 2, None)), rows((1, 3, "y"), (1, 5, None), (2, 3, None))):
            options: Any = {"properties": MAPPED}
            before = snapshot_or_none(inside)
            apply_scd2(inside.log, before, data(nested(batch)), ["a key"], "at", "auto", options)
    assert versions(DeltaTable(tmp_path / "local nested")) == versions(DeltaTable(tmp_path / "spark nested"))
    assert len(versions(DeltaTable(tmp_path / "spark nested"))) == 4
    assert versions(DeltaTable(tmp_path / "local")) == versions(DeltaTable(tmp_path / "spark"))
    assert [row[-1] for row in versions(DeltaTable(tmp_path / "spark"))].count(True) == 2


NAMES = ["n", "known", "prior_from", "b", "c", "p", "h", "l", "q", "batch", "history", "steps", "d", "ends", "open"]


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, len(NAMES), 3))
def test_columns_may_have_any_name(tmp_path: Path, first: int) -> None:
    names = NAMES[first : first + 3]
    table, model = DeltaTable(tmp_path / "t"), Model()
    batches: list[list[Row]] = [[(1, 1, "x"), (2, 1, "x")], [(1, 2, "y"), (2, 2, "x"), (3, 2, None)], [(2, 3, "z")]]
    for batch in batches:
        given = rows(*batch).rename_columns(names)
        apply_scd2(table.log, snapshot_or_none(table), given, names[:1], names[1], "local", {})
        assert model.apply(batch)
    found = table.snapshot().scan([names[0], names[2], "valid_from", "valid_to", "is_current"]).to_arrow()
    assert sorted(zip(*found.to_pydict().values(), strict=True), key=repr) == model.rows()
    differing = rows((1, 4, "x"), (1, 4, "y")).rename_columns(names)
    with pytest.raises(ConstraintViolationError, match="differ"):
        apply_scd2(table.log, table.snapshot(), differing, names[:1], names[1], "local", {})


def test_a_reader_is_read_once(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    apply_scd2(table.log, None, rows((1, 1, "x")).to_reader(), ["a key"], "at", "auto", {"properties": MAPPED})
    apply_scd2(table.log, table.snapshot(), rows((1, 2, "y")).to_reader(), ["a key"], "at", "auto", {})
    assert versions(table) == [(1, "x", 1, 2, False), (1, "y", 2, None, True)]


@pytest.mark.long
@pytest.mark.parametrize("is_new", [True, False])
def test_two_writers_of_one_key_do_not_both_open_a_version(tmp_path: Path, is_new: bool) -> None:
    table = DeltaTable(tmp_path / "t")
    start = rows((5, 1, "x")) if is_new else rows((1, 1, "x"))
    apply_scd2(table.log, None, start, ["a key"], "at", "auto", {"properties": MAPPED})
    before = table.snapshot()
    apply_scd2(table.log, before, rows((1, 2, "a")), ["a key"], "at", "auto", {})
    with pytest.raises(ConflictError) as caught:
        apply_scd2(table.log, before, rows((1, 3, "b")), ["a key"], "at", "auto", {})
    assert caught.value.retryable
    # Other keys are nobody's concern.
    apply_scd2(table.log, before, rows((7, 3, "b")), ["a key"], "at", "auto", {})
    assert [row for row in versions(table) if row[0] == 1][-1] == (1, "a", 2, None, True) or not is_new


def test_assets_keep_versions_once(tmp_path: Path) -> None:
    lake, batches = Lake(tmp_path, properties=MAPPED), [rows((1, 1, "x"))]

    @dg.asset(metadata={"write": "scd2", "merge_keys": ["a key"], "sequence_by": "at", "audit": ["at > 0"]})
    def people() -> pa.Table:
        return batches[-1]

    assert lake.run(people).success
    batches.append(rows((1, 2, "y"), (2, 2, "z")))
    for _ in range(2):
        assert lake.run(people).success
    assert versions(lake.table("people")) == [(1, "x", 1, 2, False), (1, "y", 2, None, True), (2, "z", 2, None, True)]
    batches.append(rows((1, 1, "late")))
    assert isinstance(lake.fails(people), ConstraintViolationError)
    batches.append(pa.table({"a key": [1], "at": [9], "valid_to": [1]}))
    assert isinstance(lake.fails(people), SchemaMismatchError)


@pytest.mark.long
@pytest.mark.parametrize("is_of_manager", [True, False])
@pytest.mark.parametrize("deletes", [{}, {"full_snapshot": True}, {"delete_marker": "gone"}])
def test_the_next_asset_loads_all_versions(tmp_path: Path, is_of_manager: bool, deletes: dict[str, Any]) -> None:
    config: dict[str, Any] = {"write": "scd2", "merge_keys": ["id"]}
    lake = Lake(tmp_path, **(config if is_of_manager else {}))
    metadata = {**({} if is_of_manager else config), "sequence_by": "at", **deletes}
    loaded: list[pa.Table] = []

    @dg.asset(metadata=metadata)
    def people() -> pa.Table:
        gone = {"gone": [False]} if "delete_marker" in deletes else {}
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
        write="scd2",
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
        write="scd2",
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


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for metadata in (
        {"write": "scd2", "merge_keys": ["a"]},
        {"write": "scd2", "sequence_by": "a"},
        {"sequence_by": "a"},
    ):

        @dg.asset(metadata=metadata)
        def people() -> pa.Table:
            return rows((1, 1, "x"))

        assert isinstance(lake.fails(people), InvalidRequestError)

    @dg.asset(
        partitions_def=dg.StaticPartitionsDefinition(["1"]),
        metadata={"write": "scd2", "merge_keys": ["a key"], "sequence_by": "at", "partition_expr": "vä.l"},
    )
    def split() -> pa.Table:
        return rows((1, 1, "x"))

    assert isinstance(lake.fails(split, partition="1"), InvalidRequestError)
    source = DeltaTableResource(table_uri=str(tmp_path / "a"))
    with pytest.raises(InvalidRequestError, match="sequence_by"):
        delta_asset(incremental_from=source, table=DeltaTableResource(table_uri="b"), write="scd2", merge_keys=["a"])


DAYS = dg.DailyPartitionsDefinition("2013-01-01", end_date="2013-01-06")
KEYS = DAYS.get_partition_keys()


@pytest.mark.long
@pytest.mark.parametrize("is_full", [True, False])
def test_each_day_is_a_batch(tmp_path: Path, is_full: bool) -> None:
    """Days in order, one that comes late, one again, and several at once. What a day leaves out has ended."""
    lake = Lake(tmp_path)
    extracts = {
        day: {key: f"v{(number + key) // 2}" for key in range(4) if (number + key) % 3}
        for number, day in enumerate(KEYS)
    }

    @dg.asset(
        partitions_def=DAYS,
        metadata={
            "write": "scd2",
            "merge_keys": ["id"],
            "sequence_by": "day",
            "partition_expr": "day",
            "full_snapshot": is_full,
        },
        backfill_policy=dg.BackfillPolicy.single_run(),
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
                if (value is not None or is_full) and (steps[-1][1] if steps else None) != value:
                    steps.append((day, value))
            ends = [*(day for day, _ in steps[1:]), None]
            made += [(key, v, start, end) for (start, v), end in zip(steps, ends, strict=False) if v is not None]
        return sorted(made, key=repr)

    def found() -> list[tuple[Any, ...]]:
        return sorted(((r["id"], r["v"], r["valid_from"], r["valid_to"]) for r in lake.rows("people")), key=repr)

    done = []
    for day in (KEYS[0], KEYS[2]):
        assert lake.run(people, partition=day).success
        done.append(day)
        assert found() == expected(done)
    assert lake.run(people, partition=KEYS[2]).success
    assert found() == expected(done)
    assert isinstance(lake.fails(people, partition=KEYS[1]), ConstraintViolationError)
    assert found() == expected(done)
    assert lake.run(people, span=(KEYS[3], KEYS[4])).success
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
            "write": "scd2",
            "merge_keys": ["region", "id"],
            "sequence_by": "at",
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
    rows = sorted((r["region"], r["id"], r["v"], r["valid_from"], r["valid_to"] or 0) for r in lake.rows("people"))
    ended = [("x", 1, "a", 1, 3), ("x", 2, "a", 1, 3), ("y", 1, "a", 5, 6)]
    assert rows == sorted([*ended, ("x", 2, "b", 3, 0), ("y", 3, "c", 6, 0)])
    now[0] = ("y", 9, {1: "a"})
    assert "outside of the run's partitions" in str(lake.fails(people, partition="x"))
