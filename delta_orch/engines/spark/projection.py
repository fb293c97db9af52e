"""The rows of a write, in the table's columns and types, each checked while it is written.

A check must sit in a column that is written: Spark prunes it away anywhere else, and it never runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from delta_orch.engines.base import LengthCheck, RowCheck, WriteSpec
from delta_orch.engines.file_schema import CHANGE_TYPE, columns_in_files
from delta_orch.engines.spark.errors import CHECK_MARK
from delta_orch.engines.spark.filled_columns import SelectList, filled_columns, numbered_columns
from delta_orch.engines.spark.partition_text import partition_text_sql
from delta_orch.engines.spark.sql_text import convert_sql, same_values
from delta_orch.expressions.spark_literals import quote_identifier, quote_string
from delta_orch.expressions.to_sql import to_spark_sql
from delta_orch.expressions.tree import columns_of
from delta_orch.protocol.types import VARIANT, VOID, ArrayType, DataType, MapType, StructType

_MAX_ROW_CHARS = 2000


@dataclass(frozen=True, slots=True)
class SqlCheck:
    """`condition` is Spark SQL over the table's columns; anything but true is a violation of `name`. `columns` are the
    top-level ones it reads, as far as that is known."""

    name: str
    condition: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteProjection:
    """SELECT lists, each over the one before.

    Attributes:
        filled: Every column of the table and the extra ones, in their types, but for those in `numbered`.
        numbered: Identity columns, and what is generated from them; none without identity columns. Where a row gets its
            values its file must be written as well, with no shuffle in between: a shuffle that Spark has to repeat may
            see the rows in another order, and hand out values twice.
        written: The columns of the files, checked, then a text for each partition column.
        partition_columns: The names of those texts, as they become directory names.
        check_names: What the checks are called, by the index in their message.
    """

    filled: tuple[SelectList, ...]
    numbered: tuple[SelectList, ...]
    written: SelectList
    partition_columns: tuple[str, ...]
    check_names: tuple[str, ...]


def plan_projection(
    source: StructType, spec: WriteSpec, *, is_time_zone_pinned: bool, max_tasks: int = 1
) -> WriteProjection:
    """Plan the columns of a write.

    Args:
        max_tasks: The most tasks that rows come from. Identity values are shared out among as many.

    Raises SchemaMismatchError: A column is missing or ambiguous, or nothing is left to write into files.
    """
    in_files = columns_in_files(spec)
    checks = _all_checks(spec)
    converted = {f.name: f.data_type for f in spec.written_schema}
    written = []
    for f in in_files.logical:
        value = quote_identifier(f.name)
        if f.name == CHANGE_TYPE and spec.change_type is not None:
            value = quote_string(spec.change_type)
        elif not same_values(converted[f.name], f.data_type):
            value = convert_sql(value, converted[f.name], f.data_type)
        written.append(value)
    if checks:
        written[0] = _guarded(written[0], checks, spec.schema)
    names = in_files.logical.names
    labels = _partition_labels(spec)
    texts = [
        f"{_partition_text(spec, name, is_time_zone_pinned)} AS {quote_identifier(label)}"
        for name, label in zip(spec.partition_columns, labels, strict=True)
    ]
    return WriteProjection(
        filled=filled_columns(source, spec),
        numbered=numbered_columns(spec, max_tasks),
        written=(*(f"{v} AS {quote_identifier(n)}" for v, n in zip(written, names, strict=True)), *texts),
        partition_columns=labels,
        check_names=tuple(check.name for check in checks),
    )


def plan_rows(source: StructType, spec: WriteSpec, *, max_tasks: int = 1) -> WriteProjection:
    """Plan rows that another writer makes files of: all columns of the table and the extra ones, checked, in the
    table's types and under its names. Raises as `plan_projection`."""
    checks = _all_checks(spec)
    written = [quote_identifier(f.name) for f in spec.written_schema]
    if checks:
        written[0] = f"{_guarded(written[0], checks, spec.schema)} AS {written[0]}"
    return WriteProjection(
        filled=filled_columns(source, spec),
        numbered=numbered_columns(spec, max_tasks),
        written=tuple(written),
        partition_columns=spec.partition_columns,
        check_names=tuple(check.name for check in checks),
    )


def _partition_labels(spec: WriteSpec) -> tuple[str, ...]:
    """Names of directories. Spark takes the columns it names directories by out of the files, so a column that is to
    stay in them lends its name to none; and a JVM in a POSIX locale knows ASCII alone."""
    return tuple(
        f"delta_orch_{i}" if spec.keep_partition_columns or not name.isascii() else name
        for i, name in enumerate(spec.partition_names)
    )


def _partition_text(spec: WriteSpec, name: str, is_time_zone_pinned: bool) -> str:
    field = spec.schema.find(name)
    assert field is not None
    value = quote_identifier(field.name)
    return partition_text_sql(value, field.data_type, is_time_zone_pinned=is_time_zone_pinned)


def _identity_checks(spec: WriteSpec) -> Iterator[SqlCheck]:
    for identity in spec.identities:
        name = f"range of identity column {identity.name}, whose values are used up"
        yield SqlCheck(name, f"{quote_identifier(identity.name)} IS NOT NULL")


def _all_checks(spec: WriteSpec) -> tuple[SqlCheck, ...]:
    lengths = (length_check(spec.schema, check) for check in spec.lengths)
    return (*_row_checks(spec), *lengths, *_identity_checks(spec), *_null_checks(spec.schema))


def _row_checks(spec: WriteSpec) -> tuple[SqlCheck, ...]:
    return tuple(SqlCheck(c.name, to_spark_sql(c.condition), _columns_read(c)) for c in spec.checks)


def _columns_read(check: RowCheck) -> tuple[str, ...]:
    return tuple(dict.fromkeys(column.path[0] for column in columns_of(check.condition)))


def _null_checks(schema: StructType) -> Iterator[SqlCheck]:
    for f in schema:
        column = quote_identifier(f.name)
        if not f.nullable:
            yield SqlCheck(f"NOT NULL constraint on {f.name}", f"{column} IS NOT NULL", (f.name,))
        for path, condition in _nested_null_checks(f.data_type, column, f.name, 0):
            yield SqlCheck(f"NOT NULL constraint on {path}", condition, (f.name,))


def _nested_null_checks(data_type: DataType, value: str, path: str, depth: int) -> Iterator[tuple[str, str]]:
    """A NOT NULL field counts only where its parent is there."""
    item = f"delta_orch_{depth}"
    match data_type:
        case StructType(fields):
            for f in fields:
                inner, inner_path = f"{value}.{quote_identifier(f.name)}", f"{path}.{f.name}"
                if not f.nullable:
                    yield inner_path, f"({value} IS NULL OR {inner} IS NOT NULL)"
                for found_path, condition in _nested_null_checks(f.data_type, inner, inner_path, depth):
                    yield found_path, f"({value} IS NULL OR {condition})"
        case ArrayType(element_type, contains_null):
            yield from _item_checks(value, element_type, contains_null, f"{path}.element", item, depth)
        case MapType(key_type, value_type, value_contains_null):
            yield from _item_checks(f"map_keys({value})", key_type, True, f"{path}.key", item, depth)
            yield from _item_checks(
                f"map_values({value})", value_type, value_contains_null, f"{path}.value", item, depth
            )


def _item_checks(
    items: str, data_type: DataType, contains_null: bool, path: str, item: str, depth: int
) -> Iterator[tuple[str, str]]:
    if not contains_null:
        yield path, f"({items} IS NULL OR forall({items}, {item} -> {item} IS NOT NULL))"
    for found_path, condition in _nested_null_checks(data_type, item, path, depth + 1):
        yield found_path, f"({items} IS NULL OR forall({items}, {item} -> {condition}))"


def length_check(schema: StructType, check: LengthCheck) -> SqlCheck:
    """The condition that no text at a place is too long."""
    column, *places = check.path
    field = schema.find(column)
    assert field is not None
    condition = _length_condition(quote_identifier(column), field.data_type, places, check.max_characters, 0)
    return SqlCheck(check.name, condition, (column,))


def _length_condition(value: str, data_type: DataType, places: Sequence[str], limit: int, depth: int) -> str:
    """Spark SQL that is true where there is nothing, too, and never null."""
    item = f"delta_orch_{depth}"
    match data_type:
        case StructType() if places:
            field = data_type.find(places[0])
            assert field is not None
            inner = f"{value}.{quote_identifier(field.name)}"
            return f"({value} IS NULL OR {_length_condition(inner, field.data_type, places[1:], limit, depth)})"
        case ArrayType(element_type) if places:
            items, inner_type = value, element_type
        case MapType(key_type, value_type) if places:
            is_key = places[0] == "key"
            items, inner_type = f"map_{'keys' if is_key else 'values'}({value})", key_type if is_key else value_type
        case _:
            return f"({value} IS NULL OR length({value}) <= {limit})"
    held = _length_condition(item, inner_type, places[1:], limit, depth + 1)
    return f"({items} IS NULL OR forall({items}, {item} -> {held}))"


def _guarded(column: str, checks: Sequence[SqlCheck], schema: StructType) -> str:
    """The column, or an error that tells which check failed and shows the row."""
    which = " ".join(f"WHEN NOT (({check.condition}) <=> TRUE) THEN '{i}'" for i, check in enumerate(checks))
    row = _row_json(schema, dict.fromkeys(name for check in checks for name in check.columns))
    held = " AND ".join(f"(({check.condition}) <=> TRUE)" for check in checks)
    return (
        f"CASE WHEN {held} THEN {column} ELSE raise_error(concat({quote_string(f'[{CHECK_MARK} ')}, CASE {which} END, "
        f"']', {row}, {quote_string(f'[end of {CHECK_MARK}]')})) END"
    )


def _row_json(schema: StructType, first: Iterable[str]) -> str:
    """The row, what the checks look at before the rest: it may be cut."""
    names = dict.fromkeys((*first, *schema.names))
    fields = (f for name in names if (f := schema.find(name)) is not None)
    shown = [quote_identifier(f.name) for f in fields if f.data_type not in (VARIANT, VOID)]
    if not shown:
        return "'{}'"
    text = f"to_json(struct({', '.join(shown)}), map('ignoreNullFields', 'false'))"
    return f"substring({text}, 1, {_MAX_ROW_CHARS})"
