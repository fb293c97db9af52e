"""The settings of one asset: definition metadata, output metadata and the IO manager's configuration.

Output metadata overrides definition metadata, which overrides the configuration. `MEANINGS` says what each key
means.

A misspelled key is an error when the definitions are loaded. Keys of others pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Literal as OneOf
from typing import TypeVar, get_args

import dagster as dg

from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.audit import Audit, as_audits
from delta_orch.pipeline.unit import ON_REDO, OnRedo
from delta_orch.pipeline.write_settings import BY_KEYS, ensure_unit_column, refuse_old_names
from delta_orch.table.schema_evolution import parse_schema_mode
from delta_orch.verbs.change_events import SETTINGS as CHANGE_SETTINGS
from delta_orch.verbs.change_events import Changes, parse_changes
from delta_orch.verbs.expect import Expectations

ManagedWrite = OneOf["overwrite", "overwrite_partitions", "append", "merge", "cdc", "error", "ignore"]
WRITES: tuple[ManagedWrite, ...] = get_args(ManagedWrite)

T = TypeVar("T")
Choice = TypeVar("Choice", bound=str)

UnitKind = OneOf["partition", "run"]
"""What one run of an asset writes. `partition`: its partitions, and without partitions the asset. `run`: a part of
them, to which other runs add theirs."""
UNIT_KINDS: tuple[UnitKind, ...] = get_args(UnitKind)

WRITTEN_KEYS = ("write", "merge_keys", "schema_mode", "commit_metadata")
"""What output metadata may say."""
PLACE_KEYS = ("partition_expr", "partition_format", "schema", "table")
"""Which rows are where: all that matters for reading."""
DEFINED_KEYS = (
    *PLACE_KEYS,
    "partition_by",
    "audit",
    "expect",
    "max_quarantined",
    "quarantine",
    *CHANGE_SETTINGS,
    "properties",
    "unit",
    "unit_column",
    "on_redo",
    "exactly_once",
    "replace_where",
    *WRITTEN_KEYS,
)
"""What definition metadata may say."""
_OF_DEFINITION = set(DEFINED_KEYS) - {*WRITTEN_KEYS, "schema", "table", "unit", "properties"}
"""Keys that an output would pass over. `schema`, `table`, `unit`, `properties` are words that others show there."""
INPUT_KEYS = ("columns", "version", "timestamp", "starting_version", "starting_timestamp")
"""What the metadata of an input may say."""
MEANINGS = {
    "write": "As of the IO manager. `overwrite` can also replace the rows of `replace_where`; `ignore` takes one "
    "partition a run.",
    "merge_keys": "As of the IO manager.",
    "replace_where": "A predicate in Spark SQL: the rows that `overwrite` replaces, without partitions.",
    "schema_mode": "`merge` or `overwrite` (docs/features.md).",
    "commit_metadata": "Beside that of the IO manager.",
    "partition_expr": "The column of the partition; a dict by dimension for several.",
    "partition_format": "The `strftime` format of a text or integer column that does not hold the key itself.",
    "partition_by": "The partition columns of a new table; `[]` for none.",
    "audit": "Predicates, or a dict of names and arguments of `Audit`.",
    "sequence_by, scd, delete_when, except_columns, full_snapshot, envelope, tombstone_retention": "For `cdc` "
    "(docs/late-rows.md).",
    "expect": 'Rules for each row: a dict of names and `{"rule": …, "action": …}` (docs/bad-rows.md).',
    "max_quarantined": "How many rows (int), or which share (float), may go to the quarantine.",
    "quarantine": "Where the quarantine is.",
    "properties": 'Of a new table: `{"delta.columnMapping.mode": "name"}` allows columns with spaces.',
    "unit, unit_column, on_redo, exactly_once": "As of the IO manager.",
    "schema": "The folder of the table instead of the prefix of the asset key.",
    "table": "For outputs of ops: the folder.",
    "columns": "The columns to load.",
    "version, timestamp": "A number, or an ISO time with an offset.",
    "starting_version, starting_timestamp": "The first version of a `ChangeFeed`; `version` or `timestamp` end it.",
}
"""The meaning of each key for docs/dagster-reference.md. Keys with the same meaning share a line."""

_WORDS_OF_THEIR_OWN = {
    *("column", "schemas", "tables", "timestamps", "units", "unite", "united", "versions", "writer", "writers"),
    *("audited", "auditor", "replaced", "property", "written"),
}
"""Close to a key and common in metadata; none of them is a slip."""
_SLIP = 0.82
_LONG = 10
"""A key of so many letters is meant by a name that only goes on after it, or breaks off."""


@dataclass(frozen=True, slots=True)
class AssetSettings:
    """See the module. `partition_expr` and `partition_format` map a dimension's name to a text; for an asset with one
    dimension the name is empty. What is None here, the IO manager says."""

    write: ManagedWrite
    schema: str | None = None
    partition_expr: Mapping[str, str] | None = None
    partition_format: Mapping[str, str] | None = None
    partition_by: tuple[str, ...] | None = None
    table: str | None = None
    schema_mode: str | None = None
    commit_metadata: Mapping[str, str] = field(default_factory=dict)
    merge_keys: tuple[str, ...] = ()
    replace_where: str | None = None
    audits: tuple[Audit, ...] = ()
    expect: Expectations | None = None
    quarantine: str | None = None
    changes: Changes | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    unit: UnitKind | None = None
    unit_column: str | None = None
    on_redo: OnRedo | None = None
    exactly_once: bool | None = None


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
    default_write: str,
    default_merge_keys: Sequence[str] = (),
) -> AssetSettings:
    """The settings of an asset.

    Args:
        output: None where nothing is known of it yet.

    Raises:
        InvalidRequestError: A key has a value of the wrong kind or is an old name, `write` is not known, a merge has no
            keys, or there are keys and nothing says that they are for a merge.
    """
    defined, written = plain_metadata(definition), plain_metadata(output)
    refuse_old_names([*defined, *written])
    _refuse_other_names_of_write({**defined, **written})
    if misplaced := sorted(_OF_DEFINITION & set(written)):
        raise InvalidRequestError(
            f"The metadata {misplaced[0]!r} belongs to the definition, not to an output",
            cause="An output may say " + ", ".join(WRITTEN_KEYS),
            remedy="Give it to the asset: @dg.asset(metadata={…})",
        )
    metadata = {**defined, **written}
    write = parse_write(metadata.get("write", default_write))
    keys = parse_columns(metadata.get("merge_keys"), "merge_keys") or tuple(default_merge_keys)
    changes = _changes(write, defined)
    if write in BY_KEYS and not keys:
        raise InvalidRequestError(
            f"write={write!r} needs merge_keys",
            cause="They say which row of the table a new row is about",
            remedy='Give the asset the metadata {"merge_keys": ["id"]}, or the IO manager merge_keys',
        )
    if output is not None and metadata.get("merge_keys") and "write" not in metadata and write not in BY_KEYS:
        raise InvalidRequestError(
            f"The metadata has merge_keys and no write, which by default is {default_write!r}",
            cause="The rows would not be merged by their keys",
            remedy='Add "write": "merge" to the metadata, or leave merge_keys out',
        )
    unit_column = _text(defined, "unit_column")
    ensure_unit_column(write, unit_column)
    replace_where = _text(defined, "replace_where")
    if replace_where is not None and write != "overwrite":
        raise InvalidRequestError(
            f"replace_where is for write='overwrite', and here it is {write!r}", remedy="Leave it out, or overwrite"
        )
    return AssetSettings(
        write=write,
        schema=_text(defined, "schema"),
        partition_expr=_by_dimension(defined, "partition_expr"),
        partition_format=_by_dimension(defined, "partition_format"),
        partition_by=parse_columns(defined.get("partition_by"), "partition_by"),
        table=_text(defined, "table"),
        schema_mode=parse_schema_mode(_text(metadata, "schema_mode")),
        commit_metadata={**_texts(defined, "commit_metadata"), **_texts(written, "commit_metadata")},
        merge_keys=keys,
        replace_where=replace_where,
        audits=as_audits(defined["audit"]) if defined.get("audit") else (),  # type: ignore[arg-type]  # it is checked
        expect=Expectations.of(defined.get("expect"), defined.get("max_quarantined")),
        quarantine=_text(defined, "quarantine"),
        changes=changes,
        properties=_texts(defined, "properties"),
        unit=None if (unit := defined.get("unit")) is None else parse_choice("unit", unit, UNIT_KINDS),
        unit_column=unit_column,
        on_redo=None if (on_redo := defined.get("on_redo")) is None else parse_choice("on_redo", on_redo, ON_REDO),
        exactly_once=_flag(defined, "exactly_once"),
    )


def _changes(write: str, defined: Mapping[str, object]) -> Changes | None:
    """What the definition says of change events. Raises InvalidRequestError, as `parse_changes`."""
    change_settings: dict[str, object] = {
        name: parse_columns(defined.get(name), name) for name in ("sequence_by", "except_columns")
    }
    change_settings |= {name: _text(defined, name) for name in ("delete_when", "envelope", "tombstone_retention")}
    change_settings |= {name: defined.get(name) for name in ("scd", "full_snapshot")}
    return parse_changes(write, change_settings)


def parse_input_settings(metadata: Mapping[str, object] | None) -> InputSettings:
    """The settings of an input.

    Raises:
        InvalidRequestError: A key has a value of the wrong kind or is misspelled, or there are both a version and a
            timestamp.
    """
    input_metadata = plain_metadata(metadata)
    refuse_slips(input_metadata, INPUT_KEYS, "the input")
    if misplaced := sorted({"partition_expr", "partition_format"} & set(input_metadata)):
        raise InvalidRequestError(
            f"The metadata {misplaced[0]!r} is about a table, and the input's comes from its upstream",
            remedy="Say it in the metadata of the upstream asset",
        )
    for prefix in ("", "starting_"):
        if input_metadata.get(f"{prefix}version") is not None and input_metadata.get(f"{prefix}timestamp") is not None:
            raise InvalidRequestError(
                f"The input's metadata has both {prefix}version and {prefix}timestamp", remedy="Give one of them"
            )
    return InputSettings(
        columns=parse_columns(input_metadata.get("columns"), "columns"),
        version=_number(input_metadata, "version"),
        timestamp=_text(input_metadata, "timestamp"),
        starting_version=_number(input_metadata, "starting_version"),
        starting_timestamp=_text(input_metadata, "starting_timestamp"),
    )


def _refuse_other_names_of_write(metadata: Mapping[str, object]) -> None:
    """Raises InvalidRequestError: A key such as `mod` or `write_mode` has a value of `write`."""
    for name, value in metadata.items():
        is_alike = name not in DEFINED_KEYS and "/" not in name and ("mod" in name.lower() or "write" in name.lower())
        if is_alike and isinstance(value, str) and value in WRITES:
            raise InvalidRequestError(
                f"The metadata {name!r}: {value!r} does not say how the rows are written",
                cause="The key is called 'write'",
                remedy=f'Name it "write". A key of your own takes a prefix, as in "my/{name}"',
                key=name,
            )


def refuse_slips(names: Iterable[str], keys: Iterable[str], where: str) -> None:
    """Check that no key of metadata is a known one misspelled. Keys of the user's own pass.

    Raises:
        InvalidRequestError: One is, and the error names the near one.
    """
    bare_keys = {_bare(key): key for key in keys}
    for name in names:
        if name in bare_keys.values() or "/" in name or name.lower() in _WORDS_OF_THEIR_OWN:
            continue
        near = bare_keys.get(_bare(name)) or _nearest(_bare(name), bare_keys)
        if near is not None:
            raise InvalidRequestError(
                f"The metadata key {name!r} of {where} does not exist",
                cause=f"It looks like {near!r}, and ignoring it could change what is written or read",
                remedy=f"Write {near!r}; a key of your own that only looks like it takes a prefix, as in 'my/{name}'",
                key=name,
            )


def _bare(name: str) -> str:
    return "".join(char for char in name.lower() if char.isalnum())


def _nearest(name: str, bare_keys: Mapping[str, str]) -> str | None:
    ratios = {bare: SequenceMatcher(None, name, bare).ratio() for bare in bare_keys}
    best = max(ratios, key=lambda bare: ratios[bare])
    if ratios[best] >= _SLIP or sorted(name) == sorted(best):
        return bare_keys[best]
    if len(name) < _LONG:
        return None
    return next((key for bare, key in bare_keys.items() if len(bare) >= _LONG and name.startswith(bare)), None)


def parse_write(write: object) -> ManagedWrite:
    """Check what becomes of the rows that are there."""
    refuse_old_names([write])
    if write == "overwrite_changed":
        remedy = f"Use one of {', '.join(WRITES)}; or a @delta_asset"
        raise InvalidRequestError(f"write={write!r} is for incremental steps", remedy=remedy)
    return parse_choice("write", write, WRITES)


def parse_choice(name: str, value: object, choices: Sequence[Choice]) -> Choice:
    """Check that the value of a setting is one of its choices."""
    if value not in choices:
        raise InvalidRequestError(
            f"{name}={value!r} does not exist", remedy=f"Use one of {', '.join(map(str, choices))}"
        )
    # A member of an enum of texts is one of them, too. Dagster stores plain ones alone.
    return choices[choices.index(value)]


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
    value = _of_type(metadata, key, str, "a string")
    return value or None


def _flag(metadata: Mapping[str, object], key: str) -> bool | None:
    return _of_type(metadata, key, bool, "True or False")


def _of_type(metadata: Mapping[str, object], key: str, kind: type[T], words: str) -> T | None:
    value = metadata.get(key)
    if value is not None and not isinstance(value, kind):
        raise InvalidRequestError(f"The metadata {key!r} is not {words}", cause=f"It is {value!r}")
    return value


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
