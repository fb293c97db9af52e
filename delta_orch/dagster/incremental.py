"""Assets that process the changes of other tables, and commit their cursors together with their rows: one asset of one
table, or several of one function."""

# No postponed annotations in this file: Dagster reads them as they are.

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import unwrap
from itertools import combinations
from typing import TYPE_CHECKING, Any, get_args
from typing import Literal as OneOf
from weakref import WeakKeyDictionary

import dagster as dg

from delta_orch.arguments import checked, checked_constructor
from delta_orch.arrival.file_source import FileSource
from delta_orch.dagster.audits import (
    audit_failure,
    audit_results,
    audit_specs,
    findings_of,
    rule_metadata,
    rule_specs,
)
from delta_orch.dagster.batch_function import BatchFunction, Returned
from delta_orch.dagster.metadata import (
    Metadata,
    column_lineage,
    data_version,
    outcome_metadata,
    place_metadata,
    report_metadata,
)
from delta_orch.dagster.resource import DeltaTableResource
from delta_orch.dagster.run import DEFAULT_CONFLICT_RETRIES, asset_units, read_run, retry_conflicts
from delta_orch.dagster.settings import (
    DEFINED_KEYS,
    PLACE_KEYS,
    refuse_slips,
)
from delta_orch.dagster.values import shares_folder
from delta_orch.delta_table import DeltaTable
from delta_orch.errors import AuditFailedError, ExpectationFailedError, InvalidRequestError
from delta_orch.pipeline.audit import AuditLike, rule_check_name, rule_findings
from delta_orch.pipeline.incremental import (
    Bootstrap,
    FileBatch,
    FileReader,
    IncrementalReader,
    OnRecreated,
    default_consumer,
)
from delta_orch.pipeline.incremental_step import Batch, IncrementalStep, default_write, ensure_incremental
from delta_orch.pipeline.step import Mode
from delta_orch.pipeline.unit import OnRedo, StepReport
from delta_orch.pipeline.write_settings import WriteSettings, refuse_old_names
from delta_orch.verbs.change_events import Envelope
from delta_orch.writing.target import split_options

if TYPE_CHECKING:
    from delta_orch.log.files.commit_reader import Commit

Write = OneOf["append", "merge", "overwrite", "overwrite_changed", "overwrite_partitions", "cdc"]
WRITES: tuple[Write, ...] = get_args(Write)
FILE_WRITES: tuple[Write, ...] = ("append", "merge", "overwrite", "cdc")

EngineName = OneOf["auto", "spark", "local"]
TableOrKey = DeltaTableResource | str
Source = TableOrKey | FileSource
Sources = Source | Mapping[str, Source]

_LATEST_CHECKS = 20
_MOST_NAMED = 20
_NOT_TAKEN = {
    "partitions_def": "The cursor decides what is processed, so the asset has no partitions",
    "io_manager_key": "The asset writes its table itself",
    "io_manager_def": "The asset writes its table itself",
    "dagster_type": "The asset hands no value on",
    "output_required": "A run that finds nothing new hands no output on",
    "outs": "Each asset has one table",
    "unit": "Each run of an incremental asset is a unit",
}


@checked_constructor
@dataclass(frozen=True)
class DeltaOut(WriteSettings):
    """What an incremental asset writes: one table of a `delta_multi_asset`. The arguments are those of `delta_asset`.

    Attributes:
        table, write, merge_keys, sequence_by, delete_when, except_columns, scd, full_snapshot, envelope,
            tombstone_retention, partition_by, properties, schema_mode, audit, expect, max_quarantined, quarantine,
            unit_column, on_redo, exactly_once: As of `delta_asset`.
        key: The asset key; by default the name of the output.
        spec: What else `dg.AssetSpec` takes: `deps`, `description`, `group_name`, `owners`, …
    """

    table: TableOrKey
    write: Write | None = None
    key: dg.AssetKey | str | Sequence[str] | None = field(default=None, kw_only=True)
    spec: Mapping[str, Any] | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class Reading:
    """How the sources of an incremental asset are read. The arguments are those of `delta_asset`."""

    sources: Mapping[str, Source]
    consumer: str | None
    bootstrap: Bootstrap
    on_recreated: OnRecreated
    max_versions: int | None
    engine: EngineName
    conflict_retries: int

    def readers(
        self, context: dg.AssetExecutionContext, target: DeltaTable, unit_column: str | None
    ) -> dict[str, IncrementalReader | FileReader]:
        """A reader for each source. Of several cursors in one table each is named after its source."""
        own = self.consumer or default_consumer(target.uri)
        return {
            name: FileReader(source, target, self.engine, unit_column)
            if isinstance(source, FileSource)
            else IncrementalReader(
                table_of(context, source),
                target,
                consumer=f"{own}:{name}" if name else own,
                base=self.consumer,
                bootstrap=self.bootstrap,
                on_recreated=self.on_recreated,
                max_versions=self.max_versions,
            )
            for name, source in self.sources.items()
        }

    def step(
        self, context: dg.AssetExecutionContext, out: DeltaOut, key: dg.AssetKey
    ) -> tuple[IncrementalStep, dict[str, IncrementalReader | FileReader]]:
        """The step that writes a table, without its attempt, and its readers.

        Raises:
            InvalidRequestError: Nothing says how it writes, and the tables do not share partition columns.
        """
        table = table_of(context, out.table)
        readers = self.readers(context, table, out.unit_column)
        first = next(iter(readers.values()))
        write: Mode = out.write or "append"
        if out.write is None and isinstance(first, IncrementalReader):
            write = default_write(key.to_user_string(), first.source, table, out.partition_by)
        settings = replace(out, partition_by=None) if table.exists() else out
        return settings.apply(IncrementalStep(key.to_user_string(), table, write, engine=self.engine)), readers


@checked
def delta_asset(
    *,
    incremental_from: Sources,
    table: TableOrKey,
    write: Write | None = None,
    merge_keys: Sequence[str] | None = None,
    sequence_by: str | Sequence[str] | None = None,
    delete_when: str | None = None,
    except_columns: Sequence[str] | None = None,
    scd: OneOf[1, 2] | None = None,
    full_snapshot: bool = False,
    envelope: Envelope | None = None,
    tombstone_retention: str | None = None,
    consumer: str | None = None,
    bootstrap: Bootstrap = "snapshot",
    on_recreated: OnRecreated = "error",
    max_versions: int | None = None,
    partition_by: list[str] | None = None,
    properties: Mapping[str, str] | None = None,
    schema_mode: str | None = None,
    audit: Sequence[AuditLike] | Mapping[str, object] = (),
    expect: Mapping[str, object] | None = None,
    max_quarantined: int | float | None = None,
    quarantine: str | None = None,
    unit_column: str | None = None,
    on_redo: OnRedo = "replace",
    exactly_once: bool = True,
    engine: EngineName = "auto",
    conflict_retries: int = DEFAULT_CONFLICT_RETRIES,
    kinds: set[str] | None = None,
    required_resource_keys: set[str] | None = None,
    **asset_arguments: Any,
) -> Callable[[Callable[..., object]], dg.AssetsDefinition]:
    """An asset whose function gets a `ChangeBatch` and returns rows, which are committed together with the cursor.

    ```python
    @delta_asset(incremental_from=bronze, table=silver, partition_by=["day"], deps=["flights"])
    def enriched(context, batch: ChangeBatch):
        return enrich(batch.scan().to_arrow())
    ```

    The cursor is in the log of the written table. A run that finds an unchanged source commits nothing. It reports an
    observation, and no materialization that downstream assets would run for. If an asset of the same run depends on
    this one, or the asset has a freshness policy, the run materializes the current version, and its data version does
    not change: `DeltaAutomation.on_new_data()` starts nothing then. With `max_versions` one run processes one batch.

    A run that is repeated after a crash goes on from the cursor. A run that is executed again after Dagster saw it end
    reads the same versions of the source again, and its rows take the place of those it wrote. With
    `full_refresh: true` in the config of a run, it reads the source as it is and replaces all that the asset wrote.

    The function takes the batch in the parameter `batch` (or in the one annotated with it), and whatever else the
    function of a `dg.asset` takes: context, resources, config, inputs. It returns rows, or `dg.Output(rows)` or
    `dg.MaterializeResult(value=rows)` with metadata, tags and check results.

    Args:
        incremental_from: The table to read: a resource, or the key of one. For several tables, a mapping of names to
            tables. The function then gets in `batch` a mapping of names to batches: of the tables that have changes,
            with `overwrite_partitions`, `overwrite` and `full_snapshot` of all of them. One commit holds all cursors.
            Or a `FileSource`: the files that the table has not loaded yet, each once (docs/files-in.md). The function
            gets a `FileBatch` then: `batch.rows(as_table=True)` are its rows as the table has them. `write` is one of
            `append` (default), `merge`, `cdc` and `overwrite`, which reads all files each time.
        table: The table to write, as above. It is created by the first run.
        write: `overwrite_changed` replaces exactly the partitions of the batch, by columns of the same names, so that a
            partition without rows becomes empty: the default, if the table has the source's partition columns among
            its own; otherwise name one. `overwrite_partitions` replaces the partitions the rows lie in; `append` adds
            the rows; `merge` updates the rows that have the same `merge_keys` and inserts the others; `overwrite`
            replaces all, and there `batch.scan()` reads the whole source; `cdc` applies the rows as change events, in
            any order (`DeltaTable.apply_changes`).
        merge_keys: The columns that identify a row, for `merge` and `cdc`.
        sequence_by, delete_when, except_columns, scd, envelope, tombstone_retention: With `cdc`, as of
            `DeltaTable.apply_changes` (docs/late-rows.md).
        full_snapshot: The rows are all keys, those that are missing are deleted, for `cdc`. `batch.scan()` then reads
            the whole source. All rows have one sequence.
        consumer: The name of the cursor, by default the last part of the table's location. `table.txns()` shows it as
            `cdc:{consumer}<-{source table id}`. Two assets that read one source into one table need a name each.
        bootstrap: The first batch: `snapshot`, the source as it stands; `changes`, its history; `error`, none.
        on_recreated: If the source was created again: `error`, or `bootstrap`, which an `append` does not take.
        max_versions: The largest number of source versions that change data in one run; None for all there are.
        partition_by: Partition columns of the table when it is created.
        properties: Its properties.
        schema_mode: `merge` adds the columns that the table does not have; `overwrite`, with `write="overwrite"`, takes
            those of the rows.
        audit: What must hold before the rows are committed: `Audit`s, predicates that every row satisfies, functions of
            the staged `DeltaSnapshot`; or such by name. Each is a blocking check of the asset. If one fails, so does
            the step; the table and the cursor stay as they are.
        expect: Rules for each row, `Expect` by name, checked while the rows are written. Each is a check of the asset.
        max_quarantined: How many rows may go to the quarantine in one commit (int), or which share (float). With more,
            the step fails; table, quarantine and cursor stay as they are.
        quarantine: Where these rows go: a location in the same store, by default `<table>_quarantine`.
        unit_column: A text column that is filled with the unit of each row. See `DeltaLakeIOManager`.
        on_redo: What a run does that is executed again: `replace`, `keep` or `add`. See `DeltaLakeIOManager`.
        exactly_once: False: a run that is executed again goes on from the cursor and replaces no rows.
        engine: `auto`, `spark` or `local`.
        conflict_retries: How often the step runs again after a conflict with the commit of another writer.
        kinds: In addition to `deltalake`.
        required_resource_keys: In addition to those of the tables.
        asset_arguments: As `dg.asset` takes them.

    Raises:
        InvalidRequestError: No such `write`, arguments that do not go together or that an incremental asset has no use
            for, or a function that is a generator or takes no batch.
        InvalidPropertyError: `properties` that no table takes.
    """
    out = DeltaOut.of(locals())
    reading = Reading(
        _by_name(incremental_from), consumer, bootstrap, on_recreated, max_versions, engine, conflict_retries
    )
    ensure_sound(reading, out, asset_arguments)
    audits = out.audits

    def decorate(function: Callable[..., object]) -> dg.AssetsDefinition:
        called = BatchFunction(function)

        def compute(context: dg.AssetExecutionContext, **arguments: object) -> Iterator[object]:
            is_refresh, arguments = called.full_refresh(context, arguments)
            returned = Returned()

            def rows(batches: Mapping[str, Batch]) -> object:
                nonlocal returned
                returned = called(context, batches.get("", batches), arguments)
                return returned.rows

            yield from process(context, context.asset_key, out, reading, rows, lambda: returned, is_refresh)

        called.describe(compute, has_schema="config_schema" in asset_arguments)
        arguments = {
            "description": function.__doc__,
            **asset_arguments,
            "metadata": {**definition_metadata(function, table), **(asset_arguments.get("metadata") or {})},
        }
        if audits or expect:
            key = _key_of(function, asset_arguments)
            specs = [*audit_specs(key, audits), *rule_specs(key, out.rules)]
            arguments["check_specs"] = [*specs, *(asset_arguments.get("check_specs") or ())]
        nothing: Any = dg.Nothing
        asset: dg.AssetsDefinition = dg.asset(
            kinds={"deltalake", *(kinds or ())},
            required_resource_keys={*_resource_keys(reading, [out]), *(required_resource_keys or ())},
            output_required=False,
            dagster_type=nothing,
            **arguments,
        )(compute)
        _remember(asset, {asset.key: table}, reading)
        return asset

    return decorate


@checked
def delta_multi_asset(
    *,
    incremental_from: Sources,
    outs: Mapping[str, DeltaOut],
    bootstrap: Bootstrap = "snapshot",
    on_recreated: OnRecreated = "error",
    max_versions: int | None = None,
    engine: EngineName = "auto",
    conflict_retries: int = DEFAULT_CONFLICT_RETRIES,
    required_resource_keys: set[str] | None = None,
    **multi_asset_arguments: Any,
) -> Callable[[Callable[..., object]], dg.AssetsDefinition]:
    """Assets whose one function gets a `ChangeBatch` and returns rows for each table: a mapping by the names of `outs`.

    ```python
    @delta_multi_asset(incremental_from=bronze, outs={"orders": DeltaOut(orders), "refunds": DeltaOut(refunds)})
    def split(batch: ChangeBatch):
        rows = batch.scan().to_arrow()
        return {"orders": rows.filter(pc.field("amount") >= 0), "refunds": rows.filter(pc.field("amount") < 0)}
    ```

    Each table has its own cursor, committed with its rows. Tables that stand at the same place get their rows from one
    call. After a kill between two commits, the tables that are behind are processed, and the others left alone. After
    a failure, executing the step again writes all tables anew. Assets can be materialized one by one; the rows of the
    others are then thrown away.

    Args:
        incremental_from, bootstrap, on_recreated, max_versions, engine, conflict_retries, required_resource_keys: As of
            `delta_asset`.
        outs: Name → table.
        multi_asset_arguments: As `dg.multi_asset` takes them.

    Raises:
        InvalidRequestError: As `delta_asset`; or two outputs share a table.
    """
    if not outs:
        raise InvalidRequestError("outs names no table", remedy="Map names to DeltaOut")
    for name in ("specs", "outs", "deps", "can_subset", "check_specs"):
        if name in multi_asset_arguments:
            raise InvalidRequestError(
                f"delta_multi_asset takes no {name}", remedy="Describe each asset in its DeltaOut"
            )
    if any(_is_same_place(one.table, other.table) for one, other in combinations(outs.values(), 2)):
        raise InvalidRequestError("Two outputs share a table", remedy="Give each a table of its own")
    reading = Reading(_by_name(incremental_from), None, bootstrap, on_recreated, max_versions, engine, conflict_retries)
    if any(isinstance(source, FileSource) for source in reading.sources.values()):
        raise InvalidRequestError(
            "delta_multi_asset loads no files",
            cause="Each table records which files it has loaded, and they would be read for each",
            remedy="Load them by a delta_asset, and read its table here",
        )
    for out in outs.values():
        ensure_no_settings(_of_spec(out, "metadata"))
        ensure_sound(reading, out, multi_asset_arguments)
    keys = {name: dg.AssetKey.from_coercible(out.key or name) for name, out in outs.items()}

    def decorate(function: Callable[..., object]) -> dg.AssetsDefinition:
        called = BatchFunction(function)

        def compute(context: dg.AssetExecutionContext, **arguments: object) -> Iterator[object]:
            is_refresh, arguments = called.full_refresh(context, arguments)
            calls: dict[object, tuple[Returned, Mapping[str, Any]]] = {}
            returned = {name: Returned() for name in outs}

            def rows_of(name: str, requested: Mapping[str, Any]) -> object:
                place = tuple((n, b.starting_version, b.ending_version, bool(b.touched)) for n, b in requested.items())
                if place not in calls:
                    batches: Mapping[str, Any] = requested
                    # One call gives the rows of all tables, so the batch is what is exact for each of them.
                    for other, out in outs.items():
                        step, _ = reading.step(context, out, keys[other])
                        batches = {n: step.guarded(batch) for n, batch in batches.items()}
                    calls[place] = called(context, batches.get("", batches), arguments), batches
                result, handed = calls[place]
                for n, batch in requested.items():
                    batch.read.update(handed[n].read)
                rows = result.rows
                if not isinstance(rows, Mapping) or set(rows) != set(outs):
                    raise InvalidRequestError(
                        f"The function of a delta_multi_asset returned {type(rows).__name__}, not rows for each output",
                        cause=f"It has {sorted(rows) if isinstance(rows, Mapping) else 'no names'}",
                        remedy=f"Return a dict with {', '.join(outs)}; rows that are empty where there are none",
                    )
                returned[name] = Returned(rows[name])
                return rows[name]

            for name, out in outs.items():
                if keys[name] in context.selected_asset_keys:
                    rows = partial(rows_of, name)
                    result_of = partial(returned.__getitem__, name)
                    yield from process(context, keys[name], out, reading, rows, result_of, is_refresh)

        called.describe(compute, has_schema="config_schema" in multi_asset_arguments)
        compute.__annotations__.pop("return")
        specs = [
            dg.AssetSpec(
                keys[name],
                skippable=True,
                **{
                    **(out.spec or {}),
                    "kinds": {"deltalake", *_of_spec(out, "kinds")},
                    "metadata": {
                        **definition_metadata(function, out.table),
                        **((out.spec or {}).get("metadata") or {}),
                    },
                },
            )
            for name, out in outs.items()
        ]
        made: dg.AssetsDefinition = dg.multi_asset(
            specs=specs,
            can_subset=True,
            check_specs=[
                spec
                for name, out in outs.items()
                for spec in (
                    *audit_specs(keys[name], out.audits),
                    *rule_specs(keys[name], out.rules),
                )
            ],
            required_resource_keys={*_resource_keys(reading, outs.values()), *(required_resource_keys or ())},
            **{"name": function.__name__, **multi_asset_arguments},
        )(compute)
        _remember(made, {keys[name]: out.table for name, out in outs.items()}, reading)
        return made

    return decorate


def place_of(table: Source) -> str:
    """A location, or the resource key that names one. A variable is read."""
    if isinstance(table, FileSource):
        return str(table.uri)
    return table if isinstance(table, str) else table.table().uri.rstrip("/")


def _of_spec(out: DeltaOut, name: str) -> Any:
    return (out.spec or {}).get(name) or {}


def _by_name(sources: Sources) -> Mapping[str, Source]:
    """The sources by name; a single one has none."""
    return sources if isinstance(sources, Mapping) else {"": sources}


def _resource_keys(reading: Reading, outs: Iterable[DeltaOut]) -> set[str]:
    return {key for key in (*reading.sources.values(), *(out.table for out in outs)) if isinstance(key, str)}


def definition_metadata(function: Callable[..., object], table: TableOrKey) -> Metadata:
    """The metadata before the first run: the location of the table, and the source file of the function."""
    metadata = place_metadata(table)
    code = getattr(unwrap(function), "__code__", None)
    if code is not None:
        with warnings.catch_warnings():
            # Dagster marks them as beta.
            warnings.filterwarnings("ignore", message="Class `(LocalFile|CodeReferences)")
            place = dg.LocalFileCodeReference(file_path=code.co_filename, line_number=code.co_firstlineno)
            metadata["dagster/code_references"] = dg.CodeReferencesMetadataValue(code_references=[place])
    return metadata


def _key_of(function: Callable[..., object], arguments: Mapping[str, Any]) -> dg.AssetKey:
    """The key that `dg.asset` gives."""
    if arguments.get("key") is not None:
        return dg.AssetKey.from_coercible(arguments["key"])
    prefix = arguments.get("key_prefix") or ()
    name = arguments.get("name") or function.__name__
    return dg.AssetKey([*([prefix] if isinstance(prefix, str) else prefix), name])


def ensure_sound(reading: Reading, out: DeltaOut, asset_arguments: Mapping[str, object]) -> None:
    sources, write = reading.sources, out.write
    refuse_old_names(asset_arguments)
    out.ensure_sound((None, *WRITES))
    split_options({"partition_by": out.partition_by, "properties": out.properties})
    ensure_no_settings(asset_arguments.get("metadata"))
    for name, reason in _NOT_TAKEN.items():
        if name in asset_arguments:
            raise InvalidRequestError(f"An incremental asset takes no {name}", cause=reason, remedy=f"Leave {name} out")
    if not sources or ("" in sources and len(sources) > 1):
        raise InvalidRequestError("incremental_from names no source", remedy="Give every source a name")
    ensure_incremental(write, len(sources), on_recreated=reading.on_recreated, max_versions=reading.max_versions)
    is_of_files = any(isinstance(source, FileSource) for source in sources.values())
    if is_of_files and (len(sources) > 1 or write not in (None, *FILE_WRITES)):
        raise InvalidRequestError(
            f"An asset that loads files has one source, and write is one of {', '.join(FILE_WRITES)}",
            cause=f"It has {len(sources)} sources, and write={write!r}",
            remedy="Load the files into a table of their own, and let another asset read that table",
        )
    for name, source in sources.items():
        if isinstance(source, FileSource):
            continue
        if not isinstance(source, DeltaTableResource | str):
            raise InvalidRequestError(
                f"incremental_from[{name!r}] is a value of type {type(source).__name__}",
                remedy="Give a DeltaTableResource, or the key of one",
            )
        if _is_same_place(source, out.table):
            raise InvalidRequestError(
                "The source and the table of an incremental asset share a folder",
                cause="It would process its own rows, or one table would lie inside the other",
                remedy="Give each a folder of its own",
            )


def ensure_no_settings(metadata: object) -> None:
    """Check that the metadata of an incremental asset says nothing that only the IO manager heeds.

    Raises:
        InvalidRequestError: It does, or a key is misspelled.
    """
    keys = metadata if isinstance(metadata, Mapping) else {}
    refuse_slips(keys, DEFINED_KEYS, "the definition")
    if passed_over := sorted(set(keys) & (set(DEFINED_KEYS) - set(PLACE_KEYS))):
        raise InvalidRequestError(
            f"The metadata {passed_over[0]!r} is for assets of the IO manager; an incremental asset writes its table "
            "itself",
            remedy="Pass it as an argument beside the table",
        )


def _is_same_place(one: TableOrKey, other: TableOrKey) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    variables = [isinstance(resource.table_uri, dg.EnvVar) for resource in (one, other)]
    if any(variables):
        return all(variables) and one.table_uri == other.table_uri
    first, second = (resource.table().uri.rstrip("/").split("/") for resource in (one, other))
    return shares_folder(first, second)


def table_of(context: dg.AssetExecutionContext, table: TableOrKey) -> DeltaTable:
    resource = getattr(context.resources, table) if isinstance(table, str) else table
    if not isinstance(resource, DeltaTableResource):
        raise InvalidRequestError(
            f"The resource {table!r} is not a DeltaTableResource", cause=f"It is a {type(resource).__name__}"
        )
    return resource.table()


def process(
    context: dg.AssetExecutionContext,
    key: dg.AssetKey,
    out: DeltaOut,
    reading: Reading,
    rows: Callable[[Mapping[str, Batch]], object],
    returned: Callable[[], Returned],
    full_refresh: bool,
) -> Iterator[object]:
    """Process what is new for an asset, and tell Dagster what came of it.

    Args:
        returned: What the function of the asset has returned for it, afterwards.
        full_refresh: Start anew from the sources as they are.
    """
    run = read_run(context)
    ensure_own_cursors(context, key)
    step, readers = reading.step(context, out, key)
    attempt = run.attempt(asset_units(key.path, run, None, write=step.mode, by_run=True)) if out.exactly_once else None
    step = replace(step, attempt=attempt, options={**step.options, "user_metadata": run.user_metadata(step.name)})
    started = time.perf_counter()
    try:
        with retry_conflicts(reading.conflict_retries):
            is_of_files = any(isinstance(one, FileReader) for one in readers.values())
            report = step.process_all(readers, rows, until_current=is_of_files, full_refresh=full_refresh)
    except (AuditFailedError, ExpectationFailedError) as error:
        yield from audit_results(findings_of(error), key)
        raise audit_failure(error) from error
    context.log.info(report.sentence())
    seconds = time.perf_counter() - started
    is_news = report.outcome not in ("nothing new", "fenced")
    is_news = is_news or _has_unreported_commit(
        context.instance, key, report, [one.cursor_prefix for one in readers.values()]
    )
    yield from _results_of(context, key, step, report, returned(), seconds, is_news=is_news)


def _results_of(
    context: dg.AssetExecutionContext,
    key: dg.AssetKey,
    step: IncrementalStep,
    report: StepReport,
    returned: Returned,
    seconds: float,
    *,
    is_news: bool,
) -> Iterator[object]:
    """The event of an asset that a run yields: a materialization, or an observation where there was nothing new.

    Args:
        is_news: The table has rows that no event of Dagster reports.
    """
    name = ".".join(key.path)
    definition = context.assets_def.metadata_by_key.get(key)
    metadata = incremental_metadata(name, report, context.run.run_id, seconds, definition)
    metadata["delta/write"] = step.mode
    if report.batches:
        graph = context.job_def.asset_layer.asset_graph
        metadata |= column_lineage(returned.rows, report, key, graph, context.instance)
    metadata |= rule_metadata(report.expected)
    metadata |= returned.metadata
    version = None if report.version is None else data_version(report.snapshot())
    # Without a batch the function, which gives the results of the asset's checks, was not called.
    checked = list(returned.check_results if report.batches else _check_results_that_stand(context, key))
    rules = [] if step.expect is None else [*map(rule_check_name, step.expect.rules)]
    audits = [*(audit.name for audit in step.audits), *rules]
    findings = [*report.findings, *([] if report.expected is None else rule_findings(report.expected))]
    if report.batches and audits:
        # What another attempt has committed was audited by it.
        standing = [last for last in _check_results_that_stand(context, key) if last.check_name in audits]
        checked += audit_results(findings, key) if findings else standing
    if is_news or _has_downstream_in_run(context, key) or context.assets_def.specs_by_key[key].freshness_policy:
        yield dg.MaterializeResult(
            asset_key=key, metadata=metadata, data_version=version, tags=returned.tags, check_results=checked
        )
        return
    tags = {} if version is None else {"dagster/data_version": version.value}
    yield dg.AssetObservation(key, metadata=metadata, tags=tags)
    yield from checked


def _has_downstream_in_run(context: dg.AssetExecutionContext, key: dg.AssetKey) -> bool:
    """Whether a step of this run waits for this asset: without an output it would be left out."""
    layer = context.job_def.asset_layer
    return bool(layer.asset_graph.get(key).child_keys & set(layer.selected_asset_keys))


def _has_unreported_commit(
    instance: dg.DagsterInstance, key: dg.AssetKey, report: StepReport, prefixes: Sequence[str]
) -> bool:
    """Whether a run of the asset has changed rows since the last materialization that Dagster has of it: it was killed
    after its commit, and what waits for new data has not run."""
    if report.version is None:
        return False
    event = instance.get_latest_materialization_event(key)
    last = None if event is None else event.asset_materialization
    of_table, _, version = ((last.tags if last else None) or {}).get("dagster/data_version", "").rpartition(":")
    reported_version = int(version) if of_table == report.table.snapshot().metadata.id and version.isdecimal() else -1
    own = tuple(prefixes)

    def is_own_change(commit: "Commit") -> bool:
        is_own = any(txn.app_id.startswith(own) for txn in commit.txns)
        return is_own and bool(commit.adds.num_rows or commit.removes.num_rows)

    return any(map(is_own_change, report.table.log.newest_first(report.table.version(), reported_version + 1)))


def _check_results_that_stand(context: dg.AssetExecutionContext, asset: dg.AssetKey) -> Iterator[dg.AssetCheckResult]:
    """The last results of the asset's own checks. The table has not changed since."""
    for key in (key for key in context.selected_asset_check_keys if key.asset_key == asset):
        # Runs that have no result yet have a record, too: this one, and those that were canceled.
        records = context.instance.event_log_storage.get_asset_check_execution_history(key, limit=_LATEST_CHECKS)
        events = (record.event.dagster_event for record in records if record.event is not None)
        evaluations = (e for e in events if e is not None and e.event_type_value == "ASSET_CHECK_EVALUATION")
        last = next((event.asset_check_evaluation_data for event in evaluations), None)
        yield dg.AssetCheckResult(
            passed=last is not None and last.passed,
            asset_key=asset,
            check_name=key.name,
            severity=dg.AssetCheckSeverity.WARN if last is None else last.severity,
            description="Nothing new to check" if last is None else last.description,
        )


def incremental_metadata(
    table_name: str, report: StepReport, run_id: str, seconds: float, definition: Mapping[str, object] | None
) -> Metadata:
    """The metadata of a run of an incremental asset.

    Args:
        seconds: From reading to the commit, with the function of the asset.
        definition: See `table_metadata`.
    """
    if report.version is None:
        return outcome_metadata(report)
    metadata = report_metadata(
        report, report.snapshot(), table_name, run_id=run_id, seconds=seconds, definition=definition
    )
    files = [batch for batch in report.batches if isinstance(batch, FileBatch)]
    if files:
        set_aside = [file for batch in files for file in batch.set_aside.to_pylist()]
        metadata["delta/files"] = sum(batch.files.num_rows for batch in files) - len(set_aside)
        if set_aside:
            metadata["delta/files_set_aside"] = dg.JsonMetadataValue(set_aside[:_MOST_NAMED])
    for batch in report.batches:
        if isinstance(batch, FileBatch):
            continue
        metadata |= {
            "delta/source_ending_version": batch.ending_version,
            "delta/is_bootstrap": batch.is_bootstrap,
            "delta/touched_partitions": batch.partitions().num_rows,
        }
        if batch.starting_version is not None:
            metadata["delta/source_starting_version"] = batch.starting_version
    if len(report.batches) > 1:
        ends = {str(batch.source.uri): batch.ending_version for batch in report.batches}
        metadata["delta/source_versions"] = dg.JsonMetadataValue(ends)
    return metadata


@dataclass(frozen=True, slots=True)
class IncrementalTables:
    """What writes tables itself: output → table, the tables that all of them are filled from, by name, and what the
    cursors are called."""

    written: Mapping[str, TableOrKey]
    sources: Mapping[str, Source]
    consumer: str | None = None


INCREMENTAL: "WeakKeyDictionary[dg.NodeDefinition, IncrementalTables]" = WeakKeyDictionary()
"""By the node, which all copies of an assets definition share."""


def _remember(asset: dg.AssetsDefinition, tables: Mapping[dg.AssetKey, TableOrKey], reading: Reading) -> None:
    written = {name: tables[key] for name, key in asset.keys_by_output_name.items()}
    INCREMENTAL[asset.node_def] = IncrementalTables(written, reading.sources, reading.consumer)


def ensure_own_cursors(context: dg.AssetExecutionContext, key: dg.AssetKey) -> None:
    """Check that no other asset of the code location uses a cursor of this one. Of a run that was not launched from
    a code location the assets of its job are known.

    Raises:
        InvalidRequestError: One does. Each would be handed only what the other has not read.
    """
    # The graph of a job has no assets but those that it runs.
    is_launched = context.run.remote_job_origin is not None
    graph = context.repository_def.asset_graph if is_launched else context.job_def.asset_layer.asset_graph
    own = _cursors(graph.get(key).assets_def, key)
    for other in sorted(graph.materializable_asset_keys - {key}):
        asset = graph.get(other).assets_def
        if asset.node_def in INCREMENTAL and own & _cursors(asset, other):
            raise InvalidRequestError(
                f"The assets {key.to_user_string()} and {other.to_user_string()} read one source into one table, and "
                "share its cursor",
                cause="Each would be handed only what the other has not read, so rows would be missing",
                remedy="Give each a cursor of its own: @delta_asset(consumer='…')",
            )


def _cursors(asset: dg.AssetsDefinition, key: dg.AssetKey) -> set[tuple[str | None, ...]]:
    """The cursors of an incremental asset: their table, their name, and their source."""
    tables = INCREMENTAL[asset.node_def]
    table = place_of(tables.written[asset.get_output_name_for_asset_key(key)])
    return {(table, tables.consumer, name, place_of(source)) for name, source in tables.sources.items()}
