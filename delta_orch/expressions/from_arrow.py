"""Predicates of pyarrow as nodes, so that they can leave out files and run on Spark.

pyarrow exports an expression in one public form, Substrait's (`pyarrow.substrait.serialize_expressions`): a protocol
buffer with resolved types and columns by position. A part is translated only if a combination of nodes has exactly
Arrow's meaning. Other parts are left to Arrow.
"""

from __future__ import annotations

import logging
import math
import re
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.nodes import And, Column, Comparison, Expression, In, IsNull, Literal, Not, StartsWith
from delta_orch.expressions.protobuf_wire import Message, parse_message, signed
from delta_orch.expressions.resolve import find_column, resolve_expression
from delta_orch.expressions.tree import conjunction, disjunction, is_opaque
from delta_orch.protocol.arrow_building import schema_to_arrow
from delta_orch.protocol.epoch import date_of, moment_of
from delta_orch.protocol.types import BOOLEAN, DOUBLE, FLOAT, STRING, DataType, DecimalType, PrimitiveType, StructType

_LOGGER = logging.getLogger(__name__)

_COMPARISONS = {"equal": "=", "not_equal": "!=", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
_FILES = {
    **dict.fromkeys([*_COMPARISONS, "is_null", "is_not_null", "is_nan"], "functions_comparison.yaml"),
    **dict.fromkeys(["and", "or", "not"], "functions_boolean.yaml"),
    "starts_with": "functions_string.yaml",
}
"""The functions that are understood, and which of Substrait's files defines each."""

_MAX_SUBSTRAIT = 100_000
"""Calls in Substrait's form of an expression, which a tenth of a second reads."""
_MAX_BYTES = 1_000_000
"""Of a list of values: some 100,000 numbers, which half a second reads. Arrow itself takes millions."""
_NAN = Literal(math.nan, DOUBLE)


class Translation(NamedTuple):
    """The translatable part of an expression.

    Attributes:
        where: Resolved; true for every row for which the expression is true. None if no part could be translated.
        is_complete: `where` is true for no other row.
    """

    where: Expression | None
    is_complete: bool


class _Unknown(Exception):
    """Something that no node stands for."""


def translate_arrow_expression(expression: pc.Expression, schema: StructType) -> Translation:
    """Translate as much as can be.

    Raises:
        InvalidExpressionError: It is not a predicate over the table's columns in their Arrow types.
    """
    size = ensure_few_calls(expression)
    arrow_schema = schema_to_arrow(schema)
    _ensure_fits(expression, arrow_schema)
    if size.substrait > _MAX_SUBSTRAIT or size.num_bytes > _MAX_BYTES:
        _LOGGER.debug("An expression of pyarrow is too large to leave out files: %s", size)
        return Translation(None, False)
    message = _serialize(expression, arrow_schema)
    if message is None:
        return Translation(None, False)
    try:
        return _translate(message, schema)
    except (_Unknown, ValueError) as e:
        _LOGGER.debug("An expression of pyarrow leaves out no files: %s", e)
        return Translation(None, False)


def _ensure_fits(expression: pc.Expression, schema: pa.Schema) -> None:
    try:
        schema.empty_table().filter(expression)
    except (pa.ArrowException, TypeError) as e:
        raise InvalidExpressionError(
            f"The expression {expression} does not fit the table",
            cause=str(e).split("\n")[0],
            remedy=f"pyarrow takes names as they are spelled; the columns are {', '.join(schema.names)}",
            expression=str(expression),
        ) from e


def _serialize(expression: pc.Expression, schema: pa.Schema) -> Message | None:
    try:
        from pyarrow.substrait import serialize_expressions

        return parse_message(bytes(serialize_expressions([expression], ["predicate"], schema)))
    except (ImportError, pa.ArrowException, ValueError) as e:
        # A function or type without a place in Substrait, or a pyarrow built without it.
        _LOGGER.debug("An expression of pyarrow leaves out no files: %s", e)
        return None


def _translate(extended: Message, schema: StructType) -> Translation:
    root = _bytes(parse_message(_bytes(extended, 3)), 1)
    reader = _Reader(schema, _functions(extended))
    parts: list[Expression] = []
    operands = reader.conjuncts(root)
    for operand in operands:
        try:
            part = resolve_expression(reader.predicate(operand), schema)
        except (_Unknown, ValueError, InvalidExpressionError) as e:
            _LOGGER.debug("A part of an expression of pyarrow leaves out no files: %s", e)
            continue
        if not is_opaque(part):
            parts.append(part)
    return Translation(conjunction(*parts) if parts else None, len(parts) == len(operands))


def _functions(extended: Message) -> Mapping[int, str]:
    """The functions that are understood, by the number they have in this message."""
    files: dict[int, str] = {}
    for uri in map(parse_message, _all_bytes(extended, 1)):
        files[_integer(uri, 1)] = _bytes(uri, 2).decode().rsplit("/", 1)[-1] if 2 in uri else ""
    functions: dict[int, str] = {}
    for declaration in map(parse_message, _all_bytes(extended, 2)):
        if 3 in declaration:
            function = parse_message(_bytes(declaration, 3))
            name = _bytes(function, 3).decode().split(":")[0]
            if name in _FILES and files.get(_integer(function, 1)) == _FILES[name]:
                functions[_integer(function, 2)] = name
    return functions


class _Reader:
    """Reads Substrait's `Expression` messages. `_Unknown` and ValueError say that there is something else."""

    def __init__(self, schema: StructType, functions: Mapping[int, str]) -> None:
        self._schema = schema
        self._functions = functions

    def conjuncts(self, data: bytes) -> list[bytes]:
        call = self._call(data)
        if call is None or call[0] != "and":
            return [data]
        return [part for operand in call[1] for part in self.conjuncts(operand)]

    def predicate(self, data: bytes) -> Expression:
        message = parse_message(data)
        if 8 in message:
            return self._in(parse_message(_bytes(message, 8)))
        call = self._call(data)
        if call is None:
            return self._operand(data)
        name, operands = call
        if name in _COMPARISONS:
            left, right = map(self._operand, _exactly(operands, 2))
            return self._comparison(_COMPARISONS[name], left, right)
        if name in ("and", "or"):
            combine: Callable[..., Expression] = conjunction if name == "and" else disjunction
            return combine(*map(self.predicate, operands))
        (operand,) = _exactly(operands, 2 if name == "starts_with" else 1)[:1]
        match name:
            case "not":
                return Not(self.predicate(operand))
            case "is_null":
                return IsNull(self.predicate(operand))
            case "is_not_null":
                return Not(IsNull(self.predicate(operand)))
            case "is_nan":
                return Comparison("=", self._column_of_type(operand, (FLOAT, DOUBLE)), _NAN)
        return self._starts_with(operand, operands[1])

    def _call(self, data: bytes) -> tuple[str, list[bytes]] | None:
        """The function an expression calls and its arguments; None where it calls none."""
        message = parse_message(data)
        if 3 not in message:
            return None
        call = parse_message(_bytes(message, 3))
        name = self._functions.get(_integer(call, 1))
        if name is None or 2 in call:
            raise _Unknown("a function that has no node")
        if name == "starts_with":
            _ensure_case_sensitive(call)
        # Comparisons and logic have no options that Arrow would set.
        elif 5 in call:
            raise _Unknown(f"an option of {name}")
        return name, [_bytes(parse_message(argument), 3) for argument in _all_bytes(call, 4)]

    def _operand(self, data: bytes) -> Expression:
        message = parse_message(data)
        if 1 in message:
            return _literal(parse_message(_bytes(message, 1)))
        if 2 in message:
            return self._column(parse_message(_bytes(message, 2)))
        if not message.keys() & {3, 8}:
            raise _Unknown(f"an expression of kind {min(message, default=0)}")
        return self.predicate(data)

    def _column(self, reference: Message) -> Column:
        if set(reference) - {1, 4}:
            raise _Unknown("a reference that is not a column")
        path: list[str] = []
        segment: bytes | None = _bytes(parse_message(_bytes(reference, 1)), 2)
        current: DataType = self._schema
        while segment is not None:
            step = parse_message(segment)
            index = _integer(step, 1)
            if not isinstance(current, StructType) or index >= len(current):
                raise _Unknown("a column that is not a field of a struct")
            path.append(current.fields[index].name)
            current = current.fields[index].data_type
            segment = _bytes(parse_message(_bytes(step, 2)), 2) if 2 in step else None
        return Column(tuple(path))

    def _type_of(self, node: Expression) -> DataType | None:
        if isinstance(node, Column):
            return find_column(node.path, self._schema)[1]
        return node.data_type if isinstance(node, Literal) else BOOLEAN

    def _column_of_type(self, data: bytes, types: Sequence[DataType]) -> Column:
        column = self._operand(data)
        if not isinstance(column, Column) or self._type_of(column) not in types:
            raise _Unknown("an operand of another type")
        return column

    def _comparison(self, op: str, left: Expression, right: Expression) -> Expression:
        types = self._type_of(left), self._type_of(right)
        if not all(t is None or isinstance(t, PrimitiveType | DecimalType) for t in types):
            raise _Unknown("a comparison of nested values")
        node = Comparison(op, left, right)
        if FLOAT in types or DOUBLE in types:
            return _without_nan(node)
        return node

    def _in(self, message: Message) -> Expression:
        column = self._operand(_bytes(message, 1))
        values = [self._operand(value) for value in _all_bytes(message, 2)] if 2 in message else []
        literals = tuple(value for value in values if isinstance(value, Literal) and value.value is not None)
        # The meaning of a null among the values of `isin` is not documented, and floats are told apart by their bits.
        if len(literals) < len(values) or not isinstance(column, Column) or self._type_of(column) in (FLOAT, DOUBLE):
            raise _Unknown("a list of values with nulls or of floats")
        if not literals:
            return Literal(False, BOOLEAN)
        return And((Not(IsNull(column)), In(column, literals)))

    def _starts_with(self, operand: bytes, prefix: bytes) -> Expression:
        literal = self._operand(prefix)
        if not isinstance(literal, Literal) or not isinstance(literal.value, str):
            raise _Unknown("a prefix that is not a constant")
        return StartsWith(self._column_of_type(operand, (STRING,)), literal.value)


def _without_nan(node: Comparison) -> Expression:
    """Arrow's answer for NaN: it is unequal to everything, itself included, and neither above nor below."""
    literals = [side for side in (node.left, node.right) if isinstance(side, Literal)]
    columns = [side for side in (node.left, node.right) if isinstance(side, Column)]
    if len(literals) != 1 or len(columns) != 1:
        raise _Unknown("floats that are not compared with a constant")
    value = literals[0].value
    if isinstance(value, float) and math.isnan(value):
        raise _Unknown("a comparison with NaN")
    if value is None or node.op == "!=":
        return node
    return And((node, Not(Comparison("=", columns[0], _NAN))))


def _ensure_case_sensitive(call: Message) -> None:
    for option in map(parse_message, _all_bytes(call, 5) if 5 in call else []):
        if _bytes(option, 1) != b"case_sensitivity" or _all_bytes(option, 2) != [b"CASE_SENSITIVE"]:
            raise _Unknown("an option of starts_with")


def _literal(message: Message) -> Literal:
    # 50 is nullability, which says nothing of a constant; 51, another variant of a type, makes one field too many.
    (number,) = set(message) - {50}
    value = message[number][-1]
    if number == 29:
        return Literal(None)
    read = _LITERALS.get(number)
    if read is None:
        raise _Unknown(f"a constant of kind {number}")
    return Literal(read(value))


def _decimal(data: bytes) -> Decimal:
    message = parse_message(data)
    unscaled = int.from_bytes(_bytes(message, 1), "little", signed=True)
    return Decimal(unscaled).scaleb(-_integer(message, 3), Context(prec=76))


_LITERALS: Mapping[int, Callable[[Any], Any]] = {
    1: bool,
    2: signed,
    3: signed,
    5: signed,
    7: signed,
    10: lambda data: struct.unpack("<f", data)[0],
    11: lambda data: struct.unpack("<d", data)[0],
    12: lambda data: data.decode(),
    13: bytes,
    14: lambda micros: moment_of(signed(micros), utc=False),
    16: lambda days: date_of(signed(days)),
    24: _decimal,
    27: lambda micros: moment_of(signed(micros), utc=True),
}
"""Constants by the number of their field: boolean, i8 to i64, fp32, fp64, string, binary, timestamp, date, decimal,
timestamp_tz."""


def _exactly(operands: list[bytes], count: int) -> list[bytes]:
    if len(operands) != count:
        raise _Unknown("another number of arguments")
    return operands


def _bytes(message: Message, number: int) -> bytes:
    (value,) = message.get(number) or (None,)
    if not isinstance(value, bytes):
        raise _Unknown(f"field {number} is missing")
    return value


def _all_bytes(message: Message, number: int) -> list[bytes]:
    values = message.get(number, ())
    return [value for value in values if isinstance(value, bytes)]


def _integer(message: Message, number: int) -> int:
    values = message.get(number, (0,))
    if not isinstance(values[-1], int):
        raise _Unknown(f"field {number} is not a number")
    return values[-1]


# How large an expression of pyarrow may be. Arrow walks it recursively, and ends the process where the stack ends.

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
    sizes: list[ArrowSize] = []
    with _lock:
        # The size belongs to the next thread that starts; a thread of somebody else may get it, too, which is harmless.
        before = threading.stack_size(_STACK_BYTES)
        try:
            walk = threading.Thread(target=lambda: sizes.append(_size_of(expression)))
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
    if sizes[0].calls > MAX_CALLS:
        raise InvalidExpressionError(
            f"The expression of pyarrow has about {sizes[0].calls} operators",
            cause=f"{MAX_CALLS} are allowed: Arrow's recursion would end the process",
            remedy="Use isin() for many values of one column, or write the predicate as text in Spark SQL",
            operators=sizes[0].calls,
        )
    return sizes[0]


def _size_of(expression: pc.Expression) -> ArrowSize:
    try:
        _, (data,) = expression.__reduce__()
    except pa.ArrowNotImplementedError:
        # An expression that cannot be exported can still be printed, with a parenthesis for each operator.
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
