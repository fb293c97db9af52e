"""`DeltaHook`: tables by URI, with the storage options of an Airflow connection."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from delta_orch.airflow.assets import is_asset_uri, table_uri_of_asset
from delta_orch.airflow.provider import CONNECTION_TYPE, INTEGRATION
from delta_orch.errors import DeltaError, InvalidRequestError

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from delta_orch.delta_table import DeltaTable

DEFAULT_CONN_ID = "delta_default"


class DeltaHook(BaseHook):  # type: ignore[misc]
    """Opens Delta tables.

    The connection's `extra` holds the storage options, plainly (`{"region": "…"}`) or, to keep them out of sight in the
    form, as a JSON object under `storage_options`; `table_root` is the directory below which relative table URIs are
    looked up. Options are never logged and appear in no XCom, trigger or rendered template.

    Args:
        delta_conn_id: A connection of type `delta`. The default one need not exist: tables are then opened without
            options, which is enough for local paths.
    """

    conn_name_attr = "delta_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = CONNECTION_TYPE
    hook_name = INTEGRATION

    def __init__(self, delta_conn_id: str = DEFAULT_CONN_ID, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.delta_conn_id = delta_conn_id
        self._settings: tuple[str | None, dict[str, str]] | None = None

    def get_conn(self) -> DeltaHook:
        """The hook itself: a table is opened anew for each use, nothing stays connected."""
        return self

    def table(self, table_uri: str) -> DeltaTable:
        """The table at a URI, a path, a `delta://` asset URI, or a name below the connection's `table_root`.

        Nothing is read yet; a location without a table is not an error here.

        Raises:
            InvalidRequestError: The connection's extra cannot be understood, or `table_uri` is relative while the
                connection names no `table_root`.
            AirflowNotFoundException: There is no such connection (other than the default one).
        """
        if self._settings is None:
            self._settings = self._read_settings(self._find_connection())
        return self._open(table_uri)

    async def async_table(self, table_uri: str) -> DeltaTable:
        """As `table`, for triggers: the connection is fetched without blocking the event loop."""
        if self._settings is None:
            self._settings = self._read_settings(await self._async_find_connection())
        return self._open(table_uri)

    def test_connection(self) -> tuple[bool, str]:
        """Whether the settings can be understood and, where there is a `table_root`, listed."""
        from delta_orch.storage.open import open_store

        try:
            root, options = self._read_settings(self.get_connection(self.delta_conn_id))
            if root is None:
                return True, "The connection is well formed. It names no table root, so no storage was contacted."
            next(iter(open_store(root, options).list_from("")), None)
        except DeltaError as error:
            return False, f"{error.code}: {error}"
        return True, f"{root} can be listed."

    def _find_connection(self) -> Connection | None:
        try:
            return self.get_connection(self.delta_conn_id)
        except AirflowNotFoundException:
            if self.delta_conn_id != DEFAULT_CONN_ID:
                raise
            return None

    async def _async_find_connection(self) -> Connection | None:
        try:
            return await self.aget_connection(self.delta_conn_id)
        except AirflowNotFoundException:
            if self.delta_conn_id != DEFAULT_CONN_ID:
                raise
            return None

    def _read_settings(self, connection: Connection | None) -> tuple[str | None, dict[str, str]]:
        if connection is None:
            return None, {}
        _parse_object(connection.extra, f"extra of connection {self.delta_conn_id}")
        # Only `extra_dejson` registers the values with Airflow's secret masker.
        options = dict(connection.extra_dejson)
        root = options.pop("table_root", None)
        hidden = options.pop("storage_options", None)
        if not isinstance(hidden, Mapping):
            hidden = _parse_object(hidden, f"storage_options in the extra of connection {self.delta_conn_id}")
            _mask(hidden)
        return (root or None), {**options, **hidden}

    def _open(self, table_uri: str) -> DeltaTable:
        from delta_orch.delta_table import DeltaTable

        assert self._settings is not None
        root, options = self._settings
        return DeltaTable(self._resolve(table_uri, root), storage_options=options or None)

    def _resolve(self, table_uri: str, root: str | None) -> str:
        if not table_uri:
            raise InvalidRequestError("The table URI is empty", remedy="Pass a URI, a path or a name")
        if is_asset_uri(table_uri):
            return table_uri_of_asset(table_uri)
        if table_uri.startswith("/") or ":" in table_uri.split("/", 1)[0]:
            return table_uri
        if root is None:
            raise InvalidRequestError(
                f"The table URI {table_uri!r} is relative, and connection {self.delta_conn_id} names no table root",
                cause="A worker's and a triggerer's working directory are not the DAG author's",
                remedy="Pass an absolute path or URI, or set table_root in the connection's extra",
            )
        return f"{root.rstrip('/')}/{table_uri}"


def _parse_object(text: str | None, what: str) -> dict[str, str]:
    """A JSON object. The error does not quote `text`: it may hold secrets."""
    if not text:
        return {}
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise InvalidRequestError(
            f"The {what} is not a JSON object", remedy='Write storage options as {"name": "value", …}'
        )
    return parsed


def _mask(options: Mapping[str, object]) -> None:
    from airflow.sdk.log import mask_secret

    mask_secret(dict(options))
