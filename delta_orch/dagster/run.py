"""The Dagster run behind a write: its identity, its words in the commit, and its retries."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import dagster as dg

from delta_orch.errors import DeltaError, InvalidRequestError
from delta_orch.pipeline.recorded import find_txn_commit, is_older, newest_first, said_by
from delta_orch.pipeline.run_identity import (
    ONCE_PER_PARTITION,
    RunIdentity,
    dagster_version,
    dagster_writer,
    ensure_one_location,
)
from delta_orch.pipeline.step import StepReport
from delta_orch.pipeline.target_table import snapshot_or_none
from delta_orch.storage.storage_options import public_uri

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable
    from delta_orch.log.files.commit_reader import Commit
    from delta_orch.staged_write import StagedWrite

NO_LOCATION = "local"
"""The code location of runs that were started without one: `dg.materialize`, the command line."""

WEBSERVER_VARIABLE = "DELTA_ORCH_WEBSERVER_BASE_URL"
"""The environment variable with the address of Dagster's UI, for links from commits to their runs."""

DEFAULT_CONFLICT_RETRIES = 3
_PAUSE_S = 1.0
_CLOCKS_DIFFER_S = 600
"""By so much the clock of a machine that commits may be behind that of Dagster's database."""

LookBehind = Callable[["Commit"], None]
StepContext = dg.OutputContext | dg.InputContext | dg.AssetExecutionContext | dg.OpExecutionContext


@dataclass(frozen=True, slots=True)
class DagsterRun:
    """What of a run goes into transaction ids and commits.

    Attributes:
        root_run_id: The first run of a chain of retries and re-executions, or the run itself.
        root_run_created: When that one was created, timezone-aware.
        step_started: When the step started for the first time in that chain.
        is_repeated: There is another run in that chain, or another attempt of the step in the run.
    """

    code_location: str
    run_id: str
    root_run_id: str
    root_run_created: datetime
    step_started: datetime
    step_key: str
    is_repeated: bool

    def identity(self, step: Sequence[str], *, is_op: bool = False) -> RunIdentity:
        """Who writes.

        Args:
            step: The asset key's parts, or the parts that name the output of an op.
            is_op: They do the latter.
        """
        writer = dagster_writer(self.code_location, step, is_op=is_op)
        started, created = dagster_version(self.step_started), dagster_version(self.root_run_created)
        return RunIdentity(writer, started, self.root_run_id, run_version=created)

    def user_metadata(self, asset_key: str, more: Mapping[str, str] | None = None) -> str:
        """`commitInfo.userMetadata`: JSON that names the run behind a commit, and `more`. It has the run's page where
        the environment tells the address of the UI.

        Raises:
            InvalidRequestError: `DELTA_ORCH_WEBSERVER_BASE_URL` is not the address of a website.
        """
        import orjson

        values = {
            "orchestrator": "dagster",
            "run_id": self.run_id,
            "root_run_id": self.root_run_id,
            "step_key": self.step_key,
            "code_location": self.code_location,
            "asset_key": asset_key,
            **_run_page(self.run_id),
        }
        return orjson.dumps({**values, **(more or {})}).decode()


def _run_page(run_id: str) -> dict[str, str]:
    base = os.environ.get(WEBSERVER_VARIABLE)
    if not base:
        return {}
    # A password in it would be in the log for whoever reads the table.
    if not base.startswith(("http://", "https://")) or public_uri(base) != base:
        raise InvalidRequestError(
            f"{WEBSERVER_VARIABLE} is not the address of Dagster's UI",
            remedy="Set it to the address alone, such as https://dagster.example.com, or leave it out",
        )
    return {"run_url": f"{base.rstrip('/')}/runs/{run_id}"}


def read_run(context: StepContext, code_location: str | None = None) -> DagsterRun:
    """The run that the context of a running step belongs to.

    Args:
        code_location: Used instead of the one the run was launched from.

    Raises:
        InvalidRequestError: There is no run, or the root run is no longer in the instance.
    """
    run, instance, step = _run_of(context)
    root_run_id = run.root_run_id or run.run_id
    record = instance.get_run_record_by_id(root_run_id)
    if record is None:
        raise InvalidRequestError(
            f"Run {run.run_id} repeats run {root_run_id}, which is no longer in the Dagster instance",
            cause="The root run tells whether this run repeats committed work",
            remedy="Launch a new materialization instead of re-executing this run",
            run_id=run.run_id,
            root_run_id=root_run_id,
        )
    origin = run.remote_job_origin
    repeating = instance.get_run_ids(dg.RunsFilter(tags={"dagster/root_run_id": root_run_id}))
    # Python's `execute_job` gives no such tag.
    chain = {root_run_id, run.run_id, *repeating}
    stats = (one for run_id in chain for one in instance.get_run_step_stats(run_id, [step.step.key]))
    # What started later has read newer input, whichever run was created or started first.
    starts = [one.start_time for one in stats if one.start_time is not None]
    return DagsterRun(
        code_location=code_location or (origin.location_name if origin is not None else NO_LOCATION),
        run_id=run.run_id,
        root_run_id=root_run_id,
        root_run_created=record.create_timestamp,
        step_started=datetime.fromtimestamp(min(starts), UTC) if starts else record.create_timestamp,
        step_key=step.step.key,
        is_repeated=len(chain) > 1 or step.previous_attempt_count > 0,
    )


def _run_of(context: StepContext) -> tuple[dg.DagsterRun, dg.DagsterInstance, dg.StepExecutionContext]:
    try:
        if isinstance(context, dg.OutputContext | dg.InputContext):
            step = context.step_context
        else:
            op_context = context.op_execution_context if isinstance(context, dg.AssetExecutionContext) else context
            step = op_context.get_step_execution_context()
        return step.dagster_run, step.instance, step
    except dg.DagsterError as error:
        raise InvalidRequestError(
            "The write does not happen inside a Dagster run",
            cause="The run is the identity that makes a write happen once",
            remedy="Run it through dg.materialize; an IO manager with idempotency='off' writes without a run",
        ) from error


def is_in_run(context: dg.OutputContext | dg.InputContext) -> bool:
    """Whether a context belongs to a run; one of `dg.build_output_context` or `dg.build_input_context` does not."""
    try:
        return context.step_context is not None
    except dg.DagsterInvariantViolationError:
        return False


def step_name(context: dg.OutputContext) -> str:
    """The step's key, or outside of a run the asset's."""
    return context.step_key if is_in_run(context) else context.asset_key.to_user_string()


def ensure_same_config(context: StepContext, report: StepReport) -> None:
    """Check that a commit which stands for the one that a re-execution would make was made with its run config, and for
    its partitions. What `execution` and `loggers` say does not matter.

    Args:
        context: Of the step.
        report: Of its write, which may have found that commit.

    Raises:
        InvalidRequestError: It was made for others: the rows are not those that the run was asked for.
    """
    skipped = [txn for txn in report.skipped_txns if txn.version != ONCE_PER_PARTITION]
    if not skipped:
        return
    run, instance, _ = _run_of(context)
    if run.root_run_id is None:
        return
    for txn in skipped:
        made_by = said_by(find_txn_commit(report.table, txn.app_id, txn.version).commit_info).get("run_id")
        earlier = instance.get_run_by_id(str(made_by)) if made_by not in (None, run.run_id) else None
        if earlier is not None and _asked_for(earlier) != _asked_for(run):
            raise InvalidRequestError(
                f"Run {run.run_id} repeats run {earlier.run_id}, whose rows are committed, with another run config "
                "or for other partitions",
                cause="A re-execution leaves what is committed as it is: the rows would be those of the old run",
                remedy="Launch a new run; or re-execute with the config and partitions of that run, to keep its rows",
                run_id=run.run_id,
                committed_by=earlier.run_id,
            )


def ensure_not_added(table: DeltaTable, run: DagsterRun | None, staged: StagedWrite, *, once: bool) -> LookBehind:
    """Check that nobody has written the rows of a step under another identity, up to its very commit.

    Args:
        run: Of the step, if it repeats another one: the definition may have changed in between.
        staged: What the step adds.
        once: Each partition is written once. The asset may have another code location elsewhere.

    Raises:
        InvalidRequestError: Somebody has, and adding them again would double them.
    """
    own = {txn.app_id for txn in staged.txns}
    before = snapshot_or_none(table)

    def ensure(commit: Commit) -> None:
        if once:
            ensure_one_location((txn.app_id for txn in commit.txns), staged.txns)
        if run is None or own & {txn.app_id for txn in commit.txns}:
            return
        said, to_say = said_by(commit.commit_info), said_by({"userMetadata": staged.user_metadata})
        if all(said.get(name) == to_say[name] for name in ("root_run_id", "asset_key")):
            raise InvalidRequestError(
                f"Version {commit.version} of {table.uri} has the rows of run {run.root_run_id} already, which "
                f"{run.run_id} repeats and would add again",
                cause="The mode or partitions, idempotency or code_location have changed between the two",
                remedy="Leave the rows as they are; a new run adds new ones",
                run_id=run.run_id,
                root_run_id=run.root_run_id,
            )

    if before is not None and once:
        ensure_one_location([name for name, at in before.txns.items() if at >= 0], staged.txns)
    if before is not None and run is not None:
        since = (run.root_run_created.timestamp() - _CLOCKS_DIFFER_S) * 1000
        for commit in newest_first(table, before.version):
            if is_older(commit, since):
                break
            # A restore takes the marks of partitions back with their rows.
            if all((before.txn_version(txn.app_id) or 0) >= txn.version for txn in commit.txns):
                ensure(commit)
    return ensure


def _asked_for(run: dg.DagsterRun) -> dict[str, object]:
    asked = {name: said for name, said in run.run_config.items() if said and name not in ("execution", "loggers")}
    about = ("dagster/partition", "dagster/asset_partition_range")
    return asked | {name: said for name, said in run.tags.items() if name.startswith(about)}


@contextmanager
def retry_conflicts(max_retries: int) -> Iterator[None]:
    """Turn retryable errors into a retry of the step; all others pass.

    A conflict means that another commit won and nothing was written. The step runs again as a whole, because what it
    read may have changed. Retries of the step's own `RetryPolicy` count as well.
    """
    try:
        yield
    except DeltaError as error:
        if not error.retryable or max_retries <= 0:
            raise
        raise dg.RetryRequested(max_retries=max_retries, seconds_to_wait=_PAUSE_S) from error
