"""What the errors of `requests` prove: the SDKs of Google and Azure make their requests with it."""

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
