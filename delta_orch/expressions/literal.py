"""`literal`: a Python value as a constant."""

from __future__ import annotations

from datetime import datetime

from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.nodes import Constant, Expression, Literal
from delta_orch.expressions.spark_literals import natural_type, quote_string, spark_literal
from delta_orch.expressions.tree import too_deep
from delta_orch.protocol.types import ArrayType, DataType, MapType, StructType


def literal(value: Constant) -> Expression:
    """A Python value as an expression, for example in the `set` of an update: no quoting, no parsing.

    Args:
        value: None, bool, int, float, Decimal, str, bytes, date or datetime, or a list of such values, which is an
            array. A datetime without a time zone is a `timestamp_ntz`. Numbers and truth values of NumPy are as those
            of Python.

    Raises InvalidExpressionError: A value of another type, text that is not valid Unicode, or a time with nanoseconds.
    """
    return constant_for(value, None)


def constant_for(value: object, data_type: DataType | None) -> Expression:
    """As `literal`, for a column of a given type. The type tells whether a dict is a struct or a map. None if it is
    unknown.

    Raises InvalidExpressionError.
    """
    if isinstance(value, list | tuple | dict):
        from delta_orch.expressions.parse import parse_row_value

        try:
            text = _sql_of(value, data_type)
        except RecursionError:
            raise too_deep() from None  # It may hold itself.
        return parse_row_value(text)
    return _atomic(value)


def _atomic(value: Constant) -> Literal:
    # NumPy's numbers are recognized by their attributes, so that NumPy need not be imported.
    if getattr(getattr(value, "dtype", None), "kind", "") in {"b", "i", "u", "f"} and not value.ndim:
        value = value.item()
    if isinstance(value, datetime) and value != value:
        raise InvalidExpressionError(f"{value} cannot be a constant in an expression", remedy="Give None for no time")
    if getattr(value, "nanosecond", 0):
        raise InvalidExpressionError(
            f"The constant {value} has nanoseconds",
            cause="A time in a Delta table ends at its microseconds",
            remedy="Round it, for example with floor('us')",
        )
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as e:
            raise InvalidExpressionError("The constant is not valid Unicode", cause=str(e)) from None
    return Literal(value) if value is None else Literal(value, natural_type(value))


def _sql_of(value: object, data_type: DataType | None) -> str:
    match value, data_type:
        case list() | tuple(), _:
            inner = data_type.element_type if isinstance(data_type, ArrayType) else None
            return f"array({', '.join(_sql_of(item, inner) for item in value)})"
        case dict(), MapType(key_type, value_type):
            pairs = (f"{_sql_of(key, key_type)}, {_sql_of(item, value_type)}" for key, item in value.items())
            return f"map({', '.join(pairs)})"
        case dict(), StructType() if all(isinstance(name, str) and _atomic(name) for name in value):
            fields = {name: data_type.find(name) for name in value}
            kinds = {name: None if field is None else field.data_type for name, field in fields.items()}
            parts = (f"{quote_string(name)}, {_sql_of(item, kinds[name])}" for name, item in value.items())
            return f"named_struct({', '.join(parts)})"
        case dict(), _:
            raise InvalidExpressionError(
                "A dict is not a constant here",
                cause="It is a struct or a map, which only the type of a column decides",
                remedy="Give it as the value of a column, or write named_struct(…) or map(…)",
            )
    sql = _atomic(value)
    return spark_literal(sql.value, sql.data_type)
