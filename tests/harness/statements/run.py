"""Run a case on a table of ours, for each engine, and on one of Delta on Spark, and compare after every statement: the
answers of queries with their types, rows and schemas of the tables as both sides read them, and the change feed."""

from __future__ import annotations

import datetime as dt
import math
import random
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

import delta_orch
from delta_orch import DeltaTable
from delta_orch.errors import DeltaError, UnsupportedExpressionError
from delta_orch.protocol.arrow_building import schema_to_arrow
from delta_orch.protocol.schema import GENERATION_EXPRESSION, IDENTITY_START, parse_schema
from delta_orch.protocol.types import StructType
from tests.harness.sequences.cases import Statement
from tests.harness.sequences.run import (
    OWN_FAILURE,
    REFERENCE,
    Copies,
    Differs,
    compare_feeds,
    compare_rows,
    compare_schemas,
    ensure_same,
    tells,
)  # fmt: skip
from tests.harness.statements.cases import Shape, create_texts, fill_text, insert_values, statement, told
from tests.harness.statements.expressions import PARQUET, PATH
from tests.interop.reference_client import Reference, ReferenceError

_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_QUERIES = ("SELECT", "WITH")
_DETAILS = ("partitionColumns", "clusteringColumns", "description", "properties")
"""Of DESCRIBE DETAIL, what is the same on both sides."""


@dataclass
class Found:
    """What became of a case: statements that only we refuse, that only we accept, and that both refuse."""

    ran: int = 0
    both: int = 0
    refused: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)


def check_case(seed: int, directory: Path, reference: Reference, engines: Mapping[str, object]) -> Found:
    """Run the case of a seed in an empty directory.

    Raises:
        Differs: Somebody says something else, or ours raised what is no DeltaError. The message has the statements.
    """
    rng, found = random.Random(seed), Found()
    writers = {**engines, REFERENCE: REFERENCE}
    copies = Copies(writers, {name: directory / f"of-{name}" for name in writers})
    texts: dict[int, str] = {}
    source = directory / "source"
    try:
        texts[-2], texts[-1] = create_texts(rng)
        reference.run(_placed(texts[-2], source, source))
        refusals = _everywhere(Statement(texts[-1]), copies, source, reference)
        if any(refusals.values()):
            _judge(texts[-1], {REFERENCE: None, **refusals}, found)
            return found
        _write_files(copies)
        copies.versions = {path: [DeltaTable(path).version()] for path in copies.paths.values()}
        shape = _shape(copies, source)
        texts[0] = fill_text(rng, shape, 3, 6)
        reference.run(_placed(texts[0], source, source))
        todo = [insert_values(rng, shape, shape.given, first, 4) for first in (0, 4)]
        left = rng.randint(12, 17)
        while left and len(texts) < 60:
            chosen = todo.pop() if todo else statement(rng, _shape(copies, source))
            texts[len(texts) - 2] = f"{chosen.sql} -- {chosen.values}" if chosen.values else chosen.sql
            left -= _step(chosen, copies, source, reference, found)
    except Exception as error:
        raise Differs(f"{type(error).__name__} {error}\n{told(texts)}") from error
    return found


def _shape(copies: Copies, source: Path) -> Shape:
    snapshot = DeltaTable(copies.paths[REFERENCE]).snapshot()
    computed = (GENERATION_EXPRESSION, IDENTITY_START)
    given = [f.name for f in snapshot.schema if not any(key in f.metadata for key in computed)]
    of_source = schema_to_arrow(DeltaTable(source).snapshot().schema)
    steps = len(next(iter(copies.versions.values()))) - 1
    identities = _identities(copies)
    named = StructType(tuple(f for f in snapshot.schema if f.name not in identities))
    return Shape(schema_to_arrow(named), given, snapshot.metadata.partition_columns, of_source, steps)


def _placed(text: str, table: Path, source: Path, version: object = "") -> str:
    lies = {
        "{table}": table,
        "{source}": source,
        "{values}": f"{source}-values",
        "{clone}": f"{table}-clone",
        "{converted}": f"{table}-files",
    }
    places = {name: f"delta.`{path}`" for name, path in lies.items()}
    places |= {"{version}": str(version), PATH: str(table), PARQUET: f"parquet.`{table}-files`"}
    return re.sub(r"\{[a-z]+\}", lambda match: places.get(match[0], match[0]), text)


def _write_files(copies: Copies) -> None:
    """Parquet files that a statement may make a table of."""
    days = pa.array([dt.date(2024, 2, day) for day in (1, 2, 3, 4)])
    rows = pa.table({"u": [1, 2, 6, None], "s": ["a", None, "", "b"], "day": days, "p": ["a", "b", "a", None]})
    for path in copies.paths.values():
        pq.write_to_dataset(rows, f"{path}-files", partition_cols=["p"])


def _step(chosen: Statement, copies: Copies, source: Path, reference: Reference, found: Found) -> bool:
    """Whether the statement ran on both sides, or both were asked."""
    before = {path: versions[-1] for path, versions in copies.versions.items()}
    if chosen.sql.startswith("RESTORE") and any(
        v[(chosen.restores or 0) + 1] == v[-1] for v in copies.versions.values()
    ):
        return False  # already there
    told = all(tells(path) for path in before)
    answers: dict[str, object] = {}
    refusals = _everywhere(chosen, copies, source, reference, answers)
    if REFERENCE not in refusals:
        found.refused.append(f"{chosen.sql}\n    {next(filter(None, refusals.values()))}")
        return False
    for name, path in copies.paths.items():
        if name != REFERENCE and refusals[name] and DeltaTable(path).version() != before[path]:
            raise Differs(f"{name} refused, and committed: {refusals[name]}")
    agreed = _judge(chosen.sql, refusals, found)
    if not agreed:
        _start_alike(copies, [name for name, refusal in refusals.items() if not refusal])
    is_query = chosen.sql.startswith((*_QUERIES, "DESCRIBE", "SHOW"))
    if is_query:
        wanted = answers.pop(REFERENCE, None)
        for name, answer in answers.items() if agreed else ():
            _compare_answers(f"{name} and {REFERENCE}", answer, wanted, _identities(copies))
    else:
        compare_schemas(copies)
        compare_rows(copies, reference)
    for path, versions in copies.versions.items():
        versions.append(DeltaTable(path).version())
    made = {name: copies.versions[path][-1] - before.get(path, -9) for name, path in copies.paths.items()}
    if agreed and len({bool(count) for count in made.values()}) > 1:
        # Without rows, the reference adds an empty file to a table with an identity column.
        if chosen.sql.startswith(("DELETE", "UPDATE", "INSERT")[: 2 if _identities(copies) else 3]):
            raise Differs(f"not everybody commits: {made}")
    elif agreed and any(made.values()) and told and chosen.sql.startswith(("DELETE", "UPDATE", "INSERT", "MERGE")):
        compare_feeds(copies, reference, nets=False)
    return True


def _judge(text: str, refusals: Mapping[str, str | None], found: Found) -> bool:
    """Whether all of them ran it. Sorts what they refuse."""
    found.ran += 1
    if not any(refusals.values()):
        return True
    theirs = refusals[REFERENCE]
    ours = [refusal for name, refusal in refusals.items() if name != REFERENCE]
    if all(refusals.values()):
        found.both += 1
    elif theirs is None:
        found.refused.append(f"{text}\n    {' | '.join(filter(None, ours))}")
    elif not OWN_FAILURE.search(theirs):
        found.accepted.append(f"{text}\n    {theirs}")
    return False


def _start_alike(copies: Copies, ran: list[str]) -> None:
    """Where somebody refused, the others' tables become copies of one where the statement ran."""
    if not ran or len(ran) == len(copies.paths):
        return
    first = copies.paths[ran[-1]]
    for name, path in copies.paths.items():
        if name not in ran:
            # A name that the reference has no table of in its memory.
            copies.paths[name] = path.with_name(f"{path.name}-")
            shutil.copytree(first, copies.paths[name])
            copies.versions[copies.paths[name]] = [*copies.versions[first]]
            del copies.versions[path]


def _everywhere(
    chosen: Statement, copies: Copies, source: Path, reference: Reference, answers: dict[str, object] | None = None
) -> dict[str, str | None]:
    """Run a statement on each table, as long as what runs is an expression that the first engine evaluates. Returns
    what each refusal says, None where it ran."""
    refusals: dict[str, str | None] = {}
    if chosen.values is not None:
        reference.run(_placed(f"CREATE OR REPLACE TABLE {{values}} USING delta AS {chosen.values}", source, source))
    for name, path in copies.paths.items():
        versions = copies.versions.get(path)
        number = "" if chosen.restores is None or versions is None else versions[chosen.restores + 1]
        text = _placed(chosen.sql, path, source, number)
        refusals[name] = None
        try:
            if copies.writers[name] != REFERENCE:
                answer = _collected(delta_orch.sql(text, engine=copies.writers[name]))  # type: ignore[arg-type]
            elif chosen.sql.startswith(_QUERIES):
                answer = reference.query(text)
            else:
                answer = reference.run(text)
        except (DeltaError, ReferenceError, _FrameError) as error:
            refusals[name] = f"{type(error).__name__}: {error}".partition("\n\tat ")[0][:500]
            if isinstance(error, UnsupportedExpressionError) and len(refusals) == 1:
                break
        else:
            if answers is not None:
                answers[name] = answer
    return refusals


class _FrameError(Exception):
    """A DataFrame that a query gave raises when it is collected: what Spark says then is the user's to see."""


def _collected(answer: Any) -> object:
    if not hasattr(answer, "toArrow"):
        return answer
    try:
        return answer.toArrow()
    except (PySparkException, Py4JJavaError) as error:
        raise _FrameError(str(error)) from error


# What both sides say


def _identities(copies: Copies) -> Set[str]:
    """Columns of the table of which nobody can say which row gets which value."""
    schema = DeltaTable(copies.paths[REFERENCE]).snapshot().schema
    return {f.name for f in schema if IDENTITY_START in f.metadata}


def _compare_answers(who: str, answer: Any, wanted: Any, identities: Set[str]) -> None:
    if isinstance(wanted, list):
        _compare_told(who, answer.to_pylist(), wanted)
        return
    described = parse_schema(wanted.schema.metadata[_SPARK_SCHEMA].decode())
    expected = schema_to_arrow(described)
    found = [(f.name, _plain_type(f.type)) for f in answer.schema]
    if found != [(f.name, _plain_type(f.type)) for f in expected]:
        raise Differs(f"types of {who}:\n  {found}\n  {[(f.name, _plain_type(f.type)) for f in expected]}")
    names = [f"c{i}" for i in range(len(expected))]
    typed = pa.schema([field.with_name(name) for name, field in zip(names, expected, strict=True)])
    told = [name for name, field in zip(names, expected, strict=True) if field.name not in identities]
    both = (rows.rename_columns(names).cast(typed).select(told) for rows in (answer, wanted))
    ensure_same(f"rows of {who}", *map(_bag, both))


def _compare_told(who: str, answer: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    """What DESCRIBE and SHOW answer. Histories differ where an alteration changes nothing: one side commits it."""
    if set(wanted[0]) - set(answer[0]):
        raise Differs(f"columns of {who}: {list(answer[0])} {list(wanted[0])}")
    names = [name for name in _DETAILS if name in wanted[0]] or [name for name in wanted[0] if name == "col_name"]
    found, expected = ([[_sorted(row[name]) for name in names] for row in rows] for rows in (answer, wanted))
    if found[: len(expected)] != expected and found != expected[: len(found)]:
        raise Differs(f"{names} of {who}:\n  {found}\n  {expected}")


def _sorted(value: Any) -> Any:
    """Of properties, without names that everybody makes up."""
    if isinstance(value, dict) or (value and isinstance(value[0], tuple)):
        return sorted(item for item in dict(value).items() if ".materialized" not in item[0])
    return value


def _plain_type(data_type: pa.DataType) -> str:
    return re.sub(r"large_|(?<=list<)\w+(?=:)| not null|(?<=, )\w+(?=: )", "", str(data_type))


def _bag(rows: pa.Table) -> Counter[tuple[str, ...]]:
    return Counter(tuple(repr(_plain(value)) for value in row.values()) for row in rows.to_pylist())


def _plain(value: Any) -> Any:
    """Sums of floats depend on the order of rows in their last digits."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else float(f"{value:.12g}") + 0.0
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
