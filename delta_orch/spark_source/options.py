"""The options of `spark.read.format("delta_orch")`, as other readers of Delta call them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from delta_orch.errors import InvalidRequestError
from delta_orch.scan.tasks import DEFAULT_TASK_BYTES

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


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read.

    Attributes:
        path: The table's location.
        storage_options: Of its store.
        version, timestamp: Which version of the rows; at most one of them, neither for the newest.
        columns: Which columns, in order; None for all.
        where: Which rows, in Spark SQL.
        row_tracking: Whether `row_id` and `row_commit_version` are added.
        changes: The arguments of `DeltaTable.changes`; None where rows are read.
        max_partition_bytes: A partition's files add up to no more, unless a file is larger.
    """

    path: str
    storage_options: Mapping[str, str]
    version: int | None = None
    timestamp: str | None = None
    columns: tuple[str, ...] | None = None
    where: str | None = None
    row_tracking: bool = False
    changes: Mapping[str, Any] | None = None
    max_partition_bytes: int = DEFAULT_TASK_BYTES


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Read the options, whose names are taken without regard to case.

    Raises:
        InvalidRequestError: An unknown option, a value that is none of its kind, or options that exclude each other.
    """
    given = _by_known_names(options)
    if "path" not in given:
        raise InvalidRequestError(
            "No table is named",
            cause="There is no path. Spark hands a table of its catalog none, whatever it was created with"
            if not given
            else None,
            remedy='Give its location: .load("s3://bucket/table"), or CREATE TEMPORARY VIEW … USING delta_orch OPTIONS '
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
            'A table of Spark\'s catalog cannot be of the format "delta_orch"',
            cause="Spark hands a Python source no options when such a table is read",
            remedy="CREATE TEMPORARY VIEW … USING delta_orch OPTIONS (path …)",
        )
    for name, value in options.items():
        canonical = known.get(name.lower())
        if canonical is None:
            raise InvalidRequestError(
                f'The format "delta_orch" has no option {name!r}', remedy=f"It knows {', '.join(_NAMES[1:])}"
            )
        if canonical in found:
            raise InvalidRequestError(
                f"The option {canonical} is given under two names", remedy="Give one of them", option=canonical
            )
        found[canonical] = value
    return found


def _ensure_fit(given: Mapping[str, str], is_feed: bool) -> None:
    foreign = [name for name in (_OF_ROWS if is_feed else _OF_CHANGES) if name in given]
    if foreign:
        raise InvalidRequestError(
            f"The option {foreign[0]} is for {'rows' if is_feed else 'changes'}, and "
            f"{'changes' if is_feed else 'rows'} are read",
            remedy="Leave it out, and filter or select on the DataFrame" if is_feed else "Add readChangeFeed=true",
            option=foreign[0],
        )


def _changes(given: Mapping[str, str]) -> dict[str, Any]:
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
        raise InvalidRequestError(f"The option {name} is a number, not {text!r}", option=name)
    return int(text)


def _boolean(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "false").strip().lower()
    if text not in ("true", "false"):
        raise InvalidRequestError(f"The option {name} is true or false, not {text!r}", option=name)
    return text == "true"


def _columns(given: Mapping[str, str]) -> tuple[str, ...] | None:
    text = given.get("columns")
    if text is None:
        return None
    if not text.lstrip().startswith("["):
        return tuple(name.strip() for name in text.split(","))
    names = _json(text, "columns")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _no_json("columns", "a list of names")
    return tuple(names)


def _storage_options(given: Mapping[str, str]) -> Mapping[str, str]:
    options = _json(given.get("storageOptions", "{}"), "storageOptions")
    if not isinstance(options, dict) or not all(isinstance(value, str) for value in options.values()):
        raise _no_json("storageOptions", "an object of texts")
    return options


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        # The text may hold credentials, and the cause would quote it.
        raise _no_json(name, "JSON") from None


def _no_json(name: str, wanted: str) -> InvalidRequestError:
    return InvalidRequestError(f"The option {name} is no {wanted.split(' ', 1)[-1]}", option=name)
