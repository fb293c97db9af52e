"""docs/stores.md names every scheme and every option."""

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
        table = (
            TEXT.partition(f"\n### {SECTIONS[kind.value]}\n")[2].partition("\n### ")[0].partition("\nCredentials")[0]
        )
        rows = [row.split("|")[1:4] for row in table.splitlines() if row.startswith("| `")]
        named = {name for row in rows for cell in row[:2] for name in re.findall(r"`([a-z0-9_]+)`", cell)}
        assert named == set(options)
        assert all(len(row) == 3 for row in rows)
        assert [row[0].strip(" `") for row in rows if not row[2].strip()] == []
