"""docs/stores.md names what there is."""

from __future__ import annotations

import re
from pathlib import Path

from delta_orch.storage.storage_options import OPTIONS, SCHEMES

TEXT = (Path(__file__).parents[2] / "docs/stores.md").read_text()
SECTIONS = {"s3": "S3", "gs": "GCS", "abfss": "Azure"}


def test_every_scheme_is_named() -> None:
    assert {f"{scheme}://" for scheme in SCHEMES} <= set(re.findall(r"`([a-z0-9]+://)`", TEXT))


def test_every_option_is_in_the_table_of_its_store_and_no_other() -> None:
    for kind, options in OPTIONS.items():
        table = TEXT.partition(f"| {SECTIONS[kind.value]} | also | meaning |")[2].partition("\n\n")[0]
        rows = [row.split("|")[1:3] for row in table.splitlines() if row.startswith("| ")]
        named = {name for row in rows for cell in row for name in re.findall(r"`([a-z0-9_]+)`", cell)}
        assert named == set(options)
