"""Every error delta_orch raises, as one tree.

    DeltaError
    ├── TableError                       the table, as found, cannot serve the request
    │   ├── TableNotFoundError           no Delta table at the location
    │   ├── TableExistsError             a table is there and must not be
    │   ├── VersionNotFoundError         the version was never written, or its log is gone
    │   ├── TimestampOutOfRangeError     no version is that old, or that new
    │   ├── MissingFileError             the log names a file that is not there
    │   ├── CorruptLogError              the log breaks the protocol
    │   │   ├── LogGapError              a commit between two others is missing
    │   │   ├── IncompleteCheckpointError
    │   │   ├── ChecksumMismatchError
    │   │   ├── CorruptDeletionVectorError
    │   │   └── ProtocolViolationError
    │   └── CorruptDataError             a data file holds what no reader can make sense of
    │       └── InvalidVariantError      the bytes or the columns of a variant
    ├── UnsupportedError                 valid, but this release does not do it
    │   ├── UnsupportedFeatureError      a table feature
    │   ├── UnsupportedVersionError      a protocol version
    │   ├── UnsupportedStoreError        a kind of store
    │   └── UnsupportedExpressionError   an expression, on this engine
    ├── InvalidRequestError(ValueError)  the caller asked for something that cannot be right
    │   ├── SchemaMismatchError
    │   ├── ColumnNotFoundError
    │   ├── InvalidPropertyError
    │   ├── InvalidExpressionError
    │   ├── ConstraintViolationError     a row breaks a constraint, NOT NULL or `replace_where`
    │   └── AppendOnlyError
    ├── CommitError                      the commit did not happen
    │   ├── ConflictError                a concurrent commit won (retryable)
    │   │   ├── ConcurrentAppendError
    │   │   ├── ConcurrentDeleteReadError
    │   │   ├── ConcurrentDeleteDeleteError
    │   │   ├── MetadataChangedError
    │   │   ├── ProtocolChangedError
    │   │   ├── ConcurrentTransactionError
    │   │   └── ConcurrentDomainMetadataError
    │   ├── CommitRetriesExhaustedError  (retryable)
    │   └── CommitOutcomeUnknownError    it may have happened: look before writing again
    ├── StorageError(OSError)
    │   ├── FileExistsInStoreError       an exclusive create found the name taken
    │   ├── FileMissingInStoreError
    │   └── StorageOutcomeUnknownError   the request may have taken effect
    └── MissingDependencyError(ImportError)

A message says problem, cause and remedy; what a program needs is in `code`, `context` and `retryable`. `retryable`
alone decides whether the commit loop, Dagster or Airflow tries again. All errors can be pickled.
"""

from __future__ import annotations

from typing import Any, ClassVar


class DeltaError(Exception):
    """Root of the tree.

    Args:
        problem: What went wrong, one sentence without a full stop.
        cause: Why, where it is known.
        remedy: What the user can do about it.
        context: Values a program may want (`version=…`, `path=…`). They must be picklable and free of credentials.
    """

    code: ClassVar[str] = "DELTA_ERROR"
    retryable: bool = False

    def __init__(self, problem: str, *, cause: str | None = None, remedy: str | None = None, **context: Any) -> None:
        self.problem = problem
        self.cause = cause
        self.remedy = remedy
        self.context = context
        super().__init__(" ".join(_sentence(part) for part in (problem, cause, remedy) if part))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.problem, self.cause, self.remedy, self.context)

    def __str__(self) -> str:
        # OSError and ImportError have a __str__ of their own that drops the message.
        return str(self.args[0])


def _sentence(part: str) -> str:
    return part if part.endswith((".", "?", "!")) else part + "."


def _rebuild(
    kind: type[DeltaError], problem: str, cause: str | None, remedy: str | None, context: dict[str, Any]
) -> DeltaError:
    return kind(problem, cause=cause, remedy=remedy, **context)


class TableError(DeltaError):
    code = "TABLE_ERROR"


class TableNotFoundError(TableError):
    code = "TABLE_NOT_FOUND"


class TableExistsError(TableError):
    code = "TABLE_EXISTS"


class VersionNotFoundError(TableError):
    code = "VERSION_NOT_FOUND"


class TimestampOutOfRangeError(TableError):
    code = "TIMESTAMP_OUT_OF_RANGE"


class MissingFileError(TableError):
    code = "MISSING_FILE"


class CorruptLogError(TableError):
    code = "CORRUPT_LOG"


class LogGapError(CorruptLogError):
    code = "LOG_GAP"


class IncompleteCheckpointError(CorruptLogError):
    code = "INCOMPLETE_CHECKPOINT"


class ChecksumMismatchError(CorruptLogError):
    code = "CHECKSUM_MISMATCH"


class CorruptDeletionVectorError(CorruptLogError):
    code = "CORRUPT_DELETION_VECTOR"


class ProtocolViolationError(CorruptLogError):
    code = "PROTOCOL_VIOLATION"


class CorruptDataError(TableError):
    code = "CORRUPT_DATA"


class InvalidVariantError(CorruptDataError):
    code = "INVALID_VARIANT"


class UnsupportedError(DeltaError):
    code = "UNSUPPORTED"


class UnsupportedFeatureError(UnsupportedError):
    """`context["features"]` holds the names of the features, sorted."""

    code = "UNSUPPORTED_FEATURE"


class UnsupportedVersionError(UnsupportedError):
    code = "UNSUPPORTED_VERSION"


class UnsupportedStoreError(UnsupportedError):
    code = "UNSUPPORTED_STORE"


class UnsupportedExpressionError(UnsupportedError):
    code = "UNSUPPORTED_EXPRESSION"


class InvalidRequestError(DeltaError, ValueError):
    code = "INVALID_REQUEST"


class SchemaMismatchError(InvalidRequestError):
    code = "SCHEMA_MISMATCH"


class ColumnNotFoundError(InvalidRequestError):
    code = "COLUMN_NOT_FOUND"


class InvalidPropertyError(InvalidRequestError):
    code = "INVALID_PROPERTY"


class InvalidExpressionError(InvalidRequestError):
    code = "INVALID_EXPRESSION"


class ConstraintViolationError(InvalidRequestError):
    """`context["constraint"]` names the constraint, `context["row"]` shows one offending row where it is known."""

    code = "CONSTRAINT_VIOLATION"


class AppendOnlyError(InvalidRequestError):
    code = "APPEND_ONLY"


class CommitError(DeltaError):
    code = "COMMIT_FAILED"


class ConflictError(CommitError):
    """Another commit changed what this one read or changes. The table holds the other commit, not this one.

    `context["winning_version"]` is the version of the commit that won.
    """

    code = "CONFLICT"
    retryable = True


class ConcurrentAppendError(ConflictError):
    code = "CONCURRENT_APPEND"


class ConcurrentDeleteReadError(ConflictError):
    code = "CONCURRENT_DELETE_READ"


class ConcurrentDeleteDeleteError(ConflictError):
    code = "CONCURRENT_DELETE_DELETE"


class MetadataChangedError(ConflictError):
    code = "METADATA_CHANGED"


class ProtocolChangedError(ConflictError):
    code = "PROTOCOL_CHANGED"


class ConcurrentTransactionError(ConflictError):
    code = "CONCURRENT_TRANSACTION"


class ConcurrentDomainMetadataError(ConflictError):
    code = "CONCURRENT_DOMAIN_METADATA"


class CommitRetriesExhaustedError(CommitError):
    code = "COMMIT_RETRIES_EXHAUSTED"
    retryable = True


class CommitOutcomeUnknownError(CommitError):
    code = "COMMIT_OUTCOME_UNKNOWN"


class StorageError(DeltaError, OSError):
    code = "STORAGE_ERROR"


class FileExistsInStoreError(StorageError):
    code = "FILE_EXISTS"


class FileMissingInStoreError(StorageError):
    code = "FILE_MISSING"


class StorageOutcomeUnknownError(StorageError):
    code = "STORAGE_OUTCOME_UNKNOWN"


class MissingDependencyError(DeltaError, ImportError):
    code = "MISSING_DEPENDENCY"
