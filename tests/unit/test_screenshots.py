"""The pictures of the docs: each is there, is what the script makes, and is small."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"


def test_each_picture_is_made_by_the_script_and_shown_on_a_page() -> None:
    made = set(re.findall(r'Page\(\s*"([^"]+)"', (ROOT / "scripts" / "screenshots" / "__main__.py").read_text()))
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    shown = set(re.findall(r"images/([\w-]+)\.png", pages))
    assert made == shown == {picture.stem for picture in IMAGES.iterdir()}


def test_pictures_are_small() -> None:
    for picture in IMAGES.iterdir():
        content = picture.read_bytes()
        assert content.startswith(b"\x89PNG"), picture
        assert len(content) < 200_000, picture
