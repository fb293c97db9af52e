"""Who writes: an orchestrator's run as `TxnId`s (PROTOCOL, "Transaction Identifiers").

Two numbers decide what happens to a write. The app id says *what* is written (step and partition), the version says
*which run* writes it. A retry has the same version as the attempt it repeats, so the table skips it if that attempt had
committed; a new run has a higher one and writes again; a run that started earlier and finishes late (a zombie) has a
lower one and is kept out.

Everything here is pure and takes plain values, so neither orchestrator needs to be installed. The separators inside the
parts of an id are percent-encoded, so that two different steps never share an app id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal as OneOf

from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.nodes import Expression
from delta_orch.log.files.txn import TxnId
from delta_orch.protocol.epoch import micros_since_epoch

MAX_CLEAR_NUMBER = 999
"""How often one Airflow run can be cleared. The digits are part of the version, which must stay below 2**53 so that
readers that parse JSON numbers as doubles still see it exactly."""

ONCE_PER_PARTITION = 0
"""The version of a partition that is written once, whichever run does it. Lower than any run's version."""

Idempotency = OneOf["run", "partition", "off"]
"""`run`: a run and its retries write once, and a later run writes again. `partition`: a partition is written once,
whichever run does it. `off`: every attempt writes."""

IDEMPOTENCY = ("run", "partition", "off")


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """What of a run decides whether its write happens.

    Attributes:
        writer: The step: what its app ids begin with. See `dagster_writer` and `airflow_writer`.
        version: Where the run stands among the runs of the step: retries share it, later runs have a higher one.
        run_id: The run's, the same for its retries.
        partition: The partition key or data interval of the run, where the orchestrator has one for the whole run.
        run_version: The version of a run that is an identity of its own; by default `version`.
    """

    writer: str
    version: int
    run_id: str
    partition: str | None = None
    run_version: int | None = None

    def txns(
        self,
        idempotency: Idempotency = "run",
        *,
        scopes: Mapping[str, Expression | None] | None = None,
        by_run: bool = False,
    ) -> tuple[TxnId, ...]:
        """The identifiers of the run's write: one for each partition it writes, else one.

        A run over several partitions has for each the app id that a run over it alone has. So a backfill that comes
        late leaves out the partitions that a newer run has written.

        Args:
            idempotency: See `Idempotency`.
            scopes: Partition key → the predicate over partition columns that selects its rows; None as a predicate for
                all rows of the write. Predicates of different keys must not overlap. By default `partition`.
            by_run: A run without partition is an identity of its own. Right for a step that adds rows: an older run
                that finishes after a newer one is not fenced off, and its rows are not lost.

        Raises:
            InvalidRequestError: `scopes` is empty, or `idempotency="partition"` for a run without partition.
        """
        if idempotency == "off":
            return ()
        if scopes is None and self.partition is not None:
            scopes = {self.partition: None}
        if scopes is not None and not scopes:
            raise InvalidRequestError("A run over partitions names at least one", remedy="Pass one scope a partition")
        if scopes is not None:
            version = ONCE_PER_PARTITION if idempotency == "partition" else self.version
            return tuple(TxnId(f"{self.writer}:{key}", version, scope) for key, scope in scopes.items())
        if idempotency == "partition":
            raise InvalidRequestError(
                f"Run {self.run_id} of {self.writer} has no partitions and no data interval, so "
                "idempotency='partition' has no meaning for it",
                remedy="Use idempotency='run', or give the asset partitions or the DAG a schedule",
                run_id=self.run_id,
            )
        if by_run:
            return (TxnId(f"{self.writer}:run:{self.run_id}", self.run_version or self.version),)
        return (TxnId(f"{self.writer}:", self.version),)


WRITERS = ("dagster:", "dagster-op:", "airflow:")
"""What the app ids of the steps of both orchestrators begin with."""


def dagster_writer(code_location: str, parts: Sequence[str], *, is_op: bool = False) -> str:
    """`dagster:{code location}:{asset key}`; the asset key's parts, at least one, are joined with `/`.

    Args:
        is_op: `dagster-op:{code location}:{…}`, of an output that is no asset. No asset has its id.
    """
    if not parts:
        raise InvalidRequestError("An asset key has at least one part", remedy="Pass the parts of the asset's key")
    key = "/".join(_encode(part, ":/") for part in parts)
    return f"dagster{'-op' if is_op else ''}:{_encode(code_location, ':')}:{key}"


def ensure_one_location(recorded: Iterable[str], txns: Sequence[TxnId]) -> None:
    """Check that no partition that is written once was written by the asset in another code location.

    Args:
        recorded: The app ids of the table.

    Raises:
        InvalidRequestError: One was, and its rows would be added a second time.
    """
    own = {txn.app_id.split(":", 2)[2]: txn.app_id for txn in txns}
    for app_id in recorded:
        parts = app_id.split(":", 2)
        if parts[0] == "dagster" and own.get(parts[-1], app_id) != app_id:
            raise InvalidRequestError(
                f"{parts[-1]} was written by the code location {parts[1]!r}, and would be added a second time",
                cause="The code location is a part of the identity of a write",
                remedy=f"Give the IO manager code_location={parts[1]!r}, also where it runs elsewhere now",
            )


def dagster_version(started: datetime) -> int:
    """The first start of a step in milliseconds since the epoch: retries and re-executions share it."""
    return _epoch_ms(started, "started")


def airflow_writer(dag_id: str, task_id: str, map_index: int = -1, identity: str | None = None) -> str:
    """`airflow:{dag_id}.{task_id}[map index]`, or `airflow:{dag_id}.{task_id}[={identity}]`.

    Args:
        dag_id: A dot in it is written `%2E`, so that the boundary to `task_id` stays visible.
        task_id: With its task groups, as Airflow spells it.
        map_index: Below 0 for a task that is not mapped; nothing is added then.
        identity: What the task writes, in the user's words; it takes the place of the map index.

    Raises:
        InvalidRequestError: A name is empty, or `identity` is what a template without a value renders to.
    """
    if identity is not None:
        if not identity.strip() or identity in ("None", "null", "undefined"):
            raise InvalidRequestError(
                f"identity={identity!r} names nothing",
                cause="Its template has no value in this run, so all such runs would share one identity",
                remedy="Use a value that every run has, such as {{ dag_run.run_id }} or the mapped argument",
            )
        map_index = -1
    if not dag_id or not task_id:
        raise InvalidRequestError("An Airflow step has a dag id and a task id", remedy="Pass both")
    mapped = f"[{map_index}]" if map_index >= 0 else ""
    if identity is not None:
        mapped = f"[={_encode(identity, ':[]')}]"
    return f"airflow:{_encode(dag_id, '.:')}.{_encode(task_id, ':[]')}{mapped}"


def airflow_version(run_after: datetime, clear_number: int = 0) -> int:
    """`run_after` in milliseconds, times 1000, plus `clear_number`: retries share it, clearing raises it.

    Raises:
        InvalidRequestError: `run_after` has no time zone; `clear_number` is outside 0…999.
    """
    if not 0 <= clear_number <= MAX_CLEAR_NUMBER:
        raise InvalidRequestError(
            f"clear_number {clear_number} is outside 0…{MAX_CLEAR_NUMBER}",
            cause="The number is part of the transaction version",
            remedy="Trigger a new run instead of clearing this one again",
            clear_number=clear_number,
        )
    return _epoch_ms(run_after, "run_after") * (MAX_CLEAR_NUMBER + 1) + clear_number


def interval_text(start: datetime, end: datetime) -> str:
    """A data interval as `RunIdentity.partition`: `start/end` in UTC, whatever zone the two are in."""
    for moment in (start, end):
        _ensure_aware(moment, "data_interval")
    return f"{start.astimezone(UTC).isoformat()}/{end.astimezone(UTC).isoformat()}"


def cdc_app_id(target: str, source_table_id: str) -> str:
    """`cdc:{target}<-{source table id}`: how far `target` has read a source; the version is the source's."""
    if not target or not source_table_id:
        raise InvalidRequestError("A cursor names its target and its source's table id", remedy="Pass both")
    return f"{cdc_prefix(target)}{source_table_id}"


def default_consumer(target_uri: str) -> str:
    """What the cursor of a table is called where nobody has named it: the last part of its location."""
    return target_uri.rstrip("/").rsplit("/", 1)[-1]


def cdc_prefix(target: str) -> str:
    """What the app ids of all cursors of `target` start with; the source's table id follows."""
    return f"cdc:{target.replace('%', '%25').replace('<-', '%3C-')}<-"


def _encode(part: str, separators: str) -> str:
    """`part` with `%` and the separators percent-encoded: distinct parts stay distinct."""
    for char in "%" + separators:
        part = part.replace(char, f"%{ord(char):02X}")
    return part


def _epoch_ms(moment: datetime, name: str) -> int:
    _ensure_aware(moment, name)
    return micros_since_epoch(moment) // 1000


def _ensure_aware(moment: datetime, name: str) -> None:
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise InvalidRequestError(
            f"{name} has no time zone", cause=f"{moment!r} is a naive datetime", remedy="Pass an aware datetime"
        )
