"""Small tables that use much of the protocol, the same bytes each time they are written, and the rows they hold."""

from __future__ import annotations

import io
import json
import math
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from delta_orch.protocol.action_json import serialize_action
from delta_orch.protocol.actions import (
    Add,
    AddCdcFile,
    CommitInfo,
    DeletionVectorDescriptor,
    DomainMetadata,
    Protocol,
    Remove,
    Txn,
)
from delta_orch.protocol.arrow_building import schema_from_arrow
from delta_orch.protocol.deletion_vector import DeletionVector, z85_encode
from delta_orch.protocol.schema import serialize_schema
from delta_orch.storage.local import LocalStore
from delta_orch.variant import json_to_variant
from tests.harness.log_builder import LogBuilder

ROWS = 12
ROOT_PLACEHOLDER = "@TABLE@"
"""Stands in JSON files of a log for the absolute path of the table's directory."""

_DAY = datetime(2021, 3, 4, 5, 6, 7, 8, tzinfo=UTC)
_VECTOR_FEATURES = Protocol(3, 7, ("deletionVectors",), ("deletionVectors",))


@dataclass(frozen=True)
class OwnTable:
    """One table being written."""

    store: LocalStore
    log: LogBuilder

    def data_file(self, path: str, rows: pa.Table, **fields: Any) -> Add:
        """Write a data file and describe it."""
        buffer = io.BytesIO()
        pq.write_table(rows, buffer, row_group_size=5)
        self.store.put(path, buffer.getvalue())
        described: dict[str, Any] = {"partition_values": {}, "stats": _statistics(rows), **fields}
        return Add(path=path, size=buffer.tell(), modification_time=1_600_000_000_000, data_change=True, **described)


Write = Callable[[OwnTable], Any]
"""Writes a table, and gives its rows: an Arrow table, or JSON objects where a column is a variant."""


def write_own_tables(directory: Path) -> None:
    """Write every table into a directory of its own."""
    for name, write in OWN_TABLES.items():
        store = LocalStore(directory / name)
        write(OwnTable(store, LogBuilder(store)))


def _rows(start: int = 0) -> pa.Table:
    ids = range(start, start + ROWS)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "small": pa.array([i % 7 for i in ids], pa.int8()),
            "price": pa.array([Decimal(i * 10 + 1).scaleb(-2) for i in ids], pa.decimal128(12, 2)),
            "ratio": pa.array([i / 3 for i in ids], pa.float64()),
            "flag": pa.array([None if i % 5 == 0 else i % 2 == 0 for i in ids], pa.bool_()),
            "name": pa.array([f"name {i}" for i in ids], pa.string()),
            "blob": pa.array([bytes([i % 256]) * 3 for i in ids], pa.binary()),
            "at": pa.array([_DAY.replace(second=i % 60) for i in ids], pa.timestamp("us", "UTC")),
            "on": pa.array([date(2020, 1, 1 + i % 28) for i in ids], pa.date32()),
            "tags": pa.array([[f"t{i}", None] for i in ids], pa.list_(pa.string())),
            "place": pa.array(
                [{"x": i, "y": [{"z": str(i)}]} for i in ids],
                pa.struct([("x", pa.int32()), ("y", pa.list_(pa.struct([("z", pa.string())])))]),
            ),
            "kinds": pa.array([[("k", i)] for i in ids], pa.map_(pa.string(), pa.int64())),
        }
    )


def _rows_of(*numbers: int, columns: Sequence[str] = ("id", "name")) -> pa.Table:
    """The rows of the files with these numbers."""
    return pa.concat_tables([_rows(number * ROWS).select(columns) for number in numbers])


def _statistics(rows: pa.Table) -> str:
    compared = [name for name in ("id", "name") if name in rows.column_names]
    values = {name: rows[name].to_pylist() for name in compared}
    bounds = {name: min(found) for name, found in values.items()}, {name: max(found) for name, found in values.items()}
    counts = {name: rows[name].null_count for name in rows.column_names}
    return json.dumps(
        {"numRecords": rows.num_rows, "minValues": bounds[0], "maxValues": bounds[1], "nullCount": counts}
    )


def _schema_string(schema: pa.Schema) -> str:
    return serialize_schema(schema_from_arrow(schema))


def _flat(table: OwnTable) -> pa.Table:
    table.log.create(_schema_string(_rows().schema))
    for number in range(3):
        add = table.data_file(f"part-{number}.parquet", _rows(number * ROWS))
        table.log.commit(CommitInfo({"operation": "WRITE", "timestamp": number}), add, Txn("app", number, number))
    table.log.commit(Remove("part-1.parquet", True, 5), DomainMetadata("d", "{}"), DomainMetadata("e", "", True))
    return _rows_of(0, 2, columns=_rows().column_names)


def _partitioned(table: OwnTable) -> pa.Table:
    types = {
        "p_int": pa.int32(), "p_text": pa.string(), "p_day": pa.date32(), "p_at": pa.timestamp("us", "UTC"),
        "p_price": pa.decimal128(38, 10), "p_flag": pa.bool_(), "p_blob": pa.binary(), "p_ratio": pa.float32(),
    }  # fmt: skip
    schema = pa.schema([*_rows().schema, *types.items()])
    table.log.create(_schema_string(schema), partition_columns=tuple(types))
    values: list[Mapping[str, str | None]] = [
        {"p_int": "1", "p_text": "a b/ä", "p_day": "2020-02-29", "p_at": "2020-01-01 00:00:00.1", "p_price": "1.5",
         "p_flag": "true", "p_blob": "ab", "p_ratio": "0.5"},
        {"p_int": "-5", "p_text": "", "p_day": "1500-01-01", "p_at": "2020-01-01T00:00:00.000001Z", "p_price": "-7",
         "p_flag": "false", "p_blob": "\x01", "p_ratio": "NaN"},
        dict.fromkeys(types),
    ]  # fmt: skip
    for number, partition in enumerate(values):
        path = f"p=%20{number}/part.parquet"
        add = table.data_file(path.replace("%20", " "), _rows(number * ROWS), partition_values=partition)
        table.log.commit(Add(**{**_fields(add), "path": path}))
    read = [
        (1, "a b/ä", date(2020, 2, 29), datetime(2020, 1, 1, 0, 0, 0, 100_000, UTC), Decimal("1.5"), True, b"ab", 0.5),
        (-5, None, date(1500, 1, 1), datetime(2020, 1, 1, 0, 0, 0, 1, UTC), Decimal(-7), False, b"\x01", math.nan),
        (None,) * len(types),
    ]
    rows = _rows_of(0, 1, 2, columns=_rows().column_names)
    for index, (name, of) in enumerate(types.items()):
        rows = rows.append_column(name, pa.array([value[index] for value in read for _ in range(ROWS)], of))
    return rows


def _fields(add: Add) -> dict[str, Any]:
    return {name: getattr(add, name) for name in Add.__slots__}


def _checkpointed(kind: str) -> Write:
    def write(table: OwnTable) -> pa.Table:
        schema = _rows().select(["id", "name"]).append_column("p", pa.array(["x"] * ROWS)).schema
        protocol = Protocol(3, 7, ("v2Checkpoint",), ("v2Checkpoint",)) if kind.startswith("v2") else None
        table.log.create(_schema_string(schema), protocol=protocol, partition_columns=("p",))
        for number in range(6):
            rows = _rows(number * ROWS).select(["id", "name"])
            add = table.data_file(f"part-{number}.parquet", rows, partition_values={"p": str(number % 2)})
            table.log.commit(add, Txn(f"app{number}", number), DomainMetadata(f"d{number}", "{}", number == 3))
        table.log.commit(Remove("part-0.parquet", True, 5, partition_values={"p": "0"}))
        match kind:
            case "v1":
                table.log.checkpoint(7, row_group_rows=4)
            case "parts":
                table.log.checkpoint(6, parts=3)
                table.log.delete_commits(5)
            case "v2_json":
                table.log.checkpoint_v2(6, file_format="json")
            case "v2_parquet":
                table.log.checkpoint_v2(6)
                table.log.hint(6)
            case "v2_inline":
                table.log.checkpoint_v2(6, sidecars=0, classic_name=True)
                table.log.delete_commits(6)
        add = table.data_file("part-new.parquet", _rows(900).select(["id", "name"]), partition_values={"p": "0"})
        table.log.commit(add, Remove("part-1.parquet", True, 6, partition_values={"p": "1"}))
        rows = pa.concat_tables([_rows_of(2, 3, 4, 5), _rows(900).select(["id", "name"])])
        return rows.append_column("p", pa.array([p for p in "01010" for _ in range(ROWS)]))

    return write


def _deletion_vectors(table: OwnTable) -> pa.Table:
    rows = _rows().select(["id", "name"])
    table.log.create(
        _schema_string(rows.schema),
        protocol=_VECTOR_FEATURES,
        configuration={"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"},
    )
    adds = [table.data_file(f"part-{number}.parquet", _rows(number * ROWS).select(rows.column_names))
            for number in range(4)]  # fmt: skip
    table.log.commit(*adds)
    stored, descriptors = bytearray(b"\x01"), []
    for deleted in ([1, 3, 5], [0, 11], [2, 1 << 33]):
        bitmap = DeletionVector(BitMap64(deleted)).serialize()
        descriptors.append((len(stored), len(bitmap), len(deleted)))
        stored += struct.pack(">i", len(bitmap)) + bitmap + struct.pack(">I", zlib.crc32(bitmap))
    number = UUID(int=0x0123456789ABCDEF0123456789ABCDEF)
    table.store.put(f"ab/deletion_vector_{number}.bin", bytes(stored))
    relative, absolute = "ab" + z85_encode(number.bytes), f"{ROOT_PLACEHOLDER}/ab/deletion_vector_{number}.bin"
    vectors = [
        DeletionVectorDescriptor("u", relative, descriptors[0][1], descriptors[0][2], descriptors[0][0]),
        DeletionVectorDescriptor("u", relative, descriptors[2][1], descriptors[2][2], descriptors[2][0]),
        DeletionVectorDescriptor("p", absolute, descriptors[1][1], descriptors[1][2], descriptors[1][0]),
        DeletionVector(BitMap64([4, 6])).inline_descriptor(),
    ]
    for add, vector in zip(adds, vectors, strict=True):
        table.log.commit(
            Remove(add.path, True, 5, True, {}, add.size),
            Add(**{**_fields(add), "deletion_vector": vector}),
        )
    gone = {1, 3, 5, ROWS + 2, 2 * ROWS, 2 * ROWS + 11, 3 * ROWS + 4, 3 * ROWS + 6}
    return _rows_of(0, 1, 2, 3).take([row for row in range(4 * ROWS) if row not in gone])


def _change_feed(table: OwnTable) -> pa.Table:
    rows = _rows().select(["id", "name"])
    table.log.create(_schema_string(rows.schema), configuration={"delta.enableChangeDataFeed": "true"})
    first = table.data_file("part-0.parquet", rows)
    table.log.commit(first)
    second = table.data_file("part-1.parquet", rows.slice(3))
    changes = rows.slice(0, 3).append_column("_change_type", pa.array(["delete"] * 3))
    change = table.data_file("_change_data/cdc-0.parquet", changes)
    table.log.commit(
        CommitInfo({"operation": "DELETE", "inCommitTimestamp": 1_700_000_000_000}),
        Remove("part-0.parquet", True, 5, True, {}, first.size),
        second,
        AddCdcFile("_change_data/cdc-0.parquet", {}, change.size),
    )
    return rows.slice(3)


def _mapped(mode: str) -> Write:
    def write(table: OwnTable) -> pa.Table:
        inner = {"name": "x", "type": "long", "nullable": True, "metadata": _mapping(3, "col-x")}
        fields = [
            {"name": "id", "type": "long", "nullable": True, "metadata": _mapping(1, "col-id")},
            {"name": "place", "type": {"type": "struct", "fields": [inner]}, "nullable": True,
             "metadata": _mapping(2, "col-place")},
            {"name": "part", "type": "string", "nullable": True, "metadata": _mapping(4, "col-part")},
        ]  # fmt: skip
        table.log.create(
            json.dumps({"type": "struct", "fields": fields}),
            protocol=Protocol(2, 5),
            partition_columns=("part",),
            configuration={"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "4"},
        )
        number = {b"PARQUET:field_id": b"1"}
        nested = pa.struct([pa.field("col-x", pa.int64(), metadata={b"PARQUET:field_id": b"3"})])
        schema = pa.schema(
            [
                pa.field("col-id", pa.int64(), metadata=number),
                pa.field("col-place", nested, metadata={b"PARQUET:field_id": b"2"}),
            ]
        )
        ids = list(range(ROWS))
        arrays = [pa.array(ids, pa.int64()), pa.array([{"col-x": i} for i in ids], nested)]
        rows = pa.Table.from_arrays(arrays, schema=schema)
        stats = json.dumps({"numRecords": ROWS, "minValues": {"col-id": 0}, "maxValues": {"col-id": ROWS - 1}})
        table.log.commit(table.data_file("part-0.parquet", rows, partition_values={"col-part": "a"}, stats=stats))
        of = pa.schema([("id", pa.int64()), ("place", pa.struct([("x", pa.int64())])), ("part", pa.string())])
        return pa.Table.from_pylist([{"id": i, "place": {"x": i}, "part": "a"} for i in ids], of)

    return write


def _mapping(number: int, name: str) -> dict[str, Any]:
    return {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": name}


def _widened(table: OwnTable) -> pa.Table:
    def schema(of: str, changes: Sequence[Mapping[str, Any]] = ()) -> str:
        metadata = {"delta.typeChanges": list(changes)} if changes else {}
        return json.dumps({"type": "struct", "fields": [{"name": "id", "type": of, "nullable": True,
                                                         "metadata": metadata}]})  # fmt: skip

    protocol = Protocol(3, 7, ("typeWidening",), ("typeWidening",))
    table.log.create(schema("short"), protocol=protocol, configuration={"delta.enableTypeWidening": "true"})
    table.log.commit(table.data_file("part-0.parquet", pa.table({"id": pa.array(range(ROWS), pa.int16())})))
    metadata = table.log.model().metadata
    assert metadata is not None
    changes = [{"toType": "long", "fromType": "short", "tableVersion": 2}]
    table.log.commit(type(metadata)(metadata.id, schema("long", changes), configuration=metadata.configuration))
    table.log.commit(table.data_file("part-1.parquet", pa.table({"id": pa.array(range(ROWS), pa.int64())})))
    return pa.table({"id": pa.array([*range(ROWS), *range(ROWS)], pa.int64())})


def _variants(table: OwnTable) -> list[dict[str, Any]]:
    texts = ['{"a": 1, "b": [1, "x", null, {"c": 1.5}]}', "7", None, "null", '"long text long text"', '[{"a": {}}]']
    values = json_to_variant(pa.array(texts * 2, pa.string()))
    rows = pa.table({"id": pa.array(range(ROWS), pa.int64()), "v": values})
    fields = [{"name": "id", "type": "long", "nullable": True, "metadata": {}},
              {"name": "v", "type": "variant", "nullable": True, "metadata": {}}]  # fmt: skip
    table.log.create(
        json.dumps({"type": "struct", "fields": fields}), protocol=Protocol(3, 7, ("variantType",), ("variantType",))
    )
    table.log.commit(table.data_file("part-0.parquet", rows, stats=json.dumps({"numRecords": ROWS})))
    metadata = pa.array([b"\x01\x01\x00\x01a"] * 4, pa.binary())
    typed = pa.StructArray.from_arrays([pa.array([None, b"\x0c\x05", None, None]), pa.array([1, None, 3, None])],
                                       ["value", "typed_value"])  # fmt: skip
    shredded = pa.StructArray.from_arrays(
        [metadata, pa.array([None, None, b"\x00", None], pa.binary()), pa.StructArray.from_arrays([typed], ["a"],
         mask=pa.array([False, False, True, False]))], ["metadata", "value", "typed_value"])  # fmt: skip
    rows = pa.table({"id": pa.array(range(4), pa.int64()), "v": shredded})
    table.log.commit(table.data_file("part-1.parquet", rows, stats=json.dumps({"numRecords": 4})))
    values = [*(text and json.loads(text) for text in texts * 2), {"a": 1}, {"a": 5}, None, {}]
    return [{"id": number % ROWS, "v": value} for number, value in enumerate(values)]


def _checksums(table: OwnTable) -> pa.Table:
    """In-commit timestamps, and a version checksum for each version."""
    rows = _rows().select(["id", "name"])
    features = ("appendOnly", "inCommitTimestamp")
    table.log.create(
        _schema_string(rows.schema),
        protocol=Protocol(3, 7, (), features),
        configuration={"delta.enableInCommitTimestamps": "true"},
    )
    model, size = table.log.model(), 0
    assert model.protocol is not None and model.metadata is not None
    for number in range(4):
        add = table.data_file(f"part-{number}.parquet", _rows(number * ROWS).select(rows.column_names))
        info = CommitInfo({"operation": "WRITE", "inCommitTimestamp": 1_700_000_000_000 + number})
        version, size = table.log.commit(info, add, Txn("app", number)), size + add.size
        checksum = {
            "tableSizeBytes": size, "numFiles": number + 1, "numMetadata": 1, "numProtocol": 1,
            "inCommitTimestampOpt": 1_700_000_000_000 + number,
            "setTransactions": [{"appId": "app", "version": number}],
            "domainMetadata": [], **json.loads(serialize_action(model.metadata)),
            **json.loads(serialize_action(model.protocol)),
        }  # fmt: skip
        checksum["metadata"] = checksum.pop("metaData")
        table.store.put(f"_delta_log/{version:020d}.crc", json.dumps(checksum).encode())
    return _rows_of(0, 1, 2, 3)


def _row_tracking(table: OwnTable) -> pa.Table:
    rows = _rows().select(["id", "name"])
    table.log.create(
        _schema_string(rows.schema),
        protocol=Protocol(1, 7, None, ("domainMetadata", "rowTracking")),
        configuration={
            "delta.enableRowTracking": "true",
            "delta.rowTracking.materializedRowIdColumnName": "_row-id-1",
            "delta.rowTracking.materializedRowCommitVersionColumnName": "_row-version-1",
        },
    )
    for number in range(3):
        part = _rows(number * ROWS).select(rows.column_names)
        if number == 2:
            ids = [None if i % 2 else 100 + i for i in range(ROWS)]
            part = part.append_column("_row-id-1", pa.array(ids, pa.int64()))
        path, first = f"part-{number}.parquet", number * ROWS
        add = table.data_file(path, part, base_row_id=first, default_row_commit_version=number + 1)
        watermark = json.dumps({"rowIdHighWaterMark": first + ROWS - 1})
        table.log.commit(add, DomainMetadata("delta.rowTracking", watermark))
    return _rows_of(0, 1, 2)


def _compactions(table: OwnTable) -> pa.Table:
    rows = _rows().select(["id", "name"])
    table.log.create(_schema_string(rows.schema))
    for number in range(8):
        add = table.data_file(f"part-{number}.parquet", _rows(number * ROWS).select(rows.column_names))
        gone = [Remove(f"part-{number - 1}.parquet", True, 5)] if number % 3 == 2 else []
        table.log.commit(add, *gone, Txn(f"app{number % 2}", number), DomainMetadata("d", str(number), number == 5))
    table.log.compact(1, 3)
    table.log.compact(4, 7)
    return _rows_of(0, 2, 3, 5, 6, 7)


OWN_TABLES: Mapping[str, Write] = {
    "flat": _flat,
    "partitioned": _partitioned,
    "checkpoint-v1": _checkpointed("v1"),
    "checkpoint-parts": _checkpointed("parts"),
    "checkpoint-v2-json": _checkpointed("v2_json"),
    "checkpoint-v2-parquet": _checkpointed("v2_parquet"),
    "checkpoint-v2-inline": _checkpointed("v2_inline"),
    "deletion-vectors": _deletion_vectors,
    "change-feed": _change_feed,
    "mapped-name": _mapped("name"),
    "mapped-id": _mapped("id"),
    "widened": _widened,
    "variants": _variants,
    "checksums": _checksums,
    "row-tracking": _row_tracking,
    "compactions": _compactions,
}
NUM_OWN_TABLES = len(OWN_TABLES)
