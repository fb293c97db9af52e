"""Which columns a scan returns: of the table, inside its structs, and on request those of row tracking."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from delta_orch.engines.scan_plan import OutputColumn, RowTracking
from delta_orch.errors import ColumnNotFoundError, InvalidRequestError
from delta_orch.expressions.column_names import column_not_found, ensure_sequence_of_names, find_named_column
from delta_orch.expressions.resolve import find_column
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.protocol.table_properties import parse_column_list
from delta_orch.protocol.types import LONG, StructField, StructType

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Projection:
    """The columns that a scan returns.

    Attributes:
        output: In the requested order; paths as the schema spells them.
    """

    output: tuple[OutputColumn, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the returned columns."""
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
    column = find_named_column(name, schema) if isinstance(name, str) else None
    if column is not None:
        return (column.name,)
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


ROW_ID = "row_id"
ROW_COMMIT_VERSION = "row_commit_version"

_ROW_ID_COLUMN = "delta.rowTracking.materializedRowIdColumnName"
_ROW_COMMIT_VERSION_COLUMN = "delta.rowTracking.materializedRowCommitVersionColumnName"


def resolve_row_tracking(snapshot: Snapshot) -> RowTracking:
    """Where the columns of row tracking of this version come from.

    Raises:
        InvalidRequestError: Row tracking is not in force, so rows cannot be relied upon to have ids; or the table has
            a column of one of the two names.
    """
    _ensure_tracked(snapshot)
    for name in (ROW_ID, ROW_COMMIT_VERSION):
        if (field := snapshot.schema.find(name)) is not None:
            raise InvalidRequestError(
                f"The table has a column {field.name!r} of its own, which row tracking would hide",
                remedy="Read without row_tracking, or rename the column",
                column=field.name,
            )
    configuration = snapshot.metadata.configuration
    return RowTracking(
        ROW_ID, ROW_COMMIT_VERSION, configuration.get(_ROW_ID_COLUMN), configuration.get(_ROW_COMMIT_VERSION_COLUMN)
    )


def with_row_tracking_columns(schema: StructType, tracking: RowTracking) -> StructType:
    """The schema with the columns of row tracking at its end."""
    return StructType((*schema, *(StructField(name, LONG) for name in tracking.names)))


def _ensure_tracked(snapshot: Snapshot) -> None:
    problem = f"Version {snapshot.version} of the table has no row tracking"
    if not snapshot.configuration.supports("rowTracking"):
        raise InvalidRequestError(
            problem,
            cause="Its protocol does not list the table feature rowTracking",
            remedy="Read without row_tracking",
            version=snapshot.version,
        )
    if not snapshot.properties.enable_row_tracking:
        raise InvalidRequestError(
            problem,
            cause="It supports rowTracking, but delta.enableRowTracking is not true, so not every row has an id yet",
            remedy="Read without row_tracking, or a version after it was enabled",
            version=snapshot.version,
        )
