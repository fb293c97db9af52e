"""Paths of data files as the log spells them: URI-encoded once, relative to the table's root or absolute
(PROTOCOL, "Add File and Remove File")."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    import pyarrow as pa

    StringColumn = TypeVar("StringColumn", pa.Array, pa.ChunkedArray)

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_FILE_URI = re.compile(r"^file:(//localhost/)?/*")
# What Hadoop's Path leaves bare when it becomes a URI; `%` itself must be escaped.
_BARE = "/!$&'()*+,;=:@~-._"


def encode_path(path: str) -> str:
    """A decoded path as `add.path` spells it."""
    encoded = quote(path, safe=_BARE)
    # A colon in the first segment of a relative path would read as a scheme.
    if _SCHEME.match(encoded):
        head, slash, tail = encoded.partition("/")
        encoded = head.replace(":", "%3A") + slash + tail
    return encoded


def decode_path(log_path: str) -> str:
    """Undo the URI encoding of `add.path`, exactly once."""
    return unquote(log_path) if "%" in log_path else log_path


def is_absolute(log_path: str) -> bool:
    """Whether the path names a place of its own instead of one below the table's root."""
    return log_path.startswith("/") or _SCHEME.match(log_path) is not None


def canonical_path(log_path: str) -> str:
    """One spelling for one file: `file:/x`, `file:///x` and `file://localhost/x` become `/x`; everything else stays."""
    return _FILE_URI.sub("/", log_path) if log_path.startswith("file:") else log_path


def canonical_paths(paths: StringColumn) -> StringColumn:
    """`canonical_path` of a whole column of strings; the column itself where nothing needs to change."""
    import pyarrow.compute as pc

    if not pc.any(pc.starts_with(paths, "file:")).as_py():
        return paths
    return pc.replace_substring_regex(paths, pattern=_FILE_URI.pattern, replacement="/")
