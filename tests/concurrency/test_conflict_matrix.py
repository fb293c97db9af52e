"""The documented conflict matrix, held against what happens when the interleaving is forced."""

from __future__ import annotations

import pytest

import tests.concurrency.conflict_matrix as conflict_matrix
from tests.concurrency.conflict_matrix import (
    FIRST_WRITES,
    LEVELS,
    OPERATIONS,
    PHASES,
    ROW_TABLES,
    WHOLE_FIRST,
    base_files,
    documented,
    new_table,
    outcomes,
    row_outcomes,
    run,
    whole_outcomes,
)
from tests.families import family

STARTING_ANEW = ("set owner", "set delta.appendOnly", "add column", "add feature", "drop columnMapping")


def cells(first: str, table: int) -> dict[str, str]:
    """One row of one of the documented tables: second operation → cell."""
    lines = [line for line in documented().splitlines() if line.startswith("|")]
    starts = [number for number, line in enumerate(lines) if line.startswith("| committed first")]
    head, *body = lines[starts[table] : [*starts, len(lines)][table + 1]]
    names = [cell.strip() for cell in head.strip("|").split("|")][1:]
    for line in body:
        name, *found = [cell.strip() for cell in line.strip("|").split("|")]
        if name == first:
            return dict(zip(names, found, strict=True))
    raise AssertionError(f"docs/conflicts.md has no row {first!r}")


@family("first", OPERATIONS, every=2)
def test_what_the_document_says_is_what_happens(first: str) -> None:
    """On every isolation level, and the table is as after a serial order."""
    found = {second: conflict_matrix.cell(by_level) for _, second, by_level in outcomes(first)}
    assert found == cells(first, 0)


@family("phase", [name for name, phase in PHASES.items() if phase.after_loss], every=4)
@pytest.mark.parametrize("first", ["replace id < 10", "optimize"])
def test_the_moment_makes_no_difference(first: str, phase: str) -> None:
    expected = cells(first, 0)
    for second, verb in OPERATIONS.items():
        outcome = run(new_table(base_files()), OPERATIONS[first], verb, None, PHASES[phase])
        # What was overtaken once before and starts anew (an alteration) may find the other commit there already.
        usual = expected[second].partition(";")[0]
        assert outcome == usual or (second in STARTING_ANEW and outcome == "✓"), second


# All of them, at every level, run where the document is written; here are those in which a row decides.
ROW_SAMPLES = [
    ("append", True, LEVELS),
    ("delete id = 1", True, LEVELS[:1]),
    ("upsert 2, 7", True, LEVELS[:1]),
    ("insert 5 if missing", True, LEVELS[:1]),
    ("update id = 2", False, LEVELS[:1]),
]


@pytest.mark.parametrize(("first", "vectors", "levels"), ROW_SAMPLES)
def test_what_changes_single_rows(first: str, vectors: bool, levels: tuple[str, ...]) -> None:
    table = 2 + list(ROW_TABLES.values()).index(vectors)
    found = {second: by_level for _, second, by_level in row_outcomes(first, vectors, levels)}
    expected = cells(first, table)
    for second, by_level in found.items():
        told = expected[second] if levels == LEVELS else expected[second].partition(";")[0]
        assert conflict_matrix.cell(by_level) == told, second


@pytest.mark.parametrize("first", FIRST_WRITES)
def test_first_writers(first: str) -> None:
    found = {second: run(new_table(), FIRST_WRITES[first], verb, None) for second, verb in FIRST_WRITES.items()}
    assert found == cells(first, 1)


@pytest.mark.parametrize("first", WHOLE_FIRST)
def test_the_table_as_a_whole(first: str) -> None:
    assert dict(whole_outcomes(first)) == cells(first, 2 + len(ROW_TABLES))
