"""The verbs of a table that take no rows from the caller: maintenance, and changes of the whole table."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Literal, Unpack

from delta_orch.arguments import checked
from delta_orch.errors import InvalidRequestError
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.read.time_travel import Timestamp, ensure_version
from delta_orch.table_snapshot import TableWrites

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.engines.select import EngineChoice
    from delta_orch.expressions.nodes import Expression
    from delta_orch.log.read.snapshot import Snapshot
    from delta_orch.log.upkeep.log_cleanup import CleanupResult
    from delta_orch.log.write.commit_options import CommitOptions, CommitResult
    from delta_orch.staged_write import StagedWrite
    from delta_orch.verbs.alter.builder import Alteration
    from delta_orch.verbs.fsck import FsckReport
    from delta_orch.verbs.log_files import ChecksumResult, LogCompactionResult
    from delta_orch.verbs.units import UndoResult
    from delta_orch.verbs.vacuum import VacuumResult


@checked
class TableVerbs(TableWrites):
    """The methods of `DeltaTable` that take no rows from the caller. The rules of `DeltaTable` hold here, too."""

    log: TableLog

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
        """Restore the rows, schema, partitioning and properties of an older version. The restored state is the next
        version, so no commit is removed. The protocol is never lowered. See `verbs.restore.restore`.

        Args:
            version, timestamp: The version by its number, or the newest one not after a point in time. Exactly one.
            ignore_missing_files: Commit even where files of the older version are gone. Reading their rows then raises
                MissingFileError. `repair` removes these files from the table.

        Raises:
            VersionNotFoundError, TimestampOutOfRangeError: There is no such version in the log.
            InvalidRequestError: Both or neither are given, or the version is the newest one.
            MissingFileError: Files of the older version are gone. Nothing was committed.
            AppendOnlyError: The table keeps its rows.
            ConflictError: Another writer changed the table in the meantime. Nothing was committed.
        """
        from delta_orch.verbs.restore import restore

        if (version is None) == (timestamp is None):
            raise InvalidRequestError(
                "Restoring needs a version or a timestamp, and only one of them",
                remedy="Give version=… or timestamp=…",
            )
        return restore(*self._target(options), version, timestamp, ignore_missing_files, options)

    def units(self) -> pa.Table:
        """List the units of work that pipeline steps have recorded, in the order of their names.

        Returns: Columns of `verbs.units.UNITS_SCHEMA`: `unit`, `order` (of the attempt that wrote it), `run`, `version`
            and `timestamp` of its newest commit, `rows` it wrote, and `inputs`, the versions of tables that it read.
            Columns after `order` are null where the log no longer holds the commit.

        Raises:
            TableNotFoundError: No table at the location.
        """
        from delta_orch.verbs.units import list_units

        return list_units(*self._target({}))

    def undo(self, *, unit: str | None = None, run: str | None = None, **options: Unpack[CommitOptions]) -> UndoResult:
        """Remove exactly the rows that a unit wrote, or all units that a run wrote last. The unit is then as if it had
        never been done: the next attempt at it writes. Rows that the unit replaced do not come back.

        Args:
            unit: A name of `units()`.
            run: The id of a run.
            options: `dry_run=True` removes nothing and counts.

        Raises:
            InvalidRequestError: There is no such unit or run; or both or neither are given.
            RedoNotPossibleError: Its rows cannot be told from others: a compaction without `unit_column` moved them, it
                merged or updated rows, or later units have read on. Nothing was changed.
            AppendOnlyError: The table keeps its rows.
            ConflictError: Another commit changed those files. Nothing was committed.
        """
        from delta_orch.verbs.units import undo

        log, snapshot = self._target(options)
        return undo(log, snapshot, unit=unit, run=run, options=options)

    def clone(
        self,
        target_uri: str | PathLike[str],
        shallow: bool = True,
        version: int | None = None,
        timestamp: Timestamp | None = None,
        replace: bool = False,
        properties: Mapping[str, str] | None = None,
        *,
        storage_options: Mapping[str, object] | None = None,
        **options: Unpack[CommitOptions],
    ) -> CommitResult:
        """Create a table at another location from a version of this table, by default the newest. See
        `verbs.clone.clone`.

        Args:
            target_uri: Location of the clone. A shallow clone must be in the same store as this table.
            shallow: Name the files of this table by absolute paths. False copies them.
            version, timestamp: As of `snapshot`.
            replace: A table at the target becomes the clone. By default that is refused.
            properties: Table properties of the clone. They override those that it takes over.
            storage_options: Options of the target's store.

        Returns: The commit of the target.

        Raises:
            TableExistsError: A table is at the target, and `replace` is not given; or one lies around the target or
                below it.
            InvalidRequestError, InvalidPropertyError: The target is this table, or a property cannot be set.
            UnsupportedStoreError: The target cannot reach the files of this table.
            MissingFileError, CorruptDataError: A file is gone, or is not the file that the log names. The target is as
                before. It may hold copies that no commit names; vacuum removes them.
            ConflictError: Another writer created or changed the target in the meantime.
        """
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

    def add_files(
        self,
        paths: Sequence[str | PathLike[str]],
        *,
        partition_values: Mapping[str, object] | Sequence[Mapping[str, object]] | None = None,
        replace_where: str | Expression | None = None,
        **options: Unpack[CommitOptions],
    ) -> CommitResult:
        """Commit Parquet files that another program wrote, as they are, with the statistics of their footers. See
        `verbs.add_files.add_files`.

        Args:
            paths: Files in the table's directory, relative to it, absolute, or as URIs; or elsewhere in the table's
                store, where `external_paths` allows. Vacuum deletes no file outside the directory.
            partition_values: The values of the partition columns, of all files or of each; None takes them from
                directories `name=value` in the paths.
            replace_where: The files replace exactly the rows for which this is true, and have no others. Files that
                also hold other rows are rewritten, as by `overwrite`.

        Raises:
            InvalidRequestError: A file is named twice, is or was in the table, is no Parquet file or has no place for
                data; or the partition values do not fit.
            SchemaMismatchError: A file does not have the table's columns, by name and type.
            ConstraintViolationError: A row breaks NOT NULL or a rule of the table, or lies outside of `replace_where`.
            MissingFileError, UnsupportedStoreError: A file is not there, or the table may not read it.
            UnsupportedFeatureError: The table's files are more than their columns: column mapping by id, Iceberg.
            ConflictError: Another writer changed what this relies on. Of all of these: the table is unchanged.
        """
        from delta_orch.verbs.add_files import add_files

        return add_files(*self._target(options), paths, partition_values, replace_where, options)

    def generate(self, mode: str = "symlink_format_manifest") -> tuple[str, ...]:
        """Write manifests that let engines without Delta read the newest version's files: one a partition, below
        `_symlink_format_manifest`, with an absolute path a line. Manifests of partitions without files are deleted.

        Later commits leave them as they are, unless `delta.compatibility.symlinkFormatManifest.enabled` is true.

        Args:
            mode: `symlink_format_manifest`, the only one there is.

        Returns: The paths of the manifests.

        Raises:
            InvalidRequestError: There is no such mode.
            UnsupportedFeatureError: A file has a deletion vector, or columns are mapped. Nothing was written.
            StorageError: Some are not written. Run it again.
        """
        from delta_orch.log.upkeep.manifest_writer import write_manifests

        if mode != "symlink_format_manifest":
            raise InvalidRequestError(f"There is no mode {mode!r}", remedy='Use "symlink_format_manifest"')
        return write_manifests(self.snapshot())

    # Maintenance

    def staged(self, reference: str) -> StagedWrite:
        """A write that was staged with `stage=True`, by its reference (`CommitResult.staged`). See `StagedWrite`.

        Raises:
            StagedWriteGoneError: It was discarded, or vacuum has removed it.
            InvalidRequestError: `reference` cannot be one.
        """
        from delta_orch.staged_write import StagedWrite

        return StagedWrite(self.log, reference)

    def staged_writes(self) -> list[StagedWrite]:
        """The staged writes that are there, oldest first: also those that are published and that vacuum has not
        removed yet. The table need not exist."""
        from delta_orch.staged_write import staged_writes

        return staged_writes(self.log)

    def alter(self) -> Alteration:
        """Change properties, features, constraints, columns or clustering: collect changes, then `commit()` them as
        one version.

            table.alter().set_properties({"delta.appendOnly": "true"}).add_column("note", "string").commit()
        """
        from delta_orch.verbs.alter.builder import Alteration

        return Alteration(self.log, self.snapshot)

    def domain_metadata(self) -> Mapping[str, str]:
        """The table's metadata domains, name → configuration, those of table features (`delta.…`) included (PROTOCOL,
        "Domain Metadata"). Raises as `snapshot`."""
        return self.snapshot().domain_metadata

    def set_domain_metadata(self, domain: str, configuration: str, **options: Unpack[CommitOptions]) -> CommitResult:
        """Set a metadata domain of your own; `delta.…` is the protocol's. See `verbs.domain_metadata`.

        Raises:
            InvalidRequestError: The name is not yours to use, or the table has no metadata domains.
            ConcurrentDomainMetadataError: Another commit changed the same domain.
        """
        from delta_orch.verbs.domain_metadata import set_domain_metadata

        return set_domain_metadata(*self._target(options), domain, configuration, options)

    def remove_domain_metadata(self, domain: str, **options: Unpack[CommitOptions]) -> CommitResult:
        """Remove a metadata domain of your own; `skipped` if there is no domain of that name. Raises as
        `set_domain_metadata`."""
        from delta_orch.verbs.domain_metadata import remove_domain_metadata

        return remove_domain_metadata(*self._target(options), domain, options)

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
        """Merge small files within each partition and remove deleted rows. What readers see does not change.

        `zorder_by` puts rows with similar values in these columns into the same files, so that filters over them skip
        more files. A table with clustering columns is clustered by them instead. Only files that are not clustered yet
        are rewritten.

        Args:
            where: A predicate over partition columns.
            target_file_size_bytes: Files below it are merged up to it; by default `delta.targetFileSize` or 128 MiB.
            zorder_by: Columns, or fields of structs (`a.b`), that files have statistics of. All files of the partitions
                are rewritten, each time.
            full: Cluster every file of a clustered table again, also those that are clustered already.
            max_deleted_rows_ratio: A file of any size is rewritten if deletion vectors mark more than this share.

        Returns: `skipped` where there was nothing to merge.

        Raises:
            InvalidExpressionError, ColumnNotFoundError: `where` does not fit, or looks at other columns.
            InvalidRequestError: `zorder_by` names a partition column, or one without statistics; or the table is
                clustered; or it is not, and `full` is given.
            ConflictError: Another commit removed one of the files.
        """
        from delta_orch.verbs.optimize import optimize

        return optimize(
            *self._target(options),
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
        """Rewrite the files that hold deleted rows or dropped columns. What readers see does not change. Together with
        `vacuum` this erases deleted data. The reference calls it REORG … APPLY (PURGE). See `verbs.purge.purge`.

        Args:
            where: A predicate over partition columns.

        Returns: `skipped` if no file holds deleted rows or dropped columns.

        Raises:
            InvalidExpressionError, ColumnNotFoundError: `where` does not fit, or looks at other columns.
            ConflictError: Another commit changed one of the files.
        """
        from delta_orch.verbs.purge import purge

        return purge(*self._target(options), where, engine, options)

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
            keep_versions: Versions of any age that can still be read afterwards.

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

    def fsck(self, version: int | None = None, check_files: bool = False, deep: bool = False) -> FsckReport:
        """Check the log, a version's state (by default the newest) and its version checksum; with `check_files` look up
        every data file and verify every deletion vector; with `deep` read every page and hold the rows against the
        statistics, too. See `verbs.fsck.fsck`.

        Raises:
            TableNotFoundError, VersionNotFoundError: There is nothing to check.
            UnsupportedFeatureError, UnsupportedVersionError: This release might misread the version.
            InvalidRequestError: `version` is not a version number.
        """
        from delta_orch.verbs.fsck import fsck

        if version is not None:
            ensure_version(version)
        return fsck(self.log, version, check_files=check_files, deep=deep)

    def repair(self, **options: Unpack[CommitOptions]) -> CommitResult:
        """Remove data files that are gone from the table, so that the others can be read again. Their rows are lost.
        Run it with `dry_run=True` first: `preview.removes` names the files. See `verbs.fsck.repair`.

        Returns: `skipped` where no file is gone.

        Raises:
            StorageError: The store cannot say of every file whether it is there. Nothing was committed.
            AppendOnlyError: The table keeps its rows.
            ConflictError: Another commit removed one of the files.
        """
        from delta_orch.verbs.fsck import repair

        return repair(*self._target(options), options)

    def wait_for_upkeep(self, timeout_s: float | None = None) -> bool:
        """Wait for the background work of this process on the table: the checkpoint of a large table, and the log
        cleanup that follows it (docs/log.md). The interpreter waits for this before it exits. A process that ends by
        `os._exit` or is frozen between calls should call this method.

        Args:
            timeout_s: Longest time to wait in seconds. None waits without a limit.

        Returns: Whether no work is left. Failures are logged.
        """
        from delta_orch.log.upkeep.background import wait_for_upkeep

        return wait_for_upkeep(self.log.store.uri, timeout_s)

    def checkpoint(
        self, policy: Literal["classic", "v2"] | None = None, v2_format: Literal["json", "parquet"] = "json"
    ) -> int:
        """Write a checkpoint of the newest version, and return which one that is. Rows do not change.

        Commits write one automatically every `delta.checkpointInterval` versions. See `verbs.checkpoint.checkpoint`.

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
        """Remove the part of the log that is older than `delta.logRetentionDuration`. The versions in it cannot be read
        afterwards. Commits do this automatically after checkpoints. See `log.upkeep.log_cleanup.clean_up_log`.

        Raises:
            StorageError: A file could not be removed. Run it again.
        """
        from delta_orch.log.upkeep.log_cleanup import clean_up_log

        return clean_up_log(self.log, self.log.snapshot(), dry_run=dry_run)
