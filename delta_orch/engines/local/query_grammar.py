"""The grammar of SELECT statements of Spark SQL, as far as the local engine runs them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NoReturn

from delta_orch.engines.local.sql_types import unsupported
from delta_orch.expressions.grammar import Reader
from delta_orch.expressions.nodes import Expression, Operation
from delta_orch.expressions.parse import reading
from delta_orch.expressions.tokens import Unreadable, name_of


@dataclass(frozen=True, slots=True)
class Item:
    """An item of a SELECT list."""

    node: Expression
    alias: str | None


@dataclass(frozen=True, slots=True)
class From:
    """A relation by its name, or a query in parentheses."""

    relation: str | Query
    alias: str | None


@dataclass(frozen=True, slots=True)
class Join:
    """`keyword` is DuckDB's."""

    keyword: str
    source: From
    condition: Expression | None


@dataclass(frozen=True, slots=True)
class OrderKey:
    node: Expression
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class Select:
    items: tuple[Item, ...]
    distinct: bool = False
    source: From | None = None
    joins: tuple[Join, ...] = ()
    where: Expression | None = None
    group: tuple[Expression, ...] = ()
    having: Expression | None = None
    order: tuple[OrderKey, ...] = ()
    limit: str | None = None


@dataclass(frozen=True, slots=True)
class Union:
    left: Query
    right: Query
    distinct: bool


@dataclass(frozen=True, slots=True)
class With:
    """A query and those that it names, in lower case."""

    queries: tuple[tuple[str, Query], ...]
    query: Query


Query = Select | Union | With

_JOINS = {
    "JOIN": "INNER JOIN", "INNER JOIN": "INNER JOIN", "LEFT JOIN": "LEFT JOIN", "LEFT OUTER JOIN": "LEFT JOIN",
    "RIGHT JOIN": "RIGHT JOIN", "RIGHT OUTER JOIN": "RIGHT JOIN", "FULL JOIN": "FULL JOIN",
    "FULL OUTER JOIN": "FULL JOIN", "LEFT SEMI JOIN": "SEMI JOIN", "SEMI JOIN": "SEMI JOIN",
    "LEFT ANTI JOIN": "ANTI JOIN", "ANTI JOIN": "ANTI JOIN", "CROSS JOIN": "CROSS JOIN",
}  # fmt: skip
_JOIN_WORDS = frozenset({"JOIN", "INNER", "LEFT", "RIGHT", "FULL", "OUTER", "SEMI", "ANTI", "CROSS"})
_CLAUSES = _JOIN_WORDS | {
    "FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "UNION", "EXCEPT", "INTERSECT", "MINUS", "ON", "USING",
    "NATURAL", "LATERAL", "WINDOW", "CLUSTER", "DISTRIBUTE", "SORT", "TABLESAMPLE", "PIVOT", "UNPIVOT", "QUALIFY",
    "OFFSET", "FETCH", "WITH", "VERSION", "TIMESTAMP", "FOR", "AS", "SELECT",
}  # fmt: skip
"""Words that do not name what stands before them."""
_STATEMENTS = frozenset({
    "INSERT", "UPDATE", "DELETE", "MERGE", "CREATE", "DROP", "ALTER", "VALUES", "TABLE", "FROM", "SHOW", "DESCRIBE",
    "DESC", "SET", "USE", "REPLACE", "TRUNCATE", "EXPLAIN", "CALL", "CACHE", "REFRESH", "MAP", "REDUCE",
})  # fmt: skip


def read_query(text: str) -> Query:
    """One SELECT statement.

    Raises:
        InvalidExpressionError: It is none.
        UnsupportedExpressionError: It has a part that only the Spark engine runs.
    """
    with reading(text, "query", "Write one SELECT in Spark SQL"):
        reader = _QueryReader(text)
        if reader.word in _STATEMENTS:
            reader.refuse()
        found = reader.query()
        reader.take(";")
        if reader.kind != "end":
            reader.refuse_or_fail()
        return found


class _QueryReader(Reader):
    """Expressions, and the clauses around them. `*` and DISTINCT may stand in a function's arguments."""

    def foreign(self, what: str) -> NoReturn:
        raise unsupported(f"{what}: {self.source[max(self.start - 40, 0) : self.start + 60]}")

    def refuse(self) -> NoReturn:
        """What comes next is Spark SQL, and not of this grammar."""
        raise unsupported(self.source[self.start : self.start + 100])

    def refuse_or_fail(self) -> NoReturn:
        if self.word in _CLAUSES or self.word in _STATEMENTS:
            self.refuse()
        raise self.unexpected()

    def star(self) -> Expression:
        start = self.start
        self.expect("*")
        return self.operation("*", start)

    def star_of(self, path: list[str]) -> Expression:
        start = self.start
        self.expect("*")
        if len(path) > 1:
            self.refuse()
        return self.operation("*", start, detail=path[0])

    def distinct(self) -> str:
        return self.advance().upper()

    def query(self) -> Query:
        self.enter()
        queries: list[tuple[str, Query]] = []
        if self.take("WITH"):
            queries.append(self._named_query())
            while self.take(","):
                queries.append(self._named_query())
        found = self._term()
        while self.take("UNION"):
            distinct = not self.take("ALL")
            self.take("DISTINCT")
            found = Union(found, self._term(), distinct)
        if self.word in ("ORDER", "LIMIT") and not isinstance(found, Select):
            self.refuse()
        if isinstance(found, Select):
            found = self._ordered(found)
        self.depth -= 1
        return With(tuple(queries), found) if queries else found

    def _named_query(self) -> tuple[str, Query]:
        name = self.name()
        if self.word != "AS":
            self.refuse()
        self.advance()
        self.expect("(")
        found = self.query()
        self.expect(")")
        return name.lower(), found

    def _term(self) -> Query:
        if self.take("("):
            found = self.query()
            self.expect(")")
            return found if not isinstance(found, Select) else With((), found)
        if not self.take("SELECT"):
            if self.word in _STATEMENTS:
                self.refuse()
            raise self.unexpected()
        distinct = self.take("DISTINCT")
        if not distinct:
            self.take("ALL")
        if self.kind == "end":
            raise Unreadable("It ends too early")
        items = [self._item()]
        while self.take(","):
            items.append(self._item())
        found = Select(tuple(items), distinct)
        if self.take("FROM"):
            source = self._source()
            found = replace(found, source=source, joins=tuple(self._joins()))
        if self.take("WHERE"):
            found = replace(found, where=self.expression())
        if self.take("GROUP"):
            self.expect("BY")
            keys = [self.expression()]
            while self.take(","):
                keys.append(self.expression())
            found = replace(found, group=tuple(keys))
        if self.take("HAVING"):
            found = replace(found, having=self.expression())
        return found

    def _ordered(self, found: Select) -> Select:
        if self.take("ORDER"):
            self.expect("BY")
            keys = [self._order_key()]
            while self.take(","):
                keys.append(self._order_key())
            found = replace(found, order=tuple(keys))
        if self.take("LIMIT"):
            if self.kind != "number" or not self.text.isdigit():
                raise unsupported("LIMIT with anything but a number")
            found = replace(found, limit=self.advance())
        return found

    def _order_key(self) -> OrderKey:
        node = self.expression()
        descending = self.take("DESC")
        if not descending:
            self.take("ASC")
        nulls_first = not descending
        if self.take("NULLS"):
            nulls_first = self.word == "FIRST"
            if not self.take("FIRST", "LAST"):
                raise self.unexpected()
        return OrderKey(node, descending, nulls_first)

    def _item(self) -> Item:
        return Item(self.expression(), self._alias())

    def _alias(self) -> str | None:
        if self.take("AS"):
            return self.name()
        if self.kind == "quoted" or (self.kind == "word" and self.word not in _CLAUSES):
            return name_of(self.advance())
        return None

    def _joins(self) -> list[Join]:
        found: list[Join] = []
        while True:
            words: list[str] = []
            if self.take(","):
                keyword = "CROSS JOIN"
            elif self.word in _JOIN_WORDS:
                while self.word in _JOIN_WORDS:
                    words.append(self.advance().upper())
                if " ".join(words) not in _JOINS:
                    raise self.unexpected()
                keyword = _JOINS[" ".join(words)]
            else:
                return found
            if self.word == "LATERAL":
                self.refuse()
            source = self._source()
            condition = None
            if words and self.take("ON"):
                condition = self.expression()
            elif keyword == "INNER JOIN":
                keyword = "CROSS JOIN"
            if self.word == "USING" or (keyword == "CROSS JOIN") == (condition is not None):
                self.refuse()
            found.append(Join(keyword, source, condition))

    def _source(self) -> From:
        if self.take("("):
            if self.word not in ("SELECT", "WITH", "("):
                self.refuse()
            query = self.query()
            self.expect(")")
            return From(query, self._table_alias())
        if self.word in ("LATERAL", "VALUES", "TABLE"):
            self.refuse()
        start = self.start
        name = self.name()
        if self.word in (".", "("):
            raise unsupported(self.source[start : start + 100])
        return From(name, self._table_alias())

    def _table_alias(self) -> str | None:
        alias = self._alias()
        if alias is not None and self.word == "(":
            raise unsupported("an alias with a list of columns")
        return alias


def is_star(node: Expression) -> bool:
    """Whether it is `*` or `relation.*`."""
    return isinstance(node, Operation) and node.name == "*" and not node.arguments
