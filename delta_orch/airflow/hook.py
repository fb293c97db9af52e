"""`DeltaHook`: tables by URI, with the storage options of an Airflow connection.

`read_settings` reads the extra of the connection: a root, storage options, and which of their values are secret.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from delta_orch.airflow.locations import absolute_location, location_text
from delta_orch.airflow.provider import CONNECTION_TYPE, INTEGRATION
from delta_orch.airflow.versions import (
    AirflowNotFoundException,
    BaseHook,
    amask_secret,
    connection_in_loop,
    mask_secret,
)
from delta_orch.errors import DeltaError, InvalidRequestError
from delta_orch.redaction import secrets_in

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from delta_orch.airflow.locations import TableLocation
    from delta_orch.delta_table import DeltaTable, TableSnapshot


SECRET_OPTIONS = "secret_storage_options"
"""The field of `extra` for secrets. Airflow masks what is named like this: in the form, the REST API and the CLI."""

_SECRET_WORDS = ("secret", "password", "passwd", "passphrase", "token", "key", "credential", "sas", "signature",
                 "connection_string", "service_account")  # fmt: skip
# Of Airflow's default `sensitive_var_conn_names`, those that storage options are named with.
_HIDDEN_BY_AIRFLOW = ("access_key", "connection_string", "passphrase", "password", "private_key", "secret", "token",
                      "service_account")  # fmt: skip
_JSON = str | int | float | bool | list["_JSON"] | dict[str, "_JSON"] | None


@dataclass(frozen=True, slots=True, repr=False)
class ConnectionSettings:
    """The extra of a connection.

    Attributes:
        root: The directory below which relative table names are looked up, None without one.
        options: Storage options, secret ones included.
        secrets: Every text among them that must not be shown.
        exposed: Names of secret options that stand where Airflow shows them.
        table_page: The URL of a table's page, with `{table_uri}` and `{version}`.
    """

    root: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    secrets: frozenset[str] = frozenset()
    exposed: tuple[str, ...] = ()
    table_page: str | None = None


def read_settings(conn_id: str, extra: str | None) -> ConnectionSettings:
    """Read `extra`: storage options as they are, and those in the objects `storage_options` and
    `secret_storage_options`, which may be JSON text.

    Raises:
        InvalidRequestError: The extra, or one of the two, is not a JSON object, or an option is given twice. The error
            quotes no value.
    """
    options = _parse_object(extra, f"extra of connection {conn_id}")
    root, page = options.pop("table_root", None), options.pop("table_page", None)
    for name, value in (("table_root", root), ("table_page", page)):
        if value is not None and not isinstance(value, str):
            raise InvalidRequestError(f"The {name} of connection {conn_id} is not a text", remedy="Write a URI or path")
    shown = _parse_object(options.pop("storage_options", None), f"storage_options in the extra of connection {conn_id}")
    hidden = _parse_object(options.pop(SECRET_OPTIONS, None), f"{SECRET_OPTIONS} in the extra of connection {conn_id}")
    places: tuple[Mapping[str, _JSON], ...] = (options, shown, hidden)
    joined: dict[str, _JSON] = {}
    for place in places:
        if twice := [name for name in place if name in joined and joined[name] != place[name]]:
            raise InvalidRequestError(
                f"Connection {conn_id} gives the storage option {twice[0]} twice", remedy="Give it in one place"
            )
        joined.update(place)
    exposed = tuple(name for name in (*options, *shown) if _is_secret(name) and (name in shown or not _is_hidden(name)))
    secrets = {text for place in places[:2] for name, value in place.items() for text in _secrets_of(name, value)}
    secrets.update(text for value in hidden.values() for text in _texts(value))
    texts = [value if isinstance(value, str) and value else None for value in (root, page)]
    texts_to_search = [text for value in (root, page, *options.values(), *shown.values()) for text in _texts(value)]
    secrets.update(secret for text in texts_to_search for secret in secrets_in(text))
    return ConnectionSettings(texts[0], joined, frozenset(secrets), exposed, texts[1])  # type: ignore[arg-type]  # checked by the store


def secret_settings(settings: object) -> frozenset[str]:
    """The values of settings, or environment variables, that must not be shown, by their names."""
    if not isinstance(settings, Mapping):
        return frozenset()
    secrets = (text for name, value in settings.items() for text in _secrets_of(str(name), value))
    return frozenset(text for text in secrets if text.lower() not in ("true", "false"))


def _is_secret(name: str) -> bool:
    return any(word in name.lower() for word in _SECRET_WORDS)


def _is_hidden(name: str) -> bool:
    return any(word in name.lower() for word in _HIDDEN_BY_AIRFLOW)


def _secrets_of(name: str, value: _JSON) -> Iterator[str]:
    if _is_secret(name):
        yield from _texts(value)
    elif isinstance(parsed := _parsed(value), dict):
        for inner, nested in parsed.items():
            yield from _secrets_of(inner, nested)


def _texts(value: _JSON) -> Iterator[str]:
    """A value as it may be shown: whole, and the parts of a JSON text, a connection string or a signed query."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)
    elif isinstance(value, str) and value:
        yield value
        if not isinstance(parsed := _parsed(value), str):
            yield from _texts(parsed)
        for name, _, part in (pair.partition("=") for pair in re.split("[;&?]", value)):
            if part and (_is_secret(name) or name == "sig"):
                yield part


def _parsed(value: _JSON) -> _JSON:
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    try:
        parsed: _JSON = json.loads(value)
    except ValueError:
        return value
    return parsed


def _parse_object(value: _JSON, what: str) -> dict[str, _JSON]:
    """A JSON object, or the text of one. The error does not quote it: it may hold secrets."""
    if value is None or value == "":
        return {}
    parsed: _JSON = value
    if isinstance(value, str):
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = None
    if not isinstance(parsed, dict):
        raise InvalidRequestError(
            f"The {what} is not a JSON object", remedy='Write storage options as {"name": "value", …}'
        )
    return parsed


TableReference: TypeAlias = "TableLocation | Mapping[str, object]"
"""A table, or with `table_uri` and `version` (as a task's XCom has them) one version of it."""

logger = logging.getLogger(__name__)

DEFAULT_CONN_ID = "delta_default"

_TEST_S = 5.0
"""How long the test of a connection asks a store again that cannot be reached. The form waits for it."""


# Not by context: threads of a function know no context of its task.
_pinned: dict[str, int] = {}


@contextmanager
def pinned_versions(versions: Mapping[str, int]) -> Iterator[None]:
    """Let hooks of this process open these tables at these versions, where a reference names none.

    Args:
        versions: Table URI → version.
    """
    _pinned.update(versions)
    try:
        yield
    finally:
        for uri in versions:
            _pinned.pop(uri, None)


class DeltaHook(BaseHook):  # type: ignore[misc]
    """Opens Delta tables.

    The connection's `extra` holds the storage options: plainly (`{"region": "…"}`), in an object `storage_options`,
    and, where they are secret, in `secret_storage_options`, which Airflow masks in the form and the REST API. The two
    objects may be JSON text. `table_root` is the directory below which relative table URIs are looked up; `table_page`
    the URL of a table's page, for the link of tasks. Every secret
    value is registered with Airflow's masker; options appear in no XCom, trigger or rendered template.

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
        self._table_page: str | None = None

    def get_conn(self) -> DeltaHook:
        """The hook itself: a table is opened anew for each use, nothing stays connected."""
        return self

    def table(self, table_uri: TableLocation) -> DeltaTable:
        """The table at a URI, a path, an asset (or its `delta://` URI), or a name below the connection's `table_root`.

        Nothing is read yet; a location without a table is not an error here.

        Raises:
            InvalidRequestError: The connection's extra cannot be understood, `table_uri` names no location, or it is
                relative while the connection names no `table_root`.
            AirflowNotFoundException: There is no such connection (other than the default one).
        """
        self._connected()
        return self._open(table_uri)

    async def async_table(self, table_uri: TableLocation) -> DeltaTable:
        """As `table`, for triggers: the connection is fetched without blocking the event loop."""
        if self._settings is None:
            settings = self._understood(await self._async_find_connection())
            for secret in settings.secrets:
                await amask_secret(secret)
            self._take(settings)
        return self._open(table_uri)

    def storage_options(self) -> dict[str, str] | None:
        """The options for another table of the same connection."""
        return self._connected()[1] or None

    def table_page(self) -> str | None:
        """The URL of a table's page, with `{table_uri}` and `{version}` in it, where the connection has one."""
        self._connected()
        return self._table_page

    def table_of(self, reference: TableReference) -> DeltaTable:
        """The table of a reference, see `snapshot`."""
        return self.table(_named(reference))

    def snapshot(self, reference: TableReference) -> TableSnapshot:
        """A version of a table: the one that a reference pins, else the newest.

        Args:
            reference: What `table` takes; or `{"table_uri": …, "version": …}`, the XCom of a task of this package. Of
                one with `staged`, the version that publishing would make. With `table_id`, only of the table with it.

        Raises:
            InvalidRequestError: As `table`, or the reference has no `table_uri`; or its `table_id` is of another table.
            DeltaError: As `DeltaTable.snapshot`.
        """
        version, staged = version_of(reference)
        self._connected()
        table = self._open(_named(reference))
        if staged is not None:
            return table.staged(staged).snapshot()
        snapshot = table.snapshot(version=_pinned.get(table.uri) if version is None else version)
        _ensure_same_table(reference, snapshot, table.uri)
        return snapshot

    def test_connection(self) -> tuple[bool, str]:
        """Whether the settings can be understood and the `table_root` is there and can be listed. A store that is out
        of reach is told of after seconds, whatever `retry_seconds` is."""
        from delta_orch.catalog.discovery import list_tables
        from delta_orch.catalog.names import is_catalog_uri
        from delta_orch.storage.open import open_store
        from delta_orch.storage.patience import waiting_at_most

        try:
            settings = self._understood(self.get_connection(self.delta_conn_id))
            self._mask(settings)
            if settings.root is None:
                return True, "The connection is well formed. It names no table root, so no storage was contacted."
            root = absolute_location(settings.root)
            if is_catalog_uri(root):
                with waiting_at_most(_TEST_S):
                    next(list_tables(root, settings.options), None)
                return True, f"{settings.root} can be listed."
            store = open_store(root, settings.options)
            with waiting_at_most(_TEST_S):
                is_empty = next(iter(store.list_from("")), None) is None
            if is_empty and not _is_directory(settings.root):
                return False, f"{store.uri} was reached, but nothing is there."
        except DeltaError as error:
            return False, f"{error.code}: {error}"
        return True, f"{settings.root} can be listed."

    def _connected(self) -> tuple[str | None, dict[str, str]]:
        if self._settings is None:
            settings = self._understood(self._find_connection())
            self._mask(settings)
            self._take(settings)
        assert self._settings is not None
        return self._settings

    def _take(self, settings: ConnectionSettings) -> None:
        self._settings, self._table_page = (settings.root, dict(settings.options)), settings.table_page

    def _find_connection(self) -> Connection | None:
        try:
            return self.get_connection(self.delta_conn_id)
        except AirflowNotFoundException:
            if not self._may_be_missing():
                raise
            return None

    async def _async_find_connection(self) -> Connection | None:
        try:
            return await connection_in_loop(self, self.delta_conn_id)
        except AirflowNotFoundException:
            if not self._may_be_missing():
                raise
            return None

    def _may_be_missing(self) -> bool:
        # Before 3.2 Airflow also says of a connection that it cannot read that there is none.
        is_there = f"AIRFLOW_CONN_{DEFAULT_CONN_ID.upper()}" in os.environ
        return self.delta_conn_id == DEFAULT_CONN_ID and not is_there

    def _understood(self, connection: Connection | None) -> ConnectionSettings:
        if connection is None:
            return ConnectionSettings()
        fields = ("host", "schema", "login", "password", "port")
        if unused := [name for name in fields if getattr(connection, name, None)]:
            raise InvalidRequestError(
                f"Connection {self.delta_conn_id} has a {' and a '.join(unused)}",
                cause="A connection of type delta is read by its extra only",
                remedy="Give storage options in the extra, secret ones in secret_storage_options there",
            )
        settings = read_settings(self.delta_conn_id, connection.extra)
        if settings.exposed:
            logger.warning(
                "Airflow shows the storage options %s of connection %s; give them in secret_storage_options",
                ", ".join(settings.exposed),
                self.delta_conn_id,
            )
        return settings

    def _mask(self, settings: ConnectionSettings) -> None:
        for secret in settings.secrets:
            mask_secret(secret)

    def _open(self, table_uri: TableLocation) -> DeltaTable:
        from delta_orch.delta_table import DeltaTable

        assert self._settings is not None
        _, options = self._settings
        return DeltaTable(self._resolve(location_text(table_uri)), storage_options=options or None)

    def _resolve(self, table_uri: str) -> str:
        assert self._settings is not None
        return absolute_location(table_uri, self._settings[0], self.delta_conn_id)


def version_of(reference: TableReference) -> tuple[int | None, str | None]:
    """The version that a reference pins, or the staged write.

    Raises:
        InvalidRequestError: It names no table, or no version.
    """
    pinned = reference if isinstance(reference, Mapping) else {"table_uri": ""}
    version, staged = pinned.get("version"), pinned.get("staged")
    if (
        not isinstance(pinned.get("table_uri"), str)
        or not (version is None or isinstance(version, int))
        or isinstance(version, bool)
        or (version is not None and version < 0)
        or not (staged is None or isinstance(staged, str))
    ):
        raise _no_table()
    return version, staged


def _named(reference: TableReference) -> TableLocation:
    """The table that a reference is about."""
    if not isinstance(reference, Mapping):
        return reference
    table_uri = reference.get("table_uri")
    if not isinstance(table_uri, str):
        raise _no_table()
    return table_uri


def _ensure_same_table(reference: TableReference, snapshot: TableSnapshot, uri: str) -> None:
    """A table that was made anew at the place has such a version, too, with other rows."""
    table_id = reference.get("table_id") if isinstance(reference, Mapping) else None
    if table_id is not None and table_id != snapshot.metadata.id:
        raise InvalidRequestError(
            f"The table at {uri} is not the one that the reference names",
            cause=f"It was dropped and created again: its id is {snapshot.metadata.id}, and was {table_id}",
            remedy="Clear the task that made the reference, so that it runs again",
        )


def _no_table() -> InvalidRequestError:
    return InvalidRequestError(
        "The reference names no table", remedy='Pass {"table_uri": "…", "version": 7}, or a location'
    )


def _is_directory(root: str) -> bool:
    """An object store has no empty directories; a file system does."""
    from pathlib import Path

    return root.startswith("/") and Path(root).is_dir()
