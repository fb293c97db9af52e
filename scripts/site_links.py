"""A hook of mkdocs: pages may link to files of the repository, which are no part of the site. There, the text stays
without its link."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)[^)]*\)")


def on_page_markdown(markdown: str, **context: Any) -> str:
    """Called by mkdocs for each page."""

    def text_of(link: re.Match[str]) -> str:
        if not (ROOT / "docs" / link[2]).exists():
            raise FileNotFoundError(f"{context['page'].file.src_uri} links to {link[2]}, which does not exist")
        return link[1]

    return _OUTSIDE.sub(text_of, markdown)
