"""Whether rows of one schema may go into a table of another, and whether a table may have a schema at all."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from delta_orch.errors import ColumnNotFoundError, SchemaMismatchError
from delta_orch.protocol.schema import IDENTITY_START
from delta_orch.protocol.types import (
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    SHORT,
    TIMESTAMP_NTZ,
    VOID,
    DataType,
    DecimalType,
    StructType,
    is_stored_form,
    parts_beside,
    parts_of,
    traits_of,
)

RESERVED_NAMES = frozenset({"_change_type", "_commit_version", "_commit_timestamp"})
"""The columns that a change data feed has beside those of its table."""

_INTEGER_DIGITS = {BYTE: 3, SHORT: 5, INTEGER: 10, LONG: 20}
_LOSSLESS: dict[DataType, frozenset[DataType]] = {
    BYTE: frozenset({SHORT, INTEGER, LONG, FLOAT, DOUBLE}),
    SHORT: frozenset({INTEGER, LONG, FLOAT, DOUBLE}),
    INTEGER: frozenset({LONG, DOUBLE}),
    FLOAT: frozenset({DOUBLE}),
    DATE: frozenset({TIMESTAMP_NTZ}),
}


def ensure_schema_fits(
    source: StructType,
    target: StructType,
    *,
    filled: Collection[str] = (),
    fill_nulls: bool = False,
    never_null: Collection[str] = (),
) -> None:
    """Check that rows of `source` can be written to a table of `target` without losing or inventing anything.

    Columns match by name without regard to case, in any order. A type fits if it is the same or every value of it is a
    value of the other (byte → long, float → double, int → decimal with room, …). A nullable source column fits a NOT
    NULL target: its rows are checked one by one while they are written.

    Args:
        filled: Columns of the target that get their values elsewhere: the source may lack them.
        fill_nulls: The source may lack columns and fields of structs that may be null.
        never_null: Columns that must not be missing all the same.

    Raises:
        SchemaMismatchError: Names every column too many, missing or of another type. Nothing was written.
    """
    problems = list(_mismatches(source, target, "", fill_nulls))
    lacking = {_missing(name) for name in never_null if source.find(name) is None}
    problems.extend(sorted(lacking.difference(problems)))
    if filled:
        missing = {_missing(name) for name in filled}
        problems = [problem for problem in problems if problem not in missing]
    if problems:
        has_new = any(target.find(name) is None for name in source.names)
        raise SchemaMismatchError(
            "The data does not have the table's schema",
            cause="; ".join(problems),
            remedy="Select, rename or cast the columns before writing"
            + ('; or pass schema_mode="merge", which adds columns that the table does not have' if has_new else ""),
            problems=problems,
        )


def _missing(path: str) -> str:
    return f"column {path} is missing"


def _mismatches(source: StructType, target: StructType, prefix: str, fill_nulls: bool) -> Iterator[str]:
    seen: set[str] = set()
    for f in source:
        folded = f.name.lower()
        if folded in seen:
            yield f"column {prefix}{f.name} occurs twice"
        elif (counterpart := target.find(f.name)) is None:
            yield f"column {prefix}{f.name} is not in the table"
        else:
            yield from _type_mismatches(f.data_type, counterpart.data_type, f"{prefix}{f.name}", fill_nulls)
        seen.add(folded)
    for f in target:
        # A void column holds nothing to miss.
        if f.name.lower() not in seen and not (fill_nulls and f.nullable) and f.data_type != VOID:
            yield _missing(f"{prefix}{f.name}")


def _type_mismatches(source: DataType, target: DataType, path: str, fill_nulls: bool) -> Iterator[str]:
    if isinstance(source, StructType) and isinstance(target, StructType):
        yield from _mismatches(source, target, f"{path}.", fill_nulls)
    elif parts := parts_beside(source, target):
        for name, have, want in parts:
            yield from _type_mismatches(have, want, f"{path}.{name}", fill_nulls)
    elif not is_lossless_cast(source, target):
        yield f"column {path} is {source}, the table has {target}"


def is_lossless_cast(source: DataType, target: DataType) -> bool:
    """Whether every value of an atomic type is a value of the other; a void column fits every type."""
    if source in (target, VOID) or target in _LOSSLESS.get(source, ()) or is_stored_form(source, target):
        return True
    if isinstance(target, DecimalType):
        room = target.precision - target.scale
        if isinstance(source, DecimalType):
            return source.scale <= target.scale and source.precision - source.scale <= room
        return source in _INTEGER_DIGITS and room >= _INTEGER_DIGITS[source]
    return False


def ensure_valid_table_schema(
    schema: StructType,
    partition_columns: Sequence[str],
    *,
    any_characters: bool = False,
    has_feed: bool = True,
    known: StructType | None = None,
) -> None:
    """Check the schema of a table to be created or changed.

    Args:
        has_feed: The table has a change data feed, whose own columns need their names.
        any_characters: Names may hold all characters, as column mapping keeps them out of data files.
        known: The table's columns so far: their names are not judged again.

    Raises:
        SchemaMismatchError: No column; two columns whose names differ only in case; a name that the change data feed
            reserves or that no client could write (it holds one of ` ,;{}()\\n\\t=` and column mapping is off); only
            partition columns; a partition column of a type that cannot be one, an identity column, or named twice.
            Nothing was created.
        ColumnNotFoundError: A partition column that is not in the schema.
    """
    if not schema.fields:
        raise SchemaMismatchError("A table needs at least one column", remedy="Name its columns")
    ensure_distinct_names(schema)
    reserved = RESERVED_NAMES if has_feed else frozenset[str]()
    _ensure_valid_names(schema, "", any_characters, reserved, known)
    partition_names = [c.lower() for c in partition_columns]
    if len(set(partition_names)) != len(partition_names):
        raise SchemaMismatchError("A partition column is named twice", cause=", ".join(partition_columns))
    for column in partition_columns:
        f = schema.find(column)
        if f is None:
            raise ColumnNotFoundError(
                f"Partition column {column!r} is not in the schema",
                remedy=f"Choose one of {', '.join(schema.names)}",
                column=column,
            )
        if not traits_of(f.data_type).is_partition:
            raise SchemaMismatchError(
                f"Column {column!r} of type {f.data_type} cannot be a partition column",
                remedy="Partition by a column whose values have a text form: a number, a string, a date or a timestamp",
                column=column,
            )
        if IDENTITY_START in f.metadata:
            raise no_identity_partition(column)
    if len(partition_names) == len(schema):
        raise SchemaMismatchError("All columns are partition columns", remedy="Leave at least one column for the files")


def no_identity_partition(column: str) -> SchemaMismatchError:
    """The error for a table partitioned by a column whose values it makes: the files would not tell the last one."""
    return SchemaMismatchError(
        f"Column {column!r} is an identity column and cannot be a partition column",
        remedy="Partition by a column whose values the rows bring",
        column=column,
    )


def ensure_distinct_names(schema: StructType, prefix: str = "") -> None:
    """Raises SchemaMismatchError where two columns, or two fields of one struct, have one name without regard to case;
    `prefix` is the path of the struct."""
    seen: dict[str, str] = {}
    for f in schema:
        other = seen.get(f.name.lower())
        if other is not None:
            same = other == f.name
            raise SchemaMismatchError(
                f"There are two columns {prefix}{other}"
                if same
                else f"Columns {prefix}{other} and {prefix}{f.name} differ only in case",
                cause="Names of columns are matched without regard to case",
                remedy="Rename one of them",
                column=f"{prefix}{f.name}",
            )
        seen[f.name.lower()] = f.name
        for nested in _structs_in(f.data_type):
            ensure_distinct_names(nested, f"{prefix}{f.name}.")


def _ensure_valid_names(
    schema: StructType, prefix: str, any_characters: bool, reserved: frozenset[str], known: StructType | None
) -> None:
    for f in schema:
        same = None if known is None else known.find(f.name)
        is_new = same is None or same.name != f.name
        if is_new and not prefix and f.name.lower() in reserved:
            raise SchemaMismatchError(
                f"The column name {f.name!r} is reserved for the change data feed",
                remedy="Rename it, or set delta.enableChangeDataFeed to false for this table",
                column=f.name,
            )
        if is_new and (not f.name or (not any_characters and any(c in f.name for c in " ,;{}()\n\t="))):
            raise SchemaMismatchError(
                f"The column name {prefix + f.name!r} is empty or holds one of the characters ' ,;{{}}()\\n\\t='",
                remedy="Rename the column, or set delta.columnMapping.mode to name, which allows every character",
                column=f"{prefix}{f.name}",
            )
        inside = iter(() if same is None or is_new else _structs_in(same.data_type))
        for nested in _structs_in(f.data_type):
            _ensure_valid_names(nested, f"{prefix}{f.name}.", any_characters, reserved, next(inside, None))


def _structs_in(data_type: DataType) -> Iterator[StructType]:
    if isinstance(data_type, StructType):
        yield data_type
        return
    for _, inner in parts_of(data_type):
        yield from _structs_in(inner)
