"""Each table property with values that no writer should choose: it works, or ends in an error of this package.

The values stand in the log, as another client may have written them: `set_properties` would refuse most.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from delta_orch import DeltaTable
from delta_orch.errors import DeltaError
from delta_orch.protocol.table_properties import TableProperties
from tests.families import family

NAMES = [
    *(f.metadata["key"] for f in fields(TableProperties) if f.metadata),
    "delta.minReaderVersion", "delta.minWriterVersion", "delta.feature.deletionVectors", "delta.constraints.c",
    "delta.rowTracking.materializedRowIdColumnName", "delta.rowTracking.materializedRowCommitVersionColumnName",
]  # fmt: skip
VALUES = [
    "0", "-1", "1", str(2**31), str(2**63 - 1), str(2**63), "9" * 25, "9" * 5000, "1e309", "NaN", "1_000", "+7", " 5 ",
    "", "abc", "null", "true", "TRUE", "yes", "none", "classic", "v2", "zstd", "lz4", "a", "`a`.b", "16mb",
    "9999999999gb", "interval 1 day", "interval 99999999999999 weeks", "interval 9999999999 days",
]  # fmt: skip
SCHEMA = pa.schema({"a": pa.int64(), "s": pa.string(), "t": pa.timestamp("us", "UTC"), "f": pa.float64()})


def rows(first: int) -> pa.Table:
    return pa.table(
        {"a": [first, first + 1], "s": ["x", None], "t": pa.array([1, 2], pa.timestamp("us", "UTC")), "f": [1.0, 2.0]}
    )


ACTS: list[Callable[[DeltaTable], Any]] = [
    lambda t: t.append(rows(1)),
    lambda t: t.append(rows(3)),
    lambda t: t.snapshot().scan(where="a > 1").to_arrow(),
    lambda t: t.optimize(),
    lambda t: t.delete("a = 2"),
    lambda t: t.update({"s": "'z'"}, where="a = 3"),
    lambda t: t.upsert(rows(4), ["a"]),
    lambda t: t.overwrite(rows(9)),
    lambda t: t.alter().add_column("more", "int").commit(),
    lambda t: t.changes(starting_version=0).to_arrow(),
    lambda t: t.checkpoint(),
    lambda t: t.compact_log(),
    lambda t: t.cleanup_log(),
    lambda t: t.vacuum(),
    lambda t: t.fsck(),
    lambda t: t.restore(version=1),
    lambda t: t.optimize(zorder_by=["a"]),
]


@family("name", NAMES, every=12)
def test_a_property_of_any_value(tmp_path: Path, name: str) -> None:
    healthy, tried = tmp_path / "healthy", tmp_path / "tried"
    DeltaTable(healthy).create(SCHEMA, properties={"delta.enableDeletionVectors": "true"})
    DeltaTable(healthy).wait_for_upkeep()
    for value in VALUES:
        shutil.rmtree(tried, ignore_errors=True)
        shutil.copytree(healthy, tried, ignore=shutil.ignore_patterns("*.crc"))
        first = tried / "_delta_log" / f"{0:020}.json"
        lines = [json.loads(line) for line in first.read_text().splitlines()]
        for line in lines:
            line.get("metaData", {"configuration": {}})["configuration"][name] = value
        first.write_text("\n".join(map(json.dumps, lines)))
        table = DeltaTable(tried)
        for act in ACTS:
            try:
                act(table)
            except DeltaError as e:
                assert 0 < len(str(e)) < 2000 and "\n\n" not in str(e)
