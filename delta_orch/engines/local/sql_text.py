"""Functions of Spark SQL on text in DuckDB's SQL."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import reduce

from delta_orch.engines.local import sql_nested
from delta_orch.engines.local.java_pattern import LINE_END, JavaPattern, java_pattern
from delta_orch.engines.local.sql_arguments import (
    Scalars,
    binary_sql,
    constant,
    long_sql,
)
from delta_orch.engines.local.sql_casts import as_text, cast, error, widen
from delta_orch.engines.local.sql_types import Typed, holds_void, unsupported
from delta_orch.errors import InvalidExpressionError
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
    DataType,
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


def translate(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    old, new = (constant(scalars, argument, str, "translate") for argument in arguments[1:])
    if not (old + new).isascii():
        raise unsupported("translate of letters beyond ASCII")
    return Typed(
        f"translate({scalars.text(arguments[0])}, {quote_duckdb_string(old)}, {quote_duckdb_string(new)})", STRING
    )


def hexadecimal(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    if scalars.scalar(arguments[0]).data_type in INTEGRAL_RANGES:
        return Typed(f"hex({long_sql(scalars, arguments[0])})", STRING)
    return Typed(f"hex({binary_sql(scalars, arguments[0])})", STRING)


def _pattern(scalars: Scalars, node: Expression, what: str) -> JavaPattern:
    return java_pattern(constant(scalars, node, str, what))


def _searched(pattern: JavaPattern, text: str, found: str) -> str:
    """`found`, where no line's end at the end of the text makes a `$` mean two things."""
    if not pattern.has_end:
        return found
    problem = error(
        "a regular expression with $ over text that ends with a line break, which only the Spark engine runs"
    )
    ends = f"regexp_matches({text}, {quote_duckdb_string(LINE_END + chr(92) + 'z')})"
    return f"CASE WHEN {ends} THEN {problem} ELSE {found} END"


def regexp_like(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    text, pattern = scalars.text(arguments[0]), _pattern(scalars, arguments[1], "RLIKE")
    return Typed(_searched(pattern, text, f"regexp_matches({text}, {quote_duckdb_string(pattern.sql)})"), BOOLEAN)


def regexp_extract(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    text, pattern = scalars.text(arguments[0]), _pattern(scalars, arguments[1], "regexp_extract")
    group = constant(scalars, arguments[2], int, "regexp_extract") if len(arguments) > 2 else 1
    if not 0 <= group <= pattern.groups:
        raise InvalidExpressionError(f"The regular expression has {pattern.groups} groups, not {group}", group=group)
    if group > 9:
        raise unsupported("regexp_extract of a group above 9")
    found = f"regexp_extract({text}, {quote_duckdb_string(pattern.sql)}, {group})"
    return Typed(_searched(pattern, text, found), STRING)


def regexp_replace(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    text, pattern = scalars.text(arguments[0]), _pattern(scalars, arguments[1], "regexp_replace")
    new = constant(scalars, arguments[2], str, "regexp_replace")
    if pattern.is_nullable or not re.fullmatch(rf"(?:[^$\\]|\$[0-{min(pattern.groups, 9)}](?![0-9]))*", new):
        raise unsupported("regexp_replace of what may be empty, or by text with a backslash, or $ before no group")
    new = re.sub(r"\$([0-9])", r"\\\1", new)
    found = f"regexp_replace({text}, {quote_duckdb_string(pattern.sql)}, {quote_duckdb_string(new)}, 'g')"
    return Typed(_searched(pattern, text, found), STRING)


def regexp_found(template: str, kind: DataType) -> Callable[[Scalars, Sequence[Expression]], Typed]:
    """A function of all that a regular expression finds: of a group, the first one or that of a third argument."""

    def find(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
        text, pattern = scalars.text(arguments[0]), _pattern(scalars, arguments[1], "a regular expression")
        group = constant(scalars, arguments[2], int, "a group") if len(arguments) > 2 else min(pattern.groups, 1)
        if pattern.is_nullable or not 0 <= group <= min(pattern.groups, 9):
            raise unsupported("a regular expression that may be empty, or a group that it has not")
        found = template.format(text, quote_duckdb_string(pattern.sql), group)
        return Typed(f"CASE WHEN {text} IS NOT NULL THEN {_searched(pattern, text, found)} END", kind)

    return find


def split(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    text, pattern = scalars.text(arguments[0]), _pattern(scalars, arguments[1], "split")
    if pattern.is_nullable or pattern.groups:
        raise unsupported("split by what may be empty, or has groups")
    found = f"string_split_regex({text}, {quote_duckdb_string(pattern.sql)})"
    return Typed(_searched(pattern, text, found), ArrayType(STRING, False))


def case_blind_like(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`ILIKE` with a constant pattern of plain letters."""
    pattern = constant(scalars, arguments[1], str, "ILIKE")
    if "\\" in pattern:
        raise unsupported("ILIKE with an escape")
    text = _cased("lower", scalars.text(arguments[0]))
    return Typed(f"({text} LIKE {_cased('lower', quote_duckdb_string(pattern))} ESCAPE '\\')", BOOLEAN)


def _over(characters: str, text: str, found: str, what: str) -> str:
    """`found`, where the text has only such characters."""
    pattern = quote_duckdb_string(f"[{characters}]*")
    problem = error(f"{what} of letters for which the local engine is not proven equal to Spark")
    return f"CASE WHEN {text} IS NULL OR regexp_full_match({text}, {pattern}) THEN {found} ELSE {problem} END"


def encoded(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`encode` as UTF-8."""
    _ensure_utf8(scalars, arguments)
    return Typed(f"encode({scalars.text(arguments[0])})", BINARY)


def decoded(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`decode` of UTF-8. What is none raises, as in Spark."""
    _ensure_utf8(scalars, arguments)
    value = scalars.scalar(arguments[0])
    if value.data_type != BINARY:
        raise unsupported(f"decode of {value.data_type}")
    return Typed(f"decode({value.sql})", STRING)


def _ensure_utf8(scalars: Scalars, arguments: Sequence[Expression]) -> None:
    charset = constant(scalars, arguments[1], str, "a character set")
    if charset.lower() != "utf-8":
        raise unsupported(f"the character set {charset[:40]}")


def levenshtein(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`levenshtein`. DuckDB counts bytes."""
    first, second = map(scalars.text, arguments)
    both = f"({first} || {second})"
    return Typed(
        _over(r"\x{00}-\x{7F}", both, f"CAST(levenshtein({first}, {second}) AS INTEGER)", "levenshtein"), INTEGER
    )


def reverse(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`reverse` of text, and of an array."""
    value = scalars.scalar(arguments[0])
    if isinstance(value.data_type, ArrayType) and not holds_void(value.data_type):
        return Typed(f"list_reverse({value.sql})", value.data_type)
    if value.data_type != STRING:
        raise unsupported(f"reverse of {value.data_type}")
    text = scalars.text(arguments[0])
    return Typed(_over(r"\x{00}-\x{7F}", text, f"reverse({text})", "reverse"), STRING)


def initcap(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """Of words of ASCII letters between blanks; where words end otherwise is a matter of Unicode's version."""
    text = scalars.text(arguments[0])
    words = f"list_transform(string_split(lower({text}), ' '), lambda word: concat(upper(word[1]), substring(word, 2)))"
    return Typed(_over("A-Za-z ", text, f"array_to_string({words}, ' ')", "initcap"), STRING)


def substring_index(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    delimiter = constant(scalars, arguments[1], str, "substring_index")
    count = constant(scalars, arguments[2], int, "substring_index")
    if len(delimiter) != 1:
        raise unsupported("substring_index with a delimiter that is not a single character")
    text, quoted = scalars.text(arguments[0]), quote_duckdb_string(delimiter)
    bounds = f"1, {count}" if count >= 0 else f"{count}, -1"
    found = f"array_to_string(list_slice(string_split({text}, {quoted}), {bounds}), {quoted})"
    return Typed(f"CASE WHEN {text} IS NOT NULL THEN {found if count else quote_duckdb_string('')} END", STRING)


def overlaid(scalars: Scalars, arguments: Sequence[Expression]) -> Typed:
    """`overlay`: another text in place of as many characters, or of so many."""
    text, new = map(scalars.text, arguments[:2])
    start, *counts = (constant(scalars, argument, int, "overlay") for argument in arguments[2:])
    if start < 1:
        raise unsupported("overlay before the first character")
    count = counts[0] if counts and counts[0] >= 0 else f"length({new})"
    return Typed(f"(substring({text}, 1, {start - 1}) || {new} || substring({text}, {start} + {count}))", STRING)


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
