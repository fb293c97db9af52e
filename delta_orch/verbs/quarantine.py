"""Keeps the quarantine of a table consistent with the table.

The commits of the table decide. A transfer holds the rows that a commit adds to the quarantine or removes from it. It
consists of Parquet files in the table's directory, which are written before the commit and named after its `txnId`.
`complete_transfers` applies the transfers of committed versions, in their order, and deletes the rows of units that
were undone. A `txn` of the quarantine records the last applied commit. So each commit is applied once, by the first
process that calls `complete_transfers`.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import orjson
import pyarrow as pa

from delta_orch.errors import ConflictError, FileExistsInStoreError, FileMissingInStoreError, TableNotFoundError
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.parse import parse_expression
from delta_orch.expressions.to_sql import to_spark_sql
from delta_orch.expressions.tree import any_of
from delta_orch.log.files.txn import TxnId, is_unit_name
from delta_orch.log.write.staging import write_metrics
from delta_orch.protocol.paths import TRANSFERS_DIRECTORY
from delta_orch.verbs.expect import QUARANTINE_SCHEMA
from delta_orch.verbs.unit_records import unit_predicate
from delta_orch.writing.plan import Source, Write, WritePlan, run_plan

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from delta_orch.log.files.commit_reader import Commit
    from delta_orch.log.read.snapshot import Snapshot
    from delta_orch.log.read.table_log import TableLog
    from delta_orch.log.write.commit_options import CommitOptions
    from delta_orch.storage.base import LogStore
    from delta_orch.writing.target import WriteOptions

_LOGGER = logging.getLogger(__name__)
_ABOUT = b"delta_orch.transfer"
_ATTEMPTS = 20
_PART_BYTES = 64 << 20
_LEAST_AGE_MS = 3_600_000
_RECORDED_EVERY = 20
"""The number of table commits without a transfer after which the quarantine records the newest version."""


# Transfers: written before the commit of the table


def write_transfer(
    store: LogStore,
    commit: str,
    read_version: int | None,
    quarantine: str,
    rows: Iterable[pa.RecordBatch] = (),
    *,
    where: Expression | None = None,
    ids: pa.ChunkedArray | None = None,
) -> None:
    """Write the rows that a commit adds to a quarantine and removes from it. They take effect when the table has the
    commit.

    Args:
        store: The table's root.
        commit: `commitInfo.txnId` of the commit.
        read_version: The version that the commit is based on. None if the commit creates the table.
        quarantine: The location of the quarantine.
        rows: The rows to add (`QUARANTINE_SCHEMA`).
        where: A predicate for the rows to remove.
        ids: The `id` of each row to remove. Then no row is added.

    Raises:
        DeltaError: Reading `rows` failed, or writing the transfer failed (StorageError). The caller must not commit.
    """
    import pyarrow.parquet as pq

    about = {
        "quarantine": quarantine,
        "where": None if where is None else to_spark_sql(where),
        "leaves": ids is not None,
    }
    since = 0 if read_version is None else read_version + 1
    if ids is not None:
        nulls = {field.name: pa.nulls(len(ids), field.type) for field in QUARANTINE_SCHEMA}
        rows = pa.table({**nulls, "id": ids}, QUARANTINE_SCHEMA).to_batches()
    batches, is_empty = iter(rows), where is None
    while True:
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, QUARANTINE_SCHEMA, compression="zstd") as writer:
            writer.add_key_value_metadata({_ABOUT: orjson.dumps(about)})
            count = 0
            for batch in batches:
                writer.write_batch(batch)
                count += batch.num_rows
                if sink.tell() >= _PART_BYTES:
                    break
        if not count and is_empty:
            return
        name = f"{since:020d}-{commit}-{uuid.uuid4().hex[:8]}.parquet"
        store.put_if_absent(f"{TRANSFERS_DIRECTORY}/{name}", sink.getvalue())
        is_empty, about["where"] = True, None


# Completion: after the commit of the table


@dataclass(frozen=True, slots=True)
class _Part:
    """A file of a transfer.

    It has the path, the time of writing, the least version that its commit can have, the commit's `txnId`, the location
    of the quarantine, and the predicate of removed rows. `leaves` is true if the file lists rows to remove.
    """

    path: str
    written_ms: int
    since: int
    commit: str
    quarantine: str
    where: str | None
    leaves: bool
    file: pq.ParquetFile


def complete_transfers(
    log: TableLog,
    newest: Callable[[], Snapshot | None],
    quarantines: Sequence[TableLog],
    open_quarantine: Callable[[str], TableLog],
) -> None:
    """Apply the commits of a table to its quarantines: to the given ones, and to all with an open transfer.

    Args:
        log: The table.
        newest: Returns the newest version of the table. None if there is no table.
        open_quarantine: Opens the log of a quarantine that is not in `quarantines`.

    Raises:
        ConflictError: Other writers changed the quarantine too many times. The table is unchanged, and the next call
            continues.
        DeltaError: As `DeltaTable.overwrite`. The table is unchanged, and the next call continues.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        # The table is read before its transfers. Each commit of this version was made after its transfer, and a
        # transfer is deleted only after the quarantine has recorded its commit.
        table = newest()
        if table is None:
            return
        try:
            parts = _waiting(log.store)
            logs = {one.store.address: one for one in quarantines}
            for part in parts:
                if part.quarantine not in logs:
                    logs[part.quarantine] = open_quarantine(part.quarantine)
            for uri, quarantine in logs.items():
                _bring_up(log, table, quarantine, [part for part in parts if part.quarantine == uri])
            return
        except (ConflictError, FileMissingInStoreError, FileExistsInStoreError):
            # Another process completed the transfers, or changed the quarantine.
            if attempt == _ATTEMPTS:
                raise


def _waiting(store: LogStore) -> list[_Part]:
    import pyarrow.parquet as pq

    parts = []
    for meta in store.list_from(TRANSFERS_DIRECTORY):
        file = pq.ParquetFile(store.open_input(meta.path))
        about = orjson.loads(file.metadata.metadata[_ABOUT])
        since, _, rest = meta.path.rpartition("/")[2].partition("-")
        parts.append(_Part(meta.path, meta.modification_time_ms, int(since), rest[:36], **about, file=file))
    return parts


def _bring_up(log: TableLog, table: Snapshot, quarantine: TableLog, parts: Sequence[_Part]) -> None:
    """Apply the commits of the table that a quarantine has not recorded yet."""
    before = _newest(quarantine)
    app_id = f"quarantine:{table.metadata.id}"
    seen = None if before is None else before.txn_version(app_id)
    if seen is None and not parts:
        return
    start = min(part.since for part in parts) if seen is None else seen + 1
    effects: list[tuple[Commit | None, list[_Part]]] = []
    oldest = table.version + 1
    for newer in log.newest_first(table.version, start):
        oldest = newer.version
        own = [part for part in parts if part.commit == (newer.commit_info or {}).get("txnId")]
        if own or _taken_back(newer):
            effects.insert(0, (newer, own))
    ends = [commit.version for commit, _ in effects if commit is not None]
    if effects or (seen is not None and table.version - seen >= _RECORDED_EVERY):
        ends[-1:] = [table.version]
    for end, (commit, own) in zip(ends, effects or [(None, [])], strict=False):
        if before is None and not own:
            continue
        txn = TxnId(app_id, end, follows=-1 if seen is None else seen)
        taken_back = () if commit is None else _taken_back(commit)
        _apply(quarantine, before, own, taken_back, {"txn": txn, "user_metadata": _user_metadata(commit)})
        before, seen = _newest(quarantine), end
    applied = [part for _, own in effects for part in own]
    _delete(log.store, applied)
    old = [part for part in parts if part not in applied and part.written_ms < _oldest_write_ms(table)]
    if oldest <= start:
        _delete(log.store, old)  # The commits of these transfers failed, because no write takes that long.
    elif old:
        _LOGGER.warning(
            "The log of %s was cleaned up, so it is unknown whether these rows belong in the quarantine: %s",
            log.store.uri,
            ", ".join(part.path for part in old),
        )


def _taken_back(commit: Commit) -> tuple[str, ...]:
    """Return the units whose rows a commit removed from the table, by `undo`, by `restore`, or by a full refresh."""
    is_restore = (commit.commit_info or {}).get("operation") == "RESTORE"
    return tuple(txn.app_id for txn in commit.txns if is_unit_name(txn.app_id) and (is_restore or txn.version < 0))


def _user_metadata(commit: Commit | None) -> str | None:
    user_metadata = None if commit is None else (commit.commit_info or {}).get("userMetadata")
    return user_metadata if isinstance(user_metadata, str) else None


def _apply(
    quarantine: TableLog,
    before: Snapshot | None,
    parts: Sequence[_Part],
    taken_back: Sequence[str],
    options: WriteOptions,
) -> None:
    from delta_orch.verbs.overwrite import replace_rows

    if before is not None and any(part.leaves for part in parts):
        _take_out(quarantine, before, parts, options)
        return
    leaving = [parse_expression(part.where) for part in parts if part.where is not None]
    if taken_back:
        leaving.append(unit_predicate("unit", taken_back))
    batches = (batch for part in parts for batch in part.file.iter_batches() if not part.leaves)
    source = Source(pa.RecordBatchReader.from_batches(QUARANTINE_SCHEMA, batches))

    def change(write: Write) -> dict[str, int]:
        if before is None or not leaving:
            return write_metrics(write.insert())
        return replace_rows(write, any_of(leaving), takes_others=True)

    run_plan(quarantine, before, WritePlan("WRITE", {"mode": "Append"}, change, options, source, "local"))


def _take_out(quarantine: TableLog, before: Snapshot, parts: Sequence[_Part], options: WriteOptions) -> None:
    from delta_orch.verbs.merge.clauses import Action, Clause, Kind
    from delta_orch.verbs.merge.run import MergeRequest, merge
    from delta_orch.verbs.merge.sides import SOURCE, TARGET
    from delta_orch.verbs.merge.upsert import key_condition

    ids = pa.concat_tables([part.file.read(["id"]) for part in parts])
    request = MergeRequest(ids, key_condition(["id"]), SOURCE, TARGET, "local")
    merge(quarantine, before, request, [Clause(Kind.MATCHED, Action.DELETE)], cast("CommitOptions", options))


def _newest(log: TableLog) -> Snapshot | None:
    try:
        return log.newest()
    except TableNotFoundError:
        return None


def _oldest_write_ms(table: Snapshot) -> int:
    return time.time_ns() // 1_000_000 - max(table.properties.deleted_file_retention_ms, _LEAST_AGE_MS)


def _delete(store: LogStore, parts: Sequence[_Part]) -> None:
    from delta_orch.verbs.vacuum import delete_files

    for path, error in delete_files(store, [part.path for part in parts]).items():
        _LOGGER.warning("The applied transfer %s cannot be deleted: %s", path, error)
