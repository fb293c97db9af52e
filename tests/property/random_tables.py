"""Random tables: any partitioning, mapped columns, deletion vectors, statistics of any kind, checkpoints."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from delta_orch import DeltaTable
from delta_orch.engines.base import StatisticsPolicy, WriteSpec
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.protocol.actions import Add, Remove
from delta_orch.table.column_mapping import ColumnMappingMode, assign_column_mapping, physical_name
from tests.handmade import HandmadeTable, inline_vector
from tests.property.expression_samples import SCHEMA, sample_table

PARTITIONINGS: list[tuple[str, ...]] = [
    (),
    (),
    ("day",),
    ("bo", "S"),
    ("ts", "d5"),
    ("x", "b"),
    ("n", "f"),
    ("we`ird",),
]


@dataclass(frozen=True)
class RandomTable:
    """A table and what is in it.

    Attributes:
        rows: Its rows, deleted ones left out, file by file.
        what: How it was made, for messages.
    """

    table: DeltaTable
    rows: pa.Table
    what: str


def random_table(root: Path, seed: int, *, num_rows: int = 160) -> RandomTable:
    """Write the table of a seed."""
    draw = random.Random(seed)
    mode = draw.choice(list(ColumnMappingMode))
    partition_by = draw.choice(PARTITIONINGS)
    schema = SCHEMA if mode is ColumnMappingMode.NONE else assign_column_mapping(SCHEMA, 0)[0]
    policy = StatisticsPolicy(draw.choice([-1, 32, 7, 3]))
    made = HandmadeTable(root)
    made.create(
        schema,
        reader_features=("columnMapping", "deletionVectors", "timestampNtz"),
        partition_by=partition_by,
        configuration={
            "delta.columnMapping.mode": mode.value,
            "delta.checkpoint.writeStatsAsStruct": draw.choice(["true", "false"]),
            "delta.checkpoint.writeStatsAsJson": draw.choice(["true", "false"]),
        },
    )
    spec = WriteSpec(made.log.store, schema, partition_by, statistics=policy, column_mapping=mode)
    rows, kept, checkpointed = _partitionable(sample_table(seed, num_rows), partition_by), [], []
    start = 0
    while start < num_rows:
        part = rows.slice(start, draw.choice([6, 12, 40]))
        start += part.num_rows
        kept.append(_append(made, part, spec, draw))
        if draw.random() < 0.15:
            made.open().checkpoint()
            checkpointed.append(len(made.log.versions) - 1)
    what = f"seed {seed}: {mode}, by {partition_by}, {policy}, checkpoints {checkpointed}"
    return RandomTable(made.open(), pa.concat_tables(kept), what)


def _partitionable(rows: pa.Table, partition_by: tuple[str, ...]) -> pa.Table:
    """An empty string is null once it is a partition value (PROTOCOL, "Partition Value Serialization")."""
    for name in partition_by:
        if pa.types.is_string(rows.schema.field(name).type):
            column = rows[name]
            filled = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
            rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), filled)
    return rows


def _append(made: HandmadeTable, rows: pa.Table, spec: WriteSpec, draw: random.Random) -> pa.Table:
    """Add files of the rows; of some, rows are deleted. Gives what is left."""
    engine = LocalEngine()
    written = engine.write(engine.relation(rows), spec)
    adds = [_add(row) for row in written.to_pylist(maps_as_pydicts="strict")]
    adds = [replace(add, stats=_other_statistics(add.stats, draw)) for add in adds]
    made.commit(*adds)
    kept = rows
    for add in adds:
        if draw.random() < 0.3:
            ids = _ids_of(made, add, spec)
            deleted = draw.sample(range(len(ids)), draw.randint(1, len(ids)))
            vector = inline_vector(*sorted(deleted))
            stats = add.stats and json.dumps({**json.loads(add.stats), "tightBounds": False})
            remove = Remove(add.path, True, 1, True, add.partition_values, add.size)
            made.commit(remove, replace(add, deletion_vector=vector, stats=stats))
            gone = pa.array([ids[position] for position in deleted])
            kept = kept.filter(pc.invert(pc.is_in(kept["id"], value_set=gone)))
    return kept


def _ids_of(made: HandmadeTable, add: Add, spec: WriteSpec) -> list[int]:
    path, name = made.log.store.resolve(add.path), physical_name(spec.schema.fields[0])
    found: list[int] = pq.read_table(path, columns=[name])[0].to_pylist()
    return found


def _add(row: dict[str, Any]) -> Add:
    names = ("path", "partition_values", "size", "modification_time", "data_change", "stats")
    return Add(**{name: row[name] for name in names})


def _other_statistics(text: str | None, draw: random.Random) -> str | None:
    """As another writer might have them: less of them, or none."""
    if text is None or draw.random() < 0.5:
        return text
    stats = json.loads(text)
    match draw.randrange(4):
        case 0:
            return None
        case 1:
            return json.dumps({"numRecords": stats["numRecords"]})
        case 2:
            kinds = [kind for kind in ("minValues", "maxValues", "nullCount") if kind in stats]
            return json.dumps({k: v for k, v in stats.items() if k != draw.choice(kinds)} if kinds else stats)
        case _:
            return json.dumps({k: _without_some(v, draw) for k, v in stats.items()})


def _without_some(value: Any, draw: random.Random) -> Any:
    return {k: v for k, v in value.items() if draw.random() < 0.7} if isinstance(value, dict) else value


def random_columns(draw: random.Random) -> list[str] | None:
    """Columns to ask for: all, some, fields of structs."""
    names = [f"`{name.replace('`', '``')}`" for name in SCHEMA.names]
    match draw.randrange(4):
        case 0:
            return None
        case 1:
            return ["id", *draw.sample(names[1:], draw.randint(0, 4))]
        case 2:
            return draw.sample(["id", "st.a", "ST.`b.c`", "Day"], draw.randint(1, 4))
        case _:
            return draw.sample(names, draw.randint(1, 5))
