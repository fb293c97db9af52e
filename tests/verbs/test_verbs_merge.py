"""MERGE and upsert: sources, what is refused before anything is written, what the log says, files that are left out."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow as pa
import pytest

import delta_orch
from delta_orch import DeltaTable, TxnId, identity_column, literal
from delta_orch.engines.local import duckdb_query
from delta_orch.engines.local.duckdb_session import connect
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.errors import (
    ConflictError,
    ConstraintViolationError,
    DeltaError,
    InvalidExpressionError,
    InvalidRequestError,
    SchemaMismatchError,
)
from delta_orch.verbs.merge.clauses import Merge
from tests.certain import directory

Row = dict[str, Any]


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    """Two files: ids 1 and 2, and 3 and 4."""
    table = DeltaTable(tmp_path / "t")
    table.append(rows_of((1, "a"), (2, "b")))
    table.append(rows_of((3, "c"), (4, "d")))
    return table


def rows_of(*rows: tuple[int | None, str | None]) -> pa.Table:
    ids, values = [row[0] for row in rows], [row[1] for row in rows]
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array(values, pa.string())})


def content(table: DeltaTable) -> list[Row]:
    rows: list[Row] = table.snapshot().scan().to_arrow().to_pylist()
    return sorted(rows, key=str)


def commit_info(table: DeltaTable) -> Row:
    name = f"_delta_log/{table.version():020}.json"
    info: Row = orjson.loads((directory(table) / name).read_bytes().split(b"\n")[0])["commitInfo"]
    return info


def upserted(*rows: tuple[int | None, str | None]) -> list[Row]:
    base: dict[int | None, str | None] = {1: "a", 2: "b", 3: "c", 4: "d"}
    return sorted(({"id": i, "v": v} for i, v in {**base, **dict(rows)}.items()), key=str)


SOURCES: dict[str, Callable[[pa.Table], Any]] = {
    "reader": lambda rows: rows.to_reader(),
    "batch": lambda rows: rows.to_batches()[0],
    "pandas": lambda rows: rows.to_pandas(),
    "polars": lambda rows: pytest.importorskip("polars", reason="Polars is not installed").from_arrow(rows),
    "lazy": lambda rows: pytest.importorskip("polars", reason="Polars is not installed").from_arrow(rows).lazy(),
    "duckdb": lambda rows: pytest.importorskip("duckdb", reason="duckdb is not installed").from_arrow(rows),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_of_source_is_taken(table: DeltaTable, kind: str) -> None:
    result = table.upsert(SOURCES[kind](rows_of((2, "B"), (9, "Z"))), ["id"])
    assert content(table) == upserted((2, "B"), (9, "Z"))
    assert result.metrics["numSourceRows"] == 2


def test_a_table_a_snapshot_and_a_scan_are_sources(table: DeltaTable, tmp_path: Path) -> None:
    other = DeltaTable(tmp_path / "other")
    other.append(rows_of((2, "B")))
    other.append(rows_of((9, "Z")))
    table.upsert(other.snapshot(version=0), ["id"])
    assert content(table) == upserted((2, "B"))
    table.upsert(other.snapshot().scan(where="id = 9"), ["id"])
    assert content(table) == upserted((2, "B"), (9, "Z"))
    other.delete()
    assert table.upsert(other, ["id"]).skipped


@pytest.mark.parametrize(
    "value", ["source.v", "coalesce(source.v, source.v)", "nullif(source.v, 'a')", "upper(source.v)"]
)
def test_a_source_column_of_nulls_is_null_in_every_expression(table: DeltaTable, value: str) -> None:
    """Arrow and SQL give a column without a value no type."""
    source = pa.table({"id": [4, 9], "v": pa.nulls(2)})
    merge = table.merge(source, "target.id = source.id")
    merge.when_matched_update({"v": value}).when_not_matched_insert({"id": "source.id", "v": value}).execute()
    assert content(table) == upserted((4, None), (9, None))


def test_a_table_merged_into_itself_has_no_several_matches(table: DeltaTable) -> None:
    merge = table.merge(table, "target.id = source.id")
    result = merge.when_matched_update({"v": "concat(source.v, '!')"}).when_not_matched_insert_all().execute()
    assert result.metrics["numTargetRowsUpdated"] == 4
    assert [row["v"] for row in content(table)] == ["a!", "b!", "c!", "d!"]


def test_null_keys_of_an_upsert_are_equal(table: DeltaTable) -> None:
    for value in ("x", "y"):
        table.upsert(rows_of((None, value)), ["id"])
    assert content(table) == upserted((None, "y"))


@pytest.mark.parametrize("repeated", [(9, 9), (None, None)])
def test_new_rows_with_one_key_are_refused_by_an_upsert(table: DeltaTable, repeated: tuple[int | None, int]) -> None:
    """Also where the type or the case of the key is another one; a key of two columns is one key."""
    rows = pa.table({"ID": pa.array([*repeated, 1], pa.int32()), "v": ["x", "y", "z"]})
    with pytest.raises(ConstraintViolationError, match="New rows have the same keys") as caught:
        table.upsert(rows, ["id"])
    assert caught.value.context["rows"] == [{"id": repeated[0]}]
    assert content(table) == upserted()
    assert table.upsert(rows, ["id", "v"]).metrics["numTargetRowsInserted"] == 3


@pytest.mark.parametrize(
    ("kind", "keys", "problem"),
    [
        (pa.int64(), [1.5], "change when they are stored"),
        (pa.date32(), [datetime(2024, 1, 1, 3)], "change when they are stored"),
        (pa.float32(), [0.1], "change when they are stored"),
        (pa.decimal128(5, 1), [1.24], "change when they are stored"),
        (pa.int64(), ["1", "01"], "have the same keys"),
        (pa.int64(), ["1", "2"], None),
        (pa.date32(), [datetime(2024, 1, 1), None], None),
        (pa.float32(), [0.5, float("nan")], None),
    ],
)
def test_keys_of_another_type_are_found_again(tmp_path: Path, kind: Any, keys: list[Any], problem: str | None) -> None:
    table = DeltaTable(tmp_path / "t")
    table.create(pa.schema([("id", kind), ("v", pa.int64())]))
    rows = pa.table({"id": keys, "v": list(range(len(keys)))})
    if problem is None:
        for _ in range(2):
            table.upsert(rows, ["id"])
        assert table.snapshot().scan().count() == len(keys)
        return
    with pytest.raises(ConstraintViolationError, match=problem):
        table.upsert(rows, ["id"])
    assert table.version() == 0


def test_duplicates_that_match_nothing_are_all_inserted(table: DeltaTable) -> None:
    merge = table.merge(rows_of((9, "x"), (9, "x"), (1, "no")), "target.id = source.id")
    result = merge.when_not_matched_insert_all().execute()
    assert result.metrics["numTargetRowsInserted"] == 2
    assert result.metrics["numTargetFilesRemoved"] == 0


@pytest.mark.parametrize("vectors", ["true", "false"])
def test_rows_that_match_are_replaced(tmp_path: Path, vectors: str) -> None:
    """Every source row comes in, whatever it matches; null is no match; the source is read once."""
    table = DeltaTable(tmp_path / "t")
    names = ("DeletionVectors", "ChangeDataFeed", "RowTracking")
    properties = {f"delta.enable{name}": "true" for name in names} | {"delta.enableDeletionVectors": vectors}
    table.append(rows_of((1, "a"), (2, "a"), (3, "b"), (4, None)), properties=properties)
    source = rows_of((7, "a"), (7, "a"), (8, "q"), (9, None)).to_reader()
    result = table.merge(source, "t.v = s.v", source_alias="s", target_alias="t").replace_matched().execute()
    assert sorted((row["id"] or 0, row["v"]) for row in content(table)) == [
        (3, "b"), (4, None), (7, "a"), (7, "a"), (8, "q"), (9, None),
    ]  # fmt: skip
    told = sorted((r["_change_type"], r["id"]) for r in table.changes(starting_version=1).to_arrow().to_pylist())
    assert told == [("delete", 1), ("delete", 2), ("insert", 7), ("insert", 7), ("insert", 8), ("insert", 9)]
    ids = table.snapshot().scan(["id"], row_tracking=True).to_arrow()["row_id"].to_pylist()
    assert len(set(ids)) == 6
    assert (result.operation_metrics["numSourceRows"], result.operation_metrics["numTargetRowsDeleted"]) == (4, 2)
    assert commit_info(table)["operationParameters"]["notMatchedPredicates"] == '[{"actionType":"insert"}]'
    with pytest.raises(InvalidRequestError, match="other clauses"):
        table.merge(rows_of((1, "a")), "target.id = source.id").replace_matched().when_matched_delete(
            "v = 'a'"
        ).execute()
    given = table.merge(rows_of((5, "b")), "target.id < source.id").replace_matched({"id": "id + 1", "v": literal("w")})
    assert given.explain().after_data_skipping.num_files == 2
    assert not given.execute().skipped
    nested = pa.table({"k": [{"of": [8]}, {"of": [8]}, None]})
    table.merge(nested, "target.id = source.k.of[0]").replace_matched({"id": "10", "v": "'w'"}).execute()
    assert [(row["id"], row["v"]) for row in content(table)] == [
        (10, "w"), (10, "w"), (10, "w"), (6, "w"), (7, "a"), (7, "a"), (9, None),
    ]  # fmt: skip


def test_several_matches_are_named_and_change_nothing(table: DeltaTable) -> None:
    rows = rows_of((1, "x"), (1, "y"), (3, "z"))
    with pytest.raises(ConstraintViolationError, match=r"'target\.id': 1") as caught:
        table.upsert(rows, ["id"])
    assert caught.value.context["rows"] == [{"target.id": 1}]
    with pytest.raises(ConstraintViolationError):
        table.merge(rows, "target.id = source.id").when_matched_delete("source.v = 'x'").when_not_matched_insert_all(
            "source.v = 'nothing'"
        ).execute()
    # The reference does not look at the condition either, by which only one pair is left.
    with pytest.raises(ConstraintViolationError):
        table.merge(rows, "target.id = source.id").when_matched_delete("source.v = 'x'").execute()
    assert content(table) == upserted()
    # Which row deletes does not matter.
    table.merge(rows_of((2, "x"), (2, "y")), "target.id = source.id").when_matched_delete().execute()
    assert [row["id"] for row in content(table)] == [1, 3, 4]


REFUSED: dict[str, Callable[[Merge], object]] = {
    "no clause": lambda m: m,
    "unreachable": lambda m: m.when_matched_delete().when_matched_update_all(),
    "unreachable insert": lambda m: m.when_not_matched_insert_all().when_not_matched_insert_all("source.id > 1"),
    "random condition": lambda m: m.when_matched_delete("rand() > 0.5"),
    "random value": lambda m: m.when_matched_update({"v": "uuid()"}),
    "subquery": lambda m: m.when_matched_delete("source.id IN (SELECT 1)"),
    "aggregate": lambda m: m.when_matched_update({"v": "max(source.v)"}),
    "window": lambda m: m.when_matched_update({"v": "max(source.v) OVER ()"}),
    "ambiguous": lambda m: m.when_matched_delete("id = 1"),
    "unknown": lambda m: m.when_matched_delete("source.nothing = 1"),
    "unknown column": lambda m: m.when_matched_update({"nothing": "1"}),
    "source column assigned": lambda m: m.when_matched_update({"source.v": "'x'"}),
    "assigned twice": lambda m: m.when_matched_update({"v": "'x'", "V": "'y'"}),
    "not a predicate": lambda m: m.when_matched_delete("source.id"),
    "target in insert": lambda m: m.when_not_matched_insert({"id": "target.id"}),
    "target in insert condition": lambda m: m.when_not_matched_insert_all("target.id = 1"),
    "source in by source": lambda m: m.when_not_matched_by_source_update({"v": "source.v"}),
    "source in by source condition": lambda m: m.when_not_matched_by_source_delete("source.id = 1"),
    "cast": lambda m: m.when_matched_update({"id": "source.v"}),
    "constant": lambda m: m.when_matched_update({"id": "'x'"}),
    "excluded column": lambda m: m.when_matched_update_all(except_columns=["nothing"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_before_anything_is_written(table: DeltaTable, case: str) -> None:
    files = sorted(directory(table).rglob("*"))
    merge = table.merge(rows_of((1, "x"), (9, "z")), "target.id = source.id")
    REFUSED[case](merge)
    with pytest.raises(DeltaError) as caught:
        merge.execute()
    assert caught.value.code != "DELTA_ERROR"
    assert sorted(directory(table).rglob("*")) == files


def test_a_source_with_columns_too_few_or_twice_is_refused(table: DeltaTable) -> None:
    with pytest.raises(SchemaMismatchError, match="It has no v"):
        table.upsert(rows_of((1, "x")).select(["id"]), ["id"])
    twice = pa.table({"id": [1], "ID": [2], "v": ["x"]})
    with pytest.raises(DeltaError, match="two columns 'id' and 'ID'"):
        table.upsert(twice, ["id"])
    with pytest.raises(DeltaError, match="are both"):
        table.merge(
            rows_of((1, "x")), "x.id = X.id", source_alias="x", target_alias="X"
        ).when_matched_delete().execute()
    assert content(table) == upserted()


def test_conditions_of_rows_that_have_a_clause_already_are_not_evaluated(table: DeltaTable) -> None:
    rows = pa.table({"id": [1, 2], "d": [0, 4]})
    merge = table.merge(rows, "target.id = source.id").when_matched_delete("source.d = 0")
    merge.when_matched_update({"v": "cast(1 as string)"}, "10 / source.d > 2").execute()
    assert content(table) == [{"id": 2, "v": "1"}, {"id": 3, "v": "c"}, {"id": 4, "v": "d"}]


def test_odd_names_and_quotes(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.create(
        pa.schema([("a b", pa.int64()), ("x.y", pa.string()), ("é`", pa.struct([("In side", pa.string())]))]),
        properties={"delta.columnMapping.mode": "name"},
    )
    rows = pa.table({"A B": [1, 2], "x.y": ["it's", "q"], "é`": [{"In side": "a"}, {"In side": "b"}]})
    table.append(rows.rename_columns(["a b", "x.y", "é`"]).slice(0, 1))
    merge = table.merge(
        rows, "`The T`.`a b` = s.`A B` AND concat(s.`x.y`, '''') <> 'it''s'", source_alias="s", target_alias="The T"
    )
    merge.when_matched_update({"`é```.`IN side`": "concat(`The T`.`x.y`, 'don''t', s.`é```.`in SIDE`)"})
    merge.when_not_matched_insert_all().execute()
    found = sorted(table.snapshot().scan().to_arrow().to_pylist(), key=str)
    assert [row["é`"]["In side"] for row in found] == ["it'sdon'ta", "b"]


def test_names_in_another_case_inside_expressions(table: DeltaTable) -> None:
    source = pa.table({"ID": [1, 9], "Odd Name": ["x", "y"]})
    merge = table.merge(source, "T.Id = S.iD", source_alias="s", target_alias="t")
    merge = merge.when_matched_update({"V": "concat(t.V, s.`odd name`)"}, "nullif(s.id, 5) = T.ID")
    merge.when_not_matched_insert({"ID": "s.id + 1", "v": "upper(`ODD NAME`)"}).execute()
    assert content(table) == upserted((1, "ax"), (10, "Y"))


def test_queries_of_a_merge_share_databases_that_end_with_it(
    table: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def remembered() -> Any:
        made.append(connect())
        return made[-1]

    monkeypatch.setattr(duckdb_query, "connect", remembered)
    table.upsert(rows_of((1, "x"), (9, "z")), ["id"])
    assert content(table) == upserted((1, "x"), (9, "z"))
    with pytest.raises(ConstraintViolationError):
        table.upsert(rows_of((1, "x"), (1, "z")), ["id"])
    assert 0 < len(made) <= 4
    for database in made:
        with pytest.raises(duckdb.ConnectionException):
            database.execute("SELECT 1")


def test_files_are_left_out_by_the_keys_of_the_source(table: DeltaTable) -> None:
    for rows in (rows_of((2, "B")), rows_of((2, "C"), (9, "z"))):
        metrics = table.upsert(rows, ["id"]).metrics
        assert (metrics["numTargetFilesBeforeSkipping"], metrics["numTargetFilesAfterSkipping"]) == (2, 1)
        table.restore(version=1)
    merge = table.merge(rows_of((2, "C"), (3, "z")), "target.id = source.id AND target.v >= 'c'")
    metrics = merge.when_matched_update_all().execute().metrics
    assert metrics["numTargetFilesAfterSkipping"] == 1


def test_a_merge_that_changes_nothing_commits_nothing(table: DeltaTable) -> None:
    assert table.merge(rows_of((9, "z")), "target.id = source.id").when_matched_delete().execute().skipped
    assert table.merge(rows_of((1, "z")), "target.id = source.id").when_not_matched_insert_all().execute().skipped
    assert table.upsert(rows_of(), ["id"]).skipped
    assert table.version() == 1


def test_the_commit_says_what_the_reference_says(table: DeltaTable) -> None:
    merge = table.merge(rows_of((1, "x"), (9, "z")), "t.id = s.id", source_alias="s", target_alias="t")
    merge.when_matched_update({"v": literal("y")}, "s.v = 'x'").when_matched_delete().when_not_matched_insert_all()
    merge.when_not_matched_by_source_delete("t.id = 4").execute()
    info = commit_info(table)
    assert info["operation"] == "MERGE"
    assert info["operationParameters"] == {
        "predicate": '["t.id = s.id"]',
        "matchedPredicates": '[{"predicate":"s.v = \'x\'","actionType":"update"},{"actionType":"delete"}]',
        "notMatchedPredicates": '[{"actionType":"insert"}]',
        "notMatchedBySourcePredicates": '[{"predicate":"t.id = 4","actionType":"delete"}]',
    }
    metrics = info["operationMetrics"]
    told = ("Inserted", "Updated", "MatchedUpdated", "Deleted", "NotMatchedBySourceDeleted", "MatchedDeleted")
    assert [metrics[f"numTargetRows{name}"] for name in told] == ["1", "1", "1", "1", "1", "0"]
    assert content(table) == [{"id": i, "v": v} for i, v in ((1, "y"), (2, "b"), (3, "c"), (9, "z"))]


def test_the_time_of_a_scan_is_that_of_the_join(table: DeltaTable, monkeypatch: pytest.MonkeyPatch) -> None:
    join = LocalEngine.evaluated

    def slow(*arguments: Any) -> Any:
        time.sleep(0.05)
        return join(*arguments)

    monkeypatch.setattr(LocalEngine, "evaluated", slow)
    assert int(table.upsert(rows_of((1, "x")), ["id"]).operation_metrics["scanTimeMs"]) >= 50


def test_txn_and_dry_run(table: DeltaTable) -> None:
    preview = table.upsert(rows_of((1, "x")), ["id"], dry_run=True).preview
    assert preview is not None and preview.version == 2 and table.version() == 1
    assert not table.upsert(rows_of((1, "x")), ["id"], txn=TxnId("job", 1)).skipped
    # A source that would fail is not even opened.
    assert table.merge(object(), "target.id = source.id", txn=TxnId("job", 1)).when_matched_delete().execute().skipped


def test_defaults_generated_and_identity_columns_and_rules(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    table.create(schema, properties={"delta.feature.allowColumnDefaults": "supported"})
    table.alter().set_default("v", "7").add_constraint("small", "v < 100").commit()
    table.append(pa.table({"id": [1], "v": [1]}))
    rows = pa.table({"id": [1, 2], "v": [50, 60]})
    merge = table.merge(rows, "target.id = source.id").when_matched_update({"v": "DEFAULT"})
    merge.when_not_matched_insert({"id": "source.id"}).execute()
    assert content(table) == [{"id": 1, "v": 7}, {"id": 2, "v": 7}]
    with pytest.raises(ConstraintViolationError, match="small"):
        table.merge(rows, "target.id = source.id").when_matched_update({"v": "source.v * 2"}).execute()
    assert content(table) == [{"id": 1, "v": 7}, {"id": 2, "v": 7}]


def test_identity_columns_keep_and_take_values(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.create([identity_column("n"), *_columns("id bigint, v string")])
    table.append(rows_of((1, "a"), (2, "b")))
    numbers = {row["id"]: row["n"] for row in content(table)}
    table.upsert(rows_of((2, "B"), (3, "c")), ["id"])
    found = {row["id"]: row["n"] for row in content(table)}
    assert {i: found[i] for i in (1, 2)} == numbers and len(set(found.values())) == 3
    with pytest.raises(DeltaError, match="identity column"):
        merge = table.merge(rows_of((1, "x")), "target.id = source.id").when_not_matched_insert(
            {"n": "1", "id": "source.id"}
        )
        merge.execute()


def _columns(text: str) -> list[Any]:
    from delta_orch import column

    return [column(name, kind) for name, kind in (part.split() for part in text.split(", "))]


def test_generated_columns_are_computed_anew(tmp_path: Path) -> None:
    from delta_orch import column

    table = DeltaTable(tmp_path / "t")
    table.create([column("id", "bigint"), column("v", "bigint"), column("g", "bigint", generated_as="v * 2")])
    table.append(pa.table({"id": [1, 2], "v": [1, 2]}))
    table.upsert(pa.table({"id": [2, 3], "v": [20, 30]}), ["id"])
    assert [row["g"] for row in content(table)] == [2, 40, 60]
    with pytest.raises(ConstraintViolationError):
        table.upsert(pa.table({"id": [2], "v": [20], "g": [1]}), ["id"])


def test_schema_evolution_by_all_columns_and_by_assignments(table: DeltaTable) -> None:
    wide = pa.table({"id": [2, 9], "v": ["B", "z"], "w": [1, 2], "unused": [0, 0]})
    with pytest.raises(InvalidExpressionError):
        table.merge(wide, "target.id = source.id").when_matched_update({"v": "w"}).when_not_matched_by_source_update(
            {"v": "source.w"}
        ).execute()
    merge = table.merge(wide, "target.id = source.id", schema_mode="merge").when_matched_update({"w": "source.w"})
    merge.execute()
    assert table.snapshot().schema.names == ("id", "v", "w")
    table.merge(wide, "target.id = source.id", schema_mode="merge").when_not_matched_insert_all().execute()
    assert table.snapshot().schema.names == ("id", "v", "w", "unused")
    assert [row["w"] for row in content(table)] == [None, 1, None, None, 2]


def test_the_schema_changes_where_no_pair_has_a_clause(table: DeltaTable) -> None:
    before = content(table)
    source = rows_of((1, "x"), (2, "y")).append_column("extra", pa.array([1, 2]))
    merge = table.merge(source, "target.id = source.id", schema_mode="merge")
    merge.when_matched_update_all("source.extra > 5").when_not_matched_insert_all().execute()
    assert content(table) == [{**row, "extra": None} for row in before]


def test_an_update_of_all_keeps_fields_that_the_source_lacks(tmp_path: Path) -> None:
    """Of structs, at any depth, as it keeps columns. A struct is null where both are."""
    inner = pa.struct([("x", pa.int64()), ("y", pa.int64())])
    st = pa.struct([("a", pa.int64()), ("b", pa.int64()), ("in", inner)])
    table = DeltaTable(tmp_path / "t")
    full = {"a": 1, "b": 2, "in": {"x": 3, "y": 4}}
    table.append(pa.table({"id": [1, 2, 3, 4], "st": pa.array([full, full, None, None], st)}))
    given = pa.struct([("b", pa.int64()), ("in", pa.struct([("y", pa.int64()), ("z", pa.string())]))])
    new = {"b": 20, "in": {"y": 40, "z": "new"}}
    table.upsert(
        pa.table({"id": [1, 2, 3, 4, 5], "st": pa.array([new, None, new, None, new], given)}),
        keys=["id"],
        schema_mode="merge",
    )
    assert table.snapshot().scan().to_arrow().sort_by("id")["st"].to_pylist() == [
        {"a": 1, "b": 20, "in": {"x": 3, "y": 40, "z": "new"}},
        {"a": 1, "b": None, "in": {"x": 3, "y": None, "z": None}},
        {"a": None, "b": 20, "in": {"x": None, "y": 40, "z": "new"}},
        None,
        {"a": None, "b": 20, "in": {"x": None, "y": 40, "z": "new"}},
    ]
    source = pa.table({"id": [1], "st": pa.array([{"b": 5}], pa.struct([("b", pa.int64())]))})
    with pytest.raises(SchemaMismatchError, match=r"st\.a is missing"):
        table.merge(source, "target.id = source.id").when_matched_update_all().execute()
    merge = table.merge(source, "target.id = source.id", schema_mode="merge")
    merge.when_matched_update({"st": "source.st"}).execute()
    only = table.snapshot().scan(where="id = 1").to_arrow()["st"].to_pylist()
    assert only == [{"a": None, "b": 5, "in": None}]


def test_what_schema_evolution_takes_from_the_source(tmp_path: Path) -> None:
    """Names mean the columns before the merge; what is assigned evolves, whatever its value is."""

    def kind(*more: str) -> pa.DataType:
        return pa.struct([(name, pa.int64()) for name in ("a", *more)])

    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": pa.array([1, 2], pa.int32()), "st": pa.array([{"a": 1}] * 2, kind())}))
    source = pa.table({"id": [1, 3], "st": pa.array([{"a": 5, "b": 6, "c": 7}] * 2, kind("b", "c")), "x": [None, 8]})
    table.merge(source, "target.id = source.id", schema_mode="merge").when_matched_update(
        {"st.b": "x"}, condition="x IS NULL"
    ).execute()
    assert str(table.snapshot().schema.find("st").data_type) == "struct<a:long,b:long>"  # type: ignore[union-attr]
    merge = table.merge(source, "target.id = source.id", schema_mode="merge")
    merge.when_matched_update_all(condition="x IS NULL").when_not_matched_insert_all().execute()
    assert str(table.snapshot().schema.find("id").data_type) == "integer"  # type: ignore[union-attr]
    assert content(table) == [
        {"id": 1, "st": {"a": 5, "b": 6, "c": 7}, "x": None},
        {"id": 2, "st": {"a": 1, "b": None, "c": None}, "x": None},
        {"id": 3, "st": {"a": 5, "b": 6, "c": 7}, "x": 8},
    ]
    wider = pa.table({"id": [2], "st": pa.array([{"z": 1}], pa.struct([("z", pa.int64())]))})
    table.merge(wider, "target.id = source.id", schema_mode="merge").when_matched_update({"st": "NULL"}).execute()
    assert content(table)[1] == {"id": 2, "st": None, "x": None}
    assert str(table.snapshot().schema.find("st").data_type) == "struct<a:long,b:long,c:long,z:long>"  # type: ignore[union-attr]


@pytest.mark.long
@pytest.mark.parametrize("feed", ["true", "false"])
def test_the_latest_changes_bring_a_copy_up_to_date(table: DeltaTable, tmp_path: Path, feed: str) -> None:
    origin = DeltaTable(tmp_path / "origin")
    origin.create(rows_of().schema, properties={"delta.enableChangeDataFeed": feed})
    origin.append(rows_of((1, "A"), (2, "B"), (5, "e"), (None, "n")))
    origin.update({"v": literal("b2")}, "id = 2")
    origin.delete("id = 5")
    origin.update({"id": "10"}, "id = 1")
    origin.append(rows_of((5, "again")))
    origin.delete("id = 2")
    changes = origin.changes(starting_version=1, require_change_data_feed=False).latest(["ID"])
    kinds = {row["id"]: row["_change_type"] for row in changes.to_arrow().to_pylist()}
    assert {key: kind == "delete" for key, kind in kinds.items()} == {
        1: True,
        2: True,
        5: False,
        10: False,
        None: False,
    }
    table.delete("id > 2")
    merge = table.merge(changes, "target.id <=> source.id").when_matched_delete("source._change_type = 'delete'")
    merge.when_matched_update_all().when_not_matched_insert_all("source._change_type <> 'delete'").execute()
    assert content(table) == content(origin)


def test_what_another_writer_changed_since_a_snapshot_is_a_conflict(table: DeltaTable) -> None:
    snapshot = table.snapshot()
    table.upsert(rows_of((2, "theirs")), ["id"])
    with pytest.raises(ConflictError):
        snapshot.upsert(rows_of((2, "ours")), ["id"])
    assert content(table) == upserted((2, "theirs"))
    table.snapshot().merge(table, "target.id = source.id").when_matched_update({"v": "'x'"}, "source.id = 3").execute()
    assert content(table) == upserted((2, "theirs"), (3, "x"))


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        "_delta_orch_present",
        "_DELTA_ORCH_Present",
        "_delta_orch_is_there",
        "_delta_orch_rank",
        "_delta_orch_comes_in",
        "_delta_orch_rows",
        "_DELTA_ORCH_comes_in",
        "_delta_orch_target_0",
    ],
)
def test_columns_called_like_those_of_a_merge(tmp_path: Path, name: str) -> None:
    source, copy = DeltaTable(tmp_path / "source"), DeltaTable(tmp_path / "copy")
    for table in (source, copy):
        table.append(pa.table({name: [1, 2, 3], "v": [1, 2, 3]}), properties={"delta.enableChangeDataFeed": "true"})
    source.update({name: "9"}, f"{name} = 2")
    builder = copy.merge(source.changes(starting_version=1).latest([name]), f"target.{name} = source.{name}")
    builder = builder.when_matched_delete("source._change_type = 'delete'")
    builder = builder.when_not_matched_insert({name: f"source.{name}", "v": "source.v"})
    builder.when_not_matched_by_source_update({"v": "v + 10"}).execute()
    rows = copy.snapshot().scan([name, "v"]).to_arrow().to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [(1, 11), (3, 13), (9, 2)]
    copy.merge(pa.table({name: [1, 1], "v": [5, 6]}), f"target.{name} = source.{name}").replace_matched().execute()
    copy.upsert(pa.table({name: [3, 4], "v": [7, 8]}), [name])
    rows = copy.snapshot().scan([name, "v"]).to_arrow().to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [(1, 5), (1, 6), (3, 7), (4, 8), (9, 2)]


@pytest.mark.parametrize(("data_type", "empty", "other"), [(pa.string(), "", "x"), (pa.binary(), b"", b"x")])
def test_a_key_that_the_log_takes_for_null_is_refused(
    tmp_path: Path, data_type: pa.DataType, empty: object, other: object
) -> None:
    """It would come in again and again: the table's row is null, and what comes is not."""
    table = DeltaTable(tmp_path / "t")

    def rows(*keys: object) -> pa.Table:
        return pa.table({"k": pa.array(keys, data_type), "id": [1] * len(keys)})

    table.append(rows(other), partition_by=["k"])
    for keys in (["k"], ["k", "id"]):
        with pytest.raises(ConstraintViolationError, match="empty texts in partition columns"):
            table.upsert(rows(other, empty), keys)
    for _ in range(2):
        table.upsert(rows(other, None), ["k"])
    table.upsert(rows(empty).set_column(1, "id", pa.array([2])), ["id"])
    assert sorted(table.snapshot().scan().to_arrow()["id"].to_pylist()) == [1, 1, 2]


def test_a_column_called_like_a_key_with_its_side(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    rows = pa.table({"id": [1, 2], "target.ID": [1, 2]})
    table.append(rows, properties={"delta.columnMapping.mode": "name"})
    table.upsert(pa.table({"id": [2, 3], "target.ID": [5, 6]}), ["id"])
    assert sorted(table.snapshot().scan().to_arrow()["target.ID"].to_pylist()) == [1, 5, 6]
    with pytest.raises(ConstraintViolationError):
        table.upsert(pa.table({"id": [2, 2], "target.ID": [5, 6]}), ["id"])


@pytest.mark.parametrize("properties", [{}, {"delta.enableDeletionVectors": "true"}])
@pytest.mark.parametrize(
    ("clauses", "is_exact"),
    [
        ("WHEN MATCHED AND s.x > 1 THEN DELETE", False),
        ("WHEN MATCHED AND s.x > 9 THEN DELETE", False),
        ("WHEN MATCHED AND s.x > 1 THEN UPDATE SET v = s.x", False),
        (
            "WHEN MATCHED AND s.x > 1 THEN UPDATE SET v = s.x WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 0)",
            False,
        ),
        ("WHEN MATCHED AND s.x = 1 THEN DELETE WHEN MATCHED THEN DELETE", False),
        ("WHEN NOT MATCHED BY SOURCE THEN DELETE", False),
        ("WHEN MATCHED THEN DELETE", True),
        ("WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 0)", True),
        ("WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 0)", True),
    ],
)
def test_several_matches_count_whatever_conditions_say(
    tmp_path: Path, properties: dict[str, str], clauses: str, is_exact: bool
) -> None:
    """As Delta on Spark 4.4 answers each of these."""
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": [1, 2], "v": [10, 20]}), properties=properties)
    source = pa.table({"id": [1, 1, 3], "x": [1, 2, 5]})
    with nullcontext() if is_exact else pytest.raises(ConstraintViolationError, match="more than once"):
        delta_orch.sql(f"MERGE INTO t USING s ON t.id = s.id {clauses}", tables={"t": table, "s": source})
    assert table.version() == int(is_exact)
