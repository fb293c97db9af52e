"""Leaving out row groups changes no answer, nor does DuckDB as the reader: under column mapping, deletion vectors and
widened types alike."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from delta_orch.engines.local import scan
from delta_orch.engines.local.duckdb_input import duckdb_relation, native_input
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.local.parquet_read import RowGroupSkipping
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.errors import UnsupportedExpressionError
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.parse import parse_expression
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.protocol.arrow_building import schema_to_arrow
from delta_orch.protocol.deletion_vector import DeletionVector
from delta_orch.protocol.types import DOUBLE, INTEGER, LONG, DecimalType, StructField, StructType
from delta_orch.storage.open import open_store
from delta_orch.table.column_mapping import FIELD_ID, PHYSICAL_NAME, ColumnMappingMode
from tests.harness.table_builder import file_table
from tests.property.expression_samples import SCHEMA, random_predicates, sample_table

ENGINE = LocalEngine()
WIDENED = {"b": LONG, "sh": INTEGER, "f": DOUBLE, "d5": DecimalType(12, 3)}
WIDE = StructType(tuple(replace(field, data_type=WIDENED.get(field.name, field.data_type)) for field in SCHEMA))
NUM_FILES, FILE_ROWS, GROUP_ROWS = 4, 60, 10


def _mapped(fields: StructType, numbers: Iterator[int]) -> StructType:
    return StructType(tuple(_mapped_field(field, numbers) for field in fields))


def _mapped_field(field: StructField, numbers: Iterator[int]) -> StructField:
    number = next(numbers)
    inner = _mapped(field.data_type, numbers) if isinstance(field.data_type, StructType) else field.data_type
    return StructField(field.name, inner, True, {PHYSICAL_NAME: f"col-{number}", FIELD_ID: number})


def _in_file(fields: StructType, types: pa.Schema | pa.StructType) -> list[pa.Field]:
    """The fields as a file has them: physical names and ids."""
    found = []
    for field, arrow in zip(fields, types, strict=True):
        data_type = arrow.type
        if isinstance(field.data_type, StructType):
            data_type = pa.struct(_in_file(field.data_type, data_type))
        metadata = {"PARQUET:field_id": str(field.metadata[FIELD_ID])} if field.metadata else None
        found.append(pa.field(field.metadata.get(PHYSICAL_NAME, field.name), data_type, metadata=metadata))
    return found


def _renamed(column: pa.ChunkedArray, field: pa.Field) -> pa.Array:
    array = column.combine_chunks()
    if not pa.types.is_struct(field.type):
        return array
    return pa.StructArray.from_arrays(array.flatten(), fields=list(field.type), mask=array.is_null())


def _table(root: Path, mode: ColumnMappingMode, seed: int) -> ScanPlan:
    """Files sorted by some column, so that row groups differ; half of them from before types were widened."""
    draw = random.Random(seed)
    schema = WIDE if mode is ColumnMappingMode.NONE else _mapped(WIDE, iter(range(1, 100)))
    vectors = []
    for number in range(NUM_FILES):
        stored = SCHEMA if number % 2 else WIDE
        rows = sample_table(seed * 10 + number, FILE_ROWS).cast(schema_to_arrow(stored))
        rows = rows.take(pc.sort_indices(rows, [(draw.choice(["id", "sh", "l", "d5", "S", "day", "ts"]), "ascending")]))
        fields = _in_file(schema, rows.schema)
        columns = [_renamed(column, field) for column, field in zip(rows.columns, fields, strict=True)]
        file = pa.Table.from_arrays(columns, schema=pa.schema(fields))
        pq.write_table(file, root / f"f{number}.parquet", row_group_size=GROUP_ROWS)
        deleted = draw.sample(range(FILE_ROWS), draw.choice([0, 5, FILE_ROWS // 2]))
        vectors.append(DeletionVector(BitMap64(deleted)).inline_descriptor())
    files = file_table(
        *({"path": f"f{number}.parquet", "deletion_vector": vector} for number, vector in enumerate(vectors))
    )
    return ScanPlan(open_store(root), schema, (), files, column_mapping=mode)


def _conditions(schema: StructType, seed: int) -> Iterator[tuple[str, Expression]]:
    for text in random_predicates(seed, 40):
        yield text, resolve_expression(parse_expression(text), schema)


def _texts(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.to_pylist()))  # NaN is not equal to itself


@pytest.mark.long
@pytest.mark.parametrize("mode", list(ColumnMappingMode), ids=str)
def test_no_row_is_lost_with_a_row_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: ColumnMappingMode
) -> None:
    seed = 2
    plan = _table(tmp_path, mode, seed)
    skipped, answered = 0, 0
    groups_of = RowGroupSkipping.groups_of

    def counting(self: RowGroupSkipping, *arguments: Any) -> list[int]:
        nonlocal skipped
        kept = groups_of(self, *arguments)
        skipped += FILE_ROWS // GROUP_ROWS - len(kept)
        return kept

    for text, where in _conditions(plan.schema, seed):
        try:
            relation = ENGINE.scan(replace(plan, where=where))
        except UnsupportedExpressionError:
            continue  # Spark's alone
        answered += 1
        with monkeypatch.context() as patch:
            patch.setattr(scan, "row_group_skipping", lambda *_: None)
            expected = _texts(ENGINE.to_arrow(relation))
        with monkeypatch.context() as patch:
            patch.setattr(RowGroupSkipping, "groups_of", counting)
            assert _texts(ENGINE.to_arrow(relation)) == expected, text
        if relation.plan is not None:
            assert native_input(relation) is not None
            through_duckdb = duckdb_relation(relation, duckdb.connect()).to_arrow_table()
            assert _texts(through_duckdb.cast(schema_to_arrow(relation.schema))) == expected, text
    assert answered > 20
    assert skipped > 10
