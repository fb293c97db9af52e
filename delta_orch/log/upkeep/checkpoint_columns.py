"""Actions as rows of a checkpoint: one struct column a kind of action (PROTOCOL, "Checkpoint Schema")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.log.files.arrow_building import (
    all_booleans,
    bool_array,
    int64_array,
    one_chunk,
    string_array,
    string_map_array,
    struct_array,
)
from delta_orch.log.files.file_columns import STRING_MAP, FileTable
from delta_orch.log.files.partition_columns import partition_strings
from delta_orch.log.files.stats_columns import parse_stats, stats_type
from delta_orch.protocol.action_json import (
    ADD_FIELDS,
    DELETION_VECTOR_FIELDS,
    PARTITION_VALUES_PARSED,
    REMOVE_FIELDS,
    STATS_PARSED,
)
from delta_orch.protocol.actions import CheckpointMetadata, Sidecar
from delta_orch.protocol.arrow_types import type_to_arrow
from delta_orch.protocol.partition_values import partition_column_to_arrow
from delta_orch.protocol.types import StructType
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
_DELETION_VECTOR = pa.struct(
    [
        ("storageType", _TEXT),
        ("pathOrInlineDv", _TEXT),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", _LONG),
    ]
)
_CHECKPOINT_METADATA = pa.struct([("version", _LONG), ("tags", STRING_MAP)])
_SIDECAR = pa.struct([("path", _TEXT), ("sizeInBytes", _LONG), ("modificationTime", _LONG), ("tags", STRING_MAP)])
_OTHERS = (("metaData", _METADATA), ("protocol", _PROTOCOL), ("domainMetadata", _DOMAIN_METADATA))
_FILE_TYPES: Mapping[str, pa.DataType] = {
    "path": _TEXT,
    "partition_values": STRING_MAP,
    "size": _LONG,
    "modification_time": _LONG,
    "data_change": pa.bool_(),
    "stats": _TEXT,
    "tags": STRING_MAP,
    "deletion_vector": _DELETION_VECTOR,
    "base_row_id": _LONG,
    "default_row_commit_version": _LONG,
    "clustering_provider": _TEXT,
    "deletion_timestamp": _LONG,
    "extended_file_metadata": pa.bool_(),
}
# Tombstones serve vacuum alone: without statistics and tags (PROTOCOL, "Checkpoints").
TOMBSTONE_COLUMNS = tuple(name for name in REMOVE_FIELDS if name not in ("stats", "tags"))


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
        names = [name for name in ADD_FIELDS if name != "stats" or self.stats_as_json]
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
        wanted = self.sidecar_schema.field("remove").type
        return struct_array(wanted, [values[field.name] for field in wanted])

    def _parse_partitions(self, files: pa.Table, wanted: pa.StructType) -> pa.StructArray:
        texts = partition_strings(FileTable(files).partition_values, [field.name for field in wanted])
        children = []
        for field in wanted:
            column = self.partition_schema.find(field.name)
            assert column is not None
            children.append(partition_column_to_arrow(one_chunk(texts[field.name]), column.data_type))
        return struct_array(wanted, children)


def _file_type(names: Sequence[str], spelling: Mapping[str, str]) -> pa.StructType:
    return pa.struct([(spelling[name], _FILE_TYPES[name]) for name in names])


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
        [by_name[field.name] for field in _DELETION_VECTOR], fields=list(_DELETION_VECTOR), mask=vectors.is_null()
    )


def rows_of(schema: pa.Schema, action: str, values: pa.StructArray) -> pa.Table:
    """Rows of a checkpoint that hold one kind of action each: its column has the values, all others are null."""
    columns = [values if field.name == action else pa.nulls(len(values), field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def small_actions(schema: pa.Schema, snapshot: Snapshot) -> pa.Table:
    """The rows of every action of a snapshot that is no file."""
    parts = {
        "protocol": _protocol(snapshot),
        "metaData": _metadata(snapshot),
        "txn": _txns(snapshot),
        "domainMetadata": _domain_metadata(snapshot),
    }
    return pa.concat_tables([rows_of(schema, name, part) for name, part in parts.items()]).combine_chunks()


def v2_actions(schema: pa.Schema, metadata: CheckpointMetadata, sidecars: Sequence[Sidecar]) -> pa.Table:
    """The rows of the actions that only V2 checkpoints have (PROTOCOL, "V2 Spec")."""
    described = struct_array(_CHECKPOINT_METADATA, [int64_array([metadata.version]), string_map_array([metadata.tags])])
    listed = struct_array(
        _SIDECAR,
        [
            string_array([s.path for s in sidecars]),
            int64_array([s.size_in_bytes for s in sidecars]),
            int64_array([s.modification_time for s in sidecars]),
            string_map_array([s.tags for s in sidecars]),
        ],
    )
    parts = [rows_of(schema, "checkpointMetadata", described), rows_of(schema, "sidecar", listed)]
    return pa.concat_tables(parts).combine_chunks()


def _protocol(snapshot: Snapshot) -> pa.StructArray:
    protocol = snapshot.protocol
    return struct_array(
        _PROTOCOL,
        [
            pc.cast(int64_array([protocol.min_reader_version]), pa.int32()),
            pc.cast(int64_array([protocol.min_writer_version]), pa.int32()),
            _one_list(protocol.reader_features),
            _one_list(protocol.writer_features),
        ],
    )


def _metadata(snapshot: Snapshot) -> pa.StructArray:
    metadata = snapshot.metadata
    table_format = struct_array(
        _METADATA.field("format").type,
        [string_array([metadata.format.provider]), string_map_array([metadata.format.options])],
    )
    return struct_array(
        _METADATA,
        [
            string_array([metadata.id]),
            string_array([metadata.name]),
            string_array([metadata.description]),
            table_format,
            string_array([metadata.schema_string]),
            _one_list(metadata.partition_columns),
            int64_array([metadata.created_time]),
            string_map_array([metadata.configuration]),
        ],
    )


def _txns(snapshot: Snapshot) -> pa.StructArray:
    txns = list(snapshot.txn_actions.values())
    return struct_array(
        _TXN,
        [
            string_array([txn.app_id for txn in txns]),
            int64_array([txn.version for txn in txns]),
            int64_array([txn.last_updated for txn in txns]),
        ],
    )


def _domain_metadata(snapshot: Snapshot) -> pa.StructArray:
    domains = snapshot.domain_metadata
    return struct_array(
        _DOMAIN_METADATA,
        [string_array(list(domains)), string_array(list(domains.values())), bool_array([False] * len(domains))],
    )


def _one_list(texts: Sequence[str] | None) -> pa.ListArray:
    """A column of one row that holds the texts, or null."""
    if texts is None:
        return pa.nulls(1, _TEXTS)
    offsets = pc.cast(int64_array([0, len(texts)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, string_array(texts))
