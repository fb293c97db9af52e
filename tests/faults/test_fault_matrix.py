"""Every storage call of every verb × everything that can go wrong with it; `python -m tests.harness.fault_matrix`
also kills where nothing changes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.fault_matrix.cases import Fault
from tests.harness.fault_matrix.run import MatrixReport, run_matrix
from tests.harness.fault_matrix.tables import make_templates
from tests.harness.fault_matrix.verbs import VERBS, Verb
from tests.share import IS_ALL, sample

# They make the calls of `merge, …` and `update, files written anew` again, and take a minute.
LONG = {"upsert, files written anew", "upsert, tracked rows"}
SHORT = [verb for verb in VERBS if IS_ALL or verb.name not in LONG]
WRITES = [verb for verb in VERBS if not verb.is_read and verb.name != "create, is there"]


@pytest.fixture(scope="module")
def total() -> Iterator[MatrixReport]:
    """What all verbs together have had; shown at the end, with `-s`."""
    report = MatrixReport()
    yield report
    print(f"\n{report.table()}")  # noqa: T201


def test_the_long_form_has_what_the_suite_leaves_out() -> None:
    assert {verb.name for verb in VERBS} >= LONG


@pytest.mark.parametrize("verb", SHORT, ids=lambda verb: verb.name)
def test_nothing_is_lost_doubled_or_half_there(verb: Verb, total: MatrixReport) -> None:
    # Of each fault and of each call some; a third of all would be a minute and a half more.
    report = run_matrix([verb], choose=lambda cases: sample(cases, 12, lambda case: (case.fault, case.method)))
    assert report.failures == []
    # The calls of threads come in any order, but not in any number.
    assert report.missed == []
    total.add(report)
    assert report.calls[verb.name]
    assert report.count()
    if not IS_ALL:
        return
    assert report.count(fault=Fault.BEFORE) == report.count(fault=Fault.HANG) == report.calls[verb.name]
    assert report.count(fault=Fault.KILL_BEFORE)
    if verb in WRITES:
        assert report.count(fault=Fault.AFTER)
        assert report.count(fault=Fault.KILL_AFTER)
    if verb.template != "none":
        assert report.count(fault=Fault.STALE)


def test_every_template_has_a_past_that_listings_may_show() -> None:
    for name, template in make_templates().items():
        assert (template.past.keys() != template.now.keys()) == (name != "none")
