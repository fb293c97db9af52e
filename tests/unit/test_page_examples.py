"""The examples of pages that no other test runs, in their order, on small tables. A census of all pages at the end."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable, TxnId

DOCS = Path(__file__).parents[2] / "docs"
APPENDED, RUN = {"step": {"write": "append"}}, '{"run_id": "manual__2026-11-29"}'
DAYS = [date(2026, 1, 5), date(2026, 1, 31), date(2026, 2, 1)]


def blocks(page: str) -> list[str]:
    """The examples of a page, those of mkdocs' `skip` left out."""
    return re.findall(r"^```python\n(.*?)^```", (DOCS / f"{page}.md").read_text(), re.DOTALL | re.MULTILINE)


def run(code: str, names: dict[str, Any], *instead: tuple[str, str]) -> dict[str, Any]:
    for text, other in instead:
        assert text in code, text
        code = code.replace(text, other)
    exec(compile(code, "example", "exec"), names)
    return names


def events(path: Path, **options: Any) -> DeltaTable:
    """Versions 0 to 3: a row a day, and a deleted one."""
    table = DeltaTable(path)
    for number, day in enumerate(DAYS):
        rows = {"id": [number, number + 10], "day": [day, day], "lon": [0.5, 1.5], "lat": [1.0, 2.0], "amount": [1, 2]}
        table.append(pa.table(rows), **(options if number == 0 else {}))
    table.delete("id = 12")
    return table


def count(table: DeltaTable) -> int:
    return table.snapshot().scan().count()


def definition(path: Path, code: str) -> None:
    table = events(path / "t")
    run(code, {"table": table, "pa": pa, "rows": pa.table({"id": [1], "day": [DAYS[0]]})})
    assert table.snapshot().clustering_columns == (("day",),)
    assert table.snapshot().metadata.configuration["owner"] == "ops"


def restore(path: Path, code: str) -> None:
    table = events(path / "t")
    run(code, {"table": table}, ("version=41", "version=0"))
    assert count(table) == 2


def repair(path: Path, code: str) -> None:
    table = events(path / "t", partition_by=["day"])
    next((path / "t" / "day=2026-01-05").glob("*.parquet")).unlink()
    run(code, {"table": table})
    assert count(table) == 3


def clone(path: Path, code: str) -> None:
    instead = (("s3://bucket", str(path)), ("/backup", str(path)), ("version=41", "version=0"))
    run(code, {"table": events(path / "t")}, *instead)
    assert (count(DeltaTable(path / "experiment")), count(DeltaTable(path / "flights"))) == (5, 2)


def convert(path: Path, code: str) -> None:
    (path / "events" / "day=2026-01-31").mkdir(parents=True)
    pq.write_table(pa.table({"id": [1]}), path / "events" / "day=2026-01-31" / "x.parquet")
    run(code, {"DeltaTable": DeltaTable}, ("/data", str(path)))
    assert DeltaTable(path / "events").snapshot().scan().to_arrow().to_pylist() == [{"id": 1, "day": DAYS[1]}]


def add_files(path: Path, code: str) -> None:
    table = DeltaTable(path / "t")
    table.create(pa.schema([("id", pa.int64()), ("day", pa.date32())]), partition_by=["day"])
    for number, name in enumerate(
        ("t/day=2026-01-31/part-7", "outside/day=2026-01-31/x", "t/loaded/a", "t/day=2026-01-31/part-8")
    ):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": [number]}), path / f"{name}.parquet")
    run(code, {"table": table}, ("/data/outside", str(path / "outside")))
    assert sorted(table.snapshot().scan(["id"]).to_arrow()["id"].to_pylist()) == [2, 3]


def generate(path: Path, code: str) -> None:
    run(code, {"table": events(path / "t", partition_by=["day"])})
    assert (path / "t" / "_symlink_format_manifest" / "day=2026-01-05" / "manifest").exists()


def purge(path: Path, code: str) -> None:
    table = events(path / "t", properties={"delta.enableDeletionVectors": "true"})
    run(code, {"table": table})
    assert (count(table), table.snapshot().num_files) == (5, 3)


def vacuum(path: Path, code: str) -> None:
    table = events(path / "t")
    run(code, {"table": table}, ("[12, 40]", "[1, 2]"))
    assert count(table) == 5


def optimize(path: Path, code: str) -> None:
    table = events(path / "t")
    run(code, {"table": table})
    assert (count(table), table.snapshot().clustering_columns) == (5, (("lon",), ("lat",)))


def inspect_version(path: Path, code: str) -> None:
    import pyarrow.compute as pc

    names = run(code, {"table": events(path / "t", partition_by=["day"]), "pc": pc})
    assert names["snapshot"].partitions().num_rows == 3


def write_back(path: Path, code: str) -> None:
    table = events(path / "t")
    run(code, {"table": table, "corrected": lambda rows: rows}, *[("2013-01-01", "2026-01-05")])
    assert count(table) == 5


def txn(path: Path, code: str) -> None:
    table = events(path / "t")
    run(code, {"table": table, "rows": table.snapshot(0).scan().to_arrow()})
    assert count(table) == 7


def audit(path: Path, code: str) -> None:
    table = events(path / "t")
    names = {"table": table, "uri": table.uri, "rows": table.snapshot(0).scan().to_arrow(), "TxnId": TxnId}
    assert run(code, {**names, "DeltaTable": DeltaTable})["wrong"].num_rows == 0
    assert table.txns() == {"load": 5}


def delete_and_update(path: Path, code: str) -> None:
    rows = {"id": [7, 8], "day": [date(2012, 1, 1)] * 2, "carrier": ["B6", "AA"], "delay": [1, 2]}
    flights = DeltaTable(path / "lake" / "flights")
    flights.append(pa.table({**rows, "place": [{"city": "Rome"}] * 2}))
    run(code, {})
    expected = [{"id": 7, "day": date(2012, 1, 1), "carrier": "B6", "delay": 6, "place": {"city": "Köln"}}]
    assert flights.snapshot().scan().to_arrow().to_pylist() == expected


def sql(path: Path, code: str) -> None:
    flights = DeltaTable(path / "flights")
    flights.append(pa.table({"carrier": ["AA"], "delay": pa.array([None], pa.int64())}))
    run(code, {"table": flights}, ("/data", str(path)), ("AS OF 3", "AS OF 0"))
    assert flights.snapshot().scan(["delay"]).to_arrow().to_pylist() == [{"delay": 0}]


def units(path: Path, code: str) -> None:
    table = events(path / "t")
    (unit,) = re.findall(r'unit="([^"]+)"', code)
    rows = table.snapshot(0).scan().to_arrow()
    table.append(rows, txn=TxnId(unit, 1, is_unit=True), commit_info=APPENDED, user_metadata=RUN)
    run(code, {"table": table})
    assert count(table) == 5


def only_open(path: Path, code: str) -> None:
    run(code, {"DeltaTable": DeltaTable})


def moved_io_manager(path: Path, code: str) -> None:
    dagster = pytest.importorskip("dagster", reason="Dagster is not installed")
    days = pa.table({"day": ["2013-01-01", "2013-01-02"], "n": [1, 2]})
    DeltaTable(path / "lake" / "public" / "flights").append(days, partition_by=["day"])
    show = run(code, {})["show_what_is_there"]
    with dagster.DagsterInstance.ephemeral() as instance:
        show(instance)
        assert instance.get_materialized_partitions(dagster.AssetKey(["public", "flights"])) == {
            "2013-01-01",
            "2013-01-02",
        }


Example = Callable[[Path, str], None]
EXAMPLES: dict[str, list[Example]] = {
    "tables": [
        *(definition, restore, repair, clone, convert, add_files, generate, purge, vacuum, optimize, inspect_version)
    ],
    "transactions": [write_back, txn, audit],
    "deleting-and-updating": [delete_and_update],
    "sql": [sql],
    "exactly-once": [units],
    "dagster_migration": [moved_io_manager],
    "stores": [only_open],
    "trust": [only_open],
}
ELSEWHERE = {
    "airflow": "tests/airflow/test_airflow_guide.py",
    "airflow_migration": "tests/airflow/test_airflow_guide.py",
    "airflow-operations": "tests/airflow",
    "bad-rows": "tests/arrival/test_bad_rows_page.py",
    "dagster": "tests/dagster/test_dagster_pages.py",
    "dagster-operations": "tests/dagster/test_dagster_pages.py",
    "dagster-reference": "tests/dagster/test_dagster_pages.py",
    "features": "tests/unit/test_features_page.py",
    "files-in": "tests/arrival/test_files_in_page.py",
    "first-airflow": "tests/airflow/test_airflow_guide.py",
    "first-dagster": "tests/dagster/test_dagster_pages.py",
    "late-rows": "tests/arrival/test_cdc_page.py",
    "merging": "tests/unit/test_merging_page.py",
    "python": "tests/e2e/test_e2e_readme.py",
    "reading": "tests/spark/test_spark_page_examples.py",
    "spark": "tests/spark/test_spark_page_examples.py",
    "testing": "tests/unit/test_testing.py",
}
"""Pages whose examples another test runs."""
NOT_RUN = {"streaming": "it needs Spark 4.2 and workers; tests/spark/test_spark_format_writes.py runs the same calls"}


@pytest.mark.parametrize(("page", "number"), [(page, n) for page, some in EXAMPLES.items() for n in range(len(some))])
def test_an_example_runs(page: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page == "sql":
        pytest.importorskip("duckdb", reason="duckdb is not installed")
    monkeypatch.chdir(tmp_path)
    assert len(blocks(page)) == len(EXAMPLES[page])
    EXAMPLES[page][number](tmp_path, blocks(page)[number])


def test_every_page_with_examples_is_run_by_a_test() -> None:
    pages = {page.stem for page in DOCS.glob("*.md") if blocks(page.stem)}
    assert pages == EXAMPLES.keys() | ELSEWHERE.keys() | NOT_RUN.keys()
    for test in ELSEWHERE.values():
        assert (DOCS.parent / test).exists(), test
