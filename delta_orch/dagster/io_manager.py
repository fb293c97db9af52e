"""The IO manager that keeps assets in Delta tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import dagster as dg
from pydantic import Field, ValidationInfo, field_validator

from delta_orch.dagster.metadata import data_version, partition_row_counts, report_metadata
from delta_orch.dagster.partition_selection import PartitionSelection, select_partitions
from delta_orch.dagster.resource import resolve_env, resolve_options
from delta_orch.dagster.run import DEFAULT_CONFLICT_RETRIES, read_run, retry_conflicts
from delta_orch.dagster.settings import (
    MODES,
    AssetSettings,
    parse_columns,
    parse_mode,
    parse_settings,
    plain_metadata,
)
from delta_orch.dagster.values import loader_for, wants_snapshot, wants_table
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.nodes import Expression, Literal
from delta_orch.pipeline.run_identity import IDEMPOTENCY, Idempotency
from delta_orch.pipeline.step import Mode, Step, StepReport, schema_of_new_table, snapshot_or_none
from delta_orch.protocol.types import BOOLEAN, StructType

PARTITION_OVERWRITE = ("replace_where", "dynamic")
ENGINES = ("auto", "spark", "local")

MANY_FILES = 100
"""A run that writes more files than this for one partition logs a warning."""


class DeltaLakeIOManager(dg.ConfigurableIOManager):
    """Keeps each asset in a Delta table below `root_uri`: `["bronze", "flights"]` in `{root_uri}/bronze/flights`.

    An output of an op that is not an asset is in `{root_uri}/{job}/{node}/{output}`, with a folder for each mapping
    key. The next run of the job replaces it.

    Every write is one commit that happens at most once for a run and its retries; a partitioned asset replaces exactly
    the partitions of its run. An asset says in its definition metadata which column its partitions are about:

    ```python
    @dg.asset(partitions_def=dg.DailyPartitionsDefinition("2013-01-01"), metadata={"partition_expr": "flight_date"})
    def flights(context) -> pyspark.sql.DataFrame: ...
    ```

    Values: Spark DataFrames, Arrow tables and readers, pandas and Polars DataFrames. Inputs are loaded as the type they
    are annotated with, those and `polars.LazyFrame`, `DeltaTable` or `TableSnapshot` (both of the whole table).
    """

    root_uri: str = Field(description="The folder of all tables: a path or a URI.")
    mode: str = Field(
        default="overwrite",
        description="overwrite: replace the run's partitions, or the table of an asset without partitions. append: add "
        "rows. error, ignore: look before writing, and fail or do nothing where there is data already.",
    )
    partition_overwrite: str = Field(
        default="replace_where",
        description="What overwrite replaces. replace_where: the run's partitions, and every row must lie in them. "
        "dynamic: the table's partitions that the rows lie in.",
    )
    storage_options: dict[str, str] = Field(
        default={},
        repr=False,
        description="Options of the store. Give secrets as dg.EnvVar: Dagster shows plain values in its UI.",
    )
    table_properties: dict[str, str] = Field(default={}, description="Properties of tables that are created (delta.*).")
    idempotency: str = Field(
        default="run",
        description="run: a run and its retries write once, a new run writes again, a run older than the last one "
        "to write is kept out. partition: every partition is written once, whichever run does it. off: always write.",
    )
    engine: str = Field(default="auto", description="auto, spark or local. auto follows the value.")
    conflict_retries: int = Field(
        default=DEFAULT_CONFLICT_RETRIES,
        description="How often a step is run again when another writer's commit stood in the way.",
    )
    code_location: str | None = Field(
        default=None,
        description="Names the code location in transaction ids; by default the one a run was launched from.",
    )

    @field_validator("mode")
    @classmethod
    def _check_mode(cls, value: str) -> str:
        return value if isinstance(value, dg.EnvVar) else parse_mode(value)

    @field_validator("partition_overwrite", "idempotency", "engine")
    @classmethod
    def _check_choice(cls, value: str, info: ValidationInfo) -> str:
        choices = {"partition_overwrite": PARTITION_OVERWRITE, "idempotency": IDEMPOTENCY, "engine": ENGINES}
        name = info.field_name or ""
        return value if isinstance(value, dg.EnvVar) else ensure_choice(name, value, choices[name])

    # Writing

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        """Write one output. See `output_write.write_output` for what is guaranteed."""
        if obj is None:
            raise InvalidRequestError(
                f"Step {context.step_key} returned None, which is not a table",
                remedy="Return rows; for a step that writes elsewhere annotate its return type as None",
            )
        settings = parse_settings(context.definition_metadata, context.output_metadata, self.mode)
        table = self._table(table_path(context, settings))
        selection = None
        if context.has_asset_partitions:
            selection = select_partitions(context, settings.partition_expr, settings.partition_format)
        with retry_conflicts(self.conflict_retries):
            step, scopes = self._step(context, settings, table, selection, obj)
            report = step.run(lambda: obj)
        self._report(context, report, ".".join(table_path(context, settings)), scopes)

    def _step(
        self,
        context: dg.OutputContext,
        settings: AssetSettings,
        table: DeltaTable,
        selection: PartitionSelection | None,
        rows: object,
    ) -> tuple[Step, dict[str, Expression]]:
        """The step, and the rows of each partition of the run by its key."""
        key = _step_of(context)
        before = snapshot_or_none(table)
        schema = schema_of_new_table(rows, self.engine) if before is None else before.schema
        partition_by = settings.partition_by
        if before is None and partition_by is None:
            partition_by = () if selection is None else selection.columns
        partition_columns = (partition_by or ()) if before is None else before.partition_columns
        scopes = {} if selection is None else selection.scopes(schema)
        tied = selection is not None and _names(selection.columns) <= _names(partition_columns)
        if selection is not None:
            self._ensure_exact(settings, selection, partition_columns, is_tied=tied)
        run = None if self.idempotency == "off" else read_run(context, self.code_location)
        mode: Mode = settings.mode
        if mode == "overwrite" and self.partition_overwrite == "dynamic":
            mode = "overwrite_partitions"
        where = None if selection is None or mode in ("append", "overwrite_partitions") else selection.predicate(schema)
        step = Step(
            f"Step {context.step_key}",
            table,
            mode,
            txns=()
            if run is None
            else run.identity(key).txns(
                cast(Idempotency, self.idempotency),
                scopes=None if selection is None else {k: scope if tied else None for k, scope in scopes.items()},
                # An appending step adds what it found; an older run that ends later must not lose it.
                by_run=mode == "append",
            ),
            where=where,
            schema_mode=settings.schema_mode,
            engine=self.engine,
            options={
                "partition_by": partition_by,
                "properties": self.table_properties,
                "user_metadata": None if run is None else run.user_metadata("/".join(key), _keys_text(selection)),
            },
        )
        return step, scopes

    def _ensure_exact(
        self,
        settings: AssetSettings,
        selection: PartitionSelection,
        partition_columns: Sequence[str],
        *,
        is_tied: bool,
    ) -> None:
        """Refuse a write that nothing would check: in a table partitioned by other columns, the transaction ids cannot
        be limited to partitions, and rows may lie in any of them."""
        about = ", ".join(selection.columns)
        if self.idempotency != "off" and len(selection.keys) > 1 and not is_tied:
            raise InvalidRequestError(
                f"A run over {len(selection.keys)} partitions cannot be exactly-once in a table that is not "
                "partitioned by them",
                cause=f"The table is partitioned by {', '.join(partition_columns) or 'nothing'}, "
                f"the partitions are about {about}",
                remedy="Run one partition at a time (BackfillPolicy.multi_run), or partition the table by that column",
            )
        is_dynamic = settings.mode == "overwrite" and self.partition_overwrite == "dynamic"
        if is_dynamic and (self.idempotency == "off" or not is_tied):
            raise InvalidRequestError(
                "partition_overwrite='dynamic' could replace other partitions than those of the run",
                cause=f"Nothing ties the table's partitions to {about}: "
                "it is partitioned by other columns, or idempotency is off",
                remedy="Use partition_overwrite='replace_where'",
            )

    def _report(
        self, context: dg.OutputContext, report: StepReport, table_name: str, scopes: dict[str, Expression]
    ) -> None:
        snapshot = report.snapshot()
        metadata = report_metadata(report, snapshot, table_name)
        _warn_of_many_files(context, report, len(scopes), snapshot.partition_columns)
        if report.skipped:
            context.log.warning("Nothing was written: %s.", report.reason or "nothing to do")
        counts = partition_row_counts(snapshot, scopes)
        if len(counts) == 1:
            metadata["dagster/partition_row_count"] = next(iter(counts.values()))
        context.add_output_metadata(metadata)
        if context.has_asset_key:
            step = context.step_context
            step.set_data_version(context.asset_key, data_version(snapshot))
            for key, rows in counts.items() if len(counts) > 1 else ():
                step.add_asset_metadata(
                    {"dagster/partition_row_count": rows}, asset_key=context.asset_key, partition_key=key
                )

    # Reading

    def load_input(self, context: dg.InputContext) -> object:
        """Load the run's partitions of an input, or all of an input without partitions.

        Raises:
            TableNotFoundError: Nothing has been written there yet.
            InvalidRequestError: The annotated type is not supported, or partitions and columns do not go together.
        """
        upstream = context.upstream_output
        definition = plain_metadata(None if upstream is None else upstream.definition_metadata)
        # The mode does not matter for reading, and may be one of another IO manager.
        definition.pop("mode", None)
        settings = parse_settings(definition, None, "overwrite")
        annotation = context.dagster_type.typing_type
        table = self._table(table_path(context if context.has_asset_key else upstream, settings))
        if wants_table(annotation):
            return table
        snapshot = table.snapshot()
        if wants_snapshot(annotation):
            return snapshot
        load = loader_for(annotation, self.engine)
        columns = parse_columns(plain_metadata(context.definition_metadata).get("columns"), "columns")
        return load(snapshot.scan(columns=columns, where=_input_predicate(context, settings, snapshot.schema)))

    def _table(self, path: Sequence[str]) -> DeltaTable:
        root = resolve_env(self.root_uri).rstrip("/")
        return DeltaTable("/".join([root, *path]), resolve_options(self.storage_options))


def ensure_choice(name: str, value: str, choices: Sequence[str]) -> str:
    """One of the choices, or InvalidRequestError."""
    if value not in choices:
        raise InvalidRequestError(f"There is no {name} {value!r}", remedy=f"Use one of {', '.join(choices)}")
    return value


def table_path(context: dg.InputContext | dg.OutputContext | None, settings: AssetSettings) -> tuple[str, ...]:
    """The folders of a table below the root.

    Raises:
        InvalidRequestError: A part could lead out of the root.
    """
    if context is None:
        raise InvalidRequestError(
            "The input is neither an asset nor the output of another step",
            remedy="Load it from an asset, or read the table through a DeltaTableResource",
        )
    if context.has_asset_key:
        prefix, place = tuple(context.asset_key.path[:-1]), [context.asset_key.path[-1]]
    else:
        prefix, place = (), _place_of_output(context, settings)
    path = (*((settings.schema,) if settings.schema else prefix), *place)
    for part in path:
        if part in ("", ".", "..") or "/" in part or "\\" in part:
            raise InvalidRequestError(
                f"{part!r} cannot be the name of a folder",
                cause="Parts of the asset key, or the metadata 'schema' and 'table', become folders of the table",
                remedy="Use another name",
            )
    return path


def _place_of_output(context: dg.InputContext | dg.OutputContext, settings: AssetSettings) -> list[str]:
    """The folders of an op's output. Two jobs, ops or mapped steps never share one."""
    assert isinstance(context, dg.OutputContext)
    # The step `load[key]` is the op `load`, mapped; an op that maps others has a key for each output.
    node, _, step_key = context.step_key.partition("[")
    keys = (step_key.rstrip("]"), context.mapping_key)
    place = (settings.table,) if settings.table else (context.job_name, node, context.name)
    return [part for part in (*place, *keys) if part]


def _warn_of_many_files(
    context: dg.OutputContext, report: StepReport, num_partitions: int, partition_columns: Sequence[str]
) -> None:
    files = report.metrics.get("numFiles")
    if num_partitions and isinstance(files, int) and files > MANY_FILES * num_partitions:
        context.log.warning(
            "The run's partitions (%d) were written as %d files: each value of %s is a directory of its own. "
            "The metadata 'partition_by' names other columns, or [] for none.",
            num_partitions,
            files,
            ", ".join(partition_columns),
        )


def _step_of(context: dg.OutputContext) -> tuple[str, ...]:
    if context.has_asset_key:
        return tuple(context.asset_key.path)
    parts = (context.job_name, context.step_key, context.name, context.mapping_key)
    return tuple(part for part in parts if part)


def _names(columns: Sequence[str]) -> set[str]:
    return {name.lower() for name in columns}


def _keys_text(selection: PartitionSelection | None) -> dict[str, str]:
    if selection is None:
        return {}
    keys = selection.keys
    return {"partition": keys[0]} if len(keys) == 1 else {"first_partition": keys[0], "last_partition": keys[-1]}


def _input_predicate(context: dg.InputContext, settings: AssetSettings, schema: StructType) -> Expression | None:
    if not context.has_asset_partitions:
        return None
    if not context.asset_partition_keys:
        return Literal(False, BOOLEAN)
    return select_partitions(context, settings.partition_expr, settings.partition_format).predicate(schema)


__all__ = ["ENGINES", "IDEMPOTENCY", "MODES", "PARTITION_OVERWRITE", "DeltaLakeIOManager"]
