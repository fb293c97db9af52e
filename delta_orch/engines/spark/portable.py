"""The host for any Spark session, with public DataFrame calls only: Spark Connect, and classic sessions without the
bridge.

Spark lists the files of a scan itself. A broadcast join on `_metadata.file_path` adds the log's partition values.
"""

from __future__ import annotations

import posixpath
import re
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.engines.spark.errors import is_hidden, missing_file_error
from delta_orch.engines.spark.frames import (
    FILE_COLUMN,
    POSITION_FIELDS,
    arrow_to_frame,
    is_connect,
    spark_schema,
    with_position,
)
from delta_orch.engines.spark.host import ANALYSIS_SETTINGS, DEFAULTS, HIDDEN, UTC_NAMES, SparkHost, read_options
from delta_orch.engines.spark.scan_files import ScanFiles, hadoop_root
from delta_orch.errors import UnsupportedError
from delta_orch.expressions.spark_literals import quote_identifier, type_sql
from delta_orch.expressions.tree import is_opaque
from delta_orch.log.files.file_columns import FileTable
from delta_orch.protocol.arrow_building import one_chunk, string_array
from delta_orch.protocol.paths import decode_path, is_absolute
from delta_orch.protocol.types import BOOLEAN, STRING, StructField, StructType
from delta_orch.storage.base import LogStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Columns that only exist inside a plan.
_KEY = "delta_orch_file_key"
_LEFT_KEY = "delta_orch_file_key_left"
_FOUND = "delta_orch_partition_found"
_KEY_FIELDS = (StructField(_KEY, STRING), StructField(_FOUND, BOOLEAN))
# Characters that Java's URI escapes: `%`, ASCII that URIs lack, control characters, and spaces of all scripts.
_QUOTED = re.compile(
    r"[^A-Za-z0-9_\-!.~'()*,;:$&+=@/\u0080-\U0010ffff]+"
    r"|[\u0080-\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"
)
_MAYBE_HIDDEN = r"(?i)(^|/|%2f)([_.]|%2e|%5f)[^/]*$|_COPYING_$"
_SUBSTITUTES = "spark.sql.variable.substitute"
_ZONE = "spark.sql.session.timeZone"
_PATIENCE_S = 600.0
_GLOB = re.compile(r"[\\{}\[\]*?]")


class PortableHost(SparkHost):
    """A session whose plans cannot move to another one. Its settings change while rows are pulled."""

    is_time_zone_pinned = False

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self._overlay = _SettingsOverlay(session)

    def _hide_credentials(self, store: LogStore) -> None:
        """This setting is not restored, because a DataFrame with such text is sent again at each action."""
        if not store.hadoop_options():
            return
        for setting, ours in HIDDEN.items():
            theirs = self.session.conf.get(setting, "")
            if ours not in (theirs or ""):
                self.session.conf.set(setting, f"{theirs}|{ours}" if theirs else ours)

    def pinned(self, rows: DataFrame, settings: Mapping[str, str]) -> DataFrame:
        return rows

    def unpinned(self, rows: DataFrame) -> DataFrame:
        return rows

    def settings(self, settings: Mapping[str, str]) -> AbstractContextManager[None]:
        return self._overlay.hold(settings)

    def pinned_session(self) -> SparkSession:
        return self.session

    def settled(self, rows: DataFrame) -> DataFrame:
        """Return the same rows, planned under the user's settings, so that the user's expressions keep their meaning
        inside a verb. The executors keep the rows after they are pulled, because Spark has no other way to keep a
        plan."""
        # The setting for variables is not compared, because few expressions contain variables.
        theirs = self._overlay.of_user(ANALYSIS_SETTINGS)
        if str(theirs[_ZONE]).lower() in UTC_NAMES:
            theirs[_ZONE] = ANALYSIS_SETTINGS[_ZONE]
        if {**theirs, _SUBSTITUTES: ANALYSIS_SETTINGS[_SUBSTITUTES]} == ANALYSIS_SETTINGS:
            return rows
        with self._overlay.away():
            return rows.localCheckpoint(eager=False)

    def analysed_scan(self, plan: ScanPlan, build: Callable[[ScanPlan], DataFrame]) -> DataFrame:
        """Return the rows of the files. A Connect session gets no request before rows are read, because it would list
        all files for each answer.

        Raises:
            MissingFileError: Spark's listing would ignore a file because of its name.
            UnsupportedError: The session would replace a column's name by another text.
        """
        if "${" in type_sql(plan.schema) and self.session.conf.get(_SUBSTITUTES, "true") == "true":
            raise UnsupportedError(
                "A column's name contains ${, which this Spark session replaces by a variable",
                remedy=f"Set {_SUBSTITUTES} to false, or read the table in process",
            )
        hidden = plan.files.filter(pc.match_substring_regex(FileTable(plan.files).path, _MAYBE_HIDDEN))
        for path in map(decode_path, FileTable(hidden).path.to_pylist()):
            if is_hidden(path):
                raise missing_file_error("read the table", path)
        if not is_connect(self.session):
            with self._overlay.hold(ANALYSIS_SETTINGS):
                return self.analysed(build(plan))
        from delta_orch.engines.spark.connect_frame import ScanFrame

        frame = ScanFrame(self.session, plan, build)
        if plan.where is not None and is_opaque(plan.where):
            # Errors in the SQL text are raised without reading rows.
            _ = frame.schema
        return frame

    def scan_files(self, files: ScanFiles, *, positioned: bool = False) -> DataFrame:
        if files.files.num_rows == 0:
            positions = POSITION_FIELDS if positioned else ()
            empty = StructType((*files.data_schema, *files.partition_schema, *positions))
            return self.session.createDataFrame([], spark_schema(empty))
        paths = _decoded_paths(files)
        if files.store.uri.startswith("file:"):
            named = FileTable(files.files).path.to_pylist()
            here = [path for path in named if "://" not in path or path.startswith("file:")]
            files.store.ensure_regular([files.store.resolve(path) for path in here])
        self._hide_credentials(files.store)
        reader = self.session.read.schema(spark_schema(files.data_schema)).options(**read_options(files))
        # Directory names do not become columns, and brackets and stars are plain characters. The option `__globPaths__`
        # would do the latter too, but Connect changes its case, and Spark then ignores it.
        rows = reader.option("recursiveFileLookup", "true").parquet(*[_GLOB.sub(r"\\\g<0>", path) for path in paths])
        if positioned:
            rows = with_position(rows)
        return self._join_partitions(files, rows, paths, positioned) if len(files.partition_schema) else rows

    def _join_partitions(self, files: ScanFiles, rows: DataFrame, paths: list[str], positioned: bool) -> DataFrame:
        """Add the partition values by a left join. If a key does not match, the row stays and its partition column
        raises an error. An inner join would lose the row."""
        data = [quote_identifier(name) for name in files.data_schema.names]
        positions = [f.name for f in POSITION_FIELDS] if positioned else []
        # Columns are referred to by name, because `rows[name]` would send a request, and the server would list the
        # files.
        if positioned:
            keyed = rows.selectExpr(*data, *positions, f"{FILE_COLUMN} AS {_LEFT_KEY}")
        else:
            keyed = rows.select(*data, rows.metadataColumn("_metadata").getField("file_path").alias(_LEFT_KEY))
        schema = StructType((*_KEY_FIELDS, *files.partition_schema))
        table = _lookup_table(files, [_uri(path) for path in paths], schema)
        lookup = arrow_to_frame(self.session, table, schema).hint("broadcast")
        # A join on the same name in both sides would hide `_metadata`.
        joined = keyed.join(lookup, keyed[_LEFT_KEY] == lookup[_KEY], "left")
        partition = [
            f"CASE WHEN {_FOUND} THEN {name} ELSE raise_error(concat('delta_orch: no partition values for ', "
            f"{_LEFT_KEY})) END AS {name}"
            for name in map(quote_identifier, files.partition_schema.names)
        ]
        return joined.selectExpr(*data, *partition, *positions)

    def write_files(
        self, rows: DataFrame, store: LogStore, directory: str, partition_by: Sequence[str], options: Mapping[str, str]
    ) -> list[str]:
        self._hide_credentials(store)
        # Each write has its own directory, so the files that Spark's job committed are exactly those in it.
        own = f"{directory}/write-{uuid.uuid4()}".lstrip("/")
        writer = rows.write.mode("error").options(**options)
        if partition_by:
            writer = writer.partitionBy(*partition_by)
        # Hadoop's `Path(String)` does not decode URIs, so `a%20b` and `a b` are different directories.
        writer.parquet(f"{unquote(hadoop_root(store))}/{own}")
        return [
            meta.path
            for meta in store.list_recursive(own)
            if meta.path.endswith(".parquet") and not meta.path.rpartition("/")[2].startswith((".", "_"))
        ]

    def arrow_batches(self, rows: DataFrame, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        if not is_connect(self.session):
            yield from rows.toArrow().to_batches()
            return
        client = rows.sparkSession.client
        for part in client.to_table_as_iterator(rows._plan.to_proto(client), {}):
            if hasattr(part, "to_batches"):
                yield from part.to_batches()


def _decoded_paths(files: ScanFiles) -> list[str]:
    root = unquote(files.root_uri)
    return [_decoded_path(root, path) for path in FileTable(files.files).path.to_pylist()]


def _decoded_path(root: str, log_path: str) -> str:
    """Return the full path for Hadoop's `Path(String)`, with a scheme and without URI encoding."""
    path = decode_path(log_path)
    if not is_absolute(log_path):
        return f"{root}/{path}"
    if not log_path.startswith("/"):
        return path
    scheme, _, rest = root.partition(":")
    authority = rest[2:].split("/", 1)[0] if rest.startswith("//") else ""
    return f"{scheme}://{authority}{path}"


def _uri(path: str) -> str:
    """Return a full path as Spark spells it in `_metadata.file_path`: quoted as by Java's `URI`, without `.` and
    `..`."""
    scheme, _, rest = path.partition(":")
    authority, slash, key = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest)
    place = f"//{authority}" if authority else ""
    return f"{scheme}:{place}{_QUOTED.sub(lambda found: quote(found[0], safe=''), posixpath.normpath(slash + key))}"


def _lookup_table(files: ScanFiles, uris: list[str], schema: StructType) -> pa.Table:
    columns = [one_chunk(column).take(files.partition_index) for column in files.partitions.columns]
    keys = string_array(uris)
    return pa.Table.from_arrays([keys, pc.is_valid(keys), *columns], names=list(schema.names))


class _SettingsOverlay:
    """The settings on a session while at least one thread holds them. The last holder restores the old values."""

    def __init__(self, session: SparkSession) -> None:
        self._conf = session.conf
        self._lock = threading.Condition()
        self._holders = Counter[str]()
        self._threads = Counter[int]()
        self._before: dict[str, str | None] = {}
        self._defaults: dict[str, str | None] = {}

    @contextmanager
    def hold(self, settings: Mapping[str, str]) -> Iterator[None]:
        with self._lock:
            user = self._conf.getAll
            for key, value in settings.items():
                if not self._holders[key] and (user[key] if key in user else self._default(key)) != value:
                    self._before[key] = user.get(key)
                    self._conf.set(key, value)
            self._holders.update(settings.keys())
            self._threads[threading.get_ident()] += 1
        thread = threading.get_ident()
        try:
            yield
        finally:
            with self._lock:
                self._threads[thread] -= 1
                self._holders.subtract(settings.keys())
                for key in [key for key in settings if not self._holders[key] and key in self._before]:
                    before = self._before.pop(key)
                    if before is None:
                        self._conf.unset(key)
                    else:
                        self._conf.set(key, before)
                self._lock.notify_all()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Run the block under the user's own settings, when no other thread holds settings. Other holders wait for the
        end of the block.

        Raises UnsupportedError if this thread holds settings, or if another thread holds them too long.
        """
        with self._lock:
            is_own = self._before and self._threads[threading.get_ident()]
            if is_own or not self._lock.wait_for(lambda: not self._before, _PATIENCE_S):
                raise UnsupportedError(
                    "The DataFrame cannot be read under the settings of its session",
                    cause="Another read or write of the session is under way, with different settings",
                    remedy="Finish it first, use one session per thread, or set spark.sql.session.timeZone to UTC and "
                    "leave ANSI on",
                )
            yield

    def of_user(self, keys: Iterable[str]) -> dict[str, str | None]:
        """Return the user's value of the setting, or its default."""
        with self._lock:
            now = self._conf.getAll
            return {key: self._before.get(key, now.get(key)) or self._default(key) for key in keys}

    def _default(self, key: str) -> str | None:
        """Return the default value. It is fetched once, because each call is a round trip."""
        if key in DEFAULTS:
            return DEFAULTS[key]
        if key not in self._defaults:
            try:
                self._defaults[key] = self._conf.get(key)
            except Exception as e:
                if not type(e).__module__.startswith("pyspark"):
                    raise
                # This release of Spark does not have the setting.
                self._defaults[key] = None
        return self._defaults[key]
