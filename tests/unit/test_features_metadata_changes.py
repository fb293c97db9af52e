"""Which changes of metadata a writer that is overtaken must mind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from delta_orch.protocol.actions import Format, Metadata
from delta_orch.protocol.schema import serialize_schema
from delta_orch.protocol.types import INTEGER, LONG, STRING, ArrayType, StructField, StructType
from delta_orch.table.configuration import concerns_writers

INNER = StructField("x", LONG, True, {"comment": "inner"})
ID = StructField("id", LONG, True, {"delta.identity.start": 1, "delta.identity.highWaterMark": 5})
SCHEMA = StructType((ID, StructField("items", ArrayType(StructType((INNER,))))))


def metadata(schema: StructType = SCHEMA, **given: Any) -> Metadata:
    return Metadata(**{"id": "t", "schema_string": serialize_schema(schema), "configuration": {"mine": "1"}, **given})


def with_id(**changed: Any) -> StructType:
    return StructType((replace(ID, **changed), SCHEMA.fields[1]))


HARMLESS = {
    "the same": metadata(),
    "name": metadata(name="n", description="d", created_time=7),
    "own property": metadata(configuration={"mine": "2", "other": "x"}),
    "upkeep": metadata(configuration={"mine": "1", "delta.checkpointInterval": "5", "delta.targetFileSize": "1g"}),
    "identity mark": metadata(with_id(metadata={"delta.identity.start": 1, "delta.identity.highWaterMark": 99})),
    "comment": metadata(with_id(metadata={**ID.metadata, "comment": "new"})),
    "nested comment": metadata(
        StructType((ID, StructField("items", ArrayType(StructType((replace(INNER, metadata={}),))))))
    ),
}
CONCERNING = {
    "id": metadata(id="other"),
    "partitioning": metadata(partition_columns=("id",)),
    "format": metadata(format=Format("orc")),
    "property": metadata(configuration={"mine": "1", "delta.appendOnly": "true"}),
    "unknown property": metadata(configuration={"mine": "1", "delta.somethingNew": "1"}),
    "constraint": metadata(configuration={"mine": "1", "delta.constraints.c": "id > 0"}),
    "type": metadata(with_id(data_type=INTEGER)),
    "nullability": metadata(with_id(nullable=False)),
    "name of a column": metadata(with_id(name="key")),
    "column": metadata(StructType((*SCHEMA.fields, StructField("more", STRING)))),
    "order": metadata(StructType(SCHEMA.fields[::-1])),
    "default": metadata(with_id(metadata={**ID.metadata, "CURRENT_DEFAULT": "1"})),
    "identity step": metadata(with_id(metadata={**ID.metadata, "delta.identity.step": 2})),
    "nested type": metadata(
        StructType((ID, StructField("items", ArrayType(StructType((replace(INNER, data_type=STRING),))))))
    ),
    "unknown field": metadata(extra={"new": 1}),
}


@pytest.mark.parametrize("after", HARMLESS.values(), ids=HARMLESS.keys())
def test_harmless(after: Metadata) -> None:
    assert not concerns_writers(metadata(), after)
    assert not concerns_writers(after, metadata())


@pytest.mark.parametrize("after", CONCERNING.values(), ids=CONCERNING.keys())
def test_concerning(after: Metadata) -> None:
    assert concerns_writers(metadata(), after)
    assert concerns_writers(after, metadata())
