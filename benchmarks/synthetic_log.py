"""Logs of tables that were never written: real in every byte, without data files. Made in seconds, kept for later."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_SCHEMA_STRING = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": data_type, "nullable": True, "metadata": {}}
            for name, data_type in (("id", "long"), ("value", "double"), ("name", "string"), ("date", "date"))
        ],
    }
)
_CREATED_MS = 1_700_000_000_000
_METADATA = {
    "id": "6f6a5f0e-9d3c-4d0a-8f0b-0d7a5a1c2b3e",
    "format": {"provider": "parquet", "options": {}},
    "schemaString": _SCHEMA_STRING,
    "partitionColumns": ["date"],
    "configuration": {},
    "createdTime": _CREATED_MS,
}
_PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
FIRST_DAY = np.datetime64("2020-01-01")
FILES_PER_DATE = 1000
ROWS_PER_FILE = 1000
_PIECE = 1_000_000


def cached(directory: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The table of that name below `directory`, made unless a complete one is there."""
    path = directory / name
    if not (path / "_complete").exists():
        unfinished = directory / f".{name}.{os.getpid()}"
        (unfinished / "_delta_log").mkdir(parents=True)
        make(unfinished)
        (unfinished / "_complete").touch()
        shutil.rmtree(path, ignore_errors=True)
        unfinished.rename(path)
    return path


def write_large_checkpoint(
    table: Path, num_files: int, row_group_rows: int, tail_commits: int, *, version: int = 100, kept_commits: int = 1
) -> None:
    """A V1 checkpoint at `version` with `num_files` live files of 1,000 dates and JSON statistics, and commits after it
    that each remove 25 of them and add 50. `kept_commits` of those up to the checkpoint are still there."""
    log = table / "_delta_log"
    checkpoint = log / f"{version:020d}.checkpoint.parquet"
    pieces = (_adds(min(_PIECE, num_files - first), seed=1, first=first) for first in range(0, num_files, _PIECE))
    paths = _write_checkpoint(checkpoint, pieces, row_group_rows)
    hint = {"version": version, "size": num_files + 2, "sizeInBytes": checkpoint.stat().st_size}
    (log / "_last_checkpoint").write_text(json.dumps(hint))
    for kept in range(version - kept_commits + 1, version + 1):
        (log / f"{kept:020d}.json").write_bytes(_lines([_commit_info(kept)]))
    new = _adds(50 * tail_commits, seed=2)
    for n in range(tail_commits):
        removed = [paths[i * (len(paths) // 26) + n].as_py() for i in range(25)]
        actions = [_commit_info(version + 1 + n)]
        actions += [
            {"remove": {"path": p, "deletionTimestamp": 1_700_000_000_000, "dataChange": True}} for p in removed
        ]
        actions += [{"add": _add_json(row)} for row in new.slice(50 * n, 50).to_pylist()]
        (log / f"{version + 1 + n:020d}.json").write_bytes(_lines(actions))


def write_many_commits(table: Path, num_commits: int) -> None:
    """Commits of one small file each, every tenth with a `txn`, and no checkpoint."""
    log = table / "_delta_log"
    first: list[dict[str, object]] = [_commit_info(0), {"protocol": _PROTOCOL}, {"metaData": _METADATA}]
    (log / f"{0:020d}.json").write_bytes(_lines(first))
    rows = _adds(num_commits, seed=3).to_pylist()
    for version in range(1, num_commits):
        actions: list[dict[str, object]] = [_commit_info(version), {"add": _add_json(rows[version])}]
        if version % 10 == 0:
            actions.append({"txn": {"appId": f"app-{version % 70}", "version": version}})
        (log / f"{version:020d}.json").write_bytes(_lines(actions))


def _adds(count: int, seed: int, first: int = 0) -> pa.StructArray:
    """`add` actions as a checkpoint holds them; `first` is the number of the first file."""
    number = np.arange(first, first + count, dtype=np.int64)
    # In the order of commits: date after date.
    day = (FIRST_DAY + number // FILES_PER_DATE).astype("datetime64[D]")
    date = pa.array(day).cast(pa.string())
    unique = np.random.default_rng(seed + first).bytes(16 * count).hex().encode()
    unique_ids = pa.Array.from_buffers(pa.binary(32), count, [None, pa.py_buffer(unique)])
    unique_ids = unique_ids.cast(pa.binary()).cast(pa.string())
    path = _join("date=", date, "/part-", _padded(number), "-", unique_ids, ".c000.snappy.parquet")
    low = pa.array(number * ROWS_PER_FILE)
    high = pa.array(number * ROWS_PER_FILE + ROWS_PER_FILE - 1)
    stats = _join(
        f'{{"numRecords":{ROWS_PER_FILE},"minValues":{{"id":', low.cast(pa.string()),
        ',"value":0.25,"name":"customer-', _padded(number), '"},"maxValues":{"id":', high.cast(pa.string()),
        ',"value":999.75,"name":"customer-', _padded(number + 7), '"},"nullCount":{"id":0,"value":0,"name":3}}',
    )  # fmt: skip
    offsets = pa.array(np.arange(count + 1, dtype=np.int32))
    partition_values = pa.MapArray.from_arrays(offsets, _repeat("date", count), date)
    return pa.StructArray.from_arrays(
        [
            path,
            partition_values,
            pa.array(20_000 + number % 5000),
            pa.array(1_700_000_000_000 + number),
            pa.array(np.ones(count, dtype=bool)),
            stats,
        ],
        ["path", "partitionValues", "size", "modificationTime", "dataChange", "stats"],
    )


def _write_checkpoint(path: Path, pieces: Iterator[pa.StructArray], row_group_rows: int) -> pa.StringArray:
    """Write the files piece by piece, so that a log of any size can be made. Returns: the paths of the first piece."""
    adds = next(pieces)
    small = pa.struct(
        [
            ("id", pa.string()),
            ("format", pa.struct([("provider", pa.string()), ("options", pa.map_(pa.string(), pa.string()))])),
            ("schemaString", pa.string()),
            ("partitionColumns", pa.list_(pa.string())),
            ("configuration", pa.map_(pa.string(), pa.string())),
            ("createdTime", pa.int64()),
        ]
    )
    protocol = pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())])
    txn = pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])
    remove = pa.struct([("path", pa.string()), ("deletionTimestamp", pa.int64()), ("dataChange", pa.bool_())])
    schema = pa.schema(
        [("txn", txn), ("add", adds.type), ("remove", remove), ("metaData", small), ("protocol", protocol)]
    )
    metadata = {**_METADATA, "configuration": [], "format": {"provider": "parquet", "options": []}}
    head = pa.Table.from_pylist([{"protocol": _PROTOCOL}, {"metaData": metadata}], schema=schema)
    with pq.ParquetWriter(path, schema, compression="snappy") as writer:
        rows = pa.concat_tables([head, _rows(schema, adds)]).combine_chunks()
        writer.write_table(rows, row_group_size=row_group_rows)
        for piece in pieces:
            writer.write_table(_rows(schema, piece), row_group_size=row_group_rows)
    return adds.field("path")


def _rows(schema: pa.Schema, adds: pa.StructArray) -> pa.Table:
    return pa.table([_nulls_or(field, adds) for field in schema], schema=schema)


def _nulls_or(field: pa.Field, adds: pa.StructArray) -> pa.Array:
    return adds if field.name == "add" else pa.nulls(len(adds), field.type)


def _add_json(row: dict[str, object]) -> dict[str, object]:
    return {**row, "partitionValues": dict(row["partitionValues"])}  # type: ignore[call-overload]


def _commit_info(version: int) -> dict[str, object]:
    return {
        "commitInfo": {
            "timestamp": 1_700_000_000_000 + version,
            "operation": "WRITE",
            "operationParameters": {"mode": "Append", "partitionBy": '["date"]'},
            "engineInfo": "synthetic",
            "txnId": f"{version:032x}",
        }
    }


def _lines(actions: list[dict[str, object]]) -> bytes:
    return "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()


def _join(*parts: str | pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def _padded(number: np.ndarray) -> pa.Array:
    return pc.utf8_lpad(pa.array(number).cast(pa.string()), width=7, padding="0")


def _repeat(value: str, count: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, dtype=np.int32)), [value]).cast(pa.string())
