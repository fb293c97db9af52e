"""Queries. SELECT is the engine's own language; tables, versions and changes in it become named relations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from delta_orch.delta_table import DeltaTable
from delta_orch.engines.base import Engine, Relation
from delta_orch.errors import InvalidRequestError
from delta_orch.expressions.parse import ensure_no_column_in_double_quotes
from delta_orch.expressions.tokens import Token
from delta_orch.log.write.commit_options import CommitOptions, EveryRow
from delta_orch.statements.cursor import Cursor, TableName
from delta_orch.statements.session import Session, unsupported
from delta_orch.storage.external_paths import is_one_table
from delta_orch.table.column_definitions import ensure_none_stated

_AFTER_FROM = {"WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "OFFSET", "UNION", "ON", "SELECT", "EXCEPT", "INTERSECT",
               "WINDOW", "QUALIFY"}  # fmt: skip
_ALIAS_NOT = {*_AFTER_FROM, "AS", "JOIN", "LEFT", "RIGHT", "FULL", "INNER", "CROSS", "SEMI", "ANTI", "USING", "NATURAL",
              "OUTER", "LATERAL", "SORT", "CLUSTER", "DISTRIBUTE", "PIVOT", "UNPIVOT", "TABLESAMPLE", "ASOF",
              "POSITIONAL", "SAMPLE"}  # fmt: skip

BEGIN_QUERY = ("SELECT", "WITH", "(", "VALUES", "TABLE", "FROM")
_CHANGES = "TABLE_CHANGES"


@dataclass(frozen=True, slots=True)
class Source:
    """A table in a query, at a version or a time, or its changes between two versions or times."""

    table: TableName
    version: int | None = None
    timestamp: str | None = None
    changes: tuple[int | str, int | str | None] | None = None

    @property
    def label(self) -> str:
        """The name in messages."""
        if self.changes is not None:
            return f"changes of {self.table.name}"
        if self.version is not None:
            return f"{self.table.name}@v{self.version}"
        return self.table.name if self.timestamp is None else f"{self.table.name}@{self.timestamp}"

    @property
    def sources(self) -> Collection[Source]:
        """The tables that are read: this one."""
        return (self,)

    def is_newest(self, session: Session, table: DeltaTable) -> bool:
        """Whether this is the newest version of a table, or its changes up to the newest version."""
        value = session.value(self.table)
        is_pinned = self.version is not None or self.timestamp is not None
        if self.changes is not None:
            is_pinned = self.changes[1] is not None
        return not is_pinned and isinstance(value, DeltaTable) and is_one_table(value.uri, table.uri)

    def value(self, session: Session) -> object:
        """The rows that engines read. Raises InvalidRequestError: The name is unknown, or its rows have no versions."""
        value = session.value(self.table)
        if isinstance(value, DeltaTable):
            if self.changes is None:
                return value.snapshot(self.version, self.timestamp)
            limits = zip(("starting", "ending"), self.changes, strict=True)
            bounds = {
                f"{limit}_{'timestamp' if isinstance(bound, str) else 'version'}": bound
                for limit, bound in limits
                if bound is not None
            }
            return value.changes(**bounds)  # type: ignore[arg-type]
        if self.version is not None or self.timestamp is not None or self.changes is not None:
            raise InvalidRequestError(f"{self.table.name[:200]!r} has no versions: it is a {type(value).__name__}")
        return value


@dataclass(frozen=True, slots=True)
class Query:
    """A query whose tables have been replaced by labels.

    Attributes:
        text: The query for the engine.
        tables: The tables and versions by their labels in the text.
    """

    text: str
    tables: dict[str, Source]

    @property
    def sources(self) -> Collection[Source]:
        """The tables that the query reads."""
        return self.tables.values()

    def rows(self, session: Session) -> object:
        """The result as `delta_orch.sql` returns it. Raises as the engine's `select`, and for a name
        that is unknown."""
        engine = session.engine()
        return engine.select(self.text, self._relations(session, engine))

    def relation(
        self, session: Session, engine: Engine, *, named: bool = True, defines_columns: bool = False
    ) -> Relation:
        """The result as rows to write; `named` as of `Engine.sql`.

        Args:
            defines_columns: Rows that state definitions are refused: columns of a query have none.

        Raises as the engine's `sql`, and for a name that is unknown.
        """
        relations = self._relations(session, engine)
        if defines_columns:
            for relation in relations.values():
                ensure_none_stated(engine.schema(relation))
        return engine.sql(self.text, relations, named=named)

    def _relations(self, session: Session, engine: Engine) -> dict[str, Relation]:
        values = {name: source.value(session) for name, source in self.tables.items()}
        relations = {name: session.relation(engine, value) for name, value in values.items()}
        if engine.name == "spark":
            for relation in relations.values():
                ensure_no_column_in_double_quotes(self.text, engine.schema(relation))
        return relations


def options_of_commit(
    rows: Query | Source, session: Session, table: DeltaTable, *, appends: bool = False
) -> CommitOptions:
    """The session's options for a commit of `rows` to `table`. Call it before the rows are read.

    If the rows come from that table, the options name its version, so that a commit in between is a conflict. For a
    statement that `appends`, the isolation level of the table decides whether blind appends conflict.
    """
    options: CommitOptions = {**session.options}
    reads_itself = any(source.is_newest(session, table) for source in rows.sources)
    if reads_itself and session.runs_again:
        raise InvalidRequestError(
            f"The statement reads {table.uri}, which it changes",
            cause="It would count twice where the orchestrator runs it again",
            remedy="Read a table that it does not change, or a version: t VERSION AS OF n",
        )
    if "read_version" not in options and reads_itself:
        if appends:
            options.setdefault("isolation_level", table.snapshot().configuration.properties.isolation_level)
        options["read_version"] = EveryRow(table.version())
    return options


def parse_query(cursor: Cursor, session: Session) -> Query:
    """The query from here to the end of the statement.

    The engine reads its words. Only names of tables are replaced: after FROM, JOIN and a comma.
    """
    of_duckdb = session.engine().name == "local"
    cursor.go_on(of_duckdb=of_duckdb)
    if cursor.token.word not in BEGIN_QUERY:
        cursor.refuse("SELECT is missing")
    named_within = _with_names(cursor)
    # The engine prefers a name that WITH defines to the name of a relation.
    named = named_within if cursor.at("WITH") else frozenset[str]()
    for name in named & session.table_names:
        raise unsupported(
            f"WITH that calls a query {name[:100]!r}, as a table is called,", "Give the query another name"
        )
    pieces: list[str] = []
    tables: dict[str, Source] = {}
    levels = [_Level()]
    position = cursor.token.start
    before = "("
    while cursor.token.kind != "end":
        token = cursor.token
        word = token.word if before != "." else ""
        level = levels[-1]
        if before == ")" and len(levels) == 1 and word in ("INSERT", "MERGE", "DELETE", "UPDATE"):
            raise unsupported(f"WITH before {word}", "Write it inside the query, after INSERT INTO t or USING (")
        if before == "(" and word in BEGIN_QUERY:
            level.is_query, level.is_from = True, False
        if _names_table(cursor, level, before):
            start = token.start
            if word == _CHANGES and cursor.tokens[cursor.index + 1].text == "(":
                source, table_name = _changes(cursor), TableName("", "")
            else:
                source = versioned(cursor)
                table_name = source.table
            is_table = session.is_table(table_name, named_within)
            if is_table or source != Source(table_name):
                label = _label(source, tables, named)
                tables[label] = source
                text = session.quoted(label)
                is_alone = before != "TABLE" and not cursor.at("AS") and not _is_alias(cursor)
                if table_name.short and is_alone and table_name.short != label:
                    text += f" AS {session.quoted(table_name.short)}"
                pieces += [cursor.source[position:start], text]
                position = cursor.tokens[cursor.index - 1].end
            before = ""
            continue
        if word == "(":
            levels.append(_Level(is_from=level.is_from and before in ("FROM", "JOIN", ",", "(")))
        elif word == ")":
            if len(levels) == 1:
                cursor.refuse("a parenthesis is not opened")
            levels.pop()
        elif word == "SELECT":
            level.is_from = False
        elif word == "FROM" and level.is_query and before != "DISTINCT":
            level.is_from = True
        elif word in _AFTER_FROM:
            level.is_from = level.is_from and word == "ON"
        before = word
        cursor.index += 1
    if len(levels) > 1:
        cursor.refuse(") is missing")
    end = cursor.tokens[cursor.index - 1].end
    pieces.append(cursor.source[position:end])
    return Query("".join(pieces), tables)


def query_in_parentheses(cursor: Cursor, session: Session) -> str:
    """The text of a query in parentheses."""
    cursor.expect("(")
    cursor.go_on(of_duckdb=session.engine().name == "local")
    text = cursor.text(")")
    cursor.go_on(of_duckdb=False)
    cursor.expect(")")
    return text


@dataclass(slots=True)
class _Level:
    """A pair of parentheses: whether a query is in it, and whether the query's FROM is being read."""

    is_query: bool = False
    is_from: bool = False


def _names_table(cursor: Cursor, level: _Level, before: str) -> bool:
    token, after = cursor.token, cursor.tokens[cursor.index + 1 : cursor.index + 2]
    if token.kind not in ("word", "quoted") or token.word in (*BEGIN_QUERY, "LATERAL"):
        return False
    if after and after[0].text == "(" and token.word != _CHANGES:
        return False  # a function
    return before == "TABLE" or (level.is_from and before in ("FROM", "JOIN", ",", "("))


def _label(source: Source, tables: Mapping[str, Source], named: frozenset[str]) -> str:
    """The name of a table in the text for the engine. It is unique without regard to case, and messages quote it."""
    used_labels = {*named, *(label.lower() for label, other in tables.items() if other != source)}
    label = source.label
    while label.lower() in used_labels:
        label += "'"
    return label


def _changes(cursor: Cursor) -> Source:
    """`table_changes('table', first [, last])`. The table is written as in FROM, the bounds are versions or times."""
    cursor.expect(_CHANGES, "(")
    inner = Cursor(cursor.string())
    name = inner.table()
    inner.end()
    bounds: list[int | str] = []
    while cursor.take(","):
        bounds.append(cursor.string() if cursor.token.kind == "string" else cursor.integer())
    cursor.expect(")")
    if not 1 <= len(bounds) <= 2:
        raise InvalidRequestError(
            "table_changes takes a table, a first version or time, and perhaps a last one",
            remedy="Write table_changes('t', 3) or table_changes('t', 3, 5)",
        )
    return Source(name, changes=(bounds[0], bounds[1] if len(bounds) > 1 else None))


def _with_names(cursor: Cursor) -> frozenset[str]:
    """The names that WITH defines, at any depth, in lower case."""
    tokens = cursor.tokens[cursor.index :]
    if not any(token.word == "WITH" for token in tokens):
        return frozenset()
    defined = set()
    for index, (token, after) in enumerate(pairwise(tokens)):
        if token.word == "AS" and after.word in ("(", "MATERIALIZED", "NOT"):
            defined.add(tokens[_before_parentheses(tokens, index - 1)].name.lower())
    return frozenset(defined)


def _before_parentheses(tokens: Sequence[Token], index: int) -> int:
    """The index of the name before a list of columns, and before a list after USING KEY."""
    while tokens[index].text == ")":
        depth = 1
        while depth and index > 0:
            index -= 1
            depth += (tokens[index].text == ")") - (tokens[index].text == "(")
        index -= 3 if tokens[index - 1].word == "KEY" else 1
    return index


def _is_alias(cursor: Cursor) -> bool:
    token = cursor.token
    return token.kind == "quoted" or (token.kind == "word" and token.word not in _ALIAS_NOT)


def versioned(cursor: Cursor) -> Source:
    """A table, with its version if the text names one."""
    return Source(cursor.table(), *cursor.version_or_none())
