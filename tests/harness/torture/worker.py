"""One process of the run: step after step, each noted before and after, so that a killed one can be gone on with."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from delta_orch import literal
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import ConflictError
from delta_orch.log.upkeep import log_cleanup
from delta_orch.log.write.commit_options import CommitOptions, CommitResult
from tests.harness.torture.plan import COMMITS, Step, plan_step

LOG_DAY_MS = 1000
"""Log cleanup counts whole days. In a run a day is a second, or nothing would ever expire."""

SAFE_DAYS = 120
"""What is being written is left alone for longer than any step takes, however busy the machine is."""

_MOST_CONFLICTS = 50
_HOURS_KEPT = 120 / 3600


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What all workers are told."""

    table_uri: str
    storage_options: Mapping[str, str] | None
    notes: Path
    seed: int


def notes_of(options: WorkerOptions, worker: int) -> Path:
    """Where a worker writes what it is about to do, and what has become of it."""
    return options.notes / f"worker-{worker}.jsonl"


def read_notes(path: Path) -> Iterator[tuple[int, str, int | None]]:
    """Number of a step, `begins`, `done` or `failed`, and the version. The last line may have been cut off."""
    if not path.exists():
        return
    for line in path.read_bytes().split(b"\n")[:-1]:
        number, event, version = json.loads(line)
        yield number, event, version


def run_worker(options: WorkerOptions, worker: int) -> None:
    """Work until the file `stop` appears. The step that was cut short by a kill is done again first, under the same
    identifier."""
    logging.getLogger("delta_orch").setLevel(logging.ERROR)
    log_cleanup._DAY_MS = LOG_DAY_MS
    log_cleanup._SAFE_DAYS = SAFE_DAYS
    table = DeltaTable(options.table_uri, options.storage_options)
    noted = list(read_notes(notes_of(options, worker)))
    number = noted[-1][0] + (noted[-1][1] != "begins") if noted else 0
    descriptor = os.open(notes_of(options, worker), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    _cut_half_line(notes_of(options, worker))
    while not (options.notes / "stop").exists():
        step = plan_step(options.seed, worker, number)
        _note(descriptor, number, "begins", None)
        try:
            version = _until_done(table, step, options.notes / "stop")
        except ConflictError:
            _note(descriptor, number, "failed", None)
        else:
            _note(descriptor, number, "done", version)
        number += 1


def _cut_half_line(path: Path) -> None:
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)


def _note(descriptor: int, number: int, event: str, version: int | None) -> None:
    os.write(descriptor, json.dumps([number, event, version]).encode() + b"\n")
    os.fsync(descriptor)


def _until_done(table: DeltaTable, step: Step, stop: Path) -> int | None:
    """What an orchestrator does: try again what may be tried again. The version, of steps that are a commit.

    A vacuum that was killed stands in a restore's way for long: at the end of the run nobody waits for it.
    """
    for _ in range(_MOST_CONFLICTS):
        try:
            return _do(table, step)
        except ConflictError as e:
            conflict = e
            if stop.exists():
                break
    raise conflict


def _do(table: DeltaTable, step: Step) -> int | None:
    match step.kind:
        case "optimize":
            table.optimize()
        case "zorder":
            table.optimize(zorder_by=["id"])
        case "purge":
            table.purge()
        case "repair":
            # Nothing is gone, whoever is at work: nothing may leave.
            table.repair()
        case "checkpoint":
            table.checkpoint()
        case "compact_log":
            version = table.version()
            if version > 1:
                table.compact_log(max(0, version - 5), version)
        case "vacuum":
            # Longer than any step takes: what others have written and not committed yet must stay.
            table.vacuum(retention_hours=_HOURS_KEPT, enforce_retention=False)
        case "cleanup_log":
            table.cleanup_log()
        case _:
            assert step.kind in COMMITS
            result = _commit(table, step)
            return None if result.skipped else result.version
    return None


def _commit(table: DeltaTable, step: Step) -> CommitResult:
    txn = (f"worker-{step.worker}", step.number)
    if step.kind == "set_property":
        return table.alter().set_properties({"torture.step": step.op_id}).commit(txn=txn, user_metadata=step.op_id)
    if step.kind == "add_column":
        name = f"c{step.worker}_{step.number}"
        return table.alter().add_column(name, "integer").commit(txn=txn, user_metadata=step.op_id)
    if step.kind == "restore":
        newest = table.version()
        if not newest:
            return table.optimize()  # there is nothing to go back to, nor to compact
        # As close as that, its files are there.
        version = max(newest - 1 - step.id_range[0] % 3, 0)
        return table.restore(version=version, txn=txn, user_metadata=step.op_id)
    where = f"day = '{step.day}' AND id >= {step.id_range[0]} AND id < {step.id_range[1]}"
    if step.kind == "delete_ids":
        return table.delete(where, txn=txn, user_metadata=step.op_id, isolation_level="Serializable")
    if step.kind == "update_ids":
        new = {"op": literal(step.op_id)}
        return table.update(new, where, txn=txn, user_metadata=step.op_id, isolation_level="Serializable")
    rows = pa.table(
        {
            "day": pa.array([day for day, _ in step.rows], pa.string()),
            "id": pa.array([number for _, number in step.rows], pa.int64()),
            "op": pa.array([step.op_id] * len(step.rows), pa.string()),
        }
    )
    if step.kind == "upsert_ids":
        keys = ["day", "id"]
        options: CommitOptions = {"txn": txn, "user_metadata": step.op_id, "isolation_level": "Serializable"}
        return table.upsert(rows, keys, schema_mode="merge", **options)
    if step.kind == "append":
        return table.append(rows, txn=txn, user_metadata=step.op_id, schema_mode="merge")
    # Serializable, so that the log's order is the order that the model goes by.
    if step.kind == "replace_day":
        where = f"day = '{step.day}'"
    dynamic = step.kind == "replace_days_of_data"
    return table.overwrite(
        rows,
        replace_where=None if dynamic else where,
        partition_overwrite_mode="dynamic" if dynamic else "static",
        txn=txn,
        user_metadata=step.op_id,
        isolation_level="Serializable",
        schema_mode="merge",
    )
