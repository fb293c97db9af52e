"""The scan for sessions whose JVM is out of reach: Spark lists the named files itself, and a broadcast join on
`_metadata.file_path` brings in the partition values of the log."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.engines.spark.errors import missing_file_error
from delta_orch.engines.spark.host import DataFrame
from delta_orch.engines.spark.live_rows import FILE_COLUMN, POSITION_COLUMN, POSITION_FIELDS, with_position
from delta_orch.engines.spark.settings import READ_OPTIONS
from delta_orch.engines.spark.values import arrow_to_frame, spark_schema
from delta_orch.expressions.spark_literals import quote_identifier
from delta_orch.log.files.arrow_building import string_array
from delta_orch.log.files.partition_columns import one_chunk
from delta_orch.protocol.data_path import decode_path, is_absolute
from delta_orch.protocol.types import BOOLEAN, STRING, StructField, StructType

if TYPE_CHECKING:
    from delta_orch.engines.spark.scan_files import ScanFiles

# Names that only exist inside the plan.
_KEY = "delta_orch_file_key"
_LEFT_KEY = "delta_orch_file_key_left"
_FOUND = "delta_orch_partition_found"
_LOCAL = re.compile("^file:/+")
_GLOB = re.compile(r"[\\{}\[\]*?]")


def portable_scan(session: Any, files: ScanFiles, *, positioned: bool = False) -> DataFrame:
    """All rows of the files: data columns, then partition columns, then on request the position columns.

    Raises MissingFileError where Spark's listing does not find each file the log names.
    """
    if files.files.num_rows == 0:
        positions = POSITION_FIELDS if positioned else ()
        empty = StructType((*files.data_schema, *files.partition_schema, *positions))
        return session.createDataFrame([], spark_schema(empty))
    paths = _decoded_paths(files)
    options = {**READ_OPTIONS, **files.store.hadoop_options()}
    reader = session.read.schema(spark_schema(files.data_schema)).options(**options)
    # Directory names are not columns, and brackets and stars are letters. (The option `__globPaths__` would say the
    # latter too, but Connect folds its case on the way and Spark then does not know it.)
    rows = reader.option("recursiveFileLookup", "true").parquet(*[_GLOB.sub(r"\\\g<0>", path) for path in paths])
    uris = _listed_uris(rows, paths)
    if positioned:
        rows = with_position(rows)
    return _join_partitions(session, files, rows, uris) if len(files.partition_schema) else rows


def _decoded_paths(files: ScanFiles) -> list[str]:
    root = unquote(files.root_uri)
    return [_decoded_path(root, path) for path in files.files.column("path").to_pylist()]


def _decoded_path(root: str, log_path: str) -> str:
    """The full path as Hadoop's `Path(String)` takes it: with scheme, without URI encoding."""
    path = decode_path(log_path)
    if not is_absolute(log_path):
        return f"{root}/{path}"
    if not log_path.startswith("/"):
        return path
    scheme, _, rest = root.partition(":")
    authority = rest[2:].split("/", 1)[0] if rest.startswith("//") else ""
    return f"{scheme}://{authority}{path}"


def _key(path: str) -> str:
    """One key for the spellings of a path: `file:/x` = `file:///x`."""
    return _LOCAL.sub("/", path)


def _listed_uris(rows: DataFrame, paths: list[str]) -> list[str]:
    """Each path as Spark spells it in `_metadata.file_path`, in order: the join needs no rule for the encoding.

    Spark passes over names it takes for hidden (`_x`, `.x`) without a word, and their rows with them.
    """
    listed = {_key(unquote(uri)): uri for uri in rows.inputFiles()}
    missing = [path for path in paths if _key(path) not in listed]
    if missing:
        raise missing_file_error(f"find {len(missing)} of {len(paths)} data files", min(missing))
    # `inputFiles` has file:///x where the column has file:/x; the encoding of the rest is the same.
    return [_LOCAL.sub("file:/", listed[_key(path)]) for path in paths]


def _join_partitions(session: Any, files: ScanFiles, rows: DataFrame, uris: list[str]) -> DataFrame:
    """A left join: should a key ever not match, the row stays and its partition column raises, instead of the row
    vanishing without a word."""
    data = [quote_identifier(name) for name in files.data_schema.names]
    positions = [name for name in rows.columns if name in (FILE_COLUMN, POSITION_COLUMN)]
    path = rows[FILE_COLUMN] if positions else rows.metadataColumn("_metadata").getField("file_path")
    keyed = rows.select(*[rows[name] for name in (*data, *positions)], path.alias(_LEFT_KEY))
    lookup = arrow_to_frame(session, _lookup_table(files, uris), _lookup_schema(files)).hint("broadcast")
    joined = keyed.join(lookup, keyed[_LEFT_KEY] == lookup[_KEY], "left")
    partition = [
        f"CASE WHEN {_FOUND} THEN {name} ELSE raise_error(concat('delta_orch: no partition values for ', {_LEFT_KEY})) "
        f"END AS {name}"
        for name in map(quote_identifier, files.partition_schema.names)
    ]
    return joined.selectExpr(*data, *partition, *positions)


def _lookup_schema(files: ScanFiles) -> StructType:
    keys = (StructField(_KEY, STRING), StructField(_FOUND, BOOLEAN))
    return StructType((*keys, *files.partition_schema))


def _lookup_table(files: ScanFiles, uris: list[str]) -> pa.Table:
    columns = [one_chunk(column).take(files.partition_index) for column in files.partitions.columns]
    keys = string_array(uris)
    names = [_KEY, _FOUND, *files.partition_schema.names]
    return pa.Table.from_arrays([keys, pc.is_valid(keys), *columns], names=names)
