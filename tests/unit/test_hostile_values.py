"""Values and texts that are beyond a limit end in an error of ours, at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import delta_orch
from delta_orch import DeltaTable
from delta_orch.errors import DeltaError, InvalidExpressionError, SchemaMismatchError


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DeltaTable:
    table = DeltaTable(tmp_path_factory.mktemp("hostile") / "t")
    table.append(pa.table({"i": [1, 2], "s": ["a", "b"]}))
    return table


def test_a_chain_of_texts_is_no_depth(table: DeltaTable) -> None:
    text = " || ".join(["s"] * 10_000)
    assert table.snapshot().scan(where=f"length({text}) = 10000").count() == 2
    assert table.snapshot().scan(where=f"({text}) || NULL IS NULL").count() == 2
    rows: Any = delta_orch.sql("SELECT s || i || '-' || s AS x, ('a' || s) || s AS y FROM t", tables={"t": table})
    assert rows.to_pylist() == [{"x": "a1-a", "y": "aaa"}, {"x": "b2-b", "y": "abb"}]


@pytest.mark.parametrize("operator", ["+", "-", "*", "/", "%", "&", "DIV"])
def test_a_chain_of_numbers_has_a_length(table: DeltaTable, operator: str) -> None:
    if operator not in ("/", "%", "DIV"):  # division writes its operands several times
        assert table.snapshot().scan(where=f"{f' {operator} '.join(['1', *['i'] * 40])} IS NOT NULL").count() == 2
    with pytest.raises(InvalidExpressionError, match="too long"):
        table.snapshot().scan(where=f"{f' {operator} '.join(['i'] * 10_000)} > 1")


@pytest.mark.parametrize("operator", ["AND", "OR"])
def test_a_chain_of_conditions_is_no_depth(table: DeltaTable, operator: str) -> None:
    parts = [f"i > {-n}" if operator == "AND" else f"i < {-n}" for n in range(10_000)]
    assert table.snapshot().scan(where=f" {operator} ".join(parts)).count() == (2 if operator == "AND" else 0)


@pytest.mark.parametrize("kind", ["DECIMAL(99,99)", "DECIMAL(39)", "DECIMAL(5,9)", "DECIMAL(0,0)", "NUMERIC(99, 1)"])
@pytest.mark.parametrize("value", ["i", "1", "'1'", "NULL"])
def test_no_decimal_has_so_many_digits(table: DeltaTable, kind: str, value: str) -> None:
    for cast in (f"CAST({value} AS {kind})", f"{value}::{kind}"):
        for use in (
            lambda cast=cast: table.snapshot().scan(where=f"{cast} > i").to_arrow(),
            lambda cast=cast: table.update({"i": cast}),
        ):
            with pytest.raises(InvalidExpressionError, match="There is no type"):
                use()


@pytest.mark.parametrize("statement", ["SELECT * FROM {} VERSION AS OF {}", "DESCRIBE HISTORY {} LIMIT {}",
                                       "RESTORE {} TO VERSION AS OF {}", "SELECT * FROM {} LIMIT {}"])  # fmt: skip
@pytest.mark.parametrize("number", [2**63, 10**30])
def test_numbers_beyond_64_bits(table: DeltaTable, statement: str, number: int) -> None:
    with pytest.raises(DeltaError):
        delta_orch.sql(statement.format(f"delta.`{table.uri}`", number))


def test_values_at_hundreds_of_levels(tmp_path: Path) -> None:
    value: Any = 1
    for level in range(400):
        value = {"a": value} if level % 2 else [value]
    table = DeltaTable(tmp_path / "t")
    with pytest.raises(SchemaMismatchError, match="too deeply"):
        table.append([{"x": value}])
    with pytest.raises(DeltaError):
        table.append(pa.table({"x": [1]}), commit_info={"x": value})


@pytest.mark.parametrize("values", [["a"], [1], [1.5]])
def test_an_index_out_of_a_dictionary(tmp_path: Path, values: list[Any]) -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0, 7], pa.int32()), pa.array(values), safe=False)
    with pytest.raises(SchemaMismatchError, match="out of bounds"):
        DeltaTable(tmp_path / "t").append(pa.table({"x": column}))


def test_what_is_half_made_can_be_shown(table: DeltaTable) -> None:
    for one in (table, table.snapshot()):
        assert "not yet open" in repr(type(one).__new__(type(one)))
        assert table.uri in repr(one)
