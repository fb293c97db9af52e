"""Work that this package does in Spark's Python workers, on Arrow.

- It writes files if Spark's own writer cannot make the files that a table needs. Rows then pass from the JVM to Python,
    which takes about twice the time of a native write.
- It rewrites files. Rows never enter the JVM, which takes a fifth of the time of a native scan and write.
- It turns structs of `metadata` and `value`, which are Arrow's variants, into Spark's variants. Spark has no function
    for this, but accepts variants from Python.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from delta_orch.engines.base import WriteSpec
from delta_orch.engines.conform import conform_column
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.local.relation import LocalRelation
from delta_orch.engines.spark.errors import MISMATCH_MARK
from delta_orch.engines.spark.frames import BatchFunction, map_in_arrow, spark_schema
from delta_orch.errors import DeltaError, InvalidVariantError
from delta_orch.log.files.file_columns import ADD_SCHEMA
from delta_orch.protocol.schema import parse_schema
from delta_orch.protocol.types import (
    BINARY,
    LONG,
    VARIANT,
    DataType,
    StructField,
    StructType,
    is_variant_storage,
    parts_beside,
    with_parts,
)
from delta_orch.protocol.variant.reconstruct import ensure_variants

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


TASK_SCHEMA = StructType((StructField("number", LONG), StructField("task", BINARY)))
"""One row for each rewrite, with its number and a pickled plan and spec."""

RESULT_DDL = "number BIGINT, adds BINARY, error BINARY"
_RESULT_ARROW = pa.schema([("number", pa.int64()), ("adds", pa.binary()), ("error", pa.binary())])


def task_writer(spec: WriteSpec) -> BatchFunction:
    """Return a function that writes the rows of one task and returns one row about its files."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        relation = LocalRelation(spec.written_schema, lambda: batches)
        yield _result(0, lambda: LocalEngine().write(relation, spec))

    return write


def run_rewrite_tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rewrite files for rows of `TASK_SCHEMA`, and return one row about the new files of each."""
    for batch in batches:
        for row in batch.to_pylist():
            plan, spec = pickle.loads(row["task"])
            yield _result(row["number"], partial(LocalEngine().rewrite, [plan], spec))


def _result(number: int, run: Callable[[], pa.Table]) -> pa.RecordBatch:
    written, error = _outcome(run)
    return pa.RecordBatch.from_pylist([{"number": number, "adds": written, "error": error}], _RESULT_ARROW)


def _outcome(run: Callable[[], pa.Table]) -> tuple[bytes | None, bytes | None]:
    """Return the new files as a stream, or the pickled error. A worker's exception would reach the driver only as
    text."""
    try:
        adds = run()
    except DeltaError as e:
        return None, pickle.dumps(e)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, adds.schema) as writer:
        writer.write_table(adds)
    return sink.getvalue().to_pybytes(), None


def written_files(
    spec: WriteSpec, source_json: str, batches: Iterator[pa.RecordBatch]
) -> tuple[bytes | None, bytes | None]:
    """Write the rows of one task, which Spark sends with the schema in `source_json`. Return the input of
    `files_of`."""
    relation = LocalRelation(parse_schema(source_json), lambda: batches)
    return _outcome(lambda: LocalEngine().write(relation, spec))


def files_of(outcomes: Iterable[tuple[bytes | None, bytes | None]]) -> pa.Table:
    """Return the files of some tasks, in order. Raises the error of the first failed task."""
    adds = [ADD_SCHEMA.empty_table()]
    for written, error in outcomes:
        if error is not None:
            raise pickle.loads(error)
        adds.append(pa.ipc.open_stream(written).read_all())
    return pa.concat_tables(adds)


def adds_of_results(results: pa.Table) -> pa.Table:
    """Return the files of all tasks, in the order of their numbers. Raises the error of the first failed task."""
    return files_of((row["adds"], row["error"]) for row in results.sort_by("number").to_pylist())


def with_variants(rows: DataFrame, target: StructType) -> DataFrame:
    """Return the rows, with variants instead of structs in variant columns of the table. Other rows do not pass through
    Python.

    Raises:
        SchemaMismatchError: A value is not a variant. Raised when rows are pulled.
        MissingDependencyError: `delta_orch` is not installed on the workers. Raised when rows are pulled.
    """
    source = parse_schema(rows.schema.json())
    typed = _with_variants(source, target)
    if typed == source:
        return rows
    from pyspark.sql.pandas.types import to_arrow_type

    schema = spark_schema(typed)
    changed = {
        index: to_arrow_type(to.dataType)
        for index, (to, before, after) in enumerate(zip(schema, source, typed, strict=True))
        if before != after
    }
    return map_in_arrow(rows, _converter(changed, typed), schema)


def _with_variants(source: StructType, target: StructType) -> StructType:
    fields = (
        f if (column := target.find(f.name)) is None else replace(f, data_type=_typed(f.data_type, column.data_type))
        for f in source
    )
    return StructType(tuple(fields))


def _typed(source: DataType, target: DataType) -> DataType:
    if isinstance(source, StructType) and isinstance(target, StructType):
        return _with_variants(source, target)
    if parts := {name: other for name, _, other in parts_beside(source, target)}:
        return with_parts(source, lambda name, inner: _typed(inner, parts[name]))
    return VARIANT if target == VARIANT and is_variant_storage(source) else source


def _converter(types: Mapping[int, pa.DataType], schema: StructType) -> BatchFunction:
    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = [
                _converted(column, schema.fields[index], types[index]) if index in types else column
                for index, column in enumerate(batch.columns)
            ]
            yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    return convert


def _converted(column: pa.Array, field: StructField, arrow_type: pa.DataType) -> pa.Array:
    try:
        ensure_variants(column, field.data_type)
    except InvalidVariantError as e:
        # A worker's exception reaches the driver only as text.
        cause = f"The column {field.name} holds a value that is not a variant: {e.cause or e.problem}"
        raise ValueError(f"[{MISMATCH_MARK}]{cause}[end of {MISMATCH_MARK}]") from e
    return conform_column(column, arrow_type, lossless=True, path=field.name)
