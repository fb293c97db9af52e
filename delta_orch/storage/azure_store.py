"""Tables on Azure Blob Storage and Data Lake Storage (`delta-orch[azure]`). Exclusive creation is an upload with
`If-None-Match: *`."""

from __future__ import annotations

import os
from functools import cache
from typing import ClassVar
from weakref import finalize

from delta_orch.storage.base import FileMeta
from delta_orch.storage.failed_request import Answer
from delta_orch.storage.object_store import Content, ObjectStore, Sdk
from delta_orch.storage.storage_options import PUBLIC_AZURE, ObjectLocation, OptionsSource, StoreOptions, account_of


class AzureStore(ObjectStore):
    """Azure lists names in UTF-16 order, which differs from code point order beyond U+FFFF. A log's names are ASCII."""

    label: ClassVar[str] = "Azure"
    credentials_remedy: ClassVar[str] = (
        "Check the storage options account_key, sas_token, connection_string or client_id and client_secret, "
        "or the AZURE_STORAGE_… variables of this process"
    )

    def __init__(self, location: ObjectLocation, options: StoreOptions | OptionsSource) -> None:
        # A catalog names the account in the location.
        named = location.with_account(account_of(options.library)) if isinstance(options, StoreOptions) else location
        super().__init__(named, options)

    def _connect(self) -> Sdk:
        from azure.storage.blob import BlobServiceClient

        filesystem = self.filesystem
        # What is to be tried again, and for how long, is `ObjectStore.call`'s to decide.
        once = {"retry_total": 0}
        if filesystem.connection_string is not None:
            return BlobServiceClient.from_connection_string(filesystem.connection_string, **once)
        credential = filesystem.sync_credential or filesystem.account_key or filesystem.sas_token
        return BlobServiceClient(filesystem.account_url, credential=credential, **once)

    def _connect_filesystem(self) -> Sdk:
        from adlfs import AzureBlobFileSystem

        library = dict(self.options.library)
        if self.location.account is not None and "connection_string" not in library:
            library.setdefault("account_name", self.location.account)
            if self.location.suffix != PUBLIC_AZURE:
                library.setdefault("account_host", f"{self.location.account}.blob.{self.location.suffix}")
        _leave_connections_to_the_parent()
        # Not everyone who may read and write blobs may also look at their container.
        library.setdefault("assume_container_exists", True)
        return AzureBlobFileSystem(
            **library, use_listings_cache=False, default_cache_type="none", default_fill_cache=False
        )

    def _sdk_errors(self) -> tuple[type[Exception], ...]:
        import aiohttp
        from azure.core.exceptions import AzureError
        from fsspec.exceptions import FSTimeoutError

        return (AzureError, aiohttp.ClientError, FSTimeoutError, OSError)

    def _blob(self, container: str, key: str) -> Sdk:
        return self.client.get_blob_client(container, key)

    @property
    def _timeouts(self) -> dict[str, Sdk]:
        """The user's, in seconds; the client has its own."""
        names = ("timeout", "connection_timeout", "read_timeout")
        return {name: self.options.library[name] for name in names if name in self.options.library}

    def _get(self, bucket: str, key: str, start: int = 0, end: int | None = None) -> bytes:
        length = None if end is None else end - start
        # A blob without content has no range to ask for; asked for as a whole it is answered.
        part = {} if length is None and not start else {"offset": start, "length": length}
        data: bytes = self._blob(bucket, key).download_blob(**part, **self._timeouts).readall()
        return data

    def _get_end(self, bucket: str, key: str, length: int) -> tuple[bytes, int]:
        # There is no request for the end. The beginning is all of a small blob.
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
        found = self._blob(bucket, key).get_blob_properties(**self._timeouts)
        return None if _is_directory(found) else _meta(found, key)

    def _page(
        self, bucket: str, prefix: str, start_key: str, token: str | None, *, recursive: bool
    ) -> tuple[list[FileMeta], str | None]:
        from azure.storage.blob import BlobPrefix

        client = self.client.get_container_client(bucket)
        options = {"name_starts_with": prefix or None, "results_per_page": self.page_objects, **self._timeouts}
        if start_key > prefix:
            options["start_from"] = start_key
        if recursive:
            # The metadata tells the directories of a hierarchical namespace from blobs.
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

    def _remove(self, bucket: str, key: str) -> None:
        self._blob(bucket, key).delete_blob(**self._timeouts)

    def _lacks_credentials(self, error: Exception) -> bool:
        from azure.core.exceptions import ClientAuthenticationError

        return isinstance(error, ClientAuthenticationError) and getattr(error, "status_code", None) is None

    def _answer(self, error: Exception) -> Answer | None:
        status, code = getattr(error, "status_code", None), getattr(error, "error_code", None)
        return None if status is None else Answer(status, str(getattr(code, "value", None) or code or status))

    def hadoop_options(self) -> dict[str, str]:
        library, account = self.options.library, self.location.account
        host = f"{account}.dfs.{self.location.suffix}"
        found: dict[str, str | None] = {}
        if key := library.get("account_key"):
            found[f"fs.azure.account.auth.type.{host}"] = "SharedKey"
            found[f"fs.azure.account.key.{host}"] = key
        elif token := library.get("sas_token"):
            found[f"fs.azure.account.auth.type.{host}"] = "SAS"
            found[f"fs.azure.sas.fixed.token.{host}"] = str(token).removeprefix("?")
        elif client_id := library.get("client_id"):
            tenant = library.get("tenant_id")
            found[f"fs.azure.account.auth.type.{host}"] = "OAuth"
            found[f"fs.azure.account.oauth.provider.type.{host}"] = (
                "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"
            )
            found[f"fs.azure.account.oauth2.client.id.{host}"] = client_id
            found[f"fs.azure.account.oauth2.client.secret.{host}"] = library.get("client_secret")
            found[f"fs.azure.account.oauth2.client.endpoint.{host}"] = (
                f"https://login.microsoftonline.com/{tenant}/oauth2/token"
            )
        return {name: str(value) for name, value in found.items() if value is not None}


@cache
def _leave_connections_to_the_parent() -> None:
    """adlfs closes its connections when the process ends, and waits for the thread that does it. A forked child has no
    such thread and would wait forever."""
    from adlfs import AzureBlobFileSystem

    def keep_open() -> None:
        for finalizer in list(getattr(finalize, "_registry", ())):
            watched = finalizer.peek()
            if watched is not None and isinstance(watched[0], AzureBlobFileSystem):
                finalizer.atexit = False

    os.register_at_fork(after_in_child=keep_open)


def _is_directory(blob: Sdk) -> bool:
    return (blob.metadata or {}).get("hdi_isfolder") == "true"


def _meta(blob: Sdk, name: str) -> FileMeta:
    return FileMeta(name, int(blob.size), int(blob.last_modified.timestamp() * 1000), etag=blob.etag)
