"""`literal`: a Python value as a constant."""

from __future__ import annotations

from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.nodes import Constant, Expression, Literal
from delta_orch.expressions.spark_literals import natural_type


def literal(value: Constant) -> Expression:
    """A Python value as an expression, for example in the `set` of an update: no quoting, no parsing.

    Args:
        value: None, bool, int, float, Decimal, str, bytes, date or datetime. A datetime without a time zone is a
            `timestamp_ntz`.

    Raises InvalidExpressionError: A value of another type, or text that is not valid Unicode.
    """
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as e:
            raise InvalidExpressionError("The constant is not valid Unicode", cause=str(e)) from None
    return Literal(value) if value is None else Literal(value, natural_type(value))
