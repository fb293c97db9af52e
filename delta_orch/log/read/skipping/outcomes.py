"""What a predicate may be, file by file: a set out of true, false and null, for the rows of each file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.log.files.arrow_building import all_booleans, bool_array


@dataclass(frozen=True, slots=True)
class Outcomes:
    """For each file which results are possible for some of its rows; each a BooleanArray without nulls.

    Never too small: a result that occurs is always marked. Where exactly one is marked, all rows have it.
    """

    true: pa.BooleanArray
    false: pa.BooleanArray
    null: pa.BooleanArray

    @classmethod
    def unknown(cls, num_files: int) -> Outcomes:
        every = all_booleans(True, num_files)
        return cls(every, every, every)

    @classmethod
    def of_constant(cls, value: bool | None, num_files: int) -> Outcomes:
        yes, no = all_booleans(True, num_files), all_booleans(False, num_files)
        return cls(yes if value is True else no, yes if value is False else no, yes if value is None else no)

    @classmethod
    def of_exact(cls, values: pa.BooleanArray) -> Outcomes:
        """From the one result that all rows of a file have."""
        return cls(_known(values), _known(pc.invert(values)), values.is_null())

    def or_unknown(self, is_unknown: pa.BooleanArray) -> Outcomes:
        """The same, with every result possible where the mask says so."""
        return Outcomes(pc.or_(self.true, is_unknown), pc.or_(self.false, is_unknown), pc.or_(self.null, is_unknown))

    def inverted(self) -> Outcomes:
        """NOT."""
        return Outcomes(self.false, self.true, self.null)

    def is_null(self) -> Outcomes:
        """IS NULL of the predicate itself."""
        return Outcomes(self.null, pc.or_(self.true, self.false), all_booleans(False, len(self.null)))

    def compared(self, results: dict[bool | None, bool | None]) -> Outcomes:
        """The predicate's result mapped: `results` gives for true, false and null what becomes of it."""
        nothing = all_booleans(False, len(self.true))
        marks: dict[bool | None, pa.BooleanArray] = {True: nothing, False: nothing, None: nothing}
        for before, possible in ((True, self.true), (False, self.false), (None, self.null)):
            after = results[before]
            marks[after] = pc.or_(marks[after], possible)
        return Outcomes(marks[True], marks[False], marks[None])

    def all_true(self) -> pa.BooleanArray:
        return pc.and_not(self.true, pc.or_(self.false, self.null))


def all_of(outcomes: Sequence[Outcomes]) -> Outcomes:
    """AND; of at least one."""
    return reduce(_and, outcomes)


def any_of(outcomes: Sequence[Outcomes]) -> Outcomes:
    """OR; of at least one."""
    return reduce(_and, [o.inverted() for o in outcomes]).inverted()


def _and(a: Outcomes, b: Outcomes) -> Outcomes:
    not_false_a, not_false_b = pc.or_(a.true, a.null), pc.or_(b.true, b.null)
    return Outcomes(
        true=pc.and_(a.true, b.true),
        false=pc.or_(a.false, b.false),
        null=pc.or_(pc.and_(a.null, not_false_b), pc.and_(b.null, not_false_a)),
    )


def _known(values: pa.BooleanArray) -> pa.BooleanArray:
    return pc.coalesce(values, bool_array([False])[0])
