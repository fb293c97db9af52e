"""`requeue`: rows that are fine now move from the quarantine to their table.

The rows of each unit are added to the table by a commit that belongs to the unit, so a redo of the unit replaces them
as well. The commit says that they leave the quarantine (`verbs.quarantine`). Of two calls at once one commits.
"""

from __future__ import annotations

import base64
import time
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
from delta_orch.expressions.resolve import resolve_predicate
from delta_orch.expressions.tree import conjunction
from delta_orch.log.files.txn import TxnId
from delta_orch.log.write.commit_options import CommitOptions
from delta_orch.pipeline.target_table import publish_now, snapshot_or_none
from delta_orch.pipeline.unit import recorded_order
from delta_orch.protocol.arrow_building import schema_to_arrow
from delta_orch.verbs.expect import Expectations
from delta_orch.verbs.quarantine import complete_transfers, write_transfer
from delta_orch.verbs.unit_records import LogWalk, RecordedUnit, StepRecord

_APP_ID = "requeue"
_NUMBER = "_delta_orch_number"


@dataclass(frozen=True, slots=True)
class RequeueResult:
    """The result of a requeue.

    Attributes:
        num_moved: Rows that are in the table now.
        num_left: Checked rows that stay in the quarantine: they break a rule, or do not fit the table.
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
        ConcurrentTransactionError: Another requeue moved rows at the same time, or a unit was done again. Units that
            were moved before stay so. Calling again is safe.
        DeltaError: As `DeltaTable.append`. The same holds.
    """
    rules = Expectations.of(expect)
    waiting = table.quarantine() if quarantine is None else quarantine
    _complete(table, waiting)
    before = table.snapshot()
    if snapshot_or_none(waiting) is None:
        raise TableNotFoundError(
            f"There is no quarantine at {waiting.uri}",
            remedy="The first row that breaks a rule of a step makes it",
            uri=waiting.uri,
        )
    selected = waiting.snapshot().scan(where=where).to_arrow()
    units = [unit for unit in selected["unit"].unique().to_pylist() if unit is not None]
    orders, before = before.txn_versions(units), table.snapshot()
    if orders != before.txn_versions(units):
        raise _overtaken(table)
    fine = _fine(selected, before, rules)
    rows = selected.filter(pa.compute.is_in(selected["id"], pa.array(fine, pa.string())))
    try:
        for unit in rows.column("unit").unique().to_pylist():
            before = _move(table, before, waiting, rows, unit, merge_keys)
    finally:
        _complete(table, waiting)
    return RequeueResult(len(fine), selected.num_rows - len(fine))


def _complete(table: DeltaTable, waiting: DeltaTable) -> None:
    complete_transfers(table.log, table.snapshot, [waiting.log], lambda uri: table.quarantine(uri).log)


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


def _move(
    table: DeltaTable,
    before: TableSnapshot,
    waiting: DeltaTable,
    rows: pa.Table,
    unit: str | None,
    merge_keys: Sequence[str],
) -> TableSnapshot:
    """Add the rows of a unit to the table. The commit says that they leave the quarantine. Returns the newest version.

    Raises ConcurrentTransactionError: Another requeue has moved rows meanwhile, or the unit was done again.
    """
    of_unit = rows.filter(pa.compute.equal(rows["unit"], unit) if unit else pa.compute.is_null(rows["unit"]))
    _, parsed = _parsed(of_unit.column("row").to_pylist(), before)
    user_metadata: str | None = None
    last = before.txn_version(_APP_ID)
    txns = [TxnId(_APP_ID, max(time.time_ns() // 1000, (last or 0) + 1), follows=-1 if last is None else last)]
    info: dict[str, object] = {}
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
    options: CommitOptions = {"txn": txns, "commit_info": info, "user_metadata": user_metadata, "stage": True}
    if merge_keys:
        result = table.upsert(parsed, merge_keys, engine="local", **options)
    else:
        result = table.append(parsed, engine="local", **options)
    if result.staged is not None:
        staged = table.staged(result.staged)
        write_transfer(table.store, result.staged, staged.read_version, waiting.uri, ids=of_unit["id"])
        result = publish_now(staged)
    if result.skipped:
        raise _overtaken(table)
    return table.snapshot()


def _overtaken(table: DeltaTable) -> ConcurrentTransactionError:
    return ConcurrentTransactionError(
        f"Another requeue, or a step, has changed the quarantine of {table.uri}",
        remedy="Call it again: it moves what is left",
    )


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
