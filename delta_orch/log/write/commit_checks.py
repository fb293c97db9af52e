"""Checks before a commit is tried. Nothing has been written when one of these raises."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.errors import (
    ConflictError,
    InvalidRequestError,
    MetadataChangedError,
    TableExistsError,
)
from delta_orch.log.files.file_columns import FileTable, record_counts
from delta_orch.log.write.commit_base import CommitBase
from delta_orch.log.write.commit_options import ISOLATION_LEVELS, CommitOptions
from delta_orch.log.write.staged_actions import StagedActions, ensure_partitioned, keys_of
from delta_orch.protocol.actions import Metadata
from delta_orch.protocol.table_properties import ensure_no_credential
from delta_orch.table.column_mapping import without_column_mapping
from delta_orch.table.configuration import TableConfiguration
from delta_orch.table.registry import ensure_asks_catalog
from delta_orch.table.row_tracking import ROW_COMMIT_VERSION_COLUMN, ROW_ID_COLUMN

if TYPE_CHECKING:
    from delta_orch.log.read.snapshot import Snapshot
    from delta_orch.log.read.table_log import TableLog


def ensure_may_commit(
    log: TableLog,
    snapshot: Snapshot | None,
    base: CommitBase | None,
    staged: StagedActions,
    result: TableConfiguration,
) -> None:
    """Everything that can be checked before the first attempt.

    Args:
        snapshot: The version the transaction starts from.
        base: That version; None where the table is to be created.
        result: The table as the commit will leave it.

    Raises:
        UnsupportedFeatureError, UnsupportedVersionError: This release must not write the table that would result.
        InvalidRequestError (and its kinds): The actions break a rule of the table or of the protocol.
        TableExistsError, ConflictError: See `ensure_next_version_is_new`.
    """
    before = None if base is None else base.table
    result.for_writing()
    ensure_asks_catalog(result.protocol, log.store.is_catalog_managed, log.store.uri)
    for adds in staged.adds:
        ensure_partitioned(adds, result.partition_columns)
    # Now, so that nothing can fail once the commit stands.
    result.properties.ensure_valid()
    staged.ensure_consistent()
    if staged.removes:
        ensure_may_remove(staged, before)
    ensure_vectors_have_counts(staged.adds)
    ensure_iceberg_kept(before, staged.adds, result)
    if result.properties.symlink_manifests:
        ensure_manifests_true(result)
    if staged.domain_metadata:
        ensure_domains_supported(staged, result)
    if snapshot is not None and begins_to_track_rows(before, result):
        ensure_every_row_has_an_id(snapshot, staged)
    ensure_next_version_is_new(log, base)


def ensure_start(options: CommitOptions, snapshot: Snapshot | None) -> None:
    """Raise InvalidRequestError for an unknown isolation level (None is the table's), and where a transaction does not
    start from the version that its caller has read."""
    level, version = options.get("isolation_level"), options.get("read_version")
    if level is not None and level not in ISOLATION_LEVELS:
        raise InvalidRequestError(f"Unknown isolation level {level!r}", remedy=f"Use {' or '.join(ISOLATION_LEVELS)}")
    if version is not None and (snapshot is None or snapshot.version != version):
        start = "no table" if snapshot is None else f"version {snapshot.version}"
        raise InvalidRequestError(
            f"The operation starts from {start}, not from version {version!r}",
            cause="It cannot be worked out from an older version, or needs further commits before",
            remedy="Run it without read_version",
        )


def ensure_may_remove(staged: StagedActions, table: TableConfiguration | None) -> None:
    """Raise AppendOnlyError where the table keeps its rows (PROTOCOL, "Append-only Tables"), InvalidRequestError where
    there is no table yet."""
    if table is None and staged.num_removed:
        raise InvalidRequestError("A transaction that creates a table has no files to remove")
    if table is not None and staged.removes_data:
        table.ensure_rows_may_leave()


def ensure_may_write_deletion_vectors(result: TableConfiguration) -> None:
    """Raise InvalidRequestError where the table takes no new deletion vectors (PROTOCOL, "Deletion Vectors")."""
    if not result.enables("deletionVectors"):
        raise InvalidRequestError(
            "The table takes no deletion vectors",
            cause="Its property delta.enableDeletionVectors is not true, or its protocol lacks the feature",
            remedy="Set delta.enableDeletionVectors, or rewrite the files",
        )


def ensure_vectors_have_counts(adds: Sequence[pa.Table]) -> None:
    """Raise InvalidRequestError where a file with a deletion vector does not say how many records it has (PROTOCOL,
    "Writer Requirement for Deletion Vectors")."""
    for files in adds:
        if "deletion_vector" not in files.column_names:
            continue
        vectors = FileTable(files).deletion_vector
        if vectors.null_count < files.num_rows and _counts(pc.filter(files, pc.is_valid(vectors))).null_count:
            raise InvalidRequestError(
                "A file with a deletion vector does not say how many records it has",
                remedy="Give numRecords in its statistics, counting the deleted rows",
            )


def ensure_domains_supported(staged: StagedActions, result: TableConfiguration) -> None:
    """Raise InvalidRequestError where the table has no metadata domains (PROTOCOL, "Domain Metadata")."""
    if not result.supports("domainMetadata"):
        raise InvalidRequestError(
            "The table has no metadata domains",
            cause="Its protocol does not list the table feature domainMetadata",
            remedy="Add the feature domainMetadata to the table first",
            domains=sorted(staged.domain_metadata),
        )


def begins_to_track_rows(before: TableConfiguration | None, result: TableConfiguration) -> bool:
    """Whether a commit enables row tracking on an existing table."""
    return before is not None and result.enables("rowTracking") and not before.enables("rowTracking")


def ensure_every_row_has_an_id(snapshot: Snapshot, staged: StagedActions) -> None:
    """Check what enabling row tracking requires of existing files (PROTOCOL, "Row Tracking").

    Raises:
        InvalidRequestError: Some have no base row id. Nothing was committed.
    """
    columns = ("path", "dv_id", "base_row_id", "default_row_commit_version")
    files = snapshot.files(columns)
    lacking = pc.filter(
        files, pc.or_(pc.is_null(FileTable(files).base_row_id), pc.is_null(FileTable(files).default_row_commit_version))
    )
    if lacking.num_rows:
        replaced = [keys_of(files) for files in staged.adds] + [staged.removed_keys()]
        lacking = pc.filter(lacking, pc.invert(pc.is_in(keys_of(lacking), value_set=pa.concat_arrays(replaced))))
    if lacking.num_rows:
        raise InvalidRequestError(
            f"{lacking.num_rows} files of the table have no row ids yet",
            cause="Row tracking can only be enabled once every row has an id",
            remedy="Give them ids first (backfill)",
            num_files=lacking.num_rows,
        )


def ensure_next_version_is_new(log: TableLog, base: CommitBase | None) -> None:
    """Check that the next version was never written. A missing file proves nothing where commits were cleaned up.

    Costs no request unless the base is older than the log retention, or a table is created.

    Raises:
        TableExistsError: A table is to be created, but one exists whose first commits are gone.
        ConflictError: The commits after `base` are gone.
    """
    if base is None:
        # In this order: a table that another writer creates in between has its version 0.
        if log.exists() and not log.has_version(0):
            raise TableExistsError(
                f"There is already a table at {log.store.uri}", remedy="Open it and start from its snapshot"
            )
        return
    age_ms = time.time_ns() // 1_000_000 - base.timestamp_ms
    if age_ms <= base.table.properties.log_retention_ms or log.has_version(base.version):
        return
    latest = log.latest_version()
    if latest > base.version:
        raise ConflictError(
            f"Version {base.version}, which this change starts from, is too old",
            cause="Commits after it were cleaned up, so conflicts with them cannot be found",
            remedy="Run the operation again: it will start from the newest version",
            winning_version=latest,
        )


def ensure_iceberg_kept(
    before: TableConfiguration | None, adds: Sequence[pa.Table], result: TableConfiguration
) -> None:
    """Check a table that must stay readable as Iceberg, and its new files: the rules of `table.iceberg`."""
    is_compatible = result.properties.is_iceberg_compatible
    if not is_compatible and (before is None or not before.properties.is_iceberg_compatible):
        return
    from delta_orch.table import iceberg

    if before is not None:
        iceberg.ensure_promise_kept(before, result)
    iceberg.ensure_compatible(result)
    for files in adds if is_compatible else ():
        iceberg.ensure_new_files_fit(result, **_traits(files))


def ensure_files_fit_iceberg(snapshot: Snapshot, table: TableConfiguration) -> None:
    """Check the files of a snapshot where its table is to become `table`: the rules of `table.iceberg`."""
    from delta_orch.table import iceberg

    begun = iceberg.versions_begun(snapshot.configuration, table)
    if begun and snapshot.num_files:
        iceberg.ensure_files_fit(snapshot.configuration, begun, **_traits(snapshot.files(["dv_id", "stats"])))


def _traits(files: pa.Table) -> dict[str, bool]:
    has_vectors = "dv_id" in files.column_names and FileTable(files).dv_id.null_count < files.num_rows
    return {"have_vectors": has_vectors, "lack_counts": _counts(files).null_count > 0}


def ensure_manifests_true(result: TableConfiguration) -> None:
    """Raise InvalidRequestError where symlink manifests would show readers other rows than the table has."""
    problems = [name for name in ("deletionVectors", "columnMapping") if result.enables(name)]
    if problems:
        raise InvalidRequestError(
            f"A table with symlink manifests cannot have {' or '.join(problems)}",
            cause="Those who read its files by the manifests would see deleted rows, or columns by other names",
            remedy="Set delta.compatibility.symlinkFormatManifest.enabled or the property of the feature to false",
            features=problems,
        )


PHYSICAL_NAMES = "physical names of columns"


def ensure_joinable(configuration: TableConfiguration, created: CommitBase) -> None:
    """Check that two writers that create a table mean the same one. Then the second joins it.

    Raises:
        MetadataChangedError: Schema, partitioning or properties differ. Where only the generated names of columns in
            files differ, `context["differences"]` is `[PHYSICAL_NAMES]`. Nothing was written; running again finds an
            existing table.
    """
    created_table = created.table
    logical = [without_column_mapping(table.schema) for table in (configuration, created_table)]
    differences = [
        what
        for what, same in (
            ("schema", logical[0] == logical[1]),
            (PHYSICAL_NAMES, logical[0] != logical[1] or configuration.schema == created_table.schema),
            ("partitioning", configuration.partition_columns == created_table.partition_columns),
            ("properties", _chosen(configuration) == _chosen(created_table)),
        )
        if not same
    ]
    if differences:
        raise MetadataChangedError(
            "Another writer has just created a different table",
            cause=f"Not the same: {', '.join(differences)}",
            remedy="Run the operation again: it will find an existing table",
            winning_version=created.version,
            differences=differences,
        )


def _chosen(table: TableConfiguration) -> dict[str, str]:
    """The properties without those that each writer generates."""
    generated = (ROW_ID_COLUMN, ROW_COMMIT_VERSION_COLUMN)
    return {key: value for key, value in table.configuration.items() if key not in generated}


def _counts(files: pa.Table) -> pa.Array:
    return record_counts(files)


def ensure_no_credential_enters(metadata: Metadata, metadata_before: Metadata | None) -> None:
    """Check each new text of the metadata, compared with `metadata_before`: names, comments, expressions, properties.

    Raises InvalidPropertyError: One holds a credential, which the log would keep.
    """
    old = set() if metadata_before is None else {text for _, text in _texts(metadata_before)}
    for place, text in _texts(metadata):
        if text not in old:
            ensure_no_credential(text, place)


def _texts(metadata: Metadata) -> Iterator[tuple[str, str]]:
    """Each with where it stands."""
    yield "name of the table", metadata.name or ""
    yield "description of the table", metadata.description or ""
    for key, value in metadata.configuration.items():
        yield "name of a table property", key
        yield f"table property {key}", value
    for column in orjson.loads(metadata.schema_string or "{}").get("fields", ()):
        yield "name of a column", column["name"]
        yield from ((f"definition of column {column['name']}", text) for text in _strings({**column, "name": ""}))


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for part in chain(value, value.values()) if isinstance(value, dict) else value:
            yield from _strings(part)
