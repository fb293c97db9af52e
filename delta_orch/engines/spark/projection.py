"""The rows of a write, in the table's columns and types, each checked while it is written.

A check must sit in a column that is written: Spark prunes it away anywhere else, and it never runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from delta_orch.engines.base import IdentityValues, RowCheck, WriteSpec
from delta_orch.engines.file_schema import CHANGE_TYPE, columns_in_files
from delta_orch.engines.spark.errors import CHECK_MARK
from delta_orch.engines.spark.partition_text import partition_text_sql
from delta_orch.engines.spark.sql_text import convert_sql, same_values, type_sql
from delta_orch.errors import SchemaMismatchError
from delta_orch.expressions.spark_literals import quote_identifier, quote_string
from delta_orch.expressions.to_sql import to_spark_sql
from delta_orch.expressions.tree import columns_of
from delta_orch.protocol.types import VARIANT, VOID, ArrayType, DataType, MapType, StructType, holds_variant

_MAX_ROW_CHARS = 2000
_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
_ROW = "delta_orch_row"
_ROW_IN_TASK = (1 << 33) - 1
"""The part of `monotonically_increasing_id()` that counts the rows of one task; the rest is the task's number."""


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
        numbered: Numbers the rows for identity columns; empty without any.
        converted: Every column of the table and the extra ones, in their types, but for generated ones.
        generated: All of these, and the generated ones; empty without any.
        written: The columns of the files, checked, then a text for each partition column.
        partition_columns: The names of those texts, as they become directory names.
        check_names: What the checks are called, by the index in their message.
    """

    numbered: tuple[str, ...]
    converted: tuple[str, ...]
    generated: tuple[str, ...]
    written: tuple[str, ...]
    partition_columns: tuple[str, ...]
    check_names: tuple[str, ...]

    @property
    def steps(self) -> tuple[tuple[str, ...], ...]:
        """The lists that are there, in order."""
        return tuple(step for step in (self.numbered, self.converted, self.generated, self.written) if step)


def plan_projection(
    source: StructType, spec: WriteSpec, *, is_time_zone_pinned: bool, max_tasks: int = 1
) -> WriteProjection:
    """Plan the columns of a write.

    Args:
        max_tasks: The most tasks that rows come from. Identity values are shared out among as many.

    Raises SchemaMismatchError: A column is missing or ambiguous, or nothing is left to write into files.
    """
    in_files = columns_in_files(spec)
    checks = (*_row_checks(spec), *_identity_checks(spec), *_null_checks(spec.schema))
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
        numbered=("*", f"monotonically_increasing_id() AS {_ROW}") if spec.identities else (),
        converted=tuple(_converted(source, spec, max_tasks)),
        generated=tuple(_generated(spec)) if spec.generated else (),
        written=(*(f"{v} AS {quote_identifier(n)}" for v, n in zip(written, names, strict=True)), *texts),
        partition_columns=labels,
        check_names=tuple(check.name for check in checks),
    )


def plan_rows(source: StructType, spec: WriteSpec, *, max_tasks: int = 1) -> WriteProjection:
    """Plan rows that another writer makes files of: all columns of the table and the extra ones, checked, in the
    table's types and under its names. Raises as `plan_projection`."""
    checks = (*_row_checks(spec), *_identity_checks(spec), *_null_checks(spec.schema))
    written = [quote_identifier(f.name) for f in spec.written_schema]
    if checks:
        written[0] = f"{_guarded(written[0], checks, spec.schema)} AS {written[0]}"
    return WriteProjection(
        numbered=("*", f"monotonically_increasing_id() AS {_ROW}") if spec.identities else (),
        converted=tuple(_converted(source, spec, max_tasks)),
        generated=tuple(_generated(spec)) if spec.generated else (),
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


def _converted(source: StructType, spec: WriteSpec, max_tasks: int) -> Iterator[str]:
    folded = [name.lower() for name in source.names]
    values = {column.name: f"({column.sql})" for column in spec.defaults}
    values |= {identity.name: _identity_value(identity, max_tasks) for identity in spec.identities}
    later = {column.name for column in spec.generated}
    for f in spec.written_schema:
        if f.name in later:
            continue
        if folded.count(f.name.lower()) > 1:
            raise SchemaMismatchError(
                f"Column {f.name} occurs twice in the data",
                remedy="Give the data exactly the table's columns",
                column=f.name,
            )
        found = None if f.name in values else source.find(f.name)
        if found is not None:
            _ensure_variants(found.data_type, f.data_type, f.name)
            value = convert_sql(quote_identifier(found.name), found.data_type, f.data_type)
        else:
            value = f"CAST({values.get(f.name, 'NULL')} AS {type_sql(f.data_type)})"
        yield f"{value} AS {quote_identifier(f.name)}"


def _ensure_variants(source: DataType, target: DataType, name: str) -> None:
    """Spark has variants of its own; structs of metadata and value, as Arrow has them, it could not tell apart."""
    if holds_variant(target) and not holds_variant(source) and source != VOID:
        raise SchemaMismatchError(
            f"The column {name} is {source}, the table has {target}",
            remedy="Give Spark a VARIANT column (parse_json), or write Arrow's variants with the local engine",
            column=name,
        )


def _identity_value(identity: IdentityValues, max_tasks: int) -> str:
    """The n-th row of task t takes value number `n * max_tasks + t`: no two rows take the same, and no task asks
    another. Null once the values are used up, which a check finds."""
    limit = _LONG_MAX if identity.step > 0 else _LONG_MIN
    last = (limit - identity.first) // identity.step
    number = f"(shiftright({_ROW}, 33) + {max_tasks}L * ({_ROW} & {_ROW_IN_TASK}L))"
    value = f"{_long(identity.first)} + {_long(identity.step)} * {number}"
    return f"CASE WHEN {number} <= {last}L THEN {value} END"


def _long(value: int) -> str:
    # The parser reads the minus apart from the digits, which the least long does not survive.
    return f"({value}L)" if value > _LONG_MIN else f"({value + 1}L - 1L)"


def _identity_checks(spec: WriteSpec) -> Iterator[SqlCheck]:
    for identity in spec.identities:
        name = f"range of identity column {identity.name}, whose values are used up"
        yield SqlCheck(name, f"{quote_identifier(identity.name)} IS NOT NULL")


def _generated(spec: WriteSpec) -> Iterator[str]:
    computed = {column.name: column.sql for column in spec.generated}
    for f in spec.written_schema:
        name = quote_identifier(f.name)
        yield f"CAST(({computed[f.name]}) AS {type_sql(f.data_type)}) AS {name}" if f.name in computed else name


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
