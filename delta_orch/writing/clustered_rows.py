"""New rows that get into files together with their neighbours, in clustered tables that ask for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from delta_orch.engines.base import Engine, Measure, Relation
from delta_orch.expressions.nodes import Column
from delta_orch.protocol.schema_edit import Path
from delta_orch.protocol.types import DataType, StructType

_MEASURED_ROWS = 1000
_ARROW_TO_PARQUET = 3
"""About how many times as large as in Parquet rows are in Arrow."""


@contextmanager
def clustered_rows(
    engine: Engine, rows: Relation, clustering: Sequence[Path], file_size_bytes: int
) -> Iterator[Relation]:
    """New rows in the order of a clustered table, by those of its columns that they have: others are filled in later.

    They are evaluated once, as an order takes more than one look at them. How many files they need is told by some.
    """
    schema = engine.schema(rows)
    columns = [Column(own) for path in clustering if (own := _own_path(schema, path))]
    if not columns:
        yield rows
        return
    with engine.evaluated(rows) as kept:
        some = engine.to_arrow(kept, _MEASURED_ROWS)
        counted = engine.to_arrow(engine.aggregate(kept, (), [Measure("rows", "count")]))
        num_rows = counted["rows"][0].as_py()
        num_bytes = num_rows * some.nbytes // max(1, some.num_rows * _ARROW_TO_PARQUET)
        num_files = max(1, -(-num_bytes // file_size_bytes))
        yield engine.along_curve(kept, columns, "hilbert", num_rows=num_rows, num_files=num_files)


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
