"""A short run of the fuzzer, and proof that it notices what it looks for."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from delta_orch.delta_table import TableSnapshot
from delta_orch.errors import CorruptLogError
from tests.harness.conformance.cases import GOLDEN, needs_golden
from tests.harness.fuzz.__main__ import main
from tests.harness.fuzz.cases import CaseMaker, CaseReport
from tests.harness.fuzz.categories import Category
from tests.harness.fuzz.corpus import load_corpus, write_table
from tests.harness.fuzz.runner import FuzzOptions, run_cases
from tests.harness.fuzz.table_case import FuzzFinding, Reading
from tests.harness.fuzz.watched_store import WatchedStore

# Beyond doubt a hang, also on a machine that does other things at the same time.
LONGEST_CASE_SECONDS = 30.0


@pytest.mark.long
def test_no_case_fails() -> None:
    result = run_cases(range(50), FuzzOptions(seed=20_240_601, case_seconds=LONGEST_CASE_SECONDS))
    assert [f"{finding.number}: {finding.problem}" for finding in result.findings] == []
    assert result.cases == 50
    # Neither everything refused nor everything read: the mutations do reach the readers.
    assert result.outcomes["ok"] > 200
    assert sum(result.outcomes.values()) - result.outcomes["ok"] > 100
    assert len(result.kinds) > 8
    assert set(result.categories) == set(Category), "every sort of damage occurs"


@pytest.mark.long
@needs_golden
def test_no_case_of_the_golden_tables_fails() -> None:
    options = FuzzOptions(seed=20_240_602, directories=[GOLDEN], kind="table", case_seconds=LONGEST_CASE_SECONDS)
    result = run_cases(range(30), options)
    assert [f"{finding.number}: {finding.problem}" for finding in result.findings] == []


def problems(monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any], **options: Any) -> str:
    """The findings of three cases of which the second one does something else."""

    def run_or_misbehave(maker: Any, number: Any, save_to: Any = None) -> Any:
        if number == 1:
            run()
        return CaseReport("x", "x")

    monkeypatch.setattr(CaseMaker, "run", run_or_misbehave)
    result = run_cases(range(3), FuzzOptions(seed=1, **options))
    assert result.cases == 3
    assert [finding.number for finding in result.findings] == [1]
    return result.findings[0].problem


@pytest.mark.long
def test_a_hang_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no answer in time" in problems(monkeypatch, lambda: time.sleep(60), case_seconds=0.3)


def test_a_crash_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ended with -11" in problems(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGSEGV))


def test_a_foreign_exception_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ZeroDivisionError" in problems(monkeypatch, lambda: 1 // 0)


def test_memory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def allocate() -> Any:
        return len(bytearray(b"x") * (200 << 20))

    assert "MiB of memory" in problems(monkeypatch, allocate, growth_bytes=100 << 20)
    assert "MemoryError" in problems(monkeypatch, lambda: bytearray(4 << 30), address_bytes=1 << 30)


def test_leaving_the_table_is_found(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    (tmp_path / "outside").write_text("x")
    store = WatchedStore(str(tmp_path / "table"))
    store.read_bytes("../outside")
    store.data_filesystem()[0].open_input_file(str(tmp_path / "outside"))
    assert len(store.escapes) == 2
    store.escapes.clear()
    store.data_filesystem()[0].open_input_file(store.resolve(str(tmp_path / "outside")))
    assert store.escapes == [], "the log may name another place by an absolute path"


def test_tables_are_read_in_every_way(tmp_path: Path) -> None:
    tables = {seed.name: seed for seed in load_corpus()}
    write_table(tables["checksums"].files, tmp_path)
    found = Reading(tmp_path)
    assert found.errors.keys() == {"time_travel", "every change"}
    assert found.answers.keys() >= {"rows", "tasks", "fsck", "validate", "changes", "changes as of then"}
    assert found.answers["fsck"] is True
    assert "numFiles" in str(found.answers["validate"])


def test_contradictions_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {seed.name: seed for seed in load_corpus()}
    write_table(tables["flat"].files, tmp_path)
    monkeypatch.setattr(TableSnapshot, "files", lambda *_, **__: raise_corrupt())
    with pytest.raises(FuzzFinding, match="fsck finds nothing wrong"):
        Reading(tmp_path)


def raise_corrupt() -> None:
    raise CorruptLogError("not to be read")


def test_an_escape_fails_a_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WatchedStore, "head", lambda self, path: self.notice(f"{self.root}/../{path}"))
    monkeypatch.setattr(Reading, "_read", lambda self: self._store.head("x"))
    with pytest.raises(FuzzFinding, match="outside the table"):
        Reading(tmp_path)


@pytest.mark.long
def test_a_case_can_be_run_again_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--seed", "5", "--kind", "table", "--save", str(tmp_path)]
    assert main([*arguments, "--only", "7"]) == 0
    assert list(tmp_path.iterdir()) == []

    def fail(self: Reading) -> None:
        raise ValueError("always")

    monkeypatch.setattr(Reading, "_read", fail)
    assert main([*arguments, "--only", "7"]) == 1
    printed = capsys.readouterr().out
    assert "python -m tests.harness.fuzz --seed 5 --only 7 --kind table" in printed
    assert "ValueError: always" in (tmp_path / "5-7" / "problem.txt").read_text()
    assert list((tmp_path / "5-7" / "table").iterdir())


@pytest.mark.long
def test_cases_do_not_depend_on_those_before() -> None:
    maker = CaseMaker(3, kind="table")
    first = [maker.run(number) for number in (4, 5, 6)]
    again = [CaseMaker(3, kind="table").run(number) for number in (6, 5, 4)]
    assert [(r.what, r.outcomes) for r in first] == [(r.what, r.outcomes) for r in reversed(again)]
