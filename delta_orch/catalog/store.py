"""A table of a catalog as a store. Its files are in a directory, and the catalog decides its log.

Readers of the log see each ratified commit as the commit file of its version, published or not. They see nothing after
the newest version of the catalog. Creating the commit file of a version proposes the commit to the catalog. So no other
code needs to support catalogs.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from delta_orch.catalog.client import EXHAUSTED, CatalogClient, Refusal
from delta_orch.catalog.commit_request import (
    commit_body,
    creation_body,
    in_commit_timestamp_ms,
    metrics_body,
    published_body,
    published_update,
)
from delta_orch.catalog.entry import RatifiedCommit, StagingTable, TableEntry
from delta_orch.catalog.names import TableName
from delta_orch.catalog.settings import CatalogSettings
from delta_orch.catalog.vended import VendedOptions
from delta_orch.errors import (
    CatalogError,
    FileExistsInStoreError,
    FileMissingInStoreError,
    MaintenanceNotAllowedError,
    MetadataChangedError,
    StorageError,
    StorageOutcomeUnknownError,
    TableNotFoundError,
    UnsupportedFeatureError,
)
from delta_orch.protocol.paths import LOG_DIRECTORY, STAGED_COMMIT_DIRECTORY, LogFileKind, commit_path, parse_log_path
from delta_orch.storage.base import (
    DefinitionRules,
    FileMeta,
    LogStore,
    Maintenance,
    StagedFile,
    StagedOutput,
)
from delta_orch.storage.open import open_store, open_vended_store
from delta_orch.storage.patience import Patience, waiting_at_most
from delta_orch.storage.storage_options import parse_location

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs

    from delta_orch.protocol.actions import Metadata

_LOGGER = logging.getLogger(__name__)
_MOST_REMEMBERED = 1000
_REPORT_S = 5.0
_CONTRACT = (
    "io.unitycatalog.tableId",
    "delta.enableInCommitTimestamps",
    "delta.checkpointPolicy",
    "delta.enableDeletionVectors",
    "delta.checkpoint.writeStatsAsStruct",
    "delta.checkpoint.writeStatsAsJson",
)
"""The properties that tables of Unity Catalog keep when they are replaced (Unity Catalog Managed Tables
Specification)."""


class CatalogStore(LogStore):
    """The table of a name in a catalog. The first request is sent at first use.

    An object belongs to one table id. If another table gets the name, the methods fail.

    Args:
        options: Options for the store of the table's files.
    """

    def __init__(self, name: TableName, settings: CatalogSettings, options: Mapping[str, object]) -> None:
        self.name = name
        self._client = CatalogClient(settings)
        self._options = dict(options)
        self._external_paths: tuple[str, ...] | None = None
        self._reset()

    def _reset(self) -> None:
        self._entry: TableEntry | None = None
        self._files: LogStore | None = None
        self._vended: VendedOptions | None = None
        self._staging: StagingTable | None = None
        self._is_pinned = False
        self._seen: dict[int, FileMeta] = {}
        self._published: set[int] = set()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name.uri!r})"

    def __getstate__(self) -> dict[str, Any]:
        # Answers and credentials of the catalog are not pickled.
        return {"name": self.name, "settings": self._client.settings, "options": self._options,
                "external_paths": self._external_paths}  # fmt: skip

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["name"], state["settings"], state["options"])  # type: ignore[misc]
        self._external_paths = state["external_paths"]

    # Answers of the catalog

    def _known(self) -> TableEntry | None:
        """Return the last answer of the catalog, however old it is. None if there is no such table."""
        is_known = self._entry is not None or self._is_pinned or self._staging is not None
        return self._entry if is_known else self._load()

    def _load(self) -> TableEntry | None:
        """Ask the catalog."""
        entry = self._client.load_table(self.name)
        if entry is None:
            if self._entry is not None:
                raise self._gone("It was dropped")
            return None
        return self._adopt(entry)

    def _adopt(self, entry: TableEntry) -> TableEntry:
        old_entry = self._entry
        if self._staging is not None and self._staging.table_id != entry.table_uuid:
            raise self._cannot_create(Refusal(409, "AlreadyExistsException", "It has another id"))
        if old_entry is not None and old_entry.table_uuid != entry.table_uuid:
            raise self._gone("It was dropped, and another table has its name")
        if old_entry is not None and old_entry.latest_version > entry.latest_version:
            # The answer comes from a replica that lags behind. Ratified commits stay.
            return old_entry
        self._entry = entry
        self._published.intersection_update(entry.commits)
        return entry

    def _gone(self, cause: str) -> TableNotFoundError:
        return TableNotFoundError(
            f"The table {self.name.uri} is not the one that was opened",
            cause=cause,
            remedy="Create a new DeltaTable for the name",
        )

    @property
    def is_catalog_managed(self) -> bool:
        """Whether the catalog manages the table's commits. True for a table that does not exist yet."""
        entry = self._known()
        return True if entry is None else entry.is_managed

    @property
    def _is_decided_by_files(self) -> bool:
        return self._entry is not None and not self._entry.is_managed

    def at_one_moment(self) -> LogStore:
        if self._is_pinned or self._is_decided_by_files:
            return self
        if self._load() is not None:
            self._place()
        pinned = object.__new__(type(self))
        pinned.__dict__.update(self.__dict__, _is_pinned=True)
        return pinned

    def is_unchanged(self, commit: FileMeta) -> bool:
        entry = self._known()
        if entry is None or not entry.is_managed:
            return super().is_unchanged(commit)
        return True  # A ratified commit never changes. The next request detects another table under the same name.

    # Location of the files

    def _place(self) -> LogStore | None:
        """Return the store of the table's directory. None if there is no table and no table is being created."""
        if self._files is None:
            entry = self._known()
            if entry is None:
                return None
            self._open_files(entry.location)
        return self._files

    def _open_files(self, location: str) -> LogStore:
        parsed_location = parse_location(location)
        if parsed_location is None:
            files = open_store(location, self._options)
        else:
            self._vended = VendedOptions(
                self._client, self.name, location, parsed_location.kind, self._options, self._staging
            )
            files = open_vended_store(parsed_location, self._vended)
        files.external_paths = self._external_paths
        self._files = files
        return files

    @property
    def _reading(self) -> LogStore:
        files = self._place()
        if files is None:
            raise TableNotFoundError(
                f"There is no table {self.name.uri}",
                cause="The catalog does not have the table, or this user has no access",
                remedy="Check the name, or create the table by writing to it",
                uri=self.name.uri,
            )
        return files

    @property
    def _writing(self) -> LogStore:
        """Return the store with credentials to write. For a new table, the catalog assigns the location."""
        files = self._place()
        if files is None:
            staging = self._client.create_staging_table(self.name)
            if isinstance(staging, Refusal):
                raise self._cannot_create(staging)
            self._staging = staging
            files = self._open_files(staging.location)
        if self._vended is not None:
            self._vended.for_writing()
        return files

    def _cannot_create(self, refusal: Refusal) -> Exception:
        if refusal.status == 409:
            self._reset()
            return MetadataChangedError(
                f"Another writer created {self.name.uri}",
                cause=refusal.message,
                remedy="Run the operation again. It then writes to that table",
            )
        return CatalogError(
            f"Cannot create {self.name.uri}",
            cause=f"{refusal.kind} ({refusal.status}) from the catalog: {refusal.message}",
            remedy="Correct the cause, or ask the catalog's administrator for the right to create tables in the schema",
            status=refusal.status,
            kind=refusal.kind,
        )

    @property
    def uri(self) -> str:  # type: ignore[override]
        """Return the location of the table's files, or its name if it has no location yet."""
        files = self._place()
        return self.name.uri if files is None else files.uri

    @property
    def address(self) -> str:
        return self.name.uri

    @property
    def is_near(self) -> bool:
        files = self._place()
        return files is not None and files.is_near

    @property
    def root(self) -> str:  # type: ignore[override]
        return self._writing.root if self._place() is None else self._reading.root

    @property
    def external_paths(self) -> tuple[str, ...] | None:
        return self._external_paths

    @external_paths.setter
    def external_paths(self, paths: tuple[str, ...] | None) -> None:
        self._external_paths = paths
        if self._files is not None:
            self._files.external_paths = paths

    # Reading the log

    def _commit_of(self, path: str) -> int | None:
        """Return the version of a commit file, if the catalog manages the commits. None for all other files."""
        directory, _, name = path.rpartition("/")
        if directory != LOG_DIRECTORY or (found := parse_log_path(name)) is None:
            return None
        entry = self._known()
        is_decided = found.kind is LogFileKind.COMMIT and entry is not None and entry.is_managed
        return found.version if is_decided else None

    def _ratified(self, version: int) -> TableEntry | None:
        """Return the ratified commit of a version, from the newest answer of the catalog. None if it is not
        ratified."""
        entry = self._known()
        if entry is not None and version > entry.latest_version and not self._is_pinned:
            entry = self._load()
        return None if entry is None or version > entry.latest_version else entry

    def head(self, path: str) -> FileMeta | None:
        version = self._commit_of(path)
        if version is None:
            files = self._place()
            if files is None and not self._is_pinned and self._load() is not None:
                return self.head(path)
            return None if files is None else files.head(path)
        entry = self._ratified(version)
        if entry is None:
            return None
        if (seen := self._seen.get(version)) is not None:
            return seen
        commit = entry.commits.get(version)
        meta = self._reading.head(path) if commit is None else _meta_of(commit)
        return None if meta is None else self._remember(version, meta)

    def _remember(self, version: int, meta: FileMeta) -> FileMeta:
        """Return the same metadata for a staged and for a published commit."""
        while len(self._seen) >= _MOST_REMEMBERED:
            self._seen.pop(next(iter(self._seen)), None)
        return self._seen.setdefault(version, meta)

    def read_bytes(self, path: str) -> bytes:
        version = self._commit_of(path)
        if version is not None:
            entry = self._ratified(version)
            if entry is None:
                raise FileMissingInStoreError(
                    f"Cannot read version {version} of {self.name.uri}",
                    cause="The catalog has no such version",
                    path=path,
                )
            if (commit := entry.commits.get(version)) is not None:
                try:
                    return self._reading.read_bytes(_staged_path(commit))
                except FileMissingInStoreError:
                    _LOGGER.info("Version %d of %s was published meanwhile", version, self.name.uri)
        files = self._place()
        if files is None:
            raise FileMissingInStoreError(f"Cannot read {path} of {self.name.uri}", cause="There is no such table")
        return files.read_bytes(path)

    def list_from(self, directory: str, start_name: str = "") -> Iterator[FileMeta]:
        is_known = self._is_pinned or self._is_decided_by_files or directory != LOG_DIRECTORY
        entry = self._entry if is_known else self._load()
        files = self._place()
        if files is None:
            return iter(())
        listed_files = files.list_from(directory, start_name)
        if directory != LOG_DIRECTORY or entry is None or not entry.is_managed:
            return listed_files
        return self._as_decided(listed_files, entry, start_name)

    def _as_decided(self, found: Iterator[FileMeta], entry: TableEntry, start_name: str) -> Iterator[FileMeta]:
        by_path: dict[str, FileMeta] = {}
        for meta in found:
            log_path = parse_log_path(meta.path.rpartition("/")[2])
            if log_path is None or (log_path.end_version or log_path.version) <= entry.latest_version:
                by_path[meta.path] = meta
        for version, commit in entry.commits.items():
            published = by_path.get(commit_path(version))
            if published is not None and published.size == commit.size:
                self._published.add(version)
            if (path := commit_path(version)) >= f"{LOG_DIRECTORY}/{start_name}":
                by_path[path] = self._remember(version, _meta_of(commit))
        return iter([by_path[path] for path in sorted(by_path)])

    def open_input(self, path: str) -> pa.NativeFile:
        return self._reading.open_input(path)

    def list_recursive(self, directory: str = "") -> Iterator[FileMeta]:
        files = self._place()
        return iter(()) if files is None else files.list_recursive(directory)

    def other_table(self) -> str | None:
        return None  # The catalog assigns each table its own location.

    def not_deletable(
        self, candidates: Sequence[str], needed: Iterable[str], needed_identities: Set[tuple[int, int]]
    ) -> set[str]:
        return self._reading.not_deletable(candidates, needed, needed_identities)

    def data_filesystem(self) -> tuple[pafs.FileSystem, str]:
        return (self._writing if self._place() is None else self._reading).data_filesystem()

    def hadoop_options(self) -> dict[str, str]:
        return (self._writing if self._place() is None else self._reading).hadoop_options()

    def resolve(self, log_path: str) -> str:
        return self._reading.resolve(log_path)

    def ensure_regular(self, paths: Sequence[str]) -> None:
        self._reading.ensure_regular(paths)

    # Writing

    def ensure_can_commit(self) -> None:
        entry = self._known()
        if entry is not None and entry.is_managed and "iceberg" in entry.properties.get(
            "delta.universalFormat.enabledFormats", ""
        ):  # fmt: skip
            raise UnsupportedFeatureError(
                f"Cannot write to {self.name.uri}",
                cause="Each commit needs Iceberg metadata (UniForm), which this release cannot write",
                remedy="Write with a client that supports UniForm",
                features=["uniform"],
            )
        self._writing.ensure_can_commit()

    def new_file(self, path: str) -> str:
        return self._writing.new_file(path)

    def stage(self, directory: str, data: bytes | memoryview, *, after: Sequence[str] = ()) -> StagedFile:
        return self._writing.stage(directory, data, after=after)

    def stage_output(self, directory: str) -> StagedOutput:
        return self._writing.stage_output(directory)

    def put_if_absent(self, path: str, data: bytes | memoryview) -> FileMeta:
        return self._writing.put_if_absent(path, data)

    def put_regenerable(self, path: str, data: bytes) -> FileMeta:
        return self._writing.put_regenerable(path, data)

    def put(self, path: str, data: bytes) -> FileMeta:
        return self._writing.put(path, data)

    def delete(self, path: str) -> None:
        self._writing.delete(path)

    def definition_rules(self) -> DefinitionRules:
        files, entry = self._writing, self._entry
        if self._staging is not None:
            return DefinitionRules(self._staging.required, self._staging.suggested)
        assert files is not None
        kept = {} if entry is None else {key: entry.properties[key] for key in _CONTRACT if key in entry.properties}
        return DefinitionRules(kept)

    # Committing

    def stage_commit(
        self, data: bytes | memoryview, *, before: Metadata | None, after: Sequence[str] = ()
    ) -> StagedFile:
        files = self._writing
        if not self.is_catalog_managed:
            return files.stage_commit(data, before=before, after=after)
        return _Proposal(self, bytes(data), before, files.stage(STAGED_COMMIT_DIRECTORY, data, after=after))

    def _create(self, data: bytes, first: StagedFile) -> FileMeta:
        """Make the first commit of the staging table, and create the table from it."""
        staging, path = self._staging, commit_path(0)
        if staging is None:
            raise FileExistsInStoreError(f"{self.name.uri} exists already", path=path)
        body = creation_body(self.name, staging, data)
        first.discard()
        files = self._writing
        try:
            meta = files.put_if_absent(path, data)
        except (FileExistsInStoreError, StorageOutcomeUnknownError):
            # Only this object uses the location, so the file is from an earlier attempt.
            meta = self._settled(path, data)
        answer = self._client.create_table(self.name, staging.table_id, body)
        if isinstance(answer, Refusal):
            raise self._cannot_create(answer)
        self._adopt(answer)
        self._staging = None
        return self._remember(0, meta)

    def _settled(self, path: str, data: bytes) -> FileMeta:
        meta = self._writing.head(path)
        if meta is None or meta.size != len(data):
            raise StorageError(
                f"It is unknown whether {path} was written",
                cause="The store did not report the outcome",
                remedy="Run the operation again. Nothing was committed",
                retryable=True,
            )
        return meta

    def _propose(self, proposal: _Proposal, version: int) -> FileMeta:
        """Propose a staged commit as a version, and publish the ratified commits.

        Raises:
            FileExistsInStoreError: Another commit has the version, or the table's definition changed.
            StorageOutcomeUnknownError: The outcome is unknown.
            CatalogError: The catalog refuses the commit.
        """
        patience = Patience()
        while True:
            answer = self._client.update_table(self.name, proposal.body(version))
            if not isinstance(answer, Refusal):
                break
            if answer.kind == EXHAUSTED:
                # Other writers crashed before they published their commits. The next writer publishes them.
                entry = self._load()
                if entry is not None:
                    self._publish(entry)
                    self._report_published(entry)
                if patience.wait():
                    continue
                raise CatalogError(
                    f"{self.name.uri} does not accept commits",
                    cause=f"Too many commits are not published: {answer.message}",
                    remedy="Run the operation again. If it still fails, ask the administrators of the catalog",
                    retryable=True,
                )
            proposal.forget()
            self._load()
            raise FileExistsInStoreError(
                f"Version {version} of {self.name.uri} was refused", cause=answer.message, path=commit_path(version)
            )
        entry = self._adopt(answer)
        meta = self._remember(version, FileMeta(commit_path(version), len(proposal.data), proposal.timestamp_ms))
        self._publish(entry, {version: proposal.data})
        return meta

    def publish(self, version: int) -> bool:
        entry = self._known()
        if entry is None or not entry.is_managed or version not in entry.commits:
            return True
        self._publish(entry)
        return version in self._published

    def _publish(self, entry: TableEntry, own: Mapping[int, bytes] | None = None) -> None:
        """Publish the commits that may not be published yet, in order. The next proposal reports them.

        The commits are ratified already, so a failure is logged, and the next writer continues.
        """
        try:
            for version in sorted(entry.commits.keys() - self._published):
                data = (own or {}).get(version) or self._writing.read_bytes(_staged_path(entry.commits[version]))
                # Every writer may publish a ratified commit, always with the same content.
                with suppress(FileExistsInStoreError):
                    self._writing.put_if_absent(commit_path(version), data)
                self._published.add(version)
        except (StorageError, TableNotFoundError):
            _LOGGER.warning("Could not publish the commits of %s", self.name.uri, exc_info=True)

    def _last_published(self, entry: TableEntry) -> int | None:
        """Return the newest version up to which all commits are published but not reported to the catalog."""
        last = None
        for version in sorted(entry.commits):
            if version not in self._published:
                break
            last = version
        return last

    def _report_published(self, entry: TableEntry) -> None:
        """Report published commits in a separate request, because the catalog accepts no commit before."""
        last = self._last_published(entry)
        if last is None:
            return
        try:
            # The wait is short, because the next writer can do the same.
            with waiting_at_most(_REPORT_S):
                answer = self._client.update_table(self.name, published_body(entry, last))
            if not isinstance(answer, Refusal):
                self._adopt(answer)
        except (StorageError, TableNotFoundError):
            _LOGGER.warning("Could not report the published commits of %s", self.name.uri, exc_info=True)

    # Upkeep

    def ensure_may_maintain(self, operation: Maintenance, verb: str) -> None:
        entry = self._known()
        if entry is None or not entry.is_managed or operation.value in entry.allowed_maintenance:
            return
        raise MaintenanceNotAllowedError(
            f"{verb} is not allowed for {self.name.uri}",
            cause=f"The catalog does not allow clients the operation {operation.value}",
            remedy="Leave the step out. The catalog maintains the table (predictive optimization)",
            operation=operation.value,
        )

    def report_commit(self, figures: Mapping[str, int | None]) -> None:
        entry = self._known()
        if entry is None or not entry.is_managed:
            return
        try:
            self._client.report_metrics(self.name, metrics_body(entry, figures))
        except StorageError as e:
            _LOGGER.info("Could not report a commit to %s: %s", self.name.uri, e)


class _Proposal(StagedFile):
    """A commit that is being proposed. A version is always proposed with the same file and the same request."""

    def __init__(self, store: CatalogStore, data: bytes, before: Metadata | None, file: StagedFile) -> None:
        self._store, self.data, self._before, self._file = store, data, before, file
        self.timestamp_ms = in_commit_timestamp_ms(data)
        self._version = -1
        self._request: dict[str, Any] | None = None

    def put_if_absent(self, path: str) -> FileMeta:
        log_path = parse_log_path(path.rpartition("/")[2])
        assert log_path is not None and log_path.kind is LogFileKind.COMMIT
        if self._before is None:
            return self._store._create(self.data, self._file)
        return self._store._propose(self, log_path.version)

    def body(self, version: int) -> dict[str, Any]:
        """Return the request that proposes the commit. The staged file is written first."""
        if self._request is None or self._version != version:
            entry = self._store._known()
            assert entry is not None and self._before is not None
            name = f"{version:020d}.{uuid.uuid4()}.json"
            path = f"{STAGED_COMMIT_DIRECTORY}/{name}"
            try:
                meta = self._file.put_if_absent(path)
            except StorageOutcomeUnknownError:
                meta = self._store._settled(path, self.data)
            self._file = self._store._writing.stage(STAGED_COMMIT_DIRECTORY, self.data)
            body = commit_body(entry, version, name, len(self.data), meta.modification_time_ms, self.data, self._before)
            if (published := self._store._last_published(entry)) is not None:
                body["updates"].append(published_update(published))
            self._request = body
            self._version = version
        return self._request

    def forget(self) -> None:
        """Forget the proposal after a refusal, so that the next attempt is a new proposal."""
        self._request = None

    def discard(self) -> None:
        self._file.discard()


def _staged_path(commit: RatifiedCommit) -> str:
    return f"{STAGED_COMMIT_DIRECTORY}/{commit.file_name}"


def _meta_of(commit: RatifiedCommit) -> FileMeta:
    return FileMeta(commit_path(commit.version), commit.size, commit.timestamp_ms)
