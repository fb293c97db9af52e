"""Locations in object stores, under the names of fsspec and Hadoop, and the storage options of users. No I/O.

Options are translated to the names of fsspec's libraries. The names of delta-rs and of the clouds' tools work too, in
upper or lower case. Any other name is an error, because a misspelled option might otherwise never be noticed.
"""

from __future__ import annotations

import difflib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from delta_orch.errors import InvalidRequestError, UnsupportedStoreError
from delta_orch.redaction import redacted


class StoreKind(Enum):
    """The kinds of object stores; the value is the scheme of the canonical URI."""

    S3 = "s3"
    GCS = "gs"
    AZURE = "abfss"


SCHEMES: Mapping[str, StoreKind] = {
    **dict.fromkeys(("s3", "s3a", "s3n"), StoreKind.S3),
    **dict.fromkeys(("gs", "gcs"), StoreKind.GCS),
    **dict.fromkeys(("abfss", "abfs", "az", "azure", "adl", "wasbs", "wasb"), StoreKind.AZURE),
}
"""The schemes of object stores."""

PUBLIC_AZURE = "core.windows.net"
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)/*(.*)", re.DOTALL)
_AZURE_HOST = re.compile(r"(?P<account>[a-z0-9-]+)\.(?:dfs|blob)\.(?P<suffix>[a-z0-9.-]+)")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*|\$root|\$web")


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """A directory, or an object, in an object store.

    Attributes:
        bucket: The bucket of S3 and GCS; the container of Azure.
        key: The path in the bucket, without slashes at either end and not URL-encoded, like fsspec's and Hadoop's.
        account: The storage account of Azure; None if the URI does not name it.
        suffix: The part of the host name behind `<account>.dfs.`.
    """

    kind: StoreKind
    bucket: str
    key: str
    account: str | None = None
    suffix: str = PUBLIC_AZURE

    @property
    def uri(self) -> str:
        """The canonical spelling: `s3://…`, `gs://…`, `abfss://container@account…/…`, or `az://container/…` if the
        account is unknown."""
        if self.kind is not StoreKind.AZURE:
            return _join(f"{self.kind.value}://{self.bucket}", self.key)
        if self.account is None:
            return _join(f"az://{self.bucket}", self.key)
        return _join(f"abfss://{self.bucket}@{self.account}.dfs.{self.suffix}", self.key)

    @property
    def hadoop_uri(self) -> str:
        """The spelling of Spark: `s3a://…`, `gs://…`, `abfss://container@account…/…`.

        Raises:
            UnsupportedStoreError: The storage account of an Azure location is unknown.
        """
        if self.kind is StoreKind.S3:
            return _join(f"s3a://{self.bucket}", self.key)
        if self.kind is StoreKind.AZURE and self.account is None:
            raise UnsupportedStoreError(
                f"Spark cannot open {self.uri}",
                cause="Hadoop needs the storage account of an Azure location, and it is unknown",
                remedy="Write the location as abfss://container@account.dfs.core.windows.net/path, "
                "or set the storage option account_name",
                uri=self.uri,
            )
        return self.uri

    @property
    def fsspec_path(self) -> str:
        """`bucket/key`: the path of the location in the data file system."""
        return _join(self.bucket, self.key)

    def with_account(self, account: str | None) -> ObjectLocation:
        """The same location with the account that the storage options name.

        Raises:
            InvalidRequestError: The URI names another account.
        """
        if self.kind is not StoreKind.AZURE or account is None or account == self.account:
            return self
        if self.account is not None:
            raise InvalidRequestError(
                f"The location {self.uri} and the storage option account_name name different storage accounts",
                remedy="Leave the option out, or make them agree",
                uri=self.uri,
            )
        return replace(self, account=account)


def parse_location(uri: str) -> ObjectLocation | None:
    """Parse a URI in the spelling of fsspec, Hadoop or delta-rs. Returns None if it is not of an object store.

    Raises:
        InvalidRequestError: The URI names no bucket, or holds credentials, a query or a fragment. The error does not
            repeat them.
    """
    scheme = uri.partition(":")[0].lower()
    kind = SCHEMES.get(scheme)
    if kind is None:
        return None
    match = _URI.fullmatch(uri)
    if match is None:
        raise InvalidRequestError(
            f"{public_uri(uri)} names no bucket", remedy=f"Write it as {scheme}://bucket/path/of/table"
        )
    ensure_no_credentials(uri)
    if "?" in uri or "#" in uri:
        raise InvalidRequestError(
            f"The location {public_uri(uri)}… has a query or a fragment",
            cause="? and # cannot be part of a table's location in an object store",
            remedy="Write the location without them, and set storage options instead",
        )
    location = _parse_azure(match[2], match[3]) if kind is StoreKind.AZURE else ObjectLocation(kind, match[2], match[3])
    location = replace(location, key=location.key.strip("/"))
    if not _BUCKET.fullmatch(location.bucket):
        raise InvalidRequestError(
            f"{public_uri(uri)} names no bucket", remedy=f"Write it as {scheme}://bucket/path/of/table"
        )
    return location


def _parse_azure(authority: str, key: str) -> ObjectLocation:
    container, at, host = authority.partition("@")
    if not at:
        return ObjectLocation(StoreKind.AZURE, container, key)
    match = _AZURE_HOST.fullmatch(host.lower())
    if match is None:
        raise InvalidRequestError(
            f"The host of the location {container}@… names no storage account",
            remedy="Write it as abfss://container@account.dfs.core.windows.net/path/of/table",
        )
    return ObjectLocation(StoreKind.AZURE, container, key, match["account"], match["suffix"])


def ensure_no_credentials(uri: str) -> None:
    """Refuse a URI with a password, because URIs appear in errors, logs and events.

    Raises:
        InvalidRequestError: The URI holds `user:password@`. The error does not repeat it.
    """
    _, separator, rest = uri.partition("://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    # A secret may contain slashes: `s3://KEY:sec/ret@bucket`.
    is_cut = bool(re.match(r"[^/@?#]+:[^@]*@", rest)) and not re.match(r"[^/@:]+:\d+/", rest)
    is_named = redacted(path := re.split(r"[?#]", uri, maxsplit=1)[0]) != path
    if separator and (is_named or is_cut or ("@" in authority and ":" in authority.rpartition("@")[0])):
        raise InvalidRequestError(
            f"The location {public_uri(uri)} holds credentials",
            cause="Locations are shown in errors, logs and metadata",
            remedy="Pass credentials as storage options or through the environment",
        )


def public_uri(uri: str) -> str:
    """A URI without the parts that may be secret: `user:password@`, the query and the fragment."""
    return re.split(r"[?#]", redacted(uri), maxsplit=1)[0].replace("***@", "")


def _join(root: str, key: str) -> str:
    return f"{root}/{key}" if key else root


SINGLE_WRITER_OPTION = "single_writer"
"""Storage option: `true` promises that one process at a time writes the table. Without the promise, a store without
exclusive creation is read-only."""


def read_only(uri: str, store: str, cause: str) -> UnsupportedStoreError:
    """The error of a commit to a store without exclusive creation.

    Args:
        store: The name of the store for users.
        cause: Why creation is not exclusive.
    """
    return UnsupportedStoreError(
        f"Cannot write the table at {uri}",
        cause=f"{cause}, so concurrent writers could not be kept apart",
        remedy=f"If this is the only process that writes the table, set the storage option {SINGLE_WRITER_OPTION}=true",
        store=store,
    )


OptionValue = Any
"""The value of an option, before or after it is parsed."""

_Parse = Callable[[str, OptionValue], OptionValue]


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The options of one store.

    Attributes:
        library: The options under the names of fsspec's libraries. They hold secrets.
        single_writer: The user promises that one process at a time writes.
        secrets: The values that must never be shown.
    """

    library: Mapping[str, OptionValue]
    single_writer: bool
    secrets: frozenset[str]

    def __repr__(self) -> str:
        return f"StoreOptions({', '.join(sorted(self.library))})"


class OptionsSource(ABC):
    """Options that change while a store is used, because their credentials expire."""

    @abstractmethod
    def current(self) -> StoreOptions:
        """The current options. The object is the same until they change. Raises StorageError."""


class _Option(NamedTuple):
    """The place of a value in `StoreOptions.library`, and the parser of its text."""

    path: tuple[str, ...]
    parse: _Parse
    secret: bool = False


def _text(name: str, value: OptionValue) -> str:
    if not isinstance(value, str):
        raise _wrong(name, "a string")
    return value


def _flag(name: str, value: OptionValue) -> bool:
    if isinstance(value, bool):
        return value
    match str(value).strip().lower():
        case "true" | "1" | "yes" | "on":
            return True
        case "false" | "0" | "no" | "off":
            return False
    raise _wrong(name, "true or false")


def _number(name: str, value: OptionValue) -> int | float:
    number = None
    with suppress(TypeError, ValueError):
        number = float(value)
    if number is None:
        # Raised outside the handler, the error has no context that repeats the value.
        raise _wrong(name, "a number")
    return int(number) if number.is_integer() else number


def _object(name: str, value: OptionValue) -> dict[str, OptionValue]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, Mapping):
        raise _wrong(name, "a JSON object")
    return dict(value)


def _text_or_object(name: str, value: OptionValue) -> OptionValue:
    """A path or a word, or a JSON object as text or mapping."""
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        return value
    return _object(name, value)


def _as_given(name: str, value: OptionValue) -> OptionValue:
    return value


def _addressing(name: str, value: OptionValue) -> str:
    return "virtual" if _flag(name, value) else "path"


def _wrong(name: str, expected: str) -> InvalidRequestError:
    # The error shows no value, because it may be a misplaced secret.
    return InvalidRequestError(f"The storage option {name} must be {expected}", option=name)


def _plain(names: str, parse: _Parse = _text, *, secret: bool = False) -> dict[str, _Option]:
    return {name: _Option((name,), parse, secret) for name in names.split()}


def _alias(names: str, *path: str, parse: _Parse = _text, secret: bool = False) -> dict[str, _Option]:
    return dict.fromkeys(names.split(), _Option(path, parse, secret))


_REGION = ("client_kwargs", "region_name")
_NOTHING = ()

OPTIONS: Mapping[StoreKind, Mapping[str, _Option]] = {
    StoreKind.S3: {
        **_plain("key", secret=True),
        **_plain("secret token", secret=True),
        **_plain("endpoint_url profile"),
        **_plain("anon use_ssl requester_pays cache_regions", _flag),
        **_plain("client_kwargs config_kwargs s3_additional_kwargs", _object),
        **_plain("default_block_size max_concurrency", _number),
        **_alias("username aws_access_key_id access_key_id", "key", secret=True),
        **_alias("password aws_secret_access_key secret_access_key", "secret", secret=True),
        **_alias("aws_session_token aws_token session_token", "token", secret=True),
        **_alias("aws_profile", "profile"),
        **_alias("region region_name aws_region aws_default_region default_region", *_REGION),
        **_alias("aws_endpoint_url aws_endpoint_url_s3 aws_endpoint endpoint", "endpoint_url"),
        **_alias("aws_skip_signature skip_signature", "anon", parse=_flag),
        **_alias("aws_virtual_hosted_style_request virtual_hosted_style_request", "config_kwargs", "s3",
                 "addressing_style", parse=_addressing),
        **_alias("aws_request_payer request_payer", "requester_pays", parse=_flag),
        **_alias("connect_timeout", "config_kwargs", "connect_timeout", parse=_number),
        **_alias("read_timeout", "config_kwargs", "read_timeout", parse=_number),
        # The URL of the endpoint decides about TLS.
        **_alias("aws_allow_http allow_http", *_NOTHING, parse=_flag),
    },
    StoreKind.GCS: {
        **_plain("project access endpoint_url default_location"),
        **_plain("token", _text_or_object, secret=True),
        **_plain("requester_pays", _as_given),
        **_plain("requests_timeout timeout block_size", _number),
        **_plain("session_kwargs", _object),
        **_alias("google_service_account google_service_account_path service_account service_account_path "
                 "google_service_account_key service_account_key google_application_credentials "
                 "application_credentials", "token", parse=_text_or_object, secret=True),
        **_alias("google_skip_signature skip_signature", "anon", parse=_flag),
        **_alias("google_endpoint_url google_endpoint endpoint", "endpoint_url"),
        **_alias("google_project google_cloud_project", "project"),
        **_alias("allow_http", *_NOTHING, parse=_flag),
    },
    StoreKind.AZURE: {
        **_plain("account_name account_host tenant_id client_id location_mode"),
        **_plain("account_key sas_token connection_string client_secret", secret=True),
        **_plain("anon assume_container_exists", _flag),
        **_plain("timeout connection_timeout read_timeout blocksize max_concurrency", _number),
        **_alias("azure_storage_account_name", "account_name"),
        **_alias("azure_storage_account_key azure_storage_access_key azure_storage_master_key access_key master_key",
                 "account_key", secret=True),
        **_alias("azure_storage_sas_token azure_storage_sas_key sas_key", "sas_token", secret=True),
        **_alias("azure_storage_connection_string", "connection_string", secret=True),
        **_alias("azure_storage_client_id azure_client_id", "client_id"),
        **_alias("azure_storage_client_secret azure_client_secret", "client_secret", secret=True),
        **_alias("azure_storage_tenant_id azure_storage_authority_id azure_tenant_id azure_authority_id authority_id",
                 "tenant_id"),
        **_alias("azure_skip_signature skip_signature", "anon", parse=_flag),
        **_alias("allow_http azure_allow_http", *_NOTHING, parse=_flag),
    },
}  # fmt: skip
"""The options of each kind of store by lower-case name: fsspec's names, then those of other tools."""

_SECRET_WORDS = ("secret", "password", "token", "key", "credential")


def parse_options(kind: StoreKind, options: Mapping[str, OptionValue] | None) -> StoreOptions:
    """Translate the options of a user. Values are strings; a value that is an object may be JSON.

    Raises:
        InvalidRequestError: A name is unknown, two names set the same thing, or a value is invalid. The error shows no
            value.
    """
    if options is not None and not isinstance(options, Mapping):
        raise InvalidRequestError("storage_options must be a dict", remedy="Pass names of options with their values")
    settings = OPTIONS[kind]
    library: dict[str, OptionValue] = {}
    secrets: set[str] = set()
    filled: dict[tuple[str, ...], str] = {}
    single_writer = False
    for name, value in (options or {}).items():
        if value is None:
            continue
        if name == SINGLE_WRITER_OPTION:
            single_writer = _flag(name, value)
            continue
        option = settings.get(str(name).lower())
        if option is None:
            raise _unknown(kind, str(name))
        parsed = option.parse(name, value)
        if option.secret:
            secrets.update(_texts(value), _texts(parsed))
            secrets.difference_update(_harmless(kind, parsed))
        elif isinstance(parsed, Mapping):
            secrets.update(secret_texts(parsed))
        if not option.path:
            continue
        if (earlier_name := filled.setdefault(option.path, name)) != name:
            raise InvalidRequestError(
                f"The storage options {earlier_name} and {name} set the same thing",
                remedy="Set one of them",
                option=name,
            )
        _put(library, option.path, parsed)
    if kind is StoreKind.GCS and library.pop("anon", False):
        library["token"] = "anon"
    if kind is StoreKind.AZURE:
        secrets.update(_connection_string_secrets(library.get("connection_string")))
        secrets.update(_signatures(secrets))
    return StoreOptions(library, single_writer, frozenset(s for s in secrets if len(s) > 3))


def _put(library: dict[str, OptionValue], path: tuple[str, ...], value: OptionValue) -> None:
    for step in path[:-1]:
        library[step] = dict(library.get(step) or {})
        library = library[step]
    name = path[-1]
    before = library.get(name)
    # The user may set an object and also single values of it.
    library[name] = {**value, **before} if isinstance(before, dict) and isinstance(value, dict) else value


def _unknown(kind: StoreKind, name: str) -> InvalidRequestError:
    names = [*OPTIONS[kind], SINGLE_WRITER_OPTION]
    similar_names = difflib.get_close_matches(name.lower(), names, n=3)
    library = {StoreKind.S3: "s3fs", StoreKind.GCS: "gcsfs", StoreKind.AZURE: "adlfs"}[kind]
    meant = f"Did you mean {' or '.join(similar_names)}? " if similar_names else ""
    return InvalidRequestError(
        f"There is no storage option {name!r} for {kind.value}:// locations",
        remedy=f"{meant}Use the names of {library} ({', '.join(n for n, o in OPTIONS[kind].items() if o.path == (n,))})"
        ", or those in docs/stores.md",
        option=name,
    )


def _texts(value: OptionValue) -> set[str]:
    if isinstance(value, str):
        return {value}
    if isinstance(value, Mapping):
        return secret_texts(value)
    return set()


def secret_texts(value: Mapping[str, OptionValue]) -> set[str]:
    """The values whose names sound secret, at any depth."""
    texts: set[str] = set()
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            texts |= secret_texts(inner)
        elif isinstance(inner, str) and any(word in str(name).lower() for word in _SECRET_WORDS):
            texts.add(inner)
    return texts


def _harmless(kind: StoreKind, value: OptionValue) -> set[str]:
    """The values of the option `token` of GCS that are no secrets."""
    return {value} if kind is StoreKind.GCS and isinstance(value, str) and is_way_to_credential(value) else set()


def is_way_to_credential(token: str) -> bool:
    """Whether the option `token` of GCS is a file or a method. Otherwise it is an access token."""
    methods = ("anon", "cache", "browser", "cloud", "google_default")
    return token in methods or "/" in token or token.endswith(".json")


def _connection_string_secrets(text: str | None) -> set[str]:
    parts = [part.partition("=") for part in (text or "").split(";")]
    return {value for name, _, value in parts if name in ("AccountKey", "SharedAccessSignature")}


def _signatures(secrets: set[str]) -> set[str]:
    """The secret parts of shared access signatures, in every URL encoding."""
    signatures = {match[1] for secret in secrets for match in re.finditer(r"(?:^|[?&;])sig=([^&;]+)", secret)}
    return (
        signatures | {unquote(value) for value in signatures} | {quote(unquote(value), safe="") for value in signatures}
    )


def account_of(library: Mapping[str, OptionValue]) -> str | None:
    """The storage account that the options of Azure name; None if they name no account, or another host than Azure's
    public one (an emulator, a private address)."""
    name = library.get("account_name")
    if name is not None:
        return None if "account_host" in library else str(name)
    parts = dict(part.partition("=")[::2] for part in str(library.get("connection_string") or "").split(";"))
    if "BlobEndpoint" in parts or parts.get("EndpointSuffix", PUBLIC_AZURE) != PUBLIC_AZURE:
        return None
    return parts.get("AccountName")
