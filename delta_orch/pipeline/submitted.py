"""A step whose program runs elsewhere: what an orchestrator hands a submitted script, so that it commits exactly once.

The orchestrator puts the run into the environment variable `DELTA_ORCH_RUN`; where the driver has another environment
(cluster mode), also into the Spark setting `spark.delta_orch.run`. The script opens its table and commits under the
run's transaction:

    run = submitted_run()
    run.table().append(rows, **run.options)

It holds no credentials: those of the store are the script's own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from delta_orch.errors import InvalidRequestError
from delta_orch.log.files.txn import TxnId

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable

RUN_VARIABLE = "DELTA_ORCH_RUN"
"""The environment variable with the run, as JSON."""

RUN_CONF = "spark.delta_orch.run"
"""The Spark setting with the same."""

_FORMAT = 1


class RunOptions(TypedDict):
    """The keywords of a commit that make it the step's."""

    txn: tuple[TxnId, ...]
    user_metadata: str | None


@dataclass(frozen=True, slots=True)
class SubmittedRun:
    """The step that a submitted program carries out.

    Attributes:
        table_uri: The table it writes, absolute.
        txns: Its identifiers: a commit that carries them happens once. Empty where every attempt writes.
        user_metadata: What the commit says of the run.
    """

    table_uri: str
    txns: tuple[TxnId, ...] = ()
    user_metadata: str | None = None

    @property
    def options(self) -> RunOptions:
        """For the verb that writes: `table.append(rows, **run.options)`, for one commit."""
        return {"txn": self.txns, "user_metadata": self.user_metadata}

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
                "exact": txn.exact,
                "ordered": txn.ordered,
                "looks_only": txn.looks_only,
            }
            for txn in self.txns
        ]
        said = {"format": _FORMAT, "table_uri": self.table_uri, "txns": txns, "user_metadata": self.user_metadata}
        return orjson.dumps(said).decode()


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
    import sys

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
        said = orjson.loads(text)
        if said["format"] != _FORMAT:
            raise KeyError("format")
        txns = [
            TxnId(**{**txn, "scope": None if txn["scope"] is None else parse_expression(txn["scope"])})
            for txn in said["txns"]
        ]
        return SubmittedRun(said["table_uri"], tuple(txns), said["user_metadata"])
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise InvalidRequestError(
            f"{RUN_VARIABLE} does not describe a run",
            cause="It was written by another release, or by hand",
            remedy="Install the same release of delta-orch where the orchestrator runs and where the program does",
        ) from error
