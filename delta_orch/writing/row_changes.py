"""Rows that change: deleted, updated, inserted. The one mechanism behind DELETE, UPDATE and MERGE.

A verb finds rows and their new values; `RowChanges` does the rest::

    changes = RowChanges(write, files)                  # files of the snapshot that may hold rows that change
    rows = changes.scan(where)                          # their rows, each with its address
    counts = changes.apply(write.engine.project(rows, …))

What a verb hands to `apply` is a relation with one row for each changed row of the table and each new one:

- `ADDRESS.file_number`, `ADDRESS.row_position` (long), as `scan` gave them; null for a row that is inserted;
- `ADDRESS.kind` (string, not null): `DELETE`, `UPDATE` or `INSERT`;
- `ADDRESS.row_id` (long), as `scan` gave it, if the table tracks rows and the relation updates any; null for inserts;
- the table's columns as the row is to have them, in the table's types (what is narrower is widened); nobody looks at
  those of a row that is deleted. A relation that only deletes needs none of them. Other columns are left aside.

The relation is evaluated once, so it need not be deterministic. Where the caller knows which rows it names (`sets`), it
is read as often as it takes to write them, and must give the same rows each time.
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
        write: It must have a snapshot. The verb declares to the transaction what the change depends on (`read_where`,
            `read_whole_table`). `RowChanges` declares the files and rows that it touches.
        files: Files of the snapshot that may hold rows that change, all columns of `ADD_SCHEMA`. Files are opened when
            the result of `scan` is read.

    Raises InvalidRequestError: The table has a column of a name that `ADDRESS` takes.
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
                    f"The table has a column {name!r}, a name that this package reserves while it changes rows",
                    remedy="Rename the column",
                    column=name,
                )

    @property
    def tracks_rows(self) -> bool:
        """Whether rows have ids that updated rows keep: then `scan` has the column `ADDRESS.row_id`."""
        return self._copies.stored_names is not None

    @property
    def address_columns(self) -> tuple[str, ...]:
        """The columns that `scan` adds."""
        columns = (ADDRESS.file_number, ADDRESS.row_position)
        return (*columns, ADDRESS.row_id) if self.tracks_rows else columns

    def scan(self, where: Expression | None = None, columns: Sequence[str] | None = None) -> Relation:
        """The rows of the files for which `where` is true, lazily.

        Args:
            where: Resolved against the table's schema; None for all rows.
            columns: The table's columns to have, in this order; None for all.

        Returns: These columns, then `address_columns`. They are in the table's schema as this write leaves it: a
            column that it adds is null.
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
        """Change the rows, and stage what comes of it. Nothing is staged where no row is touched.

        A file gets a deletion vector where the table takes them (`delta.enableDeletionVectors`) and no more than
        `MOST_MARKED` of its rows are gone, or it is small; it is removed where no row is left; otherwise it is written
        anew. Rows that are only moved keep ids and commit versions, updated rows their ids. New rows obey the rules of
        the table. Change data files are written where the files of the commit do not tell the changes by themselves.

        Args:
            relation: See the module; None for none.
            sets: The rows that it names, where the caller knows them; None to find them.
            addresses: The same rows without the table's columns, where `relation` gives the same rows each time. Rows
                that do not fit into memory are then evaluated when they are written, and wait nowhere.
            whole: Further files, all columns of `ADD_SCHEMA`, whose rows are all deleted without being read.
            recomputed: Columns that the table computes for updated rows (generated columns). The relation's values for
                them are ignored. Generated columns that are not among them are verified.
            filled: Columns that the table fills for inserted rows: defaults, generated and identity columns.
            keys: Columns of the relation that tell the user which row an error is about.
            may_repeat: The same row may be deleted more than once.

        Raises:
            ConstraintViolationError: A row is changed more than once (`constraint` is `cardinality`; up to five are
                named by `keys`), or a new row breaks a rule of the table. Nothing was committed.
            AppendOnlyError: The table keeps its rows.
            Otherwise as pulling the relation and as `Engine.write`.
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
        """Raise as `apply` where a relation with addresses, which names the rows of `sets`, names one twice."""
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
            cause=f"More than one change meets {'; '.join(map(str, shown)) or 'the same row'}: {repeated} too many",
            remedy="Leave one row of the source for each row of the table, for example the newest of each key",
            constraint="cardinality",
            rows=shown,
        )

    def _repeated_rows(self, relation: Relation, keys: Sequence[str]) -> list[dict[str, object]]:
        """The values of `keys` for up to five of the rows."""
        engine = self._write.engine
        address = as_they_are((ADDRESS.file_number, ADDRESS.row_position))
        count = "_delta_orch_changes"
        # Keys of any type: a row of each address is looked up afterwards.
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
