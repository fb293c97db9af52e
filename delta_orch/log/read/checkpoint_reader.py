"""Checkpoints, column by column and row group by row group (PROTOCOL, "Checkpoints").

Columns are decoded on request. V1 checkpoints (one file or many) and V2 checkpoints (a Parquet or JSON file that may
refer to sidecars, under a UUID name or the classic one) look the same from outside.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, TypeVar

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

import delta_orch.arrow_compute as pc
from delta_orch.errors import (
    ChecksumMismatchError,
    CorruptLogError,
    DeltaError,
    FileMissingInStoreError,
    IncompleteCheckpointError,
    ProtocolViolationError,
    StorageError,
    TableError,
)
from delta_orch.log.files.commit_reader import LogActions, LogFile, parse_log_files
from delta_orch.log.files.listing import CheckpointFiles
from delta_orch.log.read.segment import read_last_checkpoint
from delta_orch.protocol.action_json import CHECKPOINT_FIELDS, CHECKPOINT_KEYS, PROBE_LEAF, is_below
from delta_orch.protocol.actions import DomainMetadata, JsonValue, Metadata, Protocol, Sidecar
from delta_orch.protocol.arrow_building import plain, valid_runs
from delta_orch.protocol.paths import SIDECAR_DIRECTORY, checksum_path, decode_path, is_absolute
from delta_orch.storage.base import LogStore
from delta_orch.storage.parquet_footer import ParquetFooter, read_footer

if TYPE_CHECKING:
    from delta_orch.log.files.recorded_txns import RecordedTxns
    from delta_orch.log.read.skipping.file_statistics import ColumnBounds

_LOGGER = logging.getLogger(__name__)
# Threads cost more than they save below.
_QUICK_ROWS = 256 * 1024
_FEW_ROWS = 16 * 1024
_BATCH_ROWS = 64 * 1024
# Column chunks are read in pieces of this size instead of whole; large enough for a store across a network.
_BUFFER_BYTES = 4 << 20

# Names that are not UTF-8, and two fields of one name, are what Arrow leaves to Python.
_DAMAGED = (pa.ArrowException, OSError, KeyError, ValueError)

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class ParquetPart:
    """One Parquet file of a checkpoint."""

    store: LogStore
    path: str

    @cached_property
    def footer(self) -> CheckpointFooter:
        """Read once; what follows from the same bytes is shared with whoever read them before."""
        with readable(self.path):
            return checkpoint_footer(read_footer(self.store.open_input(self.path)))

    @cached_property
    def metadata(self) -> pq.FileMetaData:
        """The footer as Arrow has it."""
        with readable(self.path):
            return self.footer.metadata

    @cached_property
    def decoded(self) -> dict[object, object]:
        """Partition values of row groups, filled by `skipping.data_skipping`."""
        return {}

    @cached_property
    def recent_bounds(self) -> dict[object, Mapping[tuple[str, ...], ColumnBounds]]:
        """The statistics that the last predicates read, filled as `decoded` is."""
        return {}

    @property
    def leaves(self) -> tuple[str, ...]:
        """Dotted paths of all leaf columns, in the file's order."""
        with readable(self.path):
            return self.footer.leaves

    def ensure_sound(self, columns: Iterable[str]) -> None:
        """Check the chunks of top-level columns before Arrow reads them. Raises CorruptLogError."""
        unknown = {*columns} - self.footer.sound_columns
        if unknown:
            with readable(self.path):
                self.footer.ensure_sound_chunks(self.footer.leaves_below(unknown))
            self.footer.sound_columns.update(unknown)

    def ensure_bounded(self, columns: Iterable[str]) -> None:
        """Check that dotted columns take no more memory than a file of this size may. Raises CorruptLogError."""
        unknown = {*columns} - self.footer.bounded_columns
        if not unknown or self.metadata.num_rows <= _BATCH_ROWS:
            return  # Arrow itself holds no more than 2 GiB of a column's texts in a batch.
        from delta_orch.storage.expansion import ensure_bounded

        groups = range(self.metadata.num_row_groups)
        with readable(self.path):
            try:
                ensure_bounded(
                    self._source(), self.footer, groups, sorted(unknown), path=self.path, is_near=self.store.is_near
                )
            except TableError as e:
                raise CorruptLogError(e.problem, cause=e.cause, remedy=e.remedy, path=self.path) from None
        self.footer.bounded_columns.update(unknown)

    def _source(self) -> pa.NativeFile:
        footer = self.footer
        return pa.BufferReader(footer.tail) if footer.is_whole_file else self.store.open_input(self.path)

    def open(self) -> pq.ParquetFile:
        """Raises pyarrow.ArrowException, OSError."""
        return pq.ParquetFile(self._source(), metadata=self.footer.metadata, buffer_size=_BUFFER_BYTES)

    def row_groups(self, action: str) -> list[RowGroup]:
        """The row groups that may hold such actions, going by the footer's null counts."""
        probe = f"{action}.{PROBE_LEAF[action]}"
        if probe not in self.leaves:
            return []
        column = self.leaves.index(probe)
        groups = (RowGroup(self, i) for i in range(self.metadata.num_row_groups))
        return [group for group in groups if group.num_rows and not group.is_all_null(column)]

    @cached_property
    def has_only_actions(self) -> bool:
        """Whether every row is known to hold an action.

        Raises CorruptLogError: A row is empty: its action is lost.
        """
        with readable(self.path):
            names = self.footer.arrow_schema.names
        if not PROBE_LEAF.keys() >= {*names}:
            return False  # Of an action that is yet unknown.
        probes = {name: self.leaves.index(f"{name}.{PROBE_LEAF[name]}") for name in names}
        with readable(self.path):
            # Of each column one leaf: most of its leaves nobody may ask for.
            self.footer.ensure_sound_chunks(probes.values())
        groups = [RowGroup(self, index) for index in range(self.metadata.num_row_groups)]
        held = sum(group.num_actions(name, leaf) for group in groups for name, leaf in probes.items())
        with readable(self.path):
            if held < self.metadata.num_rows:
                raise pa.ArrowInvalid(f"{self.metadata.num_rows - held} of its rows hold no action")
        return True

    def num_actions(self, action: str) -> int | None:
        """How many such actions there are, going by the footer; None where that does not tell."""
        counts = [(g.num_rows, g.null_count(f"{action}.{PROBE_LEAF[action]}")) for g in self.row_groups(action)]
        num_present = [rows - nulls for rows, nulls in counts if nulls is not None]
        return sum(num_present) if len(num_present) == len(counts) else None


@dataclass(frozen=True)
class RowGroup:
    """The unit of reading, and of parallel work."""

    part: ParquetPart
    index: int

    @property
    def num_rows(self) -> int:
        return int(self.part.metadata.row_group(self.index).num_rows)

    def statistics(self, column: int) -> pq.Statistics | None:
        """The footer's statistics of a leaf. Raises CorruptLogError."""
        self.part.ensure_sound([self.part.leaves[column].partition(".")[0]])
        return self.part.metadata.row_group(self.index).column(column).statistics

    def is_all_null(self, column: int) -> bool:
        """Whether the footer proves that the leaf is null in every row."""
        statistics = self.statistics(column)
        return statistics is not None and statistics.has_null_count and statistics.null_count == self.num_rows

    def null_count(self, leaf: str) -> int | None:
        """In how many rows the dotted leaf is null, going by the footer; None where that does not tell."""
        if leaf not in self.part.leaves:
            return self.num_rows
        statistics = self.statistics(self.part.leaves.index(leaf))
        return statistics.null_count if statistics is not None and statistics.has_null_count else None

    def num_actions(self, action: str, probe: int) -> int:
        """How many such actions there are. Reads them only where the footer tells nothing of them.

        Args:
            probe: Their required leaf, which is known to be sound.
        """
        if (statistics := self.part.metadata.row_group(self.index).column(probe).statistics) is None:
            return sum(len(column) - column.null_count for column in self.iter_field(action, PROBE_LEAF[action]))
        # Some writers omit a null count of 0.
        return self.num_rows - (statistics.null_count if statistics.has_null_count else 0)

    def bounds(self, leaf: str) -> tuple[str, str] | None:
        """The least text of a dotted leaf and the greatest, going by the footer; None where that does not tell."""
        statistics = self.statistics(self.part.leaves.index(leaf))
        if statistics is None or not statistics.has_min_max:
            return None
        with readable(self.part.path):
            least, greatest = statistics.min, statistics.max
        return (least, greatest) if isinstance(least, str) and isinstance(greatest, str) else None

    def has(self, column: str) -> bool:
        """Whether some leaf at or below the dotted column may hold a value."""
        below = [i for i, leaf in enumerate(self.part.leaves) if is_below(leaf, column)]
        # A map without entries counts as a null of its keys: its leaves prove nothing.
        return any(".key_value." in self.part.leaves[i] or not self.is_all_null(i) for i in below)

    def read(self, action: str, fields: Sequence[str], use_threads: bool = False) -> dict[str, pa.ChunkedArray | None]:
        """Decode fields of one action: for each a column with one value a row of the group, null in the rows that
        hold another action. A field the group has no value of gives None.

        Raises:
            CorruptLogError: The file is no Parquet file, or damaged.
            IncompleteCheckpointError: The file is gone.
        """
        present_fields = [name for name in fields if self.has(f"{action}.{name}")]
        if not present_fields:
            return dict.fromkeys(fields)
        batches = list(self.iter_structs(action, present_fields, use_threads))
        with readable(self.part.path):
            columns = {
                name: pa.chunked_array([plain(child_of(struct, name)) for struct in batches]) for name in present_fields
            }
        return {name: columns.get(name) for name in fields}

    def iter_field(self, action: str, field: str) -> Iterator[pa.Array]:
        """One field of one action that the group has, some ten thousand rows at a time. Raises as `read`."""
        for struct in self.iter_structs(action, [field], use_threads=False):
            with readable(self.part.path):
                values = plain(child_of(struct, field))
            yield values

    def read_actions(self, names: Sequence[str]) -> list[dict[str, JsonValue]]:
        """All actions of kinds that are few, as parsed JSON would look. Raises as `read`."""
        footer, key = self.part.footer, (self.index, tuple(names))
        if (cached := footer.few_actions.get(key)) is not None:
            return cached
        rows: list[dict[str, JsonValue]] = []
        for batch in self._iter_batches(names, use_threads=False):
            for name, structs in zip(batch.schema.names, batch.columns, strict=True):
                with readable(self.part.path):
                    probe = child_of(structs, PROBE_LEAF[name])
                for start, stop in valid_runs(probe):
                    with readable(self.part.path):
                        values = plain(structs.slice(start, stop - start)).to_pylist(maps_as_pydicts="strict")
                    rows += [{name: value} for value in values]
        if footer.is_whole_file:
            footer.few_actions[key] = rows
        return rows

    def iter_structs(
        self, action: str, fields: Sequence[str] | None, use_threads: bool = False
    ) -> Iterator[pa.StructArray]:
        """The structs of one action with only some fields (dotted paths; None for all), some ten thousand rows at a
        time. Raises as `read`."""
        columns = [action] if fields is None else [f"{action}.{name}" for name in fields]
        with readable(self.part.path):
            calendar = self.part.footer.calendar
        for batch in self._iter_batches(columns, use_threads):
            structs = batch.column(0)
            # Dates and times are among the parsed partition values and statistics.
            with readable(self.part.path):
                yield structs if calendar is None else calendar.rebase(structs)

    def _iter_batches(self, columns: Sequence[str], use_threads: bool) -> Iterator[pa.RecordBatch]:
        self.part.ensure_sound(column.partition(".")[0] for column in columns)
        self.part.ensure_bounded(columns)
        left = self.num_rows
        with readable(self.part.path):
            for batch in self.part.open().iter_batches(
                _BATCH_ROWS,
                row_groups=[self.index],
                columns=columns,
                use_threads=use_threads and self.num_rows > _FEW_ROWS,
            ):
                # Arrow takes strings from a file as they are, UTF-8 or not.
                batch.validate(full=True)
                left -= batch.num_rows
                yield batch
            if left:
                raise pa.ArrowInvalid(f"A row group claims {self.num_rows} rows, which is {left} too many")


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint of a version. Everything is read on first use. All of it is kept except the file actions."""

    store: LogStore
    files: CheckpointFiles

    @property
    def version(self) -> int:
        return self.files.version

    @cached_property
    def json_actions(self) -> LogActions | None:
        """All actions of a V2 checkpoint's JSON file; None for every other kind."""
        path = self.files.files[0].path
        if not path.endswith(".json"):
            return None
        with readable(path):
            data = self.store.read_bytes(path)
        return parse_log_files([LogFile(path, self.version, data)])

    @cached_property
    def top_level_parts(self) -> tuple[ParquetPart, ...]:
        """The checkpoint's own Parquet files, without sidecars."""
        if self.json_actions is not None:
            return ()
        return tuple(ParquetPart(self.store, meta.path) for meta in self.files.files)

    @cached_property
    def protocol_and_metadata(self) -> tuple[Protocol | None, Metadata | None]:
        """Raises CorruptLogError where the checkpoint is damaged, ProtocolViolationError where an action is."""
        actions = self._said("protocol", "metaData", "checkpointMetadata")
        return actions.protocol, actions.metadata

    @cached_property
    def txns(self) -> RecordedTxns:
        """By app id. Raises as `protocol_and_metadata`."""
        from delta_orch.log.files.recorded_txns import RecordedTxns, TxnGroup

        if self.json_actions is not None:
            return RecordedTxns((), self.json_actions.txns)
        _prefetch_footers(self.top_level_parts)
        _ = self._has_only_actions
        for part in self.top_level_parts:
            part.ensure_sound(["txn"])
        groups = [group for part in self.top_level_parts for group in part.row_groups("txn")]
        return RecordedTxns([TxnGroup(group.bounds("txn.appId"), partial(_txns_of, group)) for group in groups], {})

    @cached_property
    def domain_metadata(self) -> Mapping[str, DomainMetadata]:
        """By domain. Raises as `protocol_and_metadata`."""
        _ = self._has_only_actions
        return self._said("domainMetadata").domain_metadata

    @cached_property
    def sidecars(self) -> tuple[Sidecar, ...]:
        """Of a V2 checkpoint. Raises as `protocol_and_metadata`."""
        return tuple(self._said("sidecar").sidecars)

    @property
    def sidecar_paths(self) -> tuple[str, ...]:
        """Where the sidecars lie, relative to the table's root. Raises as `protocol_and_metadata`."""
        return tuple(_sidecar_path(sidecar) for sidecar in self.sidecars)

    def _said(self, *names: str) -> LogActions:
        """The actions of kinds that are few."""
        if self.json_actions is not None:
            return self.json_actions
        _prefetch_footers(self.top_level_parts)
        groups: dict[RowGroup, list[str]] = {}
        for part in self.top_level_parts:
            part.ensure_sound(names)
            for name in names:
                for group in part.row_groups(name):
                    groups.setdefault(group, []).append(name)
        is_quick = sum(group.num_rows for group in groups) <= _QUICK_ROWS
        read = map if is_quick else run_parallel
        actions, file = LogActions(), LogFile(self.files.files[0].path, self.version, b"")
        for rows in read(lambda task: task[0].read_actions(task[1]), list(groups.items())):
            for row in rows:
                actions.take(row, file)
        return actions

    @cached_property
    def sidecar_parts(self) -> tuple[ParquetPart, ...]:
        """The sidecars, in the order of `sidecars`."""
        return tuple(ParquetPart(self.store, path) for path in self.sidecar_paths)

    @cached_property
    def embedded_parts(self) -> tuple[ParquetPart, ...]:
        """Of the checkpoint's own Parquet files those that may hold file actions: all without sidecars; beside them
        none should, but what a writer left there is a file of the table all the same."""
        if not self.sidecars:
            return self.top_level_parts
        return tuple(p for p in self.top_level_parts if p.row_groups("add") or p.row_groups("remove"))

    @property
    def file_parts(self) -> tuple[ParquetPart, ...]:
        """The Parquet files that hold file actions."""
        return (*self.sidecar_parts, *self.embedded_parts)

    def row_groups(self, action: str) -> list[RowGroup]:
        """The row groups that may hold `add` or `remove` actions, in the order of the files.

        Raises as `protocol_and_metadata`; ChecksumMismatchError: The version checksum counts other files.
        """
        _prefetch_footers(self.file_parts)
        _ = self._has_only_actions, [part.has_only_actions for part in self.sidecar_parts]
        groups = [group for part in self.file_parts for group in part.row_groups(action)]
        # Across a network, one more request would cost each first read more than the rest of the check.
        if action == "add" and (self.store.is_near or not groups):
            _ = self.agrees_with_checksum, groups or self._is_meant_to_be_empty
        return groups

    @cached_property
    def _has_only_actions(self) -> bool:
        return all(part.has_only_actions for part in self.top_level_parts)

    @cached_property
    def _is_meant_to_be_empty(self) -> bool:
        """Whether it has no files, which nothing contradicts. Raises CorruptLogError: It should have some."""
        if self.json_actions is not None and self.json_actions.adds.num_rows:
            return False
        hint, own = read_last_checkpoint(self.store), self._said("checkpointMetadata").checkpoint_metadata
        num_adds = hint.num_of_add_files if hint is not None and hint.version == self.version else None
        with readable(self.files.files[0].path):
            if counts := {str(num_adds), str(((own and own.tags) or {}).get("numOfAddFiles"))} - {"None", "0"}:
                raise ValueError(f"It has no files, and should have {min(counts)}")
        return True

    @cached_property
    def agrees_with_checksum(self) -> bool:
        """Whether the checksum of the version is of the same table, and counts the files that the footers count; False
        where it is not known.

        Raises:
            ChecksumMismatchError: It is of another table, or counts others.
        """
        if not self.files.has_checksum:
            return False
        _, metadata = self.protocol_and_metadata
        counts = [part.num_actions("add") for part in self.file_parts]
        counts.append(0 if self.json_actions is None else self.json_actions.adds.num_rows)
        known_counts = [count for count in counts if count is not None]
        num_files = sum(known_counts) if len(known_counts) == len(counts) else None
        return ensure_agrees(self.store, self.version, None if metadata is None else metadata.id, num_files)


def ensure_agrees(store: LogStore, version: int, table_id: str | None, num_files: int | None) -> bool:
    """As `Checkpoint.agrees_with_checksum`, for a table id and a number of files; None skips a comparison."""
    counted, recorded_id = _recorded(store, version)
    is_of = "is of the table with the id {}"
    for has, is_so, recorded in ((is_of, table_id, recorded_id), ("has {} files", num_files, counted)):
        if None not in (is_so, recorded) and is_so != recorded:
            raise ChecksumMismatchError(
                f"The checkpoint of version {version} does not agree with its version checksum",
                cause=f"The checkpoint {has.format(is_so)}, and the checksum says {recorded}",
                remedy="Compare both with the commits: delete the checkpoint if these are all there, or the checksum "
                f"{checksum_path(version)} if that is wrong, or restore the log from a backup",
                version=version,
                recorded=recorded,
                computed=is_so,
            )
    return None not in (num_files, counted)


def _recorded(store: LogStore, version: int) -> tuple[int | None, str | None]:
    """The number of files and the table's id in the checksum of a version; None if it lacks them."""
    try:
        checksum = orjson.loads(store.read_bytes(checksum_path(version)))
    except (ValueError, CorruptLogError, StorageError) as e:
        _LOGGER.info("Passing over the version checksum of version %d of %s: %s", version, store.uri, e)
        return None, None
    checksum = checksum if isinstance(checksum, dict) else {}
    count, metadata = checksum.get("numFiles"), checksum.get("metadata")
    table_id = metadata.get("id") if isinstance(metadata, dict) else None
    return count if isinstance(count, int) else None, table_id if isinstance(table_id, str) else None


def _txns_of(group: RowGroup) -> pa.Table:
    """The identifiers of a row group, columns of `TXN_SCHEMA`. Raises as `RowGroup.read`, and ProtocolViolationError
    where one is malformed."""
    from delta_orch.log.files.recorded_txns import TXN_SCHEMA

    columns = group.read("txn", ("appId", "version", "lastUpdated"))
    app_ids, versions = columns["appId"], columns["version"]
    if app_ids is None:
        return pa.Table.from_batches([], TXN_SCHEMA)
    is_there = pc.is_valid(app_ids)
    if versions is None or pc.any(pc.and_(is_there, pc.is_null(versions))).as_py():
        raise ProtocolViolationError("A txn action has no version", remedy=_REMEDY, path=group.part.path)
    arrays = []
    for name, column in zip(TXN_SCHEMA.names, columns.values(), strict=True):
        target = TXN_SCHEMA.field(name).type
        if column is not None and (pt.is_string(target), pt.is_integer(target)) != (
            pt.is_string(column.type),
            pt.is_integer(column.type),
        ):
            cause = f"{name} is of type {column.type}"
            raise ProtocolViolationError("A txn action is malformed", cause=cause, remedy=_REMEDY, path=group.part.path)
        with readable(group.part.path):
            arrays.append(pa.nulls(len(is_there), target) if column is None else pc.cast(column, target))
    return pc.filter(pa.table(arrays, schema=TXN_SCHEMA), is_there)


def child_of(struct: pa.StructArray, name: str) -> pa.Array:
    """A field of a struct, null where the struct is. Some writers declare fields as required, which then hold arbitrary
    values instead of nulls in the rows of other actions."""
    if not pa.types.is_struct(struct.type):
        raise pa.ArrowTypeError(f"An action is stored as {struct.type}, not as a struct")
    index = struct.type.get_field_index(name)
    return struct.field(index) if struct.type.field(index).nullable else struct.flatten()[index]


def run_parallel(function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
    """`map_ahead`, all of it."""
    from delta_orch.storage.prefetch import map_ahead, thread_count

    return list(map_ahead(function, tasks, max(2, thread_count())))


def _prefetch_footers(parts: Iterable[ParquetPart]) -> None:
    run_parallel(lambda part: part.metadata, [p for p in parts if "metadata" not in p.__dict__])


def _sidecar_path(sidecar: Sidecar) -> str:
    # "Sidecar files must always reside in the table's own _sidecars directory": only the name counts, even where a
    # writer put a whole URI.
    path = decode_path(sidecar.path)
    if is_absolute(sidecar.path) or "/" in path:
        path = path.rpartition("/")[2]
    return f"{SIDECAR_DIRECTORY}/{path}"


_REMEDY = "Delete the damaged checkpoint if the commits before it are still there, or restore it from a backup"


class readable:
    """Turns what a damaged or missing checkpoint file raises into our own errors."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        name = self._path.rpartition("/")[2]
        if isinstance(error, FileMissingInStoreError):
            raise IncompleteCheckpointError(
                f"Checkpoint file {name} is gone", cause=str(error), remedy=_REMEDY, path=self._path
            ) from error
        if isinstance(error, _DAMAGED) and not isinstance(error, DeltaError):
            raise CorruptLogError(
                f"Checkpoint file {name} cannot be read", cause=str(error), remedy=_REMEDY, path=self._path
            ) from error


# The footer of a checkpoint file: which columns there are, and whether they are those that are read (PROTOCOL,
# "Checkpoint Schema").


@dataclass(frozen=True)
class CheckpointFooter(ParquetFooter):
    """The footer of a checkpoint file, and what is known of it."""

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The columns as Arrow reads them."""
        return self.metadata.schema.to_arrow_schema()

    @cached_property
    def leaves(self) -> tuple[str, ...]:
        """Dotted paths of all leaf columns. Raises pyarrow.ArrowInvalid where an action lacks what it is known by."""
        schema = self.metadata.schema
        _ensure_actions(self.arrow_schema)
        return tuple(schema.column(i).path for i in range(len(schema)))

    @cached_property
    def sound_columns(self) -> set[str]:
        """The top-level columns whose chunks are known to be sound."""
        return set()

    @cached_property
    def bounded_columns(self) -> set[str]:
        """The dotted columns that are known to take no more memory than they may."""
        return set()

    @cached_property
    def few_actions(self) -> dict[tuple[int, tuple[str, ...]], list[dict[str, JsonValue]]]:
        """Results of `RowGroup.read_actions` for a file that is whole in memory."""
        return {}


# Some writers do not say that bytes are text.
_TEXT = frozenset(t.id for t in (pa.string(), pa.large_string(), pa.string_view(), pa.binary()))
_IS_OF_TYPE: Mapping[str, Callable[[pa.DataType], bool]] = {
    "text": lambda t: (t.value_type if pa.types.is_dictionary(t) else t).id in _TEXT,
    "integer": pa.types.is_integer,
    "map": pa.types.is_map,
}


def _ensure_actions(struct: pa.Schema | pa.StructType, place: str = "") -> None:
    """Check that what is read of actions is found: a column of another name or type would count as one that is not
    there, and its files, rows or identifiers would be gone.

    Args:
        place: Of the struct, with a dot behind it; empty for the file.

    Raises:
        pyarrow.ArrowInvalid: A name occurs twice or in another case, or a struct lacks a key, or has it in another
            type.
    """
    action, names = place.rstrip(".").rpartition(".")[2], struct.names
    known_fields, keys = CHECKPOINT_FIELDS[action], CHECKPOINT_KEYS.get(action, {})
    others = [name for name in names if name not in known_fields]
    doubtful = {name for name in names if names.count(name) > 1}.intersection(known_fields)
    if others:
        spelled = {name.lower() for name in known_fields}
        doubtful |= {name for name in others if name.lower() in spelled}
    if doubtful:
        raise pa.ArrowInvalid(f"Columns of it are spelled twice or in another case: {place}{min(doubtful)}")
    for name, kind in keys.items():
        field_type = struct.field(name).type if name in names else None
        if field_type is None or not _IS_OF_TYPE[kind](field_type):
            raise pa.ArrowInvalid(f"Its column {place}{name} should hold {kind}, and is {field_type or 'not there'}")
    for name in names:
        if name in CHECKPOINT_KEYS and name in known_fields:
            inner = struct.field(name).type
            if not pa.types.is_struct(inner):
                raise pa.ArrowInvalid(f"Its column {place}{name} should be a struct, and is {inner}")
            _ensure_actions(inner, f"{place}{name}.")


@lru_cache(maxsize=4)
def _known_footer(tail: bytes, is_whole_file: bool) -> CheckpointFooter:
    """Every handle on a table opens its newest checkpoint: equal bytes are looked into once in a process."""
    return CheckpointFooter(tail, is_whole_file)


def checkpoint_footer(footer: ParquetFooter) -> CheckpointFooter:
    """The footer as that of a checkpoint."""
    return _known_footer(footer.tail, footer.is_whole_file)
