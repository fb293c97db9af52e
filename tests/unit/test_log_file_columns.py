"""Columns of tables of files are attributes of `FileTable`: no second spelling of their names, none as a string."""

from __future__ import annotations

import ast
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import delta_orch
from delta_orch.log.files.file_columns import ADD_SCHEMA, CDC_SCHEMA, REMOVE_SCHEMA, FileTable, with_record_count
from delta_orch.log.files.stats_columns import parse_stats

PACKAGE = Path(delta_orch.__file__).parent
NAMES = {*ADD_SCHEMA.names, *REMOVE_SCHEMA.names, *CDC_SCHEMA.names}
FILE_TABLES = {"files", "adds", "removes", "removed", "tombstones", "lacking", "before", "after"}


def test_a_file_table_has_an_attribute_for_each_column() -> None:
    for schema in (ADD_SCHEMA, REMOVE_SCHEMA, CDC_SCHEMA):
        table = schema.empty_table()
        assert [getattr(FileTable(table), name).type for name in schema.names] == schema.types


def test_a_file_table_raises_key_error_for_a_column_that_was_not_read() -> None:
    with pytest.raises(KeyError):
        _ = FileTable(ADD_SCHEMA.empty_table().select(["path"])).size


def test_no_module_reads_a_column_of_files_by_a_string() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.parent.name != "arrival"  # Its listings of a source's files are no files of a log.
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if _reads_by_string(node)
    ]
    assert found == [], "use FileTable(files).<column>"


def test_the_guard_knows_both_spellings() -> None:
    for text in ('files.column("path")', 'files["size"]', 'snapshot.files(["dv_id"])["dv_id"]'):
        assert any(map(_reads_by_string, ast.walk(ast.parse(text)))), text
    for text in ('row["path"]', "FileTable(files).path", 'files.select(["path"])', 'files.column("num_records")'):
        assert not any(map(_reads_by_string, ast.walk(ast.parse(text)))), text


def _reads_by_string(node: ast.AST) -> bool:
    """`table.column("path")`, or `table["path"]` where the table is called as tables of files are."""
    match node:
        case ast.Call(ast.Attribute(attr="column"), [ast.Constant(str(name))]):
            return name in NAMES
        case ast.Subscript(ast.Name(table), ast.Constant(str(name))):
            return name in NAMES and table in FILE_TABLES
        case ast.Subscript(ast.Call(ast.Attribute(attr=table)), ast.Constant(str(name))):
            return name in NAMES and table in FILE_TABLES
    return False


def test_numbers_of_statistics_are_written_as_they_stand() -> None:
    """A double rounds a long decimal, and then values lie outside its bounds."""
    number = "12345678901234567.12"
    told = f'{{"numRecords":1,"minValues":{{"d":{number},"f":"nothing"}},"maxValues":{{"d":-{number}}}}}'
    assert f'"minValues":{{"d":{number},' in with_record_count(told, 7)
    assert with_record_count("[1]", 7) == with_record_count('{"a":NaN}', 7) == '{"numRecords":7}'
    bounds = pa.struct([("d", pa.decimal128(20, 2)), ("f", pa.float64())])
    parsed = parse_stats(pa.chunked_array([[told]]), pa.struct([("minValues", bounds), ("maxValues", bounds)]))
    assert parsed.to_pylist() == [
        {"minValues": {"d": Decimal(number), "f": None}, "maxValues": {"d": Decimal(f"-{number}"), "f": None}}
    ]
