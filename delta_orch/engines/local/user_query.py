"""A user's query in DuckDB's own SQL: one SELECT over named relations, without files, network and extensions.

DuckDB's parser tells which tables the query reads. Files that the log rules out are not opened.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.local.duckdb_query import TYPES, DuckDBQuery, QueryInput, run_query
from delta_orch.engines.local.duckdb_session import QUERY_REMEDY, connect, duckdb_errors
from delta_orch.engines.local.relation import LocalRelation
from delta_orch.engines.local.scan import scan_relation
from delta_orch.errors import DeltaError, InvalidExpressionError, UnsupportedExpressionError
from delta_orch.expressions.nodes import Column, Comparison, Expression, In, IsNull, Literal, Not
from delta_orch.expressions.resolve import resolve_predicate
from delta_orch.expressions.spark_literals import INTEGRAL_RANGES
from delta_orch.expressions.tree import conjunction, disjunction
from delta_orch.log.files.file_columns import FileTable
from delta_orch.protocol.arrow_building import schema_from_arrow
from delta_orch.protocol.schema import char_width
from delta_orch.protocol.types import (
    DATE,
    DOUBLE,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    DecimalType,
    StructField,
    StructType,
)

_Node = dict[str, Any]
"""A node of DuckDB's syntax tree."""

_TABLE_FUNCTIONS = frozenset({"generate_series", "json_each", "json_tree", "range", "repeat", "unnest"})
"""Table functions that make rows of their arguments. Others read files, run text as a query, or show the database."""
_OPERATORS = {
    "COMPARE_EQUAL": "=", "COMPARE_NOTEQUAL": "!=", "COMPARE_LESSTHAN": "<", "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">", "COMPARE_GREATERTHANOREQUALTO": ">=",
}  # fmt: skip
_FLIPPED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_DAY = r"[12]\d{3}-\d\d-\d\d"
_TIME = rf"{_DAY} \d\d:\d\d:\d\d(?:\.\d{{1,6}})?"


def queried(query: str, relations: Mapping[str, LocalRelation], *, named: bool = True) -> LocalRelation:
    """The rows of a query, which runs once for each pass over them. See `Engine.sql`."""
    first = [open_query(query, relations)]
    names = first[0].schema.names if named else [f"c{i}" for i in range(len(first[0].schema))]
    if len({name.lower() for name in names}) < len(names):
        raise InvalidExpressionError(
            "Two columns of the result have the same name", remedy="Give one an alias with AS", columns=names
        )
    kinds = first[0].schema.metadata[TYPES].decode().split("\n")
    # The sum of integers is one of 128 bits in DuckDB, which no table has: a larger value than a long raises.
    fields = [
        pa.field(name, pa.int64() if kind == "HUGEINT" else field.type)
        for name, field, kind in zip(names, first[0].schema, kinds, strict=False)
    ]

    def batches() -> Iterator[pa.RecordBatch]:
        reader = first.pop() if first else open_query(query, relations)
        return (batch.rename_columns(names) for batch in reader)

    schema = schema_from_arrow(pa.schema(fields))
    return LocalRelation(schema, batches)


def open_query(query: str, relations: Mapping[str, LocalRelation]) -> pa.RecordBatchReader:
    """The rows of a query as a stream, in Arrow's counterparts of DuckDB's types, which are the metadata `TYPES`. Times
    are in UTC.

    Only files of the relations are opened, and of them the columns that the query names. A simple condition on a
    table's columns leaves out files by partition values and statistics.

    Raises:
        InvalidExpressionError: It is not a query, DuckDB refuses it, or it fails for a row.
        UnsupportedExpressionError: It is another statement, or calls a table function that may read more.
        MissingDependencyError: DuckDB is not installed.
    """
    connection = connect()
    try:
        with duckdb_errors("The query cannot be read", QUERY_REMEDY):
            ((tree,),) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()
        inputs = _Reads(_select_of(json.loads(tree), query)).inputs(relations)
        rows = run_query(DuckDBQuery(query, None, inputs), connection)
        return pa.RecordBatchReader.from_batches(next(rows).schema, rows)
    except BaseException:
        connection.close()
        raise


def _select_of(tree: _Node, query: str) -> _Node:
    """The one SELECT of a text that DuckDB has read."""
    if tree["error"] and tree["error_type"] == "not implemented":
        raise UnsupportedExpressionError(
            "A statement that is no SELECT is not supported", cause=f"The text is {query[:200]!a}"
        )
    if tree["error"]:
        cause = str(tree["error_message"]).split("\n")[0]
        raise InvalidExpressionError("DuckDB cannot read the query", cause=cause, remedy=QUERY_REMEDY, query=query)
    if len(tree["statements"]) != 1:
        raise InvalidExpressionError("The text holds not one query", remedy="Write one SELECT", query=query)
    node: _Node = tree["statements"][0]["node"]
    return node


def _nodes(part: object) -> Iterator[_Node]:
    """The nodes of a tree, each before those in it."""
    if isinstance(part, dict):
        yield part
        part = list(part.values())
    if isinstance(part, list):
        for child in part:
            yield from _nodes(child)


class _Reads:
    """The tables that a query reads. Raises UnsupportedExpressionError for table functions that may read more."""

    def __init__(self, tree: _Node) -> None:
        nodes = list(_nodes(tree))
        for node in nodes:
            if node.get("type") == "TABLE_FUNCTION":
                name = node["function"]["function_name"]
                if name.lower() not in _TABLE_FUNCTIONS:
                    raise UnsupportedExpressionError(
                        f"The table function {name[:100]} is not supported",
                        cause="A query reads only the tables that it is given",
                        remedy="Pass its rows in tables=, for example as an Arrow table",
                        construct=name[:100],
                    )
        self._words = {value.lower() for node in nodes for value in _texts(node)}
        self._tables = [node for node in nodes if node.get("type") == "BASE_TABLE"]
        self._queries = {entry["key"].lower() for node in nodes for entry in node.get("cte_map", {}).get("map", ())}
        self._queries |= {node["cte_name"].lower() for node in nodes if isinstance(node.get("cte_name"), str)}
        self._selects = [node for node in nodes if node.get("type") == "SELECT_NODE"]
        aliases = {(node["alias"] or node["table_name"]).lower() for node in self._tables}
        self._names_all = any(map(_names_all_columns, nodes)) or any(
            len(path) == 1 and path[0].lower() in aliases
            for node in nodes
            if isinstance(path := node.get("column_names"), list)
        )
        self._is_nested = bool(self._queries) or any(node.get("class") == "SUBQUERY" for node in nodes)

    def inputs(self, relations: Mapping[str, LocalRelation]) -> dict[str, QueryInput]:
        """The relations that the query reads, with no more files and columns than it takes.

        Raises InvalidExpressionError: It reads something else.
        """
        labels = {label.lower(): label for label in relations}
        mentions: dict[str, list[_Node]] = defaultdict(list)
        for node in self._tables:
            name = node["table_name"]
            if node["schema_name"] or node["catalog_name"] or name.lower() not in {*labels, *self._queries}:
                parts = (node["catalog_name"], node["schema_name"], name)
                raise _unknown(".".join(part for part in parts if part))
            if name.lower() in labels:
                mentions[labels[name.lower()]].append(node)
        inputs = {}
        for label, nodes in mentions.items():
            relation = relations[label]
            conditions = [] if label.lower() in self._queries else self._conditions(nodes, relation.schema)
            if conditions:
                relation = _pruned(relation, disjunction(*conditions))
            columns = {f.name for f in relation.schema if self._names_all or f.name.lower() in self._words}
            inputs[label] = QueryInput(relation, columns, is_read_often=self._is_nested or len(nodes) > 1)
        return inputs

    def _conditions(self, mentions: Sequence[_Node], schema: StructType) -> list[Expression]:
        """A condition for the rows that each mention of a table reads; none if one may read all."""
        predicates = {id(node): predicate for select in self._selects for node, predicate in _filtered(select, schema)}
        conditions = [predicates.get(id(mention)) for mention in mentions]
        return [] if None in conditions else [condition for condition in conditions if condition is not None]


def _unknown(name: str) -> InvalidExpressionError:
    return InvalidExpressionError(
        f"There is no relation {name[:200]!r}",
        remedy=f"Write delta.`path`, or pass it: tables={{{name[:200]!r}: DeltaTable(…)}}",
        relation=name[:200],
    )


def _texts(node: _Node) -> Iterator[str]:
    for value in node.values():
        yield from [value] if isinstance(value, str) else filter(_is_text, value) if isinstance(value, list) else []


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _names_all_columns(node: _Node) -> bool:
    """Whether a node may be about columns that it does not name."""
    return (
        node.get("class") in ("STAR", "POSITIONAL_REFERENCE")
        or node.get("type") in ("PIVOT", "SHOW_REF")
        or node.get("ref_type") in ("NATURAL", "POSITIONAL")
        or bool(node.get("column_name_alias"))
    )


# Conditions that the log can decide. Parts that are not understood here skip no file.


def _pruned(relation: LocalRelation, where: Expression) -> LocalRelation:
    """The relation restricted to files that may have rows for which a predicate is true."""
    plan = relation.plan
    if plan is None or plan.prune is None or plan.output is not None or plan.made_columns:
        return relation
    kept = FileTable(plan.prune(where)).path
    return scan_relation(replace(plan, files=plan.files.filter(pc.is_in(FileTable(plan.files).path, kept))))


def _filtered(select: _Node, schema: StructType) -> Iterator[tuple[_Node, Expression]]:
    """The tables in FROM whose rows all pass a part of WHERE, with that part."""
    tables = list(_kept_tables(select["from_table"]))
    is_alone = select["from_table"].get("type") == "BASE_TABLE"
    for table in tables:
        if table["column_name_alias"] or table.get("sample"):
            continue
        alias = (table["alias"] or table["table_name"]).lower()
        condition = _condition(select["where_clause"], _Names(schema, alias, is_alone))
        if condition is not None:
            yield table, condition


def _kept_tables(source: _Node) -> Iterator[_Node]:
    """The tables whose rows stand in the result of FROM only as they are, never as the nulls of an outer join."""
    match source:
        case {"type": "BASE_TABLE"}:
            yield source
        case {"type": "JOIN", "ref_type": "REGULAR" | "CROSS", "left": left, "right": right}:
            kind = source["join_type"]
            if kind in ("INNER", "LEFT", "SEMI", "ANTI"):
                yield from _kept_tables(left)
            if kind in ("INNER", "RIGHT"):
                yield from _kept_tables(right)


class _Names:
    """The meaning of names in WHERE for one table."""

    def __init__(self, schema: StructType, alias: str, is_alone: bool) -> None:
        self._schema, self._alias, self._is_alone = schema, alias, is_alone
        self.schema = schema

    def find(self, node: _Node) -> StructField | None:
        """The column that a node names, None where it may be something else."""
        path = node.get("column_names") if node.get("class") == "COLUMN_REF" else None
        if not path or len(path) > 2 or (len(path) == 2 and path[0].lower() != self._alias):
            return None
        if len(path) == 1 and not self._is_alone:
            return None
        return self._schema.find(path[-1])


def _condition(node: _Node | None, names: _Names) -> Expression | None:
    """A resolved predicate that is true for all rows of a node; None if there is no such predicate."""
    match node:
        case {"type": "CONJUNCTION_AND", "children": children}:
            return _all_known(_condition(child, names) for child in children)
        case {"type": "CONJUNCTION_OR", "children": children}:
            alternatives = [_condition(child, names) for child in children]
            predicates = [one for one in alternatives if one is not None]
            return disjunction(*predicates) if len(predicates) == len(alternatives) else None
        case {"type": str(kind), "left": left, "right": right} if kind in _OPERATORS:
            operator = _OPERATORS[kind]
            if names.find(left) is None:
                left, right, operator = right, left, _FLIPPED[operator]
            return _comparison(operator, left, right, names)
        case {"type": "COMPARE_BETWEEN", "input": child, "lower": lower, "upper": upper}:
            return _all_known(_comparison(op, child, bound, names) for op, bound in ((">=", lower), ("<=", upper)))
        case {"type": "COMPARE_IN", "children": [child, *values]}:
            equal = [_comparison("=", child, value, names) for value in values]
            pairs = [(part.left, part.right) for part in equal if isinstance(part, Comparison)]
            if len(pairs) < len(values) or not pairs:
                return None
            return In(pairs[0][0], tuple(value for _, value in pairs if isinstance(value, Literal)))
        case {"type": "OPERATOR_IS_NULL" | "OPERATOR_IS_NOT_NULL" as kind, "children": [child]}:
            if (field := names.find(child)) is None:
                return None
            is_null = IsNull(Column((field.name,)))
            return is_null if kind == "OPERATOR_IS_NULL" else Not(is_null)
    return None


def _all_known(parts: Iterable[Expression | None]) -> Expression | None:
    predicates = [part for part in parts if part is not None]
    return conjunction(*predicates) if predicates else None


def _comparison(operator: str, column: _Node, other: _Node, names: _Names) -> Expression | None:
    field = names.find(column)
    value = None if field is None else _value(other, field)
    if field is None or value is None:
        return None
    try:
        predicate = resolve_predicate(Comparison(operator, Column((field.name,)), Literal(value)), names.schema)
    except DeltaError:
        return None  # DuckDB says what is wrong with it
    is_plain = (
        isinstance(predicate, Comparison)
        and isinstance(predicate.left, Column)
        and isinstance(predicate.right, Literal)
    )
    return predicate if is_plain else None


def _value(node: _Node, field: StructField) -> int | Decimal | str | None:
    """A constant that DuckDB and Spark compare alike with the values of a column."""
    kind = field.data_type
    if node.get("class") == "CAST" and not node["try_cast"]:
        target = node.get("type_expr", {}).get("type_name") or node.get("cast_type", {}).get("id")
        if str(target).upper() != str(kind).upper() or kind not in (DATE,):
            return None
        node = node["child"]
    value = _constant(node)
    if isinstance(value, str):
        patterns: dict[DataType, str] = {STRING: "(?s:.*)", DATE: _DAY, TIMESTAMP: _TIME, TIMESTAMP_NTZ: _TIME}
        pattern = patterns.get(kind)
        fits = pattern is not None and re.fullmatch(pattern, value) is not None
        return value if fits and not char_width(field) else None
    is_number = kind in INTEGRAL_RANGES or kind == DOUBLE or isinstance(kind, DecimalType)
    return value if is_number else None


def _constant(node: _Node) -> int | Decimal | str | None:
    if node.get("class") != "CONSTANT":
        return None
    match node:
        case {"literal": {"kind": "STRING", "text": str(text)}}:
            return text
        case {"literal": {"kind": "INTEGER" | "NUMERIC", "text": str(text)}} if re.fullmatch(r"-?\d+(\.\d+)?", text):
            return Decimal(text) if "." in text else int(text)
        # Before DuckDB 2.0
        case {
            "value": {
                "type": {"id": "VARCHAR" | "INTEGER" | "BIGINT"},
                "is_null": False,
                "value": str() | int() as value,
            }
        }:
            return value
    return None
