"""The last transaction identifier of an application that 5,000 small commits without a checkpoint never name."""

from __future__ import annotations

from benchmarks.bench_last_txn import contestants
from benchmarks.bench_replay_many_commits import NUM_COMMITS
from benchmarks.bench_replay_many_commits import prepare as prepare

TITLE = f"Last txn of an application that has none, {NUM_COMMITS:,} commits without a checkpoint"

CONTESTANTS = contestants("nobody")
