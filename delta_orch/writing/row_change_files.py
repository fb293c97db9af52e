"""Turns changed rows into changed files: files with a deletion vector, rewritten files, and new files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.base import ComputedColumn, Relation, as_they_are
from delta_orch.engines.file_traits import read_num_rows
from delta_orch.engines.row_sets import RowKey, RowSet
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.errors import ConstraintViolationError, StorageError
from delta_orch.expressions.nodes import Column, In, Literal
from delta_orch.log.files.file_columns import (
    NO_FILES,
    FileTable,
    deletion_vector_array,
    known_records,
    live_rows,
    record_counts,
)
from delta_orch.log.read.deletion_vectors import deletion_vector_descriptors, read_deletion_vectors
from delta_orch.protocol.arrow_building import int64_array
from delta_orch.protocol.deletion_vector import DeletionVector, marks_inside
from delta_orch.protocol.schema_check import ensure_schema_fits
from delta_orch.protocol.types import LONG, STRING, StructType
from delta_orch.scan.scan import scan_of_files
from delta_orch.writing.moved_rows import RowCopies, partition_keys_of
from delta_orch.writing.plan import CHANGE_DATA_DIRECTORY, Write
from delta_orch.writing.row_address import ADDRESS, DELETE, INSERT, UPDATE, ChangeCounts
from delta_orch.writing.target import PLAIN, RowShape

if TYPE_CHECKING:
    from pyroaring import BitMap64

_PREIMAGE = "update_preimage"
_TOLD = {UPDATE: "update_postimage", INSERT: INSERT}
"""The values of `_change_type` in addition to `DELETE`, by the kind of change of the row."""

MOST_MARKED = 0.5
"""If a deletion vector would mark a greater share of a file's rows, the file is rewritten instead.
docs/deleting-and-updating.md explains why."""

LEAST_REWRITTEN_BYTES = 8 * 1024 * 1024
"""A smaller file is always marked. Its deleted rows cost a scan almost nothing until `optimize`, while a rewrite
conflicts with every writer that marks other rows of the file."""


@dataclass(slots=True)
class _Touched:
    """A file with changed rows. `gone` are the rows that its deletion vector marks already. `live` is the number of its
    other rows, None if the statistics do not have it."""

    number: int
    gone: BitMap64
    deleted: BitMap64
    updated: BitMap64
    live: int | None

    @property
    def leaving(self) -> BitMap64:
        return self.deleted | self.updated


class ChangedFiles:
    """The effect of a change on files.

    Args:
        files: The scanned files, with all columns of `ADD_SCHEMA`.
        sets: The changed rows by the number of their file, and the number of new rows.
        whole: Other files whose rows are all deleted.
    """

    def __init__(
        self,
        write: Write,
        copies: RowCopies,
        files: pa.Table,
        sets: Mapping[RowKey, RowSet],
        whole: pa.Table | None,
    ) -> None:
        assert write.snapshot is not None
        self._write = write
        self._snapshot = write.snapshot
        self._copies = copies
        self._files = files
        self._whole = files.slice(0, 0) if whole is None else whole
        self._updated = sum(rows.num_rows for (kind, _), rows in sets.items() if kind == UPDATE)
        self._inserted = sum(rows.num_rows for (kind, _), rows in sets.items() if kind == INSERT)
        self._touched = self._touched_files(sets)

    def _touched_files(self, sets: Mapping[RowKey, RowSet]) -> list[_Touched]:
        numbers = sorted({number for _, number in sets if number is not None})
        files = pc.take(self._files, int64_array(numbers))
        vectors = read_deletion_vectors(self._snapshot.store, deletion_vector_descriptors(files))
        counts = record_counts(files).to_pylist()
        touched_files = []
        for number, vector, count in zip(numbers, vectors, counts, strict=True):
            gone = RowSet().positions if vector is None else vector.bitmap
            deleted, updated = (sets.get((kind, number), RowSet()).positions for kind in (DELETE, UPDATE))
            live = None if count is None else count - len(marks_inside(gone, count))
            touched_files.append(_Touched(number, gone, deleted, updated, live))
        return touched_files

    def stage(self, relation: Relation | None, *, recomputed: Collection[str], filled: Collection[str]) -> ChangeCounts:
        """Write the new files, and stage added, removed and marked files. Arguments and errors are those of
        `RowChanges.apply`."""
        write, transaction = self._write, self._write.transaction
        if self._touched or self._whole.num_rows:
            write.target.table.ensure_rows_may_leave()
        emptied, marked, rewritten = self._sorted()
        tells = write.tells_changes and bool(self._updated or rewritten)
        new = _NewRows(write, self._copies, relation, recomputed, filled)
        adds: list[pa.Table] = []
        # The number of rows in each file that are new to the table.
        num_new: list[int] = []
        change_files: list[pa.Table] = []
        copied = 0
        kinds = [kind for kind, count in ((UPDATE, self._updated), (INSERT, self._inserted)) if count]
        if rewritten and kinds and not tells and new.may_stand_beside_others(kinds):
            together = write.engine.union([self._kept(rewritten), new.rows((UPDATE, INSERT))])
            adds.append(write.engine.write(together, self._copies.spec(write.target.write_spec())))
            num_new.append(self._inserted)
            copied = known_records(adds) - self._updated - self._inserted
        else:
            if rewritten:
                spec = self._copies.spec(write.target.write_spec())
                adds.append(write.engine.write(self._kept(rewritten), spec))
                num_new.append(0)
                copied = known_records(adds)
            for part in [kinds] if kinds and not tells and new.are_alike(kinds) else [[kind] for kind in kinds]:
                # New files are also change data, so no row is written twice.
                adds.append(new.write(part, _TOLD[part[0]] if tells else None))
                num_new.append(self._inserted if INSERT in part else 0)
                change_files += [adds[-1]] if tells else []
        self._ensure_complete(adds, rewritten)
        touched = pc.take(self._files, int64_array([file.number for file in self._touched]))
        for table, count in zip(adds, num_new, strict=True):
            write.ensure_inside_scopes(table)
            self._ensure_none_is_left_out(table)
            if count == known_records([table]):
                transaction.add_files(table, just_written=True)
            else:
                keys = None if write.moves_across_partitions else partition_keys_of(write.target.table, table, touched)
                transaction.add_moved_files(table, touched, keys, num_new=count)
        for table in change_files:
            transaction.add_change_files(table)
        if tells:
            for table in self._tell_leaving():
                transaction.add_change_files(table, just_written=True)
                change_files.append(table)
        if self._updated or copied:
            self._copies.note_in(transaction)
        left = pc.take(self._files, int64_array([file.number for file in (*emptied, *rewritten)]))
        removed = pa.concat_tables([self._whole, left])
        if removed.num_rows:
            transaction.remove_files(removed)
            transaction.read_files(removed)
        if marked:
            files = pc.take(self._files, int64_array([file.number for file in marked]))
            transaction.delete_rows(files, [file.leaving for file in marked])
        return ChangeCounts(
            deleted=self._num_deleted(),
            updated=self._updated,
            inserted=self._inserted,
            copied=copied,
            added=pa.concat_tables([NO_FILES, *adds]),
            removed=removed,
            vectors_added=sum(1 for file in marked if not file.gone),
            vectors_updated=sum(1 for file in marked if file.gone),
            vectors_removed=len(removed) - FileTable(removed).deletion_vector.null_count,
            change_files=sum(table.num_rows for table in change_files),
        )

    def _ensure_complete(self, adds: Sequence[pa.Table], rewritten: Sequence[_Touched]) -> None:
        """Compare the number of written rows with the number of remaining and new rows before the commit, so that an
        engine cannot lose or duplicate rows."""
        if any(file.live is None for file in rewritten):
            return
        num_records = known_records(adds)
        if num_records != self._expected(rewritten):
            self._count_live(rewritten)
        if num_records != (expected := self._expected(rewritten)):
            raise StorageError(
                "The new files do not hold the rows that were to be written",
                cause=f"They have {num_records} rows instead of {expected}",
                remedy="Check whether another program changes files below the table's directory. The table is "
                "unchanged",
                found=num_records,
                expected=expected,
            )

    def _expected(self, rewritten: Sequence[_Touched]) -> int:
        staying = sum((file.live or 0) - len(file.leaving) for file in rewritten)
        return self._updated + self._inserted + staying

    def _count_live(self, touched: Sequence[_Touched]) -> None:
        """Read the row counts from the footers, because statistics may be wrong."""
        paths = pc.take(FileTable(self._files).path, int64_array([file.number for file in touched])).to_pylist()
        for file, num_rows in zip(touched, read_num_rows(self._snapshot.store, paths), strict=True):
            file.live = num_rows - len(marks_inside(file.gone, num_rows))

    def _ensure_none_is_left_out(self, adds: pa.Table) -> None:
        """Check that no row moves into a partition whose transaction id is recorded. The commit leaves out files of
        such a partition, so the row would be lost."""
        target, omitted = self._write.target, self._write.omitted
        if omitted is None or not adds.num_rows:
            return
        from delta_orch.log.read.skipping.data_skipping import match_files

        is_omitted = match_files(adds, omitted, target.schema, target.partition_columns).may_match
        if pc.any(is_omitted).as_py():
            partition = dict(FileTable(pc.filter(adds, is_omitted)).partition_values[0].as_py() or ())
            raise ConstraintViolationError(
                f"Rows would move into the partition {partition}, whose transaction id is recorded",
                cause="The write does not change that partition, so the rows would be lost",
                remedy="Keep rows in their partitions, or pass a TxnId without scope. The table is unchanged",
                constraint="txn scope",
                partition=partition,
            )

    def _file(self, file: _Touched) -> pa.Table:
        return self._files.slice(file.number, 1)

    def _num_deleted(self) -> int | None:
        inside = sum(len(file.deleted) for file in self._touched)
        live = live_rows(self._whole)
        return None if live is None else live + inside

    def _sorted(self) -> tuple[list[_Touched], list[_Touched], list[_Touched]]:
        """Return the files without remaining rows, the files that get a deletion vector, and the files to rewrite."""
        takes_vectors = self._write.target.table.enables("deletionVectors")
        # A file is never removed because of statistics alone.
        self._count_live([f for f in self._touched if f.live is not None and len(f.leaving) >= f.live])
        emptied, marked, rewritten = [], [], []
        for file in self._touched:
            count = len(file.leaving)
            if file.live is not None and count == file.live:
                emptied.append(file)
            elif takes_vectors and file.live is not None and self._is_marked(file, count, file.live):
                marked.append(file)
            else:
                rewritten.append(file)
        return emptied, marked, rewritten

    def _is_marked(self, file: _Touched, count: int, live: int) -> bool:
        if file.leaving.max() >= live + len(file.gone):
            return False
        if self._write.tells_changes and not self._updated:
            # The change feed can derive deletions from deletion vectors, but copied rows would need change files.
            return True
        size = FileTable(self._files).size[file.number].as_py()
        if size is not None and size < LEAST_REWRITTEN_BYTES:
            return True
        return count + len(file.gone) <= MOST_MARKED * (live + len(file.gone))

    # Rows of the files

    def _kept(self, rewritten: Sequence[_Touched]) -> Relation:
        """Return the remaining rows of rewritten files, with their row ids and commit versions."""
        plan = self._scan_of(rewritten, [file.gone | file.leaving for file in rewritten])
        return self._write.engine.scan(self._copies.plan(plan))

    def _scan_of(self, touched: Sequence[_Touched], hidden: Sequence[BitMap64]) -> ScanPlan:
        files = pc.take(self._files, int64_array([file.number for file in touched]))
        vectors = [DeletionVector(rows).inline_descriptor() if rows else None for rows in hidden]
        index = files.schema.get_field_index("deletion_vector")
        files = files.set_column(index, "deletion_vector", deletion_vector_array(vectors))
        return scan_of_files(self._snapshot, files, table=self._write.target.table)

    def _tell_leaving(self) -> list[pa.Table]:
        """Return change data of deleted rows, and of updated rows with their old values."""
        change_files = [
            self._tell(_PREIMAGE, self._only([(file, file.updated) for file in self._touched if file.updated])),
            self._tell(DELETE, self._only([(file, file.deleted) for file in self._touched if file.deleted])),
        ]
        if self._whole.num_rows:
            whole = scan_of_files(self._snapshot, self._whole, table=self._write.target.table)
            change_files.append(self._tell(DELETE, whole))
        return [files for files in change_files if files.num_rows]

    def _only(self, touched_rows: Sequence[tuple[_Touched, BitMap64]]) -> ScanPlan | None:
        """Return the scan of only these rows. Every other row of their files counts as deleted."""
        from pyroaring import BitMap64

        if not touched_rows:
            return None
        paths = pc.take(FileTable(self._files).path, int64_array([file.number for file, _ in touched_rows])).to_pylist()
        lengths = read_num_rows(self._snapshot.store, paths)
        others = [BitMap64(range(length)) - rows for (_, rows), length in zip(touched_rows, lengths, strict=True)]
        for rows in others:
            rows.run_optimize()
        return self._scan_of([file for file, _ in touched_rows], others)

    def _tell(self, change_type: str, plan: ScanPlan | None) -> pa.Table:
        if plan is None:
            return NO_FILES
        spec = replace(self._write.target.write_spec(), change_type=change_type, directory=CHANGE_DATA_DIRECTORY)
        return self._write.engine.write(self._write.engine.scan(plan), spec)


class _NewRows:
    """Return the rows of a relation that are written into new files."""

    def __init__(
        self,
        write: Write,
        copies: RowCopies,
        relation: Relation | None,
        recomputed: Collection[str],
        filled: Collection[str],
    ) -> None:
        self._write = write
        self._copies = copies
        self._relation = relation
        self._schema: StructType = StructType(()) if relation is None else write.engine.schema(relation)
        self._left_to_table = {UPDATE: _folded(recomputed), INSERT: _folded(filled)}

    def may_stand_beside_others(self, kinds: Sequence[str]) -> bool:
        """Whether moved rows may be in the same files as new rows. This needs rows in the table's own types, and no
        rules to check."""
        field_pairs = ((self._schema.find(field.name), field) for field in self._write.target.schema)
        fits = all(have is not None and have.data_type == field.data_type for have, field in field_pairs)
        return fits and all(self._shape(kind) == PLAIN for kind in kinds)

    def are_alike(self, kinds: Sequence[str]) -> bool:
        """Whether the table treats rows of these kinds in the same way."""
        made = [(self._names(kind), self._shape(kind)) for kind in kinds]
        return all(one == made[0] for one in made)

    def rows(self, kinds: Sequence[str]) -> Relation:
        """Return rows of similar kinds with the ids of updated rows, in columns as in `RowCopies`."""
        engine = self._write.engine
        is_wanted = In(Column((ADDRESS.kind,)), tuple(Literal(kind, STRING) for kind in kinds))
        columns = as_they_are(self._names(kinds[0]))
        names = self._copies.stored_names
        if names is not None and UPDATE in kinds:
            columns.append(ComputedColumn(names[0], Column((ADDRESS.row_id,))))
            # Null means the version of the commit.
            columns.append(ComputedColumn(names[1], Literal(None, LONG)))
        assert self._relation is not None
        return engine.project(engine.filter(self._relation, is_wanted), columns)

    def _names(self, kind: str) -> list[str]:
        left, names = self._left_to_table[kind], self._write.target.schema.names
        return [name for name in names if name.lower() not in left and self._schema.find(name) is not None]

    def write(self, kinds: Sequence[str], change_type: str | None) -> pa.Table:
        """Write the rows of similar kinds together."""
        write, shape = self._write, self._shape(kinds[0])
        spec = replace(shape.applied_to(write.target.write_spec()), change_type=change_type)
        adds = write.engine.write(self.rows(kinds), self._copies.spec(spec) if UPDATE in kinds else spec)
        if UPDATE not in kinds:
            write.take_identities(adds, shape)
        return adds

    def _shape(self, kind: str) -> RowShape:
        shape = self._ruled_shape(kind)
        return replace(shape, checks=(*shape.checks, *self._write.bounds()))

    def _ruled_shape(self, kind: str) -> RowShape:
        schema = StructType(tuple(f for name in self._names(kind) if (f := self._schema.find(name)) is not None))
        if not self._write.target.table.has_rules:
            ensure_schema_fits(schema, self._write.target.schema, fill_nulls=True)
            return PLAIN
        from delta_orch.writing.row_rules import shape_rows

        return shape_rows(schema, self._write.target, keeps_identity=kind == UPDATE)


def _folded(names: Collection[str]) -> set[str]:
    return {name.lower() for name in names}
