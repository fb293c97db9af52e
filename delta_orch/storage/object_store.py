"""Tables in the object stores of clouds: what S3, GCS and Azure have in common.

An object appears whole, under a name that only looks like a path. Every request goes through the client of the cloud:
botocore, google-cloud-storage or azure-storage-blob. fsspec's file systems of these stores (s3fs, gcsfs, adlfs) can
create exclusively, too, but a log cannot use them. Measured with s3fs 2026.9, gcsfs 2026.10 and adlfs 2026.8:

- `info` of a missing file takes two requests (S3, Azure) or three (GCS). Each open and each poll ends with one. `ls`
  cannot begin at a name, so an open would list the whole log.
- After a 500, adlfs waits 15 to 20 seconds before it repeats a request, and gcsfs repeats it for 30 seconds. No option
  changes that. Here `retry_seconds` decides.
- aiohttp, below all three, repeats a PUT if a kept connection breaks. If the new connection is refused, the error says
  so, although the first request may have taken effect. A commit would be reported as not made.

Data files do not need them either: 160 MB in pieces are written to the emulators in half the time (GCS) or 0.85 of it
(Azure), and in the same time on S3.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import mmap
import os
import posixpath
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from delta_orch.errors import (
    DeltaError,
    FileExistsInStoreError,
    FileMissingInStoreError,
    StorageError,
    StorageOutcomeUnknownError,
)
from delta_orch.protocol.paths import resolve_data_path
from delta_orch.storage.base import FileMeta, FlatStore
from delta_orch.storage.external_paths import in_another_store, lies_in, outside, place_of
from delta_orch.storage.failed_request import (
    Answer,
    Failure,
    FailureKind,
    failure_of_answer,
    failure_without_answer,
    missing_bucket,
)
from delta_orch.storage.log_redaction import hide_in_logs, shows_secret
from delta_orch.storage.patience import Patience
from delta_orch.storage.storage_options import (
    ObjectLocation,
    OptionsSource,
    StoreOptions,
    parse_location,
    read_only,
)

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs

T = TypeVar("T")
Sdk = Any
"""An object from the libraries of a store, or a value for them. They have no types."""

_ENVIRONMENT = ("AWS_", "AZURE_", "GOOGLE_", "GCSFS_", "GCLOUD_", "STORAGE_EMULATOR_HOST", "HTTP", "http", "no_proxy")
_MOST_CLIENTS = 64
_CLIENTS: dict[tuple[int, type, str], Sdk] = {}
"""Clients by process, kind of store and options. It needs no lock, because single operations of a dict are atomic."""

_LOGGER = logging.getLogger(__name__)

Content = bytes | mmap.mmap
"""The content of an object. Every attempt reads a mapped file from its beginning."""

_COMMIT = re.compile(r"(^|/)_delta_log/\d{20}\.json$")
_LARGE_BYTES = 8 * 1024 * 1024
_PART_BYTES, _LEAST_PART_BYTES, _PART_STEP = 32 << 20, 5 << 20, 256 << 10
"""The default size of a part; the least size that S3 allows; sizes are multiples of this on GCS."""


class ObjectStore(FlatStore):
    """One prefix of one bucket or container.

    A client is made at first use and shared by all tables of the process with the same options. A forked child makes
    its own.

    Args:
        location: The table's root.
        options: Options of the store, or a source that knows the options of each moment.
    """

    label: ClassVar[str]
    """The store in error messages."""

    credentials_remedy: ClassVar[str]
    """Where users of the store set credentials."""

    part_option: ClassVar[str]
    """The storage option that sets the size of the parts of a large file, in bytes."""

    repeats_parts: ClassVar[bool] = True
    """Whether a part may be sent again after a failure. Otherwise the client itself repeats it."""

    page_objects = 1000
    """How many objects one request lists."""

    def __init__(self, location: ObjectLocation, options: StoreOptions | OptionsSource) -> None:
        self.location = location
        self.uri = location.uri
        self.root = location.fsspec_path
        self._source = options if isinstance(options, OptionsSource) else None
        self._options = options if isinstance(options, StoreOptions) else None
        self._options_key: tuple[StoreOptions, str] | None = None
        if self._options is not None:
            hide_in_logs(self._options.secrets)

    @property
    def options(self) -> StoreOptions:
        """The options of now. Raises StorageError where a source of them fails."""
        if self._source is not None and (newest := self._source.current()) is not self._options:
            hide_in_logs(newest.secrets)
            self._options = newest
        assert self._options is not None
        return self._options

    def __getstate__(self) -> dict[str, Sdk]:
        # What was made here stays here: another process connects for itself.
        options = self._options if self._source is None else self._source
        return {"location": self.location, "options": options, "external_paths": self.external_paths}

    def __setstate__(self, state: dict[str, Sdk]) -> None:
        ObjectStore.__init__(self, state["location"], state["options"])
        self.external_paths = state["external_paths"]

    # Requests of each kind of store. They raise the errors of the client.

    @abstractmethod
    def _connect(self) -> Sdk:
        """Make a client that threads may share and that makes each request once. Raises the errors of the library for
        options that it cannot use, or DeltaError."""

    @abstractmethod
    def _sdk_errors(self) -> tuple[type[Exception], ...]:
        """The errors that requests of the client raise."""

    @abstractmethod
    def _get(self, bucket: str, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Read the bytes from `start` to before `end`."""

    def _get_end(self, bucket: str, key: str, length: int) -> tuple[bytes, int]:
        """Read the last bytes, `length` at most, and the size of the object."""
        meta = self._find(bucket, key)
        if meta is None:
            raise self.missing(key)
        data = self._get(bucket, key, max(0, meta.size - length), meta.size) if meta.size else b""
        return data, meta.size

    @abstractmethod
    def _find(self, bucket: str, key: str) -> FileMeta | None:
        """Make one metadata request. The `path` of the result is the key."""

    @abstractmethod
    def _page(
        self, bucket: str, prefix: str, start_key: str, token: str | None, *, recursive: bool
    ) -> tuple[list[FileMeta], str | None]:
        """Make one request of a listing. Returns the objects, and the token of the next page.

        The listing is ascending, of keys that begin with `prefix` and are not much less than `start_key`. Unless it is
        `recursive`, it omits keys with another `/` behind the prefix. The `path` of an object is its key.
        """

    @abstractmethod
    def _create(self, bucket: str, key: str, data: Content) -> FileMeta:
        """Create the object by one request, on the condition that it does not exist."""

    @abstractmethod
    def _replace(self, bucket: str, key: str, data: Content) -> FileMeta:
        """Create or replace the object."""

    def _put_data(self, bucket: str, key: str, data: Content) -> None:
        """Like `_replace`, without the time of the object."""
        self._replace(bucket, key, data)

    @abstractmethod
    def _begin_parts(self, bucket: str, key: str) -> Sdk:
        """Begin an object that is sent in parts. Returns the upload. The object appears at `_finish_parts`."""

    @abstractmethod
    def _send_part(self, bucket: str, key: str, upload: Sdk, number: int, part: bytes) -> Sdk:
        """Send part `number`, counted from 1. Every part except the last has `part_bytes`. Returns a receipt."""

    @abstractmethod
    def _finish_parts(self, bucket: str, key: str, upload: Sdk, receipts: list[Sdk]) -> None:
        """Create or replace the object from all parts."""

    def _discard_parts(self, bucket: str, key: str, upload: Sdk) -> None:
        """Discard the parts of an object that will not be finished. By default do nothing: GCS and Azure discard them
        after a week, and do not charge for them."""

    @abstractmethod
    def _remove(self, bucket: str, key: str) -> None:
        """Delete the object. A missing object is no error."""

    @abstractmethod
    def _answer(self, error: Exception) -> Answer | None:
        """The answer of the store that an error of `sdk_errors` holds; None if the store did not answer."""

    @abstractmethod
    def _lacks_credentials(self, error: Exception) -> bool:
        """Whether an error means that there are no credentials for a request."""

    def _is_exclusive(self) -> bool:
        """Whether `_create` is exclusive. An unknown endpoint is tested. Raises StorageError."""
        return True

    # The store

    def read_bytes(self, path: str) -> bytes:
        return self.call("read", self._full(path), lambda: self._get(self.location.bucket, self._key(path)))

    def open_input(self, path: str) -> pa.NativeFile:
        from delta_orch.storage.arrow_filesystem import open_object

        return open_object(self, self._full(path))

    def ensure_can_commit(self) -> None:
        if not self.options.single_writer and not self._is_exclusive():
            cause = f"This {self.label} endpoint ignores the condition that an object must not exist yet"
            raise read_only(self.uri, self.label, cause)

    def put_if_absent(self, path: str, data: bytes | memoryview) -> FileMeta:
        self.ensure_can_commit()
        bucket, full, key = self.location.bucket, self._full(path), self._key(path)
        create = self._create
        if self.options.single_writer and not self._is_exclusive():
            if self.head(path) is not None:
                raise FileExistsInStoreError(f"{self._shown(full)} exists already", path=path)
            create = self._replace
        requests = 0

        def request() -> FileMeta:
            nonlocal requests
            requests += 1
            return create(bucket, key, content_of(data))

        # The commit loop must know who wrote a commit. Any other file with the same content is the file to create.
        is_commit = _COMMIT.search(path) is not None
        try:
            written = self.call("create", full, request, may_change=True, may_repeat=not is_commit)
        except FileExistsInStoreError:
            if is_commit or requests == 1 or self.read_bytes(path) != data or (meta := self.head(path)) is None:
                raise
            return meta  # An earlier request took effect, and its answer was lost.
        return FileMeta(path, len(data), written.modification_time_ms)

    def put(self, path: str, data: bytes) -> FileMeta:
        bucket, key = self.location.bucket, self._key(path)
        rewrite = partial(self._replace, bucket, key, data)
        # A repeated request may replace a newer hint. Readers look for newer files than the hint names.
        written = self.call("write", self._full(path), rewrite, may_change=True, may_repeat=True)
        return FileMeta(path, len(data), written.modification_time_ms)

    def data_filesystem(self) -> tuple[pafs.FileSystem, str]:
        from delta_orch.storage.arrow_filesystem import object_filesystem

        return object_filesystem(self), self.root

    def resolve(self, log_path: str) -> str:
        path = resolve_data_path(self.root, log_path)
        if path.startswith("/"):
            full = self.location.bucket + path
        elif "://" not in log_path:
            return path
        else:
            place = parse_location(path)
            if (
                place is None
                or place.kind is not self.location.kind
                or self._account_of(place) != self.location.account
            ):
                raise in_another_store(self.uri, log_path)
            full = place.fsspec_path
        self._ensure_allowed(full)
        return full

    def _ensure_allowed(self, full: str) -> None:
        """Check that a full path lies in the bucket, or in a place that the user allowed."""
        inside = posixpath.normpath(full)
        if self.external_paths is None:
            if lies_in(inside, [self.location.bucket]):
                return
        elif lies_in(inside, [self.root]):
            return
        bucket, _, key = inside.partition("/")
        place = replace(self.location, bucket=bucket, key=key).uri
        if not lies_in(place_of(place), self.external_paths or ()):
            raise outside(self.uri, place)

    def _account_of(self, place: ObjectLocation) -> str | None:
        # If a table does not name its account, any account counts as its account.
        return place.account if self.location.account is not None else None

    # Objects by `bucket/key`, as in the data file system

    def find_object(self, full: str) -> FileMeta | None:
        bucket, _, key = full.partition("/")
        try:
            return self.call("look at", full, lambda: self._find(bucket, key)) if key else None
        except FileMissingInStoreError:
            return None

    def read_object(self, full: str, start: int, end: int) -> bytes:
        bucket, _, key = full.partition("/")
        return self.call("read", full, lambda: self._get(bucket, key, start, end))

    def read_end(self, full: str, length: int) -> tuple[bytes, int]:
        bucket, _, key = full.partition("/")
        return self.call("read", full, lambda: self._get_end(bucket, key, length))

    def list_objects(self, full: str, *, recursive: bool, start_name: str = "") -> Iterator[FileMeta]:
        bucket, _, key = full.partition("/")
        prefix, token = f"{key}/" if key else "", None
        start_key = prefix + start_name
        while True:
            request = partial(self._page, bucket, prefix, start_key, token, recursive=recursive)
            page, token = self.call("list", f"{bucket}/{prefix}", request)
            for meta in page:
                # Consoles and Hadoop create objects that stand for directories.
                if meta.path >= start_key and not meta.path.endswith(("/", "_$folder$")):
                    yield meta._replace(path=f"{bucket}/{meta.path}")
            if not token:
                return

    def delete_object(self, full: str) -> None:
        bucket, _, key = full.partition("/")
        try:
            self.call("delete", full, lambda: self._remove(bucket, key), may_change=True, may_repeat=True)
        except FileMissingInStoreError:
            return

    def write_object(self, full: str) -> io.RawIOBase:
        return _ObjectOutput(self, full)

    @property
    def part_bytes(self) -> int:
        """The size of the parts of a large file."""
        part_bytes = int(self.options.library.get(self.part_option, _PART_BYTES))
        return max(_LEAST_PART_BYTES, -(-part_bytes // _PART_STEP) * _PART_STEP)

    @property
    def client(self) -> Sdk:
        """The client of the cloud. Raises StorageError, InvalidRequestError."""
        options = self.options  # Other credentials need another client.
        options_key = self._options_key
        if options_key is None or options_key[0] is not options:
            # Threads see the hash and its options together.
            options_key = self._options_key = (options, self._hash_of(options))
        key = (os.getpid(), type(self), options_key[1])
        client = _CLIENTS.get(key)
        if client is None:
            client = self._new_client()
            while len(_CLIENTS) >= _MOST_CLIENTS:
                _CLIENTS.pop(next(iter(_CLIENTS)), None)
            # Two threads may have made a client each. Both use the first.
            client = _CLIENTS.setdefault(key, client)
        return client

    def _new_client(self) -> Sdk:
        try:
            return self._connect()
        except DeltaError:
            raise
        except Exception as e:
            if not isinstance(e, (TypeError, ValueError, LookupError, *self.sdk_errors)):
                raise
            error_name = type(e).__name__
        # The text of the library may repeat an option, and options hold secrets, so the error shows only its class. It
        # is raised outside the handler, so that it does not carry the other error as its context.
        raise StorageError(
            f"Cannot open the store of {self.uri}",
            cause=f"{error_name} from the {self.label} library",
            remedy="Check the storage options and the credentials in the environment",
            store=self.label,
        )

    @cached_property
    def sdk_errors(self) -> tuple[type[Exception], ...]:
        """The errors of a request that `_failure` understands."""
        return self._sdk_errors()

    def _hash_of(self, options: StoreOptions) -> str:
        """A hash that differs for other options or another environment. It reveals neither."""
        environment = {k: v for k, v in os.environ.items() if k.startswith(_ENVIRONMENT)}
        place = [self.location.account, self.location.suffix]
        content = [place, dict(options.library), environment]
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=id).encode()).hexdigest()

    def call(
        self,
        action: str,
        full: str,
        request: Callable[[], T],
        *,
        may_change: bool = False,
        may_repeat: bool | None = None,
        is_single: bool = False,
    ) -> T:
        """Make a request. If the store fails temporarily, repeat the request for `retry_seconds`.

        Args:
            action: Completes "Cannot …".
            full: `bucket/key`.
            may_change: Whether a request of unknown outcome may have changed something.
            may_repeat: Whether to repeat a request of unknown outcome. By default, if it changes nothing.
            is_single: Whether the request must not be repeated at all.

        Raises:
            FileMissingInStoreError, FileExistsInStoreError, StorageOutcomeUnknownError, StorageError: By `_failure`.
        """
        patience = Patience()
        is_idempotent = not may_change if may_repeat is None else may_repeat
        while True:
            try:
                return request()
            except StorageError:
                raise
            except self.sdk_errors as e:
                failure = self._failure(e)
                if failure.kind is FailureKind.MISSING and action not in ("read", "look at", "delete"):
                    failure = missing_bucket(full.partition("/")[0])
                may_again = failure.is_passing and (is_idempotent or failure.kind is not FailureKind.UNKNOWN)
                if is_single or not may_again or not patience.wait():
                    cause = None if shows_secret(e) else e
                    break
            _LOGGER.debug("Trying again to %s %s: %s", action, full, failure.cause)
        # Raised outside the handler, the error does not carry the other error as its context.
        raise self._error(failure, action, full, may_change=may_change) from cause

    def _failure(self, error: Exception) -> Failure:
        if self._lacks_credentials(error):
            cause = f"There are no credentials for {self.label} ({type(error).__name__})"
            return Failure(FailureKind.REFUSED, cause, self.credentials_remedy)
        answer = self._answer(error)
        if answer is None:
            return failure_without_answer(self.label, error)
        return failure_of_answer(self.label, self.location.bucket, answer, self.credentials_remedy)

    def missing(self, key: str) -> FileMissingInStoreError:
        """The error of reading an object that does not exist."""
        shown = self._shown(f"{self.location.bucket}/{key}")
        return FileMissingInStoreError(f"Cannot read {shown}", cause="There is no such object", path=shown)

    def _error(self, failure: Failure, action: str, full: str, *, may_change: bool) -> StorageError:
        shown, cause, remedy = self._shown(full), failure.cause, failure.remedy
        passing = {"retryable": True} if failure.is_passing else {}
        match failure.kind:
            case FailureKind.EXISTS:
                return FileExistsInStoreError(f"{shown} exists already", path=shown)
            case FailureKind.MISSING:
                return FileMissingInStoreError(f"Cannot {action} {shown}", cause="There is no such object", path=shown)
            case FailureKind.UNKNOWN if may_change:
                return StorageOutcomeUnknownError(
                    f"It is unknown whether {shown} was changed: the attempt to {action} it failed",
                    cause=cause,
                    remedy=remedy,
                    path=shown,
                    **passing,
                )
        return StorageError(f"Cannot {action} {shown}", cause=cause, remedy=remedy, path=shown, **passing)

    def _shown(self, full: str) -> str:
        return self.uri + full[len(self.root) :] if full.startswith(self.root) else f"{self.label} object {full}"

    def _key(self, path: str) -> str:
        return f"{self.location.key}/{path}" if self.location.key else path


class _ObjectOutput(io.RawIOBase):
    """A file to write: one request if it is small, else parts of one size.

    The object appears when the file is closed. After a failure, nothing more is sent.
    """

    def __init__(self, store: ObjectStore, path: str) -> None:
        super().__init__()
        self._store = store
        self._path = path
        self._bucket, _, self._key = path.partition("/")
        self._part_bytes = store.part_bytes
        self._pending = bytearray()
        self._size = 0
        self._upload: Sdk = None
        self._receipts: list[Sdk] = []
        self._is_failed = False

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Sdk) -> int:
        view = memoryview(data).cast("B")
        self._pending += view
        self._size += len(view)
        while len(self._pending) > self._part_bytes:
            part = bytes(memoryview(self._pending)[: self._part_bytes])
            del self._pending[: self._part_bytes]
            self._send(part)
        return len(view)

    def flush(self) -> None:
        """Do nothing: a part is sent when it is large enough."""

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        if self._is_failed:
            return
        content = bytes(self._pending)
        if not self._receipts:
            put = partial(self._store._put_data, self._bucket, self._key, content)
            self._store.call("write", self._path, put, may_repeat=True)
            return
        self._send(content)
        finish = partial(self._store._finish_parts, self._bucket, self._key, self._upload, self._receipts)
        try:
            self._call(finish, is_single=not self._store.repeats_parts)
        except StorageError:
            # The store may have finished the object before the answer was lost. Names of data files are never reused.
            written = self._store.find_object(self._path)
            if written is None or written.size != self._size:
                self._discard()
                raise

    def __del__(self) -> None:
        """Do not finish the object: without `close`, its content is not complete."""

    def _send(self, part: bytes) -> None:
        store, number = self._store, len(self._receipts) + 1
        try:
            if number == 1:
                # A beginning whose answer was lost leaves an upload without parts.
                self._upload = self._call(partial(store._begin_parts, self._bucket, self._key), is_single=False)
            send = partial(store._send_part, self._bucket, self._key, self._upload, number, part)
            self._receipts.append(self._call(send, is_single=not store.repeats_parts))
        except StorageError:
            self._discard()
            raise

    def _call(self, request: Callable[[], T], *, is_single: bool) -> T:
        # Whatever ends the request, such as a signal: the content is complete only after an answer.
        self._is_failed = True
        answer = self._store.call("write", self._path, request, is_single=is_single)
        self._is_failed = False
        return answer

    def _discard(self) -> None:
        """Discard the parts that were sent, by one request. The error of the write counts, not its error."""
        if self._upload is None:
            return
        discard = partial(self._store._discard_parts, self._bucket, self._key, self._upload)
        try:
            self._store.call("write", self._path, discard, is_single=True)
        except StorageError as e:
            _LOGGER.debug("Could not discard the parts of %s: %s", self._path, e)


def before(start_key: str, prefix: str) -> str:
    """A key just before `start_key`, for listings that begin behind a key. Empty if it would not have `prefix`."""
    if len(start_key) <= len(prefix) or ord(start_key[-1]) in (0, 0xE000):
        return start_key[:-1] if len(start_key) - 1 > len(prefix) else ""
    return start_key[:-1] + chr(ord(start_key[-1]) - 1) + "~"


def content_of(data: bytes | memoryview) -> Content:
    """The content to send. A large mapped file is not copied into memory; the client reads it while it sends it."""
    mapped = data.obj if isinstance(data, memoryview) else None
    if not isinstance(mapped, mmap.mmap) or len(data) != len(mapped) or len(data) < _LARGE_BYTES:
        return bytes(data)
    mapped.seek(0)
    return mapped
