"""The columns of a table's rows: those the data has, in the table's types, and those it lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from delta_orch.engines.base import ComputedColumn, IdentityValues, WriteSpec
from delta_orch.engines.spark.sql_text import convert_sql, type_sql
from delta_orch.errors import SchemaMismatchError
from delta_orch.expressions.spark_literals import quote_identifier
from delta_orch.expressions.to_sql import to_spark_sql
from delta_orch.expressions.tree import columns_of
from delta_orch.protocol.types import VOID, DataType, StructType, holds_variant

SelectList = tuple[str, ...]

_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
_ROW = "delta_orch_row"
_ROW_IN_TASK = (1 << 33) - 1
"""The part of `monotonically_increasing_id()` that counts the rows of one task; the rest is the task's number."""


def filled_columns(source: StructType, spec: WriteSpec) -> tuple[SelectList, ...]:
    """SELECT lists, each over the one before: all columns but identity columns and what is generated from them.

    Raises SchemaMismatchError: A column is ambiguous, or of a type that Spark cannot make the table's.
    """
    generated = [column for column in spec.generated if not _needs_identity(column, spec)]
    converted = tuple(_converted(source, spec))
    # No list at all of no columns: a row is a row.
    return (converted or ("1 AS delta_orch_nothing",), *_generated(generated, spec.schema))


def numbered_columns(spec: WriteSpec, max_tasks: int) -> tuple[SelectList, ...]:
    """SELECT lists that add identity columns and what is generated from them.

    Args:
        max_tasks: The most tasks that rows come from.
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
    """Whether the partition of a row is known before its identity values are."""
    late = {*(i.name for i in spec.identities), *(c.name for c in spec.generated if _needs_identity(c, spec))}
    return late.isdisjoint(spec.partition_columns)


def _needs_identity(column: ComputedColumn, spec: WriteSpec) -> bool:
    if not spec.identities:
        return False
    names = {identity.name.lower() for identity in spec.identities}
    columns = columns_of(column.value)
    # Text that only Spark can read names no columns: then later is the safe moment.
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
    """What is no variant yet, nor was made one (`variant_input`), cannot become one: Spark's cast would wrap it."""
    if holds_variant(target) and not holds_variant(source) and source != VOID:
        raise SchemaMismatchError(
            f"The column {name} is {source}, the table has {target}",
            remedy="Give a VARIANT column (parse_json), or a struct of metadata and value, both binary",
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


def _generated(columns: Sequence[ComputedColumn], schema: StructType) -> Iterator[SelectList]:
    """The list that adds columns, where there are any."""
    texts = []
    for column in columns:
        field = schema.find(column.name)
        assert field is not None
        texts.append(
            f"CAST(({to_spark_sql(column.value)}) AS {type_sql(field.data_type)}) AS {quote_identifier(field.name)}"
        )
    if texts:
        yield ("*", *texts)
