"""Columns of shapes: ISO WKB in rows, GEOMETRY and GEOGRAPHY in files, corners in statistics."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_orch import DeltaTable, column
from delta_orch.errors import (
    InvalidExpressionError,
    InvalidRequestError,
    SchemaMismatchError,
    UnsupportedError,
    UnsupportedFeatureError,
)
from delta_orch.protocol.schema import parse_schema, serialize_schema
from delta_orch.protocol.types import GeoType, parse_geo
from tests.harness.commit_lines import adds
from tests.harness.row_multiset import ensure_same_rows

COLUMNS = (
    column("id", "bigint"),
    column("place", "geometry"),
    column("area", "geography"),
    column("high", "geometry(EPSG:3857)"),
    column("s", "struct<a:geometry(srid:0),b:array<geometry>,c:map<string,geography>>"),
)


def point(*coordinates: float, axes: str = "") -> bytes:
    number = 1 + {"": 0, "z": 1000, "m": 2000, "zm": 3000}[axes]
    return struct.pack(f"<BI{len(coordinates)}d", 1, number, *coordinates)


def line(*points: tuple[float, float]) -> bytes:
    """Big endian, as half of the writers have it."""
    return struct.pack(">BII", 0, 2, len(points)) + b"".join(struct.pack(">dd", *p) for p in points)


def rows(*ids: int) -> pa.Table:
    kind = pa.struct([("a", pa.binary()), ("b", pa.list_(pa.binary())), ("c", pa.map_(pa.string(), pa.binary()))])
    inside = [
        None if i % 3 == 2 else {"a": point(-i, i), "b": [point(i, i), None], "c": [("k", point(1, 2))]} for i in ids
    ]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "place": pa.array([None if i % 3 == 2 else line((-i, 4.5), (i, 7)) for i in ids], pa.binary()),
            "area": pa.array([None if i % 3 == 2 else point(i, i) for i in ids], pa.binary()),
            "high": pa.array([None if i % 3 == 2 else point(1, i, 3 * i, axes="z") for i in ids], pa.binary()),
            "s": pa.array(inside, kind),
        }
    )


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    table = DeltaTable(tmp_path / "t")
    table.create(COLUMNS)
    table.append(rows(1, 2, 3))
    return table


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("geometry", "geometry(OGC:CRS84)"),
        ("geography", "geography(OGC:CRS84, spherical)"),
        ("geography(OGC:CRS84, SPHERICAL)", "geography(OGC:CRS84, spherical)"),
        ("geography(EPSG:4326)", "geography(EPSG:4326, spherical)"),
        ("geometry(SRID:0)", "geometry(SRID:0)"),
        ("geometry(projjson:my.crs)", "geometry(projjson:my.crs)"),
        ("geography(OGC:CRS84, karney)", "geography(OGC:CRS84, karney)"),
        ("geography(OGC:CRS84, flat)", None),
        ("geometry(OGC:CRS84, spherical)", None),
        ("geometry(3857)", None),
    ],
)
def test_types(text: str, expected: str | None) -> None:
    found = parse_geo(text)
    assert (found and str(found)) == expected
    if found is not None:
        schema = f'{{"type":"struct","fields":[{{"name":"g","type":"{text}","nullable":true,"metadata":{{}}}}]}}'
        assert parse_schema(schema).fields[0].data_type == found
        assert parse_schema(serialize_schema(parse_schema(schema))) == parse_schema(schema)


def test_types_as_people_write_them() -> None:
    assert column("g", "geometry(EPSG:3857)").data_type == GeoType("geometry", "EPSG:3857")
    assert column("g", "GEOMETRY(4326)").data_type == GeoType("geometry", "OGC:CRS84")
    for text in ("geometry(27700)", "geometry(any)", "geometry()", "geography(a:b, c, d)"):
        with pytest.raises(SchemaMismatchError, match="is not a type"):
            column("g", text)


def test_a_type_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedFeatureError, match="geography\\(OGC:CRS84, flat\\)"):
        parse_schema('{"type":"struct","fields":[{"name":"g","type":"geography(OGC:CRS84, flat)"}]}')


def test_files_and_log_hold_what_the_specification_says(table: DeltaTable, tmp_path: Path) -> None:
    protocol = table.snapshot().protocol
    assert (protocol.min_reader_version, protocol.min_writer_version) == (3, 7)
    assert protocol.reader_features == ("geospatial",) and "geospatial" in (protocol.writer_features or ())
    (add,) = adds(tmp_path / "t", 1)
    assert orjson.loads(add["stats"]) == {
        "numRecords": 3,
        "minValues": {
            "id": 1,
            "place": "POINT(-3.0 4.5)",
            "high": "POINT Z(1.0 1.0 3.0)",
            "s": {"a": "POINT(-3.0 1.0)"},
        },
        "maxValues": {
            "id": 3,
            "place": "POINT(3.0 7.0)",
            "high": "POINT Z(1.0 3.0 9.0)",
            "s": {"a": "POINT(-1.0 3.0)"},
        },
        "nullCount": {"id": 0, "place": 1, "area": 1, "high": 1, "s": {"a": 1, "b": 1, "c": 1}},
    }
    schema = pq.ParquetFile(tmp_path / "t" / add["path"]).schema
    assert {schema.column(i).path: str(schema.column(i).logical_type) for i in (1, 2, 3, 4, 5, 7)} == {
        "place": "Geometry(crs=)",
        "area": "Geography(crs=, algorithm=spherical)",
        "high": "Geometry(crs=EPSG:3857)",
        "s.a": "Geometry(crs=srid:0)",
        "s.b.list.element": "Geometry(crs=)",
        "s.c.key_value.value": "Geography(crs=, algorithm=spherical)",
    }


def test_rows_survive_every_verb(table: DeltaTable) -> None:
    ensure_same_rows(table.snapshot().scan().to_arrow(), rows(1, 2, 3))
    table.merge(rows(3, 4), "target.id = source.id").when_matched_update_all().when_not_matched_insert_all().execute()
    table.delete("id = 1")
    table.update({"area": "NULL"}, where="id = 4")
    table.alter().set_properties(
        {"delta.columnMapping.mode": "name", "delta.checkpoint.writeStatsAsStruct": "true"}
    ).rename_column("place", "the place").commit()
    table.append(rows(5).rename_columns(["id", "the place", "area", "high", "s"]))
    table.optimize()
    table.checkpoint()
    expected = rows(2, 3, 4, 5).to_pylist()
    expected[2]["area"] = None
    found = DeltaTable(table.uri).snapshot().scan().to_arrow()
    names = ["id", "the place", "area", "high", "s"]
    ensure_same_rows(found, pa.Table.from_pylist(expected, rows(1).schema).rename_columns(names))
    assert found.schema.field("the place").type == pa.binary()


def test_shapes_of_dictionaries_and_of_extension_types_are_written(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.create(COLUMNS[:2])
    both = pa.table({"id": [1, 2], "place": [point(1, 2), point(3, 4)]})
    table.append(both.set_column(1, "place", both["place"].dictionary_encode()))
    wkb = _Wkb()
    table.append(both.set_column(1, "place", wkb.wrap_array(both["place"].combine_chunks())))
    assert table.snapshot().scan(["place"]).to_arrow()["place"].to_pylist() == [point(1, 2), point(3, 4)] * 2


class _Wkb(pa.ExtensionType):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(pa.binary(), "geoarrow.wkb")

    def __arrow_ext_serialize__(self) -> bytes:
        return b"{}"


@pytest.mark.parametrize(
    "value",
    [b"", b"\x01", b"POINT(1 2)", struct.pack("<BIIdd", 1, 0x20000001, 4326, 1, 2), struct.pack("<BIdd", 2, 1, 1, 2)],
    ids=["empty", "short", "text", "of-postgis", "no-order"],
)
def test_other_bytes_are_refused(table: DeltaTable, value: bytes) -> None:
    for name in ("place", "area"):
        with pytest.raises(SchemaMismatchError, match=f"Column {name} has a value that is not WKB"):
            table.append(rows(1).set_column(rows().column_names.index(name), name, pa.array([value])))
    assert table.version() == 1


def test_only_nulls_can_be_asked_for(table: DeltaTable) -> None:
    assert table.snapshot().scan(["id"], where="place IS NULL").to_arrow()["id"].to_pylist() == [2]
    for where in ("place = X'00'", "length(place) > 3", "area = area"):
        with pytest.raises(InvalidExpressionError, match="is of type geo"):
            table.snapshot().scan(where=where).to_arrow()


def test_what_shapes_cannot_be(table: DeltaTable, tmp_path: Path) -> None:
    other = DeltaTable(tmp_path / "other")
    with pytest.raises(SchemaMismatchError, match="cannot be a partition column"):
        other.create(COLUMNS[:2], partition_by=["place"])
    with pytest.raises(InvalidRequestError, match="smallest and largest"):
        other.create(COLUMNS[:2], cluster_by=["place"])
    with pytest.raises(SchemaMismatchError, match="has a default or is generated"):
        other.create([column("place", "geometry", default="X'00'")])
    with pytest.raises(SchemaMismatchError, match="place is string"):
        table.append(rows(1).set_column(1, "place", pa.array(["POINT(1 2)"])))
    with pytest.raises(InvalidRequestError, match="drop the geometry and geography columns first"):
        table.alter().drop_feature("geospatial").commit()
    other.create([column("id", "bigint"), column("g", "geography(OGC:CRS84, karney)")])
    with pytest.raises(UnsupportedError, match="not with karney ones"):
        other.append(pa.table({"id": [1], "g": [point(1, 2)]}))


@settings(max_examples=20)
@given(st.lists(st.one_of(st.none(), st.tuples(*[st.floats(-1e9, 1e9)] * 2)), min_size=1, max_size=20))
def test_every_point_is_in_the_box(tmp_path_factory: pytest.TempPathFactory, points: list[Any]) -> None:
    path = tmp_path_factory.mktemp("points") / "t"
    table = DeltaTable(path)
    table.create(COLUMNS[:2])
    table.append(
        pa.table({"id": range(len(points)), "place": pa.array([p and point(*p) for p in points], pa.binary())})
    )
    (add,) = adds(path, 1)
    stats = orjson.loads(add["stats"])
    assert stats["nullCount"]["place"] == points.count(None)
    there = [p for p in points if p is not None]
    if not there:
        assert "place" not in stats["minValues"]
        return
    for bounds, end in (("minValues", min), ("maxValues", max)):
        corner = [float(text) for text in stats[bounds]["place"].removeprefix("POINT(").removesuffix(")").split()]
        assert corner == [end(axis) for axis in zip(*there, strict=True)]
