"""Scalar expressions of Spark SQL in DuckDB's SQL, typed, from an allow-list.

Everything here is proven equal by differential tests against Spark (tests/property). What is not listed is refused:
transpiling is not equality. Sessions run in UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from delta_orch.engines.local import sql_dates, sql_functions, sql_nested, sql_operators, sql_text
from delta_orch.engines.local.sql_arguments import moment
from delta_orch.engines.local.sql_casts import (
    as_boolean,
    as_text,
    cast,
    choose,
    literal_value,
    null_of,
    try_cast,
    widen,
)
from delta_orch.engines.local.sql_operators import (
    cast_target,
    compare_with_literal,
    decimal_arithmetic,
    decimal_quotient,
    ensure_valid_pattern,
    guarded,
    in_order,
)
from delta_orch.engines.local.sql_types import (
    Typed,
    arithmetic_type,
    common_type,
    common_type_of,
    is_atomic,
    is_number,
    struct_of,
    unsupported,
)
from delta_orch.expressions.bounds import too_deep
from delta_orch.expressions.nodes import (
    And,
    Cast,
    Choice,
    Coerced,
    Column,
    Comparison,
    Expression,
    In,
    Literal,
    MakeStruct,
    Not,
    Opaque,
    Or,
    StartsWith,
)
from delta_orch.expressions.parse_literals import Tree, parse_literal
from delta_orch.expressions.spark_literals import INTEGRAL_RANGES
from delta_orch.expressions.spark_syntax import has_only, like_parts, syntax_of
from delta_orch.expressions.to_sql import (
    duckdb_type,
    print_duckdb,
    quote_duckdb_string,
    to_spark_sql,
)
from delta_orch.expressions.tree import is_opaque
from delta_orch.protocol.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    DataType,
    DecimalType,
    PrimitiveType,
)

_COMPARISONS = {"EQ": "=", "NEQ": "!=", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">=", "NullSafeEQ": "<=>"}
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_DAYS = (PrimitiveType("byte"), PrimitiveType("short"), INTEGER)
_MAX_CHARACTERS = 4_000_000


class Columns(Protocol):
    """What names mean where an expression stands."""

    def find(self, path: tuple[str, ...]) -> Typed:
        """The column of that name. Raises ColumnNotFoundError, InvalidExpressionError if it is ambiguous."""


class Scalars:
    """Translates expressions, and sqlglot's trees of those that are text; one instance for one place in a query."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def predicate(self, node: Expression) -> str:
        """A resolved predicate, in parentheses. Raises UnsupportedExpressionError outside the allow-list."""
        if isinstance(node, Not) and is_opaque(node):
            return f"(NOT {self.predicate(node.child)})"
        if isinstance(node, And | Or) and is_opaque(node):
            return in_order("AND" if isinstance(node, And) else "OR", [self.predicate(part) for part in node.children])
        return f"({print_duckdb(node, lambda column: self._columns.find(column.path).sql, self._evaluated)})"

    def _evaluated(self, node: Cast | Choice | MakeStruct | Opaque | Coerced) -> str:
        return as_boolean(self.value(node), lambda: to_spark_sql(node))

    def value(self, node: Expression) -> Typed:
        """A value or a resolved predicate with its type. Raises UnsupportedExpressionError outside the allow-list."""
        match node:
            case Column(path):
                return self._columns.find(path)
            case Literal():
                return literal_value(node)
            case Opaque():
                return self.scalar(syntax_of(node))
            case Cast(value, data_type):
                return cast(self.value(value), data_type)
            case Choice(branches):
                conditions = [self.predicate(when) for when, _ in branches]
                return choose(conditions, [self.value(then) for _, then in branches], Typed("NULL", VOID))
            case MakeStruct(fields):
                return struct_of([(name, self.value(value)) for name, value in fields])
            case Coerced(Comparison(op, left, right)):
                return self._compare(op, self.value(left), self.value(right))
            case Coerced(In(child, values)):
                return self._any_equal([self.value(child), *map(literal_value, values)])
            case Coerced(StartsWith(child, prefix)):
                text = as_text(self.value(child))
                return Typed(f"starts_with({text}, {quote_duckdb_string(prefix)})", BOOLEAN)
            case Coerced(predicate):
                return self.value(predicate)
        return Typed(self.predicate(node), BOOLEAN)

    def boolean(self, tree: Tree) -> str:
        """A predicate. Raises InvalidExpressionError if it is of another type."""
        return as_boolean(self.scalar(tree), lambda: tree.sql(dialect="spark"))

    def scalar(self, tree: Tree) -> Typed:
        """Tree expression. Raises UnsupportedExpressionError outside the allow-list."""
        if tree is None:
            raise unsupported("a function that lacks an argument")
        tree = tree.unnest()
        literal = parse_literal(tree)
        if literal is not None:
            return literal_value(literal)
        name = type(tree).__name__
        if name in _COMPARISONS and has_only(tree, *_BINARY):
            return self._compare(_COMPARISONS[name], self.scalar(tree.this), self.scalar(tree.expression))
        rule, arguments = _RULES.get(name, (None, ()))
        if rule is None or not has_only(tree, *arguments):
            raise unsupported(describe(tree))
        found = rule(self, tree)
        if len(found.sql) > _MAX_CHARACTERS:
            raise too_deep()  # some rules write an operand several times
        return found

    def column(self, tree: Tree) -> Typed:
        parts = tree.parts
        if not all(type(part).__name__ == "Identifier" for part in parts):
            raise unsupported(describe(tree))
        return self._columns.find(tuple(part.name for part in parts))

    # --- predicates

    def _compare(self, op: str, left: Typed, right: Typed) -> Typed:
        if left.literal is not None and right.literal is None:
            return self._compare(_FLIPPED.get(op, op), right, left)
        is_text = left.data_type == STRING and right.data_type not in (STRING, VOID)
        is_plain = is_atomic(left.data_type) and left.data_type != VOID and not is_text
        if right.literal is not None and left.literal is None and is_plain:
            return compare_with_literal(op, left, right)
        if op == "<=>" and VOID in (left.data_type, right.data_type):
            other = left if right.data_type == VOID else right
            return Typed(f"({other.sql} IS NULL)", BOOLEAN)
        kind = common_type(left.data_type, right.data_type)
        if kind == VOID:
            return Typed(null_of(BOOLEAN), BOOLEAN)
        if not is_atomic(kind):
            raise unsupported(f"a comparison of {kind}")
        operator = "IS NOT DISTINCT FROM" if op == "<=>" else op
        return Typed(f"({widen(left, kind).sql} {operator} {widen(right, kind).sql})", BOOLEAN)

    def logical(self, tree: Tree) -> Typed:
        operator = type(tree).__name__.upper()
        return Typed(in_order(operator, [self.boolean(tree.this), self.boolean(tree.expression)]), BOOLEAN)

    def negation(self, tree: Tree) -> Typed:
        return Typed(f"(NOT {self.boolean(tree.this)})", BOOLEAN)

    def test(self, tree: Tree) -> Typed:
        kind = type(tree.expression).__name__
        if kind == "Null":
            return Typed(f"({self.scalar(tree.this).sql} IS NULL)", BOOLEAN)
        if kind == "Boolean":
            value = "TRUE" if tree.expression.this else "FALSE"
            return Typed(f"({self.boolean(tree.this)} IS NOT DISTINCT FROM {value})", BOOLEAN)
        raise unsupported(describe(tree))

    def distinct(self, tree: Tree) -> Typed:
        return Typed(f"(NOT {self._compare('<=>', self.scalar(tree.this), self.scalar(tree.expression)).sql})", BOOLEAN)

    def equal_or_null(self, first: Tree, second: Tree) -> Typed:
        return self._compare("<=>", self.scalar(first), self.scalar(second))

    def membership(self, tree: Tree) -> Typed:
        if not tree.expressions:
            raise unsupported("IN with a subquery")
        return self._any_equal([self.scalar(value) for value in (tree.this, *tree.expressions)])

    def _any_equal(self, operands: list[Typed]) -> Typed:
        # Spark finds one common type for the value and the whole list.
        kinds = [operand.data_type for operand in operands]
        if STRING in kinds:
            kind = common_type_of(kinds)
            operands = [widen(operand, kind) for operand in operands]
        child, *values = operands
        if any(value.data_type in (FLOAT, DOUBLE) for value in values):
            values = [widen(value, DOUBLE) if is_number(value.data_type) else value for value in values]
        return Typed("(" + " OR ".join(self._compare("=", child, value).sql for value in values) + ")", BOOLEAN)

    def between(self, tree: Tree) -> Typed:
        child = self.scalar(tree.this)
        lower = self._compare(">=", child, self.scalar(tree.args["low"]))
        upper = self._compare("<=", child, self.scalar(tree.args["high"]))
        return Typed(f"({lower.sql} AND {upper.sql})", BOOLEAN)

    def like(self, tree: Tree) -> Typed:
        parts = like_parts(tree)
        if parts is None:
            raise unsupported(f"{describe(tree)}: the pattern is not a constant")
        subject, pattern, escape, negated = parts
        ensure_valid_pattern(pattern, escape)
        operator = "NOT LIKE" if negated else "LIKE"
        quoted = f"{quote_duckdb_string(pattern)} ESCAPE {quote_duckdb_string(escape)}"
        return Typed(f"({self.text(subject)} {operator} {quoted})", BOOLEAN)

    def text_test(self, tree: Tree) -> Typed:
        function = {"StartsWith": "starts_with", "EndsWith": "ends_with", "Contains": "contains"}[type(tree).__name__]
        return Typed(f"{function}({self.text(tree.this)}, {self.text(tree.expression)})", BOOLEAN)

    def is_nan(self, tree: Tree) -> Typed:
        value = self.scalar(tree.this)
        if value.data_type not in (FLOAT, DOUBLE):
            raise unsupported(f"isnan of {value.data_type}")
        return Typed(f"coalesce(isnan({value.sql}), FALSE)", BOOLEAN)

    # --- choices

    def case(self, tree: Tree) -> Typed:
        subject = tree.args.get("this")
        conditions, results = [], []
        for branch in tree.args["ifs"]:
            if subject is None:
                conditions.append(self.boolean(branch.this))
            else:
                conditions.append(self._compare("=", self.scalar(subject), self.scalar(branch.this)).sql)
            results.append(self.scalar(branch.args["true"]))
        default = tree.args.get("default")
        return choose(conditions, results, Typed("NULL", VOID) if default is None else self.scalar(default))

    def if_else(self, tree: Tree) -> Typed:
        otherwise = tree.args.get("false")
        return choose(
            [self.boolean(tree.this)],
            [self.scalar(tree.args["true"])],
            Typed("NULL", VOID) if otherwise is None else self.scalar(otherwise),
        )

    def coalesce(self, tree: Tree) -> Typed:
        return self._same_typed("coalesce", [tree.this, *tree.expressions])

    def extreme(self, tree: Tree) -> Typed:
        operands = [tree.this, *tree.expressions]
        kinds = {self.scalar(operand).data_type for operand in operands} - {VOID}
        value = self._same_typed(type(tree).__name__.lower(), operands)
        if not is_atomic(value.data_type) or (STRING in kinds and len(kinds) > 1):
            raise unsupported(describe(tree))
        return value

    def null_if(self, tree: Tree) -> Typed:
        value = self.scalar(tree.this)
        equal = self._compare("=", value, self.scalar(tree.expression))
        return Typed(f"CASE WHEN {equal.sql} THEN NULL ELSE {value.sql} END", value.data_type)

    def _same_typed(self, function: str, trees: Sequence[Tree]) -> Typed:
        values = [self.scalar(tree) for tree in trees]
        kind = common_type_of([value.data_type for value in values])
        return Typed(f"{function}({', '.join(widen(value, kind).sql for value in values)})", kind)

    # --- numbers

    def arithmetic(self, tree: Tree) -> Typed:
        # By name: DuckDB turns `x + 1 > 0` around to `x > -1`, and then no row overflows.
        function = {"Add": "add", "Sub": "subtract", "Mul": "multiply"}[type(tree).__name__]
        if type(tree.expression).__name__ == "Interval":
            return sql_dates.shifted(self, tree)
        left, right = self.scalar(tree.this), self.scalar(tree.expression)
        if left.data_type == DATE and function != "multiply" and right.data_type in _DAYS:
            return Typed(f"CAST({function}({left.sql}, {widen(right, INTEGER).sql}) AS DATE)", DATE)
        kind = arithmetic_type(left, right, describe(tree))
        if isinstance(kind, DecimalType):
            return decimal_arithmetic(function, left, right, describe(tree))
        # Overflow of integers raises in both; the cast keeps DuckDB from widening.
        sql = f"{function}({widen(left, kind).sql}, {widen(right, kind).sql})"
        return Typed(f"CAST({sql} AS {duckdb_type(kind)})", kind)

    def division(self, tree: Tree) -> Typed:
        left, right = self.scalar(tree.this), self.scalar(tree.expression)
        kinds = {left.data_type, right.data_type}
        if any(isinstance(kind, DecimalType) for kind in kinds) and not {FLOAT, DOUBLE, STRING} & kinds:
            return decimal_quotient(left, right, describe(tree))
        arithmetic_type(left, right, describe(tree))
        return guarded("/", widen(left, DOUBLE), widen(right, DOUBLE), DOUBLE)

    def remainder(self, tree: Tree) -> Typed:
        left, right = self.scalar(tree.this), self.scalar(tree.expression)
        kind = arithmetic_type(left, right, describe(tree))
        if kind in (FLOAT, DOUBLE):
            return guarded("%", widen(left, kind), widen(right, kind), kind)
        left, right, kind = self._integrals(tree.this, tree.expression, describe(tree))
        return guarded("%", left, right, kind)

    def whole_quotient(self, tree: Tree) -> Typed:
        left, right, _ = self._integrals(tree.this, tree.expression, describe(tree))
        return guarded("//", widen(left, LONG), widen(right, LONG), LONG)

    def positive_remainder(self, first: Tree, second: Tree) -> Typed:
        left, right, kind = self._integrals(first, second, "pmod")
        rest = f"({left.sql} % {right.sql})"
        return guarded("%", Typed(f"CASE WHEN {rest} < 0 THEN {rest} + {right.sql} ELSE {rest} END", kind), right, kind)

    def _integrals(self, first: Tree, second: Tree, what: str) -> tuple[Typed, Typed, DataType]:
        left, right = self.scalar(first), self.scalar(second)
        kind = arithmetic_type(left, right, what)
        if kind not in INTEGRAL_RANGES or STRING in (left.data_type, right.data_type):
            raise unsupported(f"{what}: of {kind}")
        return widen(left, kind), widen(right, kind), kind

    def bitwise(self, tree: Tree) -> Typed:
        left, right, kind = self._integrals(tree.this, tree.expression, describe(tree))
        function = {"BitwiseAnd": "({0} & {1})", "BitwiseOr": "({0} | {1})", "BitwiseXor": "xor({0}, {1})"}
        return Typed(function[type(tree).__name__].format(left.sql, right.sql), kind)

    def cast(self, tree: Tree) -> Typed:
        value, target = self.scalar(tree.this), cast_target(tree.to)
        # `x::type` is such a node, too, without being safe.
        return try_cast(value, target) if tree.args.get("safe") else cast(value, target)

    # --- text

    def text(self, tree: Tree) -> str:
        """A string operand: numbers, dates and booleans as Spark casts them. Raises UnsupportedExpressionError."""
        return as_text(self.scalar(tree))

    def length(self, tree: Tree) -> Typed:
        return Typed(f"CAST(length({self.text(tree.this)}) AS INTEGER)", INTEGER)

    def concatenation(self, tree: Tree) -> Typed:
        parts = tree.expressions or [tree.this, tree.expression]
        return Typed("(" + " || ".join(self.text(part) for part in parts) + ")", STRING)

    def trim(self, tree: Tree) -> Typed:
        function = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(tree.args.get("position") or ""), "trim")
        characters = tree.args.get("expression")
        return Typed(
            f"{function}({self.text(tree.this)}, {self.text(characters) if characters else quote_duckdb_string(' ')})",
            STRING,
        )

    def substring(self, tree: Tree) -> Typed:
        text = self.text(tree.this)
        numbers = [self.scalar(tree.args[key]) for key in ("start", "length") if tree.args.get(key) is not None]
        if not numbers or any(number.data_type not in INTEGRAL_RANGES for number in numbers):
            raise unsupported(f"{describe(tree)}: positions that are no integers")
        start, *length = [widen(number, LONG).sql for number in numbers]
        # From the end where it is negative; what lies before the first character counts, too.
        begin = f"CASE WHEN {start} > 0 THEN {start} - 1 WHEN {start} < 0 THEN length({text}) + {start} ELSE 0 END"
        count = f"({begin}) + {length[0]} - greatest({begin}, 0)" if length else f"length({text})"
        found = f"substring({text}, greatest({begin}, 0) + 1, greatest({count}, 0))"
        return Typed(f"CASE WHEN {text} IS NULL OR {' OR '.join(f'{n} IS NULL' for n in (start, *length))} THEN NULL "
                     f"ELSE {found} END", STRING)  # fmt: skip

    # --- dates

    def day(self, tree: Tree) -> Typed:
        """What Spark takes for a date: the day of a moment in UTC, text of a date."""
        value = self.scalar(tree)
        if value.data_type not in (DATE, TIMESTAMP, TIMESTAMP_NTZ, STRING):
            raise unsupported(f"a date function on {value.data_type}")
        return value if value.data_type == DATE else cast(value, DATE)

    def as_date(self, tree: Tree) -> Typed:
        return self.day(tree.this)

    def date_part(self, tree: Tree) -> Typed:
        part = {"Year": "year", "Month": "month", "Day": "day", "DayOfMonth": "day", "Quarter": "quarter"}
        return Typed(f"CAST({part[type(tree).__name__]}({self.day(tree.this).sql}) AS INTEGER)", INTEGER)

    def time_part(self, tree: Tree) -> Typed:
        value = moment(self, tree.this)
        return Typed(f"CAST({type(tree).__name__.lower()}({value.sql}) AS INTEGER)", INTEGER)

    def date_add(self, tree: Tree) -> Typed:
        unit = tree.args.get("unit")
        if unit is not None and unit.name.upper() != "DAY":
            raise unsupported(describe(tree))
        amount = self.scalar(tree.expression)
        if amount.data_type not in INTEGRAL_RANGES or amount.data_type == PrimitiveType("long"):
            raise unsupported(f"adding {amount.data_type} to a date")
        return Typed(f"CAST({self.day(tree.this).sql} + {widen(amount, INTEGER).sql} AS DATE)", DATE)

    def date_difference(self, tree: Tree) -> Typed:
        unit = tree.args.get("unit")
        if unit is not None and unit.name.upper() != "DAY":
            raise unsupported(describe(tree))
        return Typed(f"CAST({self.day(tree.this).sql} - {self.day(tree.expression).sql} AS INTEGER)", INTEGER)


def describe(tree: Tree) -> str:
    """A construct in the user's terms."""
    text = str(tree.sql(dialect="spark"))
    return text if len(text) <= 100 else text[:97] + "..."


_Rule = Callable[[Scalars, Tree], Typed]
_BINARY = ("this", "expression")
_PART = ("this",)
_LISTED = ("this", "expressions")
# Each node with the arguments its rule looks at; one that has more is refused. `safe`, `typed`, `coalesce`,
# `ignore_nulls` and `big_int` are flags that sqlglot sets on its own to describe Spark's dialect.
_RULES: dict[str, tuple[_Rule, tuple[str, ...]]] = {
    "Column": (Scalars.column, ("this", "table", "db", "catalog")),
    "Dot": (Scalars.column, _BINARY),
    "And": (Scalars.logical, _BINARY),
    "Or": (Scalars.logical, _BINARY),
    "Not": (Scalars.negation, _PART),
    "Is": (Scalars.test, _BINARY),
    "In": (Scalars.membership, _LISTED),
    "Between": (Scalars.between, ("this", "low", "high")),
    "Like": (Scalars.like, (*_BINARY, "negate")),
    "Escape": (Scalars.like, _BINARY),
    **dict.fromkeys(("StartsWith", "EndsWith", "Contains"), (Scalars.text_test, _BINARY)),
    "IsNan": (Scalars.is_nan, _PART),
    "Case": (Scalars.case, ("this", "ifs", "default")),
    "If": (Scalars.if_else, ("this", "true", "false")),
    "Coalesce": (Scalars.coalesce, _LISTED),
    "Greatest": (Scalars.extreme, (*_LISTED, "ignore_nulls")),
    "Least": (Scalars.extreme, (*_LISTED, "ignore_nulls")),
    "Nullif": (Scalars.null_if, _BINARY),
    "Add": (Scalars.arithmetic, _BINARY),
    "Sub": (Scalars.arithmetic, _BINARY),
    "Mul": (Scalars.arithmetic, _BINARY),
    "Div": (Scalars.division, (*_BINARY, "typed", "safe")),
    "Mod": (Scalars.remainder, _BINARY),
    "IntDiv": (Scalars.whole_quotient, _BINARY),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), (Scalars.bitwise, _BINARY)),
    "BitwiseNot": (sql_operators.complement, _PART),
    "Struct": (sql_nested.struct, ("expressions",)),
    "Array": (sql_nested.array, ("expressions",)),
    "Neg": (sql_operators.minus, _PART),
    "Abs": (sql_operators.absolute, _PART),
    "Cast": (Scalars.cast, ("this", "to")),
    "TryCast": (Scalars.cast, ("this", "to", "safe")),
    "Length": (Scalars.length, _PART),
    "Concat": (Scalars.concatenation, ("expressions", "safe", "coalesce")),
    "DPipe": (Scalars.concatenation, (*_BINARY, "safe")),
    "Trim": (Scalars.trim, ("this", "position", "expression")),
    "NullSafeNEQ": (Scalars.distinct, _BINARY),
    "Floor": (sql_functions.whole_number, _PART),
    "Ceil": (sql_functions.whole_number, _PART),
    "StrPosition": (sql_functions.found_position, ("this", "substr")),
    "Substring": (Scalars.substring, ("this", "start", "length")),
    "TsOrDsToDate": (Scalars.as_date, ("this", "safe")),
    **dict.fromkeys(("Year", "Month", "Day", "DayOfMonth", "Quarter"), (Scalars.date_part, _PART)),
    **dict.fromkeys(("Hour", "Minute", "Second"), (Scalars.time_part, _PART)),
    "TsOrDsAdd": (Scalars.date_add, (*_BINARY, "unit")),
    "DateDiff": (Scalars.date_difference, (*_BINARY, "unit")),
    **dict.fromkeys(("Upper", "Lower"), (sql_text.changed_case, _PART)),
    "Initcap": (sql_text.initcap, _BINARY),
    "DateTrunc": (sql_dates.truncated_date, ("this", "unit")),
    "TimestampTrunc": (sql_dates.truncated_moment, ("this", "unit")),
    "Nvl2": (sql_functions.second_unless_null, ("this", "true", "false")),
    "RegexpLike": (sql_text.matches, _BINARY),
    "ILike": (sql_text.case_blind_like, (*_BINARY, "negate")),
    "Extract": (sql_dates.extracted, _BINARY),
    "Bracket": (sql_nested.element, ("this", "expressions", "offset", "safe")),
    "Anonymous": (sql_functions.named, _LISTED),
}
