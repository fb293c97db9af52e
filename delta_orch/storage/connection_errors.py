"""What an error of the HTTP libraries says of the connection."""

from __future__ import annotations


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
