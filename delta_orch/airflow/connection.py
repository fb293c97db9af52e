"""What an Airflow connection of type `delta` says: a root, storage options, and which of their values are secret."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from delta_orch.errors import InvalidRequestError
from delta_orch.redaction import secrets_in

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
    said = [text for value in (root, page, *options.values(), *shown.values()) for text in _texts(value)]
    secrets.update(secret for text in said for secret in secrets_in(text))
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
