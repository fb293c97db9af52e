"""The table that a step writes to: its newest version, who owns it, and the rows that a write must not remove.

The property `delta_orch.owner` names the one step that replaces rows of a table. A step becomes the owner when it
creates the table, or first replaces rows of it. Other steps may append and merge, but not replace. The incremental
steps of a table own it together, as do the tasks of Airflow, whose runs are ordered by their logical dates.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from delta_orch.errors import ConflictError, InvalidRequestError, SchemaMismatchError, TableNotFoundError
from delta_orch.log.files.txn import UNIT_PREFIXES
from delta_orch.protocol.table_properties import OWNER, WINDOWS
from delta_orch.verbs.unit_files import units_losing_rows
from delta_orch.verbs.unit_records import LogWalk, RecordedUnit

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


_log = logging.getLogger(__name__)

OPS = "outputs of ops"
"""The owner of a table that ops write. Its versions are the values of runs, so that nobody else writes to it at all."""

INCREMENTAL = "incremental steps"
AIRFLOW = "tasks of Airflow"


def asset_owner(key: Sequence[str]) -> str:
    """An asset that replaces the rows of its table. The code location does not matter."""
    return f"asset {'/'.join(key)}"


def ensure_may_write(table: DeltaTable, before: TableSnapshot, owner: str, *, replaces: bool) -> None:
    """Look up who owns a table.

    Args:
        owner: The step that is about to write: `asset_owner`, or one of the constants of this module.
        replaces: It replaces rows.

    Raises:
        InvalidRequestError: Another one owns the table and the step replaces rows; one of the two is an op; or an op
            would replace rows of a table that has no owner.
    """
    recorded_owner = before.properties.owner
    if recorded_owner == owner or not (replaces or OPS in (recorded_owner, owner)):
        return
    if recorded_owner is None and not (owner == OPS and replaces and before.num_files):
        return
    raise InvalidRequestError(
        f"The table at {table.uri} is not for {owner} to write",
        cause=f"It belongs to {recorded_owner or 'no op'}, and the rows of one would replace those of the other",
        remedy="Give one of them a table of its own, or have this one append or merge. If the owner is gone, or was "
        f"renamed, take the property off: alter().unset_properties({OWNER!r}).commit()",
        uri=table.uri,
        owner=recorded_owner,
    )


def claim(table: DeltaTable, before: TableSnapshot, owner: str, properties: Mapping[str, str]) -> None:
    """Name the owner of a table that had none before a write, and which partitions its columns hold: the owner may have
    got partitions since it made the table.

    Args:
        properties: What a table would have that the write had created.
    """
    about = {OWNER: owner, **{name: value for name, value in properties.items() if name.startswith(WINDOWS)}}
    if before.properties.owner not in (None, owner) or before.metadata.configuration.keys() >= about.keys():
        return
    try:
        configuration = table.snapshot().metadata.configuration
        if configuration.get(OWNER, owner) == owner and (
            missing := {name: about[name] for name in about.keys() - configuration.keys()}
        ):
            table.alter().set_properties(missing).commit()
    except ConflictError:
        # Another writer has changed the table in between. The next write of this step claims it, or is refused.
        _log.info("The table at %s has changed while it was claimed for %s", table.uri, owner)


_CURSOR = "cdc:"


@dataclass(frozen=True, slots=True)
class RowGuard:
    """Whose rows a write must leave in the table.

    Attributes:
        applies: Whether a version of the table may have such rows. If not, the write is not checked.
        concerns: Whether the guard is about a unit, by its name. The cursor of an incremental step counts as one.
        refusal: The error for a unit that loses rows by the write; None if it may lose them. The order of
            a unit that the table has not recorded, or that was taken back, is below 0.
    """

    applies: Callable[[TableSnapshot], bool]
    concerns: Callable[[str], bool]
    refusal: Callable[[RecordedUnit], InvalidRequestError | ConflictError | None]


def ensure_rows_stay(
    table: DeltaTable, staged: StagedWrite[TableSnapshot], where: str | Expression | None, guards: Collection[RowGuard]
) -> None:
    """Check that no guard objects to a staged write.

    Args:
        where: Which rows leave; None for all of the files that it removes.

    Raises:
        InvalidRequestError: One does. The table is unchanged.
        ConflictError: One does, and running the step again is the remedy. The table is unchanged.
    """
    if staged.read_version is None or not guards:
        return
    before = table.snapshot(staged.read_version)
    walk = LogWalk(table.log, before.version)

    def candidates() -> Iterator[str]:
        for name, order in before.txns.named((_CURSOR, *UNIT_PREFIXES)).items():
            if order >= 0 and any(guard.concerns(name) for guard in guards):
                yield name

    losing = units_losing_rows(table.log, before, staged.snapshot(), where, candidates)
    orders = before.txn_versions(sorted(losing))
    for name in sorted(losing):
        order = orders[name]
        unit = RecordedUnit(name, -1 if order is None else order, walk)
        for guard in guards:
            if guard.concerns(name) and (error := guard.refusal(unit)) is not None:
                raise error


def incremental_rows(table: DeltaTable, own: tuple[str, ...], *, is_incremental: bool) -> RowGuard:
    """Incremental steps share a table with others: nobody replaces their rows, as a cursor does not go back, and they
    replace nobody's.

    Args:
        own: What the names of the step's units and cursors begin with.
        is_incremental: Whether the step that writes is one of them. It leaves the rows of every other step.
    """
    starts = (_CURSOR, *UNIT_PREFIXES) if is_incremental else (_CURSOR,)

    def applies(before: TableSnapshot) -> bool:
        return any(order >= 0 for order in before.txns.named(starts, but=own).values())

    def refusal(unit: RecordedUnit) -> InvalidRequestError | None:
        is_kept = is_incremental or unit.name.startswith(_CURSOR) or unit.version is None
        if unit.order < 0 or not (is_kept or (unit.step is not None and unit.step.inputs)):
            return None
        return InvalidRequestError(
            f"The step would replace rows of {table.uri} that another step has written",
            cause=f"{unit.name} wrote them, and would not write them again",
            remedy="Let each step write partitions or a table of its own, or write by merge or append. To take a "
            "partition over, delete its rows first",
            uri=table.uri,
            unit=unit.name,
        )

    return RowGuard(applies, lambda name: not name.startswith(own), refusal)
