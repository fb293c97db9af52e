"""Credentials that a catalog vends: asked for again before they end, widened to write, and nowhere to be found."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.catalog.client import CatalogClient
from delta_orch.catalog.entry import StagingTable
from delta_orch.catalog.names import TableName
from delta_orch.catalog.settings import CatalogSettings
from delta_orch.catalog.vended import VendedOptions
from delta_orch.errors import CatalogError
from delta_orch.storage.storage_options import StoreKind
from tests.harness.emulators import Emulator
from tests.harness.unity_emulator import API, UnityEmulator, unity_emulator

URI = "uc://main.default.t"
SECRET = "vended-secret-000"


@pytest.fixture
def unity(tmp_path: Path, s3: Emulator) -> Iterator[UnityEmulator]:
    """A catalog whose tables lie in an emulated S3. Users give only the address and the region of it."""
    with unity_emulator(tmp_path, f"{s3.root}{tmp_path.name}") as emulator:
        emulator.vended = {
            "s3.access-key-id": "vended-key-000-{n}",
            "s3.secret-access-key": SECRET,
            "s3.session-token": "vended-session-000-{n}",
        }
        emulator.options |= {"endpoint_url": s3.endpoint, "region": "us-east-1"}
        yield emulator
        emulator.ensure_lawful()


def _ids(table: DeltaTable) -> list[int]:
    found: list[int] = sorted(table.snapshot().scan().to_arrow()["id"].to_pylist())
    return found


def test_credentials_are_renewed_and_widened(unity: UnityEmulator) -> None:
    DeltaTable(URI, unity.options).append(pa.table({"id": [1, 2]}))
    unity.operations.clear()
    with unity.counting() as opening:
        reader = DeltaTable(URI, unity.options)
        assert _ids(reader) == [1, 2]
    assert opening == {"loadTable": 1, "getTableCredentials": 1}
    reader.append(pa.table({"id": [3]}))
    assert unity.operations == ["READ", "READ_WRITE"]
    unity.lifetime_ms = 400
    short = DeltaTable(URI, unity.options)
    assert _ids(short) == [1, 2, 3]
    asked = len(unity.operations)
    time.sleep(0.5)
    rows = short.snapshot().scan()
    assert rows.to_arrow().num_rows == 3
    time.sleep(0.5)
    assert rows.to_arrow().num_rows == 3, "the same scan, after its credentials have ended"
    assert len(unity.operations) >= asked + 2
    assert short.store.hadoop_options()["fs.s3a.session.token"].startswith("vended-session-000")


def test_credentials_of_a_staging_table(unity: UnityEmulator) -> None:
    unity.lifetime_ms = 1
    DeltaTable(URI, unity.options).append(pa.table({"id": [1]}))
    assert unity.requests["getStagingTableCredentials"] > 0
    unity.lifetime_ms = None
    assert _ids(DeltaTable(URI, unity.options)) == [1]


def test_nothing_vended_is_kept_or_shown(unity: UnityEmulator, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    table = DeltaTable(URI, unity.options)
    table.append(pa.table({"id": [1]}))
    scan = table.snapshot().scan()
    assert scan.to_arrow().num_rows == 1
    plan = pickle.dumps(scan.plan())
    for text in (SECRET, "vended-key-000", "vended-session-000"):
        assert text not in caplog.text
        assert text not in repr(table.store) + repr(scan) + repr(scan.plan())
        assert text.encode() not in plan
        assert text.encode() not in pickle.dumps(table.store)
    assert pickle.loads(plan).store.read_bytes(f"_delta_log/{0:020d}.json")


def test_external_tables_take_vended_credentials(unity: UnityEmulator, s3: Emulator) -> None:
    place = s3.table_uri(f"external/{time.time_ns()}")
    DeltaTable(place, s3.storage_options).append(pa.table({"id": [1]}))
    unity.root = s3.root.rstrip("/")
    unity.add_external("main.default.t", place)
    table = DeltaTable(URI, unity.options)
    table.append(pa.table({"id": [2]}))
    assert _ids(DeltaTable(place, s3.storage_options)) == [1, 2]
    assert "updateTable" not in unity.requests


def test_a_place_without_credentials(unity: UnityEmulator) -> None:
    DeltaTable(URI, unity.options).append(pa.table({"id": [1]}))
    unity.table("main.default.t").location = "s3://elsewhere/t"
    unity.vended = {}
    with pytest.raises(CatalogError, match="no credentials for the location"):
        VendedOptions(
            CatalogClient(CatalogSettings("http://nowhere")), TableName("a", "b", "c"), "s3://x/t", StoreKind.S3, {},
            StagingTable("id", "s3://y/t", (), {}, {}),
        )  # fmt: skip
    unity.violations.clear()


@pytest.mark.parametrize(
    ("kind", "config", "library"),
    [
        (StoreKind.S3, {"s3.access-key-id": "a1", "s3.secret-access-key": "b2", "s3.session-token": "c3"},
         {"key": "a1", "secret": "b2", "token": "c3"}),
        (StoreKind.AZURE, {"azure.sas-token": "sv=1&sig=x"}, {"sas_token": "sv=1&sig=x"}),
        (StoreKind.GCS, {"gcs.oauth-token": "ya29.token"}, {"token": "ya29.token"}),
    ],
)  # fmt: skip
def test_the_options_of_each_cloud(
    unity: UnityEmulator, kind: StoreKind, config: dict[str, str], library: dict[str, str]
) -> None:
    roots = {StoreKind.S3: "s3://b", StoreKind.AZURE: "abfss://c@acc.dfs.core.windows.net", StoreKind.GCS: "gs://b"}
    unity.root, unity.vended = roots[kind], config
    place = f"{unity.root}/t"
    unity.add_external("main.default.t", place)
    settings = CatalogSettings(f"{unity.endpoint}{API}", unity.options["unity_catalog_token"])
    vended = VendedOptions(CatalogClient(settings), TableName("main", "default", "t"), place, kind, {})
    assert dict(vended.current().library) == library
    assert vended.current() is vended.current()
