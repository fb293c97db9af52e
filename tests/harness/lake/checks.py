"""What can be read of a table, held against its model."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import delta_orch
from delta_orch import DeltaTable
from delta_orch.errors import MissingFileError, UnsupportedFeatureError, VersionNotFoundError
from tests.harness.lake.model import SINCE, TOKEN, Bag, State, Table, Wrong, bag, ensure_same
from tests.harness.lake.values import Leaf, leaves, predicate, sort_key
from tests.harness.merges.model import Row

_COUNT = pa.int64()
_KINDS = ("insert", "delete", "update_preimage", "update_postimage")


def check_table(table: Table, rng: random.Random) -> None:
    """The newest version as a follower and as a new reader see it, older ones, queries, changes, and row ids."""
    table.learn()
    last = max(table.history)
    for reader in (table.table, DeltaTable(table.path)):
        if reader.snapshot().version != last:
            raise Wrong(f"version {reader.snapshot().version} instead of {last}")
        _compare(f"rows of version {last}", reader.snapshot(), table.state)
    for version in rng.sample(sorted(table.history), min(2, len(table.history))):
        try:
            snapshot = DeltaTable(table.path).snapshot(version)
            _compare(f"rows of old version {version}", snapshot, table.history[version])
        except (MissingFileError, VersionNotFoundError):
            if version >= table.kept:
                raise
    _ask(table, rng)
    start = rng.choice([last, rng.randint(0, last)])
    _replay(table, rng, start, rng.randint(start, last))
    if table.properties.get("delta.enableRowTracking") == "true":
        _check_ids(table)


def _compare(what: str, snapshot: Any, state: State) -> None:
    rows = snapshot.scan().to_arrow()
    for found, expected in ((rows.schema.names, state.schema.names), (rows.schema.types, state.schema.types)):
        if found != expected:
            raise Wrong(f"{what}: {found} instead of {expected}")
    ensure_same(what, bag(rows), state.bag(state.rows))


def _ask(table: Table, rng: random.Random) -> None:
    """A filtered scan, its count, and queries over one column."""
    state, snapshot = table.state, DeltaTable(table.path).snapshot()
    found = leaves(state.schema)
    where = predicate(rng, found)
    rows = [row for row in state.rows if where.holds(row, None) is True]
    scan = snapshot.scan(where=where.sql)
    told = scan.to_arrow() if table.engine == "local" else table.engine.to_arrow(table.engine.scan(scan.plan()))
    ensure_same(f"rows WHERE {where.sql}", bag(told.cast(state.schema)), state.bag(rows))
    if scan.count() != len(rows):
        raise Wrong(f"{scan.count()} rows instead of {len(rows)} WHERE {where.sql}")
    leaf = rng.choice([leaf for leaf in found if leaf[1] != pa.binary()])
    # A query is in the engine's own SQL, a predicate in Spark's.
    is_local = table.engine == "local"
    chosen, text = rng.choice([(list(state.rows), "t"), (rows, "t" if is_local else f"t WHERE {where.sql}")])
    chosen = list(state.rows) if is_local else chosen
    for query, columns, expected in rng.sample(_queries(leaf, text, chosen), 2):
        answer = delta_orch.sql(query, tables={"t": snapshot}, engine=table.engine)
        answer = answer if isinstance(answer, pa.Table) else table.engine.to_arrow(answer)
        schema = pa.schema(columns)
        ensure_same(query, _zeros(bag(answer.cast(schema))), _zeros(bag(pa.Table.from_pylist(expected, schema))))


def _queries(leaf: Leaf, text: str, rows: list[Row]) -> list[tuple[str, dict[str, pa.DataType], list[Row]]]:
    x, data_type, of = leaf
    values = sorted((v for row in rows if (v := of(row)) is not None), key=sort_key)
    least, most = (values[0], values[-1]) if values else (None, None)
    counts = Counter(_key(of(row)) for row in rows)
    pairs = sum(n * n for key, n in counts.items() if key != _key(None))
    ordered = sorted(rows, key=lambda row: (_key(of(row)), row["u"]))[:2]
    groups = {_key(of(row)): of(row) for row in rows}
    return [
        (f"SELECT max({x}) b FROM {text}", {"b": data_type}, [{"b": most}]),
        (
            f"SELECT count(*) n, count({x}) c, min({x}) a FROM {text}",
            {"n": _COUNT, "c": _COUNT, "a": data_type},
            [{"n": len(rows), "c": len(values), "a": least}],
        ),
        (
            f"SELECT {x} x, count(*) n FROM {text} GROUP BY {x}",
            {"x": data_type, "n": _COUNT},
            [{"x": value, "n": counts[key]} for key, value in groups.items()],
        ),
        (
            f"SELECT u FROM {text} ORDER BY {x} NULLS FIRST, u LIMIT 2",
            {"u": _COUNT},
            [{"u": row["u"]} for row in ordered],
        ),
        (
            f"SELECT count(*) n FROM (SELECT {x} x FROM {text}) a JOIN (SELECT {x} x FROM {text}) b ON a.x = b.x",
            {"n": _COUNT},
            [{"n": pairs}],
        ),
    ]


def _replay(table: Table, rng: random.Random, start: int, end: int) -> None:
    """A range of the change feed leads from the version before it to its end."""
    before = table.history[start - 1] if start else State(table.history[0].schema)
    state, known = table.history[end], [table.changes[v] for v in range(start, end + 1)]
    if any(table.history[v].schema != before.schema for v in range(start, end + 1)):
        return
    where = predicate(rng, leaves(state.schema))
    asked: dict[str, Any] = {"starting_version": start, "ending_version": end, "require_change_data_feed": False}
    try:
        rows = table.table.changes(**asked).to_arrow()
        chosen = table.table.changes(**asked, where=where.sql).to_arrow()
    except (MissingFileError, VersionNotFoundError, UnsupportedFeatureError):
        if start > table.kept and not any(changes is None for changes in table.changes.values()):
            raise
        return
    kept = [row for row in rows.to_pylist() if where.holds(row, None) is True]
    ensure_same(f"changes WHERE {where.sql}", bag(chosen), bag(pa.Table.from_pylist(kept, rows.schema)))
    told = {k: bag(rows.filter(pc.equal(rows["_change_type"], k)).select(state.schema.names)) for k in _KINDS}
    ensure_same(
        f"rows after the changes {start} to {end}",
        state.bag(before.rows) + told["insert"] + told["update_postimage"],
        state.bag(state.rows) + told["delete"] + told["update_preimage"],
    )
    for kind in _KINDS if all(changes is not None for changes in known) else ():
        expected = state.bag(row for changes in known for found, row in changes or () if found == kind)
        ensure_same(f"{kind} of the changes {start} to {end}", told[kind], expected)


def _check_ids(table: Table) -> None:
    rows = DeltaTable(table.path).snapshot().scan(columns=["u"], row_tracking=True).to_arrow().to_pylist()
    if len({row["row_id"] for row in rows}) < len(rows):
        raise Wrong("a row id is given twice")
    times = Counter(row["u"] for row in table.state.rows)
    found = {row["u"]: (row["row_id"], row["row_commit_version"]) for row in rows}
    for row in table.state.rows:
        if times[row["u"]] > 1:
            continue
        row_id, since = found[row["u"]]
        known_id, known_since = table.ids.setdefault(row[TOKEN], (row_id, {}))
        if known_id != row_id or known_since.setdefault(row[SINCE], since) != since:
            raise Wrong(f"row {row['u']} has id {row_id} of {since}, and had {known_id} of {known_since}")


def _zeros(found: Bag) -> Bag:
    """0.0 and -0.0 are equal, and either may stand for both."""
    return Counter(tuple("0.0" if value == "-0.0" else value for value in row) for row in found.elements())


def _key(value: Any) -> Any:
    """Equal values have equal keys; null is the least."""
    return (False, 0) if value is None else (True, sort_key(value))
