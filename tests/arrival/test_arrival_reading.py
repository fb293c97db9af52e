"""Files as rows in process: formats, types, and what does not fit. The page docs/files-in.md has a line for each."""

from __future__ import annotations

import gzip
import os
import re
import resource
import sys
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_orch.arrival.file_source import FileSource
from delta_orch.arrival.read_files import FileRows, read_files
from delta_orch.arrival.text_rows import CSV_OPTIONS, JSON_OPTIONS
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.errors import (
    InvalidRequestError,
    MissingDependencyError,
    SchemaMismatchError,
    StorageError,
    UnreadableFileError,
)

Files = Mapping[str, str | bytes]
ORDERS = pa.schema([("id", pa.int64()), ("note", pa.string()), ("amount", pa.decimal128(38, 20))])


def write_files(directory: Path, files: Files) -> None:
    for name, content in files.items():
        (directory / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def opened(directory: Path, table: pa.Schema | None, **source: Any) -> FileRows:
    files = FileSource(str(directory), **source)
    return read_files(files, files.list_files(), table, engine=LocalEngine())


def loaded(directory: Path, files: Files, table: pa.Schema | None = None, **source: Any) -> list[dict[str, Any]]:
    write_files(directory, files)
    rows = opened(directory, table, **source)
    return rows.batches.read_all().to_pylist()  # type: ignore[no-any-return]


def json_rows(directory: Path, text: str, table: pa.Schema | None = None, **source: Any) -> list[dict[str, Any]]:
    return loaded(directory, {"a.json": text}, table, format="json", **source)


def csv_rows(directory: Path, text: str, table: pa.Schema | None = None, **source: Any) -> list[dict[str, Any]]:
    return loaded(directory, {"a.csv": text}, table, format="csv", **source)


# Formats


@pytest.mark.parametrize(
    "text", ['{"id": 1}\n{"id": 2}\n', '[{"id": 1},\n {"id": 2}]', '{"id": 1}{"id":\n2}', '{"id": 1}\r\n\r\n{"id": 2}']
)
def test_json_has_an_object_a_line_or_an_array_of_objects(tmp_path: Path, text: str) -> None:
    assert json_rows(tmp_path, text) == [{"id": 1}, {"id": 2}]


def test_csv_finds_columns_by_the_names_of_each_file(tmp_path: Path) -> None:
    files = {"a.csv": "id,note\n1,x\n", "b.csv": 'NOTE,id\n"y\nz",2\n'}
    assert loaded(tmp_path, files, format="csv") == [{"id": 1, "note": "x"}, {"id": 2, "note": "y\nz"}]


def test_csv_takes_other_dialects(tmp_path: Path) -> None:
    text = "; made by hand\nid|at|amount|note\n1|31.12.2024|1,50|'it''s'\n2|01.01.2025|-|#N/A\n".replace("'-'", "")
    schema = pa.schema(
        [("id", pa.int64()), ("at", pa.date32()), ("amount", pa.decimal128(9, 2)), ("note", pa.string())]
    )
    options = {"delimiter": "|", "quote": "'", "skip": 1, "null_text": "-"}
    options |= {"decimal_separator": ",", "date_format": "%d.%m.%Y"}
    assert csv_rows(tmp_path, text, schema, options=options) == [
        {"id": 1, "at": date(2024, 12, 31), "amount": Decimal("1.50"), "note": "it's"},
        {"id": 2, "at": date(2025, 1, 1), "amount": None, "note": "#N/A"},
    ]


def test_csv_without_names_takes_those_of_the_table_or_the_options(tmp_path: Path) -> None:
    assert csv_rows(tmp_path, "1,x,2.5\n", ORDERS, options={"header": False}) == [
        {"id": 1, "note": "x", "amount": Decimal("2.5")}
    ]
    named = csv_rows(tmp_path, "1,x\n", options={"header": False, "column_names": ["number", "note"]})
    assert named == [{"number": 1, "note": "x"}]
    assert csv_rows(tmp_path, "1,x\n", options={"header": False}) == [{"column0": 1, "column1": "x"}]


def test_parquet_and_orc_keep_their_types(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "id": pa.array([1, 2], pa.int32()),
            "amount": pa.array([Decimal("1.10"), None], pa.decimal128(9, 2)),
            "at": pa.array([datetime(2024, 1, 1), None], pa.timestamp("us", "UTC")),
            "tags": pa.array([["a"], []], pa.list_(pa.string())),
        }
    )
    for name in ("parquet", "orc"):
        (tmp_path / name).mkdir()
    pq.write_table(rows, tmp_path / "parquet" / "a")
    orc.write_table(rows, tmp_path / "orc" / "a")
    schema = pa.schema([("ID", pa.int64()), ("amount", pa.decimal128(20, 4)), *list(rows.schema)[2:]])
    for name in ("parquet", "orc"):
        assert loaded(tmp_path / name, {}, format=name) == rows.to_pylist()
        read = loaded(tmp_path / name, {}, schema, format=name)
        assert read == [{"ID": row.pop("id"), **row} for row in rows.to_pylist()]


def test_text_has_a_row_a_line(tmp_path: Path) -> None:
    files = {"a.txt": '\ufeffone\r\n\n,"three\nlast', "b.txt": "", "c.txt": "end\n"}
    lines = ["one", "", ',"three', "last", "end"]
    assert loaded(tmp_path, files, format="text") == [{"value": line} for line in lines]
    whole = loaded(tmp_path, {}, format="text", options={"whole_file": True})
    assert [row["value"] for row in whole] == ['one\r\n\n,"three\nlast', "end\n"]


def test_long_texts_are_read_piece_by_piece(tmp_path: Path) -> None:
    lines = [f"{number} {'x' * 90}" for number in range(200_000)]
    rows = loaded(tmp_path, {"a.txt": "\n".join(lines)}, format="text")
    assert [row["value"] for row in rows] == lines


def test_binary_has_a_row_a_file(tmp_path: Path) -> None:
    rows = loaded(tmp_path, {"a": b"\x00\xff", "b": b""}, format="binary")
    assert rows == [{"content": b"\x00\xff"}, {"content": b""}]


def avro_file(fields: dict[str, object], *blocks: list[bytes]) -> bytes:
    """An Avro file by the specification: each row of a block as its encoded fields."""
    record = {"type": "record", "name": "r", "fields": [{"name": n, "type": t} for n, t in fields.items()]}
    meta = {b"avro.schema": orjson.dumps(record), b"avro.codec": b"null"}
    sync = bytes(range(100, 116))
    file = b"Obj\x01" + avro_long(len(meta)) + b"".join(avro_bytes(k) + avro_bytes(v) for k, v in meta.items())
    file += avro_long(0) + sync
    for rows in blocks:
        file += avro_long(len(rows)) + avro_bytes(b"".join(rows)) + sync
    return file


def avro_long(number: int) -> bytes:
    number, digits = (number << 1) ^ (number >> 63), b""
    while number > 0x7F:
        number, digits = number >> 7, digits + bytes([number & 0x7F | 0x80])
    return digits + bytes([number])


def avro_bytes(data: bytes) -> bytes:
    return avro_long(len(data)) + data


AVRO_FIELDS: dict[str, object] = {
    "id": "long",
    "amount": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2},
    "at": {"type": "long", "logicalType": "timestamp-millis"},
    "note": ["null", "string"],
}


def avro_row(number: int) -> bytes:
    amount = (-150 - number).to_bytes(9, "big", signed=True)
    row = avro_long(2**62 + number) + avro_bytes(amount) + avro_long(1_700_000_000_123)
    return row + (avro_long(0) if number else avro_long(1) + avro_bytes("é".encode()))


def test_avro_keeps_its_types(tmp_path: Path) -> None:
    file = avro_file(AVRO_FIELDS, [avro_row(0)], [avro_row(1)])
    at = datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    expected = [
        {"id": 2**62 + n, "amount": Decimal(f"-1.{50 + n}"), "at": at, "note": None if n else "é"} for n in range(2)
    ]
    assert loaded(tmp_path, {"a.avro": file}, format="avro") == expected
    with pytest.raises(SchemaMismatchError, match=r"a\.avro has the field at"):
        loaded(tmp_path, {}, ORDERS, format="avro")


def test_an_avro_file_that_is_cut_off_gives_no_rows(tmp_path: Path) -> None:
    file, first = (avro_file(AVRO_FIELDS, *blocks) for blocks in ([[avro_row(0)], [avro_row(1)]], [[avro_row(0)]]))
    for length in (3, 40, len(first) - 1, *range(len(first) + 1, len(file))):
        with pytest.raises(UnreadableFileError, match=r"a\.avro cannot be read as avro"):
            loaded(tmp_path, {"a.avro": file[:length]}, format="avro")


def test_an_avro_type_that_is_not_read_is_an_error(tmp_path: Path) -> None:
    file = avro_file({"m": {"type": "map", "values": "long"}}, [avro_long(0)])
    with pytest.raises(UnreadableFileError, match="Avro maps"):
        loaded(tmp_path, {"a.avro": file}, format="avro")


def test_avro_without_polars_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "delta-orch\[avro\]"'):
        loaded(tmp_path, {"a.avro": b"Obj\x01"}, ORDERS, format="avro")


def test_an_option_that_the_reader_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="Files of the format csv have no option 'delim'"):
        csv_rows(tmp_path, "id\n1\n", options={"delim": ";"})


@pytest.mark.parametrize(("codec", "ending"), [("gzip", "gz"), ("zstd", "zst"), ("bz2", "bz2")])
def test_compressed_files(tmp_path: Path, codec: str, ending: str) -> None:
    with pa.CompressedOutputStream(str(tmp_path / f"a.csv.{ending}"), codec) as out:
        out.write("id,note\n1,é\n".encode())
    assert loaded(tmp_path, {}, format="csv") == [{"id": 1, "note": "é"}]
    (tmp_path / f"a.csv.{ending}").rename(tmp_path / "a.csv")
    if codec != "bz2":
        assert loaded(tmp_path, {}, format="csv", compression=codec) == [{"id": 1, "note": "é"}]


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1", "cp1252"])
@pytest.mark.parametrize("kind", ["json", "csv", "text"])
def test_encodings(tmp_path: Path, encoding: str, kind: str) -> None:
    text = {"json": '{"value": "é"}', "csv": "value\né\n", "text": "é"}[kind]
    assert loaded(tmp_path, {"a": text.encode(encoding)}, format=kind, encoding=encoding) == [{"value": "é"}]


def test_names_that_are_patterns_and_remote_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "a[1]*.json").write_text('{"id": 1}')
    assert loaded(tmp_path, {"ab.json": '{"id": 2}'}, format="json") == [{"id": 1}, {"id": 2}]
    from delta_orch.storage.open import open_store

    uri = f"memory://{tmp_path.name}"
    open_store(uri).put_if_absent("a.csv", b"id\n3\n")
    files = FileSource(uri, format="csv", source_file=True)
    (row,) = read_files(files, files.list_files(), None, engine=LocalEngine()).batches.read_all().to_pylist()
    assert row["id"] == 3
    assert row["source_file"]["path"] == f"{uri}/a.csv"


# Values


def test_digits_are_kept(tmp_path: Path) -> None:
    json = '{"id": 9223372036854775807, "note": 12345678901234567890123, "amount": 0.12345678901234567890}\n'
    json += '{"id": 1.0, "note": 12345678901234567.125, "amount": 1e-7}\n{"amount": 0.10000000000000000001}\n'
    json += '{"amount": "123456789012345678.5", "note": [1.2345678901234567890, "\\"1.23456789012345678\\\\"]}'
    assert json_rows(tmp_path, json, ORDERS) == [
        {"id": 2**63 - 1, "note": "12345678901234567890123", "amount": Decimal("0.12345678901234567890")},
        {"id": 1, "note": "12345678901234567.125", "amount": Decimal("1e-7")},
        {"id": None, "note": None, "amount": Decimal("0.10000000000000000001")},
        {
            "id": None,
            "note": '[1.2345678901234567890,"\\"1.23456789012345678\\\\"]',
            "amount": Decimal("123456789012345678.5"),
        },
    ]  # fmt: skip
    assert csv_rows(tmp_path, "amount,note\n0.12345678901234567890,007\n", ORDERS, pattern="*.csv") == [
        {"id": None, "note": "007", "amount": Decimal("0.12345678901234567890")}
    ]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("1.5", pa.int64()), ("007", pa.int64()), ("9223372036854775808", pa.int64()), ("128", pa.int8()),
        (" 1", pa.int64()), ("1e3", pa.int64()), ("true", pa.int64()), ("0.005", pa.decimal128(9, 2)),
        ("12345678.90", pa.decimal128(9, 2)), ("1e-3", pa.decimal128(9, 2)), ("9007199254740993", pa.float64()),
        ("1e400", pa.float64()), ("1", pa.bool_()), ("yes", pa.bool_()), ("2024-02-30", pa.date32()),
        ("2024-01-01T00:00:00", pa.date32()), ("2024-01-01T00:00:00Z", pa.timestamp("us")),
        ("2024-01-01T00:00:00.1234567Z", pa.timestamp("us", "UTC")), ("noon", pa.timestamp("us")),
        ("{", pa.struct([("a", pa.int64())])), ('{"a": 1, "b": 2}', pa.struct([("a", pa.int64())])),
        ("[1, true]", pa.list_(pa.int64())), ("%", pa.binary()),
    ],
)  # fmt: skip
def test_a_text_that_loses_something_does_not_fit(tmp_path: Path, text: str, kind: pa.DataType) -> None:
    schema = pa.schema([("id", pa.int64()), ("value", kind)])
    cell = '"' + text.replace('"', '""') + '"'
    rows = csv_rows(tmp_path, f"id,value\n1,{cell}\n", schema, schema_mode="rescue")
    assert [row["id"] for row in rows] == [1]
    assert orjson.loads(rows[0]["_rescued_data"]) == {"value": text}
    (tmp_path / "a.csv").unlink()
    rows = json_rows(tmp_path, orjson.dumps({"id": 1, "value": text}).decode(), schema, schema_mode="rescue")
    assert orjson.loads(rows[0]["_rescued_data"]) == {"value": text}
    with pytest.raises(SchemaMismatchError, match=r"Row 1 of the file .*a\.json .*\n.*of value is not exactly"):
        json_rows(tmp_path, orjson.dumps({"id": 1, "value": text}).decode(), schema)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("+12.0", pa.int16(), 12), ("-0", pa.int64(), 0), ("0.50000", pa.decimal128(9, 2), Decimal("0.50")),
        ("1e2", pa.decimal128(9, 2), Decimal(100)), ("NaN", pa.float64(), None), ("1e3", pa.float64(), 1000.0),
        ("9007199254740992", pa.float64(), 2.0**53), ("TRUE", pa.bool_(), True),
        ("2024-02-29", pa.date32(), date(2024, 2, 29)),
        ("2024-01-01T02:00:00+02:00", pa.timestamp("us", "UTC"), datetime(2024, 1, 1, tzinfo=UTC)),
        ("2024-01-01 02:00:00.5", pa.timestamp("us", "UTC"), datetime(2024, 1, 1, 2, 0, 0, 500_000, tzinfo=UTC)),
        ("2024-01-01T02:00", pa.timestamp("us"), datetime(2024, 1, 1, 2)), ("/w==", pa.binary(), b"\xff"),
        ('{"A": "1"}', pa.struct([("a", pa.int64())]), {"a": 1}), ("[1, null]", pa.list_(pa.int64()), [1, None]),
        ('{"k": 1}', pa.map_(pa.string(), pa.int64()), [("k", 1)]),
    ],
)  # fmt: skip
def test_a_text_that_says_a_value_exactly_is_the_value(
    tmp_path: Path, text: str, kind: pa.DataType, value: Any
) -> None:
    cell = '"' + text.replace('"', '""') + '"'
    (row,) = csv_rows(tmp_path, f"value\n{cell}\n", pa.schema([("value", kind)]))
    assert row["value"] == value or (value is None and row["value"] != row["value"])


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12),
)  # fmt: skip
OBJECTS = st.dictionaries(
    st.sampled_from(["a", "b", "c.d", "e/f", "g~h", "i'\"j", "é"]),
    LEAVES | st.lists(LEAVES, max_size=3) | st.dictionaries(st.text("xyz", min_size=1, max_size=2), LEAVES, max_size=3),
    min_size=1, max_size=5,
)  # fmt: skip


KINDS = st.sampled_from(
    [
        pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.list_(pa.string()),
        pa.struct([("x", pa.int64()), ("y", pa.string())]),
    ]
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(OBJECTS, min_size=1, max_size=6), kinds=st.lists(KINDS, min_size=6, max_size=6))
def test_columns_and_rescued_data_hold_every_value(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], kinds: list[pa.DataType]
) -> None:
    """A value is in its column, or in `_rescued_data`; null is as if the field were not there."""
    names = ["a", "b", "c.d", "e/f", "g~h", "i'\"j"]
    schema = pa.schema(list(zip(names, kinds, strict=False)))
    directory = tmp_path_factory.mktemp("rows")
    text = b"\n".join(map(orjson.dumps, rows)).decode()
    read = json_rows(directory, text, schema, schema_mode="rescue")
    assert len(read) == len(rows)
    for given_row, row in zip(rows, read, strict=True):
        rescued = orjson.loads(row["_rescued_data"] or "{}")
        for name, value in given_row.items():
            if value is None or (name in rescued and rescued[name] == value):
                continue
            assert name not in rescued
            assert _says(row[name], value), (name, value, row)


def _says(stored: Any, value: Any) -> bool:
    if isinstance(stored, dict):
        return all(_says(stored[name], part) for name, part in value.items())
    if isinstance(stored, list):
        return len(stored) == len(value) and all(map(_says, stored, value))
    if value is None or isinstance(stored, bool):
        return stored == value or (isinstance(value, str) and value.lower() == str(stored).lower())
    if isinstance(stored, str) and not isinstance(value, str):
        return bool(orjson.loads(stored) == value)
    return bool(stored == value or (isinstance(value, str) and float(value) == stored))


# What does not fit


def test_a_number_that_became_text(tmp_path: Path) -> None:
    files = {"a.json": '{"id": 1}\n{"id": "1"}\n', "b.json": '{"id": 2}\n{"id": "n/a"}'}
    with pytest.raises(SchemaMismatchError) as failure:
        loaded(tmp_path, files, ORDERS, format="json")
    assert failure.value.problem.endswith("b.json does not fit the table") and "Row 2" in failure.value.problem
    assert failure.value.cause == 'the value "n/a" of id is not exactly a long'
    assert failure.value.context["row_number"] == 2
    rows = loaded(tmp_path, {}, ORDERS, format="json", schema_mode="rescue")
    assert [(row["id"], row["_rescued_data"]) for row in rows] == [
        (1, None), (1, None), (2, None), (None, '{"id":"n/a"}'),
    ]  # fmt: skip
    with pytest.raises(SchemaMismatchError):
        loaded(tmp_path, {}, ORDERS, format="json", schema_mode="merge")


def test_a_new_field(tmp_path: Path) -> None:
    text = '{"id": 1, "new": null}\n{"id": 2, "new": {"x": 1.50}, "other": true}'
    with pytest.raises(SchemaMismatchError, match=r"Row 2 .*\nthe field new is new; the field other is new"):
        json_rows(tmp_path, text, ORDERS)
    merged = json_rows(tmp_path, text, ORDERS, schema_mode="merge")
    assert [(row["new"], row["other"]) for row in merged] == [(None, None), ({"x": 1.5}, True)]
    rescued = json_rows(tmp_path, text, ORDERS, schema_mode="rescue")
    assert orjson.loads(rescued[1]["_rescued_data"]) == {"new": {"x": 1.5}, "other": True}


def test_merge_looks_at_every_file_and_row(tmp_path: Path) -> None:
    files = {f"{number:04}.json": '{"id": 1}' for number in range(300)}
    files["0123.json"] = '{"id": 1}\n' * 50 + '{"late": 1}'
    write_files(tmp_path, files)
    rows = opened(tmp_path, ORDERS, format="json", schema_mode="merge")
    assert rows.schema.names == [*ORDERS.names, "late"]
    assert sum(row["late"] or 0 for row in rows.batches.read_all().to_pylist()) == 1


def test_a_new_nested_field(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("place", pa.list_(pa.struct([("city", pa.string())])))])
    text = '{"id": 1, "place": [{"city": "a"}, {"city": "b", "zip": "01"}]}'
    with pytest.raises(SchemaMismatchError, match=r"the field place\.element\.zip is new"):
        json_rows(tmp_path, text, schema)
    merged = json_rows(tmp_path, text, schema, schema_mode="merge")
    assert merged[0]["place"] == [{"city": "a", "zip": None}, {"city": "b", "zip": "01"}]
    (rescued,) = json_rows(tmp_path, text, schema, schema_mode="rescue")
    assert rescued["place"] == [{"city": "a"}, {"city": "b"}]
    assert orjson.loads(rescued["_rescued_data"]) == orjson.loads(text.replace('"id": 1, ', ""))


def test_a_column_in_another_case(tmp_path: Path) -> None:
    assert json_rows(tmp_path, '{"ID": 1, "Note": "x"}', ORDERS) == [{"id": 1, "note": "x", "amount": None}]
    with pytest.raises(SchemaMismatchError):
        json_rows(tmp_path, '{"ID": 1, "id": 2}', ORDERS)
    (row,) = json_rows(tmp_path, '{"ID": 1, "id": 2, "note": "a", "note": "b"}', ORDERS, schema_mode="rescue")
    assert (row["id"], row["note"], row["_rescued_data"]) == (1, "a", '{"id":2,"note":"b"}')
    with pytest.raises(UnreadableFileError, match="Two columns have one name: id, ID"):
        csv_rows(tmp_path, "id,ID\n1,2\n", ORDERS, pattern="*.csv")


def test_a_new_column_of_csv(tmp_path: Path) -> None:
    files = {"a.csv": "id\n1\n", "b.csv": "id,new\n2,x\n3,\n"}
    with pytest.raises(SchemaMismatchError, match=r"b\.csv has the field new, but the table does not"):
        loaded(tmp_path, files, ORDERS, format="csv")
    rows = loaded(tmp_path, {}, ORDERS, format="csv", schema_mode="rescue")
    assert [row["_rescued_data"] for row in rows] == [None, '{"new":"x"}', None]
    merged = loaded(tmp_path, {}, ORDERS, format="csv", schema_mode="merge")
    assert [row["new"] for row in merged] == [None, "x", None]


def test_a_column_of_parquet_that_does_not_fit(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["1", None], "new": [Decimal("1.10"), None], "note": ["a", "b"]}), tmp_path / "a")
    with pytest.raises(SchemaMismatchError, match="column id is string, the table has long"):
        loaded(tmp_path, {}, ORDERS, format="parquet")
    rows = loaded(tmp_path, {}, ORDERS, format="parquet", schema_mode="rescue")
    assert [(row["id"], row["note"], row["_rescued_data"]) for row in rows] == [
        (None, "a", '{"id":"1","new":1.1}'), (None, "b", None),
    ]  # fmt: skip
    pq.write_table(pa.table({"id": [1], "new": [Decimal("1.10")]}), tmp_path / "a")
    (merged,) = loaded(tmp_path, {}, ORDERS, format="parquet", schema_mode="merge")
    assert (merged["id"], merged["new"]) == (1, Decimal("1.10"))


@pytest.mark.parametrize("text", ["", "\ufeff", "\n"])
@pytest.mark.parametrize("kind", ["json", "csv"])
def test_an_empty_file_has_no_rows(tmp_path: Path, text: str, kind: str) -> None:
    assert loaded(tmp_path, {"a": text}, ORDERS, format=kind) == []
    assert loaded(tmp_path, {"a": text}, ORDERS, format=kind, schema_mode="merge") == []
    with pytest.raises(InvalidRequestError, match="The columns of the table cannot be inferred from the files"):
        loaded(tmp_path, {}, format=kind)


def test_a_header_only(tmp_path: Path) -> None:
    assert csv_rows(tmp_path, "id,note\n", ORDERS) == []
    rows = opened(tmp_path, None, format="csv")
    assert rows.schema == pa.schema([("id", pa.string()), ("note", pa.string())])
    assert rows.batches.read_all().num_rows == 0


@pytest.mark.parametrize(("kind", "text"), [("json", '\ufeff{"id": 1}'), ("csv", "\ufeffid\n1\n")])
def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path, kind: str, text: str) -> None:
    assert loaded(tmp_path, {"a": text}, format=kind) == [{"id": 1}]


def test_empty_cells(tmp_path: Path) -> None:
    text = 'id,note,amount\n1,,\n,"",""\n'
    assert csv_rows(tmp_path, text, ORDERS) == [
        {"id": 1, "note": None, "amount": None}, {"id": None, "note": "", "amount": None},
    ]  # fmt: skip


# Inference


def test_columns_without_a_table(tmp_path: Path) -> None:
    text = (
        "id,zip,big,ratio,ok,day,at,zoned,nothing\n"
        "1,007,12345678901234567890,1,true,2024-01-01,2024-01-01 10:00,2024-01-01T10:00:00Z,\n"
        "2,8,1,0.5,false,2024-01-02,2024-01-01 11:00,2024-01-01T10:00:00+01:00,\n"
    )
    write_files(tmp_path, {"a.csv": text})
    assert [str(kind) for kind in opened(tmp_path, None, format="csv").schema.types] == [
        "int64", "string", "decimal128(38, 0)", "double", "bool", "date32[day]", "timestamp[us]",
        "timestamp[us, tz=UTC]", "string",
    ]  # fmt: skip
    json = '{"id": 1, "zip": "8", "mixed": 1, "big": 12345678901234567890, "n": {"a": 1.5, "b": []}}\n'
    rows = json_rows(tmp_path, json + '{"id": 2, "mixed": "x"}', pattern="*.json")
    assert rows[0] == {
        "id": 1,
        "zip": "8",
        "mixed": "1",
        "big": Decimal(12345678901234567890),
        "n": {"a": 1.5, "b": []},
    }
    assert rows[1]["mixed"] == "x"


def test_hints_and_declared_columns(tmp_path: Path) -> None:
    text = '{"id": 1, "amount": 1.5, "at": "2024-01-01"}'
    (row,) = json_rows(tmp_path, text, schema={"amount": "decimal(9,2)", "at": pa.date32()})
    assert row == {"id": 1, "amount": Decimal("1.50"), "at": date(2024, 1, 1)}
    declared = pa.schema([("id", pa.string())])
    assert json_rows(tmp_path, text, schema=declared, schema_mode="rescue")[0]["id"] == "1"
    with pytest.raises(SchemaMismatchError, match="amount is new; the field at is new"):
        json_rows(tmp_path, text, schema=declared)


# Where rows came from, and files that cannot be read


def test_source_file(tmp_path: Path) -> None:
    files = {
        "a.csv": "id,note\n" + "".join(f"{i},x\n" for i in range(70_000)),
        "b.csv": "note,id\ny,1\n",
        "c.csv": "id\n1\n2\n",
    }
    rows = loaded(tmp_path, files, ORDERS, format="csv", source_file=True)
    places = [row["source_file"] for row in rows]
    assert [place["row_number"] for place in places] == [*range(1, 70_001), 1, 1, 2]
    assert [place["path"].rpartition("/")[2] for place in places[-3:]] == ["b.csv", "c.csv", "c.csv"]
    assert places[-1]["size"] == 7
    assert abs(places[-1]["modification_time"].timestamp() - (tmp_path / "c.csv").stat().st_mtime) < 0.01


def test_one_long_file_keeps_its_order(tmp_path: Path) -> None:
    count = 150_000
    for kind in ("json", "csv"):
        (tmp_path / kind).mkdir()
    lines = "".join(f'{{"id": {number}, "note": "{"x" * 30}"}}\n' for number in range(count))
    (tmp_path / "json" / "a").write_text(lines)
    (tmp_path / "csv" / "a").write_text("id,note\n" + "".join(f"{number},{'x' * 30}\n" for number in range(count)))
    for kind in ("json", "csv"):
        rows = opened(tmp_path / kind, ORDERS, format=kind, source_file=True).batches.read_all()
        assert rows["id"].to_pylist() == list(range(count))
        numbers = rows["source_file"].combine_chunks().field("row_number")
        assert numbers.to_pylist() == list(range(1, count + 1))


def test_rescued_numbers_that_json_does_not_have_are_texts(tmp_path: Path) -> None:
    (row,) = json_rows(tmp_path, '{"id": NaN, "new": -Infinity}', ORDERS, schema_mode="rescue")
    assert orjson.loads(row["_rescued_data"]) == {"id": "NaN", "new": "-Infinity"}
    with pytest.raises(SchemaMismatchError, match='the value "NaN" of id'):
        json_rows(tmp_path, '{"id": NaN}', ORDERS)
    pq.write_table(pa.table({"new": [float("nan"), 1.5]}), tmp_path / "a.parquet")
    rows = loaded(tmp_path, {}, ORDERS, format="parquet", schema_mode="rescue", pattern="*.parquet")
    assert [row["_rescued_data"] for row in rows] == ['{"new":"NaN"}', '{"new":1.5}']


BROKEN: dict[str, tuple[str | bytes, str]] = {
    "json": ('{"id": 2}\n{"id": 3', "json"),
    "not_object": ('{"id": 2}\n5\n', "json"),
    "ragged": ("id\n2\n3,4\n", "csv"),
    "quote": ('id\n2\n"3\n', "csv"),
    "not_utf8": (b"id\n2\n\xff\n", "csv"),
    "gzip": (gzip.compress(b"id\n" + b"2\n" * 90_000)[:-9], "csv"),
    "checksum": (gzip.compress(b"id\n2\n")[:-5] + b"\0" * 5, "csv"),
    "parquet": (b"PAR1 no", "parquet"),
    "orc": (b"ORC no", "orc"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_that_cannot_be_read(tmp_path: Path, case: str) -> None:
    content, kind = BROKEN[case]
    good: dict[str, str | bytes] = (
        {"a": "id\n1\n", "z": "id\n9\n"} if kind == "csv" else {"a": '{"id": 1}', "z": '{"id": 9}'}
    )
    name = "m.csv.gz" if case in ("gzip", "checksum") else "m"
    write_files(tmp_path, {**(good if kind in ("csv", "json") else {}), name: content})
    for own in ("a", "z"):
        if kind in ("parquet", "orc"):
            table = pa.table({"id": [1 if own == "a" else 9]})
            (pq if kind == "parquet" else orc).write_table(table, tmp_path / own)
    with pytest.raises(UnreadableFileError, match=rf"The file .*/{name} cannot be read as {kind}") as failure:
        opened(tmp_path, ORDERS, format=kind).batches.read_all()
    assert failure.value.context["path"] == name
    rows = opened(tmp_path, ORDERS, format=kind, on_error="quarantine")
    assert [row["id"] for row in rows.batches.read_all().to_pylist()] == [1, 9]
    assert rows.set_aside["path"].to_pylist() == [name]
    assert rows.set_aside["error"].null_count == 0
    unknown = opened(tmp_path, None, format=kind, on_error="quarantine")
    assert [row["id"] for row in unknown.batches.read_all().to_pylist()] == [1, 9]


@pytest.mark.parametrize("kind", ["csv", "json"])
@pytest.mark.parametrize("count", [2, 3, 5, 9, 40])
def test_one_of_many_files_that_is_cut_off_is_named(tmp_path: Path, kind: str, count: int) -> None:
    """DuckDB leaves out the last row of such a file where it reads many at once."""
    for number in range(count):
        (tmp_path / f"{number:03}").write_text("id,note\n1,a\n" if kind == "csv" else '{"id": 1}\n')
    name = f"{count // 2:03}"
    (tmp_path / name).write_text('id,note\n1,"a""b"\n2,"c' if kind == "csv" else '{"id": 1}\n{"id": 2, "note": "c')
    with pytest.raises(UnreadableFileError, match=name):
        opened(tmp_path, ORDERS, format=kind).batches.read_all()
    rows = opened(tmp_path, ORDERS, format=kind, on_error="quarantine")
    assert rows.batches.read_all().num_rows == count - 1
    assert rows.set_aside["path"].to_pylist() == [name]


def test_many_broken_files_are_set_aside_and_no_other(tmp_path: Path) -> None:
    files = {f"{n:03}": '{"id": 1}\n{"id"' if n % 7 == 3 else f'{{"id": {n}}}\n' for n in range(60)}
    write_files(tmp_path, files)
    rows = opened(tmp_path, ORDERS, format="json", on_error="quarantine")
    assert [row["id"] for row in rows.batches.read_all().to_pylist()] == [n for n in range(60) if n % 7 != 3]
    assert rows.set_aside["path"].to_pylist() == [f"{n:03}" for n in range(60) if n % 7 == 3]


def test_a_full_disk_sets_no_file_aside(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.csv.gz": gzip.compress(b"id\n" + b"1234567\n" * 500_000)})
    source = FileSource(str(tmp_path), format="csv", on_error="quarantine")
    files, before = source.list_files(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        rows = read_files(source, files, ORDERS, engine=LocalEngine())
        with pytest.raises(StorageError, match="File too large") as failure:
            rows.batches.read_all()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not isinstance(failure.value, UnreadableFileError)
    assert rows.set_aside.num_rows == 0


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    for kind, content in (("json", '{"id": 1}'), ("csv", "id\n1\n"), ("text", "x")):
        write_files(tmp_path, {"a": content, "b": content})
        source = FileSource(str(tmp_path), format=kind, on_error="quarantine")  # type: ignore[arg-type]
        files = source.list_files()
        (tmp_path / "a").unlink()
        table = None if kind == "text" else ORDERS
        rows = read_files(source, files, table, engine=LocalEngine())
        assert rows.batches.read_all().num_rows == 1
        assert rows.set_aside["path"].to_pylist() == ["a"]


def test_fields_with_the_names_of_our_own_columns(tmp_path: Path) -> None:
    text = '{"id": 1, "source_file": "x", "_rescued_data": "y"}'
    assert json_rows(tmp_path, text) == [{"id": 1, "source_file": "x", "_rescued_data": "y"}]
    (row,) = json_rows(tmp_path, text, source_file=True, schema_mode="rescue")
    assert row["source_file"]["row_number"] == 1
    assert orjson.loads(row["_rescued_data"]) == {"source_file": "x", "_rescued_data": "y"}


@pytest.mark.parametrize("on_error", ["fail", "quarantine"])
def test_a_file_that_changes_after_it_was_listed_is_an_error(tmp_path: Path, on_error: str) -> None:
    json, packed = b'{"id": 1}\n', gzip.compress(b'{"id": 2}')
    changes: list[tuple[str, bytes]] = [("a.json", json * 2), ("b.json.gz", packed * 2), ("a.json", b'{"id": 3}\n')]
    for name, changed in changes:
        write_files(tmp_path, {"a.json": json, "b.json.gz": packed})
        source = FileSource(str(tmp_path), format="json", on_error=on_error)  # type: ignore[arg-type]
        files = source.list_files()
        (tmp_path / name).write_bytes(changed)
        os.utime(tmp_path / name, (2_000_000_000, 2_000_000_000))
        with pytest.raises(StorageError, match=f"{name} has changed since it was listed") as failure:
            read_files(source, files, ORDERS, engine=LocalEngine()).batches.read_all()
        assert failure.value.retryable


def test_the_page_names_every_option() -> None:
    page = (Path(__file__).parents[2] / "docs/file-formats.md").read_text()
    for kind, options in (("json", JSON_OPTIONS), ("csv", CSV_OPTIONS), ("text", ("whole_file",))):
        line = next(line for line in page.splitlines() if line.startswith(f"| `{kind}`"))
        named = re.findall(r"`(\w+)`", line)
        assert set(options) <= set(named)
