"""Any sequence of verbs: the table must equal a plain-Python model, read from a fresh and from an advanced snapshot."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from delta_orch import DeltaTable, TxnId
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.parse import parse_expression
from delta_orch.log.write.commit_options import CommitResult

DAYS = ("a", "b", "c%/d", None)
Row = tuple[str | None, int]


def _day_is(day: str | None) -> Expression:
    return parse_expression("day IS NULL" if day is None else f"day = '{day}'")


days = st.sampled_from(DAYS)
rows = st.lists(st.tuples(days, st.integers(0, 20)), max_size=6)


def to_arrow(data: list[Row]) -> pa.Table:
    return pa.table(
        {"day": pa.array([d for d, _ in data], pa.string()), "id": pa.array([i for _, i in data], pa.int64())}
    )


def read(table: DeltaTable, version: int | None = None) -> Counter[Row]:
    found = table.snapshot(version=version).scan().to_arrow()
    return Counter(zip(found.column("day").to_pylist(), found.column("id").to_pylist(), strict=True))


class Verbs(RuleBasedStateMachine):
    """`versions[v]` holds the rows of version v; those before `readable_from` have lost files to vacuum."""

    @initialize(partitioned=st.booleans(), interval=st.sampled_from(["1", "3", "100"]))
    def create(self, partitioned: bool, interval: str) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.table = DeltaTable(self.folder / "t")
        self.partitioned = partitioned
        self.table.create(
            to_arrow([]).schema,
            partition_by=["day"] if partitioned else None,
            properties={"delta.checkpointInterval": interval},
        )
        self.versions: list[Counter[Row]] = [Counter()]
        self.readable_from = 0
        self.txns: dict[str, int] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def now(self) -> Counter[Row]:
        return self.versions[-1]

    def committed(self, result: CommitResult, state: Counter[Row]) -> None:
        """Only what changes nothing may end without a commit."""
        assert result.version == len(self.versions) - result.skipped
        if result.skipped:
            assert +state == self.now
        else:
            self.versions.append(+state)

    @rule(data=rows)
    def append(self, data: list[Row]) -> None:
        result = self.table.append(to_arrow(data))
        assert result.skipped == (not data)
        self.committed(result, self.now + Counter(data))

    @rule(data=rows, app=st.sampled_from(["x", "y"]), version=st.integers(0, 3))
    def append_once(self, data: list[Row], app: str, version: int) -> None:
        result = self.table.append(to_arrow(data), txn=(app, version))
        assert result.skipped == (self.txns.get(app, -1) >= version)
        if not result.skipped:
            self.txns[app] = version
            self.committed(result, self.now + Counter(data))

    @rule(data=rows)
    def overwrite(self, data: list[Row]) -> None:
        self.committed(self.table.overwrite(to_arrow(data)), Counter(data))

    @rule(data=rows, low=st.integers(0, 20), width=st.integers(0, 10))
    def replace_ids(self, data: list[Row], low: int, width: int) -> None:
        inside = [(d, low + i % (width + 1)) for d, i in data]
        result = self.table.overwrite(to_arrow(inside), replace_where=f"id BETWEEN {low} AND {low + width}")
        kept = Counter({r: n for r, n in self.now.items() if not low <= r[1] <= low + width})
        self.committed(result, kept + Counter(inside))

    @rule(data=rows, chosen=st.sets(st.sampled_from(["a", "b", "c%/d"]), min_size=1), also_null=st.booleans())
    def replace_days(self, data: list[Row], chosen: set[str], also_null: bool) -> None:
        where = f"day IN ({', '.join(repr(d) for d in sorted(chosen))})" + (" OR day IS NULL" if also_null else "")
        picked = {*chosen, None} if also_null else chosen
        inside = [r for r in data if r[0] in picked]
        result = self.table.overwrite(to_arrow(inside), replace_where=where)
        kept = Counter({r: n for r, n in self.now.items() if r[0] not in picked})
        self.committed(result, kept + Counter(inside))

    @rule(data=rows)
    def replace_partitions(self, data: list[Row]) -> None:
        if not self.partitioned:
            return
        result = self.table.overwrite(to_arrow(data), partition_overwrite_mode="dynamic")
        touched = {d for d, _ in data}
        kept = Counter({r: n for r, n in self.now.items() if r[0] not in touched})
        self.committed(result, kept + Counter(data))

    @rule(data=rows, version=st.integers(0, 3))
    def backfill(self, data: list[Row], version: int) -> None:
        """All days at once, each under its own key: days with a newer one keep theirs."""
        if not self.partitioned:
            return
        keys = [TxnId(f"day:{d}", version, _day_is(d)) for d in DAYS]
        stale = {d for d in DAYS if self.txns.get(f"day:{d}", -1) >= version}
        result = self.table.overwrite(to_arrow(data), replace_where="true", txn=keys)
        assert result.skipped == (len(stale) == len(DAYS))
        if not result.skipped:
            self.txns.update({f"day:{d}": version for d in DAYS if d not in stale})
            kept = Counter({r: n for r, n in self.now.items() if r[0] in stale})
            self.committed(result, kept + Counter(r for r in data if r[0] not in stale))

    @rule(size=st.sampled_from([None, 1, 700, 2000]))
    def optimize(self, size: int | None) -> None:
        result = self.table.optimize(target_file_size_bytes=size)
        if not result.skipped:
            self.committed(result, self.now)
        if size is None:
            assert self.table.optimize().skipped

    @rule()
    def checkpoint(self) -> None:
        assert self.table.checkpoint() == len(self.versions) - 1

    @rule()
    def vacuum(self) -> None:
        if self.table.vacuum(retention_hours=0, enforce_retention=False).paths:
            self.versions += [self.now, self.now]
            self.readable_from = len(self.versions) - 3

    @rule(data=st.data())
    def travel(self, data: st.DataObject) -> None:
        version = data.draw(st.integers(self.readable_from, len(self.versions) - 1))
        assert read(DeltaTable(self.folder / "t"), version) == self.versions[version]

    @rule(data=st.data())
    def follow_changes(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(self.readable_from, len(self.versions) - 1))
        if start + 1 >= len(self.versions):
            return
        changed = self.table.changes(starting_version=start + 1).to_arrow().to_pylist()
        state = Counter(self.versions[start])
        for row in changed:
            state[row["day"], row["id"]] += 1 if row["_change_type"] == "insert" else -1
        assert all(n >= 0 for n in state.values())
        assert +state == self.now

    @invariant()
    def advanced_and_fresh_equal_the_model(self) -> None:
        if not hasattr(self, "table"):
            return
        fresh = DeltaTable(self.folder / "t")
        for table in (self.table, fresh):
            snapshot = table.snapshot()
            assert snapshot.version == len(self.versions) - 1
            assert dict(snapshot.txns) == self.txns
            assert read(table) == self.now
        assert files(self.table) == files(fresh)
        assert fresh.snapshot().num_files == len(files(fresh))


def files(table: DeltaTable) -> set[tuple[str, int]]:
    listed = table.snapshot().files(["path", "size"])
    return set(zip(listed.column("path").to_pylist(), listed.column("size").to_pylist(), strict=True))


Verbs.TestCase.settings = settings(max_examples=3, stateful_step_count=25, deadline=None)
TestVerbs = Verbs.TestCase
