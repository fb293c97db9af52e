"""The requests of the seam on Spark: the cases of the local engine, in each kind of session."""

from __future__ import annotations

import pyarrow as pa
import pytest

from delta_orch.engines.base import ComputedColumn, JoinSide, Measure, join_schema
from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.engines.spark.sql_text import joined_sql
from delta_orch.errors import InvalidRequestError, UnsupportedExpressionError
from delta_orch.expressions.parse import parse_expression, parse_value
from delta_orch.expressions.resolve import resolve_expression
from tests.unit.test_engines_requests import (  # noqa: F401
    TARGET,
    columns,
    rows_of,
    test_a_join_on_text_with_computed_columns,
    test_a_projection_computes_and_renames,
    test_aggregates,
    test_joins,
    test_joins_that_choose_rows,
    test_outer_joins_of_a_small_side_that_is_kept,
    test_rows_tell_where_they_are,
    test_windows,
)

pytestmark = [pytest.mark.spark, pytest.mark.long]


def test_what_is_refused(engine: SparkEngine) -> None:
    rows = engine.relation(TARGET)
    with pytest.raises(InvalidRequestError, match="same name"):
        engine.project(rows, columns(a="id", A="v"))
    with pytest.raises(InvalidRequestError, match="at least one column"):
        engine.project(rows, [])
    with pytest.raises(InvalidRequestError, match="needs a value"):
        engine.aggregate(rows, [], [Measure("x", "sum")])


def test_a_small_side_that_is_kept_leaves_few_rows_of_the_other(engine: SparkEngine) -> None:
    rows = engine.relation(TARGET)
    scope = join_schema({"t": engine.schema(rows), "s": engine.schema(rows)})
    on = resolve_expression(parse_expression("t.id = s.id"), scope)
    small, large = JoinSide("s", rows, 4), JoinSide("t", rows, 100)
    assert "LEFT SEMI JOIN" in joined_sql(large, small, on, "right")
    assert "LEFT SEMI JOIN" in joined_sql(small, large, on, "anti")
    assert "LEFT SEMI JOIN" not in joined_sql(large, small, on, "full")
    assert "LEFT SEMI JOIN" not in joined_sql(large, small._replace(num_rows=50), on, "right")
    # Without an equality of both sides each pair would be looked at twice.
    of_one = resolve_expression(parse_expression("t.id = 1 AND t.n = t.id AND t.n > s.n"), scope)
    assert "LEFT SEMI JOIN" not in joined_sql(large, small, of_one, "right")


def test_a_limit(engine: SparkEngine) -> None:
    assert engine.to_arrow(engine.relation(TARGET), limit=2).num_rows == 2


@pytest.mark.long
def test_text_means_utc_or_is_refused(engine: SparkEngine) -> None:
    session = engine.host.session
    rows = engine.relation(pa.table({"at": pa.array([0], pa.timestamp("us", "UTC"))}))
    where = resolve_expression(parse_expression("hour(at) = 0"), engine.schema(rows))
    before = session.conf.get("spark.sql.session.timeZone")
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        requests = [
            lambda: engine.filter(rows, where),
            lambda: engine.project(rows, [ComputedColumn("h", parse_value("hour(at)"))]),
            lambda: engine.aggregate(rows, [], [Measure("h", "max", parse_value("hour(at)"))]),
        ]
        for request in requests:
            if engine.host.is_time_zone_pinned:
                assert engine.to_arrow(request()).num_rows == 1
            else:
                with pytest.raises(UnsupportedExpressionError):
                    request()
        if engine.host.is_time_zone_pinned:
            assert [rows_of(engine, request()) for request in requests[1:]] == [[(0,)], [(0,)]]
    finally:
        session.conf.set("spark.sql.session.timeZone", before)
