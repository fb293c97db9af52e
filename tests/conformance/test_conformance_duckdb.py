"""Every table that can be read, with DuckDB as the reader of the data files, wherever it takes a scan on itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from delta_orch.delta_table import DeltaTable
from delta_orch.engines.local.duckdb_input import duckdb_relation, native_input
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.local.relation import LocalRelation
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.errors import DeltaError
from tests.families import family
from tests.harness.conformance.cases import conformance_cases
from tests.harness.golden import GoldenCase, check_case

CASES = conformance_cases(("read", "cdf"))


class DuckdbEngine(LocalEngine):
    """The local engine with every scan through DuckDB."""

    def scan(self, plan: ScanPlan) -> LocalRelation:
        import duckdb

        relation = super().scan(plan)
        return replace(
            relation, open_batches=lambda: duckdb_relation(relation, duckdb.connect()).to_arrow_reader(1024), plan=None
        )


@family("case", CASES, ids=lambda case: case.name, every=5)
def test_through_duckdb(case: GoldenCase, tmp_path: Path) -> None:
    check_case(case, tmp_path, DuckdbEngine())


def test_duckdb_reads_most_tables_itself() -> None:
    """So that the test above does not only prove that Arrow streams."""
    native = 0
    for case in CASES:
        try:
            relation = LocalEngine().scan(DeltaTable(case.directory / "table").snapshot().scan().plan())
            native += relation.plan is not None and native_input(relation) is not None
        except DeltaError:
            continue  # deletion vectors at absolute paths, which only a copy of the table has right
    assert native > len(CASES) * 2 / 3
