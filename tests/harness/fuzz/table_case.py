"""Reading a table in every way there is, and comparing what came out."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from delta_orch.delta_table import DeltaTable, TableSnapshot
from delta_orch.engines.base import Engine
from delta_orch.engines.select import spark_engine
from delta_orch.errors import DeltaError
from delta_orch.protocol.arrow_building import schema_to_arrow
from delta_orch.protocol.types import StructType, types_of
from delta_orch.testing import open_table
from delta_orch.variant import variant_to_json
from tests.harness.fuzz.expectation import Expectation
from tests.harness.fuzz.watched_store import WatchedStore
from tests.harness.row_multiset import comparable_rows

_MOST_ROWS = 20_000
"""So many rows are compared one by one; of more, only the number."""


class FuzzFinding(AssertionError):
    """A case ended in a way it must not end."""


class Reading:
    """What reading a table gave: for each way an answer, or the code of an error.

    Args:
        directory: The table's.
        spark: A session in which to read the rows, too.

    Attributes:
        answers: By the name of the way.
        errors: Codes by the name of the way.

    Raises:
        FuzzFinding: Two ways contradict each other, or the table's directory was left.
    """

    def __init__(self, directory: Path, spark: Any = None) -> None:
        self.answers: dict[str, Hashable] = {}
        self.errors: dict[str, str] = {}
        self._store = WatchedStore(str(directory))
        self._table = open_table(self._store)
        self._read()
        if spark is not None and "version" in self.answers:
            self._read_with_spark(self._table.snapshot(), spark_engine(spark))
        self._ensure_consistent()
        if self._store.escapes:
            raise FuzzFinding(f"opened outside the table: {self._store.escapes[:3]}")

    def outcomes(self) -> Counter[str]:
        """How many ways ended well (`ok`), or in which error."""
        return Counter([*self.errors.values(), *["ok"] * len(self.answers)])

    def _read(self) -> None:
        self._try("version", lambda: self._table.snapshot().version)
        self._try("history", lambda: tuple(str(entry) for entry in self._table.history()))
        self._try("earliest_version", self._table.log.earliest_version)
        self._try("time_travel", lambda: self._table.snapshot(timestamp=1_700_000_000_000).version)
        self._try("fsck", self._fsck)
        if "version" in self.answers:
            self._read_snapshot(self._table.snapshot())

    def _read_snapshot(self, snapshot: TableSnapshot) -> None:
        self._try("files", lambda: _file_set(snapshot))
        self._try("tombstones", lambda: _checked(snapshot.tombstones()).num_rows)
        self._try("txns", lambda: tuple(sorted(snapshot.txns.items())))
        self._try("domain_metadata", lambda: tuple(sorted(snapshot.domain_metadata.items())))
        self._try("timestamp", lambda: snapshot.timestamp_ms)
        self._try("properties", lambda: str(snapshot.properties))
        self._try("rows", lambda: _rows_where(snapshot, None))
        self._try("number of rows", lambda: snapshot.scan(columns=[]).to_arrow().num_rows)
        for name, predicate in _predicates(snapshot.schema):
            self._try(f"rows where {name}", partial(_rows_where, snapshot, predicate))
        if len(snapshot.schema):
            column = snapshot.schema.names[-1]
            self._try("one column", lambda: snapshot.scan(columns=[column]).to_arrow().num_rows)
        middle = snapshot.version // 2
        self._try("older version", lambda: _file_set(self._table.snapshot(version=middle)))
        self._try("validate", lambda: snapshot.validate().checked)
        self._try("tasks", lambda: _rows_of_tasks(snapshot))
        self._try("changes", lambda: _changes(self._table, max(0, snapshot.version - 2)))
        self._try("every change", lambda: _changes(self._table, 0, require_change_data_feed=True))
        self._try("changes as of then", lambda: _changes(self._table, middle, schema_version=middle))

    def _read_with_spark(self, snapshot: TableSnapshot, engine: Engine) -> None:
        self._try("rows on Spark", lambda: _rows_on(engine, snapshot, None))
        for name, predicate in _predicates(snapshot.schema)[:2]:
            self._try(f"rows where {name} on Spark", partial(_rows_on, engine, snapshot, predicate))
        self._try("changes on Spark", lambda: _changes(self._table, max(0, snapshot.version - 2), engine))

    def _fsck(self) -> bool:
        report = self._table.fsck(check_files=True)
        if any(not problem.message for problem in report.problems):
            raise FuzzFinding(f"fsck does not say what is wrong: {report}")
        return report.ok

    def _ensure_consistent(self) -> None:
        """What reading one way finds is what it finds in the others."""
        if self.answers.get("fsck") is True and (missing := {"version", "files"} - self.answers.keys()):
            raise FuzzFinding(f"fsck finds nothing wrong, and {missing} cannot be read: {self.errors}")
        rows, tasks = self.answers.get("rows"), self.answers.get("tasks")
        if rows is not None and tasks is not None and rows != tasks:
            raise FuzzFinding(f"tasks: {_shown(tasks)}\nscan: {_shown(rows)}")

    def _try(self, name: str, read: Callable[[], Any]) -> None:
        try:
            self.answers[name] = read()
        except DeltaError as e:
            ensure_good_error(e)
            self.errors[name] = e.code


def ensure_good_error(error: DeltaError) -> None:
    """An error must say something, and travel between processes. Raises FuzzFinding."""
    copy = pickle.loads(pickle.dumps(error))
    if not str(error) or str(copy) != str(error) or type(copy) is not type(error):
        raise FuzzFinding(f"an error that cannot be pickled or says nothing: {error!r}")


def ensure_engines_agree(found: Reading) -> None:
    """Where both engines could read the rows, they are the same. Raises FuzzFinding."""
    for way, answer in found.answers.items():
        on_spark = found.answers.get(f"{way} on Spark", answer)
        if on_spark != answer:
            raise FuzzFinding(f"{way}: {_shown(on_spark)} on Spark, {_shown(answer)} without")


def ensure_expected(found: Reading, healthy: Reading, expectation: Expectation) -> None:
    """Compare with the reading of the healthy table.

    Raises:
        FuzzFinding: It is another answer than it may be.
    """
    if expectation is Expectation.ANY:
        return
    # Time goes by, and file times are not part of what a mutation keeps.
    ways: Mapping[str, Hashable] = {k: v for k, v in healthy.answers.items() if k not in _UNSTEADY}
    for way, answer in ways.items():
        if way in found.answers:
            if found.answers[way] != answer:
                raise FuzzFinding(f"{way}: another answer\n{_shown(found.answers[way])}\ninstead of\n{_shown(answer)}")
        elif expectation is Expectation.SAME:
            raise FuzzFinding(f"{way}: {found.errors.get(way, 'nothing')} instead of {_shown(answer)}")
    for way, code in healthy.errors.items():
        if way in found.answers and way not in _UNSTEADY:
            raise FuzzFinding(f"{way}: {_shown(found.answers[way])} where the healthy table gives {code}")


_UNSTEADY = frozenset(
    {"timestamp", "time_travel", "history", "tombstones", "changes", "every change", "changes as of then", "fsck",
     "validate"}
)  # fmt: skip


def _shown(value: Hashable) -> str:
    return repr(value)[:400]


def _file_set(snapshot: TableSnapshot) -> Hashable:
    files = _checked(snapshot.files())
    if files.num_rows != snapshot.num_files:
        raise FuzzFinding(f"{files.num_rows} files, but num_files says {snapshot.num_files}")
    root = snapshot.store.uri.removeprefix("file://")
    ids = [dv_id and dv_id.replace(root, "") for dv_id in files["dv_id"].to_pylist()]
    return frozenset(Counter(zip(files["path"].to_pylist(), ids, strict=True)).items())


def _rows_where(snapshot: TableSnapshot, predicate: str | None) -> Hashable:
    rows, schema = _checked(snapshot.scan(where=predicate).to_arrow()), snapshot.schema
    if rows.column_names != list(schema.names):
        raise FuzzFinding(f"columns {rows.column_names} instead of {schema.names}")
    return _row_counts(rows, schema)


def _rows_on(engine: Engine, snapshot: TableSnapshot, predicate: str | None) -> Hashable:
    rows = engine.to_arrow(snapshot.scan(where=predicate).to_relation(engine))
    return _row_counts(_checked(rows), snapshot.schema)


def _row_counts(rows: pa.Table, schema: StructType) -> Hashable:
    for number, field in enumerate(schema):
        if str(field.data_type) == "variant" and rows.column_names == list(schema.names):
            # There is more than one way to write one value.
            rows = rows.set_column(number, field.name, variant_to_json(rows[field.name]))
    if rows.num_rows > _MOST_ROWS or len(set(rows.column_names)) < rows.num_columns or _holds_nested_variants(schema):
        return int(rows.num_rows)
    return frozenset(Counter(map(repr, comparable_rows(_printable(rows)))).items())


def _holds_nested_variants(schema: StructType) -> bool:
    return any("variant" in map(str, types_of(f.data_type)) for f in schema if str(f.data_type) != "variant")


def _rows_of_tasks(snapshot: TableSnapshot) -> Hashable:
    """The rows of a scan's tasks, each read from a copy as another process would have it."""
    scan = snapshot.scan()
    parts = [pickle.loads(pickle.dumps(task)).to_arrow() for task in scan.tasks(max_bytes=1)]
    if not scan.schema.fields:
        # Tables without columns forget how many rows they have when they are put together.
        return frozenset({("()", sum(part.num_rows for part in parts))} if parts else ())
    return _row_counts(_checked(pa.concat_tables([schema_to_arrow(scan.schema).empty_table(), *parts])), scan.schema)


def _printable(rows: pa.Table) -> pa.Table:
    """Without values that Python's own types do not hold, such as dates after the year 9999."""
    keep = [i for i, field in enumerate(rows.schema) if not _is_temporal(field.type)]
    times = [i for i in range(rows.num_columns) if i not in keep]
    flat = [i for i in times if not pa.types.is_nested(rows.schema.field(i).type)]
    columns = [*(rows.column(i) for i in keep), *(rows.column(i).cast(pa.string()) for i in flat)]
    return pa.Table.from_arrays(columns, names=[str(i) for i in range(len(columns))]) if columns else rows.select([])


def _is_temporal(data_type: pa.DataType) -> bool:
    if pa.types.is_nested(data_type):
        return any(_is_temporal(data_type.field(i).type) for i in range(data_type.num_fields))
    return bool(pa.types.is_temporal(data_type))


def _changes(table: DeltaTable, start: int, engine: Engine | None = None, **options: Any) -> int:
    feed = table.changes(starting_version=start, **options)
    rows = feed.to_arrow() if engine is None else engine.to_arrow(feed.to_relation(engine))
    return int(_checked(rows).num_rows)


def _checked(table: pa.Table) -> pa.Table:
    """Arrow's own view of whether its data are sound."""
    try:
        table.validate(full=True)
    except pa.ArrowException as e:
        raise FuzzFinding(f"the result is no sound Arrow data: {e}") from e
    return table


def _predicates(schema: StructType) -> list[tuple[str, str]]:
    """Predicates over the first columns, by a short name."""
    found = []
    for field in list(schema)[:3]:
        column = "`" + field.name.replace("`", "``") + "`"
        match str(field.data_type):
            case "long" | "integer" | "short" | "byte" | "double" | "float":
                found.append((field.name, f"{column} > 3 and {column} < 20"))
            case "string":
                found.append((field.name, f"{column} >= 'name 2'"))
            case "date":
                found.append((field.name, f"{column} >= DATE'2020-01-05'"))
            case _:
                found.append((field.name, f"{column} is not null"))
    return found
