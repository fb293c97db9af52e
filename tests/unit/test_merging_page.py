"""docs/merging.md: every recipe runs, in the order of the page, and does what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa

import delta_orch
from delta_orch import DeltaTable

PAGE = Path(__file__).parents[2] / "docs" / "merging.md"
RECIPES = dict(re.findall(r"^## ([^\n]+)\n\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE))


def run(heading: str, **names: Any) -> dict[str, Any]:
    exec(compile(RECIPES[heading], heading, "exec"), names)
    return names


def rows(table: DeltaTable) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.snapshot().scan().to_arrow().to_pylist()
    return sorted(found, key=str)


def customers(path: Path) -> DeltaTable:
    table = DeltaTable(path / "customers")
    table.create(
        pa.schema([("id", pa.int64()), ("city", pa.string())]), properties={"delta.enableDeletionVectors": "true"}
    )
    table.append(pa.table({"id": [1, 2, 3], "city": ["Rome", "Oslo", "Bern"]}))
    return table


def test_every_recipe_is_tested() -> None:
    assert set(RECIPES) == {
        "Upsert",
        "Deduplicating insert",
        "Deduplicating insert of the newest rows",
        "Replace the rows of the keys that come",
        "Slowly changing dimension (type 2)",
        "Erase a person",
        "Replay a change feed into a copy",
        "Undo a bad run",
    }


def test_upsert(tmp_path: Path) -> None:
    table = customers(tmp_path)
    run("Upsert", customers=table, updates=pa.table({"id": [2, 9], "city": ["Lima", "Nara"]}))
    assert [row["city"] for row in rows(table)] == ["Rome", "Lima", "Bern", "Nara"]


def test_deduplicating_insert(tmp_path: Path) -> None:
    events = DeltaTable(tmp_path / "events")
    events.append(pa.table({"day": ["a", "b"], "id": [1, 2]}), partition_by=["day"])
    run("Deduplicating insert", events=events, arrived=pa.table({"day": ["b", "b"], "id": [2, 3]}))
    assert [row["id"] for row in rows(events)] == [1, 2, 3]


def test_deduplicating_insert_of_the_newest_rows(tmp_path: Path) -> None:
    events = DeltaTable(tmp_path / "events")
    events.append(pa.table({"day": ["a", "b"], "id": [1, 2], "seen": [5, 5]}), partition_by=["day"])
    arrived = pa.table({"day": ["b", "b", "b", "c"], "id": [2, 3, 3, 3], "seen": [9, 8, 7, None]})
    run("Deduplicating insert of the newest rows", events=events, arrived=arrived, delta_orch=delta_orch)
    assert [(row["day"], row["id"], row["seen"]) for row in rows(events)] == [
        ("a", 1, 5),
        ("b", 2, 5),
        ("b", 3, 8),
        ("c", 3, None),
    ]


def test_replace_the_rows_of_the_keys_that_come(tmp_path: Path) -> None:
    events = DeltaTable(tmp_path / "events")
    events.append(pa.table({"day": ["a", "a", "b"], "id": [1, 2, 3]}))
    run("Replace the rows of the keys that come", events=events, arrived=pa.table({"day": ["a", "c"], "id": [9, 9]}))
    assert rows(events) == [{"day": day, "id": i} for day, i in (("a", 9), ("b", 3), ("c", 9))]


def test_slowly_changing_dimension(tmp_path: Path) -> None:
    scd = DeltaTable(tmp_path / "scd")
    kinds = {
        "id": pa.int64(),
        "city": pa.string(),
        "valid_from": pa.int64(),
        "valid_to": pa.int64(),
        "is_current": pa.bool_(),
    }
    scd.create(pa.schema(list(kinds.items())))
    first = {
        "id": [1, 2],
        "city": ["Rome", "Oslo"],
        "valid_from": [0, 0],
        "valid_to": [None, None],
        "is_current": [True] * 2,
    }
    scd.append(pa.table(first, schema=pa.schema(list(kinds.items()))))
    updates = pa.table({"id": [1, 2, 3], "city": ["Rome", "Lima", "Nara"], "since": [5, 5, 5]})
    for _ in range(2):
        run("Slowly changing dimension (type 2)", scd=scd, updates=updates)
        found = [(r["id"], r["city"], r["valid_from"], r["valid_to"], r["is_current"]) for r in rows(scd)]
        assert found == [
            (1, "Rome", 0, None, True),
            (2, "Lima", 5, None, True),
            (2, "Oslo", 0, 5, False),
            (3, "Nara", 5, None, True),
        ]


def test_erase_a_person(tmp_path: Path) -> None:
    table = customers(tmp_path)
    before = set((tmp_path / "customers").glob("*.parquet"))
    run("Erase a person", customers=table)
    assert [row["id"] for row in rows(table)] == [1, 3]
    assert not before & set((tmp_path / "customers").glob("*.parquet"))


def test_replay_a_change_feed(tmp_path: Path) -> None:
    origin, copy = customers(tmp_path), DeltaTable(tmp_path / "copy")
    copy.append(origin.snapshot().scan().to_arrow())
    last_version = origin.version()
    origin.delete("id = 1")
    origin.update({"city": "'Lima'"}, "id = 2")
    origin.append(pa.table({"id": [9], "city": ["Nara"]}))
    for _ in range(2):
        run("Replay a change feed into a copy", origin=origin, copy=copy, last_version=last_version)
        assert rows(copy) == rows(origin)
    assert copy.version() == 1


def test_undo_a_bad_run(tmp_path: Path) -> None:
    table = customers(tmp_path)
    before = rows(table)
    run("Undo a bad run", customers=table, wrong=pa.table({"id": [1, 9], "city": ["?", "?"]}))
    assert rows(table) == before and table.version() == 3
