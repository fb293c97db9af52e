"""Two writers of one table: assets, incremental assets and ops, in every order of modes."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any, cast

import dagster as dg
import pyarrow as pa
import pytest

from delta_orch.dagster import DeltaTableResource, delta_asset
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import DeltaError, InvalidRequestError
from delta_orch.protocol.table_properties import OWNER
from tests.dagster.lake import Lake

KEYS = ["who", "n"]


class Writer:
    """Writes rows that carry its name, one more in each run, to the table `s/t`."""

    def __init__(self, lake: Lake, name: str, kind: str, mode: str) -> None:
        self.name, self.kind, self.mode = name, kind, mode
        self._lake, self._count = lake, 0
        self._source = DeltaTable(lake.root / f"source_{name}")
        self.replaces = mode in ("overwrite", "overwrite_partitions")

    def rows(self) -> pa.Table:
        return pa.table({"who": [self.name] * self._count, "n": list(range(self._count)), "p": ["x"] * self._count})

    def run(self) -> None:
        self._count += 1
        if self.kind == "incremental":
            self._source.append(self.rows().slice(self._count - 1), partition_by=["p"])
        run = {"asset": self._run_asset, "op": self._run_op, "incremental": self._run_incremental}[self.kind]
        run()

    def _given(self) -> pa.Table:
        return self.rows().slice(self._count - 1) if self.mode == "append" else self.rows()

    def _run_asset(self) -> None:
        metadata = {"schema": "s", "write": self.mode, "partition_by": ["p"]}
        if self.mode == "merge":
            metadata["merge_keys"] = KEYS

        @dg.asset(key=[self.name, "t"], metadata=metadata)
        def write() -> pa.Table:
            return self._given()

        self._lake.run(write)

    def _run_op(self) -> None:
        @dg.op(out=dg.Out(metadata={"schema": "s", "table": "t", "write": self.mode, "partition_by": ["p"]}))
        def write() -> pa.Table:
            return self._given()

        @dg.job(resource_defs={"io_manager": self._lake.io_manager})
        def job() -> None:
            write()

        job.execute_in_process(instance=self._lake.instance)

    def _run_incremental(self) -> None:
        @delta_asset(
            name=self.name,
            incremental_from=DeltaTableResource(table_uri=self._source.uri),
            table=DeltaTableResource(table_uri=self._lake.table("s", "t").uri),
            write=cast("Any", self.mode),
            merge_keys=KEYS if self.mode == "merge" else None,
            partition_by=["p"],
            consumer=self.name,
        )
        def write(batch: Any) -> pa.Table:
            return self._given()

        self._lake.run(write)


KINDS = [
    *product(["asset"], ["overwrite", "append", "merge"]),
    *product(["incremental"], ["overwrite", "overwrite_partitions", "append", "merge"]),
    *product(["op"], ["overwrite", "append"]),
]


def _found(lake: Lake) -> list[tuple[str, int]]:
    return sorted((row["who"], row["n"]) for row in lake.rows("s", "t"))


@pytest.mark.long
@pytest.mark.parametrize("first", KINDS, ids="-".join)
@pytest.mark.parametrize("second", KINDS, ids="-".join)
def test_no_writer_of_a_table_loses_the_rows_of_another(
    tmp_path: Path, first: tuple[str, str], second: tuple[str, str]
) -> None:
    lake = Lake(tmp_path)
    one, two = Writer(lake, "one", *first), Writer(lake, "two", *second)
    one.run()
    refused = set()
    for writer, other in ((two, one), (one, two), (two, one)):
        before, version = _found(lake), lake.table("s", "t").version()
        try:
            writer.run()
        except DeltaError as e:
            assert isinstance(e, InvalidRequestError)
            refused.add(writer.name)
            assert lake.table("s", "t").version() == version
        else:
            theirs = [row for row in _found(lake) if row[0] == other.name]
            # The owner of a table replaces what another asset, which is run again, has added to it. The outputs of two
            # ops are versions of one table.
            if (writer.kind, writer.mode, other.kind) != ("asset", "overwrite", "asset") and other.kind != "op":
                assert theirs == [row for row in before if row[0] == other.name]
            assert (writer.name, writer._count - 1) in _found(lake)
    if one.replaces and two.replaces and {one.kind, two.kind} != {"op"}:
        assert "two" in refused
    if "op" in (one.kind, two.kind) and one.kind != two.kind and (one.kind == "op" or two.replaces):
        assert "two" in refused
    if not one.replaces and not two.replaces and "op" not in (one.kind, two.kind):
        assert not refused


def test_a_new_owner(tmp_path: Path) -> None:
    """The asset was renamed: the property leaves the table, and its next owner claims it."""
    lake = Lake(tmp_path)
    one, two = Writer(lake, "one", "asset", "overwrite"), Writer(lake, "two", "asset", "overwrite")
    one.run()
    table = lake.table("s", "t")
    assert table.snapshot().metadata.configuration[OWNER] == "asset one/t"
    with pytest.raises(InvalidRequestError, match=f"(?s)belongs to asset one/t.*{OWNER}"):
        two.run()
    table.alter().unset_properties(OWNER).commit()
    two.run()
    assert table.snapshot().metadata.configuration[OWNER] == "asset two/t"
    with pytest.raises(InvalidRequestError, match="belongs to asset two/t"):
        one.run()
    assert {who for who, _ in _found(lake)} == {"two"}


# Owners by scope


def regional(name: str, keys: list[str], generation: list[int], **metadata: object) -> dg.AssetsDefinition:
    """An asset of a factory: its partitions of the table `s/t`."""

    @dg.asset(
        key=[name, "t"],
        partitions_def=dg.StaticPartitionsDefinition(keys),
        metadata={"schema": "s", "partition_expr": "region", **metadata},
    )
    def region(context) -> pa.Table:  # type: ignore[no-untyped-def]
        return pa.table({"region": [context.partition_key], "by": [name], "v": generation[-1:]})

    return region


def _by(lake: Lake) -> list[tuple[str, str, int]]:
    return [(row["region"], row["by"], row["v"]) for row in lake.rows("s", "t")]


@pytest.mark.parametrize("write", ["overwrite", "overwrite_partitions"])
def test_a_factory_of_assets_with_one_partition_each_fills_one_table(tmp_path: Path, write: str) -> None:
    lake, generation = Lake(tmp_path), [1]
    assets = {key: regional(f"load_{key}", [key], generation, write=write) for key in "abc"}
    for key, asset in assets.items():
        assert lake.run(asset, partition=key).success
    generation.append(2)
    assert lake.run(assets["b"], partition="b").success
    assert sorted(_by(lake)) == [("a", "load_a", 1), ("b", "load_b", 2), ("c", "load_c", 1)]
    # Compaction hides nothing.
    lake.table("s", "t").optimize()
    assert lake.run(assets["a"], partition="a").success
    assert ("a", "load_a", 2) in _by(lake)


@pytest.mark.parametrize("layout", [["region"], []])
def test_a_copy_of_an_asset_does_not_replace_the_rows_of_the_first(tmp_path: Path, layout: list[str]) -> None:
    lake, generation = Lake(tmp_path), [1]
    production = regional("production", ["a", "b"], generation, partition_by=layout)
    staging = regional("staging", ["b", "c"], generation, partition_by=layout)
    for key in "ab":
        assert lake.run(production, partition=key).success
    if not layout:
        assert not lake.table("s", "t").optimize().skipped
    before = _by(lake)
    error = lake.fails(staging, partition="b")
    assert isinstance(error, InvalidRequestError)
    assert "dagster:production/t:b" in str(error)
    assert _by(lake) == before
    assert lake.run(staging, partition="c").success
    if layout:
        # "To hand the rows over, take them back first"
        command = str(error).rpartition("first: ")[2].rstrip(".")
        eval(command, {"DeltaTable": DeltaTable})
        assert lake.run(staging, partition="b").success
        assert sorted(_by(lake)) == [("a", "production", 1), ("b", "staging", 1), ("c", "staging", 1)]


def test_nobody_replaces_the_whole_of_a_table_of_scopes(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    assert lake.run(regional("one", ["a"], [1]), partition="a").success

    @dg.asset(key=["whole", "t"], metadata={"schema": "s"})
    def whole() -> pa.Table:
        return pa.table({"region": ["z"], "by": ["whole"], "v": [1]})

    assert "belongs to assets by scope" in str(lake.fails(whole))
    assert _by(lake) == [("a", "one", 1)]


@pytest.mark.parametrize("write", ["merge", "append"])
def test_what_another_asset_has_added_to_a_partition_is_replaced_with_it(tmp_path: Path, write: str) -> None:
    """Corrections of a day come again after the day is materialized again."""
    lake, generation = Lake(tmp_path), [1]
    day = regional("day", ["a"], generation)
    corrections = regional("corrections", ["a"], generation, write=write, merge_keys=["region", "by"])
    for asset in (day, corrections):
        assert lake.run(asset, partition="a").success
    assert [by for _, by, _ in _by(lake)] == ["corrections", "day"]
    generation.append(2)
    assert lake.run(day, partition="a").success
    assert _by(lake) == [("a", "day", 2)]
    assert lake.run(corrections, partition="a").success
    assert [by for _, by, _ in _by(lake)] == ["corrections", "day"]
