"""`{version}.crc`: a writer's summary of the table's state after a commit (PROTOCOL, "Version Checksum File")."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

import orjson

from delta_orch.errors import CorruptLogError, ProtocolViolationError
from delta_orch.protocol.action_json import as_string, body_to_json, parse_body
from delta_orch.protocol.actions import DomainMetadata, JsonObject, JsonValue, Metadata, Protocol, Txn

T = TypeVar("T")
_INT64 = 1 << 63

DELETED_RECORD_BOUNDARIES = (0, 1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 2_147_483_647)
"""The smallest number of deleted records of each bin of `deleted_record_counts`."""


_MIB = 1 << 20
FILE_SIZE_BOUNDARIES = (
    0,
    *(1 << exponent for exponent in range(13, 23)),
    *range(8 * _MIB, 41 * _MIB, 4 * _MIB),
    *range(48 * _MIB, 121 * _MIB, 8 * _MIB),
    *range(124 * _MIB, 145 * _MIB, 4 * _MIB),
    *range(160 * _MIB, 577 * _MIB, 16 * _MIB),
    *range(640 * _MIB, 1409 * _MIB, 64 * _MIB),
    *range(1536 * _MIB, 2049 * _MIB, 128 * _MIB),
    *range(2304 * _MIB, 4097 * _MIB, 256 * _MIB),
    *(1 << exponent for exponent in range(33, 39)),
)
"""The bins of histograms that begin here. They are the reference implementation's own, finest around the sizes that
files usually have: with others it continues a histogram it can no longer verify, and writes no checkpoint."""


@dataclass(frozen=True, slots=True)
class FileSizeHistogram:
    """How many files, and how many bytes in them, have a size from one boundary up to the next, in bytes; the last bin
    has no upper end. The three are equally long, the boundaries ascend from 0."""

    sorted_bin_boundaries: tuple[int, ...]
    file_counts: tuple[int, ...]
    total_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VersionChecksum:
    """One version checksum. A field is None if the writer omitted it.

    Attributes:
        table_size_bytes, num_files: Of the live files.
        num_metadata, num_protocol: 1, unless the table is broken.
        metadata, protocol: Required by the protocol, but early writers left them out.
        txn_id: `txnId` of the commit's `commitInfo`.
        in_commit_timestamp_ms: Of the version.
        txns, domain_metadata: The live ones.
        file_size_histogram: The older name `histogramOpt` is read as well.
        all_files: The bodies of all live `add` actions, as parsed.
        num_deleted_records, num_deletion_vectors: Of the live files.
        deleted_record_counts: Number of live files by deleted records, bins of `DELETED_RECORD_BOUNDARIES`.
        extra: Every other field, as parsed.
    """

    table_size_bytes: int
    num_files: int
    num_metadata: int
    num_protocol: int
    metadata: Metadata | None = None
    protocol: Protocol | None = None
    txn_id: str | None = None
    in_commit_timestamp_ms: int | None = None
    txns: tuple[Txn, ...] | None = None
    domain_metadata: tuple[DomainMetadata, ...] | None = None
    file_size_histogram: FileSizeHistogram | None = None
    all_files: tuple[JsonObject, ...] | None = field(default=None, hash=False)
    num_deleted_records: int | None = None
    num_deletion_vectors: int | None = None
    deleted_record_counts: tuple[int, ...] | None = None
    extra: JsonObject = field(default_factory=dict, hash=False)


def parse_version_checksum(data: bytes, path: str) -> VersionChecksum:
    """Parse the content of a version checksum file. Fields this release does not know are kept in `extra`.

    Args:
        path: Of the file, for errors.

    Raises:
        CorruptLogError: Not one JSON object, a required number is missing, or a field has a wrong type.
    """
    try:
        values = orjson.loads(data)
        if not isinstance(values, dict):
            raise ValueError("it is not a JSON object")
        return _parse(values)
    except (ValueError, TypeError, AttributeError, KeyError, ProtocolViolationError) as e:
        cause = f"{e} is missing" if isinstance(e, KeyError) else str(e)
        raise CorruptLogError(
            f"Version checksum {path.rpartition('/')[2]} cannot be read",
            cause=cause,
            remedy="Delete the file: the table can be read without it",
            path=path,
        ) from None


def serialize_version_checksum(checksum: VersionChecksum) -> bytes:
    """The content of a version checksum file: one JSON object. Fields that are None are omitted."""
    values: dict[str, JsonValue] = {}
    for attribute, key, _, to_json, _ in _FIELDS:
        value = getattr(checksum, attribute)
        if value is not None:
            values[key] = value if to_json is None else to_json(value)
    return orjson.dumps({**values, **checksum.extra})


def _parse(values: dict[str, JsonValue]) -> VersionChecksum:
    older = values.pop("histogramOpt", None)
    values.setdefault("fileSizeHistogram", older)
    parsed: dict[str, JsonValue] = {}
    for attribute, key, parse, _, is_required in _FIELDS:
        value = values.pop(key) if is_required else values.pop(key, None)
        parsed[attribute] = parse(value) if is_required or value is not None else None
    return VersionChecksum(**parsed, extra=values)


def _file_size_histogram(value: JsonValue) -> FileSizeHistogram:
    numbers = _list_of(_number)
    boundaries, counts, sizes = (numbers(value[k]) for k in ("sortedBinBoundaries", "fileCounts", "totalBytes"))
    ascend = all(a < b for a, b in itertools.pairwise(boundaries))
    if not (len(boundaries) == len(counts) == len(sizes)) or boundaries[:1] != (0,) or not ascend:
        raise ValueError("fileSizeHistogram has bins that do not fit together")
    return FileSizeHistogram(boundaries, counts, sizes)


def _deleted_record_counts(value: JsonValue) -> tuple[int, ...]:
    counts = _list_of(_number)(value["deletedRecordCounts"])
    if len(counts) != len(DELETED_RECORD_BOUNDARIES):
        raise ValueError(f"deletedRecordCounts has {len(counts)} bins instead of {len(DELETED_RECORD_BOUNDARIES)}")
    return counts


def _list_of(parse: Callable[[JsonValue], T]) -> Callable[[JsonValue], tuple[T, ...]]:
    def parse_list(value: JsonValue) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise TypeError(f"a list was expected, not {value!r:.50}")
        return tuple(parse(item) for item in value)

    return parse_list


def _number(value: JsonValue) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"an integer was expected, not {value!r:.50}")
    if not -_INT64 <= value < _INT64:
        raise ValueError(f"{value} is not a 64-bit integer")
    return value


def _object(value: JsonValue) -> JsonObject:
    if not isinstance(value, dict):
        raise TypeError(f"an object was expected, not {value!r:.50}")
    return value


def _bodies(actions: Iterable[Txn | DomainMetadata]) -> list[JsonValue]:
    return list(map(body_to_json, actions))


def _histogram_to_json(histogram: FileSizeHistogram) -> JsonValue:
    return {
        "sortedBinBoundaries": histogram.sorted_bin_boundaries,
        "fileCounts": histogram.file_counts,
        "totalBytes": histogram.total_bytes,
    }


class _Field(NamedTuple):
    """How a field is called in Python and in the file, how its value is read and written; `to_json` None: as it is."""

    attribute: str
    key: str
    parse: Callable[[JsonValue], object]
    to_json: Callable[[JsonValue], JsonValue] | None = None
    is_required: bool = False


_FIELDS = (
    _Field("txn_id", "txnId", as_string),
    _Field("table_size_bytes", "tableSizeBytes", _number, is_required=True),
    _Field("num_files", "numFiles", _number, is_required=True),
    _Field("num_deleted_records", "numDeletedRecordsOpt", _number),
    _Field("num_deletion_vectors", "numDeletionVectorsOpt", _number),
    _Field("num_metadata", "numMetadata", _number, is_required=True),
    _Field("num_protocol", "numProtocol", _number, is_required=True),
    _Field("in_commit_timestamp_ms", "inCommitTimestampOpt", _number),
    _Field("txns", "setTransactions", _list_of(partial(parse_body, Txn)), _bodies),
    _Field("domain_metadata", "domainMetadata", _list_of(partial(parse_body, DomainMetadata)), _bodies),
    _Field("metadata", "metadata", partial(parse_body, Metadata), body_to_json),
    _Field("protocol", "protocol", partial(parse_body, Protocol), body_to_json),
    _Field("file_size_histogram", "fileSizeHistogram", _file_size_histogram, _histogram_to_json),
    _Field(
        "deleted_record_counts",
        "deletedRecordCountsHistogramOpt",
        _deleted_record_counts,
        lambda counts: {"deletedRecordCounts": counts},
    ),
    _Field("all_files", "allFiles", _list_of(_object)),
)
"""In the order in which they are written."""
