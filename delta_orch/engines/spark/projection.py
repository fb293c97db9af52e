"""The rows of a write, in the table's columns and types, each checked while it is written.

A check must sit in a column that is written: Spark prunes it away anywhere else, and it never runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from delta_orch.engines.base import WriteSpec
from delta_orch.engines.spark.errors import CHECK_MARK
from delta_orch.engines.spark.partition_text import partition_text_sql
from delta_orch.engines.spark.sql_text import convert_sql
from delta_orch.errors import SchemaMismatchError
from delta_orch.expressions.spark_literals import quote_identifier, quote_string
from delta_orch.expressions.to_sql import to_spark_sql
from delta_orch.protocol.types import VARIANT, VOID, ArrayType, DataType, MapType, StructType

_MAX_ROW_CHARS = 2000


@dataclass(frozen=True, slots=True)
class SqlCheck:
    """`condition` is Spark SQL over the table's columns; anything but true is a violation of `name`."""

    name: str
    condition: str


@dataclass(frozen=True, slots=True)
class WriteProjection:
    """Two SELECT lists, the second over the first.

    Attributes:
        converted: Every column of the table, in its type.
        written: The data columns, checked, then a text for each partition column.
        partition_columns: The names of those texts, as they become directory names.
        check_names: What the checks are called, by the index in their message.
    """

    converted: tuple[str, ...]
    written: tuple[str, ...]
    partition_columns: tuple[str, ...]
    check_names: tuple[str, ...]


def plan_projection(source: StructType, spec: WriteSpec, *, is_time_zone_pinned: bool) -> WriteProjection:
    """Plan the columns of a write.

    Raises SchemaMismatchError: A column is missing or ambiguous, or nothing is left to write into files.
    """
    partition_fields = [spec.schema.find(name) for name in spec.partition_columns]
    partition_names = {f.name for f in partition_fields if f is not None}
    data_names = [f.name for f in spec.schema if f.name not in partition_names and f.data_type != VOID]
    if not data_names:
        raise SchemaMismatchError(
            "The table has no column besides its partition columns", cause="A data file needs at least one column"
        )
    checks = (*_row_checks(spec), *_null_checks(spec.schema))
    written = [quote_identifier(name) for name in data_names]
    if checks:
        written[0] = f"{_guarded(written[0], checks, spec.schema)} AS {quote_identifier(data_names[0])}"
    labels = []
    for i, f in enumerate(partition_fields):
        assert f is not None
        label = f.name if f.name.isascii() else f"delta_orch_{i}"
        labels.append(label)
        text = partition_text_sql(quote_identifier(f.name), f.data_type, is_time_zone_pinned=is_time_zone_pinned)
        written.append(f"{text} AS {quote_identifier(label)}")
    return WriteProjection(
        converted=tuple(_converted(source, spec.schema)),
        written=tuple(written),
        partition_columns=tuple(labels),
        check_names=tuple(check.name for check in checks),
    )


def _converted(source: StructType, target: StructType) -> Iterator[str]:
    folded = [name.lower() for name in source.names]
    for f in target:
        found = source.find(f.name)
        if found is None or folded.count(f.name.lower()) > 1:
            raise SchemaMismatchError(
                f"Column {f.name} {'is missing from' if found is None else 'occurs twice in'} the data",
                remedy="Give the data exactly the table's columns",
                column=f.name,
            )
        value = convert_sql(quote_identifier(found.name), found.data_type, f.data_type)
        yield f"{value} AS {quote_identifier(f.name)}"


def _row_checks(spec: WriteSpec) -> tuple[SqlCheck, ...]:
    return tuple(SqlCheck(check.name, to_spark_sql(check.condition)) for check in spec.checks)


def _null_checks(schema: StructType) -> Iterator[SqlCheck]:
    for f in schema:
        column = quote_identifier(f.name)
        if not f.nullable:
            yield SqlCheck(f"NOT NULL constraint on {f.name}", f"{column} IS NOT NULL")
        for path, condition in _nested_null_checks(f.data_type, column, f.name, 0):
            yield SqlCheck(f"NOT NULL constraint on {path}", condition)


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


def _guarded(column: str, checks: tuple[SqlCheck, ...], schema: StructType) -> str:
    row = _row_json(schema)
    branches = " ".join(
        f"WHEN NOT (({check.condition}) <=> TRUE) THEN raise_error(concat("
        f"{quote_string(f'[{CHECK_MARK} {i}]')}, {row}, {quote_string(f'[end of {CHECK_MARK}]')}))"
        for i, check in enumerate(checks)
    )
    return f"CASE {branches} ELSE {column} END"


def _row_json(schema: StructType) -> str:
    shown = [quote_identifier(f.name) for f in schema if f.data_type not in (VARIANT, VOID)]
    if not shown:
        return "'{}'"
    text = f"to_json(struct({', '.join(shown)}), map('ignoreNullFields', 'false'))"
    return f"substring({text}, 1, {_MAX_ROW_CHARS})"
