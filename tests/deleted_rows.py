"""Rows that are deleted by marking them, which no verb does yet."""

from __future__ import annotations

from pyroaring import BitMap64

from delta_orch import DeltaTable
from delta_orch.log.write.deletion_vector_writer import write_deletion_vectors
from delta_orch.log.write.transaction import Transaction
from delta_orch.protocol.deletion_vector import DeletionVector


def delete_first_row(table: DeltaTable) -> None:
    """Mark the first row of each file, as a row-level operation does."""
    snapshot = table.snapshot()
    files = snapshot.files()
    vectors = write_deletion_vectors(table.store, [DeletionVector(BitMap64([0]))] * files.num_rows, inline_bytes=0)
    transaction = Transaction(table.log, snapshot, operation="DELETE")
    transaction.replace_deletion_vectors(files, vectors)
    transaction.commit()
