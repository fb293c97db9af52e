"""From times to versions: which versions count, which clock tells the time, and what is said outside their range."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from delta_orch import DeltaTable
from delta_orch.cli.main import run
from delta_orch.errors import ProtocolViolationError, TimestampOutOfRangeError
from delta_orch.log.read.table_log import TableLog
from delta_orch.protocol.actions import Add, CommitInfo, Metadata, Protocol
from delta_orch.protocol.paths import commit_path
from delta_orch.storage.local import LocalStore
from tests.harness.log_builder import LogBuilder

ENABLED = {"delta.enableInCommitTimestamps": "true"}
SCHEMA = '{"type":"struct","fields":[]}'


@pytest.fixture
def builder(tmp_path: Path) -> LogBuilder:
    return LogBuilder(LocalStore(tmp_path / "table"))


def _root(builder: LogBuilder) -> Path:
    return Path(str(builder.store.root))


def _date(builder: LogBuilder, *times_ms: int) -> None:
    for version, ms in enumerate(times_ms):
        os.utime(_root(builder) / commit_path(version), ns=(ms * 1_000_000, ms * 1_000_000))


def _commit(builder: LogBuilder, in_commit_ms: int | None = None, *more: Any) -> None:
    info = {"operation": "WRITE"} if in_commit_ms is None else {"operation": "WRITE", "inCommitTimestamp": in_commit_ms}
    builder.commit(CommitInfo(info), *more, Add(f"f{len(builder.versions)}", {}, 1, 0, True))


def _enable(builder: LogBuilder, in_commit_ms: int, **properties: str) -> None:
    configuration = {**ENABLED, **{f"delta.{name}": value for name, value in properties.items()}}
    protocol = Protocol(1, 7, None, ("inCommitTimestamp",))
    _commit(builder, in_commit_ms, protocol, Metadata("table", SCHEMA, configuration=configuration))


def _found(builder: LogBuilder, *times_ms: int) -> list[int]:
    log = TableLog(builder.store)
    return [log.snapshot(timestamp_ms=ms).version for ms in times_ms]


def _ensure_out_of_range(builder: LogBuilder, ms: int, message: str) -> dict[str, Any]:
    with pytest.raises(TimestampOutOfRangeError, match=message) as caught:
        TableLog(builder.store).snapshot(timestamp_ms=ms)
    return caught.value.context


def test_history_tells_the_times_that_lead_to_its_versions(builder: LogBuilder) -> None:
    builder.create()
    for _ in range(6):
        _commit(builder)
    _date(builder, 5000, 9000, 9000, 2000, 9000, 9010, 1)
    entries = list(reversed(TableLog(builder.store).history()))
    assert [e.timestamp_ms for e in entries] == [5000, 9000, 9001, 9002, 9003, 9010, 9011]
    assert [e.file_time_ms for e in entries] == [5000, 9000, 9000, 2000, 9000, 9010, 1]
    assert {e.in_commit_timestamp_ms for e in entries} == {None}
    assert _found(builder, *(e.timestamp_ms for e in entries)) == list(range(7))
    assert TableLog(builder.store).history(1) == entries[:-2:-1]


def test_a_version_whose_commit_was_cleaned_up_since_it_was_read_has_the_time_of_its_file(builder: LogBuilder) -> None:
    builder.create()
    _commit(builder)
    _date(builder, 5000, 4000)
    held, read_before = (TableLog(builder.store).snapshot() for _ in range(2))
    assert read_before.timestamp_ms == 5001
    for version in (0, 1):
        builder.store.delete(commit_path(version))
    assert held.timestamp_ms == 4000


def test_history_with_both_clocks(builder: LogBuilder) -> None:
    builder.create()
    _commit(builder)
    _enable(builder, 50_000, inCommitTimestampEnablementVersion="2", inCommitTimestampEnablementTimestamp="50000")
    _commit(builder, 60_000)
    _date(builder, 1000, 500, 7000, 8000)
    entries = list(reversed(TableLog(builder.store).history()))
    assert [e.timestamp_ms for e in entries] == [1000, 1001, 50_000, 60_000]
    assert [e.in_commit_timestamp_ms for e in entries] == [None, None, 50_000, 60_000]
    assert [e.file_time_ms for e in entries] == [1000, 500, 7000, 8000]
    assert _found(builder, *(e.timestamp_ms for e in entries)) == [0, 1, 2, 3]
    assert _found(builder, 49_999, 55_000) == [1, 2]
    builder.commit(Metadata("table", SCHEMA), CommitInfo({}))
    _date(builder, 1000, 500, 7000, 8000, 9000)
    assert [e.timestamp_ms for e in TableLog(builder.store).history()] == [9000, 8000, 7000, 1001, 1000]
    assert _found(builder, 9000, 8000, 7000, 1001, 1000) == [4, 3, 2, 1, 0]


def test_outside_the_versions_there_are(builder: LogBuilder) -> None:
    builder.create()
    _commit(builder)
    _date(builder, 86_400_000, 86_400_500)
    context = _ensure_out_of_range(builder, 86_399_999, r"1970-01-01T23:59:59\.999\+00:00 is before the oldest version")
    assert (context["earliest_ms"], context["earliest_version"]) == (86_400_000, 0)
    context = _ensure_out_of_range(builder, 86_400_501, "is after the newest version")
    assert (context["latest_ms"], context["latest_version"]) == (86_400_500, 1)
    _ensure_out_of_range(builder, 1 << 80, "after the newest version")
    _ensure_out_of_range(builder, -(1 << 80), "before the oldest version")


def test_versions_that_cannot_be_loaded_do_not_count(builder: LogBuilder) -> None:
    builder.create()
    for _ in range(6):
        _commit(builder)
    _date(builder, *range(1000, 8000, 1000))
    builder.checkpoint(4)
    builder.delete_commits(2)
    # Commits 2 and 3 are there, what they build on is not.
    context = _ensure_out_of_range(builder, 4500, "before the oldest version that can be read")
    assert (context["earliest_version"], context["earliest_ms"]) == (4, 5000)
    assert _found(builder, 5000, 6500, 7000) == [4, 5, 6]
    builder.delete_commits(5)
    assert _found(builder, 6000, 7000) == [5, 6]
    assert _ensure_out_of_range(builder, 5999, "before the oldest")["earliest_version"] == 5
    builder.checkpoint(6)
    builder.delete_commits(7)
    _ensure_out_of_range(builder, 7000, "No version of the table belongs to the time")


def test_from_the_first_version_on_commits_tell_the_time(builder: LogBuilder) -> None:
    _enable(builder, 5000)
    _commit(builder, 6000)
    _date(builder, 100, 90_000)
    assert _found(builder, 5000, 5999, 6000) == [0, 0, 1]
    for outside, said in ((4999, "before the oldest"), (6001, "after the newest")):
        context = _ensure_out_of_range(builder, outside, said)
        assert (context["earliest_ms"], context["latest_ms"]) == (5000, 6000)


def test_the_log_before_the_enablement_is_gone(builder: LogBuilder) -> None:
    builder.create()
    _commit(builder)
    _enable(builder, 50_000, inCommitTimestampEnablementVersion="2", inCommitTimestampEnablementTimestamp="50000")
    for ms in (60_000, 70_000):
        _commit(builder, ms)
    _date(builder, 1000, 2000, 3000, 4000, 5000)
    builder.checkpoint(3)
    builder.delete_commits(3)
    assert _found(builder, 60_000, 69_999, 70_000) == [3, 3, 4]
    for early in (2500, 49_999, 50_000, 59_999):
        assert _ensure_out_of_range(builder, early, "before the oldest")["earliest_ms"] == 60_000


def test_without_the_enablement_time_its_commit_tells_it(builder: LogBuilder) -> None:
    builder.create()
    _enable(builder, 50_000, inCommitTimestampEnablementVersion="1")
    _date(builder, 1000, 2000)
    assert _found(builder, 1000, 49_999, 50_000) == [0, 0, 1]


def test_disabled_again_files_tell_the_time(builder: LogBuilder) -> None:
    _enable(builder, 50_000)
    _commit(builder, None, Metadata("table", SCHEMA))
    _date(builder, 1000, 2000)
    assert _found(builder, 1000, 1999, 2000) == [0, 0, 1]


def test_a_commit_that_must_have_a_time_and_has_none(builder: LogBuilder) -> None:
    _enable(builder, 5000)
    _commit(builder)
    with pytest.raises(ProtocolViolationError, match="has no in-commit timestamp") as caught:
        TableLog(builder.store).snapshot(timestamp_ms=5000)
    assert caught.value.context["version"] == 1


def test_the_commands_take_a_time(builder: LogBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    builder.create()
    _commit(builder)
    _date(builder, 86_400_000, 86_500_000)
    root = str(_root(builder))

    def call(*arguments: str) -> tuple[int, Any]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit:
            run([*arguments, "--json"])
        return exit.value.code or 0, json.loads(capsys.readouterr().out)  # type: ignore[return-value]

    assert call("snapshot", root, "--timestamp", "1970-01-02T00:00:01Z")[1]["version"] == 0
    assert call("snapshot", root, "--timestamp", "1970-01-02T01:01:41+01:00")[0] == 1
    code, said = call("snapshot", root, "--timestamp", "2020-01-01")
    assert (code, said["error"]["code"]) == (1, "TIMESTAMP_OUT_OF_RANGE")
    newest = call("history", root)[1][0]
    assert (newest["timestamp_ms"], newest["file_time_ms"], newest["in_commit_timestamp_ms"]) == (
        86_500_000,
        86_500_000,
        None,
    )
    assert DeltaTable(root).snapshot(timestamp="1970-01-02T00:00:00").version == 0
