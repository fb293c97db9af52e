"""Every deletion vector of the cases can be read, and is refused where its case says it is damaged."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from delta_orch.errors import CorruptDeletionVectorError, MissingFileError
from delta_orch.log.read.deletion_vectors import read_deletion_vector
from delta_orch.protocol.action_json import parse_deletion_vector
from delta_orch.storage.open import open_store
from tests.certain import some
from tests.harness.conformance.cases import conformance_cases
from tests.harness.golden import GoldenCase, prepare_table

LABELS = {"table-feature:deletionVectors", "dv-inline"}
CASES = [case for case in conformance_cases() if LABELS & set(case.features)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_vectors(case: GoldenCase, tmp_path: Path) -> None:
    table = prepare_table(case, tmp_path)
    store = open_store(table)
    errors = {"corrupt_deletion_vector": CorruptDeletionVectorError, "missing_file": MissingFileError}
    expected = errors.get(case.expect.get("error") or "")
    # A version whose rows no reader vouches for: its vector is damaged on purpose.
    if any(state.get("rows") == "not compared" for state in case.expect.get("versions", {}).values()):
        expected = CorruptDeletionVectorError
    descriptors = {
        parse_deletion_vector(body["deletionVector"])
        for log_file in sorted((table / "_delta_log").glob("*.json"))
        for line in log_file.read_bytes().splitlines()
        if (body := orjson.loads(line).get("add")) and body.get("deletionVector")
    }
    outcomes = []
    for descriptor in descriptors:
        try:
            vector = read_deletion_vector(store, some(descriptor))
        except (CorruptDeletionVectorError, MissingFileError) as e:
            outcomes.append(type(e))
        else:
            assert vector.cardinality == some(descriptor).cardinality
    assert set(outcomes) == ({expected} if expected else set())
