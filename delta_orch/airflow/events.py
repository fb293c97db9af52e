"""What an asset event tells of a commit besides its version."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_orch.delta_table import DeltaTable

MAX_PARTITIONS = 1000


def touched_partitions(table: DeltaTable, first: int, last: int) -> list[dict[str, str | None]] | None:
    """The partitions in which commits changed data, as text by column; None where there are more than an event should
    hold, or the table has none."""
    from delta_orch.pipeline.tail import partitions_of_versions

    return partitions_as_text(partitions_of_versions(table.log, first, last))


def partitions_as_text(found: pa.Table) -> list[dict[str, str | None]] | None:
    """One object a partition, as `touched_partitions`."""
    from delta_orch.pipeline.partitions import key_text

    if not found.column_names or found.num_rows > MAX_PARTITIONS:
        return None
    return [
        {name: None if value is None else key_text(value) for name, value in row.items()} for row in found.to_pylist()
    ]
