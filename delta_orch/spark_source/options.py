"""Parses the options of the format `delta_orch` for reads, writes and streams, under the names of Delta on Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from delta_orch.delta_table import DeltaTable
from delta_orch.engines.spark.host import REDACTION as REDACTION
from delta_orch.errors import InvalidRequestError
from delta_orch.log.files.txn import TxnId
from delta_orch.protocol.table_properties import parse_size_bytes
from delta_orch.scan.scan import DEFAULT_TASK_BYTES

_NAMES = (
    "path",
    "versionAsOf",
    "timestampAsOf",
    "columns",
    "where",
    "rowTracking",
    "readChangeFeed",
    "startingVersion",
    "endingVersion",
    "startingTimestamp",
    "endingTimestamp",
    "allowOutOfRange",
    "maxPartitionBytes",
    "storageOptions",
)
_OF_STREAMS = (
    "maxFilesPerTrigger",
    "maxBytesPerTrigger",
    "ignoreDeletes",
    "ignoreChanges",
    "skipChangeCommits",
    "allowSourceColumnDrop",
    "allowSourceColumnRename",
)
_STREAM_NAMES = (
    "path",
    "startingVersion",
    "startingTimestamp",
    "readChangeFeed",
    *_OF_STREAMS,
    "maxPartitionBytes",
    "storageOptions",
)
_DEFAULT_FILES = 1000
_OTHER_NAMES = {"version": "versionAsOf", "timestamp": "timestampAsOf", "readChangeData": "readChangeFeed"}
_INSTEAD = {
    "paths": "Load one table a call",
    "compression": "Set the table property delta.parquet.compression.codec",
    "optimizewrite": "Set the table property delta.autoOptimize.optimizeWrite",
    "maxrecordsperfile": "Set the table property delta.targetFileSize",
    "ignorefiledeletion": "Use ignoreDeletes",
    "failondataloss": "Leave it out: a stream stops where it would lose a commit",
    "schematrackinglocation": "Leave it out: docs/streaming.md says what happens when columns change",
    "datachange": "Use DeltaTable(…).optimize(), which changes no rows",
}
"""Options of other formats, in lower case."""
_OF_ROWS = ("versionAsOf", "timestampAsOf", "columns", "where", "rowTracking")
_OF_CHANGES = ("startingVersion", "endingVersion", "startingTimestamp", "endingTimestamp", "allowOutOfRange")


class ChangeRange(TypedDict):
    """The arguments of `DeltaTable.changes`."""

    starting_version: int | None
    ending_version: int | None
    starting_timestamp: str | None
    ending_timestamp: str | None
    allow_out_of_range: bool


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read.

    Attributes:
        path: The table's location.
        storage_options: Options of the table's store.
        version, timestamp: The version to read; both are None for the newest.
        columns: The columns to read, in order; None for all.
        where: A predicate in Spark SQL; None for all rows.
        row_tracking: Whether to add `row_id` and `row_commit_version`.
        changes: The arguments of `DeltaTable.changes`; None to read rows.
        max_partition_bytes: The maximal size of a partition, in bytes of files. A larger file is its own partition.
    """

    path: str
    storage_options: Mapping[str, str]
    version: int | None = None
    timestamp: str | None = None
    columns: tuple[str, ...] | None = None
    where: str | None = None
    row_tracking: bool = False
    changes: ChangeRange | None = None
    max_partition_bytes: int = DEFAULT_TASK_BYTES


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options. Names match without regard to case.

    Raises:
        InvalidRequestError: An option is unknown or given twice, a value does not parse, or an option does not apply
            to what is read.
    """
    values = by_known_names(options, _NAMES, _OTHER_NAMES)
    _ensure_path(values)
    is_feed = parse_boolean(values, "readChangeFeed")
    _ensure_fit(values, is_feed)
    return ReadOptions(
        path=values["path"],
        storage_options=storage_options(values),
        version=parse_integer(values, "versionAsOf"),
        timestamp=values.get("timestampAsOf"),
        columns=parse_names(values, "columns"),
        where=values.get("where"),
        row_tracking=parse_boolean(values, "rowTracking"),
        changes=_changes(values) if is_feed else None,
        max_partition_bytes=_size(values, "maxPartitionBytes") or DEFAULT_TASK_BYTES,
    )


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of a stream.

    Attributes:
        starting_version: A number, or `latest` to read only new versions. None reads the whole table first.
        starting_timestamp: The time of the first version to read, instead of `starting_version`.
        read_change_feed: Whether to read changes instead of rows.
        max_files, max_bytes: The approximate maximum for a batch, at least one file.
        ignore_deletes, ignore_changes, skip_change_commits: How to handle commits that do not only add rows.
        allow_dropped, allow_renamed: Follow such changes of columns when a query is started again.
    """

    path: str
    storage_options: Mapping[str, str]
    starting_version: str | None = None
    starting_timestamp: str | None = None
    read_change_feed: bool = False
    max_files: int = _DEFAULT_FILES
    max_bytes: int | None = None
    ignore_deletes: bool = False
    ignore_changes: bool = False
    skip_change_commits: bool = False
    allow_dropped: bool = False
    allow_renamed: bool = False
    max_partition_bytes: int = DEFAULT_TASK_BYTES


def is_of_stream(options: Mapping[str, str]) -> bool:
    """Whether only a stream can have these options. Spark requests the columns before it says whether it streams."""
    lower_options = {name.lower(): value for name, value in options.items()}
    is_feed = (
        lower_options.get("readchangefeed", lower_options.get("readchangedata", "false")).strip().lower() == "true"
    )
    if any(name.lower() in lower_options for name in _OF_STREAMS) or lower_options.get("startingversion") == "latest":
        return True
    has_start = "startingversion" in lower_options or "startingtimestamp" in lower_options
    return is_feed != has_start and "endingversion" not in lower_options and "endingtimestamp" not in lower_options


def parse_stream_options(options: Mapping[str, str]) -> StreamOptions:
    """Parse the options of a stream. Raises as `parse_options`."""
    values = by_known_names(options, _STREAM_NAMES, {"readChangeData": "readChangeFeed"})
    _ensure_path(values)
    version = values.get("startingVersion")
    if version is not None and "startingTimestamp" in values:
        raise InvalidRequestError(
            "startingVersion and startingTimestamp exclude each other", remedy="Pass only one of them"
        )
    if version is not None and version.lower() != "latest":
        version = str(parse_integer(values, "startingVersion"))
    max_files, max_bytes = parse_integer(values, "maxFilesPerTrigger"), _size(values, "maxBytesPerTrigger")
    if 0 in (max_files, max_bytes):
        raise InvalidRequestError("maxFilesPerTrigger and maxBytesPerTrigger must be at least 1")
    return StreamOptions(
        path=values["path"],
        storage_options=storage_options(values),
        starting_version=None if version is None else version.lower(),
        starting_timestamp=values.get("startingTimestamp"),
        read_change_feed=parse_boolean(values, "readChangeFeed"),
        max_files=max_files or _DEFAULT_FILES,
        max_bytes=max_bytes,
        ignore_deletes=parse_boolean(values, "ignoreDeletes"),
        ignore_changes=parse_boolean(values, "ignoreChanges"),
        skip_change_commits=parse_boolean(values, "skipChangeCommits"),
        allow_dropped=_always(values, "allowSourceColumnDrop"),
        allow_renamed=_always(values, "allowSourceColumnRename"),
        max_partition_bytes=_size(values, "maxPartitionBytes") or DEFAULT_TASK_BYTES,
    )


def _always(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name)
    if text is not None and text.strip().lower() != "always":
        raise InvalidRequestError(f"The option {name} must be always, not {text!r}", option=name)
    return text is not None


def _ensure_path(given: Mapping[str, str]) -> None:
    if "path" not in given:
        raise InvalidRequestError(
            "The path of the table is missing",
            cause=None if given else "Spark passes no options for a table of its catalog",
            remedy='Give the path: .load("s3://bucket/table"), or CREATE TEMPORARY VIEW … USING delta_orch OPTIONS '
            "(path …)",
        )


def by_known_names(options: Mapping[str, str], names: Sequence[str], others: Mapping[str, str]) -> dict[str, str]:
    """The options under the names of `names`; `others` are further spellings of some. Raises InvalidRequestError."""
    spellings = {name.lower(): name for name in names} | {a.lower(): b for a, b in others.items()}
    values: dict[str, str] = {}
    if "provider" in options and "owner" in options:
        raise InvalidRequestError(
            'A table of Spark\'s catalog cannot use the format "delta_orch"',
            cause="Spark passes no options to a Python data source when such a table is read",
            remedy="Use CREATE TEMPORARY VIEW … USING delta_orch OPTIONS (path …)",
        )
    for name, value in options.items():
        canonical = spellings.get(name.lower())
        if name.lower() == "follow":
            raise InvalidRequestError(
                'The format "delta_orch" cannot follow a table',
                cause="Spark plans a Python data source once for each DataFrame and view",
                remedy="Make a view of DeltaTable(path).snapshot().scan().to_spark(spark, follow=True)",
            )
        if canonical is None:
            raise InvalidRequestError(
                f'The format "delta_orch" has no option {name!r}',
                remedy=_INSTEAD.get(name.lower(), f"Use {', '.join(names[1:])}"),
            )
        if canonical in values:
            raise InvalidRequestError(
                f"The option {canonical} is given twice, under two names",
                remedy="Pass only one of them",
                option=canonical,
            )
        values[canonical] = value
    return values


def _ensure_fit(given: Mapping[str, str], is_feed: bool) -> None:
    starts = [name for name in ("startingVersion", "startingTimestamp") if name in given]
    if is_feed and len(starts) != 1:
        raise InvalidRequestError(
            "readChangeFeed needs either startingVersion or startingTimestamp",
            cause="Both are given" if starts else "Only a stream begins with the newest version by itself",
            remedy="Give one of them",
        )
    foreign = [name for name in (_OF_ROWS if is_feed else _OF_CHANGES) if name in given]
    if foreign:
        raise InvalidRequestError(
            f"The option {foreign[0]} applies only when {'rows' if is_feed else 'changes'} are read",
            remedy="Remove it, and filter or select on the DataFrame" if is_feed else "Add readChangeFeed=true",
            option=foreign[0],
        )


def _changes(given: Mapping[str, str]) -> ChangeRange:
    return {
        "starting_version": parse_integer(given, "startingVersion"),
        "ending_version": parse_integer(given, "endingVersion"),
        "starting_timestamp": given.get("startingTimestamp"),
        "ending_timestamp": given.get("endingTimestamp"),
        "allow_out_of_range": parse_boolean(given, "allowOutOfRange"),
    }


def parse_integer(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal():
        raise InvalidRequestError(f"The option {name} must be a number, not {text!r}", option=name)
    return int(text)


def _size(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    try:
        return None if text is None else parse_size_bytes(text)
    except ValueError as e:
        raise InvalidRequestError(f"The option {name} must be a size like 64m", cause=str(e), option=name) from None


def parse_boolean(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "false").strip().lower()
    if text not in ("true", "false"):
        raise InvalidRequestError(f"The option {name} must be true or false, not {text!r}", option=name)
    return text == "true"


def parse_names(given: Mapping[str, str], name: str) -> tuple[str, ...] | None:
    text = given.get(name)
    if text is None:
        return None
    if not text.lstrip().startswith("["):
        return tuple(item.strip() for item in text.split(","))
    names = _json(text, name)
    if not isinstance(names, list) or not all(isinstance(item, str) for item in names):
        raise _not_json(name, "a JSON list of column names")
    return tuple(names)


def storage_options(given: Mapping[str, str]) -> Mapping[str, str]:
    options = _json(given.get("storageOptions", "{}"), "storageOptions")
    if not isinstance(options, dict) or not all(isinstance(value, str) for value in options.values()):
        raise _not_json("storageOptions", "a JSON object with strings as values")
    return options


def _json(text: str, name: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        # The cause is not shown, because it would quote the text, which may hold credentials.
        raise _not_json(name, "JSON") from None


def _not_json(name: str, wanted: str) -> InvalidRequestError:
    return InvalidRequestError(f"The option {name} must be {wanted}", option=name)


_WRITE_NAMES = (
    "path",
    "replaceWhere",
    "partitionOverwriteMode",
    "mergeSchema",
    "overwriteSchema",
    "txnAppId",
    "txnVersion",
    "userMetadata",
    "partitionBy",
    "storageOptions",
)
_STREAM_WRITE_NAMES = (*_WRITE_NAMES, "checkpointLocation", "queryName")
"""The last two are Spark's own; they come along."""
_PROPERTY = "delta."


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """The options of a write. `definition` describes a table that does not exist yet."""

    path: str
    storage_options: Mapping[str, str]
    replace_where: str | None = None
    partition_overwrite_mode: str | None = None
    merge_schema: bool = False
    overwrite_schema: bool = False
    app_id: str | None = None
    txn_version: int | None = None
    user_metadata: str | None = None
    definition: Mapping[str, object] = field(default_factory=dict)

    def table(self) -> DeltaTable:
        return DeltaTable(self.path, self.storage_options)

    @property
    def schema_mode(self) -> str | None:
        return "overwrite" if self.overwrite_schema else "merge" if self.merge_schema else None

    @property
    def txn(self) -> TxnId | None:
        """Return the key of a batch write."""
        if self.app_id is None or self.txn_version is None:
            return None
        return TxnId(self.app_id, self.txn_version)

    def ensure_fits(self, is_overwrite: bool) -> None:
        """Raises InvalidRequestError: An option of an overwrite is given, and the write appends."""
        dynamic = self.partition_overwrite_mode == "dynamic"
        if not is_overwrite and (self.replace_where is not None or dynamic or self.overwrite_schema):
            raise InvalidRequestError(
                "The options replaceWhere, partitionOverwriteMode and overwriteSchema are those of an overwrite",
                remedy='Use .mode("overwrite"), or leave these options out',
            )


def parse_write_options(options: Mapping[str, str], *, is_stream: bool = False) -> WriteRequest:
    """Parse the options. Names match without regard to case.

    Raises:
        InvalidRequestError: An option is unknown or given twice, a value does not parse, or two options contradict each
            other.
    """
    properties = {name: value for name, value in options.items() if name.lower().startswith(_PROPERTY)}
    others = {name: value for name, value in options.items() if name not in properties}
    values = by_known_names(others, _STREAM_WRITE_NAMES if is_stream else _WRITE_NAMES, {})
    if "path" not in values:
        raise InvalidRequestError(
            "The path of the table is missing",
            cause="A Python data source has no tables in Spark's catalog: saveAsTable and INSERT INTO need one",
            remedy='Give the path: .save("s3://bucket/table"), or use DeltaTable(…).append(df)',
        )
    merge, over = parse_boolean(values, "mergeSchema"), parse_boolean(values, "overwriteSchema")
    if merge and over:
        raise InvalidRequestError("mergeSchema and overwriteSchema exclude each other", remedy="Pass only one of them")
    app_id, version = values.get("txnAppId"), parse_integer(values, "txnVersion")
    if is_stream and version is not None:
        raise InvalidRequestError("A stream's txnVersion is its batch id", remedy="Leave the option out")
    if not is_stream and (app_id is None) != (version is None):
        raise InvalidRequestError("txnAppId and txnVersion belong together", remedy="Pass both options, or neither")
    mode = values.get("partitionOverwriteMode", "").lower() or None
    if mode not in (None, "static", "dynamic"):
        raise InvalidRequestError(f"The option partitionOverwriteMode must be static or dynamic, not {mode!r}")
    partition_by = parse_names(values, "partitionBy")
    definition: dict[str, object] = {}
    if partition_by is not None:
        definition["partition_by"] = partition_by
    if properties:
        definition["properties"] = properties
    return WriteRequest(
        path=values["path"],
        storage_options=storage_options(values),
        replace_where=values.get("replaceWhere"),
        partition_overwrite_mode=mode,
        merge_schema=merge,
        overwrite_schema=over,
        app_id=app_id,
        txn_version=version,
        user_metadata=values.get("userMetadata"),
        definition=definition,
    )
