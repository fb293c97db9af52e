"""Where a data file lies, from the way the log spells it (PROTOCOL, "Add File and Remove File")."""

from __future__ import annotations

import posixpath

from delta_orch.errors import ProtocolViolationError, UnsupportedStoreError
from delta_orch.protocol.data_path import canonical_path, decode_path, is_absolute


def resolve_data_path(root: str, log_path: str) -> str:
    """Decode `log_path` once and place it below `root`; absolute paths and URIs stay absolute.

    `file:/x`, `file:///x`, `file://localhost/x` and `/x` all give `/x`.

    Raises:
        ProtocolViolationError: A relative path that leaves the table's directory, or one no file can have.
    """
    path = decode_path(canonical_path(log_path))
    if not path or "\0" in path:
        raise ProtocolViolationError(
            "The log names a data file by an impossible path",
            cause="It is empty, or has a NUL in it",
            remedy="Restore the commit that added the file from a backup",
            path=log_path,
        )
    # Whether it is absolute is decided before decoding: `a%3Ab` is a file name, not a scheme.
    if is_absolute(log_path):
        return path
    if ".." in path and _leaves_root(path):
        raise ProtocolViolationError(
            f"The log names a data file outside the table: {log_path!r}",
            cause="A relative path must stay below the table's directory",
            remedy="Look at the commit that added the file before trusting the table",
            path=log_path,
        )
    return f"{root}/{path}"


def in_another_store(store_uri: str, log_path: str) -> UnsupportedStoreError:
    """The error for a data file that the table's store cannot reach."""
    return UnsupportedStoreError(
        f"The log names a data file in another store: {log_path.partition('?')[0]}",
        cause=f"The table is at {store_uri}, and its files are read through that store only",
        remedy="Copy the files beside the table, or read it with an engine that opens every store",
        path=log_path,
    )


def _leaves_root(path: str) -> bool:
    return posixpath.normpath(path).split("/", 1)[0] == ".."
