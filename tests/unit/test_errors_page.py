"""The page of errors, as the site has it, lists every error there is, and nothing else."""

from __future__ import annotations

import inspect
import pickle
import re
from pathlib import Path

import pytest

from delta_orch import errors
from delta_orch.errors import DeltaError
from scripts.site_reference import expanded

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
ERRORS = {
    kind.__name__: kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, DeltaError)
}
ENTRY = re.compile(
    r"^### `(\w+)`\n\n`(\w+)`(?:, a kind of `\w+`)?; retried: (\w+)\n\n(.{10,})\n\n\*\*What to do:\*\* (.{10,})$",
    re.MULTILINE,
)


def test_the_page_lists_all_errors() -> None:
    entries = ENTRY.findall(expanded(PAGE.read_text()))
    assert {name: (code, retried == "yes") for name, code, retried, _, _ in entries} == {
        name: (kind.code, kind.retryable) for name, kind in ERRORS.items()
    }
    some = {name for name, _, retried, _, _ in entries if retried == "some"}
    assert some == {"StorageError", "StorageOutcomeUnknownError", "CommitOutcomeUnknownError", "CatalogError"}
    assert all(kind("It broke", retryable=True).retryable for kind in ERRORS.values())
    assert len(entries) == len(ERRORS) == len({kind.code for kind in ERRORS.values()})


def test_the_tree_in_the_module_shows_all_errors() -> None:
    shown = set(re.findall(r"\w+Error\b", errors.__doc__ or ""))
    assert set(ERRORS) <= shown
    assert all(kind.__doc__ for kind in ERRORS.values())


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_errors_survive_a_process(name: str) -> None:
    error = ERRORS[name]("It broke", cause="why", remedy="Mend it", version=3)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.context) == (type(error), str(error), {"version": 3})
