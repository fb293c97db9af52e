"""What must be in the log before an alteration can be committed: some changes take commits of their own.

Each leaves a table that is as good as before, so whatever comes in between, the alteration can be tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import orjson

from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import CommitOptions, provenance_only
from delta_orch.log.write.transaction import Transaction
from delta_orch.protocol.log_path import LogFileKind
from delta_orch.table.feature_removal import PROTECTED_BEFORE
from delta_orch.table.property_rules import find_property
from delta_orch.table.protocol_upgrade import with_features
from delta_orch.verbs.alter.draft import Draft
from delta_orch.verbs.checkpoint import checkpoint
from delta_orch.verbs.row_ids import give_rows_ids, holds_row_ids, lacks_row_ids, take_row_ids

_POLICY = "delta.checkpointPolicy"


def prepare(table_log: TableLog, read_snapshot: Callable[[], Snapshot], draft: Draft, options: CommitOptions) -> bool:
    """Do what the draft needs to be done before.

    Returns: Whether anything was committed: then the draft is to be made anew.

    Raises as `give_rows_ids`, `take_row_ids`; ConflictError, StorageError.
    """
    snapshot, table = draft.snapshot, draft.table
    is_tracking = snapshot.configuration.enables("rowTracking")
    if not is_tracking and table.enables("rowTracking") and lacks_row_ids(snapshot):
        give_rows_ids(table_log, read_snapshot, options)
        return True
    if _drops(draft, "rowTracking") and holds_row_ids(snapshot):
        take_row_ids(table_log, read_snapshot, options)
        return True
    if _drops(draft, "v2Checkpoint") and _may_need_v2(snapshot):
        _write_classic_checkpoint(table_log, read_snapshot, options)
        return True
    return False


def without_traces(draft: Draft) -> Draft:
    """The table as the draft leaves it, but for the features of which the history is to hold nothing: those are still
    listed, and used no more."""
    snapshot = draft.snapshot
    table = draft.table.after(with_features(draft.table.protocol, draft.truncates), None)
    if table.features == snapshot.configuration.features:
        table = table.after(snapshot.protocol, None)
    kept = dict(draft.configuration)
    if "checkpointProtection" in draft.truncates:
        before = snapshot.properties.require_checkpoint_protection_before_version
        kept |= {} if before is None else {PROTECTED_BEFORE: str(before)}
    if kept == dict(snapshot.metadata.configuration) and draft.schema == snapshot.schema:
        return replace(draft, table=table.after(None, snapshot.metadata))
    return replace(draft, table=table.with_properties(kept))


def _drops(draft: Draft, feature: str) -> bool:
    return draft.snapshot.configuration.supports(feature) and not draft.table.supports(feature)


def _may_need_v2(snapshot: Snapshot) -> bool:
    """Whether reading the table begins with a V2 checkpoint, or may do so with the next one."""
    if snapshot.properties.checkpoint_policy == "v2":
        return True
    found = snapshot.checkpoint
    return found is not None and (found.files.kind is LogFileKind.CHECKPOINT_UUID or bool(found.sidecars))


def _checkpoint_version(snapshot: Snapshot) -> int | None:
    return None if snapshot.checkpoint is None else snapshot.checkpoint.version


def _write_classic_checkpoint(
    table_log: TableLog, read_snapshot: Callable[[], Snapshot], options: CommitOptions
) -> None:
    """Let no V2 checkpoint be written any more, and put one that everybody can read behind those there are."""
    snapshot = read_snapshot()
    if snapshot.properties.checkpoint_policy == "v2" or _checkpoint_version(snapshot) == snapshot.version:
        configuration = dict(snapshot.metadata.configuration)
        configuration.pop(find_property(configuration, _POLICY) or _POLICY, None)
        parameters = {"properties": orjson.dumps({_POLICY: "classic"}).decode()}
        transaction = Transaction(
            table_log,
            snapshot,
            operation="SET TBLPROPERTIES",
            operation_parameters=parameters,
            **provenance_only(options),
        )
        transaction.update_metadata(replace(snapshot.metadata, configuration={**configuration, _POLICY: "classic"}))
        transaction.commit()
    checkpoint(table_log, read_snapshot())
