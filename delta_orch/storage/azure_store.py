"""Tables on Azure Blob Storage and Data Lake Storage (`delta-orch[azure]`). Exclusive creation is an upload with
`If-None-Match: *`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import ClassVar

from delta_orch.errors import InvalidRequestError
from delta_orch.storage.base import FileMeta
from delta_orch.storage.failed_request import Answer
from delta_orch.storage.object_store import Content, ObjectStore, Sdk
from delta_orch.storage.storage_options import ObjectLocation, OptionsSource, OptionValue, StoreOptions, account_of

_CREDENTIALS = ("connection_string", "account_key", "sas_token", "client_id", "anon")
_ENVIRONMENT_OPTIONS = frozenset({*_CREDENTIALS, "account_name", "client_secret", "tenant_id"})


class AzureStore(ObjectStore):
    """One prefix of one container, through Azure's client.

    Azure lists names in UTF-16 order, which differs from code point order beyond U+FFFF. The names of a log are ASCII.
    """

    label: ClassVar[str] = "Azure"
    part_option: ClassVar[str] = "blocksize"
    credentials_remedy: ClassVar[str] = (
        "Check the storage options account_key, sas_token, connection_string or client_id and client_secret, "
        "or the AZURE_STORAGE_… variables of this process"
    )

    def __init__(self, location: ObjectLocation, options: StoreOptions | OptionsSource) -> None:
        # A location of a catalog already names the account.
        if isinstance(options, StoreOptions):
            location = location.with_account(account_of(options.library))
        super().__init__(location, options)

    def _connect(self) -> Sdk:
        from azure.storage.blob import BlobServiceClient

        # `ObjectStore.call` decides which requests are repeated, and for how long.
        once = {"retry_total": 0}
        options = _with_environment(self.options.library)
        if connection_string := options.get("connection_string"):
            client = BlobServiceClient.from_connection_string(connection_string, **once)
            is_own = "connection_string" in self.options.library or self.location.account is None
            if not is_own and client.account_name not in (None, self.location.account):
                # It would open the container of that name in the other account.
                raise InvalidRequestError(
                    f"AZURE_STORAGE_CONNECTION_STRING is for another storage account than the location {self.uri}",
                    remedy="Unset the variable, or pass the credentials of the account as storage options",
                    uri=self.uri,
                )
            return client
        account = self.location.account or options.get("account_name")
        if account is None:
            raise InvalidRequestError(
                f"The location {self.uri} names no storage account",
                remedy="Set the storage option account_name, or connection_string",
                uri=self.uri,
            )
        host = options.get("account_host") or f"{account}.blob.{self.location.suffix}"
        return BlobServiceClient(f"https://{host}", credential=_credential(options, account), **once)

    def _sdk_errors(self) -> tuple[type[Exception], ...]:
        from azure.core.exceptions import AzureError

        return (AzureError, OSError)

    def _blob(self, container: str, key: str) -> Sdk:
        return self.client.get_blob_client(container, key)

    @property
    def _timeouts(self) -> dict[str, Sdk]:
        """The time-outs that the user set, in seconds. The client has defaults."""
        names = ("timeout", "connection_timeout", "read_timeout")
        return {name: self.options.library[name] for name in names if name in self.options.library}

    def _get(self, bucket: str, key: str, start: int = 0, end: int | None = None) -> bytes:
        length = None if end is None else end - start
        # Azure refuses a range of an empty blob, so a request for a whole blob names no range.
        part = {} if length is None and not start else {"offset": start, "length": length}
        data: bytes = self._blob(bucket, key).download_blob(**part, **self._timeouts).readall()
        return data

    def _get_end(self, bucket: str, key: str, length: int) -> tuple[bytes, int]:
        # Azure has no request for the end. The beginning of a small blob is the whole blob.
        try:
            answer = self._blob(bucket, key).download_blob(offset=0, length=length, **self._timeouts)
        except self.sdk_errors as e:
            if getattr(e, "status_code", None) == 416:
                return super()._get_end(bucket, key, length)
            raise
        if _is_directory(answer.properties):
            raise self.missing(key)
        data, size = answer.readall(), int(str(answer.properties.content_range).rpartition("/")[2])
        return (data, size) if size <= length else (self._get(bucket, key, size - length, size), size)

    def _find(self, bucket: str, key: str) -> FileMeta | None:
        properties = self._blob(bucket, key).get_blob_properties(**self._timeouts)
        return None if _is_directory(properties) else _meta(properties, key)

    def _page(
        self, bucket: str, prefix: str, start_key: str, token: str | None, *, recursive: bool
    ) -> tuple[list[FileMeta], str | None]:
        from azure.storage.blob import BlobPrefix

        client = self.client.get_container_client(bucket)
        options = {"name_starts_with": prefix or None, "results_per_page": self.page_objects, **self._timeouts}
        if start_key > prefix:
            options["start_from"] = start_key
        if recursive:
            # Only the metadata distinguishes blobs from the directories of a hierarchical namespace.
            listing = client.list_blobs(include=["metadata"], **options)
        else:
            listing = client.walk_blobs(delimiter="/", **options)
        pages = listing.by_page(continuation_token=token)
        blobs = [b for b in next(pages, ()) if not isinstance(b, BlobPrefix) and not _is_directory(b)]
        return [_meta(blob, blob.name) for blob in blobs], pages.continuation_token

    def _create(self, bucket: str, key: str, data: Content) -> FileMeta:
        return self._upload(bucket, key, data, overwrite=False)

    def _replace(self, bucket: str, key: str, data: Content) -> FileMeta:
        return self._upload(bucket, key, data, overwrite=True)

    def _upload(self, bucket: str, key: str, data: Content, **options: Sdk) -> FileMeta:
        size = len(data)
        answer = self._blob(bucket, key).upload_blob(data, length=size, **options, **self._timeouts)
        return FileMeta(key, size, int(answer["last_modified"].timestamp() * 1000))

    def _begin_parts(self, bucket: str, key: str) -> Sdk:
        return None

    def _send_part(self, bucket: str, key: str, upload: Sdk, number: int, part: bytes) -> Sdk:
        from azure.storage.blob import BlobBlock

        block_id = f"{number:08}"
        self._blob(bucket, key).stage_block(block_id, part, length=len(part), **self._timeouts)
        return BlobBlock(block_id)

    def _finish_parts(self, bucket: str, key: str, upload: Sdk, receipts: list[Sdk]) -> None:
        self._blob(bucket, key).commit_block_list(receipts, **self._timeouts)

    def _remove(self, bucket: str, key: str) -> None:
        self._blob(bucket, key).delete_blob(**self._timeouts)

    def _lacks_credentials(self, error: Exception) -> bool:
        from azure.core.exceptions import ClientAuthenticationError

        return isinstance(error, ClientAuthenticationError) and getattr(error, "status_code", None) is None

    def _answer(self, error: Exception) -> Answer | None:
        status, code = getattr(error, "status_code", None), getattr(error, "error_code", None)
        # An answer that cannot be decoded is no answer.
        if status is None or status < 400:
            return None
        return Answer(status, str(getattr(code, "value", None) or code or status))

    def hadoop_options(self) -> dict[str, str]:
        library, account = self.options.library, self.location.account
        host = f"{account}.dfs.{self.location.suffix}"
        hadoop: dict[str, str | None] = {}
        if key := library.get("account_key"):
            hadoop[f"fs.azure.account.auth.type.{host}"] = "SharedKey"
            hadoop[f"fs.azure.account.key.{host}"] = key
        elif token := library.get("sas_token"):
            hadoop[f"fs.azure.account.auth.type.{host}"] = "SAS"
            hadoop[f"fs.azure.sas.fixed.token.{host}"] = str(token).removeprefix("?")
        elif client_id := library.get("client_id"):
            tenant = library.get("tenant_id")
            hadoop[f"fs.azure.account.auth.type.{host}"] = "OAuth"
            hadoop[f"fs.azure.account.oauth.provider.type.{host}"] = (
                "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"
            )
            hadoop[f"fs.azure.account.oauth2.client.id.{host}"] = client_id
            hadoop[f"fs.azure.account.oauth2.client.secret.{host}"] = library.get("client_secret")
            hadoop[f"fs.azure.account.oauth2.client.endpoint.{host}"] = (
                f"https://login.microsoftonline.com/{tenant}/oauth2/token"
            )
        return {name: str(value) for name, value in hadoop.items() if value is not None}


def _with_environment(library: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
    """The options, completed by the `AZURE_STORAGE_…` variables of this process.

    Credentials among the options replace all credentials of the environment.
    """
    names = _ENVIRONMENT_OPTIONS
    if any(library.get(name) for name in _CREDENTIALS):
        names = names.difference(_CREDENTIALS)
    values = {name: os.environ.get(f"AZURE_STORAGE_{name.upper()}") for name in names}
    return {**{name: value for name, value in values.items() if value}, **library}


def _credential(options: Mapping[str, OptionValue], account: str) -> Sdk:
    """The credential for Azure's client; None for anonymous requests."""
    if key := options.get("account_key"):
        return {"account_name": account, "account_key": key}
    if sas_token := options.get("sas_token"):
        from azure.core.credentials import AzureSasCredential

        return AzureSasCredential(str(sas_token).removeprefix("?"))
    if client_id := options.get("client_id"):
        from azure.identity import ClientSecretCredential

        return ClientSecretCredential(options.get("tenant_id"), client_id, options.get("client_secret"))
    if str(options.get("anon")).lower() in ("true", "1", "t"):
        return None
    from azure.identity import DefaultAzureCredential

    return DefaultAzureCredential()


def _is_directory(blob: Sdk) -> bool:
    return (blob.metadata or {}).get("hdi_isfolder") == "true"


def _meta(blob: Sdk, name: str) -> FileMeta:
    return FileMeta(name, int(blob.size), int(blob.last_modified.timestamp() * 1000), etag=blob.etag)
