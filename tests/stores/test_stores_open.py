"""From what a user calls a table to its store, and what only some stores have."""

from __future__ import annotations

import pickle
import uuid
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from delta_orch import DeltaTable
from delta_orch.errors import InvalidRequestError, MissingDependencyError, UnsupportedStoreError
from delta_orch.storage import open as opening
from delta_orch.storage.external_paths import parse_roots
from delta_orch.storage.fsspec_store import FsspecStore
from delta_orch.storage.local import LocalStore
from delta_orch.storage.memory import MemoryStore
from delta_orch.storage.open import ensure_installed, open_store
from delta_orch.storage.storage_options import StoreKind

LOG = "_delta_log"


@pytest.mark.parametrize(
    ("log_path", "expected"),
    [
        ("a/b.parquet", "{root}/a/b.parquet"),
        ("a%20b/100%25.parquet", "{root}/a b/100%.parquet"),
        ("a%2520b", "{root}/a%20b"),
        ("x/../y", "{root}/x/../y"),
        ("file:/data/x%20y", "/data/x y"),
        ("file:///data/x", "/data/x"),
        ("file://localhost/data/x", "/data/x"),
        ("/data/x", "/data/x"),
        ("a%3Ab", "{root}/a:b"),
    ],
)
def test_local_resolve(tmp_path: Path, log_path: str, expected: str) -> None:
    assert open_store(tmp_path).resolve(log_path) == expected.format(root=tmp_path)


@pytest.mark.parametrize("log_path", ["s3://bucket/k%20ey", "dbfs:/x", "hdfs://h/x", "C:\\x"])
def test_a_local_table_reads_no_other_store(tmp_path: Path, log_path: str) -> None:
    with pytest.raises(UnsupportedStoreError, match="another store"):
        open_store(tmp_path).resolve(log_path)


def test_leftovers_of_killed_writers_are_not_listed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put(f"{LOG}/1.json", b"x")
    (tmp_path / LOG / ".2.json.0123456789abcdef.tmp").write_bytes(b"half")
    assert [f.path for f in store.list_from(LOG)] == [f"{LOG}/1.json"]


def test_memory_tables_are_shared_by_name_and_apart_otherwise() -> None:
    name = str(uuid.uuid4())
    open_store(f"memory://{name}").put("a", b"1")
    assert open_store(f"memory://{name}/").read_bytes("a") == b"1"
    assert open_store(f"memory://{name}2").head("a") is None


def test_memory_filesystem_shows_no_unfinished_file() -> None:
    store = open_store(f"memory://{uuid.uuid4()}")
    filesystem, root = store.data_filesystem()
    with filesystem.open_output_stream(f"{root}/x") as out:
        out.write(b"abc")
        assert store.head("x") is None
    assert store.read_bytes("x") == b"abc"


def test_a_store_without_exclusive_create_refuses_to_commit() -> None:
    store = FsspecStore(f"memory://{uuid.uuid4()}")
    with pytest.raises(UnsupportedStoreError, match="single_writer"):
        store.put_if_absent(f"{LOG}/0.json", b"x")
    assert store.head(f"{LOG}/0.json") is None


def test_fsspec_store_hides_its_options_and_survives_pickling() -> None:
    store = FsspecStore("memory://t", {"single_writer": "true", "secret": "hunter2"})
    assert "hunter2" not in repr(store) + str(store)
    assert pickle.loads(pickle.dumps(store)).uri == "memory://t"


@pytest.mark.parametrize(
    ("location", "uri"),
    [
        ("/data/t", "file:///data/t"),
        ("/data/t/", "file:///data/t"),
        ("file:/data/t", "file:///data/t"),
        ("file:///data/my%20t", "file:///data/my%20t"),
        ("file://localhost/data/t", "file:///data/t"),
        ("/data/my t#1", "file:///data/my%20t%231"),
        ("file:///data/my t#1", "file:///data/my%20t%231"),
        ("memory://a/b/", "memory://a/b"),
        ("s3a://bucket/t/", "s3://bucket/t"),
        ("S3://bucket/a b/ü%20", "s3://bucket/a b/ü%20"),
        ("gcs://bucket/t", "gs://bucket/t"),
        ("wasbs://c@acc.blob.core.windows.net/t", "abfss://c@acc.dfs.core.windows.net/t"),
        ("abfs://c/t", "az://c/t"),
    ],
)
def test_open_store_canonical_uri(location: str, uri: str) -> None:
    assert open_store(location).uri == uri


def test_the_account_comes_from_the_options_where_the_uri_has_none() -> None:
    options = {"account_name": "acc", "account_key": "a2V5"}
    assert open_store("az://c/t", options).uri == "abfss://c@acc.dfs.core.windows.net/t"
    assert open_store("abfss://c@acc.dfs.core.windows.net/t", options).uri == "abfss://c@acc.dfs.core.windows.net/t"
    with pytest.raises(InvalidRequestError, match="different storage accounts"):
        open_store("abfss://c@other.dfs.core.windows.net/t", options)


def test_open_store_takes_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("t").uri == open_store(Path("t")).uri == (tmp_path / "t").as_uri()
    assert isinstance(open_store("t:x/y"), LocalStore)
    assert isinstance(open_store("memory://t"), MemoryStore)


@pytest.mark.parametrize(
    ("location", "error"),
    [
        ("", InvalidRequestError),
        ("  ", InvalidRequestError),
        ("a\0b", InvalidRequestError),
        (None, InvalidRequestError),
        (17, InvalidRequestError),
        ("nope://a/b", UnsupportedStoreError),
        ("file://host/data", UnsupportedStoreError),
        ("s3://", InvalidRequestError),
        ("s3:///t", InvalidRequestError),
        ("gs:/bucket/t", InvalidRequestError),
        ("s3://bucket--use1-az5--x-s3/t", UnsupportedStoreError),
        ("delta.`/data/t`", InvalidRequestError),
        ("parquet.`s3://bucket/t`", InvalidRequestError),
    ],
)
def test_open_store_refuses(location: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        open_store(location)


@pytest.mark.parametrize("kind", StoreKind)
def test_a_store_whose_library_is_missing_says_what_to_install(
    kind: StoreKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, extra = opening._LIBRARIES[kind.value]
    assert find_spec(package) is not None
    ensure_installed(kind)
    monkeypatch.setitem(opening._LIBRARIES, kind.value, ("no_such_package", extra))
    with pytest.raises(MissingDependencyError, match=rf'pip install "delta-orch\[{extra}\]"'):
        open_store(f"{kind.value}://bucket/t")


@pytest.mark.parametrize(
    ("log_path", "expected"),
    [
        ("a%20b/x.parquet", "bucket/t/a b/x.parquet"),
        ("s3://bucket/other/x%20y.parquet", "bucket/other/x y.parquet"),
        ("s3a://elsewhere/x.parquet", "elsewhere/x.parquet"),
        ("/abs/x.parquet", "bucket/abs/x.parquet"),
    ],
)
def test_s3_resolve(log_path: str, expected: str) -> None:
    # Another bucket is another place, which the user must open: by default it is refused now.
    store = DeltaTable("s3://bucket/t", external_paths=["s3://bucket", "s3://elsewhere"]).store
    assert store.resolve(log_path) == expected


@pytest.mark.parametrize("log_path", ["gs://bucket/x", "abfss://c@acc.dfs.core.windows.net/x", "hdfs://nn/x"])
def test_files_in_another_kind_of_store_are_refused(log_path: str) -> None:
    with pytest.raises(UnsupportedStoreError, match="another store"):
        open_store("s3://bucket/t").resolve(log_path)


def test_files_in_another_storage_account_are_refused() -> None:
    store = open_store("abfss://c@acc.dfs.core.windows.net/t", {"account_key": "a2V5"})
    # So is another container, unless the user opens it.
    with pytest.raises(UnsupportedStoreError, match="external_paths"):
        store.resolve("abfss://d@acc.dfs.core.windows.net/x")
    store.external_paths = parse_roots(["abfss://d@acc.dfs.core.windows.net"])
    assert store.resolve("abfss://d@acc.dfs.core.windows.net/x") == "d/x"
    with pytest.raises(UnsupportedStoreError, match="another store"):
        store.resolve("abfss://c@other.dfs.core.windows.net/x")


@pytest.mark.parametrize("options", [5, "key=x", [("key", "x")]])
def test_options_that_are_no_mapping_are_refused(options: Any) -> None:
    with pytest.raises(InvalidRequestError, match="storage_options must be a dict"):
        open_store("s3://bucket/t", options)
