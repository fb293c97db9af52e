"""Any log and any clock: a time leads to the version that the protocol's rules, taken literally, lead to; and history
tells for each version a time that leads there."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from delta_orch.errors import TimestampOutOfRangeError
from delta_orch.protocol.actions import CommitInfo, Metadata, Protocol
from delta_orch.protocol.paths import commit_path
from delta_orch.storage.memory import FILES, MemoryStore
from delta_orch.testing import open_table
from tests.harness.log_builder import LogBuilder

_NAMES = itertools.count()
SCHEMA = '{"type":"struct","fields":[]}'
FEATURE = Protocol(1, 7, None, ("inCommitTimestamp",))


def _build(file_times: list[int], enabled_from: int | None, steps: list[int]) -> tuple[LogBuilder, list[int]]:
    """A log with these file times, and the times its versions have by the protocol."""
    builder = LogBuilder(MemoryStore(f"time-travel-{next(_NAMES)}"))
    times: list[int] = []
    for version, file_time in enumerate(file_times):
        in_commit = enabled_from is not None and version >= enabled_from
        before = times[-1] + 1 if times else 0
        if in_commit:
            # Later than the commit before it, by its own time and (the enabling one) by its file.
            times.append(max(before, 0) + steps[version])
        else:
            times.append(max(before, file_time))
        info = CommitInfo({"inCommitTimestamp": times[-1]} if in_commit else {})
        if version == enabled_from:
            properties = {
                "delta.enableInCommitTimestamps": "true",
                "delta.inCommitTimestampEnablementVersion": str(version),
                "delta.inCommitTimestampEnablementTimestamp": str(times[-1]),
            }
            builder.commit(info, FEATURE, Metadata("table", SCHEMA, configuration=properties))
        elif version == 0:
            builder.commit(info, Protocol(1, 2), Metadata("table", SCHEMA))
        else:
            builder.commit(info)
        key = f"{builder.store.root}/{commit_path(version)}"
        FILES[key] = replace(FILES[key], modification_time_ms=file_time)
    return builder, times


def _expected(times: list[int], oldest: int, wanted: int) -> int | None:
    loadable = range(oldest, len(times))
    if wanted < times[oldest] or wanted > times[-1]:
        return None
    return max(v for v in loadable if times[v] <= wanted)


def _at(ms: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_times_and_versions(data: st.DataObject) -> None:
    file_times = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=9))
    enabled_from = data.draw(st.none() | st.integers(0, len(file_times) - 1))
    steps = data.draw(st.lists(st.integers(0, 9), min_size=len(file_times), max_size=len(file_times)))
    builder, times = _build(file_times, enabled_from, steps)
    oldest = 0
    if data.draw(st.booleans()) and len(times) > 1:
        # A checkpoint, and the log before it (or up to it) is gone.
        oldest = data.draw(st.integers(0, len(times) - 2))
        builder.checkpoint(oldest)
        builder.delete_commits(oldest)
        # What came before no longer pushes the times of files forward.
        for version in range(oldest, len(times) if enabled_from is None else enabled_from):
            times[version] = max(times[version - 1] + 1 if version > oldest else 0, file_times[version])
    table = open_table(builder.store)
    for wanted in range(-1, max(times) + 3):
        try:
            found = table.snapshot(timestamp=_at(wanted)).version
        except TimestampOutOfRangeError:
            found = None
        if enabled_from is None or wanted >= times[enabled_from] or enabled_from <= oldest:
            assert found == _expected(times, oldest, wanted), wanted
        else:
            before = [v for v in range(oldest, enabled_from) if times[v] <= wanted]
            assert found == (max(before) if before else None), wanted
    for entry in table.history():
        assert entry.timestamp_ms == times[entry.version]
        if entry.version >= oldest:
            assert table.snapshot(entry.version).timestamp_ms == entry.timestamp_ms
        assert table.snapshot(timestamp=_at(entry.timestamp_ms)).version == entry.version
