"""Collects the reads, changes and description of a transaction before its commit."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch._version import ENGINE_INFO
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.nodes import Expression
from delta_orch.log.files.commit_json import ensure_json, ensure_mapping, json_parameters
from delta_orch.log.files.effect import EFFECT_KEY, Effect, count_effect, words_of
from delta_orch.log.files.file_columns import FileTable, live_rows, record_counts
from delta_orch.log.files.txn import TxnId
from delta_orch.log.files.unit_tag import shared_units, with_units
from delta_orch.log.write.commit_base import CommitBase
from delta_orch.log.write.commit_checks import (
    begins_to_track_rows,
    ensure_may_remove,
    ensure_may_write_deletion_vectors,
    ensure_no_credential_enters,
)
from delta_orch.log.write.staged_actions import ReadSet, StagedActions, ensure_file_table, keys_of
from delta_orch.protocol.actions import CommitInfo, DomainMetadata, Metadata, Protocol
from delta_orch.protocol.arrow_building import one_chunk
from delta_orch.protocol.paths import canonical_paths
from delta_orch.protocol.table_properties import ensure_no_credential
from delta_orch.redaction import kept
from delta_orch.table.configuration import TableConfiguration
from delta_orch.table.row_tracking import PRESERVED_TAG

if TYPE_CHECKING:
    from pyroaring import BitMap64

    from delta_orch.log.read.snapshot import Snapshot
    from delta_orch.log.write.conflict import Intent
    from delta_orch.log.write.deletion_vector_writer import MarkedRows
    from delta_orch.log.write.staged_actions import RowLook
    from delta_orch.storage.base import LogStore

Metrics = dict[str, int]


@dataclass(slots=True)
class Provenance:
    """The parts of a transaction that are the same in every attempt.

    Attributes:
        operation, parameters: As given; `parameters` become strings.
        user_metadata, more: The caller's own. `more` has no key of this package, but may have further `tags`.
        own_metrics: Operation metrics of the caller; `metrics` of the same name win.
        metrics: Operation metrics of the verb.
        rows_preserved: False where rows were copied without their ids and commit versions.
        predicate: The rows that are deleted, updated or replaced (`Effect.predicate`).
        txn_id: Identifies the commit, even if the answer to the request that wrote it was lost.

    Raises:
        InvalidRequestError: JSON cannot hold `more` or `own_metrics`, `more` has a key that the commit gives itself, or
            one that other clients read as something else, or `user_metadata` is not text.
    """

    operation: str
    parameters: Mapping[str, object]
    user_metadata: str | None = None
    more: Mapping[str, object] = field(default_factory=dict)
    own_metrics: Mapping[str, int | str] = field(default_factory=dict)
    metrics: Mapping[str, int | str] = field(default_factory=dict)
    rows_preserved: bool = True
    predicate: str | None = None
    txn_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def __post_init__(self) -> None:
        if self.user_metadata is not None and not isinstance(self.user_metadata, str):
            raise InvalidRequestError(
                f"user_metadata must be text, not {self.user_metadata!r:.100}",
                remedy="Serialize it, for example as JSON",
            )
        if self.user_metadata is not None:
            ensure_json({"userMetadata": self.user_metadata}, "user_metadata")
            self.user_metadata = kept(self.user_metadata)
        if self.more:
            self.more = kept(ensure_json(self.more, "commit_info"))
            _ensure_readable(self.more)
        if reserved_keys := sorted(_OWN_KEYS & self.more.keys()):
            raise InvalidRequestError(
                f"commit_info cannot have {', '.join(reserved_keys)}",
                cause="The commit itself says what these are",
                remedy="Use names of your own; texts go into user_metadata, figures into operation_metrics",
                keys=reserved_keys,
            )
        if self.own_metrics:
            self.own_metrics = kept(dict(ensure_mapping(self.own_metrics, "operation_metrics")))
            ensure_json(json_parameters(self.own_metrics), "operation_metrics")
        self.parameters = kept(json_parameters(self.parameters))

    @property
    def all_metrics(self) -> dict[str, int | str]:
        return {**self.own_metrics, **self.metrics}

    def commit_info(
        self,
        *,
        now_ms: int,
        read_version: int | None,
        isolation_level: str,
        is_blind_append: bool,
        in_commit_timestamp_ms: int | None,
        tracks_rows: bool,
        effect: Effect | None,
    ) -> CommitInfo:
        """The action, which is the first of every commit."""
        own = {
            "inCommitTimestamp": in_commit_timestamp_ms,
            "timestamp": now_ms,
            "operation": self.operation,
            "operationParameters": self.parameters,
            "operationMetrics": json_parameters(self.all_metrics),
            "readVersion": read_version,
            "isolationLevel": isolation_level,
            "isBlindAppend": is_blind_append,
            EFFECT_KEY: None if effect is None else effect.to_json(),
            "engineInfo": ENGINE_INFO,
            "userMetadata": self.user_metadata,
            "tags": self._tags() if tracks_rows else None,
            "txnId": self.txn_id,
        }
        info = dict(self.more)
        for key, value in own.items():
            if value is not None:
                info[key] = value
        return CommitInfo(info)

    def _tags(self) -> dict[str, object]:
        tags = self.more.get("tags")
        own = {PRESERVED_TAG: "true" if self.rows_preserved else "false"}
        return {**(tags if isinstance(tags, dict) else {}), **own}


def _ensure_readable(more: Mapping[str, object]) -> None:
    """Other clients read these as texts, or as mappings to texts, and otherwise fail to read the history."""
    for key in ("userId", "userName", "clusterId", "job", "notebook", "tags"):
        value, is_text = more.get(key), key in ("userId", "userName", "clusterId")
        parts = list(value.values()) if isinstance(value, dict) else []
        fits = isinstance(value, str) if is_text else isinstance(value, dict) and all(isinstance(p, str) for p in parts)
        if value is not None and not fits:
            raise InvalidRequestError(
                f"commit_info has a {key} that is not {'text' if is_text else 'a mapping to texts'}",
                cause=f"Other clients could not read the history: {value!r:.100}",
                remedy="Write it as text, or under a name of your own",
                keys=[key],
            )


_OWN_KEYS = frozenset(
    {
        "version",
        "inCommitTimestamp",
        "timestamp",
        "operation",
        "operationParameters",
        "operationMetrics",
        "readVersion",
        "isolationLevel",
        "isBlindAppend",
        EFFECT_KEY,
        "engineInfo",
        "userMetadata",
        "txnId",
    }
)


class Staging:
    """The half of a transaction that verbs use. Nothing is written here.

    Attributes:
        snapshot: The version the change starts from; None for a table that is yet to be created.
    """

    def __init__(self, snapshot: Snapshot | None, provenance: Provenance, txns: Sequence[TxnId]) -> None:
        """Raises UnsupportedFeatureError, UnsupportedVersionError: This release must not write to the table."""
        self.snapshot = snapshot
        self._txns = tuple(txns)
        # The newest version this transaction is known to fit behind; None while it means to create the table.
        self._base = None if snapshot is None else CommitBase.of_snapshot(snapshot)
        self._provenance = provenance
        self._last_result: TableConfiguration | None = None
        self._reads = ReadSet()
        self._staged = StagedActions()
        self._moves_across_scopes = False
        self._keys_read: pa.Array | None = None
        self._marks: MarkedRows | None = None
        self._effect: Effect | None = None
        self._taken_back: Mapping[str, int] = {}
        # Files that must be as durable as the commit that names them.
        self._just_written: list[pa.Table] = []

    # Reads

    def read_whole_table(self) -> None:
        """The change depends on every row."""
        self._reads.whole_table = True

    def read_where(self, where: Expression) -> None:
        """Declare that the change depends on the rows for which `where` (resolved against the schema) is true."""
        self._reads.predicates.append(where)

    def read_across_scopes(self) -> None:
        """Rows that come into partitions whose identifier another run records concern the change all the same."""
        self._reads.across_scopes = True

    def move_across_scopes(self) -> None:
        """Rows may come out of one partition into another. Where another run records the identifier of one of them
        first, that is a conflict: without it the rows would be lost, or there twice."""
        self._moves_across_scopes = True

    def read_partitions(self, values: pa.Table) -> None:
        """The change depends on these partitions: one string column a partition column, spelled as in the log."""
        self._reads.partitions.append(values)

    def read_files(self, files: pa.Table) -> None:
        """The change depends on these files (`path`, `dv_id`)."""
        self._reads.files.append(keys_of(files))

    def read_rows(self, files: pa.Table) -> None:
        """Declare that every row of these files (`path`, live in the snapshot) was read. Whatever else names them, the
        change depends on none but those that it deletes by `delete_rows`.

        It then does not matter to the transaction what becomes of the others: neither that another commit deletes them,
        nor that it rewrites the file without them.
        """
        self._reads.looked_at.append(one_chunk(canonical_paths(FileTable(files).path)))

    def relies_on_unnamed_files(self) -> None:
        """The change adds files that were there before, and that the log did not name. A vacuum that begins before the
        commit may delete them: it is a conflict. One that begins later finds them named."""
        self._reads.unnamed_files = True

    def look_by(self, look: RowLook) -> None:
        """How to tell whether rows that another commit has added, or deleted, should have been read, or were.

        It is asked about a few files of which statistics alone say that they may hold rows for which a predicate of
        `read_where` is true. A transaction without it ends in a conflict there.

        Args:
            look: Is given some files (columns of `file_columns.ADD_SCHEMA`; their vectors may be made up) and the
                disjunction of those predicates, and reads the live rows as those of the snapshot's table. Returns the
                path of a file with a row on which the change depends, or would have depended; None where there is no
                such row. A `DeltaError` counts as a conflict.
        """
        self._reads.look = look

    # Changes

    def add_files(self, adds: pa.Table, *, just_written: bool = False) -> None:
        """Add files whose rows are new to the table: columns of `file_columns.ADD_SCHEMA`. Each is tagged with the unit
        that writes it (`TxnId.is_unit`). Raises InvalidRequestError where they are not such files.

        Args:
            just_written: They were written for this commit and may not be on disk yet. The commit becomes visible only
                after they are (`LogStore.stage`).
        """
        adds = ensure_file_table(adds)
        self._add(with_units(adds, self._own_units(adds)) if self._txns else adds, 0, just_written=just_written)

    def add_moved_files(
        self,
        adds: pa.Table,
        sources: pa.Table,
        keys: tuple[pa.Array, pa.Array] | None = None,
        *,
        num_new: int = 0,
    ) -> None:
        """Add files, just written, that hold rows of files of the snapshot, as they were or updated. Each has the unit
        that its sources share.

        Args:
            sources: The others, with their tags; their removal, or their deletion vectors, are staged apart.
            keys: Map files to the sources of their rows (`unit_tag.shared_units`).
            num_new: So many of the rows are new to the table, in whichever of the files. Then the commit's own unit has
                to be the one that the sources share.
        """
        adds, rows = ensure_file_table(adds), live_rows(adds)
        units = shared_units(sources, keys, adds.num_rows)
        if num_new and units.null_count < len(units):
            is_own = pc.fill_null(pc.equal(units, self._own_units(adds)), False)
            units = pc.if_else(is_own, units, pa.nulls(1, pa.string())[0])
        self._add(with_units(adds, units), None if rows is None else rows - num_new, just_written=True)

    def add_known_files(self, adds: pa.Table, *, just_written: bool = False) -> None:
        """Add files as they are, with their tags. Which of their rows the commit removes from others is not known.
        Arguments as of `add_files`."""
        self._add(ensure_file_table(adds), None, just_written=just_written)

    def _add(self, adds: pa.Table, moved: int | None, *, just_written: bool) -> None:
        self._staged.add(adds, moved)
        if just_written:
            self._just_written.append(adds)

    def _own_units(self, adds: pa.Table) -> pa.Array:
        """The unit of each file, where the commit writes it; null for none."""
        units = [txn for txn in self._txns if txn.is_unit]
        own_units = pa.nulls(adds.num_rows, pa.string())
        if len(units) == 1 and units[0].scope is None:
            return pc.fill_null(own_units, units[0].app_id)
        scoped = [(unit, unit.scope) for unit in units if unit.scope is not None]
        if scoped and adds.num_rows:
            from delta_orch.log.read.skipping.data_skipping import match_files

            table = self._result()
            for unit, scope in scoped:
                is_inside = match_files(adds, scope, table.schema, table.partition_columns).all_match
                own_units = pc.if_else(is_inside, unit.app_id, own_units)
        return own_units

    def note_predicate(self, predicate: str | Expression | None) -> None:
        """The rows that are deleted, updated or replaced (`Effect.predicate`)."""
        self._provenance.predicate = None if predicate is None else kept(words_of(predicate))

    def add_change_files(self, files: pa.Table, *, just_written: bool = False) -> None:
        """Name files that tell the commit's changes row by row (PROTOCOL, "Add CDC File"): `path`, `partition_values`
        and `size`. Where a commit names one, readers of changes look at no other files of it.

        Args:
            just_written: As of `add_files`.
        """
        self._staged.changes.append(ensure_file_table(files))
        if just_written:
            self._just_written.append(files)

    def remove_files(self, files: pa.Table, *, data_change: bool = True) -> None:
        """Remove files of the snapshot: `path`, `dv_id`, `partition_values`, `size`, and what else there is of
        `file_columns.ADD_SCHEMA`. `data_change` is false where other files hold the same rows.

        Raises:
            AppendOnlyError: The table keeps its rows (PROTOCOL, "Append-only Tables").
            InvalidRequestError: The table of files is malformed.
        """
        self._staged.removes.append((ensure_file_table(files), data_change))
        ensure_may_remove(self._staged, self._before)

    def keep_until_expired(self, paths: Sequence[str]) -> None:
        """Add tombstones of files other than data files, so that vacuum keeps them as long as the versions that need
        them. A table that no longer has deletion vectors needs that for their files.

        Args:
            paths: Spelled as in the log.
        """
        self._staged.tombstones = tuple(paths)

    def delete_rows(self, files: pa.Table, positions: Sequence[BitMap64]) -> pa.Table:
        """Delete rows of files by marking them (PROTOCOL, "Deletion Vectors"). A file without a row left stays.

        Behind a commit that marks other rows of the same files the transaction puts its own on top of those; behind one
        that marks some of them it ends in a conflict. Which rows it has read is to be told by `read_where` and the
        like, and by `read_rows` where every row of the files was looked at. Statistics keep their counts and say
        that bounds are wide; row ids and commit versions stay. The vectors are written when the commit is.

        Args:
            files: Live files of the snapshot with all columns of `file_columns.ADD_SCHEMA`, each once in a transaction.
            positions: One bitmap a file: the positions of the rows in it, deleted rows counted, none of them deleted
                already. A file without one stays as it is.

        Returns: The files that return with another vector, columns of `ADD_SCHEMA`.

        Raises:
            AppendOnlyError: The table keeps its rows.
            InvalidRequestError: The table does not allow new deletion vectors (`delta.enableDeletionVectors`), a file
                lacks its number of records, or a row is not in the table.
            MissingFileError, CorruptDeletionVectorError, StorageError: The vector of a file cannot be read.
        """
        from delta_orch.log.write.deletion_vector_writer import MarkedRows, join_marked

        assert self.snapshot is not None
        result = self._result()
        ensure_may_write_deletion_vectors(result)
        result.ensure_rows_may_leave()
        properties = result.properties
        prefix_length = properties.random_prefix_length if properties.randomize_file_prefixes else None
        marks = MarkedRows.of_snapshot(self.snapshot.store, files, positions, prefix_length)
        adds = marks.stage(self._staged)
        self._marks = marks if self._marks is None else join_marked(self._marks, marks)
        return adds

    def update_metadata(self, metadata: Metadata, known: Metadata | None = None) -> None:
        """Replace the table's metadata. Where rows of other writers must fit it, read the whole table too.

        Args:
            known: Where it comes from, if not from the table itself. What is there already is not looked at again.

        Raises:
            InvalidPropertyError: A text in it holds a credential.
        """
        before = None if self._before is None else self._before.metadata
        ensure_no_credential_enters(metadata, known or before)
        self._staged.metadata = metadata

    def update_protocol(self, protocol: Protocol) -> None:
        self._staged.protocol = protocol

    def set_domain_metadata(self, domain: str, configuration: str, *, removed: bool = False) -> None:
        """Set a metadata domain, or remove it; the commit then repeats the configuration it had (PROTOCOL, "Domain
        Metadata"). The high-water mark of row ids is kept by the transaction itself.

        Raises InvalidPropertyError: The name or the configuration holds a credential.
        """
        if not removed and not domain.startswith("delta."):
            ensure_no_credential(domain, "name of a metadata domain")
            ensure_no_credential(configuration, f"metadata domain {domain}")
        self._staged.domain_metadata[domain] = DomainMetadata(domain, configuration, removed)

    def take_back(self, versions: Mapping[str, int]) -> None:
        """Record these versions of application ids, though later ones are recorded. They keep nothing out; another
        commit that records one of these ids first is a conflict."""
        self._taken_back = versions

    def set_operation_metrics(self, metrics: Mapping[str, int | str]) -> None:
        """`commitInfo.operationMetrics`, in addition to those of the caller."""
        self._provenance.metrics = dict(metrics)

    def note_unpreserved_rows(self) -> None:
        """Rows were copied to other files without their ids and commit versions (PROTOCOL, "Row Tracking")."""
        self._provenance.rows_preserved = False

    # Results

    def _count_rows(self) -> Effect | None:
        """The effect of the commit on rows; None if it names no files."""
        staged = self._staged
        if self._effect is None and (staged.num_added or staged.num_removed):
            # As they were added, they may have changed no data.
            removes = [_without(files, "data_change") for files, data_change in staged.removes if data_change]
            adds = zip(staged.adds, staged.moved, strict=True)
            self._effect = count_effect(adds, removes, self._provenance.predicate, self._live_rows)
        return self._effect

    def _live_rows(self, files: pa.Table) -> int | None:
        """The rows of files that are removed: if not these themselves, the snapshot has their statistics."""
        if self.snapshot is not None and "stats" not in files.column_names:
            paths = one_chunk(canonical_paths(FileTable(files).path))
            live_files = self.snapshot.files_at(paths, ("path", "dv_id", "stats"))
            places = pc.index_in(keys_of(files), value_set=keys_of(live_files))
            files = files.append_column("stats", pc.take(one_chunk(FileTable(live_files).stats), places))
        return live_rows(files)

    def _result(self) -> TableConfiguration:
        """The table as it will be after the commit.

        Raises:
            InvalidRequestError: The table is to be created, and one of them is missing.
        """
        result, last = self._staged.result_after(self._before), self._last_result
        # What the last one has parsed is not parsed again.
        if last is None or last.protocol is not result.protocol or last.metadata is not result.metadata:
            self._last_result = last = result
        return last

    @property
    def has_changes(self) -> bool:
        """Whether anything is staged that a commit would be made for; identifiers (`txn`) are not."""
        return not self._staged.is_empty or bool(self._taken_back)

    @property
    def _before(self) -> TableConfiguration | None:
        return None if self._base is None else self._base.table

    def _intend(
        self,
        table: TableConfiguration,
        txns: Sequence[TxnId],
        skipped: Sequence[TxnId],
        isolation_level: str | None,
        store: LogStore,
    ) -> Intent:
        """The intent that earlier commits are checked against.

        Args:
            table: As the newest version has it that this is known to fit behind.
            txns, skipped: The identifiers it carries, and those it found recorded.
            isolation_level: None takes the table's.
            store: The table's.
        """
        from delta_orch.log.write.conflict import Intent

        result = self._result()
        return Intent(
            reads=self._reads,
            keys_read=self._files_read,
            removed_keys=self._staged.removed_keys(),
            added_again=self._staged.added_again(self._reads.files),
            changes_data=self._staged.changes_data,
            changes_metadata=self._staged.metadata is not None,
            begins_to_track_rows=begins_to_track_rows(self._before, result),
            app_ids=dict.fromkeys(self._taken_back)
            | {txn.app_id: txn.version if txn.ordered else None for txn in txns},
            domains=frozenset(self._staged.domain_metadata),
            isolation_level=isolation_level or result.properties.isolation_level,
            settled_scopes=tuple(txn.scope for txn in skipped if txn.scope is not None),
            table=table,
            store=store,
        )

    def _files_read(self) -> pa.Array:
        if self._keys_read is None:
            self._keys_read = pa.nulls(0, pa.string()) if self.snapshot is None else self._reads.keys_in(self.snapshot)
        return self._keys_read


def _without(files: pa.Table, column: str) -> pa.Table:
    return files.select([name for name in files.column_names if name != column])


def write_metrics(adds: pa.Table, removed: pa.Table | None = None) -> Metrics:
    """`operationMetrics` of a write, under the names of the reference implementation. `numOutputRows` is left out where
    a file does not say how many rows it has."""
    metrics = {"numFiles": adds.num_rows, "numOutputBytes": FileTable(adds).size_bytes}
    counts = record_counts(adds)
    if not counts.null_count:
        metrics["numOutputRows"] = pc.sum(counts).as_py() or 0
    if removed is not None:
        metrics["numRemovedFiles"] = removed.num_rows
        metrics["numRemovedBytes"] = FileTable(removed).size_bytes
    return metrics
