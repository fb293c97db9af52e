"""DataFrames of classic sessions whose files are planned at each query. See `FollowedRelation.java`."""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.engines.spark.pushed_filters import FilterReader
from delta_orch.errors import DeltaError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from py4j.java_gateway import JavaObject
    from pyspark import RDD
    from pyspark.sql import DataFrame, Row

    from delta_orch.engines.spark.host import SparkHost
    from delta_orch.engines.spark.replanned import FollowedScan, LargeScan

_KEPT_QUERIES = 256
_LIMIT = "limit "

_lock = threading.Lock()

Versions = OrderedDict[tuple[str, str], int]
"""The versions that the queries of one JVM read, by the number of the query and the table."""


class _PlannedRows(ABC):
    """Returns the rows of a scan to the JVM. The JVM keeps this object while a plan with the scan exists."""

    class Java:
        implements: ClassVar[list[str]] = ["java.util.function.Function"]

    def __init__(self, host: SparkHost, scan: Callable[[SparkHost, ScanPlan], DataFrame]) -> None:
        self._host = weakref.ref(host)
        self._scan = scan

    def apply(self, asked: str) -> JavaObject | str:
        """Return the rows as a Java `Dataset`, or an error."""
        host = self._host()
        if host is None:
            return "The session of a DataFrame that is planned at each query has ended"
        try:
            return self._scan(host, self._plan_of(asked))._jdf
        except DeltaError as e:
            return f"{type(e).__name__}: {e}"

    @abstractmethod
    def _plan_of(self, asked: str) -> ScanPlan:
        """Return the scan that the JVM requests."""


class FilteredRows(_PlannedRows):
    """The rows of a large scan after filters or a limit. The JVM requests them by the text of the filters."""

    def __init__(self, host: SparkHost, large: LargeScan, scan: Callable[[SparkHost, ScanPlan], DataFrame]) -> None:
        super().__init__(host, scan)
        self._large = large
        self._reader = FilterReader(large.schema, large.schema)

    def _plan_of(self, asked: str) -> ScanPlan:
        if asked.startswith(_LIMIT):
            return self._large.plan_of_rows(int(asked.removeprefix(_LIMIT)))
        return self._large.plan_of(self._reader.parse(asked) if asked else None)


class NewestRows(_PlannedRows):
    """The rows of a followed scan. The JVM requests them by the number of the query."""

    def __init__(
        self,
        host: SparkHost,
        followed: FollowedScan,
        scan: Callable[[SparkHost, ScanPlan], DataFrame],
        versions: Versions,
    ) -> None:
        super().__init__(host, scan)
        self._followed = followed
        self._versions = versions

    def _plan_of(self, asked: str) -> ScanPlan:
        return self._followed.plan_of(self._version(asked))

    def _version(self, query: str) -> int:
        key = (query, self._followed.uri)
        with _lock:
            if key not in self._versions:
                self._versions[key] = self._followed.newest_version()
                while len(self._versions) > _KEPT_QUERIES:
                    self._versions.popitem(last=False)
            return self._versions[key]


class FollowingFrame(ClassicDataFrame):  # type: ignore[misc]  # untyped
    """A DataFrame whose plan Spark optimizes again for each action, instead of only once."""

    def _anew(self) -> DataFrame:
        return self.select("*")

    def collect(self) -> list[Row]:
        """Do the same as every DataFrame, at the newest version."""
        return self._anew().collect()  # type: ignore[no-any-return]

    def toArrow(self) -> pa.Table:
        """Do the same as every DataFrame, at the newest version."""
        return self._anew().toArrow()

    def toPandas(self) -> pd.DataFrame:
        """Do the same as every DataFrame, at the newest version."""
        return self._anew().toPandas()

    def toLocalIterator(self, prefetchPartitions: bool = False) -> Iterator[Row]:
        """Do the same as every DataFrame, at the newest version."""
        return self._anew().toLocalIterator(prefetchPartitions)  # type: ignore[no-any-return]

    def explain(self, *arguments: object, **keywords: object) -> None:
        """Do the same as every DataFrame, at the newest version."""
        self._anew().explain(*arguments, **keywords)

    @property
    def rdd(self) -> RDD[Row]:
        """Do the same as every DataFrame, at the newest version."""
        return self._anew().rdd
