"""Audits of a write, as Dagster tells them: blocking asset checks, and the failure of a step."""

# No postponed annotations in this file: Dagster reads them as they are.

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

import dagster as dg

from delta_orch.arguments import checked
from delta_orch.dagster.metadata import Metadata, markdown_text
from delta_orch.dagster.settings import plain_metadata
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import AuditFailedError, InvalidRequestError
from delta_orch.pipeline.audit import Audit, AuditFinding, as_audits
from delta_orch.pipeline.target_table import snapshot_or_none

PASSED = "delta/audits"
"""Metadata of a materialization: the names of the audits that its commit passed."""
_LATEST = 50


@checked
def build_delta_audit_checks(
    assets: Sequence[dg.AssetsDefinition | dg.AssetSpec | dg.SourceAsset],
) -> list[dg.AssetChecksDefinition]:
    """The audits of assets that the IO manager keeps (metadata `audit`), as blocking asset checks.

    An audit looks at the rows before they are visible, whether it is a check or not. As a check it is in the catalog,
    with its history. After a materialization, the check reports what the audit found. A failed audit fails the step,
    and is reported as a failed check. A check that runs without its asset looks at the whole table as it is.

    Args:
        assets: Assets without audits are ignored. The audits of a `@delta_asset` are checks already.

    Raises:
        InvalidRequestError: What the metadata `audit` says is no audit.
    """
    made: list[dg.AssetChecksDefinition] = []
    for asset in (one for one in assets if isinstance(one, dg.AssetsDefinition)):
        for key in asset.keys:
            metadata = plain_metadata(asset.metadata_by_key.get(key))
            audits = as_audits(metadata["audit"]) if metadata.get("audit") else ()  # type: ignore[arg-type]
            if audits:
                manager = asset.get_io_manager_key_for_asset_key(key)
                made.append(_checks(key, audits, manager, metadata))
    return made


def _checks(
    key: dg.AssetKey, audits: Sequence[Audit], manager: str, metadata: Mapping[str, object]
) -> dg.AssetChecksDefinition:
    def check(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        is_new, passed = _passed_in_run(context, key)
        table_of = getattr(getattr(context.resources, manager), "table_of", None)
        if table_of is None:
            raise InvalidRequestError(
                f"The IO manager {manager!r} of {key.to_user_string()} keeps no Delta tables",
                remedy="Leave the asset out of build_delta_audit_checks",
            )
        table: DeltaTable = table_of(key, metadata)
        wanted = [audit for audit in audits if dg.AssetCheckKey(key, audit.name) in context.selected_asset_check_keys]
        snapshot = snapshot_or_none(table) if any(audit.name not in passed for audit in wanted) else None
        for audit in wanted:
            if audit.name in passed:
                yield from audit_results([AuditFinding(audit.name, True, "")], key)
            elif snapshot is None:
                # An asset that has returned None makes no table.
                nothing = "Nothing was written." if is_new else f"There is no table at {table.uri}."
                yield dg.AssetCheckResult(passed=is_new, check_name=audit.name, description=nothing)
            else:
                found = audit.find(snapshot, None)
                described = found.description or f"Passes in version {snapshot.version}."
                about = {**_about(found), "delta/version": snapshot.version}
                yield dg.AssetCheckResult(
                    passed=found.passed, check_name=audit.name, description=described, metadata=about
                )

    make: Callable[..., dg.AssetChecksDefinition] = dg.multi_asset_check(
        name="__".join([*key.path, "audits"]),
        specs=audit_specs(key, audits),
        can_subset=True,
        required_resource_keys={manager},
    )
    return make(check)


def _passed_in_run(context: dg.AssetCheckExecutionContext, key: dg.AssetKey) -> tuple[bool, set[str]]:
    """Whether this run has materialized the asset, and the audits that it has passed there."""
    events = context.instance.fetch_materializations(key, limit=_LATEST).records
    for event in events:
        if event.run_id == context.run.run_id and event.asset_materialization is not None:
            told = event.asset_materialization.metadata.get(PASSED)
            return True, set(cast("Sequence[str]", told.value)) if isinstance(told, dg.JsonMetadataValue) else set()
    return False, set()


def report_failed_checks(context: dg.OutputContext, error: AuditFailedError) -> None:
    """Tell the instance what an audit found that fails its step: no check of the run will."""
    for finding in findings_of(error):
        told = dg.AssetCheckEvaluation(
            asset_key=context.asset_key,
            check_name=finding.name,
            passed=finding.passed,
            severity=dg.AssetCheckSeverity.ERROR,
            description=finding.description or "Passed, but another audit did not.",
            metadata={**_about(finding), "delta/run_id": context.run_id},
            blocking=True,
        )
        context.step_context.instance.report_runless_asset_event(told)


def audit_specs(asset: dg.AssetKey, audits: Sequence[Audit]) -> list[dg.AssetCheckSpec]:
    """A blocking check for each audit."""
    return [
        dg.AssetCheckSpec(audit.name, asset=asset, description=audit.description, blocking=True) for audit in audits
    ]


def audit_results(findings: Sequence[AuditFinding], asset: dg.AssetKey) -> Iterator[dg.AssetCheckResult]:
    """What became of those checks."""
    for finding in findings:
        yield dg.AssetCheckResult(
            passed=finding.passed,
            asset_key=asset,
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
    rows = [names, *([str(row[name]) for name in names] for row in finding.rows)]
    lines = ["| " + " | ".join(map(markdown_text, row)) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(names) + "|", *lines[1:]])
