"""Audits: rows that do not pass never become visible, and the run says which they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from delta_orch.dagster import Audit, DeltaSnapshot, DeltaTableResource, build_delta_audit_checks, delta_asset
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import AuditFailedError, ColumnNotFoundError, InvalidRequestError
from delta_orch.pipeline.audit import as_audits
from tests.dagster.lake import Lake

DAYS = dg.StaticPartitionsDefinition(["a", "b"])


def amounts(*amounts: int | None, day: str = "a") -> pa.Table:
    return pa.table(
        {
            "day": [day] * len(amounts),
            "id": pa.array(range(len(amounts)), pa.int64()),
            "amount": pa.array(amounts, pa.int64()),
        }
    )


@pytest.mark.parametrize("mode", ["overwrite", "append", "merge"])
@pytest.mark.parametrize("is_partitioned", [True, False])
def test_rows_that_fail_are_never_there(tmp_path: Path, mode: str, is_partitioned: bool) -> None:
    lake, values = Lake(tmp_path), [amounts(1, 2)]
    about = {"partition_expr": "day"} if is_partitioned else {}

    @dg.asset(
        partitions_def=DAYS if is_partitioned else None,
        metadata={"write": mode, "merge_keys": ["day", "id"], "audit": ["amount > 0", "id < 10"], **about},
    )
    def money() -> pa.Table:
        return values[-1]

    partition = "a" if is_partitioned else None
    # Also where the table is yet to be created: there is none afterwards.
    values.append(amounts(1, None, -3))
    assert isinstance(lake.fails(money, partition=partition), AuditFailedError)
    assert not lake.table("money").exists()
    values.append(amounts(1, 2))
    assert lake.run(money, partition=partition).success
    before, version = lake.rows("money"), lake.table("money").version()
    assert len(before) == 2
    values.append(amounts(1, None, -3))
    result = lake.run(money, partition=partition, raise_on_error=False)
    assert not result.success
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    said = failed.step_failure_data.user_failure_data.metadata
    assert said["delta/audit/audit_1/failed"].value == 2
    assert "| None |" in said["delta/audit/audit_1/rows"].value
    assert (lake.rows("money"), lake.table("money").version()) == (before, version)
    # All rows that failed can be looked at, by what the run says.
    staged = lake.table("money").staged(said["delta/staged"].value)
    shown = staged.snapshot().scan(["amount"], where=said["delta/audit/audit_1/where"].value).to_arrow()
    assert sorted(shown["amount"].to_pylist(), key=str) == [-3, None]
    lake.table("money").vacuum(0, enforce_retention=False)
    parquet = {str(p.relative_to(tmp_path / "money")) for p in (tmp_path / "money").rglob("*.parquet")}
    assert parquet == set(lake.table("money").snapshot().files(["path"])["path"].to_pylist())
    assert lake.table("money").staged_writes() == []
    # What is correct goes on, and other partitions are no part of the audit.
    values.append(amounts(5, 6))
    assert lake.run(money, partition=partition).success


@pytest.mark.parametrize("audit", [[], ["amount > 0"]])
def test_a_key_twice_makes_no_table(tmp_path: Path, audit: list[str]) -> None:
    lake, values = Lake(tmp_path), [amounts(1, 2)]

    @dg.asset(metadata={"write": "merge", "merge_keys": ["id"], **({"audit": audit} if audit else {})})
    def money() -> pa.Table:
        return pa.concat_tables(values)

    values.append(amounts(3))
    assert "New rows have the same keys" in str(lake.fails(money))
    assert not lake.table("money").exists() or not lake.rows("money")
    values.pop()
    assert lake.run(money).success
    assert len(lake.rows("money")) == 2


def test_audits_look_at_the_partitions_of_the_run(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    DeltaTable(tmp_path / "money").append(amounts(-1, -2, day="b"), partition_by=["day"])

    @dg.asset(
        partitions_def=DAYS,
        metadata={
            "partition_expr": "day",
            "audit": {"positive": "amount > 0", "enough": {"min_rows": 2}, "keys": {"unique": ["day", "id"]}},
        },
    )
    def money(context) -> pa.Table:  # type: ignore[no-untyped-def]
        return amounts(1, 2, day=context.partition_key)

    result = lake.run(money, partition="a")
    (event,) = result.asset_materializations_for_node("money")
    assert event.metadata["delta/audits_passed"].value == 3
    assert len(lake.rows("money")) == 4


def told(lake: Lake, name: str) -> tuple[bool, str]:
    """What the catalog shows of a check of `money`: passed or not, and why."""
    key = dg.AssetCheckKey(dg.AssetKey("money"), name)
    record = lake.instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]
    assert record.event is not None
    assert record.event.dagster_event is not None
    found = record.event.dagster_event.asset_check_evaluation_data
    return found.passed, found.description or ""


def test_audits_of_the_io_manager_are_asset_checks(tmp_path: Path) -> None:
    lake, values, looks = Lake(tmp_path), [amounts(1, 2)], list[int]()

    @dg.asset(
        partitions_def=DAYS,
        metadata={
            "partition_expr": "day",
            "audit": {"positive": "amount > 0", "few": {"min_rows": 1}},
        },
    )
    def money() -> pa.Table:
        return values[-1]

    @dg.asset(deps=[money])
    def after() -> None:
        looks.append(1)

    @dg.asset(metadata={"key of": "its own"})
    def plain() -> None: ...

    checks = build_delta_audit_checks([money, after, plain])
    (specs,) = [list(check.check_specs) for check in checks]
    assert [(spec.name, spec.blocking, spec.description) for spec in specs] == [
        ("positive", True, "Every row satisfies amount > 0."),
        ("few", True, "There are at least 1 rows."),
    ]
    result = lake.run(money, *checks, partition="a")
    assert [(c.check_name, c.passed) for c in result.get_asset_check_evaluations()] == [
        ("positive", True),
        ("few", True),
    ]
    assert told(lake, "positive") == (True, "Passed before anybody could see the rows.")
    values.append(amounts(1, None))
    failed = lake.run(money, *checks, after, partition="a", raise_on_error=False)
    assert (failed.success, looks) == (False, [])
    row = amounts(1, None).to_pylist()[1]
    assert told(lake, "positive") == (False, f"1 rows do not satisfy amount > 0, such as {row}.")
    assert told(lake, "few") == (True, "Passed, but another audit did not.")
    # Alone a check looks at what is there, whoever wrote it.
    assert lake.run(*checks, money, selection=dg.AssetSelection.checks_for_assets(money)).success
    assert told(lake, "positive") == (True, "Passes in version 0.")
    lake.table("money").append(amounts(-1, day="b"))
    only = dg.AssetSelection.checks_for_assets(money)
    alone = lake.run(*checks, money, selection=only, raise_on_error=False)
    assert [c.passed for c in alone.get_asset_check_evaluations()] == [False, True]
    assert told(lake, "positive")[0] is False


def test_audit_checks_need_tables(tmp_path: Path) -> None:
    @dg.asset(metadata={"audit": ["amount > 0"]})
    def money() -> int:
        return 1

    (check,) = build_delta_audit_checks([money])
    lake = Lake(tmp_path)
    only = dg.AssetSelection.checks_for_assets(money)
    (found,) = lake.run(check, money, selection=only, raise_on_error=False).get_asset_check_evaluations()
    assert (found.passed, found.description) == (False, f"There is no table at {lake.table('money').uri}.")
    result = dg.materialize([check, money], raise_on_error=False)
    assert "keeps no Delta tables" in str(result.all_events)


def test_none_passes_the_audits_of_rows(tmp_path: Path) -> None:
    @dg.asset(metadata={"audit": ["amount > 0"]})
    def money() -> pa.Table | None:
        return None

    result = Lake(tmp_path).run(money, *build_delta_audit_checks([money]))
    (found,) = result.get_asset_check_evaluations()
    assert (found.passed, found.description) == (True, "Nothing was written.")


class Incremental:
    def __init__(self, root: Path, **arguments: Any) -> None:
        self.source, self.target = DeltaTable(root / "bronze"), DeltaTable(root / "silver")
        self.instance = dg.DagsterInstance.ephemeral()

        @delta_asset(
            incremental_from=DeltaTableResource(table_uri=self.source.uri),
            table=DeltaTableResource(table_uri=self.target.uri),
            key_prefix="lake",
            **arguments,
        )
        def silver(batch: Any) -> pa.Table:
            rows = batch.scan() if batch.is_bootstrap else batch.changes
            return rows.to_arrow().select(["day", "id", "amount"])

        @dg.asset(deps=[silver])
        def gold() -> None: ...

        self.assets = [silver, gold]

    def run(self) -> Any:
        return dg.materialize(self.assets, instance=self.instance, raise_on_error=False)


def has_no_large_amount(snapshot: DeltaSnapshot) -> bool:
    """No amount is above 100."""
    large: pa.Table = snapshot.scan(["id"], where="amount > 100").to_arrow()
    return len(large) == 0


def test_audits_of_an_incremental_asset_are_blocking_checks(tmp_path: Path) -> None:
    audit = [has_no_large_amount, Audit("positive", rows="amount > 0"), Audit("ids", unique=["id"])]
    pipeline = Incremental(tmp_path, audit=audit, write="append")
    pipeline.source.append(amounts(1, 2))
    result = pipeline.run()
    assert result.success
    assert {check.check_name: check.passed for check in result.get_asset_check_evaluations()} == {
        "has_no_large_amount": True, "positive": True, "ids": True,
    }  # fmt: skip
    cursor, version = dict(pipeline.target.txns()), pipeline.target.version()
    pipeline.source.append(amounts(-5))
    failed = pipeline.run()
    assert not failed.success
    checks = {check.check_name: check for check in failed.get_asset_check_evaluations()}
    assert {name: check.passed for name, check in checks.items()} == {
        "has_no_large_amount": True, "positive": False, "ids": False,
    }  # fmt: skip
    assert all(check.blocking for check in checks.values())
    assert not failed.asset_materializations_for_node("gold")
    assert (dict(pipeline.target.txns()), pipeline.target.version()) == (cursor, version)
    # The batch is not lost: once the audits are content, it is processed.
    assert Incremental(tmp_path, audit=[has_no_large_amount], write="append").run().success
    assert sorted(pipeline.target.snapshot().scan().to_arrow()["amount"].to_pylist()) == [-5, 1, 2]


def test_a_run_without_news_repeats_what_its_audits_said(tmp_path: Path) -> None:
    pipeline = Incremental(tmp_path, audit=["amount > 0"], write="append")
    pipeline.source.append(amounts(1, 2))
    for _ in range(3):
        (said,) = pipeline.run().get_asset_check_evaluations()
        assert said.passed
    assert pipeline.target.version() == 0


def test_what_is_no_audit_is_refused_at_definition() -> None:
    for wrong in (
        "amount > 0",
        3,
        [3],
        [Audit("a", rows="x"), Audit("a", rows="y")],
        {"a b": "x"},
        {"": "x"},
        {"a": {"row": "x"}},
        {"a": {"min_rows": -1}},
    ):
        with pytest.raises(InvalidRequestError):
            as_audits(wrong)  # type: ignore[arg-type]  # on purpose
    for wrong_audit in ({}, {"rows": "x", "min_rows": 1}):
        with pytest.raises(InvalidRequestError):
            Audit("a", **wrong_audit)  # type: ignore[arg-type]  # on purpose


def test_an_audit_that_does_not_fit_commits_nothing(tmp_path: Path) -> None:
    lake = Lake(tmp_path)

    @dg.asset(metadata={"audit": ["nothing > 0"]})
    def money() -> pa.Table:
        return amounts(1)

    assert isinstance(lake.fails(money), ColumnNotFoundError)
    assert not lake.table("money").exists()
