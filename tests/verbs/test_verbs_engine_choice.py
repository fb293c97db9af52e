"""Which engine runs a verb."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from delta_orch import DeltaTable
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.select import is_spark_value, select_engine
from delta_orch.errors import InvalidRequestError, StorageError, UnsupportedStoreError


def test_values_choose_the_local_engine(days: Any) -> None:
    for data in (days(("a", 1)), days(("a", 1)).to_pandas(), None):
        assert select_engine(data).name == "local"
        assert not is_spark_value(data)
    engine = LocalEngine()
    assert select_engine(days(), engine) is engine
    for choice in ("duck", "", "Spark "):
        with pytest.raises(InvalidRequestError, match="no engine"):
            select_engine(days(), choice)


@pytest.mark.long
def test_spark_needs_a_session() -> None:
    code = (
        "import pyarrow as pa\n"
        "from delta_orch.engines.select import select_engine\n"
        "from delta_orch.errors import InvalidRequestError, StorageError, UnsupportedStoreError\n"
        "try: select_engine(pa.table({'a': [1]}), 'spark')\n"
        "except InvalidRequestError as e: assert 'session' in str(e)\n"
        "else: raise SystemExit('no error')\n"
        "import sys; assert 'pyspark' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_tables_travel_to_other_processes(table: DeltaTable, days: Any) -> None:
    import pickle

    table.append(days(("a", 1)))
    carried = pickle.dumps(table)
    assert len(carried) < 2000
    again = pickle.loads(carried)
    table.append(days(("a", 2)))
    assert (again.uri, again.version()) == (table.uri, 1)


def test_tables_in_memory(days: Any) -> None:
    import uuid

    table = DeltaTable(f"memory://{uuid.uuid4()}")
    table.append(days(("a", 1), ("b", 2)), partition_by=["day"])
    table.append(days(("a", 3)))
    table.overwrite(days(("b", 4)), replace_where="day = 'b'")
    table.optimize()
    table.checkpoint()
    assert table.vacuum(retention_hours=0, enforce_retention=False).num_files == 3
    assert sorted(DeltaTable(table.uri).snapshot().scan(["id"]).to_arrow().column("id").to_pylist()) == [1, 3, 4]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_store_that_cannot_commit_is_refused_before_data_is_written(days: Any) -> None:
    import uuid

    from delta_orch.storage.fsspec_store import FsspecStore

    table = DeltaTable(f"memory://{uuid.uuid4()}")
    table.append(days(("a", 1)))
    uri = f"memory://{uuid.uuid4()}"
    table.store = table.log.store = FsspecStore(uri)
    for verb in (table.append, table.overwrite):
        with pytest.raises(UnsupportedStoreError, match="single_writer"):
            verb(days(("a", 2)))
    with pytest.raises(UnsupportedStoreError):
        table.create(days().schema)
    assert not list(FsspecStore(uri).list_recursive())
    with pytest.raises(StorageError, match="storage options"):  # it wants a host
        DeltaTable("ftp://localhost/x").append(days(("a", 1)))


@pytest.mark.spark
def test_spark_values_choose_spark(spark: Any, table: DeltaTable, days: Any) -> None:
    frame = spark.createDataFrame(days(("a", 1)))
    assert select_engine(frame).name == "spark"
    with pytest.raises(InvalidRequestError, match="toArrow"):
        select_engine(frame, "local")
    table.append(days(("a", 1)), engine="spark")
    table.append(days(("a", 2)).to_pandas(), engine="spark")
    table.append(frame)
    assert sorted(table.snapshot().scan(["id"]).to_arrow().column("id").to_pylist()) == [1, 1, 2]


@pytest.mark.spark
def test_the_same_verbs_through_connect(spark_connect: Any, table: DeltaTable, days: Any) -> None:
    def frame(*rows: Any) -> Any:
        return spark_connect.createDataFrame(days(*rows))

    def ids() -> list[int]:
        return sorted(table.snapshot().scan(["id"]).to_arrow().column("id").to_pylist())

    table.append(frame(("a", 1), ("b", 2)), partition_by=["day"], txn=("job", 1))
    assert table.append(frame(("a", 1)), txn=("job", 1)).skipped
    table.append(frame(("b", 3)))
    table.overwrite(frame(("b", 4)), replace_where="day = 'b'")
    assert ids() == [1, 4]
    table.overwrite(frame(("c", 5)), partition_overwrite_mode="dynamic")
    table.overwrite(frame(("n", 6)), replace_where="id = 4 OR day = 'n'")
    assert ids() == [1, 5, 6]
    frame_of_table = table.snapshot().scan(where="id > 1").to_spark(spark_connect)
    assert sorted(row.id for row in frame_of_table.collect()) == [5, 6]
    changed: Any = table.changes(starting_version=0).to_spark(spark_connect)
    assert changed.where("_change_type = 'delete'").count() == 3
