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
from delta_orch.dagster.sensor import PATIENCE_S, Target
from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.target_table import snapshot_or_none
from delta_orch.storage.patience import waiting_at_most


@checked
def build_delta_file_sensor(
    *,
    name: str,
    source: FileSource,
    table: DeltaTableResource,
    target: Target = None,
    job: Target = None,
    tags: Mapping[str, str] | None = None,
    minimum_interval_seconds: int | None = None,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
    description: str | None = None,
) -> dg.SensorDefinition:
    """A sensor that requests a run when a source has files that a table has not loaded.

    A tick lists the source once and looks the files up in the table's own record, so the sensor has no cursor that
    could disagree with it. As long as the same files wait, they request one run: a run that failed is not requested
    again before another file arrives. Give the job a retry policy.

    Args:
        name: Of the sensor.
        source: The source of the asset that loads the files.
        table: The table of that asset, which need not exist yet.
        target: Assets to materialize (as in `dg.sensor`). Give this or `job`.
        job: The job to run.
        tags: Tags of the requested runs, beside `delta/files`.
        minimum_interval_seconds: As in `dg.sensor`.
        default_status: As in `dg.sensor`.
        description: As in `dg.sensor`.

    Raises:
        InvalidRequestError: Neither `target` nor `job` is given, or both. A tick fails as `DeltaTable.ingest`.
    """
    if (target is None) == (job is None):
        raise InvalidRequestError(f"Sensor {name} needs a target or a job", remedy="Give one of them")

    @dg.sensor(
        name=name,
        target=target,
        job=job,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=description or f"Files of {source.uri} that {name} has not seen loaded.",
    )
    def look(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        with waiting_at_most(PATIENCE_S):
            own = table.table()
            found = FileLook(source, own.log).next_files(snapshot_or_none(own))
        if found is None:
            return dg.SkipReason(f"No new files in {source.uri}")
        return dg.RunRequest(run_key=_key_of(found), tags={**(tags or {}), "delta/files": str(found.files.num_rows)})

    return look


def _key_of(found: NewFiles) -> str:
    """The same for the same files that wait for the same version of the record."""
    parts = [pc.cast(found.files[name], "string") for name in ("path", "size", "modification_time_ms")]
    files = pc.binary_join_element_wise(*parts, " ")
    digest = hashlib.sha256("\n".join(files.to_pylist()).encode()).hexdigest()[:32]
    return f"{found.loaded.recorded}:{found.files.num_rows}:{digest}"
