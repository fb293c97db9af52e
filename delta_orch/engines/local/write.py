"""Rows into new data files, in bounded memory (PROTOCOL, "Data Files").

Batches are cast, checked and split by partition as they come; each partition gathers rows until they make a row group.
Row groups are encoded on threads. Where more partitions are open than memory allows, the largest is written first, and
where more files are open than the limit, the one written to longest ago is finished.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain
from threading import Event
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.fs as pafs

import delta_orch.arrow_compute as pc
from delta_orch.engines.base import WriteSpec
from delta_orch.engines.batch_bytes import (
    BATCH_BYTES,
    cut_by_bytes,
    keeping_dictionaries,
    plain_size,
    text_dictionaries,
)
from delta_orch.engines.conform import conform_batch
from delta_orch.engines.file_schema import as_nullable
from delta_orch.engines.footer_statistics import ColumnPath
from delta_orch.engines.local.file_writer import FileLayout, FileWriter, PartitionKey, WrittenFile
from delta_orch.engines.local.relation import LocalRelation
from delta_orch.errors import DeltaError, InvalidRequestError
from delta_orch.log.files.file_columns import FileTable
from delta_orch.protocol.arrow_building import schema_to_arrow
from delta_orch.protocol.partition_values import partition_column_from_arrow
from delta_orch.protocol.types import BINARY, STRING, VARIANT, StructType, holds_variant, not_null_places
from delta_orch.storage.prefetch import FAR_THREADS, Threads, thread_count

if TYPE_CHECKING:
    from concurrent.futures import Future

    from delta_orch.engines.local.computed_columns import Filler
    from delta_orch.engines.local.row_checks import BatchCheck
    from delta_orch.engines.scan_plan import ScanPlan

MAX_ROW_GROUP_BYTES = 64 * 1024 * 1024
MIN_ROW_GROUP_BYTES = 1024 * 1024
MAX_PLAIN_BYTES = 256 * 1024 * 1024
"""Of a row group whose texts are in dictionaries: what a reader that makes them plain has to hold."""
MAX_ROW_GROUP_ROWS = 256 * 1024
"""As Polars. With four times as many rows, rewriting narrow rows takes twice the memory and as much time."""
_LEAST_GROUP_BYTES = 8 * 1024
_LEAST_GROUP_BYTES_OF_A_THREAD = 64 * 1024
MAX_BUFFERED_BYTES = 256 * 1024 * 1024
MAX_OPEN_FILES = 100
_SLICE_ROWS = 1024 * 1024
_SHARED_FILE_BYTES = 2 * 1024 * 1024
"""Files of this size on average are worth a thread each."""


def write_relation(
    relation: LocalRelation,
    spec: WriteSpec,
    *,
    file_size_bytes: int | None,
    threads: int | None = None,
    with_nan: tuple[ColumnPath, ...] | None = None,
) -> list[WrittenFile]:
    """Write all rows; see `Engine.write`.

    Args:
        file_size_bytes: Start a new file when one has reached this size; None never does.
        threads: How many files of one partition may be written at the same time; None for `thread_count`, 0 to
            encode on the caller's thread.
        with_nan: As `FileLayout.with_nan`.
    """
    target = schema_to_arrow(as_nullable(spec.written_schema))
    checks: Sequence[BatchCheck] = ()
    if spec.checks or spec.lengths or _holds_rules(spec.schema):
        from delta_orch.engines.local.row_checks import batch_checks

        checks = batch_checks(spec.schema, spec.checks, spec.lengths)
    fillers: Sequence[Filler] = ()
    if spec.defaults or spec.identities or spec.generated:
        from delta_orch.engines.local.computed_columns import column_fillers

        fillers = column_fillers(spec)
    variants = [f.name for f in spec.schema if f.data_type == VARIANT] if spec.shred_variants else []
    # Rules are about plain text, and partitions are named by it.
    kept = () if checks or fillers else {*target.names}.difference(spec.partition_columns)
    with _Sink(FileLayout.of(spec, with_nan), file_size_bytes, threads, keeps_order=spec.keeps_order) as sink:
        batches = _conformed(relation.open_batches(), target, kept)
        for rows in _filled(batches, fillers, target) if fillers else batches:
            if spec.partition_columns:
                rows = blank_to_null(rows, spec)
            # Columns that the table lacks (`extra_columns`) are not shown to users.
            seen = rows.select(range(len(spec.schema))) if spec.extra_columns else rows
            for check in checks:
                check(seen)
            if variants and rows.num_rows:
                sink.shred_like(rows, variants)
                variants = []
            if not spec.partition_columns:
                sink.add((), rows)
                continue
            for key, part in split_by_partition(rows, spec.schema, spec.partition_columns):
                sink.add(key, part)
        return sink.finish()


def may_be_shared(relation: LocalRelation, spec: WriteSpec) -> bool:
    """Whether the rows are a scan for `write_shared`: files worth a thread each, and no request to wait for. Rows of
    one partition stay together, and so do those that get numbers."""
    plan = relation.plan
    if plan is None or plan.output is not None or spec.keeps_order or spec.partition_columns or spec.identities:
        return False
    if not (plan.store.is_near and spec.store.is_near):
        return False
    count = int(plan.files.num_rows)
    return count >= 2 * thread_count() and FileTable(plan.files).size_bytes >= count * _SHARED_FILE_BYTES


def write_shared(plan: ScanPlan, spec: WriteSpec, *, file_size_bytes: int) -> list[WrittenFile]:
    """As `write_relation`, for the rows of a scan. Each thread takes a file, reads, filters and writes its rows, and
    takes the next one: no rows wait between threads."""
    from concurrent.futures import as_completed

    from delta_orch.engines.local.scan import read_batches

    plan.ensure_each_once()  # A plan of one file says nothing of the others.
    waiting, is_over = deque(range(plan.files.num_rows)), Event()

    def batches() -> Iterator[pa.RecordBatch]:
        while waiting:
            try:
                one = plan.files.slice(waiting.popleft(), 1)
            except IndexError:
                return  # Another thread took the last one.
            for batch in read_batches(replace(plan, files=one), threads=0):
                if is_over.is_set():
                    return
                yield batch

    rows, count = LocalRelation(plan.read_schema, batches), thread_count()
    pool = Threads(count)
    try:
        share = partial(write_relation, rows, spec, file_size_bytes=file_size_bytes, threads=0)
        shares = [pool.begin(share) for _ in range(count)]
        return [file for done in as_completed(shares) for file in done.result()]
    finally:
        # Where a thread failed, or the write is stopped, nobody waits for all other rows.
        is_over.set()
        pool.end()


@lru_cache(maxsize=64)
def _holds_rules(schema: StructType) -> bool:
    return holds_variant(schema) or next(not_null_places(schema), None) is not None


def blank_to_null(rows: pa.RecordBatch, spec: WriteSpec) -> pa.RecordBatch:
    """The rows as the table will hold them: an empty string in a partition column is null (PROTOCOL, "Partition Value
    Serialization"), which is what NOT NULL and other checks must see."""
    for index, declared in enumerate(spec.schema):
        if declared.name in spec.partition_columns and declared.data_type in (STRING, BINARY):
            column = rows.column(index)
            # A length of zero casts to false.
            is_blank = pc.invert(pc.cast(pc.binary_length(column), pa.bool_()))
            if pc.any(is_blank).as_py():
                column = pc.if_else(is_blank, pa.nulls(1, column.type)[0], column)
                rows = rows.set_column(index, rows.schema.field(index), column)
    return rows


def _conformed(
    batches: Iterable[pa.RecordBatch], target: pa.Schema, kept: Collection[str] = ()
) -> Iterator[pa.RecordBatch]:
    """The same rows in the target's types, in batches of a size that a row group can be gathered from.

    Args:
        kept: Columns whose texts may stay in dictionaries.
    """
    for batch in batches:
        is_plain = batch.schema.equals(target) and batch.nbytes <= BATCH_BYTES
        for rows in (batch,) if is_plain else _conformed_parts(batch, target, kept):
            for start in range(0, rows.num_rows, _SLICE_ROWS):
                yield rows.slice(start, _SLICE_ROWS)


def _conformed_parts(batch: pa.RecordBatch, target: pa.Schema, kept: Collection[str]) -> Iterator[pa.RecordBatch]:
    dictionaries = text_dictionaries(batch, kept)
    types = keeping_dictionaries(target, batch.schema, dictionaries) if dictionaries else target
    for part in cut_by_bytes(batch, dictionaries):
        rows = part if part.schema.equals(types) else conform_batch(part, types, lossless=True)
        yield from cut_by_bytes(rows, most=MAX_PLAIN_BYTES) if dictionaries else (rows,)


def _filled(
    batches: Iterable[pa.RecordBatch], fillers: Sequence[Filler], target: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows with the columns that the data lacks. Default values may be long."""
    for fill in fillers:
        batches = chain.from_iterable(map(fill, batches))
    return _conformed(batches, target)


@dataclass(slots=True)
class _Partition:
    """Rows waiting to become a row group, and the files that are open for them, idle ones. `plain_bytes` is what the
    rows take without dictionaries."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    num_rows: int = 0
    num_bytes: int = 0
    plain_bytes: int = 0
    idle: deque[FileWriter] = field(default_factory=deque)


class _Sink:
    """Where rows go. On an error, files already begun are left as orphans that no commit names."""

    def __init__(
        self, layout: FileLayout, file_size_bytes: int | None, threads: int | None, *, keeps_order: bool = False
    ) -> None:
        self._layout = layout
        self._file_size_bytes = file_size_bytes
        self._given_threads = threads
        limit = MAX_ROW_GROUP_BYTES if file_size_bytes is None else file_size_bytes
        # Rows in order are worth a file of their own, however few the caller wants in one.
        least = _LEAST_GROUP_BYTES if keeps_order else MIN_ROW_GROUP_BYTES
        self._group_bytes = max(least, min(MAX_ROW_GROUP_BYTES, limit))
        self._partitions: dict[PartitionKey, _Partition] = {}
        self._buffered_bytes = 0
        self._finished: list[WrittenFile] = []
        self._idle_order: dict[FileWriter, PartitionKey] = {}
        self._open: set[FileWriter] = set()
        self._pool: Threads | None = None
        self._running: deque[tuple[PartitionKey, FileWriter, Future[None]]] = deque()
        # To an object store, a small file is sent when it is closed.
        self._is_far = not isinstance(layout.filesystem, pafs.LocalFileSystem)
        self._uploads: Threads | None = None
        self._uploading: deque[tuple[FileWriter, Future[list[WrittenFile]]]] = deque()

    @property
    def _threads(self) -> int:
        # A small write has one row group and does not need it.
        return self._given_threads or thread_count()

    def __enter__(self) -> _Sink:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for pool in (self._pool, self._uploads):
            if pool is not None:
                pool.end()
        if kind is not None:
            for writer in self._open:
                writer.abandon()

    def shred_like(self, rows: pa.RecordBatch, variants: Sequence[str]) -> None:
        """Shred variants as suits these rows, the first of the write."""
        self._layout = self._layout.shredded_like(rows, variants)

    def add(self, key: PartitionKey, batch: pa.RecordBatch) -> None:
        """Take rows of one partition. Raises StorageError, also for earlier rows."""
        partition = self._partitions.setdefault(key, _Partition())
        if partition.batches and not partition.batches[-1].schema.equals(batch.schema):
            self._flush(key)
        size = batch.nbytes
        partition.batches.append(batch)
        partition.num_rows += batch.num_rows
        partition.num_bytes += size
        partition.plain_bytes += plain_size(batch)
        self._buffered_bytes += size
        is_full = partition.num_bytes >= self._group_bytes or partition.num_rows >= MAX_ROW_GROUP_ROWS
        if is_full or partition.plain_bytes >= MAX_PLAIN_BYTES:
            self._flush(key)
        while self._buffered_bytes > MAX_BUFFERED_BYTES:
            self._flush(max(self._partitions, key=lambda k: self._partitions[k].num_bytes))

    def finish(self) -> list[WrittenFile]:
        """Write what is left and finish all files."""
        for key in list(self._partitions):
            self._flush(key, last=True)
        self._collect(0)
        # A thread would not help for one file, and none can start while the interpreter ends.
        self._is_far = self._is_far and len(self._open) > 1
        for writer in self._idle_order:
            self._finish_file(writer)
        self._collect_uploads(0)
        return self._finished

    def _flush(self, key: PartitionKey, *, last: bool = False) -> None:
        partition = self._partitions[key]
        if not partition.batches:
            return
        rows = pa.Table.from_batches(partition.batches)
        self._buffered_bytes -= partition.num_bytes
        partition.batches, partition.num_rows, partition.num_bytes, partition.plain_bytes = [], 0, 0, 0
        is_only_one = last and self._pool is None and len(self._partitions) == 1
        if is_only_one or self._given_threads == 0 or rows.nbytes < _LEAST_GROUP_BYTES_OF_A_THREAD:
            # One small write, or a few rows for each of many partitions: a thread would cost more than it gains.
            writer = self._take_writer(key)
            writer.write(rows)
            self._put_back(key, writer)
            return
        self._collect(self._threads)
        writer = self._take_writer(key)
        if self._pool is None:
            self._pool = Threads(thread_count())
        self._running.append((key, writer, self._pool.begin(writer.write, rows)))

    def _take_writer(self, key: PartitionKey) -> FileWriter:
        idle = self._partitions[key].idle
        if self._running and not idle:
            busy = sum(1 for running, _, _ in self._running if running == key)
            if busy and busy >= self._threads:
                self._collect_key(key)
        if idle:
            writer = idle.popleft()
            del self._idle_order[writer]
            return writer
        while len(self._idle_order) + len(self._running) >= MAX_OPEN_FILES:
            if self._idle_order:
                self._close(next(iter(self._idle_order)))
            else:
                self._collect_first()
        writer = FileWriter(self._layout, key)
        self._open.add(writer)
        return writer

    def _collect(self, most: int) -> None:
        """Wait until at most that many row groups are being written."""
        while self._running and (len(self._running) > most or self._running[0][2].done()):
            self._collect_first()

    def _collect_key(self, key: PartitionKey) -> None:
        while not self._partitions[key].idle and any(running == key for running, _, _ in self._running):
            self._collect_first()

    def _collect_first(self) -> None:
        key, writer, future = self._running[0]
        future.result()
        self._running.popleft()
        self._put_back(key, writer)

    def _put_back(self, key: PartitionKey, writer: FileWriter) -> None:
        if self._file_size_bytes is not None and writer.size_bytes >= self._file_size_bytes:
            self._finish_file(writer)
            return
        self._partitions[key].idle.append(writer)
        self._idle_order[writer] = key

    def _close(self, writer: FileWriter) -> None:
        key = self._idle_order.pop(writer)
        self._partitions[key].idle.remove(writer)
        self._finish_file(writer)

    def _finish_file(self, writer: FileWriter) -> None:
        if not self._is_far:
            self._finished.extend(writer.close())
            self._open.remove(writer)
            return
        if self._uploads is None:
            self._uploads = Threads(FAR_THREADS)
        # A file that waits is in memory.
        self._collect_uploads(FAR_THREADS)
        self._uploading.append((writer, self._uploads.begin(writer.close)))

    def _collect_uploads(self, most: int) -> None:
        """Wait until at most that many files are being sent."""
        while len(self._uploading) > most:
            writer, future = self._uploading.popleft()
            self._finished.extend(future.result())
            self._open.remove(writer)


# Splitting a batch by partition, column-wise.


def split_by_partition(
    batch: pa.RecordBatch, schema: StructType, partition_columns: Sequence[str]
) -> Iterator[tuple[PartitionKey, pa.RecordBatch]]:
    """The rows of each partition, in their order; keys are the strings the log records (empty is null).

    Args:
        batch: All columns of `schema`, in its types.

    Raises InvalidRequestError for a binary value that is not UTF-8, and for days beyond the years 1 to 9999.
    """
    if batch.num_rows == 0:
        return
    codes, keys = _encode(batch, schema, partition_columns)
    if len(keys) == 1:
        yield keys[0], batch
        return
    # A stable sort keeps the rows of a partition in their order.
    order = pc.sort_indices(codes)
    counts = pc.value_counts(pc.take(codes, order))
    rows = pc.take(batch, order)
    start = 0
    for code, count in zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True):
        yield keys[code], rows.slice(start, count)
        start += count


def _encode(
    batch: pa.RecordBatch, schema: StructType, partition_columns: Sequence[str]
) -> tuple[pa.Array, list[PartitionKey]]:
    """A number a row, and the key each number stands for."""
    codes: pa.Array | None = None
    keys: list[PartitionKey] = [()]
    for name in partition_columns:
        field = schema.find(name)
        assert field is not None
        try:
            texts = partition_column_from_arrow(batch.column(field.name), field.data_type)
        except DeltaError:
            raise
        except (OverflowError, ValueError) as e:
            raise InvalidRequestError(
                f"The column {field.name} has a value that no partition can have",
                cause=f"{e}; partitions have days of the years 1 to 9999",
                remedy="Leave out such rows, or partition by another column",
                column=field.name,
            ) from e
        encoded = pc.dictionary_encode(texts, null_encoding="encode")
        values = encoded.dictionary.to_pylist()
        own = pc.cast(encoded.indices, pa.int64())
        codes = own if codes is None else pc.add(pc.multiply(codes, len(values)), own)
        # Only combinations that occur: their number is bounded by the rows, their product is not.
        combined = pc.dictionary_encode(codes)
        keys = [(*keys[code // len(values)], values[code % len(values)]) for code in combined.dictionary.to_pylist()]
        codes = pc.cast(combined.indices, pa.int64())
    assert codes is not None
    return codes, keys
