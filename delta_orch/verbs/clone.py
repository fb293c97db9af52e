"""`clone`: makes a new table from a version of a table. The files stay where they are (shallow) or are copied
(deep)."""

from __future__ import annotations

import posixpath
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import quote

import pyarrow as pa
import pyarrow.fs as pafs

import delta_orch.arrow_compute as pc
from delta_orch.arrival.file_look import copy_records
from delta_orch.arrival.loaded_files import CURSOR_PREFIX
from delta_orch.engines.file_traits import with_record_counts
from delta_orch.errors import (
    CorruptDataError,
    InvalidRequestError,
    MissingFileError,
    TableExistsError,
    TableNotFoundError,
    UnsupportedFeatureError,
    UnsupportedStoreError,
)
from delta_orch.log.files.file_columns import ADD_SCHEMA, FileTable, deletion_vector_array
from delta_orch.log.read.deletion_vectors import deletion_vector_descriptors, read_deletion_vectors
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_checks import ensure_files_fit_iceberg
from delta_orch.log.write.commit_options import SERIALIZABLE, CommitOptions, CommitResult, ensure_unscoped
from delta_orch.log.write.deletion_vector_writer import write_deletion_vectors
from delta_orch.log.write.staged_actions import keys_of
from delta_orch.log.write.transaction import Transaction
from delta_orch.protocol.actions import DeletionVectorDescriptor, Metadata
from delta_orch.protocol.arrow_building import all_booleans, bool_array, string_array
from delta_orch.protocol.deletion_vector import relative_path
from delta_orch.protocol.paths import decode_path, encode_path, is_absolute, local_path_in_log
from delta_orch.protocol.table_properties import OWNER, ensure_settable, property_texts
from delta_orch.storage.base import LogStore, ensure_regular_file, storage_error
from delta_orch.storage.external_paths import is_one_table
from delta_orch.storage.prefetch import FAR_THREADS, map_ahead
from delta_orch.table.clustering import CLUSTERING_DOMAIN, serialize_clustering
from delta_orch.table.configuration import TableConfiguration
from delta_orch.table.protocol_upgrade import (
    PROTECTED_BEFORE,
    is_protocol_request,
    requested_features,
    united_protocol,
    with_own_commit_times,
)
from delta_orch.table.row_tracking import ROW_COMMIT_VERSION_COLUMN, ROW_ID_COLUMN
from delta_orch.table.table_rules import settle
from delta_orch.verbs.restore import ensure_files_there
from delta_orch.writing.plan import REMOVED_FILE_COLUMNS
from delta_orch.writing.target import ensure_alone

_MAPPING_MODE = "delta.columnMapping.mode"
# The first two properties name columns in the source's files, but the clone assigns its own row ids. Units of the
# source do not replace rows of the clone.
_NOT_TAKEN = (ROW_ID_COLUMN, ROW_COMMIT_VERSION_COLUMN, PROTECTED_BEFORE, OWNER)


def clone(
    source: Snapshot,
    target: TableLog,
    *,
    is_newest: bool,
    shallow: bool,
    replace_target: bool,
    properties: Mapping[str, str] | None,
    options: CommitOptions,
) -> CommitResult:
    """Commit the files of a version as the state of another table. The clone has the rows, schema, partitioning,
    properties, clustering, column mapping and deletion vectors of the source. If the clone tracks rows, its rows get
    new row ids. Transaction ids and the user's metadata domains are not copied. The record of loaded files is copied,
    so a clone loads only files that the source did not load.

    A shallow clone refers to the source's files by absolute paths and copies nothing. If vacuum deletes files of the
    source, the clone loses them. Vacuum of the clone deletes no file of the source. A deep clone copies every file in
    parallel, in pieces of bounded size, and is independent of the source.

    Args:
        source: The version to clone.
        is_newest: Whether this is the newest version of the source. For an older version, the command first checks that
            its files exist.
        replace_target: Replace an existing table by the clone, in one commit. Files that the clone already has stay,
            and other files are removed. Its protocol keeps its features.

    Raises as `DeltaTable.clone`.
    """
    ensure_unscoped(options, "A clone copies the whole table")
    if is_one_table(target.store.uri, source.store.uri):
        raise InvalidRequestError(
            "A table cannot be cloned onto itself", remedy="To go back to an older version, call restore()"
        )
    if source.store.is_catalog_managed or target.store.is_catalog_managed:
        raise UnsupportedFeatureError(
            f"{source.store.address} cannot be cloned to {target.store.address}",
            cause="A catalog manages the commits of one of these tables, and a clone copies files and features from a "
            "log",
            remedy="Copy the rows: DeltaTable(target).append(DeltaTable(source).snapshot())",
            features=["catalogManaged"],
        )
    overrides = ensure_settable(property_texts(properties or {}), on_new_table=False)
    before = _snapshot_or_none(target, options.get("read_version"))
    # Required at every isolation level. If two clones create the same table, only one may add its files.
    level = SERIALIZABLE if before is None else options.get("isolation_level") or SERIALIZABLE
    options = {**options, "isolation_level": level}
    transaction = Transaction(
        target,
        before,
        operation="CLONE",
        operation_parameters={"source": f"delta.`{source.store.uri}`", "sourceVersion": source.version},
        **options,
    )
    if transaction.stale_txns():
        return transaction.commit()
    transaction.ensure_follows()
    if before is not None and not replace_target:
        raise TableExistsError(
            f"A table exists at {target.store.uri}",
            remedy="Clone to another location, or replace the table: replace=True, in SQL OR REPLACE",
            uri=target.store.uri,
        )
    table = _cloned(source, before, overrides)
    ensure_files_fit_iceberg(source, table)
    if before is None:
        ensure_alone(target.store, may_nest=table.properties.allow_nested_tables)
    files = source.files()
    if not is_newest:
        ensure_files_there(source, files, "cloned", "Clone a newer version")
    files = with_record_counts(source.store, files, table)
    if shallow:
        adds = referred_files(source.store, target.store, files)
    else:
        adds = copied_files(source.store, target.store, files, is_rehearsal=options.get("dry_run", False))
    removes = _stage(transaction, source, before, table, _as_new(adds), just_written=not shallow)
    is_rehearsal = options.get("dry_run", False)
    gone = dict.fromkeys(() if before is None else before.txns.named((CURSOR_PREFIX,)), -1)
    records = copy_records(TableLog(source.store), source, target.store, is_rehearsal=is_rehearsal)
    transaction.take_back({**gone, **records})
    transaction.set_operation_metrics(
        {
            "sourceTableSize": source.size_bytes,
            "sourceNumOfFiles": source.num_files,
            "numRemovedFiles": removes.num_rows,
            "numCopiedFiles": 0 if shallow else adds.num_rows,
            "removedFilesSize": FileTable(removes).size_bytes,
            "copiedFilesSize": 0 if shallow else FileTable(adds).size_bytes,
        }
    )
    return transaction.commit()


def _snapshot_or_none(log: TableLog, version: int | None) -> Snapshot | None:
    try:
        return log.snapshot(version)
    except TableNotFoundError:
        return None


def _cloned(source: Snapshot, before: Snapshot | None, overrides: Mapping[str, str]) -> TableConfiguration:
    """Return the protocol and the metadata of the clone."""
    source_table = source.configuration.for_writing()
    own = None if before is None else before.configuration.for_writing()
    properties = {key: value for key, value in source_table.configuration.items() if key not in _NOT_TAKEN}
    if own is not None and OWNER in own.configuration:
        properties[OWNER] = own.configuration[OWNER]
    base_table = source_table.with_properties(properties)
    requested_properties = {
        **properties,
        **{key: value for key, value in overrides.items() if not is_protocol_request(key)},
    }
    features = requested_features(overrides)
    if requested_properties.get(_MAPPING_MODE, "none") != properties.get(_MAPPING_MODE, "none"):
        raise InvalidRequestError(
            f"{_MAPPING_MODE} cannot change in a clone",
            cause="The files of the clone name their columns as those of the source do",
            remedy="Clone first, then alter the clone",
            property=_MAPPING_MODE,
        )
    settled = settle(base_table, base_table.with_properties(requested_properties), features)
    protocol = settled.protocol if own is None else united_protocol(own.protocol, settled.protocol)
    metadata = Metadata(
        id=str(uuid.uuid4()),
        schema_string=settled.metadata.schema_string,
        partition_columns=settled.metadata.partition_columns,
        configuration=with_own_commit_times(settled.configuration, source_table, own),
        name=(source_table if own is None else own).metadata.name,
        description=(source_table if own is None else own).metadata.description,
        created_time=time.time_ns() // 1_000_000,
    )
    return TableConfiguration(protocol, metadata)


def _as_new(files: pa.Table) -> pa.Table:
    """Return the files for a table that assigns its own row ids."""
    columns = {
        "data_change": all_booleans(True, files.num_rows),
        "base_row_id": pa.nulls(files.num_rows, pa.int64()),
        "default_row_commit_version": pa.nulls(files.num_rows, pa.int64()),
    }
    arrays = [columns[name] if name in columns else files.column(name) for name in ADD_SCHEMA.names]
    return pa.Table.from_arrays(arrays, schema=ADD_SCHEMA)


def _stage(
    transaction: Transaction,
    source: Snapshot,
    before: Snapshot | None,
    table: TableConfiguration,
    adds: pa.Table,
    *,
    just_written: bool,
) -> pa.Table:
    """Returns: The files that leave the target."""
    # Another writer may create the table meanwhile, with rows that the source does not have.
    transaction.read_whole_table()
    transaction.update_metadata(table.metadata, source.metadata)
    if before is None or table.protocol != before.protocol:
        transaction.update_protocol(table.protocol)
    clustering, clustering_before = source.clustering or (), () if before is None else before.clustering or ()
    if clustering != clustering_before:
        transaction.set_domain_metadata(CLUSTERING_DOMAIN, serialize_clustering(clustering))
    removes = adds.slice(0, 0).select(REMOVED_FILE_COLUMNS)
    if before is not None:
        live = before.files(REMOVED_FILE_COLUMNS)
        keys, known_keys = keys_of(adds), keys_of(live)
        removes = pc.filter(live, pc.invert(pc.is_in(known_keys, value_set=keys)))
        adds = pc.filter(adds, pc.invert(pc.is_in(keys, value_set=known_keys)))
    if adds.num_rows:
        # In an older clone, files may hold rows of other files that the source compacted since.
        add = transaction.add_files if before is None else transaction.add_known_files
        add(adds, just_written=just_written)
    if removes.num_rows:
        transaction.remove_files(removes)
    return removes


# The files of a clone: referred to by absolute paths, or copied


_PIECE_BYTES = 8 * 1024 * 1024
_ABSOLUTE = r"^(?:/|[A-Za-z][A-Za-z0-9+.-]*:)"


def referred_files(source: LogStore, target: LogStore, files: pa.Table) -> pa.Table:
    """Return the files and deletion vectors with absolute paths (storage type `p`). Nothing is copied.

    Args:
        files: Files of the table at `source`, as `ADD_SCHEMA`.

    Raises:
        UnsupportedStoreError: The target's store cannot read a file.
    """
    root = _root_in_log(source)
    paths = pc.if_else(
        pc.match_substring_regex(FileTable(files).path, _ABSOLUTE),
        FileTable(files).path,
        pc.binary_join_element_wise(root, FileTable(files).path, "/"),
    )
    for path in [*paths.slice(0, 1).to_pylist(), *pc.filter(paths, pc.invert(pc.starts_with(paths, root))).to_pylist()]:
        _ensure_same_place(source, target, path, path)
    if files.num_rows:
        _ensure_same_place(source, target, FileTable(files).path[0].as_py(), paths[0].as_py())
    descriptors = [
        d
        if d is None or d.storage_type != "u"
        else replace(d, storage_type="p", path_or_inline_dv=f"{root}/{encode_path(relative_path(d))}")
        for d in deletion_vector_descriptors(files)
    ]
    index = files.schema.get_field_index("path")
    return _with_vectors(files.set_column(index, ADD_SCHEMA.field("path"), paths), descriptors)


def _root_in_log(store: LogStore) -> str:
    """Return the root of a table as an absolute path for a log, URI-encoded once."""
    if store.uri.startswith("file:"):
        return local_path_in_log(store.uri)
    scheme, separator, rest = store.uri.partition("://")
    return f"{scheme}{separator}{quote(rest, safe='/@:!$&()*+,;=~-._')}"


def _ensure_same_place(source: LogStore, target: LogStore, source_path: str, named: str) -> None:
    """Raise UnsupportedStoreError if the target cannot read files below the source's path."""
    schemes = {store.uri.partition(":")[0] for store in (source, target)}
    if len(schemes) > 1 or source.resolve(source_path) != target.resolve(named):
        raise UnsupportedStoreError(
            f"A table at {target.uri} cannot read the files of {source.uri}",
            cause="A shallow clone refers to the files of its source, and each table reads only through its own store",
            remedy="Clone within the same store, or pass shallow=False",
        )


def copied_files(source: LogStore, target: LogStore, files: pa.Table, *, is_rehearsal: bool) -> pa.Table:
    """Copy the files, with their deletion vectors, under new unique names.

    Args:
        files: Files of the table at `source`, as `ADD_SCHEMA`.
        is_rehearsal: Return the log entries without copying files.

    Returns: The copies, as `ADD_SCHEMA`.

    Raises:
        MissingFileError, CorruptDeletionVectorError: A file is missing or does not match the log.
        CorruptDataError: The size of a file does not match the log.
        StorageError: For example, the disk is full. Copies that exist by then belong to no commit.
    """
    paths = FileTable(files).path.to_pylist()
    names = [_new_name(path) for path in paths]
    descriptors = deletion_vector_descriptors(files)
    if not is_rehearsal:
        _copy_all(source, target, paths, names, FileTable(files).size.to_pylist())
        descriptors = _copied_vectors(source, target, descriptors)
    index = files.schema.get_field_index("path")
    encoded = string_array([encode_path(name) for name in names])
    return _with_vectors(files.set_column(index, ADD_SCHEMA.field("path"), encoded), descriptors)


def _new_name(log_path: str) -> str:
    """Return a path below the root, in the same directory as in the source table."""
    name = f"part-00000-{uuid.uuid4()}.c000.parquet"
    return name if is_absolute(log_path) else posixpath.join(posixpath.dirname(decode_path(log_path)), name)


def _copy_all(
    source: LogStore, target: LogStore, paths: Sequence[str], names: Sequence[str], sizes: Sequence[int]
) -> None:
    (read_from, _), (write_to, root) = source.data_filesystem(), target.data_filesystem()

    def copy(job: tuple[str, str, int]) -> None:
        path, name, size = job
        copied = _copy(read_from, source.resolve(path), write_to, f"{root}/{name}")
        if copied != size:
            raise CorruptDataError(
                f"The data file {path} has {copied} bytes, but the log records {size}",
                remedy="Run DeltaTable(source).fsck(check_files=True). The target is unchanged",
                path=path,
            )

    for _ in map_ahead(copy, zip(paths, names, sizes, strict=True), FAR_THREADS):
        pass


def _copy(read_from: pafs.FileSystem, path: str, write_to: pafs.FileSystem, to: str) -> int:
    """Copy one file. Returns the number of copied bytes."""
    if isinstance(read_from, pafs.LocalFileSystem):
        ensure_regular_file(path)
    try:
        reader = read_from.open_input_stream(path)
    except FileNotFoundError as e:
        raise MissingFileError(
            f"The data file {path} does not exist",
            cause="The log names the file, but it was deleted, for example by vacuum",
            remedy="Clone a version with all its files. The target is unchanged",
            path=path,
        ) from e
    except OSError as e:
        raise storage_error(e, "read", path) from e
    with reader:
        try:
            write_to.create_dir(posixpath.dirname(to), recursive=True)
            copied = 0
            with write_to.open_output_stream(to) as sink:
                while piece := reader.read(_PIECE_BYTES):
                    sink.write(piece)
                    copied += len(piece)
        except OSError as e:
            raise storage_error(e, "copy to", to) from e
    return copied


def _copied_vectors(
    source: LogStore, target: LogStore, descriptors: Sequence[DeletionVectorDescriptor | None]
) -> list[DeletionVectorDescriptor | None]:
    vectors = [vector for vector in read_deletion_vectors(source, descriptors) if vector is not None]
    written = iter(write_deletion_vectors(target, vectors))
    return [None if descriptor is None else next(written) for descriptor in descriptors]


def _with_vectors(files: pa.Table, descriptors: Sequence[DeletionVectorDescriptor | None]) -> pa.Table:
    """Return the files with new descriptors for the same deletion vectors."""
    if not any(descriptors):
        return files
    rows = pc.indices_nonzero(bool_array([d is not None for d in descriptors]))
    places = pa.array(range(len(descriptors)), pa.int64())
    indices = pc.index_in(places, value_set=pc.cast(rows, pa.int64()))
    vectors = pc.take(deletion_vector_array([d for d in descriptors if d is not None]), indices)
    ids = string_array([None if d is None else d.unique_id for d in descriptors])
    for name, column in (("deletion_vector", vectors), ("dv_id", ids)):
        index = files.schema.get_field_index(name)
        files = files.set_column(index, ADD_SCHEMA.field(name), column)
    return files
