"""What a case is, made from a seed and a number alone."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from delta_orch.errors import DeltaError
from tests.harness.fuzz.categories import CaseRandom, Category
from tests.harness.fuzz.corpus import SeedTable, load_corpus, load_variant_files, load_variant_pairs, write_table
from tests.harness.fuzz.input_cases import INPUT_CASES
from tests.harness.fuzz.own_tables import NUM_OWN_TABLES
from tests.harness.fuzz.table_case import Reading, ensure_engines_agree, ensure_expected, ensure_good_error
from tests.harness.fuzz.table_mutations import damage_table
from tests.harness.fuzz.variant_cases import pair_case, shredded_case

TABLE, VARIANT, SHREDDED = "table", "variant", "shredded"
KINDS = (TABLE, VARIANT, SHREDDED, *INPUT_CASES)
_WEIGHTS = (60, 12, 6, *([22 / len(INPUT_CASES)] * len(INPUT_CASES)))


@dataclass
class CaseReport:
    """A case that ended well, or (`what` alone) one that is about to run.

    Attributes:
        kind: One of `KINDS`.
        what: The healthy input and what was done to it.
        categories: What sorts of damage.
        outcomes: How often reading ended well (`ok`) or in which error.
    """

    kind: str
    what: str
    categories: set[Category] = field(default_factory=set)
    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


class CaseMaker:
    """Makes and runs cases.

    Args:
        seed: Together with a case's number it decides everything about it.
        directories: More healthy tables, and variants, below which to look.
        kind: Only cases of this kind.
        spark: A session in which tables are read, too.
    """

    def __init__(self, seed: int, directories: Sequence[Path] = (), kind: str | None = None, spark: Any = None) -> None:
        self._seed = seed
        self._kind = kind
        self._tables = load_corpus(directories)
        self._pairs = load_variant_pairs(directories)
        self._columns = load_variant_files(directories) or _own_variant_files(self._tables)
        self._spark = spark
        self._healthy: dict[str, Reading] = {}

    def run(self, number: int, save_to: Path | None = None) -> CaseReport:
        """Run one case.

        Args:
            save_to: Where to keep its input, whatever becomes of it.

        Raises:
            Exception: Anything but DeltaError is a finding. Its notes say what the case is.
        """
        rng = CaseRandom(f"{self._seed}:{number}")
        kind = self._kind or rng.choices(KINDS, _WEIGHTS)[0]
        report = CaseReport(kind, "", rng.categories)
        start = time.monotonic()
        try:
            if kind == TABLE:
                self._run_table(rng, report, save_to)
            else:
                self._run_input(kind, rng, report, save_to)
        except BaseException as e:
            e.add_note(f"{kind}: {report.what}")
            raise
        report.seconds = time.monotonic() - start
        return report

    def _run_table(self, rng: Random, report: CaseReport, save_to: Path | None) -> None:
        seed = rng.choice(self._tables[:NUM_OWN_TABLES]) if rng.random() < 0.5 else rng.choice(self._tables)
        files, expectation, done = damage_table(seed, self._tables, rng)
        report.what = f"{seed.name}, {expectation.name}: " + "; ".join(done)
        if save_to is not None:
            write_table(files, save_to / "table")
        with TemporaryDirectory(prefix="delta-fuzz-") as directory:
            write_table(files, Path(directory) / "table")
            found = Reading(Path(directory) / "table", self._spark)
        if all(files.get(path, data) == data for path, data in seed.files.items() if path in seed.data_files()):
            # Two readers of Parquet may see different things in a damaged file.
            ensure_engines_agree(found)
        ensure_expected(found, self._healthy_reading(seed), expectation)
        report.outcomes = found.outcomes()

    def _healthy_reading(self, seed: SeedTable) -> Reading:
        if seed.name not in self._healthy:
            with TemporaryDirectory(prefix="delta-fuzz-") as directory:
                write_table(seed.files, Path(directory) / "table")
                self._healthy[seed.name] = Reading(Path(directory) / "table")
        return self._healthy[seed.name]

    def _run_input(self, kind: str, rng: Random, report: CaseReport, save_to: Path | None) -> None:
        if kind == VARIANT:
            case = pair_case(self._pairs, rng)
        elif kind == SHREDDED:
            case = shredded_case(self._columns, rng)
        else:
            case = INPUT_CASES[kind](self._tables, rng)
        report.what = repr(case.value)[:500]
        if save_to is not None:
            (save_to / "input.txt").write_text(repr(case.value), errors="backslashreplace")
        try:
            case.read(case.value)
        except DeltaError as e:
            ensure_good_error(e)
            report.outcomes[e.code] += 1
        else:
            report.outcomes["ok"] += 1


def _own_variant_files(tables: Sequence[SeedTable]) -> list[bytes]:
    import io

    import pyarrow.parquet as pq

    found = []
    for seed in tables:
        if seed.name == "variants":
            for path in seed.data_files():
                sink = io.BytesIO()
                rows = pq.ParquetFile(io.BytesIO(seed.files[path])).read(use_threads=False)
                pq.write_table(rows.rename_columns(["id", "var"]), sink)
                found.append(sink.getvalue())
    return found
