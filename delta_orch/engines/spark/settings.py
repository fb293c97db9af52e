"""The session settings under which this engine's own expressions and files are made, whatever the user's are."""

from __future__ import annotations

from collections.abc import Mapping

ANALYSIS_SETTINGS: Mapping[str, str] = {
    # Casts of timestamps to dates and strings must not depend on who runs them.
    "spark.sql.session.timeZone": "UTC",
    # How our SQL text is read.
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
}
"""For the analysis of SQL this package makes or is given; once analysed, a plan keeps what it was analysed with."""

STREAM_SETTINGS: Mapping[str, str] = {"spark.sql.execution.arrow.useLargeVarTypes": "false"}
"""For the layout in which rows travel to Python."""

_WRITE_SETTINGS: Mapping[str, str] = {
    # INT96, the default, has no statistics in footers.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Days before 1582-10-15 are written as they are named in the proleptic Gregorian calendar.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.fieldId.write.enabled": "true",
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


def write_settings(target_file_size_bytes: int | None, *, shred_variants: bool = False) -> dict[str, str]:
    """The settings under which the rows of one write are pulled and become files."""
    # Shredded variants need a table feature of their own; Spark finds the shredding schema in the rows of each file.
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
