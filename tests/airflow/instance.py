"""A task instance without Airflow's database: an operator is executed with the context that a worker would hand it.
Attempts are counted as `unit_model.Airflow` does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from delta_orch.airflow.versions import AirflowFailException
from delta_orch.errors import DeltaError
from tests.airflow.unit_model import Airflow

DAYS = [datetime(2024, 1, day, tzinfo=UTC) for day in range(1, 9)]


class Events(dict[Any, Any]):
    """Of the outlets, none of which a DAG has declared in another way."""

    def __getitem__(self, outlet: Any) -> Any:
        # Airflow 3.0 cannot hash an asset.
        key = getattr(outlet, "uri", outlet)
        return self.setdefault(key, SimpleNamespace(extra={}, add=lambda *_, **__: None))

    def _resolve_asset_ref(self, reference: Any) -> tuple[Any, dict[str, Any]]:
        return reference, {}


class Instance:
    """A task instance: each `run` is an attempt of an operator, as the DAG has it then.

    Attributes:
        states: Run id → task id → state, as Airflow tells them.
        events: Of the newest attempt.
    """

    def __init__(self, clock: list[int], day: datetime = DAYS[0]) -> None:
        self.counts = Airflow(clock, day, retries=0)
        self.counts.create()
        self.states: Mapping[str, Mapping[str, str | None]] = {}
        self.events = Events()

    def run(self, make: Callable[[], Any], **params: Any) -> Any:
        with DAG("d", schedule="@daily", start_date=DAYS[0]) as dag:
            operator = make()
        context: Any = self.counts.context()
        context["ti"].task, context["ti"].task_id = operator, operator.task_id
        context["ti"].xcom_pull, context["ti"].get_task_states = (lambda **_: []), (lambda **_: self.states)
        self.events = Events()
        context |= {"dag": dag, "params": params, "outlet_events": self.events}
        report = operator.execute(context)
        self.outlets = operator.outlets
        return report

    def clear(self, make: Callable[[], Any], **params: Any) -> Any:
        self.counts.clear(resets_run=True)
        return self.run(make, **params)

    def retry(self, make: Callable[[], Any]) -> Any:
        self.counts.begin()
        return self.run(make)

    def refused(self, make: Callable[[], Any], *, is_clear: bool = True) -> str:
        """What the message of the refused attempt says."""
        with pytest.raises(AirflowFailException) as caught:
            (self.clear if is_clear else self.run)(make)
        error = caught.value.__cause__
        assert isinstance(error, DeltaError) and error.remedy is not None
        assert str(caught.value).splitlines()[-1].rstrip(".") == error.remedy.rstrip(".")
        return str(caught.value)
