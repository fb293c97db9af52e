"""Columns, values and predicates, each in SQL and in Python."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from delta_orch.variant import json_to_variant
from tests.harness.merges.model import Predicate, Row, Value

Leaf = tuple[str, pa.DataType, Callable[[Any], Any]]
"""A column or a field inside one: its SQL, its type, and its value in a row."""

_TEXTS = ("", " ", "a", "A", "ä", "a/b=c%", "NULL", "it's \\", "\U0001f40d\n", "b" * 40)
_FLOATS = (float("nan"), 0.0, -0.0, 1.5, float("inf"), float("-inf"), -2.25)
_TIMES = (datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999),
          datetime(2024, 2, 29, 12), datetime(1883, 11, 18, 12, 3, 58, 1))  # fmt: skip
VARIANT: pa.DataType = json_to_variant(pa.array([], pa.string())).type
_JSON = (
    "null",
    "1",
    '{"q": [1, null, "\u00e4"], "": {}}',
    '{"q": 1.50}',
    "[]",
    '"b"',
    "-9223372036854775808",
    '{"q": true}',
)
_QR = pa.struct([("q", pa.int32()), ("r", pa.string())])
TYPES: dict[str, tuple[pa.DataType, tuple[Any, ...]]] = {
    "k": (pa.int64(), (0, 1, 2, 3, 4, -(2**63), 2**63 - 1)),
    "s": (pa.string(), _TEXTS),
    "z": (pa.string(), ("a", "b", "")),
    "w": (pa.decimal128(38, 18), tuple(map(Decimal, ("0", "1.5", "-99999999999999999999.999999999999999999")))),
    "e": (pa.decimal128(38, 0), tuple(map(Decimal, ("0", "1", "9" * 38, "-" + "9" * 38)))),
    "d": (pa.decimal128(10, 2), tuple(map(Decimal, ("0", "1.25", "-0.01", "99999999.99")))),
    "f": (pa.float64(), _FLOATS),
    "g": (pa.float32(), _FLOATS),
    "ts": (pa.timestamp("us", "UTC"), tuple(t.replace(tzinfo=UTC) for t in _TIMES)),
    "n": (pa.timestamp("us"), _TIMES),
    "day": (pa.date32(), (date(1, 1, 1), date(9999, 12, 31), date(1969, 12, 31), date(2024, 2, 29))),
    "o": (pa.bool_(), (True, False)),
    "bin": (pa.binary(), (b"", b"a", b"\x00\xff")),
    "i": (pa.int32(), (0, 1, 7, -(2**31))),
    "y": (pa.int8(), (0, 1, 127, -128)),
    "st": (pa.struct([("a", pa.string()), ("b", _QR)]), ({"a": "x", "b": {"q": 1, "r": ""}}, {"a": None, "b": None},
           {"a": "", "b": {"q": None, "r": "y"}}, {"a": "x", "b": None})),
    "l": (pa.list_(_QR), ([], [None], [{"q": 1, "r": None}, {"q": None, "r": ""}])),
    "v": (VARIANT, tuple(json_to_variant(pa.array(_JSON)).to_pylist())),
    "m": (pa.map_(pa.string(), pa.int64()), ([], [("", 1)], [("k", None), ("K", 2)])),
}  # fmt: skip
ODD = {"k": "K ;=", "s": "s.p`c", "z": "Zäß", "f": "f(,)", "day": "a b", "st": "st.st", "i": "%41", "l": "select",
       "ts": "\u212a", "d": '"d"', "bin": "\\n", "w": "{}"}  # fmt: skip
"""Names that some columns have in every other lake, whose tables have column mapping then."""
WIDER = {pa.int8(): pa.int32(), pa.int32(): pa.int64(), pa.float32(): pa.float64(), pa.date32(): pa.timestamp("us"),
         pa.decimal128(10, 2): pa.decimal128(20, 4)}  # fmt: skip


def is_nested(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_nested(data_type))


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def pool(data_type: pa.DataType) -> list[Any]:
    """Values of a type, as Arrow gives them back."""
    if pa.types.is_struct(data_type) and all(kind != data_type for kind, _ in TYPES.values()):
        return [{f.name: pool(f.type)[number] for f in data_type.fields} for number in (0, 1)]
    if pa.types.is_list(data_type) and all(kind != data_type for kind, _ in TYPES.values()):
        return [[], [None, *pool(data_type.value_type)]]
    found = [value for kind, values in TYPES.values() if kind == data_type for value in values]
    if not found:  # a type that came by widening
        (narrow,) = (narrow for narrow, wide in WIDER.items() if wide == data_type)
        return list(pa.array(pool(narrow), narrow).cast(data_type).to_pylist())
    return list(pa.array(found, data_type).to_pylist())


def random_value(rng: random.Random, data_type: pa.DataType) -> Any:
    return None if rng.random() < 0.2 else rng.choice(pool(data_type))


def literal_text(value: Any, data_type: pa.DataType) -> str:
    """SQL of a value that is not nested."""
    if value is None:
        return "NULL"
    if pa.types.is_string(data_type):
        return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"
    if pa.types.is_binary(data_type):
        return f"X'{value.hex()}'"
    if pa.types.is_date(data_type):
        return f"DATE '{value.isoformat()}'"
    if pa.types.is_timestamp(data_type):
        text = value.replace(tzinfo=None).isoformat(" ", "microseconds")
        return f"TIMESTAMP '{text}Z'" if data_type.tz else f"TIMESTAMP_NTZ '{text}'"
    if pa.types.is_boolean(data_type):
        return str(value).lower()
    names = {"decimal128": f"{data_type}".replace("128", ""), "double": "DOUBLE", "float": "FLOAT"}
    name = names.get(str(data_type).split("(")[0])
    if name is None and value > -(2**63):
        return str(value)
    return f"CAST('{value}' AS {name or 'BIGINT'})"


def leaves(schema: pa.Schema, alias: str = "") -> list[Leaf]:
    """What a predicate may compare: columns that are not nested, and fields of structs."""
    return [leaf for field in schema for leaf in _leaves(field, alias, lambda row: row)]


def _leaves(field: pa.Field, before: str, of: Callable[[Row], Any]) -> Iterator[Leaf]:
    def value(row: Row) -> Any:
        outer = of(row)
        return None if outer is None else outer[field.name]

    if field.type == VARIANT:
        return  # The local engine compares none.
    if pa.types.is_struct(field.type):
        for inner in field.type.fields:
            yield from _leaves(inner, f"{before}{quoted(field.name)}.", value)
    elif pa.types.is_list(field.type):
        return  # No function of lists has one name in both engines' SQL.
    elif pa.types.is_map(field.type):
        yield f"{before}{quoted(field.name)}['k']", pa.int64(), lambda row: dict(value(row) or ()).get("k")
    else:
        yield before + quoted(field.name), field.type, value


def definition(data_type: pa.DataType) -> Any:
    """A type as a column is defined with."""
    return "variant" if data_type == VARIANT else data_type


def predicate(rng: random.Random, found: list[Leaf], is_source: bool = False, depth: int = 2) -> Predicate:
    """A predicate over one side."""
    kind = rng.choice(["compare"] * 4 + ["in", "null", "columns"] + ["and", "or", "not"] * (depth > 0))
    if kind == "not":
        one = predicate(rng, found, is_source, depth - 1)
        return Predicate(f"NOT ({one.sql})", lambda t, s: None if (v := one.holds(t, s)) is None else not v)
    if kind in ("and", "or"):
        first, second = (predicate(rng, found, is_source, depth - 1) for _ in "12")
        return joined(kind, first, second)
    text, data_type, of = rng.choice(found)
    others = [leaf for leaf in found if leaf[1] == data_type]
    if text.isascii() and "'" not in text and rng.random() < 0.1:
        text = text.swapcase()
    side: Callable[[Any, Any], Any] = (lambda t, s: of(s)) if is_source else (lambda t, s: of(t))
    if kind == "null":
        negated = rng.random() < 0.5
        return Predicate(f"{text} IS {'NOT ' if negated else ''}NULL", lambda t, s: (side(t, s) is None) is not negated)
    if kind == "in":
        values = [random_value(rng, data_type) for _ in range(rng.randint(1, 3))]
        return Predicate(
            f"{text} IN ({', '.join(literal_text(v, data_type) for v in values)})",
            lambda t, s: _any([compare("=", side(t, s), v) for v in values]),
        )
    op = rng.choice(["=", "<>", "<", "<=", ">", ">=", "<=>", "="])
    if kind == "columns":
        other, _, of_other = rng.choice(others)
        return Predicate(f"{text} {op} {other}", lambda t, s: compare(op, side(t, s), of_other(s if is_source else t)))
    value = rng.choice(pool(data_type))
    return Predicate(f"{text} {op} {literal_text(value, data_type)}", lambda t, s: compare(op, side(t, s), value))


def joined(kind: str, first: Predicate, second: Predicate) -> Predicate:
    """AND or OR."""
    if kind == "or":
        holds: Any = lambda t, s: _any([first.holds(t, s), second.holds(t, s)])  # noqa: E731
    else:
        negated = lambda v: None if v is None else not v  # noqa: E731
        holds = lambda t, s: negated(_any([negated(first.holds(t, s)), negated(second.holds(t, s))]))  # noqa: E731
    return Predicate(f"({first.sql}) {kind.upper()} ({second.sql})", holds)


def matching(rng: random.Random, t: Leaf, s: Leaf) -> Predicate:
    """A value of the table beside one of the source."""
    op = rng.choice(["=", "=", "<=>"])
    return Predicate(f"{t[0]} {op} {s[0]}", lambda a, b: compare(op, t[2](a), s[2](b)))


def of_source(name: str) -> Value:
    """A column of a merge's source."""
    return Value(f"s.{quoted(name)}", lambda t, s: s and s[name])


def _any(found: list[bool | None]) -> bool | None:
    return True if True in found else None if None in found else False


def compare(op: str, a: Any, b: Any) -> bool | None:
    """As Spark compares: NaN equals NaN and is more than any number."""
    if op == "<=>":
        return a is b is None or (None not in (a, b) and sort_key(a) == sort_key(b))
    if a is None or b is None:
        return None
    x, y = sort_key(a), sort_key(b)
    answers = {"=": x == y, "<>": x != y, "<": x < y, "<=": x <= y, ">": x > y, ">=": x >= y}
    return bool(answers[op])


def sort_key(value: Any) -> Any:
    return (value != value, 0 if value != value else value)


def assignment(rng: random.Random, found: list[Leaf], data_type: pa.DataType, is_source: bool = False) -> Value | None:
    """A value for a column of a type: a constant, or what another has, under a condition or not."""
    if is_nested(data_type):
        return Value("NULL", lambda t, s: None)
    same = [leaf for leaf in found if leaf[1] == data_type]
    if same and rng.random() < 0.5:
        text, _, of = rng.choice(same)
        taken: Callable[[Any, Any], Any] = (lambda t, s: of(s)) if is_source else (lambda t, s: of(t))
        if rng.random() < 0.5:
            return Value(text, taken)
        when = predicate(rng, found, is_source, 1)
        return Value(
            f"CASE WHEN {when.sql} THEN {text} END", lambda t, s: taken(t, s) if when.holds(t, s) is True else None
        )
    value = random_value(rng, data_type)
    return Value(literal_text(value, data_type), lambda t, s: value)
