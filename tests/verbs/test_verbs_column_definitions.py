"""A definition of a column in the metadata of Arrow or Spark is refused by every write that defines columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import delta_orch
from delta_orch import DeltaTable, column, identity_column
from delta_orch.errors import InvalidRequestError
from tests.families import family

DEFINITIONS = {
    "delta.generationExpression": "id + 1",
    "delta.identity.start": "1",
    "CURRENT_DEFAULT": "7",
    "delta.invariants": '{"expression": {"expression": "more > 3"}}',
    "delta.somethingNew": "x",
}
OF_ARROW = {**DEFINITIONS, "__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}


def stating(key: str, place: str = "column") -> pa.Table:
    """Two rows: `id`, and `more` with a definition of it or inside it."""
    inner = pa.field("more", pa.int64(), metadata={key: DEFINITIONS.get(key, "x")})
    element = inner.with_name("element")
    field, value = {
        "column": (inner, None),
        "struct": (pa.field("more", pa.struct([inner])), {"more": 2}),
        "element": (pa.field("more", pa.list_(element)), [2]),
        "value": (pa.field("more", pa.map_(pa.string(), element.with_name("value"))), [("a", 2)]),
        "struct in a list": (pa.field("more", pa.list_(pa.struct([inner]))), [{"more": 2}]),
    }[place]
    values = [2, 3] if value is None else [value, value]
    return pa.table([pa.array([1, 2]), pa.array(values, field.type)], schema=pa.schema([("id", pa.int64()), field]))


def files(rows: pa.Table, root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, root / "1.parquet")
    return root


Write = Callable[[DeltaTable, Any], object]
CREATES: dict[str, Write] = {
    "append": lambda table, rows: table.append(rows),
    "overwrite": lambda table, rows: table.overwrite(rows),
    "create_or_replace": lambda table, rows: table.create_or_replace(data=rows),
    "append evolving": lambda table, rows: table.append(rows, schema_mode="merge"),
    "staged": lambda table, rows: table.append(rows, stage=True),
}
CHANGES: dict[str, Write] = {
    "append": lambda table, rows: table.append(rows, schema_mode="merge"),
    "overwrite": lambda table, rows: table.overwrite(rows, schema_mode="overwrite"),
    "overwrite merging": lambda table, rows: table.overwrite(rows, schema_mode="merge"),
    "create_or_replace": lambda table, rows: table.create_or_replace(data=rows),
    "merge": lambda table, rows: (
        table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t", schema_mode="merge")
        .when_not_matched_insert_all()
        .execute()
    ),
    "upsert": lambda table, rows: table.upsert(rows, ["id"], schema_mode="merge"),
}
OF_SCHEMAS: dict[str, Write] = {
    "create": lambda table, rows: table.create(rows.schema),
    "create of fields": lambda table, rows: table.create(list(rows.schema)),
    "create of a type": lambda table, rows: table.create([column(f.name, pa.struct([f])) for f in rows.schema]),
    "create_or_replace": lambda table, rows: table.create_or_replace(rows.schema),
    "convert": lambda table, rows: DeltaTable.convert(files(rows, Path(table.uri.removeprefix("file://")))),
    "partitions of a conversion": lambda table, rows: DeltaTable.convert(
        files(pa.table({"x": [1]}), Path(table.uri.removeprefix("file://")) / "id=1" / "more=2").parents[1], rows.schema
    ),
}


def refuses(table: DeltaTable, write: Write, rows: Any, key: str) -> None:
    version = table.snapshot().version if table.exists() else None
    with pytest.raises(InvalidRequestError, match=f"'(more|element|value)' holds {key}"):
        write(table, rows)
    assert (table.snapshot().version if table.exists() else None) == version


@pytest.mark.parametrize("key", OF_ARROW)
@pytest.mark.parametrize("name", CREATES)
def test_rows_that_create_a_table(table: DeltaTable, name: str, key: str) -> None:
    refuses(table, CREATES[name], stating(key), key)


@pytest.mark.parametrize("place", ["struct", "element", "value", "struct in a list"])
@pytest.mark.parametrize("name", [*CREATES, *(name for name in OF_SCHEMAS if "partitions" not in name)])
def test_definitions_inside_a_column(table: DeltaTable, name: str, place: str) -> None:
    with pytest.raises(InvalidRequestError, match="'more' holds delta\\.generationExpression"):
        {**CREATES, **OF_SCHEMAS}[name](table, stating("delta.generationExpression", place))
    assert not table.exists()


@pytest.mark.parametrize("key", OF_ARROW)
@pytest.mark.parametrize("name", OF_SCHEMAS)
def test_schemas_and_files(table: DeltaTable, name: str, key: str) -> None:
    refuses(table, OF_SCHEMAS[name], stating(key), key)


@pytest.mark.parametrize("is_there", [False, True], ids=["new column", "known column"])
@pytest.mark.parametrize("name", CHANGES)
def test_rows_that_change_a_table(table: DeltaTable, name: str, is_there: bool) -> None:
    table.append(pa.table({"id": [9], "more": [9]} if is_there else {"id": [9]}))
    for key in DEFINITIONS:
        refuses(table, CHANGES[name], stating(key), key)


def test_columns_that_are_added(table: DeltaTable) -> None:
    table.append(pa.table({"id": [9]}))
    field = stating("CURRENT_DEFAULT").schema.field("more")
    for add in (
        lambda: table.alter().add_columns(pa.schema([field])).commit(),
        lambda: table.alter().add_column("st", pa.struct([field])).commit(),
    ):
        with pytest.raises(InvalidRequestError, match="'more' holds CURRENT_DEFAULT"):
            add()


def test_statements(table: DeltaTable) -> None:
    """Columns of a query have no definitions, whatever becomes of those of its rows."""
    rows, plain = stating("delta.generationExpression"), pa.table({"id": [1]})
    tables = {"t": table, "r": rows, "p": plain}

    def refuses_statement(text: str) -> None:
        with pytest.raises(InvalidRequestError, match=r"'more' holds delta\.generationExpression"):
            delta_orch.sql(text, tables=tables)

    refuses_statement("CREATE TABLE t USING delta AS SELECT * FROM r")
    refuses_statement("CREATE OR REPLACE TABLE t USING delta AS SELECT r.more + 1 AS x FROM r JOIN p ON p.id = r.id")
    delta_orch.sql("CREATE TABLE t USING delta AS SELECT * FROM p", tables=tables)
    refuses_statement("INSERT WITH SCHEMA EVOLUTION INTO t BY NAME SELECT * FROM r")
    for source in ("r", "(SELECT * FROM r)"):
        refuses_statement(
            f"MERGE WITH SCHEMA EVOLUTION INTO t USING {source} AS s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *"
        )
    delta_orch.sql("INSERT INTO t SELECT id FROM r", tables=tables)
    assert table.snapshot().schema.names == ("id",) and table.snapshot().scan().count() == 3


@pytest.mark.parametrize("key", ["delta.generationExpression", "delta.identity.start", "CURRENT_DEFAULT"])
def test_what_the_table_says_itself_is_no_definition_of_the_rows(table: DeltaTable, key: str) -> None:
    """Rows that deltalake reads state the definitions of their table, and go into it again."""
    defined = {
        "delta.generationExpression": column("more", "bigint", generated_as="id + 1"),
        "delta.identity.start": identity_column("more", allow_explicit_insert=True),
        "CURRENT_DEFAULT": column("more", "bigint", default="7"),
    }[key]
    table.create([column("id", "bigint"), defined], properties={"delta.feature.allowColumnDefaults": "supported"})
    rows = stating(key)
    table.append(rows)
    table.overwrite(rows)
    for name, write in CHANGES.items():
        if name != "create_or_replace" and (key != "delta.identity.start" or name != "upsert"):
            write(table, rows)
    assert table.snapshot().schema.fields[1].metadata[key] == defined.metadata[key]
    table.add_files([str(files(rows, Path(table.uri.removeprefix("file://")) / "new") / "1.parquet")])
    plain = DeltaTable(table.uri + "-plain")
    plain.append(pa.table({"id": [1], "more": [1]}))
    plain.append(rows)
    assert not plain.snapshot().schema.fields[1].metadata


def test_the_past_of_another_table_is_left_out(table: DeltaTable) -> None:
    past = {"delta.columnMapping.id": "1", "delta.identity.highWaterMark": "3", "comment": "x", "PARQUET:field_id": "1"}
    table.append(pa.table([[1]], schema=pa.schema([pa.field("id", pa.int64(), metadata=past)])))
    assert not table.snapshot().schema.fields[0].metadata
    table.append(table.snapshot().scan())
    assert table.snapshot().scan().count() == 2


@pytest.mark.spark
@family("key", list(DEFINITIONS), every=5)
def test_frames_of_spark(table: DeltaTable, spark: Any, key: str) -> None:
    plain = spark.createDataFrame([(1, 2)], "id bigint, more bigint")
    frame = plain.withMetadata("more", {key: DEFINITIONS[key]})
    for rows in (frame, stating(key)):
        with pytest.raises(InvalidRequestError, match=f"'more' holds {key}"):
            table.append(rows, engine="spark")
    path = table.uri.removeprefix("file://")
    with pytest.raises(Exception, match=f"'more' holds {key}"):
        frame.write.format("delta_orch").mode("append").save(path)
    assert not table.exists()
    table.append(plain.select("id"))
    for write in CHANGES.values():
        refuses(table, write, frame, key)
    with pytest.raises(Exception, match=f"'more' holds {key}"):
        frame.write.format("delta_orch").mode("append").option("mergeSchema", "true").save(path)
