"""Writers that start from one version and commit one after the other: whoever commits, the table is as if those who
did had run alone, one after the other; under `Serializable` in the order of the log."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from delta_orch import DeltaTable
from delta_orch.errors import ConflictError

Row = tuple[str | None, int | None, str]
Layout = tuple[bool, bool]
"""Whether the table is partitioned, and whether it takes deletion vectors."""
DAYS = ("a", "b", None)
Verb = Callable[..., Any]


def to_arrow(rows: Sequence[Row]) -> pa.Table:
    days, ids, by = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {"day": pa.array(days, pa.string()), "id": pa.array(ids, pa.int64()), "by": pa.array(by, pa.string())}
    )


def rows_by(who: str, days: Sequence[str | None] = DAYS, low: int = 0, high: int = 20) -> st.SearchStrategy[list[Row]]:
    ids = st.integers(low, high)
    return st.lists(st.tuples(st.sampled_from(days), ids, st.just(who)), max_size=4)


@st.composite
def verbs(draw: st.DrawFn, who: str, kinds: Sequence[str]) -> tuple[str, Verb]:
    """A verb that means the same whenever it runs."""
    kind = draw(st.sampled_from(kinds))
    if kind == "optimize":
        return kind, lambda table, **options: table.optimize(**options)
    if kind == "range":
        low = draw(st.integers(0, 20))
        high = low + draw(st.integers(0, 8))
        data, where = draw(rows_by(who, low=low, high=high)), f"id BETWEEN {low} AND {high}"
        return where, lambda table, **options: table.overwrite(to_arrow(data), replace_where=where, **options)
    if kind == "day":
        day = draw(st.sampled_from(DAYS))
        where = "day IS NULL" if day is None else f"day = '{day}'"
        data = draw(rows_by(who, days=[day]))
        return where, lambda table, **options: table.overwrite(to_arrow(data), replace_where=where, **options)
    if kind in ("delete", "update"):
        low = draw(st.integers(0, 20))
        where = draw(st.sampled_from([f"id BETWEEN {low} AND {low + 3}", f"day = 'a' AND id < {low}", "day IS NULL"]))
        if kind == "delete":
            return f"delete {where}", lambda table, **options: table.delete(where, **options)
        return f"update {where}", lambda table, **options: table.update({"by": f"'{who}'"}, where, **options)
    if kind in ("upsert", "missing"):
        days_and_ids = draw(st.lists(st.tuples(st.sampled_from(DAYS), st.integers(0, 20)), max_size=4, unique=True))
        source = to_arrow([(day, i, who) for day, i in days_and_ids])
        if kind == "upsert":
            return kind, lambda table, **options: table.upsert(source, ["day", "id"], **options)
        on = "source.day <=> target.day AND source.id = target.id"
        return (
            kind,
            lambda table, **options: (
                table.merge(source, on, **options)
                .when_matched_delete("target.by = 'base'")
                .when_not_matched_insert_all()
                .execute()
            ),
        )
    data = draw(rows_by(who))
    if kind == "append":
        return kind, lambda table, **options: table.append(to_arrow(data), **options)
    if kind == "overwrite":
        return kind, lambda table, **options: table.overwrite(to_arrow(data), **options)
    mode = {"partition_overwrite_mode": "dynamic"}
    return kind, lambda table, **options: table.overwrite(to_arrow(data), **mode, **options)


@st.composite
def scenarios(draw: st.DrawFn) -> tuple[Layout, list[list[Row]], list[tuple[str, Verb]]]:
    partitioned, vectors = draw(st.booleans()), draw(st.booleans())
    files = draw(st.lists(rows_by("base"), min_size=1, max_size=4))
    kinds = ["append", "overwrite", "range", "day", "optimize", *(["dynamic"] if partitioned else [])]
    kinds += ["delete", "update", "upsert", "missing"]
    writers = [draw(verbs(f"w{number}", kinds)) for number in range(draw(st.integers(2, 4)))]
    return (partitioned, vectors), files, writers


def made(layout: Layout, files: list[list[Row]]) -> DeltaTable:
    table = DeltaTable(f"memory://{uuid.uuid4()}")
    partitioned, vectors = layout
    properties = {"delta.enableDeletionVectors": str(vectors).lower()}
    for rows in files:
        table.append(to_arrow(rows), partition_by=["day"] if partitioned else None, properties=properties)
    return table


def rows_in(table: DeltaTable) -> Counter[tuple[Any, ...]]:
    read = table.snapshot().scan(["day", "id", "by"]).to_arrow()
    return Counter(zip(*(column.to_pylist() for column in read.columns), strict=True))


def starting_now(table: DeltaTable) -> DeltaTable:
    late = DeltaTable(table.uri)
    snapshot = late.snapshot()
    late.snapshot = lambda *_, **__: snapshot  # type: ignore[method-assign]
    return late


def alone(layout: Layout, files: list[list[Row]], order: Sequence[Verb]) -> Counter[tuple[Any, ...]]:
    table = made(layout, files)
    for verb in order:
        verb(table)
    return rows_in(table)


@pytest.mark.parametrize("level", ["Serializable", "WriteSerializable"])
@settings(max_examples=3, deadline=None)
@given(scenario=scenarios())
def test_a_serial_order_exists(level: str, scenario: Any) -> None:
    layout, files, writers = scenario
    table = made(layout, files)
    late = [starting_now(table) for _ in writers]
    committed: list[Verb] = []
    for own, (name, verb) in zip(late, writers, strict=True):
        try:
            result = verb(own, isolation_level=level)
        except ConflictError as e:
            event(f"{type(e).__name__} of {name.split()[0]}")
        else:
            # One that found nothing to change has come before all that others did since it began to read.
            if not result.skipped:
                committed.append(verb)
    event(f"{len(committed)} of {len(writers)} committed")
    found = rows_in(table)
    if level == "Serializable":
        assert found == alone(layout, files, committed)
    else:
        assert any(found == alone(layout, files, order) for order in permutations(committed))
