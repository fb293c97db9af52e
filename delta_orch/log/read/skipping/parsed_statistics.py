"""Statistics that a checkpoint holds as columns (`stats_parsed`): only the leaves a predicate looks at are decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.log.files.partition_columns import one_chunk
from delta_orch.log.read.checkpoint_decoding import Mask, select
from delta_orch.log.read.checkpoint_reader import RowGroup
from delta_orch.log.read.skipping.column_bounds import ColumnBounds, bounds_of
from delta_orch.protocol.checkpoint_schema import STATS_PARSED
from delta_orch.protocol.types import DataType

Path = tuple[str, ...]


def read_parsed_bounds(
    group: RowGroup, keep: Mask | None, columns: Mapping[Path, DataType]
) -> dict[Path, ColumnBounds] | None:
    """Bounds of columns, given by physical path, for the `add` actions a mask marks; None where the row group has no
    statistics as columns.

    Raises:
        CorruptLogError: The file is damaged.
        IncompleteCheckpointError: It is gone.
    """
    wanted = [
        ("numRecords",),
        *((kind, *path) for path in columns for kind in ("minValues", "maxValues", "nullCount")),
    ]
    present = [leaf for leaf in wanted if _name(leaf) in group.part.leaves]
    if len(present) < 2:
        return None
    names = [_name(leaf).removeprefix("add.") for leaf in present]
    structs = pa.chunked_array(list(group.iter_structs("add", names)))
    adds = one_chunk(select(structs, keep))
    values = {leaf: _descend(adds, (STATS_PARSED, *leaf)) for leaf in present}

    def column(*leaf: str) -> pa.Array:
        return values[leaf] if leaf in values else pa.nulls(len(adds), pa.int64())

    return {
        path: bounds_of(
            data_type,
            column("minValues", *path),
            column("maxValues", *path),
            column("nullCount", *path),
            column("numRecords"),
        )
        for path, data_type in columns.items()
    }


def _name(leaf: Sequence[str]) -> str:
    return ".".join(("add", STATS_PARSED, *leaf))


def _descend(struct: pa.StructArray, path: Sequence[str]) -> pa.Array:
    for name in path:
        struct = pc.struct_field(struct, [struct.type.get_field_index(name)])
    return struct
