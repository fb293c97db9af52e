"""Random tables and random SQL over them, each query asked twice of one Spark session: over the table as this package
shows it, and over the same rows in memory, which no statistic, filter or file can change."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException

from delta_orch import DeltaTable
from delta_orch.engines.spark.frames import value_to_frame
from tests.harness.row_multiset import comparable_rows, ensure_same_rows
from tests.property.expression_samples import random_predicates, sample_table

PARTITIONS: list[list[str] | None] = [
    None,
    None,
    ["day"],
    ["ts"],
    ["n"],
    ["x"],
    ["f", "bo"],
    ["S"],
    ["d38", "b"],
    ["bin"],
    ["we`ird", "sh"],
    ["col.dot", "l"],
]
SETTINGS: dict[str, tuple[str, ...]] = {
    "spark.sql.ansi.enabled": ("true", "false"),
    "spark.sql.caseSensitive": ("false", "false", "true"),
    "spark.sql.session.timeZone": ("UTC", "America/Los_Angeles", "Asia/Kathmandu"),
    "spark.sql.adaptive.enabled": ("true", "false"),
    "spark.sql.autoBroadcastJoinThreshold": ("10485760", "-1"),
    "spark.sql.timestampType": ("TIMESTAMP_LTZ", "TIMESTAMP_NTZ"),
    "spark.sql.parquet.enableVectorizedReader": ("true", "false"),
    "spark.sql.parquet.filterPushdown": ("true", "false"),
    "spark.sql.parquet.aggregatePushdown": ("false", "true"),
    "spark.sql.parquet.fieldId.read.enabled": ("false", "true"),
    "spark.sql.parquet.binaryAsString": ("false", "true"),
    "spark.sql.parquet.recordLevelFilter.enabled": ("false", "true"),
    "spark.sql.optimizer.nestedSchemaPruning.enabled": ("true", "false"),
    "spark.sql.codegen.wholeStage": ("false", "true"),
    "spark.sql.files.maxPartitionBytes": ("134217728", "4096"),
}
_NESTED = pa.schema(
    [
        ("arr", pa.list_(pa.struct([("a", pa.int32()), ("Bb", pa.float64())]))),
        ("m", pa.map_(pa.string(), pa.decimal128(9, 3))),
        ("deep", pa.struct([("x", pa.struct([("f", pa.float32()), ("at", pa.timestamp("us", "UTC"))])),
                            ("days", pa.list_(pa.date32()))])),
        ("mm", pa.map_(pa.int32(), pa.list_(pa.struct([("s", pa.string())])))),
    ]
)  # fmt: skip
_FLOATS = [0.0, -0.0, 1.5, math.nan, math.inf, None]
_DAYS = [date(1, 1, 1), date(1582, 10, 10), date(2013, 1, 1), None]
_MOMENTS = [datetime(1, 1, 1, tzinfo=UTC), datetime(2013, 1, 1, 0, 0, 0, 1, tzinfo=UTC), None]


def _nested(draw: random.Random, num_rows: int) -> list[pa.Array]:
    def some(make: Any) -> Any:
        return None if draw.random() < 0.2 else make()

    def many(make: Any) -> list[Any]:
        return [make() for _ in range(draw.randrange(3))]

    makers = [
        lambda: many(lambda: some(lambda: {"a": draw.choice([0, 5, None]), "Bb": draw.choice(_FLOATS)})),
        lambda: [(k, draw.choice([Decimal("1.500"), None])) for k in draw.sample(["k", "", "K"], draw.randrange(3))],
        lambda: {
            "x": some(lambda: {"f": draw.choice(_FLOATS), "at": draw.choice(_MOMENTS)}),
            "days": some(lambda: many(lambda: draw.choice(_DAYS))),
        },
        lambda: [(k, some(lambda: many(lambda: some(lambda: {"s": draw.choice(["", "a", None])})))) for k in (1, 2)],
    ]
    return [
        pa.array([some(make) for _ in range(num_rows)], field.type) for make, field in zip(makers, _NESTED, strict=True)
    ]


def make_table(root: Path, seed: int, session: Any, *, num_rows: int = 60) -> tuple[DeltaTable, str]:
    """A table by its verbs, in process and on Spark: partitions of every type, mapped columns, deletion vectors,
    widened types, statistics of some columns or none. Also what was done, for messages."""
    draw = random.Random(seed)
    table = DeltaTable(root)
    mode = draw.choice(["none", "none", "name", "id"])
    partition_by = draw.choice(PARTITIONS)
    properties = {
        "delta.enableDeletionVectors": draw.choice(["true", "true", "false"]),
        "delta.columnMapping.mode": mode,
        "delta.enableTypeWidening": "true",
        "delta.dataSkippingNumIndexedCols": draw.choice(["-1", "32", "5", "0"]),
        "delta.checkpointInterval": "2",
    }
    done = [f"seed {seed}", mode, f"by {partition_by}", str(properties)]
    for number in range(draw.randint(2, 4)):
        rows = sample_table(seed + number, num_rows)
        arrays = [*rows.columns, *_nested(draw, num_rows)]
        names = [*rows.column_names, *_NESTED.names]
        rows = pa.table(arrays, names)
        if partition_by == ["bin"]:
            # Only text can be a binary partition value.
            rows = rows.filter(pc.not_equal(rows["bin"], pa.scalar(b"\xff")))
        rows = rows.set_column(0, "id", pa.array(range(number * num_rows, number * num_rows + rows.num_rows)))
        rows = rows.slice(0, draw.choice([num_rows, num_rows, 1]))
        data = value_to_frame(session, rows) if draw.random() < 0.4 else rows
        if number:
            table.append(data)
        else:
            table.append(data, properties=properties, partition_by=partition_by)
        done.append("append on Spark" if data is not rows else "append")
        if draw.random() < 0.7:
            where = draw.choice(["id % 5 = 0", "i IS NULL", "x > 1 OR bo", "id % 60 < 55", "f = 'NaN'"])
            table.delete(where)
            done.append(f"delete {where}")
        if draw.random() < 0.3:
            table.update({"i": "7", "x": "-0.0D"}, "id % 4 = 1")
            done.append("update")
        if draw.random() < 0.15:
            table.optimize()
            done.append("optimize")
        if number == 0 and draw.random() < 0.5 and not {"sh", "f"} & {*(partition_by or ())}:
            table.alter().change_type("sh", "int").change_type("f", "double").commit()
            done.append("widened")
    return table, "; ".join(done)


_WHERE = [
    "CAST(ts AS DATE) = DATE'2013-01-01'",
    "ts < DATE'2013-01-01'",
    "ts >= DATE'1970-01-01' AND ts <= DATE'2013-01-02'",
    "day > TIMESTAMP'2013-01-01 00:00:00'",
    "day = TIMESTAMP'2013-01-01 00:00:00'",
    "day < TIMESTAMP_NTZ'1582-10-11 00:00:00'",
    "day <= DATE'1582-10-10'",
    "n >= ts",
    "n = DATE'2013-01-01'",
    "n < TIMESTAMP'2013-01-01 00:00:00'",
    "ts IN (TIMESTAMP'2013-01-01 00:00:00Z', TIMESTAMP'1970-01-01 00:00:00Z')",
    "year(ts) = 2013",
    "date_trunc('DAY', n) = TIMESTAMP_NTZ'2013-01-01 00:00:00'",
    "CAST(day AS STRING) LIKE '2013%'",
    "CAST(i AS STRING) LIKE '1%'",
    "try_cast(S AS INT) = 5",
    "try_cast(S AS DOUBLE) > 5",
    "S = 5",
    "x = -0.0D",
    "x IN (0.0D, double('NaN'))",
    "NOT (x IN (0.0D, 1.5D))",
    "isnan(x)",
    "x >= double('Infinity')",
    "f = float('NaN')",
    "f < -0.0F",
    "f > 1.5",
    "f = 0.1",
    "x = f",
    "l = x",
    "l = 9007199254740992D",
    "i = 16777216F",
    "d38 = 1.5",
    "d38 > 9999999999999999999999999998.9",
    "d5 > i",
    "CAST(d5 AS INT) = 1",
    "CAST(l AS INT) = 5 AND l < 100",
    "CAST(b AS DOUBLE) = 5",
    "CAST(sh AS BIGINT) > 32766",
    "deep.x.f = float('NaN')",
    "deep.x.f IS NULL",
    "deep.x.at < DATE'2013-01-01'",
    "deep.x IS NOT NULL AND deep.x.f > 1",
    "deep IS NULL",
    "NOT (deep.x.f > 1)",
    "get(arr, 0).a = 5",
    "get(arr, 0).Bb > 1",
    "exists(arr, e -> e.a > 1)",
    "size(arr) > 1",
    "arr IS NULL",
    "array_contains(deep.days, DATE'1582-10-10')",
    "try_element_at(m, 'k') = 1.5",
    "m IS NOT NULL AND size(m) = 0",
    "try_element_at(mm, 1) IS NULL",
    "st IS NULL",
    "st.A IS NULL",
    "st = named_struct('A', 5L, 'b.c', 'x')",
    "S LIKE 'a%' AND S NOT LIKE '%c'",
    "S LIKE '%'",
    "startswith(S, '😀')",
    "S >= '\uffff'",
    "S > 'ä' OR S IS NULL",
    "S || 'x' = 'ax'",
    "S COLLATE UTF8_LCASE = 'A'",
    "upper(S) = 'A'",
    "rtrim(S) = ''",
    "bin = X'61'",
    "bin > X'ff'",
    "bin < X'80'",
    "coalesce(i, 0) = 0",
    "CASE WHEN i > 0 THEN bo ELSE x > 1 END",
    "if(bo, i > 1, l > 1)",
    "nullif(i, 5) IS NULL",
    "(i, l) IN ((1, 5L), (0, 0L))",
    "i <=> NULL",
    "NOT (i <=> 5)",
    "bo",
    "NOT bo",
    "bo = false OR bo IS NULL",
    "id % 7 = 3",
    "id BETWEEN 10 AND 80",
    "id = 130",
    "id > 1000",
    "id IN (1, 5, 61, 100, 125, 130, 131, 132, 133, 134, 135, 136)",
    "`col.dot` > 0",
    "`we``ird` = 'a'",
    "sh = 40000",
    "b = 300",
    "b < 128.5",
    "rand(1) >= 0",
]
_VALUES = ["i", "l", "b", "sh", "x", "f", "d5", "d38", "S", "day", "ts", "n", "bo", "bin", "`col.dot`", "`we``ird`",
           "st.A", "st.`b.c`", "deep.x.f", "deep.x.at", "id"]  # fmt: skip
_COLUMNS = [*_VALUES, "arr", "m", "deep", "mm", "st", "arr.a", "deep.days", "get(arr, 0).Bb", "try_element_at(m, 'K')",
            "CAST(ts AS STRING)", "CAST(day AS TIMESTAMP)", "CAST(n AS DATE)", "hour(ts)", "x + f", "-x", "1 / x > 0",
            "transform(arr, e -> e.a)", "map_keys(m)", "upper(S)", "hex(bin)", "input_file_name() IS NULL"]  # fmt: skip


def random_where(draw: random.Random, seed: int) -> str:
    if draw.random() < 0.35:
        return next(random_predicates(seed, 1))
    first, second = draw.choice(_WHERE), draw.choice(_WHERE)
    return draw.choice([first, first, f"({first}) AND ({second})", f"({first}) OR ({second})", f"NOT ({first})"])


def random_query(draw: random.Random, seed: int) -> str:
    """A query over `{t}` and `{u}` whose answer is one multiset of rows."""
    where = f" WHERE {random_where(draw, seed)}" if draw.random() < 0.75 else ""
    some = draw.sample(_VALUES, draw.randint(1, 3))
    listed = ", ".join(f"{c} AS c{n}" for n, c in enumerate(draw.sample(_COLUMNS, draw.randint(1, 4))))
    extremes = ", ".join(f"min({c}) AS a{n}, max({c}) AS z{n}" for n, c in enumerate(some))
    key = draw.choice(["i", "l", "S", "day", "ts", "n", "b", "sh", "bo", "id", "d5", "st.A"])
    limit = draw.choice([0, 1, 3, 20, 70, 1000])
    match draw.randrange(14):
        case 0 | 1:
            return f"SELECT {listed} FROM {{t}}{where}"
        case 2:
            return f"SELECT * FROM {{t}}{where}"
        case 3:
            return f"SELECT count(*) AS n FROM {{t}}{where}"
        case 4:
            return f"SELECT {extremes} FROM {{t}}{where}"
        case 5:
            return f"SELECT count(*) AS n, {extremes}, count({some[0]}) AS m FROM {{t}}"
        case 6:
            distinct = ", ".join(f"count(DISTINCT {c}) AS d{n}" for n, c in enumerate(some))
            return f"SELECT count(*) AS n, {distinct}, sum(i) AS s, {extremes} FROM {{t}}{where}"
        case 7:
            return f"SELECT {key} AS k, count(*) AS n, {extremes} FROM {{t}}{where} GROUP BY ALL"
        case 8:
            return f"SELECT count(*) AS n FROM (SELECT {some[0]} FROM {{t}}{where} LIMIT {limit})"
        case 9:
            return f"SELECT id, {listed} FROM {{t}}{where} ORDER BY id {draw.choice(['', 'DESC'])} LIMIT {limit}"
        case 10:
            kind = draw.choice(["", "LEFT", "RIGHT", "FULL", "LEFT SEMI", "LEFT ANTI", "CROSS"])
            chosen = "a.id" if "LEFT " in kind else "a.id, b.id AS other"
            on = "" if kind == "CROSS" else f" ON a.{key} = b.{key}"
            return f"SELECT {chosen} FROM (SELECT * FROM {{t}}{where}) a {kind} JOIN {{u}} b{on}"
        case 11:
            negated = draw.choice(["", "NOT "])
            return f"SELECT id FROM {{t}} WHERE {key} {negated}IN (SELECT {key} FROM {{u}}{where})"
        case 12:
            return f"SELECT DISTINCT {', '.join(f'{c} AS c{n}' for n, c in enumerate(some))} FROM {{t}}{where}"
    ranked = f"row_number() OVER (PARTITION BY {key} ORDER BY id) AS r"
    return f"SELECT id, {ranked} FROM {{t}}{where} UNION ALL SELECT id, -1 FROM {{u}} WHERE {draw.choice(_WHERE)}"


@contextmanager
def held(session: Any, settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, old)


def check_programs(session: Any, folder: Path, seed: int, num_queries: int) -> int:
    """How many queries gave the same rows over two tables of a seed; the message of a failure has all it takes."""
    draw = random.Random(seed)
    (one, what), (two, other) = (make_table(folder / name, s, session) for name, s in (("t", seed), ("u", seed + 1)))
    settings = {name: draw.choice(values) for name, values in SETTINGS.items()}
    by_format = draw.random() < 0.3
    compared = 0
    with held(session, settings):
        for name, table in (("t", one), ("u", two)):
            snapshot = table.snapshot()
            rows = snapshot.scan().to_arrow()
            value_to_frame(session, rows).createOrReplaceTempView(f"{name}_plain")
            ours = session.read.format("delta_orch").load(table.uri) if by_format else snapshot.scan().to_spark(session)
            ours.createOrReplaceTempView(f"{name}_ours")
        for number in range(num_queries):
            text = random_query(draw, seed * 1000 + number)
            try:
                wanted = session.sql(text.format(t="t_plain", u="u_plain")).toArrow()
                list(comparable_rows(wanted))
            except (PySparkException, OverflowError, pa.ArrowException):
                # What Spark refuses or fails at over plain rows, or Python has no value for, says nothing about ours.
                continue
            compared += 1
            try:
                ensure_same_rows(session.sql(text.format(t="t_ours", u="u_ours")).toArrow(), wanted)
            except BaseException as e:
                how = "format" if by_format else "to_spark"
                e.add_note(f"seed {seed}, query {number}, {how}: {text}\nt: {what}\nu: {other}\n{settings}")
                raise
    return compared
