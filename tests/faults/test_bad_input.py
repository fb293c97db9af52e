"""Bad input and a bad place: each has an error of its own, and the table stays as it was."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import (
    ConstraintViolationError,
    CorruptLogError,
    DeltaError,
    InvalidRequestError,
    LogGapError,
    MissingFileError,
    SchemaMismatchError,
    StorageError,
    TableNotFoundError,
    UnsupportedFeatureError,
    UnsupportedStoreError,
    UnsupportedVersionError,
    VersionNotFoundError,
)

ROWS = pa.table({"day": ["a", "b"], "id": pa.array([1, 2], pa.int64())})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A table of three versions."""
    table = DeltaTable(tmp_path / "t")
    schema = pa.schema([("day", pa.string()), pa.field("id", pa.int64(), nullable=False)])
    table.create(schema, partition_by=["day"], properties={"delta.checkpointInterval": "100"})
    table.append(ROWS)
    table.append(ROWS)
    return tmp_path / "t"


def commit(root: Path, version: int) -> Path:
    return root / "_delta_log" / f"{version:020d}.json"


def everything(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def refuses(
    root: Path, error: type[DeltaError], *actions: Callable[[DeltaTable], Any], match: str | None = None
) -> None:
    """Every action must raise exactly this kind of error, and change nothing."""
    before = everything(root) if root.is_dir() else None
    for action in actions:
        with pytest.raises(error, match=match) as caught:
            action(DeltaTable(root))
        assert str(caught.value).endswith((".", "?", "!", ")"))
        assert caught.value.code != DeltaError.code
    if before is not None:
        assert everything(root) == before


def read(table: DeltaTable) -> Any:
    return table.snapshot().scan().to_arrow()


def append(table: DeltaTable) -> Any:
    return table.append(ROWS)


def overwrite(table: DeltaTable) -> Any:
    return table.overwrite(ROWS)


VERBS = (read, append, overwrite, DeltaTable.optimize, DeltaTable.vacuum, DeltaTable.checkpoint)


def test_no_table_at_the_path(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "parquet").mkdir()
    (tmp_path / "parquet" / "x.parquet").write_bytes(b"PAR1")
    for name in ("nothing", "empty", "parquet"):
        refuses(tmp_path / name, TableNotFoundError, read, DeltaTable.version, DeltaTable.history, match=name)
    assert not (tmp_path / "nothing").exists()


def test_a_version_that_does_not_exist(root: Path) -> None:
    refuses(root, VersionNotFoundError, lambda t: t.snapshot(version=3), match="0 to 2")
    refuses(root, VersionNotFoundError, lambda t: t.changes(starting_version=0, ending_version=9))


@pytest.mark.parametrize("number", [-1, 1.5, "1", True])
def test_numbers_that_are_none(root: Path, number: Any) -> None:
    refuses(
        root,
        InvalidRequestError,
        lambda t: t.history(number),
        lambda t: t.snapshot(version=number),
        lambda t: t.changes(starting_version=number),
        lambda t: t.changes(starting_version=0, ending_version=number),
        lambda t: t.changes(starting_version=0, schema_version=number),
        match="integer from 0|must be int",
    )


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"not json\n", b'{"add":7}\n', b'["add"]\n', b'{"metaData":{}}\n', b"\xff\xfe\n"]
)
def test_a_corrupt_commit(root: Path, damage: bytes) -> None:
    good = commit(root, 2).read_bytes()
    commit(root, 2).write_bytes(damage or good[: len(good) // 2])
    refuses(root, CorruptLogError, *VERBS, match="00000000000000000002.json")
    assert DeltaTable(root).snapshot(version=1).scan().to_arrow().num_rows == 2


def test_a_missing_commit(root: Path) -> None:
    commit(root, 1).unlink()
    refuses(root, LogGapError, *VERBS, match="1")


def test_an_unsupported_feature(root: Path) -> None:
    line = (
        '{"protocol":{"minReaderVersion":3,"minWriterVersion":7,'
        '"readerFeatures":["deletionVectors","fancy"],"writerFeatures":["deletionVectors","fancy"]}}\n'
    )
    commit(root, 3).write_text(line)
    refuses(root, UnsupportedFeatureError, *VERBS, match="fancy")


def test_an_unsupported_writer_feature_still_reads(root: Path) -> None:
    line = '{"protocol":{"minReaderVersion":1,"minWriterVersion":7,"writerFeatures":["fancy"]}}\n'
    commit(root, 3).write_text(line)
    assert read(DeltaTable(root)).num_rows == 4
    refuses(root, UnsupportedFeatureError, *VERBS[1:], match="fancy")


def test_an_unsupported_version(root: Path) -> None:
    commit(root, 3).write_text('{"protocol":{"minReaderVersion":4,"minWriterVersion":8}}\n')
    refuses(root, UnsupportedVersionError, *VERBS, match="4")


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        (ROWS.append_column("more", pa.array([1, 2])), "more"),
        (ROWS.drop_columns(["id"]), "id"),
        (ROWS.set_column(1, "id", pa.array(["x", "y"])), "id"),
        (ROWS.set_column(1, "id", pa.array([1.0, 2.0])), "id"),
    ],
)
def test_a_schema_that_does_not_match(root: Path, rows: pa.Table, match: str) -> None:
    refuses(
        root,
        SchemaMismatchError,
        lambda t: t.append(rows),
        lambda t: t.overwrite(rows),
        lambda t: t.overwrite(rows, replace_where="day = 'a'"),
        lambda t: t.overwrite(rows, partition_overwrite_mode="dynamic"),
        match=match,
    )


def log_of(root: Path) -> dict[str, bytes]:
    return {p: data for p, data in everything(root).items() if p.startswith("_delta_log/")}


def test_rows_that_break_a_rule(root: Path) -> None:
    before, rows_before = log_of(root), read(DeltaTable(root))
    null = pa.table({"day": ["a", "a"], "id": pa.array([1, None], pa.int64())})
    for action, match in (
        (lambda t: t.append(null), "id"),
        (lambda t: t.overwrite(ROWS, replace_where="day = 'a'"), "replace_where"),
        (lambda t: t.overwrite(ROWS, replace_where="id < 2"), "replace_where"),
    ):
        with pytest.raises(ConstraintViolationError, match=match):
            action(DeltaTable(root))
    assert log_of(root) == before
    assert read(DeltaTable(root)).equals(rows_before)


def test_a_data_file_that_is_gone(root: Path) -> None:
    table = DeltaTable(root)
    victim = table.snapshot().files(["path"]).column("path")[0].as_py()
    Path(table.store.resolve(victim)).unlink()
    refuses(root, MissingFileError, read, match="part-")
    before = log_of(root)
    with pytest.raises(MissingFileError, match="part-"):
        DeltaTable(root).optimize()
    assert log_of(root) == before


def test_a_data_file_that_is_no_parquet(root: Path) -> None:
    table = DeltaTable(root)
    victim = table.snapshot().files(["path"]).column("path")[0].as_py()
    Path(table.store.resolve(victim)).write_bytes(b"this is no parquet file")
    refuses(root, DeltaError, read, match="part-")


def test_a_path_that_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"mine")
    for action in (read, append, overwrite, DeltaTable.exists, lambda t: t.create(ROWS.schema)):
        with pytest.raises((StorageError, TableNotFoundError), match="file"):
            action(DeltaTable(path))
    assert path.read_bytes() == b"mine"
    log_is_a_file = tmp_path / "t"
    log_is_a_file.mkdir()
    (log_is_a_file / "_delta_log").write_bytes(b"mine")
    refuses(log_is_a_file, StorageError, append, overwrite)


@pytest.mark.parametrize("uri", ["nobody:/t", "nobody://t"])
def test_a_scheme_that_nobody_knows(uri: str) -> None:
    with pytest.raises(UnsupportedStoreError, match="There is no store for nobody:// locations"):
        DeltaTable(uri)


@pytest.mark.parametrize("uri", ["", "   ", "a\0b", None, 5])
def test_locations_that_are_none(uri: Any) -> None:
    with pytest.raises(DeltaError):
        DeltaTable(uri)


# A real full disk and a real read-only one: small file systems of their own, in a child process.

_PROLOGUE = """
import pathlib, pyarrow as pa, subprocess, sys
from delta_orch import DeltaTable
from delta_orch.errors import StorageError
ROWS = pa.table({"day": ["a", "b"], "id": pa.array([1, 2], pa.int64())})
root = pathlib.Path(sys.argv[1])
def log(): return {p.name: p.read_bytes() for p in (root / "t" / "_delta_log").iterdir()}
def ids(): return sorted(DeltaTable(root / "t").snapshot().scan(["id"]).to_arrow().column("id").to_pylist())
def refuses(*actions):
    for action in actions:
        try:
            action(DeltaTable(root / "t"))
        except StorageError as e:
            print(type(e).__name__, e)
        else:
            sys.exit(f"{action} succeeded")
"""


def in_own_filesystem(mount: Path, script: str) -> str:
    """Run Python with `mount` as a 4 MB file system that nobody else sees."""
    mount.mkdir()
    if sys.platform != "linux" or shutil.which("unshare") is None:
        pytest.skip("needs Linux and unshare(1) to make a file system of its own")
    probe = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(mount)]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("this user may not make a file system of its own")
    shell = 'mount -t tmpfs -o size=4m none "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "-rm", "sh", "-c", shell, "sh", str(mount), sys.executable]
    done = subprocess.run([*command, _PROLOGUE + textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


FILL = """
def fill():
    with open(root / "filler", "wb", buffering=0) as filler:
        for size in (65536, 4096, 512):
            try:
                while True: filler.write(b"x" * size)
            except OSError: pass
"""


@pytest.mark.long
def test_a_full_disk(tmp_path: Path) -> None:
    said = in_own_filesystem(
        tmp_path / "disk",
        FILL
        + """
DeltaTable(root / "t").append(ROWS, partition_by=["day"])
DeltaTable(root / "t").append(ROWS)
before = log()
fill()
big = pa.table({"day": ["a"] * 200_000, "id": pa.array(range(200_000), pa.int64())})
refuses(
    lambda t: t.append(ROWS), lambda t: t.append(big), lambda t: t.overwrite(ROWS),
    lambda t: t.overwrite(ROWS, partition_overwrite_mode="dynamic"), lambda t: t.optimize(), lambda t: t.checkpoint(),
)
assert log() == before, "the log changed"
assert ids() == [1, 1, 2, 2]
(root / "filler").unlink()
assert DeltaTable(root / "t").append(ROWS).version == 2
DeltaTable(root / "t").optimize()
DeltaTable(root / "t").checkpoint()
assert ids() == [1, 1, 1, 2, 2, 2]
""",
    )
    assert said.count("disk is full") == 6, said


def test_a_disk_that_is_full_when_the_commit_is_written(tmp_path: Path) -> None:
    in_own_filesystem(
        tmp_path / "disk",
        FILL
        + """
DeltaTable(root / "t").append(ROWS)
before = log()
def rows():
    yield from ROWS.to_batches()
import delta_orch.verbs.append as verb
real = verb.write_metrics
def filling(adds):
    fill()
    return real(adds)
verb.write_metrics = filling
refuses(lambda t: t.append(ROWS))
assert log() == before, "the log changed"
assert ids() == [1, 2]
""",
    )


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere")])
def test_the_next_commit_has_the_name_of_what_is_no_file(root: Path, make: Callable[[Path], None]) -> None:
    make(commit(root, 3))
    for txn in (None, ("job", 1)):
        with pytest.raises(
            StorageError, match=r"Cannot create .*0003.json: there is something that is not a file"
        ) as caught:
            DeltaTable(root).append(ROWS, txn=txn)
        assert type(caught.value) is StorageError
        assert not caught.value.retryable
    assert DeltaTable(root).snapshot().version == 2
    commit(root, 3).rmdir() if commit(root, 3).is_dir() else commit(root, 3).unlink()
    assert DeltaTable(root).append(ROWS).version == 3


@pytest.mark.long
def test_a_read_only_directory(tmp_path: Path) -> None:
    said = in_own_filesystem(
        tmp_path / "disk",
        """
        DeltaTable(root / "t").append(ROWS, partition_by=["day"])
        DeltaTable(root / "t").overwrite(ROWS)
        before = log()
        subprocess.run(["mount", "-o", "remount,ro", str(root)], check=True)
        refuses(
            lambda t: t.append(ROWS), lambda t: t.overwrite(ROWS), lambda t: t.checkpoint(),
            lambda t: DeltaTable(root / "new").append(ROWS), lambda t: DeltaTable(root / "new").create(ROWS.schema),
            lambda t: t.vacuum(retention_hours=0, enforce_retention=False),
        )
        assert log() == before, "the log changed"
        assert ids() == [1, 2]
        assert not (root / "new").exists()
        """,
    )
    assert said.count("read-only") == 6, said


@pytest.mark.spark
@pytest.mark.long
def test_a_full_disk_under_spark(tmp_path: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("no Java runtime: Spark cannot start")
    said = in_own_filesystem(
        tmp_path / "disk",
        FILL
        + """
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[1]").config("spark.driver.memory", "1g").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
spark.sparkContext.setLogLevel("OFF")
small, big = spark.range(2), spark.range(3_000_000).selectExpr("xxhash64(id) AS id")
DeltaTable(root / "t").append(small)
before = log()
refuses(lambda t: t.append(big))
assert log() == before, "the log changed"
fill()
refuses(lambda t: t.append(small))
assert log() == before, "the log changed"
assert ids() == [0, 1]
""",
    )
    assert said.count("disk is full") == 2, said
