"""The sensors: a version, a partition, rows, another step's commit, freshness. Each in poke, reschedule, deferrable."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NoReturn

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from delta_orch.airflow.arguments import MappedArguments, RenderedArguments, ensure_predicate, ensure_switches
from delta_orch.airflow.hook import DEFAULT_CONN_ID, DeltaHook
from delta_orch.airflow.locations import checked_location, is_template, location_text
from delta_orch.airflow.table_operator import OperatorArgument, XCom, airflow_failures
from delta_orch.airflow.triggers import (
    FOUND,
    TIMED_OUT,
    DeltaConditionTrigger,
    DeltaVersionTrigger,
    Watch,
    WatchTrigger,
    ensure_interval,
)
from delta_orch.airflow.versions import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    conf,
)
from delta_orch.errors import DeltaError
from delta_orch.pipeline.conditions import (
    LOOKS_UNTIL_VERIFIED,
    ConditionWatch,
    FreshnessCondition,
    PartitionCondition,
    RowCondition,
    TxnCondition,
    VersionWatch,
    WatchGoal,
    whole_number,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_orch.airflow.locations import TableLocation
    from delta_orch.delta_table import DeltaTable
    from delta_orch.pipeline.conditions import Condition, Value


SEEN_VERSION_KEY = "delta_orch_seen_version"


class DeltaSensor(MappedArguments, RenderedArguments, BaseSensorOperator):  # type: ignore[misc]
    """Base of the sensors. Subclasses say what they wait for, by `watch`, and how a trigger does, by `trigger`.

    A poke that finds no new version costs one metadata request, never a listing. A table that does not exist yet is
    waited for. An outage of the store (`DeltaError.retryable`) is ridden out until the sensor's own `timeout`, in every
    mode; other errors fail the task at once (with `soft_fail` it is skipped, as Airflow's sensors are).

    Args:
        table_uri: A URI, a path, an `ObjectStoragePath`, an asset, or a name below the connection's `table_root`.
            (templated)
        delta_conn_id: The connection with the storage options. (templated)
        deferrable: Wait in the triggerer instead of a worker; by default as `[operators] default_deferrable` says.
        **kwargs: `mode` (`poke` or `reschedule`), `poke_interval`, `timeout`, …
    """

    template_fields: Sequence[str] = ("table_uri", "delta_conn_id")
    ui_color = "#d4ecf7"

    def __init__(
        self,
        *,
        table_uri: TableLocation,
        delta_conn_id: str = DEFAULT_CONN_ID,
        deferrable: bool | None = None,
        **kwargs: OperatorArgument,
    ) -> None:
        super().__init__(**kwargs)
        self.table_uri = checked_location(table_uri)
        self.delta_conn_id = delta_conn_id
        self.deferrable = (
            conf.getboolean("operators", "default_deferrable", fallback=False) if deferrable is None else deferrable
        )
        ensure_switches(deferrable=self.deferrable)
        if self.deferrable:
            ensure_interval(self.poke_interval)
        self._watch: tuple[Watch, str] | None = None

    def watch(self, table: DeltaTable, seen_version: int | None) -> Watch:
        """The question of each poke."""
        raise NotImplementedError

    def trigger(self, seen_version: int | None) -> WatchTrigger:
        """The trigger of a deferred sensor."""
        raise NotImplementedError

    def execute(self, context: Context) -> object:
        if not self.deferrable:
            return super().execute(context)
        try:
            poked = self.poke(context)
        except AirflowFailException as error:
            # As Airflow does for the pokes it makes itself.
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException("Skipping due to soft_fail or never_fail.") from error
            raise
        if not poked:
            self._defer()
        return poked.xcom_value

    def poke(self, context: Context) -> PokeReturnValue:
        with airflow_failures():
            try:
                watch, uri = self._watch = self._watch or self._open(context)
                before = watch.seen_version
                result = watch.check()
            except DeltaError as error:
                if not error.retryable:
                    raise
                self.log.warning("Reading the log of %s failed; the trigger tries again: %s", self.table_uri, error)
                return PokeReturnValue(False)
        if result is None:
            self._remember(context, before, watch.seen_version)
            return PokeReturnValue(False)
        return PokeReturnValue(True, result.report(uri))

    def execute_complete(self, context: Context, event: Mapping[str, object]) -> XCom:
        """Turn the trigger's event into the XCom, or into the error of the task."""
        if event["status"] == FOUND:
            return {key: value for key, value in event.items() if key != "status"}
        if event["status"] == TIMED_OUT:
            raise AirflowSensorTimeout(f"Sensor has timed out after {self.timeout:g} seconds.")
        problem = f"{event['code']}: {event['message']}"
        raise AirflowException(problem) if event["retryable"] else AirflowFailException(problem)

    def _open(self, context: Context) -> tuple[Watch, str]:
        table = DeltaHook(self.delta_conn_id).table(self.table_uri)
        return self.watch(table, self._seen_earlier(context)), table.uri

    def _seen_earlier(self, context: Context) -> int | None:
        """The version that an earlier poke of this try saw, if each poke is a process of its own."""
        store = context.get("task_state_store")
        # Without a store each poke finds out anew where the table stands: more requests, the same answer. So does, now
        # and then, one that has it: the table may have been dropped and created again.
        if store is None or context["task_reschedule_count"] % LOOKS_UNTIL_VERIFIED == 0:
            return None
        seen = store.get(SEEN_VERSION_KEY)
        return None if seen is None else int(seen)

    def _remember(self, context: Context, before: int | None, seen: int | None) -> None:
        store = context.get("task_state_store")
        if store is not None and self.reschedule and seen is not None and seen != before:
            store.set(SEEN_VERSION_KEY, seen)

    def _defer(self) -> NoReturn:
        seen = None if self._watch is None else self._watch[0].seen_version
        trigger = self.trigger(seen)
        trigger.end_time_ms = int((time.time() + self.timeout) * 1000)
        self.defer(
            trigger=trigger,
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )
        raise AssertionError("defer() raises")


class DeltaTableVersionSensor(DeltaSensor):
    """Wait for a version after `after_version`, or for a commit after `after_timestamp`.

    Only the first poke looks closer than at the next commit: whether `after_version` is still in the log, or where the
    table stands in time. The XCom is `{table_uri, version, timestamp_ms}` of the newest version when it was found.

    Args:
        after_version: A version, or -1 to wait until the table exists. (templated)
        after_timestamp: A timezone-aware datetime or ISO 8601 with an offset. (templated)
        **kwargs: As for every sensor of this package, see `DeltaSensor`.
    """

    template_fields: Sequence[str] = (*DeltaSensor.template_fields, "after_version", "after_timestamp")

    def __init__(
        self,
        *,
        after_version: int | str | None = None,
        after_timestamp: datetime | str | None = None,
        **kwargs: OperatorArgument,
    ) -> None:
        super().__init__(**kwargs)
        self.after_version = after_version
        self.after_timestamp = after_timestamp
        if not (is_template(after_version) or is_template(after_timestamp)):
            WatchGoal.parse(after_version, after_timestamp)

    @property
    def _goal(self) -> WatchGoal:
        return WatchGoal.parse(self.after_version, self.after_timestamp)

    def watch(self, table: DeltaTable, seen_version: int | None) -> Watch:
        return VersionWatch(table.log, self._goal, seen_version)

    def trigger(self, seen_version: int | None) -> WatchTrigger:
        return DeltaVersionTrigger(
            table_uri=location_text(self.table_uri),
            delta_conn_id=self.delta_conn_id,
            **asdict(self._goal),
            seen_version=seen_version,
            poll_interval_s=self.poke_interval,
        )


class DeltaConditionSensor(DeltaSensor):
    """Base of the sensors that wait for a condition; subclasses name it by `condition`.

    Each version of the table is checked once. The XCom is `{table_uri, version, timestamp_ms}` of the version that
    fulfilled the condition, and what the condition adds.
    """

    def condition(self) -> Condition:
        """From the arguments as they are rendered.

        Raises:
            InvalidRequestError: They make none.
        """
        raise NotImplementedError

    def watch(self, table: DeltaTable, seen_version: int | None) -> Watch:
        return ConditionWatch(table, self.condition(), seen_version)

    def trigger(self, seen_version: int | None) -> WatchTrigger:
        return DeltaConditionTrigger(
            table_uri=location_text(self.table_uri),
            condition=self.condition().as_json(),
            delta_conn_id=self.delta_conn_id,
            seen_version=seen_version,
            poll_interval_s=self.poke_interval,
        )

    def _check(self, *arguments: object) -> None:
        """Refuse wrong arguments when the DAG is parsed, as far as they are no templates."""
        if not any(is_template(argument) for argument in arguments):
            self.condition()


class DeltaPartitionSensor(DeltaConditionSensor):
    """Wait until a partition has rows.

    Args:
        partitions: Partition column → value; of a list any of them; None for null. Text is read as the column's type.
            (templated)
        partition_operator: Compares columns with single values: `=`, `!=`, `<`, `<=`, `>`, `>=`. (templated)
        **kwargs: As for every sensor of this package, see `DeltaSensor`.
    """

    template_fields: Sequence[str] = (*DeltaSensor.template_fields, "partitions", "partition_operator")

    def __init__(
        self,
        *,
        partitions: Mapping[str, Value | Sequence[Value]],
        partition_operator: str = "=",
        **kwargs: OperatorArgument,
    ) -> None:
        super().__init__(**kwargs)
        self.partitions = partitions
        self.partition_operator = partition_operator
        self._check(partitions, partition_operator)

    def condition(self) -> Condition:
        return PartitionCondition(self.partitions, self.partition_operator)


class DeltaRowSensor(DeltaConditionSensor):
    """Wait until at least `min_rows` rows satisfy `where`. Statistics answer where they suffice.

    Args:
        where: Spark SQL; every row by default. (templated)
        min_rows: At least 1. (templated)
        **kwargs: As for every sensor of this package, see `DeltaSensor`.
    """

    template_fields: Sequence[str] = (*DeltaSensor.template_fields, "where", "min_rows")
    template_fields_renderers = {"where": "sql"}  # noqa: RUF012 (Airflow's own spelling of a class attribute)

    def __init__(self, *, where: str | None = None, min_rows: int | str = 1, **kwargs: OperatorArgument) -> None:
        super().__init__(**kwargs)
        self.where = where
        self.min_rows = min_rows
        ensure_predicate(where)
        self._check(where, min_rows)

    def condition(self) -> Condition:
        return RowCondition(self.where, whole_number("min_rows", self.min_rows))


class DeltaTxnSensor(DeltaConditionSensor):
    """Wait until another application's transaction is recorded: the handshake between orchestrators.

    Args:
        app_id: The application id, as `DeltaTable.txns()` spells it. (templated)
        min_version: This version of it, or a later one. (templated)
        **kwargs: As for every sensor of this package, see `DeltaSensor`.
    """

    template_fields: Sequence[str] = (*DeltaSensor.template_fields, "app_id", "min_version")

    def __init__(self, *, app_id: str, min_version: int | str = 0, **kwargs: OperatorArgument) -> None:
        super().__init__(**kwargs)
        self.app_id = app_id
        self.min_version = min_version
        self._check(app_id, min_version)

    def condition(self) -> Condition:
        return TxnCondition(self.app_id, whole_number("min_version", self.min_version))


class DeltaFreshnessSensor(DeltaConditionSensor):
    """Wait until data has changed within the last `max_age`. Compaction and changed properties are no news.

    Args:
        max_age: A `timedelta`, or seconds.
        **kwargs: As for every sensor of this package, see `DeltaSensor`.
    """

    def __init__(self, *, max_age: timedelta | float, **kwargs: OperatorArgument) -> None:
        super().__init__(**kwargs)
        self.max_age = max_age
        self._check()

    def condition(self) -> Condition:
        age = self.max_age.total_seconds() if isinstance(self.max_age, timedelta) else self.max_age
        return FreshnessCondition(age)
