"""Commands that take a table as a whole: `restore`, `clone`, `convert`, `purge`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from delta_orch.cli import arguments as take
from delta_orch.cli import output as out
from delta_orch.cli.arguments import Commands, Target, UsageError
from delta_orch.cli.output import text_of_bytes

if TYPE_CHECKING:
    from delta_orch.log.write.commit_options import CommitOptions

COMMANDS = Commands()


@COMMANDS.add(
    take.argument("--version", "N", "The version to go back to.", type=int),
    take.argument("--timestamp", "TIME", "Go back to the version that was current at this time (ISO 8601)."),
    take.flag("--ignore-missing-files", "Restore even where files of that version are gone."),
    *take.COMMIT,
)
def restore(at: Target, ignore_missing_files: bool, **commit: Unpack[CommitOptions]) -> None:
    """Make the table what it was at an older version. That is a new version; none is taken back."""
    if (at.version is None) == (at.timestamp is None):
        raise UsageError("Give --version or --timestamp")
    with out.working("Restoring"):
        result = at.table().restore(at.version, at.timestamp, ignore_missing_files=ignore_missing_files, **commit)
    metrics = result.operation_metrics
    done = (
        f"Version {result.version}: {metrics.get('numRestoredFiles')} files restored, "
        f"{metrics.get('numRemovedFiles')} removed"
    )
    out.report_commit(result, done=done, nothing="Nothing to restore", as_json=at.json)


@COMMANDS.add(
    take.argument("target", "TARGET", "The location of the clone."),
    take.flag("--deep", "Copy the files. Default: name the files of the source."),
    take.argument("--version", "N", "The version to clone. Default: the newest.", type=int),
    take.argument("--timestamp", "TIME", "Clone the version that was current at this time (ISO 8601)."),
    take.flag("--replace", "Let a table at the target become the clone."),
    take.argument("--property", "KEY=VALUE", "A table property of the clone, repeatable.", action="append", default=[]),
    take.DRY_RUN,
)
def clone(at: Target, target: str, deep: bool, replace: bool, property: list[str], dry_run: bool) -> None:
    """Make a version of the table a table of its own. Storage options count for both locations."""
    properties = take.pairs(property, "KEY=VALUE", option="--property")
    with out.working("Copying files" if deep else "Cloning"):
        result = at.table().clone(
            target,
            not deep,
            at.version,
            at.timestamp,
            replace,
            properties,
            storage_options=at.options(),
            dry_run=dry_run,
        )
    metrics = result.operation_metrics
    done = f"Version {result.version} of {target}: {metrics.get('sourceNumOfFiles')} files"
    out.report_commit(result, done=done, nothing="Nothing to clone", as_json=at.json)


@COMMANDS.add(
    take.argument(
        "--partition", "NAME:TYPE", "A column that directories stand for, repeatable.", action="append", default=[]
    ),
    take.DRY_RUN,
)
def convert(at: Target, partition: list[str], dry_run: bool) -> None:
    """Make the Parquet files of a directory a table, in place."""
    from delta_orch.delta_table import DeltaTable

    columns = take.pairs(partition, "NAME:TYPE", option="--partition")
    with out.working("Reading footers"):
        result = DeltaTable.convert(at.uri, columns or None, storage_options=at.options(), dry_run=dry_run)
    done = f"Version {result.version}: {result.operation_metrics.get('numConvertedFiles')} files"
    out.report_commit(result, done=done, nothing="It is a table already", as_json=at.json)


@COMMANDS.add(
    take.argument("--where", "SQL", "Only partitions for which this is true."),
    take.ENGINE,
    *take.COMMIT,
)
def purge(at: Target, where: str | None, engine: str, **commit: Unpack[CommitOptions]) -> None:
    """Rewrite files that hold deleted rows or dropped columns. Rows do not change."""
    table = at.table()
    with out.working("Rewriting files"):
        result = table.purge(where, engine=take.open_engine(engine), **commit)
    metrics = result.operation_metrics
    before, after = (int(metrics.get(name, 0)) for name in ("numRemovedBytes", "numAddedBytes"))
    done = (
        f"Version {result.version}: {metrics.get('numRemovedFiles')} files ({text_of_bytes(before)}) "
        f"became {metrics.get('numAddedFiles')} ({text_of_bytes(after)})"
    )
    out.report_commit(result, done=done, nothing="Nothing to purge", as_json=at.json)
