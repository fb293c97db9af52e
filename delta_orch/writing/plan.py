"""`WritePlan`: the change of a verb to the rows of a table. `run_plan` does the work that all verbs share.

A verb names its operation and passes one function that **selects** files, **transforms** rows into new files and stages
both, by the methods of `Write`. `append` is a single step::

    WritePlan("WRITE", {"mode": "Append"}, lambda write: write_metrics(write.insert()), options, Source(data))

`overwrite` selects the files whose rows leave, inserts, keeps the other rows of those files and removes the files;
`optimize` selects groups of files and moves each into one. A verb that deletes rows is an overwrite without `insert`.

The order is the guarantee. A write whose `txn` is recorded ends before its data is read. A write that does not fit the
table ends before the first file is written. All its files become visible in one commit, or not at all. After a failure,
at most files without a commit remain, and vacuum deletes them.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.base import ComputedColumn, Engine, Relation, RowCheck, as_they_are
from delta_orch.engines.select import EngineChoice, can_be_read_again, is_spark_value, select_engine
from delta_orch.errors import ConstraintViolationError, InvalidRequestError, MetadataChangedError
from delta_orch.expressions.clock import one_moment
from delta_orch.expressions.nodes import Choice, Expression, Literal
from delta_orch.expressions.tree import any_of, columns_of, conjunction, is_not_true
from delta_orch.log.files.file_columns import ADD_SCHEMA, NO_FILES, FileTable
from delta_orch.log.files.txn import TxnId, is_wholly_stale
from delta_orch.log.files.unit_tag import units_of
from delta_orch.log.write.commit_checks import PHYSICAL_NAMES
from delta_orch.log.write.commit_options import CommitOptions, CommitResult, EveryRow, resolve_txns
from delta_orch.log.write.staging import Metrics
from delta_orch.log.write.transaction import Transaction
from delta_orch.protocol.arrow_building import string_array
from delta_orch.protocol.schema_check import ensure_schema_fits
from delta_orch.protocol.types import STRING, StructType
from delta_orch.table.schema_evolution import SchemaMode, as_created_from_data
from delta_orch.writing.target import (
    PLAIN,
    RowShape,
    TableDefinition,
    WriteOptions,
    WriteTarget,
    evolve_target,
    existing_target,
    new_target,
    no_definition,
    split_options,
    write_clustered,
)

if TYPE_CHECKING:
    from delta_orch.log.read.snapshot import Snapshot
    from delta_orch.log.read.table_log import TableLog
    from delta_orch.writing.selection import Selection

_LOGGER = logging.getLogger(__name__)
_MAX_RUNS = 20
_LONGEST_PAUSE_S = 0.02

# A remove repeats the fields of the add except the statistics, which are large and have no reader.
REMOVED_FILE_COLUMNS = tuple(name for name in ADD_SCHEMA.names if name != "stats")

CHANGE_DATA_DIRECTORY = "_change_data"
BOUNDS = "the bounds of this write"
INSERT, DELETE = "insert", "delete"
"""The values of `_change_type`."""


@dataclass(frozen=True, slots=True)
class UnitColumn:
    """A text column that a write fills with the name of the unit that each row belongs to.

    Attributes:
        name: The column.
        units: The predicate of each unit's rows, by the unit's name. No row belongs to two units. None selects all
            rows.
    """

    name: str
    units: Mapping[str, Expression | None]

    def value(self, rows: StructType) -> Expression:
        """Return the unit of a row. Null for a row without a unit.

        Raises InvalidRequestError: The rows have the column already, or lack a column that determines their unit.
        """
        if rows.find(self.name) is not None:
            raise InvalidRequestError(
                f"The rows have the column {self.name!r}, but this write computes it",
                cause="The column holds the name of the unit that wrote the row",
                remedy="Leave the column out of the rows, or choose another unit_column",
                columns=[self.name],
            )
        from delta_orch.expressions.resolve import resolve_expression

        branches: list[tuple[Expression, Expression]] = []
        for unit, scope in self.units.items():
            if scope is None:
                return Literal(unit, STRING)
            missing = [column.path[0] for column in columns_of(scope) if rows.find(column.path[0]) is None]
            if missing:
                raise InvalidRequestError(
                    f"The rows have no column {missing[0]!r}, which determines the unit of each row",
                    cause=f"The write has several units, and computes {self.name!r} from the partition of each row",
                    remedy=f"Add the column {missing[0]!r} to the rows, or write one unit at a time",
                    columns=missing,
                )
            branches.append((resolve_expression(scope, rows), Literal(unit, STRING)))
        return Choice(tuple(branches))


@dataclass(frozen=True, slots=True)
class Source:
    """The caller's rows, and how the table's schema changes with them. `schema_mode` None means no change.

    Attributes:
        redefine: With `SchemaMode.OVERWRITE`, makes the new table from the rows' schema and the definition.
        unit_column: A further column for the unit of each row.
    """

    data: object
    schema_mode: SchemaMode | None = None
    redefine: Callable[[WriteTarget, StructType, TableDefinition], WriteTarget] | None = None
    unit_column: UnitColumn | None = None

    def open(self, engine: Engine, target: StructType | None = None) -> Relation:
        """Return the rows, for a table with these columns.

        Raises InvalidRequestError: The value is not a supported source. Or as `UnitColumn.value`.
        """
        # A scan also exports Arrow, but without variants. A pandas frame may need a conversion of integers.
        if engine.accepts(self.data) and not (hasattr(self.data, "to_relation") or hasattr(self.data, "iloc")):
            rows = engine.relation(self.data)
        else:
            from delta_orch.writing.sources import open_source

            rows = open_source(engine, self.data, target)
        if self.unit_column is None:
            return rows
        schema = engine.schema(rows)
        filled = ComputedColumn(self.unit_column.name, self.unit_column.value(schema))
        return engine.project(rows, [*as_they_are(schema.names), filled])

    def as_table(self, schema: StructType) -> StructType:
        """Return the schema of a table that these rows create."""
        return as_created_from_data(schema, keeps_not_null=not is_spark_value(self.data))


@dataclass(frozen=True, slots=True)
class WritePlan:
    """A change of a table's files.

    Attributes:
        operation, parameters: The entries of `commitInfo`.
        change: Selects, transforms and stages. It returns the operation's metrics, or None if nothing changes
            (`Transaction.skip`). It may run several times.
        options: The options of the caller: `WriteOptions` with a source, otherwise `CommitOptions`.
        source: The caller's rows. None for a verb without rows. Only a plan with a source creates a table.
        engine: The caller's choice.
        is_blind: Whether the plan reads nothing of the table, so that it may run again after any other commit.
        within: A predicate that every new row must satisfy. Null is a violation. It does not select rows.
    """

    operation: str
    parameters: Mapping[str, object]
    change: Callable[[Write], Metrics | None]
    options: WriteOptions | CommitOptions
    source: Source | None = None
    engine: EngineChoice = "auto"
    is_blind: bool = False
    within: Expression | None = None


@one_moment()
def run_plan(log: TableLog, snapshot: Snapshot | None, plan: WritePlan) -> CommitResult:
    """Run a plan on a snapshot and commit it. Only this function runs a write again.

    If possible, the commit itself moves after other commits (`Transaction`). In two cases a plan runs again with new
    files. Another writer used the next values of an identity column. Or another writer created the same table, with
    other physical names of its columns (column mapping). The data must return the same rows twice. Files of earlier
    runs belong to no commit.

    Args:
        snapshot: The newest version. None if there is no table.

    Returns: `skipped` if a transaction id is recorded already, or if the plan changes nothing and has no id to record.

    Raises (nothing was committed):
        MetadataChangedError: The table changed in another way, or another commit came first in every run.
        Other errors: As opening the write, `plan.change` or the commit.
    """
    for run in range(1, _MAX_RUNS + 1):
        try:
            return _run_once(log, snapshot, plan)
        except MetadataChangedError as e:
            newest = _new_base(e, log, snapshot, plan)
            if newest is None or run == _MAX_RUNS:
                raise
            _LOGGER.info("Version %d came first. The write runs again", newest.version)
            time.sleep(random.random() * _LONGEST_PAUSE_S * run)
            snapshot = newest
    raise AssertionError("unreachable")


def _new_base(
    error: MetadataChangedError, log: TableLog, snapshot: Snapshot | None, plan: WritePlan
) -> Snapshot | None:
    """Return the version on which the plan may run again. None if it may not."""
    if plan.source is None or plan.options.get("read_version") is not None or not can_be_read_again(plan.source.data):
        return None
    if snapshot is None:
        if error.context.get("differences") != [PHYSICAL_NAMES]:
            return None
        newest = log.snapshot()
        # If the other writer created the table with rows, an overwrite would have had to read them.
        return newest if plan.is_blind or not newest.num_files else None
    from delta_orch.writing.identity import has_identity, without_marks

    if not plan.is_blind or not has_identity(snapshot.metadata):
        return None
    newest = log.advance(snapshot)
    return newest if without_marks(newest.metadata) == without_marks(snapshot.metadata) else None


def _run_once(log: TableLog, snapshot: Snapshot | None, plan: WritePlan) -> CommitResult:
    source = plan.source
    definition, options = split_options(plan.options) if source is not None else no_definition(plan.options)
    engine = select_engine(None if source is None else source.data, plan.engine)
    if options.get("dry_run"):
        from delta_orch.writing.rehearsal import RehearsalEngine

        engine = RehearsalEngine(engine)
    parameters = dict(plan.parameters)
    relation = None
    if snapshot is None:
        assert source is not None
        relation = source.open(engine)
        target = new_target(log.store, source.as_table(engine.schema(relation)), definition)
    else:
        # If the schema is overwritten, the partitioning may change as well.
        keeps_partitioning = source is None or source.schema_mode is not SchemaMode.OVERWRITE
        target = existing_target(snapshot, definition.get("partition_by") if keeps_partitioning else None)
    if source is not None:
        parameters.setdefault("partitionBy", orjson.dumps(target.partition_columns).decode())
    txns: tuple[TxnId, ...] = ()
    if options.get("txn") is not None:
        options["txn"] = txns = resolve_txns(options["txn"], target.schema, target.partition_columns)
    late_metrics = options.get("operation_metrics")
    if callable(late_metrics):
        options["operation_metrics"] = None
    begin = Transaction
    if options.pop("stage", False):
        from delta_orch.log.write.held_commit import HeldTransaction as begin
    transaction = begin(log, snapshot, operation=plan.operation, operation_parameters=parameters, **options)
    stale: tuple[TxnId, ...] = ()
    if txns:
        stale = transaction.stale_txns()
        if stale and is_wholly_stale(txns, stale):
            return transaction.commit()
        transaction.ensure_follows()
    write = Write(snapshot, target, transaction, engine, txns, plan.within)
    if source is not None:
        write._take(source, relation, definition)
    if stale:
        write._leave_out([txn.scope for txn in stale if txn.scope is not None])
    if isinstance(read := options.get("read_version"), EveryRow) or (plan.is_blind and read is not None):
        transaction.read_whole_table()
    metrics = plan.change(write)
    measured_by_caller = late_metrics() if callable(late_metrics) else {}
    transaction.set_operation_metrics({**measured_by_caller, **(metrics or {})})
    ended = transaction.skip() if metrics is None or not transaction.has_changes else transaction.commit()
    return replace(ended, measured=write.measured)


class Write:
    """One run of a plan, between its checks and its commit. The methods write files and stage them.

    Attributes:
        snapshot: The version that the write starts from. None if it creates the table.
        target: The table after this write.
        transaction: The staged changes. A plan also declares here what it read of the table.
        engine: The engine that reads and writes rows.
        omitted: A predicate for rows of partitions whose scoped `txn` is recorded. The write does not change them. None
            if there are none.
        moves_across_partitions: Whether updated rows may move from one partition to another.
        measured: Metrics of this run for the caller, not for the log (`CommitResult.measured`).
    """

    def __init__(
        self,
        snapshot: Snapshot | None,
        target: WriteTarget,
        transaction: Transaction,
        engine: Engine,
        txns: Sequence[TxnId] = (),
        within: Expression | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.target = target
        self.transaction = transaction
        self.engine = engine
        self.omitted: Expression | None = None
        self.moves_across_partitions = False
        self.measured: Metrics = {}
        self._txns = txns
        self._within = within
        self._rows: Relation | None = None
        self._shape: RowShape = PLAIN
        if snapshot is not None:
            transaction.look_by(self._first_with_row)

    def _first_with_row(self, files: pa.Table, where: Expression) -> str | None:
        from delta_orch.writing.selection import first_file_with

        assert self.snapshot is not None
        return first_file_with(self.engine, self.snapshot, files, where)

    def _take(self, source: Source, relation: Relation | None, definition: TableDefinition) -> None:
        """Fit the table to the caller's rows and plan how they become rows of the table."""
        if self.snapshot is None:
            self.target.stage_metadata(self.transaction)
        if relation is None or self.snapshot is not None:
            is_new = source.schema_mode is SchemaMode.OVERWRITE
            relation = source.open(self.engine, None if is_new else self.target.schema)
        self._rows, schema = relation, self.engine.schema(relation)
        if self.snapshot is not None:
            before = self.target
            columns = source.as_table(schema) if source.schema_mode is SchemaMode.OVERWRITE else schema
            if source.redefine is not None:
                self.target = source.redefine(before, columns, definition)
            elif source.schema_mode is not None:
                self.target = evolve_target(before, columns, source.schema_mode, definition)
            if self.target is not before:
                self.target.stage_metadata(self.transaction, before)
        # As in Delta on Spark, missing nullable columns become null. A missing partition column is an error.
        never_null = () if source.schema_mode is SchemaMode.MERGE else self.target.partition_columns
        if self.target.table.has_rules:
            from delta_orch.writing.row_rules import shape_rows

            self._shape = shape_rows(schema, self.target, never_null=never_null)
        elif schema != self.target.schema:
            ensure_schema_fits(schema, self.target.schema, fill_nulls=True, never_null=never_null)

    def _leave_out(self, scopes: Sequence[Expression]) -> None:
        if not scopes:
            return
        self.omitted = any_of(scopes)
        if self._rows is None:
            return
        schema = self.engine.schema(self._rows)
        if all(schema.find(column.path[0]) for column in columns_of(self.omitted)):
            # In all other cases, the commit leaves out the files of these partitions.
            from delta_orch.expressions.resolve import resolve_expression

            self._rows = self.engine.filter(self._rows, resolve_expression(is_not_true(self.omitted), schema))

    # Select

    def select(self, predicate: str | Expression | None, units: Collection[str] = ()) -> Selection:
        """Select the files that hold rows for which a predicate is true (None means all rows), without rows of
        `omitted`. The commit depends on these rows.

        Args:
            units: The units whose rows the predicate selects, if a column holds their names. These names are longer
                than statistics, so files are excluded by their unit tag, and the other files are read.

        Raises:
            InvalidExpressionError, ColumnNotFoundError: The predicate does not fit the table.
            AppendOnlyError: The table is append-only.
        """
        leaving = self._condition(predicate, self.target.schema)
        if self.snapshot is None:
            # Another writer may create the table meanwhile, with rows that this write must replace.
            none = NO_FILES.select(REMOVED_FILE_COLUMNS)
            selection, was = self._split(none, None, leaving), leaving
        else:
            self.target.table.ensure_rows_may_leave()
            # The predicate uses the old types, because this write may widen columns.
            was = self._condition(predicate, self.snapshot.schema)
            files = self.snapshot.files(REMOVED_FILE_COLUMNS, was)
            if units:
                tags = units_of(files)
                files = pc.filter(files, pc.or_(pc.is_null(tags), pc.is_in(tags, value_set=string_array(list(units)))))
            selection = self._split(files, was, leaving)
            if units and was is not None:
                from delta_orch.writing.selection import files_with

                selection = selection._replace(partial=files_with(self.engine, self.snapshot, selection.partial, was))
        if was is None:
            self.transaction.read_whole_table()
        else:
            self.transaction.read_where(was)
            self.transaction.read_files(selection.partial)
        return selection

    def select_leaving(self, predicate: str | Expression | None) -> Selection:
        """Select the files of the rows that a predicate deletes. **Every** row for which it is true is removed (None
        means every row). A verb that removes only some of these rows uses `candidate_files`.

        The commit depends on the rows of the predicate, and on the files that it changes.

        Returns: The files, with all columns of `ADD_SCHEMA`. Partition values and statistics prove for `leaving_files`
        that every row matches, so these files are not read.
        """
        files, where = self.candidate_files(predicate)
        selection = self._split(files, where, where)
        self.measured["numTargetFilesMatchingWhole"] = selection.leaving_files.num_rows
        return selection

    def candidate_files(self, predicate: str | Expression | None) -> tuple[pa.Table, Expression | None]:
        """Select the files that may hold rows for which a predicate is true (None means all files). The verb then
        changes some of these rows. The commit depends on the same rows as with `select_leaving`.

        Returns: The files as `ADD_SCHEMA`, and the resolved predicate.
        """
        assert self.snapshot is not None
        self.target.table.ensure_rows_may_leave()
        where = self._condition(predicate, self.target.schema)
        files = self.snapshot.files(ADD_SCHEMA.names, where)
        if where is None:
            self.transaction.read_whole_table()
        else:
            self.transaction.read_where(where)
        self.measured |= {
            "numTargetFilesBeforeSkipping": self.snapshot.num_files,
            "numTargetFilesAfterSkipping": files.num_rows,
        }
        return files, where

    def _condition(self, predicate: str | Expression | None, schema: StructType) -> Expression | None:
        where = None
        if predicate is not None:
            from delta_orch.expressions.resolve import resolve_predicate

            where = resolve_predicate(predicate, schema)
        return where if self.omitted is None else conjunction(where, is_not_true(self.omitted))

    def _split(self, files: pa.Table, was: Expression | None, leaving: Expression | None) -> Selection:
        from delta_orch.log.read.skipping.data_skipping import match_files
        from delta_orch.writing.selection import Selection

        if self.snapshot is None or was is None:
            return Selection(files, files.slice(0, 0), leaving)

        schema, partition_columns = self.snapshot.schema, self.snapshot.partition_columns
        is_whole = match_files(files, was, schema, partition_columns).all_match
        if "stats" in files.column_names:
            # If the predicate cannot be false or null for any row of a file, all its rows match.
            may_hold_others = match_files(files, is_not_true(was), schema, partition_columns).may_match
            is_whole = pc.or_(is_whole, pc.invert(may_hold_others))
        return Selection(pc.filter(files, is_whole), pc.filter(files, pc.invert(is_whole)), leaving)

    # Transform and stage

    def insert(self, checks: Sequence[RowCheck] = (), *, change_type: str | None = None) -> pa.Table:
        """Write the caller's rows into new files, with generated identity values.

        Args:
            change_type: The change type of the rows, if the commit has change files. These files are then also change
                files.

        Returns: The files as `ADD_SCHEMA`.

        Raises:
            ConstraintViolationError: A row breaks a check, a rule of the table or NOT NULL, or lies outside all scopes
                of the txns.
        """
        assert self._rows is not None, "a plan without a source inserts no rows"
        spec = self._shape.applied_to(self.target.write_spec([*checks, *self.bounds()]))
        spec = replace(spec, change_type=change_type)
        if clustering := self.target.clustering_of_writes():
            adds = write_clustered(self.engine, self._rows, clustering, spec)
        else:
            adds = self.engine.write(self._rows, spec)
        if self._txns:
            self.ensure_inside_scopes(adds)
        self.transaction.add_files(adds, just_written=True)
        if change_type is not None:
            self.transaction.add_change_files(adds)
        self.take_identities(adds, self._shape)
        return adds

    def bounds(self) -> tuple[RowCheck, ...]:
        """Return the plan's conditions for every new row, in addition to the rules of the table (`WritePlan.within`).

        Raises InvalidExpressionError, ColumnNotFoundError: A condition does not fit the table.
        """
        if self._within is None:
            return ()
        from delta_orch.expressions.resolve import resolve_predicate

        return (RowCheck(BOUNDS, resolve_predicate(self._within, self.target.schema)),)

    def take_identities(self, adds: pa.Table, shape: RowShape) -> None:
        """Record the identity values of the new files in the commit."""
        if shape.identities:
            from delta_orch.writing.identity import with_moved_marks

            moved = with_moved_marks(self.target, adds, shape.identities)
            if moved is not self.target:
                self.transaction.update_metadata(moved.table.metadata)

    def keep(self, selection: Selection) -> pa.Table:
        """Write the remaining rows of `partial` into new files. Returns the files as `ADD_SCHEMA`."""
        if selection.partial.num_rows == 0 or selection.leaving is None or self.snapshot is None:
            return NO_FILES
        from delta_orch.scan.scan import scan_of_files
        from delta_orch.writing.moved_rows import RowCopies, partition_keys_of

        # The rows are read with the new schema, so a column that this write adds is null in them.
        staying = is_not_true(selection.leaving)
        plan = scan_of_files(self.snapshot, selection.partial, where=staying, table=self.target.table)
        copies = RowCopies(self.snapshot)
        rows = self.engine.scan(copies.plan(plan))
        kept = self.engine.write(rows, copies.spec(self.target.write_spec()))
        keys = partition_keys_of(self.target.table, kept, selection.partial)
        self.transaction.add_moved_files(kept, selection.partial, keys)
        copies.note_in(self.transaction)
        return kept

    @property
    def tells_changes(self) -> bool:
        """Whether the table has a change data feed."""
        return self.target.table.enables("changeDataFeed")

    def tell_deleted(self, selection: Selection) -> Selection:
        """Write the removed rows as change data (PROTOCOL, "Writer Requirements for AddCDCFile").

        A commit that only adds or removes whole files needs no change files, because readers derive the changes from
        the files. A write that copies unchanged rows must record all its changes.

        Returns: The selection. If no row is removed, it has no `partial` files, because files that only might hold such
        a row stay.
        """
        assert self.snapshot is not None and selection.leaving is not None
        from delta_orch.scan.scan import scan_of_files

        plan = scan_of_files(self.snapshot, selection.files, where=selection.leaving, table=self.target.table)
        spec = replace(self.target.write_spec(), change_type=DELETE, directory=CHANGE_DATA_DIRECTORY)
        change_files = self.engine.write(self.engine.scan(plan), spec)
        self.transaction.add_change_files(change_files, just_written=True)
        return selection if change_files.num_rows else selection._replace(partial=selection.partial.slice(0, 0))

    def move(self, groups: Sequence[pa.Table]) -> tuple[pa.Table, pa.Table]:
        """Write the rows of each group of files into one file. Readers see the same rows.

        Returns: The added files and the removed files.
        """
        assert self.snapshot is not None
        from delta_orch.scan.scan import scan_of_files
        from delta_orch.writing.moved_rows import RowCopies, keys_of_groups, stage_moved, unsplit

        copies = RowCopies(self.snapshot)
        scans = [copies.plan(scan_of_files(self.snapshot, files)) for files in groups]
        adds = self.engine.rewrite(scans, copies.spec(unsplit(self.target.write_spec())))
        removed = pa.concat_tables(groups)
        stage_moved(self.transaction, adds, removed, keys_of_groups(self.target.table, adds, groups))
        copies.note_in(self.transaction)
        return adds, removed

    def ensure_inside_scopes(self, adds: pa.Table) -> None:
        """Check that every row belongs to a scope, because each retry would write a row outside all scopes again.

        Raises:
            ConstraintViolationError: A file lies in a partition that no scope covers. Nothing was committed.
        """
        scopes = [txn.scope for txn in self._txns if txn.scope is not None]
        if not scopes or len(scopes) < len(self._txns) or adds.num_rows == 0:
            return
        from delta_orch.log.read.skipping.data_skipping import match_files

        covered = match_files(adds, any_of(scopes), self.target.schema, self.target.partition_columns).all_match
        if pc.all(covered).as_py():
            return
        outside = FileTable(pc.filter(adds, pc.invert(covered))).partition_values[0].as_py()
        partition = dict(outside or ())
        raise ConstraintViolationError(
            f"The data holds rows for the partition {partition}, which no txn scope covers",
            cause="With scoped transaction ids, every row must belong to a scope. Otherwise a retry would write it "
            "twice",
            remedy="Pass only rows of these partitions, or a TxnId without scope",
            constraint="txn scope",
            partition=partition,
        )
