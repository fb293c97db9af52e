"""Checkpoints of every kind that we write, read by `deltalake` (delta-rs) and by DuckDB's delta extension. The commits
they replace are gone, so that nobody can read around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from tests.harness.row_multiset import ensure_same_rows

deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")

V2 = {"delta.checkpointPolicy": "v2"}
STRUCT = {"delta.checkpoint.writeStatsAsStruct": "true", "delta.checkpoint.writeStatsAsJson": "false"}
KINDS: Mapping[str, tuple[dict[str, str], Any, Any]] = {
    "V1": ({}, "classic", "json"),
    "V1 with parsed statistics": (STRUCT, "classic", "json"),
    "V2 JSON": (V2, "v2", "json"),
    "V2 Parquet": (V2, "v2", "parquet"),
    "V2 with parsed statistics": ({**V2, **STRUCT}, "v2", "json"),
    "classic checkpoint of a V2 table": (V2, "classic", "json"),
}


def rows(day: str | None, *ids: int) -> pa.Table:
    return pa.table({"day": pa.array([day] * len(ids), pa.string()), "id": pa.array(ids, pa.int64())})


def make(path: Path, kind: str) -> DeltaTable:
    """Two checkpoints of the kind: the second takes over what the first has."""
    properties, policy, v2_format = KINDS[kind]
    table = DeltaTable(path)
    properties = {"delta.checkpointInterval": "100", **properties}
    table.append(rows("a b/ü", 1, 2), partition_by=["day"], properties=properties, txn=("job", 1))
    table.append(rows(None, 3))
    table.append(rows("c", 4, 5))
    table.checkpoint(policy, v2_format)
    table.overwrite(rows("c", 6), replace_where="day = 'c'")
    table.append(rows("d", 7), txn=("job", 2))
    DeltaTable(path).checkpoint(policy, v2_format)
    table.append(rows("e", 8))
    return table


def forget(path: Path, before: int, *, uuid_named: bool = False) -> None:
    """Delete the commits before a version; with `uuid_named` also the checkpoints of that name."""
    for version in range(before):
        (path / "_delta_log" / f"{version:020d}.json").unlink()
    for file in (path / "_delta_log").glob("*.checkpoint.*"):
        if int(file.name[:20]) < before or (uuid_named and len(file.name) > 50):
            file.unlink()


EXPECTED = pa.concat_tables([rows("a b/ü", 1, 2), rows(None, 3), rows("c", 6), rows("d", 7), rows("e", 8)])


def read_deltalake(path: Path) -> pa.Table:
    # Its Python layer refuses V2 checkpoints by name; what is below it reads them.
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(path)))
    return pa.table(query.execute("SELECT day, id FROM t").read_all()).cast(rows("").schema)


@pytest.mark.parametrize("kind", KINDS)
def test_deltalake_reads_them(tmp_path: Path, kind: str) -> None:
    make(tmp_path, kind)
    forget(tmp_path, 4)
    ensure_same_rows(read_deltalake(tmp_path), EXPECTED)
    ensure_same_rows(DeltaTable(tmp_path).snapshot().scan().to_arrow(), EXPECTED)
    if KINDS[kind][1] == "classic":
        assert deltalake.DeltaTable(str(tmp_path)).transaction_version("job") == 2


@pytest.mark.parametrize("kind", KINDS)
def test_duckdb_reads_them(tmp_path: Path, kind: str, duckdb_delta: Callable[[Path], pa.Table]) -> None:
    make(tmp_path, kind)
    forget(tmp_path, 4)
    ensure_same_rows(duckdb_delta(tmp_path), EXPECTED)


def test_the_copy_by_the_classic_name_is_read_too(tmp_path: Path, duckdb_delta: Callable[[Path], pa.Table]) -> None:
    table = DeltaTable(tmp_path)
    table.append(rows("a", 1), properties=V2)
    table.append(rows("b", 2))
    table.checkpoint()
    forget(tmp_path, 1, uuid_named=True)
    (tmp_path / "_delta_log" / "_last_checkpoint").unlink()
    assert len(list((tmp_path / "_delta_log").glob("*.checkpoint.parquet"))) == 1
    expected = pa.concat_tables([rows("a", 1), rows("b", 2)])
    ensure_same_rows(read_deltalake(tmp_path), expected)
    ensure_same_rows(duckdb_delta(tmp_path), expected)


def test_deltalake_prunes_by_our_parsed_statistics(tmp_path: Path) -> None:
    make(tmp_path, "V1 with parsed statistics")
    forget(tmp_path, 4)
    found = deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table(filters=[("id", ">", 6)])
    ensure_same_rows(found, pa.concat_tables([rows("d", 7), rows("e", 8)]))
