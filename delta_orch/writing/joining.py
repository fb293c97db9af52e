"""Two writers create a table at the same time: the second goes on as if it had been there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from delta_orch.errors import MetadataChangedError
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_checks import PHYSICAL_NAMES
from delta_orch.log.write.commit_result import CommitResult
from delta_orch.writing.identity import can_be_read_again

logger = logging.getLogger(__name__)


def differs_in_physical_names(error: MetadataChangedError) -> bool:
    """Whether two writers meant the same table, and have only made up other names for its columns in files (column
    mapping)."""
    return error.context.get("differences") == [PHYSICAL_NAMES]


def write_or_join(
    table_log: TableLog,
    snapshot: Snapshot | None,
    data: Any,
    write: Callable[[Snapshot | None], CommitResult],
    *,
    only_empty: bool = False,
) -> CommitResult:
    """Run a write that may have to create its table. Where another writer creates the same table meanwhile, with column
    mapping, run it again as a write into that one: its files must have the names of columns that are in force there.
    Files of the attempt before are orphans.

    Args:
        only_empty: Only where that table has no rows, which the write should otherwise have read.

    Raises:
        MetadataChangedError: Another writer has created another table, or the data cannot be read twice. Nothing was
            committed; running the write again is safe.
        Otherwise what `write` raises.
    """
    try:
        return write(snapshot)
    except MetadataChangedError as e:
        if snapshot is not None or not differs_in_physical_names(e) or not can_be_read_again(data):
            raise
        newest = table_log.snapshot()
        if only_empty and newest.num_files:
            raise
        logger.info("Another writer has created %s: its columns keep the names they have there", table_log.store.uri)
        return write(newest)
