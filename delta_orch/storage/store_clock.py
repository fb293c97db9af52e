"""What time it is, for whoever deletes files by their age."""

from __future__ import annotations

import logging
import secrets

from delta_orch.errors import StorageError, UnsupportedStoreError
from delta_orch.protocol.paths import LOG_DIRECTORY
from delta_orch.storage.base import LogStore, is_full

_LOGGER = logging.getLogger(__name__)
_TOLERANCE_MS = 60 * 1000
"""Stores tell times in whole seconds, and clocks that are kept right are not further apart."""


def present_ms(store: LogStore, own_ms: int) -> int:
    """The earlier of two clocks, `own_ms` of this process and the store's, where they are more than a minute apart: a
    clock that is fast must not make files old.

    The store's clock dates a file that is written for it and deleted again. A disk too full for that is not asked.

    Raises:
        UnsupportedStoreError: The store does not say when files were written.
        StorageError: The file could not be written.
    """
    path = f"{LOG_DIRECTORY}/.{secrets.token_hex(8)}.tmp"
    try:
        store_ms = store.put(path, b"").modification_time_ms
    except StorageError as e:
        if not is_full(e):
            raise
        _LOGGER.warning("The disk of %s is so full that it cannot be asked for the time", store.uri)
        return own_ms
    store.delete(path)
    if not store_ms:
        raise UnsupportedStoreError(
            f"{store.uri} does not say when files were written",
            cause="What is deleted by its age might still be needed",
            remedy="Nothing was deleted; use a store that dates its files",
        )
    if own_ms - store_ms <= _TOLERANCE_MS:
        return own_ms
    _LOGGER.warning(
        "The clock of this process is %d s ahead of that of %s: files are as old as the store says",
        (own_ms - store_ms) // 1000,
        store.uri,
    )
    return store_ms
