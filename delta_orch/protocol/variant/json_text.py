"""The JSON text of variants.

Keys in the order of their UTF-8 bytes, no white space, decimals with all their digits, floats as Python repeats
them (shortest text that reads back the same double), dates, times and timestamps in ISO 8601 (UTC as `+00:00`),
binary in Base64, UUIDs in hyphenated hex. JSON knows no NaN and no infinities: they become the strings `"NaN"`,
`"Infinity"` and `"-Infinity"`, as Spark has it.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import date, datetime, time
from decimal import Decimal
from json.encoder import encode_basestring
from uuid import UUID

from delta_orch.protocol.variant.values import VariantDate, VariantTimestamp, VariantValue


def to_json(value: VariantValue) -> str:
    """The canonical JSON text of a decoded value. Nesting of any depth is written without recursion.

    Args:
        value: As `decode.decode_value` returns it.
    """
    if not isinstance(value, (dict, list)):
        return _SCALARS[type(value)](value)
    out: list[str] = []
    open_containers: list[tuple[Iterator[tuple[str, VariantValue]], str]] = []

    def enter(container: VariantValue) -> None:
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


def _led_fields(fields: dict[str, VariantValue]) -> Iterator[tuple[str, VariantValue]]:
    comma = ""
    for name in sorted(fields):
        yield f"{comma}{encode_basestring(name)}:", fields[name]
        comma = ","


def _led_elements(elements: list[VariantValue]) -> Iterator[tuple[str, VariantValue]]:
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


_SCALARS: dict[type, Callable[[VariantValue], str]] = {
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
