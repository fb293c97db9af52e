"""Random variants survive being shredded as this package writes them, whatever plan a sample has led to."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_orch.protocol.variant.reconstruct import reconstruct_variant
from delta_orch.protocol.variant.shred import SHREDDED, ShreddingPlan, plan_shredding, shred_variants
from delta_orch.protocol.variant.shredding import TypedObject, parse_variant_type
from delta_orch.variant import variant_to_json, variants_to_arrow
from tests.property.variant_samples import COLUMN_TREES, NAMES, SCALARS, variant_of

KINDS = list(SHREDDED)
OBJECTS = st.dictionaries(NAMES, SCALARS | COLUMN_TREES, max_size=5)
COLUMNS = st.lists(st.none() | OBJECTS | COLUMN_TREES, min_size=1, max_size=10)
PLANS = st.one_of(
    st.sampled_from(KINDS).map(ShreddingPlan),
    st.dictionaries(NAMES, st.sampled_from(KINDS), min_size=1, max_size=4).map(
        lambda fields: ShreddingPlan(None, tuple(sorted(fields.items(), key=lambda f: f[0].encode())))
    ),
)


def column_of(trees: list[Any]) -> pa.StructArray:
    return variants_to_arrow(None if tree is None else variant_of(tree) for tree in trees)


def ensure_survives(column: pa.StructArray, plan: ShreddingPlan) -> None:
    shredded = shred_variants(column, plan)
    assert shredded.type.equals(plan.arrow_type)
    back = reconstruct_variant(shredded)
    assert variant_to_json(back).equals(variant_to_json(column))
    ensure_valid(shredded, plan)


def ensure_valid(shredded: pa.StructArray, plan: ShreddingPlan) -> None:
    """Variant Shredding, "Value Shredding" and "Objects": never both, but for objects shredded in part."""
    group = parse_variant_type(shredded.type)
    for row in shredded.to_pylist():
        if row is None:
            continue
        if not isinstance(group.typed, TypedObject):
            assert (row["value"] is None) != (row["typed_value"] is None)
            continue
        is_object = row["value"] is not None and row["value"][0] & 3 == 2
        assert row["typed_value"] is not None or not is_object
        for field in (row["typed_value"] or {}).values():
            assert field["value"] is None or field["typed_value"] is None


@settings(max_examples=18, deadline=None)
@given(COLUMNS)
def test_as_the_sample_says(trees: list[Any]) -> None:
    column = column_of(trees)
    plan = plan_shredding(column)
    if plan is not None:
        ensure_survives(column, plan)


@settings(max_examples=18, deadline=None)
@given(COLUMNS, PLANS)
def test_as_any_other_sample_would_have_said(trees: list[Any], plan: ShreddingPlan) -> None:
    ensure_survives(column_of(trees), plan)
