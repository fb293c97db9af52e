"""Work that runs on Arrow inside Spark's tasks, with this package's local engine: the worker's side of it.

Rows that are written there cross from the JVM to Python, which takes about twice the time of a native write. Rows that
are rewritten there never enter the JVM, which takes a fifth of the time of a native scan and write.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa

from delta_orch.engines.base import WriteSpec
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.local.relation import LocalRelation
from delta_orch.errors import DeltaError
from delta_orch.log.files.file_columns import ADD_SCHEMA
from delta_orch.protocol.types import BINARY, LONG, StructField, StructType

BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

TASK_SCHEMA = StructType((StructField("number", LONG), StructField("task", BINARY)))
"""A row a rewrite: its place among the others, and a pickled plan and spec."""

RESULT_DDL = "number BIGINT, adds BINARY, error BINARY"
_RESULT_ARROW = pa.schema([("number", pa.int64()), ("adds", pa.binary()), ("error", pa.binary())])


def task_writer(spec: WriteSpec) -> BatchFunction:
    """What writes the rows of one task, and gives one row about its files."""
    pickled = pickle.dumps(spec)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield _result(0, partial(write_batches, batches, pickled))

    return write


def write_batches(batches: Iterator[pa.RecordBatch], pickled: bytes) -> pa.Table:
    """Write rows as files. Returns their `ADD_SCHEMA`."""
    spec: WriteSpec = pickle.loads(pickled)
    return LocalEngine().write(LocalRelation(spec.written_schema, lambda: batches), spec)


def run_rewrite_tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Takes rows of `TASK_SCHEMA` and gives one row about the files of each."""
    for batch in batches:
        for row in batch.to_pylist():
            plan, spec = pickle.loads(row["task"])
            yield _result(row["number"], partial(LocalEngine().rewrite, [plan], spec))


def _result(number: int, run: Callable[[], pa.Table]) -> pa.RecordBatch:
    """The new files as a stream, or what went wrong, pickled: a worker's exception would reach the driver as text."""
    row: dict[str, int | bytes] = {"number": number}
    try:
        adds = run()
    except DeltaError as e:
        row["error"] = pickle.dumps(e)
    else:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, adds.schema) as writer:
            writer.write_table(adds)
        row["adds"] = sink.getvalue().to_pybytes()
    return pa.RecordBatch.from_pylist([row], _RESULT_ARROW)


def adds_of_results(results: pa.Table) -> pa.Table:
    """The files of all tasks, in the order of their numbers. Raises what the first failed task raised."""
    adds = [ADD_SCHEMA.empty_table()]
    for result in results.sort_by("number").to_pylist():
        if result["error"] is not None:
            raise pickle.loads(result["error"])
        adds.append(pa.ipc.open_stream(result["adds"]).read_all())
    return pa.concat_tables(adds)
