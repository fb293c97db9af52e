"""Run random merges on an engine and hold each against the model.

`python -m tests.harness.merges --cases 300 --first-seed 0` does so on the local engine, `--spark` on Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from delta_orch import DeltaTable
from delta_orch.errors import ConstraintViolationError
from tests.harness.merges.cases import SCHEMA, SOURCE_SCHEMA, Case, random_case
from tests.harness.merges.model import Clause, Row, SeveralMatches, merged

Data = Callable[[pa.Table], Any]
"""Makes a source of an Arrow table."""


def create_table(case: Case, location: Path) -> DeltaTable:
    """The table of a case, one file an append or more."""
    table = DeltaTable(location)
    partition_by = ["p"] if case.partitioned else None
    table.create(SCHEMA, partition_by=partition_by, properties=case.properties)
    for rows in case.target:
        table.append(pa.Table.from_pylist(rows, SCHEMA))
    return table


def source_of(case: Case) -> pa.Table:
    """The rows of a case's source."""
    return pa.Table.from_pylist(case.source, SOURCE_SCHEMA)


def run_merge(table: DeltaTable, case: Case, source: Any) -> Any:
    """The case's merge, by the public builder."""
    merge = table.merge(source, case.on.sql, source_alias="s", target_alias="t")
    return add_clauses(merge, case.clauses).execute()


def add_clauses(merge: Any, clauses: Iterable[Clause]) -> Any:
    """Give a merge its clauses. Returns the merge."""
    for clause in clauses:
        condition = None if clause.condition is None else clause.condition.sql
        values = None if clause.values is None else {name: value.sql for name, value in clause.values.items()}
        match clause.kind, clause.action:
            case "matched", "update":
                if values is None:
                    merge.when_matched_update_all(condition)
                else:
                    merge.when_matched_update(values, condition)
            case "matched", _:
                merge.when_matched_delete(condition)
            case "not matched", _:
                if values is None:
                    merge.when_not_matched_insert_all(condition)
                else:
                    merge.when_not_matched_insert(values, condition)
            case _, "update":
                assert values is not None
                merge.when_not_matched_by_source_update(values, condition)
            case _:
                merge.when_not_matched_by_source_delete(condition)
    return merge


def check_case(seed: int, location: Path, make: Data = lambda rows: rows) -> None:
    """Run the case of a seed in an empty directory. Raises AssertionError, with the case, where the result is wrong."""
    case = random_case(seed)
    table = create_table(case, location)
    target = [row for rows in case.target for row in rows]
    before, ids = table.version(), _ids(table, case)
    try:
        expected = merged(target, case.source, case.on.holds, case.clauses)
    except SeveralMatches:
        try:
            run_merge(table, case, make(source_of(case)))
        except ConstraintViolationError as error:
            assert error.context["constraint"] == "cardinality", case.told()
        else:
            raise AssertionError(f"Several matches went unnoticed\n{case.told()}")
        assert table.version() == before, case.told()
        return
    result = run_merge(table, case, make(source_of(case)))
    found = table.snapshot().scan().to_arrow().to_pylist()
    assert _bag(found) == _bag(expected.rows), f"{case.told()}\nfound {found}\nexpected {expected.rows}"
    assert result.skipped == (not expected.changes), case.told()
    if not expected.changes:
        assert table.version() == before, case.told()
        return
    _check_metrics(result.operation_metrics, expected.changes, case)
    if case.properties["delta.enableChangeDataFeed"] == "true":
        _check_feed(table, result.version, expected.changes, case)
    if case.properties["delta.enableRowTracking"] == "true":
        _check_ids(table, ids, expected.updated, result.version, case)


def _check_metrics(metrics: Any, changes: Iterable[tuple[str, Row]], case: Case) -> None:
    told = Counter(kind for kind, _ in changes)
    names = {"Inserted": "insert", "Updated": "update_postimage", "Deleted": "delete"}
    for name, kind in names.items():
        assert metrics[f"numTargetRows{name}"] == told[kind], f"{name} {metrics}\n{case.told()}"
    assert metrics["numSourceRows"] == len(case.source), case.told()


def _check_feed(table: DeltaTable, version: int, changes: Iterable[tuple[str, Row]], case: Case) -> None:
    feed = table.changes(starting_version=version).to_arrow().to_pylist()
    found = Counter((row.pop("_change_type"), _key(_without_commit(row))) for row in feed)
    expected = Counter((kind, _key(row)) for kind, row in changes)
    assert found == expected, f"{case.told()}\nfeed {found}\nexpected {expected}"


def _without_commit(row: Row) -> Row:
    return {name: value for name, value in row.items() if not name.startswith("_commit")}


def _check_ids(table: DeltaTable, ids: dict[int, tuple[int, int]], updated: Any, version: int, case: Case) -> None:
    """Every row that was there keeps its id, and its version unless it is updated; no id is given twice."""
    numbers = Counter(table.snapshot().scan(columns=["u"]).to_arrow().column("u").to_pylist())
    rows = table.snapshot().scan(columns=["u"], row_tracking=True).to_arrow()
    assert len(set(rows.column("row_id").to_pylist())) == rows.num_rows, case.told()
    renamed = {new["u"]: old["u"] for old, new in updated}
    for number, (row_id, row_version) in _ids(table, case).items():
        if numbers[number] > 1:
            continue  # `u` of one source row went into several rows
        if number in renamed:
            assert row_id == ids[renamed[number]][0] and row_version == version, f"{number}\n{case.told()}"
        elif number in ids:
            assert (row_id, row_version) == ids[number], f"{number}\n{case.told()}"
        else:
            assert row_version == version, f"{number}\n{case.told()}"


def _ids(table: DeltaTable, case: Case) -> dict[int, tuple[int, int]]:
    if case.properties["delta.enableRowTracking"] != "true":
        return {}
    rows = table.snapshot().scan(columns=["u"], row_tracking=True).to_arrow().to_pylist()
    return {row["u"]: (row["row_id"], row["row_commit_version"]) for row in rows}


def _bag(rows: Iterable[Row]) -> Counter[str]:
    return Counter(map(_key, rows))


def _key(row: Row) -> str:
    return repr(sorted(row.items()))
