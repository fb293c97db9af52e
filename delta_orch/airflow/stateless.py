"""Whose commit a recorded transaction is, where Airflow keeps no state of tasks: before 3.3.

There the commit itself says which attempt made it, and how Airflow counted it then. What replaces its own rows needs no
more: an attempt is newer than each one before it, so none of those commits after it, and where it cannot be told that
it only repeats the one that has committed, it replaces the rows once more. What adds rows needs to know in addition
whether Airflow has heard of a commit, and no commit can say that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from delta_orch.airflow.attempts import Verdict
from delta_orch.airflow.versions import counts_every_clearing, needs_newer
from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.recorded import find_commit_after, find_txn_commit

if TYPE_CHECKING:
    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable
    from delta_orch.log.files.txn import TxnId


CREATING = ("error", "ignore")
"""Modes that add no rows to a table that is there, however often."""


def cannot_add(who: str) -> InvalidRequestError:
    """The error for a write that adds its run's rows, where a clearing could double them, or lose those it should add
    again."""
    return needs_newer(
        f"{who} adds rows with idempotency='run', which",
        cause="Older ones do not tell a task that was cleared whether its earlier commit is known as a success: its "
        "rows would be doubled, or not added again",
        remedy="Pass idempotency='partition', which adds the rows of a data interval once (with "
        "identity='{{ run_id }}' those of each run once); replace rows by mode='overwrite' with replace_where, upsert "
        "by keys, or use DeltaIncrementalOperator",
    )


def judge_by_table(
    run: TaskRun,
    table: DeltaTable,
    unit: TxnId,
    recorded: int | None,
    *,
    once_a_partition: bool,
    is_said: bool,
) -> Verdict:
    """What to do about a transaction, as `attempts.judge`.

    Args:
        unit: The transaction of this attempt.
        recorded: Its version in the table, None without.
        once_a_partition: Whoever has recorded it, it is done.
        is_said: As `OnceWriter`.

    Raises:
        InvalidRequestError: It is a newer run's, and it cannot be told whether this one was cleared.
    """
    if recorded is None:
        return Verdict.WRITE
    info = _commit_info(run, table, unit, recorded, anywhere=once_a_partition or recorded >= unit.version)
    if once_a_partition:
        return Verdict.OWN if run.is_of_task(info) else Verdict.LEAVE
    again = Verdict.WRITE if recorded < unit.version else Verdict.AGAIN
    if run.is_of_task(info):
        if run.is_this_attempt(info) or _is_repeated(run, info, is_said=is_said):
            return Verdict.OWN
        return Verdict.LEAVE if run.is_before(info) else again
    if again is Verdict.WRITE or run.is_of_run(info) or run.is_asked_after(info):
        return again
    own = find_commit_after(table, -1, run.is_of_task, app_id=unit.app_id, since_ms=run.since_ms)
    tries = run.retries if own is None else run.counted_at(own.commit_info or {}).get("max_tries", run.max_tries)
    if tries == run.max_tries:
        return Verdict.LEAVE
    if own is None:
        raise InvalidRequestError(
            "A newer run has written this, and it cannot be told whether this task was cleared",
            cause="Its number of tries has changed: by a clearing that did not reset its run, which replaces what "
            "the newer run wrote, or by a change of the DAG's retries, which does not",
            remedy="Clear the task once more when its run has ended, or mark it as a success",
        )
    return Verdict.AGAIN


def _commit_info(
    run: TaskRun, table: DeltaTable, unit: TxnId, recorded: int, *, anywhere: bool
) -> Mapping[str, object]:
    """Of the commit that has recorded it. One that only a commit of this run could change is not looked for before."""
    if anywhere:
        return find_txn_commit(table, unit.app_id, recorded).commit_info or {}
    found = find_commit_after(table, -1, lambda _: True, app_id=unit.app_id, since_ms=run.since_ms)
    return {} if found is None else found.commit_info or {}


def _is_repeated(run: TaskRun, info: Mapping[str, object], *, is_said: bool) -> bool:
    """Whether this attempt is a retry of the one that made the commit: no clearing, and no new life, lies between."""
    counted = run.counted_at(info)
    if not run.is_after(info) or counted.get("run_started_ms") != run.started_ms:
        return False
    if counted.get("max_tries") != run.max_tries:
        return False
    return is_said or (counts_every_clearing() and counted.get("clear_number") == run.clear_number)
