"""The conformance run itself: it cannot pass over a case in silence, and the page says what the run says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from delta_orch.engines.local.engine import LocalEngine
from delta_orch.table.registry import FEATURES
from tests.harness.conformance.__main__ import main
from tests.harness.conformance.cases import GOLDEN, needs_golden
from tests.harness.conformance.made_tables import made_cases
from tests.harness.conformance.page import replaced
from tests.harness.conformance.runner import CaseResult, Outcome, run_cases, skip_reason
from tests.harness.golden import ALL_KINDS, GoldenCase, load_cases

HERE = Path(__file__).parents[2]


@needs_golden
def test_the_page_fits_the_cases_and_the_registry() -> None:
    """That each case passes is what the other tests of this folder show; here, that the page counts them all."""
    cases = load_cases(GOLDEN, ALL_KINDS)
    assert len(cases) == len(json.loads((GOLDEN / "index.json").read_bytes())), "every kind is known"
    results = [_as_it_should_end(case, engine) for engine in ("local", "spark") for case in cases]
    page = (HERE / "docs" / "read-cases.md").read_text()
    assert replaced(page, results) == page, "run `make conformance` and commit docs/read-cases.md"


def _as_it_should_end(case: GoldenCase, engine: str) -> CaseResult:
    reason = skip_reason(case, engine)
    return CaseResult(case, engine, Outcome.SKIPPED if reason else Outcome.PASSED, reason or "")


def test_what_cannot_be_read_needs_a_catalog_or_says_what_it_is() -> None:
    unread = [f for f in FEATURES if not f.reads]
    assert [f.name for f in unread if not f.what] == ["catalogManaged"]
    assert "timestampNanos" in [f.name for f in unread]


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    """One case, of which the expectation is wrong."""
    case = made_cases(("read",))[0]
    shutil.copytree(case.directory, tmp_path / "one")
    definition = dict(case.definition)
    definition["expect"] = {**definition["expect"], "num_files": 4711}
    (tmp_path / "one" / "case.json").write_text(json.dumps(definition))
    entry = {"name": "one", "kind": "read", "features": list(case.features), "path": "one"}
    (tmp_path / "index.json").write_text(json.dumps([entry]))
    return tmp_path


def test_a_case_that_differs_fails(collection: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (result,) = run_cases(load_cases(collection), {"local": LocalEngine()})
    assert result.outcome is Outcome.FAILED
    assert "num_files" in result.why
    page = collection / "page.md"
    assert main(["--tables", str(collection), "--engine", "local", "--page", str(page)]) == 1
    assert "FAILED one on local" in capsys.readouterr().out
    assert not page.exists()


def test_a_case_that_was_not_run_fails(collection: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = collection / "index.json"
    entries = [{**json.loads(index.read_bytes())[0], "kind": "of another time"}]
    index.write_text(json.dumps(entries))
    assert main(["--tables", str(collection), "--engine", "local"]) == 1
    assert "one was not run on local" in capsys.readouterr().out
    assert main(["--tables", str(collection / "nowhere")]) == 1
