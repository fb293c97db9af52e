"""Tables in object stores on Spark: the names it gets, and what it says without a connector."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.engines.spark.scan_files import hadoop_root, prepare_scan
from delta_orch.errors import MissingDependencyError, UnsupportedStoreError
from delta_orch.scan.scan import scan_of_files
from delta_orch.storage.open import open_store
from delta_orch.writing.moved_rows import RowCopies
from tests.harness.emulators import Emulator, EmulatorMissingError, s3_emulator


@pytest.fixture(scope="module")
def s3() -> Iterator[Emulator]:
    try:
        with s3_emulator() as emulator:
            yield emulator
    except EmulatorMissingError as e:
        pytest.skip(str(e))


@pytest.mark.parametrize(
    ("uri", "options", "root"),
    [
        ("s3://b/a b/100%/ü", {}, "s3a://b/a%20b/100%25/%C3%BC"),
        ("s3n://b", {}, "s3a://b"),
        ("gcs://b/t", {}, "gs://b/t"),
        ("az://c/t", {"account_name": "a"}, "abfss://c@a.dfs.core.windows.net/t"),
        ("wasbs://c@a.blob.core.windows.net/t", {}, "abfss://c@a.dfs.core.windows.net/t"),
        ("/data/my t", {}, "file:///data/my%20t"),
    ],
)
def test_the_root_that_hadoop_gets(uri: str, options: dict[str, str], root: str) -> None:
    assert hadoop_root(open_store(uri, options)) == root


def test_places_that_have_no_name_in_hadoop() -> None:
    for uri, words in (("memory://t", "this Python process"), ("az://c/t", "account_name")):
        with pytest.raises(UnsupportedStoreError, match=words):
            hadoop_root(open_store(uri))


@pytest.mark.parametrize(
    ("uri", "options", "hadoop"),
    [
        ("/data/t", {}, {}),
        ("s3://b/t", {}, {}),
        (
            "s3://b/t",
            {"key": "k", "secret": "s", "token": "t", "region": "eu-1"},
            {
                "fs.s3a.access.key": "k",
                "fs.s3a.secret.key": "s",
                "fs.s3a.session.token": "t",
                "fs.s3a.endpoint.region": "eu-1",
                "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
            },
        ),
        (
            "s3://b/t",
            {"anon": "true", "endpoint_url": "http://minio:9000"},
            {
                "fs.s3a.endpoint": "http://minio:9000",
                "fs.s3a.path.style.access": "true",
                "fs.s3a.connection.ssl.enabled": "false",
                "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider",
            },
        ),
        (
            "gs://b/t",
            {"token": "/key.json", "project": "p"},
            {
                "fs.gs.project.id": "p",
                "fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
                "fs.gs.auth.service.account.json.keyfile": "/key.json",
            },
        ),
        (
            "az://c/t",
            {"account_name": "a", "account_key": "k"},
            {
                "fs.azure.account.auth.type.a.dfs.core.windows.net": "SharedKey",
                "fs.azure.account.key.a.dfs.core.windows.net": "k",
            },
        ),
        (
            "abfss://c@a.dfs.core.windows.net/t",
            {"sas_token": "?sv=1&sig=x"},
            {
                "fs.azure.account.auth.type.a.dfs.core.windows.net": "SAS",
                "fs.azure.sas.fixed.token.a.dfs.core.windows.net": "sv=1&sig=x",
            },
        ),
    ],
)
def test_what_hadoop_is_told(uri: str, options: dict[str, str], hadoop: dict[str, str]) -> None:
    assert open_store(uri, options).hadoop_options() == hadoop


@pytest.mark.long
def test_what_is_copied_gets_its_size_from_the_store(s3: Emulator) -> None:
    """Spark passes over row groups behind the size that it is told: a copy would lose their rows."""
    table = DeltaTable(s3.table_uri(str(uuid.uuid4())), s3.storage_options)
    table.append(pa.table({"id": range(1000)}))
    snapshot = table.log.newest()
    files = snapshot.files()
    sizes = files.column("size").to_pylist()
    plan = scan_of_files(snapshot, files.set_column(files.schema.get_field_index("size"), "size", [[100]]))
    for is_copied, expected in ((False, [100]), (True, sizes)):
        asked = RowCopies(snapshot).plan(plan) if is_copied else plan
        assert prepare_scan(asked, asked.schema).files.column("size").to_pylist() == expected


@pytest.mark.spark
def test_without_the_connector_spark_says_what_is_missing(spark: Any, portable_engine: Any, s3: Emulator) -> None:
    """The sessions of these tests have none."""
    table = DeltaTable(s3.table_uri(str(uuid.uuid4())), s3.storage_options)
    table.append(pa.table({"id": [1, 2]}))
    for attempt in (
        lambda: table.snapshot().scan().to_spark(spark),
        lambda: table.append(pa.table({"id": [3]}), engine="spark"),
        lambda: portable_engine.scan(table.snapshot().scan().plan()),
    ):
        with pytest.raises(MissingDependencyError, match=r"spark\.jars\.packages=org\.apache\.hadoop:hadoop-aws") as e:
            attempt()
        assert s3.storage_options["secret"] not in str(e.value) + repr(e.value.__cause__)
    assert table.version() == 0
