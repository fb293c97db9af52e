"""One table for each feature that is written, made by the package's own verbs, and the rows it holds."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa

from delta_orch import DeltaTable, column, identity_column
from delta_orch.variant import json_to_variant
from tests.harness.row_deletion import delete_rows

Make = Callable[[DeltaTable], Any]
"""Makes a table, and gives its rows: an Arrow table, or JSON objects where a column is a variant."""

PLAIN = (column("id", "bigint"), column("name", "string"))


def rows(start: int = 0, stop: int = 10) -> pa.Table:
    return pa.table({"id": pa.array(range(start, stop), pa.int64()), "name": [f"n{i % 3}" for i in range(start, stop)]})


def with_properties(properties: Mapping[str, str], partition_by: tuple[str, ...] = ()) -> Make:
    def make(table: DeltaTable) -> pa.Table:
        table.create(PLAIN, partition_by=partition_by, properties=properties)
        table.append(rows())
        table.append(rows(10, 20))
        return rows(0, 20)

    return make


def with_column(extra: Any, values: pa.Array, *, is_filled: bool = False) -> Make:
    """A column of its own, with these values; `is_filled` leaves them to the table."""

    def make(table: DeltaTable) -> pa.Table:
        table.create((*PLAIN, extra))
        whole = rows(0, 3).append_column(extra.name, values)
        table.append(rows(0, 3) if is_filled else whole)
        return whole

    return make


def with_variants(properties: Mapping[str, str]) -> Make:
    def make(table: DeltaTable) -> list[dict[str, Any]]:
        table.create((*PLAIN, column("v", "variant")), properties=properties)
        texts = ['{"k": 1}', '[1, "two"]', None]
        table.append(rows(0, 3).append_column("v", json_to_variant(pa.array(texts))))
        return [
            {**row, "v": text and json.loads(text)} for row, text in zip(rows(0, 3).to_pylist(), texts, strict=True)
        ]

    return make


def with_constraint(table: DeltaTable) -> pa.Table:
    with_properties({})(table)
    table.alter().add_constraint("positive", "id >= 0").commit()
    table.append(rows(20, 30))
    return rows(0, 30)


def with_domain(table: DeltaTable) -> pa.Table:
    with_properties({"delta.feature.domainMetadata": "supported"})(table)
    table.set_domain_metadata("com.example", "{}")
    return rows(0, 20)


def with_clustering(table: DeltaTable) -> pa.Table:
    table.create(PLAIN, cluster_by=["id"])
    table.append(rows())
    return rows()


def with_deletion_vectors(table: DeltaTable) -> pa.Table:
    with_properties({"delta.enableDeletionVectors": "true"})(table)
    delete_rows(table, 0, 3)
    return rows(0, 20).take([i for i in range(20) if i % 10 not in (0, 3)])


def with_v2_checkpoint(table: DeltaTable) -> pa.Table:
    with_properties({"delta.checkpointPolicy": "v2"})(table)
    table.checkpoint()
    table.append(rows(20, 30))
    return rows(0, 30)


def with_widened_type(table: DeltaTable) -> pa.Table:
    table.create((column("id", "int"), column("name", "string")), properties={"delta.enableTypeWidening": "true"})
    table.append(pa.table({"id": pa.array([1], pa.int32()), "name": ["a"]}))
    table.alter().change_type("id", "bigint").commit()
    table.append(rows(1 << 40, (1 << 40) + 3))
    return pa.concat_tables([pa.table({"id": [1], "name": ["a"]}), rows(1 << 40, (1 << 40) + 3)])


def longs(*values: int) -> pa.Array:
    return pa.array(values, pa.int64())


MAKE: dict[str, Make] = {
    "appendOnly": with_properties({"delta.appendOnly": "true"}),
    "invariants": with_column(column("more", "bigint", nullable=False), longs(1, 2, 3)),
    "checkConstraints": with_constraint,
    "changeDataFeed": with_properties({"delta.enableChangeDataFeed": "true"}),
    "generatedColumns": with_column(column("next", "bigint", generated_as="id + 1"), longs(1, 2, 3), is_filled=True),
    "columnMapping": with_properties({"delta.columnMapping.mode": "name"}, ("name",)),
    "identityColumns": with_column(identity_column("key"), longs(1, 2, 3), is_filled=True),
    "allowColumnDefaults": with_column(
        column("kind", "string", default="'plain'"), pa.array(["plain"] * 3), is_filled=True
    ),
    "domainMetadata": with_domain,
    "rowTracking": with_properties({"delta.enableRowTracking": "true"}),
    "icebergCompatV1": with_properties({"delta.enableIcebergCompatV1": "true"}, ("name",)),
    "icebergCompatV2": with_properties({"delta.enableIcebergCompatV2": "true"}, ("name",)),
    "icebergCompatV3": with_properties({"delta.enableIcebergCompatV3": "true"}, ("name",)),
    "clustering": with_clustering,
    "inCommitTimestamp": with_properties({"delta.enableInCommitTimestamps": "true"}),
    "checkpointProtection": with_properties({"delta.feature.checkpointProtection": "supported"}),
    "materializePartitionColumns": with_properties(
        {"delta.feature.materializePartitionColumns": "supported"}, ("name",)
    ),
    "timestampNtz": with_column(
        column("at", "timestamp_ntz"), pa.array([datetime(2024, 1, 1), None, datetime(1, 1, 1)], pa.timestamp("us"))
    ),
    "deletionVectors": with_deletion_vectors,
    "v2Checkpoint": with_v2_checkpoint,
    "vacuumProtocolCheck": with_properties({"delta.feature.vacuumProtocolCheck": "supported"}),
    "typeWidening": with_widened_type,
    "geospatial": with_column(
        column("place", "geometry"),
        pa.array([struct.pack("<BIdd", 1, 1, 8.5, 47.4), None, struct.pack("<BIdd", 1, 1, -0.1, 51.5)], pa.binary()),
    ),
    "variantType": with_variants({}),
    "variantShredding": with_variants({"delta.enableVariantShredding": "true"}),
}
