"""Commands that look at a table: `snapshot`, `history`, `txn list`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from delta_orch.cli.arguments import AsOf, Json, StorageOption, Uri, Version, open_snapshot, open_table
from delta_orch.cli.describe_commands import parsed_statistics
from delta_orch.cli.output import print_fields, print_json, print_rows, text_of_bytes, text_of_time

if TYPE_CHECKING:
    from delta_orch.delta_table import TableSnapshot
    from delta_orch.table.column_details import ColumnDetails


def snapshot(
    uri: Uri,
    version: Version = None,
    timestamp: AsOf = None,
    files: Annotated[bool, typer.Option("--files", help="List the data files, too.")] = False,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """Show one version of a table: schema, protocol, properties, size."""
    state = open_snapshot(uri, storage_option, version, timestamp)
    if json:
        print_json(describe_snapshot(state, with_files=files))
        return
    print_fields(state.store.uri, _summary(state))
    print_rows(
        ("column", "type", "nullable", ""),
        [
            (".".join(c.path), c.declared_type or c.data_type, "" if c.nullable else "NOT NULL", _column_notes(c))
            for c in state.columns
            if len(c.path) == 1 or _column_notes(c)
        ],
    )
    if files:
        rows = list_files(state)
        print_rows(
            ("file", "size", "partition"), [(f["path"], text_of_bytes(f["size"]), f["partition_values"]) for f in rows]
        )


def describe_snapshot(state: TableSnapshot, *, with_files: bool) -> dict[str, Any]:
    """A snapshot as JSON, names as in Python."""
    metadata, protocol, properties = state.metadata, state.protocol, state.properties
    described: dict[str, Any] = {
        "uri": state.store.uri,
        "version": state.version,
        "timestamp_ms": state.timestamp_ms,
        "metadata": {
            "id": metadata.id,
            "name": metadata.name,
            "description": metadata.description,
            "schema_string": metadata.schema_string,
            "partition_columns": list(metadata.partition_columns),
            "configuration": dict(metadata.configuration),
            "created_time": metadata.created_time,
        },
        "protocol": {
            "min_reader_version": protocol.min_reader_version,
            "min_writer_version": protocol.min_writer_version,
            "reader_features": _sorted(protocol.reader_features),
            "writer_features": _sorted(protocol.writer_features),
        },
        "txns": dict(state.txns),
        "domain_metadata": dict(state.domain_metadata),
        "features": sorted(state.features),
        "columns": [describe_column(column) for column in state.columns],
        "constraints": dict(state.constraints),
        "clustering_columns": _paths(state.clustering_columns),
        "in_commit_timestamps": {
            "enabled": properties.enable_in_commit_timestamps,
            "enablement_version": properties.in_commit_timestamp_enablement_version,
            "enablement_timestamp_ms": properties.in_commit_timestamp_enablement_ms,
        },
        "num_files": state.num_files,
        "size_bytes": state.size_bytes,
    }
    if with_files:
        described["files"] = list_files(state)
    return described


def list_files(state: TableSnapshot) -> list[dict[str, Any]]:
    """The live files, by path; `stats` parsed, None where a file has none that are a JSON object."""
    table = state.files(["path", "partition_values", "size", "modification_time", "stats"]).sort_by("path")
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        row["partition_values"] = dict(row["partition_values"] or ())
        row["stats"] = parsed_statistics(row["stats"])
    return rows


def _column_notes(column: ColumnDetails) -> str:
    """What people want to know of a column beyond its type."""
    notes = []
    if column.generation_expression is not None:
        notes.append(f"GENERATED ALWAYS AS ({column.generation_expression})")
    if (identity := column.identity) is not None:
        kind = "BY DEFAULT" if identity.allow_explicit_insert else "ALWAYS"
        notes.append(f"GENERATED {kind} AS IDENTITY (START WITH {identity.start} INCREMENT BY {identity.step})")
    if column.default is not None:
        notes.append(f"DEFAULT {column.default}")
    if column.invariant is not None:
        notes.append(f"CHECK ({column.invariant})")
    notes += [f"COLLATE {collation} ({place})" for place, collation in column.collations.items()]
    notes += [f"was {change.from_type}" for change in column.type_changes]
    return "; ".join([*notes, *([column.comment] if column.comment else [])])


def describe_column(column: ColumnDetails) -> dict[str, Any]:
    """A column as JSON knows it; what is said of few columns is left out for the others."""
    described: dict[str, Any] = {
        "path": list(column.path),
        "type": str(column.data_type),
        "nullable": column.nullable,
        "comment": column.comment,
        "declared_type": column.declared_type,
        "collations": dict(column.collations),
        "generation_expression": column.generation_expression,
        "identity": None if column.identity is None else asdict(column.identity),
        "default": column.default,
        "invariant": column.invariant,
        "physical_name": column.physical_name,
        "field_id": column.field_id,
        "type_changes": [asdict(change) for change in column.type_changes],
    }
    always = ("path", "type", "nullable")
    return {name: value for name, value in described.items() if name in always or value not in (None, {}, [])}


def _paths(paths: tuple[tuple[str, ...], ...] | None) -> list[list[str]] | None:
    return None if paths is None else [list(path) for path in paths]


def _sorted(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else sorted(names)


def _summary(state: TableSnapshot) -> dict[str, Any]:
    metadata, protocol = state.metadata, state.protocol
    features = sorted({*(protocol.reader_features or ()), *(protocol.writer_features or ())})
    return {
        "version": state.version,
        "time": text_of_time(state.timestamp_ms),
        "name": metadata.name,
        "description": metadata.description,
        "id": metadata.id,
        "files": f"{state.num_files:,}",
        "size": text_of_bytes(state.size_bytes),
        "partitioned by": list(metadata.partition_columns),
        "protocol": f"reader {protocol.min_reader_version}, writer {protocol.min_writer_version}",
        "table features": features,
        "properties": dict(metadata.configuration),
        "constraints": dict(state.constraints),
        "clustered by": [".".join(path) for path in state.clustering_columns or ()],
        "metadata domains": sorted(state.domain_metadata),
        "transaction ids": len(state.txns) or None,
    }


def history(
    uri: Uri,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", metavar="N", min=0, help="Only the newest N commits.")
    ] = None,
    storage_option: StorageOption = None,
    json: Json = False,
) -> None:
    """List the commits the log still holds, newest first."""
    entries = open_table(uri, storage_option).history(limit)
    if json:
        print_json(
            [
                {
                    "version": e.version,
                    "timestamp_ms": e.timestamp_ms,
                    "file_time_ms": e.file_time_ms,
                    "in_commit_timestamp_ms": e.in_commit_timestamp_ms,
                    "operation": e.operation,
                    "operation_parameters": e.operation_parameters,
                    "operation_metrics": e.operation_metrics,
                    "user_metadata": e.user_metadata,
                    "engine_info": e.engine_info,
                }
                for e in entries
            ]
        )
        return
    print_rows(
        ("version", "time", "operation", "parameters", "metrics"),
        [
            (e.version, text_of_time(e.timestamp_ms), e.operation, e.operation_parameters, e.operation_metrics)
            for e in entries
        ],
    )


def txn_list(
    uri: Uri, version: Version = None, timestamp: AsOf = None, storage_option: StorageOption = None, json: Json = False
) -> None:
    """List the application ids the table has recorded, with their last version."""
    state = open_snapshot(uri, storage_option, version, timestamp)
    actions = [action for _, action in sorted(state.txn_actions.items())]
    if json:
        print_json([{"app_id": t.app_id, "version": t.version, "last_updated_ms": t.last_updated} for t in actions])
        return
    print_rows(
        ("application id", "version", "last updated"),
        [(t.app_id, t.version, text_of_time(t.last_updated)) for t in actions],
    )
