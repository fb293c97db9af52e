"""The reader of SQL statements. It reads them part by part, by the patterns that `docs/sql.md` shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn, TypeVar

from delta_orch.errors import InvalidExpressionError, InvalidRequestError
from delta_orch.expressions.nodes import Column, Literal
from delta_orch.expressions.parse import parse_value
from delta_orch.expressions.spark_literals import quote_identifier
from delta_orch.expressions.tokens import Token, statement_tokens
from delta_orch.protocol.types import StructField
from delta_orch.table.column_definitions import column, identity_column

T = TypeVar("T")
Arguments = dict[str, Any]
"""The arguments of a pattern by their names. The method that reads an argument decides its type."""

_MAX_CHARACTERS = 4 * 1024 * 1024
_OPENING, _CLOSING = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}


class TableName(NamedTuple):
    """A table in a statement: delta.`path`, or a name in `tables` or in a catalog. `parts` are the parts of a name."""

    path: str | None
    name: str
    parts: tuple[str, ...] = ()

    @property
    def short(self) -> str | None:
        """The qualifier of the table's columns if the table has no alias."""
        return self.name.rpartition(".")[2] if self.path is None else None


class _Item(NamedTuple):
    """A part of a pattern: alternative words, an argument to read, or a group in brackets."""

    words: tuple[str, ...] = ()
    kind: str = ""
    name: str = ""
    group: tuple[_Item, ...] = ()


@lru_cache(maxsize=256)
def _items_of(pattern: str) -> tuple[_Item, ...]:
    levels: list[list[_Item]] = [[]]
    names: list[str] = []
    for part in re.findall(r"\[\w*:|\[|\]|\{\w+ \w+\}|[^\s\[\]{}]+", pattern):
        if part[0] == "[":
            levels.append([])
            names.append(part[1:-1])
        elif part == "]":
            group = tuple(levels.pop())
            levels[-1].append(_Item(name=names.pop(), group=group))
        elif part[0] == "{":
            kind, name = part[1:-1].split(" ")
            levels[-1].append(_Item(kind=kind, name=name))
        else:
            levels[-1].append(_Item(tuple(part.split("|"))))
    return tuple(levels[0])


def _words_ahead(items: Sequence[_Item]) -> list[str]:
    """The words with which the items may begin."""
    words: list[str] = []
    for item in items:
        words += item.words or (_words_ahead(item.group) if item.group else ())
        if not item.group:
            break
    return words


class Cursor:
    """Reads one statement from its start.

    Raises InvalidRequestError: The statement is not text, or it is too long.
    """

    def __init__(self, text: str, *, of_duckdb: bool = False) -> None:
        if not isinstance(text, str):
            raise InvalidRequestError(f"A statement must be text, not {type(text).__name__}")
        if len(text) > _MAX_CHARACTERS:
            raise InvalidRequestError(f"The statement has {len(text)} characters; {_MAX_CHARACTERS} are allowed")
        self.source = text
        self.tokens = statement_tokens(text, of_duckdb=of_duckdb)
        self.index = 0

    @property
    def token(self) -> Token:
        """The next token. Raises InvalidRequestError if a quote is not closed, or if another statement follows."""
        token = self.tokens[self.index]
        if token.kind == "broken":
            raise InvalidRequestError(
                f"The statement cannot be read from {token.text.strip()!a} on",
                cause="A quote or a comment is not closed",
            )
        if token.kind == "next":
            raise InvalidRequestError(
                "The text holds more than one statement", remedy="Run them one after the other: each is its own commit"
            )
        return token

    def go_on(self, *, of_duckdb: bool) -> None:
        """Read the rest of the statement by the rules of one engine."""
        start = self.tokens[self.index].start
        self.tokens[self.index :] = statement_tokens(self.source, start=start, of_duckdb=of_duckdb)

    # Patterns: WORDS and signs as they stand, `A|B` for one of two, `{kind name}` for an argument that the method
    # `kind` reads, and `[…]` for what may be left out; of `[name: …]` the result says whether it is there.

    def read(self, pattern: str, stops: Sequence[str] = ()) -> Arguments:
        """Read a pattern. Returns its arguments by name; an argument that the text leaves out is None.

        Args:
            stops: Words that end a text at the end of the pattern.

        Raises InvalidRequestError: The text does not follow the pattern.
        """
        arguments: Arguments = {}
        self._read(_items_of(pattern), arguments, stops)
        return arguments

    def _read(self, items: Sequence[_Item], arguments: Arguments, stops: Sequence[str]) -> None:
        for place, item in enumerate(items):
            following = items[place + 1 :]
            if item.group:
                is_there = self._begins(item.group)
                if item.name:
                    arguments[item.name] = is_there
                if is_there:
                    self._read(item.group, arguments, (*_words_ahead(following), *stops))
                else:
                    arguments.update(dict.fromkeys(_arguments_of(item.group), False if item.name else None))
            elif item.kind in ("text", "alias", "assignments"):
                method = getattr(self, item.kind)
                arguments[item.name] = method(*_words_ahead(following), *stops)
            elif item.kind:
                arguments[item.name] = getattr(self, item.kind)()
            elif not any(map(self.take, item.words)):
                self.refuse(f"{' or '.join(item.words)} is missing")

    def _begins(self, items: Sequence[_Item]) -> bool:
        """Whether the next tokens are the words with which a group begins."""
        for place, item in enumerate(items):
            token = self.tokens[self.index + place : self.index + place + 1]
            if not item.words:
                return place > 0
            if not token or token[0].word not in item.words:
                return False
        return True

    def first_of(self, patterns: Mapping[str, T], stops: Sequence[str] = ()) -> tuple[T, Arguments]:
        """Read the first pattern that fits, up to the end of the statement or to a word of `stops`.

        Returns: The value of the pattern in `patterns`, and its arguments.

        Raises InvalidRequestError: No pattern fits. The error comes from the pattern that fits furthest.
        """
        begin, furthest, alike, problem = self.index, -1, 0, InvalidRequestError("There is no pattern")
        for pattern, meaning in patterns.items():
            self.index = begin
            try:
                arguments = self.read(pattern, stops)
                if self.token.word not in stops or self.token.kind == "end":
                    self.end()
            except InvalidRequestError as e:
                alike = 1 if self.index > furthest else alike + (self.index == furthest)
                if self.index > furthest:
                    furthest, problem = self.index, e
            else:
                return meaning, arguments
        self.index = furthest
        if alike > 1:
            self.refuse("a part is missing" if self.token.kind == "end" else "is not part of the statement")
        raise problem

    def clauses(self, *patterns: str, stops: Sequence[str] = ()) -> Arguments:
        """Read clauses in any order, each at most once. Returns their arguments, as `read` does."""
        arguments: Arguments = {}
        waiting = [_items_of(pattern) for pattern in patterns]
        ends = [*(word for items in waiting for word in _words_ahead(items)), *stops]
        for items in waiting:
            arguments.update(dict.fromkeys(_arguments_of(items)))
        while fitting := next((items for items in waiting if self._begins(_leading(items))), None):
            waiting.remove(fitting)
            self._read(fitting, arguments, ends)
        return arguments

    def at(self, *words: str) -> bool:
        """Whether these words are next."""
        return [token.word for token in self.tokens[self.index : self.index + len(words)]] == list(words)

    def take(self, *words: str) -> bool:
        """Pass these words if they are next. Returns whether they were."""
        if not self.at(*words):
            return False
        self.index += len(words)
        return True

    def expect(self, *words: str) -> None:
        """Pass these words. Raises InvalidRequestError if other words are next."""
        for word in words:
            if not self.take(word):
                self.refuse(f"{word} is missing")

    def end(self) -> None:
        """Raises InvalidRequestError unless the statement ends here."""
        if self.token.kind != "end":
            self.refuse("is not part of the statement")

    def refuse(self, what: str) -> NoReturn:
        """Raise the error for the next token."""
        token = self.token
        where = "at its end" if token.kind == "end" else f"before {token.text[:60]!a}"
        if what == "is not part of the statement":
            problem = f"The statement goes on with {token.text[:60]!a}, which is not supported there"
        else:
            problem = f"The statement cannot be read: {what} {where}"
        raise InvalidRequestError(
            problem, remedy="docs/sql.md lists the statements and their parts", statement=self.source[:500]
        )

    # Arguments

    def name(self) -> str:
        """A name, with or without backticks."""
        token = self.token
        if token.kind not in ("word", "quoted"):
            self.refuse("a name is missing")
        self.index += 1
        return token.name

    def path(self) -> list[str]:
        """A name, or several names with dots between them."""
        names = [self.name()]
        while self.take("."):
            names.append(self.name())
        return names

    def table(self) -> TableName:
        """delta.`path`, or a name."""
        ahead = self.tokens[self.index : self.index + 3]
        if [token.name.lower() for token in ahead[:2]] == ["delta", "."] and ahead[-1].kind == "quoted":
            _, path = self.path()
            return TableName(path, path)
        parts = self.path()
        return TableName(None, ".".join(parts), tuple(parts))

    def place(self) -> TableName:
        """As `table`, or a location as a string, which Delta's own statements take."""
        if self.token.kind != "string":
            return self.table()
        path = self.string()
        return TableName(path, path)

    def alias(self, *following: str) -> str | None:
        """`[AS] name`. None if one of the words `following` is next."""
        if self.take("AS"):
            return self.name()
        is_name = self.token.kind in ("word", "quoted") and self.token.word not in following
        return self.name() if is_name else None

    def column(self) -> str:
        """A column or a field of a column, as the verbs take it."""
        return quoted_path(self.path())

    def columns(self) -> list[str]:
        """Columns, in parentheses or not."""
        return self.listed(self.column) if self.at("(") else self.each(self.column)

    def each(self, item: Callable[[], T]) -> list[T]:
        """One item, or several items with commas between them."""
        items = [item()]
        while self.take(","):
            items.append(item())
        return items

    def listed(self, item: Callable[[], T]) -> list[T]:
        """As `each`, in parentheses."""
        self.expect("(")
        items = self.each(item)
        self.expect(")")
        return items

    def key(self) -> str:
        """The key of a property: a string, or names with dots between them."""
        return self.string() if self.token.kind == "string" else ".".join(self.path())

    def keys(self) -> list[str]:
        """Keys in parentheses."""
        return self.listed(self.key)

    def properties(self) -> dict[str, str]:
        """`(key = value, …)`. Raises InvalidRequestError: A key occurs twice."""
        values: dict[str, str] = {}

        def take_one() -> None:
            key = self.key()
            self.expect("=")
            if key in values:
                raise InvalidRequestError(f"The property {key[:200]!r} is given twice")
            values[key] = self.string() if self.token.kind == "string" else self.text(",", ")").lower()

        self.listed(take_one)
        return values

    def assignments(self, *stops: str) -> dict[Column, str]:
        """`a = value, b.c = value`, each column as a node, so that any name is safe."""
        values: dict[Column, str] = {}

        def take_one() -> None:
            column = Column(tuple(self.path()))
            self.expect("=")
            if column in values:
                problem = f"The column {'.'.join(column.path)[:200]} is assigned twice"
                raise InvalidRequestError(problem, remedy="Assign it once")
            values[column] = self.text(",", *stops)

        self.each(take_one)
        return values

    def paths(self) -> list[Column]:
        """Columns in parentheses, as nodes."""
        return self.listed(lambda: Column(tuple(self.path())))

    def values(self) -> list[str]:
        """`(a, b)` as texts."""
        return self.listed(lambda: self.text(",", ")"))

    def definitions(self) -> list[StructField]:
        """Columns of a table in parentheses."""
        return self.listed(self.definition)

    def definition(self) -> StructField:
        """`name type [NOT NULL] [COMMENT 'text'] [DEFAULT value] [GENERATED …]`."""
        begin = self.read("{name name} {type data_type}")
        parts = self.clauses(
            "[required: NOT NULL]",
            "COMMENT {string comment}",
            "DEFAULT {text default}",
            "GENERATED {generation generated}",
            stops=(",", ")"),
        )
        name, data_type, generated = begin["name"], begin["data_type"], parts["generated"]
        if isinstance(generated, dict):
            if data_type.upper() not in ("BIGINT", "LONG") or parts["default"] is not None:
                raise InvalidRequestError(f"The identity column {name} must be a BIGINT without a default")
            return identity_column(name, comment=parts["comment"], **generated)
        return column(
            name,
            data_type,
            nullable=not parts["required"],
            comment=parts["comment"],
            default=parts["default"],
            generated_as=generated,
        )

    def generation(self) -> str | Arguments:
        """`ALWAYS AS (expression)`, or the options of an identity column."""
        begin = self.read("[always: ALWAYS] [by_default: BY DEFAULT] AS [identity: IDENTITY]")
        if begin["always"] == begin["by_default"] or not (begin["always"] or begin["identity"]):
            self.refuse("ALWAYS AS (…) or AS IDENTITY is missing")
        if not begin["identity"]:
            return str(self.read("( {text expression} )")["expression"])
        numbers: Arguments = {"allow_explicit_insert": begin["by_default"]}
        if self.take("("):
            options = self.clauses("START WITH {signed start}", "INCREMENT BY {signed step}")
            self.expect(")")
            numbers |= {name: number for name, number in options.items() if number is not None}
        return numbers

    def signed(self) -> int:
        """A whole number with an optional sign, and an optional comma after it."""
        sign = -1 if self.take("-") else 1
        number = sign * self.integer()
        self.take(",")
        return number

    def additions(self) -> list[tuple[str, str, Arguments]]:
        """Columns that ALTER TABLE adds: name, type, and options of `add_column`."""
        return self.listed(self._addition) if self.at("(") else self.each(self._addition)

    def _addition(self) -> tuple[str, str, Arguments]:
        begin = self.read("{column column} {type data_type}")
        parts = self.clauses(
            "[required: NOT NULL]", "COMMENT {string comment}", "[first: FIRST]", "AFTER {name after}", stops=(",", ")")
        )
        options = {name: parts[name] for name in ("comment", "after") if parts[name] is not None}
        if parts["required"]:
            options["nullable"] = False
        return begin["column"], begin["data_type"], {**options, **({"first": True} if parts["first"] else {})}

    def string(self) -> str:
        """A string constant."""
        token = self.token
        if token.kind != "string":
            self.refuse("a string is missing")
        self.index += 1
        value = parse_value(token.text)
        if not isinstance(value, Literal) or not isinstance(value.value, str):
            raise InvalidExpressionError(f"{token.text[:60]!a} is not a string")
        return value.value

    def comment(self) -> str:
        """A string. NULL is the empty string."""
        return "" if self.take("NULL") else self.string()

    def number(self) -> float:
        """A number without a sign."""
        token = self.token
        if token.kind != "number":
            self.refuse("a number is missing")
        self.index += 1
        return float(token.text)

    def integer(self) -> int:
        """A whole number without a sign."""
        text = self.token.text
        self.number()
        if not text.isdigit() or len(text) > 18:
            raise InvalidRequestError(f"{text[:60]} is too large for a version or a count")
        return int(text)

    def version(self) -> tuple[int | None, str | None]:
        """`VERSION AS OF n` or `TIMESTAMP AS OF 'time'`."""
        moment = self.version_or_none()
        if moment == (None, None):
            self.refuse("VERSION AS OF or TIMESTAMP AS OF is missing")
        return moment

    def version_or_none(self) -> tuple[int | None, str | None]:
        """As `version`; two None if no version is next."""
        if self.take("VERSION", "AS", "OF"):
            return self.integer(), None
        if not self.take("TIMESTAMP", "AS", "OF"):
            return None, None
        if not self.take("TIMESTAMP"):
            self.take("DATE")
        return None, self.string()

    def type(self) -> str:
        """A type, up to the words that may follow it."""
        return self.text("NOT", "NULL", "COMMENT", "DEFAULT", "GENERATED", "FIRST", "AFTER", ",", ")", angles=True)

    def text(self, *stops: str, angles: bool = False) -> str:
        """The text up to one of the words `stops`, or up to the end. Parentheses and CASE in it are closed.

        Args:
            angles: `<` and `>` are parentheses, as in types.
        """
        first = self.index
        closing: list[str] = []
        while self.token.kind != "end":
            word = self.token.word
            is_field = self.index > first and self.tokens[self.index - 1].text == "."
            if not closing and not is_field and word in (*stops, ")"):
                break
            if word in _OPENING:
                closing.append(_OPENING[word])
            elif angles and word == "<":
                closing.append(">")
            elif word == "CASE" and not is_field:
                closing.append("END")
            elif closing and word == closing[-1] and not is_field:
                closing.pop()
            elif word in _CLOSING:
                self.refuse("a parenthesis is not opened")
            self.index += 1
        if closing:
            self.refuse(f"{closing[-1]} is missing")
        if self.index == first:
            self.refuse("an expression or a type is missing")
        return self.source[self.tokens[first].start : self.tokens[self.index - 1].end]


def _leading(items: Sequence[_Item]) -> Sequence[_Item]:
    """The items with which a clause begins: the words of a flag."""
    return items[0].group if items[0].group else items


def _arguments_of(items: Sequence[_Item]) -> list[str]:
    return [name for item in items for name in ((item.name,) if item.name else _arguments_of(item.group))]


def quoted_path(path: list[str]) -> str:
    """A column's path in SQL. Verbs take plain names, and names with backticks in them, without quotes."""
    if len(path) == 1 and "`" in path[0]:
        return path[0]
    if len(path) == 1 and re.fullmatch(r"[A-Za-z_]\w*", path[0], re.ASCII):
        return path[0]
    return ".".join(quote_identifier(name) for name in path)
