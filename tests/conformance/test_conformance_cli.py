"""The command line on every eighth case: every command answers, for people and as JSON, and agrees with the case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from delta_orch.cli.main import run
from tests.harness.conformance.cases import conformance_cases
from tests.harness.golden import GoldenCase, prepare_table

CASES = conformance_cases(("read", "cdf"))[::8]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: object, status: int = 0) -> Any:
        answers = []
        for flags in ([], ["--json"]):
            capsys.readouterr()
            with pytest.raises(SystemExit) as ended:
                run([*map(str, arguments), *flags])
            answers.append(capsys.readouterr().out)
            assert (ended.value.code or 0) == status, answers
        assert answers[0].strip()
        return json.loads(answers[1])

    return call


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_command(case: GoldenCase, tmp_path: Path, cli: Any) -> None:
    table, expect, output = prepare_table(case, tmp_path), case.expect, tmp_path / "rows.parquet"
    told = cli("snapshot", table)
    assert (told["version"], told["num_files"]) == (expect["version"], expect["num_files"])
    assert len(cli("files", table)["files"]) == expect["num_files"]
    names = [field["name"] for field in json.loads(expect["schema"])["fields"]]
    assert [column["path"][0] for column in told["columns"] if len(column["path"]) == 1] == names
    assert cli("history", table)[0]["version"] == expect["version"]
    # The checksum of that table disagrees with its log.
    status = int(case.name == "krs-crc-full")
    assert cli("fsck", table, status=status)["version"] == expect["version"]
    assert cli("explain", table)["total"]["num_files"] == expect["num_files"]
    shown = cli("show", table, "--limit", 3)
    assert len(shown["rows"]) == min(3, expect["total_rows"])
    assert cli("read", table, "--output", output, "--force")["num_rows"] == expect["total_rows"]
    assert pq.read_metadata(output).num_rows == expect["total_rows"]
    for feed in (expect.get("cdf") or {}).values():
        found = cli("changes", table, "--from", feed["from"], "--to", feed["to"], "--output", output, "--force")
        assert found["num_rows"] == feed["total_rows"]
