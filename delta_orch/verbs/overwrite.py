"""`overwrite`: replaces all rows, the rows of a predicate, or the partitions of the data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.base import RowCheck
from delta_orch.engines.select import EngineChoice
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.resolve import resolve_predicate
from delta_orch.log.files.effect import words_of
from delta_orch.log.files.partition_columns import distinct_rows, file_partition_keys, file_partition_strings
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.write.commit_options import CommitResult
from delta_orch.log.write.staging import write_metrics
from delta_orch.protocol.arrow_building import all_booleans
from delta_orch.protocol.types import StructType
from delta_orch.table.schema_evolution import SchemaMode, parse_schema_mode
from delta_orch.verbs.unit_files import UnitFiles, replaced_units
from delta_orch.writing.plan import (
    INSERT,
    REMOVED_FILE_COLUMNS,
    Source,
    UnitColumn,
    Write,
    WritePlan,
    run_plan,
)
from delta_orch.writing.target import WriteOptions


def overwrite(
    log: TableLog,
    snapshot: Snapshot | None,
    data: object,
    replace_where: str | Expression | None,
    partition_overwrite_mode: str,
    schema_mode: str | None,
    engine: EngineChoice,
    options: WriteOptions,
    look: Callable[[pa.Table, StructType], object] | None = None,
    within: Expression | None = None,
    unit_column: UnitColumn | None = None,
    taken_back: Collection[str] = (),
    units: Collection[str] = (),
    located: Sequence[UnitFiles] = (),
) -> CommitResult:
    """Replace all rows by the rows of `data`. With `replace_where`, replace exactly the rows that satisfy it.

    All new rows must satisfy this predicate, and null is a violation. Files that have only replaced rows are removed.
    Other files are rewritten without the replaced rows. Data without rows deletes the rows of the predicate. No file is
    deleted from the store, so older versions stay readable, and the data may come from this table. A missing table is
    created.

    Args:
        partition_overwrite_mode: `static` works as described. `dynamic` replaces each partition for which the data has
            rows. Other partitions stay, and data without rows changes nothing.
        schema_mode: `merge` adds the columns that the table does not have. `overwrite` replaces the columns by those of
            the data, and the partitioning if `partition_by` is given. Only a write that replaces every row may use it.
        look: With `dynamic`, this function receives the replaced partitions, spelled as in the log, and the schema. If
            it raises an error, nothing is written.
        within: A further predicate that every row must satisfy. Null is a violation. It does not select rows to
            replace.
        unit_column: A further column that holds the unit of each row.
        taken_back: Application ids to take back, because their rows are replaced.
        units: The units whose rows `replace_where` selects. See `Write.select`.
        located: The files of replaced units, if the caller located them already.

    Returns: `skipped` if nothing is replaced or written, and no transaction id is to be recorded.

    Raises:
        SchemaMismatchError, InvalidExpressionError, AppendOnlyError, InvalidRequestError: The request is invalid.
            Nothing was written.
        ConstraintViolationError: A row lies outside `replace_where` or breaks NOT NULL. Nothing was committed.
        ConflictError: Another commit changed the replaced rows.
    """
    mode = None if schema_mode is None else parse_schema_mode(schema_mode)
    is_dynamic = _is_dynamic(partition_overwrite_mode, replace_where)
    if mode is SchemaMode.OVERWRITE and (is_dynamic or replace_where is not None):
        raise _schema_overwrite_refused(
            "Other partitions keep their rows" if is_dynamic else "replace_where keeps rows"
        )
    parameters: dict[str, object] = {"mode": "Overwrite"}
    if is_dynamic:
        parameters["isDynamicPartitionOverwrite"] = True
    elif replace_where is not None:
        parameters["predicate"] = words_of(replace_where)

    source = Source(data, mode, unit_column=unit_column)

    def change(write: Write) -> dict[str, int]:
        if taken_back:
            write.transaction.take_back(dict.fromkeys(taken_back, -1))
        if is_dynamic:
            return _replace_partitions(write, replaced_units(log, snapshot, options, located), look)
        if mode is SchemaMode.OVERWRITE:
            if write.omitted is not None:
                raise _schema_overwrite_refused("Some of the txn scopes are recorded already, and their rows stay")
            if "generatedColumns" in write.target.table.features:
                from delta_orch.writing.row_rules import ensure_own_values_fit

                # A generated column may keep its type while the column that it is computed from changes.
                ensure_own_values_fit(write.target.schema)
        return replace_rows(write, replace_where, units)

    return run_plan(log, snapshot, WritePlan("WRITE", parameters, change, options, source, engine, within=within))


def replace_rows(
    write: Write, replace_where: str | Expression | None, units: Collection[str] = (), *, takes_others: bool = False
) -> dict[str, int]:
    """Stage the rows of the write, and remove the rows that a predicate selects.

    Args:
        units: As in `overwrite`.
        takes_others: New rows need not satisfy the predicate.
    """
    selected = write.select(replace_where, units)
    write.transaction.note_predicate(replace_where)
    change_type = None
    if selected.partial.num_rows and write.tells_changes:
        selected = write.tell_deleted(selected)
        # Without rewritten rows, the change feed follows from the added and removed files.
        change_type = INSERT if selected.partial.num_rows else None
    checks = []
    if replace_where is not None and not takes_others:
        checks.append(RowCheck("replace_where", resolve_predicate(replace_where, write.target.schema)))
    adds = pa.concat_tables([write.insert(checks, change_type=change_type), write.keep(selected)])
    if write.snapshot is None:
        return write_metrics(adds)
    write.transaction.remove_files(selected.files)
    return write_metrics(adds, selected.files)


def _replace_partitions(
    write: Write, units: Sequence[UnitFiles], look: Callable[[pa.Table, StructType], object] | None
) -> dict[str, int]:
    columns, schema = write.target.partition_columns, write.target.schema
    if not columns:
        raise InvalidRequestError(
            'partition_overwrite_mode="dynamic" needs a partitioned table',
            cause="The table has no partition column, so the write would replace every row",
            remedy='To replace every row, pass partition_overwrite_mode="static"',
        )
    if write.snapshot is not None:
        write.target.table.ensure_rows_may_leave()
    adds = write.insert()
    # The partitions of the files, spelled as in the log.
    partitions = distinct_rows(file_partition_strings(adds, schema, columns))
    if look is not None:
        look(partitions, schema)
    write.transaction.read_partitions(partitions)
    if write.snapshot is None:
        return write_metrics(adds)
    files = write.snapshot.files(REMOVED_FILE_COLUMNS)
    removed = [pc.filter(files, _in_same_partitions(files, adds, schema, columns))]
    for unit in units:
        # A corrected source may have moved rows to other partitions, so the unit's older rows in these partitions are
        # deleted as well.
        if pc.any(pc.invert(_in_same_partitions(unit.moved, adds, schema, columns))).as_py():
            unit.ensure_exact(write.target.store.uri)
        elsewhere = pc.filter(unit.files, pc.invert(_in_same_partitions(unit.files, adds, schema, columns)))
        removed.append(elsewhere.select(REMOVED_FILE_COLUMNS))
    leaving = pa.concat_tables(removed)
    write.transaction.remove_files(leaving)
    return write_metrics(adds, leaving)


def _in_same_partitions(files: pa.Table, adds: pa.Table, schema: StructType, columns: Sequence[str]) -> pa.Array:
    """Return for each file whether its partition has a file among `adds`. Partition values are compared as typed
    values.

    Args:
        schema: The schema of the table after the write. It defines the types, because the write may widen a partition
            column.
    """
    if files.num_rows == 0 or adds.num_rows == 0:
        return all_booleans(False, files.num_rows)
    written = pc.unique(file_partition_keys(adds, schema, columns, equal_zeros=True))
    return pc.is_in(file_partition_keys(files, schema, columns, equal_zeros=True), value_set=written)


def _schema_overwrite_refused(cause: str) -> InvalidRequestError:
    return InvalidRequestError(
        'schema_mode="overwrite" needs a write that replaces every row',
        cause=cause,
        remedy='Overwrite without replace_where, or use schema_mode="merge"',
    )


def _is_dynamic(partition_overwrite_mode: str, replace_where: str | Expression | None) -> bool:
    if partition_overwrite_mode not in ("static", "dynamic"):
        raise InvalidRequestError(
            f"There is no partition_overwrite_mode {partition_overwrite_mode!r}", remedy='Use "static" or "dynamic"'
        )
    if partition_overwrite_mode == "dynamic" and replace_where is not None:
        raise InvalidRequestError(
            'replace_where and partition_overwrite_mode="dynamic" exclude each other',
            remedy="Pass replace_where to select rows, or partition_overwrite_mode='dynamic' to replace the "
            "partitions of the data",
        )
    return partition_overwrite_mode == "dynamic"
