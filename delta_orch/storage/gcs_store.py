"""Tables on Google Cloud Storage (`delta-orch[gcs]`). Exclusive creation is an upload with `ifGenerationMatch=0`."""

from __future__ import annotations

import io
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from delta_orch.storage.base import FileMeta
from delta_orch.storage.failed_request import Answer
from delta_orch.storage.object_store import Content, ObjectStore, Sdk
from delta_orch.storage.storage_options import is_way_to_credential


class GcsStore(ObjectStore):
    """gcsfs knows the credentials and carries the data files; Google's own client makes the requests of a commit."""

    label: ClassVar[str] = "GCS"
    credentials_remedy: ClassVar[str] = (
        "Set the storage option token (a key file, or google_default), "
        "or GOOGLE_APPLICATION_CREDENTIALS for this process"
    )

    def _connect(self) -> Sdk:
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import storage

        endpoint = self.options.library.get("endpoint_url")
        credentials = self.filesystem.credentials.credentials
        return storage.Client(
            project=self.filesystem.project or "none",
            credentials=AnonymousCredentials() if credentials is None else credentials,
            client_options={"api_endpoint": endpoint} if endpoint else None,
        )

    def _connect_filesystem(self) -> Sdk:
        # Not the extended class that `gcsfs.GCSFileSystem` may be: it asks about each bucket over gRPC, first.
        from gcsfs.core import GCSFileSystem
        from google.oauth2.credentials import Credentials

        library = dict(self.options.library)
        token = library.get("token")
        if isinstance(token, str) and not is_way_to_credential(token) and not Path(token).exists():
            # gcsfs would ask Google how long it is valid. Whoever gave it knows.
            library["token"] = Credentials(token)
        return GCSFileSystem(**library, use_listings_cache=False)

    def _sdk_errors(self) -> tuple[type[Exception], ...]:
        import aiohttp
        import requests
        from fsspec.exceptions import FSTimeoutError
        from gcsfs.retry import HttpError
        from google.api_core.exceptions import GoogleAPIError
        from google.auth.exceptions import GoogleAuthError
        from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

        return (
            GoogleAPIError, GoogleAuthError, InvalidResponse, DataCorruption, requests.RequestException, HttpError,
            aiohttp.ClientError, FSTimeoutError, OSError,
        )  # fmt: skip

    @property
    def _once(self) -> dict[str, Sdk]:
        """How each request is made: once, as `ObjectStore.call` decides what is tried again; with the user's time-out
        in seconds, where there is one."""
        given = self.options.library.get("requests_timeout")
        return {"retry": None} if given is None else {"retry": None, "timeout": given}

    def _bucket(self, name: str) -> Sdk:
        payer = self.options.library.get("requester_pays")
        project = payer if isinstance(payer, str) and payer.lower() != "true" else self.client.project
        return self.client.bucket(name, user_project=project if payer else None)

    def _get(self, bucket: str, key: str, start: int = 0, end: int | None = None) -> bytes:
        blob = self._bucket(bucket).blob(key)
        last = None if end is None else end - 1
        data: bytes = blob.download_as_bytes(start=start or None, end=last, **self._once)
        return data

    def _find(self, bucket: str, key: str) -> FileMeta | None:
        blob = self._bucket(bucket).get_blob(key, **self._once)
        return None if blob is None else _meta(blob)

    def _page(
        self, bucket: str, prefix: str, start_key: str, token: str | None, *, recursive: bool
    ) -> tuple[list[FileMeta], str | None]:
        found = self._bucket(bucket).list_blobs(
            prefix=prefix,
            delimiter=None if recursive else "/",
            start_offset=start_key if start_key > prefix else None,
            page_size=self.page_objects,
            page_token=token,
            **self._once,
        )
        page = next(iter(found.pages), ())
        return [_meta(blob) for blob in page], found.next_page_token

    def _create(self, bucket: str, key: str, data: Content) -> FileMeta:
        return self._upload(bucket, key, data, if_generation_match=0)

    def _replace(self, bucket: str, key: str, data: Content) -> FileMeta:
        return self._upload(bucket, key, data)

    def _upload(self, bucket: str, key: str, data: Content, **condition: int) -> FileMeta:
        blob = self._bucket(bucket).blob(key)
        size, file = len(data), io.BytesIO(data) if isinstance(data, bytes) else data
        blob.upload_from_file(file, rewind=True, size=size, **condition, **self._once)
        return _meta(blob)

    def _remove(self, bucket: str, key: str) -> None:
        self._bucket(bucket).blob(key).delete(**self._once)

    def _lacks_credentials(self, error: Exception) -> bool:
        from google.auth.exceptions import GoogleAuthError

        return isinstance(error, GoogleAuthError)

    def _answer(self, error: Exception) -> Answer | None:
        status = str(getattr(error, "code", None) or "")
        if not status.isdigit():
            return None
        has_no_bucket = status == "404" and "bucket does not exist" in str(error).lower()
        return Answer(int(status), "NoSuchBucket" if has_no_bucket else status)

    def hadoop_options(self) -> dict[str, str]:
        library = self.options.library
        token = library.get("token")
        found = {"fs.gs.project.id": library.get("project")}
        if token == "anon":
            found["fs.gs.auth.type"] = "UNAUTHENTICATED"
        elif isinstance(token, str) and token.endswith(".json"):
            found["fs.gs.auth.type"] = "SERVICE_ACCOUNT_JSON_KEYFILE"
            found["fs.gs.auth.service.account.json.keyfile"] = token
        if endpoint := library.get("endpoint_url"):
            found["fs.gs.storage.root.url"] = endpoint
        return {name: str(value) for name, value in found.items() if value}


def _meta(blob: Sdk) -> FileMeta:
    updated: datetime = blob.updated
    return FileMeta(blob.name, int(blob.size), int(updated.timestamp() * 1000), etag=blob.etag)
