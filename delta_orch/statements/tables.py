"""Statements about tables as a whole: definition, versions, upkeep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from delta_orch.delta_table import DeltaTable
from delta_orch.errors import ConflictError, InvalidRequestError, TableExistsError
from delta_orch.log.write.commit_options import CommitResult
from delta_orch.protocol.types import StructField
from delta_orch.statements.cursor import Arguments, Cursor, TableName
from delta_orch.statements.queries import Query, options_of_commit, parse_query
from delta_orch.statements.session import Session, Statement, unsupported
from delta_orch.verbs.overwrite import overwrite

if TYPE_CHECKING:
    from delta_orch.verbs.alter.builder import Alteration
    from delta_orch.writing.target import WriteOptions


def calls(method: str, *, with_engine: bool = False) -> Callable[..., object]:
    """A statement that calls one method of its table, with the arguments that the text states."""

    def call(session: Session, table: TableName, **arguments: object) -> object:
        engine = {"engine": session.choice} if with_engine else {}
        stated = {name: value for name, value in arguments.items() if value is not None and value is not False}
        return getattr(session.target(table), method)(**engine, **{**session.options, **stated})

    return call


def vacuum(session: Session, table: TableName, lite: bool, full: bool, hours: float | None, dry_run: bool) -> object:
    """VACUUM."""
    options = dict(session.options)
    is_dry = bool(options.pop("dry_run", False)) or dry_run
    if options:
        raise InvalidRequestError(f"VACUUM takes no {', '.join(options)}", remedy="Leave them out")
    if lite and full:
        raise InvalidRequestError("VACUUM takes LITE or FULL, not both")
    return session.target(table).vacuum(hours, is_dry, full=not lite)


def restore(session: Session, table: TableName, version: tuple[int | None, str | None]) -> object:
    """RESTORE."""
    return session.target(table).restore(*version, **session.options)


def convert(session: Session, path: str, fields: list[StructField] | None) -> object:
    """CONVERT TO DELTA parquet.`path`."""
    return DeltaTable.convert(path, fields, storage_options=session.storage_options, **session.options)


def describe_table(session: Session, table: TableName, text: str) -> object:
    """COMMENT ON TABLE."""
    return session.target(table).alter().set_description(text).commit(**session.options)


# Definitions


def create(cursor: Cursor, session: Session) -> Statement:
    """[CREATE [OR]] REPLACE | CREATE TABLE [IF NOT EXISTS] t (columns) | CLONE source | AS query."""
    begin = cursor.read(
        "[creates: CREATE] [either: OR] [replaces: REPLACE] TABLE [if_absent: IF NOT EXISTS] {table name}"
    )
    replaces, must_exist = begin["replaces"], not begin["creates"]
    if (begin["either"] and not replaces) or (must_exist and not replaces) or (replaces and begin["if_absent"]):
        cursor.refuse("CREATE, CREATE OR REPLACE or REPLACE TABLE is missing")
    name: TableName = begin["name"]
    make: Callable[[Session, DeltaTable], object]
    if any(map(cursor.at, ("SHALLOW", "DEEP", "CLONE"))):
        clone = cursor.read("[SHALLOW] [deep: DEEP] CLONE {table source} {version_or_none version} "
                            "[TBLPROPERTIES {properties properties}]")  # fmt: skip
        make = partial(_clone, clone, replaces)
    else:
        fields = cursor.definitions() if cursor.at("(") else None
        definition = cursor.clauses(
            "USING {name provider}",
            "PARTITIONED BY {columns partition_by}",
            "CLUSTER BY {columns cluster_by}",
            "COMMENT {string description}",
            "LOCATION {string location}",
            "TBLPROPERTIES {properties properties}",
            stops=("AS",),
        )
        provider, location = definition.pop("provider"), definition.pop("location")
        if (provider or ("" if name.path is None else "delta")).lower() != "delta":
            raise unsupported("CREATE TABLE without USING delta")
        name = name if location is None else TableName(location, location)
        if definition["properties"]:
            definition["properties"], comment = _properties_and_comment(definition["properties"])
            definition["description"] = definition["description"] if comment is None else comment
        definition = {part: value for part, value in definition.items() if value is not None}
        if cursor.take("AS"):
            if fields is not None:
                raise unsupported("CREATE TABLE with both columns and a query")
            make = partial(_create_as, parse_query(cursor, session), definition, replaces)
        elif fields is None:
            cursor.refuse("( is missing")
        else:
            make = partial(_create, fields, definition, replaces)
    cursor.end()

    def run(session: Session) -> object:
        table = session.target(name)
        if must_exist:
            table.version()
        return _unless_there(table, partial(make, session)) if begin["if_absent"] else make(session, table)

    return run


def _create(
    fields: list[StructField], definition: Arguments, replaces: bool, session: Session, table: DeltaTable
) -> object:
    if replaces:
        return table.create_or_replace(fields, **definition, **session.options)
    _ensure_absent(table)
    return table.create(fields, **definition, **session.options)


def _create_as(query: Query, definition: Arguments, replaces: bool, session: Session, table: DeltaTable) -> object:
    engine = session.engine()
    if replaces:
        options = options_of_commit(query, session, table)
        rows = query.relation(session, engine, defines_columns=True)
        return table.create_or_replace(data=rows, engine=engine, **definition, **options)
    _ensure_absent(table)
    rows = query.relation(session, engine, defines_columns=True)
    # The commit expects no table, so that one of two concurrent writers creates it.
    options = cast("WriteOptions", {**definition, **session.options})
    return overwrite(table.log, None, rows, None, "static", None, engine, options)


def _ensure_absent(table: DeltaTable) -> None:
    if table.exists():
        raise TableExistsError(f"There is a table at {table.uri}", remedy="Write IF NOT EXISTS, or drop it")


def _clone(clone: Arguments, replaces: bool, session: Session, target: DeltaTable) -> CommitResult:
    is_shallow = not clone["deep"]
    version, timestamp = clone["version"]
    return session.target(clone["source"]).clone(
        target.uri,
        is_shallow,
        version,
        timestamp,
        replaces,
        clone["properties"],
        storage_options=session.storage_options,
        **session.options,
    )


def _unless_there(table: DeltaTable, make: Callable[[DeltaTable], object]) -> object:
    """IF NOT EXISTS: leave a table that exists, or that another writer creates meanwhile, as it is."""
    if not table.exists():
        try:
            return make(table)
        except (ConflictError, TableExistsError):
            if not table.exists():
                raise
    there = table.snapshot()
    return CommitResult(there.version, skipped=True, timestamp_ms=there.timestamp_ms)


def _properties_and_comment(properties: dict[str, str]) -> tuple[dict[str, str], str | None]:
    """Properties; `comment` is the table's description, not a property, as in Spark."""
    for name, clause in (("location", "LOCATION"), ("provider", "USING")):
        if name in properties:
            raise unsupported(f"A property {name!r}", f"Write {clause}, where the table is created")
    return {key: value for key, value in properties.items() if key != "comment"}, properties.get("comment")


# ALTER TABLE


def alter(change: Callable[..., Alteration], session: Session, table: TableName, **arguments: object) -> object:
    """ALTER TABLE: `change` is one of `ALTERATIONS`."""
    alteration = change(session.target(table).alter(), **arguments)
    return alteration.commit(engine=session.choice, **session.options)


def _set_properties(alteration: Alteration, properties: dict[str, str]) -> Alteration:
    properties, comment = _properties_and_comment(properties)
    alteration = alteration.set_properties(properties) if properties else alteration
    return alteration if comment is None else alteration.set_description(comment)


def _unset_properties(alteration: Alteration, if_exists: bool, keys: list[str]) -> Alteration:
    others = [key for key in keys if key != "comment"]
    alteration = alteration.unset_properties(*others, if_exists=if_exists) if others else alteration
    return alteration if others == keys else alteration.set_description("")


def _add_columns(alteration: Alteration, columns: list[tuple[str, str, Arguments]]) -> Alteration:
    for name, data_type, options in columns:
        alteration = alteration.add_column(name, data_type, **options)
    return alteration


def _method(name: str, **fixed: object) -> Callable[..., Alteration]:
    """A method of `Alteration`. Its arguments have the names of the pattern's arguments."""

    def change(alteration: Alteration, columns: Sequence[str] = (), **arguments: object) -> Alteration:
        answer: Alteration = getattr(alteration, name)(*columns, **arguments, **fixed)
        return answer

    return change


_COLUMN = "ALTER|CHANGE [COLUMN] {column path}"
ALTERATIONS: dict[str, Callable[..., Alteration]] = {
    "SET TBLPROPERTIES {properties properties}": _set_properties,
    "UNSET TBLPROPERTIES [if_exists: IF EXISTS] {keys keys}": _unset_properties,
    "ADD COLUMN|COLUMNS {additions columns}": _add_columns,
    "DROP COLUMN|COLUMNS [if_exists: IF EXISTS] {columns columns}": _method("drop_columns"),
    "RENAME COLUMN {column path} TO {name new_name}": _method("rename_column"),
    "ADD CONSTRAINT {name name} CHECK ( {text expression} )": _method("add_constraint"),
    "DROP CONSTRAINT [if_exists: IF EXISTS] {name name}": _method("drop_constraint"),
    "DROP FEATURE {name name} [truncate_history: TRUNCATE HISTORY]": _method("drop_feature"),
    "CLUSTER BY NONE": _method("cluster_by"),
    "CLUSTER BY {columns columns}": _method("cluster_by"),
    f"{_COLUMN} TYPE {{text data_type}}": _method("change_type"),
    f"{_COLUMN} COMMENT {{string comment}}": _method("set_column_comment"),
    f"{_COLUMN} SET NOT NULL": _method("set_not_null"),
    f"{_COLUMN} DROP NOT NULL": _method("drop_not_null"),
    f"{_COLUMN} SET DEFAULT {{text expression}}": _method("set_default"),
    f"{_COLUMN} DROP DEFAULT": _method("drop_default"),
    f"{_COLUMN} SYNC IDENTITY": _method("sync_identity"),
    f"{_COLUMN} FIRST": _method("move_column", first=True),
    f"{_COLUMN} AFTER {{name after}}": _method("move_column"),
}
"""The changes after ALTER TABLE t."""
