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
from delta_orch.pipeline.scd2 import apply_scd2
from delta_orch.pipeline.step import snapshot_or_none
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

    def apply(self, batch: list[Row]) -> bool:
        """Whether the batch is in order; if not, nothing changes."""
        by_place: dict[tuple[int, int], str | None] = {}
        for key, at, value in batch:
            if by_place.setdefault((key, at), value) != value:
                return False
        for (key, at), value in by_place.items():
            last = self.versions.get(key, [None])[-1]
            if last is not None and (at < last[1] or (at == last[1] and value != last[0])):
                return False
        for (key, at), value in sorted(by_place.items()):
            history = self.versions.setdefault(key, [])
            if history and history[-1][0] == value:
                continue
            if history:
                history[-1][2] = at
            history.append([value, at, None])
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


@pytest.mark.spark
def test_spark_keeps_the_same_versions(tmp_path: Path, spark: Any) -> None:
    for name, data in (("local", lambda table: table), ("spark", spark.createDataFrame)):
        table = DeltaTable(tmp_path / name)
        for batch in (rows((1, 1, "x"), (1, 3, "y"), (2, 2, None)), rows((1, 3, "y"), (1, 5, None), (3, 1, "z"))):
            apply_scd2(table.log, snapshot_or_none(table), data(batch), ["a key"], "at", "auto", {"properties": MAPPED})
        with pytest.raises(ConstraintViolationError, match="late"):
            apply_scd2(table.log, table.snapshot(), data(rows((1, 4, "q"))), ["a key"], "at", "auto", {})
    assert versions(DeltaTable(tmp_path / "local")) == versions(DeltaTable(tmp_path / "spark"))


def test_a_reader_is_read_once(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    apply_scd2(table.log, None, rows((1, 1, "x")).to_reader(), ["a key"], "at", "auto", {"properties": MAPPED})
    apply_scd2(table.log, table.snapshot(), rows((1, 2, "y")).to_reader(), ["a key"], "at", "auto", {})
    assert versions(table) == [(1, "x", 1, 2, False), (1, "y", 2, None, True)]


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
    lake, batches = Lake(tmp_path, table_properties=MAPPED), [rows((1, 1, "x"))]

    @dg.asset(metadata={"mode": "scd2", "merge_keys": ["a key"], "sequence_by": "at", "audit": ["at > 0"]})
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


def test_an_incremental_asset_moves_its_cursor_though_nothing_changes(tmp_path: Path) -> None:
    source, target = DeltaTable(tmp_path / "bronze"), DeltaTable(tmp_path / "silver")

    @delta_asset(
        incremental_from=DeltaTableResource(table_uri=source.uri),
        table=DeltaTableResource(table_uri=target.uri),
        write="scd2",
        merge_keys=["a key"],
        sequence_by="at",
        table_properties=MAPPED,
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


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for metadata in ({"mode": "scd2", "merge_keys": ["a"]}, {"mode": "scd2", "sequence_by": "a"}, {"sequence_by": "a"}):

        @dg.asset(metadata=metadata)
        def people() -> pa.Table:
            return rows((1, 1, "x"))

        assert isinstance(lake.fails(people), InvalidRequestError)

    @dg.asset(
        partitions_def=dg.StaticPartitionsDefinition(["1"]),
        metadata={"mode": "scd2", "merge_keys": ["a key"], "sequence_by": "at", "partition_expr": "a key"},
    )
    def split() -> pa.Table:
        return rows((1, 1, "x"))

    assert isinstance(lake.fails(split, partition="1"), InvalidRequestError)
    source = DeltaTableResource(table_uri=str(tmp_path / "a"))
    with pytest.raises(InvalidRequestError, match="sequence_by"):
        delta_asset(incremental_from=source, table=DeltaTableResource(table_uri="b"), write="scd2", merge_keys=["a"])
