"""Statistics always bound the rows of their file, and are the same whoever has written it (PROTOCOL, "Per-file
Statistics")."""

from __future__ import annotations

import json
import math
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delta_orch.engines.base import Engine, WriteSpec
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.protocol.arrow_building import schema_from_arrow
from delta_orch.storage.open import open_store

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TEXT = st.one_of(
    st.text(max_size=6),
    st.text(min_size=30, max_size=40),
    # Where a prefix ends in the middle of what rounds up badly.
    st.builds(lambda c, n: c * n, st.sampled_from(["\U0010ffff", "\ud7ff", "é", "a", "\0"]), st.integers(31, 34)),
)
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "byte": (pa.int8(), st.integers(-128, 127)),
    "double": (pa.float64(), st.floats() | st.sampled_from([0.0, -0.0, math.nan, math.inf])),
    "float": (pa.float32(), st.floats(width=32) | st.sampled_from([0.0, -0.0, math.nan])),
    "text": (pa.string(), TEXT),
    "day": (pa.date32(), st.dates()),
    "at": (
        pa.timestamp("us", "UTC"),
        st.integers(-(10**17), 10**17).map(lambda micros: EPOCH + timedelta(microseconds=micros // 10)),
    ),
    "wall": (pa.timestamp("us"), st.datetimes()),
    "small": (pa.decimal128(7, 2), st.decimals(-99999, 99999, places=2)),
    "wide": (pa.decimal128(38, 10), st.decimals(-(10**27), 10**27, places=10)),
    "flag": (pa.bool_(), st.booleans()),
    "bytes": (pa.binary(), st.binary(max_size=4)),
    "list": (pa.list_(pa.int64()), st.lists(st.none() | st.integers(0, 9), max_size=3)),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    count = draw(st.integers(1, 12))
    columns, fields = [], []
    for name, (kind, values) in VALUES.items():
        column = draw(st.lists(st.none() | values, min_size=count, max_size=count))
        columns.append(pa.array(column, kind))
        fields.append(pa.field(name, kind))
        if name in ("long", "text", "double"):
            struct = pa.struct([pa.field("x", kind)])
            columns.append(pa.array([None if v == column[0] else {"x": v} for v in column], struct))
            fields.append(pa.field(f"in_{name}", struct))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def written(engine: Engine, rows: Any, schema: pa.Schema, root: Path) -> list[dict[str, Any]]:
    spec = WriteSpec(open_store(str(root)), schema_from_arrow(schema), ())
    adds = engine.write(engine.relation(rows), spec)
    return [json.loads(text, parse_float=Decimal, parse_constant=pytest.fail) for text in adds["stats"].to_pylist()]


def order_of(value: Any) -> Any:
    """Spark's order: UTF-8 bytes, NaN above all numbers, both zeros equal."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value + 0.0)
    return value.encode() if isinstance(value, str) else value


def parsed(bound: Any, kind: pa.DataType) -> Any:
    if pa.types.is_floating(kind):
        return (0, float(bound))
    if pa.types.is_decimal(kind) or pa.types.is_integer(kind):
        return Decimal(bound)
    if pa.types.is_string(kind):
        return bound.encode()
    if pa.types.is_date(kind):
        return date.fromisoformat(bound)
    return datetime.fromisoformat(bound)


def ensure_bounded(stats: dict[str, Any], table: pa.Table) -> None:
    assert stats["numRecords"] == table.num_rows
    leaves: list[tuple[tuple[str, ...], pa.DataType]]
    leaves = [((f.name,), f.type) for f in table.schema if not pa.types.is_struct(f.type)]
    leaves += [((f.name, g.name), g.type) for f in table.schema if pa.types.is_struct(f.type) for g in f.type]
    for path, kind in leaves:
        values = table[path[0]].to_pylist()
        if len(path) > 1:
            values = [None if v is None else v[path[1]] for v in values]
        assert at(stats["nullCount"], path) == values.count(None), path
        known = [order_of(v) for v in values if v is not None]
        lower, upper = at(stats.get("minValues"), path), at(stats.get("maxValues"), path)
        assert known or (lower is None and upper is None), path
        assert lower is None or all(v >= parsed(lower, kind) for v in known), (path, lower)
        assert upper is None or all(v <= parsed(upper, kind) for v in known), (path, upper)


def at(tree: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        tree = None if tree is None else tree.get(name)
    return tree


@settings(
    max_examples=5,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(tables())
def test_statistics_bound_every_row(tmp_path: Path, table: pa.Table) -> None:
    (stats,) = written(LocalEngine(), table, table.schema, tmp_path)
    ensure_bounded(stats, table)


@pytest.mark.spark
def test_both_engines_tell_the_same(spark: Any, tmp_path: Path) -> None:
    from delta_orch.engines.spark.engine import SparkEngine

    chosen = random.Random(20)
    engine = SparkEngine(spark)
    for number in range(4):
        names = list(VALUES)
        count = chosen.randint(1, 200)
        columns = {name: [_sample(chosen, name) for _ in range(count)] for name in names}
        table = pa.table({name: pa.array(columns[name], VALUES[name][0]) for name in names})
        table = table.append_column(
            "in_text",
            pa.array([None if v is None else {"x": v} for v in columns["text"]], pa.struct([("x", pa.string())])),
        )
        # Zone-less timestamps would reach Spark as instants.
        data = engine.relation(table)
        (local,) = written(LocalEngine(), table, table.schema, tmp_path / f"l{number}")
        (native,) = written(engine, data, table.schema, tmp_path / f"s{number}")
        ensure_bounded(local, table)
        assert native == local


def _sample(chosen: random.Random, name: str) -> Any:
    if chosen.random() < 0.15:
        return None
    match name:
        case "long" | "byte":
            return chosen.randint(-128, 127)
        case "double" | "float":
            return chosen.choice([0.0, -0.0, 1.5, -3.25, chosen.choice([math.inf, 2.0])])
        case "text":
            return chosen.choice(["a", "é" * 40, "z" * 33, "\U0010ffff" * 33, "", "q" * chosen.randint(0, 35)])
        case "day":
            return date(1970, 1, 1) + timedelta(days=chosen.randint(-300_000, 300_000))
        case "at":
            return EPOCH + timedelta(microseconds=chosen.randint(-(10**15), 10**15))
        case "wall":
            return datetime(2000, 1, 1) + timedelta(microseconds=chosen.randint(-(10**15), 10**15))
        case "small":
            return Decimal(chosen.randint(-(10**6), 10**6)).scaleb(-2)
        case "wide":
            return Decimal(chosen.randint(-(10**30), 10**30)).scaleb(-10)
        case "flag":
            return chosen.random() < 0.5
        case "bytes":
            return chosen.randbytes(2)
    return [chosen.choice([None, 1])] * chosen.randint(0, 2)
