"""Row tracking: when rows get ids, and its entries in the metadata (PROTOCOL, "Row Tracking").

*Supported*: every added file gets a base row id and the version it was added in. *Enabled*: all files have them, and a
writer that copies a row writes its id and version into two columns whose names only the metadata has.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import replace

from delta_orch.errors import ProtocolViolationError
from delta_orch.protocol.actions import Metadata

ROW_TRACKING_DOMAIN = "delta.rowTracking"
ROW_ID_COLUMN = "delta.rowTracking.materializedRowIdColumnName"
ROW_COMMIT_VERSION_COLUMN = "delta.rowTracking.materializedRowCommitVersionColumnName"
PRESERVED_TAG = "delta.rowTracking.preserved"
ICEBERG_IDS = (2_147_483_540, 2_147_483_539)
"""The field ids by which Iceberg V3 finds a row's id and version (Iceberg, "Reserved Field IDs")."""

# The protocol's text has the second name, the reference implementation the first: readers of either find theirs.
_MARKS = ("rowIdHighWaterMark", "highWaterMark")
_NO_MARK = -1


def materialized_columns(metadata: Metadata) -> tuple[str, str]:
    """The names of the columns in data files that hold row ids and row commit versions of copied rows.

    Raises:
        ProtocolViolationError: The metadata does not name them.
    """
    configuration = metadata.configuration
    names = (configuration.get(ROW_ID_COLUMN), configuration.get(ROW_COMMIT_VERSION_COLUMN))
    if names[0] is None or names[1] is None:
        raise ProtocolViolationError(
            "Row tracking is enabled, but the table does not say in which columns copied rows keep their ids",
            cause=f"{ROW_ID_COLUMN} or {ROW_COMMIT_VERSION_COLUMN} is missing",
            remedy="Disable row tracking and enable it again",
        )
    return names[0], names[1]


def with_materialized_columns(metadata: Metadata) -> Metadata:
    """The metadata with new, unique names for the two columns, if it has no names yet."""
    missing = {
        key: f"{prefix}-{uuid.uuid4()}"
        for key, prefix in ((ROW_ID_COLUMN, "_row-id-col"), (ROW_COMMIT_VERSION_COLUMN, "_row-commit-version-col"))
        if key not in metadata.configuration
    }
    return replace(metadata, configuration={**metadata.configuration, **missing}) if missing else metadata


def parse_high_water_mark(configuration: str | None) -> int:
    """The highest row id given out so far, from the configuration of the domain `delta.rowTracking`; -1 for none.

    Raises:
        ProtocolViolationError: The configuration names none.
    """
    if configuration is None:
        return _NO_MARK
    try:
        values = json.loads(configuration)
        marks = [values[name] for name in _MARKS if name in values]
    except (ValueError, TypeError) as e:
        raise _no_mark(str(e)) from None
    whole = [mark for mark in marks if isinstance(mark, int) and not isinstance(mark, bool)]
    if not whole or len(whole) < len(marks) or not _NO_MARK <= max(whole) < 1 << 63:
        raise _no_mark(f"It is {configuration}")
    return max(whole)


def serialize_high_water_mark(mark: int) -> str:
    return json.dumps(dict.fromkeys(_MARKS, mark), separators=(",", ":"))


def _no_mark(cause: str) -> ProtocolViolationError:
    return ProtocolViolationError(
        f"The metadata domain {ROW_TRACKING_DOMAIN} does not say which row ids are taken",
        cause=cause,
        remedy="Restore the table to a version before the domain was damaged",
    )
