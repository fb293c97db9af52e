"""The row sources that users pass, as relations of the local engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import chain
from typing import Any
from weakref import WeakSet

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.local.relation import LocalRelation
from delta_orch.errors import InvalidRequestError, SchemaMismatchError
from delta_orch.protocol.arrow_building import ensure_sound, schema_from_arrow

Data = Any
"""Rows as a user hands them in: of pandas, Polars, or anything that exports an Arrow stream."""


def accepts_value(data: object) -> bool:
    """Whether `relation_of` takes this value. Imports nothing."""
    return (
        isinstance(data, LocalRelation | pa.Table | pa.RecordBatch | pa.RecordBatchReader)
        or _is_list_of(pa.RecordBatch, data)
        or _is_list_of(Mapping, data)
        or isinstance(data, Mapping)
        or _is_a(data, "polars", "LazyFrame")
        or _is_a(data, "pyarrow._dataset", "Dataset")
        or _exports("__arrow_c_stream__", data)
        or _exports("__arrow_c_array__", data)
        or _is_list_of_arrays(data)
    )


def relation_of(data: Data) -> LocalRelation:
    """Rows of an Arrow table, batch, list of batches, reader or dataset, of a pandas or Polars frame, of a list of
    dicts (a row each), of a dict of columns (lists or arrays of one length), or of anything that exports an Arrow
    stream (`__arrow_c_stream__`), such as a DuckDB relation, or a batch (`__arrow_c_array__`, or a list of such).

    A pandas index is dropped unless its levels have names: then they become columns. A Polars LazyFrame runs
    each time its rows are read, and is streamed. A RecordBatchReader can be read once.

    Raises:
        InvalidRequestError: Not such a value, or a pandas index of which some levels have names and others none. When
            the rows are read: the library that gives them cannot.
        SchemaMismatchError: A column has a type Delta has no name for, or Python objects that Arrow would change, such
            as dates beside points in time. When the rows are read: a value is not valid for its column's type, such as
            text that is not UTF-8, or infinity as a date of DuckDB.
    """
    if isinstance(data, LocalRelation):
        return data
    if isinstance(data, pa.Table):
        return _relation(data.schema, data.to_batches)
    if _is_list_of(Mapping, data):
        return relation_of(_from_rows(data))
    if isinstance(data, Mapping):
        return relation_of(_from_columns(data))
    if _is_list_of(pa.RecordBatch, data):
        try:
            return relation_of(pa.Table.from_batches(data))
        except pa.ArrowInvalid as e:
            raise InvalidRequestError("The record batches do not have one schema", cause=str(e)) from e
    if isinstance(data, pa.RecordBatch):
        return _relation(data.schema, lambda: [data])
    if isinstance(data, pa.RecordBatchReader):
        return _relation(data.schema, _once(data))
    if _is_a(data, "pandas", "DataFrame"):
        return relation_of(_from_pandas(data))
    if _is_a(data, "polars", "LazyFrame") or _is_a(data, "polars", "DataFrame"):
        data = _polars(lambda: _with_delta_types(data))
    if _is_a(data, "polars", "LazyFrame"):
        schema = pa.table(data.collect_schema().to_frame()).schema
        return _relation(schema, lambda: _polars_batches(data))
    if _is_a(data, "pyarrow._dataset", "Dataset"):
        return _relation(data.schema, lambda: data.scanner().to_reader())
    if _exports("__arrow_c_array__", data) and not _exports("__arrow_c_stream__", data):
        return relation_of(_as_batch(data))
    if _is_list_of_arrays(data):
        return relation_of([_as_batch(item) for item in data])
    if _is_of_duckdb(data):
        return _relation(_duckdb_schema(data), _finite(lambda: _stream(data)))
    if accepts_value(data):
        first = _open_stream(data)
        return _relation(first.schema, _first_then(_batches(data, first), lambda: _stream(data)))
    if isinstance(data, list | tuple) and not data:
        raise InvalidRequestError(
            "An empty list does not say which columns it has",
            remedy="Pass an Arrow table without rows: pyarrow.Table.from_pylist([], schema)",
        )
    raise InvalidRequestError(
        f"A value of type {type(data).__name__} is not data that can be written",
        remedy="Pass an Arrow table, reader or list of record batches, a dict of columns, a list of dicts, a pandas, "
        "Polars or Spark DataFrame, or a DuckDB relation (connection.sql); of a generator "
        "pyarrow.RecordBatchReader.from_batches(schema, batches)",
        type=type(data).__name__,
    )


def _relation(schema: pa.Schema, open_batches: Callable[[], Iterable[pa.RecordBatch]]) -> LocalRelation:
    def sound_batches() -> Iterator[pa.RecordBatch]:
        for batch in open_batches():
            ensure_sound(batch)
            yield batch

    return LocalRelation(schema_from_arrow(schema), sound_batches)


def _exports(protocol: str, data: object) -> bool:
    return hasattr(data, protocol) and not isinstance(data, type)


def _is_list_of_arrays(data: object) -> bool:
    return isinstance(data, list | tuple) and bool(data) and all(_exports("__arrow_c_array__", item) for item in data)


def _as_batch(data: Data) -> pa.RecordBatch:
    """Rows of one array of structs, such as a record batch of another library of Arrow."""
    try:
        return pa.record_batch(data)
    except (pa.ArrowException, TypeError, ValueError) as e:
        raise _is_no("batch of rows", data, e) from e


def _is_list_of(kind: type, data: object) -> bool:
    return isinstance(data, list | tuple) and bool(data) and all(isinstance(item, kind) for item in data)


def _from_rows(rows: Data) -> pa.Table:
    """A key that a row lacks is null there."""
    names = dict.fromkeys(name for row in rows for name in row)
    if not (names and all(isinstance(name, str) for name in names)):
        raise InvalidRequestError("The rows have no keys, or keys that are not text", remedy="Name columns by text")
    return _from_columns({name: [row.get(name) for row in rows] for name in names})


def _from_columns(columns: Mapping[str, Data]) -> pa.Table:
    is_named = bool(columns) and all(isinstance(name, str) for name in columns)
    # A generator can be read once, and a text is one value.
    is_long = all(hasattr(v, "__len__") and not isinstance(v, str | bytes | Mapping) for v in columns.values())
    if not (is_named and is_long):
        raise InvalidRequestError(
            "The dict is no dict of columns",
            cause="Each key is to be a name, and each value a list or an array",
            remedy='Write {"id": [1, 2], "name": ["a", "b"]}, or a list of dicts for rows',
        )
    try:
        arrays = {name: _as_array(values) for name, values in columns.items()}
        table = pa.table(arrays)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as e:
        raise InvalidRequestError(
            "The rows cannot be converted to Arrow",
            cause=str(e),
            remedy="Give each column values of one type, or pass pyarrow.Table.from_pylist(rows, schema)",
        ) from e
    for name, values in columns.items():
        if arrays[name] is not values:
            _ensure_unchanged(values, table.schema.field(name).type, name)
    return table


def _as_array(values: Data) -> pa.Array | pa.ChunkedArray:
    return values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)


def _ensure_unchanged(values: Iterable[object], data_type: pa.DataType, column: str) -> None:
    """Check what Arrow does not tell when it converts Python objects: it cuts the time off a datetime beside dates, the
    zone off one beside others without, and nanoseconds."""
    types = pa.types
    if types.is_date(data_type) or types.is_timestamp(data_type):
        times = [value for value in values if isinstance(value, datetime)]
        valid_times = [time for time in times if time == time]  # not pandas.NaT
        changed = (
            "points in time, or NaT, beside dates"
            if times and types.is_date(data_type)
            else "points in time with a zone beside others without"
            if len({time.tzinfo is None for time in valid_times}) > 1
            else "nanoseconds"
            if any(getattr(time, "nanosecond", 0) for time in valid_times)
            else None
        )
        if changed is not None:
            raise SchemaMismatchError(
                f"Column {column} has {changed}, which Arrow would change",
                remedy="Give the column values of one type, of microseconds, and None where there is none",
                column=column,
            )
    elif types.is_struct(data_type):
        rows = [value for value in values if isinstance(value, Mapping)]
        for field in data_type:
            _ensure_unchanged([row.get(field.name) for row in rows], field.type, f"{column}.{field.name}")
    elif types.is_list(data_type):
        # A missing list is None, or NaN in pandas.
        items = chain.from_iterable(value for value in values if isinstance(value, Iterable))
        _ensure_unchanged(items, data_type.value_type, f"{column}.element")


def _finite(open_batches: Callable[[], Iterable[pa.RecordBatch]]) -> Callable[[], Iterator[pa.RecordBatch]]:
    """Batches of DuckDB, which hands over infinity as the day or microsecond that is furthest away."""

    def checked() -> Iterator[pa.RecordBatch]:
        for batch in open_batches():
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                if _is_infinite(column):
                    raise SchemaMismatchError(
                        f"Column {name} has infinity, which Delta has no value for",
                        remedy="Make it null, or a date or time that is far away",
                        column=name,
                    )
            yield batch

    return checked


def _is_infinite(column: pa.Array) -> bool:
    types = pa.types
    if types.is_nested(column.type):
        if types.is_map(column.type):
            parts = [column.keys, column.items]
        else:
            flat = column.flatten()
            parts = flat if types.is_struct(column.type) else [flat]
        return any(map(_is_infinite, parts))
    if not (types.is_date32(column.type) or types.is_timestamp(column.type)):
        return False
    numbers = pa.int32() if types.is_date32(column.type) else pa.int64()
    furthest = 2 ** (numbers.bit_width - 1) - 1
    return bool(pc.any(pc.is_in(column.view(numbers), pa.array([furthest, -furthest], numbers))).as_py())


def _is_of_duckdb(data: Data) -> bool:
    return _is_a(data, "duckdb", "DuckDBPyRelation") or _is_a(data, "_duckdb", "DuckDBPyRelation")


def _duckdb_schema(data: Data) -> pa.Schema:
    """Of no rows: a stream that is opened and not read would bar its connection from every other query."""
    import duckdb

    try:
        return data.limit(0).to_arrow_table().schema
    except duckdb.Error as e:
        raise _failed(data, e) from e


def _opened(data: Data) -> pa.RecordBatchReader:
    if not _is_of_duckdb(data):
        return pa.RecordBatchReader.from_stream(data)
    import duckdb

    try:
        return pa.RecordBatchReader.from_stream(data)
    except duckdb.Error as e:
        raise _failed(data, e) from e


def _failed(data: Data, error: Exception) -> InvalidRequestError:
    kind = type(data).__name__
    return InvalidRequestError(f"The rows of the {kind} cannot be read", cause=str(error), type=kind)


def _is_no(what: str, data: Data, error: Exception) -> InvalidRequestError:
    kind, remedy = type(data).__name__, "Pass a table with named columns"
    return InvalidRequestError(f"A {kind} is not a {what}", cause=str(error), remedy=remedy, type=kind)


def _open_stream(data: Data) -> pa.RecordBatchReader:
    try:
        return _opened(data)
    except pa.ArrowInvalid as e:  # a single column, such as a ChunkedArray or a Series
        raise _is_no("stream of rows", data, e) from e


def _stream(data: Data) -> Iterator[pa.RecordBatch]:
    return _batches(data, _opened(data))


def _batches(data: Data, stream: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Errors of the library that produces the rows are errors of Arrow or of the system."""
    try:
        yield from stream
    except (pa.ArrowException, OSError) as e:
        raise _failed(data, e) from e


_READ: WeakSet[pa.RecordBatchReader] = WeakSet()
"""A reader that was read looks like one without rows. It may be handed in again: for two tables, or by a retry."""


def _once(reader: pa.RecordBatchReader) -> Callable[[], Iterator[pa.RecordBatch]]:
    def open_batches() -> Iterator[pa.RecordBatch]:
        if reader in _READ:
            raise InvalidRequestError(
                "The stream was read already",
                cause="A RecordBatchReader gives its rows once",
                remedy="Pass a Table, or make a new reader for each use",
            )
        _READ.add(reader)
        return iter(reader)

    return open_batches


def _first_then(
    first: Iterator[pa.RecordBatch], again: Callable[[], Iterator[pa.RecordBatch]]
) -> Callable[[], Iterator[pa.RecordBatch]]:
    """The stream that was opened for its schema serves the first pass."""
    unread = [first]
    return lambda: unread.pop() if unread else again()


def _from_pandas(frame: Data) -> pa.Table:
    unnamed = [name is None for name in frame.index.names]
    if any(unnamed) and not all(unnamed):
        raise InvalidRequestError(
            "Some levels of the pandas index have names, and others have none",
            cause=f"They are {list(frame.index.names)}: those with names would be columns, and the others nowhere",
            remedy="Name all of them: frame.rename_axis([…]); or drop the index: frame.reset_index(drop=True)",
        )
    try:
        frame = frame if any(unnamed) else frame.reset_index()
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as e:
        raise InvalidRequestError(
            "The pandas DataFrame cannot be converted to Arrow",
            cause=str(e),
            remedy="Give each column one type and a name of its own",
        ) from e
    for position, (field, dtype) in enumerate(zip(table.schema, frame.dtypes, strict=True)):
        if str(dtype) == "object":
            _ensure_unchanged(frame.iloc[:, position].dropna(), field.type, field.name)
    return table


def _with_delta_types(frame: Data) -> Data:
    """A Polars frame whose columns, at any depth, have types that Arrow and Delta know: Categorical and Enum become
    their texts, integers of 128 bits decimal(38, 0).

    Raises SchemaMismatchError: A number has more digits, or a column holds Python objects.
    """
    schema = frame.collect_schema()
    changed = {name: delta_type for name, dtype in schema.items() if (delta_type := _known_type(dtype, name)) != dtype}
    return frame.cast(changed) if changed else frame


def _known_type(dtype: Data, path: str) -> Data:
    import polars as pl

    if dtype == pl.Categorical or dtype == pl.Enum:
        return pl.String()
    if dtype == pl.Int128 or dtype == getattr(pl, "UInt128", None):
        return pl.Decimal(38, 0)
    if dtype == pl.Object:
        raise SchemaMismatchError(
            f"Column {path} holds Python objects, which Delta has no type for",
            remedy="Cast the column before writing",
            column=path,
        )
    if isinstance(dtype, pl.List):
        return pl.List(_known_type(dtype.inner, f"{path}.element"))
    if isinstance(dtype, pl.Array):
        return pl.Array(_known_type(dtype.inner, f"{path}.element"), dtype.size)
    if isinstance(dtype, pl.Struct):
        return pl.Struct([pl.Field(f.name, _known_type(f.dtype, f"{path}.{f.name}")) for f in dtype.fields])
    return dtype


def _polars(make: Callable[[], Data]) -> Data:
    """The source after Polars collected it. Raises SchemaMismatchError, InvalidRequestError: Polars cannot."""
    from polars.exceptions import InvalidOperationError, PolarsError

    try:
        return make()
    except InvalidOperationError as e:
        raise SchemaMismatchError(
            "A column of the Polars frame cannot be converted", cause=str(e), remedy="Cast the column before writing"
        ) from e
    except PolarsError as e:
        raise InvalidRequestError("The Polars query failed", cause=str(e), remedy="Collect it first") from e


def _polars_batches(query: Data) -> Iterator[pa.RecordBatch]:
    """The rows of a LazyFrame as they are computed, in order. Polars before 1.34 computes all of them first. Raises as
    `_polars`."""
    is_streamed = hasattr(query, "collect_batches")
    frames = _polars(lambda: iter(query.collect_batches()) if is_streamed else iter([query.collect()]))
    while (frame := _polars(lambda: next(frames, None))) is not None:
        yield from _stream(frame)


def _is_a(data: object, package: str, name: str) -> bool:
    """Whether a value is an instance of a class that lives in `package`, without importing it."""
    return any(
        kind.__name__ == name and (kind.__module__ == package or kind.__module__.startswith(package + "."))
        for kind in type(data).__mro__
    )
