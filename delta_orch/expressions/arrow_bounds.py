"""How large an expression of pyarrow may be. Arrow walks it recursively, and ends the process where the stack ends."""

from __future__ import annotations

import re
import threading
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.errors import InvalidExpressionError

MAX_CALLS = 2_000
"""Functions and operators in one expression."""
_STACK_BYTES = 1 << 30
"""Of address space, for the one walk that finds out how large an expression is. No more is used than the walk takes."""
_MANY = 64

_lock = threading.Lock()


class ArrowSize(NamedTuple):
    """How large an expression is, or more.

    Attributes:
        calls: Functions and operators.
        substrait: Copies of calls in Substrait's form: pyarrow repeats each one for every level above it, so that it
            doubles with each level.
        num_bytes: Of constants and names, as Arrow sends them; 0 where it sends none.
    """

    calls: int
    substrait: int
    num_bytes: int = 0


def ensure_few_calls(expression: pc.Expression) -> ArrowSize:
    """Measure an expression, however deep it is.

    Raises:
        InvalidExpressionError: It has more than `MAX_CALLS` functions and operators.
    """
    found: list[ArrowSize] = []
    with _lock:
        # The size belongs to the next thread that starts; a thread of somebody else may get it, too, which is harmless.
        before = threading.stack_size(_STACK_BYTES)
        try:
            walk = threading.Thread(target=lambda: found.append(_size_of(expression)))
            walk.start()
        except (RuntimeError, MemoryError) as e:
            raise InvalidExpressionError(
                "The size of a pyarrow expression cannot be determined",
                cause=f"There is no thread for it: {e}",
                remedy="Write the predicate as text in Spark SQL",
            ) from e
        finally:
            threading.stack_size(before)
    walk.join()
    if found[0].calls > MAX_CALLS:
        raise InvalidExpressionError(
            f"The expression of pyarrow has about {found[0].calls} operators",
            cause=f"{MAX_CALLS} are allowed: Arrow's recursion would end the process",
            remedy="Use isin() for many values of one column, or write the predicate as text in Spark SQL",
            operators=found[0].calls,
        )
    return found[0]


def _size_of(expression: pc.Expression) -> ArrowSize:
    try:
        _, (data,) = expression.__reduce__()
    except pa.ArrowNotImplementedError:
        # What cannot be sent can still be printed, with a parenthesis for each operator.
        calls = str(expression).count("(")
        return ArrowSize(calls, 1 << min(calls, _MANY))
    # Arrow writes calls flat, from the last to the first: `end`, arguments, `call`. All of it comes twice.
    depth = calls = copies = 0
    for mark in re.finditer(rb"\x03\0\0\0(end)\0|\x04\0\0\0call\0", bytes(data)):
        if mark[1]:
            depth, calls, copies = depth + 1, calls + 1, copies + (1 << min(depth, _MANY))
        else:
            depth -= 1
    # A column may have the name of a mark.
    return ArrowSize(calls // 2 + 1, copies if depth == 0 else 1 << _MANY, len(data))
