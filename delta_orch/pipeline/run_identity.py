"""Who writes: an orchestrator's run as a `TxnId` (PROTOCOL, "Transaction Identifiers").

Two numbers decide what happens to a write. The app id says *what* is written (step and partition), the version says
*which run* writes it. A retry has the same version as the attempt it repeats, so the table skips it if that attempt had
committed; a new run has a higher one and writes again; a run that started earlier and finishes late (a zombie) has a
lower one and is kept out.

The functions are pure: they take plain values, so neither orchestrator needs to be installed. Where an id is built from
parts, the separators inside parts are percent-encoded, so that two different steps never share an app id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.nodes import Expression
from delta_orch.log.files.txn import TxnId

MAX_CLEAR_NUMBER = 999
"""How often one Airflow run can be cleared; the digits are part of the version, which must stay below 2**53 so that
readers that parse JSON numbers as doubles still see it exactly."""

ONCE_PER_PARTITION = 0
"""The version of a partition that is written once, whichever run does it. Lower than any run's version."""


def dagster_app_id(
    code_location: str, asset_key: Sequence[str], partition_key: str | None = None, *, root_run_id: str | None = None
) -> str:
    """`dagster:{code location}:{asset key}:{partition}`; the asset key's parts are joined with `/`.

    Args:
        code_location: The location that defines the asset.
        asset_key: The parts of the asset key, at least one.
        partition_key: None for a step without partitions.
        root_run_id: Only for a step without partitions that *adds* rows: every root run is then an identity of its
            own (`run:{id}`). Without it an older run that finishes after a newer one is fenced off, which is right
            for a step that replaces the table and would lose rows for one that appends to it.
    """
    if not asset_key:
        raise InvalidRequestError("An asset key has at least one part", remedy="Pass the parts of the asset's key")
    if partition_key is not None and root_run_id is not None:
        raise InvalidRequestError(
            "A run id identifies only steps without partitions", remedy="Leave out root_run_id or partition_key"
        )
    key = "/".join(_encode(part, ":/") for part in asset_key)
    what = f"run:{root_run_id}" if root_run_id is not None else (partition_key or "")
    return f"dagster:{_encode(code_location, ':')}:{key}:{what}"


def dagster_version(root_run_created: datetime) -> int:
    """The creation time of the **root** run in milliseconds since the epoch: retries and re-executions share it."""
    return _epoch_ms(root_run_created, "root_run_created")


def dagster_txn(
    *,
    code_location: str,
    asset_key: Sequence[str],
    root_run_created: datetime,
    partition_key: str | None = None,
    root_run_id: str | None = None,
    scope: Expression | None = None,
) -> TxnId:
    """The identity of one asset, or one partition of it, written by one root run. See `dagster_app_id`."""
    app_id = dagster_app_id(code_location, asset_key, partition_key, root_run_id=root_run_id)
    return TxnId(app_id, dagster_version(root_run_created), scope)


def dagster_range_txns(
    *,
    code_location: str,
    asset_key: Sequence[str],
    root_run_created: datetime,
    scopes: Mapping[str, Expression],
) -> tuple[TxnId, ...]:
    """One scoped identity a partition, for a run over several of them that makes one commit.

    The app id of each is the one a run over that partition alone has, so a range backfill that comes late leaves out
    the partitions a newer run has written.

    Args:
        code_location: See `dagster_app_id`.
        asset_key: See `dagster_app_id`.
        root_run_created: See `dagster_version`.
        scopes: Partition key → the predicate over partition columns that selects its rows
            (`pipeline.partitions`). Predicates of different keys must not overlap.

    Raises:
        InvalidRequestError: `scopes` is empty.
    """
    if not scopes:
        raise InvalidRequestError(
            "A run over a range of partitions names at least one", remedy="Pass one scope a partition"
        )
    version = dagster_version(root_run_created)
    return tuple(TxnId(dagster_app_id(code_location, asset_key, key), version, scope) for key, scope in scopes.items())


def airflow_app_id(
    dag_id: str,
    task_id: str,
    *,
    map_index: int = -1,
    partition_key: str | None = None,
    data_interval: tuple[datetime, datetime] | None = None,
    run_id: str | None = None,
) -> str:
    """`airflow:{dag_id}.{task_id}[map index]:{partition key | data interval}`.

    Args:
        dag_id: A dot in it is written `%2E`, so that the boundary to `task_id` stays visible.
        task_id: With its task groups, as Airflow spells it.
        map_index: Below 0 for a task that is not mapped; nothing is added then.
        partition_key: Goes before the data interval where both are given.
        data_interval: Start and end, timezone-aware; written in UTC as `start/end`.
        run_id: Used only where neither of the two is given, as `run:{id}`: every run is then an identity of its own.
            Leave it out for a step that replaces its whole target, so that older runs are fenced off.
    """
    if not dag_id or not task_id:
        raise InvalidRequestError("An Airflow step has a dag id and a task id", remedy="Pass both")
    if partition_key is not None:
        what = partition_key
    elif data_interval is not None:
        what = "/".join(_utc_text(moment, "data_interval") for moment in data_interval)
    else:
        what = "" if run_id is None else f"run:{run_id}"
    mapped = f"[{map_index}]" if map_index >= 0 else ""
    return f"airflow:{_encode(dag_id, '.:')}.{_encode(task_id, ':[]')}{mapped}:{what}"


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


def airflow_txn(
    *,
    dag_id: str,
    task_id: str,
    run_after: datetime,
    clear_number: int = 0,
    map_index: int = -1,
    partition_key: str | None = None,
    data_interval: tuple[datetime, datetime] | None = None,
    run_id: str | None = None,
    scope: Expression | None = None,
) -> TxnId:
    """The identity of one task instance's write. See `airflow_app_id` and `airflow_version`."""
    app_id = airflow_app_id(
        dag_id,
        task_id,
        map_index=map_index,
        partition_key=partition_key,
        data_interval=data_interval,
        run_id=run_id,
    )
    return TxnId(app_id, airflow_version(run_after, clear_number), scope)


def cdc_app_id(target: str, source_table_id: str) -> str:
    """`cdc:{target}<-{source table id}`: how far `target` has read a source; the version is the source's."""
    if not target or not source_table_id:
        raise InvalidRequestError("A cursor names its target and its source's table id", remedy="Pass both")
    return f"{cdc_prefix(target)}{source_table_id}"


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
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    # In integers: a float of seconds loses milliseconds for dates far from the epoch.
    return (delta.days * 86_400 + delta.seconds) * 1000 + delta.microseconds // 1000


def _utc_text(moment: datetime, name: str) -> str:
    _ensure_aware(moment, name)
    return moment.astimezone(UTC).isoformat()


def _ensure_aware(moment: datetime, name: str) -> None:
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise InvalidRequestError(
            f"{name} has no time zone", cause=f"{moment!r} is a naive datetime", remedy="Pass an aware datetime"
        )
