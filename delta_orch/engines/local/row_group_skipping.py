"""Leaving out row groups that their statistics rule out."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from delta_orch.expressions.nodes import And, Expression
from delta_orch.expressions.to_arrow import to_arrow_expression
from delta_orch.expressions.tree import columns_of, conjunction, is_opaque
from delta_orch.protocol.arrow_types import field_to_arrow
from delta_orch.protocol.types import DOUBLE, FLOAT, DecimalType, PrimitiveType, StructType
from delta_orch.storage.parquet_footer import ensure_sound_footer


@dataclass(frozen=True, slots=True)
class RowGroupSkipping:
    """A condition over top-level columns that a file must hold under the same names and types to be asked."""

    condition: pc.Expression
    fields: tuple[pa.Field, ...]

    def groups_of(self, filesystem: pafs.FileSystem, path: str, file_schema: pa.Schema, count: int) -> list[int]:
        """The row groups, of `count`, that may hold a row for which the condition is true.

        Raises:
            pyarrow.ArrowInvalid: The file's footer is damaged.
        """
        for field in self.fields:
            index = file_schema.get_field_index(field.name)
            if index < 0 or not file_schema.field(index).type.equals(field.type):
                return list(range(count))
        import pyarrow.dataset as ds

        fragment = ds.ParquetFileFormat().make_fragment(path, filesystem)
        ensure_sound_footer(fragment.metadata)
        return [group.id for group in fragment.subset(self.condition, schema=file_schema).row_groups]


def row_group_skipping(
    where: Expression | None, schema: StructType, partition_columns: tuple[str, ...]
) -> RowGroupSkipping | None:
    """What of a resolved predicate row groups can be skipped by; None if nothing.

    Float columns are left out: their statistics pass over NaN, which Spark's comparisons do not.
    """
    parts = where.children if isinstance(where, And) else (where,) if where is not None else ()
    usable = [part for part in parts if _is_usable(part, schema, partition_columns)]
    if not usable:
        return None
    condition = conjunction(*usable)
    fields = (schema.find(column.path[0]) for column in columns_of(condition))
    return RowGroupSkipping(
        to_arrow_expression(condition, schema), tuple(field_to_arrow(field) for field in fields if field is not None)
    )


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
