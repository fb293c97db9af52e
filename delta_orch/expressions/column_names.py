"""Column names of callers, in the spelling of the table's schema."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from delta_orch.errors import ColumnNotFoundError, InvalidRequestError
from delta_orch.protocol.types import StructField, StructType


def resolve_column_names(names: Sequence[str], schema: StructType, what: str) -> tuple[str, ...]:
    """Top-level names as the schema spells them. Each is a name as it stands, dots, spaces and backticks included, or
    else one in backticks as SQL quotes it; without regard to case.

    Raises:
        ColumnNotFoundError: The schema has no such column, or it is a field inside one.
        InvalidRequestError: One is named twice.
    """
    ensure_sequence_of_names(names, what)
    resolved: list[str] = []
    for name in names:
        path = find_named_column(name, schema) if isinstance(name, str) else None
        if path is None:
            raise column_not_found(name, schema, what)
        if path.name in resolved:
            raise InvalidRequestError(
                f"{what} names the column {path.name!r} twice", remedy="Name each column once", column=path.name
            )
        resolved.append(path.name)
    return tuple(resolved)


def free_name(name: str, used_names: Iterable[str]) -> str:
    """A name for an internal column that differs from the user's columns."""
    folded = {used.lower() for used in used_names}
    while name.lower() in folded:
        name += "_"
    return name


def ensure_sequence_of_names(names: Sequence[str], what: str) -> None:
    """Raises InvalidRequestError: `names` is one string instead of a sequence."""
    if isinstance(names, str):
        raise InvalidRequestError(
            f"{what} must be a sequence of column names, not the string {names!r}", remedy=f"Write [{names!r}]"
        )


def find_named_column(name: str, schema: StructType) -> StructField | None:
    """The column of that name as it stands, or as SQL quotes it; without regard to case."""
    field = schema.find(name)
    if field is None and len(name) > 2 and name[0] == name[-1] == "`":
        field = schema.find(name[1:-1].replace("``", "`"))
    return field


def column_not_found(name: object, schema: StructType, what: str) -> ColumnNotFoundError:
    """The error for a name that is not in the schema. It suggests the most similar name."""
    parent = schema.find(name.split(".")[0].strip("`")) if isinstance(name, str) and "." in name else None
    if parent is not None and isinstance(parent.data_type, StructType):
        return ColumnNotFoundError(
            f"{what} names {name!r}, which is not a top-level column",
            cause=f"It looks like a field inside the column {parent.name!r}",
            remedy=f"Name {parent.name!r}",
            column=name,
        )
    import difflib

    close = difflib.get_close_matches(str(name).lower(), [n.lower() for n in schema.names], n=1, cutoff=0.6)
    likely = schema.find(close[0]) if close else None
    hint = "" if likely is None else f"Did you mean {likely.name!r}? "
    return ColumnNotFoundError(
        f"{what} names the column {name!r}, which does not exist",
        remedy=f"{hint}The columns are {', '.join(schema.names)}",
        column=name,
    )
