"""Opening the store of a table by its location."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from delta_orch.errors import InvalidRequestError, MissingDependencyError, UnsupportedStoreError
from delta_orch.protocol.paths import decode_path
from delta_orch.redaction import redacted
from delta_orch.storage.base import LogStore
from delta_orch.storage.local import LocalStore

if TYPE_CHECKING:
    from delta_orch.storage.storage_options import ObjectLocation, OptionsSource, StoreKind, StoreOptions

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?=/)")
_IN_SQL = re.compile(r"(?:delta|parquet)\.`(.+)`", re.IGNORECASE | re.DOTALL)

_LIBRARIES = {"s3": ("botocore", "s3"), "gs": ("google.cloud.storage", "gcs"), "abfss": ("azure.storage.blob", "azure")}


def open_store(table_uri: str | os.PathLike[str], storage_options: Mapping[str, object] | None = None) -> LogStore:
    """Open the store of a table's root directory. It makes no request, and the directory need not exist.

    Args:
        table_uri: A local path (`/data/t`, `t`, `~/t`, a `Path`), a `file:` URI (percent-encoded), `memory://name`, a
            location in an object store (`s3:`, `gs:`, `abfss:`, `az:` and their other names), or any
            other `protocol://…` that fsspec knows.
        storage_options: Options of the store, see `storage_options`. Local and memory tables ignore them.
            `single_writer=true` permits writing to a store without exclusive creation.

    Raises:
        InvalidRequestError: The location is empty, not a path, or holds credentials; or a storage option is unknown or
            invalid.
        UnsupportedStoreError: There is no store for that kind of location.
        MissingDependencyError: The package for that kind of location is not installed.
    """
    if isinstance(table_uri, os.PathLike):
        path = os.fspath(table_uri)
        return LocalStore(_at_home(path) if isinstance(path, str) else table_uri)
    if not isinstance(table_uri, str) or not table_uri.strip() or "\0" in table_uri:
        raise InvalidRequestError(
            f"{table_uri!r} is not a table location",
            remedy="Use a path or a URI such as file:///data/t or s3://bucket/t",
        )
    if named := _IN_SQL.fullmatch(table_uri.strip()):
        raise InvalidRequestError(
            f"{redacted(table_uri)!r} is not a table location",
            cause="It is the name of a table in SQL",
            remedy=f"Use the text between the backticks: {redacted(named[1])!r}",
        )
    scheme = _SCHEME.match(table_uri)
    if (scheme is None or scheme[1].lower() == "memory") and redacted(table_uri) != table_uri:
        # The key of a connection string would become part of the name of a directory.
        raise InvalidRequestError(
            "The location is neither a path nor a URI, and holds credentials",
            remedy="Use a path or a URI such as s3://bucket/t, and pass credentials as storage options",
        )
    if scheme is None:
        if "://" in table_uri and not table_uri.startswith(("/", ".", "~")):
            # The credentials of a chained URL would become part of the name of a directory.
            raise InvalidRequestError(
                "The location is neither a path nor a URI of one scheme",
                cause="Chained URLs (`simplecache::s3://…`) are not supported",
                remedy="Use a path or a URI such as file:///data/t or s3://bucket/t",
            )
        return LocalStore(_at_home(table_uri))
    match scheme[1].lower():
        case "file" | "local":
            return LocalStore(_path_of_file_uri(table_uri))
        case "memory":
            from delta_orch.storage.memory import MemoryStore

            return MemoryStore(table_uri[scheme.end() :])
        case _:
            return _remote(table_uri, storage_options)


def _at_home(path: str) -> str:
    # `Path.expanduser` raises if there is no such user. Here, `~name` then is the name of a directory.
    return os.path.expanduser(path)  # noqa: PTH111


def _remote(table_uri: str, storage_options: Mapping[str, object] | None) -> LogStore:
    # Imported here, because a local table does not need it.
    from delta_orch.storage.storage_options import ensure_no_credentials, parse_location

    location = parse_location(table_uri)
    if location is None:
        from delta_orch.storage.fsspec_store import FsspecStore

        ensure_no_credentials(table_uri)
        return FsspecStore(table_uri, storage_options)
    from delta_orch.storage.storage_options import parse_options

    return _object_store(location, parse_options(location.kind, storage_options))


def open_vended_store(location: ObjectLocation, options: OptionsSource) -> LogStore:
    """Open the store of a location with credentials from a catalog. Raises MissingDependencyError."""
    return _object_store(location, options)


def _object_store(location: ObjectLocation, options: StoreOptions | OptionsSource) -> LogStore:
    from delta_orch.storage.storage_options import StoreKind

    ensure_installed(location.kind)
    match location.kind:
        case StoreKind.S3:
            from delta_orch.storage.s3_store import S3Store

            return S3Store(location, options)
        case StoreKind.GCS:
            from delta_orch.storage.gcs_store import GcsStore

            return GcsStore(location, options)
        case StoreKind.AZURE:
            from delta_orch.storage.azure_store import AzureStore

            return AzureStore(location, options)


def ensure_installed(kind: StoreKind) -> None:
    """Check that the client of a kind of object store is installed, without importing it.

    Raises:
        MissingDependencyError: The client is not installed.
    """
    from importlib.util import find_spec

    package, extra = _LIBRARIES[kind.value]
    try:
        is_installed = find_spec(package) is not None
    except ModuleNotFoundError:
        is_installed = False  # A package above it is missing.
    if not is_installed:
        raise MissingDependencyError(
            f"Cannot open {kind.value}:// tables",
            cause=f"The package {package} is not installed",
            remedy=f'Run pip install "delta-orch[{extra}]"',
        )


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
    return decode_path(path)
