"""Which changes of a table's metadata concern those who are writing to it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from delta_orch.protocol.actions import Metadata
from delta_orch.protocol.schema import parse_schema
from delta_orch.protocol.schema_edit import without_metadata
from delta_orch.protocol.types import StructType

# They control how files and the log are kept, not what a row or a commit must be.
_UPKEEP = frozenset(
    {
        "delta.autooptimize.autocompact",
        "delta.autooptimize.optimizewrite",
        "delta.checkpointinterval",
        "delta.checkpoint.writestatsasjson",
        "delta.checkpoint.writestatsasstruct",
        "delta.deletedfileretentionduration",
        "delta.enableexpiredlogcleanup",
        "delta.logretentionduration",
        "delta.parquet.compression.codec",
        "delta.targetfilesize",
        "delta.tunefilesizesforrewrites",
    }
)
_OF_NO_CONSEQUENCE = frozenset({"comment", "delta.identity.highWaterMark"})


def concerns_writers(before: Metadata, after: Metadata) -> bool:
    """Whether a commit that was prepared under `before` may be wrong under `after`.

    Names, comments, the user's own properties and those of upkeep make no difference. Neither does the high-water mark
    of an identity column, to a commit that uses none of its values.
    """
    same = replace(
        after,
        name=before.name,
        description=before.description,
        created_time=before.created_time,
        configuration=before.configuration,
        schema_string=before.schema_string,
    )
    if same != before:
        return True
    if _binding(before.configuration) != _binding(after.configuration):
        return True
    if before.schema_string == after.schema_string:
        return False
    return _essence(before) != _essence(after)


def _binding(configuration: Mapping[str, str]) -> dict[str, str]:
    lowered = {key.lower(): value for key, value in configuration.items()}
    return {key: value for key, value in lowered.items() if key.startswith("delta.") and key not in _UPKEEP}


def _essence(metadata: Metadata) -> StructType:
    return without_metadata(parse_schema(metadata.schema_string), _OF_NO_CONSEQUENCE.__contains__)
