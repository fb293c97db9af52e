"""A few cases of the fuzzer on Spark: damaged tables end in the rows the local engine reads, or in our errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.families import family
from tests.harness.fuzz.cases import CaseMaker
from tests.harness.fuzz.corpus import load_corpus, write_table
from tests.harness.fuzz.own_tables import NUM_OWN_TABLES
from tests.harness.fuzz.table_case import FuzzFinding, Reading, ensure_engines_agree

pytestmark = pytest.mark.spark


@pytest.mark.long
def test_no_case_fails_on_spark(spark: Any) -> None:
    maker = CaseMaker(20_240_603, kind="table", spark=spark)
    outcomes = [maker.run(number).outcomes for number in range(12)]
    assert sum(outcome["ok"] for outcome in outcomes) > 100
    assert sum(outcome.total() - outcome["ok"] for outcome in outcomes) > 10


@family("number", range(NUM_OWN_TABLES), every=5)
def test_healthy_tables_have_the_same_rows_on_both_engines(spark: Any, tmp_path: Path, number: int) -> None:
    seed = load_corpus()[number]
    write_table(seed.files, tmp_path)
    found = Reading(tmp_path, spark)
    assert {way: code for way, code in found.errors.items() if "Spark" in way} == {}, seed.name
    assert {"rows", "changes"} <= {way.removesuffix(" on Spark") for way in found.answers if "Spark" in way}
    ensure_engines_agree(found)
    found.answers["rows on Spark"] = -1
    with pytest.raises(FuzzFinding):
        ensure_engines_agree(found)
