"""A filter that fails for a row is the filter's fault. Only what cannot be read is blamed on a file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_orch import DeltaTable
from delta_orch.engines.spark.errors import explained
from delta_orch.errors import InvalidExpressionError, TableError

ROWS = pa.table(
    {"i": pa.array([0, 1, 2, None], pa.int64()), "s": ["0", "b", "2", None], "b": [True, False, None, True]}
)
NUMBER, S = pc.field("i"), pc.field("s")
FAILING: dict[str, object] = {
    "divide": pc.divide(pc.scalar(4), NUMBER) > 1,
    "overflow": pc.multiply_checked(NUMBER, pc.scalar(2**62)) > 1,
    "cast": S.cast(pa.int32()) > 1,
    "index": pc.choose(NUMBER, True, False),
    "divide in SQL": "4 DIV i > 1",
    "overflow in SQL": f"i * {2**62} > 1",
    "cast in SQL": "CAST(s AS INT) > 1",
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DeltaTable:
    table = DeltaTable(tmp_path_factory.mktemp("failing") / "t")
    table.append(ROWS, commit_info={"why": "test"}, properties={"delta.enableChangeDataFeed": "true"})
    return table


READS: dict[str, Callable[[DeltaTable, Any], object]] = {
    "scan": lambda table, where: table.snapshot().scan(where=where).to_arrow(),
    "stream": lambda table, where: table.snapshot().scan(where=where).to_reader().read_all(),
    "count": lambda table, where: table.snapshot().scan(where=where).count(),
    "change feed": lambda table, where: table.changes(starting_version=0, where=where).to_arrow(),
}


@pytest.mark.parametrize("filter_name", FAILING)
@pytest.mark.parametrize("read", READS)
def test_a_filter_that_fails_for_a_row_is_not_blamed_on_a_file(table: DeltaTable, read: str, filter_name: str) -> None:
    with pytest.raises(InvalidExpressionError) as raised:
        READS[read](table, FAILING[filter_name])
    assert "Parquet" not in str(raised.value)


@pytest.mark.spark
@pytest.mark.parametrize("filter_name", FAILING)
def test_nor_in_spark(table: DeltaTable, spark: Any, filter_name: str) -> None:
    where: Any = FAILING[filter_name]
    rows = table.snapshot().scan(where=where).to_spark(spark)
    with pytest.raises(Exception) as raised:
        rows.collect()
    named = explained(raised.value)
    assert isinstance(named, NoneType if isinstance(where, str) else InvalidExpressionError), named
    if isinstance(where, str):
        for verb in (partial(table.delete, where), partial(table.update, {"s": "'x'"}, where)):
            with pytest.raises(InvalidExpressionError):
                verb(engine="spark")


@pytest.mark.parametrize("where", [None, "i > 0", pc.field("i") > 0, pc.divide(pc.scalar(4), NUMBER) > 1])
def test_a_broken_file_is_still_blamed(tmp_path: Path, where: Any) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(ROWS)
    (file,) = (tmp_path / "t").glob("*.parquet")
    file.write_bytes(b"PAR1" + bytes(file.stat().st_size - 8) + b"PAR1")
    with pytest.raises(TableError, match=r"\.parquet"):
        table.snapshot().scan(where=where).to_arrow()


T, F = pc.scalar(True), pc.scalar(False)
COMPUTED = {
    "if_else": pc.if_else(NUMBER > 1, True, False),
    "if_else of values": pc.if_else(NUMBER > 1, NUMBER, pc.scalar(0)) > 1,
    "if_else in and": pc.if_else(pc.field("b"), T, F) & (NUMBER >= 0),
    "case_when": pc.case_when(pc.make_struct(NUMBER > 1, NUMBER > 0), T, F, T),
    "case_when of values": pc.case_when(pc.make_struct(NUMBER > 1), NUMBER) > 1,
    "coalesce": pc.coalesce(NUMBER, pc.scalar(7)) > 1,
    "coalesce of predicates": pc.coalesce(pc.field("b"), NUMBER > 0),
    "choose": pc.choose(pc.scalar(0), NUMBER > 0, F),
    "is_in": pc.is_in(NUMBER, value_set=pa.array([1, 2])),
    "min_element_wise": pc.min_element_wise(NUMBER, pc.scalar(1)) < 1,
    "cast": NUMBER.cast(pa.string()) == "1",
    "is_valid": pc.is_valid(S),
    "true_unless_null": pc.true_unless_null(pc.field("b")),
    "match_like": pc.match_like(S, "b%"),
    "not if_else": ~pc.if_else(NUMBER > 1, True, False),
    "null if_else": pc.is_null(pc.if_else(NUMBER > 1, NUMBER, None)),
    "a constant": pc.scalar(True),
    "the null": pc.scalar(None).cast(pa.bool_()),
    "a column": pc.field("b"),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_any_function_of_arrow_answers_as_arrow_does(table: DeltaTable, name: str) -> None:
    where = COMPUTED[name]
    assert table.snapshot().scan(where=where).to_arrow() == ROWS.filter(where)
