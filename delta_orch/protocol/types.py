"""Delta's data types (PROTOCOL, "Schema Serialization Format").

Values of these classes are immutable and compare by value. JSON spelling lives in `schema.py`, Arrow's in
`arrow_building.py`; Spark reads and writes the same JSON, so it needs no mapping of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import attrgetter

import orjson

from delta_orch.errors import UnsupportedError
from delta_orch.protocol.actions import JsonObject

MAX_DEPTH = 80
"""Types are walked by recursion, and orjson writes 254 levels of JSON, three for a struct."""


def ensure_shallow(depth: int) -> None:
    """Raise UnsupportedError if a type has too many types around it."""
    if depth > MAX_DEPTH:
        raise UnsupportedError(
            f"The schema is nested more than {MAX_DEPTH} levels deep",
            remedy="Keep what is deeper as one column of JSON text or of type variant",
        )


class DataType:
    """Base of all Delta types."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class PrimitiveType(DataType):
    """A type known by its name alone: `long`, `string`, `timestamp_ntz`, `variant`, …"""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class DecimalType(DataType):
    """`precision` digits, `scale` of them behind the point."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True, slots=True)
class IntervalType(DataType):
    """A length of time, as the number that files hold: months (int32) for `year to month`, microseconds (int64) for
    `day to second`. Neither pyarrow nor PySpark has values of the first; DuckDB makes both another type."""

    fields: str

    def __str__(self) -> str:
        return f"interval {self.fields}"


@dataclass(frozen=True, slots=True)
class GeoType(DataType):
    """Shapes as WKB, the bytes of "Well-Known Binary", on a plane (`geometry`) or on the earth (`geography`).

    Attributes:
        crs: The coordinate reference system: `OGC:CRS84`, `EPSG:3857`, `srid:0`, `projjson:<table property>`.
        algorithm: How the edges of a geography run between two points; empty for a geometry.
    """

    kind: str
    crs: str
    algorithm: str = ""

    def __str__(self) -> str:
        return f"{self.kind}({self.crs}, {self.algorithm})" if self.algorithm else f"{self.kind}({self.crs})"


@dataclass(frozen=True, slots=True)
class ArrayType(DataType):
    """A list of values of one type."""

    element_type: DataType
    contains_null: bool = True

    def __str__(self) -> str:
        return f"array<{self.element_type}>"


@dataclass(frozen=True, slots=True)
class MapType(DataType):
    """Pairs of a key, which is never null, and a value."""

    key_type: DataType
    value_type: DataType
    value_contains_null: bool = True

    def __str__(self) -> str:
        return f"map<{self.key_type},{self.value_type}>"


@dataclass(frozen=True, slots=True)
class StructField:
    """One column: `metadata` is kept as it stands in the log, unknown keys included."""

    name: str
    data_type: DataType
    nullable: bool = True
    metadata: JsonObject = field(default_factory=dict, hash=False)


_NAME_OF = attrgetter("name")


@dataclass(frozen=True, slots=True)
class StructType(DataType):
    """Fields in order: a struct, or the columns of a table."""

    fields: tuple[StructField, ...]
    # Places by name, and by name in lower case, made on first use.
    _places: tuple[dict[str, int], dict[str, int]] | None = field(default=None, init=False, repr=False, compare=False)

    def __iter__(self) -> Iterator[StructField]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(map(_NAME_OF, self.fields))

    def find(self, name: str) -> StructField | None:
        """The field of that name: an exact match first, then one that differs only in case (names are
        case-insensitive in Delta and unique under that rule)."""
        place = self.place(name)
        return None if place is None else self.fields[place]

    def place(self, name: str) -> int | None:
        """Where the field of that name stands, found as by `find`."""
        places = self._places
        if places is None:
            # From the last on, so that of several the first one stays.
            backwards = [(f.name, place) for place, f in enumerate(self.fields)][::-1]
            places = dict(backwards), {name.lower(): place for name, place in backwards}
            object.__setattr__(self, "_places", places)
        exact, folded = places
        place = exact.get(name)
        return folded.get(name.lower()) if place is None else place

    def __getstate__(self) -> tuple[StructField, ...]:
        return self.fields

    def __setstate__(self, fields: tuple[StructField, ...]) -> None:
        object.__setattr__(self, "fields", fields)
        object.__setattr__(self, "_places", None)

    def __str__(self) -> str:
        return "struct<" + ",".join(f"{f.name}:{f.data_type}" for f in self.fields) + ">"


def fields_on(path: Sequence[str], schema: DataType) -> Iterator[StructField]:
    """The column of a path and its fields, up to the first field that does not exist."""
    for name in path:
        field = schema.find(name) if isinstance(schema, StructType) else None
        if field is None:
            return
        yield field
        schema = field.data_type


STRING = PrimitiveType("string")
LONG = PrimitiveType("long")
INTEGER = PrimitiveType("integer")
SHORT = PrimitiveType("short")
BYTE = PrimitiveType("byte")
FLOAT = PrimitiveType("float")
DOUBLE = PrimitiveType("double")
BOOLEAN = PrimitiveType("boolean")
BINARY = PrimitiveType("binary")
DATE = PrimitiveType("date")
TIMESTAMP = PrimitiveType("timestamp")
TIMESTAMP_NTZ = PrimitiveType("timestamp_ntz")
VOID = PrimitiveType("void")
VARIANT = PrimitiveType("variant")
YEAR_MONTH = IntervalType("year to month")
DAY_TIME = IntervalType("day to second")


@dataclass(frozen=True, slots=True)
class TypeTraits:
    """The uses that values of a type have. A nested type has only the uses that its own values have: its parts have
    traits of their own (`types_of`).

    Attributes:
        stored: The type of the values that travel in Arrow and Spark: that of data files. None is the type itself.
        is_atomic: A value is one value: it has constants, casts and an order of its own.
        is_computable: Expressions compute from the values. Otherwise IS NULL and IS NOT NULL are the only conditions,
            and neither a default nor a generation expression gives such a value.
        compares: Two values are equal or not. Nothing compares what a type holds if one part does not compare.
        has_bounds: Files know the smallest and the largest value, by which a table can be clustered.
        has_box: Files know the box around all values, and name the type (`GEOMETRY`): plain bytes are not enough.
        is_partition: Partition values can have the type.
        is_iceberg: Tables with the Iceberg compatibility features can have the type.
        feature: The table feature that the type needs.
    """

    stored: DataType | None = None
    is_atomic: bool = False
    is_computable: bool = True
    compares: bool = True
    has_bounds: bool = False
    has_box: bool = False
    is_partition: bool = False
    is_iceberg: bool = True
    feature: str | None = None


_ATOMIC = TypeTraits(is_atomic=True, has_bounds=True, is_partition=True)
_UNORDERED = replace(_ATOMIC, has_bounds=False)
_INTERVAL_TRAITS = TypeTraits(is_computable=False, is_partition=True, is_iceberg=False)
_TRAITS: Mapping[DataType | type[DataType], TypeTraits] = {
    BINARY: _UNORDERED,
    BOOLEAN: _UNORDERED,
    TIMESTAMP_NTZ: replace(_ATOMIC, feature="timestampNtz"),
    VOID: TypeTraits(is_iceberg=False),
    VARIANT: TypeTraits(compares=False, is_iceberg=False, feature="variantType"),
    YEAR_MONTH: replace(_INTERVAL_TRAITS, stored=INTEGER),
    DAY_TIME: replace(_INTERVAL_TRAITS, stored=LONG),
    GeoType: TypeTraits(stored=BINARY, is_computable=False, has_box=True, is_iceberg=False, feature="geospatial"),
    ArrayType: TypeTraits(),
    MapType: TypeTraits(compares=False),
    StructType: TypeTraits(),
}


def traits_of(data_type: DataType) -> TypeTraits:
    """The uses that values of a type have. Each place that treats some types in its own way asks here."""
    return _TRAITS.get(type(data_type)) or _TRAITS.get(data_type, _ATOMIC)


CHAR_VARCHAR_TYPE = "__CHAR_VARCHAR_TYPE_STRING"
"""The key of a column's metadata with its type as declared, where texts in it have a length."""
COLLATIONS = "__COLLATIONS"
"""The key of a column's metadata with the collations of its texts, by their paths."""

STATED_DEFINITIONS = "delta_orch.definitions"
"""The key, in the metadata of a column of rows, of the definitions that Arrow or Spark states (`definitions_in`). No
table has it: a column is defined by `create`, not by rows."""
_OF_ANOTHER_TABLE = ("delta.columnMapping.", "delta.typeChanges", "delta.identity.highWaterMark")


def definitions_in(metadata: JsonObject, also: Collection[str] = ()) -> dict[str, str]:
    """The metadata of a column about its values (generation, identity, default, invariants, and Delta's companions of
    these), as texts. Metadata that is valid only in its own table is omitted.

    Args:
        also: More keys that count.
    """
    return {
        key: value if isinstance(value, str) else orjson.dumps(value).decode()
        for key, value in metadata.items()
        if (key.startswith("delta.") and not key.startswith(_OF_ANOTHER_TABLE))
        or key == "CURRENT_DEFAULT"
        or key in also
    }


PRIMITIVE_TYPES: Mapping[str, PrimitiveType] = {
    t.name: t
    for t in (
        STRING, LONG, INTEGER, SHORT, BYTE, FLOAT, DOUBLE, BOOLEAN, BINARY, DATE, TIMESTAMP, TIMESTAMP_NTZ, VOID,
        VARIANT,
    )
}  # fmt: skip


_INTERVAL = r"(?i)interval +(\w+)(?: +to +(\w+))?"
_UNITS = {YEAR_MONTH: ("year", "month"), DAY_TIME: ("day", "hour", "minute", "second")}
_GEO = r"(?i)(geometry|geography)(?:\(\s*([^,():]+:[^,()]+?)\s*(?:,\s*(\w+)\s*)?\))?"
_ALGORITHMS = ("spherical", "vincenty", "thomas", "andoyer", "karney")
DEFAULT_CRS = "OGC:CRS84"
"""That of a type that names none: longitude and latitude."""


def parse_interval(name: str) -> IntervalType | None:
    """The type of `interval year`, `interval day to hour`, …: all spellings of one family hold the same numbers. None
    for any other text."""
    found = re.fullmatch(_INTERVAL, name)
    if found is None:
        return None
    first, last = found[1].lower(), (found[2] or found[1]).lower()
    for interval, units in _UNITS.items():
        if first in units and last in units and units.index(first) <= units.index(last):
            return interval
    return None


def parse_geo(name: str) -> GeoType | None:
    """The type of `geometry(EPSG:3857)`, `geography(OGC:CRS84, spherical)`, …; None for any other text."""
    found = re.fullmatch(_GEO, name)
    if found is None:
        return None
    kind, algorithm = found[1].lower(), (found[3] or "").lower()
    if kind == "geometry":
        return None if algorithm else GeoType(kind, found[2] or DEFAULT_CRS)
    return GeoType(kind, found[2] or DEFAULT_CRS, algorithm or "spherical") if algorithm in ("", *_ALGORITHMS) else None


def as_stored(data_type: DataType) -> DataType:
    """The type of the values that travel in Arrow and Spark: that of the files for intervals and shapes."""
    return traits_of(data_type).stored or with_parts(data_type, lambda _, inner: as_stored(inner))


def stored_schema(schema: StructType) -> StructType:
    """`as_stored`, of the columns of a table."""
    return StructType(tuple(replace(f, data_type=as_stored(f.data_type)) for f in schema))


def is_stored_form(data_type: DataType, logical: DataType) -> bool:
    """Whether values of a type are the form in which those of a variant, an interval or a shape travel."""
    return is_variant_storage(data_type) if logical == VARIANT else data_type == traits_of(logical).stored


def is_variant_storage(data_type: DataType) -> bool:
    """Whether an Arrow type has the shape of a variant, without other information."""
    fields = data_type.fields if isinstance(data_type, StructType) else ()
    return sorted((f.name, f.data_type) for f in fields) == [("metadata", BINARY), ("value", BINARY)]


def parts_of(data_type: DataType) -> tuple[tuple[str, DataType], ...]:
    """The types directly inside a type, by the names that lead to them in a column's path: those of a struct's fields,
    `element`, `key` and `value`."""
    match data_type:
        case StructType(fields):
            return tuple((f.name, f.data_type) for f in fields)
        case ArrayType(element_type):
            return (("element", element_type),)
        case MapType(key_type, value_type):
            return (("key", key_type), ("value", value_type))
    return ()


def with_parts(data_type: DataType, change: Callable[[str, DataType], DataType]) -> DataType:
    """The type with the types directly inside it changed."""
    match data_type:
        case StructType(fields):
            return StructType(tuple(replace(f, data_type=change(f.name, f.data_type)) for f in fields))
        case ArrayType(element_type, contains_null):
            return ArrayType(change("element", element_type), contains_null)
        case MapType(key_type, value_type, value_contains_null):
            return MapType(change("key", key_type), change("value", value_type), value_contains_null)
    return data_type


def parts_beside(ours: DataType, theirs: DataType) -> tuple[tuple[str, DataType, DataType], ...]:
    """The types directly inside two arrays, or two maps, side by side: `parts_of` both. None for other types."""
    if isinstance(ours, StructType) or type(ours) is not type(theirs):
        return ()
    return tuple((name, a, b) for (name, a), (_, b) in zip(parts_of(ours), parts_of(theirs), strict=True))


def may_be_null(data_type: DataType, change: Callable[[StructField], StructField] = lambda field: field) -> DataType:
    """The type with no NOT NULL in it, at any depth, and with each field of a struct changed."""
    match data_type:
        case StructType(fields):
            loose = (replace(f, data_type=may_be_null(f.data_type, change), nullable=True) for f in fields)
            return StructType(tuple(map(change, loose)))
        case ArrayType(element_type):
            return ArrayType(may_be_null(element_type, change), True)
        case MapType(key_type, value_type):
            return MapType(may_be_null(key_type, change), may_be_null(value_type, change), True)
    return data_type


def not_null_places(data_type: DataType, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths below a type to what must not be null, in order. Keys of maps never are null."""
    match data_type:
        case StructType(fields):
            strict = {f.name for f in fields if not f.nullable}
        case ArrayType(_, False) | MapType(_, _, False):
            strict = {"element", "value"}
        case _:
            strict = set()
    for name, inner in parts_of(data_type):
        if name in strict:
            yield (*path, name)
        yield from not_null_places(inner, (*path, name))


def fields_of(data_type: DataType) -> Iterator[StructField]:
    """All struct fields inside a type, at any depth."""
    if isinstance(data_type, StructType):
        for f in data_type.fields:
            yield f
            yield from fields_of(f.data_type)
    else:
        for _, inner in parts_of(data_type):
            yield from fields_of(inner)


def leaves_of(struct: StructType, parent: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], DataType]]:
    """The columns of a schema, and in place of a struct the fields inside it, by their paths. Arrays and maps are
    leaves."""
    for f in struct:
        path = (*parent, f.name)
        if isinstance(f.data_type, StructType):
            yield from leaves_of(f.data_type, path)
        else:
            yield path, f.data_type


def indexed_leaves(
    struct: StructType, chosen: Iterable[tuple[str, ...]] | None, count: int = 0
) -> Iterator[tuple[tuple[str, ...], DataType]]:
    """The leaves that statistics are collected for: those at or below the chosen paths, whatever their case; without a
    choice the first ones, all where `count` is negative."""
    leaves = leaves_of(struct)
    if chosen is None:
        yield from leaves if count < 0 else islice(leaves, count)
        return
    chosen_paths = [tuple(map(str.lower, path)) for path in chosen]
    for path, data_type in leaves:
        if any(tuple(map(str.lower, path[: len(one)])) == one for one in chosen_paths):
            yield path, data_type


def types_of(data_type: DataType) -> Iterator[DataType]:
    """The type itself and all types inside it."""
    yield data_type
    for _, inner in parts_of(data_type):
        yield from types_of(inner)


def features_of(data_type: DataType) -> set[str]:
    """The table features that a type and all types inside it need."""
    return {feature for inner in types_of(data_type) if (feature := traits_of(inner).feature) is not None}


def has_equality(data_type: DataType) -> bool:
    """Whether two values are equal or not, whatever they hold."""
    return all(traits_of(inner).compares for inner in types_of(data_type))


def holds_geo(data_type: DataType) -> bool:
    """Whether a type is one of shapes, or has one inside."""
    return any(isinstance(inner, GeoType) for inner in types_of(data_type))


def holds_variant(data_type: DataType) -> bool:
    """Whether a type is `variant`, or has one inside."""
    return any(inner == VARIANT for inner in types_of(data_type))
