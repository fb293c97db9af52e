"""Who replaces the rows of a table: one step, named by the property `delta_orch.owner`.

A step takes a table for its own when it creates it, or first replaces rows of it. Other steps may append to it and
merge into it, but not replace. The incremental steps of a table own it together (see `shared_target`), as do the tasks
of Airflow, whose runs are ordered by their logical dates.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from delta_orch.errors import ConflictError, InvalidRequestError
from delta_orch.protocol.table_properties import OWNER, WINDOWS

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable, TableSnapshot

_log = logging.getLogger(__name__)

OPS = "outputs of ops"
"""The owner of a table that ops write. Its versions are the values of runs, so that nobody else writes to it at all."""

INCREMENTAL = "incremental steps"
AIRFLOW = "tasks of Airflow"


def asset_owner(key: Sequence[str]) -> str:
    """An asset that replaces the rows of its table, in whatever code location it is defined."""
    return f"asset {'/'.join(key)}"


def ensure_may_write(table: DeltaTable, before: TableSnapshot, owner: str, *, replaces: bool) -> None:
    """Look up who owns a table.

    Args:
        owner: The step that is about to write: `asset_owner`, or one of the constants of this module.
        replaces: It replaces rows.

    Raises:
        InvalidRequestError: Another one owns the table and the step replaces rows; one of the two is an op; or an op
            would replace rows of a table that has no owner.
    """
    recorded_owner = before.properties.owner
    if recorded_owner == owner or not (replaces or OPS in (recorded_owner, owner)):
        return
    if recorded_owner is None and not (owner == OPS and replaces and before.num_files):
        return
    raise InvalidRequestError(
        f"The table at {table.uri} is not for {owner} to write",
        cause=f"It belongs to {recorded_owner or 'no op'}, and the rows of one would replace those of the other",
        remedy="Give one of them a table of its own, or have this one append or merge. If the owner is gone, or was "
        f"renamed, take the property off: alter().unset_properties({OWNER!r}).commit()",
        uri=table.uri,
        owner=recorded_owner,
    )


def claim(table: DeltaTable, before: TableSnapshot, owner: str, properties: Mapping[str, str]) -> None:
    """Name the owner of a table that had none before a write, and which partitions its columns hold: the owner may have
    got partitions since it made the table.

    Args:
        properties: What a table would have that the write had created.
    """
    about = {OWNER: owner, **{name: value for name, value in properties.items() if name.startswith(WINDOWS)}}
    if before.properties.owner not in (None, owner) or before.metadata.configuration.keys() >= about.keys():
        return
    try:
        configuration = table.snapshot().metadata.configuration
        if configuration.get(OWNER, owner) == owner and (
            missing := {name: about[name] for name in about.keys() - configuration.keys()}
        ):
            table.alter().set_properties(missing).commit()
    except ConflictError:
        # Another writer has changed the table in between. The next write of this step claims it, or is refused.
        _log.info("The table at %s has changed while it was claimed for %s", table.uri, owner)
