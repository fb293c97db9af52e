"""Resolved predicates over the columns of one relation, in DuckDB's SQL."""

from __future__ import annotations

from delta_orch.engines.local.sql_query import qualified, translate_predicate
from delta_orch.expressions.nodes import Column, Expression
from delta_orch.expressions.to_sql import print_duckdb, quote_duckdb_identifier
from delta_orch.protocol.types import StructType


def predicate_sql(where: Expression, schema: StructType, relation: str) -> str:
    """The predicate, in parentheses.

    Raises:
        UnsupportedExpressionError: It holds text that is not proven to mean the same in DuckDB.
    """
    columns = {name: qualified(relation, name) for name in schema.names}

    def column(node: Column) -> str:
        return ".".join([columns[node.path[0]], *map(quote_duckdb_identifier, node.path[1:])])

    return f"({print_duckdb(where, column, lambda sql: translate_predicate(sql, columns, schema))})"
