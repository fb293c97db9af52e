"""Spark is given only what the gate printed (`delta_orch.expressions.checked`), and it means what was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.errors import InvalidExpressionError, ProtocolViolationError, UnsupportedError
from delta_orch.expressions.allowed_functions import ALLOWED_FUNCTIONS
from delta_orch.expressions.checked import check_expression
from delta_orch.protocol.types import LONG, STRING, StructField, StructType
from tests.handmade import HandmadeTable
from tests.harness.gate_samples import ALLOWED, hostile

pytestmark = pytest.mark.spark

ROWS = """SELECT id AS i, id * 10000 AS l, id * 1.25D AS x, CAST(id AS DECIMAL(10,2)) AS dec,
    concat('ab', 'c', id) AS s, id > 1 AS b, DATE'2020-02-28' + CAST(id AS INT) AS d,
    TIMESTAMP'2020-01-31 10:20:30.123456' + make_dt_interval(id) AS ts,
    '{"a":{"b":1},"c":[5,6]}' AS j, array(id, 2L) AS arr, map('k', id) AS m, named_struct('a', id, 'b.c', 'q') AS st,
    named_struct('c', id) AS a_b, id AS `end`, 'w' AS `we``ird` FROM range(0, 4)"""


@pytest.mark.long
def test_what_is_printed_means_what_was_written(spark: Any) -> None:
    rows = spark.sql(ROWS)
    written = [text for text in ALLOWED if not text.startswith("(i, s)")]  # Spark asks for the same names.
    printed = [check_expression(text, "it").sql for text in written]
    for start in range(0, len(written), 50):
        part = slice(start, start + 50)
        ours = rows.selectExpr(*(f"({sql}) AS v{i}" for i, sql in enumerate(printed[part])))
        theirs = rows.selectExpr(*(f"({text}\n) AS v{i}" for i, text in enumerate(written[part])))
        assert ours.schema.simpleString() == theirs.schema.simpleString()
        casts = [f"to_json(struct(CAST(v{i} AS STRING) AS v)) AS v{i}" for i in range(len(written[part]))]
        found = [frame.selectExpr(*casts).collect() for frame in (ours, theirs)]
        for mine, others in zip(*found, strict=True):
            for text, value, other in zip(written[part], mine, others, strict=True):
                assert value == other, text


VARIABLE = "${system:user.name}"


@pytest.mark.parametrize("place", ["generated", "default", "predicate"])
def test_text_is_no_place_for_the_drivers_variables(engine: SparkEngine, tmp_path: Path, place: str) -> None:
    key = "delta.generationExpression" if place == "generated" else "CURRENT_DEFAULT"
    stored = StructField("s", STRING, True, {key: f"'{VARIABLE}'"} if place != "predicate" else {})
    handmade = HandmadeTable(tmp_path / "t")
    handmade.create(StructType((StructField("id", LONG), stored)), features=("generatedColumns", "allowColumnDefaults"))
    table = handmade.open()
    given = f", '$' || '{VARIABLE[1:]}' AS s" if place == "predicate" else ""
    table.append(engine.host.session.sql(f"SELECT 7L AS id{given}"), engine=engine)
    assert table.snapshot().scan().to_arrow().to_pylist() == [{"id": 7, "s": VARIABLE}]
    assert table.delete(f"s = '{VARIABLE}'", engine=engine).operation_metrics["numRemovedFiles"] == 1


def test_a_columns_name_is_no_variable(engine: SparkEngine, tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    rows = pa.table({"id": [7], VARIABLE: ["x"]})
    table.append(rows, properties={"delta.columnMapping.mode": "name"})
    session = engine.host.session
    if engine.host.is_time_zone_pinned:
        assert table.snapshot().scan().to_spark(session).toArrow().to_pylist() == rows.to_pylist()
        table.append(table.snapshot().scan().to_spark(session), engine=engine)
        assert table.snapshot().scan().to_arrow().num_rows == 2
        return
    with pytest.raises(UnsupportedError, match="column's name"):
        engine.scan(table.snapshot().scan().plan())
    before = session.conf.get("spark.sql.variable.substitute")
    session.conf.set("spark.sql.variable.substitute", "false")
    try:
        assert engine.to_arrow(engine.scan(table.snapshot().scan().plan())).to_pylist() == rows.to_pylist()
    finally:
        session.conf.set("spark.sql.variable.substitute", before)


def test_every_allowed_function_is_one_of_spark(spark: Any) -> None:
    known = {row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    # These two are grammar, not functions.
    assert {"timestampadd", "timestampdiff"} == ALLOWED_FUNCTIONS - known


PLACES = ["generated", "given", "default", "invariant", "constraint"]


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
def test_a_write_of_hostile_metadata_starts_nothing(spark: Any, tmp_path: Path, place: str) -> None:
    for number, text in enumerate([text for text in dict.fromkeys(hostile()) if "\ud800" not in text][::8]):
        fields = [StructField("id", LONG), StructField("g", STRING)]
        configuration = {}
        if place in ("generated", "given"):
            fields[1] = StructField("g", STRING, True, {"delta.generationExpression": text})
        elif place == "default":
            fields[1] = StructField("g", STRING, True, {"CURRENT_DEFAULT": text})
        elif place == "invariant":
            stored = json.dumps({"expression": {"expression": text}})
            fields[0] = StructField("id", LONG, True, {"delta.invariants": stored})
        else:
            configuration["delta.constraints.c"] = text
        handmade = HandmadeTable(tmp_path / str(number))
        features = ("invariants", "checkConstraints", "generatedColumns", "allowColumnDefaults")
        handmade.create(StructType(tuple(fields)), features=features, configuration=configuration)
        table = handmade.open()
        is_short = place in ("generated", "default")
        rows = spark.sql("SELECT 7L AS id" if is_short else "SELECT 7L AS id, 'y' AS g")
        with pytest.raises((InvalidExpressionError, ProtocolViolationError)):
            table.append(rows)
        assert table.version() == 0
        assert not list((tmp_path / str(number)).rglob("*.parquet"))


def test_a_constraint_that_closes_its_parenthesis_is_refused_by_alter(spark: Any, tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(spark.sql("SELECT 1L AS id"))
    for text in ("id > 5) OR (true", "java_method('java.lang.System', 'getenv', 'HOME') IS NOT NULL"):
        with pytest.raises(InvalidExpressionError):
            table.alter().add_constraint("c", text).commit()
    assert table.version() == 0


def test_rules_that_only_spark_knows_are_kept(spark: Any, tmp_path: Path) -> None:
    handmade = HandmadeTable(tmp_path / "t")
    generated = {"delta.generationExpression": "date_format(CAST(id AS TIMESTAMP), 'yyyy-MM')"}
    default = {"CURRENT_DEFAULT": "concat_ws('-', 'a', md5('b'))"}
    fields = (
        StructField("id", LONG),
        StructField("m", STRING, True, generated),
        StructField("n", STRING, True, default),
    )
    rule = {"delta.constraints.c": "xxhash64(id) <> 0 AND n RLIKE '^a-[0-9a-f]+$'"}
    handmade.create(
        StructType(fields), features=("checkConstraints", "generatedColumns", "allowColumnDefaults"), configuration=rule
    )
    table = handmade.open()
    table.append(spark.sql("SELECT 86400L AS id"))
    (row,) = table.snapshot().scan().to_arrow().to_pylist()
    assert row == {"id": 86400, "m": "1970-01", "n": "a-92eb5ffee6ae2fec3ad71c777531578f"}
    table.append(spark.sql("SELECT 1L AS id"))
    assert table.version() == 2
