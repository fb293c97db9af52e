"""docs/catalogs.md: the tests that it names are there, and it names every endpoint and every setting."""

from __future__ import annotations

import re
from pathlib import Path

from delta_orch.catalog.settings import VARIABLES
from tests.harness.unity_emulator import ENDPOINTS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/catalogs.md").read_text()
FILES = ("test_catalog.py", "test_catalog_credentials.py", "test_catalog_clouds.py")


def test_each_row_names_tests_that_are_there() -> None:
    tests = "".join((ROOT / "tests/stores" / name).read_text() for name in FILES)
    there = set(re.findall(r"^def (test_\w+)", tests, re.MULTILINE))
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 20
    assert named <= there


def test_every_endpoint_and_setting_is_on_the_page() -> None:
    for endpoint in ENDPOINTS.values():
        last = [part for part in endpoint.split("/") if not part.startswith("{")][-1]
        assert last in PAGE, endpoint
    for variable in VARIABLES:
        assert f"`{variable}`" in PAGE, variable
