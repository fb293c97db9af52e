"""What a failed request to an object store means."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class FailureKind(Enum):
    """What a failed request left behind."""

    MISSING = "there is no such object"
    EXISTS = "the name is taken; nothing was written"
    BUSY = "nothing was done, and the store asks to try again"
    REFUSED = "nothing was done"
    UNKNOWN = "the request may have taken effect"


class Failure(NamedTuple):
    """A failed request in the words of a user. The texts hold nothing secret."""

    kind: FailureKind
    cause: str
    remedy: str | None = None
    is_passing: bool = False
    """Whether the same request may succeed a little later, without anybody changing anything."""


def busy(cause: str) -> Failure:
    """The failure of a request that the store has not looked at."""
    return Failure(FailureKind.BUSY, cause, "Try again when there are fewer requests", is_passing=True)
