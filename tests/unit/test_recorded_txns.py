"""Recorded transaction identifiers, however many: those of a checkpoint and those since, against a plain dict."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable, TxnId
from delta_orch.errors import CorruptLogError
from delta_orch.log.files.recorded_txns import RecordedTxns, TxnGroup, txn_table
from delta_orch.log.upkeep import checkpoint_writer
from delta_orch.protocol.actions import Txn
from delta_orch.protocol.paths import checkpoint_path

ROWS = pa.table({"id": [1]})
Model = dict[str, int]


def app_id(number: int) -> str:
    return f"{('airflow:d.t', 'dagster:a/b', 'cdc:c<-x', 'é')[number % 4]}:{number}"


@pytest.mark.parametrize("kind", ["classic", "v2 json", "v2 parquet"])
def test_they_are_those_of_a_dict(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Over several checkpoints, with ids that come again, in row groups of three."""
    monkeypatch.setattr(checkpoint_writer, "_ROW_GROUP_ROWS", 3)
    monkeypatch.setattr(checkpoint_writer, "_MAX_JSON_ACTIONS", 0 if kind == "v2 parquet" else 1000)
    policy = "classic" if kind == "classic" else "v2"
    table, model = DeltaTable(tmp_path / "table"), dict[str, int]()
    chance = random.Random(7)
    for number in range(30):
        chosen = {app_id(chance.randrange(40)) for _ in range(3)}
        table.append(ROWS, txn=[TxnId(name, number) for name in chosen], properties={"delta.checkpointPolicy": policy})
        model |= dict.fromkeys(chosen, number)
        if number in (9, 17, 25):
            ensure_like(DeltaTable(tmp_path / "table"), model)
            table.checkpoint()
            names = [file.path for file in table.store.list_from("_delta_log", f"{number:020}.checkpoint")]
            assert any(name.endswith("json" if kind == "v2 json" else "parquet") for name in names)
    ensure_like(table, model)
    ensure_like(DeltaTable(tmp_path / "table"), model)


def ensure_like(table: DeltaTable, model: Model) -> None:
    snapshot = table.snapshot()
    every = [app_id(number) for number in range(40)]
    assert snapshot.txn_versions(every) == {name: model.get(name) for name in every}
    assert [snapshot.txn_version(name) for name in every] == [model.get(name) for name in every]
    assert snapshot.txns == model and len(snapshot.txns) == len(model)
    assert {name: txn.version for name, txn in snapshot.every_txn.items()} == model
    assert "nobody" not in snapshot.txns and snapshot.txns.get("nobody") is None
    beginnings = ("airflow:", "cdc:"), ("airflow:d.t:1", "é:3"), ("dagster:",), ("none",), ()
    for starts, end in itertools.product(beginnings, ("", "2", "8")):
        named = {n: v for n, v in model.items() if (not starts or n.startswith(starts)) and n.endswith(end)}
        assert snapshot.txns.named(starts, end) == named


def test_a_lookup_reads_the_row_group_that_may_have_it(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_writer, "_ROW_GROUP_ROWS", 3)
    table = DeltaTable(tmp_path / "table")
    table.append(ROWS, txn=[TxnId(f"id {number:02}", number) for number in range(20)])
    table.checkpoint()
    table.append(ROWS)
    snapshot = DeltaTable(tmp_path / "table").log.snapshot(0)
    assert snapshot.checkpoint is not None
    groups = snapshot.checkpoint.txns._groups
    assert len(groups) == 7
    assert snapshot.txn_version("id 07") == 7 and snapshot.txn_version("none") is None
    assert [number for number, group in enumerate(groups) if "table" in vars(group)] == [2]


@pytest.mark.parametrize("bounds", [None, ("a", "c")])
def test_groups_of_other_writers_need_no_order(bounds: tuple[str, str] | None) -> None:
    """Unsorted, an id twice: the last one counts, as it did."""
    groups = [
        TxnGroup(bounds, lambda: txn_table([Txn("c", 1), Txn("a", 2)])),
        TxnGroup(bounds, lambda: txn_table([Txn("b", 3), Txn("a", 4, 9)])),
    ]
    known = RecordedTxns(groups, {"c": Txn("c", 5)})
    assert dict(known) == {"a": Txn("a", 4, 9), "b": Txn("b", 3), "c": Txn("c", 5)}
    assert known.table["app_id"].to_pylist() == ["a", "b", "c"]
    assert known.among(["a", "c", "x"]) == {"a": Txn("a", 4, 9), "c": Txn("c", 5)}
    assert dict(known.since({"d": Txn("d", 1, 3)}, oldest_ms=5)) == {
        "a": Txn("a", 4, 9),
        "b": Txn("b", 3),
        "c": Txn("c", 5),
    }


@pytest.mark.parametrize("version", [pa.array(["seven"]), pa.nulls(1, pa.int64()), pa.array([1.5])])
def test_an_identifier_of_another_shape_is_refused(tmp_path: Any, version: pa.Array) -> None:
    table = DeltaTable(tmp_path / "table")
    table.append(ROWS, txn=("job", 1))
    table.checkpoint()
    path = tmp_path / "table" / checkpoint_path(0)
    rows = pq.read_table(path)
    txn = pa.StructArray.from_arrays([pa.array(["job"]), version, pa.array([1])], ["appId", "version", "lastUpdated"])
    parts = [pa.nulls(rows.num_rows, txn.type), txn]
    others = [
        pa.chunked_array([rows[name], pa.nulls(1, rows[name].type)]) for name in rows.column_names if name != "txn"
    ]
    names = [name for name in rows.column_names if name != "txn"]
    pq.write_table(pa.table([pa.chunked_array(parts), *others], names=["txn", *names]), path)
    table.store.delete(f"_delta_log/{0:020}.crc")
    (tmp_path / "table" / "_delta_log" / f"{0:020}.json").unlink()
    with pytest.raises(CorruptLogError):
        DeltaTable(tmp_path / "table").snapshot().txn_version("job")
