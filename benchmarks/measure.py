"""One measured run in this process: `python -m benchmarks.measure MODULE CONTESTANT PATH`, figures as JSON.

A JVM that the run has started counts as part of it, in time and in memory.
"""

from __future__ import annotations

import json
import os
import pkgutil
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

_PROCESSES = Path("/proc")
_CORE = (
    "protocol",
    "storage",
    "expressions",
    "table",
    "log",
    "engines.local",
    "scan",
    "change_feed",
    "writing",
    "verbs",
)


def peak_memory_bytes() -> int:
    """The most physical memory this process and those below it have held, each at its own peak. Where /proc exists,
    without what its parent held before it."""
    if not _PROCESSES.exists():
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return sum(_status_bytes(process, "VmHWM:") for process in _process_tree())


def cpu_seconds() -> float:
    """Processor time of this process and of those below it that are still there."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    seconds = own.ru_utime + own.ru_stime
    if _PROCESSES.exists():
        others = (process for process in _process_tree() if process.name != str(os.getpid()))
        # After the name, which may hold blanks: user and system time are the 12th and 13th.
        fields = ((process / "stat").read_text().rpartition(")")[2].split() for process in others)
        seconds += sum(int(f[11]) + int(f[12]) for f in fields) / os.sysconf("SC_CLK_TCK")
    return seconds


def _process_tree() -> Iterator[Path]:
    """This process and all below it, as directories of /proc."""
    found = [_PROCESSES / str(os.getpid())]
    while found:
        process = found.pop()
        yield process
        for thread in (process / "task").iterdir():
            with suppress(OSError):  # the thread has ended
                found += [_PROCESSES / child for child in (thread / "children").read_text().split()]


def _status_bytes(process: Path, name: str) -> int:
    lines = (process / "status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)


def import_the_core() -> None:
    """Every module of the package below its plugins. It imports most of them when a call needs them; what a first call
    takes for that is the affair of `cold_process` alone."""
    for room in _CORE:
        package = import_module(f"delta_orch.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)


def main() -> None:
    """Import, warm up where the benchmark wants it, run once, tell."""
    module_name, contestant, path = sys.argv[1:]
    module = import_module(module_name)
    run = module.CONTESTANTS[contestant]()
    if "delta_orch" in sys.modules:
        import_the_core()
    for _ in range(getattr(module, "WARM_UPS", 0)):
        run(Path(path))
    before_bytes, before_cpu = peak_memory_bytes(), cpu_seconds()
    started = time.perf_counter()
    result = run(Path(path))
    figures = {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": cpu_seconds() - before_cpu,
        "peak_bytes": peak_memory_bytes(),
        "before_bytes": before_bytes,
        "result": repr(result),
    }
    json.dump(figures, sys.stdout)


if __name__ == "__main__":
    main()
