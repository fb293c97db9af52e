"""Row tracking on request: two columns that say which row this is, and which commit it is from (PROTOCOL, "Row
Tracking")."""

from __future__ import annotations

from delta_orch.engines.scan_plan import RowTracking
from delta_orch.errors import InvalidRequestError
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.protocol.types import LONG, StructField, StructType

ROW_ID = "row_id"
ROW_COMMIT_VERSION = "row_commit_version"

_ROW_ID_COLUMN = "delta.rowTracking.materializedRowIdColumnName"
_ROW_COMMIT_VERSION_COLUMN = "delta.rowTracking.materializedRowCommitVersionColumnName"


def resolve_row_tracking(snapshot: Snapshot) -> RowTracking:
    """Where the columns of row tracking of this version come from.

    Raises:
        InvalidRequestError: Row tracking is not in force, so rows cannot be relied upon to have ids; or the table has
            a column of one of the two names.
    """
    _ensure_tracked(snapshot)
    for name in (ROW_ID, ROW_COMMIT_VERSION):
        if (found := snapshot.schema.find(name)) is not None:
            raise InvalidRequestError(
                f"The table has a column {found.name!r} of its own, which row tracking would hide",
                remedy="Read without row_tracking, or rename the column",
                column=found.name,
            )
    configuration = snapshot.metadata.configuration
    return RowTracking(
        ROW_ID, ROW_COMMIT_VERSION, configuration.get(_ROW_ID_COLUMN), configuration.get(_ROW_COMMIT_VERSION_COLUMN)
    )


def with_row_tracking_columns(schema: StructType, tracking: RowTracking) -> StructType:
    """The schema with the columns of row tracking at its end."""
    return StructType((*schema, *(StructField(name, LONG) for name in tracking.names)))


def _ensure_tracked(snapshot: Snapshot) -> None:
    problem = f"Version {snapshot.version} of the table has no row tracking"
    if not snapshot.configuration.supports("rowTracking"):
        raise InvalidRequestError(
            problem,
            cause="Its protocol does not list the table feature rowTracking",
            remedy="Read without row_tracking",
            version=snapshot.version,
        )
    if not snapshot.properties.enable_row_tracking:
        raise InvalidRequestError(
            problem,
            cause="It supports rowTracking, but delta.enableRowTracking is not true, so not every row has an id yet",
            remedy="Read without row_tracking, or a version after it was enabled",
            version=snapshot.version,
        )
