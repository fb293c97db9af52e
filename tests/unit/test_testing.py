"""`delta_orch.testing`, and its page."""

from __future__ import annotations

import re
import threading
import uuid
from pathlib import Path

import pyarrow as pa
import pytest

from delta_orch.errors import InvalidRequestError, StorageError, TableExistsError
from delta_orch.testing import FailingStore, Moment, build_table, open_table

PAGE = Path(__file__).parents[2] / "docs/testing.md"
ROWS = pa.table({"day": ["mon", "tue"], "id": [1, 2]})


@pytest.fixture
def uri() -> str:
    return f"memory://{uuid.uuid4()}"


def test_the_examples_of_the_page_run() -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 4
    exec(compile("\n".join(examples), str(PAGE), "exec"), {})


def test_the_page_lists_every_moment() -> None:
    assert re.findall(r"^\| `([A-Z_]+)`", PAGE.read_text(), re.MULTILINE) == [moment.name for moment in Moment]


def test_a_version_for_each_commit(uri: str) -> None:
    table = build_table(
        uri, ROWS, ROWS.slice(0, 0), ROWS, partition_by=["day"], properties={"delta.appendOnly": "true"}
    )
    assert [table.snapshot(v).scan().to_arrow().num_rows for v in range(table.version() + 1)] == [0, 2, 4]
    assert table.snapshot().metadata.partition_columns == ("day",)
    assert table.snapshot().metadata.configuration == {"delta.appendOnly": "true"}


def test_a_table_that_is_there_is_left_alone(uri: str) -> None:
    table = build_table(uri, ROWS)
    with pytest.raises(TableExistsError):
        build_table(uri, ROWS)
    assert table.version() == 1


def test_a_table_without_rows_is_refused(uri: str) -> None:
    with pytest.raises(InvalidRequestError, match="No rows"):
        build_table(uri)


def test_a_failure_is_raised_as_often_as_asked(uri: str) -> None:
    store = FailingStore(build_table(uri, ROWS).store)
    store.fail_at(Moment.LOG_LIST, times=2)
    for _ in range(2):
        with pytest.raises(StorageError, match="Injected") as error:
            open_table(store).version()
        assert error.value.retryable
    assert open_table(store).version() == 1
    assert store.counts()["list_from"] == store.count("list_from", "_delta_log") == 3
    store.forget_calls()
    assert not store.calls


def test_calls_of_several_threads_are_counted_once_each(uri: str) -> None:
    store = FailingStore(build_table(uri, ROWS).store)
    threads = [threading.Thread(target=lambda: [store.head("absent") for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [call.number for call in store.calls] == list(range(800))
