"""Whatever happens between two tables, in whatever order, the target ends as the source."""

from __future__ import annotations

import tempfile
from collections import Counter
from datetime import date
from pathlib import Path

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delta_orch.delta_table import DeltaTable
from delta_orch.errors import ConflictError
from delta_orch.pipeline.incremental import ChangeBatch, IncrementalReader
from delta_orch.pipeline.partitions import partitions_as_predicate

DAYS = ("a", "b", "c", None)
STEPS = st.one_of(
    st.tuples(st.just("append"), st.sampled_from(DAYS)),
    st.tuples(st.just("replace"), st.sampled_from(DAYS[:3])),
    st.tuples(st.just("clear"), st.sampled_from(DAYS[:3])),
    st.tuples(st.just("optimize"), st.none()),
    st.tuples(st.just("checkpoint"), st.none()),
    # A worker takes a batch; later it commits it, once or twice, or never.
    st.tuples(st.just("take"), st.integers(0, 2)),
    st.tuples(st.just("commit"), st.integers(0, 2)),
)


def rows(day: str | None, number: int) -> pa.Table:
    return pa.table({"day": pa.array([day, day], pa.string()), "n": pa.array([number, -number], pa.int64())})


def counted(table: DeltaTable) -> Counter[tuple[str | None, int]]:
    found = table.snapshot().scan(["day", "n"]).to_arrow()
    return Counter(zip(found.column("day").to_pylist(), found.column("n").to_pylist(), strict=True))


def change_source(source: DeltaTable, step: str, day: str | None, number: int) -> None:
    if step == "append":
        source.append(rows(day, number), partition_by=["day"])
    elif step in ("replace", "clear"):
        data = rows(day, number) if step == "replace" else rows(day, number).slice(0, 0)
        source.overwrite(data, replace_where=f"day = '{day}'")
    elif step == "optimize":
        source.optimize()
    else:
        source.checkpoint()


def commit_partitions(target: DeltaTable, batch: ChangeBatch) -> None:
    """A step that recomputes the touched partitions."""
    data = batch.scan().to_arrow()
    if target.exists():
        target.overwrite(data, replace_where=batch.partition_predicate(), txn=batch.txn)
    else:
        target.append(data, txn=batch.txn, partition_by=["day"])


def commit_changes(target: DeltaTable, batch: ChangeBatch) -> None:
    """A step that writes down each change: what it has written once must never be written again."""
    if batch.starting_version is None:
        data = batch.scan().to_arrow()
        kinds = pa.array(["insert"] * data.num_rows, pa.string())
    else:
        data = batch.changes.to_arrow()
        kinds = data.column("_change_type")
    target.append(data.select(["day", "n"]).append_column("change", kinds), txn=batch.txn)


def run_story(story: list[tuple[str, object]], folder: Path, *, by_changes: bool, bootstrap: str) -> None:
    source, target = DeltaTable(folder / "source"), DeltaTable(folder / "target")
    source.append(rows("a", 1), partition_by=["day"])
    commit = commit_changes if by_changes else commit_partitions
    taken: dict[int, ChangeBatch | None] = {}
    for number, (step, argument) in enumerate(story, start=2):
        if step == "take":
            taken[argument] = reader(source, target, bootstrap).next_batch()  # type: ignore[index]
        elif step == "commit":
            batch = taken.get(argument)  # type: ignore[call-overload]
            if batch is not None:
                try:
                    commit(target, batch)
                except ConflictError:
                    taken[argument] = None  # type: ignore[index]
        else:
            change_source(source, step, argument, number)  # type: ignore[arg-type]
    while (batch := reader(source, target, bootstrap).next_batch()) is not None:
        commit(target, batch)
    if not by_changes:
        assert counted(target) == counted(source)
        return
    changes = target.snapshot().scan().to_arrow().to_pylist()
    balance: Counter[tuple[str | None, int]] = Counter()
    for change in changes:
        balance[change["day"], change["n"]] += 1 if change["change"] == "insert" else -1
    assert +balance == counted(source)
    assert not -balance


def reader(source: DeltaTable, target: DeltaTable, bootstrap: str) -> IncrementalReader:
    # Every worker has its own view of the tables, as processes have.
    return IncrementalReader(DeltaTable(source.uri), DeltaTable(target.uri), bootstrap=bootstrap)  # type: ignore[arg-type]


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, max_size=14), st.booleans(), st.sampled_from(["snapshot", "changes"]))
def test_the_target_ends_as_the_source(story: list[tuple[str, object]], by_changes: bool, bootstrap: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_story(story, Path(folder), by_changes=by_changes, bootstrap=bootstrap)


VALUES = st.tuples(
    st.one_of(st.none(), st.sampled_from(["", "a", "b'c", "ü"])),
    st.one_of(st.none(), st.sampled_from([date(2013, 1, 1), date(1969, 12, 31)])),
)


@settings(max_examples=3, deadline=None)
@given(st.sets(VALUES, min_size=1, max_size=6), st.data())
def test_a_predicate_of_partitions_is_exact(values: set[tuple[str | None, date | None]], data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.sampled_from(sorted(values, key=repr))))
    ordered = sorted(values, key=repr)
    table = pa.table(
        {
            "s": pa.array([s for s, _ in ordered], pa.string()),
            "d": pa.array([d for _, d in ordered], pa.date32()),
            "n": pa.array(range(len(ordered)), pa.int64()),
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        delta = DeltaTable(folder)
        delta.append(table, partition_by=["s", "d"])
        stored = delta.snapshot().scan().to_arrow().to_pylist()
        # Delta keeps an empty string as null.
        wanted = {(s or None, d) for s, d in chosen}
        partitions = pa.table(
            {
                "s": pa.array([s for s, _ in sorted(wanted, key=repr)], pa.string()),
                "d": pa.array([d for _, d in sorted(wanted, key=repr)], pa.date32()),
            }
        )
        predicate = partitions_as_predicate(partitions, delta.snapshot().schema)
        found = delta.snapshot().scan(where=predicate).to_arrow().column("n").to_pylist()
    assert sorted(found) == sorted(row["n"] for row in stored if (row["s"], row["d"]) in wanted)
