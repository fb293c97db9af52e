"""Clustered tables: the columns, and the statistics every file must have of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import ColumnNotFoundError, InvalidRequestError
from delta_orch.table.column_mapping import physical_name
from tests.certain import some

if TYPE_CHECKING:
    from tests.verbs.conftest import EngineRows

ROWS = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "name": ["a", None],
        "s": pa.array([{"x": 1}, {"x": 2}], pa.struct([("x", pa.int64())])),
        "flag": [True, False],
        "l": pa.array([[1], []], pa.list_(pa.int64())),
    }
)
DOMAIN = "delta.clustering"


def clustering(table: DeltaTable) -> Any:
    stored = table.snapshot().domain_metadata.get(DOMAIN)
    return None if stored is None else orjson.loads(stored)


def test_an_existing_table_is_clustered_and_no_more(rows: EngineRows, table: DeltaTable) -> None:
    table.append(rows.data(ROWS))
    table.alter().cluster_by("ID", "s.x").commit()
    snapshot = table.snapshot()
    assert {"clustering", "domainMetadata"} <= set(some(snapshot.protocol.writer_features))
    assert clustering(table) == {"clusteringColumns": [["id"], ["s", "x"]], "domainName": DOMAIN}
    entry = table.history()[0]
    assert (entry.operation, entry.operation_parameters) == (
        "CLUSTER BY",
        {"oldClusteringColumns": "", "newClusteringColumns": "id,s.x"},
    )
    table.append(rows.data(ROWS))
    table.alter().cluster_by().commit()
    assert clustering(table) == {"clusteringColumns": [], "domainName": DOMAIN}
    assert table.alter().cluster_by().commit().skipped


def test_a_table_is_created_clustered(rows: EngineRows, table: DeltaTable) -> None:
    table.append(
        rows.data(ROWS),
        cluster_by=["name"],
        properties={"delta.columnMapping.mode": "name", "delta.dataSkippingStatsColumns": "name"},
    )
    assert clustering(table)["clusteringColumns"] == [[physical_name(some(table.snapshot().schema.find("name")))]]
    # Columns of which there are statistics in any case need not be listed.
    table.alter().cluster_by("name").commit()


@pytest.mark.parametrize(
    ("columns", "cause"),
    [
        (["flag"], "boolean"),
        (["l"], "array"),
        (["s"], "struct"),
        (["id", "id"], "twice"),
        (["id", "name", "s.x", "flag", "l"], "at most 4"),
    ],
)
def test_columns_a_table_cannot_be_clustered_by(table: DeltaTable, columns: list[str], cause: str) -> None:
    with pytest.raises(InvalidRequestError, match=cause):
        table.create(ROWS.schema, cluster_by=columns)
    table.append(ROWS)
    with pytest.raises(InvalidRequestError, match=cause):
        table.alter().cluster_by(*columns).commit()
    assert table.version() == 0


def test_a_partitioned_table_has_no_clustering_to_end(table: DeltaTable) -> None:
    """Delta on Spark refuses it, too."""
    table.create(pa.schema([("id", pa.int64()), ("p", pa.string())]), partition_by=["p"])
    with pytest.raises(InvalidRequestError, match="either partitioned or clustered"):
        table.alter().cluster_by().commit()
    assert table.version() == 0


def test_partitions_and_clusters_exclude_each_other(table: DeltaTable) -> None:
    with pytest.raises(InvalidRequestError, match="partitioned or clustered"):
        table.create(ROWS.schema, partition_by=["name"], cluster_by=["id"])
    table.create(ROWS.schema, cluster_by=["id"])
    with pytest.raises(InvalidRequestError, match="partitioned or clustered"):
        table.overwrite(ROWS, schema_mode="overwrite", partition_by=["name"])
    with pytest.raises(ColumnNotFoundError):
        table.alter().cluster_by("nope").commit()


def test_statistics_are_required_of_old_files_and_kept_for_new_ones(table: DeltaTable) -> None:
    table.append(ROWS, properties={"delta.dataSkippingStatsColumns": "name"})
    with pytest.raises(InvalidRequestError, match="No statistics are collected"):
        table.alter().cluster_by("id").commit()
    with pytest.raises(InvalidRequestError, match="1 files have no statistics of id"):
        table.alter().set_properties({"delta.dataSkippingStatsColumns": "id,name"}).cluster_by("id").commit()
    table.alter().cluster_by("name").commit()
    for alteration in (
        table.alter().set_properties({"delta.dataSkippingStatsColumns": "id"}),
        table.alter()
        .unset_properties("delta.dataSkippingStatsColumns")
        .set_properties({"delta.dataSkippingNumIndexedCols": "1"}),
    ):
        with pytest.raises(InvalidRequestError, match="No statistics are collected"):
            alteration.commit()


def test_clustering_columns_are_renamed_and_stay(rows: EngineRows, table: DeltaTable) -> None:
    table.append(rows.data(ROWS), cluster_by=["id"], properties={"delta.columnMapping.mode": "name"})
    before = clustering(table)
    table.alter().rename_column("id", "key").commit()
    assert clustering(table) == before
    with pytest.raises(InvalidRequestError, match="clustered by this column"):
        table.alter().drop_columns("key").commit()
    with pytest.raises(InvalidRequestError, match="would no longer have"):
        table.overwrite(rows.data(ROWS.select(["name"])), schema_mode="overwrite")
    table.overwrite(rows.data(ROWS.rename_columns(["key", *ROWS.column_names[1:]])))
    assert len(table.snapshot().scan().to_arrow()) == 2
