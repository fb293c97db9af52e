"""The settings of one asset: definition metadata, output metadata and the IO manager's configuration.

Output metadata overrides definition metadata, which overrides the configuration. The keys:

| key | on | meaning |
|---|---|---|
| `partition_expr` | definition | the partition column; for multi-dimensional partitions a column for each dimension |
| `partition_format` | definition | `strftime` format of a string or integer column that does not hold the key itself |
| `partition_by` | definition | partition columns of the new table, by default those of `partition_expr` |
| `schema` | definition | the folder of the table, instead of the asset key's prefix |
| `table` | definition of an op's output | the folder of the table, instead of job, node and output |
| `mode` | definition, output | as the configuration's |
| `merge_keys` | definition, output | as the configuration's |
| `sequence_by` | definition | the column that orders the versions of the mode `scd2` |
| `delete_marker` | definition | a boolean column of the rows, true where a key of the mode `scd2` ends |
| `full_snapshot` | definition | whether keys of the mode `scd2` end that are missing from the rows |
| `table_properties` | definition | properties of a table that is created, over those of the configuration |
| `schema_mode` | definition, output | `merge` adds columns the table lacks; `overwrite` takes those of a new whole |
| `commit_metadata` | definition, output | names and values for the commit's `commitInfo` |
| `audit` | definition | what must hold before the commit: predicates, or `Audit`s by name |
| `columns` | definition of an input | which columns to load |
| `version`, `timestamp` | definition of an input | the version to load: a number, or an ISO 8601 time with an offset |
| `starting_version`, `starting_timestamp` | definition of an input | where a `ChangeFeed` begins |

A misspelled key is an error. Ignored, it would change what a run writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Literal as OneOf
from typing import get_args

import dagster as dg

from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.audit import Audit, as_audits
from delta_orch.table.schema_evolution import parse_schema_mode

OutputMode = OneOf["overwrite", "append", "merge", "scd2", "error", "ignore"]
MODES: tuple[OutputMode, ...] = get_args(OutputMode)

WRITTEN_KEYS = ("mode", "merge_keys", "schema_mode", "commit_metadata")
"""What output metadata may say."""
PLACE_KEYS = ("partition_expr", "partition_format", "schema", "table")
"""Which rows are where: all that matters for reading."""
DEFINED_KEYS = (
    *PLACE_KEYS,
    "partition_by",
    "audit",
    "sequence_by",
    "delete_marker",
    "full_snapshot",
    "table_properties",
    *WRITTEN_KEYS,
)
"""What definition metadata may say."""
_OF_DEFINITION = set(DEFINED_KEYS) - {*WRITTEN_KEYS, "schema", "table"}
"""What would be passed over on an output. `schema` and `table` are words that others show there."""
INPUT_KEYS = ("columns", "version", "timestamp", "starting_version", "starting_timestamp")
"""What the metadata of an input may say."""

_WORDS_OF_THEIR_OWN = {"model", "models", "node", "nodes", "code", "tables", "schemas", "versions", "timestamps"}
"""Close to a key and common in metadata; none of them is a slip."""
_SLIP = 0.84
ELSEWHERE = {
    "as_of": "version",
    "commit_properties": "commit_metadata",
    "custom_metadata": "commit_metadata",
    "merge_config": "merge_keys",
    "merge_predicate": "merge_keys",
    "merge_schema": "schema_mode",
    "overwrite_schema": "schema_mode",
    "partition_columns": "partition_by",
    "partition_expression": "partition_expr",
    "primary_key": "merge_keys",
    "primary_keys": "merge_keys",
    "replace_where": "partition_expr",
    "save_mode": "mode",
    "schema_evolution": "schema_mode",
    "table_config": "table_properties",
    "table_configuration": "table_properties",
    "timestamp_as_of": "timestamp",
    "unique_key": "merge_keys",
    "upsert_keys": "merge_keys",
    "version_as_of": "version",
    "write": "mode",
    "write_mode": "mode",
}
"""What other IO managers and engines call a key or a setting of ours, in any spelling (`versionAsOf`)."""
_OF_THE_MANAGER = "Give it to a DeltaLakeIOManager; an asset that needs another one names its key as io_manager_key"
_CLUSTERING = "Set the table's own: table.alter().cluster_by(…).commit(); its compaction then clusters the rows"
NOT_WRITTEN = {
    "cluster_by": _CLUSTERING,
    "conflict_retries": _OF_THE_MANAGER,
    "idempotency": _OF_THE_MANAGER,
    "partition_overwrite": _OF_THE_MANAGER,
    "root_uri": _OF_THE_MANAGER,
    "storage_options": _OF_THE_MANAGER,
    "zorder_by": _CLUSTERING,
}
"""What no asset can say of its table, and where it is said."""
_FILTERING = "Annotate the input as DeltaSnapshot, and read input.scan(where=…)"
_FILTERS = ("filter", "filters", "partition_filters", "predicate", "row_filter", "where")
_OF_UPSTREAM = "Say it in the metadata of the upstream, whose table it is about"
NOT_READ = {**dict.fromkeys(_FILTERS, _FILTERING), **dict.fromkeys(PLACE_KEYS, _OF_UPSTREAM)}
"""What no input can say. An input has all rows of its partitions, from where its upstream keeps them."""


@dataclass(frozen=True, slots=True)
class AssetSettings:
    """See the module. `partition_expr` and `partition_format` map a dimension's name to a text; for an asset with one
    dimension the name is empty."""

    mode: OutputMode
    schema: str | None = None
    partition_expr: Mapping[str, str] | None = None
    partition_format: Mapping[str, str] | None = None
    partition_by: tuple[str, ...] | None = None
    table: str | None = None
    schema_mode: str | None = None
    commit_metadata: Mapping[str, str] = field(default_factory=dict)
    merge_keys: tuple[str, ...] = ()
    audits: tuple[Audit, ...] = ()
    sequence_by: str | None = None
    delete_marker: str | None = None
    full_snapshot: bool = False
    table_properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InputSettings:
    """What the metadata of an input asks for. See the module."""

    columns: tuple[str, ...] | None = None
    version: int | None = None
    timestamp: str | None = None
    starting_version: int | None = None
    starting_timestamp: str | None = None


def parse_settings(
    definition: Mapping[str, object] | None,
    output: Mapping[str, object] | None,
    default_mode: str,
    default_merge_keys: Sequence[str] = (),
) -> AssetSettings:
    """The settings of an asset.

    Raises:
        InvalidRequestError: A key has a value of the wrong kind, the mode is not known, a merge has no keys, or
            there are keys and nothing says that they are for a merge.
    """
    defined, written = plain_metadata(definition), plain_metadata(output)
    if misplaced := sorted(_OF_DEFINITION & set(written)):
        raise InvalidRequestError(
            f"The metadata {misplaced[0]!r} belongs to the definition, not to an output",
            cause="An output may say " + ", ".join(WRITTEN_KEYS),
            remedy="Give it to the asset: @dg.asset(metadata={…})",
        )
    said = {**defined, **written}
    mode = parse_mode(said.get("mode", default_mode))
    keys = parse_columns(said.get("merge_keys"), "merge_keys") or tuple(default_merge_keys)
    sequence_by = _text(defined, "sequence_by")
    if (mode == "scd2") != (sequence_by is not None):
        raise InvalidRequestError(
            "mode 'scd2' and sequence_by go together",
            cause="It says since when a row is valid, and in which order rows of one key are versions",
            remedy='Give the asset the metadata {"mode": "scd2", "merge_keys": ["id"], "sequence_by": "updated_at"}',
        )
    delete_marker, full_snapshot = _text(defined, "delete_marker"), defined.get("full_snapshot", False)
    ensure_deletes(mode, delete_marker, full_snapshot)
    if mode in ("merge", "scd2") and not keys:
        raise InvalidRequestError(
            f"mode {mode!r} needs merge_keys",
            cause="They say which row of the table a new row is about",
            remedy='Give the asset the metadata {"merge_keys": ["id"]}, or the IO manager merge_keys',
        )
    if said.get("merge_keys") and "mode" not in said and mode not in ("merge", "scd2"):
        raise InvalidRequestError(
            f"The metadata has merge_keys and no mode, and by default the mode is {default_mode!r}",
            cause="The rows would not be merged by their keys",
            remedy='Add "mode": "merge" to the metadata, or leave merge_keys out',
        )
    return AssetSettings(
        mode=mode,
        schema=_text(defined, "schema"),
        partition_expr=_by_dimension(defined, "partition_expr"),
        partition_format=_by_dimension(defined, "partition_format"),
        partition_by=parse_columns(defined.get("partition_by"), "partition_by"),
        table=_text(defined, "table"),
        schema_mode=parse_schema_mode(_text(said, "schema_mode")),
        commit_metadata={**_texts(defined, "commit_metadata"), **_texts(written, "commit_metadata")},
        merge_keys=keys,
        audits=as_audits(defined["audit"]) if defined.get("audit") else (),  # type: ignore[arg-type]  # it is checked
        sequence_by=sequence_by,
        delete_marker=delete_marker,
        full_snapshot=full_snapshot is True,
        table_properties=_texts(defined, "table_properties"),
    )


def ensure_deletes(mode: str, delete_marker: str | None, full_snapshot: object) -> None:
    """Check what ends keys.

    Raises:
        InvalidRequestError: The mode is not `scd2`, or `full_snapshot` is no bool.
    """
    if not isinstance(full_snapshot, bool):
        raise InvalidRequestError("full_snapshot is not True or False", cause=f"It is {full_snapshot!r}")
    if mode != "scd2" and (delete_marker is not None or full_snapshot):
        raise InvalidRequestError(
            "delete_marker and full_snapshot are for the mode 'scd2'",
            cause=f"The mode is {mode!r}",
            remedy="Leave them out, or use the mode scd2 with merge_keys and sequence_by",
        )


def parse_input_settings(metadata: Mapping[str, object] | None) -> InputSettings:
    """The settings of an input.

    Raises:
        InvalidRequestError: A key has a value of the wrong kind or is misspelled, or there are both a version and a
            timestamp.
    """
    given = plain_metadata(metadata)
    refuse_slips(given, INPUT_KEYS, "the input", NOT_READ)
    for prefix in ("", "starting_"):
        if given.get(f"{prefix}version") is not None and given.get(f"{prefix}timestamp") is not None:
            raise InvalidRequestError(
                f"The input's metadata has both {prefix}version and {prefix}timestamp", remedy="Give one of them"
            )
    return InputSettings(
        columns=parse_columns(given.get("columns"), "columns"),
        version=_number(given, "version"),
        timestamp=_text(given, "timestamp"),
        starting_version=_number(given, "starting_version"),
        starting_timestamp=_text(given, "starting_timestamp"),
    )


def refuse_slips(
    given: Iterable[str], keys: Iterable[str], where: str, others: Mapping[str, str] = NOT_WRITTEN
) -> None:
    """Check that no key is a known one misspelled. Keys of the user's own pass, as do those with a `/`.

    Args:
        others: What is no key here, and what to do instead.

    Raises:
        InvalidRequestError: One is, and the error names the near one; or it is one of the others.
    """
    known = {_bare(key): key for key in keys}
    elsewhere_said = {_bare(key): remedy for key, remedy in others.items()}
    for name in given:
        if _bare(name) in elsewhere_said and "/" not in name:
            raise InvalidRequestError(
                f"The metadata key {name!r} of {where} would be ignored",
                cause="That could change what is written or read",
                remedy=f"{elsewhere_said[_bare(name)]}; a key of your own takes a prefix, as in 'my/{name}'",
                key=name,
            )
        if name in known.values() or "/" in name or name.lower() in _WORDS_OF_THEIR_OWN:
            continue
        near = known.get(_bare(name)) or _nearest(_bare(name), known)
        if near is None and elsewhere(name) in known.values():
            near = elsewhere(name)
        if near is not None:
            raise InvalidRequestError(
                f"The metadata key {name!r} of {where} does not exist",
                cause=f"It looks like {near!r}, and ignoring it could change what is written or read",
                remedy=f"Write {near!r}; a key of your own that only looks like it takes a prefix, as in 'my/{name}'",
                key=name,
            )


def elsewhere(name: str) -> str | None:
    """Our word for what others call so."""
    return next((ours for theirs, ours in ELSEWHERE.items() if _bare(theirs) == _bare(name)), None)


def _bare(name: str) -> str:
    return "".join(char for char in name.lower() if char.isalnum())


def _nearest(name: str, known: Mapping[str, str]) -> str | None:
    ratios = {key: SequenceMatcher(None, name, bare).ratio() for bare, key in known.items()}
    best = max(ratios, key=lambda key: ratios[key])
    return best if ratios[best] >= _SLIP else None


def parse_mode(mode: object) -> OutputMode:
    """A write mode, checked."""
    if mode not in MODES:
        raise InvalidRequestError(f"mode {mode!r} does not exist", remedy=f"Use one of {', '.join(MODES)}", mode=mode)
    # A member of an enum of texts is one of them, too. Dagster stores plain ones alone.
    return MODES[MODES.index(mode)]


def parse_columns(value: object, key: str) -> tuple[str, ...] | None:
    """A list of column names; one name may stand for a list of one."""
    if value is None:
        return None
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise InvalidRequestError(f"The metadata {key!r} is not a list of column names", cause=f"It is {value!r}")
    return tuple(names)


def plain_metadata(metadata: Mapping[str, object] | None) -> dict[str, object]:
    """Metadata without Dagster's wrappers."""
    return {key: _plain(value) for key, value in (metadata or {}).items()}


def _plain(value: object) -> object:
    return value.value if isinstance(value, dg.MetadataValue) else value


def _text(metadata: Mapping[str, object], key: str) -> str | None:
    value = metadata.get(key)
    if value is not None and not isinstance(value, str):
        raise InvalidRequestError(f"The metadata {key!r} is not a string", cause=f"It is {value!r}")
    return value or None


def _number(metadata: Mapping[str, object], key: str) -> int | None:
    value = metadata.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise InvalidRequestError(f"The metadata {key!r} is not a version", cause=f"It is {value!r}")
    return value


def _texts(metadata: Mapping[str, object], key: str) -> dict[str, str]:
    value = metadata.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for pair in value.items() for text in pair):
        raise InvalidRequestError(f"The metadata {key!r} does not map names to texts", cause=f"It is {value!r}")
    return dict(value)


def _by_dimension(metadata: Mapping[str, object], key: str) -> Mapping[str, str] | None:
    value = metadata.get(key)
    if value is None:
        return None
    by_dimension = {"": value} if isinstance(value, str) else value
    if not isinstance(by_dimension, Mapping) or not all(isinstance(text, str) for text in by_dimension.values()):
        raise InvalidRequestError(
            f"The metadata {key!r} is neither a string nor a string for each dimension", cause=f"It is {value!r}"
        )
    return dict(by_dimension)
