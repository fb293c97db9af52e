"""The session settings under which this engine's own expressions and files are made, whatever the user's are."""

from __future__ import annotations

from collections.abc import Mapping

PINNED_SETTINGS: Mapping[str, str] = {
    # Casts of timestamps to dates and strings, and partition values, must not depend on who runs them.
    "spark.sql.session.timeZone": "UTC",
    # INT96, the default, has no statistics in footers.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Days before 1582-10-15 are written as they are named in the proleptic Gregorian calendar.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    # Shredded variants need a table feature of their own.
    "spark.sql.variant.writeShredding.enabled": "false",
    # How our SQL text is read.
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    # How results travel to Python.
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
}

READ_OPTIONS: Mapping[str, str] = {
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    # A file the log names must be there and whole: leaving its rows out would be silent loss.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
}
"""Options of a scan, which win over the session's settings."""

WRITE_OPTIONS: Mapping[str, str] = {
    # Without this every local data file gets a `.crc` twin that no log names.
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "parquet.summary.metadata.level": "NONE",
}


def write_settings(target_file_size_bytes: int | None) -> dict[str, str]:
    """The settings of one write."""
    settings = dict(PINNED_SETTINGS)
    if target_file_size_bytes is not None:
        settings["spark.sql.adaptive.advisoryPartitionSizeInBytes"] = f"{target_file_size_bytes}b"
    return settings
