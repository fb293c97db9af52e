"""Expressions from a table's metadata are data, not code: one gate, at every place, on the local engine
(`delta_orch.expressions.checked`; Spark: tests/spark/test_spark_expression_gate.py)."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable, column
from delta_orch.errors import DeltaError, InvalidExpressionError, ProtocolViolationError
from delta_orch.expressions.allowed_functions import ALLOWED_FUNCTIONS
from delta_orch.expressions.checked import check_expression
from delta_orch.expressions.nodes import Column, Comparison, Literal
from delta_orch.expressions.parse import parse_expression, parse_value
from delta_orch.expressions.spark_literals import quote_string
from delta_orch.expressions.tree import columns_of
from delta_orch.protocol.types import LONG, STRING, StructField, StructType
from scripts.site_reference import expanded
from tests.bounded import tries
from tests.handmade import HandmadeTable
from tests.harness.gate_samples import ALLOWED, hostile

FEATURES = ("invariants", "checkConstraints", "generatedColumns", "allowColumnDefaults")
HOSTILE = list(dict.fromkeys(hostile()))
COLUMN_NAMES = ("id", "g")


@pytest.mark.parametrize("is_default", [False, True])
def test_hostile_texts_are_refused_quickly_and_by_name(is_default: bool) -> None:
    for text in HOSTILE:
        if "_metadata" in text or "x y" in text:
            continue  # Columns that no table has: the write refuses them.
        for one in tries(1, text[:100]):
            with one.timed(), pytest.raises(InvalidExpressionError) as caught:
                checked = check_expression(text, "CHECK constraint c", columns=COLUMN_NAMES, is_default=is_default)
                raise AssertionError(f"{text[:200]!r} passed as {checked.sql[:200]!r}")
        assert len(str(caught.value)) < 2000 and caught.value.remedy
        for name in ("java_method", "reflect", "input_file_name", "my_udf", "assert_true"):
            if text.startswith(f"{name}("):
                assert f"calls the function {name}" in caught.value.problem


@pytest.mark.parametrize("text", ALLOWED)
def test_what_users_write_is_allowed_and_printed_the_same_twice(text: str) -> None:
    checked = check_expression(text, "it")
    again = check_expression(checked.sql, "it")
    assert again == checked
    assert {c.path for c in columns_of(parse_value(checked.sql))} == set(checked.columns)


@pytest.mark.parametrize("text", ["exists(array(id), x -> x > 0)", "aggregate(array(id), 0, (a, x) -> a + x) > 0"])
def test_a_lambda_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidExpressionError, match="holds a lambda function"):
        check_expression(text, "CHECK constraint c")


VARIABLES = ["${env:HOME}", "${system:user.name}", "${spark.app.name}", "a${x}b${y}"]


@pytest.mark.parametrize("text", VARIABLES)
@pytest.mark.parametrize("written", ["'%s'", "'\\%s'", '"%s"', "r'%s'", 'R"%s"'])
def test_no_text_holds_what_spark_takes_for_a_variable(text: str, written: str) -> None:
    printed = check_expression(f"s = {written % text}", "it").sql
    assert "${" not in printed and "${" not in quote_string(text)
    assert parse_expression(printed) == parse_expression(f"s = {quote_string(text)}")
    assert parse_expression(printed) == Comparison("=", Column(("s",)), Literal(text))
    for other in (
        "d + INTERVAL %s DAY",
        "parse_json(s):a[%s]",
        "s LIKE concat(%s)",
        "named_struct(%s, 1)",
        "DATE %s = d",
    ):
        try:
            assert "${" not in check_expression(other % (written % text), "it").sql
        except InvalidExpressionError:
            continue


def test_only_a_default_may_ask_the_clock() -> None:
    for text in ("current_date", "current_timestamp()", "now()", "CAST(current_timestamp AS DATE)", "unix_timestamp()"):
        assert "()" in check_expression(text, "it", is_default=True).sql
        with pytest.raises(InvalidExpressionError, match="not fixed"):
            check_expression(text, "it")
    for text in ("uuid()", "rand()", "current_user()"):
        with pytest.raises(InvalidExpressionError, match="not fixed"):
            check_expression(text, "it", is_default=True)
    # A column may have such a name.
    assert check_expression("user <> ''", "it", columns=["User"]).columns == (("user",),)


def test_what_is_printed_binds_as_it_was_read() -> None:
    def sql(text: str) -> str:
        return check_expression(text, "it").sql

    assert sql("a or b and not c = 1") == "`a` OR (`b` AND (NOT (`c` = 1)))"
    assert sql("a - b + c * d % e") == "`a` - `b` + (`c` * `d` % `e`)"
    assert sql("INTERVAL '1' DAY - a + INTERVAL 1 DAY 2 HOURS") == "(INTERVAL '1' DAY) - `a` + (INTERVAL 1 DAY 2 HOURS)"
    assert sql("a - (b + c)") == "`a` - (`b` + `c`)"
    assert sql("-a * -1") == "(-`a`) * -1"
    assert sql("not a between 1 and 2 and b") == "(NOT ((`a` >= 1) AND (`a` <= 2))) AND `b`"
    assert sql("'a''b' = \"c\"\"'d\"") == r"""'a\'b' = 'c"\'d'"""


def _nested(call: str, depth: int) -> str:
    text = "g"
    for _ in range(depth):
        text = call.format(text)
    return text


@pytest.mark.parametrize(
    "call",
    ["hex({})", "replace({}, 'x', 'yyyyyyyy')", "regexp_replace({}, 'x', '$0$0$0')", "url_encode({})",
     "concat_ws({0}, split({0}, ''))", "array_join(array({0}, 'a'), {0})", "to_json(named_struct('a', {}))",
     "base64({})", "array_join(split(rpad({}, 200), ''), rpad('y', 200))"],
)  # fmt: skip
def test_values_do_not_grow_without_bounds(call: str) -> None:
    check_expression(_nested(call, 1), "it")
    with pytest.raises(InvalidExpressionError):
        check_expression(_nested(call, 12 if "{0}" in call else 38), "it")
    for text in ("round(1.5D, 2147483647)", "format_number(1, 999999999)", "array_insert(array(1), 2147483647, 1)",
                 "levenshtein(rpad('a', 9000), rpad('b', 9000))", "ceil(g, h)"):  # fmt: skip
        with pytest.raises(InvalidExpressionError):
            check_expression(text, "it")


def test_functions_without_arguments_end_in_no_error_of_python() -> None:
    for name in ALLOWED_FUNCTIONS:
        with suppress(InvalidExpressionError):
            check_expression(f"{name}()", "it")


def test_the_page_lists_every_function() -> None:
    page = expanded((Path(__file__).parents[2] / "docs" / "expressions.md").read_text())
    section = page[page.index("## Of a table") : page.index("## In process")]
    assert [name for name in ALLOWED_FUNCTIONS if f"`{name}`" not in section] == []


# Every place


def _handmade(root: Path, place: str, text: str, note: Any = None) -> DeltaTable:
    metadata: dict[str, dict[str, Any]] = {"id": {}, "g": {}}
    configuration = {}
    if place == "generated":
        metadata["g"]["delta.generationExpression"] = text
    elif place == "default":
        metadata["g"]["CURRENT_DEFAULT"] = text
    elif place == "invariant":
        metadata["id"]["delta.invariants"] = json.dumps({"expression": {"expression": text}})
    elif place == "bare invariant":
        metadata["id"]["delta.invariants"] = text
    else:
        configuration["delta.constraints.c"] = text
    table = HandmadeTable(root)
    fields = (StructField("id", LONG, True, metadata["id"]), StructField("g", STRING, True, metadata["g"]))
    table.create(StructType(fields), features=FEATURES, configuration=configuration)
    table.log.commit(table.add("a.parquet", pa.table({"id": [9], "g": ["x"]})))
    return table.open()


PLACES = ["generated", "default", "invariant", "bare invariant", "constraint"]
FEW = [text for text in HOSTILE if "\ud800" not in text][::6]


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
def test_a_write_refuses_and_a_read_does_not(tmp_path: Path, place: str) -> None:
    for number, text in enumerate(FEW):
        if place == "bare invariant" and text.strip().startswith(("{", '"')):
            continue
        table = _handmade(tmp_path / str(number), place, text)
        version = table.version()
        assert table.snapshot().scan().to_arrow().to_pylist() == [{"id": 9, "g": "x"}]
        data = {"id": pa.array([7], pa.int64())}
        if place not in ("default", "generated"):
            data["g"] = pa.array(["y"])
        for write in (table.append, table.overwrite):
            for one in tries(1, text[:100]):
                with one.timed(), pytest.raises((InvalidExpressionError, ProtocolViolationError)) as caught:
                    write(pa.table(data), engine="local")
            assert len(str(caught.value)) < 2000
        assert table.version() == version
        assert sorted(p.name for p in (tmp_path / str(number)).glob("*.parquet")) == ["a.parquet"]


def test_a_generated_column_that_is_given_is_not_verified_with_hostile_text(tmp_path: Path) -> None:
    table = _handmade(tmp_path / "t", "generated", "reflect('java.lang.System', 'getenv', 'HOME')")
    with pytest.raises(InvalidExpressionError, match="the function reflect") as caught:
        table.append(pa.table({"id": pa.array([7], pa.int64()), "g": ["y"]}))
    assert "generation expression of column g" in caught.value.problem
    assert "docs/expressions.md" in (caught.value.remedy or "")


ALTERATIONS: dict[str, Callable[[DeltaTable, str], Any]] = {
    "add_constraint": lambda table, text: table.alter().add_constraint("c", text),
    "property": lambda table, text: table.alter().set_properties({"delta.constraints.c": text}),
    "set_default": lambda table, text: table.alter().set_default("g", text),
    "generated": lambda table, text: table.alter().add_columns([column("n", "string", generated_as=text)]),
    "default": lambda table, text: table.alter().add_columns([column("n", "string", default=text)]),
}


@pytest.mark.parametrize("way", list(ALTERATIONS))
def test_an_alteration_refuses(tmp_path: Path, way: str) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": pa.array([7], pa.int64()), "g": ["y"]}))
    for text in HOSTILE[:: 3 if way == "add_constraint" else 9]:
        for one in tries(1, text[:100]):
            with one.timed(), pytest.raises(DeltaError) as caught:
                ALTERATIONS[way](table, text).commit()
        assert len(str(caught.value)) < 2000, text[:100]
    assert table.version() == 0


def test_a_hostile_rule_can_be_dropped_and_the_table_be_written_again(tmp_path: Path) -> None:
    hostile_text = "java_method('java.lang.System', 'exit', 1) IS NULL"
    table = HandmadeTable(tmp_path / "t")
    configuration = {"delta.constraints.a": hostile_text, "delta.constraints.b": "id > 5) OR (true"}
    fields = StructType((StructField("id", LONG), StructField("g", STRING, True, {"CURRENT_DEFAULT": "reflect('a')"})))
    table.create(fields, features=FEATURES, configuration=configuration)
    opened = table.open()
    opened.alter().drop_constraint("a").commit()
    opened.alter().set_column_comment("id", "the key").commit()
    opened.alter().drop_constraint("b").commit()
    with pytest.raises(InvalidExpressionError, match="reflect"):
        opened.append(pa.table({"id": pa.array([7], pa.int64())}))
    opened.alter().drop_default("g").commit()
    opened.append(pa.table({"id": pa.array([7], pa.int64()), "g": ["y"]}))
    assert opened.snapshot().scan().to_arrow().num_rows == 1
