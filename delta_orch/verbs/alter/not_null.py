"""NOT NULL on a table that has rows: proven before it is promised."""

from __future__ import annotations

from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.nodes import Column, IsNull, Not
from delta_orch.expressions.tree import conjunction
from delta_orch.protocol.schema_edit import Path, quote_path, type_at
from delta_orch.protocol.types import StructType
from delta_orch.verbs.alter.draft import RowProof


def not_null_proofs(schema: StructType, path: Path) -> list[RowProof]:
    """What rows must satisfy for a column to become NOT NULL.

    Raises:
        InvalidRequestError: The column lies inside an array or a map, where no predicate can look.
    """
    for length in range(1, len(path)):
        if not isinstance(type_at(schema, path[:length]), StructType):
            raise InvalidRequestError(
                f"{quote_path(path)} cannot become NOT NULL",
                cause=f"It lies inside {quote_path(path[:length])}, an array or a map",
                remedy="Define it so when the table is created",
                column=".".join(path),
            )
    missing = IsNull(Column(path))
    # A field of a struct that is null is not missing.
    violation = missing if len(path) == 1 else conjunction(Not(IsNull(Column(path[:-1]))), missing)
    return [RowProof(f"NOT NULL constraint on {quote_path(path)}", f"{quote_path(path)} IS NOT NULL", violation)]
