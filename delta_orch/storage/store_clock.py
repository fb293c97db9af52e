"""The time for operations that delete files by age."""

from __future__ import annotations

import logging
import secrets

from delta_orch.errors import StorageError, UnsupportedStoreError
from delta_orch.protocol.paths import LOG_DIRECTORY
from delta_orch.storage.base import LogStore, is_full

_LOGGER = logging.getLogger(__name__)
_TOLERANCE_MS = 60 * 1000
"""Stores have times in whole seconds, and synchronized clocks differ by less than this."""


def present_ms(store: LogStore, own_ms: int) -> int:
    """Compare `own_ms`, the clock of this process, with the clock of the store.

    If this process is more than a minute ahead, the time of the store applies: a fast clock must not make files old. To
    read the clock of the store, this writes a file and deletes it. If the disk is too full for that, `own_ms` applies.

    Raises:
        UnsupportedStoreError: The store does not record when files were written.
        StorageError: The file could not be written.
    """
    path = f"{LOG_DIRECTORY}/.{secrets.token_hex(8)}.tmp"
    try:
        store_ms = store.put(path, b"").modification_time_ms
    except StorageError as e:
        if not is_full(e):
            raise
        _LOGGER.warning("The clock of %s was not checked, because its disk is full", store.uri)
        return own_ms
    store.delete(path)
    if not store_ms:
        raise UnsupportedStoreError(
            f"{store.uri} does not record when files were written",
            cause="Files that are deleted by age might still be needed. Nothing was deleted",
            remedy="Use a store that records the time of its files",
        )
    if own_ms - store_ms <= _TOLERANCE_MS:
        return own_ms
    _LOGGER.warning(
        "The clock of this process is %d s ahead of that of %s; the clock of the store decides about the age of files",
        (own_ms - store_ms) // 1000,
        store.uri,
    )
    return store_ms
