"""A submitted program commits under the transaction of the step that submitted it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch import DeltaTable, TxnId
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.parse import parse_expression
from delta_orch.pipeline.submitted import RUN_VARIABLE, SubmittedRun, submitted_run

SCRIPT = """
import pyarrow as pa
from delta_orch import submitted_run
run = submitted_run()
result = run.table().append(pa.table({"i": [1, 2]}), **run.options)
print(result.version, result.skipped)
"""


def test_a_script_commits_once(tmp_path: Path) -> None:
    run = SubmittedRun(str(tmp_path / "t"), (TxnId("airflow:d.t:2024", 7),), '{"try_number": 2}')
    said = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**run.environment(), "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            check=True,
        )
        said.append(done.stdout.strip())
    assert said == ["0 False", "0 True"]
    table = DeltaTable(tmp_path / "t")
    assert table.snapshot().scan().to_arrow() == pa.table({"i": [1, 2]})
    assert table.txns() == {"airflow:d.t:2024": 7}
    assert table.history()[0].user_metadata == '{"try_number": 2}'


def test_every_field_travels() -> None:
    txns = (
        TxnId("a", 1, scope=parse_expression("`odd name` = 'x''y'")),
        TxnId("b", 2, follows=-1),
        TxnId("c", 3, is_unit=True, replaces=True),
        TxnId("d", 4, ordered=True),
    )
    run = SubmittedRun("s3://lake/ü t", txns)
    assert submitted_run(run.environment()) == run


@pytest.mark.parametrize(
    "text", [None, "", "{}", "[]", '{"format": 99}', '{"format": 1, "table_uri": "x", "txns": [1]}']
)
def test_what_is_no_run_is_refused(text: str | None) -> None:
    with pytest.raises(InvalidRequestError, match=RUN_VARIABLE):
        submitted_run({} if text is None else {RUN_VARIABLE: text})
