"""The rules a table has for its rows, on both engines: invariants, CHECK constraints, generated, default and identity
columns (PROTOCOL, sections of these names)."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import (
    ConstraintViolationError,
    InvalidRequestError,
    MetadataChangedError,
    ProtocolViolationError,
    SchemaMismatchError,
    UnsupportedExpressionError,
)
from delta_orch.protocol.types import (
    DATE,
    DOUBLE,
    INTEGER,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VOID,
    ArrayType,
    DecimalType,
    MapType,
    StructField,
    StructType,
    fields_of,
)
from tests.handmade import HandmadeTable

FEATURES = ("invariants", "checkConstraints", "generatedColumns", "identityColumns", "allowColumnDefaults")


def field(name: str, data_type: Any = LONG, nullable: bool = True, **metadata: Any) -> StructField:
    return StructField(name, data_type, nullable, {key.replace("__", "."): value for key, value in metadata.items()})


def invariant(text: str) -> str:
    return json.dumps({"expression": {"expression": text}})


@pytest.fixture
def make(tmp_path: Path) -> Any:
    def create(*fields: StructField, **given: Any) -> DeltaTable:
        handmade = HandmadeTable(tmp_path / "rules")
        handmade.create(StructType(fields), **{"features": FEATURES, **given})
        return handmade.open()

    return create


def refused(table: DeltaTable, data: Any) -> ConstraintViolationError:
    version = table.version()
    with pytest.raises(ConstraintViolationError) as caught:
        table.append(data)
    assert table.version() == version
    return caught.value


# Invariants and CHECK constraints


@pytest.mark.parametrize("form", [invariant("x > 3"), "x > 3"], ids=["json", "bare"])
def test_an_invariant_is_kept(rows: Any, make: Any, form: str) -> None:
    table = make(field("x", INTEGER, delta__invariants=form), field("note", STRING))
    table.append(rows.data(pa.table({"x": pa.array([4, 5], pa.int32()), "note": ["a", "b"]})))
    error = refused(table, rows.data(pa.table({"x": pa.array([4, 3], pa.int32()), "note": ["a", "b"]})))
    assert error.context["constraint"] == "the invariant of column x"
    assert list(error.context["row"].items()) == [("x", 3), ("note", "b")]
    # Null is a violation as well.
    refused(table, rows.data(pa.table({"x": pa.array([None], pa.int32()), "note": ["a"]})))


def test_the_invariant_of_a_nested_field(rows: Any, make: Any) -> None:
    inner = StructType((field("y", LONG, delta__invariants=invariant("st.y < 10")),))
    table = make(field("st", inner))
    kind = pa.struct([("y", pa.int64())])
    table.append(rows.data(pa.table({"st": pa.array([{"y": 1}], kind)})))
    refused(table, rows.data(pa.table({"st": pa.array([{"y": 10}], kind)})))


@pytest.mark.long
def test_a_check_constraint_is_kept_by_every_verb(rows: Any, make: Any) -> None:
    configuration = {"delta.constraints.ordered": "low <= high", "delta.constraints.Short": "length(name) < 4"}
    table = make(field("low"), field("high"), field("name", STRING), configuration=configuration)

    def data(low: int | None, high: int | None, name: str = "abc") -> Any:
        return rows.data(
            pa.table({"name": [name], "high": pa.array([high], pa.int64()), "low": pa.array([low], pa.int64())})
        )

    table.append(data(1, 2))
    error = refused(table, data(3, 2))
    assert "CHECK constraint ordered" in str(error)
    assert list(error.context["row"])[:2] == ["low", "high"]
    refused(table, data(None, 2))
    assert "Short" in str(refused(table, data(1, 2, "abcd")))
    for options in ({}, {"replace_where": "low > 0"}):
        with pytest.raises(ConstraintViolationError, match="ordered"):
            table.overwrite(data(3, 2), **options)
    assert rows.pylist(table) == [{"low": 1, "high": 2, "name": "abc"}]


def test_a_new_table_keeps_its_constraints_from_the_first_row_on(rows: Any, table: DeltaTable, days: Any) -> None:
    properties = {"delta.constraints.positive": "id > 0"}
    with pytest.raises(ConstraintViolationError, match="positive"):
        table.append(rows.data(days(("a", 0))), properties=properties)
    assert not table.exists()
    table.append(rows.data(days(("a", 1))), properties=properties)
    assert refused(table, rows.data(days(("a", -1)))).context["constraint"] == "CHECK constraint positive"


def test_a_rule_about_a_column_that_is_not_there_is_the_tables_fault(rows: Any, make: Any) -> None:
    table = make(field("x"), configuration={"delta.constraints.odd": "y > 1"})
    with pytest.raises(ProtocolViolationError, match="odd"):
        table.append(rows.data(pa.table({"x": [1]})))


def test_a_rule_only_spark_can_evaluate(rows: Any, make: Any) -> None:
    table = make(field("x"), configuration={"delta.constraints.hashed": "hash(x) <> 0"})
    if rows.spark is None:
        with pytest.raises(UnsupportedExpressionError, match="Spark"):
            table.append(pa.table({"x": [1]}))
        assert table.version() == 0
    else:
        table.append(rows.data(pa.table({"x": [1]})))
        assert rows.pylist(table) == [{"x": 1}]


# Generated columns


def generated_table(make: Any, **given: Any) -> DeltaTable:
    table: DeltaTable = make(
        field("at", TIMESTAMP),
        field("n"),
        field("day", DATE, delta__generationExpression="CAST(at AS DATE)"),
        field("twice", LONG, delta__generationExpression="n * 2"),
        **given,
    )
    return table


AT = [datetime(2024, 1, 31, 23, 59, 59, tzinfo=UTC), None, datetime(1969, 12, 31, 23, 0, tzinfo=UTC)]


@pytest.mark.parametrize("partition_by", [(), ("day",)], ids=["flat", "partitioned"])
def test_generated_columns_are_computed_where_absent(rows: Any, make: Any, partition_by: Any) -> None:
    table = generated_table(make, partition_by=partition_by)
    source = pa.table({"n": pa.array([1, 2, None], pa.int64()), "at": pa.array(AT, pa.timestamp("us", "UTC"))})
    table.append(rows.data(source))
    found = sorted(rows.pylist(table, columns=["n", "day", "twice"]), key=lambda r: (r["n"] is None, r["n"]))
    assert found == [
        {"n": 1, "day": date(2024, 1, 31), "twice": 2},
        {"n": 2, "day": None, "twice": 4},
        {"n": None, "day": date(1969, 12, 31), "twice": None},
    ]
    if partition_by:
        days = {dict(f)["day"] for f in table.snapshot().files()["partition_values"].to_pylist()}
        assert days == {"2024-01-31", "1969-12-31", None}


@pytest.mark.long
def test_generated_columns_are_verified_where_given(rows: Any, make: Any) -> None:
    table = generated_table(make)

    def data(n: int | None, twice: int | None) -> Any:
        return rows.data(
            pa.table(
                {
                    "n": pa.array([n], pa.int64()),
                    "twice": pa.array([twice], pa.int64()),
                    "at": pa.array([AT[0]], pa.timestamp("us", "UTC")),
                }
            )
        )

    table.append(data(1, 2))
    # Null-safe: two nulls are equal, one is not.
    table.append(data(None, None))
    assert "twice" in str(refused(table, data(1, 3)))
    refused(table, data(1, None))
    refused(table, data(None, 2))
    assert sorted(str(r["twice"]) for r in rows.pylist(table, columns=["twice"])) == ["2", "None"]


def test_a_narrow_source_column_is_widened_before_anything_is_computed_of_it(rows: Any, make: Any) -> None:
    table = make(field("n"), field("big", LONG, delta__generationExpression="n * 1000000"))
    table.append(rows.data(pa.table({"n": pa.array([1_000_000], pa.int32())})))
    assert rows.pylist(table) == [{"n": 1_000_000, "big": 1_000_000_000_000}]


def test_generation_that_only_spark_can_evaluate(rows: Any, make: Any) -> None:
    table = make(field("n"), field("h", INTEGER, delta__generationExpression="hash(n)"))
    data = rows.data(pa.table({"n": [1]}))
    if rows.spark is None:
        with pytest.raises(UnsupportedExpressionError, match="Spark"):
            table.append(data)
    else:
        table.append(data)
        expected = rows.spark.sql("SELECT hash(1L) AS h").collect()[0]["h"]
        assert rows.pylist(table) == [{"n": 1, "h": expected}]


# Default columns


def test_defaults_fill_absent_columns_and_nothing_else(rows: Any, make: Any) -> None:
    table = make(
        field("id"),
        field("kind", STRING, CURRENT_DEFAULT="'it''s'"),
        field("amount", LONG, nullable=False, CURRENT_DEFAULT="6 * 7"),
        field("at", TIMESTAMP, CURRENT_DEFAULT="current_timestamp()"),
        field("double", LONG, delta__generationExpression="amount * 2"),
    )
    table.append(rows.data(pa.table({"id": [1]})))
    table.append(rows.data(pa.table({"id": [2], "kind": pa.array([None], pa.string()), "amount": [1]})))
    first, second = sorted(rows.pylist(table), key=lambda r: r["id"])
    assert (first["kind"], first["amount"], first["double"]) == ("it's", 42, 84)
    assert abs((datetime.now(UTC) - first["at"]).total_seconds()) < 600
    assert (second["kind"], second["amount"], second["double"]) == (None, 1, 2)


@pytest.mark.parametrize(
    ("data_type", "default", "value"),
    [
        (DATE, "'2024-02-29'", date(2024, 2, 29)),
        (TIMESTAMP, "'2024-02-29 12:00:00'", datetime(2024, 2, 29, 12, tzinfo=UTC)),
        (TIMESTAMP, "TIMESTAMP '2024-02-29 12:00:00Z'", datetime(2024, 2, 29, 12, tzinfo=UTC)),
        (LONG, "'17'", 17),
        (DecimalType(5, 2), "1.5", Decimal("1.50")),
        (DOUBLE, "2", 2.0),
        (INTEGER, "CAST('12' AS INT)", 12),
        (STRING, "concat('a', 'b')", "ab"),
        (STRING, "NULL", None),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_defaults_of_every_spelling(rows: Any, make: Any, data_type: Any, default: str, value: Any) -> None:
    table = make(field("id"), field("x", data_type, CURRENT_DEFAULT=default))
    table.append(rows.data(pa.table({"id": [1]})))
    assert rows.pylist(table) == [{"id": 1, "x": value}]


PAIR = StructType((StructField("a", INTEGER), StructField("b", LONG)))


@pytest.mark.long
@pytest.mark.parametrize(
    ("data_type", "default", "value"),
    [
        (PAIR, "struct(1, 2)", {"a": 1, "b": 2}),
        (PAIR, "named_struct('b', 1, 'a', 2)", {"a": 1, "b": 2}),
        (ArrayType(PAIR), "array(struct(1, 2))", [{"a": 1, "b": 2}]),
        (MapType(STRING, PAIR), "map('k', struct(1, 2))", [("k", {"a": 1, "b": 2})]),
        (ArrayType(STRING), "array(1)", ["1"]),
    ],
    ids=str,
)
def test_fields_of_a_default_go_by_their_place(rows: Any, make: Any, data_type: Any, default: str, value: Any) -> None:
    # As with Delta on Spark. Fields by other names were null on the local engine.
    table = make(field("id"), field("x", data_type, CURRENT_DEFAULT=default))
    table.append(rows.data(pa.table({"id": [1]})))
    assert table.snapshot().scan(["x"]).to_arrow()["x"].to_pylist() == [value]
    table.update({"x": "NULL"}, engine=rows.engine)
    table.update({"x": "DEFAULT"}, engine=rows.engine)
    assert table.snapshot().scan(["x"]).to_arrow()["x"].to_pylist() == [value]


@pytest.mark.long
def test_all_defaults_of_a_statement_tell_one_moment(rows: Any, make: Any) -> None:
    table = make(
        field("id"),
        field("at", TIMESTAMP, CURRENT_DEFAULT="current_timestamp()"),
        field("soon", TIMESTAMP, CURRENT_DEFAULT="now() + INTERVAL 1 DAY"),
        field("bare", TIMESTAMP, CURRENT_DEFAULT="current_timestamp"),
        field("local", TIMESTAMP_NTZ, CURRENT_DEFAULT="localtimestamp()"),
        field("day", DATE, CURRENT_DEFAULT="current_date()"),
        field("cast", DATE, CURRENT_DEFAULT="current_timestamp()"),
        field("text", STRING, CURRENT_DEFAULT="current_date()"),
    )
    table.append(rows.data(pa.table({"id": [1]})))
    update = table.merge(rows.data(pa.table({"id": [1, 2]})), "source.id = target.id", engine=rows.engine)
    update.when_matched_update({"at": "DEFAULT"}).when_not_matched_insert({"id": "source.id"}).execute()
    first, second = sorted(rows.pylist(table), key=lambda r: r["id"])
    assert first["at"] == second["at"] > first["bare"]
    for row in (first, second):
        at = row["bare"]
        day = at.date()
        found = [row[name] for name in ("soon", "local", "day", "cast", "text")]
        assert found == [at + timedelta(days=1), at.replace(tzinfo=None), day, day, str(day)]


def test_a_missing_column_without_default_is_null_unless_it_must_not_be(rows: Any, make: Any) -> None:
    # Until appends filled nulls, as those of Delta on Spark do, `a` was refused.
    needed = StructField("needed", LONG, nullable=False)
    table = make(field("id"), field("a"), field("b", CURRENT_DEFAULT="1"), needed, field("empty", VOID))
    with pytest.raises(SchemaMismatchError, match="column needed is missing") as caught:
        table.append(rows.data(pa.table({"id": [1]})))
    assert "column b" not in str(caught.value) and "column a" not in str(caught.value)
    table.append(rows.data(pa.table({"id": [1], "needed": [2]})))
    assert rows.pylist(table, columns=["id", "a", "b"]) == [{"id": 1, "a": None, "b": 1}]


def test_default_metadata_without_the_feature_means_nothing(rows: Any, make: Any) -> None:
    table = make(field("id"), field("b", CURRENT_DEFAULT="1"), features=("appendOnly",))
    # The value in the metadata is not the column's; null is, as for every column that the data lacks.
    table.append(rows.data(pa.table({"id": [1]})))
    assert rows.pylist(table) == [{"id": 1, "b": None}]


@pytest.mark.parametrize(("kind", "empty", "other"), [(pa.string(), "", "x"), (pa.binary(), b"", b"x")])
def test_checks_see_an_empty_partition_value_as_the_null_that_it_becomes(
    rows: Any, table: DeltaTable, kind: pa.DataType, empty: object, other: object
) -> None:
    def data(*keys: object) -> Any:
        return rows.data(pa.table({"k": pa.array(keys, kind), "id": [1] * len(keys)}))

    table.create(pa.schema([pa.field("k", kind, nullable=False), ("id", pa.int64())]), partition_by=["k"])
    refused(table, data(other, empty))
    table.append(data(other))
    loose = DeltaTable(f"{table.uri}-loose")
    loose.append(data(other), partition_by=["k"])
    with pytest.raises(ConstraintViolationError, match="replace_where"):
        loose.overwrite(data(empty), replace_where=f"k = {_sql(empty)} OR k = {_sql(other)}")
    assert rows.pylist(table) == rows.pylist(loose) == [{"k": other, "id": 1}]


def _sql(value: object) -> str:
    return f"X'{value.hex()}'" if isinstance(value, bytes) else f"'{value}'"


# Identity columns


def identity(name: str = "key", start: int = 1, step: int = 1, explicit: bool = False, **more: Any) -> StructField:
    return field(
        name,
        LONG,
        delta__identity__start=start,
        delta__identity__step=step,
        delta__identity__allowExplicitInsert=explicit,
        **more,
    )


def mark(table: DeltaTable) -> int | None:
    found = table.snapshot().schema.find("key")
    assert found is not None
    value = found.metadata.get("delta.identity.highWaterMark")
    assert value is None or isinstance(value, int)
    return value


def keys(rows: Any, table: DeltaTable) -> list[int]:
    return sorted(r["key"] for r in rows.pylist(table, columns=["key"]))


@pytest.mark.long
@pytest.mark.parametrize(("start", "step"), [(1, 1), (10, 5), (-3, -2), (0, -7)])
def test_identity_values_are_new_aligned_and_marked(rows: Any, make: Any, start: int, step: int) -> None:
    table = make(identity(start=start, step=step), field("n"))
    seen: list[int] = []
    for _ in range(3):
        table.append(rows.data(pa.table({"n": list(range(40))})))
        now = keys(rows, table)
        assert len(set(now)) == len(now)
        new = sorted(set(now) - set(seen))
        assert len(new) == 40
        assert all((value - start) % step == 0 and (value - start) // step >= 0 for value in new)
        if seen:
            assert min(new) > max(seen) if step > 0 else max(new) < min(seen)
        assert mark(table) == (max(now) if step > 0 else min(now))
        seen = now
    if rows.spark is None:
        assert seen == sorted(start + step * k for k in range(120))


def test_identity_values_of_many_tasks_never_collide(rows: Any, make: Any) -> None:
    table = make(identity(), field("n"))
    data = pa.table({"n": list(range(1000))})
    table.append(data if rows.spark is None else rows.spark.range(0, 1000, 1, 7).withColumnRenamed("id", "n"))
    found = keys(rows, table)
    assert len(set(found)) == 1000
    assert mark(table) == max(found)


def test_values_of_a_column_that_is_always_generated_are_refused(rows: Any, make: Any) -> None:
    table = make(identity(), field("n"))
    with pytest.raises(InvalidRequestError, match="always generates"):
        table.append(rows.data(pa.table({"key": [1], "n": [1]})))
    assert table.version() == 0


def test_values_by_default_may_be_given(rows: Any, make: Any) -> None:
    table = make(identity(explicit=True, delta__identity__highWaterMark=4), field("n"))
    table.append(rows.data(pa.table({"key": [100], "n": [1]})))
    assert mark(table) == 4
    table.append(rows.data(pa.table({"n": [2]})))
    assert (keys(rows, table), mark(table)) == ([5, 100], 5)


def test_a_mark_off_the_grid_is_stepped_over(rows: Any, make: Any) -> None:
    table = make(identity(start=0, step=10, delta__identity__highWaterMark=14), field("n"))
    table.append(rows.data(pa.table({"n": [1]})))
    assert keys(rows, table) == [20]


@pytest.mark.parametrize(("mark_at", "step"), [(2**63 - 3, 1), (-(2**63) + 2, -1)])
def test_overflow_is_found_before_anything_is_committed(rows: Any, make: Any, mark_at: int, step: int) -> None:
    table = make(identity(start=0, step=step, delta__identity__highWaterMark=mark_at), field("n"))
    refused(table, rows.data(pa.table({"n": list(range(8))})))
    table.append(rows.data(pa.table({"n": [1]})))
    assert keys(rows, table) == [mark_at + step]
    if rows.spark is None:
        table.append(pa.table({"n": [1]}))
        with pytest.raises(InvalidRequestError, match="used up"):
            table.append(pa.table({"n": [1]}))


@pytest.mark.parametrize("partition_by", [(), ("n",), ("parity",)], ids=["flat", "by data", "by a generated column"])
def test_columns_generated_from_identity_values(rows: Any, make: Any, partition_by: Any) -> None:
    table = make(
        identity(),
        field("n"),
        field("parity", LONG, delta__generationExpression="key % 2"),
        field("twice", LONG, delta__generationExpression="n * 2"),
        partition_by=partition_by,
    )
    table.append(rows.data(pa.table({"n": [1, 2, 3, 4]})))
    found = rows.pylist(table)
    assert len({r["key"] for r in found}) == 4
    assert all(r["parity"] == r["key"] % 2 and r["twice"] == r["n"] * 2 for r in found)


def test_no_rows_move_no_mark(rows: Any, make: Any) -> None:
    table = make(identity(), field("n"))
    table.append(rows.data(pa.table({"n": pa.array([], pa.int64())})))
    assert mark(table) is None


def test_concurrent_writers_take_different_values(make: Any) -> None:
    uri = make(identity(), field("n")).uri
    barrier = threading.Barrier(4)

    def write() -> None:
        table = DeltaTable(uri)
        table.snapshot()
        barrier.wait()
        for _ in range(3):
            table.append(pa.table({"n": [1, 2, 3]}))

    with ThreadPoolExecutor(4) as pool:
        for running in [pool.submit(write) for _ in range(4)]:
            running.result()
    table = DeltaTable(uri)
    found = sorted(r["key"] for r in table.snapshot().scan(["key"]).to_arrow().to_pylist())
    assert found == list(range(1, 37))


def test_a_stream_that_was_overtaken_says_so(make: Any) -> None:
    table = make(identity(), field("n"))

    def batches() -> Any:
        # Somebody else takes values while this stream is being written.
        DeltaTable(table.uri).append(pa.table({"n": [1]}))
        yield pa.record_batch({"n": [2]})

    reader = pa.RecordBatchReader.from_batches(pa.schema([("n", pa.int64())]), batches())
    with pytest.raises(MetadataChangedError) as caught:
        table.append(reader)
    assert caught.value.retryable
    assert table.snapshot().scan(["key"]).to_arrow().to_pylist() == [{"key": 1}]


# NOT NULL at depth, through the verbs


def test_not_null_inside_arrays(rows: Any, make: Any) -> None:
    table = make(field("id"), field("tags", ArrayType(STRING, contains_null=False)))
    kind = pa.list_(pa.string())
    table.append(rows.data(pa.table({"id": [1], "tags": pa.array([["a"]], kind)})))
    error = refused(table, rows.data(pa.table({"id": [2], "tags": pa.array([["a", None]], kind)})))
    assert error.context["constraint"] == "NOT NULL constraint on tags.element"


@pytest.mark.long
def test_a_null_struct_breaks_not_null_of_its_fields(rows: Any, make: Any) -> None:
    """Delta on Spark fails with every later change of a file with such a row."""
    x = StructField("x", LONG, nullable=False)
    table = make(field("id"), field("s", StructType((StructField("in", StructType((x,))), field("y")))))
    kind = pa.struct([("in", pa.struct([("x", pa.int64())])), ("y", pa.int64())])
    table.append(rows.data(pa.table({"id": [1], "s": pa.array([{"in": {"x": 1}}], kind)})))
    broken: tuple[Any, ...] = (None, {"y": 1}, {"in": {}})
    for value in broken:
        error = refused(table, rows.data(pa.table({"id": [2], "s": pa.array([value], kind)})))
        assert error.context["constraint"] == "NOT NULL constraint on s.in.x"
    with pytest.raises(ConstraintViolationError):
        table.update({"s": "NULL"}, engine=rows.engine)


def test_a_required_field_of_a_struct_that_may_be_null_is_no_rule(rows: Any, tmp_path: Path) -> None:
    inner = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    schema = pa.schema([("s", inner), pa.field("kept", inner, nullable=False)])
    table = DeltaTable(tmp_path / "t")
    data = pa.table([pa.array([None, {"x": 1}], inner), pa.array([{"x": 1}] * 2, inner)], schema)
    table.append(data, engine=rows.engine)
    assert [f.nullable for f in fields_of(table.snapshot().schema)] == [True, True, False, False]
    assert table.snapshot().scan().to_arrow().to_pylist() == data.to_pylist()
