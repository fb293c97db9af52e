"""Arrow's evaluation where it would differ from Spark's, without a Spark: see tests/property for the rest."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from delta_orch.errors import UnsupportedExpressionError
from delta_orch.expressions.parse import parse_expression
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.expressions.to_arrow import arrow_predicate
from delta_orch.protocol.arrow_building import literal_array, schema_from_arrow, type_to_arrow
from delta_orch.protocol.types import DOUBLE, LONG, PRIMITIVE_TYPES, STRING, DecimalType

ROWS = pa.table(
    {
        "id": pa.array(range(6), pa.int64()),
        "x": pa.array([1.0, math.nan, None, -0.0, math.inf, 0.0], pa.float64()),
        "a.b": pa.array([1, 2, None, 4, 5, 6], pa.int64()),
        "st": pa.array([{"a": 1}, {"a": None}, None, {"a": 4}, {"a": 5}, {"a": 6}], pa.struct([("a", pa.int64())])),
    }
)


def kept(text: str) -> list[int]:
    schema = schema_from_arrow(ROWS.schema)
    answers = arrow_predicate(resolve_expression(parse_expression(text), schema), schema)
    ids: list[int] = ROWS.filter(answers(ROWS)).column("id").to_pylist()
    return ids


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("x = 'NaN'", [1]),
        ("x > 1e300", [1, 4]),
        ("x >= 'NaN'", [1]),
        ("x > 'NaN'", []),
        ("x < 'NaN'", [0, 3, 4, 5]),
        ("x != 'NaN'", [0, 3, 4, 5]),
        ("NOT (x <= 1)", [1, 4]),
        ("x = 0", [3, 5]),
        ("x IN (0, 'NaN')", [1, 3, 5]),
        ("x <=> NULL", [2]),
        ("NOT (x <=> 0)", [0, 1, 2, 4]),
        ("x = x", [0, 1, 3, 4, 5]),
        ("x < x", []),
        ("x <=> x", [0, 1, 2, 3, 4, 5]),
        ("`a.b` NOT IN (1, 2)", [3, 4, 5]),
        ("`a.b` NOT IN (1, NULL)", []),
        ("(`a.b` IN (1, NULL)) IS NULL", [1, 2, 3, 4, 5]),
        ("st.a > 1", [3, 4, 5]),
        ("st.a IS NULL", [1, 2]),
        ("st IS NULL", [2]),
        ("TRUE", [0, 1, 2, 3, 4, 5]),
        ("NULL", []),
        ("id = 1 OR NULL", [1]),
    ],
)
def test_rows_kept(text: str, ids: list[int]) -> None:
    assert kept(text) == ids


def test_text_is_left_to_engines() -> None:
    schema = schema_from_arrow(ROWS.schema)
    with pytest.raises(UnsupportedExpressionError):
        arrow_predicate(resolve_expression(parse_expression("id + 1 = 2"), schema), schema)


def test_a_thousand_alternatives_evaluate() -> None:
    assert kept(" OR ".join(f"id = {i} AND `a.b` = {i + 1}" for i in range(2000))) == [0, 1, 3, 4, 5]


@pytest.mark.parametrize("values", [[], [None], [None, None, None, None, None, None, None, None, None]])
@pytest.mark.parametrize(
    "data_type", [*(t for t in PRIMITIVE_TYPES.values() if t.name not in ("void", "variant")), DecimalType(38, 10)]
)
def test_arrays_without_values(values: list[Any], data_type: Any) -> None:
    array = literal_array(values, data_type)
    array.validate(full=True)
    assert array.equals(pa.array(values, type_to_arrow(data_type)))


def test_arrays_with_values_and_nulls() -> None:
    assert literal_array([1, None, -(2**63)], LONG).equals(pa.array([1, None, -(2**63)], pa.int64()))
    assert literal_array(["a", None, "ü"], STRING).equals(pa.array(["a", None, "ü"]))
    assert literal_array([0.5, None], DOUBLE).equals(pa.array([0.5, None]))


def test_neither_pandas_nor_sqlglot_is_imported_to_filter() -> None:
    script = (
        "import sys\n"
        "from delta_orch.expressions.nodes import And, Column, Comparison, Literal\n"
        "from delta_orch.expressions.resolve import resolve_expression\n"
        "import pyarrow as pa\n"
        "from delta_orch.expressions.to_arrow import arrow_predicate, literal_array\n"
        "from delta_orch.protocol.types import *\n"
        "schema = StructType((StructField('a', LONG), StructField('s', STRING), StructField('d', DecimalType(5, 2))))\n"
        "parts = [Comparison('=', Column((c,)), Literal(v)) for c, v in {'a': 1, 's': 'x', 'd': 1}.items()]\n"
        "e = resolve_expression(And(tuple(parts)), schema)\n"
        "rows = pa.table([literal_array([], f.data_type) for f in schema], names=schema.names)\n"
        "rows.filter(arrow_predicate(e, schema)(rows))\n"
        "assert not {'pandas', 'sqlglot', 'duckdb'} & sys.modules.keys(), sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
