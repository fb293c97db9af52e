"""From what a user calls a table to the store that holds it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from delta_orch.errors import InvalidRequestError, UnsupportedStoreError
from delta_orch.storage.base import LogStore

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?=/)")


def open_store(table_uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None) -> LogStore:
    """The store of a table's root directory. Touches nothing: the directory need not exist.

    Args:
        table_uri: A local path (`/data/t`, `t`, a `Path`), a `file:` URI (percent-encoded), `memory://name`, or any
            `protocol://…` that fsspec knows.
        storage_options: For the store's library; `single_writer=true` permits writing where the store has no
            exclusive create.

    Raises:
        InvalidRequestError: The location is empty or no path at all.
        UnsupportedStoreError: No store for that kind of location.
        MissingDependencyError: The package for that kind of location is not installed.
    """
    if isinstance(table_uri, os.PathLike):
        return _local(os.fspath(table_uri))
    if not isinstance(table_uri, str) or not table_uri.strip() or "\0" in table_uri:
        raise InvalidRequestError(
            f"{table_uri!r} is no location of a table",
            remedy="Give a path or a URI such as file:///data/t or s3://bucket/t",
        )
    scheme = _SCHEME.match(table_uri)
    if scheme is None:
        return _local(table_uri)
    match scheme[1].lower():
        case "file" | "local":
            return _local(_path_of_file_uri(table_uri))
        case "memory":
            from delta_orch.storage.memory import MemoryStore

            return MemoryStore(table_uri[scheme.end() :])
        case _:
            from delta_orch.storage.fsspec_store import FsspecStore

            return FsspecStore(table_uri, storage_options)


def _local(path: str) -> LogStore:
    from delta_orch.storage.local import LocalStore

    return LocalStore(Path(path))


def _path_of_file_uri(uri: str) -> str:
    """`file:/x`, `file:///x` and `file://localhost/x` all name `/x`; `?` and `#` are ordinary characters here."""
    path = uri.partition(":")[2]
    if path.startswith("//"):
        host, _, path = path[2:].partition("/")
        if host not in ("", "localhost"):
            raise UnsupportedStoreError(
                f"{uri} names a file on another machine",
                remedy="Use file:///path (three slashes) for a local path",
                uri=uri,
            )
        path = f"/{path}"
    return unquote(path)
