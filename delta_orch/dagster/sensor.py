"""Sensors that follow the log of a table or look for new files, and the automation condition for new data."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any
from typing import Literal as OneOf

import dagster as dg

import delta_orch.arrow_compute as pc
from delta_orch.arguments import checked
from delta_orch.arrival.file_look import FileLook, NewFiles
from delta_orch.arrival.file_source import FileSource
from delta_orch.catalog.open import open_table_store
from delta_orch.dagster.partitions import PartitionKeyOf, Touched, TouchedPartitions, dynamic_keys
from delta_orch.dagster.resource import DeltaTableResource, resolve_env, resolve_options
from delta_orch.errors import DeltaError, InvalidRequestError, TableNotFoundError
from delta_orch.log.read.table_log import TableLog
from delta_orch.pipeline.tail import NO_TABLE, TailBatch, TailCursor, current_cursor, parse_cursor, poll
from delta_orch.pipeline.target_table import snapshot_or_none
from delta_orch.storage.patience import waiting_at_most
from delta_orch.storage.storage_options import public_uri

Target = Any
"""What `dg.sensor` takes as `target` or `job`."""
OnRecreated = OneOf["restart", "error"]

VERIFY_INTERVAL_S = 3600
PATIENCE_S = 20.0
"""How long a tick waits in all for stores that are out of reach. Dagster ends a tick after a minute; what it has found
of other tables is lost then."""


_RANGE_START = "dagster/asset_partition_range_start"
_RANGE_END = "dagster/asset_partition_range_end"


@dataclass(frozen=True, slots=True)
class RunOfTick:
    """A run to request: of one partition, of a range where `last` is another key than `first`, or without partitions.

    Attributes:
        starting_version, ending_version: The commits that are the reason for it.
    """

    run_key: str
    starting_version: int
    ending_version: int
    first: str | None = None
    last: str | None = None

    def request(self, table_id: str, tags: Mapping[str, str], *, table: str = "") -> dg.RunRequest:
        """The request, with tags that name the table and the commits.

        Args:
            table: Its name in a sensor of many. It is part of the run key, as copies of a table have the same id.
        """
        run_key = f"{table}:{self.run_key}" if table else self.run_key
        own = {
            **tags,
            **({"delta/table": table} if table else {}),
            "delta/table_id": table_id,
            "delta/starting_version": str(self.starting_version),
            "delta/ending_version": str(self.ending_version),
        }
        if self.first is not None and self.last != self.first:
            return dg.RunRequest(run_key=run_key, tags={**own, _RANGE_START: self.first, _RANGE_END: self.last})
        return dg.RunRequest(run_key=run_key, partition_key=self.first, tags=own)


@dataclass(frozen=True, slots=True)
class SensorState:
    """The state of a sensor between two ticks: `{table id}:{version}`, and JSON behind it if there is more.

    Attributes:
        cursor: How far the log has been read.
        waiting: Keys of partitions that hold changes and are not there yet.
        left: Runs that were found and are still to be requested.
    """

    cursor: TailCursor = NO_TABLE
    waiting: tuple[str, ...] = ()
    left: tuple[RunOfTick, ...] = ()

    def __str__(self) -> str:
        if not self.waiting and not self.left:
            return str(self.cursor)
        left = [[run.run_key, run.starting_version, run.ending_version, run.first, run.last] for run in self.left]
        return f"{self.cursor} {json.dumps({'waiting': list(self.waiting), 'left': left})}"

    def with_waiting(self, keys: Iterable[str]) -> SensorState:
        return replace(self, waiting=tuple(dict.fromkeys((*self.waiting, *keys))))


def parse_state(text: str) -> SensorState:
    """The inverse of `str(state)`.

    Raises:
        InvalidRequestError: The text is not one.
    """
    cursor, separator, rest = text.partition(" {")
    if not separator:
        return SensorState(parse_cursor(text))
    try:
        stored = json.loads("{" + rest)
        left = tuple(RunOfTick(*run) for run in stored["left"])
        return SensorState(parse_cursor(cursor), tuple(stored["waiting"]), left)
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequestError(
            f"{text[:200]!r} is not a cursor", cause="A cursor is {table id}:{version}", remedy="Reset the cursor"
        ) from error


def parse_cursors(text: str | None) -> dict[str, str | None]:
    """The states of a sensor of many tables, by name: a JSON object of texts.

    Raises:
        InvalidRequestError: The text is not one.
    """
    try:
        states = json.loads(text or "{}")
    except ValueError:
        states = None
    if not isinstance(states, dict) or not all(isinstance(state, str) for state in states.values()):
        raise InvalidRequestError(
            f"{str(text)[:200]!r} is not a cursor of many tables",
            cause="It is a JSON object: name → {table id}:{version}",
            remedy="Reset the cursor",
        )
    return states


@checked
def build_delta_log_sensor(
    *,
    name: str,
    table_uri: str | None = None,
    tables: Mapping[str, DeltaTableResource] | None = None,
    storage_options: Mapping[str, object] | None = None,
    target: Target = None,
    job: Target = None,
    partitions_def: dg.PartitionsDefinition[str] | None = None,
    partition_expr: str | Mapping[str, str] | None = None,
    partition_key_of: PartitionKeyOf | None = None,
    start: OneOf["latest", "beginning"] = "latest",
    tags: Mapping[str, str] | None = None,
    partition_format: str | Mapping[str, str] | None = None,
    max_partitions_per_run: int = 1,
    max_runs_per_tick: int | None = None,
    on_recreated: OnRecreated = "restart",
    max_active_runs: int | None = None,
    minimum_interval_seconds: int | None = None,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
    description: str | None = None,
) -> dg.SensorDefinition:
    """A sensor that requests runs when a table has new commits.

    Without partitions, the sensor requests one run for all new commits, with the run key
    `{table id}:{start}-{end}@{timestamp}`. With `partitions_def`, it requests one run for each partition that the
    commits touched. The values of the partition give the key. Commits that change no data (compaction, table
    properties) are ignored. A tick that finds no new commit makes one HEAD request. About once an hour, and after a
    pause, it opens the table, too. The cursor is `{table id}:{version}`.

    If the table was recreated, or if commits were cleaned up before the sensor saw them, the whole table counts as new.

    With `tables`, one sensor follows many tables. Its cursor holds a cursor for each table. Its runs have the tag
    `delta/table`, and their run keys begin with the table's name. An error in one table does not stop the others: the
    cursor of that table stays, and the error is logged. The tick fails only if no other table has new commits.

    A value gives the key of the partition that the IO manager writes it to. The sensor ignores, with a warning, null, a
    value before the start or after the end of the partitions, and a key that they do not list. If a partition does not
    exist yet (today's), its key waits in the cursor until it does. Any other value without a key fails the tick, and
    the cursor stays.

    Args:
        name: Of the sensor.
        table_uri: The table, which need not exist yet. Give this or `tables`.
        tables: Name → table. All have the same target and the same partitions.
        storage_options: Of the store of `table_uri`; values may be `dg.EnvVar`.
        target: Assets to materialize (as in `dg.sensor`). Give this or `job`.
        job: The job to run.
        partitions_def: The partitions of what is run. New keys are added to a `DynamicPartitionsDefinition`, also to
            one that is a dimension.
        partition_expr: The table's column that holds the partition; for multi-dimensional partitions a column for each
            dimension. By default the table's only partition column.
        partition_key_of: Instead of `partition_expr`: maps a touched partition's values to a key, or to None for none.
        start: `latest` requests runs for commits after the first tick, `beginning` also for the commits before it.
        tags: Tags of the requested runs, beside `delta/table_id`, `delta/starting_version`, `delta/ending_version`.
        partition_format: As in the asset's metadata: the `strftime` format of a string or integer column that does not
            hold the key itself; for multi-dimensional partitions a format for some dimensions.
        max_partitions_per_run: More than 1: one run for a range of neighboring time partitions, of at most so many. The
            assets need `BackfillPolicy.single_run()`.
        max_runs_per_tick: The largest number of runs that one tick requests. The next ticks request the rest before
            they read the log again. Waiting runs come before new ones, so no table is left behind.
        on_recreated: `restart` counts everything in a recreated table as new, `error` fails the tick until the cursor
            is reset.
        max_active_runs: Back-pressure: no more runs that this sensor requested are queued or running at once. What is
            found beyond that waits in the cursor; while as many are active, the log is not read.
        minimum_interval_seconds: As in `dg.sensor`.
        default_status: As in `dg.sensor`.
        description: As in `dg.sensor`.

    Raises:
        InvalidRequestError: The arguments do not go together.
    """
    ensure_limits(
        max_runs_per_tick=max_runs_per_tick,
        max_partitions_per_run=max_partitions_per_run,
        max_active_runs=max_active_runs,
    )
    followed = _followed(table_uri, storage_options, tables)
    has_mapping = partition_expr is not None or partition_key_of is not None or partition_format is not None
    is_by_range = max_partitions_per_run > 1
    if partitions_def is None and (has_mapping or is_by_range):
        raise InvalidRequestError("Arguments about partitions need partitions_def", remedy="Pass it as well")
    if is_by_range and not isinstance(partitions_def, dg.TimeWindowPartitionsDefinition):
        raise InvalidRequestError("max_partitions_per_run needs time partitions", remedy="Leave it out")
    mapping = None
    if partitions_def is not None:
        mapping = TouchedPartitions(partitions_def, partition_expr, partition_format, partition_key_of)

    def look(context: dg.SensorEvaluationContext, table: str, text: str | None, room: int) -> _Look:
        uri, options = followed[table]
        log = TableLog(open_table_store(resolve_env(uri), resolve_options(options)))
        if text is None and start == "latest":
            cursor = current_cursor(log)
            return _Look(SensorState(cursor), f"Watching from version {cursor.version} on.")
        state = SensorState() if text is None else parse_state(text)
        state, waited = _runs_that_waited(context, state, mapping, room)
        if waited:
            # What an earlier tick has found goes before what is new.
            return _Look(state, "", waited, waited=True)
        verify = _is_verification_due(context.last_tick_completion_time, time.time())
        try:
            batch = poll(log, state.cursor, verify=verify)
        except TableNotFoundError as error:
            return _Look(state, str(error))
        if batch is None:
            return _Look(state, f"Nothing new since version {state.cursor.version}.")
        if batch.recreated and on_recreated == "error":
            raise _recreated(batch, log.store.uri)
        _log_gaps(context, batch)
        state = SensorState(batch.cursor, state.waiting)
        if not batch.data_changed:
            return _Look(state, f"Versions {_range(batch)} change no data.")
        if mapping is None:
            return _Look(state, "", [RunOfTick(batch.run_key, batch.starting_version, batch.ending_version)])
        touched = _touched(context, mapping, batch)
        return _Look(
            state.with_waiting(touched.later),
            f"Versions {_range(batch)} touch none of the partitions that are there.",
            _runs_of(touched, mapping.partitions_def, batch, max_partitions_per_run),
        )

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        free = None if max_active_runs is None else max_active_runs - active_runs(context, name, max_active_runs)
        if free == 0:
            return are_active(max_active_runs)
        room = min(limit for limit in (max_runs_per_tick, free, sys.maxsize) if limit is not None)
        before = {"": context.cursor} if tables is None else parse_cursors(context.cursor)
        looks: dict[str, _Look] = {}
        failed: dict[str, DeltaError] = {}
        until, out_of_reach = time.monotonic() + PATIENCE_S, dict[object, DeltaError]()
        for one, (uri, options) in followed.items():
            store = _store_of(resolve_env(uri), options)
            if store in out_of_reach:
                failed[one] = out_of_reach[store]
                continue
            try:
                with waiting_at_most(max(0.0, until - time.monotonic())):
                    looks[one] = look(context, one, before.get(one), room)
            except DeltaError as error:
                failed[one] = error
                if error.retryable and store is not None:
                    out_of_reach[store] = error
        after = {one: text for one in failed if (text := before.get(one)) is not None}
        requests, added = list[dg.RunRequest](), list[str]()
        for one, result in sorted(looks.items(), key=lambda item: not item[1].waited):
            now, left = result.runs[:room], result.runs[room:]
            room -= len(now)
            keys = {run.first for run in result.runs}
            waiting = tuple(key for key in result.state.waiting if key not in keys)
            after[one] = str(SensorState(result.state.cursor, waiting, tuple(left)))
            requests += [run.request(result.state.cursor.table_id, tags or {}, table=one) for run in now]
            added += [run.first for run in now if run.first is not None]
        ordered = {one: after[one] for one in followed if one in after}
        if failed and ordered == {one: text for one, text in before.items() if one in followed and text is not None}:
            raise next(iter(failed.values()))
        for one, reason in failed.items():
            context.log.error("%s: %s", one, reason)
        cursor = json.dumps(ordered) if tables is not None else ordered[""]
        if not requests:
            return dg.SensorResult(skip_reason=_reason(looks, failed), cursor=cursor)
        new = [] if partitions_def is None else dynamic_keys(partitions_def, added)
        additions = [made.build_add_request(keys) for made, keys in new if keys]
        return dg.SensorResult(run_requests=requests, cursor=cursor, dynamic_partitions_requests=additions)

    return dg.sensor(
        name=name,
        target=target,
        job=job,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=description or f"Follows the log of {'a Delta table' if tables is None else ', '.join(tables)}.",
    )(evaluate)


@dataclass(frozen=True, slots=True)
class _Look:
    """The result of a tick for one table: its state, the runs, and the reason if there are none.

    Attributes:
        waited: An earlier tick has found the runs.
    """

    state: SensorState
    reason: str
    runs: list[RunOfTick] = field(default_factory=list)
    waited: bool = False


def _followed(
    table_uri: str | None, storage_options: Mapping[str, object] | None, tables: Mapping[str, DeltaTableResource] | None
) -> dict[str, tuple[str, Mapping[str, object]]]:
    """Name → location and storage options. A sensor of one table calls it by no name."""
    if (table_uri is None) == (tables is None) or (tables is not None and (not tables or "" in tables)):
        raise InvalidRequestError("A sensor follows one table or several", remedy="Pass table_uri, or named tables")
    if tables is None:
        assert table_uri is not None
        return {"": (table_uri, storage_options or {})}
    if storage_options is not None:
        raise InvalidRequestError("storage_options is of table_uri", remedy="Give each of the tables its own")
    return {name: (table.table_uri, table.storage_options) for name, table in tables.items()}


def _store_of(uri: str, options: Mapping[str, object]) -> object:
    """The store of a table, as a value that is equal for tables of one store. None for a local table."""
    scheme, _, place = uri.partition("://")
    store = place.partition("/")[0]
    return (scheme, store, str(sorted(options.items()))) if store else None


def _reason(looks: Mapping[str, _Look], failed: Mapping[str, DeltaError]) -> str:
    if set(looks) == {""}:
        return looks[""].reason
    reasons = {name: result.reason for name, result in looks.items() if not result.reason.startswith("Nothing new")}
    reasons |= {name: str(error) for name, error in failed.items()}
    return "\n".join(f"{name}: {reason}" for name, reason in reasons.items()) or f"Nothing new in {len(looks)} tables."


def _recreated(batch: TailBatch, uri: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"The table was recreated since version {batch.previous.version}",
        cause=f"Its id is {batch.cursor.table_id}; the cursor is of {batch.previous.table_id}",
        remedy="Reset the sensor's cursor, or build it with on_recreated='restart'",
        uri=public_uri(uri),
    )


def _touched(context: dg.SensorEvaluationContext, mapping: TouchedPartitions, batch: TailBatch) -> Touched:
    if not batch.partitions.column_names:
        raise InvalidRequestError(
            "The table is not partitioned, so its commits cannot be mapped to partitions",
            remedy="Build the sensor without partitions_def",
        )
    touched = mapping.find(batch.partitions, context.instance)
    if touched.num_outside:
        context.log.warning("%d touched partitions lie outside of the sensor's partitions", touched.num_outside)
    if touched.later:
        context.log.info("Partitions that are not there yet are requested when they are: %s", [*touched.later])
    return touched


def _runs_of(
    touched: Touched, definition: dg.PartitionsDefinition[str], batch: TailBatch, longest: int
) -> list[RunOfTick]:
    """A run for each key, or for each range of at most `longest` neighbors."""
    versions = (batch.starting_version, batch.ending_version)
    if longest == 1:
        return [RunOfTick(f"{batch.run_key}:{key}", *versions, key, key) for key in touched.keys]
    assert isinstance(definition, dg.TimeWindowPartitionsDefinition)
    ranges: list[list[str]] = []
    for key in sorted(touched.keys, key=lambda key: definition.time_window_for_partition_key(key).start.timestamp()):
        if ranges and len(ranges[-1]) < longest and definition.get_next_partition_key(ranges[-1][-1]) == key:
            ranges[-1].append(key)
        else:
            ranges.append([key])
    return [RunOfTick(f"{batch.run_key}:{keys[0]}...{keys[-1]}", *versions, keys[0], keys[-1]) for keys in ranges]


def _runs_that_waited(
    context: dg.SensorEvaluationContext, state: SensorState, mapping: TouchedPartitions | None, room: int
) -> tuple[SensorState, list[RunOfTick]]:
    """The runs that earlier ticks have left, with those of the partitions that are there by now, and the state without
    them and without what lies outside of the partitions by now.

    Args:
        room: The largest number of runs to check.

    Raises:
        InvalidRequestError: The partitions have changed since, and a key is none of theirs.
    """
    version = state.cursor.version
    about = f"{state.cursor.table_id}:{version}:waited"
    waited = [RunOfTick(f"{about}:{key}", version, version, key, key) for key in state.waiting]
    ready, later = list[RunOfTick](), list[str]()
    for number, run in enumerate([*waited, *state.left]):
        if number >= len(waited) and len(ready) >= room:
            ready += state.left[number - len(waited) :]
            break
        where = _where(run, mapping, state)
        if where == "inside":
            ready.append(run)
        elif where == "later" and run.first is not None:
            later.append(run.first)
        else:
            context.log.warning("The partition %s lies outside of the sensor's partitions by now", run.first)
    return replace(state, waiting=tuple(later), left=()), ready


def _where(run: RunOfTick, mapping: TouchedPartitions | None, state: SensorState) -> str:
    """As `TouchedPartitions.where`; all of a range is inside."""
    try:
        if mapping is None or run.first is None or run.last is None:
            places = {"inside"} if mapping is None and run.first is None else set()
        else:
            places = {mapping.where(key) for key in (run.first, run.last)}
    except InvalidRequestError:
        places = set()
    if len(places) != 1 or (run.first != run.last and places != {"inside"}):
        raise InvalidRequestError(
            f"The cursor holds a run of {run.first or 'no partition'}, which no longer fits the sensor's partitions",
            cause="They are others than those in which an earlier tick has found changes",
            remedy=f"Launch the runs in the cursor by hand, as far as they are wanted, and set it to {state.cursor}",
        )
    return places.pop()


def ensure_limits(**limits: int | None) -> None:
    """Raises InvalidRequestError: A limit is below 1."""
    for limit, value in limits.items():
        if value is not None and value < 1:
            raise InvalidRequestError(f"{limit}={value} is below 1", remedy="Pass at least 1, or None")


def are_active(max_active_runs: int | None) -> dg.SkipReason:
    """Why a tick requests nothing."""
    return dg.SkipReason(f"Of the runs that this sensor requested, {max_active_runs} are still active.")


_ACTIVE = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)


def active_runs(context: dg.SensorEvaluationContext, sensor_name: str, at_most: int) -> int:
    """How many runs of the sensor are queued or running; it counts to a limit. Another code location may have a sensor
    of the same name."""
    requested = dg.RunsFilter(tags={"dagster/sensor_name": sensor_name}, statuses=list(_ACTIVE))
    origin = context.code_location_origin
    if origin is None:
        return len(context.instance.get_run_ids(requested, limit=at_most))
    runs = (run.remote_job_origin for run in context.instance.get_runs(requested))
    own = (run for run in runs if run is None or run.location_name == origin.location_name)
    return sum(1 for _ in islice(own, at_most))


def _range(batch: TailBatch) -> str:
    return f"{batch.starting_version} to {batch.ending_version}"


def _log_gaps(context: dg.SensorEvaluationContext, batch: TailBatch) -> None:
    if batch.recreated:
        context.log.warning("The table was recreated since version %d: all of it counts as new", batch.previous.version)
    if batch.missed:
        context.log.warning("Commits after version %d are gone from the log: all counts as new", batch.previous.version)


def _is_verification_due(last_tick: float | None, now: float) -> bool:
    """Once an interval, and when the last tick is longer ago than that."""
    return last_tick is not None and int(last_tick / VERIFY_INTERVAL_S) != int(now / VERIFY_INTERVAL_S)


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


Condition = dg.AutomationCondition[dg.AssetKey | dg.AssetCheckKey]


class DeltaAutomation:
    """Automation conditions on the data versions of tables."""

    @staticmethod
    def on_new_data() -> Condition:
        """When the data version of an upstream asset has changed.

        As `dg.AutomationCondition.eager()`, but an upstream run that found nothing new starts nothing: a `@delta_asset`
        without news, a run that recovered its commit, an observation of an unchanged table. So the upstream asset is
        never executed in the same run as this one: its data version is known only when it has ended.

        The upstream must report data versions: the assets of a `DeltaLakeIOManager`, `@delta_asset`s, and tables of
        `build_delta_observations` do. For time partitions, only the latest one is considered. Of a partitioned upstream
        at least one of the partitions that belong to the target must be there; `eager()` waits for all of them.
        """
        condition = dg.AutomationCondition
        new_data = condition.any_deps_match(
            condition.data_version_changed() & ~condition.executed_with_root_target()
        ).with_label("any_deps_have_new_data")
        return (
            condition.in_latest_time_window()
            & (condition.newly_missing() | new_data).since_last_handled()
            & condition.all_deps_match(~condition.missing()).with_label("all_deps_exist")
            & ~condition.any_deps_in_progress()
            & ~condition.in_progress()
        ).with_label("on_new_data")
