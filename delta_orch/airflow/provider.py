"""The description of this provider package for Airflow (entry point `apache_airflow_provider`).

Airflow calls this while it reads its own configuration, in every process it starts. The module therefore imports
nothing: neither Airflow, which is half initialised at that moment, nor the rest of delta_orch.
"""

from __future__ import annotations

INTEGRATION = "Delta Lake"
CONNECTION_TYPE = "delta"


def get_provider_info() -> dict[str, object]:
    """The provider's description, in the shape of Airflow's `provider_info.schema.json`."""
    return {
        "package-name": "delta-orch",
        "name": INTEGRATION,
        "description": "Exactly-once Delta Lake steps: operators, sensors, triggers and `@task.delta`.\n",
        "integrations": [
            {
                "integration-name": INTEGRATION,
                "external-doc-url": "https://delta.io/",
                "tags": ["software"],
            }
        ],
        "hooks": _modules("delta_orch.airflow.hook", "delta_orch.airflow.sql_hook"),
        "operators": _modules(
            "delta_orch.airflow.write_operator",
            "delta_orch.airflow.incremental_operator",
            "delta_orch.airflow.maintenance_operators",
            "delta_orch.airflow.check_operator",
            "delta_orch.airflow.submit_operator",
        ),
        "sensors": _modules("delta_orch.airflow.sensors"),
        "triggers": _modules("delta_orch.airflow.triggers"),
        "connection-types": [_connection_type()],
        "extra-links": ["delta_orch.airflow.table_operator.DeltaTableLink"],
        "task-decorators": [
            {"name": "delta", "class-name": "delta_orch.airflow.decorators.delta_task"},
            {"name": "delta_changes", "class-name": "delta_orch.airflow.decorators.delta_changes_task"},
        ],
        "asset-uris": [
            {
                "schemes": ["delta"],
                "handler": "delta_orch.airflow.assets.sanitize_uri",
                "factory": "delta_orch.airflow.assets.create_asset",
            }
        ],
    }


def ensure_airflow(error: ImportError) -> None:
    """Name what is missing, where it is Airflow itself, or what came with 3.0."""
    from importlib.metadata import PackageNotFoundError, version

    from delta_orch.errors import MissingDependencyError

    try:
        installed: str | None = version("apache-airflow-core")
    except PackageNotFoundError:
        try:
            installed = version("apache-airflow")  # As Airflow 2 calls it.
        except PackageNotFoundError:
            installed = None
    if installed is None or int(installed.split(".")[0]) < 3:
        raise MissingDependencyError(
            "delta_orch.airflow needs Airflow 3.0 or newer" + (f", and {installed} is installed" if installed else ""),
            remedy='Run pip install "delta-orch[airflow]"',
            package="apache-airflow",
        ) from error


def _modules(*names: str) -> list[dict[str, object]]:
    return [{"integration-name": INTEGRATION, "python-modules": list(names)}]


def _connection_type() -> dict[str, object]:
    return {
        "connection-type": CONNECTION_TYPE,
        "hook-class-name": "delta_orch.airflow.sql_hook.DeltaSqlHook",
        "hook-name": INTEGRATION,
        "ui-field-behaviour": {
            "hidden-fields": ["host", "schema", "port", "login", "password"],
            "relabeling": {"extra": "Storage options"},
            "placeholders": {"extra": '{"region": "eu-central-1", "endpoint_url": "…"}'},
        },
        "conn-fields": {
            "table_root": {
                "label": "Table root",
                "description": "Directory below which relative table URIs are looked up, e.g. s3://lake/warehouse",
                "schema": {"type": ["string", "null"]},
            },
            # Airflow masks a field by the words in its name.
            "secret_storage_options": {
                "label": "Secret storage options",
                "description": 'Credentials as a JSON object: {"key": "…", "secret": "…"}; joined to those of extra',
                "schema": {"type": ["string", "null"], "format": "password"},
            },
        },
    }
