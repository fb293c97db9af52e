"""The remedy of each refusal, carried out as its message says it. Attempts are those of `unit_model.Airflow`, without
Airflow's database: an operator is executed with the context that a worker would hand it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from delta_orch.airflow import (
    DeltaCloneOperator,
    DeltaIncrementalOperator,
    DeltaMergeOperator,
    DeltaPublishOperator,
    DeltaRestoreOperator,
    DeltaUndoOperator,
    DeltaUpdateOperator,
    DeltaWriteOperator,
)
from delta_orch.errors import InvalidRequestError
from tests.airflow.instance import DAYS, Instance


@pytest.fixture
def clock() -> list[int]:
    return [0]


def rows(*values: str) -> pa.Table:
    return pa.table({"v": pa.array(values, pa.string())})


def content(uri: Path, column: str = "v") -> list[Any]:
    return sorted(DeltaTable(uri).snapshot().scan().to_arrow()[column].to_pylist())


def copied(tmp_path: Path, **more: Any) -> Callable[[], Any]:
    """An incremental task that adds what was inserted."""
    arguments: dict[str, Any] = {"write": "append", **more}
    return lambda: DeltaIncrementalOperator(
        task_id="copy", source=tmp_path / "s", target=tmp_path / "t",
        python_callable=lambda batch: batch.inserted().to_arrow().select(["v"]), **arguments,
    )  # fmt: skip


@pytest.mark.parametrize("by", ["argument", "template", "params"])
def test_a_source_that_was_created_anew(tmp_path: Path, clock: list[int], by: str) -> None:
    DeltaTable(tmp_path / "s").append(rows("a"))
    Instance(clock).run(copied(tmp_path))
    table_id = DeltaTable(tmp_path / "t").snapshot().metadata.id
    shutil.rmtree(tmp_path / "s")
    DeltaTable(tmp_path / "s").append(rows("b"))
    second = Instance(clock, DAYS[1])
    assert "full_refresh=True" in second.refused(copied(tmp_path), is_clear=False)
    arguments: dict[str, dict[str, Any]] = {"argument": {"full_refresh": True}, "template": {"full_refresh": "True"}}
    given = arguments.get(by, {})
    report = second.clear(copied(tmp_path, **given), **({"full_refresh": True} if by == "params" else {}))
    assert (report["outcome"], content(tmp_path / "t")) == ("replaced", ["b"])
    assert DeltaTable(tmp_path / "t").snapshot().metadata.id == table_id
    DeltaTable(tmp_path / "s").append(rows("c"))
    Instance(clock, DAYS[2]).run(copied(tmp_path))
    assert content(tmp_path / "t") == ["b", "c"]


def test_an_appending_step_behind_a_source_that_was_corrected(tmp_path: Path, clock: list[int]) -> None:
    source = DeltaTable(tmp_path / "s")
    source.append(rows("a", "b"))
    Instance(clock).run(copied(tmp_path))
    source.update({"v": "'c'"}, "v = 'a'")
    second = Instance(clock, DAYS[1])
    assert "full_refresh=True" in second.refused(copied(tmp_path), is_clear=False)
    second.clear(copied(tmp_path, full_refresh=True))
    assert content(tmp_path / "t") == ["b", "c"]
    source.append(rows("d"))
    Instance(clock, DAYS[2]).run(copied(tmp_path))
    assert content(tmp_path / "t") == ["b", "c", "d"]


def test_an_incremental_append_that_is_cleared_reads_its_versions_again(tmp_path: Path, clock: list[int]) -> None:
    """The code was fixed: rows of its run are computed anew, those of later runs stay."""
    source, factor = DeltaTable(tmp_path / "s"), ["x"]

    def make() -> Any:
        def shout(batch: Any) -> pa.Table:
            return rows(*[v + factor[0] for v in batch.inserted().to_arrow()["v"].to_pylist()])

        return DeltaIncrementalOperator(
            task_id="copy", source=tmp_path / "s", target=tmp_path / "t", write="append", python_callable=shout
        )

    runs = []
    for day, value in enumerate("abc"):
        source.append(rows(value))
        runs.append(Instance(clock, DAYS[day]))
        runs[-1].run(make)
    factor[0] = "y"
    assert runs[1].clear(make)["outcome"] == "replaced"
    assert content(tmp_path / "t") == ["ax", "by", "cx"]
    runs[2].clear(make)
    assert content(tmp_path / "t") == ["ax", "by", "cy"]


def test_the_default_of_an_incremental_task_empties_what_is_empty(tmp_path: Path, clock: list[int]) -> None:
    source = DeltaTable(tmp_path / "s")
    source.append(pa.table({"v": ["a", "b"], "n": [1, 2]}), partition_by=["v"])

    def make(**more: Any) -> Callable[[], Any]:
        return lambda: DeltaIncrementalOperator(
            task_id="copy", source=tmp_path / "s", target=tmp_path / "t",
            python_callable=lambda batch: batch.scan().to_arrow(), **more,
        )  # fmt: skip

    message = Instance(clock).refused(make(), is_clear=False)
    assert "does not say how it writes" in message and "partition_by=['v']" in message
    Instance(clock).run(make(partition_by=["v"]))
    source.delete("v = 'a'")
    Instance(clock, DAYS[1]).run(make(partition_by=["v"]))
    assert content(tmp_path / "t") == ["b"]


def test_rows_that_a_compaction_has_moved(tmp_path: Path, clock: list[int]) -> None:
    """A redo is refused; each of the ways out works."""
    for way in ("add", "keep", "unit_column"):
        uri = tmp_path / way
        more: dict[str, Any] = {"unit_column": "load_id"} if way == "unit_column" else {}

        def make(value: str, uri: Path = uri, **arguments: Any) -> Callable[[], Any]:
            return lambda: DeltaWriteOperator(
                task_id="load", table_uri=uri, python_callable=lambda: rows(value), **arguments
            )

        first, second = Instance(clock), Instance(clock, DAYS[1])
        first.run(make("a", **more))
        second.run(make("b", **more))
        DeltaTable(uri).optimize()
        if way == "unit_column":
            first.clear(make("A", **more))
        else:
            assert "OPTIMIZE in version 2" in first.refused(make("A"))
            if way == "add":
                DeltaTable(uri).delete("v = 'a'")
            first.clear(make("A", on_redo=way))
        assert content(uri) == (["a", "b"] if way == "keep" else ["A", "b"])


def test_an_update_is_not_applied_twice(tmp_path: Path, clock: list[int]) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"n": [1]}))

    def make(step: int = 1, **more: Any) -> Callable[[], Any]:
        return lambda: DeltaUpdateOperator(task_id="u", table_uri=tmp_path / "t", set={"n": f"n + {step}"}, **more)

    one = Instance(clock)
    assert one.run(make())["outcome"] == "written"
    assert one.retry(make())["outcome"] == "recovered"
    assert "Restore the version before it" in one.refused(make(10))
    assert one.clear(make(10, on_redo="keep"))["outcome"] == "recovered"
    table.restore(version=0)
    assert one.clear(make(10))["outcome"] == "written"
    assert content(tmp_path / "t", "n") == [11]
    one.clear(make(exactly_once=False))
    assert content(tmp_path / "t", "n") == [12]


def test_merges_by_clauses_are_not_applied_twice(tmp_path: Path, clock: list[int]) -> None:
    table = DeltaTable(tmp_path / "t")
    table.append(pa.table({"k": [1], "n": [1]}))

    def make() -> Any:
        return DeltaMergeOperator(
            task_id="m", table_uri=tmp_path / "t", python_callable=lambda: pa.table({"k": [1], "n": [5]}),
            on="target.k = source.k", clauses=[{"when_matched_update": {"set": {"n": "target.n + source.n"}}}],
        )  # fmt: skip

    one = Instance(clock)
    assert one.run(make)["outcome"] == "written"
    assert one.retry(make)["outcome"] == "recovered"
    one.refused(make)
    table.restore(version=0)
    one.clear(make)
    assert content(tmp_path / "t", "n") == [6]


def test_a_unit_is_undone_by_name_and_by_run(tmp_path: Path, clock: list[int]) -> None:
    uri = tmp_path / "t"

    def load(day: int) -> Any:
        return DeltaWriteOperator(task_id="load", table_uri=uri, python_callable=lambda: rows(str(day)))

    for day in (0, 1):
        Instance(clock, DAYS[day]).run(partial(load, day))
    unit = "airflow:d.load:2024-01-01T00:00:00+00:00"

    def undo(**what: Any) -> Any:
        return Instance(clock).run(lambda: DeltaUndoOperator(task_id="undo", table_uri=uri, **what))

    seen = undo(unit=unit, dry_run=True)
    assert (seen["outcome"], seen["rows_removed"], seen["units"], content(uri)) == (
        "nothing new",
        1,
        [unit],
        ["0", "1"],
    )
    assert undo(unit=unit)["outcome"] == "replaced" and content(uri) == ["1"]
    undo(run="scheduled__2024-01-02")
    assert content(uri) == []
    with pytest.raises(InvalidRequestError, match="unit or run"):
        DeltaUndoOperator(task_id="undo", table_uri="/t", unit="a", run="b")


def test_a_new_column(tmp_path: Path, clock: list[int]) -> None:
    DeltaTable(tmp_path / "t").append(rows("a"))

    def make(**more: Any) -> Callable[[], Any]:
        return lambda: DeltaWriteOperator(
            task_id="load", table_uri=tmp_path / "t", **more,
            python_callable=lambda: pa.table({"v": ["b"], "w": [1]}),
        )  # fmt: skip

    one = Instance(clock)
    assert 'schema_mode="merge"' in one.refused(make(), is_clear=False).replace("'", '"')
    one.clear(make(schema_mode="merge"))
    assert content(tmp_path / "t") == ["a", "b"]


def test_an_empty_first_frame(tmp_path: Path, clock: list[int]) -> None:
    def make(frame: pd.DataFrame) -> Callable[[], Any]:
        return lambda: DeltaWriteOperator(task_id="load", table_uri=tmp_path / "t", python_callable=lambda: frame)

    one = Instance(clock)
    empty = pd.DataFrame({"v": []}, dtype=object)
    message = one.refused(make(empty), is_clear=False)
    assert "astype({'v': 'string'})" in message or "'string'" in message
    assert one.clear(make(empty.astype({"v": "string"})))["outcome"] == "written"
    one.clear(make(pd.DataFrame({"v": ["a"]})))
    assert content(tmp_path / "t") == ["a"]


def test_a_mapped_append_with_identity(tmp_path: Path, clock: list[int]) -> None:
    """An identity keeps its rows, whatever the index; the same one twice in a run is refused."""

    def make(value: str) -> Callable[[], Any]:
        return lambda: DeltaWriteOperator(
            task_id="load", table_uri=tmp_path / "t", identity="eu", python_callable=lambda: rows(value)
        )

    one, other = Instance(clock), Instance(clock)
    other.counts.started = one.counts.started
    one.counts.map_index, other.counts.map_index = 0, 1
    one.run(make("a"))
    assert "write the same unit" in other.refused(make("b"), is_clear=False)
    # The list has changed, and the run was cleared: the name is another index's.
    other.counts.clear(resets_run=True)
    assert other.run(make("b"))["outcome"] == "replaced"
    assert content(tmp_path / "t") == ["b"]


def test_restores_and_clones_are_done_again(tmp_path: Path, clock: list[int]) -> None:
    table = DeltaTable(tmp_path / "t")
    for value in "ab":
        table.append(rows(value))

    def restore() -> Any:
        return DeltaRestoreOperator(task_id="restore", table_uri=tmp_path / "t", version=0)

    def clone() -> Any:
        return DeltaCloneOperator(task_id="clone", source=tmp_path / "t", target=tmp_path / "c", replace=True)

    one, other = Instance(clock), Instance(clock)
    for make, instance in ((restore, one), (clone, other)):
        assert instance.run(make)["outcome"] == "written"
        assert instance.retry(make)["outcome"] == "recovered"
    assert (content(tmp_path / "t"), content(tmp_path / "c"), table.version()) == (["a"], ["a"], 2)
    table.append(rows("c"))
    assert one.clear(restore)["outcome"] == "replaced"
    table.append(rows("d"))
    assert other.clear(clone)["outcome"] == "replaced"
    assert (content(tmp_path / "t"), content(tmp_path / "c")) == (["a", "d"], ["a", "d"])
    assert one.retry(restore)["outcome"] == "recovered"


def test_what_is_staged_and_published_is_a_unit(tmp_path: Path, clock: list[int]) -> None:
    uri = tmp_path / "t"

    def stage(*values: str) -> Callable[[], Any]:
        return lambda: DeltaWriteOperator(
            task_id="stage", table_uri=uri, python_callable=lambda: rows(*values), stage=True
        )

    def publish(staged: Any) -> Any:
        # As the template of it renders.
        reference = {"staged": None, **staged}
        return Instance(clock).run(lambda: DeltaPublishOperator(task_id="publish", table_uri=uri, staged=reference))

    one = Instance(clock)
    first = one.run(stage("a"))
    assert (first["version"], publish(first)["outcome"], publish(first)["outcome"]) == (None, "written", "recovered")
    second = one.clear(stage("b", "c"))
    assert (second["outcome"], content(uri)) == ("replaced", ["a"])
    assert publish(second)["outcome"] == "replaced" and content(uri) == ["b", "c"]
    # A retry of the stage finds what was published.
    third = one.retry(stage("x"))
    assert (third["outcome"], publish(third)["outcome"], content(uri)) == ("recovered", "recovered", ["b", "c"])


def test_a_run_of_several_units_in_one_file_is_undone(tmp_path: Path, clock: list[int]) -> None:
    """Mapped instances share a run, and a compaction has brought their rows together."""
    uri = tmp_path / "t"

    def load(region: str) -> Any:
        return DeltaWriteOperator(
            task_id="load", table_uri=uri, identity=region, unit_column="load_id", python_callable=lambda: rows(region)
        )

    for region in ("eu", "us"):
        Instance(clock).run(partial(load, region))
    Instance(clock, DAYS[1]).run(partial(load, "eu"))
    DeltaTable(uri).optimize()
    report = Instance(clock).run(lambda: DeltaUndoOperator(task_id="undo", table_uri=uri, run="scheduled__2024-01-01"))
    assert (report["rows_removed"], len(report["units"]), content(uri)) == (2, 2, ["eu"])
