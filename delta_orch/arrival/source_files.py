"""The files of one load. Gives readers access to them in parts of bounded size, and collects unreadable files."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TypeVar

import pyarrow as pa

from delta_orch.arrival.file_source import FileSource
from delta_orch.engines.local.spool import MEMORY_BYTES, spilling
from delta_orch.errors import (
    DeltaError,
    FileMissingInStoreError,
    InvalidRequestError,
    StorageError,
    UnreadableFileError,
)
from delta_orch.storage.base import storage_error
from delta_orch.storage.local import LocalStore
from delta_orch.storage.prefetch import FAR_THREADS, map_ahead

Result = TypeVar("Result")
Numbers = Sequence[int]
"""Positions of files in the list of the load."""

_CODECS = {"gz": "gzip", "gzip": "gzip", "zst": "zstd", "zstd": "zstd", "bz2": "bz2", "lz4": "lz4"}
_PATTERN_CHARACTERS = frozenset("*?[]{}\\\0")
_CHUNK_BYTES = 4 << 20
_OF_ONE_FILE = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR})
_TOGETHER_BYTES = 16 << 20
_TOGETHER_ROWS = 65_536


@dataclass(frozen=True)
class SourceFiles:
    """Files of a source.

    Attributes:
        files: Files from `FileSource.list_files`.
    """

    source: FileSource
    files: pa.Table

    @cached_property
    def paths(self) -> list[str]:
        paths: list[str] = self.files["path"].to_pylist()
        return paths

    @cached_property
    def sizes(self) -> list[int]:
        sizes: list[int] = self.files["size"].to_pylist()
        return sizes

    @cached_property
    def uris(self) -> pa.Array:
        return self.source.uris(self.files)

    def pieces(self, numbers: Numbers) -> Iterator[Numbers]:
        """Yield the files in order, in groups that fit in memory, each with at least one file."""
        first, size = 0, 0
        for place, number in enumerate(numbers):
            if place > first and size + self.sizes[number] > MEMORY_BYTES:
                yield numbers[first:place]
                first, size = place, 0
            size += self.sizes[number]
        if first < len(numbers):
            yield numbers[first:]

    def _lies_here(self, number: int) -> bool:
        is_plain = self._codec(number) is None and self.source.encoding is None
        return (
            isinstance(self.source.store, LocalStore) and is_plain and not _PATTERN_CHARACTERS & {*self._full(number)}
        )

    def _full(self, number: int) -> str:
        return f"{self.source.store.root}/{self.paths[number]}"

    def _codec(self, number: int) -> str | None:
        if self.source.compression is not None:
            return _CODECS.get(self.source.compression)
        return _CODECS.get(self.paths[number].rpartition(".")[2].lower())

    @contextmanager
    def local_texts(self, numbers: Numbers) -> Iterator[list[str]]:
        """Return local paths of the files as plain UTF-8, either the original paths or those of copies. Copies are
        complete, so a file that is truncated or has damaged compression is detected before it is read.

        Raises as `open`.
        """
        with ExitStack() as stack:
            copied = [number for number in numbers if not self._lies_here(number)]
            copies: dict[int, str] = {}
            if copied:
                directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="delta-orch-files-")))
                threads = 0 if self.source.store.is_near else FAR_THREADS
                for number, path in map_ahead(lambda n: (n, self._copy(n, directory)), copied, threads):
                    copies[number] = path
            yield [copies.get(number) or self._full(number) for number in numbers]
            self.ensure_unchanged(number for number in numbers if number not in copies)

    def _copy(self, number: int, directory: Path) -> str:
        path = directory / f"{number}"
        with self.open_text(number) as source, path.open("wb") as target:
            while chunk := source.read(_CHUNK_BYTES):
                with spilling():
                    target.write(chunk)
        return str(path)

    @contextmanager
    def open(self, number: int) -> Iterator[pa.NativeFile]:
        """A file as it is.

        Raises:
            UnreadableFileError: The file or its content cannot be read.
            StorageError: The store failed temporarily, or the file changed after the listing.
        """
        with self.reading([number]), self.source.store.open_input(self.paths[number]) as file:
            if file.size() != self.sizes[number]:
                raise self._changed(number)
            yield file

    @contextmanager
    def open_text(self, number: int) -> Iterator[IO[bytes]]:
        """Open a file as `open` does, decompressed, and converted to UTF-8 if the source names an encoding."""
        with self.open(number) as file:
            codec, encoding = self._codec(number), self.source.encoding
            stream = file if codec is None else pa.CompressedInputStream(file, codec)
            yield stream if encoding is None else pa.transcoding_input_stream(stream, encoding, "utf-8")

    def ensure_unchanged(self, numbers: Iterable[int]) -> None:
        """Raise StorageError if a local file was changed or removed after it was listed."""
        times: list[int] = self.files["modification_time_ms"].to_pylist()
        for number in numbers:
            try:
                status = os.stat(self._full(number))  # noqa: PTH116 - once a file
            except OSError as e:
                raise self._changed(number) from e
            if (status.st_size, status.st_mtime_ns // 1_000_000) != (self.sizes[number], times[number]):
                raise self._changed(number)

    def _changed(self, number: int) -> StorageError:
        return StorageError(
            f"The file {self.uris[number]} has changed since it was listed",
            cause="Another program writes or replaced it",
            remedy="Load it later. If files are written in place, pass settle_seconds",
            path=self.paths[number],
            retryable=True,
        )

    @contextmanager
    def reading(self, numbers: Numbers, local_paths: Sequence[str] = ()) -> Iterator[None]:
        """Turn errors of readers into UnreadableFileError for the file that the message names.

        Args:
            local_paths: The paths of the files in messages of the reader.
        """
        import duckdb

        try:
            yield
        except (duckdb.Error, OSError, pa.ArrowException, UnicodeError) as e:
            failure = self.failure(e, numbers, local_paths)
            if failure is e:
                raise
            raise failure from e

    def failure(self, error: Exception, numbers: Numbers, local_paths: Sequence[str] = ()) -> DeltaError:
        """Return the error to raise for an error of a reader. See `reading`."""
        import duckdb

        if isinstance(error, DeltaError) and not _is_of_one_file(error):
            return error
        message = error.cause or error.problem if isinstance(error, DeltaError) else str(error)
        if isinstance(error, OSError) and not isinstance(error, DeltaError) and not _is_of_one_file(error):
            return storage_error(error, "read", ", ".join(self.paths[number] for number in numbers[:1]))
        named = [
            number
            for number, path in zip(numbers, local_paths, strict=False)
            if f'"{path}"' in message or f" = {path}\n" in message or message.endswith(f": {path}")
        ]
        is_of_disk = isinstance(error, duckdb.IOException) and (not named or "No space" in message)
        if is_of_disk or isinstance(error, duckdb.OutOfMemoryException):
            remedy = "Free disk space or memory"
            return StorageError("DuckDB could not read the files completely", cause=message, remedy=remedy)
        number = named[0] if named else numbers[0] if len(numbers) == 1 else None
        return self.unreadable(number, message.split("\n\n")[0].split("\nPossible")[0])

    def unreadable(self, number: int | None, cause: str) -> UnreadableFileError:
        name = f"The file {self.uris[number]}" if number is not None else "One of the files"
        return UnreadableFileError(
            f"{name} cannot be read as {self.source.format}",
            cause=cause,
            remedy='Repair or remove the file, or pass on_error="quarantine" to skip it',
            path=None if number is None else self.paths[number],
            number=number,
        )

    def isolated(
        self, numbers: Numbers, read: Callable[[Numbers], Iterator[Result]], set_aside: Callable[[int, str], None]
    ) -> Iterator[Result]:
        """Yield the results of `read` for the files, without files that cannot be read.

        Args:
            read: A function that raises UnreadableFileError before it yields anything.
            set_aside: A function that receives each file that cannot be read, with the error.
        """
        pending = [numbers]
        while pending:
            together = pending.pop()
            if not len(together):
                continue
            try:
                yield from read(together)
            except UnreadableFileError as e:
                if len(together) == 1:
                    set_aside(together[0], e.cause or e.problem)
                    continue
                named = e.context.get("number")
                place = together.index(named) if named in together else len(together) // 2
                # Reading the file alone shows whether it is the damaged one.
                pending += [together[place + 1 :], together[place : place + 1], together[:place]]


def _is_of_one_file(error: Exception) -> bool:
    """Whether an error is about the content of a file, and not about the store, the disk or this process. For content,
    Arrow raises OSError without a number."""
    code = error.context.get("errno") if isinstance(error, StorageError) else getattr(error, "errno", None)
    is_gone = isinstance(error, FileMissingInStoreError)
    return is_gone or code in _OF_ONE_FILE or (code is None and not isinstance(error, DeltaError))


def ensure_known_options(source: FileSource, known: Sequence[str]) -> dict[str, object]:
    """Return the options of a source. Raises InvalidRequestError if the reader has no such option."""
    options = dict(source.options or {})
    if unknown := sorted(set(options) - set(known)):
        raise InvalidRequestError(
            f"Files of the format {source.format} have no option {unknown[0]!r}",
            remedy=f"Use {', '.join(known)}" if known else "Leave options out",
            option=unknown[0],
        )
    return options


def together(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the same rows, with small batches combined. Each file yields at least one batch, which may be small."""
    held: list[pa.RecordBatch] = []
    size = count = 0
    for batch in batches:
        if held and (size + batch.nbytes > _TOGETHER_BYTES or count + batch.num_rows > _TOGETHER_ROWS):
            yield _joined(held)
            held, size, count = [], 0, 0
        held.append(batch)
        size, count = size + batch.nbytes, count + batch.num_rows
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
