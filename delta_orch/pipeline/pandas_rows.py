"""What a pandas frame cannot say of its columns, and the table can: integers with nulls, and the type of no values."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from delta_orch.errors import SchemaMismatchError

if TYPE_CHECKING:
    from delta_orch.protocol.types import StructType

_INTEGERS = ("byte", "short", "integer", "long")
# Below, a double holds every integer. It may itself be the next one, rounded.
_LARGEST = 2**53


def fit_pandas(data: object, schema: StructType | None) -> object:
    """A pandas frame with the columns that a step's table needs; anything else as it is.

    pandas keeps integers with a null as floats. Where the table's column is of integers, and all values are whole, they
    become integers again; other floats are left for the table to refuse.

    Args:
        schema: The table's; None where the step creates the table.

    Raises:
        SchemaMismatchError: Two columns have one name; or the step creates the table, and a column has no type because
            all its values are null.
    """
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
        untyped = [str(name) for name in frame.columns if frame[name].dtype == object and frame[name].isna().all()]
        if untyped:
            raise SchemaMismatchError(
                f"The columns {', '.join(untyped)} of the pandas frame have no type",
                cause="All their values are null, and the table is about to be created from them",
                remedy="Give them a type, e.g. frame.astype({'name': 'string'}), or create the table first",
                columns=untyped,
            )
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
