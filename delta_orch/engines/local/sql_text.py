"""Functions of Spark SQL on text in DuckDB's SQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from delta_orch.engines.local import sql_nested
from delta_orch.engines.local.sql_arguments import (
    Scalars,
    binary_sql,
    constant,
    long_sql,
)
from delta_orch.engines.local.sql_casts import as_text, cast, error, widen
from delta_orch.engines.local.sql_types import Typed, unsupported
from delta_orch.expressions.nodes import Call, Expression
from delta_orch.expressions.spark_literals import INTEGRAL_RANGES
from delta_orch.expressions.to_sql import chain, quote_duckdb_string
from delta_orch.protocol.types import (
    BINARY,
    BOOLEAN,
    INTEGER,
    LONG,
    STRING,
    VOID,
    ArrayType,
)

# Latin and Cyrillic letters, without those that become several letters, or whose case Java and DuckDB know from
# different versions of Unicode. A sigma at the end of a word makes Greek a matter of its own.
_SAME_UPPER = r"[\x{01}-\x{DE}\x{E0}-\x{148}\x{14A}-\x{19A}\x{19C}-\x{1EF}\x{1F1}-\x{24F}\x{400}-\x{52F}]*"
_SAME_LOWER = r"[\x{01}-\x{12F}\x{131}-\x{24F}\x{400}-\x{52F}]*"


def changed_case(function: str) -> Callable[[Scalars, Sequence[Expression]], Typed]:
    """`upper` and `lower`."""
    return lambda scalars, arguments: Typed(_cased(function, scalars.text(arguments[0])), STRING)


def _cased(function: str, text: str) -> str:
    pattern = quote_duckdb_string(_SAME_UPPER if function == "upper" else _SAME_LOWER)
    problem = error(f"{function} of letters for which the local engine is not proven equal to Spark")
    return (
        f"CASE WHEN {text} IS NULL OR regexp_full_match({text}, {pattern}) THEN {function}({text}) ELSE {problem} END"
    )


def concat_ws(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """Nulls are left out, in arrays of texts, too."""
    values = [scalars.scalar(argument) for argument in arguments[1:]]
    if any(isinstance(value.data_type, ArrayType) for value in values):
        kind, between = ArrayType(STRING, True), constant(scalars, arguments[0], str, "concat_ws of arrays")
        lists = (v.sql if str(v.data_type) == str(kind) else f"[{as_text(v)}]" for v in values)
        parts = reduce("list_concat({}, {})".format, lists)
        return Typed(f"coalesce(array_to_string({parts}, {quote_duckdb_string(between)}), '')", STRING)
    texts = [scalars.text(argument) for argument in arguments]
    return Typed(
        f"concat_ws({', '.join(texts)})" if len(texts) > 1 else f"CASE WHEN {texts[0]} IS NULL THEN NULL ELSE '' END",
        STRING,
    )


def padded(function: str) -> Callable[[Scalars, Sequence[Expression]], Typed]:
    def pad(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
        width = constant(scalars, arguments[1], int, function)
        filling = constant(scalars, arguments[2], str, function) if len(arguments) > 2 else " "
        if not filling or not 0 <= width <= 65_535:
            raise unsupported(f"{function} with nothing to fill with, or beyond 65,535 characters")
        return Typed(f"{function}({scalars.text(arguments[0])}, {width}, {quote_duckdb_string(filling)})", STRING)

    return pad


def sha2(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    if constant(scalars, arguments[1], int, "sha2") not in (0, 256):
        raise unsupported("sha2 of any length but 256")
    return Typed(f"sha256({binary_sql(scalars, arguments[0])})", STRING)


def split_part(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    delimiter = constant(scalars, arguments[1], str, "split_part")
    index = constant(scalars, arguments[2], int, "split_part")
    if not delimiter or index < 1:
        raise unsupported("split_part without a delimiter, or from the end")
    return Typed(f"split_part({scalars.text(arguments[0])}, {quote_duckdb_string(delimiter)}, {index})", STRING)


def hexadecimal(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    if scalars.scalar(arguments[0]).data_type in INTEGRAL_RANGES:
        return Typed(f"hex({long_sql(scalars, arguments[0])})", STRING)
    return Typed(f"hex({binary_sql(scalars, arguments[0])})", STRING)


def case_blind_like(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`ILIKE` with a constant pattern of plain letters."""
    pattern = constant(scalars, arguments[1], str, "ILIKE")
    if "\\" in pattern:
        raise unsupported("ILIKE with an escape")
    text = _cased("lower", scalars.text(arguments[0]))
    return Typed(f"({text} LIKE {_cased('lower', quote_duckdb_string(pattern))} ESCAPE '\\')", BOOLEAN)


def encoded(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`encode` as UTF-8."""
    _ensure_utf8(scalars, arguments)
    return Typed(f"encode({scalars.text(arguments[0])})", BINARY)


def _ensure_utf8(scalars: Scalars, arguments: Sequence[Expression]) -> None:
    charset = constant(scalars, arguments[1], str, "a character set")
    if charset.lower() != "utf-8":
        raise unsupported(f"the character set {charset[:40]}")


def located(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`locate`, from the first character or a later one on."""
    part, text = map(scalars.text, arguments[:2])
    start = constant(scalars, arguments[2], int, "locate") if len(arguments) > 2 else 1
    if start < 1:
        raise unsupported("locate before the first character")
    place = f"instr(substring({text}, {start}), {part})"
    found = f"CASE WHEN {part} = '' THEN 1 WHEN {place} > 0 THEN {place} + {start - 1} WHEN {place} = 0 THEN 0 END"
    return Typed(f"CAST(CASE WHEN {text} IS NOT NULL THEN {found} END AS INTEGER)", INTEGER)


def text_test(function: str) -> Callable[[Scalars, Sequence[Expression]], Typed]:
    """`startswith`, `endswith` and `contains`, as DuckDB calls them."""
    return lambda scalars, arguments: Typed(f"{function}({', '.join(map(scalars.text, arguments))})", BOOLEAN)


def concatenated(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`concat` and `||`."""
    values = [scalars.scalar(argument) for argument in arguments]
    if any(isinstance(value.data_type, ArrayType) for value in values):
        # Spark refuses a null of no type beside arrays.
        if any(value.data_type == VOID for value in values):
            raise unsupported("concat of an array and NULL")
        return sql_nested.concatenated(values)
    return Typed(f"({chain(' || ', list(map(as_text, values)))})", STRING)


def length(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """In characters."""
    return Typed(f"CAST(length({scalars.text(arguments[0])}) AS INTEGER)", INTEGER)


def trimmed(function: str) -> Callable[[Scalars, Sequence[Expression]], Typed]:
    """`trim`, `ltrim` and `rtrim`: a text, or characters and the text."""

    def trim(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
        *characters, text = map(scalars.text, arguments)
        return Typed(f"{function}({text}, {characters[0] if characters else quote_duckdb_string(' ')})", STRING)

    return trim


def trimmed_of(scalars: Scalars, call: Call) -> Typed:
    """`trim(BOTH characters FROM text)`."""
    function = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(call.detail, "trim")
    return trimmed(function)(scalars, call.arguments[::-1])


def substring(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`substring`."""
    text = scalars.text(arguments[0])
    numbers = [scalars.scalar(argument) for argument in arguments[1:]]
    if any(number.data_type not in INTEGRAL_RANGES for number in numbers):
        raise unsupported("substring with positions that are not integers")
    # Spark counts in 32 bits: a position beyond them is an error, and without a number they are as many as there are.
    start, *count_of = [widen(cast(number, INTEGER), LONG).sql for number in numbers]
    # From the end where it is negative; what lies before the first character counts, too.
    begin = f"CASE WHEN {start} > 0 THEN {start} - 1 WHEN {start} < 0 THEN length({text}) + {start} ELSE 0 END"
    count = f"({begin}) + {count_of[0] if count_of else 2**31 - 1} - greatest({begin}, 0)"
    found = f"substring({text}, greatest({begin}, 0) + 1, greatest({count}, 0))"
    return Typed(f"CASE WHEN {text} IS NULL OR {' OR '.join(f'{n} IS NULL' for n in (start, *count_of))} THEN NULL "
                 f"ELSE {found} END", STRING)  # fmt: skip
