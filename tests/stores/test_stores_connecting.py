"""Which credentials the clients of the clouds get, by options and environment. Nothing is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from delta_orch.errors import InvalidRequestError, StorageError
from delta_orch.storage.open import open_store, open_vended_store
from delta_orch.storage.storage_options import OptionsSource, StoreOptions, parse_location

AZURE_KEY = "a2V5a2V5"
CONNECTION = f"AccountName=env;AccountKey={AZURE_KEY};EndpointSuffix=core.windows.net"
USER = {"refresh_token": "r", "client_id": "i", "client_secret": "s"}


def _client(uri: str, options: dict[str, Any]) -> Any:
    return open_store(uri, options).client  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def no_credentials_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CONNECTION_STRING", "ACCOUNT_KEY", "SAS_TOKEN", "CLIENT_ID", "ANON", "ACCOUNT_NAME"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")


@pytest.mark.parametrize(
    ("options", "credential"),
    [
        ({"account_key": AZURE_KEY}, "SharedKeyCredentialPolicy"),
        ({"sas_token": "?sv=2024&sig=x"}, "AzureSasCredential"),
        ({"client_id": "i", "client_secret": "s", "tenant_id": "t"}, "ClientSecretCredential"),
        ({"anon": "true"}, "NoneType"),
        ({}, "DefaultAzureCredential"),
    ],
)
def test_credentials_of_azure(options: dict[str, Any], credential: str) -> None:
    client = _client("abfss://c@acc.dfs.core.windows.net/t", options)
    assert type(client.credential).__name__ == credential
    assert client.primary_hostname == "acc.blob.core.windows.net"


def test_options_of_azure_replace_the_credentials_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", CONNECTION)
    assert _client("az://c/t", {}).account_name == "env"
    assert _client("az://c/t", {"account_name": "own", "account_key": AZURE_KEY}).account_name == "own"
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "named")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", AZURE_KEY)
    client = _client("az://c/t", {})
    assert (client.account_name, type(client.credential).__name__) == ("named", "SharedKeyCredentialPolicy")
    monkeypatch.setenv("AZURE_STORAGE_CLIENT_SECRET", "s")
    monkeypatch.setenv("AZURE_STORAGE_TENANT_ID", "t")
    assert type(_client("az://c/t", {"client_id": "i"}).credential).__name__ == "ClientSecretCredential"


def test_a_connection_string_of_the_environment_opens_no_other_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", CONNECTION)
    assert _client("abfss://c@env.dfs.core.windows.net/t", {}).account_name == "env"
    with pytest.raises(InvalidRequestError, match="another storage account than the location abfss://c@acc"):
        _client("abfss://c@acc.dfs.core.windows.net/t", {})
    assert _client("abfss://c@acc.dfs.core.windows.net/t", {"account_key": AZURE_KEY}).account_name == "acc"
    signed = "BlobEndpoint=https://env.blob.core.windows.net;SharedAccessSignature=sv=2024&sig=x"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", signed)
    with pytest.raises(InvalidRequestError, match="another storage account"):
        _client("abfss://c@acc.dfs.core.windows.net/t", {})


def test_azure_without_an_account_says_so() -> None:
    with pytest.raises(InvalidRequestError, match="names no storage account"):
        _client("az://c/t", {"account_key": AZURE_KEY})


def test_hosts_of_azure() -> None:
    own = _client("abfss://c@acc.dfs.core.usgovcloudapi.net/t", {"account_key": AZURE_KEY})
    assert own.primary_hostname == "acc.blob.core.usgovcloudapi.net"
    options = {"account_name": "acc", "account_key": AZURE_KEY, "account_host": "blobs.example.com"}
    assert _client("az://c/t", options).primary_hostname == "blobs.example.com"


def _service_account() -> dict[str, str]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return {
        "type": "service_account",
        "private_key": key.private_bytes(*form).decode(),
        "client_email": "me@p.iam.gserviceaccount.com",
        "token_uri": "https://oauth2.googleapis.com/token",
        "project_id": "p",
    }


def test_credentials_of_gcs(tmp_path: Path) -> None:
    account = _service_account()
    (tmp_path / "key.json").write_text(json.dumps(account))
    for token in (str(tmp_path / "key.json"), json.dumps(account), account):
        client = _client("gs://b/t", {"token": token, "access": "read_only"})
        assert client._credentials.service_account_email == "me@p.iam.gserviceaccount.com"
        assert client._credentials.scopes == ["https://www.googleapis.com/auth/devstorage.read_only"]
        assert client.project == "p"
    assert _client("gs://b/t", {"token": json.dumps(USER)})._credentials.refresh_token == "r"
    assert _client("gs://b/t", {"token": "ya29.abc", "project": "q"})._credentials.token == "ya29.abc"
    for anonymous in ({"token": "anon"}, {}, {"skip_signature": "true"}):
        assert type(_client("gs://b/t", anonymous)._credentials).__name__ == "AnonymousCredentials"


def test_a_long_access_token_of_gcs_is_no_file_name() -> None:
    token = "ya29.c." + 1000 * "x"
    assert _client("gs://b/t", {"token": token})._credentials.token == token


def test_credentials_of_gcs_that_cannot_be_read_are_not_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "missing.json"))
    with pytest.raises(StorageError, match="DefaultCredentialsError"):
        _client("gs://b/t", {})


def test_credentials_that_change_while_a_client_is_chosen_are_used_next() -> None:
    """Another thread gets the new credentials of a catalog while the key of the client is computed of the old ones."""

    class Racing(dict[str, Any]):
        def keys(self) -> Any:
            source.now = new
            assert store.options is new
            return super().keys()

        def __iter__(self) -> Any:
            return super().__iter__()

    class Source(OptionsSource):
        now: StoreOptions

        def current(self) -> StoreOptions:
            return self.now

    def keyed(key: str) -> dict[str, Any]:
        return {"key": key, "secret": "s", "client_kwargs": {"region_name": "us-east-1"}}

    new = StoreOptions(keyed("new"), False, frozenset())
    source = Source()
    source.now = StoreOptions(Racing(keyed("old")), False, frozenset())
    location = parse_location("s3://b/t")
    assert location is not None
    store: Any = open_vended_store(location, source)
    _ = store.client
    assert store.client._get_credentials().access_key == "new"
    other: Any = open_vended_store(location, Source())
    other._source.now = new
    assert other.client is store.client


@pytest.mark.parametrize(
    ("options", "config", "endpoint"),
    [
        ({}, "", None),
        ({"region": "eu-central-1"}, "", None),
        ({"region": "cn-north-1"}, "", None),
        ({"endpoint_url": "https://bucket.vpce-1.s3.eu-central-1.vpce.amazonaws.com"}, "", None),
        ({"endpoint_url": "http://minio:9000"}, "", "http://minio:9000"),
        ({"client_kwargs": {"endpoint_url": "http://minio:9000"}}, "", "http://minio:9000"),
        ({}, "[default]\nendpoint_url = http://minio:9000\n", "http://minio:9000"),
        ({"profile": "lab"}, "[profile lab]\nendpoint_url = http://minio:9000\n", "http://minio:9000"),
    ],
)
def test_an_endpoint_that_may_ignore_conditions_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: dict[str, Any], config: str, endpoint: str | None
) -> None:
    """Amazon's is not tested. Any other is, wherever it is set: it may overwrite a commit."""
    (tmp_path / "config").write_text(config)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    store: Any = open_store("s3://b/t", {"key": "k", "secret": "s", **options})
    assert store._endpoint() == endpoint


def test_an_answer_that_was_cut_or_changed_on_its_way_is_read_again() -> None:
    from azure.core.exceptions import DecodeError
    from botocore.exceptions import FlexibleChecksumError, IncompleteReadError, ParamValidationError
    from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
    from requests import Response

    s3: Any = open_store("s3://b/t", {"key": "k", "secret": "s"})
    gcs: Any = open_store("gs://b/t", {"token": "anon"})
    azure: Any = open_store("az://b/t", {"account_name": "a", "account_key": AZURE_KEY})
    undecodable = DecodeError("…")
    undecodable.status_code = 200
    whole, refused = Response(), Response()
    whole.status_code, refused.status_code = 200, 403
    for store, error in (
        (s3, IncompleteReadError(actual_bytes=1, expected_bytes=2)),
        (s3, FlexibleChecksumError(error_msg="…")),
        (gcs, DataCorruption(whole, "Checksum mismatch")),
        (azure, undecodable),
    ):
        answers = [error, b"1"]

        def request(answers: list[Any] = answers) -> bytes:
            if isinstance(answer := answers.pop(0), Exception):
                raise answer
            return bytes(answer)

        assert store.call("read", "b/t/x", request) == b"1"
    assert not s3._failure(ParamValidationError(report="…")).is_passing
    assert not gcs._failure(InvalidResponse(refused, "…")).is_passing


def test_a_condition_that_botocore_does_not_know_is_never_left_out() -> None:
    """An old release would send the request without the condition, and overwrite a commit."""
    store: Any = open_store("s3://b/t", {"key": "k", "secret": "s", "s3_additional_kwargs": {"NoSuchArgument": "x"}})
    with pytest.raises(Exception, match="Unknown parameter in input"):
        store._request("put_object", Bucket="b", Key="k", IfNobodyMatches="*")
