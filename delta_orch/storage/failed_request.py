"""The meaning of a failed request to an object store.

If the store answered, its status and its code decide. The codes of S3, GCS and Azure are in one table, because no code
has two meanings. Without an answer, the request may have taken effect, unless no connection was made.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from delta_orch.storage.patience import is_passing_status


class FailureKind(Enum):
    """The state after a failed request."""

    MISSING = "there is no such object"
    EXISTS = "an object of that name exists; nothing was written"
    BUSY = "nothing was changed, and the store asks to try again"
    REFUSED = "nothing was changed"
    UNKNOWN = "the request may have taken effect"


class Failure(NamedTuple):
    """A failed request in words for a user. The texts hold no secret."""

    kind: FailureKind
    cause: str
    remedy: str | None = None
    is_passing: bool = False
    """Whether the same request may succeed later without a change by a user."""


class Answer(NamedTuple):
    """The error answer of a store: the HTTP status, and the code of the store, or the status as text."""

    status: int
    code: str


MISSING = Failure(FailureKind.MISSING, "There is no such object")

_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound"})
_TAKEN = frozenset({"PreconditionFailed", "BlobAlreadyExists", "ConditionNotMet", "UnauthorizedBlobOverwrite"})
_BUSY = frozenset(
    {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests", "RequestTimeout",
     "ConditionalRequestConflict", "OperationAborted", "ServerBusy"}
)  # fmt: skip
_OTHER_REGION = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"})
_NO_CREDENTIALS = frozenset(
    {"ExpiredToken", "InvalidToken", "AuthorizationQueryParametersError", "TokenRefreshRequired", "InvalidSecurity"}
)
_NEVER_CONNECTED = frozenset(
    {"ConnectTimeout", "ConnectTimeoutError", "EndpointConnectionError", "NameResolutionError", "NewConnectionError",
     "ProxyConnectionError", "SSLError"}
)  # fmt: skip
"""Names of the classes of botocore, requests and urllib3 for a connection that was never made."""
_UNKNOWN_HOST = ("Name or service not known", "nodename nor servname", "[Errno -2]")


def missing_bucket(bucket: str) -> Failure:
    """The failure of a request to a bucket that does not exist."""
    return Failure(FailureKind.REFUSED, f"There is no bucket {bucket}", "Create it, or correct the location")


def failure_of_answer(store: str, bucket: str, answer: Answer, credentials_remedy: str) -> Failure:
    """Interpret an error answer.

    Args:
        store: The name of the store in messages.
        credentials_remedy: Where a user of this store sets credentials.
    """
    status, code = answer
    shown = f"{store} answers {code}"
    if code in _NO_BUCKET:
        return missing_bucket(bucket)
    if code in _TAKEN or status == 412:
        return Failure(FailureKind.EXISTS, "An object of that name exists")
    if code in _BUSY or status == 429:
        return Failure(FailureKind.BUSY, shown, "Try again when there are fewer requests", is_passing=True)
    if code in _OTHER_REGION or status == 301:
        return Failure(FailureKind.REFUSED, f"{shown}: the bucket is in another region", "Set the option region")
    if code in _NO_CREDENTIALS or status in (401, 403):
        cause = f"{shown}: the credentials are missing, wrong, expired, or not allowed to do this"
        return Failure(FailureKind.REFUSED, cause, credentials_remedy)
    if status == 404:
        return MISSING
    kind = FailureKind.UNKNOWN if status >= 500 or status == 408 else FailureKind.REFUSED
    return Failure(kind, shown, is_passing=is_passing_status(status))


def failure_without_answer(store: str, error: Exception) -> Failure:
    """Interpret an error without an answer. A wrong certificate and an unknown host name are permanent."""
    names, text = {type(inner).__name__ for inner in _wrapped(error)}, str(error)
    shown = type(error).__name__
    if names.isdisjoint(_NEVER_CONNECTED):
        return Failure(FailureKind.UNKNOWN, f"The connection failed ({shown})", "Try again", is_passing=True)
    is_final = "SSLError" in names or "CERTIFICATE" in text or any(sign in text for sign in _UNKNOWN_HOST)
    cause = f"{store} cannot be reached ({shown})"
    return Failure(FailureKind.REFUSED, cause, "Check the endpoint and the network", is_passing=not is_final)


def _wrapped(error: object) -> Iterator[BaseException]:
    """Yield an error and the errors that the HTTP libraries wrapped in it. Causes and contexts do not count, because
    they may belong to earlier requests."""
    while isinstance(error, BaseException):
        yield error
        inner = (getattr(error, "inner_exception", None), getattr(error, "reason", None), *error.args)
        error = next((one for one in inner if isinstance(one, BaseException)), None)
