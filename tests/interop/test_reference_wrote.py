"""Tables that Delta on Spark creates with each feature: read, appended to, checkpointed by us, and read by it again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.table.registry import supported_features
from tests.harness.row_multiset import ensure_same_rows
from tests.interop.reference_client import Reference


@dataclass(frozen=True)
class Made:
    """How the reference implementation makes a table.

    Attributes:
        columns: Of CREATE TABLE.
        properties: Of CREATE TABLE.
        then: Statements that follow; `{t}` is the table.
        rows: What we append, values by column name.
        features: Table features the result must support.
        clause: PARTITIONED BY or CLUSTER BY.
    """

    columns: str = "id BIGINT, name STRING"
    properties: str = ""
    then: tuple[str, ...] = ("INSERT INTO {t} VALUES (1, 'a'), (2, NULL), (3, 'ü')",)
    rows: tuple[tuple[int, str], ...] = ((10, "ours"), (11, "too"))
    features: tuple[str, ...] = ()
    clause: str = ""


DELETED = ("INSERT INTO {t} SELECT id, CAST(id AS STRING) FROM range(100)", "DELETE FROM {t} WHERE id % 7 = 0")
MADE = {
    "plain": Made(),
    "partitioned": Made(clause="PARTITIONED BY (name)"),
    "append-only": Made(properties="'delta.appendOnly'='true'", features=("appendOnly",)),
    "change-feed": Made(
        properties="'delta.enableChangeDataFeed'='true'",
        then=(*DELETED, "UPDATE {t} SET name = 'x' WHERE id = 3"),
        features=("changeDataFeed",),
    ),
    "check-constraint": Made(
        then=("INSERT INTO {t} VALUES (1, 'a')", "ALTER TABLE {t} ADD CONSTRAINT positive CHECK (id > 0)"),
        features=("checkConstraints",),
    ),
    "not-null": Made(columns="id BIGINT NOT NULL, name STRING", features=("invariants",)),
    "column-mapping-name": Made(
        columns="id BIGINT, old STRING, gone INT",
        properties="'delta.columnMapping.mode'='name'",
        then=(
            "INSERT INTO {t} VALUES (1, 'a', 1)",
            "ALTER TABLE {t} RENAME COLUMN old TO name",
            "ALTER TABLE {t} DROP COLUMN gone",
            "INSERT INTO {t} VALUES (2, 'b')",
        ),
        features=("columnMapping",),
    ),
    "column-mapping-id": Made(
        properties="'delta.columnMapping.mode'='id'", clause="PARTITIONED BY (name)", features=("columnMapping",)
    ),
    "deletion-vectors": Made(
        properties="'delta.enableDeletionVectors'='true'", then=DELETED, features=("deletionVectors",)
    ),
    "row-tracking": Made(
        properties="'delta.enableRowTracking'='true', 'delta.enableDeletionVectors'='true'",
        then=(*DELETED, "UPDATE {t} SET name = 'x' WHERE id = 3"),
        features=("rowTracking", "domainMetadata"),
    ),
    "in-commit-timestamps": Made(properties="'delta.enableInCommitTimestamps'='true'", features=("inCommitTimestamp",)),
    "in-commit-timestamps-later": Made(
        then=(
            "INSERT INTO {t} VALUES (1, 'a')",
            "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableInCommitTimestamps'='true')",
        ),
        features=("inCommitTimestamp",),
    ),
    "v2-checkpoints": Made(
        properties="'delta.checkpointPolicy'='v2', 'delta.checkpointInterval'='2'",
        then=("INSERT INTO {t} VALUES (1, 'a')",) * 5,
        features=("v2Checkpoint",),
    ),
    "type-widening": Made(
        columns="id INT, name STRING",
        properties="'delta.enableTypeWidening'='true'",
        then=("INSERT INTO {t} VALUES (1, 'a')", "ALTER TABLE {t} ALTER COLUMN id TYPE BIGINT"),
        features=("typeWidening",),
    ),
    "clustering": Made(clause="CLUSTER BY (id)", features=("clustering", "domainMetadata")),
    "generated-column": Made(
        columns="id BIGINT, name STRING, next BIGINT GENERATED ALWAYS AS (id + 1)",
        then=("INSERT INTO {t} (id, name) VALUES (1, 'a')",),
        features=("generatedColumns",),
    ),
    "identity-column": Made(
        columns="id BIGINT, name STRING, key BIGINT GENERATED ALWAYS AS IDENTITY (START WITH 5 INCREMENT BY 3)",
        then=("INSERT INTO {t} (id, name) VALUES (1, 'a'), (2, 'b')",),
        features=("identityColumns",),
    ),
    "default-column": Made(
        columns="id BIGINT, name STRING, kind STRING DEFAULT 'plain'",
        properties="'delta.feature.allowColumnDefaults'='supported'",
        then=("INSERT INTO {t} (id, name) VALUES (1, 'a')",),
        features=("allowColumnDefaults",),
    ),
    "timestamp-ntz": Made(
        columns="id BIGINT, name STRING, at TIMESTAMP_NTZ",
        then=("INSERT INTO {t} VALUES (1, 'a', TIMESTAMP_NTZ '2024-01-01 12:00:00.123456')",),
        features=("timestampNtz",),
    ),
    "variant": Made(
        columns="id BIGINT, name STRING, v VARIANT",
        then=("""INSERT INTO {t} SELECT 1, 'a', parse_json('{{"k": [1, 2.5, null]}}')""",),
        features=("variantType",),
    ),
    "iceberg-compat-v1": Made(
        properties="'delta.enableIcebergCompatV1'='true', 'delta.columnMapping.mode'='name'",
        features=("icebergCompatV1", "columnMapping"),
    ),
    "iceberg-compat-v2": Made(
        properties="'delta.enableIcebergCompatV2'='true', 'delta.columnMapping.mode'='name'",
        features=("icebergCompatV2", "columnMapping"),
    ),
    "iceberg-compat-v3": Made(
        properties="'delta.enableIcebergCompatV3'='true'", features=("icebergCompatV3", "columnMapping", "rowTracking")
    ),
    "vacuum-protocol-check": Made(
        properties="'delta.feature.vacuumProtocolCheck'='supported'", features=("vacuumProtocolCheck",)
    ),
    "checkpoint-protection": Made(
        properties="'delta.feature.checkpointProtection'='supported'", features=("checkpointProtection",)
    ),
}


def make(reference: Reference, path: Path, made: Made) -> DeltaTable:
    name = f"delta.`{path}`"
    properties = f"TBLPROPERTIES ({made.properties})" if made.properties else ""
    create = f"CREATE TABLE {name} ({made.columns}) USING delta {made.clause} {properties}"
    reference.run(create, *(statement.format(t=name) for statement in made.then))
    return DeltaTable(path)


def ensure_agreed(reference: Reference, table: DeltaTable, path: Path) -> None:
    """Both read the same rows, column by column."""
    theirs = reference.query(f"SELECT {_columns(table)} FROM delta.`{path}`")
    ours = table.snapshot().scan().to_arrow()
    shown = [name for name in ours.column_names if name in theirs.column_names]
    ensure_same_rows(ours.select(shown), theirs.select(shown))
    count = reference.run(f"SELECT count(*) AS n FROM delta.`{path}`")
    assert count == [{"n": ours.num_rows}]


def _columns(table: DeltaTable) -> str:
    """Variants come as their JSON, which is compared where they are tested."""
    return ", ".join(f"`{f.name}`" for f in table.snapshot().schema if str(f.data_type) != "variant")


@pytest.mark.parametrize("name", MADE)
def test_read_append_checkpoint(reference: Reference, tmp_path: Path, name: str) -> None:
    made = MADE[name]
    table = make(reference, tmp_path, made)
    assert set(made.features) <= supported_features(table.snapshot().protocol)
    ensure_agreed(reference, table, tmp_path)
    before = table.snapshot().scan(columns=["id"]).to_arrow().num_rows
    ids, names = zip(*made.rows, strict=True)
    rows = pa.table({"id": pa.array(ids, pa.int64()), "name": pa.array(names)})
    table.append(_completed(table, rows), txn=("interop", 1))
    assert table.append(_completed(table, rows), txn=("interop", 1)).skipped
    ensure_agreed(reference, table, tmp_path)
    table.checkpoint()
    # The reference keeps what it has read: only a cold look proves that the checkpoint can be read.
    reference.run("CLEAR CACHE", f"REFRESH TABLE delta.`{tmp_path}`")
    ensure_agreed(reference, DeltaTable(tmp_path), tmp_path)
    assert table.snapshot().scan(columns=["id"]).to_arrow().num_rows == before + len(ids)


def _completed(table: DeltaTable, rows: pa.Table) -> pa.Table:
    """With nulls for the columns that nothing else fills."""
    for field in table.snapshot().schema:
        if field.name == "at":
            rows = rows.append_column("at", pa.nulls(rows.num_rows, pa.timestamp("us")))
        if field.name == "v":
            rows = rows.append_column(
                "v", pa.nulls(rows.num_rows, pa.struct([("metadata", pa.binary()), ("value", pa.binary())]))
            )
    return rows
