"""Changes rows: deletes, updates and inserts them. DELETE, UPDATE and MERGE use this mechanism.

A verb finds rows and their new values; `RowChanges` does the rest::

    changes = RowChanges(write, files)                  # files of the snapshot that may hold rows that change
    rows = changes.scan(where)                          # their rows, each with its address
    counts = changes.apply(write.engine.project(rows, …))

The relation for `apply` has one row for each changed row of the table, and one for each new row:

- `ADDRESS.file_number`, `ADDRESS.row_position` (long), as in the result of `scan`. Null for an inserted row.
- `ADDRESS.kind` (string, not null): `DELETE`, `UPDATE` or `INSERT`.
- `ADDRESS.row_id` (long), as in the result of `scan`, if the table tracks rows and the relation updates rows. Null for
    inserts.
- The table's columns with the new values, in the table's types (narrower types are widened). They are ignored for a
    deleted row. A relation that only deletes does not need them. Other columns are ignored.

The relation is evaluated once, so it need not be deterministic. If the caller passes `sets`, the relation may be read
several times, and must return the same rows each time.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

import pyarrow as pa

from delta_orch.engines.base import Measure, Relation, as_they_are
from delta_orch.engines.row_sets import RowKey, RowSet
from delta_orch.engines.scan_plan import ScanPlan, with_row_addresses
from delta_orch.errors import ConstraintViolationError, InvalidRequestError
from delta_orch.expressions.nodes import Column, Comparison, Expression, Literal
from delta_orch.expressions.tree import conjunction
from delta_orch.protocol.arrow_building import python_rows
from delta_orch.protocol.types import LONG
from delta_orch.scan.scan import scan_of_files
from delta_orch.writing.moved_rows import RowCopies
from delta_orch.writing.plan import Write
from delta_orch.writing.row_address import ADDRESS, DELETE, INSERT, UPDATE, ChangeCounts
from delta_orch.writing.row_change_files import ChangedFiles

__all__ = ["ADDRESS", "DELETE", "INSERT", "UPDATE", "ChangeCounts", "RowChanges"]

_MOST_KEYS = 5


class RowChanges:
    """One change of rows of a snapshot, in one run of a plan.

    Args:
        write: The write. It must have a snapshot. The verb declares to the transaction what the change depends on
            (`read_where`, `read_whole_table`). `RowChanges` declares the files and rows that it touches.
        files: Files of the snapshot that may hold rows that change, all columns of `ADD_SCHEMA`. Files are opened when
            the result of `scan` is read.

    Raises InvalidRequestError: The table has a column with a name of `ADDRESS`.
    """

    def __init__(self, write: Write, files: pa.Table) -> None:
        assert write.snapshot is not None
        self._write = write
        self._snapshot = write.snapshot
        self._files = files.combine_chunks()
        self._copies = RowCopies(write.snapshot)
        self._opened: list[tuple[int, int]] = []
        for name in ADDRESS.names:
            if write.target.schema.find(name) is not None:
                raise InvalidRequestError(
                    f"The table has a column {name!r}, a name that this package reserves for changes of rows",
                    remedy="Rename the column",
                    column=name,
                )

    @property
    def tracks_rows(self) -> bool:
        """Whether updated rows keep their row ids. In that case `scan` has the column `ADDRESS.row_id`."""
        return self._copies.stored_names is not None

    @property
    def address_columns(self) -> tuple[str, ...]:
        """Return the columns that `scan` adds."""
        columns = (ADDRESS.file_number, ADDRESS.row_position)
        return (*columns, ADDRESS.row_id) if self.tracks_rows else columns

    def scan(self, where: Expression | None = None, columns: Sequence[str] | None = None) -> Relation:
        """Return the rows of the files for which `where` is true, lazily.

        Args:
            where: A predicate, resolved against the table's schema. None means all rows.
            columns: The columns of the table to return, in this order. None means all.

        Returns: These columns, then `address_columns`. They have the schema after this write, so a column that the
        write adds is null.
        """
        engine = self._write.engine
        rows = engine.scan(self._address_plan(where, columns))
        names = self._write.target.schema.names if columns is None else columns
        column_names = [*names, *self.address_columns]
        return engine.project(rows, as_they_are(column_names))

    def _address_plan(self, where: Expression | None, columns: Sequence[str] | None) -> ScanPlan:
        names = None if columns is None else tuple(columns)
        plan = scan_of_files(self._snapshot, self._files, names, where, self._write.target.table)
        plan = replace(plan, opened=self._opened)
        if self.tracks_rows:
            plan = self._copies.plan(plan, (ADDRESS.row_id, ADDRESS.row_commit_version))
            if plan.columns is not None:
                plan = replace(plan, columns=(*plan.columns, ADDRESS.row_id))
        return with_row_addresses(plan, ADDRESS.file_number, ADDRESS.row_position)

    def apply(
        self,
        relation: Relation | None,
        *,
        sets: Mapping[RowKey, RowSet] | None = None,
        addresses: Relation | None = None,
        whole: pa.Table | None = None,
        recomputed: Collection[str] = (),
        filled: Collection[str] = (),
        keys: Sequence[str] = (),
        may_repeat: bool = False,
    ) -> ChangeCounts:
        """Change the rows, and stage the result. If no row changes, nothing is staged.

        A file without remaining rows is removed. A file gets a deletion vector if the table allows it
        (`delta.enableDeletionVectors`), and if the file is small or at most `MOST_MARKED` of its rows are deleted.
        Other files are rewritten. Moved rows keep ids and commit versions, and updated rows keep their ids. New rows
        must satisfy the rules of the table. Change data files are written if the changes do not follow from the other
        files of the commit.

        Args:
            relation: The changed rows (see the module). None if there are none.
            sets: The addresses in `relation`, if the caller knows them. None reads them from `relation`.
            addresses: The same rows without the table's columns, if `relation` returns the same rows each time. Rows
                that do not fit into memory are then evaluated while they are written, and are not stored in between.
            whole: Other files, with all columns of `ADD_SCHEMA`, whose rows are all deleted without being read.
            recomputed: Columns that the table computes for updated rows (generated columns). The relation's values for
                them are ignored. Generated columns that are not among them are verified.
            filled: Columns that the table fills for inserted rows: defaults, generated and identity columns.
            keys: Columns of the relation that identify the row in an error.
            may_repeat: Whether the relation may delete the same row more than once.

        Raises:
            ConstraintViolationError: A row is changed more than once (`constraint` is `cardinality`; up to five are
                named by `keys`), or a new row breaks a rule of the table. Nothing was committed.
            AppendOnlyError: The table keeps its rows.
            Other errors: As reading the relation, and as `Engine.write`.
        """
        started = time.monotonic()
        engine = self._write.engine
        with ExitStack() as stack:
            if relation is None:
                sets = {}
            elif sets is None:
                is_again = False
                names = engine.schema(relation).names
                if keys or any(self._write.target.schema.find(name) is not None for name in names):
                    repeats = addresses is not None
                    evaluated = stack.enter_context(engine.evaluated(relation, repeats=repeats))
                    is_again, relation = repeats and evaluated is relation, evaluated
                named = addresses if is_again and addresses is not None else relation
                if is_again:
                    self._opened.clear()
                sets = engine.row_sets(named, ADDRESS.kind, ADDRESS.file_number, ADDRESS.row_position)
            if relation is not None and not may_repeat:
                self.ensure_once(sets, relation, keys)
            scanned, opened = time.monotonic(), list(self._opened)
            counts = ChangedFiles(self._write, self._copies, self._files, sets, whole).stage(
                relation, recomputed=recomputed, filled=filled
            )
        written = time.monotonic()
        if opened:
            groups, read = (sum(numbers) for numbers in zip(*opened, strict=True))
            self._write.measured |= {"numRowGroups": groups, "numRowGroupsRead": read}
        return replace(counts, scan_ms=_ms(scanned - started), rewrite_ms=_ms(written - scanned))

    def ensure_once(self, sets: Mapping[RowKey, RowSet], relation: Relation, keys: Sequence[str] = ()) -> None:
        """Raise as `apply` if a relation with the rows of `sets` has an address twice."""
        rows_by_file: dict[int, RowSet] = {}
        for (_, number), rows in sets.items():
            if number is not None:
                rows_by_file.setdefault(number, RowSet()).unite(rows)
        repeated = sum(rows.num_rows - len(rows.positions) for rows in rows_by_file.values())
        if not repeated:
            return
        shown = self._repeated_rows(relation, keys) if keys else []
        raise ConstraintViolationError(
            "Rows of the table would be changed more than once",
            cause=f"More than one change applies to {'; '.join(map(str, shown)) or 'the same row'}: {repeated} too "
            "many",
            remedy="Keep one source row for each row of the table, for example the newest of each key",
            constraint="cardinality",
            rows=shown,
        )

    def _repeated_rows(self, relation: Relation, keys: Sequence[str]) -> list[dict[str, object]]:
        """Return the values of `keys` for up to five of the rows."""
        engine = self._write.engine
        address = as_they_are((ADDRESS.file_number, ADDRESS.row_position))
        count = "_delta_orch_changes"
        # Keys may have any type, so the rows are read in a second step by their addresses.
        groups = engine.aggregate(relation, address, [Measure(count, "count", Column((ADDRESS.file_number,)))])
        many = engine.filter(groups, Comparison(">", Column((count,)), Literal(1, LONG)))
        shown: list[dict[str, object]] = []
        for row in engine.to_arrow(many, limit=_MOST_KEYS).to_pylist():
            is_it = [
                Comparison("=", Column((name,)), Literal(row[name], LONG))
                for name in (ADDRESS.file_number, ADDRESS.row_position)
            ]
            one = engine.filter(relation, conjunction(*is_it))
            named = engine.project(one, as_they_are(keys))
            shown += python_rows(engine.to_arrow(named, limit=1))
        return shown


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
