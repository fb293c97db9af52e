"""Families of like cases: `make test` runs some of them, `make test-long` all."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest


def family(names: str | Sequence[str], cases: Collection[Any], *, every: int, **options: Any) -> pytest.MarkDecorator:
    """`pytest.mark.parametrize`, for cases that differ little: every `every`-th case from the first on is as it is, and
    the others are marked `long`.

    Args:
        names, options: As of `pytest.mark.parametrize`.
    """
    is_one = isinstance(names, str) and "," not in names
    rare = [pytest.param(*((case,) if is_one else case), marks=pytest.mark.long) for case in cases]
    return pytest.mark.parametrize(
        names, [case if number % every == 0 else rare[number] for number, case in enumerate(cases)], **options
    )
