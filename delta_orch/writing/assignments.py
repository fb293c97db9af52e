"""Assignments: columns or fields inside structs, with their new values. The `set` of UPDATE and MERGE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import NamedTuple

from delta_orch.errors import InvalidExpressionError, InvalidRequestError, SchemaMismatchError
from delta_orch.expressions.fit_comparison import fit_comparison
from delta_orch.expressions.literal import constant_for
from delta_orch.expressions.nodes import Cast, Column, Comparison, Expression, Literal, MakeStruct, Opaque
from delta_orch.expressions.parse import (
    ensure_no_column_in_double_quotes,
    ensure_no_column_named_as_clock,
    parse_row_value,
)
from delta_orch.expressions.resolve import ensure_computable, find_column, resolve_expression
from delta_orch.expressions.spark_literals import INTEGRAL_RANGES
from delta_orch.protocol.schema import CURRENT_DEFAULT, GENERATION_EXPRESSION, IDENTITY_START
from delta_orch.protocol.schema_check import ensure_schema_fits, is_lossless_cast
from delta_orch.protocol.schema_edit import part_at
from delta_orch.protocol.table_properties import parse_column_list
from delta_orch.protocol.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VARIANT,
    VOID,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    PrimitiveType,
    StructField,
    StructType,
    traits_of,
    types_of,
    with_parts,
)
from delta_orch.table.configuration import TableConfiguration

_MOMENTS = (DATE, TIMESTAMP, TIMESTAMP_NTZ)
Path = tuple[str, ...]


class Assignment(NamedTuple):
    """A column or field, spelled as in the schema, and its new value before the cast.

    The keyword DEFAULT as `value` means the column's default.
    """

    path: Path
    value: Expression


def parse_assignments(assigned: object, table: TableConfiguration) -> tuple[Assignment, ...]:
    """Assignments as the caller wrote them: names of columns, or of fields inside structs (`st.a`), and for each a
    value in Spark SQL, an expression, or a Python value as `constant_for` takes it.

    Only the syntax of values is checked here. The verb decides which columns they may name (`resolve_value`).

    Raises:
        InvalidRequestError: Nothing is assigned. A column is assigned twice, or together with a field inside it. Or a
            column is an identity column.
        ColumnNotFoundError: There is no such column.
        InvalidExpressionError: A value is not a valid expression, or uses more than one row (`parse_row_value`).
    """
    if not isinstance(assigned, Mapping) or not assigned:
        raise InvalidRequestError(
            "Nothing is assigned: set must name a column and its value",
            remedy='Write for example {"price": "price * 2"}',
        )
    assignments = [Assignment(_place(name, table), _value(name, value, table)) for name, value in assigned.items()]
    ensure_apart([assignment.path for assignment in assignments])
    return tuple(assignments)


def ensure_apart(paths: Sequence[Path]) -> None:
    """Raise InvalidRequestError if two paths are the same, or if one lies inside the other."""
    seen = sorted(paths)
    for first, second in pairwise(seen):
        if second[: len(first)] == first:
            raise InvalidRequestError(
                f"The column {'.'.join(second)} is assigned twice",
                cause=None if first == second else f"{'.'.join(first)} is also assigned, and one contains the other",
                remedy="Assign each column or field once",
                column=".".join(second),
            )


def _place(name: object, table: TableConfiguration) -> Path:
    path = column_path(name)
    spelled, data_type = find_column(path, table.schema)
    if data_type is None:
        raise InvalidRequestError(
            f"{'.'.join(path)} is inside an array or a map, where nothing can be assigned",
            remedy="Assign the whole column",
            column=".".join(path),
        )
    top = table.schema.find(spelled[0])
    assert top is not None
    if IDENTITY_START in top.metadata and table.supports("identityColumns"):
        raise InvalidRequestError(
            f"The column {top.name} is an identity column, whose values never change",
            remedy="Leave the column out",
            column=top.name,
        )
    return spelled


def column_path(name: object) -> Path:
    """Return the parts of a column's name as a user writes it, `st.a` or `` `a b`.c ``.

    Raises InvalidRequestError if the text is not a column name.
    """
    if isinstance(name, Column):
        return name.path
    paths: Sequence[Path] = ()
    if isinstance(name, str):
        try:
            paths = parse_column_list(name)
        except ValueError:
            # The name has special characters, which column mapping allows.
            paths = [(name,)] if name.strip() and "`" not in name else ()
    if len(paths) != 1:
        raise InvalidRequestError(
            f"{name!r} names no column", remedy="Write a column, or a field of a struct such as st.a", column=str(name)
        )
    return paths[0]


def _value(name: object, value: object, table: TableConfiguration) -> Expression:
    if isinstance(value, Expression):
        return value
    if not isinstance(value, str):
        return constant_for(value, find_column(_place(name, table), table.schema)[1])
    if value.strip().upper() == "DEFAULT":
        return _default(_place(name, table), table)
    ensure_no_column_in_double_quotes(value, table.schema)
    ensure_no_column_named_as_clock(value, table.schema)
    return parse_row_value(value)


def _default(path: Path, table: TableConfiguration) -> Expression:
    if len(path) > 1:
        raise InvalidRequestError(f"The field {'.'.join(path)} has no default", remedy="Write its value")
    field = table.schema.find(path[0])
    assert field is not None
    return default_of(field, table)


def default_of(field: StructField, table: TableConfiguration) -> Expression:
    """Return the default of a column, or null. A nested default has the column's type. Raises InvalidExpressionError if
    it cannot be parsed."""
    text = field.metadata.get(CURRENT_DEFAULT) if table.supports("allowColumnDefaults") else None
    if not isinstance(text, str):
        return Literal(None)
    from delta_orch.expressions.checked import check_expression

    ensure_definable(field)
    checked = check_expression(text, f"the default of column {field.name}", is_default=True)
    return as_default(parse_row_value(checked.sql), field.data_type)


def ensure_definable(field: StructField) -> None:
    """Raise SchemaMismatchError for a column whose values no expression can compute. A cast of Spark's intervals to
    numbers counts days or hours, but files hold other units."""
    if not all(traits_of(inner).is_computable for inner in types_of(field.data_type)):
        raise SchemaMismatchError(
            f"Column {field.name!r} of type {field.data_type} has a default or is generated",
            cause="Values of intervals and shapes can only come from rows",
            remedy="Remove the definition from the column, and compute its values before writing",
            column=field.name,
        )


def as_default(value: Expression, data_type: DataType) -> Expression:
    """Return a default of a nested type. Spark casts it, and a cast matches fields by position, while an assigned value
    is matched by name."""
    is_nested = isinstance(data_type, StructType | ArrayType | MapType)
    is_cast = is_nested and not isinstance(value, Literal)
    return Cast(value, data_type) if is_cast else value


def resolve_value(value: Expression, schema: StructType) -> Expression:
    """Return a value with resolved columns, in the spelling of the schema.

    Raises ColumnNotFoundError, InvalidExpressionError: The value does not fit the schema.
    """
    match value:
        case Column(path):
            return Column(find_column(path, schema)[0])
        case Opaque(sql, columns):
            found = dict(find_column(c.path, schema) for c in columns)
            for path, data_type in found.items():
                if data_type is not None:
                    ensure_computable(path, data_type)
            return Opaque(sql, tuple(map(Column, found)))
        case Literal() | Cast() | MakeStruct():
            return value
    return resolve_expression(value, schema)


def recomputed_columns(table: TableConfiguration, assignments: Sequence[Assignment]) -> tuple[str, ...]:
    """Return the generated columns that no assignment names. The table computes them again for every changed row."""
    if not table.supports("generatedColumns"):
        return ()
    assigned = {assignment.path[0] for assignment in assignments}
    return tuple(f.name for f in table.schema if GENERATION_EXPRESSION in f.metadata and f.name not in assigned)


def assigned_column(
    field: StructField, assignments: Mapping[Path, tuple[Expression, DataType]], path: Path | None = None
) -> Expression:
    """Return the new value of a column: the assigned value, a struct with some assigned fields, or the column itself.

    Args:
        assignments: Values and their types, by path.
        path: The path of the column in the rows of the expression. None means its own name.

    Raises SchemaMismatchError: A value cannot be cast to its column's type.
    """
    return _assigned(field, (field.name,), (field.name,) if path is None else path, assignments)


def _assigned(
    field: StructField, place: Path, path: Path, assignments: Mapping[Path, tuple[Expression, DataType]]
) -> Expression:
    if place in assignments:
        return cast_to(*assignments[place], field.data_type, ".".join(place))
    below = any(other[: len(place)] == place for other in assignments)
    if not below:
        return Column(path)
    assert isinstance(field.data_type, StructType)
    # If a field of a null struct is assigned, the struct's other fields are null.
    parts = ((f.name, _assigned(f, (*place, f.name), (*path, f.name), assignments)) for f in field.data_type)
    return MakeStruct(tuple(parts))


def cast_to(value: Expression, have: DataType, want: DataType, name: str) -> Expression:
    """Return a value in its column's type, by an ANSI CAST as in Delta on Spark. A value that does not fit raises an
    error while the rows are computed.

    Raises SchemaMismatchError: No cast exists between the types, or a constant does not fit the type.
    """
    if have == want:
        return value
    if isinstance(value, Literal):
        return _fitted(value, have, want, name)
    if have == VOID:
        return value
    if _is_cast(have, want):
        return Cast(value, want)
    if not (traits_of(have).is_atomic or traits_of(want).is_atomic):
        # Nested names are compared with the table's before the first row is written.
        inside = _cast_inside(have, want)
        return value if inside == have else Cast(value, inside)
    raise _unfit(f"a value of type {have}", want, name, "Write a cast into the expression")


def ensure_value_fits(value: Expression, have: DataType, place: Path, schema: StructType, *, fill_nulls: bool) -> None:
    """Check that a value can be cast to the type of its column or field, at every level.

    Args:
        fill_nulls: Structs may lack fields.

    Raises SchemaMismatchError if no cast exists, or if a struct has other fields.
    """
    _, want = find_column(place, schema)
    assert want is not None
    name = ".".join(place)
    cast_to(value, have, want, name)
    if isinstance(value, Literal) or isinstance(have, PrimitiveType | DecimalType):
        return
    shapes = (StructType((StructField(name, data_type),)) for data_type in (_cast_inside(have, want), want))
    ensure_schema_fits(*shapes, fill_nulls=fill_nulls)


def _fitted(literal: Literal, have: DataType, want: DataType, name: str) -> Expression:
    if literal.value is None:
        return Literal(None, want if traits_of(want).is_atomic else None)
    if want == STRING:
        return Cast(literal, want)
    if traits_of(want).is_atomic:
        fitted: Expression | None = None
        try:
            fitted = fit_comparison("=", Column((name,)), want, literal)
        except InvalidExpressionError as e:
            if have == STRING:
                raise _unfit(f"the constant {literal.value!r}", want, name, "Give a constant of that type") from e
        if isinstance(fitted, Comparison) and fitted.op == "=" and isinstance(fitted.right, Literal):
            constant = fitted.right
            if constant.data_type == want:
                return constant
        number = literal.value if isinstance(literal.value, int | Decimal) else 0
        if _is_assignable(have, want) and _has_room(want, number):
            return Cast(literal, want)
    raise _unfit(f"the constant {literal.value!r} of type {have}", want, name, "Give a constant of that type")


def _has_room(want: DataType, number: int | Decimal) -> bool:
    if isinstance(want, DecimalType):
        room = Decimal(10).scaleb(want.precision - want.scale - 1)
        return -room < number < room
    bounds = INTEGRAL_RANGES.get(want)
    # The cast truncates digits after the point.
    return bounds is None or bounds[0] - 1 < number < bounds[1] + 1


def _cast_inside(have: DataType, want: DataType) -> DataType:
    """Return the type of a nested value whose parts are cast: its own names in their order, with the types of `want`. A
    part without a cast or a counterpart keeps its type."""
    if have == VOID or _is_cast(have, want):
        return want
    if type(have) is not type(want):
        return have

    def of_part(name: str, inner: DataType) -> DataType:
        field = part_at(want, name)
        return inner if field is None else _cast_inside(inner, field[1])

    return with_parts(have, of_part)


def _is_cast(have: DataType, want: DataType) -> bool:
    # A cast of a struct to a variant makes an object of it, not the variant that it stores.
    return want != VARIANT and (is_lossless_cast(have, want) or _is_assignable(have, want))


def _is_assignable(have: DataType, want: DataType) -> bool:
    """The casts between atomic types that ANSI allows."""
    if not (traits_of(have).is_atomic and traits_of(want).is_atomic):
        return False
    if STRING in (have, want):
        return True
    if have in _MOMENTS:
        return want in _MOMENTS or (have == TIMESTAMP and _is_number(want))
    if want in _MOMENTS:
        return want == TIMESTAMP and _is_number(have)
    return all(kind == BOOLEAN or _is_number(kind) for kind in (have, want))


def _is_number(data_type: DataType) -> bool:
    return data_type in INTEGRAL_RANGES or data_type in (FLOAT, DOUBLE) or isinstance(data_type, DecimalType)


def _unfit(what: str, want: DataType, name: str, remedy: str) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"The column {name} of type {want} cannot hold {what}", remedy=f"{remedy}; the table is unchanged", column=name
    )
