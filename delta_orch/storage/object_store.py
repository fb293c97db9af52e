"""What the clouds' object stores have in common: an object appears whole, under a name that only looks like a path.

The requests of a log go through the cloud's own client, large data files through fsspec's file system of the store.
fsspec creates exclusively, too (`pipe_file(mode="create")`), but a log cannot go through it. Measured with s3fs 2026.9,
gcsfs 2026.10 and adlfs 2026.8 against the emulators:

- `info` of a file that is not there takes two requests (S3, Azure) or three (GCS) in place of one. Every open and every
  poll ends so. `ls` cannot begin at a name: an open would list the whole log.
- After a 500, adlfs waits 15 to 20 seconds before it tries again, and gcsfs repeats a request for 30 seconds; no option
  of theirs changes it. Here `retry_seconds` decides.
- aiohttp, below all three, repeats a PUT where a connection that it kept breaks. If the new connection is refused, the
  error says so, although the first request may have taken effect: a commit would be reported as not made.
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
    FileExistsInStoreError,
    FileMissingInStoreError,
    StorageError,
    StorageOutcomeUnknownError,
)
from delta_orch.protocol.paths import resolve_data_path
from delta_orch.storage.base import FileMeta, FlatStore
from delta_orch.storage.external_paths import in_another_store, lies_in, outside, place_of
from delta_orch.storage.failed_request import (
    MISSING,
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
_MADE: dict[tuple[int, type, str, str], Sdk] = {}
"""Clients and file systems by process, kind and options. Single operations of a dict are atomic: no lock is needed."""

_LOGGER = logging.getLogger(__name__)

Content = bytes | mmap.mmap
"""What an object is made of. A mapped file is read from its beginning by every attempt."""

_COMMIT = re.compile(r"(^|/)_delta_log/\d{20}\.json$")
_LARGE_BYTES = 8 * 1024 * 1024


class ObjectStore(FlatStore):
    """One prefix of one bucket or container.

    Clients are made on first use, shared by the tables of a process that have the same options, and made once more in
    a forked child.

    Args:
        location: The table's root.
        options: The library's, and the user's promise of a single writer; or what knows them at each moment.
    """

    label: ClassVar[str]
    """The store in error messages."""

    credentials_remedy: ClassVar[str]
    """Where its users set credentials."""

    page_objects = 1000
    """How many objects one request lists."""

    def __init__(self, location: ObjectLocation, options: StoreOptions | OptionsSource) -> None:
        self.location = location
        self.uri = location.uri
        self.root = location.fsspec_path
        self._source = options if isinstance(options, OptionsSource) else None
        self._options = options if isinstance(options, StoreOptions) else None
        if self._options is not None:
            hide_in_logs(self._options.secrets)

    @property
    def options(self) -> StoreOptions:
        """The options of now. Raises StorageError where a source of them fails."""
        if self._source is not None and (newest := self._source.current()) is not self._options:
            hide_in_logs(newest.secrets)
            self._options = newest
            self.__dict__.pop("_options_key", None)
        assert self._options is not None
        return self._options

    def __getstate__(self) -> dict[str, Sdk]:
        # What was made here stays here: another process connects for itself.
        options = self._options if self._source is None else self._source
        return {"location": self.location, "options": options, "external_paths": self.external_paths}

    def __setstate__(self, state: dict[str, Sdk]) -> None:
        ObjectStore.__init__(self, state["location"], state["options"])
        self.external_paths = state["external_paths"]

    # What each kind of store does in its own way; errors are those of its SDK

    @abstractmethod
    def _connect(self) -> Sdk:
        """The SDK's client, safe to share between threads, that makes each request once. Raises what the library raises
        for options it cannot use."""

    @abstractmethod
    def _connect_filesystem(self) -> Sdk:
        """fsspec's file system for the data files. Raises like `_connect`."""

    @abstractmethod
    def _sdk_errors(self) -> tuple[type[Exception], ...]:
        """What the SDK and fsspec's library raise."""

    @abstractmethod
    def _get(self, bucket: str, key: str, start: int = 0, end: int | None = None) -> bytes:
        """The bytes from `start` to before `end`."""

    def _get_end(self, bucket: str, key: str, length: int) -> tuple[bytes, int]:
        """The last bytes, `length` at most, and the size of the object."""
        found = self._find(bucket, key)
        if found is None:
            raise self.missing(key)
        data = self._get(bucket, key, max(0, found.size - length), found.size) if found.size else b""
        return data, found.size

    @abstractmethod
    def _find(self, bucket: str, key: str) -> FileMeta | None:
        """One metadata request; `path` is the key."""

    @abstractmethod
    def _page(
        self, bucket: str, prefix: str, start_key: str, token: str | None, *, recursive: bool
    ) -> tuple[list[FileMeta], str | None]:
        """One request of a listing, and the token of the next page.

        The objects whose key begins with `prefix` and is not much less than `start_key`, ascending; `path` is the key.
        Not those with another `/` behind the prefix, unless `recursive`.
        """

    @abstractmethod
    def _create(self, bucket: str, key: str, data: Content) -> FileMeta:
        """One conditional request that creates the object if it does not exist."""

    @abstractmethod
    def _replace(self, bucket: str, key: str, data: Content) -> FileMeta:
        """Create or replace the object."""

    def _put_data(self, bucket: str, key: str, data: Content) -> None:
        """As `_replace`, where nobody asks for the object's time."""
        self._replace(bucket, key, data)

    @abstractmethod
    def _remove(self, bucket: str, key: str) -> None:
        """Delete the object. A missing object is no error."""

    @abstractmethod
    def _answer(self, error: Exception) -> Answer | None:
        """What the store has answered, of an error of `sdk_errors`; None where it has not."""

    @abstractmethod
    def _lacks_credentials(self, error: Exception) -> bool:
        """Whether there are no credentials to make a request with."""

    def _is_exclusive(self) -> bool:
        """Whether `_create` is exclusive. If that is unknown of an endpoint, it is tested. Raises StorageError."""
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

        # Only commits are told apart by who wrote them. What else has this content is what was to be created.
        is_commit = _COMMIT.search(path) is not None
        try:
            written = self.call("create", full, request, may_change=True, may_repeat=not is_commit)
        except FileExistsInStoreError:
            if is_commit or requests == 1 or self.read_bytes(path) != data or (found := self.head(path)) is None:
                raise
            return found  # An answer was lost: the request before took effect.
        return FileMeta(path, len(data), written.modification_time_ms)

    def put(self, path: str, data: bytes) -> FileMeta:
        bucket, key = self.location.bucket, self._key(path)
        rewrite = partial(self._replace, bucket, key, data)
        # A hint may be written twice, and lie behind a newer one: readers look further.
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
        """Check that a full path may be read: it lies in the bucket, or where the user has said."""
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
        # A table that does not name its account takes every account for its own.
        return place.account if self.location.account is not None else None

    # Objects by `bucket/key`, as the data file system names them

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
                # Consoles and Hadoop leave objects that stand for directories.
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
    def client(self) -> Sdk:
        """The SDK's client. Raises StorageError."""
        return self._shared("client", self._connect)

    @property
    def filesystem(self) -> Sdk:
        """fsspec's file system. Raises StorageError."""
        return self._shared("filesystem", self._connect_filesystem)

    @cached_property
    def sdk_errors(self) -> tuple[type[Exception], ...]:
        """What a request may raise that `_failure` understands."""
        return self._sdk_errors()

    @cached_property
    def _options_key(self) -> str:
        """Tells options and environments apart, and nothing of what they hold."""
        environment = {k: v for k, v in os.environ.items() if k.startswith(_ENVIRONMENT)}
        told = json.dumps([self.location.account, dict(self.options.library), environment], sort_keys=True, default=id)
        return hashlib.sha256(told.encode()).hexdigest()

    def _shared(self, part: str, make: Callable[[], Sdk]) -> Sdk:
        _ = self.options  # Other credentials make another client.
        key = (os.getpid(), type(self), part, self._options_key)
        made = _MADE.get(key)
        if made is None:
            try:
                made = make()
            except StorageError:
                raise
            except Exception as e:
                if not isinstance(e, (TypeError, ValueError, LookupError, *self.sdk_errors)):
                    raise
                failed = type(e).__name__
            if made is None:
                # The library's own text may repeat an option, and options hold secrets: only its kind is shown. Raised
                # here, the error does not carry the other one as its context.
                raise StorageError(
                    f"Cannot open the store of {self.uri}",
                    cause=f"{failed} from the {self.label} library",
                    remedy="Check the storage options and the credentials in the environment",
                    store=self.label,
                )
            while len(_MADE) >= _MOST_CLIENTS:
                _MADE.pop(next(iter(_MADE)), None)
            # Two threads may have made one each: both go on with the first.
            made = _MADE.setdefault(key, made)
        return made

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
        """Make a request, and repeat it for `retry_seconds` where the store failed temporarily.

        Args:
            action: Completes "Cannot …".
            full: `bucket/key`.
            may_change: Whether a request of unknown outcome may have changed something.
            may_repeat: Whether it may be made again although its outcome is unknown; None where it changes nothing.
            is_single: It must not be made again, whatever its outcome.

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
        # Raised here, it does not carry the other error as its context.
        raise self._error(failure, action, full, may_change=may_change) from cause

    def _failure(self, error: Exception) -> Failure:
        if isinstance(error, FileNotFoundError):
            return MISSING
        if self._lacks_credentials(error):
            cause = f"There are no credentials that {self.label} takes ({type(error).__name__})"
            return Failure(FailureKind.REFUSED, cause, self.credentials_remedy)
        answer = self._answer(error)
        if answer is None:
            return failure_without_answer(self.label, error)
        return failure_of_answer(self.label, self.location.bucket, answer, self.credentials_remedy)

    def missing(self, key: str) -> FileMissingInStoreError:
        """The error of who reads an object that is not there."""
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
    """An object that is being written: as a whole where it is small, else in parts by fsspec's file, with our errors.

    A whole object may be sent again after a failure. A part of fsspec's file is never given twice: it may be in its
    buffer already. After a failure nothing more is uploaded.
    """

    def __init__(self, store: ObjectStore, path: str) -> None:
        super().__init__()
        self._store = store
        self._path = path
        self._held: list[bytes] = []
        self._size = 0
        self._file: Sdk = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Sdk) -> int:
        view = memoryview(data).cast("B")
        if self._file is None and self._size + len(view) <= _LARGE_BYTES:
            self._held.append(bytes(view))
        else:
            self._write_part(view)
        self._size += len(view)
        return len(view)

    def _write_part(self, data: memoryview) -> None:
        if self._file is None:
            self._file = self._store.call("write", self._path, lambda: self._store.filesystem.open(self._path, "wb"))
            held, self._held = self._held, []
            self._checked(lambda: self._file.write(b"".join(held)))
        self._checked(lambda: self._file.write(data))

    def flush(self) -> None:
        """Parts are sent when they are large enough."""

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        if self._file is None:
            (bucket, _, key), content = self._path.partition("/"), b"".join(self._held)
            put = partial(self._store._put_data, bucket, key, content)
            self._store.call("write", self._path, put, may_repeat=True)
        elif not self._file.closed:
            self._checked(self._file.close)

    def __del__(self) -> None:
        if self._file is not None:  # Not closed, it is dropped; both finalizers would send it.
            self._file.closed = True

    def _checked(self, step: Callable[[], T]) -> T:
        try:
            return self._store.call("write", self._path, step, is_single=True)
        except StorageError:
            # Its finalizer would try to upload once more.
            self._file.closed = True
            raise


def before(start_key: str, prefix: str) -> str:
    """A key just before `start_key`, for listings that begin behind one. Empty where it would leave `prefix`."""
    if len(start_key) <= len(prefix) or ord(start_key[-1]) in (0, 0xE000):
        return start_key[:-1] if len(start_key) - 1 > len(prefix) else ""
    return start_key[:-1] + chr(ord(start_key[-1]) - 1) + "~"


def content_of(data: bytes | memoryview) -> Content:
    """Large content that is not in memory yet (a mapped file) is read while it is sent."""
    mapped = data.obj if isinstance(data, memoryview) else None
    if not isinstance(mapped, mmap.mmap) or len(data) != len(mapped) or len(data) < _LARGE_BYTES:
        return bytes(data)
    mapped.seek(0)
    return mapped
