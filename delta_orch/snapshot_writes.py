"""Writes that depend on one version of a table. They do not overwrite later changes of other writers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

from delta_orch.errors import InvalidRequestError, MetadataChangedError
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.upkeep import after_commit

if TYPE_CHECKING:
    from delta_orch.engines.select import EngineChoice
    from delta_orch.expressions.nodes import Expression
    from delta_orch.log.write.commit_options import CommitOptions
    from delta_orch.log.write.commit_result import CommitResult
    from delta_orch.verbs.merge.builder import Merge
    from delta_orch.writing.target import WriteOptions


class SnapshotWrites(Snapshot):
    """The writing methods of a `TableSnapshot`. They are those of `DeltaTable` with `read_version=` this version.

        snapshot = table.snapshot()
        snapshot.overwrite(corrected(snapshot.scan().to_arrow()))

    Each write starts from this version, even if the table has newer versions. If another commit has added or removed
    rows that the write concerns since then, the write raises a `ConflictError`. A blind append counts as such a commit.
    The write then commits nothing. Read the new version and compute the rows again. The isolation level is
    `Serializable` unless `isolation_level` sets another one.

    Raises (all methods): As the method of `DeltaTable`, and:
        ConflictError: Another commit changed rows that the write concerns. Nothing was committed.
        InvalidRequestError: `read_version` names another version.
    """

    def append(
        self,
        data: object,
        *,
        schema_mode: str | None = None,
        engine: EngineChoice = "auto",
        **options: Unpack[WriteOptions],
    ) -> CommitResult:
        """Add rows that were computed from this version. Every later change of rows is a conflict."""
        from delta_orch.verbs.append import append

        log = self._begin(options)
        return append(log, self, data, schema_mode, engine, {**options, "read_version": self.version})

    def overwrite(
        self,
        data: object,
        *,
        replace_where: str | Expression | None = None,
        partition_overwrite_mode: str = "static",
        schema_mode: str | None = None,
        engine: EngineChoice = "auto",
        **options: Unpack[WriteOptions],
    ) -> CommitResult:
        """Replace rows by rows that were computed from this version. It concerns the rows that it replaces."""
        from delta_orch.verbs.overwrite import overwrite

        log = self._begin(options)
        given: WriteOptions = {**options, "read_version": self.version}
        return overwrite(log, self, data, replace_where, partition_overwrite_mode, schema_mode, engine, given)

    def delete(
        self,
        where: str | Expression | None = None,
        *,
        engine: EngineChoice = "auto",
        **options: Unpack[CommitOptions],
    ) -> CommitResult:
        """Delete rows of this version. It concerns the rows for which `where` is true."""
        from delta_orch.verbs.delete import delete

        log = self._begin(options)
        return delete(log, self, where, engine, {**options, "read_version": self.version})

    def update(
        self,
        set: Mapping[str, str | Expression],
        where: str | Expression | None = None,
        *,
        engine: EngineChoice = "auto",
        **options: Unpack[CommitOptions],
    ) -> CommitResult:
        """Change rows of this version. It concerns the rows for which `where` is true, before and after."""
        from delta_orch.verbs.update import update

        log = self._begin(options)
        return update(log, self, set, where, engine, {**options, "read_version": self.version})

    def merge(
        self,
        source: object,
        on: str | Expression,
        *,
        source_alias: str = "source",
        target_alias: str = "target",
        engine: EngineChoice = "auto",
        schema_mode: str | None = None,
        **options: Unpack[CommitOptions],
    ) -> Merge:
        """Update, delete and insert rows of this version by the rows of a source. It concerns the rows that the source
        rows match, or would have matched."""
        from delta_orch.verbs.merge.builder import Merge
        from delta_orch.verbs.merge.run import MergeRequest, merge

        log = self._begin(options)
        request = MergeRequest(source, on, source_alias, target_alias, engine, schema_mode)
        given: CommitOptions = {**options, "read_version": self.version}
        return Merge(lambda clauses: merge(log, self, request, clauses, given))

    def upsert(
        self,
        source: object,
        keys: Sequence[str],
        *,
        engine: EngineChoice = "auto",
        schema_mode: str | None = None,
        **options: Unpack[CommitOptions],
    ) -> CommitResult:
        """Update the rows of this version whose keys are in the source, and insert the other source rows. It concerns
        the rows with the keys of the source."""
        from delta_orch.verbs.merge.upsert import upsert

        log = self._begin(options)
        return upsert(log, self, source, keys, engine, schema_mode, {**options, "read_version": self.version})

    def _begin(self, options: CommitOptions) -> TableLog:
        """The log to commit to.

        Raises:
            InvalidRequestError: Another version is asked for.
            MetadataChangedError: The version is no longer in the log, or another table is there now.
        """
        given = options.get("read_version", self.version)
        if given != self.version:
            raise InvalidRequestError(
                f"This is version {self.version}, and read_version is {given!r}",
                remedy="Leave read_version out: a snapshot is the version that was read",
            )
        last = self.segment.version_file
        if self.store.head(last.path) != last:
            raise MetadataChangedError(
                f"Version {self.version} cannot be written to any more",
                cause="Its commit is not there: it is only staged, the log was cleaned up, or another table is there",
                remedy="Read the table again",
                version=self.version,
            )
        return TableLog(self.store, type(self), after_commit)
