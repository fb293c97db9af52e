"""Values of steps: where the tables of outputs are, which version a run reads back, and how inputs are loaded.

The outputs of all runs of a job are versions of one table. A run commits its own as a unit that names its root run, and
its steps read what that commit wrote. So runs at the same time do not see each other's values. Values of older runs
stay readable until vacuum and log cleanup remove them, as with any older version.
"""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin
from typing import Literal as OneOf

import dagster as dg
import pyarrow as pa

from delta_orch.change_feed.change_feed import ChangeFeed
from delta_orch.dagster.partitions import PartitionSelection, select_partitions
from delta_orch.dagster.run import DagsterRun, ensure_whole, is_in_run, op_unit, read_run
from delta_orch.dagster.settings import AssetSettings, InputSettings, parse_input_settings
from delta_orch.delta_table import DeltaTable, TableSnapshot
from delta_orch.errors import ConflictError, InvalidRequestError, TableNotFoundError, VersionNotFoundError
from delta_orch.expressions.nodes import Literal
from delta_orch.log.files.commit_reader import user_metadata_of
from delta_orch.log.read.replay import Tail
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.pipeline.target_table import snapshot_or_none
from delta_orch.pipeline.unit import Attempt, Unit, find_txn_commit
from delta_orch.protocol.arrow_building import schema_from_arrow, schema_to_arrow
from delta_orch.protocol.paths import LOG_DIRECTORY
from delta_orch.protocol.schema import data_type_from_json
from delta_orch.protocol.types import BOOLEAN, StructField, StructType
from delta_orch.scan.frames import pandas_frame
from delta_orch.scan.scan import Scan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Place = tuple[str, ...]
"""The folders of a table below the root."""


def table_place(context: dg.InputContext | dg.OutputContext | None, settings: AssetSettings) -> Place:
    """The folders of a table below the root.

    Raises:
        InvalidRequestError: A part could lead out of the root, or into the log of a table.
    """
    if context is None:
        raise InvalidRequestError(
            "The input is neither an asset nor the output of another step",
            remedy="Load it from an asset, or read the table through a DeltaTableResource",
        )
    if context.has_asset_key:
        place = asset_place(context.asset_key, settings.schema)
    else:
        place = (*((settings.schema,) if settings.schema else ()), *_place_of_output(context, settings))
    for part in place:
        if part in ("", ".", "..", LOG_DIRECTORY) or "/" in part or "\\" in part:
            raise InvalidRequestError(
                f"{part!r} cannot be the name of a folder",
                cause="Parts of the asset key, or the metadata 'schema' and 'table', become folders of the table",
                remedy="Use another name",
            )
    return place


def asset_place(key: dg.AssetKey, schema: str | None) -> Place:
    """The folders of an asset's table: those of its key, or `schema` and the last part of the key."""
    return (*((schema,) if schema else tuple(key.path[:-1])), key.path[-1])


def parse_key(text: str) -> dg.AssetKey:
    """The asset key whose parts are separated by slashes.

    Raises:
        InvalidRequestError: A part of it is empty.
    """
    parts = text.split("/")
    if not all(part.strip() for part in parts):
        raise InvalidRequestError(
            f"The asset key {text!r} has an empty part", remedy="Write names, with a slash between two: lake/events"
        )
    return dg.AssetKey(parts)


def _place_of_output(context: dg.InputContext | dg.OutputContext, settings: AssetSettings) -> list[str]:
    """The folders of an op's output. Two jobs, ops or mapped steps never share one."""
    assert isinstance(context, dg.OutputContext)
    # The step `load[key]` is the op `load`, mapped; an op that maps others has a key for each output.
    node, _, step_key = context.step_key.partition("[")
    keys = (step_key.rstrip("]"), context.mapping_key)
    place = (settings.table,) if settings.table else (context.job_name, node, context.name)
    return [part for part in (*place, *keys) if part]


def output_parts(context: dg.OutputContext) -> tuple[str, ...]:
    """The name of an output in commits: an asset's key, or job, step, output and mapping key."""
    if context.has_asset_key:
        return tuple(context.asset_key.path)
    parts = (context.job_name, context.step_key, context.name, context.mapping_key)
    return tuple(part for part in parts if part)


def shares_folder(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether one path is the other or lies in it."""
    shorter = min(len(one), len(other))
    return tuple(one[:shorter]) == tuple(other[:shorter])


T = TypeVar("T")

_ATTEMPTS = 30


def unit_of(output: dg.OutputContext, run: DagsterRun) -> Unit:
    """The unit of an output of an op: one a root run."""
    parts = (output.job_name, output.step_key, *(() if output.name == "result" else (output.name,)))
    return op_unit(parts, output.mapping_key, run)


def op_attempt(output: dg.OutputContext, run: DagsterRun, *, exactly_once: bool) -> Attempt:
    """The attempt at an output of an op. It is recorded in any case, as its run reads back what it wrote."""
    attempt = run.attempt([unit_of(output, run)])
    # Every attempt writes, and the last one is what the run reads.
    return attempt if exactly_once else replace(attempt, relation=lambda recorded, order: "earlier")


def own_snapshot(table: DeltaTable, unit: Unit) -> TableSnapshot | None:
    """The table as of the last commit of a unit; None where there is none.

    Raises:
        VersionNotFoundError: That commit was cleaned up.
    """
    if not table.exists() or table.last_txn(unit.name) is None:
        return None
    commit = find_txn_commit(table, unit.name)
    if commit is None:
        raise VersionNotFoundError(
            f"The commit of {unit.name} is gone from the log of {table.uri}",
            cause="The log was cleaned up (delta.logRetentionDuration) since the run wrote its output",
            remedy="Launch a new run instead of re-executing this one",
            uri=table.uri,
        )
    return table.snapshot(version=commit.version)


def written_rows(table: DeltaTable, after: TableSnapshot) -> TableSnapshot:
    """The rows that the commit of an op was given, as a table.

    Raises:
        InvalidRequestError: They were merged, and are not to be told from others.
    """
    commit = table.log.read_commit(after.version)
    if user_metadata_of(commit.commit_info).get("write") in ("merge", "cdc"):
        raise InvalidRequestError(
            f"Version {after.version} of {table.uri} does not tell which rows the upstream op returned",
            cause="The op has merged them into the rows of older runs",
            remedy="Annotate the input as DeltaSnapshot for the whole table as the op left it, or give the op's output "
            'the metadata {"write": "overwrite"}',
            uri=table.uri,
        )
    if commit.removes.num_rows:
        return after
    # It has added to what was there, if anything was.
    return TableSnapshot(after.store, after.segment, None, Tail(after.protocol, after.metadata).fold(commit.files))


def repeat_conflicts(write: Callable[[], T]) -> T:
    """Repeat a write that other runs of the job overtake: it replaces a whole that none of them reads."""
    for attempt in range(_ATTEMPTS):
        try:
            return write()
        except ConflictError:
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(min(1.0, 0.05 * (attempt + 1)))
    raise AssertionError


def load_value(
    context: dg.InputContext, table: DeltaTable, settings: AssetSettings, engine: str, write: str = "overwrite"
) -> object:
    """The value of an input: the run's partitions of an asset, or all of one without partitions.

    Args:
        write: Of the IO manager, which an upstream op may override.

    Raises:
        TableNotFoundError: Nothing has been written there yet, and the input is neither optional nor the asset itself.
        InvalidRequestError: The annotated type is not supported, or partitions and columns do not go together; or the
            asset depends on itself, and its run writes partitions of the input; or it is not whole (`ensure_whole`).
    """
    ensure_whole(context)
    options = parse_input_settings(context.definition_metadata)
    value_type = parse_annotation(_annotation(context), is_fan_in=not context.has_asset_key)
    _ensure_supported(context, value_type, options)
    if value_type.kind == "table":
        return table
    if value_type.optional and context.has_asset_partitions and not context.asset_partition_keys:
        return None
    if value_type.kind == "changes":
        return _changes(table, options)
    if value_type.kind == "rows" and _is_itself(context):
        _ensure_not_written(context)
    snapshot = _snapshot(context, table, options, write, is_rows=value_type.kind == "rows")
    if snapshot is None:
        return _nothing_yet(context, table, value_type, engine)
    if value_type.kind == "snapshot":
        return snapshot
    load = loader_for(value_type.annotation, engine)
    is_partitioned = context.has_asset_key and context.has_asset_partitions
    some: PartitionSelection | None = None
    if is_partitioned and context.asset_partition_keys:
        some = select_partitions(context, settings.partition_expr, settings.partition_format)
    if value_type.by_partition:
        scopes = {} if some is None else some.scopes(snapshot.schema)
        return {key: load(snapshot.scan(columns=options.columns, where=where)) for key, where in scopes.items()}
    nothing = Literal(False, BOOLEAN) if is_partitioned else None
    where = nothing if some is None else some.predicate(snapshot.schema)
    return load(snapshot.scan(columns=options.columns, where=where))


def input_name(context: dg.InputContext) -> str:
    """The input, for messages; a value that is loaded outside of a run has no name but the asset's."""
    try:
        return f"Input {context.name}"
    except dg.DagsterInvariantViolationError:
        return f"The value of {context.asset_key.to_user_string()}"


def _annotation(context: dg.InputContext) -> object:
    try:
        return context.dagster_type.typing_type
    except dg.DagsterInvariantViolationError:
        # `dg.build_input_context` was given no type.
        return Any


def _ensure_supported(context: dg.InputContext, value_type: InputValue, options: InputSettings) -> None:
    is_partitioned = context.has_asset_key and context.has_asset_partitions
    if value_type.by_partition and (not is_partitioned or value_type.kind != "rows"):
        raise InvalidRequestError(
            f"{input_name(context)} is annotated as a dict, but there is no value for each partition",
            cause="The upstream asset has no partitions" if not is_partitioned else "Only rows come by partition",
            remedy="Annotate it with the type of one value",
        )
    starts = options.starting_version is not None or options.starting_timestamp is not None
    if starts != (value_type.kind == "changes"):
        raise InvalidRequestError(
            f"{input_name(context)} needs both the type ChangeFeed and where its changes begin, or neither",
            cause="A change feed needs a first version"
            if value_type.kind == "changes"
            else "Other types are read as of one version",
            remedy="Give the input's metadata starting_version or starting_timestamp; to go on where the last run "
            "ended, use @delta_asset",
        )
    chosen = options.version is not None or options.timestamp is not None or options.columns is not None
    if (chosen and value_type.kind == "table") or (options.columns is not None and value_type.kind != "rows"):
        raise InvalidRequestError(
            f"{input_name(context)} is a {value_type.kind}, to which its metadata cannot be applied",
            remedy="Leave version, timestamp and columns out, or annotate it with a type of rows",
        )


def _snapshot(
    context: dg.InputContext, table: DeltaTable, options: InputSettings, write: str, *, is_rows: bool
) -> TableSnapshot | None:
    if options.version is not None or options.timestamp is not None:
        return table.snapshot(version=options.version, timestamp=options.timestamp)
    upstream = context.upstream_output
    if context.has_asset_key or upstream is None:
        return snapshot_or_none(table)
    # Where the run's own step left what was there (write='ignore'), that is its output.
    own = own_snapshot(table, unit_of(upstream, read_run(context)))
    if own is not None:
        return written_rows(table, own) if is_rows else own
    write = upstream.definition_metadata.get("write", write)
    return snapshot_or_none(table) if write == "ignore" else None


def _changes(table: DeltaTable, options: InputSettings) -> ChangeFeed:
    return table.changes(
        starting_version=options.starting_version,
        starting_timestamp=options.starting_timestamp,
        ending_version=options.version,
        ending_timestamp=options.timestamp,
    )


def _nothing_yet(context: dg.InputContext, table: DeltaTable, value_type: InputValue, engine: str) -> object:
    """The value of an input whose table does not exist, or that this run's step has not written."""
    if value_type.optional:
        return None
    if value_type.by_partition and (not context.asset_partition_keys or _is_itself(context)):
        return {}
    if value_type.kind == "rows" and _is_itself(context):
        declared = None if context.upstream_output is None else context.upstream_output.definition_metadata
        return empty_value(value_type.annotation, _declared_schema(declared or {}), engine)
    raise TableNotFoundError(
        f"{input_name(context)} has nothing to load: there is no table at {table.uri}"
        if not table.exists()
        else f"{input_name(context)} has nothing to load: this run has not written {table.uri}",
        cause="The upstream was not materialized yet, or returned None",
        remedy="Materialize it first, or annotate the input as Optional to get None in its place",
        uri=table.uri,
    )


def _ensure_not_written(context: dg.InputContext) -> None:
    """Check that an asset which reads itself reads no partition that its run writes.

    Raises:
        InvalidRequestError: It does. What lies there is old, or nothing: not the rows that runs of one partition each
            would read.
    """
    step = context.step_context
    with dg.partition_loading_context(dynamic_partitions_store=step.instance):
        written = context.asset_partitions_def.get_partition_keys_in_range(step.partition_key_range)
    if both := sorted(set(written).intersection(context.asset_partition_keys)):
        raise InvalidRequestError(
            f"{input_name(context)} has partitions that this run writes, such as {both[0]}",
            cause="The asset depends on itself, and a run over several partitions reads before it writes any of them",
            remedy="Define the asset with BackfillPolicy.multi_run(max_partitions_per_run=1); or annotate the input as "
            "Optional[DeltaSnapshot], and read from it what lies before the run",
        )


def _is_itself(context: dg.InputContext) -> bool:
    """Whether an asset reads what it has written before."""
    if not context.has_asset_key or not is_in_run(context):
        return False
    step = context.step_context
    definition = step.job_def.asset_layer.get_assets_def_for_node(step.node_handle)
    return definition is not None and context.asset_key in definition.keys


def _declared_schema(metadata: Mapping[str, object]) -> pa.Schema:
    """The columns that the metadata `dagster/column_schema` of an asset declares; without it none."""
    declared = metadata.get("dagster/column_schema")
    declared = declared.value if isinstance(declared, dg.MetadataValue) else declared
    if not isinstance(declared, dg.TableSchema):
        return pa.schema([])
    fields = [StructField(column.name, data_type_from_json(column.type)) for column in declared.columns]
    return schema_to_arrow(StructType(tuple(fields)))


Loader = Callable[[Scan], object]
Kind = OneOf["rows", "table", "snapshot", "changes"]

_SUPPORTED = (
    "pyarrow.Table, pyarrow.RecordBatchReader, pandas.DataFrame, polars.DataFrame, polars.LazyFrame, "
    "duckdb.DuckDBPyRelation, pyspark.sql.DataFrame, DeltaTable, DeltaSnapshot or ChangeFeed"
)


@dataclass(frozen=True, slots=True)
class InputValue:
    """The value that an input's annotation asks for.

    Attributes:
        kind: `rows` of some library, or the table, a snapshot or a change feed itself.
        annotation: The type of one value.
        optional: None stands for "there is nothing yet".
        by_partition: A `dict` with a value for each partition key.
    """

    kind: Kind
    annotation: object
    optional: bool = False
    by_partition: bool = False


def parse_annotation(annotation: object, *, is_fan_in: bool) -> InputValue:
    """Read an annotation: `Optional[T]`, `dict[str, T]` (a value a partition), and for the outputs of several steps
    `list[T]`, where Dagster asks for one value after the other.

    Raises:
        InvalidRequestError: `T` is not one of the supported types.
    """
    inner, optional = unwrap_optional(annotation)
    by_partition = False
    origin, arguments = get_origin(inner), get_args(inner)
    if is_fan_in and (origin is list or inner is list):
        inner = arguments[0] if arguments else Any
        # Each of the values may be missing.
        inner, optional = unwrap_optional(inner)
    elif origin in (dict, Mapping) and len(arguments) == 2 and arguments[0] is str:
        inner, by_partition = arguments[1], True
    kind = _kind_of(inner)
    if kind == "rows" and not _is_unspecific(inner) and _type_name(inner) not in _LOADERS:
        raise InvalidRequestError(
            f"An input of type {annotation!r} cannot be loaded from a Delta table",
            remedy=f"Annotate it with {_SUPPORTED}, with Optional of one of them, or with dict[str, …] for a value a "
            "partition key",
        )
    return InputValue(kind, inner, optional, by_partition)


def unwrap_optional(annotation: object) -> tuple[object, bool]:
    """`T` and whether None may stand in its place."""
    if get_origin(annotation) in (Union, types.UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        if len(members) == 1 and len(members) < len(get_args(annotation)):
            return members[0], True
    return annotation, annotation is None or annotation is type(None)


def _kind_of(annotation: object) -> Kind:
    if isinstance(annotation, type):
        if issubclass(annotation, DeltaTable):
            return "table"
        if issubclass(TableSnapshot, annotation) and issubclass(annotation, Snapshot):
            return "snapshot"
        if issubclass(annotation, ChangeFeed):
            return "changes"
    return "rows"


def _is_unspecific(annotation: object) -> bool:
    return annotation is None or annotation is Any or annotation is object


def loader_for(annotation: object, engine: str) -> Loader:
    """How rows become a value of the annotated type, one that `parse_annotation` found.

    Args:
        annotation: The type. `Any` or nothing gives a Spark DataFrame where `engine` is `spark`, else an Arrow table.
        engine: The IO manager's.
    """
    return _LOADERS[_library_type(annotation, engine)][0]


def empty_value(annotation: object, schema: pa.Schema, engine: str) -> object:
    """A value of the annotated type without rows, where there is no table to ask."""
    return _LOADERS[_library_type(annotation, engine)][1](schema.empty_table())


def _library_type(annotation: object, engine: str) -> str:
    if _is_unspecific(annotation):
        return "pyspark.DataFrame" if engine == "spark" else "pyarrow.Table"
    return _type_name(annotation)


def _type_name(annotation: object) -> str:
    library = str(getattr(annotation, "__module__", "")).partition(".")[0].lstrip("_")
    return f"{library}.{getattr(annotation, '__name__', '')}"


def _to_polars(rows: pa.Table) -> Any:
    import polars as pl

    return pl.from_arrow(rows)


def _to_duckdb(rows: pa.Table) -> object:
    import duckdb

    return duckdb.from_arrow(rows)


def _empty_on_spark(rows: pa.Table) -> object:
    from delta_orch.engines.spark.frames import spark_schema

    return spark_session().createDataFrame([], spark_schema(schema_from_arrow(rows.schema)))


def spark_session() -> SparkSession:
    """The active Spark session, or a new one with the default configuration."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


_LOADERS: dict[str, tuple[Loader, Callable[[pa.Table], object]]] = {
    "pyarrow.Table": (Scan.to_arrow, lambda rows: rows),
    "pyarrow.RecordBatchReader": (Scan.to_reader, pa.Table.to_reader),
    "pandas.DataFrame": (Scan.to_pandas, pandas_frame),
    "polars.DataFrame": (lambda scan: _to_polars(scan.to_arrow()), _to_polars),
    "polars.LazyFrame": (lambda scan: _to_polars(scan.to_arrow()).lazy(), lambda rows: _to_polars(rows).lazy()),
    "duckdb.DuckDBPyRelation": (Scan.to_duckdb, _to_duckdb),
    "pyspark.DataFrame": (lambda scan: scan.to_spark(spark_session()), _empty_on_spark),
}
"""A type → how it is loaded by a scan, and how it is made of an Arrow table without rows."""
