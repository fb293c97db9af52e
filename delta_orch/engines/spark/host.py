"""What the engine asks of a Spark session, and the choice of who answers."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from delta_orch.errors import InvalidRequestError

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.engines.spark.scan_files import ScanFiles
    from delta_orch.storage.base import LogStore

logger = logging.getLogger(__name__)

DataFrame = Any
"""A pyspark DataFrame, classic or Connect: they share no useful base class at run time."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """`path` below the table's root, not URI-encoded; `size` in bytes; `modification_time` in milliseconds."""

    path: str
    size: int
    modification_time: int


class SparkHost(ABC):
    """A session, with what differs between classic and Connect behind one interface."""

    session: Any
    is_time_zone_pinned: bool
    """Whether SQL over `pinned` rows is analysed in UTC whatever the session's time zone is."""

    @abstractmethod
    def pinned(self, rows: DataFrame, settings: Mapping[str, str]) -> DataFrame:
        """The same rows, under the settings given instead of the user's."""

    @abstractmethod
    def unpinned(self, rows: DataFrame) -> DataFrame:
        """The same rows in the user's session, as a user may get them."""

    def analysed(self, rows: DataFrame) -> DataFrame:
        """The same rows, with whatever is wrong with their plan raised now. Classic Spark always does that."""
        return rows

    @abstractmethod
    def settings(self, settings: Mapping[str, str]) -> AbstractContextManager[None]:
        """Holds where the rows of `pinned` are pulled; afterwards the session is as it was."""

    @abstractmethod
    def pinned_session(self) -> Any:
        """The session in which SQL text over `pinned` rows is analysed."""

    @abstractmethod
    def scan_files(self, files: ScanFiles, *, positioned: bool = False) -> DataFrame:
        """All rows of the files: data columns, then partition columns, then on request where each row stands
        (`live_rows.with_position`)."""

    @abstractmethod
    def write_files(
        self,
        rows: DataFrame,
        store: LogStore,
        root_uri: str,
        directory: str,
        partition_columns: Sequence[str],
        options: Mapping[str, str],
    ) -> list[WrittenFile]:
        """Write Parquet files below a directory of the root ("" for the root itself); only files of task attempts that
        count are returned."""

    @abstractmethod
    def arrow_batches(self, rows: DataFrame, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows as a stream; of classic Spark at most one partition is held at a time."""


_HOST_ATTRIBUTE = "_delta_orch_host"
_lock = threading.Lock()


def host_for(session: Any) -> SparkHost:
    """The host of a session, made once: classic with the JVM bridge where that works, portable otherwise.

    It is kept on the session itself, and so lives exactly as long.
    """
    with _lock:
        host: SparkHost | None = getattr(session, _HOST_ATTRIBUTE, None)
        if host is None:
            host = _new_host(session)
            setattr(session, _HOST_ATTRIBUTE, host)
        return host


def _new_host(session: Any) -> SparkHost:
    from delta_orch.engines.spark.bridge import BridgeUnavailable, connect_bridge
    from delta_orch.engines.spark.classic import ClassicHost
    from delta_orch.engines.spark.portable import PortableHost

    if is_connect(session):
        return PortableHost(session)
    try:
        return ClassicHost(session, connect_bridge(session))
    except BridgeUnavailable as e:
        logger.warning("The native scan and write are not available on this Spark session (%s): using portable ones", e)
        return PortableHost(session)


def is_connect(session: Any) -> bool:
    """Whether this is a Spark Connect session."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def session_of(value: Any) -> Any:
    """The session of a DataFrame, or the session itself.

    Raises InvalidRequestError for anything else.
    """
    module = type(value).__module__
    if module.startswith("pyspark.sql"):
        if hasattr(value, "sparkSession"):
            return value.sparkSession
        if hasattr(value, "createDataFrame"):
            return value
    raise InvalidRequestError(
        f"A {type(value).__name__} is neither a Spark DataFrame nor a Spark session",
        remedy="Pass a pyspark DataFrame or SparkSession",
    )
