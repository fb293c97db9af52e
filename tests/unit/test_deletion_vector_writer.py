"""Deletion vectors as bytes, in files and in the log; files of other writers are the referee."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from delta_orch.errors import CorruptDeletionVectorError, InvalidRequestError, StorageError
from delta_orch.log.read.deletion_vectors import read_deletion_vectors
from delta_orch.log.write.deletion_vector_writer import INLINE_BYTES, write_deletion_vectors
from delta_orch.protocol.action_json import parse_deletion_vector
from delta_orch.protocol.deletion_vector import (
    DeletionVector,
    SerializedVector,
    relative_path,
    serialize_vector_file,
    stored_descriptor,
)
from delta_orch.storage.base import LogStore
from delta_orch.storage.open import open_store
from tests.harness.conformance.cases import GOLDEN, needs_golden
from tests.harness.fault_store import FaultStore

# One has a vector that is damaged on purpose, one names its vectors by absolute paths of another machine.
NOT_READABLE = {"krs-cdf-table-with-dv", "spark-table-with-dv-special-char"}
WRITERS = ("krs-", "spark-", "kernel-", "drs-", "golden-")


def vector(*rows: int) -> DeletionVector:
    return DeletionVector(BitMap64(rows))


@pytest.fixture
def store() -> LogStore:
    return open_store(f"memory://{uuid.uuid4()}")


def rows_of(store: LogStore, descriptors: list[Any]) -> list[list[int]]:
    return [list(found.bitmap) for found in read_deletion_vectors(store, descriptors) if found is not None]


def test_small_ones_stand_in_the_log_and_large_ones_share_a_file(store: LogStore) -> None:
    scattered = [list(range(start, start + 4000, 3)) for start in (0, 1 << 33)]
    vectors = [vector(1, 2), vector(*scattered[0]), vector(7), vector(*scattered[1])]
    descriptors = write_deletion_vectors(store, vectors)
    assert [d.storage_type for d in descriptors] == ["i", "u", "i", "u"]
    assert [d.cardinality for d in descriptors] == [2, 1334, 1, 1334]
    assert descriptors[1].path_or_inline_dv == descriptors[3].path_or_inline_dv
    assert descriptors[1].offset == 1
    assert descriptors[3].offset == 1 + descriptors[1].size_in_bytes + 8
    (file,) = store.list_recursive()
    assert file.path == relative_path(descriptors[1])
    assert rows_of(store, descriptors) == [[1, 2], scattered[0], [7], scattered[1]]


def test_files_have_a_size_and_a_random_directory_where_wanted(store: LogStore) -> None:
    vectors = [vector(*range(number, 9000, 7)) for number in range(5)]
    descriptors = write_deletion_vectors(store, vectors, file_bytes=6000, random_prefix_length=3)
    files = list(store.list_recursive())
    assert len(files) == 3
    assert all(len(file.path.partition("/")[0]) == 3 for file in files)
    assert max(file.size for file in files) <= 6001
    assert rows_of(store, descriptors) == [list(range(number, 9000, 7)) for number in range(5)]


def test_runs_are_kept_as_runs(store: LogStore) -> None:
    (descriptor,) = write_deletion_vectors(store, [DeletionVector(BitMap64(range(1_000_000)))])
    assert descriptor.storage_type == "u"
    assert descriptor.size_in_bytes < 300
    assert descriptor.cardinality == 1_000_000


def test_a_vector_without_rows_is_none(store: LogStore) -> None:
    with pytest.raises(InvalidRequestError, match="marks no row"):
        write_deletion_vectors(store, [vector(1), vector()])
    assert not list(store.list_recursive())


def test_nothing_to_write(store: LogStore) -> None:
    assert write_deletion_vectors(store, []) == []


def test_a_file_that_cannot_be_written_is_said(store: LogStore) -> None:
    faulty = FaultStore(store)
    faulty.at_call(0, "before", do=faulty.fail)
    with pytest.raises(StorageError):
        write_deletion_vectors(faulty, [vector(1)], inline_bytes=0)


@settings(max_examples=5, deadline=None)
@given(
    st.lists(st.sets(st.integers(0, 1 << 40), min_size=1, max_size=60), max_size=6), st.sampled_from([0, INLINE_BYTES])
)
def test_rows_survive(sets: list[set[int]], inline_bytes: int) -> None:
    store = open_store(f"memory://{uuid.uuid4()}")
    vectors = [DeletionVector(BitMap64(rows)) for rows in sets]
    descriptors = write_deletion_vectors(store, vectors, inline_bytes=inline_bytes, file_bytes=200)
    assert rows_of(store, descriptors) == [sorted(rows) for rows in sets]


def golden_descriptors() -> list[tuple[Path, Any]]:
    found = []
    for log_file in sorted(GOLDEN.glob("*/table/_delta_log/*.json")):
        if not log_file.parents[2].name.startswith(WRITERS) or log_file.parents[2].name in NOT_READABLE:
            continue
        for line in log_file.read_bytes().splitlines():
            body = (orjson.loads(line).get("add") or {}) if b"deletionVector" in line else {}
            if body.get("deletionVector"):
                descriptor = parse_deletion_vector(body["deletionVector"])
                assert descriptor is not None
                found.append((log_file.parents[1], descriptor))
    return found


@needs_golden
def test_golden_vectors_are_written_again_byte_by_byte() -> None:
    """Same rows, same bytes: what the reference implementation wrote is what we write."""
    found = golden_descriptors()
    assert len(found) > 10
    for table, descriptor in found:
        ensure_same_bytes(table, descriptor)


def ensure_same_bytes(table: Path, descriptor: Any) -> None:
    store = open_store(table)
    (found,) = read_deletion_vectors(store, [descriptor])
    assert found is not None
    again = SerializedVector.of(found)
    assert (len(again.data), again.cardinality) == (descriptor.size_in_bytes, descriptor.cardinality)
    if descriptor.storage_type == "i":
        assert again.inline_descriptor() == descriptor
        return
    golden = store.read_bytes(relative_path(descriptor))
    content, (offset,) = serialize_vector_file([again])
    assert golden[:1] == content[:1]
    assert golden[descriptor.offset : descriptor.offset + again.stored_bytes] == content[offset:]


@pytest.mark.parametrize("padding", [0, 200_000])
def test_a_file_of_an_unknown_version_is_not_read(store: LogStore, padding: int) -> None:
    file_id = uuid.uuid4()
    wanted = SerializedVector.of(vector(1, 5))
    others = [SerializedVector.of(vector(*range(0, 2 * padding, 2)))] if padding else []
    data, offsets = serialize_vector_file([*others, wanted])
    descriptor = stored_descriptor(wanted, file_id, offsets[-1])
    store.put(relative_path(descriptor), data)
    assert read_deletion_vectors(store, [descriptor]) == [vector(1, 5)]
    store.delete(relative_path(descriptor))
    store.put(relative_path(descriptor), b"\2" + data[1:])
    with pytest.raises(CorruptDeletionVectorError, match="version 2"):
        read_deletion_vectors(store, [descriptor])


def test_without_an_offset_the_first_vector_is_meant(store: LogStore) -> None:
    first = SerializedVector.of(vector(3))
    data, offsets = serialize_vector_file([first, SerializedVector.of(vector(4))])
    descriptor = replace(stored_descriptor(first, uuid.uuid4(), offsets[0]), offset=None)
    store.put(relative_path(descriptor), data)
    assert read_deletion_vectors(store, [descriptor]) == [vector(3)]
