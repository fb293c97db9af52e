"""What we write into rows and files beyond plain columns, under the eyes of Delta on Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import ConstraintViolationError
from delta_orch.protocol.types import LONG, STRING, VARIANT, StructType
from delta_orch.table.column_definitions import column, identity_column
from delta_orch.variant import json_to_variant, variant_to_json
from tests.harness.row_multiset import ensure_same_rows
from tests.interop.reference_client import Reference, ReferenceError


def test_values_we_and_they_fill_in(reference: Reference, tmp_path: Path) -> None:
    table, it = DeltaTable(tmp_path), f"delta.`{tmp_path}`"
    schema = StructType(
        (
            identity_column("key", start=5, step=3),
            column("n", LONG),
            column("twice", LONG, generated_as="n * 2"),
            column("kind", STRING, default="'none'"),
        )
    )
    table.create(schema, partition_by=["kind"], properties={"delta.constraints.positive": "n > 0"})
    table.append(pa.table({"n": [1, 2, 3]}))
    reference.run(f"INSERT INTO {it} (n) VALUES (4), (5)")
    table.append(pa.table({"n": [6], "kind": ["given"]}))
    reference.run(f"INSERT INTO {it} (n, kind) VALUES (7, NULL)")
    table.append(pa.table({"n": [8]}))
    rows = table.snapshot().scan().to_arrow()
    ensure_same_rows(rows, reference.read(tmp_path))
    found = sorted(rows.to_pylist(), key=lambda r: r["n"])
    assert len({r["key"] for r in found}) == len(found) == 8
    assert all((r["key"] - 5) % 3 == 0 and r["key"] >= 5 and r["twice"] == 2 * r["n"] for r in found)
    assert [r["kind"] for r in found] == ["none"] * 5 + ["given", None, "none"]
    with pytest.raises(ReferenceError, match="positive"):
        reference.run(f"INSERT INTO {it} (n) VALUES (0)")
    with pytest.raises(ConstraintViolationError, match="positive"):
        table.append(pa.table({"n": [0]}))


def test_changes_of_a_partial_overwrite(reference: Reference, tmp_path: Path) -> None:
    table = DeltaTable(tmp_path)
    data = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
    table.append(data, properties={"delta.enableChangeDataFeed": "true", "delta.columnMapping.mode": "name"})
    result = table.overwrite(pa.table({"id": [2, 2], "name": ["x", "y"]}), replace_where="id = 2")
    names = "id, name, _change_type, _commit_version"
    theirs = reference.query(f"SELECT {names} FROM table_changes_by_path('{tmp_path}', {result.version})")
    ours = table.changes(starting_version=result.version).to_arrow().select(names.split(", "))
    assert sorted(ours["_change_type"].to_pylist()) == ["delete", "insert", "insert"]
    assert sorted(map(str, theirs.to_pylist())) == sorted(map(str, ours.to_pylist()))
    ensure_same_rows(table.snapshot().scan().to_arrow(), reference.read(tmp_path))


def test_a_write_that_changes_nothing_commits_nothing(reference: Reference, tmp_path: Path) -> None:
    table, it = DeltaTable(tmp_path), f"delta.`{tmp_path}`"
    table.append(pa.table({"id": [1, 2], "day": ["a", "b"]}), partition_by=["day"])
    texts = (
        f"INSERT INTO {it} SELECT 1L, 'a' WHERE false",
        f"INSERT INTO {it} REPLACE WHERE id > 100 SELECT 1L, 'a' WHERE false",
        f"INSERT INTO {it} REPLACE WHERE day = 'z' SELECT 1L, 'a' WHERE false",
    )
    for text in texts:
        reference.run(text)
    assert table.version() == 0
    none = table.snapshot().scan(where="false").to_arrow()
    assert table.append(none).skipped
    assert table.overwrite(none, replace_where="id > 100").skipped
    assert table.overwrite(none, replace_where="day = 'z'").skipped
    reference.run(f"DELETE FROM {it}", f"INSERT OVERWRITE {it} SELECT 1L, 'a' WHERE false")
    assert table.version() == 1
    assert table.overwrite(none).skipped


@pytest.mark.parametrize("properties", [{}, {"delta.enableVariantShredding": "true"}], ids=["plain", "shredded"])
def test_variants(reference: Reference, tmp_path: Path, properties: dict[str, str]) -> None:
    table = DeltaTable(tmp_path)
    table.create(StructType((column("id", LONG), column("v", VARIANT))), properties=properties)
    texts = ['{"a": 1, "b": "x"}', '{"a": 2, "c": [1, {"d": null}]}', None, "null", '"text"', '{"a": 5}'] * 5
    table.append(pa.table({"id": range(len(texts)), "v": json_to_variant(pa.array(texts))}))
    theirs = reference.query(f"SELECT id, to_json(v) AS v FROM delta.`{tmp_path}` ORDER BY id")["v"].to_pylist()
    assert list(map(parsed, theirs)) == list(map(parsed, texts))
    reference.run(f"INSERT INTO delta.`{tmp_path}` SELECT 1000, parse_json('{{\"a\": [7]}}')")
    read = table.snapshot().scan(where="id = 1000").to_arrow()
    assert variant_to_json(read["v"]).to_pylist() == ['{"a":[7]}']


def test_variants_in_files_of_theirs(reference: Reference, tmp_path: Path) -> None:
    """Spark shreds them; a table that has been converted says what they are, as theirs does."""
    values = "parse_json('{\"a\": 1}') AS v, array(parse_json('[1]')) AS l, named_struct('v', parse_json('\"x\"')) AS s"
    for name in ("ours", "theirs"):
        reference.run(f"INSERT OVERWRITE DIRECTORY '{tmp_path / name}' USING parquet SELECT 1 AS id, {values}")
    DeltaTable.convert(tmp_path / "ours")
    reference.run(f"CONVERT TO DELTA parquet.`{tmp_path / 'theirs'}`")
    ours, theirs = (DeltaTable(tmp_path / name) for name in ("ours", "theirs"))
    assert ours.snapshot().schema == theirs.snapshot().schema
    ours.update({"id": "2"})
    reference.run(f"INSERT INTO delta.`{tmp_path / 'ours'}` SELECT 3 AS id, {values}")
    read = reference.query(f"SELECT to_json(v) AS v, to_json(l) AS l, to_json(s) AS s FROM delta.`{tmp_path / 'ours'}`")
    assert read.to_pylist() == [{"v": '{"a":1}', "l": "[[1]]", "s": '{"v":"x"}'}] * 2
    assert variant_to_json(ours.snapshot().scan().to_arrow()["v"]).to_pylist() == ['{"a":1}'] * 2


def parsed(text: str | None) -> object:
    return "SQL NULL" if text is None else json.loads(text)
