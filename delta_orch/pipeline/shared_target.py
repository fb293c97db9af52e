"""What incremental steps share with others: nobody replaces their rows, as a cursor does not go back, and they replace
nobody's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.errors import (
    InvalidExpressionError,
    InvalidRequestError,
    MissingFileError,
    ProtocolViolationError,
    VersionNotFoundError,
)
from delta_orch.expressions.tree import is_not_true
from delta_orch.log.files.file_columns import ADD_SCHEMA, FileTable
from delta_orch.pipeline.recorded import newest_first
from delta_orch.pipeline.run_identity import WRITERS
from delta_orch.protocol.arrow_building import string_array
from delta_orch.protocol.partition_values import (
    parse_partition_value,
    partition_column_from_arrow,
    serialize_partition_value,
)

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable, TableSnapshot
    from delta_orch.expressions.nodes import Expression
    from delta_orch.log.files.commit_reader import Commit
    from delta_orch.pipeline.incremental import ChangeBatch
    from delta_orch.protocol.types import StructType
    from delta_orch.staged_write import StagedWrite

Place = tuple[tuple[str, str | None], ...]
"""The partition of a file: the name and the text of each column."""

_NEW_ROWS = ("WRITE", "STREAMING UPDATE")
"""Operations whose files hold no row of the files they replace, but for those of `left_by`."""


def other_steps(before: TableSnapshot, consumers: tuple[str, ...]) -> frozenset[str]:
    """The identifiers in a table whose rows a step must not replace.

    Args:
        consumers: Its own (`run_identity.cdc_prefix`). An incremental step spares the rows of every other step. One
            that has none spares those of incremental steps: they would not write them again.
    """
    spared = ("cdc:", *WRITERS) if consumers else ("cdc:",)
    return frozenset(name for name in before.txns.named(spared) if not name.startswith(consumers))


def replaced_files(table: DeltaTable, staged: StagedWrite) -> FileTable:
    """The files that a staged write removes, or deletes rows of."""
    return _beyond(table.snapshot(staged.read_version), staged.snapshot())


def new_files(table: DeltaTable, staged: StagedWrite) -> FileTable:
    """The files that a staged write adds."""
    return _beyond(staged.snapshot(), table.snapshot(staged.read_version))


def _beyond(one: TableSnapshot, other: TableSnapshot) -> FileTable:
    """The files of a version that another one does not have, or has other rows of."""
    files = one.files(["path", "dv_id", "partition_values", "modification_time"])
    kept = pc.is_in(_identities(FileTable(files)), _identities(FileTable(other.files(["path", "dv_id"]))))
    return FileTable(pc.filter(files, pc.invert(kept)))


def added_by(
    table: DeltaTable,
    version: int,
    wanted: dict[str, Place | None],
    is_own: Callable[[Commit], bool] = lambda _: False,
) -> Iterator[tuple[Commit, set[str]]]:
    """The commits that a version is made of, newest first, and which of the files they have added: those that hold the
    rows of some files, also before they were rewritten. What a write has left of other files is not its own.

    Args:
        wanted: The files of that version; at the end those of which the log does not tell.
        is_own: Whether the rows that a commit has rewritten are its own.
    """
    for commit in newest_first(table, version) if wanted else ():
        found = wanted.keys() & paths_of(commit.adds)
        left, mixed = left_by(table, commit, found)
        yield commit, found - left
        operation = (commit.commit_info or {}).get("operation")
        if found and operation != "RESTORE":
            there = {path: wanted.pop(path) for path in found}
            rewritten = left | mixed if operation in _NEW_ROWS else set() if is_own(commit) else found
            if rewritten:
                # As by a compaction: the rows are those of the files before.
                those = {there[path] for path in rewritten}
                before = places(commit.removes)
                wanted |= {path: place for path, place in before.items() if place is None or place in those}
        if not wanted:
            return


def left_by(table: DeltaTable, commit: Commit, paths: Set[str]) -> tuple[Set[str], Set[str]]:
    """Of files that a commit has added: those with nothing but rows of files that it has rewritten, as a write that
    replaces the rows of a predicate leaves the others of a file; and those that have rows of its own beside them."""
    info: Mapping[str, object] = commit.commit_info or {}
    said = info.get("operationParameters")
    where = said.get("predicate") if isinstance(said, Mapping) else None
    if info.get("operation") != "WRITE" or not isinstance(where, str) or not paths or not commit.removes.num_rows:
        return set(), set()
    try:
        look = _looking(table.snapshot(version=commit.version), where)
        if not look(paths, is_not_true):
            return set(), set()
        rest = {path for path in paths if look({path}, is_not_true)}
        mixed = {path for path in rest if look({path}, lambda predicate: predicate)}
    except (InvalidExpressionError, MissingFileError, VersionNotFoundError):
        return set(), paths  # The predicate was too long for the log, or files of the table or its log are deleted.
    return rest - mixed, mixed


def have(
    snapshot: TableSnapshot,
    paths: Set[str],
    where: str | Expression,
    what: Callable[[Expression], Expression] = lambda one: one,
) -> bool:
    """Whether some files of a version have rows for which a predicate, or what is made of it, is true."""
    return _looking(snapshot, where)(paths, what)


def _looking(
    snapshot: TableSnapshot, where: str | Expression
) -> Callable[[Set[str], Callable[[Expression], Expression]], bool]:
    """`have` for one version and predicate."""
    from delta_orch.engines.local.engine import LocalEngine
    from delta_orch.expressions.resolve import resolve_predicate
    from delta_orch.writing.selection import first_file_with

    files = snapshot.files(ADD_SCHEMA.names)
    predicate = resolve_predicate(where, snapshot.schema)

    def look(paths: Set[str], what: Callable[[Expression], Expression]) -> bool:
        these = pc.filter(files, pc.is_in(FileTable(files).path, string_array(sorted(paths))))
        return first_file_with(LocalEngine(), snapshot, these, what(predicate)) is not None

    return look


def are_among(older: TableSnapshot, paths: Set[str], newer: TableSnapshot, among: Set[str]) -> bool:
    """Whether files of a version have all rows that files of an older one have, each as often."""
    from delta_orch.engines.local.engine import LocalEngine
    from delta_orch.scan.scan import SCAN_COLUMNS, scan_of_files

    engine, relations = LocalEngine(), {}
    for name, snapshot, wanted in (("own", older, paths), ("there", newer, among)):
        files = snapshot.files(ADD_SCHEMA.names)
        these = pc.filter(files, pc.is_in(FileTable(files).path, string_array(sorted(wanted))))
        # As rows of the newer version: columns may have come since.
        relations[name] = engine.scan(scan_of_files(newer, these.select(SCAN_COLUMNS).combine_chunks()))
    missing = engine.sql("SELECT * FROM own EXCEPT ALL SELECT * FROM there", relations)
    return not engine.to_arrow(missing, limit=1).num_rows


def ensure_others_keep_theirs(table: DeltaTable, staged: StagedWrite, consumers: tuple[str, ...]) -> None:
    """Look up in the log who has added what a staged write replaces.

    Args:
        consumers: The step's own; none of a step that is not incremental.

    Raises:
        InvalidRequestError: Another step (`other_steps`); or the log goes not back far enough to tell.
    """
    if staged.read_version is None:
        return
    others = other_steps(table.snapshot(staged.read_version), consumers)
    wanted = places(replaced_files(table, staged).table) if others else {}
    version = staged.read_version + 1

    def is_own(commit: Commit) -> bool:
        return any(txn.app_id.startswith(consumers) for txn in commit.txns)

    for commit, found in added_by(table, staged.read_version, wanted, is_own):
        version = commit.version
        if not found or is_own(commit):
            continue
        if owner := next((txn.app_id for txn in commit.txns if txn.app_id in others), None):
            raise _unfit(table, f"The step {owner!r} has written them, in version {version}")
    if wanted:
        raise _unfit(table, f"Who has written them is not known: its log begins after version {version - 1}")


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


def paths_of(files: pa.Table) -> frozenset[str]:
    """The path of each file."""
    return frozenset(FileTable(files).path.to_pylist())


def places(files: pa.Table) -> dict[str, Place | None]:
    """Path → partition of each file; None where the log does not say."""
    table = FileTable(files)
    given = table.partition_values.to_pylist()
    partitions = (None if pairs is None else tuple(sorted(dict(pairs).items())) for pairs in given)
    return dict(zip(table.path.to_pylist(), partitions, strict=True))


def _identities(files: FileTable) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(files.path, pc.fill_null(files.dv_id, ""), " ")


def _unfit(table: DeltaTable, cause: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"The step would replace rows of {table.uri} that may be of another step",
        cause=cause,
        remedy="Let each step write partitions or a table of its own, or write by merge or append. To take a partition "
        "over, delete its rows first",
    )
