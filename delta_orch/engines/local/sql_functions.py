"""Functions of Spark SQL in DuckDB's SQL that are no operators; `sql_scalars` lists them among its rules.

Each is equal to Spark's for the values that it takes. Values for which it is not raise while the query runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from delta_orch.engines.local import sql_dates, sql_text
from delta_orch.engines.local.sql_arguments import (
    ARGUMENTS,
    Scalars,
    constant,
    double_sql,
)
from delta_orch.engines.local.sql_casts import cast, error, widen
from delta_orch.engines.local.sql_types import Typed, common_type, is_atomic, unsupported
from delta_orch.expressions.parse_literals import Tree
from delta_orch.expressions.spark_literals import INTEGRAL_RANGES
from delta_orch.expressions.to_sql import duckdb_type
from delta_orch.protocol.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    STRING,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
)

# --- functions that are a template over their arguments: what they take, what they are, and what they give

_MONTHS = "((year({0}) * 12 + month({0})) - (year({1}) * 12 + month({1})))"
_SECONDS = "(day({0}) - day({1})) * 86400 + (hour({0}) - hour({1})) * 3600 + (minute({0}) - minute({1})) * 60"
_SECONDS += " + second({0}) - second({1})"
_MONTHS_BETWEEN = (
    "CASE WHEN day({0}) = day({1}) OR (last_day({0}) = {0}::DATE AND last_day({1}) = {1}::DATE) "
    f"THEN CAST({_MONTHS} AS DOUBLE) "
    f"ELSE floor((CAST({_MONTHS} AS DOUBLE) + CAST({_SECONDS} AS DOUBLE) / 2678400::DOUBLE) * 1e8 + 0.5::DOUBLE) / 1e8 "
    "END"
)
_SUBSTRING = "CASE WHEN {0} IS NULL OR {1} IS NULL THEN NULL WHEN {1} <= 0 THEN '' ELSE substring({0}, %s) END"
_TEMPLATES: dict[str, tuple[tuple[str, ...], str, DataType]] = {
    "isnull": (("any",), "({0} IS NULL)", BOOLEAN),
    "isnotnull": (("any",), "({0} IS NOT NULL)", BOOLEAN),
    "md5": (("bytes",), "md5({0})", STRING),
    "sha": (("bytes",), "sha1({0})", STRING),
    "sha1": (("bytes",), "sha1({0})", STRING),
    "last_day": (("day",), "last_day({0})", DATE),
    "dayofweek": (("day",), "CAST(dayofweek({0}) + 1 AS INTEGER)", INTEGER),
    "weekday": (("day",), "CAST(isodow({0}) - 1 AS INTEGER)", INTEGER),
    "dayofyear": (("day",), "CAST(dayofyear({0}) AS INTEGER)", INTEGER),
    "weekofyear": (("day",), "CAST(weekofyear({0}) AS INTEGER)", INTEGER),
    "unix_date": (("day",), "CAST({0} - DATE '1970-01-01' AS INTEGER)", INTEGER),
    "date_from_unix_date": (("int",), "CAST(DATE '1970-01-01' + {0} AS DATE)", DATE),
    "make_date": (("int", "int", "int"), "make_date({0}, {1}, {2})", DATE),
    "add_months": (("day", "int"), "CAST({0} + to_months({1}) AS DATE)", DATE),
    "months_between": (("moment", "moment"), _MONTHS_BETWEEN, DOUBLE),
    "ascii": (("text",), "CAST(ascii({0}) AS INTEGER)", INTEGER),
    "octet_length": (("bytes",), "CAST(octet_length({0}) AS INTEGER)", INTEGER),
    "bit_length": (("bytes",), "CAST(octet_length({0}) * 8 AS INTEGER)", INTEGER),
    "repeat": (("text", "int"), "repeat({0}, {1})", STRING),
    "left": (("text", "int"), _SUBSTRING % "1, {1}", STRING),
    "right": (("text", "int"), _SUBSTRING % "greatest(length({0}) - {1} + 1, 1)", STRING),
    "replace": (("text", "text", "text"), "replace({0}, {1}, {2})", STRING),
    "instr": (("text", "text"), "CAST(instr({0}, {1}) AS INTEGER)", INTEGER),
    "locate": (("text", "text"), "CAST(instr({1}, {0}) AS INTEGER)", INTEGER),
    "sqrt": (("double",), "CASE WHEN {0} < 0 THEN CAST('nan' AS DOUBLE) ELSE sqrt({0}) END", DOUBLE),
}  # fmt: skip
_ALIASES = {"signum": "sign", "cardinality": "size", "array_size": "size", "datepart": "date_part",
            "to_unix_timestamp": "unix_timestamp"}  # fmt: skip


def named(scalars: Scalars, tree: Tree) -> Typed:
    """A function by the name that Spark gives it. Raises UnsupportedExpressionError for any other."""
    name = str(tree.this).lower()
    name = _ALIASES.get(name, name)
    arguments = list(tree.expressions)
    if name in _NAMED:
        return _NAMED[name](scalars, arguments)
    takes, template, gives = _TEMPLATES.get(name, ((), "", BOOLEAN))
    sqls = [ARGUMENTS[kind](scalars, argument) for kind, argument in zip(takes, arguments, strict=False)]
    if name == "replace" and len(arguments) == 2:
        sqls.append("''")
    if not takes or not template or len(sqls) != len(takes) or len(arguments) > len(takes):
        raise unsupported(f"the function {name[:100]}")
    return Typed(f"({template.format(*sqls)})", gives)


# --- numbers


def _rounded(scalars: Scalars, arguments: Sequence[Tree]) -> Typed:
    value = scalars.scalar(arguments[0])
    digits = constant(scalars, arguments[1], int, "round") if len(arguments) > 1 else 0
    kind = value.data_type
    if kind == STRING:
        value, kind = cast(value, DOUBLE), DOUBLE
    if kind in INTEGRAL_RANGES and digits >= 0:
        return Typed(value.sql, kind)
    if isinstance(kind, DecimalType) and digits >= 0:
        scale = min(kind.scale, digits)
        target = DecimalType(min(kind.precision - kind.scale + 1 + scale, 38), scale)
        return Typed(f"CAST({value.sql} AS {duckdb_type(target)})", target)
    if kind in (FLOAT, DOUBLE) and 0 <= digits <= 15:
        # By its shortest decimal, as Java does; a number this large has no fraction to round.
        exact = (
            f"CAST(CAST(CAST(CAST({value.sql} AS VARCHAR) AS DECIMAL(38,{digits})) AS VARCHAR) AS {duckdb_type(kind)})"
        )
        return Typed(f"CASE WHEN abs({value.sql}) < 1e16 THEN {exact} ELSE {value.sql} END", kind)
    raise unsupported(f"round of {kind} to {digits} digits")


def whole_number(scalars: Scalars, tree: Tree) -> Typed:
    """`floor` and `ceil`."""
    return _whole(type(tree).__name__.lower())(scalars, [tree.this])


def found_position(scalars: Scalars, tree: Tree) -> Typed:
    """`position`."""
    return Typed(f"CAST(instr({scalars.text(tree.this)}, {scalars.text(tree.args['substr'])}) AS INTEGER)", INTEGER)


def _whole(function: str) -> Callable[[Scalars, Sequence[Tree]], Typed]:
    def whole(scalars: Scalars, arguments: Sequence[Tree]) -> Typed:
        value = scalars.scalar(arguments[0])
        if value.data_type in INTEGRAL_RANGES:
            return widen(value, LONG)
        if isinstance(value.data_type, DecimalType):
            kind = value.data_type
            target = DecimalType(max(kind.precision - kind.scale + 1, 1), 0)
            if target.precision > 38:
                raise unsupported(f"{function} of {kind}")
            return Typed(f"CAST({function}({value.sql}) AS {duckdb_type(target)})", target)
        if value.data_type not in (FLOAT, DOUBLE):
            raise unsupported(f"{function} of {value.data_type}")
        return Typed(f"CAST({function}(CAST({value.sql} AS DOUBLE)) AS BIGINT)", LONG)

    return whole


def _sign(scalars: Scalars, arguments: Sequence[Tree]) -> Typed:
    value = double_sql(scalars, arguments[0])
    return Typed(f"CASE WHEN isnan({value}) OR {value} = 0 THEN {value} WHEN {value} > 0 THEN 1::DOUBLE "
                 f"WHEN {value} < 0 THEN -1::DOUBLE END", DOUBLE)  # fmt: skip


def _nanvl(scalars: Scalars, arguments: Sequence[Tree]) -> Typed:
    first, second = (double_sql(scalars, argument) for argument in arguments)
    return Typed(f"CASE WHEN isnan({first}) THEN {second} ELSE {first} END", DOUBLE)


# --- nested values


def _size(scalars: Scalars, arguments: Sequence[Tree]) -> Typed:
    value = scalars.scalar(arguments[0])
    if not isinstance(value.data_type, ArrayType | MapType):
        raise unsupported(f"size of {value.data_type}")
    return Typed(f"CAST(length({value.sql}) AS INTEGER)" if isinstance(value.data_type, ArrayType)
                 else f"CAST(cardinality({value.sql}) AS INTEGER)", INTEGER)  # fmt: skip


def _array_contains(scalars: Scalars, arguments: Sequence[Tree]) -> Typed:
    array, value = (scalars.scalar(argument) for argument in arguments)
    if not isinstance(array.data_type, ArrayType):
        raise unsupported(f"array_contains of {array.data_type}")
    kind = array.data_type.element_type
    if (
        not is_atomic(kind)
        or kind in (FLOAT, DOUBLE)
        or common_type(kind, value.data_type) != kind
        or (STRING in (kind, value.data_type) and kind != value.data_type)
    ):
        raise unsupported(f"array_contains of {array.data_type} and {value.data_type}")
    wanted = widen(value, kind).sql
    # A null in the array may be the value.
    absent = f"CASE WHEN list_count({array.sql}) = length({array.sql}) THEN FALSE END"
    found = f"list_contains({array.sql}, {wanted}) OR {absent}"
    return Typed(f"CASE WHEN {array.sql} IS NOT NULL AND {wanted} IS NOT NULL THEN {found} END", BOOLEAN)


def element(scalars: Scalars, tree: Tree) -> Typed:
    """`array[index]`, from zero, `map[key]`, and `element_at`, from one."""
    if len(tree.expressions) != 1:
        raise unsupported("several indexes of one array")
    return _element(scalars, [tree.this, tree.expressions[0]], base=tree.args.get("offset") or 0)


def _element(scalars: Scalars, arguments: Sequence[Tree], base: int) -> Typed:
    value, key = (scalars.scalar(argument) for argument in arguments)
    kind = value.data_type
    if isinstance(kind, MapType) and is_atomic(kind.key_type) and kind.key_type not in (FLOAT, DOUBLE):
        if key.data_type != kind.key_type and not (
            kind.key_type in INTEGRAL_RANGES and key.data_type in INTEGRAL_RANGES
        ):
            raise unsupported(f"a key of type {key.data_type} in {kind}")
        return Typed(f"{value.sql}[CAST({key.sql} AS {duckdb_type(kind.key_type)})]", kind.value_type)
    if not isinstance(kind, ArrayType) or key.data_type not in INTEGRAL_RANGES:
        raise unsupported(f"an element of {kind}")
    if base and (key.literal is None or key.literal.value < 1):
        raise unsupported("element_at from the end, or at an index that is no constant")
    position = f"(CAST({key.sql} AS BIGINT) + {1 - base})"
    problem = error("[INVALID_ARRAY_INDEX] The index is out of bounds")
    return Typed(f"CASE WHEN {value.sql} IS NULL OR {key.sql} IS NULL THEN NULL WHEN {position} BETWEEN 1 AND "
                 f"length({value.sql}) THEN {value.sql}[{position}] ELSE {problem} END", kind.element_type)  # fmt: skip


def second_unless_null(scalars: Scalars, tree: Tree) -> Typed:
    """`nvl2`."""
    then, otherwise = scalars.scalar(tree.args["true"]), scalars.scalar(tree.args["false"])
    kind = common_type(then.data_type, otherwise.data_type)
    test = scalars.scalar(tree.this).sql
    return Typed(
        f"CASE WHEN {test} IS NOT NULL THEN {widen(then, kind).sql} ELSE {widen(otherwise, kind).sql} END", kind
    )


_Function = Callable[[Scalars, Sequence[Tree]], Typed]


def _taking(least: int, most: int, function: _Function) -> _Function:
    def checked(scalars: Scalars, arguments: Sequence[Tree]) -> Typed:
        if not least <= len(arguments) <= most:
            raise unsupported(f"a function with {len(arguments)} arguments")
        return function(scalars, arguments)

    return checked


_NAMED: dict[str, _Function] = {
    "pmod": _taking(2, 2, lambda scalars, arguments: scalars.positive_remainder(*arguments)),
    "date_format": _taking(2, 2, sql_dates.date_format),
    "from_unixtime": _taking(1, 2, sql_dates.from_unixtime),
    "to_date": _taking(1, 2, sql_dates.to_date),
    "to_timestamp": _taking(2, 2, sql_dates.to_timestamp),
    "unix_timestamp": _taking(1, 2, sql_dates.unix_timestamp),
    "date_part": _taking(2, 2, lambda s, a: sql_dates.date_part(s, constant(s, a[0], str, "date_part"), a[1])),
    "concat_ws": _taking(1, 1000, sql_text.concat_ws),
    "lpad": _taking(2, 3, sql_text.padded("lpad")),
    "rpad": _taking(2, 3, sql_text.padded("rpad")),
    "sha2": _taking(2, 2, sql_text.sha2),
    "split_part": _taking(3, 3, sql_text.split_part),
    "translate": _taking(3, 3, sql_text.translate),
    "hex": _taking(1, 1, sql_text.hexadecimal),
    "regexp_like": _taking(2, 2, sql_text.regexp_like),
    "regexp_extract": _taking(2, 3, sql_text.regexp_extract),
    "regexp_replace": _taking(3, 3, sql_text.regexp_replace),
    "split": _taking(2, 2, sql_text.split),
    "round": _taking(1, 2, _rounded),
    "sign": _taking(1, 1, _sign),
    "nanvl": _taking(2, 2, _nanvl),
    "size": _taking(1, 1, _size),
    "array_contains": _taking(2, 2, _array_contains),
}
