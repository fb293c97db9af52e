"""Definitions that the tests of retries run from disk: Dagster re-executes only jobs it can import."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa

from delta_orch.dagster import (
    ChangeBatch,
    DeltaLakeIOManager,
    DeltaOut,
    DeltaTableResource,
    delta_asset,
    delta_multi_asset,
    incremental,
)

DAYS = dg.DailyPartitionsDefinition("2013-01-01", end_date="2013-01-08")


class FailingIOManager(DeltaLakeIOManager):
    """Does as `DELTA_TEST_FAULT` says: `after` fails once the commit is done, `before` fails in its place, `kill` ends
    the process right after the commit."""

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        fault = os.environ.get("DELTA_TEST_FAULT", "")
        if fault == "before":
            raise RuntimeError("lost before the commit")
        super().handle_output(context, obj)
        if fault == "after":
            raise RuntimeError("lost after the commit")
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)


@dg.asset(
    key=["bronze", "flights"],
    partitions_def=DAYS,
    metadata={"partition_expr": "day"},
    backfill_policy=dg.BackfillPolicy.single_run(),
)
def flights(context) -> pa.Table:  # type: ignore[no-untyped-def]
    keys = list(context.partition_keys)
    return pa.table({"day": keys, "run": [context.run.run_id] * len(keys)})


@dg.asset(metadata={"write": "append"})
def readings(context) -> pa.Table:  # type: ignore[no-untyped-def]
    return pa.table({"run": [context.run.run_id]})


@dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day", "write": "append"})
def added(context) -> pa.Table:  # type: ignore[no-untyped-def]
    return pa.table({"day": [context.partition_key], "run": [context.run.run_id]})


@dg.op(out=dg.Out(metadata={"write": "append"}))
def appended(context) -> pa.Table:  # type: ignore[no-untyped-def]
    return pa.table({"run": [context.run.run_id]})


@dg.op
def look(appended: pa.Table) -> None:
    if os.environ["DELTA_TEST_FAULT"] == "look":
        raise RuntimeError("lost before a look")
    look_at(appended)


def look_at(appended: pa.Table) -> None:
    with Path(os.environ["DELTA_TEST_SEEN"]).open("a") as file:
        file.write("".join(f"{run}\n" for run in appended["run"].to_pylist()))


IO_MANAGER = DeltaLakeIOManager(root_uri=dg.EnvVar("DELTA_TEST_ROOT"), on_redo=dg.EnvVar("DELTA_TEST_ON_REDO"))

PICKLED = dg.FilesystemIOManager(base_dir=dg.EnvVar("DAGSTER_HOME"))


@dg.job(executor_def=dg.in_process_executor, resource_defs={"io_manager": IO_MANAGER})
def appended_job() -> None:
    look(appended())


def is_fault(name: str) -> bool:
    return name in os.environ["DELTA_TEST_FAULT"].split()


@dg.op(out=dg.DynamicOut(), retry_policy=dg.RetryPolicy(max_retries=1))
def split(context):  # type: ignore[no-untyped-def]
    for key in ("a", "b", "c"):
        yield dg.DynamicOutput(pa.table({"run": [key]}), mapping_key=key)
        if context.retry_number == 0 and is_fault("split"):
            raise RuntimeError("lost between two outputs")


@dg.op(out=dg.Out(pa.Table, is_required=False))
def chosen(context, rows: pa.Table):  # type: ignore[no-untyped-def]
    if not (is_fault("chosen") and context.get_mapping_key() == "a"):
        yield dg.Output(rows)


@dg.op
def handed_on(rows: pa.Table) -> pa.Table:
    if is_fault("handed_on"):
        # The run ends: it does not go on with other mapped steps, as it would after an error.
        raise KeyboardInterrupt
    return rows


@dg.op
def collected(parts: list[pa.Table]) -> pa.Table:
    if is_fault("collected"):
        raise RuntimeError("lost before they were collected")
    return pa.concat_tables(parts) if parts else pa.table({"run": pa.array([], pa.string())})


@dg.job(executor_def=dg.in_process_executor, resource_defs={"io_manager": IO_MANAGER})
def mapped_job() -> None:
    look(collected(split().map(chosen).map(handed_on).collect()))


@dg.op
def kept(rows: pa.Table) -> None:
    if is_fault("kept"):
        raise KeyboardInterrupt
    look_at(rows)


@dg.job(executor_def=dg.in_process_executor, resource_defs={"io_manager": IO_MANAGER})
def kept_job() -> None:
    split().map(kept)


@dg.job(executor_def=dg.in_process_executor, resource_defs={"io_manager": IO_MANAGER})
def split_job() -> None:
    look(collected(split().collect()))


@dg.op(out=dg.Out(io_manager_key="pickled"))
def pickled(rows: pa.Table) -> pa.Table:
    return rows


@dg.job(executor_def=dg.in_process_executor, resource_defs={"io_manager": IO_MANAGER, "pickled": PICKLED})
def elsewhere_job() -> None:
    """What is left of it has no value of ours."""
    split().map(handed_on).map(pickled).map(kept)


@dg.op(out=dg.Out(dg.Nothing, io_manager_key="pickled"))
def stored(rows: pa.Table, table: DeltaTableResource) -> None:
    kept(rows)
    table.table().append(rows)


@dg.job(
    executor_def=dg.in_process_executor,
    resource_defs={
        "io_manager": PICKLED,
        "pickled": PICKLED,
        "table": DeltaTableResource(table_uri=dg.EnvVar("DELTA_TEST_ROOT")),
    },
)
def stored_job() -> None:
    """No value of it is ours, but its rows are."""
    split().map(stored)


def definitions() -> dg.Definitions:
    in_process = dg.in_process_executor
    return dg.Definitions(
        assets=[flights, readings, added],
        jobs=[
            dg.define_asset_job("flights_job", selection=[flights], executor_def=in_process),
            dg.define_asset_job("readings_job", selection=[readings], executor_def=in_process),
            dg.define_asset_job("added_job", selection=[added], executor_def=in_process),
        ],
        resources={"io_manager": FailingIOManager(root_uri=dg.EnvVar("DELTA_TEST_ROOT"))},
    )


def flights_job() -> dg.JobDefinition:
    return definitions().resolve_job_def("flights_job")


def readings_job() -> dg.JobDefinition:
    return definitions().resolve_job_def("readings_job")


def added_job() -> dg.JobDefinition:
    return definitions().resolve_job_def("added_job")


@dg.asset(metadata={"write": "append"}, retry_policy=dg.RetryPolicy(max_retries=1))
def killed_once(context) -> pa.Table:  # type: ignore[no-untyped-def]
    if context.retry_number:
        os.environ["DELTA_TEST_FAULT"] = ""
    return pa.table({"run": [context.run.run_id]})


def killed_once_job() -> dg.JobDefinition:
    """Each step has a process of its own."""
    return dg.Definitions(
        [killed_once],
        jobs=[dg.define_asset_job("killed_once_job", executor_def=dg.multiprocess_executor)],
        resources={"io_manager": FailingIOManager(root_uri=dg.EnvVar("DELTA_TEST_ROOT"))},
    ).resolve_job_def("killed_once_job")


def table(name: str) -> DeltaTableResource:
    return DeltaTableResource(table_uri=dg.EnvVar(f"DELTA_TEST_{name.upper()}"))


def read(context: dg.AssetExecutionContext, batch: ChangeBatch) -> pa.Table:
    """The values that are new in the source, with the run that read them."""
    values = batch.inserted().to_arrow()["v"].to_pylist()
    return pa.table({"v": values, "run": [context.run.run_id] * len(values)})


@delta_asset(incremental_from=table("source"), table=table("one"), write="append")
def followed(context: dg.AssetExecutionContext, batch: ChangeBatch) -> pa.Table:
    return read(context, batch)


@delta_multi_asset(
    incremental_from=table("source"),
    outs={"one": DeltaOut(table("one"), "append"), "two": DeltaOut(table("two"), "append")},
)
def both(context: dg.AssetExecutionContext, batch: ChangeBatch):  # type: ignore[no-untyped-def]
    rows = read(context, batch)
    return {"one": rows, "two": None if is_fault("second") else rows}


_TELL = incremental.incremental_metadata


def _told(*arguments: Any) -> Any:
    """In place of what tells Dagster of a commit."""
    fault = os.environ.get("DELTA_TEST_FAULT", "")
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "after":
        raise RuntimeError("lost after the commit")
    return _TELL(*arguments)


def incremental_job(asset: dg.AssetsDefinition) -> dg.JobDefinition:
    # For the rest of the process, which has no fault but in these jobs.
    module: Any = incremental
    module.incremental_metadata = _told
    jobs = [dg.define_asset_job("incremental_job", executor_def=dg.in_process_executor)]
    return dg.Definitions([asset], jobs=jobs).resolve_job_def("incremental_job")


def followed_job() -> dg.JobDefinition:
    return incremental_job(followed)


def both_job() -> dg.JobDefinition:
    return incremental_job(both)
