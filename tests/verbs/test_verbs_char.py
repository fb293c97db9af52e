"""Columns declared `char(n)`: stored as given, read filled up with spaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import (
    ConstraintViolationError,
    InvalidRequestError,
    UnsupportedError,
)
from delta_orch.table.column_definitions import column
from tests.verbs.conftest import EngineRows

VECTORS = {"delta.enableDeletionVectors": "true"}
DEEP = "struct<a:char(2),l:array<char(2)>,m:map<char(2),struct<b:char(3),n:int>>>"


def made(uri: Path, properties: dict[str, str] | None = None) -> DeltaTable:
    """A file with short texts, and one with the same filled up."""
    table = DeltaTable(uri)
    columns = [column("id", "int"), column("c", "char(3)"), column("v", "varchar(3)"), column("wide", "char(5)")]
    table.create(columns, properties=properties)
    for ids, texts in (([1, 2], ["x", None]), ([3, 4], ["x  ", "xyz"])):
        wide = [text and text[:1] for text in texts]
        table.append(pa.table({"id": pa.array(ids, pa.int32()), "c": texts, "v": texts, "wide": wide}))
    return table


CASES = [
    ("c = 'x'", [1, 3]), ("c = 'x     '", [1, 3]), ("'x ' = c", [1, 3]), ("c IN ('q', 'x')", [1, 3]),
    ("c <> 'x'", [4]), ("c NOT IN ('x')", [4]), ("c <=> 'x'", [1, 3]), ("NOT (c <=> 'x')", [2, 4]), ("c < 'x\t'", []),
    ("c > 'x'", [4]), ("c <= 'x'", [1, 3]), ("c = 'xyz ' OR c IS NULL", [2, 4]), ("v = 'x'", [1]), ("c = 'x y'", []),
    ("c = v", [3, 4]), ("c = wide", [1, 3]), ("wide = c AND c <> wide", []), ("upper(c) = 'X'", []),
    ("upper(c) = 'X  '", [1, 3]), ("length(c) = 3", [1, 3, 4]), ("c LIKE 'x'", []), ("c LIKE 'x %'", [1, 3]),
    ("CASE WHEN c = 'x' THEN true END", [1, 3]), ("c IN ('x', v)", [3, 4]), ("concat(c, 'y') = 'x  y'", [1, 3]),
    ("c BETWEEN 'x' AND 'x'", []), ("c BETWEEN 'x' AND 'xyz'", [1, 3, 4]), ("NOT c BETWEEN 'x' AND 'x'", [1, 3, 4]),
    ("c BETWEEN 'x  ' AND 'x  '", [1, 3]), ("c BETWEEN wide AND wide", []), ("c IN ('x', NULL)", []),
    ("c IN ('x  ', NULL)", [1, 3]), ("c IN ('x', wide)", []), ("c IN (wide)", [1, 3]), ("'x' IN (c)", []),
    ("nullif(c, 'x') IS NULL", [2]), ("nullif(c, 'x  ') IS NULL", [1, 2, 3]),
    ("CAST(c AS STRING) = 'x'", []), ("CAST(c AS STRING) = 'x  '", [1, 3]),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("where", "ids"), CASES)
def test_a_char_is_filled_up_wherever_it_is_compared(tmp_path: Path, where: str, ids: list[int]) -> None:
    table = made(tmp_path / "t", VECTORS)
    assert sorted(table.snapshot().scan(where=where).to_arrow()["id"].to_pylist()) == ids
    merge = table.merge(pa.table({"id": [1, 2, 3, 4]}), "t.id = s.id", target_alias="t", source_alias="s", dry_run=True)
    assert merge.when_matched_delete(where).execute().operation_metrics.get("numTargetRowsDeleted", 0) == len(ids)
    table.delete(where)
    assert sorted(table.snapshot().scan().to_arrow()["id"].to_pylist()) == sorted({1, 2, 3, 4} - {*ids})


@pytest.mark.long
def test_a_char_is_compared_alike_by_both_engines(tmp_path: Path, rows: EngineRows) -> None:
    table = made(tmp_path / "t")
    for where, ids in CASES:
        assert sorted(row["id"] for row in rows.pylist(table, columns=["id"], where=where)) == ids, where


def test_a_declared_length_grows_or_goes(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    nested = "struct<a:char(2),l:array<varchar(2)>>"
    table.create([column("c", "char(2)"), column("v", "varchar(2)"), column("s", nested), column("t", "string")])
    for name, kind in (
        ("c", "char(3)"),
        ("v", "char(2)"),
        ("v", "varchar(1)"),
        ("t", "varchar(9)"),
        ("s.a", "char(3)"),
    ):
        with pytest.raises(InvalidRequestError, match="cannot go from"):
            table.alter().change_type(name, kind).commit()
    with pytest.raises(InvalidRequestError, match=r"Column s\.l\.element cannot go from varchar\(2\) to char\(2\)"):
        table.alter().change_type("s", "struct<a:char(2),l:array<char(2)>>").commit()
    changed = table.alter().change_type("c", "varchar(2)").change_type("v", "varchar(4)").change_type("s.a", "string")
    changed.change_type("s.l.element", "varchar(3)").commit()
    assert table.version() == 1
    schema = table.snapshot().scan().to_arrow().schema
    row = {"c": "a", "v": "long", "s": {"a": "longer", "l": ["abc"]}, "t": None}
    table.append(pa.Table.from_pylist([row], schema))
    assert table.snapshot().scan().to_arrow().to_pylist() == [row]
    with pytest.raises(ConstraintViolationError, match=r"varchar\(3\)"):
        table.append(pa.Table.from_pylist([{**row, "s": {"a": "", "l": ["long"]}}], schema))


@pytest.mark.long
def test_a_char_is_read_filled_up_at_any_depth(tmp_path: Path, rows: EngineRows) -> None:
    table = DeltaTable(tmp_path)
    table.create([column("p", "char(2)"), column("s", DEEP), column("n", "int")], partition_by=["p"])
    deep = {"a": "ä", "l": ["x", None, "yy"], "m": [("k", {"b": "v", "n": 1}), ("kk", None)]}
    schema = pa.schema(
        {
            "p": pa.string(),
            "s": pa.struct(
                {
                    "a": pa.string(),
                    "l": pa.list_(pa.string()),
                    "m": pa.map_(pa.string(), pa.struct({"b": pa.string(), "n": pa.int32()})),
                }
            ),
            "n": pa.int32(),
        }
    )
    given = [{"p": "y", "s": deep, "n": 1}, {"p": None, "s": None, "n": 2}]
    table.append(rows.data(pa.Table.from_pylist(given, schema)))

    def read(columns: list[str] | None = None, where: str | None = None) -> list[dict[str, Any]]:
        scan = table.snapshot().scan(columns, where)
        found = scan.to_arrow() if rows.spark is None else rows.collect(scan.to_spark(rows.spark))
        return list(found.to_pylist())

    filled = {"a": "ä ", "l": ["x ", None, "yy"], "m": [("k ", {"b": "v  ", "n": 1}), ("kk", None)]}
    expected = [{"p": "y ", "s": filled, "n": 1}, {"p": None, "s": None, "n": 2}]
    assert sorted(read(), key=lambda row: str(row["n"])) == expected
    for where in ("p = 'y'", "s.a = 'ä '", "s.a LIKE 'ä %'", "p > 'x'", "p LIKE 'y %'"):
        assert [row["n"] for row in read(where=where)] == [1], where
    assert read(where="s.a = 'ä'") == []
    assert sorted(str(row["a"]) for row in read(["s.a"])) == ["None", "ä "]


@pytest.mark.long
def test_merges_find_the_rows_of_a_char_key(tmp_path: Path, rows: EngineRows) -> None:
    table = made(tmp_path / "t")
    table.delete("id = 3")
    texts = ["x", "new"]
    source = rows.data(pa.table({"c": texts, "id": pa.array([10, 11], pa.int32()), "v": texts, "wide": texts}))
    assert table.upsert(source, ["C"]).operation_metrics["numTargetRowsUpdated"] == 1
    merge = table.merge(source, "t.c = s.c AND s.c <> 'q'", target_alias="t", source_alias="s")
    assert merge.when_matched_delete("s.c = 'x'").execute().operation_metrics["numTargetRowsDeleted"] == 1
    found = rows.read(table, ["id", "c"]).to_pylist()
    assert found == [{"id": 2, "c": None}, {"id": 4, "c": "xyz"}, {"id": 11, "c": "new"}]


def test_other_doors_see_it_filled_up_or_are_refused(tmp_path: Path) -> None:
    table = made(tmp_path / "t", {"delta.enableChangeDataFeed": "true"})
    with pytest.raises(UnsupportedError, match="more than its Parquet files"):
        table.snapshot().to_pyarrow_dataset()
    assert table.snapshot().scan(["wide"]).to_duckdb().fetchall() == [("x    ",), (None,), ("x    ",), ("x    ",)]
    table.update({"v": "'n'"}, "c = 'x'")
    told = table.changes(starting_version=3).to_arrow()
    assert {*told["c"].to_pylist()} == {"x  "}


def test_a_char_of_endless_length_is_refused(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path)
    table.create([column("c", "char(999999999)")])
    table.append(pa.table({"c": ["x"]}))
    with pytest.raises(UnsupportedError, match="declared char"):
        table.snapshot().scan().to_arrow()


def test_partitions_of_a_char_column_are_the_same_however_they_are_spelled(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path)
    table.create([column("id", "int"), column("p", "char(3)")], partition_by=["p"])

    def rows_of(*ids: int) -> pa.Table:
        return pa.table({"id": pa.array(ids, pa.int32()), "p": ["x"] * len(ids)})

    table.append(rows_of(1))
    table.update({"id": "id + 1"})  # now the log has it with its spaces
    table.append(rows_of(3))
    assert table.snapshot().partitions().to_pylist() == [{"p": "x  "}]
    assert table.snapshot().scan(where="p LIKE 'x %'").count() == 2
    table.optimize()
    assert table.snapshot().num_files == 1
    table.overwrite(rows_of(7), partition_overwrite_mode="dynamic")
    assert table.snapshot().scan().to_arrow().to_pylist() == [{"id": 7, "p": "x  "}]


def test_a_deep_check_holds_statistics_against_texts_as_they_are_stored(tmp_path: Path) -> None:
    assert made(tmp_path).fsck(deep=True).problems == ()
