"""The clock of a statement: all its expressions get the same moment as a constant.

The rows that a predicate deletes then depend only on its text, not on the engine or on the number of reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

from delta_orch.expressions.nodes import Literal
from delta_orch.protocol.types import DATE, LONG, TIMESTAMP, TIMESTAMP_NTZ

_MOMENT: ContextVar[datetime | None] = ContextVar("moment", default=None)


@contextmanager
def one_moment(moment: datetime | None = None) -> Iterator[None]:
    """Fix the clock for a statement.

    Args:
        moment: The moment of a statement that began elsewhere.
    """
    token = _MOMENT.set(moment or _MOMENT.get() or datetime.now(UTC))
    try:
        yield
    finally:
        _MOMENT.reset(token)


def time_told(function: str) -> Literal:
    """The value of a function of the clock (`grammar.CLOCKS`) without arguments. Days are those of UTC."""
    now = _MOMENT.get() or datetime.now(UTC)
    match function:
        case "current_date" | "curdate":
            return Literal(now.date(), DATE)
        case "localtimestamp":
            return Literal(now.replace(tzinfo=None), TIMESTAMP_NTZ)
        case "unix_timestamp":
            return Literal(int(now.timestamp()), LONG)
    return Literal(now, TIMESTAMP)


def with_time_told(text: str, clocks: Sequence[tuple[str, int, int]]) -> str:
    """The text with constants instead of functions of the clock.

    Args:
        clocks: The functions, and where each begins and ends.
    """
    from delta_orch.expressions.to_sql import to_spark_sql

    with one_moment():
        for function, start, end in sorted(clocks, key=lambda clock: clock[1], reverse=True):
            text = f"{text[:start]}{to_spark_sql(time_told(function))}{text[end:]}"
    return text
