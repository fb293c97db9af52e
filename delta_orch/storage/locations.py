"""Where tables are in object stores, and what fsspec and Hadoop each call the same place. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from delta_orch.errors import InvalidRequestError, UnsupportedStoreError


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
"""Every scheme that names an object store."""

PUBLIC_AZURE = "core.windows.net"
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)/*(.*)", re.DOTALL)
_AZURE_HOST = re.compile(r"(?P<account>[a-z0-9-]+)\.(?:dfs|blob)\.(?P<suffix>[a-z0-9.-]+)")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*|\$root|\$web")


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """A directory, or an object, in an object store.

    Attributes:
        bucket: Of S3 and GCS; the container of Azure.
        key: Below it, without slashes at either end; not URL-encoded (as fsspec and Hadoop's `Path` take it).
        account: The storage account of Azure, None where the URI does not name it.
        suffix: What follows `<account>.dfs.` in its host name.
    """

    kind: StoreKind
    bucket: str
    key: str
    account: str | None = None
    suffix: str = PUBLIC_AZURE

    @property
    def uri(self) -> str:
        """The canonical spelling: `s3://…`, `gs://…`, `abfss://container@account…/…`, or `az://container/…` where the
        account is not known."""
        if self.kind is not StoreKind.AZURE:
            return _join(f"{self.kind.value}://{self.bucket}", self.key)
        if self.account is None:
            return _join(f"az://{self.bucket}", self.key)
        return _join(f"abfss://{self.bucket}@{self.account}.dfs.{self.suffix}", self.key)

    @property
    def hadoop_uri(self) -> str:
        """What Spark calls it: `s3a://…`, `gs://…`, `abfss://container@account…/…`.

        Raises:
            UnsupportedStoreError: An Azure location whose storage account is not known.
        """
        if self.kind is StoreKind.S3:
            return _join(f"s3a://{self.bucket}", self.key)
        if self.kind is StoreKind.AZURE and self.account is None:
            raise UnsupportedStoreError(
                f"Spark cannot open {self.uri}",
                cause="Hadoop's names of Azure locations include the storage account, and it is not known",
                remedy="Write the location as abfss://container@account.dfs.core.windows.net/path, "
                "or set the storage option account_name",
                uri=self.uri,
            )
        return self.uri

    @property
    def fsspec_path(self) -> str:
        """`bucket/key`, the path in fsspec's file system of this kind."""
        return _join(self.bucket, self.key)

    def with_account(self, account: str | None) -> ObjectLocation:
        """The same location with the account that the storage options name.

        Raises:
            InvalidRequestError: The URI names another one.
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
    """The location in an object store that a URI names; None if its scheme is not that of an object store.

    Takes fsspec's, Hadoop's and delta-rs's spellings.

    Raises:
        InvalidRequestError: There is no bucket, or the URI holds what it must not: credentials, a query, a fragment.
            The error does not repeat them.
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
            remedy="Give the location alone, and everything else as storage options",
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
    """Refuse a URI with a password in it: URIs are shown in errors and logs, and are written to the log of events.

    Raises:
        InvalidRequestError: `user:password@`. The error does not repeat it.
    """
    _, separator, rest = uri.partition("://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    # A secret may itself hold slashes: `s3://KEY:sec/ret@bucket`.
    is_cut = bool(re.match(r"[^/@?#]+:[^@]*@", rest)) and not re.match(r"[^/@:]+:\d+/", rest)
    if separator and (is_cut or ("@" in authority and ":" in authority.rpartition("@")[0])):
        raise InvalidRequestError(
            f"The location {public_uri(uri)} holds credentials",
            cause="Locations are shown in errors, logs and metadata",
            remedy="Give credentials as storage options or through the environment",
        )


def public_uri(uri: str) -> str:
    """A URI without what may be secret in it: `user:password@`, the query and the fragment."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return re.split(r"[?#]", uri, maxsplit=1)[0]
    rest = re.split(r"[?#]", rest, maxsplit=1)[0]
    user, at, after = rest.rpartition("@")
    if at and (":" in user or "/" in user):
        rest = after
    return f"{scheme}://{rest}"


def _join(root: str, key: str) -> str:
    return f"{root}/{key}" if key else root
