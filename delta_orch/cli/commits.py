"""What the commands that commit have in common: their options, and what they tell at the end."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from delta_orch.cli.output import print_json, print_line

if TYPE_CHECKING:
    from delta_orch.log.write.commit_result import CommitPreview, CommitResult

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check everything and tell what would be committed; change nothing.")
]
Isolation = Annotated[
    str | None,
    typer.Option(
        "--isolation",
        metavar="LEVEL",
        help="WriteSerializable, Serializable or SnapshotIsolation; by default the table's.",
    ),
]


def report_commit(result: CommitResult, *, done: str, nothing: str, as_json: bool) -> None:
    """Tell how a commit ended, or how it would have.

    Args:
        done: What people are told where it was committed.
        nothing: What people are told where there was nothing left to do.
    """
    preview = result.preview
    if as_json:
        told = {
            "version": result.version,
            "skipped": result.skipped,
            "dry_run": preview is not None,
            "operation_metrics": dict(result.operation_metrics),
        }
        if preview is not None:
            told["version"] = preview.version
            told["actions"] = [orjson.Fragment(line) for line in preview.content.splitlines()]
        print_json(told)
    elif preview is not None:
        print_line(f"Version {preview.version} would be committed: {_kinds_of_actions(preview)} (--json shows them)")
    else:
        print_line(nothing if result.skipped else done)


def _kinds_of_actions(preview: CommitPreview) -> str:
    kinds = Counter(next(iter(orjson.loads(line))) for line in preview.content.splitlines())
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items())
