"""The table that a step writes to: its newest version, or a new one that fits the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from delta_orch.errors import ConflictError, TableNotFoundError

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.engines.select import EngineChoice
    from delta_orch.expressions.nodes import Expression
    from delta_orch.log.files.commit_reader import Commit
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


def publish_now(
    staged: StagedWrite, *, if_unchanged: bool = False, look: Callable[[Commit], None] | None = None
) -> CommitResult:
    """As `StagedWrite.publish`, for who has staged it just now and can do so again: a conflict may be retried."""
    try:
        return staged.publish(if_unchanged=if_unchanged, look=look)
    except ConflictError as e:
        raise e.__cause__ or e from None


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
