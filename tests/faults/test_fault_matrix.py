"""Every storage call of every verb × everything that can go wrong with it. `make test` takes every
eleventh case; `python -m tests.harness.fault_matrix` also kills where nothing changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from tests.harness.fault_matrix.cases import Case, Fault
from tests.harness.fault_matrix.run import MatrixReport, run_matrix
from tests.harness.fault_matrix.tables import make_templates
from tests.harness.fault_matrix.verbs import VERBS, Verb

# They make the calls of `merge, …` and `update, files written anew` again, and take a minute.
LONG = {"upsert, files written anew", "upsert, tracked rows"}
SHORT = [verb for verb in VERBS if verb.name not in LONG]
WRITES = [verb for verb in VERBS if not verb.is_read and verb.name != "create, is there"]


@pytest.fixture(scope="module")
def total() -> Iterator[MatrixReport]:
    """What all verbs together have had; shown at the end, with `-s`."""
    report = MatrixReport()
    yield report
    print(f"\n{report.table()}")  # noqa: T201


def test_the_long_form_has_what_the_suite_leaves_out() -> None:
    assert {verb.name for verb in VERBS} >= LONG


def ensure_held(report: MatrixReport, verb: Verb) -> MatrixReport:
    assert report.failures == []
    # The calls of threads come in any order, but not in any number.
    assert report.missed == []
    assert report.calls[verb.name]
    assert report.count()
    return report


def every_eleventh(cases: Sequence[Case]) -> Sequence[Case]:
    """A prime number, so that each fault comes up: a call has up to seven."""
    return cases[::11]


@pytest.mark.parametrize("verb", SHORT, ids=lambda verb: verb.name)
def test_nothing_is_lost_doubled_or_half_there(verb: Verb, total: MatrixReport) -> None:
    total.add(ensure_held(run_matrix([verb], choose=every_eleventh), verb))


@pytest.mark.long
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_call_and_every_fault(verb: Verb, total: MatrixReport) -> None:
    report = ensure_held(run_matrix([verb]), verb)
    total.add(report)
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
