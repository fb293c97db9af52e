"""Permission to read data files outside the directory of a table.

A log may name files by absolute paths, as shallow clones do (PROTOCOL, "Add File and Remove File"). The writer of the
log chose these paths, so files are read only from the store of the table, and from places that the user allows.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from pathlib import Path

from delta_orch.errors import InvalidRequestError, UnsupportedStoreError
from delta_orch.protocol.paths import LOG_DIRECTORY, decode_path, without_file_scheme


def parse_roots(locations: Sequence[str | os.PathLike[str]] | None) -> tuple[str, ...] | None:
    """Parse the `external_paths` of a user. Each result is spelled like a result of `place_of`.

    Raises:
        InvalidRequestError: A location is empty, or not a path.
    """
    if locations is None:
        return None
    roots = []
    for root in locations:
        text = os.fspath(root)
        if not isinstance(text, str) or not text.strip() or "\0" in text:
            raise InvalidRequestError("external_paths holds a value that is not a location", argument="external_paths")
        if "://" in text or text.startswith("file:"):
            roots.append(place_of(text))
        else:
            roots.append(os.path.realpath(text))
    return tuple(roots)


def place_of(path: str) -> str:
    """The canonical spelling of an absolute path or URI, without `..`: `/x/y`, `s3://bucket/x`."""
    path = decode_path(without_file_scheme(path))
    scheme, separator, rest = path.partition("://")
    if not separator:
        return posixpath.normpath(path)
    authority, _, inner = rest.partition("/")
    scheme = _SAME.get(scheme.lower(), scheme.lower())
    return f"{scheme}://{authority}{posixpath.normpath('/' + inner)}".rstrip("/")


def is_one_table(one: str, other: str) -> bool:
    """Whether two roots (`LogStore.uri`) belong to one table, also through links and mounts."""
    if one == other or not (one.startswith("file:") and other.startswith("file:")):
        return one == other
    try:
        one_log, other_log = (Path(place_of(uri), LOG_DIRECTORY) for uri in (one, other))
        return one_log.samefile(other_log)
    except OSError:
        return False  # A log that cannot be inspected cannot be read.


_SAME = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss"}


def lies_in(place: str, roots: Sequence[str]) -> bool:
    """Whether a place is one of the roots, or lies below one."""
    return any(place == root or place.startswith(root.rstrip("/") + "/") for root in roots)


def outside(store_uri: str, shown: str) -> UnsupportedStoreError:
    """The error for a data file in a place that the user did not allow."""
    return UnsupportedStoreError(
        f"The log names a data file that may not be read: {shown}",
        cause=f"It lies outside the table at {store_uri}, in a place that external_paths does not allow",
        remedy="If you trust the writer of the table, allow the place: DeltaTable(…, external_paths=[…])",
        path=shown,
    )


def in_another_store(store_uri: str, log_path: str) -> UnsupportedStoreError:
    """The error for a data file in another store than the table."""
    from delta_orch.storage.storage_options import public_uri

    shown = public_uri(log_path)
    return UnsupportedStoreError(
        f"The log names a data file in another store: {shown}",
        cause=f"The table is at {store_uri}, and its files are read through that store only",
        remedy="Copy the files to the store of the table, or read the table with an engine that opens both stores",
        path=shown,
    )
