"""Statements about tables as a whole: definition, versions, upkeep, description."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, cast

from delta_orch.delta_table import DeltaTable
from delta_orch.errors import ConflictError, InvalidRequestError, TableExistsError
from delta_orch.log.write.commit_options import CommitResult
from delta_orch.protocol.types import StructField
from delta_orch.statements.cursor import Cursor, quoted_path
from delta_orch.statements.describe import properties_of_definition
from delta_orch.statements.queries import Query, options_of_commit, parse_query, time_travel
from delta_orch.statements.rows import Statement
from delta_orch.statements.session import Session, TableName, table_name, table_or_path, unsupported
from delta_orch.writing.assignments import column_path

if TYPE_CHECKING:
    from delta_orch.verbs.alter.builder import Alteration
    from delta_orch.writing.target import WriteOptions

_COLUMN_STOPS = ("NOT", "NULL", "COMMENT", "DEFAULT", "GENERATED", "FIRST", "AFTER", ",", ")")


def optimize(cursor: Cursor) -> Statement:
    """OPTIMIZE t [FULL] [WHERE p] [ZORDER BY (columns)]."""
    cursor.expect("OPTIMIZE")
    name = table_or_path(cursor)
    further: dict[str, Any] = {"full": True} if cursor.take("FULL") else {}
    where = cursor.text_until("ZORDER") if cursor.take("WHERE") else None
    if cursor.take("ZORDER", "BY"):
        further["zorder_by"] = cursor.names() if cursor.at("(") else cursor.each(cursor.column)
    cursor.end()
    return lambda session: session.target(name).optimize(where, engine=session.choice, **further, **session.options)


def reorg(cursor: Cursor) -> Statement:
    """REORG TABLE t [WHERE p] APPLY (PURGE)."""
    cursor.expect("REORG", "TABLE")
    name = table_name(cursor)
    where = cursor.text_until("APPLY") if cursor.take("WHERE") else None
    cursor.expect("APPLY", "(")
    if cursor.at("UPGRADE"):
        raise unsupported("REORG … APPLY (UPGRADE UNIFORM …)", "Use alter() to set properties")
    if not cursor.take("PURGE"):
        raise unsupported("REORG … APPLY with anything but (PURGE)")
    cursor.expect(")")
    cursor.end()
    return lambda session: session.target(name).purge(where, engine=session.choice, **session.options)


def generate(cursor: Cursor) -> Statement:
    """GENERATE symlink_format_manifest FOR TABLE t."""
    cursor.expect("GENERATE")
    mode = cursor.name()
    cursor.expect("FOR", "TABLE")
    name = table_name(cursor)
    cursor.end()

    def run(session: Session) -> object:
        session.refuse_options("GENERATE")
        return session.target(name).generate(mode.lower())

    return run


def vacuum(cursor: Cursor) -> Statement:
    """VACUUM t [LITE | FULL] [RETAIN n HOURS] [DRY RUN], in any order."""
    cursor.expect("VACUUM")
    name = table_or_path(cursor)
    if cursor.at("USING"):
        raise unsupported("VACUUM USING INVENTORY")
    hours: float | None = None
    full: bool | None = None
    dry_run = False
    while cursor.token.kind != "end":
        if full is None and (cursor.at("LITE") or cursor.at("FULL")):
            full = cursor.take("FULL") or not cursor.take("LITE")
        elif hours is None and cursor.take("RETAIN"):
            hours = float(cursor.number())
            cursor.expect("HOURS")
        elif not dry_run and cursor.take("DRY", "RUN"):
            dry_run = True
        else:
            cursor.end()

    def run(session: Session) -> object:
        given = dict(session.options)
        is_dry = bool(given.pop("dry_run", False)) or dry_run
        if given:
            raise InvalidRequestError(f"VACUUM takes no {', '.join(given)}", remedy="Leave them out")
        return session.target(name).vacuum(hours, is_dry, full=full is not False)

    return run


def restore(cursor: Cursor) -> Statement:
    """RESTORE [TABLE] t TO VERSION AS OF n | TIMESTAMP AS OF 'time'."""
    cursor.expect("RESTORE")
    cursor.take("TABLE")
    name = table_name(cursor)
    cursor.take("TO")
    version, timestamp = time_travel(cursor)
    cursor.end()
    return lambda session: session.target(name).restore(version, timestamp, **session.options)


def repair(cursor: Cursor) -> Statement:
    """FSCK REPAIR TABLE t [DRY RUN]."""
    cursor.expect("FSCK", "REPAIR", "TABLE")
    name = table_name(cursor)
    dry: dict[str, Any] = {"dry_run": True} if cursor.take("DRY", "RUN") else {}
    cursor.end()
    return lambda session: session.target(name).repair(**{**session.options, **dry})


def create(cursor: Cursor, session: Session) -> Statement:
    """[CREATE] [OR] REPLACE TABLE [IF NOT EXISTS] t (columns) USING delta [parts] [AS query], or … SHALLOW | DEEP CLONE
    source."""
    must_exist = cursor.take("REPLACE")
    if not must_exist:
        cursor.expect("CREATE")
    replaces = must_exist or cursor.take("OR", "REPLACE")
    cursor.expect("TABLE")
    if_not_exists = not replaces and cursor.take("IF", "NOT", "EXISTS")
    name = table_name(cursor)
    if cursor.at("SHALLOW") or cursor.at("DEEP") or cursor.at("CLONE"):
        return _clone(cursor, name, replaces=replaces, must_exist=must_exist, if_not_exists=if_not_exists)
    like = table_name(cursor) if not replaces and cursor.take("LIKE") else None
    fields = _definitions(cursor) if like is None and cursor.at("(") else None
    definition: dict[str, Any] = {}
    clauses = _Clauses(cursor)
    query: Query | None = None
    is_delta = name.path is not None or like is not None
    while cursor.token.kind != "end":
        if clauses.take("USING"):
            if not cursor.take("DELTA"):
                raise unsupported(f"CREATE TABLE … USING {cursor.token.text[:60]}", "Write USING delta")
            is_delta = True
        elif clauses.take("PARTITIONED", "BY"):
            if fields is not None and cursor.tokens[cursor.index + 2].word not in (",", ")", "("):
                # As in Hive: columns with their types, behind the others.
                parts = _definitions(cursor)
                fields += parts
                definition["partition_by"] = [field.name for field in parts]
            else:
                definition["partition_by"] = cursor.names()
        elif clauses.take("CLUSTER", "BY"):
            definition["cluster_by"] = cursor.names()
        elif clauses.take("COMMENT"):
            definition["description"] = cursor.string()
        elif clauses.take("LOCATION"):
            path = cursor.string()
            name = TableName(path, path)
        elif clauses.take("TBLPROPERTIES"):
            definition["properties"], description = _properties_and_comment(cursor)
            definition |= {} if description is None else {"description": description}
        elif cursor.take("AS"):
            query = parse_query(cursor, session)
        else:
            cursor.refuse("is not part of the statement")
    if not is_delta:
        raise unsupported("CREATE TABLE without USING delta")
    if query is not None and fields is not None:
        raise unsupported("CREATE TABLE with both columns and a query")
    if like is not None and (query is not None or definition.keys() - {"properties"}):
        raise unsupported("CREATE TABLE … LIKE with a part of a definition but TBLPROPERTIES")
    if query is None and fields is None and like is None:
        cursor.refuse("( is missing")

    def make(session: Session, table: DeltaTable) -> object:
        if must_exist:
            table.version()
        if replaces and query is not None:
            options, engine = options_of_commit(query, session, table), session.engine()
            rows = query.relation(session, engine, defines_columns=True)
            return table.create_or_replace(data=rows, engine=engine, **definition, **options)
        if replaces:
            return table.create_or_replace(fields, **definition, **session.options)
        if table.exists():
            raise TableExistsError(f"There is a table at {table.uri}", remedy="Write IF NOT EXISTS, or drop it")
        if like is not None:
            return table.create(**_definition_like(session.target(like), definition), **session.options)
        if query is None:
            return table.create(fields, **definition, **session.options)
        from delta_orch.verbs.overwrite import overwrite

        engine = session.engine()
        options = cast("WriteOptions", {**definition, **session.options})
        # As of no table: of two that create it with rows, one does.
        rows = query.relation(session, engine, defines_columns=True)
        return overwrite(table.log, None, rows, None, "static", None, engine, options)

    if if_not_exists:
        return lambda session: _unless_there(session.target(name), partial(make, session))
    return lambda session: make(session, session.target(name))


def _definition_like(table: DeltaTable, definition: dict[str, Any]) -> dict[str, Any]:
    """What makes a table like another one."""
    snapshot = table.snapshot()
    clustering = snapshot.clustering_columns
    return {
        "schema": snapshot.schema,
        "partition_by": snapshot.partition_columns,
        "cluster_by": [quoted_path([*path]) for path in clustering] if clustering else None,
        "description": snapshot.metadata.description,
        "properties": {**properties_of_definition(snapshot), **definition.get("properties", {})},
    }


class _Clauses:
    """Parts of a definition in any order, each once."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._taken: set[tuple[str, ...]] = set()

    def take(self, *words: str) -> bool:
        """As `Cursor.take`. Raises InvalidRequestError where the part was there before."""
        if self._cursor.at(*words) and words in self._taken:
            self._cursor.refuse("is not part of the statement")
        if not self._cursor.take(*words):
            return False
        self._taken.add(words)
        return True


def _clone(cursor: Cursor, name: TableName, *, replaces: bool, must_exist: bool, if_not_exists: bool) -> Statement:
    shallow = cursor.take("SHALLOW") or not cursor.take("DEEP")
    cursor.expect("CLONE")
    source = table_name(cursor)
    version = timestamp = None
    if cursor.token.kind != "end" and not cursor.at("TBLPROPERTIES"):
        version, timestamp = time_travel(cursor)
    properties = _property_list(cursor) if cursor.take("TBLPROPERTIES") else None
    cursor.end()

    def make(session: Session, target: DeltaTable) -> CommitResult:
        if must_exist:
            target.version()
        stored = session.storage_options
        return session.target(source).clone(
            target.uri, shallow, version, timestamp, replaces, properties, storage_options=stored, **session.options
        )

    if if_not_exists:
        return lambda session: _unless_there(session.target(name), partial(make, session))
    return lambda session: make(session, session.target(name))


def _unless_there(table: DeltaTable, make: Callable[[DeltaTable], object]) -> object:
    """IF NOT EXISTS: a table that is there, or that another writer makes meanwhile, is left as it is."""
    if not table.exists():
        try:
            return make(table)
        except (ConflictError, TableExistsError):
            if not table.exists():
                raise
    there = table.snapshot()
    return CommitResult(there.version, skipped=True, timestamp_ms=there.timestamp_ms)


def _definitions(cursor: Cursor) -> list[StructField]:
    return cursor.listed(lambda: _definition(cursor))


def _definition(cursor: Cursor) -> StructField:
    from delta_orch.table.column_definitions import column, identity_column

    name = cursor.name()
    data_type = cursor.text_until(*_COLUMN_STOPS, angles=True)
    nullable, comment, default, generated = True, None, None, None
    identity: dict[str, Any] | None = None
    clauses = _Clauses(cursor)
    while not cursor.at(",") and not cursor.at(")"):
        if clauses.take("NOT", "NULL"):
            nullable = False
        elif clauses.take("COMMENT"):
            comment = cursor.string()
        elif clauses.take("DEFAULT"):
            default = cursor.text_until("NOT", "COMMENT", ",", ")")
        elif clauses.take("GENERATED"):
            always = cursor.take("ALWAYS")
            if not always:
                cursor.expect("BY", "DEFAULT")
            cursor.expect("AS")
            if cursor.take("IDENTITY"):
                identity = {"allow_explicit_insert": not always, **_identity_numbers(cursor)}
            elif always:
                generated = cursor.in_parentheses()
            else:
                cursor.refuse("IDENTITY is missing")
        else:
            cursor.refuse("is not part of the statement")
    if identity is not None:
        if data_type.upper() not in ("BIGINT", "LONG") or default is not None:
            raise InvalidRequestError(f"The identity column {name} must be a BIGINT without a default")
        return identity_column(name, comment=comment, **identity)
    return column(name, data_type, nullable=nullable, comment=comment, default=default, generated_as=generated)


def _identity_numbers(cursor: Cursor) -> dict[str, int]:
    found: dict[str, int] = {}
    if cursor.take("("):
        while not cursor.take(")"):
            key = "start" if cursor.take("START", "WITH") else "step"
            if key == "step":
                cursor.expect("INCREMENT", "BY")
            sign = -1 if cursor.take("-") else 1
            found[key] = sign * cursor.integer()
            cursor.take(",")
    return found


def _property_list(cursor: Cursor) -> dict[str, str]:
    found: dict[str, str] = {}

    def take_one() -> None:
        key = cursor.key()
        cursor.expect("=")
        value = cursor.string() if cursor.token.kind == "string" else cursor.text_until(",", ")").lower()
        if key in found:
            raise InvalidRequestError(f"The property {key[:200]!r} is given twice")
        found[key] = value

    cursor.listed(take_one)
    return found


def _properties_and_comment(cursor: Cursor) -> tuple[dict[str, str], str | None]:
    """Properties; `comment` is the table's description, not a property, as in Spark."""
    found = _property_list(cursor)
    for name, clause in (("location", "LOCATION"), ("provider", "USING")):
        if name in found:
            raise unsupported(f"A property {name!r}", f"Write {clause}, where the table is created")
    return found, found.pop("comment", None)


def convert(cursor: Cursor) -> Statement:
    """CONVERT TO DELTA parquet.`path` [NO STATISTICS] [PARTITIONED BY (column type, …)]."""
    cursor.expect("CONVERT", "TO", "DELTA", "PARQUET", ".")
    if cursor.token.kind != "quoted":
        cursor.refuse("a path in backticks is missing")
    path = cursor.name()
    if cursor.at("NO", "STATISTICS"):
        raise unsupported("CONVERT … NO STATISTICS", "Statistics come from the files' footers, which are read anyway")
    fields = _definitions(cursor) if cursor.take("PARTITIONED", "BY") else None
    cursor.end()

    def run(session: Session) -> object:
        return DeltaTable.convert(path, fields, storage_options=session.storage_options, **session.options)

    return run


def comment(cursor: Cursor) -> Statement:
    """COMMENT ON TABLE t IS 'text' | NULL."""
    cursor.expect("COMMENT", "ON", "TABLE")
    name = table_name(cursor)
    cursor.expect("IS")
    text = "" if cursor.take("NULL") else cursor.string()
    cursor.end()
    return lambda session: session.target(name).alter().set_description(text).commit(**session.options)


def alter(cursor: Cursor) -> Statement:
    """ALTER TABLE t …: properties, columns, constraints, features, clustering."""
    cursor.expect("ALTER", "TABLE")
    name = table_name(cursor)
    changes = _alterations(cursor)
    cursor.end()

    def run(session: Session) -> object:
        alteration = session.target(name).alter()
        for change in changes:
            alteration = change(alteration)
        return alteration.commit(engine=session.choice, **session.options)

    return run


_Change = Callable[["Alteration"], "Alteration"]


def _alterations(cursor: Cursor) -> list[_Change]:
    if cursor.take("SET", "TBLPROPERTIES"):
        properties, description = _properties_and_comment(cursor)
        changes: list[_Change] = [lambda a: a.set_properties(properties)] if properties else []
        return changes if description is None else [*changes, lambda a: a.set_description(description)]
    if cursor.take("UNSET", "TBLPROPERTIES"):
        if_exists = cursor.take("IF", "EXISTS")
        named = cursor.listed(cursor.key)
        keys = [key for key in named if key != "comment"]
        changes = [lambda a: a.unset_properties(*keys, if_exists=if_exists)] if keys else []
        return changes if keys == named else [*changes, lambda a: a.set_description("")]
    if cursor.take("ADD", "COLUMN") or cursor.take("ADD", "COLUMNS"):
        added = partial(_added_column, cursor)
        return cursor.listed(added) if cursor.at("(") else cursor.each(added)
    if cursor.take("ADD", "CONSTRAINT"):
        constraint = cursor.name()
        cursor.expect("CHECK")
        condition = cursor.in_parentheses()
        return [lambda a: a.add_constraint(constraint, condition)]
    if cursor.take("DROP", "CONSTRAINT"):
        is_optional = cursor.take("IF", "EXISTS")
        constraint = cursor.name()
        return [lambda a: a.drop_constraint(constraint, if_exists=is_optional)]
    if cursor.take("DROP", "FEATURE"):
        feature = cursor.name()
        truncate = cursor.take("TRUNCATE", "HISTORY")
        return [lambda a: a.drop_feature(feature, truncate_history=truncate)]
    if cursor.take("RENAME", "COLUMN"):
        column = cursor.column()
        cursor.expect("TO")
        new_name = cursor.name()
        return [lambda a: a.rename_column(column, new_name)]
    if cursor.take("DROP", "COLUMN") or cursor.take("DROP", "COLUMNS"):
        is_optional = cursor.take("IF", "EXISTS")
        columns = cursor.names() if cursor.at("(") else [cursor.column()]
        return [lambda a: a.drop_columns(*columns, if_exists=is_optional)]
    if cursor.take("CLUSTER", "BY"):
        clustering = [] if cursor.take("NONE") else cursor.names()
        return [lambda a: a.cluster_by(*clustering)]
    if cursor.take("ALTER") or cursor.take("CHANGE"):
        cursor.take("COLUMN")
        return [_column_change(cursor)]
    raise unsupported(f"ALTER TABLE … {cursor.token.text[:60]}")


def _added_column(cursor: Cursor) -> _Change:
    column = cursor.column()
    data_type = cursor.text_until(*_COLUMN_STOPS, angles=True)
    options: dict[str, Any] = {}
    while cursor.token.kind != "end" and not cursor.at(",") and not cursor.at(")"):
        if cursor.take("NOT", "NULL"):
            options["nullable"] = False
        elif cursor.take("COMMENT"):
            options["comment"] = cursor.string()
        elif place := _place(cursor):
            options |= place
        else:
            raise unsupported(f"ADD COLUMN … {cursor.token.text[:60]}")
    return lambda a: a.add_column(column, data_type, **options)


def _column_change(cursor: Cursor) -> _Change:
    column = cursor.column()
    is_named_again = cursor.token.text.strip("`").lower() == column_path(column)[-1].lower()
    if is_named_again and cursor.tokens[cursor.index + 1].kind == "word":
        return _redefined_column(cursor, column)
    if cursor.take("TYPE"):
        data_type = cursor.text_until(angles=True)
        return lambda a: a.change_type(column, data_type)
    if cursor.take("COMMENT"):
        comment = cursor.string()
        return lambda a: a.set_column_comment(column, comment)
    if cursor.take("SET", "NOT", "NULL"):
        return lambda a: a.set_not_null(column)
    if cursor.take("DROP", "NOT", "NULL"):
        return lambda a: a.drop_not_null(column)
    if cursor.take("SET", "DEFAULT"):
        default = cursor.text_until()
        return lambda a: a.set_default(column, default)
    if cursor.take("DROP", "DEFAULT"):
        return lambda a: a.drop_default(column)
    if cursor.take("SYNC", "IDENTITY"):
        return lambda a: a.sync_identity(column)
    if place := _place(cursor):
        return lambda a: a.move_column(column, **place)
    raise unsupported(f"ALTER COLUMN … {cursor.token.text[:60]}")


def _place(cursor: Cursor) -> dict[str, Any]:
    """`FIRST | AFTER other`, empty where neither comes next."""
    if cursor.take("FIRST"):
        return {"first": True}
    return {"after": cursor.name()} if cursor.take("AFTER") else {}


def _redefined_column(cursor: Cursor, column: str) -> _Change:
    """`CHANGE COLUMN name name type [COMMENT text] [FIRST | AFTER other]`."""
    cursor.name()
    data_type = cursor.text_until("COMMENT", "FIRST", "AFTER", angles=True)
    changes: list[_Change] = [lambda a: a.change_type(column, data_type)]
    if cursor.take("COMMENT"):
        comment = cursor.string()
        changes.append(lambda a: a.set_column_comment(column, comment))
    if place := _place(cursor):
        changes.append(lambda a: a.move_column(column, **place))
    return lambda alteration: reduce(lambda changed, change: change(changed), changes, alteration)
