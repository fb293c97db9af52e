"""Two writers of a table of a catalog, one of them whole at each moment of the other; and each fault at each request of
each verb."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.errors import ConflictError, DeltaError
from tests.families import family
from tests.harness.unity_emulator import UnityEmulator, unity_emulator

URI = "uc://main.default.t"
Verb = Callable[[DeltaTable], object]
Rows = list[tuple[int, str]]


def _rows(*ids: int, by: str = "new") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [by] * len(ids)})


VERBS: Mapping[str, Verb] = {
    "append": lambda table: table.append(_rows(9)),
    "append_2": lambda table: table.append(_rows(8)),
    "delete": lambda table: table.delete("id = 1"),
    "update": lambda table: table.update({"name": "'updated'"}, where="id = 2"),
    "update_1": lambda table: table.update({"name": "'updated'"}, where="id <= 2"),
    "upsert": lambda table: table.upsert(_rows(2, 7, by="merged"), ["id"]),
    "overwrite": lambda table: table.overwrite(_rows(5)),
    "alter": lambda table: table.alter().set_properties({"delta.appendOnly": "false", "note": "x"}).commit(),
    "add_column": lambda table: table.alter().add_columns("more STRING").commit(),
    "replace": lambda table: table.create_or_replace("id BIGINT, name STRING"),
    "restore": lambda table: table.restore(version=0),
    "checkpoint": lambda table: table.checkpoint(),
}
PAIRS = [
    ("append", "append_2"), ("append", "alter"), ("append", "overwrite"), ("delete", "update"), ("delete", "update_1"),
    ("delete", "upsert"), ("update", "append"), ("upsert", "append"), ("overwrite", "append"), ("overwrite", "delete"),
    ("alter", "append"), ("alter", "add_column"), ("add_column", "append"), ("replace", "append"),
    ("restore", "append"), ("checkpoint", "append"), ("append", "checkpoint"),
]  # fmt: skip


@pytest.fixture
def unity(tmp_path: Path) -> Iterator[UnityEmulator]:
    with unity_emulator(tmp_path) as emulator:
        yield emulator
        emulator.ensure_lawful()


class Catalog:
    """A table with three rows in two versions, made anew as often as asked for."""

    def __init__(self, unity: UnityEmulator) -> None:
        self.unity = unity

    def table(self) -> DeltaTable:
        """The table, new."""
        self.unity.watch = None
        self.unity.tables.clear()
        table = self.opened()
        table.append(_rows(1, 2, by="old"))
        table.append(_rows(3, by="old"))
        return self.opened()

    def opened(self) -> DeltaTable:
        return DeltaTable(URI, self.unity.options)

    def rows(self) -> Rows:
        found = self.opened().snapshot().scan().to_arrow()
        return sorted(zip(found["id"].to_pylist(), found["name"].to_pylist(), strict=True))

    def after(self, *verbs: str) -> Rows:
        """The rows after these, one after the other."""
        self.table()
        for verb in verbs:
            VERBS[verb](self.opened())
        return self.rows()


@family("pair", PAIRS, every=4)
def test_one_writer_at_each_moment_of_another(unity: UnityEmulator, pair: tuple[str, str]) -> None:
    first, second = pair
    catalog = Catalog(unity)
    serial = {"both": [catalog.after(first, second), catalog.after(second, first)], "second": [catalog.after(second)]}
    moment = 0
    while True:
        table = catalog.table()
        met = _Meeting(moment, lambda: VERBS[second](catalog.opened()))
        unity.watch = met
        try:
            VERBS[first](table)
            ended = "both"
        except ConflictError:
            ended = "second"
        unity.watch = None
        if not met.has_come:
            break
        assert met.error is None, met.error
        assert catalog.rows() in serial[ended], (pair, moment, ended)
        moment += 1
    assert moment >= 2, "the first writer asks the catalog"


class _Meeting:
    """Does something at the given moment of the requests of one client, and nothing during its own."""

    def __init__(self, moment: int, act: Callable[[], object]) -> None:
        self._left, self._act = moment, act
        self._lock = threading.Lock()
        self.has_come = False
        self.error: BaseException | None = None

    def __call__(self, endpoint: str, when: str) -> None:
        with self._lock:
            is_now, self._left = self._left == 0, self._left - 1
        if not is_now or self.has_come:
            return
        self.has_come = True
        try:
            self._act()
        except DeltaError as e:
            self.error = e


FAULTS = list(product(("before", "after"), (0, 429, 503)))
CASES = [(verb, when, status) for verb in VERBS for when, status in FAULTS]


@family("case", CASES, every=9)
def test_a_fault_at_each_request_of_a_verb(unity: UnityEmulator, case: tuple[str, str, int]) -> None:
    """The request is repeated: the verb ends as if nothing had happened, and is there once."""
    verb, when, status = case
    catalog = Catalog(unity)
    expected = catalog.after(verb)
    versions = unity.table("main.default.t").latest
    moment = 0
    while True:
        table = catalog.table()
        fault = _FaultAt(unity, moment, when, status)
        unity.watch = fault
        VERBS[verb](table)
        unity.watch = None
        unity.faults.clear()
        if not fault.has_come:
            break
        assert catalog.rows() == expected, (case, moment)
        assert unity.table("main.default.t").latest == versions, (case, moment)
        moment += 1
    assert moment >= 1


class _FaultAt:
    """Lets the request of a number go wrong."""

    def __init__(self, unity: UnityEmulator, moment: int, when: str, status: int) -> None:
        self._unity, self._left, self._when, self._status = unity, moment, when, status
        self.has_come = False

    def __call__(self, endpoint: str, when: str) -> None:
        if when == "after":
            return
        if self._left == 0:
            self.has_come = True
            kind = "TooManyRequestsException" if self._status == 429 else "InternalServerErrorException"
            self._unity.fail(
                endpoint, status=self._status, kind=kind, when="after" if self._when == "after" else "before"
            )
        self._left -= 1
