from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

# Its module imports PySpark, which an environment of Dagster alone does not have.
collect_ignore = [] if find_spec("pyspark") else ["test_dagster_spark.py"]


@pytest.fixture(scope="session", autouse=True)
def _migrations_are_read_once() -> Iterator[None]:
    """An ephemeral instance notes the newest migration in each of its two databases, and reads all of Dagster's
    migrations to find it. That is most of what such an instance costs, and a fifth of the time of these tests."""
    if find_spec("dagster") is None:
        yield
        return
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    read, known = ScriptDirectory.from_config, dict[str | None, ScriptDirectory]()

    def from_config(config: Config) -> ScriptDirectory:
        location = config.get_main_option("script_location")
        if location not in known:
            known[location] = read(config)
        return known[location]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ScriptDirectory, "from_config", from_config)
        yield
