"""docs/cli.md and the README show the commands and options there are."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/cli.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMON = {"--json", "--storage-option", "-o"}
OF_ALL_CHANGES = {"--isolation", "--dry-run"}
