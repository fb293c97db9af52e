"""Reading the files of a source in steps, exactly once: what the target has not loaded yet.

Which files are loaded is recorded in the target, in the commit of their rows (`arrival.loaded_files`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.arrival.file_look import (
    FileLook,
    NewFiles,
    columns_from_files,
    quarantined_before,
    recorded_files,
    replaced_rows,
)
from delta_orch.arrival.loaded_files import LoadedFiles, cursor_id
from delta_orch.errors import RedoNotPossibleError
from delta_orch.pipeline.target_table import snapshot_or_none
from delta_orch.protocol.arrow_building import one_chunk

if TYPE_CHECKING:
    from delta_orch.arrival.file_source import FileSource
    from delta_orch.arrival.read_files import FileRows
    from delta_orch.delta_table import DeltaTable
    from delta_orch.engines.select import EngineChoice
    from delta_orch.expressions.nodes import Expression
    from delta_orch.log.files.txn import TxnId

logger = logging.getLogger(__name__)

_NAMED_AT_MOST = 5


@dataclass(frozen=True)
class FileBatch:
    """The files that one commit of a step loads.

    Attributes:
        new_files: Which they are.
        schema: The columns of the table that the step writes; None where there is none.
        engine: Who reads them.
        is_whole: They are all files of the source, and their rows replace all rows of the table.
    """

    new_files: NewFiles
    schema: pa.Schema | None
    engine: EngineChoice
    is_whole: bool = False
    _read: list[FileRows] = field(default_factory=list, repr=False, compare=False)

    is_recreated = False
    read = frozenset[str]()
    starting_version = None

    @property
    def source(self) -> FileSource:
        """Where the files are."""
        return self.new_files.source

    @property
    def files(self) -> pa.Table:
        """The files: `path` below the source, `size` in bytes, `modification_time_ms` and `etag`."""
        return self.new_files.files

    @property
    def ending_version(self) -> int:
        """The version of the record that the commit writes."""
        return self.new_files.version

    @property
    def txn(self) -> TxnId:
        """The transaction that the commit records."""
        return self.new_files.txn

    def rows(self, *, as_table: bool = False) -> object:
        """The rows of the files, read once: a `pa.RecordBatchReader`, or a Spark DataFrame on that engine.

        Args:
            as_table: Fit them to the columns of the table, for a step that writes them as they are. By default they
                have the columns of the files, and `FileSource.schema` says more of them. So have change events (`cdc`).

        Raises:
            DeltaError: A file cannot be read (`on_error='fail'`), or does not fit.
        """
        from delta_orch.arrival.read_files import read_files
        from delta_orch.engines.select import select_engine

        schema = self.schema if as_table else None
        rows = read_files(self.source, self.files, schema, engine=select_engine(None, self.engine))
        self._read[:] = [rows]
        return rows.batches

    def to_arrow(self) -> pa.Table:
        """The rows of the files in memory. Raises as `rows`."""
        rows = self.rows()
        return rows.read_all() if isinstance(rows, pa.RecordBatchReader) else rows.toArrow()  # type: ignore[attr-defined]

    @property
    def set_aside(self) -> pa.Table:
        """The files that could not be read, once the rows were: `path` and `error`."""
        return (
            self._read[0].set_aside
            if self._read
            else pa.table({"path": pa.array([], pa.string()), "error": pa.array([], pa.string())})
        )

    @property
    def may_set_aside(self) -> bool:
        """Whether which files are loaded is known after their rows were read."""
        return self.source.on_error == "quarantine"

    def as_input(self) -> dict[str, object]:
        """What the commit of the step says it has read (`StepRecord.inputs`)."""
        read: dict[str, object] = {
            "table": self.source.uri,
            "consumer": self.new_files.loaded.cursor,
            "cursor": self.new_files.loaded.cursor,
            "endingVersion": self.ending_version,
        }
        return {**read, "whole": True} if self.is_whole else read

    def replaced_rows(self) -> Expression:
        """The rows that were loaded before of the files that can be read. Raises as `rows`."""
        if self.may_set_aside and isinstance(rows := self.rows(as_table=True), pa.RecordBatchReader):
            for _ in rows:
                pass  # Read once more when the step asks: the old rows of a file that cannot be read stay.
        return replaced_rows(self.new_files, self.set_aside)

    def quarantined_before(self) -> Expression:
        """The rows of a quarantine that came from these files before. Raises as `rows`."""
        return quarantined_before(self.new_files, self.set_aside)

    def write_record(self) -> None:
        """Write the record that the commit names. Raises as `LoadedFiles.write`."""
        for file in self.set_aside.slice(0, _NAMED_AT_MOST).to_pylist():
            logger.warning("%s/%s is set aside: %s", self.source.uri, file["path"], file["error"])
        self.new_files.write_record(self.set_aside)


class FileReader:
    """Hands a step, batch by batch, the files of `source` that `target` has not loaded. The source is listed once.

    Args:
        source: The files.
        target: The table that the step writes. It need not exist yet.
        engine: Who reads the files.
        unit_column: A column of the table that the step fills.
    """

    def __init__(
        self, source: FileSource, target: DeltaTable, engine: EngineChoice = "auto", unit_column: str | None = None
    ) -> None:
        self.source = source
        self.target = target
        self.engine = engine
        self._unit_column = unit_column
        self.consumer = self.cursor_prefix = cursor_id(source)
        self._look = FileLook(source, target.log)

    def newest_version(self) -> int:
        """Batches are read until there is none."""
        return sys.maxsize

    def next_batch(self, *, appends: bool = False, is_whole: bool = False) -> FileBatch | None:
        """The files that the next commit loads; None where none is new.

        Args:
            is_whole: All files of the source, where one is new.

        Raises as `FileLook.next_files`.
        """
        new_files = self._look.next_files(snapshot_or_none(self.target))
        return None if new_files is None else self.whole_batch() if is_whole else self._batch(new_files)

    def whole_batch(self) -> FileBatch:
        """All files of the source, for a step that starts anew. Raises as `next_batch`."""
        before = recorded_files(self.target.log, snapshot_or_none(self.target), self.consumer)
        anew = LoadedFiles(before.store, before.cursor, before.recorded)
        all_files = NewFiles(self.source, self.source.list_files(), False, anew, before.next_version())
        return self._batch(all_files, is_whole=True)

    def batch_again(self, inputs: Sequence[Mapping[str, object]], *, up_to_cursor: bool) -> FileBatch:
        """The files that a unit has loaded, as they are now.

        Args:
            inputs: Of the unit's commits (`FileBatch.as_input`), at least one.
            up_to_cursor: And those that were loaded since.

        Raises:
            RedoNotPossibleError: Some of them are not there any more.
        """
        if any(one.get("whole") for one in inputs):
            return self.whole_batch()
        versions = [end for one in inputs if isinstance(end := one.get("endingVersion"), int)]
        loaded = recorded_files(self.target.log, snapshot_or_none(self.target), self.consumer)
        paths = one_chunk(
            (loaded.of_versions(since=min(versions)) if up_to_cursor else loaded.of_versions(versions))["path"]
        )
        listed = self.source.list_files()
        places = pc.index_in(paths, value_set=one_chunk(listed["path"]))
        if places.null_count:
            gone = pc.filter(paths, pc.is_null(places))[:_NAMED_AT_MOST].to_pylist()
            raise RedoNotPossibleError(
                f"{places.null_count} files of {self.source.uri} that were loaded cannot be read again",
                cause=f"They are not there any more, or were changed just now: {', '.join(gone)}",
                remedy="Bring the files back. To keep the rows as they are, pass on_redo='keep'; or run the step with "
                "full_refresh, which loads the files that there are",
                paths=gone,
            )
        return self._batch(NewFiles(self.source, pc.take(listed, places), False, loaded, loaded.next_version()))

    def _batch(self, new_files: NewFiles, *, is_whole: bool = False) -> FileBatch:
        schema = columns_from_files(snapshot_or_none(self.target), self._unit_column)
        return FileBatch(new_files, schema, self.engine, is_whole)
