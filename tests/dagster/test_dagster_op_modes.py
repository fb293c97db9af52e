"""What an op hands to the next one, whatever its mode and whoever sets it."""

# No postponed annotations in this file: Dagster reads them as they are.

from itertools import product
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from delta_orch.dagster import DeltaLakeIOManager, DeltaSnapshot
from delta_orch.errors import InvalidRequestError
from tests.dagster.dagster_jobs import appended_job, elsewhere_job, kept_job, mapped_job, split_job, stored_job

MODES = ["overwrite", "append", "merge", "cdc", "error", "ignore"]
SETTERS = ["manager", "output", "run"]
OF_MODE: dict[str, dict[str, Any]] = {
    "merge": {"merge_keys": ["n"]},
    "cdc": {"merge_keys": ["n"], "sequence_by": "at"},
}


def _numbers(value: Any) -> list[int]:
    if isinstance(value, DeltaSnapshot):
        value = value.scan().to_arrow()
    if isinstance(value, pl.LazyFrame):
        value = value.collect()
    if isinstance(value, pa.RecordBatchReader):
        value = value.read_all()
    return sorted(value["n"].to_pylist() if isinstance(value, pa.Table) else list(value["n"]))


class Chain:
    """A job of two ops, of which the second notes what it gets. Each run has other rows, and one that all have."""

    def __init__(self, root: Path, mode: str, setter: str, kind: Any = pa.Table, **config: Any) -> None:
        self.got: list[list[int]] = []
        self.given: list[list[int]] = []
        self.instance = dg.DagsterInstance.ephemeral()
        settings: dict[str, Any] = {"write": mode, **OF_MODE.get(mode, {})}
        of_run: dict[str, Any] = {
            name: settings.pop(name) for name in ("write", "merge_keys") if setter == "run" and name in settings
        }
        if setter == "manager":
            config = {**config, "write": settings.pop("write"), "merge_keys": settings.pop("merge_keys", [])}
        manager = DeltaLakeIOManager(root_uri=str(root), **config)

        @dg.op(out=dg.Out(pa.Table, metadata=settings))
        def numbers():  # type: ignore[no-untyped-def]
            rows = [0, len(self.given) + 1]
            self.given.append(rows)
            yield dg.Output(pa.table({"n": rows, "at": [len(self.given)] * 2}), metadata=of_run)

        @dg.op(ins={"numbers": dg.In(kind)}, out=dg.Out(dg.Nothing))
        def look(numbers):  # type: ignore[no-untyped-def]
            self.got.append(_numbers(numbers))

        @dg.job(resource_defs={"io_manager": manager})
        def chain() -> None:
            look(numbers())

        self.job = chain

    def run(self, **options: Any) -> Any:
        return self.job.execute_in_process(instance=self.instance, **options)

    def error(self) -> BaseException | None:
        """What the run ends with, None where it succeeds."""
        try:
            self.run()
        except Exception as e:  # noqa: BLE001  # whatever it ends with is looked at
            error: BaseException | None = e
            while error is not None and not type(error).__module__.startswith("delta_orch"):
                error = error.__cause__
            assert error is not None, e
            return error
        return None


# `sequence_by` belongs to the definition, so that an output alone cannot ask for cdc.
@pytest.mark.long
@pytest.mark.parametrize(("mode", "setter"), [pair for pair in product(MODES, SETTERS) if pair != ("cdc", "run")])
def test_an_op_gets_the_rows_that_were_returned_or_is_refused(tmp_path: Path, mode: str, setter: str) -> None:
    chain = Chain(tmp_path, mode, setter)
    for _ in range(3):
        before = len(chain.got)
        error = chain.error()
        if mode in ("merge", "cdc"):
            assert isinstance(error, InvalidRequestError)
            assert "DeltaSnapshot" in str(error)
        if error is None and mode != "ignore":
            assert chain.got[before:] == chain.given[-1:]
        if mode in ("overwrite", "append"):
            assert error is None
    if mode == "ignore":
        # What it found is what it leaves. A mode of a run that did not write is not known later.
        assert chain.got == chain.given[:1] * (1 if setter == "run" else 3)


@pytest.mark.long
@pytest.mark.parametrize("kind", [pa.Table, pa.RecordBatchReader, pd.DataFrame, pl.DataFrame, pl.LazyFrame])
@pytest.mark.parametrize("properties", [{}, {"delta.enableChangeDataFeed": "true"}, {"delta.checkpointInterval": "1"}])
def test_an_op_that_appends_hands_over_its_rows_alone(tmp_path: Path, kind: Any, properties: dict[str, str]) -> None:
    chain = Chain(tmp_path, "append", "output", kind, properties=properties)
    for _ in range(3):
        chain.run()
    assert chain.got == chain.given == [[0, 1], [0, 2], [0, 3]]


@pytest.mark.long
@pytest.mark.parametrize("mode", ["append", "merge", "overwrite"])
def test_a_snapshot_is_the_whole_table_as_the_op_left_it(tmp_path: Path, mode: str) -> None:
    chain = Chain(tmp_path, mode, "output", DeltaSnapshot)
    for _ in range(2):
        chain.run()
    assert chain.got == [[0, 1], {"append": [0, 0, 1, 2], "merge": [0, 1, 2], "overwrite": [0, 2]}[mode]]


@pytest.mark.long
@pytest.mark.parametrize("on_redo", ["replace", "keep", "add"])
def test_what_was_appended_is_found_again_from_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_redo: str
) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DELTA_TEST_ROOT", str(tmp_path / "lake"))
    monkeypatch.setenv("DELTA_TEST_ON_REDO", on_redo)
    seen = tmp_path / "seen"
    monkeypatch.setenv("DELTA_TEST_SEEN", str(seen))

    def run(fault: str = "", **options: Any) -> Any:
        monkeypatch.setenv("DELTA_TEST_FAULT", fault)
        return dg.execute_job(dg.reconstructable(appended_job), instance, **options)

    with dg.DagsterInstance.get() as instance:
        first, failed = run(), run("look")
        between = run()
        again = run(reexecution_options=dg.ReexecutionOptions.from_failure(failed.run_id, instance))
        assert [result.success for result in (first, failed, between, again)] == [True, False, True, True]
        assert seen.read_text().split() == [first.run_id, between.run_id, failed.run_id]


@pytest.mark.long
@pytest.mark.parametrize(
    ("job", "fault", "refused", "seen"),
    [
        (mapped_job, "split collected", "of handed_on[a] twice", "abc"),
        (split_job, "split collected", "of split twice", "abc"),
        # Dagster does not come back to what was never started, and where a step was skipped not to those that were.
        (mapped_job, "handed_on", "without handed_on[b]", "abc"),
        (mapped_job, "chosen handed_on", "without handed_on[b]", "abc"),
        (kept_job, "kept", "without kept[b]", "abc"),
        # Where no value of ours is left, a resource of a step sees it.
        (elsewhere_job, "kept", "without kept[b]", "abc"),
        (stored_job, "kept", "without stored[b]", "abc"),
        # What was not yielded by choice is not missed.
        (mapped_job, "chosen collected", "", "bc"),
        # A run that is killed behind the choice has not skipped the step after it.
        (mapped_job, "chosen collected unsaid", "", "bc"),
    ],
)
def test_each_output_is_collected_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: dg.JobDefinition, fault: str, refused: str, seen: str
) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DELTA_TEST_ROOT", str(tmp_path / "lake"))
    monkeypatch.setenv("DELTA_TEST_ON_REDO", "replace")
    monkeypatch.setenv("DELTA_TEST_SEEN", str(tmp_path / "seen"))
    handle = dg.DagsterInstance.handle_new_event

    def handle_but_for_skipping(instance: dg.DagsterInstance, event: dg.EventLogEntry, **options: Any) -> None:
        if "STEP_SKIPPED" not in str(event.dagster_event):
            handle(instance, event, **options)

    with dg.DagsterInstance.get() as instance:
        monkeypatch.setenv("DELTA_TEST_FAULT", fault)
        with monkeypatch.context() as killed:
            if "unsaid" in fault:
                killed.setattr(dg.DagsterInstance, "handle_new_event", handle_but_for_skipping)
            failed = dg.execute_job(dg.reconstructable(job), instance)
        assert not failed.success
        monkeypatch.setenv("DELTA_TEST_FAULT", "")
        from_failure = dg.ReexecutionOptions.from_failure(failed.run_id, instance)
        again = dg.execute_job(dg.reconstructable(job), instance, reexecution_options=from_failure)
        assert again.success == (not refused)
        if refused:
            assert refused in str(again.all_events)
            everything = dg.ReexecutionOptions(failed.run_id)
            assert dg.execute_job(dg.reconstructable(job), instance, reexecution_options=everything).success
    assert sorted((tmp_path / "seen").read_text().split()) == list(seen)


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_an_empty_output_is_empty_for_the_next_op(tmp_path: Path, mode: str) -> None:
    got: list[int] = []
    rows = [2, 0, 3, 0]

    @dg.op(out=dg.Out(pa.Table, metadata={"write": mode}))
    def numbers():  # type: ignore[no-untyped-def]
        return pa.table({"n": pa.array(range(rows[len(got)]), pa.int64())})

    @dg.op
    def look(numbers: pa.Table) -> None:
        got.append(numbers.num_rows)

    @dg.job(resource_defs={"io_manager": DeltaLakeIOManager(root_uri=str(tmp_path))})
    def chain() -> None:
        look(numbers())

    with dg.DagsterInstance.ephemeral() as instance:
        for _ in rows:
            chain.execute_in_process(instance=instance)
    assert got == rows
