"""Anything new? What a sensor asks all day long."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.bench_open_large_checkpoint import prepare

TITLE = "G1: 200 looks at a warm table, one new commit, 200 more looks; then the number of files"
LOOKS = 200

Run = Callable[[Path], object]
_ADD = {"path": "new", "partitionValues": {"date": "2020-01-01"}, "size": 1, "modificationTime": 1, "dataChange": True}
_COMMIT = [{"commitInfo": {"operation": "WRITE"}}, {"add": _ADD}]


def _copy(table: Path) -> Path:
    """A copy of the log that shares the checkpoint's bytes."""
    copy = Path(tempfile.mkdtemp(dir=table.parent)) / "table"
    shutil.copytree(table / "_delta_log", copy / "_delta_log", copy_function=lambda a, b: Path(b).hardlink_to(a))
    return copy


def _commit(table: Path) -> None:
    version = max(int(p.stem) for p in (table / "_delta_log").glob("*.json")) + 1
    (table / "_delta_log" / f"{version:020d}.json").write_text("".join(json.dumps(a) + "\n" for a in _COMMIT))


def _measured(
    open_table: Callable[[Path], object], look: Callable[[object], object], count: Callable[[object], int]
) -> Run:
    """Only the looks are measured: the table is opened when the contestant is set up."""
    import sys

    copy = _copy(Path(sys.argv[3]))
    opened = open_table(copy)

    def run(_: Path) -> int:
        state = opened
        for round_ in range(2):
            for _look in range(LOOKS):
                state = look(state)
            if round_ == 0:
                _commit(copy)
        files = count(state)
        shutil.rmtree(copy.parent)
        return files

    return run


def delta_orch() -> Run:
    """One metadata request a look."""
    from delta_orch.log.read.table_log import TableLog
    from delta_orch.storage.local import LocalStore

    logs: list[TableLog] = []

    def open_table(table: Path) -> object:
        logs.append(TableLog(LocalStore(table)))
        snapshot = logs[0].snapshot()
        assert snapshot.num_files
        return snapshot

    return _measured(open_table, lambda s: logs[0].advance(s), lambda s: s.num_files)  # type: ignore[attr-defined, arg-type]


def deltalake() -> Run:
    """delta-rs: update_incremental."""
    from deltalake import DeltaTable

    def look(table: object) -> object:
        table.update_incremental()  # type: ignore[attr-defined]
        return table

    return _measured(lambda t: DeltaTable(str(t)), look, lambda t: len(t.file_uris()))  # type: ignore[attr-defined]


CONTESTANTS = {"delta_orch": delta_orch, "deltalake": deltalake}
__all__ = ["CONTESTANTS", "TITLE", "prepare"]
