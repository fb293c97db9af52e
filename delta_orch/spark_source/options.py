"""The options of `spark.read.format("delta_orch")`, under the names that other readers of Delta use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from delta_orch.errors import InvalidRequestError
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
_OTHER_NAMES = {"version": "versionAsOf", "timestamp": "timestampAsOf", "readChangeData": "readChangeFeed"}
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
    """What to read.

    Attributes:
        path: The table's location.
        storage_options: Options of the table's store.
        version, timestamp: The version to read; both are None for the newest.
        columns: The columns to read, in order; None for all.
        where: A predicate in Spark SQL; None for all rows.
        row_tracking: Whether to add `row_id` and `row_commit_version`.
        changes: The arguments of `DeltaTable.changes`; None to read rows.
        max_partition_bytes: The most bytes of files in a partition. A larger file is a partition of its own.
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
    given = _by_known_names(options)
    if "path" not in given:
        raise InvalidRequestError(
            "The path of the table is missing",
            cause=None if given else "Spark passes no options for a table of its catalog",
            remedy='Give the path: .load("s3://bucket/table"), or CREATE TEMPORARY VIEW … USING delta_orch OPTIONS '
            "(path …)",
        )
    is_feed = _boolean(given, "readChangeFeed")
    _ensure_fit(given, is_feed)
    return ReadOptions(
        path=given["path"],
        storage_options=_storage_options(given),
        version=_integer(given, "versionAsOf"),
        timestamp=given.get("timestampAsOf"),
        columns=_columns(given),
        where=given.get("where"),
        row_tracking=_boolean(given, "rowTracking"),
        changes=_changes(given) if is_feed else None,
        max_partition_bytes=_integer(given, "maxPartitionBytes") or DEFAULT_TASK_BYTES,
    )


def _by_known_names(options: Mapping[str, str]) -> dict[str, str]:
    known = {name.lower(): name for name in _NAMES} | {a.lower(): b for a, b in _OTHER_NAMES.items()}
    found: dict[str, str] = {}
    if "provider" in options and "owner" in options:
        raise InvalidRequestError(
            'A table of Spark\'s catalog cannot use the format "delta_orch"',
            cause="Spark passes no options to a Python data source when such a table is read",
            remedy="Use CREATE TEMPORARY VIEW … USING delta_orch OPTIONS (path …)",
        )
    for name, value in options.items():
        canonical = known.get(name.lower())
        if canonical is None:
            raise InvalidRequestError(
                f'The format "delta_orch" has no option {name!r}', remedy=f"Use {', '.join(_NAMES[1:])}"
            )
        if canonical in found:
            raise InvalidRequestError(
                f"The option {canonical} is given twice, under two names", remedy="Give one", option=canonical
            )
        found[canonical] = value
    return found


def _ensure_fit(given: Mapping[str, str], is_feed: bool) -> None:
    foreign = [name for name in (_OF_ROWS if is_feed else _OF_CHANGES) if name in given]
    if foreign:
        raise InvalidRequestError(
            f"The option {foreign[0]} applies only when {'rows' if is_feed else 'changes'} are read",
            remedy="Remove it, and filter or select on the DataFrame" if is_feed else "Add readChangeFeed=true",
            option=foreign[0],
        )


def _changes(given: Mapping[str, str]) -> ChangeRange:
    return {
        "starting_version": _integer(given, "startingVersion"),
        "ending_version": _integer(given, "endingVersion"),
        "starting_timestamp": given.get("startingTimestamp"),
        "ending_timestamp": given.get("endingTimestamp"),
        "allow_out_of_range": _boolean(given, "allowOutOfRange"),
    }


def _integer(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal():
        raise InvalidRequestError(f"The option {name} must be a number, not {text!r}", option=name)
    return int(text)


def _boolean(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "false").strip().lower()
    if text not in ("true", "false"):
        raise InvalidRequestError(f"The option {name} must be true or false, not {text!r}", option=name)
    return text == "true"


def _columns(given: Mapping[str, str]) -> tuple[str, ...] | None:
    text = given.get("columns")
    if text is None:
        return None
    if not text.lstrip().startswith("["):
        return tuple(name.strip() for name in text.split(","))
    names = _json(text, "columns")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _not_json("columns", "a JSON list of column names")
    return tuple(names)


def _storage_options(given: Mapping[str, str]) -> Mapping[str, str]:
    options = _json(given.get("storageOptions", "{}"), "storageOptions")
    if not isinstance(options, dict) or not all(isinstance(value, str) for value in options.values()):
        raise _not_json("storageOptions", "a JSON object with strings as values")
    return options


def _json(text: str, name: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        # The text may hold credentials, and the cause would quote it.
        raise _not_json(name, "JSON") from None


def _not_json(name: str, wanted: str) -> InvalidRequestError:
    return InvalidRequestError(f"The option {name} must be {wanted}", option=name)
