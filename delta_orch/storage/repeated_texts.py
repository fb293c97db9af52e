"""Which texts of a Parquet file are repeated from dictionaries: how they are read, and how much they take."""

from __future__ import annotations

from typing import NamedTuple


class RepeatedTexts(NamedTuple):
    """What is known of the texts of a file before they are read.

    Attributes:
        dictionaries: The leaf columns, by their dotted paths, that can be read as dictionaries: every value is in one.
        wide: Those of them that repeat long values: as a dictionary, a column takes a fraction.
        row_bytes: What the values of other texts take in a row, going by the dictionaries that some of them are in.
    """

    dictionaries: tuple[str, ...] = ()
    wide: frozenset[str] = frozenset()
    row_bytes: int = 0
