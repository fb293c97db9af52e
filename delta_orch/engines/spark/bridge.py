"""The JVM half of the classic engine: Java compiled inside the driver by Janino, which Spark itself ships.

No jar has to be installed anywhere, and executors never see these classes: they make plans and keep manifests, both of
which live on the driver only.
"""

from __future__ import annotations

import logging
import threading
from importlib import resources
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from delta_orch.engines.spark.pushed_filters import PushedFilters
from delta_orch.errors import DeltaError

logger = logging.getLogger(__name__)

# The class moved between releases of Spark: 4.1 and later first, then 4.0.
_SINK_PACKAGES = ("org.apache.spark.sql.execution.streaming.sinks", "org.apache.spark.sql.execution.streaming")

_bridges: WeakKeyDictionary[Any, Bridge] = WeakKeyDictionary()
_lock = threading.Lock()


class BridgeUnavailable(Exception):
    """The session's JVM cannot be extended. The portable host works without."""


class _Skipping:
    """Answers the JVM, when a query is planned, which files its filters need. It knows no session: the JVM keeps it for
    as long as there is a plan with the scan."""

    def __init__(self, pushed: PushedFilters) -> None:
        self._pushed = pushed

    def apply(self, text: str) -> bytes | None:
        try:
            return self._pushed.kept(text)
        except DeltaError as e:
            # E.g. a checkpoint that was cleaned up meanwhile. The rows are right without it.
            logger.warning("All files of %s are read, for its log cannot be asked again: %s", self._pushed.uri, e)
            return None

    class Java:
        implements: ClassVar[list[str]] = ["java.util.function.Function"]


class Bridge:
    """The compiled classes of one JVM."""

    def __init__(self, session: Any) -> None:
        self._gateway = session.sparkContext._gateway
        self._jvm = session._jvm
        loader = self._jvm.java.lang.Thread.currentThread().getContextClassLoader()
        filters = self._compile("FilterText", loader)
        self._index_class = self._compile("LogFileIndex", filters.getClassLoader())
        self._bridge_class = self._compile("Bridge", loader)

    def new_java(self) -> Any:
        """An instance of `Bridge.java`: one a session, as it keeps that session's clones."""
        return self._new(self._bridge_class)

    def file_index(
        self, root_uri: str, partition_schema: Any, partition_rows: str, file_rows: str, pushed: PushedFilters | None
    ) -> Any:
        """A Spark `FileIndex`; see `LogFileIndex.java` for the two texts."""
        index = self._new(self._index_class, root_uri, partition_schema, partition_rows, file_rows)
        if pushed is not None:
            self._start_callbacks()
            index.skipWith(_Skipping(pushed))
        return index

    def _start_callbacks(self) -> None:
        # What pyspark itself starts for `foreachBatch`; once a gateway.
        from pyspark.java_gateway import ensure_callback_server_started

        ensure_callback_server_started(self._gateway)

    def struct_type(self, schema_json: str) -> Any:
        """Spark's `StructType` from schema JSON."""
        return self._jvm.org.apache.spark.sql.types.DataType.fromJson(schema_json)

    def string_array(self, values: list[str]) -> Any:
        array = self._gateway.new_array(self._jvm.java.lang.String, len(values))
        for i, value in enumerate(values):
            array[i] = value
        return array

    def _compile(self, name: str, loader: Any) -> Any:
        source = (resources.files("delta_orch.engines.spark") / "java" / f"{name}.java").read_text("utf-8")
        compiler = self._jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(loader)
        compiler.cook(source.replace("${SINK_PACKAGE}", self._sink_package(loader)))
        return compiler.getClassLoader().loadClass(f"delta_orch.spark.{name}")

    def _sink_package(self, loader: Any) -> str:
        from py4j.protocol import Py4JJavaError

        for package in _SINK_PACKAGES:
            try:
                loader.loadClass(f"{package}.FileStreamSinkLog")
            except Py4JJavaError:
                continue
            return package
        raise BridgeUnavailable("this release of Spark has no FileStreamSinkLog")

    def _new(self, java_class: Any, *arguments: Any) -> Any:
        values = self._gateway.new_array(self._jvm.java.lang.Object, len(arguments))
        for i, argument in enumerate(arguments):
            values[i] = argument
        return java_class.getConstructors()[0].newInstance(values)


def connect_bridge(session: Any) -> Bridge:
    """The bridge of the session's JVM, compiled on first use (0.3 s) and shared by all its sessions.

    Raises BridgeUnavailable: e.g. a release of Spark whose internals moved.
    """
    from py4j.protocol import Py4JError

    # The JVM outlives a stopped session, and py4j remembers methods by class name: compiled twice, they would be
    # mixed up.
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
