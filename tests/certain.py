"""What a test knows and a type does not say: that something is there, and of which kind."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from delta_orch import DeltaTable

T = TypeVar("T")


def some(value: T | None) -> T:
    """The value, which is not None."""
    assert value is not None
    return value


def a(kind: type[T], value: object) -> T:
    """The value, which is an instance of the class."""
    assert isinstance(value, kind)
    return value


def directory(table: DeltaTable) -> Path:
    """The root of a table on disk."""
    assert table.uri.startswith("file:///")
    return Path(table.uri.removeprefix("file://"))
