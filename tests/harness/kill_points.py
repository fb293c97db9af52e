"""Death between two system calls of the local store, or in the middle of a write."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from delta_orch.storage import local, local_sync

SYSTEM_CALLS = ("open", "write", "fsync", "utime", "link", "unlink", "replace", "mkdir")
"""The calls of this module that change something, or make it durable."""


class KillingOs:
    """Stands in for the module `os` inside `storage.local`: counts `SYSTEM_CALLS` and kills the process at one of
    them.

    Args:
        number: The call to die at, from 0; None only counts.
        when: `before` or `after` it; `during` a write leaves half of the bytes, and is `before` for other calls.
    """

    def __init__(self, number: int | None, when: str) -> None:
        self.names: list[str] = []
        self._number = number
        self._when = when

    def install(self) -> None:
        """From now on, in this process, for every `LocalStore`."""
        vars(local)["os"] = vars(local_sync)["os"] = self

    def uninstall(self) -> None:
        vars(local)["os"] = vars(local_sync)["os"] = os

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._watch(name, real) if name in SYSTEM_CALLS else real

    def _watch(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            is_due = len(self.names) == self._number
            self.names.append(name)
            if is_due and self._when != "after":
                if self._when == "during" and name == "write":
                    descriptor, data = args
                    os.write(descriptor, data[: len(data) // 2])
                _die()
            try:
                return real(*args, **kwargs)
            finally:
                if is_due:
                    _die()

        return call


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
