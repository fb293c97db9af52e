"""The settings of one asset: definition metadata, output metadata and the IO manager's configuration.

Output metadata overrides definition metadata, which overrides the configuration. `MEANINGS` says what each key
means.

A misspelled key is an error when the definitions are loaded. Keys of others pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import SequenceMatcher
from typing import Any, TypeVar, get_args
from typing import Literal as OneOf

import dagster as dg

from delta_orch.errors import InvalidRequestError
from delta_orch.pipeline.unit import ON_REDO, OnRedo
from delta_orch.pipeline.write_settings import BY_KEYS, WriteSettings, refuse_old_names
from delta_orch.pipeline.write_settings import MEANINGS as WRITE_MEANINGS

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
INPUT_KEYS = ("columns", "version", "timestamp", "starting_version", "starting_timestamp")
"""What the metadata of an input may say."""
MEANINGS = {
    **{name: meaning for name, meaning in WRITE_MEANINGS.items() if name != "table"},
    "write": "As of the IO manager. `overwrite` can also replace the rows of `replace_where`; `ignore` takes one "
    "partition a run.",
    "replace_where": "A predicate in Spark SQL: the rows that `overwrite` replaces, without partitions.",
    "commit_metadata": "Beside that of the IO manager.",
    "partition_expr": "The column of the partition; a dict by dimension for several.",
    "partition_format": "The `strftime` format of a text or integer column that does not hold the key itself.",
    "unit": "As of the IO manager.",
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


@dataclass(frozen=True)
class AssetSettings(WriteSettings):
    """The settings of an asset. What is None here, the IO manager says.

    `partition_expr` and `partition_format` map the name of a dimension to a text. An asset with one dimension has an
    empty name for it. `table` is the folder of an op's output.
    """

    write: ManagedWrite = "overwrite"
    on_redo: OnRedo | None = field(default=None, kw_only=True)  # type: ignore[assignment]  # None: the IO manager's
    exactly_once: bool | None = field(default=None, kw_only=True)  # type: ignore[assignment]  # None: the IO manager's
    unit: UnitKind | None = field(default=None, kw_only=True)
    schema: str | None = field(default=None, kw_only=True)
    partition_expr: Mapping[str, str] | None = field(default=None, kw_only=True)
    partition_format: Mapping[str, str] | None = field(default=None, kw_only=True)
    commit_metadata: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    replace_where: str | None = field(default=None, kw_only=True)


DEFINED_KEYS = tuple(one.name for one in fields(AssetSettings))
"""What definition metadata may say."""
_OF_DEFINITION = set(DEFINED_KEYS) - {*WRITTEN_KEYS, "schema", "table", "unit", "properties"}
"""Keys that an output would pass over. `schema`, `table`, `unit`, `properties` are words that others show there."""


@dataclass(frozen=True, slots=True)
class InputSettings:
    """The settings of an input, from its metadata."""

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
    values = {name: parse(metadata if name in WRITTEN_KEYS else defined, name) for name, parse in _PARSERS.items()}
    values["merge_keys"] = values["merge_keys"] or tuple(default_merge_keys)
    values["commit_metadata"] = {**_texts(defined, "commit_metadata"), **_texts(written, "commit_metadata")}
    settings = AssetSettings(write=write, **values)
    settings.ensure_parsable()
    if write in BY_KEYS and not settings.merge_keys:
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
    settings.ensure_unit_column()
    if settings.replace_where is not None and write != "overwrite":
        raise InvalidRequestError(
            f"replace_where is for write='overwrite', and here it is {write!r}", remedy="Leave it out, or overwrite"
        )
    return settings


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
        columns=_columns(input_metadata, "columns"),
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


def _columns(metadata: Mapping[str, object], key: str) -> tuple[str, ...] | None:
    """A list of column names; one name may stand for a list of one."""
    value = metadata.get(key)
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


def _one_of(choices: Sequence[str]) -> Callable[[Mapping[str, object], str], str | None]:
    def parse(metadata: Mapping[str, object], key: str) -> str | None:
        value = metadata.get(key)
        return None if value is None else parse_choice(key, value, choices)

    return parse


def _any(default: object) -> Callable[[Mapping[str, object], str], Any]:
    # `max_quarantined: 0` is a limit, and None is none.
    return lambda metadata, key: default if metadata.get(key) is None else metadata[key]


_PARSERS: Mapping[str, Callable[[Mapping[str, object], str], Any]] = {
    **dict.fromkeys(("merge_keys", "partition_by", "sequence_by", "except_columns"), _columns),
    **dict.fromkeys(("table", "schema", "schema_mode", "quarantine", "unit_column", "replace_where"), _text),
    **dict.fromkeys(("delete_when", "envelope", "tombstone_retention"), _text),
    **dict.fromkeys(("partition_expr", "partition_format"), _by_dimension),
    **dict.fromkeys(("scd", "expect", "max_quarantined"), _any(None)),
    "full_snapshot": _any(False),
    "audit": _any(()),
    "properties": _texts,
    "exactly_once": _flag,
    "unit": _one_of(UNIT_KINDS),
    "on_redo": _one_of(ON_REDO),
}
"""How the value of a key is read. `write` and `commit_metadata` have rules of their own."""
