"""Loggers that import `logging` when something is told."""

from __future__ import annotations

import sys


class Logger:
    """`logging.getLogger(name)`, for modules that a first call loads and that seldom tell anything.

    The import takes a twentieth of opening a table in a fresh process.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def debug(self, message: str, *values: object) -> None:
        """Tell something of level DEBUG. Arguments as those of `logging.Logger.debug`."""
        self._tell("DEBUG", message, values)

    def info(self, message: str, *values: object) -> None:
        """As `debug`, of level INFO."""
        self._tell("INFO", message, values)

    def warning(self, message: str, *values: object, exc_info: bool = False) -> None:
        """As `debug`, of level WARNING."""
        self._tell("WARNING", message, values, exc_info)

    def _tell(self, level: str, message: str, values: tuple[object, ...], exc_info: bool = False) -> None:
        if level != "WARNING" and "logging" not in sys.modules:
            return  # Nobody can have asked for it. Warnings are shown unasked.
        import logging

        # The record is of the line that tells it.
        logger = logging.getLogger(self._name)
        logger.log(getattr(logging, level), message, *values, exc_info=exc_info, stacklevel=3)
