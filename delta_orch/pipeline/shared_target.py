"""What incremental steps share with others: nobody replaces their rows, as a cursor does not go back, and they replace
nobody's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from delta_orch.errors import InvalidRequestError, ProtocolViolationError
from delta_orch.log.files.txn import UNIT_PREFIXES
from delta_orch.pipeline.file_units import units_replaced
from delta_orch.pipeline.unit import RecordedUnit, recorded_order
from delta_orch.protocol.partition_values import (
    parse_partition_value,
    partition_column_from_arrow,
    serialize_partition_value,
)
from delta_orch.verbs.units import StepRecord

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.pipeline.incremental import ChangeBatch
    from delta_orch.protocol.types import StructType
    from delta_orch.staged_write import StagedWrite


def has_other_steps(before: TableSnapshot, consumers: tuple[str, ...]) -> bool:
    """Whether a table may have rows that a step must not replace. An incremental step spares the rows of every other
    step. Another one spares those of incremental steps, which would not write them again.

    Args:
        consumers: What the names of an incremental step's cursors and units begin with.
    """
    spared = ("cdc:", *UNIT_PREFIXES) if consumers else ("cdc:",)
    return any(order >= 0 for order in before.txns.named(spared, but=consumers).values())


def ensure_others_keep_theirs(
    table: DeltaTable, staged: StagedWrite, consumers: tuple[str, ...], writers: tuple[str, ...]
) -> None:
    """Look up which units wrote the rows that a staged write replaces.

    Args:
        consumers: As of `has_other_steps`.
        writers: What the names of the step's own units begin with.

    Raises:
        InvalidRequestError: One is of another step; or the log goes not back far enough to tell.
    """
    if staged.read_version is None:
        return
    before = table.snapshot(staged.read_version)
    own = (*consumers, *writers)
    if not has_other_steps(before, consumers):
        return

    def seek(snapshot: TableSnapshot) -> list[str]:
        recorded = snapshot.txns.named(("cdc:", *UNIT_PREFIXES), but=own)
        return [name for name, order in recorded.items() if order >= 0]

    def is_spared(name: str) -> bool:
        order = recorded_order(before, name)
        if name.startswith(own) or order is None:
            return False
        if consumers or name.startswith("cdc:"):
            return True
        unit = RecordedUnit.of(table, name, order)
        record = StepRecord.of(unit.commit_info)
        return unit.version is None or (record is not None and bool(record.inputs))

    for name in sorted(units_replaced(table, staged, None, seek)):
        if is_spared(name):
            raise InvalidRequestError(
                f"The step would replace rows of {table.uri} that another step has written",
                cause=f"{name} wrote them, and would not write them again",
                remedy="Let each step write partitions or a table of its own, or write by merge or append. To take a "
                "partition over, delete its rows first",
                uri=table.uri,
                unit=name,
            )


def ensure_touched(
    name: str, given: Iterable[ChangeBatch], news: Iterable[ChangeBatch], strings: pa.Table, schema: StructType
) -> None:
    """Check that a step replaces no partition whose rows it has read in part: another batch has brought the others, or
    will replace what this one leaves there.

    Args:
        given: What the function of the step was handed.
        news: Those of them that have changes.
        strings: The partitions that are replaced, one string column a partition column, spelled as in the log.
        schema: Of the table that is written.

    Raises:
        InvalidRequestError: It would. A step that has not read `ChangeBatch.scan`, or all of the source by it, chose
            its rows itself.
    """
    if not any(batch.read for batch in given):
        return
    own = {column.lower(): column for column in strings.column_names}
    rows = dict.fromkeys(_spelled(strings, strings.column_names, schema))
    for batch in news:
        columns = batch.snapshot.partition_columns
        if not {column.lower() for column in columns} <= own.keys():
            # Only a first batch may be: it is all there is.
            return
        partitions, source = batch.partitions(), batch.snapshot.schema
        types = [field.data_type for column in columns if (field := source.find(column)) is not None]
        read = map(partition_column_from_arrow, partitions.select(columns).columns, types)
        names = [own[column.lower()] for column in columns]
        touched = set(_spelled(pa.table(list(read), names=names), names, schema))
        places = [strings.column_names.index(column) for column in names]
        rows = {row: None for row in rows if tuple(row[place] for place in places) not in touched}
    if rows:
        where = ", ".join(
            f"{column} = {value}" for column, value in zip(strings.column_names, next(iter(rows)), strict=True)
        )
        raise InvalidRequestError(
            f"{name} would replace a partition that the batch does not touch: {where}",
            cause="batch.scan() has the rows of the touched partitions; rows of others that lie there would be lost",
            remedy="Return rows of batch.partitions() alone; or write by merge or overwrite; or read all that belongs "
            "to the partitions that are replaced from batch.snapshot.scan(where=…)",
        )


def _spelled(strings: pa.Table, columns: Sequence[str], schema: StructType) -> Iterable[tuple[str | None, ...]]:
    """The rows of a table of the log's strings, each value in one spelling of its type; as it is, if it is none."""
    spelled = []
    for column in columns:
        field = schema.find(column)
        assert field is not None
        values = {}
        for text in set(strings.column(column).to_pylist()):
            try:
                values[text] = serialize_partition_value(parse_partition_value(text, field.data_type), field.data_type)
            except ProtocolViolationError:
                values[text] = text
        spelled.append([values[text] for text in strings.column(column).to_pylist()])
    return zip(*spelled, strict=True)
