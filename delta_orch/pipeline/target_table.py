"""The table that a step writes to: its newest version, or a new one that fits the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from delta_orch.errors import TableNotFoundError

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.engines.select import EngineChoice
    from delta_orch.protocol.types import StructType
    from delta_orch.writing.target import WriteOptions


def snapshot_or_none(table: DeltaTable) -> TableSnapshot | None:
    """The newest snapshot, or None where there is no table."""
    try:
        return table.snapshot()
    except TableNotFoundError:
        return None


def ensure_table_for(
    table: DeltaTable, data: object, engine: EngineChoice = "auto", **options: Unpack[WriteOptions]
) -> None:
    """Create the table, empty, that `data` is about to overwrite rows of; leave one that exists as it is.

    An overwrite that creates its table only adds rows, so two of them at once would add up. With the table there first,
    the second one finds the rows of the first and replaces them, and a predicate has columns to be about. Only the
    schema of `data` is read; a reader is not advanced.

    Raises:
        SchemaMismatchError, InvalidPropertyError, ColumnNotFoundError: No table can be made of the data.
        TableExistsError: Another writer has just created one that does not fit.
    """
    if not table.exists():
        table.create(schema_of_new_table(data, engine), **options)


def schema_of_new_table(data: object, engine: EngineChoice = "auto") -> StructType:
    """The schema of a table that these rows create."""
    import pyarrow as pa

    from delta_orch.engines.select import select_engine
    from delta_orch.writing.plan import Source
    from delta_orch.writing.sources import open_source

    chosen = select_engine(data, engine)
    # A reader can be read only once: ask it, and not an engine's wrapping of it.
    described = data.schema.empty_table() if isinstance(data, pa.RecordBatchReader) else data
    return Source(data).as_table(chosen.schema(open_source(chosen, described)))
