"""Audits of a write, as Dagster tells them: blocking asset checks, and the failure of a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import dagster as dg

from delta_orch.dagster.metadata import Metadata
from delta_orch.errors import AuditFailedError
from delta_orch.pipeline.audit import Audit, AuditFinding


def audit_specs(asset: dg.AssetKey, audits: Sequence[Audit]) -> list[dg.AssetCheckSpec]:
    """A blocking check for each audit."""
    return [
        dg.AssetCheckSpec(audit.name, asset=asset, description=audit.description, blocking=True) for audit in audits
    ]


def audit_results(findings: Sequence[AuditFinding]) -> Iterator[dg.AssetCheckResult]:
    """What became of those checks."""
    for finding in findings:
        yield dg.AssetCheckResult(
            passed=finding.passed,
            check_name=finding.name,
            severity=dg.AssetCheckSeverity.ERROR,
            description=finding.description or "Passed before anybody could see the rows.",
            metadata=_about(finding),
        )


def findings_of(error: AuditFailedError) -> Sequence[AuditFinding]:
    return cast("Sequence[AuditFinding]", error.context["findings"])


def audit_failure(error: AuditFailedError) -> dg.Failure:
    """The failure of a step whose rows did not pass. Its metadata shows rows and says where all of them are. A retry
    would compute the same rows, so there is none."""
    reference, uri = error.context["staged"], error.context["table_uri"]
    metadata: Metadata = {
        "delta/staged": reference,
        "delta/look_at": dg.MetadataValue.md(f"```python\nDeltaTable({uri!r}).staged({reference!r}).snapshot()\n```"),
    }
    for finding in findings_of(error):
        if not finding.passed:
            metadata |= {f"delta/audit/{finding.name}/{name}": value for name, value in _about(finding).items()}
    return dg.Failure(str(error), metadata, allow_retries=False)


def _about(finding: AuditFinding) -> Metadata:
    about: Metadata = {"failed": finding.num_failed}
    if finding.where is not None:
        about["where"] = finding.where
    if finding.rows:
        about["rows"] = dg.MetadataValue.md(_markdown(finding))
    return about


def _markdown(finding: AuditFinding) -> str:
    names = list(finding.rows[0])
    lines = [names, ["---"] * len(names), *([str(row[name]) for name in names] for row in finding.rows)]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
    )
