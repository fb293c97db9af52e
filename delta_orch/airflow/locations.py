"""Where a table is: paths, URIs, assets and names below a connection's root, each taken as it is meant or refused.

Importing this module loads nothing of Airflow.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote, unquote, urlsplit

from delta_orch.catalog.names import location_below
from delta_orch.errors import InvalidRequestError
from delta_orch.redaction import redacted

if TYPE_CHECKING:
    from airflow.sdk import Asset, ObjectStoragePath

TableLocation: TypeAlias = "str | os.PathLike[str] | ObjectStoragePath | Asset"
"""What an operator takes as a table's location."""

ASSET_SCHEME = "delta"
# What may follow `{scheme}:`, and stays as it is in a URI's path.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:(?=/)")
_PATH_CHARACTERS = "/:@!$&'()*+,;=~-._"


def location_text(location: object) -> str:
    """The text of a location: a `Path` as its path, an `ObjectStoragePath` and an `Asset` as their URI.

    Raises:
        InvalidRequestError: It is something else, or an `ObjectStoragePath` names a connection of its own.
    """
    if isinstance(location, str):
        return location
    # Airflow 3.1 keeps it among the options.
    options = getattr(location, "storage_options", None)
    conn_id = getattr(location, "conn_id", None) or (options.get("conn_id") if isinstance(options, Mapping) else None)
    if conn_id is not None:
        raise InvalidRequestError(
            f"The location {location} names the connection {conn_id}",
            cause="Storage options come from a connection of type delta",
            remedy="Leave the connection out of the location, and pass delta_conn_id",
        )
    # In Airflow 3.1 it is a `PathLike`, too, with another text.
    if hasattr(location, "fs") and hasattr(location, "as_uri"):
        # The path of a local one is as it is, not encoded.
        return str(location.path) if location.protocol in ("file", "local") else str(location)  # type: ignore[attr-defined]
    if isinstance(location, os.PathLike):
        path: str | bytes = os.fspath(location)
        return os.fsdecode(path)
    uri = getattr(location, "uri", None)
    if isinstance(uri, str) and hasattr(location, "name"):
        return uri
    raise InvalidRequestError(
        f"A {type(location).__name__} is not a location of a table",
        remedy="Pass a URI, a path, an ObjectStoragePath or an Asset",
    )


def checked_location(location: object) -> object:
    """A location as an operator keeps it when the DAG is parsed: text, which may be a template, or a task's output.

    Raises:
        InvalidRequestError: As `location_text`; or the text, if it is not a template, cannot name a table or carries a
            login.
    """
    if is_template(location):
        return location
    text = location_text(location)
    if not is_template(text):
        ensure_location(text)
        _ensure_no_login(text)
    return text


def _ensure_no_login(location: str) -> None:
    text = table_uri_of_asset(location) if is_asset_uri(location) else location
    if "@" in text and redacted(text) != text:
        raise InvalidRequestError(
            f"The table URI {redacted(text)} carries a login",
            cause="Airflow keeps in its database what a task is given, and shows it",
            remedy="Give the location alone, and the keys as storage options of the connection",
        )


def is_template(value: object) -> bool:
    """Whether a value is known only when the task runs: a template, or the output of another task."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(is_template(part) for part in value.values())
    if isinstance(value, list | tuple):
        return any(is_template(part) for part in value)
    return is_output(value)


def is_output(value: object) -> bool:
    """Whether a value is the output of a task."""
    return hasattr(type(value), "iter_references")


def ensure_location(text: str) -> None:
    """Fail on a text that readers of paths or URIs would change.

    Raises:
        InvalidRequestError: It is empty or has a part that a table's location cannot have.
    """
    if not text.strip() or "\0" in text:
        raise InvalidRequestError("The table URI is empty", remedy="Pass a URI, a path or a name")
    if is_template(text):
        raise InvalidRequestError(
            f"The table URI {text!r} is a template that has not been rendered",
            cause="It was rendered from a value that is a template itself",
            remedy="Refer to the value that the inner template names",
        )
    if is_asset_uri(text):
        table_uri_of_asset(text)
    elif _SCHEME.match(text):
        _ensure_plain_uri(text)
    elif not text.startswith("/"):
        _ensure_name(text)


def absolute_location(text: str, root: str | None = None, conn_id: str = "") -> str:
    """The location that `DeltaTable` opens; a relative one is below `root`.

    Raises:
        InvalidRequestError: As `ensure_location`; or it is relative, and there is no root.
    """
    ensure_location(text)
    if is_asset_uri(text):
        return table_uri_of_asset(text)
    if text.startswith("/") or _SCHEME.match(text):
        return text
    if root is None:
        raise InvalidRequestError(
            f"The table URI {text!r} is relative, and "
            + (f"connection {conn_id} names no table root" if conn_id else "nothing says to what"),
            cause="A worker and a triggerer run in other working directories than the DAG author",
            remedy="Pass an absolute path or URI, or set table_root in the connection's extra",
        )
    return location_below(absolute_location(root), *text.split("/"))


def asset_uri_of_table(table_uri: object) -> str:
    """`/data/t` → `delta://file/data/t`, `s3://lake/t` → `delta://s3/lake/t`.

    Characters of a path that a URI gives a meaning (`#`, `?`, `%`, spaces) are percent-encoded, so that Airflow, which
    cuts fragments and sorts queries, leaves the address as it is.

    Raises:
        InvalidRequestError: The location is relative, or a URI with a query or a fragment.
    """
    text = location_text(table_uri)
    ensure_location(text)
    if is_asset_uri(text):
        return text.rstrip("/")
    if text.startswith("/"):
        return f"{ASSET_SCHEME}://file{quote(text.rstrip('/'), safe=_PATH_CHARACTERS)}"
    scheme, colon, rest = text.partition(":")
    if not colon or not rest.strip("/"):
        raise InvalidRequestError(
            f"{text!r} is not an absolute table URI",
            cause="An asset is known to all DAGs, so its address cannot depend on a connection or a working directory",
            remedy="Pass a URI with a scheme, or a path starting with /",
        )
    authority, _, path = rest.removeprefix("//").partition("/") if rest.startswith("//") else ("", "", rest)
    if scheme.lower() in ("file", "local"):
        if authority not in ("", "localhost"):
            raise InvalidRequestError(f"{text!r} is on another machine", remedy="Write file:///path for a local path")
        return asset_uri_of_table("/" + unquote(path.lstrip("/")))
    # A user part with a password is a credential; without one it is a name, as the container in `abfss://c@account`.
    user, at, host = authority.rpartition("@")
    authority = host if at and ":" in user else authority
    joined = "/".join(part for part in (authority, quote(path.strip("/"), safe=_PATH_CHARACTERS)) if part)
    return f"{ASSET_SCHEME}://{scheme.lower()}/{joined}"


def is_asset_uri(uri: str) -> bool:
    return uri.startswith(f"{ASSET_SCHEME}://")


def is_same_table(one: object, other: object) -> bool:
    """Whether two locations, as `checked_location` gives them, are known to be one table."""
    if is_template(one) or is_template(other):
        return False
    texts = [str(location).rstrip("/") for location in (one, other)]
    if all(text.startswith("/") or "://" in text or text.startswith("file:/") for text in texts):
        texts = [asset_uri_of_table(text) for text in texts]
    return texts[0] == texts[1]


def table_uri_of_asset(asset_uri: str) -> str:
    """The inverse of `asset_uri_of_table`; `delta:///data/t` stands for `/data/t`.

    Raises:
        InvalidRequestError: It names no table, or has a query or a fragment.
    """
    parts = urlsplit(asset_uri)
    if not parts.path.strip("/"):
        raise InvalidRequestError(
            f"{asset_uri!r} names no table", remedy="Write delta://{scheme}/{path}, e.g. delta://s3/lake/flights"
        )
    if "?" in asset_uri or "#" in asset_uri:
        raise InvalidRequestError(
            f"{asset_uri.partition('?')[0].partition('#')[0]!r} is followed by a query or a fragment",
            cause="Airflow drops fragments and sorts queries, and a table's address has neither",
            remedy="Percent-encode ? and # that belong to the path, or use delta_table_asset",
        )
    path = unquote(parts.path.rstrip("/"))
    return path if parts.netloc in ("", "file") else f"{parts.netloc}://{path.lstrip('/')}"


def _ensure_plain_uri(text: str) -> None:
    if not text.partition(":")[2].strip("/"):
        raise InvalidRequestError(f"{text!r} names no table", remedy="Write the path of the table after the scheme")
    if text.startswith(("file:", "local:")):
        return  # `?` and `#` are characters of a path there.
    if "?" in text or "#" in text:
        from delta_orch.storage.storage_options import public_uri

        raise InvalidRequestError(
            f"The table URI {public_uri(text)} is followed by a query or a fragment",
            remedy="Give the location alone, and everything else as storage options of the connection",
        )


def _ensure_name(text: str) -> None:
    parts = text.split("/")
    if ":" in parts[0]:
        raise InvalidRequestError(
            f"{text!r} is neither a URI nor a name below a root",
            cause="A URI has a slash after its scheme, and a name has no colon in its first part",
            remedy="Write scheme://… or file:///…, or ./name for a name with a colon",
        )
    if ".." in parts:
        raise InvalidRequestError(
            f"{text!r} leads out of the table root", remedy="Pass an absolute path or URI, or a name without .."
        )
    if "\\" in parts[0]:
        raise InvalidRequestError(f"{text!r} is a path of another system", remedy="Separate its parts by /")
