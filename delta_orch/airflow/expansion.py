"""Mapped tasks are looked at when they are expanded: what is wrong in any of them is refused when the DAG is parsed.

Where Airflow keeps no state of tasks, before 3.3, what adds rows is refused, too. Only here it is known what a task
adds: an argument that `partial` leaves out may be among those it is mapped over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice, product
from typing import TYPE_CHECKING, Any

from airflow.sdk.definitions.mappedoperator import OperatorPartial

from delta_orch.airflow.locations import is_output

if TYPE_CHECKING:
    from airflow.sdk.definitions._internal.expandinput import ExpandInput
    from airflow.sdk.definitions.mappedoperator import MappedOperator

_DECIDING = ("mode", "idempotency", "on", "adds")
"""The arguments that `CheckedOperator.adds_rows` looks at."""
_MADE = 100
"""So many mapped tasks are made when a DAG is parsed; each takes half a millisecond."""


class CheckedPartial(OperatorPartial):  # type: ignore[misc]
    """As Airflow's. What the outputs of other tasks decide, the task looks at when it runs."""

    def _expand(self, expand_input: ExpandInput, *, strict: bool) -> MappedOperator:
        self._expand_called = True  # Else Airflow warns of a task that was refused: it was never mapped.
        for arguments in _told(expand_input.value):
            self.operator_class.ensure_known(arguments)
        for arguments in _mapped(self.kwargs, expand_input.value):
            self.operator_class.ensure_exact(arguments)
        mapped = super()._expand(expand_input, strict=strict)
        for arguments in islice(_whole(expand_input.value), _MADE):
            mapped.unmap(arguments)  # As Airflow makes the task of them, before it runs.
        return mapped


def checked_partial(found: OperatorPartial) -> CheckedPartial:
    """The same arguments of a mapped task, looked at when it is expanded."""
    found._expand_called = True
    return CheckedPartial(operator_class=found.operator_class, kwargs=found.kwargs, params=found.params)


def _told(over: object) -> Iterator[Mapping[str, Any]]:
    """What a task is mapped over, as far as the DAG says it: one argument after the other, or several together."""
    if isinstance(over, Mapping):
        for name, values in over.items():
            for value in values if isinstance(values, list | tuple) else ():
                yield {} if is_output(value) else {name: value}
    elif isinstance(over, list | tuple):
        for one in over:
            if isinstance(one, Mapping):
                yield {name: value for name, value in one.items() if not is_output(value)}


def _whole(over: object) -> Iterator[Mapping[str, Any]]:
    """The arguments of mapped tasks, where the DAG says all that a task is mapped over: each of a list, or each value
    beside the first ones of the other arguments."""
    if isinstance(over, Mapping):
        values = [value for value in over.values() if isinstance(value, list | tuple) and value]
        if len(values) < len(over) or any(is_output(one) for several in values for one in several):
            return
        first = {name: several[0] for name, several in over.items()}
        for name, several in over.items():
            for value in several:
                yield {**first, name: value}
    elif isinstance(over, list | tuple):
        yield from (one for one in over if isinstance(one, Mapping))


def _mapped(given: Mapping[str, Any], over: object) -> Iterator[Mapping[str, Any]]:
    """The arguments of each mapped task, of those that decide: by a list of them, or by lists of values."""
    if isinstance(over, Mapping):
        known = {name: over[name] for name in _DECIDING if name in over}
        several = [value if isinstance(value, list | tuple) else [value] for value in known.values()]
        for values in product(*several):
            yield {**given, **dict(zip(known, values, strict=True))}
    elif isinstance(over, list | tuple):
        for one in over:
            if isinstance(one, Mapping):
                yield {**given, **one}
