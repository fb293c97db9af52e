"""Takes pictures of pages, as Qt's browser shows them. Runs in a Python that has PyQt6-WebEngine, and nothing else.

    python browser.py < pictures.json

The input is a list of {"url", "file", "wait_for", "click", "width", "height"}. Each page is photographed once its text
has `wait_for`, the element with the text `click` was pressed, and some seconds have passed to draw. A page that never
has it is an error.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("QTWEBENGINE_CHROMIUM_FLAGS", "--no-sandbox --disable-gpu")

from PyQt6.QtCore import QUrl
from PyQt6.QtWebEngineWidgets import QWebEngineView
from PyQt6.QtWidgets import QApplication

PATIENCE_S = 90
DRAWING_S = 5
LOOK = "document.body ? document.body.innerText : ''"
PRESS = """
[...document.querySelectorAll('*')].filter(found => found.innerText && found.innerText.trim() === %s).pop()?.click();
"""


def take(app: QApplication, view: QWebEngineView, picture: dict[str, Any]) -> None:
    view.resize(picture["width"], picture["height"])
    view.load(QUrl(picture["url"]))
    view.show()
    text: list[str] = [""]
    end = time.monotonic() + PATIENCE_S
    while picture["wait_for"] not in text[0]:
        if time.monotonic() > end:
            raise SystemExit(f"{picture['url']} never said {picture['wait_for']!r}, but: {text[0][:2000]}")
        view.page().runJavaScript(
            "document.body ? document.body.innerText : ''", lambda found: text.__setitem__(0, found or "")
        )
        _spin(app, 0.3)
    if picture["click"]:
        view.page().runJavaScript(PRESS % json.dumps(picture["click"]))
    left = DRAWING_S
    while left:
        _spin(app, 1)
        # An invitation may cover the page.
        view.page().runJavaScript(PRESS % json.dumps("Skip"))
        view.page().runJavaScript(LOOK, lambda found: text.__setitem__(0, found or ""))
        left = left - 1 if "Loading" not in text[0] or time.monotonic() > end else DRAWING_S
    image = view.grab().toImage()
    # Without a transparency that no pixel has.
    image.convertToFormat(image.Format.Format_RGB888).save(picture["file"], "PNG", 0)


def _spin(app: QApplication, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        app.processEvents()
        time.sleep(0.02)


def main() -> None:
    app = QApplication(sys.argv)
    view = QWebEngineView()
    for picture in json.load(sys.stdin):
        Path(picture["file"]).parent.mkdir(parents=True, exist_ok=True)
        take(app, view, picture)
        print(picture["file"], flush=True)
    # Qt's browser waits for processes that are gone.
    os._exit(0)


main()
