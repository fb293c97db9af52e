"""Rows are cut by bytes: on their way into files, out of them, and where values are computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable
from delta_orch.engines import batch_bytes, conform
from delta_orch.engines.batch_bytes import cut_by_bytes
from delta_orch.errors import SchemaMismatchError
from tests.families import family

COUNT = 600
RANDOM = np.random.default_rng(7)
TEXTS = [None if i % 7 == 3 else "x" * int(RANDOM.integers(0, 400)) + str(i) for i in range(COUNT)]
BYTES = [text and text.encode() for text in TEXTS]
NAMES = pa.array(TEXTS).dictionary_encode()
LARGE = pa.array(TEXTS, pa.large_string())
TENS = pa.array([*range(0, COUNT, 10), COUNT], pa.int32())
KINDS: dict[str, pa.Array] = {
    "plain": pa.array(TEXTS),
    "large_string": LARGE,
    "large_binary": pa.array(BYTES, pa.large_binary()),
    "string_view": pa.array(TEXTS, pa.string_view()),
    "binary_view": pa.array(BYTES, pa.binary_view()),
    "dictionary": NAMES,
    "dictionary of large text": pa.DictionaryArray.from_arrays(NAMES.indices, NAMES.dictionary.cast(pa.large_string())),
    "dictionary of views": pa.DictionaryArray.from_arrays(
        NAMES.indices, pa.array(NAMES.dictionary.to_pylist(), pa.string_view())
    ),
    "dictionary with null": pa.DictionaryArray.from_arrays(
        pa.array([i % 4 for i in range(COUNT)], pa.int32()), pa.array(["a" * 300, "b", None, ""])
    ),
    "narrow dictionary": pa.DictionaryArray.from_arrays(
        pa.array([i % 2 for i in range(COUNT)], pa.uint8()), pa.array(["a" * 300, "b"])
    ),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array(range(3, COUNT + 1, 3), pa.int32()), pa.array(TEXTS[::3])),
    "struct": pa.StructArray.from_arrays([LARGE, NAMES], ["a", "b"]),
    "list": pa.ListArray.from_arrays(TENS, NAMES),
    "large_list": pa.LargeListArray.from_arrays(TENS.cast(pa.int64()), LARGE),
    "fixed_size_list": pa.FixedSizeListArray.from_arrays(LARGE, 10),
    "list_view": pa.array([TEXTS[i : i + 10] for i in range(0, COUNT, 10)], pa.list_view(pa.large_string())),
    "map": pa.MapArray.from_arrays(TENS, pa.array([str(i) for i in range(COUNT)], pa.large_string()), LARGE),
}


@pytest.fixture(params=[100, 5000])
def small_batches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Batches of few bytes, and 32-bit offsets that reach as far as a few rows need."""
    monkeypatch.setattr(batch_bytes, "BATCH_BYTES", request.param)
    monkeypatch.setattr(conform, "_MOST_BYTES", 10_000)
    return int(request.param)


@pytest.mark.parametrize("place", [(0, COUNT), (5, 37), (10, 10)])
@pytest.mark.parametrize("name", KINDS)
def test_text_of_every_kind_is_written(tmp_path: Path, small_batches: int, name: str, place: tuple[int, int]) -> None:
    values = KINDS[name].slice(*place)
    rows = pa.record_batch({"id": pa.array(np.arange(len(values))), "v": values})
    assert sum(part.num_rows for part in cut_by_bytes(rows)) == len(values)
    DeltaTable(tmp_path / "t").append(rows)
    found = DeltaTable(tmp_path / "t").snapshot().scan().to_arrow().sort_by("id")
    assert found["v"].to_pylist() == values.to_pylist()


PLAIN = {
    name: pa.binary() if "binary" in name else pa.string()
    for name in KINDS
    if "list" not in name and name not in ("struct", "map")
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_batch_takes_what_it_may_or_is_one_row(small_batches: int, name: str) -> None:
    for part in cut_by_bytes(pa.record_batch({"v": KINDS[name]})):
        plain = pa.array(part.column(0).to_pylist(), PLAIN[name])
        # Offsets and validity are no part of the values.
        assert part.num_rows == 1 or plain.nbytes <= small_batches + 5 * part.num_rows + 5


@pytest.mark.parametrize("kind", [pa.large_string(), pa.large_list(pa.large_string())])
def test_a_value_that_no_file_holds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType
) -> None:
    monkeypatch.setattr(conform, "_MOST_BYTES", 1000)
    value: Any = "x" * 1001 if kind == pa.large_string() else ["x" * 600, "y" * 600]
    with pytest.raises(SchemaMismatchError, match="more than 1000 bytes"):
        DeltaTable(tmp_path / "t").append(pa.table({"v": pa.array([value], kind)}))
    assert not (tmp_path / "t/_delta_log").exists()


# Files whose texts are repeated.


def _repeating(root: Path, count: int = 20_000) -> tuple[DeltaTable, list[str | None]]:
    texts = [f"{i}" * 2000 for i in range(5)]
    places = pa.array([None if i % 11 == 5 else i % 5 for i in range(count)], pa.int32())
    body = pa.DictionaryArray.from_arrays(places, pa.array(texts))
    table = DeltaTable(root)
    table.append(pa.table({"id": pa.array(np.arange(count)), "n": pa.array(np.zeros(count, np.int64)), "body": body}))
    return table, body.to_pylist()


def _bodies(table: DeltaTable) -> list[str | None]:
    found: list[str | None] = table.snapshot().scan(["id", "body"]).to_arrow().sort_by("id")["body"].to_pylist()
    return found


def test_what_is_read_in_dictionaries_comes_out_as_plain_text_in_small_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, bodies = _repeating(tmp_path / "t")
    monkeypatch.setattr(batch_bytes, "BATCH_BYTES", 1_000_000)
    batches = list(table.snapshot().scan().to_reader())
    assert max(batch.nbytes for batch in batches) < 1_500_000
    assert {batch.schema.field("body").type for batch in batches} == {pa.string()}
    assert _bodies(table) == bodies
    kept = table.snapshot().scan(where="body LIKE '1%'").to_arrow()
    assert kept.num_rows == sum(1 for body in bodies if body is not None and body[0] == "1")


CHANGES: dict[str, tuple[dict[str, str], Any]] = {
    "another column": ({"n": "n + 1"}, lambda body: body),
    "longer": ({"body": "concat(body, '!')"}, lambda body: body and body + "!"),
    "sometimes null": ({"body": "nullif(left(body, 1), '2')"}, lambda body: (body or "")[:1].strip("2") or None),
    "null becomes text": ({"body": "coalesce(body, 'none')"}, lambda body: body or "none"),
    "a constant": ({"body": "'" + "c" * 9000 + "'"}, lambda _: "c" * 9000),
    "far longer": ({"body": f"'{'x' * 9000}'"}, lambda _: "x" * 9000),
    "of two columns": ({"body": "concat(body, CAST(n AS STRING))"}, lambda body: body and body + "0"),
}  # fmt: skip


@family("batch_size", [None, 1_000_000], every=2)
@pytest.mark.parametrize("name", CHANGES)
def test_repeated_texts_are_updated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, batch_size: int | None
) -> None:
    table, bodies = _repeating(tmp_path / "t")
    if batch_size is not None:
        monkeypatch.setattr(batch_bytes, "BATCH_BYTES", batch_size)
        monkeypatch.setattr("delta_orch.engines.local.spool.MEMORY_BYTES", batch_size)
    change, expected = CHANGES[name]
    done = table.update(change)
    assert done.operation_metrics["numUpdatedRows"] == len(bodies)
    assert _bodies(table) == [expected(body) for body in bodies]


def test_repeated_texts_are_merged_and_compacted(tmp_path: Path) -> None:
    table, bodies = _repeating(tmp_path / "t")
    source = pa.table({"id": pa.array([1, 2, 30_000]), "n": pa.array([7, 7, 7]), "body": ["new", None, "last"]})
    table.upsert(source, ["id"])
    table.delete("id = 3")
    table.optimize()
    bodies[1:4] = ["new", None]
    assert _bodies(table) == [*bodies, "last"]


def test_a_value_that_no_row_has_is_not_computed(tmp_path: Path) -> None:
    """A dictionary may hold texts that no row has any more."""
    table, _ = _repeating(tmp_path / "t")
    table.delete("body LIKE '3%'")
    table.update({"n": "CAST(replace(substring(body, 1, 1), '3', 'x') AS BIGINT)"})
    assert set(table.snapshot().scan(["n"]).to_arrow()["n"].to_pylist()) == {None, 0, 1, 2, 4}


# What is written is read.


def test_files_end_before_readers_would_refuse_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delta_orch.storage.expansion._DEFAULT_BYTES", 4_000_000)
    monkeypatch.setattr("delta_orch.storage.expansion._MOST_TIMES", 10)
    monkeypatch.setattr("delta_orch.engines.local.file_writer._ALWAYS_READ", 1_000_000)
    monkeypatch.setattr("delta_orch.engines.local.write.MAX_PLAIN_BYTES", 1_000_000)
    monkeypatch.setattr(batch_bytes, "BATCH_BYTES", 1_000_000)
    table, bodies = _repeating(tmp_path / "t")
    assert _bodies(table) == bodies
    table.update({"body": "concat(body, '!')"})
    table.optimize()
    table.upsert(pa.table({"id": pa.array([1]), "n": pa.array([7]), "body": ["new"]}), ["id"])
    assert [body and body[0] for body in _bodies(table)] == [
        "n" if i == 1 else body and body[0] for i, body in enumerate(bodies)
    ]
    assert len(list((tmp_path / "t").glob("*.parquet"))) > 3


def test_statistics_of_dictionaries_are_those_of_their_rows(tmp_path: Path) -> None:
    """Texts of a dictionary that no row has are no bounds."""
    body = pa.DictionaryArray.from_arrays(pa.array([1, 2] * 50, pa.int32()), pa.array(["a", "b", "c", "d"]))
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"v": body}))
    [path] = (tmp_path / "t").glob("*.parquet")
    told = pq.read_metadata(path).row_group(0).column(0).statistics
    assert (told.min, told.max) == ("b", "c")
    assert table.snapshot().scan(where="v = 'd'").to_arrow().num_rows == 0


# More than 2 GiB, for real.


@pytest.mark.long
def test_more_than_two_gibibytes_in_one_chunk_and_a_slice_of_it(tmp_path: Path) -> None:
    text, count = "x" * 131_000, 17_000
    data = pa.py_buffer(text.encode() * count)
    offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int64) * len(text))
    body = pa.Array.from_buffers(pa.large_string(), count, [None, offsets, data])
    assert body.nbytes > 1 << 31
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": pa.array(np.arange(count)), "body": body}))
    table.append(pa.table({"id": pa.array(np.arange(10) + count), "body": body.slice(count - 10)}))
    lengths = table.snapshot().scan(["id", "body"], where=f"id >= {count - 5}").to_arrow()
    assert lengths["body"].to_pylist() == [text] * 15
    assert sum(batch.num_rows for batch in table.snapshot().scan().to_reader()) == count + 10
