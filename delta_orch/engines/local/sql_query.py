"""SELECT statements of Spark SQL in DuckDB's SQL, typed, from an allow-list.

One query over named relations: WHERE, joins of every kind with ON, USING or NATURAL, GROUP BY with aggregates, HAVING,
window functions, QUALIFY, DISTINCT, set operations, ORDER BY, LIMIT, subqueries and VALUES in FROM, and WITH.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from delta_orch.engines.local.duckdb_query import DuckDBQuery, QueryInput
from delta_orch.engines.local.query_grammar import read_query
from delta_orch.engines.local.query_nodes import (
    From,
    Item,
    Join,
    LateralView,
    Numbers,
    Query,
    Select,
    SetOperation,
    Subquery,
    Values,
    With,
    is_star,
    tests_of,
)
from delta_orch.engines.local.relation import LocalRelation
from delta_orch.engines.local.sql_aggregates import (
    Aggregates,
    OutputColumns,
    Windows,
    group_by,
    group_keys,
    order_key,
    widened,
    without_minus_zero,
)
from delta_orch.engines.local.sql_casts import literal_value, widen
from delta_orch.engines.local.sql_generators import ensure_alone, exploded, is_generator, lateral_view
from delta_orch.engines.local.sql_names import generated_name
from delta_orch.engines.local.sql_operators import in_order
from delta_orch.engines.local.sql_scalars import QueryColumns, Scalars, describe
from delta_orch.engines.local.sql_types import (
    Source,
    Typed,
    common_type,
    common_type_of,
    holds_void,
    is_atomic,
    output_field,
    qualified,
    struct_field,
    unsupported,
)
from delta_orch.errors import ColumnNotFoundError, InvalidExpressionError
from delta_orch.expressions.allowed_functions import WITHOUT_PARENTHESES
from delta_orch.expressions.clock import one_moment, time_told
from delta_orch.expressions.grammar_parts import CLOCKS
from delta_orch.expressions.nodes import And, Column, Expression, Not, Operation, Or
from delta_orch.expressions.resolve import find_column
from delta_orch.expressions.spark_literals import INTEGRAL_RANGES
from delta_orch.expressions.to_sql import quote_duckdb_identifier
from delta_orch.protocol.schema import char_width
from delta_orch.protocol.types import BOOLEAN, LONG, STRING, VOID, StructField, StructType


@dataclass(slots=True)
class _Context:
    """Names that can stand in FROM, and the inputs found so far (shared by nested queries)."""

    relations: Mapping[str, tuple[str, LocalRelation]]
    inputs: dict[str, QueryInput]
    with_queries: dict[str, tuple[Query, _Context]] = field(default_factory=dict)
    subqueries: list[Subquery] = field(default_factory=list)


@one_moment()
def translate_query(query: str, relations: Mapping[str, LocalRelation], *, named: bool = True) -> DuckDBQuery:
    """Translate one query over named relations; their names match without regard to case. `named` as of `Engine.sql`.

    Raises:
        InvalidExpressionError: It is not a query, or Spark refuses it.
        ColumnNotFoundError: It names a column that is not there.
        UnsupportedExpressionError: It is valid, but not proven to mean the same in DuckDB.
    """
    read = read_query(query)
    context = _Context({name.lower(): (name, relation) for name, relation in relations.items()}, {})
    try:
        translated = _query(read, context, is_named=named)
    except RecursionError:
        raise InvalidExpressionError(
            "The query is nested too deeply",
            remedy="Write long alternatives as IN (…)",
            query=query,
        ) from None
    if context.subqueries:
        inputs = {label: replace(used, is_read_often=True) for label, used in context.inputs.items()}
        translated = translated._replace(inputs=inputs)
    if named:
        return translated
    return translated.renamed([f"c{i}" for i in range(len(translated.schema))])


@dataclass(slots=True)
class _Shared:
    """Columns that joins with USING have made one of both sides.

    Attributes:
        columns: They, by their names in lower case, in the order in which they come first in `*`.
        hidden: The columns they are made of, by relation and name in lower case: a name alone is not theirs.
    """

    columns: dict[str, tuple[StructField, Typed]] = field(default_factory=dict)
    hidden: set[tuple[str, str]] = field(default_factory=set)

    def has_hidden(self, source: Source, name: str) -> bool:
        return (source.alias.lower(), name.lower()) in self.hidden


class _SourceColumns(QueryColumns):
    """Columns of the relations in FROM.

    Attributes:
        is_correlated: Whether one of `outer` was found, the columns of the query around this one.
    """

    def __init__(
        self,
        sources: list[Source],
        shared: _Shared | None = None,
        context: _Context | None = None,
        outer: _SourceColumns | None = None,
        tests: Iterable[Expression] = (),
    ) -> None:
        self._sources = sources
        self._shared = shared or _Shared()
        self._context = context
        self._outer = outer
        self._tests = {id(test) for condition in tests for test in tests_of(condition)}
        self.is_correlated = False

    def subquery(self, scalars: Scalars, node: Operation) -> Typed:
        if self._context is None or not isinstance(node, Subquery):
            return super().subquery(scalars, node)
        if node.detail == "IN" and id(node) not in self._tests:
            raise unsupported("IN (SELECT …) that is not a test of its own in WHERE, in SELECT or in CASE WHEN")
        if node.detail == "IN" and isinstance(left := node.arguments[0], Operation) and left.name == "()":
            raise unsupported("a tuple IN (SELECT …)")
        self._context.subqueries.append(node)
        found = _query(node.query, self._context, is_named=False, outer=self)
        if node.detail == "EXISTS":
            return Typed(f"(EXISTS ({found.sql}))", BOOLEAN)
        if len(found.schema) != 1:
            raise InvalidExpressionError(f"A query that stands for one value has {len(found.schema)} columns")
        kind = found.schema.fields[0].data_type
        if not node.detail:
            return Typed(f"({found.sql})", kind)
        value = scalars.scalar(node.arguments[0])
        common = common_type(value.data_type, kind)
        if not is_atomic(common) or (STRING in (value.data_type, kind) and value.data_type != kind):
            raise unsupported(f"{value.data_type} IN a query of {kind}")
        listed = widened(found, StructType((StructField("value", common),)))
        return Typed(f"({widen(value, common).sql} IN ({listed}))", BOOLEAN)

    def spelling(self, name: str) -> str:
        """Of a column that is found by this name alone."""
        if (shared := self._shared.columns.get(name.lower())) is not None:
            return shared[0].name
        spelled = (s.schema.find(name) for s in self._sources if not self._shared.has_hidden(s, name))
        return next(f.name for f in spelled if f is not None)

    def find(self, path: tuple[str, ...], inner: frozenset[str] = frozenset()) -> Typed:
        """See `Columns.find`. `inner`: names of relations of the queries in this one, which hide those of here."""
        if len(path) > 1:
            is_column = any(source.schema.find(path[0]) is not None for source in self._sources)
            for source in self._sources:
                # A column that is called as its relation is meant where the relation has no column of the second name.
                if source.alias.lower() == path[0].lower() and (source.schema.find(path[1]) or not is_column):
                    return _visible(source, inner).find(path[1:])
        matches = [
            source
            for source in self._sources
            if source.schema.find(path[0]) is not None and not self._shared.has_hidden(source, path[0])
        ]
        shared = self._shared.columns.get(path[0].lower())
        if len(matches) + (shared is not None) > 1:
            places = [source.alias for source in matches] + ["the columns of USING"] * (shared is not None)
            raise InvalidExpressionError(
                f"The column {path[0]!r} is ambiguous",
                cause=f"It is in {', '.join(places)}",
                remedy="Write the relation's name before it",
                column=path[0],
            )
        if shared is not None:
            return reduce(struct_field, path[1:], shared[1])
        if not matches and self._outer is not None:
            self.is_correlated = True
            return self._outer.find(path, inner | {source.alias.lower() for source in self._sources})
        if not matches and len(path) == 1 and path[0].lower() in CLOCKS & WITHOUT_PARENTHESES:
            return literal_value(time_told(path[0].lower()))
        if not matches:
            names = [f.name for source in self._sources for f in source.schema]
            find_column(path, StructType(tuple(f for source in self._sources for f in source.schema)))
            raise ColumnNotFoundError(f"There is no column {path[0]!r}", remedy=f"Columns: {', '.join(names[:20])}")
        return _visible(matches[0], inner).find(path)


def _visible(source: Source, inner: frozenset[str]) -> Source:
    if source.alias.lower() in inner:
        raise unsupported(f"a query in another one, with two relations called {source.alias!r} (give them other names)")
    return source


def _query(
    query: Query, context: _Context, *, is_named: bool = True, outer: _SourceColumns | None = None
) -> DuckDBQuery:
    """A query. `is_named` False: nobody sees the names of its columns, so those it leaves out are made up."""
    match query:
        case With(queries, inner):
            known = dict(context.with_queries)
            for name, named in queries:
                # Translated at each mention: inputs are streams, which serve one reader.
                known[name] = (named, replace(context, with_queries=dict(known)))
            return _query(inner, replace(context, with_queries=known), is_named=is_named)
        case SetOperation():
            return _set_operation(query, context, is_named)
        case Values(rows):
            return _values(rows, context)
        case Numbers(limits):
            sql = f"SELECT range AS id FROM range({', '.join(map(str, limits))})"
            return DuckDBQuery(sql, StructType((StructField("id", LONG, False),)), context.inputs)
    return _Select(query, context, is_named, outer).translate()


def _values(rows: Sequence[Sequence[Expression]], context: _Context) -> DuckDBQuery:
    if len({len(row) for row in rows}) > 1:
        raise InvalidExpressionError("The rows of VALUES have different numbers of columns")
    scalars = Scalars(_SourceColumns([]))
    columns = [[scalars.scalar(value) for value in column] for column in zip(*rows, strict=True)]
    kinds = [common_type_of([value.data_type for value in column]) for column in columns]
    widened = [[widen(value, kind).sql for value in column] for column, kind in zip(columns, kinds, strict=True)]
    listed = ", ".join(f"({', '.join(row)})" for row in zip(*widened, strict=True))
    fields = [StructField(f"col{i}", kind) for i, kind in enumerate(kinds, 1)]
    names = ", ".join(f.name for f in fields)
    return DuckDBQuery(f"SELECT * FROM (VALUES {listed}) AS v({names})", StructType(tuple(fields)), context.inputs)


def _set_operation(operation: SetOperation, context: _Context, is_named: bool) -> DuckDBQuery:
    left, right = _query(operation.left, context, is_named=is_named), _query(operation.right, context, is_named=False)
    if len(left.schema) != len(right.schema):
        raise InvalidExpressionError(
            f"The two sides of the {operation.keyword} have different numbers of columns",
            cause=f"{len(left.schema)} on the left, {len(right.schema)} on the right",
        )
    fields = []
    for a, b in zip(left.schema, right.schema, strict=True):
        kinds = {a.data_type, b.data_type} - {VOID}
        if len(kinds) > 1 and not kinds <= INTEGRAL_RANGES.keys():
            raise unsupported(f"the {operation.keyword} of {a.data_type} and {b.data_type}")
        kind = common_type_of([a.data_type, b.data_type])
        fields.append(StructField(a.name, kind, a.nullable or b.nullable))
    schema = StructType(tuple(fields))
    if operation.keyword != "UNION ALL" and not all(is_atomic(f.data_type) for f in fields):
        raise unsupported(f"{operation.keyword} that compares arrays, maps or structs")
    is_plain = operation.keyword == "UNION ALL"
    sides = (widened(side, schema, is_plain) for side in (left, right))
    return DuckDBQuery(f" {operation.keyword} ".join(f"({side})" for side in sides), schema, context.inputs)


class _Select:
    def __init__(self, select: Select, context: _Context, is_named: bool, outer: _SourceColumns | None) -> None:
        self._select = select
        self._outer = outer
        self._is_named = is_named
        self._context = context
        self._sources: list[Source] = []
        self._visible: list[Source] = []
        self._shared = _Shared()

    def translate(self) -> DuckDBQuery:
        select = self._select
        parts = self._from()
        tests = [item.node for item in select.items if not select.group and not isinstance(item.node, And | Or)]
        columns = _SourceColumns(self._sources, self._shared, self._context, tests=tests)
        group = group_keys(select, Scalars(columns))
        aggregates, outputs = Aggregates(columns, group), Windows(columns, group, select.windows)
        projection, fields = self._projection(outputs)
        for number in map(int, filter(str.isdigit, group)):  # behind a star
            output = Typed(projection[number - 1], fields[number - 1].data_type)
            projection[number - 1] = without_minus_zero(output).sql
        if select.where is not None:
            of_rows = _SourceColumns(self._sources, self._shared, self._context, self._outer, [select.where])
            parts.append(f"WHERE {Scalars(of_rows).condition(select.where)}")
            if of_rows.is_correlated:
                self._ensure_plain()
        if group:
            parts.append(group_by(select, Scalars(columns), group))
        if select.having is not None:
            # Columns that are keys of GROUP BY come before names of the SELECT list, as in Spark.
            nodes = (*select.group, *(item.node for item in select.items))
            grouped = {node.path[-1].lower() for node in nodes if isinstance(node, Column)}
            having = Aggregates(OutputColumns(columns, projection, fields, grouped), group, columns)
            parts.append(f"{'AND' if select.grouping else 'HAVING'} ({having.condition(select.having)})")
        if select.qualify is not None:
            qualified_by = Windows(OutputColumns(columns, projection, fields), group, select.windows)
            parts.append(f"QUALIFY {qualified_by.condition(select.qualify)}")
        if select.order:
            names = {f.name.lower(): f for f in fields}
            keys = (order_key(key, aggregates, names, fields) for key in select.order)
            parts.append(f"ORDER BY {', '.join(keys)}")
        counts = {"LIMIT": select.limit, "OFFSET": select.offset}
        parts += [f"{word} {count}" for word, count in counts.items() if count is not None]
        if select.distinct:
            if not all(is_atomic(f.data_type) for f in fields):
                raise unsupported("DISTINCT over arrays, maps or structs")
            pairs = zip(projection, fields, strict=True)
            projection = [without_minus_zero(Typed(text, f.data_type)).sql for text, f in pairs]
        named = (f"{text} AS {quote_duckdb_identifier(f.name)}" for text, f in zip(projection, fields, strict=True))
        sql = " ".join([f"SELECT {'DISTINCT ' if select.distinct else ''}{', '.join(named)}", *parts])
        return DuckDBQuery(sql, StructType(tuple(fields)), self._context.inputs)

    def _ensure_plain(self) -> None:
        """Of a query that looks at the rows of the one around it: only these are known to mean the same."""
        select = self._select
        parts = (select.group, select.having, select.qualify, select.limit, select.offset, select.distinct)
        if any(parts):
            raise unsupported("a query about the rows around it, with more than FROM and WHERE")

    def _from(self) -> list[str]:
        if self._select.source is None:
            return []
        joins = map(self._join, self._select.joins)
        return [f"FROM {self._source(self._select.source)}", *joins, *map(self._view, self._select.views)]

    def _view(self, view: LateralView) -> str:
        text, source = lateral_view(view, self._scalars_of_sources())
        self._add(source, visible=True)
        return text

    def _scalars_of_sources(self) -> Scalars:
        return Scalars(_SourceColumns(self._sources, self._shared))

    def _source(self, item: From, *, visible: bool = True) -> str:
        if isinstance(item.relation, str):
            source, text = self._table(item.relation, item.alias or item.relation)
        else:
            inner = _query(item.relation, self._context, is_named=not item.columns)
            inner = inner.renamed(item.columns) if item.columns else inner
            source, text = Source(item.alias or f"q{len(self._sources)}", inner.schema), f"({inner.sql})"
        self._add(source, visible=visible)
        return f"{text} AS {quote_duckdb_identifier(source.alias)}"

    def _add(self, source: Source, *, visible: bool) -> None:
        alias = source.alias
        if any(other.alias.lower() == alias.lower() for other in self._sources):
            raise InvalidExpressionError(f"Two relations in FROM are called {alias!r}", remedy="Give one an alias")
        self._sources.append(source)
        if visible:
            self._visible.append(source)

    def _table(self, name: str, alias: str) -> tuple[Source, str]:
        if (found_query := self._context.with_queries.get(name.lower())) is not None:
            inner = _query(*found_query)
            return Source(alias, inner.schema), f"({inner.sql})"
        found = self._context.relations.get(name.lower())
        if found is None:
            raise InvalidExpressionError(
                f"There is no relation {name!r}",
                remedy=f"Write delta.`path`, or pass it: tables={{{name!r}: DeltaTable(…)}}",
                relation=name,
            )
        label = f"input_{len(self._context.inputs)}"
        source = Source(alias, found[1].schema)
        self._context.inputs[label] = QueryInput(found[1], source.used)
        return source, quote_duckdb_identifier(label)

    def _join(self, join: Join) -> str:
        hidden = join.keyword in ("SEMI JOIN", "ANTI JOIN")
        left = _SourceColumns(list(self._sources), _Shared(self._shared.columns, set(self._shared.hidden)))
        source = self._source(join.source, visible=not hidden)
        if join.condition is None and join.using == ():
            return f"{join.keyword} {source}"
        scalars = Scalars(_SourceColumns(self._sources, self._shared))
        if join.condition is not None:
            condition = scalars.condition(join.condition)
        else:
            names = self._common_names() if join.using is None else join.using
            condition = self._alike(join.keyword, names, left, scalars)
        if hidden:
            self._sources.pop()
        return f"{join.keyword} {source} ON {condition}"

    def _common_names(self) -> list[str]:
        """Of NATURAL: those that both sides spell alike."""
        *before, right = self._sources
        return [f.name for _, _, f in self._columns_of(before) if f.name in right.schema.names]

    def _alike(self, keyword: str, names: Sequence[str], left: _SourceColumns, scalars: Scalars) -> str:
        """The condition of a join USING columns, which are those of both sides from here on."""
        right = _SourceColumns(self._sources[-1:])
        pairs = [(name, left.find((name,)), right.find((name,))) for name in names]
        made = {}
        for name, own, other in pairs:
            value = other if keyword == "RIGHT JOIN" else own
            if keyword == "FULL JOIN":
                kind = common_type(own.data_type, other.data_type)
                value = Typed(f"coalesce({widen(own, kind).sql}, {widen(other, kind).sql})", kind)
            spelled = (right if keyword == "RIGHT JOIN" else left).spelling(name)
            made[name.lower()] = (StructField(spelled, value.data_type), value)
        sources = self._sources[:-1] if keyword in ("SEMI JOIN", "ANTI JOIN") else self._sources
        self._shared.columns = made | {k: v for k, v in self._shared.columns.items() if k not in made}
        self._shared.hidden |= {(source.alias.lower(), name) for source in sources for name in made}
        return in_order("AND", [scalars.equal(own, other) for _, own, other in pairs]) if pairs else "TRUE"

    def _projection(self, scalars: Scalars) -> tuple[list[str], list[StructField]]:
        texts: list[str] = []
        fields: list[StructField] = []
        for item in self._select.items:
            for text, output in self._output(item, scalars):
                texts.append(text)
                fields.append(output)
        names = [output.name.lower() for output in fields]
        if self._is_named and len(set(names)) < len(names):
            raise InvalidExpressionError(
                "Two columns of the result have the same name",
                remedy="Give one an alias with AS",
                columns=[output.name for output in fields],
            )
        return texts, fields

    def _output(self, item: Item, scalars: Scalars) -> list[tuple[str, StructField]]:
        node, alias, names = item.node, item.alias, item.aliases
        if is_star(node) and isinstance(node, Operation) and alias is None:
            named = {source.alias.lower() for source in self._visible}
            found = [s.schema.find(node.detail) for s in self._visible if node.detail.lower() not in named]
            if node.arguments or not any(f and isinstance(f.data_type, StructType) for f in found):
                return self._star(node.detail, node.arguments)
            whole = scalars.scalar(Column((node.detail,)))
            assert isinstance(whole.data_type, StructType)
            return [(struct_field(whole, f.name).sql, replace(f, nullable=True)) for f in whole.data_type]
        if is_generator(node):
            ensure_alone(node, self._select)
            return exploded(node, names or ((alias,) if alias else ()), self._scalars_of_sources())
        if names:
            raise unsupported(f"{describe(node)} AS several columns")
        name = alias
        value = scalars.scalar(node)
        match node:
            case Subquery(detail="IN") | Not(Subquery(detail="IN")) | Operation("NOT", (Subquery(detail="IN"),)):
                value = replace(value, sql=f"coalesce({value.sql}, FALSE)")  # as Spark has it: never null
        if name is None and isinstance(node, Column):
            # A constant has the name of no column: it is of the clock.
            name = node.path[-1] if value.literal is None else f"{node.path[-1].lower()}()"
        if name is None and self._is_named:
            name = generated_name(node, self._path_of, lambda part: scalars.scalar(part).data_type)
            if name is None:
                raise unsupported(f"a column without a name, {describe(node)}: write AS and a name after it")
        if self._is_named and value.data_type != VOID and holds_void(value.data_type):
            raise unsupported(f"{describe(node)}, whose type has a part without one: cast it")
        return [(value.sql, output_field(name or "unnamed", value.data_type, value.char_width))]

    def _path_of(self, path: tuple[str, ...]) -> tuple[str, ...]:
        is_relation = len(path) > 1 and any(source.alias.lower() == path[0].lower() for source in self._sources)
        return path[1:] if is_relation else path

    def _star(self, alias: str, left_out: Sequence[Expression]) -> list[tuple[str, StructField]]:
        sources = [s for s in self._visible if not alias or s.alias.lower() == alias.lower()]
        if not sources:
            known = ", ".join(source.alias for source in self._visible)
            raise InvalidExpressionError(
                f"There is no relation {alias!r} in FROM" if alias else "There is no FROM for *",
                remedy=f"FROM has {known}" if known else "Name a relation in FROM",
            )
        if alias and self._shared.columns:
            raise unsupported(f"{alias}.* beside USING")
        dropped = set()
        for column in left_out:
            if not isinstance(column, Column) or len(column.path) > 1:
                raise unsupported(f"* EXCEPT ({describe(column)})")
            dropped.add(_SourceColumns(sources, self._shared).find(column.path).sql)
        found = [one for one in self._columns_of(sources) if one[0] not in dropped]
        for _, source, output in found:
            if source is not None:
                source.used.add(output.name)
        return [(sql, output) for sql, _, output in found]

    def _columns_of(self, sources: Sequence[Source]) -> list[tuple[str, Source | None, StructField]]:
        """The columns that `*` stands for: those of USING, and of each relation the others."""
        outer = len(self._sources) > 1
        found: list[tuple[str, Source | None, StructField]]
        found = [(value.sql, None, replace(f, nullable=True)) for f, value in self._shared.columns.values()]
        for source in sources:
            for f in source.schema:
                if not self._shared.has_hidden(source, f.name):
                    output = output_field(f.name, f.data_type, char_width(f), f.nullable or outer)
                    found.append((qualified(source.alias, f.name), source, output))
        return found
