"""Bad input ends in an error of ours that says what to do, not in a stack trace of the JVM's."""

from __future__ import annotations

import pickle
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_orch import DeltaTable, sql
from delta_orch.engines.base import RowCheck, WriteSpec
from delta_orch.engines.local.engine import LocalEngine
from delta_orch.engines.scan_plan import ScanPlan
from delta_orch.engines.spark.engine import SparkEngine
from delta_orch.errors import (
    ColumnNotFoundError,
    InvalidExpressionError,
    InvalidRequestError,
    MissingFileError,
    SchemaMismatchError,
    StorageError,
    TableError,
)
from delta_orch.expressions.nodes import Column, Opaque
from delta_orch.protocol.paths import decode_path
from delta_orch.protocol.types import LONG, STRING, StructField, StructType
from tests.spark.spark_files import Files, on_every_session

pytestmark = pytest.mark.spark


def written(engine: SparkEngine, files: Files) -> tuple[pa.Table, Any, Path]:
    adds, schema = files.write(engine, pa.table({"id": [1, 2], "p": ["x", "x"]}), partition_by=("p",))
    return adds, schema, files.root / decode_path(adds["path"][0].as_py())


@pytest.mark.long
def test_a_missing_data_file(engine: SparkEngine, files: Files) -> None:
    adds, schema, path = written(engine, files)
    # On Connect the files are looked for when the scan is made, on classic when it runs.
    ready = None if not engine.host.is_time_zone_pinned else files.scan(engine, adds, schema, ("p",))
    path.unlink()
    for pull in (engine.to_arrow, lambda rows: engine.to_reader(rows).read_all()):
        with pytest.raises(MissingFileError) as caught:
            pull(ready if ready is not None else files.scan(engine, adds, schema, ("p",)))
        assert path.name in str(caught.value.context["path"])
        assert "\tat " not in str(caught.value)
        assert type(pickle.loads(pickle.dumps(caught.value))) is MissingFileError


@pytest.mark.long
def test_a_file_that_vanishes_between_scan_and_read(engine: SparkEngine, files: Files) -> None:
    adds, schema, path = written(engine, files)
    rows = files.scan(engine, adds, schema, ("p",))
    path.unlink()
    with pytest.raises(MissingFileError):
        engine.to_arrow(rows)
    with pytest.raises(MissingFileError):
        engine.write(rows, WriteSpec(files.store, schema, ("p",)))


def test_files_spark_takes_for_hidden_are_read_or_refused_but_never_lost(engine: SparkEngine, files: Files) -> None:
    adds, schema, path = written(engine, files)
    hidden = path.with_name("_" + path.name)
    path.rename(hidden)
    index = adds.schema.get_field_index("path")
    renamed = adds.set_column(index, adds.schema.field(index), pa.array([f"p=x/{hidden.name}"]))
    if engine.host.is_time_zone_pinned:
        assert engine.to_arrow(files.scan(engine, renamed, schema, ("p",))).num_rows == 2
    else:
        visible, _, _ = written(engine, files)
        for table in (renamed, pa.concat_tables([renamed, visible])):
            with pytest.raises(MissingFileError, match="hidden"):
                files.scan(engine, table, schema, ("p",))


@pytest.mark.long
@pytest.mark.parametrize("content", [b"P", b"PAR1 no parquet", b"x" * 5000])
def test_a_data_file_that_is_no_parquet(engine: SparkEngine, files: Files, content: bytes) -> None:
    adds, schema, path = written(engine, files)
    path.write_bytes(content)
    size = adds.schema.get_field_index("size")
    adds = adds.set_column(size, "size", pa.array([len(content)]))
    # What is wrong with it, not which call found that out.
    with pytest.raises(TableError, match=r"cannot be read\.\n.*[Pp]arquet") as caught:
        engine.to_arrow(files.scan(engine, adds, schema, ("p",)))
    assert "getResult" not in str(caught.value)


def test_a_data_file_whose_values_are_in_no_dictionary(engine: SparkEngine, files: Files) -> None:
    """Spark decodes them late, where it says nothing of a file."""
    import pyarrow.parquet as pq

    adds, schema = files.write(engine, pa.table({"s": ["a", "b", "c"]}))
    path = files.root / adds["path"][0].as_py()
    pq.write_table(pa.table({"s": ["a", "b", "c"] * 8}), path, compression="none")
    chunk = pq.read_metadata(path).row_group(0).column(0)
    end = chunk.dictionary_page_offset + chunk.total_compressed_size
    content = bytearray(path.read_bytes())
    content[end - 4 : end] = b"\xff" * 4
    path.write_bytes(content)
    with pytest.raises(TableError, match="cannot be read"):
        engine.to_arrow(files.scan(engine, adds, schema))


@pytest.mark.long
@pytest.mark.parametrize("size", [None, 0, -1, 1, 2**53 + 1, 2**63 - 1])
def test_a_log_that_does_not_know_the_size(engine: SparkEngine, files: Files, size: int | None) -> None:
    adds, schema, path = written(engine, files)
    adds = adds.set_column(adds.schema.get_field_index("size"), "size", pa.array([size], pa.int64()))
    assert engine.to_arrow(files.scan(engine, adds, schema, ("p",))).num_rows == 2
    path.unlink()
    with pytest.raises(MissingFileError):
        engine.to_arrow(files.scan(engine, adds, schema, ("p",)))


def test_a_log_with_a_name_that_is_too_long_to_be_looked_up(engine: SparkEngine, files: Files) -> None:
    adds, schema, _ = written(engine, files)
    for column, value in (("size", pa.array([0])), ("path", pa.array(["a/" * 3000 + "f.parquet"]))):
        adds = adds.set_column(adds.schema.get_field_index(column), column, value)
    with pytest.raises(StorageError, match="Cannot look up data files"):
        files.scan(engine, adds, schema, ("p",))


def test_physical_names_without_column_mapping(engine: SparkEngine, files: Files) -> None:
    """The log still has them as keys of partition values; the rows are those of the local engine."""
    adds, _, _ = written(engine, files)
    schema = StructType(
        (StructField("id", LONG), StructField("p", STRING, metadata={"delta.columnMapping.physicalName": "col-1"}))
    )
    for plan in (ScanPlan(files.store, schema, ("p",), adds), ScanPlan(files.store, schema, ("p",), renamed(adds))):
        assert engine.to_arrow(engine.scan(plan)).equals(LocalEngine().to_arrow(LocalEngine().scan(plan)))


def renamed(adds: pa.Table) -> pa.Table:
    """The partition values under the physical name."""
    column = pa.array([[("col-1", "x")]], adds.schema.field("partition_values").type)
    return adds.set_column(adds.schema.get_field_index("partition_values"), "partition_values", column)


def test_a_log_that_says_a_file_is_smaller_than_it_is(engine: SparkEngine, files: Files) -> None:
    """Spark passes over row groups behind the size that it is told."""
    import pyarrow.parquet as pq

    adds, schema, path = written(engine, files)
    pq.write_table(pa.table({"id": range(1000)}), path, row_group_size=100)
    adds = adds.set_column(adds.schema.get_field_index("size"), "size", pa.array([path.stat().st_size // 2]))
    assert engine.to_arrow(files.scan(engine, adds, schema, ("p",))).num_rows == 1000


def test_a_column_whose_type_in_the_file_is_another(engine: SparkEngine, files: Files) -> None:
    import pyarrow.parquet as pq

    adds, schema, path = written(engine, files)
    pq.write_table(pa.table({"id": ["no number"]}), path)
    size = adds.schema.get_field_index("size")
    adds = adds.set_column(size, "size", pa.array([path.stat().st_size]))
    with pytest.raises(TableError, match=r"\[id\].*BINARY"):
        engine.to_arrow(files.scan(engine, adds, schema, ("p",)))


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("no_such_function(id) = 1", InvalidExpressionError),
        ("id = = 1", InvalidExpressionError),
        ("nowhere = 1", ColumnNotFoundError),
        ("id", InvalidExpressionError),
    ],
)
def test_expressions_only_spark_understands_and_does_not(
    engine: SparkEngine, files: Files, text: str, kind: type[Exception]
) -> None:
    adds, schema, _ = written(engine, files)
    opaque = Opaque(text, (Column(("id",)),))
    with pytest.raises(kind):
        engine.to_arrow(files.scan(engine, adds, schema, ("p",), where=opaque))


def test_a_check_spark_cannot_evaluate(engine: SparkEngine, files: Files) -> None:
    check = RowCheck("odd", Opaque("no_such_function(id)", (Column(("id",)),)))
    with pytest.raises(InvalidExpressionError):
        files.write(engine, pa.table({"id": [1]}), checks=(check,))


def test_a_query_that_does_not_fit(engine: SparkEngine) -> None:
    rows = engine.host.session.range(1)
    with pytest.raises(ColumnNotFoundError):
        engine.to_arrow(engine.sql("SELECT nope FROM source", {"source": rows}))
    with pytest.raises(InvalidExpressionError):
        engine.to_arrow(engine.sql("SELEKT 1", {"source": rows}))
    with pytest.raises(InvalidExpressionError):
        engine.to_arrow(engine.sql("SELECT * FROM another", {"source": rows}))


@on_every_session
def test_the_users_own_failures_stay_theirs(engine: SparkEngine, files: Files) -> None:
    from pyspark.errors import PySparkException

    raising = engine.host.session.range(3).selectExpr("id", "raise_error('[delta_orch check 0] mine') AS x", "1 AS y")
    with pytest.raises(PySparkException, match="mine"):
        files.write(engine, raising.selectExpr("id", "CAST(x AS STRING) AS x"))


GATHER: dict[str, Callable[[SparkEngine, Any], pa.Table]] = {
    "at once": lambda engine, rows: engine.to_arrow(rows),
    "as a stream": lambda engine, rows: engine.to_reader(rows).read_all(),
}


@pytest.mark.parametrize("way", GATHER)
def test_a_value_that_an_expression_cannot_take_is_told_in_our_words(engine: SparkEngine, way: str) -> None:
    """What is pulled is a request's, with its expressions: no verb collects a user's rows as they are."""
    from pyspark.errors import PySparkException

    rows = engine.host.session.range(3)
    with pytest.raises(InvalidExpressionError, match="DIVIDE_BY_ZERO") as caught:
        GATHER[way](engine, rows.selectExpr("id", "1 / (id - 1) AS x"))
    assert caught.value.__cause__ is not None
    with pytest.raises(InvalidExpressionError, match=r"`rlike`|Unclosed group"):
        GATHER[way](engine, rows.selectExpr("id", "CAST(id AS STRING) RLIKE concat('(', id) AS x"))
    with pytest.raises(PySparkException, match="mine"):
        GATHER[way](engine, rows.selectExpr("id", "raise_error('mine') AS x").selectExpr("CAST(x AS STRING) AS x"))


def test_a_value_that_a_column_cannot_hold_is_told_in_our_words(engine: SparkEngine, tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "t")
    table.create(pa.schema([("i", pa.int32())]))
    for rows in ("SELECT double('NaN') AS i", "SELECT 1 / (id - id) AS i FROM range(3)"):
        with pytest.raises(InvalidExpressionError, match=r"CAST_OVERFLOW|DIVIDE_BY_ZERO"):
            sql(f"INSERT INTO t {rows}", engine=engine, tables={"t": table})
    assert table.version() == 0


def test_types_delta_does_not_have(engine: SparkEngine) -> None:
    rows = engine.host.session.sql("SELECT INTERVAL '1' DAY AS i")
    with pytest.raises(SchemaMismatchError, match="column i of type interval day, which Arrow cannot hold"):
        engine.schema(rows)


@pytest.mark.long
def test_a_full_disk(engine: SparkEngine, files: Files, spark: Any) -> None:
    """The JVM may write no file above 256 KiB: what a full disk is to it, without filling one."""
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    rows = engine.host.session.range(0, 300_000, 1, 1).selectExpr("id", "uuid() AS u")
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (256 << 10, limits[1]))
    try:
        with pytest.raises(StorageError) as caught:
            files.write(engine, rows)
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
    assert "\tat " not in str(caught.value)
    adds, _ = files.write(engine, rows)
    assert adds.num_rows == 1


def test_no_session_no_engine() -> None:
    with pytest.raises(InvalidRequestError, match="neither"):
        SparkEngine(object())


def test_a_path_that_leaves_the_table(engine: SparkEngine, files: Files) -> None:
    from delta_orch.errors import ProtocolViolationError

    adds, schema, _ = written(engine, files)
    index = adds.schema.get_field_index("path")
    for path in ("../elsewhere.parquet", "a/%2e%2E/../../b.parquet"):
        bad = adds.set_column(index, "path", pa.array([path]))
        with pytest.raises(ProtocolViolationError):
            files.scan(engine, bad, schema, ("p",))
