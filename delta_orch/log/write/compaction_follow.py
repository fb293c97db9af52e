"""A change of data that was overtaken by a compaction: its removes follow the rows into their new files. Pure.

Compaction yields to changes of data, also where it came first: the rows a transaction takes out have only moved. It
follows them where it takes out everything that moved, partition by partition; otherwise rows it keeps would go, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from delta_orch.log.files.commit_reader import Commit
from delta_orch.log.files.file_columns import ADD_SCHEMA
from delta_orch.log.files.partition_columns import file_partition_keys
from delta_orch.log.write.read_set import keys_of
from delta_orch.log.write.staged_actions import StagedActions
from delta_orch.protocol.types import StructType

Removes = list[tuple[pa.Table, bool]]


def removes_after_compaction(
    staged: StagedActions, winner: Commit, schema: StructType, partition_columns: Sequence[str]
) -> Removes | None:
    """The removes as they must be behind a commit that only moved rows; None where they stay as they are, or where the
    transaction cannot follow (then it conflicts).

    Args:
        schema, partition_columns: Of the table.
    """
    changing = [files for files, data_change in staged.removes if data_change]
    if not changing or not _only_moves_rows(winner):
        return None
    ours = pa.concat_arrays([keys_of(files) for files in changing])
    gone = keys_of(winner.removes)
    is_ours = pc.is_in(gone, value_set=ours)
    if not is_ours.true_count or winner.removes.column("partition_values").null_count:
        return None
    touched = file_partition_keys(winner.removes, schema, partition_columns)
    emptied = pc.unique(touched.filter(is_ours))
    if pc.any(pc.is_in(touched.filter(pc.invert(is_ours)), value_set=emptied)).as_py():
        return None
    moved = winner.adds.filter(pc.is_in(file_partition_keys(winner.adds, schema, partition_columns), value_set=emptied))
    kept = [
        (files.filter(pc.invert(pc.is_in(keys_of(files), value_set=gone))) if data_change else files, data_change)
        for files, data_change in staged.removes
    ]
    return [*kept, (moved.select([name for name in ADD_SCHEMA.names if name != "stats"]), True)]


def _only_moves_rows(winner: Commit) -> bool:
    if not winner.removes.num_rows:
        return False
    flags = [files.column("data_change") for files in (winner.adds, winner.removes)]
    return not any(pc.any(pc.or_kleene(flag, flag.is_null())).as_py() for flag in flags)
