"""`DeltaSparkSubmitOperator`: a script that `spark-submit` runs, and that commits exactly once."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from delta_orch.airflow.arguments import ensure_list
from delta_orch.airflow.run_context import OtherTasks, leaves_rows
from delta_orch.airflow.spark_session import master_of
from delta_orch.airflow.table_operator import DeltaUnitOperator, OperatorArgument, XCom
from delta_orch.airflow.versions import AirflowException, BaseHook
from delta_orch.pipeline.submitted import (
    SubmittedRun,
    carry_out,
    driver_settings,
    end_process,
    find_spark_submit,
    submit_environment,
)
from delta_orch.pipeline.write_settings import ensure_choice

if TYPE_CHECKING:
    from airflow.sdk import Context

    from delta_orch.airflow.run_context import TaskRun
    from delta_orch.delta_table import DeltaTable
    from delta_orch.pipeline.step import Mode

WRITES = ("append", "overwrite", "overwrite_partitions", "merge", "merge_clauses")
BINARIES = ("spark-submit", "spark2-submit", "spark3-submit")
"""What a connection may name, as the Spark provider allows."""


class DeltaSparkSubmitOperator(DeltaUnitOperator):
    """Submit a script with `spark-submit`. The script commits to the table under the task's transaction.

    The script asks `delta_orch.submitted_run()` for the run, and passes its options to the verb that writes:

        run = submitted_run()
        run.table().append(rows, **run.options)

    **Exactly once**, as `DeltaWriteOperator`: a retry that finds the commit does not submit the script. A script that
    ends well without that commit fails the task. Killing the task ends `spark-submit` and its driver; in cluster mode
    the driver goes on elsewhere, and the transaction keeps its commit and that of a retry apart.

    Args:
        application: The script. (templated)
        application_args: Its arguments. (templated)
        spark_conn_id: A connection of the Spark provider's type `spark`: the master, and in its extra `deploy-mode`,
            `queue`, `namespace` and `spark-binary`. (templated)
        spark_conf: Settings, by `--conf`. (templated)
        env_vars: Environment variables of `spark-submit`. (templated)
        write: What the script does: `append`, `overwrite` (of all rows or of a predicate), `overwrite_partitions`,
            `merge` by keys, or `merge_clauses`, which is not done again.
        identity, writer, on_redo: See `DeltaUnitOperator`.
    """

    template_fields: Sequence[str] = (
        *DeltaUnitOperator.template_fields,
        "application",
        "application_args",
        "spark_conn_id",
        "spark_conf",
        "env_vars",
    )

    def __init__(
        self,
        *,
        application: str,
        application_args: Sequence[str] = (),
        spark_conn_id: str = "spark_default",
        spark_conf: Mapping[str, str] | None = None,
        env_vars: Mapping[str, str] | None = None,
        write: str = "append",
        **kwargs: OperatorArgument,
    ) -> None:
        super().__init__(**kwargs)
        self.application = application
        self.application_args = application_args
        self.spark_conn_id = spark_conn_id
        self.spark_conf = spark_conf
        self.env_vars = env_vars
        self.write = write
        self._process: subprocess.Popen[str] | None = None
        ensure_choice("write", write, WRITES)
        ensure_list("application_args", application_args or None, may_repeat=True)
        if not self.exactly_once:
            raise self.refusal(
                "has exactly_once=False",
                cause="The commit of a submitted script is found by the unit that it records",
                remedy="Leave it out; on_redo='add' adds rows each time that the task is cleared",
            )

    def execute_on_table(self, context: Context, run: TaskRun, table: DeltaTable) -> XCom:
        step = self.unit_step(context, run, table, cast("Mode", self.write))
        if self.write.startswith("overwrite"):
            # The script decides which rows it replaces.
            step = leaves_rows(OtherTasks(context, run), step, replaces=True, whole=False)
        return self.xcom_and_log(carry_out(step, lambda options: self._submit(SubmittedRun.of(table.uri, options))))

    def on_kill(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            end_process(process)
        super().on_kill()

    def _submit(self, run: SubmittedRun) -> None:
        command = self._command(run)
        self.log.info("Submitting %s for %s", self.application, run.table_uri)
        self._process = subprocess.Popen(
            command,
            env=submit_environment(command[2], {**(self.env_vars or {}), **run.environment()}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # The driver is a child of `spark-submit`: they end together.
            start_new_session=True,
        )
        last: list[str] = []
        with self._process as process:
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    self.log.info("%s", line.rstrip())
                    last = [*last[-9:], line.rstrip()]
                code = process.wait()
            finally:
                if process.poll() is None:
                    end_process(process)
        self.ensure_alive()
        if code:
            raise AirflowException(f"spark-submit of {self.application} ended with {code}: {' | '.join(last)}")

    def _command(self, run: SubmittedRun) -> list[str]:
        connection = BaseHook.get_connection(self.spark_conn_id)
        extra = connection.extra_dejson
        master = master_of(connection)
        command = [self._binary(extra.get("spark-binary", BINARIES[0])), "--master", master]
        for name, option in (("deploy-mode", "--deploy-mode"), ("queue", "--queue")):
            if extra.get(name):
                command += [option, str(extra[name])]
        conf = {name: str(value) for name, value in extra.items() if name.startswith("spark.")}
        if extra.get("namespace"):
            conf["spark.kubernetes.namespace"] = str(extra["namespace"])
        conf |= driver_settings(run.environment())
        for name, value in {**conf, **(self.spark_conf or {}), **run.spark_conf()}.items():
            command += ["--conf", f"{name}={value}"]
        return [*command, self.application, *(str(argument) for argument in self.application_args)]

    def _binary(self, name: str) -> str:
        ensure_choice("spark-binary", name, BINARIES)
        return find_spark_submit(name)
