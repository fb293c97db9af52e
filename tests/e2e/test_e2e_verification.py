"""The demo's own judgement: does it see a lost row, a doubled one, a changed value?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_defs.flights_transformations import FLIGHT_RULES
from delta_orch import DeltaTable
from delta_orch.errors import InvalidRequestError
from tests.demo.control_totals import TABLES, compare, connect, expect_from_csv, totals
from tests.demo.plan import make_plan
from tests.demo.readers import DELTALAKE, LOG_REPLAY, Reader
from tests.demo.results import BreakStep, Check, Results
from tests.demo.source import DAMAGE, Landing, Source, corrected, deliver_year, month_name

READERS = pytest.mark.parametrize("reader", [DELTALAKE, LOG_REPLAY], ids=lambda reader: reader.name)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return Source.unpack(tmp_path_factory.mktemp("source"))


@pytest.fixture
def landing(source: Source, tmp_path: Path) -> Landing:
    return Landing(tmp_path / "landing")


@pytest.fixture(scope="module")
def two_days(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Source:
    """The source as it were if the year had ended on 2 January."""
    days = Source(tmp_path_factory.mktemp("two_days"))
    for table, first in (("flights", b""), ("weather", b"...,")):
        lines = source.csv(table).read_bytes().splitlines(keepends=True)
        begins = [b"2013,1,1,", b"2013,1,2,"]
        kept = [line for line in lines[1:] if any(line[len(first) :].startswith(begin) for begin in begins)]
        days.csv(table).write_bytes(lines[0] + b"".join(kept))
    for table in ("planes", "airlines"):
        days.csv(table).write_bytes(source.csv(table).read_bytes())
    return days


@pytest.fixture
def connection(two_days: Source) -> Any:
    connection = connect()
    files = {table: str(two_days.csv(table)) for table in ("flights", "weather", "planes", "airlines")}
    expect_from_csv(connection, **files, months=[1])
    return connection


def expected_rows(connection: Any, table: str) -> pa.Table:
    return connection.sql(f"SELECT * FROM expected_{table}").to_arrow_table()


def write(connection: Any, table: str, folder: Path) -> DeltaTable:
    """The table as it should be, in several commits and with a checkpoint in between."""
    rows, delta = expected_rows(connection, table), DeltaTable(folder / table)
    delta.append(rows.slice(0, 5), partition_by=["flight_date"])
    delta.overwrite(rows.slice(0, 30))
    delta.checkpoint()
    delta.append(rows.slice(30))
    return delta


def look(connection: Any, table: str, reader: Reader, folder: Path) -> Any:
    found = reader.open(connection, table, folder / table)
    return compare(connection, table, reader.name, f"expected_{table}", found)


@READERS
@pytest.mark.parametrize("table", TABLES)
def test_a_right_table_is_confirmed(connection: Any, tmp_path: Path, reader: Reader, table: str) -> None:
    write(connection, table, tmp_path)
    comparison = look(connection, table, reader, tmp_path)
    assert comparison.confirmed
    assert comparison.found.rows == comparison.found.distinct_keys > 0


@READERS
def test_a_row_written_twice_is_seen(connection: Any, tmp_path: Path, reader: Reader) -> None:
    write(connection, "flights", tmp_path).append(expected_rows(connection, "flights").slice(7, 1))
    comparison = look(connection, "flights", reader, tmp_path)
    assert (comparison.lost_rows, comparison.extra_rows, comparison.duplicates) == (0, 1, 1)
    assert not comparison.confirmed


@READERS
def test_a_lost_row_is_seen(connection: Any, tmp_path: Path, reader: Reader) -> None:
    DeltaTable(tmp_path / "flights").append(expected_rows(connection, "flights").slice(1))
    comparison = look(connection, "flights", reader, tmp_path)
    assert (comparison.lost_rows, comparison.extra_rows, comparison.duplicates) == (1, 0, 0)
    assert not comparison.confirmed


@READERS
def test_a_row_in_the_place_of_another_is_seen(connection: Any, tmp_path: Path, reader: Reader) -> None:
    rows = expected_rows(connection, "flights")
    DeltaTable(tmp_path / "flights").append(pa.concat_tables([rows.slice(1), rows.slice(1, 1)]))
    comparison = look(connection, "flights", reader, tmp_path)
    assert comparison.found.rows == comparison.expected.rows
    assert (comparison.lost_rows, comparison.extra_rows, comparison.duplicates) == (1, 1, 1)


@READERS
@pytest.mark.parametrize("column", ["tailnum", "minute", "time_hour"])
def test_one_changed_value_is_seen_by_the_checksum(
    connection: Any, tmp_path: Path, reader: Reader, column: str
) -> None:
    rows = expected_rows(connection, "flights")
    values = rows.column(column).to_pylist()
    values[3] = None
    changed = rows.set_column(rows.column_names.index(column), column, pa.array(values, rows.schema.field(column).type))
    DeltaTable(tmp_path / "flights").append(changed)
    comparison = look(connection, "flights", reader, tmp_path)
    assert comparison.found.sums == comparison.expected.sums
    assert comparison.found.checksum != comparison.expected.checksum
    assert (comparison.lost_rows, comparison.extra_rows) == (1, 1)


def test_the_replay_in_sql_refuses_a_log_with_a_gap(connection: Any, tmp_path: Path) -> None:
    delta = write(connection, "flights", tmp_path)
    delta.append(expected_rows(connection, "flights").slice(0, 1))
    (tmp_path / "flights" / "_delta_log" / f"{delta.version() - 1:020d}.json").unlink()
    with pytest.raises(ValueError, match="gap"):
        LOG_REPLAY.open(connection, "flights", tmp_path / "flights")


def test_totals_do_not_depend_on_the_order_of_rows(connection: Any) -> None:
    connection.execute("CREATE TABLE shuffled AS SELECT * FROM expected_flights ORDER BY hash(tailnum), flight")
    assert totals(connection, "flights", "shuffled") == totals(connection, "flights", "expected_flights")


def flights_of(landing: Landing, name: str) -> list[bytes]:
    return (landing.folder / "flights" / f"{name}.csv").read_bytes().splitlines()[1:]


def test_a_delivery_is_the_source_byte_for_byte(source: Source, landing: Landing) -> None:
    landing.deliver(source, 1)
    of_the_month = [line for line in source.csv("flights").read_bytes().splitlines() if line.startswith(b"2013,1,")]
    assert len(of_the_month) == 27_004
    assert flights_of(landing, "2013-01") == [line + b",2013-02-01T00:00:00Z" for line in of_the_month]
    assert not list(landing.folder.rglob("_*"))


def test_the_months_are_the_whole_source(source: Source) -> None:
    assert sum(map(len, source.months["flights"].values())) == 336_776
    assert list(source.months["flights"]) == list(source.months["weather"]) == list(range(1, 13))


def test_a_landing_that_is_missing_is_filled_from_the_distribution(tmp_path: Path) -> None:
    deliver_year(tmp_path)
    first = tmp_path / "landing" / "flights" / "2013-01.csv"
    assert sorted(path.stem for path in first.parent.iterdir()) == [month_name(month) for month in range(1, 13)]
    assert (tmp_path / "landing" / "flights" / "2013-12.csv").read_bytes().endswith(b",2014-01-01T00:00:00Z\n")
    first.unlink()
    deliver_year(tmp_path)
    assert not first.exists()


def test_damaged_lines_break_the_rules_that_they_are_counted_for(source: Source, landing: Landing) -> None:
    assert set(DAMAGE) == set(FLIGHT_RULES)
    landing.deliver_flights(source, 1)
    good = flights_of(landing, "2013-01")
    counts = landing.deliver_damaged(source, 1)
    damaged = [line for line, was in zip(flights_of(landing, "2013-01"), good, strict=True) if line != was]
    # Every thousandth of 27,004 lines, each rule in turn.
    assert (sum(counts.values()), len(damaged), sorted(counts.values())) == (28, 28, [9, 9, 10])
    landing.cut_off(source, 1)
    assert flights_of(landing, "2013-01")[-1].count(b",") < good[0].count(b",")


def test_corrections_make_of_first_reports_what_the_source_has(source: Source, landing: Landing) -> None:
    landing.deliver_flights(source, 1)
    whole = {line.rpartition(b",")[0] for line in flights_of(landing, "2013-01")}
    assert landing.deliver_first_reports(source, 1) == len(flights_of(landing, "2013-01")) == 27_004 - 2_701
    first = {line.rpartition(b",")[0] for line in flights_of(landing, "2013-01")}
    assert landing.deliver_corrections(source, 1)["new"] == 2_701
    newer = {line.rpartition(b",")[0] for line in flights_of(landing, "corrections-2")}
    assert len(whole - first) == len(newer) > 2 * 2_500
    assert (first & whole) | newer == whole
    landing.deliver_earlier_corrections(source, 1)
    assert len(flights_of(landing, "corrections-1")) == len(newer) == sum(map(len, corrected(source, 1)))
    assert {line.rpartition(b",")[2] for line in flights_of(landing, "corrections-1")} == {b"2013-02-11T00:00:00Z"}


@pytest.mark.parametrize("num_months", [8, 9, 12])
def test_a_plan_treats_every_month(num_months: int) -> None:
    plan = make_plan(num_months)
    others = [plan.late, plan.killed, plan.damaged, plan.fenced, plan.undone, plan.raced, plan.amended]
    assert sorted([*plan.in_time, *others]) == list(plan.months) == list(range(1, num_months + 1))
    assert plan.in_time


@pytest.mark.parametrize("num_months", [0, 7, 13])
def test_a_plan_for_other_numbers_of_months_is_refused(num_months: int) -> None:
    with pytest.raises(InvalidRequestError):
        make_plan(num_months)


def test_results_with_nothing_in_them_do_not_pass() -> None:
    failures = Results().failures()
    assert any("no reader" in failure for failure in failures)
    assert Results().summary()["passed"] is False


def test_a_failed_check_fails_the_demo() -> None:
    results = Results()
    results.steps.append(BreakStep("late", "A late day", "it never came", [Check("it is there", False)], 1.0))
    assert "late: it is there" in results.failures()
    assert results.summary()["passed"] is False
