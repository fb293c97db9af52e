"""The table that a step writes to: its newest version, or a new one that fits the rows; and frames that fit it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from delta_orch.errors import ConflictError, SchemaMismatchError, TableNotFoundError

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.engines.select import EngineChoice
    from delta_orch.expressions.nodes import Expression
    from delta_orch.log.write.commit_options import CommitResult
    from delta_orch.protocol.types import StructType
    from delta_orch.staged_write import StagedWrite
    from delta_orch.writing.target import WriteOptions


def snapshot_or_none(table: DeltaTable) -> TableSnapshot | None:
    """The newest snapshot, or None where there is no table."""
    try:
        return table.snapshot()
    except TableNotFoundError:
        return None


def may_follow(table: DeltaTable, data: object) -> bool:
    """Whether a write that was to create the table may run again behind the one that did."""
    from delta_orch.engines.select import can_be_read_again

    return can_be_read_again(data) and table.exists()


def first_upsert(
    table: DeltaTable,
    data: object,
    keys: Sequence[str],
    bounds: Expression | None,
    engine: EngineChoice,
    options: WriteOptions,
) -> CommitResult:
    """The upsert that creates the table, in the commit of its rows: none of them matches a row that is there.

    Args:
        bounds: What every row must satisfy.

    Raises:
        ConstraintViolationError: Two rows have the same keys, or one lies outside the bounds. There is no table.
        ConflictError: Another writer has just created one.
    """
    from delta_orch.pipeline.audit import ensure_unique_keys
    from delta_orch.verbs.overwrite import overwrite

    held: WriteOptions = {**options, "stage": True}
    result = overwrite(table.log, None, data, bounds, "static", None, engine, held)
    assert result.staged is not None
    staged = table.staged(result.staged)
    ensure_unique_keys(staged.snapshot(), keys)
    return result if options.get("stage") else replace(publish_now(staged), measured=result.measured)


def publish_now(staged: StagedWrite[TableSnapshot], *, if_unchanged: bool = False) -> CommitResult:
    """As `StagedWrite.publish`, for who has staged it just now and can do so again: a conflict may be retried."""
    try:
        return staged.publish(if_unchanged=if_unchanged)
    except ConflictError as e:
        first = e
        while isinstance(first.__cause__, ConflictError):
            first = first.__cause__
        raise first from None


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


def fit_frame(data: object, schema: StructType | None, *, merges: bool, hands_on: bool) -> object:
    """A pandas frame with the columns that a step's table needs; anything else as it is.

    Args:
        schema: The table's; None where the step creates the table, or replaces its columns.
        merges: Columns that the table does not have are added.
        hands_on: The rows are for the next op alone, and no later ones are to fit their columns.

    Raises:
        SchemaMismatchError: Two columns of a pandas frame have one name; or the step creates a column that has no type,
            in a frame of pandas or Polars, because all its values are null. No value would ever fit it.
    """
    makes_columns = not hands_on and (schema is None or merges)
    untyped = [name for name in _untyped(data) if schema is None or schema.find(name) is None]
    if makes_columns and untyped:
        raise SchemaMismatchError(
            f"The columns {', '.join(untyped)} of the frame have no type",
            cause="All their values are null, and the columns are about to be created from them",
            remedy="Give them a type, such as frame.astype({'name': 'string'}) in pandas, or cast them in Polars; or "
            "create the table first",
            columns=untyped,
        )
    pandas: Any = sys.modules.get("pandas")
    if pandas is None or not isinstance(data, pandas.DataFrame):
        return data
    frame: Any = data
    if not frame.columns.is_unique:
        twice = sorted({str(name) for name in frame.columns[frame.columns.duplicated()]})
        raise SchemaMismatchError(
            f"The pandas frame has several columns named {', '.join(twice)}",
            remedy="Rename them, or leave them out",
            columns=twice,
        )
    if schema is None:
        return frame
    if not len(frame):
        # Whatever pandas calls columns that it has seen no value of.
        return frame.astype(object)
    return frame


def _untyped(data: object) -> list[str]:
    """The columns of a pandas or Polars frame that have only the type null."""
    pandas: Any = sys.modules.get("pandas")
    polars: Any = sys.modules.get("polars")
    if polars is not None and isinstance(data, polars.DataFrame | polars.LazyFrame):
        return [name for name, kind in data.collect_schema().items() if kind == polars.Null]
    if pandas is None or not isinstance(data, pandas.DataFrame):
        return []
    columns = ((str(name), column) for name, column in data.items())
    return [name for name, column in columns if column.dtype == object and bool(column.isna().all())]
