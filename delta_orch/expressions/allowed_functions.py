"""The functions that an expression from a table's metadata may call.

The result of each depends only on its arguments. No function reads a file, the environment or the session's state, runs
foreign code, raises an error on request, or produces rows. Other functions are refused by name.
"""

from __future__ import annotations

import re

from delta_orch.expressions.grammar import CLOCKS, UNITS
from delta_orch.expressions.tokens import OTHER_FUNCTION, Refused


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TEXT = """
    ascii base64 bit_length btrim char char_length character_length chr concat concat_ws contains crc32 elt
    encode decode endswith find_in_set format_number format_string hash hex initcap instr is_valid_utf8 lcase left len
    length levenshtein locate lower lpad ltrim make_valid_utf8 md5 octet_length overlay parse_url position printf
    regexp regexp_count regexp_extract regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr repeat
    replace reverse right rlike rpad rtrim sentences sha sha1 sha2 soundex split split_part startswith substr substring
    substring_index to_binary to_char to_number to_varchar translate trim try_to_binary try_to_number ucase unbase64
    unhex upper url_decode url_encode xxhash64
"""
_NUMBERS = """
    abs acos acosh asin asinh atan atan2 atanh bin bit_count bit_get bround cbrt ceil ceiling conv cos cosh cot csc
    degrees div e exp expm1 factorial floor getbit greatest hypot isnan least ln log log10 log1p log2 mod nanvl negative
    pi pmod positive pow power radians rint round sec shiftleft shiftright shiftrightunsigned sign signum sin sinh sqrt
    tan tanh try_add try_divide try_mod try_multiply try_subtract width_bucket zeroifnull nullifzero
"""
_CHOICES = "coalesce if ifnull isnotnull isnull nullif nvl nvl2 equal_null"
_DATES = """
    add_months convert_timezone date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc dateadd
    datediff datepart day dayname dayofmonth dayofweek dayofyear extract from_unixtime from_utc_timestamp hour last_day
    make_date make_dt_interval make_interval make_timestamp make_timestamp_ltz make_timestamp_ntz make_ym_interval
    minute month monthname months_between next_day quarter second timestamp_micros timestamp_millis timestamp_seconds
    timestampadd timestampdiff to_date to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp to_utc_timestamp
    trunc try_make_timestamp try_to_date try_to_timestamp unix_date unix_micros unix_millis unix_seconds unix_timestamp
    weekday weekofyear year
"""
_NESTED = """
    array array_append array_compact array_contains array_distinct array_except array_insert array_intersect array_join
    array_max array_min array_position array_prepend array_remove array_size array_sort array_union arrays_overlap
    arrays_zip cardinality element_at flatten get map map_concat map_contains_key map_entries map_from_arrays
    map_from_entries map_keys map_values named_struct size slice sort_array str_to_map struct try_element_at
"""
_JSON = """
    from_json get_json_object is_variant_null json_array_length json_object_keys parse_json schema_of_json
    schema_of_variant to_json to_variant_object try_parse_json try_variant_get variant_get
"""
_CASTS = "bigint binary boolean date decimal double float int smallint string timestamp tinyint typeof"

FUNCTIONS_BY_KIND = {
    "Text": _words(_TEXT),
    "Numbers": _words(_NUMBERS),
    "Choices": _words(_CHOICES),
    "Dates and times": _words(_DATES),
    "Nested values": _words(_NESTED),
    "JSON and variants": _words(_JSON),
    "Casts": _words(_CASTS),
}
"""The functions below, as docs/expressions.md lists them."""

ALLOWED_FUNCTIONS = frozenset[str]().union(*FUNCTIONS_BY_KIND.values())
"""In lower case, without those that have a syntax of their own: CAST, TRY_CAST, CASE."""

CLOCK_FUNCTIONS = CLOCKS - {"unix_timestamp"}
"""Functions of the clock, which only a default may call. Parentheses may be left out after those that begin with
`current` or `local`."""

WITHOUT_PARENTHESES = _words("""
    current_catalog current_database current_date current_path current_schema current_time current_timestamp
    current_timezone current_user grouping__id localtime localtimestamp session_user user
""")
"""Names that Spark takes for a function where no column has them, in backticks, too."""

UNSTABLE_FUNCTIONS = _words("""
    current_timezone input_file_block_length input_file_block_start input_file_name java_method
    monotonically_increasing_id rand randn random randstr reflect shuffle spark_partition_id try_reflect uniform uuid
    version
""") | (CLOCK_FUNCTIONS | WITHOUT_PARENTHESES)
"""Functions whose answer is not fixed by their arguments."""

MAX_LENGTH = 65_535
"""The greatest length of a function's value, in characters. A column's value counts as one character."""
_MAX_SCALE = 100
BOUNDED_FUNCTIONS = {
    "array_insert": MAX_LENGTH, "bround": _MAX_SCALE, "ceil": _MAX_SCALE, "ceiling": _MAX_SCALE, "floor": _MAX_SCALE,
    "format_number": _MAX_SCALE, "lpad": MAX_LENGTH, "repeat": MAX_LENGTH, "round": _MAX_SCALE, "rpad": MAX_LENGTH,
}  # fmt: skip
"""Functions whose second argument is a length, a position or a scale, and the greatest constant that it may be."""
PADDING_FUNCTIONS = frozenset({"lpad", "rpad"})
FORMATTING_FUNCTIONS = frozenset({"format_string", "printf"})
_MAX_WIDTH = 99

_GROWTH = {
    "base64": 2, "bin": 64, "conv": 64, "encode": 4, "hex": 8, "sentences": 16, "to_json": 16, "url_encode": 12,
    "xxhash64": 20,
}  # fmt: skip
"""By how many times the value of a function may be longer than its arguments. Other values are not longer."""


def grown_size(function: str, sizes: list[int]) -> int:
    """A bound of the length of a function's value, from those of its arguments."""
    match function, sizes:
        case "replace" | "regexp_replace", [subject, _, by, *_]:
            return subject * max(by + (function == "regexp_replace"), 1)
        case "concat_ws", [separator, *texts]:
            return sum(texts) * (1 + separator)
        case "array_join" | "levenshtein", [first, *others]:
            return first * (1 + sum(others))
    return max(1, sum(sizes)) * _GROWTH.get(function, 1)


_FIELDS = "y yr yrs yearofweek qtr mon mons w d doy dow dow_iso dayofweek dayofweek_iso h hr hrs m min mins s sec secs"
EXTRACTED = UNITS | _words(_FIELDS.upper())


def not_allowed(name: str, *, is_clock: bool = False) -> Refused:
    """The refusal of a function by its name."""
    if is_clock:
        return Refused(f"calls the function {name}: its answer is not fixed", "Compute the value before the write")
    why = ": its answer is not fixed" if name in UNSTABLE_FUNCTIONS else ", which is not allowed there"
    return Refused(f"calls the function {name[:100]}{why}", OTHER_FUNCTION)


def formatted_size(template: object, sizes: list[int]) -> int:
    """A bound of the length of what `format_string` makes. Raises Refused: The format is no constant, pads too far, or
    tells times, which the time zone of the process decides."""
    if not isinstance(template, str) or re.search(r"%[^A-Za-z%]*(?:[0-9]{3}|[tT])", template):
        raise Refused(f"formats with a text that is not a constant, tells times, or has widths over {_MAX_WIDTH}")
    # No number is longer than a double of 309 digits and its fraction.
    return len(template) + template.count("%") * (512 + max(sizes))


GENERATORS = _words("explode explode_outer inline inline_outer posexplode posexplode_outer stack")
AGGREGATES = _words("""
    any any_value approx_count_distinct approx_percentile array_agg avg bit_and bit_or bit_xor
    bitmap_construct_agg bitmap_or_agg bool_and bool_or collect_list collect_set corr count count_if count_min_sketch
    covar_pop covar_samp every first first_value grouping grouping_id histogram_numeric hll_sketch_agg hll_union_agg
    kurtosis last last_value listagg max max_by mean median min min_by mode percentile percentile_approx
    percentile_cont percentile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy
    regr_syy skewness some std stddev stddev_pop stddev_samp string_agg sum try_avg try_sum var_pop
    var_samp variance
""")
WINDOW_FUNCTIONS = _words("cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number")


def foreign_function(name: str, arguments: int) -> tuple[str, bool] | None:
    """Why an expression of one row must not call a function, and whether its answer is not fixed. None if it may."""
    if name in UNSTABLE_FUNCTIONS:
        return f"the function {name}", True
    if name == "unix_timestamp" and not arguments:
        return "the current time", True
    if name in GENERATORS:
        return f"the generator function {name}", False
    if name in AGGREGATES:
        return "an aggregate function", False
    return ("a window function", False) if name in WINDOW_FUNCTIONS else None
