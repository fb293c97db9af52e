"""Converts texts of CSV and JSON to values of a table's types in DuckDB's SQL, and checks that nothing is lost.

A text fits a type if the value has the same meaning. `12` and `12.0` fit an integer, but `007`, `12.5` and ` 12` do
not. A JSON number and a text with the same digits are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from delta_orch.engines.local.duckdb_columns import type_name
from delta_orch.expressions.to_sql import quote_duckdb_identifier, quote_duckdb_string
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
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StructType,
)

_INTEGER = r"[+-]?(0|[1-9]\d*)(\.0*)?"
_NUMBER = r"[+-]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d+)?"
_TIME = r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6}0*)?)?)?"
_ZONE = r" ?(Z|[+-]\d\d(:?\d\d)?)?"
_INTEGERS = frozenset({BYTE, SHORT, INTEGER, LONG})
_MARK = f"number {uuid4().hex} "
"""The mark before the digits of a number that is stored as text (`exact_numbers`). No file can contain it."""

EXACT_DIGITS = r"[0-9][0-9.]{15}|[.]0000|[0-9][eE]"
"""A pattern for numbers that DuckDB may spell differently from the file, because it stores numbers with a point as
doubles."""


@dataclass(frozen=True, slots=True)
class TextValues:
    """How a file writes its values.

    Attributes:
        date_format, timestamp_format: Formats with the directives of `strptime`. None is ISO 8601.
        decimal_separator: `.` or `,`.
    """

    date_format: str | None = None
    timestamp_format: str | None = None
    decimal_separator: str = "."

    def of_text(self, text: str, data_type: DataType) -> tuple[str, str]:
        """Return SQL for the value of a CSV cell, and for whether nothing is lost. The value is null if the text does
        not fit.

        Args:
            text: SQL for the text. Columns of nested types hold JSON.
        """
        if data_type == STRING:
            return text, "true"
        if isinstance(data_type, StructType | ArrayType | MapType):
            value, fits = self.of_json(f"CASE WHEN json_valid({text}) THEN CAST({text} AS JSON) END", data_type)
            return value, f"({text} IS NULL OR {text} = '' OR (json_valid({text}) AND {fits}))"
        value, fits = self._atomic(text, data_type)
        return value, f"coalesce({text} IS NULL OR {text} = '' OR {fits}, false)"

    def of_json(self, json: str, data_type: DataType, depth: int = 0) -> tuple[str, str]:
        """Return the same as `of_text` for a JSON value."""
        kind, item, key = f"json_type({json})", f"e{depth}", f"k{depth}"
        is_null = f"({json} IS NULL OR {kind} = 'NULL')"
        match data_type:
            case StructType(fields):
                keys = f"list_transform(json_keys({json}), lambda {key}: lower({key}))"
                names = [quote_duckdb_string(f.name.lower()) for f in fields]
                parts = [
                    self.of_json(f"json_extract({json}, '$.*')[list_position({keys}, {name})]", f.data_type, depth + 1)
                    for name, f in zip(names, fields, strict=True)
                ]
                packed = ", ".join(
                    f"{quote_duckdb_identifier(f.name)} := {value}" for f, (value, _) in zip(fields, parts, strict=True)
                )
                conditions = [
                    f"list_has_all([{', '.join(names)}], {keys})",
                    _are_distinct(keys),
                    *(fits for _, fits in parts),
                ]
                value = f"CASE WHEN {kind} = 'OBJECT' THEN struct_pack({packed}) END"
                return value, f"({is_null} OR ({kind} = 'OBJECT' AND {' AND '.join(conditions)}))"
            case ArrayType(element_type):
                value, fits = self.of_json(item, element_type, depth + 1)
                items = f"json_extract({json}, '$[*]')"
                return (
                    f"CASE WHEN {kind} = 'ARRAY' THEN list_transform({items}, lambda {item}: {value}) END",
                    f"({is_null} OR ({kind} = 'ARRAY' AND {_all_true(items, item, fits)}))",
                )
            case MapType(key_type, value_type):
                (key_value, key_fits), keys = self._atomic(key, key_type), f"json_keys({json})"
                value, fits = self.of_json(item, value_type, depth + 1)
                items = f"json_extract({json}, '$.*')"
                typed_keys = f"list_transform({keys}, lambda {key}: {key_value})"
                is_map = f"{kind} = 'OBJECT' AND {_all_true(keys, key, key_fits)} AND {_are_distinct(typed_keys)}"
                return (
                    f"CASE WHEN {is_map} THEN map({typed_keys}, list_transform({items}, lambda {item}: {value})) END",
                    f"({is_null} OR ({is_map} AND {_all_true(items, item, fits)}))",
                )
        text = f"replace({json}->>'$', '{_MARK}', '')"
        if data_type == STRING:
            other = as_written(f"({json}->>'$')")
            return f"CASE WHEN {kind} = 'VARCHAR' THEN {text} ELSE {other} END", "true"
        value, fits = self._atomic(text, data_type)
        fits = f"{kind} = 'VARCHAR' AND {fits}" if data_type == BINARY else fits
        return value, f"coalesce({is_null} OR ({fits}), false)"

    def _atomic(self, text: str, data_type: DataType) -> tuple[str, str]:
        """The value is null if it does not fit."""
        if data_type == STRING:
            return text, "true"
        number = f"replace({text}, ',', '.')" if self.decimal_separator == "," else text
        typed = f"TRY_CAST({number} AS {type_name(data_type)})"
        if data_type in _INTEGERS:
            fits = f"{_matches(number, _INTEGER)} AND {typed} IS NOT NULL"
        elif isinstance(data_type, DecimalType):
            # Exponents are rare. They are checked by the resulting number.
            plain = rf"[+-]?((0|[1-9]\d*)(\.\d{{0,{data_type.scale}}}0*)?|\.\d{{1,{max(data_type.scale, 1)}}}0*)"
            same = f"CAST({typed} AS DOUBLE) = TRY_CAST({number} AS DOUBLE) AND length({number}) <= 20"
            exponent = f"{_matches(number, _NUMBER)} AND contains(lower({number}), 'e') AND {same}"
            fits = f"{typed} IS NOT NULL AND ({_matches(number, plain)} OR ({exponent}))"
        elif data_type in (DOUBLE, FLOAT):
            # A fraction becomes the nearest double. An integer that no double equals would lose digits.
            is_same = f"TRY_CAST({number} AS HUGEINT) = TRY_CAST({typed} AS HUGEINT)"
            is_exact = f"length({number}) <= {15 if data_type == DOUBLE else 7} OR NOT {_matches(number, _INTEGER)}"
            is_number = f"{_matches(number, _NUMBER)} AND isfinite({typed}) AND ({is_exact} OR {is_same})"
            fits = f"(({is_number}) OR {_matches(f'lower({number})', '[+-]?(nan|inf|infinity)')})"
        elif data_type == BOOLEAN:
            fits = f"lower({text}) IN ('true', 'false')"
        elif data_type == BINARY:
            typed = f"TRY(from_base64({text}))"
            fits = f"{typed} IS NOT NULL"
        else:
            typed, fits = self._time(text, data_type)
        return f"CASE WHEN {fits} THEN {typed} END", fits

    def _time(self, text: str, data_type: DataType) -> tuple[str, str]:
        typed, own = type_name(data_type), self.date_format if data_type == DATE else self.timestamp_format
        if own is not None:
            moment = f"try_strptime({text}, {quote_duckdb_string(own)})"
            return f"TRY_CAST({moment} AS {typed})", f"{moment} IS NOT NULL"
        pattern = r"\d{4}-\d\d-\d\d" if data_type == DATE else _TIME + (_ZONE if data_type == TIMESTAMP else "")
        moment = f"TRY_CAST({text} AS {typed})"
        return moment, f"{_matches(text, pattern)} AND {moment} IS NOT NULL"


def as_written(json: str) -> str:
    """Return SQL for the JSON text as in the file, without the marks of `exact_numbers`."""
    unmarked = f"""regexp_replace({json}, '"{_MARK}([^"]*)"', '\\1', 'g')"""
    return f"CASE WHEN contains({json}, '{_MARK}') THEN replace({unmarked}, '{_MARK}', '') ELSE {json} END"


def as_rescued(json: str) -> str:
    """Return the same as `as_written` for a part of an object, as valid JSON without infinite numbers."""
    return f"CASE WHEN regexp_full_match({json}, '-?[NI].*') THEN '\"' || {json} || '\"' ELSE {as_written(json)} END"


def exact_numbers(json: str) -> str:
    """Return SQL for the same JSON with numbers as marked texts, because DuckDB's functions keep every digit of a
    text."""
    tokens = rf"""regexp_extract_all({json}, '"(?:[^"\\]|\\.)*"|[^"]+')"""
    number = r"(-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"
    marked = f"""regexp_replace(t, '{number}', '"{_MARK}\\1"', 'g')"""
    return f"""array_to_string(list_transform({tokens}, lambda t: CASE WHEN t[1] = '"' THEN t ELSE {marked} END), '')"""


def _matches(text: str, pattern: str) -> str:
    return f"regexp_full_match({text}, '{pattern}')"


def _are_distinct(keys: str) -> str:
    return f"len(list_distinct({keys})) = len({keys})"


def _all_true(items: str, item: str, condition: str) -> str:
    return f"coalesce(list_bool_and(list_transform({items}, lambda {item}: {condition})), true)"
