"""Variants and JSON text.

Out: keys in the order of their UTF-8 bytes, no white space, decimals with all their digits, floats as Python repeats
them (shortest text that reads back the same double), dates, times and timestamps in ISO 8601 (UTC as `+00:00`),
binary in Base64, UUIDs in hyphenated hex. JSON knows no NaN and no infinities: they become the strings `"NaN"`,
`"Infinity"` and `"-Infinity"`, as Spark has it.

In: whole numbers get the narrowest integer type; other numbers without an exponent are decimals as far as 38 digits go;
the rest are doubles. That is what Spark's `parse_json` does.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import date, datetime, time
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any
from uuid import UUID

from delta_orch.errors import InvalidRequestError
from delta_orch.protocol.variant.decode import MAX_DECIMAL_SCALE
from delta_orch.protocol.variant.encode import encode_variant
from delta_orch.protocol.variant.values import VariantDate, VariantTimestamp
from delta_orch.protocol.variant.variant import Variant

_MAX_DIGITS = 38
_LONGEST_INTEGER = _MAX_DIGITS + 1


def to_json(value: Any) -> str:
    """The canonical JSON text of a decoded value. Nesting of any depth is written without recursion.

    Args:
        value: As `decode.decode_value` returns it.
    """
    if not isinstance(value, (dict, list)):
        return _SCALARS[type(value)](value)
    out: list[str] = []
    open_containers: list[tuple[Iterator[tuple[str, Any]], str]] = []

    def enter(container: Any) -> None:
        is_object = isinstance(container, dict)
        out.append("{" if is_object else "[")
        open_containers.append((_led_fields(container) if is_object else _led_elements(container), "]}"[is_object]))

    enter(value)
    while open_containers:
        children, closing = open_containers[-1]
        for lead, child in children:
            out.append(lead)
            if isinstance(child, (dict, list)):
                enter(child)
                break
            out.append(_SCALARS[type(child)](child))
        else:
            out.append(closing)
            open_containers.pop()
    return "".join(out)


def _led_fields(fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    comma = ""
    for name in sorted(fields):
        yield f"{comma}{encode_basestring(name)}:", fields[name]
        comma = ","


def _led_elements(elements: list[Any]) -> Iterator[tuple[str, Any]]:
    comma = ""
    for element in elements:
        yield comma, element
        comma = ","


def _float_text(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def _quoted_iso(value: date | datetime | time | VariantDate | VariantTimestamp) -> str:
    return f'"{value.isoformat()}"'


_SCALARS: dict[type, Callable[[Any], str]] = {
    type(None): lambda _: "null",
    bool: lambda v: "true" if v else "false",
    int: str,
    float: _float_text,
    Decimal: lambda v: format(v, "f"),
    str: encode_basestring,
    bytes: lambda v: f'"{b64encode(v).decode()}"',
    date: _quoted_iso,
    datetime: _quoted_iso,
    time: _quoted_iso,
    VariantDate: _quoted_iso,
    VariantTimestamp: _quoted_iso,
    UUID: lambda v: f'"{v}"',
}


def parse_json(text: str | bytes) -> Variant:
    """A variant from JSON text.

    Raises:
        InvalidRequestError: The text is no JSON, names a key of an object twice, is nested deeper than `MAX_DEPTH`
            levels, or holds a number beyond the doubles.
    """
    try:
        parsed = json.loads(
            text,
            parse_int=_parse_integer,
            parse_float=_parse_number,
            parse_constant=_refuse_constant,
            object_pairs_hook=_unique_fields,
        )
    except InvalidRequestError:
        raise
    except (ValueError, RecursionError) as e:
        cause = "It is nested too deeply" if isinstance(e, RecursionError) else str(e)
        raise InvalidRequestError("The text is no JSON that a variant can hold", cause=cause) from None
    return encode_variant(parsed)


def _parse_integer(text: str) -> int | Decimal | float:
    # Python refuses to convert very long integers, and they are doubles anyway.
    return int(text) if len(text) <= _LONGEST_INTEGER and len(text.lstrip("-")) <= _MAX_DIGITS else _parse_double(text)


def _parse_number(text: str) -> Decimal | float:
    if "e" not in text and "E" not in text:
        digits, _, fraction = text.lstrip("-").partition(".")
        if len(fraction) <= MAX_DECIMAL_SCALE and len((digits + fraction).lstrip("0")) <= _MAX_DIGITS:
            return Decimal(text)
    return _parse_double(text)


def _parse_double(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InvalidRequestError("A number in the JSON text is too large for a variant", cause=text[:60])
    return value


def _refuse_constant(name: str) -> Any:
    raise InvalidRequestError("The text is no JSON", cause=f"{name} is not a JSON value")


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise InvalidRequestError("An object in the JSON text has the same key twice", remedy="Remove one of them")
    return fields
