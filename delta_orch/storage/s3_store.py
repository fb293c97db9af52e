"""Tables on S3 and on servers that speak its protocol (`delta-orch[s3]`).

Exclusive creation is a PUT with `If-None-Match: *`. Amazon S3 supports the condition everywhere. Another endpoint may
ignore it and overwrite the object, so the first commit to such an endpoint tests the condition.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import ClassVar
from urllib.parse import urlsplit

from delta_orch.errors import FileExistsInStoreError, UnsupportedStoreError
from delta_orch.storage.base import FileMeta
from delta_orch.storage.failed_request import Answer, Failure, FailureKind
from delta_orch.storage.object_store import Content, ObjectStore, Sdk, before
from delta_orch.storage.storage_options import ObjectLocation, OptionsSource, StoreOptions

_EXCLUSIVE: dict[tuple[str, str], bool] = {}
"""Whether creation is exclusive, by endpoint and bucket: the results of the tests of this process."""

_LOGGER = logging.getLogger(__name__)
_CONNECTIONS = 32
_AIOHTTP_OPTIONS = ("connector_args", "http_session_cls")
"""Options of s3fs in `config_kwargs` that botocore does not have."""
_CREDENTIAL_ERRORS = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "CredentialRetrievalError",
     "TokenRetrievalError", "UnauthorizedSSOTokenError", "SSOTokenLoadError"}
)  # fmt: skip


class S3Store(ObjectStore):
    """One prefix of one bucket, through botocore."""

    label: ClassVar[str] = "S3"
    part_option: ClassVar[str] = "default_block_size"
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

        options = self.options.library
        config = {
            "connect_timeout": 5,
            "read_timeout": 15,
            "max_pool_connections": _CONNECTIONS,
            **{k: v for k, v in dict(options.get("config_kwargs") or {}).items() if k not in _AIOHTTP_OPTIONS},
            # `ObjectStore.call` decides which requests are repeated, and for how long.
            "retries": {"total_max_attempts": 1},
        }
        if options.get("anon"):
            config["signature_version"] = UNSIGNED
        arguments = {
            "aws_access_key_id": options.get("key"),
            "aws_secret_access_key": options.get("secret"),
            "aws_session_token": options.get("token"),
            "endpoint_url": options.get("endpoint_url"),
            "use_ssl": options.get("use_ssl", True),
            **dict(options.get("client_kwargs") or {}),
        }
        return Session(profile=options.get("profile")).create_client("s3", config=Config(**config), **arguments)

    def _sdk_errors(self) -> tuple[type[Exception], ...]:
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        return BotoCoreError, ClientError, ResponseParserError, OSError

    def _request(self, operation: str, **arguments: Sdk) -> Sdk:
        """Call one operation of the S3 client."""
        options = self.options.library
        payer = {"RequestPayer": "requester"} if options.get("requester_pays") else {}
        shared = _accepted(self.client, operation, {**dict(options.get("s3_additional_kwargs") or {}), **payer})
        # A release of botocore that does not know a condition must refuse the request, so our own stay as they are.
        own = {name: value for name, value in arguments.items() if value is not None}
        return getattr(self.client, operation)(**{**shared, **own})

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
                # The object is empty, or some server refuses a range that is longer than the object.
                return super()._get_end(bucket, key, length)
            raise
        with answer["Body"] as body:
            data: bytes = body.read()
        # A server that does not support ranges sends the whole object.
        size = str(answer.get("ContentRange", "")).rpartition("/")[2]
        return data, int(size) if size.isdigit() else len(data)

    def _find(self, bucket: str, key: str) -> FileMeta | None:
        answer = self._request("head_object", Bucket=bucket, Key=key)
        return FileMeta(key, int(answer["ContentLength"]), _milliseconds(answer["LastModified"]))

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
        page = [
            FileMeta(o["Key"], int(o["Size"]), _milliseconds(o["LastModified"]), etag=o.get("ETag")) for o in objects
        ]
        return page, answer.get("NextContinuationToken")

    def _create(self, bucket: str, key: str, data: Content) -> FileMeta:
        return self._written(bucket, key, self._put(bucket, key, data, IfNoneMatch="*"), len(data))

    def _replace(self, bucket: str, key: str, data: Content) -> FileMeta:
        return self._written(bucket, key, self._put(bucket, key, data), len(data))

    def _put_data(self, bucket: str, key: str, data: Content) -> None:
        self._put(bucket, key, data)

    @property
    def _checksum_algorithm(self) -> str | None:
        """The algorithm of the checksums that botocore adds to parts; None if it adds none. S3 may refuse a part with a
        checksum that its upload does not announce."""
        algorithm = dict(self.options.library.get("s3_additional_kwargs") or {}).get("ChecksumAlgorithm")
        if algorithm is None and self.client.meta.config.request_checksum_calculation == "when_supported":
            algorithm = "CRC32"
        return algorithm

    def _begin_parts(self, bucket: str, key: str) -> Sdk:
        algorithm = self._checksum_algorithm
        answer = self._request("create_multipart_upload", Bucket=bucket, Key=key, ChecksumAlgorithm=algorithm)
        return answer["UploadId"]

    def _send_part(self, bucket: str, key: str, upload: Sdk, number: int, part: bytes) -> Sdk:
        place = {"Bucket": bucket, "Key": key, "UploadId": upload, "PartNumber": number}
        algorithm = self._checksum_algorithm
        answer = self._request("upload_part", **place, Body=part, ChecksumAlgorithm=algorithm)
        proofs = {name: answer[name] for name in ("ETag", f"Checksum{algorithm}") if name in answer}
        return {**proofs, "PartNumber": number}

    def _finish_parts(self, bucket: str, key: str, upload: Sdk, receipts: list[Sdk]) -> None:
        parts = {"Parts": receipts}
        self._request("complete_multipart_upload", Bucket=bucket, Key=key, UploadId=upload, MultipartUpload=parts)

    def _discard_parts(self, bucket: str, key: str, upload: Sdk) -> None:
        self._request("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload)

    def _put(self, bucket: str, key: str, data: Content, **condition: str) -> Sdk:
        return self._request("put_object", Bucket=bucket, Key=key, Body=data, **condition)

    def _written(self, bucket: str, key: str, answer: Sdk, size: int) -> FileMeta:
        """Describe a new object. S3 does not return the time of an object with a PUT, so this asks for it.

        The object exists even if that request fails.
        """
        try:
            written = self._find(bucket, key)
        except self.sdk_errors:
            written = None
        if written is not None and written.size == size:
            return written
        date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        return FileMeta(key, size, _milliseconds(parsedate_to_datetime(date)) if date else int(time.time()) * 1000)

    def _remove(self, bucket: str, key: str) -> None:
        self._request("delete_object", Bucket=bucket, Key=key)

    def _is_exclusive(self) -> bool:
        endpoint = self._endpoint()
        if endpoint is None:
            return True
        place = (endpoint, self.location.bucket)
        if place not in _EXCLUSIVE:
            _EXCLUSIVE[place] = self._test_exclusive()
        return _EXCLUSIVE[place]

    def _endpoint(self) -> str | None:
        """The address of an endpoint that is not Amazon's; None for Amazon S3. The client knows it: options, the
        environment and the configuration files of AWS can each set it."""
        address = str(self.client.meta.endpoint_url)
        host = urlsplit(address).hostname or ""
        return None if host.endswith((".amazonaws.com", ".amazonaws.com.cn")) else address

    def _test_exclusive(self) -> bool:
        """Create one object twice: whether the endpoint refuses the second time. The name is new, so no data is at
        risk."""
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
            try:
                self._remove(bucket, key)
            except self.sdk_errors as e:
                # A writer may lack the right to delete. Readers ignore such names.
                _LOGGER.debug("Could not delete %s: %s", key, type(e).__name__)
        return False

    def _lacks_credentials(self, error: Exception) -> bool:
        return type(error).__name__ in _CREDENTIAL_ERRORS

    def _failure(self, error: Exception) -> Failure:
        from botocore.exceptions import (
            BotoCoreError,
            ConnectionError,
            FlexibleChecksumError,
            HTTPClientError,
            IncompleteReadError,
        )

        is_of_answer = isinstance(
            error, ConnectionError | HTTPClientError | IncompleteReadError | FlexibleChecksumError
        )
        is_of_request = isinstance(error, BotoCoreError) and not is_of_answer
        if is_of_request and not self._lacks_credentials(error):
            # botocore checks parameters, endpoints and regions before it sends a request.
            cause = f"botocore cannot make the request ({type(error).__name__})"
            return Failure(FailureKind.REFUSED, cause, "Check the storage options")
        return super()._failure(error)

    def _answer(self, error: Exception) -> Answer | None:
        code = _code_of(error)
        if code is None:
            return None
        response = _response_of(error)
        if code == "NoSuchKey" and getattr(error, "operation_name", None) == "PutObject":
            code = "ConditionalRequestConflict"  # Another client deleted the object at the same time.
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return Answer(500 if status is None or code == "InternalError" else status, code)

    def hadoop_options(self) -> dict[str, str]:
        library = self.options.library
        endpoint = library.get("endpoint_url")
        region = dict(library.get("client_kwargs") or {}).get("region_name")
        addressing = dict(dict(library.get("config_kwargs") or {}).get("s3") or {}).get("addressing_style")
        hadoop = {
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
            hadoop["fs.s3a.aws.credentials.provider"] = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
        elif library.get("token"):
            hadoop["fs.s3a.aws.credentials.provider"] = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
        return {name: str(value) for name, value in hadoop.items() if value is not None}


def _accepted(client: Sdk, operation: str, arguments: Mapping[str, Sdk]) -> dict[str, Sdk]:
    """Select the arguments that an operation has. Users set options such as encryption for all operations."""
    model = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[operation])
    return {name: value for name, value in arguments.items() if name in model.input_shape.members and value is not None}


def _response_of(error: BaseException) -> Mapping[str, Sdk]:
    """The answer of S3 as botocore parsed it; empty without an answer."""
    response = getattr(error, "response", None)
    return response if isinstance(response, Mapping) else {}


def _code_of(error: BaseException) -> str | None:
    """The error code of S3, or the HTTP status; None without an answer."""
    response = _response_of(error)
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return str(response.get("Error", {}).get("Code") or status) if response else None


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
