"""The commands restore, clone, convert, purge and repair."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable
from delta_orch.cli.main import run
from delta_orch.errors import MissingFileError


def call(*arguments: object) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        run([str(argument) for argument in arguments])
    return ended.value.code or 0


def ids(path: Path) -> list[int]:
    read: list[int] = DeltaTable(path).snapshot().scan(["id"]).to_arrow()["id"].to_pylist()
    return sorted(read)


def test_from_files_to_a_clone_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, copy = tmp_path / "t", tmp_path / "copy"
    (root / "day=a").mkdir(parents=True)
    pq.write_table(pa.table({"id": [1, 2]}), root / "day=a" / "x.parquet")
    assert call("convert", root, "--partition", "day:string", "--dry-run") == 0
    assert not DeltaTable(root).exists()
    assert call("convert", root, "--partition", "day:string") == 0
    assert call("convert", root, "--partition", "day") == 2
    assert call("convert", root) == 1
    DeltaTable(root).append(pa.table({"id": [3], "day": ["b"]}))
    assert call("restore", root) == 2
    assert call("restore", root, "--version", 0, "--dry-run") == 0
    assert ids(root) == [1, 2, 3]
    assert call("clone", root, copy, "--property", "owner=me", "--version", 0) == 0
    assert call("clone", root, copy) == 1
    assert call("clone", root, copy, "--replace", "--deep") == 0
    assert ids(copy) == [1, 2, 3]
    assert call("restore", root, "--version", 0) == 0
    assert ids(root) == [1, 2]
    assert call("purge", root) == 0
    assert "Nothing to purge" in capsys.readouterr().out
    assert call("optimize", copy, "--zorder-by", "id") == 0
    assert call("optimize", copy, "--full") == 1


def test_files_that_are_gone_and_versions_to_keep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "t"
    table = DeltaTable(root)
    table.append(pa.table({"id": [1]}))
    table.append(pa.table({"id": [2]}))
    table.overwrite(pa.table({"id": [3]}))
    table.overwrite(pa.table({"id": [4]}))
    hours = ("--retention-hours", 0, "--force")
    assert call("vacuum", root, *hours, "--lite", "--keep-version", 1, "--keep-version", 7) == 1
    assert call("vacuum", root, *hours, "--lite", "--keep-version", 1) == 0
    assert table.snapshot(1).scan().to_arrow().num_rows == 2
    with pytest.raises(MissingFileError):
        table.snapshot(2).scan().to_arrow()
    assert call("repair", root) == 0 and "No file is gone" in capsys.readouterr().out
    [gone] = table.snapshot().files(["path"])["path"].to_pylist()
    (root / gone).unlink()
    assert call("repair", root, "--dry-run") == 0 and gone in capsys.readouterr().out
    assert call("repair", root) == 0 and "1 files left" in capsys.readouterr().out
    assert ids(root) == []
