"""Keeping `_last_checkpoint` up to date (PROTOCOL, "Last Checkpoint File")."""

from __future__ import annotations

import logging

from delta_orch.errors import CorruptLogError, FileMissingInStoreError
from delta_orch.protocol.last_checkpoint import LastCheckpoint, parse_last_checkpoint, serialize_last_checkpoint
from delta_orch.protocol.log_path import LAST_CHECKPOINT_PATH
from delta_orch.storage.base import LogStore

_LOGGER = logging.getLogger(__name__)


def point_at(store: LogStore, last: LastCheckpoint) -> None:
    """Let `_last_checkpoint` name a checkpoint that is there. A pointer to a newer one is not moved back.

    Raises:
        StorageError: The pointer may be the old one. Readers find the checkpoint by listing.
    """
    pointed_at = _read_pointer(store)
    if pointed_at is not None and pointed_at.version > last.version:
        return
    if pointed_at != last:
        store.put(LAST_CHECKPOINT_PATH, serialize_last_checkpoint(last))


def _read_pointer(store: LogStore) -> LastCheckpoint | None:
    try:
        return parse_last_checkpoint(store.read_bytes(LAST_CHECKPOINT_PATH))
    except FileMissingInStoreError:
        return None
    except CorruptLogError as e:
        _LOGGER.warning("Replacing a _last_checkpoint that cannot be read: %s", e)
        return None
