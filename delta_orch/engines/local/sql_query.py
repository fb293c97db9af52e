"""SELECT statements of Spark SQL in DuckDB's SQL, typed, from an allow-list.

One query over named relations: projection, WHERE, inner, outer, semi and anti joins with ON, GROUP BY with `count`,
`sum`, `min`, `max` and `avg`, HAVING, DISTINCT, UNION [ALL], ORDER BY, LIMIT, subqueries in FROM and WITH.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from delta_orch.engines.local.duckdb_query import DuckDBQuery, QueryInput
from delta_orch.engines.local.relation import LocalRelation
from delta_orch.engines.local.sql_casts import widen
from delta_orch.engines.local.sql_scalars import Scalars, describe
from delta_orch.engines.local.sql_types import (
    Source,
    Typed,
    common_type_of,
    is_atomic,
    is_number,
    qualified,
    unsupported,
)
from delta_orch.errors import ColumnNotFoundError, InvalidExpressionError
from delta_orch.expressions.parse_literals import Tree
from delta_orch.expressions.resolve import find_column
from delta_orch.expressions.spark_literals import INTEGRAL_RANGES, MAX_DECIMAL_DIGITS
from delta_orch.expressions.spark_syntax import has_only, parse_spark_statement
from delta_orch.expressions.to_sql import duckdb_type, quote_duckdb_identifier
from delta_orch.protocol.types import DOUBLE, FLOAT, LONG, VOID, DecimalType, StructField, StructType

_SELECT_PARTS = frozenset(
    {"expressions", "from", "from_", "joins", "where", "group", "having", "order", "limit", "distinct", "with", "with_"}
)
_JOINS = {
    ("", ""): "INNER JOIN", ("", "INNER"): "INNER JOIN", ("LEFT", ""): "LEFT JOIN", ("LEFT", "OUTER"): "LEFT JOIN",
    ("RIGHT", ""): "RIGHT JOIN", ("RIGHT", "OUTER"): "RIGHT JOIN", ("FULL", ""): "FULL JOIN",
    ("FULL", "OUTER"): "FULL JOIN", ("LEFT", "SEMI"): "SEMI JOIN", ("", "SEMI"): "SEMI JOIN",
    ("LEFT", "ANTI"): "ANTI JOIN", ("", "ANTI"): "ANTI JOIN", ("", "CROSS"): "CROSS JOIN",
}  # fmt: skip


@dataclass(slots=True)
class _Context:
    """Names that can stand in FROM, and the inputs found so far (shared by nested queries)."""

    relations: Mapping[str, tuple[str, LocalRelation]]
    inputs: dict[str, QueryInput]
    with_queries: dict[str, tuple[Tree, _Context]] = field(default_factory=dict)


def translate_query(query: str, relations: Mapping[str, LocalRelation], *, named: bool = True) -> DuckDBQuery:
    """Translate one query over named relations; their names match without regard to case. `named` as of `Engine.sql`.

    Raises:
        InvalidExpressionError: It is not a query, or Spark refuses it.
        ColumnNotFoundError: It names a column that is not there.
        UnsupportedExpressionError: It is valid, but not proven to mean the same in DuckDB.
    """
    tree = parse_spark_statement(query)
    context = _Context({name.lower(): (name, relation) for name, relation in relations.items()}, {})
    try:
        translated = _query(tree, context, is_named=named)
    except RecursionError:
        raise InvalidExpressionError(
            "The query is nested too deeply",
            remedy="Write long alternatives as IN (…)",
            query=query,
        ) from None
    if named:
        return translated
    fields = tuple(replace(f, name=f"c{i}") for i, f in enumerate(translated.schema))
    listed = ", ".join(f.name for f in fields)
    return translated._replace(sql=f"SELECT * FROM ({translated.sql}) AS q({listed})", schema=StructType(fields))


class _SourceColumns:
    """Columns of the relations in FROM."""

    def __init__(self, sources: list[Source]) -> None:
        self._sources = sources

    def find(self, path: tuple[str, ...]) -> Typed:
        if len(path) > 1:
            for source in self._sources:
                if source.alias.lower() == path[0].lower():
                    return source.find(path[1:])
        matches = [source for source in self._sources if source.schema.find(path[0]) is not None]
        if len(matches) > 1:
            raise InvalidExpressionError(
                f"The column {path[0]!r} is ambiguous",
                cause=f"It is in {', '.join(source.alias for source in matches)}",
                remedy="Write the relation's name before it",
                column=path[0],
            )
        if not matches:
            names = [f.name for source in self._sources for f in source.schema]
            find_column(path, StructType(tuple(f for source in self._sources for f in source.schema)))
            raise ColumnNotFoundError(f"There is no column {path[0]!r}", remedy=f"Columns: {', '.join(names[:20])}")
        return matches[0].find(path)


class _Aggregates(Scalars):
    """Scalars in a SELECT list or HAVING, where aggregate functions may stand."""

    def scalar(self, tree: Tree) -> Typed:
        tree = tree.unnest()
        rule = _AGGREGATES.get(type(tree).__name__)
        if rule is None:
            return super().scalar(tree)
        if not has_only(tree, "this", "expressions", "big_int"):
            raise unsupported(describe(tree))
        return rule(self, tree)

    def count(self, tree: Tree) -> Typed:
        if type(tree.this).__name__ == "Star" and not tree.expressions and has_only(tree.this):
            return Typed("count(*)", LONG)
        argument, distinct = _aggregate_argument(tree)
        value = Scalars(self._columns).scalar(argument)
        if distinct and not is_atomic(value.data_type):
            raise unsupported(describe(tree))
        return count_of(value, distinct)

    def sum(self, tree: Tree) -> Typed:
        argument, distinct = _aggregate_argument(tree)
        return sum_of(Scalars(self._columns).scalar(argument), distinct)

    def average(self, tree: Tree) -> Typed:
        argument, distinct = _aggregate_argument(tree)
        value = Scalars(self._columns).scalar(argument)
        if not is_number(value.data_type) or isinstance(value.data_type, DecimalType):
            raise unsupported(describe(tree))
        return Typed(f"avg({distinct}{widen(value, DOUBLE).sql})", DOUBLE)

    def extreme_of(self, tree: Tree) -> Typed:
        if tree.expressions:
            raise unsupported(describe(tree))
        return extreme_of(type(tree).__name__.lower(), Scalars(self._columns).scalar(tree.this))


def count_of(value: Typed, distinct: str = "") -> Typed:
    """How many values are not null. `distinct` is empty or `DISTINCT `."""
    return Typed(f"count({distinct}{value.sql})", LONG)


def sum_of(value: Typed, distinct: str = "") -> Typed:
    """The sum in Spark's type. Raises UnsupportedExpressionError for what is not a number."""
    if value.data_type in INTEGRAL_RANGES:
        return Typed(f"CAST(sum({distinct}{value.sql}) AS BIGINT)", LONG)
    if value.data_type in (FLOAT, DOUBLE):
        return Typed(f"sum({distinct}{widen(value, DOUBLE).sql})", DOUBLE)
    if isinstance(value.data_type, DecimalType):
        kind = DecimalType(min(value.data_type.precision + 10, MAX_DECIMAL_DIGITS), value.data_type.scale)
        return Typed(f"CAST(sum({distinct}{value.sql}) AS {duckdb_type(kind)})", kind)
    raise unsupported(f"a sum of {value.data_type}")


def extreme_of(function: str, value: Typed) -> Typed:
    """`min` or `max`. Raises UnsupportedExpressionError for arrays, maps, structs and variants."""
    if not is_atomic(value.data_type):
        raise unsupported(f"{function} of {value.data_type}")
    return Typed(f"{function}({value.sql})", value.data_type)


def _aggregate_argument(tree: Tree) -> tuple[Tree, str]:
    """The one argument, and `DISTINCT ` where it is written."""
    if tree.expressions:
        raise unsupported(describe(tree))
    if type(tree.this).__name__ == "Distinct":
        if len(tree.this.expressions) != 1 or not has_only(tree.this, "expressions"):
            raise unsupported(describe(tree))
        return tree.this.expressions[0], "DISTINCT "
    return tree.this, ""


_AGGREGATES: dict[str, Callable[[_Aggregates, Tree], Typed]] = {
    "Count": _Aggregates.count,
    "Sum": _Aggregates.sum,
    "Avg": _Aggregates.average,
    "Min": _Aggregates.extreme_of,
    "Max": _Aggregates.extreme_of,
}


def _own_name(tree: Tree) -> str | None:
    """What Spark calls a column without AS: a constant, an aggregate of a column or of all rows. None for all else."""
    kind = type(tree).__name__
    if kind == "Literal" and (tree.is_string or tree.name.isdigit()):
        return str(tree.name)
    if kind not in _AGGREGATES:
        return None
    argument, distinct = _aggregate_argument(tree)
    if type(argument).__name__ == "Star" and has_only(argument):
        return f"{tree.key}(1)"
    return f"{tree.key}({distinct}{argument.name})" if type(argument).__name__ == "Column" else None


def _query(tree: Tree, context: _Context, *, is_named: bool = True) -> DuckDBQuery:
    """A query. `is_named` False: nobody sees the names of its columns, so those it leaves out are made up."""
    name = type(tree).__name__
    context = _with_queries(tree, context)
    if name == "Subquery":
        return _query(tree.this, context, is_named=is_named)
    if name == "Union":
        return _union(tree, context, is_named)
    if name == "Select":
        return _Select(tree, context, is_named).translate()
    raise unsupported(describe(tree))


def _with_queries(tree: Tree, context: _Context) -> _Context:
    clause = tree.args.get("with_") or tree.args.get("with")
    if clause is None:
        return context
    if not has_only(clause, "expressions"):
        raise unsupported("WITH RECURSIVE")
    known = dict(context.with_queries)
    for item in clause.expressions:
        if not has_only(item, "this", "alias") or not has_only(item.args["alias"], "this"):
            raise unsupported("WITH and a list of columns")
        # Translated at each mention: inputs are streams, which serve one reader.
        known[item.alias.lower()] = (item.this, replace(context, with_queries=dict(known)))
    return replace(context, with_queries=known)


def _union(tree: Tree, context: _Context, is_named: bool) -> DuckDBQuery:
    if not has_only(tree, "this", "expression", "distinct", "with", "with_"):
        raise unsupported(describe(tree))
    left, right = _query(tree.this, context, is_named=is_named), _query(tree.expression, context, is_named=False)
    if len(left.schema) != len(right.schema):
        raise InvalidExpressionError(
            "The two sides of the UNION have different numbers of columns",
            cause=f"{len(left.schema)} on the left, {len(right.schema)} on the right",
        )
    fields = []
    for a, b in zip(left.schema, right.schema, strict=True):
        kinds = {a.data_type, b.data_type} - {VOID}
        if len(kinds) > 1 and not kinds <= INTEGRAL_RANGES.keys():
            raise unsupported(f"a UNION of {a.data_type} and {b.data_type}")
        kind = common_type_of([a.data_type, b.data_type])
        fields.append(StructField(a.name, kind, a.nullable or b.nullable))
    schema = StructType(tuple(fields))
    if tree.args.get("distinct") and not all(is_atomic(f.data_type) for f in fields):
        raise unsupported("a UNION that compares arrays, maps or structs")
    keyword = "UNION" if tree.args.get("distinct") else "UNION ALL"
    return DuckDBQuery(f"({_widened(left, schema)}) {keyword} ({_widened(right, schema)})", schema, context.inputs)


def _widened(query: DuckDBQuery, schema: StructType) -> str:
    """A side of a UNION, in the types that both sides have together."""
    pairs = list(zip(query.schema, schema, strict=True))
    if all(own.data_type == target.data_type for own, target in pairs):
        return query.sql
    names = [f"c{number}" for number in range(len(pairs))]
    columns = []
    for name, (own, target) in zip(names, pairs, strict=True):
        value = widen(Typed(f"side.{name}", own.data_type), target.data_type)
        columns.append(f"{value.sql} AS {quote_duckdb_identifier(target.name)}")
    return f"SELECT {', '.join(columns)} FROM ({query.sql}) AS side({', '.join(names)})"


class _Select:
    def __init__(self, tree: Tree, context: _Context, is_named: bool) -> None:
        if not has_only(tree, *_SELECT_PARTS):
            raise unsupported(describe(tree))
        self._tree = tree
        self._is_named = is_named
        self._context = context
        self._sources: list[Source] = []
        self._visible: list[Source] = []

    def translate(self) -> DuckDBQuery:
        tree = self._tree
        parts = self._from()
        columns = _SourceColumns(self._sources)
        scalars, aggregates = Scalars(columns), _Aggregates(columns)
        projection, fields = self._projection(aggregates)
        if where := tree.args.get("where"):
            parts.append(f"WHERE {scalars.boolean(where.this)}")
        if group := tree.args.get("group"):
            parts.append(f"GROUP BY {self._group(group, scalars)}")
        if having := tree.args.get("having"):
            parts.append(f"HAVING {aggregates.boolean(having.this)}")
        if order := tree.args.get("order"):
            parts.append(f"ORDER BY {self._order(order, aggregates, fields)}")
        if limit := tree.args.get("limit"):
            parts.append(f"LIMIT {_row_count(limit.expression)}")
        distinct = self._distinct(fields)
        sql = " ".join([f"SELECT {distinct}{', '.join(projection)}", *parts])
        return DuckDBQuery(sql, StructType(tuple(fields)), self._context.inputs)

    def _from(self) -> list[str]:
        clause = self._tree.args.get("from_") or self._tree.args.get("from")
        if clause is None:
            return []
        parts = [f"FROM {self._source(clause.this)}"]
        for join in self._tree.args.get("joins") or ():
            parts.append(self._join(join))
        return parts

    def _source(self, tree: Tree, *, visible: bool = True) -> str:
        name = type(tree).__name__
        if name not in ("Table", "Subquery") or not has_only(tree, "this", "alias", "with", "with_"):
            raise unsupported(describe(tree))
        if name == "Subquery":
            inner = _query(tree, self._context)
            source = Source(tree.alias or f"q{len(self._sources)}", inner.schema)
            text = f"({inner.sql})"
        else:
            source, text = self._table(tree)
        alias = source.alias
        if any(other.alias.lower() == alias.lower() for other in self._sources):
            raise InvalidExpressionError(f"Two relations in FROM are called {alias!r}", remedy="Give one an alias")
        self._sources.append(source)
        if visible:
            self._visible.append(source)
        return f"{text} AS {quote_duckdb_identifier(alias)}"

    def _table(self, tree: Tree) -> tuple[Source, str]:
        name = tree.name
        if type(tree.this).__name__ != "Identifier" or (tree.args.get("alias") and tree.args["alias"].columns):
            raise unsupported(describe(tree))
        alias = tree.alias or name
        if (found_query := self._context.with_queries.get(name.lower())) is not None:
            inner = _query(*found_query)
            return Source(alias, inner.schema), f"({inner.sql})"
        found = self._context.relations.get(name.lower())
        if found is None:
            raise InvalidExpressionError(
                f"There is no relation {name!r}",
                remedy=f"Relations: {', '.join(key for key, _ in self._context.relations.values())}",
                relation=name,
            )
        label = f"input_{len(self._context.inputs)}"
        source = Source(alias, found[1].schema)
        self._context.inputs[label] = QueryInput(found[1], source.used)
        return source, quote_duckdb_identifier(label)

    def _join(self, tree: Tree) -> str:
        keyword = _JOINS.get((tree.side or "", tree.kind or ""))
        if keyword is None or not has_only(tree, "this", "side", "kind", "on"):
            raise unsupported(describe(tree))
        on = tree.args.get("on")
        if on is None and keyword == "INNER JOIN":
            keyword = "CROSS JOIN"
        hidden = keyword in ("SEMI JOIN", "ANTI JOIN")
        source = self._source(tree.this, visible=not hidden)
        if keyword == "CROSS JOIN" and on is None:
            return f"{keyword} {source}"
        if keyword == "CROSS JOIN" or on is None:
            raise unsupported(describe(tree))
        condition = Scalars(_SourceColumns(self._sources)).boolean(on)
        if hidden:
            self._sources.pop()
        return f"{keyword} {source} ON {condition}"

    def _projection(self, scalars: Scalars) -> tuple[list[str], list[StructField]]:
        texts: list[str] = []
        fields: list[StructField] = []
        for item in self._tree.expressions:
            for text, output in self._output(item, scalars):
                texts.append(f"{text} AS {quote_duckdb_identifier(output.name)}")
                fields.append(output)
        names = [output.name.lower() for output in fields]
        if self._is_named and len(set(names)) < len(names):
            raise InvalidExpressionError(
                "Two columns of the result have the same name",
                remedy="Give one an alias with AS",
                columns=[output.name for output in fields],
            )
        return texts, fields

    def _output(self, item: Tree, scalars: Scalars) -> list[tuple[str, StructField]]:
        kind = type(item).__name__
        if kind == "Star" or (kind == "Column" and type(item.this).__name__ == "Star"):
            star = item.this if kind == "Column" else item
            if not has_only(star):
                raise unsupported(describe(item))
            return self._star(item.args["table"].name if kind == "Column" else None)
        if kind == "Alias":
            value, name = scalars.scalar(item.this), item.alias
        elif kind in ("Column", "Dot"):
            value, name = scalars.scalar(item), item.name
        elif (given := _own_name(item)) is not None or not self._is_named:
            value, name = scalars.scalar(item), given or "unnamed"
        else:
            raise unsupported(f"a column without a name, {describe(item)}: write AS and a name after it")
        return [(value.sql, StructField(name, value.data_type))]

    def _star(self, alias: str | None) -> list[tuple[str, StructField]]:
        sources = [s for s in self._visible if alias is None or s.alias.lower() == alias.lower()]
        if not sources:
            known = ", ".join(source.alias for source in self._visible)
            raise InvalidExpressionError(
                f"There is no relation {alias!r} in FROM" if alias else "There is no FROM for *",
                remedy=f"FROM has {known}" if known else "Name a relation in FROM",
            )
        outer = len(self._sources) > 1
        for source in sources:
            source.used.update(source.schema.names)
        return [
            (qualified(source.alias, f.name), StructField(f.name, f.data_type, f.nullable or outer))
            for source in sources
            for f in source.schema
        ]

    def _group(self, tree: Tree, scalars: Scalars) -> str:
        if not has_only(tree, "expressions"):
            raise unsupported(describe(tree))
        keys = []
        for item in tree.expressions:
            literal = type(item).__name__ == "Literal" and item.is_number
            value = Typed(item.this, LONG) if literal else scalars.scalar(item)
            if not is_atomic(value.data_type):
                raise unsupported(f"GROUP BY {value.data_type}")
            keys.append(value.sql)
        return ", ".join(keys)

    def _order(self, tree: Tree, scalars: Scalars, fields: list[StructField]) -> str:
        names = {f.name.lower(): f for f in fields}
        keys = []
        for item in tree.expressions:
            if type(item).__name__ != "Ordered" or not has_only(item, "this", "desc", "nulls_first"):
                raise unsupported(describe(item))
            unqualified = type(item.this).__name__ == "Column" and not item.this.table
            own = names.get(item.this.name.lower()) if unqualified else None
            value = Typed(quote_duckdb_identifier(own.name), own.data_type) if own else scalars.scalar(item.this)
            if not is_atomic(value.data_type) or value.literal is not None:
                raise unsupported(f"ORDER BY {describe(item.this)}")
            nulls = "FIRST" if item.args.get("nulls_first") else "LAST"
            keys.append(f"{value.sql} {'DESC' if item.args.get('desc') else 'ASC'} NULLS {nulls}")
        return ", ".join(keys)

    def _distinct(self, fields: list[StructField]) -> str:
        clause = self._tree.args.get("distinct")
        if not clause:
            return ""
        if not has_only(clause) or not all(is_atomic(f.data_type) for f in fields):
            raise unsupported("DISTINCT ON, or DISTINCT over arrays, maps or structs")
        return "DISTINCT "


def _row_count(tree: Tree) -> str:
    if type(tree).__name__ != "Literal" or not str(tree.this).isdigit():
        raise unsupported("LIMIT with anything but a number")
    return str(tree.this)
