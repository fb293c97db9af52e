"""`DeltaSqlHook`: what operators of Airflow's `common.sql` provider get from a connection of type `delta`.

Importing this module loads that provider. `DeltaHook`, which the operators of this package use, does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from airflow.providers.common.sql.hooks.sql import DbApiHook

from delta_orch.airflow.hook import DEFAULT_CONN_ID, DeltaHook
from delta_orch.errors import InvalidRequestError

if TYPE_CHECKING:
    import pyarrow as pa

_Row = tuple[Any, ...]


class DeltaSqlHook(DeltaHook, DbApiHook):  # type: ignore[misc]
    """A `DeltaHook` that also runs queries, for `SQLColumnCheckOperator`, `@task.sql` and other tasks of SQL.

    A query is in DuckDB's SQL and runs in the process of the task. A table is a name below the connection's
    `table_root`, or delta.`path`. Statements that change a table are refused: nothing orders them, and a retry would
    repeat them.

    Args:
        delta_conn_id: As of `DeltaHook`.
        log_sql: Log each statement.
        extra: Ignored: SQL operators pass the connection's extra, which the hook reads itself.
    """

    strip_semicolon = True

    def __init__(self, delta_conn_id: str = DEFAULT_CONN_ID, *, log_sql: bool = True, **extra: object) -> None:
        super().__init__(delta_conn_id=delta_conn_id, log_sql=log_sql)

    def get_conn(self) -> DeltaConnection:  # type: ignore[override]
        """A connection as of PEP 249. Nothing is opened before a statement runs."""
        return DeltaConnection(self)

    @property
    def schema(self) -> None:
        """None: a connection has no database. SQL operators set it where they are given one.

        Raises InvalidRequestError: It is set.
        """

    @schema.setter
    def schema(self, database: str) -> None:
        raise InvalidRequestError(
            f"A connection of type delta has no database {database!r}",
            remedy="Leave out database, and write delta.`folder/table`, or name a connection with another table_root",
        )


class DeltaConnection:
    """A connection as of PEP 249. There are no transactions: statements only read."""

    def __init__(self, hook: DeltaHook) -> None:
        self._hook = hook

    def cursor(self) -> DeltaCursor:
        return DeltaCursor(self._hook)

    def commit(self) -> None:
        """Do nothing."""

    def rollback(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: nothing is open."""


class DeltaCursor:
    """A cursor as of PEP 249. Every statement reads each table at one version.

    Attributes:
        description: Of each column of the last statement its name, its Arrow type as a text, and five times None.
        rowcount: The rows of the last statement, -1 before the first one.
        arraysize: How many rows `fetchmany` returns by default.
    """

    def __init__(self, hook: DeltaHook) -> None:
        self._hook = hook
        self._rows: Iterator[_Row] | None = None
        self.description: list[_Row] | None = None
        self.rowcount = -1
        self.arraysize = 1

    def execute(self, sql: str, parameters: object = None) -> DeltaCursor:
        """Run a statement.

        Raises:
            InvalidRequestError: There are parameters, or the statement is not a query, DESCRIBE or SHOW.
            DeltaError: As `delta_orch.sql`.
        """
        from delta_orch.statements.run import read

        if parameters:
            raise InvalidRequestError(
                "SQL on Delta tables takes no parameters", remedy="Write the values into the statement, as a template"
            )
        rows = read(sql.rstrip().removesuffix(";"), self._hook.table, self._hook.storage_options())
        self.description = [(field.name, str(field.type), *[None] * 5) for field in rows.schema]
        self.rowcount, self._rows = rows.num_rows, _tuples(rows)
        return self

    def executemany(self, sql: str, parameters: object) -> None:
        """Raises InvalidRequestError: Always, as `execute` with parameters."""
        self.execute(sql, parameters or [()])

    def fetchone(self) -> _Row | None:
        return next(self, None)

    def fetchmany(self, size: int | None = None) -> list[_Row]:
        return list(islice(self, self.arraysize if size is None else size))

    def fetchall(self) -> list[_Row]:
        return list(self)

    def close(self) -> None:
        self._rows = None

    def __iter__(self) -> DeltaCursor:
        return self

    def __next__(self) -> _Row:
        if self._rows is None:
            raise InvalidRequestError("The cursor has no rows", remedy="Call execute first")
        return next(self._rows)


def _tuples(rows: pa.Table) -> Iterator[_Row]:
    for batch in rows.to_batches():
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
