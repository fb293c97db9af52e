"""Any history of a table, looked after by ourselves at any time and in any way: replay agrees with a plain-Python
model, at every version that can be loaded."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delta_orch.errors import VersionNotFoundError
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.upkeep import sidecar_reuse
from delta_orch.log.upkeep.checkpoint_writer import write_checkpoint
from delta_orch.log.upkeep.checksum_writer import compute_checksum, write_checksum
from delta_orch.log.upkeep.log_cleanup import clean_up_log
from delta_orch.protocol.actions import (
    Action,
    Add,
    CommitInfo,
    DeletionVectorDescriptor,
    DomainMetadata,
    Protocol,
    Remove,
    Txn,
)
from delta_orch.storage.memory import FILES, MemoryStore
from delta_orch.verbs.log_files import compact_log
from tests.harness.log_builder import LogBuilder
from tests.harness.log_model import LogModel, one_spelling

_NAMES = itertools.count()
_DAY_MS = 86_400_000
_PROTOCOL = Protocol(
    3, 7, ("deletionVectors", "v2Checkpoint"), ("deletionVectors", "domainMetadata", "rowTracking", "v2Checkpoint")
)

PATHS = st.sampled_from(["a", "b=1/c", "b=1/./c", "d%20e", "d e", "file:/abs/x", "/abs/x", "ü", "f", "g"])
VECTORS = st.none() | st.builds(
    DeletionVectorDescriptor, st.just("u"), st.sampled_from(["v1", "v2"]), st.just(10), st.integers(1, 99), st.just(1)
)
STRINGS = st.dictionaries(st.sampled_from(["p", "q"]), st.none() | st.sampled_from(["", "1", 'ü"']), max_size=2)
ADDS = st.builds(
    Add,
    path=PATHS,
    partition_values=STRINGS,
    size=st.integers(0, 1 << 40),
    modification_time=st.integers(0, 1 << 40),
    data_change=st.booleans(),
    stats=st.none() | st.sampled_from(['{"numRecords":3}', '{"numRecords":1,"minValues":{"p":"\\"x\\n"}}']),
    tags=st.none() | st.just({"k": 'v"'}),
    deletion_vector=VECTORS,
    base_row_id=st.none() | st.integers(0, 9),
    default_row_commit_version=st.none() | st.integers(0, 9),
    clustering_provider=st.none() | st.just("liquid"),
)
REMOVES = st.builds(
    Remove,
    path=PATHS,
    data_change=st.booleans(),
    # Far from expiring, all of them: what expires is tested by itself.
    deletion_timestamp=st.integers(4_000_000_000_000, 4_000_000_000_009),
    extended_file_metadata=st.none() | st.booleans(),
    partition_values=st.none() | STRINGS,
    size=st.none() | st.integers(0, 9),
    deletion_vector=VECTORS,
)
SMALL = st.builds(Txn, st.sampled_from(["app", "other"]), st.integers(0, 9), st.none() | st.just(5)) | st.builds(
    DomainMetadata, st.sampled_from(["d1", "d2"]), st.sampled_from(["x", "y"]), st.booleans()
)
UPKEEP = st.sampled_from(
    [None, None, "classic", "v2 json", "v2 parquet", "compact", "checksum", "clean up", "clean up later"]
)


def _one_action_per_file(actions: Sequence[Action]) -> list[Action]:
    kept: dict[Any, Action] = {}
    for action in actions:
        match action:
            case Add() | Remove():
                path = one_spelling(action.path)
                other = kept.get((Remove if isinstance(action, Add) else Add, path))
                if isinstance(other, Add | Remove) and _vector_id(other) == _vector_id(action):
                    continue  # added and removed: readers refuse it
                key: Any = (type(action), path)
            case Txn():
                key = (Txn, action.app_id)
            case DomainMetadata():
                key = (DomainMetadata, action.domain)
        kept.setdefault(key, action)
    return list(kept.values())


HISTORIES = st.lists(
    st.tuples(st.lists(ADDS | REMOVES | SMALL, max_size=6).map(_one_action_per_file), UPKEEP, st.booleans()),
    min_size=1,
    max_size=9,
)


def _look_after(log: TableLog, snapshot: Snapshot, what: str | None) -> None:
    match what:
        case "classic":
            write_checkpoint(log, snapshot, "classic")
        case "v2 json":
            write_checkpoint(log, snapshot, "v2", "json")
        case "v2 parquet":
            write_checkpoint(log, snapshot, "v2", "parquet")
        case "compact":
            compact_log(log, snapshot)
        case "checksum":
            write_checksum(log.store, snapshot.version, compute_checksum(snapshot))
        case "clean up":
            clean_up_log(log, snapshot)
        case "clean up later":
            clean_up_log(log, snapshot, now_ms=time.time_ns() // 1_000_000 + 40 * _DAY_MS)


def _described(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "txns": {app: (txn.version, txn.last_updated) for app, txn in snapshot.txn_actions.items()},
        "domains": dict(snapshot.domain_metadata),
        "files": _by_key(snapshot.files().drop_columns(["data_change"]).to_pylist(maps_as_pydicts="strict")),
        "tombstones": {
            key: (row["size"], row["deletion_timestamp"], row["partition_values"], row["extended_file_metadata"])
            for key, row in _by_key(snapshot.tombstones().to_pylist(maps_as_pydicts="strict")).items()
        },
    }


def _by_key(rows: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    keyed = {(row["path"], row["dv_id"]): row for row in rows}
    assert len(keyed) == len(rows)
    return keyed


def _vector_id(action: Add | Remove) -> str | None:
    return None if action.deletion_vector is None else action.deletion_vector.unique_id


def _add_row(a: Add) -> dict[str, Any]:
    vector = a.deletion_vector
    fields = ("storage_type", "path_or_inline_dv", "offset", "size_in_bytes", "cardinality")
    names = (
        "path", "partition_values", "size", "modification_time", "stats", "tags", "base_row_id",
        "default_row_commit_version", "clustering_provider",
    )  # fmt: skip
    return {
        **{name: getattr(a, name) for name in names},
        "dv_id": _vector_id(a),
        "deletion_vector": None if vector is None else {name: getattr(vector, name) for name in fields},
    }


def _expected(model: LogModel) -> dict[str, Any]:
    return {
        "txns": {app: (txn.version, txn.last_updated) for app, txn in model.txns.items()},
        "domains": {d: action.configuration for d, action in model.domain_metadata.items() if not action.removed},
        "files": _by_key([_add_row(a) for a in model.adds.values()]),
        "tombstones": {
            (r.path, _vector_id(r)): (r.size, r.deletion_timestamp, r.partition_values, r.extended_file_metadata)
            for r in model.tombstones.values()
        },
    }


@pytest.mark.long
@pytest.mark.parametrize("parsed", [False, True], ids=["json statistics", "parsed statistics too"])
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(HISTORIES)
def test_upkeep_changes_nothing(parsed: bool, history: list[tuple[list[Action], str | None, bool]]) -> None:
    store = MemoryStore(f"upkeep-{next(_NAMES)}")
    builder, log = LogBuilder(store), TableLog(store)
    schema = '{"type":"struct","fields":[{"name":"p","type":"string","nullable":true,"metadata":{}}]}'
    properties = {"delta.checkpoint.writeStatsAsStruct": "true"} if parsed else {}
    builder.create(schema, protocol=_PROTOCOL, configuration=properties)
    held = log.snapshot()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("delta_orch.log.upkeep.checkpoint_writer.SIDECAR_ROWS", 3)
        patch.setattr(sidecar_reuse, "_SMALL_ROWS", 2)
        for actions, upkeep, from_held in history:
            version = builder.commit(CommitInfo({"operation": "TEST"}), *actions)
            held = log.advance(held) if from_held else log.snapshot()
            assert held.version == version
            _look_after(log, held, upkeep)
            if upkeep == "clean up later":
                # Whoever has held a snapshot for a month must load it again.
                held = log.snapshot()
            assert _described(log.snapshot()) == _expected(builder.model())
            if upkeep == "checksum":
                assert log.snapshot().validate().checked
    assert _described(held) == _expected(builder.model())
    oldest = log.earliest_version()
    for version in range(len(builder.versions)):
        if version >= oldest:
            assert _described(log.snapshot(version)) == _expected(builder.model(version))
        else:
            with pytest.raises(VersionNotFoundError):
                log.snapshot(version)
    for key in [key for key in FILES if key.startswith(f"{store.root}/")]:
        del FILES[key]


def test_the_model_knows_every_field() -> None:
    add = Add("p", {}, 1, 2, True)
    assert replace(add, size=2) != add
    assert set(_add_row(add)) == {*(f for f in Add.__dataclass_fields__ if f not in ("data_change", "extra")), "dv_id"}
