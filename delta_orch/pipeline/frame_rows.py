"""What a frame cannot say of its columns, and the table can: integers with nulls, and the type of no values."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from delta_orch.errors import SchemaMismatchError

if TYPE_CHECKING:
    from delta_orch.protocol.types import StructType

_INTEGERS = ("byte", "short", "integer", "long")
# Below, a double holds every integer. It may itself be the next one, rounded.
_LARGEST = 2**53


def fit_frame(data: object, schema: StructType | None, *, merges: bool, hands_on: bool) -> object:
    """A pandas frame with the columns that a step's table needs; anything else as it is.

    pandas keeps integers with a null as floats. Where the table's column is of integers, and all values are whole, they
    become integers again; other floats are left for the table to refuse.

    Args:
        schema: The table's; None where the step creates the table, or replaces its columns.
        merges: Columns that the table does not have are added.
        hands_on: The rows are for the next op alone, and no later ones are to fit their columns.

    Raises:
        SchemaMismatchError: Two columns of a pandas frame have one name; or the step creates a column that has no type,
            in a frame of pandas or Polars, because all its values are null. No value would ever fit it.
    """
    makes_columns = not hands_on and (schema is None or merges)
    untyped = [name for name in _untyped(data) if schema is None or schema.find(name) is None]
    if makes_columns and untyped:
        raise SchemaMismatchError(
            f"The columns {', '.join(untyped)} of the frame have no type",
            cause="All their values are null, and the columns are about to be created from them",
            remedy="Give them a type, such as frame.astype({'name': 'string'}) in pandas, or cast them in Polars; or "
            "create the table first",
            columns=untyped,
        )
    pandas: Any = sys.modules.get("pandas")
    if pandas is None or not isinstance(data, pandas.DataFrame):
        return data
    frame: Any = data
    if not frame.columns.is_unique:
        twice = sorted({str(name) for name in frame.columns[frame.columns.duplicated()]})
        raise SchemaMismatchError(
            f"The pandas frame has several columns named {', '.join(twice)}",
            remedy="Rename them, or leave them out",
            columns=twice,
        )
    if schema is None:
        return frame
    if not len(frame):
        # Whatever pandas calls columns that it has seen no value of.
        return frame.astype(object)
    integers = {}
    for name in frame.columns:
        field = schema.find(name) if isinstance(name, str) else None
        if field is None or str(field.data_type) not in _INTEGERS or frame[name].dtype.kind != "f":
            continue
        known = frame[name].dropna()
        if len(known) < len(frame) and bool(((known % 1 == 0) & (known.abs() < _LARGEST)).all()):
            integers[name] = "Int64"
    return frame.astype(integers) if integers else frame


def _untyped(data: object) -> list[str]:
    """The columns of a frame of pandas or Polars for which it has no type but that of null."""
    pandas: Any = sys.modules.get("pandas")
    polars: Any = sys.modules.get("polars")
    if polars is not None and isinstance(data, polars.DataFrame | polars.LazyFrame):
        return [name for name, kind in data.collect_schema().items() if kind == polars.Null]
    if pandas is None or not isinstance(data, pandas.DataFrame):
        return []
    columns = ((str(name), column) for name, column in data.items())
    return [name for name, column in columns if column.dtype == object and bool(column.isna().all())]
