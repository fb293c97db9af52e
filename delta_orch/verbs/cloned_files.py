"""The files of a clone: named where they are, or copied."""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import quote

import pyarrow as pa
import pyarrow.fs as pafs

import delta_orch.arrow_compute as pc
from delta_orch.errors import CorruptDataError, MissingFileError, UnsupportedStoreError
from delta_orch.log.files.file_columns import ADD_SCHEMA, FileTable
from delta_orch.log.read.deletion_vectors import (
    deletion_vector_array,
    deletion_vector_descriptors,
    read_deletion_vectors,
)
from delta_orch.log.write.deletion_vector_writer import write_deletion_vectors
from delta_orch.protocol.actions import DeletionVectorDescriptor
from delta_orch.protocol.arrow_building import bool_array, string_array
from delta_orch.protocol.deletion_vector import relative_path
from delta_orch.protocol.paths import decode_path, encode_path, is_absolute, local_path_in_log
from delta_orch.storage.base import LogStore, ensure_regular_file, storage_error
from delta_orch.storage.prefetch import FAR_THREADS, map_ahead

_PIECE_BYTES = 8 * 1024 * 1024
_ABSOLUTE = r"^(?:/|[A-Za-z][A-Za-z0-9+.-]*:)"


def referred_files(source: LogStore, target: LogStore, files: pa.Table) -> pa.Table:
    """The files by absolute paths, with deletion vectors by absolute paths (storage type `p`). Nothing is copied.

    Args:
        files: Of the table at `source`, `ADD_SCHEMA`.

    Raises:
        UnsupportedStoreError: The target's store cannot reach one.
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
    """The root of a table as an absolute path in a log: URI-encoded once."""
    if store.uri.startswith("file:"):
        return local_path_in_log(store.uri)
    scheme, separator, rest = store.uri.partition("://")
    return f"{scheme}{separator}{quote(rest, safe='/@:!$&()*+,;=~-._')}"


def _ensure_same_place(source: LogStore, target: LogStore, known: str, named: str) -> None:
    """Raise UnsupportedStoreError unless a path of the source is found by another name at the target."""
    schemes = {store.uri.partition(":")[0] for store in (source, target)}
    if len(schemes) > 1 or source.resolve(known) != target.resolve(named):
        raise UnsupportedStoreError(
            f"A table at {target.uri} cannot read the files of {source.uri}",
            cause="A shallow clone names the files of its source, and each table reads through its own store",
            remedy="Clone within one store, or pass shallow=False",
        )


def copied_files(source: LogStore, target: LogStore, files: pa.Table, *, is_rehearsal: bool) -> pa.Table:
    """Copy the files, with their deletion vectors, under names that no other file has.

    Args:
        files: Of the table at `source`, `ADD_SCHEMA`.
        is_rehearsal: Say what the log would, and copy nothing.

    Returns: The copies, `ADD_SCHEMA`.

    Raises:
        MissingFileError, CorruptDeletionVectorError: A file is gone, or another than the log says.
        CorruptDataError: A file has another size than the log says.
        StorageError: For example a full disk. Copies made so far are orphans that no commit names.
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
    """A path below the root, in the directory that the file had in its own table."""
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
                f"The data file {path} has {copied} bytes, and the log says {size}",
                remedy="Run fsck on the source with check_files=True; the target is unchanged",
                path=path,
            )

    for _ in map_ahead(copy, zip(paths, names, sizes, strict=True), FAR_THREADS):
        pass


def _copy(read_from: pafs.FileSystem, path: str, write_to: pafs.FileSystem, to: str) -> int:
    """Returns: How many bytes were copied."""
    if isinstance(read_from, pafs.LocalFileSystem):
        ensure_regular_file(path)
    try:
        reader = read_from.open_input_stream(path)
    except FileNotFoundError as e:
        raise MissingFileError(
            f"The data file {path} is not there",
            cause="The log names it, but vacuum or something else has deleted it",
            remedy="Clone a version whose files are all there; the target is unchanged",
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
    """The files with other descriptors for the same vectors."""
    if not any(descriptors):
        return files
    rows = pc.indices_nonzero(bool_array([d is not None for d in descriptors]))
    places = pa.array(range(len(descriptors)), pa.int64())
    found = pc.index_in(places, value_set=pc.cast(rows, pa.int64()))
    vectors = pc.take(deletion_vector_array([d for d in descriptors if d is not None]), found)
    ids = string_array([None if d is None else d.unique_id for d in descriptors])
    for name, column in (("deletion_vector", vectors), ("dv_id", ids)):
        index = files.schema.get_field_index(name)
        files = files.set_column(index, ADD_SCHEMA.field(name), column)
    return files
