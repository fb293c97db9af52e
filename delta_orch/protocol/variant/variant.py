"""One variant: a metadata/value pair that is decoded only where it is looked at."""

from __future__ import annotations

from collections.abc import Sequence

from delta_orch.protocol.variant.decode import array_slots, basic_type, decode_value, fields_of, object_layout
from delta_orch.protocol.variant.json_text import to_json
from delta_orch.protocol.variant.metadata import MetadataReader, invalid_variant
from delta_orch.protocol.variant.path import parse_path
from delta_orch.protocol.variant.values import BasicType, VariantValue, type_name_of


class Variant:
    """A value and the dictionary of its field names. A variant inside another shares its bytes.

    Making one checks nothing. Every method raises `InvalidVariantError` where the bytes it meets are damaged.
    """

    __slots__ = ("_end", "_reader", "_start", "_value", "metadata")

    def __init__(self, metadata: bytes, value: bytes) -> None:
        self.metadata = metadata
        self._value = value
        self._start, self._end = 0, len(value)
        self._reader: MetadataReader | None = None

    @property
    def value(self) -> bytes:
        """Its bytes. Of a variant inside another, all the space it has there."""
        return self._value[self._start : self._end]

    @property
    def type_name(self) -> str:
        """`null`, `boolean`, `int8`, …, `timestamp_ntz_nanos`, `uuid`, `object` or `array`."""
        basic_type(self._value, self._start, self._end)
        name = type_name_of(self._value[self._start])
        if name is None:
            raise invalid_variant("a value has an unknown type", f"First byte {self._value[self._start]}")
        return name

    def get(self, path: str | Sequence[str | int]) -> Variant | None:
        """What stands at a path; None where nothing does. Only the containers on the way are looked at.

        Raises:
            InvalidRequestError: It is no path.
        """
        found: Variant | None = self
        for step in parse_path(path):
            if found is None:
                return None
            found = found._field(step.encode()) if isinstance(step, str) else found._element(step)
        return found

    def fields(self) -> dict[str, Variant] | None:
        """The fields of an object, by name; None where it is no object."""
        if not self._is(BasicType.OBJECT):
            return None
        names, slots = fields_of(self._value, self._metadata(), self._start, self._end)
        return {name: self._inside(*slot) for name, slot in zip(names, slots, strict=True)}

    def elements(self) -> list[Variant] | None:
        """The elements of an array; None where it is no array."""
        if not self._is(BasicType.ARRAY):
            return None
        return [self._inside(start, end) for start, end in array_slots(self._value, self._start, self._end)]

    def to_python(self) -> VariantValue:
        """All of it, as Python objects; module `values` says which."""
        return decode_value(self._value, self._metadata(), self._start, self._end)

    def to_json(self) -> str:
        """All of it, as canonical JSON text; module `json_text` says which."""
        return to_json(self.to_python())

    def __repr__(self) -> str:
        return f"Variant(metadata={self.metadata!r}, value={self.value!r})"

    def _metadata(self) -> MetadataReader:
        if self._reader is None:
            self._reader = MetadataReader(self.metadata)
        return self._reader

    def _is(self, kind: BasicType) -> bool:
        return basic_type(self._value, self._start, self._end) == kind

    def _inside(self, start: int, end: int) -> Variant:
        inside = Variant(self.metadata, self._value)
        inside._start, inside._end, inside._reader = start, end, self._reader
        return inside

    def _field(self, name: bytes) -> Variant | None:
        if not self._is(BasicType.OBJECT):
            return None
        reader = self._metadata()
        ids, slots = object_layout(self._value, self._start, self._end)
        for field_id, slot in zip(ids, slots, strict=True):
            if reader.name_bytes(field_id) == name:
                return self._inside(*slot)
        return None

    def _element(self, index: int) -> Variant | None:
        if not self._is(BasicType.ARRAY):
            return None
        slots = array_slots(self._value, self._start, self._end)
        return self._inside(*slots[index]) if index < len(slots) else None
