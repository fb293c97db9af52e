"""Rows that are deleted by marking them, where a test must stand between the deletion and its commit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyroaring import BitMap64

from delta_orch import DeltaTable
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.scan_plan import with_row_addresses
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.resolve import resolve_predicate
from delta_orch.log.read.deletion_vectors import deletion_vector_descriptors, read_deletion_vectors
from delta_orch.log.write.commit_checks import ensure_may_write_deletion_vectors
from delta_orch.log.write.deletion_vector_writer import with_deletion_vectors, write_deletion_vectors
from delta_orch.protocol.actions import DeletionVectorDescriptor
from delta_orch.protocol.deletion_vector import DeletionVector
from delta_orch.scan.scan import scan_of_files
from delta_orch.writing.selection import first_file_with
from tests.harness.results import Snapshot, Transaction
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
    replace_vectors(transaction, files, vectors)
    return transaction


def replace_vectors(transaction: Transaction, files: pa.Table, vectors: Sequence[DeletionVectorDescriptor]) -> None:
    """Mark other rows of files as deleted, as a writer does that keeps no marks of its own: each file stays, as another
    logical file. `vectors` are written already, and mark what the old ones mark, and more."""
    ensure_may_write_deletion_vectors(transaction._result())
    marked = with_deletion_vectors(files, vectors)
    transaction.read_files(files)
    transaction.remove_files(files)
    transaction.add_files(marked)


def delete_rows(table: DeltaTable, *positions: int, inline: bool = False) -> None:
    """Mark the rows at these positions of every file, as a row-level operation does."""
    begin_deletion(table, table.snapshot().files(), *positions, inline=inline).commit()


def begin_delete_where(
    table: DeltaTable, snapshot: Snapshot, where: str, *, looks: bool = True, **options: Any
) -> Transaction:
    """A transaction, not committed yet, that deletes the rows for which a predicate is true.

    Args:
        looks: It can look at single rows of others.
    """
    predicate = resolve_predicate(where, snapshot.schema)
    files = snapshot.files(where=predicate).combine_chunks()
    plan = with_row_addresses(scan_of_files(snapshot, files, columns=(), where=predicate), "f", "p")
    engine = LocalEngine()
    found = engine.to_arrow(engine.scan(plan))
    positions = [BitMap64() for _ in range(files.num_rows)]
    for number, position in zip(found["f"].to_pylist(), found["p"].to_pylist(), strict=True):
        positions[number].add(position)
    transaction = begin(table, snapshot, operation="DELETE", **options)
    transaction.read_where(predicate)
    transaction.read_rows(files)
    transaction.delete_rows(files, positions)
    if looks:

        def look(others: pa.Table, suspected: Expression) -> str | None:
            return first_file_with(engine, snapshot, others, suspected)

        transaction.look_by(look)
    return transaction
