"""Commands that change rows: `delete`, `update`, `merge`; and `sql`, which runs one statement."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Unpack

from delta_orch.cli import arguments as take
from delta_orch.cli import output as out
from delta_orch.cli.arguments import Commands, Target, UsageError, open_engine
from delta_orch.errors import InvalidRequestError

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.log.write.commit_options import CommitOptions, CommitResult

COMMANDS = Commands()

_WHERE = take.argument("--where", "SQL", "The rows, in Spark SQL. Default: all.")


@COMMANDS.add(_WHERE, take.ENGINE, *take.COMMIT)
def delete(at: Target, where: str | None, engine: str, **commit: Unpack[CommitOptions]) -> None:
    """Delete the rows for which a predicate is true."""
    table = at.table()
    with out.working("Deleting rows"):
        result = table.delete(where, engine=open_engine(engine), **commit)
    _report(at, result)


@COMMANDS.add(
    take.argument(
        "--set", "COLUMN=SQL", "A column's new value, repeatable.", action="append", dest="assigned", required=True
    ),
    _WHERE,
    take.ENGINE,
    *take.COMMIT,
)
def update(at: Target, assigned: list[str], where: str | None, engine: str, **commit: Unpack[CommitOptions]) -> None:
    """Give columns other values in the rows for which a predicate is true."""
    from delta_orch.protocol.schema_edit import quote_path
    from delta_orch.statements.rows import parse_assignments

    values: dict[str, str] = {}
    for text in assigned:
        for column, value in parse_assignments(text).items():
            if (name := quote_path(column.path)) in values:
                raise UsageError(f"--set assigns {'.'.join(column.path)} twice")
            values[name] = value
    table = at.table()
    with out.working("Updating rows"):
        result = table.update(values, where, engine=open_engine(engine), **commit)
    _report(at, result)


@COMMANDS.add(
    take.argument("source", "SOURCE", "A Delta table's location, or a Parquet file's path ending in .parquet."),
    take.argument("--on", "SQL", "When a target row and a source row belong together: target.id = source.id"),
    take.argument("--keys", "A,B", "Columns that are equal instead; nulls are equal to each other."),
    take.argument(
        "--when",
        "CLAUSE",
        "As in MERGE, repeatable: 'MATCHED AND source.gone THEN DELETE'. Default: update and insert all columns.",
        action="append",
        default=[],
    ),
    take.ENGINE,
    *take.COMMIT,
)
def merge(
    at: Target,
    source: str,
    on: str | None,
    keys: str | None,
    when: list[str],
    engine: str,
    **commit: Unpack[CommitOptions],
) -> None:
    """Update, delete and insert rows by those of another table or a Parquet file."""
    from delta_orch.statements.rows import parse_merge_clause
    from delta_orch.verbs.merge.upsert import key_condition

    names = take.parse_columns(keys)
    if (on is None) == (names is None):
        raise UsageError("merge takes either --on or --keys")
    condition = on if on is not None else key_condition(names or [])
    clauses = [parse_merge_clause(text) for text in when or ["MATCHED THEN UPDATE SET *", "NOT MATCHED THEN INSERT *"]]
    table = at.table()
    assert condition is not None
    builder = table.merge(_source(at, source), condition, engine=open_engine(engine), **commit)
    for clause in clauses:
        builder = clause(builder)
    with out.working("Merging rows"):
        result = builder.execute()
    _report(at, result)


def _source(at: Target, location: str) -> object:
    from dataclasses import replace

    if not location.endswith(".parquet"):
        return replace(at, uri=location).table()
    import pyarrow as pa
    import pyarrow.dataset as ds

    try:
        return ds.dataset(location, format="parquet")
    except (OSError, pa.ArrowException) as e:
        raise InvalidRequestError(
            f"The source {location} cannot be read", cause=str(e).splitlines()[0], remedy="Give a Parquet file"
        ) from e


def _report(at: Target, result: CommitResult, nothing: str = "No row to change") -> None:
    counted = {name: int(value) for name, value in result.operation_metrics.items() if "Rows" in name}
    told = ", ".join(f"{name} {count:,}" for name, count in counted.items() if count)
    out.report_commit(result, done=f"Version {result.version}: {told}", nothing=nothing, as_json=at.json)
    if result.preview is not None and told and not at.json:
        out.print_line(told)


@COMMANDS.add(
    take.argument("--table", "NAME=URI", "A table by a name of its own, repeatable.", action="append", default=[]),
    take.ENGINE,
    take.DRY_RUN,
    first=take.argument("uri", "STATEMENT", "One statement of Spark SQL; a table is delta.`path` or a --table."),
)
def sql(at: Target, table: list[str], engine: str, dry_run: bool) -> None:
    """Run one statement of Spark SQL: see docs/sql.md."""
    import pyarrow as pa

    from delta_orch.log.write.commit_options import CommitResult
    from delta_orch.statements.run import sql as run
    from delta_orch.verbs.vacuum import VacuumResult

    tables = take.pairs(table, "NAME=URI", option="--table")
    reads = open_engine(engine)
    with out.working("Running the statement"):
        options: CommitOptions = {"dry_run": True} if dry_run else {}
        result = run(at.uri, engine=reads, tables=tables, storage_options=at.options(), **options)
        if not isinstance(result, CommitResult | pa.Table) and reads.accepts(result):
            result = reads.to_arrow(reads.relation(result))
    if isinstance(result, CommitResult):
        _report(at, result, "Nothing to change")
    elif isinstance(result, pa.Table):
        _print_table(at, result)
    elif isinstance(result, VacuumResult):
        out.report_vacuum(result, as_json=at.json)
    elif at.json:
        out.print_json(result)
    else:
        out.print_line(str(result))


def _print_table(at: Target, rows: pa.Table) -> None:
    from delta_orch.cli.row_commands import json_value, text_value
    from delta_orch.protocol.arrow_building import schema_from_arrow

    of_table = re.match(r"\s*(?:DESC|SHOW)", at.uri, re.IGNORECASE) is None
    # Arrow's milliseconds and other types of answers that are no table's.
    fields = schema_from_arrow(rows.schema).fields
    found = rows.to_pylist()
    if at.json:
        out.print_json(
            {
                "columns": [{"name": f.name, "type": str(f.data_type)} for f in fields],
                "rows": [{f.name: json_value(row[f.name], f.data_type) for f in fields} for row in found],
            },
            of_table=of_table,
        )
        return
    out.print_rows(
        [f"{out.one_line(f.name)}\n{out.one_line(str(f.data_type))}" for f in fields],
        [[text_value(row[f.name], f.data_type) for f in fields] for row in found],
        of_table=of_table,
    )
    out.print_line(f"{len(found)} rows")
