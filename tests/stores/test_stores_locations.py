"""The names of one place, both ways; and the names of options."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_orch.errors import InvalidRequestError, UnsupportedStoreError
from delta_orch.storage.storage_options import (
    OPTIONS,
    SCHEMES,
    ObjectLocation,
    StoreKind,
    account_of,
    parse_location,
    parse_options,
    public_uri,
)

AZURE = "core.windows.net"
S3, GCS, AZ = StoreKind.S3, StoreKind.GCS, StoreKind.AZURE


@pytest.mark.parametrize(
    ("uri", "canonical", "hadoop", "fsspec"),
    [
        ("s3://b/t", "s3://b/t", "s3a://b/t", "b/t"),
        ("s3a://b/a/t/", "s3://b/a/t", "s3a://b/a/t", "b/a/t"),
        ("s3n://b", "s3://b", "s3a://b", "b"),
        ("S3A://b.with.dots//t//", "s3://b.with.dots/t", "s3a://b.with.dots/t", "b.with.dots/t"),
        ("s3://b/a b/100%/ü", "s3://b/a b/100%/ü", "s3a://b/a b/100%/ü", "b/a b/100%/ü"),
        ("s3://b/k@y:z=1", "s3://b/k@y:z=1", "s3a://b/k@y:z=1", "b/k@y:z=1"),
        ("gs://b/t", "gs://b/t", "gs://b/t", "b/t"),
        ("gcs://b_c/t", "gs://b_c/t", "gs://b_c/t", "b_c/t"),
        (f"abfss://c@a.dfs.{AZURE}/t", f"abfss://c@a.dfs.{AZURE}/t", f"abfss://c@a.dfs.{AZURE}/t", "c/t"),
        (f"abfs://c@a.dfs.{AZURE}/t", f"abfss://c@a.dfs.{AZURE}/t", f"abfss://c@a.dfs.{AZURE}/t", "c/t"),
        (f"wasbs://c@a.blob.{AZURE}/t", f"abfss://c@a.dfs.{AZURE}/t", f"abfss://c@a.dfs.{AZURE}/t", "c/t"),
        ("wasb://c@A.blob.core.usgovcloudapi.net/t", "abfss://c@a.dfs.core.usgovcloudapi.net/t",
         "abfss://c@a.dfs.core.usgovcloudapi.net/t", "c/t"),
    ],
)  # fmt: skip
def test_every_name_of_a_place(uri: str, canonical: str, hadoop: str, fsspec: str) -> None:
    location = parse_location(uri)
    assert location is not None
    assert (location.uri, location.hadoop_uri, location.fsspec_path) == (canonical, hadoop, fsspec)
    assert parse_location(location.uri) == parse_location(location.hadoop_uri) == location


@pytest.mark.parametrize("uri", ["az://c/t", "abfs://c/t", "azure://c/t", "abfss://c/t"])
def test_azure_without_an_account(uri: str) -> None:
    location = parse_location(uri)
    assert location == ObjectLocation(AZ, "c", "t")
    assert location.uri == "az://c/t"
    with pytest.raises(UnsupportedStoreError, match="account_name"):
        _ = location.hadoop_uri
    assert location.with_account("a").hadoop_uri == f"abfss://c@a.dfs.{AZURE}/t"


_KEYS = st.text(st.characters(exclude_characters="/?#\0", exclude_categories=["Cs"]), min_size=1)


@given(
    st.sampled_from(list(StoreKind)),
    st.from_regex(r"[a-z0-9][a-z0-9.-]{2,20}", fullmatch=True),
    st.lists(_KEYS, max_size=4).map("/".join),
    st.from_regex(r"[a-z0-9]{3,10}", fullmatch=True),
)
def test_names_lead_back_to_the_place(kind: StoreKind, bucket: str, key: str, account: str) -> None:
    location = ObjectLocation(kind, bucket, key, account if kind is AZ else None)
    for name in (location.uri, location.hadoop_uri):
        assert parse_location(name) == location
    for scheme, other in SCHEMES.items():
        if other is kind and kind is not AZ:
            assert parse_location(f"{scheme}://{location.fsspec_path}") == location


@pytest.mark.parametrize("uri", ["/data/t", "file:///t", "memory://t", "hdfs://nn/t", "t", "C:/t", "dbfs:/t", ""])
def test_other_places_are_none_of_an_object_store(uri: str) -> None:
    assert parse_location(uri) is None


SECRET = "wJalrXUtnFEMI"


@pytest.mark.parametrize(
    "uri",
    [
        f"s3://AKIA:{SECRET}@bucket/t",
        f"s3://AKIA:{SECRET}/with/slash@bucket/t",
        f"s3a://AKIA:{SECRET}@bucket",
        f"gs://user:{SECRET}@bucket/t",
        f"abfss://c:{SECRET}@a.dfs.{AZURE}/t",
        f"az://c/t?sv=2024&sig={SECRET}",
        f"abfss://c@a.dfs.{AZURE}/t?sig={SECRET}",
        f"s3://bucket/t?X-Amz-Signature={SECRET}",
        f"s3://bucket/t#{SECRET}",
        f"s3://bucket?X-Amz-Security-Token={SECRET}",
        f"wasbs://c@{SECRET}:x@a.blob.{AZURE}/t",
    ],
)
def test_secrets_in_a_location_are_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse_location(uri)
    assert SECRET not in str(raised.value) + repr(raised.value) + repr(raised.value.context)
    assert SECRET not in public_uri(uri)


@pytest.mark.parametrize("uri", ["s3://", "s3:///t", "s3:/b/t", "s3:b", "gs://-b/t", "abfss://c@host/t", "s3://b c/t"])
def test_no_bucket(uri: str) -> None:
    with pytest.raises(InvalidRequestError, match="Write it as"):
        parse_location(uri)


@pytest.mark.parametrize(
    ("kind", "given", "library"),
    [
        (S3, {"key": "k", "secret": "s"}, {"key": "k", "secret": "s"}),
        (
            S3,
            {"AWS_ACCESS_KEY_ID": "k", "aws_secret_access_key": "s", "AWS_SESSION_TOKEN": "t", "AWS_REGION": "eu-1"},
            {"key": "k", "secret": "s", "token": "t", "client_kwargs": {"region_name": "eu-1"}},
        ),
        (
            S3,
            {"aws_endpoint_url": "http://x", "AWS_ALLOW_HTTP": "true", "client_kwargs": '{"verify": false}'},
            {"endpoint_url": "http://x", "client_kwargs": {"verify": False}},
        ),
        (
            S3,
            {"region": "eu-1", "client_kwargs": {"verify": False}, "read_timeout": "2.5", "anon": "TRUE"},
            {
                "client_kwargs": {"region_name": "eu-1", "verify": False},
                "config_kwargs": {"read_timeout": 2.5},
                "anon": True,
            },
        ),
        (
            S3,
            {"aws_virtual_hosted_style_request": "false", "connect_timeout": 1},
            {"config_kwargs": {"s3": {"addressing_style": "path"}, "connect_timeout": 1}},
        ),
        (GCS, {"token": "anon"}, {"token": "anon"}),
        (GCS, {"google_service_account": "/k.json", "project": "p"}, {"token": "/k.json", "project": "p"}),
        (GCS, {"google_service_account_key": '{"private_key": "x"}'}, {"token": {"private_key": "x"}}),
        (GCS, {"skip_signature": "1"}, {"token": "anon"}),
        (AZ, {"account_name": "a", "AZURE_STORAGE_ACCOUNT_KEY": "k"}, {"account_name": "a", "account_key": "k"}),
        (
            AZ,
            {"azure_client_id": "i", "client_secret": "s", "azure_tenant_id": "t", "single_writer": "false"},
            {"client_id": "i", "client_secret": "s", "tenant_id": "t"},
        ),
    ],
)
def test_options_by_any_of_their_names(kind: StoreKind, given: dict[str, Any], library: dict[str, Any]) -> None:
    assert parse_options(kind, given).library == library
    assert parse_options(kind, dict(reversed(given.items()))).library == library


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (S3, {"secrte": SECRET}, "Did you mean secret"),
        (S3, {"account_key": SECRET}, "no storage option 'account_key' for s3://"),
        (AZ, {"key": SECRET}, "no storage option 'key'"),
        (GCS, {"whatever": SECRET}, "token, endpoint_url|gcsfs"),
        (S3, {"key": SECRET, "AWS_ACCESS_KEY_ID": SECRET}, "set the same thing"),
        (S3, {"anon": SECRET}, "must be true or false"),
        (S3, {"client_kwargs": SECRET}, "must be a JSON object"),
        (S3, {"read_timeout": SECRET}, "must be a number"),
        (S3, {"secret": 17}, "must be a string"),
        (S3, {"single_writer": "maybe"}, "must be true or false"),
    ],
)
def test_impossible_options(kind: StoreKind, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as raised:
        parse_options(kind, given)
    assert SECRET not in str(raised.value) + repr(raised.value.context)


def test_options_that_are_none_are_not_given() -> None:
    assert parse_options(S3, {"key": None, "nonsense": None}).library == {}
    assert parse_options(S3, None).single_writer is False
    assert parse_options(S3, {"single_writer": True}).single_writer is True


def test_what_is_secret() -> None:
    secrets = parse_options(
        S3, {"key": "AKIAKEY", "secret": "s3cr3t", "client_kwargs": {"aws_session_token": "tok-en", "verify": "path"}}
    ).secrets
    assert secrets == {"AKIAKEY", "s3cr3t", "tok-en"}
    sas = parse_options(AZ, {"sas_token": "?sv=2024&sig=ab%2Bcd%3D&se=x"}).secrets
    assert {"ab%2Bcd%3D", "ab+cd="} < sas
    assert parse_options(AZ, {"connection_string": "AccountName=a;AccountKey=a2V5a2V5;"}).secrets >= {"a2V5a2V5"}
    assert parse_options(GCS, {"token": "/key.json"}).secrets == set()
    assert parse_options(GCS, {"token": {"private_key": "-PEM-", "client_email": "me@x"}}).secrets == {"-PEM-"}
    assert "s3cr3t" not in repr(parse_options(S3, {"secret": "s3cr3t"}))


def test_the_account_of_a_connection_string() -> None:
    assert account_of({"connection_string": "AccountName=a;AccountKey=k=="}) == "a"
    assert account_of({"connection_string": "AccountName=a;BlobEndpoint=http://127.0.0.1/a"}) is None
    assert account_of({"account_name": "b"}) == "b"
    assert account_of({}) is None


@pytest.mark.parametrize("kind", StoreKind)
def test_fsspecs_own_names_are_arguments_of_its_constructor(kind: StoreKind) -> None:
    import inspect

    import adlfs
    import gcsfs.core
    import s3fs

    make = {S3: s3fs.S3FileSystem, GCS: gcsfs.core.GCSFileSystem, AZ: adlfs.AzureBlobFileSystem}[kind]
    taken = set(inspect.signature(make.__init__).parameters) | {"profile"}
    own = {option.path[0] for option in OPTIONS[kind].values() if option.path} - {"anon"}
    assert own <= taken
