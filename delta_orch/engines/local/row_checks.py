"""Conditions that every written row must satisfy, verified batch by batch before the batch is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.base import LengthCheck, RowCheck
from delta_orch.errors import ConstraintViolationError, InvalidVariantError, SchemaMismatchError
from delta_orch.expressions.to_arrow import arrow_predicate
from delta_orch.expressions.to_sql import to_shown_sql
from delta_orch.expressions.tree import columns_of, is_opaque
from delta_orch.protocol.arrow_building import literal_array, map_entries, python_values
from delta_orch.protocol.types import BOOLEAN, ArrayType, DataType, MapType, StructType, holds_variant, not_null_places

BatchCheck = Callable[[pa.RecordBatch], None]
_MAX_VALUE_CHARACTERS = 200
_MAX_ROW_CHARACTERS = 2000


def batch_checks(
    schema: StructType, checks: Sequence[RowCheck], lengths: Sequence[LengthCheck] = ()
) -> tuple[BatchCheck, ...]:
    """One function a condition, NOT NULL of the schema first, then declared lengths; each raises
    ConstraintViolationError, and the one that looks at variants SchemaMismatchError.

    Raises UnsupportedExpressionError for a check that the local engine cannot evaluate.
    """
    all_checks = list(type_checks(schema, is_of_table=True))
    all_checks.extend(_length_check(check, schema) for check in lengths)
    all_checks.extend(_row_check(check, schema) for check in checks)
    return tuple(all_checks)


def type_checks(schema: StructType, *, is_of_table: bool = False) -> tuple[BatchCheck, ...]:
    """Of `batch_checks`, those that the types alone ask for.

    Args:
        is_of_table: The schema is a table's, whose nested NOT NULL also requires the struct around it. The Arrow type
            does not cover fields of a null struct.
    """
    checks: list[BatchCheck] = []
    if _holds_not_null(schema):
        checks.append(lambda batch: _ensure_not_null(batch, schema, is_of_table=is_of_table))
    if holds_variant(schema):
        checks.append(lambda batch: _ensure_variants(batch, schema))
    return tuple(checks)


def _holds_not_null(data_type: DataType) -> bool:
    return any(True for _ in not_null_places(data_type))


def _ensure_not_null(batch: pa.RecordBatch, schema: StructType, *, is_of_table: bool) -> None:
    for index, field in enumerate(schema):
        column = batch.column(index)
        for path, missing in _missing_values(column, field.data_type, field.nullable, field.name, not is_of_table):
            cause = f"The column {path} is NOT NULL"
            _refuse(f"NOT NULL constraint on {path}", cause, pc.filter(batch, missing), (field.name,))


def _ensure_variants(batch: pa.RecordBatch, schema: StructType) -> None:
    from delta_orch.protocol.variant.reconstruct import ensure_variants

    for index, field in enumerate(schema):
        if holds_variant(field.data_type):
            try:
                ensure_variants(batch.column(index), field.data_type)
            except InvalidVariantError as e:
                raise SchemaMismatchError(
                    f"The column {field.name} holds a value that is not a variant",
                    cause=e.cause or e.problem,
                    remedy="Make variants of JSON text with delta_orch.variant.json_to_variant",
                    column=field.name,
                ) from e


def _missing_values(
    array: pa.Array, data_type: DataType, nullable: bool, path: str, is_inside: bool = False
) -> Iterator[tuple[str, pa.BooleanArray]]:
    """`(path, rows)` for each place below a column where a null stands that must not. `is_inside`: below an array or a
    map, where fields of a null struct are ignored."""
    if not nullable and array.null_count:
        yield path, pc.is_null(array)
    if not _holds_not_null(data_type):
        return
    match data_type:
        case StructType(fields):
            present = pc.is_valid(array)
            for child, field in zip(array.flatten(), fields, strict=True):
                # A null struct has null fields, as for Delta on Spark, which looks at no field inside arrays and maps.
                below = f"{path}.{field.name}"
                for name, missing in _missing_values(child, field.data_type, field.nullable, below, is_inside):
                    if pc.any(rows := pc.and_(missing, present) if is_inside else missing).as_py():
                        yield name, rows
        case ArrayType(element_type, contains_null):
            parents = pc.list_parent_indices(array)
            for name, missing in _missing_values(
                pc.list_flatten(array), element_type, contains_null, f"{path}.element", is_inside=True
            ):
                yield name, _rows_of(pc.filter(parents, missing), len(array))
        case MapType(key_type, value_type, value_contains_null):
            rows, keys, items = map_entries(array)
            for values, kind, may_be_null, part in (
                (keys, key_type, False, "key"),
                (items, value_type, value_contains_null, "value"),
            ):
                for name, missing in _missing_values(values, kind, may_be_null, f"{path}.{part}", is_inside=True):
                    yield name, _rows_of(pc.filter(rows, missing), len(array))


def _rows_of(indices: pa.Array, num_rows: int) -> pa.BooleanArray:
    row_numbers = set(indices.to_pylist())
    return literal_array([row in row_numbers for row in range(num_rows)], BOOLEAN)


def _length_check(check: LengthCheck, schema: StructType) -> BatchCheck:
    index = schema.place(check.path[0])
    assert index is not None

    def verify(batch: pa.RecordBatch) -> None:
        column = batch.column(index)
        texts, rows = _items_at(column, schema.fields[index].data_type, check.path[1:], None)
        lengths = pc.utf8_length(texts)
        longest = pc.max(lengths).as_py()
        if longest is None or longest <= check.max_characters:
            return
        places = pc.indices_nonzero(pc.greater(lengths, check.max_characters))
        text = _shorten(texts[places[0].as_py()].as_py())
        hit = _rows_of(places if rows is None else pc.take(rows, places), len(column))
        cause = f"{text!r} has {lengths[places[0].as_py()]} characters"
        _refuse(check.name, cause, pc.filter(batch, hit), (check.path[0],))

    return verify


def _items_at(
    array: pa.Array, data_type: DataType, path: Sequence[str], rows: pa.Array | None
) -> tuple[pa.Array, pa.Array | None]:
    """The values at a path below a column, with their row numbers; None if these are their own positions."""
    if not path:
        return array, rows
    match data_type:
        case StructType():
            place = data_type.place(path[0])
            assert place is not None
            return _items_at(array.flatten()[place], data_type.fields[place].data_type, path[1:], rows)
        case ArrayType(element_type):
            parents, items, inner = pc.list_parent_indices(array), pc.list_flatten(array), element_type
        case MapType(key_type, value_type):
            inner = key_type if path[0] == "key" else value_type
            parents, keys, values = map_entries(array)
            items = keys if path[0] == "key" else values
        case _:
            raise AssertionError(f"nothing is below {data_type}")
    return _items_at(items, inner, path[1:], parents if rows is None else pc.take(rows, parents))


def _row_check(check: RowCheck, schema: StructType) -> BatchCheck:
    read = tuple(dict.fromkeys(column.path[0] for column in columns_of(check.condition)))
    violations = _violation_finder(check, schema)

    def verify(batch: pa.RecordBatch) -> None:
        offending = violations(batch)
        if offending.num_rows:
            _refuse(check.name, f"It must satisfy {to_shown_sql(check.condition)}", offending, read)

    return verify


def _violation_finder(check: RowCheck, schema: StructType) -> Callable[[pa.RecordBatch], pa.Table]:
    if is_opaque(check.condition):
        from delta_orch.engines.local.duckdb_requests import violation_finder

        return violation_finder(check.condition, schema)
    holds = arrow_predicate(check.condition, schema)
    return lambda batch: pa.Table.from_batches([pc.filter(batch, pc.invert(pc.coalesce(holds(batch), False)))])


def _refuse(name: str, cause: str, offending: pa.Table | pa.RecordBatch, read: Sequence[str]) -> None:
    """Raise the error, with the first such row: what the condition looks at comes first."""
    names = offending.schema.names
    order = [*(n for n in read if n in names), *(n for n in names if n not in read)]
    row = {key: _shorten(_python_value(offending.column(key)[0])) for key in order}
    shown = _shorten(", ".join(f"{key}={value!r}" for key, value in row.items()), _MAX_ROW_CHARACTERS)
    more = offending.num_rows - 1
    raise ConstraintViolationError(
        f"A row violates the {name}" if "constraint" in name else f"A row violates {name}",
        cause=f"{cause}; the row is {shown}" + (f", and {more} more of the same batch" if more else ""),
        remedy="Correct or leave out such rows; the table is unchanged",
        constraint=name,
        row=row,
    )


def _python_value(scalar: pa.Scalar) -> object:
    return python_values(pa.repeat(scalar, 1))[0]


def _shorten(value: object, characters: int = _MAX_VALUE_CHARACTERS) -> object:
    if isinstance(value, str | bytes) and len(value) > characters:
        return value[:characters]
    return value
