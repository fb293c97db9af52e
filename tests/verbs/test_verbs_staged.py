"""Write, audit, publish: a staged write is invisible, can be read, and is committed once, from any process."""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable, TxnId
from delta_orch.delta_table import TableSnapshot
from delta_orch.errors import (
    ConflictError,
    DeltaError,
    InvalidRequestError,
    MetadataChangedError,
    StagedWriteGoneError,
)
from delta_orch.log.files.commit_reader import Commit
from delta_orch.log.write.commit_options import CommitResult
from delta_orch.staged_write import StagedWrite
from delta_orch.testing import open_table
from tests.concurrency.conflict_matrix import (
    COMMITS,
    FIRST_WRITES,
    OPERATIONS,
    ROW_TABLES,
    ROW_VERBS,
    SHORT,
    SKIPS,
    base_files,
    new_table,
    rows_in,
)
from tests.concurrency.test_conflict_matrix import cells
from tests.families import family
from tests.harness.fault_store import FaultStore, Moment
from tests.verbs.conftest import EngineRows

Verb = Callable[..., Any]
NOT_OF_ROWS = ("set ", "add ", "drop ", "create")


def another(table: DeltaTable) -> DeltaTable:
    """The same table, as another process opens it."""
    return open_table(table.store) if table.uri.startswith("memory:") else DeltaTable(table.uri)


def reference_of(result: CommitResult) -> str:
    assert result.staged is not None and not result.skipped
    return result.staged


def published(table: DeltaTable, first: Verb, second: Verb) -> str:
    """Stage the second, run the first, publish."""
    reference = reference_of(second(another(table), stage=True))
    first(table)
    try:
        result = another(table).staged(reference).publish()
    except ConflictError as e:
        assert not e.retryable
        assert e.context["winning_version"] == table.version()
        return SHORT[type(e).__name__]
    return SKIPS if result.skipped else COMMITS


@pytest.mark.parametrize("first", ["append, txn 1", "add column"])
def test_publishing_conflicts_as_the_write_would(first: str) -> None:
    expected = cells(first, 0)
    found = {
        second: published(new_table(base_files()), OPERATIONS[first], verb)
        for second, verb in OPERATIONS.items()
        if not second.startswith(NOT_OF_ROWS)
    }
    assert found == {second: expected[second].partition(";")[0] for second in found}


@pytest.mark.long
@pytest.mark.parametrize(("first", "vectors"), [("update id = 2", True)])
def test_publishing_rows_conflicts_as_the_write_would(first: str, vectors: bool) -> None:
    expected = cells(first, 2 + list(ROW_TABLES.values()).index(vectors))
    for second, verb in ROW_VERBS.items():
        table = new_table(base_files(vectors))
        outcome = published(table, ROW_VERBS[first], verb)
        assert outcome == expected[second].partition(";")[0], second
        serial = new_table(base_files(vectors))
        for name in (first, second)[: 2 if outcome == COMMITS else 1]:
            ROW_VERBS[name](serial)
        # A blind append may have moved.
        assert rows_in(table) == rows_in(serial) or "append" in (first, second), second


@pytest.mark.parametrize("first", FIRST_WRITES)
def test_a_staged_creation_joins_or_conflicts_as_the_write_would(first: str) -> None:
    expected = cells(first, 1)
    for second, verb in FIRST_WRITES.items():
        if not second.startswith(NOT_OF_ROWS) and second != "append, mapped columns":
            assert published(new_table(), FIRST_WRITES[first], verb) == expected[second], second


ROWS = pa.table({"dä-y": ["ä %", None], "id": pa.array([2, 9], pa.int64()), "x.y": ["staged", "staged"]})
BASE = pa.table(
    {"dä-y": ["ä %", "ä %", None, "b"], "id": pa.array([1, 2, 2, 3], pa.int64()), "x.y": ["old", None, "old", "old"]}
)
KINDS: dict[str, dict[str, str]] = {
    "vectors, feed": {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"},
    "mapped, tracked": {
        "delta.columnMapping.mode": "name",
        "delta.enableRowTracking": "true",
        "delta.enableInCommitTimestamps": "true",
    },
}
VERBS: dict[str, Verb] = {
    "append": lambda t, data, **o: t.append(data(ROWS), **o),
    "overwrite": lambda t, data, **o: t.overwrite(data(ROWS), **o),
    "replace": lambda t, data, **o: t.overwrite(
        data(ROWS.filter(pa.compute.field("dä-y") == "ä %")), replace_where="`dä-y` = 'ä %'", **o
    ),
    "dynamic": lambda t, data, **o: t.overwrite(data(ROWS), partition_overwrite_mode="dynamic", **o),
    "delete": lambda t, data, **o: t.delete("id >= 2", **o),
    "update": lambda t, data, **o: t.update({"`x.y`": "'new'"}, "id = 2", **o),
    "upsert": lambda t, data, **o: t.upsert(data(ROWS), ["id", "dä-y"], **o),
    "create_or_replace": lambda t, data, **o: t.create_or_replace(
        data=data(ROWS), partition_by=["dä-y"], properties=KINDS["vectors, feed"], **o
    ),
    "schema": lambda t, data, **o: t.append(
        data(ROWS.append_column("more", pa.array([{"a": 1}, None]))), schema_mode="merge", **o
    ),
}


@family(
    ("verb", "kind"),
    [
        *((verb, "vectors, feed") for verb in VERBS),
        *((verb, "mapped, tracked") for verb in ("upsert", "schema", "dynamic")),
    ],
    every=5,
)
def test_what_is_staged_is_what_is_published(tmp_path: Path, rows: EngineRows, kind: str, verb: str) -> None:
    """The staged version has the rows that the write would have left; nobody sees them before they are published."""
    direct, table = DeltaTable(tmp_path / "direct"), DeltaTable(tmp_path / "staged")
    for one in (direct, table):
        one.append(BASE, partition_by=["dä-y"], properties=KINDS[kind])
    before = rows.pylist(table)
    reference = reference_of(VERBS[verb](table, rows.data, stage=True, user_metadata="why"))
    assert VERBS[verb](direct, rows.data).version == 1
    assert rows.pylist(another(table)) == before and another(table).version() == 0
    staged = another(table).staged(reference)
    assert rows.pylist(staged.snapshot()) == rows.pylist(direct)
    assert staged.snapshot().version == 1 and staged.published_version() is None
    assert [one.reference for one in table.staged_writes()] == [reference]
    assert staged.publish().version == 1
    assert rows.pylist(table) == rows.pylist(direct)
    told, wanted = (
        one.changes(starting_version=1).to_arrow().drop_columns(["_commit_timestamp"]).to_pylist()
        for one in (table, direct)
    )
    assert sorted(map(str, told)) == sorted(map(str, wanted))
    assert table.history(1)[0].user_metadata == "why"
    assert not table.fsck().problems
    # Again, from another process: there is one commit.
    assert another(table).staged(reference).publish().version == 1
    assert staged.published_version() == 1 and table.version() == 1


def test_nothing_remains_of_what_is_discarded(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(BASE, properties={"delta.enableDeletionVectors": "true"})
    live = {path for path in tmp_path.rglob("*.*") if path.is_file() and "_delta_log" not in path.parts}
    discarded = reference_of(table.upsert(ROWS, ["id"], stage=True))
    forgotten = reference_of(table.append(ROWS, stage=True))
    staged = table.staged(discarded)
    staged.discard()
    staged.discard()
    for late in (staged.publish, staged.snapshot, lambda: table.staged(discarded)):
        with pytest.raises(StagedWriteGoneError):
            late()
    # A write that waits is not older than the retention.
    table.vacuum()
    assert table.staged(forgotten).snapshot().scan().to_arrow().num_rows == BASE.num_rows + ROWS.num_rows
    table.vacuum(0, enforce_retention=False)
    assert {p for p in tmp_path.rglob("*.*") if p.is_file() and "_delta_log" not in p.parts} == live
    assert table.staged_writes() == []
    assert sorted(table.snapshot().scan().to_arrow()["id"].to_pylist()) == [1, 2, 2, 3]


def test_a_write_whose_files_are_gone_or_too_old_is_not_published(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(BASE)
    first, second, done = (reference_of(table.append(ROWS, stage=True)) for _ in range(3))
    assert table.staged(done).publish().version == 1
    for path in (tmp_path / "t").glob("*.parquet"):
        path.unlink()
    with pytest.raises(StagedWriteGoneError, match="files are gone"):
        table.staged(first).publish()
    # What was published stays so, whatever became of its files since.
    assert table.staged(done).publish().version == 1
    reference = tmp_path / "t" / "_delta_orch" / "staged" / f"{second}.json"
    staged_ms = table.staged(second).staged_ms
    week_ago = reference.read_text().replace(str(staged_ms), str(staged_ms - 8 * 24 * 3_600_000))
    reference.write_text(week_ago)
    with pytest.raises(StagedWriteGoneError, match="retention"):
        table.staged(second).publish()
    assert table.version() == 1


def test_a_staged_write_belongs_to_its_table(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(BASE)
    staged = table.staged(reference_of(table.append(ROWS, stage=True)))
    with pytest.raises(MetadataChangedError):
        staged.snapshot().append(ROWS)
    with pytest.raises(MetadataChangedError):
        staged.snapshot().delete()
    for path in (tmp_path / "t" / "_delta_log").iterdir():
        path.unlink()
    for late in (staged.publish, staged.snapshot):
        with pytest.raises(MetadataChangedError, match="another table"):
            late()
    DeltaTable(tmp_path / "t").append(BASE)
    with pytest.raises(MetadataChangedError, match="another table"):
        staged.publish()
    for wrong in ("../../etc/passwd", "", "a b", 3):
        with pytest.raises(InvalidRequestError):
            table.staged(wrong)  # type: ignore[arg-type]  # on purpose


def test_what_a_stranger_has_staged_ends_in_our_errors(tmp_path: Path) -> None:
    """Bytes of Arrow that are wrong took the process with them; values of other types ended in errors of Python."""
    chance = random.Random(7)
    table = DeltaTable(tmp_path / "t")
    table.append(BASE, properties={"delta.enableDeletionVectors": "true"})
    reference = reference_of(table.upsert(ROWS, ["id"], stage=True, txn=TxnId("mine", 1)))
    (file,) = tmp_path.rglob(f"{reference}.json")
    good = json.loads(file.read_bytes())

    def ensure_refused(content: dict[str, Any]) -> None:
        file.write_text(json.dumps(content))
        assert table.staged_writes() == []
        with pytest.raises(InvalidRequestError, match="cannot be read"):
            table.staged(reference)

    for name in set(good) - {"format"}:
        for odd in (1.5, [1], {"a": 1}):
            ensure_refused({**good, name: odd})
    for group, name in [("provenance", name) for name in good["provenance"]] + [("txns", n) for n in good["txns"][0]]:
        inner = good[group][0] if group == "txns" else good[group]
        changed = {**inner, name: 1.5}
        ensure_refused({**good, group: [changed] if group == "txns" else changed})
    for text in ("my_function(id) = 1", "id IN (SELECT 1)", "raise_error('x') IS NULL", "explode(array(id)) = 1"):
        file.write_text(json.dumps({**good, "reads": {**good["reads"], "predicates": [f"id = 1 OR {text}"]}}))
        with pytest.raises(InvalidRequestError):
            table.staged(reference)
    for _ in range(300):
        packed = bytearray(base64.b64decode(good["adds"][0]))
        for _ in range(3):
            packed[chance.randrange(len(packed))] = chance.randrange(256)
        file.write_text(json.dumps({**good, "adds": [base64.b64encode(packed).decode()]}))
        with suppress(DeltaError):
            table.staged(reference).snapshot().scan().to_arrow()
    file.write_text(json.dumps(good))
    assert table.staged(reference).publish().version == 1


def test_writes_from_one_version_stay_so(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(BASE)
    reference = reference_of(table.snapshot().append(ROWS, stage=True))
    table.append(ROWS)
    assert table.staged(reference).snapshot().scan().to_arrow().num_rows == 6
    with pytest.raises(ConflictError):
        table.staged(reference).publish()
    assert table.version() == 1


def test_what_is_recorded_is_not_staged_and_not_published(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    txn = TxnId("job", 1)
    one, two = (reference_of(table.append(ROWS, stage=True, txn=txn)) for _ in range(2))
    assert table.staged(one).publish().version == 0
    again = table.staged(two).publish()
    assert again.skipped and again.skipped_txns == (txn,)
    late = table.append(ROWS, stage=True, txn=txn)
    assert late.skipped and late.staged is None
    assert table.snapshot().scan().to_arrow().num_rows == 2


def test_what_cannot_be_staged_is_refused(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    with pytest.raises(InvalidRequestError, match="CREATE TABLE"):
        table.create(BASE.schema, stage=True)
    table.append(BASE)
    for refused in (
        lambda: table.alter().set_properties({"a": "b"}).commit(stage=True),
        lambda: table.restore(0, stage=True),
        lambda: table.append(ROWS, stage=True, dry_run=True),
    ):
        with pytest.raises(InvalidRequestError):
            refused()
    assert table.version() == 0 and table.staged_writes() == []


def test_an_answer_that_is_lost_is_looked_up(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(BASE)
    reference = reference_of(table.append(ROWS, stage=True))
    store = FaultStore(table.store)
    store.at(Moment.COMMIT_PUT, "after", do=store.lose_answer)
    # Each finds its own commit: the one that got no answer, and the one after it.
    for publisher in (open_table(store), table):
        assert publisher.staged(reference).publish().version == 1
    assert table.version() == 1


KILLED = """
import os, sys
from delta_orch import DeltaTable
from delta_orch.storage.local import LocalStore
import pyarrow as pa
uri, moment = sys.argv[1:]
table = DeltaTable(uri)
def die(self, *a, **k):
    os._exit(9)
if moment == "before the reference":
    LocalStore.stage = die
reference = table.upsert(pa.table({"id": [2, 9], "v": ["s", "s"]}), ["id"], stage=True).staged
print(reference, flush=True)
if moment == "staged":
    os._exit(9)
if moment == "before the commit":
    LocalStore.stage = die
staged = table.staged(reference)
staged.publish()
os._exit(9)
"""


@pytest.mark.parametrize("moment", ["before the reference", "after the commit"])
def test_kills_lose_nothing(tmp_path: Path, moment: str) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": [1, 2], "v": ["o", "o"]}), properties={"delta.enableDeletionVectors": "true"})
    run = subprocess.run(
        [sys.executable, "-c", KILLED, table.uri, moment], capture_output=True, text=True, env=dict(os.environ)
    )
    assert run.returncode == 9, run.stderr
    assert [one.reference for one in table.staged_writes()] == run.stdout.split()
    is_done = moment == "after the commit"
    assert table.version() == int(is_done)
    for _ in range(2):
        for one in table.staged_writes():
            assert one.publish().version == 1
    expected = [(1, "o"), (2, "o")] if moment == "before the reference" else [(1, "o"), (2, "s"), (9, "s")]
    read = table.snapshot().scan().to_arrow()
    assert sorted(zip(*read.to_pydict().values(), strict=True)) == expected
    time.sleep(0.01)
    table.vacuum(0, enforce_retention=False)
    kept = {
        str(p.relative_to(tmp_path / "t")) for p in (tmp_path / "t").rglob("*.parquet") if "_delta_log" not in p.parts
    }
    assert kept == set(table.snapshot().files(["path"])["path"].to_pylist())
    assert not list((tmp_path / "t").glob("_delta_orch/staged/*"))


@pytest.mark.parametrize("where", [None, "p = 'a'"])
def test_what_an_audit_saw_of_the_whole_table_is_what_is_published(tmp_path: Path, where: str | None) -> None:
    table = DeltaTable(tmp_path / "t")
    rows = pa.table({"id": [2], "p": ["a"]})
    table.append(pa.table({"id": [1], "p": ["a"]}), partition_by=["p"])

    def stage() -> StagedWrite[TableSnapshot]:
        write = table.append if where is None else partial(table.overwrite, replace_where=where)
        reference = write(rows, stage=True).staged
        assert reference is not None
        return table.staged(reference)

    alone = stage().publish(if_unchanged=True)
    late = stage()
    DeltaTable(table.uri).append(pa.table({"id": [2], "p": ["b"]}))
    version = table.version()
    with pytest.raises(ConflictError):
        late.publish(if_unchanged=True)
    assert (alone.version, table.version()) == (1, version)


def test_a_write_that_looks_at_what_came_between_is_refused_or_seen(tmp_path: Path) -> None:
    """It is shown each commit once, its own never. Whoever removes such rows from a version before it conflicts, though
    a blind append would have gone unseen."""
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"id": [1, 2]}))
    refused, late, delete = (
        table.staged(reference)
        for reference in (
            table.append(pa.table({"id": [3]}), stage=True).staged,
            table.append(pa.table({"id": [4]}), stage=True).staged,
            table.delete("id >= 2", stage=True).staged,
        )
        if reference is not None
    )
    other = DeltaTable(table.uri).append(pa.table({"id": [5]}))
    seen = []

    def refuse(commit: Commit) -> None:
        raise ValueError(commit.version)

    def see(commit: Commit) -> None:
        seen.append(commit.version)

    with pytest.raises(ValueError, match=str(other.version)):
        refused.publish(look=refuse)
    assert table.version() == other.version
    published = late.publish(look=see)
    assert (late.publish(look=see).version, seen) == (published.version, [other.version] * 2)
    with pytest.raises(ConflictError):
        delete.publish()
