"""What sorts of damage there are, and which of them a case has seen."""

from __future__ import annotations

from enum import StrEnum
from random import Random


class Category(StrEnum):
    """A sort of damage. The fuzzer counts the cases in which each occurred."""

    BIT_FLIPS = "bit flips"
    TRUNCATION = "truncation"
    OTHER_BYTES = "other bytes"
    SWAPPED_FILES = "swapped, missing and misplaced files"
    SIZES_AND_OFFSETS = "hostile sizes and offsets"
    HUGE_COUNTS = "huge counts"
    DEEP_NESTING = "deep nesting"
    OUTSIDE_PATHS = "paths out of the table"
    OTHER_CONTENT = "sound format, other content"


class CaseRandom(Random):
    """The randomness of one case, which remembers what sorts of damage came of it.

    Attributes:
        categories: Those that occurred.
    """

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        self.categories: set[Category] = set()


def note(rng: Random, *categories: Category) -> None:
    """Remember that this sort of damage was done, where the randomness is that of a case."""
    if isinstance(rng, CaseRandom):
        rng.categories.update(categories)
