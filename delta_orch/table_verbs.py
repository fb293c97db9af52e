"""The verbs of a table that take no rows from the caller: its maintenance, and changes of the table as a whole."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Literal, Unpack

from delta_orch.arguments import checked
from delta_orch.errors import InvalidRequestError
from delta_orch.log.read.time_travel import Timestamp, ensure_version

if TYPE_CHECKING:
    from delta_orch.engines.select import EngineChoice
    from delta_orch.expressions.nodes import Expression
    from delta_orch.log.read.snapshot import Snapshot
    from delta_orch.log.read.table_log import TableLog
    from delta_orch.log.upkeep.log_cleanup import CleanupResult
    from delta_orch.log.write.commit_options import CommitOptions
    from delta_orch.log.write.commit_result import CommitResult
    from delta_orch.verbs.fsck import FsckReport
    from delta_orch.verbs.log_files import ChecksumResult, LogCompactionResult
    from delta_orch.verbs.vacuum import VacuumResult


@checked
class TableVerbs:
    """What `DeltaTable` is made of, beside reading and writing rows. Its rules hold here, too."""

    log: TableLog

    @property
    @abstractmethod
    def uri(self) -> str:
        """The location in its canonical spelling."""

    @abstractmethod
    def snapshot(self, version: int | None = None, timestamp: Timestamp | None = None) -> Snapshot:
        """A version, by default the newest."""

    # The table as a whole

    def restore(
        self,
        version: int | None = None,
        timestamp: Timestamp | None = None,
        *,
        ignore_missing_files: bool = False,
        **options: Unpack[CommitOptions],
    ) -> CommitResult:
        """Make the table what it was at an older version: its rows, schema, partitioning and properties. The protocol
        is never lowered, and no commit is taken back: the restored state is the next version. See
        `verbs.restore.restore`.

        Args:
            version, timestamp: The version by its number, or the newest one not after a point in time. Exactly one.
            ignore_missing_files: Commit even where files of the older version are gone. Reading their rows then raises
                MissingFileError; `repair` takes them out.

        Raises:
            VersionNotFoundError, TimestampOutOfRangeError: There is no such version in the log.
            InvalidRequestError: Both or neither are given, or the version is the newest one.
            MissingFileError: Files of the older version are gone. Nothing was committed.
            AppendOnlyError: The table keeps its rows.
            ConflictError: Another writer changed the table meanwhile. Nothing was committed.
        """
        from delta_orch.verbs.restore import restore

        if (version is None) == (timestamp is None):
            raise InvalidRequestError(
                "Restoring needs a version or a timestamp, and only one of them",
                remedy="Give version=… or timestamp=…",
            )
        return restore(
            self.log, self.snapshot(options.get("read_version")), version, timestamp, ignore_missing_files, options
        )

    def clone(
        self,
        target_uri: str | PathLike[str],
        shallow: bool = True,
        version: int | None = None,
        timestamp: Timestamp | None = None,
        replace: bool = False,
        properties: Mapping[str, str] | None = None,
        *,
        storage_options: Mapping[str, str] | None = None,
        **options: Unpack[CommitOptions],
    ) -> CommitResult:
        """Make a version of this table, by default the newest, a table of its own at another location. See
        `verbs.clone.clone`.

        Args:
            target_uri: Where, in the same store for a shallow clone.
            shallow: Name the files of this table by absolute paths. False copies them.
            version, timestamp: As of `snapshot`.
            replace: A table at the target becomes the clone. By default that is refused.
            properties: Table properties of the clone, beside those it takes over. They win.
            storage_options: Of the target's store.

        Returns: The commit of the target.

        Raises:
            TableExistsError: A table is there, and `replace` is not given.
            InvalidRequestError, InvalidPropertyError: The target is this table, or a property cannot be set.
            UnsupportedStoreError: The target cannot reach the files of this table.
            MissingFileError, CorruptDataError: A file is gone, or another than the log says. The target is as before,
                but for copies that no commit names; vacuum removes them.
            ConflictError: Another writer created or changed the target meanwhile.
        """
        from delta_orch.log.read.table_log import TableLog
        from delta_orch.storage.open import open_store
        from delta_orch.verbs.clone import clone

        source = self.snapshot(version, timestamp)
        is_newest = version is None and timestamp is None
        target = TableLog(open_store(target_uri, storage_options), type(source), self.log.observer)
        return clone(
            source,
            target,
            is_newest=is_newest,
            shallow=shallow,
            replace_target=replace,
            properties=properties,
            options=options,
        )

    # Maintenance

    def optimize(
        self,
        where: str | Expression | None = None,
        target_file_size_bytes: int | None = None,
        *,
        zorder_by: Sequence[str] | None = None,
        full: bool = False,
        max_deleted_rows_ratio: float = 0.05,
        engine: EngineChoice = "auto",
        **options: Unpack[CommitOptions],
    ) -> CommitResult:
        """Merge small files, partition by partition, and leave deleted rows behind; what readers see does not change.

        With `zorder_by`, rows near each other in these columns come to share files, so that filters over them leave out
        more files. A table with clustering columns is clustered by them instead, as far as it is not yet.

        Args:
            where: A predicate over partition columns.
            target_file_size_bytes: Files below it are merged up to it; by default `delta.targetFileSize` or 128 MiB.
            zorder_by: Columns, or fields of structs (`a.b`), that files have statistics of. All files of the partitions
                are rewritten, each time.
            full: Cluster every file of a clustered table anew, also those that are clustered already.
            max_deleted_rows_ratio: Files are rewritten, whatever their size, if deletion vectors mark more than this.

        Returns: `skipped` where there was nothing to merge.

        Raises:
            InvalidExpressionError, ColumnNotFoundError: `where` does not fit, or looks at other columns.
            InvalidRequestError: `zorder_by` names a partition column, or one without statistics; or the table is
                clustered; or it is not, and `full` is given.
            ConflictError: Another commit removed one of the files.
        """
        from delta_orch.verbs.optimize import optimize

        return optimize(
            self.log,
            self.snapshot(options.get("read_version")),
            where,
            target_file_size_bytes,
            max_deleted_rows_ratio,
            engine,
            options,
            zorder_by,
            full,
        )

    def purge(
        self,
        where: str | Expression | None = None,
        *,
        engine: EngineChoice = "auto",
        **options: Unpack[CommitOptions],
    ) -> CommitResult:
        """Rewrite the files that hold deleted rows or dropped columns; what readers see does not change. Together with
        `vacuum` that erases what was deleted. The reference calls it REORG … APPLY (PURGE). See `verbs.purge.purge`.

        Args:
            where: A predicate over partition columns.

        Returns: `skipped` where no file holds such.

        Raises:
            InvalidExpressionError, ColumnNotFoundError: `where` does not fit, or looks at other columns.
            ConflictError: Another commit changed one of the files.
        """
        from delta_orch.verbs.purge import purge

        return purge(self.log, self.snapshot(options.get("read_version")), where, engine, options)

    def vacuum(
        self,
        retention_hours: float | None = None,
        dry_run: bool = False,
        *,
        enforce_retention: bool = True,
        full: bool = True,
        keep_versions: Sequence[int] = (),
        user_metadata: str | None = None,
        commit_info: Mapping[str, object] | None = None,
    ) -> VacuumResult:
        """Delete files that no version within the retention needs. See `verbs.vacuum.vacuum`.

        Args:
            full: False lists nothing: only files that tombstones name are looked up and deleted.
            keep_versions: Versions that can still be read afterwards, whatever their age.

        Raises:
            VersionNotFoundError: A version to keep cannot be read. Nothing was deleted.
            InvalidRequestError: The retention is shorter than the table's, and `enforce_retention` is not False.
            StorageError: A file could not be deleted. Run it again.
        """
        from delta_orch.verbs.vacuum import vacuum

        return vacuum(
            self.log,
            self.snapshot(),
            retention_hours=retention_hours,
            dry_run=dry_run,
            enforce_retention=enforce_retention,
            full=full,
            keep_versions=keep_versions,
            user_metadata=user_metadata,
            commit_info=commit_info,
        )

    def fsck(self, version: int | None = None, check_files: bool = False) -> FsckReport:
        """Check the log, a version's state (by default the newest) and its version checksum; with `check_files` look up
        every data file and verify every deletion vector. See `verbs.fsck.fsck`.

        Raises:
            TableNotFoundError, VersionNotFoundError: There is nothing to check.
            UnsupportedFeatureError, UnsupportedVersionError: This release might misread the version.
            InvalidRequestError: No version number.
        """
        from delta_orch.verbs.fsck import fsck

        if version is not None:
            ensure_version(version)
        return fsck(self.log, version, check_files=check_files)

    def repair(self, **options: Unpack[CommitOptions]) -> CommitResult:
        """Remove data files that are gone from the table, so that the others can be read again. Their rows are lost.
        Run it with `dry_run=True` first: `preview.removes` names the files. See `verbs.repair.repair`.

        Returns: `skipped` where no file is gone.

        Raises:
            StorageError: The store cannot say of every file whether it is there. Nothing was committed.
            AppendOnlyError: The table keeps its rows.
            ConflictError: Another commit removed one of the files.
        """
        from delta_orch.verbs.repair import repair

        return repair(self.log, self.snapshot(options.get("read_version")), options)

    def wait_for_upkeep(self, timeout_s: float | None = None) -> bool:
        """Wait for what this process still does for the table after its commits: the checkpoint of a large table, and
        the log cleanup that comes with it (docs/log.md). The end of the interpreter waits for that by itself; a process
        that ends by `os._exit` or is frozen between calls should ask for it.

        Args:
            timeout_s: Longest time in seconds; None for as long as it takes.

        Returns: Whether there is nothing left to do. What went wrong was logged.
        """
        from delta_orch.log.upkeep.background import wait_for_upkeep

        return wait_for_upkeep(self.uri, timeout_s)

    def checkpoint(
        self, policy: Literal["classic", "v2"] | None = None, v2_format: Literal["json", "parquet"] = "json"
    ) -> int:
        """Write a checkpoint of the newest version, and return which one that is. Rows do not change.

        Writing does so by itself every `delta.checkpointInterval` versions. See `verbs.checkpoint.checkpoint`.

        Raises:
            InvalidRequestError: `v2` for a table without the feature v2Checkpoint.
        """
        from delta_orch.verbs.log_files import checkpoint

        return checkpoint(self.log, self.snapshot(), policy=policy, v2_format=v2_format)

    def compact_log(self, start_version: int | None = None, end_version: int | None = None) -> LogCompactionResult:
        """Reconcile a run of commits into one file beside them, by default those since the last checkpoint. See
        `verbs.compact_log.compact_log`.

        Raises:
            InvalidRequestError: There is no such range.
            VersionNotFoundError: A commit was cleaned up.
        """
        from delta_orch.verbs.log_files import compact_log

        return compact_log(self.log, self.snapshot(), start_version, end_version)

    def write_checksum(self, version: int | None = None) -> ChecksumResult:
        """Write the checksum of a version (by default the newest) unless it has one, which is verified instead. See
        `verbs.checksum.write_checksum`.

        Raises:
            ChecksumMismatchError: It disagrees with the state.
        """
        from delta_orch.verbs.log_files import write_checksum

        if version is not None:
            ensure_version(version)
        return write_checksum(self.log.snapshot(version))

    def cleanup_log(self, dry_run: bool = False) -> CleanupResult:
        """Remove the part of the log that `delta.logRetentionDuration` has expired. Versions from before cannot be read
        afterwards. Writing does so by itself after checkpoints. See `log.upkeep.log_cleanup.clean_up_log`.

        Raises:
            StorageError: A file could not be removed. Run it again.
        """
        from delta_orch.log.upkeep.log_cleanup import clean_up_log

        return clean_up_log(self.log, self.log.snapshot(), dry_run=dry_run)
