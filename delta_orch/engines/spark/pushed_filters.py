"""Filters that Spark pushes into a scan when it runs: a user's own `where` on the DataFrame, or SQL over a view of it.
They skip files like the `where` of the scan. Spark still applies them to the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

import numpy as np
import orjson
import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.engines.scan_plan import FilePruning
from delta_orch.errors import DeltaError, InvalidExpressionError
from delta_orch.expressions.nodes import Column, Comparison, Expression, In, IsNull, Literal, Not, Opaque, StartsWith
from delta_orch.expressions.tree import bounded, conjunction, disjunction
from delta_orch.log.files.file_columns import FileTable
from delta_orch.protocol.epoch import date_of, moment_of
from delta_orch.protocol.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    DecimalType,
    StructType,
)

logger = logging.getLogger(__name__)

FilterNode = Any
"""A node of the filter JSON, one array per node. See `FilterText.java`."""

_UNKNOWN = Opaque("", ())
"""A constant condition: true, false or null for every row."""


@dataclass(frozen=True, slots=True)
class FilterReader:
    """Parses filters that Spark sends.

    Attributes:
        names: The columns as the filters name them.
        schema: The same columns as the table names them, in the same order.
    """

    names: StructType
    schema: StructType

    def parse(self, text: str) -> Expression | None:
        """Return the filters over the table's columns. None if no filter is supported.

        Args:
            text: The output of `FilterText.java`.
        """
        try:
            nodes = orjson.loads(text)
        except orjson.JSONDecodeError:
            return None  # nested too deeply for the parser
        return self.predicate(nodes)

    def predicate(self, nodes: Sequence[FilterNode]) -> Expression | None:
        """Return the filters as `parse` does, from parsed nodes."""
        parts = [part for part in map(self._node, nodes) if part != _UNKNOWN]
        try:
            return bounded(conjunction(*parts)) if parts else None
        except InvalidExpressionError:
            return None

    def _node(self, node: FilterNode) -> Expression:
        match node:
            case ["and", left, right]:
                return conjunction(self._node(left), self._node(right))
            case ["or", left, right]:
                return disjunction(self._node(left), self._node(right))
            case ["not", child]:
                return Not(self._node(child))
            case ["null", path]:
                column = self._column(path)
                return _UNKNOWN if column is None else IsNull(column[0])
            case ["compare", op, path, [value]]:
                return self._comparison(op, path, value)
            case ["in", path, values]:
                return self._in(path, [value for (value,) in values])
            case ["prefix", path, prefix]:
                column = self._column(path)
                return _UNKNOWN if column is None or column[1] != STRING else StartsWith(column[0], prefix)
        return _UNKNOWN

    def _comparison(self, op: str, path: Sequence[str], value: str | None) -> Expression:
        pushed = self._column(path)
        if pushed is None:
            return _UNKNOWN
        column, data_type = pushed
        if value is None:
            return IsNull(column) if op == "<=>" else Literal(None, BOOLEAN)
        literal = _literal(value, data_type)
        return _UNKNOWN if literal is None else Comparison(op, column, literal)

    def _in(self, path: Sequence[str], values: Sequence[str | None]) -> Expression:
        pushed = self._column(path)
        if pushed is None:
            return _UNKNOWN
        column, data_type = pushed
        literals = [Literal(None, data_type) if v is None else _literal(v, data_type) for v in values]
        constants = tuple(literal for literal in literals if literal is not None)
        return In(column, constants) if len(constants) == len(literals) else _UNKNOWN

    def _column(self, path: Sequence[str]) -> tuple[Column, DataType] | None:
        """Return a column by its name in files. None if the table does not have it."""
        logical: list[str] = []
        names: DataType = self.names
        schema: DataType = self.schema
        for name in path:
            if not isinstance(names, StructType) or not isinstance(schema, StructType):
                return None
            index = names.place(name)
            if index is None or names.fields[index].name != name:
                return None
            logical.append(schema.fields[index].name)
            names, schema = names.fields[index].data_type, schema.fields[index].data_type
        return Column(tuple(logical)), schema


@dataclass(frozen=True, slots=True)
class PushedFilters(FilterReader):
    """Filters from the JVM, applied to the files of one scan when a query is planned; `names` are those in the files.

    The JVM calls `apply`, and keeps this object while a plan with the scan exists. So the object must not hold a
    session.

    Attributes:
        uri: The location of the table, for messages.
        prune: See `ScanPlan.prune`.
        paths: The paths of the scan's files.
    """

    uri: str
    prune: FilePruning
    paths: pa.ChunkedArray

    class Java:
        implements: ClassVar[list[str]] = ["java.util.function.Function"]

    def apply(self, text: str) -> bytes | None:
        """Return `kept` for filters, `row_counts` for an empty text, or `extremes` for a column name after `=`. None if
        the log can no longer be read, for example because a checkpoint was cleaned up."""
        try:
            if text.startswith("="):
                return self.extremes(text[1:])
            return self.kept(text) if text else self.row_counts()
        except DeltaError as e:
            logger.warning("All files of %s are read, because its log can no longer be read: %s", self.uri, e)
            return None

    def kept(self, text: str) -> bytes | None:
        """Return one bit for each file, lowest first. The bit is clear if the file has no matching row. None if all
        files are kept.

        Args:
            text: The output of `FilterText.java`.

        Raises as `ScanPlan.prune`.
        """
        where = self.parse(text)
        if where is None:
            return None
        kept = pc.is_in(self.paths, value_set=FileTable(self.prune(where)).path)
        count = pc.sum(kept).as_py() or 0
        logger.debug("Filters pushed into the scan leave %d of %d files", count, len(self.paths))
        if count == len(self.paths):
            return None
        return np.packbits(kept.to_numpy(), bitorder="little").tobytes()

    def row_counts(self) -> bytes | None:
        """Return the number of rows of each file, eight bytes each, or -1 if it is unknown. None if the log names a
        file twice."""
        answer = self.prune(None)
        paths = FileTable(answer).path
        if pc.count_distinct(paths).as_py() < len(paths):
            return None
        counts = answer.column("num_rows").take(pc.index_in(self.paths, value_set=paths))
        numbers: bytes = pc.fill_null(counts, -1).to_numpy().astype("<i8").tobytes()
        return numbers

    def extremes(self, name: str) -> bytes | None:
        """Return one byte for each file: 0 if the exact extremes of the column are unknown, 1 if it has values, 2 if
        all values are null. The least values of the files follow, then the greatest, eight bytes each. None if there
        are no statistics.

        Args:
            name: The column, as the files name it.
        """
        pushed = self._column([name])
        answer = None if pushed is None else self.prune.extremes(*pushed)
        if answer is None:
            return None
        paths = FileTable(answer).path
        if pc.count_distinct(paths).as_py() < len(paths):
            return None
        of_files = answer.take(pc.index_in(self.paths, value_set=paths))
        states = pc.if_else(pc.is_valid(of_files["lowest"]), 1, 2)
        states = pc.fill_null(pc.if_else(of_files["is_known"], states, 0), 0)
        parts = [states.to_numpy().astype("i1")]
        parts += [pc.fill_null(of_files[column], 0).to_numpy().astype("<i8") for column in ("lowest", "highest")]
        return b"".join(part.tobytes() for part in parts)


def _literal(text: str, data_type: DataType) -> Literal | None:
    try:
        return Literal(_value(text, data_type), data_type)
    except (ValueError, OverflowError):
        return None


def _value(text: str, data_type: DataType) -> object:
    if data_type == STRING:
        return text
    if data_type in (FLOAT, DOUBLE):
        return float(text)
    if data_type == BOOLEAN:
        return text == "true"
    if data_type == DATE:
        return date_of(int(text))
    if data_type in (TIMESTAMP, TIMESTAMP_NTZ):
        return moment_of(int(text), utc=data_type == TIMESTAMP)
    if isinstance(data_type, DecimalType):
        return Decimal(text)
    return int(text)
