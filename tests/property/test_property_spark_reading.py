"""Spark reads what the local engine reads: random tables with widened types, tracked rows, deletion vectors and mapped
columns, under predicates of the scan, of the user and of pyarrow."""

from __future__ import annotations

import datetime as dt
import json
import random
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_orch import DeltaTable
from delta_orch.engines.select import spark_engine
from delta_orch.engines.spark.frames import is_connect
from delta_orch.engines.spark.pushed_filters import PushedFilters
from delta_orch.errors import UnsupportedExpressionError
from delta_orch.protocol.arrow_building import type_to_arrow
from delta_orch.protocol.types import (
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    SHORT,
    STRING,
    TIMESTAMP_NTZ,
    DataType,
    DecimalType,
    StructField,
    StructType,
)
from delta_orch.table.column_mapping import assign_column_mapping, physical_name
from tests.families import family
from tests.handmade import HandmadeTable, inline_vector
from tests.harness.row_multiset import ensure_same_rows
from tests.property.expression_samples import random_predicates
from tests.property.random_tables import random_table

pytestmark = pytest.mark.spark


@pytest.fixture(params=["classic", "connect"])
def session(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("spark" if request.param == "classic" else "spark_connect")


class KeptFiles:
    """Counts how often filters that were pushed into a scan left out files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pruned = 0
        real = PushedFilters.kept

        def counted(pushed: PushedFilters, text: str) -> bytes | None:
            answer = real(pushed, text)
            self.pruned += answer is not None
            return answer

        monkeypatch.setattr(PushedFilters, "kept", counted)


@pytest.mark.long
@pytest.mark.parametrize("seed", [200])
def test_a_users_filter_gives_what_the_scans_predicate_gives(
    session: Any, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = random_table(tmp_path / "t", seed, num_rows=80)
    engine, snapshot = spark_engine(session), made.table.snapshot()
    kept = KeptFiles(monkeypatch)
    frame = snapshot.scan().to_relation(engine)
    compared = 0
    for number, text in enumerate(random_predicates(seed, 6)):
        predicate = f"({text}) AND id >= {5 * number}" if number % 2 else text
        try:
            expected = snapshot.scan(["id"], predicate).to_arrow()
        except UnsupportedExpressionError:
            continue
        compared += 1
        try:
            ensure_same_rows(engine.to_arrow(frame.where(predicate).select("id")), expected)
        except AssertionError as e:
            raise AssertionError(f"{made.what}\nwhere {predicate}\n{e}") from None
    assert compared > 2
    assert kept.pruned > 0 or is_connect(session)


# Before and after; what a value of the former is in the latter follows from the types.
WIDENINGS: list[tuple[str, DataType, DataType]] = [
    ("b", BYTE, SHORT),
    ("i", INTEGER, LONG),
    ("to double", INTEGER, DOUBLE),
    ("f", FLOAT, DOUBLE),
    ("d", DecimalType(5, 2), DecimalType(10, 4)),
    ("n", SHORT, DecimalType(12, 2)),
    ("day", DATE, TIMESTAMP_NTZ),
]
PREDICATES = [
    "`to double` > 2.5",
    "i = {i} OR d >= 1.25",
    "i > 2147483648 AND f < 10",
    "f > 3",
    "day >= TIMESTAMP_NTZ'2020-01-02 00:00:00'",
    "day = TIMESTAMP_NTZ'2020-01-02 00:00:00' OR b = 3",
    "st.i < {i} AND st.f IS NOT NULL",
    "st.i IN (1, {i}, 4294967296)",
    "n < 2 OR n IS NULL",
    "d = 1.2500 AND NOT (b > 100)",
    "p IS NULL OR i < {i}",
    "row_id % 7 = {small}",
    "row_id BETWEEN 1{small}0 AND 1{small}9 OR row_commit_version = 0",
]
ARROW_FILTERS = [
    pc.equal(pc.bit_wise_and(pc.field("row_id"), 3), 1),
    pc.add(pc.field("to double"), pc.field("f")) > 4,
    pc.day(pc.field("day")) == 2,
]


def _fields(widened: bool) -> list[StructField]:
    fields = [StructField(name, after if widened else before) for name, before, after in WIDENINGS]
    inner = StructType(tuple(f for f in fields if f.name in ("i", "f")))
    return [*fields, StructField("st", inner)]


def widened_table(root: Path, seed: int) -> DeltaTable:
    """Files of old and new types, mapped or not, some with deletion vectors, some rows with materialised ids."""
    draw = random.Random(seed)
    mode = draw.choice(["none", "name", "id"])
    schema = StructType((*_fields(True), StructField("p", STRING)))
    if mode != "none":
        schema, _ = assign_column_mapping(schema, 0)
    made = HandmadeTable(root)
    made.create(
        schema,
        features=("rowTracking", "domainMetadata"),
        reader_features=("columnMapping", "deletionVectors", "typeWidening", "timestampNtz"),
        partition_by=("p",),
        configuration={
            "delta.columnMapping.mode": mode,
            "delta.enableRowTracking": "true",
            "delta.rowTracking.materializedRowIdColumnName": "_row-id-x",
            "delta.rowTracking.materializedRowCommitVersionColumnName": "_row-version-x",
        },
    )
    for number in range(draw.randint(3, 6)):
        num_rows = draw.randint(1, 40)
        data = _file(schema, draw, num_rows, widened=draw.random() < 0.5)
        given: dict[str, Any] = {"base_row_id": 100 * number, "default_row_commit_version": number}
        if draw.random() < 0.5:
            deleted = draw.sample(range(num_rows), draw.randint(1, num_rows))
            given["deletion_vector"] = inline_vector(*sorted(deleted))
        partition = {physical_name(schema.fields[-1]): draw.choice(["x", "a b", None])}
        write = {"row_group_size": draw.choice([5, 100])}
        add = made.add(f"f {number}.parquet", data, partition_values=partition, write=write, **given)
        stats = None if draw.random() < 0.3 else _statistics(data)
        made.commit(replace(add, stats=stats))
    return made.open()


def _file(schema: StructType, draw: random.Random, num_rows: int, *, widened: bool) -> pa.Table:
    columns: dict[str, Any] = {}
    for in_table, in_file in zip(schema, _fields(widened), strict=False):
        columns[physical_name(in_table)] = _column(in_table, in_file, draw, num_rows)
    if draw.random() < 0.5:
        some = [None if draw.random() < 0.5 else draw.randrange(10_000, 20_000) for _ in range(num_rows)]
        columns["_row-id-x"] = pa.array(some, pa.int64())
        columns["_row-version-x"] = pa.array([v and v % 3 for v in some], pa.int64())
    fields = [_with_id(name, array, schema) for name, array in columns.items()]
    return pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields))


def _with_id(name: str, array: pa.Array, schema: StructType) -> pa.Field:
    found = next((f for f in schema if physical_name(f) == name), None)
    number = None if found is None else found.metadata.get("delta.columnMapping.id")
    return pa.field(name, array.type, metadata=None if number is None else {"PARQUET:field_id": str(number)})


def _column(in_table: StructField, in_file: StructField, draw: random.Random, num_rows: int) -> pa.Array:
    if isinstance(in_file.data_type, StructType):
        assert isinstance(in_table.data_type, StructType)
        pairs = list(zip(in_table.data_type, in_file.data_type, strict=True))
        children = [_column(outer, inner, draw, num_rows) for outer, inner in pairs]
        fields = [
            pa.field(physical_name(outer), child.type, metadata=_id_metadata(outer))
            for (outer, _), child in zip(pairs, children, strict=True)
        ]
        mask = pa.array([draw.random() < 0.2 for _ in range(num_rows)])
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
    values = [None if draw.random() < 0.15 else _value(in_file.data_type, draw) for _ in range(num_rows)]
    return pa.array(values, type_to_arrow(in_file.data_type))


def _id_metadata(field: StructField) -> dict[str, str] | None:
    number = field.metadata.get("delta.columnMapping.id")
    return None if number is None else {"PARQUET:field_id": str(number)}


def _value(data_type: DataType, draw: random.Random) -> Any:
    if isinstance(data_type, DecimalType):
        return Decimal(draw.randrange(-300, 300)).scaleb(-2)
    if data_type in (FLOAT, DOUBLE):
        return draw.choice([0.0, -0.0, 1.5, 3.0, float("nan"), float("inf"), draw.uniform(-9, 9)])
    if data_type == DATE:
        return dt.date(2020, 1, draw.randint(1, 4))
    if data_type == TIMESTAMP_NTZ:
        return dt.datetime(2020, 1, draw.randint(1, 4), draw.choice([0, 12]))
    tops: dict[DataType, int] = {BYTE: 127, SHORT: 128, INTEGER: 2**31 - 1, LONG: 2**40}
    top = tops[data_type]
    return draw.choice([draw.randrange(0, 8), -1, top])


def _statistics(data: pa.Table) -> str:
    """Of whole numbers only, as a writer may choose to."""
    stats: dict[str, Any] = {"numRecords": data.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for name in data.column_names:
        if pa.types.is_integer(data.schema.field(name).type) and not name.startswith("_row"):
            column = data[name]
            stats["nullCount"][name] = column.null_count
            if column.null_count < data.num_rows:
                stats["minValues"][name], stats["maxValues"][name] = (v.as_py() for v in pc.min_max(column).values())
    return json.dumps(stats)


def check_widened(session: Any, root: Path, seed: int) -> None:
    """One random table under some predicates; the message of a failure names the seed."""
    draw = random.Random(-seed)
    engine, snapshot = spark_engine(session), widened_table(root, seed).snapshot()
    frame = snapshot.scan(row_tracking=True).to_relation(engine)
    ensure_same_rows(engine.to_arrow(frame), snapshot.scan(row_tracking=True).to_arrow())
    for text in draw.sample(PREDICATES, 2):
        predicate = text.format(i=draw.choice([0, 3, 5, 2**31 - 1]), small=draw.randrange(4))
        scan = snapshot.scan(draw.choice([None, ["i", "st", "p"], ["st.f"]]), predicate, row_tracking=True)
        expected = scan.to_arrow()
        for rows in (scan.to_relation(engine), frame.where(predicate)):
            wanted = expected if set(rows.columns) == set(expected.column_names) else None
            if wanted is None:
                wanted = snapshot.scan(None, predicate, row_tracking=True).to_arrow()
            try:
                ensure_same_rows(engine.to_arrow(rows), wanted)
            except AssertionError as e:
                raise AssertionError(f"seed {seed}, where {predicate}\n{e}") from None
    scan = snapshot.scan(None, draw.choice(ARROW_FILTERS), row_tracking=True)
    ensure_same_rows(engine.to_arrow(scan.to_relation(engine)), scan.to_arrow())


@family("seed", range(2), every=2)
def test_widened_types_and_tracked_rows(session: Any, tmp_path: Path, seed: int) -> None:
    check_widened(session, tmp_path / "t", seed)
