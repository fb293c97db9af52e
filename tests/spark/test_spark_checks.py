"""Row checks and NOT NULL: each row is verified in the pass that writes it, and a violation names rule and row."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from delta_orch.engines.base import RowCheck
from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.errors import ConstraintViolationError
from delta_orch.expressions.parse import parse_expression
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.protocol.arrow_building import schema_from_arrow
from delta_orch.protocol.types import INTEGER, LONG, STRING, ArrayType, MapType, StructField, StructType
from tests.spark.spark_files import Files, on_every_session, rows_of

pytestmark = pytest.mark.spark

PLAIN = schema_from_arrow(pa.schema([("id", pa.int64()), ("name", pa.string()), ("day", pa.string())]))


def check(text: str, schema: StructType = PLAIN, name: str = "replace_where") -> RowCheck:
    return RowCheck(name, resolve_expression(parse_expression(text), schema))


def table(*rows: tuple[Any, ...]) -> pa.Table:
    names = ("id", "name", "day")
    kinds = (pa.int64(), pa.string(), pa.string())
    return pa.table({n: pa.array([r[i] for r in rows], kinds[i]) for i, n in enumerate(names)})


@pytest.mark.long
def test_a_check_on_any_column_runs_even_where_no_other_use_of_it_is_made(engine: SparkEngine, files: Files) -> None:
    rows = table((1, "a", "d1"), (2, "b", "d2"))
    for text in ("id < 2", "name = 'a'", "day = 'd1'", "length(name) + id < 3"):
        with pytest.raises(ConstraintViolationError) as caught:
            files.write(engine, rows, partition_by=("day",), checks=(check(text),), schema=PLAIN)
        assert caught.value.context["constraint"] == "replace_where"
        assert caught.value.context["row"] == {"id": 2, "name": "b", "day": "d2"}
        assert "'replace_where'" in str(caught.value) or "replace_where" in str(caught.value)


def test_null_counts_as_violated(engine: SparkEngine, files: Files) -> None:
    with pytest.raises(ConstraintViolationError) as caught:
        files.write(engine, table((1, "a", "d"), (None, "b", "d")), checks=(check("id > 0"),), schema=PLAIN)
    assert caught.value.context["row"]["id"] is None


@pytest.mark.long
def test_what_holds_is_written(engine: SparkEngine, files: Files) -> None:
    rows = table((1, "a", "d1"), (2, "it's \\ \"", "d1"))
    checks = (check("day = 'd1'"), check("id BETWEEN 1 AND 2", name="range"), check("name <> '{}\\''", name="odd"))
    adds, schema = files.write(engine, rows, partition_by=("day",), checks=checks, schema=PLAIN)
    assert rows_of(engine.to_arrow(files.scan(engine, adds, schema, ("day",))), "id") == rows.to_pylist()


@on_every_session
def test_the_check_that_failed_is_named_among_many(engine: SparkEngine, files: Files) -> None:
    checks = tuple(check(f"id <> {i}", name=f"not {i}") for i in range(12))
    with pytest.raises(ConstraintViolationError) as caught:
        files.write(engine, table((11, "a", "d")), checks=checks, schema=PLAIN)
    assert caught.value.context["constraint"] == "not 11"


def test_a_check_sees_converted_values_and_folded_names(engine: SparkEngine, files: Files) -> None:
    source = pa.table({"NAME": ["a"], "Day": ["d"], "ID": pa.array([1], pa.int32())})
    adds, _ = files.write(engine, source, checks=(check("id = 1"),), schema=PLAIN)
    assert adds.num_rows == 1


def test_rows_that_are_not_deterministic_are_checked_as_written(classic: SparkEngine, files: Files, spark: Any) -> None:
    rows = spark.range(2000).selectExpr("id", "'a' AS name", "cast(rand() < 0.5 as string) AS day")
    adds, schema = files.write(classic, rows.where("day = 'true'"), checks=(check("day = 'true'"),), schema=PLAIN)
    result = classic.to_arrow(files.scan(classic, adds, schema))
    assert set(result["day"].to_pylist()) == {"true"}


def test_long_and_odd_rows_are_shown_cut(engine: SparkEngine, files: Files) -> None:
    rows = table((5, "x" * 10_000 + "[end of delta_orch check]", 'd\n"]'))
    with pytest.raises(ConstraintViolationError) as caught:
        files.write(engine, rows, checks=(check("id < 5"),), schema=PLAIN)
    assert len(str(caught.value)) < 5_000
    assert str(caught.value.context["row"]).startswith('{"id":5')


def not_null(name: str, data_type: Any) -> StructField:
    return StructField(name, data_type, nullable=False)


NESTED = StructType(
    (
        not_null("id", LONG),
        StructField("st", StructType((not_null("x", LONG), StructField("in", StructType((not_null("y", STRING),)))))),
        StructField("items", ArrayType(StructType((not_null("k", INTEGER),)), contains_null=False)),
        StructField("m", MapType(STRING, LONG, value_contains_null=False)),
        not_null("day", STRING),
    )
)
GOOD = {"id": 1, "st": {"x": 1, "in": {"y": "a"}}, "items": [{"k": 1}], "m": [("a", 1)], "day": "d"}
ARROW = pa.schema(
    [
        ("id", pa.int64()),
        ("st", pa.struct([("x", pa.int64()), ("in", pa.struct([("y", pa.string())]))])),
        ("items", pa.list_(pa.struct([("k", pa.int32())]))),
        ("m", pa.map_(pa.string(), pa.int64())),
        ("day", pa.string()),
    ]
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "column"),
    [
        ({"id": None}, "id"),
        ({"st": {"x": None, "in": {"y": "a"}}}, "st.x"),
        ({"st": {"x": 1, "in": None}}, "st.in.y"),
        ({"st": {"x": 1, "in": {"y": None}}}, "st.in.y"),
        ({"items": [None]}, "items.element"),
        ({"items": [{"k": 1}, {"k": None}]}, "items.element.k"),
        ({"m": [("a", None)]}, "m.value"),
        ({"day": None}, "day"),
    ],
)
def test_not_null_is_verified_at_every_depth(
    engine: SparkEngine, files: Files, change: dict[str, Any], column: str
) -> None:
    rows = pa.Table.from_pylist([GOOD, {**GOOD, "id": 2, **change}], schema=ARROW)
    with pytest.raises(ConstraintViolationError) as caught:
        files.write(engine, rows, schema=NESTED, partition_by=("day",))
    assert caught.value.context["constraint"] == f"NOT NULL constraint on {column}"


def test_not_null_counts_only_in_arrays_and_maps_that_are_there(engine: SparkEngine, files: Files) -> None:
    absent = {**GOOD, "id": 2, "items": None, "m": None}
    rows = pa.Table.from_pylist([GOOD, absent, {**GOOD, "id": 3, "items": [], "m": []}], schema=ARROW)
    adds, _ = files.write(engine, rows, schema=NESTED, partition_by=("day",))
    result = engine.to_arrow(files.scan(engine, adds, NESTED, ("day",)))
    assert rows_of(result, "id") == rows.to_pylist()


@pytest.mark.long
def test_a_violation_leaves_nothing_that_could_be_committed(engine: SparkEngine, files: Files) -> None:
    before = engine.host.session.conf.get("spark.sql.session.timeZone")
    with pytest.raises(ConstraintViolationError):
        files.write(engine, table((1, "a", "d"), (2, "b", "d")), checks=(check("id = 1"),), schema=PLAIN)
    assert engine.host.session.conf.get("spark.sql.session.timeZone") == before
    # The session still works, and the next write is not confused by what the last one left.
    adds, schema = files.write(engine, table((1, "a", "d")), checks=(check("id = 1"),), schema=PLAIN)
    assert engine.to_arrow(files.scan(engine, adds, schema)).num_rows == 1
