"""Fitting a predicate to a schema: columns found, constants typed, meaning as in Spark SQL under ANSI.

After resolution
- every `Column` has the schema's own spelling and, where it stands for a predicate, became `column = TRUE`;
- a `Comparison` has a column on its left, and on its right a column of the same type or a constant of the column's
  type (of type `double` beside a `float` column where a float cannot hold it); never a null constant;
- the constants of an `In` have the column's type, or are null;
- a `Literal` that stands for a predicate is a boolean or null;
- a predicate that may itself be the left side of a `Comparison` has TRUE or FALSE on its right (`(a < 5) <=> TRUE`);
- a predicate that would need a cast of the column became `Coerced`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

from delta_orch.errors import ColumnNotFoundError, InvalidExpressionError
from delta_orch.expressions.fit_comparison import ensure_comparable, fit_comparison, literal_type
from delta_orch.expressions.nodes import (
    And,
    Coerced,
    Column,
    Comparison,
    Constants,
    Expression,
    In,
    IsNull,
    Literal,
    Not,
    Opaque,
    Or,
    StartsWith,
)
from delta_orch.expressions.spark_literals import INTEGRAL_RANGES, quote_identifier, quote_string
from delta_orch.expressions.tree import (
    OPERATORS,
    bounded,
    columns_of,
    conjunction,
    disjunction,
    ensure_few_terms,
    is_opaque,
    plain_values,
)
from delta_orch.protocol.schema import char_width
from delta_orch.protocol.types import (
    BOOLEAN,
    COLLATIONS,
    DOUBLE,
    FLOAT,
    STRING,
    VOID,
    DataType,
    DecimalType,
    PrimitiveType,
    StructField,
    StructType,
    fields_on,
    traits_of,
    types_of,
)

_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NULL = Literal(None, BOOLEAN)
_MANY_ALTERNATIVES = 64
_MANY_SPACES = 4096


def resolve_expression(expression: Expression, schema: StructType) -> Expression:
    """The predicate with columns and constants fitted to `schema`; see the module for what holds afterwards.

    Resolving twice changes nothing. Zone-less timestamps are UTC.

    Raises:
        ColumnNotFoundError: A column is not in the schema; the message names the closest ones.
        InvalidExpressionError: Spark would refuse it too: types that cannot be compared, a string that is not a date, a
            predicate that is not boolean. It is too large or nested too deeply (see `tree`).
    """
    return ensure_few_terms(_Resolver(schema).predicate(bounded(expression)))


def resolve_predicate(where: object, schema: StructType) -> Expression:
    """A predicate as the user gave it, fitted to the table's columns.

    Raises:
        InvalidExpressionError, ColumnNotFoundError: It cannot be read, or does not fit the schema.
    """
    if not isinstance(where, str | Expression):
        raise InvalidExpressionError(
            f"a predicate must be SQL text or an Expression, not {type(where).__name__}",
            remedy="Write it as text in Spark SQL, for example \"day = '2013-01-01'\"",
        )
    if isinstance(where, str):
        from delta_orch.expressions.parse import (
            ensure_no_column_in_double_quotes,
            ensure_no_column_named_as_clock,
            parse_expression,
        )

        ensure_no_column_in_double_quotes(where, schema)
        ensure_no_column_named_as_clock(where, schema)
        where = parse_expression(where)
    return resolve_expression(where, schema)


def ensure_partition_predicate(where: Expression, partition_columns: Sequence[str], what: str) -> None:
    """Check that the log alone decides a resolved predicate, for every file exactly.

    Raises:
        InvalidExpressionError: It looks at other columns, or holds text that only an engine can evaluate.
    """
    others = sorted({c.path[0] for c in columns_of(where)} - set(partition_columns))
    if others:
        raise InvalidExpressionError(
            f"{what} uses columns that do not partition the table: {', '.join(others)}",
            remedy=f"Use only partition columns ({', '.join(partition_columns) or 'this table has none'})",
            columns=others,
        )
    if is_opaque(where):
        raise InvalidExpressionError(
            f"{what} is more than comparisons of partition columns with constants",
            cause="It must be decided from the log, without running an engine",
            remedy="Use comparisons, IN, IS NULL, LIKE 'prefix%', AND, OR and NOT",
        )


def find_column(
    path: tuple[str, ...], schema: StructType, of: str = "the table"
) -> tuple[tuple[str, ...], DataType | None]:
    """The path in the schema's spelling, and its type; None for a path into an array or map.

    Raises ColumnNotFoundError, which names the table or source.
    """
    spelled: list[str] = []
    current: DataType = schema
    for name in path:
        if not isinstance(current, StructType):
            if isinstance(current, PrimitiveType | DecimalType):
                raise _not_found(path, spelled, (), of)
            return (*spelled, *path[len(spelled) :]), None
        field: StructField | None = current.find(name)
        if field is None:
            raise _not_found(path, spelled, current.names, of)
        spelled.append(field.name)
        current = field.data_type
    return tuple(spelled), current


def ensure_computable(path: tuple[str, ...], data_type: DataType) -> None:
    """Raises InvalidExpressionError for a column of intervals or shapes, or one that has them inside: it can be read,
    written and tested for null. Its values are numbers and bytes here, to Spark's own functions they are not."""
    for inner in types_of(data_type):
        if not traits_of(inner).is_computable:
            raise InvalidExpressionError(
                f"The column {'.'.join(path)} is of type {inner}: nothing is computed from it here",
                cause="IS NULL and IS NOT NULL are the only conditions that such a column can have",
                remedy="Read the column, and compute from its values yourself",
                column=".".join(path),
            )


def _not_found(path: tuple[str, ...], parents: list[str], names: tuple[str, ...], of: str) -> ColumnNotFoundError:
    import difflib

    name = path[len(parents)]
    lowered = {candidate.lower(): candidate for candidate in names}
    close = [lowered[match] for match in difflib.get_close_matches(name[:200].lower(), lowered, n=3, cutoff=0.5)]
    where = f"the struct {'.'.join(parents)[:200]}" if parents else of
    if close:
        remedy = f"Did you mean {', '.join(close)}?"
    else:
        none = f"{'.'.join(parents)[:200]} is not a struct" if parents else "There are no columns here"
        remedy = f"Columns of {where}: {', '.join(names[:20])}" if names else none
    return ColumnNotFoundError(
        f"There is no column {name[:200]!r} in {where}", remedy=remedy, column=".".join(path), close_matches=close
    )


class _Resolver:
    def __init__(self, schema: StructType) -> None:
        self._schema = schema

    def predicate(self, node: Expression) -> Expression:
        match node:
            case And(children):
                return conjunction(*self._chain("!=", children))
            case Or(children):
                return disjunction(*self._chain("=", children))
            case Not(child):
                return Not(self.predicate(child))
            case Literal():
                return _boolean_literal(node)
            case Column():
                return self._boolean_column(node)
            case Opaque():
                return self._opaque(node)
            case Coerced(child):
                return self.predicate(child)
            case IsNull(child):
                return self._is_null(child)
            case Comparison():
                return self._comparison(node)
            case In():
                return self._in(node)
            case StartsWith():
                return self._starts_with(node)
        raise InvalidExpressionError(f"{type(node).__name__} is not an expression", type=type(node).__name__)

    def _chain(self, op: str, children: tuple[Expression, ...]) -> list[Expression]:
        """Operands of OR (`op` is `=`) or of AND (`!=`), with many comparisons of one column as one list of values."""
        parts = [self.predicate(child) for child in children]
        return parts if len(parts) <= _MANY_ALTERNATIVES else _as_lists(op, parts)

    def _column(self, column: Column) -> tuple[Column, DataType | None]:
        path, data_type = find_column(column.path, self._schema)
        if any(COLLATIONS in field.metadata for field in fields_on(path, self._schema)):
            raise InvalidExpressionError(
                f"The column {'.'.join(path)} has a collation",
                cause="Under it, more texts are equal than byte by byte, as texts are compared here",
                remedy="Read the column, and compare its values yourself",
                column=".".join(path),
            )
        if data_type is not None:
            ensure_computable(path, data_type)
        return Column(path), data_type

    def _boolean_column(self, node: Column) -> Expression:
        column, data_type = self._column(node)
        if data_type is None:
            return Coerced(column)
        if data_type == VOID:
            return _NULL
        if data_type != BOOLEAN:
            raise InvalidExpressionError(
                f"The column {'.'.join(column.path)} is not a predicate",
                cause=f"Its type is {data_type}, not boolean",
                remedy="Compare it with a value",
                column=".".join(column.path),
            )
        return Comparison("=", column, Literal(True, BOOLEAN))

    def _opaque(self, node: Opaque) -> Opaque:
        from delta_orch.expressions.parse import ensure_within_bounds

        ensure_within_bounds(node)
        return Opaque(node.sql, tuple(dict.fromkeys(self._column(column)[0] for column in node.columns)))

    def _is_null(self, child: Expression) -> Expression:
        if isinstance(child, Literal):
            return Literal(child.value is None, BOOLEAN)
        if not isinstance(child, Column):
            resolved = self.predicate(child)
            return self._is_null(resolved) if isinstance(resolved, Literal) else IsNull(resolved)
        path, data_type = find_column(child.path, self._schema)
        column = Column(path)
        if data_type is None:
            return Coerced(IsNull(column))
        return Literal(True, BOOLEAN) if data_type == VOID else IsNull(column)

    def _starts_with(self, node: StartsWith) -> Expression:
        if not isinstance(node.child, Column):
            raise InvalidExpressionError("LIKE needs a column on its left", remedy="Name a column")
        column, data_type = self._column(node.child)
        if data_type == VOID:
            return _NULL
        resolved = StartsWith(column, node.prefix)
        return resolved if data_type == STRING else Coerced(resolved)

    def _comparison(self, node: Comparison) -> Expression:
        if node.op not in (*OPERATORS, "<=>"):
            raise InvalidExpressionError(
                f"{node.op!r} is not a comparison", remedy=f"Use {', '.join((*OPERATORS, '<=>'))}"
            )
        left, right = node.left, node.right
        if isinstance(left, Column) and isinstance(right, Column):
            return self._compare_columns(node.op, left, right, node.fills)
        if isinstance(left, Literal) and isinstance(right, Column):
            return self._compare_literal(_FLIPPED.get(node.op, node.op), right, left, node.fills)
        if isinstance(left, Column) and isinstance(right, Literal):
            return self._compare_literal(node.op, left, right, node.fills)
        if isinstance(left, Literal) and isinstance(right, Literal):
            return _compare_literals(node)
        if isinstance(left, Column) and isinstance(right, Opaque):
            return Coerced(Comparison(node.op, self._column(left)[0], self._opaque(right)))
        return self._compare_predicates(node.op, left, right)

    def _compare_predicates(self, op: str, left: Expression, right: Expression) -> Expression:
        if isinstance(left, Literal):
            op, left, right = _FLIPPED.get(op, op), right, left
        left, right = self.predicate(left), self.predicate(right)
        if isinstance(left, Literal) and isinstance(right, Literal):
            return _compare_literals(Comparison(op, left, right))
        if not isinstance(right, Literal):
            return Coerced(Comparison(op, left, right))
        if right.value is None:
            return IsNull(left) if op == "<=>" else _NULL
        return Comparison(op, left, right)

    def _compare_columns(self, op: str, left: Column, right: Column, fills: bool) -> Expression:
        (left, left_type), (right, right_type) = self._column(left), self._column(right)
        if left_type is None or right_type is None:
            return Coerced(Comparison(op, left, right))
        if VOID in (left_type, right_type):
            return _compare_with_void(op, left, left_type, right, right_type)
        ensure_comparable(left_type, right_type, op, left)
        widths = [self._char_length(column) for column in (left, right)]
        if None not in widths and widths[0] != widths[1]:
            from delta_orch.expressions.parse import parse_expression

            most = max(width or 0 for width in widths)
            filled = (_filled(c, most if fills else width or 0) for c, width in zip((left, right), widths, strict=True))
            return self.predicate(parse_expression(f" {op} ".join(filled)))
        if left_type == right_type and isinstance(left_type, PrimitiveType | DecimalType):
            return Comparison(op, left, right)
        if left_type in INTEGRAL_RANGES and right_type in INTEGRAL_RANGES:
            return Comparison(op, left, right)
        return Coerced(Comparison(op, left, right))

    def _compare_literal(self, op: str, column: Column, literal: Literal, fills: bool = True) -> Expression:
        column, data_type = self._column(column)
        if data_type is None:
            return Coerced(Comparison(op, column, literal))
        if literal.value is None:
            return self._is_null(column) if op == "<=>" else _NULL
        if data_type == VOID:
            return Literal(False, BOOLEAN) if op == "<=>" else _NULL
        if isinstance(literal.value, str) and (length := self._char_length(column)) is not None:
            if fills:
                return self._compare_char(op, column, length, literal.value)
            return self._as_read(column, length, f"{op} {quote_string(literal.value)}")
        return fit_comparison(op, column, data_type, literal)

    def _char_length(self, column: Column) -> int | None:
        """Of a column that is declared `char(n)`, also of one side of a join."""
        fields = tuple(fields_on(column.path, self._schema))
        return char_width(fields[-1]) if len(fields) == len(column.path) else None

    def _compare_char(self, op: str, column: Column, length: int, text: str) -> Expression:
        """`char` and a constant: Spark fills up both with spaces, which the table's files may have or not."""
        if op in ("=", "!=", "<=>") and length <= _MANY_SPACES:
            spelled = In(column, tuple(Literal(one, STRING) for one in _with_spaces(text, length)))
            if op == "=":
                return spelled
            return Not(spelled) if op == "!=" else And((Not(IsNull(column)), spelled))
        width = max(length, len(text))
        return self._as_read(column, width, f"{op} {quote_string(text.ljust(width))}")

    def _as_read(self, column: Column, width: int, test: str) -> Expression:
        """A `char` with its spaces beside what Spark does not fill up."""
        from delta_orch.expressions.parse import parse_expression

        return self.predicate(parse_expression(f"{_filled(column, width)} {test}"))

    def _in(self, node: In) -> Expression:
        if not isinstance(node.child, Column):
            if isinstance(node.child, Literal):
                child = node.child
                return disjunction(*(self._comparison(Comparison("=", child, value)) for value in node.values))
            raise InvalidExpressionError("IN needs a column on its left", remedy="Name a column")
        column, data_type = self._column(node.child)
        if not node.values:
            raise InvalidExpressionError(
                "IN needs at least one value",
                remedy="Give one, or write false where no row is meant",
                column=".".join(column.path),
            )
        if data_type is None:
            return Coerced(In(column, node.values))
        if data_type == VOID:
            return _NULL
        texts = [value for value in plain_values(node.values) if isinstance(value, str)]
        if texts and (length := self._char_length(column)) is not None:
            if any(value.value is None and value.data_type is None for value in node.values):
                listed = (quote_string(value) if isinstance(value, str) else "NULL" for value in (*texts, None))
                return self._as_read(column, length, f"IN ({', '.join(listed)})")
            if length * len(texts) > _MANY_SPACES:
                return disjunction(*(self._compare_literal("=", column, value) for value in node.values))
            others = [value for value in node.values if not isinstance(value.value, str)]
            spelled = dict.fromkeys(one for text in texts for one in _with_spaces(text, length))
            return fit_in(column, data_type, (*(Literal(one, STRING) for one in spelled), *others))
        return fit_in(column, data_type, node.values)


def _filled(column: Column, width: int) -> str:
    return f"rpad({'.'.join(map(quote_identifier, column.path))}, {width}, ' ')"


def _with_spaces(text: str, length: int) -> list[str]:
    """A value of a `char` column, with each number of spaces behind it that fits."""
    text = text.rstrip(" ")
    return [text + " " * count for count in range(max(length - len(text), 0) + 1)]


def _as_lists(op: str, parts: list[Expression]) -> list[Expression]:
    """Operands of OR (`op` is `=`) or of AND (`!=`), with many comparisons of one column as one list of values."""
    lists: dict[Expression, dict[Literal, None]] = {}
    for part in parts:
        match part:
            case Comparison(o, Column() as column, Literal(_, kind) as one) if o == op and kind not in (FLOAT, DOUBLE):
                lists.setdefault(column, {})[one] = None
            case _:
                lists[part] = {}
    return [_listed(op, part, tuple(values)) if values else part for part, values in lists.items()]


def _listed(op: str, column: Expression, values: tuple[Literal, ...] | Constants) -> Expression:
    return In(column, values) if op == "=" else Not(In(column, values))


def _boolean_literal(literal: Literal) -> Literal:
    if literal.value is not None and not isinstance(literal.value, bool):
        raise InvalidExpressionError(
            f"The constant {str(literal.value)[:200]!r} is not a predicate",
            remedy="Compare it with a column",
            value=literal.value,
        )
    return Literal(literal.value, BOOLEAN)


def fit_in(column: Column, data_type: DataType, values: tuple[Literal, ...] | Constants) -> Expression:
    """`column IN (values)` with the constants in the column's type; `Coerced` where that takes a cast of the column.

    Raises InvalidExpressionError as `fit_comparison`.
    """
    if (typed := _typed_values(data_type, values)) is not None:
        return In(column, typed)
    if data_type == STRING and any(isinstance(value.value, int) for value in values):
        return Coerced(In(column, values))
    kinds = [literal_type(value) for value in values if value.value is not None]
    if any(kind in (FLOAT, DOUBLE) for kind in kinds) and data_type in (*INTEGRAL_RANGES, FLOAT, DOUBLE):
        # Spark finds one common type for the whole list: a single double makes all of it doubles.
        values = tuple(_number_as_double(value) for value in values)
    fitted: list[Literal] = []
    others: list[Expression] = []
    for value in values:
        if value.value is None:
            fitted.append(Literal(None, data_type))
            continue
        comparison = fit_comparison("=", column, data_type, value)
        if isinstance(comparison, Coerced):
            return Coerced(In(column, values))
        if isinstance(comparison, Comparison) and comparison.op == "=" and isinstance(comparison.right, Literal):
            fitted.append(comparison.right)
        else:
            others.append(comparison)
    unique = tuple(dict.fromkeys(fitted))
    return disjunction(*([In(column, unique)] if unique else []), *dict.fromkeys(others))


def _typed_values(data_type: DataType, values: Sequence[Literal]) -> Constants | None:
    """Integers for an integral column, or strings for one of text, each once; None for anything else."""
    declared = {values.data_type} if isinstance(values, Constants) else {value.data_type for value in values}
    if not declared <= {None, data_type}:
        return None
    distinct = dict.fromkeys(plain_values(values))
    types = set(map(type, distinct))
    if data_type in INTEGRAL_RANGES and types == {int}:
        low, high = INTEGRAL_RANGES[data_type]
        if not (low <= min(distinct) and max(distinct) <= high):
            return None
    elif data_type != STRING or types != {str}:
        return None
    return Constants(list(distinct), data_type)


def _number_as_double(literal: Literal) -> Literal:
    if isinstance(literal.value, int | Decimal) and not isinstance(literal.value, bool):
        return Literal(float(literal.value), DOUBLE)
    return literal


def _compare_with_void(op: str, left: Column, left_type: DataType, right: Column, right_type: DataType) -> Expression:
    if op != "<=>":
        return _NULL
    if left_type == right_type:
        return Literal(True, BOOLEAN)
    return IsNull(right if left_type == VOID else left)


def _compare_literals(node: Comparison) -> Expression:
    assert isinstance(node.left, Literal) and isinstance(node.right, Literal)
    left, right = node.left.value, node.right.value
    if left is None or right is None:
        return Literal(left is None and right is None, BOOLEAN) if node.op == "<=>" else _NULL
    same = type(left) is type(right) and not isinstance(left, float | datetime)
    if same or (
        isinstance(left, int | Decimal) and isinstance(right, int | Decimal) and bool not in {type(left), type(right)}
    ):
        return Literal(OPERATORS["=" if node.op == "<=>" else node.op](left, right), BOOLEAN)
    return Coerced(node)
