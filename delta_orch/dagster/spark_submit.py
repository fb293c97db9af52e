"""A Pipes client for programs that `spark-submit` runs, and that commit to a table themselves, exactly once."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, get_type_hints

import dagster as dg

from delta_orch.dagster.metadata import Metadata, data_version, report_metadata
from delta_orch.dagster.resource import DeltaTableResource
from delta_orch.dagster.run import DagsterRun, asset_units, owner_of_write, read_run
from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.step import Mode, Step
from delta_orch.pipeline.submitted import (
    SubmittedRun,
    carry_out,
    driver_settings,
    end_process,
    find_spark_submit,
    submit_environment,
)
from delta_orch.pipeline.target_table import RowGuard, snapshot_or_none
from delta_orch.pipeline.unit import OnRedo, Unit

if TYPE_CHECKING:
    from dagster import PipesClientCompletedInvocation as _Invocation
    from dagster import PipesExecutionResult

    from delta_orch.log.write.commit_options import CommitOptions
    from delta_orch.writing.target import WriteOptions
else:
    # Dagster before 1.13 does not export it.
    _Invocation = get_type_hints(dg.PipesClient.run)["return"]

WRITES = ("append", "merge", "overwrite", "overwrite_partitions")
"""Ways in which a submitted program may change the rows that are there."""


class PipesDeltaSparkClient(dg.PipesClient):
    """Submits programs with `spark-submit`. A program commits to a table as the unit of the step:

        run = delta_orch.submitted_run()
        run.table().append(rows, **run.options)

    It may open Dagster Pipes as well, to log and to report more metadata. A run that repeats one which was killed after
    the commit submits nothing. One that does the work again replaces the rows of its unit. A program that ends well
    without the commit fails the step.

    Args:
        master: `--master`.
        deploy_mode: `--deploy-mode`. With `cluster` the driver runs elsewhere: give a `message_reader` it can write to.
            A driver there goes on when the step is canceled; the unit keeps its commit and a retry's apart.
        conf: `--conf` of all programs.
        env: Environment variables of `spark-submit`.
        binary: The program, by name or path.
        context_injector: By default the environment.
        message_reader: By default a temporary file.
    """

    def __init__(
        self,
        *,
        master: str = "local[*]",
        deploy_mode: str | None = None,
        conf: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        binary: str = "spark-submit",
        context_injector: dg.PipesContextInjector | None = None,
        message_reader: dg.PipesMessageReader | None = None,
    ) -> None:
        if deploy_mode not in (None, "client", "cluster"):
            raise InvalidRequestError(f"deploy_mode={deploy_mode!r} is not 'client' or 'cluster'")
        for name, values in (("conf", conf), ("env", env)):
            # What they hold may be a secret: it is not repeated.
            if not isinstance(values, Mapping | None):
                raise InvalidRequestError(f"{name} must map names to text, not be of type {type(values).__name__}")
        self.master = master
        self.deploy_mode = deploy_mode
        self.conf = dict(conf or {})
        self.env = dict(env or {})
        self.binary = binary
        self.context_injector = context_injector or dg.PipesEnvContextInjector()
        self.message_reader = message_reader or dg.PipesTempFileMessageReader()

    def run(  # type: ignore[override]  # as every Pipes client: the arguments are its own
        self,
        *,
        context: dg.AssetExecutionContext,
        table: DeltaTableResource,
        application: str,
        application_args: Sequence[str] = (),
        conf: Mapping[str, str] | None = None,
        write: Mode = "append",
        on_redo: OnRedo = "replace",
        extras: Mapping[str, object] | None = None,
    ) -> dg.PipesClientCompletedInvocation:
        """Submit a program, and find its commit.

        Args:
            context: Of the asset, for one partition at most.
            table: The table that the program writes.
            application: The script or JAR.
            application_args: Its arguments.
            conf: `--conf`, over those of the client.
            write: What the program does: `append`, `merge`, `overwrite` or `overwrite_partitions`.
            on_redo: What a run does that is executed again: `replace`, `keep` or `add`. See `DeltaLakeIOManager`.
            extras: For the program, by Pipes.

        Returns: the invocation; the asset returns its `get_materialize_result()`, with the metadata of the commit and
        the table's data version.

        Raises:
            InvalidRequestError: The run covers several partitions, or the program has ended without the commit.
            dagster.Failure: The program has failed. A commit that it made stays, and a retry replaces its rows.
            MissingDependencyError: There is no `spark-submit`.
        """
        target, run, name = table.table(), read_run(context), context.asset_key.to_user_string()
        partition = {"partition": context.partition_key} if context.has_partition_key else None
        about: WriteOptions = {"user_metadata": run.user_metadata(name, partition)}
        attempt = run.attempt(_units(context, run, write))
        owner, guards = None, tuple[RowGuard, ...]()
        if write.startswith("overwrite"):
            before, key = snapshot_or_none(target), context.asset_key.path
            owner, guards = owner_of_write(target, before, key, attempt, write, is_scoped=context.has_partition_key)
        step = Step(name, target, write, attempt=attempt, on_redo=on_redo, guards=guards, owner=owner, options=about)
        with dg.open_pipes_session(
            # Pipes asks the context of an asset for what is deprecated there.
            context=context.op_execution_context,
            context_injector=self.context_injector,
            message_reader=self.message_reader,
            extras=dict(extras or {}),
        ) as session:
            program = [application, *map(str, application_args)]

            def submit(options: CommitOptions) -> None:
                submitted = SubmittedRun.of(target.uri, options)
                variables = {**submitted.environment(), **session.get_bootstrap_env_vars()}
                self._submit(program, variables, {**self.conf, **(conf or {}), **submitted.spark_conf()})

            report = carry_out(step, submit)
            context.log.info(report.sentence())
        snapshot = report.snapshot()
        metadata = report_metadata(report, snapshot, table_name=name, run_id=context.run.run_id)
        return _Completed(session, metadata, data_version(snapshot))

    def _submit(self, program: Sequence[str], variables: Mapping[str, str], conf: Mapping[str, str]) -> None:
        command = [find_spark_submit(self.binary), "--master", self.master]
        if self.deploy_mode is not None:
            command += ["--deploy-mode", self.deploy_mode]
        for name, value in {**driver_settings(variables), **conf}.items():
            command += ["--conf", f"{name}={value}"]
        environment = submit_environment(self.master, {**self.env, **variables})
        # The driver is a child of `spark-submit`: they end together.
        process = subprocess.Popen(
            [*command, *program], env=environment, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            code = process.wait()
        finally:
            if process.poll() is None:
                end_process(process)
        if code:
            raise dg.Failure(
                f"spark-submit of {program[0]} ended with {code}. Its output is in the step's stdout and stderr. "
                "A retry replaces what it has committed.",
                metadata={"exit_code": code},
            )


class _Completed(_Invocation):
    """Results that carry the data version of the table."""

    def __init__(self, session: dg.PipesSession, metadata: Metadata, version: dg.DataVersion) -> None:
        super().__init__(session, metadata)
        self._version = version

    def get_results(self, *, implicit_materializations: bool = True) -> Sequence[PipesExecutionResult]:
        return [
            result._replace(data_version=self._version)
            if isinstance(result, dg.MaterializeResult) and result.data_version is None
            else result
            for result in super().get_results(implicit_materializations=implicit_materializations)
        ]


def _units(context: dg.AssetExecutionContext, run: DagsterRun, write: str) -> tuple[Unit, ...]:
    if write not in WRITES:
        raise InvalidRequestError(
            f"write={write!r} is not for a submitted program", remedy=f"Use one of {', '.join(WRITES)}"
        )
    keys = context.partition_keys if context.has_partition_key or context.has_partition_key_range else ()
    if len(keys) > 1:
        raise InvalidRequestError(
            f"A submitted program commits one partition, but the run covers {len(keys)}",
            remedy="Give the asset BackfillPolicy.multi_run(1)",
        )
    return asset_units(context.asset_key.path, run, dict.fromkeys(keys) or None, write=write)
