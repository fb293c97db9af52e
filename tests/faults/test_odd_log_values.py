"""Each field of each action with each value that JSON can hold: read right, or refused by an error of this package."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import DeltaError

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


@pytest.mark.sampled
@pytest.mark.parametrize("field", [f"{action}.{name}" for action in FIELDS for name in FIELDS[action].split()])
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
                assert 0 < len(str(e)) < 2000 and "\n" not in str(e)
