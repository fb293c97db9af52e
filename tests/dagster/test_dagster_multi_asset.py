"""One function, several tables: each with its cursor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_orch.dagster import ChangeBatch, DeltaOut, DeltaTableResource, delta_multi_asset
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import InvalidRequestError


def amounts(*amounts: int) -> pa.Table:
    return pa.table({"day": ["a"] * len(amounts), "amount": pa.array(amounts, pa.int64())})


class Split:
    """A source, the table of its positive amounts, and that of the others."""

    def __init__(self, root: Path) -> None:
        self.source, self.plus, self.minus = (DeltaTable(root / name) for name in ("source", "plus", "minus"))
        self.calls = 0
        self.fails: str | None = None
        self.instance = dg.DagsterInstance.ephemeral()
        out: dict[str, Any] = {"write": "append", "audit": {"known": "amount IS NOT NULL"}}

        @delta_multi_asset(
            incremental_from=DeltaTableResource(table_uri=self.source.uri),
            outs={
                "plus": DeltaOut(DeltaTableResource(table_uri=self.plus.uri), key=["lake", "plus"], **out),
                "minus": DeltaOut(DeltaTableResource(table_uri=self.minus.uri), spec={"group_name": "m"}, **out),
            },
        )
        def split(context: dg.AssetExecutionContext, batch: ChangeBatch) -> Any:
            self.calls += 1
            rows = (batch.scan() if batch.is_bootstrap else batch.changes).to_arrow().select(["day", "amount"])
            broken = pa.table({"day": pa.array([1]), "amount": ["x"]})
            return {
                "plus": rows.filter(pc.field("amount") >= 0),
                "minus": broken if self.fails else rows.filter(pc.field("amount") < 0),
            }

        self.asset = split

    def run(self, **extras: Any) -> Any:
        return dg.materialize([self.asset], instance=self.instance, raise_on_error=False, **extras)

    def rows(self) -> tuple[list[int], list[int]]:
        read = [sorted(t.snapshot().scan(["amount"]).to_arrow()["amount"].to_pylist()) for t in (self.plus, self.minus)]
        return read[0], read[1]


def test_each_table_gets_its_rows_once(tmp_path: Path) -> None:
    split = Split(tmp_path)
    split.source.append(amounts(1, -1))
    result = split.run()
    assert result.success and split.calls == 1
    assert {check.check_name for check in result.get_asset_check_evaluations()} == {"known"}
    assert {e.asset_key.to_user_string() for e in result.asset_materializations_for_node("split")} == {
        "lake/plus", "minus",
    }  # fmt: skip
    # Nothing new: nothing is called, and nothing is committed.
    again = split.run()
    assert again.success and split.calls == 1 and not again.asset_materializations_for_node("split")
    assert split.rows() == ([1], [-1])
    assert [check.passed for check in again.get_asset_check_evaluations()] == [True, True]


def test_what_follows_in_the_same_run_runs_without_news(tmp_path: Path) -> None:
    split, looks = Split(tmp_path), []
    split.source.append(amounts(1, -1))

    @dg.asset(deps=[["lake", "plus"]])
    def follows() -> None:
        looks.append(split.rows())

    for _ in range(2):
        result = dg.materialize([split.asset, follows], instance=split.instance)
    # Only what something in the run waits for is materialized, with the data version that it has.
    (told,) = result.asset_materializations_for_node("split")
    assert told.asset_key == dg.AssetKey(["lake", "plus"])
    assert told.tags is not None and told.tags["dagster/data_version"].endswith(":0")
    assert len(looks) == 2


def test_tables_that_are_behind_catch_up_alone(tmp_path: Path) -> None:
    split = Split(tmp_path)
    split.source.append(amounts(1, -1))
    assert split.run().success
    # The first table commits, the second fails.
    split.source.append(amounts(2, -2))
    split.fails = "yes"
    assert not split.run().success
    assert split.rows() == ([1, 2], [-1])
    split.fails = None
    split.source.append(amounts(3, -3))
    # One alone, then both.
    assert split.run(selection=["minus"]).success
    assert split.rows() == ([1, 2], [-3, -2, -1])
    assert split.run().success
    assert split.rows() == ([1, 2, 3], [-3, -2, -1])


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    source, table = (DeltaTableResource(table_uri=str(tmp_path / name)) for name in ("source", "table"))
    for outs in (
        {},
        {"a": DeltaOut(table), "b": DeltaOut(table)},
        {"a": DeltaOut(source)},
        {"a": DeltaOut(table, "merge")},
        {"a": DeltaOut(table, schema_mode="grow")},
    ):
        with pytest.raises(InvalidRequestError):
            delta_multi_asset(incremental_from=source, outs=outs)

    @delta_multi_asset(incremental_from=source, outs={"a": DeltaOut(table)})
    def one(batch: ChangeBatch) -> Any:
        return amounts(1)

    DeltaTable(tmp_path / "source").append(amounts(1))
    assert not dg.materialize([one], instance=dg.DagsterInstance.ephemeral(), raise_on_error=False).success
    assert not DeltaTable(tmp_path / "table").exists()


def test_none_of_the_tables_loses_rows_of_days_that_are_not_touched(tmp_path: Path) -> None:
    source, copy, late = (DeltaTable(tmp_path / name) for name in ("source", "copy", "late"))
    days = {"day": ["a", "b"], "amount": pa.array([1, 2], pa.int64())}
    source.append(pa.table(days), partition_by=["day"])
    spills: list[pa.Table] = []

    @delta_multi_asset(
        incremental_from=DeltaTableResource(table_uri=source.uri),
        outs={
            t: DeltaOut(DeltaTableResource(table_uri=str(tmp_path / t)), "overwrite_partitions", partition_by=["day"])
            for t in ("copy", "late")
        },
    )
    def both(batch: ChangeBatch) -> dict[str, pa.Table]:
        rows = batch.scan().to_arrow()
        return {"copy": rows, "late": pa.concat_tables([rows, *spills])}

    assert dg.materialize([both]).success
    source.append(amounts(3))
    spills.append(pa.table({"day": ["b"], "amount": pa.array([9], pa.int64())}))
    with pytest.raises(InvalidRequestError, match="late would replace a partition that the batch does not touch"):
        dg.materialize([both])
    assert sorted(copy.snapshot().scan(["amount"]).to_arrow()["amount"].to_pylist()) == [1, 2, 3]
    assert sorted(late.snapshot().scan(["amount"]).to_arrow()["amount"].to_pylist()) == [1, 2]


@pytest.mark.long
@pytest.mark.parametrize("write", ["overwrite_partitions", "overwrite_changed", "overwrite"])
def test_one_table_is_appended_to_and_another_is_replaced(tmp_path: Path, write: Any) -> None:
    """Each method of the batch is exact for one of them alone. The error says what the function reads instead."""
    source, added, replaced = (DeltaTable(tmp_path / name) for name in ("source", "added", "replaced"))
    reads: list[Any] = []

    @delta_multi_asset(
        incremental_from=DeltaTableResource(table_uri=source.uri),
        outs={
            "added": DeltaOut(DeltaTableResource(table_uri=added.uri), "append"),
            "replaced": DeltaOut(DeltaTableResource(table_uri=replaced.uri), write, partition_by=["day"]),
        },
    )
    def both(context: dg.AssetExecutionContext, batch: ChangeBatch) -> Any:
        return dict(zip(("added", "replaced"), reads[0](batch), strict=True))

    def at_once(read: str) -> Any:
        return lambda batch: [getattr(batch, read)().to_arrow()] * 2

    def apart(batch: ChangeBatch) -> list[pa.Table]:
        columns = batch.snapshot.schema.names
        where = None if write == "overwrite" else batch.partition_predicate()
        new = batch.snapshot.scan() if batch.is_bootstrap else batch.changes
        return [new.to_arrow().select(columns), batch.snapshot.scan(where=where).to_arrow()]

    source.append(amounts(1), partition_by=["day"])
    reads[:] = [at_once("scan")]
    assert dg.materialize([both]).success
    source.append(amounts(2))
    for read in ("scan", "inserted"):
        reads[:] = [at_once(read)]
        with pytest.raises(InvalidRequestError, match="the rows that are appended of"):
            dg.materialize([both])
    reads[:] = [apart]
    assert dg.materialize([both]).success
    for table in (added, replaced):
        assert sorted(table.snapshot().scan().to_arrow()["amount"].to_pylist()) == [1, 2]
