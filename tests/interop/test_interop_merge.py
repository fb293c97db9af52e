"""Random merges beside Delta on Spark: the same rows, the same refusals, and each reads what the other wrote.

`DELTA_ORCH_MERGES` says how many cases run.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import ConstraintViolationError
from tests.harness.merges.cases import Case, random_case
from tests.harness.merges.model import Clause
from tests.harness.merges.run import create_table, run_merge, source_of
from tests.interop.reference_client import Reference, ReferenceError

CASES = int(os.environ.get("DELTA_ORCH_MERGES", "12"))


def statement(case: Case, table: Path, source: Path) -> str:
    """The case's merge in Spark SQL."""
    clauses = " ".join(map(_clause, case.clauses))
    return f"MERGE INTO delta.`{table}` AS t USING parquet.`{source}` AS s ON {case.on.sql} {clauses}"


def _clause(clause: Clause) -> str:
    kind = {"matched": "MATCHED", "not matched": "NOT MATCHED", "by source": "NOT MATCHED BY SOURCE"}[clause.kind]
    condition = "" if clause.condition is None else f" AND {clause.condition.sql}"
    return f"WHEN {kind}{condition} THEN {_action(clause)}"


def _action(clause: Clause) -> str:
    if clause.action == "delete":
        return "DELETE"
    if clause.values is None:
        return "UPDATE SET *" if clause.action == "update" else "INSERT *"
    if clause.action == "update":
        return "UPDATE SET " + ", ".join(f"t.{name} = {value.sql}" for name, value in clause.values.items())
    names, values = ", ".join(clause.values), ", ".join(value.sql for value in clause.values.values())
    return f"INSERT ({names}) VALUES ({values})"


def bag(rows: pa.Table) -> Counter[str]:
    names = sorted(rows.column_names)
    found: list[dict[str, Any]] = rows.select(names).to_pylist()
    return Counter(map(repr, found))


def changes(rows: pa.Table) -> Counter[str]:
    return bag(rows.drop_columns(["_commit_version", "_commit_timestamp"]))


@pytest.mark.parametrize("seed", range(CASES))
def test_a_random_merge_gives_what_delta_on_spark_gives(reference: Reference, tmp_path: Path, seed: int) -> None:
    case = random_case(seed)
    ours, theirs, source = tmp_path / "ours", tmp_path / "theirs", tmp_path / "source"
    table = create_table(case, ours)
    source.mkdir()
    pq.write_table(source_of(case), source / "rows.parquet")
    shutil.copytree(ours, theirs)
    before = table.version()
    refused = None
    try:
        reference.run(statement(case, theirs, source))
    except ReferenceError as error:
        refused = str(error)
        assert "DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE" in refused, f"{refused}\n{case.told()}"
    if refused is not None:
        with pytest.raises(ConstraintViolationError):
            run_merge(table, case, source_of(case))
        return
    result = run_merge(table, case, source_of(case))
    expected = reference.read(theirs)
    for found in (
        table.snapshot().scan().to_arrow(),
        reference.read(ours),
        DeltaTable(theirs).snapshot().scan().to_arrow(),
    ):
        assert bag(found) == bag(expected), case.told()
    if not result.skipped and case.properties["delta.enableChangeDataFeed"] == "true":
        after = before + 1
        told = reference.query(f"SELECT * FROM table_changes_by_path('{theirs}', {after}, {after})")
        assert changes(table.changes(starting_version=after).to_arrow()) == changes(told), case.told()
