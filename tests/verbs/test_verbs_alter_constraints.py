"""`alter()`: CHECK constraints and NOT NULL are proven on the rows that are there, on both engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable, column
from delta_orch.errors import (
    ColumnNotFoundError,
    ConstraintViolationError,
    InvalidExpressionError,
    InvalidRequestError,
)
from delta_orch.protocol.types import StructType
from delta_orch.verbs.alter.builder import Alteration
from tests.certain import a, some
from tests.harness.results import CommitResult

if TYPE_CHECKING:
    from tests.verbs.conftest import EngineRows

PAIR = pa.struct([("x", pa.int64()), ("y", pa.string())])


@pytest.fixture
def filled(table: DeltaTable) -> DeltaTable:
    table.append(
        pa.table(
            {
                "id": pa.array([1, 2, 3], pa.int64()),
                "name": ["a", None, "c"],
                "s": pa.array([{"x": 1, "y": None}, None, {"x": 3, "y": "z"}], PAIR),
            }
        )
    )
    return table


@pytest.fixture
def commit(rows: EngineRows) -> Callable[..., Any]:
    """Alter on the engine under test."""

    def run(alteration: Alteration) -> CommitResult | None:
        if rows.spark is None:
            return alteration.commit()
        from delta_orch.engines.select import spark_engine

        return alteration.commit(engine=spark_engine(rows.spark))

    return run


def test_a_constraint_that_rows_satisfy_is_added(filled: DeltaTable, commit: Callable[..., Any]) -> None:
    commit(filled.alter().add_constraint("Positive", "id > 0"))
    snapshot = filled.snapshot()
    assert snapshot.metadata.configuration == {"delta.constraints.positive": "id > 0"}
    assert "checkConstraints" in {"checkConstraints"} and snapshot.protocol.min_writer_version == 3
    assert filled.history()[0].operation == "ADD CONSTRAINT"
    assert filled.history()[0].operation_parameters == {"name": "Positive", "expr": "id > 0"}


@pytest.mark.parametrize(
    ("expression", "row"),
    [("id < 3", 3), ("name IN ('a', 'c')", 2), ("length(name) = 1", 2), ("s.x IS NULL OR s.x < 3", 3)],
)
def test_a_constraint_that_a_row_breaks_is_refused_and_the_row_shown(
    filled: DeltaTable, commit: Callable[..., Any], expression: str, row: int
) -> None:
    with pytest.raises(ConstraintViolationError) as e:
        commit(filled.alter().add_constraint("c", expression))
    assert e.value.context["row"]["id"] == row
    assert "CHECK constraint c" in str(e.value)
    assert filled.version() == 0


def test_constraints_need_a_name_of_their_own_and_a_predicate_that_fits(filled: DeltaTable) -> None:
    filled.alter().add_constraint("c", "id > 0").commit()
    for name, expression, error in (
        ("C", "id > 1", InvalidRequestError),
        (" ", "id > 1", InvalidRequestError),
        ("d", "nope > 1", ColumnNotFoundError),
        ("d", "id > ", InvalidExpressionError),
        ("d", "rand() > 0.5", InvalidExpressionError),
        ("d", "id", InvalidExpressionError),
    ):
        with pytest.raises(error):
            filled.alter().add_constraint(name, expression).commit()
    assert filled.version() == 1


def test_what_is_no_condition_is_refused_without_rows(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.create([column("id", "bigint")])
    for text in ("id + 1", "upper('a')", "if(id > 0, 1, 2)"):
        with pytest.raises(InvalidExpressionError, match="is not a predicate"):
            table.alter().add_constraint("c", text).commit()
    table.alter().add_constraint("c", "soundex(CAST(id AS STRING)) = ''").commit()  # only Spark knows
    table.alter().add_constraint("d", "id % 2 = 1").commit()
    assert table.version() == 2


def test_constraints_are_dropped_by_name(filled: DeltaTable) -> None:
    filled.alter().add_constraint("c", "id > 0").commit()
    filled.alter().drop_constraint("C").commit()
    assert filled.snapshot().metadata.configuration == {}
    assert filled.history()[0].operation_parameters == {"name": "C", "expr": "id > 0", "existed": "true"}
    with pytest.raises(InvalidRequestError, match="no constraint 'c'"):
        filled.alter().drop_constraint("c").commit()
    assert filled.alter().drop_constraint("c", if_exists=True).commit().skipped


def test_not_null_is_only_set_where_there_is_none(filled: DeltaTable, commit: Callable[..., Any]) -> None:
    with pytest.raises(ConstraintViolationError) as e:
        commit(filled.alter().set_not_null("s.x"))
    assert e.value.context["row"]["s"] is None
    filled.update({"s": "named_struct('x', 2, 'y', 'z')"}, "s IS NULL")
    commit(filled.alter().set_not_null("id").set_not_null("s.x"))
    schema = filled.snapshot().schema
    assert not some(schema.find("id")).nullable
    assert not some(a(StructType, some(schema.find("s")).data_type).find("x")).nullable
    with pytest.raises(ConstraintViolationError) as e:
        commit(filled.alter().set_not_null("name"))
    assert e.value.context["row"]["id"] == 2
    with pytest.raises(ConstraintViolationError) as e:
        commit(filled.alter().set_not_null("s.y"))
    assert e.value.context["row"]["id"] == 1
    filled.alter().drop_not_null("id").commit()
    assert some(filled.snapshot().schema.find("id")).nullable
    assert filled.history()[0].operation == "CHANGE COLUMN"


def test_statistics_prove_it_without_opening_a_file(filled: DeltaTable) -> None:
    for path in filled.snapshot().files(["path"]).column("path").to_pylist():
        filled.store.delete(path)
    filled.alter().add_constraint("c", "id > 0").set_not_null("id").commit()
    assert filled.version() == 1
