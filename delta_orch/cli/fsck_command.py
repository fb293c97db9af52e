"""The command `fsck`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from delta_orch.cli.arguments import Json, StorageOption, Uri, open_table
from delta_orch.cli.output import print_fields, print_json, print_line, print_rows, text_of_bytes, working

if TYPE_CHECKING:
    from delta_orch.verbs.fsck import FsckReport

_SHOWN = 50


def fsck(
    uri: Uri,
    check: Annotated[
        bool, typer.Option("--check", help="Look up every data file, and verify every deletion vector.")
    ] = False,
    version: Annotated[
        int | None, typer.Option("--version", metavar="N", help="The version to check; by default the newest.")
    ] = None,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Check that the log is whole and fits together. Ends with 1 where the version cannot be read right."""
    table = open_table(uri, storage_option)
    with working("Checking"):
        report = table.fsck(version, check_files=check)
    if json:
        print_json({"ok": report.ok, **asdict(report)})
    else:
        _print_report(report)
    if not report.ok:
        raise typer.Exit(1)


def _print_report(report: FsckReport) -> None:
    print_fields(
        report.uri,
        {
            "version": report.version,
            "oldest version": report.oldest_version,
            "commits": report.num_commits,
            "checkpoints": report.num_checkpoints,
            "log compactions": report.num_compactions,
            "checksum": f"agrees in {len(report.checksum_fields)} fields" if report.checksum_fields else None,
            "files": None if report.num_files is None else f"{report.num_files:,}",
            "size": None if report.size_bytes is None else text_of_bytes(report.size_bytes),
            "deletion vectors": report.num_deletion_vectors,
            "files looked up": "yes" if report.files_checked else "no",
            "result": "in order" if report.ok else "damaged",
        },
    )
    if report.problems:
        shown = report.problems[:_SHOWN]
        print_rows(("severity", "code", "problem"), [(p.severity, p.code, p.message) for p in shown])
        if len(shown) < len(report.problems):
            print_line(f"… and {len(report.problems) - len(shown):,} more (all of them with --json)")
