"""Classic Spark: scans and writes run inside the JVM, through Java classes that the driver compiles at run time.

Spark ships the compiler, Janino. No jar has to be installed anywhere. Executors never see these classes, which make
plans and keep manifests: both live on the driver only.
"""

from __future__ import annotations

import threading
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import resources
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.spark.frames import with_position
from delta_orch.engines.spark.host import ANALYSIS_SETTINGS, SparkHost, read_options
from delta_orch.engines.spark.scan_files import NUMBER_COLUMN, ScanFiles, hadoop_root
from delta_orch.log.files.file_columns import FileTable
from delta_orch.protocol.arrow_building import int32_array, one_chunk, string_array
from delta_orch.protocol.schema import serialize_schema
from delta_orch.protocol.types import StructType, stored_schema
from delta_orch.storage.base import LogStore

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway, JavaObject
    from pyspark.sql import DataFrame, SparkSession

    from delta_orch.engines.scan_plan import ScanPlan
    from delta_orch.engines.spark.followed import Versions
    from delta_orch.engines.spark.replanned import FollowedScan, LargeScan

# The class moved between releases of Spark: 4.1 and later first, then 4.0.
_SINK_PACKAGES = ("org.apache.spark.sql.execution.streaming.sinks", "org.apache.spark.sql.execution.streaming")

_CASE_SENSITIVE = "spark.sql.caseSensitive"

_KEPT_INDEXES = 8
"""File indexes of one version: for its filters, and for files with and without deletion vectors."""

_bridges: WeakKeyDictionary[JavaGateway, Bridge] = WeakKeyDictionary()
_lock = threading.Lock()


class BridgeUnavailable(Exception):
    """The session's JVM cannot be extended. The portable host works without extensions."""


class Bridge:
    """The compiled classes of one JVM."""

    def __init__(self, session: SparkSession) -> None:
        self.is_following = False
        self.versions: Versions = OrderedDict()
        self._gateway = session.sparkContext._gateway
        self._jvm = session._jvm
        # Each part of a class name costs a call to the JVM, so the classes are kept.
        self._data_type = self._jvm.org.apache.spark.sql.types.DataType
        self._object, self._string = self._jvm.java.lang.Object, self._jvm.java.lang.String
        loader = self._jvm.java.lang.Thread.currentThread().getContextClassLoader()
        filters = self._compile("FilterText", loader)
        self._index_class = self._compile("LogFileIndex", filters.getClassLoader())
        self._followed_class = self._compile("FollowedRelation", self._index_class.getClassLoader())
        self._planning = self._new(self._compile("LogPlanning", self._followed_class.getClassLoader()))
        self._bridge_class = self._compile("Bridge", loader)
        self._indexes: WeakKeyDictionary[object, dict[tuple[object, ...], JavaObject]] = WeakKeyDictionary()

    def new_java(self) -> JavaObject:
        """Return an instance of `Bridge.java` for one session. It keeps the clones of the session."""
        return self._new(self._bridge_class)

    def plan_by_log(self, java_session: JavaObject) -> None:
        """Let the optimizer of a session read the log. See `LogPlanning.java`."""
        self._planning.install(java_session)

    def file_index(self, files: ScanFiles) -> JavaObject:
        """Return a Spark `FileIndex` of the files of one scan. Scans of a version with the same files share one."""
        if files.pushed is None:
            return self._new_file_index(files)
        with _lock:
            indexes = self._indexes.setdefault(files.pushed.prune, {})
            if files.key not in indexes:
                while len(indexes) >= _KEPT_INDEXES:
                    del indexes[next(iter(indexes))]
                indexes[files.key] = self._new_file_index(files)
            return indexes[files.key]

    def _new_file_index(self, files: ScanFiles) -> JavaObject:
        from pyspark.java_gateway import ensure_callback_server_started

        partition_schema = self.struct_type(files.partition_schema)
        is_marked = NUMBER_COLUMN in files.partition_schema.names
        texts = _partition_rows(files), _file_rows(files)
        index = self._new(self._index_class, files.root_uri, partition_schema, *texts, is_marked)
        if files.pushed is not None:
            # pyspark starts the same server for `foreachBatch`, once per gateway.
            ensure_callback_server_started(self._gateway)
            index.skipWith(files.pushed)
        return index

    def followed(
        self, java_session: JavaObject, schema: JavaObject, rows: object, *, is_of_one_version: bool
    ) -> JavaObject:
        """Return a relation whose rows come from `rows` at each query. See `FollowedRelation.java`."""
        from pyspark.java_gateway import ensure_callback_server_started

        ensure_callback_server_started(self._gateway)
        self.is_following |= not is_of_one_version
        relation = self._new(self._followed_class, java_session, schema, is_of_one_version)
        relation.readBy(rows)
        return java_session.baseRelationToDataFrame(relation)

    def settled(self, java_rows: JavaObject) -> JavaObject:
        """Return the same rows, pinned to the newest versions of the followed tables."""
        return self._planning.settled(java_rows)

    def struct_type(self, schema: StructType) -> JavaObject:
        """Return the schema as Spark's own `StructType`."""
        return self._data_type.fromJson(serialize_schema(stored_schema(schema)))

    def string_array(self, values: list[str]) -> JavaObject:
        array = self._gateway.new_array(self._string, len(values))
        for i, value in enumerate(values):
            array[i] = value
        return array

    def _compile(self, name: str, loader: JavaObject) -> JavaObject:
        source = (resources.files("delta_orch.engines.spark") / "java" / f"{name}.java").read_text("utf-8")
        compiler = self._jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(loader)
        compiler.cook(source.replace("${SINK_PACKAGE}", self._sink_package(loader)))
        return compiler.getClassLoader().loadClass(f"delta_orch.spark.{name}")

    def _sink_package(self, loader: JavaObject) -> str:
        from py4j.protocol import Py4JJavaError

        for package in _SINK_PACKAGES:
            try:
                loader.loadClass(f"{package}.FileStreamSinkLog")
            except Py4JJavaError:
                continue
            return package
        raise BridgeUnavailable("this release of Spark has no FileStreamSinkLog")

    def _new(self, java_class: JavaObject, *arguments: object) -> JavaObject:
        values = self._gateway.new_array(self._object, len(arguments))
        for i, argument in enumerate(arguments):
            values[i] = argument
        return java_class.getConstructors()[0].newInstance(values)


def bridge_of(session: SparkSession) -> Bridge:
    """Return the bridge of the session's JVM. It is compiled on first use (0.3 s) and shared by all sessions of the
    JVM.

    Raises BridgeUnavailable if the classes do not fit, for example to a release of Spark with other internals.
    """
    from py4j.protocol import Py4JError

    # The JVM outlives a stopped session, and py4j caches methods by class name. A second compilation would mix them up.
    gateway = session.sparkContext._gateway
    with _lock:
        bridge = _bridges.get(gateway)
        if bridge is None:
            try:
                bridge = Bridge(session)
            except (Py4JError, TypeError, AttributeError) as e:
                raise BridgeUnavailable(str(e).splitlines()[0]) from e
            _bridges[gateway] = bridge
        return bridge


class ClassicHost(SparkHost):
    """A session in this process's own JVM.

    Any session of a JVM can run a plan that another session analysed. So work that needs pinned settings runs in a
    clone of the user's session with these settings. The user's own settings never change, not even during a write.
    Listeners, observations, tags and interruptions of the user's session also reach the clone.
    """

    is_time_zone_pinned = True

    def __init__(self, session: SparkSession, bridge: Bridge) -> None:
        self.session = session
        self._bridge = bridge
        self._java = bridge.new_java()
        bridge.plan_by_log(session._jsparkSession)

    def follow(self, followed: FollowedScan, scan: Callable[[SparkHost, ScanPlan], DataFrame]) -> DataFrame:
        from delta_orch.engines.spark.followed import FollowingFrame, NewestRows

        schema = scan(self, followed.plan)._jdf.schema()
        newest = NewestRows(self, followed, scan, self._bridge.versions)
        java = self._bridge.followed(self.session._jsparkSession, schema, newest, is_of_one_version=False)
        return FollowingFrame(java, self.session)

    def large_scan(self, large: LargeScan, scan: Callable[[SparkHost, ScanPlan], DataFrame]) -> DataFrame:
        from delta_orch.engines.spark.followed import FilteredRows

        schema = scan(self, large.plan_of_nothing())._jdf.schema()
        rows = FilteredRows(self, large, scan)
        java = self._bridge.followed(self.session._jsparkSession, schema, rows, is_of_one_version=True)
        return self._frame(java, self.session)

    def settled(self, rows: DataFrame) -> DataFrame:
        if not self._bridge.is_following:
            return rows
        return self._frame(self._bridge.settled(rows._jdf), rows.sparkSession)

    def pinned(self, rows: DataFrame, settings: Mapping[str, str]) -> DataFrame:
        return self._rehome(rows, self._pinned_session(settings))

    def unpinned(self, rows: DataFrame) -> DataFrame:
        return self._rehome(rows, self.session)

    def settings(self, settings: Mapping[str, str]) -> AbstractContextManager[None]:
        return nullcontext()

    def pinned_session(self) -> SparkSession:
        return self._pinned_session(ANALYSIS_SETTINGS)

    def _pinned_session(self, settings: Mapping[str, str]) -> SparkSession:
        from pyspark.sql import SparkSession

        java = self._java.pinnedSession(self.session._jsparkSession, _pairs(settings))
        return SparkSession(self.session.sparkContext, java)

    def _rehome(self, rows: DataFrame, session: SparkSession) -> DataFrame:
        return self._frame(self._java.rehome(rows._jdf, session._jsparkSession), session)

    def _frame(self, java_rows: JavaObject, session: SparkSession) -> DataFrame:
        from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

        return ClassicDataFrame(java_rows, session)

    def analysed(self, rows: DataFrame) -> DataFrame:
        return rows

    def scan_files(self, files: ScanFiles, *, positioned: bool = False) -> DataFrame:
        self._ensure_connector(files.root_uri)
        index = self._bridge.file_index(files)
        data_schema = self._bridge.struct_type(files.data_schema)
        session = self.session
        # Files of other writers may spell a column in another case. Spark would read it as a missing column.
        is_strict = session.conf.get(_CASE_SENSITIVE) == "true"
        reader = self._pinned_session({_CASE_SENSITIVE: "false"}) if is_strict else session
        options = _pairs(read_options(files))
        java = self._java.scan(session._jsparkSession, reader._jsparkSession, index, data_schema, options)
        rows = self._frame(java, self.session)
        return with_position(rows) if positioned else rows

    def _ensure_connector(self, root_uri: str) -> None:
        """Raise the error of a missing connector now, because rows are pulled later by the user's own calls."""
        scheme = root_uri.partition(":")[0]
        if scheme != "file":
            configuration = self.session._jsparkSession.sessionState().newHadoopConf()
            self.session._jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, configuration)

    def write_files(
        self, rows: DataFrame, store: LogStore, directory: str, partition_by: Sequence[str], options: Mapping[str, str]
    ) -> list[str]:
        columns = self._bridge.string_array(list(partition_by))
        prefix = f"{directory}/" if directory else ""
        root = f"{hadoop_root(store)}/{directory}".rstrip("/")
        written = self._java.write(rows._jdf, root, columns, _pairs(options))
        # Hive's escaping leaves no newline in a directory name, and file names are Spark's own.
        return [prefix + path for path in written.split("\n") if path]

    def arrow_batches(self, rows: DataFrame, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        from pyspark.serializers import NoOpSerializer
        from pyspark.util import _local_iterator_from_socket

        for message in _local_iterator_from_socket(self._java.stream(rows._jdf), NoOpSerializer()):
            yield pa.ipc.read_record_batch(pa.py_buffer(message), schema)


def _pairs(values: Mapping[str, str]) -> str:
    """Return keys and values for `Bridge.java`."""
    return "\0".join(part for pair in values.items() for part in pair)


def _file_rows(files: ScanFiles) -> str:
    """Return the files for `LogFileIndex.java`, one line each: partition, size, modification time and path."""
    columns = files.files
    if columns.num_rows == 0:
        return ""
    return _join_rows(
        [
            files.partition_index.cast(pa.string()),
            pc.fill_null(one_chunk(FileTable(columns).size), 0).cast(pa.string()),
            pc.fill_null(one_chunk(FileTable(columns).modification_time), 0).cast(pa.string()),
            # A raw line break would end the row. The JVM decodes its escape.
            pc.replace_substring(one_chunk(FileTable(columns).path), pattern="\n", replacement="%0A"),
        ]
    )


def _partition_rows(files: ScanFiles) -> str:
    """Return the partitions for `LogFileIndex.java`, one line each, as Catalyst's values."""
    if not len(files.partition_schema) or files.partitions.num_rows == 0:
        return ""
    return _join_rows([_catalyst_text(one_chunk(column)) for column in files.partitions.columns])


def _join_rows(columns: Sequence[pa.Array]) -> str:
    lines = pc.binary_join_element_wise(*columns, "\t")
    as_list = pa.ListArray.from_arrays(int32_array([0, len(lines)]), lines)
    text: str = pc.binary_join(as_list, "\n")[0].as_py()
    return text


def _catalyst_text(values: pa.Array) -> pa.Array:
    """Dates as days, timestamps as microseconds, binary in base64, strings with escapes; null is `\\N`."""
    kind = values.type
    if pa.types.is_date32(kind):
        texts = values.cast(pa.int32()).cast(pa.string())
    elif pa.types.is_timestamp(kind):
        texts = values.cast(pa.int64()).cast(pa.string())
    elif pa.types.is_binary(kind):
        texts = string_array([None if v is None else b64encode(v).decode() for v in values.to_pylist()])
    elif pa.types.is_floating(kind):
        texts = values.cast(pa.string())
        for arrow, java in (("nan", "NaN"), ("inf", "Infinity")):
            texts = pc.replace_substring(texts, pattern=arrow, replacement=java)
    else:
        texts = values.cast(pa.string())
    if pa.types.is_string(kind):
        for plain, escaped in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n")):
            texts = pc.replace_substring(texts, pattern=plain, replacement=escaped)
    return pc.fill_null(texts, "\\N")
