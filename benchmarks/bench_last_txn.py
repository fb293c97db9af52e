"""The last transaction identifier of one application over 5,000 small commits without a checkpoint: recorded near the
end, and absent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.bench_replay_many_commits import NUM_COMMITS
from benchmarks.bench_replay_many_commits import prepare as prepare

TITLE = f"Last txn of an application, {NUM_COMMITS:,} commits without a checkpoint"
RECORDED, ABSENT = "app-20", "nobody"

Run = Callable[[Path], object]


def delta_orch(app_id: str) -> Callable[[], Run]:
    def start() -> Run:
        from delta_orch import DeltaTable

        return lambda table: DeltaTable(table).last_txn(app_id)

    return start


def deltalake(app_id: str) -> Callable[[], Run]:
    def start() -> Run:
        from deltalake import DeltaTable

        return lambda table: DeltaTable(str(table)).transaction_version(app_id)

    return start


def floor(app_id: str) -> Callable[[], Run]:
    """List, read the newest first, search the bytes: the least any client in Python must do."""

    def start() -> Run:
        import os

        needle = app_id.encode()

        def run(table: Path) -> str | None:
            log = table / "_delta_log"
            for name in sorted(os.listdir(log), reverse=True):  # noqa: PTH208
                with open(log / name, "rb", buffering=0) as file:  # noqa: PTH123
                    if needle in file.readall():
                        return name
            return None

        return run

    return start


CONTESTANTS = {
    f"{name}, {what}": contestant(app_id)
    for what, app_id in (("near the end", RECORDED), ("absent", ABSENT))
    for name, contestant in (("delta_orch", delta_orch), ("deltalake", deltalake), ("floor", floor))
}
