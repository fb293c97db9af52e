"""Some thousand calls of the public functions with wrong arguments; `make fuzz` makes all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import delta_orch
from delta_orch.errors import DeltaError
from tests.harness.fuzz.arguments import Table, calls, functions, run_many


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


def test_methods_called_on_the_class() -> None:
    """`DeltaTable.append("path", rows)`: an error that says so; Python's, where not even `self` is there."""
    for make in Table().places().values():
        owner = make()
        if not isinstance(owner, type(delta_orch)):
            for name, function in functions(owner):
                for value in ("path", None, object(), {"id": 1}, type(owner)):
                    with pytest.raises(DeltaError, match=f"{name} was called on the class"):
                        function(value)
                with pytest.raises(TypeError, match="argument"):
                    function()
