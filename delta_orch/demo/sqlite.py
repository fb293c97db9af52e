"""Dagster's and Airflow's sqlite databases, made for speed: they need to survive the demo's kills, not a power cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy.engine.interfaces import DBAPIConnection


def relax_sqlite() -> None:
    """Let sqlite connections of this process, made from now on, leave flushing to the operating system.

    Dagster commits each event of a run by itself: a backfill of a year makes thousands of them, and waits for the disk
    each time. What a killed process has committed is safe all the same.
    """
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    if not event.contains(Engine, "connect", _do_not_wait):
        event.listen(Engine, "connect", _do_not_wait)


def _do_not_wait(connection: DBAPIConnection, record: object) -> None:
    if type(connection).__module__.partition(".")[0] in ("sqlite3", "_sqlite3", "sqlalchemy"):
        cursor = connection.cursor()
        cursor.execute("PRAGMA synchronous = OFF")
        cursor.close()
