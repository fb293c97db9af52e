"""Statements of SQL on Spark: the same rows as on the local engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import delta_orch
from delta_orch import DeltaTable
from delta_orch.engines.spark.engine import SparkEngine

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("day", pa.date32())])
CREATED = (
    "CREATE OR REPLACE TABLE delta.`{other}` PARTITIONED BY (`odd k`) COMMENT 'c' "
    "TBLPROPERTIES ('delta.columnMapping.mode' = 'name') AS"
)
SCRIPT = [
    "INSERT INTO t VALUES (1, 'a', DATE '2024-01-01'), (2, 'it''s; -- no', DATE '2024-01-02'), (3, NULL, NULL)",
    "UPDATE t AS x SET x.name = concat(x.name, ' x.name', `x`.name) WHERE X.id = 1",
    "INSERT INTO t VALUES (4, 'p', DATE '2024-01-01')",
    "INSERT INTO t SELECT id + 20 AS i, name, DATE '2024-01-03' AS d FROM t WHERE id = 4",
    "INSERT INTO t (day, id) SELECT day, id + 10 AS i FROM t WHERE id = 4",
    "INSERT INTO t BY NAME SELECT 'n' AS NAME, 5 AS id",
    "INSERT INTO t (id, day) VALUES (6, DATE '2024-05-05')",
    "INSERT OVERWRITE TABLE t REPLACE WHERE day = DATE '2024-01-01' SELECT 20 AS a, 'only' AS b, DATE '2024-01-01'",
    "INSERT OVERWRITE t REPLACE WHERE day = '2024-01-02' SELECT 7 AS a, 'b' AS b, DATE '2024-01-02' AS c",
    "INSERT OVERWRITE t REPLACE WHERE day IS NULL VALUES (21, 'null', NULL)",
    "INSERT INTO t WITH u AS (SELECT id + 100 AS id, name, day FROM t), w AS (SELECT * FROM u) SELECT * FROM w",
    "MERGE INTO t USING (WITH u AS (SELECT id FROM t WHERE id > 110) SELECT * FROM u) u ON t.id = u.id "
    "WHEN MATCHED THEN DELETE",
    "MERGE INTO t USING (SELECT id + 1 AS id, 'm' AS name, day FROM t WHERE id < 8) x ON t.id = x.id "
    "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
    """MERGE INTO t AS tgt USING s AS src ON tgt.id = src.id WHEN MATCHED AND src.name IS NULL THEN DELETE
    WHEN MATCHED THEN UPDATE SET tgt.name = src.name
    WHEN NOT MATCHED BY TARGET THEN INSERT (id, name) VALUES (src.id, src.name)
    WHEN NOT MATCHED BY SOURCE AND tgt.id > 100 THEN UPDATE SET name = 'gone'""",
    "DELETE FROM t x WHERE x.id = 7 OR x.name = 'x.id'",
    "OPTIMIZE t WHERE day = '2024-01-02'",
    f"{CREATED} SELECT id AS `odd k`, name FROM t WHERE id < 100",
    f"{CREATED} SELECT name AS `odd k`, `odd k` + 1 AS n FROM delta.`{{other}}`",
]
QUERIES = [
    "SELECT * FROM t",
    "SELECT * FROM delta.`{other}`",
    "SELECT id, count(*) AS n FROM t VERSION AS OF 2 WHERE id < 3 GROUP BY id",
    "SELECT a.id FROM t a JOIN t VERSION AS OF 1 AS b ON a.id = b.id",
    "WITH u AS (SELECT id FROM t) SELECT id FROM u",
    "SELECT _change_type, id, name, _commit_version FROM table_changes('t', 1) WHERE id < 30",
]


def answers(root: Path, engine: Any) -> list[Any]:
    """What each statement leaves or returns, rows in order of their text."""
    table, other = DeltaTable(root / "odd `name"), root / "the other"
    table.create(SCHEMA, partition_by=["day"], properties={"delta.enableChangeDataFeed": "true"})
    source = pa.table({"id": [7, 20, 8], "name": ["new", None, "ins"]})
    found: list[Any] = []
    for text in SCRIPT:
        delta_orch.sql(text.format(other=other), engine=engine, tables={"T": table, "s": source})
        found.append((text, rows_of(table.snapshot().scan().to_arrow())))
    for text in QUERIES:
        answer: Any = delta_orch.sql(text.format(other=other), engine=engine, tables={"T": table})
        assert isinstance(answer, pa.Table) == (engine == "local")
        found.append((text, rows_of(answer if engine == "local" else pa.table(answer.toArrow()))))
    replaced = DeltaTable(other).snapshot()
    found.append((replaced.partition_columns, replaced.metadata.description, dict(replaced.metadata.configuration)))
    return found


def rows_of(table: pa.Table) -> list[str]:
    return sorted(repr(list(row.items())) for row in table.to_pylist())


@pytest.mark.long
def test_statements_leave_the_rows_of_the_local_engine(classic: SparkEngine, tmp_path: Path) -> None:
    expected = answers(tmp_path / "local", "local")
    for one, other in zip(answers(tmp_path / "spark", classic), expected, strict=True):
        assert one == other
