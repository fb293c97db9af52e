"""`fsck(deep=True)`: pages, footers and statistics of data files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable
from delta_orch.cli.main import run

ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "s": ["a" * 40, "b", None],
        "x": [1.5, float("nan"), -0.0],
        "p": ["u", "u", "v"],
        "n": pa.array([{"a": 1}, {"a": 5}, None], pa.struct([("a", pa.int32())])),
        "t": pa.array([1, 2_000_001, None], pa.timestamp("us", "UTC")),
        "l": pa.array([[1], [], None], pa.list_(pa.int64())),
    }
)


def _table(root: Path, **properties: str) -> DeltaTable:
    given = {name.replace("__", "."): value for name, value in properties.items()}
    table = DeltaTable(root)
    table.append(ROWS, partition_by=["p"], properties=given)
    return table


def _restate(root: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the statistics of each file."""
    commit = root / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            stats = json.loads(action["add"]["stats"])
            change(stats)
            action["add"]["stats"] = json.dumps(stats)
    commit.write_text("".join(json.dumps(action) + "\n" for action in actions))
    (root / "_delta_log" / f"{0:020d}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize("mapping", ["none", "name", "id"])
def test_a_sound_table_is_in_order(tmp_path: Path, mapping: str) -> None:
    table = _table(
        tmp_path / "t", delta__columnMapping__mode=mapping, delta__enableDeletionVectors="true",
        delta_orch__pageChecksums="true",
    )  # fmt: skip
    table.delete("id = 2")
    table.append(ROWS.slice(0, 0))
    report = table.fsck(deep=True)
    assert (report.problems, report.files_checked, report.rows_checked) == ((), True, True)
    assert not table.fsck(check_files=True).rows_checked


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "numRecords": lambda stats: stats.update(numRecords=7),
    "min of id": lambda stats: stats["minValues"].update(id=stats["minValues"]["id"] + 1),
    "max of id": lambda stats: stats["maxValues"].update(id=stats["maxValues"]["id"] - 1),
    "max of s": lambda stats: stats["maxValues"].update(s="A"),
    "nested": lambda stats: stats["maxValues"].update(n={"a": 0}),
    "time": lambda stats: stats["minValues"].update(t="2001-01-01T00:00:00Z"),
    "no nulls": lambda stats: stats["nullCount"].update(s=0, t=0),
    "nulls only": lambda stats: stats["nullCount"].update(id=stats["numRecords"]),
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_statistics_that_hide_rows_are_named(tmp_path: Path, change: str) -> None:
    root = tmp_path / "t"
    _table(root)
    _restate(root, CHANGES[change])
    table = DeltaTable(root)
    assert table.fsck(check_files=True).ok
    report = table.fsck(deep=True)
    assert not report.ok
    assert {problem.code for problem in report.problems} == {"CORRUPT_DATA"}
    assert all(problem.path and problem.path.endswith(".parquet") for problem in report.problems)
    with pytest.raises(SystemExit) as ended:
        run(["fsck", str(root), "--deep"])
    assert ended.value.code == 1


def test_a_changed_page_is_found_by_its_checksum(tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array(range(1000), pa.int64())})
    for name, given in (("with", "true"), ("without", "false")):
        table = DeltaTable(tmp_path / name)
        table.append(
            rows, properties={"delta_orch.pageChecksums": given, "delta.parquet.compression.codec": "uncompressed"}
        )
        (file,) = (tmp_path / name).glob("*.parquet")
        chunk = pq.read_metadata(file).row_group(0).column(0)
        data = bytearray(file.read_bytes())
        end = (chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size
        data[end - 5] ^= 1
        file.write_bytes(data)
        report = DeltaTable(tmp_path / name).fsck(deep=True)
        if given == "true":
            assert not report.ok
            assert "checksum" in report.problems[0].message.lower() or "crc" in report.problems[0].message.lower()


def test_a_log_of_a_checkpoint_alone(tmp_path: Path) -> None:
    DeltaTable(tmp_path).append(pa.table({"id": [1]}))
    DeltaTable(tmp_path).checkpoint()
    (tmp_path / f"_delta_log/{0:020d}.json").unlink()
    assert DeltaTable(tmp_path).fsck(deep=True).ok
