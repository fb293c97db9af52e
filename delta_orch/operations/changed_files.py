"""The files through which one commit changed rows."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.errors import CorruptLogError, UnsupportedFeatureError
from delta_orch.log.arrow_building import int64_array, string_array
from delta_orch.log.commit_reader import Commit
from delta_orch.log.file_columns import STRING_MAP
from delta_orch.log.snapshot import Snapshot
from delta_orch.log.table_log import TableLog
from delta_orch.protocol.data_path import canonical_paths

CHANGED_FILE_SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("partition_values", STRING_MAP),
        pa.field("size", pa.int64()),
        pa.field("change_type", pa.string()),
        pa.field("commit_version", pa.int64(), nullable=False),
        pa.field("commit_timestamp_ms", pa.int64(), nullable=False),
    ]
)
"""`change_type` is null for change data files: there each row carries its own."""


def read_changed_files(table_log: TableLog, snapshot: Snapshot, commit: Commit) -> pa.Table:
    """The files that hold the changes of a commit, columns of `CHANGED_FILE_SCHEMA`.

    Args:
        snapshot: The table at the end of the range; only its schema and partition columns are looked at.

    Raises:
        UnsupportedFeatureError: The commit changes deletion vectors.
        CorruptLogError: It removes a file that the log never added.
    """
    if commit.cdc.num_rows:
        return _changed(commit, commit.cdc, None)
    adds = commit.adds.filter(_changes_data(commit.adds))
    removes = commit.removes.filter(_changes_data(commit.removes))
    for files in (adds, removes):
        if files.column("dv_id").null_count < files.num_rows:
            raise UnsupportedFeatureError(
                f"Version {commit.version} changes rows through deletion vectors",
                cause="This release reads the changes of whole files only",
                features=["deletionVectors"],
                version=commit.version,
            )
    removes = _complete_removes(table_log, snapshot, commit, removes)
    return pa.concat_tables([_changed(commit, removes, "delete"), _changed(commit, adds, "insert")])


def _changes_data(files: pa.Table) -> pa.ChunkedArray:
    # A missing dataChange is read as true: better to show a change twice than to lose one.
    return pc.fill_null(files.column("data_change"), True)


def _changed(commit: Commit, files: pa.Table, change_type: str | None) -> pa.Table:
    count = files.num_rows
    columns = [
        files.column("path"),
        files.column("partition_values"),
        files.column("size"),
        string_array([change_type] * count),
        int64_array([commit.version] * count),
        int64_array([commit.timestamp_ms] * count),
    ]
    return pa.Table.from_arrays(columns, schema=CHANGED_FILE_SCHEMA)


def _complete_removes(table_log: TableLog, snapshot: Snapshot, commit: Commit, removes: pa.Table) -> pa.Table:
    """Fill in what old writers leave out of `remove`: partition values and size, from the version before."""
    lacks_size = removes.column("size").null_count > 0
    lacks_values = bool(snapshot.partition_columns) and removes.column("partition_values").null_count > 0
    if not (lacks_size or lacks_values):
        return removes
    before = table_log.snapshot(commit.version - 1).files(["path", "partition_values", "size"])
    rows = pc.index_in(canonical_paths(removes.column("path")), value_set=canonical_paths(before.column("path")))
    if rows.null_count:
        missing = removes.filter(pc.is_null(rows)).column("path")[0].as_py()
        raise CorruptLogError(
            f"Version {commit.version} removes a file that was not in the table: {missing}",
            version=commit.version,
            path=missing,
        )
    for name in ("partition_values", "size"):
        column = before.column(name).take(rows)
        removes = removes.set_column(removes.schema.get_field_index(name), name, column)
    return removes
