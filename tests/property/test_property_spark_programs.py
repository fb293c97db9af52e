"""Random SQL over tables of this package gives what it gives over the same rows in memory, under random settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.spark


@pytest.mark.long
@pytest.mark.parametrize(("which", "seed"), [("spark", 1), ("spark_connect", 2)])
def test_programs_over_tables_and_over_plain_rows(
    request: pytest.FixtureRequest, tmp_path: Path, which: str, seed: int
) -> None:
    session: Any = request.getfixturevalue(which)
    from tests.property.spark_programs import check_programs

    assert check_programs(session, tmp_path, seed, 10) > 4
