"""Run a sequence on copies of a table, one for each engine of ours and one for Delta on Spark, and compare them after
every step: rows, row ids, change feed, each as both sides read it."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import delta_orch
from delta_orch import DeltaTable
from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.errors import DeltaError, UnsupportedFeatureError
from delta_orch.protocol.arrow_building import schema_to_arrow
from tests.harness.sequences.cases import COLUMNS, COMPUTED, IDENTITIES, SCHEMA, Sequence, Statement, random_sequence
from tests.interop.reference_client import Reference, ReferenceError

REFERENCE = "reference"
SQL_TYPES = {
    "st": "STRUCT<a: STRING, b: BIGINT>", "tags": "ARRAY<STRING>", "m": "MAP<STRING, BIGINT>", "p": "STRING",
    "d": "DECIMAL(10, 2)", "f": "DOUBLE", "day": "DATE", "ts": "TIMESTAMP", "n": "TIMESTAMP_NTZ", "bin": "BINARY",
    "fl": "FLOAT", "i": "INT", "wide": "DECIMAL(38, 18)", "ls": "ARRAY<STRUCT<q: BIGINT, r: DATE>>",
    "deep": "STRUCT<in: STRUCT<k: STRING, l: ARRAY<INT>>>", "ä-y": "STRING", "bo": "BOOLEAN", "ti": "TINYINT",
    "si": "SMALLINT", "vc": "VARCHAR(6)",
}  # fmt: skip
_NOT_TRANSLATED = re.compile("cannot translate expression to source filter|not support overwrite by expression")
_REFUSED_BY_RULE = re.compile("UnsupportedExpressionError|SchemaMismatchError: The struct .* has the fields")
OWN_FAILURE = re.compile(
    r"Unexpected row: did not match any merge clause|\[INTERNAL_ERROR\]|\[UNSUPPORTED_FEATURE.LITERAL_TYPE\]"
    r"|\[DELTA_CANNOT_RESOLVE_EXPRESSION\]"
)
"""Of Delta on Spark: in a merge with two clauses of one condition for rows without a source; where Spark calls what
went wrong a bug of its own, in the optimizer; where REPLACE WHERE compares with a struct; and where an INSERT clause of
a merge leaves out the column that a generated one is computed from."""
Bag = Counter[tuple[str, ...]]
_IDS = ("_row_id", "_row_version")
_FEED = ("_commit_version", "_commit_timestamp")


class Differs(AssertionError):
    """Both sides do not say the same."""


class _ReferenceFailsError(Exception):
    """There is nothing to compare with any more."""


@dataclass
class Copies:
    """The copies of a table.

    Attributes:
        writers: Who writes: `REFERENCE`, or an engine.
        paths: The table of each. Writers change places.
        versions: By path, its version before the first step and after each.
        refused: How many statements all of them refused.
        unsupported: Statements that the first engine refuses as outside what it evaluates.
    """

    writers: Mapping[str, object]
    paths: dict[str, Path]
    versions: dict[Path, list[int]] = field(default_factory=dict)
    refused: int = 0
    unsupported: list[str] = field(default_factory=list)


def check_sequence(seed: int, directory: Path, reference: Reference, engines: Mapping[str, object]) -> Copies:
    """Run the sequence of a seed in an empty directory. Returns what became of it.

    Args:
        engines: What runs statements on our side, by a name for reports.

    Raises:
        Differs: Somebody says something else. The message has the sequence.
    """
    sequence = random_sequence(seed)
    writers = {**engines, REFERENCE: REFERENCE}
    copies = Copies(writers, {name: directory / f"of-{name}" for name in writers})
    try:
        _create(sequence, copies, reference)
        for number, statement in enumerate(sequence.statements):
            if sequence.swaps[number]:
                names = list(copies.paths)
                copies.paths = dict(zip(names, [copies.paths[name] for name in (*names[1:], names[0])], strict=True))
            try:
                _step(number, statement, sequence, copies, reference, directory)
                for versions in copies.versions.values():
                    # A statement that nobody ran is a step, too: a later one may go back to it.
                    versions.extend(versions[-1:] * (number + 2 - len(versions)))
            except _ReferenceFailsError:
                break
            except Differs as error:
                raise Differs(f"step {number}: {error}") from error
    except Exception as error:
        raise Differs(f"{type(error).__name__} {error}\n{sequence.told()}") from error
    return copies


def _create(sequence: Sequence, copies: Copies, reference: Reference) -> None:
    """By one side, with its first rows, and copied: so row ids are the same everywhere."""
    first, *others = copies.paths.values()
    columns = [f"`{name}` {_sql_type(name)}" for name in SCHEMA.names]
    columns += [f"{name} {COMPUTED[name]}" for name in sequence.computed]
    laid_out = _laid_out("PARTITIONED BY", sequence.partition_by) + _laid_out("CLUSTER BY", sequence.cluster_by)
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in sequence.properties.items())
    create = f"CREATE TABLE delta.`{first}` ({', '.join(columns)}) USING delta{laid_out} TBLPROPERTIES ({properties})"
    if sequence.seed % 2:
        delta_orch.sql(create)
        for rows in sequence.files:
            DeltaTable(first).append(rows)
    else:
        reference.run(create)
        for number, rows in enumerate(sequence.files):
            source = first.parent / f"first-{number}"
            _write_source(rows, source)
            reference.run(f"INSERT INTO delta.`{first}` ({COLUMNS}) SELECT {COLUMNS} FROM parquet.`{source}`")
    for path in others:
        shutil.copytree(first, path)
    version = DeltaTable(first).version()
    copies.versions = {path: [version] for path in copies.paths.values()}


def _laid_out(how: str, columns: tuple[str, ...]) -> str:
    return f" {how} ({', '.join(f'`{name}`' for name in columns)})" if columns else ""


def _sql_type(name: str) -> str:
    return SQL_TYPES.get(name, "BIGINT")


def _write_source(rows: pa.Table, path: Path) -> None:
    path.mkdir()
    # Spark looks for floats in bounds, where Arrow leaves NaN out, and in dictionaries, where -0.0 is not 0.0: the
    # reference would not find such rows of its source.
    pq.write_table(rows, path / "rows.parquet", write_statistics=False, use_dictionary=False)


def _step(
    number: int, statement: Statement, sequence: Sequence, copies: Copies, reference: Reference, directory: Path
) -> None:
    replaces = "REPLACE WHERE" in statement.sql
    goes_by_names = statement.is_dynamic or (replaces and statement.rows is not None)
    if goes_by_names and not _has_fields_of(statement.rows, next(iter(copies.versions))):
        # The reference's INSERT goes by the places of a struct's fields. Our method goes by their names, and our INSERT
        # refuses other names.
        return
    source = directory / f"source-{number}"
    if statement.rows is not None:
        _write_source(statement.rows, source)
    before = {path: _ids(path) for path in copies.versions}
    told = {path: tells(path) for path in copies.versions}
    refusals: dict[str, str | None] = {}
    for name in reversed([*copies.writers]) if replaces else copies.writers:
        refusals[name] = _run(copies.writers[name], statement, copies.paths[name], copies.versions, source, reference)
        if not any(refusals.values()) or len(refusals) > 1:
            continue
        if replaces and _NOT_TRANSLATED.search(str(refusals[name])):
            return  # a predicate that Spark's catalog cannot hand to the reference
        if _REFUSED_BY_RULE.match(str(refusals[name])):
            # What the first engine does not evaluate, or refuses where the reference goes by the places of a struct's
            # fields, nobody runs: the copies stay alike.
            copies.unsupported.append(f"{statement.sql}: {refusals[name]}"[:400])
            return
    if OWN_FAILURE.search(str(refusals[REFERENCE])):
        raise _ReferenceFailsError
    if any(refusals.values()):
        if not all(refusals.values()):
            raise Differs(f"not everybody refuses: {refusals}")
        copies.refused += 1
    for path, versions in copies.versions.items():
        versions.append(DeltaTable(path).version())
    made = {name: copies.versions[path][-1] - copies.versions[path][-2] for name, path in copies.paths.items()}
    # What moves rows goes by the files there are, and the reference's MERGE may commit rows that it only copied.
    if len({bool(count) for count in made.values()}) > 1 and statement.sql.startswith(("DELETE", "UPDATE", "INSERT")):
        raise Differs(f"not everybody commits: {made}")
    compare_schemas(copies)
    compare_rows(copies, reference)
    if any(made.values()) and all(told[path] and tells(path) for path in told):
        compare_feeds(copies, reference, nets=statement.restores is not None)
    _compare_kept_ids(before, copies)


def _run(
    writer: object,
    statement: Statement,
    path: Path,
    versions: Mapping[Path, list[int]],
    source: Path,
    reference: Reference,
) -> str | None:
    """Run a statement; what the refusal says, None where it ran."""
    version = "" if statement.restores is None else versions[path][statement.restores + 1]
    if statement.restores is not None and version == versions[path][-1]:
        return None  # already there
    if writer == REFERENCE:
        text = statement.sql.format(table=f"delta.`{path}`", source=f"parquet.`{source}`", version=version)
        mode = "dynamic" if statement.is_dynamic else "static"
        try:
            reference.run(f"SET spark.sql.sources.partitionOverwriteMode={mode}", text)
        except ReferenceError as error:
            return str(error)[:600]
        return None
    text = statement.sql.format(table="this_table", source="these_rows", version=version)
    tables: dict[str, object] = {"this_table": DeltaTable(path)}
    if statement.rows is not None:
        tables["these_rows"] = statement.rows
    try:
        if statement.is_dynamic:
            DeltaTable(path).overwrite(statement.rows, partition_overwrite_mode="dynamic", engine=writer)  # type: ignore[arg-type]
        else:
            delta_orch.sql(text, engine=writer, tables=tables)  # type: ignore[arg-type]
    except DeltaError as error:
        return f"{type(error).__name__}: {error}"[:600]
    return None


# What both sides say


def compare_schemas(copies: Copies) -> None:
    first, *others = copies.versions
    for path in others:
        if _schema(path) != _schema(first):
            raise Differs(f"schemas of {path.name} and {first.name}: {_schema(path)} {_schema(first)}")


def _schema(path: Path) -> pa.Schema:
    return schema_to_arrow(DeltaTable(path).snapshot().schema)


def _has_fields_of(rows: pa.Table | None, path: Path) -> bool:
    """Whether the columns of rows that a table has are of the same fields there."""
    if rows is None:
        return False
    schema = _schema(path)
    places = [schema.get_field_index(name) for name in rows.column_names]
    return all(i < 0 or schema.field(i).type == rows.schema.field(schema.field(i).name).type for i in places)


def tells(path: Path) -> bool:
    return DeltaTable(path).snapshot().metadata.configuration.get("delta.enableChangeDataFeed") == "true"


def _tracks(path: Path) -> bool:
    return DeltaTable(path).snapshot().metadata.configuration.get("delta.enableRowTracking") == "true"


def compare_rows(copies: Copies, reference: Reference) -> None:
    paths = list(copies.versions)
    tracked = _tracks(paths[0])
    ids = f", _metadata.row_id AS {_IDS[0]}, _metadata.row_commit_version AS {_IDS[1]}" if tracked else ""
    schema = _schema(paths[0])
    columns = _listed(schema)
    selects = (f"SELECT {i} AS _t, {columns}{ids} FROM delta.`{path}`" for i, path in enumerate(paths))
    theirs = _split(reference.query(" UNION ALL ".join(selects)), len(paths), schema)
    expected: Bag | None = None
    for path, read_by_them in zip(paths, theirs, strict=True):
        snapshot = DeltaTable(path).snapshot()
        scan = snapshot.scan(row_tracking=tracked)
        read_by_us = _bag(scan.to_arrow().rename_columns([*schema.names, *(_IDS if tracked else ())]), schema)
        ensure_same(f"rows of {path.name} by us and by the reference", read_by_us, read_by_them)
        if tracked and read_by_us:
            ids_found = [row[-2] for row in read_by_us.elements()]
            if len(set(ids_found)) < len(ids_found):
                raise Differs(f"{path.name} has a row id twice: {sorted(ids_found)}")
        rows = Counter(_without_identities(row, schema)[: len(schema)] for row in read_by_us.elements())
        if expected is not None:
            ensure_same(f"rows of {path.name} and of {paths[0].name}", rows, expected)
        expected = expected or rows
    assert expected is not None
    for name, writer in copies.writers.items():
        if isinstance(writer, SparkEngine):
            scan = DeltaTable(paths[-1]).snapshot().scan()
            read = _bag(writer.to_arrow(writer.scan(scan.plan())), schema)
            known = Counter(_without_identities(row, schema) for row in read.elements())
            ensure_same(f"rows of {paths[-1].name} by {name}", known, expected)


def _listed(schema: pa.Schema) -> str:
    return ", ".join("`" + name.replace("`", "``") + "`" for name in schema.names)


def compare_feeds(copies: Copies, reference: Reference, *, nets: bool) -> None:
    """`nets`: files come back and go whole, and which rows they share differs from copy to copy."""
    paths = [path for path, versions in copies.versions.items() if versions[-1] > versions[-2]]
    schema = _schema(paths[0])
    columns = f"{_listed(schema)}, _change_type"
    selects = []
    for i, path in enumerate(paths):
        *_, before, after = copies.versions[path]
        selects.append(f"SELECT {i} AS _t, {columns} FROM table_changes_by_path('{path}', {before + 1}, {after})")
    try:
        told = reference.query(" UNION ALL ".join(selects))
    except ReferenceError as error:
        if nets and "PARQUET_COLUMN_DATA_TYPE_MISMATCH" in str(error):
            # What a restore removes, it reads in the types of the version that comes back.
            raise _ReferenceFailsError from error
        raise
    theirs = _split(told, len(paths), schema)
    expected: Bag | None = None
    for path, told_by_them in zip(paths, theirs, strict=True):
        before, table = copies.versions[path][-2], DeltaTable(path)
        try:
            feed = table.changes(starting_version=before + 1).to_arrow()
        except UnsupportedFeatureError:
            if not nets:
                raise
            # What a restore removes may have wider types than the version that comes back.
            feed = table.changes(starting_version=before + 1, schema_version=before).to_arrow()
        told_by_us = _bag(feed.select([*schema.names, "_change_type"]), schema)
        ensure_same(f"changes of {path.name} by us and by the reference", told_by_us, told_by_them)
        told_by_us = Counter(_without_identities(row, schema) for row in told_by_us.elements())
        if nets:
            of_kind = {
                kind: Counter(row[:-1] for row in told_by_us.elements() if row[-1] == repr(kind))
                for kind in ("insert", "delete")
            }
            told_by_us = Counter((*row, "insert") for row in (of_kind["insert"] - of_kind["delete"]).elements())
            told_by_us.update((*row, "delete") for row in (of_kind["delete"] - of_kind["insert"]).elements())
        if expected is not None:
            ensure_same(f"changes of {path.name} and of {paths[0].name}", told_by_us, expected)
        expected = told_by_us if expected is None else expected


def _compare_kept_ids(before: Mapping[Path, Mapping[int, Any]], copies: Copies) -> None:
    """Everybody keeps the ids and commit versions of the same rows. Rows are known by `u`, where one has it."""
    kept: dict[Path, Bag] = {}
    for path in copies.versions:
        after = _ids(path)
        common = before[path].keys() & after.keys()
        kept[path] = Counter(
            (str(u), f"id {before[path][u][0] == after[u][0]}", f"version {before[path][u][1] == after[u][1]}")
            for u in common
        )
    first, *others = kept
    for path in others:
        ensure_same(f"(u, id kept, version kept) of {path.name} and of {first.name}", kept[path], kept[first])


def _ids(path: Path) -> dict[int, Any]:
    if not _tracks(path):
        return {}
    rows = DeltaTable(path).snapshot().scan(["u"], row_tracking=True).to_arrow().to_pylist()
    counts = Counter(row["u"] for row in rows)
    return {r["u"]: (r["row_id"], r["row_commit_version"]) for r in rows if counts[r["u"]] == 1}


def _without_identities(row: tuple[str, ...], schema: pa.Schema) -> tuple[str, ...]:
    """Only whether they have a value is the same everywhere."""
    places = [schema.get_field_index(name) for name in IDENTITIES]
    return tuple(str(value != "None") if i in places else value for i, value in enumerate(row))


def _split(rows: pa.Table, count: int, schema: pa.Schema) -> list[Bag]:
    return [_bag(rows.filter(pc.equal(rows["_t"], i)).drop_columns(["_t"]), schema) for i in range(count)]


def _bag(rows: pa.Table, schema: pa.Schema) -> Bag:
    """The rows, whatever units of time and widths of lengths a reader prefers."""
    rows = pa.table(
        {
            name: rows[name].cast(schema.field(name).type) if name in schema.names else rows[name]
            for name in rows.column_names
        }
    )
    return Counter(tuple(map(repr, row.values())) for row in rows.to_pylist())


def ensure_same(what: str, found: Bag, expected: Bag) -> None:
    if found != expected:
        more, less = ("\n    ".join(map(", ".join, rows)) for rows in (found - expected, expected - found))
        raise Differs(f"{what} differ\n  more:\n    {more}\n  missing:\n    {less}")
