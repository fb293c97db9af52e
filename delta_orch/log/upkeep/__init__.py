"""What keeps a log short: version checksums, checkpoints, log compactions and cleanup. Upkeep observes commits; nothing
that reads or writes the log imports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from delta_orch.log.read.snapshot import Snapshot
    from delta_orch.log.read.table_log import TableLog
    from delta_orch.log.write.commit_result import Committed


def after_commit(log: TableLog, read: Snapshot | None, commit: Committed) -> None:
    """The observer of a `TableLog` that does what is due after each commit. Loaded with the first commit of a process.
    Raises nothing. See `post_commit`."""
    from delta_orch.log.upkeep.post_commit import do_upkeep

    do_upkeep(log, read, commit)
