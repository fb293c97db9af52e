"""Column mapping by id where files name their columns as they like: on both engines, nested columns included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable

pytestmark = pytest.mark.spark


def mapped(name: str, number: int, data_type: Any) -> dict[str, Any]:
    metadata = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{number}"}
    return {"name": name, "type": data_type, "nullable": True, "metadata": metadata}


def with_id(name: str, data_type: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, data_type, metadata={"PARQUET:field_id": str(number)})


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    struct = {"type": "struct", "fields": [mapped("x", 3, "long"), mapped("y", 4, "string")]}
    array = {"type": "array", "elementType": struct, "containsNull": True}
    columns = [mapped("id", 1, "long"), mapped("st", 2, struct), mapped("items", 5, array), mapped("day", 6, "string")]
    metadata = {
        "id": "t",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": orjson.dumps({"type": "struct", "fields": columns}).decode(),
        "partitionColumns": ["day"],
        "configuration": {"delta.columnMapping.mode": "id", "delta.columnMapping.maxColumnId": "6"},
    }
    actions: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}},
        {"metaData": metadata},
    ]
    # Two writers, two ways to name the columns; in the second, names even stand for other columns.
    for file, names in (("a", ("n", "s", "left", "right", "list")), ("b", ("st", "id", "y", "x", "day"))):
        inner = pa.struct([with_id(names[2], pa.int64(), 3), with_id(names[3], pa.string(), 4)])
        fields = [with_id(names[0], pa.int64(), 1), with_id(names[1], inner, 2), with_id(names[4], pa.list_(inner), 5)]
        row = {names[2]: 7, names[3]: file}
        rows = [[1, 2], [row, None], [[row, row], []]]
        path = tmp_path / f"{file}.parquet"
        pq.write_table(
            pa.table([pa.array(v, f.type) for v, f in zip(rows, fields, strict=True)], pa.schema(fields)), path
        )
        size = path.stat().st_size
        values = {"col-6": file.upper()}
        actions.append({"add": {"path": path.name, "partitionValues": values, "size": size, "modificationTime": 0,
                                "dataChange": True}})  # fmt: skip
    (tmp_path / "_delta_log").mkdir()
    log = b"\n".join(map(orjson.dumps, actions))
    (tmp_path / "_delta_log" / f"{0:020d}.json").write_bytes(log)
    return DeltaTable(tmp_path)


def expected(file: str) -> list[dict[str, Any]]:
    inner = {"x": 7, "y": file}
    return [
        {"id": 1, "st": inner, "items": [inner, inner], "day": file.upper()},
        {"id": 2, "st": None, "items": [], "day": file.upper()},
    ]


def test_local(table: DeltaTable) -> None:
    rows = table.snapshot().scan().to_arrow().sort_by([("day", "ascending"), ("id", "ascending")])
    assert rows.to_pylist() == expected("a") + expected("b")


@pytest.mark.long
@pytest.mark.parametrize("session", ["spark", "spark_connect"])
def test_spark(table: DeltaTable, session: str, request: pytest.FixtureRequest) -> None:
    frame = table.snapshot().scan().to_spark(request.getfixturevalue(session))
    rows = [row.asDict(recursive=True) for row in frame.orderBy("day", "id").collect()]
    assert rows == expected("a") + expected("b")
    # Alone, a nested column is what Spark prunes to.
    assert [row[0] for row in frame.orderBy("day", "id").select("st.y").collect()] == ["a", None, "b", None]
    filtered = table.snapshot().scan(columns=["id"], where="st.y = 'b' AND day = 'B'").to_spark(frame.sparkSession)
    assert [tuple(row) for row in filtered.collect()] == [(1,)]
