"""The commands that look after a table's log, and the methods of `DeltaTable` behind them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.cli.main import run
from delta_orch.errors import ChecksumMismatchError, InvalidRequestError, VersionNotFoundError

DAY_S = 86_400


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: object) -> tuple[int, Any]:
        with pytest.raises(SystemExit) as ended:
            run([str(a) for a in arguments])
        out = capsys.readouterr().out
        return int(ended.value.code or 0), json.loads(out) if "--json" in arguments else out

    return call


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    """Six versions; a checkpoint at 4."""
    table = DeltaTable(tmp_path / "t")
    for n in range(6):
        table.append(pa.table({"id": [n]}), properties={"delta.checkpointInterval": "4"})
    return table


def names(table: DeltaTable) -> list[str]:
    return [f.path.rpartition("/")[2].lstrip("0") for f in table.store.list_from("_delta_log")]


def age(table: DeltaTable, *days_old: float) -> None:
    for version, days in enumerate(days_old):
        seconds = time.time() - days * DAY_S
        for file in Path(table.uri.removeprefix("file://"), "_delta_log").glob(f"{version:020d}.*"):
            os.utime(file, (seconds, seconds))


def test_checkpoint(cli: Any, table: DeltaTable) -> None:
    assert cli("checkpoint", table.uri) == (0, "Checkpoint of version 5 written\n")
    assert "5.checkpoint.parquet" in names(table)
    code, answer = cli("checkpoint", table.uri, "--v2", "--json")
    assert (code, answer["error"]["code"]) == (1, "INVALID_REQUEST")
    with pytest.raises(InvalidRequestError):
        table.checkpoint("newest")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError):
        table.checkpoint(v2_format="avro")  # type: ignore[arg-type]


def test_v2_checkpoint(cli: Any, tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": [1]}), properties={"delta.checkpointPolicy": "v2"})
    assert cli("checkpoint", table.uri, "--v2-format", "parquet", "--json") == (0, {"version": 0})
    assert sum(name.endswith(".parquet") for name in names(table)) == 2
    table.append(pa.table({"id": [2]}))
    cli("checkpoint", table.uri, "--classic")
    table.append(pa.table({"id": [3]}))
    cli("checkpoint", table.uri, "--v2")
    assert [name for name in names(table) if name.startswith("2.checkpoint.") and name.endswith(".json")]
    assert DeltaTable(table.uri).snapshot().scan().to_arrow()["id"].to_pylist() == [1, 2, 3]


def test_compact_log(cli: Any, table: DeltaTable) -> None:
    assert cli("compact-log", table.uri) == (0, "Nothing to compact\n")
    code, answer = cli("compact-log", table.uri, "--from", 1, "--to", 3, "--json")
    assert (code, answer["skipped"], answer["start_version"], answer["end_version"]) == (0, False, 1, 3)
    assert answer["path"].rpartition("/")[2] in {f"{1:020d}.{3:020d}.compacted.json"}
    assert "Commits 2 to 3 compacted" in cli("compact-log", table.uri, "--from", 2, "--to", 3)[1]
    assert cli("compact-log", table.uri, "--from", 3, "--to", 3, "--json")[1]["error"]["code"] == "INVALID_REQUEST"
    assert DeltaTable(table.uri).snapshot(3).num_files == 4


def test_checksum(cli: Any, table: DeltaTable) -> None:
    assert "agrees with the log: 6 files" in cli("checksum", table.uri)[1]
    (crc,) = (f.path for f in table.store.list_from("_delta_log") if f.path.endswith("5.crc"))
    data = json.loads(table.store.read_bytes(crc))
    table.store.delete(crc)
    assert "Checksum of version 5 written" in cli("checksum", table.uri)[1]
    assert json.loads(table.store.read_bytes(crc)).keys() == data.keys()
    code, answer = cli("checksum", table.uri, "--version", 4, "--json")
    assert (code, answer["version"], answer["written"], answer["num_files"]) == (0, 4, False, 5)
    table.store.put(crc, json.dumps({**data, "numFiles": 7}).encode())
    with pytest.raises(ChecksumMismatchError, match="numFiles"):
        table.write_checksum()


def test_cleanup_log(cli: Any, table: DeltaTable) -> None:
    assert cli("cleanup-log", table.uri) == (0, "0 files (0 B) removed\n")
    age(table, 90, 80, 70, 60, 50, 1)
    code, answer = cli("cleanup-log", table.uri, "--dry-run", "--json")
    assert (code, answer["dry_run"], answer["earliest_version"], answer["num_files"]) == (0, True, 4, 8)
    assert len(answer["paths"]) == 8
    text = cli("cleanup-log", table.uri, "--dry-run")[1]
    assert text.splitlines()[:2] == answer["paths"][:2]
    assert "8 files" in text
    text = cli("cleanup-log", table.uri)[1]
    assert "removed" in text
    assert "Version 4 and all later ones stay" in text
    assert [name for name in names(table) if name.endswith("json")] == ["4.json", "5.json"]


def test_what_was_cleaned_up_cannot_be_read(table: DeltaTable) -> None:
    age(table, 90, 80, 70, 60, 50, 1)
    table.cleanup_log()
    with pytest.raises(VersionNotFoundError, match="4 to 5 are there"):
        table.snapshot(3)
    with pytest.raises(VersionNotFoundError):
        table.changes(starting_version=2)
    assert table.changes(starting_version=5).to_arrow().num_rows == 1
    assert table.history()[-1].version == 4
    assert table.append(pa.table({"id": [6]})).version == 6
