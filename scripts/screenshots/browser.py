"""Takes pictures of pages, as Qt's browser shows them. Runs in a Python that has PyQt6-WebEngine, and nothing else.

    python browser.py < pictures.json

The input is a list of {"url", "file", "wait_for", "clicks", "width", "height"}. Each page is photographed once its text
has `wait_for`, what has the texts or labels `clicks` was pressed, and some seconds have passed to draw. A page that
never has it is an error.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("QTWEBENGINE_CHROMIUM_FLAGS", "--no-sandbox --disable-gpu")

from PyQt6.QtCore import QPoint, Qt, QUrl
from PyQt6.QtTest import QTest
from PyQt6.QtWebEngineWidgets import QWebEngineView
from PyQt6.QtWidgets import QApplication

PATIENCE_S = 90
DRAWING_S = 5
SETTLING_S = 3
LOOK = "document.body ? document.body.innerText : ''"
FIND = """
[...document.querySelectorAll('*')].filter(one => [one.innerText?.trim(), one.ariaLabel].includes(%s)).pop()
"""


def take(app: QApplication, view: QWebEngineView, picture: dict[str, Any]) -> None:
    view.resize(picture["width"], picture["height"])
    # The page before may say what this one is awaited by.
    view.setHtml("")
    _spin(app, 1)
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
    for text_or_label in picture["clicks"]:
        _press(app, view, text_or_label, end)
    left = DRAWING_S
    while left:
        _spin(app, 1)
        # An invitation may cover the page.
        view.page().runJavaScript(f"{(FIND % json.dumps('Skip')).strip()}?.click()")
        view.page().runJavaScript(LOOK, lambda found: text.__setitem__(0, found or ""))
        left = left - 1 if "Loading" not in text[0] or time.monotonic() > end else DRAWING_S
    image = view.grab().toImage()
    # Without a transparency that no pixel has.
    image.convertToFormat(image.Format.Format_RGB888).save(picture["file"], "PNG", 0)


def _press(app: QApplication, view: QWebEngineView, text_or_label: str, end: float) -> None:
    """What has the text or the label, once it is there: by a click of the page, or where nothing comes of that, by one
    of the mouse. Some elements know only one of them."""
    find = (FIND % json.dumps(text_or_label)).strip()
    while (place := _answer(app, view, f"{find}?.getBoundingClientRect().toJSON()")) is None:
        if time.monotonic() > end:
            raise SystemExit(f"Nothing on the page is called {text_or_label!r}")
    before = _answer(app, view, LOOK)
    _answer(app, view, f"{find}?.click()")
    if _answer(app, view, LOOK) == before:
        middle = QPoint(*(int(place[edge] + place[size] / 2) for edge, size in (("x", "width"), ("y", "height"))))
        QTest.mouseClick(view.focusProxy(), Qt.MouseButton.LeftButton, pos=middle)
        _spin(app, SETTLING_S)


def _answer(app: QApplication, view: QWebEngineView, script: str) -> Any:
    """What a script says, once the page has settled."""
    said: list[Any] = []
    _spin(app, SETTLING_S)
    view.page().runJavaScript(script, said.append)
    while not said:
        _spin(app, 0.1)
    return said[0] if said[0] != "" else None


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
