"""The command `ingest`: files into a table, each once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from delta_orch.cli import app as take
from delta_orch.cli import output as out
from delta_orch.cli.app import command, open_engine
from delta_orch.cli.output import text_of_bytes

if TYPE_CHECKING:
    from delta_orch.verbs.ingest import IngestResult

_FORMATS = ["json", "csv", "parquet", "avro", "orc", "text", "binary"]
_RULES = {
    "fail": "A row that breaks it fails the load.",
    "quarantine": "A row that breaks it goes to the table URI_quarantine.",
    "drop": "A row that breaks it is left out.",
    "warn": "A row that breaks it is counted.",
}
SOURCE_STORAGE_OPTION = "--source-storage-option"


@command(
    click.argument("source"),
    click.option("--format", type=click.Choice(_FORMATS), required=True, help="What the files are."),
    click.option("--pattern", default="**/*", metavar="GLOB", help="Which files, by their path. Default: **/*."),
    click.option(
        "--format-option", "options", multiple=True, metavar="KEY=VALUE", callback=take.parse_pairs,
        help="An option of the format, such as delimiter=;. The value is JSON or text. Repeatable.",
    ),
    click.option(
        "--schema-mode", type=click.Choice(["fail", "merge", "rescue"]), default="fail",
        help="What becomes of values that do not fit. Default: fail.",
    ),
    click.option(
        "--on-error", type=click.Choice(["fail", "quarantine"]), default="fail",
        help="What becomes of a file that cannot be read. Default: fail.",
    ),
    click.option(
        "--on-changed", type=click.Choice(["error", "replace", "ignore"]), default="error",
        help="What becomes of a file that has changed since it was loaded. Default: error.",
    ),
    click.option("--compression", metavar="NAME", help="gzip, zstd or none. Default: by the name of the file."),
    click.option("--encoding", metavar="NAME", help="Default: UTF-8."),
    click.option("--source-file", is_flag=True, help="Add a column with the path of the file of each row."),
    click.option("--settle-seconds", type=float, default=0.0, metavar="N", help="Leave files that changed since."),
    click.option(
        "--order", type=click.Choice(["name", "modification_time"]), default="name", help="Default: name."
    ),
    click.option("--names-ascend", is_flag=True, help="No file arrives with a lesser path: list what comes behind."),
    click.option("--max-files", type=int, default=10_000, metavar="N", help="Files of one commit. Default: 10000."),
    click.option("--max-bytes", type=int, metavar="N", help="Bytes of one commit."),
    *(
        click.option(
            f"--expect-{action}", multiple=True, metavar="PREDICATE",
            help=f"A rule for each row, in Spark SQL. {meaning} Repeatable.",
        )
        for action, meaning in _RULES.items()
    ),
    click.option("--max-commits", type=int, metavar="N", help="Default: until no file is new."),
    click.option("--partition-by", metavar="A,B", callback=take.parse_columns, help="Of a table that is created."),
    click.option(
        SOURCE_STORAGE_OPTION, multiple=True, metavar="KEY=VALUE", callback=take.parse_pairs,
        help="An option of the source's store. Default: those of the table. Repeatable.",
    ),
    take.ENGINE,
)  # fmt: skip
def ingest(
    uri: str,
    source: str,
    storage_options: dict[str, str],
    source_storage_option: dict[str, str],
    options: dict[str, str],
    max_commits: int | None,
    partition_by: Sequence[str] | None,
    engine: str,
    as_json: bool,
    **about: Any,
) -> None:
    """Load the files below SOURCE that the table has not loaded yet, each once. The first files create the table."""
    from delta_orch.arrival.file_source import FileSource
    from delta_orch.delta_table import DeltaTable

    rules: dict[str, dict[str, str]] = {}
    for action in _RULES:
        for rule in about.pop(f"expect_{action}"):
            if rule in rules:
                raise click.UsageError(f"The rule {rule!r} stands there twice")
            rules[rule] = {"rule": rule, "action": action}
    files = FileSource(
        source,
        options={name: _value(text) for name, text in options.items()},
        storage_options=source_storage_option or storage_options or None,
        **about,
    )
    table = DeltaTable(uri, storage_options or None)
    result = table.ingest(
        files, engine=open_engine(engine), max_commits=max_commits, expect=rules, partition_by=partition_by
    )
    report = {
        **out.attributes(result, "version commits num_files size_bytes num_rows"),
        "set_aside": result.set_aside.to_pylist(),
        "num_dropped": result.expected.num_dropped,
        "num_quarantined": result.expected.num_quarantined,
        "broken_rules": result.expected.counts,
    }
    out.answer(report, _sentence(result), as_json=as_json)


def _value(text: str) -> object:
    import orjson

    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _sentence(result: IngestResult) -> str:
    lines = [f"Set aside {file['path']}: {file['error']}" for file in result.set_aside.to_pylist()]
    if not result.commits:
        return "No new files"
    size = text_of_bytes(result.size_bytes)
    done = f"Version {result.version}: {result.num_files:,} files ({size}) with {result.num_rows:,} rows are loaded"
    broken = [
        f"{rule.num_broken:,} rows break {rule.name!r} ({rule.action})"
        for rule in result.expected.results
        if rule.num_broken
    ]
    return "\n".join([done, *broken, *lines])
