import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from delta_orch import delta_table as delta_table_module
from delta_orch.dagster import (
    ByPartition,
    DeltaTableResource,
    MaintenancePolicy,
    build_delta_check,
    checks,
)
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import InvalidRequestError, SchemaMismatchError, StorageError
from delta_orch.log.files.txn import TxnId
from delta_orch.pipeline.incremental import IncrementalReader
from delta_orch.storage.open import open_store
from delta_orch.testing.failing_store import Rule, StoreCall
from tests.harness.fault_store import FaultStore


@dg.asset
def orders() -> None: ...


def log_file(table: DeltaTable, version: int) -> Path:
    return Path(table.uri.removeprefix("file://")) / f"_delta_log/{version:020}.json"


class Checked:
    """A table, and checks of it."""

    def __init__(self, root: Path) -> None:
        self.table = DeltaTable(root / "orders")
        self.resource = DeltaTableResource(table_uri=self.table.uri)

    def run(self, rule: Any, **arguments: Any) -> tuple[bool, str, dict[str, Any]]:
        check = build_delta_check(orders, self.resource, rule(**arguments))
        result = dg.materialize([orders, check])
        (found,) = result.get_asset_check_evaluations()
        return found.passed, found.description or "", {key: value.value for key, value in found.metadata.items()}


@pytest.fixture
def checked(tmp_path: Path) -> Checked:
    return Checked(tmp_path)


ROWS = pa.table({"id": [1, 2, 2, None, None], "a.b": ["x", None, None, "y", "z"]})


def test_a_table_that_is_not_there_fails(checked: Checked) -> None:
    passed, description, _ = checked.run(checks.row_count, min_rows=0)
    assert not passed
    assert "no table" in description


@pytest.mark.long
def test_rows_nulls_keys_and_columns(checked: Checked) -> None:
    checked.table.append(ROWS)
    assert checked.run(checks.row_count, min_rows=5, max_rows=5)[0]
    assert not checked.run(checks.row_count, min_rows=6)[0]
    assert checked.run(checks.row_count, max_rows=2, where="id = 2")[2]["delta/rows"] == 2
    passed, description, numbers = checked.run(checks.null_rate, max_null_rates={"id": 0.4, "a.b": 0.3})
    assert not passed
    assert "a.b: 40.00%" in description
    assert numbers["delta/null_rate/id"] == 0.4
    assert checked.run(checks.null_rate, max_null_rates={"id": 0.4, "a.b": 0.4})[0]
    passed, description, numbers = checked.run(checks.unique, keys=["ID"])
    assert not passed
    # Nulls equal each other.
    assert numbers["delta/repeated_keys"] == 2
    assert checked.run(checks.unique, keys=["id", "a.b"])[2]["delta/repeated_keys"] == 1
    assert checked.run(checks.unique, keys=["id"], where="id = 1")[0]
    columns = {"id": "long", "a.b": "string"}
    assert checked.run(checks.columns, columns=columns)[0]
    drift = checked.run(checks.columns, columns={"id": "integer", "gone": "string"})
    assert drift[1] == "id is long, not integer; gone is missing; a.b is new"
    assert checked.run(checks.columns, columns={"ID": "bigint"}, allow_more_columns=True)[0]
    shorter = checked.run(checks.columns, columns={"a.b": "varchar(9)"}, allow_more_columns=True)
    assert shorter[1] == "a.b is string, not varchar(9)"
    checked.table.alter().add_column("code", "varchar(9)").commit()
    for kind, passes in (("varchar(9)", True), ("VARCHAR( 9 )", True), ("string", True), ("varchar(8)", False)):
        assert checked.run(checks.columns, columns={"code": kind}, allow_more_columns=True)[0] is passes
    with pytest.raises(SchemaMismatchError, match="'strnig' is not a type"):
        checked.run(checks.columns, columns={"id": "strnig"})
    with pytest.raises(InvalidRequestError, match="says NOT NULL"):
        checked.run(checks.columns, columns={"id": "struct<a:int not null>"})


def test_freshness_is_of_data(checked: Checked) -> None:
    checked.table.append(ROWS)
    checked.table.append(ROWS)
    assert checked.run(checks.freshness, max_age=timedelta(hours=1))[0]
    checked.table.optimize()
    passed, _, numbers = checked.run(checks.freshness, max_age=timedelta(0))
    assert not passed
    assert numbers["delta/last_data_version"] == 1


@pytest.mark.parametrize(("ahead", "is_fresh"), [(timedelta(minutes=30), True), (timedelta(hours=2), False)])
def test_data_of_a_clock_that_is_far_ahead_is_not_fresh(checked: Checked, ahead: timedelta, is_fresh: bool) -> None:
    checked.table.append(ROWS)
    os.utime(log_file(checked.table, 0), (time.time() + ahead.total_seconds(),) * 2)
    passed, description, numbers = checked.run(checks.freshness, max_age=timedelta(hours=1))
    assert passed == is_fresh
    assert "ahead of the clock here" in description
    assert numbers["delta/age_seconds"] < 0


def test_health(checked: Checked) -> None:
    for _ in range(3):
        checked.table.append(ROWS)
    assert checked.run(checks.health)[0]
    passed, description, numbers = checked.run(checks.health, policy=MaintenancePolicy(min_compactable_files=2))
    assert not passed
    assert description == "3 files could be compacted"
    assert numbers["delta/health/num_files"] == 3


def test_cdc_lag(checked: Checked, tmp_path: Path) -> None:
    source = DeltaTable(tmp_path / "source")
    arguments = {"source": DeltaTableResource(table_uri=source.uri)}
    checked.table.append(ROWS)
    assert "no source" in checked.run(checks.cdc_lag, **arguments)[1]
    source.append(ROWS)
    assert "has not read" in checked.run(checks.cdc_lag, **arguments)[1]
    batch = IncrementalReader(source, checked.table).next_batch()
    assert batch is not None
    checked.table.append(ROWS, txn=batch.txn)
    assert checked.run(checks.cdc_lag, **arguments)[0]
    source.append(ROWS)
    source.optimize()
    passed, _, numbers = checked.run(checks.cdc_lag, **arguments)
    assert not passed
    assert numbers["delta/versions_behind"] == 1
    assert checked.run(checks.cdc_lag, max_versions=1, **arguments)[0]
    # What was cleaned up is not read, either, and nobody knows how much it was.
    source.checkpoint()
    log_file(source, 1).unlink()
    passed, description, _ = checked.run(checks.cdc_lag, max_versions=1, **arguments)
    assert not passed and "does not hold what lies between" in description
    # A source that went back has other versions than those that were read.
    checked.table.append(ROWS, txn=TxnId(batch.txn.app_id, source.version() + 1))
    assert not checked.run(checks.cdc_lag, **arguments)[0]


def test_severity_and_blocking(checked: Checked) -> None:
    rule, severity = checks.row_count(min_rows=1), dg.AssetCheckSeverity.WARN
    check = build_delta_check(orders, checked.resource, rule, severity=severity, blocking=True, name="some")
    (spec,) = check.check_specs
    assert (spec.name, spec.blocking, spec.asset_key) == ("some", True, dg.AssetKey("orders"))
    (found,) = dg.materialize([orders, check]).get_asset_check_evaluations()
    assert found.severity is dg.AssetCheckSeverity.WARN


@pytest.mark.parametrize(
    ("build", "arguments"),
    [
        (checks.row_count, {}),
        (checks.row_count, {"min_rows": -1}),
        (checks.row_count, {"max_rows": -1}),
        (checks.row_count, {"min_rows": 2, "max_rows": 1}),
        (checks.freshness, {"max_age": timedelta(seconds=-1)}),
        (checks.txn_gaps, {"app_id": "a", "last_versions": 0}),
        (checks.columns, {"columns": {}}),
        (checks.null_rate, {"max_null_rates": {}}),
        (checks.null_rate, {"max_null_rates": {"a": 40}}),
        (checks.unique, {"keys": []}),
        (checks.unique, {"keys": "id"}),
    ],
)
def test_arguments_are_checked(checked: Checked, build: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        build(**arguments)


def test_a_rule_of_the_whole_table_looks_at_no_partition(checked: Checked) -> None:
    by = ByPartition(dg.StaticPartitionsDefinition(["a"]))
    with pytest.raises(InvalidRequestError, match="about the whole table"):
        build_delta_check(orders, checked.resource, checks.health(), by_partition=by)


def test_txn_gaps(checked: Checked) -> None:
    table, rows = checked.table, ROWS.slice(0, 1)
    table.append(rows)
    assert not checked.run(checks.txn_gaps, app_id="stream")[0]
    for version in (3, 4):
        table.append(rows, txn=TxnId("stream", version))
    assert checked.run(checks.txn_gaps, app_id="stream")[0]
    table.append(rows, txn=TxnId("stream", 6))
    passed, description, numbers = checked.run(checks.txn_gaps, app_id="stream")
    assert not passed and "begins at 6, the one before ended at 4" in description
    assert numbers["delta/txn_gaps"] == 1
    # A cursor: what a batch says it has read.
    for start, end in ((0, 3), (4, 9), (11, 12)):
        table.append(rows, txn=TxnId("cdc:a<-b", end), commit_info={"sourceStartingVersion": start})
    passed, description, numbers = checked.run(checks.txn_gaps, app_id="cdc:a<-b")
    assert not passed and "begins at 11, the one before ended at 9" in description


def test_checks_look_at_partitions_one_by_one(tmp_path: Path) -> None:
    days = dg.DailyPartitionsDefinition("2013-01-01", end_date="2013-01-05")
    table = DeltaTable(tmp_path / "orders")
    rows = {"day": ["2013-01-01", "2013-01-01", "2013-01-02", "2013-01-02"], "id": [1, 2, 2, None]}
    table.append(pa.table(rows), partition_by=["day"])
    resource, by = DeltaTableResource(table_uri=table.uri), ByPartition(days)

    @dg.asset(partitions_def=days)
    def orders() -> None: ...

    rules = [
        (checks.row_count(min_rows=2, where="id IS NOT NULL"), by),
        (checks.null_rate(max_null_rates={"id": 0.4}), by),
        (checks.unique(keys=["id"]), ByPartition(days, "day")),
    ]
    made = [build_delta_check(orders, resource, rule, by_partition=partition) for rule, partition in rules]
    instance = dg.DagsterInstance.ephemeral()

    def run(**arguments: Any) -> dict[str, tuple[bool, str | None]]:
        result = dg.materialize([orders, *made], instance=instance, raise_on_error=False, **arguments)
        return {one.check_name: (one.passed, one.description) for one in result.get_asset_check_evaluations()}

    assert {name: passed for name, (passed, _) in run(partition_key="2013-01-01").items()} == {
        "row_count": True,
        "null_rate": True,
        "unique": True,
    }
    second = run(partition_key="2013-01-02")
    assert second["row_count"] == (False, "There are 1 rows.")
    shown = "1 of 2 rows, such as {'day': '2013-01-02', 'id': None}"
    assert second["null_rate"] == (False, f"Too many nulls: id: 50.00% ({shown})")
    assert second["unique"] == (True, "Every key occurs once.")
    span = {"dagster/asset_partition_range_start": "2013-01-01", "dagster/asset_partition_range_end": "2013-01-02"}
    both = run(tags=span)
    assert both["row_count"] == (False, "1 of 2 partitions fail. 2013-01-02: There are 1 rows.")
    assert both["unique"] == (True, "2 partitions pass.")


@pytest.mark.parametrize(
    ("build", "arguments"),
    [
        (checks.freshness, {"max_age": timedelta(hours=9)}),
        (checks.columns, {"columns": {"id": "long", "kind": "string"}}),
        (checks.row_count, {"max_rows": 9}),
        (checks.row_count, {"max_rows": 9, "where": "id > 0"}),
        (checks.null_rate, {"max_null_rates": {"id": 0.9}}),
        (checks.unique, {"keys": ["id"]}),
        (checks.health, {}),
        (checks.cdc_lag, {"max_versions": 0}),
        (checks.txn_gaps, {"app_id": "job"}),
    ],
)
def test_no_check_passes_for_what_it_could_not_read(
    checked: Checked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Any, arguments: dict[str, Any]
) -> None:
    """The store is out of reach from a request on, whichever that is, or for one request."""
    source = DeltaTable(tmp_path / "source")
    source.append(ROWS)
    batch = IncrementalReader(source, checked.table).next_batch()
    assert batch is not None
    # Nothing but the data files tells how many nulls there are.
    options: Any = {"properties": {"delta.dataSkippingNumIndexedCols": "0"}, "txn": batch.txn}
    rows, by_dagster = pa.table({"id": [1, None], "kind": ["a", "b"]}), '{"orchestrator": "dagster"}'
    checked.table.append(rows, user_metadata=by_dagster, **options)
    for version in (1, 2):
        more = pa.table({"id": [10 + version], "kind": ["a"]})
        checked.table.append(more, user_metadata=by_dagster, txn=TxnId("job", version))
    if build is checks.cdc_lag:
        arguments = {**arguments, "source": DeltaTableResource(table_uri=source.uri)}
    node: Any = build_delta_check(orders, checked.resource, build(**arguments)).node_def
    look: Any = node.compute_fn
    count, outage = 0, range(0)

    def is_out_of_reach(call: StoreCall) -> bool:
        nonlocal count
        count += 1
        return count - 1 in outage

    def open_failing(*given: Any, **more: Any) -> FaultStore:
        store = FaultStore(open_store(*given, **more), watch_data=True)
        store._rules.append(Rule(is_out_of_reach, "before", store.fail, sys.maxsize))
        return store

    monkeypatch.setattr(delta_table_module, "open_table_store", open_failing)
    assert look.decorated_fn(None).passed
    calls, refused = count, 0
    for first in range(calls):
        for end in (first + 1, sys.maxsize):
            count, outage = 0, range(first, end)
            try:
                found = look.decorated_fn(None)
            except StorageError:
                refused += 1
            else:
                # A hint that cannot be read only costs more requests.
                assert found.passed and count > first
    assert refused > calls
