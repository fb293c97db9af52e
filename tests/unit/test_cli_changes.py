"""The commands that change rows, and `sql`, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
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


def rows(table: DeltaTable) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.snapshot().scan(columns=["id", "name"]).to_arrow().to_pylist())


def test_delete(table: DeltaTable, call: Any) -> None:
    status, told = call("delete", table.uri, "--where", "id > 1", "--dry-run")
    assert (status, told["dry_run"], table.version()) == (0, True, 0) and told["actions"]
    assert told["measured"]["numTargetFilesAfterSkipping"] == 1
    assert call("delete", table.uri, "--where", "id > 1")[0] == 0
    assert rows(table) == [(1, "a")]
    assert call("delete", table.uri, "--where", "nothing = 1")[0] == 1


def test_update(table: DeltaTable, call: Any) -> None:
    assert call("update", table.uri, "--set", "name = 'x, y'", "--set", "id = id + 10", "--where", "id < 3")[0] == 0
    assert [row[0] for row in rows(table)] == [3, 11, 12]
    assert call("update", table.uri, "--set", "name")[0] == 1
    assert call("update", table.uri, "--set", "name = 'a'", "--set", "name = 'b'")[0] == 2


def test_merge(table: DeltaTable, tmp_path: Path, call: Any) -> None:
    source = DeltaTable(tmp_path / "s")
    source.append(pa.table({"id": [3, 4], "name": ["c", "d"]}))
    assert call("merge", table.uri, source.uri, "--keys", "id", "--dry-run")[1]["dry_run"]
    assert table.version() == 0
    assert call("merge", table.uri, source.uri, "--keys", "id")[0] == 0
    assert rows(table) == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    pq.write_table(pa.table({"id": [1, 9], "name": ["gone", "new"]}), tmp_path / "rows.parquet")
    clauses = ["--when", "MATCHED THEN DELETE", "--when", "NOT MATCHED THEN INSERT (id) VALUES (source.id)"]
    assert call("merge", table.uri, str(tmp_path / "rows.parquet"), "--on", "target.id = source.id", *clauses)[0] == 0
    assert sorted(table.snapshot().scan().to_arrow()["id"].to_pylist()) == [2, 3, 4, 9]
    assert call("merge", table.uri, source.uri)[0] == 2
    assert call("merge", table.uri, str(tmp_path / "no.parquet"), "--keys", "id")[0] == 1


def test_sql(table: DeltaTable, call: Any) -> None:
    status, told = call("sql", "SELECT count(*) AS n FROM t", "--table", f"t={table.uri}")
    assert (status, told["rows"]) == (0, [{"n": 3}])
    assert call("sql", "DELETE FROM t WHERE id = 1", "--table", f"t={table.uri}", "--dry-run")[1]["dry_run"]
    assert table.version() == 0
    assert call("sql", "DELETE FROM t WHERE id = 1", "--table", f"t={table.uri}")[1]["version"] == 1
    assert call("sql", "DESCRIBE HISTORY t", "--table", f"t={table.uri}")[1]["rows"][0]["operation"] == "DELETE"
    assert call("sql", "DROP TABLE t", "--table", f"t={table.uri}")[0] == 1
    assert call("sql", "SELECT 1 AS a", "--table", "t")[0] == 2
