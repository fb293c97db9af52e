"""Files that are written in pieces, and files that can be made again."""

from __future__ import annotations

import pytest

from delta_orch.errors import FileExistsInStoreError
from delta_orch.storage.base import LogStore


def test_output_of_any_length_is_created_once_and_whole(store: LogStore) -> None:
    with store.stage_output("d") as output:
        for piece in (b"x" * 70_000, b"", b"y"):
            output.sink.write(piece)
        assert store.head("d/streamed") is None
        assert output.put_if_absent("d/streamed").size == 70_001
    assert store.read_bytes("d/streamed") == b"x" * 70_000 + b"y"
    with store.stage_output("d") as second:
        second.sink.write(b"z")
        with pytest.raises(FileExistsInStoreError):
            second.put_if_absent("d/streamed")
        assert second.put_if_absent("d/other").size == 1
    with store.stage_output("d") as empty:
        assert empty.put_if_absent("d/empty").size == 0
    with store.stage_output("d") as dropped:
        dropped.sink.write(b"never created")
    assert sorted(file.path for file in store.list_recursive()) == ["d/empty", "d/other", "d/streamed"]


def test_a_large_output_is_created_whole_after_a_name_was_taken(store: LogStore) -> None:
    """It is sent from the file it was written to, from the beginning each time."""
    content = bytes(range(256)) * 36 * 1024
    store.put_if_absent("d/taken", b"1")
    with store.stage_output("d") as output:
        output.sink.write(content)
        with pytest.raises(FileExistsInStoreError):
            output.put_if_absent("d/taken")
        assert output.put_if_absent("d/large").size == len(content)
    assert store.read_bytes("d/large") == content


def test_what_can_be_made_again_is_created_once(store: LogStore) -> None:
    assert store.put_regenerable("d/a", b"1").size == 1
    with pytest.raises(FileExistsInStoreError):
        store.put_regenerable("d/a", b"2")
    assert [file.path for file in store.list_recursive()] == ["d/a"]
    assert store.read_bytes("d/a") == b"1"
