"""A merge over several partitions, overtaken by a newer run of one of them: a key stays in one partition."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable, TxnId
from delta_orch.errors import ConcurrentAppendError, ConstraintViolationError
from delta_orch.expressions.nodes import Column, Comparison, Expression, Literal
from delta_orch.testing import FailingStore, Moment, open_table
from delta_orch.verbs.merge.upsert import upsert

DAYS = ("mon", "tue")


def rows(*days_and_ids: tuple[str, int], by: str) -> pa.Table:
    days, ids = zip(*days_and_ids, strict=True)
    return pa.table({"day": pa.array(days), "id": pa.array(ids, pa.int64()), "by": [by] * len(ids)})


def day(name: str) -> Expression:
    return Comparison("=", Column(("day",)), Literal(name))


def run(table: DeltaTable, data: pa.Table, number: int, days: Sequence[str], keys: Sequence[str] = ("id",)) -> Any:
    """A run of a pipeline over some partitions: newer runs have higher numbers."""
    txns = [TxnId(f"pipeline-{name}", number, scope=day(name)) for name in days]
    bounds = tuple(day(name) for name in days)
    return upsert(table.log, table.snapshot(), data, keys, "auto", None, {"txn": txns}, bounds)


def overtaken(newer: pa.Table, vectors: str) -> tuple[DeltaTable, DeltaTable]:
    """A table, and the same for a writer whom a newer run of Tuesday overtakes."""
    table = DeltaTable(f"memory://{uuid.uuid4()}")
    properties = {"delta.enableDeletionVectors": vectors}
    table.append(rows(("mon", 1), ("tue", 2), by="base"), partition_by=["day"], properties=properties)
    store = FailingStore(table.store)
    late = open_table(store)
    late.snapshot()
    store.at(Moment.COMMIT_PUT, "before", do=lambda call: run(table, newer, 2, ["tue"]))
    return table, late


def contents(table: DeltaTable) -> list[tuple[str, int, str]]:
    read = table.snapshot().scan(["day", "id", "by"]).to_arrow()
    return sorted(zip(*(read[name].to_pylist() for name in ("day", "id", "by")), strict=True))


@pytest.mark.parametrize("vectors", ["true", "false"])
def test_a_key_that_a_newer_run_put_elsewhere_is_a_conflict(vectors: str) -> None:
    table, late = overtaken(rows(("tue", 7), by="newer"), vectors)
    data = rows(("mon", 7), ("tue", 2), by="older")
    with pytest.raises(ConcurrentAppendError):
        run(late, data, 1, DAYS)
    after = [("mon", 1, "base"), ("tue", 2, "base"), ("tue", 7, "newer")]
    assert contents(table) == after
    with pytest.raises(ConstraintViolationError, match="another partition"):
        run(late, data, 1, DAYS)
    assert contents(table) == after


@pytest.mark.parametrize("vectors", ["true", "false"])
def test_other_keys_of_a_newer_run_disturb_nobody(vectors: str) -> None:
    table, late = overtaken(rows(("tue", 8), by="newer"), vectors)
    result = run(late, rows(("mon", 1), ("mon", 7), ("tue", 2), by="older"), 1, DAYS)
    assert [txn.app_id for txn in result.skipped_txns] == ["pipeline-tue"]
    assert contents(table) == [
        ("mon", 1, "older"),
        ("mon", 7, "older"),
        ("tue", 2, "base"),
        ("tue", 8, "newer"),
    ]


def test_with_the_partition_among_the_keys_both_stand() -> None:
    table, late = overtaken(rows(("tue", 7), by="newer"), "true")
    run(late, rows(("mon", 7), ("tue", 2), by="older"), 1, DAYS, keys=("day", "id"))
    assert ("mon", 7, "older") in contents(table) and ("tue", 7, "newer") in contents(table)
