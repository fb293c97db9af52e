"""One variant: a metadata/value pair that is decoded on access (Variant binary encoding), as a column of one.

Nothing is trusted: every size is checked against the space its container gives it, and children of one container may
not overlap, so that time and memory grow with the number of bytes. No recursion, whatever the nesting.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from delta_orch.errors import InvalidRequestError
from delta_orch.protocol.variant.byte_columns import byte_strings
from delta_orch.protocol.variant.decode import python_values
from delta_orch.protocol.variant.dictionaries import Located, Names
from delta_orch.protocol.variant.json_columns import json_texts
from delta_orch.protocol.variant.values import BasicType, VariantValue, invalid_variant, kind_of

Path = tuple[str | int, ...]
"""Steps from the root: a field's name or an element's index."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A value and the dictionary of its field names.

    Making one checks nothing. Every method raises `InvalidVariantError` where the bytes it meets are damaged. Many
    variants are read much faster as a column (`delta_orch.variant`).

    Attributes:
        metadata: The dictionary.
        value: The value. Bytes that follow it are ignored.
    """

    metadata: bytes
    value: bytes

    @property
    def type_name(self) -> str:
        """`null`, `boolean`, `int8`, …, `timestamp_ntz_nanos`, `uuid`, `object` or `array`."""
        self._located()
        kind = kind_of(self.value[0])
        if kind is None:
            raise invalid_variant("a value has an unknown type", f"First byte {self.value[0]}")
        return kind.type_name

    def get(self, path: str | Sequence[str | int]) -> Variant | None:
        """The value at a path, or None. Only the containers on the way are read.

        Raises:
            InvalidRequestError: It is no path.
        """
        located, names = self._located()
        for step in parse_path(path):
            located = located.step(step, names)
        return next(iter(self._inside(located)), None)

    def fields(self) -> dict[str, Variant] | None:
        """The fields of an object, by name; None where it is no object."""
        located, names = self._located()
        if self.value[0] & 3 != BasicType.OBJECT:
            return None
        _, fields, codes = located.fields(names)
        return dict(zip(names.dictionaries.names_at(codes), self._inside(fields), strict=True))

    def elements(self) -> list[Variant] | None:
        """The elements of an array; None where it is no array."""
        located, _ = self._located()
        return self._inside(located.children(BasicType.ARRAY)[1]) if self.value[0] & 3 == BasicType.ARRAY else None

    def to_python(self) -> VariantValue:
        """The whole variant as Python objects; module `values` lists their types. Fields are in the order of names."""
        return python_values(*self._located())[0]

    def to_json(self) -> str:
        """The whole variant as canonical JSON text, as of `json_columns.json_texts`."""
        return str(json_texts(*self._located()).to_arrow()[0].as_py(), "utf-8")

    def _located(self) -> tuple[Located, Names]:
        """The value as a column of one."""
        if not self.value:
            raise invalid_variant("a value has no bytes")
        metadata, row = byte_strings([self.metadata]), np.zeros(1, np.int64)
        return Located.of(byte_strings([self.value]), row), Names.of(lambda: metadata, row == 0)

    def _inside(self, located: Located) -> list[Variant]:
        places = zip(located.starts.tolist(), located.ends.tolist(), strict=True)
        return [Variant(self.metadata, self.value[start:end]) for start, end in places]


# Paths

_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]'"]+) | \[(?P<index>\d{1,10})\] | \['(?P<single>[^']*)'\] | \["(?P<double>[^"]*)"\]""",
    re.VERBOSE,
)


def parse_path(path: str | Sequence[str | int]) -> Path:
    """The steps of a path.

    Args:
        path: Text that starts with `$` (Spark's `variant_get` has the same form), or the steps themselves: a name that
            text cannot spell is given that way.

    Raises:
        InvalidRequestError: It is no path.
    """
    if not isinstance(path, str):
        for step in path:
            if not isinstance(step, (str, int)) or isinstance(step, bool) or (isinstance(step, int) and step < 0):
                raise _no_path(repr(step), "steps are names and indexes from 0")
        return tuple(path)
    if not path.startswith("$"):
        raise _no_path(path, "it must start with $")
    steps: list[str | int] = []
    at = 1
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            raise _no_path(path, f"character {at + 1} starts no step")
        kind = match.lastgroup or ""
        steps.append(int(match[kind]) if kind == "index" else match[kind])
        at = match.end()
    return tuple(steps)


def _no_path(path: str, cause: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{path!r} is not a variant path",
        cause=cause,
        remedy="Write it like $.name, $['a name'] or $.list[0], or give the steps as a list",
    )
