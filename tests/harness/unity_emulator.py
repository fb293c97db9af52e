"""A Unity Catalog on this machine, written from its specification (Managed Tables Specification 1.0, `api/delta.yaml`).

with unity_emulator(tmp_path) as unity:
    DeltaTable("uc://main.default.t", unity.options).append(rows)
    unity.fail("updateTable", status=500, when="after")   # the commit stands, and nobody is told

It is stricter than servers must be: a request that does not say what its commit file says is a `violation`, and
`ensure_lawful` raises for the first one. The server runs in threads of this process, on a free port of the loopback
interface, and ends with the block. `python -m tests.harness.unity_emulator DIRECTORY` serves until its input ends.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import parse_qs, unquote, urlsplit

API = "/api/2.1/unity-catalog"
TOKEN = "emulator-token-0123456789"
FEATURES = ("catalogManaged", "deletionVectors", "v2Checkpoint", "vacuumProtocolCheck")
SYNTHETIC = (
    "delta.minReaderVersion",
    "delta.minWriterVersion",
    "delta.clusteringColumns",
    "delta.rowTracking.rowIdHighWaterMark",
    "delta.lastUpdateVersion",
    "delta.lastCommitTimestamp",
)
ENDPOINTS = {
    "createStagingTable": "POST /v1/catalogs/{catalog}/schemas/{schema}/staging-tables",
    "createTable": "POST /v1/catalogs/{catalog}/schemas/{schema}/tables",
    "loadTable": "GET /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}",
    "updateTable": "POST /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}",
    "deleteTable": "DELETE /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}",
    "tableExists": "HEAD /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}",
    "renameTable": "POST /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}/rename",
    "getTableCredentials": "GET /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}/credentials",
    "reportMetrics": "POST /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}/metrics",
    "getStagingTableCredentials": "GET /v1/staging-tables/{table_id}/credentials",
}
ROUTES = {
    "getConfig": "GET /delta/v1/config",
    **{name: endpoint.replace(" /v1", " /delta/v1") for name, endpoint in ENDPOINTS.items()},
    "listCatalogs": "GET /catalogs",
    "listSchemas": "GET /schemas",
    "listTables": "GET /tables",
    "token": "POST /oidc/v1/token",
}
DOMAINS = {"delta.clustering": "clusteringColumns", "delta.rowTracking": "rowIdHighWaterMark"}
"""The domains of the API, and the one field that each has there."""
_SET_ONCE = ("set-properties", "remove-properties", "set-protocol", "set-columns", "set-partition-columns",
             "set-table-comment", "set-domain-metadata", "remove-domain-metadata")  # fmt: skip


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


@dataclass
class Fault:
    """What goes wrong: `times` requests of an endpoint are refused before, or not answered well after they were done.

    `status` 0 closes the connection instead of an answer.
    """

    endpoint: str
    status: int
    kind: str
    when: Literal["before", "after"]
    times: int
    on: Callable[[], object] | None = None


@dataclass
class Table:
    """A table, or one that is staged."""

    table_id: str
    location: str
    name: tuple[str, str, str]
    is_managed: bool = True
    columns: dict[str, Any] = field(default_factory=dict)
    partition_columns: list[str] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)
    protocol: dict[str, Any] = field(default_factory=dict)
    domains: dict[str, Any] = field(default_factory=dict)
    comment: str = ""
    etag: int = 0
    latest: int = 0
    backfilled: int = 0
    last_timestamp: int = 0
    last_update_version: int = 0
    commits: dict[int, dict[str, Any]] = field(default_factory=dict)
    ratified: dict[int, str] = field(default_factory=dict)
    is_finalized: bool = False
    owner: str = ""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed does not hear its answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class UnityEmulator:
    """A running catalog. See the module.

    Attributes:
        options: What `DeltaTable` needs to get there.
        requests: How often each endpoint was asked.
        metrics: The bodies of `reportMetrics`.
        violations: What clients did against the specification.
        most_unbackfilled: The limit of commits that are not reported as published.
        allowed_maintenance: Of all tables.
        lag: How many answers of `loadTable` still are those of before the newest commit.
        watch: Is called around each request, with its endpoint and `before` or `after`; nothing is locked then.
        vended: The `config` of credentials; None of a local place.
        lifetime_ms: Of credentials; None for ever.
        is_early: Behave as the open server did before the specification was final, by its source of mid 2026: an etag
            changes with every update, a request that is repeated is a conflict, and requirements are looked at first.
    """

    routes: ClassVar[Mapping[str, str]] = ROUTES

    def __init__(self, directory: Path, root: str | None = None) -> None:
        self.root = (root or directory.absolute().as_uri()).rstrip("/")
        self.catalogs: dict[str, set[str]] = {"main": {"default"}}
        self.tables: dict[tuple[str, str, str], Table] = {}
        self.staging: dict[str, Table] = {}
        self.requests: Counter[str] = Counter()
        self.metrics: list[dict[str, Any]] = []
        self.violations: list[str] = []
        self.faults: list[Fault] = []
        self.most_unbackfilled = 50
        self.allowed_maintenance: list[str] = []
        self.lag = 0
        self.is_early = False
        self.vended: dict[str, str] = {}
        self.lifetime_ms: int | None = None
        self.num_vended = 0
        self.operations: list[str] = []
        self.required_properties: dict[str, str | None] = {
            "delta.checkpointPolicy": "v2",
            "delta.enableDeletionVectors": "true",
            "delta.enableInCommitTimestamps": "true",
            "delta.checkpoint.writeStatsAsStruct": "true",
            "delta.checkpoint.writeStatsAsJson": "true",
        }
        self.suggested_properties: dict[str, str | None] = {
            "delta.columnMapping.mode": "name",
            "delta.columnMapping.maxColumnId": None,
            "delta.enableRowTracking": "true",
            "delta.randomizeFilePrefixes": "true",
            "delta.parquet.compression.codec": "zstd",
            "delta.rowTracking.materializedRowIdColumnName": None,
            "delta.rowTracking.materializedRowCommitVersionColumnName": None,
        }
        self.tokens = {TOKEN}
        self.watch: Callable[[str, str], object] | None = None
        self._lock = threading.RLock()
        self._lagging: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.options: dict[str, str] = {"unity_catalog_uri": self.endpoint, "unity_catalog_token": TOKEN}

    # What tests do

    def fail(
        self,
        endpoint: str,
        *,
        status: int = 500,
        kind: str = "InternalServerErrorException",
        when: Literal["before", "after"] = "before",
        times: int = 1,
        on: Callable[[], object] | None = None,
    ) -> None:
        """The next requests of an endpoint go wrong; `on` is called then."""
        self.faults.append(Fault(endpoint, status, kind, when, times, on))

    def answer_another(self, work: Callable[[], object]) -> None:
        """For `on`: let another client do its work, and wait for it, before this request goes on."""
        self._lock.release()
        try:
            other = threading.Thread(target=work)
            other.start()
            other.join()
        finally:
            self._lock.acquire()

    def table(self, name: str) -> Table:
        """By its name `catalog.schema.table`."""
        return self.tables[_name(name)]

    def unpublish(self, name: str) -> None:
        """As after a crash between ratifying and publishing the newest version of a table in a local directory."""
        table = self.table(name)
        version, log = table.latest, Path(unquote(urlsplit(table.location).path)) / "_delta_log"
        staged = log / "_staged_commits" / table.ratified[version]
        table.backfilled = version - 1
        table.commits[version] = {
            "version": version,
            "timestamp": table.last_timestamp,
            "file-name": staged.name,
            "file-size": staged.stat().st_size,
            "file-modification-timestamp": 1,
        }
        (log / f"{version:020d}.json").unlink()

    def add_external(self, name: str, location: str, properties: Mapping[str, str] | None = None) -> None:
        """Register a table whose commits its files decide."""
        key = _name(name)
        self.tables[key] = Table(str(uuid.uuid4()), location, key, is_managed=False, properties=dict(properties or {}))

    def ensure_lawful(self) -> None:
        """Raise AssertionError for what clients did against the specification."""
        assert not self.violations, "\n".join(self.violations)

    @contextmanager
    def counting(self) -> Iterator[Counter[str]]:
        """The requests of the block."""
        before, counted = Counter(self.requests), Counter[str]()
        yield counted
        counted.update(self.requests)
        counted.subtract(before)
        for endpoint in [name for name, count in counted.items() if not count]:
            del counted[endpoint]

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), name="unity", daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    # The endpoints

    def getConfig(self, query: Mapping[str, str], **_: str) -> Any:
        if "catalog" not in query or "protocol-versions" not in query:
            raise ApiError(400, "InvalidParameterValueException", "catalog and protocol-versions are required")
        if query["catalog"] not in self.catalogs:
            raise ApiError(404, "NoSuchCatalogException", f"Catalog {query['catalog']} does not exist")
        if not any(version.split(".")[0] == "1" for version in query["protocol-versions"].split(",")):
            raise ApiError(400, "InvalidParameterValueException", "Supported protocol versions: 1.0")
        return {"endpoints": list(ENDPOINTS.values()), "protocol-version": "1.0"}

    def createStagingTable(self, body: Any, catalog: str, schema: str, **_: str) -> Any:
        self._ensure_schema(catalog, schema)
        key = (catalog, schema, body["name"])
        if key in self.tables:
            raise ApiError(409, "AlreadyExistsException", f"Table {'.'.join(key)} already exists")
        table_id = str(uuid.uuid4())
        location = f"{self.root}/__unitystorage/tables/{table_id}"
        self.staging[location] = Table(table_id, location, key)
        return {
            "table-id": table_id,
            "table-type": "MANAGED",
            "location": location,
            "storage-credentials": self._credentials(location, "READ_WRITE"),
            "required-protocol": {
                "min-reader-version": 3,
                "min-writer-version": 7,
                "reader-features": list(FEATURES),
                "writer-features": [*FEATURES, "inCommitTimestamp"],
            },
            "suggested-protocol": {
                "reader-features": ["columnMapping"],
                "writer-features": ["columnMapping", "domainMetadata", "rowTracking"],
            },
            "required-properties": {**self.required_properties, "io.unitycatalog.tableId": table_id},
            "suggested-properties": self.suggested_properties,
        }

    def getStagingTableCredentials(self, table_id: str, **_: str) -> Any:
        found = next((t for t in self.staging.values() if t.table_id == table_id), None)
        if found is None:
            raise ApiError(404, "NoSuchTableException", f"No staging table {table_id}")
        return {"storage-credentials": self._credentials(found.location, "READ_WRITE")}

    def createTable(self, body: Any, catalog: str, schema: str, **_: str) -> Any:
        self._ensure_schema(catalog, schema)
        key = (catalog, schema, body["name"])
        table = self.staging.get(body["location"])
        if table is None:
            raise ApiError(404, "NoSuchTableException", f"No staging table at {body['location']}")
        if table.is_finalized:
            raise ApiError(400, "InvalidParameterValueException", "The staging table was already finalized")
        if key in self.tables:
            raise ApiError(409, "AlreadyExistsException", f"Table {'.'.join(key)} already exists")
        if body["table-type"] != "MANAGED":
            raise ApiError(400, "InvalidParameterValueException", "table-type must be MANAGED")
        table.name, table.columns, table.protocol = key, body["columns"], body["protocol"]
        table.partition_columns = list(body.get("partition-columns") or [])
        table.properties, table.domains = dict(body["properties"]), dict(body.get("domain-metadata") or {})
        table.comment, table.last_timestamp = body.get("comment") or "", body["last-commit-timestamp-ms"]
        self._ensure_contract(table)
        self._ensure_same_as_log(table, f"_delta_log/{0:020d}.json", table.last_timestamp, None)
        table.is_finalized = True
        self.tables[key] = table
        return self._loaded(table)

    def loadTable(self, **path: str) -> Any:
        table = self._find(path)
        if self.lag > 0 and table.name in self._lagging:
            self.lag -= 1
            return self._lagging[table.name]
        return self._loaded(table)

    def tableExists(self, **path: str) -> Any:
        self._find(path)
        return None

    def deleteTable(self, **path: str) -> Any:
        del self.tables[self._find(path).name]
        return None

    def renameTable(self, body: Any, **path: str) -> Any:
        table = self._find(path)
        key = (*table.name[:2], body["new-name"])
        if key in self.tables:
            raise ApiError(409, "AlreadyExistsException", f"Table {'.'.join(key)} already exists")
        self.tables[key] = self.tables.pop(table.name)
        table.name = key
        return None

    def getTableCredentials(self, query: Mapping[str, str], **path: str) -> Any:
        table = self._find(path)
        if query.get("operation") not in ("READ", "READ_WRITE"):
            raise ApiError(400, "BadRequestException", "operation must be READ or READ_WRITE")
        self.operations.append(query["operation"])
        return {"storage-credentials": self._credentials(table.location, query["operation"])}

    def reportMetrics(self, body: Any, **path: str) -> Any:
        table = self._find(path)
        if body["table-id"] != table.table_id:
            raise ApiError(400, "InvalidParameterValueException", "table-id is of another table")
        self.metrics.append(body["report"])
        return None

    def updateTable(self, body: Any, **path: str) -> Any:
        table = self._find(path)
        updates, requirements = self._shape(body)
        required = {"assert-table-uuid": ("uuid", table.table_id), "assert-etag": ("etag", f"e{table.etag}")}
        commit = (updates.get("add-commit") or {}).get("commit")
        is_repeated = commit is not None and table.ratified.get(commit["version"]) == commit["file-name"]
        if is_repeated and not self.is_early:
            return self._loaded(table)  # A retry of what has landed.
        for kind, requirement in requirements.items():
            key, actual = required[kind]
            if requirement[key] != actual:
                raise ApiError(409, "UpdateRequirementConflictException", f"{kind} does not hold")
        if commit is not None:
            self._ensure_next(table, updates, commit)
        before = self._loaded(table)
        changed = any(action in updates for action in _SET_ONCE)
        after = self._after(table, updates)
        if commit is not None:
            self._ensure_contract(after)
            file = f"_delta_log/_staged_commits/{commit['file-name']}"
            self._ensure_same_as_log(after, file, commit["timestamp"], updates, commit["file-size"])
            after.latest, after.last_timestamp = commit["version"], commit["timestamp"]
            after.commits[commit["version"]] = commit
            after.ratified[commit["version"]] = commit["file-name"]
            if changed:
                after.last_update_version = commit["version"]
        elif set(updates) - {"set-latest-backfilled-version", "set-table-comment"}:
            self._violate("the definition is changed without a commit")
        if changed or self.is_early:
            after.etag += 1
        if (report := updates.get("set-latest-backfilled-version")) is not None:
            self._backfill(after, report["latest-published-version"])
        self.tables[table.name] = after
        self._lagging[table.name] = before
        return self._loaded(after)

    def listCatalogs(self, **_: Any) -> Any:
        return {"catalogs": [{"name": name} for name in sorted(self.catalogs)]}

    def listSchemas(self, query: Mapping[str, str], **_: Any) -> Any:
        if query["catalog_name"] not in self.catalogs:
            raise ApiError(404, "CATALOG_NOT_FOUND", f"Catalog not found: {query['catalog_name']}")
        return {"schemas": [{"name": name} for name in sorted(self.catalogs[query["catalog_name"]])]}

    def listTables(self, query: Mapping[str, str], **_: Any) -> Any:
        schema = (query["catalog_name"], query["schema_name"])
        names = sorted(key[2] for key in self.tables if key[:2] == schema)
        start = int(query.get("page_token") or 0)
        page = names[start : start + 2]  # So that there are pages.
        more = {"next_page_token": str(start + 2)} if start + 2 < len(names) else {}
        return {"tables": [{"name": name, "data_source_format": "DELTA"} for name in page], **more}

    def token(self, **_: Any) -> Any:
        token = f"machine-token-{uuid.uuid4()}"
        self.tokens.add(token)
        return {"access_token": token, "expires_in": 3600, "token_type": "Bearer"}

    # The rules

    def _shape(self, body: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        updates = {update["action"]: update for update in body["updates"]}
        requirements = {requirement["type"]: requirement for requirement in body["requirements"]}
        bad = None
        if not body["updates"]:
            bad = "updates is empty"
        elif len(updates) < len(body["updates"]) or len(requirements) < len(body["requirements"]):
            bad = "two actions or requirements of one type"
        elif "assert-table-uuid" not in requirements:
            bad = "assert-table-uuid is required"
        elif unknown := set(updates) - {*_SET_ONCE, "add-commit", "set-latest-backfilled-version"}:
            bad = f"unknown actions {unknown}"
        sets, removes = updates.get("set-properties"), updates.get("remove-properties")
        keys = [*(sets or {}).get("updates", ()), *(removes or {}).get("removals", ())]
        if len(set(keys)) < len(keys):
            bad = "a property is both set and removed"
        domains = (updates.get("set-domain-metadata") or {}).get("updates", {})
        if any(DOMAINS.get(domain) not in value or len(value) > 1 for domain, value in domains.items()):
            bad = f"domain metadata that the API has no form for: {domains}"
        if derived := [key for key in keys if key in SYNTHETIC or key.startswith("delta.feature.")]:
            bad = f"derived properties are sent: {derived}"
        if bad:
            raise ApiError(400, "InvalidParameterValueException", bad)
        return updates, requirements

    def _ensure_next(self, table: Table, updates: Mapping[str, Any], commit: Mapping[str, Any]) -> None:
        if commit["version"] <= 0 or commit["timestamp"] <= 0 or commit["file-size"] <= 0:
            raise ApiError(400, "InvalidParameterValueException", "version, timestamp and file-size are positive")
        if commit["version"] > table.latest + 1:
            raise ApiError(400, "InvalidParameterValueException", f"The newest version is {table.latest}")
        if not self.is_early and commit["version"] <= table.backfilled and commit["version"] in table.ratified:
            published = self._read(table, f"_delta_log/{commit['version']:020d}.json")
            if published == self._read(table, f"_delta_log/_staged_commits/{commit['file-name']}"):
                return
        if commit["version"] != table.latest + 1:
            raise ApiError(409, "CommitVersionConflictException", f"The newest version is {table.latest}")
        if commit["timestamp"] <= table.last_timestamp:
            self._violate(f"the time of version {commit['version']} is not after the one before")
        reported = (updates.get("set-latest-backfilled-version") or {}).get("latest-published-version", -1)
        if reported > table.latest:
            raise ApiError(400, "InvalidParameterValueException", f"Version {reported} is not ratified")
        if sum(version > reported for version in table.commits) >= self.most_unbackfilled:
            raise ApiError(429, "ResourceExhaustedException", "Too many commits are not backfilled")

    def _after(self, table: Table, updates: Mapping[str, Any]) -> Table:
        after = Table(**{**vars(table), "commits": dict(table.commits), "ratified": dict(table.ratified)})
        after.properties, after.domains = dict(table.properties), dict(table.domains)
        after.properties.update(updates.get("set-properties", {}).get("updates", {}))
        for key in updates.get("remove-properties", {}).get("removals", ()):
            after.properties.pop(key, None)
        after.protocol = updates.get("set-protocol", {}).get("protocol", table.protocol)
        after.columns = updates.get("set-columns", {}).get("columns", table.columns)
        after.partition_columns = updates.get("set-partition-columns", {}).get(
            "partition-columns", table.partition_columns
        )
        after.comment = updates.get("set-table-comment", {}).get("comment", table.comment)
        after.domains.update(updates.get("set-domain-metadata", {}).get("updates", {}))
        for domain in updates.get("remove-domain-metadata", {}).get("domains", ()):
            after.domains.pop(domain, None)
        return after

    def _backfill(self, table: Table, version: int) -> None:
        if version > table.latest:
            raise ApiError(400, "InvalidParameterValueException", f"Version {version} is not ratified")
        for published in range(table.backfilled + 1, version + 1):
            content = self._read(table, f"_delta_log/{published:020d}.json")
            staged = self._read(table, f"_delta_log/_staged_commits/{table.ratified[published]}")
            is_local = self.root.startswith("file:")
            if (content is None and is_local) or (staged is not None and content != staged):
                self._violate(f"version {published} is reported as published, and is not")
        table.backfilled = max(table.backfilled, version)
        for published in [v for v in table.commits if v <= version]:
            del table.commits[published]

    def _ensure_contract(self, table: Table) -> None:
        lacking = [key for key, value in self.required_properties.items() if table.properties.get(key) != value]
        lacking += [name for name in FEATURES if name not in table.protocol["reader-features"]]
        lacking += [n for n in (*FEATURES, "inCommitTimestamp") if n not in table.protocol["writer-features"]]
        if table.properties.get("io.unitycatalog.tableId") != table.table_id:
            lacking.append("io.unitycatalog.tableId")
        if lacking:
            raise ApiError(400, "InvalidParameterValueException", f"The table lacks {lacking}")

    def _ensure_same_as_log(
        self, table: Table, path: str, timestamp: int, updates: Mapping[str, Any] | None, size: int | None = None
    ) -> None:
        """Whether a commit says what the request says ("Catalog and log consistency")."""
        content = self._read(table, path)
        if content is None:
            if self.root.startswith("file:"):
                self._violate(f"{path} does not exist")
            return
        if size is not None and size != len(content):
            self._violate(f"{path} has {len(content)} bytes, not {size}")
        actions = [json.loads(line) for line in content.decode().splitlines()]
        info = actions[0].get("commitInfo") or {}
        if not info.get("txnId") or info.get("inCommitTimestamp") != timestamp:
            self._violate(f"{path} does not begin with a commitInfo of its txnId and time")
        for action in actions:
            if (protocol := action.get("protocol")) is not None:
                told = {"min-reader-version": protocol["minReaderVersion"],
                        "min-writer-version": protocol["minWriterVersion"],
                        "reader-features": protocol.get("readerFeatures") or [],
                        "writer-features": protocol.get("writerFeatures") or []}  # fmt: skip
                self._same(path, "protocol", told, table.protocol)
            if (metadata := action.get("metaData")) is not None:
                self._same(path, "columns", _hyphenated(json.loads(metadata["schemaString"])), table.columns)
                self._same(path, "properties", metadata.get("configuration") or {}, table.properties)
                self._same(path, "partition columns", metadata.get("partitionColumns") or [], table.partition_columns)
                self._same(path, "comment", metadata.get("description") or "", table.comment)
            if (domain := action.get("domainMetadata")) is not None and domain["domain"] in DOMAINS:
                name = DOMAINS[domain["domain"]]
                value = None if domain.get("removed") else {name: json.loads(domain["configuration"])[name]}
                self._same(path, domain["domain"], value, table.domains.get(domain["domain"]))
        if updates is not None:
            kinds = {kind for action in actions for kind in action}
            needs = {"set-protocol": "protocol", "set-columns": "metaData", "set-properties": "metaData",
                     "remove-properties": "metaData", "set-partition-columns": "metaData",
                     "set-domain-metadata": "domainMetadata", "remove-domain-metadata": "domainMetadata"}  # fmt: skip
            for update, kind in needs.items():
                if update in updates and kind not in kinds:
                    self._violate(f"{update} is sent, and {path} has no {kind}")

    def _same(self, path: str, what: str, in_log: object, in_catalog: object) -> None:
        if in_log != in_catalog:
            self._violate(f"{what}: {path} says {in_log}, the catalog {in_catalog}")

    def _violate(self, what: str) -> None:
        self.violations.append(what)

    def _read(self, table: Table, path: str) -> bytes | None:
        if not table.location.startswith("file:"):
            return None
        file = Path(unquote(urlsplit(table.location).path)) / path
        return file.read_bytes() if file.exists() else None

    def _ensure_schema(self, catalog: str, schema: str) -> None:
        if schema not in self.catalogs.get(catalog, ()):
            raise ApiError(404, "NoSuchSchemaException", f"Schema {catalog}.{schema} does not exist")

    def _find(self, path: Mapping[str, str]) -> Table:
        self._ensure_schema(path["catalog"], path["schema"])
        table = self.tables.get((path["catalog"], path["schema"], path["table"]))
        if table is None:
            raise ApiError(404, "NoSuchTableException", f"Table {path['table']} does not exist")
        return table

    def _loaded(self, table: Table) -> dict[str, Any]:
        now = int(time.time() * 1000)
        metadata: dict[str, Any] = {
            "etag": f"e{table.etag}",
            "table-type": "MANAGED" if table.is_managed else "EXTERNAL",
            "table-uuid": table.table_id,
            "location": table.location,
            "created-time": now,
            "updated-time": now,
            "columns": table.columns or {"type": "struct", "fields": []},
            "partition-columns": table.partition_columns,
            "properties": dict(table.properties),
        }
        if not table.is_managed:
            return {"metadata": metadata}
        derived = {f"delta.feature.{name}": "supported" for name in table.protocol["writer-features"]}
        derived["delta.minReaderVersion"] = str(table.protocol["min-reader-version"])
        derived["delta.minWriterVersion"] = str(table.protocol["min-writer-version"])
        derived["delta.lastUpdateVersion"] = str(table.last_update_version)
        derived["delta.lastCommitTimestamp"] = str(table.last_timestamp)
        metadata["properties"] = {**table.properties, **derived}
        metadata["last-commit-version"] = table.last_update_version
        metadata["last-commit-timestamp-ms"] = table.last_timestamp
        answer: dict[str, Any] = {
            "metadata": metadata,
            "commits": [table.commits[version] for version in sorted(table.commits, reverse=True)],
            "latest-table-version": table.latest,
        }
        if self.allowed_maintenance:
            answer["allowed-maintenance-operations"] = list(self.allowed_maintenance)
        return answer

    def _credentials(self, location: str, operation: str) -> list[dict[str, Any]]:
        self.num_vended += 1
        ends = None if self.lifetime_ms is None else int(time.time() * 1000) + self.lifetime_ms
        config = {key: value.replace("{n}", str(self.num_vended)) for key, value in self.vended.items()}
        shorter: dict[str, Any] = {
            "prefix": self.root,
            "operation": operation,
            "expiration-time-ms": ends,
            "config": {},
        }
        return [
            shorter,
            {"prefix": location, "operation": operation, "expiration-time-ms": ends, "config": config},
        ]

    # The server

    def answer(self, method: str, target: str, body: Any, authorization: str | None) -> tuple[int, Any]:
        """The status and the content of an answer; status 0 closes the connection."""
        url = urlsplit(target)
        path = url.path.removeprefix(API)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        endpoint, parameters = find_endpoint(self.routes, method, path)
        if endpoint is None:
            return 404, _error(404, "NotFoundException", f"No endpoint {method} {path}")
        if self.watch is not None:
            self.watch(endpoint, "before")
        answered = self._answer(endpoint, parameters, query, body, authorization)
        if self.watch is not None:
            self.watch(endpoint, "after")
        return answered

    def _answer(
        self, endpoint: str, parameters: dict[str, str], query: Any, body: Any, authorization: str | None
    ) -> tuple[int, Any]:
        with self._lock:
            self.requests[endpoint] += 1
            fault = next((f for f in self.faults if f.endpoint == endpoint and f.times > 0), None)
            if fault is not None:
                fault.times -= 1
            try:
                if endpoint != "token" and (authorization or "").removeprefix("Bearer ") not in self.tokens:
                    raise ApiError(401, "NotAuthorizedException", "The token is missing or wrong")
                if fault is not None and fault.when == "before":
                    return _failed(fault)
                answer = getattr(self, endpoint)(query=query, body=body, **parameters)
                if fault is not None:
                    return _failed(fault)
                return (204, None) if answer is None else (200, answer)
            except ApiError as e:
                if endpoint.startswith("list"):  # The older API has errors of another form.
                    return e.status, {"error_code": e.kind, "message": str(e), "details": []}
                return e.status, _error(e.status, e.kind, str(e))
            except (KeyError, TypeError, ValueError) as e:
                self._violate(f"{endpoint} cannot be understood: {type(e).__name__} {e}")
                return 400, _error(400, "BadRequestException", f"{type(e).__name__}: {e}")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        emulator = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def _serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                content = self.rfile.read(length)
                is_json = "json" in (self.headers.get("Content-Type") or "")
                body = json.loads(content) if content and is_json else None
                status, answer = emulator.answer(self.command, self.path, body, self.headers.get("Authorization"))
                if not status:
                    self.close_connection = True
                    return
                data = b"" if answer is None or self.command == "HEAD" else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_DELETE = do_HEAD = _serve

            def log_message(self, *_: object) -> None:
                """Quietly."""

        return Handler


def _failed(fault: Fault) -> tuple[int, Any]:
    if fault.on is not None:
        fault.on()
    return fault.status, _error(fault.status, fault.kind, "A fault of the emulator")


def _error(status: int, kind: str, message: str) -> dict[str, Any]:
    return {"error": {"type": kind, "code": status, "message": message}}


def find_endpoint(routes: Mapping[str, str], method: str, path: str) -> tuple[str | None, dict[str, str]]:
    for name, endpoint in routes.items():
        verb, _, pattern = endpoint.partition(" ")
        found = re.fullmatch(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", pattern), path)
        if verb == method and found is not None:
            return name, {key: unquote(value) for key, value in found.groupdict().items()}
    return None, {}


def _hyphenated(data_type: Any) -> Any:
    names = {"elementType": "element-type", "containsNull": "contains-null", "keyType": "key-type",
             "valueType": "value-type", "valueContainsNull": "value-contains-null"}  # fmt: skip
    if isinstance(data_type, dict) and data_type.get("type") == "struct":
        fields = [{**field, "type": _hyphenated(field["type"])} for field in data_type["fields"]]
        return {**data_type, "fields": fields}
    if isinstance(data_type, dict):
        return {names.get(key, key): _hyphenated(value) for key, value in data_type.items()}
    return data_type


def _name(name: str) -> tuple[str, str, str]:
    catalog, schema, table = name.split(".")
    return catalog, schema, table


@contextmanager
def unity_emulator(directory: Path, root: str | None = None) -> Iterator[UnityEmulator]:
    """A catalog whose tables lie below a directory, or below another root."""
    emulator = UnityEmulator(directory, root)
    emulator.start()
    try:
        yield emulator
    finally:
        emulator.stop()


if __name__ == "__main__":
    with unity_emulator(Path(sys.argv[1])) as running:
        sys.stdout.write(f"{running.endpoint}\n")
        sys.stdout.flush()
        sys.stdin.read()
