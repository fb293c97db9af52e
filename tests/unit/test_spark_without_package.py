"""A Spark worker without this package says so, in words that the driver knows again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from delta_orch.errors import DeltaError, MissingDependencyError, MissingFileError

pytest.importorskip("pyspark", reason="pyspark is not installed")

WORKER = """
import pickle, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "delta_orch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
read, partition = pickle.loads(sys.stdin.buffer.read())
list(read(partition))
"""


def test_the_error_names_the_remedy_and_nothing_before_it(tmp_path: Path) -> None:
    from pyspark import cloudpickle
    from pyspark.errors import PySparkException

    from delta_orch.spark_source.errors import explained
    from delta_orch.spark_source.on_workers import RowReader, TaskPartition

    partition = TaskPartition.__new__(TaskPartition)
    partition.value = b""
    partition.num_files = 1
    sent = cloudpickle.dumps((RowReader("{}", None).read, partition))
    done = subprocess.run([sys.executable, "-c", WORKER], input=sent, capture_output=True, cwd=tmp_path, check=False)
    said = done.stderr.decode()
    assert "Install delta-orch in the Python of the executors" in said
    assert "No module named" not in said
    for text in (said, "ModuleNotFoundError: No module named 'delta_orch'"):
        error = explained(PySparkException(text))
        assert isinstance(error, MissingDependencyError)
        assert error.remedy == "Install delta-orch in the Python of the executors"
    assert explained(PySparkException("No module named 'other'")) is None


def test_an_error_of_a_worker_keeps_its_lines() -> None:
    from pyspark.errors import PySparkException

    from delta_orch.spark_source.errors import explained

    raised = MissingFileError("The file a is gone", cause="Vacuum deleted it", remedy="Read a newer version")
    stacks = ["", "\n\n\tat org.apache.spark.X", "\n SQLSTATE: 38000", "\nSQLSTATE: 38000", "\n\nJVM stacktrace:\nx"]
    for error in (raised, MissingFileError(raised.problem, cause=raised.cause), MissingFileError(raised.problem)):
        for stack in stacks:
            text = f"Traceback (most recent call last):\n  File x\ndelta_orch.errors.MissingFileError: {error}{stack}"
            found = explained(PySparkException(text))
            assert isinstance(found, MissingFileError) and str(found) == str(error), text


def test_workers_without_arrow_are_named() -> None:
    from pyspark.errors import PySparkException

    from delta_orch.spark_source.errors import explained

    error = explained(PySparkException("ModuleNotFoundError: No module named 'pyarrow'"))
    assert isinstance(error, MissingDependencyError)
    assert (error.problem, error.context["package"]) == ("pyarrow is not installed on the Spark workers", "pyarrow")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("delta_orch.errors.MissingFileError: gone", MissingFileError),
        ("delta_orch.errors.redacted: no error of ours", DeltaError),
        ("delta_orch.errors.no_name: no error of ours", DeltaError),
    ],
)
def test_an_error_is_known_by_the_name_of_its_class(text: str, kind: type[DeltaError]) -> None:
    from pyspark.errors import PySparkException

    from delta_orch.spark_source.errors import explained

    assert type(explained(PySparkException(f"Traceback\n{text}"))) is kind
