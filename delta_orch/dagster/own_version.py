"""The outputs of ops: every run reads back the version that it wrote itself.

The outputs of all runs of a job are versions of one table. A run commits its own under a transaction id that names its
root run, and its steps read what that commit wrote. So runs at the same time do not see each other's values, and
what older runs wrote stays readable until vacuum and log cleanup remove it, as with any older version.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import dagster as dg

from delta_orch.dagster.output_place import output_parts
from delta_orch.dagster.run import DagsterRun
from delta_orch.delta_table import DeltaTable, TableSnapshot
from delta_orch.errors import ConflictError, InvalidRequestError, VersionNotFoundError
from delta_orch.log.files.txn import TxnId
from delta_orch.log.read.replay import Tail
from delta_orch.pipeline.recorded import find_txn_commit, said_by
from delta_orch.pipeline.run_identity import Idempotency

T = TypeVar("T")

_ATTEMPTS = 30


def own_txn(run: DagsterRun, output: dg.OutputContext, idempotency: Idempotency) -> TxnId:
    """The transaction id of an output of an op: one a root run."""
    (txn,) = run.identity(output_parts(output), is_op=True).txns("run", by_run=True)
    if idempotency == "off":
        # Every attempt writes, and the last one is what the run reads.
        return TxnId(txn.app_id, time.time_ns() // 1_000_000, exact=True)
    return txn


def own_snapshot(table: DeltaTable, app_id: str) -> TableSnapshot | None:
    """The table as of the last commit under a transaction id; None where there is none.

    Raises:
        VersionNotFoundError: That commit was cleaned up.
    """
    if not table.exists() or table.last_txn(app_id) is None:
        return None
    version = find_txn_commit(table, app_id).version
    if version is None:
        raise VersionNotFoundError(
            f"The commit of {app_id} is gone from the log of {table.uri}",
            cause="The log was cleaned up (delta.logRetentionDuration) since the run wrote its output",
            remedy="Launch a new run instead of re-executing this one",
            uri=table.uri,
        )
    return table.snapshot(version=version)


def written_rows(table: DeltaTable, after: TableSnapshot) -> TableSnapshot:
    """The rows that the commit of an op was given, as a table.

    Raises:
        InvalidRequestError: They were merged, and are not to be told from others.
    """
    commit = table.log.read_commit(after.version)
    if said_by(commit.commit_info).get("mode") in ("merge", "scd2"):
        raise InvalidRequestError(
            f"Version {after.version} of {table.uri} does not tell which rows the upstream op returned",
            cause="The op has merged them into the rows of older runs",
            remedy="Annotate the input as DeltaSnapshot for the whole table as the op left it, or give the op's output "
            'the metadata {"mode": "overwrite"}',
            uri=table.uri,
        )
    if commit.removes.num_rows:
        return after
    # It has added to what was there, if anything was.
    return TableSnapshot(after.store, after.segment, None, Tail(after.protocol, after.metadata).fold(commit.files))


def repeat_conflicts(write: Callable[[], T]) -> T:
    """Repeat a write that other runs of the job overtake: it replaces a whole that none of them reads."""
    for attempt in range(_ATTEMPTS):
        try:
            return write()
        except ConflictError:
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(min(1.0, 0.05 * (attempt + 1)))
    raise AssertionError
