"""What a transaction has read, as far as a concurrent commit could have changed it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.expressions.nodes import Expression
from delta_orch.log.files.arrow_building import all_booleans
from delta_orch.log.files.partition_columns import file_partition_keys, one_chunk, partition_keys
from delta_orch.log.read.reconcile import file_keys
from delta_orch.log.read.skipping.data_skipping import match_files
from delta_orch.protocol.data_path import canonical_paths
from delta_orch.protocol.types import StructType

if TYPE_CHECKING:
    from delta_orch.log.read.snapshot import Snapshot

_KEY_COLUMNS = ("path", "dv_id")


@dataclass(slots=True)
class ReadSet:
    """The rows and files a transaction depends on; empty for a blind append.

    Attributes:
        whole_table: Every row.
        predicates: The rows for which one of them is true; resolved against the table's schema.
        partitions: The rows of these partitions: tables of string columns, spelled as in the log.
        files: Keys (`reconcile.file_keys`) of single files.
        moved: Keys of files into which others have moved rows that may have been read (compaction).
    """

    whole_table: bool = False
    predicates: list[Expression] = field(default_factory=list)
    partitions: list[pa.Table] = field(default_factory=list)
    files: list[pa.Array] = field(default_factory=list)
    moved: list[pa.Array] = field(default_factory=list)

    @property
    def reads_rows(self) -> bool:
        """Whether a file that is new to the table may hold rows this transaction should have read."""
        return self.whole_table or bool(self.predicates) or bool(self.partitions)

    @property
    def is_empty(self) -> bool:
        return not self.reads_rows and not self.files

    def may_hold_read_rows(self, files: pa.Table, schema: StructType, partition_columns: Sequence[str]) -> pa.Array:
        """For each file (columns of `file_columns`), false only where none of its rows can have been read."""
        rows = files.num_rows
        if self.whole_table:
            return all_booleans(True, rows)
        # A remove may lack its partition values (PROTOCOL, "Add File and Remove File"): then it may lie anywhere.
        values = files.column("partition_values")
        touched = one_chunk(values.is_null()) if partition_columns else all_booleans(False, rows)
        for predicate in self.predicates:
            touched = pc.or_(touched, match_files(files, predicate, schema, tuple(partition_columns)).may_match)
        if self.partitions:
            keys = file_partition_keys(files, schema, partition_columns)
            for partitions in self.partitions:
                read = partition_keys(partitions.select(list(partition_columns)), schema)
                touched = pc.or_(touched, pc.is_in(keys, value_set=read))
        return touched

    def keys_in(self, snapshot: Snapshot) -> pa.Array:
        """The keys of all files of a snapshot that may hold rows that were read. Partition values and statistics of the
        snapshot decide: the `remove` of a file repeats no statistics.

        Raises as `Snapshot.files`.
        """
        found = list(self.files)
        if self.whole_table:
            found.append(keys_of(snapshot.files(_KEY_COLUMNS)))
        else:
            found += [keys_of(snapshot.files(_KEY_COLUMNS, where)) for where in self.predicates]
            if self.partitions:
                files = snapshot.files((*_KEY_COLUMNS, "partition_values"))
                by_value = ReadSet(partitions=self.partitions)
                hit = by_value.may_hold_read_rows(files, snapshot.schema, snapshot.partition_columns)
                found.append(keys_of(files.filter(hit)))
        return pa.concat_arrays(found) if found else pa.nulls(0, pa.string())


def keys_of(files: pa.Table) -> pa.Array:
    """`reconcile.file_keys` of a table of files; without a column `dv_id`, no file has a deletion vector."""
    dv_ids = files["dv_id"] if "dv_id" in files.column_names else pa.nulls(files.num_rows, pa.string())
    return file_keys(canonical_paths(files["path"]), dv_ids)


def paths_of(keys: pa.Array) -> pa.Array:
    """The canonical paths of files, from their keys."""
    return pc.replace_substring_regex(keys, pattern="(?s)\x00.*", replacement="")
