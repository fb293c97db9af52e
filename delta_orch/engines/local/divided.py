"""Rows that go two ways in one pass: each batch is judged, and split, on its way to whoever writes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.base import Divided, DividedCounts, Division, as_they_are
from delta_orch.engines.local.projection import projected_batches
from delta_orch.engines.local.relation import LocalRelation
from delta_orch.engines.local.spool import Spool
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.to_arrow import arrow_predicate
from delta_orch.expressions.tree import columns_of, is_opaque
from delta_orch.protocol.arrow_building import all_booleans
from delta_orch.protocol.types import BOOLEAN, StructField, StructType


@contextmanager
def divided(relation: LocalRelation, division: Division) -> Iterator[Divided]:
    """See `Engine.divided`. The rows aside wait in a spool."""
    flags, aside, left_out, most_shown = division
    names, schema = relation.schema.names, relation.schema
    in_duckdb = [flag for flag in flags if is_opaque(flag.value)]
    in_arrow = {flag.name: arrow_predicate(flag.value, schema) for flag in flags if not is_opaque(flag.value)}
    used = {c.path[0] for flag in flags if flag.name in in_arrow for c in columns_of(flag.value)}
    rows = projected_batches(relation, [*as_they_are(names), *in_duckdb]) if in_duckdb else relation
    num_rows = num_aside = num_left_out = 0
    broken = dict.fromkeys((flag.name for flag in flags), 0)
    shown: dict[str, list[pa.RecordBatch]] = {flag.name: [] for flag in flags}
    is_begun = is_over = False

    with Spool(StructType((*schema, *(StructField(flag.name, BOOLEAN) for flag in flags)))) as spool:

        def batches() -> Iterator[pa.RecordBatch]:
            nonlocal num_rows, num_aside, num_left_out, is_begun, is_over
            if is_begun:
                raise InvalidRequestError("The rows of a write with rules were read already")
            is_begun = True
            for batch in rows.batches([name for name in names if name not in used]):
                flag_columns = {name: answers(batch) for name, answers in in_arrow.items()}
                flag_columns |= {flag.name: batch.column(flag.name) for flag in in_duckdb}
                plain = batch.select(names) if in_duckdb else batch
                num_rows += batch.num_rows
                for name, answers in flag_columns.items():
                    broken[name] += answers.true_count
                    missing = most_shown - sum(part.num_rows for part in shown[name])
                    if answers.true_count and missing:
                        shown[name].append(pc.filter(plain, answers).slice(0, missing))
                is_aside = _any([flag_columns[name] for name in aside], batch.num_rows)
                is_lost = _any([is_aside, *(flag_columns[name] for name in left_out)], batch.num_rows)
                num_aside += is_aside.true_count
                num_left_out += is_lost.true_count - is_aside.true_count
                if is_aside.true_count:
                    columns = [*plain.columns, *(flag_columns[flag.name] for flag in flags)]
                    whole = pa.RecordBatch.from_arrays(columns, names=spool.schema.names)
                    spool.add(pc.filter(whole, is_aside))
                yield pc.filter(plain, pc.invert(is_lost)) if is_lost.true_count else plain
            is_over = True

        def counts() -> DividedCounts | None:
            return DividedCounts(num_rows, num_aside, num_left_out, broken) if is_over else None

        def some(name: str) -> pa.Table:
            parts = LocalRelation(schema, lambda: iter(shown[name]))
            return parts.to_reader().read_all()

        yield Divided(LocalRelation(schema, batches), counts, some, spool.relation)


def _any(flags: Sequence[pa.BooleanArray], num_rows: int) -> pa.BooleanArray:
    return reduce(pc.or_, flags) if flags else all_booleans(False, num_rows)
