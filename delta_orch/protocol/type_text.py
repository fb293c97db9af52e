"""Types as people write them: `bigint`, `decimal(10,2)`, `array<struct<a:int,b:string>>`, `varchar(20)`.

Spark SQL's spelling. `char(n)` and `varchar(n)` are strings whose declared type stays in the field's metadata.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from delta_orch.errors import SchemaMismatchError
from delta_orch.protocol.types import (
    PRIMITIVE_TYPES,
    STRING,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StructField,
    StructType,
)

CHAR_VARCHAR_TYPE = "__CHAR_VARCHAR_TYPE_STRING"
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([A-Za-z_][\w]*)|(\d+)|([<>(),:]))")
_NAMES = {
    "int": "integer",
    "bigint": "long",
    "smallint": "short",
    "tinyint": "byte",
    "bool": "boolean",
    "real": "float",
    "timestamp_ltz": "timestamp",
}
_MAX_DEPTH = 100


def parse_type(text: str) -> DataType:
    """The type a text stands for.

    Raises:
        SchemaMismatchError: It stands for none.
    """
    return parse_declared_type(text)[0]


def parse_declared_type(text: str) -> tuple[DataType, Mapping[str, Any]]:
    """The type of a column, and the field metadata that its declaration needs (`char` and `varchar`).

    Raises:
        SchemaMismatchError: It is no type.
    """
    parser = _Parser(text)
    data_type = parser.type(0)
    if parser.position < len(parser.tokens):
        raise parser.refused()
    declared = re.sub(r"\s+", "", text.lower())
    # Spark keeps a nested declaration on the column, too, with the whole type spelled out.
    return data_type, {CHAR_VARCHAR_TYPE: declared} if parser.has_declared_length else {}


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []
        self.position = 0
        self.has_declared_length = False
        at = 0
        text = text.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise self.refused()
            self.tokens.append(found[0].strip())
            at = found.end()

    def refused(self) -> SchemaMismatchError:
        return SchemaMismatchError(
            f"{self.text!r} is no type",
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

    def type(self, depth: int) -> DataType:
        if depth > _MAX_DEPTH:
            raise self.refused()
        name = self.take().lower()
        match name:
            case "array":
                self.take("<")
                element = self.type(depth + 1)
                self.take(">")
                return ArrayType(element)
            case "map":
                self.take("<")
                key = self.type(depth + 1)
                self.take(",")
                value = self.type(depth + 1)
                self.take(">")
                return MapType(key, value)
            case "struct":
                return self.struct(depth)
            case "decimal" | "dec" | "numeric":
                return self.decimal()
            case "char" | "character" | "varchar":
                self.take("(")
                if not self.take().isdigit():
                    raise self.refused()
                self.take(")")
                self.has_declared_length = True
                return STRING
        found = PRIMITIVE_TYPES.get(_NAMES.get(name, name))
        if found is None:
            raise self.refused()
        return found

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
            data_type = self.type(depth + 1)
            nullable = True
            if (self.peek() or "").lower() == "not":
                self.take()
                if self.take().lower() != "null":
                    raise self.refused()
                nullable = False
            fields.append(StructField(name, data_type, nullable))
        self.take(">")
        return StructType(tuple(fields))

    def decimal(self) -> DecimalType:
        if self.peek() != "(":
            return DecimalType(10, 0)
        self.take("(")
        numbers = [self.take()]
        if self.peek() == ",":
            self.take()
            numbers.append(self.take())
        self.take(")")
        if not all(n.isdigit() for n in numbers):
            raise self.refused()
        precision, scale = int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0
        if not (1 <= precision <= 38 and scale <= precision):
            raise self.refused()
        return DecimalType(precision, scale)
