"""Which columns a scan returns: columns of the table, and fields inside its structs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from delta_orch.engines.scan_plan import OutputColumn
from delta_orch.errors import ColumnNotFoundError, InvalidRequestError
from delta_orch.expressions.column_names import column_not_found, ensure_sequence_of_names, find_named_column
from delta_orch.expressions.resolve import find_column
from delta_orch.protocol.table_properties import parse_column_list
from delta_orch.protocol.types import StructField, StructType

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Projection:
    """What to return of each row.

    Attributes:
        output: In the order asked for; paths as the schema spells them.
    """

    output: tuple[OutputColumn, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What the columns that are returned are called."""
        return tuple(column.name for column in self.output)

    @property
    def is_nested(self) -> bool:
        """Whether any of them is a field inside a column."""
        return any(len(column.path) > 1 for column in self.output)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the table that are returned or that hold what is returned."""
        return tuple(dict.fromkeys(column.path[0] for column in self.output))


def resolve_projection(columns: Sequence[str], schema: StructType) -> Projection:
    """The columns a caller names, fitted to the schema.

    Each name is that of a column as it stands, dots, spaces and backticks included, or in backticks as SQL quotes it;
    else a path into structs as SQL writes it, ``a.b`` or ``a.`c.d` ``. All without regard to case. As with Spark's
    `select`, what such a path leads to becomes a column called by the last name of the path, and is null where a
    struct on the way is.

    Raises:
        ColumnNotFoundError: There is no such column or field; fields inside arrays and maps cannot be named.
        InvalidRequestError: Two columns would have one name.
    """
    ensure_sequence_of_names(columns, "columns")
    output: list[OutputColumn] = []
    for name in columns:
        path = _resolve_name(name, schema)
        for other in output:
            if other.path == path:
                raise InvalidRequestError(
                    f"columns names the column {name!r} twice", remedy="Name each column once", column=name
                )
            if other.name.lower() == path[-1].lower():
                raise InvalidRequestError(
                    f"columns names {'.'.join(other.path)} and {'.'.join(path)}: two columns would be called "
                    f"{path[-1]!r}",
                    remedy=f"Read {path[0]!r} whole, or one of them in a scan of its own",
                    column=name,
                )
        output.append(OutputColumn(path[-1], path))
    return Projection(tuple(output))


def _resolve_name(name: object, schema: StructType) -> Path:
    found = find_named_column(name, schema) if isinstance(name, str) else None
    if found is not None:
        return (found.name,)
    path = _parse_path(name) if isinstance(name, str) else ()
    if len(path) < 2:
        raise column_not_found(name, schema, "columns")
    spelled, data_type = find_column(path, schema)
    if data_type is None:
        raise ColumnNotFoundError(
            f"columns names {name!r}, a field inside an array or a map",
            cause="Only the fields of structs can be read one by one",
            remedy=f"Name {spelled[0]!r}",
            column=name,
        )
    return spelled


def _parse_path(text: str) -> Path:
    """The names between the dots. Empty where the text is not such a path."""
    try:
        paths = parse_column_list(text)
    except ValueError:
        return ()
    return paths[0] if len(paths) == 1 else ()


def pruned_schema(schema: StructType, paths: Iterable[Path]) -> StructType:
    """The schema with the structs that paths lead into cut down to what lies on a path; a column that no path names is
    left as it is, as is one that a path names itself."""
    below: dict[str, list[Path]] = {}
    for path in paths:
        below.setdefault(path[0], []).append(path[1:])
    return StructType(tuple(_pruned_field(field, below.get(field.name, [()])) for field in schema))


def _pruned_field(field: StructField, paths: Sequence[Path]) -> StructField:
    inner = field.data_type
    if not all(paths) or not isinstance(inner, StructType):
        return field
    below: dict[str, list[Path]] = {}
    for path in paths:
        below.setdefault(path[0], []).append(path[1:])
    kept = (_pruned_field(child, below[child.name]) for child in inner if child.name in below)
    return replace(field, data_type=StructType(tuple(kept)))
