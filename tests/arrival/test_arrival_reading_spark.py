"""Files as rows on Spark are the rows that they are in process."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable, Expect
from delta_orch.arrival.file_source import FileSource
from delta_orch.arrival.read_files import FileRows, read_files
from delta_orch.engines.base import Engine
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.select import select_engine
from delta_orch.errors import (
    ConstraintViolationError,
    DeltaError,
    ExpectationFailedError,
    SchemaMismatchError,
    UnreadableFileError,
)
from tests.arrival.test_arrival_reading import AVRO_FIELDS, avro_file, avro_row

pytestmark = pytest.mark.spark

TABLE = pa.schema([("id", pa.int64()), ("note", pa.string()), ("amount", pa.decimal128(38, 20))])
NESTED = pa.schema(
    [("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("n", pa.struct([("a", pa.list_(pa.int32()))]))]
)
RESCUE = {"format": "json", "schema_mode": "rescue"}
Case = tuple[dict[str, str | bytes], pa.Schema | None, dict[str, Any]]

CASES: dict[str, Case] = {
    "json": ({"a": '{"id": 1, "note": "x"}\n{"ID": 2}', "b": '[{"id": 3}]'}, TABLE, {"format": "json"}),
    "no table": ({"a": '{"id": 1, "n": {"a": [1.5]}, "big": 12345678901234567890}'}, None, {"format": "json"}),
    "digits": ({"a": '{"amount": 0.12345678901234567890, "note": 12345678901234567.125}'}, TABLE, {"format": "json"}),
    "number that became text": ({"a": '{"id": "n/a"}\n{"id": 1}'}, TABLE, RESCUE),
    "new nested field": ({"a": '{"id": 1, "n": {"a": [1], "b": 2}}'}, NESTED, RESCUE),
    "merge": ({"a": '{"n": {"a": [1], "b": 2}, "c": true}'}, NESTED, {"format": "json", "schema_mode": "merge"}),
    "times": ({"a": '{"at": "2024-01-01T10:00:00+02:00"}\n{"at": "1900-01-01"}'}, NESTED, {"format": "json"}),
    "csv": ({"a": 'id,note\n1,"a\nb"\n2,""\n', "b": "NOTE,id\n007,\n"}, TABLE, {"format": "csv"}),
    "empty": ({"a": "", "b": "\ufeff", "c": "id\n"}, TABLE, {"format": "csv"}),
    "compressed": ({"a.csv.gz": gzip.compress(b"id\n1\n"), "b.csv": "id\n2\n"}, TABLE, {"format": "csv"}),
    "encoding": ({"a": "id,note\n1,é\n".encode("utf-16")}, TABLE, {"format": "csv", "encoding": "utf-16"}),
    "text": ({"a": "one\r\n\ntwo", "b": ""}, None, {"format": "text"}),
    "binary": ({"a": b"\x00", "b": b""}, None, {"format": "binary"}),
    "set aside": (
        {"a": "id\n1\n", "b": "id\n2\n3,4\n", "c": b"id\n\xff"}, TABLE, {"format": "csv", "on_error": "quarantine"},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def engine(spark: Any) -> Engine:
    return select_engine(spark.range(1))


def on(engine: Engine, source: FileSource, table: pa.Schema | None) -> tuple[FileRows, pa.Table]:
    rows = read_files(source, source.list_files(), table, engine=engine)
    frame = rows.batches
    read = frame.read_all() if isinstance(engine, LocalEngine) else engine.to_arrow(engine.relation(frame))
    places = read["source_file"].combine_chunks()
    keys = pa.table({"path": places.field("path"), "row": places.field("row_number")})
    return rows, read.take(pa.compute.sort_indices(keys, [("path", "ascending"), ("row", "ascending")]))


def ensure_the_same(engine: Engine, source: FileSource, table: pa.Schema | None) -> pa.Table:
    ours, here = on(LocalEngine(), source, table)
    theirs, there = on(engine, source, table)
    assert theirs.schema == ours.schema
    assert there.to_pylist() == here.to_pylist()
    assert theirs.set_aside == ours.set_aside
    return here


@pytest.mark.parametrize("case", CASES)
def test_both_engines_read_the_same_rows(tmp_path: Path, engine: Engine, case: str) -> None:
    files, table, options = CASES[case]
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    rows = ensure_the_same(engine, FileSource(str(tmp_path), source_file=True, **options), table)
    assert rows.num_rows or case == "empty"


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_both_engines_read_the_same_typed_rows(tmp_path: Path, engine: Engine, kind: str) -> None:
    table = pa.table({"id": pa.array([1, None], pa.int32()), "note": ["a", "b"], "more": [[1.5], []]})
    (pq if kind == "parquet" else orc).write_table(table, tmp_path / "a")
    source = FileSource(str(tmp_path), format=kind, source_file=True, schema_mode="rescue")  # type: ignore[arg-type]
    ensure_the_same(engine, source, TABLE)
    ensure_the_same(engine, source, None)


def test_both_engines_read_the_same_avro_rows(tmp_path: Path, engine: Engine) -> None:
    (tmp_path / "a").write_bytes(avro_file(AVRO_FIELDS, [avro_row(0)], [avro_row(1)]))
    ensure_the_same(engine, FileSource(str(tmp_path), format="avro", source_file=True), None)


@pytest.mark.parametrize(("text", "error"), [('{"id": "n/a"}', SchemaMismatchError), ('{"id": 1', UnreadableFileError)])
def test_both_engines_raise_the_same_errors(tmp_path: Path, engine: Engine, text: str, error: type[DeltaError]) -> None:
    (tmp_path / "a.json").write_text(text)
    source = FileSource(str(tmp_path), format="json")
    files = source.list_files()
    with pytest.raises(error) as here:
        read_files(source, files, TABLE, engine=LocalEngine()).batches.read_all()
    with pytest.raises(error) as there:
        engine.to_arrow(engine.relation(read_files(source, files, TABLE, engine=engine).batches))
    assert there.value.problem.rstrip(".") == here.value.problem


def test_rows_of_spark_are_loaded_once(tmp_path: Path, spark: Any) -> None:
    (tmp_path / "landing").mkdir()
    for number in range(3):
        (tmp_path / "landing" / f"{number}.json").write_text(f'{{"id": {number}}}\n' if number else '{"id"')
    table = DeltaTable(tmp_path / "table")
    source = FileSource(str(tmp_path / "landing"), format="json", on_error="quarantine", source_file=True)
    result = table.ingest(source, engine="spark")
    assert result.set_aside["path"].to_pylist() == ["0.json"]
    assert not table.ingest(source, engine="spark").commits
    assert sorted(table.snapshot().scan().to_arrow()["id"].to_pylist()) == [1, 2]


@pytest.mark.parametrize("engine_name", ["local", "spark"])
def test_a_column_that_is_not_null_takes_no_row_without_it(tmp_path: Path, spark: Any, engine_name: str) -> None:
    table = DeltaTable(tmp_path / "table")
    table.create(pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())]))
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "a.json").write_text('{"id": 1}\n{"note": "x"}')
    with pytest.raises(ConstraintViolationError, match="id"):
        table.ingest(FileSource(str(tmp_path / "landing"), format="json"), engine=engine_name)
    assert table.snapshot().version == 0


def test_rules_for_rows_on_spark(engine: Engine, tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()
    (landing / "a.json").write_text('{"id": 1}\n{"id": -2}\n{"id": null}\n')
    (landing / "b.json").write_text('{"id')
    table = DeltaTable(tmp_path / "table")
    source = FileSource(str(landing), format="json", on_error="quarantine")
    expect = {"id is positive": Expect("id > 0", "drop"), "id is odd": Expect("id % 2 = 1", "warn")}
    result = table.ingest(source, engine="spark", expect=expect)
    assert table.snapshot().scan(["id"]).to_arrow()["id"].to_pylist() == [1]
    assert (result.expected.counts, result.expected.num_dropped) == ({"id is positive": 2, "id is odd": 2}, 2)
    assert (result.num_rows, result.set_aside["path"].to_pylist()) == (1, ["b.json"])
    (landing / "c.json").write_text('{"id": 3}\n{"id": -4}\n')
    with pytest.raises(ExpectationFailedError):
        table.ingest(source, engine="spark", expect={"id is positive": Expect("id > 0", "fail")})
    assert table.version() == 0
