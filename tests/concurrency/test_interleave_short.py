"""Pairs of verbs through the interleavings of their storage calls: a short form of `make interleave`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from delta_orch.testing import open_table
from tests.harness.interleave import explore, verbs
from tests.harness.interleave.__main__ import main
from tests.harness.interleave.explore import Case, Report

SAMPLES = [
    Case(("delete", "delete_2"), "vectors", "Serializable"),
    Case(("merge", "merge_5"), "vectors", "WriteSerializable"),
    Case(("update", "optimize"), "vectors", "WriteSerializable"),
    Case(("delete", "vacuum"), "feed", "WriteSerializable"),
    Case(("read", "cleanup"), "feed", "WriteSerializable"),
    Case(("read", "vacuum"), "plain", "WriteSerializable"),
    Case(("read", "overwrite"), "vectors", "Serializable"),
    Case(("append", "checkpoint"), "feed", "Serializable"),
    Case(("replace_where", "alter"), "plain", "WriteSerializable"),
    Case(("restore", "append"), "vectors", "Serializable"),
    Case(("delete", "delete_2", "append"), "vectors", "WriteSerializable"),
    Case(("ingest", "ingest"), "plain", "WriteSerializable"),
    Case(("ingest", "overwrite"), "plain", "Serializable"),
]


@pytest.mark.parametrize("case", SAMPLES, ids=lambda case: ",".join(case.verbs))
def test_every_schedule_ends_like_a_serial_order(case: Case) -> None:
    report = Report()
    # A merge takes longer than the others together. `make interleave` tries more schedules.
    explore.explore(case, report, limit=3 if "merge" in case.verbs else 5, crashes=2, seed=1)
    assert report.violations == []
    assert report.crashes == 2
    assert report.schedules > report.redundant


@pytest.fixture
def careless() -> Iterator[None]:
    """A verb that overwrites what it has not seen: it must be found."""

    def overwrite_unseen(table: Any, **_: Any) -> Any:
        snapshot = table.snapshot()
        rows = snapshot.scan().to_arrow()
        return open_table(table.store).overwrite(rows.filter(pc.not_equal(rows["id"], 0)))

    verbs.VERBS["careless"] = overwrite_unseen
    yield
    del verbs.VERBS["careless"]


@pytest.mark.usefixtures("careless")
def test_a_lost_update_is_found_and_its_line_repeats_it(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    explore.explore(Case(("delete", "careless"), "plain", "WriteSerializable"), report, limit=60, crashes=0, seed=1)
    assert report.violations
    line = re.sub(r"^python -m tests\.harness\.interleave ", "", report.violations[0].splitlines()[0])
    assert main(shlex.split(line)) == 1
    assert "no serial order" in capsys.readouterr().out


def test_the_makefile_knows_it() -> None:
    assert "tests.harness.interleave" in (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
