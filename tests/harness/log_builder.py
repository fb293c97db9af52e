"""Logs made to order: commits action by action, checkpoints of every kind, broken ones too.

Independent of the code that reads and writes logs for users, so that one can be tested against the other.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from delta_orch.protocol.action_json import serialize_action
from delta_orch.protocol.actions import (
    Action,
    CheckpointMetadata,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    Sidecar,
)
from delta_orch.protocol.paths import LAST_CHECKPOINT_PATH, LOG_DIRECTORY, SIDECAR_DIRECTORY, checksum_path, commit_path
from delta_orch.storage.base import LogStore
from tests.harness.log_model import LogModel

_STRINGS = pa.map_(pa.string(), pa.string())
_VECTOR = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
_FILE = [
    ("path", pa.string()),
    ("partitionValues", _STRINGS),
    ("size", pa.int64()),
    ("dataChange", pa.bool_()),
    ("tags", _STRINGS),
    ("deletionVector", _VECTOR),
    ("baseRowId", pa.int64()),
    ("defaultRowCommitVersion", pa.int64()),
]
_ADD = pa.struct(
    [*_FILE, ("modificationTime", pa.int64()), ("stats", pa.string()), ("clusteringProvider", pa.string())]
)
_REMOVE = pa.struct([*_FILE, ("deletionTimestamp", pa.int64()), ("extendedFileMetadata", pa.bool_())])
_CHECKPOINT = pa.schema(
    [
        (
            "metaData",
            pa.struct(
                [
                    ("id", pa.string()),
                    ("name", pa.string()),
                    ("description", pa.string()),
                    ("format", pa.struct([("provider", pa.string()), ("options", _STRINGS)])),
                    ("schemaString", pa.string()),
                    ("partitionColumns", pa.list_(pa.string())),
                    ("createdTime", pa.int64()),
                    ("configuration", _STRINGS),
                ]
            ),
        ),
        (
            "protocol",
            pa.struct(
                [
                    ("minReaderVersion", pa.int32()),
                    ("minWriterVersion", pa.int32()),
                    ("readerFeatures", pa.list_(pa.string())),
                    ("writerFeatures", pa.list_(pa.string())),
                ]
            ),
        ),
        ("txn", pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])),
        (
            "domainMetadata",
            pa.struct([("domain", pa.string()), ("configuration", pa.string()), ("removed", pa.bool_())]),
        ),
        ("add", _ADD),
        ("remove", _REMOVE),
        ("checkpointMetadata", pa.struct([("version", pa.int64()), ("tags", _STRINGS)])),
        (
            "sidecar",
            pa.struct(
                [
                    ("path", pa.string()),
                    ("sizeInBytes", pa.int64()),
                    ("modificationTime", pa.int64()),
                    ("tags", _STRINGS),
                ]
            ),
        ),
    ]
)
_MAPS = ("partitionValues", "tags", "configuration", "options")


class LogBuilder:
    """Writes a log into a store, one file at a time.

    Args:
        store: An empty table directory.
    """

    def __init__(self, store: LogStore) -> None:
        self.store = store
        self.versions: list[list[Action]] = []

    def create(
        self, schema_string: str = '{"type":"struct","fields":[]}', *, protocol: Protocol | None = None, **metadata: Any
    ) -> int:
        """Commit 0 with a protocol, by default (1, 2), and metadata."""
        return self.commit(
            CommitInfo({"operation": "CREATE TABLE", "timestamp": 0}),
            protocol or Protocol(1, 2),
            Metadata(**{"id": "table", "schema_string": schema_string, **metadata}),
        )

    def commit(self, *actions: Action) -> int:
        """The next commit; gives its version."""
        version = len(self.versions)
        data = b"\n".join(serialize_action(a) for a in actions) + b"\n"
        self.store.put(commit_path(version), data)
        self.versions.append(list(actions))
        return version

    def model(self, version: int | None = None) -> LogModel:
        """The state after a version, by default the newest."""
        model = LogModel()
        for actions in self.versions if version is None else self.versions[: version + 1]:
            model.apply(actions)
        return model

    def checkpoint(self, version: int, *, parts: int = 1, row_group_rows: int = 1000, hint: bool = True) -> None:
        """A V1 checkpoint in one file, or in several parts."""
        rows = self._rows(version)
        for part in range(parts):
            name = f"{version:020d}.checkpoint"
            if parts > 1:
                name += f".{part + 1:010d}.{parts:010d}"
            self._write(f"{LOG_DIRECTORY}/{name}.parquet", rows[part::parts], row_group_rows)
        if hint:
            self.hint(version, size=len(rows), **({"parts": parts} if parts > 1 else {}))

    def checkpoint_v2(
        self,
        version: int,
        *,
        file_format: str = "parquet",
        sidecars: int = 2,
        classic_name: bool = False,
        embedded: int = 0,
    ) -> None:
        """A V2 checkpoint: file actions in sidecars, or inside where `sidecars` is 0.

        Args:
            embedded: So many file actions are inside although there are sidecars, which the protocol does not allow.
        """
        rows = [json.loads(serialize_action(CheckpointMetadata(version))), *self._rows(version)]
        if sidecars:
            files = [row for row in rows if row.keys() & {"add", "remove"}]
            rows = [row for row in rows if not row.keys() & {"add", "remove"}] + files[:embedded]
            files = files[embedded:]
            for n in range(sidecars):
                name = f"{version}-{n}.parquet"
                size = self._write(f"{SIDECAR_DIRECTORY}/{name}", files[n::sidecars], 1000, ("add", "remove"))
                rows.append(json.loads(serialize_action(Sidecar(name, size, 0))))
        middle = "" if classic_name else f".{version:08d}-0000-0000-0000-000000000000"
        path = f"{LOG_DIRECTORY}/{version:020d}.checkpoint{middle}.{file_format}"
        if file_format == "json":
            self.store.put(path, b"".join(json.dumps(row).encode() + b"\n" for row in rows))
        else:
            self._write(path, rows, 1000)

    def compact(self, start: int, end: int, *, keep_removed_domains: bool = True, reconcile: bool = True) -> None:
        """A log compaction of the commits `start` to `end`, both inclusive, and the checksum of `end`.

        Args:
            keep_removed_domains: Some writers do not.
            reconcile: Without, the commits' own actions are strung together, the newest commit first.
        """
        commits = self.versions[start : end + 1]
        model = LogModel()
        for actions in commits:
            model.apply(actions)
        kept = model.actions() if reconcile else [a for actions in reversed(commits) for a in actions]
        lines = [
            serialize_action(a)
            for a in kept
            if not isinstance(a, CommitInfo)
            and (keep_removed_domains or not (isinstance(a, DomainMetadata) and a.removed))
        ]
        self.store.put(f"{LOG_DIRECTORY}/{start:020d}.{end:020d}.compacted.json", b"".join(x + b"\n" for x in lines))
        if self.store.head(checksum_path(end)) is None:
            self.checksum(end)

    def checksum(self, version: int) -> None:
        """The version checksum, without what is optional."""
        model = self.model(version)
        assert model.protocol is not None and model.metadata is not None
        sizes = [add.size for add in model.adds.values()]
        says = {"numFiles": len(sizes), "tableSizeBytes": sum(sizes), "numMetadata": 1, "numProtocol": 1}
        for action in (model.protocol, model.metadata):
            says |= json.loads(serialize_action(action))
        self.store.put(checksum_path(version), json.dumps(says).encode())

    def hint(self, version: int, **fields: Any) -> None:
        """`_last_checkpoint`, without a checksum unless given."""
        self.store.put(LAST_CHECKPOINT_PATH, json.dumps({"version": version, **fields}).encode())

    def delete_commits(self, end: int, start: int = 0) -> None:
        """Remove the commits of versions from `start` to `end`, the latter excluded."""
        for version in range(start, end):
            self.store.delete(commit_path(version))

    def _rows(self, version: int) -> list[dict[str, Any]]:
        rows = [json.loads(serialize_action(action)) for action in self.model(version).actions()]
        for row in rows:
            if "remove" in row:
                row["remove"].pop("stats", None)
        return rows

    def _write(
        self, path: str, rows: Sequence[Mapping[str, Any]], row_group_rows: int, columns: Sequence[str] | None = None
    ) -> int:
        schema = _CHECKPOINT if columns is None else pa.schema([_CHECKPOINT.field(name) for name in columns])
        table = pa.Table.from_pylist([_with_map_items(deepcopy(dict(row))) for row in rows], schema=schema)
        buffer = io.BytesIO()
        pq.write_table(table, buffer, row_group_size=row_group_rows)
        self.store.put(path, buffer.getvalue())
        return buffer.tell()


def _with_map_items(value: Any, name: str = "") -> Any:
    """JSON objects that Arrow has as maps, as lists of pairs."""
    if name in _MAPS and isinstance(value, dict):
        return list(value.items())
    if isinstance(value, dict):
        return {key: _with_map_items(child, key) for key, child in value.items()}
    return value
