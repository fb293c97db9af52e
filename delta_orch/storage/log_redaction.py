"""Credentials stay out of the logs of the stores' libraries.

At DEBUG level the SDKs log the requests they sign, including session tokens. They are removed from their log records
before any handler sees them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from delta_orch.redaction import hide, is_hidden, redacted, without_secrets

# Filters are not inherited: these are the loggers themselves that see requests, options or answers.
_LOGGERS = (
    "botocore.auth",
    "botocore.awsrequest",
    "botocore.client",
    "botocore.credentials",
    "botocore.endpoint",
    "botocore.hooks",
    "botocore.httpchecksum",
    "botocore.httpsession",
    "botocore.parsers",
    "botocore.regions",
    "botocore.retryhandler",
    "botocore.session",
    "botocore.tokens",
    "botocore.utils",
    "aiobotocore",
    "aiobotocore.credentials",
    "aiobotocore.endpoint",
    "aiobotocore.httpsession",
    "aiobotocore.parsers",
    "aiobotocore.regions",
    "aiobotocore.session",
    "aiobotocore.utils",
    "s3fs",
    "fsspec",
    "fsspec.asyn",
    "fsspec.cached",
    "fsspec.caching",
    "fsspec.http",
    "fsspec.reference",
    "fsspec.sftp",
    "gcsfs",
    "gcsfs.credentials",
    "google.auth._default",
    "google.auth.transport.requests",
    "google.cloud.storage",
    "google.cloud.storage.blob",
    "urllib3.connectionpool",
    "adlfs",
    "adlfs.spec",
    "azure.core.pipeline.policies.http_logging_policy",
    "azure.core.pipeline.policies._universal",
    "azure.core.pipeline.transport._aiohttp",
    "azure.identity",
    "azure.identity._internal.decorators",
    "azure.storage.blob",
    "azure.storage.blob._shared.authentication",
    "azure.storage.blob._shared.policies",
    "asyncio",
)


class _Redaction(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if (shown := without_secrets(message)) != message:
            record.msg, record.args = shown, ()
        if record.exc_info:
            text = logging.Formatter().formatException(record.exc_info)
            if (shown := without_secrets(text)) != text:
                record.exc_info, record.exc_text = None, shown
        return True


_REDACTION = _Redaction()


def hide_in_logs(secrets: Iterable[str]) -> None:
    """Cut these values out of what the stores' libraries log from now on, in this process, and out of errors; out
    of the logs also what headers and JSON name as secret, e.g. the session token of the environment."""
    for secret in secrets:
        if not is_hidden(secret):
            hide(secret)
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_REDACTION)


def shows_secret(error: BaseException) -> bool:
    """Whether the text of an error, or of those behind it, holds a value that must not be shown."""
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
