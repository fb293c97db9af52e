"""What the operating system refuses, in the words of a user."""

from __future__ import annotations

import errno
from typing import Any

from delta_orch.errors import FileMissingInStoreError, StorageError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_DENIED = frozenset({errno.EACCES, errno.EPERM})
NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
"""What `link` answers on file systems without hard links."""


def storage_error(error: OSError, action: str, path: str) -> StorageError:
    """The error to raise for a failed call; `action` completes "Cannot …", `path` is absolute."""
    if isinstance(error, StorageError):
        return error  # an object store has said already what there is to say
    code = error.errno
    problem = f"Cannot {action} {path}"
    context: dict[str, Any] = {"path": path, "errno": code}
    if code == errno.ENOENT:
        return FileMissingInStoreError(problem, cause="There is no such file", **context)
    if code in _FULL:
        return StorageError(
            problem,
            cause="The disk is full" if code == errno.ENOSPC else "The disk quota is used up",
            remedy="Free some space and try again; the table is as it was before",
            **context,
        )
    if code == errno.EFBIG:
        return StorageError(
            problem,
            cause="The file would exceed the largest size this process or file system allows",
            remedy="Raise the limit (`ulimit -f`) and try again; the table is as it was before",
            **context,
        )
    if code == errno.EROFS:
        return StorageError(
            problem,
            cause="The file system is mounted read-only",
            remedy="Mount it writable, or write elsewhere",
            **context,
        )
    if code in _DENIED:
        return StorageError(
            problem,
            cause="Permission denied: the directory or file may not be changed or read by this user",
            remedy="Grant this user access to it, or use another location",
            **context,
        )
    if code == errno.ENOTDIR:
        return StorageError(
            problem,
            cause="A file stands where a directory is needed",
            remedy="Give the directory of the table, not a file in or beside it",
            **context,
        )
    if code == errno.EISDIR:
        return StorageError(problem, cause="A directory stands where a file is needed", **context)
    return StorageError(problem, cause=error.strerror or str(error), **context)
