from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_orch.errors import InvalidRequestError, ProtocolViolationError
from delta_orch.protocol import types as t
from delta_orch.protocol.arrow_building import string_array, type_to_arrow
from delta_orch.protocol.partition_values import (
    parse_partition_value,
    partition_column_from_arrow,
    partition_column_to_arrow,
    partition_directory,
    serialize_partition_value,
)

VALUES = {
    t.STRING: st.text(min_size=1),
    t.LONG: st.integers(-(2**63), 2**63 - 1),
    t.BYTE: st.integers(-128, 127),
    t.BOOLEAN: st.booleans(),
    t.DOUBLE: st.floats(allow_nan=False),
    t.DATE: st.dates(),
    t.TIMESTAMP: st.datetimes(min_value=datetime(1, 1, 2), timezones=st.just(UTC)),
    t.TIMESTAMP_NTZ: st.datetimes(),
    t.DecimalType(20, 3): st.decimals(-(10**16), 10**16, places=3),
    t.BINARY: st.text(min_size=1).map(str.encode),
}


@pytest.mark.parametrize("data_type", VALUES, ids=str)
def test_a_value_survives_the_log(data_type: Any) -> None:
    @given(st.lists(st.none() | VALUES[data_type]))
    def check(values: Any) -> None:
        texts = [serialize_partition_value(v, data_type) for v in values]
        assert [parse_partition_value(text, data_type) for text in texts] == values
        column = pa.array(values, type_to_arrow(data_type))
        assert partition_column_from_arrow(column, data_type).to_pylist() == texts
        assert partition_column_to_arrow(string_array(texts), data_type).to_pylist() == values
        assert (
            partition_column_to_arrow(pa.chunked_array([string_array(texts)] * 2), data_type).to_pylist() == values * 2
        )

    check()


@pytest.mark.parametrize("data_type", VALUES, ids=str)
def test_null_and_the_empty_string_are_null_for_every_type(data_type: Any) -> None:
    assert parse_partition_value(None, data_type) is None
    assert parse_partition_value("", data_type) is None
    assert serialize_partition_value(None, data_type) is None
    assert partition_column_to_arrow(string_array(["", None]), data_type).to_pylist() == [None, None]


@pytest.mark.parametrize(
    ("text", "data_type", "value"),
    [
        ("2021-09-08 11:11:11", t.TIMESTAMP, datetime(2021, 9, 8, 11, 11, 11, tzinfo=UTC)),
        ("2024-01-01T10:00:00.000000Z", t.TIMESTAMP, datetime(2024, 1, 1, 10, tzinfo=UTC)),
        ("2024-01-01T10:00:00+02:00", t.TIMESTAMP, datetime(2024, 1, 1, 8, tzinfo=UTC)),
        ("2013-07-05 17:01:00.123456", t.TIMESTAMP_NTZ, datetime(2013, 7, 5, 17, 1, 0, 123456)),
        ("2024-01-01T00:00:00+02:00", t.TIMESTAMP_NTZ, datetime(2024, 1, 1)),
        ("2024-01-01T00:00:00+02:00", t.DATE, date(2024, 1, 1)),
        ("2021-09-08", t.DATE, date(2021, 9, 8)),
        ("1", t.DecimalType(5, 2), Decimal("1.00")),
        ("Infinity", t.DOUBLE, math.inf),
        ("1.0E10", t.DOUBLE, 1e10),
        ("TRUE", t.BOOLEAN, True),
    ],
)
def test_spellings_of_other_writers(text: str, data_type: Any, value: Any) -> None:
    assert parse_partition_value(text, data_type) == value


def test_nan_is_spelled_as_spark_does() -> None:
    assert serialize_partition_value(math.nan, t.DOUBLE) == "NaN"
    assert math.isnan(parse_partition_value("NaN", t.DOUBLE))


@pytest.mark.parametrize(
    ("text", "data_type"),
    [("x", t.LONG), ("300", t.BYTE), ("2021-13-01", t.DATE), ("yes", t.BOOLEAN), ("1.234", t.DecimalType(5, 2)),
     ("99999", t.DecimalType(5, 2)), ("noon", t.TIMESTAMP), ("1_000", t.LONG), ("\u0661\u0662", t.LONG),
     ("1_0.5", t.DOUBLE), ("1_0", t.DecimalType(5, 2)), ("\u0662\u0660\u0662\u0660-01-01", t.DATE)],
)  # fmt: skip
def test_what_is_no_value_of_the_type_is_a_protocol_violation(text: str, data_type: Any) -> None:
    with pytest.raises(ProtocolViolationError, match="partition value"):
        parse_partition_value(text, data_type)


def test_a_binary_value_without_a_spelling_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="UTF-8"):
        serialize_partition_value(b"\xff", t.BINARY)


def test_directories_escape_what_would_break_a_path() -> None:
    assert partition_directory(["a", "b c"], ["x/y:z%", None]) == "a=x%2Fy%3Az%25/b c=__HIVE_DEFAULT_PARTITION__"
