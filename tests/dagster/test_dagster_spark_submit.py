"""A submitted program commits once, and Dagster learns of its commit. A script stands for `spark-submit`."""

import json
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from delta_orch.dagster import DeltaTableResource, PipesDeltaSparkClient
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import InvalidRequestError
from tests.certain import some

# Dagster's own readers of messages are asked for something that Dagster calls a preview.
pytestmark = pytest.mark.filterwarnings("ignore:Function .PipesMessageReader.expected_writer_count")

SUBMIT = """#!{python}
import json, runpy, sys
arguments = sys.argv[1:]
open({said!r}, "a").write(json.dumps(arguments) + "\\n")
while arguments[0].startswith("--"):
    arguments = arguments[2:]
sys.argv = arguments
runpy.run_path(arguments[0], run_name="__main__")
"""
PROGRAM = """
import sys
import pathlib
import pyarrow as pa
from delta_orch import submitted_run
run = submitted_run()
how = sys.argv[1]
if how == "pipes":
    from dagster_pipes import open_dagster_pipes
    with open_dagster_pipes() as pipes:
        run.table().append(pa.table({"i": [1, 2], "key": [pipes.partition_key] * 2}), **run.options)
        pipes.report_asset_materialization(metadata={"own": 7})
elif how.startswith("day "):
    rows = pa.table({"day": [how[4:]], "i": [1]})
    if not run.table().exists():
        run.table().create(rows.schema, partition_by=["day"])
    run.table().overwrite(rows, partition_overwrite_mode="dynamic", **run.options)
elif how != "nothing":
    options = {} if how == "forgets" else run.options
    run.table().append(pa.table({"i": [1, 2]}), **options)
marker = pathlib.Path(__file__).with_name("died")
if how == "dies" and not marker.exists():
    marker.touch()
    sys.exit(3)
"""


class Work:
    """A table, and the runs of an asset that submits the program."""

    def __init__(self, folder: Path, write: Any = "append", **asset_arguments: Any) -> None:
        self.uri, self.said, self.how = str(folder / "t"), folder / "said", "appends"
        program, submit = folder / "a program.py", folder / "submit"
        program.write_text(PROGRAM)
        submit.write_text(SUBMIT.format(python=sys.executable, said=str(self.said)))
        submit.chmod(0o755)
        client = PipesDeltaSparkClient(
            master="yarn", binary=str(submit), env={"PYTHONPATH": str(Path(__file__).parents[2])}
        )
        self.instance = dg.DagsterInstance.ephemeral()

        @dg.asset(**asset_arguments)  # type: ignore[untyped-decorator]  # by its arguments
        def submitted(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
            table = DeltaTableResource(table_uri=self.uri)
            return client.run(
                context=context, table=table, application=str(program), application_args=[self.how], write=write
            ).get_materialize_result()

        self.asset = submitted

    def __call__(self, how: str, **arguments: Any) -> dg.ExecuteInProcessResult:
        self.how = how
        return dg.materialize([self.asset], instance=self.instance, raise_on_error=False, **arguments)

    def submissions(self) -> list[list[str]]:
        return [json.loads(line) for line in self.said.read_text().splitlines()]

    def num_rows(self) -> int:
        return len(DeltaTable(self.uri).snapshot().scan().to_arrow())


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path)


@pytest.mark.long
def test_the_commit_is_reported(work: Work) -> None:
    result = work("appends")
    assert result.success
    (event,) = result.get_asset_materialization_events()
    materialization = event.materialization
    table = DeltaTable(work.uri).snapshot()
    assert materialization.metadata["delta/version"].value == 0
    assert materialization.metadata["delta/metrics/num_output_rows"].value == 2
    assert some(materialization.tags)["dagster/data_version"] == f"{table.metadata.id}:0"
    (commit,) = DeltaTable(work.uri).history()
    assert json.loads(str(commit.user_metadata))["run_id"] == result.run_id
    (arguments,) = work.submissions()
    assert arguments[:2] == ["--master", "yarn"]
    assert any(argument.startswith("spark.yarn.appMasterEnv.DELTA_ORCH_RUN=") for argument in arguments)
    # Another run adds its own rows.
    assert work("appends").success
    assert work.num_rows() == 4


@pytest.mark.long
def test_runs_that_replace_the_partitions_of_their_rows_are_units(tmp_path: Path) -> None:
    work = Work(tmp_path, write="overwrite_partitions")
    for how in ("day x", "day y", "day x"):
        assert work(how).success
    assert sorted(DeltaTable(work.uri).snapshot().scan().to_arrow()["day"].to_pylist()) == ["x", "y"]


@pytest.mark.long
def test_a_program_that_fails_after_its_commit_replaces_its_rows_when_it_runs_again(tmp_path: Path) -> None:
    work = Work(tmp_path, retry_policy=dg.RetryPolicy(max_retries=1))
    result = work("dies")
    assert result.success
    assert len(work.submissions()) == 2
    assert work.num_rows() == 2
    (event,) = result.get_asset_materialization_events()
    assert event.materialization.metadata["delta/outcome"].value == "replaced"


@pytest.mark.long
@pytest.mark.parametrize("how", ["nothing", "forgets"])
def test_a_program_without_the_commit_fails_the_step(work: Work, how: str) -> None:
    result = work(how)
    assert not result.success
    assert "has not committed" in str(result.get_step_failure_events()[0].step_failure_data.error)


@pytest.mark.long
def test_a_partition_and_metadata_of_the_program(tmp_path: Path) -> None:
    days = dg.StaticPartitionsDefinition(["a b", "c"])
    work = Work(tmp_path, partitions_def=days, backfill_policy=dg.BackfillPolicy.single_run())
    result = work("pipes", partition_key="a b")
    assert result.success
    (event,) = result.get_asset_materialization_events()
    assert event.materialization.metadata["own"].value == 7
    assert event.materialization.metadata["delta/version"].value == 0
    assert DeltaTable(work.uri).snapshot().scan().to_arrow()["key"].to_pylist() == ["a b", "a b"]
    several = work(
        "appends",
        tags={"dagster/asset_partition_range_start": "a b", "dagster/asset_partition_range_end": "c"},
    )
    assert not several.success
    assert len(work.submissions()) == 1


@pytest.mark.parametrize("wrong", [{"conf": "spark.secret=Q7wJalrXUtn"}, {"env": ["Q7wJalrXUtn"]}, {"env": 1}])
def test_settings_that_are_no_mapping_are_refused_unshown(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="must map names to text") as caught:
        PipesDeltaSparkClient(**wrong)
    assert "Q7w" not in str(caught.value)
