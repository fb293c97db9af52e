"""Values as NumPy and pandas have them, in place of Python's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from delta_orch import DeltaTable, literal
from delta_orch.errors import InvalidExpressionError, InvalidRequestError


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.int8(3), 3),
        (np.uint64(1 << 63), 1 << 63),
        (np.float32(1.5), 1.5),
        (np.float64("nan"), float("nan")),
        (np.bool_(False), False),
        (np.array(7), 7),
        ([np.int64(1), np.int64(2)], [1, 2]),
        (pd.Timestamp("2024-01-02T03:04:05.000006Z"), pd.Timestamp("2024-01-02T03:04:05.000006Z").to_pydatetime()),
    ],
)
def test_a_number_is_the_constant_that_python_has(value: object, plain: object) -> None:
    found, expected = literal(value), literal(plain)
    assert found == expected or str(found) == str(expected)  # NaN equals nothing


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (np.array([1]), "ndarray cannot be a constant"),
        (np.datetime64("2024-01-01"), "datetime64 cannot be a constant"),
        (pd.Timestamp("2024-01-01T00:00:00.000000500Z"), "has nanoseconds"),
        (pd.NaT, "NaT cannot be a constant"),
        ([pd.Timestamp("2024-01-01T00:00:00.000000500Z")], "has nanoseconds"),
    ],
)
def test_what_would_change_is_refused(value: object, match: str) -> None:
    with pytest.raises(InvalidExpressionError, match=match):
        literal(value)


def test_versions_of_transactions(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path)
    rows = pa.table({"id": [1]})
    assert table.append(rows, txn=("loader", np.int32(4))).version == 0  # type: ignore[arg-type]
    assert table.append(rows, txn=("loader", 4)).skipped
    assert dict(DeltaTable(tmp_path).snapshot().txns) == {"loader": 4}
    for wrong in (np.int64(-1), np.bool_(True), np.float64(5)):
        with pytest.raises(InvalidRequestError, match="not an idempotency key"):
            table.append(rows, txn=("loader", wrong))  # type: ignore[arg-type]
