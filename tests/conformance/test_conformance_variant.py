"""Every case of kind `variant`: its type, its JSON, its nulls, its errors; and again through our own encoder."""

from __future__ import annotations

import orjson
import pytest

from delta_orch.protocol.variant.extract import variant_get
from tests.certain import some
from tests.harness.conformance.cases import conformance_cases
from tests.harness.golden import GoldenCase
from tests.harness.golden_variant import check_variant_case, read_variant_column, variant_objects

CASES = conformance_cases(("variant",))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: GoldenCase) -> None:
    check_variant_case(case)


def is_valid(case: GoldenCase) -> bool:
    return not case.definition["must_error"] and not case.definition.get("may_error")


@pytest.mark.parametrize("case", [case for case in CASES if is_valid(case)], ids=lambda case: case.name)
def test_fields_are_found_without_reconstruction(case: GoldenCase) -> None:
    column = read_variant_column(case)
    parsed = [row and orjson.loads(row["json"]) for row in case.definition["rows"]]
    names = {name for value in parsed if isinstance(value, dict) for name in value} | {"absent"}
    for name in names:
        found = variant_objects(variant_get(column, [name]))
        for variant, value in zip(found, parsed, strict=True):
            expected = isinstance(value, dict) and name in value
            assert (variant is not None) == expected
            if expected:
                assert orjson.loads(some(variant).to_json()) == value[name]
    for index in range(3):
        found = variant_objects(variant_get(column, [index]))
        for variant, value in zip(found, parsed, strict=True):
            expected = isinstance(value, list) and index < len(value)
            assert (variant is not None) == expected
            if expected:
                assert orjson.loads(some(variant).to_json()) == value[index]
