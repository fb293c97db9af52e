"""The commits that give row ids to the files of a table, or take them: many, and other writers in between."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pyarrow as pa

from delta_orch.errors import ConflictError
from delta_orch.log.files.arrow_building import all_booleans
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.writing.request import CommitOptions

logger = logging.getLogger(__name__)

FILES_PER_COMMIT = 100_000
_MAX_CONFLICTS = 100


def commit_until_done(take_step: Callable[[CommitOptions], bool], options: CommitOptions) -> int:
    """Take steps until nothing is left to do; one that meets a conflict is taken anew.

    Args:
        take_step: Makes one commit on the newest version, with the options it is given; False where there is none to
            make.
        options: `user_metadata` and `commit_info` of the commits; the rest is not looked at.

    Returns: How many commits that took.

    Raises:
        ConflictError: Others were faster time and again. What was committed before stays.
    """
    told = options.of_preparation()
    commits = conflicts = 0
    while True:
        try:
            if not take_step(told):
                return commits
            commits += 1
        except ConflictError as e:
            conflicts += 1
            if conflicts == _MAX_CONFLICTS:
                raise
            logger.info("A batch of files is put together anew: %s", e)


def add_again(table_log: TableLog, snapshot: Snapshot, files: pa.Table, operation: str, options: CommitOptions) -> None:
    """Commit files of the snapshot as they are given, none of their rows changed. Raises as `Transaction.commit`."""
    index = files.schema.get_field_index("data_change")
    files = files.set_column(index, files.schema.field(index), all_booleans(False, files.num_rows))
    transaction = options.begin(table_log, snapshot, operation, {"batchSize": files.num_rows})
    transaction.read_files(files)
    transaction.add_files(files)
    transaction.set_operation_metrics({"numAddedFiles": files.num_rows})
    transaction.commit()
