"""Tables on S3 and on servers that speak its protocol (`delta-orch[s3]`).

Exclusive creation is a PUT with `If-None-Match: *`. Amazon S3 supports it everywhere. Another endpoint may ignore the
condition and overwrite the object, so the first commit to it tests the condition.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import ClassVar

from delta_orch.errors import FileExistsInStoreError, UnsupportedStoreError
from delta_orch.storage.base import FileMeta
from delta_orch.storage.failed_request import Answer, Failure, FailureKind
from delta_orch.storage.object_store import Content, ObjectStore, Sdk, before
from delta_orch.storage.storage_options import ObjectLocation, OptionsSource, StoreOptions

_EXCLUSIVE: dict[tuple[str, str], bool] = {}
"""What trying out has shown, by endpoint and bucket."""

_LOGGER = logging.getLogger(__name__)
_CONNECTIONS = 32
_OF_AIOHTTP = ("connector_args", "http_session_cls")
_WITHOUT_CREDENTIALS = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "CredentialRetrievalError",
     "TokenRetrievalError", "UnauthorizedSSOTokenError", "SSOTokenLoadError"}
)  # fmt: skip


class S3Store(ObjectStore):
    label: ClassVar[str] = "S3"
    credentials_remedy: ClassVar[str] = (
        "Check the storage options key, secret and token, or the AWS_… variables or profile of this process"
    )

    def __init__(self, location: ObjectLocation, options: StoreOptions | OptionsSource) -> None:
        if location.bucket.endswith("--x-s3"):
            raise UnsupportedStoreError(
                f"Tables in S3 directory buckets are not supported: {location.uri}",
                cause="They list their objects in no order, and a Delta log is found by ordered listings",
                remedy="Use a general purpose bucket",
                uri=location.uri,
            )
        super().__init__(location, options)

    def _connect(self) -> Sdk:
        from botocore import UNSIGNED
        from botocore.config import Config
        from botocore.session import Session

        given = dict(self.options.library)
        config = {
            "connect_timeout": 5,
            "read_timeout": 15,
            "max_pool_connections": _CONNECTIONS,
            **{k: v for k, v in dict(given.get("config_kwargs") or {}).items() if k not in _OF_AIOHTTP},
            # What is to be tried again, and for how long, is `ObjectStore.call`'s to decide.
            "retries": {"total_max_attempts": 1},
        }
        if given.get("anon"):
            config["signature_version"] = UNSIGNED
        arguments = {
            "aws_access_key_id": given.get("key"),
            "aws_secret_access_key": given.get("secret"),
            "aws_session_token": given.get("token"),
            "endpoint_url": given.get("endpoint_url"),
            "use_ssl": given.get("use_ssl", True),
            **dict(given.get("client_kwargs") or {}),
        }
        return Session(profile=given.get("profile")).create_client("s3", config=Config(**config), **arguments)

    def _connect_filesystem(self) -> Sdk:
        from s3fs import S3FileSystem

        return S3FileSystem(
            **self.options.library, use_listings_cache=False, default_cache_type="none", default_fill_cache=False
        )

    def _sdk_errors(self) -> tuple[type[Exception], ...]:
        import aiohttp
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError
        from fsspec.exceptions import FSTimeoutError

        return BotoCoreError, ClientError, ResponseParserError, aiohttp.ClientError, FSTimeoutError, OSError

    def _request(self, operation: str, **arguments: Sdk) -> Sdk:
        """One operation of the S3 client."""
        given = self.options.library
        payer = {"RequestPayer": "requester"} if given.get("requester_pays") else {}
        every = {**dict(given.get("s3_additional_kwargs") or {}), **payer, **arguments}
        return getattr(self.client, operation)(**_accepted(self.client, operation, every))

    def _get(self, bucket: str, key: str, start: int = 0, end: int | None = None) -> bytes:
        part = {} if end is None and not start else {"Range": f"bytes={start}-{'' if end is None else end - 1}"}
        with self._request("get_object", Bucket=bucket, Key=key, **part)["Body"] as body:
            data: bytes = body.read()
        return data

    def _get_end(self, bucket: str, key: str, length: int) -> tuple[bytes, int]:
        try:
            answer = self._request("get_object", Bucket=bucket, Key=key, Range=f"bytes=-{length}")
        except self.sdk_errors as e:
            if _code_of(e) == "InvalidRange":
                # It is empty, or smaller than a server takes an end to be: its size tells.
                return super()._get_end(bucket, key, length)
            raise
        with answer["Body"] as body:
            data: bytes = body.read()
        # A server that knows no ranges sends everything.
        size = str(answer.get("ContentRange", "")).rpartition("/")[2]
        return data, int(size) if size.isdigit() else len(data)

    def _find(self, bucket: str, key: str) -> FileMeta | None:
        found = self._request("head_object", Bucket=bucket, Key=key)
        return FileMeta(key, int(found["ContentLength"]), _milliseconds(found["LastModified"]))

    def _page(
        self, bucket: str, prefix: str, start_key: str, token: str | None, *, recursive: bool
    ) -> tuple[list[FileMeta], str | None]:
        answer = self._request(
            "list_objects_v2",
            Bucket=bucket,
            Prefix=prefix,
            MaxKeys=self.page_objects,
            Delimiter=None if recursive else "/",
            StartAfter=before(start_key, prefix) or None,
            ContinuationToken=token,
        )
        objects = answer.get("Contents", ())
        found = [
            FileMeta(o["Key"], int(o["Size"]), _milliseconds(o["LastModified"]), etag=o.get("ETag")) for o in objects
        ]
        return found, answer.get("NextContinuationToken")

    def _create(self, bucket: str, key: str, data: Content) -> FileMeta:
        return self._written(bucket, key, self._put(bucket, key, data, IfNoneMatch="*"), len(data))

    def _replace(self, bucket: str, key: str, data: Content) -> FileMeta:
        return self._written(bucket, key, self._put(bucket, key, data), len(data))

    def _put_data(self, bucket: str, key: str, data: Content) -> None:
        self._put(bucket, key, data)

    def _put(self, bucket: str, key: str, data: Content, **condition: str) -> Sdk:
        return self._request("put_object", Bucket=bucket, Key=key, Body=data, **condition)

    def _written(self, bucket: str, key: str, answer: Sdk, size: int) -> FileMeta:
        """S3 does not return an object's time with a PUT. The object exists even if the request for its time fails."""
        try:
            found = self._find(bucket, key)
        except self.sdk_errors:
            found = None
        if found is not None and found.size == size:
            return found
        date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        return FileMeta(key, size, _milliseconds(parsedate_to_datetime(date)) if date else int(time.time()) * 1000)

    def _remove(self, bucket: str, key: str) -> None:
        self._request("delete_object", Bucket=bucket, Key=key)

    def _is_exclusive(self) -> bool:
        endpoint = self._endpoint()
        if endpoint is None:
            return True
        place = (endpoint, self.location.bucket)
        known = _EXCLUSIVE.get(place)
        if known is None:
            known = _EXCLUSIVE[place] = self._try_exclusive()
        return known

    def _endpoint(self) -> str | None:
        """The address of an S3 that is not Amazon's own; None for that."""
        given = self.options.library
        configured = (
            given.get("endpoint_url")
            or dict(given.get("client_kwargs") or {}).get("endpoint_url")
            or os.environ.get("AWS_ENDPOINT_URL_S3")
            or os.environ.get("AWS_ENDPOINT_URL")
        )
        host = str(configured or "").partition("://")[2].partition("/")[0].partition(":")[0]
        return None if not host or host.endswith((".amazonaws.com", ".amazonaws.com.cn")) else str(configured)

    def _try_exclusive(self) -> bool:
        """Whether an object cannot be created twice. Its name is new, so no existing object is at risk."""
        bucket, key = self.location.bucket, self._key(f"_delta_log/.exclusive-create-{uuid.uuid4()}.tmp")

        def create() -> None:
            try:
                self._put(bucket, key, b"1", IfNoneMatch="*")
            except self.sdk_errors as e:
                if _code_of(e) not in ("NotImplemented", "501"):
                    raise

        try:
            for _ in range(2):
                self.call("write to", self.root, create)
        except FileExistsInStoreError:
            return True
        finally:
            self._remove_trial(bucket, key)
        return False

    def _remove_trial(self, bucket: str, key: str) -> None:
        try:
            self._remove(bucket, key)
        except self.sdk_errors as e:
            # A writer may lack the right to delete. Readers ignore such names.
            _LOGGER.debug("Could not delete %s: %s", key, type(e).__name__)

    def _lacks_credentials(self, error: Exception) -> bool:
        return type(error).__name__ in _WITHOUT_CREDENTIALS

    def _failure(self, error: Exception) -> Failure:
        from botocore.exceptions import BotoCoreError, ConnectionError, HTTPClientError

        is_of_request = isinstance(error, BotoCoreError) and not isinstance(error, ConnectionError | HTTPClientError)
        if is_of_request and not self._lacks_credentials(error):
            # botocore objects to parameters, endpoints and regions before it sends anything.
            cause = f"botocore cannot make the request ({type(error).__name__})"
            return Failure(FailureKind.REFUSED, cause, "Check the storage options")
        return super()._failure(error)

    def _answer(self, error: Exception) -> Answer | None:
        code = _code_of(error)
        if code is None:
            return None
        response = _response_of(error)
        if code == "NoSuchKey" and getattr(error, "operation_name", None) == "PutObject":
            code = "ConditionalRequestConflict"  # The object was deleted at the same time.
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return Answer(500 if status is None or code == "InternalError" else status, code)

    def hadoop_options(self) -> dict[str, str]:
        library = self.options.library
        endpoint = library.get("endpoint_url")
        region = dict(library.get("client_kwargs") or {}).get("region_name")
        addressing = dict(dict(library.get("config_kwargs") or {}).get("s3") or {}).get("addressing_style")
        found = {
            "fs.s3a.access.key": library.get("key"),
            "fs.s3a.secret.key": library.get("secret"),
            "fs.s3a.session.token": library.get("token"),
            "fs.s3a.endpoint": endpoint,
            "fs.s3a.endpoint.region": region,
            "fs.s3a.path.style.access": "true" if addressing == "path" or (endpoint and addressing is None) else None,
            "fs.s3a.connection.ssl.enabled": "false" if str(endpoint or "").startswith("http://") else None,
            "fs.s3a.requester.pays.enabled": "true" if library.get("requester_pays") else None,
        }
        if library.get("anon"):
            found["fs.s3a.aws.credentials.provider"] = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
        elif library.get("token"):
            found["fs.s3a.aws.credentials.provider"] = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
        return {name: str(value) for name, value in found.items() if value is not None}


def _accepted(client: Sdk, operation: str, arguments: Mapping[str, Sdk]) -> dict[str, Sdk]:
    """The arguments that an operation has: options such as encryption are given for all of them."""
    model = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[operation])
    return {name: value for name, value in arguments.items() if name in model.input_shape.members and value is not None}


def _response_of(error: BaseException) -> Mapping[str, Sdk]:
    """What S3 has answered, as botocore reads it. s3fs puts errors of its own around it."""
    response = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
    return response if isinstance(response, Mapping) else {}


def _code_of(error: BaseException) -> str | None:
    response = _response_of(error)
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return str(response.get("Error", {}).get("Code") or status) if response else None


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
