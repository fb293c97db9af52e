"""A sensor that looks for files that a table has not loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import dagster as dg

import delta_orch.arrow_compute as pc
from delta_orch.arguments import checked
from delta_orch.arrival.file_look import FileLook, NewFiles
from delta_orch.arrival.file_source import FileSource
from delta_orch.dagster.resource import DeltaTableResource
from delta_orch.dagster.sensor import PATIENCE_S, Target, active_runs, are_active, ensure_limits
from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.target_table import snapshot_or_none
from delta_orch.storage.patience import waiting_at_most

_FILES_KEY = "delta/files_key"


@checked
def build_delta_file_sensor(
    *,
    name: str,
    source: FileSource,
    table: DeltaTableResource,
    target: Target = None,
    job: Target = None,
    tags: Mapping[str, str] | None = None,
    max_active_runs: int | None = 1,
    max_retries: int = 2,
    minimum_interval_seconds: int | None = None,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
    description: str | None = None,
) -> dg.SensorDefinition:
    """A sensor that requests a run when a source has files that a table has not loaded.

    A tick lists the source once and looks the files up in the table's own record, so the sensor has no cursor that
    could disagree with it. While a run that it requested is active, a tick requests nothing and lists nothing. As long
    as the same files wait, they request one run. If that run fails, a later tick requests it again, `max_retries`
    times. After that, another file must arrive.

    Args:
        name: Of the sensor.
        source: The source of the asset that loads the files.
        table: The table of that asset, which need not exist yet.
        target: Assets to materialize (as in `dg.sensor`). Give this or `job`.
        job: The job to run.
        tags: Tags of the requested runs, beside `delta/files` (how many files wait) and `delta/files_key` (which).
        max_active_runs: So many runs of the sensor may be queued or running at once, as of `build_delta_log_sensor`.
            None: any number. A run loads all files that it finds, so more than one rarely helps.
        max_retries: How often the run of the same files is requested again if it fails. A run that was canceled is not.
        minimum_interval_seconds: As in `dg.sensor`.
        default_status: As in `dg.sensor`.
        description: As in `dg.sensor`.

    Raises:
        InvalidRequestError: Neither `target` nor `job` is given, or both, or a limit is too low. A tick fails as
            `DeltaTable.ingest`.
    """
    if (target is None) == (job is None):
        raise InvalidRequestError(f"Sensor {name} needs a target or a job", remedy="Give one of them")
    ensure_limits(max_active_runs=max_active_runs)
    if max_retries < 0:
        raise InvalidRequestError(f"max_retries={max_retries} is below 0", remedy="Pass 0 for no retries, or more")

    @dg.sensor(
        name=name,
        target=target,
        job=job,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=description or f"Files of {source.uri} that {name} has not seen loaded.",
    )
    def look(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        if max_active_runs is not None and active_runs(context, name, max_active_runs) >= max_active_runs:
            return are_active(max_active_runs)
        with waiting_at_most(PATIENCE_S):
            own = table.table()
            new_files = FileLook(source, own.log).next_files(snapshot_or_none(own))
        if new_files is None:
            return dg.SkipReason(f"No new files in {source.uri}")
        key = _key_of(new_files)
        retries = _failed_runs(context.instance, name, key, max_retries) if max_retries else 0
        run_tags = {**(tags or {}), "delta/files": str(new_files.files.num_rows), _FILES_KEY: key}
        # Dagster requests no run key twice.
        return dg.RunRequest(run_key=f"{key}:{retries}" if retries else key, tags=run_tags)

    return look


def _failed_runs(instance: dg.DagsterInstance, sensor_name: str, key: str, at_most: int) -> int:
    """How many runs of the same files have failed; it counts to a limit."""
    tags = {"dagster/sensor_name": sensor_name, _FILES_KEY: key}
    failed = dg.RunsFilter(tags=tags, statuses=[dg.DagsterRunStatus.FAILURE])
    return len(instance.get_run_ids(failed, limit=at_most))


def _key_of(new_files: NewFiles) -> str:
    """The same for the same files that wait for the same version of the record."""
    parts = [pc.cast(new_files.files[name], "string") for name in ("path", "size", "modification_time_ms")]
    files = pc.binary_join_element_wise(*parts, " ")
    digest = hashlib.sha256("\n".join(files.to_pylist()).encode()).hexdigest()[:32]
    return f"{new_files.loaded.recorded}:{new_files.files.num_rows}:{digest}"
