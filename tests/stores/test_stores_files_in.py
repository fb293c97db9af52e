"""Files that arrive in each kind of store: listed, read, loaded once."""

from __future__ import annotations

import json
import uuid

import pytest

from delta_orch import DeltaTable, FileSource
from delta_orch.errors import FilesChangedError
from delta_orch.storage.base import LogStore
from delta_orch.storage.open import open_store
from tests.harness.emulators import Emulator


def test_files_of_an_object_store(emulator: Emulator) -> None:
    place = f"{uuid.uuid4()}/a place"
    uri, options = emulator.table_uri(f"{place}/landing ü"), emulator.storage_options
    landing: LogStore = open_store(uri, options)
    table = DeltaTable(emulator.table_uri(f"{place}/table"), options)

    def put(name: str, number: int) -> None:
        landing.put(name, json.dumps({"id": number}).encode())

    def ids() -> list[int]:
        return sorted(table.snapshot().scan(["id"]).to_arrow().column("id").to_pylist())

    source = FileSource(uri, pattern="d/**/*.json", format="json", storage_options=options)
    put("d/1.json", 1)
    put("d/2 ü.json", 2)
    put("d/e/3.json", 3)
    put("other.json", 9)
    assert source.list_files()["etag"].null_count == 0
    assert table.ingest(source).num_files == 3
    assert table.ingest(source).commits == ()
    put("d/e/4.json", 4)
    put("d/0.json", 0)
    ascending = FileSource(uri, pattern="d/**/*.json", format="json", names_ascend=True, storage_options=options)
    assert ascending.list_files("d/e/3.json")["path"].to_pylist() == ["d/e/4.json"]
    assert table.ingest(ascending).num_files == 1
    assert table.ingest(source).num_files == 1
    assert ids() == [0, 1, 2, 3, 4]
    # Of the same size.
    put("d/1.json", 7)
    with pytest.raises(FilesChangedError, match=r"d/1\.json"):
        table.ingest(source)
