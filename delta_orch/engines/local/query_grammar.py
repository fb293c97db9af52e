"""The grammar of SELECT statements of Spark SQL, as far as the local engine runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NoReturn, TypeVar

from delta_orch.engines.local.query_nodes import (
    IGNORES_NULLS,
    From,
    Grouping,
    Item,
    Join,
    LateralView,
    Numbers,
    OrderKey,
    Over,
    Query,
    Select,
    SetOperation,
    Subquery,
    Values,
    Window,
    With,
)
from delta_orch.engines.local.sql_types import unsupported
from delta_orch.expressions.grammar import Reader
from delta_orch.expressions.nodes import Call, Expression, Literal, Operation
from delta_orch.expressions.parse import reading
from delta_orch.expressions.tokens import Unreadable, name_of

_Part = TypeVar("_Part")
_JOINS = {
    "JOIN": "INNER JOIN", "INNER JOIN": "INNER JOIN", "LEFT JOIN": "LEFT JOIN", "LEFT OUTER JOIN": "LEFT JOIN",
    "RIGHT JOIN": "RIGHT JOIN", "RIGHT OUTER JOIN": "RIGHT JOIN", "FULL JOIN": "FULL JOIN",
    "FULL OUTER JOIN": "FULL JOIN", "LEFT SEMI JOIN": "SEMI JOIN", "SEMI JOIN": "SEMI JOIN",
    "LEFT ANTI JOIN": "ANTI JOIN", "ANTI JOIN": "ANTI JOIN", "CROSS JOIN": "CROSS JOIN",
}  # fmt: skip
_NATURAL = ("INNER JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
_JOIN_WORDS = frozenset({"JOIN", "INNER", "LEFT", "RIGHT", "FULL", "OUTER", "SEMI", "ANTI", "CROSS"})
_CLAUSES = _JOIN_WORDS | {
    "FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "UNION", "EXCEPT", "INTERSECT", "MINUS", "ON", "USING",
    "NATURAL", "LATERAL", "WINDOW", "CLUSTER", "DISTRIBUTE", "SORT", "TABLESAMPLE", "PIVOT", "UNPIVOT", "QUALIFY",
    "OFFSET", "FETCH", "WITH", "VERSION", "TIMESTAMP", "FOR", "AS", "SELECT",
}  # fmt: skip
"""Words that do not name what stands before them."""
_STATEMENTS = frozenset({
    "INSERT", "UPDATE", "DELETE", "MERGE", "CREATE", "DROP", "ALTER", "FROM", "SHOW", "DESCRIBE",
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
        return self.star_of([])

    def star_of(self, path: list[str]) -> Expression:
        start = self.start
        self.expect("*")
        if len(path) > 1:
            self.refuse()
        left_out: list[Expression] = []
        if self.take("EXCEPT"):
            self.expect("(")
            left_out = self.expressions(")")
        return self.operation("* EXCEPT" if left_out else "*", start, *left_out, detail="".join(path))

    def over(self, call: Call) -> Expression:
        self.expect("OVER")
        window = self._window() if self.word == "(" else self.name()
        arguments: tuple[Expression, ...] = (call,)
        if isinstance(window, Window):
            arguments += (*window.partition, *(key.node for key in window.order))
        plain = self.operation("OVER", call.start, *arguments)
        return Over("OVER", arguments, start=plain.start, end=plain.end, depth=plain.depth, window=window)

    def filtered(self, call: Call) -> Expression:
        if not call.detail and self.take("IGNORE"):
            self.expect("NULLS")
            if self.word != "OVER":
                self.refuse()
            return self.over(replace(call, detail=IGNORES_NULLS))
        if not self.take("FILTER"):
            self.refuse()
        self.expect("(")
        self.expect("WHERE")
        condition = self.expression()
        self.expect(")")
        if self.word == "OVER":
            self.refuse()
        return self.operation("FILTER", call.start, call, condition)

    def subquery(self, kind: str, start: int, *arguments: Expression) -> Expression:
        if kind not in ("", "IN", "EXISTS"):
            self.refuse()
        query = self.query()
        self.expect(")")
        plain = self.operation("SUBQUERY", start, *arguments)
        return Subquery("SUBQUERY", arguments, kind, start=start, end=plain.end, depth=plain.depth, query=query)

    def _window(self) -> Window:
        self.expect("(")
        partition: list[Expression] = []
        if self.take("PARTITION", "DISTRIBUTE"):
            self.expect("BY")
            partition = self._list_of(self.expression)
        order = self._order() if self.take("ORDER", "SORT") else ()
        frame = self._frame() if self.word in ("ROWS", "RANGE") else ""
        self.expect(")")
        return Window(tuple(partition), order, frame)

    def _named_window(self) -> tuple[str, Window]:
        name = self.name()
        self.expect("AS")
        return name, self._window()

    def _frame(self) -> str:
        unit = self.advance().upper()
        if not self.take("BETWEEN"):
            return f"{unit} {self._bound(unit)}"
        first = self._bound(unit)
        self.expect("AND")
        return f"{unit} BETWEEN {first} AND {self._bound(unit)}"

    def _bound(self, unit: str) -> str:
        if self.take("CURRENT"):
            self.expect("ROW")
            return "CURRENT ROW"
        if not self.take("UNBOUNDED"):
            if unit == "RANGE" or self.kind != "number" or not self.text.isdigit():
                self.refuse()
            return f"{self.advance()} {self._one_of(('PRECEDING', 'FOLLOWING'))}"
        return f"UNBOUNDED {self._one_of(('PRECEDING', 'FOLLOWING'))}"

    def _list_of(self, read: Callable[[], _Part]) -> list[_Part]:
        found = [read()]
        while self.take(","):
            found.append(read())
        return found

    def _order(self) -> tuple[OrderKey, ...]:
        self.expect("BY")
        return tuple(self._list_of(self._order_key))

    def distinct(self) -> str:
        return self.advance().upper()

    def query(self) -> Query:
        self.enter()
        queries: list[tuple[str, Query]] = []
        if self.take("WITH"):
            queries.append(self._named_query())
            while self.take(","):
                queries.append(self._named_query())
        found = self._intersection()
        while self.word in ("UNION", "EXCEPT", "MINUS"):
            keyword = self._set_operator()
            found = SetOperation(found, self._intersection(), keyword)
        if self.word in ("ORDER", "LIMIT", "OFFSET"):
            found = self._ordered(found if isinstance(found, Select) else _all_of(found))
        self.depth -= 1
        return With(tuple(queries), found) if queries else found

    def _intersection(self) -> Query:
        found = self._term()
        while self.word == "INTERSECT":
            keyword = self._set_operator()
            found = SetOperation(found, self._term(), keyword)
        return found

    def _set_operator(self) -> str:
        keyword = self.advance().upper().replace("MINUS", "EXCEPT")
        if self.take("ALL"):
            return f"{keyword} ALL"
        self.take("DISTINCT")
        return keyword

    def _named_query(self) -> tuple[str, Query]:
        name = self.name()
        columns = self._names() if self.word == "(" else ()
        self.expect("AS")
        self.expect("(")
        found = self.query()
        self.expect(")")
        return name.lower(), _all_of(found, columns) if columns else found

    def _names(self) -> tuple[str, ...]:
        self.expect("(")
        found = tuple(self._list_of(self.name))
        self.expect(")")
        return found

    def _term(self) -> Query:
        if self.take("("):
            found = self.query()
            self.expect(")")
            return found if not isinstance(found, Select) else With((), found)
        if self.take("TABLE"):
            return _all_of(self.name())
        if self.take("VALUES"):
            return Values(tuple(self._list_of(self._row)))
        if not self.take("SELECT"):
            if self.word in _STATEMENTS:
                self.refuse()
            raise self.unexpected()
        while (hint := self.match_here(r"(?s)/\*\+.*?\*/")) is not None:
            self.go_to(hint.end())
        distinct = self.take("DISTINCT")
        if not distinct:
            self.take("ALL")
        if self.kind == "end":
            raise Unreadable("It ends too early")
        found = Select(tuple(self._list_of(self._item)), distinct)
        if self.take("FROM"):
            source = self._source()
            found = replace(found, source=source, joins=tuple(self._joins()), views=tuple(self._views()))
        if self.take("WHERE"):
            found = replace(found, where=self.expression())
        if self.take("GROUP"):
            self.expect("BY")
            found = self._grouped(found)
        if self.take("HAVING"):
            found = replace(found, having=self.expression())
        if self.take("WINDOW"):
            found = replace(found, windows=tuple(self._list_of(self._named_window)))
        if self.take("QUALIFY"):
            found = replace(found, qualify=self.expression())
        return found

    def _grouped(self, found: Select) -> Select:
        items = self._list_of(self._grouping)
        if self.take("WITH"):
            items = [Grouping(self._one_of(("ROLLUP", "CUBE")), tuple(one for item in items for one in item.sets))]
        if self.word == "GROUPING":
            self.refuse()
        group = tuple(node for item in items for one in item.sets for node in one)
        if not group:
            raise unsupported("GROUP BY of no column")
        return replace(found, group=group, grouping=tuple(items) if any(item.keyword for item in items) else ())

    def _grouping(self) -> Grouping:
        if (found := self.match_here(r"(?i)(?:ROLLUP|CUBE|GROUPING\s+SETS)\s*\(")) is None:
            return Grouping("", ((self.expression(),),))
        self.go_to(found.end())
        sets = tuple(self._list_of(self._grouping_set))
        self.expect(")")
        return Grouping(" ".join(found[0].upper().rstrip("(").split()), sets)

    def _grouping_set(self) -> tuple[Expression, ...]:
        if self.word in ("ROLLUP", "CUBE", "GROUPING"):
            self.refuse()
        if (nothing := self.match_here(r"\(\s*\)")) is not None:
            self.go_to(nothing.end())
            return ()
        return self._row()

    def _ordered(self, found: Select) -> Select:
        if self.take("ORDER"):
            found = replace(found, order=self._order())
        if self.take("LIMIT") and not self.take("ALL"):
            found = replace(found, limit=self._count("LIMIT"))
        if self.take("OFFSET"):
            found = replace(found, offset=self._count("OFFSET"))
        return found

    def _count(self, word: str) -> str:
        if self.kind != "number" or not self.text.isdigit():
            raise unsupported(f"{word} with anything but a number")
        return self.advance()

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

    def _row(self) -> tuple[Expression, ...]:
        found = self.expression()
        return found.arguments if isinstance(found, Operation) and found.name == "()" else (found,)

    def _item(self) -> Item:
        node = self.expression()
        if self.match_here(r"(?i)AS\s*\(") is not None:
            self.expect("AS")
            return Item(node, None, self._names())
        return Item(node, self._alias())

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
            is_natural = self.take("NATURAL")
            if not is_natural and self.take(","):
                keyword = "CROSS JOIN"
            elif self.word in _JOIN_WORDS:
                while self.word in _JOIN_WORDS:
                    words.append(self.advance().upper())
                if " ".join(words) not in _JOINS:
                    raise self.unexpected()
                keyword = _JOINS[" ".join(words)]
                if is_natural and keyword not in _NATURAL:
                    self.refuse()
            else:
                return found
            if self.word == "LATERAL":
                self.refuse()
            source = self._source()
            condition: Expression | None = None
            using: tuple[str, ...] | None = ()
            if is_natural:
                using = None
            elif words and self.take("ON"):
                condition = self.expression()
            elif words and self.take("USING"):
                using = self._names()
            elif keyword == "INNER JOIN":
                keyword = "CROSS JOIN"
            if (keyword == "CROSS JOIN") == (condition is not None or using != ()):
                self.refuse()
            found.append(Join(keyword, source, condition, using))

    def _views(self) -> Iterator[LateralView]:
        while self.take("LATERAL"):
            if not self.take("VIEW"):
                self.refuse()
            is_outer = self.take("OUTER")
            generator, alias = self.value(), self.name()
            named = self.take("AS") or self.kind == "quoted" or (self.kind == "word" and self.word not in _CLAUSES)
            columns = tuple(self._list_of(self.name)) if named else ()
            yield LateralView(generator, is_outer, alias, columns)

    def _source(self) -> From:
        if self.word == "VALUES" or self.take("("):
            if self.word not in ("SELECT", "WITH", "(", "VALUES", "TABLE"):
                self.refuse()
            is_enclosed = self.source[self.ended - 1] == "("
            query = self.query() if is_enclosed else self._term()
            if is_enclosed:
                self.expect(")")
            return From(query, *self._table_alias())
        if self.word in ("LATERAL", "TABLE"):
            self.refuse()
        start = self.start
        name = self.name()
        if name.lower() == "range" and self.take("("):
            return From(self._numbers(start), *self._table_alias())
        if self.word in (".", "("):
            raise unsupported(self.source[start : start + 100])
        alias, columns = self._table_alias()
        return From(_all_of(name) if columns else name, alias, columns)

    def _numbers(self, start: int) -> Numbers:
        given = [node.value for node in self.expressions(")") if isinstance(node, Literal) and type(node.value) is int]
        if not 1 <= len(given) <= 3 or given[2:] == [0] or self.source[start : self.ended].count(",") != len(given) - 1:
            raise unsupported(self.source[start : start + 100])
        return Numbers((*([0] if len(given) == 1 else []), *given, *([1] if len(given) < 3 else [])))  # type: ignore[arg-type]

    def _table_alias(self) -> tuple[str | None, tuple[str, ...]]:
        alias = self._alias()
        return alias, self._names() if alias is not None and self.word == "(" else ()


def _all_of(relation: str | Query, columns: tuple[str, ...] = ()) -> Select:
    return Select((Item(Operation("*", ()), None),), source=From(relation, None, columns))
