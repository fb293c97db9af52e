"""Some thousand calls of the public functions with wrong arguments; `make fuzz` makes all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.fuzz.arguments import Table, calls, run_many


@pytest.mark.long
def test_wrong_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Some values are locations.
    monkeypatch.chdir(tmp_path)
    number, failures = run_many(1_200, seed=1)
    assert number == 1_200
    assert not failures


@pytest.mark.long
def test_every_public_function_is_called() -> None:
    called = {(call.place, call.method) for call in calls(Table())}
    for expected in (
        ("DeltaTable", "append"), ("DeltaTable", "vacuum"), ("DeltaTable", "restore"), ("TableSnapshot", "scan"),
        ("Scan", "tasks"), ("ChangeFeed", "to_relation"), ("Alteration", "add_column"), ("delta_orch", "configure"),
        ("delta_orch", "DeltaTable"), ("delta_orch", "column"),
    ):  # fmt: skip
        assert expected in called
    assert len(calls(Table())) > 8_000
