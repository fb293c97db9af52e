"""The rules of a table for its rows. Missing columns are computed, and all other rules become checks (PROTOCOL, "Column
Invariants", "CHECK Constraints", "Generated Columns", "Default Columns", "Identity Columns").

This module only plans. The engine evaluates the rules while it writes the rows. A table without rules does not load
this module or the parser of expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from delta_orch.engines.base import ComputedColumn, IdentityValues, LengthCheck, RowCheck
from delta_orch.errors import (
    ColumnNotFoundError,
    InvalidExpressionError,
    InvalidRequestError,
    ProtocolViolationError,
    SchemaMismatchError,
    UnsupportedExpressionError,
)
from delta_orch.expressions.checked import CheckedExpression, check_expression
from delta_orch.expressions.fit_comparison import literal_type
from delta_orch.expressions.nodes import Cast, Column, Comparison, Expression, Literal, Opaque
from delta_orch.expressions.parse import (
    ensure_no_column_in_double_quotes,
    parse_expression,
    parse_row_value,
    parse_value,
)
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.expressions.to_sql import to_spark_sql
from delta_orch.expressions.tree import columns_of
from delta_orch.protocol.schema import CURRENT_DEFAULT, GENERATION_EXPRESSION, INVARIANTS
from delta_orch.protocol.schema_check import ensure_schema_fits, no_identity_partition
from delta_orch.protocol.schema_edit import Path
from delta_orch.protocol.type_text import declared_lengths, place_of_text
from delta_orch.protocol.types import (
    BOOLEAN,
    CHAR_VARCHAR_TYPE,
    STRING,
    VARIANT,
    VOID,
    DataType,
    StructField,
    StructType,
    fields_of,
    may_be_null,
    parts_beside,
    parts_of,
    traits_of,
)
from delta_orch.table.column_definitions import constraints_of, generation_expression, invariant_text
from delta_orch.table.configuration import TableConfiguration
from delta_orch.writing.assignments import as_default, cast_to, ensure_definable
from delta_orch.writing.identity import identity_of, next_values
from delta_orch.writing.target import RowShape, WriteTarget


def shape_rows(
    source: StructType, target: WriteTarget, *, never_null: Collection[str] = (), keeps_identity: bool = False
) -> RowShape:
    """Plan the writing of rows of `source` into the table.

    A missing column gets its default, its generated value, its next identity value, or null. The default never replaces
    a value of the data, not even null. A generated column in the data is verified.

    Args:
        never_null: Columns that must not be filled with null, even if they are nullable.
        keeps_identity: Whether the rows come from the table itself and keep their identity values.

    Raises:
        SchemaMismatchError: The rows do not fit. Nothing was written.
        InvalidRequestError: The data has a value for an identity column that is always generated, or the values of the
            column are exhausted.
        ProtocolViolationError: A rule of the table cannot be parsed.
        InvalidExpressionError: A rule is not an allowed expression (`check_expression`).
    """
    features = target.table.features
    lacking = {f.name for f in target.schema if source.find(f.name) is None}
    defaults: list[ComputedColumn] = []
    generated: list[ComputedColumn] = []
    identities: list[IdentityValues] = []
    checks: list[RowCheck] = []
    for field in target.schema:
        if not field.metadata:
            continue
        if "generatedColumns" in features and (sql := _text(field, GENERATION_EXPRESSION)) is not None:
            if field.name in lacking:
                generated.append(ComputedColumn(field.name, generated_value(field, sql, target.schema)))
            else:
                checks.append(_generation_check(field, sql, target.schema))
        elif "identityColumns" in features and (identity := identity_of(field)) is not None:
            if field.name in target.partition_columns:
                raise no_identity_partition(field.name)
            if field.name in lacking:
                identities.append(next_values(field.name, identity))
            elif not (identity.allow_explicit_insert or keeps_identity):
                raise InvalidRequestError(
                    f"The data has the column {field.name}, but the table always generates its values",
                    cause="It is an identity column that does not allow explicit inserts",
                    remedy="Leave the column out of the data",
                    column=field.name,
                )
        elif (
            "allowColumnDefaults" in features
            and field.name in lacking
            and (sql := _text(field, CURRENT_DEFAULT)) is not None
        ):
            defaults.append(ComputedColumn(field.name, default_value(field, sql)))
    filled = {*(c.name for c in defaults), *(c.name for c in generated), *(c.name for c in identities)}
    ensure_schema_fits(source, target.schema, filled=filled, fill_nulls=True, never_null=never_null)
    checks.extend(table_checks(target.table))
    lengths = tuple(length_checks(target.schema))
    return RowShape(tuple(checks), lengths, tuple(defaults), tuple(generated), tuple(identities))


def table_checks(table: TableConfiguration) -> Iterator[RowCheck]:
    """Return the invariants and CHECK constraints of a table that its protocol supports.

    Raises ProtocolViolationError for a rule about columns the table does not have, InvalidExpressionError for one that
    may not be evaluated.
    """
    schema = table.schema
    if table.supports("invariants"):
        for field in fields_of(schema):
            if INVARIANTS in field.metadata:
                stored, what = field.metadata[INVARIANTS], f"the invariant of column {field.name}"
                if (text := invariant_text(stored)) is None:
                    raise ProtocolViolationError(
                        f"The invariant of column {field.name} cannot be read",
                        cause=str(stored)[:200],
                        column=field.name,
                    )
                yield RowCheck(what, condition_of(text, schema, what))
    if table.supports("checkConstraints"):
        for name, text in constraints_of(table.configuration).items():
            yield RowCheck(f"CHECK constraint {name}", condition_of(text, schema, f"CHECK constraint {name}"))


def condition_of(text: str, schema: StructType, what: str) -> Expression:
    """Return a table's rule in Spark SQL, checked (`check_expression`) and resolved against its columns.

    Raises:
        InvalidExpressionError: The rule is not one expression of allowed functions, or it has a column in double
            quotes.
        ProtocolViolationError: The rule uses a column that the table does not have.
    """
    checked = _checked_rule(text, schema, what)
    try:
        return _resolved_rule(parse_expression(checked.sql), schema, what)
    except InvalidExpressionError:
        # The parser of this package supports less than the check.
        return Opaque(checked.sql, tuple(map(Column, checked.columns)))


def _checked_rule(text: str, schema: StructType, what: str) -> CheckedExpression:
    ensure_no_column_in_double_quotes(text, schema, what)
    checked = check_expression(text, what, columns=schema.names)
    _ensure_columns(checked, schema, what)
    return checked


def value_of(checked: CheckedExpression, read: Callable[[str], Expression] = parse_value) -> Expression:
    """Return the value of a table's rule. Text that this package cannot parse stays text, because Spark may support
    it."""
    try:
        return read(checked.sql)
    except InvalidExpressionError:
        return Opaque(checked.sql, tuple(map(Column, checked.columns)))


def given_default(field: StructField, sql: str) -> Expression:
    """Return the value of a column's default expression at the time of the statement. Raises InvalidExpressionError as
    `default_value` does."""
    ensure_definable(field)
    return value_of(check_expression(sql, f"the default of column {field.name}", is_default=True), parse_row_value)


def default_value(field: StructField, sql: str) -> Expression:
    """Return a column's default in its type, cast as in an UPDATE to DEFAULT.

    Raises:
        InvalidExpressionError: The default is not one expression of allowed functions without columns.
        SchemaMismatchError: A constant does not fit the type.
    """
    default = given_default(field, sql)
    if isinstance(default, Literal):
        if default.value is None:
            return default
        return cast_to(default, literal_type(default), field.data_type, field.name)
    return (
        Cast(default, field.data_type) if traits_of(field.data_type).is_atomic else as_default(default, field.data_type)
    )


def generated_value(field: StructField, sql: str, schema: StructType) -> Expression:
    """Return the expression of a generated column. Raises as `condition_of`."""
    ensure_definable(field)
    what = f"the generation expression of column {field.name}"
    return value_of(_checked_rule(sql, schema, what))


def _generation_check(field: StructField, sql: str, schema: StructType) -> RowCheck:
    what = f"the generation expression of column {field.name}"
    rule = Comparison("<=>", Column((field.name,)), generated_value(field, sql, schema))
    try:
        condition = _resolved_rule(rule, schema, what)
    except InvalidExpressionError:
        condition = Opaque(to_spark_sql(rule), columns_of(rule))
    return RowCheck(what, condition)


def _ensure_columns(checked: CheckedExpression, schema: StructType, what: str) -> None:
    """Spark knows names that no table has: `_metadata`, and functions without parentheses."""
    for path in checked.columns:
        if schema.find(path[0]) is None:
            raise _about_missing_column(what, checked.sql, f"There is no column {path[0]}")


def _resolved_rule(rule: Expression, schema: StructType, what: str) -> Expression:
    try:
        return resolve_expression(rule, schema)
    except ColumnNotFoundError as e:
        raise _about_missing_column(what, to_spark_sql(rule), e.problem) from e


def _about_missing_column(what: str, sql: str, problem: str) -> ProtocolViolationError:
    return ProtocolViolationError(
        f"{what[:1].upper()}{what[1:]} uses a column that does not exist", cause=f"{sql[:200]}: {problem}", rule=what
    )


def _text(field: StructField, key: str) -> str | None:
    value = field.metadata.get(key)
    return value if isinstance(value, str) else None


def length_checks(schema: StructType) -> Iterator[LengthCheck]:
    """Return the maximal length of each text that is declared `char(n)` or `varchar(n)`, at any depth.

    The protocol has no such types. Spark keeps the declaration in the column's metadata, and Delta on Spark refuses
    longer texts of either kind. A shorter `char` is stored unchanged and padded when it is read, so no text is padded
    here.

    Raises:
        ProtocolViolationError: A declaration cannot be read.
    """
    yield from _lengths_in(schema, ())


def _lengths_in(data_type: DataType, path: Path) -> Iterator[LengthCheck]:
    fields = {field.name: field for field in data_type} if isinstance(data_type, StructType) else {}
    for name, inner in parts_of(data_type):
        below = (*path, name)
        declared = fields[name].metadata.get(CHAR_VARCHAR_TYPE) if name in fields else None
        if isinstance(declared, str):
            yield from _lengths_of(fields[name], declared, below)
        yield from _lengths_in(inner, below)


def _lengths_of(field: StructField, declared: str, path: Path) -> Iterator[LengthCheck]:
    try:
        lengths = declared_lengths(declared)
    except SchemaMismatchError as e:
        raise ProtocolViolationError(
            f"The declared type of column {field.name} cannot be read", cause=declared[:200], column=field.name
        ) from e
    for length in lengths:
        place = place_of_text(field.data_type, length.place)
        if place is not None:
            yield LengthCheck((*path, *place), str(length), length.max_characters)


# Types of defaults and generated values


def ensure_own_values_fit(schema: StructType) -> None:
    """Check the types of defaults and generation expressions.

    Raises:
        SchemaMismatchError: A default does not fit its column's type, or a generation expression has another type. Only
            types that the local engine can determine are checked.
        InvalidExpressionError: An expression cannot be evaluated.
    """
    for field in schema:
        if (default := field.metadata.get(CURRENT_DEFAULT)) is not None:
            ensure_default_fits(field, str(default))
        if (text := generation_expression(field)) is not None:
            _ensure_same(field, text, _type_of(generated_value(field, text, schema), schema))


def ensure_default_fits(field: StructField, text: str) -> None:
    """Check a default. Spark casts it to its column's type, except between booleans and numbers. Raises as
    `ensure_own_values_fit`."""
    default_value(field, text)
    have, want = _type_of(given_default(field, text), StructType(())), field.data_type
    if have is not None and (
        not _has_shape(have, want) or (have not in (VOID, want) and BOOLEAN in (have, want) and want != STRING)
    ):
        raise SchemaMismatchError(
            f"The default of column {field.name} is not a value of its type",
            cause=f"{text[:200]!r} is of type {have}, the column of type {want}",
            remedy=f"Use a default of type {want}",
            column=field.name,
        )


def _has_shape(have: DataType, want: DataType) -> bool:
    """Whether a cast is possible, without regard to atomic types. Fields match by position."""
    if have in (VOID, want):
        return True
    if isinstance(have, StructType) and isinstance(want, StructType):
        return len(have) == len(want) and all(
            _has_shape(a.data_type, b.data_type) for a, b in zip(have, want, strict=True)
        )
    if parts := parts_beside(have, want):
        return all(_has_shape(a, b) for _, a, b in parts)
    return traits_of(have).is_atomic and (traits_of(want).is_atomic or want == VARIANT)


def _type_of(value: Expression, schema: StructType) -> DataType | None:
    """Return the type of a value over the columns of a table. None if only Spark can determine it."""
    from delta_orch.engines.local.sql_operators import Scalars
    from delta_orch.engines.local.sql_types import Source

    typed_schema = StructType(tuple(f for f in schema if f.data_type != VOID))
    try:
        return Scalars(Source("rows", typed_schema)).value(value).data_type
    except UnsupportedExpressionError:
        return None


def _ensure_same(field: StructField, text: str, computed_type: DataType | None) -> None:
    if computed_type is not None and _bare(computed_type) != _bare(field.data_type):
        raise SchemaMismatchError(
            f"The generated column {field.name} has another type than its expression",
            cause=f"{text[:200]!r} is of type {computed_type}, the column of type {field.data_type}",
            remedy=f"Write CAST(… AS {field.data_type}) around the expression, or declare the column {computed_type}",
            column=field.name,
        )


def _bare(data_type: DataType) -> DataType:
    """Return the type without NOT NULL and metadata."""
    return may_be_null(data_type, lambda field: replace(field, metadata={}))
