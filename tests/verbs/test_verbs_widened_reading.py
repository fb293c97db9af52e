"""Files and partitions from before a column became wider: found by predicates of the new type, on both engines."""

from __future__ import annotations

import datetime as dt
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from delta_orch import DeltaTable

if TYPE_CHECKING:
    from tests.verbs.conftest import EngineRows

WIDENING = {"delta.enableTypeWidening": "true"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("value", "kind", "wider", "where", "found"),
    [
        (0.1, pa.float32(), "double", "a > 0.1", 1),
        (0.1, pa.float32(), "double", "a = 0.1", 0),
        (-0.1, pa.float32(), "double", "a < -0.1", 1),
        (16777217.0, pa.float32(), "double", "a = 16777216", 1),
        (7, pa.int8(), "bigint", "a = 7", 1),
        (7, pa.int32(), "double", "a > 6.5 AND a < 7.5", 1),
        (7, pa.int32(), "decimal(12,2)", "a = 7.00", 1),
        (dt.date(2020, 1, 2), pa.date32(), "timestamp_ntz", "a = TIMESTAMP_NTZ '2020-01-02 00:00:00'", 1),
        (dt.date(2020, 1, 2), pa.date32(), "timestamp_ntz", "a > TIMESTAMP_NTZ '2020-01-01 23:59:59'", 1),
        (Decimal("1.50"), pa.decimal128(5, 2), "decimal(8,4)", "a = 1.5", 1),
    ],
    ids=str,
)
def test_old_statistics_leave_out_no_row(
    rows: EngineRows,
    table: DeltaTable,
    value: date | Decimal | float,
    kind: pa.DataType,
    wider: str,
    where: str,
    found: int,
) -> None:
    table.append(pa.table({"a": pa.array([value], kind), "n": [1]}), properties=WIDENING)
    table.alter().change_type("a", wider).commit()
    assert len(rows.pylist(table, where=where)) == found
    assert len(rows.pylist(table, where=f"NOT ({where})")) == 1 - found
    table.checkpoint()
    assert len(rows.pylist(table, where=where)) == found


@pytest.mark.long
@pytest.mark.parametrize(
    ("value", "kind", "wider", "where"),
    [
        (7, pa.int32(), "bigint", "p = 7"),
        (7, pa.int8(), "double", "p = 7.0"),
        (7, pa.int32(), "decimal(12,2)", "p = 7"),
        (0.5, pa.float32(), "double", "p < 0.75"),
        (Decimal("1.50"), pa.decimal128(5, 2), "decimal(8,4)", "p = 1.5"),
    ],
    ids=str,
)
def test_partition_columns_widen(
    rows: EngineRows,
    table: DeltaTable,
    value: Decimal | float,
    kind: pa.DataType,
    wider: str,
    where: str,
) -> None:
    table.append(pa.table({"p": pa.array([value], kind), "n": [1]}), partition_by=["p"], properties=WIDENING)
    table.alter().change_type("p", wider).commit()
    again = table.snapshot().scan().to_arrow()
    table.append(rows.data(again))
    found = rows.pylist(table, where=where)
    assert [row["n"] for row in found] == [1, 1]
    assert found[0]["p"] == found[1]["p"] == value
    # One partition, however its value is spelled.
    table.overwrite(rows.data(again), partition_overwrite_mode="dynamic")
    assert len(rows.pylist(table)) == 1
    assert table.optimize().skipped


@pytest.mark.long
def test_partitions_are_replaced_by_a_write_that_widens_their_column(rows: EngineRows, table: DeltaTable) -> None:
    table.append(
        rows.data(pa.table({"p": pa.array([1, 2], pa.int32()), "n": [1, 1]})), partition_by=["p"], properties=WIDENING
    )
    wider = pa.table({"p": pa.array([2, 2**40], pa.int64()), "n": [2, 2]})
    table.overwrite(rows.data(wider), partition_overwrite_mode="dynamic", schema_mode="merge")
    assert rows.pylist(table) == [{"p": 1, "n": 1}, {"p": 2, "n": 2}, {"p": 2**40, "n": 2}]
    again = pa.table({"p": pa.array([2], pa.int64()), "n": [4], "note": ["x"]})
    table.overwrite(rows.data(again), replace_where="p = 2", schema_mode="merge")
    assert [(row["p"], row["n"], row["note"]) for row in rows.pylist(table)] == [
        (1, 1, None), (2, 4, "x"), (2**40, 2, None)]  # fmt: skip
