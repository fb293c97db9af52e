"""Generated columns and checks mean the same on both engines, for every construct the local one does not refuse."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch.engines.base import ComputedColumn, RowCheck, WriteSpec
from delta_orch.engines.local.duckdb_requests import evaluator
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.local.row_checks import batch_checks
from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.errors import ConstraintViolationError, UnsupportedExpressionError
from delta_orch.expressions.checked import check_expression
from delta_orch.protocol.schema import parse_schema
from delta_orch.protocol.types import StructField, StructType
from delta_orch.storage.open import open_store
from delta_orch.writing.row_rules import condition_of, value_of
from tests.property.expression_samples import SCHEMA, random_predicates, sample_table

pytestmark = pytest.mark.spark

GENERATED = [
    "i % 100 + 1", "l % 7 * 3L", "x * 2", "x / 3", "f + f", "b % 5Y - 1Y", "-(sh % 1000)", "abs(x)", "d5", "-d5",
    "CAST(ts AS DATE)", "year(ts)", "month(day)", "day(n)", "quarter(day)", "hour(ts)", "date_add(day, 1)",
    "datediff(day, DATE '2000-01-01')", "length(S)", "concat(S, '-', `we``ird`)", "S || 'x'", "trim(S)",
    "substring(S, 1, 2)", "S LIKE 'a%'", "startswith(S, 'a')", "coalesce(i, 0)", "coalesce(S, 'none')",
    "greatest(i, 0)", "least(x, 0.5D)", "nullif(i, 5)", "CASE WHEN bo THEN 'yes' WHEN i > 0 THEN S END",
    "if(bo, i, l)", "bo AND i > 0", "i IN (1, 5, NULL)", "`col.dot`", "st.A", "st.`b.c`", "CAST(i AS STRING)",
    "CAST(i AS DOUBLE)", "CAST(day AS TIMESTAMP)", "isnan(x)", "day BETWEEN '2013-01-01' AND '2013-01-02'",
]  # fmt: skip
NUM_PREDICATES = 120


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return sample_table(11)


def comparable(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return {k: comparable(v) for k, v in value.items()}
    return value


@pytest.mark.long
def test_generated_columns(spark: Any, table: pa.Table, tmp_path: Path) -> None:
    engine = SparkEngine(spark)
    source = engine.relation(table)
    # `relation` goes by Spark's own reading of zone-less timestamps: the table's schema decides.
    types = parse_schema(source.selectExpr(*(f"{sql} AS g{i}" for i, sql in enumerate(GENERATED))).schema.json())
    kept = [i for i, sql in enumerate(GENERATED) if _runs_locally(sql)]
    assert len(kept) > 35
    schema = StructType((*SCHEMA, *(StructField(f"g{i}", types.fields[i].data_type) for i in kept)))
    generated = tuple(ComputedColumn(f"g{i}", value_of(check_expression(GENERATED[i], "it"))) for i in kept)
    found = []
    for name, writer, rows in (("local", LocalEngine(), table), ("spark", engine, source)):
        store = open_store(str(tmp_path / name))
        adds = writer.write(writer.relation(rows), WriteSpec(store, schema, (), generated=generated))
        read = pa.concat_tables([pq.read_table(tmp_path / name / path) for path in adds["path"].to_pylist()])
        read = read.sort_by("id").select(["id", *(column.name for column in generated)])
        # Days beyond the years Python knows.
        days = [pa.int32() if pa.types.is_date32(kind) else kind for kind in read.schema.types]
        found.append(read.cast(pa.schema(list(zip(read.column_names, days, strict=True)))).to_pylist())
    for ours, theirs in zip(*found, strict=True):
        for column in generated:
            assert comparable(ours[column.name]) == comparable(theirs[column.name]), (column.value, ours["id"])


def _runs_locally(sql: str) -> bool:
    try:
        evaluator([ComputedColumn("c", value_of(check_expression(sql, "it")))], SCHEMA)
    except UnsupportedExpressionError:
        return False
    return True


def test_checks_refuse_the_same_rows(spark: Any, table: pa.Table) -> None:
    predicates = list(random_predicates(random.Random(3).randint(0, 10**6), NUM_PREDICATES))
    source = SparkEngine(spark).relation(table)
    selected = source.selectExpr("id", *(f"({p}) <=> TRUE AS p{i}" for i, p in enumerate(predicates)))
    holds = selected.toArrow().sort_by("id")
    batch = table.sort_by("id").combine_chunks().to_batches()[0]
    compared = 0
    for i, predicate in enumerate(predicates):
        try:
            (*_, check) = batch_checks(SCHEMA, [RowCheck("it", condition_of(predicate, SCHEMA, "it"))])
        except UnsupportedExpressionError:
            continue
        compared += 1
        wanted = holds[f"p{i}"].combine_chunks()
        check(batch.filter(wanted))
        for row in range(batch.num_rows):
            if not wanted[row].as_py():
                with pytest.raises(ConstraintViolationError):
                    check(batch.slice(row, 1))
                break
    assert compared > NUM_PREDICATES // 2
