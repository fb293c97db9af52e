"""Delta on Spark, the reference implementation, and a table whose commits a catalog decides: each reads what the other
has written. Its own client and the SDK of Unity Catalog talk to the emulator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from tests.harness.unity_emulator import TOKEN, UnityEmulator, unity_emulator
from tests.interop.reference_client import Reference

pytestmark = pytest.mark.timeout(900)
NAME, URI = "main.default.t", "uc://main.default.t"


@pytest.fixture(scope="module")
def unity(tmp_path_factory: pytest.TempPathFactory, reference: Reference) -> Iterator[UnityEmulator]:
    with unity_emulator(tmp_path_factory.mktemp("tables")) as emulator:
        place = "spark.sql.catalog.main"
        reference.run(
            f"SET {place}=io.unitycatalog.spark.UCSingleCatalog",
            f"SET {place}.uri={emulator.endpoint}",
            f"SET {place}.token={TOKEN}",
            f"SET {place}.deltaRestApi.enabled=true",
        )
        yield emulator


def _rows(*ids: int) -> pa.Table:
    return pa.table({"id": [*ids], "name": [chr(96 + number) for number in ids]})


def _ours(unity: UnityEmulator, name: str = NAME) -> list[tuple[int, str]]:
    rows = DeltaTable(f"uc://{name}", unity.options).snapshot().scan().to_arrow()
    return sorted(zip(rows["id"].to_pylist(), rows["name"].to_pylist(), strict=True))


def _theirs(reference: Reference, name: str = NAME) -> list[tuple[int, str]]:
    return [(row["id"], row["name"]) for row in reference.run(f"SELECT id, name FROM {name} ORDER BY id")]


def _ensure_lawful(unity: UnityEmulator) -> None:
    """The reference does not tell the catalog of row ids that it gives out; nothing else is to be said of it."""
    found = [text for text in unity.violations if not text.startswith("delta.rowTracking:")]
    assert not found, found


def test_each_reads_and_writes_what_the_other_has_written(unity: UnityEmulator, reference: Reference) -> None:
    table = DeltaTable(URI, unity.options)
    table.append(_rows(1, 2), properties={"delta.enableChangeDataFeed": "true"})
    table.append(_rows(3))
    table.delete("id = 1")
    unity.ensure_lawful()
    unity.unpublish(NAME)
    assert _theirs(reference) == [(2, "b"), (3, "c")], "of a commit that is not published"
    reference.run(f"INSERT INTO {NAME} VALUES (4, 'd')")
    assert unity.table(NAME).latest == 3
    assert _ours(unity) == [(2, "b"), (3, "c"), (4, "d")]
    DeltaTable(URI, unity.options).upsert(pa.table({"id": [4, 5], "name": ["D", "e"]}), ["id"])
    reference.run(f"DELETE FROM {NAME} WHERE id = 2", f"UPDATE {NAME} SET name = 'C' WHERE id = 3")
    reference.run(f"ALTER TABLE {NAME} SET TBLPROPERTIES ('delta.appendOnly' = 'false')")
    assert _ours(unity) == _theirs(reference) == [(3, "C"), (4, "D"), (5, "e")]
    changes = DeltaTable(URI, unity.options).changes(starting_version=3).to_arrow()
    assert {*changes["_change_type"].to_pylist()} == {"insert", "delete", "update_preimage", "update_postimage"}
    DeltaTable(URI, unity.options).append(_rows(6))
    assert len(_theirs(reference)) == 4
    _ensure_lawful(unity)


def test_a_table_that_the_reference_creates(unity: UnityEmulator, reference: Reference) -> None:
    reference.run("CREATE TABLE main.default.s (id BIGINT, name STRING) USING delta PARTITIONED BY (name)")
    reference.run("INSERT INTO main.default.s VALUES (7, 'g')")
    table = DeltaTable("uc://main.default.s", unity.options)
    table.append(_rows(8))
    table.overwrite(_rows(9))
    assert _theirs(reference, "main.default.s") == _ours(unity, "main.default.s") == [(9, "i")]
    _ensure_lawful(unity)


def test_both_write_at_once(unity: UnityEmulator, reference: Reference, tmp_path: Path) -> None:
    """Ours commits between the look of the reference at the table and its proposal, and the other way round."""
    table = DeltaTable("uc://main.default.r", unity.options)
    table.append(_rows(1))
    unity.fail("updateTable", status=503, on=lambda: unity.answer_another(lambda: table.append(_rows(2))))
    reference.run("INSERT INTO main.default.r VALUES (3, 'c')")
    insert = "INSERT INTO main.default.r VALUES (4, 'd')"
    unity.fail("updateTable", status=503, on=lambda: unity.answer_another(lambda: reference.run(insert)))
    table.append(_rows(5))
    assert _ours(unity, "main.default.r") == _theirs(reference, "main.default.r")
    assert [number for number, _ in _ours(unity, "main.default.r")] == [1, 2, 3, 4, 5]
    _ensure_lawful(unity)
