"""Talks to Delta on Spark, the reference implementation, in a process and an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

HOME = Path(os.environ.get("DELTA_ORCH_REFERENCE") or Path(sys.prefix) / "reference")
"""Where `scripts/setup_reference.sh` has installed it."""
SERVER = Path(__file__).parent / "reference" / "server.py"


class ReferenceError(AssertionError):
    """The reference implementation refused a statement; the message is its own."""


class Reference:
    """A running session. Tables are named by their directory: ``delta.`PATH` ``."""

    def __init__(self, process: subprocess.Popen[str], scratch: Path) -> None:
        self._process = process
        self._scratch = scratch
        self._outputs = self._requests = 0
        self.version = self._receive()["version"]

    def run(self, *statements: str) -> list[dict[str, Any]]:
        """Run statements in order.

        Returns: The rows of the last one, values as JSON has them.

        Raises:
            ReferenceError: One failed; those before it took effect.
        """
        rows: list[dict[str, Any]] = self._ask({"sql": statements, "want_rows": True})["rows"]
        return rows

    def query(self, query: str) -> pa.Table:
        """The rows of a query, in Arrow's types."""
        self._outputs += 1
        output = self._scratch / f"rows-{self._outputs}"
        self._ask({"query": query, "output": str(output)})
        # Nanoseconds, which Arrow makes of INT96, begin in 1677.
        return pq.read_table(output, coerce_int96_timestamp_unit="us")

    def read(self, path: Path, version: int | None = None) -> pa.Table:
        """All rows of a table."""
        at = "" if version is None else f" VERSION AS OF {version}"
        return self.query(f"SELECT * FROM delta.`{path}`{at}")

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._requests += 1
        self._process.stdin.write(json.dumps({**request, "number": self._requests}) + "\n")
        self._process.stdin.flush()
        reply = self._receive()
        if "error" in reply:
            raise ReferenceError(reply["error"])
        return reply

    def _receive(self) -> dict[str, Any]:
        """The reply to the last request. A test that ran out of time leaves a reply that belongs to no later test."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{") and (reply := json.loads(line))["number"] == self._requests:
                return dict(reply)
        raise ReferenceError(f"the reference implementation ended with code {self._process.wait()}")


@contextmanager
def start_reference(scratch: Path) -> Iterator[Reference]:
    """Start a session; it ends with the block, or with this process."""
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(HOME / "bin" / "python")}
    environment.pop("PYTHONPATH", None)
    command = [str(HOME / "bin" / "python"), str(SERVER), str(HOME / "jars"), str(scratch)]
    with (
        (scratch / "stderr").open("w") as errors,
        subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            yield Reference(process, scratch)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
