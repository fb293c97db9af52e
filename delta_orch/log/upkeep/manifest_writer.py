"""Symlink manifests: lists of data files, one a partition, for engines that read plain Parquet files and no Delta log.

A manifest is `_symlink_format_manifest/<partition>/manifest` below the table's root, and has one absolute path a line.
It is Delta Lake's; the protocol knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.errors import UnsupportedFeatureError
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.files.partition_columns import file_partition_keys, file_partition_strings
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import Committed
from delta_orch.protocol.arrow_building import one_chunk
from delta_orch.protocol.partition_values import partition_directory
from delta_orch.protocol.paths import decode_path, is_absolute, without_file_scheme
from delta_orch.storage.base import LogStore
from delta_orch.table.column_mapping import ColumnMappingMode
from delta_orch.table.configuration import TableConfiguration

MANIFEST_DIRECTORY = "_symlink_format_manifest"


def ensure_can_have_manifests(table: TableConfiguration, files: pa.Table | None = None) -> None:
    """Check that a table is its Parquet files and their directories.

    Args:
        files: Its live files, `dv_id` among their columns.

    Raises UnsupportedFeatureError: Readers of a manifest would see deleted rows, or columns by other names.
    """
    feature = None
    if files is None and table.enables("deletionVectors"):
        feature = "deletionVectors"
    if files is not None and FileTable(files).dv_id.null_count < files.num_rows:
        feature = "deletionVectors"
    if table.column_mapping is not ColumnMappingMode.NONE:
        feature = "columnMapping"
    if feature is not None:
        raise UnsupportedFeatureError(
            "The table cannot have symlink manifests",
            cause=f"Its files are read by the rules of the feature {feature}, which readers of manifests do not know",
            remedy="Set delta.compatibility.symlinkFormatManifest.enabled to false, or drop the feature",
            features=[feature],
        )


def write_manifests(snapshot: Snapshot, touched: Iterable[str] | None = None) -> tuple[str, ...]:
    """Write the manifests of a version, and delete those of partitions without files.

    Args:
        touched: Directories of partitions whose manifests alone are looked after; None for all.

    Returns: The paths of the manifests that were written, relative to the table's root.

    Raises:
        UnsupportedFeatureError: See `ensure_can_have_manifests`. Nothing was written.
        StorageError: Some are not written.
    """
    files = snapshot.files(["path", "dv_id", "partition_values"])
    ensure_can_have_manifests(snapshot.configuration, files)
    store = snapshot.store
    paths = _by_directory(files, snapshot)
    if not snapshot.partition_columns:
        paths.setdefault("", [])
    directories = set(paths) if touched is None else set(touched)
    written = []
    for directory in sorted(directories & paths.keys()):
        text = "".join(f"{_shown(store, path)}\n" for path in paths[directory])
        written.append(_manifest_path(directory))
        store.put(written[-1], text.encode())
    if touched is None:
        existing_manifests = {
            file.path for file in store.list_recursive(MANIFEST_DIRECTORY) if file.path.endswith("/manifest")
        }
        stale = existing_manifests - set(written)
    else:
        stale = {_manifest_path(directory) for directory in directories - paths.keys()}
    for path in sorted(stale):
        store.delete(path)
    return tuple(written)


def keep_manifests(log: TableLog, read: Snapshot | None, commit: Committed) -> None:
    """After a commit, bring the manifests of the partitions that it changed up to date, with the newest version: of
    several writers the last one to look finds the work of all. Raises as `write_manifests`."""
    touched: set[str] | None = None
    if commit.before is not None and commit.actions.metadata is None:
        changed = [*commit.actions.adds, *(files for files, _ in commit.actions.removes)]
        touched = {directory for files in changed for directory in _directories(files, commit.table)[1]}
        if not touched:
            return
    newest = log.snapshot() if read is None else log.advance(read)
    while True:
        write_manifests(newest, touched)
        later = log.advance(newest)
        if later.version == newest.version:
            return
        newest = later


def _manifest_path(directory: str) -> str:
    return f"{MANIFEST_DIRECTORY}/{directory}/manifest" if directory else f"{MANIFEST_DIRECTORY}/manifest"


def _directories(files: pa.Table, table: TableConfiguration) -> tuple[pa.Array, list[str]]:
    """For each file the number of its partition, and the directories of the partitions."""
    schema, columns = table.schema, table.partition_columns
    keys = pc.dictionary_encode(one_chunk(file_partition_keys(files, schema, columns)))
    if not columns:
        return keys.indices, [""] * len(keys.dictionary)
    first = pc.index_in(keys.dictionary, value_set=keys.dictionary_decode())
    values = pc.take(file_partition_strings(files, schema, columns), first).to_pylist()
    return keys.indices, [partition_directory(columns, row.values()) for row in values]


def _by_directory(files: pa.Table, snapshot: Snapshot) -> dict[str, list[str]]:
    numbers, directories = _directories(files, snapshot.configuration)
    ordered = pc.sort_by(pa.table({"number": numbers, "path": FileTable(files).path}), "number")
    counts = pc.value_counts(ordered.column("number").combine_chunks()).field(1).to_pylist()
    paths_by_directory: dict[str, list[str]] = {}
    start = 0
    for directory, count in zip(directories, counts, strict=True):
        paths_by_directory[directory] = FileTable(ordered).path.slice(start, count).to_pylist()
        start += count
    return paths_by_directory


def _shown(store: LogStore, log_path: str) -> str:
    """The path as a reader of the file system takes it: decoded, absolute, with its scheme."""
    path = decode_path(without_file_scheme(log_path))
    if not is_absolute(log_path):
        root = store.data_filesystem()[1] if store.uri.startswith("file:") else store.uri
        path = f"{root}/{path}"
    return f"file:{path}" if path.startswith("/") else path
