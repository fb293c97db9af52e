"""Storage options with credentials of the catalog, which are renewed before they expire."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from delta_orch.catalog.client import CatalogClient, Operation
from delta_orch.catalog.entry import StagingTable, VendedCredential
from delta_orch.catalog.names import TableName
from delta_orch.errors import CatalogError
from delta_orch.storage.storage_options import OptionsSource, StoreKind, StoreOptions, parse_options

_NAMES: Mapping[str, str] = {
    "s3.access-key-id": "key",
    "s3.secret-access-key": "secret",
    "s3.session-token": "token",
    "azure.sas-token": "sas_token",
    "gcs.oauth-token": "token",
}
_EARLY_MS = 300_000


class VendedOptions(OptionsSource):
    """The options of one table's store. Vended credentials are never pickled. Another process requests its own.

    Args:
        given: The user's own options for the store. They take part unchanged.
        staging: The table that is being created. Its credentials are for reading and writing.
    """

    def __init__(
        self,
        client: CatalogClient,
        name: TableName,
        location: str,
        kind: StoreKind,
        given: Mapping[str, object],
        staging: StagingTable | None = None,
    ) -> None:
        self._client, self._name, self._location, self._kind = client, name, location, kind
        self._given = dict(given)
        self._table_id = None if staging is None else staging.table_id
        self._operation: Operation = "READ"
        self._options: StoreOptions | None = None
        self._renew_at_ms: float = 0
        if staging is not None:
            self._take(staging.credentials)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_options": None, "_renew_at_ms": 0}

    def for_writing(self) -> None:
        """Request credentials for writing from now on."""
        if self._operation == "READ":
            self._operation = "READ_WRITE"
            if self._table_id is None:
                self._options = None

    def current(self) -> StoreOptions:
        """Return the current options. Raises CatalogError."""
        options = self._options
        if options is None or time.time() * 1000 >= self._renew_at_ms:
            if self._table_id is None:
                credentials = self._client.table_credentials(self._name, self._operation)
            else:
                credentials = self._client.staging_credentials(self._table_id)
            options = self._take(credentials)
        return options

    def _take(self, credentials: list[VendedCredential] | tuple[VendedCredential, ...]) -> StoreOptions:
        fitting = [c for c in credentials if f"{self._location}/".startswith(f"{c.prefix}/")]
        if not fitting:
            raise CatalogError(
                f"The catalog has no credentials for the location of {self._name.uri}",
                cause=f"None of {len(credentials)} is for {self._location}",
                remedy="Ask the administrators of the catalog for an external location or a storage credential",
            )
        chosen = max(fitting, key=lambda c: len(c.prefix))
        vended = {_NAMES[key]: value for key, value in chosen.config.items() if key in _NAMES}
        options = parse_options(self._kind, {**self._given, **vended})
        now_ms = time.time() * 1000
        ends_ms = float("inf") if chosen.expires_ms is None else float(chosen.expires_ms)
        self._renew_at_ms = ends_ms - min(_EARLY_MS, max(0.0, ends_ms - now_ms) / 5)
        self._options = options
        return options
