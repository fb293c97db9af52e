"""What all sensors share: three modes, the memory between pokes, and which errors they ride out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from delta_orch.airflow.arguments import RenderedArguments, ensure_switches
from delta_orch.airflow.hook import DEFAULT_CONN_ID, DeltaHook
from delta_orch.airflow.locations import checked_location
from delta_orch.airflow.mapped_tasks import MappedArguments
from delta_orch.airflow.table_operator import OperatorArgument, XCom, airflow_failures
from delta_orch.airflow.triggers import FOUND, TIMED_OUT, WatchTrigger, ensure_interval
from delta_orch.airflow.versions import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    conf,
)
from delta_orch.errors import DeltaError
from delta_orch.pipeline.conditions import LOOKS_UNTIL_VERIFIED

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_orch.airflow.locations import TableLocation
    from delta_orch.airflow.triggers import Watch
    from delta_orch.delta_table import DeltaTable

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
        """What each poke asks."""
        raise NotImplementedError

    def trigger(self, seen_version: int | None) -> WatchTrigger:
        """What a deferred sensor waits on."""
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
        """What the worker does with the trigger's event."""
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
        """What an earlier poke of this try found, when each poke is a process of its own."""
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
