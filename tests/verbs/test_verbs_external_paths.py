"""Where the data files of a table from a stranger may lie, on both engines."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import DeltaError, ProtocolViolationError, StorageError, UnsupportedStoreError
from delta_orch.storage.open import open_store
from tests.handmade import HandmadeTable

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})


@pytest.fixture
def made(tmp_path: Path) -> HandmadeTable:
    made = HandmadeTable(tmp_path / "table")
    made.create(ROWS.schema)
    return made


def named(made: HandmadeTable, path: str) -> DeltaTable:
    """The table, whose log names one file by a path as it stands."""
    add = made.add("inside.parquet", ROWS)
    made.commit(replace(add, path=path))
    return made.open()


@pytest.mark.parametrize(
    "path",
    [
        "http://127.0.0.1:9/x.parquet", "https://h/x?sig=hidden", "hdfs://h:1/x.parquet", "webhdfs://h:1/x.parquet",
        "ftp://h/x", "s3://b/x.parquet", "s3a://b/x.parquet", "gs://b/x", "abfss://c@a.dfs.core.windows.net/x",
        "jar:file:/x!/y", "HTTP://127.0.0.1:9/x", "http:/127.0.0.1/x", "hdfs:/x",
    ],
)  # fmt: skip
def test_other_stores_are_refused(rows: Any, made: HandmadeTable, path: str) -> None:
    table = named(made, path)
    started = time.monotonic()
    with pytest.raises(UnsupportedStoreError) as caught:
        rows.read(table)
    assert "hidden" not in f"{caught.value!r} {caught.value.context}"
    assert time.monotonic() - started < 30
    assert table.vacuum(0, enforce_retention=False).paths in ((), ("inside.parquet",))


@pytest.mark.parametrize("path", ["http://127.0.0.1:9/x.parquet", "hdfs://h:1/x.parquet"])
def test_no_store_of_another_kind_can_be_opened(rows: Any, made: HandmadeTable, path: str) -> None:
    named(made, path)
    with pytest.raises(UnsupportedStoreError):
        rows.read(DeltaTable(made.root, external_paths=[path.rpartition("/")[0]]))


def test_paths_that_leave_by_a_link(rows: Any, made: HandmadeTable, tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    made.file("x.parquet", ROWS)
    (made.root / "x.parquet").rename(tmp_path / "deep" / "x.parquet")
    (made.root / "link").symlink_to(tmp_path / "deep" / "er")
    with pytest.raises(ProtocolViolationError, match="outside the table"):
        rows.read(named(made, "link/../x.parquet"))


def test_a_detour_that_stays_inside_is_none(rows: Any, made: HandmadeTable) -> None:
    (made.root / "d").mkdir()
    assert rows.read(named(made, "d/../inside.parquet")).num_rows == 2


@pytest.mark.long
@pytest.mark.parametrize("spelling", ["{path}", "file:{path}", "file://{path}"])
def test_the_own_store_is_read_unless_the_user_says_otherwise(
    rows: Any, made: HandmadeTable, tmp_path: Path, spelling: str
) -> None:
    made.file("x.parquet", ROWS)
    (tmp_path / "else where").mkdir()
    (made.root / "x.parquet").rename(tmp_path / "else where" / "x.parquet")
    path = spelling.format(path=f"{tmp_path}/else%20where/x.parquet")
    table = named(made, path)
    assert rows.read(table).num_rows == 2
    for allowed in (
        [tmp_path],
        [tmp_path / "else where"],
        [f"file://{tmp_path}/else%20where"],
        ["/nope", str(tmp_path)],
    ):
        assert rows.read(DeltaTable(table.uri, external_paths=allowed)).num_rows == 2
    for forbidden in ([], ["/nope"], [f"{tmp_path}/else"], ["s3://bucket"], [f"{tmp_path}/else where/x.parquet/y"]):
        with pytest.raises(UnsupportedStoreError, match="external_paths"):
            rows.read(DeltaTable(table.uri, external_paths=forbidden))


def test_links_do_not_get_around_it(rows: Any, made: HandmadeTable, tmp_path: Path) -> None:
    made.file("x.parquet", ROWS)
    (tmp_path / "elsewhere").mkdir()
    (made.root / "x.parquet").rename(tmp_path / "elsewhere" / "x.parquet")
    (made.root / "link").symlink_to(tmp_path / "elsewhere")
    table = named(made, "link/x.parquet")
    with pytest.raises(UnsupportedStoreError, match="external_paths"):
        rows.read(DeltaTable(table.uri, external_paths=[]))
    (tmp_path / "opened").mkdir()
    table = named(made, f"{tmp_path}/opened/../elsewhere/x.parquet")
    with pytest.raises(UnsupportedStoreError, match="external_paths"):
        rows.read(DeltaTable(table.uri, external_paths=[tmp_path / "opened"]))


@pytest.mark.parametrize("name", ["", f"{1:020}.json", f"{1:020}.checkpoint.parquet", "_last_checkpoint"])
def test_links_do_not_lead_out_of_the_log(tmp_path: Path, name: str) -> None:
    for root in ("victim", "t"):
        table = DeltaTable(tmp_path / root)
        table.append(ROWS)
        table.append(ROWS)
        table.checkpoint()
    victim, linked = (tmp_path / root / "_delta_log" / name for root in ("victim", "t"))
    before = sorted((tmp_path / "victim").rglob("*"))
    linked.rename(tmp_path / "away")
    linked.symlink_to(victim)
    # Of a commit that a checkpoint stands for, only the history is read.
    readers = [lambda t: t.history()] if name.endswith("1.json") else [lambda t: t.snapshot().scan().to_arrow()]
    if not name:
        readers += [lambda t: t.append(ROWS), lambda t: t.checkpoint(), lambda t: t.cleanup_log()]
    for act in readers:
        with pytest.raises(UnsupportedStoreError, match="external_paths"):
            act(DeltaTable(tmp_path / "t", external_paths=[]))
    assert sorted((tmp_path / "victim").rglob("*")) == before
    assert DeltaTable(tmp_path / "t", external_paths=[tmp_path / "victim"]).history()


def test_ordinary_tables_are_read_with_none_opened(rows: Any, tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t p%41", external_paths=[])
    table.append(pa.table({"id": [1], "p": ["a b%"]}), partition_by=["p"])
    assert rows.read(table).num_rows == 1


@pytest.mark.parametrize("kind", ["fifo", "socket", "device"])
def test_what_is_no_file_is_refused_at_once(rows: Any, made: HandmadeTable, kind: str) -> None:
    table = named(made, "odd.parquet")
    odd = made.root / "odd.parquet"
    if kind == "fifo":
        os.mkfifo(odd)
    elif kind == "socket":
        import socket

        with socket.socket(socket.AF_UNIX) as server:
            here = Path.cwd()
            os.chdir(made.root)  # the name of a socket is short
            try:
                server.bind("odd.parquet")
            finally:
                os.chdir(here)
    else:
        odd.symlink_to("/dev/zero")
    with pytest.raises(StorageError, match="not a file"):
        rows.read(table)
    with pytest.raises(StorageError, match="not a file"):
        table.snapshot().to_pyarrow_dataset()


def test_a_pipe_in_the_log_is_refused_at_once(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(ROWS)
    os.mkfifo(tmp_path / "t" / "_delta_log" / f"{1:020}.json")
    # It is no commit; nor can there be another one in its place.
    assert DeltaTable(tmp_path / "t").snapshot().version == 0
    with pytest.raises(DeltaError, match="not a file"):
        DeltaTable(tmp_path / "t").append(ROWS)


@pytest.mark.parametrize(
    ("uri", "options", "path", "opened"),
    [
        ("s3://mine/t", {}, "s3://mine/other/x", True),
        ("s3://mine/t", {}, "s3a://theirs/x", False),
        ("s3://mine/t", {}, "s3://mine/t/../../theirs/x", False),
        ("gs://mine/t", {"token": "anon"}, "gs://theirs/x", False),
        ("abfss://c@a.dfs.core.windows.net/t", {}, "abfss://c@a.dfs.core.windows.net/x", True),
        ("abfss://c@a.dfs.core.windows.net/t", {}, "abfss://d@a.dfs.core.windows.net/x", False),
        ("abfss://c@a.dfs.core.windows.net/t", {}, "abfss://c@b.dfs.core.windows.net/x", False),
        ("ftp://mine/t", {}, "ftp://theirs/x", False),
    ],
)
def test_other_buckets_and_hosts_need_to_be_opened(uri: str, options: dict[str, str], path: str, opened: bool) -> None:
    clients = {"s3": "botocore", "gs": "google.cloud.storage", "abfss": "azure.storage.blob"}
    if client := clients.get(uri.partition(":")[0]):
        pytest.importorskip(client, reason=f"{client} is not installed")
    store = open_store(uri, options)
    if opened:
        store.resolve(path)
    else:
        with pytest.raises(UnsupportedStoreError):
            store.resolve(path)
    shut = DeltaTable(uri, options, external_paths=[]).store
    shut.resolve("inside.parquet")
    with pytest.raises(UnsupportedStoreError):
        shut.resolve(path)
    if path.startswith(("s3", "gs")) and ".." not in path:
        root = path.replace("s3a:", "s3:").rpartition("/")[0]
        DeltaTable(uri, options, external_paths=[root]).store.resolve(path)
