"""Every pair of operations, the second overtaken by the first: what happens, tried out on real tables.

`docs/conflicts.md` holds the answer as a table; `python tests/concurrency/conflict_matrix.py` writes it anew.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from delta_orch import DeltaTable, TxnId
from delta_orch.errors import ConflictError, InvalidRequestError
from delta_orch.testing import open_table
from tests.harness.fault_store import FaultStore, Moment, StoreCall, When
from tests.harness.interleave.verbs import ingest
from tests.harness.table_builder import begin

DOCUMENT = Path(__file__).parents[2] / "docs" / "conflicts.md"
LEVELS = ("WriteSerializable", "Serializable", "SnapshotIsolation")
Verb = Callable[..., Any]


def rows(by: str, *days_and_ids: tuple[str, int]) -> pa.Table:
    days, ids = zip(*days_and_ids, strict=True)
    return pa.table({"day": pa.array(days), "id": pa.array(ids, pa.int64()), "by": [by] * len(ids)})


BASE = rows("base", *((day, i) for day, start in (("a", 0), ("b", 10)) for i in range(start, start + 4)))


def append(table: DeltaTable, **options: Any) -> Any:
    return table.append(rows("append", ("a", 5)), **options)


def append_once(version: int) -> Verb:
    def verb(table: DeltaTable, **options: Any) -> Any:
        return table.append(rows(f"txn {version}", ("a", 6)), txn=TxnId("job", version), **options)

    return verb


def overwrite(table: DeltaTable, **options: Any) -> Any:
    return table.overwrite(rows("overwrite", ("a", 1)), **options)


def replace(where: str, day: str, number: int) -> Verb:
    def verb(table: DeltaTable, **options: Any) -> Any:
        return table.overwrite(rows(where, (day, number)), replace_where=where, **options)

    return verb


def replace_partition(day: str, number: int) -> Verb:
    def verb(table: DeltaTable, **options: Any) -> Any:
        return table.overwrite(rows(f"dynamic {day}", (day, number)), partition_overwrite_mode="dynamic", **options)

    return verb


def delete(where: str) -> Verb:
    def verb(table: DeltaTable, **options: Any) -> Any:
        return table.delete(where, **options)

    return verb


def update(where: str) -> Verb:
    def verb(table: DeltaTable, **options: Any) -> Any:
        return table.update({"by": f"'update {where}'"}, where, **options)

    return verb


def upsert(*ids: int) -> Verb:
    def verb(table: DeltaTable, **options: Any) -> Any:
        source = rows(f"upsert {ids}", *(("a", i) for i in ids))
        # Each key is there twice: in both files of the day.
        return table.upsert(source, ["day", "id"], **options)

    return verb


def insert_missing(number: int) -> Verb:
    def verb(table: DeltaTable, **options: Any) -> Any:
        source = rows(f"missing {number}", ("a", number))
        on = "source.day = target.day AND source.id = target.id"
        return table.merge(source, on, **options).when_not_matched_insert_all().execute()

    return verb


def optimize(table: DeltaTable, **options: Any) -> Any:
    return table.optimize(**options)


def set_property(key: str, value: str) -> Verb:
    def verb(table: DeltaTable, **options: Any) -> Any:
        return table.alter().set_properties({key: value}).commit(**options)

    return verb


def add_column(table: DeltaTable, **options: Any) -> Any:
    return table.alter().add_column("note", "string").commit(**options)


def add_feature(table: DeltaTable, **options: Any) -> Any:
    return table.alter().add_feature("vacuumProtocolCheck").commit(**options)


def drop_mapping(table: DeltaTable, **options: Any) -> Any:
    return table.alter().drop_feature("columnMapping").commit(**options)


def set_domain(name: str) -> Verb:
    def verb(table: DeltaTable, isolation_level: str | None = None) -> Any:
        return table.set_domain_metadata(name, "{}")

    return verb


OPERATIONS: dict[str, Verb] = {
    "append": append,
    "append, txn 1": append_once(1),
    "append, txn 2": append_once(2),
    "overwrite": overwrite,
    "replace id < 10": replace("id < 10", "a", 2),
    "replace id >= 10": replace("id >= 10", "b", 12),
    "dynamic, day a": replace_partition("a", 3),
    "dynamic, day b": replace_partition("b", 13),
    "optimize": optimize,
    "set owner": set_property("owner", "me"),
    "set delta.appendOnly": set_property("delta.appendOnly", "false"),
    "add column": add_column,
    "add feature": add_feature,
    "drop columnMapping": drop_mapping,
    "set domain x": set_domain("x"),
    "set domain y": set_domain("y"),
}

ROW_VERBS: dict[str, Verb] = {
    "append": append,
    "delete id = 1": delete("id = 1"),
    "delete id = 2": delete("id = 2"),
    "update id = 2": update("id = 2"),
    "update id = 11": update("id = 11"),
    "upsert 1, 6": upsert(1, 6),
    "upsert 2, 7": upsert(2, 7),
    "upsert 5": upsert(5),
    "insert 5 if missing": insert_missing(5),
    "replace id < 10": OPERATIONS["replace id < 10"],
    "optimize": optimize,
}
"""What changes single rows. Days have ids in two files each: `id = 1` and `id = 2` are other rows of the same files."""

ROW_TABLES = {"Single rows, with deletion vectors": True, "Single rows, without deletion vectors": False}


def restore(table: DeltaTable, **options: Any) -> Any:
    return table.restore(0, **options)


def purge(table: DeltaTable, **options: Any) -> Any:
    return table.purge(**options)


def replace_table(table: DeltaTable, **options: Any) -> Any:
    return table.create_or_replace(BASE.schema, partition_by=["day"], **options)


def replace_table_by_rows(table: DeltaTable, **options: Any) -> Any:
    return table.create_or_replace(data=rows("replaced", ("a", 1)), partition_by=["day"], **options)


def add_files(table: DeltaTable, **options: Any) -> Any:
    return table.add_files(["day=a/other.parquet"], **options)


def replace_by_files(table: DeltaTable, **options: Any) -> Any:
    return table.add_files(["day=a/other.parquet"], replace_where="day = 'a'", **options)


def clone_over(table: DeltaTable, **options: Any) -> Any:
    source = new_table()
    source.append(rows("cloned", ("a", 1)), partition_by=["day"])
    return source.clone(table.uri, shallow=False, replace=True, **options)


def ingest_file(table: DeltaTable, **options: Any) -> Any:
    ingest(table, **options)
    return SimpleNamespace(skipped=False)


WHOLE_VERBS: dict[str, Verb] = {
    "append": append,
    "ingest": ingest_file,
    "delete id = 1": delete("id = 1"),
    "optimize": optimize,
    "purge": purge,
    "restore 0": restore,
    "create_or_replace": replace_table,
    "create_or_replace, rows": replace_table_by_rows,
    "add_files, day a": add_files,
    "add_files, replace day a": replace_by_files,
}
"""What concerns the table as a whole, beside what it may meet."""

WHOLE_FIRST = {**WHOLE_VERBS, "clone over it": clone_over}

ROW_OPERATIONS = {name for name in OPERATIONS if not name.startswith(("set ", "add ", "drop "))}


def create(table: DeltaTable, **options: Any) -> Any:
    return table.create(BASE.schema, partition_by=["day"], **options)


def create_otherwise(table: DeltaTable, **options: Any) -> Any:
    return table.create(BASE.schema, **options)


def first_append(table: DeltaTable, **options: Any) -> Any:
    return table.append(rows("append", ("a", 5)), partition_by=["day"], **options)


def first_mapped_append(table: DeltaTable, **options: Any) -> Any:
    return first_append(table, properties={"delta.columnMapping.mode": "name"}, **options)


def first_overwrite(table: DeltaTable, **options: Any) -> Any:
    return table.overwrite(rows("overwrite", ("a", 1)), partition_by=["day"], **options)


FIRST_WRITES: dict[str, Verb] = {
    "create": create,
    "create, other partitioning": create_otherwise,
    "append": first_append,
    "append, mapped columns": first_mapped_append,
    "overwrite": first_overwrite,
}

SHORT = {
    "ConcurrentAppendError": "append",
    "ConcurrentDeleteReadError": "delete-read",
    "ConcurrentDeleteDeleteError": "delete-delete",
    "MetadataChangedError": "metadata",
    "ProtocolChangedError": "protocol",
    "ConcurrentTransactionError": "transaction",
    "ConcurrentDomainMetadataError": "domain",
}
COMMITS, SKIPS, REFUSED = "✓", "skips", "refused"


@cache
def base_files(vectors: bool = False) -> dict[str, bytes]:
    """A table with two days, two files each; with or without deletion vectors."""
    table = new_table()
    properties = {"delta.feature.domainMetadata": "supported", "delta.columnMapping.mode": "name"}
    if vectors:
        properties["delta.enableDeletionVectors"] = "true"
    table.append(BASE, partition_by=["day"], properties=properties)
    table.append(BASE)
    return {file.path: table.store.read_bytes(file.path) for file in table.store.list_recursive()}


@cache
def whole_files() -> dict[str, bytes]:
    """A table with deleted rows that `purge` finds, and a file beside it that `add_files` takes."""
    table = new_table()
    table.append(BASE, partition_by=["day"], properties={"delta.enableDeletionVectors": "true"})
    table.append(BASE)
    table.delete("id = 12")
    other = io.BytesIO()
    pq.write_table(rows("other", ("a", 7)).drop_columns(["day"]), other)
    found = {file.path: table.store.read_bytes(file.path) for file in table.store.list_recursive()}
    return {**found, "day=a/other.parquet": other.getvalue()}


def new_table(files: dict[str, bytes] | None = None) -> DeltaTable:
    table = DeltaTable(f"memory://{uuid.uuid4()}")
    for path, data in (files or {}).items():
        table.store.put_if_absent(path, data)
    return table


@dataclass(frozen=True)
class Phase:
    """When the first operation runs as a whole: at a moment of the second one's commit. With `after_loss`, somebody
    who disturbs nobody has taken the first version the second one tried, and the moment is one of what follows."""

    moment: Moment
    when: When
    after_loss: bool = False


PHASES = {
    "before the first attempt": Phase(Moment.COMMIT_PUT, "before"),
    "before the winners are looked for": Phase(Moment.COMMIT_HEAD, "before", after_loss=True),
    "after a winner was found": Phase(Moment.COMMIT_HEAD, "after", after_loss=True),
    "after a winner was read": Phase(Moment.COMMIT_READ, "after", after_loss=True),
    "before the second attempt": Phase(Moment.COMMIT_PUT, "before", after_loss=True),
}
FIRST_ATTEMPT = PHASES["before the first attempt"]


class Overtaking:
    """A store for the second writer, at which the first one comes in between, once."""

    def __init__(self, table: DeltaTable, first: Verb, phase: Phase) -> None:
        self._table = table
        self._first = first
        self._lost_at: int | None = None if phase.after_loss else -1
        self.has_run = False
        self.store = FaultStore(table.store)
        if phase.after_loss:
            self.store.at(Moment.COMMIT_PUT, "before", do=self._lose)
        self.store.at(phase.moment, phase.when, do=self._overtake, times=100)

    def _lose(self, call: StoreCall) -> None:
        begin(self._table, self._table.snapshot(), operation="NOTHING").commit()
        self._lost_at = call.number

    def _overtake(self, call: StoreCall) -> None:
        if not self.has_run and self._lost_at is not None and call.number > self._lost_at:
            self.has_run = True
            self._first(open_table(self._table.store))


def run(table: DeltaTable, first: Verb, second: Verb, level: str | None, phase: Phase = FIRST_ATTEMPT) -> str:
    """Let the first overtake the second; tells how the second ends."""
    overtaking = Overtaking(table, first, phase)
    late = open_table(overtaking.store)
    if late.exists():
        late.snapshot()
    try:
        result = second(late, **({} if level is None else {"isolation_level": level}))
    except ConflictError as e:
        assert e.retryable
        assert e.context["winning_version"] == table.version()
        return SHORT[type(e).__name__]
    except InvalidRequestError:
        return REFUSED
    finally:
        assert overtaking.has_run, "the first operation did not run"
    return SKIPS if result.skipped else COMMITS


def rows_in(table: DeltaTable) -> list[tuple[str, int, str]]:
    read = table.snapshot().scan(["day", "id", "by"]).to_arrow()
    return sorted(zip(*(read[name].to_pylist() for name in ("day", "id", "by")), strict=True))


@cache
def rows_after(*names: str) -> list[tuple[str, int, str]]:
    """The rows after operations on the base table, one after the other."""
    table = new_table(base_files())
    for name in names:
        (OPERATIONS | ROW_VERBS)[name](table)
    return rows_in(table)


def outcomes(first: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    """How every second operation ends that `first` overtakes: `(first, second, isolation level → outcome)`."""
    for second in OPERATIONS:
        by_level = {}
        # The level is about rows: where one of the two touches none, one is as good as another.
        levels = LEVELS if {first, second} <= ROW_OPERATIONS else LEVELS[:1]
        for level in levels:
            table = new_table(base_files())
            by_level[level] = run(table, OPERATIONS[first], OPERATIONS[second], level)
            _ensure_serial(table, first, second, level, by_level[level])
        yield first, second, dict.fromkeys(LEVELS, by_level[LEVELS[0]]) | by_level


def row_outcomes(
    first: str, vectors: bool, levels: Sequence[str] = LEVELS
) -> Iterator[tuple[str, str, dict[str, str]]]:
    """As `outcomes`, of what changes single rows, on a table that takes deletion vectors or one that rewrites files."""
    for second in ROW_VERBS:
        by_level = {}
        for level in levels:
            table = new_table(base_files(vectors))
            by_level[level] = run(table, ROW_VERBS[first], ROW_VERBS[second], level)
            _ensure_serial(table, first, second, level, by_level[level])
        yield first, second, dict.fromkeys(LEVELS, by_level[levels[0]]) | by_level


def whole_outcomes(first: str) -> Iterator[tuple[str, str]]:
    """How every verb of the whole table ends that `first` overtakes: `(second, outcome)`."""
    for second, verb in WHOLE_VERBS.items():
        table = new_table(whole_files())
        outcome = run(table, WHOLE_FIRST[first], verb, None)
        orders = [(first, second), (second, first)] if outcome == COMMITS else [(first,)]
        assert rows_in(table) in [_whole_rows(order) for order in orders], (first, second, outcome)
        yield second, outcome


def _whole_rows(names: tuple[str, ...]) -> list[tuple[str, int, str]]:
    table = new_table(whole_files())
    for name in names:
        WHOLE_FIRST[name](table)
    return rows_in(table)


def _ensure_serial(table: DeltaTable, first: str, second: str, level: str, outcome: str) -> None:
    """The table is as if the operations had run one after the other: in the order of the log, unless a blind append
    may have moved."""
    found = rows_in(table)
    if outcome != COMMITS:
        assert found == rows_after(first), (first, second, level)
    elif level == "Serializable":
        assert found == rows_after(first, second), (first, second, level)
    elif level == "WriteSerializable":
        assert found == rows_after(first, second) or found == rows_after(second, first), (first, second, level)


def render() -> str:
    """The tables of the document."""
    names = list(OPERATIONS)
    lines = [_row(["committed first ↓, overtaken →", *names]), _row(["---"] * (len(names) + 1))]
    for first in names:
        lines.append(_row([first, *(cell(by_level) for _, _, by_level in outcomes(first))]))
    firsts = list(FIRST_WRITES)
    lines += ["", "Two first writers of a table that does not exist yet:", ""]
    lines += [_row(["committed first ↓, overtaken →", *firsts]), _row(["---"] * (len(firsts) + 1))]
    for first in firsts:
        cells = [run(new_table(), FIRST_WRITES[first], FIRST_WRITES[second], None) for second in firsts]
        lines.append(_row([first, *cells]))
    for title, vectors in ROW_TABLES.items():
        lines += ["", f"{title}:", "", _row(["committed first ↓, overtaken →", *ROW_VERBS])]
        lines.append(_row(["---"] * (len(ROW_VERBS) + 1)))
        lines += [_row([f, *(cell(by_level) for _, _, by_level in row_outcomes(f, vectors))]) for f in ROW_VERBS]
    return "\n".join([*lines, "", *render_whole()])


def render_whole() -> list[str]:
    lines = ["The table as a whole, with deletion vectors:", "", _row(["committed first ↓, overtaken →", *WHOLE_VERBS])]
    lines.append(_row(["---"] * (len(WHOLE_VERBS) + 1)))
    return lines + [_row([first, *(outcome for _, outcome in whole_outcomes(first))]) for first in WHOLE_FIRST]


def cell(by_level: dict[str, str]) -> str:
    """What the document says of one pair: the usual outcome, and where another isolation level has another."""
    usual, strict, loose = (by_level[level] for level in LEVELS)
    parts = [usual]
    parts += [f"S: {strict}"] if strict != usual else []
    parts += [f"SI: {loose}"] if loose != usual else []
    return "; ".join(parts)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


BEGIN, END = "<!-- conflict matrix: written by tests/concurrency/conflict_matrix.py -->", "<!-- end -->"


def documented() -> str:
    text = DOCUMENT.read_text(encoding="utf-8")
    return text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip()


def main() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    DOCUMENT.write_text(f"{before}\n\n{render()}\n\n{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
