"""Calling a user's function, and running a user's SQL."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.decorator import determine_kwargs

from delta_orch.errors import InvalidRequestError

if TYPE_CHECKING:
    from delta_orch.airflow.hook import DeltaHook

Engine = Any


def call_user_function(
    function: Callable[..., Any],
    args: Collection[Any],
    kwargs: Mapping[str, Any],
    context: Mapping[str, Any],
    **offered: Any,
) -> Any:
    """Call with `args`, and with those of `kwargs`, `offered` and the task context that the signature asks for."""
    available = {**context, **{name: value for name, value in offered.items() if value is not None}, **kwargs}
    return function(*args, **determine_kwargs(function, args, available))


def ensure_callable(function: Any, task_id: str) -> None:
    """Raise InvalidRequestError unless it is a plain function or other callable; a coroutine function is none."""
    if callable(function) and not inspect.iscoroutinefunction(function):
        return
    raise InvalidRequestError(
        f"The python_callable of task {task_id} is no function that returns rows: {function!r}",
        remedy="Pass a function (not a coroutine function)",
        task_id=task_id,
    )


def ensure_data(data: Any, what: str) -> Any:
    """`data`, unless it is None: a forgotten `return` must not pass for an empty result.

    Raises:
        InvalidRequestError: It is None.
    """
    if data is None:
        raise InvalidRequestError(
            f"{what} returned None instead of rows",
            remedy="Return a Spark DataFrame, an Arrow table or reader, or a pandas or Polars frame (empty where "
            "there are no rows), or raise AirflowSkipException to write nothing",
        )
    return data


def run_user_sql(sql: str, tables: Mapping[str, str], hook: DeltaHook, engine: Engine) -> Any:
    """The rows of a Spark SQL query over Delta tables, named as in `tables` (name → URI), lazily."""
    relations = {name: engine.scan(hook.table(uri).snapshot().scan().plan()) for name, uri in tables.items()}
    rows = engine.sql(sql, relations)
    return rows if engine.name == "spark" else engine.to_reader(rows)
