"""Any history of a table: replay agrees with a plain-Python model, whatever checkpoints lie in between, and a snapshot
that was advanced is the same as one loaded fresh."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from delta_orch.protocol.actions import (
    Action,
    Add,
    CommitInfo,
    DeletionVectorDescriptor,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Txn,
)
from delta_orch.storage.memory import MemoryStore
from delta_orch.testing import open_table
from tests.harness.log_builder import LogBuilder
from tests.harness.log_model import LogModel, one_spelling
from tests.harness.results import Snapshot
from tests.harness.table_builder import read_anew

_NAMES = itertools.count()

PATHS = st.sampled_from(
    [
        "a", "./a", "%61", "b=1/c", "b=1//c", "b%3D1/x/../c", "d%20e", "d e", "file:/abs/x", "file:///abs/x", "/abs/x",
        "/abs/./x", "s3://bucket/y", "s3://bucket//y", "ü", "%C3%BC",
    ]
)  # fmt: skip
VECTORS = st.none() | st.builds(
    DeletionVectorDescriptor,
    st.sampled_from(["u", "i"]),
    st.sampled_from(["v1", "v2"]),
    st.just(10),
    st.integers(1, 5),
    st.none() | st.integers(0, 3),
)
STRINGS = st.dictionaries(st.sampled_from(["p", "q"]), st.none() | st.sampled_from(["", "1", "ü"]), max_size=2)
STATS = st.none() | st.sampled_from(['{"numRecords":3}', '{"numRecords":1,"minValues":{"p":"\\"x\\n"}}'])
ADDS = st.builds(
    Add,
    path=PATHS,
    partition_values=STRINGS,
    size=st.integers(0, 1 << 60),
    modification_time=st.integers(0, 1 << 40),
    data_change=st.booleans(),
    stats=STATS,
    tags=st.none() | STRINGS.map(lambda tags: {k: v or "" for k, v in tags.items()}),
    deletion_vector=VECTORS,
    base_row_id=st.none() | st.integers(0, 1 << 40),
)
REMOVES = st.builds(
    Remove,
    path=PATHS,
    data_change=st.booleans(),
    deletion_timestamp=st.none() | st.integers(0, 1 << 40),
    partition_values=st.none() | STRINGS,
    size=st.none() | st.integers(0, 1 << 60),
    deletion_vector=VECTORS,
)
SMALL = st.one_of(
    st.builds(Txn, st.sampled_from(["app", "other"]), st.integers(0, 9), st.none()),
    st.builds(DomainMetadata, st.sampled_from(["d1", "d2"]), st.sampled_from(["x", "y"]), st.booleans()),
    st.builds(Protocol, st.just(1), st.integers(1, 6)),
    st.builds(
        Metadata, st.just("table"), st.just('{"type":"struct","fields":[]}'), configuration=STRINGS.map(
            lambda values: {k: v for k, v in values.items() if v is not None}
        ),
    ),
)  # fmt: skip


def _one_action_per_file(actions: Sequence[Action]) -> list[Action]:
    """ "It is illegal for the same path to occur twice within each set of add or remove actions" of a commit."""
    model, kept = set(), []
    for action in actions:
        kind = type(action)
        if isinstance(action, Add | Remove):
            path = one_spelling(action.path)
            vector = action.deletion_vector
            file = (path, vector and vector.unique_id)
            if file in model:
                continue  # added and removed: readers refuse it
            key: Any = (kind, path)
            if key not in model:
                model.add(file)
        elif isinstance(action, Txn):
            key = (kind, action.app_id)
        elif isinstance(action, DomainMetadata):
            key = (kind, action.domain)
        else:
            key = kind
        if key not in model:
            model.add(key)
            kept.append(action)
    return kept


COMMITS = st.lists(ADDS | REMOVES | SMALL, max_size=6).map(_one_action_per_file)
CHECKPOINTS = st.sampled_from(
    [None, None, "one file", "small row groups", "multi-part", "V2", "V2 JSON", "V2 inside", "V2 classic name"]
)
# Few names and kinds, so that much happens to each thing.
CROWDED_PATHS = st.sampled_from(["a", "./a", "/x", "file:/x"])
FILES = st.builds(Add, CROWDED_PATHS, st.just({}), st.integers(0, 9), st.just(0), st.booleans()) | st.builds(
    Remove, CROWDED_PATHS, st.booleans()
)
DOMAINS = st.builds(DomainMetadata, st.sampled_from(["d1", "d2"]), st.sampled_from(["x", "y"]), st.booleans())
TXNS = st.builds(Txn, st.just("app"), st.integers(0, 9))
FEW_CHECKPOINTS = st.integers(0, 5).flatmap(lambda n: CHECKPOINTS if n == 0 else st.none())


def _crowded(actions: st.SearchStrategy[Action]) -> st.SearchStrategy[list[tuple[list[Action], str | None]]]:
    commits = st.lists(actions, min_size=1, max_size=3).map(_one_action_per_file)
    return st.lists(st.tuples(commits, FEW_CHECKPOINTS), min_size=4, max_size=8)


# The same file with one vector and with another, the same vector of two files.
FILES_WITH_VECTORS = st.builds(
    Add, CROWDED_PATHS, st.just({}), st.integers(0, 9), st.just(0), st.booleans(), deletion_vector=VECTORS
) | st.builds(Remove, CROWDED_PATHS, st.booleans(), deletion_vector=VECTORS)
CROWDED_HISTORIES = (
    _crowded(FILES) | _crowded(DOMAINS) | _crowded(FILES | DOMAINS | TXNS) | _crowded(FILES_WITH_VECTORS)
)
COMPACTIONS = st.lists(
    st.tuples(
        st.integers(0, 8),
        st.integers(1, 4),
        st.sampled_from(["good", "removed domains left out", "not reconciled", "good", "garbage", "empty"]),
    ),
    min_size=1,
    max_size=5,
)
HISTORIES = st.lists(st.tuples(COMMITS, CHECKPOINTS), min_size=1, max_size=8)


def _write_checkpoint(builder: LogBuilder, version: int, kind: str) -> None:
    match kind:
        case "one file":
            builder.checkpoint(version)
        case "small row groups":
            builder.checkpoint(version, row_group_rows=2)
        case "multi-part":
            builder.checkpoint(version, parts=3)
        case "V2":
            builder.checkpoint_v2(version)
        case "V2 JSON":
            builder.checkpoint_v2(version, file_format="json")
        case "V2 inside":
            builder.checkpoint_v2(version, file_format="json", sidecars=0)
        case "V2 classic name":
            builder.checkpoint_v2(version, classic_name=True)


def _write_compaction(builder: LogBuilder, start: int, length: int, kind: str) -> None:
    start %= len(builder.versions) - 1
    end = min(start + length, len(builder.versions) - 1)
    builder.compact(
        start, end, keep_removed_domains=kind != "removed domains left out", reconcile=kind != "not reconciled"
    )
    path = f"_delta_log/{start:020d}.{end:020d}.compacted.json"
    if kind == "garbage":
        builder.store.put(path, builder.store.read_bytes(path)[:-2] + b"\xff")
    elif kind == "empty":
        builder.store.put(path, b"")


def _described(snapshot: Snapshot) -> dict[str, Any]:
    files = snapshot.files()
    assert files.num_rows == snapshot.num_files
    assert sum(files["size"].to_pylist()) == snapshot.size_bytes
    streamed = [row for piece in snapshot.iter_files() for row in piece.to_pylist(maps_as_pydicts="strict")]
    assert _by_key(streamed) == _by_key(files.to_pylist(maps_as_pydicts="strict"))
    names = ["path", "dv_id", "deletion_timestamp"]
    streamed = [row for piece in snapshot.iter_tombstones(names) for row in piece.to_pylist()]
    assert _by_key(streamed) == _by_key(snapshot.tombstones(names).to_pylist())
    return {
        "version": snapshot.version,
        "protocol": snapshot.protocol,
        "metadata": snapshot.metadata,
        "txns": dict(snapshot.txns),
        "domains": dict(snapshot.domain_metadata),
        "files": _by_key(files.to_pylist(maps_as_pydicts="strict")),
        "tombstones": _by_key(snapshot.tombstones().to_pylist(maps_as_pydicts="strict")),
    }


def _by_key(rows: list[dict[str, Any]]) -> dict[tuple[str, str | None], dict[str, Any]]:
    keyed = {(row["path"], row["dv_id"]): row for row in rows}
    assert len(keyed) == len(rows)
    return keyed


def _expected(model: LogModel, version: int) -> dict[str, Any]:
    return {
        "version": version,
        "protocol": model.protocol,
        "metadata": model.metadata,
        "txns": {app: txn.version for app, txn in model.txns.items()},
        "domains": {d: action.configuration for d, action in model.domain_metadata.items() if not action.removed},
        "files": _by_key([_add_row(a) for a in model.adds.values()]),
        "tombstones": _by_key([_remove_row(r) for r in model.tombstones.values()]),
    }


def _vector_row(action: Add | Remove) -> dict[str, Any]:
    vector = action.deletion_vector
    fields = ("storage_type", "path_or_inline_dv", "offset", "size_in_bytes", "cardinality")
    return {
        "dv_id": None if vector is None else vector.unique_id,
        "deletion_vector": None if vector is None else {name: getattr(vector, name) for name in fields},
    }


def _add_row(a: Add) -> dict[str, Any]:
    names = (
        "path", "partition_values", "size", "modification_time", "data_change", "stats", "tags", "base_row_id",
        "default_row_commit_version", "clustering_provider",
    )  # fmt: skip
    return {**{name: getattr(a, name) for name in names}, **_vector_row(a)}


def _remove_row(r: Remove) -> dict[str, Any]:
    names = (
        "path", "deletion_timestamp", "data_change", "extended_file_metadata", "partition_values", "size", "stats",
        "tags", "base_row_id", "default_row_commit_version",
    )  # fmt: skip
    return {**{name: getattr(r, name) for name in names}, **_vector_row(r)}


@settings(max_examples=18, deadline=None)
@given(HISTORIES, st.booleans(), st.booleans())
def test_replay_equals_the_model_and_advance_equals_fresh(
    history: list[tuple[list[Action], str | None]], use_between: bool, clean_up: bool
) -> None:
    builder = LogBuilder(MemoryStore(f"replay-{next(_NAMES)}"))
    table = open_table(builder.store)
    builder.create()
    advanced = table.snapshot()
    for actions, checkpoint in history:
        version = builder.commit(CommitInfo({"operation": "TEST"}), *actions)
        if checkpoint is not None:
            _write_checkpoint(builder, version, checkpoint)
        advanced = table.snapshot()
        if use_between:
            # Decodes columns, which the next snapshot shares.
            advanced.files(["path", "size"])
    version = advanced.version
    newest_checkpoint = max((v for v, (_, kind) in enumerate(history, 1) if kind is not None), default=None)
    if clean_up and newest_checkpoint is not None:
        builder.delete_commits(newest_checkpoint)
    fresh = read_anew(table)
    assert _described(fresh) == _described(advanced) == _expected(builder.model(), version)


@settings(max_examples=5, deadline=None)
@given(HISTORIES)
def test_every_version_can_be_loaded(history: list[tuple[list[Action], str | None]]) -> None:
    builder = LogBuilder(MemoryStore(f"versions-{next(_NAMES)}"))
    builder.create()
    for actions, checkpoint in history:
        version = builder.commit(CommitInfo({"operation": "TEST"}), *actions)
        if checkpoint is not None:
            _write_checkpoint(builder, version, checkpoint)
    table = open_table(builder.store)
    for version in range(len(builder.versions)):
        assert _described(table.snapshot(version)) == _expected(builder.model(version), version)


@settings(max_examples=25, deadline=None)
@given(CROWDED_HISTORIES, COMPACTIONS, st.booleans())
def test_any_mix_of_checkpoints_and_compactions_says_what_the_commits_say(
    history: list[tuple[list[Action], str | None]], compactions: list[tuple[int, int, str]], clean_up: bool
) -> None:
    builder = LogBuilder(MemoryStore(f"compactions-{next(_NAMES)}"))
    builder.create(protocol=Protocol(1, 7, None, ("domainMetadata",)))
    newest_checkpoint = None
    for actions, checkpoint in history:
        version = builder.commit(CommitInfo({"operation": "TEST"}), *(a for a in actions if type(a) is not Protocol))
        if checkpoint is not None:
            _write_checkpoint(builder, version, checkpoint)
            newest_checkpoint = version
    for start, length, kind in compactions:
        _write_compaction(builder, start, length, kind)
    if clean_up and newest_checkpoint is not None:
        builder.delete_commits(newest_checkpoint)
    table = open_table(builder.store)
    for version in range((newest_checkpoint or 0) if clean_up else 0, len(builder.versions)):
        assert _described(table.snapshot(version)) == _expected(builder.model(version), version)
