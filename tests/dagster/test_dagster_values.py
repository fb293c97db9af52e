"""What an asset may return and ask for, where outputs are kept, and which settings are refused."""

# No postponed annotations in this file: Dagster reads them as they are.

from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, cast

import dagster as dg
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from delta_orch.change_feed.change_feed import ChangeFeed
from delta_orch.dagster import DeltaLakeIOManager, DeltaSnapshot
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import DeltaError, InvalidRequestError, TableNotFoundError
from tests.dagster.lake import Lake, metadata_of

DAYS = dg.DailyPartitionsDefinition("2013-01-01", end_date="2013-01-06")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def consumer(annotation: Any, got: list[Any], **arguments: Any) -> dg.AssetsDefinition:
    """An asset that asks for the asset `numbers` in a type, and keeps what it got."""

    def consume(numbers):  # type: ignore[no-untyped-def]
        got.append(numbers)

    consume.__annotations__.update({"numbers": annotation, "return": None})
    return cast(dg.AssetsDefinition, dg.asset(**arguments)(consume))


@dg.asset
def numbers(context: dg.AssetExecutionContext) -> pa.Table:
    return pa.table({"n": [1, 2], "run": [context.run.run_id] * 2})


# Outputs of ops


def test_each_of_two_runs_at_once_reads_what_it_wrote(lake: Lake) -> None:
    """One run begins and ends while the other stands between writing and reading: in one shared place the other would
    see its rows."""
    read: dict[str, str] = {}
    begun: list[str] = []

    @dg.op
    def write(context: dg.OpExecutionContext) -> pa.Table:
        begun.append(context.run_id)
        return pa.table({"run": [context.run_id]})

    @dg.op(ins={"start": dg.In(dg.Nothing)})
    def wait() -> None:
        if len(begun) == 1:
            assert etl.execute_in_process(instance=lake.instance).success

    @dg.op(ins={"start": dg.In(dg.Nothing)})
    def see(context: dg.OpExecutionContext, rows: pa.Table) -> None:
        (read[context.run_id],) = rows.column("run").to_pylist()

    @dg.job(resource_defs={"io_manager": lake.io_manager})
    def etl() -> None:
        rows = write()
        see(rows, start=wait(start=rows))

    assert etl.execute_in_process(instance=lake.instance).success
    assert list(read) == begun[::-1]
    assert all(run == written for run, written in read.items())
    assert lake.table("etl", "write", "result").snapshot().num_files == 1


def test_the_columns_of_an_ops_output_may_change(lake: Lake) -> None:
    columns = ["a"]

    @dg.op
    def write() -> pa.Table:
        return pa.table({columns[0]: [1]})

    @dg.job(resource_defs={"io_manager": lake.io_manager})
    def etl() -> None:
        write()

    assert etl.execute_in_process(instance=lake.instance).success
    columns[0] = "b"
    assert etl.execute_in_process(instance=lake.instance).success
    assert lake.rows("etl", "write", "result") == [{"b": 1}]


def test_fan_in_of_steps(lake: Lake) -> None:
    got: list[list[int]] = []

    @dg.op(out=dg.DynamicOut())
    def split() -> Any:
        for number in (1, 2, 3):
            yield dg.DynamicOutput(pa.table({"n": [number]}), mapping_key=f"k{number}")

    @dg.op
    def same(rows: pa.Table) -> pa.Table:
        return rows

    @dg.op
    def gather(tables: list[pa.Table]) -> None:
        got.append(sorted(number for table in tables for number in table.column("n").to_pylist()))

    @dg.job(resource_defs={"io_manager": lake.io_manager})
    def mapped() -> None:
        gather(split().map(same).collect())

    assert mapped.execute_in_process(instance=lake.instance).success
    assert got == [[1, 2, 3]]


def test_fan_in_of_steps_that_may_give_none(lake: Lake) -> None:
    got: list[list[int | None]] = []

    @dg.op
    def none() -> pa.Table | None:
        return None

    @dg.op
    def one() -> pa.Table:
        return pa.table({"n": [1]})

    @dg.op
    def gather(tables: list[pa.Table | None]) -> None:
        got.append([None if table is None else table.num_rows for table in tables])

    @dg.job(resource_defs={"io_manager": lake.io_manager})
    def gathered() -> None:
        gather([none(), one()])

    assert gathered.execute_in_process(instance=lake.instance).success
    assert got == [[None, 1]]


# None


def test_none_of_an_optional_type_writes_nothing(lake: Lake) -> None:
    values: list[Any] = [None, pa.table({"n": [1]}), None]
    got: list[Any] = []

    @dg.asset
    def numbers() -> pa.Table | None:
        return values.pop(0)

    after = consumer(pa.Table | None, got)
    lake.run(numbers, after)
    assert got == [None]
    assert not lake.table("numbers").exists()
    lake.run(numbers, after)
    nothing = lake.run(numbers, after)
    assert metadata_of(nothing, "numbers")["delta/reason"] == "the value is None"
    assert lake.table("numbers").version() == 0 or lake.rows("numbers") == [{"n": 1}]
    assert [table.num_rows for table in got[1:]] == [1, 1]


def test_none_of_an_op_arrives_as_none(lake: Lake) -> None:
    values: list[Any] = [pa.table({"n": [1]}), None]
    got: list[Any] = []

    @dg.op
    def maybe() -> pa.Table | None:
        return values.pop(0)

    @dg.op
    def see(rows: pa.Table | None) -> None:
        got.append(rows)

    @dg.job(resource_defs={"io_manager": lake.io_manager})
    def etl() -> None:
        see(maybe())

    for _ in range(2):
        assert etl.execute_in_process(instance=lake.instance).success
    assert got[0].num_rows == 1
    assert got[1] is None


# Types


@pytest.mark.parametrize("annotation", [pa.Table | None, duckdb.DuckDBPyRelation, DeltaSnapshot], ids=str)
def test_more_types_of_inputs(lake: Lake, annotation: Any) -> None:
    got: list[Any] = []
    lake.run(numbers, consumer(annotation, got))
    (value,) = got
    if annotation is DeltaSnapshot:
        assert value.version == lake.table("numbers").version()
        value = value.scan().to_arrow()
    elif annotation is duckdb.DuckDBPyRelation:
        assert isinstance(value, duckdb.DuckDBPyRelation)
        value = pa.table(value)
    assert value.column("n").to_pylist() == [1, 2]


def test_a_value_for_each_partition(lake: Lake) -> None:
    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def numbers(context: dg.AssetExecutionContext) -> pa.Table:
        count = int(context.partition_key[-1])
        return pa.table({"day": [context.partition_key] * count, "n": range(count)})

    got: list[Any] = []
    for day in ("2013-01-01", "2013-01-03"):
        lake.run(numbers, partition=day)
    lake.run(numbers, consumer(dict[str, pl.DataFrame], got), selection=["consume"])
    assert {key: len(frame) for key, frame in got[0].items()} == {
        "2013-01-01": 1,
        "2013-01-02": 0,
        "2013-01-03": 3,
        "2013-01-04": 0,
        "2013-01-05": 0,
    }


def test_partitions_of_a_table_that_was_never_written_are_missing(lake: Lake) -> None:
    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def numbers() -> pa.Table:
        return pa.table({"day": ["2013-01-01"], "n": [1]})

    asset = consumer(dict[str, pa.Table], [])
    assert isinstance(lake.fails(numbers, asset, selection=["consume"]), TableNotFoundError)


def test_a_dict_of_an_asset_without_partitions_is_refused(lake: Lake) -> None:
    assert "has no partitions" in str(lake.fails(numbers, consumer(dict[str, pa.Table], [])))


def test_versions_and_times_of_an_input(lake: Lake) -> None:
    table = lake.table("numbers")
    for number in range(3):
        table.append(pa.table({"n": [number], "run": ["x"]}))
    moment = table.history()[1].timestamp_ms
    for asked, expected in (({"version": 0}, 1), ({"version": 1, "columns": ["n"]}, 2), ({}, 3)):
        got: list[Any] = []
        asset = consumer(pa.Table, got, ins={"numbers": dg.AssetIn(metadata=asked)})
        lake.run(numbers, asset, selection=["consume"])
        assert got[0].num_rows == expected
    text = datetime.fromtimestamp((moment + 0.5) / 1000, UTC).isoformat()
    got = []
    lake.run(
        numbers,
        consumer(pa.Table, got, ins={"numbers": dg.AssetIn(metadata={"timestamp": text})}),
        selection=["consume"],
    )
    assert got[0].num_rows in (2, 3)
    got = []
    asset = consumer(ChangeFeed, got, ins={"numbers": dg.AssetIn(metadata={"starting_version": 1})})
    lake.run(numbers, asset, selection=["consume"])
    assert got[0].to_arrow().column("n").to_pylist() == [1, 2]


@pytest.mark.parametrize(
    ("annotation", "metadata", "message"),
    [
        (pa.Table, {"version": 0, "timestamp": "2013-01-01T00:00:00+00:00"}, "both version and timestamp"),
        (pa.Table, {"version": -1}, "not a version"),
        (pa.Table, {"verison": 0}, "'version'"),
        (pa.Table, {"colums": ["n"]}, "'columns'"),
        (pa.Table, {"starting_version": 0}, "ChangeFeed"),
        (ChangeFeed, {}, "ChangeFeed"),
        (DeltaTable, {"version": 0}, "cannot be applied"),
        (DeltaSnapshot, {"columns": ["n"]}, "cannot be applied"),
    ],
)
def test_what_an_input_cannot_ask_for(lake: Lake, annotation: Any, metadata: Any, message: str) -> None:
    lake.run(numbers)
    asset = consumer(annotation, [], ins={"numbers": dg.AssetIn(metadata=metadata)})
    assert message in str(lake.fails(numbers, asset, selection=["consume"]))


def test_categories_of_polars_are_texts(lake: Lake) -> None:
    frame = pl.DataFrame(
        {
            "c": pl.Series(["a", None], dtype=pl.Categorical),
            "e": pl.Series(["b", "c"], dtype=pl.Enum(["b", "c"])),
            "l": pl.Series([["a"], None], dtype=pl.List(pl.Categorical)),
            "s": pl.Series([{"k": "b"}, None], dtype=pl.Struct({"k": pl.Enum(["b"])})),
        }
    )

    @dg.asset
    def categories() -> Any:
        return frame

    @dg.asset
    def lazily() -> Any:
        return frame.lazy()

    lake.run(categories, lazily)
    for name in ("categories", "lazily"):
        assert lake.rows(name) == [
            {"c": "a", "e": "b", "l": ["a"], "s": {"k": "b"}},
            {"c": None, "e": "c", "l": None, "s": None},
        ]


# An asset that reads itself


@pytest.mark.long
@pytest.mark.parametrize("annotation", [pa.Table, pl.DataFrame, pa.Table | None], ids=str)
def test_an_asset_that_depends_on_its_last_partition(lake: Lake, annotation: Any) -> None:
    seen: list[Any] = []

    def total(context, total):  # type: ignore[no-untyped-def]
        seen.append(total)
        last = 0 if total is None or len(total) == 0 else pa.table(total).column("n").to_pylist()[0]
        return pa.table({"day": [context.partition_key], "n": [last + 1]})

    total.__annotations__["total"] = annotation
    asset = dg.asset(
        partitions_def=DAYS,
        metadata={"partition_expr": "day"},
        ins={"total": dg.AssetIn(partition_mapping=dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1))},
    )(total)
    for day in ("2013-01-01", "2013-01-02", "2013-01-03"):
        lake.run(asset, partition=day)
    lake.run(asset, partition="2013-01-01")
    assert [row["n"] for row in lake.rows("total")] == [1, 2, 3]
    if annotation == (pa.Table | None):
        assert seen[0] is None
        assert seen[3] is None
    else:
        assert len(seen[0]) == 0
        # Now that there is a table, the empty value has its columns.
        assert list(pa.table(seen[3]).column_names) == ["day", "n"]


def test_an_asset_that_reads_itself_may_declare_its_columns(lake: Lake) -> None:
    columns = dg.TableSchema(
        [dg.TableColumn("day", "string"), dg.TableColumn("n", "long"), dg.TableColumn("price", "decimal(10,2)")]
    )

    @dg.asset(
        partitions_def=DAYS,
        metadata={"dagster/column_schema": columns, "partition_expr": "day", "partition_by": []},
        ins={"growing": dg.AssetIn(partition_mapping=dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1))},
    )
    def growing(context: dg.AssetExecutionContext, growing: pa.Table) -> pa.Table:
        assert growing.schema.types == [pa.string(), pa.int64(), pa.decimal128(10, 2)]
        return pa.table({"day": [context.partition_key], "n": [growing.num_rows], "price": [None]}, growing.schema)

    for day in ("2013-01-01", "2013-01-02"):
        lake.run(growing, partition=day)
    assert [row["n"] for row in lake.rows("growing")] == [0, 1]


LAST_DAY = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
BOTH = ("2013-01-02", "2013-01-03")


def test_a_range_is_refused_where_one_of_its_partitions_reads_another(lake: Lake) -> None:
    @dg.asset(
        partitions_def=DAYS,
        metadata={"partition_expr": "day"},
        ins={"total": dg.AssetIn(partition_mapping=LAST_DAY)},
    )
    def total(context: dg.AssetExecutionContext, total: pa.Table | None) -> pa.Table:
        before = 0 if total is None else sum(total.column("n").to_pylist())
        return pa.table({"day": context.partition_keys, "n": [before + 1] * len(context.partition_keys)})

    def refused() -> bool:
        return "2013-01-02" in str(lake.fails(total, span=BOTH))

    assert refused()
    for day in ("2013-01-01", *BOTH):
        lake.run(total, partition=day)
    assert refused()
    lake.run(total, span=("2013-01-03", "2013-01-03"))
    assert [row["n"] for row in lake.rows("total")] == [1, 2, 3]


def test_a_range_is_computed_from_what_lies_before_it(lake: Lake) -> None:
    @dg.asset(
        partitions_def=DAYS,
        metadata={"partition_expr": "day"},
        ins={"total": dg.AssetIn(partition_mapping=LAST_DAY)},
    )
    def total(context: dg.AssetExecutionContext, total: DeltaSnapshot | None) -> pa.Table:
        keys = list(context.partition_keys)
        rows = total and total.scan(where=f"day < '{keys[0]}'").to_arrow().sort_by("day")
        before = rows.column("n").to_pylist()[-1] if rows else 0
        return pa.table({"day": keys, "n": range(before + 1, before + 1 + len(keys))})

    for span in (("2013-01-01", "2013-01-03"), BOTH):
        lake.run(total, span=span)
    assert [row["n"] for row in lake.rows("total")] == [1, 2, 3]


def test_a_range_of_a_part_of_a_multi_asset_reads_the_part_that_it_does_not_write(lake: Lake) -> None:
    seen: list[int] = []

    @dg.multi_asset(
        outs={
            name: dg.AssetOut(dagster_type=pa.Table, metadata={"partition_expr": "day"}, is_required=False)
            for name in ("total", "report")
        },
        ins={"before": dg.AssetIn("total", partition_mapping=LAST_DAY)},
        partitions_def=DAYS,
        can_subset=True,
        internal_asset_deps={"total": {dg.AssetKey("total")}, "report": {dg.AssetKey("total")}},
    )
    def both(context: dg.AssetExecutionContext, before: pa.Table):  # type: ignore[no-untyped-def]
        seen.append(before.num_rows)
        rows = pa.table({"day": context.partition_keys, "n": [1] * len(context.partition_keys)})
        for name in sorted(context.op_execution_context.selected_output_names, reverse=True):
            yield dg.Output(rows, name)

    for day in ("2013-01-01", *BOTH):
        lake.run(both, partition=day)
    assert seen == [0, 1, 1]
    assert "2013-01-02" in str(lake.fails(both, span=BOTH))
    lake.run(both, span=BOTH, selection=["report"])
    assert seen[3:] == [2]


def test_another_asset_without_a_table_is_still_an_error(lake: Lake) -> None:
    asset = consumer(pa.Table, [])
    assert isinstance(lake.fails(numbers, asset, selection=["consume"]), TableNotFoundError)


# Places


def writer(*key: str, **arguments: Any) -> dg.AssetsDefinition:
    def write() -> pa.Table:
        return pa.table({"n": [1]})

    return cast(dg.AssetsDefinition, dg.asset(key=list(key), **arguments)(write))


@pytest.mark.long
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (writer("a"), writer("a", "b")),
        (writer("a", "b", "c"), writer("a")),
        (writer("x", "t", metadata={"schema": "s"}), writer("y", "t", metadata={"schema": "s"})),
        (writer("t", metadata={"schema": "a"}), writer("a")),
    ],
)
def test_tables_that_share_a_folder_are_refused(tmp_path: Path, one: Any, other: Any) -> None:
    said = "There is a table at" if one.key.path[-1] != other.key.path[-1] else "It belongs to"
    assert said in str(Lake(tmp_path / "job").fails(one, other))
    for first, second in ((one, other), (other, one)):
        lake = Lake(tmp_path / f"separate{first is one}")
        lake.run(first)
        assert said in str(lake.fails(second))


@pytest.mark.parametrize("modes", [("append", "append"), ("overwrite", "append"), ("append", "merge")])
def test_assets_of_one_job_may_add_to_one_table(tmp_path: Path, modes: tuple[str, str]) -> None:
    lake = Lake(tmp_path, merge_keys=["n", "of"])

    def adder(name: str, mode: str, deps: Any = ()) -> dg.AssetsDefinition:
        @dg.asset(key=[name, "t"], metadata={"schema": "s", "write": mode}, deps=deps)
        def write() -> pa.Table:
            return pa.table({"n": [1], "of": [name]})

        return write

    one = adder("one", modes[0])
    assert lake.run(one, adder("two", modes[1], [one])).success
    assert lake.rows("s", "t") == [{"n": 1, "of": "one"}, {"n": 1, "of": "two"}]


def test_no_root_is_not_the_root_of_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for root in ("", " ", dg.EnvVar("DELTA_TEST_ROOT")):
        monkeypatch.setenv("DELTA_TEST_ROOT", "")
        lake = Lake(tmp_path)
        lake.io_manager = DeltaLakeIOManager(root_uri=root)
        assert "root_uri is empty" in str(lake.fails(writer("t")))


def test_neighbors_share_nothing(lake: Lake) -> None:
    lake.run(writer("a", "b"), writer("a", "bc"), writer("ab"), writer("a", "c", "d"))
    assert lake.rows("a", "c", "d") == [{"n": 1}]


def op_job(lake: Lake, **out: Any) -> dg.JobDefinition:
    @dg.op(out=dg.Out(metadata=out))
    def load() -> pa.Table:
        return pa.table({"n": [2]})

    @dg.job(resource_defs={"io_manager": lake.io_manager})
    def etl() -> None:
        load()

    return etl


@pytest.mark.long
@pytest.mark.parametrize("exactly_once", [True, False])
@pytest.mark.parametrize("key", [("etl", "load", "result"), ("a",)])
def test_an_op_and_an_asset_share_no_table(tmp_path: Path, key: tuple[str, ...], exactly_once: bool) -> None:
    named = {} if len(key) > 1 else {"table": key[0]}
    lake, asset = Lake(tmp_path / "1", exactly_once=exactly_once), writer(*key)
    lake.run(asset)
    with pytest.raises(InvalidRequestError, match="not for outputs of ops"):
        op_job(lake, **named).execute_in_process(instance=lake.instance)
    assert lake.rows(*key) == [{"n": 1}]
    lake = Lake(tmp_path / "2", exactly_once=exactly_once)
    for _ in range(2):
        op_job(lake, **named).execute_in_process(instance=lake.instance)
    assert "belongs to outputs of ops" in str(lake.fails(asset))
    assert lake.rows(*key) == [{"n": 2}]
    with pytest.raises(InvalidRequestError, match="belongs to outputs of ops"):
        lake.run(asset)


def test_the_output_of_an_op_is_a_whole(tmp_path: Path) -> None:
    """Also where assets replace the partitions of their rows alone."""
    lake, seen = Lake(tmp_path, write="overwrite_partitions"), []
    values = [pa.table({"n": [1, 2], "p": ["a", "b"]}), pa.table({"n": [3], "p": ["a"]})]

    @dg.op(out=dg.Out(metadata={"partition_by": ["p"]}))
    def load() -> pa.Table:
        return values.pop(0)

    @dg.op
    def see(rows: pa.Table) -> None:
        seen.append(sorted(rows["n"].to_pylist()))

    @dg.job(resource_defs={"io_manager": lake.io_manager})
    def etl() -> None:
        see(load())

    for _ in range(2):
        etl.execute_in_process(instance=lake.instance)
    assert seen == [[1, 2], [3]]


@pytest.mark.long
def test_assets_of_other_jobs_and_managers_share_no_table(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.run(writer("a", "t"))
    assert "It belongs to asset a/t" in str(lake.fails(writer("b", "t", metadata={"schema": "a"})))
    inner = Lake(tmp_path / "a")
    inner.instance = lake.instance
    assert "It belongs to asset a/t" in str(inner.fails(writer("t")))
    assert lake.rows("a", "t") == [{"n": 1}]
    # Rows may be merged and appended into it, and replaced by its own asset again.
    merged = {"schema": "a", "write": "merge", "merge_keys": ["n"]}
    assert lake.run(writer("late", "t", metadata=merged)).success
    assert lake.run(writer("more", "t", metadata={"schema": "a", "write": "append"})).success
    assert lake.rows("a", "t") == [{"n": 1}, {"n": 1}]
    assert lake.run(writer("a", "t")).success
    assert lake.rows("a", "t") == [{"n": 1}]


# Settings


def test_the_table_of_an_asset_is_named_by_its_key(lake: Lake) -> None:
    assert "'table' is for outputs of ops" in str(lake.fails(writer("t", metadata={"table": "other"})))


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("wirte", "write"),
        ("Write", "write"),
        ("writes", "write"),
        ("partitionexpr", "partition_expr"),
        ("partition_expression", "partition_expr"),
        ("partition-by", "partition_by"),
        ("mergeKeys", "merge_keys"),
        ("commit_metdata", "commit_metadata"),
        ("onredo", "on_redo"),
        ("unit_colum", "unit_column"),
        ("unit_col", "unit_column"),
        ("mod", "write"),
        ("save_mode", "write"),
        ("write_disposition", "write"),
        ("audits", "audit"),
        ("exactlyonce", "exactly_once"),
        ("mode", "write"),
        ("table_properties", "properties"),
        ("idempotency", "on_redo"),
    ],
)
def test_a_misspelled_key_is_refused_when_the_definitions_load(lake: Lake, key: str, near: str) -> None:
    calls: list[str] = []

    @dg.asset(metadata={key: "append"})
    def t() -> pa.Table:
        calls.append("called")
        return pa.table({"n": [1]})

    defs = dg.Definitions([t], resources={"io_manager": lake.io_manager})
    with pytest.raises(InvalidRequestError, match=f"'{near}'|Write {near}"):
        dg.Definitions.validate_loadable(defs)
    assert isinstance(lake.fails(t), InvalidRequestError)
    assert calls == []


def test_what_an_output_says_is_known_when_it_is_there(lake: Lake) -> None:
    @dg.asset
    def said() -> dg.Output[pa.Table]:
        return dg.Output(pa.table({"n": [1]}), metadata={"wirte": "append"})

    assert "'write'" in str(lake.fails(said))
    assert not lake.table("said").exists()


@pytest.mark.parametrize(
    ("metadata", "partitions_def", "said"),
    [
        ({"write": "merge"}, None, "merge_keys"),
        ({"write": "upsert"}, None, "'upsert' does not exist"),
        ({"unit": "hour"}, None, "unit='hour'"),
        ({"write": "merge", "merge_keys": ["n"], "unit_column": "load"}, None, "unit_column is not for"),
        ({"on_redo": "again"}, None, "on_redo='again'"),
        ({"exactly_once": "no"}, None, "True or False"),
        ({}, dg.StaticPartitionsDefinition(["a"]), "which column holds them"),
        ({"audit": 7}, None, "audit"),
    ],
)
def test_settings_that_do_not_fit_are_refused_when_the_definitions_load(
    lake: Lake, metadata: dict[str, Any], partitions_def: Any, said: str
) -> None:
    @dg.asset(metadata=metadata, partitions_def=partitions_def)
    def t() -> pa.Table:
        return pa.table({"n": [1]})

    with pytest.raises(DeltaError, match=said):
        dg.Definitions.validate_loadable(dg.Definitions([t], resources={"io_manager": lake.io_manager}))


def test_assets_of_other_io_managers_are_not_looked_at(lake: Lake) -> None:
    @dg.asset(metadata={"wirte": "x"}, io_manager_key="other")
    def theirs() -> int:
        return 1

    @dg.asset(metadata={"wirte": "x"})
    def nothing() -> None: ...

    resources = {"io_manager": lake.io_manager, "other": dg.mem_io_manager}
    dg.Definitions.validate_loadable(dg.Definitions([theirs, nothing], resources=resources))


@pytest.mark.parametrize("key", ["where", "filters", "schema", "primary_key"])
def test_keys_of_others_on_an_input_pass(lake: Lake, key: str) -> None:
    lake.run(writer("t"))

    @dg.asset(ins={"t": dg.AssetIn(metadata={key: "n > 1"})})
    def reads(t: pa.Table) -> None: ...

    assert lake.run(reads, dg.AssetSpec("t")).success


@pytest.mark.parametrize("key", ["partition_expr", "partition_format"])
def test_an_input_does_not_say_where_its_rows_are(lake: Lake, key: str) -> None:
    lake.run(writer("t"))

    @dg.asset(ins={"t": dg.AssetIn(metadata={key: "n"})})
    def reads(t: pa.Table) -> None: ...

    assert "metadata of the upstream" in str(lake.fails(reads, dg.AssetSpec("t")))


@pytest.mark.long
@pytest.mark.parametrize("key", ["schem", "Schema", "partitionexpr", "partition_fromat"])
def test_a_slip_in_what_says_where_rows_are_is_not_read_over(lake: Lake, key: str) -> None:
    lake.run(writer("t"))

    @dg.asset
    def reads(t: pa.Table) -> None: ...

    assert "of the upstream does not exist" in str(lake.fails(reads, dg.AssetSpec("t", metadata={key: "x"})))
    # How it is written is said to its own IO manager.
    assert lake.run(reads, dg.AssetSpec("t", metadata={"write": "x", "write_mode": "x", "replace_where": "x"})).success


class Writing(str, Enum):  # noqa: UP042  # as many have them
    ADDS = "append"


def test_a_mode_may_be_a_member_of_an_enum(lake: Lake) -> None:
    for _ in range(2):
        result = lake.run(writer("t", metadata={"write": Writing.ADDS}))
        assert metadata_of(result, "t")["delta/write"] == "append"
    assert lake.rows("t") == [{"n": 1}, {"n": 1}]


def test_merge_keys_without_a_mode_are_refused(lake: Lake) -> None:
    said: list[dict[str, Any]] = [{"write": "merge"}, {"write": "append"}, {}]

    @dg.asset(metadata={"merge_keys": ["n"]})
    def items() -> dg.Output[pa.Table]:
        return dg.Output(pa.table({"n": [1]}), metadata=said.pop(0))

    for _ in range(2):
        lake.run(items)
    # The table would be replaced.
    with pytest.raises(InvalidRequestError, match="merge_keys and no write, which by default is 'overwrite'"):
        lake.run(items)
    assert lake.rows("items") == [{"n": 1}, {"n": 1}]


def test_what_is_said_of_the_asset_counts_as_said_of_its_output(lake: Lake) -> None:
    said = [{"write": "append"}, {"wirte": "append"}]

    @dg.asset
    def counted(context: dg.AssetExecutionContext) -> pa.Table:
        context.add_asset_metadata(said[0])
        return pa.table({"n": [1]})

    for _ in range(2):
        lake.run(counted)
    assert lake.rows("counted") == [{"n": 1}, {"n": 1}]
    said.pop(0)
    assert "'write'" in str(lake.fails(counted))


def test_what_is_said_of_one_partition_is_not_how_a_run_writes(lake: Lake) -> None:
    days = dg.DailyPartitionsDefinition("2013-01-01", end_date="2013-01-03")

    @dg.asset(partitions_def=days, metadata={"partition_expr": "day"})
    def counted(context: dg.AssetExecutionContext) -> pa.Table:
        for name in ("rows", "write"):
            context.add_asset_metadata({name: "append"}, partition_key=context.partition_key)
        return pa.table({"day": [context.partition_key], "n": [1]})

    assert "'write' is about the partition 2013-01-01 alone" in str(lake.fails(counted, partition="2013-01-01"))
    assert not lake.table("counted").exists()


def test_a_reader_that_was_read_is_not_an_empty_one(lake: Lake) -> None:
    reader = pa.table({"n": [1]}).to_reader()

    @dg.multi_asset(outs={"one": dg.AssetOut(), "two": dg.AssetOut()})
    def both() -> tuple[pa.RecordBatchReader, pa.RecordBatchReader]:
        return reader, reader

    assert "read already" in str(lake.fails(both))
    assert lake.rows("one") == [{"n": 1}]
    assert not lake.table("two").exists()


def test_values_loaded_outside_of_a_run(lake: Lake) -> None:
    asset = writer("t")
    definitions = dg.Definitions([asset], resources={"io_manager": lake.io_manager})
    with pytest.raises(TableNotFoundError, match="The value of t has nothing to load"):
        definitions.load_asset_value("t", instance=lake.instance)
    lake.run(asset)
    loaded: Any = definitions.load_asset_value("t", instance=lake.instance)
    assert loaded.to_pylist() == [{"n": 1}]


def test_keys_of_ones_own_pass(lake: Lake) -> None:
    own: dict[str, Any] = {"owner": "me", "model": "x", "team": "t", "my/write": 1, "description": "d", "columns": 3}
    own |= {"table_name": "t", "primary_key": "n", "where": "n > 1", "write_mode": "x", "filters": [], "writer": "me"}
    lake.run(writer("t", metadata=own))
    assert lake.rows("t") == [{"n": 1}]


@pytest.mark.parametrize(
    ("name", "near"),
    [("wirte", "write"), ("merge_key", "merge_keys"), ("unit_colum", "unit_column"), ("exactlyonce", "exactly_once")],
)
def test_a_misspelled_setting_is_refused(tmp_path: Path, name: str, near: str) -> None:
    arguments: dict[str, Any] = {name: "append"}
    with pytest.raises(ValueError, match=f"did you mean '{near}'"):
        DeltaLakeIOManager(root_uri=str(tmp_path), **arguments)


def test_a_setting_that_is_none_is_refused(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"schema": "public"}
    with pytest.raises(ValueError, match="There is no setting 'schema'"):
        DeltaLakeIOManager(root_uri=str(tmp_path), **arguments)


def test_metadata_of_ones_own_for_the_commit(tmp_path: Path) -> None:
    lake = Lake(tmp_path, commit_metadata={"team": "lake", "cost": "1"})
    lake.run(writer("t", metadata={"commit_metadata": {"cost": "2"}}))
    commit = lake.table("t").log.read_commit(lake.table("t").version()).commit_info
    assert commit is not None
    assert (commit["team"], commit["cost"]) == ("lake", "2")


def test_contexts_without_a_run(tmp_path: Path) -> None:
    manager = DeltaLakeIOManager(root_uri=str(tmp_path), exactly_once=False)
    output = dg.build_output_context(asset_key=dg.AssetKey("t"))
    manager.handle_output(output, pa.table({"n": [1]}))
    loaded = manager.load_input(dg.build_input_context(asset_key=dg.AssetKey("t")))
    assert isinstance(loaded, pa.Table)
    assert loaded.to_pylist() == [{"n": 1}]
    with pytest.raises(InvalidRequestError, match="does not happen inside a Dagster run"):
        DeltaLakeIOManager(root_uri=str(tmp_path)).handle_output(output, pa.table({"n": [1]}))


def test_pandas_hands_on_what_is_beside_a_null(lake: Lake) -> None:
    """As a float, a large integer became another one, in a green run."""
    rows = {"n": [2**53 + 1, None], "b": [True, None], "deep": [[2**60 + 1, None], None]}

    @dg.asset
    def first() -> pa.Table:
        return pa.table(rows)

    @dg.asset
    def second(first: pd.DataFrame) -> pd.DataFrame:
        return first

    assert dg.materialize([first, second], instance=lake.instance, resources={"io_manager": lake.io_manager}).success
    assert lake.table("second").snapshot().scan().to_arrow().to_pydict() == rows
