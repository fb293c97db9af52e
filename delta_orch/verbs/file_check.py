"""Whether the files a version is made of are where the log says, and as large."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.fs as pafs

from delta_orch.errors import CorruptDataError, DeltaError, MissingFileError, StorageError
from delta_orch.log.read.deletion_vectors import deletion_vector_descriptors, read_deletion_vector
from delta_orch.log.read.log_check import Problem, problem_of
from delta_orch.protocol.actions import DeletionVectorDescriptor
from delta_orch.storage.base import LogStore

FILE_CHECK_COLUMNS = ("path", "size", "deletion_vector")
_THREADS = 8
_CHUNK_ROWS = 512
# Other failures are the store's: it would be no use to go on.
_OF_THE_PATH = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP, errno.EINVAL)


def check_data_files(store: LogStore, files: pa.Table) -> Iterator[Problem]:
    """Look every data file up.

    Args:
        files: `FILE_CHECK_COLUMNS`.

    Raises:
        StorageError: The store cannot be asked.
    """
    filesystem = store.data_filesystem()[0]
    chunks = files.select(["path", "size"]).to_batches(_CHUNK_ROWS)
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="delta-file-check") as executor:
        for problems in executor.map(lambda chunk: _check_chunk(store, filesystem, chunk), chunks):
            yield from problems


def _check_chunk(store: LogStore, filesystem: pafs.FileSystem, chunk: pa.RecordBatch) -> list[Problem]:
    problems: list[Problem] = []
    known: list[tuple[str, int]] = []
    locations: list[str] = []
    for path, size in zip(chunk["path"].to_pylist(), chunk["size"].to_pylist(), strict=True):
        try:
            locations.append(store.resolve(path))
            known.append((path, size))
        except DeltaError as e:
            problems.append(problem_of(e, "error"))
    for (path, size), info in zip(known, _look_up(filesystem, locations), strict=True):
        if isinstance(info, Exception):
            message = f"The data file {path} cannot be looked up. {info}"
            problems.append(Problem("error", StorageError.code, message, path))
        elif info.type != pafs.FileType.File:
            message = f"The data file {path} is not there. Restore it, or remove it from the table."
            problems.append(Problem("error", MissingFileError.code, message, path))
        elif info.size is not None and info.size != size:
            message = f"The data file {path} has {info.size} bytes. The log says {size}."
            problems.append(Problem("error", CorruptDataError.code, message, path))
    return problems


def _look_up(filesystem: pafs.FileSystem, locations: list[str]) -> list[pafs.FileInfo | Exception]:
    """What is at each location, or why that cannot be said."""
    try:
        return list(filesystem.get_file_info(locations))
    except (OSError, ValueError) as e:
        if len(locations) == 1 and (isinstance(e, ValueError) or e.errno in _OF_THE_PATH):
            return [e]
        if len(locations) < 2:
            raise StorageError("Cannot look up data files", cause=str(e)) from e
    return [found for location in locations for found in _look_up(filesystem, [location])]


def check_deletion_vectors(store: LogStore, files: pa.Table) -> Iterator[Problem]:
    """Read and verify every deletion vector: presence, size, checksum, number of rows.

    Args:
        files: `FILE_CHECK_COLUMNS`.
    """
    with_vector = files.filter(files["deletion_vector"].is_valid())
    paths = with_vector["path"].to_pylist()
    try:
        descriptors = deletion_vector_descriptors(with_vector)
    except DeltaError as e:
        yield problem_of(e, "error")
        return

    def check(task: tuple[str, DeletionVectorDescriptor | None]) -> Problem | None:
        path, descriptor = task
        assert descriptor is not None
        try:
            read_deletion_vector(store, descriptor)
        except DeltaError as e:
            return Problem("error", e.code, f"The deletion vector of {path}: {e}", e.context.get("path") or path)
        return None

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="delta-dv-check") as executor:
        for problem in executor.map(check, zip(paths, descriptors, strict=True)):
            if problem is not None:
                yield problem
