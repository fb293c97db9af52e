"""The rows of a write as SELECT lists, with the table's columns in its types. Each row is checked while it is written.

A check must be in a column that is written. Anywhere else, Spark removes it from the plan, and it never runs.

Spark's writer separates partition values only by directory. Without encoding, null, the empty string and the string
`__HIVE_DEFAULT_PARTITION__` share one directory, and a JVM in a POSIX locale turns every `é` into `?`. So the writer
gets ASCII texts that can be decoded without loss. The log gets the decoded values, and no reader parses directory
names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from delta_orch.engines.base import ComputedColumn, IdentityValues, WriteSpec
from delta_orch.engines.file_schema import CHANGE_TYPE, columns_in_files
from delta_orch.engines.spark.errors import CHECK_MARK
from delta_orch.engines.spark.sql_text import bounded_sql, convert_sql, field_of, timestamp_ntz_sql
from delta_orch.errors import SchemaMismatchError
from delta_orch.expressions.spark_literals import quote_identifier, quote_string, type_sql
from delta_orch.expressions.to_sql import to_spark_sql
from delta_orch.expressions.tree import columns_of
from delta_orch.protocol.partition_values import HIVE_NULL, parse_partition_value, serialize_partition_value
from delta_orch.protocol.schema_edit import type_at
from delta_orch.protocol.types import (
    BINARY,
    STRING,
    TIMESTAMP,
    VARIANT,
    VOID,
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
    as_stored,
    holds_variant,
    not_null_places,
)

SelectList = tuple[str, ...]

_MAX_ROW_CHARS = 2000
_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
_ROW = "delta_orch_row"
_ROW_IN_TASK = (1 << 33) - 1
"""The bits of `monotonically_increasing_id()` that count the rows of one task. The other bits are the task's number."""
_HEX_MARK = "utf8-hex-"
_HIVE_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")


class SqlCheck(NamedTuple):
    """A check of each row. `condition` is Spark SQL over the table's columns. A row violates `name` unless the
    condition is true. `columns` are the top-level columns that it reads, if they are known."""

    name: str
    condition: str
    columns: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class WriteProjection:
    """The SELECT lists of a write, each over the previous one.

    Attributes:
        filled: All columns of the table and the extra columns, in their types, except those in `numbered`.
        numbered: Identity columns, and columns that are generated from them. Empty without identity columns. The task
            that assigns the values of a row must also write its file, without a shuffle in between. A repeated shuffle
            may return the rows in another order and assign values twice.
        written: The checked columns to write, then a text for each partition column of Spark's writer.
        partition_columns: The names of these texts, which become directory names. Otherwise the table's partition
            columns.
        check_names: The names of the checks, by the index in their message.
    """

    filled: tuple[SelectList, ...]
    numbered: tuple[SelectList, ...]
    written: SelectList
    partition_columns: tuple[str, ...]
    check_names: tuple[str, ...]


def plan_projection(source: StructType, spec: WriteSpec, *, in_tasks: bool, max_tasks: int) -> WriteProjection:
    """Plan the columns of a write.

    Args:
        source: The schema of the rows.
        in_tasks: Whether Arrow writes the files in Spark's tasks, from all columns of the table and the extra columns.
            Otherwise Spark's writer writes them, from the columns that files have.
        max_tasks: The maximal number of tasks that rows come from. Identity values are shared out among as many.

    Raises SchemaMismatchError: A column is missing or ambiguous, its type cannot be converted to the table's, or files
    would have no column.
    """
    columns = spec.written_schema if in_tasks else columns_in_files(spec).logical
    values = [_value_in_files(f, spec) for f in columns]
    checks = tuple(_all_checks(spec))
    if checks:
        values[0] = _guarded(values[0], checks, spec.schema)
    labels = spec.partition_columns if in_tasks else _partition_labels(spec)
    texts = () if in_tasks else (_partition_text(spec, name) for name in spec.partition_columns)
    filled, numbered = _filled_columns(source, spec), _numbered_columns(spec, max_tasks)
    # The last of them: what is generated is told of the rows as they came, and checks see what the log will say.
    blanked = _blank_to_null(spec)
    return WriteProjection(
        filled=filled if numbered else (*filled, *blanked),
        numbered=(*numbered, *blanked) if numbered else (),
        written=(
            *(f"{value} AS {quote_identifier(f.name)}" for value, f in zip(values, columns, strict=True)),
            *(f"{text} AS {quote_identifier(label)}" for text, label in zip(texts, labels, strict=False)),
        ),
        partition_columns=labels,
        check_names=tuple(check.name for check in checks),
    )


def _value_in_files(field: StructField, spec: WriteSpec) -> str:
    if field.name == CHANGE_TYPE and spec.change_type is not None:
        return quote_string(spec.change_type)
    filled = field_of(spec.written_schema, field.name)
    return convert_sql(quote_identifier(field.name), filled.data_type, field.data_type)


def _partition_labels(spec: WriteSpec) -> tuple[str, ...]:
    """Return names for directories. Spark removes partition columns from the files, so a column that must stay in the
    files cannot name a directory. A JVM in a POSIX locale supports only ASCII."""
    return tuple(
        f"delta_orch_{i}" if spec.keep_partition_columns or not name.isascii() else name
        for i, name in enumerate(spec.partition_names)
    )


def _partition_text(spec: WriteSpec, name: str) -> str:
    """Return SQL for the text of a partition value. Null stays null."""
    field = field_of(spec.schema, name)
    value, data_type = quote_identifier(field.name), field.data_type
    if data_type == BINARY:
        return f"hex({value})"
    if data_type == TIMESTAMP:
        # The text is in UTC, independent of the session's time zone.
        return f"CAST({timestamp_ntz_sql(f'unix_micros({value})')} AS STRING)"
    if data_type != STRING:
        return f"CAST({value} AS STRING)"
    is_plain = (
        f"octet_length({value}) = length({value}) AND NOT startswith({value}, {quote_string(HIVE_NULL)}) "
        f"AND NOT startswith({value}, {quote_string(_HEX_MARK)})"
    )
    return f"CASE WHEN {is_plain} THEN {value} ELSE concat({quote_string(_HEX_MARK)}, hex({value})) END"


def parse_partition_directory(directory: str, data_types: Sequence[DataType]) -> tuple[str | None, ...]:
    """Return the log's partition values of `a=1/b=x`, one for each partition column, in order."""
    segments = directory.split("/")[-len(data_types) :] if data_types else []
    values = []
    for segment, data_type in zip(segments, data_types, strict=True):
        _, _, escaped = segment.partition("=")
        text = None if escaped == HIVE_NULL else _HIVE_ESCAPE.sub(lambda m: chr(int(m[1], 16)), escaped)
        values.append(serialize_partition_value(_partition_value(text, data_type), data_type))
    return tuple(values)


def _partition_value(text: str | None, data_type: DataType) -> object:
    if text is None:
        return None
    if data_type == BINARY:
        return bytes.fromhex(text)
    if data_type == STRING and text.startswith(_HEX_MARK):
        return bytes.fromhex(text.removeprefix(_HEX_MARK)).decode()
    return parse_partition_value(text, as_stored(data_type))


def _filled_columns(source: StructType, spec: WriteSpec) -> tuple[SelectList, ...]:
    """Return SELECT lists, each over the previous one, for all columns except identity columns and columns that are
    generated from them.

    Raises SchemaMismatchError: A column is ambiguous, or its type cannot be converted to the table's.
    """
    generated = [column for column in spec.generated if not _needs_identity(column, spec)]
    converted = tuple(_converted(source, spec))
    # No list at all of no columns: a row is a row.
    return (converted or ("1 AS delta_orch_nothing",), *_generated(generated, spec.schema))


def _numbered_columns(spec: WriteSpec, max_tasks: int) -> tuple[SelectList, ...]:
    """Return SELECT lists that add identity columns and columns that are generated from them.

    Args:
        max_tasks: The maximal number of tasks that rows come from.
    """
    if not spec.identities:
        return ()
    generated = [column for column in spec.generated if _needs_identity(column, spec)]
    values = (f"{_identity_value(i, max_tasks)} AS {quote_identifier(i.name)}" for i in spec.identities)
    return (
        ("*", f"monotonically_increasing_id() AS {_ROW}"),
        ("*", *values),
        *_generated(generated, spec.schema),
    )


def is_known_before_numbers(spec: WriteSpec) -> bool:
    """Whether the partition of a row does not depend on its identity values."""
    late = {*(i.name for i in spec.identities), *(c.name for c in spec.generated if _needs_identity(c, spec))}
    return late.isdisjoint(spec.partition_columns)


def _blank_to_null(spec: WriteSpec) -> tuple[SelectList, ...]:
    """Return the list that replaces an empty text in a partition column by null, as in the log (PROTOCOL, "Partition
    Value Serialization"). No list if no partition column is a text."""
    values = {f.name: quote_identifier(f.name) for f in spec.written_schema}
    blank = {f.name for f in spec.schema if f.name in spec.partition_columns and f.data_type in (STRING, BINARY)}
    if not blank:
        return ()
    return (
        tuple(
            f"CASE WHEN octet_length({value}) > 0 THEN {value} END AS {value}" if name in blank else value
            for name, value in values.items()
        ),
    )


def _needs_identity(column: ComputedColumn, spec: WriteSpec) -> bool:
    if not spec.identities:
        return False
    names = {identity.name.lower() for identity in spec.identities}
    columns = columns_of(column.value)
    # The columns of text that only Spark can parse are unknown, so the later list is the safe one.
    return not columns or any(part.lower() in names for node in columns for part in node.path)


def _converted(source: StructType, spec: WriteSpec) -> Iterator[str]:
    folded = [name.lower() for name in source.names]
    values = {column.name: f"({to_spark_sql(column.value)})" for column in spec.defaults}
    later = {*(column.name for column in spec.generated), *(identity.name for identity in spec.identities)}
    for f in spec.written_schema:
        if f.name in later:
            continue
        if folded.count(f.name.lower()) > 1:
            raise SchemaMismatchError(
                f"Column {f.name} occurs twice in the data",
                remedy="Rename or drop one of these columns in the data",
                column=f.name,
            )
        field = None if f.name in values else source.find(f.name)
        if field is not None:
            _ensure_variants(field.data_type, f.data_type, f.name)
            value = convert_sql(quote_identifier(field.name), field.data_type, f.data_type)
        else:
            value = f"CAST({values.get(f.name, 'NULL')} AS {type_sql(f.data_type)})"
        yield f"{value} AS {quote_identifier(f.name)}"


def _ensure_variants(source: DataType, target: DataType, name: str) -> None:
    """Refuse values that are not variants yet (`variant_input`), because Spark's cast would wrap them."""
    if holds_variant(target) and not holds_variant(source) and source != VOID:
        raise SchemaMismatchError(
            f"The column {name} is {source}, the table has {target}",
            remedy="Pass a VARIANT column (parse_json), or a struct of metadata and value, both binary",
            column=name,
        )


def _identity_value(identity: IdentityValues, max_tasks: int) -> str:
    """Return SQL for an identity value. The n-th row of task t gets value number `n * max_tasks + t`, so values are
    unique without communication between tasks. It is null when the values are exhausted, and a check reports that."""
    limit = _LONG_MAX if identity.step > 0 else _LONG_MIN
    # The number of values may exceed the greatest long.
    last = min((limit - identity.first) // identity.step, _LONG_MAX)
    number = f"(shiftright({_ROW}, 33) + {max_tasks}L * ({_ROW} & {_ROW_IN_TASK}L))"
    value = f"{_long(identity.first)} + {_long(identity.step)} * {number}"
    return f"CASE WHEN {number} <= {last}L THEN {value} END"


def _long(value: int) -> str:
    # The parser reads the minus sign and the digits separately, so the least long overflows.
    return f"({value}L)" if value > _LONG_MIN else f"({value + 1}L - 1L)"


def _generated(columns: Sequence[ComputedColumn], schema: StructType) -> Iterator[SelectList]:
    """Return the list that adds columns, if there are any."""
    texts = []
    for column in columns:
        field = field_of(schema, column.name)
        value = f"CAST(({to_spark_sql(column.value)}) AS {type_sql(field.data_type)})"
        texts.append(f"{value} AS {quote_identifier(field.name)}")
    if texts:
        yield ("*", *texts)


def _all_checks(spec: WriteSpec) -> Iterator[SqlCheck]:
    for check in spec.checks:
        yield SqlCheck(check.name, bounded_sql(check.condition), [c.path[0] for c in columns_of(check.condition)])
    for length in spec.lengths:
        condition = _at_place(spec.schema, length.path, partial(_fits, length.max_characters))
        yield SqlCheck(length.name, condition, length.path[:1])
    for identity in spec.identities:
        name = f"range of identity column {identity.name}, whose values are used up"
        yield SqlCheck(name, f"{quote_identifier(identity.name)} IS NOT NULL")
    for path in not_null_places(spec.schema):
        condition = _present(spec.schema, path)
        yield SqlCheck(f"NOT NULL constraint on {'.'.join(path)}", condition, path[:1])


def _present(schema: StructType, path: Sequence[str]) -> str:
    if all(isinstance(type_at(schema, path[:length]), StructType) for length in range(1, len(path))):
        # A null struct has null fields, as in Delta on Spark, which does not check fields inside arrays and maps.
        return f"{'.'.join(map(quote_identifier, path))} IS NOT NULL"
    return _at_place(schema, path, lambda value: f"{value} IS NOT NULL")


def _fits(max_characters: int, text: str) -> str:
    return f"({text} IS NULL OR length({text}) <= {max_characters})"


def _at_place(schema: StructType, path: Sequence[str], holds: Callable[[str], str]) -> str:
    """Return Spark SQL for a condition on every value at a path. It is true if there is no such value, and never
    null."""
    field = field_of(schema, path[0])
    return _below(quote_identifier(field.name), field.data_type, path[1:], holds, 0)


def _below(value: str, data_type: DataType, path: Sequence[str], holds: Callable[[str], str], depth: int) -> str:
    item = f"delta_orch_{depth}"
    match data_type:
        case StructType() if path:
            field = field_of(data_type, path[0])
            inner = _below(f"{value}.{quote_identifier(field.name)}", field.data_type, path[1:], holds, depth)
            return f"({value} IS NULL OR {inner})"
        case ArrayType(element_type) if path:
            items, item_type = value, element_type
        case MapType(key_type, value_type) if path:
            is_key = path[0] == "key"
            items, item_type = f"map_{'keys' if is_key else 'values'}({value})", key_type if is_key else value_type
        case _:
            return holds(value)
    return f"({items} IS NULL OR forall({items}, {item} -> {_below(item, item_type, path[1:], holds, depth + 1)}))"


def _guarded(column: str, checks: Sequence[SqlCheck], schema: StructType) -> str:
    """Return SQL for the column, or for an error that names the failed check and shows the row."""
    which = " ".join(f"WHEN NOT (({check.condition}) <=> TRUE) THEN '{i}'" for i, check in enumerate(checks))
    row = _row_json(schema, dict.fromkeys(name for check in checks for name in check.columns))
    held = " AND ".join(f"(({check.condition}) <=> TRUE)" for check in checks)
    return (
        f"CASE WHEN {held} THEN {column} ELSE raise_error(concat({quote_string(f'[{CHECK_MARK} ')}, CASE {which} END, "
        f"']', {row}, {quote_string(f'[end of {CHECK_MARK}]')})) END"
    )


def _row_json(schema: StructType, first: Iterable[str]) -> str:
    """Return SQL for the row. Columns of the checks come first, because the text may be truncated."""
    names = dict.fromkeys((*first, *schema.names))
    fields = (f for name in names if (f := schema.find(name)) is not None)
    shown = [quote_identifier(f.name) for f in fields if f.data_type not in (VARIANT, VOID)]
    if not shown:
        return "'{}'"
    text = f"to_json(struct({', '.join(shown)}), map('ignoreNullFields', 'false'))"
    return f"substring({text}, 1, {_MAX_ROW_CHARS})"
