"""An iterator that works ahead of its consumer, on a thread that ends with it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Queue
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Item(Generic[T]):
    value: T


@dataclass(frozen=True, slots=True)
class _End:
    error: BaseException | None


@contextmanager
def ahead(items: Iterable[T], depth: int = 1) -> Iterator[Iterator[T]]:
    """Iterate `items` on a thread of its own, at most `depth` of them waiting.

    What they raise is raised to the consumer, in place. Leaving the block ends the thread, wherever the consumer is.
    """
    queue: Queue[_Item[T] | _End] = Queue(depth)
    stopped = threading.Event()

    def produce() -> None:
        error: BaseException | None = None
        try:
            for item in items:
                if stopped.is_set():
                    return
                queue.put(_Item(item))
        except BaseException as e:  # noqa: BLE001 - raised again where it is waited for
            error = e
        queue.put(_End(error))

    thread = threading.Thread(target=produce, name="delta-ahead", daemon=True)
    thread.start()
    try:
        yield _consume(queue)
    finally:
        stopped.set()
        while thread.is_alive():
            # It may wait for room for something that nobody wants any more.
            while not queue.empty():
                queue.get_nowait()
            thread.join(timeout=0.01)


def _consume(queue: Queue[_Item[T] | _End]) -> Iterator[T]:
    while True:
        match queue.get():
            case _Item(value):
                yield value
            case _End(error):
                if error is not None:
                    raise error
                return
