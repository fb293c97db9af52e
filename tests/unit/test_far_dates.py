"""Days and times outside the years 1 to 9999, which Python does not have: every verb takes them as Arrow does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_orch import DeltaTable
from delta_orch.cli.main import run
from delta_orch.errors import ConstraintViolationError, InvalidExpressionError
from delta_orch.expressions.spark_literals import parse_spark_date, parse_spark_timestamp, spark_literal
from delta_orch.protocol.arrow_building import python_rows
from delta_orch.protocol.epoch import FarDate, FarMoment, date_of, days_since_epoch, micros_since_epoch, moment_of

# Ides of March 45 BC, 1970, 9999-12-31, +10000-01-01, +20000-01-01, null
DAYS = [-735525, 0, 2932896, 2932897, 6585322, None]
MICROS = [None if day is None else day * 86_400_000_000 for day in DAYS]
TIMES = pa.array(MICROS, pa.int64())
DEEP = pa.array([None if n is None else [{"at": n}] for n in MICROS], pa.list_(pa.struct([("at", pa.int64())])))
ROWS = pa.table(
    {
        "id": range(6),
        "day": pa.array(DAYS, pa.int32()).cast(pa.date32()),
        "at": TIMES.cast(pa.timestamp("us", "UTC")),
        "local": TIMES.cast(pa.timestamp("us")),
        "deep": DEEP.cast(pa.list_(pa.struct([("at", pa.timestamp("us"))]))),
    }
)  # fmt: skip
KEYS = ["day", "at", "local"]
TEXTS = {"-0044-03-15": 0, "1970-01-01": 1, "9999-12-31": 2, "+10000-01-01": 3, "+20000-01-01": 4}


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    table = DeltaTable(tmp_path / "t")
    for row in range(6):
        table.append(ROWS.slice(row, 1))
    return table


def ids(rows: pa.Table) -> list[int]:
    found: list[int] = sorted(rows["id"].to_pylist())
    return found


@pytest.mark.parametrize("op", ["=", "<", ">=", "<>", "<=>"])
@pytest.mark.parametrize("text", TEXTS)
def test_constants_compare_as_arrow_compares(table: DeltaTable, text: str, op: str) -> None:
    place = TEXTS[text]
    compare: Callable[..., pa.Array] = {"=": pc.equal, "<": pc.less, ">=": pc.greater_equal, "<>": pc.not_equal}.get(
        op, pc.equal
    )
    expected = ids(ROWS.filter(compare(ROWS["day"], ROWS["day"][place])))
    kinds = {"day": "DATE", "at": "TIMESTAMP", "local": "TIMESTAMP_NTZ"}
    tests = [f"{name} {op} {kind}'{text}'" for name, kind in kinds.items()]
    tests += [f"day {op} '{text}'", f"at {op} DATE'{text}'", f"day {op} TIMESTAMP'{text} 00:00:00Z'"]
    for test in tests:
        assert ids(table.snapshot().scan(where=test).to_arrow()) == expected, test
    every = " AND ".join(f"coalesce({test}, false)" for test in tests)
    assert ids(table.snapshot().scan(where=every).to_arrow()) == expected


@pytest.mark.parametrize("key", KEYS)
def test_filters_of_arrow(table: DeltaTable, key: str) -> None:
    for place in range(5):
        for where in (pc.field(key) == ROWS[key][place], pc.field(key) > ROWS[key][place]):
            assert ids(table.snapshot().scan(where=where).to_arrow()) == ids(ROWS.filter(where))
    where = pc.field(key).isin(ROWS[key].slice(2, 3))
    assert ids(table.snapshot().scan(where=where).to_arrow()) == [2, 3, 4]


@pytest.mark.parametrize("key", KEYS)
def test_keys_of_a_merge(table: DeltaTable, key: str) -> None:
    source = ROWS.set_column(0, "id", pa.array(range(10, 16)))
    merge = table.merge(source, f"target.{key} = source.{key}")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert ids(table.snapshot().scan().to_arrow()) == [5, *range(10, 16)]
    with pytest.raises(ConstraintViolationError, match=r"20000-01-01"):
        twice = pa.concat_tables([source, source]).filter(pc.field("id") == 14)
        table.merge(twice, f"target.{key} = source.{key}").when_matched_update_all().execute()


def test_values_verbs_and_fsck(table: DeltaTable) -> None:
    table.update({"day": "DATE'-0044-03-15'", "at": "TIMESTAMP'+20000-01-01 00:00:00Z'"}, "day = '+10000-01-01'")
    assert table.delete("day = DATE'-0044-03-15'").operation_metrics["numDeletedRows"] == 2
    assert table.snapshot().scan().count() == 4
    assert not table.fsck(deep=True).problems
    with pytest.raises(ConstraintViolationError, match=r"20000-01-01"):
        table.overwrite(ROWS.slice(4, 1), replace_where="day < '2000-01-01'")


def test_the_command_line_shows_them(table: DeltaTable, capsys: pytest.CaptureFixture[str]) -> None:
    query = f"SELECT * FROM delta.`{table.uri}` ORDER BY id"
    with pytest.raises(SystemExit, match=r"^0$"):
        run(["sql", query])
    assert "+20000-01-01" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"^0$"):
        run(["sql", query, "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["day"] for row in rows][:5] == list(TEXTS)
    assert rows[4]["deep"] == [{"at": "+20000-01-01T00:00:00.000000"}]


def test_days_and_times_are_read_and_written() -> None:
    for days in (-(2**31) + 3, -735525, -719163, -719162, 0, 2932896, 2932897, 2**31 - 4):
        day = date_of(days)
        assert days_since_epoch(day) == days
        assert isinstance(day, FarDate) == (not -719162 <= days <= 2932896)
        assert parse_spark_date(day.isoformat()) == day
    for micros in (-(2**63) + 3, -63549360000000001, 253402300799999999, 253402300800000000, 2**63 - 4):
        moment = moment_of(micros, utc=True)
        assert micros_since_epoch(moment) == micros
        text = spark_literal(moment, None).removeprefix("TIMESTAMP_LTZ '").removesuffix("'")
        assert parse_spark_timestamp(text) == moment
    assert parse_spark_timestamp("9999-12-31 23:30:00-01:00") == FarMoment(253402302600000000, True)
    assert parse_spark_timestamp("+10000-01-01 00:30:00 Europe/Paris") == moment_of(253402299000000000, utc=True)
    for text in ("+20000-02-30", "-0001-02-29", "9999999-01-01"):
        with pytest.raises(InvalidExpressionError):
            parse_spark_date(text)


def test_they_stand_beside_nulls_of_nested_columns() -> None:
    kind = pa.struct(
        [("day", pa.date32()), ("list", pa.list_(pa.binary())), ("days", pa.map_(pa.string(), pa.date32()))]
    )
    rows = pa.array(
        [
            {"day": 2932897, "list": None, "days": None},
            {"day": None, "list": [None, b""], "days": [("far", 6585322), ("none", None)]},
            None,
        ],
        kind,
    )
    assert python_rows(pa.table({"row": rows})) == [
        {"row": {"day": FarDate(2932897), "list": None, "days": None}},
        {"row": {"day": None, "list": [None, b""], "days": [("far", FarDate(6585322)), ("none", None)]}},
        {"row": None},
    ]
