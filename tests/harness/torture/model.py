"""The rows that a table must hold: the operations of its log, one after the other."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from tests.harness.torture.plan import MOST_VERSIONS_BACK, Step

Row = tuple[str, int, str]
"""Day, id, and the operation that wrote it."""


def replay(steps: Iterable[tuple[int, Step | None, int | None]]) -> Counter[Row]:
    """The rows after these steps.

    Args:
        steps: Each version, from 0 on, the step that made it if it concerns rows, and the version that it restored.
    """
    rows: Counter[Row] = Counter()
    past: deque[Counter[Row]] = deque(maxlen=MOST_VERSIONS_BACK + 1)
    for version, step, restored in steps:
        past.append(Counter(rows))
        if restored is not None:
            # `past` ends with the rows of the version before this one.
            rows = Counter(past[restored - version])
            continue
        if step is None:
            continue
        for row in [row for row in rows if _is_replaced(step, row)]:
            del rows[row]
        if step.kind == "update_ids":
            taken = [row for row in rows.elements() if _is_in_range(step, row)]
            rows.subtract(taken)
            rows.update((day, number, step.op_id) for day, number, _ in taken)
            rows = +rows
        if step.kind == "upsert_ids":
            keys = {(day, number) for day, number, _ in rows} & set(step.rows)
            taken = [row for row in rows.elements() if row[:2] in keys]
            rows.subtract(taken)
            rows.update((day, number, step.op_id) for day, number, _ in taken)
            rows = +rows
            rows.update((day, number, step.op_id) for day, number in step.rows if (day, number) not in keys)
            continue
        rows.update((day, number, step.op_id) for day, number in step.rows)
    return rows


def _is_replaced(step: Step, row: Row) -> bool:
    day = row[0]
    match step.kind:
        case "replace_day":
            return day == step.day
        case "replace_ids" | "delete_ids":
            return _is_in_range(step, row)
        case "replace_days_of_data":
            return day in {written for written, _ in step.rows}
        case _:
            return False


def _is_in_range(step: Step, row: Row) -> bool:
    return row[0] == step.day and step.id_range[0] <= row[1] < step.id_range[1]
