"""Rows that are deleted by marking them, which no verb does yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyroaring import BitMap64

from delta_orch import DeltaTable
from delta_orch.log.read.deletion_vectors import deletion_vector_descriptors, read_deletion_vectors
from delta_orch.log.write.deletion_vector_writer import write_deletion_vectors
from delta_orch.protocol.actions import DeletionVectorDescriptor
from delta_orch.protocol.deletion_vector import DeletionVector
from tests.harness.results import Transaction
from tests.harness.table_builder import begin


def write_vectors(
    table: DeltaTable, positions: Sequence[Iterable[int]], *, inline: bool = False
) -> list[DeletionVectorDescriptor]:
    """A deletion vector for each set of positions: inside its descriptor, or in a file."""
    vectors = [DeletionVector(BitMap64(rows)) for rows in positions]
    return write_deletion_vectors(table.store, vectors, inline_bytes=1 << 20 if inline else 0)


def marked_rows(table: DeltaTable, files: pa.Table) -> list[set[int]]:
    """The positions that are marked in each file."""
    vectors = read_deletion_vectors(table.store, deletion_vector_descriptors(files))
    return [set() if vector is None else set(vector.bitmap) for vector in vectors]


def begin_deletion(table: DeltaTable, files: pa.Table, *positions: int, inline: bool = False) -> Transaction:
    """A transaction, not committed yet, that marks the rows at these positions of each file, and no others."""
    transaction = begin(table, table.snapshot(), operation="DELETE")
    vectors = write_vectors(table, [positions] * files.num_rows, inline=inline)
    transaction.replace_deletion_vectors(files, vectors)
    return transaction


def delete_rows(table: DeltaTable, *positions: int, inline: bool = False) -> None:
    """Mark the rows at these positions of every file, as a row-level operation does."""
    begin_deletion(table, table.snapshot().files(), *positions, inline=inline).commit()
