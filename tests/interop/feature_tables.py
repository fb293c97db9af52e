"""One table for each feature that is written, made by the package's own verbs, and read by whoever can."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa

from delta_orch import DeltaTable, column, identity_column
from delta_orch.variant import json_to_variant
from tests.harness.row_deletion import delete_rows

Make = Callable[[DeltaTable], None]
PLAIN = (column("id", "bigint"), column("name", "string"))


def rows(start: int = 0, stop: int = 10) -> pa.Table:
    return pa.table({"id": pa.array(range(start, stop), pa.int64()), "name": [f"n{i % 3}" for i in range(start, stop)]})


def with_properties(properties: Mapping[str, str], partition_by: tuple[str, ...] = ()) -> Make:
    def make(table: DeltaTable) -> None:
        table.create(PLAIN, partition_by=partition_by, properties=properties)
        table.append(rows())
        table.append(rows(10, 20))

    return make


def with_column(extra: Any, values: pa.Array | None = None, properties: Mapping[str, str] | None = None) -> Make:
    """A column of its own; without values it is left to the table to fill."""

    def make(table: DeltaTable) -> None:
        table.create((*PLAIN, extra), properties=properties or {})
        data = rows(0, 3)
        table.append(data if values is None else data.append_column(extra.name, values))

    return make


def with_constraint(table: DeltaTable) -> None:
    with_properties({})(table)
    table.alter().add_constraint("positive", "id >= 0").commit()
    table.append(rows(20, 30))


def with_domain(table: DeltaTable) -> None:
    with_properties({"delta.feature.domainMetadata": "supported"})(table)
    table.set_domain_metadata("com.example", "{}")


def with_clustering(table: DeltaTable) -> None:
    table.create(PLAIN, cluster_by=["id"])
    table.append(rows())


def with_deletion_vectors(table: DeltaTable) -> None:
    with_properties({"delta.enableDeletionVectors": "true"})(table)
    delete_rows(table, 0, 3)


def with_v2_checkpoint(table: DeltaTable) -> None:
    with_properties({"delta.checkpointPolicy": "v2"})(table)
    table.checkpoint()
    table.append(rows(20, 30))


def with_widened_type(table: DeltaTable) -> None:
    table.create((column("id", "int"), column("name", "string")), properties={"delta.enableTypeWidening": "true"})
    table.append(pa.table({"id": pa.array([1], pa.int32()), "name": ["a"]}))
    table.alter().change_type("id", "bigint").commit()
    table.append(rows(1 << 40, (1 << 40) + 3))


def variants() -> pa.Array:
    return json_to_variant(pa.array(['{"k": 1}', '[1, "two"]', None]))


MAKE: dict[str, Make] = {
    "appendOnly": with_properties({"delta.appendOnly": "true"}),
    "invariants": with_column(column("more", "bigint", nullable=False), pa.array([1, 2, 3], pa.int64())),
    "checkConstraints": with_constraint,
    "changeDataFeed": with_properties({"delta.enableChangeDataFeed": "true"}),
    "generatedColumns": with_column(column("next", "bigint", generated_as="id + 1")),
    "columnMapping": with_properties({"delta.columnMapping.mode": "name"}, ("name",)),
    "identityColumns": with_column(identity_column("key")),
    "allowColumnDefaults": with_column(column("kind", "string", default="'plain'")),
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
    "variantType": with_column(column("v", "variant"), variants()),
    "variantShredding": with_column(column("v", "variant"), variants(), {"delta.enableVariantShredding": "true"}),
}
