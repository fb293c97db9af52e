"""A snapshot: one version of a table, immutable; and its files, those of the checkpoint that count and those of the
commits after it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from delta_orch.arguments import checked
from delta_orch.errors import ColumnNotFoundError, ProtocolViolationError
from delta_orch.log.files.commit_reader import Commit, commit_timestamp_ms, read_commit
from delta_orch.log.read.replay import Tail
from delta_orch.log.read.segment import LogSegment
from delta_orch.protocol.actions import Metadata, Protocol, Txn
from delta_orch.protocol.paths import checksum_path, commit_path
from delta_orch.protocol.table_properties import TableProperties
from delta_orch.protocol.types import StructType
from delta_orch.storage.base import LogStore
from delta_orch.table.configuration import TableConfiguration
from delta_orch.table.registry import ensure_asks_catalog, supported_features

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.expressions.nodes import Expression
    from delta_orch.log.files.recorded_txns import RecordedTxns, TxnVersions
    from delta_orch.log.read.checkpoint_files import CheckpointFileActions
    from delta_orch.log.read.checkpoint_reader import Checkpoint
    from delta_orch.log.read.checksum_file import ChecksumValidation
    from delta_orch.log.read.skipping.data_skipping import Pruning
    from delta_orch.protocol.schema_edit import Path
    from delta_orch.protocol.version_checksum import VersionChecksum
    from delta_orch.table.column_details import ColumnDetails


@checked
class Snapshot:
    """One version of a table: the checkpoint, if the log has one, and the reconciled commits after it (the tail).

    Made by `TableLog.snapshot` and `TableLog.advance`. File lists are Arrow tables; of a checkpoint only the columns
    somebody asks for are ever decoded. Protocol and metadata come from these files and never from a version checksum,
    although that has them, too: nothing proves that it agrees with the log (see `checksum_file`).

    Attributes:
        store: Where the table lies.
        segment: The log files this version is made of.
        configuration: Protocol and metadata of this version, and what follows from them.
    """

    def __init__(
        self,
        store: LogStore,
        segment: LogSegment,
        checkpoint: Checkpoint | None,
        tail: Tail,
        previous: Snapshot | None = None,
    ) -> None:
        """Args:
            previous: An older snapshot on the same checkpoint, whose decoded columns are shared.

        Raises:
            ProtocolViolationError: The log has no protocol or no metadata.
            UnsupportedFeatureError, UnsupportedVersionError: This version needs what this release does not read.
        """
        self.store = store
        self.segment = segment
        self.checkpoint = checkpoint
        self.tail = tail
        protocol, metadata = _required(store, segment.version, checkpoint, tail)
        configuration_before = None if previous is None else previous.configuration
        self.configuration: TableConfiguration = (
            configuration_before
            if configuration_before is not None
            and configuration_before.protocol is protocol
            and configuration_before.metadata is metadata
            else self._read_configuration(protocol, metadata)
        )
        # Files of an older snapshot on the same checkpoint, if it has decoded any.
        self._older_files: LiveFiles | None = None
        if previous is not None and checkpoint is not None:
            self._older_files = previous.__dict__.get("_files", previous._older_files)

    def _read_configuration(self, protocol: Protocol, metadata: Metadata) -> TableConfiguration:
        configuration = TableConfiguration.for_reading(protocol, metadata)
        ensure_asks_catalog(configuration.protocol, self.store.is_catalog_managed, self.store.uri)
        # Now, so that a version whose schema cannot be read fails as it is opened.
        _ = configuration.schema
        return configuration

    def __repr__(self) -> str:
        # A debugger shows it while it is being made.
        place = f"{self.store.uri} version {self.version}" if hasattr(self, "segment") else "not yet open"
        return f"<{type(self).__name__} {place}>"

    @property
    def version(self) -> int:
        """Its number, from 0."""
        return self.segment.version

    @cached_property
    def timestamp_ms(self) -> int:
        """When this version was committed, in milliseconds since the epoch, as `history`, time travel and the change
        feed tell it (PROTOCOL, "In-Commit Timestamps").

        The in-commit timestamp where this version has them enabled. Else the time of its file, at least a millisecond
        after that of the version before, for which the log is listed once; where its commit was cleaned up, the time
        of its checkpoint as it is.
        """
        if self._has_commit and not self.properties.enable_in_commit_timestamps:
            from delta_orch.log.read.time_travel import read_adjusted_file_times

            times = read_adjusted_file_times(self.store, self.version)
            # Cleaned up since this version was read, or not listed yet: then the time of the file as it was found.
            return times.get(self.version, self.recorded_timestamp_ms)
        return self.recorded_timestamp_ms

    @cached_property
    def recorded_timestamp_ms(self) -> int:
        """As `timestamp_ms`, but the time of a file as it is: no log is listed, and a version may seem older than the
        one before it."""
        if not self.properties.enable_in_commit_timestamps:
            return self.segment.version_file.modification_time_ms
        if self.tail.commit_info is not None:
            return commit_timestamp_ms(self.tail.commit_info, self.segment.version_file)
        if not self._has_commit:
            return self.segment.version_file.modification_time_ms
        return read_commit(self.store, self.segment.version_file, self.version).timestamp_ms

    @property
    def _has_commit(self) -> bool:
        return self.segment.version_file.path == commit_path(self.version)

    @property
    def protocol(self) -> Protocol:
        """The protocol action in force."""
        return self.configuration.protocol

    @property
    def metadata(self) -> Metadata:
        """The metadata action in force."""
        return self.configuration.metadata

    @property
    def schema(self) -> StructType:
        """The columns, partition columns included."""
        return self.configuration.schema

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The logical names of the partition columns, in the order of directories. Empty for a table without any."""
        return self.configuration.partition_columns

    @property
    def properties(self) -> TableProperties:
        """The table properties, typed. A property with an invalid value raises InvalidPropertyError on access."""
        return self.configuration.properties

    @cached_property
    def txn_actions(self) -> RecordedTxns:
        """The newest `txn` of each app id; without those that `delta.setTransactionRetentionDuration` has expired by
        the time of the first call (one that does not say when it was written stays)."""
        return self._txns_since(self._oldest_txn_ms())

    @property
    def every_txn(self) -> RecordedTxns:
        """The newest `txn` of each app id, expired ones included."""
        return self._txns_since(None)

    def _txns_since(self, oldest_ms: int | None) -> RecordedTxns:
        from delta_orch.log.files.recorded_txns import RecordedTxns

        older = RecordedTxns((), {}) if self.checkpoint is None else self.checkpoint.txns
        return older.since(self.tail.txns, oldest_ms)

    @property
    def txns(self) -> TxnVersions:
        """App id → version, of `txn_actions`. A lookup is fast; to iterate takes seconds if there are millions."""
        from delta_orch.log.files.recorded_txns import TxnVersions

        return TxnVersions(self.txn_actions)

    def txn_version(self, app_id: str) -> int | None:
        """The version recorded for an app id; the checkpoint is only read where the tail does not know it."""
        return self.txn_versions((app_id,))[app_id]

    def txn_versions(self, app_ids: Sequence[str]) -> Mapping[str, int | None]:
        """As `txn_version`, of some app ids: of many at once, it takes no longer."""
        oldest_ms = self._oldest_txn_ms()
        recorded_txns = {app_id: txn for app_id in app_ids if (txn := self.tail.txns.get(app_id)) is not None}
        if len(recorded_txns) < len(app_ids) and self.checkpoint is not None:
            recorded_txns = (
                self.checkpoint.txns.among([app_id for app_id in app_ids if app_id not in recorded_txns])
                | recorded_txns
            )
        return {
            app_id: txn.version
            if (txn := recorded_txns.get(app_id)) is not None and _is_retained(txn, oldest_ms)
            else None
            for app_id in app_ids
        }

    def _oldest_txn_ms(self) -> int | None:
        retention_ms = self.properties.set_transaction_retention_ms
        return None if retention_ms is None else time.time_ns() // 1_000_000 - retention_ms

    @cached_property
    def domain_metadata(self) -> Mapping[str, str]:
        """Domain → configuration, without removed domains."""
        base = {} if self.checkpoint is None else self.checkpoint.domain_metadata
        every = {**base, **self.tail.domain_metadata}
        return {domain: action.configuration for domain, action in every.items() if not action.removed}

    @cached_property
    def columns(self) -> tuple[ColumnDetails, ...]:
        """Each column and nested field with its metadata: generated, identity, default, invariant, declared type,
        collations, column mapping, earlier types.

        Raises:
            ProtocolViolationError: The metadata of a column is malformed.
        """
        from delta_orch.table.column_details import column_details

        return column_details(self.schema)

    @property
    def constraints(self) -> Mapping[str, str]:
        """CHECK constraints by name, as text in Spark SQL (PROTOCOL, "CHECK Constraints")."""
        from delta_orch.table.column_definitions import constraints_of

        return constraints_of(self.metadata.configuration)

    @property
    def clustering_columns(self) -> tuple[tuple[str, ...], ...] | None:
        """The paths of the columns the table is clustered by, under their logical names; None for a table that is not
        clustered (PROTOCOL, "Clustered Table").

        Raises:
            ProtocolViolationError: The metadata domain `delta.clustering` is malformed or names a missing column.
        """
        from delta_orch.table.clustering import CLUSTERING_DOMAIN, logical_path, parse_clustering

        stored = parse_clustering(self.domain_metadata.get(CLUSTERING_DOMAIN))
        if stored is None:
            return None
        paths = [logical_path(self.schema, physical) for physical in stored]
        if None in paths:
            raise ProtocolViolationError(
                f"The metadata domain {CLUSTERING_DOMAIN} names a column that the schema does not have",
                cause=f"It names {', '.join('.'.join(physical) for physical in stored)}",
                domain=CLUSTERING_DOMAIN,
            )
        return tuple(path for path in paths if path is not None)

    @property
    def clustering(self) -> tuple[Path, ...] | None:
        """As `clustering_columns`, under their physical names, whether or not the schema has them. The checkpoint is
        only read where the table may be clustered. Raises ProtocolViolationError where the domain is malformed."""
        if not self.configuration.supports("clustering"):
            return None
        from delta_orch.table.clustering import CLUSTERING_DOMAIN, parse_clustering

        return parse_clustering(self.domain_metadata.get(CLUSTERING_DOMAIN))

    @property
    def features(self) -> frozenset[str]:
        """The table features that this version supports: those its protocol lists, and those its versions imply."""
        return supported_features(self.protocol)

    @cached_property
    def num_files(self) -> int:
        """Number of live files."""
        return self._files.num_adds

    def most_files(self) -> int:
        """No fewer than there are live files. Of a checkpoint only footers are read."""
        groups = [] if self.checkpoint is None else self.checkpoint.row_groups("add")
        return int(self.tail.adds.num_rows) + sum(group.num_rows for group in groups)

    @cached_property
    def size_bytes(self) -> int:
        """Sum of the sizes of the live files."""
        return self._files.size_bytes

    def files(self, columns: Sequence[str] | None = None, where: Expression | None = None) -> pa.Table:
        """The live files, one row each.

        Args:
            columns: Names of `file_columns.ADD_SCHEMA`, in the order wanted; None for all. Only what is named is
                decoded.
            where: Leave out files without a row for which this is true, as far as partition values and statistics
                tell; resolved against `schema`. Of a checkpoint only the row groups are decoded further whose
                partition values fit.

        Raises:
            ColumnNotFoundError: An unknown name.
            CorruptLogError: A file of the checkpoint is damaged.
            IncompleteCheckpointError: One is gone.
        """
        if where is None:
            return self._files.adds(columns)
        from delta_orch.log.read.skipping.data_skipping import Pruning

        return self._files.adds(columns, Pruning(where, self.schema, self.partition_columns))

    def files_at(self, paths: pa.Array, columns: Sequence[str]) -> pa.Table:
        """As `files`, of the live files with one of these canonical paths alone: of a checkpoint, no other row group is
        decoded further."""
        return self._files.adds_at(paths, columns)

    def tombstones(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The removed files the log still remembers, columns of `file_columns.REMOVE_SCHEMA`; expired ones included.

        Checkpoints keep neither statistics nor tags of them. Raises as `files`.
        """
        return self._files.tombstones(columns)

    def iter_files(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """`files(columns)` in pieces, for who must not hold all of it: nothing of a piece is kept."""
        from delta_orch.log.files.file_columns import ADD_SCHEMA

        return self._files.iter_adds(_file_columns(columns, ADD_SCHEMA))

    def iter_tombstones(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """`tombstones(columns)` in pieces, as `iter_files`."""
        from delta_orch.log.files.file_columns import REMOVE_SCHEMA

        return self._files.iter_tombstones(_file_columns(columns, REMOVE_SCHEMA))

    def validate(self) -> ChecksumValidation:
        """Hold this state against its version checksum (PROTOCOL, "State Validation"). Nothing is changed.

        Returns: Which fields were compared; none where the version has no checksum.

        Raises:
            ChecksumMismatchError: They disagree; every field that does is named.
            CorruptLogError: The checksum cannot be read, or the log is damaged.
        """
        from delta_orch.log.read.checksum_file import read_version_checksum, validated

        checksum, path = read_version_checksum(self.store, self.version), checksum_path(self.version)
        if checksum is None:
            return validated(self.version, None, ())
        return validated(self.version, path, _compare(self, checksum, path))

    @cached_property
    def _files(self) -> LiveFiles:
        return LiveFiles(self.checkpoint, self.tail, self._older_files)


def read_own_commit(snapshot: Snapshot) -> Commit | None:
    """The version's commit, None where it was cleaned up."""
    meta = snapshot.segment.version_file
    is_commit = meta.path.endswith(f"/{snapshot.version:020d}.json")
    return read_commit(snapshot.store, meta, snapshot.version) if is_commit else None


def _compare(snapshot: Snapshot, checksum: VersionChecksum, path: str) -> Iterator[tuple[str, object, object]]:
    """Field, recorded value, value of the state; for every field that can be compared."""
    from delta_orch.log.read import checksum_file

    yield "numFiles", checksum.num_files, snapshot.num_files
    yield "tableSizeBytes", checksum.table_size_bytes, snapshot.size_bytes
    # A snapshot has exactly one of each, or it could not be made.
    yield "numMetadata", checksum.num_metadata, 1
    yield "numProtocol", checksum.num_protocol, 1
    if checksum.metadata is not None:
        recorded, computed = map(checksum_file.comparable_metadata, (checksum.metadata, snapshot.metadata))
        yield "metadata", recorded, computed
    if checksum.protocol is not None:
        recorded_protocol, protocol = map(checksum_file.comparable_protocol, (checksum.protocol, snapshot.protocol))
        yield "protocol", recorded_protocol, protocol
    yield from checksum_file.compare_commit(read_own_commit(snapshot), checksum)
    if checksum.txns is not None:
        txns = checksum_file.comparable_txns(checksum.txns, snapshot.every_txn, snapshot.txn_actions)
        yield "setTransactions", *txns
    if checksum.domain_metadata is not None:
        domains = {d.domain: d.configuration for d in checksum.domain_metadata if not d.removed}
        yield "domainMetadata", domains, dict(snapshot.domain_metadata)
    yield from checksum_file.compare_files(snapshot.files, checksum, path)


class LiveFiles:
    """The live files and the tombstones of one version. Decoded parts of the checkpoint are kept and shared.

    Args:
        older: The files of an older version on the same checkpoint.
    """

    def __init__(self, checkpoint: Checkpoint | None, tail: Tail, older: LiveFiles | None) -> None:
        self._checkpoint = checkpoint
        self._tail = tail
        self._older = older

    @property
    def num_adds(self) -> int:
        """Number of live files."""
        adds = self._checkpoint_adds
        return int(self._tail.adds.num_rows) + (0 if adds is None else adds.num_rows)

    @property
    def size_bytes(self) -> int:
        """Sum of the sizes of the live files."""

        from delta_orch.log.files.file_columns import FileTable

        return FileTable(self.adds(["size"])).size_bytes

    def adds(self, columns: Sequence[str] | None = None, pruning: Pruning | None = None) -> pa.Table:
        """The live files. See `Snapshot.files`."""
        from delta_orch.log.files.file_columns import ADD_SCHEMA

        base, tail = self._checkpoint_adds, self._tail.adds
        if pruning is not None:
            base, tail = base and pruning.of_checkpoint(base), pruning.of_table(tail)
        return _concatenate(base, tail, ADD_SCHEMA, columns)

    def adds_at(self, paths: pa.Array, columns: Sequence[str]) -> pa.Table:
        """The live files at some paths. See `Snapshot.files_at`."""
        import delta_orch.arrow_compute as pc
        from delta_orch.log.files.file_columns import ADD_SCHEMA, FileTable
        from delta_orch.protocol.arrow_building import one_chunk
        from delta_orch.protocol.paths import canonical_paths

        def are_at(spelled: pa.ChunkedArray) -> pa.BooleanArray:
            return one_chunk(pc.is_in(canonical_paths(spelled), value_set=paths))

        base, tail = self._checkpoint_adds, self._tail.adds
        narrowed = None if base is None else base.where_rows(lambda rows: are_at(rows.paths))
        return _concatenate(narrowed, pc.filter(tail, are_at(FileTable(tail).path)), ADD_SCHEMA, columns)

    def tombstones(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The removed files. See `Snapshot.tombstones`."""
        from delta_orch.log.files.file_columns import REMOVE_SCHEMA

        return _concatenate(self._checkpoint_removes, self._tail.tombstones, REMOVE_SCHEMA, columns)

    def iter_adds(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """As `adds`, in pieces; nothing of a piece is kept."""
        if self._checkpoint is not None:
            from delta_orch.log.read.checkpoint_decoding import iter_live

            yield from iter_live(self._checkpoint, "add", columns, self._tail.touched)
        yield self._tail.adds.select(list(columns))

    def iter_tombstones(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """As `tombstones`, in pieces; nothing of a piece is kept."""
        if self._checkpoint is not None:
            from delta_orch.log.read.checkpoint_decoding import iter_live

            yield from iter_live(self._checkpoint, "remove", columns, self._tail.touched)
        yield self._tail.tombstones.select(list(columns))

    @cached_property
    def _checkpoint_adds(self) -> CheckpointFileActions | None:
        return self._of_checkpoint("add", "_checkpoint_adds")

    @cached_property
    def _checkpoint_removes(self) -> CheckpointFileActions | None:
        return self._of_checkpoint("remove", "_checkpoint_removes")

    def _of_checkpoint(self, action: str, name: str) -> CheckpointFileActions | None:
        if self._checkpoint is None:
            return None
        from delta_orch.log.read.checkpoint_files import CheckpointFileActions

        older_actions: CheckpointFileActions | None = None if self._older is None else self._older.__dict__.get(name)
        if older_actions is not None:
            return older_actions.without(self._tail.touched)
        return CheckpointFileActions(self._checkpoint, action, self._tail.touched)


def _file_columns(columns: Sequence[str] | None, schema: pa.Schema) -> list[str]:
    names = list(schema.names if columns is None else columns)
    if unknown := sorted(set(names) - set(schema.names)):
        raise ColumnNotFoundError(
            f"The log has no file column {unknown[0]!r}", remedy=f"Choose from {', '.join(schema.names)}"
        )
    return names


def _concatenate(
    base: CheckpointFileActions | None, tail: pa.Table, schema: pa.Schema, columns: Sequence[str] | None
) -> pa.Table:
    import pyarrow as pa

    names = _file_columns(columns, schema)
    if base is None:
        return tail.select(names)
    decoded = base.columns(names)
    chunks = {name: [*decoded[name].chunks, *tail[name].chunks] for name in names}
    arrays = [pa.chunked_array(chunks[name], schema.field(name).type) for name in names]
    return pa.Table.from_arrays(arrays, schema=pa.schema([schema.field(name) for name in names]))


def _required(store: LogStore, version: int, checkpoint: Checkpoint | None, tail: Tail) -> tuple[Protocol, Metadata]:
    protocol, metadata = tail.protocol, tail.metadata
    if checkpoint is not None and (protocol is None or metadata is None):
        older_protocol, older_metadata = checkpoint.protocol_and_metadata
        protocol, metadata = protocol or older_protocol, metadata or older_metadata
    if protocol is None or metadata is None:
        missing = "protocol" if protocol is None else "metaData"
        raise ProtocolViolationError(
            f"The log of {store.uri} has no {missing} action at version {version}",
            cause="Every table must have one from its first version on",
            remedy="Restore the log from a backup",
            version=version,
            action=missing,
        )
    return protocol, metadata


def _is_retained(txn: Txn, oldest_ms: int | None) -> bool:
    return oldest_ms is None or txn.last_updated is None or txn.last_updated >= oldest_ms
