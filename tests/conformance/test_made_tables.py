"""The tables that the suite makes: they leave out no feature of the registry, and are what their labels say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from delta_orch.delta_table import DeltaTable
from delta_orch.protocol import types
from delta_orch.table.registry import FEATURES, TableFeature, supported_features
from tests.harness.conformance.made_tables import made_cases
from tests.harness.golden import GoldenCase, prepare_table

CASES = made_cases()
READABLE = made_cases(("read", "cdf"))

IN_THE_LOG = {
    "cdf-with-cdc-files": '"cdc":',
    "column-mapping-id": '"delta.columnMapping.mode":"id"',
    "column-mapping-name": '"delta.columnMapping.mode":"name"',
    "dv-absolute": '"storageType":"p"',
    "dv-inline": '"storageType":"i"',
    "dv-relative": '"storageType":"u"',
    "in-commit-timestamp": '"inCommitTimestamp":',
    "path-absolute": '"path":"file:',
    "path-encoded": '"path":"[^"]*%',
    "row-tracking": '"baseRowId":',
    "type-widening": r"delta\.typeChanges",
}
"""What the commits of a table have, by the label of its case."""

FILES = {
    "checkpoint-v1": r"\d+\.checkpoint\.parquet",
    "checkpoint-multipart": r"\d+\.checkpoint\.\d+\.\d+\.parquet",
    "checkpoint-v2-classic-name": r"\d+\.checkpoint\.parquet",
    "checkpoint-v2-json": r"\d+\.checkpoint\.[\w-]+\.json",
    "checkpoint-v2-parquet": r"\d+\.checkpoint\.[\w-]+\.parquet",
    "checkpoint-sidecars": r"_sidecars/.+\.parquet",
    "compacted-log": r"\d+\.\d+\.compacted\.json",
    "version-checksum": r"\d+\.crc",
}
"""And which files its log has."""


READER_FEATURES = [(name, f) for f in FEATURES if f.reader for name in (f.name, *f.aliases)]


@pytest.mark.parametrize(("name", "feature"), READER_FEATURES)
def test_each_reader_feature_has_a_table(name: str, feature: TableFeature) -> None:
    """Under each of its names: with rows where this release reads it, to be refused where it does not."""
    cases = [case for case in CASES if f"table-feature:{name}" in case.features]
    kinds = {case.kind for case in cases}
    assert kinds & {"read", "cdf"} if feature.reads else kinds == {"error"}


def test_each_other_feature_has_a_table() -> None:
    labels = {label for case in READABLE for label in case.features}
    assert {f"table-feature:{feature.name}" for feature in FEATURES if not feature.reader and feature.reads} <= labels


def test_each_form_of_a_log_has_a_table() -> None:
    labels = {label for case in READABLE for label in case.features}
    assert {*IN_THE_LOG, *FILES} <= labels


@pytest.mark.parametrize("case", READABLE, ids=lambda case: case.name)
def test_labels_are_true(case: GoldenCase, tmp_path: Path) -> None:
    table = prepare_table(case, tmp_path)
    log = table / "_delta_log"
    names = [path.relative_to(log).as_posix() for path in log.rglob("*") if path.is_file()]
    commits = "".join((log / name).read_text() for name in names if re.fullmatch(r"\d+\.json", name))
    supported = supported_features(DeltaTable(table).snapshot().protocol)
    for label in case.features:
        if label in IN_THE_LOG:
            assert re.search(IN_THE_LOG[label], commits), label
        if label in FILES:
            assert any(re.fullmatch(FILES[label], name) for name in names), label
        if label.startswith("table-feature:"):
            assert label.removeprefix("table-feature:") in supported


def test_each_type_of_a_partition_has_a_table(tmp_path: Path) -> None:
    primitive = {str(found) for found in vars(types).values() if isinstance(found, types.PrimitiveType)}
    found = set()
    for case in READABLE:
        snapshot = DeltaTable(prepare_table(case, tmp_path)).snapshot()
        found |= {str(field.data_type) for field in snapshot.schema if field.name in snapshot.partition_columns}
    assert found == (primitive - {"void", "variant"}) | {"decimal(38,10)"}
