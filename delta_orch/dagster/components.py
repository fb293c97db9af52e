"""Components: Delta tables in a project of `dg`, from YAML.

`dg scaffold defs delta_orch.dagster.DeltaTablesComponent tables` writes a first `defs.yaml`; `dg check yaml` and
editors know every key. A key that is misspelled is an error.
"""

# No postponed annotations in this file: Dagster reads them as they are.

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from datetime import timedelta
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import dagster as dg
from dagster.components.lib.sql_component.sql_client import SQLClient
from pydantic import BaseModel, ConfigDict, Field

from delta_orch.arrival.file_source import FileFormat, FileOrder, FileSource, OnChanged, OnError, SchemaFit
from delta_orch.catalog.discovery import list_tables
from delta_orch.catalog.names import parse_table_name
from delta_orch.dagster.checks import Rule, build_delta_check, columns, freshness, health, row_count, unique
from delta_orch.dagster.incremental import Write, delta_asset
from delta_orch.dagster.maintenance import DEFAULT_POOL, build_delta_maintenance_assets
from delta_orch.dagster.metadata import report_metadata
from delta_orch.dagster.observation import build_delta_observations
from delta_orch.dagster.resource import DeltaTableResource, resolve_options
from delta_orch.dagster.run import asset_units, owner_of_write, read_run
from delta_orch.dagster.sensor import DeltaAutomation, build_delta_file_sensor
from delta_orch.dagster.values import parse_key
from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.incremental import Bootstrap, FileBatch, OnRecreated
from delta_orch.pipeline.maintenance import MaintenancePolicy
from delta_orch.pipeline.step import Step
from delta_orch.pipeline.target_table import RowGuard, snapshot_or_none
from delta_orch.pipeline.unit import OnRedo
from delta_orch.pipeline.write_settings import MEANINGS, SETTINGS
from delta_orch.statements.run import parse_replacement
from delta_orch.verbs.change_events import Envelope

if TYPE_CHECKING:
    from delta_orch.writing.target import WriteOptions


def run_statement(text: str, tables: Mapping[str, object], storage_options: Mapping[str, object]) -> None:
    """Run a statement as the unit of the asset whose step this is, and report its commit.

    Raises:
        InvalidRequestError: This is not the step of one asset without partitions, or as `parse_replacement`. Nothing
            was read or changed.
        ConcurrentTransactionError: Another attempt has committed meanwhile. Running again is safe.
        DeltaError: As `delta_orch.sql`. The table is unchanged.
    """
    statement = parse_replacement(text, tables, storage_options)
    context = _context()
    run, key, table = read_run(context), context.asset_key, statement.table
    attempt = run.attempt(asset_units(key.path, run, None, write=statement.mode))
    name, owner, guards = key.to_user_string(), None, tuple[RowGuard, ...]()
    if statement.mode == "overwrite":
        before, is_scoped = snapshot_or_none(table), not statement.is_whole
        owner, guards = owner_of_write(table, before, key.path, attempt, statement.mode, is_scoped=is_scoped)
    about: WriteOptions = {"user_metadata": run.user_metadata(name)}
    step = Step(name, table, statement.mode, attempt=attempt, guards=guards, owner=owner, options=about)
    report = step.commit(statement.run)
    context.log.info(report.sentence())
    metadata = report_metadata(report, report.snapshot(), table_name=name, run_id=run.run_id)
    context.add_asset_metadata(metadata, key)


def _context() -> dg.AssetExecutionContext:
    remedy = "Run it by a dagster.TemplatedSqlComponent with one asset, without partitions"
    try:
        context = dg.AssetExecutionContext.get()
    except dg.DagsterError as error:
        raise InvalidRequestError(
            "The statement does not run in the step of an asset",
            cause="The run is the identity that makes a write happen once",
            remedy=remedy + "; elsewhere call delta_orch.sql",
        ) from error
    if len(context.selected_asset_keys) != 1 or context.has_partition_key or context.has_partition_key_range:
        raise InvalidRequestError(
            "The statement runs for several assets, or for partitions",
            cause="A unit is one asset, and the template of a statement knows no partition",
            remedy=remedy,
        )
    return context


_DUE = MaintenancePolicy()
_OF_POLICY = [field.name for field in fields(MaintenancePolicy)]
_OF_CHANGES = ("full_snapshot", "consumer", "bootstrap", "on_recreated", "max_versions", "schema_mode")
_OF_ASSET = (*(name for name in SETTINGS if name not in _OF_CHANGES), "group_name")
_OF_FILES = (
    *("format", "pattern", "options", "schema_mode", "on_error", "on_changed", "compression", "encoding"),
    *("source_file", "settle_seconds", "order", "names_ascend", "max_files", "max_bytes"),
)
_OF_MAINTENANCE = ("target_file_size_bytes", "vacuum_retention_hours", "vacuum_dry_run_only", "pool", "group_name")
"""Attributes that a component hands on under their own names."""
_VARIABLE = re.compile(r"""\{\{-?\s*env(?:\.|\[\s*['"])(\w+)(?:['"]\s*\])?\s*-?\}\}""")
"""A template that is a variable and nothing else: it says nothing of a value in its place."""


def about(text: str) -> dg.Resolver:
    """The description of a key. Dagster drops that of a `Field` with a default."""
    described: dg.Resolver = dg.Resolver.default(description=text)
    return described


def setting(name: str) -> dg.Resolver:
    """The description of a key that is a setting of every write."""
    return about(MEANINGS[name])


class DeltaStore(dg.Model, dg.Resolvable):
    """How the store of tables is opened."""

    # Options may be credentials.
    model_config = ConfigDict(hide_input_in_errors=True)

    storage_options: Annotated[dict[str, str], about("Options of the store that are not secrets.")] = Field({})
    secrets: Annotated[dict[str, str], about("Secret options of the store: option → environment variable.")] = Field({})

    def resource(self, table_uri: str) -> DeltaTableResource:
        """The table at a location."""
        return DeltaTableResource(table_uri=table_uri, storage_options=self.all_options())

    def all_options(self) -> dict[str, str]:
        """The options, secret ones as variables."""
        hidden = {option: dg.EnvVar(variable) for option, variable in self.secrets.items()}
        return {**self.storage_options, **hidden}


class _DeltaComponent(DeltaStore, dg.Component):
    """A component that is not loaded with a variable that is not set."""

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Raises InvalidRequestError: Dagster would put None for a variable, also into a location."""
        for text in _texts(attributes.model_dump() if attributes is not None else {}):
            for variable in _VARIABLE.findall(text):
                if variable not in os.environ:
                    raise InvalidRequestError(
                        f"The environment variable {variable}, which the component names, is not set",
                        cause="The text 'None' would stand in its place",
                        remedy=f"Set it, or say what stands for it: {{{{ env('{variable}', 'default') }}}}",
                    )
        return super().load(attributes, context)


def _texts(value: object) -> Iterator[str]:
    """The texts in a value, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)


class DeltaTableSpec(dg.Model, dg.Resolvable):
    """A table and its checks."""

    key: Annotated[str, about("The asset key, its parts separated by slashes.")]
    table_uri: Annotated[str, about("Where the table is: a path or a URI.")]
    observed: Annotated[
        bool, about("Others write it: it is an observable source asset. False: defined elsewhere, here are its checks.")
    ] = True
    columns: Annotated[dict[str, str] | None, about("Check: exactly these columns, name → type.")] = None
    unique: Annotated[list[str] | None, about("Check: no two rows have the same values in these.")] = None
    min_rows: Annotated[int | None, about("Check: at least so many rows.")] = None
    max_age_hours: Annotated[float | None, about("Check: data changed within so many hours.")] = None
    healthy: Annotated[bool, about("Check: no maintenance is due.")] = False


class _Scaffolder(dg.Scaffolder[Any]):
    """Writes a first `defs.yaml`."""

    attributes: Mapping[str, object] = {}

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        dg.scaffold_component(request, self.attributes)


def _uri(table: str) -> str:
    """The same location from every working directory. The variable, if it is set, names another one."""
    return f"{{{{ env('DELTA_LAKE', context.project_root ~ '/lake') }}}}/{table}"


class DeltaTablesScaffolder(_Scaffolder):
    attributes = {  # noqa: RUF012
        "tables": [{"key": "lake/events", "table_uri": _uri("events"), "min_rows": 1, "max_age_hours": 24.0}],
        "observe_cron": "*/5 * * * *",
    }


class DeltaMaintenanceScaffolder(_Scaffolder):
    attributes = {"tables": {"events": _uri("events")}, "cron": "0 3 * * *"}  # noqa: RUF012


class DeltaIngestScaffolder(_Scaffolder):
    attributes = {  # noqa: RUF012
        "key": "lake/orders",
        "files": {"uri": _uri("landing/orders"), "format": "json", "pattern": "**/*.json"},
        "table_uri": _uri("orders"),
    }


class DeltaIncrementalScaffolder(_Scaffolder):
    """Writes a first `defs.yaml`, and beside it the function of the asset."""

    attributes = {  # noqa: RUF012
        "key": "lake/daily",
        "source_uri": _uri("events"),
        "table_uri": _uri("daily"),
        "function": "transform.py:rows",
        "partition_by": ["day"],
    }

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        super().scaffold(request)
        path = request.target_path / "transform.py"
        if not path.exists():
            path.write_text(_TRANSFORM, encoding="utf-8")


_TRANSFORM = '''"""Rows of the written table, from a batch of changes of the source."""

import pyarrow as pa

from delta_orch.dagster import ChangeBatch


def rows(batch: ChangeBatch) -> pa.Table:
    """All rows of the partitions that changed."""
    return batch.scan().to_arrow()
'''


@dg.scaffold_with(DeltaTablesScaffolder)
class DeltaTablesComponent(_DeltaComponent):
    """Delta tables as observed assets, with checks."""

    tables: Annotated[list[DeltaTableSpec], about("The tables.")]
    observe_cron: Annotated[str | None, about("When to observe: a cron schedule. None: by hand.")] = None
    group_name: Annotated[str | None, about("The group of the observed assets.")] = None

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        condition = None if self.observe_cron is None else dg.AutomationCondition.on_cron(self.observe_cron)
        keys = [table.key for table in self.tables]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise InvalidRequestError(
                f"tables has two of the key {twice[0]!r}", remedy="Give each a key of its own, or join the two"
            )
        assets: list[dg.SourceAsset] = []
        checks: list[dg.AssetChecksDefinition] = []
        for table in self.tables:
            resource, key = self.resource(table.table_uri), parse_key(table.key)
            if table.observed:
                assets += build_delta_observations(
                    {key.path[-1]: resource},
                    key_prefix=key.path[:-1],
                    group_name=self.group_name,
                    automation_condition=condition,
                )
            checks += _checks(key, resource, table)
        return dg.Definitions(assets=assets, asset_checks=checks)


class DeltaCatalogComponent(_DeltaComponent):
    """The tables of a schema of Unity Catalog as observed assets. The catalog is asked when definitions are loaded."""

    catalog_schema: Annotated[str, about("The schema: uc://catalog.schema.")]
    tables: Annotated[list[str] | None, about("Names of its tables. None: all.")] = None
    key_prefix: Annotated[list[str], about("What comes before the name of a table in its asset key.")] = Field([])
    observe_cron: Annotated[str | None, about("When to observe: a cron schedule. None: by hand.")] = None
    group_name: Annotated[str | None, about("The group of the observed assets.")] = None

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        options = resolve_options(self.resource(self.catalog_schema).storage_options)
        uris = {parse_table_name(uri).table: uri for uri in list_tables(self.catalog_schema, options)}
        names = sorted(uris) if self.tables is None else self.tables
        if missing := [name for name in names if name not in uris]:
            raise InvalidRequestError(
                f"{self.catalog_schema} has no table {missing[0]!r}", remedy=f"It has {', '.join(uris) or 'none'}"
            )
        if not names:
            return dg.Definitions()
        condition = None if self.observe_cron is None else dg.AutomationCondition.on_cron(self.observe_cron)
        assets = build_delta_observations(
            {name: self.resource(uris[name]) for name in names},
            key_prefix=self.key_prefix,
            group_name=self.group_name,
            automation_condition=condition,
        )
        return dg.Definitions(assets=assets)


class DeltaConnectionComponent(_DeltaComponent, SQLClient):
    """The `connection` of a `dagster.TemplatedSqlComponent`, whose statement then runs as the unit of its asset, in
    process. It defines nothing itself."""

    tables: Annotated[dict[str, str], about("Name in the SQL → where the table is. Others are delta.`path`.")] = Field(
        {}
    )

    def connect_and_execute(self, sql: str) -> None:
        """Run a statement. Raises as `run_statement`."""
        tables = {name: self.resource(uri).table() for name, uri in self.tables.items()}
        run_statement(sql, tables, resolve_options(self.all_options()))

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        return dg.Definitions()


class _WritingComponent(_DeltaComponent):
    """A component of one asset that writes a table: `delta_asset`."""

    key: Annotated[str, about("The asset key, its parts separated by slashes.")]
    table_uri: Annotated[str, about("The table to write.")]
    merge_keys: Annotated[list[str] | None, setting("merge_keys")] = None
    sequence_by: Annotated[str | list[str] | None, setting("sequence_by")] = None
    delete_when: Annotated[str | None, setting("delete_when")] = None
    except_columns: Annotated[list[str] | None, setting("except_columns")] = None
    scd: Annotated[Literal[1, 2] | None, setting("scd")] = None
    envelope: Annotated[Envelope | None, setting("envelope")] = None
    tombstone_retention: Annotated[str | None, setting("tombstone_retention")] = None
    partition_by: Annotated[list[str] | None, setting("partition_by")] = None
    properties: Annotated[dict[str, str] | None, setting("properties")] = None
    audit: Annotated[dict[str, Any], setting("audit")] = Field({})
    expect: Annotated[dict[str, Any], setting("expect")] = Field({})
    max_quarantined: Annotated[int | float | None, setting("max_quarantined")] = None
    quarantine: Annotated[str | None, setting("quarantine")] = None
    unit_column: Annotated[str | None, setting("unit_column")] = None
    on_redo: Annotated[OnRedo, setting("on_redo")] = "replace"
    exactly_once: Annotated[bool, about("False: a run that is executed again goes on from the cursor.")] = True
    group_name: Annotated[str | None, about("The group of the asset.")] = None


@dg.scaffold_with(DeltaIncrementalScaffolder)
class DeltaIncrementalComponent(_WritingComponent):
    """An asset that processes the changes of a table, and commits its cursor with its rows: `delta_asset`."""

    source_uri: Annotated[str, about("The table to read.")]
    function: Annotated[
        str, about("Makes rows of a `ChangeBatch`: `file.py:name` beside defs.yaml, or `package.module.name`.")
    ]
    write: Annotated[Write | None, about("What the rows replace. None: overwrite_changed, the changed partitions.")] = (
        None
    )
    full_snapshot: Annotated[bool, setting("full_snapshot")] = False
    consumer: Annotated[str | None, about("The name of the cursor, if another asset has the same two tables.")] = None
    schema_mode: Annotated[Literal["merge", "overwrite"] | None, setting("schema_mode")] = None
    bootstrap: Annotated[Bootstrap, about("Where the first run begins.")] = "snapshot"
    on_recreated: Annotated[OnRecreated, about("What to do when the source was recreated.")] = "error"
    max_versions: Annotated[int | None, about("The most versions of the source in one run.")] = None
    deps: Annotated[list[str], about("Keys of the assets that write the source.")] = Field([])
    cron: Annotated[str | None, about("When to run. None: when one of `deps` has new data.")] = None

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        on_cron = None if self.cron is None else dg.AutomationCondition.on_cron(self.cron)
        made = delta_asset(
            incremental_from=self.resource(self.source_uri),
            table=self.resource(self.table_uri),
            key=parse_key(self.key),
            deps=[parse_key(key) for key in self.deps],
            automation_condition=on_cron or DeltaAutomation.on_new_data(),
            **{name: getattr(self, name) for name in (*_OF_ASSET, *_OF_CHANGES)},
        )(_function(self.function, context))
        return dg.Definitions(assets=[made])


class DeltaFilesSpec(DeltaStore):
    """Files that arrive below a location: `FileSource`. Without options of a store it has those of the table."""

    uri: Annotated[str, about("The location.")]
    format: Annotated[FileFormat, about("What the files are.")]
    pattern: Annotated[str, about("Which files below the location, by their path.")] = "**/*"
    options: Annotated[dict[str, Any], about("Options of the format, such as the delimiter of CSV.")] = Field({})
    schema_mode: Annotated[SchemaFit, about("What becomes of a value that does not fit the table.")] = "fail"
    on_error: Annotated[OnError, about("What becomes of a file that cannot be read.")] = "fail"
    on_changed: Annotated[OnChanged, about("What becomes of a file that has changed since it was loaded.")] = "error"
    compression: Annotated[str | None, about("Of JSON, CSV and text. None: by the name.")] = None
    encoding: Annotated[str | None, about("Of JSON, CSV and text. None: UTF-8.")] = None
    source_file: Annotated[bool, about("Whether each row tells its file, in the column `source_file`.")] = False
    settle_seconds: Annotated[float, about("Leave a file for the next look until it is so old.")] = 0.0
    order: Annotated[FileOrder, about("The order in which files are loaded.")] = "name"
    names_ascend: Annotated[bool, about("A promise: no file arrives with a lesser path.")] = False
    max_files: Annotated[int, about("The most files of one commit.")] = 10_000
    max_bytes: Annotated[int | None, about("The most bytes of one commit.")] = None

    def source(self, table: DeltaTableResource) -> FileSource:
        """The files, for a table."""
        own = self.resource(self.uri).storage_options or table.storage_options
        return FileSource(
            self.uri, storage_options=resolve_options(own) or None, **{name: getattr(self, name) for name in _OF_FILES}
        )


@dg.scaffold_with(DeltaIngestScaffolder)
class DeltaIngestComponent(_WritingComponent):
    """An asset that loads the files that arrive below a location, each once, and the sensor that looks for them:
    `delta_asset` and `build_delta_file_sensor`."""

    files: Annotated[DeltaFilesSpec, about("The files: the fields of a `FileSource`.")]
    function: Annotated[
        str | None, about("Makes rows of a `FileBatch`, `file.py:name` or `package.module.name`. None: as they are.")
    ] = None
    write: Annotated[
        Literal["append", "merge", "cdc", "overwrite"] | None, about("What the rows replace. None: append, nothing.")
    ] = None
    cron: Annotated[str | None, about("When to run. None: when the sensor finds new files.")] = None
    minimum_interval_seconds: Annotated[int | None, about("Seconds between two looks of the sensor.")] = None

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        key, table = parse_key(self.key), self.resource(self.table_uri)
        source = self.files.source(table)
        made = delta_asset(
            incremental_from=source,
            table=table,
            key=key,
            automation_condition=None if self.cron is None else dg.AutomationCondition.on_cron(self.cron),
            **{name: getattr(self, name) for name in _OF_ASSET},
        )(_as_they_are if self.function is None else _function(self.function, context))
        if self.cron is not None:
            return dg.Definitions(assets=[made])
        sensor = build_delta_file_sensor(
            name=f"{'__'.join(key.path)}__files",
            source=source,
            table=table,
            target=[made],
            minimum_interval_seconds=self.minimum_interval_seconds,
        )
        return dg.Definitions(assets=[made], sensors=[sensor])


def _as_they_are(batch: FileBatch) -> object:
    """The rows of new files."""
    return batch.rows(as_table=True)


@dg.scaffold_with(DeltaMaintenanceScaffolder)
class DeltaMaintenanceComponent(_DeltaComponent):
    """Compaction, purge, checkpoint, vacuum and cleanup of the log, where a table's health asks for it: an asset a
    table, which is observed."""

    tables: Annotated[dict[str, str], about("Name → where the table is.")]
    cron: Annotated[str | None, about("When to look at the tables. None: by hand.")] = None
    consumers: Annotated[
        dict[str, list[str]], about("Name → tables that incremental assets fill from it: their unread files stay.")
    ] = Field({})
    min_compactable_files: Annotated[int, about("Compact from so many on.")] = _DUE.min_compactable_files
    max_commits_since_checkpoint: Annotated[int, about("More commits make a checkpoint due.")] = (
        _DUE.max_commits_since_checkpoint
    )
    min_expired_tombstones: Annotated[int, about("So many expired files make vacuum due.")] = (
        _DUE.min_expired_tombstones
    )
    max_deleted_rows_ratio: Annotated[float, about("A greater share of deleted rows makes a purge due.")] = (
        _DUE.max_deleted_rows_ratio
    )
    min_expired_log_files: Annotated[int, about("So many expired files of the log make its cleanup due.")] = (
        _DUE.min_expired_log_files
    )
    target_file_size_bytes: Annotated[int | None, about("Of compaction; by default the table's.")] = None
    vacuum_retention_hours: Annotated[float | None, about("By default, and at least, the table's.")] = None
    vacuum_dry_run_only: Annotated[bool, about("Report what vacuum would delete, delete nothing.")] = False
    pool: Annotated[str | None, about("The concurrency pool of the assets.")] = DEFAULT_POOL
    key_prefix: Annotated[str, about("The first parts of their keys.")] = "maintenance"
    group_name: Annotated[str | None, about("Their group.")] = "maintenance"

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        return dg.Definitions(
            assets=build_delta_maintenance_assets(
                {name: self.resource(uri) for name, uri in self.tables.items()},
                policy=MaintenancePolicy(**{name: getattr(self, name) for name in _OF_POLICY}),
                consumers={name: [self.resource(uri) for uri in uris] for name, uris in self.consumers.items()},
                key_prefix=parse_key(self.key_prefix).path,
                automation_condition=None if self.cron is None else dg.AutomationCondition.on_cron(self.cron),
                **{name: getattr(self, name) for name in _OF_MAINTENANCE},
            )
        )


def _checks(key: dg.AssetKey, resource: DeltaTableResource, spec: DeltaTableSpec) -> list[dg.AssetChecksDefinition]:
    rules: list[Rule] = []
    if spec.columns is not None:
        rules.append(columns(columns=spec.columns))
    if spec.unique is not None:
        rules.append(unique(keys=spec.unique))
    if spec.min_rows is not None:
        rules.append(row_count(min_rows=spec.min_rows))
    if spec.max_age_hours is not None:
        if not spec.max_age_hours < timedelta.max.total_seconds() / 3600:
            raise InvalidRequestError(
                f"max_age_hours={spec.max_age_hours} is not an age", remedy="Give a number of hours, or leave it out"
            )
        rules.append(freshness(max_age=timedelta(hours=spec.max_age_hours)))
    if spec.healthy:
        rules.append(health())
    return [build_delta_check(key, resource, rule) for rule in rules]


def _function(reference: str, context: dg.ComponentLoadContext) -> Callable[..., object]:
    """Raises InvalidRequestError: There is no such function, or its module cannot be loaded."""
    place, separator, name = reference.partition(":")
    try:
        if separator:
            folder = context.path if context.path.is_dir() else context.path.parent
            spec = spec_from_file_location(f"{folder.name}_{place}".partition(".")[0], folder / place)
            if spec is None or spec.loader is None:
                raise ImportError(f"{folder / place} is not a Python file")
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            place, _, name = reference.rpartition(".")
            module = import_module(place)
        function: Callable[..., object] = getattr(module, name)
    # The module belongs to the user, and each of its errors is about this component.
    except Exception as error:
        raise InvalidRequestError(
            f"The function {reference!r} cannot be loaded",
            cause=f"{type(error).__name__}: {error}",
            remedy="Name it as file.py:function, beside the defs.yaml, or as package.module.function",
        ) from error
    if not callable(function):
        raise InvalidRequestError(
            f"The function {reference!r} is a value of type {type(function).__name__}", remedy="Name a function"
        )
    return function
