"""How many arrays or maps of a column are null, from a Parquet footer.

A footer counts what is inside lists; of the lists themselves it keeps, where its writer does, how many values have
which definition level (`SizeStatistics`). A list that is null, or inside a struct that is, has exactly one value, and
none of its levels is as high as that of a list that is there.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from delta_orch.storage.parquet_footer import LISTS, STRUCT, ThriftWalk

# Field numbers of the format's Thrift definition.
_ROW_GROUPS, _COLUMNS, _CHUNK_METADATA, _CHUNK_SIZES, _DEFINITION_LEVELS = 4, 1, 3, 16, 3


def null_counts_of_lists(metadata: pq.FileMetaData, lists: Mapping[int, int]) -> dict[int, int]:
    """The number of null lists in each column chunk asked for, all row groups together.

    Args:
        metadata: Of a file just written.
        lists: The index of a leaf inside each list → at how many definition levels the list is not there.

    Returns: By leaf; those of which a row group tells no levels are left out.
    """
    sink = pa.BufferOutputStream()
    metadata.write_metadata_file(sink)
    file = sink.getvalue().to_pybytes()
    counts = dict.fromkeys(lists, 0)
    walk = ThriftWalk(file[-8 - int.from_bytes(file[-8:-4], "little") : -8])
    for field in walk.fields():
        if field != _ROW_GROUPS or walk.kind not in LISTS:
            walk.skip()
            continue
        for _ in range(walk.list_size()):
            levels = _levels_of_row_group(walk, lists)
            for leaf in list(counts):
                if leaf in levels:
                    counts[leaf] += sum(levels[leaf][: lists[leaf]])
                else:
                    del counts[leaf]
    return counts


def _levels_of_row_group(walk: ThriftWalk, lists: Mapping[int, int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for field in walk.fields():
        if field != _COLUMNS or walk.kind not in LISTS:
            walk.skip()
            continue
        for leaf in range(walk.list_size()):
            levels = _levels_of_chunk(walk)
            if leaf in lists and len(levels) >= lists[leaf]:
                found[leaf] = levels
    return found


def _levels_of_chunk(walk: ThriftWalk) -> list[int]:
    levels: list[int] = []
    for field in walk.fields():
        if field != _CHUNK_METADATA or walk.kind != STRUCT:
            walk.skip()
            continue
        for inner in walk.fields():
            if inner != _CHUNK_SIZES or walk.kind != STRUCT:
                walk.skip()
                continue
            for part in walk.fields():
                if part == _DEFINITION_LEVELS and walk.kind in LISTS:
                    levels = [walk.integer() for _ in range(walk.list_size())]
                else:
                    walk.skip()
    return levels
