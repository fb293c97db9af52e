"""What a damaged input may lead to."""

from __future__ import annotations

from enum import IntEnum


class Expectation(IntEnum):
    """Ordered: of several mutations the highest one counts."""

    SAME = 0
    """The answer of the healthy input."""
    SAME_OR_ERROR = 1
    """That answer or one of our errors; for damage that a checksum must reveal."""
    ANY = 2
    """Any answer, or one of our errors."""
