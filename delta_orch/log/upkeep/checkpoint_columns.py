"""Actions as rows of a checkpoint: one struct column a kind of action (PROTOCOL, "Checkpoint Schema"). File actions are
streamed in pieces of a size that suits readers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

import delta_orch.arrow_compute as pc
from delta_orch.errors import DeltaError
from delta_orch.log.files.file_columns import DELETION_VECTOR_TYPE, FILE_TYPES, FileTable
from delta_orch.log.files.partition_columns import partition_strings
from delta_orch.log.files.stats_columns import parse_stats, stats_type
from delta_orch.protocol.action_json import (
    ADD_FIELDS,
    DELETION_VECTOR_FIELDS,
    PARTITION_VALUES_PARSED,
    REMOVE_FIELDS,
    STATS_PARSED,
    body_to_json,
)
from delta_orch.protocol.actions import Action, CheckpointMetadata, DomainMetadata, JsonValue, Sidecar
from delta_orch.protocol.arrow_building import (
    STRING_MAP,
    all_booleans,
    bool_array,
    int32_array,
    int64_array,
    one_chunk,
    string_array,
    string_map_array,
    struct_array,
    type_to_arrow,
    validity_bitmap,
)
from delta_orch.protocol.partition_values import partition_column_to_arrow
from delta_orch.protocol.types import StructType
from delta_orch.storage.base import storage_error
from delta_orch.table.clustering import CLUSTERING_DOMAIN, logical_paths, parse_clustering
from delta_orch.table.column_mapping import to_physical

if TYPE_CHECKING:
    from delta_orch.log.read.snapshot import Snapshot


_TEXT, _LONG, _TEXTS = pa.string(), pa.int64(), pa.list_(pa.string())
_TXN = pa.struct([("appId", _TEXT), ("version", _LONG), ("lastUpdated", _LONG)])
_PROTOCOL = pa.struct(
    [
        ("minReaderVersion", pa.int32()),
        ("minWriterVersion", pa.int32()),
        ("readerFeatures", _TEXTS),
        ("writerFeatures", _TEXTS),
    ]
)
_METADATA = pa.struct(
    [
        ("id", _TEXT),
        ("name", _TEXT),
        ("description", _TEXT),
        ("format", pa.struct([("provider", _TEXT), ("options", STRING_MAP)])),
        ("schemaString", _TEXT),
        ("partitionColumns", _TEXTS),
        ("createdTime", _LONG),
        ("configuration", STRING_MAP),
    ]
)
_DOMAIN_METADATA = pa.struct([("domain", _TEXT), ("configuration", _TEXT), ("removed", pa.bool_())])
_DELETION_VECTOR = pa.struct([(DELETION_VECTOR_FIELDS[field.name], field.type) for field in DELETION_VECTOR_TYPE])
_CHECKPOINT_METADATA = pa.struct([("version", _LONG), ("tags", STRING_MAP)])
_SIDECAR = pa.struct([("path", _TEXT), ("sizeInBytes", _LONG), ("modificationTime", _LONG), ("tags", STRING_MAP)])
_OTHERS = (("metaData", _METADATA), ("protocol", _PROTOCOL), ("domainMetadata", _DOMAIN_METADATA))
_ADD_COLUMNS = (
    "path", "partition_values", "size", "data_change", "stats", "tags", "deletion_vector", "base_row_id",
    "default_row_commit_version", "modification_time", "clustering_provider",
)  # fmt: skip
# Tombstones serve vacuum alone: without statistics and tags (PROTOCOL, "Checkpoints").
TOMBSTONE_COLUMNS = (
    "path", "partition_values", "size", "data_change", "deletion_vector", "base_row_id", "default_row_commit_version",
    "deletion_timestamp", "extended_file_metadata",
)  # fmt: skip


@dataclass(frozen=True)
class CheckpointColumns:
    """The columns of one table's checkpoint, and how actions become rows of them.

    Attributes:
        stats_as_json: Whether `add.stats` is written (`delta.checkpoint.writeStatsAsJson`).
        parsed_stats: The type of `add.stats_parsed`, None where it is not written (`…writeStatsAsStruct`).
        parsed_partitions: The type of `add.partitionValues_parsed`, None where it is not written.
        partition_schema: The partition columns by their physical names.
    """

    stats_as_json: bool
    parsed_stats: pa.StructType | None
    parsed_partitions: pa.StructType | None
    partition_schema: StructType

    @classmethod
    def of_snapshot(cls, snapshot: Snapshot) -> CheckpointColumns:
        """Of the table as a snapshot has it. Statistics and partition values go by physical names (PROTOCOL, "Column
        Mapping")."""
        properties = snapshot.properties
        as_struct = properties.checkpoint_write_stats_as_struct
        mode = snapshot.configuration.column_mapping
        partitions = tuple(f for f in snapshot.schema if f.name in snapshot.partition_columns)
        physical = to_physical(StructType(partitions), mode)
        parsed_partitions = pa.struct([pa.field(f.name, type_to_arrow(f.data_type)) for f in physical])
        clustering = parse_clustering(snapshot.domain_metadata.get(CLUSTERING_DOMAIN)) if as_struct else None
        also = logical_paths(snapshot.schema, clustering or ())
        indexed = stats_type(snapshot.schema, snapshot.partition_columns, properties, mode, also)
        return cls(
            stats_as_json=properties.checkpoint_write_stats_as_json,
            parsed_stats=indexed if as_struct else None,
            parsed_partitions=parsed_partitions if as_struct and partitions else None,
            partition_schema=physical,
        )

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """Of a V1 checkpoint."""
        return pa.schema([("txn", _TXN), *self.sidecar_schema, *_OTHERS])

    @cached_property
    def v2_schema(self) -> pa.Schema:
        """Of the Parquet file on top of a V2 checkpoint."""
        return pa.schema([*self.arrow_schema, ("checkpointMetadata", _CHECKPOINT_METADATA), ("sidecar", _SIDECAR)])

    @cached_property
    def sidecar_schema(self) -> pa.Schema:
        """Of a sidecar, which holds nothing but file actions (PROTOCOL, "Sidecar Files")."""
        return pa.schema([("add", self._add_type), ("remove", _file_type(TOMBSTONE_COLUMNS, REMOVE_FIELDS))])

    @cached_property
    def _add_type(self) -> pa.StructType:
        names = [name for name in _ADD_COLUMNS if name != "stats" or self.stats_as_json]
        fields = list(_file_type(names, ADD_FIELDS))
        if self.parsed_partitions is not None:
            fields.append(pa.field(PARTITION_VALUES_PARSED, self.parsed_partitions))
        if self.parsed_stats is not None:
            fields.append(pa.field(STATS_PARSED, self.parsed_stats))
        return pa.struct(fields)

    def adds(self, files: pa.Table) -> pa.StructArray:
        """Live files, columns of `file_columns.ADD_SCHEMA`, as values of the column `add`."""
        values = _file_values(files, ADD_FIELDS)
        # "The records are in the table already" (PROTOCOL, "Add File and Remove File"): nothing changes here.
        values["dataChange"] = all_booleans(False, files.num_rows)
        if self.parsed_partitions is not None:
            values[PARTITION_VALUES_PARSED] = self._parse_partitions(files, self.parsed_partitions)
        if self.parsed_stats is not None:
            values[STATS_PARSED] = parse_stats(FileTable(files).stats, self.parsed_stats)
        return struct_array(self._add_type, [values[field.name] for field in self._add_type])

    def removes(self, files: pa.Table) -> pa.StructArray:
        """Tombstones, columns `TOMBSTONE_COLUMNS`, as values of the column `remove`."""
        values = _file_values(files, REMOVE_FIELDS)
        values["dataChange"] = all_booleans(False, files.num_rows)
        remove_type = self.sidecar_schema.field("remove").type
        return struct_array(remove_type, [values[field.name] for field in remove_type])

    def _parse_partitions(self, files: pa.Table, wanted: pa.StructType) -> pa.StructArray:
        texts = partition_strings(FileTable(files).partition_values, [field.name for field in wanted])
        children = []
        for field in wanted:
            column = self.partition_schema.find(field.name)
            assert column is not None
            children.append(partition_column_to_arrow(one_chunk(texts[field.name]), column.data_type))
        return struct_array(wanted, children)


def _file_type(names: Sequence[str], spelling: Mapping[str, str]) -> pa.StructType:
    types = {**FILE_TYPES, "deletion_vector": _DELETION_VECTOR}
    return pa.struct([(spelling[name], types[name]) for name in names])


def _file_values(files: pa.Table, spelling: Mapping[str, str]) -> dict[str, pa.Array]:
    """Columns by their names in the log."""
    values = {}
    for name in files.column_names:
        if name in spelling:
            column = one_chunk(files[name])
            values[spelling[name]] = _deletion_vectors(column) if name == "deletion_vector" else column
    return values


def _deletion_vectors(vectors: pa.StructArray) -> pa.StructArray:
    if vectors.null_count == len(vectors):
        return pa.nulls(len(vectors), _DELETION_VECTOR)
    by_name = {DELETION_VECTOR_FIELDS[field.name]: pc.struct_field(vectors, field.name) for field in vectors.type}
    return pa.StructArray.from_arrays(
        [by_name[field.name] for field in _DELETION_VECTOR], fields=list(_DELETION_VECTOR), mask=pc.is_null(vectors)
    )


def rows_of(schema: pa.Schema, action: str, values: pa.StructArray) -> pa.Table:
    """Rows of a checkpoint that hold one kind of action each: its column has the values, all others are null."""
    columns = [values if field.name == action else pa.nulls(len(values), field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def small_actions(schema: pa.Schema, snapshot: Snapshot) -> pa.Table:
    """The rows of every action of a snapshot that is no file, nor a transaction identifier."""
    domains = (DomainMetadata(name, text) for name, text in snapshot.domain_metadata.items())
    parts: dict[str, Sequence[Action]] = {
        "protocol": [snapshot.protocol],
        "metaData": [snapshot.metadata],
        "domainMetadata": list(domains),
    }
    return _rows_of_actions(schema, parts)


def txn_rows(schema: pa.Schema, snapshot: Snapshot, piece_rows: int) -> Iterator[pa.Table]:
    """The rows of the transaction identifiers, some at a time."""
    kind = schema.field("txn").type
    for piece in in_pieces([snapshot.txn_actions.table], piece_rows):
        columns = dict(zip(("appId", "version", "lastUpdated"), map(one_chunk, piece.columns), strict=True))
        yield rows_of(schema, "txn", struct_array(kind, [columns[field.name] for field in kind]))


def v2_actions(schema: pa.Schema, metadata: CheckpointMetadata, sidecars: Sequence[Sidecar]) -> pa.Table:
    """The rows of the actions that only V2 checkpoints have (PROTOCOL, "V2 Spec")."""
    return _rows_of_actions(schema, {"checkpointMetadata": [metadata], "sidecar": sidecars})


def _rows_of_actions(schema: pa.Schema, parts: Mapping[str, Sequence[Action]]) -> pa.Table:
    rows = [
        rows_of(schema, name, _column_of(schema.field(name).type, [body_to_json(action) for action in actions]))
        for name, actions in parts.items()
    ]
    return pa.concat_tables(rows).combine_chunks()


def _column_of(data_type: pa.DataType, values: Sequence[JsonValue]) -> pa.Array:
    """Values of JSON as a column; structs from dicts."""
    if pa.types.is_struct(data_type):
        return struct_array(data_type, [_column_of(f.type, [v.get(f.name) for v in values]) for f in data_type])
    if data_type == _TEXTS:
        return _lists(values)
    return _BUILDERS[data_type](values)


_BUILDERS: Mapping[pa.DataType, Callable[[Sequence[JsonValue]], pa.Array]] = {
    _TEXT: string_array,
    _LONG: int64_array,
    pa.int32(): int32_array,
    pa.bool_(): bool_array,
    STRING_MAP: string_map_array,
}


def _lists(values: Sequence[Sequence[str] | None]) -> pa.ListArray:
    """Lists of texts, and nulls."""
    texts = string_array(list(chain.from_iterable(value or () for value in values)))
    lengths = int32_array([*accumulate((len(value or ()) for value in values), initial=0)])
    return pa.Array.from_buffers(_TEXTS, len(values), [validity_bitmap(values), lengths.buffers()[1]], children=[texts])


# Nothing repeats in paths and statistics: a dictionary of them would only be built to be thrown away.
_DICTIONARIES = [
    f"{action}.{leaf}"
    for action in ("add", "remove")
    for leaf in (
        "partitionValues.key_value.key",
        "partitionValues.key_value.value",
        "tags.key_value.key",
        "tags.key_value.value",
        "modificationTime",
        "deletionTimestamp",
    )
]


class FileRows(NamedTuple):
    """Some file actions as rows of a checkpoint file: all `add`, or all `remove`."""

    action: str
    rows: pa.Table


def oldest_tombstone_ms(snapshot: Snapshot) -> int:
    """The deletion timestamp that has just expired: tombstones as old as that are left out of checkpoints (PROTOCOL,
    "Add File and Remove File"). A clock that is fast must not make them old: none is older than the version knows."""
    now_ms = min(time.time_ns() // 1_000_000, snapshot.segment.version_file.modification_time_ms)
    return now_ms - snapshot.properties.deleted_file_retention_ms


def unexpired(tombstones: Iterable[pa.Table], expired_ms: int) -> Iterator[pa.Table]:
    """Tombstones younger than a time."""
    for rows in tombstones:
        # An action without a time counts as written at the epoch.
        yield pc.filter(rows, pc.greater(FileTable(rows).deletion_timestamp, expired_ms))


def file_rows(
    columns: CheckpointColumns,
    schema: pa.Schema,
    adds: Iterable[pa.Table],
    tombstones: Iterable[pa.Table],
    piece_rows: int,
) -> Iterator[FileRows]:
    """File actions as rows of `schema`, in tables of `piece_rows` rows, the last of each kind smaller.

    Args:
        adds: Columns of `ADD_SCHEMA`.
        tombstones: Columns `TOMBSTONE_COLUMNS`.
    """
    for piece in in_pieces((rows_of(schema, "add", columns.adds(files)) for files in adds), piece_rows):
        yield FileRows("add", piece)
    for piece in in_pieces((rows_of(schema, "remove", columns.removes(files)) for files in tombstones), piece_rows):
        yield FileRows("remove", piece)


def in_pieces(tables: Iterable[pa.Table], piece_rows: int) -> Iterator[pa.Table]:
    """The rows in tables of `piece_rows`, the last one smaller; however they were cut before. Nothing is copied."""
    pending: list[pa.Table] = []
    count = 0
    for table in tables:
        if not table.num_rows:
            continue
        pending.append(table)
        count += table.num_rows
        while count >= piece_rows:
            rows = pa.concat_tables(pending)
            yield rows.slice(0, piece_rows)
            count -= piece_rows
            pending = [rows.slice(piece_rows)]
    if count:
        yield pa.concat_tables(pending)


@contextmanager
def parquet_writer(
    sink: pa.NativeFile, schema: pa.Schema, path: str, *, is_small: bool = False
) -> Iterator[pq.ParquetWriter]:
    """Writes a checkpoint file. Errors of the disk become StorageError.

    Args:
        is_small: Of few rows: making zstd ready for each column would take longer than all the rest.
    """
    codec = "snappy" if is_small else "zstd"
    dictionaries = [name for name in _DICTIONARIES if name.partition(".")[0] in schema.names]
    try:
        with pq.ParquetWriter(sink, schema, compression=codec, use_dictionary=dictionaries) as writer:
            yield writer
    except OSError as e:
        if isinstance(e, DeltaError):
            raise
        raise storage_error(e, "write", path) from e
