"""Cursors of incremental assets: nobody else goes by them, and a source that is recreated leaves nothing behind."""

# No postponed annotations in this file: Dagster reads them as they are.

import re
import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_orch.dagster import Audit, ChangeBatch, DeltaOut, DeltaTableResource, delta_asset, delta_multi_asset
from delta_orch.dagster.incremental import Write
from delta_orch.errors import InvalidExpressionError, InvalidRequestError
from delta_orch.log.files.txn import TxnId
from tests.dagster.lake import Lake


def copying(lake: Lake, name: str, table: str, consumer: str | None = None) -> dg.AssetsDefinition:
    """An asset that appends those rows of `source` that bear its name."""

    @delta_asset(
        incremental_from=DeltaTableResource(table_uri=str(lake.root / "source")),
        table=DeltaTableResource(table_uri=str(lake.root / table)),
        write="append",
        consumer=consumer,
        name=name,
    )
    def copied(batch: ChangeBatch) -> pa.Table:
        rows = batch.inserted().to_arrow()
        return rows.filter(pc.equal(rows["of"], name))

    return copied


def test_two_assets_do_not_go_by_one_cursor(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.table("source").append(pa.table({"of": ["one", "two"]}))
    shared = [copying(lake, name, "target") for name in ("one", "two")]
    assert isinstance(lake.fails(*shared), InvalidRequestError)
    assert not lake.table("target").exists()
    for assets in (
        [copying(lake, "one", "target"), copying(lake, "two", "target", "two")],
        [copying(lake, "one", "of_one"), copying(lake, "two", "of_two")],
    ):
        assert lake.run(*assets).success
    assert lake.rows("target") == [{"of": "one"}, {"of": "two"}]
    assert lake.rows("of_one") + lake.rows("of_two") == [{"of": "one"}, {"of": "two"}]


def test_nor_do_an_asset_and_one_of_several(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.table("source").append(pa.table({"of": ["one", "two"]}))
    source, target = (DeltaTableResource(table_uri=str(tmp_path / name)) for name in ("source", "target"))

    @delta_multi_asset(incremental_from=source, outs={"two": DeltaOut(target, write="append")})
    def several(batch: ChangeBatch) -> dict[str, pa.Table]:
        return {"two": batch.inserted().to_arrow()}

    assert isinstance(lake.fails(copying(lake, "one", "target"), several), InvalidRequestError)


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after"),
    [("one", {"one": "one", "two": "two"}), ({"one": "one"}, {"renamed": "one"}), ({"a": "one", "b": "two"}, "one")],
)
@pytest.mark.parametrize("consumer", [None, "own", "own 5% <- it"])
def test_rows_are_not_added_again_under_another_name(
    tmp_path: Path, before: Any, after: Any, consumer: str | None
) -> None:
    lake = Lake(tmp_path)
    tables = {name: DeltaTableResource(table_uri=str(tmp_path / name)) for name in ("one", "two", "target")}
    for name in ("one", "two"):
        lake.table(name).append(pa.table({"of": [name]}))

    def added(sources: Any, consumer: str | None) -> dg.AssetsDefinition:
        @delta_asset(
            incremental_from=tables[sources]
            if isinstance(sources, str)
            else {name: tables[table] for name, table in sources.items()},
            table=tables["target"],
            write="append",
            consumer=consumer,
        )
        def target(batch: Any) -> pa.Table:
            batches = [batch] if isinstance(batch, ChangeBatch) else batch.values()
            return pa.concat_tables([one.inserted().to_arrow() for one in batches])

        return target

    assert lake.run(added(before, consumer)).success
    known = lake.rows("target")
    error = lake.fails(added(after, consumer))
    assert "another name now" in str(error)
    assert lake.rows("target") == known
    # What it says to do goes on from there.
    said = re.search(r"txn=\('(.*)', (\d+)\)", str(error))
    assert said is not None
    lake.table("target").append(pa.table({"of": pa.array([], pa.string())}), txn=TxnId(said[1], int(said[2])))
    lake.table("one").append(pa.table({"of": ["more"]}))
    assert lake.run(added(after, consumer)).success
    has_two = "two" in str((before, after))
    assert lake.rows("target") == [{"of": of} for of in ("more", "one", "two") if of != "two" or has_two]
    # A consumer of another name reads all of it.
    assert lake.run(added(after, "another")).success


def test_a_table_that_moves_keeps_its_cursor_or_is_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.table("source").append(pa.table({"of": ["one"]}))
    assert lake.run(copying(lake, "one", "before")).success
    (tmp_path / "before").rename(tmp_path / "after")
    assert "before has read it" in str(lake.fails(copying(lake, "one", "after")))
    lake.table("source").append(pa.table({"of": ["one"]}))
    assert lake.run(copying(lake, "one", "after", "before")).success
    assert len(lake.rows("after")) == 2


@pytest.mark.long
@pytest.mark.parametrize("write", ["overwrite_partitions", "overwrite_changed", "overwrite"])
def test_a_recreated_source_leaves_nothing_behind(tmp_path: Path, write: Write) -> None:
    lake = Lake(tmp_path)

    @delta_asset(
        incremental_from=DeltaTableResource(table_uri=str(tmp_path / "source")),
        table=DeltaTableResource(table_uri=str(tmp_path / "target")),
        write=write,
        partition_by=["day"],
        on_recreated="bootstrap",
    )
    def copied(batch: ChangeBatch) -> pa.Table:
        return batch.scan().to_arrow()

    for days in (["1", "2"], ["2", "3"]):
        shutil.rmtree(tmp_path / "source", ignore_errors=True)
        rows = [{"day": day, "n": len(days)} for day in days]
        lake.table("source").append(pa.Table.from_pylist(rows), partition_by=["day"])
        assert lake.run(copied).success
        assert lake.rows("target") == rows


def test_what_no_run_could_do_is_refused_at_definition() -> None:
    source, target = (DeltaTableResource(table_uri=name) for name in ("source", "target"))
    with pytest.raises(InvalidRequestError, match="engine"):
        delta_asset(incremental_from=source, table=target, engine="duckdb")  # type: ignore[arg-type]
    with pytest.raises(InvalidExpressionError):
        delta_asset(incremental_from=source, table=target, audit=["n >"])
    with pytest.raises(InvalidExpressionError):
        Audit("sums", rows="sum(n) > 1")
