"""The first write of a step that replaces rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from delta_orch.delta_table import DeltaTable
from delta_orch.engines.select import EngineChoice, select_engine
from delta_orch.protocol.types import StructType
from delta_orch.table.schema_evolution import as_created_from_data


def ensure_table_for(
    table: DeltaTable,
    data: Any,
    *,
    engine: EngineChoice = "auto",
    partition_by: Sequence[str] | None = None,
    properties: Mapping[str, str] | None = None,
    user_metadata: str | None = None,
) -> None:
    """Create the table, empty, that `data` is about to overwrite rows of; leave one that exists as it is.

    An overwrite that creates its table only adds rows, so two of them at once would add up. With the table there first,
    the second one finds the rows of the first and replaces them, and a predicate (`replace_where`) has columns to be
    about. Of `data` only the schema is looked at; a reader is not advanced.

    Raises:
        SchemaMismatchError, InvalidPropertyError, ColumnNotFoundError: Such a table cannot be. There is none.
        TableExistsError: Another writer has just created one that does not fit.
    """
    if not table.exists():
        schema = schema_of_new_table(data, engine)
        table.create(schema, partition_by=partition_by, properties=properties, user_metadata=user_metadata)


def schema_of_new_table(data: Any, engine: EngineChoice = "auto") -> StructType:
    """The schema of a table that these rows create: every column may be null."""
    chosen = select_engine(data, engine)
    # A reader can be read only once: ask it, and not an engine's wrapping of it.
    described = data.schema.empty_table() if isinstance(data, pa.RecordBatchReader) else data
    return as_created_from_data(chosen.schema(chosen.relation(described)))
