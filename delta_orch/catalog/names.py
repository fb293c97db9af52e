"""Names of tables in a catalog: `uc://catalog.schema.table`."""

from __future__ import annotations

import re
from typing import NamedTuple

from delta_orch.errors import InvalidRequestError

SCHEME = "uc://"
_PART = re.compile(r"`((?:[^`]|``)+)`|([^.`/\s]+)")
_PLAIN = re.compile(r"[^.`/\s]+")


class SchemaName(NamedTuple):
    """A schema of a catalog."""

    catalog: str
    schema: str

    def __str__(self) -> str:
        return ".".join(map(quoted_part, self))

    def table(self, name: str) -> TableName:
        return TableName(self.catalog, self.schema, name)


class TableName(NamedTuple):
    """A table of a catalog."""

    catalog: str
    schema: str
    table: str

    def __str__(self) -> str:
        return ".".join(map(quoted_part, self))

    @property
    def uri(self) -> str:
        """`uc://catalog.schema.table`"""
        return f"{SCHEME}{self}"


def is_catalog_uri(location: object) -> bool:
    """Whether a location is a name in a catalog."""
    return isinstance(location, str) and location[: len(SCHEME)].lower() == SCHEME


def parse_table_name(uri: str) -> TableName:
    """Parse `uc://catalog.schema.table`. Parts with other characters are in backticks.

    Raises:
        InvalidRequestError: The name does not have three parts.
    """
    parts = _parts(uri)
    if len(parts) != 3:
        raise _not_a_name(uri, "table", "uc://catalog.schema.table")
    return TableName(*parts)


def parse_schema_name(uri: str) -> SchemaName:
    """Parse `uc://catalog.schema`. Raises InvalidRequestError if the name does not have two parts."""
    parts = _parts(uri)
    if len(parts) != 2:
        raise _not_a_name(uri, "schema", "uc://catalog.schema")
    return SchemaName(*parts)


def parse_below(uri: str) -> list[str]:
    """Return the parts of `uc://`, `uc://catalog` or `uc://catalog.schema`. Raises InvalidRequestError."""
    parts = _parts(uri)
    if not is_catalog_uri(uri) or len(parts) > 2 or (not parts and len(uri) > len(SCHEME)):
        raise _not_a_name(uri, "schema", "uc://catalog.schema")
    return parts


def location_below(root: str, *parts: str) -> str:
    """Return the location of a table below a root: a directory, or a table of a schema. If the name has several parts,
    the table name joins them by `__`.

    Raises:
        InvalidRequestError: The root is a name in a catalog, but not of a schema.
    """
    if not is_catalog_uri(root):
        return "/".join([root.rstrip("/"), *parts])
    return parse_schema_name(root).table("__".join(parts)).uri


def _parts(uri: str) -> list[str]:
    text, parts, at = uri[len(SCHEME) :], [], 0
    while (found := _PART.match(text, at)) is not None:
        parts.append(found[2] if found[1] is None else found[1].replace("``", "`"))
        at = found.end()
        if at == len(text):
            return parts
        if text[at] != ".":
            break
        at += 1
    return []


def quoted_part(part: str) -> str:
    """Return a part of a name, in backticks if it has other characters."""
    return part if _PLAIN.fullmatch(part) else "`" + part.replace("`", "``") + "`"


def _not_a_name(uri: str, what: str, example: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{uri} is not the name of a {what}",
        cause=f"A {what} of a catalog has a name such as {example}",
        remedy="Put parts with dots, slashes or spaces in backticks",
        uri=uri,
    )
