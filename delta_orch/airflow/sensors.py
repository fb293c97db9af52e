"""The sensors: a version, a partition, rows, another step's commit, freshness. Each in poke, reschedule, deferrable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from delta_orch.airflow.arguments import ensure_predicate
from delta_orch.airflow.locations import is_template, location_text
from delta_orch.airflow.sensor_base import DeltaSensor
from delta_orch.airflow.table_operator import OperatorArgument
from delta_orch.airflow.triggers import DeltaConditionTrigger, DeltaVersionTrigger, Watch, WatchTrigger
from delta_orch.pipeline.conditions import (
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
    from delta_orch.delta_table import DeltaTable
    from delta_orch.pipeline.conditions import Condition, Value


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

    The table is looked at closely once a version. The XCom is `{table_uri, version, timestamp_ms}` of the version that
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
