"""The log's part of the fault matrix with Spark at the rows: what goes wrong on the driver while Spark's files wait for
their commit. `test_fault_matrix` tries every call with the local engine; here are those that change the log."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from delta_orch.delta_table import DeltaTable
from delta_orch.errors import DeltaError, StorageError, StorageOutcomeUnknownError
from delta_orch.testing import open_table
from tests.harness.fault_matrix.cases import CHANGING, Rehearsal, judge_table
from tests.harness.fault_matrix.tables import Template, described, make_templates, put_files, rows
from tests.harness.fault_matrix.verbs import TXN, Verb
from tests.harness.fault_store import FaultStore, StoreCall

pytestmark = pytest.mark.spark

VERBS = [
    Verb(
        "append, first",
        "none",
        lambda t: t.append(rows("a", 1), partition_by=["day"], engine="spark", txn=TXN),
        has_txn=True,
    ),
    Verb("append", "rich, checkpoint due", lambda t: t.append(rows("a", 9), engine="spark", txn=TXN), has_txn=True),
    Verb(
        "overwrite in files",
        "rich",
        lambda t: t.overwrite(rows("b", 5), replace_where="id IN (2, 5)", engine="spark", txn=TXN),
        has_txn=True,
    ),
    Verb("optimize", "plain", lambda t: t.optimize(engine="spark", txn=TXN), has_txn=True),
]


class DriverFaults(FaultStore):
    """Fails on the driver alone: what is sent to executors is the store inside."""

    def __reduce__(self) -> Any:
        return copy.copy, (self.inner,)


def table_before(folder: Path, template: Template) -> tuple[DeltaTable, FaultStore]:
    put_files(str(folder), template.now)
    store = DriverFaults(DeltaTable(folder).store)
    return open_table(store), store


def changing_calls(store: FaultStore) -> list[StoreCall]:
    return [call for call in store.calls if call.method in CHANGING]


@pytest.mark.long
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_nothing_is_lost_doubled_or_half_there(verb: Verb, tmp_path: Path, spark: Any) -> None:
    template = make_templates()[verb.template]
    table, store = table_before(tmp_path / "rehearsal", template)
    before = described(DeltaTable(tmp_path / "rehearsal"))
    verb.act(table)
    calls = changing_calls(store)
    assert any(call.method == "put_if_absent" and call.path.endswith(".json") for call in calls)
    rehearsal = Rehearsal(tuple(calls), before, described(DeltaTable(tmp_path / "rehearsal")), None, None)
    seen: dict[str, int] = {}
    for call in calls:
        nth = seen[call.method] = seen.get(call.method, -1) + 1
        for number, fault in enumerate((fail, fail_after)):
            folder = tmp_path / f"{call.method}-{nth}-{number}"
            table, store = table_before(folder, template)
            store.instead((call.method, nth), fault)
            error = None
            try:
                verb.act(table)
            except DeltaError as e:
                error = e
            assert store.is_obeyed, (call, fault)
            judge_table(verb, table, str(folder), template, rehearsal, is_done=error is None, error=error)


def fail(call: StoreCall, act: Callable[[], Any]) -> Any:
    raise StorageError(f"Injected failure of {call.method}", path=call.path)


def fail_after(call: StoreCall, act: Callable[[], Any]) -> Any:
    act()
    kind = StorageError if call.method == "stage" else StorageOutcomeUnknownError
    raise kind(f"Injected loss of the answer to {call.method}", path=call.path)
