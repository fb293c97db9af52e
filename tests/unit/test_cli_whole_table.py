"""The commands that take a table as a whole."""

from __future__ import annotations

import json
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
    clone = f"TABLE delta.`{copy}` DEEP CLONE delta.`{root}`"
    assert call("sql", f"CREATE {clone}") == 0
    assert call("sql", f"CREATE {clone}") == 1
    assert call("sql", f"CREATE OR REPLACE {clone}") == 0
    assert ids(copy) == [1, 2, 3]
    assert call("restore", root, "--version", 0) == 0
    assert ids(root) == [1, 2]
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
    [gone] = table.snapshot().files(["path"])["path"].to_pylist()
    (root / gone).unlink()
    assert call("fsck", root, "--check") == 1 and gone in capsys.readouterr().out
    repair = f"FSCK REPAIR TABLE delta.`{root}`"
    assert call("sql", repair, "--dry-run") == 0 and "1 remove" in capsys.readouterr().out
    assert call("sql", repair) == 0
    assert ids(root) == []


def test_files_are_loaded_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    landing, root = tmp_path / "landing", tmp_path / "t"
    landing.mkdir()
    (landing / "a.csv").write_text("id;day\n1;a\n2;b\n")
    command = ("ingest", root, landing, "--format", "csv", "--format-option", "delimiter=;", "--partition-by", "day")
    assert call(*command) == 0
    assert "1 files (15 B) with 2 rows" in capsys.readouterr().out
    assert call(*command) == 0
    assert capsys.readouterr().out == "No new files\n"
    assert (ids(root), DeltaTable(root).snapshot().partition_columns) == ([1, 2], ("day",))
    (landing / "a.csv").write_text("id;day\n1;a\n")
    assert call(*command) == 1
    assert "FILES_CHANGED" in capsys.readouterr().err
    assert call(*command, "--on-changed", "ignore", "--json") == 0
    assert json.loads(capsys.readouterr().out)["num_files"] == 0
    (landing / "b.csv").write_text("id;day\n-3;a\n4;b\n")
    assert call(*command, "--on-changed", "ignore", "--expect-fail", "id > 0") == 1
    assert "EXPECTATION_FAILED" in capsys.readouterr().err
    assert call(*command, "--on-changed", "ignore", "--expect-drop", "id > 0", "--expect-warn", "id > 0") == 2
    capsys.readouterr()
    assert call(*command, "--on-changed", "ignore", "--expect-drop", "id > 0", "--expect-warn", "id < 4") == 0
    assert "1 rows break 'id > 0' (drop)\n1 rows break 'id < 4' (warn)\n" in capsys.readouterr().out
    assert ids(root) == [1, 2, 4]
