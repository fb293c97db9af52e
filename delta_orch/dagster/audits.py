"""Audits of a write, as Dagster tells them: blocking asset checks, and the failure of a step."""

# No postponed annotations in this file: Dagster reads them as they are.

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import dagster as dg

from delta_orch.arguments import checked
from delta_orch.dagster.metadata import Metadata, markdown_text
from delta_orch.dagster.settings import plain_metadata
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import AuditFailedError, ExpectationFailedError, InvalidRequestError
from delta_orch.pipeline.audit import Audit, AuditFinding, as_audits, rule_check_name, rule_findings
from delta_orch.pipeline.target_table import snapshot_or_none
from delta_orch.verbs.expect import ExpectationReport, Expectations

PASSED = "delta/audits"
"""Metadata of a materialization: the names of the audits that its commit passed."""
BROKEN = "delta/broken_rules"
"""Metadata of a materialization: rule of `expect` → how many rows break it."""
_LATEST = 50


@checked
def build_delta_audit_checks(
    assets: Sequence[dg.AssetsDefinition | dg.AssetSpec | dg.SourceAsset],
) -> list[dg.AssetChecksDefinition]:
    """The audits and rules of assets that the IO manager keeps (metadata `audit` and `expect`), as asset checks.

    An audit looks at the rows before they are visible, whether it is a check or not. As a check it is in the catalog,
    with its history. After a materialization, the check reports what the audit found. A failed audit fails the step,
    and is reported as a failed check. A check that runs without its asset looks at the whole table as it is. A rule of
    `expect` is about the rows of a write: its check says what the last materialization found, and blocks nothing.

    Args:
        assets: Assets without audits and rules are ignored. Those of a `@delta_asset` are checks already.

    Raises:
        InvalidRequestError: What the metadata `audit` says is no audit, or `expect` has no rules.
    """
    made: list[dg.AssetChecksDefinition] = []
    for asset in (one for one in assets if isinstance(one, dg.AssetsDefinition)):
        for key in asset.keys:
            metadata = plain_metadata(asset.metadata_by_key.get(key))
            audits = as_audits(metadata["audit"]) if metadata.get("audit") else ()  # type: ignore[arg-type]
            expect = Expectations.of(metadata.get("expect"))
            if audits or expect is not None:
                manager = asset.get_io_manager_key_for_asset_key(key)
                made.append(_checks(key, audits, expect, manager, metadata))
    return made


def _checks(
    key: dg.AssetKey,
    audits: Sequence[Audit],
    expect: Expectations | None,
    manager: str,
    metadata: Mapping[str, object],
) -> dg.AssetChecksDefinition:
    def check(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        is_new, passed = _passed_in_run(context, key)
        if expect is not None:
            yield from _reported_rules(context, key, expect)
        table_of = getattr(getattr(context.resources, manager), "table_of", None)
        if table_of is None:
            raise InvalidRequestError(
                f"The IO manager {manager!r} of {key.to_user_string()} keeps no Delta tables",
                remedy="Leave the asset out of build_delta_audit_checks",
            )
        table: DeltaTable = table_of(key, metadata)
        selected = [audit for audit in audits if dg.AssetCheckKey(key, audit.name) in context.selected_asset_check_keys]
        snapshot = snapshot_or_none(table) if any(audit.name not in passed for audit in selected) else None
        for audit in selected:
            if audit.name in passed:
                yield from audit_results([AuditFinding(audit.name, True, "")], key)
            elif snapshot is None:
                # An asset that has returned None makes no table.
                nothing = "Nothing was written." if is_new else f"There is no table at {table.uri}."
                yield dg.AssetCheckResult(passed=is_new, check_name=audit.name, description=nothing)
            else:
                finding = audit.find(snapshot, None)
                described = finding.description or f"Passes in version {snapshot.version}."
                about = {**_about(finding), "delta/version": snapshot.version}
                yield dg.AssetCheckResult(
                    passed=finding.passed, check_name=audit.name, description=described, metadata=about
                )

    make: Callable[..., dg.AssetChecksDefinition] = dg.multi_asset_check(
        name="__".join([*key.path, "audits"]),
        specs=[*audit_specs(key, audits), *rule_specs(key, expect)],
        can_subset=True,
        required_resource_keys={manager},
    )
    return make(check)


def _passed_in_run(context: dg.AssetCheckExecutionContext, key: dg.AssetKey) -> tuple[bool, set[str]]:
    """Whether this run has materialized the asset, and the audits that it has passed there."""
    events = context.instance.fetch_materializations(key, limit=_LATEST).records
    for event in events:
        if event.run_id == context.run.run_id and event.asset_materialization is not None:
            names = event.asset_materialization.metadata.get(PASSED)
            return True, set(cast("Sequence[str]", names.value)) if isinstance(names, dg.JsonMetadataValue) else set()
    return False, set()


def _reported_rules(
    context: dg.AssetCheckExecutionContext, key: dg.AssetKey, expect: Expectations
) -> Iterator[dg.AssetCheckResult]:
    """The results of the rules in the last materialization."""
    events = context.instance.fetch_materializations(key, limit=_LATEST).records
    materializations = (event.asset_materialization for event in events)
    metadata: Mapping[str, Any] = next((one.metadata for one in materializations if one and BROKEN in one.metadata), {})
    broken = cast("Mapping[str, int]", metadata[BROKEN].value) if BROKEN in metadata else {}
    for name in expect.rules:
        check = rule_check_name(name)
        if dg.AssetCheckKey(key, check) not in context.selected_asset_check_keys:
            continue
        count, rows = broken.get(name, 0), metadata.get(f"delta/rows_that_break/{check}")
        yield dg.AssetCheckResult(
            passed=not count,
            check_name=check,
            severity=dg.AssetCheckSeverity.WARN,
            description=f"{count:,} rows break the rule." if name in broken else "No materialization tells of it.",
            metadata={"failed": count, **({} if rows is None else {"rows": rows})},
        )


def rule_specs(asset: dg.AssetKey, expect: Expectations | None) -> list[dg.AssetCheckSpec]:
    """A check for each rule of `expect`. It blocks nothing: a rule that must hold fails the step."""
    rules = {} if expect is None else expect.rules
    return [
        dg.AssetCheckSpec(rule_check_name(name), asset=asset, description=f"{name}: every row satisfies {rule.rule}.")
        for name, rule in rules.items()
    ]


def rule_metadata(report: ExpectationReport | None) -> Metadata:
    """The metadata of a materialization on rules: how many rows break each, and some of them."""
    if report is None:
        return {}
    metadata: Metadata = {BROKEN: dg.JsonMetadataValue(report.counts)}
    for finding in rule_findings(report):
        if finding.rows:
            metadata[f"delta/rows_that_break/{finding.name}"] = dg.MetadataValue.md(_markdown(finding))
    return metadata


def report_failed_checks(context: dg.OutputContext, error: AuditFailedError | ExpectationFailedError) -> None:
    """Tell the instance what an audit or a rule found that fails its step: no check of the run will."""
    for finding in findings_of(error):
        evaluation = dg.AssetCheckEvaluation(
            asset_key=context.asset_key,
            check_name=finding.name,
            passed=finding.passed,
            severity=_severity(finding),
            description=finding.description or "Passed, but another audit did not.",
            metadata={**_about(finding), "delta/run_id": context.run_id},
            blocking=isinstance(error, AuditFailedError),
        )
        context.step_context.instance.report_runless_asset_event(evaluation)


def audit_specs(asset: dg.AssetKey, audits: Sequence[Audit]) -> list[dg.AssetCheckSpec]:
    """A blocking check for each audit."""
    return [
        dg.AssetCheckSpec(audit.name, asset=asset, description=audit.description, blocking=True) for audit in audits
    ]


def audit_results(findings: Sequence[AuditFinding], asset: dg.AssetKey) -> Iterator[dg.AssetCheckResult]:
    """The results of those checks."""
    for finding in findings:
        yield dg.AssetCheckResult(
            passed=finding.passed,
            asset_key=asset,
            check_name=finding.name,
            severity=_severity(finding),
            description=finding.description or "Passed before anybody could see the rows.",
            metadata=_about(finding),
        )


def _severity(finding: AuditFinding) -> dg.AssetCheckSeverity:
    return dg.AssetCheckSeverity.ERROR if finding.fails_step else dg.AssetCheckSeverity.WARN


def findings_of(error: AuditFailedError | ExpectationFailedError) -> Sequence[AuditFinding]:
    if isinstance(error, ExpectationFailedError):
        return rule_findings(cast("ExpectationReport", error.context["report"]))
    return cast("Sequence[AuditFinding]", error.context["findings"])


def audit_failure(error: AuditFailedError | ExpectationFailedError) -> dg.Failure:
    """The failure of a step whose rows did not pass. Its metadata shows rows and says where all of them are. A retry
    would compute the same rows, so there is none."""
    metadata: Metadata = {}
    if isinstance(error, AuditFailedError):
        reference, uri = error.context["staged"], error.context["table_uri"]
        look_at = f"```python\nDeltaTable({uri!r}).staged({reference!r}).snapshot()\n```"
        metadata |= {"delta/staged": reference, "delta/look_at": dg.MetadataValue.md(look_at)}
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
