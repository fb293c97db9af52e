"""`delta-orch sql`, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.cli.main import run


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    found = DeltaTable(tmp_path / "t")
    found.append(pa.table({"id": [1, 2, 3], "name": ["a", "b", None]}))
    return found


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Any:
    def called(*arguments: str) -> tuple[int, Any]:
        with pytest.raises(SystemExit) as end:
            run([*arguments, "--json"])
        return int(end.value.code or 0), json.loads(capsys.readouterr().out)

    return called


def test_statements_that_change_rows(table: DeltaTable, tmp_path: Path, call: Any) -> None:
    source = DeltaTable(tmp_path / "s")
    source.append(pa.table({"id": [3, 4], "name": ["c", "d"]}))
    names = ("--table", f"t={table.uri}", "--table", f"s={source.uri}")
    status, report = call("sql", "UPDATE t SET name = 'x, y', id = id + 10 WHERE id < 2", *names, "--dry-run")
    assert (status, report["dry_run"], table.version()) == (0, True, 0) and report["actions"]
    assert report["measured"]["numTargetFilesAfterSkipping"] == 1
    assert call("sql", "UPDATE t SET name = 'x, y', id = id + 10 WHERE id < 2", *names)[1]["version"] == 1
    merge = "MERGE INTO t USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    assert call("sql", merge, *names)[1]["version"] == 2
    rows = [tuple(row.values()) for row in call("sql", "SELECT id, name FROM t ORDER BY id", *names)[1]["rows"]]
    assert rows == [(2, "b"), (3, "c"), (4, "d"), (11, "x, y")]
    assert call("sql", "DELETE FROM t WHERE nothing = 1", *names)[0] == 1


def test_statements_that_change_the_table(table: DeltaTable, call: Any) -> None:
    at = f"ALTER TABLE delta.`{table.uri}`"
    report = call("sql", f"{at} ADD CONSTRAINT positive CHECK (id > 0)", "--dry-run")[1]
    assert (report["version"], report["dry_run"], table.version()) == (1, True, 0)
    assert call("sql", f"{at} ADD CONSTRAINT positive CHECK (id > 0)")[1]["version"] == 1
    failed = call("sql", f"{at} ADD CONSTRAINT named CHECK (name IS NOT NULL)")
    assert (failed[0], failed[1]["error"]["code"]) == (1, "CONSTRAINT_VIOLATION")
    assert call("sql", f"{at} SET TBLPROPERTIES ('delta.feature.domainMetadata' = 'supported')")[0] == 0
    assert table.snapshot().constraints == {"positive": "id > 0"}
    assert "domainMetadata" in table.snapshot().features


def test_sql(table: DeltaTable, call: Any) -> None:
    status, told = call("sql", "SELECT count(*) AS n FROM t", "--table", f"t={table.uri}")
    assert (status, told["rows"]) == (0, [{"n": 3}])
    assert call("sql", "DELETE FROM t WHERE id = 1", "--table", f"t={table.uri}", "--dry-run")[1]["dry_run"]
    assert table.version() == 0
    assert call("sql", "DELETE FROM t WHERE id = 1", "--table", f"t={table.uri}")[1]["version"] == 1
    assert call("sql", "DESCRIBE HISTORY t", "--table", f"t={table.uri}")[1]["rows"][0]["operation"] == "DELETE"
    assert call("sql", "DROP TABLE t", "--table", f"t={table.uri}")[0] == 1
    assert call("sql", "SELECT 1 AS a", "--table", "t")[0] == 2
