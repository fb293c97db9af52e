"""Settings of a write that both orchestrators have: what goes with which `write`, and names from earlier releases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from delta_orch.errors import InvalidRequestError

BY_KEYS = ("merge", "cdc")
"""Writes that find rows by `merge_keys`."""

OLD_NAMES: Mapping[str, str] = {
    "mode": "write",
    "table_properties": "properties",
    "partition_overwrite": "write='overwrite_partitions'",
    "partition_overwrite_mode": "write='overwrite_partitions'",
    "idempotency": "on_redo='keep' for what 'partition' was, and exactly_once=False for what 'off' was",
    "delete_marker": "delete_when='gone', a predicate, and except_columns=['gone']",
    # Values of `write`.
    "dynamic": "write='overwrite_partitions'",
    "touched_partitions": "write='overwrite_changed'",
    "overwrite_touched": "write='overwrite_changed'",
    "scd2": "write='cdc' with scd=2 and sequence_by, which takes late rows, too",
}
"""Name of a setting, or value of `write`, in earlier releases → what to write now."""

OLD_ARGUMENTS: Mapping[str, str] = {
    **OLD_NAMES,
    "keys": "merge_keys",
    "checks": "audit",
    "adds": "write='append' or write='overwrite'",
}
"""As `OLD_NAMES`, for arguments of tasks. In metadata, a user may have such names."""


def refuse_old_names(names: Iterable[object], old_names: Mapping[str, str] = OLD_NAMES) -> None:
    """Raises InvalidRequestError: A name is from an earlier release. The error says what to write now."""
    for name in names:
        if isinstance(name, str) and name in old_names:
            raise InvalidRequestError(
                f"{name!r} is a name from an earlier release",
                cause="It has another name now",
                remedy=f"Write {old_names[name]}",
                key=name,
            )


def ensure_merge_keys(write: str | None, merge_keys: object) -> None:
    """Raises InvalidRequestError: A write by keys has no keys, or another write has some."""
    if (write in BY_KEYS) != bool(merge_keys):
        raise InvalidRequestError(
            "merge_keys go together with write='merge' or write='cdc'",
            cause=f"write is {write!r}, and merge_keys is {merge_keys!r:.100}",
            remedy="Name the columns that identify a row, and pass write='merge' or write='cdc'",
        )


def ensure_unit_column(write: str | None, unit_column: str | None) -> None:
    """Raises InvalidRequestError: There is a unit column, and rows are found by their keys."""
    if unit_column is not None and write in BY_KEYS:
        raise InvalidRequestError(
            f"unit_column is not for write={write!r}",
            cause="A redo merges the rows again, by their keys",
            remedy="Leave unit_column out",
        )
