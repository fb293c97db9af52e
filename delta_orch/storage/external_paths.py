"""Which data files outside a table's directory may be read.

A log may name files by absolute paths, as shallow clones do (PROTOCOL, "Add File and Remove File"). Whoever wrote the
log chose them. So they are read from the table's own store alone, and what lies elsewhere only where the user says so.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from pathlib import Path

from delta_orch.errors import InvalidRequestError, UnsupportedStoreError
from delta_orch.protocol.paths import LOG_DIRECTORY, decode_path, without_file_scheme


def parse_roots(given: Sequence[str | os.PathLike[str]] | None) -> tuple[str, ...] | None:
    """The user's `external_paths`, each as `place_of` spells it.

    Raises:
        InvalidRequestError: One is empty, or not a path.
    """
    if given is None:
        return None
    roots = []
    for root in given:
        text = os.fspath(root)
        if not isinstance(text, str) or not text.strip() or "\0" in text:
            raise InvalidRequestError(
                "external_paths holds something that is not a location", argument="external_paths"
            )
        if "://" in text or text.startswith("file:"):
            roots.append(place_of(text))
        else:
            roots.append(os.path.realpath(text))
    return tuple(roots)


def place_of(path: str) -> str:
    """One spelling of an absolute path or URI, without detours: `/x/y`, `s3://bucket/x`."""
    path = decode_path(without_file_scheme(path))
    scheme, separator, rest = path.partition("://")
    if not separator:
        return posixpath.normpath(path)
    authority, _, inner = rest.partition("/")
    scheme = _SAME.get(scheme.lower(), scheme.lower())
    return f"{scheme}://{authority}{posixpath.normpath('/' + inner)}".rstrip("/")


def is_one_table(one: str, other: str) -> bool:
    """Whether two roots (`LogStore.uri`) are those of one table, whatever ways lead there: links and mounts, too."""
    if one == other or not (one.startswith("file:") and other.startswith("file:")):
        return one == other
    try:
        ours, theirs = (Path(place_of(uri), LOG_DIRECTORY) for uri in (one, other))
        return ours.samefile(theirs)
    except OSError:
        return False  # What cannot be looked at cannot be read, either.


_SAME = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss"}


def lies_in(place: str, roots: Sequence[str]) -> bool:
    """Whether a place is one of the roots, or below one."""
    return any(place == root or place.startswith(root.rstrip("/") + "/") for root in roots)


def outside(store_uri: str, shown: str) -> UnsupportedStoreError:
    """The error for a data file in a place that was not opened to the table."""
    return UnsupportedStoreError(
        f"The log names a data file that may not be read: {shown}",
        cause=f"It lies outside the table at {store_uri}, in a place that external_paths does not allow",
        remedy="If you trust whoever wrote the table, name the place: DeltaTable(…, external_paths=[…])",
        path=shown,
    )


def in_another_store(store_uri: str, log_path: str) -> UnsupportedStoreError:
    """The error for a data file that the table's store cannot reach."""
    from delta_orch.storage.storage_options import public_uri

    shown = public_uri(log_path)
    return UnsupportedStoreError(
        f"The log names a data file in another store: {shown}",
        cause=f"The table is at {store_uri}, and its files are read through that store only",
        remedy="Copy the files beside the table, or read it with an engine that opens every store",
        path=shown,
    )
