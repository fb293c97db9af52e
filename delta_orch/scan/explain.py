"""`Scan.explain`: what planning leaves out, step by step."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from delta_orch.expressions.nodes import And, Coerced, Column, Expression, Not, Opaque, Or
from delta_orch.expressions.to_sql import to_shown_sql
from delta_orch.expressions.tree import columns_of, conjuncts
from delta_orch.log.files.file_columns import FileTable
from delta_orch.log.read.skipping.data_skipping import data_columns, match_files
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.redaction import kept

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_CHARACTERS = 200
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class FileCount:
    """A number of files and what they occupy in storage."""

    num_files: int
    size_bytes: int

    @classmethod
    def of(cls, files: pa.Table) -> FileCount:
        return cls(files.num_rows, FileTable(files).size_bytes)


@dataclass(frozen=True, slots=True)
class PredicatePart:
    """One operand of the AND at the top of a predicate.

    Attributes:
        text: In Spark SQL, or as pyarrow prints it.
        used: What it was compared with to leave out files: `partition values`, `statistics`; empty where the planner
            cannot use it, so that it only leaves out rows.
        num_files_ruled_out: Files that this part alone rules out.
    """

    text: str
    used: tuple[str, ...]
    num_files_ruled_out: int


@dataclass(frozen=True, slots=True)
class ScanExplanation:
    """The files that remain after each step of planning. `str()` is made for people, `to_dict()` for programs.

    Attributes:
        uri, version: What is scanned.
        total: All live files of the version.
        after_partition_pruning: Those whose partition values may satisfy the predicate.
        after_data_skipping: Those of them that statistics do not rule out: the files that are read.
        parts: The predicate, operand by operand.
        row_groups: The row groups of the files that are read, and how many of them the statistics in the files'
            footers do not rule out; None where they were not counted.
    """

    uri: str
    version: int
    total: FileCount
    after_partition_pruning: FileCount
    after_data_skipping: FileCount
    parts: tuple[PredicatePart, ...]
    row_groups: tuple[int, int] | None = None

    def to_dict(self) -> dict[str, object]:
        """Plain values that JSON knows; keys as the attributes."""
        described = asdict(self)
        described["parts"] = [{**part, "used": list(part["used"])} for part in described["parts"]]
        described["row_groups"] = None if self.row_groups is None else list(self.row_groups)
        return described

    def __str__(self) -> str:
        steps = [
            ("live files", self.total),
            ("after partition pruning", self.after_partition_pruning),
            ("after data skipping", self.after_data_skipping),
        ]
        lines = [f"Scan of {self.uri} version {self.version}"]
        before = self.total.num_files
        for name, count in steps:
            removed = f"   ({before - count.num_files:,} ruled out)" if count.num_files < before else ""
            lines.append(f"  {name:<24}{count.num_files:>9,} files{_text_of_bytes(count.size_bytes):>12}{removed}")
            before = count.num_files
        if self.row_groups is not None:
            total, kept = self.row_groups
            removed = f"   ({total - kept:,} ruled out)" if kept < total else ""
            lines.append(f"  {'after their footers':<24}{kept:>9,} of {total:,} row groups{removed}")
        if self.parts:
            lines.append("Predicate, all of:")
        for part in self.parts:
            use = (
                f"{' and '.join(part.used)}: rules out {part.num_files_ruled_out:,} files" if part.used else "rows only"
            )
            text = part.text if len(part.text) <= _MOST_CHARACTERS else f"{part.text[:_MOST_CHARACTERS]}…"
            lines.append(f"  {text}   [{use}]")
        return "\n".join(lines)


def explain_scan(snapshot: Snapshot, where: Expression | None, arrow_filter: pc.Expression | None) -> ScanExplanation:
    """Plan a scan as it would be planned to be read, and count. Raises as `Snapshot.files`."""
    files = snapshot.files(["size", "partition_values"])
    total = FileCount.of(files)
    pruned, left = total, total
    if where is not None:
        kept = match_files(files, where, snapshot.schema, snapshot.partition_columns).may_match
        pruned, left = FileCount.of(files.filter(kept)), FileCount.of(snapshot.files(["size"], where))
    return ScanExplanation(
        uri=snapshot.store.uri,
        version=snapshot.version,
        total=total,
        after_partition_pruning=pruned,
        after_data_skipping=left,
        parts=(*(_part(snapshot, part, total) for part in conjuncts(where)), *_arrow_part(arrow_filter)),
    )


def _part(snapshot: Snapshot, part: Expression, total: FileCount) -> PredicatePart:
    used = _used(snapshot, part)
    left = snapshot.files(["size"], part).num_rows if used else total.num_files
    return PredicatePart(kept(to_shown_sql(part)), used, total.num_files - left)


def _used(snapshot: Snapshot, part: Expression) -> tuple[str, ...]:
    """The statistics that the planner can compare this part with."""
    columns = _compared_columns(part)
    partitions = {name.lower() for name in snapshot.partition_columns}
    by_partition = [column for column in columns if len(column.path) == 1 and column.path[0].lower() in partitions]
    by_statistics = any(data_columns(column, snapshot.schema, snapshot.partition_columns) for column in columns)
    return (*(("partition values",) if by_partition else ()), *(("statistics",) if by_statistics else ()))


def _compared_columns(node: Expression) -> set[Column]:
    """The columns whose values tell something about the answer; text that only an engine evaluates may be anything."""
    match node:
        case Opaque() | Coerced():
            return set()
        case Or(children):
            columns_of_children = [_compared_columns(child) for child in children]
            return set().union(*columns_of_children) if all(columns_of_children) else set()
        case And(children):
            return set().union(*map(_compared_columns, children))
        case Not(child):
            return _compared_columns(child)
    return set(columns_of(node))


def _arrow_part(arrow_filter: pc.Expression | None) -> tuple[PredicatePart, ...]:
    if arrow_filter is None:
        return ()
    return (PredicatePart(str(arrow_filter), (), 0),)


def _text_of_bytes(count: int) -> str:
    size = float(count)
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"
