"""Columns defined at creation, and defaults that are altered: what is stored, what rows get, what cannot be."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable, column, identity_column
from delta_orch.errors import (
    ConstraintViolationError,
    InvalidExpressionError,
    InvalidRequestError,
    ProtocolViolationError,
    SchemaMismatchError,
    UnsupportedError,
    UnsupportedFeatureError,
)
from delta_orch.protocol import types as t
from delta_orch.protocol.actions import Protocol
from delta_orch.protocol.schema import serialize_schema
from delta_orch.protocol.type_text import parse_declared_type
from delta_orch.protocol.types import CHAR_VARCHAR_TYPE
from delta_orch.table.configuration import TableConfiguration
from tests.certain import some

if TYPE_CHECKING:
    from tests.verbs.conftest import EngineRows


def test_a_table_of_every_kind_of_column(rows: EngineRows, table: DeltaTable) -> None:
    table.create(
        [
            identity_column("key", start=10, step=5),
            column("amount", "bigint", nullable=False, comment="net"),
            column("next_amount", "bigint", generated_as="amount + 1"),
            column("state", "varchar(10)", default="'new'"),
        ]
    )
    snapshot = table.snapshot()
    assert {"identityColumns", "generatedColumns", "allowColumnDefaults"} <= set(
        some(snapshot.protocol.writer_features)
    )
    assert some(snapshot.schema.find("key")).metadata == {
        "delta.identity.start": 10,
        "delta.identity.step": 5,
        "delta.identity.allowExplicitInsert": False,
    }
    assert some(snapshot.schema.find("state")).metadata == {
        CHAR_VARCHAR_TYPE: "varchar(10)",
        "CURRENT_DEFAULT": "'new'",
    }
    table.append(rows.data(pa.table({"amount": pa.array([1, 2], pa.int64())})))
    found = rows.pylist(table)
    assert [(row["key"] - 10) % 5 for row in found] == [0, 0]
    assert len({row["key"] for row in found}) == 2
    assert [row["next_amount"] for row in found] == [row["amount"] + 1 for row in found]
    assert {row["state"] for row in found} == {"new"}


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        (lambda: [t.StructField("k", t.STRING, True, {"delta.identity.start": 1, "delta.identity.step": 1})], "long"),
        (lambda: [identity_column("k", step=0)], "step is 0"),
        (lambda: [identity_column("k", start=2**63)], "64 bits"),
        (lambda: [column("a", "int", default="1", generated_as="2")], "both"),
        (lambda: [column("a", "int", default="b + 1"), column("b", "int")], "names a column"),
        (lambda: [column("a", "int", default="(SELECT 1)")], "subquery"),
        (lambda: [column("a", "int", default="1; DROP TABLE x")], "not one expression"),
        (lambda: [column("a", "int", generated_as="nope + 1"), column("b", "int")], "nope"),
        (lambda: [column("a", "int", generated_as="a + 1"), column("b", "int")], "generated itself"),
        (
            lambda: [column("a", "int", generated_as="b"), column("b", "int", generated_as="c"), column("c", "int")],
            "generated itself",
        ),
        (lambda: [column("a", "int", generated_as="rand()"), column("b", "int")], "not fixed"),
        (lambda: [column("a", "variant", generated_as="b"), column("b", "int")], "variant"),
        (lambda: [column("a", "in"), column("b", "int")], "not a type"),
        (lambda: [column("a", "int"), column("a", "int")], "two columns a"),
        (lambda: [column("s", "struct<a: int, a: int>"), column("b", "int")], "two columns s.a"),
        (
            lambda: [t.StructField("s", t.StructType((column("a", "int", default="1"),))), column("b", "int")],
            "top-level",
        ),
    ],
)
def test_definitions_that_cannot_be_create_nothing(table: DeltaTable, columns: Callable[..., Any], error: str) -> None:
    with pytest.raises((SchemaMismatchError, InvalidRequestError, InvalidExpressionError), match=error):
        table.create(columns())
    assert not table.exists()


def test_defaults_are_set_and_dropped(rows: EngineRows, table: DeltaTable) -> None:
    table.append(rows.data(pa.table({"id": pa.array([1], pa.int64()), "note": ["x"]})))
    table.alter().set_default("note", " 'none' ").commit()
    snapshot = table.snapshot()
    assert "allowColumnDefaults" in some(snapshot.protocol.writer_features)
    assert some(snapshot.schema.find("note")).metadata == {"CURRENT_DEFAULT": "'none'"}
    table.append(rows.data(pa.table({"id": pa.array([2], pa.int64())})))
    table.append(rows.data(pa.table({"id": pa.array([3], pa.int64()), "note": pa.array([None], pa.string())})))
    assert [row["note"] for row in rows.pylist(table)] == ["x", "none", None]
    table.alter().drop_default("note").commit()
    assert some(table.snapshot().schema.find("note")).metadata == {}
    for expression in ("id", "", "sum(1)", "1, 2"):
        with pytest.raises(InvalidExpressionError):
            table.alter().set_default("note", expression).commit()


def test_defaults_are_cast_as_values_are(rows: EngineRows, table: DeltaTable) -> None:
    kinds = {"p": ("decimal(5,2)", "0"), "d": ("double", "1"), "s": ("string", "5"), "b": ("binary", "'x'")}
    table.create([column("id", "bigint"), *(column(name, kind, default=text) for name, (kind, text) in kinds.items())])
    table.append(rows.data(pa.table({"id": [1]})))
    assert rows.pylist(table) == [{"id": 1, "p": Decimal("0.00"), "d": 1.0, "s": "5", "b": b"x"}]


def test_columns_whose_values_are_made_have_no_default(table: DeltaTable) -> None:
    table.create([identity_column("k"), column("g", "int", generated_as="a + 1"), column("a", "int")])
    for name in ("k", "g"):
        with pytest.raises(InvalidRequestError, match="cannot have a default"):
            table.alter().set_default(name, "1").commit()
    for alteration in (
        table.alter().set_properties({"delta.columnMapping.mode": "name"}).drop_columns("a"),
        table.alter().set_properties({"delta.columnMapping.mode": "name"}).rename_column("a", "b"),
        table.alter().set_properties({"delta.enableTypeWidening": "true"}).change_type("a", "long"),
    ):
        with pytest.raises(InvalidRequestError, match="the generated column g"):
            alteration.commit()
    table.alter().set_properties({"delta.columnMapping.mode": "name"}).drop_columns("g", "a").add_column(
        "b", "int"
    ).commit()
    assert table.snapshot().schema.names == ("k", "b")


@pytest.mark.parametrize(
    ("text", "data_type"),
    [
        ("BIGINT", t.LONG),
        (" decimal ( 10 , 2 ) ", t.DecimalType(10, 2)),
        ("dec(5)", t.DecimalType(5, 0)),
        ("array<map<string,struct<a:int,`b c`:timestamp_ntz NOT NULL>>>", t.ArrayType(t.MapType(t.STRING, t.StructType((
            t.StructField("a", t.INTEGER), t.StructField("b c", t.TIMESTAMP_NTZ, False)))))),
        ("struct<a int, b string>", t.StructType((t.StructField("a", t.INTEGER), t.StructField("b", t.STRING)))),
        ("struct<>", t.StructType(())),
        ("char(3)", t.STRING),
        ("variant", t.VARIANT),
    ],
)  # fmt: skip
def test_types_as_people_write_them(text: str, data_type: Any) -> None:
    assert parse_declared_type(text)[0] == data_type


@pytest.mark.parametrize(
    "text",
    ["", "in", "array<int", "array<int>>", "map<int>", "decimal(39,1)", "decimal(2,3)", "varchar(x)", "struct<a>",
     "int x", "💣", "struct<a:int not>"],
    ids=range(12),
)  # fmt: skip
def test_what_is_no_type(text: str) -> None:
    with pytest.raises(SchemaMismatchError, match="not a type"):
        parse_declared_type(text)


def test_a_type_that_is_nested_too_deeply() -> None:
    with pytest.raises(UnsupportedError, match="more than 80 levels"):
        parse_declared_type("array<" * 200 + "int" + ">" * 200)


def test_declared_lengths_are_kept(rows: EngineRows, table: DeltaTable) -> None:
    table.create([column("id", "bigint"), column("code", "char(2)"), column("name", "varchar(3)")])
    data = pa.table({"id": pa.array([1, 2], pa.int64()), "code": ["ab", None], "name": ["äöü", ""]})
    table.append(rows.data(data))
    for name, value in (("code", "abc"), ("name", "four")):
        wrong = data.set_column(data.schema.get_field_index(name), name, pa.array([value, None]))
        with pytest.raises(ConstraintViolationError, match=f"declared length of column {name}"):
            table.append(rows.data(wrong))
    assert table.version() == 1


NESTED_LENGTHS = "struct<Code:char(2),l:array<struct<n:varchar(3)>>,m:map<varchar(2),array<char(1)>>>"


@pytest.mark.long
@pytest.mark.parametrize(
    ("value", "path", "text"),
    [
        ({"Code": "abc"}, "s.Code, char(2)", "abc"),
        ({"l": [{"n": "fine"[:3]}, None, {"n": "four"}]}, "s.l.element.n, varchar(3)", "four"),
        ({"m": [("ab", None), ("key", [])]}, "s.m.key, varchar(2)", "key"),
        ({"m": [("a", ["x", None]), ("b", ["ö", "yy"])]}, "s.m.value.element, char(1)", "yy"),
    ],
    ids=["field", "array", "key", "value"],
)
def test_declared_lengths_inside_a_column(
    rows: EngineRows, table: DeltaTable, value: Any, path: str, text: str
) -> None:
    table.create([column("id", "bigint"), column("s", NESTED_LENGTHS)])
    kind = pa.struct(
        [
            ("Code", pa.string()),
            ("l", pa.list_(pa.struct([("n", pa.string())]))),
            ("m", pa.map_(pa.string(), pa.list_(pa.string()))),
        ]
    )
    fine = {"Code": "ä", "l": [{"n": "123"}, {"n": None}], "m": [("ab", ["x", "ö"])]}

    def data(*values: Any) -> pa.Table:
        ids = pa.array(range(len(values)), pa.int64())
        return rows.data(pa.table({"id": ids, "s": pa.array(values, kind)}))

    table.append(data(fine, None, {"Code": None, "l": None, "m": []}))
    before = table.snapshot().version
    with pytest.raises(ConstraintViolationError, match=re.escape(f"declared length of column {path}")) as refused:
        table.append(data(None, fine, {"Code": None, "l": None, "m": None, **value}, fine))
    assert text in str(refused.value)
    assert table.snapshot().version == before
    # Files that are there, from whoever did not look, are rewritten as they are.
    table.append(data(fine))
    assert not table.optimize(engine=rows.engine).skipped


def test_declared_types_are_spelled_as_spark_spells_them(table: DeltaTable) -> None:
    table.create([column("s", " STRUCT<Code : CHAR( 2 ) NOT NULL, `a b`: Map<VARCHAR(3),BIGINT>, d decimal(5, 2)>")],
                 properties={"delta.columnMapping.mode": "name"})  # fmt: skip
    (field,) = table.snapshot().schema
    spelled = "struct<Code:char(2),`a b`:map<varchar(3),bigint>,d:decimal(5,2)>"
    assert field.metadata[CHAR_VARCHAR_TYPE] == spelled


def test_declared_types_follow_the_column(table: DeltaTable) -> None:
    table.create([column("s", "struct<a:varchar(2),m:map<varchar(3),struct<b:char(1),n:int>>>")],
                 properties={"delta.columnMapping.mode": "name", "delta.enableTypeWidening": "true"})  # fmt: skip

    def declared() -> str | None:
        return some(table.snapshot().schema.find("s")).metadata.get(CHAR_VARCHAR_TYPE)

    table.alter().rename_column("s.a", "A b").rename_column("s.m.value.b", "c").add_column("s.a", "string").commit()
    assert declared() == "struct<`A b`:varchar(2),m:map<varchar(3),struct<c:char(1),n:int>>,a:string>"
    table.alter().drop_columns("s.`A b`").change_type("s.m.value.n", "bigint").commit()
    assert declared() == "struct<m:map<varchar(3),struct<c:char(1),n:bigint>>,a:string>"
    kind = pa.struct([("a", pa.string()), ("new", pa.int32())])
    table.append(pa.table({"s": pa.array([{"a": "x", "new": 1}], kind)}), schema_mode="merge")
    assert declared() == "struct<m:map<varchar(3),struct<c:char(1),n:bigint>>,a:string,new:int>"
    with pytest.raises(ConstraintViolationError, match=re.escape("s.m.value.c, char(1)")):
        value = pa.struct([("c", pa.string())])
        kind = pa.struct([("m", pa.map_(pa.string(), value))])
        table.append(pa.table({"s": pa.array([{"m": [("k", {"c": "cc"})]}], kind)}), schema_mode="merge")
    table.alter().drop_columns("s.m").commit()
    assert declared() is None


def test_a_field_with_a_length_of_its_own(rows: EngineRows, table: DeltaTable) -> None:
    table.append(rows.data(pa.table({"s": pa.array([{"a": 1}], pa.struct([("a", pa.int64())]))})))
    table.alter().add_column("s.t", "varchar(2)").commit()
    kind = pa.struct([("a", pa.int64()), ("t", pa.string())])
    with pytest.raises(ConstraintViolationError, match=re.escape("column s.t, varchar(2)")):
        table.append(rows.data(pa.table({"s": pa.array([{"a": 1, "t": "abc"}], kind)})))


def test_a_declaration_that_cannot_be_read(table: DeltaTable) -> None:
    broken = t.StructField("a", t.STRING, metadata={"__CHAR_VARCHAR_TYPE_STRING": "varchar(few)"})
    table.create(t.StructType((broken,)))
    with pytest.raises(ProtocolViolationError, match="declared type of column a"):
        table.append(pa.table({"a": ["x"]}))


def test_a_variant_column_brings_its_feature(table: DeltaTable) -> None:
    table.append(pa.table({"id": pa.array([1], pa.int64())}))
    table.alter().add_column("v", "variant").commit()
    assert table.snapshot().protocol.reader_features == ("variantType",)
    assert table.snapshot().scan().to_arrow().column("v").null_count == 1


def test_collations_are_refused_only_where_a_column_has_one(table: DeltaTable) -> None:
    table.create([column("a", "string")])
    collated = {"__COLLATIONS": {"a": "spark.UTF8_LCASE"}}
    protocol = Protocol(1, 7, None, ("appendOnly", "collations", "domainMetadata", "invariants"))
    metadata = table.snapshot().metadata
    TableConfiguration(protocol, metadata).for_writing()
    schema = t.StructType((t.StructField("a", t.STRING, True, collated),))
    with pytest.raises(UnsupportedFeatureError, match="collations"):
        TableConfiguration(protocol, replace(metadata, schema_string=serialize_schema(schema))).for_writing()
    with pytest.raises(UnsupportedFeatureError, match="collations"):
        spelled = metadata.schema_string.replace('"string"', '"string collate UNICODE"')
        TableConfiguration(protocol, replace(metadata, schema_string=spelled)).for_writing()


@pytest.mark.parametrize(
    ("declared", "text"),
    [("int", "true"), ("double", "true"), ("boolean", "1"), ("boolean", "'true'"), ("boolean", "length('a')"),
     ("tinyint", "300"), ("int", "'x'"), ("date", "'x'"), ("date", "5"), ("int", "date'2020-01-01'"),
     ("int", "99999999999"), ("struct<a: int, b: int>", "named_struct('a', 1)"), ("struct<a: int>", "struct(1, 2)"),
     ("array<struct<a: int>>", "array(struct(1, 2))"), ("int", "struct(1)"), ("array<int>", "map(1, 2)")],
)  # fmt: skip
def test_a_default_that_is_no_value_of_its_column_is_refused_at_once(tmp_path: Path, declared: str, text: str) -> None:
    features = {"delta.feature.allowColumnDefaults": "supported"}
    with pytest.raises(SchemaMismatchError):
        DeltaTable(tmp_path / "t").create([column("a", declared, default=text)], properties=features)
    table = DeltaTable(tmp_path / "u")
    table.create([column("a", declared)], properties=features)
    with pytest.raises(SchemaMismatchError):
        table.alter().set_default("a", text).commit()


@pytest.mark.parametrize(
    ("declared", "kind", "text", "fits"),
    [("int", "string", "a + 1", False), ("int", "bigint", "a + 1", False), ("bigint", "int", "a + 1", False),
     ("decimal(10,2)", "decimal(12,2)", "a", False), ("string", "int", "null", False), ("int", "boolean", "a", False),
     ("string", "struct<x:bigint>", "named_struct('x', 1)", False), ("float", "double", "a", False),
     ("string", "array<int>", "array(1)", True), ("int", "boolean", "a > 1 AND a < 5", True),
     ("int", "double", "a / 2", True), ("timestamp", "date", "CAST(a AS DATE)", True), ("date", "int", "year(a)", True),
     ("string", "bigint", "crc32(a)", True)],
)  # fmt: skip
def test_a_generated_column_has_the_type_of_its_expression(
    tmp_path: Path, declared: str, kind: str, text: str, fits: bool
) -> None:
    columns = [column("a", declared), column("g", kind, generated_as=text)]
    if fits:
        assert DeltaTable(tmp_path).create(columns).version == 0
        return
    with pytest.raises(SchemaMismatchError, match="another type than its expression"):
        DeltaTable(tmp_path).create(columns)
    assert not (tmp_path / "_delta_log").exists()
