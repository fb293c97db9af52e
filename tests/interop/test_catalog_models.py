"""Every request of ours, and every answer of the emulator, in the models of Unity Catalog's own SDK. They refuse fields
that they do not know."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from delta_orch import DeltaTable
from tests.harness.unity_emulator import API, UnityEmulator, find_endpoint
from tests.interop.reference_client import HOME

pytestmark = pytest.mark.skipif(
    not (HOME / ".installed").is_file(), reason="Delta on Spark is not installed; `make interop` installs it"
)
REQUESTS = ("createStagingTable", "createTable", "updateTable", "reportMetrics")
ANSWERS = {
    "createStagingTable": "staging",
    "createTable": "table",
    "loadTable": "table",
    "updateTable": "table",
}


class _Listening(UnityEmulator):
    """Keeps what it is asked and what it answers, with the names of their models."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.heard: list[tuple[str, Any]] = []

    def answer(self, method: str, target: str, body: Any, authorization: str | None) -> tuple[int, Any]:
        status, content = super().answer(method, target, body, authorization)
        endpoint, _ = find_endpoint(self.routes, method, urlsplit(target).path.removeprefix(API))
        if endpoint in REQUESTS:
            self.heard.append((endpoint, body))
        if endpoint in ANSWERS and status == 200:
            self.heard.append((ANSWERS[endpoint], content))
        return status, content


@pytest.fixture
def unity(tmp_path: Path) -> Iterator[_Listening]:
    emulator = _Listening(tmp_path)
    emulator.start()
    yield emulator
    emulator.stop()


def _as_modelled(heard: list[tuple[str, Any]]) -> list[Any]:
    places = [HOME / "classes", HOME / "jars", next(HOME.glob("lib/python*/site-packages/pyspark/jars"))]
    path = ":".join([str(places[0]), *(f"{place}/*" for place in places[1:])])
    done = subprocess.run(
        ["java", "-cp", path, "Models"],
        input="".join(json.dumps(pair) + "\n" for pair in heard),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def test_requests_and_answers_are_those_of_the_models(unity: _Listening) -> None:
    table = DeltaTable("uc://main.default.t", unity.options)
    columns = "id BIGINT, price DECIMAL(10, 2), tags ARRAY<STRUCT<k: INT>>, m MAP<STRING, DOUBLE>"
    table.create(columns, cluster_by=["id"], description="a table")
    table.append(pa.table({"id": [1, 2]}))
    table.delete("id = 1")
    table.alter().set_properties({"delta.enableChangeDataFeed": "true", "note": "x"}).commit()
    table.alter().unset_properties("note").commit()
    table.alter().add_columns("extra STRUCT<a: ARRAY<INT>>").commit()
    table.create_or_replace("other INT, name STRING", partition_by=["other"])
    kinds = {kind for kind, _ in unity.heard}
    assert kinds == {*REQUESTS, "staging", "table"}
    actions = {update["action"] for kind, body in unity.heard if kind == "updateTable" for update in body["updates"]}
    assert {"add-commit", "set-columns", "set-properties", "remove-properties", "set-domain-metadata"} <= actions
    assert {"set-partition-columns", "set-latest-backfilled-version"} <= actions
    for (kind, body), modelled in zip(unity.heard, _as_modelled(unity.heard), strict=True):
        assert _without_nulls(modelled) == _without_nulls(body), kind
