"""8 processes upsert keys of their own, which lie in the same files."""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.race import race

TITLE = "Concurrent upserts: 8 processes × 50 upserts of other keys of the same four files"
RESULTS_MAY_DIFFER = True
WRITERS, UPSERTS = 8, 50
ROWS, FILES = 100_000, 4

Run = Callable[[Path], object]


def prepare(directory: Path) -> Path:
    """A directory on the disk to be measured; every run makes its own table in it."""
    path = directory / "concurrent_upserts"
    path.mkdir(parents=True, exist_ok=True)
    return path


def _create(path: str) -> None:
    """The same for everybody, with deletion vectors. Nobody has to read more of it than it supports."""
    import numpy as np
    import pyarrow as pa

    from delta_orch import DeltaTable

    table = DeltaTable(path)
    for file in range(FILES):
        ids = np.arange(file, ROWS, FILES)
        rows = pa.table({"id": ids, "value": np.zeros(len(ids), dtype=np.int64)})
        table.append(rows, properties={"delta.enableDeletionVectors": "true"} if file == 0 else None)


def _create_plain(path: str) -> None:
    import numpy as np
    import pyarrow as pa
    from deltalake import write_deltalake

    for file in range(FILES):
        ids = np.arange(file, ROWS, FILES)
        write_deltalake(path, pa.table({"id": ids, "value": np.zeros(len(ids), dtype=np.int64)}), mode="append")


def _keys() -> Callable[[], object]:
    """A source each time, of keys that no other process has."""
    import numpy as np
    import pyarrow as pa

    own = int(multiprocessing.current_process().name)
    random = np.random.default_rng(own)

    def rows() -> pa.Table:
        ids = np.unique(random.integers(0, ROWS // WRITERS, 10)) * WRITERS + own
        return pa.table({"id": ids, "value": np.ones(len(ids), dtype=np.int64)})

    return rows


def delta_orch() -> Run:
    """Bitmaps of other rows are united."""
    from delta_orch import DeltaTable

    def open_table(path: str) -> Callable[[], object]:
        table, rows = DeltaTable(path), _keys()
        return lambda: table.upsert(rows(), ["id"])

    return _contest(_create, open_table)


def deltalake() -> Run:
    """Files are rewritten; whoever comes second fails."""

    def open_table(path: str) -> Callable[[], object]:
        from deltalake import DeltaTable

        rows = _keys()

        def upsert() -> object:
            merge = DeltaTable(path).merge(rows(), "t.id = s.id", source_alias="s", target_alias="t")
            return merge.when_matched_update_all().when_not_matched_insert_all().execute()

        return upsert

    return _contest(_create_plain, open_table)


def _contest(create: Callable[[str], None], open_table: Callable[[str], Callable[[], object]]) -> Run:
    def run(directory: Path) -> str:
        root = tempfile.mkdtemp(dir=directory)
        try:
            path = f"{root}/table"
            # The runtime of delta-rs does not survive a fork: this process must not start it.
            process = multiprocessing.get_context("fork").Process(target=create, args=(path,))
            process.start()
            process.join()
            seconds, failed = race(path, open_table, WRITERS, UPSERTS)
        finally:
            shutil.rmtree(root)
        done = WRITERS * UPSERTS - failed
        return f"{done / seconds:.1f} upserts/s, {failed} of {WRITERS * UPSERTS} failed"

    return run


CONTESTANTS = {"delta_orch": delta_orch, "deltalake": deltalake}
