"""New rows that get into files together with their neighbours, in clustered tables that ask for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from delta_orch.engines.base import DEFAULT_FILE_SIZE_BYTES, Engine, Measure, Relation, WriteSpec
from delta_orch.expressions.nodes import Column
from delta_orch.protocol.schema_edit import Path
from delta_orch.protocol.types import DataType, StructType

if TYPE_CHECKING:
    import pyarrow as pa

_MEASURED_ROWS = 1000
_ARROW_TO_PARQUET = 3
"""About how many times as large as in Parquet rows are in Arrow."""


def write_clustered(engine: Engine, rows: Relation, clustering: Sequence[Path], spec: WriteSpec) -> pa.Table:
    """`Engine.write`, in the order of a clustered table: of those of its columns that the rows have, as others are
    filled in later.

    The rows are evaluated once, as an order takes more than one look at them. Some of them tell how many files there
    will be.
    """
    schema = engine.schema(rows)
    columns = [Column(own) for path in clustering if (own := _own_path(schema, path))]
    if not columns:
        return engine.write(rows, spec)
    with engine.evaluated(rows) as kept:
        some = engine.to_arrow(kept, _MEASURED_ROWS)
        counted = engine.to_arrow(engine.aggregate(kept, (), [Measure("rows", "count")]))
        num_rows = counted["rows"][0].as_py()
        num_bytes = num_rows * some.nbytes // max(1, some.num_rows * _ARROW_TO_PARQUET)
        num_files = max(1, -(-num_bytes // (spec.target_file_size_bytes or DEFAULT_FILE_SIZE_BYTES)))
        ordered = engine.along_curve(kept, columns, "hilbert", num_rows=num_rows, num_files=num_files)
        return engine.write(ordered, replace(spec, keeps_order=True))


def _own_path(schema: StructType, path: Path) -> Path | None:
    """The column of the rows that a column of the table takes, as they spell it; None where they lack it."""
    spelled: list[str] = []
    current: DataType = schema
    for name in path:
        field = current.find(name) if isinstance(current, StructType) else None
        if field is None:
            return None
        spelled.append(field.name)
        current = field.data_type
    return tuple(spelled)
