"""The API of Unity Catalog before the Delta API 1.0, over the same tables: what Sail 0.7 speaks.

Written from the models of the package `unitycatalog-client` 0.7.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from tests.harness.unity_emulator import ROUTES, ApiError, Table, UnityEmulator

_OLDER = {
    "olderTable": "GET /tables/{full_name}",
    "olderSchema": "GET /schemas/{full_name}",
    "olderCatalog": "GET /catalogs/{name}",
    "olderCredentials": "POST /temporary-table-credentials",
    "olderCommits": "GET /delta/preview/commits",
    "olderCommit": "POST /delta/preview/commits",
}
_TYPES = {
    "long": "LONG",
    "integer": "INT",
    "string": "STRING",
    "double": "DOUBLE",
    "date": "DATE",
    "boolean": "BOOLEAN",
}


class OlderUnityEmulator(UnityEmulator):
    """Both APIs. A commit by the older one becomes an update by the newer one."""

    routes: ClassVar[Mapping[str, str]] = {**ROUTES, **_OLDER}

    def olderCatalog(self, name: str, **_: Any) -> Any:
        return {"name": name}

    def olderSchema(self, full_name: str, **_: Any) -> Any:
        catalog, schema = full_name.split(".")
        self._ensure_schema(catalog, schema)
        return {"name": schema, "catalog_name": catalog, "full_name": full_name}

    def olderTable(self, full_name: str, **_: Any) -> Any:
        table = self.tables.get(tuple(full_name.split(".")))  # type: ignore[arg-type]
        if table is None:
            raise ApiError(404, "TABLE_DOES_NOT_EXIST", f"{full_name} does not exist")
        return self._info(table)

    def listTables(self, query: Mapping[str, str], **_: Any) -> Any:
        listed = super().listTables(query=query)
        schema = (query["catalog_name"], query["schema_name"])
        return {**listed, "tables": [self._info(self.tables[*schema, found["name"]]) for found in listed["tables"]]}

    def _info(self, table: Table) -> dict[str, Any]:
        catalog, schema, name = table.name
        columns = [
            {
                "name": field["name"],
                "type_text": field["type"] if isinstance(field["type"], str) else "struct",
                "type_json": json.dumps(field),
                "type_name": _TYPES.get(str(field["type"]), "STRUCT"),
                "position": position,
                "nullable": field["nullable"],
            }
            for position, field in enumerate(table.columns["fields"])
        ]
        return {
            "name": name,
            "catalog_name": catalog,
            "schema_name": schema,
            "table_type": "MANAGED",
            "data_source_format": "DELTA",
            "columns": columns,
            "storage_location": table.location,
            "properties": self._loaded(table)["metadata"]["properties"],
            "table_id": table.table_id,
        }

    def olderCredentials(self, body: Any, **_: Any) -> Any:
        return {"url": next(t.location for t in self.tables.values() if t.table_id == body["table_id"])}

    def olderCommits(self, body: Any, query: Mapping[str, str], **_: Any) -> Any:
        asked = body or query
        table = next(t for t in self.tables.values() if t.table_id == asked["table_id"])
        commits = [
            {key.replace("-", "_"): value for key, value in commit.items()}
            for version, commit in sorted(table.commits.items())
            if version >= int(asked.get("start_version") or 0)
        ]
        return {"commits": commits, "latest_table_version": table.latest}

    def olderCommit(self, body: Any, **_: Any) -> Any:
        table = next(t for t in self.tables.values() if t.table_id == body["table_id"])
        updates: list[dict[str, Any]] = []
        if (info := body.get("commit_info")) is not None:
            commit = {key.replace("_", "-"): value for key, value in info.items()}
            updates.append({"action": "add-commit", "commit": commit})
        if (published := body.get("latest_backfilled_version")) is not None:
            updates.append({"action": "set-latest-backfilled-version", "latest-published-version": published})
        catalog, schema, name = table.name
        request = {"requirements": [{"type": "assert-table-uuid", "uuid": table.table_id}], "updates": updates}
        self.updateTable(request, catalog=catalog, schema=schema, table=name)
        return {}


@contextmanager
def older_unity_emulator(directory: Path) -> Iterator[OlderUnityEmulator]:
    """A catalog that speaks both APIs."""
    emulator = OlderUnityEmulator(directory)
    emulator.start()
    try:
        yield emulator
    finally:
        emulator.stop()
