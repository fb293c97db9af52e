"""Redaction of credentials in the logs of the stores' libraries.

At DEBUG level, the clients of the clouds log the requests that they sign, with session tokens. Secrets are removed when
a log record is made, before any handler gets it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from delta_orch.redaction import hide, is_hidden, redacted, without_secrets

_LIBRARIES = frozenset(
    {"adlfs", "aiobotocore", "aiohttp", "asyncio", "azure", "botocore", "fsspec", "gcsfs", "google", "msal", "requests",
     "s3fs", "urllib3"}
)  # fmt: skip
"""The first part of the names of the loggers that get requests, options or answers."""


class _WithoutSecrets:
    """A factory of log records. It makes records by `make`, and redacts those of the libraries."""

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self._make = make

    def __call__(self, *arguments: Any, **named: Any) -> logging.LogRecord:
        record = self._make(*arguments, **named)
        # `logging.makeLogRecord` makes a record without a name first.
        if (record.name or "").partition(".")[0] not in _LIBRARIES:
            return record
        try:
            message = record.getMessage()
        except Exception as e:  # noqa: BLE001 (a log call with wrong arguments must not end a request)
            record.msg, record.args = f"A message of {record.name} cannot be written: {type(e).__name__}", ()
            return record
        if (shown := without_secrets(message)) != message:
            record.msg, record.args = shown, ()
        if record.exc_info:
            text = logging.Formatter().formatException(record.exc_info)
            if (shown := without_secrets(text)) != text:
                record.exc_info, record.exc_text = None, shown
        return record


def hide_in_logs(secrets: Iterable[str]) -> None:
    """Redact these values in errors, and in the logs of the stores' libraries, from now on in this process.

    The logs also lose values that headers and JSON name as secret, for example the session token of the environment.
    """
    for secret in secrets:
        if not is_hidden(secret):
            hide(secret)
    make = logging.getLogRecordFactory()
    if not isinstance(make, _WithoutSecrets):
        logging.setLogRecordFactory(_WithoutSecrets(make))


def shows_secret(error: BaseException) -> bool:
    """Whether the text of an error, or of its causes and contexts, holds a value that must not be shown."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        text = f"{current} {current!r} {current.args!r}"
        if without_secrets(text) != text or redacted(text) != text:
            return True
        pending += [current.__cause__, current.__context__]
    return False
