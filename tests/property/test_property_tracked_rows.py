"""Any sequence of verbs on a table with row tracking, deletion vectors, in-commit timestamps and metadata domains: rows
keep their identity for as long as they live, ids are never given again, and time goes forward."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import orjson
import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from delta_orch import DeltaTable
from delta_orch.table.row_tracking import parse_high_water_mark
from tests.harness.row_deletion import marked_rows, replace_vectors, write_vectors
from tests.harness.table_builder import begin

PROPERTIES = {
    "delta.enableDeletionVectors": "true",
    "delta.enableInCommitTimestamps": "true",
    "delta.feature.domainMetadata": "supported",
}


class TrackedRows(RuleBasedStateMachine):
    """`rows[number]` is the day of a row that lives; `identity[number]` its row id and commit version, once known."""

    @initialize(
        partitioned=st.booleans(),
        mode=st.sampled_from(["none", "name", "id"]),
        interval=st.sampled_from(["1", "4", "100"]),
        backfilled=st.booleans(),
    )
    def create(self, partitioned: bool, mode: str, interval: str, backfilled: bool) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.table = DeltaTable(self.folder / "t")
        self.rows: dict[int, str] = {}
        self.identity: dict[int, tuple[int, int]] = {}
        self.highest = -1
        self.domains: dict[str, str] = {}
        self.next_number = 0
        tracking = {"delta.enableRowTracking": "true"}
        properties = {**PROPERTIES, "delta.columnMapping.mode": mode, "delta.checkpointInterval": interval}
        first = self.new_rows(["a", "b", "a"])
        partition_by = ["day"] if partitioned else None
        self.table.append(
            first, partition_by=partition_by, properties=properties if backfilled else {**properties, **tracking}
        )
        if backfilled:
            self.table.append(self.new_rows(["b"]))
            self.table.alter().set_properties(tracking).commit()

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder, ignore_errors=True)

    def new_rows(self, days: list[str]) -> pa.Table:
        numbers = list(range(self.next_number, self.next_number + len(days)))
        self.next_number += len(days)
        self.rows.update(zip(numbers, days, strict=True))
        return pa.table({"day": pa.array(days, pa.string()), "number": pa.array(numbers, pa.int64())})

    @rule(days=st.lists(st.sampled_from("ab"), min_size=1, max_size=5))
    def append(self, days: list[str]) -> None:
        self.table.append(self.new_rows(days))

    @rule(day=st.sampled_from("ab"))
    def replace_day(self, day: str) -> None:
        for number in [n for n, d in self.rows.items() if d == day]:
            del self.rows[number]
        self.table.overwrite(self.new_rows([day]), replace_where=f"day = '{day}'")

    @rule(low=st.integers(0, 40), width=st.integers(0, 8))
    def drop_range(self, low: int, width: int) -> None:
        """Rewrites files in part: what is kept is copied."""
        none = pa.table({"day": pa.array([], pa.string()), "number": pa.array([], pa.int64())})
        self.table.overwrite(none, replace_where=f"number BETWEEN {low} AND {low + width}")
        self.rows = {n: d for n, d in self.rows.items() if not low <= n <= low + width}

    @rule(seed=st.integers(0, 1 << 16), inline=st.booleans())
    def delete_by_vector(self, seed: int, inline: bool) -> None:
        """Every third row or so of each file, by position, on top of what is deleted already."""
        snapshot = self.table.snapshot()
        files = snapshot.files()
        known = marked_rows(self.table, files)
        chosen, marks = [], []
        for row, (stats, before) in enumerate(zip(files["stats"].to_pylist(), known, strict=True)):
            count = orjson.loads(stats)["numRecords"]
            more = {i for i in range(count) if hash((seed, row, i)) % 3 == 0}
            if more - before:
                chosen.append(row)
                marks.append(before | more)
        if not chosen:
            return
        transaction = begin(self.table, snapshot, operation="DELETE")
        replace_vectors(transaction, files.take(chosen), write_vectors(self.table, marks, inline=inline))
        transaction.commit()
        read = self.table.snapshot().scan(["number"]).to_arrow()["number"].to_pylist()
        assert set(read) < set(self.rows)
        self.rows = {n: self.rows[n] for n in read}

    @rule(size=st.sampled_from([None, 1, 900]), ratio=st.sampled_from([0, 0.5, 1]))
    def optimize(self, size: int | None, ratio: float) -> None:
        self.table.optimize(target_file_size_bytes=size, max_deleted_rows_ratio=ratio)

    @rule(name=st.sampled_from("xy"), text=st.text(max_size=4))
    def set_domain(self, name: str, text: str) -> None:
        self.table.set_domain_metadata(name, text)
        self.domains[name] = text

    @rule(name=st.sampled_from("xy"))
    def remove_domain(self, name: str) -> None:
        result = self.table.remove_domain_metadata(name)
        assert result.skipped == (self.domains.pop(name, None) is None)

    @rule()
    def vacuum(self) -> None:
        self.table.vacuum(retention_hours=0, enforce_retention=False)

    @rule()
    def checkpoint(self) -> None:
        self.table.checkpoint()

    @invariant()
    def rows_are_who_they_were(self) -> None:
        if not hasattr(self, "table"):
            return
        fresh = DeltaTable(self.folder / "t")
        snapshot = fresh.snapshot()
        read = snapshot.scan(row_tracking=True).to_arrow().to_pylist()
        assert {row["number"]: row["day"] for row in read} == self.rows
        found = {row["number"]: (row["row_id"], row["row_commit_version"]) for row in read}
        assert len({row_id for row_id, _ in found.values()}) == len(read) == len(self.rows)
        for number, identity in found.items():
            if number in self.identity:
                assert identity == self.identity[number]
            else:
                assert identity[0] > self.highest
        self.identity.update(found)
        self.highest = parse_high_water_mark(snapshot.domain_metadata["delta.rowTracking"])
        assert max((row_id for row_id, _ in found.values()), default=-1) <= self.highest
        assert {k: v for k, v in snapshot.domain_metadata.items() if k in "xy"} == self.domains
        times = [entry.timestamp_ms for entry in fresh.history()]
        assert times == sorted(set(times), reverse=True)
        assert times[0] == snapshot.timestamp_ms
        assert fresh.fsck(check_files=True).ok


TrackedRows.TestCase.settings = settings(max_examples=3, stateful_step_count=14, deadline=None)
TestTrackedRows = TrackedRows.TestCase
