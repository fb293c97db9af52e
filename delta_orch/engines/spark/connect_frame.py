"""The rows of a scan on Spark Connect, as a DataFrame that knows its files.

The server lists every file of a plan each time it analyses the plan, and no code of this package runs there. So the
plan is made when it is first needed, and a filter directly on the scan excludes files first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.connect.dataframe import DataFrame as ConnectDataFrame
from pyspark.sql.connect.expressions import ColumnReference, LiteralExpression
from pyspark.sql.connect.plan import LogicalPlan

import delta_orch.arrow_compute as pc
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.engines.spark.errors import spark_errors
from delta_orch.engines.spark.pushed_filters import FilterNode, FilterReader
from delta_orch.errors import DeltaError
from delta_orch.expressions.nodes import Expression, Literal
from delta_orch.expressions.parse import asks_for_time, parse_expression
from delta_orch.expressions.resolve import find_column, resolve_predicate
from delta_orch.expressions.tree import children_of, columns_of
from delta_orch.log.files.file_columns import FileTable
from delta_orch.protocol.schema_edit import type_at
from delta_orch.protocol.table_properties import parse_column_list
from delta_orch.protocol.types import TIMESTAMP, TIMESTAMP_NTZ, StructType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType as SparkStructType

_INTEGERS = ("byte", "short", "integer", "long")
_COMPARISONS = {"==": "==", "<=>": "<=>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""Operators of pyspark's columns, and the operators with swapped sides."""


class ScanFrame(ConnectDataFrame):  # type: ignore[misc]  # untyped
    """A DataFrame of Spark Connect over a scan. Filters directly after the scan exclude files by the log."""

    def __new__(cls, *_: object) -> ScanFrame:
        # Before Spark 4.1, the base class's takes a plan.
        made: ScanFrame = object.__new__(cls)
        return made

    def __init__(
        self, session: SparkSession, scan: ScanPlan, build: Callable[[ScanPlan], DataFrame], plan_id: int | None = None
    ) -> None:
        self._scan = scan
        self._build = build
        # `frame.id` refers to the plan by this number: it is the same with fewer files.
        self._number = LogicalPlan._fresh_plan_id() if plan_id is None else plan_id
        self._built: LogicalPlan | None = None
        self._cached_schema: SparkStructType | None = None
        super().__init__(self, session)

    @property
    def _plan(self) -> LogicalPlan:
        if self._built is None:
            self._built = self._made(self._scan)._plan
            self._built._root_plan_id = self._number
        return self._built

    @_plan.setter
    def _plan(self, value: object) -> None:
        """Set by the base class, before there is a plan."""

    @property
    def _schema(self) -> SparkStructType:
        if self._cached_schema is None:
            self._cached_schema = self._made(replace(self._scan, files=self._scan.files.slice(0, 0))).schema
        return self._cached_schema

    def _made(self, scan: ScanPlan) -> DataFrame:
        with spark_errors(f"read {scan.store.uri}", is_analysis=True):
            return self._build(scan)

    @property
    def isStreaming(self) -> bool:
        """Return False, because Spark would have to list the files to find out."""
        return False

    def filter(self, condition: Column | str) -> DataFrame:
        """Filter the rows as every DataFrame does, but read only files that may hold such rows."""
        scan, build = self._scan, self._build
        where = None if scan.prune is None else _predicate(condition, scan)
        if where is not None and scan.prune is not None:
            kept = pc.is_in(FileTable(scan.files).path, value_set=FileTable(scan.prune(where)).path)
            scan = replace(scan, files=scan.files.filter(kept))
        inner = ScanFrame(self._session, scan, build, self._number)
        return ScanFrame(self._session, scan, lambda some: inner._with(some)._filtered(condition))

    where = filter

    def _with(self, scan: ScanPlan) -> ScanFrame:
        return ScanFrame(self._session, scan, self._build, self._number)

    def _filtered(self, condition: Column | str) -> DataFrame:
        return ConnectDataFrame.filter(self, condition)


def _predicate(condition: Column | str, scan: ScanPlan) -> Expression | None:
    """Return the part of a condition that file statistics can decide. None if there is no such part. The part is true
    for every row for which the condition is true."""
    if scan.output is not None or scan.made_columns or scan.prune is None:
        return None
    schema = scan.read_schema
    if isinstance(condition, str):
        return _parsed(condition, schema)
    return FilterReader(schema, schema).predicate([_node(getattr(condition, "_expr", None), schema)])


def _parsed(text: str, schema: StructType) -> Expression | None:
    """Return a condition in SQL. None if its meaning depends on the session's time zone or on its rule for quotes."""
    if "\\" in text or '"' in text:
        return None
    try:
        if asks_for_time(text) or _names_an_instant(parse_expression(text)):
            # The day depends on the time zone, even in a comparison with a date column.
            return None
        where = resolve_predicate(text, schema)
        types = [find_column(column.path, schema)[1] for column in columns_of(where)]
    except DeltaError:
        # Spark either reports the error or supports it, for example a field of all structs in an array.
        return None
    return None if TIMESTAMP in types or TIMESTAMP_NTZ in types else where


def _names_an_instant(node: Expression) -> bool:
    if isinstance(node, Literal):
        return node.data_type == TIMESTAMP
    return any(map(_names_an_instant, children_of(node)))


def _node(expression: object, schema: StructType) -> FilterNode:
    """Return an unresolved expression of pyspark as a node of `FilterReader`. None if it has no counterpart."""
    name, arguments = getattr(expression, "_name", None), list(getattr(expression, "_args", ()))
    if name in ("and", "or") and len(arguments) == 2:
        return [name, *(_node(argument, schema) for argument in arguments)]
    if name == "not" and len(arguments) == 1:
        return ["not", _node(arguments[0], schema)]
    if not arguments:
        return None
    left, *others = arguments
    if name in _COMPARISONS and len(others) == 1:
        op, right = name, others[0]
        if isinstance(left, LiteralExpression):
            left, op, right = right, _COMPARISONS[name], left
        path, value = _path(left, schema), _value(right, left, schema)
        return None if path is None or value is None else ["compare", "=" if op == "==" else op, path, value]
    path = _path(left, schema)
    if path is None:
        return None
    if name in ("isNull", "isNotNull"):
        return ["null", path] if name == "isNull" else ["not", ["null", path]]
    values = [value for other in others if (value := _value(other, left, schema)) is not None]
    if len(values) < len(others):
        return None
    if name == "in":
        return ["in", path, values]
    if name in ("startsWith", "startswith") and values[0][0] is not None:
        return ["prefix", path, values[0][0]]
    return None


def _path(expression: object, schema: StructType) -> list[str] | None:
    """Return the column, as the schema spells it."""
    if not isinstance(expression, ColumnReference):
        return None
    try:
        paths = parse_column_list(expression.name())
        return list(find_column(paths[0], schema)[0]) if len(paths) == 1 else None
    except (ValueError, DeltaError):
        return None


def _value(expression: object, column: object, schema: StructType) -> list[str | None] | None:
    """Return a constant of the column's own type as text. None for other types, which Spark would cast."""
    path = _path(column, schema)
    if path is None or not isinstance(expression, LiteralExpression):
        return None
    if expression._value is None:
        return [None]
    of_column, of_value = str(type_at(schema, path)), expression._dataType.typeName()
    if of_value not in (_INTEGERS if of_column in _INTEGERS else (of_column,)):
        return None
    return [str(expression._value).lower() if of_value == "boolean" else str(expression._value)]
