"""The demo's own judgement: does it see a lost row, a doubled one, a changed value?"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_defs.flights_transformations import flights_files
from delta_orch import DeltaTable
from delta_orch.errors import InvalidRequestError
from tests.demo.control_totals import TABLES, compare, connect, expect_from_csv, totals
from tests.demo.plan import make_plan
from tests.demo.readers import DELTALAKE, LOG_REPLAY, Reader
from tests.demo.results import BreakStep, Check, Results
from tests.demo.source import Landing, Source, deliver_year

JAN_1, JAN_2 = date(2013, 1, 1), date(2013, 1, 2)
READERS = pytest.mark.parametrize("reader", [DELTALAKE, LOG_REPLAY], ids=lambda reader: reader.name)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return Source.unpack(tmp_path_factory.mktemp("source"))


@pytest.fixture
def landing(source: Source, tmp_path: Path) -> Landing:
    landing = Landing(tmp_path / "landing")
    landing.deliver_reference(source)
    landing.deliver(source, [JAN_1, JAN_2])
    return landing


@pytest.fixture
def connection(landing: Landing) -> Any:
    connection = connect()
    expect_from_csv(
        connection,
        flights=f"{landing.folder}/flights/*/*.csv",
        weather=f"{landing.folder}/weather/*.csv",
        planes=landing.reference_file("planes"),
        airlines=landing.reference_file("airlines"),
    )
    return connection


def expected_rows(connection: Any, table: str) -> pa.Table:
    return connection.sql(f"SELECT * FROM expected_{table}").to_arrow_table()


def write(connection: Any, table: str, folder: Path) -> DeltaTable:
    """The table as it should be, in several commits and with a checkpoint in between."""
    rows, delta = expected_rows(connection, table), DeltaTable(folder / table)
    day = "reading_date" if table == "weather_readings" else "flight_date"
    delta.append(rows.slice(0, 5), partition_by=[day])
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


def test_a_delivery_is_the_source_byte_for_byte(source: Source, landing: Landing) -> None:
    lines = source.csv("flights").read_bytes().splitlines(keepends=True)
    header, of_the_day = lines[0], {line for line in lines if line.startswith(b"2013,1,2,")}
    files = flights_files(landing.folder, [JAN_2])
    assert sorted(file.stem for file in files) == ["EWR", "JFK", "LGA"]
    delivered = [line for file in files for line in file.read_bytes().splitlines(keepends=True) if line != header]
    assert len(delivered) == len(of_the_day) == 943
    assert set(delivered) == of_the_day


def test_a_day_that_was_not_delivered_is_an_error(landing: Landing) -> None:
    with pytest.raises(FileNotFoundError, match="2013-01-03"):
        flights_files(landing.folder, [JAN_2, date(2013, 1, 3)])


def test_a_landing_that_is_missing_is_filled_from_the_distribution(tmp_path: Path) -> None:
    deliver_year(tmp_path)
    assert len(list((tmp_path / "landing" / "flights").iterdir())) == 365
    flights_files(tmp_path / "landing", [JAN_2])[0].unlink()
    deliver_year(tmp_path)
    assert len(flights_files(tmp_path / "landing", [JAN_2])) == 2


def test_a_preliminary_delivery_is_replaced_by_the_real_one(source: Source, landing: Landing) -> None:
    def contents(files: list[Path]) -> list[bytes]:
        return [file.read_bytes() for file in files]

    def weather(landing: Landing) -> list[Path]:
        return [landing.folder / "weather" / f"{JAN_2}.csv"]

    flights, readings = contents(flights_files(landing.folder, [JAN_2])), contents(weather(landing))
    assert landing.deliver_preliminary(source, [JAN_2]) == 95
    assert contents(flights_files(landing.folder, [JAN_2])) != flights
    assert contents(weather(landing)) == readings
    landing.deliver_first_readings(source, JAN_2)
    assert len(contents(weather(landing))[0].splitlines()) == 1 + 72 - 8
    landing.deliver(source, [JAN_2])
    assert contents(flights_files(landing.folder, [JAN_2])) == flights
    assert contents(weather(landing)) == readings


def test_corrections_make_of_a_delivery_what_the_source_has(source: Source, landing: Landing, connection: Any) -> None:
    """What an upsert of the corrections must leave, in SQL over the CSV files."""
    landing.deliver_uncorrected(source, JAN_1)
    files: dict[str, Any] = {table: f"{landing.folder}/{table}/*.csv" for table in ("weather", "corrections")}
    files |= {table: landing.reference_file(table) for table in ("planes", "airlines")}
    whole = totals(connection, "flights", "expected_flights")
    files["flights"] = f"{landing.folder}/flights/*/*.csv"
    uncorrected = connect()
    expect_from_csv(uncorrected, **{name: path for name, path in files.items() if name != "corrections"})
    changed, new = landing.deliver_corrections(source, JAN_1)
    assert changed > 50
    assert totals(uncorrected, "flights", "expected_flights").rows == whole.rows - new
    corrected = connect()
    expect_from_csv(corrected, **files)
    assert totals(corrected, "flights", "expected_flights") == whole
    # A correction that is missing is noticed.
    [path] = landing.folder.glob("corrections/*.csv")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    expect_from_csv(corrected, **files)
    assert totals(corrected, "flights", "expected_flights") != whole


@pytest.mark.parametrize("num_days", [12, 14, 60, 365])
def test_a_plan_treats_every_day(num_days: int) -> None:
    plan = make_plan(num_days)
    assert sorted([*plan.daily, plan.killed, plan.fenced, plan.undone, *plan.backfill]) == list(plan.days)
    assert len(plan.days) == num_days
    parallel = [day for days in plan.parallel for day in days]
    assert len(set(parallel)) == len(parallel) >= 4
    assert set(parallel) <= set(plan.backfill)
    assert {plan.amended, plan.corrected, *plan.airflow} <= set(plan.daily)
    assert plan.amended != plan.corrected
    # Airflow upserts the corrections of its first day before the second.
    assert plan.amended == plan.airflow[0]
    assert len(plan.airflow) > 1


@pytest.mark.parametrize("num_days", [0, 11, 366])
def test_a_plan_for_other_numbers_of_days_is_refused(num_days: int) -> None:
    with pytest.raises(InvalidRequestError):
        make_plan(num_days)


def test_results_with_nothing_in_them_do_not_pass() -> None:
    failures = Results().failures()
    assert any("no reader" in failure for failure in failures)
    assert Results().summary()["passed"] is False


def test_a_failed_check_fails_the_demo() -> None:
    results = Results()
    results.steps.append(BreakStep("late", "A late day", "it never came", [Check("it is there", False)], 1.0))
    assert "late: it is there" in results.failures()
    assert results.summary()["passed"] is False
