"""What a commit says that it did to rows (`commitInfo.effect`), held against the files before and after it; and the
unit that a data file is of."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable, TxnId
from delta_orch.delta_table import TableSnapshot
from delta_orch.expressions.parse import parse_expression
from delta_orch.log.files.effect import Effect, effect_of
from delta_orch.log.files.unit_tag import units_of
from delta_orch.log.read.deletion_vectors import deletion_vector_descriptors, read_deletion_vectors
from tests.verbs.conftest import EngineRows, days

Verb = Callable[..., Any]
UNIT = "airflow:dag.task:monday"

FILES = [days(*((day, number) for day in "ab" for number in numbers)) for numbers in (range(1, 5), range(5, 9))]
"""Two days with two files each."""


def base_table(path: Path, vectors: bool) -> DeltaTable:
    table = DeltaTable(path)
    properties = {"delta.enableDeletionVectors": str(vectors).lower(), "delta.enableChangeDataFeed": "false"}
    for number, data in enumerate(FILES):
        data = data.set_column(1, "id", pa.array([n + (0 if d == "a" else 100) for d, n in _keys(data)]))
        options: Any = {"partition_by": ["day"], "properties": properties} if number == 0 else {}
        table.append(data, txn=TxnId(f"unit {number}", 0, is_unit=True), **options)
    return table


def _keys(data: pa.Table) -> list[tuple[str, int]]:
    return list(zip(data["day"].to_pylist(), data["id"].to_pylist(), strict=True))


def rows_by_file(snapshot: TableSnapshot) -> dict[int, str]:
    """Id of each row → path of the file where it lives."""
    found: dict[int, str] = {}
    files = snapshot.files()
    vectors = read_deletion_vectors(snapshot.store, deletion_vector_descriptors(files))
    for path, vector in zip(files["path"].to_pylist(), vectors, strict=True):
        ids = pq.read_table(Path(snapshot.store.uri.removeprefix("file://")) / path, columns=["id"])["id"].to_pylist()
        for position, number in enumerate(ids):
            if vector is None or position not in vector.bitmap:
                assert number not in found
                found[number] = path
    return found


@dataclass
class Case:
    """A verb; whether it can be staged, what it replaces or deletes by a predicate, and what it needs before."""

    verb: Verb
    predicate: str | None = None
    stages: bool = True
    knows: bool = True
    prepare: Callable[[DeltaTable], object] | None = None


def _new(*ids: int) -> pa.Table:
    return days(*(("a" if number < 1000 else "c", number) for number in ids))


def _merge(table: DeltaTable, rows: EngineRows, **options: Any) -> Any:
    source = rows.data(days(("a", 1), ("a", 2), ("a", 50), ("b", 101)))
    merge = table.merge(source, "source.id = target.id AND source.day = target.day", engine=rows.engine, **options)
    merge = merge.when_matched_delete("target.id = 2").when_matched_update({"value": "source.value + 1"})
    return merge.when_not_matched_insert_all().execute()


def _rewritten(table: DeltaTable, rows: EngineRows, **options: Any) -> Any:
    if table.snapshot().configuration.supports("deletionVectors"):
        return table.alter().drop_feature("deletionVectors").commit(engine=rows.engine, **options)
    if table.snapshot().properties.column_mapping_mode == "none":
        table.alter().set_properties({"delta.columnMapping.mode": "name"}).commit()
        table.alter().rename_column("value", "amount").commit()
    return table.alter().drop_feature("columnMapping").commit(engine=rows.engine, **options)


def _add_files(table: DeltaTable, rows: EngineRows, **options: Any) -> Any:
    pq.write_table(_new(70, 71).drop_columns(["day"]), Path(table.uri.removeprefix("file://")) / "other.parquet")
    return table.add_files(["other.parquet"], partition_values={"day": "a"}, **options)


def _clone(table: DeltaTable, rows: EngineRows, **options: Any) -> Any:
    source = DeltaTable(Path(table.uri.removeprefix("file://")).parent / "source")
    source.overwrite(_new(80, 81), partition_by=["day"])
    return source.clone(table.uri, shallow=False, replace=True, **options)


def _with_unit(table: DeltaTable) -> None:
    about = {"step": {"write": "append"}}
    table.append(_new(90, 91, 2090), txn=TxnId(UNIT, 1, is_unit=True), commit_info=about)


def _repair(table: DeltaTable, rows: EngineRows, **options: Any) -> Any:
    path = table.snapshot().files(["path"])["path"][0].as_py()
    (Path(table.uri.removeprefix("file://")) / path).unlink(missing_ok=True)
    return table.repair(**options)


CASES: dict[str, Case] = {
    "append": Case(lambda t, rows, **o: t.append(rows.data(_new(20, 21)), **o)),
    "overwrite": Case(lambda t, rows, **o: t.overwrite(rows.data(_new(20, 21, 2000)), **o)),
    "overwrite, id in a range": Case(
        lambda t, rows, **o: t.overwrite(rows.data(_new(20)), replace_where="id between 3 and 30", **o),
        "id between 3 and 30",
    ),
    "overwrite, a partition": Case(
        lambda t, rows, **o: t.overwrite(rows.data(_new(20)), replace_where="day = 'a'", **o), "day = 'a'"
    ),
    "overwrite, dynamic": Case(
        lambda t, rows, **o: t.overwrite(rows.data(_new(20, 2000)), partition_overwrite_mode="dynamic", **o)
    ),
    "delete": Case(lambda t, rows, **o: t.delete("id % 3 = 0", engine=rows.engine, **o), "id % 3 = 0"),
    "delete, a partition": Case(lambda t, rows, **o: t.delete("day = 'b'", engine=rows.engine, **o), "day = 'b'"),
    "delete, all": Case(lambda t, rows, **o: t.delete(engine=rows.engine, **o)),
    "update": Case(
        lambda t, rows, **o: t.update({"value": "0"}, "id in (2, 105)", engine=rows.engine, **o), "id in (2, 105)"
    ),
    "update, another partition": Case(
        lambda t, rows, **o: t.update({"day": "'z'"}, "id in (2, 105)", engine=rows.engine, **o), "id in (2, 105)"
    ),
    "merge": Case(_merge),
    "upsert": Case(lambda t, rows, **o: t.upsert(rows.data(_new(2, 3, 60)), ["id"], **o)),
    "optimize": Case(lambda t, rows, **o: t.optimize(engine=rows.engine, **o), stages=False),
    "optimize, along a curve": Case(
        lambda t, rows, **o: t.optimize(zorder_by=["id", "value"], engine=rows.engine, **o), stages=False
    ),
    "purge": Case(lambda t, rows, **o: t.purge(engine=rows.engine, **o), stages=False),
    "alter": Case(_rewritten, stages=False),
    "create_or_replace": Case(lambda t, rows, **o: t.create_or_replace(FILES[0].schema, **o), stages=False),
    "create_or_replace, rows": Case(lambda t, rows, **o: t.create_or_replace(data=rows.data(_new(30)), **o)),
    "add_files": Case(_add_files, stages=False),
    "clone": Case(_clone, stages=False, knows=False),
    "restore": Case(lambda t, rows, **o: t.restore(0, **o), stages=False),
    "repair": Case(_repair, stages=False),
    "undo": Case(lambda t, rows, **o: t.undo(unit=UNIT, **o), stages=False, prepare=_with_unit),
}
WITHOUT_ROWS_BEFORE = {"create", "convert"}
MERGES = {"apply_changes"}
"""Verbs that are a merge in a table of their own shape."""
NAMES_NO_FILES = {"set_domain_metadata", "remove_domain_metadata"}


def test_every_writing_verb_has_a_case() -> None:
    """A new public verb of a table that commits is tried here, or says why not."""
    commits = ("CommitResult", "UndoResult", "Merge", "Alteration")
    verbs = {
        name
        for name, method in inspect.getmembers(DeltaTable, inspect.isroutine)
        if not name.startswith("_") and inspect.signature(method).return_annotation in commits
    }
    assert verbs == {name.split(",")[0] for name in CASES} | WITHOUT_ROWS_BEFORE | MERGES | NAMES_NO_FILES


ENDS = [
    (name, ends)
    for name, case in CASES.items()
    for ends in ("commit", "stage", "dry run")
    if case.stages or ends != "stage"
]


def _is_long(engine: str, vectors: bool, ends: str) -> bool:
    """On Spark, staging and dry runs are what they are in process, and so is the other way to delete rows."""
    return engine == "spark" and (ends != "commit" or not vectors)


@pytest.mark.parametrize(
    ("rows", "name", "ends", "vectors"),
    [
        pytest.param(
            engine,
            name,
            ends,
            vectors,
            id=f"{engine}-{name}-{ends}-{'vectors' if vectors else 'copies'}",
            marks=[
                *([pytest.mark.spark] if engine == "spark" else []),
                *([pytest.mark.long] if _is_long(engine, vectors, ends) else []),
            ],
        )
        for engine in ("local", "spark")
        for name, ends in ENDS
        for vectors in (True, False)
    ],
    indirect=["rows"],
)
def test_effect_is_what_files_show(rows: EngineRows, tmp_path: Path, name: str, vectors: bool, ends: str) -> None:
    case = CASES[name]
    table = base_table(tmp_path / "table", vectors)
    table.delete("id = 7")
    if case.prepare is not None:
        case.prepare(table)
    before = rows_by_file(table.snapshot())
    foreseen = case.verb(table, rows, dry_run=True) if ends == "dry run" else None
    if ends == "stage":
        result = DeltaTable(table.uri).staged(case.verb(table, rows, stage=True).staged).publish()
    else:
        result = case.verb(table, rows)
    if result.skipped:
        assert (name, vectors) == ("purge", False)
        return
    effect = said(table)
    assert result.effect == effect
    assert foreseen is None or foreseen.effect == effect
    after = rows_by_file(table.snapshot())
    if not case.knows:
        assert effect.rows_added is effect.rows_removed is effect.rows_moved is None
        return
    assert effect == Effect(
        rows_added=len(after.keys() - before.keys()),
        rows_removed=len(before.keys() - after.keys()),
        rows_moved=sum(after[number] != before[number] for number in before.keys() & after.keys()),
        predicate=case.predicate,
    )


def test_tables_that_a_verb_creates(tmp_path: Path) -> None:
    assert DeltaTable(tmp_path / "empty").create(FILES[0].schema).effect is None
    (tmp_path / "files").mkdir()
    pq.write_table(FILES[0], tmp_path / "files" / "one.parquet")
    assert DeltaTable.convert(tmp_path / "files").effect == Effect(8, 0, 0)
    table = DeltaTable(tmp_path / "files")
    table.alter().add_feature("domainMetadata").commit()
    assert table.set_domain_metadata("a", "{}").effect is None
    assert "effect" not in json_of(table, table.version())


def said(table: DeltaTable, version: int | None = None) -> Effect:
    """What a commit says, read as other readers of the log do."""
    version = table.version() if version is None else version
    effect = effect_of(table.log.read_commit(version))
    assert effect is not None
    assert json_of(table, version)["effect"] == effect.to_json()
    return effect


def json_of(table: DeltaTable, version: int) -> dict[str, Any]:
    info: dict[str, Any] = orjson.loads(table.store.read_bytes(f"_delta_log/{version:020}.json").splitlines()[0])
    found: dict[str, Any] = info["commitInfo"]
    return found


# Units


@pytest.mark.parametrize("vectors", [True, False], ids=["vectors", "copies"])
@pytest.mark.parametrize("name", CASES)
def test_the_tag_of_a_file_is_the_unit_of_all_its_rows(tmp_path: Path, name: str, vectors: bool) -> None:
    rows = EngineRows("local")
    table = base_table(tmp_path / "table", vectors)
    table.delete("id = 7")
    before = units_by_row(table.snapshot())
    assert set(before.values()) == {"unit 0", "unit 1"}
    if (prepare := CASES[name].prepare) is not None:
        prepare(table)
    CASES[name].verb(table, rows, txn=TxnId("mine", 1, is_unit=True))
    snapshot = table.snapshot()
    tagged = tags_by_file(snapshot)
    for number, path in rows_by_file(snapshot).items():
        if tagged[path] is not None and not (name == "clone" and number in before):
            assert tagged[path] == before.get(number, "mine"), (number, path)


def units_by_row(snapshot: TableSnapshot) -> dict[int, str | None]:
    tagged = tags_by_file(snapshot)
    return {number: tagged[path] for number, path in rows_by_file(snapshot).items()}


def tags_by_file(snapshot: TableSnapshot) -> dict[str, str | None]:
    """Path of each file → its unit, as other readers of the log see it."""
    files = snapshot.files(["path", "tags"])
    tags = [dict(pairs or ()).get("delta_orch.unit") for pairs in files["tags"].to_pylist()]
    assert units_of(files).to_pylist() == tags
    return dict(zip(files["path"].to_pylist(), tags, strict=True))


def unit(name: str, day: str | None = None) -> TxnId:
    return TxnId(name, 1, None if day is None else parse_expression(f"day = '{day}'"), is_unit=True)


def test_new_files_are_of_their_unit(rows: EngineRows, tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "table")
    data = rows.data(days(("a", 1), ("b", 2), ("c", 3)))
    table.append(data, partition_by=["day"], txn=[unit("one"), TxnId("other", 1)])
    assert set(tags_by_file(table.snapshot()).values()) == {"one"}
    table.overwrite(data, txn=[unit("day a", "a"), unit("day b", "b"), replace(unit("day c", "c"), is_unit=False)])
    assert {path[4]: tag for path, tag in tags_by_file(table.snapshot()).items()} == {
        "a": "day a", "b": "day b", "c": None
    }  # fmt: skip
    table.overwrite(data, txn=[unit("two"), unit("three")])
    assert set(tags_by_file(table.snapshot()).values()) == {None}
    table.overwrite(data, txn=TxnId("four", 1))
    assert set(tags_by_file(table.snapshot()).values()) == {None}


@pytest.mark.parametrize("vectors", [True, False], ids=["vectors", "copies"])
def test_files_that_are_rewritten_keep_the_unit_that_they_share(
    rows: EngineRows, tmp_path: Path, vectors: bool
) -> None:
    """By partition: rows that are only moved stay there. It lasts beyond a checkpoint."""
    table = DeltaTable(tmp_path / "table")
    properties = {"delta.enableDeletionVectors": str(vectors).lower()}
    for day, names in (("a", ["one", "one"]), ("b", ["one", "two"]), ("c", ["one", None])):
        for number, name in enumerate(names):
            options: Any = {"properties": properties, "partition_by": ["day"]} if not table.exists() else {}
            data = days(*((day, 10 * number + i) for i in range(3)))
            table.append(
                rows.data(data),
                txn=None if name is None else TxnId(name, 10 * ord(day) + number, is_unit=True),
                **options,
            )
    shared = {"a": {"one"}, "b": {None}, "c": {None}}
    table.delete("id = 1", engine=rows.engine)
    assert by_day(table)["b"] == {"one", "two"}
    table.optimize(engine=rows.engine)
    assert by_day(table) == shared
    table.update({"value": "-1"}, "id = 10", engine=rows.engine)
    table.overwrite(rows.data(days(("a", 2))), replace_where="id = 2")
    assert by_day(table) == {**shared, "a": {"one", None}}
    table.checkpoint()
    assert by_day(DeltaTable(table.uri)) == {**shared, "a": {"one", None}}
    table.optimize(engine=rows.engine)
    assert by_day(table) == {**shared, "a": {None}}


def by_day(table: DeltaTable) -> dict[str, set[str | None]]:
    found: dict[str, set[str | None]] = {}
    for path, tag in tags_by_file(table.snapshot()).items():
        found.setdefault(path[4], set()).add(tag)
    return found
