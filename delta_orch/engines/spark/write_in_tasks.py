"""Writing with Arrow inside Spark's tasks, where Spark's own writer cannot make the files a table needs. Rows cross
from the JVM to Python for it, which takes about twice the time."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa

from delta_orch.engines.base import WriteSpec
from delta_orch.engines.spark.errors import package_on_workers, spark_errors
from delta_orch.engines.spark.host import DataFrame, SparkHost
from delta_orch.engines.spark.projection import plan_rows
from delta_orch.engines.spark.rows_to_write import brought_together, project, task_limit
from delta_orch.engines.spark.settings import ANALYSIS_SETTINGS, write_settings
from delta_orch.errors import DeltaError
from delta_orch.log.files.file_columns import ADD_SCHEMA
from delta_orch.protocol.schema import parse_schema

_RESULT_DDL = "adds BINARY, error BINARY"
_RESULT_ARROW = pa.schema([("adds", pa.binary()), ("error", pa.binary())])


def write_in_tasks(host: SparkHost, rows: DataFrame, spec: WriteSpec) -> pa.Table:
    """Write all rows as new files; see `Engine.write`. Each task makes its own, and only those of task attempts that
    count are named.

    Raises:
        MissingDependencyError: `delta_orch` is not installed on the workers.
    """
    settings = write_settings(spec.target_file_size_bytes, shred_variants=spec.shred_variants)
    with host.settings(ANALYSIS_SETTINGS), host.settings(settings):
        max_tasks = task_limit(host, spec)
        projection = plan_rows(parse_schema(rows.schema.json()), spec, max_tasks=max_tasks)
        with spark_errors("evaluate the checks of this write", checks=projection.check_names, is_analysis=True):
            projected = host.analysed(project(host.pinned(rows, ANALYSIS_SETTINGS), projection, spec, max_tasks))
            ready = host.pinned(brought_together(projected, projection, spec, spec.partition_columns), settings)
        # What is filled and checked already is not to be done again.
        plain = replace(spec, checks=(), defaults=(), generated=(), identities=())
        with spark_errors(f"write to {spec.store.uri}", checks=projection.check_names):
            results = _run(ready, task_writer(plain))
    adds = [ADD_SCHEMA.empty_table()]
    for result in results.to_pylist():
        if result["error"] is not None:
            raise pickle.loads(result["error"])
        adds.append(pa.ipc.open_stream(result["adds"]).read_all())
    return pa.concat_tables(adds)


def _run(rows: DataFrame, write: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> pa.Table:
    with package_on_workers("Field ids of array elements and map values are written by Arrow, inside Spark's tasks"):
        return rows.mapInArrow(write, _RESULT_DDL).toArrow()


def task_writer(spec: WriteSpec) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What runs on the workers: the rows of one task in, one row about its files out."""
    pickled = pickle.dumps(spec)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        adds, error = write_batches(batches, pickled)
        yield pa.RecordBatch.from_pylist([{"adds": adds, "error": error}], _RESULT_ARROW)

    return write


def write_batches(batches: Iterator[pa.RecordBatch], pickled: bytes) -> tuple[bytes | None, bytes | None]:
    """The files of some rows, as a stream of `ADD_SCHEMA`; or what went wrong, pickled."""
    from delta_orch.engines.local.engine import LocalEngine
    from delta_orch.engines.local.relation import LocalRelation

    spec: WriteSpec = pickle.loads(pickled)
    try:
        adds = LocalEngine().write(LocalRelation(spec.written_schema, lambda: batches), spec)
    except DeltaError as e:
        # A worker's exception would reach the driver as text.
        return None, pickle.dumps(e)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, adds.schema) as writer:
        writer.write_table(adds)
    return sink.getvalue().to_pybytes(), None
