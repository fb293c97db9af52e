"""Types as people write them: `bigint`, `decimal(10,2)`, `array<struct<a:int,b:string>>`, `varchar(20)`.

Spark SQL's spelling. `char(n)` and `varchar(n)` are strings whose declared type stays in the field's metadata. Spark
keeps the whole type of a nested column there as text, so a change of the column must change the text as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from delta_orch.errors import SchemaMismatchError
from delta_orch.protocol.actions import JsonObject
from delta_orch.protocol.schema_edit import (
    ColumnPath,
    Path,
    field_at,
    nearest_field,
    part_at,
    type_at,
    with_field,
    with_fields,
)
from delta_orch.protocol.types import (
    CHAR_VARCHAR_TYPE,
    DEFAULT_CRS,
    PRIMITIVE_TYPES,
    STRING,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StructField,
    StructType,
    ensure_shallow,
    parse_geo,
    parse_interval,
)

if TYPE_CHECKING:
    import pyarrow as pa

_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([A-Za-z_][\w]*)|(\d+)|([<>(),:])|('(?:[^'\\]|'')*'))")
_NAMES = {
    "int": "integer",
    "bigint": "long",
    "smallint": "short",
    "tinyint": "byte",
    "bool": "boolean",
    "real": "float",
    "timestamp_ltz": "timestamp",
}
_CATALOG_NAMES = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}


def parse_declared_type(text: str) -> tuple[DataType, JsonObject]:
    """The type of a column, and the field metadata that its declaration needs (`char` and `varchar`).

    Raises:
        SchemaMismatchError: It is not a type.
    """
    parser = _Parser(text)
    data_type = parser.whole()
    if not parser.lengths:
        return data_type, {}
    # Spark keeps a nested declaration on the column, too, with the whole type spelled out.
    return data_type, {CHAR_VARCHAR_TYPE: spell_declared_type(data_type, parser.lengths)}


def declared_type(data_type: DataType | pa.DataType | str, path: ColumnPath) -> tuple[DataType, JsonObject]:
    """As `parse_declared_type`, for the column at a path, also of a type of ours or of Arrow's.

    Raises:
        SchemaMismatchError: It is not a type, or Delta tables do not support it.
    """
    if isinstance(data_type, str):
        return parse_declared_type(data_type)
    if isinstance(data_type, DataType):
        return data_type, {}
    import pyarrow as pa

    from delta_orch.protocol.arrow_building import schema_from_arrow

    if not isinstance(data_type, pa.DataType):
        raise SchemaMismatchError(
            f"{data_type!r} is not a type", remedy="Write it as in Spark SQL: bigint, array<string>"
        )
    name = path if isinstance(path, str) else ".".join(path)
    return schema_from_arrow(pa.schema([pa.field(name, data_type)])).fields[0].data_type, {}


def parse_columns(text: str) -> StructType:
    """Columns as Spark SQL lists them: `id bigint NOT NULL, tags array<string>`.

    Raises:
        SchemaMismatchError: It is no such list.
    """
    try:
        parser = _Parser(f"struct<{text}>")
        columns = parser.whole()
    except SchemaMismatchError:
        columns = None
    if not isinstance(columns, StructType) or not columns.names:
        raise SchemaMismatchError(
            f"{text!r} is neither a list of columns nor a schema's JSON",
            remedy="Write columns as in Spark SQL: id bigint NOT NULL, tags array<string>",
        )
    return StructType(tuple(_with_lengths(field, parser.lengths) for field in columns))


def _with_lengths(field: StructField, lengths: Iterable[DeclaredLength]) -> StructField:
    own = [replace(length, place=length.place[1:]) for length in lengths if length.place[0] == field.name]
    if not own:
        return field
    return replace(field, metadata={**field.metadata, CHAR_VARCHAR_TYPE: spell_declared_type(field.data_type, own)})


@dataclass(frozen=True, slots=True)
class DeclaredLength:
    """A text declared as `char(n)` or `varchar(n)`.

    Attributes:
        place: Where it is below the column: names of fields, `element`, `key` and `value`; empty for the column itself.
        kind: `char` or `varchar`.
        max_characters: What it may have; a `char` may have fewer, too, as those who read it in Spark see it padded.
    """

    place: tuple[str, ...]
    kind: str
    max_characters: int

    def __str__(self) -> str:
        return f"{self.kind}({self.max_characters})"


def declared_lengths(text: str) -> tuple[DeclaredLength, ...]:
    """The lengths that a declared type sets for texts in it, as `parse_declared_type` keeps it for a column.

    Raises:
        SchemaMismatchError: It is not a type.
    """
    parser = _Parser(text)
    parser.type(0)
    return tuple(parser.lengths)


def spell_declared_type(data_type: DataType, lengths: Iterable[DeclaredLength]) -> str:
    """A type with the lengths of texts in it as Spark's catalog spells it, without spaces and NOT NULL."""
    return _spelled(data_type, (), {length.place: str(length) for length in lengths})


def _spelled(data_type: DataType, place: tuple[str, ...], lengths: Mapping[tuple[str, ...], str]) -> str:
    match data_type:
        case ArrayType(element_type):
            return f"array<{_spelled(element_type, (*place, 'element'), lengths)}>"
        case MapType(key_type, value_type):
            key = _spelled(key_type, (*place, "key"), lengths)
            return f"map<{key},{_spelled(value_type, (*place, 'value'), lengths)}>"
        case StructType(fields):
            inner = (f"{_quoted(f.name)}:{_spelled(f.data_type, (*place, f.name), lengths)}" for f in fields)
            return f"struct<{','.join(inner)}>"
    return lengths.get(place) or _CATALOG_NAMES.get(str(data_type), str(data_type))


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else "`" + name.replace("`", "``") + "`"


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []
        self.position = 0
        self.place: list[str] = []
        self.lengths: list[DeclaredLength] = []
        at = 0
        text = text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise self.refused()
            self.tokens.append(match[0].strip())
            at = match.end()

    def refused(self) -> SchemaMismatchError:
        return SchemaMismatchError(
            f"{self.text!r} is not a type",
            remedy="Write it as in Spark SQL: bigint, decimal(10,2), array<string>, struct<a:int,b:string>",
            type=self.text,
        )

    def take(self, *expected: str) -> str:
        if self.position >= len(self.tokens) or (expected and self.tokens[self.position] not in expected):
            raise self.refused()
        self.position += 1
        return self.tokens[self.position - 1]

    def peek(self) -> str | None:
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def whole(self) -> DataType:
        data_type = self.type(0)
        if self.position < len(self.tokens):
            raise self.refused()
        return data_type

    def type(self, depth: int) -> DataType:
        ensure_shallow(depth)
        name = self.take().lower()
        match name:
            case "array":
                self.take("<")
                element = self.inside("element", depth)
                self.take(">")
                return ArrayType(element)
            case "map":
                self.take("<")
                key = self.inside("key", depth)
                self.take(",")
                value = self.inside("value", depth)
                self.take(">")
                return MapType(key, value)
            case "struct":
                return self.struct(depth)
            case "decimal" | "dec" | "numeric":
                return self.decimal()
            case "char" | "character" | "varchar":
                self.take("(")
                length = self.number()
                if not length:
                    raise self.refused()
                self.take(")")
                kind = "varchar" if name == "varchar" else "char"
                self.lengths.append(DeclaredLength(tuple(self.place), kind, length))
                return STRING
            case "interval":
                words = [name, self.take()]
                if (self.peek() or "").lower() == "to":
                    words += [self.take(), self.take()]
                return self.known(parse_interval(" ".join(words)))
            case "geometry" | "geography":
                return self.known(parse_geo(name + self.parameters()))
        return self.known(PRIMITIVE_TYPES.get(_NAMES.get(name, name)))

    def parameters(self) -> str:
        """What stands in the parentheses after a name, with them."""
        if self.peek() != "(":
            return ""
        words = [self.take()]
        while words[-1] != ")":
            words.append(self.take())
        # Spark SQL names the default system by its number; others go by authority and code here.
        return "".join(
            DEFAULT_CRS if word == "4326" and words[place - 1] == "(" else word for place, word in enumerate(words)
        )

    def known(self, data_type: DataType | None) -> DataType:
        if data_type is None:
            raise self.refused()
        return data_type

    def inside(self, name: str, depth: int) -> DataType:
        self.place.append(name)
        inner = self.type(depth + 1)
        self.place.pop()
        return inner

    def struct(self, depth: int) -> StructType:
        self.take("<")
        fields: list[StructField] = []
        while self.peek() != ">":
            if fields:
                self.take(",")
            name = self.take()
            if name.startswith("`"):
                name = name[1:-1].replace("``", "`")
            if self.peek() == ":":
                self.take()
            data_type = self.inside(name, depth)
            nullable = True
            if (self.peek() or "").lower() == "not":
                self.take()
                if self.take().lower() != "null":
                    raise self.refused()
                nullable = False
            metadata: dict[str, object] = {}
            if (self.peek() or "").lower() == "comment":
                self.take()
                comment = self.take()
                if not comment.startswith("'"):
                    raise self.refused()
                metadata["comment"] = comment[1:-1].replace("''", "'")
            fields.append(StructField(name, data_type, nullable, metadata))
        self.take(">")
        return StructType(tuple(fields))

    def number(self) -> int:
        digits = self.take()
        # Python reads no number of thousands of digits, and takes more for digits than it reads.
        if re.fullmatch("[0-9]{1,9}", digits) is None:
            raise self.refused()
        return int(digits)

    def decimal(self) -> DecimalType:
        if self.peek() != "(":
            return DecimalType(10, 0)
        self.take("(")
        precision, scale = self.number(), 0
        if self.peek() == ",":
            self.take()
            scale = self.number()
        self.take(")")
        if not (1 <= precision <= 38 and scale <= precision):
            raise self.refused()
        return DecimalType(precision, scale)


def with_declared_types(schema: StructType) -> StructType:
    """The schema, its declared types spelled as the columns are now; those without a text that has a length go."""
    return StructType(tuple(map(_following, schema)))


def with_renamed_place(schema: StructType, path: Path, new_name: str) -> StructType:
    """The schema after a field inside a column was renamed, with its new name in the declared types around it.

    Args:
        path: Of the field, with its old name.
    """
    above = path[:-1]
    while above:
        around, _ = nearest_field(schema, above)
        place = path[len(around) :]

        def renamed(field: StructField, place: Path = place) -> StructField:
            lengths = _lengths_of(field)
            return field if lengths is None else _declare(field, [_moved(one, place, new_name) for one in lengths])

        schema = with_field(schema, around, renamed)
        above = around[:-1]
    return schema


def lengths_at(schema: StructType, path: Path) -> dict[Path, DeclaredLength]:
    """The declared types of the strings at and below a path, by their places below it."""
    around, _ = nearest_field(schema, path)
    lengths: dict[Path, DeclaredLength] = {}
    for depth in range(1, len(around) + 1):
        if not isinstance(type_at(schema, path[: depth - 1]), StructType):
            continue
        text = field_at(schema, path[:depth]).metadata.get(CHAR_VARCHAR_TYPE)
        place = path[depth:]
        for length in declared_lengths(text) if isinstance(text, str) else ():
            if _is_below(length, place):
                lengths.setdefault(length.place[len(place) :], length)
    return lengths


def with_lengths_at(schema: StructType, path: Path, lengths: Iterable[DeclaredLength]) -> StructType:
    """The schema after the strings at and below a path got exactly these declared lengths.

    Args:
        lengths: By places below the path.
    """
    lengths = [*lengths]
    above = path
    while above:
        around, _ = nearest_field(schema, above)
        place = path[len(around) :]

        def declared(field: StructField, place: Path = place, is_column: bool = len(around) == 1) -> StructField:
            text = field.metadata.get(CHAR_VARCHAR_TYPE)
            if not isinstance(text, str):
                return _declare(field, [replace(o, place=(*place, *o.place)) for o in lengths]) if is_column else field
            others = [one for one in declared_lengths(text) if not _is_below(one, place)]
            return _declare(field, [*others, *(replace(one, place=(*place, *one.place)) for one in lengths)])

        schema = with_field(schema, around, declared)
        above = around[:-1]
    return schema


def place_of_text(data_type: DataType, place: Path) -> Path | None:
    """A place below a column as the schema spells it; None if it has no string there."""
    spelled: list[str] = []
    for name in place:
        part = part_at(data_type, name)
        if part is None:
            return None
        spelled.append(part[0])
        data_type = part[1]
    return tuple(spelled) if data_type == STRING else None


def _following(field: StructField) -> StructField:
    field = replace(field, data_type=with_fields(field.data_type, _following))
    lengths = _lengths_of(field)
    return field if lengths is None else _declare(field, lengths)


def _lengths_of(field: StructField) -> tuple[DeclaredLength, ...] | None:
    """The lengths inside a nested column; None where nothing is declared, or nothing that can be read."""
    text = field.metadata.get(CHAR_VARCHAR_TYPE)
    if not isinstance(text, str) or field.data_type == STRING:
        return None
    try:
        return declared_lengths(text)
    except SchemaMismatchError:
        return None


def _declare(field: StructField, lengths: Iterable[DeclaredLength]) -> StructField:
    placed = ((length, place_of_text(field.data_type, length.place)) for length in lengths)
    kept = [replace(length, place=place) for length, place in placed if place is not None]
    metadata = {key: value for key, value in field.metadata.items() if key != CHAR_VARCHAR_TYPE}
    if kept:
        metadata[CHAR_VARCHAR_TYPE] = spell_declared_type(field.data_type, kept)
    return replace(field, metadata=metadata)


def _is_below(length: DeclaredLength, place: Path) -> bool:
    return tuple(map(str.lower, length.place[: len(place)])) == tuple(map(str.lower, place))


def _moved(length: DeclaredLength, place: Path, new_name: str) -> DeclaredLength:
    if not _is_below(length, place):
        return length
    return replace(length, place=(*place[:-1], new_name, *length.place[len(place) :]))
