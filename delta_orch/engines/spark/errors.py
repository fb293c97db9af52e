"""Spark's errors as errors of this package.

An error of the user's own code (a failing UDF, a division by zero in a DataFrame) stays a pyspark exception. An error
that the table, its files or the store caused never surfaces as a JVM stack trace.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from delta_orch import errors
from delta_orch.errors import (
    CancelledError,
    ColumnNotFoundError,
    ConstraintViolationError,
    DeltaError,
    InvalidExpressionError,
    MissingDependencyError,
    MissingFileError,
    ProtocolViolationError,
    SchemaMismatchError,
    StorageError,
    TableError,
)

_NO_CLASS = re.compile(r"Class (org\.apache\.hadoop\.fs\.\S+|com\.google\.\S+) not found")
_NO_SCHEME = re.compile(r"No FileSystem for scheme \"?([a-z0-9]+)")
_CONNECTORS = {
    "s3": "org.apache.hadoop:hadoop-aws:<version of Spark's Hadoop>",
    "azure": "org.apache.hadoop:hadoop-azure:<version of Spark's Hadoop>",
    "abfs": "org.apache.hadoop:hadoop-azure:<version of Spark's Hadoop>",
    "gs": "com.google.cloud.bigdataoss:gcs-connector:hadoop3-<version>",
    "google": "com.google.cloud.bigdataoss:gcs-connector:hadoop3-<version>",
}
CHECK_MARK = "delta_orch check"
DAMAGE_MARK = "delta_orch damage"
MISMATCH_MARK = "delta_orch mismatch"
_VIOLATION = re.compile(rf"\[{CHECK_MARK} (\d+)\](.*?)\[end of {CHECK_MARK}\]", re.DOTALL)
_DAMAGE = re.compile(rf"\[{DAMAGE_MARK}\](.*?)\[end of {DAMAGE_MARK}\]", re.DOTALL)
# Lines of errors from Java, and from Python that Spark called. An error stands below its causes. The lines of its
# message end where Java's stack, Spark's SQLSTATE or an empty line begins.
_NEXT_LINE = r"(?:\n(?!SQLSTATE|JVM |Caused by|During |The above |\s)(.+))?"
_OURS = re.compile(rf"(?:\[delta_orch error\] |^delta_orch\.errors\.)(\w+): (.*){_NEXT_LINE}{_NEXT_LINE}", re.MULTILINE)
_MISMATCH = re.compile(rf"\[{MISMATCH_MARK}\](.*?)\[end of {MISMATCH_MARK}\]", re.DOTALL)
PACKAGE = "delta-orch"
_NO_PACKAGE = ("delta_orch is not installed on the Spark workers", "No module named 'delta_orch'")
"""Messages of `on_workers.py`, and messages of Python if a function cannot be loaded."""
_NO_ARROW = "No module named 'pyarrow'"
"""The message of pyspark if the workers' Python has no packages."""
OF_WORKERS = (PACKAGE, "pyarrow")
_FOR_FORMAT = "The format delta_orch reads and writes files there"
_NO_FORMAT = "Failed to find the data source: delta_orch"
_FILE = re.compile(r"(?:File |Path does not exist: |while reading file |path: )([a-z0-9]+:/[^\s\"']+|/[^\s\"']+)")

_MISSING = ("FAILED_READ_FILE.FILE_NOT_EXIST", "PATH_NOT_FOUND", "java.io.FileNotFoundException", "NoSuchFileException")
_UNREADABLE = (
    "FAILED_READ_FILE",
    "CANNOT_READ_FILE_FOOTER",
    "is not a Parquet file",
    "ParquetDecodingException",
    "PARQUET_COLUMN_DATA_TYPE_MISMATCH",
)
# Late decoding fails without the file's name.
_DECODING = re.compile(
    r"(?:Exception|Error)\b[^\n]*\n\s*at (?:java\.\S+\s+at )*"
    r"org\.apache\.(?:parquet|spark\.sql\.execution\.datasources\.parquet)\.[\w.$]*(?:Reader|Dictionary|Decod|Decompress|Input)"
)
_CANCELLED = ("SPARK_JOB_CANCELLED", "OPERATION_CANCELED")
_NOT_A_DIRECTORY = (
    "A file stands where a directory is needed",
    "Give the directory of the table, not a file in or beside it",
)
_STORE = {
    "No space left on device": ("The disk is full", "Free some space and try again; the table is as it was before"),
    "Disk quota exceeded": ("The disk quota is used up", "Free some space; the table is as it was before"),
    "File too large": ("A file would exceed the largest size allowed here", "Raise the limit (`ulimit -f`)"),
    "Read-only file system": ("The file system is mounted read-only", "Mount it writable, or write elsewhere"),
    "Permission denied": ("Permission denied", "Grant the user of the Spark executors access to the directory"),
    "File name too long": ("A partition value is too long for a directory name", "Partition by a shorter value"),
    "ParentNotDirectoryException": _NOT_A_DIRECTORY,
    "Destination exists and is not a directory": _NOT_A_DIRECTORY,
    "Not a directory": _NOT_A_DIRECTORY,
    "Mkdirs failed to create": ("A directory cannot be created", "Check the permissions of the table's directory"),
}
_PASSING = (
    "java.net.SocketTimeoutException",
    "java.net.ConnectException",
    "java.net.SocketException",
    "java.net.NoRouteToHostException",
    "NoHttpResponseException",
    "ApiCallTimeoutException",
    "AWSServiceThrottledException",
    "AWSServiceIOException",
    "AWSStatus500Exception",
    "SlowDown",
)
"""Errors of Hadoop's file systems after their own retries, if a store is unreachable, busy or broken."""
# The rest of the message, if Java only reports that a directory could not be created.
_LONG_NAME = re.compile(r"Mkdirs failed to create \S*?/[^/\s]{256,}")
_PYSPARK = ("pyspark.errors.exceptions.captured", "pyspark.errors.exceptions.connect")
_VALUE_ERRORS = (
    "ArithmeticException",
    "ArrayIndexOutOfBoundsException",
    "DateTimeException",
    "NumberFormatException",
    "SparkRuntimeException",
    "IllegalArgumentException",
)
_COLUMN_CONDITIONS = ("UNRESOLVED_COLUMN", "FIELD_NOT_FOUND")
_EXPRESSION_CONDITIONS = (
    "PARSE_SYNTAX_ERROR",
    "UNRESOLVED_ROUTINE",
    "DATATYPE_MISMATCH",
    "WRONG_NUM_ARGS",
    "INVALID_SQL_SYNTAX",
    "TABLE_OR_VIEW_NOT_FOUND",
    "UNSUPPORTED_SUBQUERY_EXPRESSION_CATEGORY",
    "COLLATION_MISMATCH",
    "INDETERMINATE_COLLATION",
)


@contextmanager
def spark_errors(
    action: str,
    *,
    checks: Sequence[str] = (),
    is_analysis: bool = False,
    is_query: bool = False,
    needs_package: str | None = None,
) -> Iterator[None]:
    """Translate errors that Spark raises inside the block.

    Args:
        action: Completes "Spark could not …".
        checks: Names of the checks built into the rows, by the index in their message.
        is_analysis: Whether the block analyses SQL of the caller, so that an analysis error is an error of the caller.
        is_query: Whether the block pulls the rows of a request. An invalid value (a division by zero, text that is not
            a number) is then an error of the caller. Errors of `raise_error` pass unchanged.
        needs_package: A sentence with the reason why the block runs this package in Python workers.

    Raises:
        CancelledError, ConstraintViolationError, MissingFileError, StorageError, TableError, ProtocolViolationError,
        MissingDependencyError, SchemaMismatchError,
        ColumnNotFoundError, InvalidExpressionError: The text of the error decides. Every other error passes unchanged.
    """
    try:
        yield
    except DeltaError:
        raise
    except Exception as e:
        translated = _translate(e, action, checks, is_analysis, needs_package)
        raised = e if translated is not None else _captured(e)
        is_theirs = getattr(raised, "getCondition", lambda: None)() == "USER_RAISED_EXCEPTION"
        is_of_value = type(raised).__name__ in _VALUE_ERRORS and type(raised).__module__ in _PYSPARK and not is_theirs
        if translated is None and is_query and is_of_value:
            translated = InvalidExpressionError(f"Spark could not {action}", cause=_first_line(str(raised)))
        if translated is None:
            if raised is e:
                raise
            raise raised from e
        raise translated from e


def explained(error: BaseException) -> DeltaError | None:
    """The error of this package for an error of a Spark action: `MissingFileError` if vacuum deleted a file of a
    DataFrame, `CancelledError`, `StorageError`, … None if it is another error. Nothing is read.

        except Exception as e:
            raise (explained(e) or e) from e
    """
    if isinstance(error, DeltaError):
        return error
    return _translate(error, "read the table", (), is_analysis=False, needs_package=None)


def _captured(error: Exception) -> Exception:
    """Return pyspark's exception for an error of a Spark thread. It is one of the causes in the chain. If pyspark does
    not know any of them, return the error itself."""
    if not type(error).__module__.startswith("py4j"):
        return error
    from pyspark.errors.exceptions.captured import UnknownException, convert_exception

    cause = getattr(error, "java_exception", None)
    while cause is not None:
        captured: Exception = convert_exception(cause)
        if not isinstance(captured, UnknownException):
            return captured
        cause = cause.getCause()
    return error


def _translate(
    error: BaseException, action: str, checks: Sequence[str], is_analysis: bool, needs_package: str | None
) -> DeltaError | None:
    """Return the error to raise instead of Spark's error. None lets Spark's error pass."""
    if not type(error).__module__.startswith(("pyspark", "py4j", "grpc")):
        return None
    text = _full_text(error)
    if ours := _OURS.findall(text):
        name, problem, cause, remedy = ours[-1]
        named = getattr(errors, name, None)  # A message may quote any text.
        kind = named if isinstance(named, type) and issubclass(named, DeltaError) else DeltaError
        return kind(problem, cause=cause, remedy=remedy)
    condition = getattr(error, "getCondition", lambda: None)() or ""
    match = _VIOLATION.search(text)
    if match and int(match[1]) < len(checks):
        return _violation(checks[int(match[1])], match[2])
    if damage := _DAMAGE.search(text):
        return ProtocolViolationError(f"Spark could not {action}", cause=damage[1])
    if mismatch := _MISMATCH.search(text):
        return SchemaMismatchError(f"Spark could not {action}", cause=mismatch[1])
    if any(sign in text for sign in _CANCELLED):
        return CancelledError(
            f"Spark could not {action}: the work was cancelled",
            cause=re.sub(r"^.*\[(?=SPARK_JOB|OPERATION)", "[", next(t for t in text.splitlines() if "CANCEL" in t)),
            remedy="Run the operation again. Nothing was committed",
        )
    if _NO_FORMAT in text:
        return MissingDependencyError(
            "Spark does not find the format delta_orch",
            cause="The package is not installed next to the driver, or Spark does not know the session of this thread",
            remedy="Install delta-orch or register the format, call createDataFrame in this thread first, or use "
            "DeltaTable",
            package=PACKAGE,
        )
    if connector := _missing_connector(text, action):
        return connector
    if sign := next((s for s in _NO_PACKAGE if s in text), None):
        return MissingDependencyError(
            _NO_PACKAGE[0],
            cause=_FOR_FORMAT if sign == _NO_PACKAGE[0] else needs_package or "Python workers run it",
            remedy="Install delta-orch in the Python of the executors",
            package=PACKAGE,
        )
    if _NO_ARROW in text:
        return MissingDependencyError(
            "pyarrow is not installed on the Spark workers",
            cause=needs_package or "Python workers get their rows through it",
            remedy="Install delta-orch in the Python of the executors. If nothing else is needed, pyarrow is enough",
            package="pyarrow",
        )
    sign = "File name too long" if _LONG_NAME.search(text) else next((s for s in _STORE if s in text), None)
    if sign is not None:
        cause, remedy = _STORE[sign]
        return StorageError(f"Spark could not {action}", cause=cause, remedy=remedy)
    if "org.apache.hadoop.fs" in text and (sign := next((s for s in _PASSING if s in text), None)):
        return StorageError(
            f"Spark could not {action}: the store failed temporarily",
            cause=f"{sign} in Hadoop's file system",
            remedy="Try again",
            retryable=True,
        )
    if condition in _MISSING or any(sign in text for sign in _MISSING):
        return missing_file_error(action, _path_in(text))
    if any(sign in text for sign in _UNREADABLE) or _DECODING.search(text):
        path = _path_in(text)
        return TableError(
            f"Spark could not {action}: {f'the data file {path}' if path else 'a data file'} cannot be read",
            cause=_deepest_cause(text),
            path=path,
        )
    if is_analysis and condition.startswith(_COLUMN_CONDITIONS):
        return ColumnNotFoundError(f"Spark could not {action}", cause=_first_line(text))
    if is_analysis and condition.startswith(_EXPRESSION_CONDITIONS):
        return InvalidExpressionError(f"Spark could not {action}", cause=_first_line(text))
    return None


def is_hidden(path: str) -> bool:
    """Whether Spark's listing or its Parquet reader ignores a file because of its name."""
    name = path.rpartition("/")[2]
    is_private = name.startswith("_") and ("=" not in name or name.startswith(("_metadata", "_common_metadata")))
    return is_private or name.startswith(".") or name.endswith("._COPYING_")


def missing_file_error(action: str, path: str | None) -> MissingFileError:
    """Return the error for a file that Spark's listing ignores. `action` completes "Spark could not …"."""
    if path is not None and is_hidden(path):
        return MissingFileError(
            f"Spark could not {action}: its listing leaves out the data file {path}",
            cause="The name starts with _ or ., or ends with ._COPYING_, so Spark treats the file as hidden",
            remedy="Read the table in a classic Spark session or with the local engine",
            path=path,
        )
    return MissingFileError(
        f"Spark could not {action}: the data file {path or ''} does not exist",
        cause="The log names the file, but it was deleted or moved",
        remedy="Restore the file, or read a version of the table without it",
        path=path,
    )


def _missing_connector(text: str, action: str) -> MissingDependencyError | None:
    """Return the error for a missing connector of an object store, which Hadoop reports in two ways."""
    match = _NO_CLASS.search(text) or _NO_SCHEME.search(text)
    if match is None:
        return None
    package = next((p for sign, p in _CONNECTORS.items() if sign in match[1].lower()), None)
    return MissingDependencyError(
        f"Spark could not {action}: the connector for this store is missing",
        cause=f"{match[1]} is not on the classpath of the Spark session",
        remedy=f"Start the session with spark.jars.packages={package} (see docs/stores.md), or use the local engine"
        if package
        else "Put the Hadoop connector of this store on Spark's classpath, or use the local engine",
    )


def _violation(name: str, row_text: str) -> ConstraintViolationError:
    row: object = row_text
    with suppress(json.JSONDecodeError):
        row = json.loads(row_text)
    return ConstraintViolationError(
        f"A row violates {name}",
        cause=f"The row is {row_text}",
        remedy="Correct or filter the rows before writing. The table is unchanged",
        constraint=name,
        row=row,
    )


def _full_text(error: BaseException) -> str:
    """Return the message with its causes in the JVM."""
    parts = [str(error)]
    java = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    seen = 0
    while java is not None and seen < 20:
        parts.append(str(java.toString()))
        java = java.getCause()
        seen += 1
    stack = getattr(error, "_stacktrace", None) or getattr(error, "_jvm_stacktrace", None)
    if stack:
        parts.append(str(stack))
    if error.__cause__ is not None:
        parts.append(str(error.__cause__))
    return "\n".join(parts)


def _path_in(text: str) -> str | None:
    match = _FILE.search(text)
    return match[1].rstrip(".,;)") if match else None


def _deepest_cause(text: str) -> str:
    """Return the last cause that Java names. It describes the fault of the file, while the first line only names the
    caller."""
    causes = [line.partition("Caused by: ")[2] for line in text.splitlines() if line.startswith("Caused by: ")]
    # The text after the class name is more precise than the class name.
    return causes[-1].partition(": ")[2] or causes[-1] if causes else _first_line(text)


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else text
