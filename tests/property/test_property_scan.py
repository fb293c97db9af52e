"""Any table, any predicate, any columns: a scan that leaves out files gives what a scan of all files gives once it is
filtered; and both engines give the same rows."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.select import spark_engine
from delta_orch.errors import UnsupportedExpressionError
from delta_orch.expressions.to_arrow import arrow_predicate
from delta_orch.expressions.tree import is_opaque
from tests.families import family
from tests.harness.results import Scan
from tests.harness.row_multiset import ensure_same_rows
from tests.property.expression_samples import random_predicates
from tests.property.random_tables import RandomTable, random_columns, random_table


def unpruned_rows(made: RandomTable, scan: Scan) -> pa.Table:
    """The rows of all files, filtered afterwards."""
    engine, snapshot = LocalEngine(), made.table.snapshot()
    plan = scan.plan()
    if plan.where is not None and not is_opaque(plan.where):
        return _projected(made.rows.filter(arrow_predicate(plan.where, snapshot.schema)(made.rows)), scan)
    # Text that only DuckDB evaluates: it does so over all files.
    return engine.to_arrow(engine.scan(replace(plan, files=snapshot.files())))


def _projected(rows: pa.Table, scan: Scan) -> pa.Table:
    if scan._projection is None:
        return rows
    columns = {}
    for column in scan._projection.output:
        values = rows[column.path[0]]
        for name in column.path[1:]:
            values = pa.chunked_array([chunk.flatten()[_index(chunk, name)] for chunk in values.chunks] or [[]],
                                      values.type.field(name).type)  # fmt: skip
        columns[column.name] = values
    return pa.table(columns)


def _index(array: pa.StructArray, name: str) -> int:
    return [field.name for field in array.type].index(name)


def asked(seed: int, count: int) -> list[tuple[str, list[str] | None]]:
    draw = random.Random(seed)
    return [(predicate, random_columns(draw)) for predicate in random_predicates(seed, count)]


@family("seed", range(8), every=8)
def test_skipping_files_changes_no_answer(tmp_path: Path, seed: int) -> None:
    made = random_table(tmp_path / "t", seed)
    snapshot = made.table.snapshot()
    ensure_same_rows(snapshot.scan().to_arrow(), made.rows)
    skipped = refused = 0
    for predicate, columns in asked(seed, 30):
        scan = snapshot.scan(columns, predicate)
        skipped += snapshot.num_files - scan.plan().files.num_rows
        try:
            rows = scan.to_arrow()
        except UnsupportedExpressionError:
            refused += 1
            continue
        expected = unpruned_rows(made, scan)
        assert rows.column_names == list(scan.schema.names) == expected.column_names
        try:
            ensure_same_rows(rows, expected)
        except AssertionError as e:
            raise AssertionError(f"{made.what}\n{columns} where {predicate}\n{e}") from None
    assert refused < 15
    assert skipped > 0, made.what


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("seed", [100, 101, 102])
def test_both_engines_give_the_same_rows(spark: Any, tmp_path: Path, seed: int) -> None:
    made = random_table(tmp_path / "t", seed, num_rows=60)
    engine, snapshot = spark_engine(spark), made.table.snapshot()
    ensure_same_rows(engine.to_arrow(snapshot.scan().to_relation(engine)), made.rows)
    compared = 0
    for predicate, columns in asked(seed, 12):
        scan = snapshot.scan(columns, predicate)
        on_spark = engine.to_arrow(scan.to_relation(engine))
        try:
            local = scan.to_arrow()
        except UnsupportedExpressionError:
            continue
        compared += 1
        assert on_spark.column_names == local.column_names
        try:
            ensure_same_rows(on_spark, local)
        except AssertionError as e:
            raise AssertionError(f"{made.what}\n{columns} where {predicate}\n{e}") from None
    assert compared > 6
