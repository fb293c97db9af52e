"""Rewrites files before a feature is dropped that they use: mapped columns, older types, deletion vectors, or shredded
variants. The rows and their ids stay the same. The commit sets `dataChange` to false for the files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.base import Engine, WriteSpec
from delta_orch.engines.file_traits import have_older_types, have_shredded_variants, read_num_rows
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.log.files.file_columns import ADD_SCHEMA, FileTable, record_counts
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.write.deletion_vector_writer import bitmaps_of
from delta_orch.log.write.staged_actions import keys_of
from delta_orch.log.write.transaction import Transaction
from delta_orch.protocol.arrow_building import all_booleans, bool_array, int64_array, one_chunk
from delta_orch.protocol.deletion_vector import marks_inside
from delta_orch.protocol.types import StructType, fields_of, holds_variant
from delta_orch.scan.scan import scan_of_files
from delta_orch.table.column_mapping import MAX_COLUMN_ID, ColumnMappingMode, physical_name
from delta_orch.table.protocol_upgrade import FileTrait
from delta_orch.table.type_widening import has_type_changes
from delta_orch.verbs.alter.draft import Draft
from delta_orch.verbs.compaction import compaction_metrics
from delta_orch.verbs.removed_files import vector_paths
from delta_orch.writing.moved_rows import RowCopies, stage_moved, unsplit
from delta_orch.writing.plan import REMOVED_FILE_COLUMNS
from delta_orch.writing.rehearsal import RehearsalEngine
from delta_orch.writing.target import WriteTarget

_SOURCE = "source"
FILES_AT_ONCE = 10_000
"""The number of files that the engine rewrites as one job. Their plans are in memory."""


class _Basis(NamedTuple):
    """The table definition that files are written for. Files of another definition cannot be used."""

    spec: WriteSpec
    schema: StructType
    mode: ColumnMappingMode


class FileRewriter:
    """Rewrites files for an alteration. If another commit comes first, the next attempt uses the rewritten files again
    and rewrites only new ones. Vacuum deletes files that no attempt commits.

    Each file becomes one file of the same partition, or no file if all its rows are deleted.
    """

    def __init__(self, engine: Callable[[], Engine], *, dry_run: bool) -> None:
        self._engine = engine
        self._dry_run = dry_run
        self._basis: _Basis | None = None
        # `ADD_SCHEMA`, and the key of the source file of each row.
        self._made = ADD_SCHEMA.empty_table().append_column(_SOURCE, pa.nulls(0, pa.string()))

    def stage(self, transaction: Transaction, draft: Draft) -> bool:
        """Rewrite the files of the draft's snapshot that have an unwanted trait, and stage the new files.

        Returns: Whether a file was rewritten.

        Raises:
            MissingFileError, StorageError, TableError: A file cannot be read or written.
            ConstraintViolationError: A row violates a rule of the table. Nothing was committed.
        """
        files = _unwanted_files(draft)
        copies = RowCopies(draft.snapshot)
        if files.num_rows:
            self._rewrite(draft, files, copies)
            adds = pc.filter(self._made, pc.is_in(self._made.column(_SOURCE), value_set=keys_of(files)))
            keys = one_chunk(adds.column(_SOURCE)), keys_of(files)
            adds, removed = adds.drop_columns([_SOURCE]), files.select(REMOVED_FILE_COLUMNS)
            stage_moved(transaction, adds, removed, keys)
            transaction.set_operation_metrics(compaction_metrics(adds, removed))
            copies.note_in(transaction)
        if FileTrait.DELETION_VECTOR in draft.unwanted:
            transaction.keep_until_expired(_vector_paths(draft.snapshot, files))
        return bool(files.num_rows)

    def _rewrite(self, draft: Draft, files: pa.Table, copies: RowCopies) -> None:
        """Rewrite the files that are not rewritten yet."""
        target = WriteTarget(draft.snapshot.store, draft.table, draft.clustering)
        basis = _Basis(target.write_spec(), *_as_read(draft))
        if basis != self._basis:
            self._basis, self._made = basis, self._made.slice(0, 0)
        spec = copies.spec(unsplit(basis.spec))
        todo = pc.filter(
            files,
            pc.and_(
                pc.invert(pc.is_in(keys_of(files), value_set=self._made.column(_SOURCE).combine_chunks())),
                _have_rows(draft.snapshot, files),
            ),
        )
        if not todo.num_rows:
            return
        engine = RehearsalEngine(self._engine()) if self._dry_run else self._engine()
        for start in range(0, todo.num_rows, FILES_AT_ONCE):
            some = todo.slice(start, FILES_AT_ONCE)
            plans = [copies.plan(_plan(draft, basis, some.slice(row, 1))) for row in range(some.num_rows)]
            self._made = pa.concat_tables([self._made, _rewritten(engine, plans, spec, keys_of(some))])


def _rewritten(engine: Engine, plans: list[ScanPlan], spec: WriteSpec, sources: pa.Array) -> pa.Table:
    """Return the new files, each with the key of its source file."""
    made = engine.rewrite(plans, spec)
    if made.num_rows != len(plans):
        # If the total differs from the statistics, each file is checked.
        parts = [engine.rewrite([plan], spec) for plan in plans]
        made = pa.concat_tables(parts)
        sources = pc.take(sources, int64_array([row for row, part in enumerate(parts) for _ in range(part.num_rows)]))
    return made.append_column(_SOURCE, sources)


def _as_read(draft: Draft) -> tuple[StructType, ColumnMappingMode]:
    """Return the columns under their new names, with the physical names that the existing files use."""
    snapshot = draft.snapshot
    if draft.mapped_schema is not None:
        return draft.mapped_schema, snapshot.configuration.column_mapping
    return draft.schema, draft.table.column_mapping


def _plan(draft: Draft, basis: _Basis, files: pa.Table) -> ScanPlan:
    plan = scan_of_files(draft.snapshot, files, table=draft.table)
    return replace(plan, schema=basis.schema, column_mapping=basis.mode)


def _unwanted_files(draft: Draft) -> pa.Table:
    """Return the files that have an unwanted trait, with their statistics."""
    snapshot, unwanted = draft.snapshot, draft.unwanted
    files = snapshot.files((*REMOVED_FILE_COLUMNS, "stats")).combine_chunks()
    if FileTrait.MAPPED_NAMES in unwanted and _names_differ(draft):
        return files
    chosen = all_booleans(False, files.num_rows)
    if FileTrait.DELETION_VECTOR in unwanted:
        chosen = pc.or_(chosen, one_chunk(pc.is_valid(FileTable(files).dv_id)))
    mode = snapshot.configuration.column_mapping
    older, paths = draft.widened_schema, FileTable(files).path.to_pylist()
    if FileTrait.OLDER_TYPES in unwanted and older is not None and has_type_changes(older):
        chosen = pc.or_(chosen, have_older_types(snapshot.store, paths, older, mode))
    if FileTrait.SHREDDED_VARIANTS in unwanted and holds_variant(snapshot.schema):
        chosen = pc.or_(chosen, have_shredded_variants(snapshot.store, paths, snapshot.schema, mode))
    return pc.filter(files, chosen)


def _names_differ(draft: Draft) -> bool:
    """Whether files may hold a column under a name that is not its own. The physical name may differ, or a new column
    may have the name of a dropped column and would then show the old values."""
    schema = draft.mapped_schema
    if schema is None or draft.snapshot.properties.column_mapping_mode == ColumnMappingMode.NONE:
        return False
    fields = list(fields_of(schema))
    ever_given = draft.snapshot.metadata.configuration.get(MAX_COLUMN_ID)
    is_by_id = draft.snapshot.properties.column_mapping_mode == ColumnMappingMode.ID
    return is_by_id or ever_given != str(len(fields)) or any(physical_name(field) != field.name for field in fields)


def _have_rows(snapshot: Snapshot, files: pa.Table) -> pa.Array:
    """Return whether each file still has rows. If the statistics do not prove it, the footer and the deletion vector
    are read, so that a wrong number in the statistics cannot lose rows."""
    marked = pc.coalesce(pc.struct_field(one_chunk(FileTable(files).deletion_vector), "cardinality"), 0)
    is_open = pc.coalesce(pc.less_equal(record_counts(files), marked), all_booleans(True, 1)[0])
    open_files = pc.take(files, pc.indices_nonzero(is_open))
    counts = read_num_rows(snapshot.store, FileTable(open_files).path.to_pylist())
    left = [
        len(marks_inside(marks, count)) < count
        for marks, count in zip(bitmaps_of(snapshot.store, open_files), counts, strict=True)
    ]
    return pc.replace_with_mask(pc.invert(is_open), is_open, bool_array(left))


def _vector_paths(snapshot: Snapshot, files: pa.Table) -> list[str]:
    """Return the files of deletion vectors that need a tombstone of their own. Without one, a client that does not know
    deletion vectors would delete them while older versions still need them."""
    tombstones = snapshot.tombstones(["path", "deletion_vector"])
    paths = {*vector_paths(files).to_pylist(), *vector_paths(tombstones).to_pylist()}
    return sorted(paths - set(FileTable(tombstones).path.to_pylist()))
