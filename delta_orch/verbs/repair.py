"""`repair`: files that are gone leave the log. The reference calls it FSCK REPAIR TABLE."""

from __future__ import annotations

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.errors import CorruptDataError, InvalidRequestError, MissingFileError, StorageError
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import CommitOptions, CommitResult, parse_txns
from delta_orch.log.write.transaction import Transaction
from delta_orch.protocol.arrow_building import string_array
from delta_orch.verbs.fsck import check_data_files
from delta_orch.writing.plan import REMOVED_FILE_COLUMNS
from delta_orch.writing.target import existing_target

_MOST_NAMED = 5


def repair(log: TableLog, snapshot: Snapshot, options: CommitOptions) -> CommitResult:
    """Remove the data files that are no longer in the store from the table, in one commit. Every live file is looked
    up by its name; none is read. Their rows are lost: the commit changes rows, and the change feed cannot tell which.

    What is there stays: a file of another size, and a file whose deletion vector is gone, are damaged and still hold
    rows. `fsck(check_files=True)` names them.

    Returns: `skipped` where no file is gone.

    Raises as `DeltaTable.repair`.
    """
    if any(txn.scope is not None for txn in parse_txns(options.get("txn"))):
        raise InvalidRequestError("A repair applies to the whole table", remedy="Pass transaction ids without scope")
    transaction = Transaction(log, snapshot, operation="FSCK", **options)
    if transaction.stale_txns():
        return transaction.commit()
    existing_target(snapshot)
    files = snapshot.files(REMOVED_FILE_COLUMNS)
    gone = pc.filter(files, pc.is_in(FileTable(files).path, value_set=_paths_gone(snapshot, files)))
    if not gone.num_rows:
        return transaction.skip()
    transaction.remove_files(gone)
    transaction.set_operation_metrics(
        {
            "numMissingFiles": gone.num_rows,
            "numFilesScanned": files.num_rows,
            "sizeOfMissingFiles": FileTable(gone).size_bytes,
        }
    )
    return transaction.commit()


def _paths_gone(snapshot: Snapshot, files: pa.Table) -> pa.Array:
    problems = list(check_data_files(snapshot.store, files))
    unknown = [problem for problem in problems if problem.code not in (MissingFileError.code, CorruptDataError.code)]
    if unknown:
        raise StorageError(
            f"{len(unknown)} data files cannot be looked up",
            cause=" ".join(problem.message for problem in unknown[:_MOST_NAMED]),
            remedy="Make the store readable first: a file that cannot be looked up may be there",
            paths=[problem.path for problem in unknown[:_MOST_NAMED]],
        )
    return string_array([p.path for p in problems if p.code == MissingFileError.code])
