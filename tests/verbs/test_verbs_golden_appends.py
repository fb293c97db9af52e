"""Tables of other implementations with features that shape rows: their own rows are appended to a copy."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import ConstraintViolationError
from tests.harness.conformance.cases import GOLDEN, needs_golden

pytestmark = needs_golden
NAMES = [
    "dat-check_constraints",
    "dat-iceberg_compat_v1",
    "dat-cdf",
    "drs-table_with_column_mapping",
    "golden-type-widening",
    "krs-cdf-column-mapping-name-mode",
    "krs-external-table-different-nullability",
    "krs-partitioned_with_materialize_feature",
]


def copy_of(name: str, tmp_path: Path) -> DeltaTable:
    shutil.copytree(GOLDEN / name / "table", tmp_path / "copy")
    return DeltaTable(tmp_path / "copy")


def counted(table: pa.Table) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in table.to_pylist():
        found[repr(row)] = found.get(repr(row), 0) + 1
    return found


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_appended(tmp_path: Path, name: str) -> None:
    table = copy_of(name, tmp_path)
    before = table.snapshot().scan().to_arrow()
    table.append(before)
    after = table.snapshot().scan().to_arrow()
    assert counted(after) == {row: 2 * number for row, number in counted(before).items()}


def test_their_constraints_hold(tmp_path: Path) -> None:
    table = copy_of("dat-check_constraints", tmp_path)
    (constraint,) = [v for k, v in table.snapshot().metadata.configuration.items() if k.startswith("delta.constraints")]
    rows = table.snapshot().scan().to_arrow()
    column = next(name for name in rows.column_names if name in constraint)
    nothing = pa.nulls(rows.num_rows, rows.schema.field(column).type)
    with pytest.raises(ConstraintViolationError):
        table.append(rows.set_column(rows.column_names.index(column), column, nothing))


@pytest.mark.long
def test_their_generated_columns_are_computed_and_verified(rows: Any, tmp_path: Path) -> None:
    table = copy_of("spark-dbr_8_1_generated_columns", tmp_path)
    table.append(rows.data(pa.table({"c1": pa.array([1, None], pa.int32())})))
    found = rows.read(table).to_pylist()
    assert sorted(found, key=repr) == sorted([{"c1": 1, "c2": 2}, {"c1": None, "c2": None}], key=repr)
    with pytest.raises(ConstraintViolationError, match="c2"):
        table.append(rows.data(pa.table({"c1": pa.array([1], pa.int32()), "c2": pa.array([1], pa.int32())})))
