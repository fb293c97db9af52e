"""Constants of Spark SQL, from sqlglot's trees to `Literal`."""

from __future__ import annotations

import re
from datetime import date, datetime
from decimal import Context, Decimal, InvalidOperation
from typing import Any

from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.nodes import Literal
from delta_orch.expressions.spark_literals import (
    INTEGRAL_RANGES,
    decimal_type_of,
    parse_spark_boolean,
    parse_spark_date,
    parse_spark_double,
    parse_spark_long,
    parse_spark_timestamp,
    parse_spark_timestamp_ntz,
    round_to_float,
)
from delta_orch.protocol.types import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    DecimalType,
)

Tree = Any
"""A node of sqlglot's syntax tree. Its classes hold their parts in dictionaries, without types."""

# Python's default context would round to 28 digits.
_EXACT = Context(prec=100)
_MAX_NUMBER_CHARACTERS = 1000
_INTEGRAL = {"TINYINT": BYTE, "SMALLINT": SHORT, "INT": INTEGER, "BIGINT": LONG}
_OTHERS = {"BOOLEAN": BOOLEAN, "DOUBLE": DOUBLE, "FLOAT": FLOAT, "TEXT": STRING, "BINARY": BINARY}
_TEMPORAL = {
    "DATE": (DATE, parse_spark_date),
    "TIMESTAMP": (TIMESTAMP, parse_spark_timestamp),
    "TIMESTAMPTZ": (TIMESTAMP, parse_spark_timestamp),
    "TIMESTAMPLTZ": (TIMESTAMP, parse_spark_timestamp),
    "TIMESTAMPNTZ": (TIMESTAMP_NTZ, parse_spark_timestamp_ntz),
}


def parse_literal(tree: Tree) -> Literal | None:
    """The constant that a tree stands for. None where it is not a constant, or not one that can be known here.

    Integers and decimals without a suffix stay untyped (`data_type` None); a double is typed, a string is not.

    Raises InvalidExpressionError for a constant that Spark refuses, such as `DATE '2013-02-30'` or `300Y`.
    """
    from sqlglot import exp

    tree = tree.unnest()
    if isinstance(tree, exp.Null):
        return Literal(None)
    if isinstance(tree, exp.Boolean):
        return Literal(bool(tree.this), BOOLEAN)
    if isinstance(tree, exp.Literal):
        return Literal(tree.this) if tree.is_string else _number(tree.this)
    if isinstance(tree, exp.RawString):
        return Literal(tree.this)
    if isinstance(tree, exp.HexString):
        return _binary(tree.this)
    if isinstance(tree, exp.Neg):
        return _negative(tree.this)
    if isinstance(tree, exp.Cast) and _is_plain_cast(tree):
        return _cast(tree)
    return None


def _is_plain_cast(tree: Tree) -> bool:
    from sqlglot import exp

    return isinstance(tree.to, exp.DataType) and not tree.args.get("format") and not tree.args.get("safe")


def _number(text: str) -> Literal:
    if len(text) > _MAX_NUMBER_CHARACTERS:
        raise InvalidExpressionError(
            f"The number {text[:20]}… has {len(text)} characters", cause="A decimal has 38 digits at most"
        )
    if re.fullmatch(r"[0-9]+", text):
        value = int(text)
        if not _fits(value, LONG):
            decimal_type_of(Decimal(value))
        return Literal(value)
    if "e" in text.lower():
        return Literal(float(text), DOUBLE)
    try:
        value_decimal = Decimal(text)
    except InvalidOperation:
        raise InvalidExpressionError(f"{text!r} is not a number", value=text) from None
    return Literal(value_decimal, decimal_type_of(value_decimal))


def _negative(tree: Tree) -> Literal | None:
    from sqlglot import exp

    tree = tree.unnest()
    if isinstance(tree, exp.Cast) and isinstance(tree.this, exp.Literal):
        # -128Y: the sign is outside the cast, yet Spark reads one constant.
        return _cast_number(("-" if not tree.this.this.startswith("-") else "") + tree.this.this, tree)
    literal = parse_literal(tree)
    if literal is None or isinstance(literal.value, bool) or not isinstance(literal.value, int | float | Decimal):
        return None
    negated = literal.value.copy_negate() if isinstance(literal.value, Decimal) else -literal.value
    return Literal(negated, literal.data_type)


def _binary(text: str) -> Literal:
    try:
        return Literal(bytes.fromhex(text if len(text) % 2 == 0 else "0" + text), BINARY)
    except ValueError:
        raise InvalidExpressionError(f"X'{text}' is not a hexadecimal constant", value=text) from None


def _cast(tree: Tree) -> Literal | None:
    from sqlglot import exp

    if isinstance(tree.this, exp.Neg) and isinstance(tree.this.this, exp.Literal) and tree.this.this.is_number:
        return _cast_number("-" + tree.this.this.this, tree)
    if isinstance(tree.this, exp.Null):
        return _null_of(tree.to)
    if not isinstance(tree.this, exp.Literal):
        return None
    name = tree.to.this.name
    if tree.this.is_string and name in _TEMPORAL:
        data_type, parse = _TEMPORAL[name]
        value: date | datetime = parse(tree.this.this)
        return Literal(value, data_type)
    if tree.this.is_string:
        return _cast_string(tree.this.this, tree)
    return _cast_number(tree.this.this, tree)


def _null_of(tree: Tree) -> Literal | None:
    """`CAST(NULL AS type)` for types that have constants."""
    name = tree.this.name
    if name == "DECIMAL":
        return Literal(None, _decimal_type(tree))
    data_type = _INTEGRAL.get(name) or _OTHERS.get(name) or (_TEMPORAL[name][0] if name in _TEMPORAL else None)
    return None if data_type is None or tree.expressions else Literal(None, data_type)


def _decimal_type(tree: Tree) -> DecimalType:
    parameters = [int(parameter.this.this) for parameter in tree.expressions]
    precision, scale = [*parameters, *(10, 0)[len(parameters) :]]
    return DecimalType(precision, scale)


def _cast_string(text: str, tree: Tree) -> Literal | None:
    name = tree.to.this.name
    if name in {"TEXT", "VARCHAR"} and not tree.to.expressions:
        return Literal(text, STRING)
    if name == "BOOLEAN":
        return Literal(parse_spark_boolean(text), BOOLEAN)
    if name in _INTEGRAL:
        return _integral(parse_spark_long(text), _INTEGRAL[name])
    if name == "DOUBLE":
        return Literal(parse_spark_double(text), DOUBLE)
    if name == "FLOAT":
        return Literal(round_to_float(parse_spark_double(text)), FLOAT)
    return _cast_number(text, tree) if name == "DECIMAL" else None


def _cast_number(text: str, tree: Tree) -> Literal | None:
    name = tree.to.this.name
    if len(text) > _MAX_NUMBER_CHARACTERS or not re.fullmatch(r"-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text):
        return None
    if name in _INTEGRAL and re.fullmatch(r"-?\d+", text):
        return _integral(int(text), _INTEGRAL[name])
    if name == "DOUBLE":
        return Literal(float(text), DOUBLE)
    if name == "FLOAT":
        return Literal(round_to_float(float(text)), FLOAT)
    if name == "DECIMAL":
        return _decimal(Decimal(text), _decimal_type(tree.to))
    return None


def _integral(value: int, data_type: DataType) -> Literal:
    if not _fits(value, data_type):
        raise InvalidExpressionError(f"The number {value} does not fit {data_type}", value=value, type=str(data_type))
    return Literal(value, data_type)


def _decimal(value: Decimal, data_type: DecimalType) -> Literal | None:
    precision, scale = data_type.precision, data_type.scale
    needed = decimal_type_of(value.normalize(_EXACT))
    fits = needed.scale <= scale and needed.precision - needed.scale <= precision - scale
    return Literal(value.quantize(Decimal(1).scaleb(-scale), context=_EXACT), data_type) if fits else None


def _fits(value: int, data_type: DataType) -> bool:
    low, high = INTEGRAL_RANGES[data_type]
    return low <= value <= high
