"""Between a client and an emulated store: loses answers, hangs, refuses, or shows what was there before.

with s3_emulator() as s3, FaultProxy(s3.endpoint) as proxy:
    there = s3.behind(proxy.endpoint)
    proxy.at("PUT", "*/_delta_log/*.json", Fault.DROP_AFTER)   # written, but nobody is told
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field, replace
from enum import Enum
from fnmatch import fnmatchcase
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import unquote, urlsplit

_DROPPED_HEADERS = frozenset({"connection", "transfer-encoding", "keep-alive", "content-length", "date", "server"})


class Fault(Enum):
    """What happens to a request."""

    DROP_BEFORE = "the connection is closed, the store never sees the request"
    DROP_AFTER = "the store does it, the connection is closed without an answer"
    ERROR_BEFORE = "500, the store never sees the request"
    ERROR_AFTER = "the store does it, the answer is 500"
    THROTTLE = "503 and the request to slow down, the store never sees it"
    DENY = "403, the store never sees the request"
    REJECT = "400, the store never sees the request"
    HANG_BEFORE = "no answer, the store never sees the request"
    HANG_AFTER = "the store does it, no answer"
    LATE = "the connection is closed without an answer, the store does it a little later"
    SLOW = "the answer comes `slow_s` later"
    TOO_MANY = "429 with Retry-After, the store never sees the request"
    SHORT = "half of the answer, with the length of that half"
    OTHER_ETAG = "the answer, with the ETag of another object"
    OTHER_BYTES = "an answer of the right length, with bytes of another object"
    STALE = "the answer that the same request got the first time"


PASSING = (
    Fault.DROP_BEFORE, Fault.DROP_AFTER, Fault.ERROR_BEFORE, Fault.ERROR_AFTER, Fault.THROTTLE, Fault.TOO_MANY,
    Fault.LATE, Fault.SLOW,
)  # fmt: skip
"""What a task of a pipeline must not fail for."""


@dataclass(slots=True)
class _Rule:
    method: str
    pattern: str
    fault: Fault
    remaining: int


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(slots=True)
class FaultProxy:
    """An HTTP proxy for one emulator, on a port of its own.

    Attributes:
        upstream: The emulator's endpoint.
        seen: `METHOD path?query` of every request, decoded, in order.
        late_s: How long a `LATE` request is held back.
        hang_s: How long a hanging request is held.
        slow_s: How long a slow answer takes.
        most_at_once: How many requests there were at the same time, at most.
        flaky: Some of so many requests, at random, meet one of `PASSING`; 0 for none.
    """

    upstream: str
    late_s: float = 0.3
    hang_s: float = 3.0
    slow_s: float = 2.0
    flaky: int = 0
    chance: random.Random = field(default_factory=random.Random)
    seen: list[str] = field(default_factory=list)
    most_at_once: int = 0
    _at_once: int = 0
    _rules: list[_Rule] = field(default_factory=list)
    _first_answers: dict[str, _Answer] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _server: ThreadingHTTPServer | None = None

    @property
    def endpoint(self) -> str:
        """`http://127.0.0.1:…`."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_port}"

    def at(self, method: str, pattern: str, fault: Fault, times: int = 1) -> None:
        """Do something to the next `times` requests whose decoded path and query are like `pattern`."""
        with self._lock:
            self._rules.append(_Rule(method, pattern, fault, times))

    def clear(self) -> None:
        """Forget what was to be done, and what was seen."""
        with self._lock:
            self._rules.clear()
            self.seen.clear()
            self.most_at_once = 0
            self._first_answers.clear()

    def count(self, method: str, pattern: str = "*") -> int:
        """How many requests there were."""
        with self._lock:
            return sum(fnmatchcase(line, f"{method} {pattern}") for line in self.seen)

    def __enter__(self) -> Self:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_any(self) -> None:
                with proxy._lock:
                    proxy._at_once += 1
                    proxy.most_at_once = max(proxy.most_at_once, proxy._at_once)
                try:
                    proxy._handle(self)
                finally:
                    with proxy._lock:
                        proxy._at_once -= 1

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do_PATCH = handle_any

            def log_message(self, format: str, *args: object) -> None:
                """Requests are in `seen`."""

        self._server = _Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True, name="fault-proxy").start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    def _handle(self, request: BaseHTTPRequestHandler) -> None:
        request.close_connection = True
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        line = f"{request.command} {unquote(request.path)}"
        fault = self._due(line)
        match fault:
            case Fault.DROP_BEFORE:
                return
            case Fault.HANG_BEFORE:
                time.sleep(self.hang_s)
                return
            case Fault.LATE:
                threading.Timer(self.late_s, self._forward, (request, body)).start()
                return
            case Fault.ERROR_BEFORE:
                _send(request, _failure(500, "InternalError"))
                return
            case Fault.DENY:
                _send(request, _failure(403, "AccessDenied"))
                return
            case Fault.REJECT:
                _send(request, _failure(400, "InvalidRequest"))
                return
            case Fault.THROTTLE:
                _send(request, _failure(503, "SlowDown"))
                return
            case Fault.TOO_MANY:
                failure = _failure(429, "SlowDown")
                _send(request, replace(failure, headers=(*failure.headers, ("Retry-After", "1"))))
                return
        answer = self._forward(request, body)
        with self._lock:
            first = self._first_answers.setdefault(line, answer)
        match fault:
            case Fault.DROP_AFTER:
                return
            case Fault.HANG_AFTER:
                time.sleep(self.hang_s)
            case Fault.ERROR_AFTER:
                _send(request, _failure(500, "InternalError"))
            case Fault.SLOW:
                time.sleep(self.slow_s)
                _send(request, answer)
            case Fault.SHORT:
                _send(request, replace(answer, body=answer.body[: len(answer.body) // 2]))
            case Fault.OTHER_BYTES:
                _send(request, replace(answer, body=answer.body[::-1]))
            case Fault.OTHER_ETAG:
                others = [(k, f'"{0:032x}"' if k.lower() == "etag" else v) for k, v in answer.headers]
                _send(request, replace(answer, headers=tuple(others)))
            case _:
                _send(request, first if fault is Fault.STALE else answer)

    def _due(self, line: str) -> Fault | None:
        with self._lock:
            self.seen.append(line)
            for rule in self._rules:
                if rule.remaining and fnmatchcase(line, f"{rule.method} {rule.pattern}"):
                    rule.remaining -= 1
                    return rule.fault
            return self.chance.choice(PASSING) if self.flaky and not self.chance.randrange(self.flaky) else None

    def _forward(self, request: BaseHTTPRequestHandler, body: bytes) -> _Answer:
        where = urlsplit(self.upstream)
        connection = HTTPConnection(where.hostname or "127.0.0.1", where.port, timeout=60)
        try:
            headers = {k: v for k, v in request.headers.items() if k.lower() not in ("connection", "expect")}
            connection.request(request.command, request.path, body=body or None, headers=headers)
            response = connection.getresponse()
            kept = tuple((k, v) for k, v in response.getheaders() if k.lower() not in _DROPPED_HEADERS)
            if request.command == "HEAD":
                kept = (*kept, ("Content-Length", response.getheader("Content-Length") or "0"))
            return _Answer(response.status, kept, response.read())
        finally:
            connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed, or does not wait any longer, is no news."""


def _failure(status: int, code: str) -> _Answer:
    """An error in the words of S3. The client of Azure reads its code, too, that of GCS only the number."""
    text = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>injected</Message></Error>'
    return _Answer(status, (("Content-Type", "application/xml"),), text.encode())


def _send(request: BaseHTTPRequestHandler, answer: _Answer) -> None:
    request.send_response(answer.status)
    for name, value in answer.headers:
        request.send_header(name, value)
    if request.command != "HEAD":
        request.send_header("Content-Length", str(len(answer.body)))
    request.send_header("Connection", "close")
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(answer.body)
