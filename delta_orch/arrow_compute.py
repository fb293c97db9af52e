"""The functions of `pyarrow.compute`, each made when it is first used.

`pyarrow.compute` makes and documents its three hundred functions when it is imported. That takes a tenth of the
processor time of a first scan. Arrow's own methods, such as `filter`, `take`, `cast` and `is_null`, import it, so the
core uses functions in their place. The functions here call Arrow in the same way. Names that are no functions of
Arrow's registry are those of `pyarrow.compute` itself.

Plain values become scalars here, too: `pa.scalar` and `pa.array` import pandas where it is installed, which costs a
cold process more than reading a log does.
"""

from __future__ import annotations

import importlib
from array import array
from collections.abc import Callable
from typing import Any

import pyarrow as pa

_KEYWORDS = {"and_": "and", "or_": "or"}
_WRITTEN_BY_HAND = frozenset({"index"})
"""`pyarrow.compute` takes other arguments than Arrow's function of this name."""


def cast(values: pa.Array | pa.ChunkedArray, target: pa.DataType, safe: bool = True) -> pa.Array:
    """`pyarrow.compute.cast`."""
    from pyarrow import _compute

    options = _compute.CastOptions.safe(target) if safe else _compute.CastOptions.unsafe(target)
    return _compute.call_function("cast", [values], options)


def fill_null(values: pa.Array | pa.ChunkedArray, value: object) -> pa.Array:
    """`pyarrow.compute.fill_null`, for values of one type."""
    from pyarrow import _compute

    value = _scalar(value)
    if not isinstance(value, pa.Scalar | pa.Array | pa.ChunkedArray):
        value = pa.scalar(value, values.type)
    elif value.type != values.type:
        value = cast(value, values.type)
    return _compute.call_function("coalesce", [values, value])


def sort_by(rows: pa.Table, *names: str) -> pa.Table:
    """The rows by these columns, ascending, as `pyarrow.Table.sort_by` has them."""
    from pyarrow import _compute

    keys = _compute.SortOptions([(name, "ascending") for name in names])
    return _compute.call_function("take", [rows, _compute.call_function("sort_indices", [rows], keys)])


def _scalar(value: Any) -> Any:
    """A number, a truth value or a text as a scalar; anything else as it is."""
    data: list[object]
    match value:
        case bool():
            found, data = pa.bool_(), [bytes([value])]
        case int() if -(1 << 63) <= value < 1 << 63:
            found, data = pa.int64(), [array("q", [value])]
        case float():
            found, data = pa.float64(), [array("d", [value])]
        case str():
            text = value.encode()
            found, data = pa.string(), [array("i", [0, len(text)]), text]
        case _:
            return value
    return pa.Array.from_buffers(found, 1, [None, *map(pa.py_buffer, data)])[0]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    from pyarrow import _compute

    try:
        if name in _WRITTEN_BY_HAND:
            raise KeyError(name)
        found = _caller(_compute.get_function(_KEYWORDS.get(name, name)))
    except KeyError:
        found = getattr(importlib.import_module("pyarrow.compute"), name)
    globals()[name] = found
    return found


def _caller(function: Any) -> Callable[..., Any]:
    from pyarrow import _compute

    options_of: Any = getattr(_compute, function._doc.options_class or "", None)
    arity = function.arity

    def call(*values: Any, **options: Any) -> Any:
        more: tuple[Any, ...] = ()
        if arity is not Ellipsis:
            values, more = values[:arity], values[arity:]
            if len(values) < arity or (more and options_of is None):
                raise TypeError(f"{function.name} takes {arity} values, not {len(values) + len(more)}")
        chosen = options_of(*more, **options) if more or options else None
        if _compute.Expression in map(type, values):
            return _compute.Expression._call(function.name, list(values), chosen)
        return function.call(list(map(_scalar, values)), chosen)

    return call
