"""The effect of a commit on the rows of the table, as data: `commitInfo.effect`, which this package writes in every
commit that adds or removes files. It takes the place of comparing names of operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.expressions.nodes import Expression
from delta_orch.log.files.file_columns import FileTable, live_rows
from delta_orch.protocol.arrow_building import one_chunk, string_array
from delta_orch.protocol.paths import canonical_paths

if TYPE_CHECKING:
    from delta_orch.log.files.commit_reader import Commit
    from delta_orch.protocol.actions import JsonObject

EFFECT_KEY = "effect"


@dataclass(frozen=True, slots=True)
class Effect:
    """Rows that a commit added, removed and moved; None for a count that is not known.

    Attributes:
        rows_added: Rows that are new to the table.
        rows_removed: Rows that are gone from it.
        rows_moved: Rows that lived in a file which the commit removes, or marks rows of, and live on in a file which it
            adds. They are copied as they were, or updated: an updated row is another form of a row that some commit
            before has written. A deletion vector moves nothing.
        predicate: The rows that were deleted, updated or replaced, in the words of the log; None for all rows, and
            where no predicate names them.
    """

    rows_added: int | None
    rows_removed: int | None
    rows_moved: int | None
    predicate: str | None = None

    def to_json(self) -> JsonObject:
        """As in `commitInfo`."""
        return {
            "rowsAdded": self.rows_added,
            "rowsRemoved": self.rows_removed,
            "rowsMoved": self.rows_moved,
            "predicate": self.predicate,
        }


_COUNTS = {"rowsAdded": "rows_added", "rowsRemoved": "rows_removed", "rowsMoved": "rows_moved"}


_LONGEST = 65_536
"""Characters of a predicate in the log. Readers parse a commit whole, and the predicate is searched for secrets."""


def words_of(condition: object) -> str:
    """A predicate for the log: the user's own text, or only its length if it is too long. It is never cut, because half
    a secret could not be recognized as one."""
    if isinstance(condition, Expression):
        from delta_orch.expressions.to_sql import to_spark_sql

        condition = to_spark_sql(condition)
    words = str(condition)
    return words if len(words) <= _LONGEST else f"({len(words)} characters)"


def effect_of(commit: Commit) -> Effect | None:
    """The effect that a commit records.

    Returns: None for a commit of another client. If its actions alone prove that it moved no row (it adds no file
        beside those that it removes, or removes none), the effect that they prove.
    """
    recorded_effect = (commit.commit_info or {}).get(EFFECT_KEY)
    if isinstance(recorded_effect, Mapping) and (effect := _parsed(recorded_effect)) is not None:
        return effect
    adds, removes = commit.adds, commit.removes
    if adds.num_rows and removes.num_rows and not pc.all(_are_among(adds, [removes])).as_py():
        return None
    return count_effect([(adds, 0)], [removes])


def _parsed(recorded_effect: Mapping[str, object]) -> Effect | None:
    counts: dict[str, int | None] = {}
    for key, name in _COUNTS.items():
        count = recorded_effect.get(key)
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 0):
            return None
        counts[name] = count
    predicate = recorded_effect.get("predicate")
    return Effect(**counts, predicate=predicate if isinstance(predicate, str) else None)


def count_effect(
    adds: Iterable[tuple[pa.Table, int | None]],
    removes: Iterable[pa.Table],
    predicate: str | None = None,
    count: Callable[[pa.Table], int | None] = live_rows,
) -> Effect:
    """The effect of files that are added and removed.

    Args:
        adds: Files with how many of their rows the table had before in other files, None if nobody knows; columns of
            `file_columns.ADD_SCHEMA`.
        removes: Columns of `ADD_SCHEMA` or `REMOVE_SCHEMA`.
        count: Counts the rows of some of `removes`; None where it is not known.
    """
    added, leaving = list(adds), [files for files in map(_changing_data, removes) if files.num_rows]
    rows_moved = _sum([moved for files, moved in added if files.num_rows])
    # Files whose `dataChange` is false hold no row that the table did not have.
    if not leaving:
        return Effect(_sum([live_rows(_changing_data(files)) for files, _ in added]), 0, rows_moved or 0, predicate)
    changing = [(files, moved) for files, moved in ((_changing_data(f), m) for f, m in added) if files.num_rows]
    here = _sum([moved for _, moved in changing])
    if here is None:
        return Effect(None, None, None, predicate)
    if rows_moved is None:
        rows_moved = here
    new, again = _divided([files for files, _ in changing], leaving)
    gone, before = _divided(leaving, [files for files, _ in changing])
    rows_marked = sum(map(_num_marked, again)) - sum(map(_num_marked, before))
    rows_added, rows_removed = _sum(map(live_rows, new)), _sum([count(files) for files in gone if files.num_rows])
    return Effect(_positive(rows_added, -here), _positive(rows_removed, rows_marked - here), rows_moved, predicate)


def _sum(counts: Iterable[int | None]) -> int | None:
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def _positive(count: int | None, more: int) -> int | None:
    """Their sum. Statistics of another client may be wrong: no count is below 0."""
    return None if count is None or count + more < 0 else count + more


def _changing_data(files: pa.Table) -> pa.Table:
    if "data_change" not in files.column_names:
        return files
    flags = FileTable(files).data_change
    return pc.filter(files, pc.fill_null(flags, True)) if pc.all(flags).as_py() is False else files


def _divided(files: list[pa.Table], others: list[pa.Table]) -> tuple[list[pa.Table], list[pa.Table]]:
    """Files that only one side of the commit names, and those that both name: there they differ in the deletion
    vector."""
    if not files or not others:
        return files, []
    are_both = [_are_among(table, others) for table in files]
    alone = [pc.filter(table, pc.invert(both)) for table, both in zip(files, are_both, strict=True)]
    return alone, [pc.filter(table, both) for table, both in zip(files, are_both, strict=True)]


def _are_among(files: pa.Table, others: list[pa.Table]) -> pa.Array:
    paths = pa.concat_arrays([string_array([]), *(one_chunk(canonical_paths(FileTable(o).path)) for o in others)])
    return pc.is_in(one_chunk(canonical_paths(FileTable(files).path)), value_set=paths)


def _num_marked(files: pa.Table) -> int:
    if "deletion_vector" not in files.column_names:
        return 0
    return pc.sum(pc.struct_field(FileTable(files).deletion_vector, "cardinality")).as_py() or 0
