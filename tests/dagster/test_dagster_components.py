"""Components: what is scaffolded loads, and runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
import yaml  # type: ignore[import-untyped]
from dagster.components.testing import create_defs_folder_sandbox

from delta_orch.dagster import (
    DeltaIncrementalComponent,
    DeltaIngestComponent,
    DeltaMaintenanceComponent,
    DeltaTablesComponent,
)
from delta_orch.delta_table import DeltaTable
from tests.arrival.landing import Landing, ids_of

# How Dagster itself reads YAML and makes references to it is beta, and deprecated by pydantic.
pytestmark = pytest.mark.filterwarnings("ignore")
COMPONENTS: list[Any] = [
    DeltaTablesComponent,
    DeltaIncrementalComponent,
    DeltaIngestComponent,
    DeltaMaintenanceComponent,
]
ROWS = pa.table({"day": ["a", "b"], "id": pa.array([1, 2], pa.int64())})


def keys(defs: dg.Definitions) -> set[str]:
    return {key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()}


def component_attributes(folder: Path) -> dict[str, Any]:
    """What was scaffolded."""
    attributes: dict[str, Any] = yaml.safe_load((folder / "defs.yaml").read_text())["attributes"]
    return attributes


def refusal(sandbox: Any) -> str:
    """What all errors say with which the definitions do not load."""
    with pytest.raises(Exception) as caught, sandbox.build_all_defs():
        pass
    error: BaseException | None = caught.value
    said = []
    while error is not None:
        said.append(str(error))
        error = error.__cause__ or error.__context__
    return " ".join(said)


@pytest.mark.parametrize("component", COMPONENTS)
def test_what_is_scaffolded_loads(component: Any) -> None:
    expected = {
        DeltaTablesComponent: {"lake/events"},
        DeltaIncrementalComponent: {"lake/daily"},
        DeltaIngestComponent: {"lake/orders"},
        DeltaMaintenanceComponent: {"maintenance/events"},
    }[component]
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.scaffold_component(component_cls=component)
        assert (folder / "transform.py").exists() == (component is DeltaIncrementalComponent)
        with sandbox.build_all_defs() as defs:
            assert keys(defs) == expected
            # What an editor completes: every key has words.
        properties = component.get_model_cls().model_json_schema()["properties"]
        assert all(about.get("description") for about in properties.values()), properties


@pytest.mark.parametrize("component", COMPONENTS[:1])
def test_a_misspelled_key_is_an_error(component: Any) -> None:
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.scaffold_component(component_cls=component)
        with (folder / "defs.yaml").open("a") as file:
            file.write("  tabels: []\n")
        assert "tabels" in refusal(sandbox)


def test_components_do_what_their_builders_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = DeltaTable(tmp_path / "events"), DeltaTable(tmp_path / "daily")
    source.append(ROWS, partition_by=["day"])
    monkeypatch.setenv("SOME_SECRET", "hidden-value")
    store = {"secrets": {"some_option": "SOME_SECRET"}}
    attributes: dict[Any, dict[str, Any]] = {
        DeltaTablesComponent: {
            "tables": [
                {
                    "key": "lake/events",
                    "table_uri": source.uri,
                    "columns": {"day": "string", "id": "long"},
                    "unique": ["id"],
                },
                {"key": "lake/daily", "table_uri": target.uri, "observed": False, "min_rows": 1, "max_age_hours": 1.0},
            ]
        },
        DeltaIncrementalComponent: {
            "key": "lake/daily",
            "source_uri": source.uri,
            "table_uri": target.uri,
            "function": "transform.py:rows",
            "partition_by": ["day"],
            "audit": {"positive": "id > 0", "keys": {"unique": ["id"]}},
            "deps": ["lake/events"],
            "consumer": "own",
        },
        DeltaMaintenanceComponent: {"tables": {"daily": target.uri}, "min_compactable_files": 2},
    }
    with create_defs_folder_sandbox() as sandbox:
        for component, given in attributes.items():
            folder = sandbox.scaffold_component(component_cls=component)
            about = {"type": f"delta_orch.dagster.{component.__name__}", "attributes": {**given, **store}}
            (folder / "defs.yaml").write_text(json.dumps(about))
        with sandbox.build_all_defs() as defs:
            instance = dg.DagsterInstance.ephemeral()
            daily = defs.resolve_implicit_global_asset_job_def()
            result = daily.execute_in_process(instance=instance, raise_on_error=False)
            assert result.success
            assert [name.partition("<-")[0] for name in target.txns() if name.startswith("cdc:")] == ["cdc:own"]
            assert sorted(target.snapshot().scan().to_arrow().to_pylist(), key=str) == ROWS.to_pylist()
            checks = {check.check_name: check.passed for check in result.get_asset_check_evaluations()}
            own = ("columns", "unique", "row_count", "freshness", "positive", "keys")
            assert checks == dict.fromkeys(own, True)
            assert "hidden-value" not in "".join(str(entry) for entry in instance.all_logs(result.run_id))


def test_files_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    landing, table = Landing(tmp_path / "landing"), DeltaTable(tmp_path / "orders")
    landing.put("a.json", 1, -2)
    monkeypatch.setenv("SOME_SECRET", "hidden-value")
    given: dict[str, Any] = {
        "key": "lake/orders",
        "files": {
            "uri": str(landing.root),
            "format": "json",
            "pattern": "*.json",
            "source_file": True,
            "secrets": {"some_option": "SOME_SECRET"},
        },
        "table_uri": table.uri,
        "expect": {"id is positive": {"rule": "id > 0"}},
    }
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.scaffold_component(component_cls=DeltaIngestComponent)
        about = {"type": "delta_orch.dagster.DeltaIngestComponent", "attributes": given}
        (folder / "defs.yaml").write_text(json.dumps(about))
        with sandbox.build_all_defs() as defs:
            instance = dg.DagsterInstance.ephemeral()
            sensor = defs.resolve_sensor_def("lake__orders__files")
            assert isinstance(sensor(dg.build_sensor_context(instance=instance)), dg.RunRequest)
            job = defs.resolve_implicit_global_asset_job_def()
            result = job.execute_in_process(instance=instance)
            assert (ids_of(table), table.quarantine().snapshot().scan().to_arrow().num_rows) == ([1], 1)
            assert isinstance(sensor(dg.build_sensor_context(instance=instance)), dg.SkipReason)
            assert "hidden-value" not in "".join(str(entry) for entry in instance.all_logs(result.run_id))
        function = "def rows(batch):\n    return batch.to_arrow().select(['id'])\n"
        (folder / "own.py").write_text(function)
        given |= {"function": "own.py:rows", "write": "merge", "merge_keys": ["id"], "cron": "@daily"}
        given["table_uri"] = str(tmp_path / "merged")
        (folder / "defs.yaml").write_text(json.dumps({**about, "attributes": given}))
        with sandbox.build_all_defs() as defs:
            assert not list(defs.sensors or ())
            landing.put("b.json", 3)
            assert defs.resolve_implicit_global_asset_job_def().execute_in_process().success
    merged = DeltaTable(tmp_path / "merged")
    assert (ids_of(merged), merged.snapshot().schema.names) == ([1, 3], ("id",))


def test_an_incremental_asset_runs_before_all_partitions_are_there() -> None:
    @dg.asset(key=["lake", "events"], partitions_def=dg.StaticPartitionsDefinition(["a", "b"]))
    def events() -> None: ...

    instance = dg.DagsterInstance.ephemeral()
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.scaffold_component(component_cls=DeltaIncrementalComponent)
        given = {**component_attributes(folder), "deps": ["lake/events"]}
        about = {"type": "delta_orch.dagster.DeltaIncrementalComponent", "attributes": given}
        (folder / "defs.yaml").write_text(json.dumps(about))
        with sandbox.build_all_defs() as loaded:
            defs = dg.Definitions.merge(loaded, dg.Definitions([events]))
            before = dg.evaluate_automation_conditions(defs, instance)
            assert dg.materialize([events], instance=instance, partition_key="a").success
            after = dg.evaluate_automation_conditions(defs, instance, cursor=before.cursor)
            assert (before.total_requested, after.total_requested) == (0, 1)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("transform.py:nothing", "cannot be loaded"),
        ("no.such.module", "cannot be loaded"),
        ("broken.py:rows", "SyntaxError"),
        ("fails.py:rows", "TypeError: 1 is not callable"),
        ("transform.py:pa", "a value of type module"),
    ],
)
def test_a_function_that_is_not_there_is_refused(function: str, said: str) -> None:
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.scaffold_component(component_cls=DeltaIncrementalComponent)
        text = (folder / "defs.yaml").read_text().replace("transform.py:rows", function)
        (folder / "defs.yaml").write_text(text)
        (folder / "broken.py").write_text("def rows(batch:\n")
        (folder / "fails.py").write_text("raise TypeError('1 is not callable')\n")
        assert said in refusal(sandbox)


@pytest.mark.parametrize(
    ("component", "given", "said"),
    [
        (DeltaIncrementalComponent, {"full_snapshot": True}, "full_snapshot"),
        (DeltaIncrementalComponent, {"delete_marker": "gone"}, "delete_marker"),
        (
            DeltaIncrementalComponent,
            {"properties": {"delta.apendOnly": "true"}},
            "Did you mean 'delta.appendOnly'",
        ),
        (DeltaIngestComponent, {"files": {"uri": "", "format": "json"}}, "table_uri is empty"),
        (DeltaIngestComponent, {"files": {"uri": "l", "format": "json", "max_files": 0}}, "must be at least 1"),
        (DeltaIngestComponent, {"files": {"uri": "l", "format": "jsonl"}}, "jsonl"),
        (DeltaIngestComponent, {"files": {"uri": "l", "format": "json", "patern": "*"}}, "patern"),
        (DeltaIngestComponent, {"write": "overwrite_changed"}, "Input should be 'append'"),
        (DeltaIngestComponent, {"write": "merge"}, "merge_keys"),
        (DeltaMaintenanceComponent, {"consumers": {"unknown": ["lake/daily"]}}, "names unknown"),
        (DeltaIncrementalComponent, {"deps": ["lake//events"]}, "has an empty part"),
        (DeltaMaintenanceComponent, {"tables": {"a//b": "lake/a"}}, "has an empty part"),
        (DeltaMaintenanceComponent, {"key_prefix": ""}, "has an empty part"),
        (DeltaMaintenanceComponent, {"tables": {"a": " "}}, "table_uri is empty"),
        (DeltaTablesComponent, {"tables": [{"key": "a", "table_uri": ""}]}, "table_uri is empty"),
        (DeltaIncrementalComponent, {"source_uri": ""}, "table_uri is empty"),
        (DeltaIncrementalComponent, {"max_versions": 0}, "max_versions=0 is below 1"),
        (DeltaTablesComponent, {"tables": [{"key": "a/", "table_uri": "lake/a"}]}, "has an empty part"),
        (DeltaTablesComponent, {"tables": [{"key": "a", "table_uri": uri} for uri in "bc"]}, "two of the key 'a'"),
        (DeltaTablesComponent, {"tables": [{"key": "a", "table_uri": "a", "max_age_hours": 1e300}]}, "is not an age"),
    ],
)
def test_what_the_builders_refuse_components_refuse(component: Any, given: dict[str, Any], said: str) -> None:
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.scaffold_component(component_cls=component)
        about = {"type": f"delta_orch.dagster.{component.__name__}"}
        attributes = {**component_attributes(folder), **given}
        (folder / "defs.yaml").write_text(json.dumps({**about, "attributes": attributes}))
        assert said in refusal(sandbox)


@pytest.mark.long
@pytest.mark.parametrize("has_consumer", [True, False])
def test_maintenance_keeps_what_consumers_have_to_read(tmp_path: Path, has_consumer: bool) -> None:
    source, reader = DeltaTable(tmp_path / "events"), DeltaTable(tmp_path / "daily")
    source.append(ROWS, properties={"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    source.overwrite(ROWS)
    # It has never read the source, so nobody knows what it needs.
    reader.append(ROWS)
    given: dict[str, Any] = {"tables": {"events": source.uri}, "min_expired_tombstones": 0}
    if has_consumer:
        given["consumers"] = {"events": [reader.uri]}
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.scaffold_component(component_cls=DeltaMaintenanceComponent)
        about = {"type": "delta_orch.dagster.DeltaMaintenanceComponent", "attributes": given}
        (folder / "defs.yaml").write_text(json.dumps(about))
        with sandbox.build_all_defs() as defs:
            upkeep = dg.AssetSelection.assets(dg.AssetKey(["maintenance", "events"]))
            jobs = dg.Definitions(jobs=[dg.define_asset_job("upkeep", selection=upkeep)])
            job = dg.Definitions.merge(defs, jobs).resolve_job_def("upkeep")
            result = job.execute_in_process(raise_on_error=False)
            assert result.success != has_consumer
    assert len(list((tmp_path / "events").glob("*.parquet"))) == (2 if has_consumer else 1)


@pytest.mark.long
@pytest.mark.parametrize("component", COMPONENTS)
def test_a_variable_that_is_not_set_is_refused(component: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster renders it as None, and a table would be in the folder of that name."""
    monkeypatch.delenv("NOPE", raising=False)
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.scaffold_component(component_cls=component)
        scaffolded = (folder / "defs.yaml").read_text()
        (place,) = re.findall(r"\{\{.*\}\}(?=/events|/landing)", scaffolded)

        def with_place(text: str) -> None:
            changed = re.sub(
                r"(['\"]?)\{\{.*\}\}/(events|daily|landing/orders|orders)\1",
                lambda m: json.dumps(f"{text}/{m[2]}"),
                scaffolded,
            )
            assert text in changed and place not in changed
            (folder / "defs.yaml").write_text(changed)

        for asked in ("{{ env.NOPE }}", "{{env['NOPE']}}"):
            with_place(asked)
            assert "The environment variable NOPE" in refusal(sandbox)
        for given in ("{{ env('NOPE', 'lake') }}", "{{ env.NOPE or 'lake' }}"):
            with_place(given)
            with sandbox.build_all_defs() as defs:
                assert keys(defs)
        monkeypatch.setenv("NOPE", "lake")
        with_place("{{ env.NOPE }}")
        with sandbox.build_all_defs() as defs:
            assert keys(defs)


@pytest.mark.parametrize("is_set", [True, False])
def test_scaffolded_places_do_not_depend_on_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, is_set: bool
) -> None:
    monkeypatch.delenv("DELTA_LAKE", raising=False)
    if is_set:
        monkeypatch.setenv("DELTA_LAKE", "s3://elsewhere")
    with create_defs_folder_sandbox() as sandbox:
        sandbox.scaffold_component(component_cls=DeltaTablesComponent)
        with sandbox.build_all_defs() as defs:
            (node,) = defs.resolve_asset_graph().asset_nodes
            uri = str(node.metadata["dagster/uri"])
    assert uri == "s3://elsewhere/events" if is_set else uri.endswith("/lake/events") and uri.startswith("file:///")
