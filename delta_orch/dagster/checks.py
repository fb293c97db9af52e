"""Asset checks of a table: `build_delta_check` makes one of a rule, and there is a function for each rule. What the log
can tell is not read from data files.

A table that does not exist fails its check; a table that cannot be read is an error of the run.
"""

# No postponed annotations in this file: Dagster reads them as they are.

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from inspect import signature
from typing import Any, TypeAlias

import dagster as dg

from delta_orch.arguments import checked, checked_constructor
from delta_orch.dagster.metadata import Metadata
from delta_orch.dagster.partitions import partition_rows
from delta_orch.dagster.resource import DeltaTableResource
from delta_orch.delta_table import DeltaTable, TableSnapshot
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.column_names import resolve_column_names
from delta_orch.expressions.nodes import Column, Expression, IsNull
from delta_orch.expressions.resolve import resolve_predicate
from delta_orch.expressions.tree import conjunction
from delta_orch.pipeline.audit import column_drift, count_and_show, declared_columns, repeated_keys
from delta_orch.pipeline.incremental import cdc_app_id, default_consumer
from delta_orch.pipeline.maintenance import MaintenancePolicy, read_table_health
from delta_orch.pipeline.tail import changes_data
from delta_orch.pipeline.target_table import snapshot_or_none

Evaluate: TypeAlias = "Callable[[TableSnapshot, DeltaTable, Expression | None], Finding]"
Asset: TypeAlias = dg.AssetsDefinition | dg.AssetKey | str | Sequence[str]

_MOST_SHOWN = 5


@checked_constructor
@dataclass(frozen=True, slots=True)
class ByPartition:
    """How a check looks at each partition on its own. It needs Dagster 1.13.

    The check runs for the partitions of the run and is about their rows alone; a run over several fails it where one
    of them does, and says which.

    Attributes:
        partitions_def: Of the asset.
        partition_expr: As in the asset's metadata; by default the table's only partition column.
        partition_format: As in the asset's metadata.
    """

    partitions_def: dg.PartitionsDefinition[str]
    partition_expr: str | Mapping[str, str] | None = None
    partition_format: str | Mapping[str, str] | None = None

    def where(self, snapshot: TableSnapshot, key: str) -> Expression:
        """The rows of a partition."""
        expr = self.partition_expr
        if expr is None and len(snapshot.partition_columns) == 1:
            (expr,) = snapshot.partition_columns
        return partition_rows(self.partitions_def, key, expr, self.partition_format, snapshot.schema)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check: whether it passed, one sentence, and numbers for the plots of the UI."""

    passed: bool
    description: str
    metadata: Metadata


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that a table must satisfy.

    Attributes:
        name: Of the check, unless another one is given.
        description: What the catalog shows.
        evaluate: Looks at a snapshot of the table; at the rows of one partition, if it has a predicate.
        warns: A failure is a warning, unless a severity is given.
        by_partition: The rule can be about the rows of one partition.
    """

    name: str
    description: str
    evaluate: Evaluate
    warns: bool = False
    by_partition: bool = False


@checked
def build_delta_check(
    asset: Asset,
    table: DeltaTableResource,
    rule: Rule,
    *,
    name: str | None = None,
    severity: dg.AssetCheckSeverity | None = None,
    blocking: bool = False,
    by_partition: ByPartition | None = None,
) -> dg.AssetChecksDefinition:
    """An asset check of a table.

    ```python
    build_delta_check(orders, table, checks.unique(keys=["id"]), blocking=True)
    build_delta_check(orders, table, checks.freshness(max_age=timedelta(hours=6)))
    ```

    Args:
        asset: Whose check it is.
        table: The table that is checked.
        rule: One of this module's: `freshness`, `columns`, `row_count`, `null_rate`, `unique`, `health`, `cdc_lag`,
            `txn_gaps`.
        name: By default the rule's.
        severity: By default a warning for `freshness`, `health` and `cdc_lag`, otherwise an error.
        blocking: A failure keeps what is downstream of the asset from running.
        by_partition: Look at each partition of the run on its own; for `row_count`, `null_rate` and `unique`.

    Raises:
        InvalidRequestError: The rule is about the whole table, and `by_partition` is given; or it needs Dagster 1.13.
    """
    _ensure(
        by_partition is None or rule.by_partition,
        f"The rule {rule.name} is about the whole table",
        "Leave by_partition out",
    )
    chosen = severity or (dg.AssetCheckSeverity.WARN if rule.warns else dg.AssetCheckSeverity.ERROR)

    def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        delta = table.table()
        snapshot = snapshot_or_none(delta)
        if snapshot is None:
            return dg.AssetCheckResult(passed=False, severity=chosen, description=f"There is no table at {delta.uri}.")
        if by_partition is None:
            finding = rule.evaluate(snapshot, delta, None)
        else:
            keys = context.partition_keys
            finding = _worst(
                {key: rule.evaluate(snapshot, delta, by_partition.where(snapshot, key)) for key in map(str, keys)}
            )
        return dg.AssetCheckResult(
            passed=finding.passed,
            severity=chosen,
            description=finding.description,
            metadata={**finding.metadata, "delta/version": snapshot.version},
        )

    # Dagster looks at the annotations themselves, not at their text.
    check.__annotations__ = {"context": dg.AssetCheckExecutionContext, "return": dg.AssetCheckResult}
    partitioned: dict[str, Any] = {}
    if by_partition is not None:
        if "partitions_def" not in signature(dg.asset_check).parameters:
            raise InvalidRequestError(
                "by_partition needs Dagster 1.13",
                cause="Before, a check is about the whole asset",
                remedy="Upgrade, or leave by_partition out",
            )
        partitioned["partitions_def"] = by_partition.partitions_def
    with warnings.catch_warnings():
        # Dagster marks it as a preview; who passes by_partition has chosen it.
        warnings.filterwarnings("ignore", message=".*partitions_def")
        made: dg.AssetChecksDefinition = dg.asset_check(
            asset=asset, name=name or rule.name, description=rule.description, blocking=blocking, **partitioned
        )(check)
    return made


@checked
def freshness(*, max_age: timedelta) -> Rule:
    """Check that the last commit that changed data is not older than `max_age`. Compaction and changed properties do
    not count. A commit that is dated further ahead than `max_age` fails it: by that clock data would never be old.

    Raises:
        InvalidRequestError: `max_age` is below 0.
    """
    _ensure(max_age >= timedelta(0), f"max_age={max_age} is below 0", "Pass an age")

    def evaluate(snapshot: TableSnapshot, delta: DeltaTable, only: Expression | None) -> Finding:
        for commit in delta.log.newest_first(snapshot.version):
            if changes_data(commit):
                age = time.time() - commit.timestamp_ms / 1000
                age_text = f"{timedelta(seconds=round(abs(age)))} {'ago' if age >= 0 else 'ahead of the clock here'}"
                return Finding(
                    abs(age) <= max_age.total_seconds(),
                    f"Version {commit.version} changed data {age_text}.",
                    {"delta/age_seconds": age, "delta/last_data_version": commit.version},
                )
        return Finding(False, "No commit that the log still holds changed data.", {})

    return Rule("freshness", f"Data is no older than {max_age}.", evaluate, warns=True)


@checked
def columns(*, columns: Mapping[str, str], allow_more_columns: bool = False) -> Rule:
    """Check that the table has the declared columns: name → type, spelled as in Spark SQL or as in errors and metadata
    (`bigint` or `long`, `array<string>`).

    Raises:
        SchemaMismatchError: A type is none.
        InvalidRequestError: No column is declared.
    """
    _ensure(bool(columns), "columns declares no column", "Map names to types")
    declared = declared_columns(columns)

    def evaluate(snapshot: TableSnapshot, delta: DeltaTable, only: Expression | None) -> Finding:
        drift = column_drift(snapshot.schema, declared, exact=not allow_more_columns)
        return Finding(not drift, "; ".join(drift) or "The columns are those declared.", {"delta/drift": len(drift)})

    return Rule("columns", "The columns are those declared.", evaluate)


@checked
def row_count(*, min_rows: int | None = None, max_rows: int | None = None, where: str | None = None) -> Rule:
    """Check that the number of rows lies within bounds. Without `where`, the log answers, unless a file has no
    statistics.

    Raises:
        InvalidRequestError: There is no bound, one is below 0, or no number lies between them.
    """
    has_bound = min_rows is not None or max_rows is not None
    _ensure(has_bound, "A check of the number of rows needs a bound", "Pass min_rows or max_rows")
    low = min_rows or 0
    _ensure(
        low >= 0 and (max_rows is None or max_rows >= low),
        f"min_rows={min_rows} and max_rows={max_rows} are not bounds of a number of rows",
        "Pass numbers from 0 on, max_rows not below min_rows, or leave one of them out",
    )

    def evaluate(snapshot: TableSnapshot, delta: DeltaTable, only: Expression | None) -> Finding:
        rows = snapshot.scan(where=_both(snapshot, where, only)).count()
        passed = (min_rows is None or rows >= min_rows) and (max_rows is None or rows <= max_rows)
        return Finding(passed, f"There are {rows:,} rows.", {"delta/rows": rows})

    bounds = f"{min_rows if min_rows is not None else 0} to {'any number of' if max_rows is None else max_rows} rows"
    return Rule("row_count", f"There are {bounds}.", evaluate, by_partition=True)


@checked
def null_rate(*, max_null_rates: Mapping[str, float]) -> Rule:
    """Check that the share of nulls in each column, 0 to 1, is not above its limit. Files that have no nulls by their
    statistics are not opened.

    Raises:
        InvalidRequestError: No column, or a share outside of 0…1.
    """
    if not max_null_rates or not all(0 <= rate <= 1 for rate in max_null_rates.values()):
        raise InvalidRequestError("max_null_rates maps columns to shares between 0 and 1")

    def evaluate(snapshot: TableSnapshot, delta: DeltaTable, only: Expression | None) -> Finding:
        total = snapshot.scan(where=only).count()
        rates: dict[str, float] = {}
        shown: dict[str, str] = {}
        for column, resolved in zip(
            max_null_rates, resolve_column_names(list(max_null_rates), snapshot.schema, "max_null_rates"), strict=True
        ):
            nulls = conjunction(only, IsNull(Column((resolved,))))
            count = snapshot.scan(where=nulls).count()
            rates[column] = count / total if total else 0.0
            if rates[column] > max_null_rates[column]:
                _, some = count_and_show(snapshot, nulls)
                shown[column] = f"{rates[column]:.2%} ({count:,} of {total:,} rows, such as {some[0]})"
        high = [f"{column}: {rate_text}" for column, rate_text in shown.items()]
        described = f"Too many nulls: {', '.join(high)}" if high else "No column has too many nulls."
        return Finding(not high, described, {f"delta/null_rate/{column}": rate for column, rate in rates.items()})

    return Rule("null_rate", "No column has too many nulls.", evaluate, by_partition=True)


@checked
def unique(*, keys: Sequence[str], where: str | None = None) -> Rule:
    """Check that no two rows have the same values in `keys`. Nulls are equal to each other. DuckDB reads these columns,
    and spills to disk if needed.

    Raises:
        InvalidRequestError: There is no key.
    """
    if not keys or isinstance(keys, str):
        raise InvalidRequestError("A check of uniqueness needs keys", remedy='Name columns, such as keys=["id"]')

    def evaluate(snapshot: TableSnapshot, delta: DeltaTable, only: Expression | None) -> Finding:
        _, count, shown = repeated_keys(snapshot, keys, _both(snapshot, where, only))
        described = f"{count:,} keys occur more than once, such as {shown}." if count else "Every key occurs once."
        return Finding(not count, described, {"delta/repeated_keys": count})

    return Rule("unique", f"{', '.join(keys)} are unique.", evaluate, by_partition=True)


@checked
def health(*, policy: MaintenancePolicy | None = None) -> Rule:
    """Check that no maintenance is due: few small files, a short log since the last checkpoint, few rows marked as
    deleted. The directory of the log is not listed.
    """
    limits = policy or MaintenancePolicy()

    def evaluate(snapshot: TableSnapshot, delta: DeltaTable, only: Expression | None) -> Finding:
        health = read_table_health(snapshot)
        due = [
            text
            for is_due, text in (
                (limits.needs_optimize(health), f"{health.num_compactable_files} files could be compacted"),
                (limits.needs_checkpoint(health), f"{health.commits_since_checkpoint} commits follow the checkpoint"),
                (limits.needs_vacuum(health), f"{health.num_expired_tombstones} removed files have expired"),
                (limits.needs_purge(health), f"{health.deleted_rows_ratio:.1%} of the rows are marked as deleted"),
            )
            if is_due
        ]
        numbers = {f"delta/health/{key}": value for key, value in health.as_metadata().items()}
        return Finding(not due, "; ".join(due) or "No maintenance is due.", numbers)

    return Rule("health", "No maintenance is due.", evaluate, warns=True)


@checked
def cdc_lag(*, source: DeltaTableResource, max_versions: int = 0, consumer: str | None = None) -> Rule:
    """Check that the table is behind its source by at most `max_versions` commits that changed data.

    Args:
        consumer: The name of the cursor, as in `delta_asset`.

    Raises:
        InvalidRequestError: `max_versions` is below 0.
    """
    _ensure(max_versions >= 0, f"max_versions={max_versions} is below 0", "Pass 0 or more")

    def evaluate(snapshot: TableSnapshot, delta: DeltaTable, only: Expression | None) -> Finding:
        origin = source.table()
        latest = snapshot_or_none(origin)
        if latest is None:
            return Finding(False, f"There is no source table at {origin.uri}.", {})
        cursor_name = consumer or default_consumer(delta.uri)
        cursor = snapshot.txn_version(cdc_app_id(cursor_name, latest.metadata.id))
        if cursor is None:
            return Finding(
                False, f"{cursor_name} has not read the source yet.", {"delta/source_version": latest.version}
            )
        changed = [changes_data(commit) for commit in origin.log.newest_first(latest.version, cursor + 1)]
        if len(changed) != latest.version - cursor:
            return Finding(
                False,
                f"The source is at version {latest.version}, version {cursor} was read last, and the log of the source "
                "does not hold what lies between.",
                {"delta/cursor": cursor, "delta/source_version": latest.version},
            )
        behind = sum(changed)
        return Finding(
            behind <= max_versions,
            f"{behind} commits of the source that changed data are not read yet.",
            {"delta/versions_behind": behind, "delta/cursor": cursor, "delta/source_version": latest.version},
        )

    return Rule("cdc_lag", "The source is read up to its last commits.", evaluate, warns=True)


@checked
def txn_gaps(*, app_id: str, last_versions: int = 1000) -> Rule:
    """Check that the commits of a transaction id have no gap. Each batch of a cursor must begin where the batch before
    it ended. Other versions, such as the batches of a stream, must increase by one.

    Args:
        app_id: As recorded, for example `cdc:silver<-…` (`DeltaTable.txns`).
        last_versions: How many of the last commits to look at, as far as the log holds them.

    Raises:
        InvalidRequestError: `last_versions` is below 1.
    """
    _ensure(last_versions > 0, f"last_versions={last_versions} looks at no commit", "Pass at least 1")

    def evaluate(snapshot: TableSnapshot, delta: DeltaTable, only: Expression | None) -> Finding:
        gaps: list[str] = []
        later: tuple[int, int] | None = None
        count = 0
        for commit in delta.log.newest_first(snapshot.version, max(0, snapshot.version - last_versions + 1)):
            recorded = next((txn.version for txn in commit.txns if txn.app_id == app_id), None)
            if recorded is None:
                continue
            count += 1
            if later is not None and later[1] != recorded + 1:
                gaps.append(f"version {later[0]} begins at {later[1]}, the one before ended at {recorded}")
            start = (commit.commit_info or {}).get("sourceStartingVersion")
            # Several cursors in one commit: it tells where one of them began.
            is_told = isinstance(start, int) and sum(txn.app_id.startswith("cdc:") for txn in commit.txns) == 1
            is_cursor = app_id.startswith("cdc:")
            begins = int(str(start)) if is_told else None if is_cursor else recorded
            later = None if begins is None else (commit.version, begins)
        if not count:
            return Finding(False, f"No commit that the log still holds has recorded {app_id}.", {"delta/txns": 0})
        described = f"Gaps: {'; '.join(gaps[:_MOST_SHOWN])}." if gaps else f"{count} commits without a gap."
        return Finding(not gaps, described, {"delta/txns": count, "delta/txn_gaps": len(gaps)})

    return Rule("txn_gaps", f"The commits of {app_id} have no gap.", evaluate)


def _ensure(is_sound: bool, problem: str, remedy: str) -> None:
    if not is_sound:
        raise InvalidRequestError(problem, remedy=remedy)


def _worst(findings: Mapping[str, Finding]) -> Finding:
    """One finding of several partitions: that of the only one, or which of them fail."""
    if len(findings) == 1:
        return next(iter(findings.values()))
    failed = {key: one for key, one in findings.items() if not one.passed}
    shown = "; ".join(f"{key}: {one.description}" for key, one in list(failed.items())[:_MOST_SHOWN])
    described = (
        f"{len(failed)} of {len(findings)} partitions fail. {shown}" if failed else f"{len(findings)} partitions pass."
    )
    return Finding(not failed, described, {"delta/partitions_failed": len(failed)})


def _both(snapshot: TableSnapshot, where: str | None, only: Expression | None) -> Expression | None:
    parsed = None if where is None else resolve_predicate(where, snapshot.schema)
    return conjunction(parsed, only) if parsed is not None or only is not None else None
