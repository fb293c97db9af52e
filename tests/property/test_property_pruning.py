"""Pruning through checkpoints: the same promise as for single files, with statistics as JSON, as columns, or both."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delta_orch.expressions.nodes import Expression
from delta_orch.log.read.checkpoint_reader import RowGroup
from delta_orch.log.read.table_log import TableLog
from delta_orch.log.upkeep.checkpoint_writer import write_checkpoint
from delta_orch.protocol.actions import Add, Protocol, Remove
from delta_orch.protocol.partition_values import serialize_partition_value
from delta_orch.protocol.schema import serialize_schema
from delta_orch.storage.memory import MemoryStore
from tests.harness.log_builder import LogBuilder
from tests.property.test_property_data_skipping import (
    ALL_PREDICATES,
    FILES,
    PARTITION_COLUMNS,
    PATHS,
    SCHEMA,
    _evaluate,
    _statistics,
)

_NAMES = itertools.count()
PROTOCOL = Protocol(3, 7, ("timestampNtz",), ("timestampNtz", "appendOnly", "invariants"))


def _add(number: int, file: Any) -> Add:
    partition, rows, style = file
    values = {path[0]: serialize_partition_value(value, PATHS[path]) for path, value in partition.items()}
    return Add(f"f{number}", values, 1, 0, True, _statistics(rows, style))


def _table(files: list[Any], in_checkpoint: int, *, as_json: bool, as_struct: bool) -> TableLog:
    builder = LogBuilder(MemoryStore(f"pruning-{next(_NAMES)}"))
    properties = {
        "delta.checkpoint.writeStatsAsJson": str(as_json).lower(),
        "delta.checkpoint.writeStatsAsStruct": str(as_struct).lower(),
    }
    builder.create(
        serialize_schema(SCHEMA), protocol=PROTOCOL, partition_columns=PARTITION_COLUMNS, configuration=properties
    )
    adds = [_add(number, file) for number, file in enumerate(files)]
    builder.commit(Add("gone", adds[0].partition_values, 1, 0, True), *adds[:in_checkpoint])
    log = TableLog(builder.store)
    write_checkpoint(log, log.snapshot())
    builder.delete_commits(2)
    builder.commit(Remove("gone", True), *adds[in_checkpoint:])
    return log


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(FILES, min_size=1, max_size=5), st.integers(0, 5), ALL_PREDICATES, st.booleans(), st.booleans())
def test_no_file_with_a_matching_row_is_pruned(
    files: list[Any], in_checkpoint: int, where: Expression, as_json: bool, as_struct: bool
) -> None:
    snapshot = _table(files, in_checkpoint, as_json=as_json, as_struct=as_struct).snapshot()
    assert snapshot.checkpoint is not None
    found = set(snapshot.files(["path"], where)["path"].to_pylist())
    assert "gone" not in found
    for number, (partition, rows, _) in enumerate(files):
        if any(_evaluate(where, {**partition, **row}) is True for row in rows):
            assert f"f{number}" in found


@pytest.mark.parametrize("as_struct", [False, True])
def test_statistics_that_are_columns_are_read_as_such(as_struct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from delta_orch.expressions.nodes import And, Column, Comparison, Literal
    from delta_orch.protocol.types import LONG

    decoded: set[str] = set()
    iterate = RowGroup.iter_structs

    def recording(self: RowGroup, action: str, fields: Any, use_threads: bool = False) -> Any:
        decoded.update(fields or ())
        return iterate(self, action, fields, use_threads)

    empty = dict.fromkeys(PATHS)
    partition = {path: None for path in PATHS if path[0] in PARTITION_COLUMNS}
    files = [(partition, [{**empty, ("c0",): n, ("nested", "y"): -n}], "full") for n in range(20)]
    snapshot = _table(files, 20, as_json=True, as_struct=as_struct).snapshot()
    monkeypatch.setattr(RowGroup, "iter_structs", recording)
    where = And(
        (
            Comparison(">=", Column(("c0",)), Literal(5, LONG)),
            Comparison(">", Column(("nested", "y")), Literal(-8, LONG)),
        )
    )
    assert sorted(snapshot.files(["path"], where)["path"].to_pylist()) == ["f5", "f6", "f7"]
    assert ("stats" in decoded) is not as_struct
    assert ("stats_parsed.minValues.nested.y" in decoded) is as_struct
    assert not any("c1" in leaf for leaf in decoded)
