"""`requeue`: rows that are fine now move from the quarantine to their table.

The rows are marked first, in the quarantine. Then they are added to the table, the rows of each unit by a commit that
belongs to the unit: a redo of the unit replaces them, too. Then they are deleted from the quarantine. After a crash
the next call goes on with the rows that are marked, and the table takes them once, by a `txn` that names the mark.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, cast

import orjson
import pyarrow as pa

from delta_orch.delta_table import DeltaTable, TableSnapshot
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.errors import ConcurrentTransactionError, TableNotFoundError
from delta_orch.expressions.literal import literal
from delta_orch.expressions.nodes import Column, Comparison, Expression, IsNull, Literal
from delta_orch.expressions.resolve import resolve_predicate
from delta_orch.expressions.tree import conjunction
from delta_orch.log.files.txn import TxnId
from delta_orch.log.write.commit_options import CommitOptions
from delta_orch.pipeline.target_table import snapshot_or_none
from delta_orch.pipeline.unit import recorded_order
from delta_orch.protocol.arrow_building import schema_to_arrow
from delta_orch.protocol.types import STRING
from delta_orch.verbs.expect import Expectations
from delta_orch.verbs.unit_records import LogWalk, RecordedUnit, StepRecord

_PREFIX = "requeue:"
_NUMBER = "_delta_orch_number"


@dataclass(frozen=True, slots=True)
class RequeueResult:
    """What a requeue did.

    Attributes:
        num_moved: Rows that are in the table now.
        num_left: Rows that it looked at and left in the quarantine: they break a rule, or do not fit the table.
    """

    num_moved: int
    num_left: int


def requeue(
    table: DeltaTable,
    expect: Mapping[str, object],
    *,
    where: str | None = None,
    merge_keys: Sequence[str] = (),
    quarantine: DeltaTable | None = None,
) -> RequeueResult:
    """Move the rows of the quarantine that are fine now to the table, each once, also after a crash of this call.

    A row is fine if it fits the columns of the table and breaks none of the rules, `warn` excepted. Rows become fine by
    other rules, or by an update of the column `row` in the quarantine. The rows that move belong to the unit that they
    were quarantined by: a redo or an undo of the unit takes them away again. The rules run in process.

    Args:
        table: The table. It must exist.
        expect: The rules: `Expect` by name.
        where: A predicate on the quarantine, which selects the rows to look at. None looks at all.
        merge_keys: Update rows with the same keys, instead of adding all.
        quarantine: Where the rows are; None for `table.quarantine()`.

    Raises:
        TableNotFoundError: There is no table, or no quarantine.
        ConcurrentTransactionError: A unit is in the quarantine and not yet in the table: its step runs right now, or
            has crashed. Run the step again first. The tables are as before this call.
        ConflictError: Another writer changed the rows. Calling again is safe.
        DeltaError: As `DeltaTable.append`, `update` and `delete`. Calling again is safe: rows that are marked move.
    """
    rules = Expectations.of(expect)
    waiting = table.quarantine() if quarantine is None else quarantine
    before = table.snapshot()
    if snapshot_or_none(waiting) is None:
        raise TableNotFoundError(
            f"There is no quarantine at {waiting.uri}", remedy="A step with rules makes it", uri=waiting.uri
        )
    marks = waiting.snapshot().scan(["requeue"], where="requeue IS NOT NULL").to_arrow()
    num_moved = sum(_move(table, waiting, mark, merge_keys) for mark in marks.column("requeue").unique().to_pylist())
    _ensure_settled(before, waiting.snapshot())
    selected = waiting.snapshot().scan(where=_selected(waiting.snapshot(), where)).to_arrow()
    fine = _fine(selected, before, rules)
    if fine:
        mark = uuid.uuid4().hex
        ids = pa.table({"id": pa.array(fine, pa.string())})
        merge = waiting.merge(ids, "target.id = source.id", engine="local")
        merge.when_matched_update({"requeue": literal(mark)}, condition="target.requeue IS NULL").execute()
        num_moved += _move(table, waiting, mark, merge_keys)
    return RequeueResult(num_moved, selected.num_rows - len(fine))


def _selected(waiting: TableSnapshot, where: str | None) -> Expression:
    unmarked = IsNull(Column(("requeue",)))
    return unmarked if where is None else conjunction(unmarked, resolve_predicate(where, waiting.schema))


def _ensure_settled(before: TableSnapshot, waiting: TableSnapshot) -> None:
    """Check that every unit of the quarantine is in the table: the quarantine is committed first.

    Raises ConcurrentTransactionError: One is not.
    """
    units = set(waiting.scan(["unit"]).to_arrow().column("unit").unique().to_pylist()) - {None}
    recorded = waiting.txn_versions(sorted(units))
    ahead = [
        unit
        for unit, order in recorded.items()
        if order is not None and order >= 0 and (recorded_order(before, unit) or -1) < order
    ]
    for text in waiting.scan(["batch"]).to_arrow().column("batch").unique().to_pylist():
        batch = {} if text is None else orjson.loads(text)
        consumers = tuple(batch.get("consumers", ()))
        if consumers and dict(before.txns.named(consumers)) == batch["read"]:
            ahead.append(", ".join(consumers))
    if ahead:
        raise ConcurrentTransactionError(
            f"{ahead[0]} has written to the quarantine, and not yet to {before.store.uri}",
            cause="Its step is running, or has crashed between the two commits",
            remedy="Run the step again, then requeue",
            app_ids=ahead,
            retryable=False,
        )


def _fine(rows: pa.Table, before: TableSnapshot, rules: Expectations | None) -> list[str]:
    """The ids of rows that fit the table and break no rule."""
    places, parsed = _parsed(rows.column("row").to_pylist(), before)
    engine = LocalEngine()
    numbered = parsed.append_column(_NUMBER, pa.array(places, pa.int64()))
    relation = engine.relation(numbered)
    kept = [
        resolve_predicate(rule.rule, engine.schema(relation))
        for rule in (rules.rules.values() if rules is not None else ())
        if rule.action != "warn"
    ]
    fine = engine.to_arrow(engine.filter(relation, conjunction(*kept)) if kept else relation)
    ids: list[str] = rows.column("id").take(fine.column(_NUMBER)).to_pylist()
    return ids


def _move(table: DeltaTable, waiting: DeltaTable, mark: str, merge_keys: Sequence[str]) -> int:
    """Add the rows with a mark to the table, where they are not yet, and take them out of the quarantine."""
    is_marked = Comparison("=", Column(("requeue",)), Literal(mark, STRING))
    rows = waiting.snapshot().scan(where=is_marked).to_arrow()
    for unit in rows.column("unit").unique().to_pylist():
        before = table.snapshot()
        of_unit = rows.filter(pa.compute.equal(rows["unit"], unit) if unit else pa.compute.is_null(rows["unit"]))
        _, parsed = _parsed(of_unit.column("row").to_pylist(), before)
        user_metadata: str | None = None
        txns = [TxnId(f"{_PREFIX}{mark}:{unit or ''}", 1)]
        info: dict[str, object] = {"requeue": mark}
        order = None if unit is None else recorded_order(before, unit)
        if unit is not None and order is not None:
            # The newest commit of a unit says how its step writes.
            txns.append(TxnId(unit, order, follows=order, ordered=True, is_unit=True))
            recorded = RecordedUnit(unit, order, LogWalk(table.log, before.version))
            step = recorded.step or StepRecord("append")
            column, user_metadata = step.unit_column, cast("str | None", recorded.commit_info.get("userMetadata"))
            if column is not None:
                filled = pa.array([unit] * parsed.num_rows, pa.string())
                parsed = parsed.drop_columns([column] if column in parsed.column_names else [])
                parsed = parsed.append_column(column, filled)
            info["step"] = replace(step, adds_to=order).as_json()
        options: CommitOptions = {"txn": txns, "commit_info": info, "user_metadata": user_metadata}
        if merge_keys:
            table.upsert(parsed, merge_keys, engine="local", **options)
        else:
            table.append(parsed, engine="local", **options)
    waiting.delete(is_marked, engine="local")
    return len(rows)


def _parsed(texts: Sequence[str], before: TableSnapshot) -> tuple[list[int], pa.Table]:
    """Rows of the quarantine in the columns of the table, and the places of those that fit. A column that no row has is
    left out, so that the table fills it."""
    schema = schema_to_arrow(before.schema)
    places, rows = list[int](), list[dict[str, Any]]()
    for place, text in enumerate(texts):
        try:
            row = _struct(orjson.loads(text), schema)
            pa.Table.from_pylist([row], schema)
        except (ValueError, TypeError, OverflowError, InvalidOperation, pa.ArrowException):
            continue
        places.append(place)
        rows.append(row)
    present = {name for row in rows for name in row}
    return places, pa.Table.from_pylist(rows, pa.schema([field for field in schema if field.name in present]))


def _struct(row: Mapping[str, object], fields: pa.Schema | pa.StructType) -> dict[str, Any]:
    """Raises ValueError: The row has a value for a column that is not there."""
    fields_by_name = {field.name.lower(): field for field in fields}
    if lost := [name for name, value in row.items() if value is not None and name.lower() not in fields_by_name]:
        raise ValueError(f"There is no column {lost[0]}")
    return {
        fields_by_name[name.lower()].name: _value(value, fields_by_name[name.lower()].type)
        for name, value in row.items()
        if name.lower() in fields_by_name
    }


def _value(value: Any, kind: pa.DataType) -> object:
    """A value as `row_texts` spells it, for a column of an Arrow type."""
    types = pa.types
    if value is None:
        return None
    if types.is_struct(kind):
        return _struct(value, kind)
    if types.is_map(kind):
        return [(_value(key, kind.key_type), _value(item, kind.item_type)) for key, item in value]
    if types.is_list(kind) or types.is_large_list(kind):
        return [_value(item, kind.value_type) for item in value]
    if types.is_binary(kind) or types.is_large_binary(kind):
        return base64.b64decode(value, validate=True)
    if types.is_decimal(kind):
        return Decimal(value if isinstance(value, str | int) else repr(value))
    if types.is_floating(kind):
        return float(value)
    if isinstance(value, str) and types.is_timestamp(kind):
        return datetime.fromisoformat(value)
    if isinstance(value, str) and types.is_date(kind):
        return date.fromisoformat(value)
    return value
