"""The objects that Spark sends to its Python workers. They are sent with their code, so that a worker without this
package can report that.

No code here may need the package before `ensure_package` returns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.protocol.actions import JsonValue
    from delta_orch.scan.scan import ScanTask


def ensure_package() -> None:
    """Raise ImportError with an explanation if this package is not installed."""
    try:
        import delta_orch._version  # noqa: F401
    except ImportError:
        # The cause is dropped, because users see the first line of an error in a worker first.
        raise ImportError(
            "delta_orch is not installed on the Spark workers. The format delta_orch reads and writes files there. "
            "Install delta-orch in the Python of the executors, or use DeltaTable and to_spark, which do not need it"
        ) from None


class SourceOnWorkers(DataSource):  # type: ignore[misc]
    """The part of a `DeltaOrchSource` that its tasks receive. Spark needs it only for its name."""

    @classmethod
    def name(cls) -> str:
        return "delta_orch"


class TaskPartition(InputPartition):  # type: ignore[misc]
    """A pickled `ScanTask`. Its text is short, because Spark logs it, and a task may hold credentials."""

    def __init__(self, task: ScanTask) -> None:
        import pickle

        super().__init__(pickle.dumps(task))
        self.num_files = task.num_files

    def __repr__(self) -> str:
        return f"<{self.num_files} files>"


def read_partition(partition: InputPartition | None, schema_json: str) -> Iterator[pa.RecordBatch]:
    """Return the rows of a `TaskPartition`, with the columns that Spark requested."""
    # If there is no partition, Spark still makes one: without a value, or None in Spark 4.0.
    if partition is None or partition.value is None:
        return
    ensure_package()
    import pickle

    from delta_orch.engines.conform import conform_batch
    from delta_orch.engines.spark.sql_text import schema_as_sent
    from delta_orch.protocol.schema import parse_schema

    target = schema_as_sent(parse_schema(schema_json))
    for batch in pickle.loads(partition.value).to_reader():
        yield conform_batch(batch, target, lossless=True)


class Written(WriterCommitMessage):  # type: ignore[misc]
    """The result of a task. `outcome` is an Arrow stream of the files, or a pickled error. `query_id` is the id of the
    stream, and `overwrite_mode` the setting of the session. Spark passes both only to tasks."""

    def __init__(
        self,
        outcome: bytes | None,
        error: bytes | None,
        spec: bytes | None,
        query_id: str | None,
        overwrite_mode: str | None,
    ) -> None:
        self.outcome = outcome
        self.error = error
        self.spec = spec
        self.query_id = query_id
        self.overwrite_mode = overwrite_mode


def write_task(spec: bytes | None, schema_json: str, batches: Iterator[pa.RecordBatch]) -> Written:
    """Write the rows of one task. `spec` is the pickled result of `PlannedWrite.spec`. Without it, there is nothing to
    write."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query_id = None if context is None else context.getLocalProperty("sql.streaming.queryId")
    mode = None if context is None else context.getLocalProperty("spark.sql.sources.partitionOverwriteMode")
    if spec is None:
        return Written(None, None, None, query_id, mode)
    ensure_package()
    import pickle

    from delta_orch.engines.spark.in_tasks import written_files

    return Written(*written_files(pickle.loads(spec)[0], schema_json, batches), spec, query_id, mode)


class RowReader(DataSourceReader):  # type: ignore[misc]
    """The part of a reader that executors need. The other part plans."""

    def __init__(self, schema_json: str, plan: Callable[[], list[InputPartition]] | None) -> None:
        self.schema_json = schema_json
        self.plan = plan

    def __getstate__(self) -> dict[str, JsonValue]:
        return {**self.__dict__, "plan": None}

    def partitions(self) -> list[InputPartition]:
        assert self.plan is not None
        return self.plan()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self.schema_json)


try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as _StreamWriter
except ImportError:
    # Before Spark 4.1: `DeltaOrchSource.streamWriter` refuses.
    from pyspark.sql.datasource import DataSourceStreamWriter as _StreamWriter
try:
    # Spark 4.2 and later.
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles, SupportsTriggerAvailableNow

    _STREAM_READER: tuple[type, ...] = (DataSourceStreamReader, SupportsTriggerAvailableNow)
except ImportError:
    _STREAM_READER = (DataSourceStreamReader,)


class RowStreamReader(*_STREAM_READER):  # type: ignore[misc]
    """The part of a stream's reader that executors need. `planner`, a `StreamPlanner`, stays on the driver."""

    def __init__(self, schema_json: str, planner: Any, offset: Callable[[dict[str, JsonValue]], Any] | None) -> None:
        self.schema_json = schema_json
        self.planner = planner
        self.offset = offset

    def __getstate__(self) -> dict[str, JsonValue]:
        return {**self.__dict__, "planner": None, "offset": None}

    def initialOffset(self) -> dict[str, JsonValue]:
        return self.planner.initial().to_json()  # type: ignore[no-any-return]

    def latestOffset(self, start: dict[str, JsonValue], limit: Any) -> dict[str, JsonValue]:
        assert self.offset is not None
        is_limited = not isinstance(limit, ReadAllAvailable)
        return self.planner.latest(self.offset(start), is_limited=is_limited).to_json()  # type: ignore[no-any-return]

    def getDefaultReadLimit(self) -> Any:
        return ReadMaxFiles(self.planner.max_files)

    def prepareForTriggerAvailableNow(self) -> None:
        self.planner.stop_at_newest()

    def partitions(self, start: dict[str, JsonValue], end: dict[str, JsonValue]) -> list[InputPartition]:
        assert self.offset is not None
        return [TaskPartition(task) for task in self.planner.tasks(self.offset(start), self.offset(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self.schema_json)


class _Writer:
    """The part that every write shares. `plan` is a pickled `PlannedWrite`, which only the driver unpickles."""

    def __init__(self, spec: bytes | None, schema_json: str, plan: bytes) -> None:
        self.spec = spec
        self.schema_json = schema_json
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_task(self.spec, self.schema_json, iterator)


class RowWriter(_Writer, DataSourceArrowWriter):  # type: ignore[misc]
    """A batch write."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        import pickle

        pickle.loads(self.plan).commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing. Vacuum deletes the files, unless a commit whose answer was lost names them."""


class BatchWriter(_Writer, _StreamWriter):  # type: ignore[misc]
    """The writes of a stream, one for each of its batches."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        import pickle

        pickle.loads(self.plan).commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing. Vacuum deletes the files, unless a commit names them: Spark may call this after a successful
        commit."""


cloudpickle.register_pickle_by_value(sys.modules[__name__])
