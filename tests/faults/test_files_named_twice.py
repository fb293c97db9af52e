"""A log that names one file twice: its rows are read once, or not at all. Nobody guesses."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable
from delta_orch.engines.local import write
from delta_orch.errors import DeltaError, ProtocolViolationError

SPELLINGS = {
    "absolute": lambda root, path: f"{root}/{path}",
    "uri": lambda root, path: (root / path).as_uri(),
    "host": lambda root, path: f"file://localhost{root}/{path}",
}


def _table(root: Path) -> tuple[DeltaTable, dict[str, Any]]:
    table = DeltaTable(root)
    table.append(pa.table({"id": pa.array([1, 2], pa.int64())}))
    table.append(pa.table({"id": pa.array([3], pa.int64())}))
    table.wait_for_upkeep()
    lines = map(json.loads, (root / "_delta_log" / f"{0:020d}.json").read_text().splitlines())
    return table, next(line["add"] for line in lines if "add" in line)


def _commit(root: Path, version: int, *actions: dict[str, Any]) -> None:
    (root / "_delta_log" / f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)))


def _ids(root: Path) -> list[int]:
    return sorted(DeltaTable(root).snapshot().scan().to_arrow()["id"].to_pylist())


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_file_under_two_spellings(tmp_path: Path, spelling: str) -> None:
    root = tmp_path / "t"
    _, add = _table(root)
    _commit(root, 2, {"add": {**add, "path": SPELLINGS[spelling](root, add["path"])}})
    table = DeltaTable(root)
    for act in (
        lambda: table.snapshot().scan().to_arrow(), lambda: table.snapshot().scan().count(),
        lambda: table.snapshot().to_pyarrow_dataset(),
        lambda: table.snapshot().scan(where="id > 0").count(),
        lambda: table.snapshot().scan(where="length(CAST(id AS STRING)) = 1").to_arrow(),
        lambda: [task.to_arrow() for task in table.snapshot().scan().tasks()],
        lambda: table.delete("id = 1"), lambda: table.update({"id": "id + 1"}),
        lambda: table.overwrite(pa.table({"id": [7]}), replace_where="id = 7 OR id = 1"),
        lambda: table.upsert(pa.table({"id": [1]}), "id"), lambda: table.optimize(),
    ):  # fmt: skip
        with pytest.raises(DeltaError):
            act()
    assert table.version() == 2
    with pytest.raises(ProtocolViolationError, match=r"table\.restore\(version\)"):
        table.snapshot().scan().to_arrow()
    table.restore(1)
    assert _ids(root) == [1, 2, 3]
    table.delete("id = 1")
    assert _ids(root) == [2, 3]


def test_rows_of_a_file_under_two_spellings_go_into_no_other_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that share the files of a large scan see one each."""
    monkeypatch.setattr(write, "_SHARED_FILE_BYTES", 0)
    monkeypatch.setattr(write, "thread_count", lambda: 1)
    root = tmp_path / "t"
    _, add = _table(root)
    _commit(root, 2, {"add": {**add, "path": f"{root}/{add['path']}"}})
    with pytest.raises(ProtocolViolationError, match="twice"):
        DeltaTable(tmp_path / "u").append(DeltaTable(root).snapshot().scan())
    assert not DeltaTable(tmp_path / "u").exists()


@pytest.mark.parametrize("is_in_checkpoint", [False, True])
def test_a_file_is_removed_under_another_spelling(tmp_path: Path, is_in_checkpoint: bool) -> None:
    """Delta on Spark leaves letters beyond ASCII as they are. delta-rs escapes them in what it removes."""
    root = tmp_path / "t"
    table = DeltaTable(root)
    table.append(pa.table({"id": [1, 2], "p": ["ä", "a"]}), partition_by=["p"])
    (log,) = (root / "_delta_log").glob("*0.json")
    log.write_text(log.read_text().replace("p=%C3%A4", "p=ä"))
    if is_in_checkpoint:
        DeltaTable(root).checkpoint()
    deltalake.DeltaTable(root).delete("id = 1")
    assert "p=%C3%A4" in (root / "_delta_log/00000000000000000001.json").read_text()
    assert _ids(root) == [2]


@pytest.mark.parametrize("detour", ["./{}", "x/../{}", ".//{}", "%2E/{}"])
@pytest.mark.parametrize("kind", ["", "checkpoint", "compaction"])
def test_a_detour_leads_to_the_same_file(tmp_path: Path, detour: str, kind: str) -> None:
    """As in Hadoop's paths, and so in Delta on Spark: a remove of one removes the other."""
    root = tmp_path / "t"
    table, add = _table(root)
    (root / "x").mkdir()
    again = {**add, "path": detour.format(add["path"])}
    _commit(root, 2, {"add": again})
    if kind == "checkpoint":
        DeltaTable(root).checkpoint()
    assert _ids(root) == [1, 2, 3]
    assert table.snapshot().scan().count() == 3
    _commit(root, 3, {"remove": {"path": again["path"] if kind else add["path"], "dataChange": True}})
    if kind == "compaction":
        DeltaTable(root).compact_log()
    assert _ids(root) == [3]
    _commit(root, 4, {"add": again})
    DeltaTable(root).delete("id = 1")
    assert _ids(root) == [2, 3]
    DeltaTable(root).vacuum(retention_hours=0, enforce_retention=False)
    assert _ids(root) == [2, 3]


def test_a_file_that_is_added_again_with_other_escapes_is_the_same(tmp_path: Path) -> None:
    root = tmp_path / "t"
    _, add = _table(root)
    _commit(root, 2, {"add": {**add, "path": add["path"].replace("-", "%2D", 1)}})
    assert _ids(root) == [1, 2, 3]


def test_a_file_of_a_checkpoint_that_names_it_twice(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table, add = _table(root)
    table.checkpoint()
    [path] = (root / "_delta_log").glob("*.checkpoint.parquet")
    rows = pq.read_table(path)
    again = [row for row in range(rows.num_rows) if (rows["add"][row].as_py() or {}).get("path") == add["path"]]
    pq.write_table(pa.concat_tables([rows, rows.take(again)]), path)
    for name in ("*.crc", "_last_checkpoint"):
        for file in (root / "_delta_log").glob(name):
            file.unlink()
    with pytest.raises(ProtocolViolationError, match="twice"):
        _ids(root)
    with pytest.raises(ProtocolViolationError, match="twice"):
        DeltaTable(root).snapshot().scan().count()
    with pytest.raises(ProtocolViolationError, match="twice"):
        DeltaTable(root).delete("id = 1")
    assert DeltaTable(root).version() == 1
    path.unlink()
    assert _ids(root) == [1, 2, 3]


def test_a_checkpoint_may_name_a_file_that_a_commit_names_again(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table, add = _table(root)
    table.checkpoint()
    _commit(root, 2, {"add": add})
    _commit(root, 3, {"add": add}, {"add": add})
    assert _ids(root) == [1, 2, 3]


@pytest.mark.parametrize("seed", range(20))
def test_one_commit_that_adds_and_removes_a_file(tmp_path: Path, seed: int) -> None:
    """At any place among other commits, in any order: readers differ in what they make of it."""
    rng, root = random.Random(seed), tmp_path / "t"
    table, add = _table(root)
    remove = {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}
    if rng.random() < 0.5:
        table.checkpoint()
    version = 2
    for _ in range(rng.randrange(3)):
        _commit(root, version, *rng.choice([[{"add": add}], [{"remove": remove}]]))
        version += 1
    before = _ids(root)
    assert before in ([1, 2, 3], [3])
    both: list[dict[str, Any]] = [{"add": add}, {"remove": remove}, {"commitInfo": {}}]
    rng.shuffle(both)
    _commit(root, version, *both)
    if rng.random() < 0.5:
        _commit(root, version + 1, {"commitInfo": {}})
    with pytest.raises(ProtocolViolationError, match="adds and removes"):
        _ids(root)
    assert sorted(DeltaTable(root).snapshot(version=version - 1).scan().to_arrow()["id"].to_pylist()) == before


def test_a_file_with_another_deletion_vector_is_another_one(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = DeltaTable(root)
    table.append(pa.table({"id": [1, 2, 3]}), properties={"delta.enableDeletionVectors": "true"})
    table.delete("id = 1")
    table.delete("id = 2")
    assert _ids(root) == [3]
    *_, add = (json.loads(line) for line in (root / "_delta_log" / f"{1:020d}.json").read_text().splitlines())
    _commit(root, 3, add)
    with pytest.raises(ProtocolViolationError, match="two deletion vectors"):
        _ids(root)
