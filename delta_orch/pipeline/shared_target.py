"""What incremental steps share with others: nobody replaces their rows, as a cursor does not go back, and they replace
nobody's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.errors import InvalidRequestError, VersionNotFoundError
from delta_orch.log.files.file_columns import FileTable
from delta_orch.pipeline.run_identity import WRITERS

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.staged_write import StagedWrite

_NEW_ROWS = ("WRITE", "STREAMING UPDATE")
"""Operations whose files hold no row of the files they replace."""


def other_steps(before: TableSnapshot, consumers: tuple[str, ...]) -> frozenset[str]:
    """The identifiers in a table whose rows a step must not replace.

    Args:
        consumers: Its own (`run_identity.cdc_prefix`). An incremental step spares the rows of every other step. One
            that has none spares those of incremental steps: they would not write them again.
    """
    spared = ("cdc:", *WRITERS) if consumers else ("cdc:",)
    return frozenset(name for name in before.txns if name.startswith(spared) and not name.startswith(consumers))


def replaced_files(table: DeltaTable, staged: StagedWrite) -> FileTable:
    """The files that a staged write removes, or deletes rows of."""
    base = table.snapshot(staged.read_version).files(["path", "dv_id", "partition_values", "modification_time"])
    after = FileTable(staged.snapshot().files(["path", "dv_id"]))
    kept = pc.is_in(_identities(FileTable(base)), _identities(after))
    return FileTable(base.filter(pc.invert(kept)))


def ensure_others_keep_theirs(table: DeltaTable, staged: StagedWrite, consumers: tuple[str, ...]) -> None:
    """Look up in the log who has added what a staged write replaces.

    Args:
        consumers: The step's own; none of a step that is not incremental.

    Raises:
        InvalidRequestError: Another step (`other_steps`); or the log goes not back far enough to tell.
    """
    if staged.read_version is None:
        return
    others = other_steps(table.snapshot(staged.read_version), consumers)
    wanted = _places(replaced_files(table, staged).table) if others else {}
    version = staged.read_version
    while wanted:
        try:
            commit = table.log.read_commit(version)
        except VersionNotFoundError:
            raise _unfit(table, f"Who has written them is not known: its log begins after version {version}") from None
        found = wanted.keys() & set(FileTable(commit.adds).path.to_pylist())
        if owner := next((txn.app_id for txn in commit.txns if found and txn.app_id in others), None):
            raise _unfit(table, f"The step {owner!r} has written them, in version {version}")
        operation = (commit.commit_info or {}).get("operation")
        if found and operation != "RESTORE":
            places = {wanted.pop(path) for path in found}
            if operation not in _NEW_ROWS and not any(txn.app_id.startswith(consumers) for txn in commit.txns):
                # Rewritten, as by a compaction: the rows are those of the files before.
                before = _places(commit.removes)
                wanted |= {path: place for path, place in before.items() if place is None or place in places}
        version -= 1


def _places(files: pa.Table) -> dict[str, tuple[tuple[str, str | None], ...] | None]:
    """Path → partition of each file; None where the log does not say."""
    table = FileTable(files)
    values: list[Mapping[str, str | None] | None] = [
        None if pairs is None else dict(pairs) for pairs in table.partition_values.to_pylist()
    ]
    partitions = (None if pairs is None else tuple(sorted(pairs.items())) for pairs in values)
    return dict(zip(table.path.to_pylist(), partitions, strict=True))


def _identities(files: FileTable) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(files.path, pc.fill_null(files.dv_id, ""), " ")


def _unfit(table: DeltaTable, cause: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"The step would replace rows of {table.uri} that may be of another step",
        cause=cause,
        remedy="Let each step write partitions or a table of its own, or write by merge or append. To take a partition "
        "over, delete its rows first",
    )
