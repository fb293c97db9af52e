"""The IO manager that keeps assets in Delta tables.

An output is written in three steps: `handle_output` reads the settings, `_step` describes the write, and
`pipeline.step.Step.run` carries it out. `_attempt` names the units, and `DagsterRun.relation` in `run.py` compares the
attempt with the one that the table has recorded.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from difflib import get_close_matches
from types import FrameType
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator

from delta_orch.catalog.names import location_below
from delta_orch.dagster.audits import PASSED, audit_failure, report_failed_checks, rule_metadata
from delta_orch.dagster.metadata import (
    LINEAGE,
    STORAGE_KIND,
    TABLE_RESOURCE,
    column_lineage,
    data_version,
    partition_row_counts,
    report_metadata,
    warn_of_many_files,
)
from delta_orch.dagster.partitions import PartitionSelection, ensure_expression, written_partitions
from delta_orch.dagster.resource import resolve_env, resolve_options
from delta_orch.dagster.run import (
    DEFAULT_CONFLICT_RETRIES,
    DagsterRun,
    asset_units,
    ensure_whole,
    is_in_run,
    owner_of_write,
    read_run,
    retry_conflicts,
    step_name,
)
from delta_orch.dagster.settings import (
    DEFINED_KEYS,
    PLACE_KEYS,
    UNIT_KINDS,
    WRITTEN_KEYS,
    AssetSettings,
    parse_choice,
    parse_settings,
    parse_write,
    plain_metadata,
    refuse_slips,
)
from delta_orch.dagster.values import (
    Place,
    asset_place,
    input_name,
    load_value,
    op_attempt,
    output_parts,
    repeat_conflicts,
    table_place,
    unwrap_optional,
)
from delta_orch.delta_table import DeltaTable
from delta_orch.engines.select import can_be_read_again
from delta_orch.errors import AuditFailedError, ExpectationFailedError, InvalidRequestError
from delta_orch.expressions.nodes import Expression
from delta_orch.pipeline.step import Mode, Step
from delta_orch.pipeline.target_table import OPS, RowGuard, schema_of_new_table, snapshot_or_none
from delta_orch.pipeline.unit import ON_REDO, Attempt, StepReport
from delta_orch.pipeline.write_settings import BY_KEYS, MEANINGS, refuse_old_names
from delta_orch.protocol.types import StructType
from delta_orch.writing.target import split_options

if TYPE_CHECKING:
    from delta_orch.delta_table import DeltaTable
    from delta_orch.expressions.nodes import Expression


_CHOICES = {"unit": UNIT_KINDS, "on_redo": ON_REDO, "engine": ("auto", "spark", "local")}

ADDING = ("append", *BY_KEYS)
"""Writes that leave the rows of other runs. Without partitions, each run is a unit."""
_WITHIN = (*ADDING, "error", "ignore")
"""Writes that check row by row that what they write lies in the run's partitions. `overwrite` does so by its predicate,
`overwrite_partitions` by the scopes of its units, which it does not go without."""
_NO_PREDICATE = (*ADDING, "overwrite_partitions")


class DeltaLakeIOManager(dg.ConfigurableIOManager):
    """Keeps each asset in a Delta table below `root_uri`: `["bronze", "flights"]` in `{root_uri}/bronze/flights`.

    An output of an op that is not an asset is in `{root_uri}/{job}/{node}/{output}`, with a folder for each mapping
    key. Every run commits a version of its own there, and its steps read that version.

    Every write is one commit. A run that is repeated after a crash finds it, a run that does the work again replaces
    the rows of its unit: a partitioned asset exactly the partitions of its run. The definition metadata of an asset
    names the column that holds its partitions:

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

    root_uri: str = Field(description="The folder of all tables: a path or a URI; or a schema, uc://catalog.schema.")
    write: str = Field(
        default="overwrite",
        description="overwrite: replace the run's partitions, or the table of an asset without partitions. "
        "overwrite_partitions: replace the table's partitions that the rows lie in. append: add rows. merge: update "
        "the rows with the same merge_keys, insert the others. cdc: rows are change events, in any order. error, "
        "ignore: look before writing, and fail or do nothing where there is data already.",
    )
    merge_keys: list[str] = Field(default=[], description=MEANINGS["merge_keys"])
    storage_options: dict[str, str] = Field(
        default={},
        repr=False,
        description="Options of the store. Give secrets as dg.EnvVar: Dagster shows plain values in its UI.",
    )
    properties: dict[str, str] = Field(default={}, description=MEANINGS["properties"])
    unit: str = Field(
        default="partition",
        description="What is written by one run. partition: its partitions; of an asset without partitions the asset, "
        "or with append, merge and cdc what the run adds. run: what the run adds to its partitions, to which other "
        "runs add, too.",
    )
    unit_column: str | None = Field(default=None, description=MEANINGS["unit_column"])
    on_redo: str = Field(default="replace", description=MEANINGS["on_redo"])
    exactly_once: bool = Field(default=True, description=MEANINGS["exactly_once"])
    engine: str = Field(default="auto", description="auto, spark or local. auto follows the value.")
    conflict_retries: int = Field(
        default=DEFAULT_CONFLICT_RETRIES,
        description="How often a step is run again when another writer's commit stood in the way.",
    )
    commit_metadata: dict[str, str] = Field(
        default={}, description="Names and values for the commitInfo of every commit; an asset's metadata adds to them."
    )

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, values: Any) -> Any:
        # Pydantic passes over what it does not know, and a run would write otherwise than was asked for.
        for name in values if isinstance(values, dict) else ():
            if name not in cls.model_fields:
                refuse_old_names([name])
                near = get_close_matches(name, cls.model_fields, 1)
                suggestion = f"; did you mean {near[0]!r}?" if near else ""
                raise ValueError(f"There is no setting {name!r}{suggestion}")
        return values

    # Before, as a variable would be a text like any other afterwards.
    @field_validator("write", "unit", "on_redo", "engine", mode="before")
    @classmethod
    def _check_choice(cls, value: str, info: ValidationInfo) -> str:
        if isinstance(value, dg.EnvVar):
            return value
        name = str(info.field_name)
        return parse_write(value) if name == "write" else parse_choice(name, value, _CHOICES[name])

    @field_validator("properties", mode="before")
    @classmethod
    def _check_properties(cls, values: Any) -> Any:
        if isinstance(values, Mapping):
            properties = {name: value for name, value in values.items() if not isinstance(value, dg.EnvVar)}
            split_options({"properties": properties})
        return values

    def get_resource_definition(self) -> Any:
        """The definition, which checks the assets it is bound to. See `loading`."""
        return check_on_loading(super().get_resource_definition(), self._check_asset)

    def _check_asset(self, asset: dg.AssetsDefinition, key: dg.AssetKey) -> None:
        """Raises InvalidRequestError: The metadata of an asset's definition misspells a key of this module, or what it
        says does not fit."""
        output, _ = asset.node_def.resolve_output_to_origin(asset.get_output_name_for_asset_key(key), None)
        if output.dagster_type.is_nothing:
            return
        metadata = plain_metadata(asset.metadata_by_key.get(key))
        about = f"asset {key.to_user_string()}"
        refuse_slips(metadata, DEFINED_KEYS, about)
        write, keys = resolve_env(self.write), self.merge_keys
        # A variable that is not set here may be where the asset runs; and an output may say more.
        settings = parse_settings(metadata, None, write or "overwrite", keys) if write else None
        if settings is not None and asset.partitions_def is not None:
            ensure_expression(asset.partitions_def, settings.partition_expr, settings.partition_format, about)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Raises InvalidRequestError: The run leaves steps out. See `run.ensure_whole`."""
        ensure_whole(context)

    # Writing

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        """Write one output in one commit; or write nothing for None.

        Raises:
            dg.Failure: An audit did not pass, or a rule that must hold is broken. The table is as before.
            InvalidRequestError: A setting is misspelled or does not fit, the value is None where the output's type does
                not admit it, the run names no partition of an asset that has some, or another table is in the way of
                the folder.
            DeltaError: As `Step.run`. The table is unchanged.
        """
        refuse_slips(context.definition_metadata, DEFINED_KEYS, "the definition")
        written = _written_metadata(context)
        refuse_slips(written, WRITTEN_KEYS, "the output")
        settings = parse_settings(context.definition_metadata, written, self.write, self.merge_keys)
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
        except (AuditFailedError, ExpectationFailedError) as error:
            if context.has_asset_key and is_in_run(context):
                report_failed_checks(context, error)
            raise audit_failure(error) from error
        is_new = report.outcome in ("written", "replaced")
        if context.has_asset_key and is_in_run(context) and is_new and LINEAGE not in written:
            step = context.step_context
            graph = step.job_def.asset_layer.asset_graph
            context.add_output_metadata(column_lineage(obj, report, context.asset_key, graph, step.instance))
        self._report(context, report, ".".join(place), scopes, time.perf_counter() - started, settings.write)

    def _step(
        self,
        context: dg.OutputContext,
        settings: AssetSettings,
        place: Place,
        selection: PartitionSelection | None,
        rows: object,
    ) -> tuple[Step, dict[str, Expression]]:
        """The step, and the rows of each partition of the run by its key."""
        key, table, is_asset = output_parts(context), self._table(place), context.has_asset_key
        exactly_once = self.exactly_once if settings.exactly_once is None else settings.exactly_once
        before = snapshot_or_none(table)
        schema = schema_of_new_table(rows, self.engine) if before is None else before.schema
        partition_by = settings.partition_by
        # An event of a key concerns one in another partition, so directories by the sequence are of no use.
        is_moved = selection is not None and not _names(selection.columns).isdisjoint(_sequence(settings))
        if before is None and partition_by is None:
            partition_by = () if selection is None or is_moved else selection.directories(schema)
        partition_columns = (partition_by or ()) if before is None else before.partition_columns
        scopes: dict[str, Expression] = {}
        tied = False
        appends = key if settings.write == "append" and exactly_once and not self._is_by_run(settings) else ()
        if selection is not None:
            selection.ensure_one_to_one(schema)
            if before is not None:
                selection.ensure_same_windows(before, appends)
            scopes = selection.scopes(schema)
            tied = _names(selection.columns) <= _names(partition_columns) and not is_moved
            _ensure_exact(settings, selection, partition_columns, is_tied=tied, exactly_once=exactly_once)
        run = None
        # What needs no run is also written outside of one. An output of an op does: its run reads back its version.
        with nullcontext() if exactly_once or not is_asset else suppress(InvalidRequestError):
            run = read_run(context)
        mode: Mode = settings.write
        # The output of an op is a whole: what an older run left in other partitions does not belong to it.
        if mode == "overwrite_partitions" and not is_asset:
            mode = "overwrite"
        where: str | Expression | None = settings.replace_where
        if selection is not None and mode not in _NO_PREDICATE:
            where = selection.predicate(schema)
        # The value of an op may have other columns in every run; an asset's are those of its table.
        of_op = "overwrite" if mode == "overwrite" and not is_asset else None
        # The mode tells which rows the op returned, and the run may set it.
        about = {"write": mode} if not is_asset else {} if selection is None else selection.described
        # What the IO manager says is for those of its assets whose rows are not found by their keys.
        unit_column = settings.unit_column or (None if mode in BY_KEYS else self.unit_column)
        attempt = self._attempt(context, run, settings, selection, scopes if tied else {}, exactly_once=exactly_once)
        owner, guards = OPS, tuple[RowGuard, ...]()
        if is_asset:
            is_scoped = selection is not None or where is not None or mode == "overwrite_partitions"
            owner, guards = owner_of_write(table, before, key, attempt, mode, is_scoped=is_scoped)
        step = Step(
            f"Step {step_name(context)}",
            table,
            mode,
            attempt=attempt,
            where=where,
            within=_within(mode, selection, schema),
            engine=self.engine,
            options={
                "user_metadata": None if run is None else run.user_metadata("/".join(key), about),
                "commit_info": {**self.commit_metadata, **settings.commit_metadata} or None,
            },
            guards=guards,
            owner=owner,
        )
        windows = {} if selection is None else selection.windows(schema, appends)
        chosen = replace(
            settings,
            on_redo=settings.on_redo or parse_choice("on_redo", self.on_redo, ON_REDO),
            unit_column=unit_column if is_asset else None,
            merge_keys=settings.merge_keys if mode in BY_KEYS else (),
            schema_mode=settings.schema_mode or of_op,
            partition_by=partition_by,
            properties={**windows, **self.properties, **(settings.properties or {})},
        )
        return chosen.apply(step), scopes

    def _attempt(
        self,
        context: dg.OutputContext,
        run: DagsterRun | None,
        settings: AssetSettings,
        selection: PartitionSelection | None,
        tied: Mapping[str, Expression],
        *,
        exactly_once: bool,
    ) -> Attempt | None:
        """The attempt and its units. `tied` limits the unit of a partition to its rows, if the table is partitioned
        alike."""
        if run is None:
            return None
        if not context.has_asset_key:
            return op_attempt(context, run, exactly_once=exactly_once)
        if not exactly_once:
            return None
        by_run = self._is_by_run(settings)
        if by_run and settings.write not in ADDING:
            raise InvalidRequestError(
                f"unit='run' is for writes that add rows, and here write={settings.write!r}",
                cause="What one run writes would take the place of what the others wrote",
                remedy="Write with append, merge or cdc; or leave unit out, so that a run replaces its partitions",
            )
        scopes = None if selection is None else {key: tied.get(key) for key in selection.keys}
        return run.attempt(asset_units(context.asset_key.path, run, scopes, write=settings.write, by_run=by_run))

    def _is_by_run(self, settings: AssetSettings) -> bool:
        """Whether each run is a unit, of those that add to one partition."""
        return (settings.unit or parse_choice("unit", self.unit, UNIT_KINDS)) == "run"

    def _report(
        self,
        context: dg.OutputContext,
        report: StepReport,
        table_name: str,
        scopes: dict[str, Expression],
        seconds: float,
        write: str,
    ) -> None:
        snapshot = report.snapshot()
        run_id = context.run_id if is_in_run(context) else None
        definition = context.definition_metadata
        metadata = report_metadata(report, snapshot, table_name, run_id=run_id, seconds=seconds, definition=definition)
        metadata["delta/write"] = write
        if report.findings:
            metadata["delta/audits_passed"] = len(report.findings)
            metadata[PASSED] = dg.JsonMetadataValue([finding.name for finding in report.findings])
        metadata |= rule_metadata(report.expected)
        warn_of_many_files(context, report, len(scopes), snapshot.partition_columns)
        context.log.info(report.sentence())
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
        """Load an input. See `values.load_value`."""
        upstream = context.upstream_output
        definition = plain_metadata(None if upstream is None else upstream.definition_metadata)
        uri, kind = definition.get("dagster/uri"), definition.get("dagster/storage_kind")
        named = definition.get(TABLE_RESOURCE)
        # How it is written does not matter, and may be for another IO manager.
        refuse_slips(definition.keys() - set(DEFINED_KEYS), PLACE_KEYS, "the upstream")
        definition = {key: value for key, value in definition.items() if key in PLACE_KEYS}
        settings = parse_settings(definition, None, "overwrite")
        table = self._table(table_place(context if context.has_asset_key else upstream, settings))
        is_here = kind != STORAGE_KIND or uri is None or str(uri).rstrip("/") == table.uri.rstrip("/")
        if not is_here or named is not None:
            where = f"at {uri}" if named is None else f"that the resource or variable {named} names"
            raise InvalidRequestError(
                f"{input_name(context)} is a table {where}, which this IO manager does not keep",
                cause=f"It would be loaded from {table.uri}, which may be another table",
                remedy="Name the asset in deps, and read the table through a DeltaTableResource",
                uri=table.uri,
            )
        return load_value(context, table, settings, self.engine, self.write)

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
        return DeltaTable(location_below(root, *path), resolve_options(self.storage_options))


def _written_metadata(context: dg.OutputContext) -> Mapping[str, object]:
    """The metadata that the function added to its output, and by `add_asset_metadata` to its asset."""
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
    context.add_output_metadata({"delta/outcome": "nothing new", "delta/reason": "the value is None"})


def _within(mode: Mode, selection: PartitionSelection | None, schema: StructType) -> tuple[Expression, ...]:
    """Where the rows must lie. A merge gets the partitions one by one, because it must not move rows between them. So
    does `cdc`, where each partition can be a snapshot."""
    if selection is None or mode not in _WITHIN:
        return ()
    one_by_one = mode in BY_KEYS
    return tuple(selection.scopes(schema).values()) if one_by_one else (selection.predicate(schema),)


def _ensure_exact(
    settings: AssetSettings,
    selection: PartitionSelection,
    partition_columns: Sequence[str],
    *,
    is_tied: bool,
    exactly_once: bool,
) -> None:
    """Refuse a write that nothing would check: in a table partitioned by other columns, the files of one unit cannot be
    told from those of another, and rows may lie in any partition."""
    about = ", ".join(selection.columns)
    if settings.replace_where is not None:
        raise InvalidRequestError(
            "replace_where is for assets without partitions",
            cause="The partitions of the run say which rows it replaces",
            remedy="Leave replace_where out",
        )
    if settings.write == "ignore" and len(selection.keys) > 1:
        raise InvalidRequestError(
            f"write='ignore' cannot write {len(selection.keys)} partitions at once",
            cause="It does nothing where it finds data, also for those of them that have none",
            remedy="Run one partition at a time: BackfillPolicy.multi_run(1); or use on_redo='keep'",
        )
    names, keys = _names(selection.columns), _names(settings.merge_keys or ())
    if settings.write == "cdc" and not names <= keys and names != _sequence(settings):
        raise InvalidRequestError(
            f"write='cdc' is not for partitions by {about}",
            cause="The events of a key follow each other through all partitions",
            remedy="Use partitions by columns of merge_keys, or by the first column of sequence_by",
        )
    if exactly_once and len(selection.keys) > 1 and not is_tied:
        raise InvalidRequestError(
            f"A run over {len(selection.keys)} partitions writes one commit, whose files would hold rows of several",
            cause=f"The table is partitioned by {', '.join(partition_columns) or 'nothing'}, "
            f"the partitions of the asset are by {about}",
            remedy="Run one partition at a time: BackfillPolicy.multi_run(1). Or partition a new table by that "
            f'column: metadata {{"partition_by": {list(selection.columns)}}}',
        )
    if settings.write == "overwrite_partitions" and not (exactly_once and is_tied):
        raise InvalidRequestError(
            "write='overwrite_partitions' could replace other partitions than those of the run",
            cause=f"Nothing ties the table's partitions to {about}: "
            "it is partitioned by other columns, or exactly_once is False",
            remedy="Use write='overwrite', which replaces the partitions of the run",
        )


def _sequence(settings: AssetSettings) -> set[str]:
    """The first column that orders change events."""
    return set() if settings.changes is None else _names(settings.changes.sequence[:1])


def _names(columns: Sequence[str]) -> set[str]:
    return {name.lower() for name in columns}


AssetCheck = Callable[[dg.AssetsDefinition, dg.AssetKey], None]

_BINDING = "merge_resource_defs"
"""The function of Dagster that gives an asset its resources (1.12, 1.13). It asks each of them what it needs."""


def check_on_loading(resource: Any, check: AssetCheck) -> Any:
    """A resource's definition that checks the assets whose outputs it manages, as Dagster binds it to them:
    `Definitions.validate_loadable`, `dg check defs`, and the start of a code location fail where the check does.

    Dagster passes a resource nothing about its assets, so they are read from the function that binds it.
    Where a release of Dagster has none of that name, the checks are made when the asset runs, before it writes.

    Args:
        resource: The definition.
        check: Is called with the asset and each of its keys, and raises what is wrong.
    """
    original = resource.get_resource_requirements
    if "get_resource_requirements" in vars(resource):
        return resource

    def get_resource_requirements(source_key: str | None = None) -> Iterator[Any]:
        asset = _bound_asset(sys._getframe(1))
        if asset is not None:
            for key in asset.keys if asset.is_executable else ():
                if asset.get_io_manager_key_for_asset_key(key) == source_key:
                    check(asset, key)
        yield from original(source_key)

    resource.get_resource_requirements = get_resource_requirements
    return resource


def _bound_asset(frame: FrameType | None) -> dg.AssetsDefinition | None:
    for _ in range(3):
        if frame is None:
            return None
        if frame.f_code.co_name == _BINDING:
            asset = frame.f_locals.get("requires_resources")
            return asset if isinstance(asset, dg.AssetsDefinition) else None
        frame = frame.f_back
    return None
