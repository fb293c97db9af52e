"""The IO manager that keeps assets in Delta tables."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from difflib import get_close_matches
from functools import partial
from typing import Any, cast

import dagster as dg
from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator

from delta_orch.dagster.audits import PASSED, audit_failure, report_failed_checks
from delta_orch.dagster.column_lineage import LINEAGE, column_lineage
from delta_orch.dagster.inputs import input_name, load_value
from delta_orch.dagster.metadata import (
    STORAGE_KIND,
    TABLE_RESOURCE,
    data_version,
    partition_row_counts,
    report_metadata,
    warn_of_many_files,
)
from delta_orch.dagster.output_place import Place, asset_place, output_parts, table_place
from delta_orch.dagster.own_version import own_txn, repeat_conflicts
from delta_orch.dagster.partition_selection import PartitionSelection, written_partitions
from delta_orch.dagster.reexecution import ensure_whole
from delta_orch.dagster.resource import resolve_env, resolve_options
from delta_orch.dagster.run import (
    DEFAULT_CONFLICT_RETRIES,
    DagsterRun,
    ensure_not_added,
    ensure_same_config,
    is_in_run,
    read_run,
    retry_conflicts,
    step_name,
)
from delta_orch.dagster.settings import (
    DEFINED_KEYS,
    PLACE_KEYS,
    WRITTEN_KEYS,
    AssetSettings,
    elsewhere,
    parse_mode,
    parse_settings,
    plain_metadata,
    refuse_slips,
)
from delta_orch.dagster.values import unwrap_optional
from delta_orch.delta_table import DeltaTable
from delta_orch.engines.select import can_be_read_again
from delta_orch.errors import AuditFailedError, InvalidRequestError
from delta_orch.expressions.nodes import Expression
from delta_orch.log.files.txn import TxnId
from delta_orch.pipeline.run_identity import IDEMPOTENCY, Idempotency
from delta_orch.pipeline.step import Look, Mode, Step, StepReport
from delta_orch.pipeline.table_owner import OPS, asset_owner
from delta_orch.pipeline.target_table import schema_of_new_table, snapshot_or_none
from delta_orch.protocol.types import StructType
from delta_orch.writing.target import split_options

PARTITION_OVERWRITE = ("replace_where", "dynamic")
ENGINES = ("auto", "spark", "local")

_WITHIN = ("append", "merge", "scd2", "error", "ignore")
"""Modes that check row by row that what they write lies in the run's partitions. `overwrite` does so by its predicate,
`overwrite_partitions` by the scopes of the transaction ids, which it does not go without."""
_NO_PREDICATE = ("append", "merge", "scd2", "overwrite_partitions")


class DeltaLakeIOManager(dg.ConfigurableIOManager):
    """Keeps each asset in a Delta table below `root_uri`: `["bronze", "flights"]` in `{root_uri}/bronze/flights`.

    An output of an op that is not an asset is in `{root_uri}/{job}/{node}/{output}`, with a folder for each mapping
    key. Every run commits a version of its own there, and its steps read that version.

    Every write is one commit that happens at most once for a run and its retries; a partitioned asset replaces exactly
    the partitions of its run. The definition metadata of an asset names the column that holds its partitions:

    ```python
    @dg.asset(partitions_def=dg.DailyPartitionsDefinition("2013-01-01"), metadata={"partition_expr": "flight_date"})
    def flights(context) -> pyspark.sql.DataFrame: ...
    ```

    Values: Spark DataFrames, Arrow tables and readers, pandas and Polars frames, DuckDB relations. Inputs are loaded as
    the type they are annotated with: those, `DeltaTable`, `DeltaSnapshot` (both of the whole table), `ChangeFeed`,
    `Optional` of them, or `dict[str, …]` for one value per partition key. An output annotated as `Optional` may be
    None: then nothing is written.
    """

    # Options may be credentials.
    model_config = ConfigDict(hide_input_in_errors=True)

    root_uri: str = Field(description="The folder of all tables: a path or a URI.")
    mode: str = Field(
        default="overwrite",
        description="overwrite: replace the run's partitions, or the table of an asset without partitions. append: add "
        "rows. merge: update the rows with the same merge_keys, insert the others. scd2: keep all versions of a key. "
        "error, ignore: look before writing, and fail or do nothing where there is data already.",
    )
    merge_keys: list[str] = Field(default=[], description="The columns that identify a row, for the mode merge.")
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
    commit_metadata: dict[str, str] = Field(
        default={}, description="Names and values for the commitInfo of every commit; an asset's metadata adds to them."
    )
    code_location: str | None = Field(
        default=None,
        description="Names the code location in transaction ids; by default the one a run was launched from.",
    )

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, values: Any) -> Any:
        # Pydantic passes over what it does not know, and a run would write in another mode than the one asked for.
        for name in values if isinstance(values, dict) else ():
            if name not in cls.model_fields:
                near = get_close_matches(name, cls.model_fields, 1) or [elsewhere(name)]
                said = f"; did you mean {near[0]!r}?" if near[0] else ""
                raise ValueError(f"There is no setting {name!r}{said}")
        return values

    # Before, as a variable would be a text like any other afterwards.
    @field_validator("mode", mode="before")
    @classmethod
    def _check_mode(cls, value: str) -> str:
        return value if isinstance(value, dg.EnvVar) else parse_mode(value)

    @field_validator("partition_overwrite", "idempotency", "engine", mode="before")
    @classmethod
    def _check_choice(cls, value: str, info: ValidationInfo) -> str:
        named = {"partition_overwrite": PARTITION_OVERWRITE, "idempotency": IDEMPOTENCY, "engine": ENGINES}
        choices = named[info.field_name or ""]
        if not isinstance(value, dg.EnvVar) and value not in choices:
            remedy = f"Use one of {', '.join(choices)}"
            raise InvalidRequestError(f"There is no {info.field_name} {value!r}", remedy=remedy)
        return value

    @field_validator("table_properties", mode="before")
    @classmethod
    def _check_properties(cls, values: Any) -> Any:
        if isinstance(values, Mapping):
            known = {name: said for name, said in values.items() if not isinstance(said, dg.EnvVar)}
            split_options({"properties": known})
        return values

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Raises InvalidRequestError: The run leaves steps out. See `reexecution.ensure_whole`."""
        ensure_whole(context)

    # Writing

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        """Write one output in one commit, exactly once for a run and its retries; or write nothing for None.

        Raises:
            dg.Failure: An audit did not pass. The table is as before.
            InvalidRequestError: A setting is misspelled or does not fit, the value is None where the output's type does
                not admit it, the run names no partition of an asset that has some, or another table is in the way of
                the folder.
            DeltaError: As `Step.run`. The table is unchanged.
        """
        refuse_slips(context.definition_metadata, DEFINED_KEYS, "the definition")
        written = _written_metadata(context)
        refuse_slips(written, WRITTEN_KEYS, "the output")
        settings = parse_settings(context.definition_metadata, written, self.mode, self.merge_keys)
        if context.has_asset_key and settings.table is not None:
            raise InvalidRequestError(
                "The metadata 'table' is for outputs of ops; the last part of an asset's key names its table",
                remedy="Name the asset so, or its folder with 'schema'",
            )
        place = table_place(context, settings)
        ensure_whole(context)
        if obj is None:
            _report_nothing(context, place)
            return
        selection = written_partitions(context, settings.partition_expr, settings.partition_format)

        def write() -> tuple[StepReport, dict[str, Expression]]:
            step, scopes = self._step(context, settings, place, selection, obj)
            return step.run(lambda: obj), scopes

        started = time.perf_counter()
        try:
            with retry_conflicts(self.conflict_retries):
                is_repeatable = not context.has_asset_key and can_be_read_again(obj)
                report, scopes = repeat_conflicts(write) if is_repeatable else write()
        except AuditFailedError as error:
            if context.has_asset_key and is_in_run(context):
                report_failed_checks(context, error)
            raise audit_failure(error) from error
        ensure_same_config(context, report)
        if context.has_asset_key and is_in_run(context) and not report.skipped and LINEAGE not in written:
            step = context.step_context
            graph = step.job_def.asset_layer.asset_graph
            context.add_output_metadata(column_lineage(obj, report, context.asset_key, graph, step.instance))
        self._report(context, report, ".".join(place), scopes, time.perf_counter() - started, settings.mode)

    def _step(
        self,
        context: dg.OutputContext,
        settings: AssetSettings,
        place: Place,
        selection: PartitionSelection | None,
        rows: object,
    ) -> tuple[Step, dict[str, Expression]]:
        """The step, and the rows of each partition of the run by its key."""
        key, table = output_parts(context), self._table(place)
        is_once = self.idempotency == "partition"
        before = snapshot_or_none(table)
        schema = schema_of_new_table(rows, self.engine) if before is None else before.schema
        partition_by = settings.partition_by
        if before is None and partition_by is None:
            is_moved = settings.mode == "scd2" and settings.sequence_by in (selection.columns if selection else ())
            # A version of a key closes one in another partition, so directories by the sequence are of no use.
            partition_by = () if selection is None or is_moved else selection.columns
        partition_columns = (partition_by or ()) if before is None else before.partition_columns
        scopes: dict[str, Expression] = {}
        tied = False
        if selection is not None:
            selection.ensure_one_to_one(schema)
            if before is not None:
                selection.ensure_same_windows(before, every=is_once)
            scopes = selection.scopes(schema)
            tied = _names(selection.columns) <= _names(partition_columns)
            self._ensure_exact(settings, selection, partition_columns, is_tied=tied)
        # An output of an op always has an identity: its run reads back the version that carries it.
        named = self.idempotency != "off" or not context.has_asset_key
        run = None
        # What needs no identity is also written outside of a run, or where the root run is gone.
        with nullcontext() if named else suppress(InvalidRequestError):
            run = read_run(context, self.code_location)
        mode: Mode = settings.mode
        # The output of an op is a whole: what an older run left in other partitions does not belong to it.
        if mode == "overwrite" and self.partition_overwrite == "dynamic" and context.has_asset_key:
            mode = "overwrite_partitions"
        where = None if selection is None or mode in _NO_PREDICATE else selection.predicate(schema)
        # The value of an op may have other columns in every run; an asset's are those of its table.
        of_op = "overwrite" if mode == "overwrite" and not context.has_asset_key else None
        # What an op was given is told by the mode, which may be set at run time.
        about = {"mode": mode} if not context.has_asset_key else {} if selection is None else selection.described
        look: Look | None = None
        marks = is_once and context.has_asset_key
        if settings.mode == "append" and self.idempotency != "off" and run is not None and (marks or run.is_repeated):
            look = partial(ensure_not_added, table, run if run.is_repeated else None, once=marks)
        step = Step(
            f"Step {step_name(context)}",
            table,
            mode,
            txns=() if run is None else self._txns(context, run, settings, selection, scopes if tied else {}),
            where=where,
            within=_within(mode, selection, schema),
            merge_keys=settings.merge_keys if mode in ("merge", "scd2") else (),
            sequence_by=settings.sequence_by,
            delete_marker=settings.delete_marker,
            full_snapshot=settings.full_snapshot,
            schema_mode=settings.schema_mode or of_op,
            engine=self.engine,
            options={
                "partition_by": partition_by,
                "properties": {
                    **({} if selection is None else selection.windows(schema, every=is_once)),
                    **self.table_properties,
                    **settings.table_properties,
                },
                "user_metadata": None if run is None else run.user_metadata("/".join(key), about),
                "commit_info": {**self.commit_metadata, **settings.commit_metadata} or None,
            },
            audits=settings.audits,
            look=look,
            owner=asset_owner(context.asset_key.path) if context.has_asset_key else OPS,
        )
        return step, scopes

    def _txns(
        self,
        context: dg.OutputContext,
        run: DagsterRun,
        settings: AssetSettings,
        selection: PartitionSelection | None,
        tied: Mapping[str, Expression],
    ) -> tuple[TxnId, ...]:
        """Who writes. `tied` limits the identity of a partition to its rows, where the table is partitioned alike."""
        idempotency = cast(Idempotency, self.idempotency)
        if not context.has_asset_key:
            return (own_txn(run, context, idempotency),)
        scopes = None if selection is None else {key: tied.get(key) for key in selection.keys}
        return run.identity(output_parts(context)).txns(
            idempotency,
            scopes=None if _adds(settings, idempotency) else scopes,
            # A step that adds what it found; an older run that ends later must not lose it.
            by_run=settings.mode in ("append", "merge", "scd2"),
        )

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
        if settings.mode == "ignore" and len(selection.keys) > 1:
            raise InvalidRequestError(
                f"mode 'ignore' cannot write {len(selection.keys)} partitions at once",
                cause="It does nothing where it finds data, also for those of them that have none",
                remedy="Run one partition at a time (BackfillPolicy.multi_run), or use idempotency='partition'",
            )
        if settings.mode == "scd2":
            self._ensure_versions(settings, selection)
        is_guarded = self.idempotency != "off" and not _adds(settings, self.idempotency)
        if is_guarded and len(selection.keys) > 1 and not is_tied:
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

    def _ensure_versions(self, settings: AssetSettings, selection: PartitionSelection) -> None:
        names, keys = _names(selection.columns), _names(settings.merge_keys)
        if self.idempotency == "partition":
            raise InvalidRequestError(
                "mode 'scd2' with partitions needs idempotency='run'",
                cause="A partition that is written once could not get a second version",
                remedy="Use idempotency='run': what is there already is not added again",
            )
        if not names <= keys and names != _names([settings.sequence_by or ""]):
            raise InvalidRequestError(
                f"mode 'scd2' is not for partitions by {', '.join(selection.columns)}",
                cause="The versions of a key follow each other through all partitions",
                remedy="Use partitions by columns of merge_keys, or by the sequence column",
            )

    def _report(
        self,
        context: dg.OutputContext,
        report: StepReport,
        table_name: str,
        scopes: dict[str, Expression],
        seconds: float,
        mode: Mode,
    ) -> None:
        snapshot = report.snapshot()
        run_id = context.run_id if is_in_run(context) else None
        definition = context.definition_metadata
        metadata = report_metadata(report, snapshot, table_name, run_id=run_id, seconds=seconds, definition=definition)
        metadata["delta/mode"] = mode
        if report.findings:
            metadata["delta/audits_passed"] = len(report.findings)
            metadata[PASSED] = dg.JsonMetadataValue([finding.name for finding in report.findings])
        warn_of_many_files(context, report, len(scopes), snapshot.partition_columns)
        if report.skipped:
            context.log.warning("Nothing was written: %s.", report.reason or "nothing to do")
        counts = partition_row_counts(snapshot, scopes)
        if len(counts) == 1:
            metadata["dagster/partition_row_count"] = next(iter(counts.values()))
        context.add_output_metadata(metadata)
        if context.has_asset_key and is_in_run(context):
            step = context.step_context
            step.set_data_version(context.asset_key, data_version(snapshot))
            for key, rows in counts.items() if len(counts) > 1 else ():
                step.add_asset_metadata(
                    {"dagster/partition_row_count": rows}, asset_key=context.asset_key, partition_key=key
                )

    # Reading

    def load_input(self, context: dg.InputContext) -> object:
        """Load an input. See `inputs.load_value`."""
        upstream = context.upstream_output
        definition = plain_metadata(None if upstream is None else upstream.definition_metadata)
        uri, kind = definition.get("dagster/uri"), definition.get("dagster/storage_kind")
        named = definition.get(TABLE_RESOURCE)
        # How it is written does not matter, and may be for another IO manager.
        theirs = [key for key in definition if key in DEFINED_KEYS or elsewhere(key)]
        refuse_slips(definition.keys() - set(theirs), PLACE_KEYS, "the upstream", {})
        definition = {key: value for key, value in definition.items() if key in PLACE_KEYS}
        settings = parse_settings(definition, None, "overwrite")
        table = self._table(table_place(context if context.has_asset_key else upstream, settings))
        is_here = kind != STORAGE_KIND or uri is None or str(uri).rstrip("/") == table.uri.rstrip("/")
        if not is_here or named is not None:
            where = f"at {uri}" if named is None else f"that the resource or variable {named} names"
            raise InvalidRequestError(
                f"{input_name(context)} is a table {where}, which this IO manager does not keep",
                cause=f"It would be loaded from {table.uri}, whatever lies there",
                remedy="Name the asset in deps, and read the table through a DeltaTableResource",
                uri=table.uri,
            )
        return load_value(context, table, settings, self.engine, self.code_location, self.mode)

    def table_of(self, key: dg.AssetKey, metadata: Mapping[str, object] | None = None) -> DeltaTable:
        """The table of an asset, whether it exists or not.

        Args:
            metadata: Of the asset's definition: `schema` names another folder than the key's prefix.
        """
        schema = plain_metadata(metadata).get("schema")
        return self._table(asset_place(key, schema if isinstance(schema, str) else None))

    def _table(self, path: Sequence[str]) -> DeltaTable:
        root = resolve_env(self.root_uri)
        if not root.strip():
            # `/` is the root of the file system.
            raise InvalidRequestError(
                "root_uri is empty", remedy="Name the folder of all tables, such as lake or s3://b/l"
            )
        return DeltaTable("/".join([root.rstrip("/"), *path]), resolve_options(self.storage_options))


def _written_metadata(context: dg.OutputContext) -> Mapping[str, object]:
    """What the function said of its output, and with `add_asset_metadata` of its asset."""
    if not context.has_asset_key or not is_in_run(context):
        return context.output_metadata
    step, key = context.step_context, context.asset_key
    for partition in context.asset_partition_keys if context.has_asset_partitions else ():
        if of_one := sorted(set(WRITTEN_KEYS) & set(step.get_asset_metadata(key, partition) or {})):
            raise InvalidRequestError(
                f"The metadata {of_one[0]!r} is about the partition {partition} alone, and a run is one commit",
                remedy="Leave partition_key out: context.add_asset_metadata({…})",
            )
    return {**(step.get_asset_metadata(key) or {}), **context.output_metadata}


def _report_nothing(context: dg.OutputContext, place: Place) -> None:
    """None is a value that leaves the table as it is, where the output's type says that it may come."""
    if not unwrap_optional(context.dagster_type.typing_type)[1]:
        raise InvalidRequestError(
            f"Step {step_name(context)} returned None, which is not a table",
            cause="A missing return statement is treated as an error",
            remedy="Return rows. Annotate the return type as Optional[…] where None stands for nothing to write, or as "
            "None for a step that writes elsewhere",
        )
    context.log.info("The value is None: %s stays as it is.", ".".join(place))
    context.add_output_metadata({"delta/skipped": True, "delta/skip_reason": "the value is None"})


def _within(mode: Mode, selection: PartitionSelection | None, schema: StructType) -> tuple[Expression, ...]:
    """Where the rows must lie. A merge is told the partitions one by one, as it must not move rows between them; and so
    is `scd2`, where each can be a snapshot."""
    if selection is None or mode not in _WITHIN:
        return ()
    one_by_one = mode in ("merge", "scd2")
    return tuple(selection.scopes(schema).values()) if one_by_one else (selection.predicate(schema),)


def _adds(settings: AssetSettings, idempotency: str) -> bool:
    """Whether every run adds its rows, also to a partition that a newer run has written."""
    return settings.mode in ("append", "scd2") and idempotency == "run"


def _names(columns: Sequence[str]) -> set[str]:
    return {name.lower() for name in columns}
