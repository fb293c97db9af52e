"""Splits rows in two. Spark evaluates them once, keeps them on its executors, and reads them from there."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from delta_orch.engines.base import Divided, DividedCounts, Division, Engine, Measure, as_they_are
from delta_orch.expressions.nodes import Choice, Column, Comparison, Expression, Literal
from delta_orch.expressions.tree import any_of, conjunction, is_not_true
from delta_orch.protocol.types import BOOLEAN, LONG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@contextmanager
def divided(engine: Engine, relation: DataFrame, division: Division) -> Iterator[Divided]:
    """Split the rows. See `Engine.divided`. One job evaluates the rows, and another job counts them."""
    flags, aside, left_out, most_shown = division
    names = as_they_are(engine.schema(relation).names)
    with engine.evaluated(engine.project(relation, [*names, *flags])) as rows:
        is_aside = _any(aside)
        is_left_out = conjunction(_any(left_out), is_not_true(is_aside))
        counted = {"aside": is_aside, "left_out": is_left_out, **{flag.name: _any([flag.name]) for flag in flags}}
        one = Literal(1, LONG)
        measures = [
            Measure("num_rows", "count"),
            *(Measure(f"n{i}", "count", Choice(((where, one),))) for i, where in enumerate(counted.values())),
        ]
        num_rows, *flag_counts = engine.to_arrow(engine.aggregate(rows, [], measures)).to_pylist()[0].values()
        numbers = dict(zip(counted, flag_counts, strict=True))
        counts = DividedCounts(num_rows, numbers.pop("aside"), numbers.pop("left_out"), numbers)
        kept = rows
        if counts.num_aside or counts.num_left_out:
            kept = engine.filter(rows, is_not_true(_any([*aside, *left_out])))
        yield Divided(
            engine.project(kept, names),
            lambda: counts,
            lambda name: engine.to_arrow(engine.project(engine.filter(rows, _any([name])), names), most_shown),
            lambda: engine.filter(rows, is_aside),
        )


def _any(flags: Collection[str]) -> Expression:
    """Whether one of the flags is true."""
    if not flags:
        return Literal(False, BOOLEAN)
    return any_of([Comparison("=", Column((flag,)), Literal(True, BOOLEAN)) for flag in flags])
