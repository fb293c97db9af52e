"""Commands that look at a table: `snapshot`, `schema`, `files`, `history`, `fsck`, `txn list`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from delta_orch.cli import arguments as take
from delta_orch.cli import output as out
from delta_orch.cli.arguments import Commands, Target
from delta_orch.cli.output import text_of_bytes, text_of_time
from delta_orch.redaction import kept

if TYPE_CHECKING:
    from delta_orch.cli.output import Branch
    from delta_orch.delta_table import TableSnapshot
    from delta_orch.protocol.types import DataType, StructField, StructType
    from delta_orch.table.column_details import ColumnDetails
    from delta_orch.verbs.fsck import FsckReport

COMMANDS = Commands()

_SHOWN_PROBLEMS = 50
_FILE_COLUMNS = (
    "path", "partition_values", "size", "modification_time", "stats", "deletion_vector", "base_row_id",
    "default_row_commit_version", "tags",
)  # fmt: skip

FileRow = dict[str, Any]
"""A file as JSON knows it."""


@COMMANDS.add(*take.VERSION, take.flag("--files", "List the data files, too."))
def snapshot(at: Target, files: bool) -> None:
    """Show one version of a table: schema, protocol, properties, size."""
    state = at.snapshot()
    if at.json:
        out.print_json(describe_snapshot(state, with_files=files))
        return
    out.print_fields(state.store.uri, _summary(state))
    out.print_rows(
        ("column", "type", "nullable", ""),
        [
            (".".join(c.path), c.declared_type or c.data_type, "" if c.nullable else "NOT NULL", _column_notes(c))
            for c in state.columns
            if len(c.path) == 1 or _column_notes(c)
        ],
    )
    if files:
        rows = [(f["path"], text_of_bytes(f["size"]), f["partition_values"]) for f in list_files(state)]
        out.print_rows(("file", "size", "partition"), rows)


def describe_snapshot(state: TableSnapshot, *, with_files: bool) -> dict[str, object]:
    """A snapshot as JSON, names as in Python."""
    properties = state.properties
    described: dict[str, object] = {
        "uri": state.store.uri,
        **out.attributes(state, "version timestamp_ms"),
        "metadata": out.attributes(
            state.metadata, "id name description schema_string partition_columns configuration created_time"
        ),
        "protocol": {
            **out.attributes(state.protocol, "min_reader_version min_writer_version"),
            "reader_features": _sorted(state.protocol.reader_features),
            "writer_features": _sorted(state.protocol.writer_features),
        },
        "txns": dict(state.txns),
        **out.attributes(state, "domain_metadata features"),
        "columns": [describe_column(column) for column in state.columns],
        **out.attributes(state, "constraints clustering_columns"),
        "in_commit_timestamps": {
            "enabled": properties.enable_in_commit_timestamps,
            "enablement_version": properties.in_commit_timestamp_enablement_version,
            "enablement_timestamp_ms": properties.in_commit_timestamp_enablement_ms,
        },
        **out.attributes(state, "num_files size_bytes"),
    }
    if with_files:
        described["files"] = list_files(state)
    return described


def list_files(state: TableSnapshot) -> list[FileRow]:
    """The live files, by path; `stats` parsed, None where a file has none that are a JSON object."""
    table = state.files(["path", "partition_values", "size", "modification_time", "stats"]).sort_by("path")
    rows: list[FileRow] = table.to_pylist()
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


def describe_column(column: ColumnDetails) -> dict[str, object]:
    """A column as JSON knows it; what is said of few columns is left out for the others."""
    always = {"path": column.path, "type": str(column.data_type), "nullable": column.nullable}
    known = out.attributes(
        column,
        "comment declared_type collations generation_expression identity default invariant physical_name field_id "
        "type_changes",
    )
    return always | {name: value for name, value in known.items() if value not in (None, {}, ())}


def _sorted(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else sorted(names)


def _summary(state: TableSnapshot) -> dict[str, object]:
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


@COMMANDS.add(*take.VERSION)
def schema(at: Target) -> None:
    """Show a table's schema as a tree: types, nullability and the metadata of columns."""
    from delta_orch.protocol.schema import data_type_to_json

    state = at.snapshot()
    if at.json:
        shown = out.attributes(state, "version partition_columns")
        out.print_json({**shown, "schema": data_type_to_json(state.schema)})
        return
    out.print_tree((f"{state.store.uri} version {state.version}", _branches(state.schema, state.partition_columns)))


def _branches(struct: StructType, partition_columns: tuple[str, ...] = ()) -> list[Branch]:
    return [_field_branch(field, is_partition=field.name in partition_columns) for field in struct]


def _field_branch(field: StructField, *, is_partition: bool) -> Branch:
    label, children = _type_branch(field.name, field.data_type, field.nullable)
    notes = [_json_text(field.metadata)] if field.metadata else []
    return " ".join([label, *(["(partition column)"] if is_partition else []), *notes]), children


def _json_text(value: Mapping[str, object]) -> str:
    import orjson

    return orjson.dumps(dict(value)).decode()


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


@COMMANDS.add(*take.VERSION, take.WHERE, take.LIMIT)
def files(at: Target, where: str | None, limit: int | None) -> None:
    """List the data files of a table, by path, with their statistics; with --where those a scan would read."""
    state = at.snapshot()
    rows = describe_files(state, where, limit)
    if at.json:
        out.print_json({"version": state.version, "files": rows})
        return
    out.print_rows(
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
    out.print_line(f"{len(rows):,} files of version {state.version}, {text_of_bytes(sum(row['size'] for row in rows))}")


def describe_files(state: TableSnapshot, where: str | None, limit: int | None) -> list[FileRow]:
    """The files by path as JSON knows them. Partition values and statistics go by the names of the schema, also where
    the log has physical ones; statistics that are no JSON object are null."""
    predicate = state.scan(where=where).where
    table = state.files(_FILE_COLUMNS, predicate).sort_by("path")
    rows: list[FileRow] = table.slice(0, limit).to_pylist()
    names = _logical_names(state.schema)
    for row in rows:
        values = dict(row["partition_values"] or ())
        row["partition_values"] = {names[name][0] if name in names else name: v for name, v in values.items()}
        row["stats"] = _logical_statistics(row["stats"], names)
        row["tags"] = dict(row["tags"]) if row["tags"] is not None else None
    return rows


_Names: TypeAlias = "Mapping[str, tuple[str, _Names]]"
"""Physical name → logical name and the same for the fields inside."""


def _logical_names(struct: StructType) -> _Names:
    from delta_orch.protocol.types import StructType
    from delta_orch.table.column_mapping import physical_name

    inner = {f.name: _logical_names(f.data_type) for f in struct if isinstance(f.data_type, StructType)}
    return {physical_name(field): (field.name, inner.get(field.name, {})) for field in struct}


def parsed_statistics(text: str | None) -> dict[str, object] | None:
    """The statistics of a file as JSON knows them; None where they are no JSON object."""
    import orjson

    try:
        stats = orjson.loads(text) if text else None
    except orjson.JSONDecodeError:
        return None
    return stats if isinstance(stats, dict) else None


def _logical_statistics(text: str | None, names: _Names) -> dict[str, object] | None:
    stats = parsed_statistics(text)
    if stats is None:
        return None
    return {
        key: _renamed(value, names) if key in ("minValues", "maxValues", "nullCount") else value
        for key, value in stats.items()
    }


def _renamed(values: object, names: _Names) -> object:
    if not isinstance(values, dict):
        return values
    renamed = {}
    for name, value in values.items():
        logical, inner = names.get(name, (name, {}))
        renamed[logical] = _renamed(value, inner)
    return renamed


def _statistics_text(stats: Mapping[str, object]) -> str:
    lows, highs, nulls = (_leaves(stats.get(name)) for name in ("minValues", "maxValues", "nullCount"))
    parts = []
    for name in dict.fromkeys([*lows, *highs, *nulls]):
        bounds = f" {lows.get(name, '?')}…{highs.get(name, '?')}" if name in lows or name in highs else ""
        parts.append(f"{name}{bounds}" + (f" ({nulls[name]} null)" if nulls.get(name) else ""))
    return "; ".join(parts)


def _leaves(values: object, prefix: str = "") -> dict[str, object]:
    if not isinstance(values, dict):
        return {}
    found: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _leaves(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


@COMMANDS.add(take.LIMIT)
def history(at: Target, limit: int | None) -> None:
    """List the commits the log still holds, newest first."""
    from dataclasses import replace

    # What this package writes holds no secret; other writers' parameters may.
    entries = [
        replace(e, operation_parameters=kept(e.operation_parameters), user_metadata=kept(e.user_metadata))
        for e in at.table().history(limit)
    ]
    if at.json:
        names = (
            "version timestamp_ms file_time_ms in_commit_timestamp_ms operation operation_parameters operation_metrics "
            "user_metadata engine_info"
        )
        out.print_json([out.attributes(entry, names) for entry in entries])
        return
    out.print_rows(
        ("version", "time", "operation", "parameters", "metrics"),
        [
            (e.version, text_of_time(e.timestamp_ms), e.operation, e.operation_parameters, e.operation_metrics)
            for e in entries
        ],
    )


@COMMANDS.add(
    take.flag("--check", "Look up every data file, and verify every deletion vector."),
    take.flag(
        "--deep",
        "Also read every page of every data file, and hold rows against statistics, checkpoints against commits.",
    ),
    take.VERSION[0],
)
def fsck(at: Target, check: bool, deep: bool) -> None:
    """Check that the log is whole and consistent. Ends with 1 where the version cannot be read right."""
    table = at.table()
    with out.working("Checking"):
        report = table.fsck(at.version, check_files=check, deep=deep)
    if at.json:
        out.print_json({"ok": report.ok, **out.attributes(report, " ".join(report.__slots__))})
    else:
        _print_report(report)
    if not report.ok:
        raise SystemExit(1)


def _print_report(report: FsckReport) -> None:
    out.print_fields(
        report.uri,
        {
            "version": report.version,
            "oldest version": report.oldest_version,
            "commits": report.num_commits,
            "checkpoints": report.num_checkpoints,
            "log compactions": report.num_compactions,
            "checksum": f"agrees in {len(report.checksum_fields)} fields" if report.checksum_fields else None,
            "files": None if report.num_files is None else f"{report.num_files:,}",
            "size": None if report.size_bytes is None else text_of_bytes(report.size_bytes),
            "deletion vectors": report.num_deletion_vectors,
            "files looked up": "yes" if report.files_checked else "no",
            "rows read": "yes" if report.rows_checked else "no",
            "result": "in order" if report.ok else "damaged",
        },
    )
    if report.problems:
        shown = report.problems[:_SHOWN_PROBLEMS]
        for problem in shown:
            out.print_line(f"{problem.severity}[{problem.code}]: {problem.message}")
        if len(shown) < len(report.problems):
            out.print_line(f"… and {len(report.problems) - len(shown):,} more (all of them with --json)")


@COMMANDS.add(*take.VERSION, name="txn list")
def txn_list(at: Target) -> None:
    """List the application ids the table has recorded, with their last version."""
    state = at.snapshot()
    actions = [action for _, action in sorted(state.txn_actions.items())]
    if at.json:
        out.print_json([{"app_id": t.app_id, "version": t.version, "last_updated_ms": t.last_updated} for t in actions])
        return
    out.print_rows(
        ("application id", "version", "last updated"),
        [(t.app_id, t.version, text_of_time(t.last_updated)) for t in actions],
    )


@COMMANDS.add()
def units(at: Target) -> None:
    """List the units of work that pipeline steps have recorded: run, version and rows of each."""
    rows = at.table().units().to_pylist()
    if at.json:
        out.print_json([{**row, "timestamp": row["timestamp"] and row["timestamp"].isoformat()} for row in rows])
        return
    out.print_rows(
        ("unit", "run", "version", "rows"), [(row["unit"], row["run"], row["version"], row["rows"]) for row in rows]
    )
