"""Outputs of steps: where their tables are, and for those of ops which version a run reads back.

The outputs of all runs of a job are versions of one table. A run commits its own as a unit that names its root run, and
its steps read what that commit wrote. So runs at the same time do not see each other's values, and what older runs
wrote stays readable until vacuum and log cleanup remove it, as with any older version.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import dagster as dg

from delta_orch.dagster.run import DagsterRun, op_unit
from delta_orch.dagster.settings import AssetSettings
from delta_orch.delta_table import DeltaTable, TableSnapshot
from delta_orch.errors import ConflictError, InvalidRequestError, VersionNotFoundError
from delta_orch.log.files.commit_reader import user_metadata_of
from delta_orch.log.read.replay import Tail
from delta_orch.pipeline.unit import Attempt, Unit, find_txn_commit
from delta_orch.protocol.paths import LOG_DIRECTORY

Place = tuple[str, ...]
"""The folders of a table below the root."""


def table_place(context: dg.InputContext | dg.OutputContext | None, settings: AssetSettings) -> Place:
    """The folders of a table below the root.

    Raises:
        InvalidRequestError: A part could lead out of the root, or into the log of a table.
    """
    if context is None:
        raise InvalidRequestError(
            "The input is neither an asset nor the output of another step",
            remedy="Load it from an asset, or read the table through a DeltaTableResource",
        )
    if context.has_asset_key:
        place = asset_place(context.asset_key, settings.schema)
    else:
        place = (*((settings.schema,) if settings.schema else ()), *_place_of_output(context, settings))
    for part in place:
        if part in ("", ".", "..", LOG_DIRECTORY) or "/" in part or "\\" in part:
            raise InvalidRequestError(
                f"{part!r} cannot be the name of a folder",
                cause="Parts of the asset key, or the metadata 'schema' and 'table', become folders of the table",
                remedy="Use another name",
            )
    return place


def asset_place(key: dg.AssetKey, schema: str | None) -> Place:
    """The folders of an asset's table: those of its key, or `schema` and the last part of the key."""
    return (*((schema,) if schema else tuple(key.path[:-1])), key.path[-1])


def parse_key(text: str) -> dg.AssetKey:
    """The asset key whose parts are separated by slashes.

    Raises:
        InvalidRequestError: A part of it is empty.
    """
    parts = text.split("/")
    if not all(part.strip() for part in parts):
        raise InvalidRequestError(
            f"The asset key {text!r} has an empty part", remedy="Write names, with a slash between two: lake/events"
        )
    return dg.AssetKey(parts)


def _place_of_output(context: dg.InputContext | dg.OutputContext, settings: AssetSettings) -> list[str]:
    """The folders of an op's output. Two jobs, ops or mapped steps never share one."""
    assert isinstance(context, dg.OutputContext)
    # The step `load[key]` is the op `load`, mapped; an op that maps others has a key for each output.
    node, _, step_key = context.step_key.partition("[")
    keys = (step_key.rstrip("]"), context.mapping_key)
    place = (settings.table,) if settings.table else (context.job_name, node, context.name)
    return [part for part in (*place, *keys) if part]


def output_parts(context: dg.OutputContext) -> tuple[str, ...]:
    """The name of an output in commits: an asset's key, or job, step, output and mapping key."""
    if context.has_asset_key:
        return tuple(context.asset_key.path)
    parts = (context.job_name, context.step_key, context.name, context.mapping_key)
    return tuple(part for part in parts if part)


def shares_folder(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether one path is the other or lies in it."""
    shorter = min(len(one), len(other))
    return tuple(one[:shorter]) == tuple(other[:shorter])


T = TypeVar("T")

_ATTEMPTS = 30


def unit_of(output: dg.OutputContext, run: DagsterRun) -> Unit:
    """The unit of an output of an op: one a root run."""
    parts = (output.job_name, output.step_key, *(() if output.name == "result" else (output.name,)))
    return op_unit(parts, output.mapping_key, run)


def op_attempt(output: dg.OutputContext, run: DagsterRun, *, exactly_once: bool) -> Attempt:
    """The attempt at an output of an op. It is recorded in any case, as its run reads back what it wrote."""
    attempt = run.attempt([unit_of(output, run)])
    # Every attempt writes, and the last one is what the run reads.
    return attempt if exactly_once else replace(attempt, relation=lambda recorded, order: "earlier")


def own_snapshot(table: DeltaTable, unit: Unit) -> TableSnapshot | None:
    """The table as of the last commit of a unit; None where there is none.

    Raises:
        VersionNotFoundError: That commit was cleaned up.
    """
    if not table.exists() or table.last_txn(unit.name) is None:
        return None
    commit = find_txn_commit(table, unit.name)
    if commit is None:
        raise VersionNotFoundError(
            f"The commit of {unit.name} is gone from the log of {table.uri}",
            cause="The log was cleaned up (delta.logRetentionDuration) since the run wrote its output",
            remedy="Launch a new run instead of re-executing this one",
            uri=table.uri,
        )
    return table.snapshot(version=commit.version)


def written_rows(table: DeltaTable, after: TableSnapshot) -> TableSnapshot:
    """The rows that the commit of an op was given, as a table.

    Raises:
        InvalidRequestError: They were merged, and are not to be told from others.
    """
    commit = table.log.read_commit(after.version)
    if user_metadata_of(commit.commit_info).get("write") in ("merge", "cdc"):
        raise InvalidRequestError(
            f"Version {after.version} of {table.uri} does not tell which rows the upstream op returned",
            cause="The op has merged them into the rows of older runs",
            remedy="Annotate the input as DeltaSnapshot for the whole table as the op left it, or give the op's output "
            'the metadata {"write": "overwrite"}',
            uri=table.uri,
        )
    if commit.removes.num_rows:
        return after
    # It has added to what was there, if anything was.
    return TableSnapshot(after.store, after.segment, None, Tail(after.protocol, after.metadata).fold(commit.files))


def repeat_conflicts(write: Callable[[], T]) -> T:
    """Repeat a write that other runs of the job overtake: it replaces a whole that none of them reads."""
    for attempt in range(_ATTEMPTS):
        try:
            return write()
        except ConflictError:
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(min(1.0, 0.05 * (attempt + 1)))
    raise AssertionError
