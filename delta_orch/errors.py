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
    │   ├── UnsupportedExpressionError
    │   └── MaintenanceNotAllowedError
    ├── InvalidRequestError(ValueError)
    │   ├── SchemaMismatchError
    │   ├── ColumnNotFoundError
    │   ├── InvalidPropertyError
    │   ├── InvalidExpressionError
    │   ├── ConstraintViolationError
    │   │   ├── LateChangeError
    │   │   ├── AuditFailedError
    │   │   └── ExpectationFailedError
    │   ├── RedoNotPossibleError
    │   ├── FilesChangedError
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
    │   ├── StagedWriteGoneError
    │   ├── CommitRetriesExhaustedError  (retryable)
    │   └── CommitOutcomeUnknownError  (retryable with a `txn`)
    ├── StorageError(OSError)  (retryable where the store failed temporarily)
    │   ├── FileExistsInStoreError
    │   ├── FileMissingInStoreError
    │   ├── UnreadableFileError
    │   ├── StorageOutcomeUnknownError  (the same)
    │   └── CatalogError  (the same)
    ├── MissingDependencyError(ImportError)
    └── CancelledError

A message states the problem, the cause and the remedy, each on a line of its own. A program reads `code`, `context`
and `retryable`. `retryable` alone decides whether the commit loop, Dagster or Airflow tries again. All errors can be
pickled.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from delta_orch.redaction import public, redacted


class DeltaError(Exception):
    """Root of the tree; never raised itself.

    Remedy: Catch it for every error of this package.

    Args:
        problem: What went wrong, one sentence without a full stop. A long message is cut at 1,900 characters, and what
            would steer a terminal is escaped.
        cause: Why, if known.
        remedy: What the user can do about it.
        context: Values for a program (`version=…`, `path=…`). They must be picklable and free of credentials.
            `retryable` overrides what is usual for the class.

    Attributes:
        retryable: Whether running the same call again is safe, and can succeed without anybody changing anything.
    """

    code: ClassVar[str] = "DELTA_ERROR"
    retryable: bool = False

    def __init__(self, problem: str, *, cause: str | None = None, remedy: str | None = None, **context: Any) -> None:
        problem, cause, remedy = _cut(_printable(problem), _printable(cause or ""), _printable(remedy or ""))
        self.problem = problem
        self.cause = cause or None
        self.remedy = remedy or None
        self.context: dict[str, Any] = {name: public(value) for name, value in context.items()}
        if "retryable" in context:
            self.retryable = bool(context["retryable"])
        super().__init__("\n".join(_sentence(part) for part in (problem, cause, remedy) if part))

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.problem, self.cause, self.remedy, self.context)

    def __str__(self) -> str:
        # OSError and ImportError have a __str__ of their own that drops the message.
        return str(self.args[0])


_LONGEST = 1_900
# Compiled by the first error that needs them.
_UNPRINTABLE = "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]"
_LINE_BREAKS = r"[ \t]*(?:[\n\u2028\u2029]|\r\n)\s*"


def _printable(part: str) -> str:
    """A part of a message, in which names and values of others cannot steer a terminal, break its encoding, or begin a
    line of a log."""
    part = redacted(part)
    if part.isascii() and part.isprintable():
        return part
    part = re.sub(_LINE_BREAKS, " ", part)
    return re.sub(_UNPRINTABLE, lambda match: f"\\x{ord(match[0]):02x}", part)


def _cut(*parts: str) -> list[str]:
    """The parts of a message, the longest cut until they are short enough to be read."""
    cut = list(parts)
    while (over := sum(map(len, cut)) - _LONGEST) > 0:
        longest = max(range(len(cut)), key=lambda i: len(cut[i]))
        text = cut[longest]
        others = sorted((len(part) for part in cut), reverse=True)[1]
        kept = max(len(text) - over - 40, min(others, len(text) - 41), 100)
        cut[longest] = f"{text[:kept]}… ({len(text) - kept} more characters)"
    return cut


def _sentence(part: str) -> str:
    return part if part.endswith((".", "?", "!")) else part + "."


def _rebuild(
    kind: type[DeltaError], problem: str, cause: str | None, remedy: str | None, context: dict[str, Any]
) -> DeltaError:
    return kind(problem, cause=cause, remedy=remedy, **context)


class TableError(DeltaError):
    """The table, as found, cannot serve the request. Raised itself where a data file cannot be read.

    Remedy: Read the cause. `delta-orch fsck` checks the whole table.
    """

    code = "TABLE_ERROR"


class TableNotFoundError(TableError):
    """There is no Delta table at the location.

    Remedy: Check the URI and the credentials; create the table with `create` or a first write.
    """

    code = "TABLE_NOT_FOUND"


class TableExistsError(TableError):
    """A table exists where none may be, or it differs from the one requested.

    Remedy: Write to the one that exists, or choose another location.
    """

    code = "TABLE_EXISTS"


class VersionNotFoundError(TableError):
    """The version was never written, or its part of the log has been cleaned up.

    Remedy: `history()` lists what is there; raise `delta.logRetentionDuration` to keep more.
    """

    code = "VERSION_NOT_FOUND"


class TimestampOutOfRangeError(TableError):
    """The timestamp is before the first version or after the last one.

    Remedy: The message names the first and last time that can be asked for.
    """

    code = "TIMESTAMP_OUT_OF_RANGE"


class MissingFileError(TableError):
    """The log names a file that does not exist: vacuum or somebody else has deleted it.

    Remedy: Read a newer version; keep the retention longer than the longest reader.
    """

    code = "MISSING_FILE"


class CorruptLogError(TableError):
    """The log breaks the protocol, or cannot be parsed.

    Remedy: Restore the file named from a backup; `fsck` lists all problems.
    """

    code = "CORRUPT_LOG"


class LogGapError(CorruptLogError):
    """A commit between two others is missing.

    Remedy: Restore it from a backup; versions before the gap can still be read.
    """

    code = "LOG_GAP"


class IncompleteCheckpointError(CorruptLogError):
    """A checkpoint lacks parts, and nothing older leads to the version.

    Remedy: Restore the parts; nothing is read from half a checkpoint.
    """

    code = "INCOMPLETE_CHECKPOINT"


class ChecksumMismatchError(CorruptLogError):
    """A version checksum and the log disagree. `context["mismatches"]` lists the differences.

    Remedy: Find out which writer is wrong before you write again.
    """

    code = "CHECKSUM_MISMATCH"


class CorruptDeletionVectorError(CorruptLogError):
    """A deletion vector fails its size or checksum, or marks rows that its file does not have.

    Remedy: Restore the file; rows are never shown or hidden by a guess.
    """

    code = "CORRUPT_DELETION_VECTOR"


class ProtocolViolationError(CorruptLogError):
    """The log holds a value that the protocol does not allow.

    Remedy: Report it to whoever wrote the version named.
    """

    code = "PROTOCOL_VIOLATION"


class CorruptDataError(TableError):
    """A data file holds values that cannot be decoded.

    Remedy: Restore the file named, or write its rows again.
    """

    code = "CORRUPT_DATA"


class InvalidVariantError(CorruptDataError):
    """The bytes or columns do not form a valid variant.

    Remedy: Report it to whoever wrote the file named.
    """

    code = "INVALID_VARIANT"


class UnsupportedError(DeltaError):
    """The request is valid, but this release does not support it.

    Remedy: Do what the message says; it names the way that exists.
    """

    code = "UNSUPPORTED"


class UnsupportedFeatureError(UnsupportedError):
    """The table has features that this release does not read or write. `context["features"]` names them, sorted.

    Remedy: Use a newer release, or drop the feature with the client that added it.
    """

    code = "UNSUPPORTED_FEATURE"


class UnsupportedVersionError(UnsupportedError):
    """The table's protocol version is newer than any that this release knows.

    Remedy: Use a newer release.
    """

    code = "UNSUPPORTED_VERSION"


class UnsupportedStoreError(UnsupportedError):
    """There is no store for this kind of URI, or it cannot create a file exclusively.

    Remedy: Install the extra named, or set the single-writer option if there is one writer.
    """

    code = "UNSUPPORTED_STORE"


class UnsupportedExpressionError(UnsupportedError):
    """The engine does not evaluate this expression.

    Remedy: Use the Spark engine, or the functions the message names.
    """

    code = "UNSUPPORTED_EXPRESSION"


class MaintenanceNotAllowedError(UnsupportedError):
    """The catalog of the table maintains it and does not let others do this maintenance. Nothing was changed.

    Remedy: Leave the step out; the catalog does it (docs/catalogs.md).
    """

    code = "MAINTENANCE_NOT_ALLOWED"


class InvalidRequestError(DeltaError, ValueError):
    """The request is invalid. Nothing was changed.

    Remedy: The message names the argument.
    """

    code = "INVALID_REQUEST"


class SchemaMismatchError(InvalidRequestError):
    """Rows or a definition do not match the table's schema. The message names every such column.

    Remedy: Cast or rename, or evolve the table with `schema_mode`.
    """

    code = "SCHEMA_MISMATCH"


class ColumnNotFoundError(InvalidRequestError):
    """There is no column of that name.

    Remedy: The message lists the names of the columns.
    """

    code = "COLUMN_NOT_FOUND"


class InvalidPropertyError(InvalidRequestError):
    """A table property is unknown, or its value is invalid.

    Remedy: Properties of your own must not begin with `delta.`.
    """

    code = "INVALID_PROPERTY"


class InvalidExpressionError(InvalidRequestError):
    """A predicate or expression cannot be parsed, has the wrong type, or is not allowed in a table.

    Remedy: Write Spark SQL; the message points at the place. docs/expressions.md lists what a table may have.
    """

    code = "INVALID_EXPRESSION"


class ConstraintViolationError(InvalidRequestError):
    """A row breaks a constraint, NOT NULL, a generated column or `replace_where`.

    `context["constraint"]` names the constraint, `context["row"]` shows one offending row, if known.

    Remedy: Correct the row. Nothing was committed.
    """

    code = "CONSTRAINT_VIOLATION"


class LateChangeError(ConstraintViolationError):
    """A change event comes so late that its place is not known any more. `context["row"]` shows its keys.

    Remedy: Leave the event out, or apply it by hand. A longer `tombstone_retention` avoids it (docs/late-rows.md).
    """

    code = "LATE_CHANGE"


class AuditFailedError(ConstraintViolationError):
    """An audit did not pass: the write was staged and not committed.

    `context["staged"]` is its reference, `context["findings"]` what the audits found.

    Remedy: Look at the `snapshot()` of the staged write, correct the rows and run the step again.
    """

    code = "AUDIT_FAILED"


class ExpectationFailedError(ConstraintViolationError):
    """Rows break a rule of `expect` that must hold, or more rows than `max_quarantined` allows go to the quarantine.

    Neither table has changed. `context["report"]` has the counts by rule, and rows.

    Remedy: Correct the source, or change the rule (docs/bad-rows.md).
    """

    code = "EXPECTATION_FAILED"


class RedoNotPossibleError(InvalidRequestError):
    """The rows that a unit wrote cannot be told from other rows any more, so they cannot be replaced or undone.

    `context["unit"]` names the unit, `context["version"]` the commit that moved its rows, if one did.

    Remedy: Do what the message names: undo, a predicate, `on_redo`, `unit_column` (docs/exactly-once.md).
    """

    code = "REDO_NOT_POSSIBLE"


class FilesChangedError(InvalidRequestError):
    """Files that were loaded into a table are others now, and `FileSource.on_changed` is `error`. Nothing was loaded.

    `context["paths"]` names some.

    Remedy: `on_changed="replace"` loads them again, `"ignore"` keeps the old rows (docs/files-in.md).
    """

    code = "FILES_CHANGED"


class AppendOnlyError(InvalidRequestError):
    """The table keeps every row (`delta.appendOnly`).

    Remedy: Append, or set the property to false first.
    """

    code = "APPEND_ONLY"


class CommitError(DeltaError):
    """The commit did not happen.

    Remedy: See the classes below this one.
    """

    code = "COMMIT_FAILED"


class ConflictError(CommitError):
    """Another commit changed what this one read or changes. The table holds the other commit, not this one.

    `context["winning_version"]` is the version of the commit that won.

    Remedy: Run the step again from the newest version.
    """

    code = "CONFLICT"
    retryable = True


class ConcurrentAppendError(ConflictError):
    """Another commit added files to what this one has read.

    Remedy: Run again; disjoint partitions or ranges do not conflict.
    """

    code = "CONCURRENT_APPEND"


class ConcurrentDeleteReadError(ConflictError):
    """Another commit removed files that this one has read.

    Remedy: Run the step again from the newest version.
    """

    code = "CONCURRENT_DELETE_READ"


class ConcurrentDeleteDeleteError(ConflictError):
    """Both commits remove the same file.

    Remedy: Run again. A compaction can wait for its next time.
    """

    code = "CONCURRENT_DELETE_DELETE"


class MetadataChangedError(ConflictError):
    """Another commit changed schema, partitioning or properties.

    Remedy: Run again against the new schema.
    """

    code = "METADATA_CHANGED"


class ProtocolChangedError(ConflictError):
    """Another commit changed the table's protocol.

    Remedy: Run again. A feature that this release lacks is then refused by name.
    """

    code = "PROTOCOL_CHANGED"


class ConcurrentTransactionError(ConflictError):
    """Another run recorded the same application id, or not the version this one follows.

    Remedy: Run again. Work that is recorded already is skipped.
    """

    code = "CONCURRENT_TRANSACTION"


class ConcurrentDomainMetadataError(ConflictError):
    """Both commits set the same metadata domain.

    Remedy: Check what the other commit has set, then run again.
    """

    code = "CONCURRENT_DOMAIN_METADATA"


class StagedWriteGoneError(CommitError):
    """A staged write, or a file of it, is gone or too old to be published. The table is unchanged.

    Remedy: Stage the write again; publish within the retention.
    """

    code = "STAGED_WRITE_GONE"


class CommitRetriesExhaustedError(CommitError):
    """Other commits won every attempt. The table holds them, not this one.

    Remedy: Run again when fewer writers are at work.
    """

    code = "COMMIT_RETRIES_EXHAUSTED"
    retryable = True


class CommitOutcomeUnknownError(CommitError):
    """It is unknown whether the commit was written: it **may have happened**. Check before writing again.

    Retryable if the commit has a `txn`: running again is safe then.

    Remedy: Look at `history()`. With a `txn`, run again.
    """

    code = "COMMIT_OUTCOME_UNKNOWN"


class StorageError(DeltaError, OSError):
    """The store refused or failed: full disk, missing permission, network failure.

    Retryable if the store was out of reach, too busy or failed itself (HTTP 408, 429, 5xx) for longer than
    `retry_seconds`.

    Remedy: See the cause.
    """

    code = "STORAGE_ERROR"


class FileExistsInStoreError(StorageError):
    """An exclusive create found that the file already exists.

    Remedy: Look at what the file named holds: somebody else wrote it. The commit loop tries the next version.
    """

    code = "FILE_EXISTS"


class FileMissingInStoreError(StorageError):
    """The requested file does not exist.

    Remedy: Check the name; of a table's own files the error is `MISSING_FILE`.
    """

    code = "FILE_MISSING"


class UnreadableFileError(StorageError):
    """A file of a source cannot be read as its format. Nothing of it was loaded. `context["path"]` names it.

    Remedy: Repair or remove the file, or pass `on_error="quarantine"`.
    """

    code = "UNREADABLE_FILE"


class StorageOutcomeUnknownError(StorageError):
    """It is unknown whether a request took effect. Retryable if the store failed temporarily.

    Remedy: Check whether the file exists before you try again. The commit loop does so itself.
    """

    code = "STORAGE_OUTCOME_UNKNOWN"


class CatalogError(StorageError):
    """A catalog refused a request, or could not be reached. Nothing was changed.

    Retryable if it failed temporarily.

    Remedy: Correct what the message says: the token, a right, the name; or try again (docs/catalogs.md).
    """

    code = "CATALOG_ERROR"


class MissingDependencyError(DeltaError, ImportError):
    """A package of an extra is not installed.

    Remedy: Run the `pip install` line of the message.
    """

    code = "MISSING_DEPENDENCY"


class CancelledError(DeltaError):
    """The user stopped the work of the Spark session: `interruptAll`, a job group, a tag. Nothing was committed.

    Remedy: Run it again.
    """

    code = "CANCELLED"
