"""DELETE and UPDATE: what they say, what they refuse, and how little they open. Rows are compared elsewhere
(tests/property/test_property_row_changes.py, tests/spark/test_spark_row_changes.py)."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable, TxnId, column, identity_column, literal
from delta_orch.errors import (
    AppendOnlyError,
    ColumnNotFoundError,
    ConflictError,
    ConstraintViolationError,
    DeltaError,
    InvalidExpressionError,
    InvalidRequestError,
    SchemaMismatchError,
    TableNotFoundError,
    UnsupportedExpressionError,
)
from delta_orch.expressions.nodes import Column, Comparison, Literal
from tests.harness.results import CommitResult

VECTORS = {"delta.enableDeletionVectors": "true"}
FEED = {"delta.enableChangeDataFeed": "true"}


def made(path: Path, properties: dict[str, str] | None = None, files: int = 3) -> DeltaTable:
    """Rows 0 to 9 in the first file, 10 to 19 in the second, …"""
    table = DeltaTable(path / "t")
    for first in range(0, files * 10, 10):
        ids = range(first, first + 10)
        struct = [{"a": i, "b": {"c": str(i)}} for i in ids]
        table.append(
            pa.table(
                {
                    "id": pa.array(ids, pa.int64()),
                    "small": pa.array([i % 5 for i in ids], pa.int8()),
                    "name": [f"n{i}" for i in ids],
                    "price": pa.array([Decimal(i) for i in ids], pa.decimal128(5, 2)),
                    "st": struct,
                    "at": pa.array([datetime(2020, 1, 1, tzinfo=UTC)] * 10, pa.timestamp("us", "UTC")),
                }
            ),
            properties=properties,
        )
    return table


def rows_of(table: DeltaTable, *columns: str) -> list[tuple[Any, ...]]:
    read = DeltaTable(table.uri).snapshot().scan(list(columns)).to_arrow().to_pylist()
    return sorted(tuple(row.values()) for row in read)


def commit_of(table: DeltaTable) -> dict[str, Any]:
    info: dict[str, Any] = {}
    path = f"_delta_log/{table.version():020}.json"
    for line in table.store.read_bytes(path).splitlines():
        info.update(json.loads(line).get("commitInfo", {}))
    return info


@pytest.mark.parametrize("properties", [{}, VECTORS, FEED, VECTORS | FEED])
def test_a_commit_says_what_it_did(tmp_path: Path, properties: dict[str, str]) -> None:
    table = made(tmp_path, properties)
    result = table.delete("id < 13")
    info = commit_of(table)
    assert info["operation"] == "DELETE"
    assert info["operationParameters"] == {"predicate": '["id < 13"]'}
    metrics = {key: int(value) for key, value in info["operationMetrics"].items()}
    assert metrics == result.operation_metrics
    marks = "delta.enableDeletionVectors" in properties
    tells = "delta.enableChangeDataFeed" in properties
    assert metrics["numDeletedRows"] == 13
    # The first file goes by its statistics.
    assert metrics["numRemovedFiles"] == (1 if marks else 2)
    assert metrics["numDeletionVectorsAdded"] == int(marks)
    assert metrics["numCopiedRows"] == (0 if marks else 7)
    assert metrics["numAddedChangeFiles"] == (2 if tells and not marks else 0)
    result = table.update({"name": "concat(name, '!')"}, Comparison("=", Column(("id",)), Literal(20)))
    info = commit_of(table)
    assert (info["operation"], info["operationParameters"]) == ("UPDATE", {"predicate": '["`id` = 20"]'})
    assert result.operation_metrics["numUpdatedRows"] == 1
    assert "numDeletedRows" not in result.operation_metrics
    table.delete()
    assert commit_of(table)["operationParameters"] == {"predicate": "[]"}
    assert table.snapshot().num_files == 0


def test_files_are_left_out_and_whole_files_go_unopened(tmp_path: Path) -> None:
    table = made(tmp_path, VECTORS)
    paths = [Path(table.store.resolve(path)) for path in table.snapshot().files(["path"])["path"].to_pylist()]
    ids = {pq.read_table(path)["id"][0].as_py(): path for path in paths}
    # Neither the file that goes as a whole nor the one that is left out can be read any more.
    for first in (0, 20):
        ids[first].write_bytes(b"not Parquet")
    result = table.delete("id < 12")
    assert result.operation_metrics["numRemovedFiles"] == 1
    told = {"BeforeSkipping": 3, "AfterSkipping": 2, "MatchingWhole": 1}
    assert {f"numTargetFiles{name}": count for name, count in told.items()}.items() <= result.metrics.items()
    assert (result.metrics["numRowGroups"], result.metrics["numRowGroupsRead"]) == (1, 1)
    ids[20].unlink()
    assert table.update({"name": "'x'"}, "id = 15").operation_metrics["numUpdatedRows"] == 1


def test_row_groups_are_left_out(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": range(40)}))
    path = table.store.resolve(table.snapshot().files(["path"])["path"][0].as_py())
    pq.write_table(pq.read_table(path), path, row_group_size=10)
    metrics = table.delete("id IN (3, 4)").metrics
    assert (metrics["numRowGroups"], metrics["numRowGroupsRead"], metrics["numDeletedRows"]) == (4, 1, 2)
    assert [row[0] for row in rows_of(table, "id")] == [0, 1, 2, *range(5, 40)]


def test_nothing_matches_and_nothing_is_committed(tmp_path: Path) -> None:
    table = made(tmp_path)
    for result in (table.delete("id = 99"), table.delete("name = 'no'"), table.update({"id": "1"}, "name = 'no'")):
        assert result.skipped
    assert table.version() == 2
    assert not table.delete().skipped
    assert table.delete().skipped
    assert table.update({"id": "1"}).skipped


def test_a_recorded_txn_skips_before_anything_is_read(tmp_path: Path) -> None:
    table = made(tmp_path)
    assert not table.delete("id = 1", txn=("job", 1)).skipped
    for path in (tmp_path / "t").glob("*.parquet"):
        path.unlink()
    assert table.delete("id = 2", txn=("job", 1)).skipped
    assert table.update({"id": "2"}, "name = 'n2'", txn=("job", 1)).skipped


@pytest.mark.parametrize(
    "call",
    [
        lambda t, **o: t.delete("id = 99", **o),
        lambda t, **o: t.delete("name = 'no'", **o),
        lambda t, **o: t.update({"name": "'x'"}, "id = 99", **o),
        lambda t, **o: t.update({"name": "'x'"}, "name = 'no'", **o),
        lambda t, **o: t.merge(t, "target.id = 99 AND source.id = 99", **o).when_matched_delete().execute(),
        lambda t, **o: t.alter().set_properties({"owner": "me"}).commit(**o),
        lambda t, **o: t.remove_domain_metadata("mine", **o),
        lambda t, **o: t.purge(**o),
    ],
)
def test_a_txn_is_recorded_where_nothing_changes(tmp_path: Path, call: Callable[..., CommitResult]) -> None:
    """A repetition of what was told to have found nothing must not change what came since."""
    table = made(tmp_path, {"delta.feature.domainMetadata": "supported"})
    table.alter().set_properties({"owner": "me"}).commit()
    before = table.snapshot()
    assert not call(table, txn=("job", 1), dry_run=True).skipped and table.version() == before.version
    first = call(table, txn=("job", 1))
    assert not first.skipped and table.snapshot().txns == {"job": 1}
    assert table.snapshot().scan().to_arrow() == before.scan().to_arrow()
    table.append(pa.table({"id": [99], "name": ["no"]}))
    table.alter().set_properties({"owner": "you"}).commit()
    table.set_domain_metadata("mine", "text")
    told = table.snapshot()
    assert call(table, txn=("job", 1)).skipped and table.version() == told.version
    assert not call(table, txn=("job", 2)).skipped


@pytest.mark.parametrize("properties", [{}, VECTORS, VECTORS | FEED])
def test_a_dry_run_leaves_nothing(tmp_path: Path, properties: dict[str, str]) -> None:
    table = made(tmp_path, properties)
    before = sorted(map(str, (tmp_path / "t").rglob("*")))
    for result in (
        table.delete("id % 2 = 0", dry_run=True),
        table.update({"small": "small + 1"}, "id % 3 = 0", dry_run=True),
    ):
        assert result.preview is not None
        assert result.preview.actions()
    assert sorted(map(str, (tmp_path / "t").rglob("*"))) == before


REFUSED: list[tuple[Callable[[DeltaTable], object], type[DeltaError], str]] = [
    (lambda t: t.delete("nome = 1"), ColumnNotFoundError, "nome"),
    (lambda t: t.delete("rand() < 0.5"), InvalidExpressionError, "rand"),
    (lambda t: t.delete("id IN (SELECT 1)"), InvalidExpressionError, "subquery"),
    (lambda t: t.delete("max(id) = 1"), InvalidExpressionError, "aggregate"),
    (lambda t: t.delete("name"), InvalidExpressionError, "not a predicate"),
    (lambda t: t.delete("id ="), InvalidExpressionError, "."),
    (lambda t: t.delete(7), InvalidExpressionError, "not int"),  # type: ignore[arg-type]
    (lambda t: t.delete("id = 1", sign="x"), InvalidRequestError, "sign"),  # type: ignore[call-arg]
    (lambda t: t.update({}), InvalidRequestError, "Nothing is assigned"),
    (lambda t: t.update({"nome": "1"}), ColumnNotFoundError, "nome"),
    (lambda t: t.update({"st.z": "1"}), ColumnNotFoundError, "z"),
    (lambda t: t.update({"id": "nome + 1"}), ColumnNotFoundError, "nome"),
    (lambda t: t.update({"id": "1", "ID": "2"}), InvalidRequestError, "assigned twice"),
    (lambda t: t.update({"st": "st", "st.a": "2"}), InvalidRequestError, "assigned twice"),
    (lambda t: t.update({"st.b": "st.b", "st.b.c": "'2'"}), InvalidRequestError, "assigned twice"),
    (lambda t: t.update({"small": "1000"}), SchemaMismatchError, "1000"),
    (lambda t: t.update({"small": "'x'"}), SchemaMismatchError, "'x'"),
    (lambda t: t.update({"small": literal(128.5)}), InvalidExpressionError, "."),
    (lambda t: t.update({"small": "name"}), InvalidExpressionError, "'n0' is not a valid byte"),
    (lambda t: t.update({"small": "DATE '2024-01-01'"}), SchemaMismatchError, "date"),
    (lambda t: t.update({"st": "named_struct('a', 1)"}), SchemaMismatchError, "st.b is missing"),
    (lambda t: t.update({"st.b": "named_struct('c', 'x', 'd', 1)"}), SchemaMismatchError, "d"),
    (lambda t: t.update({"price": literal(Decimal("1e30"))}), SchemaMismatchError, "constant"),
    (lambda t: t.update({"id": "rand()"}), InvalidExpressionError, "rand"),
    (lambda t: t.update({"id": "(SELECT 1)"}), InvalidExpressionError, "subquery"),
    (lambda t: t.update({"id": "max(id)"}), InvalidExpressionError, "aggregate"),
    (lambda t: t.update({"id": ""}), InvalidExpressionError, "empty"),
    (lambda t: t.update({"id": object()}), InvalidExpressionError, "cannot be a constant"),
    (lambda t: t.update({"small": 1000}), SchemaMismatchError, "1000"),
    (lambda t: t.update({"name": literal("\ud800")}), InvalidExpressionError, "Unicode"),
    (lambda t: t.update({"name": literal([1])}), SchemaMismatchError, "array"),
    (lambda t: t.update({"name": ["a"]}), SchemaMismatchError, "array"),
    (lambda t: t.update({"name": {"a": 1}}), InvalidExpressionError, "a struct or a map"),
    (lambda t: t.update({"name": literal({"a": 1})}), InvalidExpressionError, "a struct or a map"),
    (lambda t: t.update({"name": literal([object()])}), InvalidExpressionError, "cannot be a constant"),
    (lambda t: t.update({"name": ["\ud800"]}), InvalidExpressionError, "Unicode"),
    (lambda t: t.update({"id": "soundex(name)"}), UnsupportedExpressionError, "soundex|SOUNDEX"),
    (lambda t: t.update({"at": "5"}), UnsupportedExpressionError, "CAST from integer to timestamp"),
    (lambda t: t.update({"id": "1"}, "id IN (SELECT 1)"), InvalidExpressionError, "subquery"),
    (lambda t: t.update({"small": "small + 126"}), InvalidExpressionError, "."),
    (lambda t: t.update({"id": "id % 0"}), InvalidExpressionError, "."),
]


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [("small", "2.7", 2), ("small", "-128.5", -128),
     ("small", "'7'", 7), ("small", "substring(name, 2)", 1), ("small", "id = 1", 1),
     ("price", "1.235", Decimal("1.24")), ("price", "'1.5'", Decimal("1.50")), ("name", "id = 1", "true"),
     ("st", "named_struct('b', named_struct('C', 2.5), 'A', '7')", {"a": 7, "b": {"c": "2.5"}}),
     ("at", "'2024-02-29'", datetime(2024, 2, 29, tzinfo=UTC))],
)  # fmt: skip
def test_values_are_cast_under_ansi(tmp_path: Path, column: str, value: str, expected: object) -> None:
    table = made(tmp_path, files=1)
    table.update({column: value}, "id = 1")
    assert table.snapshot().scan([column], where="id = 1").to_arrow()[column].to_pylist() == [expected]


def test_python_values_are_constants(tmp_path: Path) -> None:
    table = made(tmp_path, files=1)
    at = datetime(2024, 2, 29, tzinfo=UTC)
    table.update({"small": 7, "price": Decimal("1.5"), "name": None, "st.a": 8, "at": at}, "id = 1")
    merge = table.merge(pa.table({"id": [2]}), "target.id = source.id")
    merge.when_matched_update({"small": 9, "name": literal("small"), "at": None}).execute()
    found = table.snapshot().scan(["small", "price", "name", "at"], where="id IN (1, 2)").to_arrow().sort_by("small")
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        (7, Decimal("1.50"), None, at),
        (9, found["price"][1].as_py(), "small", None),
    ]


@pytest.mark.parametrize("value", ["40000", "-129", "'x'", "array(1)", "DATE'2024-02-29'"])
def test_values_are_checked_where_no_row_gets_them(tmp_path: Path, value: str) -> None:
    table = made(tmp_path, files=1)
    for where in ("id = 99", "id = 5 AND small = 4", "false"):
        with pytest.raises(SchemaMismatchError, match="small"):
            table.update({"small": value}, where)
    with pytest.raises(SchemaMismatchError, match="price"):
        table.update({"price": "1000"}, "id = 99")
    assert table.update({"price": "-999.99", "small": "-128.5"}, "id = 99").skipped and table.version() == 0


def test_a_violation_shows_the_columns_of_the_table(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": [1], "n": [5]}), properties={"delta.enableRowTracking": "true"})
    table.alter().add_constraint("small", "n < 9").commit()
    with pytest.raises(ConstraintViolationError, match=r"the row is n=15, id=1\.") as violation:
        table.update({"n": "n + 10"})
    assert violation.value.context["row"] == {"n": 15, "id": 1}


@pytest.mark.long
def test_lists_and_dicts_are_constants(rows: Any, tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    inner = pa.struct([("it's", pa.string()), ("l", pa.list_(pa.int64()))])
    moments = pa.map_(pa.string(), pa.timestamp("us", "UTC"))
    schema = pa.schema(
        {
            "id": pa.int64(),
            "tags": pa.list_(pa.string()),
            "d": pa.list_(pa.decimal128(5, 2)),
            "m": moments,
            "st": pa.struct([("a", pa.int64()), ("in", inner)]),
            "deep": pa.list_(inner),
            "f": pa.list_(pa.float64()),
        }
    )
    table.create(schema)
    names = [name for name in schema.names if name != "id"]
    table.append(rows.data(pa.Table.from_pylist([{"id": 1}, {"id": 2}], schema=schema)))
    at = datetime(2024, 2, 29, 12, tzinfo=UTC)
    values: dict[str, Any] = {
        "tags": ["a", None, "it's", 'q"q', "\\", ""],
        "d": (Decimal("1.5"), Decimal("-2.25")),
        "m": {"k": at, "x": None},
        "st": {"a": 2**40, "in": {"it's": "x", "l": [1, None, -(2**63)]}},
        "deep": [{"it's": None, "l": []}, {"it's": "y", "l": [3]}],
        "f": [1.5, float("inf"), None],
    }
    table.update(values, "id = 1", engine=rows.engine)
    expected = {**values, "d": [Decimal("1.50"), Decimal("-2.25")], "m": [("k", at), ("x", None)]}
    assert table.snapshot().scan(names, where="id = 1").to_arrow().to_pylist() == [expected]
    merge = table.merge(
        pa.table({"key": [1, 9]}), "t.id = s.key", source_alias="s", target_alias="t", engine=rows.engine
    )
    merge.when_matched_update({"st.in": {"it's": "z", "l": [7]}, "tags": [], "m": {}})
    merge.when_not_matched_insert({"id": "s.key", "tags": literal(["n"]), "m": {"k": None}}).execute()
    found = table.snapshot().scan(["id", "tags", "m", "st"], where="id <> 2").to_arrow().sort_by("id").to_pylist()
    assert found == [
        {"id": 1, "tags": [], "m": [], "st": {"a": 2**40, "in": {"it's": "z", "l": [7]}}},
        {"id": 9, "tags": ["n"], "m": [("k", None)], "st": None},
    ]


@pytest.mark.parametrize(("act", "error", "text"), REFUSED)
def test_what_is_refused_leaves_the_table(
    tmp_path: Path, act: Callable[[DeltaTable], object], error: type[DeltaError], text: str
) -> None:
    table = made(tmp_path, files=1)
    before = rows_of(table, "id", "name", "small")
    with pytest.raises(error, match=text):
        act(table)
    assert table.version() == 0
    assert rows_of(table, "id", "name", "small") == before
    assert len(list((tmp_path / "t").glob("*.parquet"))) == 1


@pytest.mark.parametrize(
    "where", ["i + 2147483647 > 0", "i - -2147483647 > 0", "i * 2147483647 = 4", "-i - 2147483647 < 0"]
)
def test_a_sum_that_overflows_in_a_comparison_is_an_error(tmp_path: Path, where: str) -> None:
    """DuckDB would solve these for `i`, and delete rows for which Spark raises."""
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"i": pa.array([1, 2, -9], pa.int32())}))
    with pytest.raises(InvalidExpressionError, match="Overflow"):
        table.delete(where)
    with pytest.raises(InvalidExpressionError, match="Overflow"):
        table.snapshot().scan(where=where).to_arrow()
    assert (table.version(), table.snapshot().scan().to_arrow().num_rows) == (0, 3)


def test_there_is_no_table(tmp_path: Path) -> None:
    for act in (lambda t: t.delete(), lambda t: t.update({"id": "1"})):
        with pytest.raises(TableNotFoundError):
            act(DeltaTable(tmp_path / "none"))


def test_a_table_that_keeps_its_rows(tmp_path: Path) -> None:
    table = made(tmp_path, {"delta.appendOnly": "true"})
    for act in (lambda: table.delete("id = 1"), lambda: table.delete(), lambda: table.update({"id": "1"})):
        with pytest.raises(AppendOnlyError):
            act()
    assert table.version() == 2


def test_values_are_cast_to_their_columns(tmp_path: Path) -> None:
    table = made(tmp_path, files=1)
    table.update({"small": "id", "price": "id", "name": literal(5), "st.a": "3.0", "at": "DATE'2021-02-03'"}, "id = 7")
    (row,) = [row for row in rows_of(table, "id", "small", "price", "name", "st", "at") if row[0] == 7]
    assert row[1:5] == (7, Decimal("7.00"), "5", {"a": 3, "b": {"c": "7"}})
    assert row[5] == datetime(2021, 2, 3, tzinfo=UTC)
    before = datetime.now(UTC)
    table.update({"at": "current_timestamp()"}, "id = 7")
    assert [row[0] for row in rows_of(table, "id", "at") if row[1] >= before] == [7]


@pytest.mark.parametrize(
    "old",
    [
        "at < current_timestamp() - INTERVAL 30 DAYS",
        "CAST(at AS DATE) < current_date - 30",
        "datediff(current_date(), at) > 30",
        "unix_timestamp() - unix_timestamp(at) > 30 * 86400",
        "at < date_trunc('DAY', now()) - INTERVAL 29 DAYS AND at <= localtimestamp()",
    ],
)
def test_rows_of_some_days_ago(tmp_path: Path, old: str) -> None:
    """What a table keeps for thirty days is deleted by a predicate that asks for the time."""
    table, now = DeltaTable(tmp_path / "t"), datetime.now(UTC)
    ages = pa.array([now - timedelta(days=days) for days in (0, 20, 40, 60)], pa.timestamp("us", "UTC"))
    table.append(pa.table({"id": [0, 1, 2, 3], "at": ages}))
    assert table.snapshot().scan(["id"], old).to_arrow()["id"].to_pylist() == [2, 3]
    source = pa.table({"id": [0, 3]})
    merged = table.merge(source, "t.id = s.id", target_alias="t", source_alias="s")
    merged.when_matched_update({"id": "t.id + 10"}, condition=old).execute()
    table.update({"id": "id + 100"}, f"id < 10 AND {old}")
    assert rows_of(table, "id") == [(0,), (1,), (13,), (102,)]
    table.delete(old)
    assert rows_of(table, "id") == [(0,), (1,)]


def test_what_is_replaced_and_what_may_come_are_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Midnight between the two would let rows of a day come beside those that are there."""
    days = [date(2024, 1, day) for day in (1, 2, 3)]

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.combine(asked.pop(0), datetime.min.time(), tz)

    table, asked = DeltaTable(tmp_path / "t"), [days[1], days[2]]
    table.append(pa.table({"id": [1, 2, 3], "day": days}))
    monkeypatch.setattr("delta_orch.expressions.clock.datetime", Clock)
    with pytest.raises(ConstraintViolationError):
        table.overwrite(pa.table({"id": [4], "day": days[2:]}), replace_where="day <= current_date()")
    asked[:] = [days[1], days[2]]
    table.overwrite(pa.table({"id": [4], "day": days[1:2]}), replace_where="day <= current_date()")
    assert rows_of(table, "id") == [(3,), (4,)]


def test_the_scope_of_a_transaction_does_not_move(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    rows = pa.table({"id": [1], "day": [date(2024, 1, 1)]})
    table.append(rows, partition_by=["day"])
    with pytest.raises(InvalidExpressionError, match="asks for the time"):
        table.append(rows, txn=TxnId("a", 1, "day = current_date()"))  # type: ignore[arg-type]
    assert table.version() == 0


@pytest.mark.long
@pytest.mark.parametrize("properties", [{}, VECTORS | FEED])
def test_rules_of_the_table(tmp_path: Path, properties: dict[str, str]) -> None:
    table = DeltaTable(tmp_path / "t")
    table.create(
        [
            column("id", "long", nullable=False),
            column("double_id", "long", generated_as="id * 2"),
            column("word", "varchar(3)", default="'abc'"),
            identity_column("number"),
        ],
        properties=properties,
    )
    table.append(pa.table({"id": [1, 2, 3]}))
    table.alter().add_constraint("small", "id < 100").commit()
    numbers = dict(rows_of(table, "id", "number"))
    table.update({"id": "id + 10", "word": "'xy'"}, "id >= 2")
    found = rows_of(table, "id", "double_id", "word", "number")
    assert found == [(1, 2, "abc", numbers[1]), (12, 24, "xy", numbers[2]), (13, 26, "xy", numbers[3])]
    table.update({"word": "DEFAULT"}, "id = 12")
    assert dict(rows_of(table, "id", "word"))[12] == "abc"
    version = table.version()
    for values in ({"id": "100"}, {"id": "NULL"}, {"word": "'long'"}, {"double_id": "5"}):
        with pytest.raises(ConstraintViolationError):
            table.update(values, "id = 12")
    with pytest.raises(InvalidRequestError, match="identity"):
        table.update({"number": "5"})
    table.update({"double_id": "id * 2"}, "id = 12")
    assert table.version() == version + 1


def test_rows_of_one_file_that_two_writers_change(tmp_path: Path) -> None:
    made(tmp_path, VECTORS, files=1)
    mine, theirs = DeltaTable(tmp_path / "t"), DeltaTable(tmp_path / "t")
    for table in (mine, theirs):
        table.snapshot()
    theirs.delete("id = 1")
    assert mine.delete("id = 2").version == 2
    assert [row[0] for row in rows_of(mine, "id")] == [0, 3, 4, 5, 6, 7, 8, 9]


def test_what_another_writer_changed_since(tmp_path: Path) -> None:
    table = made(tmp_path, files=1)
    version = table.version()
    table.update({"name": "'theirs'"}, "id = 1")
    with pytest.raises(ConflictError):
        table.update({"name": "'mine'"}, "id = 1", read_version=version)
    assert dict(rows_of(table, "id", "name"))[1] == "theirs"


def test_names_of_all_kinds(tmp_path: Path) -> None:
    names = ["a b", "c.d", "select", "e`f", "ü%", "G"]
    table = DeltaTable(tmp_path / "t")
    data = pa.table({name: [1, 2] for name in names})
    table.append(data, properties={"delta.columnMapping.mode": "name"})
    table.update({"a b": "`a b` + 1", "`c.d`": "`c.d` + `g`", "`e``f`": "9", "ü%": "`select`"}, "`c.d` = 2")
    assert rows_of(table, *(f"`{name.replace('`', '``')}`" for name in names)) == [(1,) * 6, (3, 4, 2, 9, 2, 2)]


def test_a_column_of_a_name_that_is_taken(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"_delta_orch_kind": [1]}))
    with pytest.raises(InvalidRequestError, match="_delta_orch_kind"):
        table.update({"_delta_orch_kind": "2"})
