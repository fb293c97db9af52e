"""The footer of a checkpoint file: which columns there are, and whether they are those that are read (PROTOCOL,
"Checkpoint Schema")."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import pyarrow as pa

from delta_orch.protocol.action_json import CHECKPOINT_FIELDS, CHECKPOINT_KEYS
from delta_orch.protocol.actions import JsonValue
from delta_orch.storage.parquet_footer import ParquetFooter


@dataclass(frozen=True)
class CheckpointFooter(ParquetFooter):
    """The footer of a checkpoint file, and what is known of it."""

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The columns as Arrow reads them."""
        return self.metadata.schema.to_arrow_schema()

    @cached_property
    def leaves(self) -> tuple[str, ...]:
        """Dotted paths of all leaf columns. Raises pyarrow.ArrowInvalid where an action lacks what it is known by."""
        schema = self.metadata.schema
        _ensure_actions(self.arrow_schema)
        return tuple(schema.column(i).path for i in range(len(schema)))

    @cached_property
    def sound_columns(self) -> set[str]:
        """The top-level columns whose chunks are known to be sound."""
        return set()

    @cached_property
    def bounded_columns(self) -> set[str]:
        """The dotted columns that are known to take no more memory than they may."""
        return set()

    @cached_property
    def few_actions(self) -> dict[tuple[int, tuple[str, ...]], list[dict[str, JsonValue]]]:
        """Results of `RowGroup.read_actions` for a file that is whole in memory."""
        return {}


# Some writers do not say that bytes are text.
_TEXT = frozenset(t.id for t in (pa.string(), pa.large_string(), pa.string_view(), pa.binary()))
_IS_OF_TYPE: Mapping[str, Callable[[pa.DataType], bool]] = {
    "text": lambda t: (t.value_type if pa.types.is_dictionary(t) else t).id in _TEXT,
    "integer": pa.types.is_integer,
    "map": pa.types.is_map,
}


def _ensure_actions(struct: pa.Schema | pa.StructType, place: str = "") -> None:
    """Check that what is read of actions is found: a column of another name or type would count as one that is not
    there, and its files, rows or identifiers would be gone.

    Args:
        place: Of the struct, with a dot behind it; empty for the file.

    Raises:
        pyarrow.ArrowInvalid: A name occurs twice or in another case, or a struct lacks a key, or has it in another
            type.
    """
    action, names = place.rstrip(".").rpartition(".")[2], struct.names
    known_fields, keys = CHECKPOINT_FIELDS[action], CHECKPOINT_KEYS.get(action, {})
    others = [name for name in names if name not in known_fields]
    doubtful = {name for name in names if names.count(name) > 1}.intersection(known_fields)
    if others:
        spelled = {name.lower() for name in known_fields}
        doubtful |= {name for name in others if name.lower() in spelled}
    if doubtful:
        raise pa.ArrowInvalid(f"Columns of it are spelled twice or in another case: {place}{min(doubtful)}")
    for name, kind in keys.items():
        field_type = struct.field(name).type if name in names else None
        if field_type is None or not _IS_OF_TYPE[kind](field_type):
            raise pa.ArrowInvalid(f"Its column {place}{name} should hold {kind}, and is {field_type or 'not there'}")
    for name in names:
        if name in CHECKPOINT_KEYS and name in known_fields:
            inner = struct.field(name).type
            if not pa.types.is_struct(inner):
                raise pa.ArrowInvalid(f"Its column {place}{name} should be a struct, and is {inner}")
            _ensure_actions(inner, f"{place}{name}.")


@lru_cache(maxsize=4)
def _known_footer(tail: bytes, is_whole_file: bool) -> CheckpointFooter:
    """Every handle on a table opens its newest checkpoint: equal bytes are looked into once in a process."""
    return CheckpointFooter(tail, is_whole_file)


def checkpoint_footer(footer: ParquetFooter) -> CheckpointFooter:
    """The footer as that of a checkpoint."""
    return _known_footer(footer.tail, footer.is_whole_file)
