"""A step whose program runs elsewhere: what an orchestrator hands a submitted script, so that it commits exactly once.

The orchestrator puts the run into the environment variable `DELTA_ORCH_RUN`; where the driver has another environment
(cluster mode), also into the Spark setting `spark.delta_orch.run`. The script opens its table and commits under the
run's transaction:

    run = submitted_run()
    run.table().append(rows, **run.options)

It holds no credentials: those of the store are the script's own. Where the table has rows that the step must not
replace, the script only stages its write, and the orchestrator looks at it and publishes it.

And what both orchestrators need to run `spark-submit`: the program, its driver's environment, and its end.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from delta_orch.errors import InvalidRequestError, MissingDependencyError
from delta_orch.log.files.txn import TxnId
from delta_orch.log.write.commit_options import CommitResult, parse_txns
from delta_orch.pipeline.unit import find_txn_commit

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable
    from delta_orch.log.write.commit_options import CommitOptions
    from delta_orch.pipeline.step import Step
    from delta_orch.pipeline.unit import StepReport


RUN_VARIABLE = "DELTA_ORCH_RUN"
"""The environment variable with the run, as JSON."""

RUN_CONF = "spark.delta_orch.run"
"""The Spark setting with the same."""

_FORMAT = 3


class RunOptions(TypedDict):
    """The keywords of a commit that make it the step's."""

    txn: tuple[TxnId, ...]
    user_metadata: str | None
    commit_info: Mapping[str, object]
    stage: bool


@dataclass(frozen=True, slots=True)
class SubmittedRun:
    """The step that a submitted program carries out.

    Attributes:
        table_uri: The table it writes, absolute.
        txns: Its identifiers: a commit that carries them happens once. Empty where every attempt writes.
        user_metadata, commit_info: What the commit says of the run.
        stage: Whether the orchestrator publishes the write.
    """

    table_uri: str
    txns: tuple[TxnId, ...] = ()
    user_metadata: str | None = None
    commit_info: Mapping[str, object] = field(default_factory=dict)
    stage: bool = False

    @classmethod
    def of(cls, table_uri: str, options: CommitOptions) -> SubmittedRun:
        """The step whose commit has these options (`carry_out`)."""
        txns, commit_info = parse_txns(options.get("txn")), options.get("commit_info") or {}
        return cls(table_uri, txns, options.get("user_metadata"), commit_info, options.get("stage", False))

    @property
    def options(self) -> RunOptions:
        """For the verb that writes: `table.append(rows, **run.options)`, for one commit."""
        return {
            "txn": self.txns,
            "user_metadata": self.user_metadata,
            "commit_info": self.commit_info,
            "stage": self.stage,
        }

    def table(self, storage_options: Mapping[str, object] | None = None) -> DeltaTable:
        """The table that the step writes."""
        from delta_orch.delta_table import DeltaTable

        return DeltaTable(self.table_uri, storage_options=storage_options)

    def environment(self) -> dict[str, str]:
        """For the submitting process: the variables of the program."""
        return {RUN_VARIABLE: self._as_json()}

    def spark_conf(self) -> dict[str, str]:
        """For the submitting process: the Spark settings of the program."""
        return {RUN_CONF: self._as_json()}

    def _as_json(self) -> str:
        import orjson

        from delta_orch.expressions.to_sql import to_spark_sql

        txns = [
            {
                "app_id": txn.app_id,
                "version": txn.version,
                "scope": None if txn.scope is None else to_spark_sql(txn.scope),
                "follows": txn.follows,
                "ordered": txn.ordered,
                "is_unit": txn.is_unit,
                "replaces": txn.replaces,
            }
            for txn in self.txns
        ]
        return orjson.dumps(
            {
                "format": _FORMAT,
                "table_uri": self.table_uri,
                "txns": txns,
                "user_metadata": self.user_metadata,
                "commit_info": dict(self.commit_info),
                "stage": self.stage,
            }
        ).decode()


def carry_out(step: Step, submit: Callable[[CommitOptions], object]) -> StepReport:
    """The report of a step whose program makes the commit elsewhere, which is found again in the log. A step that has
    nothing to do submits nothing.

    Args:
        submit: Is handed the options of the commit.

    Raises:
        InvalidRequestError: The program has ended without the commit.
    """

    def verb(options: CommitOptions) -> CommitResult:
        submit(options)
        unit = parse_txns(options.get("txn"))[-1]
        for staged in reversed(step.table.staged_writes()) if options.get("stage") else ():
            if any((txn.app_id, txn.version) == (unit.app_id, unit.version) for txn in staged.txns):
                before = staged.read_version
                return CommitResult(-1 if before is None else before, False, staged=staged.reference)
        commit = find_txn_commit(step.table, unit.app_id, unit.version) if step.table.exists() else None
        if commit is not None:
            metrics = (commit.commit_info or {}).get("operationMetrics")
            return CommitResult(
                commit.version, False, operation_metrics=metrics if isinstance(metrics, Mapping) else {}
            )
        if (done := step.already_done()) is not None and done.version is not None:
            # Another attempt has committed the unit meanwhile.
            return CommitResult(done.version, True, (unit,))
        raise InvalidRequestError(
            f"{step.name} ran a program that has not committed to {step.table.uri} under the run's transaction",
            cause="Without it a retry could not tell whether the work is done",
            remedy="Pass submitted_run().options to the verb that writes: table.append(rows, **run.options)",
        )

    return step.commit(verb)


def submitted_run(environment: Mapping[str, str] | None = None) -> SubmittedRun:
    """The step that this program carries out for an orchestrator.

    Args:
        environment: Where to look, by default the process's environment, then the settings of its Spark session.

    Raises:
        InvalidRequestError: No orchestrator has submitted this program, or one of another release.
    """
    text = (os.environ if environment is None else environment).get(RUN_VARIABLE)
    if text is None and environment is None:
        text = _from_spark()
    if text is None:
        raise InvalidRequestError(
            f"There is no {RUN_VARIABLE} in the environment, and no {RUN_CONF} among the settings of Spark",
            cause="The program was not submitted by an operator or asset of delta_orch",
            remedy="Submit it by DeltaSparkSubmitOperator; to try it by hand, make a SubmittedRun",
        )
    return _parsed(text)


def _from_spark() -> str | None:
    # A program that runs no Spark has no settings of it.
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    return None if session is None else session.conf.get(RUN_CONF, None)


def _parsed(text: str) -> SubmittedRun:
    import orjson

    from delta_orch.expressions.parse import parse_expression

    try:
        run = orjson.loads(text)
        if run["format"] != _FORMAT:
            raise KeyError("format")
        txns = [
            TxnId(**{**txn, "scope": None if txn["scope"] is None else parse_expression(txn["scope"])})
            for txn in run["txns"]
        ]
        return SubmittedRun(run["table_uri"], tuple(txns), run["user_metadata"], run["commit_info"], run["stage"])
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise InvalidRequestError(
            f"{RUN_VARIABLE} does not describe a run",
            cause="It was written by another release, or by hand",
            remedy="Install the same release of delta-orch where the orchestrator runs and where the program does",
        ) from error


_TERMINATION_S = 3.0
_DRIVER_ENVIRONMENTS = ("spark.yarn.appMasterEnv.", "spark.kubernetes.driverEnv.")


def find_spark_submit(name: str) -> str:
    """The path of a program of Spark: on the PATH, or beside this interpreter.

    Raises:
        MissingDependencyError: It is in neither place.
    """
    command = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if command is None:
        raise MissingDependencyError(
            f"There is no {name} on the PATH",
            remedy="Install Spark, or delta-orch[spark], which brings it",
            package="pyspark",
        )
    return command


def driver_settings(variables: Mapping[str, str]) -> dict[str, str]:
    """Settings that give a driver variables. In cluster mode it does not have the environment of `spark-submit`."""
    return {prefix + name: value for prefix in _DRIVER_ENVIRONMENTS for name, value in variables.items()}


def submit_environment(master: str, variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of `spark-submit`. What runs on this machine runs with this interpreter."""
    environment = {**os.environ, **variables}
    if master.startswith("local"):
        environment.setdefault("PYSPARK_PYTHON", sys.executable)
    return environment


def end_process(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """End a process that leads a session of its own, and its children: asked first, killed three seconds later."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_TERMINATION_S)
            return
