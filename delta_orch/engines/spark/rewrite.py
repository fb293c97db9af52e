"""Compaction: no expression is evaluated, so rows need not pass through the JVM. Each plan is one task, in which
Arrow reads the old files and writes the new ones (a fifth of the time of a native scan and write)."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Sequence

import pyarrow as pa

from delta_orch.engines.base import ScanPlan, WriteSpec
from delta_orch.engines.spark.errors import spark_errors
from delta_orch.engines.spark.file_names import physical_schema
from delta_orch.engines.spark.host import SparkHost
from delta_orch.engines.spark.scan_files import hadoop_root, prepare_scan
from delta_orch.engines.spark.values import arrow_to_frame
from delta_orch.errors import DeltaError
from delta_orch.log.files.arrow_building import int64_array
from delta_orch.log.files.file_columns import ADD_SCHEMA
from delta_orch.protocol.types import BINARY, LONG, StructField, StructType

logger = logging.getLogger(__name__)

_MAX_TASKS = 256
_TASK_SCHEMA = StructType((StructField("plan_index", LONG), StructField("task", BINARY)))
_RESULT_DDL = "plan_index BIGINT, adds BINARY, error BINARY"
_RESULT_ARROW = pa.schema([("plan_index", pa.int64()), ("adds", pa.binary()), ("error", pa.binary())])


def rewrite_files(host: SparkHost, plans: Sequence[ScanPlan], spec: WriteSpec) -> pa.Table:
    """See `Engine.rewrite`: new files in the order of the plans.

    Raises:
        MissingFileError: A file to be rewritten is gone. Nothing was committed; new files are orphans.
        StorageError: As above.
    """
    for plan in plans:
        prepare_scan(plan, physical_schema(plan))
    hadoop_root(spec.store)
    if not plans:
        return ADD_SCHEMA.empty_table()
    try:
        return _rewrite_in_tasks(host, plans, spec)
    except Exception as e:
        if type(e).__module__.startswith("pyspark") and "No module named 'delta_orch'" in str(e):
            logger.warning("delta_orch is not installed on the Spark workers: files are rewritten by Spark, slower")
            return _rewrite_natively(host, plans, spec)
        raise


def _rewrite_in_tasks(host: SparkHost, plans: Sequence[ScanPlan], spec: WriteSpec) -> pa.Table:
    tasks = pa.Table.from_arrays(
        [int64_array(range(len(plans))), pa.array([pickle.dumps((plan, spec)) for plan in plans], pa.binary())],
        names=list(_TASK_SCHEMA.names),
    )
    with spark_errors("rewrite files"):
        frame = arrow_to_frame(host.session, tasks, _TASK_SCHEMA).repartition(min(len(plans), _MAX_TASKS))
        results = frame.mapInArrow(run_rewrite_tasks, _RESULT_DDL).toArrow()
    adds: list[pa.Table] = []
    for result in results.sort_by("plan_index").to_pylist():
        if result["error"] is not None:
            raise pickle.loads(result["error"])
        adds.append(pa.ipc.open_stream(result["adds"]).read_all())
    return pa.concat_tables(adds)


def run_rewrite_tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs on the workers: one row a plan in, one row a plan out."""
    for batch in batches:
        for task in batch.to_pylist():
            adds, error = _rewrite_one(task["task"])
            row = {"plan_index": task["plan_index"], "adds": adds, "error": error}
            yield pa.RecordBatch.from_pylist([row], _RESULT_ARROW)


def _rewrite_one(task: bytes) -> tuple[bytes | None, bytes | None]:
    from delta_orch.engines.local.engine import LocalEngine

    plan, spec = pickle.loads(task)
    try:
        adds = LocalEngine().rewrite([plan], spec)
    except DeltaError as e:
        # A worker's exception would reach the driver as text.
        return None, pickle.dumps(e)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, adds.schema) as writer:
        writer.write_table(adds)
    return sink.getvalue().to_pybytes(), None


def _rewrite_natively(host: SparkHost, plans: Sequence[ScanPlan], spec: WriteSpec) -> pa.Table:
    from delta_orch.engines.spark.engine import SparkEngine

    engine = SparkEngine(host.session)
    return pa.concat_tables([engine.write(engine.scan(plan).coalesce(1), spec) for plan in plans])
