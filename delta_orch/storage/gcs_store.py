"""Tables on Google Cloud Storage (`delta-orch[gcs]`). Exclusive creation is an upload with `ifGenerationMatch=0`."""

from __future__ import annotations

import io
import json
import os
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from delta_orch.storage.base import FileMeta
from delta_orch.storage.failed_request import Answer
from delta_orch.storage.object_store import Content, ObjectStore, Sdk
from delta_orch.storage.patience import retry_seconds
from delta_orch.storage.storage_options import is_way_to_credential


class GcsStore(ObjectStore):
    """One prefix of one bucket, through Google's client."""

    label: ClassVar[str] = "GCS"
    part_option: ClassVar[str] = "block_size"
    repeats_parts: ClassVar[bool] = False
    credentials_remedy: ClassVar[str] = (
        "Set the storage option token (a key file, or google_default), "
        "or GOOGLE_APPLICATION_CREDENTIALS for this process"
    )

    def _connect(self) -> Sdk:
        from google.cloud import storage

        endpoint = self.options.library.get("endpoint_url")
        credentials, project = self._credentials()
        return storage.Client(
            project=self.options.library.get("project") or project or "none",
            credentials=credentials,
            client_options={"api_endpoint": endpoint} if endpoint else None,
        )

    def _credentials(self) -> tuple[Sdk, str | None]:
        """The credentials that the option `token` names, and their project. Without the option, those of the process;
        if the process has none, the requests are anonymous, as for a public bucket. Credentials that
        GOOGLE_APPLICATION_CREDENTIALS names, and that cannot be read, are an error."""
        import google.auth
        from google.auth import compute_engine
        from google.auth.credentials import AnonymousCredentials
        from google.auth.exceptions import DefaultCredentialsError
        from google.oauth2 import service_account
        from google.oauth2.credentials import Credentials

        token = self.options.library.get("token")
        scopes = [f"https://www.googleapis.com/auth/devstorage.{self.options.library.get('access', 'full_control')}"]
        if token in (None, "google_default"):
            try:
                credentials, project = google.auth.default(scopes=scopes)
            except DefaultCredentialsError:
                if token is not None or os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
                    raise
                return AnonymousCredentials(), None
            return credentials, project
        if token == "anon":
            return AnonymousCredentials(), None
        if token == "cloud":
            return compute_engine.Credentials(scopes=scopes), None
        # An access token may be longer than a file name can be: `Path.exists` would raise.
        if isinstance(token, str) and not is_way_to_credential(token) and not os.path.exists(token):  # noqa: PTH110
            return Credentials(token), None
        key = json.loads(Path(token).read_bytes()) if isinstance(token, str) else token
        make = Credentials.from_authorized_user_info
        if "private_key" in key:
            make = service_account.Credentials.from_service_account_info
        return make(key, scopes=scopes), key.get("project_id")

    def _sdk_errors(self) -> tuple[type[Exception], ...]:
        import requests
        from google.api_core.exceptions import GoogleAPIError
        from google.auth.exceptions import GoogleAuthError
        from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

        return (GoogleAPIError, GoogleAuthError, InvalidResponse, DataCorruption, requests.RequestException, OSError)

    @property
    def _once(self) -> dict[str, Sdk]:
        """Arguments of every request: `ObjectStore.call` decides about repetition, the user about the time-out."""
        timeout_s = self.options.library.get("requests_timeout")
        return {"retry": None} if timeout_s is None else {"retry": None, "timeout": timeout_s}

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
        blobs = self._bucket(bucket).list_blobs(
            prefix=prefix,
            delimiter=None if recursive else "/",
            start_offset=start_key if start_key > prefix else None,
            page_size=self.page_objects,
            page_token=token,
            **self._once,
        )
        page = next(iter(blobs.pages), ())
        return [_meta(blob) for blob in page], blobs.next_page_token

    def _create(self, bucket: str, key: str, data: Content) -> FileMeta:
        return self._upload(bucket, key, data, if_generation_match=0)

    def _replace(self, bucket: str, key: str, data: Content) -> FileMeta:
        return self._upload(bucket, key, data)

    def _upload(self, bucket: str, key: str, data: Content, **condition: int) -> FileMeta:
        blob = self._bucket(bucket).blob(key)
        size, file = len(data), io.BytesIO(data) if isinstance(data, bytes) else data
        blob.upload_from_file(file, rewind=True, size=size, **condition, **self._once)
        return _meta(blob)

    def _begin_parts(self, bucket: str, key: str) -> Sdk:
        from google.cloud.storage.fileio import BlobWriter
        from google.cloud.storage.retry import DEFAULT_RETRY

        class Writer(BlobWriter):  # type: ignore[misc]
            def __del__(self) -> None:
                """Do not finish the object: without `close`, its content is not complete."""

        # The writer keeps the place in its stream, so only the writer can send a part again.
        seconds = retry_seconds()
        options = {**self._once, "retry": DEFAULT_RETRY.with_timeout(seconds) if seconds else None}
        return Writer(self._bucket(bucket).blob(key), chunk_size=self.part_bytes, **options)

    def _send_part(self, bucket: str, key: str, upload: Sdk, number: int, part: bytes) -> Sdk:
        upload.write(part)

    def _finish_parts(self, bucket: str, key: str, upload: Sdk, receipts: list[Sdk]) -> None:
        upload.close()

    def _remove(self, bucket: str, key: str) -> None:
        self._bucket(bucket).blob(key).delete(**self._once)

    def _lacks_credentials(self, error: Exception) -> bool:
        from google.auth.exceptions import GoogleAuthError

        return isinstance(error, GoogleAuthError)

    def _answer(self, error: Exception) -> Answer | None:
        response = getattr(error, "response", None)
        status = str(getattr(error, "code", None) or getattr(response, "status_code", None) or "")
        # An answer with other bytes than its checksum (`DataCorruption`) is no answer.
        if not status.isdigit() or int(status) < 400:
            return None
        has_no_bucket = status == "404" and "bucket does not exist" in str(error).lower()
        return Answer(int(status), "NoSuchBucket" if has_no_bucket else status)

    def hadoop_options(self) -> dict[str, str]:
        library = self.options.library
        token = library.get("token")
        hadoop = {"fs.gs.project.id": library.get("project")}
        if token == "anon":
            hadoop["fs.gs.auth.type"] = "UNAUTHENTICATED"
        elif isinstance(token, str) and token.endswith(".json"):
            hadoop["fs.gs.auth.type"] = "SERVICE_ACCOUNT_JSON_KEYFILE"
            hadoop["fs.gs.auth.service.account.json.keyfile"] = token
        if endpoint := library.get("endpoint_url"):
            hadoop["fs.gs.storage.root.url"] = endpoint
        return {name: str(value) for name, value in hadoop.items() if value}


def _meta(blob: Sdk) -> FileMeta:
    updated: datetime = blob.updated
    return FileMeta(blob.name, int(blob.size), int(updated.timestamp() * 1000), etag=blob.etag)
