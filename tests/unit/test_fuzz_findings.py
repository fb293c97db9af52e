"""What the fuzzer has found once and must not find again."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch.cli.main import run
from delta_orch.delta_table import DeltaTable
from delta_orch.engines.local.file_rows import FileRows
from delta_orch.errors import (
    CorruptDeletionVectorError,
    CorruptLogError,
    DeltaError,
    ProtocolViolationError,
    TableError,
    UnsupportedError,
)
from delta_orch.log.files.partition_columns import partition_strings
from delta_orch.log.read.table_log import TableLog
from delta_orch.protocol.action_json import parse_action
from delta_orch.protocol.actions import Add, CommitInfo, DeletionVectorDescriptor, Metadata
from delta_orch.protocol.arrow_building import STRING_MAP, schema_to_arrow, valid_runs
from delta_orch.protocol.deletion_vector import stored_bitmap_bytes
from delta_orch.protocol.schema import parse_schema
from delta_orch.protocol.types import LONG, STRING, VARIANT, ArrayType, MapType, StructField, StructType
from delta_orch.protocol.variant.reconstruct import reconstruct_columns
from delta_orch.storage.local import LocalStore
from delta_orch.storage.memory import MemoryStore
from delta_orch.storage.parquet_footer import ThriftWalk, read_footer
from delta_orch.table.type_widening import ensure_known_type_changes
from tests.certain import some
from tests.handmade import HandmadeTable, inline_vector
from tests.harness.log_builder import LogBuilder


def nested_array(depth: int) -> str:
    return '{"type":"array","containsNull":true,"elementType":' * depth + '"long"' + "}" * depth


def schema_of(**field: Any) -> str:
    return json.dumps({"type": "struct", "fields": [{"name": "a", "type": "long", "metadata": {}, **field}]})


def test_deep_schemas_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="levels deep"):
        parse_schema(schema_of(type=orjson.loads(nested_array(300))))
    assert parse_schema(schema_of(type=orjson.loads(nested_array(80)))).fields[0].name == "a"


def nested_struct(depth: int) -> str:
    opening = '{"type":"struct","fields":[{"name":"a","nullable":true,"metadata":{},"type":'
    return opening * depth + '"long"' + "}]}" * depth


DEEP = {
    "arrays": schema_of(type=orjson.loads(nested_array(400))),
    "structs": nested_struct(400),
    "metadata": schema_of().replace('"metadata": {}', f'"metadata": {{"x": {"[" * 400 + "]" * 400}}}'),
}


@pytest.mark.parametrize("kind", DEEP)
def test_a_schema_of_400_levels_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(DeltaError):
        DeltaTable(tmp_path / "t").create(DEEP[kind])
    assert not DeltaTable(tmp_path / "t").exists()
    log = tmp_path / "t" / "_delta_log"
    log.mkdir(parents=True)
    metadata = {"id": "x", "format": {"provider": "parquet"}, "schemaString": DEEP[kind], "partitionColumns": []}
    actions = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]
    (log / f"{0:020d}.json").write_text("\n".join(map(json.dumps, actions)))
    table = DeltaTable(tmp_path / "t")
    for use in (
        lambda: table.snapshot().schema,
        lambda: table.append(pa.table({"a": [1]})),
        lambda: table.alter().set_properties({"a": "b"}).commit(),
        lambda: table.alter().add_columns("b int").commit(),
    ):
        with pytest.raises(DeltaError):
            use()


def struct_column(depth: int) -> str:
    return "a " + "struct<a:" * depth + "int" + ">" * depth


@pytest.mark.parametrize(
    ("schema", "deeper"), [(nested_struct(81), nested_struct(82)), (struct_column(79), struct_column(80))]
)
def test_the_deepest_schema_is_read_and_written(tmp_path: Path, schema: str, deeper: str) -> None:
    table = DeltaTable(tmp_path / "t")
    table.create(schema)
    assert table.alter().add_columns("b int").commit().version == 1
    for command in (["snapshot"], ["snapshot", "--json"]):
        with pytest.raises(SystemExit) as ended:
            run([*command, table.uri])
        assert ended.value.code == 0
    with pytest.raises(DeltaError, match="levels deep"):
        DeltaTable(tmp_path / "deeper").create(deeper)


@pytest.mark.parametrize("field", [{"metadata": [{}]}, {"name": None}, {"type": [["long"]]}])
def test_malformed_fields_are_refused(field: Any) -> None:
    with pytest.raises(ProtocolViolationError):
        parse_schema(schema_of(**field))


def test_deep_brackets_are_no_type() -> None:
    with pytest.raises(ProtocolViolationError, match="invalid type"):
        parse_schema('{"type": "struct", "fields": ' + "[" * 900 + "]" * 900 + "}")


def metadata(**fields: Any) -> Any:
    return {"metaData": {"id": "x", "schemaString": "", **fields}}


def test_properties_of_other_types() -> None:
    parsed = parse_action(metadata(configuration={"a": True, "b": 7, "c": None, "d": "x"}))
    assert isinstance(parsed, Metadata)
    assert parsed.configuration == {"a": "true", "b": "7", "d": "x"}
    with pytest.raises(ProtocolViolationError):
        parse_action(metadata(configuration={"a": ["x"]}))


@pytest.mark.parametrize("columns", ["id", {"id": 1}, [None], 7])
def test_partition_columns_must_be_a_list_of_names(columns: dict[str, int] | int | list[None] | str) -> None:
    with pytest.raises(ProtocolViolationError):
        parse_action(metadata(partitionColumns=columns))


@pytest.mark.parametrize("history", [7, "x", {"fromType": "integer", "toType": "long"}, [7], [{}], [{"fromType": 7}]])
def test_a_history_of_types_that_is_none(history: Any) -> None:
    field = StructField("a", LONG, True, {"delta.typeChanges": history})
    with pytest.raises(ProtocolViolationError, match=r"malformed history|invalid type"):
        ensure_known_type_changes(StructType((field,)))


def test_stored_vectors_of_negative_size() -> None:
    with pytest.raises(CorruptDeletionVectorError):
        stored_bitmap_bytes(b"6", DeletionVectorDescriptor("p", "x", -(1 << 40), 2))


def parquet_bytes(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=2)
    return sink.getvalue()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2, 3, None], pa.int64()),
        pa.array(["a", "", None, "d"]),
        pa.array([b"ab", b"cd", b"ef", None], pa.binary(2)),
        pa.array([True, False, None, None]),
        pa.array([None] * 4, pa.float64()),
        pa.array([[("k", 1)], [], None, [("l", None)]], pa.map_(pa.string(), pa.int32())),
        pa.array([{"x": {"y": [1]}}] * 4),
    ],
)
def test_sound_footers(column: Any) -> None:
    table = pa.table({"a": column, "b": pa.array(range(4))}).replace_schema_metadata({"k": "v" * 300})
    read_footer(pa.BufferReader(parquet_bytes(table))).ensure_sound_chunks()


def with_other_chunk_type(data: bytes) -> bytes:
    """The physical type of the one column chunk's metadata, INT32 in the schema, is changed to INT64."""
    (length,) = struct.unpack("<I", data[-8:-4])
    footer = data[-8 - length : -8]
    # A structure (field 3 of the chunk), whose field 1 is an i32: zigzag 1 = INT32, then field 2, the encodings.
    at = footer.index(b"\x1c\x15\x02\x19")
    return data[: -8 - length] + footer[: at + 2] + b"\x04" + footer[at + 3 :] + data[-8:]


def test_footers_that_would_end_the_process() -> None:
    data = parquet_bytes(pa.table({"a": pa.array([1, 2], pa.int32())}))
    damaged = with_other_chunk_type(data)
    with pytest.raises(pa.ArrowInvalid, match="physical type"):
        read_footer(pa.BufferReader(damaged)).ensure_sound_chunks()


def test_statistics_too_short_for_their_type() -> None:
    data = parquet_bytes(pa.table({"a": pa.array([1, 2], pa.int32())}))
    (length,) = struct.unpack("<I", data[-8:-4])
    footer = data[-8 - length : -8]
    # The maximum is a binary of four bytes: one of three, and a field number less at its end.
    at = footer.index(b"\x18\x04\x02\x00\x00\x00")
    footer = footer[:at] + b"\x18\x03\x02\x00\x00" + footer[at + 6 :]
    damaged = data[: -8 - length] + footer + struct.pack("<I", length - 1) + data[-4:]
    with pytest.raises(pa.ArrowInvalid, match="minimum or maximum"):
        read_footer(pa.BufferReader(damaged)).ensure_sound_chunks()


def test_deletion_vectors_of_a_checkpoint_in_another_type() -> None:
    store = MemoryStore("fuzz-findings")
    log = LogBuilder(store)
    log.create()
    log.commit(Add("a", {}, 1, 1, True, deletion_vector=DeletionVectorDescriptor("u", "x" * 20, 3, 1, 1)))
    log.checkpoint(1)
    path = "_delta_log/00000000000000000001.checkpoint.parquet"
    table = pq.read_table(io.BytesIO(store.read_bytes(path)))
    add = table["add"].combine_chunks()
    children = {field.name: add.field(field.name) for field in add.type}
    children["deletionVector"] = pa.array([7] * len(add))
    damaged = pa.StructArray.from_arrays(list(children.values()), list(children), mask=add.is_null())
    table = table.set_column(table.column_names.index("add"), "add", damaged)
    store.put(path, parquet_bytes(table))
    with pytest.raises(CorruptLogError, match="deletionVector"):
        TableLog(store).snapshot().files()


@pytest.mark.parametrize("time_ms", [1 << 62, -(1 << 62), 253402300800000])
def test_impossible_commit_times(time_ms: int) -> None:
    store = MemoryStore("fuzz-findings-time")
    log = LogBuilder(store)
    log.create()
    log.commit(CommitInfo({"inCommitTimestamp": time_ms}), Add("a", {}, 1, 1, True))
    with pytest.raises(ProtocolViolationError, match="inCommitTimestamp"):
        TableLog(store).read_commit(1)
    with pytest.raises(ProtocolViolationError, match="inCommitTimestamp"):
        TableLog(store).history()


def test_column_names_that_are_not_utf8(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    log = LogBuilder(store)
    log.create(schema_of())
    data = parquet_bytes(pa.table({"name": pa.array([1, 2])})).replace(b"name", b"na\x80e")
    log.commit(Add("part.parquet", {}, len(data), 1, True))
    store.put("part.parquet", data)
    with pytest.raises(TableError, match="not readable as Parquet"):
        DeltaTable(tmp_path).snapshot().scan().to_arrow()
    store.put("_delta_log/00000000000000000001.checkpoint.parquet", data)
    with pytest.raises(CorruptLogError, match="cannot be read"):
        DeltaTable(tmp_path).snapshot()


def with_raw_strings(data: bytes) -> bytes:
    return data.replace(b"text", b"te\x80t")


def test_strings_that_are_not_utf8(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    log = LogBuilder(store)
    log.create(schema_of(type="string"))
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": ["text", "x"]}), sink, compression="none", write_statistics=False)
    store.put("part.parquet", with_raw_strings(sink.getvalue()))
    log.commit(Add("part.parquet", {}, 1, 1, True))
    for where in (None, "a = 'x'"):
        with pytest.raises(TableError, match="UTF8"):
            DeltaTable(tmp_path).snapshot().scan(where=where).to_arrow()


def test_strings_of_a_checkpoint_that_are_not_utf8(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    log = LogBuilder(store)
    log.create(schema_of(type="string"))
    log.commit(Add("text", {}, 1, 1, True))
    log.checkpoint(1)
    path = "_delta_log/00000000000000000001.checkpoint.parquet"
    sink = io.BytesIO()
    table = pq.read_table(io.BytesIO(store.read_bytes(path)))
    pq.write_table(table, sink, compression="none", write_statistics=False)
    store.put(path, with_raw_strings(sink.getvalue()))
    with pytest.raises(CorruptLogError, match="UTF8"):
        DeltaTable(tmp_path).snapshot().files()


def test_columns_of_the_same_name() -> None:
    field = {"name": "a", "type": "long", "nullable": True, "metadata": {}}
    with pytest.raises(ProtocolViolationError, match="two columns"):
        parse_schema(json.dumps({"type": "struct", "fields": [field, field]}))
    parse_schema(json.dumps({"type": "struct", "fields": [field, {**field, "name": "A"}]}))


def test_a_column_of_another_type_around_variants_is_left_for_others_to_refuse() -> None:
    inner = StructType((StructField("v", VARIANT),))
    numbers = pa.array([1, None], pa.int64())
    for data_type in (inner, ArrayType(inner), MapType(STRING, VARIANT)):
        assert reconstruct_columns(numbers, data_type).equals(numbers)


def test_a_name_with_a_zero_byte_is_no_file(tmp_path: Path) -> None:
    assert LocalStore(tmp_path).head("_delta_log/_sidecars/\0") is None


def with_footer(data: bytes, old: bytes, new: bytes) -> bytes:
    """The file with some bytes of its footer replaced."""
    (length,) = struct.unpack("<I", data[-8:-4])
    footer = data[-8 - length : -8]
    assert footer.count(old) >= 1
    footer = footer.replace(old, new, 1)
    return data[: -8 - length] + footer + struct.pack("<I", len(footer)) + data[-4:]


INTEGERS = parquet_bytes(pa.table({"a": pa.array([1, 2], pa.int32())}))


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        # A column of the schema: type INT32, repetition OPTIONAL, name.
        (b"\x15\x02\x25\x02\x18\x01a", b"\x15\x12\x25\x02\x18\x01a", "physical column type"),
        (b"\x15\x02\x25\x02\x18\x01a", b"\x15\x02\x25\x06\x18\x01a", "histogram"),
        (b"\x15\x02\x25\x02\x18\x01a", b"\x15\x04\x25\x02\x18\x01a", "of 4 bytes, not 8"),
        # The root: its name, one column inside.
        (b"\x18\x06schema\x15\x02", b"\x18\x06schema\x15\x04", "not enough elements"),
        (b"\x18\x06schema\x15\x02", b"\x18\x06schema\x15\x00", "multiple nodes|too many elements"),
        # The maximum and minimum are empty.
        (b"\x18\x04\x02\x00\x00\x00", b"\x18\x00", "minimum or maximum of 0 bytes"),
    ],
)
@pytest.mark.parametrize("leaves", [None, [0]])
def test_damaged_footers_are_refused(old: bytes, new: bytes, match: str, leaves: list[int] | None) -> None:
    """Arrow refuses a damaged schema itself; what would end the process is found before, in one column or in all."""

    def read(data: bytes) -> pa.FileMetaData | None:
        footer = read_footer(pa.BufferReader(data))
        footer.ensure_sound_chunks(leaves)
        return footer.metadata

    assert some(read(INTEGERS)).num_rows == 2
    with pytest.raises((pa.ArrowInvalid, OSError), match=match):
        read(with_footer(INTEGERS, old, new))


WIDE = pa.table({f"c{i}": pa.array(range(8)).cast([pa.int64(), pa.string(), pa.int32()][i % 3]) for i in range(9)})


def test_only_the_columns_that_are_asked_for_are_checked() -> None:
    # The first row group of c4 claims another physical type.
    encodings_and_path = b"\x19\x35\x00\x06\x10\x19\x18\x02c4"
    damaged = with_footer(parquet_bytes(WIDE), b"\x15\x0c" + encodings_and_path, b"\x15\x02" + encodings_and_path)
    footer = read_footer(pa.BufferReader(damaged))
    footer.ensure_sound_chunks([0, 3, 5])
    # Its type is −7: 6 with the other sign.
    negative = with_footer(parquet_bytes(WIDE), b"\x15\x0c" + encodings_and_path, b"\x15\x0d" + encodings_and_path)
    with pytest.raises(pa.ArrowInvalid, match="physical type -7"):
        read_footer(pa.BufferReader(negative)).ensure_sound_chunks([4])
    for leaves in ([4], [0, 4], None):
        with pytest.raises(pa.ArrowInvalid, match="physical type"):
            footer.ensure_sound_chunks(leaves)


def test_a_column_whose_chunks_have_another_name_is_walked_to() -> None:
    damaged = with_footer(parquet_bytes(WIDE), b"\x19\x18\x02c1", b"\x19\x18\x02XX")
    footer = read_footer(pa.BufferReader(damaged))
    footer.ensure_sound_chunks([1, 5])
    dotted = parquet_bytes(WIDE.rename_columns([f"a.{name}" for name in WIDE.column_names]))
    read_footer(pa.BufferReader(dotted)).ensure_sound_chunks([1, 5])


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    # Each element: repetition, name, one column inside.
    elements = b"\x35\x02\x18\x01a\x15\x02\x00" * 6_000
    footer = b"\x15\x02\x19\xfc\xf0\x2e" + elements + b"\x16\x00\x19\x0c\x00"
    with pytest.raises(OSError, match="too deeply nested"):
        _ = read_footer(pa.BufferReader(b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1")).metadata


def test_numbers_of_rows_that_do_not_add_up(tmp_path: Path) -> None:
    made = HandmadeTable(tmp_path / "t")
    made.create(pa.schema([("a", pa.int32())]), reader_features=("deletionVectors",))
    (made.root / "f.parquet").write_bytes(INTEGERS)
    made.commit(made.add("f.parquet", deletion_vector=inline_vector(0)))
    assert made.open().snapshot().scan().to_arrow().to_pylist() == [{"a": 2}]
    # The number of rows of the one row group, as an i64 after its size in bytes.
    rows = with_footer(INTEGERS, b"\x16\x04\x26\x08", b"\x16" + b"\xfe" * 8 + b"\x7f\x26\x08")
    (made.root / "f.parquet").write_bytes(rows)
    columns: list[str] | None
    for columns in (None, []):
        with pytest.raises(TableError, match="rows, the file says 2"):
            made.open().snapshot().scan(columns=columns).to_arrow()


@pytest.mark.parametrize(
    "data", [b"", b"PAR1", b"PAR1" * 3, b"PAR1\xff\xff\xff\x7fPAR1", b"x" * 100, b"PAR1" + b"\x99" * 50]
)
def test_what_is_no_parquet_file(data: bytes) -> None:
    with pytest.raises(pa.ArrowInvalid):
        read_footer(pa.BufferReader(data))


def test_walking_through_bytes_ends() -> None:
    for data in (
        b"\x1c" * 10_000,
        b"\x19\xfc" + b"\xff" * 9,
        b"\x16" + b"\xff" * 10_000,
        b"\x18\xff\xff\xff\x7f",
        b"\x19\x1e",
    ):
        with pytest.raises((pa.ArrowInvalid, IndexError)):
            for _ in (walk := ThriftWalk(data)).fields():
                walk.skip()


def test_rows_of_a_file_in_pieces() -> None:
    rows = FileRows((0, 4, 9, 10), np.array([0, 5, 8, 9]))
    batches = [pa.record_batch({"n": list(range(start, stop))}) for start, stop in ((4, 6), (6, 10))]
    chosen = list(rows.choose_batches(batches, [1, 2]))
    assert [part["n"].to_pylist() for part in chosen] == [[4], [6, 7]]
    assert rows.choose(pa.table({"n": [0, 1, 2, 3, 9]}), [0, 2])["n"].to_pylist() == [1, 2, 3]
    for wrong in (pa.table({"n": [1]}), pa.table({"n": range(6)})):
        with pytest.raises(pa.ArrowInvalid, match="footer says"):
            rows.choose(wrong, [0, 2])
        with pytest.raises(pa.ArrowInvalid, match="footer says"):
            list(rows.choose_batches(wrong.to_batches(), [0, 2]))


def _checkpoint(directory: Path) -> tuple[Path, pa.Table]:
    log = LogBuilder(LocalStore(directory))
    log.create()
    log.checkpoint(0)
    path = directory / "_delta_log" / f"{0:020d}.checkpoint.parquet"
    return path, pq.read_table(path)


def test_a_checkpoint_with_two_fields_of_one_name(tmp_path: Path) -> None:
    path, table = _checkpoint(tmp_path)
    column = table["metaData"].combine_chunks()
    column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    names = [field.name for field in column.type]
    children = [column.field(index) for index in range(len(names))]
    twice = pa.StructArray.from_arrays([*children, children[0]], [*names, names[0]], mask=column.is_null())
    pq.write_table(table.set_column(table.column_names.index("metaData"), "metaData", twice), path)
    with pytest.raises(CorruptLogError, match="cannot be read"):
        DeltaTable(tmp_path).snapshot()


def test_a_checkpoint_whose_actions_are_no_structs(tmp_path: Path) -> None:
    path, table = _checkpoint(tmp_path)
    # Twice, so that the leaf that is looked for is there.
    twice = pa.Table.from_arrays(
        [pa.nulls(table.num_rows, pa.int8()), *table.columns], names=["protocol", *table.column_names]
    )
    pq.write_table(twice, path)
    with pytest.raises(CorruptLogError, match="cannot be read"):
        DeltaTable(tmp_path).snapshot()


def test_keys_of_no_type_are_not_read() -> None:
    kind = {"type": "map", "keyType": "void", "valueType": "long", "valueContainsNull": True}
    schema = {"type": "struct", "fields": [{"name": "m", "type": kind, "nullable": True, "metadata": {}}]}
    with pytest.raises(UnsupportedError, match="keys have no type"):
        schema_to_arrow(parse_schema(json.dumps(schema)))


def test_a_checkpoint_whose_metadata_has_an_id_of_no_type() -> None:
    assert valid_runs(pa.nulls(3)) == []
    assert valid_runs(pa.array([None, 1, 2, None, 3])) == [(1, 3), (4, 5)]


def test_each_file_spells_its_partition_columns_for_itself() -> None:
    maps = pa.array([[("P", "1")], [("p", "2")], [], [("P", "3"), ("p", "4")], [("q", "5")], [("p", None)]], STRING_MAP)
    wanted = ["1", "2", None, "4", None, None]
    assert partition_strings(maps, ["p"])["p"].to_pylist() == wanted
    for index, value in enumerate(wanted):
        assert partition_strings(maps.slice(index, 1), ["p"])["p"].to_pylist() == [value]
    assert partition_strings(maps.slice(0, 0), ["p"]).num_rows == 0
