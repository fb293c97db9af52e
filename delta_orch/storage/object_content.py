"""What is sent as an object: bytes, or a file that need not be in memory."""

from __future__ import annotations

import io
from typing import Any, BinaryIO

Content = bytes | BinaryIO
"""What an object is made of. A file is read from its beginning, by every attempt."""

_LARGE_BYTES = 8 * 1024 * 1024


def content_of(data: bytes | memoryview) -> Content:
    """Large content that is not in memory yet (a mapped file) is read while it is sent."""
    if isinstance(data, bytes) or len(data) < _LARGE_BYTES:
        return bytes(data)
    return io.BufferedReader(_ViewReader(data), _LARGE_BYTES // 8)


class _ViewReader(io.RawIOBase):
    """A memoryview as a file."""

    def __init__(self, view: memoryview) -> None:
        super().__init__()
        self._view = view
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._view)}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        part = self._view[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)


def size_of(content: Content) -> int:
    """Bytes; a file is left at its beginning."""
    if isinstance(content, bytes):
        return len(content)
    size = content.seek(0, io.SEEK_END)
    content.seek(0)
    return size
