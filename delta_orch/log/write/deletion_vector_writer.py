"""Deletion vectors: written into files, or into the log itself where they are small, and put on the files they mark
(PROTOCOL, "Deletion Vectors")."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.errors import InvalidRequestError
from delta_orch.log.files.file_columns import (
    ADD_SCHEMA,
    FileTable,
    deletion_vector_array,
    record_counts,
    with_wide_bounds,
)
from delta_orch.log.read.deletion_vectors import deletion_vector_descriptors, read_deletion_vectors
from delta_orch.log.write.staged_actions import StagedActions, ensure_file_table, keys_of
from delta_orch.protocol.actions import DeletionVectorDescriptor
from delta_orch.protocol.arrow_building import all_booleans, bool_array, int64_array, one_chunk, string_array
from delta_orch.protocol.deletion_vector import (
    DeletionVector,
    SerializedVector,
    relative_path,
    serialize_vector_file,
    stored_descriptor,
)
from delta_orch.protocol.paths import canonical_paths
from delta_orch.storage.base import LogStore

if TYPE_CHECKING:
    from pyroaring import BitMap64


INLINE_BYTES = 64
"""A vector of at most that size (some dozen rows) stands in the log itself: reading it costs no request."""

FILE_BYTES = 2 * 1024 * 1024
"""Vectors share files up to this size. Vacuum keeps a file while a single vector in it is needed."""

_LETTERS = string.ascii_letters + string.digits


class VectorFile(NamedTuple):
    """A file of deletion vectors, not written yet; `path` is relative to the table's root."""

    path: str
    content: bytes


def write_deletion_vectors(
    store: LogStore,
    vectors: Sequence[DeletionVector],
    *,
    inline_bytes: int = INLINE_BYTES,
    file_bytes: int = FILE_BYTES,
    random_prefix_length: int | None = None,
) -> list[DeletionVectorDescriptor]:
    """Make vectors durable, before a commit names them.

    Arguments are those of `pack_deletion_vectors`.

    Returns: A descriptor for each vector, in order.

    Raises:
        InvalidRequestError: A vector marks no row.
        StorageError: A file could not be written. Others may be left as orphans that no commit names.
    """
    descriptors, files = pack_deletion_vectors(
        vectors, inline_bytes=inline_bytes, file_bytes=file_bytes, random_prefix_length=random_prefix_length
    )
    for file in files:
        store.put_if_absent(file.path, file.content)
    return descriptors


def pack_deletion_vectors(
    vectors: Sequence[DeletionVector],
    *,
    inline_bytes: int = INLINE_BYTES,
    file_bytes: int = FILE_BYTES,
    random_prefix_length: int | None = None,
) -> tuple[list[DeletionVectorDescriptor], list[VectorFile]]:
    """Lay out vectors: small ones in their descriptors, the others in files that they share. Nothing is written.

    Args:
        vectors: At least one row each. Their bitmaps are compressed in place.
        inline_bytes: Vectors up to this size are kept in their descriptors; 0 writes all of them into files.
        file_bytes: Start another file where one would grow beyond this.
        random_prefix_length: Put files into directories of random names that long (`delta.randomizeFilePrefixes`).

    Returns: A descriptor for each vector, in order, and the files that must be written before a commit names them.

    Raises:
        InvalidRequestError: A vector marks no row.
    """
    serialized = [SerializedVector.of(vector) for vector in vectors]
    if any(vector.cardinality == 0 for vector in serialized):
        raise InvalidRequestError(
            "A deletion vector marks no row", remedy="Add the file without a deletion vector instead"
        )
    inline_descriptors = [
        vector.inline_descriptor() if len(vector.data) <= inline_bytes else None for vector in serialized
    ]
    large = [index for index, descriptor in enumerate(inline_descriptors) if descriptor is None]
    files = []
    for members in _shared_files([serialized[index].stored_bytes for index in large], file_bytes):
        indexes = [large[member] for member in members]
        descriptors, file = _pack_file([serialized[index] for index in indexes], random_prefix_length)
        files.append(file)
        for index, descriptor in zip(indexes, descriptors, strict=True):
            inline_descriptors[index] = descriptor
    return [descriptor for descriptor in inline_descriptors if descriptor is not None], files


def _shared_files(sizes: Sequence[int], file_bytes: int) -> Iterator[range]:
    """Neighbours that share a file."""
    start, total = 0, 0
    for index, size in enumerate(sizes):
        if index > start and total + size > file_bytes:
            yield range(start, index)
            start, total = index, 0
        total += size
    if start < len(sizes):
        yield range(start, len(sizes))


def _pack_file(
    vectors: Sequence[SerializedVector], random_prefix_length: int | None
) -> tuple[list[DeletionVectorDescriptor], VectorFile]:
    data, offsets = serialize_vector_file(vectors)
    file_id = uuid4()
    prefix = "".join(secrets.choice(_LETTERS) for _ in range(random_prefix_length or 0))
    descriptors = [
        stored_descriptor(vector, file_id, offset, prefix) for vector, offset in zip(vectors, offsets, strict=True)
    ]
    return descriptors, VectorFile(relative_path(descriptors[0]), data)


def with_deletion_vectors(files: pa.Table, vectors: Sequence[DeletionVectorDescriptor]) -> pa.Table:
    """The files with other deletion vectors (PROTOCOL, "Deletion Vectors", "Per-file Statistics").

    Args:
        files: All columns of `file_columns.ADD_SCHEMA`.
        vectors: One a file.

    Raises:
        InvalidRequestError: A column is missing, or a file does not say how many records it has.
    """
    missing = [name for name in ADD_SCHEMA.names if name not in files.column_names]
    if missing or len(vectors) != files.num_rows:
        raise InvalidRequestError(
            "A file keeps everything but its deletion vector: all its columns are needed, and one vector a file",
            columns=missing,
        )
    if record_counts(files).null_count:
        raise InvalidRequestError(
            "A file that is to get a deletion vector does not say how many records it has",
            cause="Its statistics lack numRecords",
            remedy="Rewrite the file instead",
        )
    columns = {
        "dv_id": string_array([vector.unique_id for vector in vectors]),
        "deletion_vector": deletion_vector_array(vectors),
        "stats": string_array([with_wide_bounds(stats) for stats in FileTable(files).stats.to_pylist()]),
        "data_change": all_booleans(True, files.num_rows),
    }
    arrays = [columns.get(name, files.column(name)) for name in ADD_SCHEMA.names]
    return pa.Table.from_arrays(arrays, schema=ADD_SCHEMA)


# Rows that a transaction deletes by marking them, kept so that the marks can be put on top of those of others.
#
# Two commits that mark different rows of one file do not contradict each other (PROTOCOL, "Deletion Vectors": a file
# with another vector is another logical file, which is why their actions do). The one that comes second takes the
# vector of the first as it stands, adds its own rows, and replaces it.


_REMOVED_COLUMNS = tuple(name for name in ADD_SCHEMA.names if name != "stats")


@dataclass(slots=True)
class MarkedRows:
    """Files, and which of their rows a transaction deletes. One list item, or row, for each file.

    Attributes:
        files: As the newest version has them that the transaction is known to fit behind; columns of `ADD_SCHEMA`.
        marked: The rows that their deletion vectors mark there.
        deleted: The rows that the transaction deletes beyond those.
        vector_files: Files with vectors that were not written yet. They must be before the commit names them.
        random_prefix_length: As of `pack_deletion_vectors`.
    """

    files: pa.Table
    marked: list[BitMap64]
    deleted: list[BitMap64]
    random_prefix_length: int | None = None
    vector_files: list[VectorFile] = field(default_factory=list)

    @classmethod
    def of_snapshot(
        cls, store: LogStore, files: pa.Table, deleted: Sequence[BitMap64], random_prefix_length: int | None
    ) -> MarkedRows:
        """Rows of files of the snapshot. Reads the vectors that the files have.

        Raises:
            InvalidRequestError: A file lacks a column or its number of records, or a row is deleted already or beyond
                the end of its file.
            MissingFileError, CorruptDeletionVectorError, StorageError: A vector cannot be read.
        """
        missing = [name for name in ADD_SCHEMA.names if name not in files.column_names]
        if missing or len(deleted) != files.num_rows:
            raise InvalidRequestError(
                "A file keeps everything but its deletion vector: all its columns are needed, and one bitmap a file",
                columns=missing,
            )
        touched = [index for index, rows in enumerate(deleted) if rows]
        files = pc.take(ensure_file_table(files), int64_array(touched)).combine_chunks()
        rows = cls(files, bitmaps_of(store, files), [deleted[index] for index in touched], random_prefix_length)
        rows._ensure_live()
        return rows

    @property
    def paths(self) -> pa.Array:
        """Canonical paths of the files."""
        return one_chunk(canonical_paths(FileTable(self.files).path))

    def stage(self, staged: StagedActions) -> pa.Table:
        """Stage every file's removal, and its return with another vector. One without a row left returns, too: how many
        rows it has, only its statistics say here.

        Returns: The files that return, columns of `ADD_SCHEMA`.

        Raises:
            InvalidRequestError: A file does not say how many records it has.
        """
        unions = [before | new for before, new in zip(self.marked, self.deleted, strict=True)]
        vectors, vector_files = pack_deletion_vectors(
            list(map(DeletionVector, unions)),
            inline_bytes=INLINE_BYTES,
            random_prefix_length=self.random_prefix_length,
        )
        adds = with_deletion_vectors(self.files, vectors)
        self.vector_files = [*self.vector_files, *vector_files]
        staged.removes.append((self.files.select(_REMOVED_COLUMNS), True))
        staged.add(adds)
        return adds

    def among(self, paths: pa.Array) -> MarkedRows:
        """The files with one of these canonical paths."""
        return self._those(pc.is_in(self.paths, value_set=paths))

    def without(self, paths: pa.Array) -> MarkedRows:
        """The files with none of these canonical paths."""
        return self._those(pc.invert(pc.is_in(self.paths, value_set=paths)))

    def _those(self, is_wanted: pa.Array) -> MarkedRows:
        # Vectors not written yet share files: one that is no longer needed goes with those that are.
        indexes = pc.indices_nonzero(is_wanted).to_pylist()
        return replace(
            self,
            files=pc.filter(self.files, is_wanted).combine_chunks(),
            marked=[self.marked[index] for index in indexes],
            deleted=[self.deleted[index] for index in indexes],
        )

    def _ensure_live(self) -> None:
        counts = record_counts(self.files)
        if counts.null_count:
            raise InvalidRequestError(
                "A file that is to get a deletion vector does not say how many records it has",
                cause="Its statistics lack numRecords",
                remedy="Rewrite the file instead",
                path=pc.filter(FileTable(self.files).path, pc.is_null(counts))[0].as_py(),
            )
        for index, count in enumerate(counts.to_pylist()):
            deleted = self.deleted[index]
            if deleted.max() >= count or self.marked[index].intersect(deleted):
                raise InvalidRequestError(
                    "A row that is to be deleted is not in the table",
                    cause="Its position lies beyond the end of its file, or the file's deletion vector marks it",
                    path=FileTable(self.files).path[index].as_py(),
                )


def join_marked(some: MarkedRows, others: MarkedRows) -> MarkedRows:
    """All files of both."""
    return replace(
        some,
        files=pa.concat_tables([some.files, others.files]),
        marked=some.marked + others.marked,
        deleted=some.deleted + others.deleted,
        vector_files=some.vector_files + others.vector_files,
    )


class Overlap(NamedTuple):
    """Rows that two transactions delete: their files, with paths as in the log, and their number."""

    paths: tuple[str, ...]
    num_rows: int


def marks_on_top(
    rows: MarkedRows, store: LogStore, adds: pa.Table, removes: pa.Table
) -> tuple[MarkedRows | None, Overlap | None]:
    """The marks behind a commit that marked other rows of the same files.

    Args:
        adds, removes: What that commit adds and removes.

    Returns: The files of `rows` whose vector the commit replaced, with the same rows on top of the new vector; None
        where there are none. Or else the rows that both delete. Both results omit files that the commit removed or in
        which it restored rows, because these cannot be combined.

    Raises:
        MissingFileError, CorruptDeletionVectorError, StorageError: A vector of that commit cannot be read.
    """
    is_removed = pc.is_in(keys_of(rows.files), value_set=keys_of(removes))
    if not is_removed.true_count:
        return None, None
    touched = rows._those(is_removed)
    where = pc.index_in(touched.paths, value_set=one_chunk(canonical_paths(FileTable(adds).path)))
    returns = pc.is_valid(where)
    touched = touched._those(returns)
    files = pc.take(adds, pc.filter(where, returns))
    vectors = bitmaps_of(store, files)
    is_on_top = pc.and_(
        pc.is_valid(record_counts(files)),
        bool_array([before.issubset(after) for before, after in zip(touched.marked, vectors, strict=True)]),
    )
    touched, files = touched._those(is_on_top), pc.filter(files, is_on_top).combine_chunks()
    vectors = [vectors[index] for index in pc.indices_nonzero(is_on_top).to_pylist()]
    shared = [
        (after - before) & new for before, after, new in zip(touched.marked, vectors, touched.deleted, strict=True)
    ]
    if any(shared):
        paths = pc.filter(FileTable(files).path, bool_array([bool(both) for both in shared]))
        return None, Overlap(tuple(paths.to_pylist()), sum(map(len, shared)))
    return (replace(touched, files=files, marked=vectors, vector_files=[]), None) if files.num_rows else (None, None)


def bitmaps_of(store: LogStore, files: pa.Table) -> list[BitMap64]:
    """The rows that the deletion vectors of files mark. Raises as `read_deletion_vectors`."""
    from pyroaring import BitMap64

    bitmaps = read_deletion_vectors(store, deletion_vector_descriptors(files))
    return [BitMap64() if vector is None else vector.bitmap for vector in bitmaps]
