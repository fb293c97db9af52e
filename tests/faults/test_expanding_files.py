"""Small files whose rows take far more memory than their size lets expect end in errors before they are decoded."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import CorruptLogError, TableError
from delta_orch.storage import expansion
from delta_orch.storage.expansion import BYTES_VARIABLE, ensure_bounded
from delta_orch.storage.parquet_footer import read_footer

NUM_ROWS = 20_000
LONG = "a" * 100_000
TEXT = pa.dictionary(pa.int32(), pa.string())


def _repeated(value: Any, kind: pa.DataType) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0] * NUM_ROWS, pa.int32()), pa.array([value], kind))


def _struct() -> pa.Array:
    return pa.StructArray.from_arrays([_repeated(LONG, pa.string())], names=["deep"])


def _list() -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(range(NUM_ROWS + 1), pa.int32()), _repeated(LONG, pa.string()))


def _map() -> pa.Array:
    keys = pa.array(["k"] * NUM_ROWS)
    return pa.MapArray.from_arrays(pa.array(range(NUM_ROWS + 1), pa.int32()), keys, _repeated(LONG, pa.string()))


BOMBS: dict[str, tuple[pa.Array, Any]] = {
    "text": (_repeated(LONG, pa.string()), pa.array([], pa.string())),
    "binary": (_repeated(LONG.encode(), pa.binary()), pa.array([], pa.binary())),
    "struct": (_struct(), pa.array([], pa.struct([("deep", pa.string())]))),
    "list": (_list(), pa.array([], pa.list_(pa.string()))),
    "map": (_map(), pa.array([], pa.map_(pa.string(), pa.string()))),
}


def _table(root: Path, values: pa.Array, empty: pa.Array, **options: Any) -> DeltaTable:
    """A table whose only file was replaced by one with these values."""
    table = DeltaTable(root)
    # A row that is never read.
    table.append(pa.table({"id": pa.array([1], pa.int64()), "v": pa.nulls(1, empty.type)}))
    table.wait_for_upkeep()
    [path] = root.glob("*.parquet")
    ids = pa.array([0] * len(values), pa.int64())
    rows = pa.table({"id": ids, "v": values})
    pq.write_table(rows, path, **{"compression": "zstd", "store_schema": False, "write_statistics": False, **options})
    commit = root / "_delta_log/00000000000000000000.json"
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"].update(size=path.stat().st_size, stats=json.dumps({"numRecords": len(values)}))
    commit.write_text("\n".join(map(json.dumps, lines)))
    for checksum in (root / "_delta_log").glob("*.crc"):
        checksum.unlink()
    return DeltaTable(root)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("name", BOMBS)
def test_a_value_that_many_rows_repeat(tmp_path: Path, name: str, groups: int) -> None:
    values, empty = BOMBS[name]
    table = _table(tmp_path / "t", values, empty, row_group_size=NUM_ROWS // groups)
    assert next((tmp_path / "t").glob("*.parquet")).stat().st_size < 100_000
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    for where in (None, "id = 1", "length(CAST(id AS STRING)) = 1"):
        with pytest.raises(TableError, match=f"(?s)more than .*{BYTES_VARIABLE}"):
            table.snapshot().scan(where=where).to_arrow()
    with pytest.raises(TableError):
        table.delete("id = 0 AND v IS NULL")
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()
    assert pa.total_allocated_bytes() - before < 20_000_000
    # The other columns can be read.
    assert table.snapshot().scan(["id"]).to_arrow().num_rows == NUM_ROWS
    assert table.version() == 0


def test_a_user_who_wants_such_rows_gets_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = _table(tmp_path / "t", _repeated("a" * 1000, pa.string()), pa.array([], pa.string()))
    assert table.snapshot().scan().to_arrow()["v"].nbytes > NUM_ROWS * 1000
    monkeypatch.setenv(BYTES_VARIABLE, "1000000")
    with pytest.raises(TableError, match="more than"):
        table.snapshot().scan().to_arrow()
    monkeypatch.setenv(BYTES_VARIABLE, "100000000")
    assert table.snapshot().scan().to_arrow().num_rows == NUM_ROWS


def test_rows_without_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 1_000_000, pa.int32()), pa.array([7], pa.int64()))
    table = _table(tmp_path / "t", values, pa.array([], pa.int64()))
    assert table.snapshot().scan().to_arrow().num_rows == 1_000_000
    monkeypatch.setenv(BYTES_VARIABLE, "1000000")
    monkeypatch.setattr("delta_orch.storage.expansion._MOST_TIMES", 1000)
    with pytest.raises(TableError, match="more than"):
        table.snapshot().scan().to_arrow()


@pytest.mark.parametrize("seed", range(12))
def test_rows_of_honest_writers_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """With one long value among many, of which its dictionary alone does not tell how often it occurs."""
    number = 9000 + 500 * seed
    kinds = 1 + seed**3
    texts = [f"name {(i * 7919) % kinds}" for i in range(number)]
    texts[number // 2] = "b" * 50_000
    values: Any = pa.array(texts)
    if seed % 3 == 1:
        values = pa.ListArray.from_arrays(pa.array(range(number + 1), pa.int32()), values)
    if seed % 3 == 2:
        values = pa.StructArray.from_arrays([values], names=["deep"])
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"v": values}), path, data_page_version=f"{1 + seed % 2}.0", use_dictionary=seed % 4 < 3)
    monkeypatch.setenv(BYTES_VARIABLE, "1000000")
    with pa.OSFile(str(path)) as source:
        footer = read_footer(source)
        ensure_bounded(source, footer, [0], path="f")
        # What it says is what Arrow then takes.
        monkeypatch.setenv(BYTES_VARIABLE, "1")
        monkeypatch.setattr("delta_orch.storage.expansion._MOST_TIMES", 0)
        with pytest.raises(TableError) as caught:
            ensure_bounded(source, footer, [0], path="f")
    told = int(str(caught.value).split("take ")[1].split()[0])
    assert 0 < told <= 60_000 * number


def test_a_dictionary_behind_rows_without_one(tmp_path: Path) -> None:
    """Arrow takes a dictionary wherever it comes: the first page tells nothing."""
    pages = b""
    for use_dictionary in (False, True):
        path = tmp_path / f"{use_dictionary}.parquet"
        rows = pa.table({"v": ["x" * 1000] * 10})
        pq.write_table(rows, path, use_dictionary=use_dictionary, compression="none", data_page_version="2.0")
        chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        pages += path.read_bytes()[start : start + chunk.total_compressed_size]
    both = SimpleNamespace(data_page_offset=0, dictionary_page_offset=None, total_compressed_size=len(pages))
    assert expansion._pages_of(pa.BufferReader(pages), both).longest == 1000


@pytest.mark.parametrize("name", ["stats", "path", "tags"])
def test_a_checkpoint_that_takes_far_more_than_its_size(tmp_path: Path, name: str) -> None:
    """Its memory is bounded before a batch is decoded."""
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": [1]}))
    table.checkpoint()
    log = tmp_path / "t/_delta_log"
    [checkpoint] = log.glob("*.checkpoint.parquet")
    for checksum in log.glob("*.crc"):
        checksum.unlink()
    honest = pq.read_table(checkpoint)
    # Every row of a checkpoint holds an action.
    honest = honest.filter(pc.is_null(honest["add"]))
    count, long = 100_000, LONG * 4

    def many(value: Any, kind: pa.DataType) -> pa.Array:
        return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([value], kind))

    kinds = {field.name: field.type for field in honest.schema.field("add").type}
    columns = {
        "path": many(long if name == "path" else "x", pa.string()),
        "size": pa.array([1] * count, pa.int64()),
        "stats": many(long if name == "stats" else "{}", pa.string()),
    }
    if name == "tags":
        keys = pa.array(["k"] * count)
        columns["tags"] = pa.MapArray.from_arrays(pa.array(range(count + 1), pa.int32()), keys, many(long, pa.string()))
    columns |= {other: pa.nulls(count, kind) for other, kind in kinds.items() if other not in columns}
    adds = pa.StructArray.from_arrays(list(columns.values()), list(columns))
    others = [field for field in honest.schema if field.name != "add"]
    schema = pa.schema([pa.field("add", adds.type), *others])
    with pq.ParquetWriter(checkpoint, schema, compression="zstd") as writer:
        writer.write_table(pa.table([adds, *(pa.nulls(count, field.type) for field in others)], schema=schema))
        rest = [honest[field.name] for field in others]
        writer.write_table(pa.table([pa.nulls(honest.num_rows, adds.type), *rest], schema=schema))
    for act in (
        lambda t: t.snapshot().files(), lambda t: list(t.snapshot().iter_files()),
        lambda t: t.delete("id = 1"),
    ):  # fmt: skip
        with pytest.raises(CorruptLogError, match="bytes of memory"):
            act(DeltaTable(table.uri))
    assert not DeltaTable(table.uri).fsck().ok
