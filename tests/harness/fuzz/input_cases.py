"""Cases of one input to one pure function: thousands a second, and deeper than a whole table lets a mutation reach."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from delta_orch.errors import CorruptDeletionVectorError, CorruptLogError, DeltaError
from delta_orch.expressions.parse import parse_expression
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.log.files.commit_reader import LogFile, parse_log_files
from delta_orch.log.read.skipping.data_skipping import match_files
from delta_orch.protocol.actions import DeletionVectorDescriptor
from delta_orch.protocol.arrow_building import schema_to_arrow
from delta_orch.protocol.deletion_vector import (
    DeletionVector,
    inline_bitmap_bytes,
    parse_bitmap,
    relative_path,
    stored_bitmap_bytes,
)
from delta_orch.protocol.last_checkpoint import parse_last_checkpoint
from delta_orch.protocol.partition_values import (
    parse_partition_value,
    partition_column_to_arrow,
    serialize_partition_value,
)
from delta_orch.protocol.schema import parse_schema, serialize_schema
from delta_orch.protocol.table_properties import TableProperties
from delta_orch.protocol.types import PRIMITIVE_TYPES, DataType, DecimalType
from delta_orch.storage.parquet_footer import read_footer
from tests.harness.fuzz.byte_mutations import damage_bytes
from tests.harness.fuzz.categories import Category, note
from tests.harness.fuzz.corpus import SeedTable
from tests.harness.fuzz.hostile_values import (
    DATE_TEXTS,
    NUMBER_TEXTS,
    PROPERTIES,
    TEXTS,
    choose,
    hostile_number,
    hostile_path,
    nested_json,
)
from tests.harness.fuzz.json_mutations import damage_json
from tests.harness.fuzz.log_mutations import damage_log_text, damage_schema, parse_lines
from tests.harness.fuzz.parquet_mutations import damage_footer
from tests.harness.fuzz.table_case import FuzzFinding
from tests.harness.fuzz.watched_store import WatchedStore

_TYPES: tuple[DataType, ...] = (
    *(t for name, t in sorted(PRIMITIVE_TYPES.items()) if name not in ("void", "variant")),
    DecimalType(38, 10),
    DecimalType(5, 5),
    DecimalType(1, 0),
)


@dataclass(frozen=True)
class InputCase:
    """`read` is given `value`; it may raise `DeltaError`, and FuzzFinding where it gives a wrong answer."""

    value: Any
    read: Callable[[Any], None]


def schema_case(seeds: list[SeedTable], rng: Random) -> InputCase:
    text = damage_schema(rng.choice(_metadata(seeds))["schemaString"], rng)
    if rng.random() < 0.2:
        text = damage_bytes(text.encode("utf-8", "surrogatepass"), rng)[0].decode("utf-8", "replace")
    return InputCase(text, _read_schema)


def _read_schema(text: str) -> None:
    schema = parse_schema(text)
    if parse_schema(serialize_schema(schema)) != schema:
        raise FuzzFinding("a schema that reads differently once it was written")
    hash(schema)
    schema_to_arrow(schema)


def partition_value_case(seeds: list[SeedTable], rng: Random) -> InputCase:
    text = rng.choice(rng.choice([NUMBER_TEXTS, DATE_TEXTS, TEXTS]))
    if rng.random() < 0.4:
        text = damage_bytes(text.encode("utf-8", "surrogatepass"), rng)[0].decode("utf-8", "replace")
    return InputCase((text, rng.choice(_TYPES)), _read_partition_value)


def _read_partition_value(case: tuple[str, DataType]) -> None:
    text, data_type = case
    value = None
    try:
        value = parse_partition_value(text, data_type)
    except DeltaError:
        _ensure_refused(lambda: partition_column_to_arrow(pa.array([text]), data_type))
        raise
    column = partition_column_to_arrow(pa.array([text]), data_type)
    column.validate(full=True)
    if (value is None) != (column.null_count == 1):
        raise FuzzFinding(f"{value!r} as a value, {column} as a column")
    if value is not None:
        again = parse_partition_value(serialize_partition_value(value, data_type), data_type)
        if again != value and not (isinstance(value, float) and math.isnan(value)):
            raise FuzzFinding(f"{value!r} is {again!r} once it was written")


def _ensure_refused(read: Callable[[], Any]) -> None:
    try:
        found = read()
    except DeltaError:
        return
    raise FuzzFinding(f"refused one way, {found} the other way")


def last_checkpoint_case(seeds: list[SeedTable], rng: Random) -> InputCase:
    data = (
        b'{"version":9,"size":11,"sizeInBytes":21,"numOfAddFiles":4,"checkpointSchema":{"type":"struct","fields":[]}}'
    )
    if rng.random() < 0.5:
        data = json.dumps(damage_json(json.loads(data), rng)[0]).encode()
    if rng.random() < 0.6:
        data = damage_bytes(data, rng)[0]
    if rng.random() < 0.1:
        deep = nested_json(rng, rng.choice([100, 990, 50_000]), "list").encode()
        data = b'{"version":1,"checksum":"x","a":' + deep + b"}"
    return InputCase(data, lambda value: _ignore(parse_last_checkpoint(value)))


def bitmap_case(seeds: list[SeedTable], rng: Random) -> InputCase:
    rows = rng.choice(
        [
            [1, 2, 3],
            list(range(0, 100_000, 3)),
            list(range(70_000)),
            [0, 1 << 16, 1 << 32, (1 << 33) + 5, 1 << 62],
            [rng.randrange(1 << 20) for _ in range(5000)],
            [],
        ]
    )
    bitmap = BitMap64(rows)
    bitmap.run_optimize() if rng.random() < 0.5 else None
    data = DeletionVector(bitmap).serialize()
    times = rng.choice([1, 1, 2, 5])
    if rng.random() < 0.3:
        data, times = _with_huge_count(data, rng), times - 1
    for _ in range(times):
        data = damage_bytes(data, rng)[0]
    return InputCase((data, len(bitmap)), _read_bitmap)


def _with_huge_count(data: bytes, rng: Random) -> bytes:
    """The bitmap with another number of bitmaps, key, cookie or number of containers: what stands at its beginning."""
    note(rng, Category.HUGE_COUNTS)
    at, size = rng.choice([(4, 8), (12, 4), (16, 4), (20, 4)])
    number = rng.choice([1 << 16, (1 << 31) - 1, (1 << 8 * size) - 1, 1 << (8 * size - 1)])
    return data[:at] + number.to_bytes(size, "little") + data[at + size :]


def _read_bitmap(case: tuple[bytes, int]) -> None:
    data, cardinality = case
    try:
        vector = parse_bitmap(data, DeletionVectorDescriptor("i", "", len(data), cardinality))
    except CorruptDeletionVectorError as e:
        if "number of rows" not in str(e):
            raise
        # What the log says about the number is as easily forged.
        cardinality = int(str(e.cause).split()[0])
        vector = parse_bitmap(data, DeletionVectorDescriptor("i", "", len(data), cardinality))
    indexes = vector.row_indexes(1000)
    if len(indexes) > 1000 or (len(indexes) and int(indexes.max()) >= 1000):
        raise FuzzFinding(f"row indexes beyond the file: {indexes[-3:]}")


def descriptor_case(seeds: list[SeedTable], rng: Random) -> InputCase:
    inline = DeletionVector(BitMap64([1, 5])).inline_descriptor()
    text = choose(rng, inline.path_or_inline_dv, "ab^-aqEH.-t@S}K{vb[*k^", rng.choice(TEXTS), hostile_path)
    if rng.random() < 0.7:
        text = damage_bytes(text.encode("utf-8", "surrogatepass"), rng)[0].decode("latin-1")
    size = choose(rng, inline.size_in_bytes, len(text) * 4 // 5, *[_hostile_integer] * 8)
    kind = rng.choice("iup")
    return InputCase(DeletionVectorDescriptor(kind, text, size, 2, rng.choice([None, 1])), _read_descriptor)


def _hostile_integer(rng: Random) -> int:
    return int(hostile_number(rng))


def _read_descriptor(descriptor: DeletionVectorDescriptor) -> None:
    match descriptor.storage_type:
        case "u":
            path = relative_path(descriptor)
            if path.startswith("/") or ".." in path.split("/"):
                raise FuzzFinding(f"a deletion vector outside the table: {path!r}")
        case "i":
            parse_bitmap(inline_bitmap_bytes(descriptor), descriptor)
        case _:
            stored_bitmap_bytes(descriptor.path_or_inline_dv.encode("utf-8", "surrogatepass"), descriptor)


def path_case(seeds: list[SeedTable], rng: Random) -> InputCase:
    text = hostile_path(rng)
    if rng.random() < 0.7:
        text = damage_bytes(text.encode(), rng)[0].decode("utf-8", "replace")
    return InputCase(text, _read_path)


def _read_path(text: str) -> None:
    store = WatchedStore(str(Path("/table/of/a/case")))
    store.notice(store.resolve(text))
    if store.escapes:
        raise FuzzFinding(f"{text!r} leaves the table: {store.escapes[0]!r}")


def commit_case(seeds: list[SeedTable], rng: Random) -> InputCase:
    seed = rng.choice(seeds)
    commits = [path for path in seed.log_files() if path.endswith(".json")]
    data = seed.files[rng.choice(commits)] if commits else b'{"protocol":{}}'
    for _ in range(rng.choice([1, 1, 2])):
        data = damage_log_text(data, rng)[0]
    if rng.random() < 0.2:
        data = damage_bytes(data, rng)[0]
    return InputCase(data, _read_commit)


def _read_commit(data: bytes) -> None:
    actions = parse_log_files([LogFile("_delta_log/00000000000000000001.json", 1, data)])
    for table in (actions.adds, actions.removes, actions.cdc):
        table.validate(full=True)
    if actions.adds.num_rows != len(actions.add_order):
        raise FuzzFinding("another number of orders than of files")


def properties_case(seeds: list[SeedTable], rng: Random) -> InputCase:
    chosen = dict(rng.sample(PROPERTIES, rng.choice([1, 3])))
    for name in chosen:
        if rng.random() < 0.5:
            chosen[name] = rng.choice([rng.choice(NUMBER_TEXTS), rng.choice(TEXTS), "interval 1 day", str(10**40)])
    texts = {name: value for name, value in chosen.items() if isinstance(value, str)}
    return InputCase(texts, lambda value: _ignore(TableProperties.parse(value)))


_STATS_SCHEMA = (
    '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}},'
    '{"name":"t","type":"string","nullable":true,"metadata":{}},{"name":"d","type":"date","nullable":true,"metadata":{}},'
    '{"name":"at","type":"timestamp","nullable":true,"metadata":{}},'
    '{"name":"p","type":"decimal(20,3)","nullable":true,"metadata":{}},'
    '{"name":"s","type":{"type":"struct","fields":[{"name":"x","type":"double","nullable":true,"metadata":{}}]},'
    '"nullable":true,"metadata":{}}]}'
)
_PREDICATES = (
    "id > 3", "t = 'm'", "d < DATE'2020-05-05'", "at >= TIMESTAMP'2020-01-01 00:00:00'", "p <= 1.5", "s.x is null",
    "id in (1, 2) or t is not null", "not (id = 7 and s.x > 0.5)",
)  # fmt: skip
_BOUNDS = {"id": 1, "t": "a", "d": "2020-01-01", "at": "2020-01-01T00:00:00.000Z", "p": 1.5, "s": {"x": 0.25}}


def statistics_case(seeds: list[SeedTable], rng: Random) -> InputCase:
    healthy = {"numRecords": 5, "minValues": _BOUNDS, "maxValues": _BOUNDS, "nullCount": {**dict.fromkeys(_BOUNDS, 0),
               "s": {"x": 0}}, "tightBounds": True}  # fmt: skip
    texts = []
    for _ in range(rng.choice([1, 2, 5])):
        text = json.dumps(damage_json(healthy, rng)[0])
        if rng.random() < 0.2:
            text = damage_bytes(text.encode(), rng)[0].decode("utf-8", "replace")
        texts.append(choose(rng, text, text, text, None, "", _nested_object))
    return InputCase((texts, rng.choice(_PREDICATES)), _read_statistics)


def _nested_object(rng: Random) -> str:
    return nested_json(rng, rng.choice([60, 5000]), "object")


def _read_statistics(case: tuple[list[str | None], str]) -> None:
    texts, predicate = case
    schema = parse_schema(_STATS_SCHEMA)
    values = pa.array([[]] * len(texts), pa.map_(pa.string(), pa.string()))
    files = pa.table({"partition_values": values, "stats": pa.array(texts, pa.string())})
    match = match_files(files, resolve_expression(parse_expression(predicate), schema), schema, ())
    match.may_match.validate(full=True)
    if len(match.may_match) != len(texts) or match.may_match.null_count:
        raise FuzzFinding(f"{match.may_match} for {len(texts)} files")
    if None in texts and not match.may_match[texts.index(None)].as_py():
        raise FuzzFinding("a file without statistics was left out")


def footer_case(seeds: list[SeedTable], rng: Random) -> InputCase:
    """A Parquet file whose footer tells other numbers, or has other bytes."""
    files = [(seed, path) for seed in rng.sample(seeds, min(len(seeds), 20)) for path in seed.files
             if path.endswith(".parquet")]  # fmt: skip
    seed, path = rng.choice(files)
    data = seed.files[path]
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        data = damage_footer(data, rng)[0] if rng.random() < 0.8 else _with_damaged_footer(data, rng)
    return InputCase(data, _read_footer)


def _with_damaged_footer(data: bytes, rng: Random) -> bytes:
    start = max(len(data) - 8 - int.from_bytes(data[-8:-4], "little"), 0)
    footer = damage_bytes(data[start:-8], rng)[0]
    return data[:start] + footer + len(footer).to_bytes(4, "little") + data[-4:]


def _read_footer(data: bytes) -> None:
    """Everything Arrow can be asked about a file; a footer that is called sound must not end the process."""
    try:
        footer = read_footer(pa.BufferReader(data))
        metadata = footer.metadata
        for leaf in range(metadata.num_columns):
            # Each column by itself: its chunks are looked up, not walked to.
            footer.ensure_sound_chunks([leaf])
            for group in range(metadata.num_row_groups):
                str(metadata.row_group(group).column(leaf).statistics)
        footer.ensure_sound_chunks()
        for group in range(metadata.num_row_groups):
            for column in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(column)
                str(chunk.statistics and (chunk.statistics.min, chunk.statistics.max, chunk.statistics.null_count))
        file = pq.ParquetFile(pa.BufferReader(data), metadata=metadata, coerce_int96_timestamp_unit="us")
        file.read_row_groups(range(metadata.num_row_groups), use_threads=False)
    except (pa.ArrowException, OSError, UnicodeDecodeError, KeyError, OverflowError, ValueError) as e:
        raise CorruptLogError(f"no sound Parquet file: {e}") from None


def _metadata(seeds: list[SeedTable]) -> list[dict[str, Any]]:
    found = []
    for seed in seeds:
        for path in seed.log_files():
            lines = parse_lines(seed.files[path]) if path.endswith(".json") else None
            found += [line["metaData"] for line in lines or () if "schemaString" in line.get("metaData", {})]
    return found


def _ignore(value: Any) -> None:
    str(value)


INPUT_CASES: Mapping[str, Callable[[list[SeedTable], Random], InputCase]] = {
    "schema": schema_case,
    "partition_value": partition_value_case,
    "last_checkpoint": last_checkpoint_case,
    "bitmap": bitmap_case,
    "descriptor": descriptor_case,
    "path": path_case,
    "commit": commit_case,
    "properties": properties_case,
    "statistics": statistics_case,
    "footer": footer_case,
}
