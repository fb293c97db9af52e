"""Names of the files in `_delta_log`, parsed and built (PROTOCOL, "File Types"), and paths of data files as the log
spells them: URI-encoded once, relative to the table's root or absolute (PROTOCOL, "Add File and Remove File")."""

from __future__ import annotations

import posixpath
import re
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from delta_orch.errors import ProtocolViolationError

if TYPE_CHECKING:
    import pyarrow as pa

    StringColumn = TypeVar("StringColumn", pa.Array, pa.ChunkedArray)

LOG_DIRECTORY = "_delta_log"
SIDECAR_DIRECTORY = f"{LOG_DIRECTORY}/_sidecars"
STAGED_COMMIT_DIRECTORY = f"{LOG_DIRECTORY}/_staged_commits"
"""Where commits lie that are proposed to a catalog."""
STAGED_DIRECTORY = "_delta_orch/staged"
"""Where writes wait that are staged and not published. Hidden from every client; vacuum clears it."""
LOADED_DIRECTORY = "_delta_orch/loaded"
"""The records of files that were loaded (`arrival.loaded_files`). Hidden from every client."""
TRANSFERS_DIRECTORY = "_delta_orch/quarantine"
"""What commits put into a quarantine and take out of it (`verbs.quarantine`). Hidden from every client."""
LAST_CHECKPOINT_PATH = f"{LOG_DIRECTORY}/_last_checkpoint"


class LogFileKind(Enum):
    COMMIT = "commit"
    CHECKPOINT_CLASSIC = "classic checkpoint"
    CHECKPOINT_MULTIPART = "multi-part checkpoint"
    CHECKPOINT_UUID = "UUID-named checkpoint"
    COMPACTION = "log compaction"
    CHECKSUM = "version checksum"


CHECKPOINT_KINDS = frozenset(
    {LogFileKind.CHECKPOINT_CLASSIC, LogFileKind.CHECKPOINT_MULTIPART, LogFileKind.CHECKPOINT_UUID}
)


class LogPath(NamedTuple):
    """One recognised file of the log.

    Attributes:
        name: The file name, without directory.
        version: The version it belongs to; for a log compaction the first one.
        end_version: A log compaction's last version, else None.
        part: A multi-part checkpoint's part, from 1, and `num_parts` their number; else None.
        unique: The UUID of a UUID-named checkpoint, else None.
    """

    name: str
    kind: LogFileKind
    version: int
    end_version: int | None = None
    part: int | None = None
    num_parts: int | None = None
    unique: str | None = None

    @property
    def is_checkpoint(self) -> bool:
        return self.kind in CHECKPOINT_KINDS


_NAME = re.compile(
    r"(?P<version>\d{20})"
    r"(?:(?P<commit>\.json)"
    r"|(?P<crc>\.crc)"
    r"|\.(?P<end>\d{20})\.compacted\.json"
    r"|(?P<classic>\.checkpoint\.parquet)"
    r"|\.checkpoint\.(?P<part>\d{10})\.(?P<parts>\d{10})\.parquet"
    r"|\.checkpoint\.(?P<unique>[0-9a-zA-Z-]+)\.(?:json|parquet))",
    re.ASCII,
)


def parse_log_path(name: str) -> LogPath | None:
    """Recognise a file name in `_delta_log`; None for anything the protocol does not define."""
    m = _NAME.fullmatch(name)
    if m is None:
        return None
    version = int(m["version"])
    if m["commit"]:
        return LogPath(name, LogFileKind.COMMIT, version)
    if m["crc"]:
        return LogPath(name, LogFileKind.CHECKSUM, version)
    if m["end"]:
        end = int(m["end"])
        return LogPath(name, LogFileKind.COMPACTION, version, end_version=end) if end >= version else None
    if m["classic"]:
        return LogPath(name, LogFileKind.CHECKPOINT_CLASSIC, version)
    if m["part"]:
        part, parts = int(m["part"]), int(m["parts"])
        if not 1 <= part <= parts:
            return None
        return LogPath(name, LogFileKind.CHECKPOINT_MULTIPART, version, part=part, num_parts=parts)
    return LogPath(name, LogFileKind.CHECKPOINT_UUID, version, unique=m["unique"])


def commit_path(version: int) -> str:
    """Path of a commit, relative to the table's root."""
    return f"{LOG_DIRECTORY}/{version:020d}.json"


def checkpoint_path(version: int) -> str:
    """Path of the classic checkpoint of a version, relative to the table's root."""
    return f"{LOG_DIRECTORY}/{version:020d}.checkpoint.parquet"


def compaction_path(start_version: int, end_version: int) -> str:
    """Path of the log compaction of a range of versions, both inclusive, relative to the table's root."""
    return f"{LOG_DIRECTORY}/{start_version:020d}.{end_version:020d}.compacted.json"


def checksum_path(version: int) -> str:
    """Path of the version checksum, relative to the table's root."""
    return f"{LOG_DIRECTORY}/{version:020d}.crc"


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_FILE_URI = re.compile(r"^file:(//localhost/)?/*")
# Characters that Hadoop's Path does not escape in a URI; `%` itself must be escaped.
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


def without_file_scheme(log_path: str) -> str:
    """A path as the log spells it, still encoded, but `/x` for `file:/x`, `file:///x` and `file://localhost/x`. A URI
    of another host stays."""
    names_host = log_path.startswith("file://") and not log_path.startswith(("file:///", "file://localhost/"))
    return _FILE_URI.sub("/", log_path) if log_path.startswith("file:") and not names_host else log_path


def resolve_data_path(root: str, log_path: str) -> str:
    """Decode `log_path` once and place it below `root`; absolute paths and URIs stay absolute.

    `file:/x`, `file:///x`, `file://localhost/x` and `/x` all give `/x`. The store tells what it can reach.

    Raises:
        ProtocolViolationError: A relative path that leaves the table's directory, or one no file can have.
    """
    path = decode_path(without_file_scheme(log_path))
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
    if ".." in path and posixpath.normpath(path).split("/", 1)[0] == "..":
        raise ProtocolViolationError(
            f"The log names a data file outside the table: {log_path!r}",
            cause="A relative path must stay below the table's directory",
            remedy="Look at the commit that added the file before trusting the table",
            path=log_path,
        )
    return f"{root}/{path}"


def local_path_in_log(path: str) -> str:
    """An absolute path of a local file as a log spells it, `file:/x`: Delta on Spark looks files up by the text that
    Spark has for them."""
    return f"file:{without_file_scheme(path)}"


def canonical_paths(paths: StringColumn) -> StringColumn:
    """The canonical spelling of a file's path: decoded, because writers escape different letters, without `file:`, and
    without detours (`./x`, `a/../x`, `a//x`), as Hadoop has paths. If nothing changes, the column itself is
    returned."""
    import delta_orch.arrow_compute as pc

    if pc.any(pc.starts_with(paths, "file:")).as_py():
        paths = pc.replace_substring_regex(paths, pattern=_FILE_URI.pattern, replacement="/")
    is_odd = pc.match_substring_regex(paths, r"%|//|\./")
    if not pc.any(is_odd).as_py():
        return paths
    from delta_orch.protocol.arrow_building import one_chunk, string_array

    # Of a partition, all files have the same directory: with a slash before it, each path has one.
    rooted = pc.binary_join_element_wise("/", one_chunk(pc.filter(paths, is_odd)), "")
    parts = pc.split_pattern(rooted, "/", max_splits=1, reverse=True)
    directories, names = pc.dictionary_encode(pc.list_element(parts, 0)), pc.list_element(parts, 1)
    if pc.any(pc.match_substring(names, "%")).as_py():
        names = string_array(map(_decoded, names.to_pylist()))
    straight = [_straight(text[1:]) if text else "" for text in directories.dictionary.to_pylist()]
    canonical = pc.binary_join_element_wise(pc.take(string_array(straight), directories.indices), names, "")
    return pc.replace_with_mask(paths, one_chunk(is_odd), canonical)


def _straight(directory: str) -> str:
    """A directory, decoded and without detours, as it stands before the name of a file."""
    scheme, separator, place = _decoded(directory).rpartition("://")
    place = posixpath.normpath(f"{place}/")
    return f"{scheme}{separator}{'' if place == '.' else place.rstrip('/') + '/'}"


def _decoded(log_path: str) -> str:
    """As `decode_path`. Paths that do not decode to text, or that contain a null character, stay as they are."""
    try:
        decoded = unquote(log_path, errors="strict")
    except UnicodeDecodeError:
        return log_path
    return log_path if "\0" in decoded else decoded
