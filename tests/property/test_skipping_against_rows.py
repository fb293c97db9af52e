"""Planning never contradicts the rows: a file that is skipped holds no matching row, one that matches whole no other.

Files are written by the local engine, with its statistics; the rows are asked through Arrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from delta_orch import DeltaTable
from delta_orch.engines.base import WriteSpec
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.errors import UnsupportedExpressionError
from delta_orch.expressions.nodes import Expression
from delta_orch.expressions.parse import parse_expression
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.expressions.to_arrow import arrow_predicate
from delta_orch.expressions.tree import is_opaque
from delta_orch.log.read.skipping.data_skipping import match_files
from delta_orch.storage.open import open_store
from tests.families import family
from tests.property.expression_samples import SCHEMA, constants_of, random_predicates, sample_table

PARTITIONINGS: list[tuple[str, ...]] = [(), ("day",), ("bo", "S"), ("ts", "d5"), ("x", "b"), ("n", "f", "bin")]
ENGINE = LocalEngine()


def every_comparison() -> list[str]:
    columns = ["b", "i", "l", "f", "x", "d5", "d38", "S", "bo", "day", "ts", "n"]
    return [
        f"{c} {op} {constant}" for c in columns for constant in constants_of(c) for op in ("=", "<", ">=", "!=", "<=>")
    ]


def answered(rows: pa.Table, part: int) -> Iterator[tuple[str, Expression, list[bool | None]]]:
    """Predicates with their answers row by row; each partitioning is asked other ones."""
    texts = [*random_predicates(part, 100), *every_comparison()[part :: len(PARTITIONINGS)]]
    resolved = [(text, resolve_expression(parse_expression(text), SCHEMA)) for text in texts]
    plain = [(text, where) for text, where in resolved if not is_opaque(where)]
    for start in range(0, len(plain), 100):
        some = plain[start : start + 100]
        for text, where in some:
            yield text, where, arrow_predicate(where, SCHEMA)(rows).to_pylist()


@family("partition_by", PARTITIONINGS, ids=["-".join(p) or "none" for p in PARTITIONINGS], every=5)
def test_planning_agrees_with_rows(tmp_path: Path, partition_by: tuple[str, ...]) -> None:
    store = open_store(tmp_path)
    # Binary values that are not UTF-8 cannot be partition values.
    rows = sample_table(seed=3, num_rows=160).filter(pc.field("bin") != b"\xff")
    spec = WriteSpec(store, SCHEMA, partition_by)
    adds = pa.concat_tables([ENGINE.write(ENGINE.relation(rows.slice(start, 8)), spec) for start in range(0, 160, 8)])
    files = [
        ENGINE.to_arrow(ENGINE.scan(ScanPlan(store, SCHEMA, partition_by, adds.slice(i, 1)))) for i in range(len(adds))
    ]
    offsets = [0]
    for file in files:
        offsets.append(offsets[-1] + file.num_rows)
    asked = skipped = whole = 0
    for text, where, answers in answered(pa.concat_tables(files), PARTITIONINGS.index(partition_by)):
        match = match_files(adds, where, SCHEMA, partition_by)
        for i, (may, all_) in enumerate(zip(match.may_match.to_pylist(), match.all_match.to_pylist(), strict=True)):
            found = answers[offsets[i] : offsets[i + 1]]
            asked += 1
            skipped += not may
            whole += all_
            assert may or True not in found, f"{text} skips a file with matching rows: {adds.slice(i, 1).to_pylist()}"
            assert not all_ or set(found) == {True}, f"{text} takes a file whole: {adds.slice(i, 1).to_pylist()}"
    assert skipped > asked // 50
    assert whole > 0 or not partition_by


@pytest.mark.long
@pytest.mark.parametrize("by_others", [False, True], ids=["ours", "pyarrow's"])
def test_a_data_set_of_a_condition_has_the_rows_of_a_scan(tmp_path: Path, by_others: bool) -> None:
    """The bounds that pyarrow itself writes into files leave out NaN."""
    rows, table = sample_table(seed=5, num_rows=60), DeltaTable(tmp_path)
    for start in range(0, 60, 6):
        part = rows.slice(start, 6)
        if by_others:
            pq.write_table(part, tmp_path / f"{start}.parquet")
        else:
            table.append(part)
    if by_others:
        DeltaTable.convert(tmp_path)
    snapshot = table.snapshot()
    compared = left_out = 0
    numbers = [
        f"{c} {op} {constant}" for c in ("x", "f") for constant in constants_of(c)[:4] for op in ("<=", "=", ">")
    ]
    for text in [*random_predicates(7, 30), *numbers, *(f"NOT ({text})" for text in numbers)]:
        try:
            dataset = snapshot.to_pyarrow_dataset(text)
        except UnsupportedExpressionError:
            continue
        wanted = snapshot.scan(["id"], where=text).to_arrow()["id"].to_pylist()
        assert sorted(dataset.to_table(columns=["id"])["id"].to_pylist()) == sorted(wanted), text
        compared, left_out = compared + 1, left_out + (len(dataset.files) < 10)
    assert compared > 40 and left_out > 10
