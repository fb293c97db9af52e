"""Tables that `deltalake` writes: read, written and looked after by us."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import ConstraintViolationError, InvalidExpressionError, UnsupportedFeatureError
from tests.harness.row_multiset import ensure_same_rows

deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")


def rows(*days_and_ids: tuple[str | None, int]) -> pa.Table:
    return pa.table(
        {
            "day": pa.array([d for d, _ in days_and_ids], pa.string()),
            "id": pa.array([i for _, i in days_and_ids], pa.int64()),
        }
    )


@pytest.fixture(params=[None, ["day"]], ids=["flat", "partitioned"])
def theirs(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A table with a history: appends, a delete, an update, a merge, a compaction, a checkpoint."""
    path = tmp_path / "table"
    deltalake.write_deltalake(path, rows(("a", 1), ("b", 2), (None, 3)), partition_by=request.param)
    table = deltalake.DeltaTable(path)
    for i in range(4, 10):
        deltalake.write_deltalake(table, rows(("a b/c%d", i), ("ü", -i)), mode="append")
    table.delete("id = 2")
    table.update(updates={"id": "id + 1000"}, predicate="id = 5")
    table.optimize.compact()
    table.create_checkpoint()
    deltalake.write_deltalake(table, rows(("z", 77)), mode="append")
    return deltalake.DeltaTable(path)


def ours(theirs: Any) -> DeltaTable:
    return DeltaTable(Path(theirs.table_uri.removeprefix("file://")))


def read(table: Any) -> pa.Table:
    return pa.table(table.to_pyarrow_table())


def test_we_read_every_version(theirs: Any) -> None:
    table = ours(theirs)
    assert table.version() == theirs.version()
    for version in range(theirs.version() + 1):
        theirs.load_as_version(version)
        ensure_same_rows(table.snapshot(version=version).scan().to_arrow(), read(theirs))


def test_we_append(theirs: Any) -> None:
    table = ours(theirs)
    before = read(theirs)
    table.append(rows(("new", 500), (None, 501)), txn=("job", 1))
    theirs.update_incremental()
    ensure_same_rows(read(theirs), pa.concat_tables([before, rows(("new", 500), (None, 501))]))
    assert theirs.transaction_version("job") == 1


def test_we_overwrite_in_part(theirs: Any) -> None:
    table = ours(theirs)
    kept = [r for r in read(theirs).to_pylist() if not (r["id"] or 0) >= 7]
    table.overwrite(rows(("n", 700)), replace_where="id >= 7")
    theirs.update_incremental()
    ensure_same_rows(read(theirs), pa.concat_tables([pa.Table.from_pylist(kept, rows().schema), rows(("n", 700))]))


def test_we_look_after_it(theirs: Any) -> None:
    table = ours(theirs)
    before = read(theirs)
    table.optimize()
    table.checkpoint()
    table.vacuum(retention_hours=0, enforce_retention=False)
    again = deltalake.DeltaTable(theirs.table_uri)
    ensure_same_rows(read(again), before)
    assert again.version() == table.version()
    # It lists tombstones, too: what we have deleted already is not there any more.
    listed = again.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=True, full=True)
    assert not [path for path in listed if (Path(theirs.table_uri.removeprefix("file://")) / path).exists()]


def changed_rows(table: DeltaTable, start: int, end: int | None = None) -> list[tuple[Any, ...]]:
    found = table.changes(starting_version=start, ending_version=end).to_arrow().to_pylist()
    order = ("_commit_version", "_change_type", "day", "id", "more")
    return sorted((tuple(r.get(name) for name in order) for r in found), key=str)


def test_changes_over_a_column_that_was_added(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "t", rows(("a", 1)))
    wider = rows(("b", 2)).append_column("more", pa.array(["x"]))
    deltalake.write_deltalake(tmp_path / "t", wider, mode="append", schema_mode="merge")
    table = DeltaTable(tmp_path / "t")
    assert changed_rows(table, 0) == [(0, "insert", "a", 1, None), (1, "insert", "b", 2, "x")]
    assert table.changes(starting_version=0, ending_version=0).to_arrow().num_columns == 5
    assert rows(("a", 1)).schema.names == table.snapshot(version=0).scan().to_arrow().column_names


def test_changes_over_another_schema_are_refused(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "t", rows(("a", 1)))
    other = pa.table({"day": ["a"], "id": ["one"]})
    deltalake.write_deltalake(tmp_path / "t", other, mode="overwrite", schema_mode="overwrite")
    deltalake.write_deltalake(tmp_path / "t", other, mode="append")
    table = DeltaTable(tmp_path / "t")
    with pytest.raises(UnsupportedFeatureError, match="column id was long and is string"):
        table.changes(starting_version=0)
    assert changed_rows(table, 2) == [(2, "insert", "a", "one", None)]
    assert changed_rows(table, 0, 0) == [(0, "insert", "a", 1, None)]


@pytest.mark.parametrize("partition_by", [None, ["day"]])
def test_changes_where_removes_say_little(tmp_path: Path, partition_by: Any) -> None:
    """Old writers leave partition values and sizes out of `remove` (PROTOCOL, "Add File and Remove File")."""
    deltalake.write_deltalake(tmp_path / "t", rows(("a", 1), ("b", 2)), partition_by=partition_by)
    deltalake.DeltaTable(tmp_path / "t").delete()
    commit = tmp_path / "t" / "_delta_log" / f"{1:020d}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        for key in ("partitionValues", "size", "extendedFileMetadata", "tags"):
            action.get("remove", {}).pop(key, None)
    commit.write_text("".join(json.dumps(action) + "\n" for action in actions))
    table = DeltaTable(tmp_path / "t")
    assert changed_rows(table, 1) == [(1, "delete", "a", 1, None), (1, "delete", "b", 2, None)]
    if partition_by:
        found = table.changes(starting_version=1).partitions().column("day").to_pylist()
        assert sorted(found) == ["a", "b"]


def with_views(*ids: int) -> pa.Table:
    """As Polars and arro3 hand over text: `deltalake` stores these types of Arrow's in its files."""
    names, part = [f"name {i}" for i in ids], pa.struct([("t", pa.string_view()), ("b", pa.binary_view())])
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "name": pa.array(names, pa.string_view()),
            "raw": pa.array([name.encode() for name in names], pa.binary_view()),
            "names": pa.array([[name, None] for name in names], pa.list_(pa.string_view())),
            "part": pa.array([{"t": name, "b": b"b"} for name in names], part),
            "map": pa.array([[(name, name)] for name in names], pa.map_(pa.string_view(), pa.string_view())),
        }
    )


@pytest.mark.parametrize("vectors", ["false", "true"])
@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda t: t.delete("name = 'name 2'"), {1, 3}),
        (lambda t: t.update({"id": "id + 10"}, where="raw = X'6e616d652032'"), {1, 3, 12}),
        (lambda t: t.upsert(with_views(2, 4), ["id"]), {1, 2, 3, 4}),
        (lambda t: t.overwrite(with_views(2), replace_where="name = 'name 2'"), {1, 2, 3}),
        (lambda t: (t.delete("id = 2"), t.optimize()), {1, 3}),
    ],
    ids=["delete", "update", "upsert", "overwrite", "optimize"],
)
def test_texts_that_the_writer_had_as_views(tmp_path: Path, change: Any, left: set[int], vectors: str) -> None:
    deltalake.write_deltalake(tmp_path, with_views(1, 2, 3), configuration={"delta.enableDeletionVectors": vectors})
    deltalake.write_deltalake(tmp_path, with_views(7), mode="append")
    table = DeltaTable(tmp_path)
    table.delete("id = 7")
    change(table)
    expected = [row | {"id": i} for i in sorted(left) for row in with_views(2 if i == 12 else i).to_pylist()]
    assert sorted(table.snapshot().scan().to_arrow().to_pylist(), key=lambda row: row["id"]) == expected
    theirs = pa.table(deltalake.DeltaTable(tmp_path).scan().read_all()).to_pylist()
    assert sorted(theirs, key=lambda row: row["id"]) == expected


def test_a_uuid_in_a_column_of_bytes(tmp_path: Path) -> None:
    """Arrow opens no file whose writer stored a type of its own that contradicts the file."""
    raw = [b"0123456789abcdef", None]
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array(raw, pa.binary(16)))
    deltalake.write_deltalake(tmp_path, pa.table({"id": [1, 2], "key": uuids}))
    table = DeltaTable(tmp_path)
    table.update({"id": "id + 1"}, where="key IS NULL")
    assert sorted(table.snapshot().scan().to_arrow().to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "key": raw[0]},
        {"id": 3, "key": None},
    ]


def test_a_constraint_with_a_column_in_double_quotes_is_not_passed_over(tmp_path: Path) -> None:
    """Spark SQL takes that for text, so that every row, or none, would satisfy the constraint."""
    deltalake.write_deltalake(tmp_path, pa.table({"userId": ["a"], "n": [0]}))
    theirs = deltalake.DeltaTable(tmp_path)
    theirs.alter.add_constraint({"c": "`userId` <> 'x'"})
    assert '"userId"' in theirs.metadata().configuration["delta.constraints.c"]
    table, wrong = DeltaTable(tmp_path), pa.table({"userId": ["x"], "n": [1]})
    for write in (
        lambda: table.append(wrong),
        lambda: table.update({"userId": "'x'"}),
        lambda: table.upsert(wrong, ["n"]),
        lambda: table.overwrite(wrong),
    ):
        with pytest.raises(
            InvalidExpressionError, match=r'(?s)"userId" in double quotes .* CHECK constraint c .* `userId`'
        ):
            write()
    table.delete("n = 0")
    table.alter().drop_constraint("c").add_constraint("c", "`userId` <> 'x'").commit()
    with pytest.raises(ConstraintViolationError):
        table.append(wrong)
    table.append(pa.table({"userId": ["y"], "n": [1]}))
    with pytest.raises(deltalake.exceptions.DeltaError):
        deltalake.write_deltalake(tmp_path, wrong, mode="append")


@pytest.mark.parametrize("checkpoints", [False, True])
def test_we_find_whole_decimals_beyond_64_bits(tmp_path: Path, checkpoints: bool) -> None:
    """Its statistics of them end with the least and the greatest integer of 64 bits."""
    values = [Decimal("-" + "9" * 38), Decimal(-1), Decimal(2**63), Decimal("9" * 38)]
    for value in values:
        deltalake.write_deltalake(tmp_path, pa.table({"e": pa.array([value], pa.decimal128(38, 0))}), mode="append")
    if checkpoints:
        deltalake.DeltaTable(tmp_path).create_checkpoint()
    table = DeltaTable(tmp_path)
    for place, value in enumerate(values):
        for comparison, expected in (("=", [value]), ("<=", values[: place + 1]), (">", values[place + 1 :])):
            rows = table.snapshot().scan(where=f"e {comparison} CAST('{value}' AS DECIMAL(38, 0))").to_arrow()
            assert sorted(rows["e"].to_pylist()) == expected
    assert table.fsck(deep=True).problems == ()


def test_names_of_a_mapping_that_is_not_in_force_are_passed_over(tmp_path: Path) -> None:
    """deltalake 1.6 writes mapped names and the mode, but not the feature, beside a time without a zone: its files and
    partition values have the columns' own names."""
    at = pa.array([0, 1, None], pa.timestamp("us"))
    data = rows(("a", 1), ("b", 2), (None, 3)).append_column("at", at)
    mapped = {"delta.columnMapping.mode": "name"}
    deltalake.write_deltalake(tmp_path, data, partition_by=["day"], configuration=mapped)
    table, theirs = DeltaTable(tmp_path), deltalake.DeltaTable(tmp_path)
    assert "columnMapping" not in table.snapshot().features
    assert table.snapshot().partitions().column("day").to_pylist().count(None) == 1
    ensure_same_rows(table.snapshot().scan().to_arrow(), data)
    table.delete("day = 'b'")
    table.append(data.slice(1, 1))
    theirs.update_incremental()
    ensure_same_rows(read(theirs), data)
    # From here on the mode is in force: the names that files have become the physical ones.
    table.alter().set_properties({"owner": "x"}).commit()
    table.append(data.slice(0, 1))
    ensure_same_rows(table.snapshot().scan().to_arrow(), pa.concat_tables([data, data.slice(0, 1)]))
