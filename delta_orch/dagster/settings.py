"""The settings of one asset: definition metadata, output metadata and the IO manager's configuration.

Output metadata overrides definition metadata, which overrides the configuration. The keys:

| key | on | meaning |
|---|---|---|
| `partition_expr` | definition | the partition column; for multi-dimensional partitions a column for each dimension |
| `partition_format` | definition | `strftime` format of a string or integer column that does not hold the key itself |
| `partition_by` | definition | partition columns of the new table, by default those of `partition_expr` |
| `schema` | definition | the folder of the table, instead of the asset key's prefix |
| `table` | definition of an op's output | the folder of the table, instead of job, node and output |
| `columns` | definition of an input | which columns to load |
| `mode` | definition, output | as the configuration's |
| `schema_mode` | definition, output | `merge` adds columns the table lacks; `overwrite` takes those of a new whole |

Each value of a partition column is a directory of its own: for a column of instants let `partition_by` name a coarser
one, or `[]` for none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal as OneOf
from typing import cast, get_args

import dagster as dg

from delta_orch.errors import InvalidRequestError
from delta_orch.table.schema_evolution import parse_schema_mode

OutputMode = OneOf["overwrite", "append", "error", "ignore"]
MODES = get_args(OutputMode)


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


def parse_settings(
    definition: Mapping[str, object] | None, output: Mapping[str, object] | None, default_mode: str
) -> AssetSettings:
    """The settings of an asset.

    Raises:
        InvalidRequestError: A key has a value of the wrong kind, or the mode is not known.
    """
    defined = {key: _plain(value) for key, value in (definition or {}).items()}
    written = {key: _plain(value) for key, value in (output or {}).items()}
    return AssetSettings(
        mode=parse_mode(written.get("mode", defined.get("mode", default_mode))),
        schema=_text(defined, "schema"),
        partition_expr=_by_dimension(defined, "partition_expr"),
        partition_format=_by_dimension(defined, "partition_format"),
        partition_by=parse_columns(defined.get("partition_by"), "partition_by"),
        table=_text(defined, "table"),
        schema_mode=parse_schema_mode(_text({**defined, **written}, "schema_mode")),
    )


def parse_mode(mode: object) -> OutputMode:
    """A write mode, checked."""
    if mode == "merge":
        raise InvalidRequestError(
            "mode 'merge' is not part of this release",
            remedy=f"Use one of {', '.join(MODES)}; 'overwrite' replaces exactly the run's partitions",
            mode=mode,
        )
    if mode not in MODES:
        raise InvalidRequestError(f"mode {mode!r} does not exist", remedy=f"Use one of {', '.join(MODES)}", mode=mode)
    return cast(OutputMode, mode)


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
