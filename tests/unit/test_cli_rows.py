"""The commands that show what is in a table: `show`, `files`, `explain`, and the options of reading."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable
from delta_orch.cli.app import COLUMNS
from delta_orch.cli.main import run
from delta_orch.protocol.actions import Txn
from delta_orch.protocol.types import LONG, VARIANT, ArrayType, StructField, StructType
from delta_orch.variant import json_to_variant
from tests.handmade import HandmadeTable

LEG = pa.struct([("from", pa.string()), ("n", pa.int32())])
ROWS = pa.table(
    {
        "day": ["a", "a", "b"],
        "id": [1, 2, 3],
        "price": pa.array([Decimal("1.50"), None, Decimal("2.00")], pa.decimal128(5, 2)),
        "score": [math.nan, -math.inf, 0.5],
        "at": pa.array([datetime(2013, 1, 1, tzinfo=UTC), None, None], pa.timestamp("us", "UTC")),
        "raw": [b"\x00\xff", None, b""],
        "tags": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        "legs": pa.array([[{"from": "[red]JFK", "n": 1}], None, []], pa.list_(LEG)),
    }
)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    table = DeltaTable(tmp_path / "t")
    table.append(ROWS, partition_by=["day"])
    return str(tmp_path / "t")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit:
            run([str(a) for a in arguments])
        captured = capsys.readouterr()
        return exit.value.code or 0, captured.out, captured.err  # type: ignore[return-value]

    return call


def test_show_json_has_every_value(cli: Any, uri: str) -> None:
    code, out, _ = cli("show", uri, "--json")
    assert code == 0
    shown = json.loads(out)
    assert (shown["version"], shown["has_more"]) == (0, False)
    assert [c["type"] for c in shown["columns"]][:3] == ["string", "long", "decimal(5,2)"]
    by_id = {row["id"]: row for row in shown["rows"]}
    assert by_id[1] == {
        "day": "a",
        "id": 1,
        "price": "1.50",
        "score": "NaN",
        "at": "2013-01-01T00:00:00+00:00",
        "raw": "AP8=",
        "tags": {"k": 1},
        "legs": [{"from": "[red]JFK", "n": 1}],
    }
    assert (by_id[2]["score"], by_id[2]["price"], by_id[2]["tags"], by_id[3]["raw"]) == ("-Infinity", None, {}, "")


def test_show_is_a_table_of_so_many_rows(cli: Any, uri: str) -> None:
    _, out, _ = cli("show", uri, "--columns", "id,legs", "--where", "id < 3", "--limit", 1)
    lines = out.splitlines()
    assert lines[0].split() == ["id", "legs"]
    assert "long" in lines[1]
    assert "[red]JFK" in out or "null" in out
    assert lines[-1] == "1 rows of version 0, and more"
    assert "3 rows of version 0\n" in cli("show", uri)[1]
    nothing = json.loads(cli("show", uri, "--limit", 0, "--json")[1])
    assert (nothing["rows"], nothing["has_more"]) == ([], True)


VARIANTS = StructType((StructField("id", LONG), StructField("v", VARIANT), StructField("many", ArrayType(VARIANT))))


@pytest.fixture
def variants(tmp_path: Path) -> str:
    texts = ['{"a":1.50,"b":[null,"x"]}', None, "null", "12345678901234567890.5"]
    values = json_to_variant(pa.array(texts, pa.string()))
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 4, 4, 4], pa.int32()), values)
    rows = pa.table({"id": pa.array([1, 2, 3, 4]), "v": values, "many": lists})
    made = HandmadeTable(tmp_path / "variants")
    made.create(VARIANTS, reader_features=("variantType",))
    made.commit(made.add("f.parquet", rows))
    return str(made.root)


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.spark)])
def test_variants_are_shown_as_json(cli: Any, variants: str, engine: str, request: pytest.FixtureRequest) -> None:
    if engine == "spark":
        request.getfixturevalue("spark")
    code, out, _ = cli("show", variants, "--json", "--engine", engine)
    assert code == 0
    shown = sorted(json.loads(out, parse_float=Decimal)["rows"], key=lambda row: row["id"])
    first = {"a": Decimal("1.5"), "b": [None, "x"]}
    assert [row["v"] for row in shown] == [first, None, None, Decimal("12345678901234567890.5")]
    assert shown[0]["many"] == [first, None]
    text = cli("show", variants, "--engine", engine, "--where", "id < 2", "--columns", "v")[1]
    assert [line.strip() for line in text.splitlines()[:3]] == ["v", "variant", '{"a":1.50,"b":[null,"x"]}']


def test_fields_of_structs_on_the_command_line(cli: Any, tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"s": [{"a": 1, "b": {"c": "x"}}, None]}))
    rows = json.loads(cli("show", table.uri, "--columns", "s.b.c,`s`.A", "--json")[1])["rows"]
    assert rows == [{"c": "x", "a": 1}, {"c": None, "a": None}]
    assert cli("read", table.uri, "--columns", "s.b.c", "--output", tmp_path / "o.parquet")[0] == 0
    assert pq.read_table(tmp_path / "o.parquet").to_pylist() == [{"c": "x"}, {"c": None}]


def test_changes_under_an_older_schema_and_where_the_feed_was_off(cli: Any, tmp_path: Path) -> None:
    made = HandmadeTable(tmp_path / "t")
    narrow, wide = pa.schema([("id", pa.int64())]), pa.schema([("id", pa.int64()), ("more", pa.string())])
    made.create(narrow, features=("changeDataFeed",))
    made.commit(made.add("1.parquet", pa.table({"id": [1]})))
    made.commit(made.metadata(wide, configuration={"delta.enableChangeDataFeed": "true"}))
    made.commit(made.add("3.parquet", pa.table({"id": [3], "more": ["x"]})))
    output, uri = tmp_path / "o.parquet", str(made.root)
    status, out, _ = cli("changes", uri, "--from", 1, "--output", output, "--json")
    assert (status, json.loads(out)["error"]["context"]["version"]) == (1, 1)
    files = ["--no-require-change-data-feed", "--output", output, "--force"]
    assert cli("changes", uri, "--from", 1, "--to", 3, "--schema-version", 1, *files)[0] == 0
    assert pq.read_table(output).column_names == ["id", "_change_type", "_commit_version", "_commit_timestamp"]
    assert pq.read_table(output)["id"].to_pylist() == [1, 3]


def test_files_tell_their_statistics(cli: Any, uri: str) -> None:
    listed = json.loads(cli("files", uri, "--json")[1])
    assert [f["partition"] for f in listed["files"]] == [{"day": "a"}, {"day": "b"}]
    assert listed["files"][0]["max"]["id"] == 2
    assert (listed["files"][0]["num_records"], listed["files"][0]["num_deleted"]) == (2, 0)
    _, out, _ = cli("files", uri)
    assert "day=b" in out and listed["files"][0]["path"] in out
    assert out.splitlines()[-1].startswith("2 files of version 0, ")
    only = json.loads(cli("files", uri, "--where", "id > 2", "--json")[1])["files"]
    assert [f["partition"]["day"] for f in only] == ["b"]
    assert len(json.loads(cli("files", uri, "--limit", 1, "--json")[1])["files"]) == 1


@pytest.mark.parametrize("stats", ["not json", "7", '{"minValues":{"id":NaN}}', '{"numRecords":1e400}'])
@pytest.mark.parametrize("time_ms", [-(2**62), 253_402_300_800_000, 2**62])
def test_what_other_writers_say_of_files_is_shown_as_far_as_it_goes(
    cli: Any, tmp_path: Path, stats: str, time_ms: int
) -> None:
    made = HandmadeTable(tmp_path / "made")
    made.create(ROWS.select(["id"]).schema)
    add = made.add("f.parquet", ROWS.select(["id"]))
    made.commit(replace(add, stats=stats, modification_time=time_ms), Txn("a", 1, time_ms))
    for command in (["files"], ["snapshot"], ["txns"], ["show"], ["explain", "--where", "id > 1"]):
        assert cli(*command, made.root)[0] == 0
        assert cli(*command, made.root, "--json")[0] == 0
    (file,) = json.loads(cli("files", made.root, "--json")[1])["files"]
    assert file["num_records"] is None
    assert f"{time_ms} ms since the epoch" in cli("txns", made.root)[1]


def test_files_of_mapped_columns_go_by_logical_names(cli: Any, tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "mapped")
    table.append(ROWS, properties={"delta.columnMapping.mode": "name"})
    (file,) = json.loads(cli("files", table.uri, "--json")[1])["files"]
    assert set(file["min"]) <= set(ROWS.column_names)
    assert set(file["null_count"]) == set(ROWS.column_names)


def test_explain(cli: Any, uri: str) -> None:
    _, out, _ = cli("explain", uri, "--where", "day = 'a' AND id > 1")
    assert "after partition pruning" in out and "partition values: rules out 1 files" in out
    told = json.loads(cli("explain", uri, "--where", "day = 'a'", "--json")[1])
    assert (told["total"]["num_files"], told["after_partition_pruning"]["num_files"]) == (2, 1)


def test_changes_by_time(cli: Any, uri: str, tmp_path: Path) -> None:
    output = tmp_path / "changes.parquet"
    code, out, _ = cli("changes", uri, "--from-timestamp", "2000-01-01", "--output", output, "--json")
    assert (code, json.loads(out)["num_rows"]) == (0, 3)
    beyond = ("changes", uri, "--from", 7, "--output", output, "--force", "--json")
    assert json.loads(cli(*beyond)[1])["error"]["code"] == "VERSION_NOT_FOUND"
    assert json.loads(cli(*beyond, "--allow-out-of-range")[1])["num_rows"] == 0
    assert pq.read_table(output).num_rows == 0
    strict = cli("changes", uri, "--from", 0, "--require-change-data-feed", "--output", output)
    assert strict[2].startswith("error[INVALID_REQUEST]: Version 0 was written without a change data feed")
    assert cli("changes", uri, "--output", output)[2].startswith("error[INVALID_REQUEST]")


@pytest.mark.spark
def test_read_and_changes_on_spark(cli: Any, spark: Any, uri: str, tmp_path: Path) -> None:
    output = tmp_path / "o.parquet"
    code, _, err = cli("read", uri, "--engine", "spark", "--where", "id > 1", "--columns", "id", "--output", output)
    assert (code, err) == (0, "")
    assert sorted(pq.read_table(output).column("id").to_pylist()) == [2, 3]
    assert cli("changes", uri, "--from", 0, "--engine", "spark", "--output", output, "--force")[0] == 0
    assert set(pq.read_table(output).column("_change_type").to_pylist()) == {"insert"}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["show", "{tmp}/nothing"], "TABLE_NOT_FOUND"),
        (["show", "{uri}", "--columns", "nope"], "COLUMN_NOT_FOUND"),
        (["files", "{uri}", "--where", "nope = 1"], "COLUMN_NOT_FOUND"),
        (["explain", "{uri}", "--where", "id ="], "INVALID_EXPRESSION"),
    ],
)
def test_errors(cli: Any, uri: str, tmp_path: Path, arguments: list[str], code: str) -> None:
    arguments = [a.format(uri=uri, tmp=tmp_path) for a in arguments]
    status, out, err = cli(*arguments)
    assert (status, out) == (1, "")
    assert err.startswith(f"error[{code}]: ") and 1 <= err.count("\n") <= 3
    assert json.loads(cli(*arguments, "--json")[1])["error"]["code"] == code
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("a", ["a"]),
        (" a , b c,d.e", ["a", "`b c`", "d.e"]),
        ("`a,b`,`c``d`, `e`", ["`a,b`", "`c``d`", "e"]),
        ("a.`b,c`.d, `x`.y ,`p.q`.`r`", ["a.`b,c`.d", "x.y", "`p.q`.r"]),
    ],
)
def test_names_on_the_command_line(text: str, names: list[str]) -> None:
    @click.command
    @COLUMNS
    def echo(columns: list[str]) -> list[str]:
        return columns

    assert echo.main(["--columns", text], standalone_mode=False) == names


@pytest.mark.parametrize("text", [",a", "a,,b", "`a", "`a`b"])
def test_lists_that_are_none(cli: Any, uri: str, text: str) -> None:
    code, out, err = cli("show", uri, "--columns", text)
    assert (code, out) == (2, "")
    assert "is not a list of names" in err
