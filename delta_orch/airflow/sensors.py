"""`DeltaTableVersionSensor`: wait until a table has moved on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NoReturn

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from delta_orch.airflow.failures import airflow_failures
from delta_orch.airflow.hook import DEFAULT_CONN_ID, DeltaHook
from delta_orch.airflow.table_operator import OperatorArgument, XCom
from delta_orch.airflow.triggers import FOUND, DeltaVersionTrigger
from delta_orch.pipeline.version_watch import VersionWatch, WatchGoal

if TYPE_CHECKING:
    from airflow.sdk import Context

SEEN_VERSION_KEY = "delta_orch_seen_version"


class DeltaTableVersionSensor(BaseSensorOperator):  # type: ignore[misc]
    """Wait for a version after `after_version`, or for a commit after `after_timestamp`.

    A poke that finds nothing new costs one metadata request for the next commit, never a listing. Only the first one
    looks closer: whether `after_version` is still in the log, or where the table stands in time. A table that does not
    exist yet is waited for. The XCom is `{table_uri, version, timestamp_ms}` of the newest version when it was found.

    Args:
        table_uri: As for the operators. (templated)
        after_version: A version, or -1 to wait until the table exists. (templated)
        after_timestamp: A timezone-aware datetime or ISO 8601 with an offset. (templated)
        delta_conn_id: The connection with the storage options. (templated)
        deferrable: Wait in the triggerer instead of a worker; by default as `[operators] default_deferrable` says.
        **kwargs: `mode` (`poke` or `reschedule`), `poke_interval`, `timeout`, …
    """

    template_fields: Sequence[str] = ("table_uri", "after_version", "after_timestamp", "delta_conn_id")
    ui_color = "#d4ecf7"

    def __init__(
        self,
        *,
        table_uri: str,
        after_version: int | str | None = None,
        after_timestamp: datetime | str | None = None,
        delta_conn_id: str = DEFAULT_CONN_ID,
        deferrable: bool | None = None,
        **kwargs: OperatorArgument,
    ) -> None:
        super().__init__(**kwargs)
        self.table_uri = table_uri
        self.after_version = after_version
        self.after_timestamp = after_timestamp
        self.delta_conn_id = delta_conn_id
        self.deferrable = (
            conf.getboolean("operators", "default_deferrable", fallback=False) if deferrable is None else deferrable
        )
        self._watch: tuple[VersionWatch, str] | None = None

    def execute(self, context: Context) -> object:
        if not self.deferrable:
            return super().execute(context)
        found = self.poke(context)
        if not found:
            self._defer()
        return found.xcom_value

    def poke(self, context: Context) -> PokeReturnValue:
        with airflow_failures():
            watch, uri = self._watch = self._watch or self._open(context)
            before = watch.seen_version
            found = watch.check()
        if found is None:
            self._remember(context, before, watch.seen_version)
            return PokeReturnValue(False)
        return PokeReturnValue(True, found.report(uri))

    def execute_complete(self, context: Context, event: Mapping[str, object]) -> XCom:
        """What the worker does with the trigger's event."""
        if event["status"] == FOUND:
            return {key: value for key, value in event.items() if key != "status"}
        problem = f"{event['code']}: {event['message']}"
        raise AirflowException(problem) if event["retryable"] else AirflowFailException(problem)

    @property
    def _goal(self) -> WatchGoal:
        return WatchGoal.parse(self.after_version, self.after_timestamp)

    def _open(self, context: Context) -> tuple[VersionWatch, str]:
        table = DeltaHook(self.delta_conn_id).table(self.table_uri)
        return VersionWatch(table.log, self._goal, self._seen_earlier(context)), table.uri

    def _seen_earlier(self, context: Context) -> int | None:
        """What an earlier poke of this try found, when each poke is a process of its own."""
        if not context["task_reschedule_count"]:
            return None
        seen = context["task_state_store"].get(SEEN_VERSION_KEY)
        return None if seen is None else int(seen)

    def _remember(self, context: Context, before: int | None, seen: int | None) -> None:
        if self.reschedule and seen is not None and seen != before:
            context["task_state_store"].set(SEEN_VERSION_KEY, seen)

    def _defer(self) -> NoReturn:
        assert self._watch is not None
        watch, _ = self._watch
        self.defer(
            trigger=DeltaVersionTrigger(
                table_uri=self.table_uri,
                delta_conn_id=self.delta_conn_id,
                **asdict(self._goal),
                seen_version=watch.seen_version,
                poll_interval_s=self.poke_interval,
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )
        raise AssertionError("defer() raises")
