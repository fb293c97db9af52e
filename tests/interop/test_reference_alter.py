"""Tables altered by us and by Delta on Spark in turns: each reads, obeys and goes on from what the other has done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import delta_orch
from delta_orch import DeltaTable, column, identity_column
from delta_orch.errors import ConstraintViolationError
from delta_orch.protocol.types import fields_of
from delta_orch.table.column_mapping import field_id, nested_field_ids, physical_name
from tests.harness.row_multiset import ensure_same_rows
from tests.interop.reference_client import Reference, ReferenceError

PAIR = pa.struct([("x", pa.int32()), ("y", pa.string())])
ROWS = pa.table(
    {"id": pa.array([1, 2], pa.int64()), "s": pa.array([{"x": 1, "y": "a"}, None], PAIR), "day": ["d", "e"]}
)


class Turns:
    """A table, and the other client."""

    def __init__(self, reference: Reference, path: Path) -> None:
        self.reference, self.path = reference, path
        self.table = DeltaTable(path)

    def they(self, *statements: str) -> list[dict[str, Any]]:
        return self.reference.run(*(s.format(t=f"delta.`{self.path}`") for s in statements))

    def they_refuse(self, statement: str) -> None:
        with pytest.raises(ReferenceError):
            self.they(statement)

    def agree(self) -> list[dict[str, Any]]:
        ours = self.table.snapshot().scan().to_arrow()
        ensure_same_rows(ours, self.reference.read(self.path))
        answer: list[dict[str, Any]] = ours.to_pylist()
        return answer


@pytest.fixture
def turns(reference: Reference, tmp_path: Path) -> Turns:
    return Turns(reference, tmp_path / "t")


def test_columns_in_turns(turns: Turns) -> None:
    table = turns.table
    table.append(ROWS, partition_by=["day"])
    table.alter().set_properties({"delta.columnMapping.mode": "name"}).rename_column("id", "the id").commit()
    turns.agree()
    turns.they("ALTER TABLE {t} ADD COLUMNS (note STRING, s.z INT)", "INSERT INTO {t} VALUES (3, NULL, 'f', 'theirs')")
    turns.agree()
    table.alter().rename_column("s.y", "why").drop_columns("note").move_column("the id", after="s").commit()
    turns.agree()
    table.alter().add_column("note", "array<struct<a:int>>", first=True).commit()
    turns.they("ALTER TABLE {t} RENAME COLUMN `the id` TO id", "ALTER TABLE {t} DROP COLUMN s.z")
    assert {row["note"] is None for row in turns.agree()} == {True}
    more = pa.table({"id": pa.array([4], pa.int64()), "day": ["d"], "more": [1.5]})
    table.append(more, schema_mode="merge")
    turns.they("UPDATE {t} SET more = 2.5 WHERE id = 1")
    turns.agree()
    numbers = [field_id(f) for f in fields_of(table.snapshot().schema)]
    assert len(set(numbers)) == len(numbers)
    told = {row["operation"] for row in turns.they("DESCRIBE HISTORY {t}")}
    assert {"ALTER TABLE", "ADD COLUMNS", "RENAME COLUMN", "DROP COLUMNS", "WRITE", "UPDATE"} <= told


def test_single_changes_are_told_alike(turns: Turns) -> None:
    table = turns.table
    table.append(ROWS)
    steps = (
        (lambda: table.alter().set_properties({"a": "1"}).commit(), "ALTER TABLE {t} SET TBLPROPERTIES ('a'='2')"),
        (lambda: table.alter().unset_properties("a").commit(), "ALTER TABLE {t} UNSET TBLPROPERTIES ('b')"),
        (lambda: table.alter().add_column("n", "int").commit(), "ALTER TABLE {t} ADD COLUMNS (m INT)"),
        (
            lambda: table.alter().add_constraint("c", "id > 0").commit(),
            "ALTER TABLE {t} ADD CONSTRAINT d CHECK (id > 0)",
        ),
        (lambda: table.alter().drop_constraint("c").commit(), "ALTER TABLE {t} DROP CONSTRAINT d"),
        (lambda: table.alter().set_column_comment("id", "x").commit(), "ALTER TABLE {t} ALTER COLUMN id COMMENT 'y'"),
        (lambda: table.alter().move_column("n", first=True).commit(), "ALTER TABLE {t} ALTER COLUMN m FIRST"),
    )
    turns.they("ALTER TABLE {t} SET TBLPROPERTIES ('b'='2')")
    for ours, theirs in steps:
        ours()
        turns.they(theirs)
        their_entry, our_entry = table.history(2)
        assert our_entry.operation == their_entry.operation
        assert set(our_entry.operation_parameters) == set(their_entry.operation_parameters), our_entry.operation


def test_rules_of_ours_are_obeyed(turns: Turns) -> None:
    table = turns.table
    table.append(ROWS)
    table.alter().add_constraint("positive", "id > 0").set_not_null("day").set_default("day", "'?'").commit()
    turns.they_refuse("INSERT INTO {t} VALUES (-1, NULL, 'x')")
    turns.they_refuse("INSERT INTO {t} VALUES (1, NULL, NULL)")
    turns.they("INSERT INTO {t} (id) VALUES (7)")
    assert {row["day"] for row in turns.agree()} == {"d", "e", "?"}


def test_rules_of_theirs_are_obeyed(turns: Turns) -> None:
    turns.they(
        "CREATE TABLE {t} (id BIGINT, next BIGINT GENERATED ALWAYS AS (id + 1)) USING delta "
        "TBLPROPERTIES ('delta.feature.allowColumnDefaults'='supported')",
        "INSERT INTO {t} (id) VALUES (1)",
        "ALTER TABLE {t} ADD CONSTRAINT positive CHECK (id > 0)",
    )
    table = turns.table
    table.append(pa.table({"id": pa.array([2], pa.int64())}))
    with pytest.raises(ConstraintViolationError):
        table.append(pa.table({"id": pa.array([-2], pa.int64())}))
    table.alter().drop_constraint("positive").commit()
    table.append(pa.table({"id": pa.array([-2], pa.int64())}))
    assert sorted(row["next"] for row in turns.agree()) == [-1, 2, 3]


def test_columns_defined_by_us(turns: Turns) -> None:
    turns.table.create(
        [
            identity_column("key", start=1, step=2, allow_explicit_insert=True),
            column("id", "bigint"),
            column("twice", "bigint", generated_as="id * 2"),
            column("state", "varchar(5)", default="'new'"),
        ]
    )
    turns.they("INSERT INTO {t} (id) VALUES (1), (2)")
    turns.table.append(pa.table({"id": pa.array([3], pa.int64())}))
    turns.they("INSERT INTO {t} (id) VALUES (4)")
    rows = turns.agree()
    assert sorted(row["twice"] for row in rows) == [2, 4, 6, 8]
    assert len({row["key"] for row in rows}) == 4
    assert {row["state"] for row in rows} == {"new"}
    turns.they_refuse("INSERT INTO {t} (id, state) VALUES (5, 'too long')")


def test_types_widen_in_turns(turns: Turns) -> None:
    table = turns.table
    kind = pa.list_(pa.field("element", pa.int16()))
    table.append(
        pa.table({"a": pa.array([1], pa.int8()), "b": pa.array([0.5], pa.float32()), "l": pa.array([[1]], kind)}),
        properties={"delta.enableTypeWidening": "true"},
    )
    table.alter().change_type("a", "int").change_type("l.element", "int").commit()
    turns.agree()
    turns.they("ALTER TABLE {t} ALTER COLUMN a TYPE BIGINT", "ALTER TABLE {t} ALTER COLUMN b TYPE DOUBLE")
    turns.they("INSERT INTO {t} VALUES (5000000000, 0.1, array(70000))")
    turns.agree()
    table.alter().change_type("l.element", "double").commit()
    table.append(
        pa.table({"a": pa.array([7], pa.int64()), "b": [0.25], "l": pa.array([[1.5]], pa.list_(pa.float64()))})
    )
    turns.agree()
    turns.they("OPTIMIZE {t}")
    turns.agree()


def test_clustering_in_turns(turns: Turns) -> None:
    table = turns.table
    table.append(ROWS, cluster_by=["id"])
    (detail,) = turns.they("DESCRIBE DETAIL {t}")
    assert detail["clusteringColumns"] == ["id"]
    turns.they("OPTIMIZE {t}")
    turns.agree()
    table.alter().cluster_by("day", "s.x").commit()
    (detail,) = turns.they("DESCRIBE DETAIL {t}")
    assert detail["clusteringColumns"] == ["day", "s.x"]
    table.append(ROWS)
    turns.they("OPTIMIZE {t} FULL", "ALTER TABLE {t} CLUSTER BY (id)")
    table.append(ROWS)
    turns.agree()
    turns.they("ALTER TABLE {t} CLUSTER BY NONE")
    table.alter().cluster_by("id").commit()
    turns.agree()


def test_files_named_by_absolute_paths_take_their_deletions(turns: Turns, tmp_path: Path) -> None:
    """Delta on Spark finds the file of a deleted row by the text that Spark has for its path."""
    table, outside = turns.table, tmp_path / "out side"
    gone = ROWS.set_column(2, "day", pa.array(["gone", "gone"]))
    table.append(pa.concat_tables([ROWS, gone]), properties={"delta.enableDeletionVectors": "true"})
    table.delete("day = 'gone'")
    clone = Turns(turns.reference, tmp_path / "a clone")
    table.clone(clone.path)
    outside.mkdir()
    pq.write_table(ROWS, outside / "x%y.parquet")
    clone.table.add_files([outside / "x%y.parquet"])
    clone.they("UPDATE {t} SET day = 'theirs' WHERE id = 1", "DELETE FROM {t} WHERE day = 'e'")
    assert [row["day"] for row in clone.agree()] == ["theirs", "theirs"]
    assert turns.agree() == ROWS.to_pylist()


def test_iceberg_ids_of_ours_are_kept(turns: Turns) -> None:
    nested = pa.schema([("id", pa.int64()), ("l", pa.list_(pa.list_(pa.int32()))), ("m", pa.map_(pa.string(), PAIR))])
    table = turns.table
    table.create(nested, properties={"delta.enableIcebergCompatV2": "true"})
    before = table.snapshot().schema
    table.append(pa.Table.from_pylist([{"id": 1, "l": [[1]], "m": [("k", {"x": 1, "y": "z"})]}], nested))
    turns.they("INSERT INTO {t} VALUES (2, array(array(2)), map('k', named_struct('x', 2, 'y', 'b')))")
    turns.they("ALTER TABLE {t} ADD COLUMNS (n ARRAY<INT>)")
    after = table.snapshot().schema
    for field in before:
        now = after.find(field.name)
        assert now is not None
        assert (field_id(now), physical_name(now)) == (field_id(field), physical_name(field))
        assert nested_field_ids(now) == nested_field_ids(field)
    new = after.find("n")
    assert new is not None
    numbers = [n for f in fields_of(after) for n in (field_id(f), *nested_field_ids(f).values())]
    assert len(set(numbers)) == len(numbers)
    assert len(turns.agree()) == 2


def test_iceberg_ids_of_theirs_are_kept(turns: Turns) -> None:
    turns.they(
        "CREATE TABLE {t} (id BIGINT, l ARRAY<ARRAY<INT>>) USING delta TBLPROPERTIES "
        "('delta.enableIcebergCompatV2'='true', 'delta.columnMapping.mode'='name')",
        "INSERT INTO {t} VALUES (1, array(array(1)))",
    )
    table = turns.table
    before = table.snapshot().schema.find("l")
    assert before is not None
    assert sorted(nested_field_ids(before)) == ["element", "element.element"]
    table.alter().add_column("m", "map<string,int>").commit()
    after = table.snapshot().schema
    kept = after.find("l")
    assert kept is not None
    assert nested_field_ids(kept) == nested_field_ids(before)
    numbers = [n for f in fields_of(after) for n in (field_id(f), *nested_field_ids(f).values())]
    assert len(set(numbers)) == len(numbers)
    rows = pa.table({"id": pa.array([2], pa.int64()), "l": pa.array([[[5]]], pa.list_(pa.list_(pa.int32())))})
    table.append(rows, schema_mode="merge")
    turns.they("INSERT INTO {t} VALUES (3, NULL, map('a', 1))")
    turns.agree()


def test_features_dropped_by_us(turns: Turns) -> None:
    table = turns.table
    table.create(pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))]), properties={
        "delta.columnMapping.mode": "name", "delta.enableChangeDataFeed": "true"})  # fmt: skip
    table.append(pa.table({"id": pa.array([1], pa.int64()), "at": pa.array([0], pa.timestamp("us"))}))
    table.alter().drop_columns("at").drop_feature("timestampNtz").commit()
    turns.they("INSERT INTO {t} VALUES (2)")
    turns.agree()
    (detail,) = turns.they("DESCRIBE DETAIL {t}")
    assert "checkpointProtection" in detail["tableFeatures"]
    assert "timestampNtz" not in detail["tableFeatures"]


def test_features_dropped_by_them(turns: Turns) -> None:
    table = turns.table
    table.append(ROWS, properties={"delta.enableDeletionVectors": "true"})
    turns.they("DELETE FROM {t} WHERE id = 1", "ALTER TABLE {t} DROP FEATURE deletionVectors")
    snapshot = table.snapshot()
    assert "checkpointProtection" in (snapshot.protocol.writer_features or ())
    table.append(ROWS)
    table.alter().add_column("n", "int").commit()
    assert len(turns.agree()) == 3


@pytest.mark.parametrize("query", ["(q STRING) USING delta", "USING delta AS SELECT 'a' AS q"])
@pytest.mark.parametrize("given", [{}, {"delta.enableDeletionVectors": "false", "delta.checkpointPolicy": "classic"}])
def test_a_table_in_place_of_another_keeps_the_same_properties(
    turns: Turns, tmp_path: Path, query: str, given: dict[str, str]
) -> None:
    """Theirs is a table with a name: one at a path is another to their REPLACE."""
    theirs = tmp_path / "theirs"
    old = dict.fromkeys(
        ("delta.enableDeletionVectors", "delta.enableRowTracking", "delta.enableChangeDataFeed",
         "delta.enableTypeWidening", "delta.enableInCommitTimestamps", "some.key"), "true",
    )  # fmt: skip
    old |= {"delta.checkpointPolicy": "v2", "delta.checkpointInterval": "7", "delta.columnMapping.mode": "name"}
    listed = [", ".join(f"'{key}' = '{value}'" for key, value in properties.items()) for properties in (old, given)]
    new = query.replace("USING delta", f"USING delta TBLPROPERTIES ({listed[1]})") if given else query
    create, replace = f"(u BIGINT) USING delta TBLPROPERTIES ({listed[0]})", f"REPLACE TABLE {{}} {new}"
    turns.they("DROP TABLE IF EXISTS replaced")
    turns.they(f"CREATE TABLE replaced {create.replace(' TBL', f' LOCATION {str(theirs)!r} TBL')}")
    turns.they(replace.format("replaced"))
    delta_orch.sql(f"CREATE TABLE t {create}", tables={"t": turns.table})
    delta_orch.sql(replace.format("t"), tables={"t": turns.table})
    configurations = (DeltaTable(path).snapshot().metadata.configuration for path in (turns.path, theirs))
    found, expected = ({k: v for k, v in found.items() if "aterialized" not in k} for found in configurations)
    assert found == expected and "delta.enableRowTracking" in found
