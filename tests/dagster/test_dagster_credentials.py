"""A marked secret in Dagster's configuration: runs on S3 that succeed and fail; then it is looked for."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from delta_orch import DeltaTable, configure
from delta_orch.dagster import DeltaLakeIOManager, DeltaTableResource
from tests.families import family
from tests.harness.emulators import Emulator, EmulatorMissingError, s3_emulator
from tests.stores.test_stores_redaction import LOCATIONS

MARKS = ("MARKED-SECRET-a4f0", "MARKED-TOKEN-3b9d")


@pytest.fixture(scope="module")
def s3() -> Iterator[Emulator]:
    try:
        with s3_emulator() as emulator:
            yield emulator
    except EmulatorMissingError as e:
        pytest.skip(str(e))


@pytest.mark.long
def test_secrets_stay_in_the_environment(
    s3: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LAKE_SECRET", MARKS[0])
    monkeypatch.setenv("LAKE_TOKEN", MARKS[1])
    caplog.set_level(logging.DEBUG)
    logging.getLogger("botocore").setLevel(logging.DEBUG)
    options = {**s3.storage_options, "secret": dg.EnvVar("LAKE_SECRET"), "token": dg.EnvVar("LAKE_TOKEN")}
    name = str(uuid.uuid4())

    @dg.asset
    def flights() -> pa.Table:
        return pa.table({"id": [1, 2]})

    @dg.asset(deps=[flights])
    def counted(lake: DeltaTableResource) -> int:
        answer: int = lake.snapshot().scan().to_arrow().num_rows
        return answer

    @dg.asset(deps=[flights])
    def broken(lake: DeltaTableResource) -> int:
        return lake.snapshot(version=99).num_files

    (tmp_path / "home").mkdir()
    resources = {
        "io_manager": DeltaLakeIOManager(root_uri=s3.table_uri(name), storage_options=options),
        "lake": DeltaTableResource(table_uri=s3.table_uri(f"{name}/flights"), storage_options=options),
    }
    plain = {**resources, "io_manager": dg.mem_io_manager, "lake": resources["lake"]}
    with dg.DagsterInstance.local_temp(str(tmp_path / "home")) as instance:
        done = dg.materialize([flights], instance=instance, resources=resources)
        (event,) = done.asset_materializations_for_node("flights")
        assert event.metadata["dagster/uri"].value == s3.table_uri(f"{name}/flights")
        assert dg.materialize([flights, counted], instance=instance, resources=plain, selection=[counted]).success
        failed = dg.materialize(
            [flights, broken], instance=instance, resources=plain, selection=[broken], raise_on_error=False
        )
        assert not failed.success
        said = "".join(str(entry) for r in (done, failed) for entry in instance.all_logs(r.run_id))
        said += json.dumps({k: str(v.value) for k, v in event.metadata.items()}) + repr(resources) + caplog.text
        kept = b"".join(p.read_bytes() for p in (tmp_path / "home").rglob("*") if p.is_file())
    table = DeltaTable(s3.table_uri(f"{name}/flights"), s3.storage_options)
    written = b"".join(table.store.read_bytes(f.path) for f in table.store.list_recursive())
    assert "VersionNotFoundError" in said
    assert len(kept) > 10_000
    for mark in MARKS:
        assert mark not in said
        assert mark.encode() not in written
        assert mark.encode() not in kept


@family("location", LOCATIONS, every=5)
def test_a_secret_in_a_location_is_in_no_event(
    location: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whoever puts it there against all advice finds it in no event, no log and no file of the instance."""
    secret = f"Q7{uuid.uuid4().hex}"
    uri = location.replace("{}", secret)
    caplog.set_level(logging.DEBUG, "delta_orch")

    @dg.asset
    def numbers() -> pa.Table:
        return pa.table({"n": [1]})

    @dg.asset
    def read(lake: DeltaTableResource) -> int:
        return lake.snapshot().num_files

    configure(retry_seconds=0)
    try:
        said = ""
        with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
            for asset, key, resource in (
                (numbers, "io_manager", DeltaLakeIOManager(root_uri=uri, storage_options={"timeout": "2"})),
                (read, "lake", DeltaTableResource(table_uri=uri, storage_options={"timeout": "2"})),
            ):
                result = dg.materialize([asset], instance=instance, resources={key: resource}, raise_on_error=False)
                assert not result.success
                said += "".join(str(entry) for entry in instance.all_logs(result.run_id))
            kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    finally:
        configure(retry_seconds=None)
    assert "delta_orch.errors" in said
    assert secret not in said + caplog.text + "".join(capfd.readouterr())
    assert secret.encode() not in kept
