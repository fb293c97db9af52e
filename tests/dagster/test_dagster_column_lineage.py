"""Column lineage: where rows are handed on as they were read, and nowhere else."""

# No postponed annotations in this file: Dagster reads them as they are.

from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from delta_orch.dagster import (
    ChangeBatch,
    DeltaOut,
    DeltaSnapshot,
    DeltaTableResource,
    build_delta_observations,
    delta_asset,
    delta_multi_asset,
)
from tests.dagster.lake import Lake, metadata_of

ROWS = pa.table({"k": ["a", "b"], "v": [1, 2], "s": [{"x": 1, "v": 7}, {"x": 2, "v": 8}]})


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@dg.asset
def source() -> pa.Table:
    return ROWS


def resource(lake: Lake, name: str) -> DeltaTableResource:
    return DeltaTableResource(table_uri=lake.table(name).uri)


def told(result: Any, key: str) -> dict[str, list[tuple[str, str]]] | None:
    lineage = metadata_of(result, key).get("dagster/column_lineage")
    if lineage is None:
        return None
    return {
        column: [(dep.asset_key.to_user_string(), dep.column_name) for dep in deps]
        for column, deps in lineage.deps_by_column.items()
    }


@pytest.mark.parametrize("write", ["append", "merge", "overwrite", "overwrite_partitions"])
def test_rows_of_a_batch_as_they_are(lake: Lake, write: Any) -> None:
    keys: dict[str, Any] = {"merge_keys": ["k"]} if write == "merge" else {}

    @delta_asset(
        incremental_from=resource(lake, "source"),
        table=resource(lake, "copy"),
        write=write,
        partition_by=["k"],
        deps=[source],
        **keys,
    )
    def copy(batch: ChangeBatch) -> Any:
        return batch.inserted(["v", "k"]) if write == "append" else batch.scan(["v", "k"])

    # The second run follows a table that is there.
    for count in (1, 2):
        result = lake.run(source, copy) if count == 1 else lake.run(copy, *source.to_source_assets(), selection=[copy])
        assert told(result, "copy") == {"v": [("source", "v")], "k": [("source", "k")]}
        lake.table("source").append(ROWS.slice(0, 1).set_column(0, "k", pa.array(["c"])))
    assert {(row["k"], row["v"]) for row in lake.rows("copy")} == {("a", 1), ("b", 2), ("c", 1)}


def test_a_snapshot_that_is_handed_on(lake: Lake) -> None:
    @dg.asset
    def all_of_it(source: DeltaSnapshot) -> Any:
        return source

    @dg.asset
    def part(source: DeltaSnapshot) -> Any:
        return source.scan(["K", "s.v"], where="v > 1")

    @dg.asset
    def said(source: DeltaSnapshot) -> dg.Output[Any]:
        own = dg.TableColumnLineage({"k": [dg.TableColumnDep("other", "x")]})
        return dg.Output(source.scan(["k"]), metadata={"dagster/column_lineage": own})

    result = lake.run(source, all_of_it, part, said)
    assert told(result, "all_of_it") == {name: [("source", name)] for name in ("k", "v", "s")}
    # A field of a struct is part of its column, and not the column that has its name.
    assert told(result, "part") == {"k": [("source", "k")], "v": [("source", "s")]}
    assert told(result, "said") == {"k": [("other", "x")]}
    assert (lake.rows("part"), len(lake.rows("all_of_it"))) == ([{"k": "b", "v": 8}], 2)


# Of Dagster itself, where it runs an observation in process.
@pytest.mark.filterwarnings("ignore:Property `OpDefinition.version`")
def test_an_observed_table_and_several_outputs(lake: Lake) -> None:
    lake.table("seen").append(ROWS.select(["k", "v"]))
    (seen,) = build_delta_observations({"seen": resource(lake, "seen")})

    @delta_multi_asset(
        incremental_from=resource(lake, "seen"),
        outs={
            "one": DeltaOut(resource(lake, "one"), write="append", spec={"deps": ["seen"]}),
            "two": DeltaOut(resource(lake, "two"), write="append", spec={"deps": ["seen"]}),
        },
    )
    def both(batch: ChangeBatch) -> Any:
        return {"one": batch.inserted(["k"]), "two": batch.inserted().to_arrow()}

    job = dg.Definitions([seen], jobs=[dg.define_asset_job("look", ["seen"])]).resolve_job_def("look")
    job.execute_in_process(instance=lake.instance)
    result = lake.run(both, seen, selection=[both])
    found = {
        event.asset_key.to_user_string(): event.metadata.get("dagster/column_lineage")
        for event in result.asset_materializations_for_node("both")
    }
    assert found["two"] is None
    lineage: Any = found["one"]
    assert lineage.value.deps_by_column == {"k": [dg.TableColumnDep("seen", "k")]}


def test_what_is_not_certain_is_not_told(lake: Lake) -> None:
    @dg.asset
    def frame(source: DeltaSnapshot) -> pa.Table:
        table: pa.Table = source.scan().to_arrow()
        return table

    @dg.asset(deps=[source])
    def elsewhere() -> Any:
        return lake.table("other").snapshot().scan()

    lake.table("other").append(ROWS)
    result = lake.run(source, frame, elsewhere)
    assert (told(result, "frame"), told(result, "elsewhere")) == (None, None)


def test_descriptions_of_a_declaration_are_shown(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    declared = dg.TableSchema([dg.TableColumn("n", "long", description="How many"), dg.TableColumn("old", "long")])
    about = {"dagster/column_schema": declared}

    @dg.asset(metadata=about)
    def made() -> pa.Table:
        return pa.table({"n": [1], "m": [2]})

    @delta_asset(
        incremental_from=DeltaTableResource(table_uri=str(tmp_path / "made")),
        table=DeltaTableResource(table_uri=str(tmp_path / "copied")),
        write="overwrite",
        metadata=about,
        deps=[made],
    )
    def copied(batch: ChangeBatch) -> pa.Table:
        return batch.scan().to_arrow()

    result = lake.run(made, copied)
    for name in ("made", "copied"):
        shown = metadata_of(result, name)["dagster/column_schema"].columns
        assert [(one.name, one.type, one.description) for one in shown] == [
            ("n", "long", "How many"), ("m", "long", None)
        ]  # fmt: skip
    lake.table("made").alter().set_column_comment("n", "In the table").commit()
    shown = metadata_of(lake.run(made), "made")["dagster/column_schema"].columns
    assert shown[0].description == "In the table"
