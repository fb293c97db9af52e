"""A sensor that follows a table's log."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from typing import Any
from typing import Literal as OneOf

import dagster as dg

from delta_orch.dagster.partition_selection import dimension_names
from delta_orch.dagster.resource import resolve_env, resolve_options
from delta_orch.errors import InvalidRequestError
from delta_orch.log.read.table_log import TableLog
from delta_orch.pipeline.partitions import key_text
from delta_orch.pipeline.tail import NO_TABLE, TailBatch, TailCursor, current_cursor, parse_cursor, poll
from delta_orch.storage.open import open_store

Values = Mapping[str, object]
"""A partition: its columns and their values, in Python's types."""
Target = Any
"""What `dg.sensor` takes as `target` or `job`."""
PartitionKeyOf = Callable[[Values], str | None]

VERIFY_INTERVAL_S = 3600


def build_delta_log_sensor(
    *,
    name: str,
    table_uri: str,
    storage_options: Mapping[str, str] | None = None,
    target: Target = None,
    job: Target = None,
    partitions_def: dg.PartitionsDefinition[str] | None = None,
    partition_expr: str | Mapping[str, str] | None = None,
    partition_key_of: PartitionKeyOf | None = None,
    start: OneOf["latest", "beginning"] = "latest",
    include_maintenance: bool = False,
    tags: Mapping[str, str] | None = None,
    minimum_interval_seconds: int | None = None,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
    description: str | None = None,
) -> dg.SensorDefinition:
    """A sensor that requests runs when a table has new commits.

    Without partitions one run is requested for all that is new; its run key is `{table id}:{start}-{end}`. With
    `partitions_def` one run a touched partition, whose key is made of the partition's values. Commits that change no
    data (compaction, table properties) are passed over. The cursor is `{table id}:{version}`. A tick that finds nothing
    new costs one HEAD request; about once an hour, and after a pause, it costs two.

    After the table was recreated, or unseen commits were cleaned up, everything counts as new.

    Args:
        name: Of the sensor.
        table_uri: The table, which need not exist yet.
        storage_options: Of its store; values may be `dg.EnvVar`.
        target: Assets to materialize (as in `dg.sensor`). Give this or `job`.
        job: The job to run.
        partitions_def: The partitions of what is run. New keys are added to a `DynamicPartitionsDefinition`.
        partition_expr: The table's column that holds the partition; for multi-dimensional partitions a column for each
            dimension. By default the table's only partition column.
        partition_key_of: Instead of `partition_expr`: maps a touched partition's values to a key, or to None for none.
        start: `latest` requests runs for what comes after the first tick, `beginning` also for what is there.
        include_maintenance: Request runs for commits that change no data, too.
        tags: Tags of the requested runs, beside `delta/table_id`, `delta/starting_version`, `delta/ending_version`.
        minimum_interval_seconds: As in `dg.sensor`.
        default_status: As in `dg.sensor`.
        description: As in `dg.sensor`.

    Raises:
        InvalidRequestError: The arguments do not go together.
    """
    if start not in ("latest", "beginning"):
        raise InvalidRequestError(f"start={start!r} is not 'latest' or 'beginning'")
    if partitions_def is None and (partition_expr is not None or partition_key_of is not None):
        raise InvalidRequestError("partition_expr and partition_key_of need partitions_def", remedy="Pass it as well")
    to_key = partition_key_of
    if to_key is None and partitions_def is not None:
        to_key = default_partition_key(partitions_def, partition_expr)

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        log = TableLog(open_store(resolve_env(table_uri), resolve_options(storage_options or {})))
        if context.cursor is None and start == "latest":
            cursor = current_cursor(log)
            return _skip(f"Watching from version {cursor.version} on.", cursor)
        cursor = NO_TABLE if context.cursor is None else parse_cursor(context.cursor)
        batch = poll(log, cursor, verify=_is_verification_due(context.last_tick_completion_time, time.time()))
        if batch is None:
            return dg.SkipReason(f"Nothing new since version {cursor.version}.")
        _log_gaps(context, batch)
        if not batch.data_changed and not include_maintenance:
            return _skip(f"Versions {_range(batch)} change no data.", batch.cursor)
        run_tags = {**(tags or {}), **_batch_tags(batch)}
        if to_key is None or partitions_def is None:
            return dg.SensorResult(
                run_requests=[dg.RunRequest(run_key=batch.run_key, tags=run_tags)], cursor=str(batch.cursor)
            )
        return _partitioned_result(context, batch, partitions_def, to_key, run_tags)

    return dg.sensor(
        name=name,
        target=target,
        job=job,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=description or "Follows the log of a Delta table.",
    )(evaluate)


def default_partition_key(
    partitions_def: dg.PartitionsDefinition[str], partition_expr: str | Mapping[str, str] | None
) -> PartitionKeyOf:
    """Maps the values of a table's partition to the key of the orchestrator's partition that holds it.

    Returns: a function that gives None where there is no such key: a null, or a value outside of time partitions.

    Raises:
        InvalidRequestError: `partition_expr` does not name a column for every dimension.
    """
    names = dimension_names(partitions_def)
    if not isinstance(partitions_def, dg.MultiPartitionsDefinition):
        if partition_expr is not None and not isinstance(partition_expr, str):
            raise InvalidRequestError(
                "partition_expr must be one column for partitions of one dimension", remedy="Pass the column's name"
            )
        return lambda values: _dimension_key(partitions_def, _single(values, partition_expr))
    if not isinstance(partition_expr, Mapping) or set(partition_expr) != set(names):
        raise InvalidRequestError(
            f"partition_expr must name a column for each of {', '.join(names)}",
            remedy="Pass a mapping of dimensions to columns",
        )
    return lambda values: _multi_key(partitions_def, partition_expr, values)


def _multi_key(partitions_def: dg.MultiPartitionsDefinition, columns: Mapping[str, str], values: Values) -> str | None:
    keys: dict[str, str] = {}
    for dimension in partitions_def.partitions_defs:
        key = _dimension_key(dimension.partitions_def, _single(values, columns[dimension.name]))
        if key is None:
            return None
        keys[dimension.name] = key
    return dg.MultiPartitionKey(keys)


def _single(values: Values, column: str | None) -> object:
    if column is None and len(values) == 1:
        return next(iter(values.values()))
    found = [value for name, value in values.items() if column is not None and name.lower() == column.lower()]
    if not found:
        raise InvalidRequestError(
            f"partition_expr {column!r} is not a partition column of the table",
            remedy=f"The partition columns are {', '.join(values) or 'none'}",
        )
    return found[0]


def _dimension_key(partitions_def: dg.PartitionsDefinition[str], value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(partitions_def, dg.TimeWindowPartitionsDefinition):
        return key_text(value)
    if isinstance(value, date):
        return partitions_def.get_partition_key_for_timestamp(_instant(value, partitions_def).timestamp())
    text = key_text(value)
    if partitions_def.has_partition_key(text):
        return text
    # Daily keys are often kept as the number 20130105.
    dashed = f"{text[:4]}-{text[4:6]}-{text[6:]}"
    return dashed if isinstance(value, int) and len(text) == 8 else text


def _instant(value: date, partitions_def: dg.TimeWindowPartitionsDefinition) -> datetime:
    """A date or a wall time is one of the zone the partitions are defined in."""
    moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=partitions_def.start.tzinfo or UTC)


def _partitioned_result(
    context: dg.SensorEvaluationContext,
    batch: TailBatch,
    partitions_def: dg.PartitionsDefinition[str],
    to_key: PartitionKeyOf,
    tags: Mapping[str, str],
) -> dg.SensorResult | dg.SkipReason:
    if not batch.partitions.column_names:
        raise InvalidRequestError(
            "The table is not partitioned, so its commits cannot be mapped to partitions",
            remedy="Build the sensor without partitions_def",
        )
    keys = sorted({key for values in batch.partitions.to_pylist() if (key := to_key(values)) is not None})
    is_dynamic = isinstance(partitions_def, dg.DynamicPartitionsDefinition)
    known = keys if is_dynamic else [key for key in keys if _has_key(partitions_def, key)]
    if len(known) < len(keys):
        context.log.info("%d touched partitions are not among the sensor's partitions", len(keys) - len(known))
    if not known:
        return _skip(f"Versions {_range(batch)} touch none of the partitions.", batch.cursor)
    requests = [dg.RunRequest(run_key=f"{batch.run_key}:{key}", partition_key=key, tags=dict(tags)) for key in known]
    additions = []
    if isinstance(partitions_def, dg.DynamicPartitionsDefinition):
        additions.append(partitions_def.build_add_request(known))
    return dg.SensorResult(run_requests=requests, cursor=str(batch.cursor), dynamic_partitions_requests=additions)


def _has_key(partitions_def: dg.PartitionsDefinition[str], key: str) -> bool:
    try:
        return partitions_def.has_partition_key(key)
    except ValueError:
        # A key that is not a point in time.
        return False


def _batch_tags(batch: TailBatch) -> dict[str, str]:
    return {
        "delta/table_id": batch.cursor.table_id,
        "delta/starting_version": str(batch.starting_version),
        "delta/ending_version": str(batch.ending_version),
    }


def _skip(reason: str, cursor: TailCursor) -> dg.SensorResult:
    return dg.SensorResult(skip_reason=reason, cursor=str(cursor))


def _range(batch: TailBatch) -> str:
    return f"{batch.starting_version} to {batch.ending_version}"


def _log_gaps(context: dg.SensorEvaluationContext, batch: TailBatch) -> None:
    if batch.recreated:
        context.log.warning("The table was recreated since version %d: all of it counts as new", batch.previous.version)
    if batch.missed:
        context.log.warning("Commits after version %d are gone from the log: all counts as new", batch.previous.version)


def _is_verification_due(last_tick: float | None, now: float) -> bool:
    """Once an interval, and when the last tick is longer ago than that."""
    return last_tick is not None and int(last_tick / VERIFY_INTERVAL_S) != int(now / VERIFY_INTERVAL_S)
