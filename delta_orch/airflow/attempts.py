"""What earlier attempts of a task instance have done: whose commit a recorded transaction is.

The table says *that* a transaction is recorded. Whose it is, it cannot say: a DAG that was deleted and created again
has runs of the same names and times, a mapped task that is expanded again has other work under the same index, and a
clearing cannot tell an attempt that succeeded from one that died after its commit. Each task instance therefore notes
in Airflow's task state store, which belongs to this very run and survives retries and clearing, which transaction it
set out to commit, and Airflow's own record of its success.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from delta_orch.errors import InvalidRequestError
from delta_orch.log.files.txn import TxnId

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from delta_orch.airflow.run_context import TaskRun

logger = logging.getLogger(__name__)

MARKER_KEY = "delta_orch_write"
"""Under which the state store holds the marker."""


class Verdict(Enum):
    """What an attempt does."""

    WRITE = auto()
    """Nothing of it is recorded, or what is does not count any more."""
    OWN = auto()
    """An earlier attempt has committed it: report that commit."""
    AGAIN = auto()
    """What is recorded is of a run that no longer exists: write, as a newer run. What adds rows would double them."""
    LEAVE = auto()
    """A newer run, or any run where one is enough, has written it."""


class Clearing(Enum):
    """What has happened since the attempt before this one."""

    NONE = auto()
    """It failed, and is retried."""
    PERHAPS = auto()
    """It was cleared while it ran, or it is retried and another task of the run was cleared."""
    CERTAIN = auto()
    """It was cleared."""


@dataclass(frozen=True, slots=True)
class Marker:
    """What an attempt set out to commit.

    Attributes:
        version: The transaction's version.
        work: A digest of the task's arguments.
        acknowledged: Airflow has recorded the success of an attempt since.
        table_version: The table's version before the first attempt; -1 without a table.
        app_id: The transaction's.
        recorded: The version of it that was recorded before, -1 for none; None where nobody has noted it.
        max_tries: Airflow's at the attempt; None where nobody has noted it.
        clear_number: The run's at the attempt.
        refused: The attempt was refused, as adding rows could double them: the error says that a clearing adds them.
    """

    version: int
    work: str = ""
    acknowledged: bool = False
    table_version: int = -1
    app_id: str = ""
    recorded: int | None = None
    max_tries: int | None = None
    clear_number: int = 0
    refused: bool = False

    def clearing(self, run: TaskRun, own: int) -> Clearing:
        """Whether an attempt is a retry of this one.

        A clearing moves `max_tries`, but not that of a task which runs, nor by as much as it should where the DAG's
        `retries` have changed. It moves the run's number, but not if the run is left as it is, and so does the clearing
        of any other task. What has succeeded is never retried.

        Args:
            run: The later attempt.
            own: The version of its transaction by its place in time.
        """
        if self.acknowledged or (own > self.version if self.max_tries is None else run.max_tries != self.max_tries):
            return Clearing.CERTAIN
        is_unsure = self.max_tries is not None and run.clear_number > self.clear_number
        return Clearing.PERHAPS if is_unsure else Clearing.NONE


def judge(own: int, recorded: int | None, marker: Marker | None, *, is_same: bool, adds: bool) -> Verdict:
    """What to do about a transaction.

    Args:
        own: The version of this attempt.
        recorded: The one in the table, None without.
        marker: What an earlier attempt of this task instance has noted.
        is_same: What the marker is about is the work of this attempt.
        adds: The write leaves the rows that are there; done twice it doubles its own.

    Raises:
        InvalidRequestError: Neither writing nor leaving it can be right.
    """
    if recorded is not None and marker is not None and recorded == marker.version:
        if own <= recorded or (adds and not marker.acknowledged):
            if is_same:
                return Verdict.OWN
            if adds:
                raise _shifted()
            return Verdict.AGAIN if own <= recorded else Verdict.WRITE
        return Verdict.WRITE
    if recorded is None or recorded < own:
        return Verdict.WRITE
    return Verdict.LEAVE if recorded > own else Verdict.AGAIN


class Attempts:
    """The marker of one task instance; there is none where Airflow keeps no state of tasks (`TaskRun.keeps_state`).

    Args:
        context: Airflow's, of the attempt that is running.
        run: Of the context.
    """

    def __init__(self, context: Context, run: TaskRun) -> None:
        self._context = context
        self._run = run
        self._store: Any = context.get("task_state_store")
        self.marker: Marker | None = None
        found = self._store.get(MARKER_KEY) if run.keeps_state else None
        if found is None:
            return
        marker = self.marker = Marker(**found)
        # An attempt that has returned may die before Airflow records its success, and is retried then. Of one that was
        # refused the user knows, and has cleared it.
        is_known = marker.refused or _has_returned_before(context)
        if not marker.acknowledged and marker.max_tries != run.max_tries and is_known:
            self._note(replace(marker, acknowledged=True))

    def begin_or_continue(self, version: int, table_version: int) -> None:
        """As `begin`, for a task that may make several commits: an attempt that was never acknowledged stands at the
        start of them."""
        before = self.marker
        if before is not None and not before.acknowledged:
            table_version = before.table_version
        self.begin(TxnId("", version), table_version=table_version)

    def begin(self, txn: TxnId, recorded: int | None = None, *, work: str = "", table_version: int = -1) -> None:
        """Note what is about to be committed, before it is, and have Airflow's acknowledgement noted after it.

        Args:
            txn: The transaction.
            recorded: Which version of it the table has.
            work: A digest of the arguments.
            table_version: The table's, -1 without one.
        """
        self.go_on(Marker(txn.version, work, False, table_version, txn.app_id, -1 if recorded is None else recorded))

    def go_on(self, marker: Marker) -> None:
        """As `begin`, for an attempt that stands for the one which left the marker."""
        if not self._run.keeps_state:
            return
        self._note(replace(marker, max_tries=self._run.max_tries, clear_number=self._run.clear_number))
        task: BaseOperator = self._context["ti"].task
        given = getattr(task, "on_success_callback", None) or []
        callbacks: Sequence[object] = given if isinstance(given, list | tuple) else [given]
        # In this process only: the DAG is not touched.
        task.on_success_callback = [self._acknowledge, *callbacks]

    def refuse(self, txn: TxnId | None = None) -> None:
        """Note that this attempt is refused. A clearing from here on is to write all the same, and a retry is not.

        Args:
            txn: The transaction; without it, that of the marker.
        """
        marker = self.marker
        if txn is not None and (marker is None or marker.app_id not in ("", txn.app_id)):
            marker = Marker(txn.version, app_id=txn.app_id)
        if marker is not None:
            self.go_on(replace(marker, refused=True))

    def _acknowledge(self, context: Context) -> None:
        if self.marker is not None:
            self._note(replace(self.marker, acknowledged=True))

    def _note(self, marker: Marker) -> None:
        from airflow.sdk import NEVER_EXPIRE  # type: ignore[attr-defined]  # it is missing in the stub

        values = {name: getattr(marker, name) for name in Marker.__dataclass_fields__}
        self._store.set(MARKER_KEY, values, retention=NEVER_EXPIRE)
        self.marker = marker


def _has_returned_before(context: Context) -> bool:
    """Whether the attempt before this one pushed its XCom: the last thing it does before it reports its success."""
    given = getattr(context["ti"], "_ti_context_from_server", None)
    return "return_value" in (getattr(given, "xcom_keys_to_clear", None) or ())


def recreated() -> InvalidRequestError:
    """The error for rows that a run of the same name has added, of which this one knows nothing."""
    return InvalidRequestError(
        "A run of the same name and time has added these rows before, and it is not this run",
        cause="The DAG, or its run, was deleted and created again; adding the rows again would double them",
        remedy="Clear the task to add them again, or pass idempotency='partition' to leave what is there",
    )


def renamed(name: str) -> InvalidRequestError:
    """The error for rows that an attempt added under an identity which this one does not have."""
    return InvalidRequestError(
        f"{name} has another identity than the attempt before it, which has added its rows and never told Airflow",
        cause="The template of identity has another value in each try; adding the rows again would double them",
        remedy="Use a value that all tries have, such as {{ run_id }} or the mapped argument. Mark this task as a "
        "success to leave what is there, or clear it once more to add the rows a second time",
    )


def handed_on(name: str, identity: str) -> InvalidRequestError:
    """The error for rows that another index of a mapped task has added, which had this one's identity then."""
    return InvalidRequestError(
        f"{name} has found rows that another mapped task of this run has added under the identity {identity!r}",
        cause="The list that the task is mapped over has changed; whether Airflow has heard of that one's success "
        "cannot be told, and adding the rows again could double them",
        remedy="Mark the task as a success to leave what is there, or clear it again to add the rows a second time; "
        "idempotency='partition' adds them once",
    )


def lived_on(name: str) -> InvalidRequestError:
    """The error for rows that an attempt added which was taken for dead."""
    return InvalidRequestError(
        f"{name} has found rows that an attempt which was cleared has added meanwhile",
        cause="That attempt was not dead; adding the rows again would double them",
        remedy="Clear the task again to add them a second time, or mark it as a success",
    )


def _shifted() -> InvalidRequestError:
    return InvalidRequestError(
        "Another mapped task has added rows under this map index in this run",
        cause="The list that the task is mapped over has changed, and an index does not say what was written",
        remedy="Name what each mapped task writes: identity='{{ … }}'",
    )
