"""Envelopes of change events: change feeds of Delta tables, and the envelope of Debezium.

- `change_feed`: rows of `DeltaTable.changes`, or of `table_changes` of Spark: `_change_type`, `_commit_version` and
  `_commit_timestamp`. `sequence_by` names `_commit_version`, which the table keeps as `source_version`, or
  `_commit_timestamp`, kept as `source_timestamp`; or a column of the rows.
- `debezium`: `op`, and the structs `before` and `after`. `sequence_by` names columns of the rows, or fields of the
  envelope, such as `ts_ms` or `source.lsn`, which the table keeps by their last names.
"""

from __future__ import annotations

from collections.abc import Sequence

from delta_orch.engines.base import ComputedColumn, Engine, Relation, as_they_are
from delta_orch.errors import ColumnNotFoundError, InvalidRequestError, SchemaMismatchError
from delta_orch.expressions.nodes import Choice, Column, Comparison, Expression, In, IsNull, Literal, Not
from delta_orch.expressions.resolve import resolve_expression
from delta_orch.expressions.tree import disjunction
from delta_orch.protocol.types import STRING, StructType
from delta_orch.verbs.change_events import Envelope

CHANGE_TYPE = "_change_type"
_FEED = {"_commit_version": "source_version", "_commit_timestamp": "source_timestamp"}
_TRUE = Literal(True)


def opened(
    engine: Engine, rows: Relation, envelope: Envelope, sequence: Sequence[str]
) -> tuple[Relation, Expression, tuple[str, ...]]:
    """Return the rows inside an envelope, a predicate that is true for rows that delete a key, and the `sequence`
    columns.

    Raises:
        SchemaMismatchError: The rows do not have the columns of this envelope.
        ColumnNotFoundError: `sequence` names a missing column.
        InvalidRequestError: The envelope is unknown, or an event changes no row.
    """
    schema = engine.schema(rows)
    if envelope == "change_feed":
        _ensure_has(schema, (CHANGE_TYPE, *_FEED), envelope)
        # An update that changes the key deletes the old key. For other updates, only the row after the update counts.
        gone = ("delete", "update_preimage")
        plain = [name for name in schema.names if name not in (CHANGE_TYPE, *_FEED)]
        renamed = [ComputedColumn(_FEED[name], Column((name,))) for name in sequence if name in _FEED]
        columns = [*as_they_are([*plain, CHANGE_TYPE]), *renamed]
        condition = In(Column((CHANGE_TYPE,)), tuple(Literal(one) for one in gone))
        return _marked(engine, rows, columns, condition, tuple(_FEED.get(name, name) for name in sequence))
    _ensure_has(schema, ("op", "before", "after"), envelope)
    images = [field.data_type for name in ("before", "after") if (field := schema.find(name)) is not None]
    after = images[1]
    if not all(isinstance(image, StructType) for image in images) or not isinstance(after, StructType):
        raise SchemaMismatchError(
            f"before and after are {' and '.join(map(str, images))}",
            cause="The envelope of Debezium has structs in these columns",
            remedy="Parse the JSON into structs first, for example with from_json",
        )
    rows = engine.filter(rows, Not(IsNull(Column(("op",)))))  # Kafka's log compaction leaves events without values.
    operations = [Comparison("=", Column(("op",)), Literal(one, STRING)) for one in ("c", "u", "r", "d")]
    if engine.to_arrow(engine.filter(rows, Not(disjunction(*operations))), limit=1).num_rows:
        raise InvalidRequestError(
            "An event of Debezium changes no row",
            cause="Its op is not c, u, r or d",
            remedy="Remove such events (truncate, message) from the rows, and apply them by hand",
        )
    is_gone = operations[3]
    columns = []
    for name in after.names:
        before = Column(("before", name))
        choices = ((Not(is_gone), Column(("after", name))), (_TRUE, before))
        value: Expression = Choice(choices if _has(schema, before) else choices[:1])
        columns.append(ComputedColumn(name, value))
    named = []
    for name in sequence:
        path = tuple(name.split("."))
        if after.find(name) is None:
            if not _has(schema, Column(path)):
                raise ColumnNotFoundError(
                    f"sequence_by contains {name!r}, which is neither in the row nor in the envelope",
                    remedy="Pass for example sequence_by='source.lsn' or sequence_by='ts_ms'",
                    column=name,
                )
            columns.append(ComputedColumn(path[-1], Column(path)))
        named.append(name if after.find(name) is not None else path[-1])
    columns.append(ComputedColumn(CHANGE_TYPE, Column(("op",))))
    is_deletion = Comparison("=", Column((CHANGE_TYPE,)), Literal("d"))
    return _marked(engine, rows, columns, is_deletion, tuple(named))


def _marked(
    engine: Engine, rows: Relation, columns: Sequence[ComputedColumn], gone: Expression, sequence: tuple[str, ...]
) -> tuple[Relation, Expression, tuple[str, ...]]:
    inside = engine.project(rows, columns)
    return inside, resolve_expression(gone, engine.schema(inside)), sequence


def _has(schema: StructType, column: Column) -> bool:
    field = schema.find(column.path[0])
    if field is None or len(column.path) == 1:
        return field is not None
    return isinstance(field.data_type, StructType) and _has(field.data_type, Column(column.path[1:]))


def _ensure_has(schema: StructType, names: Sequence[str], envelope: str) -> None:
    if missing := [name for name in names if schema.find(name) is None]:
        raise SchemaMismatchError(
            f"envelope={envelope!r} and the rows have no column {missing[0]}",
            cause=f"The columns are {', '.join(schema.names)}",
            remedy="Pass the rows unchanged, as the source delivers them, or leave envelope out",
            columns=missing,
        )
