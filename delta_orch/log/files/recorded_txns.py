"""The transaction identifiers that a table has recorded (PROTOCOL, "Transaction Identifiers").

Each unit of each step that ever wrote has one, so there may be millions. Identifiers of a checkpoint stay Arrow
columns; a Python object is made only for an identifier that is looked up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce

import pyarrow as pa

import delta_orch.arrow_compute as pc
from delta_orch.protocol.actions import Txn
from delta_orch.protocol.arrow_building import int64_array, string_array

TXN_SCHEMA = pa.schema([("app_id", pa.string()), ("version", pa.int64()), ("last_updated", pa.int64())])


def txn_table(txns: Iterable[Txn]) -> pa.Table:
    """Identifiers as columns of `TXN_SCHEMA`."""
    app_ids = list(txns)
    columns = [
        string_array([txn.app_id for txn in app_ids]),
        int64_array([txn.version for txn in app_ids]),
        int64_array([txn.last_updated for txn in app_ids]),
    ]
    return pa.Table.from_arrays(columns, schema=TXN_SCHEMA)


class TxnGroup:
    """Some identifiers of a checkpoint as columns of `TXN_SCHEMA`, read on first use.

    Args:
        bounds: The least id and the greatest; None if they are not known.
        read: Reads them. It raises what reading a checkpoint raises.
    """

    def __init__(self, bounds: tuple[str, str] | None, read: Callable[[], pa.Table]) -> None:
        self._bounds = bounds
        self._read = read

    @cached_property
    def table(self) -> pa.Table:
        return self._read()

    def among(self, app_ids: Iterable[str]) -> dict[str, Txn]:
        """The identifiers of some ids. If an id appears twice, the last one counts."""
        possible_ids = [a for a in app_ids if self._bounds is None or self._bounds[0] <= a <= self._bounds[1]]
        if not possible_ids:
            return {}
        rows = pc.filter(self.table, pc.is_in(self.table["app_id"], value_set=string_array(possible_ids)))
        return {row["app_id"]: Txn(**row) for row in rows.to_pylist()}

    def named(self, starts: Sequence[str], end: str, but: Sequence[str]) -> dict[str, Txn]:
        """The identifiers that `TxnVersions.named` selects. A group is read if an id in it can begin so."""
        if self._bounds is not None:
            least, greatest = self._bounds
            starts = [start for start in starts if least[: len(start)] <= start <= greatest]
        if not starts:
            return {}
        rows = self.table if "" in starts else pc.filter(self.table, _begins_with(self.table, starts))
        if but:
            rows = pc.filter(rows, pc.invert(_begins_with(rows, but)))
        if end:
            rows = pc.filter(rows, pc.ends_with(rows["app_id"], end))
        return {row["app_id"]: Txn(**row) for row in rows.to_pylist()}


class RecordedTxns(Mapping[str, Txn]):
    """The newest `txn` of each application id. A lookup is fast; to iterate makes an object of each.

    Args:
        groups: Those of a checkpoint, in its order. Sorted by id, so that their bounds do not overlap, a lookup reads
            one of them.
        newer: Those that were recorded since.
        oldest_ms: What was last updated before has expired; milliseconds since the epoch. None: no identifier expires.
    """

    def __init__(self, groups: Sequence[TxnGroup], newer: Mapping[str, Txn], oldest_ms: int | None = None) -> None:
        self._groups = groups
        self._newer = newer
        self._oldest_ms = oldest_ms

    def since(self, newer: Mapping[str, Txn], oldest_ms: int | None) -> RecordedTxns:
        """With those that were recorded since, and without those that have expired. Columns that were read are
        shared."""
        return RecordedTxns(self._groups, {**self._newer, **newer}, oldest_ms)

    def __getitem__(self, app_id: str) -> Txn:
        return self.among((app_id,))[app_id]

    def __iter__(self) -> Iterator[str]:
        names: list[str] = self.table["app_id"].to_pylist()
        return iter(names)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def among(self, app_ids: Sequence[str]) -> dict[str, Txn]:
        """The recorded identifiers of some ids."""
        versions = {app_id: self._newer[app_id] for app_id in app_ids if app_id in self._newer}
        older = [app_id for app_id in app_ids if app_id not in versions]
        for group in self._groups if older else ():
            versions |= group.among(older)
        return {app_id: txn for app_id, txn in versions.items() if self._is_retained(txn)}

    def named(self, starts: Sequence[str], end: str, but: Sequence[str]) -> dict[str, Txn]:
        """The identifiers that `TxnVersions.named` selects."""
        txns = {app_id: txn for group in self._groups for app_id, txn in group.named(starts, end, but).items()}
        for app_id, txn in self._newer.items():
            if app_id.startswith(tuple(starts)) and app_id.endswith(end) and not app_id.startswith(tuple(but)):
                txns[app_id] = txn
        return {app_id: txn for app_id, txn in txns.items() if self._is_retained(txn)}

    def _is_retained(self, txn: Txn) -> bool:
        return self._oldest_ms is None or txn.last_updated is None or txn.last_updated >= self._oldest_ms

    @cached_property
    def table(self) -> pa.Table:
        """All of them, `TXN_SCHEMA`: each id once, in ascending order."""
        older = pa.concat_tables([txn_table(()), *(group.table for group in self._groups)])
        if not _ascends(older):
            last = {row["app_id"]: Txn(**row) for row in older.to_pylist()}
            older = pc.sort_by(txn_table(last.values()), "app_id")
        whole = _inserted(older, sorted(self._newer.items()))
        if self._oldest_ms is None:
            return whole
        updated = whole["last_updated"]
        return pc.filter(whole, pc.or_kleene(pc.is_null(updated), pc.greater_equal(updated, self._oldest_ms)))


def _begins_with(txns: pa.Table, starts: Sequence[str]) -> pa.ChunkedArray:
    return reduce(pc.or_, [pc.starts_with(txns["app_id"], start) for start in starts])


def _ascends(txns: pa.Table) -> bool:
    names = txns["app_id"]
    return len(names) < 2 or bool(pc.all(pc.less(names[:-1], names[1:])).as_py())


def _inserted(older: pa.Table, newer: Sequence[tuple[str, Txn]]) -> pa.Table:
    """Sorted identifiers with others, sorted too, each in its place: of a million only the places are looked up."""
    names, rows = older["app_id"], txn_table(txn for _, txn in newer)
    parts, start = [], 0
    for number, (app_id, _) in enumerate(newer):
        place = bisect_left(range(len(names)), app_id, start, key=lambda row: names[row].as_py())
        parts += [older.slice(start, place - start), rows.slice(number, 1)]
        start = place + (place < len(names) and names[place].as_py() == app_id)
    return pa.concat_tables([*parts, older.slice(start)])


class TxnVersions(Mapping[str, int]):
    """Application id → recorded version, over `RecordedTxns`."""

    def __init__(self, txns: RecordedTxns) -> None:
        self._txns = txns

    def __getitem__(self, app_id: str) -> int:
        return self._txns[app_id].version

    def __iter__(self) -> Iterator[str]:
        return iter(self._txns)

    def __len__(self) -> int:
        return len(self._txns)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} ids)"

    def named(self, starts: Sequence[str] = (), end: str = "", *, but: Sequence[str] = ()) -> dict[str, int]:
        """The identifiers whose id begins with one of some texts and ends with another. Empty `starts`: any beginning.

        Args:
            but: Beginnings of ids that are left out.
        """
        return {app_id: txn.version for app_id, txn in self._txns.named(starts or ("",), end, but).items()}
