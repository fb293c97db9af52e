"""Read, update, merge and compact rows beside long texts that are repeated: 2.4 GB as plain text, 0.4 MB in files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.row_changes import link
from benchmarks.synthetic_log import cached

NUM_ROWS, NUM_FILES, NUM_TEXTS, TEXT_LENGTH = 140_000, 4, 7, 17_000
TITLE = f"{NUM_ROWS:,} rows with one of {NUM_TEXTS} texts of {TEXT_LENGTH:,} characters"
RESULTS_MAY_DIFFER = True
MOST_ROUNDS = 3

Run = Callable[[Path], object]


def prepare(directory: Path) -> Path:
    """The table, written by delta-rs."""

    def make(table: Path) -> None:
        import random

        import numpy as np
        import pyarrow as pa
        from deltalake import write_deltalake

        chosen = random.Random(1)
        texts = pa.array(
            ["".join(chosen.choices("abcdefghijklmnopqrstuvwxyz ", k=TEXT_LENGTH)) for _ in range(NUM_TEXTS)]
        )
        count = NUM_ROWS // NUM_FILES
        for first in range(0, NUM_ROWS, count):
            ids = np.arange(first, first + count)
            bodies = pa.DictionaryArray.from_arrays(pa.array(ids % NUM_TEXTS, pa.int32()), texts).dictionary_decode()
            rows = {"id": pa.array(ids), "n": pa.array(np.zeros(count, np.int64)), "body": bodies}
            write_deltalake(str(table), pa.table(rows), mode="append")

    return cached(directory, "wide_text", make)


def _on_a_copy(change: Callable[[str], object]) -> Run:
    def run(table: Path) -> object:
        with tempfile.TemporaryDirectory(dir=table.parent) as scratch:
            link(table, Path(scratch) / "table")
            return change(str(Path(scratch) / "table"))

    return run


def _source() -> object:
    import numpy as np
    import pyarrow as pa

    ids = np.arange(0, NUM_ROWS, 14)
    return pa.table({"id": pa.array(ids), "n": pa.array(np.ones(len(ids), np.int64))})


def _ours(change: Callable[..., object]) -> Callable[[], Run]:
    def start() -> Run:
        from delta_orch import DeltaTable

        return _on_a_copy(lambda table: change(DeltaTable(table)))

    return start


def _theirs(change: Callable[..., object]) -> Callable[[], Run]:
    def start() -> Run:
        from deltalake import DeltaTable

        return _on_a_copy(lambda table: change(DeltaTable(table)))

    return start


def _rows(reader: object) -> int:
    return sum(batch.num_rows for batch in reader)  # type: ignore[attr-defined]


def _merge(table: object) -> object:
    merge = table.merge(_source(), "t.id = s.id", source_alias="s", target_alias="t")  # type: ignore[attr-defined]
    merge.when_matched_update({"n": "s.n"}).execute()
    return "merged"


CONTESTANTS = {
    "read, delta_orch": _ours(lambda table: _rows(table.snapshot().scan().to_reader())),
    "read, deltalake": _theirs(lambda table: _rows(table.to_pyarrow_dataset().scanner().to_reader())),
    "update a number, delta_orch": _ours(lambda table: table.update({"n": "n + 1"}).version),
    "update a number, deltalake": _theirs(lambda table: table.update({"n": "n + 1"})["num_updated_rows"]),
    "update the text, delta_orch": _ours(lambda table: table.update({"body": "concat(body, '!')"}).version),
    "update the text, deltalake": _theirs(
        lambda table: table.update({"body": "concat(body, '!')"})["num_updated_rows"]
    ),
    "merge, delta_orch": _ours(_merge),
    "merge, deltalake": _theirs(_merge),
    "compact, delta_orch": _ours(lambda table: table.optimize().version),
    "compact, deltalake": _theirs(lambda table: table.optimize.compact()["numFilesRemoved"]),
}
