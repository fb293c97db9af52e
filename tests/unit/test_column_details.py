"""What a snapshot tells of columns and of the table beyond its schema: typed, in Python and on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from delta_orch import DeltaTable
from delta_orch.cli.main import run
from delta_orch.errors import ProtocolViolationError
from delta_orch.protocol.actions import DomainMetadata
from delta_orch.protocol.schema import parse_schema
from delta_orch.protocol.types import LONG, STRING, ArrayType, MapType, StructField, StructType
from delta_orch.table.column_details import IdentityDetails, TypeChange, column_details
from tests.handmade import HandmadeTable
from tests.harness.conformance.cases import GOLDEN, conformance_cases, needs_golden

INVARIANT = json.dumps({"expression": {"expression": "id > 0"}})
IDENTITY = {
    "delta.identity.start": 5,
    "delta.identity.step": -2,
    "delta.identity.highWaterMark": 1,
    "delta.identity.allowExplicitInsert": True,
}
CHANGES = [
    {"fromType": "integer", "toType": "long", "tableVersion": 3, "fieldPath": "element"},
    {"fromType": "byte", "toType": "integer"},
]
INNER = StructType((StructField("x.y", LONG, False, {"comment": "deep"}),))
SCHEMA = StructType(
    (
        StructField("id", LONG, False, IDENTITY | {"delta.invariants": INVARIANT, "comment": "the key"}),
        StructField("twice", LONG, True, {"delta.generationExpression": "id * 2"}),
        StructField("state", STRING, True, {"CURRENT_DEFAULT": "'new'", "__CHAR_VARCHAR_TYPE_STRING": "varchar(8)"}),
        StructField("names", ArrayType(STRING), True, {"__COLLATIONS": {"names.element": "ICU.de"}}),
        StructField("counts", ArrayType(LONG), True, {"delta.typeChanges": CHANGES}),
        StructField("nested", MapType(STRING, ArrayType(INNER))),
    )
)


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    made = HandmadeTable(tmp_path / "t")
    made.create(
        SCHEMA,
        reader_features=("typeWidening",),
        features=("domainMetadata", "clustering", "checkConstraints", "inCommitTimestamp"),
        configuration={
            "delta.constraints.positive": "id > 0",
            "delta.constraints.No_Dots": "state <> '.'",
            "delta.enableIcebergCompatV1": "false",
        },
    )
    made.commit(DomainMetadata("delta.clustering", json.dumps({"clusteringColumns": [["id"], ["state"]]})))
    return made.open()


def test_columns(table: DeltaTable) -> None:
    columns = {".".join(c.path): c for c in table.snapshot().columns}
    assert list(columns) == ["id", "twice", "state", "names", "counts", "nested", "nested.value.element.x.y"]
    key = columns["id"]
    assert (key.data_type, key.nullable, key.comment, key.invariant) == (LONG, False, "the key", "id > 0")
    assert key.identity == IdentityDetails(start=5, step=-2, high_water_mark=1, allow_explicit_insert=True)
    assert columns["twice"].generation_expression == "id * 2"
    assert (columns["state"].default, columns["state"].declared_type) == ("'new'", "varchar(8)")
    assert columns["names"].collations == {"names.element": "ICU.de"}
    assert columns["counts"].type_changes == (
        TypeChange("integer", "long", "element", 3),
        TypeChange("byte", "integer", None, None),
    )
    deep = columns["nested.value.element.x.y"]
    assert (deep.path[-1], deep.nullable, deep.comment, deep.metadata) == ("x.y", False, "deep", {"comment": "deep"})
    plain = columns["nested"]
    assert (plain.identity, plain.default, plain.generation_expression, plain.physical_name) == (None,) * 4


def test_the_table(table: DeltaTable) -> None:
    snapshot = table.snapshot()
    assert snapshot.constraints == {"positive": "id > 0", "No_Dots": "state <> '.'"}
    assert snapshot.clustering_columns == (("id",), ("state",))
    assert {"typeWidening", "clustering", "inCommitTimestamp"} <= snapshot.features
    assert table.snapshot(version=0).clustering_columns is None
    assert snapshot.properties.enable_in_commit_timestamps is False


def test_clustering_columns_go_by_logical_names(tmp_path: Path) -> None:
    def mapped(name: str, data_type: Any, number: int) -> StructField:
        mapping = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"c{number}"}
        return StructField(name, data_type, True, mapping)

    made = HandmadeTable(tmp_path / "t")
    schema = StructType((mapped("place", StructType((mapped("in.ner", LONG, 2),)), 1),))
    made.create(schema, reader_features=("columnMapping",), features=("domainMetadata", "clustering"),
                configuration={"delta.columnMapping.mode": "name"})  # fmt: skip
    made.commit(DomainMetadata("delta.clustering", json.dumps({"clusteringColumns": [["c1", "c2"]]})))
    snapshot = made.open().snapshot()
    assert snapshot.clustering_columns == (("place", "in.ner"),)
    assert [(c.physical_name, c.field_id) for c in snapshot.columns] == [("c1", 1), ("c2", 2)]
    for configuration in ("{", "{}", '{"clusteringColumns": [["c1", "gone"]]}'):
        made.commit(DomainMetadata("delta.clustering", configuration))
        with pytest.raises(ProtocolViolationError, match=r"delta\.clustering"):
            _ = made.open().snapshot().clustering_columns


@pytest.mark.parametrize(
    "metadata",
    [
        {"delta.identity.start": 1},
        {"delta.identity.start": "1", "delta.identity.step": 1},
        {"delta.invariants": "id > 0"},
        {"delta.invariants": "{}"},
        {"delta.typeChanges": [{"toType": "long"}]},
        {"delta.typeChanges": {}},
        {"CURRENT_DEFAULT": 1},
        {"__COLLATIONS": "ICU.de"},
        {"delta.columnMapping.id": True},
    ],
)
def test_malformed_metadata_names_the_column(metadata: dict[str, Any]) -> None:
    schema = StructType((StructField("s", StructType((StructField("x", LONG, True, metadata),))),))
    with pytest.raises(ProtocolViolationError, match=r"of column 's\.x' is malformed"):
        column_details(schema)


def test_the_command_line(table: DeltaTable, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            run([*arguments])
        assert ended.value.code == 0
        return capsys.readouterr().out

    told = json.loads(printed("snapshot", table.uri, "--json"))
    assert told["constraints"] == {"positive": "id > 0", "No_Dots": "state <> '.'"}
    assert told["clustering_columns"] == [["id"], ["state"]]
    assert told["in_commit_timestamps"]["enabled"] is False
    assert told["columns"][0]["identity"]["high_water_mark"] == 1
    assert told["columns"][5] == {"path": ["nested"], "type": str(SCHEMA.fields[5].data_type), "nullable": True}
    text = printed("snapshot", table.uri)
    for part in (
        table.uri,
        "GENERATED BY DEFAULT AS IDENTITY (START WITH 5 INCREMENT BY -2); CHECK (id > 0); the key",
        "GENERATED ALWAYS AS (id * 2)",
        "varchar(8)",
        "DEFAULT 'new'",
        "COLLATE ICU.de (names.element)",
        "was integer; was byte",
        "nested.value.element.x.y",
        "clustered by",
        "positive=id > 0",
    ):
        assert part in text, part


GOLDEN_DETAILS = {
    "spark-dbr_8_1_generated_columns": lambda s: s.columns[1].generation_expression == "c1 + 1",
    "spark-identity_test_written_by_version_5": lambda s: s.columns[0].identity.step == 1,
    "golden-collations-table": lambda s: "spark.UTF8_LCASE" in s.columns[2].collations.values(),
    "dat-check_constraints": lambda s: s.constraints == {"const1": "int > 0"},
    "golden-type-widening": lambda s: s.columns[0].type_changes[0].from_type == "byte",
    "dat-iceberg_compat_v1": lambda s: "icebergCompatV1" in s.features,
}


@needs_golden
@pytest.mark.parametrize("name", list(GOLDEN_DETAILS))
def test_golden_tables(name: str) -> None:
    assert GOLDEN_DETAILS[name](DeltaTable(GOLDEN / name / "table").snapshot())


def test_schemas_of_every_case() -> None:
    for case in conformance_cases(("read", "cdf", "log")):
        schema = parse_schema(case.expect["schema"])
        assert len(column_details(schema)) >= len(schema), case.name
