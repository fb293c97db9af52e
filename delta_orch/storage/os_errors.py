"""Errors of the operating system in the words of a user."""

from __future__ import annotations

import errno

from delta_orch.errors import FileMissingInStoreError, StorageError

NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
"""What `link` answers on file systems without hard links."""


_TRY_AGAIN = "and try again; the table is unchanged"
_DENIED = (
    "Permission denied: this user may not read or change the file or directory",
    "Grant this user access to it, or use another location",
)
_CAUSES_AND_REMEDIES = {
    errno.ENOSPC: ("The disk is full", f"Free some space {_TRY_AGAIN}"),
    errno.EDQUOT: ("The disk quota is used up", f"Free some space {_TRY_AGAIN}"),
    errno.EFBIG: (
        "The file would exceed the largest size that this process or file system allows",
        f"Raise the limit (`ulimit -f`) {_TRY_AGAIN}",
    ),
    errno.EROFS: ("The file system is mounted read-only", "Mount it writable, or write to another location"),
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.ENOTDIR: (
        "A file is in the place of a directory",
        "Give the directory of the table, not a file in it or beside it",
    ),
    errno.EISDIR: ("A directory is in the place of a file", None),
}


def storage_error(error: OSError, action: str, path: str) -> StorageError:
    """The error to raise for a failed call; `action` completes "Cannot …", `path` is absolute."""
    if isinstance(error, StorageError):
        return error  # an object store has already said what there is to say
    code = error.errno or 0
    problem = f"Cannot {action} {path}"
    if code == errno.ENOENT:
        return FileMissingInStoreError(problem, cause="There is no such file", path=path, errno=code)
    cause, remedy = _CAUSES_AND_REMEDIES.get(code, (error.strerror or str(error), None))
    return StorageError(problem, cause=cause, remedy=remedy, path=path, errno=error.errno)
