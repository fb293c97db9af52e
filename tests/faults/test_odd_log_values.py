"""Each field of each action with each value that JSON can hold: read right, or refused by an error of this package."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import CorruptLogError, DeltaError, ProtocolViolationError
from tests.families import family

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "p": ["a", "b", "c"]})
ODD: list[Any] = [
    None, True, 0, -1, 1.5, 2**63, -(2**70), "", "x", "\ud800", [], [1], [None], [[]], {}, {"a": 1}, {"a": None},
    {"provider": 1}, {"options": {"a": []}}, {"provider": "parquet", "options": 1},
]  # fmt: skip
FIELDS = {
    "metaData": "id name description format schemaString partitionColumns createdTime configuration",
    "protocol": "minReaderVersion minWriterVersion readerFeatures writerFeatures",
    "add": "path partitionValues size modificationTime dataChange stats tags deletionVector baseRowId "
    "defaultRowCommitVersion clusteringProvider",
    "commitInfo": "timestamp inCommitTimestamp operation operationParameters operationMetrics userMetadata txnId",
    "txn": "appId version lastUpdated",
    "domainMetadata": "domain configuration removed",
    "remove": "path deletionTimestamp dataChange extendedFileMetadata partitionValues size tags",
}
ACTS: dict[str, Callable[[DeltaTable], Any]] = {
    "scan": lambda t: t.snapshot().scan(where="id > 1").to_arrow(),
    "history": lambda t: [str(entry) for entry in t.history()],
    "checkpoint": lambda t: t.checkpoint(),
    "vacuum": lambda t: t.vacuum(dry_run=True),
    "append": lambda t: t.append(ROWS),
}


@family("field", [f"{action}.{name}" for action in FIELDS for name in FIELDS[action].split()], every=5)
def test_a_field_of_any_type(tmp_path: Path, field: str) -> None:
    action, name = field.split(".")
    root = tmp_path / "t"
    table = DeltaTable(root)
    table.append(ROWS)
    table.wait_for_upkeep()
    first = root / "_delta_log" / f"{0:020d}.json"
    healthy = [json.loads(line) for line in first.read_text().splitlines()]
    if not any(action in line for line in healthy):
        whole = {"appId": "a", "version": 1, "domain": "d", "configuration": "", "removed": False, "path": "gone"}
        healthy.append({action: whole})
    kept = {file: file.read_bytes() for file in root.rglob("*") if file.is_file() and not file.name.endswith(".crc")}
    for value in ODD:
        for act in ACTS.values():
            for file in [file for file in root.rglob("*") if file.is_file()]:
                if file not in kept:
                    file.unlink()
            lines = [
                {key: {**body, name: value} if key == action else body for key, body in h.items()} for h in healthy
            ]
            first.write_text("\n".join(map(json.dumps, lines)))
            try:
                act(DeltaTable(root))
            except DeltaError as e:
                assert 0 < len(str(e)) < 2000 and "\n\n" not in str(e)


def _added(root: Path) -> dict[str, Any]:
    DeltaTable(root).append(ROWS, properties={"delta.checkpointPolicy": "classic"})
    DeltaTable(root).append(ROWS)
    lines = map(json.loads, (root / "_delta_log" / f"{1:020d}.json").read_text().splitlines())
    return next(line for line in lines if "add" in line)


@pytest.mark.parametrize(
    "lines",
    [
        # Readers take one of the actions of a line, or each; the first of two values in a line, or both.
        lambda a: json.dumps({**a, "remove": {"path": a["add"]["path"], "dataChange": True}}),
        lambda a: json.dumps({**a, "txn": {"appId": "a", "version": 1}}),
        lambda a: json.dumps({**a, "metaData": None, "txn": {"appId": "a", "version": 1}}),
        lambda a: f"{json.dumps(a)},{json.dumps(a | {'add': {**a['add'], 'path': 'x'}})}",
        lambda a: json.dumps(a)[:-2] + '\n"z": 1}}',
        lambda a: json.dumps(a).replace(",", "\n", 1),
    ],
)
def test_lines_that_are_not_one_action_each(tmp_path: Path, lines: Callable[[dict[str, Any]], str]) -> None:
    root = tmp_path / "t"
    (root / "_delta_log" / f"{2:020d}.json").write_text(lines(_added(root)))
    with pytest.raises(CorruptLogError):
        DeltaTable(root).snapshot()


@pytest.mark.parametrize("kind", ["commit", "checkpoint", "json"])
@pytest.mark.parametrize("action", ["metaData", "protocol"])
def test_two_that_a_version_has_one_of(tmp_path: Path, action: str, kind: str) -> None:
    """Readers differ in which of them counts. One that is repeated as it is does no harm."""
    root = tmp_path / "t"
    _added(root)
    table = DeltaTable(root)
    if kind == "json":
        table.alter().set_properties({"delta.checkpointPolicy": "v2"}).commit()
    table.checkpoint()
    log = root / "_delta_log"
    for same in (True, False):
        if kind == "checkpoint":
            [path] = log.glob("*.checkpoint.parquet")
            rows = pq.read_table(path).to_pylist()
            row = next(row for row in rows if row[action])
            other = {"configuration": [("a", "b")]} if action == "metaData" else {"minWriterVersion": 6}
            again = {**row, action: {**row[action], **({} if same else other)}}
            pq.write_table(pa.Table.from_pylist([*rows, again], pq.read_schema(path)), path)
        else:
            [path] = log.glob(f"{0:020d}.json" if kind == "commit" else "*.checkpoint.*.json")
            line = next(line for line in map(json.loads, filter(None, path.read_text().splitlines())) if action in line)
            odd = {**line[action], "configuration": {"a": "b"}, "minWriterVersion": 6}
            with path.open("a") as file:
                file.write("\n" + json.dumps(line if same else {action: odd}))
        for file in [
            log / "_last_checkpoint",
            *log.glob("*.crc"),
            *(log.glob("*.checkpoint.*") if kind == "commit" else ()),
        ]:
            file.unlink(missing_ok=True)
        if same:
            assert DeltaTable(root).snapshot().scan().to_arrow().num_rows == 6
    with pytest.raises(ProtocolViolationError, match="differ"):
        DeltaTable(root).snapshot()
