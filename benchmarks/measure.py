"""One measured run in this process: `python -m benchmarks.measure MODULE CONTESTANT PATH`, figures as JSON."""

from __future__ import annotations

import json
import resource
import sys
import time
from importlib import import_module
from pathlib import Path


def peak_memory_bytes() -> int:
    """The most physical memory this process has held. Where /proc exists, without what its parent held before it."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main() -> None:
    """Import, run once, tell."""
    module_name, contestant, path = sys.argv[1:]
    run = import_module(module_name).CONTESTANTS[contestant]()
    before_bytes = peak_memory_bytes()
    started = time.perf_counter()
    result = run(Path(path))
    seconds = time.perf_counter() - started
    json.dump(
        {"seconds": seconds, "peak_bytes": peak_memory_bytes(), "before_bytes": before_bytes, "result": repr(result)},
        sys.stdout,
    )


if __name__ == "__main__":
    main()
