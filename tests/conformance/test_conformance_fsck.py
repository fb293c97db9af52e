"""`fsck` over every case: whole ones are in order, and of the others it names what the case says is wrong."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from delta_orch.delta_table import DeltaTable
from delta_orch.errors import TableNotFoundError, UnsupportedError
from tests.harness.conformance.cases import conformance_cases
from tests.harness.golden import READ_SINCE, GoldenCase, prepare_table

CASES = conformance_cases()
WHOLE = [case for case in CASES if case.kind != "error"]
BROKEN = [case for case in CASES if case.kind == "error" and case.name not in READ_SINCE]


def _expected_errors(case: GoldenCase) -> Counter[str]:
    """Data files left out on purpose, and a checksum that the case itself knows to belong to another log."""
    errors = Counter[str]()
    if case.expect.get("missing_files"):
        errors["MISSING_FILE"] = case.expect["missing_files"]
    checksum = (case.expect.get("version_checksums") or {}).get(str(case.expect["version"]))
    if checksum is not None and checksum["numFiles"] != case.expect["num_files"]:
        errors["CHECKSUM_MISMATCH"] = 1
    if case.name == "krs-parsed-stats":
        # Its statistics speak of a column that none of its files has.
        errors["CORRUPT_DATA"] = case.expect["num_files"]
    if case.name == "krs-parquet_row_group_skipping":
        # Its checkpoint is of another table: other metadata, with another id, than the commits have.
        errors["CORRUPT_LOG"] = 1
    return errors


@pytest.mark.parametrize("case", WHOLE, ids=lambda case: case.name)
def test_tables_that_can_be_read(case: GoldenCase, tmp_path: Path) -> None:
    table = DeltaTable(prepare_table(case, tmp_path))
    report = table.fsck(deep=True)
    errors = _expected_errors(case)
    assert Counter(p.code for p in report.problems if p.severity == "error") == errors, report.problems
    assert (report.ok, report.num_files) == (not errors, case.expect["num_files"])
    assert (report.version, report.size_bytes) == (case.expect["version"], case.expect["total_bytes"])
    if str(case.expect["version"]) in (case.expect.get("version_checksums") or {}):
        assert bool(report.checksum_fields) == ("CHECKSUM_MISMATCH" not in errors)


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.name)
def test_tables_that_cannot(case: GoldenCase, tmp_path: Path) -> None:
    table = DeltaTable(prepare_table(case, tmp_path))
    try:
        report = table.fsck(check_files=True)
    except (UnsupportedError, TableNotFoundError):
        assert case.expect["error"] in ("unsupported_feature", "no_table")
        return
    assert not report.ok
