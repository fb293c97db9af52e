"""`dataclass` as in the standard library, made faster: what a first call imports is paid in every new process.

The standard decorator generates and compiles six functions for a frozen class with slots. Here the three that compare,
hash and show a value are shared by all classes. For type checkers this module is `dataclasses`.
"""

from __future__ import annotations

from dataclasses import field, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    import dataclasses

    def dataclass(*, frozen=False, slots=False, order=False, repr=True, eq=True):
        """`dataclasses.dataclass`: fields, values, comparison, `repr`, errors and pickles are the same."""

        def decorate(cls):
            if order or not (frozen and slots):
                return dataclasses.dataclass(cls, frozen=frozen, slots=slots, order=order, repr=repr, eq=eq)
            shared = ({"__repr__": _repr} if repr else {}) | ({"__eq__": _equal, "__hash__": _hash} if eq else {})
            for name, function in shared.items():
                if vars(cls).get(name) is None:  # A class with `__eq__` alone has the hash `None`.
                    setattr(cls, name, function)
            made = dataclasses.dataclass(cls, frozen=True, slots=True, repr=False, eq=False)
            every = fields(made)
            made.__compared__ = _getter(f.name for f in every if f.compare)
            made.__hashed__ = _getter(f.name for f in every if (f.compare if f.hash is None else f.hash))
            return made

        return decorate

    def _getter(names):
        names = tuple(names)
        if len(names) > 1:
            return staticmethod(attrgetter(*names))
        # A tuple here, too: its comparison takes a NaN for equal to itself, that of single values does not.
        one = attrgetter(*names) if names else type
        return staticmethod(lambda self: (one(self),))

    def _repr(self):
        values = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
        return f"{type(self).__qualname__}({', '.join(values)})"

    def _equal(self, other):
        if other.__class__ is not self.__class__:
            return NotImplemented
        return self.__compared__(self) == self.__compared__(other)

    def _hash(self):
        return hash(self.__hashed__(self))


__all__ = ["dataclass", "field", "replace"]
