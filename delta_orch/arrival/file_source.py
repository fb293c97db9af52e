"""`FileSource`: lists files that arrive below a location."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING
from typing import Literal as OneOf

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.arguments import checked_constructor
from delta_orch.errors import InvalidRequestError
from delta_orch.protocol.arrow_building import int64_array, string_array
from delta_orch.storage.base import FileMeta, FlatStore, LogStore
from delta_orch.storage.open import open_store

if TYPE_CHECKING:
    from os import PathLike

FileFormat = OneOf["json", "csv", "parquet", "avro", "orc", "text", "binary"]
SchemaFit = OneOf["fail", "merge", "rescue"]
OnError = OneOf["fail", "quarantine"]
OnChanged = OneOf["error", "replace", "ignore"]
FileOrder = OneOf["name", "modification_time"]

LISTING_SCHEMA = pa.schema(
    [("path", pa.string()), ("size", pa.int64()), ("modification_time_ms", pa.int64()), ("etag", pa.string())]
)
"""The columns of `FileSource.list_files`."""

SOURCE_FILE = "source_file"
"""The column with the file of each row (`FileSource.source_file`)."""

_LEFT_OUT = r"(?:^|/)[_.]|\.tmp$"
_WILDCARD = re.compile(r"[*?\[]")
_LISTED_AT_ONCE = 50_000


@checked_constructor
@dataclass(frozen=True)
class FileSource:
    """Files that arrive below a location, to be loaded into a table once each (`DeltaTable.ingest`).

        source = FileSource("s3://landing/orders", pattern="**/*.json", format="json")

    Files and directories whose names begin with `_` or `.` are skipped, and names that end in `.tmp`. Other programs
    use such names until a file is complete.

    Attributes:
        uri: A directory, as a path or as a URI of any supported store. A different URI is a different source.
        pattern: A pattern for paths below the directory. `*` and `?` stand for characters of one name, `[…]` for one of
            several characters, and `**/` for any directories. Without `**`, only directories that the pattern names are
            listed.
        format: The format of the files.
        options: Options of the format's reader, such as the delimiter of CSV.
        schema: The columns, as an Arrow schema, or hints for some columns. None infers them from a sample of the files.
            An existing table keeps its own columns.
        schema_mode: How to handle a value that does not fit the table. `fail`: the file is an error. `merge`: the table
            gets new columns. `rescue`: the value is stored as JSON in the text column `_rescued_data`.
        on_error: How to handle a file that cannot be read. `fail`: its commit loads no file. `quarantine`: the file is
            skipped and listed in the result. It is read again after it changes.
        on_changed: How to handle a loaded file that has changed. `error`: no file is loaded. `replace`: its rows are
            replaced. `ignore`: the loaded rows stay.
        compression: The compression of JSON, CSV and text files: `gzip`, `zstd`, `none`. None derives it from the name.
        encoding: The encoding of JSON, CSV and text files. None is UTF-8.
        source_file: Each row gets a struct column `source_file`: `path` (`uris`), `modification_time`, `size` and
            `row_number`.
        settle_seconds: A file is skipped until it has not changed for this number of seconds.
        order: The order in which several commits load files.
        names_ascend: A promise that no file arrives with a path less than that of a complete file. A listing then
            starts after the greatest loaded path, and object stores list no file before it. Changes of files before it
            are not noticed.
        max_files, max_bytes: The maximum for one commit. A single larger file is loaded all the same.
        storage_options: As for `DeltaTable`. `repr` and errors do not show them.

    Raises:
        InvalidRequestError: A value is invalid, or two values contradict each other.
        UnsupportedStoreError, MissingDependencyError: The location is not in a supported store.
    """

    uri: str | PathLike[str]
    _: KW_ONLY
    format: FileFormat
    pattern: str = "**/*"
    options: Mapping[str, object] | None = None
    schema: object = None
    schema_mode: SchemaFit = "fail"
    on_error: OnError = "fail"
    on_changed: OnChanged = "error"
    compression: str | None = None
    encoding: str | None = None
    source_file: bool = False
    settle_seconds: float = 0.0
    order: FileOrder = "name"
    names_ascend: bool = False
    max_files: int = 10_000
    max_bytes: int | None = None
    storage_options: Mapping[str, object] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        problem = remedy = None
        if self.settle_seconds < 0:
            problem, remedy = f"settle_seconds={self.settle_seconds} is below 0", "Pass the seconds that a writer needs"
        elif self.max_files < 1 or (self.max_bytes is not None and self.max_bytes < 1):
            problem, remedy = "max_files and max_bytes must be at least 1", "Leave them out, or pass a larger number"
        elif self.on_changed == "replace" and not self.source_file:
            problem = "on_changed='replace' finds the rows of a file by the column source_file, which this source lacks"
            remedy = "Pass source_file=True"
        elif self.names_ascend and (self.order != "name" or self.on_changed == "replace"):
            problem = "names_ascend=True goes by names, and does not see that a file has changed"
            remedy = "Leave out order='modification_time' and on_changed='replace'; or names_ascend"
        elif not self.pattern or self.pattern.startswith("/") or ".." in self.pattern.split("/"):
            problem = f"pattern={self.pattern!r} does not name files below the location"
            remedy = "Write it relative to the location, such as '**/*.json'"
        if problem is not None:
            raise InvalidRequestError(problem, remedy=remedy)
        object.__setattr__(self, "uri", self.store.uri)

    @cached_property
    def store(self) -> LogStore:
        """Return the store of the location. Nothing is read or written."""
        return open_store(self.uri, self.storage_options)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "store"}

    def uris(self, files: pa.Table) -> pa.Array:
        """Return the location of each listed file, as in `source_file.path`: not URL-encoded."""
        return pc.binary_join_element_wise(str(self.uri), files["path"].combine_chunks(), "/")

    def list_files(self, start_path: str = "") -> pa.Table:
        """List the files that may be loaded, with one listing.

        Args:
            start_path: Only files with a greater path are returned.

        Returns: The files as `LISTING_SCHEMA`, in the order of the source. `path` is relative to `uri` and not
        URL-encoded. `etag` is null if the store has none.

        Raises:
            StorageError: The location cannot be listed. A missing location has no files and is no error.
        """
        now_ms = time.time_ns() // 1_000_000
        matching = _regular_expression(self.pattern)
        listings = [LISTING_SCHEMA.empty_table()]
        metas = self._metas(start_path)
        while batch := list(islice(metas, _LISTED_AT_ONCE)):
            files = _columns(batch)
            paths = files["path"]
            is_named = pc.and_(
                pc.match_substring_regex(paths, matching), pc.invert(pc.match_substring_regex(paths, _LEFT_OUT))
            )
            if start_path:
                is_named = pc.and_(is_named, pc.greater(paths, start_path))
            listings.append(pc.filter(files, is_named))
        listed = pa.concat_tables(listings)
        names = ("path",) if self.order == "name" else ("modification_time_ms", "path")
        listed = pc.sort_by(listed, *names)
        if not self.settle_seconds:
            return listed
        is_settled = pc.less_equal(listed["modification_time_ms"], now_ms - round(self.settle_seconds * 1000))
        if self.names_ascend:
            # Files after an incomplete file wait for it, because the next listing starts after the last loaded file.
            first = pc.index(is_settled, False).as_py()
            return listed if first < 0 else listed.slice(0, first)
        return pc.filter(listed, is_settled)

    def _metas(self, start_path: str) -> Iterator[FileMeta]:
        directory, recursive = _listed_directory(self.pattern)
        store = self.store
        if isinstance(store, FlatStore):
            full = "/".join(part for part in (store.root, directory) if part)
            start_name = start_path.removeprefix(f"{directory}/") if directory else start_path
            if directory and start_name == start_path:
                start_name = ""
            cut = len(store.root) + 1 if store.root else 0
            for meta in store.list_objects(full, recursive=recursive, start_name=start_name):
                yield meta._replace(path=meta.path[cut:])
        else:
            yield from store.list_recursive(directory) if recursive else store.list_from(directory)


def _columns(metas: list[FileMeta]) -> pa.Table:
    """Raises InvalidRequestError if a name is not valid Unicode."""
    paths, sizes, times, _, etags = zip(*metas, strict=True)
    try:
        "".join(paths).encode()
    except UnicodeEncodeError as e:
        raise InvalidRequestError(
            f"A file below the source has a name that is not Unicode: {e.object[max(0, e.start - 80) : e.end + 20]!r}",
            remedy="Rename it",
        ) from e
    columns = [string_array(paths), int64_array(sizes), int64_array(times), string_array(etags)]
    return pa.Table.from_arrays(columns, schema=LISTING_SCHEMA)


def _listed_directory(pattern: str) -> tuple[str, bool]:
    """Return the directory that contains the files of a pattern, and whether they may be in subdirectories."""
    parts = pattern.split("/")
    names = parts[:-1]
    first = next((place for place, name in enumerate(names) if _WILDCARD.search(name)), len(names))
    return "/".join(names[:first]), first < len(names) or "**" in parts[-1]


def _regular_expression(pattern: str) -> str:
    """Return a pattern as a regular expression of RE2."""
    text, place = "", 0
    while place < len(pattern):
        if pattern.startswith("**/", place) and (not place or pattern[place - 1] == "/"):
            text, place = text + "(?:.*/)?", place + 3
        elif pattern.startswith("**", place):
            text, place = text + ".*", place + 2
        elif (end := pattern.find("]", place + 2)) > 0 and pattern[place] == "[":
            inside = pattern[place + 1 : end].replace("\\", "\\\\")
            text, place = text + f"[{'^' + inside[1:] if inside.startswith('!') else inside}]", end + 1
        else:
            character = pattern[place]
            text += {"*": "[^/]*", "?": "[^/]"}.get(character, re.escape(character))
            place += 1
    return f"(?s)^{text}$"
