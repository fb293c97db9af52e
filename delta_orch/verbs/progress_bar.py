"""A bar on the terminal, drawn by whichever package is installed."""

from __future__ import annotations

from collections.abc import Callable

from delta_orch.errors import MissingDependencyError


def progress_bar() -> Callable[[int, int], None]:
    """A function that is told how many of how many are done.

    Raises:
        MissingDependencyError: Neither tqdm nor rich is installed.
    """
    try:
        from tqdm import tqdm
    except ImportError:
        return _rich_bar()
    bar = tqdm(unit=" files")

    def tell(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)
        if done == total:
            bar.refresh()

    return tell


def _rich_bar() -> Callable[[int, int], None]:
    try:
        from rich.progress import Progress
    except ImportError as e:
        raise MissingDependencyError(
            "No package for progress bars is installed",
            cause=str(e),
            remedy="Run pip install tqdm, or pass a function of your own as progress",
        ) from e
    progress = Progress(transient=True)
    task = progress.add_task("files")

    def tell(done: int, total: int) -> None:
        progress.start()
        progress.update(task, completed=done, total=total)
        if done == total:
            progress.stop()

    return tell
