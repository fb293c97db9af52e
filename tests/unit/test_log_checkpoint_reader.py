"""Checkpoints: columns on demand, whatever a writer left out or spelled differently, and damaged ones."""

from __future__ import annotations

import io
import itertools
import json
import re
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch.errors import ColumnNotFoundError, CorruptLogError, IncompleteCheckpointError, ProtocolViolationError
from delta_orch.expressions.parse import parse_expression
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.log.files.file_columns import ADD_SCHEMA, REMOVE_SCHEMA
from delta_orch.log.read import checkpoint_reader
from delta_orch.log.read.checkpoint_reader import RowGroup
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.protocol.action_json import CHECKPOINT_KEYS
from delta_orch.protocol.actions import Add, DeletionVectorDescriptor, DomainMetadata, Remove, Txn
from delta_orch.protocol.paths import SIDECAR_DIRECTORY, checkpoint_path
from delta_orch.storage.memory import MemoryStore
from delta_orch.testing import open_table
from tests.families import family
from tests.harness.fault_store import FaultStore
from tests.harness.log_builder import LogBuilder

_NAMES = itertools.count()
SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": "p", "type": "string", "nullable": True, "metadata": {}},
            {"name": "id", "type": "long", "nullable": True, "metadata": {}},
        ],
    }
)


@pytest.fixture
def builder() -> LogBuilder:
    return _builder()


def _builder() -> LogBuilder:
    builder = LogBuilder(MemoryStore(f"checkpoint-{next(_NAMES)}"))
    builder.create(SCHEMA, partition_columns=("p",))
    return builder


Decoded = list[tuple[int, str, str]]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Decoded:
    """Row group, action and field of everything that is decoded."""
    found: Decoded = []
    iterate = RowGroup.iter_structs

    def recording(self: RowGroup, action: str, fields: Any, use_threads: bool = False) -> Any:
        found.extend((self.index, action, name) for name in fields or ["everything"])
        return iterate(self, action, fields, use_threads)

    monkeypatch.setattr(RowGroup, "iter_structs", recording)
    return found


def _add(n: int, **fields: Any) -> Add:
    stats = json.dumps({"numRecords": 1, "minValues": {"id": n}, "maxValues": {"id": n}, "nullCount": {"id": 0}})
    values = {
        "partition_values": {"p": str(n % 3)},
        "size": n,
        "modification_time": n,
        "data_change": True,
        "stats": stats,
    }
    return Add(f"f{n}", **{**values, **fields})


def _snapshot(builder: LogBuilder) -> Snapshot:
    return TableLog(builder.store).snapshot()


def _rewrite(builder: LogBuilder, version: int, change: Any) -> None:
    """Replace the checkpoint by what a function of its table gives."""
    path = checkpoint_path(version)
    table = change(pq.read_table(pa.BufferReader(builder.store.read_bytes(path))))
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    builder.store.put(path, buffer.getvalue())


def _with_add(table: pa.Table, change: Any) -> pa.Table:
    """The table with other fields in `add`: a function of {name: column}."""
    add = table["add"].combine_chunks()
    fields = change({field.name: add.field(i) for i, field in enumerate(add.type)})
    struct = pa.StructArray.from_arrays(list(fields.values()), list(fields), mask=add.is_null())
    return table.set_column(table.column_names.index("add"), "add", struct)


def test_types_and_columns_are_those_of_the_file_columns(builder: LogBuilder) -> None:
    vector = DeletionVectorDescriptor("u", "abc", 10, 2, 1)
    builder.commit(*(_add(n) for n in range(5)), _add(5, deletion_vector=vector, tags={"t": "v"}, base_row_id=7))
    builder.commit(Remove("f1", True, 9), Remove("f2", True, 9, partition_values={"p": "2"}, size=4))
    builder.checkpoint(2)
    snapshot = _snapshot(builder)
    files = snapshot.files()
    files.validate(full=True)
    assert files.schema == ADD_SCHEMA
    assert sorted(files["path"].to_pylist()) == ["f0", "f3", "f4", "f5"]
    last = files.to_pylist(maps_as_pydicts="strict")[-1]
    assert (last["dv_id"], last["base_row_id"], last["tags"]) == ("uabc@1", 7, {"t": "v"})
    tombstones = snapshot.tombstones()
    tombstones.validate(full=True)
    assert tombstones.schema == REMOVE_SCHEMA
    assert tombstones.to_pylist(maps_as_pydicts="strict")[1]["partition_values"] == {"p": "2"}
    assert snapshot.files(["size", "path"]).schema.names == ["size", "path"]
    assert snapshot.files([]).num_columns == 0
    with pytest.raises(ColumnNotFoundError):
        snapshot.files(["paths"])


@pytest.mark.parametrize("kind", ["one file", "small row groups", "multi-part", "V2", "V2 JSON", "V2 classic name"])
def test_only_the_leaves_asked_for_are_decoded(builder: LogBuilder, kind: str, decoded: Decoded) -> None:
    builder.commit(Txn("app", 3), DomainMetadata("d", "c"), *(_add(n) for n in range(20)))
    match kind:
        case "one file":
            builder.checkpoint(1)
        case "small row groups":
            builder.checkpoint(1, row_group_rows=4)
        case "multi-part":
            builder.checkpoint(1, parts=3)
        case "V2":
            builder.checkpoint_v2(1)
        case "V2 JSON":
            builder.checkpoint_v2(1, file_format="json")
        case "V2 classic name":
            builder.checkpoint_v2(1, classic_name=True)
    snapshot = _snapshot(builder)
    assert snapshot.version == 1
    assert dict(snapshot.txns) == {"app": 3}
    assert dict(snapshot.domain_metadata) == {"d": "c"}
    assert not {action for _, action, _ in decoded} & {"add", "remove"}
    decoded.clear()
    assert snapshot.num_files == 20
    assert {(action, field) for _, action, field in decoded if action != "sidecar"} == {("add", "path")}
    decoded.clear()
    assert snapshot.size_bytes == sum(range(20))
    assert {(action, field) for _, action, field in decoded if action != "sidecar"} == {("add", "size")}
    decoded.clear()
    assert len(snapshot.files(["path"])) == 20
    assert decoded == []


def test_pruning_reads_no_more_than_partition_values_leave(builder: LogBuilder, decoded: Decoded) -> None:
    ordered = [_add(n, partition_values={"p": str(n // 10)}) for n in range(40)]
    builder.commit(*ordered)
    builder.checkpoint(1, row_group_rows=10)
    builder.commit(_add(100, partition_values={"p": "2"}), _add(101, partition_values={"p": "3"}))
    snapshot = _snapshot(builder)
    for where, expected in (
        ("p = '2' AND id >= 25 AND id < 28", ["f25", "f26", "f27"]),
        ("p = '2' AND id >= 28", ["f28", "f29", "f100"]),
        ("p = '3' AND id > 38", ["f39", "f101"]),
        ("p = '7'", []),
        ("id = 5", ["f5"]),
        ("id > 1000", []),
    ):
        decoded.clear()
        predicate = resolve_expression(parse_expression(where), snapshot.schema)
        assert sorted(snapshot.files(["path"], predicate)["path"].to_pylist()) == sorted(expected), where
        if "p =" in where:
            # The header shifts the rows, so one partition lies in two row groups of five. Paths are decoded in the
            # header's group too: its first rows have no partition values that could rule them out.
            assert len({group for group, _, name in decoded if name == "stats"}) <= 2
            assert len({group for group, _, name in decoded if name == "path"}) <= 3
    everything = snapshot.files(["path", "stats"], resolve_expression(parse_expression("true"), snapshot.schema))
    assert everything.num_rows == 42


@pytest.mark.parametrize("everything_first", [False, True])
def test_pruning_again_decodes_nothing(builder: LogBuilder, decoded: Decoded, everything_first: bool) -> None:
    builder.commit(*(_add(n, partition_values={"p": str(n // 10)}) for n in range(40)))
    builder.checkpoint(1, row_group_rows=10)
    snapshot = _snapshot(builder)
    where = resolve_expression(parse_expression("p = '2' AND id >= 25 AND id < 28"), snapshot.schema)
    if everything_first:
        snapshot.files(["path"])
    for is_first in (True, False):
        decoded.clear()
        assert sorted(snapshot.files(["path"], where)["path"].to_pylist()) == ["f25", "f26", "f27"]
        assert bool(decoded) is is_first
    other = resolve_expression(parse_expression("p = '1' AND id < 11"), snapshot.schema)
    assert snapshot.files(["path"], other)["path"].to_pylist() == ["f10"]
    assert not [name for _, _, name in decoded if name == "partitionValues"]
    # A later version shares what is decoded, but not the files that are gone.
    builder.commit(Remove("f26", data_change=True), _add(27, partition_values={"p": "2"}))
    decoded.clear()
    later = TableLog(builder.store).advance(snapshot)
    assert sorted(later.files(["path"], where)["path"].to_pylist()) == ["f25", "f27"]
    assert not [name for _, _, name in decoded if name == "partitionValues"]
    assert sorted(snapshot.files(["path"], where)["path"].to_pylist()) == ["f25", "f26", "f27"]


def _parsed_statistics(fields: dict[str, Any]) -> dict[str, Any]:
    rows = [None if text is None else orjson.loads(text) for text in fields["stats"].to_pylist()]
    parsed = pa.struct(
        [
            ("numRecords", pa.int64()),
            ("minValues", pa.struct([("id", pa.int64()), ("dec", pa.decimal128(5, 2))])),
            ("maxValues", pa.struct([("id", pa.int64())])),
            ("nullCount", pa.struct([("id", pa.int64())])),
        ]
    )
    for row in rows:
        if row is not None:
            row["minValues"]["dec"] = Decimal("1.50")
    return {**{k: v for k, v in fields.items() if k != "stats"}, "stats_parsed": pa.array(rows, parsed)}


def test_statistics_kept_only_as_columns_come_as_json(builder: LogBuilder) -> None:
    builder.commit(*(_add(n) for n in range(3)), _add(3, stats=None))
    builder.checkpoint(1)
    _rewrite(builder, 1, lambda table: _with_add(table, _parsed_statistics))
    builder.commit(_add(4))
    files = _snapshot(builder).files(["path", "stats"]).to_pylist()
    statistics = {row["path"]: row["stats"] and orjson.loads(row["stats"]) for row in files}
    assert statistics["f2"] == {
        "numRecords": 1, "minValues": {"id": 2, "dec": 1.5}, "maxValues": {"id": 2}, "nullCount": {"id": 0},
    }  # fmt: skip
    assert statistics["f3"] is None
    assert statistics["f4"]["maxValues"] == {"id": 4}
    snapshot = _snapshot(builder)
    predicate = resolve_expression(parse_expression("id = 2"), snapshot.schema)
    assert snapshot.files(["path"], predicate)["path"].to_pylist() == ["f2", "f3"]


def test_statistics_partly_as_json_partly_as_columns(builder: LogBuilder) -> None:
    builder.commit(*(_add(n) for n in range(4)))
    builder.checkpoint(1)

    def mixed(fields: dict[str, Any]) -> dict[str, Any]:
        texts = fields["stats"].to_pylist()
        kept = pa.array([text if n % 2 else None for n, text in enumerate(texts)], pa.string())
        return {**_parsed_statistics(fields), "stats": kept}

    _rewrite(builder, 1, lambda table: _with_add(table, mixed))
    rows = _snapshot(builder).files(["path", "stats"]).to_pylist()
    assert {row["path"]: orjson.loads(row["stats"])["minValues"]["id"] for row in rows} == {
        "f0": 0, "f1": 1, "f2": 2, "f3": 3,
    }  # fmt: skip


def test_missing_columns_count_as_null(builder: LogBuilder) -> None:
    builder.commit(_add(1), Remove("gone", True, 5))
    builder.checkpoint(1)

    def only_the_required(table: pa.Table) -> pa.Table:
        table = _with_add(table, lambda fields: {name: fields[name] for name in ("path", "partitionValues", "size")})
        return table.filter(pa.compute.is_null(table["remove"])).select(["add", "metaData", "protocol"])

    _rewrite(builder, 1, only_the_required)
    snapshot = _snapshot(builder)
    row = snapshot.files().to_pylist(maps_as_pydicts="strict")[0]
    assert (row["path"], row["size"]) == ("f1", 1)
    assert row["partition_values"] == {"p": "1"}
    assert (row["stats"], row["dv_id"], row["modification_time"]) == (None, None, None)
    assert snapshot.tombstones().num_rows == 0
    assert (dict(snapshot.txns), dict(snapshot.domain_metadata)) == ({}, {})


# What would not be found: a file, a deletion vector or an identifier that counts as absent


def _array(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _damaged(columns: dict[str, pa.Array], path: list[str], damage: str) -> tuple[list[pa.Array], list[str]]:
    """The columns with damage to what lies at a path."""
    arrays, names = [], []
    for name, column in columns.items():
        kept, called = [_array(column)], [name]
        if name == path[0] and path[1:]:
            struct = kept[0]
            fields = {field.name: struct.field(i) for i, field in enumerate(struct.type)}
            inner, inner_names = _damaged(fields, path[1:], damage)
            kept = [pa.StructArray.from_arrays(inner, inner_names, mask=struct.is_null())]
        elif name == path[0]:
            values = kept[0]
            match damage:
                case "gone":
                    kept, called = [], []
                case "another case":
                    called = [name.capitalize() if name[0].islower() else name.upper()]
                case "twice":
                    kept, called = kept * 2, called * 2
                case "another type":
                    kept = [pa.array([None if v is None else 1.5 for v in values.to_pylist()], pa.float64())]
                case "nested":
                    kept = [pa.StructArray.from_arrays([values], [name], mask=values.is_null())]
                case "a list":
                    kept = [pa.array([None if v is None else [v] for v in values.to_pylist()], pa.list_(values.type))]
                case "null":
                    kept = [pa.nulls(len(values), values.type)]
        arrays += kept
        names += called
    return arrays, names


_VECTOR = DeletionVectorDescriptor("i", "xyz", 3, 1)
_PLACES = [
    f"{prefix}{name}.{key}"
    for name, keys in CHECKPOINT_KEYS.items()
    for prefix in (("add.", "remove.") if name == "deletionVector" else ("",))
    for key in keys
]
_KINDS = ["classic", "parts", "v2", "v2 without sidecars"]


def _with_damage(builder: LogBuilder, kind: str, place: str, damage: str, **options: Any) -> None:
    """A table whose newest checkpoint is damaged in each file that has the place, and whose commits are gone."""
    builder.commit(*(_add(n, deletion_vector=_VECTOR if n == 1 else None) for n in range(6)), Txn("a", 1))
    builder.commit(Remove("gone", True, 5, deletion_vector=_VECTOR), DomainMetadata("d", "x", False))
    match kind:
        case "classic":
            builder.checkpoint(2, hint=False)
        case "parts":
            builder.checkpoint(2, parts=2, hint=False)
        case _:
            builder.checkpoint_v2(2, sidecars=2 if kind == "v2" else 0)
    builder.delete_commits(2)
    num_damaged = 0
    for file in list(builder.store.list_recursive("_delta_log")):
        if file.path.endswith(".parquet"):
            table = pq.read_table(pa.BufferReader(builder.store.read_bytes(file.path)))
            if place.partition(".")[0] in table.column_names:
                columns = dict(zip(table.column_names, table.columns, strict=True))
                arrays, names = _damaged(columns, place.split("."), damage)
                buffer = io.BytesIO()
                pq.write_table(pa.Table.from_arrays(arrays, names), buffer, **options)
                builder.store.put(file.path, buffer.getvalue())
                num_damaged += 1
    assert num_damaged


def _read_everything(builder: LogBuilder) -> None:
    snapshot = _snapshot(builder)
    _ = snapshot.txns, snapshot.domain_metadata, snapshot.files(), snapshot.tombstones()


@pytest.mark.parametrize("damage", ["gone", "another case", "twice", "another type", "nested", "a list"])
@family("place", _PLACES, every=5)
def test_a_checkpoint_without_what_an_action_is_known_by(place: str, damage: str) -> None:
    kind = "v2" if place.startswith(("sidecar", "checkpointMetadata")) else "classic"
    builder = _builder()
    _with_damage(builder, kind, place, damage)
    with pytest.raises(CorruptLogError):
        _read_everything(builder)


@pytest.mark.parametrize("options", [{}, {"write_statistics": False}])
@pytest.mark.parametrize("kind", _KINDS)
@family(
    ("place", "damage"),
    [
        ("add.path", "gone"), ("add.path", "null"), ("add.path", "another type"), ("add.path", "another case"),
        ("add", "gone"), ("add", "another case"), ("add", "twice"), ("add", "another type"),
        ("add.deletionVector", "another case"), ("add.deletionVector", "a list"), ("add", "a list"), ("add", "null"),
        ("remove", "gone"),
        ("add.deletionVector.storageType", "null"), ("add.deletionVector.pathOrInlineDv", "null"),
    ],
 every=4)  # fmt: skip
def test_vacuum_deletes_no_file_that_a_damaged_checkpoint_hides(
    kind: str, place: str, damage: str, options: dict[str, Any]
) -> None:
    builder = _builder()
    for n in range(6):
        builder.store.put(f"f{n}", b"x")
    _with_damage(builder, kind, place, damage, **options)
    for act in (
        lambda: _read_everything(builder),
        lambda: open_table(builder.store).vacuum(retention_hours=0, enforce_retention=False),
    ):
        with pytest.raises(CorruptLogError):
            act()
    assert [f.path for f in builder.store.list_recursive() if "/" not in f.path] == [f"f{n}" for n in range(6)]


@pytest.mark.parametrize("told_by", ["hint", "checksum", "tag"])
@pytest.mark.parametrize("has_column", [True, False])
def test_a_checkpoint_without_files_that_should_have_some(told_by: str, has_column: bool) -> None:
    builder = _builder()
    builder.commit(*(_add(n) for n in range(3)))
    if told_by == "tag":
        builder.checkpoint_v2(1, classic_name=True, sidecars=0)
    else:
        builder.checkpoint(1)
    if told_by == "hint":
        builder.hint(1, numOfAddFiles=3)
    if told_by == "checksum":
        builder.checksum(1)

    def without_files(table: pa.Table) -> pa.Table:
        table = table.filter(pa.compute.is_null(table["add"]))
        if told_by == "tag":
            rows = table.to_pylist()
            for row in rows:
                if row["checkpointMetadata"] is not None:
                    row["checkpointMetadata"]["tags"] = [("numOfAddFiles", "3")]
            table = pa.Table.from_pylist(rows, table.schema)
        return table if has_column else table.drop_columns(["add"])

    _rewrite(builder, 1, without_files)
    builder.delete_commits(1)
    with pytest.raises(CorruptLogError):
        _read_everything(builder)


@pytest.mark.parametrize("name", ["Add", "ADD", "MetaData", "metadata", "Remove", "TXN", "Protocol"])
def test_an_action_in_another_case_is_not_passed_over(builder: LogBuilder, name: str) -> None:
    """Not in a commit, and not in the JSON of a checkpoint."""
    builder.commit(_add(1), Txn("a", 1), Remove("f0", True, 5))
    builder.checkpoint_v2(1, file_format="json", sidecars=0)
    for file in builder.store.list_recursive("_delta_log"):
        text = builder.store.read_bytes(file.path).decode()
        builder.store.put(file.path, re.sub(rf'^{{"{name}":', f'{{"{name}":', text, flags=re.I | re.M).encode())
    with pytest.raises(ProtocolViolationError):
        _read_everything(builder)
    builder.store.delete(next(f.path for f in builder.store.list_recursive("_delta_log") if ".checkpoint." in f.path))
    with pytest.raises(ProtocolViolationError):
        _read_everything(builder)


@pytest.mark.parametrize("text_type", [pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()])
def test_text_and_numbers_in_other_arrow_types(builder: LogBuilder, text_type: pa.DataType) -> None:
    builder.commit(*(_add(n) for n in range(4)), Remove("gone", True, 5))
    builder.commit(Remove("f1", True, 5))
    builder.checkpoint(1)

    def change(fields: dict[str, Any]) -> dict[str, Any]:
        texts = {name: fields[name].cast(text_type) for name in ("path", "stats")}
        values = {"partitionValues": fields["partitionValues"].cast(pa.map_(text_type, text_type))}
        return {**fields, **texts, **values, "size": fields["size"].cast(pa.int32())}

    _rewrite(builder, 1, lambda table: _with_add(table, change))
    files = _snapshot(builder).files()
    assert files.schema == ADD_SCHEMA
    assert files["path"].to_pylist() == ["f0", "f2", "f3"]
    assert files["size"].to_pylist() == [0, 2, 3]
    assert files["partition_values"].to_pylist(maps_as_pydicts="strict") == [{"p": "0"}, {"p": "2"}, {"p": "0"}]


def test_a_column_of_the_wrong_type(builder: LogBuilder) -> None:
    builder.commit(_add(1))
    builder.checkpoint(1)
    _rewrite(
        builder,
        1,
        lambda t: _with_add(
            t, lambda f: {**f, "size": pa.array([None if v is None else "x" for v in f["size"].to_pylist()])}
        ),
    )
    with pytest.raises(ProtocolViolationError, match="size"):
        _ = _snapshot(builder).size_bytes


def test_row_groups_without_statistics(builder: LogBuilder) -> None:
    builder.commit(*(_add(n) for n in range(30)), Txn("a", 1))
    builder.checkpoint(1)
    table = pq.read_table(pa.BufferReader(builder.store.read_bytes(checkpoint_path(1))))
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=7, write_statistics=False)
    builder.store.put(checkpoint_path(1), buffer.getvalue())
    snapshot = _snapshot(builder)
    assert (snapshot.num_files, dict(snapshot.txns)) == (30, {"a": 1})
    assert sorted(snapshot.files()["size"].to_pylist()) == list(range(30))


def test_batches_smaller_than_row_groups(builder: LogBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_reader, "_BATCH_ROWS", 8)
    builder.commit(*(_add(n) for n in range(50)))
    builder.checkpoint(1)
    builder.commit(*(Remove(f"f{n}", True, 1) for n in range(0, 50, 3)))
    expected = [n for n in range(50) if n % 3]
    snapshot = _snapshot(builder)
    assert snapshot.files(["size", "path", "stats"])["size"].to_pylist() == expected


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"not parquet", b"PAR1" + b"\0" * 100 + b"PAR1"])
def test_a_damaged_checkpoint_names_its_file(builder: LogBuilder, damage: bytes) -> None:
    builder.commit(_add(1))
    builder.checkpoint(1)
    good = builder.store.read_bytes(checkpoint_path(1))
    builder.store.put(checkpoint_path(1), damage or good[: len(good) // 2])
    with pytest.raises(CorruptLogError, match=r"00000000000000000001\.checkpoint\.parquet"):
        _snapshot(builder)
    assert TableLog(builder.store).snapshot(0).version == 0


def test_damaged_pages_are_found_when_they_are_read(builder: LogBuilder) -> None:
    builder.commit(*(_add(n) for n in range(2000)))
    builder.checkpoint(1, row_group_rows=5000)
    good = builder.store.read_bytes(checkpoint_path(1))
    metadata = pq.ParquetFile(pa.BufferReader(good)).metadata
    columns = [metadata.row_group(0).column(i) for i in range(metadata.num_columns)]
    stats = next(c for c in columns if c.path_in_schema == "add.stats")
    start = stats.dictionary_page_offset or stats.data_page_offset
    damaged = good[:start] + b"\xff" * stats.total_compressed_size + good[start + stats.total_compressed_size :]
    builder.store.put(checkpoint_path(1), damaged)
    snapshot = _snapshot(builder)
    assert snapshot.num_files == 2000
    with pytest.raises(CorruptLogError, match=r"00000000000000000001\.checkpoint\.parquet"):
        snapshot.files(["stats"])


def test_a_sidecar_that_is_gone(builder: LogBuilder) -> None:
    builder.commit(*(_add(n) for n in range(5)))
    builder.checkpoint_v2(1)
    builder.store.delete(f"{SIDECAR_DIRECTORY}/1-1.parquet")
    snapshot = _snapshot(builder)
    assert snapshot.version == 1
    with pytest.raises(IncompleteCheckpointError, match=r"1-1\.parquet"):
        snapshot.files(["path"])


@pytest.mark.parametrize("file_format", ["json", "parquet"])
def test_files_beside_sidecars_are_not_lost(builder: LogBuilder, file_format: str) -> None:
    builder.commit(*(_add(n) for n in range(5)))
    builder.checkpoint_v2(1, file_format=file_format, embedded=2)
    snapshot = _snapshot(builder)
    paths = sorted(snapshot.files(["path"])["path"].to_pylist())
    assert (snapshot.num_files, len(set(paths))) == (5, 5)
    builder.commit(Remove(paths[0], True, 1), Remove(paths[-1], True, 1))
    assert sorted(_snapshot(builder).files(["path"])["path"].to_pylist()) == paths[1:-1]


def test_sidecars_named_by_a_whole_uri(builder: LogBuilder) -> None:
    builder.commit(*(_add(n) for n in range(5)))
    builder.checkpoint_v2(1, file_format="json")
    (path,) = [m.path for m in builder.store.list_from("_delta_log") if ".checkpoint." in m.path]
    text = builder.store.read_bytes(path).decode()
    builder.store.put(path, text.replace('"1-0.parquet"', '"s3://bucket/t/_delta_log/_sidecars/1-0.parquet"').encode())
    assert _snapshot(builder).num_files == 5


def test_a_checkpoint_without_metadata(builder: LogBuilder) -> None:
    builder.commit(_add(1))
    builder.checkpoint(1)
    _rewrite(builder, 1, lambda table: table.filter(pa.compute.is_null(table["metaData"])))
    with pytest.raises(ProtocolViolationError, match="metaData"):
        _snapshot(builder)


def test_opening_a_checkpoint_reads_it_once(builder: LogBuilder) -> None:
    builder.commit(*(_add(n) for n in range(100)))
    builder.checkpoint(1)
    builder.commit(_add(200))
    store = FaultStore(builder.store)
    snapshot = TableLog(store).snapshot()
    # The hint, one commit; the footer and the header rows.
    assert store.count("list_from") == 1
    assert store.count("read_bytes") == 2
    assert store.count("open_input") <= 3
    store.forget_calls()
    assert snapshot.num_files == 101
    # A file this small has been read with its footer.
    assert store.count("open_input") == 0
    store.forget_calls()
    assert snapshot.num_files == 101
    assert len(snapshot.files(["path"])) == 101
    assert not store.calls
