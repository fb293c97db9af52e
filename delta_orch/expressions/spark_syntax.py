"""Reading Spark SQL with sqlglot, for all that is not plain.

The text is cut at its AND, OR and NOT; sqlglot then reads each remaining predicate. What has no node of its own stays
`Opaque` in exactly the user's words: it is never printed anew from a syntax tree, where a generator might change it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from delta_orch.errors import DeltaError, InvalidExpressionError
from delta_orch.expressions.bounds import MAX_DEPTH, ensure_shallow, too_deep
from delta_orch.expressions.nodes import Column, Comparison, Expression, In, IsNull, Literal, Not, Opaque, StartsWith
from delta_orch.expressions.parse_literals import Tree, parse_literal
from delta_orch.expressions.spark_literals import like_prefix, quote_string
from delta_orch.expressions.tree import conjunction, disjunction
from delta_orch.protocol.types import BOOLEAN, TIMESTAMP

if TYPE_CHECKING:
    from sqlglot.tokens import Token

_NON_DETERMINISTIC = frozenset({
    "current_catalog", "current_database", "current_date", "current_schema", "current_time", "current_timestamp",
    "current_timezone", "current_user", "curdate", "input_file_block_length", "input_file_block_start",
    "input_file_name", "java_method", "localtimestamp", "monotonically_increasing_id", "now", "rand", "randn", "random",
    "randstr", "reflect", "session_user", "shuffle", "spark_partition_id", "uniform", "user", "uuid", "version",
})  # fmt: skip
"""Functions whose answer depends on when, where or how often they run: planning and evaluation could disagree."""

_WITHOUT_PARENTHESES = frozenset(
    {"current_date", "current_time", "current_timestamp", "current_user", "localtimestamp", "session_user", "user"}
)
_GENERATORS = frozenset(
    {"explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer", "stack"}
)
_AS_WRITTEN = frozenset({
    "ADD_MONTHS", "ARRAY_CONTAINS", "ARRAY_SIZE", "ASCII", "BIT_LENGTH", "CARDINALITY", "CONCAT_WS", "DATE_FORMAT",
    "DATE_FROM_UNIX_DATE", "DATE_PART", "DATEPART", "DAYOFWEEK", "DAYOFYEAR", "FROM_UNIXTIME", "HEX", "INSTR",
    "EQUAL_NULL", "GET", "LAST_DAY", "LEFT", "LOCATE", "LPAD", "MAKE_DATE", "MAP_CONTAINS_KEY", "MAP_KEYS",
    "MAP_VALUES", "MD5", "MONTHS_BETWEEN", "NANVL", "NEXT_DAY", "OCTET_LENGTH", "PMOD", "REGEXP_EXTRACT", "REGEXP_LIKE",
    "REGEXP_REPLACE", "REPEAT", "REPLACE", "REVERSE", "RIGHT", "ROUND", "RPAD", "SHA", "SHA1", "SHA2", "SIGN", "SIGNUM",
    "SIZE", "SPLIT", "SPLIT_PART", "SQRT", "SUBSTRING_INDEX", "TO_DATE", "TO_UNIX_TIMESTAMP", "TRANSLATE", "UNIX_DATE",
    "UNIX_MICROS", "UNIX_MILLIS", "UNIX_SECONDS", "UNIX_TIMESTAMP", "WEEKDAY", "WEEKOFYEAR",
})  # fmt: skip
"""Functions that keep their names and arguments: sqlglot's own nodes of them translate patterns, or add to them."""
_OF_THE_PARSER = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What sqlglot raises for functions that lack arguments, besides errors of its own."""
_OPENING = frozenset({"L_PAREN", "L_BRACKET", "L_BRACE", "CASE"})
_CLOSING = frozenset({"R_PAREN", "R_BRACKET", "R_BRACE", "END"})
_OPERATORS = {"EQ": "=", "NEQ": "!=", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">=", "NullSafeEQ": "<=>"}


def parse_predicate(text: str) -> Expression:
    """See `parse.parse_expression`."""
    from sqlglot.errors import SqlglotError

    try:
        text.encode()
        text = _merge_doubled_quotes(text, _tokenize(text))
        return _Splitter(text, _tokenize(text)).parse()
    except DeltaError:
        raise
    except UnicodeEncodeError as error:
        shown = ascii(_shorten(text))
        raise InvalidExpressionError(f"The expression {shown} is not valid Unicode", cause=str(error)) from None
    except (SqlglotError, *_OF_THE_PARSER) as error:
        raise InvalidExpressionError(
            f"Cannot read the expression {_shorten(text)}",
            cause=_explain(error),
            remedy="Write one predicate in Spark SQL, such as: day >= '2013-01-01' AND carrier IN ('AA', 'UA')",
            expression=text,
        ) from error
    except RecursionError:
        raise InvalidExpressionError(
            f"The expression {_shorten(text)} is nested too deeply",
            remedy="Write long alternatives as IN (…)",
            expression=text,
        ) from None


def parse_spark_statement(text: str) -> Tree:
    """One statement of Spark SQL as sqlglot's tree. Raises InvalidExpressionError if it cannot be read."""
    import sqlglot
    from sqlglot.errors import SqlglotError

    try:
        return _whole(sqlglot.parse_one(_merge_doubled_quotes(text, _tokenize(text)), dialect=_dialect()))
    except DeltaError:
        raise
    except (SqlglotError, RecursionError, *_OF_THE_PARSER) as error:
        raise InvalidExpressionError(
            f"Cannot read the query {_shorten(text)}",
            cause=_explain(error),
            remedy="Write one SELECT in Spark SQL",
            query=text,
        ) from error


def parse_scalar(text: str) -> Expression:
    """See `parse.parse_value`."""
    tree = _parse(text)
    operand = _operand(tree)
    if operand is None or (isinstance(operand, Literal) and operand.data_type == TIMESTAMP):
        return Opaque(text, _mentioned_columns(tree))
    return operand


def parse_row_value(text: str) -> Expression:
    """See `parse.parse_row_value`."""
    tokens = _tokens_of(text)
    _Splitter(text, tokens).ensure_row_value()
    found = parse_scalar(text)
    _refuse_foreign_nodes(_parse(text), text)
    return found


def _tokens_of(text: str) -> list[Token]:
    from sqlglot.errors import SqlglotError

    try:
        text.encode()
        return _tokenize(text)
    except (SqlglotError, UnicodeEncodeError) as error:
        shown = ascii(_shorten(text))
        raise InvalidExpressionError(f"Cannot read the expression {shown}", cause=_explain(error)) from None


def syntax_of(node: Opaque) -> Tree:
    """sqlglot's tree of a node's text. It is shared: read it only. Raises InvalidExpressionError if there is none."""
    return _parse(node.sql)


def _parse(text: str) -> Tree:
    from sqlglot.errors import SqlglotError

    try:
        return _syntax_tree(text)
    except DeltaError:
        raise
    except (SqlglotError, RecursionError, *_OF_THE_PARSER) as error:
        raise InvalidExpressionError(
            f"Cannot read the expression {_shorten(text)}", cause=_explain(error), expression=text
        ) from error


@lru_cache(maxsize=256)
def _syntax_tree(text: str) -> Tree:
    from sqlglot import exp

    ensure_shallow(text)
    return _whole(exp.maybe_parse(_merge_doubled_quotes(text, _tokenize(text)), into=exp.Condition, dialect=_dialect()))


def _whole(tree: Tree) -> Tree:
    """The tree. Raises ParseError for a function without what it takes: sqlglot lets some of them pass."""
    from sqlglot import exp
    from sqlglot.errors import ParseError

    for node in tree.find_all(exp.Func):
        if problems := node.error_messages():
            raise ParseError(problems[0])
    return tree


@lru_cache(maxsize=1)
def _dialect() -> Any:
    """Spark's, with the functions of `_AS_WRITTEN` as they are written."""
    from sqlglot import exp
    from sqlglot.dialects.spark import Spark

    functions = {name: build for name, build in Spark.Parser.FUNCTIONS.items() if name not in _AS_WRITTEN}
    build_timestamp = functions["TO_TIMESTAMP"]

    def to_timestamp(arguments: list[Tree], **further: Any) -> Tree:
        if len(arguments) == 1:
            return build_timestamp(arguments, **further)
        return exp.Anonymous(this="to_timestamp", expressions=arguments)

    functions["TO_TIMESTAMP"] = to_timestamp
    parser = type("Parser", (Spark.Parser,), {"FUNCTIONS": functions})
    return type("DeltaOrchSpark", (Spark,), {"Parser": parser})


def _tokenize(text: str) -> list[Token]:
    from sqlglot.dialects.spark import Spark

    return list(Spark().tokenize(text))


def _merge_doubled_quotes(text: str, tokens: list[Token]) -> str:
    """`'it''s'` is one string with a quote in Spark; sqlglot sees two strings that touch."""
    pieces: list[str] = []
    position = index = 0
    while index < len(tokens):
        last = index
        while (
            last + 1 < len(tokens)
            and _kind(tokens[last]) == _kind(tokens[last + 1]) == "STRING"
            and tokens[last].end + 1 == tokens[last + 1].start
        ):
            last += 1
        if last > index:
            run = tokens[index : last + 1]
            quote = text[run[0].start]
            pieces += [text[position : run[0].start], quote_string(quote.join(token.text for token in run))]
            position = run[-1].end + 1
        index = last + 1
    return "".join([*pieces, text[position:]])


class _Splitter:
    """Splits tokens [low, high) at AND, OR and NOT, and maps what remains."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self._text = text
        self._tokens = tokens
        self._kinds = [_kind(token) for token in tokens]
        self._closing = self._match_brackets()

    def parse(self) -> Expression:
        if not self._tokens:
            raise InvalidExpressionError(
                "The expression is empty",
                remedy="Write a predicate in Spark SQL, or true for every row",
                expression=self._text,
            )
        self._refuse_unstable_functions()
        return self._predicate(0, len(self._tokens), 1)

    def ensure_row_value(self) -> None:
        """Check that the text may be the value of a row. Raises InvalidExpressionError."""
        if not self._tokens:
            raise InvalidExpressionError(
                "The expression is empty", remedy="Write a value in Spark SQL", expression=self._text
            )
        self._refuse_unstable_functions()

    def _predicate(self, low: int, high: int, depth: int) -> Expression:
        if depth > MAX_DEPTH:
            raise too_deep()
        while self._kinds[low:high] and self._kinds[low] == "L_PAREN" and self._closing.get(low) == high - 1:
            low, high = low + 1, high - 1
        alternatives = list(self._split(low, high, "OR"))
        if len(alternatives) > 1:
            return disjunction(*(self._predicate(*part, depth + 1) for part in alternatives))
        parts = list(self._split(low, high, "AND"))
        if len(parts) > 1:
            return conjunction(*(self._predicate(*part, depth + 1) for part in parts))
        if self._kinds[low:high] and self._kinds[low] == "NOT":
            return Not(self._predicate(low + 1, high, depth + 1))
        return self._leaf(low, high)

    def _split(self, low: int, high: int, separator: str) -> Iterator[tuple[int, int]]:
        start = index = low
        betweens = 0
        while index < high:
            kind = self._kinds[index]
            if index in self._closing:
                index = self._closing[index]
            elif kind == "BETWEEN":
                betweens += 1
            elif kind == "AND" and betweens:
                betweens -= 1
            elif kind == separator:
                yield start, index
                start = index + 1
            index += 1
        yield start, high

    def _leaf(self, low: int, high: int) -> Expression:
        if low >= high:
            raise InvalidExpressionError(
                f"An operand is missing in the expression {_shorten(self._text)}", expression=self._text
            )
        source = self._text[self._tokens[low].start : self._tokens[high - 1].end + 1]
        tree = _syntax_tree(source)
        _refuse_foreign_nodes(tree, source)
        mapped = _map_predicate(tree)
        return Opaque(source, _mentioned_columns(tree)) if mapped is None else mapped

    def _match_brackets(self) -> dict[int, int]:
        closing: dict[int, int] = {}
        open_positions: list[int] = []
        for index, kind in enumerate(self._kinds):
            if kind in _OPENING:
                open_positions.append(index)
            elif kind in _CLOSING and open_positions:
                closing[open_positions.pop()] = index
        return closing

    def _refuse_unstable_functions(self) -> None:
        for index, token in enumerate(self._tokens):
            name = token.text.lower()
            if self._kinds[index] in {"IDENTIFIER", "STRING", "RAW_STRING"} or self._kind_at(index - 1) == "DOT":
                continue
            called = self._kind_at(index + 1) == "L_PAREN"
            if name in _NON_DETERMINISTIC and (called or name in _WITHOUT_PARENTHESES):
                _refuse(f"the function {name}", self._text, "Its answer is not fixed", "Pass its value as a constant")
            if name == "unix_timestamp" and called and self._kind_at(index + 2) == "R_PAREN":
                _refuse("the current time", self._text, "Its answer is not fixed", "Pass its value as a constant")
            if name in _GENERATORS and called:
                _refuse(f"the generator function {name}", self._text)

    def _kind_at(self, index: int) -> str | None:
        return self._kinds[index] if 0 <= index < len(self._kinds) else None


def _kind(token: Token) -> str:
    return str(token.token_type.name)


def _refuse(what: str, text: str, cause: str | None = None, remedy: str | None = None) -> None:
    raise InvalidExpressionError(
        f"The expression {_shorten(text)} holds {what}",
        cause=cause or "A predicate on a table looks at one row at a time",
        remedy=remedy or "Use columns, constants and scalar functions only",
        expression=text,
    )


def _refuse_foreign_nodes(tree: Tree, source: str) -> None:
    from sqlglot import exp

    for node in tree.walk():
        if isinstance(node, exp.Query | exp.Subquery):
            _refuse("a subquery", source)
        if isinstance(node, exp.Window):
            _refuse("a window function", source)
        if isinstance(node, exp.AggFunc):
            _refuse("an aggregate function", source)
        if isinstance(node, exp.Placeholder | exp.Parameter):
            _refuse("a parameter", source, "There is nothing to bind it to", "Put the value into the text")
        if isinstance(node, exp.Star | exp.Alias):
            _refuse("a select list", source)


def columns_with_places(text: str) -> tuple[str, list[tuple[Column, list[tuple[int, int]]]]]:
    """The text as it is read, and each mention of a column in it, in the order of the text: its path, as far as sqlglot
    tells columns from fields, and where each part of that begins and ends.

    Raises:
        InvalidExpressionError: The text is no expression, or a mention has no place of its own.
    """
    from sqlglot import exp

    text = _merge_doubled_quotes(text, _tokenize(text))
    found = []
    for node in _parse(text).find_all(exp.Column, bfs=False):
        if any("start" not in part.meta for part in node.parts):
            raise InvalidExpressionError(
                f"Cannot tell where {_shorten(text)} names the column {node.name!r}",
                remedy="Write the column with its table's name before it",
                expression=text,
            )
        spans = [(part.meta["start"], part.meta["end"] + 1) for part in node.parts]
        found.append((Column(tuple(part.name for part in node.parts)), spans))
    return text, sorted(found, key=lambda mention: mention[1][0])


def _mentioned_columns(tree: Tree) -> tuple[Column, ...]:
    from sqlglot import exp

    paths = (tuple(part.name for part in node.parts) for node in tree.find_all(exp.Column, bfs=False))
    return tuple(dict.fromkeys(Column(path) for path in paths))


def expression_of_tree(tree: Tree) -> Expression | None:
    """A condition that sqlglot has parsed, as nodes; None where a part of it would have to stay text."""
    from sqlglot import exp

    tree = tree.unnest()
    if isinstance(tree, exp.And | exp.Or) and has_only(tree, "this", "expression"):
        left, right = expression_of_tree(tree.this), expression_of_tree(tree.expression)
        if left is None or right is None:
            return None
        return conjunction(left, right) if isinstance(tree, exp.And) else disjunction(left, right)
    if isinstance(tree, exp.Not):
        child = expression_of_tree(tree.this)
        return None if child is None else Not(child)
    return _map_predicate(tree)


def _map_predicate(tree: Tree) -> Expression | None:
    """The node for a predicate, None where there is none."""
    from sqlglot import exp

    tree = tree.unnest()
    operator = _OPERATORS.get(type(tree).__name__)
    if operator is not None and has_only(tree, "this", "expression"):
        return _map_comparison(operator, tree.this, tree.expression)
    if isinstance(tree, exp.Not):
        child = _map_predicate(tree.this)
        return None if child is None else Not(child)
    if isinstance(tree, exp.In):
        return _map_in(tree)
    if isinstance(tree, exp.Between) and has_only(tree, "this", "low", "high"):
        lower = _map_comparison(">=", tree.this, tree.args["low"])
        upper = _map_comparison("<=", tree.this, tree.args["high"])
        return None if lower is None or upper is None else conjunction(lower, upper)
    if isinstance(tree, exp.Is) and has_only(tree, "this", "expression"):
        return _map_is(tree)
    if isinstance(tree, exp.Like | exp.Escape):
        return _map_like(tree)
    return _operand(tree)


def _operand(tree: Tree) -> Expression | None:
    from sqlglot import exp

    tree = tree.unnest()
    if isinstance(tree, exp.Column) and has_only(tree, "this", "table", "db", "catalog"):
        return Column(tuple(part.name for part in tree.parts))
    if isinstance(tree, exp.Dot):
        parts = tree.parts
        return Column(tuple(p.name for p in parts)) if all(isinstance(p, exp.Identifier) for p in parts) else None
    return parse_literal(tree)


def _map_comparison(operator: str, left: Tree, right: Tree) -> Expression | None:
    mapped_left, mapped_right = _operand(left), _operand(right)
    if mapped_left is None and isinstance(mapped_right, Literal) and isinstance(mapped_right.value, bool):
        mapped_left = expression_of_tree(left)  # (a < 5) <=> TRUE
    if mapped_left is None or mapped_right is None:
        return None
    return Comparison(operator, mapped_left, mapped_right)


def _map_in(tree: Tree) -> Expression | None:
    child = _operand(tree.this)
    values = [_operand(value) for value in tree.expressions]
    if child is None or not values or not has_only(tree, "this", "expressions"):
        return None
    literals = tuple(value for value in values if isinstance(value, Literal))
    return In(child, literals) if len(literals) == len(values) else None


def _map_is(tree: Tree) -> Expression | None:
    from sqlglot import exp

    child = _operand(tree.this) or expression_of_tree(tree.this)
    if child is None:
        return None
    if isinstance(tree.expression, exp.Null):
        return IsNull(child)
    if isinstance(tree.expression, exp.Boolean) and not isinstance(child, Literal):
        return Comparison("<=>", child, Literal(bool(tree.expression.this), BOOLEAN))
    return None


def _map_like(tree: Tree) -> Expression | None:
    found = like_parts(tree)
    if found is None:
        return None
    subject, pattern, escape, negated = found
    child, prefix = _operand(subject), like_prefix(pattern, escape)
    if not isinstance(child, Column) or prefix is None:
        return None
    return Not(StartsWith(child, prefix)) if negated else StartsWith(child, prefix)


def like_parts(tree: Tree) -> tuple[Tree, str, str, bool] | None:
    """What is matched, the pattern, the escape character, and whether NOT stands before LIKE; None if the pattern is
    not a constant. With ESCAPE, sqlglot keeps the NOT inside."""
    from sqlglot import exp

    escape = "\\"
    if isinstance(tree, exp.Escape):
        if not tree.expression.is_string or len(tree.expression.this) != 1 or not has_only(tree, "this", "expression"):
            return None
        escape, tree = tree.expression.this, tree.this
    if not isinstance(tree, exp.Like) or not has_only(tree, "this", "expression", "negate"):
        return None
    if not tree.expression.is_string:
        return None
    return tree.this, tree.expression.this, escape, bool(tree.args.get("negate"))


def has_only(tree: Tree, *names: str) -> bool:
    """Whether a node says nothing beyond these arguments. What is not looked at must not be there: sqlglot keeps
    modifiers (a NOT, an ESCAPE, a time zone) in further arguments of a node."""
    return all(not value or key in names for key, value in tree.args.items())


def _shorten(text: str) -> str:
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= 200 else flat[:197] + "...")


def _explain(error: Exception) -> str:
    details = getattr(error, "errors", None)
    if details and details[0].get("description"):
        where = f", near {details[0]['highlight']!r}" if details[0].get("highlight") else ""
        return f"{details[0]['description'].rstrip('.')}{where}"
    return " ".join(str(error).split())
