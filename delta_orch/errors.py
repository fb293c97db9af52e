"""Every error delta_orch raises, as one tree.

    DeltaError
    ├── TableError
    │   ├── TableNotFoundError
    │   ├── TableExistsError
    │   ├── VersionNotFoundError
    │   ├── TimestampOutOfRangeError
    │   ├── MissingFileError
    │   ├── CorruptLogError
    │   │   ├── LogGapError
    │   │   ├── IncompleteCheckpointError
    │   │   ├── ChecksumMismatchError
    │   │   ├── CorruptDeletionVectorError
    │   │   └── ProtocolViolationError
    │   └── CorruptDataError
    │       └── InvalidVariantError
    ├── UnsupportedError
    │   ├── UnsupportedFeatureError
    │   ├── UnsupportedVersionError
    │   ├── UnsupportedStoreError
    │   └── UnsupportedExpressionError
    ├── InvalidRequestError(ValueError)
    │   ├── SchemaMismatchError
    │   ├── ColumnNotFoundError
    │   ├── InvalidPropertyError
    │   ├── InvalidExpressionError
    │   ├── ConstraintViolationError
    │   └── AppendOnlyError
    ├── CommitError
    │   ├── ConflictError  (retryable)
    │   │   ├── ConcurrentAppendError
    │   │   ├── ConcurrentDeleteReadError
    │   │   ├── ConcurrentDeleteDeleteError
    │   │   ├── MetadataChangedError
    │   │   ├── ProtocolChangedError
    │   │   ├── ConcurrentTransactionError
    │   │   └── ConcurrentDomainMetadataError
    │   ├── CommitRetriesExhaustedError  (retryable)
    │   └── CommitOutcomeUnknownError
    ├── StorageError(OSError)
    │   ├── FileExistsInStoreError
    │   ├── FileMissingInStoreError
    │   └── StorageOutcomeUnknownError
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
    """The table, as found, cannot serve the request."""

    code = "TABLE_ERROR"


class TableNotFoundError(TableError):
    """There is no Delta table at the location."""

    code = "TABLE_NOT_FOUND"


class TableExistsError(TableError):
    """A table is there and must not be, or is another than the one asked for."""

    code = "TABLE_EXISTS"


class VersionNotFoundError(TableError):
    """The version was never written, or its part of the log has been cleaned up."""

    code = "VERSION_NOT_FOUND"


class TimestampOutOfRangeError(TableError):
    """No version is that old, or that new."""

    code = "TIMESTAMP_OUT_OF_RANGE"


class MissingFileError(TableError):
    """The log names a file that is not there."""

    code = "MISSING_FILE"


class CorruptLogError(TableError):
    """The log breaks the protocol, or cannot be parsed."""

    code = "CORRUPT_LOG"


class LogGapError(CorruptLogError):
    """A commit between two others is missing."""

    code = "LOG_GAP"


class IncompleteCheckpointError(CorruptLogError):
    """A checkpoint lacks parts, and nothing older leads to the version."""

    code = "INCOMPLETE_CHECKPOINT"


class ChecksumMismatchError(CorruptLogError):
    """A version checksum and the log disagree; `context["mismatches"]` says in what."""

    code = "CHECKSUM_MISMATCH"


class CorruptDeletionVectorError(CorruptLogError):
    """A deletion vector fails its size or checksum, or marks rows that its file does not have."""

    code = "CORRUPT_DELETION_VECTOR"


class ProtocolViolationError(CorruptLogError):
    """A value in the log that the protocol does not allow."""

    code = "PROTOCOL_VIOLATION"


class CorruptDataError(TableError):
    """A data file holds what no reader can make sense of."""

    code = "CORRUPT_DATA"


class InvalidVariantError(CorruptDataError):
    """The bytes or the columns of a variant are none."""

    code = "INVALID_VARIANT"


class UnsupportedError(DeltaError):
    """Valid, but this release does not do it."""

    code = "UNSUPPORTED"


class UnsupportedFeatureError(UnsupportedError):
    """Table features that this release does not read or write; `context["features"]` names them, sorted."""

    code = "UNSUPPORTED_FEATURE"


class UnsupportedVersionError(UnsupportedError):
    """A protocol version above those that exist today."""

    code = "UNSUPPORTED_VERSION"


class UnsupportedStoreError(UnsupportedError):
    """No store for this kind of URI, or one that cannot create a file exclusively."""

    code = "UNSUPPORTED_STORE"


class UnsupportedExpressionError(UnsupportedError):
    """An expression that this engine does not evaluate."""

    code = "UNSUPPORTED_EXPRESSION"


class InvalidRequestError(DeltaError, ValueError):
    """The caller asked for something that cannot be right. Nothing was changed."""

    code = "INVALID_REQUEST"


class SchemaMismatchError(InvalidRequestError):
    """Rows, or a definition, do not fit the table; every column that does not is named."""

    code = "SCHEMA_MISMATCH"


class ColumnNotFoundError(InvalidRequestError):
    """A name that no column has."""

    code = "COLUMN_NOT_FOUND"


class InvalidPropertyError(InvalidRequestError):
    """A table property that does not exist, or a value it cannot have."""

    code = "INVALID_PROPERTY"


class InvalidExpressionError(InvalidRequestError):
    """A predicate or expression that cannot be parsed, or is of the wrong type."""

    code = "INVALID_EXPRESSION"


class ConstraintViolationError(InvalidRequestError):
    """A row breaks a constraint, NOT NULL, a generated column or `replace_where`.

    `context["constraint"]` names the constraint, `context["row"]` shows one offending row where it is known.
    """

    code = "CONSTRAINT_VIOLATION"


class AppendOnlyError(InvalidRequestError):
    """The table keeps every row (`delta.appendOnly`)."""

    code = "APPEND_ONLY"


class CommitError(DeltaError):
    """The commit did not happen."""

    code = "COMMIT_FAILED"


class ConflictError(CommitError):
    """Another commit changed what this one read or changes. The table holds the other commit, not this one.

    `context["winning_version"]` is the version of the commit that won.
    """

    code = "CONFLICT"
    retryable = True


class ConcurrentAppendError(ConflictError):
    """Another commit added files to what this one has read."""

    code = "CONCURRENT_APPEND"


class ConcurrentDeleteReadError(ConflictError):
    """Another commit removed files that this one has read."""

    code = "CONCURRENT_DELETE_READ"


class ConcurrentDeleteDeleteError(ConflictError):
    """Both commits remove the same file."""

    code = "CONCURRENT_DELETE_DELETE"


class MetadataChangedError(ConflictError):
    """Another commit changed schema, partitioning or properties."""

    code = "METADATA_CHANGED"


class ProtocolChangedError(ConflictError):
    """Another commit changed the table's protocol."""

    code = "PROTOCOL_CHANGED"


class ConcurrentTransactionError(ConflictError):
    """Another run recorded the same application id, or not the version this one follows."""

    code = "CONCURRENT_TRANSACTION"


class ConcurrentDomainMetadataError(ConflictError):
    """Both commits set the same metadata domain."""

    code = "CONCURRENT_DOMAIN_METADATA"


class CommitRetriesExhaustedError(CommitError):
    """Others were faster at every attempt. The table holds their commits, not this one."""

    code = "COMMIT_RETRIES_EXHAUSTED"
    retryable = True


class CommitOutcomeUnknownError(CommitError):
    """Nobody can tell whether the commit was written: it **may have happened**. Look before writing again."""

    code = "COMMIT_OUTCOME_UNKNOWN"


class StorageError(DeltaError, OSError):
    """The store refused or failed: a full disk, missing rights, a network."""

    code = "STORAGE_ERROR"


class FileExistsInStoreError(StorageError):
    """An exclusive create found the name taken."""

    code = "FILE_EXISTS"


class FileMissingInStoreError(StorageError):
    """A file that was asked for by name is not there."""

    code = "FILE_MISSING"


class StorageOutcomeUnknownError(StorageError):
    """A request of which nobody can tell whether it took effect."""

    code = "STORAGE_OUTCOME_UNKNOWN"


class MissingDependencyError(DeltaError, ImportError):
    """A package of an extra is not installed; the message has the `pip install` line."""

    code = "MISSING_DEPENDENCY"
