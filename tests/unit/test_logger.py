"""What modules tell that do not import `logging` themselves."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from delta_orch.logger import Logger


def test_a_record_is_of_the_line_that_tells_it(caplog: pytest.LogCaptureFixture) -> None:
    told = Logger("delta_orch.somewhere")
    with caplog.at_level(logging.DEBUG, "delta_orch.somewhere"):
        told.debug("%s of %d", "one", 3)
        told.info("two")
        told.warning("three")
    assert [(r.name, r.levelname, r.getMessage(), r.funcName) for r in caplog.records] == [
        ("delta_orch.somewhere", level, text, "test_a_record_is_of_the_line_that_tells_it")
        for level, text in (("DEBUG", "one of 3"), ("INFO", "two"), ("WARNING", "three"))
    ]


def test_only_warnings_are_told_to_who_has_not_asked() -> None:
    code = "import sys; from delta_orch.logger import Logger; told = Logger('x')\n"
    code += "told.info('one'); assert 'logging' not in sys.modules; told.warning('two')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "two\n"
