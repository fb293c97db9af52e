"""Every public function of `delta_orch.dagster` with wrong values for each argument: refused when it is called, by our
error, or by Python's for a value of another type.

The calls are made up from the signatures, so that a new argument is covered by being there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import is_dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pydantic import BaseModel, ValidationError

import delta_orch.dagster
from delta_orch import DeltaTable, FileSource
from delta_orch.dagster import (
    ChangeBatch,
    DeltaLakeIOManager,
    DeltaOut,
    DeltaTableResource,
    delta_asset,
    delta_multi_asset,
)
from delta_orch.errors import DeltaError, InvalidRequestError, TableNotFoundError
from tests.harness.fuzz.arguments import values

LONGEST_MESSAGE = 2_000
SECRET = "hunter2-hunter2"

TABLE, SOURCE = DeltaTableResource(table_uri="/nonexistent/t"), DeltaTableResource(table_uri="/nonexistent/s")

INSTANCE = dg.DagsterInstance.ephemeral()
DAYS = dg.StaticPartitionsDefinition(["a", "b"])


def rows(batch: ChangeBatch) -> pa.Table:
    return batch.scan().to_arrow()


MADE = delta_asset(incremental_from=SOURCE, table=TABLE)(rows)


@dg.asset
def upstream() -> None: ...


@dg.job
def some_job() -> None: ...


def ordinary(name: str) -> dict[str, Any]:
    """What a function is called with, where another argument is wrong."""
    known: dict[str, dict[str, Any]] = {
        "Audit": {"name": "some", "min_rows": 1},
        "ByPartition": {"partitions_def": DAYS, "partition_expr": "day"},
        "build_delta_check": {"asset": upstream, "table": TABLE, "rule": delta_orch.dagster.checks.health()},
        "checks.columns": {"columns": {"id": "long"}},
        "checks.row_count": {"min_rows": 1},
        "DeltaOut": {"table": TABLE},
        "build_delta_audit_checks": {"assets": [upstream]},
        "build_delta_file_sensor": {
            "name": "files",
            "source": FileSource("/nonexistent/in", format="json"),
            "table": TABLE,
            "job": some_job,
        },
        "build_delta_log_sensor": {"name": "new", "table_uri": "/nonexistent/t", "job": some_job},
        "build_delta_observations": {"tables": {"a": TABLE}},
        "delta_asset": {"incremental_from": SOURCE, "table": TABLE},
        "delta_multi_asset": {"incremental_from": SOURCE, "outs": {"a": DeltaOut(TABLE)}},
        "report_existing_partitions": {
            "instance": INSTANCE,
            "asset": upstream,
            "table": TABLE,
            "partitions_def": DAYS,
            "partition_expr": "day",
        },
        "with_delta_maintenance": {"defs": dg.Definitions([MADE])},
    }
    if name in known:
        return known[name]
    function = public(name)
    given: dict[str, Any] = {
        "asset": upstream, "table": TABLE, "source": SOURCE, "columns": ["id"],
        "schema": pa.schema([("id", pa.int64())]),
        "max_age": timedelta(1), "max_null_rates": {"id": 0.5}, "tables": {"a": TABLE},
        "name": "upkeep", "app_id": "job", "keys": ["id"], "target": TABLE,
    }  # fmt: skip
    parameters = inspect.signature(function).parameters.values()
    return {p.name: given[p.name] for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD}


def public(name: str) -> Any:
    found: Any = delta_orch.dagster
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _is_function(name: str) -> bool:
    found = public(name)
    return inspect.isfunction(found) or (
        is_dataclass(found) and name not in ("ChangeBatch", "DeltaSnapshot", "FileBatch")
    )


RULES = ("cdc_lag", "columns", "freshness", "health", "null_rate", "row_count", "txn_gaps", "unique")
NAMES = [*(name for name in delta_orch.dagster.__all__ if _is_function(name)), *(f"checks.{rule}" for rule in RULES)]


def arguments_of(name: str) -> list[str]:
    parameters = inspect.signature(public(name)).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]


def _call(name: str, arguments: dict[str, Any]) -> None:
    made = public(name)(**{**ordinary(name), **arguments})
    if name.endswith("asset") and inspect.isfunction(made):
        made(rows)


def _ends_well(call: Callable[[], object]) -> str | None:
    """What is wrong with how a call ends."""
    try:
        call()
    except DeltaError as e:
        return f"{len(str(e))} characters" if len(str(e)) > LONGEST_MESSAGE else None
    except (TypeError, AttributeError):
        return None
    except BaseException as e:  # noqa: BLE001 (what comes out is what is asked)
        if type(e).__module__.partition(".")[0] in ("dagster", "dagster_shared"):
            # What a name, a group, a pool, a tag or a job is, Dagster says itself.
            return None
        return f"{type(e).__module__}.{type(e).__name__}: {str(e)[:300]}"
    return None


@pytest.mark.parametrize("name", NAMES)
def test_what_is_right_passes(name: str) -> None:
    # Only this one looks at its table, which is not there.
    with pytest.raises(TableNotFoundError) if name == "report_existing_partitions" else nullcontext():
        _call(name, {})


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_argument_is_refused_at_definition(name: str) -> None:
    problems = {
        (argument, kind): problem
        for argument in arguments_of(name)
        for kind, value in values().items()
        if (problem := _ends_well(lambda argument=argument, value=value: _call(name, {argument: value}))) is not None  # type: ignore[misc]
    }
    assert not problems


@pytest.mark.parametrize("name", NAMES)
def test_an_object_of_dagster_is_taken_or_refused_by_name(name: str) -> None:
    """A key cannot be iterated over, and a variable has no text before a run: both raise errors of no class."""
    wrong_values = [dg.AssetKey("a"), dg.EnvVar("UNSET"), [dg.EnvVar("UNSET")], {dg.EnvVar("UNSET"): TABLE}]
    problems = {
        (argument, type(wrong)): problem
        for argument in arguments_of(name)
        for wrong in wrong_values
        if (problem := _ends_well(lambda argument=argument, wrong=wrong: _call(name, {argument: wrong}))) is not None  # type: ignore[misc]
    }
    # Dagster itself prints a key that is no job.
    assert problems.keys() <= {("job", dg.AssetKey)}


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"delta.enableChangeDataFed": "true"}, "Did you mean 'delta.enableChangeDataFeed'"),
        ({"delta.appendOnly": "yes"}, "has an invalid value"),
        ({"delta.feature.deletionVector": "supported"}, "deletionVector"),
    ],
)
def test_properties_that_no_table_takes_are_refused_at_definition(properties: dict[str, str], said: str) -> None:
    for define in (
        lambda: delta_asset(incremental_from=SOURCE, table=TABLE, properties=properties),
        lambda: delta_multi_asset(incremental_from=SOURCE, outs={"a": DeltaOut(TABLE, properties=properties)}),
        lambda: DeltaLakeIOManager(root_uri="/t", properties=properties),
    ):
        with pytest.raises((DeltaError, ValidationError), match=said):
            define()


def test_properties_of_ones_own_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"team": "x", "delta.feature.deletionVectors": "supported", "delta.universalFormat.enabledFormats": ""}
    delta_asset(incremental_from=SOURCE, table=TABLE, properties=own)
    DeltaLakeIOManager(root_uri="/t", properties={**own, "delta.appendOnly": dg.EnvVar("UNSET")})


def test_a_variable_is_no_location_of_the_core() -> None:
    """It opened a table in a directory of the variable's name."""
    with pytest.raises(InvalidRequestError, match="known now"):
        DeltaTable(dg.EnvVar("LAKE"))
    with pytest.raises(InvalidRequestError, match="known now"):
        DeltaTable("/nonexistent/t", {"secret": dg.EnvVar("LAKE")})


@pytest.mark.parametrize("wrong", [dg.AssetKey("a"), [dg.EnvVar("UNSET")]], ids=["key", "vars"])
def test_columns_are_no_object_of_dagster(tmp_path: Path, wrong: Any) -> None:
    table = DeltaTable(tmp_path / "t")
    table.overwrite(pa.table({"UNSET": [1]}))
    with pytest.raises(InvalidRequestError, match="columns must be"):
        table.snapshot().scan(columns=wrong)


def test_a_sensor_takes_variables_for_its_store() -> None:
    options = {"secret": dg.EnvVar("UNSET")}
    made = delta_orch.dagster.build_delta_log_sensor(
        name="new", table_uri=dg.EnvVar("UNSET"), storage_options=options, job=some_job
    )
    assert made.name == "new"


MODELS = {
    name: kind
    for name in delta_orch.dagster.__all__
    if inspect.isclass(kind := getattr(delta_orch.dagster, name)) and issubclass(kind, BaseModel)
}


@pytest.mark.parametrize(
    ("name", "setting"), [(name, setting) for name, kind in MODELS.items() for setting in kind.model_fields]
)
def test_a_wrong_setting_repeats_no_secret(name: str, setting: str) -> None:
    """Settings may be credentials: what is wrong with them is said without them."""
    kind = MODELS[name]
    for wrong in (SECRET, [SECRET], {"key": [SECRET]}, {"key": {"deep": SECRET}}, (SECRET, 1)):
        try:
            kind(**{setting: wrong})
        except (DeltaError, ValidationError, dg.DagsterInvalidDefinitionError) as e:
            assert SECRET not in str(e) or setting not in ("storage_options", "options")


def test_options_of_a_store_are_not_repeated() -> None:
    for wrong in ({"password": [SECRET]}, [SECRET], SECRET):
        for made in (
            lambda wrong=wrong: DeltaTableResource(table_uri="/t", storage_options=wrong),
            lambda wrong=wrong: DeltaLakeIOManager(root_uri="/t", storage_options=wrong),
        ):
            with pytest.raises((DeltaError, ValidationError)) as caught:
                made()
            assert SECRET not in str(caught.value)
