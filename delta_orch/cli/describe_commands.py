"""Commands that take a table apart: `schema` as a tree, `files` with their statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from delta_orch.cli.arguments import AsOf, Json, StorageOption, Uri, Version, Where, open_snapshot
from delta_orch.cli.output import print_json, print_line, print_rows, print_tree, text_of_bytes, text_of_time

if TYPE_CHECKING:
    from delta_orch.cli.output import Branch
    from delta_orch.delta_table import TableSnapshot
    from delta_orch.protocol.types import DataType, StructField, StructType

_FILE_COLUMNS = (
    "path", "partition_values", "size", "modification_time", "stats", "deletion_vector", "base_row_id",
    "default_row_commit_version", "tags",
)  # fmt: skip


def schema(
    uri: Uri,
    version: Version = None,
    timestamp: AsOf = None,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Show a table's schema as a tree: types, nullability and the metadata of columns."""
    from delta_orch.protocol.schema import data_type_to_json

    state = open_snapshot(uri, storage_option, version, timestamp)
    if json:
        print_json(
            {
                "version": state.version,
                "partition_columns": list(state.partition_columns),
                "schema": data_type_to_json(state.schema),
            }
        )
        return
    print_tree((f"{state.store.uri} version {state.version}", _branches(state.schema, state.partition_columns)))


def _branches(struct: StructType, partition_columns: tuple[str, ...] = ()) -> list[Branch]:
    return [_field_branch(field, is_partition=field.name in partition_columns) for field in struct]


def _field_branch(field: StructField, *, is_partition: bool) -> Branch:
    label, children = _type_branch(field.name, field.data_type, field.nullable)
    notes = [orjson.dumps(dict(field.metadata)).decode()] if field.metadata else []
    return " ".join([label, *(["(partition column)"] if is_partition else []), *notes]), children


def _type_branch(name: str, data_type: DataType, nullable: bool) -> Branch:
    from delta_orch.protocol.types import ArrayType, MapType, StructType

    suffix = "" if nullable else " NOT NULL"
    match data_type:
        case StructType():
            return f"{name}: struct{suffix}", _branches(data_type)
        case ArrayType(element_type, contains_null):
            return f"{name}: array{suffix}", [_type_branch("element", element_type, contains_null)]
        case MapType(key_type, value_type, value_contains_null):
            key, value = _type_branch("key", key_type, False), _type_branch("value", value_type, value_contains_null)
            return f"{name}: map{suffix}", [key, value]
    return f"{name}: {data_type}{suffix}", []


def files(
    uri: Uri,
    version: Version = None,
    timestamp: AsOf = None,
    where: Where = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", metavar="N", min=0, help="Only the first N.")] = None,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """List the data files of a table, by path, with their statistics; with --where those a scan would read."""
    state = open_snapshot(uri, storage_option, version, timestamp)
    rows = describe_files(state, where, limit)
    if json:
        print_json({"version": state.version, "files": rows})
        return
    print_rows(
        ("file", "size", "rows", "deleted", "modified", "partition", "statistics"),
        [
            (
                row["path"],
                text_of_bytes(row["size"]),
                (row["stats"] or {}).get("numRecords"),
                (row["deletion_vector"] or {}).get("cardinality"),
                text_of_time(row["modification_time"]),
                row["partition_values"],
                _statistics_text(row["stats"] or {}),
            )
            for row in rows
        ],
    )
    print_line(f"{len(rows):,} files of version {state.version}, {text_of_bytes(sum(row['size'] for row in rows))}")


def describe_files(state: TableSnapshot, where: str | None, limit: int | None) -> list[dict[str, Any]]:
    """The files by path as JSON knows them. Partition values and statistics go by the names of the schema, also where
    the log has physical ones; statistics that are no JSON object are null."""
    predicate = state.scan(where=where).where
    table = state.files(_FILE_COLUMNS, predicate).sort_by("path")
    rows: list[dict[str, Any]] = table.slice(0, limit).to_pylist()
    names = _logical_names(state.schema)
    for row in rows:
        values = dict(row["partition_values"] or ())
        row["partition_values"] = {names[name][0] if name in names else name: v for name, v in values.items()}
        row["stats"] = _logical_statistics(row["stats"], names)
        row["tags"] = dict(row["tags"]) if row["tags"] is not None else None
    return rows


_Names = Mapping[str, tuple[str, Any]]
"""Physical name → logical name and the same for the fields inside."""


def _logical_names(struct: StructType) -> _Names:
    from delta_orch.protocol.types import StructType
    from delta_orch.table.column_mapping import physical_name

    return {
        physical_name(field): (
            field.name,
            _logical_names(field.data_type) if isinstance(field.data_type, StructType) else {},
        )
        for field in struct
    }


def parsed_statistics(text: str | None) -> dict[str, Any] | None:
    """The statistics of a file as JSON knows them; None where they are no JSON object."""
    try:
        stats = orjson.loads(text) if text else None
    except orjson.JSONDecodeError:
        return None
    return stats if isinstance(stats, dict) else None


def _logical_statistics(text: str | None, names: _Names) -> dict[str, Any] | None:
    stats = parsed_statistics(text)
    if stats is None:
        return None
    return {
        key: _renamed(value, names) if key in ("minValues", "maxValues", "nullCount") else value
        for key, value in stats.items()
    }


def _renamed(values: Any, names: _Names) -> Any:
    if not isinstance(values, dict):
        return values
    renamed = {}
    for name, value in values.items():
        logical, inner = names.get(name, (name, {}))
        renamed[logical] = _renamed(value, inner)
    return renamed


def _statistics_text(stats: Mapping[str, Any]) -> str:
    lows, highs, nulls = (_leaves(stats.get(name)) for name in ("minValues", "maxValues", "nullCount"))
    parts = []
    for name in dict.fromkeys([*lows, *highs, *nulls]):
        bounds = f" {lows.get(name, '?')}…{highs.get(name, '?')}" if name in lows or name in highs else ""
        parts.append(f"{name}{bounds}" + (f" ({nulls[name]} null)" if nulls.get(name) else ""))
    return "; ".join(parts)


def _leaves(values: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(values, dict):
        return {}
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _leaves(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found
