"""A list of values is one list in every place: long ones answer as short ones do, and take no time for each value."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_orch import DeltaTable
from delta_orch.engines.base import ComputedColumn, as_they_are
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.errors import InvalidExpressionError
from delta_orch.expressions.parse import parse_row_value
from tests.bounded import tries
from tests.families import family

DAY, MOMENT = date(1999, 12, 25), datetime(1999, 12, 25, tzinfo=UTC)
TEXTS = ["a", "x,y", "", " ", "\\", "ä", "a'b", "A", "\x1f", "long " * 9]
COLUMNS: dict[str, pa.Array] = {
    "id": pa.array([*range(9), None], pa.int64()),
    "small": pa.array([*range(9), None], pa.int8()),
    "text": pa.array([*TEXTS[:9], None]),
    "raw": pa.array([*(text.encode() for text in TEXTS[:9]), None], pa.binary()),
    "real": pa.array([0.0, -0.0, float("nan"), 0.5, 1e300, float("inf"), 1.0, 2.0, 3.5, None]),
    "float": pa.array([0.0, -0.0, float("nan"), 0.1, 1.5, float("inf"), 1.0, 2.0, 3.5, None], pa.float32()),
    "money": pa.array([*(Decimal(n) / 4 for n in range(9)), None], pa.decimal128(10, 2)),
    "day": pa.array([*(DAY + timedelta(n) for n in range(9)), None]),
    "at": pa.array([*(MOMENT + timedelta(hours=n) for n in range(9)), None], pa.timestamp("us", "UTC")),
}


LISTS: dict[str, list[str]] = {
    "id": [str(n) for n in range(4, 90)],
    "small": [str(n) for n in range(4, 300, 2)],
    "text": ["'a'", "'x,y'", "''", r"'\\'", "'ä'", *(f"'{n}'" for n in range(80))],
    "raw": ["X'61'", "X''", "X'5C'", *(f"X'{n:04x}'" for n in range(80))],
    "real": ["0D", "double('NaN')", "0.5D", "1", *(f"{n}.25" for n in range(80))],
    "float": ["0D", "double('NaN')", "0.1", "1.5D", *(f"{n}.25" for n in range(80))],
    "money": ["0.5", "1.25", "2", "0.123", *(f"{n}" for n in range(100, 190))],
    "day": ["DATE'1999-12-25'", "'1999-12-27'", *(f"DATE'2001-01-{n % 28 + 1}'" for n in range(80))],
    "at": ["TIMESTAMP'1999-12-25 01:00:00Z'", *(f"'2001-01-01 00:00:{n % 60}.{n}'" for n in range(80))],
}
PLACES = [
    "{}",
    "NOT {}",
    "coalesce({}, id = 8)",
    "CASE WHEN {} THEN id > 1 ELSE id < 3 END",
    "CASE WHEN id <> 0 THEN 8 DIV id > 2 AND {} END",
    "({}) IS NULL",
    "{} <=> (id > 2)",
]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DeltaTable:
    table = DeltaTable(tmp_path_factory.mktemp("lists") / "t")
    table.append(pa.table({"row": range(10), **COLUMNS}))
    return table


def answers(table: DeltaTable, tests: list[str]) -> pa.Table:
    """The answers of some tests for each row."""
    engine = LocalEngine()
    columns = [ComputedColumn(f"c{number}", parse_row_value(test)) for number, test in enumerate(tests)]
    rows = engine.project(table.snapshot().scan().to_relation(engine), [*as_they_are(["row"]), *columns])
    return engine.to_arrow(rows).sort_by("row")


@pytest.mark.parametrize("null", ["", ", NULL"])
@family("column", list(LISTS), every=5)
def test_a_long_list_means_what_its_parts_mean(table: DeltaTable, column: str, null: str) -> None:
    values = LISTS[column]
    whole = f"({column} IN ({', '.join(values)}{null}))"
    # Each part has a value of every kind that decides the type of the list.
    kinds = values[:4] if column in ("real", "float") else values[:1]
    parts = [f"{column} IN ({', '.join([*kinds, *values[i : i + 20]])}{null})" for i in range(0, len(values), 20)]
    found = answers(table, [place.format(whole) for place in PLACES])
    assert found == answers(table, [place.format(f"({' OR '.join(parts)})") for place in PLACES])
    for number in (0, 1, 2):
        kept = table.snapshot().scan(where=PLACES[number].format(whole)).to_arrow()
        assert sorted(kept["row"].to_pylist()) == found.filter(pc.field(f"c{number}"))["row"].to_pylist()


@pytest.mark.parametrize("child", ["id + 1", "abs(id)", "lower(text)", "8 DIV id", "CAST(text AS INT)"])
def test_a_computed_value_fails_only_where_it_is_asked_for(table: DeltaTable, child: str) -> None:
    quoted = "'" if "lower" in child else ""
    listed = ", ".join(f"{quoted}{n}{quoted}" for n in range(100))
    guarded = f"CASE WHEN id > 100 THEN {child} IN ({listed}) ELSE TRUE END"
    assert table.snapshot().scan(where=guarded).count() == 10
    if "DIV" in child or "CAST" in child:
        with pytest.raises(InvalidExpressionError):
            table.snapshot().scan(where=f"{child} IN ({listed})").to_arrow()


@pytest.mark.long
@pytest.mark.parametrize("column", ["id", "text", "money", "day"])
@pytest.mark.parametrize("place", PLACES[:4])
def test_two_hundred_thousand_values_take_seconds(table: DeltaTable, column: str, place: str) -> None:
    made = {
        "id": (str(n) for n in range(200_000)),
        "text": (f"'text {n}'" for n in range(200_000)),
        "money": (f"{n / 100:.2f}" for n in range(200_000)),
        "day": (f"DATE'{date(1999, 1, 1) + timedelta(n)}'" for n in range(200_000)),
    }
    where = place.format(f"({column} IN ({', '.join(made[column])}))")
    for one in tries(20):
        with one.timed():
            assert table.snapshot().scan(where=where).count() >= 0


@pytest.mark.long
def test_verbs_take_long_lists(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": range(1000), "s": ["a"] * 1000}))
    listed = ", ".join(map(str, range(500, 100_500)))
    table.update({"s": f"CASE WHEN id IN ({listed}) THEN 'b' ELSE s END"})
    assert table.snapshot().scan(where="s = 'b'").count() == 500
    source = pa.table({"id": range(600)})
    merge = table.merge(source, f"target.id = source.id AND target.id IN ({listed})")
    merge.when_matched_update({"s": f"CASE WHEN source.id NOT IN ({listed}, NULL) THEN 'd' ELSE 'c' END"}).execute()
    assert table.snapshot().scan(where="s = 'c'").count() == 100
    table.delete(f"coalesce(id NOT IN ({listed}), false)")
    assert table.snapshot().scan().count() == 500
