"""Child processes of the demo: started with a log file each, and gone when the demo is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from delta_orch.protocol.actions import JsonValue
from tests.demo.faults import wait_for
from tests.demo.places import Places
from tests.demo.worker import ready_file

WORKER_TIMEOUT_SECONDS = 600


class Process:
    """A child process and its log."""

    def __init__(self, places: Places, name: str, popen: subprocess.Popen[bytes]) -> None:
        self.name = name
        self._places = places
        self._popen = popen

    def wait(self) -> int:
        """Its exit code; negative for the signal that ended it."""
        return self._popen.wait(WORKER_TIMEOUT_SECONDS)

    def wait_until_held(self) -> None:
        """Return once it stands right before its first commit.

        Raises:
            TimeoutError: It ended before, or takes too long.
        """
        wait_for(ready_file(self._places, self.name), WORKER_TIMEOUT_SECONDS, lambda: self._popen.poll() is not None)

    def ensure_success(self) -> None:
        """Wait, and raise RuntimeError unless it ended well."""
        code = self.wait()
        if code != 0:
            raise RuntimeError(
                f"The process {self.name} ended with code {code}; see {log_path(self._places, self.name)}"
            )

    def stop(self) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait()


class Processes:
    """Starts child processes; a context manager that leaves none behind."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._started: list[Process] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self._started:
            process.stop()

    def worker(self, name: str, *options: str) -> Process:
        """Start `tests.demo.worker`."""
        return self.module("tests.demo.worker", name, ["--name", name, *options], {"FLIGHTS_SPARK_CORES": "1"})

    def command(self, *arguments: str) -> dict[str, JsonValue]:
        """Run `delta-orch` to its end: what it prints with `--json`. Raises RuntimeError unless it ended well."""
        done = subprocess.run(
            [sys.executable, "-m", "delta_orch.cli.main", *arguments, "--json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WORKER_TIMEOUT_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"delta-orch {' '.join(arguments)} ended with code {done.returncode}: {done.stderr}")
        printed: dict[str, JsonValue] = json.loads(done.stdout)
        return printed

    def module(
        self, module: str, name: str, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> Process:
        """Start a module of this package."""
        with log_path(self._places, name).open("wb") as log:
            popen = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )
        process = Process(self._places, name, popen)
        self._started.append(process)
        return process


def log_path(places: Places, name: str) -> Path:
    return places.logs / f"{name}.log"
