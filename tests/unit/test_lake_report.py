"""`delta-orch report`: the numbers of each table, and a page that shows hostile tables without obeying them."""

from __future__ import annotations

import json
import os
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.cli.main import run
from delta_orch.cli.report_page import lake_page
from delta_orch.errors import InvalidRequestError, TableNotFoundError
from delta_orch.pipeline.incremental import IncrementalReader
from delta_orch.pipeline.maintenance import TableState, read_lake
from delta_orch.pipeline.step import Step
from delta_orch.pipeline.unit import Attempt, Unit

EVIL = "</title><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\u202e\x1b[31m"
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "main", "article", "h1", "h2", "p", "dl", "div", "dt", "dd"),
    *("a", "span", "svg", "polyline", "details", "summary", "table", "tr", "th", "td"),
}


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def load(table: DeltaTable, part: str, order: int, *ids: int, **about: str) -> None:
    attempt = Attempt((Unit("airflow:flights.load", part),), order, f"run {order}")
    words = json.dumps({"orchestrator": "airflow", "run_id": f"run {order}", **about})
    Step("load", table, "append", attempt=attempt, options={"user_metadata": words}).run(lambda: rows(*ids))


def states(root: Path, **options: Any) -> dict[str, TableState]:
    return {table.path: table for table in read_lake([str(root)], **options).tables}


class Page(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_numbers_are_those_of_the_table(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "bronze" / "flights")
    load(table, "monday", 1, 1, 2, 3)
    load(table, "tuesday", 2, 4)
    table.alter().set_properties({"delta.enableDeletionVectors": "true"}).commit()
    table.delete("id = 1")
    load(table, "tuesday", 3, 5, 6, log_url="https://airflow.example.com/runs/3?try_number=1")
    table.optimize()
    (path, state), *others = states(tmp_path).items()
    assert (path, state.uri, others) == ("bronze/flights", table.uri, [])
    assert state.health is not None
    snapshot = table.snapshot()
    assert (state.health.num_files, state.health.size_bytes) == (snapshot.num_files, snapshot.size_bytes)
    assert state.num_rows == 4
    assert [(one.unit.rpartition(":")[2], one.run, one.commits, one.rows, one.rows_removed) for one in state.units] == [
        ("tuesday", "run 3", 2, 2, 1),
        ("monday", "run 1", 1, 3, 0),
    ]
    write = state.last_write
    assert write is not None
    assert (write.operation, write.orchestrator, write.run) == ("WRITE", "airflow", "run 3")
    assert write.link == "https://airflow.example.com/runs/3?try_number=1"
    versions = [table.snapshot(version) for version in range(table.version() + 1)]
    sizes = [(one.num_files, one.size_bytes) for one in reversed(state.commits)]
    assert sizes == [(v.num_files, v.size_bytes) for v in versions]


def test_units_and_growth_end_with_the_days(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    for order in range(4):
        load(table, f"day {order}", order, order)
    for version in range(3):
        os.utime(tmp_path / "t" / "_delta_log" / f"{version:020}.json", (10**9 + version, 10**9 + version))
    state = states(tmp_path)["t"]
    assert [unit.unit for unit in state.units] == ["airflow:flights.load:day 3"]
    # The size before the first of those days is where the chart begins.
    assert [one.num_files for one in state.commits] == [4, 3]
    assert len(states(tmp_path, days=100_000)["t"].units) == 4


def test_how_far_consumers_have_read(tmp_path: Path) -> None:
    source, target = DeltaTable(tmp_path / "bronze"), DeltaTable(tmp_path / "silver")
    source.append(rows(1))

    def lag() -> tuple[str, str, int, int | None]:
        (found,) = states(tmp_path)["bronze"].consumers
        assert (found.behind_since_ms is not None) == bool(found.commits_behind)
        return found.uri, found.consumer, found.versions_behind, found.commits_behind

    batch = IncrementalReader(source, target).next_batch()
    assert batch is not None
    target.append(batch.scan().to_arrow(), txn=batch.txn)
    assert lag() == (target.uri, "silver", 0, 0)
    source.append(rows(2))
    source.append(rows(3))
    source.optimize()
    assert lag() == (target.uri, "silver", 3, 2)
    # Commits before the days of the report are not read.
    for version in range(4):
        os.utime(tmp_path / "bronze" / "_delta_log" / f"{version:020}.json", (10**9 + version, 10**9 + version))
    assert lag() == (target.uri, "silver", 3, None)
    assert "3 versions behind" in Page(lake_page(read_lake([str(tmp_path)]))).text
    assert states(tmp_path)["silver"].consumers == ()


def test_a_hostile_table_is_shown_and_not_obeyed(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "<script>alert(1)<" / "t")
    about = {"run_id": EVIL, "orchestrator": EVIL, "run_url": "javascript:alert(1)", "log_url": f"https://x/{EVIL}"}
    unit = Unit(f"dagster:{EVIL}", "part")
    step = Step("s", table, "append", attempt=Attempt((unit,), 1, EVIL), options={"user_metadata": json.dumps(about)})
    step.run(lambda: rows(1))
    table.alter().set_name(EVIL).commit()
    consumer = DeltaTable(tmp_path / "c")
    consumer.append(rows(1), txn=(f"cdc:{EVIL}<-{table.snapshot().metadata.id}", 0))
    (tmp_path / EVIL.replace("/", "") / "_delta_log").mkdir(parents=True)
    (tmp_path / EVIL.replace("/", "") / "_delta_log" / f"{0:020}.json").write_text(f"{{{EVIL}")
    content = lake_page(read_lake([str(tmp_path)]))
    page = Page(content)
    assert page.tags <= TAGS
    assert {name for name, _ in page.attributes if name.startswith("on") or name in ("src", "style")} == set()
    links = [value for name, value in page.attributes if name == "href"]
    assert len(links) == 1 and str(links[0]).startswith("https://x/")
    assert page.text.count("<img src=x onerror=alert(1)>") >= 5
    assert "\u202e" not in content.decode() and "\x1b" not in content.decode()


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    DeltaTable(tmp_path / "t").append(rows(1))
    content = lake_page(read_lake([str(tmp_path)])).decode()
    assert "prefers-color-scheme: dark" in content and "width=device-width" in content
    assert not any(word in content for word in ("<script", "<link", "url(", "@import", "http://", "https://"))


def test_secrets_are_cut_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(rows(1), user_metadata="{}")
    # As another writer may have made it: this package keeps no secret.
    log = tmp_path / "t" / "_delta_log" / f"{0:020}.json"
    about = {"run_id": "AccountKey=c2VjcmV0c2VjcmV0", "log_url": "https://me:hunter2hunter2@x/?token=c2VjcmV0c2VjcmV0"}
    log.write_text(log.read_text().replace('"userMetadata":"{}"', f'"userMetadata":{json.dumps(json.dumps(about))}'))
    with pytest.raises(SystemExit) as end:
        run(["report", str(tmp_path), "--output", str(tmp_path / "lake.html"), "--json"])
    assert not end.value.code
    for text in (capsys.readouterr().out, (tmp_path / "lake.html").read_text()):
        assert "AccountKey=***" in text
        assert "c2VjcmV0" not in text and "hunter2" not in text


def test_a_table_that_cannot_be_read_is_on_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    DeltaTable(tmp_path / "whole").append(rows(1))
    (tmp_path / "damaged" / "_delta_log").mkdir(parents=True)
    (tmp_path / "damaged" / "_delta_log" / f"{0:020}.json").write_text("{nonsense")
    output = tmp_path / "lake.html"
    with pytest.raises(SystemExit) as end:
        run(["report", str(tmp_path), "--output", str(output)])
    assert end.value.code == 1
    assert "1 of them unreadable" in capsys.readouterr().out
    text = Page(output.read_bytes()).text
    assert "Cannot be read: damaged" in text and "JSON" in text and "1 row" not in text
    with pytest.raises(SystemExit) as end:
        run(["report", str(tmp_path / "whole"), "--json"])
    assert not end.value.code
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert (table["path"], table["num_rows"], table["error"]) == ("whole", 1, None)


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TableNotFoundError, match="at or below"):
        read_lake([str(tmp_path)])
    DeltaTable(tmp_path / "t").append(rows(1))
    with pytest.raises(InvalidRequestError):
        read_lake(str(tmp_path))
    with pytest.raises(InvalidRequestError, match="0 days"):
        read_lake([str(tmp_path)], days=0)
    for arguments, code in {("--output", str(tmp_path / "t" / "x.html")): 1, (): 2}.items():
        with pytest.raises(SystemExit) as end:
            run(["report", str(tmp_path), *arguments])
        assert end.value.code == code
    (tmp_path / "x.html").write_text("mine")
    with pytest.raises(SystemExit):
        run(["report", str(tmp_path), "--output", str(tmp_path / "x.html")])
    assert (tmp_path / "x.html").read_text() == "mine"
    assert "Add --force" in capsys.readouterr().err


def test_roots_of_stores_and_tables_once(tmp_path: Path) -> None:
    DeltaTable(tmp_path / "a" / "t%20 t").append(rows(1))
    DeltaTable("memory://lake_report/x/t").append(rows(1, 2))
    found = read_lake([str(tmp_path), str(tmp_path / "a"), "memory://lake_report"])
    assert [(table.path, table.num_rows) for table in found.tables] == [("t%20 t", 1), ("x/t", 2)]
