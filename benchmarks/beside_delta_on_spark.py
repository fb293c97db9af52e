"""delta_orch beside Delta on Spark, in one session: the same queries, writes, streams and plans, turn by turn.

    scripts/setup_reference.sh
    PYTHONPATH=. .venv/reference/bin/python -m benchmarks.beside_delta_on_spark [ROWS [FILES [NAMED]]]

The session has the Spark and the JARs of the reference. What delta_orch needs beside them comes from this project's
environment. `ROWS` are those of the larger tables, `FILES` those of the log that is planned, `NAMED` a part of a name
of what is measured.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import plots

Row = tuple[str, Callable[[], object], Callable[[], object]]
"""What is measured, ours and theirs. Both return what must be equal."""

ROUNDS = 5
ROOT = Path(__file__).parents[1]


def share_packages(directory: Path) -> None:
    """Let this process and Spark's workers import what delta_orch needs; pyspark stays the reference's."""
    directory.mkdir()
    for found in next((ROOT / ".venv" / "lib").glob("python*/site-packages")).iterdir():
        if not found.name.startswith(("pyspark", "py4j", "__")):
            (directory / found.name).symlink_to(found)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(directory)])
    sys.path.append(str(directory))


def session() -> Any:
    from pyspark.sql import SparkSession

    jars = sorted(map(str, (Path(sys.prefix) / "jars").glob("*.jar")))
    settings = {
        "spark.jars": ",".join(jars),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.driver.memory": "3g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    made = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    return made


class Tables:
    """The tables of a run, and how each side reads and writes them."""

    def __init__(self, spark: Any, root: Path, num_rows: int) -> None:
        self.spark, self.root, self.num_rows = spark, root, num_rows
        self._written = 0

    def ours(self, name: str) -> Any:
        from delta_orch import DeltaTable

        return DeltaTable(self.root / name).snapshot().scan().to_spark(self.spark)

    def theirs(self, name: str) -> Any:
        return self.spark.read.format("delta").load(str(self.root / name))

    def make(self) -> None:
        """Written by Delta on Spark: rows, the same with one in a hundred deleted by vectors, a dimension."""
        rows = self.spark.range(0, self.num_rows, 1, 8).selectExpr(
            "id", "id % 1000 AS k", "id * 0.5D AS value", "concat('name ', id % 5000) AS name", "id % 100 AS p"
        )
        for name, vectors in (("plain", "true"), ("marked", "true"), ("rewritten", "false")):
            rows.write.format("delta").option("delta.enableDeletionVectors", vectors).save(str(self.root / name))
        self.spark.sql(f"DELETE FROM delta.`{self.root / 'marked'}` WHERE id % 100 = 7")
        keys = self.spark.range(1000).selectExpr("id AS k", "id % 10 AS color", "concat('d', id) AS label")
        keys.write.format("delta").save(str(self.root / "keys"))

    def both(self, what: str, name: str, query: Callable[[Any], Any]) -> Row:
        def run(read: Callable[[str], Any]) -> object:
            return [tuple(row) for row in query(read(name)).collect()]

        return what, lambda: run(self.ours), lambda: run(self.theirs)

    def target(self) -> Path:
        self._written += 1
        return self.root / f"written-{self._written}"

    def written(self, what: str, rows: Any, partition_by: list[str]) -> Row:
        from delta_orch import DeltaTable

        def ours() -> object:
            path = self.target()
            DeltaTable(path).append(rows, partition_by=partition_by)
            shutil.rmtree(path)
            return None

        def theirs() -> object:
            path = self.target()
            rows.write.format("delta").partitionBy(*partition_by).save(str(path))
            shutil.rmtree(path)
            return None

        return what, ours, theirs

    def changed(self, what: str, name: str, change: Callable[[Any], Any], statement: str) -> Row:
        """A statement on a copy of a table. Both sides say how many rows it changed."""
        from delta_orch import DeltaTable

        def on_copy(run: Callable[[Path], object]) -> object:
            path = self.target()
            shutil.copytree(self.root / name, path, copy_function=os.link)
            told = run(path)
            shutil.rmtree(path)
            return told

        def ours(path: Path) -> object:
            metrics = change(DeltaTable(path)).metrics
            return sum(int(metrics.get(f"num{how}", 0)) for how in _CHANGED_ROWS)

        def theirs(path: Path) -> object:
            return self.spark.sql(statement.format(table=f"delta.`{path}`")).collect()[0][0]

        return what, lambda: on_copy(ours), lambda: on_copy(theirs)


_CHANGED_ROWS = ("DeletedRows", "UpdatedRows", "TargetRowsInserted", "TargetRowsUpdated", "TargetRowsDeleted")


def changes(tables: Tables) -> Iterator[Row]:
    """DELETE, UPDATE and MERGE on our Spark engine, with deletion vectors and rewriting."""
    from delta_orch.engines.spark.engine import SparkEngine

    engine, num_rows = SparkEngine(tables.spark), tables.num_rows
    scattered, some = "id % 100 = 3", f"id BETWEEN 1000 AND {1000 + num_rows // 200}"
    # A tenth of the rows are new in the first source, none in the second one.
    steps = {"scattered": 110, "in two files": 22}
    for how, name in (("vectors", "plain"), ("rewriting", "rewritten")):

        def delete(table: Any) -> Any:
            return table.delete(scattered, engine=engine)

        def update(table: Any) -> Any:
            return table.update({"value": "value + 1"}, some, engine=engine)

        yield tables.changed(f"DELETE 1 %, {how}", name, delete, f"DELETE FROM {{table}} WHERE {scattered}")
        statement = f"UPDATE {{table}} SET value = value + 1 WHERE {some}"
        yield tables.changed(f"UPDATE a range, {how}", name, update, statement)
        for spread, step in steps.items():
            yield _merge(tables, f"MERGE {spread}, {how}", name, engine, range(0, num_rows // 100 * step, step))


def _merge(tables: Tables, what: str, name: str, engine: Any, keys: range) -> Row:
    new = ("id % 1000 AS k", "-1.0D AS value", "'new' AS name", "id % 100 AS p")
    source = tables.spark.range(keys.start, keys.stop, keys.step).selectExpr("id", *new)
    view = f"source_{keys.step}"
    source.createOrReplaceTempView(view)
    statement = (
        f"MERGE INTO {{table}} AS t USING {view} AS s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    return tables.changed(what, name, lambda table: table.upsert(source, ["id"], engine=engine), statement)


def rows_of(tables: Tables) -> Iterator[Row]:
    def total(rows: Any) -> Any:
        return rows.selectExpr("count(1)", "sum(id)", "sum(k)", "max(value)", "min(name)")

    yield tables.both("scan and aggregate", "plain", total)
    yield tables.both("scan and aggregate over vectors", "marked", total)
    yield tables.both("filter on id: 1 of 8 files", "plain", lambda t: total(t.where(f"id < {tables.num_rows // 20}")))
    yield tables.both("count(*)", "plain", lambda t: t.selectExpr("count(1)"))
    yield tables.both("count(*) over vectors", "marked", lambda t: t.selectExpr("count(1)"))
    yield tables.both("min, max of id", "plain", lambda t: t.selectExpr("min(id)", "max(id)"))
    yield tables.both("min, max of id over vectors", "marked", lambda t: t.selectExpr("min(id)", "max(id)"))
    yield _star_join(tables)
    source = tables.theirs("plain")
    yield tables.written("write", source, [])
    yield tables.written("write into 100 partitions", source, ["p"])
    small = tables.spark.range(100)
    yield tables.written("write of 100 rows", small, [])


def _star_join(tables: Tables) -> Row:
    def run(read: Callable[[str], Any]) -> object:
        joined = read("plain").join(read("keys").where("color = 3"), "k").groupBy("label").sum("value")
        return sorted(tuple(row) for row in joined.collect())

    return "star join", lambda: run(tables.ours), lambda: run(tables.theirs)


def stream(tables: Tables) -> Row:
    """40 files, four a batch, from a table into a table."""
    from delta_orch.spark_source.source import DeltaOrchSource

    tables.spark.dataSource.register(DeltaOrchSource)
    source = tables.root / "source"
    few = tables.spark.range(0, 400_000, 1, 40)
    few.write.format("delta").save(str(source))

    def run(kind: str) -> object:
        path, checkpoint = tables.target(), tables.target()
        rows = tables.spark.readStream.format(kind).option("maxFilesPerTrigger", 4).load(str(source))
        writer = rows.writeStream.format(kind).option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start(str(path)).awaitTermination()
        found = tables.spark.read.format("delta").load(str(path)).count()
        for each in (path, checkpoint):
            shutil.rmtree(each)
        return found

    return "stream of ten batches", lambda: run("delta_orch"), lambda: run("delta")


def planning(tables: Tables, num_files: int) -> Iterator[Row]:
    """Plans of a log without data files: which of them a filter leaves."""
    from benchmarks.synthetic_log import write_large_checkpoint
    from delta_orch import DeltaTable

    large = tables.root / "large"
    (large / "_delta_log").mkdir(parents=True)
    write_large_checkpoint(large, num_files, 100_000, 10)
    table = DeltaTable(large)
    forget = tables.spark._jvm.org.apache.spark.sql.delta.DeltaLog

    def num_planned(rows: Any) -> object:
        planned = rows.where("date = DATE'2020-03-01' AND id < 50000000")._jdf.queryExecution().toRdd()
        return int(planned.getNumPartitions())

    def cold_ours() -> object:
        return num_planned(DeltaTable(large).snapshot().scan().to_spark(tables.spark))

    def cold_theirs() -> object:
        forget.clearCache()
        return num_planned(tables.theirs("large"))

    yield f"plan of {num_files:,} files, cold", cold_ours, cold_theirs
    warm = table.snapshot().scan().to_spark(tables.spark)
    yield f"plan of {num_files:,} files, warm", lambda: num_planned(warm), lambda: num_planned(tables.theirs("large"))


def measure(row: Row) -> tuple[str, plots.Figures]:
    what, *sides = row
    answers = [side() for side in sides]
    assert answers[0] == answers[1], (what, answers)
    times: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for number, side in enumerate(sides):
            began = time.perf_counter()
            side()
            times[number].append(time.perf_counter() - began)
    ours, theirs = map(median, times)
    quotient = median(a / b for a, b in zip(*times, strict=True))
    sys.stdout.write(f"| {what} | {ours:.3f} | {theirs:.3f} | {quotient:.2f} |\n")
    sys.stdout.flush()
    return plots.BESIDE_SPARK + what, {"delta_orch": {"seconds": ours}, "Delta on Spark": {"seconds": theirs}}


def main() -> None:
    num_rows = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
    num_files = int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
    named = sys.argv[3] if len(sys.argv) > 3 else ""
    with tempfile.TemporaryDirectory() as directory:
        share_packages(Path(directory) / "packages")
        spark = session()
        tables = Tables(spark, Path(directory), num_rows)
        tables.make()
        sys.stdout.write(
            f"Spark {spark.version}\n| | delta_orch, s | Delta on Spark, s | × |\n| --- | --- | --- | --- |\n"
        )
        rows = (*rows_of(tables), *changes(tables), stream(tables), *planning(tables, num_files))
        plots.record(dict(measure(row) for row in rows if named in row[0]))
        spark.stop()


if __name__ == "__main__":
    main()
