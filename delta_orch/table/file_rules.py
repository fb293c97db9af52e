"""What a table's features ask of the data files themselves."""

from __future__ import annotations

from delta_orch.protocol.actions import Protocol
from delta_orch.protocol.table_properties import TableProperties
from delta_orch.table.registry import supported_features


def keeps_partition_columns(protocol: Protocol, properties: TableProperties) -> bool:
    """Whether new files hold the partition columns, too (PROTOCOL, "Writer Requirements for IcebergCompatV1" and
    "…V2": both require it; the feature `materializePartitionColumns` and a property ask for nothing else)."""
    features = supported_features(protocol)
    return (
        "materializePartitionColumns" in features
        or properties.write_partition_columns_to_parquet
        or (properties.enable_iceberg_compat_v1 and "icebergCompatV1" in features)
        or (properties.enable_iceberg_compat_v2 and "icebergCompatV2" in features)
        or (properties.enable_iceberg_compat_v3 and "icebergCompatV3" in features)
    )


def may_shred_variants(protocol: Protocol, properties: TableProperties) -> bool:
    """Whether variants may be written shredded: only while `delta.enableVariantShredding` is on."""
    if not properties.enable_variant_shredding:
        return False
    return not supported_features(protocol).isdisjoint({"variantShredding", "variantShredding-preview"})
