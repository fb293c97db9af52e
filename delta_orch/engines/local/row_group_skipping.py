"""Leaving out row groups that their statistics rule out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.fs as pafs

from delta_orch.engines.file_lookup import find_in_file
from delta_orch.expressions.nodes import And, Column, Expression
from delta_orch.expressions.to_arrow import to_arrow_expression
from delta_orch.expressions.tree import columns_of, conjunction, is_opaque, with_columns
from delta_orch.protocol.arrow_types import field_to_arrow
from delta_orch.protocol.types import DOUBLE, FLOAT, DecimalType, PrimitiveType, StructField, StructType
from delta_orch.table.column_mapping import ColumnMappingMode


@dataclass(frozen=True, slots=True)
class RowGroupSkipping:
    """A condition over top-level columns of a table, for files that hold these in the table's types.

    Attributes:
        condition: Over logical names.
        fields: The columns it mentions.
        column_mapping: How files know them: their statistics go by the names they have there.
    """

    condition: Expression
    fields: tuple[StructField, ...]
    column_mapping: ColumnMappingMode = ColumnMappingMode.NONE

    def groups_of(
        self, filesystem: pafs.FileSystem, path: str, file_schema: pa.Schema, names: Mapping[str, str]
    ) -> list[int]:
        """The row groups that may hold a row for which the condition is true.

        Args:
            names: As `names_in` gives them. The column chunks of these columns must be known to be sound.
        """
        import pyarrow.dataset as ds

        fragment = ds.ParquetFileFormat().make_fragment(path, filesystem)
        condition = with_columns(self.condition, lambda column: Column((names[column.path[0]],)))
        in_file = StructType(tuple(StructField(names[field.name], field.data_type) for field in self.fields))
        subset = fragment.subset(to_arrow_expression(condition, in_file), schema=file_schema)
        return [group.id for group in subset.row_groups]

    def names_in(self, file_schema: pa.Schema) -> dict[str, str] | None:
        """What the file calls the columns; None where it lacks one, or has another type for it or two by its name."""
        candidates, names = list(file_schema), {}
        for field in self.fields:
            index = find_in_file(field, candidates, self.column_mapping)
            if index is None or not candidates[index].type.equals(field_to_arrow(field).type):
                return None
            names[field.name] = candidates[index].name
            if file_schema.get_field_index(candidates[index].name) != index:
                return None
        return names


def row_group_skipping(
    where: Expression | None,
    schema: StructType,
    partition_columns: tuple[str, ...],
    column_mapping: ColumnMappingMode = ColumnMappingMode.NONE,
) -> RowGroupSkipping | None:
    """What of a resolved predicate row groups can be skipped by; None if nothing.

    Float columns are left out: their statistics pass over NaN, which Spark's comparisons do not.
    """
    parts = where.children if isinstance(where, And) else (where,) if where is not None else ()
    usable = [part for part in parts if _is_usable(part, schema, partition_columns)]
    if not usable:
        return None
    condition = conjunction(*usable)
    names = dict.fromkeys(column.path[0] for column in columns_of(condition))
    fields = (schema.find(name) for name in names)
    return RowGroupSkipping(condition, tuple(field for field in fields if field is not None), column_mapping)


def _is_usable(part: Expression, schema: StructType, partition_columns: tuple[str, ...]) -> bool:
    columns = columns_of(part)
    if is_opaque(part) or not columns:
        return False
    for column in columns:
        field = schema.find(column.path[0])
        if field is None or len(column.path) > 1 or field.name in partition_columns:
            return False
        if not isinstance(field.data_type, PrimitiveType | DecimalType) or field.data_type in (FLOAT, DOUBLE):
            return False
    return True
