"""The client of the reference: the reply to one test never answers another test."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.reference_client import Reference


class _Slow:
    """A process whose first reply comes after the time of the test that waits for it."""

    def __init__(self) -> None:
        self.stdin = io.StringIO()
        replies = ({"version": "4.2.0"}, TimeoutError(), {"rows": [{"id": 1}]}, {"rows": [{"id": 2}]})
        self._replies = iter(replies)
        self._numbers = iter(range(3))
        self.stdout = self

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        reply = next(self._replies)
        if isinstance(reply, TimeoutError):
            raise reply
        return json.dumps({"number": next(self._numbers), **reply})


def test_the_reply_to_an_interrupted_request_answers_no_later_one(tmp_path: Path) -> None:
    reference = Reference(_Slow(), tmp_path)  # type: ignore[arg-type]
    with pytest.raises(TimeoutError):
        reference.run("SELECT 1 AS id")
    assert reference.run("SELECT 2 AS id") == [{"id": 2}]
