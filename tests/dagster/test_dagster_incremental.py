import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from delta_orch.dagster import (
    ChangeBatch,
    DeltaLakeIOManager,
    DeltaOut,
    DeltaTableResource,
    delta_asset,
    delta_multi_asset,
    incremental,
)
from delta_orch.dagster.incremental import Write
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import InvalidRequestError, TableNotFoundError
from delta_orch.pipeline.incremental import IncrementalReader
from tests.dagster.lake import Lake


def rows(*days: str, value: int = 1) -> pa.Table:
    return pa.table({"day": list(days), "value": pa.array([value] * len(days), pa.int64())})


class Pipeline:
    """A source that tests append to, and an incremental asset that doubles its values."""

    def __init__(self, root: Path, **arguments: Any) -> None:
        self.source = DeltaTable(root / "bronze")
        self.target = DeltaTable(root / "silver")
        self.batches: list[ChangeBatch] = []
        self.instance = dg.DagsterInstance.ephemeral()
        pipeline = self

        @delta_asset(
            incremental_from=DeltaTableResource(table_uri=self.source.uri),
            table=DeltaTableResource(table_uri=self.target.uri),
            **{"partition_by": ["day"], **arguments},
        )
        def silver(context, batch: ChangeBatch) -> Any:  # type: ignore[no-untyped-def]
            """Doubled."""
            pipeline.batches.append(batch)
            changed = batch.changes if arguments.get("write") == "append" and not batch.is_bootstrap else batch.scan()
            table = changed.to_arrow().select(["day", "value"])
            return table.set_column(
                1, "value", pa.array([2 * v for v in table.column("value").to_pylist()], pa.int64())
            )

        self.asset = silver

    def run(self, **extras: Any) -> dict[str, Any]:
        result = dg.materialize([self.asset], instance=self.instance, **extras)
        # A run without news reports an observation: downstream assets do not run for it.
        events: list[Any] = [
            *result.asset_materializations_for_node("silver"),
            *result.asset_observations_for_node("silver"),
        ]
        (event,) = events
        self.materialized = isinstance(event, dg.AssetMaterialization)
        return {name: value.value for name, value in event.metadata.items()}

    def silver(self) -> list[tuple[str, int]]:
        found = self.target.snapshot().scan().to_arrow().to_pylist()
        return sorted((row["day"], row["value"]) for row in found)


def test_days_that_changed_are_recomputed(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.source.append(rows("a", "b"), partition_by=["day"])
    first = pipeline.run()
    assert first["delta/is_bootstrap"] is True
    assert first["dagster/row_count"] == 2
    assert pipeline.target.snapshot().partition_columns == ("day",)
    pipeline.source.append(rows("b", value=10))
    pipeline.source.append(rows("c", value=3))
    second = pipeline.run()
    assert pipeline.silver() == [("a", 2), ("b", 2), ("b", 20), ("c", 6)]
    assert (second["delta/source_starting_version"], second["delta/source_ending_version"]) == (1, 2)
    assert second["delta/touched_partitions"] == 2
    assert pipeline.batches[1].partitions().num_rows == 2
    assert pipeline.asset.descriptions_by_key[dg.AssetKey("silver")] == "Doubled."
    # What the catalog shows before any run: where the table is, and where its function.
    defined = pipeline.asset.metadata_by_key[dg.AssetKey("silver")]
    assert (defined["dagster/uri"], defined["dagster/storage_kind"]) == (pipeline.target.uri, "deltalake")
    (place,) = defined["dagster/code_references"].code_references
    assert Path(place.file_path).read_text().splitlines()[place.line_number - 1].strip().startswith("@delta_asset")


def test_nothing_new_commits_nothing_and_computes_nothing(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.source.append(rows("a"), partition_by=["day"])
    pipeline.run()
    version = pipeline.target.version()
    metadata = pipeline.run()
    assert metadata["delta/outcome"] == "nothing new"
    assert metadata["delta/version"] == pipeline.target.version() == version
    assert len(pipeline.batches) == 1
    assert not pipeline.materialized


@pytest.mark.long
def test_a_commit_that_nobody_was_told_of_is_told_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt died behind its commit. What runs by materializations, and the catalog, would never hear of it."""
    pipeline = Pipeline(tmp_path)
    tell, deaths = incremental.incremental_metadata, list[str]()

    def dies(*arguments: Any) -> Any:
        if not deaths:
            deaths.append("behind the commit")
            raise RuntimeError("died")
        return tell(*arguments)

    for days in (["a"], ["b"]):
        deaths.clear()
        monkeypatch.setattr(incremental, "incremental_metadata", dies)
        pipeline.source.append(rows(*days), partition_by=["day"])
        with pytest.raises(RuntimeError, match="died"):
            pipeline.run()
        # What others do to the table is not this asset's.
        pipeline.target.alter().set_properties({"my.note": days[0]}).commit()
        metadata = pipeline.run()
        assert pipeline.materialized
        assert (metadata["delta/outcome"], metadata["delta/version"]) == ("nothing new", pipeline.target.version())
        # Once, and the rows once.
        assert pipeline.run()["delta/outcome"] == "nothing new"
        assert not pipeline.materialized
    assert pipeline.silver() == [("a", 2), ("b", 2)]
    assert len(pipeline.batches) == 2


def test_the_cursor_is_in_the_commit_of_the_rows(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.source.append(rows("a"), partition_by=["day"])
    pipeline.run()
    table_id = pipeline.source.snapshot().metadata.id
    newest = pipeline.target.log.read_commit(pipeline.target.version())
    cursor, unit = newest.txns
    assert (cursor.app_id, cursor.version) == (f"cdc:silver<-{table_id}", 0)
    assert unit.app_id.startswith("dagster:silver:run:")
    assert newest.adds.num_rows == 1
    assert '"asset_key":"silver"' in (pipeline.target.history(1)[0].user_metadata or "")


def test_a_lost_instance_loses_nothing(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, write="append")
    pipeline.source.append(rows("a"), partition_by=["day"])
    pipeline.run()
    pipeline.instance = dg.DagsterInstance.ephemeral()
    pipeline.source.append(rows("b"))
    pipeline.run()
    assert pipeline.silver() == [("a", 2), ("b", 2)]


def inserting(pipeline: Pipeline, write: Write) -> dg.AssetsDefinition:
    @delta_asset(
        incremental_from=DeltaTableResource(table_uri=pipeline.source.uri),
        table=DeltaTableResource(table_uri=pipeline.target.uri),
        partition_by=["day"],
        write=write,
    )
    def silver(batch: ChangeBatch) -> Any:
        return batch.inserted().to_reader()

    return silver


@pytest.mark.parametrize("with_feed", [True, False])
def test_a_step_that_appends_reads_inserted_rows_once_in_every_batch(tmp_path: Path, with_feed: bool) -> None:
    pipeline = Pipeline(tmp_path)
    properties = {"delta.enableChangeDataFeed": str(with_feed).lower()}
    pipeline.source.append(rows("a", "b"), partition_by=["day"], properties=properties)
    pipeline.asset = inserting(pipeline, "append")
    pipeline.run()
    pipeline.source.append(rows("a", value=5))
    pipeline.source.append(rows("c"))
    pipeline.run()
    expected = [("a", 1), ("a", 5), ("b", 1), ("c", 1)]
    assert pipeline.silver() == expected

    pipeline.source.append(rows("d"))
    pipeline.source.delete("value = 5")
    before = pipeline.target.snapshot().version
    with pytest.raises(InvalidRequestError, match="do more than insert rows"):
        pipeline.run()
    assert pipeline.silver() == expected and pipeline.target.snapshot().version == before


@pytest.mark.parametrize("write", ["overwrite_partitions", "overwrite_changed", "overwrite"])
def test_inserted_rows_do_not_replace_what_earlier_batches_brought(tmp_path: Path, write: Write) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.source.append(rows("a"), partition_by=["day"])
    pipeline.asset = inserting(pipeline, write)
    pipeline.run()
    pipeline.source.append(rows("a", value=2))
    with pytest.raises(InvalidRequestError, match="would lose them"):
        pipeline.run()
    assert pipeline.silver() == [("a", 1)]


def test_a_step_that_fails_after_its_commit_is_not_repeated(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.source.append(rows("a"), partition_by=["day"])

    @delta_asset(
        incremental_from=DeltaTableResource(table_uri=pipeline.source.uri),
        table=DeltaTableResource(table_uri=pipeline.target.uri),
        write="append",
        retry_policy=dg.RetryPolicy(max_retries=1),
    )
    def silver(context, batch: ChangeBatch) -> Any:  # type: ignore[no-untyped-def]
        # What the attempt would commit is committed, and then it fails.
        pipeline.target.append(batch.scan().to_arrow(), txn=batch.txn)
        raise RuntimeError("lost after the commit")

    pipeline.asset = silver
    assert (pipeline.run()["delta/version"], pipeline.materialized) == (0, True)
    assert pipeline.run()["delta/outcome"] == "nothing new"
    assert pipeline.silver() == [("a", 1)]


def test_changed_partitions_lose_what_the_source_lost(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, write="overwrite_changed")
    pipeline.source.append(rows("a", "b", "c"), partition_by=["day"])
    pipeline.run()
    pipeline.source.overwrite(rows(), replace_where="day = 'b'")
    pipeline.run()
    assert pipeline.silver() == [("a", 2), ("c", 2)]


def test_the_default_replaces_the_changed_partitions_where_the_tables_share_them(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.source.append(rows("a", "b"), partition_by=["day"])
    pipeline.run()
    # A source that is corrected to no rows: the partition becomes empty.
    pipeline.source.overwrite(rows(), replace_where="day = 'b'")
    assert pipeline.run()["delta/outcome"] == "written"
    assert pipeline.silver() == [("a", 2)]


def test_otherwise_somebody_must_say_how_the_rows_are_written(tmp_path: Path) -> None:
    for number, (theirs, own) in enumerate([([], ["day"]), (["day"], None), (["day"], ["value"])]):
        pipeline = Pipeline(tmp_path / str(number), partition_by=own)
        pipeline.source.append(rows("a"), partition_by=theirs)
        with pytest.raises(InvalidRequestError, match="Pass write='append'"):
            pipeline.run()
        assert not pipeline.target.exists()


def refreshed(pipeline: Pipeline) -> dict[str, Any]:
    return pipeline.run(run_config={"ops": {"silver": {"config": {"full_refresh": True}}}})


@pytest.mark.parametrize("write", ["overwrite_changed", "append", "overwrite"])
def test_a_full_refresh_replaces_what_the_asset_wrote(tmp_path: Path, write: str) -> None:
    pipeline = Pipeline(tmp_path, write=write)
    pipeline.source.append(rows("a", "b"), partition_by=["day"])
    pipeline.run()
    pipeline.source.overwrite(rows("c"))
    table_id = pipeline.target.snapshot().metadata.id
    assert refreshed(pipeline)["delta/outcome"] == "replaced"
    assert pipeline.materialized
    assert pipeline.silver() == [("c", 2)]
    # Those who read the table go on, and so does the cursor.
    assert pipeline.target.snapshot().metadata.id == table_id
    assert pipeline.run()["delta/outcome"] == "nothing new"


def test_a_full_refresh_is_the_way_on_behind_a_source_that_was_recreated_or_corrected(tmp_path: Path) -> None:
    """Each error names it, and it works."""
    pipeline = Pipeline(tmp_path)
    pipeline.source.append(rows("a", "b"), partition_by=["day"])
    pipeline.asset = inserting(pipeline, "append")
    pipeline.run()
    pipeline.source.delete("day = 'b'")
    with pytest.raises(InvalidRequestError, match="do more than insert rows") as corrected:
        pipeline.run()
    refreshed(pipeline)
    assert pipeline.silver() == [("a", 1)]
    shutil.rmtree(tmp_path / "bronze")
    pipeline.source = DeltaTable(tmp_path / "bronze")
    pipeline.source.append(rows("c"), partition_by=["day"])
    with pytest.raises(InvalidRequestError) as recreated:
        pipeline.run()
    refreshed(pipeline)
    assert pipeline.silver() == [("c", 1)]
    assert "full_refresh" in str(recreated.value), str(recreated.value)
    assert "full_refresh" in str(corrected.value), str(corrected.value)


def test_a_config_of_the_function_gets_full_refresh_beside_its_own(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.source.append(rows("a"), partition_by=["day"])
    factors: list[int] = []

    @delta_asset(
        incremental_from=DeltaTableResource(table_uri=pipeline.source.uri),
        table=DeltaTableResource(table_uri=pipeline.target.uri),
        write="append",
    )
    def silver(batch: ChangeBatch, config: Settings) -> Any:
        factors.append(config.plus)
        return batch.inserted().to_arrow()

    pipeline.asset = silver
    for refresh in (False, True):
        config = {"plus": 3, "full_refresh": refresh}
        pipeline.run(run_config={"ops": {"silver": {"config": config}}})
    assert (factors, pipeline.silver()) == ([3, 3], [("a", 1)])


def test_overwrite_replaces_all(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, write="overwrite", partition_by=None)
    pipeline.source.append(rows("a", "b"))
    pipeline.run()
    pipeline.source.append(rows("c"))
    pipeline.run()
    assert pipeline.silver() == [("a", 2), ("b", 2), ("c", 2)]


def test_changed_partitions_need_a_partitioned_source(tmp_path: Path) -> None:
    """It is refused by the first run, not only by the second."""
    pipeline = Pipeline(tmp_path, write="overwrite_changed", partition_by=None)
    pipeline.source.append(rows("a"))
    with pytest.raises(InvalidRequestError, match="needs a partitioned source"):
        pipeline.run()
    assert not pipeline.target.exists()


def test_partitions_are_not_replaced_in_a_table_without_any(tmp_path: Path) -> None:
    """It is refused in the words of the asset, and before any work."""
    pipeline = Pipeline(tmp_path, write="overwrite_partitions", partition_by=None)
    pipeline.source.append(rows("a"))
    with pytest.raises(InvalidRequestError, match=r"the table has no partitions\.\nGive a new table partition_by"):
        pipeline.run()
    assert not pipeline.batches
    assert not pipeline.target.exists()


def test_one_batch_a_run(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, bootstrap="changes", max_versions=1)
    for day in "abc":
        pipeline.source.append(rows(day), partition_by=["day"] if day == "a" else None)
    for expected in (1, 2, 3):
        pipeline.run()
        assert len(pipeline.silver()) == expected


def test_no_batch_and_no_table(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, bootstrap="changes")
    pipeline.source.create(pa.schema([("day", pa.string()), ("value", pa.int64())]), partition_by=["day"])
    assert pipeline.run()["delta/outcome"] == "nothing new"
    assert not pipeline.target.exists()


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError):
        Pipeline(tmp_path).run()


def test_a_call_outside_of_a_run_is_refused(tmp_path: Path) -> None:
    asset: Any = Pipeline(tmp_path).asset
    with pytest.raises(InvalidRequestError, match="not happen inside a Dagster run"):
        list(asset(dg.build_asset_context()))


def test_resources_by_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRONZE_URI", str(tmp_path / "bronze"))
    source, target = DeltaTable(tmp_path / "bronze"), DeltaTable(tmp_path / "silver")
    source.append(rows("a"), partition_by=["day"])

    @delta_asset(incremental_from="bronze", table="silver_table", partition_by=["day"])
    def silver(context, batch: ChangeBatch) -> Any:  # type: ignore[no-untyped-def]
        return batch.scan().to_arrow()

    resources = {
        "bronze": DeltaTableResource(table_uri=dg.EnvVar("BRONZE_URI")),
        "silver_table": DeltaTableResource(table_uri=target.uri),
    }
    assert dg.materialize([silver], resources=resources).success
    assert target.snapshot().scan().to_arrow().num_rows == 1


@pytest.mark.parametrize("by", ["key", "variable"])
def test_a_table_whose_place_only_a_run_knows_is_not_loaded_from_the_folder_of_the_io_manager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    source, target = DeltaTable(tmp_path / "bronze"), DeltaTable(tmp_path / "elsewhere")
    source.append(rows("a"))
    # What was there before, under the key of the asset.
    DeltaTable(tmp_path / "silver").append(rows("stale"))
    monkeypatch.delenv("ELSEWHERE_URI", raising=False)
    resource = DeltaTableResource(table_uri=dg.EnvVar("ELSEWHERE_URI"))

    @delta_asset(
        incremental_from=DeltaTableResource(table_uri=source.uri),
        table="elsewhere" if by == "key" else resource,
        write="append",
    )
    def silver(batch: ChangeBatch) -> Any:
        return batch.inserted().to_arrow()

    @dg.asset
    def gold(silver: pa.Table) -> pa.Table:
        return silver

    monkeypatch.setenv("ELSEWHERE_URI", target.uri)
    resources = {"elsewhere": resource, "io_manager": DeltaLakeIOManager(root_uri=str(tmp_path))}
    with pytest.raises(InvalidRequestError, match="which this IO manager does not keep"):
        dg.materialize([silver, gold], resources=resources)
    assert target.snapshot().scan().to_arrow().num_rows == 1
    assert not DeltaTable(tmp_path / "gold").exists()


def test_the_function_must_return_rows(tmp_path: Path) -> None:
    source = DeltaTable(tmp_path / "bronze")
    source.append(rows("a"))

    @delta_asset(
        incremental_from=DeltaTableResource(table_uri=source.uri),
        table=DeltaTableResource(table_uri=str(tmp_path / "silver")),
        write="append",
    )
    def silver(context, batch: ChangeBatch) -> Any: ...  # type: ignore[no-untyped-def]

    with pytest.raises(InvalidRequestError, match="returned None"):
        dg.materialize([silver])


@pytest.mark.parametrize(
    "arguments",
    [
        {"write": "merge"},
        {"write": "merge", "merge_keys": "id"},
        {"write": "append", "merge_keys": ["id"]},
        {"write": "upsert"},
        {"partitions_def": dg.StaticPartitionsDefinition(["a"])},
        {"io_manager_key": "x"},
        {"output_required": True},
        {"metadata": {"write": "append"}},
        {"metadata": {"merge_key": "id"}},
        {"incremental_from": {}},
        {"incremental_from": {"a": "x", "": "y"}},
        {"incremental_from": {"a": "x", "c": "y"}, "write": "overwrite_changed"},
        {"incremental_from": {"a": "x", "c": "y"}},
        {"write": "dynamic"},
        {"table_properties": {}},
        {"unit": "run"},
        {"write": "merge", "merge_keys": ["id"], "unit_column": "load"},
        {"incremental_from": "b"},
        {
            "incremental_from": DeltaTableResource(table_uri="lake/t"),
            "table": DeltaTableResource(table_uri="lake/t/inner"),
        },
    ],
    ids=str,
)
def test_arguments_are_checked(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        delta_asset(**{"incremental_from": "a", "table": "b", **arguments})


def test_functions_that_cannot_be_incremental() -> None:
    def no_batch(context, rows, more): ...  # type: ignore[no-untyped-def]

    def generator(context, batch):  # type: ignore[no-untyped-def]
        yield 1

    async def coroutine(context, batch): ...  # type: ignore[no-untyped-def]

    for function in (no_batch, generator, coroutine):
        with pytest.raises(InvalidRequestError, match="of an incremental asset"):
            delta_asset(incremental_from="a", table="b")(function)


def test_appending_all_rows_again_is_refused(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, partition_by=None)
    pipeline.source.append(rows("a"))

    @delta_asset(
        incremental_from=DeltaTableResource(table_uri=pipeline.source.uri),
        table=DeltaTableResource(table_uri=pipeline.target.uri),
        write="append",
    )
    def silver(batch: ChangeBatch) -> Any:
        return batch.scan().to_arrow()

    pipeline.asset = silver
    pipeline.run()
    pipeline.source.append(rows("b"))
    with pytest.raises(InvalidRequestError, match="would double them"):
        pipeline.run()
    assert pipeline.silver() == [("a", 1)]


class Rates(dg.ConfigurableResource[Any]):
    factor: int


class Settings(dg.Config):
    plus: int = 0


def test_what_an_asset_takes(tmp_path: Path) -> None:
    """Resources, config, inputs, metadata, tags, checks and deps, in one function without a context."""
    source, target = DeltaTable(tmp_path / "bronze"), DeltaTable(tmp_path / "silver")
    source.append(rows("a", value=1))

    @dg.asset
    def bonus() -> int:
        return 100

    @delta_asset(
        incremental_from=DeltaTableResource(table_uri=source.uri),
        table=DeltaTableResource(table_uri=target.uri),
        write="overwrite",
        deps=["elsewhere"],
        code_version="7",
        owners=["team:lake"],
        automation_condition=dg.AutomationCondition.eager(),
        check_specs=[dg.AssetCheckSpec("enough", asset="silver")],
    )
    def silver(batch: ChangeBatch, rates: Rates, config: Settings, bonus: int) -> Any:
        values = batch.scan().to_arrow().column("value").to_pylist()
        table = pa.table({"value": [value * rates.factor + config.plus + bonus for value in values]})
        checked = dg.AssetCheckResult(passed=len(values) > 1, check_name="enough")
        return dg.MaterializeResult(value=table, metadata={"mine": 1}, tags={"k": "v"}, check_results=[checked])

    instance = dg.DagsterInstance.ephemeral()
    run_config = dg.RunConfig(ops={"silver": Settings(plus=5)})

    def run() -> Any:
        return dg.materialize(
            [bonus, silver], instance=instance, resources={"rates": Rates(factor=2)}, run_config=run_config
        )

    result = run()
    assert target.snapshot().scan().to_arrow().to_pylist() == [{"value": 107}]
    (event,) = result.asset_materializations_for_node("silver")
    assert event.metadata["mine"].value == 1
    assert (event.tags or {})["k"] == "v"
    assert [check.passed for check in result.get_asset_check_evaluations()] == [False]
    assert silver.code_versions_by_key[dg.AssetKey("silver")] == "7"
    # Nothing new: the last results of the checks stand.
    again = run()
    assert again.success
    assert again.asset_materializations_for_node("silver") == []
    assert [check.passed for check in again.get_asset_check_evaluations()] == [False]

    @dg.asset(deps=[silver])
    def gold() -> None: ...

    third = dg.materialize(
        [bonus, silver, gold], instance=instance, resources={"rates": Rates(factor=2)}, run_config=run_config
    )
    assert len(third.asset_materializations_for_node("silver")) == 1
    assert [check.passed for check in third.get_asset_check_evaluations()] == [False]


def test_several_sources_and_one_commit(tmp_path: Path) -> None:
    orders, payments, target = (DeltaTable(tmp_path / name) for name in ("orders", "payments", "state"))
    seen: list[dict[str, int]] = []

    @delta_asset(
        incremental_from={
            "orders": DeltaTableResource(table_uri=orders.uri),
            "payments": DeltaTableResource(table_uri=payments.uri),
        },
        table=DeltaTableResource(table_uri=target.uri),
        write="merge",
        merge_keys=["id"],
        bootstrap="changes",
    )
    def state(context, batch) -> Any:  # type: ignore[no-untyped-def]
        seen.append({name: one.ending_version for name, one in batch.items()})
        found = [one.changes.to_arrow().select(["id", "what"]) for one in batch.values()]
        return pa.concat_tables(found)

    def news(*ids: int, what: str) -> pa.Table:
        return pa.table({"id": list(ids), "what": [what] * len(ids)})

    def run() -> None:
        assert dg.materialize([state]).success

    orders.append(news(1, 2, what="ordered"))
    payments.create(pa.schema([("id", pa.int64()), ("what", pa.string())]))
    run()
    payments.append(news(1, what="paid"))
    run()
    orders.append(news(3, what="ordered"))
    payments.append(news(2, what="paid"))
    run()
    run()
    assert seen == [{"orders": 0}, {"payments": 1}, {"orders": 1, "payments": 2}]
    found = target.snapshot().scan().to_arrow().sort_by("id").to_pylist()
    assert [(row["id"], row["what"]) for row in found] == [(1, "paid"), (2, "paid"), (3, "ordered")]
    assert sorted(version for name, version in target.txns().items() if name.startswith("cdc:")) == [1, 2]


def test_what_follows_in_the_same_run_runs(tmp_path: Path) -> None:
    """Silver has no news, but gold has not seen its last version: it must not be left out."""
    bronze, silver_table, gold_table = (DeltaTable(tmp_path / name) for name in ("bronze", "silver", "gold"))
    bronze.append(rows("a"), partition_by=["day"])

    @delta_asset(
        incremental_from=DeltaTableResource(table_uri=bronze.uri),
        table=DeltaTableResource(table_uri=silver_table.uri),
        partition_by=["day"],
    )
    def silver(batch: ChangeBatch) -> Any:
        return batch.scan().to_arrow()

    @delta_asset(
        incremental_from=DeltaTableResource(table_uri=silver_table.uri),
        table=DeltaTableResource(table_uri=gold_table.uri),
        write="overwrite",
        deps=[silver],
    )
    def gold(batch: ChangeBatch) -> Any:
        return batch.scan().to_arrow()

    instance = dg.DagsterInstance.ephemeral()
    first = dg.materialize([silver], instance=instance)
    both = dg.materialize([silver, gold], instance=instance)
    assert gold_table.exists()
    (one,), (two,) = (result.asset_materializations_for_node("silver") for result in (first, both))
    assert (one.tags or {})["dagster/data_version"] == (two.tags or {})["dagster/data_version"]


@pytest.mark.parametrize("is_variable", [True, False])
@pytest.mark.parametrize("is_there", [True, False])
def test_an_input_is_loaded_from_where_the_asset_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool, is_variable: bool
) -> None:
    """A table that the IO manager has under this key is another one."""
    lake, seen = Lake(tmp_path), []
    source = lake.table("source")
    source.append(pa.table({"n": [1]}))
    lake.table("silver").append(pa.table({"n": [0]}))
    place = f"{lake.table('silver' if is_there else 'elsewhere').uri}/"
    monkeypatch.setenv("DELTA_TEST_PLACE", place)

    @delta_asset(
        incremental_from=DeltaTableResource(table_uri=source.uri),
        table=DeltaTableResource(table_uri=dg.EnvVar("DELTA_TEST_PLACE") if is_variable else place),
        write="append",
    )
    def silver(batch: ChangeBatch) -> Any:
        return batch.scan().to_arrow()

    @dg.asset
    def gold(silver: pa.Table) -> None:
        seen.append(sorted(silver["n"].to_pylist()))

    if is_there:
        lake.run(silver, gold)
        assert seen == [[0, 1]]
    else:
        assert "this IO manager does not keep" in str(lake.fails(silver, gold))
        assert "this IO manager does not keep" in str(lake.fails(silver, gold, selection=["gold"]))


@pytest.mark.filterwarnings("ignore:Parameter `include_sources`")
def test_an_eager_asset_does_not_run_for_nothing(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.source.append(rows("a"), partition_by=["day"])

    @dg.asset(deps=[pipeline.asset], automation_condition=dg.AutomationCondition.eager())
    def after() -> None: ...

    defs = dg.Definitions([pipeline.asset, after])
    pipeline.run()
    dg.materialize([pipeline.asset, after], instance=pipeline.instance)
    first = dg.evaluate_automation_conditions(defs, pipeline.instance)
    assert pipeline.run()["delta/outcome"] == "nothing new"
    second = dg.evaluate_automation_conditions(defs, pipeline.instance, cursor=first.cursor)
    assert second.total_requested == 0
    pipeline.source.append(rows("b"))
    pipeline.run()
    third = dg.evaluate_automation_conditions(defs, pipeline.instance, cursor=second.cursor)
    assert third.total_requested == 1


def test_a_step_that_another_worker_overtook_runs_again(tmp_path: Path) -> None:
    source, target = DeltaTable(tmp_path / "bronze"), DeltaTable(tmp_path / "silver")
    source.append(rows("a"), partition_by=["day"])
    early = IncrementalReader(source, target, bootstrap="changes").next_batch()
    assert early is not None
    source.append(rows("b"))
    ends: list[int] = []

    @delta_asset(
        incremental_from=DeltaTableResource(table_uri=source.uri),
        table=DeltaTableResource(table_uri=target.uri),
        write="append",
        bootstrap="changes",
    )
    def silver(context, batch: ChangeBatch) -> Any:  # type: ignore[no-untyped-def]
        if not ends:
            # A worker that was slower to start and faster to commit.
            target.append(early.changes.to_arrow().select(["day", "value"]), txn=early.txn)
        ends.append(batch.starting_version or 0)
        return batch.changes.to_arrow().select(["day", "value"])

    assert dg.materialize([silver], instance=dg.DagsterInstance.ephemeral()).success
    assert ends == [0, 1]
    assert sorted(target.snapshot().scan().to_arrow().column("day").to_pylist()) == ["a", "b"]


# What a batch offers is exact for what is made of it


@pytest.mark.long
@pytest.mark.parametrize(
    ("write", "partition_by", "is_exact"),
    [
        ("overwrite", ["day"], True),
        ("overwrite", None, True),
        ("overwrite_partitions", ["day", "value"], True),
        ("overwrite_partitions", ["value"], False),
        ("overwrite_changed", ["value"], True),
    ],
)
def test_rows_of_partitions_that_were_not_touched_stay(
    tmp_path: Path, write: str, partition_by: list[str] | None, is_exact: bool
) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.source.append(pa.concat_tables([rows("a", "b"), rows("b", value=2)]), partition_by=["day"])

    @delta_asset(
        incremental_from=DeltaTableResource(table_uri=pipeline.source.uri),
        table=DeltaTableResource(table_uri=pipeline.target.uri),
        write=write,  # type: ignore[arg-type]
        partition_by=partition_by,
    )
    def copy(batch: ChangeBatch) -> pa.Table:
        return batch.scan().to_arrow().append_column("n", pa.nulls(batch.scan().count(), pa.int64()))

    assert dg.materialize([copy]).success
    pipeline.source.append(rows("b", value=3))
    if is_exact:
        assert dg.materialize([copy]).success
        assert pipeline.silver() == [("a", 1), ("b", 1), ("b", 2), ("b", 3)]
        return
    with pytest.raises(InvalidRequestError, match="would be lost"):
        dg.materialize([copy])
    assert pipeline.silver() == [("a", 1), ("b", 1), ("b", 2)]


def test_several_tables_of_one_function_get_what_is_exact_for_each(tmp_path: Path) -> None:
    source = DeltaTable(tmp_path / "bronze")
    source.append(rows("a", "b"), partition_by=["day"])
    tables = {name: DeltaTableResource(table_uri=str(tmp_path / name)) for name in ("whole", "days")}

    @delta_multi_asset(
        incremental_from=DeltaTableResource(table_uri=source.uri),
        outs={
            "whole": DeltaOut(tables["whole"], write="overwrite"),
            "days": DeltaOut(tables["days"], "overwrite_partitions", partition_by=["day"]),
        },
    )
    def both(batch: ChangeBatch) -> dict[str, pa.Table]:
        return dict.fromkeys(("whole", "days"), batch.scan().to_arrow())

    for _ in range(2):
        assert dg.materialize([both]).success
        for name in tables:
            found = DeltaTable(tmp_path / name).snapshot().scan().to_arrow()
            assert sorted(found.column("day").to_pylist()) == sorted(
                source.snapshot().scan().to_arrow().column("day").to_pylist()
            )
        source.append(rows("b"))


def test_a_recreated_source_leaves_no_row_of_the_old_one(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, write="overwrite_changed", on_recreated="bootstrap")
    pipeline.source.append(rows("a", "b"), partition_by=["day"])
    pipeline.run()
    shutil.rmtree(tmp_path / "bronze")
    pipeline.source.append(rows("b", value=4), partition_by=["day"])
    pipeline.run()
    assert pipeline.silver() == [("b", 8)]
    with pytest.raises(InvalidRequestError, match="recreated"):
        Pipeline(tmp_path, write="append", on_recreated="bootstrap")


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        {"write": "overwrite"},
        {"write": "cdc", "merge_keys": ["day"], "sequence_by": "at", "scd": 2, "full_snapshot": True},
    ],
    ids=lambda arguments: str(arguments["write"]),
)
def test_what_replaces_all_rows_reads_all_sources(tmp_path: Path, arguments: dict[str, Any]) -> None:
    """Also those without news, whose rows would be gone."""
    sources = {name: DeltaTable(tmp_path / name) for name in ("one", "two")}
    target, instance = DeltaTable(tmp_path / "all"), dg.DagsterInstance.ephemeral()
    runs: list[list[str]] = []

    @delta_asset(
        incremental_from={name: DeltaTableResource(table_uri=table.uri) for name, table in sources.items()},
        table=DeltaTableResource(table_uri=target.uri),
        **arguments,
    )
    def together(batch: dict[str, ChangeBatch]) -> pa.Table:
        runs.append(sorted(batch))
        found = pa.concat_tables([one.scan().to_arrow().select(["day", "value"]) for one in batch.values()])
        return found.append_column("at", pa.array([len(runs)] * found.num_rows, pa.int64()))

    def current() -> list[str]:
        where = "is_current" if arguments["write"] == "cdc" else None
        return sorted(target.snapshot().scan(where=where).to_arrow()["day"].to_pylist())

    sources["one"].append(rows("a"))
    sources["two"].append(rows("b"))
    dg.materialize([together], instance=instance)
    sources["one"].append(rows("c"))
    dg.materialize([together], instance=instance)
    assert current() == ["a", "b", "c"]
    assert runs == [["one", "two"]] * 2
    dg.materialize([together], instance=instance)
    assert len(runs) == 2
