"""Tables of a catalog in Azure and Google Cloud, with what it vends for them: a signature, a token. Those in S3 are in
`test_catalog_credentials.py`."""

from __future__ import annotations

import datetime
import ipaddress
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from delta_orch import DeltaTable
from tests.harness.emulators import AZURITE_ACCOUNT, AZURITE_KEY, BUCKET, Emulator, azure_emulator
from tests.harness.unity_emulator import UnityEmulator, unity_emulator

URI = "uc://main.default.t"


def _ids(table: DeltaTable) -> list[int]:
    found: list[int] = sorted(table.snapshot().scan().to_arrow()["id"].to_pylist())
    return found


def _live_through_renewals(unity: UnityEmulator) -> None:
    """A table is created, written and read while what was vended ends again and again."""
    table = DeltaTable(URI, unity.options)
    table.append(pa.table({"id": [1, 2]}))
    table.append(pa.table({"id": [3]}))
    table.delete("id = 1")
    assert _ids(DeltaTable(URI, unity.options)) == [2, 3]
    unity.lifetime_ms = 400
    short = DeltaTable(URI, unity.options)
    rows = short.snapshot().scan()
    assert rows.to_arrow().num_rows == 2
    asked = len(unity.operations)
    time.sleep(0.5)
    assert rows.to_arrow().num_rows == 2, "the same scan, after its credentials have ended"
    time.sleep(0.5)
    short.append(pa.table({"id": [4]}))
    assert len(unity.operations) >= asked + 2
    assert unity.operations[-1] == "READ_WRITE"
    unity.lifetime_ms = None
    assert _ids(DeltaTable(URI, unity.options)) == [2, 3, 4]
    unity.ensure_lawful()


def test_a_table_in_google_cloud(tmp_path: Path, emulator_named: Callable[[str], Emulator]) -> None:
    gcs = emulator_named("gcs")
    with unity_emulator(tmp_path, f"{gcs.root}{tmp_path.name}") as unity:
        unity.vended = {"gcs.oauth-token": "ya29.vended-{n}"}
        unity.options |= {"endpoint_url": gcs.endpoint}
        _live_through_renewals(unity)


def test_a_table_in_azure(tmp_path: Path, emulator_named: Callable[[str], Emulator]) -> None:
    """A signature needs TLS; a process of its own believes the certificate of the emulator."""
    emulator_named("azure")
    certificate, _ = _certificate(tmp_path)
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "SSL_CERT_FILE": str(certificate),
            "REQUESTS_CA_BUNDLE": str(certificate),
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def _certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    built = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, private = directory / "certificate.pem", directory / "key.pem"
    certificate.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate, private


def _in_azure(directory: Path) -> None:
    from azure.storage.blob import generate_container_sas

    certificate = directory / "certificate.pem", directory / "key.pem"
    place = f"abfss://{BUCKET}@{AZURITE_ACCOUNT}.dfs.core.windows.net/catalog"
    with azure_emulator(certificate) as azure, unity_emulator(directory, place) as unity:
        ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
        unity.vended = {
            "azure.sas-token": generate_container_sas(
                AZURITE_ACCOUNT, BUCKET, account_key=AZURITE_KEY, permission="racwdl", expiry=ends
            )
        }
        unity.options["account_host"] = f"{azure.endpoint.removeprefix('https://')}/{AZURITE_ACCOUNT}"
        _live_through_renewals(unity)


if __name__ == "__main__":
    _in_azure(Path(sys.argv[1]))
