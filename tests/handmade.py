"""Tables made action by action: what another writer may have left, which our own would not write."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from delta_orch import DeltaTable
from delta_orch.protocol.actions import Add, AddCdcFile, Metadata, Protocol, Remove
from delta_orch.protocol.arrow_building import schema_from_arrow
from delta_orch.protocol.deletion_vector import DeletionVector
from delta_orch.protocol.paths import encode_path
from delta_orch.protocol.schema import serialize_schema
from delta_orch.protocol.types import StructType
from delta_orch.storage.open import open_store
from tests.harness.log_builder import LogBuilder


def inline_vector(*rows: int) -> Any:
    from pyroaring import BitMap64

    return DeletionVector(BitMap64(rows)).inline_descriptor()


class HandmadeTable:
    """A table directory, its files written by pyarrow."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True)
        self.root = root
        self.log = LogBuilder(open_store(root))

    def create(
        self,
        schema: pa.Schema | StructType,
        *,
        features: Sequence[str] = (),
        reader_features: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        configuration: Mapping[str, str] | None = None,
    ) -> int:
        protocol = Protocol(3, 7, tuple(reader_features), (*reader_features, *features))
        return self.log.create(
            _schema_string(schema),
            protocol=protocol,
            partition_columns=tuple(partition_by),
            configuration=dict(configuration or {}),
        )

    def metadata(self, schema: pa.Schema | StructType, **given: Any) -> Metadata:
        """Metadata that changes the schema or the configuration."""
        return Metadata(id="table", schema_string=_schema_string(schema), **given)

    def file(self, path: str, rows: pa.Table, **write: Any) -> int:
        """Write one Parquet file; gives its size in bytes."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, target, **write)
        return target.stat().st_size

    def add(self, path: str, rows: pa.Table | None = None, *, stats: bool = True, **given: Any) -> Add:
        """An add of a file, written first where rows are given."""
        write = given.pop("write", {})
        size = (self.root / path).stat().st_size if rows is None else self.file(path, rows, **write)
        num_rows = pq.read_metadata(self.root / path).num_rows
        return Add(
            **{
                "path": encode_path(path),
                "partition_values": {},
                "size": size,
                "modification_time": 0,
                "data_change": True,
                "stats": json.dumps({"numRecords": num_rows}) if stats else None,
                **given,
            }
        )

    def remove(self, path: str, **given: Any) -> Remove:
        return Remove(**{"path": encode_path(path), "data_change": True, "deletion_timestamp": 1, **given})

    def cdc(self, path: str, rows: pa.Table, **given: Any) -> AddCdcFile:
        size = self.file(path, rows)
        return AddCdcFile(**{"path": encode_path(path), "partition_values": {}, "size": size, **given})

    def commit(self, *actions: Any) -> int:
        return self.log.commit(*actions)

    def open(self) -> DeltaTable:
        return DeltaTable(self.root)


def _schema_string(schema: pa.Schema | StructType) -> str:
    return serialize_schema(schema if isinstance(schema, StructType) else schema_from_arrow(schema))
