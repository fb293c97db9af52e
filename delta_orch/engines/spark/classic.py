"""Classic Spark: scan and write inside the JVM, through the bridge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from delta_orch.engines.spark.bridge import Bridge
from delta_orch.engines.spark.host import DataFrame, SparkHost, WrittenFile
from delta_orch.engines.spark.live_rows import with_position
from delta_orch.engines.spark.scan_files import ScanFiles, file_rows, partition_rows
from delta_orch.engines.spark.settings import ANALYSIS_SETTINGS, READ_OPTIONS
from delta_orch.protocol.schema import serialize_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.storage.base import LogStore


class ClassicHost(SparkHost):
    """A session in this process's own JVM.

    A plan that is analysed can be run by any session of the same JVM. So what needs pinned settings is moved into a
    clone of the user's session that has them, and back: the user's own settings are never touched, not even for the
    time of a write.
    """

    is_time_zone_pinned = True

    def __init__(self, session: Any, bridge: Bridge) -> None:
        self.session = session
        self._bridge = bridge
        self._java = bridge.new_java()

    def pinned(self, rows: DataFrame, settings: Mapping[str, str]) -> DataFrame:
        return self._rehome(rows, self._pinned_session(settings))

    def unpinned(self, rows: DataFrame) -> DataFrame:
        return self._rehome(rows, self.session)

    def settings(self, settings: Mapping[str, str]) -> AbstractContextManager[None]:
        return nullcontext()

    def pinned_session(self) -> Any:
        return self._pinned_session(ANALYSIS_SETTINGS)

    def _pinned_session(self, settings: Mapping[str, str]) -> Any:
        from pyspark.sql import SparkSession

        java = self._java.pinnedSession(self.session._jsparkSession, dict(settings))
        return SparkSession(self.session.sparkContext, java)

    def _rehome(self, rows: DataFrame, session: Any) -> DataFrame:
        return self._frame(self._java.rehome(rows._jdf, session._jsparkSession), session)

    def _frame(self, java_rows: Any, session: Any) -> DataFrame:
        from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

        return ClassicDataFrame(java_rows, session)

    def scan_files(self, files: ScanFiles, *, positioned: bool = False) -> DataFrame:
        bridge = self._bridge
        self._ensure_connector(files.root_uri)
        index = bridge.file_index(
            files.root_uri,
            bridge.struct_type(serialize_schema(files.partition_schema)),
            partition_rows(files),
            file_rows(files),
            files.pushed,
        )
        data_schema = bridge.struct_type(serialize_schema(files.data_schema))
        options = {**READ_OPTIONS, **files.store.hadoop_options()}
        java = self._java.scan(self.session._jsparkSession, index, data_schema, options)
        rows = self._frame(java, self.session)
        return with_position(rows) if positioned else rows

    def _ensure_connector(self, root_uri: str) -> None:
        """Ask for the class of the file system now: rows are pulled later, by the user's own calls."""
        scheme = root_uri.partition(":")[0]
        if scheme == "file":
            return
        session = self.session
        configuration = session._jsparkSession.sessionState().newHadoopConf()
        session._jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, configuration)

    def write_files(
        self,
        rows: DataFrame,
        store: LogStore,
        root_uri: str,
        directory: str,
        partition_columns: Sequence[str],
        options: Mapping[str, str],
    ) -> list[WrittenFile]:
        columns = self._bridge.string_array(list(partition_columns))
        prefix = f"{directory}/" if directory else ""
        manifest = self._java.write(rows._jdf, root_uri + f"/{directory}".rstrip("/"), columns, dict(options))
        # Hive's escaping leaves no newline in a directory name, and file names are Spark's own.
        lines = (line.split("\t", 2) for line in manifest.split("\n") if line)
        return [WrittenFile(prefix + path, int(size), int(written)) for size, written, path in lines]

    def arrow_batches(self, rows: DataFrame, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark.serializers import NoOpSerializer
        from pyspark.util import _local_iterator_from_socket

        messages = rows._jdf.toArrowBatchRdd()
        socket = rows.sparkSession._jvm.PythonRDD.toLocalIteratorAndServe(messages, False)
        for message in _local_iterator_from_socket(socket, NoOpSerializer()):
            yield pa.ipc.read_record_batch(pa.py_buffer(message), schema)
