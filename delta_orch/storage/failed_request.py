"""What a failed request to an object store means."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class FailureKind(Enum):
    """What a failed request left behind."""

    MISSING = "there is no such object"
    EXISTS = "the name is taken; nothing was written"
    BUSY = "nothing was done, and the store asks to try again"
    REFUSED = "nothing was done"
    UNKNOWN = "the request may have taken effect"


class Failure(NamedTuple):
    """A failed request in the words of a user. The texts hold nothing secret."""

    kind: FailureKind
    cause: str
    remedy: str | None = None
    is_passing: bool = False
    """Whether the same request may succeed a little later, without anybody changing anything."""


def busy(cause: str) -> Failure:
    """The failure of a request that the store has not looked at."""
    return Failure(FailureKind.BUSY, cause, "Try again when there are fewer requests", is_passing=True)


# What an error of the HTTP libraries says of the connection.


def never_connected(error: BaseException) -> bool:
    """Whether there was no connection over which the request could have gone. False where that is not sure."""
    import requests
    from urllib3.exceptions import ConnectTimeoutError, MaxRetryError, NewConnectionError

    if isinstance(error, requests.exceptions.ConnectTimeout | requests.exceptions.SSLError):
        return True
    inner = error.args[0] if isinstance(error, requests.ConnectionError) and error.args else error
    reason = inner.reason if isinstance(inner, MaxRetryError) else inner
    return isinstance(reason, NewConnectionError | ConnectTimeoutError)


def may_connect_later(error: BaseException) -> bool:
    """Of an error that `never_connected` knows: whether there may be a connection a little later. A wrong certificate
    stays wrong, and a name that its server denies stays unknown."""
    import requests

    text = str(error)
    is_unknown = any(sign in text for sign in ("Name or service not known", "nodename nor servname", "[Errno -2]"))
    return not is_unknown and not isinstance(error, requests.exceptions.SSLError) and "CERTIFICATE" not in text
