"""Sends requests to a Unity Catalog: to its Delta API 1.0, and to the listings of its older API.

Each request opens its own connection, so a forked child shares none. Redirects are not followed, because they would
forward the token.
"""

from __future__ import annotations

import base64
import http.client
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple
from urllib.parse import quote, urlencode

import orjson

from delta_orch.catalog.entry import StagingTable, TableEntry, VendedCredential, parse_credentials
from delta_orch.catalog.names import SchemaName, TableName
from delta_orch.catalog.settings import CatalogSettings
from delta_orch.errors import CatalogError, StorageOutcomeUnknownError, TableNotFoundError
from delta_orch.storage.log_redaction import hide_in_logs
from delta_orch.storage.patience import Patience, is_passing_status

Operation = Literal["READ", "READ_WRITE"]
JsonBody = Mapping[str, Any]

PROTOCOL_VERSION = "1.0"
EXHAUSTED = "ResourceExhaustedException"
"""The kind of a refusal if too many commits are not published."""

_DELTA = "/delta"
_TIMEOUT_S = 60.0
_METRICS_TIMEOUT_S = 5.0
_PAGE = 1000
_EARLY_S = 60.0
_LOGGER = logging.getLogger(__name__)

_tokens: dict[CatalogSettings, tuple[str, float]] = {}
_endpoints: dict[tuple[CatalogSettings, str], frozenset[str]] = {}
"""The endpoints of the servers, by catalog. Single operations of a dict are atomic."""


class Refusal(NamedTuple):
    """An error response: its status, the name of its kind, and its text."""

    status: int
    kind: str
    message: str


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        return None


class CatalogClient:
    """One catalog server. It holds no connection, so it is safe to share, to pickle, and to keep across a fork.

    Methods raise CatalogError. It is retryable if the server failed temporarily for longer than `retry_seconds`.
    """

    def __init__(self, settings: CatalogSettings) -> None:
        self.settings = settings
        hide_in_logs(value for value in (settings.token, settings.client_secret) if value)

    # The Delta API

    def ensure_supported(self, catalog: str) -> frozenset[str]:
        """Negotiate the version of the protocol, once per catalog and process.

        Returns: The endpoints that the server offers.
        """
        endpoints = _endpoints.get((self.settings, catalog))
        if endpoints is None:
            query = {"catalog": catalog, "protocol-versions": PROTOCOL_VERSION}
            answer = self._ask("GET", f"{_DELTA}/v1/config", f"open the catalog {catalog}", query=query)
            if isinstance(answer, Refusal):
                if answer.kind == "NoSuchCatalogException":
                    raise TableNotFoundError(
                        f"There is no catalog {catalog}",
                        cause=answer.message,
                        remedy="Check the name, or ask the catalog's administrator for access",
                    )
                if answer.status in (400, 404, 405, 501):
                    raise CatalogError(
                        f"The server at {self.settings.uri} does not offer the Delta API {PROTOCOL_VERSION}",
                        cause=answer.message,
                        remedy="Use a Unity Catalog of version 0.6 or later",
                    )
                raise self._refused(f"open the catalog {catalog}", answer)
            endpoints = frozenset(str(endpoint) for endpoint in answer.get("endpoints") or ())
            _endpoints[self.settings, catalog] = endpoints
        return endpoints

    def load_table(self, name: TableName) -> TableEntry | None:
        """Call `loadTable`. None if there is no such table."""
        self.ensure_supported(name.catalog)
        answer = self._ask("GET", _table_path(name), f"load {name.uri}")
        if isinstance(answer, Refusal):
            if answer.kind == "NoSuchTableException":
                return None
            if answer.kind == "NoSuchSchemaException":
                raise TableNotFoundError(
                    f"There is no schema {name.catalog}.{name.schema}", cause=answer.message, remedy="Check the name"
                )
            if answer.kind == "UnsupportedTableFormatException":
                raise CatalogError(
                    f"{name.uri} is not a Delta table", cause=answer.message, remedy="Use the name of a Delta table"
                )
            raise self._refused(f"load {name.uri}", answer)
        return TableEntry.parse(answer, name)

    def table_credentials(self, name: TableName, operation: Operation) -> list[VendedCredential]:
        """Call `getTableCredentials`."""
        what = f"get credentials ({operation}) for {name.uri}"
        answer = self._ask("GET", f"{_table_path(name)}/credentials", what, query={"operation": operation})
        return parse_credentials(self._accepted(what, answer))

    def staging_credentials(self, table_id: str) -> list[VendedCredential]:
        """Call `getStagingTableCredentials`."""
        what = f"get credentials for the staging table {table_id}"
        path = f"{_DELTA}/v1/staging-tables/{quote(table_id, safe='')}/credentials"
        return parse_credentials(self._accepted(what, self._ask("GET", path, what)))

    def create_staging_table(self, name: TableName) -> StagingTable | Refusal:
        """Call `createStagingTable`. A repeated request allocates another table, which does no harm."""
        self.ensure_supported(name.catalog)
        path = f"{_schema_path(name)}/staging-tables"
        answer = self._ask("POST", path, f"create {name.uri}", body={"name": name.table})
        return answer if isinstance(answer, Refusal) else StagingTable.parse(answer)

    def create_table(self, name: TableName, table_id: str, body: JsonBody) -> TableEntry | Refusal:
        """Call `createTable`, with the recovery of the specification. Whatever the server answers, the table was
        created if it has the id of the staging table."""
        what, answer = f"create {name.uri}", None
        try:
            answer = self._ask("POST", f"{_schema_path(name)}/tables", what, body=body)
        except StorageOutcomeUnknownError as e:
            _LOGGER.warning("It is unknown whether %s was created. The catalog is asked again: %s", name.uri, e)
            entry = self.load_table(name)
            if entry is not None and entry.table_uuid == table_id:
                return entry
            raise
        if isinstance(answer, Refusal):
            entry = self.load_table(name)
            return entry if entry is not None and entry.table_uuid == table_id else answer
        return TableEntry.parse(answer, name)

    def update_table(self, name: TableName, body: JsonBody) -> TableEntry | Refusal:
        """Call `updateTable`. If the outcome is unknown, the identical request is repeated, and the server recognizes
        it.

        Returns: The table after the update. Or a refusal, if the table has changed (409) or has too many unpublished
        commits (`ResourceExhaustedException`). In that case the update was not made.

        Raises:
            StorageOutcomeUnknownError: It is unknown whether the update was made.
            CatalogError: The update was not made.
        """
        what = f"update {name.uri}"
        answer = self._ask("POST", _table_path(name), what, body=body)
        if isinstance(answer, Refusal):
            if answer.status == 409 or answer.kind == EXHAUSTED:
                return answer
            raise self._refused(what, answer)
        return TableEntry.parse(answer, name)

    def report_metrics(self, name: TableName, body: JsonBody) -> None:
        """Call `reportMetrics` once, if the server offers it. Raises CatalogError."""
        path = "/v1/catalogs/{catalog}/schemas/{schema}/tables/{table}/metrics"
        if f"POST {path}" in self.ensure_supported(name.catalog):
            what = f"report a commit to {name.uri}"
            self._accepted(what, self._ask("POST", f"{_table_path(name)}/metrics", what, body=body, is_single=True))

    # The listings of the older API

    def catalogs(self) -> Iterator[str]:
        """Return the names of the catalogs that the caller may see."""
        return (str(found["name"]) for found in self._listed("catalogs", {}))

    def schemas(self, catalog: str) -> Iterator[str]:
        """Return the names of the schemas of a catalog."""
        return (str(found["name"]) for found in self._listed("schemas", {"catalog_name": catalog}))

    def tables(self, schema: SchemaName) -> Iterator[TableName]:
        """Return the Delta tables of a schema."""
        query = {"catalog_name": schema.catalog, "schema_name": schema.schema}
        for found in self._listed("tables", query):
            if str(found.get("data_source_format") or "DELTA").upper() == "DELTA":
                yield schema.table(str(found["name"]))

    def _listed(self, what: str, query: Mapping[str, str]) -> Iterator[JsonBody]:
        token: str | None = None
        while True:
            page = {"max_results": str(_PAGE), **query, **({"page_token": token} if token else {})}
            answer = self._accepted(f"list {what}", self._ask("GET", f"/{what}", f"list {what}", query=page))
            yield from answer.get(what) or ()
            token = answer.get("next_page_token")
            if not token:
                return

    # One request

    def _accepted(self, what: str, answer: JsonBody | Refusal) -> JsonBody:
        if isinstance(answer, Refusal):
            raise self._refused(what, answer)
        return answer

    def _refused(self, what: str, answer: Refusal) -> CatalogError:
        remedies = {
            401: "Check the token of the catalog: storage option unity_catalog_token, or UNITY_CATALOG_TOKEN",
            403: "Ask the owner of the table, or an administrator of the catalog, for the right to do this",
            404: "Check the name",
        }
        passing = {"retryable": True} if is_passing_status(answer.status) else {}
        return CatalogError(
            f"Cannot {what}",
            cause=f"{answer.kind} ({answer.status}) from the catalog: {answer.message}",
            remedy=remedies.get(answer.status),
            status=answer.status,
            kind=answer.kind,
            **passing,
        )

    def _ask(
        self,
        method: str,
        path: str,
        what: str,
        *,
        query: Mapping[str, str] | None = None,
        body: JsonBody | None = None,
        is_single: bool = False,
    ) -> JsonBody | Refusal:
        """Send one request, and repeat it unchanged while the server fails temporarily.

        Raises:
            StorageOutcomeUnknownError: A request that changes something may have taken effect.
            CatalogError: The server cannot be reached.
        """
        url = f"{self.settings.uri}{path}" + (f"?{urlencode(query)}" if query else "")
        content = None if body is None else orjson.dumps(body)
        patience, is_unknown, has_new_token = Patience(), False, False
        while True:
            try:
                answer = self._send(method, url, content, _METRICS_TIMEOUT_S if is_single else _TIMEOUT_S)
            except (OSError, http.client.HTTPException) as e:
                # The outcome of a request that was never sent is certain.
                is_unknown |= not isinstance(getattr(e, "reason", e), ConnectionRefusedError)
                failure = f"{type(e).__name__}: {e}"
            else:
                if not isinstance(answer, Refusal):
                    return answer
                if answer.status == 401 and self.settings.token_uri and not has_new_token:
                    has_new_token = True
                    _tokens.pop(self.settings, None)
                    continue
                is_full = answer.kind == EXHAUSTED
                if is_full or not is_passing_status(answer.status):
                    # This answer is certain, but the outcome of an earlier attempt is unknown. A conflict proves that
                    # no attempt succeeded.
                    if is_unknown and answer.status != 409 and method == "POST" and not is_full:
                        raise _unknown(what, answer.message)
                    return answer
                is_unknown |= answer.status != 429
                failure = f"{answer.kind} ({answer.status}): {answer.message}"
            if is_single or not patience.wait():
                if method == "POST" and is_unknown:
                    raise _unknown(what, failure)
                raise CatalogError(
                    f"Cannot {what}",
                    cause=f"The catalog at {self.settings.uri} cannot be reached or fails: {failure}",
                    remedy="Try again when the catalog is available. `retry_seconds` sets how long a request is "
                    "repeated",
                    retryable=True,
                )
            _LOGGER.debug("Trying again to %s: %s", what, failure)

    def _send(self, method: str, url: str, content: bytes | None, timeout_s: float) -> JsonBody | Refusal:
        headers = {"Accept": "application/json", "User-Agent": "delta-orch"}
        if content is not None:
            headers["Content-Type"] = "application/json"
        token = self.settings.token if self.settings.token_uri is None else self._oauth_token(timeout_s)
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return _answer_to(urllib.request.Request(url, content, headers, method=method), timeout_s)

    def _oauth_token(self, timeout_s: float) -> str:
        """Return a token for the client's id and secret. It is cached until shortly before it expires."""
        settings = self.settings
        token, until = _tokens.get(settings, ("", 0.0))
        if time.time() < until:
            return token
        login = base64.b64encode(f"{settings.client_id}:{settings.client_secret}".encode()).decode()
        hide_in_logs([login])
        request = urllib.request.Request(
            str(settings.token_uri),
            urlencode({"grant_type": "client_credentials", "scope": "all-apis"}).encode(),
            {"Authorization": f"Basic {login}", "Content-Type": "application/x-www-form-urlencoded"},
        )
        answer = _answer_to(request, timeout_s)
        if isinstance(answer, Refusal):
            raise CatalogError(
                "No token for the catalog could be obtained",
                cause=f"{settings.token_uri} answered {answer.status}",
                remedy="Check the client's id and secret",
            )
        token = str(answer["access_token"])
        hide_in_logs([token])
        lifetime_s = float(answer.get("expires_in") or 0)
        _tokens[settings] = token, time.time() + max(0.0, lifetime_s - min(_EARLY_S, lifetime_s / 5))
        return token


def _unknown(what: str, failure: str) -> StorageOutcomeUnknownError:
    return StorageOutcomeUnknownError(
        f"It is unknown whether the catalog did it: the attempt to {what} failed", cause=failure, retryable=True
    )


def _answer_to(request: urllib.request.Request, timeout_s: float) -> JsonBody | Refusal:
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=timeout_s) as response:
            return _json(response.read()) or {}
    except urllib.error.HTTPError as e:
        with e:
            body = _json(e.read()) or {}
        if isinstance(error := body.get("error"), Mapping):
            return Refusal(e.code, str(error.get("type")), str(error.get("message")))
        if "error_code" in body:  # This response comes from the older API.
            return Refusal(e.code, str(body["error_code"]), str(body.get("message")))
        return Refusal(e.code, f"HTTP {e.code}", str(e.reason))


def _json(content: bytes) -> dict[str, Any] | None:
    try:
        parsed = orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _schema_path(name: TableName) -> str:
    return f"{_DELTA}/v1/catalogs/{quote(name.catalog, safe='')}/schemas/{quote(name.schema, safe='')}"


def _table_path(name: TableName) -> str:
    return f"{_schema_path(name)}/tables/{quote(name.table, safe='')}"
