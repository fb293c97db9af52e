"""Random expressions of Spark SQL, made by a grammar of types over the columns there are."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from delta_orch.protocol.arrow_building import schema_from_arrow

CLONE, PATH, PARQUET, CONVERTED = "{clone}", "{path}", "{parquet}", "{converted}"
"""Beside the table: a clone of it, where the table lies, and files that become a table, before and after."""


@dataclass(frozen=True)
class Leaf:
    """A column or a field of one: its spelling and its type."""

    sql: str
    type: pa.DataType


_OF_ALL = (
    "coalesce({k}, {k})", "nullif({k}, {k})", "if({bool}, {k}, {k})", "CASE WHEN {bool} THEN {k} ELSE {k} END",
    "CASE WHEN {bool} THEN {k} WHEN {bool} THEN {k} END", "nvl({k}, {k})", "nvl2({any}, {k}, {k})",
    "greatest({k}, {k})", "least({k}, {k}, {k})", "CASE {int} WHEN 1 THEN {k} WHEN {int} THEN {k} ELSE NULL END",
)  # fmt: skip
_COMPARED = (
    "{k} {op} {k}", "{k} {op} {k}", "{k} <=> {k}", "{k} IN ({k}, {k})", "{k} NOT IN ({k}, NULL)",
    "{k} BETWEEN {k} AND {k}", "{k} IS DISTINCT FROM {k}", "{k} IS NULL",
)  # fmt: skip
_ATOMS = ("int", "dec", "flt", "str", "date", "ts", "ntz", "bool", "bin")
_GROUPS = {"num": ("int", "dec", "flt"), "moment": ("date", "ts", "ntz"), "any": _ATOMS}
_WORDS = {"op": ("=", "<", ">", "<=", ">=", "<>", "!="), "math": ("+", "-", "*")}
_TYPES = {"int": ("TINYINT", "SMALLINT", "INT", "BIGINT"), "dec": ("DECIMAL(10, 2)", "DECIMAL(5, 1)"),
          "flt": ("DOUBLE", "FLOAT"), "str": ("STRING",), "date": ("DATE",), "ts": ("TIMESTAMP",),
          "ntz": ("TIMESTAMP_NTZ",), "bool": ("BOOLEAN",), "bin": ("BINARY",)}  # fmt: skip
CONSTANTS = {
    "int": ("0", "1", "2", "-3", "7", "2Y", "3S", "5L", "300", "127Y", "2147483647", "-9223372036854775808"),
    "dec": ("1.5", "0.1", "-2.25", "100.00", "1.0", "2BD", ".5", "99999999.99", "1e2BD", "12345678901234567890.5"),
    "flt": ("1.5D", "0.1D", "1e3", "2.5F", "-0.0D", "CAST('NaN' AS DOUBLE)", "1e308", "double('-inf')", "3.4e38F"),
    "str": (
        "'a'",
        "''",
        "'b c'",
        "'3'",
        "'2024-02-29'",
        "'Z'",
        "'1.5'",
        "'x%'",
        '"dq"',
        "'it''s'",
        "r'a\\b'",
        "'\\u0061\\n'",
        "'50%_'",
        "' 7 '",
        "'a' 'b'",
    ),
    "date": ("DATE '2024-02-29'", "DATE '2024-03-01'", "DATE'2024-2-9'", "DATE '0001-01-01'"),
    "ts": (
        "TIMESTAMP '2024-02-28 06:00:00'",
        "TIMESTAMP '2024-02-29 00:00:00.5'",
        "TIMESTAMP_LTZ '2024-02-28'",
        "TIMESTAMP '2024-02-28 06:00:00+02:00'",
        "TIMESTAMP '2024-02-28T06:00:00Z'",
    ),
    "ntz": ("TIMESTAMP_NTZ '2024-02-28 18:00:00'", "TIMESTAMP_NTZ '1600-01-01 00:00:00'"),
    "bool": ("true", "false"),
    "bin": ("X'61'", "X''", "X'6'", "X'00ff'"),
    "ints": ("array(1, 2, NULL)", "array(3L)"),
    "strs": ("array('x', 'y')", "array('', NULL)"),
    "map": ("map('k', 1L)",),
}
RULES: dict[str, tuple[str, ...]] = {
    "bool": (
        "{num} {op} {num}", "{bool} AND {bool}", "{bool} OR {bool}", "NOT ({bool})", "{str} LIKE 'a%'",
        "{str} LIKE '%c_'", "{str} RLIKE '^[a-c]'", "isnan({flt})", "({any}) IS NULL", "({any}) IS NOT NULL",
        "{moment} {op} {moment}", "({int}, {str}) = ({int}, {str})", "{int} IN ({num}, {num})",
        "array_contains({ints}, {int})", "exists({ints}, e -> e > {int})", "startswith({str}, 'a')",
        "contains({str}, {str})", "map_contains_key({map}, 'k')", "{str} {op} {date}", "{int} = {str}",
        "{num} BETWEEN {num} AND {num}", "({bool}) IS TRUE", "{str} ILIKE 'A%'", "{ints} = {ints}",
        "named_struct('q', {int}) <=> named_struct('q', {int})", "{dec} {op} {flt}", "{ts} = {date}",
        "{str} LIKE '%#%%' ESCAPE '#'", "{str} LIKE ANY ('a%', '_', NULL)", "{str} NOT LIKE '%\\\\_'", "{any} <=> NULL",
        "{str} LIKE ALL ('%b%', 'b%')", "{any} = NULL", "{int} NOT BETWEEN {int} AND NULL", "NULL IN ({int}, 1)",
        "array_contains({strs}, NULL)", "endswith({str}, 'c')", "{str} COLLATE UTF8_BINARY = {str}", "!({bool})",
        "forall({ints}, e -> e IS NOT NULL)", "arrays_overlap({ints}, {ints})", "{bool} = {bool}", "{strs} <=> {strs}",
        "{date} BETWEEN {ts} AND {ntz}", "({date}, {int}) IN (({date}, 1), ({date}, {int}))", "bool({int})",
    ),
    "int": (
        "{int} {math} {int}", "{int} % 7", "{int} DIV 3", "-({int})", "abs({int})", "length({str})", "size({ints})",
        "year({moment})", "month({date})", "day({ts})", "hour({ts})", "dayofweek({date})", "quarter({moment})",
        "datediff({date}, {date})", "instr({str}, 'a')", "CAST({int} AS {tint})", "CAST({bool} AS INT)",
        "{int} & {int}",
        "pmod({int}, 5)", "sign({int})", "CAST({dec} AS INT)", "floor({dec})", "ceil({dec})", "ascii({str})",
        "try_cast({str} AS INT)", "{ints}[0]", "element_at({map}, 'k')", "unix_timestamp({ts})", "bit_length({str})",
        "size({map})", "cardinality({strs})", "round({int}, 0)", "array_position({ints}, {int})", "weekday({date})",
        "aggregate({ints}, 0L, (acc, x) -> acc + coalesce(x, 0))", "extract(DOY FROM {date})", "array_max({ints})",
        "try_add({int}, {int})", "octet_length({bin})", "CAST({flt} AS BIGINT)", "mod({int}, 3)", "{int} | 1", "~{int}",
        "levenshtein({str}, 'ab')", "months_between({date}, {date})", "date_part('MONTH', {date})", "{int}::BIGINT",
        "{int} ^ 3", "positive({int})", "element_at({ints}, 1)", "try_element_at({ints}, 2)", "get({ints}, {int} % 2)",
        "locate('b', {str})", "locate('b', {str}, 2)", "position('a' IN {str})", "regexp_count({str}, '[a-c]')",
        "find_in_set({str}, 'a,b c')", "try_subtract({int}, {int})", "try_multiply({int}, {int})", "char_length({str})",
        "timestampdiff(HOUR, {ts}, {ts})", "datediff({ts}, {date})", "unix_date({date})", "unix_micros({ts})",
        "array_size({strs})", "array_min({ints})", "int({dec})", "bigint({str})", "shiftleft({int}, 1)", "{int} >> 1",
        "if({bool}, {int}, NULL)", "decode({int}, 1, 10, 2, 20, 0)", "extract(SECOND FROM {ts})", "nullifzero({int})",
        "weekofyear({date})", "dayofyear({ts})", "minute({ntz})", "coalesce({int}, {dec})",
    ),
    "dec": (
        "{dec} {math} {dec}", "{dec} {math} {int}", "{dec} / 4", "-({dec})", "abs({dec})", "round({dec}, 1)",
        "CAST({int} AS DECIMAL(10, 2))", "CAST({dec} AS {tdec})", "{dec} % 3", "CAST({str} AS DECIMAL(12, 3))",
        "{int} * 1.5", "{int} / 2.0", "NULL / 1.5", "try_cast({str} AS DECIMAL(5, 2))", "bround({dec}, 1)",
        "CAST({flt} AS DECIMAL(20, 5))", "CAST({dec} AS DECIMAL(38, 10))", "CAST({int} AS DECIMAL(38, 0)) * {dec}",
        "{dec} / {dec}", "{dec} DIV 2", "pmod({dec}, 3)", "round({dec}, -1)", "ceil({dec}, 1)", "floor({dec}, 1)",
        "CAST({bool} AS DECIMAL(3, 1))", "{dec} / {int}", "try_add({dec}, {dec})", "abs({dec} - {int})",
    ),
    "flt": (
        "{flt} {math} {flt}", "{flt} {math} {int}", "{int} / 2", "{int} / {int}", "-({flt})", "abs({flt})",
        "CAST({num} AS DOUBLE)", "CAST({int} AS FLOAT)", "nanvl({flt}, {flt})", "sqrt(abs({int}))", "{dec} * {flt}",
        "CAST('1.5' AS DOUBLE)", "round({flt}, 1)", "{flt} % 2", "try_divide({int}, {int})", "{flt} / 2",
        "NULL * {flt}",
        "'1' + {flt}", "{str} * 2", "{dec} / {flt}", "float({str})", "double({dec})", "try_cast({str} AS DOUBLE)",
        "CAST({dec} AS FLOAT)", "try_divide({dec}, 2D)", "{flt} DIV 2", "pmod({flt}, 3)", "CAST({ts} AS DOUBLE)",
    ),
    "str": (
        "upper({str})", "lower({str})", "trim({str})", "concat({str}, {str})", "{str} || {any}",
        "substring({str}, 1, 2)",
        "CAST({int} AS STRING)", "CAST({date} AS STRING)", "CAST({dec} AS STRING)", "CAST({bool} AS STRING)",
        "replace({str}, 'a', 'b')", "lpad({str}, 3, 'x')", "concat_ws('-', {str}, {str})", "split({str}, ' ')[0]",
        "reverse({str})", "date_format({moment}, 'yyyy-MM')", "hex({bin})", "repeat({str}, 2)", "left({str}, 2)",
        "initcap({str})", "regexp_replace({str}, '[0-9]', '#')", "CAST({ts} AS STRING)", "array_join({strs}, ',')",
        "md5({str})", "regexp_extract({str}, '([a-z]+)', 1)", "substring_index({str}, ' ', 1)",
        "translate({str}, 'ab', 'x')",
        "CAST({bin} AS STRING)", "{strs}[0]", "right({str}, 1)", "base64({bin})", "overlay({str} PLACING 'q' FROM 1)",
        "CAST({ntz} AS STRING)", "format_number({dec}, 1)", "soundex({str})", "monthname({date})",
        "CAST({flt} AS STRING)", "rpad({str}, 2)", "trim(LEADING 'a' FROM {str})", "substr({str}, -2)", "btrim({str})",
        "regexp_replace({str}, '([a-z])(.)', '$2$1')", "regexp_substr({str}, '[b-z]+')", "split_part({str}, ' ', 2)",
        "overlay({str}, 'zz', 2, 1)", "sha1({str})", "sha2({str}, 256)", "concat_ws(',', {strs}, {str})",
        "array_join({strs}, '-', 'none')", "element_at({strs}, -1)", "get({strs}, 0)", "substring({str} FROM 2 FOR 1)",
        "date_format({ts}, 'yyyyMMdd HH:mm')", "from_unixtime({int})", "concat({str}, NULL)", "string({any})",
        "nullif({str}, '')", "elt(1, {str}, {str})", "lpad({str}, 0)", "dayname({date})", "typeof({any})",
        "CAST({ints} AS STRING)", "decode({bin}, 'UTF-8')", "to_json(named_struct('q', {int}))", "char(97)",
    ),
    "date": (
        "CAST({moment} AS DATE)", "date_add({date}, 3)", "date_sub({date}, {int} % 9)", "last_day({date})",
        "trunc({date}, 'MM')", "to_date({ts})", "{date} + INTERVAL 1 DAY", "add_months({date}, 1)",
        "to_date('2024-02-30', 'yyyy-MM-dd')", "make_date(2024, 2, 1 + pmod({int}, 28))", "next_day({date}, 'MO')",
        "CAST('2024-02-29' AS DATE)", "try_cast({str} AS DATE)", "{date} - INTERVAL 1 MONTH", "{date} + {int}",
        "{date} + INTERVAL '1' WEEK", "{date} + INTERVAL '1-2' YEAR TO MONTH", "INTERVAL 2 DAYS + {date}", "{date} - 1",
        "try_to_date({str})", "date_trunc('MONTH', {date})::DATE", "date_from_unix_date({int} % 99)", "date({str})",
        "dateadd(DAY, {int} % 9, {date})", "trunc({ts}, 'YEAR')", "array_max(array({date}, {date}))",
    ),
    "ts": (
        "CAST({moment} AS TIMESTAMP)", "{ts} + INTERVAL 1 HOUR", "date_trunc('DAY', {ts})",
        "{ts} - INTERVAL 90 MINUTES",
        "timestamp_seconds({int})", "date_trunc('MONTH', {date})", "to_timestamp({str})", "CAST({date} AS TIMESTAMP)",
        "timestampadd(HOUR, 2, {ts})", "{ts} + INTERVAL '1 02:03:04.5' DAY TO SECOND", "try_cast({str} AS TIMESTAMP)",
        "{ts} - INTERVAL 1 HOUR 30 MINUTES", "{ts} + INTERVAL 1 MONTH", "try_to_timestamp({str})", "timestamp({date})",
        "timestamp_millis({int})", "to_timestamp('29/02/2024', 'dd/MM/yyyy')", "{ts} + INTERVAL '0.5' SECOND",
        "CAST({int} AS TIMESTAMP)", "make_timestamp(2024, 2, 29, 1, 2, 3.5)", "date_trunc('WEEK', {ts})",
    ),
    "ntz": ("CAST({moment} AS TIMESTAMP_NTZ)", "{ntz} + INTERVAL 1 DAY", "date_trunc('HOUR', {ntz})",
            "{ntz} - INTERVAL 2 HOURS", "to_timestamp_ntz({str})", "greatest({ntz}, {ntz})", "{ntz} + INTERVAL 1 YEAR"),
    "bin": ("CAST({str} AS BINARY)", "unhex(hex({bin}))", "concat({bin}, {bin})", "encode({str}, 'UTF-8')"),
    "ints": (
        "array({int}, {int})", "array({int}, NULL)", "transform({ints}, x -> x + 1)", "filter({ints}, x -> x > {int})",
        "sort_array({ints})", "array_distinct({ints})", "sequence(1, 3)", "slice({ints}, 1, 1)", "map_values({map})",
        "concat({ints}, {ints})", "array_union({ints}, {ints})", "reverse({ints})", "array_remove({ints}, {int})",
        "array_sort({ints})", "sort_array({ints}, false)", "array_prepend({ints}, {int})", "CAST({strs} AS ARRAY<INT>)",
        "array_repeat({int}, 2)", "flatten(array({ints}, {ints}))", "array_intersect({ints}, {ints})", "array()",
        "if({bool}, {ints}, NULL)", "coalesce({ints}, array(1))", "zip_with({ints}, {ints}, (x, y) -> x + y)",
    ),
    "strs": (
        "split({str}, 'a')", "array({str}, {str})", "map_keys({map})", "transform({strs}, s -> upper(s))",
        "array_append({strs}, {str})", "array_except({strs}, {strs})", "array_compact({strs})",
        "regexp_extract_all({str}, '([a-z])', 1)", "filter({strs}, (s, i) -> i > 0)", "CAST({ints} AS ARRAY<STRING>)",
        "split({str}, '[ab]')", "split({str}, ' ', 2)", "sort_array({strs}, false)", "array(NULL, {str})",
    ),
    "map": ("map('k', {int})", "map('k', {int}, 'l', NULL)", "map_filter({map}, (k, v) -> v > 0)",
            "map_from_arrays(array('q'), array({int}))", "map_concat({map}, map('zz', 1L))", "str_to_map({str})",
            "transform_values({map}, (k, v) -> v + 1)", "map_from_entries(array(struct('k', {int})))", "map()",
            "if({bool}, {map}, NULL)", "transform_keys({map}, (k, v) -> upper(k))"),
}  # fmt: skip
_HOLE = re.compile(r"\{(\w+)\}")
DEPTH = 3


def kind_of(data_type: pa.DataType) -> str | None:
    """The grammar's name of a type, None where it has none."""
    if pa.types.is_list(data_type):
        return {"int": "ints", "str": "strs"}.get(kind_of(data_type.value_type) or "")
    if pa.types.is_map(data_type):
        kinds = (kind_of(data_type.key_type), kind_of(data_type.item_type))
        return "map" if kinds == ("str", "int") else None
    if pa.types.is_timestamp(data_type):
        return "ts" if data_type.tz else "ntz"
    tests = {"int": pa.types.is_integer, "dec": pa.types.is_decimal, "flt": pa.types.is_floating,
             "str": pa.types.is_string, "date": pa.types.is_date, "bool": pa.types.is_boolean,
             "bin": pa.types.is_binary}  # fmt: skip
    return next((kind for kind, test in tests.items() if test(data_type)), None)


def leaves(schema: pa.Schema, alias: str = "") -> list[Leaf]:
    """The columns, and fields of structs, as expressions name them."""
    found: list[Leaf] = []
    todo = [(f"{alias}{quoted(field.name)}", field.type) for field in schema]
    while todo:
        sql, data_type = todo.pop(0)
        found.append(Leaf(sql, data_type))
        if pa.types.is_struct(data_type):
            todo += [(f"{sql}.{quoted(field.name)}", field.type) for field in data_type]
        if pa.types.is_list(data_type) and pa.types.is_struct(data_type.value_type):
            todo.append((f"get({sql}, 0)", data_type.value_type))
            found += [Leaf(f"{sql}.{quoted(field.name)}", pa.list_(field.type)) for field in data_type.value_type]
        if pa.types.is_map(data_type):
            key = "'k'" if pa.types.is_string(data_type.key_type) else "1"
            todo.append((f"{sql}[{key}]", data_type.item_type))
    return found


def quoted(name: str) -> str:
    return name if re.fullmatch(r"[a-z]\w*", name) else "`" + name.replace("`", "``") + "`"


def expression(rng: random.Random, among: Sequence[Leaf], kind: str, depth: int = DEPTH) -> str:
    """An expression of a kind of type, or nearly: now and then a part is of another kind, or null."""
    kind = rng.choice(_GROUPS[kind]) if kind in _GROUPS else kind
    if kind in _ATOMS and rng.random() < 0.03:
        kind = rng.choice(_ATOMS)
    if depth <= 0 or rng.random() < 0.25:
        return _leaf(rng, among, kind)
    rules = RULES.get(kind, ())
    if rng.random() < 0.25 and kind in _ATOMS:
        rules = _OF_ALL
    if kind == "bool" and rng.random() < 0.4:
        rules, kind = _COMPARED, rng.choice(_ATOMS)

    def fill(match: re.Match[str]) -> str:
        hole = match[1]
        if hole in _WORDS:
            return rng.choice(_WORDS[hole])
        if hole[0] == "t" and hole[1:] in _TYPES:
            return rng.choice(_TYPES[hole[1:]])
        text = expression(rng, among, kind if hole == "k" else hole, depth - 1)
        return f"({text})" if " " in text and not re.match(r"^[\w]+\([^()]*\)$", text) else text

    return _HOLE.sub(fill, rng.choice(rules))


def _leaf(rng: random.Random, among: Sequence[Leaf], kind: str) -> str:
    columns = [leaf.sql for leaf in among if kind_of(leaf.type) == kind]
    if columns and rng.random() < 0.7:
        chosen = rng.choice(columns)
        return chosen.swapcase() if "'" not in chosen and "(" not in chosen and rng.random() < 0.05 else chosen
    return "NULL" if rng.random() < 0.06 and kind in _ATOMS else rng.choice(CONSTANTS[kind])


def condition(rng: random.Random, among: Sequence[Leaf], depth: int = 2) -> str:
    """A predicate."""
    return expression(rng, among, "bool", depth)


def constant(rng: random.Random, data_type: pa.DataType, strict: bool = False) -> str:
    """A constant of a column's type, or one that is cast to it. `strict`: one that fits it, however narrow it is."""
    if rng.random() < 0.12:
        return "NULL"
    if pa.types.is_list(data_type):
        parts = [constant(rng, data_type.value_type, strict) for _ in range(rng.randint(1, 2))]
        return f"array({', '.join(parts)})"
    if pa.types.is_map(data_type):
        key = rng.choice(CONSTANTS[kind_of(data_type.key_type) or "str"][:3])
        return f"map({key}, {constant(rng, data_type.item_type, strict)})"
    if pa.types.is_struct(data_type):
        parts = [f"'{field.name}', {constant(rng, field.type, strict)}" for field in data_type]
        return f"named_struct({', '.join(parts)})"
    kind = kind_of(data_type) or "str"
    if strict:
        (column,) = schema_from_arrow(pa.schema([("of", data_type)]))
        return f"CAST({rng.choice(CONSTANTS[kind][:4])} AS {column.data_type})"
    return rng.choice(CONSTANTS[kind if rng.random() < 0.97 else rng.choice(("int", "str", "dec"))])
