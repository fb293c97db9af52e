"""Writing checkpoints (PROTOCOL, "Checkpoints", "Checkpoint Schema").

A checkpoint is created exclusively and whole: a reader sees none or all of it. Its row groups hold one kind of action
each, so that a reader finds the few small actions, the live files and the tombstones without decoding the others. File
actions stream from the previous checkpoint into the new one: memory holds a few row groups, however many files there
are.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from delta_orch.errors import FileExistsInStoreError, FileMissingInStoreError, InvalidRequestError, StorageError
from delta_orch.log.files.commit_json import serialize_actions
from delta_orch.log.files.file_columns import ADD_SCHEMA
from delta_orch.log.read.checkpoint_decoding import iter_live_rows
from delta_orch.log.read.checkpoint_reader import ParquetPart, ensure_agrees
from delta_orch.log.upkeep.checkpoint_columns import (
    TOMBSTONE_COLUMNS,
    CheckpointColumns,
    FileRows,
    file_rows,
    oldest_tombstone_ms,
    parquet_writer,
    small_actions,
    txn_rows,
    unexpired,
    v2_actions,
)
from delta_orch.log.upkeep.checkpoint_pointer import ensure_version_present, point_at
from delta_orch.log.upkeep.sidecar_reuse import SIDECAR_ROWS, KnownSidecar, ReusePlan, plan_reuse
from delta_orch.protocol.action_json import serialize_action
from delta_orch.protocol.actions import Action, CheckpointMetadata, DomainMetadata, JsonValue, Sidecar
from delta_orch.protocol.last_checkpoint import LastCheckpoint
from delta_orch.protocol.paths import LOG_DIRECTORY, SIDECAR_DIRECTORY, LogFileKind, checkpoint_path, parse_log_path
from delta_orch.storage.prefetch import ahead

if TYPE_CHECKING:
    from delta_orch.log.read.snapshot import Snapshot
    from delta_orch.log.read.table_log import TableLog
from delta_orch.storage.base import FileMeta, LogStore

CheckpointPolicy = Literal["classic", "v2"]

_LOGGER = logging.getLogger(__name__)
# As many as are decoded at a time: larger ones took longer to write, and more memory.
_ROW_GROUP_ROWS = 64 * 1024
_FEW_ROWS = 20_000


def write_checkpoint(
    log: TableLog,
    snapshot: Snapshot,
    policy: CheckpointPolicy | None = None,
    v2_format: V2Format = "json",
    watch: Watch = iter,
) -> bool:
    """Write the checkpoint of a snapshot's version, and make `_last_checkpoint` point at it.

    An existing checkpoint of that kind is not changed. Tombstones older than `delta.deletedFileRetentionDuration` and
    transaction identifiers older than `delta.setTransactionRetentionDuration` are left out, and nothing else. A pointer
    to a newer checkpoint is not moved back.

    Args:
        policy: `classic` for one Parquet file (V1), `v2` for a file that refers to sidecars (`checkpoint_v2`); None
            for what the table asks for by `delta.checkpointPolicy`.
        v2_format: Of the file on top of a V2 checkpoint.
        watch: Passes on the live files (columns of `ADD_SCHEMA`) on their way into the checkpoint.

    Returns: Whether `watch` has seen every action. It has not if the checkpoint existed or sidecars were reused.

    Raises:
        UnsupportedFeatureError, UnsupportedVersionError: This release must not write to the table.
        InvalidRequestError: `v2` on a table that does not support the feature v2Checkpoint.
        CorruptLogError: The files of the snapshot cannot be read.
        VersionNotFoundError: The version was deleted meanwhile. No part of a checkpoint is visible.
        ChecksumMismatchError: The version checksum is of another state. No part of a checkpoint is visible.
        StorageError: e.g. a full disk. No part of a checkpoint is visible.
    """
    snapshot.configuration.for_writing()
    ensure_published(log.store, snapshot.version)
    if _is_v2(snapshot, policy):
        return write_v2_checkpoint(log.store, snapshot, v2_format, watch)
    return _write_v1_checkpoint(log.store, snapshot, watch)


def ensure_published(store: LogStore, version: int) -> None:
    """Check that a checkpoint or a compaction may stand for a version (PROTOCOL, "Maintenance Operations on
    Catalog-managed Tables"); publish it if it is not.

    Raises:
        StorageError: It cannot be published now.
    """
    if not store.publish(version):
        raise StorageError(
            f"Version {version} of {store.uri} is not published",
            cause="Its commit could not be copied into the log, and a checkpoint may only stand for published commits",
            remedy="Try again",
            retryable=True,
        )


def _is_v2(snapshot: Snapshot, policy: CheckpointPolicy | None) -> bool:
    supported = snapshot.configuration.supports("v2Checkpoint")
    if policy == "v2" and not supported:
        raise InvalidRequestError(
            "The table cannot have V2 checkpoints",
            cause="Its protocol does not have the feature v2Checkpoint",
            remedy="Set the table property delta.checkpointPolicy to v2 first, or write a classic checkpoint",
        )
    return supported and (policy or snapshot.properties.checkpoint_policy) == "v2"


def _write_v1_checkpoint(store: LogStore, snapshot: Snapshot, watch: Watch) -> bool:
    path = checkpoint_path(snapshot.version)
    last = None
    if store.head(path) is None:
        try:
            last = _create_v1(store, snapshot, path, watch)
        except FileExistsInStoreError:
            _LOGGER.debug("Version %d has a checkpoint by another writer", snapshot.version)
    point_at(store, last or _describe(store, snapshot.version, path))
    return last is not None


def _create_v1(store: LogStore, snapshot: Snapshot, path: str, watch: Watch) -> LastCheckpoint:
    columns = CheckpointColumns.of_snapshot(snapshot)
    schema, expired_ms = columns.arrow_schema, oldest_tombstone_ms(snapshot)
    small = small_actions(schema, snapshot)
    tombstones = unexpired(snapshot.iter_tombstones(TOMBSTONE_COLUMNS), expired_ms)
    counts = {"add": 0, "remove": 0}
    with store.stage_output(LOG_DIRECTORY) as output:
        files = file_rows(columns, schema, watch(snapshot.iter_files()), tombstones, _ROW_GROUP_ROWS)
        # A thread to decode ahead gains nothing where there is little to decode.
        is_small = _has_few_rows(snapshot)
        source = nullcontext(files) if is_small else ahead(files)
        with parquet_writer(output.sink, schema, path, is_small=is_small) as writer, source as pieces:
            num_small = _write_small(writer, small, snapshot)
            for piece in pieces:
                writer.write_table(piece.rows, row_group_size=piece.rows.num_rows)
                counts[piece.action] += piece.rows.num_rows
        _ensure_readable(store, snapshot, counts["add"])
        file = output.put_if_absent(path)
    size = num_small + sum(counts.values())
    return LastCheckpoint(snapshot.version, size, size_in_bytes=file.size, num_of_add_files=counts["add"])


def _write_small(writer: pq.ParquetWriter, small: pa.Table, snapshot: Snapshot) -> int:
    """Write the actions other than files. Transaction identifiers, which may be many, get row groups of their own, so
    that readers find the others without them. Returns: How many actions these are."""
    writer.write_table(small, row_group_size=max(small.num_rows, 1))
    count = int(small.num_rows)
    for rows in txn_rows(small.schema, snapshot, _ROW_GROUP_ROWS):
        writer.write_table(rows, row_group_size=rows.num_rows)
        count += rows.num_rows
    return count


def _ensure_readable(store: LogStore, snapshot: Snapshot, num_adds: int) -> None:
    """Check that the version is still there, and that readers will not refuse its checkpoint for another writer's
    checksum. Raises VersionNotFoundError, ChecksumMismatchError."""
    ensure_version_present(store, snapshot)
    if store.is_near:
        ensure_agrees(store, snapshot.version, snapshot.metadata.id, num_adds)


def _has_few_rows(snapshot: Snapshot) -> bool:
    rows = snapshot.tail.most_files
    if snapshot.checkpoint is not None:
        groups = [*snapshot.checkpoint.row_groups("add"), *snapshot.checkpoint.row_groups("remove")]
        rows += sum(group.num_rows for group in groups)
    return rows <= _FEW_ROWS


def _describe(store: LogStore, version: int, path: str) -> LastCheckpoint:
    """Counts from the footer of a checkpoint, by any writer."""
    file = store.head(path)
    if file is None:
        raise FileMissingInStoreError(
            f"The checkpoint {path} was there and is gone",
            cause="The table was deleted meanwhile, or its log cleaned up",
            remedy="Write a checkpoint of the newest version, where there still is one",
            path=path,
        )
    part = ParquetPart(store, path)
    groups = part.row_groups("add")
    nulls = [group.null_count("add.path") for group in groups]
    # Of a V2 checkpoint the file actions are elsewhere.
    unknown = None in nulls or "sidecar.path" in part.leaves
    num_adds = None if unknown else sum(g.num_rows - (n or 0) for g, n in zip(groups, nulls, strict=True))
    return LastCheckpoint(version, part.metadata.num_rows, size_in_bytes=file.size, num_of_add_files=num_adds)


# V2 checkpoints: one small file that refers to sidecars with the file actions (PROTOCOL, "V2 Spec").
#
# Unchanged sidecars of the previous V2 checkpoint are referred to again (`sidecar_reuse`), so that a checkpoint costs
# as much as what changed.
#
# Readers that do not know UUID-named checkpoints must meet a classic-named one now and then, or they would not find the
# protocol that tells them to give up (PROTOCOL, "Handling Backward compatibility while moving to UUID-named v2
# Checkpoints"). As the file is small, one of ten checkpoints gets a copy by the classic name, and log cleanup sees to
# it that one is left.


V2Format = Literal["json", "parquet"]
Watch = Callable[[Iterator[pa.Table]], Iterator[pa.Table]]


_CHECKPOINTS_PER_CLASSIC_NAME = 10
# `_last_checkpoint` is read by everybody who opens the table: it repeats the checkpoint only where that is short.
_MAX_EMBEDDED_ACTIONS = 30
# Readers parse a JSON checkpoint whole, even for one field.
_MAX_JSON_ACTIONS = 10_000


@dataclass(frozen=True, slots=True)
class _Content:
    """The content of a V2 checkpoint before it is written."""

    snapshot: Snapshot
    columns: CheckpointColumns
    metadata: CheckpointMetadata
    sidecars: tuple[Sidecar, ...]

    @property
    def num_small(self) -> int:
        """How many `small_actions` there are."""
        return 3 + len(self.snapshot.txn_actions) + len(self.snapshot.domain_metadata)

    def small_actions(self) -> list[Action]:
        """Everything but sidecars."""
        snapshot = self.snapshot
        domains = [DomainMetadata(d, text) for d, text in snapshot.domain_metadata.items()]
        return [self.metadata, snapshot.metadata, snapshot.protocol, *snapshot.txn_actions.values(), *domains]

    def to_json(self) -> bytes:
        return serialize_actions([*self.small_actions(), *self.sidecars])

    def to_table(self) -> pa.Table:
        """Everything but transaction identifiers."""
        schema = self.columns.v2_schema
        return pa.concat_tables(
            [v2_actions(schema, self.metadata, self.sidecars), small_actions(schema, self.snapshot)]
        ).combine_chunks()


def write_v2_checkpoint(store: LogStore, snapshot: Snapshot, v2_format: V2Format, watch: Watch = iter) -> bool:
    """Write the V2 checkpoint of a snapshot's version unless there is one, and make `_last_checkpoint` point at it.

    Sidecars come first, the file that refers to them after all of them: until then they are nobody's, and cleanup
    removes them once they are old.

    Returns: Whether `watch` has seen all live files.

    Raises as `checkpoint_writer.write_checkpoint`.
    """
    if _find_uuid_named(store, snapshot.version) is not None:
        _LOGGER.debug("Version %d has a V2 checkpoint already", snapshot.version)
        return False
    columns = CheckpointColumns.of_snapshot(snapshot)
    expired_ms = oldest_tombstone_ms(snapshot)
    plan = plan_reuse(snapshot, columns, expired_ms)
    sidecars = [*plan.reused, *_write_sidecars(store, snapshot, columns, plan, expired_ms, watch)]
    num_adds = sum(sidecar.num_adds for sidecar in sidecars)
    num_file_actions = num_adds + sum(sidecar.num_removes for sidecar in sidecars)
    content = _Content(
        snapshot,
        columns,
        CheckpointMetadata(
            snapshot.version,
            {
                "numOfAddFiles": str(num_adds),
                "sidecarNumActions": str(num_file_actions),
                "sidecarSizeInBytes": str(sum(sidecar.sidecar.size_in_bytes for sidecar in sidecars)),
            },
        ),
        tuple(sidecar.sidecar for sidecar in sidecars),
    )
    _ensure_readable(store, snapshot, num_adds)
    if content.num_small > _MAX_JSON_ACTIONS:
        v2_format = "parquet"
    file = _create(store, content, _uuid_path(snapshot.version, v2_format))
    if _classic_name_is_due(store, snapshot):
        _write_classic_copy(store, content)
    size = num_file_actions + content.num_small + len(content.sidecars)
    size_in_bytes = file.size + sum(s.size_in_bytes for s in content.sidecars)
    point_at(
        store,
        LastCheckpoint(
            snapshot.version, size, size_in_bytes=size_in_bytes, num_of_add_files=num_adds,
            extra={"v2Checkpoint": _embedded(content, file)},
        ),
    )  # fmt: skip
    return not plan.reused


def write_classic_copy_of(store: LogStore, snapshot: Snapshot) -> None:
    """Give the V2 checkpoint that a snapshot is loaded from, and nothing after it, the classic name as well; nothing is
    done where something has that name, or the checkpoint holds file actions itself.

    Raises as `checkpoint_writer.write_checkpoint`.
    """
    checkpoint = snapshot.checkpoint
    if checkpoint is None or checkpoint.version != snapshot.version or not checkpoint.sidecars:
        return
    columns, metadata = CheckpointColumns.of_snapshot(snapshot), CheckpointMetadata(snapshot.version)
    _write_classic_copy(store, _Content(snapshot, columns, metadata, checkpoint.sidecars))


def _write_classic_copy(store: LogStore, content: _Content) -> None:
    path = checkpoint_path(content.snapshot.version)
    try:
        _create_parquet(store, content.to_table(), path, content.snapshot)
    except FileExistsInStoreError:
        _LOGGER.debug("Version %d has a classic-named checkpoint already", content.snapshot.version)


def _write_sidecars(
    store: LogStore, snapshot: Snapshot, columns: CheckpointColumns, plan: ReusePlan, expired_ms: int, watch: Watch
) -> list[KnownSidecar]:
    def adds() -> Iterator[pa.Table]:
        for group in plan.row_groups("add"):
            yield from iter_live_rows(group, "add", ADD_SCHEMA.names, snapshot.tail.touched)
        yield snapshot.tail.adds

    def tombstones() -> Iterator[pa.Table]:
        for group in plan.row_groups("remove"):
            yield from iter_live_rows(group, "remove", TOMBSTONE_COLUMNS, snapshot.tail.touched)
        yield snapshot.tail.tombstones.select(list(TOMBSTONE_COLUMNS))

    # Adds and tombstones apart: tombstones expire, and adds stay what they are for long.
    files = file_rows(columns, columns.sidecar_schema, watch(adds()), unexpired(tombstones(), expired_ms), SIDECAR_ROWS)
    with ahead(files) as pieces:
        return [_write_sidecar(store, piece) for piece in pieces]


def _write_sidecar(store: LogStore, piece: FileRows) -> KnownSidecar:
    name = f"{uuid.uuid4()}.parquet"
    file = _create_parquet(store, piece.rows, f"{SIDECAR_DIRECTORY}/{name}")
    count = piece.rows.num_rows
    is_add = piece.action == "add"
    return KnownSidecar(
        Sidecar(name, file.size, file.modification_time_ms or time.time_ns() // 1_000_000),
        num_adds=count if is_add else 0,
        num_removes=0 if is_add else count,
    )


def _create(store: LogStore, content: _Content, path: str) -> FileMeta:
    if path.endswith(".json"):
        return store.put_if_absent(path, content.to_json())
    return _create_parquet(store, content.to_table(), path, content.snapshot)


def _create_parquet(store: LogStore, rows: pa.Table, path: str, identified: Snapshot | None = None) -> FileMeta:
    """Args:
    identified: Whose transaction identifiers follow."""
    with store.stage_output(path.rpartition("/")[0]) as output:
        with parquet_writer(output.sink, rows.schema, path) as writer:
            if identified is None:
                writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
            else:
                _write_small(writer, rows, identified)
        return output.put_if_absent(path)


def _uuid_path(version: int, v2_format: V2Format) -> str:
    return f"{LOG_DIRECTORY}/{version:020d}.checkpoint.{uuid.uuid4()}.{v2_format}"


def _find_uuid_named(store: LogStore, version: int) -> FileMeta | None:
    prefix = f"{version:020d}.checkpoint."
    for file in store.list_from(LOG_DIRECTORY, prefix):
        name = file.path.rpartition("/")[2]
        if not name.startswith(prefix):
            return None
        path = parse_log_path(name)
        if path is not None and path.kind is LogFileKind.CHECKPOINT_UUID and file.size:
            return file
    return None


def _classic_name_is_due(store: LogStore, snapshot: Snapshot) -> bool:
    """Whether there is no classic-named checkpoint within the last ten checkpoint intervals."""
    span = _CHECKPOINTS_PER_CLASSIC_NAME * snapshot.properties.checkpoint_interval
    start = max(snapshot.version - span + 1, 0)
    for file in store.list_from(LOG_DIRECTORY, f"{start:020d}"):
        path = parse_log_path(file.path.rpartition("/")[2])
        if path is not None and path.version > snapshot.version:
            break
        if path is not None and path.kind is LogFileKind.CHECKPOINT_CLASSIC and file.size:
            return False
    return True


def _embedded(content: _Content, file: FileMeta) -> dict[str, JsonValue]:
    """The checkpoint's fields for `_last_checkpoint`: its path, and its content if that is short."""
    embedded: dict[str, JsonValue] = {
        "path": file.path.rpartition("/")[2],
        "sizeInBytes": file.size,
        "modificationTime": file.modification_time_ms,
    }
    if content.num_small <= _MAX_EMBEDDED_ACTIONS:
        small = map(serialize_action, content.small_actions())
        embedded["nonFileActions"] = [orjson.loads(action) for action in small]
    if len(content.sidecars) <= _MAX_EMBEDDED_ACTIONS:
        embedded["sidecarFiles"] = [orjson.loads(serialize_action(s))["sidecar"] for s in content.sidecars]
    return embedded
