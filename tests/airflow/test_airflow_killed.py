"""A task that is told to end: it commits nothing any more. Scripts that are submitted: they commit once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG

from delta_orch import DeltaTable
from delta_orch.airflow import DeltaSparkSubmitOperator, DeltaWriteOperator
from delta_orch.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.airflow.conftest import Runs

ROOT = Path(__file__).parents[2]
DAY = datetime(2024, 1, 1, tzinfo=UTC)
APPENDS = """
import sys
import pyarrow as pa
from delta_orch import submitted_run
run = submitted_run()
run.table().append(pa.table({"i": [int(sys.argv[1])]}), **run.options)
print("the script says", sys.argv[1])
"""


@pytest.fixture
def handler() -> Iterator[None]:
    """Airflow's runner sets the handler of its process, and leaves it."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def content(uri: Path) -> list[int]:
    return sorted(DeltaTable(uri).snapshot().scan().to_arrow()["i"].to_pylist())


@pytest.mark.usefixtures("handler")
def test_a_terminated_task_commits_nothing_and_its_retry_does(runs: Runs, tmp_path: Path) -> None:
    DeltaTable(tmp_path / "t").append(pa.table({"i": [0]}))

    def rows(ti: Any) -> pa.Table:
        if ti.try_number == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return pa.table({"i": [ti.try_number]})

    with DAG("terminated", schedule=None) as dag:
        DeltaWriteOperator(
            task_id="load",
            table_uri=tmp_path / "t",
            python_callable=rows,
            retries=1,
            retry_delay=timedelta(0),
        )
    run = runs.run(dag)
    assert (runs.state(run, "load"), runs.tries(run, "load")) == ("success", 2)
    assert content(tmp_path / "t") == [0, 2]


def test_killed_from_another_thread(runs: Runs, tmp_path: Path) -> None:
    def rows(ti: Any) -> pa.Table:
        other = threading.Thread(target=ti.task.on_kill)
        other.start()
        other.join()
        return pa.table({"i": [1]})

    with DAG("other_thread", schedule=None) as dag:
        DeltaWriteOperator(task_id="load", table_uri=tmp_path / "t", python_callable=rows)
    assert runs.state(runs.run(dag), "load") == "failed"
    assert not DeltaTable(tmp_path / "t").exists()


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connection: Callable[[str, str], None]) -> Path:
    """A `spark-submit` that runs the script without Spark and notes its arguments; the real one is tried below."""
    binary = tmp_path / "bin" / "spark-submit"
    binary.parent.mkdir()
    binary.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        f"open({str(tmp_path / 'submitted')!r}, 'a').write(repr(sys.argv[1:]) + '\\n')\n"
        "script = next(i for i, a in enumerate(sys.argv) if a.endswith('.py'))\n"
        f"os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[script:]])\n"
    )
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", f"{binary.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    connection("cluster", '{"conn_type": "spark", "host": "yarn", "extra": {"queue": "etl", "spark.x.y": "1"}}')
    return tmp_path / "submitted"


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "job.py"
    path.write_text(text)
    return str(path)


def die_once(context: Any, result: Any) -> None:
    if context["ti"].try_number == 1:
        raise RuntimeError("killed after the commit")


@pytest.mark.long
def test_a_submitted_script_commits_once(runs: Runs, tmp_path: Path, submit: Path) -> None:
    with DAG("submits", schedule=None) as dag:
        DeltaSparkSubmitOperator(
            task_id="job",
            table_uri=tmp_path / "t",
            application=script(tmp_path, APPENDS),
            application_args=["7"],
            spark_conn_id="cluster",
            spark_conf={"spark.z": "2"},
            retries=1,
            retry_delay=timedelta(0),
            post_execute=die_once,
        )
    run = runs.run(dag)
    assert (runs.state(run, "job"), runs.tries(run, "job")) == ("success", 2)
    assert content(tmp_path / "t") == [7]
    (command,) = submit.read_text().splitlines()
    assert "'--master', 'yarn', '--queue', 'etl'" in command
    assert "spark.x.y=1" in command and "spark.z=2" in command and "spark.yarn.appMasterEnv.DELTA_ORCH_RUN=" in command
    xcom = runs.xcom(run, "job")
    assert (xcom["version"], xcom["outcome"]) == (0, "recovered")
    runs.clear(dag, run, "job")
    assert content(tmp_path / "t") == [7], "a cleared task replaces its rows"
    assert runs.xcom(run, "job")["outcome"] == "replaced"


@pytest.mark.long
@pytest.mark.usefixtures("submit")
def test_a_submitted_overwrite_leaves_the_rows_of_a_task_behind_it(runs: Runs, tmp_path: Path) -> None:
    """The script stages its write, and the task looks at it before it publishes it."""
    overwrites = APPENDS.replace(".append(", ".overwrite(")
    with DAG("submits_overwrite", schedule="@daily", start_date=DAY) as dag:
        submits = DeltaSparkSubmitOperator(
            task_id="job", table_uri=tmp_path / "t", application=script(tmp_path, overwrites), application_args=["7"],
            spark_conn_id="cluster", write="overwrite",
        )  # fmt: skip
        submits >> DeltaWriteOperator(
            task_id="fill", table_uri=tmp_path / "t", python_callable=lambda: pa.table({"i": [1]})
        )
    run = runs.run(dag, DAY)
    assert content(tmp_path / "t") == [1, 7]
    runs.clear(dag, run, "job")
    assert (runs.state(run, "job"), content(tmp_path / "t")) == ("failed", [1, 7])
    # As the error says: together with the task behind it.
    runs.clear(dag, run, "job", "fill")
    assert (runs.state(run, "job"), content(tmp_path / "t")) == ("success", [1, 7])
    assert runs.xcom(run, "job")["outcome"] == "replaced"


@pytest.mark.long
@pytest.mark.usefixtures("submit")
@pytest.mark.parametrize(
    "text",
    [
        "print('nothing is committed')",
        "import pyarrow as pa; from delta_orch import submitted_run\n"
        "submitted_run().table().append(pa.table({'i': [1]}))",
        "raise SystemExit(3)",
    ],
)
def test_a_script_without_its_commit_fails(runs: Runs, tmp_path: Path, text: str) -> None:
    with DAG("submits_nothing", schedule=None) as dag:
        DeltaSparkSubmitOperator(
            task_id="job", table_uri=tmp_path / "t", application=script(tmp_path, text), spark_conn_id="cluster",
        )  # fmt: skip
    assert runs.state(runs.run(dag), "job") == "failed"


@pytest.mark.usefixtures("submit", "handler")
def test_killing_the_task_ends_the_script(runs: Runs, tmp_path: Path) -> None:
    waits = f"import time, os; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)\n"

    def kill() -> None:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            threading.Event().wait(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=kill, daemon=True).start()
    with DAG("killed_script", schedule=None) as dag:
        DeltaSparkSubmitOperator(
            task_id="job", table_uri=tmp_path / "t", application=script(tmp_path, waits + APPENDS),
            application_args=["1"], spark_conn_id="cluster",
        )  # fmt: skip
    assert runs.state(runs.run(dag), "job") == "failed"
    assert not DeltaTable(tmp_path / "t").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.long
@pytest.mark.spark
def test_spark_submit_itself(
    runs: Runs, tmp_path: Path, connection: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
    connection("here", '{"conn_type": "spark", "host": "local[1]"}')
    with DAG("really_submits", schedule=None) as dag:
        DeltaSparkSubmitOperator(
            task_id="job", table_uri=tmp_path / "t", application=script(tmp_path, APPENDS), application_args=["7"],
            spark_conn_id="here", spark_conf={"spark.driver.memory": "512m"},
        )  # fmt: skip
    assert runs.state(runs.run(dag), "job") == "success"
    assert content(tmp_path / "t") == [7]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"application_args": "7"}, "application_args"),
        ({"exactly_once": False}, "exactly_once"),
    ],
)
def test_wrong_arguments_are_refused_when_the_dag_is_parsed(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        DeltaSparkSubmitOperator(task_id="t", table_uri="/t", application="a.py", **arguments)
