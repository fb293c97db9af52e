"""Paths into a variant: `$.name`, `$['name']`, `$[0]`, and any chain of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from delta_orch.errors import InvalidRequestError

Path = tuple[str | int, ...]
"""Steps from the root: a field's name or an element's index."""

_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]'"]+) | \[(?P<index>\d{1,10})\] | \['(?P<single>[^']*)'\] | \["(?P<double>[^"]*)"\]""",
    re.VERBOSE,
)


def parse_path(path: str | Sequence[str | int]) -> Path:
    """The steps of a path.

    Args:
        path: Text that starts with `$` (Spark's `variant_get` has the same form), or the steps themselves: a name that
            text cannot spell is given that way.

    Raises:
        InvalidRequestError: It is no path.
    """
    if not isinstance(path, str):
        for step in path:
            if not isinstance(step, (str, int)) or isinstance(step, bool) or (isinstance(step, int) and step < 0):
                raise _no_path(repr(step), "steps are names and indexes from 0")
        return tuple(path)
    if not path.startswith("$"):
        raise _no_path(path, "it must start with $")
    steps: list[str | int] = []
    at = 1
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            raise _no_path(path, f"character {at + 1} starts no step")
        kind = match.lastgroup or ""
        steps.append(int(match[kind]) if kind == "index" else match[kind])
        at = match.end()
    return tuple(steps)


def _no_path(path: str, cause: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{path!r} is not a variant path",
        cause=cause,
        remedy="Write it like $.name, $['a name'] or $.list[0], or give the steps as a list",
    )
