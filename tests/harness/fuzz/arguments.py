"""Every public function with every wrong value for every argument: an error of ours, or Python's for a value of another
type; fast, and nothing changed.

The calls are made up from the signatures, so that a new method is covered by being there.

    python -m tests.harness.fuzz.arguments --calls 10000 --seed 1
"""

from __future__ import annotations

import argparse
import inspect
import os
import random
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args, get_origin, is_typeddict

import numpy as np
import pyarrow as pa

import delta_orch
from delta_orch import DeltaTable
from delta_orch.errors import DeltaError
from delta_orch.writing.target import WriteOptions
from tests.bounded import Try, tries

LONGEST_S = 1.0
LONGEST_MESSAGE = 2_000


def values() -> dict[str, Any]:
    """Wrong types and edge values, by a name."""
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    return {
        "None": None, "True": True, "False": False, "0": 0, "1": 1, "-1": -1, "2**63": 2**63, "-2**70": -(2**70),
        "10**400": 10**400, "0.5": 0.5, "nan": float("nan"), "inf": float("inf"), "-inf": float("-inf"),
        "1e308": 1e308, "Decimal": Decimal("1.5"), "complex": 1j, "np.int64": np.int64(1), "np.int8": np.int8(-1),
        "np.float32 nan": np.float32("nan"), "np.bool": np.bool_(True), "np.array": np.array([1, 2]), "empty": "",
        "space": " ", "text": "id", "unknown": "nope", "NUL": "a\0b", "surrogate": "\ud800", "long": "x" * 20_000,
        "quotes": "'\"`", "escape": "\x1b[2J", "dots": "../..", "number text": "1", "yes": "yes", "bytes": b"x",
        "bytearray": bytearray(b"x"), "memoryview": memoryview(b"x"), "list": [], "list of None": [None],
        "list of ints": [1], "list of texts": ["id"], "twice": ["id", "id"], "list of surrogates": ["\udfff"],
        "nested": [["id"]], "cyclic": cyclic, "tuple": (), "pair": ("a", 1), "set": {"id"}, "dict": {},
        "dict of ints": {1: 2}, "dict of texts": {"id": "1"}, "dict of None": {"id": None},
        "dict of objects": {"m": object()}, "dict of nan": {"m": float("nan")}, "object": object(),
        "class": int, "function": len, "module": sys, "generator": (n for n in range(2)), "range": range(3),
        "path": Path("/nonexistent/x"), "date": date(2024, 1, 1), "naive": datetime(2024, 1, 1),
        "datetime": datetime(9999, 12, 31, tzinfo=UTC), "Ellipsis": ..., "exception": ValueError("x"),
        "arrow table": pa.table({"id": [1]}), "no columns": pa.table({}), "arrow type": pa.int64(),
        "arrow schema": pa.schema([("id", pa.int64())]), "uuid": uuid.uuid4(),
    }  # fmt: skip


ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "day": ["a", "a", "b"]})
ORDINARY: dict[str, Any] = {
    "data": ROWS, "source": ROWS, "schema": ROWS.schema, "where": "id > 0", "predicate": "id > 0", "on": "id",
    "set": {"day": "'z'"}, "expression": "id > 0", "name": "id", "new_name": "other", "path": "day", "domain": "mine",
    "configuration": "{}", "data_type": "string", "app_id": "job", "columns": ["id"], "version": 0,
    "properties": {"mine": "1"}, "description": "text", "comment": "text", "names": "deletionVectors",
    "query": "select 1", "keys": ["id"], "rows": ROWS, "sequence_by": "id",
}  # fmt: skip
"""What a required argument gets while another one is wrong, by its name."""


@dataclass(frozen=True)
class Call:
    """One call: of what, with which arguments. `wrong` names the one that is made up."""

    place: str
    method: str
    wrong: str
    value: str
    arguments: dict[str, Any]
    is_rest: bool = False

    def __str__(self) -> str:
        return f"{self.place}.{self.method}({self.wrong}={self.value})"


class Table:
    """A table in memory, made anew where a call has changed it."""

    def __init__(self) -> None:
        self._build()

    def _build(self) -> None:
        self.table = DeltaTable(f"memory://{uuid.uuid4()}")
        self.table.append(ROWS, partition_by=["day"])
        self.table.append(ROWS)
        self.state = self.files()

    def files(self) -> list[Any]:
        return sorted(self.table.store.list_recursive("_delta_log"))

    def restore(self) -> None:
        if self.files() != self.state:
            self._build()

    def places(self) -> dict[str, Callable[[], Any]]:
        return {
            "DeltaTable": lambda: self.table,
            "TableSnapshot": lambda: self.table.snapshot(),
            "Scan": lambda: self.table.snapshot().scan(),
            "ChangeFeed": lambda: self.table.changes(starting_version=0),
            "Alteration": lambda: self.table.alter(),
            "Merge": lambda: self.table.merge(ROWS, "source.id = target.id"),
            "delta_orch": lambda: delta_orch,
        }


def functions(owner: Any) -> Iterator[tuple[str, Any]]:
    """The public functions of an object or of the package."""
    names = delta_orch.__all__ if owner is delta_orch else dir(type(owner))
    for name in names:
        found = getattr(owner, name) if owner is delta_orch else getattr(type(owner), name)
        if not name.startswith("_") and inspect.isfunction(found):
            yield name, found


def calls(table: Table) -> list[Call]:
    """All of them."""
    found: list[Call] = []
    for place, make in table.places().items():
        for name, function in functions(make()):
            found += _calls_of(place, name, inspect.signature(function))
    table_uri = inspect.signature(DeltaTable.__init__)
    return [*found, *_calls_of("delta_orch", "DeltaTable", table_uri)]


def _calls_of(place: str, method: str, signature: inspect.Signature) -> Iterator[Call]:
    parameters = [p for name, p in signature.parameters.items() if name != "self"]
    ordinary = {
        p.name: ORDINARY.get(p.name, "id")
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    for parameter in parameters:
        wrongs = _options(parameter.annotation) if parameter.kind is parameter.VAR_KEYWORD else [parameter.name]
        for wrong in wrongs:
            for value in values():
                yield Call(place, method, wrong, value, ordinary, parameter.kind is parameter.VAR_POSITIONAL)


def _options(annotation: Any) -> list[str]:
    """The keywords of `**options`, and one that does not exist."""
    kind = get_args(annotation)[0] if get_origin(annotation) else WriteOptions
    return [*(kind.__annotations__ if is_typeddict(kind) else WriteOptions.__annotations__), "no_such_option"]


def run(call: Call, table: Table) -> str | None:
    """Make a call. Returns what is wrong with how it went, None where nothing is."""
    try:
        # One collection of garbage in a process that has run thousands of tests takes longer than most calls.
        for one in tries(LONGEST_S, call):
            failure = _once(call, table, one)
            if failure is not None:
                return failure
    except AssertionError as e:
        return str(e)
    return None


def _once(call: Call, table: Table, one: Try) -> str | None:
    owner = table.places()[call.place]()
    function = getattr(owner, call.method)
    value = values()[call.value]
    arguments = dict(call.arguments) if call.is_rest else {**call.arguments, call.wrong: value}
    before = table.files()
    failure: str | None = None
    try:
        with one.timed():
            result = function(*((value,) if call.is_rest else ()), **arguments)
            if inspect.isgenerator(result):
                list(result)
            # A builder looks at some of what it was given when it runs.
            if isinstance(result, type(owner)) and call.place in ("Merge", "Alteration"):
                (result.execute if call.place == "Merge" else result.preview)()
    except DeltaError as e:
        if len(str(e)) >= LONGEST_MESSAGE:
            failure = f"a message of {len(str(e))} characters"
        elif not _is_printable(str(e)):
            failure = "a message that cannot be printed"
        elif table.files() != before:
            failure = f"the log changed in spite of {type(e).__name__}"
    except (TypeError, AttributeError) as e:
        if table.files() != before:
            failure = f"the log changed in spite of {type(e).__name__}"
    except Exception as e:  # noqa: BLE001 - reported
        failure = f"{type(e).__module__}.{type(e).__name__}: {str(e)[:200]}"
    delta_orch.configure(retry_seconds=0)
    table.restore()
    return failure


def _is_printable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\x1b" not in text and "\0" not in text


def run_many(number: int | None, seed: int) -> tuple[int, dict[str, str]]:
    """Make some calls, or all. Returns how many, and what went wrong."""
    table = Table()
    chosen = calls(table)
    random.Random(seed).shuffle(chosen)
    chosen = chosen[:number]
    failures = {str(call): found for call in chosen if (found := run(call, table)) is not None}
    delta_orch.configure(retry_seconds=None)
    return len(chosen), failures


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        # Some values are locations.
        os.chdir(scratch)
        number, failures = run_many(given.calls, given.seed)
    for call, found in sorted(failures.items()):
        _say(f"{call}: {found}")
    _say(f"{number} calls in {time.monotonic() - started:.0f} s, seed {given.seed}: {len(failures)} failures")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
