"""The last transaction identifier of an application, near the end of 5,000 small commits without a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.bench_replay_many_commits import NUM_COMMITS
from benchmarks.bench_replay_many_commits import prepare as prepare

TITLE = f"Last txn of an application, near the end of {NUM_COMMITS:,} commits without a checkpoint"

Run = Callable[[Path], object]


def delta_orch(app_id: str) -> Callable[[], Run]:
    def start() -> Run:
        from delta_orch import DeltaTable

        def run(table: Path) -> int | None:
            txn = DeltaTable(table).last_txn(app_id)
            return None if txn is None else txn.version

        return run

    return start


def deltalake(app_id: str) -> Callable[[], Run]:
    def start() -> Run:
        from deltalake import DeltaTable

        return lambda table: DeltaTable(str(table)).transaction_version(app_id)

    return start


def floor(app_id: str) -> Callable[[], Run]:
    """List, read the newest first, search the bytes: the least any client in Python must do. Each commit of this log
    has its own version as that of its transaction."""

    def start() -> Run:
        import os

        needle = app_id.encode()

        def run(table: Path) -> int | None:
            log = table / "_delta_log"
            for name in sorted(os.listdir(log), reverse=True):  # noqa: PTH208
                with open(log / name, "rb", buffering=0) as file:  # noqa: PTH123
                    if needle in file.readall():
                        return int(name.removesuffix(".json"))
            return None

        return run

    return start


def contestants(app_id: str) -> dict[str, Callable[[], Run]]:
    return {"delta_orch": delta_orch(app_id), "deltalake": deltalake(app_id), "floor": floor(app_id)}


CONTESTANTS = contestants("app-20")
