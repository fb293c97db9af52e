"""Tables with rows, written by DuckDB in seconds: the files any client reads, the log by hand."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.synthetic_log import cached

NUM_FILES = 20
FILE_ROWS = 1_000_000
DELETED_IN_FILE = FILE_ROWS // 100
_ROWS = """
    select i as id, (i * 7919) % 1000 as k, ((i * 31) % 1000003) / 7.0 as value, 'name-' || (i % 5000) as name,
           date '2020-01-01' + (i // 20000)::int as day
    from range({start}, {stop}) r(i)
"""
_TYPES = {"id": "long", "k": "long", "value": "double", "name": "string", "day": "date"}
_PLACE = {"latitude": "double", "longitude": "double", "city": "string"}


def plain_table(directory: Path) -> Path:
    """G3: 20,000,000 rows of five columns in 20 files, sorted by id."""

    def make(table: Path) -> None:
        files = [_copy(table, _ROWS, number) for number in range(NUM_FILES)]
        fields = [_field(name, data_type) for name, data_type in _TYPES.items()]
        _commit(table, 0, _table_actions(fields) + [_add(table, file, n) for n, file in enumerate(files)])

    return cached(directory, "rows", make)


def table_with_deletion_vectors(directory: Path) -> Path:
    """G3, the same files, with a deletion vector each that marks one row in a hundred, scattered."""

    def make(table: Path) -> None:
        source = plain_table(directory)
        random = np.random.default_rng(1)
        files = sorted(source.glob("*.parquet"))
        for file in files:
            os.link(file, table / file.name)
        chosen = [np.sort(random.choice(FILE_ROWS, DELETED_IN_FILE, replace=False)) for _ in files]
        vectors = _write_deletion_vectors(table, chosen)
        fields = [_field(name, data_type) for name, data_type in _TYPES.items()]
        adds = [
            {"add": {**_add(table, table / file.name, n)["add"], "deletionVector": vector}}
            for n, (file, vector) in enumerate(zip(files, vectors, strict=True))
        ]
        _commit(table, 0, _table_actions(fields, features=["deletionVectors"]) + adds)

    return cached(directory, "rows_deletion_vectors", make)


def mapped_table(directory: Path) -> Path:
    """G3 with the columns under physical names, in mode `name`."""

    def make(table: Path) -> None:
        names = {name: physical_name(name) for name in _TYPES}
        renamed = ", ".join(f'{name} as "{physical}"' for name, physical in names.items())
        query = f"select {renamed} from ({_ROWS})"
        ids = ", ".join(f"'{physical}': {n + 1}" for n, physical in enumerate(names.values()))
        files = [_copy(table, query, number, f", field_ids {{{ids}}}") for number in range(NUM_FILES)]
        fields = [_mapped(name, _TYPES[name], n + 1) for n, name in enumerate(names)]
        actions = _table_actions(fields, _MAPPING, ["columnMapping"])
        _commit(table, 0, actions + [_add(table, file, n, physical_name("id")) for n, file in enumerate(files)])

    return cached(directory, "rows_mapped", make)


def nested_mapped_table(directory: Path) -> Path:
    """A quarter of G3: id and a struct of three fields, everything under physical names."""

    def make(table: Path) -> None:
        struct = ", ".join(
            f"'{physical_name(name)}': {text}"
            for name, text in {"latitude": "i / 1e6", "longitude": "i / 2e6", "city": "'city ' || (i % 100)"}.items()
        )
        query = f"""select i as "{physical_name("id")}", {{{struct}}} as "{physical_name("place")}"
                    from range({{start}}, {{stop}}) r(i)"""
        files = [_copy(table, query.replace("{" + struct, "{{" + struct).replace("} as", "}} as"), n) for n in range(5)]
        place = {"type": "struct", "fields": [_mapped(name, t, n + 3) for n, (name, t) in enumerate(_PLACE.items())]}
        fields = [_mapped("id", "long", 1), _mapped("place", place, 2)]
        actions = _table_actions(fields, _MAPPING, ["columnMapping"])
        _commit(table, 0, actions + [_add(table, file, n, physical_name("id")) for n, file in enumerate(files)])

    return cached(directory, "rows_nested_mapped", make)


CHANGE_VERSIONS = 5
_CHANGED_ROWS = 150_000


def table_with_change_feed(directory: Path) -> Path:
    """Five versions after the first that each update 150,000 rows: 1,500,000 rows of change data."""

    def make(table: Path) -> None:
        (table / "_change_data").mkdir()
        rows = (
            "select i as id, i * {version} / 7.0 as value, 'name-' || (i % 5000) as name, "
            f"date '2020-01-01' + {{version}} as day from range({_CHANGED_ROWS}) r(i)"
        )
        types = {name: _TYPES[name] for name in ("id", "value", "name", "day")}
        fields = [_field(name, data_type) for name, data_type in types.items()]
        previous: list[dict[str, Any]] = []
        for version in range(CHANGE_VERSIONS + 1):
            file = _copy_query(table / f"part-{version:05}.parquet", rows.format(version=version))
            add = {"path": file.name, "partitionValues": {}, "size": file.stat().st_size, **_WRITTEN}
            actions = [{"add": add}, *previous]
            if version:
                query = " union all ".join(
                    f"select *, '{change}' as _change_type from ({rows.format(version=version - age)})"
                    for change, age in (("update_preimage", 1), ("update_postimage", 0))
                )
                change = _copy_query(table / "_change_data" / f"cdc-{version:05}.parquet", query)
                size = change.stat().st_size
                cdc = {"path": f"_change_data/{change.name}", "partitionValues": {}, "size": size, "dataChange": False}
                actions.append({"cdc": cdc})
            else:
                actions = _table_actions(fields, {"delta.enableChangeDataFeed": "true"}) + actions
            _commit(table, version, actions)
            remove = {"path": file.name, "deletionTimestamp": 1, "dataChange": True, "extendedFileMetadata": True}
            previous = [{"remove": {**remove, "partitionValues": {}, "size": add["size"]}}]

    return cached(directory, "change_feed", make)


def write_log(table: Path, fields: list[dict[str, Any]], features: list[str]) -> None:
    """One commit that creates a table of the Parquet files that are there."""
    files = [
        {"add": {"path": file.name, "partitionValues": {}, "size": file.stat().st_size, **_WRITTEN}}
        for file in sorted(table.glob("*.parquet"))
    ]
    _commit(table, 0, _table_actions([_field(f["name"], f["type"]) for f in fields], None, features) + files)


_WRITTEN = {"modificationTime": 1_700_000_000_000, "dataChange": True}
_MAPPING = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "9"}


def _copy(table: Path, query: str, number: int, options: str = "") -> Path:
    rows = query.format(start=number * FILE_ROWS, stop=(number + 1) * FILE_ROWS)
    return _copy_query(table / f"part-{number:05}.parquet", rows, options)


def _copy_query(file: Path, query: str, options: str = "") -> Path:
    import duckdb

    with duckdb.connect() as connection:
        connection.execute(f"copy ({query}) to '{file}' (format parquet, compression snappy{options})")
    return file


def physical_name(name: str) -> str:
    """What a mapped column is called in data files."""
    return f"col-{uuid.uuid5(uuid.NAMESPACE_OID, name)}"


def _field(name: str, data_type: Any, metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"name": name, "type": data_type, "nullable": True, "metadata": metadata or {}}


def _mapped(name: str, data_type: Any, field_id: int) -> dict[str, Any]:
    metadata = {"delta.columnMapping.id": field_id, "delta.columnMapping.physicalName": physical_name(name)}
    return _field(name, data_type, metadata)


def _table_actions(
    fields: list[dict[str, Any]], properties: dict[str, str] | None = None, features: list[str] | None = None
) -> list[dict[str, Any]]:
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 4}
    if features:
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": features,
        }
    metadata = {
        "id": "6f6a5f0e-9d3c-4d0a-8f0b-0d7a5a1c2b3e",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": properties or {},
        "createdTime": 1_700_000_000_000,
    }
    return [{"protocol": protocol}, {"metaData": metadata}]


def _add(table: Path, file: Path, number: int, id_name: str = "id") -> dict[str, Any]:
    low, high = number * FILE_ROWS, (number + 1) * FILE_ROWS - 1
    statistics = {
        "numRecords": FILE_ROWS,
        "minValues": {id_name: low},
        "maxValues": {id_name: high},
        "nullCount": {id_name: 0},
    }
    path = str(file.relative_to(table))
    size = file.stat().st_size
    return {"add": {"path": path, "partitionValues": {}, "size": size, **_WRITTEN, "stats": json.dumps(statistics)}}


def _commit(table: Path, version: int, actions: list[dict[str, Any]]) -> None:
    info = {"commitInfo": {"timestamp": 1_700_000_000_000 + version, "operation": "WRITE", "operationParameters": {}}}
    lines = (json.dumps(action, separators=(",", ":")) + "\n" for action in (info, *actions))
    (table / "_delta_log" / f"{version:020d}.json").write_text("".join(lines))


def _write_deletion_vectors(table: Path, chosen: list[np.ndarray]) -> list[dict[str, Any]]:
    """One file with all vectors, and their descriptors (PROTOCOL, "Deletion Vector File Storage Format")."""
    import zlib

    from pyroaring import BitMap64

    from delta_orch.protocol.deletion_vector import DeletionVector, z85_encode

    name = uuid.UUID(int=7)
    content, descriptors = b"\x01", []
    for rows in chosen:
        data = DeletionVector(BitMap64(rows.tolist())).serialize()
        descriptors.append(
            {
                "storageType": "u",
                "pathOrInlineDv": z85_encode(name.bytes),
                "offset": len(content),
                "sizeInBytes": len(data),
                "cardinality": len(rows),
            }
        )
        content += len(data).to_bytes(4, "big") + data + zlib.crc32(data).to_bytes(4, "big")
    (table / f"deletion_vector_{name}.bin").write_bytes(content)
    return descriptors
