"""DELETE and UPDATE on each kind of Spark session, beside plain Python."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.engines.row_sets import RowSet
from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.errors import ConstraintViolationError, InvalidExpressionError, SchemaMismatchError
from tests.families import family
from tests.harness.changed_rows import CHANGES, PLAIN_NAMES, PREDICATES, SCHEMA, Model

pytestmark = pytest.mark.spark

ROWS = [
    {
        "id": i,
        "part": [None, "a", "b c%/ü"][i % 3],
        "x": [None, float("nan"), 0.5, 2.0][i % 4],
        "st": None if i % 5 == 0 else {"a": i % 3, "b": None if i % 2 else {"c": str(i)}},
        "odd name": i,
        "list": [i, None],
    }
    for i in range(12)
]


MARKED = {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"}
EVERYTHING = MARKED | {"delta.columnMapping.mode": "name", "delta.enableRowTracking": "true"}


# Every kind of session, and every kind of table; each pair of them takes half a minute.
@family(
    ("engine", "properties", "partition_by"),
    [("classic", EVERYTHING, ["part"]), ("connect", MARKED, None), ("portable", {}, ["part"])],
    indirect=["engine"],
    every=3,
)
def test_statements_do_what_plain_python_does(
    engine: SparkEngine, tmp_path: Path, properties: dict[str, str], partition_by: list[str] | None
) -> None:
    table = DeltaTable(str(tmp_path / "a table"))
    schema = SCHEMA if "delta.columnMapping.mode" in properties else PLAIN_NAMES
    rows = [dict(zip(schema.names, row.values(), strict=True)) for row in ROWS]
    table.append(pa.Table.from_pylist(rows, schema), partition_by=partition_by, properties=properties)
    model = Model(table, engine, "delta.enableRowTracking" in properties, "delta.enableChangeDataFeed" in properties)
    model.load()
    model.update(CHANGES[4], PREDICATES[3])
    model.delete(PREDICATES[2])
    model.update(CHANGES[8], PREDICATES[7])
    model.delete(PREDICATES[1])
    model.delete(PREDICATES[0])


@pytest.mark.long
@pytest.mark.parametrize(
    "old",
    [
        "at < current_timestamp() - INTERVAL 30 DAYS",
        "datediff(current_date, at) > 30",
        "at < localtimestamp() - INTERVAL '30' DAY",
    ],
)
def test_rows_of_some_days_ago(engine: SparkEngine, tmp_path: Path, old: str) -> None:
    table, now = DeltaTable(tmp_path / "t"), datetime.now(UTC)
    ages = pa.array([now - timedelta(days=days) for days in (0, 20, 40, 60)], pa.timestamp("us", "UTC"))
    table.append(pa.table({"id": [0, 1, 2, 3], "at": ages}))
    table.update({"id": "id + 100", "at": "current_timestamp() - INTERVAL 31 DAYS"}, f"{old} AND id = 3", engine=engine)
    assert sorted(table.snapshot().scan(["id"], old).to_arrow()["id"].to_pylist()) == [2, 103]
    table.delete(old, engine=engine)
    assert sorted(table.snapshot().scan(["id"]).to_arrow()["id"].to_pylist()) == [0, 1]


NESTED = pa.schema(
    [
        ("id", pa.int64()),
        ("st", pa.struct([("d", pa.float64()), ("e", pa.string()), ("odd name", pa.struct([("k", pa.int16())]))])),
        ("list", pa.list_(pa.float64())),
        ("map", pa.map_(pa.string(), pa.decimal128(6, 2))),
        ("deep", pa.list_(pa.struct([("x", pa.list_(pa.int32())), ("day", pa.date32())]))),
    ]
)
NESTED_VALUES = {
    "list": [
        "array(0.1, 2, id)", "array('1.5', 'NaN')", "array()", "array(NULL)", "if(id = 1, array(), list)",
        "coalesce(list, array(NULL, 1D))",
    ],
    "st": [
        "named_struct('d', 1, 'e', 5, 'odd name', named_struct('k', id))",
        "named_struct('odd name', named_struct('K', id + 1L), 'E', 'y', 'D', '1e3')",
        "if(id = 1, st, named_struct('d', 1.25D, 'e', 'x', 'odd name', named_struct('k', 7S)))",
        "named_struct('d', NULL, 'e', NULL, 'odd name', NULL)",
        "named_struct('d', 1, 'e', NULL, 'odd name', named_struct('k', NULL))",
        "named_struct('d', 1, 'e', 5)",
        "named_struct('d', 1, 'e', 5, 'odd name', named_struct('k', 7), 'more', 1)",
        "named_struct('d', DATE'2020-01-01', 'e', 'e', 'odd name', named_struct('k', 1))",
        "named_struct('d', 1, 'e', 'e', 'odd name', named_struct('k', id * 70000))",
    ],
    "map": ["map(id, '2.345')", "map('a', 2.345, 'b', id)", "map('a', 12345)", "map()", "map('a', NULL)"],
    "deep": [
        "array(named_struct('day', '2020-1-5', 'x', array(id, '7')))",
        "array(named_struct('x', list, 'day', day))",
        "array()",
        "array(NULL)",
        "array(named_struct('day', NULL, 'x', array()))",
        "array(named_struct('x', NULL, 'day', day), NULL)",
    ],
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("1L, 1L", "have the same keys"),
        ("CAST(NULL AS INT), NULL", "have the same keys"),
        ("'1', '01'", "have the same keys"),
        ("1.5D, 2D", "change when they are stored"),
        ("1, 2", None),
    ],
)
def test_new_rows_of_an_upsert_have_keys_of_their_own(
    engine: SparkEngine, tmp_path: Path, keys: str, problem: str | None
) -> None:
    table = DeltaTable(tmp_path / "t")
    table.create(pa.schema([("id", pa.int64())]))
    source = engine.host.session.sql(f"SELECT explode(array({keys})) AS ID")
    if problem is None:
        assert table.upsert(source, ["id"], engine=engine).metrics["numTargetRowsInserted"] == 2
        assert table.upsert(source, ["id"], engine=engine).metrics["numTargetRowsInserted"] == 0
        return
    with pytest.raises(ConstraintViolationError, match=problem):
        table.upsert(source, ["id"], engine=engine)
    assert table.version() == 0


@pytest.mark.long
@pytest.mark.parametrize("column", NESTED_VALUES)
def test_nested_values_are_cast_alike_by_both_engines(engine: SparkEngine, tmp_path: Path, column: str) -> None:
    """Part by part under ANSI, structs by the names of their fields, as the reference casts them."""
    rows = [
        {"id": 1, "st": {"d": 0.5, "e": "e", "odd name": {"k": 1}}, "list": [1.0], "map": [("a", 1)],
         "deep": [{"x": [1], "day": None}]},
        {"id": 2, "st": None, "list": None, "map": None, "deep": None},
    ]  # fmt: skip
    tables = {name: DeltaTable(str(tmp_path / name)) for name in ("spark", "local")}
    for table in tables.values():
        table.append(
            pa.Table.from_pylist(rows, NESTED).append_column("day", pa.nulls(2, pa.date32())),
            properties={"delta.columnMapping.mode": "name"},
        )
    for value in NESTED_VALUES[column]:
        told: dict[str, object] = {}
        for name, table in tables.items():
            try:
                table.update({column: value}, engine=engine if name == "spark" else "local")
                told[name] = sorted(map(str, table.snapshot().scan().to_arrow().to_pylist()))
            except (InvalidExpressionError, SchemaMismatchError) as e:
                told[name] = type(e)
        assert told["spark"] == told["local"], value
    assert tables["spark"].version() == tables["local"].version() > 0


def test_rows_are_evaluated_once_and_gathered_into_bitmaps(engine: SparkEngine) -> None:
    rows = engine.relation(
        pa.table(
            {
                "kind": ["delete"] * 4 + ["insert"],
                "file": pa.array([0, 0, 7, 7, None], pa.int64()),
                "row": pa.array([0, 70_000, 32_768, 32_768, None], pa.int64()),
            }
        )
    )
    sets = engine.row_sets(rows, "kind", "file", "row")
    assert {key: (sorted(found.positions), found.num_rows) for key, found in sets.items()} == {
        ("delete", 0): ([0, 70_000], 2),
        ("delete", 7): ([32_768], 2),
        ("insert", None): ([], 1),
    }
    with engine.evaluated(rows.selectExpr("*", "rand() AS r")) as kept:
        assert engine.to_arrow(kept).sort_by("r").equals(engine.to_arrow(kept).sort_by("r"))
    assert RowSet().num_rows == 0


@pytest.mark.parametrize(
    ("values", "error"), [({"id": "id + 9223372036854775807"}, "OVERFLOW"), ({"small": "id * 300"}, "OVERFLOW")]
)
def test_a_value_that_cannot_be_is_told_in_our_words(
    engine: SparkEngine, tmp_path: Path, values: dict[str, str], error: str
) -> None:
    table = DeltaTable(str(tmp_path / "table"))
    table.append(pa.table({"id": [1, 2], "small": pa.array([1, 2], pa.int8())}))
    with pytest.raises(InvalidExpressionError, match=error):
        table.update(values, engine=engine)
    assert table.version() == 0
