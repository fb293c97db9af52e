"""Rows along a curve, in bounded memory: shared out by their place into files on disk, each sorted by itself."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.local.relation import LocalRelation
from delta_orch.engines.local.spool import spilling
from delta_orch.engines.space_curve import SAMPLED_ROWS, Curve, CurveGrid, grid_of
from delta_orch.protocol.arrow_building import longs_from_numpy

if TYPE_CHECKING:
    import numpy.typing as npt

MEMORY_BYTES = 256 * 1024 * 1024
"""Rows up to this size are sorted in memory."""
_BUCKETS = 128
_BATCH_ROWS = 64 * 1024
_LEAST_ROWS = 128


def along_curve(
    relation: LocalRelation, paths: Sequence[tuple[str, ...]], curve: Curve, num_rows: int | None, num_files: int
) -> LocalRelation:
    """See `Engine.along_curve`. The rows are read twice: for a sample of the columns, then all of them."""
    # The writer starts a file between two batches: there are some of them for each file.
    most = _BATCH_ROWS if num_rows is None else min(_BATCH_ROWS, max(_LEAST_ROWS, num_rows // (4 * num_files)))

    def batches() -> Iterator[pa.RecordBatch]:
        sample = _sample(relation, paths)
        grid = grid_of(sample, curve)
        yield from _ordered(relation, paths, grid, sample, most)

    return LocalRelation(relation.schema, batches)


def _columns(rows: pa.RecordBatch | pa.Table, paths: Sequence[tuple[str, ...]]) -> list[pa.Array]:
    columns = []
    for name, *fields in paths:
        column = rows.column(name)
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        for field in fields:
            column = pc.struct_field(column, [field])
        columns.append(pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column)
    return columns


def _sample(relation: LocalRelation, paths: Sequence[tuple[str, ...]]) -> pa.Table:
    """Every so manieth row: twice as far apart whenever there are too many."""
    names = [str(i) for i in range(len(paths))]
    kept: list[pa.Table] = []
    step, skip, held = 1, 0, 0
    for batch in _only(relation, paths).to_reader():
        places = np.arange(skip, batch.num_rows, step)
        skip = (skip - batch.num_rows) % step
        if not len(places):
            continue
        samples = [pc.take(column, longs_from_numpy(places)) for column in _columns(batch, paths)]
        kept.append(pa.Table.from_arrays(samples, names))
        held += len(places)
        while held > 2 * SAMPLED_ROWS:
            whole = pa.concat_tables(kept)
            kept = [pc.take(whole, longs_from_numpy(np.arange(0, whole.num_rows, 2)))]
            held, step = kept[0].num_rows, 2 * step
            skip = 0
    if not kept:
        return pa.table({name: pa.array([], pa.int64()) for name in names})
    return pa.concat_tables(kept)


def _only(relation: LocalRelation, paths: Sequence[tuple[str, ...]]) -> LocalRelation:
    """The columns of the order alone, where the scan can leave out the others."""
    if relation.plan is None or relation.plan.output is not None:
        return relation
    from dataclasses import replace

    from delta_orch.engines.local.scan import scan_relation

    return scan_relation(replace(relation.plan, columns=tuple(dict.fromkeys(path[0] for path in paths))))


def _ordered(
    relation: LocalRelation, paths: Sequence[tuple[str, ...]], grid: CurveGrid, sample: pa.Table, most: int
) -> Iterator[pa.RecordBatch]:
    held: list[pa.RecordBatch] = []
    size = 0
    with ExitStack() as stack:
        buckets: _Buckets | None = None
        for batch in relation.to_reader():
            if not batch.num_rows:
                continue
            held.append(batch)
            size += batch.nbytes
            if size > MEMORY_BYTES:
                if buckets is None:
                    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="delta-orch-curve-"))
                    buckets = _Buckets(Path(directory), batch.schema, grid.places_of(_columns(sample, _flat(paths))))
                    stack.callback(buckets.close)
                buckets.add(*_sorted(held, paths, grid))
                size = 0
        if buckets is None:
            if held:
                yield from _in_order(*_sorted(held, paths, grid)[:2], most)
            return
        if held:
            buckets.add(*_sorted(held, paths, grid))
        for path, num_bytes in buckets.finished():
            with pa.OSFile(str(path), "rb") as source, pa.ipc.open_stream(source) as reader:
                if num_bytes > 2 * MEMORY_BYTES:
                    # Nearly all of it is in one cell: there is no order to bring it into.
                    for batch in reader:
                        yield from (batch.slice(start, most) for start in range(0, batch.num_rows, most))
                else:
                    yield from _in_order(*_sorted(list(reader), paths, grid)[:2], most)


def _flat(paths: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [(str(i),) for i in range(len(paths))]


def _sorted(
    batches: list[pa.RecordBatch], paths: Sequence[tuple[str, ...]], grid: CurveGrid
) -> tuple[pa.Table, npt.NDArray[np.integer], npt.NDArray[np.uint16]]:
    """The rows, their order, and their places in that order. With one column, rows are sorted by its values.

    The list is empty then: of each column, there are only the chunks or the whole in memory, never both of all columns.
    """
    places = np.concatenate([grid.places_of(_columns(batch, paths)) for batch in batches])
    columns, schema = list(pa.Table.from_batches(batches).columns), batches[0].schema
    batches.clear()
    for number in range(len(columns)):
        columns[number] = columns[number].combine_chunks()
    rows = pa.Table.from_arrays(columns, schema=schema)
    if len(paths) == 1:
        by_value = np.asarray(pc.sort_indices(_columns(rows, paths)[0]))
        order = by_value[np.argsort(places[by_value], kind="stable")]
    else:
        order = np.argsort(places, kind="stable")
    return rows, order, places[order]


def _in_order(rows: pa.Table, order: npt.NDArray[np.integer], most: int) -> Iterator[pa.RecordBatch]:
    """The rows a batch at a time: the memory of one batch serves the next."""
    for start in range(0, len(order), most):
        yield from pc.take(rows, longs_from_numpy(order[start : start + most])).to_batches()


class _Buckets:
    """Files of rows whose places lie between two cuts."""

    def __init__(self, directory: Path, schema: pa.Schema, sampled: npt.NDArray[np.uint16]) -> None:
        ordered = np.sort(sampled)
        every = max(1, len(ordered) // _BUCKETS)
        self._cuts = np.unique(ordered[every::every])
        self._paths = [directory / f"{i}.arrow" for i in range(len(self._cuts) + 1)]
        self._bytes = [0] * len(self._paths)
        self._writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
        self._schema = schema

    def add(self, rows: pa.Table, order: npt.NDArray[np.integer], places: npt.NDArray[np.uint16]) -> None:
        """Sorted rows: each file gets those between two of its cuts."""
        edges = [0, *np.searchsorted(places, self._cuts, side="left").tolist(), rows.num_rows]
        for number, (start, stop) in enumerate(pairwise(edges)):
            if start == stop:
                continue
            part = pc.take(rows, longs_from_numpy(order[start:stop]))
            with spilling():
                if number not in self._writers:
                    options = pa.ipc.IpcWriteOptions(compression="lz4")
                    self._writers[number] = pa.ipc.new_stream(str(self._paths[number]), self._schema, options=options)
                self._writers[number].write_table(part)
            self._bytes[number] += part.nbytes

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def finished(self) -> list[tuple[Path, int]]:
        """The files in order, and how many bytes their rows have."""
        numbers = sorted(self._writers)
        with spilling():
            self.close()
        return [(self._paths[number], self._bytes[number]) for number in numbers]
