"""Rows that a task has written and that another one has removed since, in this run: it has to write them again.

A task that deletes the rows of a day, and one after it that adds them: what the second has recorded says that it is
done, and its rows are gone. So is it where the first was cleared and the second finds the commit of an attempt that was
never acknowledged, or writes once a partition.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Any

from delta_orch.errors import DeltaError, InvalidRequestError, MissingFileError, VersionNotFoundError
from delta_orch.pipeline.recorded import find_commit_after, find_txn_commit, is_older, newest_first, said_by

if TYPE_CHECKING:
    from delta_orch.airflow.neighbors import Neighbors
    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable
    from delta_orch.log.files.commit_reader import Commit

_REMOVING = ("WRITE", "DELETE")
"""Operations that remove the rows of a predicate, or all."""


def forget(run: TaskRun, table: DeltaTable, app_id: str) -> None:
    """Take back what says that a write is done. Raises ConflictError: Others have changed the table meanwhile."""
    from delta_orch.log.write.commit_options import SERIALIZABLE
    from delta_orch.log.write.transaction import Transaction

    said = run.user_metadata()
    transaction = Transaction(
        table.log, table.snapshot(), operation="WRITE", user_metadata=said, isolation_level=SERIALIZABLE
    )
    transaction.read_whole_table()
    transaction.take_back({app_id: -1})
    transaction.commit()


def ensure_last(tasks: Neighbors, table: DeltaTable, app_id: str, recorded: int) -> None:
    """Check that a merge which an attempt has committed stands for the one that this attempt would do. It takes what
    `are_taken` does.

    Raises:
        InvalidRequestError: A task before this one has written to the table since, in this run.
    """
    run, own = tasks.run, find_txn_commit(table, app_id, recorded).version
    if not tasks.before or own is None:
        return

    def is_earlier(info: Mapping[str, object]) -> bool:
        return run.is_of_run(info) and said_by(info).get("task_id") in tasks.before

    if (newer := find_commit_after(table, own, is_earlier)) is not None:
        raise InvalidRequestError(
            f"Task {run.task_id} has merged its rows in version {own}, and a task before it has written others in "
            f"version {newer.version}",
            cause="An attempt that was never acknowledged has made that merge, and doing it again could double rows",
            remedy="Restore what the table had before that version, and clear the task; or merge by keys",
        )


def has_merged(operation: object, metrics: Any, *kinds: str) -> bool:
    """Whether a commit is a merge that has `Deleted` or `Updated` rows."""
    is_told = operation == "MERGE" and isinstance(metrics, Mapping)
    return is_told and any(int(metrics.get(f"numTargetRows{kind}", 0)) for kind in kinds)


def are_taken(
    tasks: Neighbors, table: DeltaTable, app_id: str, recorded: int, *, stands: bool = True, again: bool = False
) -> bool:
    """Whether the rows of a recorded transaction are gone, as another task has removed them in this run. One that comes
    after this one has to, unless it begins again: what lies between the two reads the rows. Where the task was cleared,
    whoever has removed them: the user asks for them.

    Args:
        tasks: Beside the one that has recorded it.
        table: The table that is written.
        app_id: The transaction's.
        recorded: The version of it that the table has.
        stands: What is recorded may be all that this attempt does. Of a merge the log tells only at times which rows
            it has deleted or updated, and where the rows are added again anyway, nobody has to know.
        again: The task was cleared, to write once more. What a task after it has removed counts then also where that
            one does not begin again: it may have cleaned up after the failure of this one.

    Raises:
        InvalidRequestError: Some of the rows are gone, or it cannot be told.
    """
    run, is_asked = tasks.run, again and stands
    if not tasks.all and not is_asked:
        return False

    def remover(commit: Commit) -> str | None:
        info = commit.commit_info or {}
        name, operation = str(said_by(info).get("task_id")), info.get("operation")
        if not run.is_of_run(info) or name not in tasks.all or not commit.removes.num_rows:
            return None
        # What comes in any order may update rows of this one.
        kinds = ("Deleted", "Updated") if name in tasks.before else ("Deleted",)
        is_change = has_merged(operation, info.get("operationMetrics"), *kinds)
        is_change |= operation == "UPDATE" and name in tasks.before
        if operation not in _REMOVING and not (stands and is_change):
            return None
        return None if name in tasks.after and not again and not tasks.is_to_come(info) else name

    newest, removers = table.snapshot().version, dict[int, str]()
    own: Commit | None = None
    for commit in newest_first(table, newest):
        if any(txn.app_id == app_id and txn.version == recorded for txn in commit.txns):
            own = commit
            break
        if not removers and is_older(commit, run.since_ms):
            return False
        if name := remover(commit):
            removers[commit.version] = name
    if not removers and (own is None or not is_asked):
        return False
    if own is None:
        raise _in_part(run, "The log no longer tells what this task has written")
    try:
        rows = _Rows(table, own)
        for version in range(own.version + 1, newest + 1):
            rows.follow(table.log.read_commit(version), removers.get(version))
        if rows.files and (rows.in_part or rows.are_gone):
            raise _in_part(run, rows.in_part or "Of several files that it has written, some were removed")
    except InvalidRequestError:
        if not tasks.after.issuperset(removers.values()):
            raise
        return False  # It removes what it is to remove of what this task writes.
    return rows.are_gone


class _Rows:
    """The rows that a commit has written, as the commits after it leave them.

    Attributes:
        files: Those that hold them, among others' rows.
        are_gone: All of a file's rows, at least, were removed.
        in_part: Why some rows of a file may be gone, and others there.
    """

    in_part = ""

    def __init__(self, table: DeltaTable, own: Commit) -> None:
        # A DAG file is parsed without pyarrow.
        from delta_orch.pipeline.shared_target import left_by, paths_of

        paths = paths_of(own.adds)
        self._table, self._own_version = table, own.version
        self._written = self.files = frozenset(paths - left_by(table, own, paths)[0])
        # If there were none, none can be doubled.
        self.are_gone = not own.adds.num_rows and not own.removes.num_rows
        self._are_changed = False
        self._past = {self.files: (self.are_gone, "")}

    def follow(self, commit: Commit, remover: str | None) -> None:
        """Go on to the next commit.

        Args:
            remover: The task that has to remove all of them that a file holds, or none, unless the others are removed
                later. Another commit, of a newer run or a user, may have removed some.
        """
        from delta_orch.pipeline.shared_target import paths_of
        from delta_orch.pipeline.tail import changes_data

        info: Mapping[str, Any] = commit.commit_info or {}
        gone = self.files & paths_of(commit.removes)
        if info.get("operation") == "RESTORE":
            self.files = self.files - gone | paths_of(commit.adds) & frozenset[str]().union(*self._past)
            self.are_gone, self.in_part = self._past.get(self.files, (not self.files, self.in_part))
        elif gone:
            heirs, is_change = _heirs(commit, gone), info.get("operation") in ("UPDATE", "MERGE")
            # It may have changed other rows of the files: of a compaction, or those that it has written itself.
            are_there = is_change and remover is not None and self._are_in(commit.version, self.files - gone | heirs)
            self._are_changed |= is_change and not are_there
            is_removal = info.get("operation") in _REMOVING and changes_data(commit)
            may_remove = is_removal if remover is None else not are_there
            removed, left = self._split(commit, commit.version - 1, gone) if may_remove else (False, True)
            if removed and predicate_of(info) is not None and not self._are_changed:
                # Of the rows as they were written: a compaction puts those of others into their file.
                removed, rest = self._split(commit, self._own_version, self._written)
                if removed and not rest:
                    gone, left = self.files, False
            if removed and left and remover is not None:
                said = f"of its files in version {commit.version}, and left others"
                self.in_part = f"Task {remover} has removed or changed some rows {said}"
            has_all = removed and not left
            self.are_gone |= has_all
            self.files = self.files - gone | (frozenset() if has_all else heirs)
            self._past[self.files] = self.are_gone, self.in_part

    def _are_in(self, version: int, paths: Set[str]) -> bool:
        """Whether the rows, as they were written, are all in these files of a version."""
        from delta_orch.pipeline.shared_target import are_among

        try:
            own, newer = (self._table.snapshot(version=each) for each in (self._own_version, version))
            return are_among(own, self._written, newer, paths)
        except DeltaError:
            return False  # Vacuum has deleted them, or columns have other types now.

    def _split(self, commit: Commit, version: int, paths: Set[str]) -> tuple[bool, bool]:
        """Whether a commit that removes rows removes some that these files of a version hold, and leaves some."""
        from delta_orch.expressions.tree import is_not_true
        from delta_orch.pipeline.shared_target import have, paths_of

        info: Any = commit.commit_info or {}
        if info.get("operation") == "UPDATE":
            return True, True  # Rows that are changed are neither there nor gone.
        if info.get("operation") == "MERGE":
            # Which rows it has deleted, updated and copied is not told of each file.
            others = (int(info["operationMetrics"].get(f"numTargetRows{what}", 0)) for what in ("Updated", "Copied"))
            return True, any(others) or not paths.isdisjoint(paths_of(commit.adds))
        said = predicate_of(info)
        if said is None:
            return True, False
        try:
            before = self._table.snapshot(version=version)
            return have(before, paths, said), have(before, paths, said, is_not_true)
        except (InvalidRequestError, MissingFileError, VersionNotFoundError):
            # It was too long for the log, columns have other names now, or what would tell is deleted.
            return True, True


def _heirs(commit: Commit, gone: Set[str]) -> frozenset[str]:
    """The files that hold the rows of others after a commit: those of a compaction, and a file that is marked."""
    from delta_orch.pipeline.shared_target import places

    there = {place for path, place in places(commit.removes).items() if path in gone}
    return frozenset(path for path, place in places(commit.adds).items() if path in gone or {place, None} & there)


def predicate_of(info: Mapping[str, Any]) -> str | None:
    """Which rows a commit has removed, as it tells; None for all, and for those of the partitions that it writes."""
    said = (info.get("operationParameters") or {}).get("predicate")
    return next(iter(json.loads(said)), None) if isinstance(said, str) and said.startswith("[") else said


def _in_part(run: TaskRun, cause: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"Task {run.task_id} has written rows, of which another task has removed or changed some in this run, or may "
        "have",
        cause=cause,
        remedy="Let that task remove all of its rows, or none: by where or replace_where, or from a table of its own. "
        "To go on, delete what is left of what this one has written, and clear it once more to write all of it; or "
        "mark it as a success to leave what is there",
    )
