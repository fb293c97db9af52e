"""The part of a Spark session that the engine uses, and the settings for its expressions and files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import delta_orch.arrow_compute as pc
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.engines.spark.scan_files import ScanFiles
from delta_orch.errors import UnsupportedError
from delta_orch.log.files.file_columns import FileTable
from delta_orch.storage.base import LogStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from delta_orch.engines.spark.replanned import FollowedScan, LargeScan

DEFAULTS: Mapping[str, str] = {
    "spark.sql.alwaysInlineCommonExpr": "false",
    "spark.sql.readSideCharPadding": "true",
    "spark.sql.legacy.allowHashOnMapType": "false",
    "spark.sql.legacy.bangEqualsNot": "false",
    "spark.sql.legacy.charVarcharAsString": "false",
    "spark.sql.legacy.consecutiveStringLiterals.enabled": "false",
    "spark.sql.legacy.createEmptyCollectionUsingStringType": "false",
    "spark.sql.legacy.duplicateBetweenInput": "false",
    "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "false",
    "spark.sql.legacy.followThreeValuedLogicInArrayExists": "true",
    "spark.sql.legacy.interval.enabled": "false",
    "spark.sql.legacy.literal.pickMinimumPrecision": "true",
    "spark.sql.legacy.lpadRpadAlwaysReturnString": "false",
    "spark.sql.legacy.negativeIndexInArrayInsert": "false",
    "spark.sql.legacy.noCharPaddingInPredicate": "false",
    "spark.sql.legacy.setopsPrecedence.enabled": "false",
    "spark.sql.legacy.typeCoercion.datetimeToString.enabled": "false",
}
"""Default values of the session's settings that change the meaning of an expression. Settings that Spark reads while it
computes rows (`timeParserPolicy`, `mapKeyDedupPolicy`) are not here, because the user's own frames need them."""

ANALYSIS_SETTINGS: Mapping[str, str] = {
    **DEFAULTS,
    # Casts of timestamps to dates and strings must not depend on the session.
    "spark.sql.session.timeZone": "UTC",
    # The rules by which Spark parses the SQL text of this package.
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    # Names of columns must not be replaced by values of the driver's environment.
    "spark.sql.variable.substitute": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.ansi.enforceReservedKeywords": "false",
    "spark.sql.groupByOrdinal": "true",
    "spark.sql.caseSensitive": "false",
    # A value that does not fit its column must be an error, neither null nor another value.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
}
"""The settings while SQL of this package or of the caller is analysed. An analysed plan keeps their values."""

UTC_NAMES = {
    "utc",
    "etc/utc",
    "gmt",
    "z",
    "+00:00",
    "+0",
    "utc+0",
    "gmt+0",
    "zulu",
    "etc/gmt",
    "universal",
    "etc/universal",
}
"""The names of the time zone of `ANALYSIS_SETTINGS` in a session, in lower case."""

STREAM_SETTINGS: Mapping[str, str] = {"spark.sql.execution.arrow.useLargeVarTypes": "false"}
"""The layout of rows on their way to Python."""

_WRITE_SETTINGS: Mapping[str, str] = {
    # INT96, the default, has no statistics in footers.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Days before 1582-10-15 are written in the proleptic Gregorian calendar.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.fieldId.write.enabled": "true",
}

_READ_OPTIONS: Mapping[str, str] = {
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    # A file that the log names must exist and be complete. Skipping it would lose rows silently.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
}
"""Options of a scan, which win over the session's settings."""

_RAW_LOCAL_FILES: Mapping[str, str] = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
"""A file system for local files without `.crc` files. Hadoop cannot make the name of such a file if there is a
colon."""

WRITE_OPTIONS: Mapping[str, str] = {
    # Without this setting, every local data file gets a `.crc` file that no log names.
    **_RAW_LOCAL_FILES,
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "parquet.summary.metadata.level": "NONE",
}


REDACTION = (
    r'(?i)key: "fs\.(s3a|gs|azure)\.[^"]*"\s+value: [^\n]*'
    r"|\bfs\.(s3a|gs|azure)\.[^=\s]*(=| -> )[^,\])\s]*"
    r"|storageOptions[^{]{0,40}\{[^\n]*\}"
)
"""Patterns of credentials in the text of queries."""

HIDDEN: Mapping[str, str] = {
    "spark.sql.redaction.string.regex": REDACTION,
    "spark.sql.redaction.options.regex": r"fs\.(s3a|gs|azure)\.",
}
"""Patterns by setting. Spark shows everything that a Connect client sends in its UI and its event log: options of
readers and writers, and SQL."""


def write_settings(target_file_size_bytes: int | None, *, shred_variants: bool = False) -> dict[str, str]:
    """The settings while the rows of one write are computed and written."""
    # Shredded variants need their own table feature, so variants are not shredded.
    shredding = "true" if shred_variants else "false"
    settings = {
        **_WRITE_SETTINGS,
        "spark.sql.variant.writeShredding.enabled": shredding,
        "spark.sql.variant.inferShreddingSchema": shredding,
    }
    if target_file_size_bytes is not None:
        settings["spark.sql.adaptive.enabled"] = "true"
        settings["spark.sql.adaptive.advisoryPartitionSizeInBytes"] = f"{target_file_size_bytes}b"
        settings["spark.sql.adaptive.coalescePartitions.parallelismFirst"] = "false"
    return settings


def read_options(files: ScanFiles) -> dict[str, str]:
    """Return the options for reading the files of a scan."""
    options = {**_READ_OPTIONS, **files.store.hadoop_options()}
    if files.root_uri.startswith("file:"):
        colons = pc.match_substring_regex(FileTable(files.files).path, "(?i)(:|%3a)[^/]*$")
        if pc.any(colons).as_py():
            options.update(_RAW_LOCAL_FILES)
    return options


class SparkHost(ABC):
    """A Spark session. Classic and Connect differ only behind this interface."""

    session: SparkSession
    is_time_zone_pinned: bool
    """Whether SQL over `pinned` rows is always analysed in UTC, independent of the session's time zone."""

    @abstractmethod
    def pinned(self, rows: DataFrame, settings: Mapping[str, str]) -> DataFrame:
        """Return the same rows, under the given settings instead of the user's."""

    @abstractmethod
    def unpinned(self, rows: DataFrame) -> DataFrame:
        """Return the same rows in the user's session, for the user."""

    def analysed(self, rows: DataFrame) -> DataFrame:
        """Return the same rows. Errors of their plan are raised now."""
        # The Connect server analyses the plan when the schema is first requested.
        _ = rows.schema
        return rows

    def analysed_scan(self, plan: ScanPlan, build: Callable[[ScanPlan], DataFrame]) -> DataFrame:
        """Return the rows of a scan. `build` makes them from the plan or from fewer of its files."""
        return self.analysed(build(plan))

    def follow(self, followed: FollowedScan, scan: Callable[[SparkHost, ScanPlan], DataFrame]) -> DataFrame:
        """Return the rows of a table's newest version at each query, as `scan` makes them."""
        raise UnsupportedError(
            "This session cannot follow a table",
            cause="Spark Connect plans queries on the server, where this package does not run",
            remedy="Create the DataFrame again for each query, or use a classic session",
        )

    def large_scan(self, large: LargeScan, scan: Callable[[SparkHost, ScanPlan], DataFrame]) -> DataFrame:
        """Return the rows of a scan, as `scan` makes them. It has all files, unless the session can select files for
        each query."""
        return scan(self, large.plan_of(None))

    def settled(self, rows: DataFrame) -> DataFrame:
        """Return the same rows, pinned to one version of each followed table."""
        return rows

    @abstractmethod
    def settings(self, settings: Mapping[str, str]) -> AbstractContextManager[None]:
        """Hold the settings while rows of `pinned` are pulled. Afterwards the session has its old settings."""

    @abstractmethod
    def pinned_session(self) -> SparkSession:
        """Return the session in which SQL text over `pinned` rows is analysed."""

    @abstractmethod
    def scan_files(self, files: ScanFiles, *, positioned: bool = False) -> DataFrame:
        """Return all rows of the files: data columns, then partition columns, then on request the address of each row
        (`frames.with_position`)."""

    @abstractmethod
    def write_files(
        self, rows: DataFrame, store: LogStore, directory: str, partition_by: Sequence[str], options: Mapping[str, str]
    ) -> list[str]:
        """Write Parquet files below a directory of the table ("" for the root).

        Returns: The paths of the files of committed task attempts, relative to the table's root and not URI-encoded.
        """

    @abstractmethod
    def arrow_batches(self, rows: DataFrame, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Return the rows as a stream. Classic Spark holds at most one partition at a time."""
