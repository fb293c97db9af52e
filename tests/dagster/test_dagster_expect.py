"""Rules for rows in Dagster: asset checks and metadata say how many rows break each rule, and show some."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from delta_orch import DeltaTable, Expect
from delta_orch.dagster import DeltaTableResource, build_delta_audit_checks, build_delta_check, checks, delta_asset
from delta_orch.errors import ExpectationFailedError, InvalidRequestError
from tests.dagster.lake import Lake

DAYS = dg.StaticPartitionsDefinition(["a", "b"])
PLAIN = {"amount is positive": {"rule": "amount > 0"}, "id is small": {"rule": "id < 2", "action": "warn"}}
RULES = {"amount is positive": Expect("amount > 0"), "id is small": Expect("id < 2", "warn")}


def amounts(*amounts: int | None, day: str = "a") -> pa.Table:
    return pa.table(
        {
            "day": [day] * len(amounts),
            "id": pa.array(range(len(amounts)), pa.int64()),
            "amount": pa.array(amounts, pa.int64()),
        }
    )


def bad_ids(table: DeltaTable) -> list[int]:
    found = table.quarantine().snapshot().scan(["row"]).to_arrow().column("row").to_pylist()
    return sorted(json.loads(row)["id"] for row in found)


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_an_asset_of_the_io_manager(tmp_path: Path, is_partitioned: bool) -> None:
    lake, values = Lake(tmp_path), [amounts(1, None, -3)]

    @dg.asset(
        partitions_def=DAYS if is_partitioned else None,
        metadata={"expect": PLAIN, "max_quarantined": 2, **({"partition_expr": "day"} if is_partitioned else {})},
    )
    def money() -> pa.Table:
        return values[-1]

    partition = "a" if is_partitioned else None
    rules = build_delta_audit_checks([money])
    result = lake.run(money, *rules, partition=partition)
    assert result.success
    told = {one.check_name: one for one in result.get_asset_check_evaluations()}
    assert {name: (one.passed, one.severity) for name, one in told.items()} == {
        "amount_is_positive": (False, dg.AssetCheckSeverity.WARN),
        "id_is_small": (False, dg.AssetCheckSeverity.WARN),
    }
    assert told["amount_is_positive"].metadata["failed"].value == 2
    assert "None" in str(told["amount_is_positive"].metadata["rows"].value)
    (event,) = result.asset_materializations_for_node("money")
    assert event.metadata["delta/broken_rules"].value == {"amount is positive": 2, "id is small": 1}
    assert event.metadata["delta/metrics/num_quarantined_rows"].value == 2
    assert (len(lake.rows("money")), bad_ids(lake.table("money"))) == (1, [1, 2])
    values.append(amounts(1, 2))
    result = lake.run(money, *rules, partition=partition)
    assert all(one.passed for one in result.get_asset_check_evaluations())
    assert (len(lake.rows("money")), bad_ids(lake.table("money"))) == (2, [])
    # Too many: both tables stay as they are.
    values.append(amounts(-1, -2, -3))
    result = lake.run(money, *rules, partition=partition, raise_on_error=False)
    assert not result.success
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    assert "3 of 3 rows are for the quarantine, but max_quarantined allows 2 rows" in str(
        failed.step_failure_data.error
    )
    said = failed.step_failure_data.user_failure_data.metadata
    assert said["delta/audit/amount_is_positive/failed"].value == 3
    assert (len(lake.rows("money")), bad_ids(lake.table("money"))) == (2, [])


def test_a_rule_that_must_hold_fails_the_step(tmp_path: Path) -> None:
    lake = Lake(tmp_path)

    @dg.asset(metadata={"expect": {"positive": {"rule": "amount > 0", "action": "fail"}}})
    def money() -> pa.Table:
        return amounts(1, -3)

    assert isinstance(lake.fails(money), ExpectationFailedError)
    assert not lake.table("money").exists()


def test_wrong_rules_are_refused_when_definitions_load(tmp_path: Path) -> None:
    table = DeltaTableResource(table_uri=str(tmp_path / "t"))
    with pytest.raises(InvalidRequestError, match="max_quarantined"):

        @delta_asset(incremental_from=table, table=table, write="append", max_quarantined=3)
        def money(batch: Any) -> pa.Table:
            return amounts()


def test_an_incremental_asset(tmp_path: Path) -> None:
    source, target = DeltaTable(tmp_path / "s"), DeltaTable(tmp_path / "t")
    source.append(amounts(1, None, -3))
    named = {name: DeltaTableResource(table_uri=table.uri) for name, table in (("s", source), ("t", target))}

    @delta_asset(
        incremental_from=named["s"], table=named["t"], write="append", expect=RULES, quarantine=str(tmp_path / "bad")
    )
    def money(batch: Any) -> pa.Table:
        rows: pa.Table = batch.inserted().to_arrow()
        return rows

    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([money], instance=instance)
        told = {one.check_name: one for one in result.get_asset_check_evaluations()}
        assert not told["amount_is_positive"].passed
        assert told["amount_is_positive"].severity == dg.AssetCheckSeverity.WARN
        assert "2 of 3 rows do not satisfy amount > 0" in str(told["amount_is_positive"].description)
        (event,) = result.asset_materializations_for_node("money")
        assert event.metadata["delta/broken_rules"].value == {"amount is positive": 2, "id is small": 1}
        assert "delta/rows_that_break/amount_is_positive" in event.metadata
        source.append(amounts(5, -6))
        dg.materialize([money], instance=instance)
    assert target.snapshot().scan().to_arrow().num_rows == 2
    assert DeltaTable(tmp_path / "bad").snapshot().scan().to_arrow().num_rows == 3
    assert not target.quarantine().exists()


def test_a_failed_check_says_how_many_rows_and_shows_some(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(amounts(1, None, None, 4))
    resource = DeltaTableResource(table_uri=table.uri)

    @dg.asset
    def money() -> None: ...

    check = build_delta_check("money", resource, checks.null_rate(max_null_rates={"amount": 0.1}))
    result = dg.materialize([money, check], selection=dg.AssetSelection.checks(check))
    (found,) = result.get_asset_check_evaluations()
    assert not found.passed
    assert "amount: 50.00% (2 of 4 rows, such as {'day': 'a', 'id': 1, 'amount': None})" in str(found.description)
