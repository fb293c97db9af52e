"""Files that claim or hold more than a process can take end in errors of this package, at once."""

from __future__ import annotations

import resource
import shutil
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import CorruptLogError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs sparse files and limits of memory")

_READ = """
    import sys, time
    import pyarrow as pa
    from delta_orch import DeltaTable
    from delta_orch.errors import DeltaError

    for root in sys.argv[1:]:
        started = time.process_time()
        for act in (
            lambda t: t.version(), lambda t: t.snapshot().scan(where="id > 1").to_arrow(), lambda t: list(t.history()),
            lambda t: t.fsck(check_files=True), lambda t: t.append(pa.table({"id": [7]})),
            lambda t: t.vacuum(dry_run=True),
            lambda t: t.checkpoint(), lambda t: t.snapshot().scan([]).to_arrow(),
        ):
            try:
                act(DeltaTable(root))
            except DeltaError as e:
                assert len(str(e)) < 2000 and not e.retryable, e
        assert time.process_time() - started < 60, root
"""


def _log(root: Path, name: str) -> Path:
    return root / "_delta_log" / name


def _terabyte(path: Path) -> None:
    with path.open("r+b" if path.exists() else "wb") as file:
        file.truncate(1 << 40)


def _long_line(root: Path) -> None:
    with _log(root, f"{1:020d}.json").open("wb") as file:
        file.write(b'{"commitInfo":{"x":"')
        file.write(b"a" * (257 << 20))
        file.write(b'"}}\n')


def _far_footer(root: Path) -> None:
    with next(root.glob("*.parquet")).open("wb") as file:
        file.write(b"PAR1")
        file.seek(0xFFFFFFF0 + 100)
        file.write(struct.pack("<I", 0xFFFFFFE0) + b"PAR1")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "commit": lambda root: _terabyte(_log(root, f"{1:020d}.json")),
    "checksum": lambda root: _terabyte(_log(root, f"{0:020d}.crc")),
    "pointer": lambda root: _terabyte(_log(root, "_last_checkpoint")),
    "checkpoint": lambda root: _terabyte(_log(root, f"{0:020d}.checkpoint.parquet")),
    "compaction": lambda root: _terabyte(_log(root, f"{0:020d}.{1:020d}.compacted.json")),
    "data": lambda root: _terabyte(next(root.glob("*.parquet"))),
    "depth": lambda root: _log(root, f"{1:020d}.json").write_text('{"add":' * 1_000_000),
    "line": _long_line,
    "footer": _far_footer,
}


@pytest.mark.long
def test_they_end_at_once(tmp_path: Path) -> None:
    roots = [tmp_path / name for name in DAMAGES]
    for root in roots:
        table = DeltaTable(root)
        table.append(pa.table({"id": pa.array([1, 2, 3], pa.int64())}))
        table.wait_for_upkeep()
        DAMAGES[root.name](root)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_READ), *map(str, roots)],
        preexec_fn=limit, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    shutil.rmtree(tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("name", ["_last_checkpoint", f"{0:020d}.crc"])
def test_what_readers_can_do_without_is_passed_over_where_it_has_gigabytes(tmp_path: Path, name: str) -> None:
    table = DeltaTable(tmp_path)
    table.append(pa.table({"id": [1, 2, 3]}))
    table.checkpoint()
    with _log(tmp_path, name).open("wb") as file:
        file.truncate((2 << 30) - 1)
    with pytest.raises(CorruptLogError, match="bytes"):
        table.store.read_bytes(f"_delta_log/{name}")
    assert DeltaTable(tmp_path).snapshot().scan().count() == 3
    DeltaTable(tmp_path).append(pa.table({"id": [4]}))
    assert DeltaTable(tmp_path).snapshot().scan().to_arrow().num_rows == 4
