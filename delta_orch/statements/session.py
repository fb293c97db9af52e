"""The surroundings of a statement: tables by name, the engine, and options of the commit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from delta_orch.catalog.names import TableName as CatalogName
from delta_orch.catalog.settings import is_configured
from delta_orch.delta_table import DeltaTable
from delta_orch.engines.base import Engine, Relation
from delta_orch.engines.select import EngineChoice, is_spark_value, select_engine
from delta_orch.errors import InvalidRequestError, UnsupportedExpressionError
from delta_orch.log.read.snapshot import Snapshot
from delta_orch.log.write.commit_options import CommitOptions
from delta_orch.statements.cursor import TableName
from delta_orch.table.registry import has_collations
from delta_orch.writing.sources import open_source


@dataclass(frozen=True, slots=True)
class Session:
    """See `run.sql`."""

    tables: Mapping[str, object]
    choice: EngineChoice
    storage_options: Mapping[str, object] | None
    options: CommitOptions
    open_table: Callable[[str], DeltaTable] | None = None
    """Opens the table of a location, and of a name without dots that is not in `tables`. None: only `tables` has names,
    and locations are opened as `DeltaTable`."""
    runs_again: bool = False
    """The orchestrator may run the statement twice. A query must not read the table that the statement changes then."""

    @property
    def table_names(self) -> frozenset[str]:
        """The names in `tables`, in lower case."""
        return frozenset(name.lower() for name in self.tables)

    def quoted(self, name: str) -> str:
        """A name in a query of the engine."""
        return self.engine().quoted(name)

    def is_of_catalog(self, name: TableName) -> bool:
        """Whether a name is a table of the catalog: it has three parts, and it is not in `tables`."""
        is_own = name.name.lower() in self.table_names or name.parts[:1] == ("spark_catalog",)
        return len(name.parts) == 3 and not is_own and is_configured(self.storage_options)

    def is_table(self, name: TableName, named: Collection[str]) -> bool:
        """Whether a name in FROM is a table. `named` are the names that WITH defines, in lower case."""
        if name.path is not None or name.name.lower() in self.table_names or self.is_of_catalog(name):
            return True
        return self.open_table is not None and len(name.parts) == 1 and name.name.lower() not in named

    def value(self, name: TableName) -> object:
        """The value of a name. Raises InvalidRequestError: The name is unknown."""
        if name.path is not None:
            return self.open_table(name.path) if self.open_table else DeltaTable(name.path, self.storage_options)
        folded = {key.lower(): value for key, value in self.tables.items()}
        if name.name.lower() not in folded:
            if self.is_of_catalog(name):
                return DeltaTable(CatalogName(*name.parts).uri, self.storage_options)
            if self.open_table is not None and len(name.parts) == 1:
                return self.open_table(name.name)
            raise InvalidRequestError(
                f"There is no table {name.name[:200]!r}",
                cause=f"tables= names {', '.join(map(repr, self.tables)) or 'none'}",
                remedy="Write delta.`path`, or pass it: tables={'name': DeltaTable(…)}",
                table=name.name[:200],
            )
        value = folded[name.name.lower()]
        return DeltaTable(value, self.storage_options) if isinstance(value, str) else value

    def target(self, name: TableName) -> DeltaTable:
        """The table that a statement changes or describes. Raises InvalidRequestError: The name is not a table."""
        value = self.value(name)
        if not isinstance(value, DeltaTable):
            raise InvalidRequestError(
                f"{name.name[:200]!r} is a {type(value).__name__}, not a table that a statement can change or describe",
                remedy="Pass a DeltaTable, or the table's location",
            )
        return value

    def engine(self) -> Engine:
        """The engine of queries: the caller's choice, or Spark if a Spark DataFrame is among the tables."""
        frame = next((value for value in self.tables.values() if is_spark_value(value)), None)
        return select_engine(frame, self.choice)

    def relation(self, engine: Engine, value: object) -> Relation:
        """A value as rows for an engine. Raises UnsupportedExpressionError: The table has columns with collations."""
        value = value.snapshot() if isinstance(value, DeltaTable) else value
        if isinstance(value, Snapshot) and has_collations(value.metadata):
            raise unsupported("A query of a table whose columns have collations", "Read it with snapshot().scan()")
        return open_source(engine, value)

    def refuse_options(self, statement: str) -> None:
        """Raises InvalidRequestError: There are options of a commit, but the statement commits nothing."""
        if self.options:
            option_names = ", ".join(self.options)
            raise InvalidRequestError(
                f"{statement} commits nothing and takes no {option_names}", remedy="Leave them out"
            )


Statement = Callable[[Session], object]
"""A statement that was read and checked, ready to run."""


def unsupported(what: str, remedy: str | None = None) -> UnsupportedExpressionError:
    """The error for SQL that no verb implements."""
    return UnsupportedExpressionError(
        f"{what} is not supported", remedy=remedy or "docs/sql.md lists the statements and their parts", construct=what
    )
