"""What we answer is what Spark answers: predicates evaluated by Arrow, by DuckDB and, printed anew, by Spark itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from delta_orch.engines.local.duckdb_input import predicate_sql
from delta_orch.engines.local.duckdb_session import connect
from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.parse import parse_expression
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.expressions.to_arrow import arrow_predicate
from delta_orch.expressions.to_sql import to_spark_sql
from delta_orch.expressions.tree import is_opaque
from delta_orch.protocol.schema import serialize_schema
from delta_orch.protocol.types import StructType
from tests.property.expression_samples import OPERATORS, SCHEMA, constants_of, random_predicates, sample_table

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    return sample_table(seed=1)


@pytest.fixture(scope="module")
def frame(spark: Any, rows: pa.Table) -> Any:
    # Left alone, Spark takes zone-less timestamps from Arrow for instants.
    frame = spark.createDataFrame(rows, spark_schema(SCHEMA)).coalesce(1).cache()
    assert dict(frame.dtypes)["n"] == "timestamp_ntz"
    frame.createOrReplaceTempView("samples")
    return frame


def spark_schema(schema: StructType) -> Any:
    from pyspark.sql.types import StructType as SparkStructType

    return SparkStructType.fromJson(json.loads(serialize_schema(schema)))


def ask_spark(spark: Any, texts: Sequence[str]) -> list[list[bool | None]]:
    """Spark's answers, one list a predicate, in the order of `id`."""
    answers: list[list[bool | None]] = []
    for start in range(0, len(texts), 100):
        part = texts[start : start + 100]
        columns = ", ".join(f"({text}) AS p{index}" for index, text in enumerate(part))
        table = spark.sql(f"SELECT id, {columns} FROM samples").toArrow().sort_by("id")
        answers += [table.column(f"p{index}").to_pylist() for index in range(len(part))]
    return answers


def ask_arrow(rows: pa.Table, expression: Expression) -> list[bool | None]:
    answer: list[bool | None] = arrow_predicate(expression, SCHEMA)(rows).to_pylist()
    return answer


def ask_duckdb(rows: pa.Table, expressions: Sequence[Expression]) -> list[list[bool | None]]:
    connection = connect()
    connection.register("samples", rows)
    texts = [predicate_sql(e, SCHEMA, "samples") for e in expressions]
    listed = ", ".join(f"CAST(({text}) AS BOOLEAN) AS p{index}" for index, text in enumerate(texts))
    table = connection.sql(f"SELECT id, {listed} FROM samples ORDER BY id").to_arrow_table()
    return [table.column(f"p{index}").to_pylist() for index in range(len(texts))]


def assert_same(texts: Sequence[str], wanted: Sequence[Any], found: Sequence[Any], who: str) -> None:
    wrong = {
        text: [(row, a, b) for row, (a, b) in enumerate(zip(want, got, strict=True)) if a != b][:3]
        for text, want, got in zip(texts, wanted, found, strict=True)
        if want != got
    }
    assert not wrong, f"{who} differs on {len(wrong)} predicates: (row, Spark, {who}) {dict(list(wrong.items())[:5])}"


def check(spark: Any, rows: pa.Table, texts: Sequence[str]) -> None:
    resolved = [resolve_expression(parse_expression(text), SCHEMA) for text in texts]
    wanted = ask_spark(spark, texts)
    assert_same(texts, wanted, ask_spark(spark, [to_spark_sql(e) for e in resolved]), "the text printed anew")
    assert_same(texts, wanted, ask_duckdb(rows, resolved), "DuckDB")
    plain = [(t, e, w) for t, e, w in zip(texts, resolved, wanted, strict=True) if not is_opaque(e)]
    assert len(plain) > len(texts) // 2
    assert_same([t for t, _, _ in plain], [w for _, _, w in plain], [ask_arrow(rows, e) for _, e, _ in plain], "Arrow")
    for expression in resolved:
        assert resolve_expression(expression, SCHEMA) == expression


@pytest.mark.long
@pytest.mark.parametrize("column", ["b", "i", "l", "f", "x", "d5", "d38", "S", "bin", "bo", "day", "ts", "n"])
def test_comparisons_with_every_constant(spark: Any, frame: Any, rows: pa.Table, column: str) -> None:
    operators = [o for o in OPERATORS if o not in ("==", "<>")]
    check(spark, rows, [f"{column} {op} {constant}" for constant in constants_of(column) for op in operators])


@pytest.mark.parametrize("seed", range(3))
def test_random_predicates(spark: Any, frame: Any, rows: pa.Table, seed: int) -> None:
    check(spark, rows, list(random_predicates(seed, 300)))


@pytest.mark.parametrize(
    "text",
    [
        "i = 'x'", "i = '5.5'", "l > '99999999999999999999'", "x = 'abc'", "day = '2013-02-30'", "day = 'nonsense'",
        "ts > '2013-13-01'", "ts = '2013-01-01 25:00:00'", "bo = 'maybe'", "day = 5", "i = DATE '2013-01-01'",
        "bo = 1", "bin = 5", "i", "5", "st = 5", "i = TRUE", "ts > 5", "d5 = 'x'", "day = DATE '2013-02-30'",
        "i = 99999999999999999999999999999999999999999", "i = 300Y", "i = ", "SELECT 1", "n = '2013-00-01'",
    ],
)  # fmt: skip
def test_what_we_refuse_spark_refuses_too(spark: Any, frame: Any, text: str) -> None:
    with pytest.raises(InvalidExpressionError):
        resolve_expression(parse_expression(text), SCHEMA)
    with pytest.raises(Exception, match=r"\[[A-Z_.]+\]"):
        frame.where(text).collect()
